#!/bin/bash
# Bytes of books per object: 10 M objects with keys of 64 bytes and one replica in the pool each
# (values of 100 bytes, so that none lives in the books). The books are what INFO counts as
# used_memory, less what an empty server uses.
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" python3

objects=$(scale 10000000)
start_tarn --pool-size $((objects * 128 / 1048576 + 64))mb --eviction-high-watermark 1
resident() { awk '/^RssAnon/ { print $2 * 1024 }' "/proc/$pid/status"; }
empty=$(info "$port" used_memory)
resident_empty=$(resident)
say "putting $objects objects"
python3 - "$objects" <<'END' | redis-cli -p "$port" --pipe >&2
import sys
n, out = int(sys.argv[1]), sys.stdout.buffer
value = b"$100\r\n" + b"v" * 100 + b"\r\n"
for start in range(0, n, 10000):
    out.write(b"".join(b"*3\r\n$3\r\nSET\r\n$64\r\nvllm@meta-llama/Llama-3.1-8B@8@3@%031x\r\n%s" %
              (i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 124), value)
                       for i in range(start, min(n, start + 10000))))
END
count=$(redis-cli -p "$port" DBSIZE)
books=$(info "$port" used_memory)
awk -v n="$count" -v e="$empty" -v b="$books" -v re="$resident_empty" -v r="$(resident)" 'BEGIN {
    print "| what | bytes per object | beside 690 of Mooncake (15-byte keys) | wanted |"
    print "| --- | --- | --- | --- |"
    printf "| books by INFO, %d objects, 64-byte keys | %.1f | %.2fx | 0.2x |\n",
        n, (b - e) / n, (b - e) / n / 690
    printf "| the same as resident anonymous memory of the process | %.1f | %.2fx | |\n",
        (r - re) / n, (r - re) / n / 690
}'
