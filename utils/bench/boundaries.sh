#!/bin/bash
# What BOUNDARY is worth: a hybrid model (full blocks, windows, states) in a pool that is too small,
# with its parts as parts of boundaries, as groups, and by themselves. boundaries.py has the trace.
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" "$TARN_BENCHMARK" python3

groups=full:128:4k,window:128:4k:500,state:512:16k
python3 utils/bench/boundaries.py "$(scale 3000)" >"$bench_dir/trace"
echo "| policy | boundaries | groups | by themselves | times groups | times by themselves |"
echo "| --- | --- | --- | --- | --- | --- |"
for policy in lru s3fifo sieve lfu fifo; do
    hits=()
    for together in boundaries groups nothing; do
        start_tarn --pool-size 48mb --eviction-high-watermark 1 --eviction-policy "$policy"
        row=$("$TARN_BENCHMARK" -p "$port" --json replay "$bench_dir/trace" --kv-groups "$groups" \
            --kv-interval 512 --kv-together "$together")
        stop "$pid"
        hits+=("$(python3 -c 'import json, sys
row = json.loads(sys.argv[1])
print(round(row["hit_tokens"] / row["tokens"], 4))' "$row")")
    done
    echo "| $policy | ${hits[0]} | ${hits[1]} | ${hits[2]} |" \
        "$(ratio "${hits[0]}" "${hits[1]}") | $(ratio "${hits[0]}" "${hits[2]}") |"
done
