# While the pool is being populated: LOADING with how far it is, and the rest goes on.
source [file join [file dirname [info script]] harness.tcl]

if {![info exists env(TARN_FAULT)] || ![file exists $env(TARN_FAULT)] || \
        ([info exists env(TARN_SANITIZER)] && $env(TARN_SANITIZER) ne "")} {
    test {populating} {skip "this build has no library of faults"}
    finish
    exit
}

proc free_port {} {
    set s [socket -server {apply {args {}}} -myaddr 127.0.0.1 0]
    set port [lindex [fconfigure $s -sockname] 2]
    close $s
    return $port
}

proc faulty {fault} {
    set ::prefix [list env LD_PRELOAD=$::env(TARN_FAULT) TARN_FAULT=$fault TARN_FAULT_HOLD=$::hold]
}
# Populating comes to a stop after some pieces, until proceed.
set hold [file join [temp_dir] hold]
proc faulty_slow {} {
    close [open $::hold w]
    faulty madvise:slow:7
}
proc proceed {} {file delete $::hold}

# Words behind the options, of which some may be there several times.
set more {}

# It listens when this returns, and is not ready. Somebody else may take the port before it does:
# then another one.
proc launch_server {args} {
    for {set tries 0} {$tries < 20} {incr tries} {
        set dir [temp_dir]
        set port [free_port]
        set server [dict create dir $dir log $dir/log options \
            [list --port $port --pool-populate yes {*}$args] port $port]
        dict set server pid [start_process \
            [concat [server_command $dir [dict get $server options]] $::more] $dir/stdout]
        set ::launched $server
        wait_for "it to have its port" \
            {[string match "*starting, PID*" [file_text [dict get $::launched log]]] ||
            [process_state [dict get $::launched pid]] eq "gone"}
        if {[string match "*starting, PID*" [file_text [dict get $server log]]]} break
        reap_process [dict get $server pid]
    }
    set ::prefix {}
    lappend ::servers $server
    wait_for "it to listen" {[process_state [dict get $::launched pid]] eq "gone" || \
        ![catch {close [socket 127.0.0.1 [dict get $::launched port]]}]}
}
proc request {port head body} {
    set s [socket 127.0.0.1 $port]
    fconfigure $s -translation lf
    puts -nonewline $s "$head\r\n\r\n$body"
    flush $s
    set answer [read $s]
    close $s
    return $answer
}
proc probe {path} {return [request [info_field http_port] "GET $path HTTP/1.0" ""]}
proc ready {} {return [expr {[file_text [server dir]/port] ne ""}]}

test {a server whose pool is being populated says LOADING and how far it is; who waits for it goes\
        on} {
    faulty_slow
    set more {--loadmodule "conductor.so http-port 0 http-open yes"}
    launch_server --pool-size 256mb --loadmodule "http.so port 0"
    set more {}
    assert_match "HTTP/1.1 200*" [probe /health]
    assert_match "HTTP/1.1 503*not ready: the pool is populated*" [probe /ready]
    assert_error "LOADING *populating its pool: * % of 256 MiB are done, about * s are left" \
        {r ping}
    assert_error "LOADING *" {r exists a}
    assert_error "LOADING *" {r conductor.add e http://e MODEL m}
    assert_match "HTTP/1.1 503*LOADING tarn is populating its pool: *" \
        [request [info_field http_port_conductor] "POST /register HTTP/1.0\r\nContent-Length: 2" \
        "{}"]
    assert_error "LOADING *" {r putstart a 100000}
    assert_error "EXECABORT*" {r multi; catch {r set a b}; r exec}
    assert_equal 1 [info_field loading]
    assert_equal [expr {(256 << 20) + 4096}] [info_field loading_total_bytes]
    assert {[info_field loading_start_time] > 0}
    wait_for "some of it" {[info_field loading_loaded_bytes] >= 7 << 22}
    assert {[info_field loading_loaded_perc] > 0 && [info_field loading_loaded_perc] <= 100}
    assert_range 0 [info_field loading_eta_seconds] 100000
    wait_for "a line" {[string match "*Populating the pool: * of 256 MiB (* %), about * s left*"\
        [file_text [server log]]]}
    # Who calls waits, within the time of his call; here it begins before this proceeds.
    set calls [info_field total_commands_processed]
    set run [start_process [list $::kv_binary [server_url] put waits 100000] [server dir]/waits]
    set ::asked [expr {$calls + 5}]
    wait_for "it to ask" {[info_field total_commands_processed] > $::asked}
    assert {![ready]}
    # In-band values wait: an error would put clients out of step that know none.
    r config set inband-wait-timeout 10m
    foreach request {{set a b} {get a} {set large LARGE} {mset c d}} {
        lappend waiting [set c [client]]
        resp::send $c {*}[string map [list LARGE [string repeat l 300000]] $request]
    }
    wait_for "them to wait" {[info_field inband_later_clients] == 4}
    foreach c $waiting {assert {![resp::readable $c]}}
    proceed
    lassign [lmap c $waiting {resp::recv $c}] set_a get_a set_large mset
    assert_equal {OK OK OK} [list $set_a $set_large $mset]
    assert {$get_a in {b (nil)}} $get_a
    assert_equal 300000 [r strlen large]
    assert_equal 0 [reap_process $run]
    assert_equal "1 0" [kv_fields [kv_answer [list 0 [file_text [server dir]/waits] ""]] ok errors]
    assert_equal 100000 [r strlen waits]
    wait_for "it to be ready" {[ready]}
    assert_equal "PONG 0" [list [r ping] [info_field loading]]
    assert_match "*Populating the pool: *Ready to accept connections*" [file_text [server log]]
    stop_server
}

test {a server ends in the middle of populating} {
    faulty_slow
    launch_server --pool-size 256mb
    send_signal TERM [server pid]
    wait_for "it to know" {[string match "*SIGTERM*" [file_text [server log]]]}
    proceed
    assert_equal 0 [reap_process [server pid]]
    assert {![ready]}
    set ::servers [lrange $::servers 0 end-1]
}

test {a pool that cannot be populated ends the server, with the reason} {
    faulty madvise:fail:20
    launch_server --pool-size 256mb
    assert_equal 1 [reap_process [server pid]]
    assert_match "*could not be populated: *memory*pool-populate no*" [file_text [server log]]
    set ::servers [lrange $::servers 0 end-1]
}

test {a node tells how far it is from the first second on, and joins when it is populated} {
    start_server --pool-size 0
    faulty_slow
    set dir [temp_dir]
    dict set ::node_table n1 [dict create pid 0 dir $dir log $dir/log options {}]
    set command [node_command n1 $dir {--segment 256mb}]
    dict set ::node_table n1 pid [start_process [lsearch -all -inline -not -exact $command \
        --no-populate] $dir/stdout]
    set ::prefix {}
    wait_for "a line" {[string match "*Populating the pool: * of 256 MiB (* %), about * s left*"\
        [file_text [node n1 log]]]}
    assert {[node_state n1] ne "up"}
    proceed
    wait_node n1 up
    assert_equal 1 [dict get [kv put x 100000] ok]
    stop_node n1
    stop_server
}

finish
