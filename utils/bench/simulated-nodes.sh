#!/bin/bash
# One master, 200 nodes that are simulated (they join, mount, beat; no byte is moved), 5 million
# objects with two replicas.
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" "$TARN_BENCHMARK"
start_tarn --pool-size 0 --placement-strategy random
echo '```'
"$TARN_BENCHMARK" -h 127.0.0.1 -p "$port" nodes --keys "$(scale 5000000)" \
    --seconds "$([ -n "$QUICK" ] && echo 1 || echo 5)"
echo '```'
