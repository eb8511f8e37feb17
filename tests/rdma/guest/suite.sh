# The transport suite, as shm and tcp pass it: host and clients in processes of their own and in
# one, on both devices.

suite() {
    program=/tarn/tests/transport/rdma_test
    [ -x $program ] || fail "$program was not built"
    [ -f /tarn/modules/rdma.so ] || fail "modules/rdma.so was not built"
    export TARN_RDMA_MODULE=/tarn/modules/rdma.so TARN_RDMA_ARGS="bind $address0"
    packets_before=$(counter rxe0 sent_pkts)
    # Its lines one by one are the tests; what is left is a crash or a leak.
    timeout 150 $program >/tmp/suite 2>&1 && suite_status=0 || suite_status=$?
    cat /tmp/suite
    within "packets that rxe0 sent" $((packets_before + 1000)) $(counter rxe0 sent_pkts) 100000000
    grep -q ' passed, 0 failed' /tmp/suite ||
        fail "status $suite_status: $(grep -E '^not ok|passed,' /tmp/suite | head -5 | tr '\n' ' ')"
    [ $suite_status = 0 ]
    say "$(tail -n 1 /tmp/suite)"
}

# A host and a client in one process that goes on living: when the module is unloaded, the kernel
# holds nothing for it.
unloaded() {
    mkfifo /tmp/hold
    /tarn/tests/rdma/rate /tarn/modules/rdma.so 65536 16 0.3 \
        "bind $address0 bind $address1" </tmp/hold >/tmp/log/holder 2>&1 &
    echo $! >/tmp/pids/holder
    exec 5>/tmp/hold
    wait_for 10 "a queue pair" holds_qp
    wait_for 30 "its end" grep -q unloaded /tmp/log/holder
    cat /tmp/log/holder
    want "the process lives" runs holder
    # librdmacm keeps a protection domain for each device that it has seen.
    left=$(resources | grep -v '^dev [a-z0-9]* pdn' || true)
    equal "what is left" "" "$left"
    exec 5>&-
    wait_for 5 "its end" is_gone holder
}
holds_qp() { resources | grep -q lqpn; }

t suite suite
t unloaded-leaves-nothing unloaded
