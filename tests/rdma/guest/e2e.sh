# A master with books only, a node, a client: bytes go by RDMA and are right, and the commands tell
# what is there.
. ./pool.sh

pool_up() {
    server_up $address0 rxe0 0
    node_up n1 $address1 rxe1 176mb --no-populate
    wait_offered n1.0
}

# Sizes around what is treated differently: values that stay with the master, inline writes, slices,
# chunks of the CRC.
sizes() {
    before0=$(counter rxe0 sent_pkts) before1=$(counter rxe1 sent_pkts)
    for size in 1 64 65 219 220 221 4095 4096 4097 65535 65536 65537 131073 1048576 1048577 \
        5000001; do
        moved=$size
        [ $size -gt 64 ] || moved=0
        kv --transport rdma load size-$size- 1 $size
        equal "put of $size by rdma" "1 $moved 0" "$(got ok) $(got rdma_bytes) $(got tcp_bytes)"
        kv --transport rdma verify size-$size- 1 $size
        equal "get of $size by rdma" "1 0 $moved 0" \
            "$(got ok) $(got wrong) $(got rdma_bytes) $(got tcp_bytes)"
        # What RDMA wrote is what tcp reads, and the other way round.
        kv --transport tcp verify size-$size- 1 $size
        equal "get of $size by tcp" "1 0 0" "$(got ok) $(got wrong) $(got rdma_bytes)"
    done
    kv --transport tcp load tcp- 4 300000-900000
    kv --transport rdma verify tcp- 4 300000-900000
    equal "what tcp wrote" "4 0" "$(got ok) $(got wrong)"
    within "packets that rxe0 sent" $((before0 + 1)) $(counter rxe0 sent_pkts) 1000000000
    within "packets that rxe1 sent" $((before1 + 1)) $(counter rxe1 sent_pkts) 1000000000
}
large() {
    kv --transport rdma --batch 1 load large- 1 67108864
    equal "put of 64 MiB" "1 67108864" "$(got ok) $(got rdma_bytes)"
    kv --transport rdma --batch 1 verify large- 1 67108864
    equal "get of 64 MiB" "1 0 67108864" "$(got ok) $(got wrong) $(got rdma_bytes)"
    kv remove large-0
}
batches() {
    kv --transport rdma --batch 64 load many- 300 1-20000
    equal "puts" "300 0" "$(got ok) $(got tcp_bytes)"
    kv --transport rdma --batch 64 verify many- 300 1-20000
    equal "gets" "300 0 0" "$(got ok) $(got wrong) $(got tcp_bytes)"
}
# Nothing is asked for: another machine's memory is read by rdma.
chosen() {
    kv --host elsewhere verify many- 50 1-20000
    equal "gets" "50 0 0" "$(got ok) $(got tcp_bytes) $(got shm_bytes)"
    within "bytes by rdma" 50 $(got rdma_bytes) 1000000
}

commands() {
    kv_run reader --transport rdma --pause 5 many- 300 1-20000
    # Of the hosts; this master has no memory to serve.
    wait_for 60 "the node's report" node_reported
    cat /tmp/devices
    cli rdma.regions n1.0 >/tmp/regions
    cat /tmp/regions
    grep -q "$address1" /tmp/regions
    equal "size in RDMA.REGIONS" "$(segment n1.0 size)" \
        "$(awk 'found { print; exit } $0 == "size" { found = 1 }' /tmp/regions)"
    wait_for 60 "the reader in RDMA.CONNECTIONS" connection_shown
    cli rdma.stats | tee /tmp/stats
    [ -s /tmp/stats ]
    cli rdma.doctor | tee /tmp/doctor
    [ -s /tmp/doctor ]
    cli module list | tee /tmp/modules
    grep -q rdma /tmp/modules
    cli info modules | tee /tmp/modules
    grep -q rdma /tmp/modules
    kv_stop reader
    equal "reader" "0 0" "$(got errors) $(got wrong)"
    ! grep -qE '^ERR|^\(error\)' /tmp/devices /tmp/regions /tmp/stats /tmp/doctor /tmp/modules
}
node_reported() { cli rdma.devices | tee /tmp/devices | grep -q rxe1; }
connection_shown() { cli rdma.connections | tee /tmp/connections | grep -q n1; }

# Values in the server's own memory.
embedded() {
    port=6480
    start server2 /tarn/tarn-server --port $port --bind 127.0.0.1 --dir /tmp --pool-size 32mb \
        --shm-socket "" --loadmodule "$module bind $address0"
    wait_for 60 "the second server" cli ping
    embedded_name=$(cli segment list | awk 'found { print; exit } $0 == "name" { found = 1 }')
    wait_offered "$embedded_name"
    kv --transport rdma load own- 20 1-300000
    equal "puts" "20 0" "$(got ok) $(got tcp_bytes)"
    kv --transport rdma verify own- 20 1-300000
    equal "gets" "20 0" "$(got ok) $(got wrong)"
    stop server2
}

# Unmounted: its queue pairs and regions are gone while the node lives on. Ended: nothing is left in
# the kernel.
unmounted() {
    kv_run reader --transport rdma --timeout 2000 many- 300 1-20000
    cli segment unmount n1.0
    wait_for 60 "the regions to be gone" no_regions_of n1
    want "the node runs" runs n1
    stop reader
}
no_regions_of() { ! rdma resource show mr | grep -q " pid $(pid_of $1) "; }
nothing_left() {
    stop n1
    stop server
    wait_for 60 "an end of all resources" no_resources
    resources
}

t pool pool_up
if [ "$failed" = 0 ]; then
    t sizes sizes
    t 64-MiB large
    t batches batches
    t chosen-without-asking chosen
    t commands commands
    t the-servers-own-memory embedded
    t unmount-leaves-no-region unmounted
    t nothing-left nothing_left
fi
