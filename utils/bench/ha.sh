#!/bin/bash
# High availability beside redis-server under the same redis-sentinel: time from a master's kill -9
# to the first put of 1 KiB that another server accepts and the first old value that is read again
# (redis-server: the first write), a full synchronisation of 5 M objects, and what a replica costs
# the master.
. "$(dirname "$0")/lib.sh"
NODE=${NODE:-src/tarn-node}
need redis-cli redis-sentinel redis-benchmark python3 "$TARN" "$NODE" "$REDIS"
down_after=${DOWN_AFTER:-1000} # ms
objects=$(scale 5000000)

server() { # tarn|redis OPTION...
    local what=$1
    shift
    if [ "$what" = tarn ]; then start_tarn --pool-size 0 "$@"; else start_redis "$@"; fi
}
wait_link() { until [ "$(info "$1" master_link_status)" = up ]; do sleep 0.05; done; } # PORT
end_all() { for p in "$@"; do stop "$p"; done; }

# --- failover ---

# Milliseconds from the kill of process $1 until one of the ports that follow accepts a write of 1
# KiB. (What tarn takes failover.py says: as programs see it that go by Sentinels.)
first_write() {
    python3 - "$@" <<'END'
import os, signal, socket, sys, time
pid, ports = int(sys.argv[1]), [int(p) for p in sys.argv[2:]]
request = b"*3\r\n$3\r\nSET\r\n$5\r\nafter\r\n$1024\r\n" + b"x" * 1024 + b"\r\n"
links = [socket.create_connection(("127.0.0.1", p)) for p in ports]
os.kill(pid, signal.SIGKILL)
start = time.time()
while time.time() - start < 60:
    for i, link in enumerate(links):
        try:
            link.settimeout(1)
            link.sendall(request)
            answer = link.recv(1000)
            if answer.startswith(b"+OK"):
                print("%.0f" % ((time.time() - start) * 1000))
                sys.exit(0)
            if answer == b"": raise OSError("closed")
        except OSError:
            try: links[i] = socket.create_connection(("127.0.0.1", ports[i]))
            except OSError: pass
    time.sleep(0.005)
sys.exit("no server took a write within a minute")
END
}

failover() { # tarn|redis
    local what=$1 ports=() pids=() sentinels=() urls="" i
    for i in 1 2 3; do
        server "$what"
        ports+=("$port") pids+=("$pid")
    done
    redis-cli -p "${ports[1]}" REPLICAOF 127.0.0.1 "${ports[0]}" >/dev/null
    redis-cli -p "${ports[2]}" REPLICAOF 127.0.0.1 "${ports[0]}" >/dev/null
    wait_link "${ports[1]}"
    wait_link "${ports[2]}"
    for i in 1 2 3; do
        port=$(free_port)
        printf '%s\n' "port $port" "bind 127.0.0.1" "dir $bench_dir" \
            "sentinel monitor pool 127.0.0.1 ${ports[0]} 2" \
            "sentinel down-after-milliseconds pool $down_after" \
            "sentinel failover-timeout pool 30000" >"$bench_dir/sentinel.$port.conf"
        redis-sentinel "$bench_dir/sentinel.$port.conf" >"$bench_dir/sentinel.$port.log" 2>&1 &
        bench_pids+=($!)
        sentinels+=($!)
        urls="$urls${urls:+,}127.0.0.1:$port"
    done
    if [ "$what" = tarn ]; then
        for i in 1 2; do
            "$NODE" --master "tarn+sentinel://$urls/pool" --name "n$i" --host-name "m$i" \
                --segment 64mb >"$bench_dir/n$i.log" 2>&1 &
            bench_pids+=($!)
            sentinels+=($!)
        done
        until redis-cli -p "${ports[0]}" SET before "$(printf %1024s x)" | grep -q OK; do
            sleep 0.1
        done
    fi
    for i in $(seq 200); do # all of them know all of them
        [ "$(cat "$bench_dir"/sentinel.*.log | grep -c '+sentinel sentinel')" = 6 ] &&
            [ "$(cat "$bench_dir"/sentinel.*.log | grep -c '+slave slave')" = 6 ] && break
        sleep 0.1
    done
    sleep 2
    if [ "$what" = tarn ]; then
        TARN_LIB=${TARN_LIB:-$PWD/src/libtarn.so} python3 utils/bench/failover.py \
            "tarn+sentinel://$urls/pool" "${pids[0]}"
    else
        first_write "${pids[0]}" "${ports[1]}" "${ports[2]}"
    fi
    end_all "${sentinels[@]}" "${pids[@]}"
    rm -f "$bench_dir"/sentinel.*
}

echo "### From kill -9 to the first write ($(machine))"
echo
echo "3 Sentinels, down-after-milliseconds $down_after, $ROUNDS rounds:"
echo
echo "| round | tarn, first put ms | tarn, first old value ms | redis-server, first write ms |"
echo "| --- | --- | --- | --- |"
puts="" reads="" redis=""
for i in $(seq "$ROUNDS"); do
    read -r put old <<<"$(failover tarn)"
    write=$(failover redis)
    puts="$puts $put" reads="$reads $old" redis="$redis $write"
    echo "| $i | $put | $old | $write |"
done
a=$(median <<<"$puts") b=$(median <<<"$reads") c=$(median <<<"$redis")
echo "| median | $a | $b | $c |"
echo "| ratio | $(ratio "$a" "$c") | $(ratio "$b" "$c") | |"

# --- a full synchronisation ---

echo
echo "### A full synchronisation of $objects objects"
echo
echo "Values of 60 bytes, which live in the books." \
    "The loop's longest turn is of the master while it sends."
echo
echo "| server | seconds | longest turn of the loop, ms | memory of the master before MiB" \
    "| at most MiB |"
echo "| --- | --- | --- | --- | --- |"
resident() { awk -v f="$1" '$1 == f { print int($2 / 1024) }' "/proc/$2/status"; }
for what in tarn redis; do
    server "$what"
    master=$pid master_port=$port
    python3 - "$objects" <<'END' | redis-cli -p "$port" --pipe >/dev/null
import sys
n, out = int(sys.argv[1]), sys.stdout.buffer
for start in range(0, n, 10000):
    out.write(b"".join(b"*3\r\n$3\r\nSET\r\n$40\r\n%040x\r\n$60\r\n%060d\r\n" %
                       (i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 124), i)
                       for i in range(start, min(n, start + 10000))))
END
    before=$(resident VmRSS: "$master")
    redis-cli -p "$master_port" CONFIG RESETSTAT >/dev/null
    echo 5 >"/proc/$master/clear_refs" 2>/dev/null || true
    server "$what"
    began=$(date +%s.%N)
    redis-cli -p "$port" REPLICAOF 127.0.0.1 "$master_port" >/dev/null
    until [ "$(info "$port" master_link_status)" = up ]; do sleep 0.02; done
    took=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    most=$(resident VmHWM: "$master")
    turn=$(info "$master_port" loop_longest_turn_usec)
    [ "$(redis-cli -p "$port" DBSIZE)" = "$(redis-cli -p "$master_port" DBSIZE)" ] ||
        say "$what: the replica has other keys"
    turn_ms=$([ -n "$turn" ] && awk -v t="$turn" 'BEGIN { printf "%.2f", t / 1000 }' ||
        echo "(forks)")
    echo "| $what | $took | $turn_ms | $before | $most |"
    end_all "$pid" "$master"
done

# --- what a replica costs ---

echo
echo "### SET of 60 bytes with a replica, beside without"
echo
echo "| pipeline | tarn alone k/s | with a replica k/s | ratio | redis-server alone k/s" \
    "| with a replica k/s | ratio |"
echo "| --- | --- | --- | --- | --- | --- | --- |"
sets() {
    redis-benchmark -p "$1" -q --csv -t set -d 60 -r 100000 -P "$2" \
        -n $(($(scale 400000) * ($2 > 1 ? 5 : 1))) 2>/dev/null | tail -1 | cut -d'"' -f4
}
for pipeline in 1 16; do
    row="| $pipeline |"
    for what in tarn redis; do
        server "$what"
        master=$pid master_port=$port alone="" both=""
        server "$what"
        for i in $(seq "$ROUNDS"); do
            redis-cli -p "$port" REPLICAOF NO ONE >/dev/null
            alone="$alone $(sets "$master_port" "$pipeline")"
            redis-cli -p "$port" REPLICAOF 127.0.0.1 "$master_port" >/dev/null
            wait_link "$port"
            both="$both $(sets "$master_port" "$pipeline")"
        done
        a=$(median <<<"$alone") b=$(median <<<"$both")
        both=$(awk -v a="$a" -v b="$b" 'BEGIN { printf "%.0f | %.0f", a / 1000, b / 1000 }')
        row="$row $both | $(ratio "$b" "$a") |"
        end_all "$pid" "$master"
    done
    echo "$row"
done
