#!/bin/bash
# What a key costs when its call is split among 1, 2, 4 and 8 masters on this machine, in turns:
# keys a second (more masters than cores answer no more), and processor time.
#
#   utils/bench/masters.sh [OP-BATCH...]
#       put-128 get-128 exists-128 put-1024 get-1024 exists-1024
#
# SECONDS_EACH: of a round (1). MASTERS: how many ("1 2 4 8"). CLIENTS: of the load (1). STRETCH: so
# many keys in a row share a master, as tarn.chain has them (64); 0: none do. RATE: calls a second
# (as fast as it goes), so that one master sleeps between calls as many do; the client does not
# sleep then, and its time says nothing.
takes=1
. "$(dirname "$0")/lib.sh"
need redis-cli "$TARN" "$TARN_BENCHMARK" python3

seconds=${SECONDS_EACH:-$([ -n "$QUICK" ] && echo 0.3 || echo 1)}
counts=${MASTERS:-1 2 4 8}
rows=("$@")
[ $# -gt 0 ] || rows=(put-128 get-128 exists-128 put-1024 get-1024 exists-1024)

declare -A ports
echo "| what | masters | keys/s | times one | client, ns a key | masters, ns a key |" \
    "both, times one |"
echo "| --- | --- | --- | --- | --- | --- | --- |"
for n in $counts; do # no page of a pool is touched
    start_masters "$n" --pool-size 16gb --pool-populate no --busy-poll 0
    ports[$n]=${masters[*]}
done
for row in "${rows[@]}"; do
    say "$row"
    for _ in $(seq "$ROUNDS"); do
        for n in $counts; do
            "$TARN_BENCHMARK" -h 127.0.0.1 -p "${ports[$n]%% *}" --json meta --op "${row%-*}" \
                --batch "${row#*-}" --keys 20480 --clients "${CLIENTS:-1}" --seconds "$seconds" \
                --stretch "${STRETCH:-64}" --rate "${RATE:-0}"
            for port in ${ports[$n]}; do redis-cli -p "$port" FLUSHALL >/dev/null; done
        done
    done >"$bench_dir/rounds"
    python3 -c '
import json, statistics, sys
rounds = {}
for line in sys.stdin:
    d = json.loads(line)
    assert d["errors"] == 0 and d["hits"] == d["keys_done"], line
    rounds.setdefault(d["masters"], []).append(d)
def median(n, what):
    return statistics.median(what(d) for d in rounds[n])
rate = lambda d: d["keys_per_s"]
client, servers = (lambda d: d["client_ns_per_key"]), (lambda d: d["servers_ns_per_key"])
both = lambda d: client(d) + servers(d)
first = min(rounds)
for n in sorted(rounds):
    print("| %s, %s a call | %d | %.0f k | %.2f | %.0f | %.0f | %.2f |" % (
        *sys.argv[1:], n, median(n, rate) / 1000, median(n, rate) / median(first, rate),
        median(n, client), median(n, servers), median(n, both) / median(first, both)))' \
        "${row%-*}" "${row#*-}" <"$bench_dir/rounds"
done
