# KV events: a reader that took a walk and follows the events knows exactly what is there and where,
# whatever goes on meanwhile; it never misses anything without being told.
source [file join [file dirname [info script]] harness.tcl]

# --- a router's picture ---
#
# ::objects: key -> {size {place ...}}, a place being {tier node segment epoch}; ::down: segments
# that cannot be read, as {segment epoch}. ::epoch and ::seq: how far it has come.

proc same_place {a b} {expr {$a eq $b}}

proc without {places place} {
    set out {}
    foreach p $places {if {![same_place $p $place]} {lappend out $p}}
    return $out
}

proc apply_event {event} {
    lassign $event seq ms kind key size places
    if {$seq <= $::seq} {error "event $seq came after $::seq"}
    set ::seq $seq
    lappend ::kinds $kind
    set place [lindex $places 0]
    switch -- $kind {
        put {dict set ::objects $key [list $size $places]}
        removed - evicted - expired - lost {dict unset ::objects $key}
        replica-added - replica-gone {
            if {![dict exists $::objects $key]} return
            lassign [dict get $::objects $key] size there
            set there [without $there $place]
            if {$kind eq "replica-added"} {lappend there $place}
            dict set ::objects $key [list $size $there]
        }
        flushed {set ::objects {}}
        segment-down {dict set ::down [lrange $place 2 3] 1}
        segment-up - segment-gone {dict unset ::down [lrange $place 2 3]}
        node-up - node-down - node-left {}
        default {error "an event of kind $kind"}
    }
}

# Everything that is there, without the events.
proc look {{c ""}} {
    if {$c eq ""} {set c [r]}
    set cursor 0
    set found {}
    while 1 {
        lassign [$c kvevents walk $cursor count 7] cursor objects
        foreach o $objects {dict set found [lindex $o 0] [lrange $o 1 2]}
        if {$cursor == 0} {return $found}
    }
}

# Notes where the events are, then looks.
proc walk {{c ""}} {
    if {$c eq ""} {set c [r]}
    set info [$c kvevents info]
    set ::epoch [dict get $info epoch]
    set ::seq [dict get $info last]
    set ::down {}
    foreach place [dict get $info down] {dict set ::down [lrange $place 2 3] 1}
    set ::objects [look $c]
    set ::kinds {}
}

# All events up to now.
proc follow {{c ""}} {
    if {$c eq ""} {set c [r]}
    while 1 {
        lassign [$c kvevents read $::epoch $::seq count 100] seq events
        foreach e $events {apply_event $e}
        set ::seq $seq
        if {[llength $events] == 0} return
    }
}

proc readable {key} {
    foreach p [lindex [dict get $::objects $key] 1] {
        if {![dict exists $::down [lrange $p 2 3]]} {return 1}
    }
    return 0
}

proc all_keys {} {
    set cursor 0
    set keys {}
    while 1 {
        lassign [r scan $cursor count 1000] cursor some
        lappend keys {*}$some
        if {$cursor == 0} {return [lsort -unique $keys]}
    }
}

proc sorted {objects} {
    set out {}
    foreach key [lsort [dict keys $objects]] {
        lassign [dict get $objects $key] size places
        lappend out $key $size [lsort $places]
    }
    return $out
}

# The picture is what the server has: keys, sizes, places, and what can be read. Copies may be on
# their way: looks until nothing happened between the first look and the last.
proc exact {} {
    while 1 {
        follow
        set there [look]
        set keys [all_keys]
        if {[dict get [r kvevents info] last] == $::seq} break
    }
    assert_equal [lsort [dict keys $there]] [lsort [dict keys $::objects]] "keys"
    assert {[sorted $there] eq [sorted $::objects]} \
        "places: [lmap {k s p} [sorted $::objects]\
        {if {[list $s $p] eq [lreplace [dict get $there $k] 1 1\
        [lsort [lindex [dict get $there $k] 1]]]} continue; list $k $s $p [dict get $there $k]}]"
    set readable {}
    foreach key [dict keys $::objects] {if {[readable $key]} {lappend readable $key}}
    assert_equal $keys [lsort $readable] "readable"
}

proc kind_count {kind} {llength [lsearch -all -exact $::kinds $kind]}

# Some of what clients do, in one go.
proc disturb {n} {
    set c [r]
    set sent 0
    for {set i 0} {$i < $n} {incr i} {
        set key k[expr {int(rand() * 150)}]
        switch [expr {int(rand() * 12)}] {
            0 - 1 - 2 {resp::send $c set $key [string repeat x [expr {int(rand() * 100)}]]}
            3 - 4 {resp::send $c set $key [string repeat y [expr {int(rand() * 400000)}]]}
            5 {resp::send $c set $key z px [expr {1 + int(rand() * 20)}]}
            6 {resp::send $c del $key}
            7 {resp::send $c append $key [string repeat a [expr {int(rand() * 300)}]]}
            8 {resp::send $c evict KEYS 1 $key}
            9 {resp::send $c getdel $key}
            10 {resp::send $c rename $key k[expr {int(rand() * 150)}]}
            11 {resp::send $c pexpire $key [expr {int(rand() * 30)}]}
        }
        incr sent
    }
    for {set i 0} {$i < $sent} {incr i} {resp::recv $c}
}

# What has a time is gone, by an event.
proc settle {} {
    wait_for "the end of times" {[info_field expires] == 0}
    wait_for "the end of a flush" {[info_field lazyfree_pending_objects] == 0}
}

expr {srand(7)}

# --- one server ---

start_server --pool-size 8mb

test {off: says so} {
    foreach request {{kvevents info} {kvevents read 0123456789abcdef 0} } {
        assert_error "ERR KV events are off: set kv-events-size" {r {*}$request}
    }
    assert_equal off [info_field kv_events]
    assert_equal {0 {}} [r kvevents walk 0]
    r set before 1
    r config set kv-events-size 4mb
    assert_equal on [info_field kv_events]
    assert_equal {epoch first last bytes size waiting down} [dict keys [r kvevents info]]
    assert_equal {1 0 4194304 0 {}} [lmap f {first last size waiting down} \
        {dict get [r kvevents info] $f}]
    walk
    assert_equal {before {1 {{books {} {} 0}}}} $::objects
    r flushall
}

test {each event says what, when, how large and where} {
    walk
    set began [clock milliseconds]
    r set small 12345
    r set large [string repeat x 5000]
    r set large [string repeat x 6000]
    r del small nothing
    r evict KEYS 1 large
    r set t 1 px 1
    settle
    r flushall
    set token [lindex [r putstart p 70000] 0]
    r putend p $token -1
    set events [lindex [r kvevents read $::epoch $::seq] 1]
    set place [list memory {} local [dict get [r segment info local] epoch]]
    set expected [list [list put small 5 {{books {} {} 0}}] [list put large 5000 [list $place]] \
        [list put large 6000 [list $place]] \
        {removed small 5 {}} {evicted large 6000 {}} {put t 1 {{books {} {} 0}}} {expired t 1 {}} \
        {flushed (nil) 0 {}} \
        [list put p 70000 [list $place]]]
    assert_equal $expected [lmap e $events {lrange $e 2 end}]
    foreach e $events {
        assert_equal [incr ::seq] [lindex $e 0]
        assert_range [expr {$began - 2}] [lindex $e 1] [expr {[clock milliseconds] + 2}]
    }
    assert_equal [list $::seq {}] [r kvevents read $::epoch $::seq]
    r flushall
}

test {a walk and the events from before it are the state, while things go on} {
    disturb 500
    walk
    disturb 300
    # A walk in steps between which things happen.
    for {set round 0} {$round < 4} {incr round} {
        set info [r kvevents info]
        set ::epoch [dict get $info epoch]
        set ::seq [dict get $info last]
        set ::objects {}
        set ::kinds {}
        set cursor 0
        while 1 {
            lassign [r kvevents walk $cursor count 5] cursor some
            foreach o $some {dict set ::objects [lindex $o 0] [lrange $o 1 2]}
            if {$cursor == 0} break
            disturb 40
            if {rand() < 0.05} {r flushall}
        }
        disturb 100
        settle
        exact
        foreach kind {put removed expired evicted} {assert {[kind_count $kind] > 0} "($kind)"}
    }
    r flushall
    settle
    exact
}

test {others write at the same time, from other connections} {
    set run [kv_start --fill --replace run w: 60 100-300000]
    for {set round 0} {$round < 3} {incr round} {
        walk
        disturb 200
        follow
    }
    set answer [kv_stop $run]
    assert_equal 0 [dict get $answer wrong]
    settle
    exact
    r flushall
}

test {COUNT, MATCH, pages} {
    walk
    for {set i 0} {$i < 50} {incr i} {r mset a:$i 1 b:$i 2}
    lassign [r kvevents read $::epoch $::seq count 7] upto events
    assert_equal [list [expr {$::seq + 7}] 7] [list $upto [llength $events]]
    lassign [r kvevents read $::epoch $::seq match b:] upto events
    assert_equal [list [expr {$::seq + 100}] 50] [list $upto [llength $events]]
    assert_equal b:49 [lindex $events end 3]
    lassign [r kvevents read $::epoch $::seq match a:1 count 3] upto events
    assert_equal {a:1 a:10 a:11} [lmap e $events {lindex $e 3}]
    r flushall
    assert_equal flushed [lindex [r kvevents read $::epoch $upto match nothing] 1 0 2]
    r set a:1 1
    r set b:1 1
    set seen {}
    set cursor 0
    while 1 {
        lassign [r kvevents walk $cursor match b:] cursor some
        lappend seen {*}[lmap o $some {lindex $o 0}]
        if {$cursor == 0} break
    }
    assert_equal b:1 $seen
    r flushall
}

test {arguments that make no sense} {
    set e [dict get [r kvevents info] epoch]
    set last [dict get [r kvevents info] last]
    foreach {request pattern} {
        {read $e x} {*seq must be*} {read $e -1} {*seq must be*} {read $e [expr {$last + 1}]} \
            {ERR seq * was not given out yet*}
        {read 0123456789abcdef 0} {EPOCH the epoch is *Take a walk*} {read {} 0} {EPOCH *} \
            {read $e$e 0} {EPOCH *}
        {read $e 0 count 0} {*COUNT must be*} {read $e 0 count} {*COUNT needs a value*} \
            {read $e 0 match} {*MATCH needs a value*}
        {read $e 0 block -1} {*BLOCK must be*} {read $e 0 sometimes} {*unknown option*} {walk x} \
            {*invalid cursor*}
        {walk 0 block 10} {*unknown option*} {read $e} {*wrong number*} {walk} {*wrong number*}
    } {assert_error $pattern [list r kvevents {*}[subst -nobackslashes $request]]}
}

# --- waiting ---

test {BLOCK waits for the next event, and no longer than it says} {
    walk
    assert_equal [list $::seq {}] [r kvevents read $::epoch $::seq block 1]
    set c [client]
    resp::send $c kvevents read $::epoch $::seq block 0
    wait_for "the reader" {[info_field kv_events_waiting] == 1 && [info_field blocked_clients] == 1}
    r set k 1
    assert_equal {put k} [lrange [lindex [resp::recv $c] 1 0] 2 3]
    # What it does not want does not wake it, but is behind it then.
    resp::send $c kvevents read $::epoch $::seq match x block 60000
    r mset a 1 b 2 c 3
    wait_for "the reader" {[info_field kv_events_waiting] == 1}
    r set x 1
    lassign [resp::recv $c] upto events
    assert_equal [list [dict get [r kvevents info] last] x 1] [list $upto [lindex $events 0 3] \
        [llength $events]]
    drop $c
}

test {many readers, each with its own place; those who go away in the middle do no harm} {
    walk
    set readers {}
    for {set i 0} {$i < 60} {incr i} {
        set c [client]
        resp::send $c kvevents read $::epoch $::seq block 60000
        lappend readers $c
    }
    wait_for "them all" {[info_field kv_events_waiting] == 60}
    foreach c [lrange $readers 0 19] {drop $c}
    wait_for "the others" {[info_field kv_events_waiting] == 40}
    r set k [string repeat x 1000]
    foreach c [lrange $readers 20 end] {assert_equal k [lindex [resp::recv $c] 1 0 3]}
    foreach c [lrange $readers 20 end] {drop $c}
    assert_equal 0 [info_field kv_events_waiting]
}

test {CLIENT UNBLOCK; and in MULTI nobody waits} {
    walk
    set c [client]
    set id [$c client id]
    resp::send $c kvevents read $::epoch $::seq block 60000
    wait_for "the reader" {[info_field kv_events_waiting] == 1}
    assert_equal 1 [r client unblock $id]
    assert_equal [list $::seq {}] [resp::recv $c]
    resp::send $c kvevents read $::epoch $::seq block 0
    wait_for "the reader" {[info_field kv_events_waiting] == 1}
    assert_equal 1 [r client unblock $id error]
    assert_match {*UNBLOCKED*} [resp::recv $c]
    $c multi
    $c set k 2
    $c kvevents read $::epoch $::seq block 60000
    $c kvevents read $::epoch [expr {$::seq + 1}] block 60000
    lassign [$c exec] - first second
    assert_equal put [lindex $first 1 0 2]
    assert_equal [list [expr {$::seq + 1}] {}] $second
    drop $c
}

test {off and on again: another history, and whoever waits is told} {
    walk
    set c [client]
    resp::send $c kvevents read $::epoch $::seq block 0
    wait_for "the reader" {[info_field kv_events_waiting] == 1}
    r config set kv-events-size 0
    assert_match {*KV events are off*} [resp::recv $c]
    r set while-off 1
    r config set kv-events-size 1mb
    assert_error "EPOCH *" {r kvevents read $::epoch $::seq}
    walk
    r del while-off
    exact
    assert_equal {removed} $::kinds
    drop $c
}

# --- falling behind ---

test {who falls behind the ring is told, and what is the oldest; a walk mends it} {
    r config set kv-events-size 131072
    walk
    set c [client]
    set old $::seq
    while {[info_field kv_events_dropped] == 0 || [dict get [r kvevents info] first] <= $old + 1} {
        disturb 200
    }
    set info [r kvevents info]
    assert_error "GAP the events behind seq $old are gone, the oldest is [dict get $info\
        first]. Take a walk*" {r kvevents read $::epoch $old}
    assert {[dict get $info bytes] < 131072 + 10000}
    # The oldest that is left can be read still.
    set first [dict get $info first]
    assert_equal $first [lindex [r kvevents read $::epoch [expr {$first - 1}]] 1 0 0]
    assert_error "GAP *" {r kvevents read $::epoch [expr {$first - 2}]}
    settle
    walk
    disturb 50
    settle
    exact
    # A ring that grows keeps what is there, one that shrinks the newest.
    r config set kv-events-size 4mb
    assert_equal $first [dict get [r kvevents info] first]
    while {[dict get [r kvevents info] bytes] < 300000} {disturb 500}
    settle
    exact
    r config set kv-events-size 1
    assert {[dict get [r kvevents info] first] > $first}
    settle
    exact
    r config set kv-events-size 4mb
    drop $c
}

# --- rights ---

test {a user sees the events and the keys that it may read, and no others} {
    r flushall
    r acl setuser some on nopass ~a:* %W~w:* %R~r:* +kvevents +ping
    r acl setuser parts on nopass -@all (+kvevents ~b:*) (+get ~c:*)
    r acl setuser none on nopass allkeys +get
    r acl setuser category on nopass allkeys +@read
    walk
    r mset a:1 1 b:1 1 w:1 1 r:1 1 c:1 1
    r del a:1 b:1
    foreach {user keys there} {some {a:1 r:1 a:1} r:1 parts {b:1 b:1} {} category\
            {a:1 b:1 w:1 r:1 c:1 a:1 b:1} {c:1 r:1 w:1}} {
        set c [client]
        $c auth $user x
        lassign [$c kvevents read $::epoch $::seq] upto events
        assert_equal $keys [lmap e $events {lindex $e 3}] $user
        assert_equal [expr {$::seq + 7}] $upto
        assert_equal $there [lsort [dict keys [look $c]]] $user
        drop $c
    }
    set c [client]
    $c auth none x
    foreach request {{read x 0} {walk 0} info} {assert_error "NOPERM*" {$c kvevents {*}$request}}
    drop $c
    # Its rights are looked at when something happens, not when it began to wait.
    set c [client]
    $c auth some x
    resp::send $c kvevents read $::epoch $upto block 60000
    wait_for "the reader" {[info_field kv_events_waiting] == 1}
    r acl setuser some resetkeys ~z:*
    r set a:2 1
    r set z:1 1
    assert_equal z:1 [lindex [resp::recv $c] 1 0 3]
    drop $c
    r acl deluser some parts none category
    r flushall
}

# --- another life, another master ---

test {a start is another epoch, whatever was kept} {
    stop_server
    start_server --pool-size 8mb --kv-events-size 1mb --appendonly yes
    r mset a 1 b 2
    walk
    restart_server
    wait_for "the books" {[r dbsize] == 2}
    assert_error "EPOCH *" {r kvevents read $::epoch $::seq}
    walk
    assert_equal {a b} [lsort [dict keys $::objects]]
    r set c 3
    exact
    stop_server
}

test {a replica has no events; when it leads it begins another epoch, and a walk there is right} {
    start_server --pool-size 0 --kv-events-size 1mb
    set old [server]
    start_server --pool-size 0 --kv-events-size 1mb
    set new [server]
    r replicaof 127.0.0.1 [dict get $old port]
    wait_for "the link" {[info_field master_link_status] eq "up"}
    assert_error "READONLY *" {r kvevents info}
    set c [resp::connect 127.0.0.1 [dict get $old port]]
    for {set i 0} {$i < 100} {incr i} {$c set k$i $i}
    walk $c
    set before $::epoch
    set place [list $::epoch $::seq]
    $c set k0 again
    $c del k1
    wait_for "all of it" {[r exists k1] == 0 && [r exists k99] == 1}
    # The old master becomes a replica itself: whoever waits there is cut off.
    resp::send $c kvevents read {*}[list $::epoch [expr {$::seq + 2}]] block 0
    r replicaof no one
    wait_for "it leads" {[info_field role] eq "master"}
    set d [resp::connect 127.0.0.1 [dict get $old port]]
    $d replicaof 127.0.0.1 [dict get $new port]
    assert_error * {error [resp::recv $c]}
    assert_error "EPOCH *" {r kvevents read {*}$place}
    walk
    assert {$::epoch ne $before}
    r set k2 x
    r del k3
    exact
    assert_equal 98 [dict size $::objects]
    resp::close $c
    resp::close $d
    stop_server
    stop_server
}

# --- nodes ---

test {nodes: where every replica is, while nodes die, come back, are drained and leave} {
    start_server --pool-size 0 --node-heartbeat 100 --kv-events-size 4mb
    start_node n1 --host-name m1 --segment 12mb --ssd [temp_dir]/ssd:64mb
    start_node n2 --host-name m2 --segment 12mb
    walk
    kv --replicas 2 load two: 20 1000-100000
    kv load one: 20 1000-100000
    wait_for "copies on the disk" {[info_field far_replicas] >= 20}
    exact
    assert {[kind_count replica-added] >= 20}
    disturb 150
    set ::kinds {}
    kill_node n2
    wait_node n2 down
    disturb 50
    settle
    exact
    assert {"segment-down" in $::kinds && "node-down" in $::kinds}
    # Whoever comes now must know what is away as well.
    walk
    exact
    restart_node n2
    wait_node n2 up
    disturb 50
    settle
    exact
    assert {"node-up" in $::kinds}
    r evict RATIO 0.5
    exact
    start_node n3 --host-name m3 --segment 24mb
    r node drain n2
    wait_for "n2 to be empty" {[node_state n2] in {left {}}}
    settle
    exact
    assert {"segment-gone" in $::kinds && "node-left" in $::kinds}
    kill_node n3
    wait_node n3 down
    r node leave n3
    wait_node n3 ""
    wait_for "the end of its segment" \
        {"segment-gone" in [lrange $::kinds [set ::from [llength $::kinds]] end] || \
        [follow; expr {[lsearch -start $::from $::kinds segment-gone] >= 0}]}
    exact
    stop_server
}

test {another master, with nodes: what is away at first comes back by events} {
    start_server --pool-size 0 --kv-events-size 1mb --node-heartbeat 100
    set old [server]
    start_node n1 --host-name m1 --segment 8mb,path=[temp_dir]/n1.pool
    kv_all 20 load v: 20 1000-50000
    r set small 1
    set o [resp::connect 127.0.0.1 [dict get $old port]]
    start_server --pool-size 0 --kv-events-size 1mb --node-heartbeat 100 --node-timeout 1s
    r replicaof 127.0.0.1 [dict get $old port]
    wait_for "the link" {[info_field master_link_status] eq "up" && [info_field objects] == 21}
    walk $o
    set before [list $::epoch $::seq]
    kill_node n1
    send_signal KILL [dict get $old pid]
    reap_process [dict get $old pid]
    set ::servers [lreplace $::servers end-1 end-1]
    resp::close $o
    r replicaof no one
    wait_for "it leads, and does not wait for nodes any more" {[info_field role] eq "master" && \
        ![catch {r exists v:1}]}
    assert_error "EPOCH *" {r kvevents read {*}$before}
    walk
    assert_equal {21 n1.0 small} [list [dict size $::objects] [lindex [dict keys $::down] 0 0] \
        [all_keys]]
    exact
    restart_node n1
    exact
    assert {"segment-up" in $::kinds && "node-up" in $::kinds}
    assert_equal 21 [llength [all_keys]]
    kv_all 20 verify v: 20 1000-50000
    stop_server
}

finish
