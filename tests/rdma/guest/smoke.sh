# The machine itself: devices, addresses, connections and one-sided operations, with programs that
# are not ours.

devices() {
    rdma link show
    rdma link show | grep -q 'link rxe0/1 state ACTIVE'
    rdma link show | grep -q 'link rxe1/1 state ACTIVE'
    [ -c /dev/infiniband/rdma_cm ] && [ -c /dev/infiniband/uverbs0 ]
}
# The client's address is the other device's: packets on the wire.
ping() {
    before=$(counter rxe1 sent_pkts)
    start rping-server rping -s -a $address0 -C 50 -S 4096
    wait_for 60 "rping to listen" rdma_listens 7174
    timeout 30 rping -c -a $address0 -I $address1 -C 50 -S 4096
    within "packets that rxe1 sent" $((before + 100)) $(counter rxe1 sent_pkts) 1000000
    wait_for 60 "the end of rping" is_gone rping-server
}
bandwidth() {
    perf $1 65536 40
    say "$1 at 64 KiB: $(cat /tmp/perf-rate) MiB/s"
}

. ./perf.sh
t devices devices
t rping ping
t ib_read_bw bandwidth ib_read_bw
t ib_write_bw bandwidth ib_write_bw
