# Not now is not never: what is awaited after a failover, a restart or DEBUG RELOAD is LOADING or
# TRYAGAIN, and in-band values wait.
source [file join [file dirname [info script]] harness.tcl]

proc pool_file {} {
    return [file join [expr {[file writable /dev/shm] ? "/dev/shm" : "/tmp"}] \
        tarn-it-[pid]-later-[incr ::pool_files]]
}
proc value {c {n 5000}} {return [string repeat $c $n]}
# A further connection on which that was said, and not yet answered.
proc said {args} {
    set c [client]
    resp::send $c {*}$args
    return $c
}
proc waiting {n} {
    set ::waiting $n
    wait_for "$n clients to wait" {[info_field inband_later_clients] == $::waiting}
}

# --- nodes that are awaited ---

start_server --pool-size 0 --appendonly yes --enable-debug-command yes --node-heartbeat 100 \
    --node-timeout 30s \
    --inband-wait-timeout 30s
start_node n1 --segment 32mb

# What is asked for while the node that everything lies on is awaited.
proc while_awaited {} {
    assert_error "LOADING*" {r putstart k 5000}
    set some [r mputstart 2 small 20 k 5000]
    assert_match "*LOADING *" [lindex $some 1]
    assert_equal OK [r putrevoke small [lindex $some 0 0]]
    assert_error "LOADING*" {r getreplicas old lease 1000}
    foreach command {prefixlen mgetreplicas} {
        assert_error "LOADING*" {r $command 1 ld UNIT 16 ALIGN 16 KVGROUPS 1 o FULL 16 16 0 0}
    }
    assert_equal OK [r set inline 1]
    set set [said set new [value n]]
    set get [said get old]
    set append [said append old more]
    set mset [said mset m1 [value 1] m2 [value 2]]
    set mget [said mget inline old]
    set range [said getrange old 4998 -1]
    waiting 6
    # libtarn: its put and its get, begun while the node is away.
    set ::said [info_field inband_later_waits]
    set ::refused [expr {[regexp {errorstat_LOADING:count=(\d+)} [r info errorstats] - n] ? $n : 0}]
    set log [file join [server dir] kv-later-[incr ::kv_calls]]
    set kv [start_process [list $::kv_binary {*}[kv_arguments {load later 20 1000-60000}]] $log]
    wait_for "libtarn to be told" {[regexp {errorstat_LOADING:count=(\d+)} [r info errorstats] -\
        n] && $n > $::refused}
    assert_equal 6 [info_field inband_later_clients]
    continue_node n1
    assert_equal OK [resp::recv $set]
    assert_match "[value o]*" [resp::recv $get]
    assert_equal 5004 [resp::recv $append]
    assert_equal OK [resp::recv $mset]
    assert_match "1 [value o]*" [resp::recv $mget]
    assert {[resp::recv $range] in {oo oomore}}
    assert_equal 0 [reap_process $kv] [file_text $log]
    kv_all 20 verify later 20 1000-60000
    assert_equal [value n] [r get new]
    assert_equal [value 2] [r get m2]
    assert_equal "[value o]more" [r get old]
    waiting 0
    assert_equal 0 [info_field inband_later_timeouts]
    r set old [value o]
    r del new m1 m2 inline
    r removematch GLOB *later*
    foreach c [list $set $get $append $mset $mget $range] {drop $c}
}

test {guarantee 2: after a restart puts are LOADING while nodes are awaited, and in-band values\
        wait} {
    r set old [value o]
    pause_node n1
    restart_server
    while_awaited
}

test {guarantee 2: the same after DEBUG RELOAD} {
    pause_node n1
    assert_equal OK [r debug loadaof]
    while_awaited
}

test {guarantee 4: the wait has a bound, behind which the connection is closed} {
    pause_node n1
    restart_server
    r config set inband-wait-timeout 200
    set set [said set new [value n]]
    set get [said get old]
    assert_equal "" [resp::read_to_end $set]
    assert_equal "" [resp::read_to_end $get]
    wait_for "both to be counted" {[info_field inband_later_timeouts] == 2}
    assert_equal 0 [info_field inband_later_clients]
    # A client that goes while it waits.
    r config set inband-wait-timeout 30s
    set gone [client]
    set id [$gone client id]
    resp::send $gone set new [value n]
    waiting 1
    assert_equal 1 [r client kill id $id]
    waiting 0
    # No wait: an error.
    r config set inband-wait-timeout 0
    assert_error "LOADING*" {r set new [value n]}
    assert_error "LOADING*" {r get old}
    assert_error "LOADING*" {r append old x}
    r config set inband-wait-timeout 30s
    continue_node n1
    wait_node n1 up
    assert_equal [value o] [r get old]
    assert_equal 0 [r exists new]
}

# --- space that readers of before may still look at ---

proc fill {from to {size 1000000}} {
    for {set i $from} {$i < $to} {incr i} {assert_equal OK [r set k$i [value x $size]]}
}
proc left {from to} {
    set n 0
    for {set i $from} {$i < $to} {incr i} {incr n [r exists k$i]}
    return $n
}

set pool [pool_file]
start_server --pool-size 64mb --pool-path $pool --max-lease 8s --enable-debug-command yes

test {guarantee 2: what was freed before a crash, and never leased, is free after it} {
    fill 0 45
    for {set i 0} {$i < 35} {incr i} {r del k$i}
    restart_server
    assert_equal 0 [info_field pool_ghosts]
    assert {[info_field pool_free] > 50000000}
    fill 100 145
    assert_equal 10 [left 35 45]
    assert_equal 0 [info_field evicted_objects]
    assert_equal 0 [info_field put_later]
    assert_equal 0 [info_field put_nospace]
    # As full as it is: what must go, goes.
    fill 200 220
    assert_equal 20 [left 200 220]
}

test {guarantee 1, 2: what a lease may cover is held back, shown, and waited for} {
    r flushall
    fill 0 60
    r getreplicas k1 lease 3000
    for {set i 0} {$i < 50} {incr i} {r del k$i}
    restart_server
    set ghosts [info_field pool_ghosts]
    assert {$ghosts >= 50000000 && $ghosts < 52000000}
    assert_match "TRYAGAIN *" [catch {r putstart new 9000000} why; set why]
    set ms [lindex $why 1]
    assert {$ms > 0 && $ms <= 9000}
    assert_match "*TRYAGAIN *" [lindex [r mputstart 2 small 10 new 9000000] 1]
    # Of what is larger than all of it: no.
    assert_error "NOSPACE*" {r putstart new 80000000}
    # In-band waits, and libtarn too.
    set c [said set in-band [value y 9000000]]
    waiting 1
    kv_all 5 load later 5 2000000-2000001
    assert_equal OK [resp::recv $c]
    assert_equal 10 [left 50 60]
    assert_equal 0 [info_field evicted_objects]
    assert_equal 0 [info_field pool_ghosts]
    assert_equal 1 [info_field put_nospace]
    kv_all 5 verify later 5 2000000-2000001
    drop $c
}

test {guarantee 1: a file that lacks promises is not believed} {
    r flushall
    fill 0 60
    for {set i 0} {$i < 50} {incr i} {r del k$i}
    set file [file join [server dir] appendonly.tarn]
    send_signal STOP [server pid]
    exec touch -d @0 $file
    restart_server
    assert {[info_field pool_ghosts] >= 50000000}
}

stop_server
file delete $pool
finish
