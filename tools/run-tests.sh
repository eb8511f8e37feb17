#!/bin/bash
# Runs tests that were built by `make`, and adds them up.
#
#   tools/run-tests.sh --build build/release --kind release GROUP...     groups: unit transport fuzz stress robust chaos ha integration python docs
#
# Every test program and runner ends with a line "N passed, M failed" (", K skipped" may follow). A crash, a time-out, a
# missing closing line, a program that was not built and a sanitizer's report count as one failure each. Output is shown
# of failures only. The last line is the sum; the status is 1 when anything failed.
#
# Tests find their surroundings in the environment: TARN_SERVER, TARN_NODE, TARN_BENCHMARK, TARN_KV, TARN_LIB, TARN_FAULT (a library to
# preload), TARN_SANITIZER (empty, or the kind), TMPDIR (a new directory, removed afterwards), STRESS_SECONDS.
# JOBS says how many run at once, KEEP=1 keeps TMPDIR, PYTHON which Python (Debian's), PYTHON_TESTS="client_test aio_test" some of its tests.
set -uo pipefail
cd "$(dirname "$0")/.."

build=build/release kind=release groups=()
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2; shift 2 ;;
    --kind) kind=$2; shift 2 ;;
    *) groups+=("$1"); shift ;;
    esac
done

jobs_max=${JOBS:-$(nproc)}
[ "$jobs_max" -le 4 ] || jobs_max=4
slow=1
[ "$kind" = release ] || slow=3
export STRESS_SECONDS=${STRESS_SECONDS:-10} FUZZ_MUTATIONS=${FUZZ_MUTATIONS:-5000}

root=$PWD
work=$(mktemp -d "${TMPDIR:-/tmp}/tarn-test.XXXXXX") || exit 1
reports=$work/reports
mkdir -p "$reports" "$work/tmp"
# Only processes that this script has started and that are still its children are ended.
clean_up() {
    local pids
    pids=$(jobs -rp)
    [ -z "$pids" ] || kill $pids 2>/dev/null
    [ -n "${KEEP:-}" ] || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

export TARN_SERVER=$root/$build/tarn-server TARN_NODE=$root/$build/tarn-node TARN_BENCHMARK=$root/$build/tarn-benchmark TARN_CHECK=$root/$build/tarn-check
export TARN_RDMA_FAKE=$root/$build/tests/fake_verbs/rdma.so TARN_MODULES=$root/$build/modules
export TARN_KV=$root/$build/tests/tools/kv
export TARN_LIB=$root/$build/libtarn.so TARN_FAULT=$root/$build/tests/fault/preload.so TMPDIR=$work/tmp
export TARN_SANITIZER=
prefix=()
if [ "$kind" != release ]; then
    TARN_SANITIZER=$kind
    export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1:log_path=$reports/report${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
    export LSAN_OPTIONS="suppressions=$root/tools/lsan.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}"
    export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:log_path=$reports/report${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
    export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:suppressions=$root/tools/tsan.supp:log_path=$reports/report${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
fi
# ThreadSanitizer of gcc 12 does not start where the kernel randomises more address bits than it knows.
if [ "$kind" = thread ] && setarch -R true 2>/dev/null; then prefix=(setarch -R); fi

# run_one NAME SECONDS COMMAND...: runs it, leaves "passed failed skipped" in $work/NAME.sum and says how it went.
run_one() {
    local name=$1 limit=$2 status line passed=0 failed=0 skipped=0 why= start=$EPOCHREALTIME took
    shift 2
    local out=$work/${name//\//_}
    if [ "${1:0:1}" = / ] && [ ! -x "$1" ]; then
        why="not built"
        : >"$out.out"
        status=0
    else
        # The braces keep the shell's own word on how it died off the terminal.
        { ${prefix[@]+"${prefix[@]}"} timeout -k 5 "$limit" "$@" </dev/null >"$out.out" 2>&1; } 2>/dev/null
        status=$?
        line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$out.out" | tail -1)
        if [ -n "$line" ]; then
            read -r passed _ failed _ skipped _ <<<"$line"
            skipped=${skipped:-0}
        fi
        if [ "$status" = 124 ] || [ "$status" = 137 ]; then
            why="no end within $limit s"
        elif [ "$status" -gt 128 ]; then
            why="died of signal $((status - 128))"
        elif [ -z "$line" ]; then
            why="status $status and no closing line"
        elif [ "$status" != 0 ] && [ "$failed" = 0 ]; then
            why="status $status"
        fi
    fi
    [ -z "$why" ] || failed=$((failed + 1))
    took=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    echo "$passed $failed $skipped" >"$out.sum"
    if [ "$failed" != 0 ]; then
        {
            echo "FAIL  $name  $passed passed, $failed failed  ${why:+($why)  }${took}s"
            # Of a long output: what failed, and how it ended.
            if [ "$(wc -l <"$out.out")" -gt 100 ]; then
                grep -aE -A 15 '^not ok|^FAIL' "$out.out" | grep -avE '^ok ' | head -n 200 | sed 's/^/    | /'
                echo "    ..."
                tail -n 25 "$out.out" | sed 's/^/    | /'
            else
                sed 's/^/    | /' "$out.out"
            fi
        } >"$out.say"
        cat "$out.say"
    else
        echo "ok    $name  $passed passed$([ "$skipped" = 0 ] || echo ", $skipped skipped")  ${took}s"
    fi
}

start_one() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs_max" ]; do wait -n 2>/dev/null || true; done
    run_one "$@" &
}

# Python with the run-time libraries of the sanitizers, where libtarn has them. Python's own leaks are not ours to judge; programs that
# its tests start get the options that all others have.
python=(env PYTHONDONTWRITEBYTECODE=1)
if [ "$kind" != release ]; then
    preload=$("${CC:-gcc}" -print-file-name=libubsan.so)
    [ "$kind" != address ] || preload=$("${CC:-gcc}" -print-file-name=libasan.so):$preload
    export TARN_ASAN_OPTIONS=$ASAN_OPTIONS
    python+=(LD_PRELOAD="$preload" ASAN_OPTIONS="${ASAN_OPTIONS/detect_leaks=1/detect_leaks=0}")
fi
python+=("$(command -v "${PYTHON:-/usr/bin/python3}" || echo python3)")

programs() { sed -n "s/^$1://p" "$build/tests.list" 2>/dev/null; }
name_of() { local n=${1#"$build"/tests/}; echo "$n"; }

for group in "${groups[@]}"; do
    case $group in
    unit | transport)
        while read -r p; do start_one "$(name_of "$p")" $((300 * slow)) "$root/$p"; done < <(programs "$group")
        wait
        ;;
    fuzz)
        while read -r p; do
            base=$(basename "$p" _fuzz)
            seeds=()
            for d in tests/fuzz/seeds/"$base" tests/fuzz/corpus/"$base" tests/fuzz/"$base"; do
                [ ! -d "$d" ] || seeds+=("$d")
            done
            start_one "fuzz/$base" $((60 * slow)) "$root/$p" ${seeds[@]+"${seeds[@]}"}
        done < <(programs fuzz)
        wait
        ;;
    stress)
        while read -r p; do run_one "$(name_of "$p")" $(((STRESS_SECONDS + 120) * slow)) "$root/$p"; done < <(programs stress)
        ;;
    chaos)
        for seed in ${CHAOS_SEEDS:-1 2 3 4}; do
            run_one "chaos/seed $seed" $(((STRESS_SECONDS + 120) * slow)) env STRESS_SEED="$seed" "$root/$build/tests/stress/chaos_stress"
        done
        ;;
    robust)
        # The storm comes last: it may go on for an hour.
        for t in tests/integration/robust_*_test.tcl; do
            name=$(basename "$t" _test.tcl)
            [ "$name" = robust_fuzz ] || run_one "$name" $((300 * slow)) tclsh "$t"
        done
        run_one robust_fuzz $(((${ROBUST_SECONDS:-60} + 300) * slow)) env ROBUST_SECONDS="${ROBUST_SECONDS:-60}" \
            tclsh tests/integration/robust_fuzz_test.tcl
        ;;
    ha) run_one ha $(((${HA_ROUNDS:-20} * 60 + 120) * slow)) tclsh tests/ha/ha_test.tcl ;;
    integration)
        if [ -f tests/integration/run.tcl ]; then
            run_one integration $((420 * slow)) tclsh tests/integration/run.tcl --server "$TARN_SERVER" --jobs "$jobs_max" ${TCL_ARGS:-}
        fi
        ;;
    python)
        if [ "$kind" = thread ]; then
            echo "skip  python  ThreadSanitizer does not load into a Python that was built without it"
            echo "0 0 1" >"$work/python.sum"
            continue
        fi
        run_one ctypes $((60 * slow)) "${python[@]}" tests/integration/ctypes_test.py
        run_one python $((900 * slow)) "${python[@]}" tests/python/run.py --jobs "$jobs_max" --limit $((300 * slow)) ${PYTHON_TESTS:-}
        ;;
    docs) run_one docs 60 tclsh tools/check-docs.tcl --server "$TARN_SERVER" ;;
    *) echo "run-tests: unknown group '$group'" >&2; exit 2 ;;
    esac
done

# A report of a sanitizer is a failure wherever it came from; servers that a test has started included.
extra=0
for r in "$reports"/*; do
    [ -s "$r" ] || continue
    extra=$((extra + 1))
    echo "FAIL  sanitizer report"
    head -n 60 "$r" | sed 's/^/    | /'
done

# Inputs that a fuzz target died of outlive the run.
for c in "$work"/tmp/*-crash-*; do
    [ -f "$c" ] || continue
    mkdir -p "$build/crash" && cp "$c" "$build/crash/" && echo "kept: $build/crash/$(basename "$c")"
done

cat "$work"/*.sum 2>/dev/null | awk -v extra=$extra '
    { p += $1; f += $2; s += $3 }
    END { f += extra; printf "%d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : ""; exit f > 0 || p + s == 0 }'
