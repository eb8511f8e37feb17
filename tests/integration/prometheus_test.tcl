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
    start_server --pool-size 0 --loadmodule "http.so port 0" --replicaof "127.0.0.1 $master"
    wait_for "the replica" {[info_field master_link_status] eq "up"}
    set names [concat [metric_names $first_http] [metric_names [info_field http_port]]]
    stop_server
    set missing {}
    foreach line [split [file_text [file join $::rules tarn.rules.yml]] "\n"] {
        foreach name [regexp -all -inline {\mtarn_\w+} $line] {
            if {$name ni $names} {lappend missing $name}
        }
    }
    assert_equal {} $missing
}

finish
