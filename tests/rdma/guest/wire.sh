# Two soft-RoCE devices, rxe0 (10.9.0.1 on d0) and rxe1 (10.9.0.2 on d1), with cables to a switch
# between them, in one network namespace:
#
#     rxe0 = d0 ── p0 [switch] p1 ── d1 = rxe1
#
# Unplugging a cable is taking its port of the switch down: the device loses its carrier, and keeps
# its address and routes. (With d1 itself down soft-RoCE gets errors when it sends, and its queue
# pair for management never sends again.) The kernel would send what goes from one own address to
# another over the loopback. So the table of local addresses is asked only for what comes in at d0
# and d1, and last for what goes out.

address0=10.9.0.1
address1=10.9.0.2

wire_up() {
    modprobe -a rdma_ucm rdma_rxe veth bridge
    ip link set lo up
    ip link add d0 type veth peer name p0
    ip link add d1 type veth peer name p1
    ip link add switch type bridge
    for device in switch p0 p1; do
        echo 1 >/proc/sys/net/ipv6/conf/$device/disable_ipv6
        ip link set $device mtu 4500 up
    done
    ip link set p0 master switch
    ip link set p1 master switch
    for device in all d0 d1; do
        echo 1 >/proc/sys/net/ipv4/conf/$device/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/$device/rp_filter
    done
    for device in d0 d1; do
        echo 1 >/proc/sys/net/ipv4/conf/$device/arp_ignore
        echo 2 >/proc/sys/net/ipv4/conf/$device/arp_announce
        ip link set $device mtu 4500 up
    done
    ip addr add $address0/32 dev d0
    ip addr add $address1/32 dev d1
    ip route add $address1 dev d0 src $address0
    ip route add $address0 dev d1 src $address1
    ip rule add pref 10 iif d0 lookup local
    ip rule add pref 11 iif d1 lookup local
    ip rule add pref 200 lookup main
    ip rule add pref 300 lookup local
    ip rule del pref 0
    rdma link add rxe0 type rxe netdev d0
    rdma link add rxe1 type rxe netdev d1
    wait_for 60 "the ports" ports_active
    # The first ARP of rdma_cm takes two seconds; that of others does not.
    busybox ping -q -c 1 -w 5 -I $address0 $address1 >/dev/null
    busybox ping -q -c 1 -w 5 -I $address1 $address0 >/dev/null
}
ports_active() {
    grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state &&
        grep -q ACTIVE /sys/class/infiniband/rxe1/ports/1/state
}

# counter DEVICE NAME: of the port, such as sent_pkts.
counter() { cat /sys/class/infiniband/$1/ports/1/hw_counters/$2; }

# The cable of rxe1.
unplug() { ip link set p1 down; }
plug_in() {
    ip link set p1 up
    wait_for 60 "the wire" ports_active
}

# Everything of ours that the kernel holds for RDMA: lines of processes.
resources() {
    for kind in qp mr cq pd cm_id; do rdma resource show $kind; done | grep " pid " || true
}
no_resources() { [ -z "$(resources)" ]; }
