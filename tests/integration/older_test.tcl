# Living with tarn 0.1, without having one: replicas that say what its replicas say, clients that
# show no receipts, and files that it wrote. upgrade_test.tcl has the real one.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]

# --- replicas ---

up a --loadmodule $modules/notes.so --repl-backlog-size 1mb
up b

# A connection that asks for the stream as a replica does: from there on, or all of it.
proc listen {server capabilities args} {
    set c [resp::connect 127.0.0.1 [port $server]]
    foreach word $capabilities {lappend words capa $word}
    $c replconf listening-port 7 {*}$words
    resp::send $c psync {*}$args
    set ::heard($c) ""
    return $c
}
# All that it is sent until that text has come.
proc hear {c text} {
    set ::hear [list $c $text]
    wait_for "'$text' in the stream" {
        [string first [lindex $::hear 1] [append ::heard([lindex $::hear 0]) \
            [read $::resp::fd([lindex $::hear 0])]]] >= 0}
    return $::heard($c)
}
# The kinds of those records.
proc kinds {bytes} {
    set found {}
    for {set at 0} {$at < [string length $bytes]} {incr at [expr {$len + 4}]} {
        assert_equal 2 [binary scan $bytes @${at}iucu len kind]
        dict incr found $kind
    }
    return [lsort -integer [dict keys $found]]
}
# The records of a snapshot, and of the commands behind it, in what was heard.
proc records {heard} {
    assert {[regexp {^\+FULLRESYNC[^\r]*\r\n\$EOF:([0-9a-f]{40})\r\n} $heard head mark]}
    set end [string first $mark $heard [string length $head]]
    return [list [string range $heard [string length $head] $end-1] \
        [commands [string range $heard [expr {$end + 40}] end]]]
}
proc commands {stream} {
    set out ""
    while {$stream ne ""} {
        if {[regexp {^\*1\r\n\$4\r\nPING\r\n} $stream head]} {
            set stream [string range $stream [string length $head] end]
            continue
        }
        assert {[regexp {^\*2\r\n\$7\r\nEFFECTS\r\n\$(\d+)\r\n} $stream head len]}
        set at [string length $head]
        append out [string range $stream $at [expr {$at + $len - 1}]]
        set stream [string range $stream [expr {$at + $len + 2}] end]
    }
    return $out
}
proc known_to_0_1 {kinds} {
    foreach kind $kinds {assert {$kind < 8 || $kind in {32 33 34 35 64 65 96 97}} $kinds}
}

test {a replica of tarn 0.1 hears only what it knows, at everybody's offsets} {
    focus a
    start_node n1 --segment 16mb
    kv_all 20 load o: 20 100-20000
    kv_all 20 verify o: 20 100-20000
    ask a notes.set before kept
    set old [listen a {eof psync2 tarn1} ? -1]
    set new [listen a {eof psync2 tarn1 tarn2 tarn-version:9.9.9} ? -1]
    wait_for "both to follow" {[field a connected_slaves] == 2}
    wait_for "both to be online" {[regexp -all {state=online} [ask a info replication]] == 2}
    ask a notes.set n x
    ask a notes.set [string repeat n 500] [string repeat x 60000]
    ask a notes.del before
    kv_all 5 --replace load o: 5 2000
    ask a set last sentinel
    lassign [records [hear $old sentinel]] snapshot stream
    lassign [records [hear $new sentinel]] whole all
    known_to_0_1 [kinds $snapshot]
    known_to_0_1 [kinds $stream]
    assert {8 in [kinds $whole] && 66 in [kinds $whole] && 66 in [kinds $all]}
    assert_equal [string length $all] [string length $stream]
    assert_match "*state=online*version=0.1\r*" [ask a info replication]
    assert_match "*state=online*version=9.9.9\r*" [ask a info replication]
    assert {[log_has a "is of tarn 0.1"]}
    foreach c [list $old $new] {resp::close $c}
    wait_for "both to be gone" {[field a connected_slaves] == 0}
}

test {... and when it goes on with the stream, and behind another replica} {
    follow b a
    set from [field b master_repl_offset]
    ask a notes.set again y
    ask a set last sentinel2
    same_books a b
    foreach server {a b} {
        set c [listen $server tarn1 [field a master_replid] [expr {$from + 1}]]
        set said [hear $c sentinel2]
        assert {[regsub {^\+CONTINUE [0-9a-f]{40}\r\n} $said {} said]}
        known_to_0_1 [kinds [commands $said]]
        ask a notes.set again z
        ask a set last sentinel3
        set said [hear $c sentinel3]
        known_to_0_1 [kinds [commands [string range $said [string first * $said] end]]]
        resp::close $c
        wait_for "it to be gone" {[string first version=0.1 [ask a info replication]] < 0}
        ask a set last sentinel2
    }
}

# Nobody has come to such an offset; whoever says so gets all of it, and the master does not mind.
test {... and when it says that it stopped in the middle of a command} {
    focus a
    ask a set middle [string repeat x 3000]
    foreach back {1 2 7 100 1000 2990} {
        set at [expr {[field a master_repl_offset] + 1 - $back}]
        set c [listen a tarn1 [field a master_replid] $at]
        ask a set last sentinel4
        assert_match "+FULLRESYNC*" [hear $c sentinel4]
        resp::close $c
    }
    assert_equal PONG [ask a ping]
}

test {FAILOVER to one is refused} {
    assert_match OK* [ask b replicaof no one]
    wait_for "b to be gone" {[field a connected_slaves] == 0}
    set c [listen a tarn1 ? -1]
    wait_for "it to be online" {[regexp {state=online} [ask a info replication]]}
    assert_error "ERR FAILOVER target replica is of tarn 0.1*rolling-upgrade*" {ask a failover}
    assert_error "ERR FAILOVER target replica is of tarn 0.1*" {ask a failover to 127.0.0.1 7}
    resp::close $c
}

# --- clients ---

test {users without @direct put without receipts only where put-receipts is no} {
    focus a
    ask a acl setuser app on >secret ~* &* +@all -@dangerous -@direct
    set c [resp::connect 127.0.0.1 [port a]]
    assert_equal OK [$c auth app secret]
    set token [lindex [$c putstart bare 1000] 0]
    assert_error "ERR RECEIPTS must be*put-receipts no" {$c putend bare $token -1}
    $c putrevoke bare $token
    ask a config set put-receipts no
    assert_equal OK [$c putend bare2 [lindex [$c putstart bare2 1000] 0] -1]
    proc server_url {} {return tarn://app:secret@$::server_host:[server port]}
    kv_all 20 load app: 20 100-20000
    kv_all 20 verify app: 20 100-20000
    ask a config set put-receipts yes
    set token [lindex [$c putstart bare3 1000] 0]
    assert_error "ERR RECEIPTS must be*" {$c putend bare3 $token -1}
    kv_all 20 load late: 20 100-20000
    kv_all 20 verify late: 20 100-20000
    resp::close $c
}

finish
