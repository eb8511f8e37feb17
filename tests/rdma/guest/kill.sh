# Processes that die or stop in the middle of transfers.
. ./pool.sh

pool_up() {
    server_up 127.0.0.1 rxe0 0 --put-timeout 2s --put-release-timeout 3s
    node_up n1 $address0 rxe0 96mb --no-populate
    node_up n2 $address1 rxe1 96mb --no-populate
    wait_offered n1.0
    wait_offered n2.0
    kv --transport rdma --replicas 2 --pin load kept- 40 1-200000
    equal "puts" "40 80 0" "$(got ok) $(got replicas) $(got missing)"
}
rdma_peers() { rdma resource show qp | grep -c " pid $(pid_of $1) " || true; }

# kill -9 while a value of 32 MiB is on its way: what was there stays, the space comes back, no
# queue pair stays.
writer_killed() {
    for turn in 1 2 3; do
        peers_before="$(rdma_peers n1) $(rdma_peers n2)"
        start writer /tarn/tests/tools/kv --transport rdma --replicas 2 --batch 1 \
            tarn://127.0.0.1:$port load torn-$turn- 1 33554432
        packets_then=$(packets)
        wait_for 60 "bytes of the writer" sent_since $((packets_then + 200))
        stop writer KILL
        wait_for 60 "its queue pairs to be gone" peers_are "$peers_before"
        wait_for 60 "its space" no_zombies
    done
    kv --transport rdma verify kept- 40 1-200000
    equal "values" "40 0" "$(got ok) $(got wrong)"
    kv --transport rdma --batch 1 load after- 1 33554432
    kv --transport rdma --batch 1 verify after- 1 33554432
    equal "a value in that space" "1 0" "$(got ok) $(got wrong)"
    kv remove after-0
}
sent_since() { [ $(packets) -gt $1 ]; }
peers_are() { [ "$(rdma_peers n1) $(rdma_peers n2)" = "$1" ]; }
no_zombies() { [ "$(info puts_zombie)" = 0 ] && [ "$(info puts_open)" = 0 ]; }

# Nobody over there is needed for a one-sided read.
host_stopped() {
    kv_run reader --transport rdma --timeout 60000 --failover 20000 kept- 40 1-200000
    sleep 1
    kill -STOP $(pid_of n1)
    sleep 1.5
    kill -CONT $(pid_of n1)
    kv_stop reader
    equal "errors, wrong" "0 0" "$(got errors) $(got wrong)"
    within "values" 20 $(got ok) 1000000
}

# Every value has another replica.
host_killed() {
    for name in reader1 reader2; do
        kv_run $name --host machine-n1 --timeout 20000 kept- 40 1-200000
    done
    sleep 1
    stop n1 KILL
    sleep 5
    for name in reader1 reader2; do
        kv_stop $name
        equal "errors, wrong, misses of $name" "0 0 0" "$(got errors) $(got wrong) $(got misses)"
        within "values of $name" 10 $(got ok) 1000000
    done
    kv verify kept- 40 1-200000
    equal "values" "40 0" "$(got ok) $(got wrong)"
}
# It comes back as another process, and serves by rdma again.
host_back() {
    node_up n1 $address0 rxe0 96mb --no-populate
    wait_offered n1.0
    kv --transport rdma --prefer n1.0 load back- 10 1-200000
    equal "puts" "10 0" "$(got ok) $(got tcp_bytes)"
    kv --transport rdma verify back- 10 1-200000
    equal "gets" "10 0" "$(got ok) $(got wrong)"
}
# The only replica dies under a put and a get: both end, in their time.
only_host_killed() {
    start writer /tarn/tests/tools/kv --transport rdma --prefer n1.0 --timeout 6000 --batch 1 \
        tarn://127.0.0.1:$port load lost- 1 50331648
    packets_then=$(packets)
    wait_for 60 "bytes of the writer" sent_since $((packets_then + 200))
    stop n1 KILL
    wait_for 15 "the writer's end" is_gone writer
    cat /tmp/log/writer
    kv verify kept- 40 1-200000
    equal "values" "40 0" "$(got ok) $(got wrong)"
}
nothing_left() {
    stop n2
    stop server
    wait_for 60 "an end of all resources" no_resources
}

t pool pool_up
if [ "$failed" = 0 ]; then
    t writers-killed writer_killed
    t a-stopped-host-is-read host_stopped
    t a-host-is-killed-under-readers host_killed
    t it-comes-back host_back
    t the-only-host-is-killed only_host_killed
    t nothing-left nothing_left
fi
