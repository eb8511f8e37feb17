# Commands of the pool with arguments drawn at random from what makes sense somewhere: each is
# answered, and a pool at work beside it does not suffer. Seeded; SEED=n in the environment runs
# another one.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 8mb --node-heartbeat 100 --node-timeout 60s --max-lease 1s --max-nodes 40
start_node real --host-name r1 --segment 32mb --ssd [server dir]/ssd:64mb
start_node other --host-name r2 --segment 32mb

set seed [expr {[info exists env(SEED)] ? $env(SEED) : 1}]
expr {srand($seed)}
proc pick {list} {return [lindex $list [expr {int(rand() * [llength $list])}]]}

set instance [string repeat 5 32]
set words [list n1 n2 n3 {} local real.0 other.0 real.ssd n1.0 n2.0 n3.ssd 0 1 2 3 7 -1 4096 \
    1048576 9223372036854775807 \
    18446744073709551615 99999999999999999999 3.5 x k:1 k:2 k:3 $instance [string repeat c 32] \
    [string repeat z 32] \
    MACHINE RACK VERSION TIER SIZE CONTENT ENDPOINTS KEYS REPORT rdma rdma://h:1 other:///x \
    BACKING DIRECTORY HUGE NUMA WAIT STATS COUNT STATE TO FROM CANCEL ON OFF \
    memory ssd file yes no tcp://*:1 tcp://h:99999 shm:///x nonsense done queued \x00\xff \
    [string repeat a 2000] m1 "a b" "a\nb"]
# What is asked for mostly in the right shape, so that some of it works.
set shapes {
    {node join NAME I MACHINE m1} {node join NAME I MACHINE W RACK W} {node up NAME I} \
        {node heartbeat NAME I} {node heartbeat NAME I WAIT 0 STATS 1 a W}
    {node fenced NAME I W} {node done NAME I 1 W W W W} {node done NAME I W W W W W} \
        {node evicted NAME I W 1 k:1 W} {node offer NAME I W 1 k:1 W W W W W}
    {segment mount NAME I NAME.0 TIER memory SIZE 1048576 CONTENT cccccccccccccccccccccccccccccccc\
        ENDPOINTS 1 tcp://*:1}
    {segment mount NAME I NAME.ssd TIER ssd SIZE 1048576 CONTENT W ENDPOINTS 1 tcp://*:1} \
        {segment mount NAME I W TIER W SIZE W CONTENT W}
    {segment mount NAME I NAME.file TIER file SIZE 1048576 CONTENT\
        cccccccccccccccccccccccccccccccc DIRECTORY /x ENDPOINTS 0}
    {segment mount NAME I NAME.0 TIER memory SIZE 1048576 CONTENT cccccccccccccccccccccccccccccccc\
        KEYS 1 rdma://*:1 W W}
    {segment keys NAME I NAME.0 1 rdma://*:1 W W} {segment keys NAME I NAME.0 2 rdma://h:1 W W\
        other:///x W W} {segment keys NAME I W W W W W}
    {segment keys NAME I NAME.0 0} {node heartbeat NAME I REPORT rdma W} \
        {node heartbeat NAME I REPORT W W REPORT rdma W}
    {segment unmount NAME.0} {segment drain NAME.0} {segment drain NAME.0 CANCEL} {segment info W} \
        {segment list} {node list} {node info W}
    {node drain NAME} {node drain NAME CANCEL} {node maintenance NAME ON} \
        {node maintenance NAME OFF} {node leave NAME}
    {replica copy k:1} {replica copy W TO W} {replica move k:2 FROM real.0} \
        {replica move W FROM W TO W} {replica drop k:3 FROM other.0} {replica drop W FROM W}
    {replica tasks} {replica tasks COUNT W STATE W} {replica cancel W} {replica list W} \
        {replica report W W}
    {putstart k:9 5000 REPLICAS 3} {putstart k:9 5000 PREFER W AVOID W} \
        {getreplicas k:1 LEASE 100} {putrevoke k:9 W} {client setinfo tarn-host W} \
        {client setinfo tarn-rack W}
}

proc one {} {
    set command [pick $::shapes]
    set name [pick {n1 n2 n3}]
    set out {}
    foreach w $command {
        set w [string map [list NAME $name] $w]
        if {$w eq "I"} {
            set w $::instance
        } elseif {$w eq "W" || rand() < 0.04} {
            set w [pick $::words]
        }
        lappend out $w
    }
    if {rand() < 0.05} {lappend out [pick $::words]}
    if {rand() < 0.03} {set out [lrange $out 0 end-1]}
    # The real nodes are left alone, and nobody waits.
    if {[lindex $out 0] eq "node" && [lindex $out 2] in {real other}} {return one}
    if {[string match -nocase {segment unmount*} $out] || \
            [string match -nocase {segment drain*} $out]} {
        if {[lindex $out 2] in {real.0 other.0 real.ssd 0 1 2 3 local}} {return {node list}}
    }
    if {[string match -nocase {*wait*} $out] && "0" ni $out} {return {node list}}
    if {[llength $out] == 0} {return {ping}}
    return $out
}

test "10000 commands drawn at random (seed $seed)" {
    kv --prefer real.0 load k: 20 1000-50000
    set run [kv_start --fill --replicas 2 --pause 1 run k: 20 1000-50000]
    set conns {}
    for {set i 0} {$i < 4} {incr i} {lappend conns [client]}
    set errors 0
    set fine 0
    for {set i 0} {$i < 10000} {incr i} {
        set c [pick $conns]
        set command [one]
        # Unmounting waits for leases; its client may go.
        if {[string match {segment unmount*} $command]} {
            set impatient [client]
            resp::send $impatient {*}$command
            drop $impatient
            continue
        }
        if {[catch {$c {*}$command} reply]} {
            if {[string match "*connection closed*" $reply] || [string match "no reply*" $reply]} {
                error "$command: $reply"
            }
            incr errors
        } else {
            incr fine
        }
    }
    assert {$errors > 1000 && $fine > 1000} "($errors errors, $fine fine)"
    set a [kv_stop $run]
    assert_equal 0 [dict get $a wrong] $a
    foreach c $conns {drop $c}
}

test {the pool is whole afterwards} {
    foreach n {n1 n2 n3} {catch {r node leave $n}}
    foreach n {real other} {
        r node maintenance $n off
        assert_equal up [node_state $n]
    }
    r flushall
    assert_equal "20 40" [kv_fields [kv --replicas 2 load z: 20 1000-50000] ok replicas]
    kv_all 20 verify z: 20 1000-50000
    wait_for "no task" {[info_field tasks] == 0}
}

finish
