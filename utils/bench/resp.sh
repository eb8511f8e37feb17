#!/bin/bash
# RESP beside Debian's redis-server, with redis-benchmark: GET, SET and EXISTS of 64 bytes, 50
# connections, pipelines of 1, 16 and 64; then GET and SET of 1 MiB and 4 MiB. Both servers run all
# the time and are measured in turn, A B A B.
. "$(dirname "$0")/lib.sh"
need redis-benchmark redis-cli "$REDIS" "$TARN"

start_tarn --pool-size 2gb
tarn_port=$port tarn_pid=$pid
start_redis
redis_port=$port redis_pid=$pid

# The load generator has one thread and is often the slower side; so the servers' own time is told,
# too.
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

# rate PORT REQUESTS ARGS...: requests per second
rate() {
    local port=$1 n=$2
    shift 2
    redis-benchmark -h 127.0.0.1 -p "$port" -n "$n" --csv "$@" 2>/dev/null |
        awk -F'","' 'NR > 1 { print $2; exit }'
}

# pair TARGET NAME UNIT FACTOR REQUESTS ARGS...: measures both in turn and prints a row.
pair() {
    local target=$1 name=$2 unit=$3 factor=$4 n a=() b=() i ma mb before ta=0 tb=0
    n=$(scale "$5")
    shift 5
    for i in $(seq 1 "$ROUNDS"); do
        before=$(ticks "$tarn_pid")
        a+=("$(rate "$tarn_port" "$n" "$@")")
        ta=$((ta + $(ticks "$tarn_pid") - before))
        before=$(ticks "$redis_pid")
        b+=("$(rate "$redis_port" "$n" "$@")")
        tb=$((tb + $(ticks "$redis_pid") - before))
    done
    ma=$(median <<<"${a[*]}")
    mb=$(median <<<"${b[*]}")
    awk -v name="$name" -v unit="$unit" -v f="$factor" -v a="$ma" -v b="$mb" -v t="$target" \
        -v d="$([ "$unit" = GB/s ] && echo 2 || echo 0)" \
        -v ta="$ta" -v tb="$tb" \
        'BEGIN { printf "| %s | %.*f %s | %.*f %s | %.2fx | %s | %.2fx |\n",
            name, d, a * f, unit, d, b * f, unit, a / b, t, tb / (ta + 0.001) }'
}

echo "| what | tarn | redis $(redis-server --version | sed 's/.*v=\([0-9.]*\).*/\1/')" \
    "| ratio | wanted | the same by CPU time of the server |"
echo "| --- | --- | --- | --- | --- | --- |"
say "filling"
for p in "$tarn_port" "$redis_port"; do
    rate "$p" "$(scale 1000000)" -t set -d 64 -r 100000 -c 50 -P 64 >/dev/null
done
for pipeline in 1 16 64; do
    case $pipeline in
    1) n=200000 target=1.0x ;;
    16) n=1500000 target=1.5x ;;
    64) n=3000000 target=2.0x ;;
    esac
    common=(-d 64 -r 100000 -c 50 -P "$pipeline")
    pair $target "GET 64 B, P=$pipeline" k/s 0.001 $n -t get "${common[@]}"
    pair $target "SET 64 B, P=$pipeline" k/s 0.001 $n -t set "${common[@]}"
    pair $target "EXISTS 64 B, P=$pipeline" k/s 0.001 $n "${common[@]}" EXISTS key:__rand_int__
done
for size in 1 4; do
    bytes=$((size << 20)) factor=$(awk -v s=$size 'BEGIN { print s * 1048576 / 1e9 }')
    common=(-d $bytes -r 16 -c 8)
    # All 16 keys before the first GET.
    for p in "$tarn_port" "$redis_port"; do
        redis-cli -p "$p" FLUSHALL >/dev/null
        rate "$p" 200 -t set "${common[@]}" >/dev/null
    done
    pair 1.2x "GET $size MiB" GB/s "$factor" $((8000 / size)) -t get "${common[@]}"
    pair 1.1x "SET $size MiB" GB/s "$factor" $((8000 / size)) -t set "${common[@]}"
done
