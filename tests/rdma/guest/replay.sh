# A trace, every byte checked, with evictions.
. ./pool.sh

# Chains of blocks, each of which prolongs the beginning of an earlier one.
make_trace() {
    awk 'BEGIN {
        srand(7); next_block = 0; chains = 1; chain[0] = ""
        for (i = 0; i < 60; i++) {
            n = split(chain[int(rand() * chains)], old, " ")
            keep = int(rand() * (n + 1)); line = ""
            for (k = 1; k <= keep; k++) line = line old[k] " "
            for (k = 1 + int(rand() * 12); k > 0; k--) line = line next_block++ " "
            chain[chains++ % 30] = line; if (chains > 30) chains = 30
            n = split(line, all, " "); ids = all[1]
            for (k = 2; k <= n; k++) ids = ids ", " all[k]
            printf "{\"timestamp\": %d, \"input_length\": %d, ", i, 512 * n
            printf "\"output_length\": 1, \"hash_ids\": [%s]}\n", ids
        }
    }' >/tmp/trace.jsonl
}
number() { grep -o "\"$1\":[0-9]*" /tmp/replay | cut -d: -f2; }
replay() {
    server_up $address0 rxe0 0
    node_up n1 $address1 rxe1 20mb --no-populate
    wait_offered n1.0
    make_trace
    timeout 60 /tarn/tarn-benchmark -p $port --json replay /tmp/trace.jsonl --block-size 64k \
        --transport rdma >/tmp/replay
    cat /tmp/replay
    equal "requests" 60 "$(number requests)"
    equal "mismatched blocks, failed puts" "0 0" "$(number mismatched_blocks) $(number failed_puts)"
    within "hits" 50 $(number hit_blocks) 10000
    within "evicted" 1 $(info evicted_objects) 10000
    say "$(number blocks) blocks of 64 KiB, $(number hit_blocks) hits," \
        "$(number bytes_read) bytes verified"
}

t replay replay
