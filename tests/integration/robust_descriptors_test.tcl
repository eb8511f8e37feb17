# No more descriptors: the server, a node and a process with libtarn go on with what they have, say
# so once, and recover.
source [file join [file dirname [info script]] harness.tcl]
if {[auto_execok prlimit] eq ""} {
    test {descriptors run out} {skip "prlimit is not here"}
    finish
}
start_server --pool-size 32mb --enable-debug-command yes --appendonly no

proc open_files {pid} {return [llength [glob -directory /proc/$pid/fd *]]}

# pid may open n more.
proc limit_files {pid n} {
    # The limit is for numbers of descriptors, and there may be gaps below the highest: so many more
    # can be opened.
    exec prlimit --pid $pid --nofile=[expr {$n == "max" ? 4096 : [open_files $pid] + $n}]:
}

proc times {pattern path} {return [regexp -all $pattern [file_text $path]]}

# Processor time of a process in ms.
proc cpu_ms {pid} {
    regexp {\) (.*)} [file_text /proc/$pid/stat] - rest
    return [expr {10 * ([lindex $rest 11] + [lindex $rest 12])}]
}

test {the server without descriptors answers those who are there, and the others when there is\
        room again} {
    r set k [string repeat v 100000]
    set there [client]
    $there ping
    set pid [server pid]
    limit_files $pid 3
    set waiting {}
    for {set i 0} {$i < 20} {incr i} {
        set c [client]
        lappend waiting $c
        resp::send $c ping
    }
    wait_for "the server to notice" {[times {Accepting client connection} [server log]] == 1}
    assert_range 2 [info_field connected_clients] 12
    set before [cpu_ms $pid]
    set until [expr {[clock milliseconds] + 700}]
    while {[clock milliseconds] < $until} {
        assert_equal PONG [$there ping]
        after 50
    }
    assert_equal [string repeat v 100000] [$there get k]
    assert {[cpu_ms $pid] - $before < 400} "[cpu_ms $pid] - $before: it does not spin"
    assert_equal 1 [times {Accepting client connection} [server log]]
    # What needs a file says so and leaves everything as it was.
    assert_error "ERR*" {$there save}
    assert_error "*" {$there config rewrite}
    assert_error "*" {$there acl save}
    assert_error "*" {$there module load /nowhere/x.so}
    assert_equal OK [$there debug check]
    limit_files $pid max
    foreach c $waiting {assert_equal PONG [resp::recv $c]}
    assert_equal OK [$there save]
    foreach c $waiting {drop $c}
    drop $there
    wait_for "the connections to be gone" {[info_field connected_clients] == 1}
    assert_equal 1 [times {Accepting client connection} [server log]]
}

test {the server without descriptors: libtarn and shm peers are told, later ones are served,\
        nothing spins} {
    set pid [server pid]
    r set v [string repeat v 1000000]
    limit_files $pid 2
    set before [cpu_ms $pid]
    # Each needs a connection, and one for the bytes; who gets none says so in time.
    for {set i 0} {$i < 4} {incr i} {
        set reader($i) [start_process [list $::kv_binary --timeout 700 --wait 700 \
            tarn://$::server_host:[server port] get v] [server dir]/kv$i]
    }
    for {set i 0} {$i < 4} {incr i} {reap_process $reader($i)}
    for {set i 0} {$i < 10} {incr i} {assert_equal PONG [r ping]}
    assert {[cpu_ms $pid] - $before < 1500} "[cpu_ms $pid] - $before: it does not spin"
    limit_files $pid max
    assert_equal [string repeat v 1000000] [kv_value v --transport shm]
    assert_equal [string repeat v 1000000] [kv_value v --transport tcp]
    assert_equal OK [r debug check]
}

test {a node without descriptors keeps its place in the pool and serves again when there is room} {
    start_node n1 --segment 16mb
    set pid [node n1 pid]
    assert_equal 8 [dict get [kv --prefer n1.0 load n 8 100000] ok]
    exec prlimit --pid $pid --nofile=[open_files $pid]:
    set before [cpu_ms $pid]
    catch {kv --transport shm --timeout 300 --wait 300 verify n 2 100000}
    catch {kv --transport tcp --timeout 300 --wait 300 verify n 2 100000}
    assert_equal up [node_state n1]
    assert {[cpu_ms $pid] - $before < 2000} "[cpu_ms $pid] - $before: it does not spin"
    assert {[times {shm peer is turned away|shm peer .* cannot be watched} [node n1 log]] <= 1}
    assert {[times {Accepting on the data port} [node n1 log]] <= 1}
    limit_files $pid max
    # It tries again every second.
    foreach way {shm tcp} {
        wait_for "it to serve over $way again" \
            {[dict get [kv --transport $::way verify n 1 100000] ok] == 1}
        kv_all 8 --transport $way verify n 8 100000
    }
    assert_equal up [node_state n1]
}

test {a process with libtarn that has no more descriptors gets errors, and values again when there\
        is room} {
    set run [kv_start --fill --transport tcp run v 50 20000]
    lassign $run pid log
    wait_for "it to put and get" {[llength [r keys v*]] > 20}
    # Its connections end, and it may not open others.
    exec prlimit --pid $pid --nofile=3:
    r client kill type normal skipme yes
    wait_for "it to be gone" {[info_field connected_clients] <= 1}
    after 300
    assert {[process_state $pid] ne "gone"}
    r flushall
    r config resetstat
    limit_files $pid max
    wait_for "it to put again" {[llength [r keys v*]] > 20}
    wait_for "it to get again" {[info_field keyspace_hits] > 0}
    set a [kv_stop $run]
    assert_equal 0 [dict get $a wrong]
    assert {[dict get $a ok] > 0}
}
finish
