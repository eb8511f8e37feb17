# Storage nodes come, go, are lost and come back; what they hold follows.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --max-lease 3s --node-heartbeat 100

# n1 and n2 on two machines, both empty.
set connections [info_field total_connections_received]
start_node n1 --host-name m1 --rack r1
set connections [expr {[info_field total_connections_received] - $connections}]
start_node n2 --host-name m2

# Until that condition holds, with a node-timeout that is short meanwhile.
proc soon_down {name} {
    r config set node-timeout 2000
    wait_node $name down
    r config set node-timeout 10000
}

# Also of one that is leaving, which has no name any more; "": it is gone.
proc segment_state {name} {
    foreach s [r segment list] {if {[dict get $s name] eq $name} {return [dict get $s state]}}
    return ""
}

test {NODE LIST and NODE INFO tell who is there} {
    set nodes {}
    foreach n [r node list] {
        lappend nodes [dict get $n name] [dict get $n state] [dict get $n machine] \
            [dict get $n rack]
    }
    assert_equal {n1 up m1 r1 n2 up m2 {}} $nodes
    set info [r node info n1]
    foreach {field value} {name n1 state up machine m1 rack r1 address 127.0.0.1 segments 1 size\
        33554432 used 0\
        segment-names n1.0 draining 0 maintenance 0 joins 1 connected 1 replicas 0} {
        assert_equal $value [dict get $info $field] "($field)"
    }
    assert_match {[0-9a-f][0-9a-f]*} [dict get $info instance]
    wait_for "figures with heartbeats" {[llength [dict get [r node info n1] stats]] > 20}
    assert {[dict exists [node_field n1 stats] memory-available]}
    assert_equal 2 [info_field nodes]
    assert_equal 2 [info_field nodes_up]
    assert_equal {memory n1 m1 up} [list [segment_field n1.0 tier] [segment_field n1.0 node] \
        [segment_field n1.0 host] [segment_field n1.0 state]]
}

test {a node that starts connects to ask for the map, then once for each direction} {
    assert_equal 3 $connections
}

test {a value goes to a node and comes back, by tcp and by shm} {
    assert_equal "1 1 0" [kv_fields [kv put v0 100000] ok replicas errors]
    kv_all 1 verify v 1 100000
    foreach {transport host field} {tcp m1 tcp_bytes shm m1 shm_bytes auto m1 shm_bytes auto\
            elsewhere tcp_bytes} {
        set a [kv --prefer n1.0 --host $host --transport $transport --replace load t: 4 1000-200000]
        assert_equal "4 0" [kv_fields $a ok errors] $a
        assert {[dict get $a $field] == [dict get $a bytes]} "($transport $host: $a)"
        kv_all 4 --host $host --transport $transport verify t: 4 1000-200000
    }
    r flushall
}

test {a node tells of which version those are that it serves} {
    set peers data-peers-[string map {. -} [node_field n1 version]]
    foreach transport {tcp shm} {
        set run [kv_start --prefer n1.0 --host m1 --transport $transport --fill --replace \
            run t: 4 1000-200000]
        wait_for "$peers" {[dict exists [node_field n1 stats] $peers]}
        assert {![dict exists [node_field n1 stats] data-peers-0-1]}
        assert_equal 0 [dict get [kv_stop $run] wrong]
        wait_for "no $peers" {![dict exists [node_field n1 stats] $peers]}
    }
    r flushall
}

test {a name that a living node has is refused: exit status 3} {
    launch_node twin --name=n1
    assert_equal 3 [reap_node twin]
    assert_match "*name*" [file_text [node twin dir]/stdout]
    assert_equal {up 1} [list [node_state n1] [node_field n1 joins]]
}

test {options of tarn-node that make no sense are refused with a message: exit status 2} {
    foreach {options said} {
        {--segment 8q} --segment {--segment 8mb@numb0} --segment {--segment 8mb,shiny} \
            --segment {--ssd /x} --ssd
        {--nonsense 1} --nonsense {--data-port 70000} --data-port {--threads 0} \
            --threads {--segment} --segment
    } {
        launch_node bad {*}$options
        assert_equal 2 [reap_node bad] $options
        assert_match "*$said*" [file_text [node bad dir]/stdout]
    }
    launch_node bad --name=a/b
    assert_equal 1 [reap_node bad]
    assert_match "*name*" [file_text [node bad dir]/stdout]
    launch_node bad --segment 8mb,path=/nowhere/at/all
    assert_equal 1 [reap_node bad]
    assert_match "*/nowhere/at/all*" [file_text [node bad dir]/stdout]
    dict unset ::node_table bad
    dict unset ::node_table twin
}

test {a node that dies is down at once: only its objects are misses, and may be put again} {
    kv --prefer n1.0 load only1: 30 1000-50000
    kv --prefer n2.0 load only2: 30 1000-50000
    kv --replicas 2 load both: 30 1000-50000
    set epoch [segment_field n1.0 epoch]
    kill_node n1
    wait_node n1 down
    assert_equal down [segment_field n1.0 state]
    assert_equal "0 30 0" [kv_fields [kv verify only1: 30 1000-50000] ok misses errors]
    kv_all 30 verify only2: 30 1000-50000
    kv_all 30 verify both: 30 1000-50000
    assert_equal 0 [r exists {*}[batch only1: 30]]
    assert_equal 30 [r exists {*}[batch both: 30]]
    assert_equal 0 [r prefixlen 2 only1:0 both:0]
    assert_equal (nil) [r getreplicas only1:1]
    assert_equal (nil) [r get only1:1]
    assert_equal 1 [llength [lindex [r getreplicas both:1] 4]]
    # What is there on the other machine is no miss, so one replica of two can be made.
    set a [kv --replicas 2 load only1: 1 1000-50000]
    assert_equal "1 1 1" [kv_fields $a ok replicas missing]
    assert_equal 1 [info_field node_downs]
}

test {a node that comes back without its memory gets a new epoch and is empty} {
    restart_node n1
    assert {[segment_field n1.0 epoch] > $epoch}
    assert_equal 0 [segment_field n1.0 replicas]
    assert_equal "1 29 0" [kv_fields [kv verify only1: 30 1000-50000] ok misses errors] \
        "(one was put again)"
    kv_all 30 verify both: 30 1000-50000
    assert_equal "30 60" [kv_fields [kv --replicas 2 load new: 30 1000-50000] ok replicas]
    r flushall
}

test {a paused node is down after node-timeout; when it goes on, its replicas are taken back under\
        the same epoch} {
    kv --prefer n1.0 load only1: 50 1000-50000
    kv --replicas 2 load both: 20 1000-50000
    set epoch [segment_field n1.0 epoch]
    pause_node n1
    soon_down n1
    assert_equal "0 50 0" [kv_fields [kv verify only1: 50 1000-50000] ok misses errors]
    kv_all 20 verify both: 20 1000-50000
    continue_node n1
    wait_node n1 up
    assert_equal $epoch [segment_field n1.0 epoch]
    assert_equal 70 [segment_field n1.0 replicas]
    kv_all 50 verify only1: 50 1000-50000
    kv_all 20 verify both: 20 1000-50000
}

test {guarantee 1: what was removed or replaced while a node was away does not come back with it} {
    pause_node n1
    soon_down n1
    assert_equal 0 [r del only1:0]
    r set only1:1 new
    kv --seed 7 put only1:2 3000
    assert_equal 0 [r removematch glob only1:3*]
    kv --seed 7 --replace put both:0 3000
    assert_equal 1 [r del both:1]
    continue_node n1
    wait_node n1 up
    assert_equal 0 [r exists only1:0]
    assert_equal new [r get only1:1]
    kv_all 1 --seed 7 --from 2 verify only1: 1 3000
    foreach key {only1:3 only1:30 only1:39} {assert_equal 0 [r exists $key] $key}
    kv_all 1 --seed 7 verify both: 1 3000
    assert_equal 0 [r exists both:1]
    kv_all 10 --from 40 verify only1: 10 1000-50000
    r flushall
    pause_node n1
    soon_down n1
    continue_node n1
    wait_node n1 up
    assert_equal 0 [r dbsize]
    wait_for "the space to be free" {[segment_field n1.0 used] + [segment_field n1.0 quarantined]\
        == 0}
}

test {guarantee 1: FLUSHALL while a node is away is final} {
    kv --prefer n1.0 load only1: 10 1000
    pause_node n1
    soon_down n1
    r flushall
    continue_node n1
    wait_node n1 up
    assert_equal 0 [r dbsize]
    assert_equal "0 10" [kv_fields [kv verify only1: 10 1000] ok misses]
    wait_for "its space" {[segment_field n1.0 used] + [segment_field n1.0 quarantined] == 0}
}

test {a pool file keeps its content over kill -9 of the node: same epoch, nothing lost} {
    set file [file join [server dir] n3.pool]
    start_node n3 --segment 16mb,path=$file --host-name m3
    kv --prefer n3.0 load file: 40 1000-100000
    set epoch [segment_field n3.0 epoch]
    kill_node n3
    wait_node n3 down
    assert_equal "0 40" [kv_fields [kv verify file: 40 1000-100000] ok misses]
    restart_node n3
    assert_equal $epoch [segment_field n3.0 epoch]
    kv_all 40 verify file: 40 1000-100000
}

test {... and a good end, and is gone when the file is} {
    stop_node n3
    wait_node n3 down
    restart_node n3
    assert_equal $epoch [segment_field n3.0 epoch]
    kv_all 40 verify file: 40 1000-100000
    kill_node n3
    file delete $file
    restart_node n3
    assert {[segment_field n3.0 epoch] != $epoch}
    assert_equal "0 40 0" [kv_fields [kv verify file: 40 1000-100000] ok misses wrong]
    r node leave n3
    assert_equal 0 [reap_node n3]
    dict unset ::node_table n3
}

test {NODE MAINTENANCE: readable, nothing new, nothing moved} {
    kv --prefer n1.0 load stay: 20 1000-50000
    assert_equal OK [r node maintenance n1 on]
    assert_equal maintenance [node_state n1]
    assert_equal readonly [segment_field n1.0 state]
    kv_all 20 verify stay: 20 1000-50000
    kv --prefer n1.0 load other: 20 1000-50000
    assert_equal 20 [segment_field n1.0 replicas]
    kv_all 20 verify other: 20 1000-50000
    # It survives a restart of the node's connection.
    pause_node n1
    soon_down n1
    continue_node n1
    wait_node n1 maintenance
    assert_equal OK [r node maintenance n1 off]
    wait_node n1 up
    kv --prefer n1.0 load third: 20 1000-50000
    assert_equal 40 [segment_field n1.0 replicas]
    r flushall
}

test {SEGMENT UNMOUNT: nothing is handed out at once, and it waits for leases} {
    start_node n4 --segment 8mb --segment 8mb --host-name m4
    kv --prefer n4.0 put leased 50000
    kv --prefer n4.1 put stays0 50000
    set reader [client]
    set version [lindex [$reader getreplicas leased lease 3000] 0]
    set other [client]
    resp::send $other segment unmount n4.0
    wait_for "the first step" {[segment_state n4.0] eq "leaving"}
    assert_equal 0 [r exists leased]
    assert {![resp::readable $other]}
    assert_equal 1 [$reader release 1 leased $version]
    assert_equal OK [resp::recv $other]
    assert_error "NOSEGMENT*" {r segment info n4.0}
    kv_all 1 verify stays 1 50000
    assert_equal {up n4.1} [list [node_state n4] [node_field n4 segment-names]]
}

test {SEGMENT UNMOUNT goes on when its client does not wait} {
    set reader [client]
    set version [lindex [$reader getreplicas stays0 lease 3000] 0]
    set other [client]
    resp::send $other segment unmount n4.1
    wait_for "the first step" {[segment_state n4.1] eq "leaving"}
    drop $other
    drop $reader
    wait_for "the second" {[segment_state n4.1] eq ""}
    assert_equal {} [node_field n4 segment-names]
}

test {NODE LEAVE by hand: the process ends with 0, its objects are misses} {
    kv --prefer n2.0 load gone: 10 1000-50000
    start_node n5 --host-name m5
    kv --prefer n5.0 load gone5: 10 1000-50000
    assert_equal OK [r node leave n5]
    assert_equal 0 [reap_node n5]
    dict unset ::node_table n5
    assert_equal "0 10 0" [kv_fields [kv verify gone5: 10 1000-50000] ok misses errors]
    wait_node n5 ""
    kv_all 10 verify gone: 10 1000-50000
    r node leave n4
    assert_equal 0 [reap_node n4]
    dict unset ::node_table n4
}

test {SIGTERM of a node without files: it leaves} {
    start_node n6 --host-name m6
    kv --prefer n6.0 load gone6: 10 1000-50000
    stop_node n6
    wait_node n6 ""
    assert_equal "0 10 0" [kv_fields [kv verify gone6: 10 1000-50000] ok misses errors]
    dict unset ::node_table n6
}

test {... at the latest after --exit-timeout, whoever still holds a lease} {
    start_node n6 --host-name m6 --exit-timeout 1
    kv --prefer n6.0 put leased6 50000
    set reader [client]
    $reader getreplicas leased6 lease 300000
    stop_node n6
    wait_node n6 ""
    assert_equal 0 [r exists leased6]
    drop $reader
    dict unset ::node_table n6
}

test {a node that stays away is forgotten after node-forget-timeout} {
    start_node n7 --host-name m7
    kv --prefer n7.0 load gone7: 10 1000-50000
    r config set node-forget-timeout 1000
    kill_node n7
    wait_node n7 ""
    assert_error "NOSEGMENT*" {r segment info n7.0}
    assert_equal "0 10 0" [kv_fields [kv verify gone7: 10 1000-50000] ok misses errors]
    assert_equal 1 [info_field nodes_forgotten]
    r config set node-forget-timeout 3600000
    dict unset ::node_table n7
}

test {guarantee 3: the space of a writer that dies comes back when the node has cut it off} {
    r flushall
    r config set put-timeout 100
    pause_node n1
    set all [expr {16 * 1048576}]
    set writer [client]
    assert {[llength [$writer putstart big $all prefer n2.0]] == 2}
    drop $writer
    continue_node n1
    wait_for "the space" {![catch {r putstart again $all prefer n2.0} reply] && \
        [lindex $reply 1 0 1 0 0] == [segment_field n2.0 id]}
    assert_equal OK [r putrevoke again [lindex $reply 0]]
    wait_for "all fences" {[info_field node_fences_pending] == 0}
}

test {a node that was away confirms what was asked of it before it is up} {
    r flushall
    r config set put-timeout 100
    set writer [client]
    set reply [$writer putstart big 1000000 prefer n1.0]
    assert_equal [segment_field n1.0 id] [lindex $reply 1 0 1 0 0]
    pause_node n1
    soon_down n1
    drop $writer
    wait_for "the fence to be asked for" {[node_field n1 fences-pending] > 0}
    continue_node n1
    wait_node n1 up
    assert_equal 0 [node_field n1 fences-pending]
    r config set put-timeout 30000
}

test {the master is restarted: nodes join by themselves, and serve anew} {
    kv --replicas 2 load m: 20 1000-50000
    # They come in another order than before, so that segments change their ids.
    pause_node n1
    restart_server
    wait_node n2 up
    continue_node n1
    wait_node n1 up
    assert_equal "0 20 0" [kv_fields [kv verify m: 20 1000-50000] ok misses errors]
    assert_equal "20 40" [kv_fields [kv --seed 2 --replicas 2 load m: 20 1000-50000] ok replicas]
    kv_all 20 --seed 2 verify m: 20 1000-50000
}

test {... also when their segments swap ids} {
    start_node n8 --segment 8mb --segment 8mb --segment 8mb --host-name m8
    kv --prefer n8.1 load m8: 20 1000-50000
    foreach n {n1 n2} {pause_node $n}
    restart_server
    wait_node n8 up
    foreach n {n1 n2} {continue_node $n; wait_node $n up}
    pause_node n8
    restart_server
    wait_node n1 up
    wait_node n2 up
    continue_node n8
    wait_node n8 up
    foreach s {n8.0 n8.1 n8.2} {
        assert_equal "20 20" [kv_fields [kv --prefer $s load $s: 20 1000-50000] ok replicas]
        assert_equal 20 [segment_field $s replicas]
        kv_all 20 verify $s: 20 1000-50000
    }
    stop_node n8
}

test {SIGHUP does not end a node, whether it has a log file or not} {
    set dir [temp_dir]
    set command [node_command unlogged $dir {}]
    set at [lsearch $command --log-file]
    set ::unlogged [start_process [lreplace $command $at [expr {$at + 1}]] $dir/stdout]
    wait_node unlogged up
    send_signal HUP $::unlogged
    send_signal TERM $::unlogged
    assert_equal 0 [reap_process $::unlogged]
    assert_match "*leaving the pool*" [file_text $dir/stdout]
}

test {a node that is started before its master waits for it} {
    set port [server port]
    set master [lindex $::servers end]
    send_signal KILL [dict get $master pid]
    reap_process [dict get $master pid]
    launch_node early --host-name m9
    wait_for "its message" {[string match "*Waiting for the master*" [file_text [node early log]]]}
    # As logrotate does.
    file rename [node early log] [node early log].1
    send_signal HUP [node early pid]
    wait_for "its new log" {[file exists [node early log]]}
    foreach c $::clients {catch {resp::close $c}}
    set ::clients {}
    dict lappend master options --port $port
    set ::servers [lreplace $::servers end end [boot_server $master]]
    foreach n {n1 n2 early} {wait_node $n up}
    assert_equal "20 20" [kv_fields [kv --prefer early.0 load e: 20 1000-50000] ok replicas]
    stop_node early
    dict unset ::node_table early
}

proc joins_asked {} {
    if {![regexp {cmdstat_node\|join:calls=(\d+)} [r info commandstats] - calls]} {return 0}
    return $calls
}

test {a node that the master refuses for now tries again for as long as it takes} {
    r config set max-nodes 1
    set ::before [joins_asked]
    launch_node crowd --host-name m9 \
        --master tarn://127.0.0.1:[server port]?backoff_min_ms=1&backoff_max_ms=10
    wait_for "many attempts" {[joins_asked] >= $::before + 20}
    set text [file_text [node crowd log]]
    assert_match "*is not connected to its master, and tries again: *max-nodes*" $text
    file rename [node crowd log] [node crowd log].1
    send_signal HUP [node crowd pid]
    wait_for "its new log" {[file exists [node crowd log]]}
    r config set max-nodes 1024
    wait_node crowd up
    stop_node crowd
    dict unset ::node_table crowd
}

stop_server
start_server --pool-size 0 --requirepass sesame

test {a node needs the password: exit status 4 with a wrong one} {
    r auth sesame
    launch_node p1 --master tarn://:wrong@127.0.0.1:[server port]
    assert_equal 4 [reap_node p1]
    dict unset ::node_table p1
    start_node p1 --master tarn://:sesame@127.0.0.1:[server port]
    assert_equal up [node_state p1]
    set file [file join [server dir] secret]
    set f [open $file w]
    puts $f sesame
    close $f
    start_node p2 --password-file $file
    assert_equal up [node_state p2]
}

finish
