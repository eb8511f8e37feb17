#!/bin/bash
# Small objects beside large ones: batches of thousands of 4 KiB to 64 KiB beside 4 MiB objects, and
# redis-server with the same keys in pipelines. Rounds of short rows in turn, the best of each row
# counts.
#   utils/bench/small.sh [--transports shm,tcp] [--no-verify]
takes=1
. "$(dirname "$0")/lib.sh"
need redis-cli "$REDIS" "$TARN" "$TARN_BENCHMARK" python3

start_tarn --pool-size 1gb
tarn="$port $pid"
start_redis --maxmemory 1gb --maxmemory-policy allkeys-lru
seconds=$([ -n "$QUICK" ] && echo 0.2 || echo 0.6)
# shellcheck disable=SC2086 # two words each
python3 utils/bench/small.py "$TARN_BENCHMARK" "$ROUNDS" "$seconds" $tarn "$port" "$pid" "$@"
