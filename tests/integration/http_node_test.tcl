# modules/http.so in tarn-node: probes and metrics, from before there is a master until the end.
source [file join [file dirname [info script]] harness.tcl]

set master {start_server --pool-size 0 --node-heartbeat 100 --node-timeout 2s --max-lease 60s}

proc http_words {args} {
    return [list --loadmodule http.so port 0 {*}$args]
}

# The port of that node's HTTP, which its log tells.
proc http_port {name} {
    set ::http_log [node $name log]
    wait_for "the HTTP port of $name" {[regexp {HTTP: https?://[^ ]*:(\d+)/} \
        [file_text $::http_log] - ::http_found]}
    return $::http_found
}

# {status body} of a request to it.
proc http_get {name path} {
    set s [socket 127.0.0.1 [http_port $name]]
    fconfigure $s -translation binary
    puts -nonewline $s "GET $path HTTP/1.0\r\n\r\n"
    flush $s
    set got [read $s]
    close $s
    return [list [lindex $got 1] \
        [string range $got [expr {[string first "\r\n\r\n" $got] + 4}] end]]
}

proc wait_ready {name pattern} {
    set ::ready_of $name
    set ::ready_pattern $pattern
    wait_for "$name to answer /ready with '$pattern'" \
        {[string match $::ready_pattern [http_get $::ready_of /ready]]}
}

proc metric {name what} {
    foreach line [split [lindex [http_get $name /metrics] 1] "\n"] {
        if {[string first "$what " $line] == 0} {return [lindex $line end]}
    }
    return ""
}

# A control thread that is busy at the moment leaves a scrape with the figures of the one before.
proc wait_metric {name what value} {
    set ::metric_of [list $name $what]
    set ::metric_value $value
    wait_for "$what of $name to be '$value'" {[metric {*}$::metric_of] eq $::metric_value}
}

proc kill_master {} {
    set s [lindex $::servers end]
    send_signal KILL [dict get $s pid]
    reap_process [dict get $s pid]
}

proc master_again {} {
    foreach c $::clients {catch {resp::close $c}}
    set ::clients {}
    set s [lindex $::servers end]
    dict lappend s options --port [dict get $s port]
    set ::servers [lreplace $::servers end end [boot_server $s]]
}

test {a node before its master: alive, not ready, with metrics} {
    eval $::master
    kill_master
    launch_node n1 --segment 16mb --exit-timeout 600 {*}[http_words]
    wait_ready n1 {503 {not ready: waiting for the master: *}}
    assert_equal "200 {ok\n}" [http_get n1 /health]
    assert_match {200 *"program":"tarn-node","version":"*} [http_get n1 /version]
    assert_match {200 *"server":?"program":"tarn-node"*} [http_get n1 /api/info]
    assert {[metric n1 tarn_process_id] == [node n1 pid]}
    assert_equal "" [metric n1 tarn_joined]
    master_again
    wait_ready n1 "200 {ready\n}"
    wait_metric n1 tarn_joined 1
}

test {a node that is up: its figures, as NODE INFO has them} {
    r set k [string repeat x 200000]
    wait_for "the master to have said what is used" {[metric n1 tarn_lent_memory_used_bytes] > 0}
    assert_equal 16777216 [metric n1 tarn_lent_memory_bytes]
    assert_equal 16777216 [metric n1 {tarn_segment_size_bytes{segment="n1.0"}}]
    wait_metric n1 {tarn_segment_mounted{segment="n1.0"}} 1
    wait_for "the joins" {[node_field n1 joins] == [metric n1 tarn_joins_total]}
    assert {[metric n1 tarn_heartbeats_total] > 0}
    assert {[metric n1 tarn_used_memory_bytes] > 0}
    assert_equal [string trim [file_text [node n1 dir]/port]] [metric n1 tarn_data_port]
    assert_equal [http_port n1] [metric n1 tarn_http_port]
    if {[auto_execok promtool] ne ""} {
        assert_equal "" [exec promtool check metrics << [lindex [http_get n1 /metrics] 1] 2>@1]
    }
    assert_match {200 *is up at the master*} [http_get n1 /api/events]
    assert_equal 404 [lindex [http_get n1 /api/tasks] 0]
    wait_for "history" {[regexp {"data_reads":\[[^]]*[0-9]} [http_get n1 /api/history]]}
}

proc duration_count {name of {labels ""}} {return [metric $name ${of}_count$labels]}

test {how long the data path takes, by transport and tier} {
    kv --transport tcp load t: 20 100000
    kv_all 20 --transport tcp verify t: 20 100000
    wait_for "its writes" {
        [duration_count n1 tarn_transport_write_duration_seconds {{transport="tcp"}}] > 0 &&
        [duration_count n1 tarn_transport_write_duration_seconds {{transport="tcp"}}] ==
        [metric n1 tarn_data_writes_total]}
    wait_for "its reads" {
        [duration_count n1 tarn_transport_read_duration_seconds {{transport="tcp"}}] > 0}
    # the bounds of DESIGN.md section 7, in seconds
    foreach le {0.000125 0.00015 0.0002 0.00025 0.0003 0.0004 0.0005 0.00075 0.001 0.0015 0.002 \
        0.003 0.005 0.007 0.015 0.02 0.05 0.1 0.2 0.5 1 +Inf} {
        set bucket "tarn_transport_write_duration_seconds_bucket{transport=\"tcp\",le=\"$le\"}"
        assert {[metric n1 $bucket] ne ""} $le
    }
    start_node n2 --segment 16mb --ssd [temp_dir]/d:32mb {*}[http_words]
    kv --prefer n2.0 load d: 5 100000
    wait_for "values on disk" {[metric n2 {tarn_tier_stored_total{tier="ssd"}}] == 5}
    wait_for "the times they took" {
        [duration_count n2 tarn_tier_write_duration_seconds {{tier="ssd"}}] == 5}
    assert_equal 0 [duration_count n2 tarn_tier_read_duration_seconds {{tier="ssd"}}]
    assert_equal 0 [duration_count n2 tarn_transport_staged_read_duration_seconds \
        {{transport="tcp"}}]
    assert_equal 0 [duration_count n1 tarn_copy_duration_seconds]
    stop_node n2
}

test {the master goes: alive, not ready; and comes back} {
    kill_master
    wait_ready n1 {503 {not ready: waiting for the master*}}
    assert_equal "200 {ok\n}" [http_get n1 /health]
    wait_metric n1 tarn_joined 0
    wait_for "a heartbeat that failed" {[metric n1 tarn_heartbeat_failures_total] > 0}
    master_again
    wait_ready n1 "200 {ready\n}"
}

test {hostile clients cost the node nothing} {
    set ::idle {}
    for {set i 0} {$i < 70} {incr i} {
        if {[catch {socket 127.0.0.1 [http_port n1]} s]} break
        fconfigure $s -translation binary -blocking 0
        catch {puts -nonewline $s [string repeat "\x00\xff\r\n" $i]; flush $s}
        lappend ::idle $s
    }
    wait_for "too many to be refused" {
        [llength [lmap s $::idle {expr {[read $s] ne "" || [eof $s] ? $s : [continue]}}]] > 0}
    foreach s $::idle {close $s}
    wait_for "room again" {![catch {http_get n1 /health} got] && $got eq "200 {ok\n}"}
    wait_node n1 up
    assert {[metric n1 tarn_http_refused] > 0}
}

test {drained by the master: not ready, until it is called off} {
    r set stays [string repeat x 100000]
    assert_equal OK [r node drain n1]
    wait_ready n1 {503 {not ready: it drains: *}}
    wait_metric n1 tarn_draining 1
    assert_equal OK [r node drain n1 cancel]
    wait_ready n1 "200 {ready\n}"
    assert_equal OK [r node maintenance n1 on]
    wait_metric n1 tarn_maintenance 1
    assert_equal "200 {ready\n}" [http_get n1 /ready]
    assert_equal OK [r node maintenance n1 off]
}

test {SIGTERM: not ready while it leaves, metrics until it has gone} {
    # The lease is what the node waits for.
    set c [client]
    set version [lindex [$c getreplicas stays lease 50000] 0]
    send_signal TERM [node n1 pid]
    wait_ready n1 {503 {not ready: it is leaving the pool*}}
    assert_equal "200 {ok\n}" [http_get n1 /health]
    assert {[metric n1 tarn_uptime_seconds] >= 0}
    assert_equal 1 [$c release 1 stays $version]
    assert_equal 0 [reap_node n1]
    stop_server
}

test {while memory is populated: alive throughout, and says why it is not ready} {
    eval $::master
    set dir [temp_dir]
    dict set ::node_table n2 [dict create pid 0 dir $dir log $dir/log options {}]
    set command [lsearch -all -inline -not [node_command n2 $dir [list --segment 128mb \
        {*}[http_words]]] --no-populate]
    dict set ::node_table n2 pid [start_process $command $dir/stdout]
    set seen {}
    while {[lindex [set got [http_get n2 /ready]] 0] ne 200} {
        assert_equal "200 {ok\n}" [http_get n2 /health]
        lassign $got status text
        set reason {^not ready: (it is starting|joining|memory is|the disk is|waiting)}
        assert {[regexp $reason $text]} $text
        lappend seen $text
    }
    assert {[metric n2 tarn_used_memory_rss_bytes] > 0}
    stop_server
}

finish
