# REPLICA COPY, MOVE, DROP, TASKS; hot objects; nodes and segments that are drained, also under
# load.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --node-heartbeat 100 --max-lease 1s --hard-pin-ratio 1 \
    --hard-pin-user-ratio 1
start_node n1 --host-name m1
start_node n2 --host-name m2
start_node n3 --host-name m3

proc segments_of {key} {
    set out {}
    foreach replica [r replica list $key] {lappend out [dict get $replica segment]}
    return [lsort $out]
}

proc task {id} {
    foreach t [r replica tasks count 1000] {if {[dict get $t id] == $id} {return $t}}
    error "no task $id"
}

proc task_over {id} {
    set ::task_id $id
    wait_for "the end of task $id" {[dict get [task $::task_id] state] in {done failed canceled}}
    return [task $id]
}

test {REPLICA COPY: one more replica, made by the node that will have it, from its neighbour} {
    kv --prefer n1.0 put v0 300000
    set id [r replica copy v0]
    assert {$id > 0}
    set t [task_over $id]
    foreach {field value} {kind copy key v0 state done bytes 300000 error {} reason user} {
        assert_equal $value [dict get $t $field] "($field)"
    }
    assert_equal 2 [llength [segments_of v0]]
    set to [dict get $t to]
    assert {$to in {n2.0 n3.0}}
    # It is whole: the first node is not needed any more.
    assert_equal OK [r replica drop v0 from n1.0]
    assert_equal $to [segments_of v0]
    kv_all 1 verify v 1 300000
    assert_equal [r get v0] [kv_value v0]
    assert {[node_field [segment_field $to node] stats] ne {}}
}

test {REPLICA COPY TO a segment, and what cannot be} {
    r flushall
    kv --prefer n1.0 put v0 300000
    assert_equal n2.0 [dict get [task_over [r replica copy v0 to n2.0]] to]
    assert_equal {n1.0 n2.0} [segments_of v0]
    assert_error "*TO has a replica*" {r replica copy v0 to n1.0}
    assert_error "NOSEGMENT*" {r replica copy v0 to nowhere}
    assert_error "*" {r replica copy nokey}
    assert_error "*TO*" {r replica copy v0 to}
    assert_error "*sideways*" {r replica copy v0 sideways n1.0}
    r set tiny 1
    assert_error "*books*" {r replica copy tiny}
    # All machines have it.
    task_over [r replica copy v0]
    assert_equal 3 [llength [segments_of v0]]
    set t [catch {task_over [r replica copy v0]} result]
    assert {$t == 1 || [dict get $result state] eq "failed"} $result
    assert_equal 3 [llength [segments_of v0]]
}

test {REPLICA COPY and MOVE with WAIT answer when the bytes are there, or say why they are not} {
    r flushall
    kv --prefer n1.0 put v0 300000
    set id [r replica copy v0 to n2.0 wait 600000]
    assert_equal done [dict get [task $id] state]
    assert_equal {n1.0 n2.0} [segments_of v0]
    r replica move v0 from n1.0 to n3.0 wait 600000
    assert_equal {n2.0 n3.0} [segments_of v0]
    r replica copy v0 to n1.0 wait 600000
    assert_error "*task * was not done: no memory segment on a machine without a replica has\
        room*" \
        {r replica copy v0 wait 600000}
    assert_error "*WAIT*" {r replica copy v0 wait}
    assert_error "*WAIT*" {r replica copy v0 wait -1}
    # a node that does not answer: the task goes on without the client
    r replica drop v0 from n2.0
    pause_node n2
    assert_error "BUSY task * is still under way after 20 ms*" {r replica copy v0 to n2.0 wait 20}
    continue_node n2
    wait_for "the copy" {[segments_of v0] eq {n1.0 n2.0 n3.0}}
    # its client may go
    r replica drop v0 from n2.0
    pause_node n2
    set c [client]
    resp::send $c replica copy v0 to n2.0 wait 600000
    wait_for "the task" {[r replica tasks state done] ne {} && \
        [llength [r replica tasks state queued]] +
        [llength [r replica tasks state room]] + [llength [r replica tasks state sent]] > 0}
    drop $c
    continue_node n2
    wait_for "the copy" {[segments_of v0] eq {n1.0 n2.0 n3.0}}
}

test {REPLICA MOVE: there afterwards, and not here} {
    r flushall
    kv --prefer n1.0 load mv: 20 1000-300000
    for {set i 0} {$i < 20} {incr i} {lappend ids [r replica move mv:$i from n1.0 to n3.0]}
    foreach id $ids {
        assert_equal {done move} [list [dict get [task_over $id] state] [dict get [task $id] kind]]
    }
    for {set i 0} {$i < 20} {incr i} {assert_equal n3.0 [segments_of mv:$i]}
    assert_equal 0 [segment_field n1.0 replicas]
    kv_all 20 verify mv: 20 1000-300000
    assert_equal done [dict get [task_over [r replica move mv:0 from n3.0]] state]
    assert {[segments_of mv:0] in {n1.0 n2.0}}
    assert_error "*FROM*" {r replica move mv:1 from n1.0}
    assert_error "*FROM*" {r replica move mv:1 to n1.0 to n2.0}
    assert_error "*" {r replica move mv:1 from n3.0 to n3.0}
}

test {REPLICA DROP: not the last one} {
    assert_error "BUSY*" {r replica drop mv:1 from n3.0}
    assert_error "*FROM*" {r replica drop mv:1 from n1.0}
    task_over [r replica copy mv:1 to n1.0]
    assert_equal OK [r replica drop mv:1 from n3.0]
    assert_equal n1.0 [segments_of mv:1]
    kv_all 20 verify mv: 20 1000-300000
}

test {REPLICA TASKS: newest first, by state, bounded} {
    set all [r replica tasks]
    assert {[llength $all] >= 20}
    assert_equal 2 [llength [r replica tasks count 2]]
    foreach t [r replica tasks state done] {assert_equal done [dict get $t state]}
    assert_equal {} [r replica tasks state queued]
    assert_error "*STATE*" {r replica tasks state nonsense}
    assert_error "*COUNT*" {r replica tasks count 0}
    assert_error "*COUNT*" {r replica tasks count 1001}
    assert_error "*nonsense*" {r replica tasks nonsense}
    assert {[info_field tasks] == 0}
    assert_match "*done=*" [info_field tasks_by_user]
}

test {a task waits for a node that is paused, and may be given up} {
    r flushall
    kv --prefer n1.0 put w0 100000
    pause_node n2
    set id [r replica copy w0 to n2.0]
    assert {[dict get [task $id] state] in {queued room sent}}
    assert_equal 1 [info_field tasks]
    assert_equal 1 [r replica cancel $id]
    assert_error "*" {r replica cancel 999999999; error gone}
    continue_node n2
    assert {[dict get [task_over $id] state] in {canceled done}}
    wait_for "no task" {[info_field tasks] == 0}
    assert_error "*" {r replica cancel x}
}

test {a task whose node dies is tried elsewhere, or fails} {
    kv --prefer n1.0 put x0 100000
    start_node n4 --host-name m4
    pause_node n4
    set any [r replica copy x0]
    set fixed [r replica copy x0 to n4.0]
    kill_node n4
    wait_node n4 down
    assert_equal done [dict get [task_over $any] state]
    assert {[dict get [task_over $fixed] state] in {failed canceled}} [task $fixed]
    r node leave n4
    wait_node n4 ""
    dict unset ::node_table n4
    wait_for "no task" {[info_field tasks] == 0}
}

test {max-tasks bounds what is under way} {
    r flushall
    kv --prefer n1.0 load b: 40 1000
    r config set max-tasks 16
    pause_node n2
    for {set i 0} {$i < 16} {incr i} {r replica copy b:$i to n2.0}
    assert_error "LIMIT*max-tasks*" {r replica copy b:20 to n2.0}
    continue_node n2
    wait_for "no task" {[info_field tasks] == 0}
    assert_equal 16 [segment_field n2.0 replicas]
    r config set max-tasks 10000
}

test {an object that is removed or replaced while it is copied leaves nothing behind} {
    r flushall
    kv --prefer n1.0 load c: 30 200000
    pause_node n2
    set ids {}
    for {set i 0} {$i < 30} {incr i} {lappend ids [r replica copy c:$i to n2.0]}
    for {set i 0} {$i < 10} {incr i} {r del c:$i}
    kv --seed 3 --replace --prefer n1.0 --from 10 load c: 10 200000
    continue_node n2
    foreach id $ids {task_over $id}
    wait_for "no task" {[info_field tasks] == 0}
    assert_equal 0 [r exists {*}[batch c: 10]]
    kv_all 10 --from 20 verify c: 10 200000
    r flushall
    wait_for "all space" {[segment_field n2.0 used] + [segment_field n2.0 quarantined] == 0}
}

test {a hot object gets more replicas by itself, and loses them when it cools} {
    r flushall
    kv --prefer n1.0 put hot0 50000
    kv --prefer n1.0 put cold0 50000
    r config set hot-window 500 hot-threshold 50 hot-replicas 3
    set reader [client]
    wait_for "three replicas" {
        [llength [lmap i {1 2 3 4 5 6 7 8 9 10} {$::reader getreplicas hot0 lease 100}]] == 10 && \
            [llength [segments_of hot0]] == 3
    }
    assert_equal n1.0 [segments_of cold0]
    assert {[info_field hot_objects] >= 1}
    kv_all 1 verify hot 1 50000
    wait_for "one replica" {[llength [segments_of hot0]] == 1}
    assert_equal 0 [info_field hot_objects]
    kv_all 1 verify hot 1 50000
    r config set hot-replicas 0 hot-window 10000 hot-threshold 1000
}

test {SEGMENT DRAIN moves what is only there, then the segment goes} {
    r flushall
    kv --prefer n2.0 load s: 50 1000-100000
    kv --replicas 3 load three: 20 1000-100000
    assert_equal OK [r segment drain n2.0]
    wait_for "the segment to go" {[catch {r segment info n2.0}]}
    assert_equal up [node_state n2]
    for {set i 0} {$i < 50} {incr i} {assert {[segments_of s:$i] in {n1.0 n3.0}}}
    for {set i 0} {$i < 20} {incr i} {assert_equal {n1.0 n3.0} [segments_of three:$i]}
    kv_all 50 verify s: 50 1000-100000
    assert {[info_field drained_objects] >= 50}
    assert_equal 20 [info_field drain_dropped]
    stop_node n2
    wait_node n2 ""
    restart_node n2
}

test {SEGMENT DRAIN CANCEL: it is as it was} {
    kv --prefer n2.0 load s2: 50 1000-100000
    pause_node n1
    pause_node n3
    assert_equal OK [r segment drain n2.0]
    assert_equal draining [segment_field n2.0 state]
    assert_equal OK [r segment drain n2.0 cancel]
    assert_equal up [segment_field n2.0 state]
    continue_node n1
    continue_node n3
    assert_error "*sideways*" {r segment drain n2.0 sideways}
    assert_error "NOSEGMENT*" {r segment drain nowhere}
    kv_all 50 verify s2: 50 1000-100000
    assert {[llength [r putstart afterwards 1000 prefer n2.0]] == 2}
}

test {NODE DRAIN under load: no reader notices, and the process ends with 0} {
    r flushall
    kv --prefer n1.0 load d: 200 1000-100000
    set readers [list [kv_start --pause 1 run d: 200 1000-100000] [kv_start --transport tcp \
        --pause 1 run d: 200 1000-100000]]
    set writer [kv_start --replace --replicas 2 --fill --pause 1 run w: 100 1000-50000]
    assert_equal OK [r node drain n1]
    assert_equal 0 [reap_node n1]
    wait_node n1 ""
    foreach run $readers {
        set a [kv_stop $run]
        assert {[dict get $a ok] > 0} $a
        assert_equal "0 0 0" [kv_fields $a misses errors wrong] $a
    }
    set a [kv_stop $writer]
    assert_equal "0 0" [kv_fields $a errors wrong] $a
    kv_all 200 verify d: 200 1000-100000
    for {set i 0} {$i < 200} {incr i} {assert {[segments_of d:$i] in {n2.0 n3.0}}}
    restart_node n1
}

test {NODE DRAIN shows its progress, and can be taken back} {
    r flushall
    kv --prefer n1.0 load d: 100 100000
    pause_node n2
    pause_node n3
    assert_equal OK [r node drain n1]
    set info [r node info n1]
    assert_equal draining [dict get $info state]
    assert {[dict get $info drain-left-objects] > 90}
    assert {[dict get $info drain-left-bytes] > 9000000}
    assert_equal OK [r node drain n1]
    assert_equal OK [r node drain n1 cancel]
    assert_equal up [node_state n1]
    continue_node n2
    continue_node n3
    wait_for "no task" {[info_field tasks] == 0}
    kv_all 100 verify d: 100 100000
    assert_error "*no such node*" {r node drain nobody}
    assert_error "*sideways*" {r node drain n1 sideways}
}

test {a drain for which there is no room waits, and says so; it ends when there is} {
    r flushall
    kv --prefer n1.0 --pin load p1: 20 1000000
    kv --prefer n2.0 --pin load p2: 30 1000000
    kv --prefer n3.0 --pin load p3: 30 1000000
    r node drain n1
    wait_for "it to be stuck" {[segment_field n1.0 drain_error] ne ""}
    assert_equal draining [node_state n1]
    wait_for "a line" \
        {[string match\
        "*Draining segment n1.0: * objects and * MiB are left, the last that could not be moved:\
        *"\
        [file_text [server log]]]}
    kv_all 20 verify p1: 20 1000000
    start_node n5 --host-name m5 --segment 64mb
    assert_equal 0 [reap_node n1]
    kv_all 20 verify p1: 20 1000000
    kv_all 30 verify p2: 30 1000000
}

test {a node that is told to drain when it ends} {
    r flushall
    start_node n6 --host-name m6 --drain-on-exit
    kv --prefer n6.0 load e: 100 1000-100000
    stop_node n6
    wait_node n6 ""
    kv_all 100 verify e: 100 1000-100000
    dict unset ::node_table n6
}

finish
