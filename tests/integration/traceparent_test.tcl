# Trace contexts that clients set: CLIENT SETINFO tarn-traceparent, and where they show.
source [file join [file dirname [info script]] harness.tcl]

start_server --slowlog-log-slower-than -1

proc field {name line} {
    if {![regexp " $name=(\[^ \]*)" $line -> value]} {error "no $name in $line"}
    return $value
}


set trace 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01

proc slow_of {client args} {
    r config set slowlog-log-slower-than 0
    r slowlog reset
    $client {*}$args
    r config set slowlog-log-slower-than -1
    foreach entry [r slowlog get] {if {[lindex $entry 3 0] eq [lindex $args 0]} {return $entry}}
    return ""
}

test {CLIENT SETINFO tarn-traceparent: behind the arguments in SLOWLOG and MONITOR} {
    set c [client]
    set m [client]
    assert_equal {} [field tarn-traceparent [$c client info]]
    assert_equal OK [$c client setinfo TARN-TRACEPARENT $trace]
    assert_equal $trace [field tarn-traceparent [$c client info]]
    set entry [slow_of $c get traced]
    assert_equal 6 [llength $entry]
    assert_equal [list get traced "(traceparent $trace)"] [lindex $entry 3]
    # Also behind what stands for arguments that are too many.
    set args [lindex [slow_of $c del {*}[lrepeat 40 k]] 3]
    assert_equal [list 33 "... (10 more arguments)" "(traceparent $trace)"] \
        [list [llength $args] {*}[lrange $args 31 end]]
    assert_equal {get plain} [lindex [slow_of [r] get plain] 3]
    $m monitor
    $c get traced
    assert_match "* \\\[0 127.0.0.1:*\\\] \"get\" \"traced\" \"(traceparent $trace)\"" \
        [resp::recv $m]
    r get plain
    assert_match {*:[0-9]*\] "get" "plain"} [resp::recv $m]
    drop $c
    drop $m
}

test {tarn-traceparent: within EXEC, for commands that wait, and away again} {
    set c [client]
    $c client setinfo tarn-traceparent $trace
    $c multi
    $c get queued
    r config set slowlog-log-slower-than 0
    r slowlog reset
    $c exec
    resp::send $c getreplicas late wait 20000
    wait_for "it to wait" {[info_field blocked_clients] == 1}
    r set late [string repeat x 100]
    resp::recv $c
    r config set slowlog-log-slower-than -1
    set seen {}
    foreach entry [r slowlog get] {
        if {[lindex $entry 3 end] eq "(traceparent $trace)"} {lappend seen [lindex $entry 3 0]}
    }
    assert {"get" in $seen && "getreplicas" in $seen && "set" ni $seen} $seen
    assert_equal OK [$c client setinfo tarn-traceparent ""]
    assert_equal {get plain} [lindex [slow_of $c get plain] 3]
    # RESET forgets it as it forgets the name.
    $c client setinfo tarn-traceparent $trace
    $c reset
    assert_equal {} [field tarn-traceparent [$c client info]]
    drop $c
}

test {tarn-traceparent: what is none changes nothing} {
    set c [client]
    $c client setinfo tarn-traceparent $trace
    foreach bad [list x "$trace " "${trace}0" [string toupper $trace] \
                     ff[string range $trace 2 end] 00-[string repeat 0 32]-00f067aa0ba902b7-01 \
                     [string repeat x 100000]] {
        assert_error "ERR *" {$c client setinfo tarn-traceparent $bad}
    }
    assert_error "ERR tarn-traceparent must be 00-TRACE-SPAN-FLAGS of *" \
        {$c client setinfo tarn-traceparent nonsense}
    assert_equal $trace [field tarn-traceparent [$c client info]]
    # One of a later version is read as this one.
    $c client setinfo tarn-traceparent cc-[string range $trace 3 end]-more
    assert_equal $trace [field tarn-traceparent [$c client info]]
    drop $c
}

test {tarn-traceparent: hiredis' and Python's own readers take SLOWLOG and MONITOR as ever} {
    set c [client]
    $c client setinfo tarn-traceparent $trace
    slow_of $c get traced
    assert_match "*traced*(traceparent $trace)*" [exec redis-cli -p [server port] slowlog get]
    drop $c
}

finish
