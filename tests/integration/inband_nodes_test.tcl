# Any Redis client is served by a pool of many machines: GET, SET and their kin where the values are
# on nodes.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --node-heartbeat 100 --inband-stall-timeout 1s

proc bytes {n seed} {
    set block {}
    expr {srand($seed)}
    for {set i 0} {$i < 1024} {incr i} {append block [binary format c [expr {int(rand() * 256)}]]}
    return [string range [string repeat $block [expr {$n / 1024 + 1}]]$seed end-[expr {$n - 1}] end]
}
proc where {key} {
    set names {}
    foreach replica [r replica list $key] {lappend names [dict get $replica segment]}
    return $names
}

test {without a pool and without nodes only small values have a place} {
    r set small [bytes 64 1]
    assert_error "OOM no room for 65 bytes: no node is up yet*" {r set large [bytes 65 1]}
}

start_node n1 --host-name m1 --segment 96mb
test {values of all sizes, on a node of another machine} {
    foreach n {1 64 65 4096 100000 1048576 1048577 5000000 33554433} {
        set value [bytes $n $n]
        assert_equal OK [r set v$n $value]
        assert {[r get v$n] eq $value} "($n)"
        assert_equal $n [r strlen v$n]
        assert {[r getrange v$n [expr {$n / 2}] -1] eq [string range $value [expr {$n / 2}] end]} \
            "($n)"
        if {$n > 64} {assert_equal n1.0 [where v$n]}
    }
    assert_equal 0 [info_field inband_buffer_used]
    assert_equal 0 [info_field inband_failures]
    r flushall
}

test {... and by shared memory, on a node of this one} {
    start_node here
    r set k [bytes 3000000 5]
    r config set placement-strategy local-first
    wait_for "a value on the near node" {[r set k2 [bytes 2000000 6]] eq "OK" && \
        [where k2] eq "here.0"}
    assert {[r get k2] eq [bytes 2000000 6]}
    r flushall
    stop_node here
}

test {APPEND, SETRANGE, GETSET, MGET, INCR of values that are elsewhere} {
    set value [bytes 2500000 2]
    r set k $value
    assert_equal 2600000 [r append k [bytes 100000 3]]
    append value [bytes 100000 3]
    assert_equal 2600000 [r setrange k 1000 [bytes 50000 4]]
    set value [string replace $value 1000 50999 [bytes 50000 4]]
    assert {[r get k] eq $value}
    assert_equal [list $value (nil) $value] [r mget k none k]
    assert {[r getset k [bytes 1000 5]] eq $value}
    assert {[r set k next GET] eq [bytes 1000 5]}
    r set number [string repeat 0 0]1.[string repeat 0 90]
    assert_equal 1.5 [r incrbyfloat number 0.5]
    assert_error "ERR value is not an integer*" {r incr [lindex [list n [r set n [bytes 70 1]]] 0]}
    r flushall
}

test {a value elsewhere that is edited while it is written has one of the two values, never a mix} {
    set writers {}
    for {set i 0} {$i < 4} {incr i} {lappend writers [client]}
    r set k [bytes 300000 1]
    for {set round 0} {$round < 20} {incr round} {
        resp::send [lindex $writers 0] append k [bytes 70000 2]
        resp::send [lindex $writers 1] set k [bytes 300000 $round]
        resp::send [lindex $writers 2] set k [bytes 300000 3] get
        resp::send [lindex $writers 3] setrange k 299990 [bytes 1000 4]
        set answers [lmap c $writers {resp::recv $c}]
        assert {[string is integer [lindex $answers 0]]} "($answers)"
        assert_equal OK [lindex $answers 1]
        set size [string length [r get k]]
        assert {$size in {300000 300990 370000 370990}} "($size)"
        assert_equal $size [r strlen k]
    }
    foreach c $writers {drop $c}
    assert_equal 0 [info_field inband_buffer_used]
    r flushall
}

test {what is too large to be taken from elsewhere is said, and nothing is written} {
    r set huge [string repeat x 70000000]
    foreach command {{append huge y} {setrange huge 1 y} {set huge y get} {getset huge y}\
            {copy huge other} {rename huge other}} {
        assert_error "ERR the value has 70000000 bytes on another machine*" {r {*}$command}
    }
    assert_equal 70000000 [r strlen huge]
    assert_equal 0 [r exists other]
    assert_error "ERR value is not an integer*" {r incr huge}
    r set huge y
    r flushall
}

test {what SET wrote libtarn reads, and what libtarn put GET reads} {
    assert_equal 1 [dict get [kv put lib 300000] ok]
    assert_equal 300000 [r strlen lib]
    assert_equal 300000 [string length [r get lib]]
    r flushall
}

start_node n2 --host-name m2 --segment 96mb
test {a node that stops: its value is read from the other replica, a new one goes to the other\
        node} {
    set value [bytes 4000000 7]
    r set k $value
    set home [lindex [where k] 0]
    r replica copy k
    wait_for "a second replica" {[llength [where k]] == 2}
    set ::stopped [lindex [split $home .] 0]
    pause_node $::stopped
    assert {[r get k] eq $value}
    for {set i 0} {$i < 4} {incr i} {
        assert_equal OK [r set new$i [bytes 1500000 $i]]
        assert {[r get new$i] eq [bytes 1500000 $i]}
        assert {[where new$i] ne $home}
    }
    continue_node $::stopped
    wait_for "nothing held back" {[info_field pool_zombie] == 0 && \
        [info_field inband_write_sessions] == 0}
    assert {[r get k] eq $value}
    r flushall
}

test {a node that dies: values that were only there are misses} {
    # It did not answer lately: new values avoid it for a few seconds.
    wait_for "a value on n1" {[r set probe [bytes 1000 1]] eq "OK" && [where probe] eq "n1.0"}
    wait_for "a value on n2" {[r set probe [bytes 1000 1]] eq "OK" && [where probe] eq "n2.0"}
    for {set i 0} {$i < 30} {incr i} {r set k$i [bytes 400000 $i]}
    kill_node n1
    wait_node n1 down
    set ::there 0
    set keys {}
    for {set i 0} {$i < 30} {incr i} {
        lappend keys k$i
        set got [r get k$i]
        if {$got eq "(nil)"} continue
        assert {$got eq [bytes 400000 $i]}
        incr ::there
    }
    assert_equal $::there [llength [lsearch -all -inline [r mexists 30 {*}$keys] 1]]
    assert_range 1 $::there 29
    for {set i 0} {$i < 30} {incr i} {assert_equal OK [r set k$i [bytes 400000 $i]]}
    r flushall
    set size [segment_field n2.0 size]
    assert {[catch {r set huge [bytes [expr {$size + 1}] 1]} why]}
    assert_match "OOM *the largest of 1 has $size bytes*" $why
}

test {no node is left} {
    kill_node n2
    wait_node n2 down
    assert_error "OOM no room for 1000 bytes: no memory segment takes new values: of 2 segments *" \
        {r set k [bytes 1000 1]}
    r set small 1
    assert_equal 1 [r get small]
}

test {a client that leaves in the middle of a value} {
    restart_node n1
    r set k [bytes 30000000 9]
    for {set i 0} {$i < 5} {incr i} {
        set c [client]
        resp::send $c get k
        drop $c
    }
    wait_for "no buffers held" {[info_field inband_buffer_used] == 0}
    assert {[r get k] eq [bytes 30000000 9]}
}
finish
