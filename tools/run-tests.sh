#!/bin/bash
# Runs tests that were built by `make`, and adds them up.
#
#   tools/run-tests.sh --build build/release --kind release GROUP...     groups: unit transport fuzz stress integration docs
#
# Every test program and runner ends with a line "N passed, M failed" (", K skipped" may follow). A crash, a time-out, a
# missing closing line, a program that was not built and a sanitizer's report count as one failure each. Output is shown
# of failures only. The last line is the sum; the status is 1 when anything failed.
#
# Tests find their surroundings in the environment: TARN_SERVER, TARN_BENCHMARK, TARN_LIB, TARN_FAULT (a library to
# preload), TARN_SANITIZER (empty, or the kind), TMPDIR (a new directory, removed afterwards), STRESS_SECONDS.
# JOBS says how many run at once, KEEP=1 keeps TMPDIR.
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

export TARN_SERVER=$root/$build/tarn-server TARN_BENCHMARK=$root/$build/tarn-benchmark
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

programs() { sed -n "s/^$1://p" "$build/tests.list" 2>/dev/null; }
name_of() { local n=${1#"$build"/tests/}; echo "$n"; }

for group in "${groups[@]}"; do
    case $group in
    unit | transport)
        while read -r p; do start_one "$(name_of "$p")" $((120 * slow)) "$root/$p"; done < <(programs "$group")
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
        while read -r p; do run_one "$(name_of "$p")" $(((STRESS_SECONDS + 60) * slow)) "$root/$p"; done < <(programs stress)
        ;;
    integration)
        if [ -f tests/integration/run.tcl ]; then
            run_one integration $((420 * slow)) tclsh tests/integration/run.tcl --server "$TARN_SERVER" --jobs "$jobs_max" ${TCL_ARGS:-}
        fi
        # A library built with a sanitizer does not load into a Python that was not.
        if [ "$kind" = release ]; then
            TARN_LIB="$root/$build/libtarn.so" run_one ctypes 180 python3 tests/integration/ctypes_test.py
        fi
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
    END { f += extra; printf "%d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : ""; exit f > 0 || p == 0 }'
