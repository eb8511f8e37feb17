# Several machines, made of network namespaces on this one: nodes and clients that are cut off, in
# one direction too, and slow links.
source [file join [file dirname [info script]] netns.tcl]

# h0 is the master, h1 h2 h3 are nodes, h4 is the client.
make_network {h0 h1 h2 h3 h4}
set server_host [address h0]
on h0 {start_server --bind 0.0.0.0 --protected-mode no --pool-size 0 --node-heartbeat 100\
    --node-timeout 3s --max-lease 10s}
foreach h {h1 h2 h3} {
    on $h {start_node n[string index $h 1] --host-name $h --bind=0.0.0.0 --segment 64mb}
}

# kv on the client's host, which gives up a silent node soon; the last one, after three times that,
# for the machine may stand still.
proc client_kv {args} {
    on h4 {kv --host h4 --failover 1500 {*}$args}
}
proc client_run {args} {
    on h4 {kv_start --host h4 --failover 1500 {*}$args}
}

test {nodes are found under their own addresses} {
    foreach n {1 2 3} {
        assert_equal [address h$n] [node_field n$n address]
        assert_match "tcp://[address h$n]:*" [lindex [segment_field n$n.0 endpoints] 0]
    }
    set a [client_kv --replicas 2 load a: 50 1000-100000]
    assert_equal "50 100 0" [kv_fields $a ok replicas errors]
    set a [client_kv verify a: 50 1000-100000]
    assert_equal "50 0 0" [kv_fields $a ok misses errors]
    assert_equal [dict get $a bytes] [dict get $a tcp_bytes]
    assert_equal [r strlen a:1] [string length [r get a:1]]
}

foreach {direction what} {both {in both directions} from {and cannot send} to\
        {and cannot receive}} {
    test "a node is cut off $what: readers of two replicas notice nothing; it comes back with all\
            it had" {
        client_kv --prefer n1.0 load only:$direction: 20 1000-100000
        set run [client_run --pause 2 run a: 50 1000-100000]
        set epoch [segment_field n1.0 epoch]
        cut h1 $direction
        wait_node n1 down
        set a [client_kv verify a: 50 1000-100000]
        assert_equal "50 0 0" [kv_fields $a ok misses errors] $a
        set a [client_kv verify only:$direction: 20 1000-100000]
        assert_equal "0 20 0" [kv_fields $a ok misses errors] $a
        assert_equal "20 40" [kv_fields [client_kv --replicas 2 load new:$direction: 20 \
            1000-100000] ok replicas]
        mend h1
        wait_node n1 up
        assert_equal $epoch [segment_field n1.0 epoch]
        set a [client_kv verify only:$direction: 20 1000-100000]
        assert_equal "20 0 0" [kv_fields $a ok misses errors] $a
        set a [kv_stop $run]
        assert {[dict get $a ok] > 50}
        assert_equal "0 0 0" [kv_fields $a misses errors wrong] $a
    }
}

foreach {from to what} {h4 h1 {cannot reach a node} h1 h4 {is not reached by a node}} {
    test "a client $what that the master sees: it reads elsewhere, writes what it can, and the\
            rest is no miss" {
        client_kv --prefer n1.0 --replace load lone: 5 1000-50000
        cut_path $from $to
        set a [client_kv verify a: 50 1000-100000]
        assert_equal "50 0 0" [kv_fields $a ok misses errors] $a
        set a [client_kv --timeout 1500 verify lone: 5 1000-50000]
        assert_equal "0 0 0" [kv_fields $a ok misses wrong] $a
        # The master fetches it: any Redis client on that host can read it.
        assert_equal [r strlen lone:1] [string length [r get lone:1]]
        set a [client_kv --replicas 2 load w:$from: 30 1000-100000]
        assert_equal "30 0" [kv_fields $a ok errors] $a
        mend_path $from $to
        assert_equal up [node_state n1]
        set a [client_kv verify w:$from: 30 1000-100000]
        assert_equal "30 0 0" [kv_fields $a ok misses errors] $a
        set a [client_kv verify lone: 5 1000-50000]
        assert_equal "5 0" [kv_fields $a ok errors] $a
    }
}

test {nodes that cannot reach each other: copies are tried again, others go on} {
    r config set task-retries 3 task-timeout 1000
    client_kv --prefer n1.0 --replace load c: 10 1000-50000
    cut_path h2 h1
    set id [r replica copy c:0 to n2.0]
    set other [r replica copy c:1 to n3.0]
    set ::other $other
    wait_for "the other copy" {[llength [r replica list c:1]] == 2}
    assert_equal 1 [llength [r replica list c:0]]
    mend_path h2 h1
    wait_for "no task" {[info_field tasks] == 0}
    assert_equal 2 [llength [r replica list c:0]]
    r config set task-timeout 30000
}

test {guarantee 3: what a writer that was cut off sends later lands nowhere} {
    r flushall
    r config set put-timeout 200 put-release-timeout 300
    # It holds half of a node's memory, and begins to write when it has lost it.
    set half [expr {40 * 1048576}]
    set writer [on h4 {start_process [list $kv_binary --host h4 --prefer n1.0 --slow 3000\
        {*}[kv_arguments [list put late0 $half]]] [server dir]/late}]
    wait_for "its put to be open" {[string match "open*" [file_text [server dir]/late]]}
    cut h4
    wait_for "its space" {![catch {r putstart again $half prefer n1.0} reply] && \
        [segment_field n1.0 id] == [lindex $reply 1 0 1 0 0]}
    r putrevoke again [lindex $reply 0]
    r config set put-timeout 30000
    # Another client's values lie there now.
    set a [kv --prefer n1.0 load here: 55 1000000]
    assert_equal 55 [dict get $a ok] $a
    mend h4
    # It may begin again in another place, where it has a right to.
    set status [reap_process $writer]
    set a [kv verify here: 55 1000000]
    assert_equal "55 0 0" [kv_fields $a ok errors wrong] $a
    set a [kv verify late 1 $half]
    assert_equal "[expr {$status eq "0"}] 0 0" [kv_fields $a ok errors wrong] $a
    r config set put-timeout 30000 put-release-timeout 600000
    r flushall
}

test {the master is cut off for longer than node-timeout: afterwards all is as before} {
    client_kv --replicas 2 load m: 50 1000-100000
    set epochs [lmap n {1 2 3} {segment_field n$n.0 epoch}]
    set joins [node_field n1 joins]
    cut h0
    # It cannot be asked, so its own clock must tell.
    after 4000
    mend h0
    foreach n {1 2 3} {wait_node n$n up}
    assert_equal $epochs [lmap n {1 2 3} {segment_field n$n.0 epoch}]
    set a [client_kv verify m: 50 1000-100000]
    assert_equal "50 0 0" [kv_fields $a ok misses errors] $a
}

test {a slow link: it takes longer, and nothing else} {
    client_kv --replace --prefer n1.0 put big0 4000000
    limit h1 from 40000
    set a [client_kv --timeout 30000 verify big 1 4000000]
    assert_equal "1 0 0" [kv_fields $a ok misses errors] $a
    assert_equal up [node_state n1]
}
mend h1

test {a slow node does not hold others up: with two replicas the reader turns to the other one} {
    client_kv --replace --replicas 2 --prefer n1.0 load s: 10 200000
    limit h1 from 100
    set a [client_kv --timeout 20000 verify s: 10 200000]
    assert_equal "10 0 0" [kv_fields $a ok misses errors] $a
    mend h1
    # Heartbeats share its full queue, which drops some: it may have been down for a moment.
    wait_node n1 up
}

test {draining over a slow link ends well} {
    r flushall
    client_kv --prefer n1.0 load d: 10 200000
    limit h1 from 20000
    r node drain n1
    assert_equal 0 [reap_node n1]
    set a [client_kv verify d: 10 200000]
    assert_equal "10 0 0" [kv_fields $a ok misses errors] $a
    mend h1
}

foreach h [dict keys $hosts] {mend $h}
finish
