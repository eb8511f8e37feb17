# Blocks from one process's memory to another's, stored nowhere: `tarn-benchmark transfer` over the
# wire, every byte checked.

export TARN_MODULE_PATH=/tarn/modules
program=/tarn/tarn-benchmark
number() { grep -o "\"$1\":[0-9]*" /tmp/transfer | head -1 | cut -d: -f2; }
has_endpoint() { grep -q endpoint /tmp/log/target; }
target_up() {
    start target $program --json transfer --mode target --buffer 16m
    wait_for 60 "a target" has_endpoint
    grep -o '"endpoint":"[^"]*"' /tmp/log/target | cut -d'"' -f4 >/tmp/endpoint
}
# move OP BLOCK-SIZE BATCH COUNT
move() {
    before0=$(counter rxe0 sent_pkts) before1=$(counter rxe1 sent_pkts)
    timeout 60 $program --json transfer --mode initiator --peer $(cat /tmp/endpoint) --transport \
        rdma --buffer 16m \
        --op $1 --block-size $2 --batch $3 --count $4 --check >/tmp/transfer
    cat /tmp/transfer
    grep -q '"transport":"rdma"' /tmp/transfer
    equal "failed, mismatched" "0 0" "$(number failed) $(number mismatched_blocks)"
    within "bytes" 1 $(number bytes) 1000000000
    within "packets" $((before0 + before1 + 50)) \
        $(($(counter rxe0 sent_pkts) + $(counter rxe1 sent_pkts))) 1000000000
}
# The initiator of a target that was killed ends soon, and says so.
target_killed() {
    start initiator $program --json transfer --mode initiator --peer $(cat /tmp/endpoint) \
        --transport rdma --buffer 16m --block-size 64k \
        --batch 32 --seconds 100
    sleep 2
    want "the initiator runs" runs initiator
    stop target KILL
    wait_for 20 "the initiator's end" is_gone initiator
    cat /tmp/log/initiator
    grep -q peer /tmp/log/initiator
}

t target target_up
if [ "$failed" = 0 ]; then
    t pull move read 64k 32 5
    t pull-small move read 4k 64 5
    t push move write 64k 32 5
    t push-large move write 1m 8 3
    t a-target-is-killed target_killed
fi
