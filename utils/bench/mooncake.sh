# Mooncake's master of the build MOONCAKE, for the scripts that compare with it; after lib.sh.
MOONCAKE=${MOONCAKE:-}
for program in src/mooncake_master benchmarks/master_bench benchmarks/mooncake-load; do
    program=$MOONCAKE/mooncake-store/$program
    [ -z "$MOONCAKE" ] || [ -x "$program" ] ||
        { say "MOONCAKE: there is no $program (docs/BENCHMARKS.md says how to build it)"; exit 2; }
done

# PROGRAM [OPTION...]: what it says goes nowhere, unless it fails.
mooncake_run() {
    "$MOONCAKE/mooncake-store/benchmarks/$1" "${@:2}" 2>"$bench_dir/load.log" || {
        say "$* failed:"
        tail -20 "$bench_dir/load.log" >&2
        return 1
    }
}
mooncake_load() { mooncake_run mooncake-load --port="$mooncake_port" "$@"; }
master_bench() { mooncake_run master_bench --master_server=127.0.0.1:"$mooncake_port" "$@"; }

# A fresh one, with these options; its process in $mooncake_pid.
start_mooncake() {
    mooncake_port=$(free_port)
    (cd "$bench_dir" && exec "$MOONCAKE/mooncake-store/src/mooncake_master" \
        --rpc_port="$mooncake_port" --enable_metric_reporting=false --metrics_port="$(free_port)" \
        "$@" >"$bench_dir/mooncake.log" 2>&1 </dev/null) &
    mooncake_pid=$!
    bench_pids+=("$mooncake_pid")
    local i
    for i in $(seq 1 100); do
        ! (exec 3<>"/dev/tcp/127.0.0.1/$mooncake_port") 2>/dev/null || return 0
        kill -0 "$mooncake_pid" 2>/dev/null || break
        sleep 0.1
    done
    say "Mooncake's master did not start:"
    tail -20 "$bench_dir/mooncake.log" >&2
    exit 1
}
stop_mooncake() { stop "$mooncake_pid"; }
