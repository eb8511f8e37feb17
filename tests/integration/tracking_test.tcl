# CLIENT TRACKING: a connection hears of each change to a key that it has read, once, behind the
# reply and never within one; what is refused, when all is to be forgotten, and that nothing is
# left. Keys change in every way there is.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 16mb --eviction-high-watermark 1 --enable-debug-command yes

proc tracker {} {
    set c [client]
    $c hello 3
    assert_equal OK [$c client tracking on]
    return $c
}
proc says {c args} {
    foreach expected $args {assert_equal $expected [resp::recv $c]}
}
proc silent {c} {assert_equal PONG [$c ping]}

test {off at first; the messages need RESP3; the other ways of it are refused in words} {
    assert_equal {flags off redirect -1 prefixes {}} [r client trackinginfo]
    assert_equal -1 [r client getredir]
    assert_error "ERR CLIENT TRACKING needs RESP3*HELLO 3*" {r client tracking on}
    assert_equal OK [r client tracking off]
    foreach options {bcast {bcast prefix a} {redirect 3} optin optout noloop} {
        assert_error "ERR CLIENT TRACKING ON takes no options here*every key that it has read*" {
            r client tracking on {*}$options
        }
    }
    foreach bad {maybe {on what} {off what}} {
        assert_error "ERR syntax error" {r client tracking {*}$bad}
    }
    assert_error "ERR CLIENT CACHING can be called only when*tracking mode*" {r client caching yes}
    assert_error "ERR syntax error" {r client caching maybe}
    assert_equal 0 [info_field tracking_clients]
}

test {on: every byte of the message; once for each key; and off again} {
    set c [tracker]
    assert_equal {flags on redirect 0 prefixes {}} [$c client trackinginfo]
    assert_equal 0 [$c client getredir]
    assert_match "*flags=t *redir=0 resp=3 *" [$c client info]
    assert_equal 1 [info_field tracking_clients]
    r set k 1
    silent $c
    assert_equal 1 [$c get k]
    r set k 2
    r set k 3
    assert_equal ">2\r\n\$10\r\ninvalidate\r\n*1\r\n\$1\r\nk\r\n" [resp::recv_raw $c 32]
    silent $c
    assert_equal 3 [$c get k]
    assert_equal OK [$c client tracking off]
    assert_equal 0 [info_field tracking_clients]
    r del k
    silent $c
    drop $c
}

test {HELLO 2, RESET and the end of the connection turn it off} {
    set c [tracker]
    $c get k
    $c hello 2
    assert_equal {flags off redirect -1 prefixes {}} [$c client trackinginfo]
    assert_equal 0 [info_field tracking_clients]
    $c hello 3
    assert_equal OK [$c client tracking on]
    assert_equal OK [$c client tracking on]
    $c get k
    $c reset
    assert_equal 0 [info_field tracking_clients]
    $c hello 3
    $c client tracking on
    $c get k
    drop $c
    wait_for "its end" {[info_field tracking_clients] == 0}
    r set k 1
}

test {every way in which a value changes or goes, and a key that was not there} {
    set c [tracker]
    foreach {before change} {
        {} {r set k v}
        {r set k 5} {r incr k}
        {r set k v} {r append k w}
        {r set k v} {r setrange k 1 w}
        {r set k v} {r getset k w}
        {r set k v} {r mset j 1 k 2}
        {r set k v} {r del k}
        {r set k v} {r unlink j k}
        {r set k v} {r getdel k}
        {r set k v} {r getex k ex 100}
        {r set k v ex 100} {r persist k}
        {r set k v} {r expire k 100}
        {r set k v} {r pexpire k 1}
        {r set k v} {r expire k -1}
        {r set k v} {r rename k j}
        {r set j v} {r rename j k}
        {r set j v} {r copy j k replace}
        {r set k v} {r removematch glob k*}
        {r set k v} {r evict keys 1 k}
        {r set k v} {r multi; r set k w; r exec}
        {} {r putend k [lindex [r putstart k 4 replace] 0] -1 value four}
    } {
        $c client tracking off
        r flushall
        $c client tracking on
        eval $before
        $c get k
        eval $change
        assert_equal {invalidate k} [resp::recv $c] "($change)"
    }
    drop $c
}

test {what reads a key: all commands that do, in MULTI as well, each key of many} {
    set c [tracker]
    foreach read {
        {get k} {mget j k} {exists k} {strlen k} {getrange k 0 1} {ttl k} {type k} {getreplicas k}
        {prefixlen 2 k l} {object freq k}
    } {
        r set k v
        catch {$c {*}$read}
        r set k w
        assert_equal {invalidate k} [resp::recv $c] "($read)"
        silent $c
    }
    $c multi
    $c get k
    r set k v
    says $c {invalidate k}
    assert_equal QUEUED [$c ping]
    assert_equal {v PONG} [$c exec]
    r set k w
    says $c {invalidate k}
    $c set k v
    r set k w
    silent $c
    drop $c
}

test {its own changes come behind the reply, never within one} {
    set c [tracker]
    r mset a 1 b 2
    $c mget a b
    resp::send $c mset a 3 b 4
    says $c OK {invalidate a} {invalidate b}
    $c mget a b
    resp::send $c multi
    resp::send $c set a 5
    resp::send $c get a
    resp::send $c exec
    says $c OK QUEUED QUEUED {OK 5} {invalidate a}
    drop $c
}

test {a reply that was late is followed by what happened meanwhile} {
    set c [tracker]
    resp::send $c getreplicas slow wait 60000
    wait_for "it waits" {[info_field blocked_clients] == 1}
    r set other 1
    r set slow v
    assert_equal 1 [lindex [resp::recv $c] 1]
    says $c {invalidate slow}
    silent $c
    drop $c
}

test {too many keys, FLUSHALL: all is to be forgotten} {
    set c [tracker]
    for {set i 0} {$i < 10000} {incr i 100} {
        set keys {}
        for {set k $i} {$k < $i + 100} {incr k} {lappend keys k$k}
        $c mget {*}$keys
    }
    silent $c
    assert {[regexp {tot-mem=(\d+)} [$c client info] - memory] && $memory > 1000000}
    resp::send $c get one-more
    says $c {invalidate (nil)} (nil)
    r set k5 v
    silent $c
    r set one-more v
    says $c {invalidate one-more}
    $c get one-more
    r flushall
    says $c {invalidate (nil)}
    r set one-more v
    silent $c
    drop $c
}

test {the last of its room is used up in the middle of a command: none of its keys is forgotten\
        unheard} {
    set c [tracker]
    for {set i 0} {$i < 9950} {incr i 50} {
        set keys {}
        for {set k $i} {$k < $i + 50} {incr k} {lappend keys k$k}
        $c exists {*}$keys
    }
    set keys {}
    for {set k 0} {$k < 60} {incr k} {lappend keys new$k}
    resp::send $c exists {*}$keys
    says $c {invalidate (nil)} 0
    r set new0 v
    r set new59 v
    says $c {invalidate new0} {invalidate new59}
    r set k5 v
    silent $c
    drop $c
}

test {a command of very many keys: nothing of it is to be kept, and nothing else waits for it} {
    set c [tracker]
    $c get k
    set keys {}
    for {set i 0} {$i < 20000} {incr i} {lappend keys k$i}
    resp::send $c exists {*}$keys
    assert {[resp::recv $c] > 0}
    says $c {invalidate (nil)}
    assert_equal 0 [info_field tracking_total_keys]
    r set k v
    silent $c
    drop $c
}

test {tracking-table-max-keys: others are told to forget when there is no more room} {
    r config set tracking-table-max-keys 150
    set c [tracker]
    set d [tracker]
    set keys {}
    for {set k 0} {$k < 100} {incr k} {lappend keys k$k}
    $c exists {*}$keys
    resp::send $d exists {*}$keys
    assert {[resp::recv $d] > 0}
    says $c {invalidate (nil)}
    assert_equal 100 [info_field tracking_total_keys]
    r set k7 v
    says $d {invalidate k7}
    silent $c
    drop $c
    drop $d
    wait_for "their end" {[info_field tracking_total_keys] == 0}
    r config set tracking-table-max-keys 1000000
}

test {who does not read its replies is not closed for that, and what it is told has a bound} {
    r config set client-output-buffer-limit "pubsub 100kb 0 0"
    r config set output-pause 64kb
    set c [tracker]
    set name [string repeat k 1000]
    set closed [info_field client_output_buffer_limit_disconnections]
    for {set i 0} {$i < 20000} {incr i 100} {
        set read {}
        set written {}
        for {set k 0} {$k < 100} {incr k} {
            lappend read $name$k
            lappend written $name$k v
        }
        if {$i < 5000} {resp::send $c exists {*}$read}
        r mset {*}$written
        r flushall
    }
    assert_equal 1 [info_field tracking_clients]
    assert_equal $closed [info_field client_output_buffer_limit_disconnections]
    assert {[info_field clients_memory] < 16 << 20}
    r config set output-pause 8mb
    drop $c
}

stop_server
start_server --pool-size 0
test {whoever tracks is cut off when this server begins to follow, and refused until it leads} {
    set c [tracker]
    $c get k
    r replicaof 127.0.0.1 1
    resp::read_to_end $c
    drop $c
    set c [client]
    $c hello 3
    assert_error "ERR CLIENT TRACKING is for the master*" {$c client tracking on}
    r replicaof no one
    assert_equal OK [$c client tracking on]
    $c get k
    r set k 1
    says $c {invalidate k}
    drop $c
}

finish
