# Where replicas go, and in which order readers are told of them.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0
start_node a1 --host-name A --rack r1 --segment 8mb
start_node a2 --host-name A --rack r1 --segment 32mb
start_node b1 --host-name B --rack r1 --segment 16mb
start_node c1 --host-name C --rack r2 --segment 16mb

# A field of every replica of a key, in the order of the books.
proc replicas {key field} {
    set out {}
    foreach replica [r replica list $key] {lappend out [dict get $replica $field]}
    return $out
}

# Of n keys that were loaded: how many replicas are in each segment, as a dict.
proc spread {prefix n} {
    set out {}
    for {set i 0} {$i < $n} {incr i} {
        foreach s [replicas $prefix$i segment] {dict incr out $s}
    }
    return $out
}

proc count {spread segment} {
    return [expr {[dict exists $spread $segment] ? [dict get $spread $segment] : 0}]
}

# Segments of a PUTSTART's or GETREPLICAS' replicas, in that order.
proc segments_of {list} {
    set out {}
    foreach replica $list {lappend out [name_of [lindex $replica 1 0 0]]}
    return $out
}

proc name_of {id} {return [segment_field $id name]}

test {REPLICAS never puts two on one machine} {
    foreach n {2 3} {
        set a [kv --replicas $n load d$n: 100 1000-20000]
        assert_equal "100 [expr {100 * $n}] 0 0" [kv_fields $a ok replicas missing errors]
        for {set i 0} {$i < 100} {incr i} {
            set machines [replicas d$n:$i machine]
            assert_equal $n [llength $machines]
            assert_equal $n [llength [lsort -unique $machines]] "(d$n:$i: $machines)"
        }
        kv_all 100 verify d$n: 100 1000-20000
    }
}

test {fewer machines than REPLICAS: as many as there are, and the reply says so} {
    set reply [r putstart few 10000 replicas 5]
    assert_equal 3 [llength [lindex $reply 1]]
    assert_equal 2 [lindex $reply 2]
    assert_equal {A B C} [lsort [lmap s [segments_of [lindex $reply 1]] {segment_field $s host}]]
    r putrevoke few [lindex $reply 0]
    assert_equal "10 30 20" [kv_fields [kv --replicas 5 load few: 10 1000] ok replicas missing]
    set reply [r mputstart 2 f1 10000 f2 10000 replicas 4]
    foreach one $reply {assert_equal {3 1} [list [llength [lindex $one 1]] [lindex $one 2]]}
    r mputrevoke 2 f1 [lindex $reply 0 0] f2 [lindex $reply 1 0]
    assert {[info_field put_short] >= 13}
    # All that were asked for: nothing is said.
    set reply [r putstart all 10000 replicas 3]
    assert_equal {2 3} [list [llength $reply] [llength [lindex $reply 1]]]
    r putrevoke all [lindex $reply 0]
}

test {PREFER: best first, then whatever there is} {
    r flushall
    for {set i 0} {$i < 20} {incr i} {
        set reply [r putstart p$i 10000 prefer c1.0 prefer b1.0]
        assert_equal c1.0 [segments_of [lindex $reply 1]]
        r putrevoke p$i [lindex $reply 0]
    }
    set reply [r putstart p 10000 replicas 2 prefer c1.0 prefer b1.0]
    assert_equal {b1.0 c1.0} [lsort [segments_of [lindex $reply 1]]]
    r putrevoke p [lindex $reply 0]
    # It has no room: another one.
    set reply [r putstart p [expr {12 * 1048576}] prefer a1.0]
    assert {"a1.0" ni [segments_of [lindex $reply 1]]}
    r putrevoke p [lindex $reply 0]
    # Both are of one machine: one of them.
    set reply [r putstart p 10000 replicas 2 prefer a1.0 prefer a2.0]
    assert_equal 2 \
        [llength [lsort -unique [lmap s [segments_of [lindex $reply 1]] {segment_field $s host}]]]
    assert {"a1.0" in [segments_of [lindex $reply 1]]}
    r putrevoke p [lindex $reply 0]
    assert_error "*PREFER*" {r putstart p 100 prefer}
}

test {AVOID: only where there is nothing else} {
    set reply [r putstart v 10000 avoid a1.0 avoid a2.0 avoid b1.0]
    assert_equal c1.0 [segments_of [lindex $reply 1]]
    r putrevoke v [lindex $reply 0]
    set reply [r putstart v 10000 replicas 3 avoid c1.0]
    assert_equal 3 [llength [lindex $reply 1]]
    r putrevoke v [lindex $reply 0]
}

test {local-first: the writer's machine, then others} {
    assert_equal local-first [lindex [r config get placement-strategy] 1]
    r flushall
    assert_equal "60 0" [kv_fields [kv --host A load l: 60 1000-20000] ok errors]
    set where [spread l: 60]
    assert_equal 60 [expr {[count $where a1.0] + [count $where a2.0]}] $where
    assert_equal "60 0" [kv_fields [kv --host C load m: 60 1000-20000] ok errors]
    assert_equal 60 [count [spread m: 60] c1.0]
    # The second replica goes elsewhere, whoever asks.
    kv --host C --replicas 2 load n: 40 1000-20000
    set where [spread n: 40]
    assert_equal 40 [count $where c1.0]
    # A writer from a machine without segments.
    r flushall
    wait_for "the space" {[segment_field c1.0 used] == 0 && [segment_field b1.0 used] == 0}
    set where [spread o: [dict get [kv --host elsewhere load o: 200 1000] ok]]
    foreach s {a2.0 b1.0 c1.0} {assert {[count $where $s] > 0} $where}
}

test {random: drawn by capacity} {
    r flushall
    r config set placement-strategy random
    kv --host C load q: 600 1000
    set where [spread q: 600]
    # 8, 32, 16 and 16 of 72 MiB: 67, 267, 133 and 133 are expected.
    assert_range 30 [count $where a1.0] 120
    assert_range 200 [count $where a2.0] 340
    assert_range 80 [count $where b1.0] 200
    assert_range 80 [count $where c1.0] 200
}

test {free-ratio-first: the emptiest} {
    r flushall
    r config set placement-strategy free-ratio-first
    foreach {s n} {a1.0 40 a2.0 160 b1.0 80} {
        for {set i 0} {$i < $n} {incr i} {
            set t [lindex [r putstart f$s:$i 100000 prefer $s] 0]
            r putend f$s:$i $t -1
        }
    }
    # Eight are drawn, so that each is looked at by seven puts of eight.
    kv load r: 60 20000
    assert {[count [spread r: 60] c1.0] > 40} [spread r: 60]
    r config set placement-strategy local-first
    assert_error "*placement-strategy*" {r config set placement-strategy nearest}
}

test {GETREPLICAS: same machine, then same rack, then others} {
    r flushall
    kv --replicas 3 load g: 30 1000-20000
    foreach {host rack first} {
        A {} {A} B {} {B} C {} {C}
        {} r2 {C} A r2 {A C} C r1 {C {A B}} elsewhere r1 {{A B} {A B} C}
    } {
        set c [client]
        if {$host ne ""} {assert_equal OK [$c client setinfo tarn-host $host]}
        if {$rack ne ""} {assert_equal OK [$c client setinfo tarn-rack $rack]}
        for {set i 0} {$i < 30} {incr i} {
            set machines [lmap s [segments_of [lindex [$c getreplicas g:$i] 4]] \
                {segment_field $s host}]
            assert_equal 3 [llength $machines]
            foreach got $machines wanted $first {
                if {$wanted ne ""} {assert {$got in $wanted} "($host $rack: $machines)"}
            }
        }
        drop $c
    }
}

test {... inside these at random} {
    set c [client]
    set firsts {}
    for {set i 0} {$i < 60} {incr i} {
        dict incr firsts [lindex [segments_of [lindex [$c getreplicas g:1] 4]] 0]
    }
    assert_equal 3 [llength [dict keys $firsts]] $firsts
}

test {MGETREPLICAS has the same order} {
    set c [client]
    $c client setinfo tarn-host B
    foreach one [$c mgetreplicas 10 {*}[batch g: 10]] {
        assert_equal b1.0 [lindex [segments_of [lindex $one 4]] 0]
    }
}

test {libtarn reads from its own machine, and elsewhere when that is lost} {
    set a [kv_all 30 --host B verify g: 30 1000-20000]
    assert_equal [dict get $a bytes] [dict get $a shm_bytes]
    kill_node b1
    set a [kv_all 30 --host B verify g: 30 1000-20000]
    assert_equal 0 [dict get $a shm_bytes]
    wait_node b1 down
    assert_equal "30 60 30" [kv_fields [kv --replicas 3 load h: 30 1000-20000] ok replicas missing]
}

stop_server
start_server --pool-size 16mb

test {the master's own segment is a machine like others} {
    start_node near
    start_node far --host-name other-machine
    set here [segment_field local host]
    assert_equal $here [segment_field near.0 host]
    set reply [r putstart k 10000 replicas 3]
    assert_equal {2 1} [list [llength [lindex $reply 1]] [lindex $reply 2]]
    assert {"far.0" in [segments_of [lindex $reply 1]]}
    r putrevoke k [lindex $reply 0]
    assert_equal "30 60" [kv_fields [kv --replicas 2 load s: 30 1000-20000] ok replicas]
    kv_all 30 --transport tcp verify s: 30 1000-20000
    stop_node far
    wait_node far ""
    kv_all 30 verify s: 30 1000-20000
    assert_equal "30 30 30" [kv_fields [kv --replicas 2 load t: 30 1000-20000] ok replicas missing]
}

test {when no segment has room, the coldest goes, wherever it lies} {
    r flushall
    r config set placement-strategy free-ratio-first
    wait_for "lru" {[catch {r config set eviction-policy lru}] == 0}
    set n [expr {16 * 1048576 / 65536 + 32 * 1048576 / 65536}]
    kv load cold: $n 65000
    kv load hot: 100 65000
    kv_all 100 verify hot: 100 65000
    set a [kv verify cold: $n 65000]
    assert_equal 0 [dict get $a errors]
    assert {[dict get $a misses] >= 100}
    assert_equal "$n 0" [list [expr {[dict get $a ok] + [dict get $a misses]}] [dict get $a wrong]]
}

finish
