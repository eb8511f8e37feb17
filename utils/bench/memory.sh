#!/bin/bash
# Bytes of books per object: 10 M objects with keys of 64 bytes and one replica in the pool each
# (values of 100 bytes, so that none lives in the books), put one by one, each of which is a
# prompt's part by itself to the policy, and 128 in a batch. The books are what INFO counts as
# used_memory, less what an empty server uses.
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" "$TARN_BENCHMARK" python3

objects=$(scale 10000000)
resident() { awk '/^RssAnon/ { print $2 * 1024 }' "/proc/$pid/status"; }
one_by_one() {
    python3 - "$objects" <<'END' | redis-cli -p "$port" --pipe >&2
import sys
n, out = int(sys.argv[1]), sys.stdout.buffer
value = b"$100\r\n" + b"v" * 100 + b"\r\n"
for start in range(0, n, 10000):
    out.write(b"".join(b"*3\r\n$3\r\nSET\r\n$64\r\nvllm@meta-llama/Llama-3.1-8B@8@3@%031x\r\n%s" %
              (i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 124), value)
                       for i in range(start, min(n, start + 10000))))
END
}
in_batches() {
    while [ "$(redis-cli -p "$port" DBSIZE)" -lt "$objects" ]; do
        "$TARN_BENCHMARK" -p "$port" meta --op put --batch 128 --clients 4 --keys "$objects" \
            --value-size 100 --seconds 2 >&2
    done
}

echo "| objects of 64-byte keys | how many | books by INFO, bytes of each |" \
    "beside 690 of Mooncake (15-byte keys) | resident anonymous memory, bytes of each |"
echo "| --- | --- | --- | --- | --- |"
for how in in_batches one_by_one; do
    start_tarn --pool-size $((objects * 128 * 5 / 4 / 1048576 + 64))mb --eviction-high-watermark 1
    empty=$(info "$port" used_memory)
    resident_empty=$(resident)
    say "putting $objects objects, ${how//_/ }"
    $how
    awk -v how="${how//_/ }" -v n="$(redis-cli -p "$port" DBSIZE)" -v e="$empty" \
        -v b="$(info "$port" used_memory)" -v re="$resident_empty" -v r="$(resident)" 'BEGIN {
        printf "| put %s | %d | %.1f | %.2fx | %.1f |\n",
            how, n, (b - e) / n, (b - e) / n / 690, (r - re) / n
    }'
    redis-cli -p "$port" SHUTDOWN NOSAVE >/dev/null 2>&1 || true
done
