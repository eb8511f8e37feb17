# Shared by the scripts of this folder: servers on free ports of 127.0.0.1, medians, Markdown rows.
# Every script ends exactly the processes that it has started.
#
# Environment: QUICK=1 (a tenth of the work, for a look), ROUNDS=3 (A B A B ..; medians are shown),
# SECONDS_EACH (of scripts that say so), TARN (tarn-server), TARN_BENCHMARK, REDIS (redis-server).
set -euo pipefail

# The head of a script is its help. Only those that say so (takes=1) have arguments.
case ${1:-} in
-h | --help) awk 'NR > 1 { if (!sub(/^# ?/, "")) exit; print }' "$0"; exit 0 ;;
esac
[ $# = 0 ] || [ -n "${takes:-}" ] ||
    { echo "${0##*/} takes no arguments, not '$1' (--help)" >&2; exit 2; }

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C

TARN=${TARN:-src/tarn-server}
TARN_BENCHMARK=${TARN_BENCHMARK:-src/tarn-benchmark}
REDIS=${REDIS:-redis-server}
ROUNDS=${ROUNDS:-3}
QUICK=${QUICK:-}

# VARIABLE [whole [WHEN]]: ends the script unless that is a number above zero.
number() {
    local value=${!1} number='^[0-9]*\.?[0-9]+$'
    [ "${2:-}" != whole ] || number='^[0-9]+$'
    [[ $value =~ $number && $value =~ [1-9] ]] ||
        { echo "${3:-}$1 is a ${2:+$2 }number above zero, not '$value'" >&2; exit 2; }
}
number ROUNDS whole
[ -z "${SECONDS_EACH:-}" ] || number SECONDS_EACH

bench_dir=$(mktemp -d "${TMPDIR:-/tmp}/tarn-bench.XXXXXX")
bench_pids=()
bench_end() {
    local pid
    for pid in ${bench_pids[@]+"${bench_pids[@]}"}; do kill "$pid" 2>/dev/null || true; done
    for pid in ${bench_pids[@]+"${bench_pids[@]}"}; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$bench_dir"
}
trap bench_end EXIT
trap 'exit 130' INT TERM

say() { echo "$*" >&2; }
need() {
    local p
    for p in "$@"; do
        command -v "$p" >/dev/null ||
            { say "$p is missing: deps/install.sh bench, and make"; exit 1; }
    done
}

free_port() {
    python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

# The port of what was started lands in $port, its process in $pid.
wait_up() {
    local i
    for i in $(seq 1 600); do
        [ "$(redis-cli -p "$port" PING 2>/dev/null || true)" != PONG ] || return 0
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    say "a server did not start:"
    tail -20 "$1" >&2
    exit 1
}
start_tarn() {
    port=$(free_port)
    "$TARN" --bind 127.0.0.1 --port "$port" --data-port 0 --dir "$bench_dir" \
        "$@" >"$bench_dir/tarn.$port.log" 2>&1 </dev/null &
    pid=$!
    bench_pids+=("$pid")
    wait_up "$bench_dir/tarn.$port.log"
}
# COUNT [OPTION...]: masters of equal shares; their ports land in ${masters[@]}.
start_masters() {
    local i n=$1 map
    shift
    masters=()
    for ((i = 0; i < n; i++)); do
        start_tarn "$@"
        masters+=("$port")
    done
    map=$'tarn-slots 1\nepoch 1\n'
    for ((i = 0; i < n; i++)); do
        map+="shard m$i 0 127.0.0.1:${masters[i]}"
        map+=" $((i * 16384 / n))-$(((i + 1) * 16384 / n - 1))"$'\n'
    done
    for ((i = 0; i < n; i++)); do
        redis-cli -p "${masters[i]}" -x CLUSTER SETMAP m$i <<<"${map%$'\n'}" >/dev/null
    done
}
start_redis() {
    port=$(free_port)
    "$REDIS" --bind 127.0.0.1 --port "$port" --save '' --appendonly no --dir "$bench_dir" \
        "$@" >"$bench_dir/redis.$port.log" 2>&1 </dev/null &
    pid=$!
    bench_pids+=("$pid")
    wait_up "$bench_dir/redis.$port.log"
}
stop() { # PID
    local p keep=()
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
    for p in ${bench_pids[@]+"${bench_pids[@]}"}; do [ "$p" = "$1" ] || keep+=("$p"); done
    bench_pids=(${keep[@]+"${keep[@]}"})
}

median() {
    tr ' ' '\n' | grep -v '^$' | sort -g |
        awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int((NR + 2) / 2)]) / 2 }'
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", (b > 0 ? a / b : 0) }'; }
scale() { awk -v n="$1" -v q="$QUICK" 'BEGIN { printf "%d", (q != "" ? n / 10 : n) }'; }
# PORT FIELD
info() { redis-cli -p "$1" INFO everything | tr -d '\r' | sed -n "s/^$2://p" | head -1; }
machine() {
    local model
    model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
    echo "$model, $(nproc) cores, Linux $(uname -r | cut -d- -f1), $(date +%Y-%m-%d)"
}
