#!/bin/bash
# How long look-ups take while puts evict: 200 connections, batches of 128 keys, of 100 calls 10 are
# puts into a pool that is full. First as fast as it goes; then, with half of those calls a second,
# each at a time of its own, from when it was due to its answer. Of tarn, and of Mooncake's master
# where MOONCAKE is a build of it (docs/BENCHMARKS.md says how), in turns.
# SECONDS_EACH: of a measurement (4).
. "$(dirname "$0")/lib.sh"
. utils/bench/mooncake.sh
need redis-cli "$TARN" "$TARN_BENCHMARK" python3

seconds=${SECONDS_EACH:-$([ -n "$QUICK" ] && echo 1 || echo 4)}
mib=2048 keys=100000

tarn_load() {
    "$TARN_BENCHMARK" -h 127.0.0.1 -p "$port" --json meta --op exists --clients 200 --pipeline 1 \
        --keys $keys --puts 10 --seconds "$seconds" "$@"
}
our_load() {
    mooncake_load --op=exists --clients=200 --keys=$keys --puts=10 --seconds="$seconds" \
        --segments=16 --segment_size=$((mib << 16)) ${1:+"--rate=$2"}
}
half() { # of the calls a second of that JSON
    python3 -c 'import json, sys
row = json.load(sys.stdin)
calls = row["keys_done"] / 128 + row["puts_done"]
print("%.0f" % (calls * row["keys_per_s"] / row["keys_done"] / 2))'
}
say_row() { # SIDE RATE
    python3 -c 'import json, sys
row = json.load(sys.stdin)
print("| %s | %d | %d us | %d us | %d us | %.1fx | %d us | %d us | %.0f %% | %.0f k |" % (
    *sys.argv[1:2], int(sys.argv[2]), row["p50_us"], row["p99_us"], row["p999_us"],
    row["p999_us"] / row["p50_us"], row["put_p50_us"], row["put_p999_us"],
    100 * row["hits"] / row["keys_done"], row["put_keys"] / float(sys.argv[3]) / 1000))' \
        "$1" "$2" "$seconds"
}

start_tarn --pool-size ${mib}mb --pool-populate no
"$TARN_BENCHMARK" -p "$port" meta --op put --value-size 4096 --seconds 2 >/dev/null
echo "| look-ups of 128 keys | calls/s, half load | p50 | p99 | p99.9 | p99.9 / p50 |" \
    "puts: p50 | p99.9 | found | keys put a second |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
for _ in $(seq "$ROUNDS"); do
    rate=$(tarn_load | half)
    tarn_load --rate "$rate" | say_row tarn "$rate"
    [ -n "$MOONCAKE" ] || continue
    start_mooncake
    rate=$(our_load | half)
    stop_mooncake
    start_mooncake
    our_load --rate "$rate" | say_row Mooncake "$rate"
    stop_mooncake
done
