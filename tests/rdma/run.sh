#!/bin/bash
# Real verbs over soft-RoCE, in an emulated machine: `make test-rdma`.
#
#   tests/rdma/run.sh --build build/release [TOPIC]...
#       topics: smoke suite e2e replay transfer fence kill link ratio
#
# Boots the guest once for each topic, with the programs of the build directory, and adds up what it
# prints. The last line is "N passed, M failed" and ", K skipped"; the status is 1 when anything
# failed. Where the guest cannot be had all of it is one skipped test. SHOW=1 shows the console of
# all boots, KEEP=1 keeps it.
set -uo pipefail
cd "$(dirname "$0")/../.."

build=build/release topics=()
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2; shift 2 ;;
    *) topics+=("$1"); shift ;;
    esac
done
[ ${#topics[@]} -gt 0 ] || topics=(smoke suite e2e replay transfer fence kill link ratio)
limit_s=900 # against what would never end, nothing else

work=$(mktemp -d "${TMPDIR:-/tmp}/tarn-rdma.XXXXXX") || exit 1
[ -n "${KEEP:-}" ] && echo "test-rdma: $work is kept" || trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

guest=$(tests/rdma/guest.sh 2>"$work/guest.log")
case $? in
0) ;;
3)
    echo "skip test-rdma: $(tail -1 "$work/guest.log")"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
    ;;
*)
    cat "$work/guest.log"
    echo "0 passed, 1 failed"
    exit 1
    ;;
esac

# The programs of the build, with their libraries and without what is only for debuggers, and the
# tests.
pack() {
    local root=$work/root file
    mkdir -p "$root/tests" "$root/tarn"
    cp tests/rdma/guest/* "$root/tests"
    for file in tarn-server tarn-node tarn-benchmark libtarn.so.0 modules/rdma.so tests/tools/kv \
        tests/transport/rdma_test tests/rdma/{stale,rate}; do
        [ -e "$build/$file" ] || continue # the test that needs it says so
        install -D "$build/$file" "$root/tarn/$file"
        strip --strip-debug "$root/tarn/$file"
        for library in $(ldd "$build/$file" | grep -oE '/[^ ]+\.so[^ :]*'); do
            [ -e "$root/usr/${library#/usr/}" ] ||
                install -D "$library" "$root/usr/${library#/usr/}"
        done
    done
    tests/rdma/guest.sh --pack "$root" "$work/tarn.cpio"
    cat "$guest/base.cpio" "$work/tarn.cpio" >"$work/initrd"
}

# boot TOPIC: its console goes to $work/TOPIC.
boot() {
    local processors=1
    local boot_options="console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable"
    boot_options+=" no_timer_check cryptomgr.notests random.trust_cpu=on"
    # A thread that polls would burn the whole time slices of a single processor.
    case $1 in smoke) ;; *) processors=2 ;; esac
    timeout --foreground -k 5 $limit_s qemu-system-x86_64 -nodefaults -no-user-config \
        -nographic -no-reboot -M q35 -accel tcg,thread=multi -cpu max \
        -smp $processors -m 2G -kernel "$guest/vmlinux" -initrd "$work/initrd" -serial stdio \
        -device isa-debug-exit,iobase=0x501,iosize=1 \
        -append "$boot_options topic=$1" \
        </dev/null 2>&1 | tr -d '\r' >"$work/$1"
    return "${PIPESTATUS[0]}"
}

# run_topic TOPIC [last]: one that fails is run once more, and named as flaky if it passes then.
run_topic() {
    local topic=$1 last=${2:-} start=$EPOCHREALTIME status ok bad skip why=
    boot "$topic"
    status=$?
    ok=$(grep -ac '^ok ' "$work/$topic")
    bad=$(grep -ac '^not ok ' "$work/$topic")
    skip=$(grep -ac '^skip ' "$work/$topic")
    if [ $status = 124 ] || [ $status = 137 ]; then
        why="no end within $limit_s s"
    elif ! grep -aq "^end of $topic\$" "$work/$topic"; then
        why="it ended too early (status $status)"
    elif [ $status != 1 ] && [ "$bad" = 0 ]; then
        why="status $status"
    fi
    if [ -n "$why" ]; then
        bad=$((bad + 1))
        echo "not ok $topic: $why"
    fi
    # What failed is among what the guest printed; all of it, should it have died.
    if [ -n "${SHOW:-}" ] || [ -n "$why" ]; then
        sed 's/^/    /' "$work/$topic"
    else
        grep -aE '^(ok|not ok|skip|#) ?' "$work/$topic" | sed 's/^/    /'
    fi
    if [ $bad -gt 0 ] && [ -z "$last" ]; then
        echo "again: $topic"
        run_topic "$topic" last
        return
    fi
    [ -z "$last" ] || [ $bad -gt 0 ] || echo "flaky: $topic failed before"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%s: %d passed, %d failed, %d skipped, %.1f s\n' "$topic" "$ok" "$bad" "$skip" \
        "$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')"
}

pack || { echo "0 passed, 1 failed"; exit 1; }
for topic in "${topics[@]}"; do run_topic "$topic"; done
echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ]
