# Keys, whatever their values: look-ups, walks, removal.
source [file join [file dirname [info script]] harness.tcl]
start_server

# All keys by SCAN with those options.
proc scan_all {args} {
    set cursor 0
    set keys {}
    set turns 0
    while 1 {
        lassign [r scan $cursor {*}$args] cursor found
        lappend keys {*}$found
        if {$cursor == 0} break
        if {[incr turns] > 1000000} {error "SCAN does not end"}
    }
    return [lsort -unique $keys]
}

proc fill {prefix n} {
    set arguments {}
    for {set i 0} {$i < $n} {incr i} {lappend arguments $prefix$i $i}
    r mset {*}$arguments
}

test {DEL UNLINK EXISTS TOUCH TYPE DBSIZE} {
    r flushall
    assert_equal 0 [r dbsize]
    r mset a 1 b 2 c [string repeat c 100000]
    assert_equal 3 [r dbsize]
    assert_equal 4 [r exists a b c nokey a]
    assert_equal 2 [r touch a c nokey]
    assert_equal string [r type c]
    assert_equal none [r type nokey]
    assert_equal 2 [r del a c nokey]
    assert_equal 1 [r unlink b]
    assert_equal 0 [r del a]
    assert_equal 0 [r dbsize]
}

test {RANDOMKEY} {
    r flushall
    assert_equal (nil) [r randomkey]
    fill key: 10
    set seen {}
    # Those behind empty buckets come more often than others.
    for {set i 0} {$i < 50000 && [dict size $seen] < 10} {incr i} {dict set seen [r randomkey] 1}
    assert_equal 10 [dict size $seen]
}

test {KEYS and its patterns} {
    r flushall
    r mset foobar 1 foobaz 2 fooqux 3 other 4 "k\[1\]" 5 "star*" 6 "q\0x" 7
    assert_equal {foobar foobaz fooqux} [lsort [r keys foo*]]
    assert_equal {foobar foobaz} [lsort [r keys fooba?]]
    assert_equal {foobar} [r keys {fooba[q-s]}]
    assert_equal {foobaz} [r keys {fooba[^r]}]
    assert_equal other [r keys other]
    assert_equal "k\[1\]" [lindex [r keys {k\[1\]}] 0]
    assert_equal {star*} [r keys {star\*}]
    assert_equal "q\0x" [r keys q?x]
    assert_equal {} [r keys nothing*]
    assert_equal 7 [llength [r keys *]]
    assert_equal {} [r keys [string repeat *? 50000]]
}

test {a pattern made to take for ever does not} {
    r set [string repeat a 1000] v
    assert_equal {} [r keys [string repeat *a 500]b]
    assert_equal {} [lindex [r scan 0 match [string repeat a* 500]b count 1000] 1]
}

test {SCAN sees every key} {
    r flushall
    fill key: 1000
    assert_equal 1000 [llength [scan_all]]
    assert_equal 1000 [llength [scan_all count 5]]
    assert_equal 1000 [llength [scan_all count 100000]]
    assert_equal 111 [llength [scan_all match key:1*]]
    assert_equal 1000 [llength [scan_all type string]]
    assert_equal {} [scan_all type list]
    assert_equal [lsort [r keys *]] [scan_all]
}

test {SCAN sees the keys that stay, while others come and go} {
    r flushall
    fill stays: 500
    set cursor 0
    set seen {}
    set round 0
    while 1 {
        lassign [r scan $cursor count 10] cursor keys
        foreach k $keys {dict set seen $k 1}
        if {$cursor == 0} break
        incr round
        if {$round % 3 == 0} {fill go:$round: 200}
        if {$round % 3 == 2} {r removematch GLOB go:*}
    }
    for {set i 0} {$i < 500} {incr i} {assert {[dict exists $seen stays:$i]} "stays:$i"}
}

test {SCAN's arguments} {
    assert_error "ERR invalid cursor" {r scan x}
    assert_error "ERR syntax error" {r scan 0 count 0}
    assert_error "ERR value is not an integer or out of range" {r scan 0 count x}
    assert_error "ERR syntax error" {r scan 0 match}
    assert_error "ERR syntax error" {r scan 0 nonsense 1}
    assert_equal 2 [llength [r scan 18446744073709551615]]
}

test {FLUSHALL and FLUSHDB, SYNC and ASYNC} {
    foreach command {{flushall} {flushall sync} {flushall async} {flushdb} {flushdb async}\
            {flushdb SYNC}} {
        fill k 100
        r set big [string repeat x 1000000]
        assert_equal OK [r {*}$command]
        assert_equal 0 [r dbsize]
        assert_equal (nil) [r get big]
        assert_equal {0 {}} [r scan 0 count 1000]
    }
    assert_error "ERR syntax error" {r flushall nonsense}
    assert_error "ERR syntax error" {r flushall sync async}
}

test {OBJECT and MEMORY USAGE} {
    r set a [string repeat x 10000]
    assert_range 0 [r object idletime a] 5
    assert_range 1 [r object refcount a] 2
    assert {[r memory usage a] > 10000}
    assert_equal (nil) [r memory usage nokey]
    assert_equal (nil) [r object idletime nokey]
    assert_match *ENCODING* [r object help]
    r set b 1
    assert_range 10 [r memory usage b] 500
}

test {200,000 keys: filled, walked, removed, beside a client that PINGs} {
    r flushall
    set n 200000
    set other [client]
    set before [info_field total_commands_processed]
    resp::send [r] mset {*}[batch k $n v]
    assert_equal PONG [$other ping]
    assert_equal OK [resp::recv [r]]
    assert_equal $n [r dbsize]
    assert_equal $n [llength [r keys *]]
    assert_equal $n [llength [scan_all count 50000]]
    resp::send [r] del {*}[batch k $n]
    assert_equal PONG [$other ping]
    assert_equal $n [resp::recv [r]]
    assert_equal 0 [r dbsize]
}

finish
