# Values of megabytes that threads move between sockets and the pool (io-threads): the right bytes,
# in order, and an end to all of it whatever happens meanwhile. io_threads_sockets_test has all that
# robust_sockets_test has to say, with such threads.
source [file join [file dirname [info script]] harness.tcl]
set threads {--io-threads 3 --io-threads-do-reads yes}
start_server --pool-size 256mb --enable-debug-command yes --inband-hold-timeout 0 {*}$threads

proc requests {args} {
    set out ""
    foreach request $args {append out [resp::encode $request]}
    return $out
}

# Bytes that tell where they are from: a copy that is off by one differs.
proc pattern {size seed} {
    set one ""
    for {set i 0} {$i < 1021} {incr i} {append one [format %c [expr {($i * 7 + $seed * 13) % 256}]]}
    return [string range [string repeat $one [expr {$size / 1021 + 1}]] 0 [expr {$size - 1}]]
}

# A client whose reply of $size bytes a thread has begun to send, and that does not read on.
proc slow_reader {key} {
    set c [client]
    set before [info_field io_threaded_writes_processed]
    resp::send $c get $key
    wait_for "the reply to begin" "\[resp::readable $c\]"
    assert_equal [expr {$before + 1}] [info_field io_threaded_writes_processed]
    return $c
}

# Half of a value, which a thread receives.
proc send_half {c key size value} {
    set before [info_field io_threaded_reads_processed]
    resp::raw $c "*3\r\n\$3\r\nSET\r\n\$[string length $key]\r\n$key\r\n\$$size\r\n[string range\
        $value 0 [expr {$size / 2}]]"
    wait_for "a thread to read it" "\[update; info_field io_threaded_reads_processed\] > $before"
}

# One whose value is half there.
proc slow_writer {key size value} {
    set c [client]
    send_half $c $key $size $value
    return $c
}

proc wait_alone {} {wait_for "the connection to be gone" {[info_field connected_clients] == 1}}

test {what is configured is what runs, and INFO counts what the threads moved} {
    assert_equal {io-threads 3 io-threads-do-reads yes} [r config get io-threads*]
    assert_equal 1 [info_field io_threads_active]
    r set small [pattern 100000 1]
    assert_equal [pattern 100000 1] [r get small]
    assert_equal 0 [info_field io_threaded_writes_processed]
    set value [pattern 5000000 2]
    set in [info_field total_net_input_bytes]
    set out [info_field total_net_output_bytes]
    assert_equal OK [r set big $value]
    assert {[r get big] eq $value}
    assert_equal 1 [info_field io_threaded_reads_processed]
    assert_equal 1 [info_field io_threaded_writes_processed]
    # INFO's own replies are counted, too, as they come behind the value on this connection.
    assert_range 5000000 [expr {[info_field total_net_input_bytes] - $in}] 5001000
    assert_range 5000000 [expr {[info_field total_net_output_bytes] - $out}] 5100000
    assert {[r getrange big 0 -1] eq $value}
    r flushall
}

test {a writer that is killed hears of it, also while it waits for room in the socket} {
    set size 60000000
    set rest [pattern 40000000 3]
    for {set round 0} {$round < 6} {incr round} {
        set c [client]
        set fd $::resp::fd($c)
        set id [$c client id]
        send_half $c big $size [string range $rest 0 600000]
        send_signal STOP [server pid]
        # All that the sockets take.
        resp::raw $c $rest
        for {set left -1} {[chan pending output $fd] != $left} {after 50; update} {
            set left [chan pending output $fd]
        }
        resp::send [r] client kill id $id
        send_signal CONT [server pid]
        assert_equal 1 [resp::recv [r]]
        assert {$left > 0}
        wait_for "it to be told, in round $round" \
            {[update; catch {puts -nonewline $fd x; flush $fd}]}
        drop $c
    }
    wait_alone
}

test {pipelines: large and small, in and out, keep their order} {
    set sizes {262144 300000 1048576 4194304 5000001 70000 10}
    foreach size $sizes {dict set values $size [pattern $size $size]}
    set many {}
    for {set i 0} {$i < 6} {incr i} {lappend many [client]}
    for {set round 0} {$round < 3} {incr round} {
        foreach c $many {
            foreach size $sizes {
                resp::raw $c [requests [list set k$size [dict get $values $size]] \
                    [list get k$size] ping [list mget k$size none k10]]
            }
        }
        foreach c $many {
            foreach size $sizes {
                assert_equal OK [resp::recv $c]
                assert {[resp::recv $c] eq [dict get $values $size]} "$size"
                assert_equal PONG [resp::recv $c]
                lassign [resp::recv $c] first none ten
                assert {$first eq [dict get $values $size]} "$size"
                assert_equal {(nil)} $none
            }
        }
    }
    foreach c $many {drop $c}
    wait_alone
    r flushall
    assert_equal [info_field pool_size] [info_field pool_free]
}

test {who leaves, or is sent away, in the middle of a value frees its room} {
    set value [pattern 20000000 3]
    r set big $value
    set used [info_field pool_used]
    foreach how {close kill} {
        set c [slow_reader big]
        if {$how eq "kill"} {assert_equal 1 [r client kill type normal skipme yes]}
        drop $c
        wait_alone
        set c [slow_writer new 20000000 $value]
        assert {[info_field pool_used] > $used}
        if {$how eq "kill"} {assert_equal 1 [r client kill type normal skipme yes]}
        drop $c
        wait_alone
        assert_equal $used [info_field pool_used]
        assert_equal 0 [r exists new]
    }
    assert_equal OK [r debug check]
}

test {a value that is deleted, or replaced, while it is sent arrives as it was} {
    set value [pattern 20000000 3]
    foreach change {{del big} {set big other} flushall} {
        r set big $value
        set c [slow_reader big]
        r {*}$change
        r set next [pattern 20000000 4]
        assert {[resp::recv $c] eq $value} $change
        drop $c
    }
    wait_alone
    r flushall
    assert_equal [info_field pool_size] [info_field pool_free]
}

test {a value that comes slowly is there when it is whole; another SET, or FLUSHALL, in its time\
        may come behind it} {
    set value [pattern 16000000 5]
    foreach {change after} {ping whole {del k} whole {set k other} other flushall (nil)} {
        set c [slow_writer k 16000000 $value]
        r {*}$change
        resp::raw $c "[string range $value 8000001 end]\r\n"
        assert_equal OK [resp::recv $c]
        if {$after eq "whole"} {set after $value}
        assert {[r get k] eq $after} $change
        drop $c
    }
    wait_alone
    r flushall
    assert_equal [info_field pool_size] [info_field pool_free]
}

test {a writer that half closes behind its value is answered; one that does so within it is gone} {
    set value [pattern 8000000 6]
    set c [client]
    resp::raw $c [requests [list set half $value] {strlen half} {get half}]
    close $::resp::fd($c) write
    set got [resp::read_to_end $c]
    assert {$got eq "+OK\r\n:8000000\r\n\$8000000\r\n$value\r\n"}
    drop $c
    set c [slow_writer part 8000000 $value]
    close $::resp::fd($c) write
    assert_equal "" [resp::read_to_end $c]
    drop $c
    wait_alone
    assert_equal 0 [r exists part]
}

test {messages and replies go out while a thread receives for the same client} {
    set value [pattern 8000000 7]
    r set old $value
    set c [client]
    # Its replies are far from read when the value behind them comes in.
    resp::raw $c [requests {get old} {get old} [list set new $value] {get new}]
    assert {[resp::recv $c] eq $value}
    assert {[resp::recv $c] eq $value}
    assert_equal OK [resp::recv $c]
    assert {[resp::recv $c] eq $value}
    drop $c
    set c [client]
    $c hello 3
    $c subscribe news
    send_half $c new 8000000 $value
    assert_equal 1 [r publish news hello]
    assert_match "*hello*" [resp::recv $c]
    resp::raw $c "[string range $value 4000001 end]\r\n"
    assert_equal OK [resp::recv $c]
    drop $c
    wait_alone
    r flushall
}

# Bytes that were sent to the client so far, when it is no more for a while.
proc settled {id} {
    set last -1
    for {set i 0} {$i < 100} {incr i} {
        regexp "id=$id .* tot-net-out=(\\d+)" [r client list] - now
        if {$now == $last} {return $now}
        set last $now
        after 500
    }
    error "bytes go out to who does not read"
}

test {what a thread is sending is sent by nobody else, however the socket fills} {
    r set big [pattern 8000000 11]
    set c [client]
    set id [$c client id]
    set before [settled $id]
    resp::send $c get big
    wait_for "the reply to begin" "\[resp::readable $c\]"
    set room [expr {[settled $id] - $before}]
    drop $c
    # The bytes behind the value go along with it. The socket fills in the middle of them; then
    # something else is said.
    set value [pattern [expr {$room - 2000}] 12]
    r set big $value
    set c [client]
    set id [$c client id]
    resp::raw $c "[requests {get big}][string repeat "PING\r\n" 550]"
    settled $id
    set all "\$[string length $value]\r\n$value\r\n[string repeat "+PONG\r\n" 550][string repeat\
        "\$3\r\nxyz\r\n" 40]"
    # A loop may send as soon as there is any room; a thread is woken when there is much.
    set got ""
    for {set i 0} {$i < 40} {incr i} {
        resp::send $c echo xyz
        r ping
        append got [resp::recv_raw $c 5000]
    }
    append got [resp::recv_raw $c [expr {[string length $all] - [string length $got]}]]
    assert {$got eq $all}
    assert_equal PONG [$c ping]
    drop $c
    wait_alone
    r flushall
}

test {DEBUG RELOAD and REPLICAOF do not wait for those who do not read or write on: what they held\
        goes} {
    set value [pattern 20000000 9]
    foreach change {{debug reload} {debug reload nosave}} {
        r set big $value
        r save
        slow_reader big
        slow_writer new 12000000 $value
        assert_equal OK [r {*}$change]
        wait_alone
        assert {[r get big] eq $value} $change
        assert_equal 0 [r exists new]
        assert_equal OK [r debug check]
        # Its own values go out first.
        set c [client]
        resp::raw $c [requests {get big} $change {get big}]
        assert {[resp::recv $c] eq $value} $change
        assert_equal OK [resp::recv $c]
        assert {[resp::recv $c] eq $value} $change
        drop $c
        wait_alone
        r flushall
    }
    # Values of another machine lie in buffers of this process.
    start_server --pool-size 0 {*}$threads
    start_node n1 --segment 128mb
    set value [pattern 12000000 10]
    wait_node n1 up
    r set far $value
    assert {[r get far] eq $value}
    slow_reader far
    slow_reader far
    assert_equal OK [r replicaof 127.0.0.1 1]
    wait_alone
    assert_equal OK [r replicaof no one]
    wait_node n1 up
    stop_server
}

test {SHUTDOWN does not wait for those who do not read or write on} {
    start_server --pool-size 256mb {*}$threads
    set value [pattern 20000000 8]
    r set big $value
    for {set i 0} {$i < 4} {incr i} {
        slow_reader big
        slow_writer new$i 12000000 $value
    }
    stop_server
}

finish
