# LATENCY: what held the server up, and how long commands take.
source [file join [file dirname [info script]] harness.tcl]
start_server --enable-debug-command yes

proc events {} {
    set names {}
    foreach event [r latency latest] {lappend names [lindex $event 0]}
    return $names
}

test {off by default} {
    assert_equal {latency-monitor-threshold 0} [r config get latency-monitor-threshold]
    r debug sleep 0.02
    assert_equal {} [r latency latest]
    assert_equal {} [r latency history command]
    assert_match "*is off*latency-monitor-threshold*" [r latency doctor]
    assert_equal 0 [r latency reset]
}

test {a command that holds the server is noted, with its worst} {
    r config set latency-monitor-threshold 100
    assert_match "*Nothing held the server up for 100 ms*" [r latency doctor]
    r debug sleep 0.12
    r debug sleep 0.2
    set history [r latency history command]
    set worst 0
    foreach sample $history {
        lassign $sample when ms
        assert_range [expr {[clock seconds] - 100}] $when [expr {[clock seconds] + 1}]
        assert {$ms >= 100}
        set worst [expr {max($worst, $ms)}]
    }
    assert {$worst >= 200}
    set latest [lindex [r latency latest] [lsearch [events] command]]
    assert_equal [list command $when $ms $worst] $latest
    assert_equal $history [r latency history COMMAND]
    assert_match "*command: * latency spikes*SLOWLOG*" [r latency doctor]
    set graph [split [r latency graph command] \n]
    assert_match "command - high * ms, low * ms (all time high * ms)" [lindex $graph 0]
    assert_equal [string repeat - 80] [lindex $graph 1]
    assert_equal [llength $history] [string length [lindex $graph 2]]
    assert_match {*[osmh]*} [join [lrange $graph 6 end]]
    # What waits without holding anybody is no event: the worst stays what it was.
    r config set latency-monitor-threshold 5000
    r latency reset
    r debug wait 0.02
    assert_equal {} [r latency history command]
}

test {LATENCY RESET: some events, or all} {
    r config set latency-monitor-threshold 200
    r debug sleep 0.21
    assert_equal 0 [r latency reset nosuchevent fast-command]
    assert_equal 1 [r latency reset Command nosuchevent]
    assert_equal {} [r latency history command]
    r debug sleep 0.21
    assert {[r latency reset] >= 1}
    assert_equal {} [r latency latest]
    assert_equal {} [r latency history nosuchevent]
    assert_error "ERR No samples available for event 'command'" {r latency graph command}
    assert_error "ERR No samples available for event 'nosuchevent'" {r latency graph nosuchevent}
    assert_error "ERR wrong number of arguments for 'latency|help' command" {r latency help x}
    assert_error "ERR unknown subcommand 'x'. Try LATENCY HELP." {r latency x}
    assert_match *HISTOGRAM* [r latency help]
}

test {the background has events of its own} {
    # All of it in one slice, so that it takes longer than a millisecond on any machine.
    r config set latency-monitor-threshold 1 loop-work-quota 1000000
    r debug populate 100000
    r latency reset
    r flushall async
    wait_for "the sweep to be noted" {"books-cycle" in [events]}
    r debug set-active-expire 0
    for {set i 0} {$i < 20000} {incr i} {resp::send [r] set k$i v px 1}
    for {set i 0} {$i < 20000} {incr i} {resp::recv [r]}
    r debug set-active-expire 1
    wait_for "expiry to be noted" {"expire-cycle" in [events]}
    wait_for "the keys to go" {[r dbsize] == 0}
    r config set latency-monitor-threshold 0 loop-work-quota 1000
}

test {LATENCY HISTOGRAM} {
    r config resetstat
    set h [r latency histogram]
    assert_equal {config|resetstat} [lindex $h 0]
    assert_equal 2 [llength $h]
    r set a b
    r set c d
    r get a
    r client id
    r client list
    set h [r latency histogram]
    lassign [dict get $h set] - calls - buckets
    assert_equal 2 $calls
    assert_equal 2 [lindex $buckets end]
    set bound 0
    set before 0
    foreach {us count} $buckets {
        assert {$us > $bound && $count > $before}
        assert_equal 0 [expr {$us & ($us - 1)}]
        lassign [list $us $count] bound before
    }
    assert_equal {client|id client|list} [lsort [dict keys [r latency histogram client]]]
    assert_equal {client|id} [dict keys [r latency histogram CLIENT|ID]]
    assert_equal {get set} [lsort [dict keys [r latency histogram get nosuchcommand set]]]
    assert_equal {} [r latency histogram nosuchcommand del]
    # It is the time, not only a number.
    r debug sleep 0.02
    assert {[lindex [dict get [r latency histogram debug] debug] 3 0] >= 16384}
}

test {INFO latencystats: percentiles as configured, in microseconds and less} {
    assert_equal {latency-tracking-info-percentiles {50 99 99.9}} \
        [r config get latency-tracking-info-percentiles]
    r config resetstat
    r debug sleep 0.02
    r set a b
    set text [r info latencystats]
    assert_match {*latency_percentiles_usec_set:p50=*,p99=*,p99.9=*} $text
    assert_match {*latency_percentiles_usec_config|resetstat:p50=*} $text
    regexp -line {_debug:p50=([\d.]+),} $text - debug
    regexp -line {_set:p50=(\d+\.\d\d\d),} $text - set
    assert {$debug >= 20000 && $set > 0}
    r config set latency-tracking-info-percentiles "0.0 50.0 100.0"
    assert_equal {latency-tracking-info-percentiles {0 50 100}} \
        [r config get latency-tracking-info-percentiles]
    assert_match {*_set:p0=*,p50=*,p100=*} [r info latencystats]
    foreach bad {"10 a" "10 101" "-1" "1 nan" "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17"} {
        assert_error "ERR CONFIG SET failed*numbers from 0 to 100" \
            {r config set latency-tracking-info-percentiles $bad}
    }
    assert_equal {latency-tracking-info-percentiles {0 50 100}} \
        [r config get latency-tracking-info-percentiles]
    r config set latency-tracking-info-percentiles ""
    assert_match "*_set:\r\n*" [r info latencystats]
    r config set latency-tracking no
    r config resetstat
    r set a b
    assert {![string match *usec_set* [r info latencystats]]}
    assert_equal {} [r latency histogram set]
    r config set latency-tracking yes
    r set a b
    assert_match *usec_set* [r info latencystats]
}

# A disk that takes 20 ms for everything, which no sanitizer would let us have.
if {[info exists env(TARN_FAULT)] && [file exists $env(TARN_FAULT)] && \
        (![info exists env(TARN_SANITIZER)] || $env(TARN_SANITIZER) eq "")} {
    test {the append-only file has events of its own} {
        set ::prefix [list env LD_PRELOAD=$::env(TARN_FAULT) \
            TARN_FAULT=write:slow:1,fdatasync:slow:1,rename:slow:1]
        start_server --appendonly yes --appendfsync always --latency-monitor-threshold 10
        set ::prefix {}
        r set a b
        wait_for "syncing to be noted" {"aof-fsync-always" in [events]}
        assert {"aof-write" ni [events]}
        assert {[lindex [r latency history aof-fsync-always] 0 1] >= 40}
        r config set appendfsync no
        r set a c
        wait_for "writing to be noted" {"aof-write-alone" in [events]}
        assert {"aof-write" in [events] && [lindex [r latency history aof-write] 0 1] >= 20}
        r config set appendfsync everysec
        wait_for "a write while it is synced" {
            [r set a d] eq "OK" && "aof-write-pending-fsync" in [events]
        }
        r bgrewriteaof
        wait_for "the new file to take its name" {"aof-rename" in [events]}
        r bgsave
        wait_for "the snapshot to take its name" {"rdb-rename" in [events]}
        assert {"snapshot-cycle" in [events]}
        assert_match "*aof-fsync-always*everysec*" [r latency doctor]
        stop_server
    }
}

finish
