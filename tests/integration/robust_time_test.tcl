# A server that stands still for a while, whose wall clock jumps, whose output nobody reads any
# more, whose peers vanish.
source [file join [file dirname [info script]] harness.tcl]
set plain [expr {![info exists ::env(TARN_SANITIZER)] || $::env(TARN_SANITIZER) eq ""}]

test {a server that stood still for longer than node-timeout: nodes and clients are as they were} {
    start_server --pool-size 0 --node-heartbeat 200 --node-timeout 3000 --timeout 5 \
        --enable-debug-command yes
    start_node n1 --segment 16mb
    assert_equal 20 [dict get [kv load s 20 1000-100000] ok]
    set waiting [client]
    set silent [client]
    $silent ping
    set epoch [segment_field n1.0 epoch]
    send_signal STOP [server pid]
    set ::paused [server pid]
    wait_for "the server to stand still" {![catch {threads_stopped $::paused} ::threads_done] && \
        $::threads_done}
    # Asked while it stood still; and a new connection.
    resp::send $waiting getreplicas s0 wait 0
    resp::send [set late [client]] ping
    after 6500
    send_signal CONT [server pid]
    assert {[resp::recv $waiting] ne "(nil)"}
    assert_equal PONG [resp::recv $late]
    assert_equal up [node_state n1]
    kv_all 20 verify s 20 1000-100000
    assert_equal $epoch [segment_field n1.0 epoch]
    assert {![regexp {node n1 .*(down|lost|silent)} [file_text [server log]]]} \
        [file_text [server log]]
    # timeout 5: it was silent all the while.
    assert_equal "" [resp::read_to_end $silent]
    assert_equal OK [r debug check]
    stop_server
}

test {wall time that jumps, forward and back, ends nothing but what ends at a time of the day} {
    if {!$plain || ![info exists ::env(TARN_FAULT)]} {
        skip "a server without sanitizers, and the library of tests/fault"
    }
    set wall [file join [temp_dir] wall]
    proc jump {seconds} {
        set f [open $::wall [list WRONLY CREAT]]
        fconfigure $f -translation binary
        puts -nonewline $f [binary format w $seconds]
        close $f
    }
    jump 0
    set ::prefix [list env LD_PRELOAD=$::env(TARN_FAULT) TARN_FAULT_WALL=$wall]
    start_server --pool-size 16mb --node-heartbeat 200 --node-timeout 2000 --timeout 60 \
        --appendonly yes --put-timeout 60000 --enable-debug-command yes
    set ::prefix {}
    start_node n1 --segment 16mb
    set now [clock seconds]
    assert_equal 20 [dict get [kv load w 20 1000-100000] ok]
    set idle [client]
    $idle ping
    set run [kv_start --fill run v 50 20000]
    set before 0
    foreach by {86400 -172800 31536000 -31536000 0} {
        r set day v ex 3600
        r set far v exat [expr {$now + 10 * 31536000}]
        set put [r putstart wp$by 3000]
        set version [lindex [r getreplicas w0 lease 10000] 0]
        jump $by
        wait_for "the server to see it" {abs([lindex [r time] 0] - [clock seconds] - $::by) < 30}
        assert_equal [expr {$by - $before > 3600 ? 0 : 1}] [r exists day]
        set before $by
        assert_equal 1 [r exists far]
        # Leases, puts, sessions, heartbeats and idle times go by the time that only goes on.
        assert_equal 1 [r release 1 w0 $version]
        assert_equal OK [r putend wp$by [lindex $put 0] -1]
        assert_equal PONG [$idle ping]
        for {set i 0} {$i < 5} {incr i} {
            after 50
            assert_equal PONG [r ping]
        }
        assert_equal up [node_state n1]
        set blocked [client]
        assert_equal (nil) [$blocked getreplicas nokey wait 100]
        drop $blocked
        kv_all 20 verify w 20 1000-100000
        r client pause 50
        assert_equal OK [r set after pause]
        r debug sleep 0.05
        r slowlog get
        r config set slowlog-log-slower-than 0
    }
    set a [kv_stop $run]
    assert_equal "0 0" [kv_fields $a wrong errors] [dict get $a error]
    assert_equal OK [r debug check]
    assert_equal $idle [lindex $::clients [lsearch $::clients $idle]]
    # Loaded again, on another day: what is over by then is not there.
    r config set save ""
    r set day v ex 3600
    jump 86400
    set ::prefix [list env LD_PRELOAD=$::env(TARN_FAULT) TARN_FAULT_WALL=$wall]
    restart_server TERM
    set ::prefix {}
    assert_equal 0 [r exists day]
    assert_equal 1 [r exists far]
    stop_server
}

test {a server whose output nobody reads any more goes on} {
    set dir [temp_dir]
    set command [server_command $dir {--logfile {} --loglevel debug --pool-size 0}]
    set pid [start_process [list sh -c "\"\$@\" 2>&1 | head -c 10 > /dev/null" sh {*}$command] \
        $dir/stdout]
    set ::dir $dir
    wait_for "the server to start" {[file_text $::dir/port] ne ""}
    set c [resp::connect 127.0.0.1 [string trim [file_text $dir/port]]]
    for {set i 0} {$i < 50} {incr i} {
        assert_equal PONG [$c ping]
        resp::close [resp::connect 127.0.0.1 [string trim [file_text $dir/port]]]
        catch {$c config set save nonsense}
    }
    assert_equal OK [$c set k v]
    resp::send $c shutdown nosave
    catch {resp::read_to_end $c}
    resp::close $c
    assert_equal 0 [reap_process $pid]
}

test {a peer that vanishes without a word is found by tcp-keepalive} {
    start_server --pool-size 16mb --tcp-keepalive 1
    # A socket that is closed under repair sends nothing; its machine answers the probe, and says
    # that nobody is there.
    set code {import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(b"SUBSCRIBE ch\r\n")
s.recv(100)
try:
    s.setsockopt(socket.IPPROTO_TCP, 19, 1)
except OSError:
    print("not allowed")
s.close()}
    if {[auto_execok python3] eq "" || [exec python3 -c $code [server port]] ne ""} {
        skip "TCP_REPAIR, which needs the right to it"
    }
    assert_equal ch [r pubsub channels]
    wait_for "it to be missed" {[r pubsub channels] eq ""}
    wait_for "its connection to be gone" {[info_field connected_clients] == 1}
    stop_server
}
finish
