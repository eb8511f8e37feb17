#!/bin/bash
# The books alone: keys a second, no bytes moved, of tarn and of Mooncake's master, in turns on the
# same cores. One call of each client is under way; nothing is evicted.
#
#   utils/bench/meta.sh [ROW...]     rows: put-1 put-4 get-1 get-4 exists-1 exists-4 put-one get-one
#
# MOONCAKE: a build of Mooncake (docs/BENCHMARKS.md says how); without it tarn alone. The peer's
# figure is the higher one of its own master_bench and of mooncake-load, which costs less beside it.
# SECONDS_EACH: of a round (2); whole beside Mooncake, as master_bench takes no fraction. NEAR=no:
# tarn's clients stay at tcp, as those of another machine.
takes=1
. "$(dirname "$0")/lib.sh"
. utils/bench/mooncake.sh
need redis-cli "$TARN" "$TARN_BENCHMARK" python3
[ -z "${SECONDS_EACH:-}" ] || [ -z "$MOONCAKE" ] || number SECONDS_EACH whole "with MOONCAKE, "

seconds=${SECONDS_EACH:-$([ -n "$QUICK" ] && echo 1 || echo 2)}
keys=100000
rows=("$@")
[ $# -gt 0 ] || rows=(put-1 put-4 get-1 get-4 exists-1 exists-4 put-one get-one)
for row in "${rows[@]}"; do
    [[ $row =~ ^(put|get|exists)-([1-9][0-9]*|one)$ ]] ||
        { say "a row is OP-CLIENTS, as put-4, or OP-one, of put, get, exists; not '$row'"; exit 2; }
done

# Each of these prints keys a second.
tarn_load() { # OP BATCH CLIENTS
    "$TARN_BENCHMARK" -h 127.0.0.1 -p "$port" --json meta --op "$1" --batch "$2" --clients "$3" \
        --pipeline 1 --keys "$keys" --value-size 4096 --seconds "$seconds" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["keys_per_s"])'
}
own_bench() { # OP BATCH CLIENTS
    local op
    case $1-$2 in put-1) op=Put ;; get-1) op=Get ;; put-*) op=BatchPut ;; get-*) op=BatchGet ;;
    *) return ;; esac
    master_bench --operation=$op --batch_size="$2" --num_clients="$3" \
        --num_keys=$((keys / $3)) --duration="$seconds" | sed -n 's/^Operations per second: //p'
}
our_load() { # OP BATCH CLIENTS
    mooncake_load --op="$1" --batch="$2" --clients="$3" --keys=$keys --seconds="$seconds" \
        --segments=128 --segment_size=$((64 << 30)) |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["keys_per_s"])'
}

# A line "SIDE KEYS/S" for each side.
round() { # OP BATCH CLIENTS
    local side rate
    for side in tarn_load ${MOONCAKE:+own_bench our_load}; do
        case $side in tarn_load) start_books ;; *) start_mooncake ;; esac
        rate=$($side "$@")
        case $side in tarn_load) stop "$pid" ;; *) stop_mooncake ;; esac
        [ -z "$rate" ] || echo "$side $rate"
    done
}

# 64 GiB of which no page is touched: no put evicts. A server for each load, as the peer has one.
start_books() {
    start_tarn --pool-size 64gb --pool-populate no
    [ "${NEAR:-}" != no ] || redis-cli -p "$port" ACL SETUSER default '-client|near' >/dev/null
}
peer="Mooncake: master_bench | mooncake-load | ratio to the higher one (each round) |"
echo "| what | tarn | ${MOONCAKE:+$peer}"
echo "| --- | --- | ${MOONCAKE:+--- | --- | --- |}"
for row in "${rows[@]}"; do
    op=${row%-*} clients=${row#*-} batch=128
    [ "$clients" != one ] || clients=16 batch=1
    say "$row"
    for _ in $(seq "$ROUNDS"); do round "$op" $batch "$clients"; done >"$bench_dir/rounds"
    python3 -c '
import statistics, sys
sides = {}
for line in sys.stdin:
    side, rate = line.split()
    sides.setdefault(side, []).append(float(rate))
def k(side):
    return "%.0f k" % (statistics.median(sides[side]) / 1000) if side in sides else ""
cells = [k("tarn_load")]
peers = [sides[s] for s in ("own_bench", "our_load") if s in sides]
if peers:
    best = max(peers, key=statistics.median)
    ratios = [a / b for a, b in zip(sides["tarn_load"], best)]
    cells += [k("own_bench"), k("our_load"), "%.1fx (%s)" % (
        statistics.median(ratios), ", ".join("%.1f" % r for r in ratios))]
print("| %s, %s a call, %s clients | %s |" % (*sys.argv[1:], " | ".join(cells)))' \
        "$op" $batch "$clients" <"$bench_dir/rounds"
done
