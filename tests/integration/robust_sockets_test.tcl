# Peers that do not read, half close, vanish, or announce more than they send: each costs itself
# something, and nobody else.
if {![info exists more_options]} { ;# io_threads_sockets_test has some, and the harness
    source [file join [file dirname [info script]] harness.tcl]
    set more_options {}
}
start_server --pool-size 64mb --enable-debug-command yes {*}$more_options

# Sends requests, closes its side, and returns all that comes until the server closes its own.
proc half_closed {bytes} {
    set c [client]
    resp::raw $c $bytes
    close $::resp::fd($c) write
    set all [resp::read_to_end $c]
    drop $c
    return $all
}

proc requests {args} {
    set out ""
    foreach request $args {append out [resp::encode $request]}
    return $out
}

test {a peer that shuts its side down gets the replies to all it has asked for} {
    assert_equal "+PONG\r\n" [half_closed "PING\r\n"]
    assert_equal "" [half_closed ""]
    assert_equal "+OK\r\n" [half_closed "SET k v\r\nGET"]
    # More than the socket takes, and more than output-pause: the requests behind it wait for the
    # reader.
    r config set output-pause 64kb
    set big [string repeat x 3000000]
    r set big $big
    set got [half_closed [requests {get big} {get big} {get big} {ping} {get big}]]
    set one "\$3000000\r\n$big\r\n"
    assert {$got eq "$one$one$one+PONG\r\n$one"}
    r config set output-pause 8mb
    # A job, and what waits behind it.
    r mset {*}[batch k 3000 v]
    assert_equal ":3000\r\n+PONG\r\n" [half_closed [requests [list del {*}[batch k 3000]] ping]]
    assert_equal "+OK\r\n+PONG\r\n" [half_closed [requests flushall ping]]
    # A transaction.
    assert_equal "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n\$1\r\nv\r\n" \
        [half_closed "MULTI\r\nSET a v\r\nGET a\r\nEXEC\r\n"]
    # An error that ends the connection, behind replies that have not left yet.
    r set big $big
    assert {[half_closed "[requests {get big} {get big}]*1\r\n%x\r\n"] eq\
        "$one$one-ERR Protocol error: expected '\$', got '%'\r\n"}
    assert {[half_closed [requests {get big} {get big} quit]] eq "$one$one+OK\r\n"}
    r del big
    wait_for "the connections to be gone" {[info_field connected_clients] == 1}
}

test {CLIENT PAUSE: the requests of one that shut its side down are answered after it} {
    set c [client]
    r client pause 100000 write
    resp::raw $c "SET paused 1\r\nPING\r\n"
    close $::resp::fd($c) write
    wait_for "the request to wait" {[info_field postponed_commands] >= 1}
    r client unpause
    assert_equal "+OK\r\n+PONG\r\n" [resp::read_to_end $c]
    drop $c
}

test {who listens, or waits for as long as it wishes, and closes its side, is gone at once} {
    foreach line {"MONITOR" "SUBSCRIBE ch" "WAIT 1 0" "WAIT 1 1000000"\
            "GETREPLICAS nokey WAIT 9000"} {
        set c [client]
        resp::raw $c "$line\r\n"
        if {[string match "WAIT*" $line] || [string match *9000 $line]} {
            wait_for "the client to wait" {[info_field blocked_clients] == 1}
        } else {
            resp::recv $c
        }
        close $::resp::fd($c) write
        resp::read_to_end $c
        drop $c
        wait_for "the connection to be gone" {[info_field connected_clients] == 1}
    }
}

test {... also when more waits behind its request than is read ahead} {
    set c [client]
    set id [$c client id]
    resp::send $c wait 1 0
    wait_for "the client to wait" {[info_field blocked_clients] == 1}
    # In steps, each of them read before the next: what is never read must fit into the sockets, or
    # its end does not come through.
    set sent 0
    set row ""
    while {![regexp {events= cmd=wait} $row]} {
        assert {$sent < 10000000} "it is read without an end: $row"
        resp::raw $c [string repeat "PING\r\n" 5000]
        incr sent 30000
        wait_for "it to be read, or not any more" {
            [set row [r client list id $id]] ne "" && \
                [regexp {qbuf=(\d+) .*(events=\w*) cmd=wait} $row -> waiting events] &&
            ($waiting >= $sent || $events eq "events=")
        }
    }
    assert {$waiting > 8000 && $waiting < $sent} "$waiting of $sent"
    drop $c
    wait_for "the connection to be gone" {[info_field connected_clients] == 1}
}

test {WAIT without an end: CLIENT UNBLOCK ends it} {
    set c [client]
    set id [$c client id]
    resp::send $c wait 1 0
    wait_for "the client to wait" {[info_field blocked_clients] == 1}
    assert_equal 1 [r client unblock $id]
    assert_equal 0 [resp::recv $c]
    drop $c
}

# --- readers that do not read ---

test {10 GiB of replies that nobody reads cost output-pause, and others nothing} {
    r flushall
    set big [string repeat x [expr {4 << 20}]]
    r set big $big
    set before [info_field used_memory]
    set slow [client]
    # 2560 replies of 4 MiB; every other one as an array.
    resp::raw $slow [string repeat [requests {get big} {mget big}] 1280]
    wait_for "the requests to be there" {[info_field total_net_output_bytes] > 1000000}
    for {set i 0} {$i < 200} {incr i} {assert_equal PONG [r ping]}
    assert {[info_field used_memory] - $before < 4000000} "[info_field used_memory] $before"
    # It gets what it reads, and the rest is gone with it.
    for {set i 0} {$i < 4} {incr i} {assert_equal "*$big*" *[resp::recv $slow]*}
    drop $slow
    wait_for "it to be gone" {[info_field connected_clients] == 1}
    assert {[info_field used_memory] - $before < 1000000} "[info_field used_memory] $before"
    r del big
    assert_equal OK [r debug check]
    assert_equal [info_field pool_size] [info_field pool_free]
}

test {small replies that nobody reads count towards client-output-buffer-limit} {
    r config set output-pause 1gb client-output-buffer-limit "normal 4mb 0 0"
    r set small [string repeat x 1000]
    set before [info_field used_memory]
    set dropped [info_field client_output_buffer_limit_disconnections]
    set slow [client]
    catch {for {set i 0} {$i < 20} {incr i}\
        {resp::raw $slow [string repeat [requests {get small}] 1000]; assert_equal PONG [r ping]}}
    wait_for "the client to be gone" {[update; info_field connected_clients] == 1}
    assert_equal [expr {$dropped + 1}] [info_field client_output_buffer_limit_disconnections]
    assert {[info_field used_memory] - $before < 1000000}
    catch {drop $slow}
    r config set output-pause 8mb client-output-buffer-limit "normal 1gb 0 0"
}

test {a request of many arguments is bounded by client-query-buffer-limit} {
    r config set client-query-buffer-limit 2mb proto-max-bulk-len 1mb
    set long [client]
    set dropped [info_field client_query_buffer_limit_disconnections]
    resp::raw $long "*10001\r\n\$4\r\nMSET\r\n"
    catch {for {set i 0} {$i < 500} {incr i}\
        {resp::raw $long [string repeat "\$1000\r\n[string repeat x 1000]\r\n" 20]; assert_equal\
        PONG [r ping]}}
    wait_for "the client to be gone" {[update; info_field connected_clients] == 1}
    assert_equal [expr {$dropped + 1}] [info_field client_query_buffer_limit_disconnections]
    catch {drop $long}
    r config set client-query-buffer-limit 1gb proto-max-bulk-len 512mb
}

test {MONITOR, SUBSCRIBE and PSUBSCRIBE that are never read are dropped at the limit of their\
        class} {
    r config set client-output-buffer-limit "pubsub 2mb 0 0"
    set text [string repeat x 100000]
    foreach line {MONITOR {SUBSCRIBE ch} {PSUBSCRIBE c*}} {
        set dropped [info_field client_output_buffer_limit_disconnections]
        set before [info_field used_memory]
        set deaf [client]
        resp::raw $deaf "$line\r\n"
        resp::recv $deaf
        for {set i 0} {$i < 1000 && [info_field client_output_buffer_limit_disconnections] ==\
                $dropped} {incr i} {
            r publish ch $text
            r set k $text
        }
        assert_equal [expr {$dropped + 1}] [info_field client_output_buffer_limit_disconnections]
        assert {$i < 500}
        wait_for "it to be gone" {[info_field connected_clients] == 1}
        assert {[info_field used_memory] - $before < 1000000}
        drop $deaf
    }
    r config set client-output-buffer-limit "pubsub 32mb 8mb 60"
    r del k
}

test {a reply that is not read does not keep space of the pool for ever} {
    r flushall
    set big [string repeat x [expr {8 << 20}]]
    r set big $big
    r config set inband-hold-timeout 3000
    set slow [client]
    resp::send $slow get big
    wait_for "the reply to begin" {[resp::readable $slow]}
    r del big
    assert {[info_field pool_quarantined] > 8000000}
    wait_for "it to be closed" {[info_field inband_hold_timeouts] == 1}
    wait_for "its space to be free" {[info_field pool_free] == [info_field pool_size]}
    drop $slow
}

test {a value that is announced and does not come does not keep space of the pool for ever} {
    set slow [client]
    resp::raw $slow "*3\r\n\$3\r\nSET\r\n\$1\r\nk\r\n\$8000000\r\n[string repeat x 100000]"
    wait_for "its room to be taken" {[info_field pool_used] > 7000000}
    wait_for "it to be closed" {[info_field inband_hold_timeouts] == 2}
    wait_for "its space to be free" {[info_field pool_free] == [info_field pool_size]}
    drop $slow
    # The whole value, and the rest of its request not.
    set slow [client]
    resp::raw $slow \
        "*4\r\n\$3\r\nSET\r\n\$1\r\nk\r\n\$100000\r\n[string repeat x 100000]\r\n\$2\r\n"
    wait_for "it to be closed" {[info_field inband_hold_timeouts] == 3}
    wait_for "its space to be free" {[info_field pool_free] == [info_field pool_size]}
    drop $slow
    # Those who keep the connection and hold nothing stay.
    set idle [client]
    resp::raw $idle "*2\r\n\$3\r\nGET\r\n"
    after 4500
    resp::raw $idle "\$1\r\nk\r\n"
    assert_equal (nil) [resp::recv $idle]
    drop $idle
    r config set inband-hold-timeout 60000
}

# --- replies of many parts ---

test {arrays whose length is known late and values of the pool, side by side, in any number} {
    r flushall
    r config set output-pause 100mb
    set big [string repeat b 12000000]
    r set pool [string repeat v 20000]
    r set big $big
    set kinds {{keys nokey} {keys *l} {scan 0 count 10000} {get pool} {echo x}\
        {mget pool nokey pool}}
    foreach request $kinds {dict set expected $request [r {*}$request]}
    # What stands before them is too much for the socket, so that they leave together.
    foreach lead {{keys nokey} {keys *l} {echo x}} {
        foreach request $kinds {
            set c [client]
            resp::raw $c [requests {get big} $lead][string repeat [requests $request] 100]
            wait_for "all of them to be answered" {[regexp {tot-cmds=102} [r client list]]}
            assert {[resp::recv $c] eq $big}
            assert {[resp::recv $c] eq [dict get $expected $lead]}
            for {set i 0} {$i < 100} {incr i} {
                assert {[resp::recv $c] eq [dict get $expected $request]} "$lead $request"
            }
            drop $c
        }
    }
    r config set output-pause 8mb
    r flushall
}

# --- arguments that were not taken ---

test {large arguments of a transaction that has failed are no part of any request} {
    set big [string repeat x 50000]
    r acl setuser limited on >p ~k* &c* +@all
    foreach login {{auth default p} {auth limited p}} {
        foreach request [list [list client $big] [list $big] [list $big $big] \
            [list config get $big] [list mputstart $big a 1] [list get $big] \
                [list mputend $big a 1 -1] [list prefixlen $big a] [list mget $big $big] \
                [list set k v $big 1] [list sort $big by $big] \
                [list publish $big m] [list subscribe $big] [list watch $big] [list unwatch $big] \
                [list exec $big] [list multi $big] \
                [list getex k $big] [list hello $big] [list auth $big] [list auth $big $big] \
                [list object freq $big] \
                [list memory usage $big] [list command getkeys $big] [list acl dryrun $big get k] \
                [list set $big $big] \
                [list wait $big 1] [list scan $big] [list debug $big] [list reset $big] \
                [list quit $big] [list kvevents $big]] {
            set c [client]
            catch {$c {*}$login}
            $c multi
            catch {$c nosuchcommand}
            catch {$c {*}$request}
            catch {$c exec}
            catch {drop $c}
            assert_equal PONG [r ping] [lrange [string range $request 0 100] 0 1]
        }
    }
    r acl deluser limited
    assert_equal OK [r debug check]
}

# --- announcements ---

test {lengths that are announced cost nothing: arrays and values of any size, in every position} {
    foreach {bytes answer} {
        "*2147483648\r\n" "invalid multibulk length" "*1048577\r\n" "invalid multibulk length"
        "*2\r\n\$9223372036854775807\r\n" "invalid bulk length" "*2\r\n\$536870913\r\n" \
            "invalid bulk length"
        "*-2147483648\r\nPING\r\n" PONG
    } {
        set c [client]
        resp::raw $c $bytes
        assert_match "*$answer*" [resp::recv $c]
        drop $c
    }
    set before [info_field used_memory]
    set many {}
    for {set i 0} {$i < 300} {incr i} {
        set c [client]
        lappend many $c
        switch [expr {$i % 5}] {
            0 {resp::raw $c "*1048576\r\n"}
            1 {resp::raw $c "*2\r\n\$536870912\r\n"}
            2 {resp::raw $c "*3\r\n\$3\r\nSET\r\n\$1\r\nk\r\n\$536870912\r\n"}
            3 {resp::raw $c "*3\r\n\$6\r\nAPPEND\r\n\$1\r\nk\r\n\$536870912\r\nx"}
            4 {resp::raw $c "MULTI\r\n*3\r\n\$3\r\nSET\r\n\$1\r\nk\r\n\$536870912\r\nx"}
        }
    }
    assert_equal PONG [r ping]
    wait_for "all to be there" {[info_field connected_clients] == 301}
    # 64 KiB for the first bytes of a large argument, and a few for the connection itself.
    assert {[info_field used_memory] - $before < 300 * 80000} "[info_field used_memory] - $before"
    foreach c $many {drop $c}
    wait_for "them to be gone" {[info_field connected_clients] == 1}
    assert {[info_field used_memory] - $before < 1000000} "[info_field used_memory] - $before"
    assert_equal OK [r debug check]
}

test {values that are announced do not drive out values that are there} {
    set value [string repeat v 1000000]
    for {set i 0} {$i < 40} {incr i} {r set v$i $value}
    set evicted [info_field evicted_keys]
    set many {}
    for {set i 0} {$i < 50} {incr i} {
        set c [client]
        lappend many $c
        resp::raw $c "*3\r\n\$3\r\nSET\r\n\$3\r\na[expr {10 + $i}]\r\n\$8000000\r\nx"
    }
    wait_for "all to be there" {[info_field connected_clients] == 51}
    assert_equal 40 [r exists {*}[batch v 40]]
    # They are as good as any when their bytes do come.
    set rest [string repeat y 7999999]
    foreach c [lrange $many 0 2] {
        resp::raw $c "$rest\r\n"
        assert_equal OK [resp::recv $c]
    }
    for {set i 0} {$i < 3} {incr i} {assert {[r get a1$i] eq "x$rest"}}
    foreach c $many {drop $c}
    wait_for "them to be gone" {[info_field connected_clients] == 1}
    assert_equal OK [r debug check]
    r flushall
    assert_equal [info_field pool_size] [info_field pool_free]
}
finish
