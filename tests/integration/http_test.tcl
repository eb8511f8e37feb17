# modules/http.so: metrics, probes, the token, and clients that are slow, many or hostile.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] http.tcl]

test {probes and version} {
    http_start
    assert_equal 200 [http_status [http_get /health]]
    assert_equal "ready\n" [http_body [http_get /ready]]
    assert_match {{"program":"tarn-server","version":"*"}*} [http_body [http_get /version]]
    assert_equal 404 [http_status [http_get /nothing]]
    assert_equal 405 [http_status [http_raw "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length:\
        3\r\nConnection: close\r\n\r\nabc"]]
    assert_match "HTTP/1.1 200*" [http_raw "HEAD /health HTTP/1.1\r\nHost: x\r\nConnection:\
        close\r\n\r\n"]
}

# The points of one series of /api/history.
proc history_of {name {query ""}} {
    # 1.0 knows no chunks
    set body [http_body [http_raw "GET /api/history$query HTTP/1.0\r\n\r\n"]]
    assert {[regexp "\"$name\":\\\[(\[^]\]*)\\\]" $body -> points]}
    return [split $points ,]
}

test {history: by the second and by the minute} {
    http_start
    wait_for "samples" {[llength [history_of hits]] > 1}
    r set a b
    r get a
    r get nothing
    wait_for "the hit" {[lsearch -exact [history_of hit_ratio] 0.5] >= 0}
    assert {[lindex [history_of pool_size] end] > 0}
    assert_equal {} [lsearch -all -inline [history_of clients] null]
    wait_for "its latency" {[lsearch -regexp [history_of get_p99_ms] {^[0-9.e-]+$}] >= 0}
    assert {[lsearch -exact [history_of hit_ratio ?over=minute] 0.5] >= 0}
    assert_match {*"step_ms":60000,*} [http_get /api/history?over=minute]
    assert_equal {} [history_of hits ?since=9999999999999]
    foreach bad {over=hour since=x since=-1} {
        set answer [http_get /api/history?$bad]
        assert_equal 400 [http_status $answer]
        assert_match {{"error":"*:*"}*} [http_body $answer]
    }
}

# name{labels} -> value, of the lines that are no comments
proc metrics_of {text} {
    set all {}
    foreach line [split $text "\n"] {
        if {$line eq "" || [string index $line 0] eq "#"} continue
        assert {[regexp {^([a-z_0-9]+(?:\{.*\})?) (\S+)$} $line -> name value]}
        assert {![dict exists $all $name]}
        dict set all $name $value
    }
    return $all
}

test {metrics: what INFO shows, each once, with its type} {
    http_start
    r set a b
    r get a
    r get b
    set text [http_body [http_get /metrics]]
    set m [metrics_of $text]
    assert_equal 1 [dict get $m tarn_hits_total]
    assert_equal 1 [dict get $m tarn_misses_total]
    assert_equal 1 [dict get $m tarn_objects]
    assert_equal [info_field pool_size] [dict get $m tarn_pool_size_bytes]
    assert_equal 2 [dict get $m {tarn_command_calls_total{command="get"}}]
    assert_equal 2 [dict get $m {tarn_command_duration_seconds_count{command="get"}}]
    assert_equal 2 [dict get $m {tarn_command_duration_seconds_bucket{command="get",le="+Inf"}}]
    assert_equal [info_field pool_size] [dict get $m {tarn_segment_size_bytes{segment="0"}}]
    set seen {}
    foreach line [split $text "\n"] {
        if {[regexp {^# TYPE (\S+) (\S+)$} $line -> name]} {
            assert {$name ni $seen}
            lappend seen $name
        } elseif {[regexp {^[a-z]} $line]} {
            # all samples stand under their own type
            assert_match "[lindex $seen end]*" $line
        }
    }
    assert {[llength $seen] > 200}
}

test {metrics: durations of the data path, and of making room} {
    # into the pool of 64 MiB until it is full; nothing else makes room
    r config set eviction-high-watermark 1
    kv --transport tcp load t: 80 1000000
    set m [metrics_of [http_body [http_get /metrics]]]
    assert {[dict get $m {tarn_transport_write_duration_seconds_count{transport="tcp"}}] > 0}
    set evicting tarn_put_eviction_seconds
    assert {[dict get $m ${evicting}_count] > 0}
    assert {[dict get $m ${evicting}_sum] > 0}
    foreach name {tarn_inband_read_duration_seconds tarn_inband_write_duration_seconds} {
        assert_equal 0 [dict get $m ${name}_count]
    }
}

test {metrics: promtool finds nothing} {
    if {[auto_execok promtool] eq ""} {skip "no promtool (package prometheus)"}
    assert_equal "" [exec promtool check metrics << [http_body [http_get /metrics]] 2>@1]
}

test {metrics: all segments, over several turns of the loop} {
    http_start
    set c [client]
    for {set n 0} {$n < 30} {incr n} {
        set id [format %032d $n]
        $c node join n$n $id MACHINE m$n
        for {set i 0} {$i < 5} {incr i} {
            $c segment mount n$n $id n$n.$i TIER memory SIZE 1048576 CONTENT \
                [string repeat c 32] ENDPOINTS 1 tcp://*:7777
        }
        $c node up n$n $id
    }
    set before [info_field http_scrape_turns]
    set m [metrics_of [http_body [http_get /metrics]]]
    assert_equal 151 [llength [dict keys $m tarn_segment_size_bytes*]]
    assert_equal 151 [llength [dict keys $m tarn_segment_info*]]
    assert_equal 30 [llength [dict keys $m tarn_node_up*]]
    assert_equal 5242880 [dict get $m {tarn_node_size_bytes{node="n7"}}]
    # a section or 64 segments in each
    assert {[info_field http_scrape_turns] - $before > 23}
}

test {/api/info: INFO as JSON, whatever names have in them} {
    http_start
    r client setname "a"
    r set a b
    set c [client]
    set id [string repeat e 32]
    $c node join n1 $id MACHINE {m"\\}
    set text [http_body [http_get /api/info]]
    set got [exec /usr/bin/python3 -c {
import json, sys
info = json.load(sys.stdin.buffer)
print(info["server"]["tarn_version"], info["pool"]["pool_size"], info["cache"]["objects"])
print([s["segment"] for s in info["pool"]["segment"]], info["nodes"]["node"][0]["node"])
print(ascii(info["nodes"]["node"][0]["machine"]))
print(sorted(c["command"] for c in info["commandstats"]["command"] if c["calls"] > 0)[:2])
print(info["modules"]["module"][0]["name"])
} << $text]
    set lines [split $got "\n"]
    assert_equal "[info_field tarn_version] 67108864 1" [lindex $lines 0]
    assert_equal {['0'] n1} [lindex $lines 1]
    assert_equal {'m"\\\\'} [lindex $lines 2]
    assert_equal "http" [lindex $lines 4]
}

test {many scrapes at once share what is gathered} {
    http_start
    set all {}
    for {set i 0} {$i < 20} {incr i} {
        set s [http_open]
        puts -nonewline $s "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        lappend all $s
    }
    foreach s $all {
        assert_match "*tarn_pool_size_bytes*" [read $s]
        close $s
    }
    assert_equal 20 [info_field http_scrapes]
    # one that goes before its answer costs nobody anything
    set s [http_open]
    puts -nonewline $s "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    close $s
    wait_for "it is forgotten" {[info_field http_connections] == 0}
    assert_equal 200 [http_status [http_get /metrics]]
}

test {a token: needed for all but probes} {
    set file [token_write token 0600]
    http_start token-file $file
    assert_equal 200 [http_status [http_get /health]]
    assert_equal 200 [http_status [http_get /ready]]
    foreach told {{X: y} {Authorization: Bearer 0123456789abcdef-toke}
        {Authorization: Bearer 0123456789abcdef-tokenx} {Authorization: Bearer }
        {Authorization: Basic 0123456789abcdef-token}} {
        assert_equal 401 [http_status [http_get /metrics $told]]
    }
    assert_equal 200 [http_status [http_get /metrics \
        "Authorization: Bearer 0123456789abcdef-token"]]
}

test {words that are wrong are named} {
    start_server --enable-module-command yes
    foreach {words error} {
        {port 70000} "*port 70000: must be a number*"
        {port} "*'port' wants a value*"
        {colour red} "*unknown word 'colour'*"
        {connections 2} "*connections 2: must be*"
        {bind 300.1.1.1} "*cannot listen on 300.1.1.1*"
        {token-file /nowhere} "*token-file /nowhere: No such file*"
    } {
        assert_error $error {r module load http.so {*}$words}
    }
    set file [token_write open-token 0644]
    assert_error "*others can read or write it*" {r module load http.so token-file $file}
    # what failed has left nothing: it loads, and unloads, as often as one likes
    foreach round {1 2 3} {
        r module load http.so port 0
        set ::http_port [info_field http_port]
        assert_equal 200 [http_status [http_get /health]]
        r module unload http
        assert_error "*" {http_open}
    }
}

test {unloaded while scrapes wait} {
    start_server --enable-module-command yes
    r module load http.so port 0
    set ::http_port [info_field http_port]
    set all {}
    for {set i 0} {$i < 10} {incr i} {
        set s [http_open]
        puts -nonewline $s "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        lappend all $s
    }
    r module unload http
    foreach s $all {catch {read $s}; close $s}
    assert_equal PONG [r ping]
}

test {crowds, garbage and huge requests cost only their sender} {
    http_start connections 8
    set all {}
    for {set i 0} {$i < 8} {incr i} {
        set s [http_open]
        puts -nonewline $s "GET /hea"
        lappend all $s
    }
    wait_for "eight connections" {[info_field http_connections] == 8}
    set s [http_open]
    assert_equal "" [read $s]
    close $s
    assert {[info_field http_refused] >= 1}
    foreach s $all {close $s}
    wait_for "they are gone" {[info_field http_connections] == 0}
    foreach bytes [list "\0\1\2\3\r\n\r\n" "GET\r\n\r\n" \
        "GET /[string repeat a 100000] HTTP/1.1\r\n\r\n" \
        "GET /health HTTP/1.1\r\n[string repeat "A: b\r\n" 20000]\r\n" \
        "GET /health HTTP/9.9\r\n\r\n" \
        "GET /%00%ff%zz/../../etc HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" \
        "[string repeat "\xff" 50000]\r\n\r\n"] {
        set s [http_open]
        catch {puts -nonewline $s $bytes}
        assert_equal 200 [http_status [http_get /health]]
        catch {close $s}
    }
    assert_equal PONG [r ping]
}

test {without descriptors new connections wait, and the loop does not turn for them} {
    if {[auto_execok prlimit] eq ""} {skip "no prlimit"}
    http_start
    proc limit {n} {exec prlimit --pid [server pid] --nofile=$n:}
    proc open_now {} {llength [glob -directory /proc/[server pid]/fd *]}
    set before [lindex [exec prlimit --pid [server pid] --nofile --noheadings --output SOFT] 0]
    r ping
    limit [open_now]
    set s [http_open]
    puts -nonewline $s "GET /health HTTP/1.0\r\n\r\n"
    wait_for "it to rest" {[info_field http_refused] > 0}
    assert {[info_field http_refused] < 10}
    limit $before
    assert_match "HTTP/1.1 200*" [read $s]
    close $s
}

test {a request that trickles is cut off} {
    http_start timeout 1
    set s [http_open]
    fconfigure $s -blocking 0
    # never idle, and never whole
    wait_for "it is cut off" {[catch {puts -nonewline $s "G"; flush $s}] || [read $s; eof $s]}
    close $s
    assert_equal 1 [info_field http_slow]
    assert_equal 200 [http_status [http_get /health]]
}

if {[info exists env(TARN_FAULT)] && [file exists $env(TARN_FAULT)] && \
        (![info exists env(TARN_SANITIZER)] || $env(TARN_SANITIZER) eq "")} {
    test {a connection that cannot be watched costs its sender only} {
        set from [temp_dir]/from
        set ::prefix [list env LD_PRELOAD=$::env(TARN_FAULT) TARN_FAULT=epoll_ctl:fail:2 \
            TARN_FAULT_FROM=$from]
        http_start
        set ::prefix {}
        close [open $from w]
        for {set i 0} {$i < 40} {incr i} {
            if {![catch {http_get /health} answer] && $answer ne ""} {
                assert_equal 200 [http_status $answer]
                incr served
            }
        }
        assert {$served > 0 && $served < 40}
        file delete $from
        assert_equal 200 [http_status [http_get /health]]
        assert_equal PONG [r ping]
        assert {[info_field http_refused] > 0}
        wait_for "none of them is counted" {[info_field http_connections] == 0}
    }
}

finish
