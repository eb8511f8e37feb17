#!/bin/bash
# How long writes stand still in a handover (FAILOVER), beside redis-server: from the last SET that
# the old master answered to the first one that the new master answers, for a client that asks the
# one it is told of in the answer READONLY, or whose connection ended. Back and forth, both in the
# same run. 60 bytes (in tarn: in the books), and for tarn 1 KiB on a node as well. HANDOVERS=20 how
# many of each.
. "$(dirname "$0")/lib.sh"
NODE=${NODE:-src/tarn-node}
need redis-cli python3 "$TARN" "$NODE" "$REDIS"
handovers=${HANDOVERS:-20}

# Two masters in turn, PORT PORT SIZE: median and longest pause in ms.
pauses() {
    python3 - "$handovers" "$@" <<'END'
import socket, statistics, sys, threading, time
rounds, a, b, size = (int(x) for x in sys.argv[1:])

def request(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

def ask(link, *words):
    link.sendall(request(*words))
    return link.recv(65536)

def connect(port):
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.settimeout(30)
    return link

value, answered, stop = b"v" * size, [], False

def write():
    links, at, n = {}, a, 0
    while not stop:
        try:
            if at not in links:
                links[at] = connect(at)
            answer = ask(links[at], b"SET", b"key%d" % (n % 1000), value)
        except OSError:
            answer = b""
        if answer.startswith(b"+OK"):
            answered.append(time.monotonic())
            n += 1
        else:
            if answer == b"":
                links.pop(at, None)
            at = a + b - at

def is_done(old, new):
    return (ask(new, b"ROLE").startswith(b"*3\r\n$6\r\nmaster")
            and b"no-failover" in ask(old, b"INFO", b"replication"))

writer = threading.Thread(target=write)
writer.start()
control = {p: connect(p) for p in (a, b)}
pauses, master = [], a
for i in range(rounds):
    # Replicas of redis-server say how far they are once a second: not always at the same moment of
    # it.
    time.sleep(1 + i * 0.37 % 1)
    other, begun = a + b - master, time.monotonic()
    answer = ask(control[master], b"FAILOVER", b"TO", b"127.0.0.1", b"%d" % other)
    assert answer == b"+OK\r\n", answer
    while not is_done(control[master], control[other]):
        time.sleep(0.1)
    while answered[-1] < time.monotonic() - 0.05:
        time.sleep(0.001)
    times = [t for t in answered if t >= begun - 0.05]
    pauses.append(max(y - x for x, y in zip(times, times[1:])) * 1000)
    master = other
stop = True
writer.join()
print("%.1f %.1f" % (statistics.median(pauses), max(pauses)))
END
}

measure() { # tarn|redis SIZE
    local first second started=()
    for second in 1 2; do
        if [ "$1" = tarn ]; then start_tarn --pool-size 0; else start_redis; fi
        [ "$second" = 2 ] || first=$port
        started+=("$pid")
    done
    second=$port
    redis-cli -p "$second" REPLICAOF 127.0.0.1 "$first" >/dev/null
    until [ "$(info "$second" master_link_status)" = up ]; do sleep 0.05; done
    if [ "$2" -gt 64 ]; then
        "$NODE" --master "tarn://127.0.0.1:$first,127.0.0.1:$second" --name n1 --segment 64mb \
            >"$bench_dir/node.log" 2>&1 &
        bench_pids+=($!)
        started+=($!)
        until redis-cli -p "$first" SET before "$(printf %1024s x)" | grep -q OK; do sleep 0.1; done
    fi
    pauses "$first" "$second" "$2"
    for pid in "${started[@]}"; do stop "$pid"; done
}

echo "### Writes stand still in a handover ($(machine))"
echo
echo "$handovers handovers of each:"
echo
echo "| what | median ms | longest ms |"
echo "| --- | --- | --- |"
for what in "redis 60" "tarn 60" "tarn 1024"; do
    read -r server size <<<"$what"
    read -r middle longest <<<"$(measure "$server" "$size")"
    echo "| $server, SET of $size bytes | $middle | $longest |"
done
