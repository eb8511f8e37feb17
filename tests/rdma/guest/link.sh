# A cable is unplugged, and plugged in again. TCP is on the loopback and stays.
. ./pool.sh

pool_up() {
    server_up 127.0.0.1 rxe0 0 --put-timeout 3s --put-release-timeout 5s
    node_up n1 $address1 rxe1 96mb --no-populate
    wait_offered n1.0
    kv --transport rdma load kept- 40 1-200000
    equal "puts" 40 "$(got ok)"
}
# With tcp as the other way: nothing fails.
falls_back() {
    kv_run user --host elsewhere --timeout 20000 --batch 4 --fill --replace kept- 40 1-200000
    reads_on
    unplug
    sleep 4
    plug_in
    sleep 3
    kv_stop user
    say "$(got ok) values, $(got rdma_bytes) bytes by rdma, $(got tcp_bytes) by tcp"
    equal "wrong" 0 "$(got wrong)"
    equal "errors" 0 "$(got errors)"
    within "bytes by rdma" 1000 $(got rdma_bytes) 100000000000
    within "bytes by tcp" 1000 $(got tcp_bytes) 100000000000
    kv --transport tcp verify kept- 40 1-200000
    equal "values" "40 0" "$(got ok) $(got wrong)"
}
# And rdma is used again, in other processes and under new queue pairs.
works_again() {
    wait_for 60 "the keys of n1.0" offered n1.0
    wait_for 60 "a put by rdma" put_works
    kv --transport rdma --failover 20000 verify kept- 40 1-200000
    equal "values" "40 0 0" "$(got ok) $(got wrong) $(got tcp_bytes)"
}
put_works() { kv --transport rdma --timeout 3000 --replace load again- 1 100000; }
# Without another way: it ends by its deadline, thrice that at most, and says so.
fails_in_time() {
    start writer /tarn/tests/tools/kv --transport rdma --timeout 5000 --batch 1 \
        tarn://127.0.0.1:$port load torn- 1 33554432
    packets_then=$(packets)
    wait_for 60 "bytes of the writer" sent_since $((packets_then + 200))
    unplug
    began=$(now_ms)
    wait_for 15 "the writer's end" is_gone writer
    say "a put whose path was gone ended after $(($(now_ms) - began)) ms"
    cat /tmp/log/writer
    plug_in
    works_again
}
sent_since() { [ $(packets) -gt $1 ]; }
# A short break is nobody's business: the devices send again, or the client connects again. Breaks
# last as long as a loaded machine makes them: the reader is to be more patient than that. It reads
# before, between and after them.
short_break() {
    kv_run user --transport rdma --timeout 120000 --failover 40000 --batch 4 kept- 40 1-200000
    for turn in 1 2 3; do
        reads_on
        unplug
        plug_in
    done
    reads_on
    kv_stop user
    equal "misses, wrong, errors" "0 0 0" "$(got misses) $(got wrong) $(got errors)"
    within "values" 1 $(got ok) 100000000
}
# By the devices; where nothing is under way they are silent.
reads_on() {
    packets_then=$(packets)
    wait_for 60 "packets of the reader" sent_since $((packets_then + 200))
}
nothing_left() {
    stop n1
    stop server
    wait_for 60 "an end of all resources" no_resources
}

t pool pool_up
if [ "$failed" = 0 ]; then
    t tcp-takes-over falls_back
    t works-again works_again
    t fails-in-time fails_in_time
    t short-breaks short_break
    t nothing-left nothing_left
fi
