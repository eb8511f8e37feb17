# Who was cut off stays cut off: tests/rdma/stale.c keeps queue pairs, keys and grants, and tries
# them. It must get an error, and the memory must not change. Its device is rxe0, the node's rxe1.
. ./pool.sh

ask() {
    echo "$*" >&3
    read -r reply <&4 || fail "stale ended: $*"
    echo "$* -> $reply"
}
# expect PATTERN COMMAND...
expect() {
    expect_pattern=$1
    shift
    ask "$@"
    case $reply in
    $expect_pattern) ;;
    *) fail "$*: expected '$expect_pattern', got '$reply'" ;;
    esac
}

# No connection: the host says why, or nobody listens there.
denied() {
    ask "$@"
    case $reply in
    "refused "* | "failed RDMA_CM_EVENT_REJECTED"*) ;;
    *) fail "$*: got '$reply'" ;;
    esac
}

pool_up() {
    server_up 127.0.0.1 rxe0 0 --put-timeout 2s
    node_up n1 $address1 rxe1 8mb --segment 4mb --no-populate
    wait_offered n1.0
    wait_offered n1.1
}

works() {
    expect ok open w n1.0 write
    # Space of its own, so that nobody else's values get there: also when its put is too late, as
    # long as its session is there.
    expect "ok *" put w key-of-w 65536 PREFER n1.0
    echo ${reply#ok } >/tmp/at
    at=$(cat /tmp/at)
    expect ok write w $at 4096 17
    expect "ok 17" read w $at 4096
    expect ok open r n1.0 read
    expect "ok 17" read r $at 4096
    expect "ok TARNSEG1" header r
}
# With the keys of the reader, and with those of the writer.
reader_cannot_write() {
    expect "error *" write r $at 64 99
    expect ok again r
    expect "error *" write r $at 64 99 w
    expect ok again r
    expect "ok 17" read r $at 4096
}
header_is_read_only() {
    expect "error *" header w write
    expect ok again w
    expect "ok TARNSEG1" header w
}
# The keys of one segment through the connection of another.
other_segment() {
    expect ok open other n1.1 write
    expect ok write other 0 4096 50
    expect "error *" write w 0 64 99 other
    expect ok again w
    expect "error *" read w 0 64 other
    expect ok again w
    expect "ok 50" read other 0 4096
}
# A reader's grant is no writer's.
wrong_right() {
    expect ok info x n1.0 read
    expect "refused 2" again x write
}

# A writer whose session ends while its put is open: its queue pair is destroyed, its space is given
# to another only then, and nobody else is cut off.
session_fenced() {
    expect ok open gone n1.0 write
    expect "ok *" put gone key-of-gone 65536 PREFER n1.0
    gone_at=${reply#ok }
    expect ok write gone $gone_at 65536 33
    fences=$(info fences)
    expect ok leave gone
    wait_for 60 "the fence" fenced
    expect "error *" write gone $gone_at 64 99
    expect "refused 6" again gone
    expect "ok 17" read r $at 4096
    expect ok write w $at 4096 18
    expect "ok 18" read r $at 4096
    # The space is somebody else's now: what the stale writer tried is not in it.
    kv --transport rdma --batch 1 load fresh- 20 65536
    kv --transport rdma verify fresh- 20 65536
    equal "values" "20 0" "$(got ok) $(got wrong)"
}
fenced() { [ "$(info fences)" -gt "$fences" ]; }

# A new master: the old queue pairs are destroyed, everything is registered under new keys.
new_master_epoch() {
    expect ok info old n1.0 write
    epoch_before=$(segment n1.0 master_epoch)
    stop server KILL
    server_up 127.0.0.1 rxe0 0
    wait_for 60 "the node to come back" offered n1.0
    want "another master epoch" [ "$epoch_before" != "$(segment n1.0 master_epoch)" ]
    expect "error *" write w $at 64 99
    expect "error *" read r $at 64
    expect "refused *" again w
    expect ok open w2 n1.0 write
    expect "error *" write w2 $at 64 99 old
    expect ok again w2
    expect "error *" read w2 $at 64 old
    expect ok again w2
    expect "ok 18" read w2 $at 4096
}
segment_unmounted() {
    expect ok open last n1.1 write
    expect ok write last 0 4096 51
    cli segment unmount n1.1
    expect "error *" write last 0 64 99
    expect "refused *" again last
    expect "ok 18" read w2 $at 4096
}
# The process is another one, at the same address.
node_restarted() {
    stop n1 KILL
    node_up n1 $address1 rxe1 8mb --no-populate
    wait_offered n1.0
    expect "error *" write w2 $at 64 99
    denied again w2
    expect ok open w3 n1.0 write
    expect "error *" write w3 $at 64 99 w2
    expect ok again w3
    expect "ok 0" read w3 $at 4096
}

t pool pool_up
if [ "$failed" = 0 ]; then
    mkfifo /tmp/stale.in /tmp/stale.out
    /tarn/tests/rdma/stale $address0 127.0.0.1 \
        $port </tmp/stale.in >/tmp/stale.out 2>/tmp/log/stale &
    echo $! >/tmp/pids/stale
    exec 3>/tmp/stale.in 4</tmp/stale.out
    t one-sided works
    at=$(cat /tmp/at)
    t a-reader-cannot-write reader_cannot_write
    t the-header-is-read-only header_is_read_only
    t keys-of-another-segment other_segment
    t a-readers-grant wrong_right
    t a-session-is-fenced session_fenced
    t a-new-master-epoch new_master_epoch
    t a-segment-is-unmounted segment_unmounted
    t a-node-is-another-process node_restarted
fi
