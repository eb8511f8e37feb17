#!/bin/bash
# What does eviction-policy chain cost beside lru? Two servers, one with each, in turns: processor
# time of the server for each key, by tarn-benchmark meta with one client. Puts go into a full pool
# of 100,000 objects; gets, which take and give back leases, and look-ups of prefixes find all.
# ROUNDS: seconds of each (21).
ROUNDS=${ROUNDS:-21}
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" "$TARN_BENCHMARK" python3

objects=$(scale 100000)

# load PORT OP BATCH KEYS SECONDS: how many keys were done. What is looked for must be there.
load() {
    "$TARN_BENCHMARK" -p "$1" --json meta --op "$2" --batch "$3" --keys "$4" --seconds "$5" \
        --clients 1 | python3 -c '
import json, sys
row = json.load(sys.stdin)
if row["op"] != "put" and row["hits"] != row["keys_done"]:
    sys.exit("%d of %d were there" % (row["hits"], row["keys_done"]))
print(row["keys_done"])'
}
# Nanoseconds on a processor, of all threads.
computing() {
    cat /proc/"$1"/task/*/schedstat | awk '{ n += $1 } END { printf "%.0f\n", n }'
}

echo '| | lru, ns for each key | chain | ratio, quartiles |'
echo '| --- | --- | --- | --- |'
for row in 'put 128' 'put 20' 'get 128' 'get 20' 'prefix 128'; do
    read -r op batch <<<"$row"
    say "$row"
    pids=() ports=()
    keys=$((objects / 2))
    [ "$op" != put ] || keys=$((objects * 4))
    for policy in lru chain; do
        start_tarn --pool-size $((objects * 4096)) --eviction-high-watermark 1 \
            --eviction-policy "$policy"
        pids+=("$pid") ports+=("$port")
        load "$port" put "$batch" "$keys" 3 >/dev/null
    done
    for round in $(seq "$ROUNDS"); do
        for i in $((round % 2)) $(((round + 1) % 2)); do
            before=$(computing "${pids[i]}")
            done=$(load "${ports[i]}" "$op" "$batch" "$keys" 1)
            echo "$i $((($(computing "${pids[i]}") - before) * 100 / done))"
        done
    done | python3 -c '
import statistics, sys
took = [[], []]
for line in sys.stdin:
    i, ns = line.split()
    took[int(i)].append(int(ns) / 100)
ratios = [b / a for a, b in zip(*took)]
low, mid, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
print("| %s of %s keys | %.0f | %.0f | %.2fx, %.2f to %.2f |" % (
    *sys.argv[1:], *map(statistics.median, took), mid, low, high))' "$op" "$batch"
    for pid in "${pids[@]}"; do stop "$pid"; done
done
