#!/bin/bash
# Runs every libFuzzer target under BUILD/tests/fuzz for FUZZ_SECONDS, from the seeds in
# tests/fuzz/seeds/NAME. New inputs are kept in BUILD/corpus/NAME, what failed in
# BUILD/crash/NAME-*. Ends with "N passed, M failed".
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: run-fuzz.sh BUILD [NAME...]}
shift
passed=0 failed=0
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1
for program in "$build"/tests/fuzz/*_fuzz; do
    [ -x "$program" ] || continue
    name=$(basename "$program" _fuzz)
    if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
    corpus=$build/corpus/$name
    mkdir -p "$corpus" "$build/crash"
    seeds=()
    [ ! -d "tests/fuzz/seeds/$name" ] || seeds=("tests/fuzz/seeds/$name")
    echo "fuzz: $name for ${FUZZ_SECONDS:-60} s"
    if "$program" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 \
        -artifact_prefix="$build/crash/$name-" "$corpus" \
        ${seeds[@]+"${seeds[@]}"} >"$build/$name.log" 2>&1; then
        passed=$((passed + 1))
        grep -E 'number_of_executed_units|new_units_added' "$build/$name.log" | sed 's/^/  /'
    else
        failed=$((failed + 1))
        tail -40 "$build/$name.log" | sed 's/^/  | /'
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
