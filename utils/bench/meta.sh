#!/bin/bash
# The books alone: keys a second through libtarn's control plane, no bytes moved. Batches of 128
# keys, and single keys. The yardstick is what Mooncake's master did in its own benchmark on a
# machine like this, two cores shared with the load.
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" "$TARN_BENCHMARK" python3

seconds=$([ -n "$QUICK" ] && echo 1 || echo 5)
start_tarn --pool-size 8gb --pool-populate no
keys() {
    "$TARN_BENCHMARK" -h 127.0.0.1 -p "$port" --json meta --seconds "$seconds" --value-size 4096 \
        --keys 1000000 "$@"
}

echo "| what | keys/s | Mooncake's master, on another day | ratio | wanted |"
echo "| --- | --- | --- | --- | --- |"
# row NAME YARDSTICK WANTED ARGS...
row() {
    local name=$1 yardstick=$2 wanted=$3 i rates=() m
    shift 3
    for i in $(seq 1 "$ROUNDS"); do
        rates+=("$(keys "$@" |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["keys_per_s"])')")
    done
    m=$(median <<<"${rates[*]}")
    awk -v n="$name" -v m="$m" -v y="$yardstick" -v w="$wanted" \
        'BEGIN { printf "| %s | %d k | %d k | %.1fx | %s |\n", n, m / 1000, y / 1000, m / y, w }'
}
row "put, 128 a call" 130000 5x --op put --batch 128
row "get, 128 a call" 560000 5x --op get --batch 128
row "exists, 128 a call" 560000 "" --op exists --batch 128
row "put, one a call" 12000 "" --op put --batch 1 --clients 16
row "get, one a call" 27000 "" --op get --batch 1 --clients 16
