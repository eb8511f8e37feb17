#!/bin/bash
# Copies. libtarn over shared memory beside memcpy of the same blocks (which tarn-benchmark measures
# in the same run), and libtarn over TCP beside one stream of iperf3 on the loopback interface, in
# turn.
. "$(dirname "$0")/lib.sh"
need redis-cli iperf3 "$TARN" "$TARN_BENCHMARK" python3

seconds=$([ -n "$QUICK" ] && echo 1 || echo 4)
start_tarn --pool-size 2gb
tarn_port=$port

# data KIND ARGS...: a line of JSON, kept in KIND.
data() {
    local kind=$1
    shift
    "$TARN_BENCHMARK" -h 127.0.0.1 -p "$tarn_port" --json data --seconds "$seconds" --batch 1 \
        --threads 1 "$@" >>"$bench_dir/$kind"
}
# One stream, to iperf.gb. The server stays for another try: the first may come before it listens.
iperf_run() {
    local iperf_port iperf i
    iperf_port=$(free_port)
    iperf3 -s -B 127.0.0.1 -p "$iperf_port" >/dev/null 2>&1 &
    iperf=$!
    bench_pids+=("$iperf")
    for i in $(seq 50); do
        if iperf3 -c 127.0.0.1 -p "$iperf_port" -t "$seconds" -J >"$bench_dir/iperf" 2>&1; then
            break
        elif [ "$i" = 50 ]; then
            say "iperf3 gave no answer:"
            tail -5 "$bench_dir/iperf" >&2
            exit 1
        fi
        sleep 0.1
    done
    python3 -c 'import json, sys
print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 8e9)' \
        <"$bench_dir/iperf" >>"$bench_dir/iperf.gb"
    stop "$iperf"
}
for round in $(seq 1 "$ROUNDS"); do
    say "round $round of $ROUNDS"
    for transport in shm tcp; do
        for op in get put; do
            data verified --transport $transport --op $op --block-size 1m,4m
            data unverified --transport $transport --op $op --block-size 1m,4m --no-verify
        done
    done
    iperf_run
done
python3 - "$bench_dir" <<'END'
import collections, json, statistics, sys
folder = sys.argv[1]
median = statistics.median
iperf = median([float(line) for line in open(folder + "/iperf.gb")])
print("| what | GB/s | yardstick | ratio | wanted |")
print("| --- | --- | --- | --- | --- |")
wanted = {("shm", "get", "verified"): ("0.7x", "0.85x"),  # of 1 MiB, of 4 MiB
          ("shm", "put", "verified"): ("0.6x", "0.85x"),
          ("tcp", "get", "verified"): ("0.9x", "0.9x"),
          ("tcp", "get", "unverified"): ("1.0x", "1.0x"),
          ("tcp", "put", "verified"): ("0.9x", "0.9x")}
for transport in "shm", "tcp":
    for op in "get", "put":
        for kind in "verified", "unverified":
            speed, ratio = collections.defaultdict(list), collections.defaultdict(list)
            for line in open(folder + "/" + kind):
                for row in json.loads(line)["rows"]:
                    if (row["transport"], row["op"]) != (transport, op):
                        continue
                    if row["failed"] or row["mismatched_blocks"]:
                        print("failed:", row, file=sys.stderr)
                    size = row["block_size"] >> 20
                    speed[size].append(row["gb_per_s"])
                    yardstick = row["memcpy_gb_per_s"] if transport == "shm" else iperf
                    ratio[size].append(row["gb_per_s"] / yardstick)
            for size in sorted(speed):
                gb, r = median(speed[size]), median(ratio[size])
                mark = "memcpy" if transport == "shm" else "iperf3"
                goal = wanted.get((transport, op, kind), ("", ""))[size > 1]
                what = f"{transport} {op} {size} MiB, {kind}"
                print(f"| {what} | {gb:.2f} | {mark} {gb / r:.2f} | {r:.2f}x | {goal} |")
END
