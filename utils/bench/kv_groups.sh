#!/bin/bash
# The longest prefix of a hybrid model: one request with KVGROUPS beside PREFIXLEN, MEXISTS and
# EXISTS for each KV group and rank: kv_groups.py says what.
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" python3

start_tarn --pool-size 64mb
python3 utils/bench/kv_groups.py "$port" --rounds "$([ -n "$QUICK" ] && echo 3 || echo 15)"
