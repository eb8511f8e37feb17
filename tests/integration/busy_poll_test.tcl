# busy-poll: whoever waits for what comes soon looks for it before he sleeps. What it changes is
# time only; here it is about when it ends, and that bytes and ends of processes are what they are
# without.
source [file join [file dirname [info script]] harness.tcl]

# As long as it may be: on a busy machine, too, answers come within that time.
start_server --pool-size 64mb --busy-poll 10000 --put-timeout 1s

proc polls {} {info_field loop_busy_polls}

proc one_at_a_time {n} {for {set i 0} {$i < $n} {incr i} {assert_equal PONG [r ping]}}

proc hits_after {n} {
    one_at_a_time $n
    return [info_field loop_busy_poll_hits]
}

test {a client that asks one at a time is looked for, and found} {
    set ::hits [info_field loop_busy_poll_hits]
    wait_for "the loop to look and find" {[hits_after 100] > $::hits + 50}
    assert {[info_field loop_busy_poll_hits] <= [polls]}
}

test {nobody is looked for when nobody asks} {
    after 500
    set before [polls]
    after 2000
    # The request for the figure, and the one before it.
    assert_range 0 [expr {[polls] - $before}] 2
}

test {one block a call, by either way; every byte is right} {
    foreach transport {shm tcp} {
        kv_all 100 --batch 1 --transport $transport load $transport 100 262144
        kv_all 100 --batch 1 --transport $transport verify $transport 100 262144
    }
}

test {a server that is stopped while clients wait is waited for} {
    set run [kv_start --batch 1 --transport tcp --fill --timeout 60000 run tcp 100 262144]
    for {set i 0} {$i < 3} {incr i} {
        send_signal STOP [server pid]
        after 300
        send_signal CONT [server pid]
        after 100
    }
    assert_equal {0 0} [kv_fields [kv_stop $run] errors wrong]
}

test {a client that is killed while it looks leaves nothing behind} {
    lassign [kv_start --batch 1 --fill --replace run shm 100 262144] pid
    after 200
    send_signal KILL $pid
    catch {reap_process $pid}
    wait_for "its puts and leases to be over" {
        [info_field leases] == 0 && [info_field puts_open] == 0
    }
}

test {a server ends while a client keeps it looking} {
    start_server --pool-size 64mb --busy-poll 10000
    set run [kv_start --batch 1 --fill --timeout 1000 run end 100 262144]
    after 200
    stop_server
    assert_equal 0 [dict get [kv_stop $run] wrong]
}

test {busy-poll 0: nobody looks} {
    start_server --pool-size 64mb --busy-poll 0
    one_at_a_time 1000
    assert_equal 0 [polls]
    stop_server
}

finish
