#!/bin/bash
# Masters with many nodes that are simulated: they join all of them, mount, beat; no byte is moved.
# A node has 4 segments at each, as one of 32 chunks has at each of 8 masters.
#
# NODES (200) and MASTERS (1): how many. A tenth of the nodes die at once. KEYS
# (5000000): objects, with two replicas each. SECONDS_EACH (5): of a measurement.
#
#   NODES=2000 MASTERS=8 KEYS=1000000 utils/bench/simulated-nodes.sh
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" "$TARN_BENCHMARK"
nodes=${NODES:-200}
n=${MASTERS:-1}
start_masters "$n" --pool-size 0 --placement-strategy random --max-nodes 32768 --busy-poll 0
echo '```'
"$TARN_BENCHMARK" -h 127.0.0.1 -p "$port" nodes --nodes "$nodes" --dying $((nodes / 10)) \
    --segments 4 --keys "$(scale "${KEYS:-5000000}")" \
    --seconds "${SECONDS_EACH:-$([ -n "$QUICK" ] && echo 1 || echo 5)}"
echo '```'
