# Several masters: what they tell each other when it is late, twice there, wrong or endless.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] masters.tcl]

proc leads {name shard leader} {
    return [expr {![catch {row $name $shard} row] && \
        [string match "[at $leader]*" [lindex $row 1]]}]
}
proc wait_leads {name shard leader} {
    set ::leading [list $name $shard $leader]
    wait_for "$name to know that $leader leads shard $shard" {[leads {*}$::leading]}
}
proc serves {name} {return [string match *cluster_state:ok* [ask $name cluster info]]}
proc wait_serves {name} {
    set ::served $name
    wait_for "$name to serve" {![catch {serves $::served} ok] && $ok}
}

foreach name {a b} {up $name --appendonly yes --appendfsync always}
foreach name {a2 a3} {up $name; follow $name a}
# bar is of slot 5061, of a
set rows {{a 1 {a a2 a3} 0-9999} {b 1 b 10000-16383}}
spread_map [slot_map 1 $rows] a b
same_books a a2 a3

test {two that were promoted from one master epoch: the later one is known everywhere} {
    down a
    ask a2 replicaof no one
    wait_leads b a a2
    down a2
    ask a3 replicaof no one
    wait_leads a3 a a3
    wait_leads b a a3
    assert_equal [row a3 a] [row b a]
    assert_error "MOVED 5061 [at a3]" {ask b get bar}
}

test {the old master returns, and the map has changed meanwhile: it serves no key} {
    ask a3 set bar 2
    set later [string map [list "epoch 1\n" "epoch 2\n"] [ask b cluster map]]
    assert_equal OK [ask b cluster setmap b $later]
    assert_equal OK [ask a3 cluster setmap a $later]
    foreach life {first second} {
        back a --cluster-shard [list a [at b]]
        wait_for "a to have asked" \
            {[catch {ask a get bar} got] == 0 || ![string match *CLUSTERDOWN* $got]}
        assert_error "MOVED 5061 [at a3]" {ask a get bar}
        assert_match "*epoch 2\n*" [ask a cluster map]
        down a
    }
}

test {ANNOUNCE: no epoch above which nothing could be told any more, no map too long to be read} {
    set map [ask b cluster map]
    assert_error "ERR master epoch 9223372036854775807 is too far above *" \
        {ask b cluster announce a 9223372036854775807 h:1}
    assert_equal $map [ask b cluster map]
    for {set i 0; set rows {}} {$i < 64} {incr i} {
        lappend rows [list [string repeat s 61][format %02d $i] 1 {} -]
    }
    up d
    set d [lindex $rows 0 0]
    assert_equal OK [ask d cluster setmap $d [slot_map 1 $rows]]
    for {set i 0} {$i < 8} {incr i} {lappend hosts [string repeat $i 250]:1}
    foreach row $rows {set map [ask d cluster announce [lindex $row 0] 2 [join $hosts ,]]}
    assert_equal $map [ask d cluster map]
    assert_range 60000 [string length $map] [expr {63 << 10}]
    assert {[log_has d "the map is longer than"]}
    down d
}

# A server that accepts, and says a word now and then, to no end; or nothing.
proc slow_master {word} {
    set ::slow_word $word
    set ::slow_fds {}
    set ::slow_socket [socket -server slow_accept -myaddr 127.0.0.1 0]
    return 127.0.0.1:[lindex [fconfigure $::slow_socket -sockname] 2]
}
proc slow_accept {fd host port} {
    fconfigure $fd -blocking 0 -translation binary
    lappend ::slow_fds $fd
    slow_speak $fd
}
proc slow_speak {fd} {
    if {[catch {puts -nonewline $fd $::slow_word; flush $fd}]} return
    after 100 [list slow_speak $fd]
}
proc slow_end {} {
    close $::slow_socket
    foreach fd $::slow_fds {catch {close $fd}}
}

test {one whose answer never ends, and a shard without a server: others are asked, and it serves} {
    set slow [slow_master "+"]
    set rows {{a 5 {} 0-9999} {b 5 b 10000-15999} {d 1 d 16000-16383}}
    up d
    spread_map [slot_map 3 $rows] b
    down d
    back d --repl-timeout 2 --cluster-shard [list d $slow [at b]]
    wait_events "d to serve" {![catch {serves d} ok] && $ok}
    assert {[log_has d "$slow, was asked in vain: its answer does not come"]}
    slow_end
    down d
}

test {none has told the map: the log says what to do} {
    up d --cluster-shard {d 127.0.0.1:1}
    wait_for "d to say so" {[log_has d "tarn-cluster create"]}
    assert {[log_has d "127.0.0.1:1, was asked in vain: Connection refused"]}
    spread_map [slot_map 3 {{b 5 b 10000-15999} {d 1 d 16000-16383}}] d
    assert_error "MOVED 12182 [at b]" {ask d get foo}
    down d
}

test {its own address among those of the others: what it knows itself is no answer} {
    foreach name {d e} {up $name --appendonly yes --appendfsync always}
    spread_map [slot_map 1 {{d 1 d 0-9999} {e 1 e 10000-16383}}] d e
    down d
    down e
    back d --cluster-shard [list d [at d] "localhost:[port d]" [at e]]
    wait_for "d to ask in vain" {[log_has d "No other master has told"]}
    assert_error CLUSTERDOWN* {ask d get bar}
    back e
    wait_serves d
    down d
    down e
}

test {the map is taken away while another one is asked} {
    set slow [slow_master ""]
    up d
    set map "tarn-slots 1\nepoch 1\nshard a 1 $slow 0\nshard d 1 [at d] 1\n"
    for {set i 0} {$i < 2} {incr i} {
        assert_equal OK [ask d cluster setmap d $map]
        set ::slow_fds {}
        wait_events "d to ask" {[llength $::slow_fds] > 0}
        assert_equal OK [ask d cluster reset force]
        foreach fd $::slow_fds {close $fd}
        assert_equal PONG [ask d ping]
    }
    slow_end
    down d
}

test {an address that nobody could read is not told} {
    up d
    up d2 --replica-announce-ip "no host"
    follow d2 d
    set rows {{b 6 b 10000-16383} {d 1 {d d2} 0-9999}}
    spread_map [slot_map 4 $rows] b d
    same_books d d2
    down d
    ask d2 replicaof no one
    wait_for "d2 to say so" {[log_has d2 "no host:[port d2] is no address"]}
    assert_match "*shard d 1 *" [ask d2 cluster map]
    again d2
    assert_equal PONG [ask d2 ping]
}

finish
