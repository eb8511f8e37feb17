#!/bin/bash
# Every table of docs/BENCHMARKS.md, measured here. QUICK=1 for a look (numbers of a quick run prove
# nothing).
#   utils/bench/all.sh [PART]...
#       parts: resp copy meta meta-latency masters memory eviction-latency eviction-cost nodes
#       simulated-nodes ha conductor-ha handover small layers groups boundaries kv_groups lmcache
#       gateways
case ${1:-} in
-h | --help) sed -n '2,3s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
cd "$(dirname "$0")" || exit 1
all=(resp copy meta meta-latency masters memory eviction-latency eviction-cost nodes
    simulated-nodes ha conductor-ha handover small layers groups boundaries kv_groups lmcache
    gateways)
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")
for part in "${parts[@]}"; do
    [[ " ${all[*]} " == *" $part "* ]] ||
        { echo "all.sh: there is no '$part': ${all[*]}" >&2; exit 2; }
done
status=0
(set -- && . ./lib.sh && machine)
for part in "${parts[@]}"; do
    script=$part.sh
    [ -x "$script" ] || script=$part.py
    printf '\n## %s\n\n`utils/bench/%s`\n\n' "$part" "$script"
    "./$script" || { echo "$script failed" >&2; status=1; }
done
exit $status
