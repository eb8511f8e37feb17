# /health and /ready in each state of a server, as Kubernetes' probes ask for them: startup and
# liveness by the one, readiness by the other. (While the pool is populated: loading_test.tcl.)
source [file join [file dirname [info script]] harness.tcl]

proc probe {port path} {
    set s [socket 127.0.0.1 $port]
    puts $s "GET $path HTTP/1.0\n\n"
    flush $s
    set answer [read $s]
    close $s
    assert {[regexp {^HTTP/1.1 (\d+) .*\n\r?\n(.*)\n$} $answer -> status text]} $answer
    return "$status $text"
}
proc start_probed {args} {
    start_server --enable-debug-command yes {*}$args --loadmodule "http.so port 0"
    return [info_field http_port]
}
# Whatever it is not ready for, it is alive.
proc assert_not_ready {why {port ""}} {
    if {$port eq ""} {set port $::http_port}
    assert_equal "503 not ready: $why" [probe $port /ready]
    assert_equal "200 ok" [probe $port /health]
}
proc assert_ready {{port ""}} {
    if {$port eq ""} {set port $::http_port}
    assert_equal "200 ready" [probe $port /ready]
    assert_equal "200 ok" [probe $port /health]
}

test {it serves} {
    set http_port [start_probed]
    assert_ready
}

test {nodes of before a restart are awaited} {
    start_probed --pool-size 0 --appendonly yes --node-heartbeat 100 --node-timeout 30s
    start_node n1 --segment 32mb
    wait_node n1 up
    r set k v
    pause_node n1
    restart_server
    set http_port [info_field http_port]
    assert_not_ready "nodes of before the restart are awaited"
    continue_node n1
    wait_node n1 up
    wait_for "nothing is awaited" {[probe $::http_port /ready] eq "200 ready"}
    assert_ready
    stop_node n1
    stop_server
}

test {a replica: without its master's books, while they come, and with them} {
    start_server --pool-size 0 --enable-debug-command yes
    set master [client]
    $master debug populate 50000 k 10
    set http_port [start_probed --pool-size 0]
    # somebody who says nothing
    set silent [socket -server {apply {args {}}} -myaddr 127.0.0.1 0]
    r replicaof 127.0.0.1 [lindex [fconfigure $silent -sockname] 2]
    assert_not_ready "the master's books are awaited"
    close $silent
    # with little work in a turn they take a while
    $master config set loop-work-quota 50
    r replicaof 127.0.0.1 [dict get [lindex $::servers end-1] port]
    wait_for "they come" {[info_field master_sync_in_progress] == 1}
    assert_not_ready "the books are loaded from the master"
    $master config set loop-work-quota 100000
    wait_for "they are here" {[probe $::http_port /ready] eq "200 ready"}
    assert_ready
}

test {a replica whose master is away is asked, unless it may not answer} {
    set silent [socket -server {apply {args {}}} -myaddr 127.0.0.1 0]
    r replicaof 127.0.0.1 [lindex [fconfigure $silent -sockname] 2]
    wait_for "it to notice" {[info_field master_link_status] eq "down"}
    assert_ready
    r config set replica-serve-stale-data no
    assert_not_ready "the master is away, and replica-serve-stale-data is no"
    r replicaof no one
    close $silent
    assert_ready
}

test {SHUTDOWN waits for a replica that is behind} {
    set http_port [start_probed --pool-size 0 --shutdown-timeout 1000]
    set master [client]
    set port [server port]
    start_server --pool-size 0 --replicaof "127.0.0.1 $port"
    set replica [server pid]
    wait_for "it follows" {[info_field connected_slaves $::master] == 1 &&
        [info_field master_link_status] eq "up"}
    send_signal STOP $replica
    $master debug populate 100 k 10
    set asks [resp::connect 127.0.0.1 $port]
    resp::send $asks shutdown nosave
    wait_for "it waits" {[string match *shutdown_in_milliseconds* [$::master info server]]}
    assert_not_ready "it is stopping"
    assert_equal OK [$master shutdown abort]
    catch {resp::recv $asks}
    assert_ready
    send_signal CONT $replica
}

test {a loop that is busy answers late, and all who asked meanwhile} {
    set http_port [start_probed]
    set c [client]
    resp::send $c debug sleep 0.5
    set all {}
    for {set i 0} {$i < 5} {incr i} {
        lappend all [set s [socket 127.0.0.1 $http_port]]
        puts $s "GET /health HTTP/1.0\n\n"
        flush $s
    }
    foreach s $all {
        assert_match "HTTP/1.1 200*" [read $s]
        close $s
    }
    assert_equal OK [resp::recv $c]
}

finish
