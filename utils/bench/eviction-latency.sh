#!/bin/bash
# Does eviction hold up readers? p99.9 of GETREPLICAS at 5 M objects, beside writers that run flat
# out: once with room for all that they write, once in a full pool, where each put evicts. One
# prober sends GETREPLICAS, one at a time.
. "$(dirname "$0")/lib.sh"
need redis-benchmark redis-cli "$TARN" python3

objects=$(scale 5000000)
seconds=${SECONDS_EACH:-$([ -n "$QUICK" ] && echo 3 || echo 15)}

# fill PORT: objects of 128 bytes with keys key:000000000000 and up.
fill() {
    python3 - "$objects" <<'END' | redis-cli -p "$1" --pipe >&2
import sys
n, out = int(sys.argv[1]), sys.stdout.buffer
for start in range(0, n, 10000):
    out.write(b"".join(b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$128\r\n%128d\r\n" % (i, i)
                       for i in range(start, min(n, start + 10000))))
END
}

# probe PORT: p50 and p99.9 in microseconds, and how many.
probe() {
    python3 - "$1" "$objects" "$seconds" <<'END'
import random, socket, sys, time
port, n, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
s = socket.create_connection(("127.0.0.1", port))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
took, end = [], time.monotonic() + seconds
while time.monotonic() < end:
    request = b"*2\r\n$11\r\nGETREPLICAS\r\n$16\r\nkey:%012d\r\n" % random.randrange(n)
    start = time.perf_counter_ns()
    s.sendall(request)
    s.recv(65536)
    took.append(time.perf_counter_ns() - start)
    time.sleep(0.0005)
took.sort()
print(took[len(took) // 2] / 1000, took[int(len(took) * 0.999)] / 1000, len(took))
END
}

# measure LABEL POOL-MB
measure() {
    local load before after
    start_tarn --pool-size "$2mb" --eviction-high-watermark 1
    say "$1: filling"
    fill "$port"
    # New keys only, without an end: ended below.
    redis-benchmark -p "$port" -q -c 4 -P 16 -n 2000000000 -r 2000000000 SET new:__rand_int__ \
        "$(printf '%0128d' 0)" >/dev/null 2>&1 &
    load=$!
    bench_pids+=("$load")
    sleep 2
    before=$(info "$port" evicted_keys)
    read -r p50 p999 probes < <(probe "$port")
    after=$(info "$port" evicted_keys)
    evicted=$(((after - before) / seconds))
    stop "$load"
    stop "$pid"
}

pool=$((objects * 128 / 1048576))
measure "without eviction" $((pool * 4 + seconds * 400))
quiet=$p999 quiet50=$p50 quiet_evicted=$evicted
measure "with eviction" $((pool + 1))
echo "| GETREPLICAS, $objects objects | p50 | p99.9 | evictions |"
echo "| --- | --- | --- | --- |"
printf '| puts into a pool with room | %.0f us | %.0f us | %d /s |\n' "$quiet50" "$quiet" \
    "$quiet_evicted"
printf '| puts into a full pool | %.0f us | %.0f us | %d /s |\n' "$p50" "$p999" "$evicted"
printf '| ratio (wanted: 2x at most) | %sx | %sx | |\n' "$(ratio "$p50" "$quiet50")" \
    "$(ratio "$p999" "$quiet")"
