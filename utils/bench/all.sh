#!/bin/bash
# Every table of docs/BENCHMARKS.md, measured here. QUICK=1 for a look (numbers of a quick run prove nothing).
#   utils/bench/all.sh [resp|copy|meta|memory|eviction-latency]...
cd "$(dirname "$0")" || exit 1
parts=("$@")
[ $# -gt 0 ] || parts=(resp copy meta memory eviction-latency)
status=0
(. ./lib.sh && machine)
for part in "${parts[@]}"; do
    printf '\n## %s\n\n`utils/bench/%s.sh`\n\n' "$part" "$part"
    "./$part.sh" || { echo "$part.sh failed" >&2; status=1; }
done
exit $status
