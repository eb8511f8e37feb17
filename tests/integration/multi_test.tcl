# MULTI, EXEC, DISCARD, WATCH, UNWATCH: queueing, errors, what touches a watched key, jobs within
# EXEC, bounds.
source [file join [file dirname [info script]] harness.tcl]
start_server --enable-debug-command yes

# EXEC of a transaction of one PING: {} when it was not executed.
proc pinged {} {
    r multi
    r ping
    set reply [r exec]
    return [expr {$reply eq "(nil)" ? {} : $reply}]
}

test {commands are queued and run in order} {
    r del a
    assert_equal OK [r multi]
    assert_equal QUEUED [r set a 5]
    assert_equal QUEUED [r incr a]
    assert_equal QUEUED [r get a]
    set other [client]
    assert_equal (nil) [$other get a]
    assert_equal {OK 6 6} [r exec]
    assert_equal 6 [r get a]
    r multi
    assert_equal {} [r exec]
}

test {DISCARD, and what is not said in a transaction} {
    r set a 1
    r multi
    r set a 2
    assert_equal OK [r discard]
    assert_equal 1 [r get a]
    assert_error "ERR DISCARD without MULTI" {r discard}
    assert_error "ERR EXEC without MULTI" {r exec}
}

test {MULTI in MULTI and WATCH in MULTI are errors that do no harm} {
    r multi
    assert_error "ERR MULTI calls can not be nested" {r multi}
    assert_error "ERR WATCH inside MULTI is not allowed" {r watch a}
    r ping
    assert_equal PONG [r exec]
}

test {an error at queueing: EXECABORT, nothing has run} {
    r set a 1
    foreach wrong {{nosuchcommand x} get {config nosuch} {client kill} {shutdown}\
            {client reply off}} {
        r multi
        assert_equal QUEUED [r set a 2]
        assert_error "ERR *" {r {*}$wrong}
        assert_equal QUEUED [r set a 3]
        assert_error "EXECABORT Transaction discarded because of previous errors." {r exec}
        assert_equal PONG [r ping]
    }
    r multi
    r set a 2
    assert_error "EXECABORT Transaction discarded because of: wrong number*" {r exec now}
    assert_error "ERR EXEC without MULTI" {r exec}
    assert_equal 1 [r get a]
}

test {an error of a command that runs does not stop the others} {
    r multi
    r set a x
    r incr a
    r set b y
    assert_equal {OK {(error) ERR value is not an integer or out of range} OK} [r exec]
    assert_equal y [r get b]
}

test {WATCH: EXEC does nothing after any kind of write, by anyone} {
    set other [client]
    foreach {write} {{set k v} {set k v nx} {setex k 100 v} {append k v} {setrange k 0 v} {incr n}\
        {mset x y k v}
        {del k} {unlink k} {getdel k} {getset k v} {getex k ex 100} {expire k 100} \
            {pexpireat k 99999999999999}
        {flushall} {flushdb async} {removematch glob k*} {evict keys 1 k} {persist t}} {
        foreach who [list r $other] {
            r del x
            r set k old
            r set n 1
            r set t 1 ex 100
            if {$write eq "set k v nx"} {r del k}
            assert_equal OK [r watch k n t]
            if {[catch {{*}$who {*}$write} reply]} {error "$write: $reply"}
            assert_equal {} [pinged]
            assert_equal PONG [pinged]
        }
    }
}

test {WATCH: what only reads does not matter, nor another key} {
    r set k 1
    r set t 1 ex 100
    r watch k t nokey
    r get k
    r set other 1
    r set k 2 nx
    r getex k
    r expire nokey 10
    r persist k
    r del nokey
    r touch k
    r getreplicas k
    assert_equal PONG [pinged]
}

test {WATCH: a key that was not there, came and went} {
    r del k
    r watch k
    r set k 1
    r del k
    assert_equal {} [pinged]
    r watch k
    r flushall
    assert_equal PONG [pinged]
}

test {WATCH: a put that ends, not one that is revoked} {
    r del k
    r watch k
    set token [lindex [r putstart k 100000] 0]
    r putrevoke k $token
    assert_equal PONG [pinged]
    r watch k
    set token [lindex [r putstart k 100000] 0]
    r putend k $token 0
    assert_equal {} [pinged]
    r watch k
    r set k [string repeat x 200000]
    assert_equal {} [pinged]
}

test {WATCH: expiry counts when it happens after WATCH} {
    r set k 1 px 1
    wait_for "expiry" {[r exists k] == 0}
    r watch k
    assert_equal PONG [pinged]
    # In one piece: nothing comes between them, however slow this process is.
    resp::raw [r] [resp::encode {set k 1 px 100}][resp::encode {watch k}]
    assert_equal {OK OK} [list [resp::recv [r]] [resp::recv [r]]]
    wait_for "expiry" {[[client] ttl k] == -2}
    assert_equal {} [pinged]
}

test {UNWATCH, DISCARD, EXEC and RESET end a watch} {
    foreach end {unwatch {multi discard} {multi exec} reset} {
        r set k 1
        r watch k
        foreach word $end {r $word}
        r set k 2
        assert_equal PONG [pinged]
    }
    assert_equal 0 [info_field watched_keys]
    set other [client]
    $other watch a b c
    assert_equal 3 [info_field watched_keys]
    drop $other
    wait_for "the other's watches to go" {[info_field watched_keys] == 0}
    r watch k k k
    assert_equal 1 [info_field watched_keys]
    r unwatch
}

test {RESET and the end of a connection drop a transaction} {
    r multi
    r set gone 1
    assert_equal RESET [r reset]
    assert_error "ERR EXEC without MULTI" {r exec}
    set other [client]
    $other multi
    $other set gone 1
    drop $other
    only_main_client
    assert_equal 0 [r exists gone]
}

test {CLIENT LIST shows it} {
    set other [client]
    set id [$other client id]
    $other watch a
    assert_match "* flags=N *multi=-1 *" [r client list id $id]
    $other multi
    $other ping
    $other set a [string repeat x 1000]
    assert_match "* flags=x *multi=2 *" [r client list id $id]
    regexp {multi-mem=(\d+)} [r client list id $id] - memory
    assert {$memory > 1000 && $memory < 10000}
    r set a 1
    assert_match "* flags=xd *multi=2 *" [r client list id $id]
    $other discard
    assert_match "* flags=N *multi=-1 * multi-mem=0 *" [r client list id $id]
    drop $other
}

test {MONITOR and SLOWLOG see the commands of a transaction, then EXEC} {
    set monitor [client]
    $monitor monitor
    r multi
    r set a 1
    r get a
    r exec
    foreach pattern {{* "multi"} {* "set" "a" "1"} {* "get" "a"} {* "exec"}} {
        assert_match $pattern [resp::recv $monitor]
    }
    drop $monitor
    r config set slowlog-log-slower-than 0
    r slowlog reset
    r multi
    r set a 1
    r exec
    r config set slowlog-log-slower-than 10000
    set names {}
    foreach entry [r slowlog get] {lappend names [lindex $entry 3 0]}
    assert {"set" in $names && "exec" ni $names}
    r multi
    r monitor
    assert_match {{(error) ERR MONITOR isn't allowed*}} [r exec]
}

test {INFO counts what ran, not what was queued} {
    r config resetstat
    r multi
    r get a
    r get a
    r discard
    assert {![string match *cmdstat_get:* [r info commandstats]]}
    r multi
    r get a
    r get a
    r exec
    assert_match "*cmdstat_get:calls=2,*" [r info commandstats]
}

test {nothing blocks within EXEC} {
    r del nokey
    r multi
    r getreplicas nokey wait 30000
    r prefixlen 1 nokey wait 30000
    assert_equal {(nil) 0} [lrange [r exec] 0 1]
}

test {commands that are jobs run within EXEC, one after the other} {
    r flushall
    set keys {}
    for {set i 0} {$i < 3000} {incr i} {lappend keys key$i}
    r multi
    foreach part [list [lrange $keys 0 999] [lrange $keys 1000 1999] [lrange $keys 2000 2999]] {
        set pairs {}
        foreach key $part {lappend pairs $key v$key}
        r mset {*}$pairs
    }
    r dbsize
    r keys *
    r mget key0 key2999 nokey
    r scan 0 count 10
    r debug wait 0.05
    r del {*}$keys
    r dbsize
    set reply [r exec]
    assert_equal {OK OK OK 3000} [lrange $reply 0 3]
    assert_equal [lsort $keys] [lsort [lindex $reply 4]]
    assert_equal {vkey0 vkey2999 (nil)} [lindex $reply 5]
    assert {[llength [lindex $reply 6 1]] >= 10}
    assert_equal {OK 3000 0} [lrange $reply 7 9]
    assert_equal 0 [info_field blocked_clients]
}

test {a client that goes in the middle of EXEC takes all of it along} {
    set other [client]
    $other multi
    $other set before 1
    $other debug wait 100
    $other set after 1
    resp::send $other exec
    wait_for "the sleep" {[info_field blocked_clients] == 1}
    assert_equal 1 [r get before]
    assert_match "*flags=xb*" [r client list]
    assert_equal 0 \
        [r client unblock [regexp -inline {\d+} [lsearch -inline [split [r client list] \n] \
        *flags=xb*]]]
    drop $other
    wait_for "its end" {[info_field blocked_clients] == 0}
    assert_equal 0 [r exists after]
}

test {more commands than a slice, more replies than the client reads} {
    set other [client]
    set value [string repeat x 100000]
    r set big $value
    $other multi
    for {set i 0} {$i < 300} {incr i} {$other get big}
    resp::send $other exec
    wait_for "the client is held back" {[info_field blocked_clients] == 1}
    set reply [resp::recv $other]
    assert_equal 300 [llength $reply]
    foreach got $reply {assert {$got eq $value}}
    $other multi
    for {set i 0} {$i < 5000} {incr i} {resp::send $other incr counter}
    for {set i 0} {$i < 5000} {incr i} {resp::recv $other}
    assert_equal 5000 [lindex [$other exec] end]
    drop $other
}

test {a transaction of up to a slice's work is atomic} {
    r del x y
    set other [client]
    set writer [client]
    for {set round 0} {$round < 20} {incr round} {
        $writer multi
        for {set i 0} {$i < 400} {incr i} {resp::send $writer incr x; resp::send $writer incr y}
        resp::send $writer exec
        for {set i 0} {$i < 5} {incr i} {
            lassign [$other mget x y] x y
            assert_equal $x $y
        }
        for {set i 0} {$i < 801} {incr i} {resp::recv $writer}
    }
    drop $other
    drop $writer
}

test {large values are queued by value, and come to the pool with EXEC} {
    set a [string repeat a 300000]
    set b [string repeat b 70000]
    r multi
    r set a $a
    r mset b $b c small d $a
    r setrange e 10 $b
    r append e x
    assert_equal 0 [[client] exists a b c d e]
    assert_equal {OK OK 70010 70011} [r exec]
    assert {[r get a] eq $a && [r get b] eq $b && [r get c] eq "small" && [r get d] eq $a}
    assert_equal 70011 [r strlen e]
    r del a b c d e
    r multi
    r set a $a
    r discard
    assert_equal 0 [r exists a]
}

test {the queue is bounded: a clear error, and the connection lives} {
    r config set client-query-buffer-limit 1mb proto-max-bulk-len 1mb
    foreach size {400000 1000 1000000} {
        set value [string repeat x $size]
        r multi
        for {set i 0} {$i < 5000} {incr i} {
            if {[catch {r set a $value} error]} break
        }
        assert_match "ERR The transaction is larger than client-query-buffer-limit" $error
        assert {$i >= 1048576 / $size - 500 && $i <= 1048576 / $size}
        assert_equal QUEUED [r set a $value]
        assert_equal QUEUED [r ping]
        regexp {multi-mem=(\d+)} [r client info] - memory
        assert_error "EXECABORT *" {r exec}
        assert_equal PONG [r ping]
    }
    # Words that were not kept because the transaction has failed already stand where the name of a
    # command should.
    set large [string repeat x 100000]
    r multi
    catch {r nothing}
    assert_error "ERR unknown subcommand*" {r config $large}
    assert_error "ERR unknown command*" {r $large}
    assert_error "ERR unknown command*" {r $large $large}
    assert_error "EXECABORT *" {r exec}
    # What follows a refused argument in the same request and the same bytes arrives whole.
    set other [client]
    $other multi
    assert_equal QUEUED [$other set a [string repeat x 900000]]
    resp::raw $other [resp::encode [list set a [string repeat y 900000] ex 100]][resp::encode \
        {echo here}]
    assert_match "*larger than*" [resp::recv $other]
    assert_equal QUEUED [resp::recv $other]
    assert_equal OK [$other discard]
    assert_match "* multi-mem=0 *" [$other client info]
    assert_equal OK [$other set a [string repeat y 900000] ex 100]
    drop $other
    r config set client-query-buffer-limit 1gb
    r config set proto-max-bulk-len 512mb
}

test {one client watches a bounded number of keys} {
    set keys {}
    for {set i 0} {$i < 100000} {incr i} {lappend keys w$i}
    r del a
    assert_equal OK [r watch {*}$keys]
    assert_error "ERR One client may watch *" {r watch onemore}
    assert_equal OK [r watch w5]
    set w99 [client]
    $w99 set w99999 1
    assert_equal {} [pinged]
    assert_equal 0 [info_field watched_keys]
}

test {CLIENT PAUSE WRITE holds an EXEC with writes back, no other} {
    set reader [client]
    set writer [client]
    r del a
    $reader multi
    $reader get a
    $writer multi
    $writer set a 1
    r client pause 100000 write
    assert_equal (nil) [$reader exec]
    resp::send $writer exec
    wait_for "EXEC is postponed" {[info_field postponed_commands] > 0}
    assert_equal (nil) [r get a]
    assert {![resp::readable $writer]}
    r client unpause
    assert_equal OK [resp::recv $writer]
    assert_equal 1 [r get a]
    drop $reader
    drop $writer
}

test {CLIENT REPLY OFF: EXEC runs and says nothing} {
    set other [client]
    $other multi
    $other set quiet 1
    $other exec
    resp::send $other client reply off
    resp::send $other multi
    resp::send $other incr quiet
    resp::send $other debug wait 0.01
    resp::send $other exec
    resp::send $other client reply on
    assert_equal OK [resp::recv $other]
    assert_equal 2 [$other get quiet]
    drop $other
}

test {passwords: EXEC without authentication} {
    r config set requirepass secret
    set other [client]
    assert_error "NOAUTH*" {$other multi}
    assert_error "EXECABORT *NOAUTH*" {$other exec}
    $other auth secret
    $other multi
    $other config set requirepass ""
    assert_equal OK [$other exec]
    drop $other
}

test {what Sentinel sends to reconfigure, but for SLAVEOF} {
    set s [client]
    set subscriber [client]
    $subscriber subscribe c
    set normal [client]
    $normal ping
    foreach request {{multi} {ping} {client kill type normal} {client kill type pubsub} {exec}} {
        resp::send $s {*}$request
    }
    foreach expected {OK QUEUED QUEUED QUEUED} {assert_equal $expected [resp::recv $s]}
    set reply [resp::recv $s]
    assert_equal PONG [lindex $reply 0]
    assert {[lindex $reply 1] >= 2}
    assert_equal 1 [lindex $reply 2]
    assert_error "*closed*" {$normal ping}
    assert_error "*closed*" {$subscriber ping}
    assert_equal PONG [$s ping]
    drop $normal
    drop $subscriber
}

# Values on another machine: each command waits for its bytes, the others wait for it.
start_server --pool-size 0 --node-heartbeat 100 --inband-stall-timeout 1s --enable-debug-command yes
start_node n1 --host-name m1 --segment 96mb

test {EXEC with values that are on a node} {
    set value [string repeat abcdefgh 300000]
    r multi
    r set a $value
    r strlen a
    r get a
    r append a x
    r mget a nokey a
    r getset a small
    r get a
    r incr n
    r set b $value nx get
    r getrange b 2399990 -1
    set reply [r exec]
    assert_equal 10 [llength $reply]
    assert_equal {OK 2400000} [lrange $reply 0 1]
    assert {[lindex $reply 2] eq $value && [lindex $reply 3] == 2400001}
    assert {[lindex $reply 4] eq [list ${value}x (nil) ${value}x] && \
        [lindex $reply 5] eq "${value}x"}
    assert_equal {small 1 (nil) ghabcdefgh} [lrange $reply 6 9]
    assert {[r get b] eq $value}
    assert_equal 0 [info_field inband_buffer_used]
}

test {a client that goes while EXEC moves bytes leaves nothing behind} {
    for {set i 0} {$i < 20} {incr i} {
        set other [client]
        $other multi
        for {set k 0} {$k < 5} {incr k} {
            $other set c$k [string repeat $k 1000000]
            $other get c$k
        }
        resp::send $other exec
        after [expr {$i % 5}]
        drop $other
    }
    wait_for "all to be over" {[info_field blocked_clients] == 0 && \
        ![string match "* multi=\[0-9\]*" [r client list]]}
    assert_equal 0 [info_field inband_buffer_used]
    assert_equal 0 [info_field watched_keys]
    r debug check
}

test {a node that is gone: the transaction goes on behind what cannot be read} {
    r set gone [string repeat x 1000000]
    kill_node n1
    r multi
    r set small 1
    r get gone
    r get small
    set reply [r exec]
    assert_equal OK [lindex $reply 0]
    assert_equal 1 [lindex $reply 2]
    assert {[lindex $reply 1] eq "(nil)" || [string match "(error)*" [lindex $reply 1]]}
}

finish
