#!/bin/bash
# A pool of nodes on this machine: aggregate bandwidth with 1, 2 and 4 nodes, a node's death,
# draining, the ssd tier beside fio on the same file system, a restart. The disk is DISK (a folder,
# default: where temporary files go).
. "$(dirname "$0")/lib.sh"
NODE=${NODE:-src/tarn-node}
KV=${KV:-build/release/tests/tools/kv}
DISK=${DISK:-$bench_dir}
need redis-cli fio python3 "$TARN" "$NODE" "$TARN_BENCHMARK" "$KV"
seconds=$([ -n "$QUICK" ] && echo 1 || echo 4)
objects=$(scale 1500) # of 1 MiB

declare -A node_pids
host_name=() # of nodes; empty: this machine, so that shm is used
start_node() { # NAME OPTION...: its process in $node_pid
    local name=$1 i
    shift
    "$NODE" --master "tarn://127.0.0.1:$port" --name "$name" "${host_name[@]}" --bind 127.0.0.1 \
        "$@" >>"$bench_dir/$name.log" 2>&1 </dev/null &
    node_pid=$!
    node_pids[$name]=$node_pid
    bench_pids+=("$node_pid")
    for i in $(seq 600); do
        node_state "$name" | grep -q '^up$' && return 0
        kill -0 "$node_pid" 2>/dev/null || break
        sleep 0.05
    done
    say "node $name did not come up:"
    tail -5 "$bench_dir/$name.log" >&2
    exit 1
}
node_state() {
    redis-cli -p "$port" NODE INFO "$1" 2>/dev/null | grep -a -A1 '^state$' | tail -1 || true
}
# NAME FIELD
segment() { redis-cli -p "$port" SEGMENT INFO "$1" 2>/dev/null | grep -a -A1 "^$2\$" | tail -1; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.3f", b - a }'; }
kv() { "$KV" "$@" "tarn://127.0.0.1:$port" "${kv_args[@]}"; }
field() { tr ' ' '\n' | sed -n "s/^$1=//p"; }

# --- bandwidth ---
echo "### Aggregate bandwidth ($(machine))"
echo
echo "| nodes | put tcp GB/s | get tcp GB/s | get shm GB/s |"
echo "| --- | --- | --- | --- |"
for n in 1 2 4; do
    start_tarn --pool-size 0 --placement-strategy random
    master=$pid
    nodes=()
    for i in $(seq "$n"); do
        start_node "n$i" --segment 1gb --threads 1
        nodes+=("$node_pid")
    done
    row=""
    for what in "tcp put" "tcp get" "shm get"; do
        set -- $what
        gb=$("$TARN_BENCHMARK" -h 127.0.0.1 -p "$port" --json data --seconds "$seconds" \
            --transport "$1" --op "$2" --block-size 4m --batch 16 --threads 2 2>"$bench_dir/err" |
            python3 -c 'import json, sys
print("%.2f" % json.loads(sys.stdin.read().splitlines()[-1])["rows"][-1]["gb_per_s"])' ||
            { cat "$bench_dir/err" >&2; echo "-"; })
        row="$row $gb |"
    done
    echo "| $n |$row"
    for p in "${nodes[@]}"; do stop "$p"; done
    stop "$master"
done

# --- death ---
start_tarn --pool-size 0 --node-timeout 2s
master=$pid
start_node n1 --segment 256mb
start_node n2 --segment 256mb
kv_args=(load d 100 65536)
kv --prefer n1.0 >/dev/null
death() { # SIGNAL: seconds until the last look-up hands out a replica of that node
    local t
    t=$(now)
    kill "-$1" "$2"
    while [ "$(redis-cli -p "$port" EXISTS d0 d50 d99)" != 0 ]; do sleep 0.01; done
    since "$t"
}
start_node n3 --segment 64mb
frozen=$(death STOP "${node_pids[n1]}")
kill -CONT "${node_pids[n1]}"
while [ "$(redis-cli -p "$port" EXISTS d0 d50 d99)" != 3 ]; do sleep 0.01; done
killed=$(death KILL "${node_pids[n1]}")
echo
echo "### From a node's death to the last look-up that names it (node-timeout 2 s)"
echo
echo "| death | seconds |"
echo "| --- | --- |"
echo "| stopped (SIGSTOP): its connection stays open | $frozen |"
echo "| killed (SIGKILL): its connection closes | $killed |"

# --- drain ---
start_node n4 --segment "$((objects + 100))mb"
start_node n5 --segment "$((objects + 100))mb"
kv_args=(load e "$objects" 1048576)
kv --prefer n4.0 >/dev/null
bytes=$(segment n4.0 used)
t=$(now)
redis-cli -p "$port" NODE DRAIN n4 >/dev/null
while kill -0 "${node_pids[n4]}" 2>/dev/null; do sleep 0.05; done
took=$(since "$t")
kv_args=(verify e "$objects" 1048576)
lost=$(kv | field misses)
echo
echo "### NODE DRAIN"
echo
rate=$(awk -v b="$bytes" -v t="$took" 'BEGIN { printf "%.2f", b / t / 1e9 }')
echo "$((bytes >> 20)) MiB in blocks of 1 MiB moved and left in $took s: $rate GB/s, $lost lost."
for name in n2 n3 n5; do stop "${node_pids[$name]}"; done
stop "$master"

# --- ssd ---
mkdir -p "$DISK/ssd"
start_tarn --pool-size 0
start_node s1 --segment "$((objects + 200))mb" --ssd "$DISK/ssd:$((objects * 2))mb"
t=$(now)
kv_args=(load s "$objects" 1048576)
kv >/dev/null
while [ "$(segment s1.ssd replicas)" -lt "$objects" ]; do sleep 0.02; done
write=$(awk -v n="$objects" -v t="$(since "$t")" 'BEGIN { printf "%.2f", n * 1048576 / t / 1e9 }')
sync
kv_args=(verify s "$objects" 1048576)
read_all() { # BATCH: GB/s in $read. The load only glances at the values: libtarn has summed them.
    redis-cli -p "$port" EVICT RATIO 1 >/dev/null
    t=$(now)
    misses=$(kv --transport tcp --glance --batch "$1" | field misses)
    read=$(awk -v n="$objects" -v t="$(since "$t")" \
        'BEGIN { printf "%.2f", n * 1048576 / t / 1e9 }')
}
read_all 16 # the first of a node touch its buffers
read_all 16
read_16=$read
read_all 64
fio_gb() { # write|read
    fio --name=x --filename="$DISK/ssd/fio" --size="${objects}m" --bs="$2" --rw="$1" --direct=1 \
        --ioengine=io_uring --iodepth=8 --output-format=json 2>/dev/null |
        python3 -c 'import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
print("%.2f" % (job[sys.argv[1]]["bw_bytes"] / 1e9))' "$1"
}
fw=$(fio_gb write 8m)
fr=$(fio_gb read 1m)
rm -f "$DISK/ssd/fio"
echo
echo "### The ssd tier beside fio (O_DIRECT, io_uring, depth 8) on the same file system"
echo
echo "| what | tarn GB/s | fio GB/s | ratio |"
echo "| --- | --- | --- | --- |"
echo "| blocks of 1 MiB: put until on disk / sequential writes of 8 MiB | $write | $fw" \
    "| $(ratio "$write" "$fw") |"
echo "| blocks of 1 MiB by libtarn over tcp, verified, 16 a call / reads of 1 MiB" \
    "| $read_16 | $fr | $(ratio "$read_16" "$fr") |"
echo "| ... 64 a call ($misses missed)" "| $read | $fr | $(ratio "$read" "$fr") |"

# --- restart ---
kill -KILL "$node_pid"
wait "$node_pid" 2>/dev/null || true
t=$(now)
start_node s1 --segment "$((objects + 200))mb" --ssd "$DISK/ssd:$((objects * 2))mb"
kv_args=(get "s0")
until kv >/dev/null 2>&1; do sleep 0.01; done
first=$(since "$t")
while [ "$(redis-cli -p "$port" EXISTS s0 "s$((objects / 2))" "s$((objects - 1))")" != 3 ]; do
    sleep 0.01
done
echo
echo "### Restart of a node after kill -9, $objects objects on its disk"
echo
echo "First hit after $first s, all of them after $(since "$t") s" \
    "(the disk is found again; memory is empty)."
