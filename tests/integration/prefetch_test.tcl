# PREFETCH: what will be read soon comes from disks to memory, or to a segment, before it is asked
# for; bounded, behind all else, and counted.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --node-heartbeat 100 --eviction-high-watermark 1

set disk [file join [server dir] disk]
file mkdir $disk
start_node n1 --host-name m1 --segment 8mb --ssd $disk:256mb
start_node n2 --host-name m2 --segment 8mb
r node maintenance n2 on

proc tiers {key} {
    lmap replica [lindex [r getreplicas $key] 4] {lindex $replica 0}
}
proc segments {key} {
    lsort [lmap replica [r replica list $key] {dict get $replica segment}]
}
proc keys {name n {from 0}} {
    set out {}
    for {set i $from} {$i < $from + $n} {incr i} {lappend out $name$i}
    return $out
}
# n objects on the disk alone.
proc far {name n size} {
    kv_all $n --prefer n1.0 load $name $n $size
    wait_for "$n objects of $name on the disk" {
        [llength [lsearch -all -inline [lmap key [keys $::name $::n] {tiers $key}] *ssd]] == $::n
    } [set ::name $name] [set ::n $n]
    r evict ratio 1
    foreach key [keys $name $n] {assert_equal ssd [tiers $key]}
}
proc figures {} {
    lmap name {brought read in_vain unread} {info_field prefetch_$name}
}
proc no_more_waits {} {
    wait_for "what was asked for" {[info_field prefetch_waiting] == 0}
}

test {it comes to memory before anybody has read it} {
    far a: 8 100000
    assert_equal {8 0 1 0} [r prefetch 9 {*}[keys a: 8] none]
    no_more_waits
    foreach key [keys a: 8] {assert_equal {memory ssd} [tiers $key]}
    assert_equal {0 8 0 0} [r prefetch 8 {*}[keys a: 8]]
    assert_equal {17 8 1 0} [lmap name {asked there unknown refused} {info_field prefetch_$name}]
    assert_equal {8 0 0 8} [figures]
    assert_equal 800000 [info_field prefetch_bytes]
    kv_all 8 verify a: 8 100000
    assert_equal {8 8 0 0} [figures]
    assert_match "created=8,done=8,failed=0,*" [info_field tasks_by_prefetch]
    assert_match "created=0,*" [info_field tasks_by_use]
}

test {a value that lies in the books is there} {
    r set small x
    assert_equal {0 1 0 0} [r prefetch 1 small]
}

test {what goes before anybody read it was in vain} {
    r flushall
    r config resetstat
    far b: 3 100000
    assert_equal {3 0 0 0} [r prefetch 3 {*}[keys b: 3]]
    no_more_waits
    assert_equal 3 [r prefixlen 3 {*}[keys b: 3]] "(a look-up is no read)"
    r del b:0
    r evict keys 1 b:1 ratio 1
    assert_equal ssd [tiers b:1]
    assert_equal 3 [lindex [figures] 0]
    assert {[lindex [figures] 2] >= 2 && [lindex [figures] 1] == 0}
}

test {it takes the room of what was next to go, and of nothing else} {
    r flushall
    r config resetstat
    far c: 4 1000000
    kv_all 7 load m: 7 1000000 ;# memory is full
    foreach key [keys m: 6 1] {r pin $key soft 600000}
    assert_equal {4 0 0 0} [r prefetch 4 {*}[keys c: 4]]
    no_more_waits
    set here [llength [lsearch -all -inline [lmap key [keys c: 4] {tiers $key}] memory*]]
    assert {$here >= 1 && $here <= 2} $here
    foreach key [keys m: 6 1] {assert_match memory* [tiers $key]}
    assert_equal "$here 0 0 $here" [figures]
    assert_match "*,failed=[expr {4 - $here}],*" [info_field tasks_by_prefetch]
    r flushall
}

test {with SEGMENT it comes there, though memory elsewhere has it} {
    r config resetstat
    r node maintenance n2 off
    far d: 4 100000
    assert_equal {2 0 0 0} [r prefetch 2 d:0 d:1 segment n1.0]
    no_more_waits
    assert_equal {4 0 0 0} [r prefetch 4 {*}[keys d: 4] segment n2.0]
    no_more_waits
    assert_equal {n1.0 n1.ssd n2.0} [segments d:0]
    assert_equal {n1.ssd n2.0} [segments d:3]
    assert_equal {0 4 0 0} [r prefetch 4 {*}[keys d: 4] segment n2.0]
    assert_equal {6 0 0 6} [figures]
    kv_all 4 verify d: 4 100000
    assert_equal {6 6 0 0} [figures]
}

test {what is wrong is said} {
    assert_error "NOSEGMENT no such segment: 'x'*" {r prefetch 1 d:0 segment x}
    assert_error "NOSEGMENT SEGMENT must be a memory segment*" {r prefetch 1 d:0 segment n1.ssd}
    r node maintenance n2 on
    assert_error "NOSEGMENT SEGMENT must be a memory segment*" {r prefetch 1 d:0 segment n2.0}
    assert_error "ERR wrong number of arguments*" {r prefetch 1}
    assert_error "ERR n must be*" {r prefetch 0 d:0}
    assert_error "ERR unknown option*" {r prefetch 1 d:0 d:1}
    assert_equal {0 0 1 0} [r prefetch 1 ""]
}

test {readers may ask for it; others may not} {
    r acl setuser reader on nopass %R~d:* +@read
    r acl setuser writer on nopass %W~d:* +@all
    set c [client]
    $c auth reader x
    assert_equal {0 1 0 0} [$c prefetch 1 d:0]
    assert_error "NOPERM*" {$c prefetch 1 other}
    $c auth writer x
    assert_error "NOPERM*" {$c prefetch 1 d:0}
    drop $c
}

test {no more than 1024 wait; the rest is refused, and MULTI knows the command} {
    r flushall
    far e: 1200 1000
    kill_node n1 ;# nobody makes the copies
    wait_node n1 down
    assert_equal {0 0 1200 0} [r prefetch 1200 {*}[keys e: 1200]]
    restart_node n1
    r multi
    r prefetch 1200 {*}[keys e: 1200]
    set reply [lindex [r exec] 0]
    assert_equal 1200 [expr [join $reply +]]
    assert {[lindex $reply 0] <= 1024 && [lindex $reply 3] >= 1200 - 1024} $reply
    no_more_waits
    assert_equal [lindex $reply 0] [lindex [figures] end]
}

finish
