# Transfers between engines: the benchmark in one process and in two, names that the master keeps,
# the example.
source [file join [file dirname [info script]] harness.tcl]

proc binary {name} {
    set path [file join [file dirname $::server_binary] $name]
    return [expr {[file executable $path] ? $path : [file join $::root src $name]}]
}
set bench [binary tarn-benchmark]
set example [file join [file dirname $::server_binary] examples transfer]
if {![file executable $example]} {set example [file join $::root build release examples transfer]}

proc transfer {args} {return [exec $::bench --json transfer {*}$args 2>@1]}
proc field {json name} {
    if {![regexp "\"$name\":(\"\[^\"\]*\"|\[-0-9.e+\]+)" $json -> value]} {
        error "no $name in: $json"
    }
    return [string trim $value \"]
}
proc assert_moved {json transport} {
    assert_equal $transport [field $json transport]
    assert_equal 0 [field $json failed]
    assert_equal 0 [field $json mismatched_blocks]
    assert {[field $json gb_per_s] > 0}
}

# A target in a process of its own, and the endpoint that it prints.
set targets 0
proc start_target {args} {
    set ::target_out [file join [temp_dir] target[incr ::targets]]
    set pid [start_process [list $::bench --json transfer --mode target --buffer 16m {*}$args] \
        $::target_out]
    wait_for "a target" {[regexp endpoint [file_text $::target_out]]}
    return [list $pid [field [file_text $::target_out] endpoint]]
}
proc stop_target {pid {signal TERM}} {
    send_signal $signal $pid
    return [reap_process $pid]
}

foreach {transport memory expected} {shm {} shm tcp {} tcp auto {} shm auto --foreign tcp tcp\
        --foreign tcp} {
    test "both ends in one process: $transport $memory" {
        foreach op {read write} {
            set json [transfer --transport $transport {*}$memory --op $op --buffer 16m --count 10 \
                --check --threads 2]
            assert_moved $json $expected
            assert_equal [expr {2 * 10 * 128 * 65536}] [field $json bytes]
            assert_equal [expr {2 * 10 * 128}] [field $json operations]
        }
    }
}

test {neighbours are merged} {
    set json [transfer --buffer 16m --count 10 --batch 64 --merge --check]
    assert_moved $json shm
    assert_equal 10 [field $json operations]
}

test {by RDMA, where there is a module for tests} {
    if {![info exists ::env(TARN_RDMA_FAKE)] || ![file readable $::env(TARN_RDMA_FAKE)]} {
        skip "no RDMA module for tests (TARN_RDMA_FAKE)"
    }
    set ::env(TARN_MODULE_PATH) [file dirname $::env(TARN_RDMA_FAKE)]
    foreach memory {{} --foreign} {
        foreach op {read write} {
            assert_moved [transfer --transport rdma {*}$memory --op $op --buffer 16m --count 5 \
                --check] rdma
        }
        lassign [start_target {*}$memory] pid endpoint
        assert_moved [transfer --mode initiator --peer $endpoint --transport rdma --count 5 \
            --check] rdma
        assert_moved [transfer --mode initiator --peer $endpoint --transport rdma --op write \
            --count 5 --check] rdma
        assert_equal 0 [stop_target $pid]
    }
    unset ::env(TARN_MODULE_PATH)
}

test {a target and an initiator, by endpoint} {
    lassign [start_target] pid endpoint
    # What is read must be the target's own pattern, so writing comes last.
    foreach transport {shm tcp} {
        assert_moved [transfer --mode initiator --peer $endpoint --transport $transport --count 20 \
            --check] $transport
    }
    foreach transport {shm tcp} {
        assert_moved [transfer --mode initiator --peer $endpoint --transport $transport --op write \
            --count 20 --check] $transport
    }
    assert_equal 0 [stop_target $pid]
    assert_error "*nobody answers*" {transfer --mode initiator --peer $endpoint --count 1}
}

test {a secret that is another} {
    lassign [start_target --secret "open sesame"] pid endpoint
    assert_moved [transfer --mode initiator --peer $endpoint --secret "open sesame" --count 2] shm
    assert_error "*has another secret*" {transfer --mode initiator --peer $endpoint\
        --secret "open barley" --count 2}
    assert_error "*has a secret*" {transfer --mode initiator --peer $endpoint --count 2}
    assert_equal 0 [stop_target $pid]
    assert_error "*loopback only*" {transfer --mode target --bind 0.0.0.0}
}

# How many are connected to that port of this machine.
proc connections {port} {
    return [regexp -all -line [format {^ *\d+: \w+:%04X \w+:\w+ 01 } $port] \
        [file_text /proc/net/tcp]]
}

test {a target that is killed: the initiator fails, and soon} {
    lassign [start_target] pid endpoint
    set out [file join [temp_dir] initiator]
    set initiator [start_process [list $bench --json transfer --mode initiator --peer $endpoint \
        --transport tcp --seconds 3600] $out]
    wait_for "it to be connected" {[connections [regexp -inline {\d+$} $::endpoint]] > 0}
    stop_target $pid KILL
    assert_equal 1 [reap_process $initiator]
    assert_match "*peer*" [file_text $out]
}

start_server --pool-size 16mb
set url tarn://127.0.0.1:[server port]

test {names: kept by the master, small, pinned, and not for ever} {
    lassign [start_target --name target-1 --master $url] pid endpoint
    assert_equal $endpoint tarn-transfer://[r get tarn:transfer:target-1]
    assert_range 20000 [r pttl tarn:transfer:target-1] 30000
    assert_moved [transfer --mode initiator --peer target-1 --master $url --count 5 --check] shm
    # The last one who opens it has the name; who had it before does not take it away.
    lassign [start_target --name target-1 --master $url] second other
    assert_equal $other tarn-transfer://[r get tarn:transfer:target-1]
    assert_equal 0 [stop_target $pid]
    assert_equal $other tarn-transfer://[r get tarn:transfer:target-1]
    assert_equal 0 [stop_target $second]
    assert_equal 0 [r exists tarn:transfer:target-1]
    # One that is killed is forgotten in time.
    lassign [start_target --name target-1 --master $url] pid endpoint
    stop_target $pid KILL
    assert_range 1 [r pttl tarn:transfer:target-1] 30000
}

test {names: a master that has forgotten is told again} {
    lassign [start_target --name target-3 --master $url] pid endpoint
    r flushall
    wait_for "the name to come back" {[r exists tarn:transfer:target-3]}
    assert_equal $endpoint tarn-transfer://[r get tarn:transfer:target-3]
    assert_equal 0 [stop_target $pid]
}

test {names: an initiator waits for one to appear} {
    r del tarn:transfer:target-2
    set out [file join [temp_dir] initiator]
    set initiator [start_process [list $bench --json transfer --mode initiator --peer target-2 \
        --master $url --count 5] $out]
    after 200
    lassign [start_target --name target-2 --master $url] pid endpoint
    assert_equal 0 [reap_process $initiator]
    assert_moved [file_text $out] shm
    assert_equal 0 [stop_target $pid]
    assert_error "*no master*" {transfer --mode initiator --peer target-2 --count 1}
}

test {the example, by endpoint and by name} {
    if {![file executable $example]} {skip "the example is not built"}
    foreach arguments [list {} $url] {
        set out [exec $example {*}$arguments]
        foreach line {"request-1: 5 blocks in 2 operations" "decode, pulled: all blocks are there"\
                "prefill: request-1 is done with" "request-2: 5 blocks in 2 operations"\
                "decode, pushed: all blocks are there"} {
            assert_match "*$line*" $out
        }
    }
    assert_equal {} [r keys tarn:transfer:*-0]
}

finish
