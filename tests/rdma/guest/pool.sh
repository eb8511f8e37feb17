# A master, nodes and clients in the guest. TCP goes over the loopback (127.0.0.1), RDMA over the
# wire, so that either can fail alone. Nodes are on machines of their own by name, so that no client
# takes shared memory.

port=6479
module=/tarn/modules/rdma.so
export TARN_MODULE_PATH=/tarn/modules

cli() { timeout 20 redis-cli -p $port "$@"; }
info() { cli info everything | tr -d '\r' | sed -n "s/^$1://p"; }

# server_up ADDRESS DEVICE POOL-SIZE [OPTION]...
server_up() {
    [ -f $module ] || fail "$module was not built"
    server_address=$1 server_device=$2 server_pool=$3
    shift 3
    rm -f /tmp/port
    start server /tarn/tarn-server --port $port --bind 127.0.0.1 --dir /tmp --pool-size \
        $server_pool --shm-socket "" --port-file /tmp/port \
        --node-heartbeat 200 --node-timeout 3s --loadmodule \
        "$module bind $server_address device $server_device" "$@"
    wait_for 60 "the server" up_or_gone server /tmp/port
    want "the server runs" runs server
}
# node_up NAME ADDRESS DEVICE SIZE [OPTION]...: on a machine of its own, as the pool sees it.
node_up() {
    node_name=$1 node_address=$2 node_device=$3 node_size=$4
    shift 4
    rm -f /tmp/port-$node_name
    start $node_name /tarn/tarn-node --master tarn://127.0.0.1:$port --name $node_name --host-name \
        machine-$node_name --bind 127.0.0.1 \
        --port-file /tmp/port-$node_name --segment $node_size --exit-timeout 3 \
        --loadmodule "$module bind $node_address device $node_device" "$@"
    wait_for 60 "node $node_name" up_or_gone $node_name /tmp/port-$node_name
    want "the node runs" runs $node_name
}
up_or_gone() { is_gone $1 || [ -s $2 ]; }

# Segment $1 can be reached by rdma: the master has its keys.
offered() { cli segment info $1 | grep -q '^rdma://'; }
wait_offered() { wait_for 60 "the keys of $1" offered $1; }
# A field of SEGMENT INFO.
segment() { cli segment info $1 | awk -v name=$2 'found { print; exit } $0 == name { found = 1 }'; }

# kv OPTION... COMMAND ...: tests/tools/kv.c; its answer is in /tmp/answer, its status is passed on.
kv() {
    kv_before=
    while [ "${1#--}" != "$1" ]; do
        case $1 in
        --replace | --fill | --no-verify | --pin) kv_before="$kv_before $1"; shift ;;
        *) kv_before="$kv_before $1 $2"; shift 2 ;;
        esac
    done
    timeout ${kv_limit:-60} /tarn/tests/tools/kv $kv_before tarn://127.0.0.1:$port \
        "$@" >/tmp/answer 2>/tmp/answer.err || {
        kv_status=$?
        cat /tmp/answer /tmp/answer.err
        return $kv_status
    }
    cat /tmp/answer
}
# The same in the background, as process $1, with `run`.
kv_run() {
    kv_name=$1
    shift
    kv_before=
    while [ "${1#--}" != "$1" ]; do
        case $1 in
        --replace | --fill | --no-verify) kv_before="$kv_before $1"; shift ;;
        *) kv_before="$kv_before $1 $2"; shift 2 ;;
        esac
    done
    start $kv_name /tarn/tests/tools/kv $kv_before tarn://127.0.0.1:$port run "$@"
    wait_for 60 "$kv_name to run" grep -q running /tmp/log/$kv_name
}
# Ends it; its answer is in /tmp/answer.
kv_stop() {
    stop $1
    cat /tmp/log/$1
    grep keys= /tmp/log/$1 >/tmp/answer || fail "$1 gave no answer"
}
# Of the last answer: got NAME
got() { tr ' ' '\n' </tmp/answer | sed -n "s/^$1=//p"; }

# Sent by the devices, both together.
packets() { echo $(($(counter rxe0 sent_pkts) + $(counter rxe1 sent_pkts))); }
