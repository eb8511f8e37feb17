#!/bin/bash
# Puts of the Mooncake drop-in with group_ids beside puts without: groups.py says which.
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" /usr/bin/python3

start_tarn --pool-size 1gb
/usr/bin/python3 utils/bench/groups.py "$port" "$([ -n "$QUICK" ] && echo 1 || echo "$ROUNDS")"
