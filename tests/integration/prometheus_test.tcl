# utils/prometheus: the rules say what their tests say, and each metric in them is one that a
# running pool with a replica has: a rule about a name that is gone is never heard.
source [file join [file dirname [info script]] harness.tcl]

set ::rules [file join $::root utils prometheus]
proc need_promtool {} {
    if {[auto_execok promtool] eq ""} {skip "promtool is not there (Debian: prometheus)"}
}

test {rules: promtool finds nothing wrong} {
    need_promtool
    exec promtool check rules [file join $::rules tarn.rules.yml]
    exec promtool test rules [file join $::rules tarn.rules.test.yml] 2>@1
}

proc metric_names {port} {
    set s [socket 127.0.0.1 $port]
    fconfigure $s -translation binary
    puts -nonewline $s "GET /metrics HTTP/1.0\r\n\r\n"
    flush $s
    set text [read $s]
    close $s
    return [lsort -unique [regexp -all -inline -line {^tarn_\w+} $text]]
}

test {rules: every metric in them is there} {
    start_server --pool-size 0 --loadmodule "http.so port 0"
    set master [server port]
    r set a b
    r get a
    set first_http [info_field http_port]
    start_node n1 --ssd [temp_dir]/d:16mb --loadmodule http.so port 0
    assert {[regexp {HTTP: http://[^ ]*:(\d+)/} [file_text [node n1 log]] - node_http]}
    start_server --pool-size 0 --loadmodule "http.so port 0" --replicaof "127.0.0.1 $master"
    wait_for "the replica" {[info_field master_link_status] eq "up"}
    set names [concat [metric_names $first_http] [metric_names [info_field http_port]] \
        [metric_names $node_http]]
    stop_server
    set missing {}
    foreach line [split [file_text [file join $::rules tarn.rules.yml]] "\n"] {
        foreach name [regexp -all -inline {\mtarn_\w+} $line] {
            if {$name ni $names} {lappend missing $name}
        }
    }
    assert_equal {} $missing
}

test {dashboard: a Prometheus that scrapes a pool answers every panel} {
    if {[auto_execok prometheus] eq ""} {skip "prometheus is not there"}
    start_server --loadmodule "http.so port 0"
    set dir [temp_dir]
    set f [open $dir/p.yml w]
    puts $f "global: {scrape_interval: 1s}"
    puts $f "scrape_configs:\n  - job_name: tarn"
    puts $f "    static_configs: \[{targets: \['127.0.0.1:[info_field http_port]'\]}\]"
    close $f
    set probe [socket -server none -myaddr 127.0.0.1 0]
    set port [lindex [fconfigure $probe -sockname] 2]
    close $probe
    set pid [exec prometheus --config.file=$dir/p.yml --storage.tsdb.path=$dir/tsdb \
        --web.listen-address=127.0.0.1:$port >& $dir/prometheus.log &]
    set text [file_text [file join $::root utils grafana tarn.json]]
    set asked 0
    set code [catch {
        foreach {- quoted} [regexp -all -inline {"expr": "((?:[^"\\]|\\.)*)"} $text] {
            set expr [string map {{\"} {"} {$__rate_interval} 10s} $quoted]
            set ::ask [list exec promtool query instant http://127.0.0.1:$port $expr]
            set ::answer ""
            incr asked
            wait_for "an answer to $expr" {[r set a b] eq "OK" && [r get a] eq "b" && \
                [r get nothing] eq "(nil)" && ![catch $::ask ::answer] && \
                [regexp { => [0-9]} $::answer]}
        }
    } why]
    exec kill $pid
    if {$code} {error $why}
    assert {$asked > 10}
}

finish
