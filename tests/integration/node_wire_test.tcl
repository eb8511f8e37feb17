# The commands between nodes and master, spoken by hand: what is answered, what is refused and with
# which words. Real nodes are in nodes_test.tcl.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --node-heartbeat 100 --node-timeout 60s --ssd-offload all --max-lease 2s

set i1 [string repeat 1 32]
set i2 [string repeat 2 32]
set content [string repeat c 32]

# A pretended node on a connection of its own: its command; $c is the connection.
proc join {c name instance machine args} {$c node join $name $instance MACHINE $machine {*}$args}
proc mount {c name instance segment tier size {content cccccccccccccccccccccccccccccccc}} {
    return [$c segment mount $name $instance $segment TIER $tier SIZE $size CONTENT $content \
        ENDPOINTS 1 tcp://*:7777]
}
# The next item of work of a kind; others on the way are an error.
proc work {c name instance kind} {
    foreach item [lindex [$c node heartbeat $name $instance WAIT 5000] 1] {
        assert_equal $kind [lindex $item 0] "(work of $name)"
        return $item
    }
    error "no work for $name"
}
proc put {key size args} {
    set a [r putstart $key $size {*}$args]
    r putend $key [lindex $a 0] 7
    return $a
}
proc where {key} {
    set segments {}
    foreach replica [r replica list $key] {
        if {[dict get $replica state] eq "complete"} {lappend segments [dict get $replica segment]}
    }
    return $segments
}

test {without a memory segment there is no space, and the error says what to do} {
    assert_error "NOSPACE no room for 1000 bytes: no node is up yet*tarn-node*" {r putstart k 1000}
    assert_equal OK [r set small in-the-books]
}

set c1 [client]
set c2 [client]

test {NODE JOIN answers what a node needs} {
    set a [join $c1 n1 $i1 m1 RACK r1 VERSION 0.1]
    assert_equal {node-id master-epoch grant-key clock heartbeat node-timeout max-lease\
        cluster-id} [dict keys $a]
    assert_equal 16 [string length [dict get $a grant-key]]
    assert_equal 100 [dict get $a heartbeat]
    assert_equal 60000 [dict get $a node-timeout]
    assert_equal 2000 [dict get $a max-lease]
    assert_match {[0-9a-f][0-9a-f]*} [dict get $a cluster-id]
    assert_equal tarn-[dict get $a cluster-id] [info_field pool_id]
    assert_equal joining [dict get [r node info n1] state]
}

test {arguments that make no sense are refused by name} {
    foreach {command said} {
        {node join n1 123 MACHINE m} "ERR instance must be 32 hex digits*"
        {node join {a b} 11111111111111111111111111111111 MACHINE m} \
            "ERR a node's name must be 1 to 48 of*"
        {node join local 11111111111111111111111111111111 MACHINE m} "ERR the name local*"
        {node join n9 11111111111111111111111111111111 MACHINE {a b}} "ERR MACHINE must be*"
        {node join n9 11111111111111111111111111111111 MACHINE m RACK} "ERR RACK needs a value"
        {node join n9 11111111111111111111111111111111 MACHINE m COLOUR red} \
            "ERR unknown option 'COLOUR'"
        {node heartbeat n9 11111111111111111111111111111111} "STALE *NODE JOIN"
        {node heartbeat n1 22222222222222222222222222222222} "STALE *NODE JOIN"
        {node heartbeat n1 11111111111111111111111111111111 WAIT x} "ERR WAIT must be*"
        {node heartbeat n1 11111111111111111111111111111111 STATS 2 a 1} \
            "ERR STATS is 2, but fewer*"
        {node heartbeat n1 11111111111111111111111111111111 STATS 1 {A b} 1} \
            "ERR STATS: field 1 must be*"
        {node heartbeat n1 11111111111111111111111111111111 STATS 129} \
            "ERR STATS must be a number from 0 to 128"
        {node fenced n1 11111111111111111111111111111111 x} "ERR session must be*"
        {node done n1 11111111111111111111111111111111 2 1 0 0 -1} \
            "ERR n is 2: 8 arguments must follow, and 4 do"
        {node evicted n1 11111111111111111111111111111111 77 1 k 1} \
            "NOSEGMENT this is not an ssd or file segment*"
        {node offer n1 11111111111111111111111111111111 77 1 k 1 1 -1 0 {}} \
            "NOSEGMENT this is not an ssd or file segment*"
        {node info n9} "ERR no such node 'n9'*"
        {node drain n9} "ERR no such node 'n9'*"
        {node drain n1 NOW} "ERR unknown option 'NOW'"
        {node maintenance n1 maybe} "ERR MAINTENANCE must be ON or OFF"
        {segment mount n1 11111111111111111111111111111111 s TIER tape SIZE 4096 CONTENT 1} \
            "ERR TIER must be memory, ssd or file"
        {segment mount n1 11111111111111111111111111111111 s TIER memory SIZE 1 CONTENT 1} \
            "ERR SIZE must be*"
        {segment mount n1 11111111111111111111111111111111 s TIER memory SIZE 4096 CONTENT 1} \
            "ERR CONTENT must be 32 hex digits*"
        {segment mount n1 11111111111111111111111111111111 s TIER memory SIZE 4096 HUGE yes} \
            "ERR SEGMENT MOUNT needs TIER, SIZE and CONTENT"
        {segment mount n1 11111111111111111111111111111111 s TIER memory SIZE 4096 CONTENT\
            cccccccccccccccccccccccccccccccc ENDPOINTS 2 tcp://h:1}
            "ERR ENDPOINTS is 2, but fewer than 2 arguments follow"
        {segment mount n1 11111111111111111111111111111111 s TIER memory SIZE 4096 CONTENT\
            cccccccccccccccccccccccccccccccc ENDPOINTS 1 nonsense}
            "ERR ENDPOINTS must be*"
        {segment mount n1 11111111111111111111111111111111 s TIER file SIZE 4096 CONTENT\
            cccccccccccccccccccccccccccccccc} "ERR DIRECTORY belongs to*"
        {segment mount n1 11111111111111111111111111111111 a/b TIER memory SIZE 4096 CONTENT\
            cccccccccccccccccccccccccccccccc} "ERR a segment's name*"
        {segment unmount nowhere} "NOSEGMENT *"
        {segment drain nowhere} "NOSEGMENT *"
        {replica copy missing} "ERR no such key"
        {replica copy small} "ERR this cannot be copied*"
        {replica move small TO x} "ERR REPLICA MOVE needs FROM"
        {replica move small} "ERR wrong number of arguments*"
        {replica tasks STATE asleep} "ERR STATE must be*"
        {replica tasks COUNT 0} "ERR COUNT must be*"
        {replica cancel x} "ERR task id must be*"
    } {
        assert_error $said [list r {*}$command]
    }
    assert_equal 1 [info_field nodes]
}

test {segments are used once the node is up; others on the way are an error of the caller} {
    set m [mount $c1 n1 $i1 n1.0 memory 1048576]
    assert_equal 0 [dict get $m kept]
    assert_equal down [segment_field n1.0 state]
    assert_error "NOSPACE *" {r putstart k 1000}
    assert_equal OK [$c1 node up n1 $i1]
    assert_equal up [segment_field n1.0 state]
    assert_equal {tcp://127.0.0.1:7777} [segment_field n1.0 endpoints]
    assert_equal 40 [string length [segment_field n1.0 attach_read]]
    assert_equal $::content [segment_field n1.0 content]
    set reply [put k 1000]
    assert_equal 2 [llength $reply]
    assert_equal n1.0 [where k]
    assert_equal 1 [dict get [mount $c1 n1 $i1 n1.0 memory 1048576] kept]
    assert_error "BUSY another node has a segment of this name" {
        join $c2 n2 $i2 m2
        mount $c2 n2 $i2 n1.0 memory 1048576
    }
    mount $c2 n2 $i2 n2.0 memory 1048576
    assert_equal OK [$c2 node up n2 $i2]
}

test {a name is taken while its node lives} {
    set c [client]
    assert_error "BUSY a living node has this name*" {join $c n1 $i2 m1}
    drop $c
}

test {PUTSTART tells of replicas that cannot be made} {
    set a [r putstart two 1000 REPLICAS 2]
    assert_equal 2 [llength $a]
    r putrevoke two [lindex $a 0]
    set a [r putstart three 1000 REPLICAS 3]
    assert_equal 1 [lindex $a 2]
    assert_equal 2 [llength [lindex $a 1]]
    r putrevoke three [lindex $a 0]
}

test {GETREPLICAS puts the client's machine first, then its rack} {
    put near 1000 REPLICAS 2
    foreach {machine segment} {m1 n1.0 m2 n2.0} {
        set c [client]
        $c client setinfo tarn-host $machine
        set first [lindex [$c getreplicas near LEASE 1000] 4 0 1 0 0]
        assert_equal $first [segment_field $segment id] "(on $machine)"
        drop $c
    }
    set c [client]
    $c client setinfo tarn-rack r1
    for {set i 0} {$i < 10} {incr i} {
        assert_equal [segment_field n1.0 id] [lindex [$c getreplicas near] 4 0 1 0 0]
    }
    assert_error "ERR tarn-rack *" {$c client setinfo tarn-rack "a b"}
    drop $c
    # A writer that says where it is writes there.
    set c [client]
    $c client setinfo tarn-host m2
    for {set i 0} {$i < 10} {incr i} {
        set a [$c putstart mine$i 1000]
        $c putend mine$i [lindex $a 0] 7
        assert_equal n2.0 [where mine$i]
    }
    drop $c
}

test {REPLICA COPY: the node is asked, the task is listed, the replica is there} {
    put a 10000 PREFER n1.0
    set task [r replica copy a]
    set item [work $c2 n2 $i2 copy]
    assert_equal [list $task a [lindex [r getreplicas a] 0] 10000 [segment_field n2.0 id]] \
        [lrange $item 1 5]
    assert_equal 10000 [lindex $item 6 0 1]
    set shown [lindex [r replica tasks STATE sent] 0]
    foreach {field value} [list id $task kind copy reason user key a from {} to n2.0 node n2 state \
            sent tries 1 error {} bytes 10000] {
        assert_equal $value [dict get $shown $field] "($field)"
    }
    assert_equal n1.0 [where a]
    assert_equal {1 0} [$c2 node done n2 $i2 2 $task 0 0 -1 9999 0 0 -1]
    assert_equal {n1.0 n2.0} [where a]
    assert_equal done [dict get [lindex [r replica tasks STATE done] 0] state]
    assert_error "ERR TO has a replica*" {r replica copy a TO n2.0}
}

test {REPLICA DROP, REPLICA MOVE} {
    assert_equal OK [r replica drop a FROM n1.0]
    assert_equal n2.0 [where a]
    assert_error "BUSY this is the last replica*" {r replica drop a FROM n2.0}
    assert_error "ERR FROM has no replica*" {r replica drop a FROM n1.0}
    assert_error "ERR FROM has no replica*" {r replica move a FROM n1.0}
    set task [r replica move a FROM n2.0 TO n1.0]
    work $c1 n1 $i1 copy
    assert_equal 1 [$c1 node done n1 $i1 1 $task 0 0 -1]
    assert_equal n1.0 [where a]
}

test {REPLICA CANCEL} {
    set task [r replica copy a]
    work $c2 n2 $i2 copy
    assert_equal 1 [r replica cancel $task]
    assert_equal [list cancel $task] [work $c2 n2 $i2 cancel]
    assert_equal 0 [$c2 node done n2 $i2 1 $task -25 0 -1]
    assert_equal 0 [r replica cancel $task]
    assert_equal canceled [dict get [lindex [r replica tasks] 0] state]
    assert_equal n1.0 [where a]
}

test {a disk: stored, let go, dropped, offered} {
    mount $c1 n1 $i1 n1.ssd ssd 1000000000 [string repeat d 32]
    set ssd [segment_field n1.ssd id]
    put d 5000 PREFER n1.0
    set item [work $c1 n1 $i1 store]
    lassign $item - task key version size crc crcs segment epoch extents far
    assert_equal [list d 5000 7 (nil) $ssd [segment_field n1.0 id] [segment_field n1.0 epoch]] \
        [list $key $size $crc $crcs $far $segment $epoch]
    assert_equal 5000 [lindex $extents 0 1]
    assert_equal 1 [$c1 node done n1 $i1 1 $task 0 8192 -1]
    assert_equal {n1.0 n1.ssd} [where d]
    r replica drop d FROM n1.0
    set reply [r getreplicas d LEASE 1000]
    assert_equal ssd [lindex $reply 4 0 0]
    assert_equal [list $ssd 8192 5000] [list [lindex $reply 4 0 1 0 0] [lindex $reply 4 0 1 0 2] \
        [lindex $reply 4 0 1 0 3]]
    assert_equal 40 [string length [lindex $reply 4 0 1 0 4]]
    # Its second use brings it back.
    r getreplicas d LEASE 1000
    set item [work $c1 n1 $i1 copy]
    assert_equal d [lindex $item 2]
    $c1 node done n1 $i1 1 [lindex $item 1] -7 0 -1
    assert_equal 1 [$c1 node evicted n1 $i1 $ssd 2 d $version nobody 1]
    assert_equal 0 [r exists d]
    assert_equal {1 0} [lmap v [$c1 node offer n1 $i1 $ssd 2 old 5 1000 9 4096 {} {} 5 1000 9 4096 \
        {}] {expr {$v > 0}}]
    assert_equal 1 [r exists old]
    set version [lindex [r getreplicas old] 0]
    r del old
    assert_equal [list drop $ssd 1 $version 4096] [work $c1 n1 $i1 drop]
}

test {look-ups of nodes are no uses} {
    put quiet 5000 PREFER n1.0
    set task [lindex [work $c1 n1 $i1 store] 1]
    $c1 node done n1 $i1 1 $task 0 16384 -1
    r replica drop quiet FROM n1.0
    set hits [info_field hits]
    foreach option {{tarn-node n2} {}} {
        set c [client]
        if {$option ne ""} {$c client setinfo {*}$option} else {$c client no-touch on}
        for {set i 0} {$i < 5} {incr i} {$c getreplicas quiet LEASE 1000}
        drop $c
    }
    assert_equal $hits [info_field hits]
    assert_equal {} [lindex [$c1 node heartbeat n1 $i1 WAIT 0] 1]
    r del quiet
    work $c1 n1 $i1 drop
}

test {a file tier: every client reads the file by itself} {
    assert_error "ERR DIRECTORY must be an absolute path*" {
        $c1 segment mount n1 $i1 n1.file TIER file SIZE 1000000 CONTENT $content DIRECTORY pool
    }
    $c1 segment mount n1 $i1 n1.file TIER file SIZE 1000000 CONTENT $content DIRECTORY /mnt/pool/id
    set file [segment_field n1.file id]
    assert_equal /mnt/pool/id [segment_field n1.file directory]
    assert {[$c1 node offer n1 $i1 $file 1 filed 5 1000 9 1 {}] > 0}
    set replica [lindex [r getreplicas filed LEASE 1000] 4 0]
    assert_equal file [lindex $replica 0]
    assert_match /mnt/pool/id/* [lindex $replica 1 0 0]
    assert_equal 1000 [lindex $replica 1 0 1]
    r del filed
    work $c1 n1 $i1 drop
}

test {a hot object gets a replica by itself, and loses it} {
    r config set hot-replicas 2 hot-threshold 20 hot-window 200
    put hot 5000 PREFER n2.0
    for {set i 0} {$i < 40} {incr i} {r getreplicas hot LEASE 100}
    set item [work $c1 n1 $i1 copy]
    assert_equal hot [lindex $item 2]
    assert_equal heat [dict get [lindex [r replica tasks STATE sent] 0] reason]
    assert_equal 1 [$c1 node done n1 $i1 1 [lindex $item 1] 0 0 -1]
    wait_for "it to cool" {[where hot] eq "n2.0"}
    r config set hot-replicas 0
    # The copy went to a node with a disk, and so on.
    foreach item [lindex [$c1 node heartbeat n1 $i1] 1] {assert {[lindex $item 0] in {store drop}}}
}

test {NODE DRAIN: progress, then leave} {
    r flushall
    for {set i 0} {$i < 20} {incr i} {put k$i 5000 PREFER n2.0}
    assert_equal OK [r node drain n2]
    assert_equal draining [dict get [r node info n2] state]
    assert_equal 20 [dict get [r node info n2] drain-left-objects]
    assert_error "NOSPACE *" {
        r node maintenance n1 ON
        r putstart new 1000
    }
    r node maintenance n1 OFF
    set left 20
    while {$left > 0} {
        foreach item [lindex [$c1 node heartbeat n1 $i1 WAIT 1000] 1] {
            if {[lindex $item 0] in {copy store}} {
                $c1 node done n1 $i1 1 [lindex $item 1] 0 [lindex $item 1]000 -1
            }
        }
        # It may be over before the next look, and what it moved is then told by INFO only.
        set info [r node info n2]
        set left [dict get $info drain-left-objects]
        if {$left > 0} {assert_equal 20 [expr {[dict get $info drain-moved-objects] + $left}]}
    }
    for {set i 0} {$i < 20} {incr i} {assert_equal n1.0 [lindex [where k$i] 0]}
    wait_for "its end" {[lindex [$c2 node heartbeat n2 $i2 WAIT 100] 1] eq "leave"}
    assert_error "ERR the node is leaving the pool already" {r node drain n2}
    drop $c2
    wait_for "it to be gone" {[info_field nodes] == 1}
    assert_equal 20 [info_field drained_objects]
}

test {heartbeats go on while clients are paused} {
    r client pause 1000 ALL
    assert_equal 4 [llength [$c1 node heartbeat n1 $i1 WAIT 0]]
    r client unpause
}

test {figures are true} {
    # What was moved goes to the disks of its new node, too, to one after the other.
    proc settled {} {
        for {set i 0} {$i < 20} {incr i} {if {[where k$i] ne {n1.0 n1.ssd n1.file}} {return 0}}
        return [expr {[info_field tasks] == 0}]
    }
    while {![settled]} {
        foreach item [lindex [$c1 node heartbeat n1 $i1 WAIT 100] 1] {
            $c1 node done n1 $i1 1 [lindex $item 1] 0 [lindex $item 1]000 7
        }
    }
    foreach {field value} {nodes 1 nodes_up 1 machines 2 tasks 0 copies_open 0 node_fences_pending\
            0 drains 0} {
        assert_equal $value [info_field $field] "($field)"
    }
    $c1 node heartbeat n1 $i1 STATS 2 reads 17 bytes_read 400
    assert_equal {reads 17 bytes_read 400} [dict get [r node info n1] stats]
    assert {[info_field node_heartbeats] > 10}
    assert {[info_field node_stale] >= 2}
}

finish
