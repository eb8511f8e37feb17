# Nodes, libtarn, replicas, Sentinel: users with no more rights than they need.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] acl.tcl]

# As in docs/ACL.md.
set node_rules {~* resetchannels -@all +ping +info +role +cluster|map +client|near +client|setinfo\
    +client|setname +node|join +node|up +node|heartbeat +node|fenced
    +node|done +node|evicted +node|offer +node|drain +node|leave +segment|mount \
        +segment|drain +segment|unmount +segment|keys +segment|info +segment|attach
    +getreplicas +mgetreplicas +release +replica|report}
set worker_rules {~kv:* resetchannels -@all +@read +@write +@connection -@admin -@dangerous}
set replica_rules {resetchannels -@all +psync +replconf +ping +cluster|announce +cluster|map}
set sentinel_rules {allchannels -@all +multi +slaveof +ping +exec +subscribe +config|rewrite +role\
    +publish +info +client|setname
    +client|kill +script|kill}

test {a node and libtarn with users of their own} {
    start_server --pool-size 0 --node-heartbeat 100 --max-lease 2s
    r acl setuser node on >a:b@c/d {*}$node_rules
    r acl setuser worker on >p {*}$worker_rules
    start_node n1 --master tarn://node:a%3Ab%40c%2Fd@127.0.0.1:[server port] --host-name m1 \
        --segment 32mb --ssd [temp_dir]/ssd:64mb
    set f [open [server dir]/password w]
    puts $f a:b@c/d
    close $f
    start_node n2 --user node --password-file [server dir]/password --host-name m2 --segment 32mb
    set url tarn://worker:p@127.0.0.1:[server port]
    foreach command {load verify} {
        set a [kv_answer [kv_exec [list $url $command kv: 20 100000]]]
        assert_equal {20 0 0} [kv_fields $a ok errors wrong] [dict get $a error]
    }
    set a [kv_answer [kv_exec [list --host m1 --replace --replicas 2 $url load kv: 20 100000]]]
    assert_equal {20 0 40} [kv_fields $a ok errors replicas] [dict get $a error]
    assert_equal 0 [dict get $a shm_bytes]
    assert_match "*NOPERM*" [dict get [kv_answer [kv_exec [list $url load other: 1 1000]]] error]
    # A user without a password is one who needs none, and nobody else.
    r acl setuser open on nopass {*}$worker_rules
    assert_match "*NOPERM*" \
        [dict get \
        [kv_answer [kv_exec [list tarn://open@127.0.0.1:[server port] load other: 1 1000]]] error]
    assert_match "*refused user and password*" \
        [lindex [kv_exec [list tarn://nobody@127.0.0.1:[server port] load kv: 1 1000]] 2]
    assert_match "*refused user and password*" \
        [lindex [kv_exec [list tarn://worker@127.0.0.1:[server port] load kv: 1 1000]] 2]
    assert {[catch {exec $node_binary --master tarn://127.0.0.1:[server port] --user nobody\
        --name n9 --segment 16mb 2>@1} text]}
    assert_match "*refused user and password*" $text
    # With @direct the bytes go through shared memory.
    r acl setuser worker +@direct
    set a [kv_answer [kv_exec [list --host m1 $url verify kv: 20 100000]]]
    assert_equal {20 0} [kv_fields $a ok wrong]
    assert {[dict get $a shm_bytes] > 0}
    # Copies, drains and farewells are a node's own work.
    r set moved [string repeat x 100000]
    r replica copy moved
    wait_for "a replica on the other node" \
        {[lsort [lmap x [r replica list moved]\
        {expr {[dict get $x tier] eq "memory" ? [dict get $x node] : [continue]}}]] eq "n1 n2"}
    stop_node n1
    wait_for "its farewell" {[node_state n1] in {left down ""}}
    set refused [lmap e [r acl log 100] {list [dict get $e username] [dict get $e object]}]
    assert_equal {} [lsearch -all -inline $refused {node *}]
    r acl setuser node -node|join
    launch_node n3 --user node --password-file [server dir]/password --host-name m3 --segment 32mb
    assert_equal 4 [reap_process [node n3 pid]]
    assert_match "*NODE JOIN*NOPERM*" [file_text [node n3 dir]/stdout]
    dict set ::node_table n3 pid 0
    stop_server
}

# The administrator of a server; Sentinel closes connections when roles change.
proc ask {name args} {
    if {![info exists ::conn($name)]} {
        set ::conn($name) [resp::connect $::server_host [dict get $::S($name) port]]
        $::conn($name) auth admin ap
    }
    if {[catch {$::conn($name) {*}$args} reply options]} {
        if {![string match {[A-Z]*} $reply]} {
            catch {resp::close $::conn($name)}
            unset ::conn($name)
        }
        return -options $options $reply
    }
    return $reply
}
proc role_is {name i what} {
    expr {![catch {lrange [ask $name role] $i end} role] && [string match $what $role]}
}

test {replication with masteruser; Sentinel with auth-user} {
    foreach name {a b c} {
        set here [temp_dir]
        conf ""
        start_configured --pool-size 0 --repl-ping-replica-period 1 --repl-timeout 5
        set S($name) [server]
        set port($name) [server port]
        r acl setuser replica on >rp {*}$replica_rules
        r acl setuser sentinel on >sp {*}$sentinel_rules
        r acl setuser admin on >ap ~* &* +@all
        ask $name acl setuser default off
        ask $name config set masteruser replica masterauth wrong
    }
    foreach name {b c} {ask $name replicaof 127.0.0.1 $port(a)}
    wait_for "a wrong masterauth to be told" \
        {[string match "*Unable to AUTH to MASTER*: -WRONGPASS*"\
        [file_text [dict get $::S(b) log]]]}
    foreach name {a b c} {ask $name config set masterauth rp}
    foreach name {b c} {wait_for "replica $name" {[role_is $::name 3 "connected *"]}}
    assert_match "* user=replica *" [ask a client list type replica]
    ask a set before failover
    assert_equal 2 [ask a wait 2 30000]
    if {[auto_execok redis-sentinel] eq ""} {skip "redis-sentinel is not there"}
    set sentinel [start_sentinel $port(a) \
        "sentinel auth-user pool sentinel\nsentinel auth-pass pool sp"]
    wait_for "Sentinel to know both replicas" {[regexp -all {\+slave } [sentinel_log]] == 2}
    assert_match "* user=sentinel *" [ask a client list]
    send_signal KILL [dict get $S(a) pid]
    reap_process [dict get $S(a) pid]
    set servers [lsearch -all -inline -not -exact $servers $S(a)]
    sentinel_hurry
    # An attempt that fails is repeated after 20 s.
    wait_for "a replica to be the master" {[role_is b 0 "master *"] || [role_is c 0 "master *"]}
    set new [expr {[role_is b 0 "master *"] ? "b" : "c"}]
    set other [expr {$new eq "c" ? "b" : "c"}]
    wait_for "the other to follow it" {[role_is $::other 2 "$::port($::new) connected *"]}
    assert_equal failover [ask $new get before]
    assert_equal OK [ask $new set after failover]
    assert_equal 1 [ask $new wait 1 30000]
    assert_match "*user sentinel on #*" [file_text [dict get $S($new) dir]/tarn.conf]
    foreach name {b c} {
        assert_equal {} \
            [lsearch -all -inline [lmap e [ask $name acl log 100] {dict get $e username}] \
            sentinel] [ask $name acl log 100]
    }
    send_signal TERM $sentinel
    reap_process $sentinel
}

finish
