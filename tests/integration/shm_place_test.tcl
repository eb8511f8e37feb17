# The unix socket of shared memory: where it goes by itself, and what happens when somebody else is
# there already.
source [file join [file dirname [info script]] harness.tcl]

# Without a --port of the harness' choice the name is known only when it is up: so a port that was
# free a moment ago.
proc free_port {} {
    set s [socket -server {apply {args {}}} -myaddr 127.0.0.1 0]
    set port [lindex [fconfigure $s -sockname] 2]
    close $s
    return $port
}
set ::run [temp_dir]
file attributes $::run -permissions 0700
set ::env(RUNTIME_DIRECTORY) $::run
proc warnings {text} {return [regexp -all {[^\n]* # [^\n]*shm socket[^\n]*} $text]}

test {the socket lies in the runtime directory, for its user only} {
    start_server --port [set port [free_port]] --shm-socket auto
    assert_equal $::run/tarn-$port.sock [info_field shm_socket]
    assert_equal 600 [exec stat -c %a $::run/tarn-$port.sock]
    kv load a: 10 1000-100000
    set a [kv_all 10 verify a: 10 1000-100000]
    assert_equal [dict get $a bytes] [dict get $a shm_bytes]
    assert_equal 0 [dict get $a shm_unreachable]
    stop_server
    assert {![file exists $::run/tarn-$port.sock]}
}

proc without_shm {port} {
    start_server --port $port --shm-socket auto
    assert_equal {} [info_field shm_socket]
    assert_equal 1 [warnings [file_text [server log]]]
    assert_match "*shm socket $::run/tarn-$port.sock: Address already in use*" \
        [file_text [server log]]
    kv load a: 10 1000-100000
    set a [kv_all 10 verify a: 10 1000-100000]
    assert_equal [dict get $a bytes] [dict get $a tcp_bytes]
    stop_server
}

test {guarantee 6: a link in the place of the socket is not followed, and the server starts\
        without shared memory} {
    foreach target {/nowhere/at/all /dev/null} {
        set port [free_port]
        exec ln -s $target $::run/tarn-$port.sock
        without_shm $port
        assert_equal link [file type $::run/tarn-$port.sock]
        file delete $::run/tarn-$port.sock
    }
}

test {guarantee 6: somebody listens in the place of the socket, and the server starts without\
        shared memory} {
    start_server --port [set port [free_port]] --unixsocket $::run/other.sock
    set other [free_port]
    file link -hard $::run/tarn-$other.sock $::run/other.sock
    without_shm $other
    file delete $::run/tarn-$other.sock
    stop_server
}

test {a socket that was asked for is served, or the server does not start} {
    set path $::run/asked.sock
    exec ln -s $::run/gone $path
    assert_error "*shm socket $path: Address already in use*" {start_server --shm-socket $path}
    file delete $path
}

test {a node without a place for its socket serves by tcp} {
    start_server --pool-size 0
    exec ln -s $::run/gone $::run/tarn-node-n1.sock
    start_node n1 --segment 16mb --shm-socket auto
    assert {![string match *shm:* [segment_field n1.0 endpoints]]}
    assert_equal 1 [warnings [file_text [node n1 log]]]
    assert_equal "5 0" [kv_fields [kv load n: 5 1000-100000] ok errors]
    stop_node n1
    file delete $::run/tarn-node-n1.sock
    stop_server
}

# What it says of that: tests/python/client_test.py.
test {libtarn counts the segments of this machine that it cannot map} {
    start_server --shm-socket auto
    assert_equal "10 0" [kv_fields [kv load a: 10 1000-100000] ok errors]
    file delete [info_field shm_socket]
    set a [kv_all 10 verify a: 10 1000-100000]
    assert_equal [dict get $a bytes] [dict get $a tcp_bytes]
    assert {[dict get $a shm_unreachable] >= 1}
    stop_server
}

finish
