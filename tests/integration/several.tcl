# For tests with several servers, behind harness.tcl.

# Several servers under names; the harness' commands concern the one in focus.
proc up {name args} {
    set ::S($name) [start_server --pool-size 0 --enable-debug-command yes --node-heartbeat 100 \
        --node-timeout 2s \
        --repl-ping-replica-period 1 {*}$args]
}
proc port {name} {return [dict get $::S($name) port]}
proc focus {name} {
    set i [lsearch -exact $::servers $::S($name)]
    set ::servers [linsert [lreplace $::servers $i $i] end $::S($name)]
}
proc ask {name args} {
    if {![info exists ::conn($name)]} {
        set ::conn($name) [resp::connect $::server_host [port $name]]
    }
    if {[catch {$::conn($name) {*}$args} reply options]} {
        if {[string match *connection* $reply] || [string match "*broken pipe*" $reply] || \
                [string match "*not open*" $reply]} {
            hang_up $name
        }
        return -options $options $reply
    }
    return $reply
}
proc hang_up {name} {
    catch {resp::close $::conn($name)}
    unset -nocomplain ::conn($name)
}
proc down {name {signal KILL}} {
    set pid [dict get $::S($name) pid]
    if {$signal ne "KILL"} {send_signal CONT $pid}
    send_signal $signal $pid
    reap_process $pid
    set i [lsearch -exact $::servers $::S($name)]
    set ::servers [lreplace $::servers $i $i]
    hang_up $name
}
proc field {name what} {
    if {![regexp -line "^$what:(.*?)\r?\$" [ask $name info everything] - value]} {
        error "INFO of $name has no $what"
    }
    return $value
}
proc field_is {name what value} {return [expr {![catch {field $name $what} got] && $got eq $value}]}
proc log_has {name pattern} {
    return [string match *$pattern* [file_text [dict get $::S($name) log]]]
}
proc follow {name master} {
    assert_match OK* [ask $name replicaof 127.0.0.1 [port $master]]
    wait_link $name
}
proc wait_link {name} {
    set ::awaited $name
    wait_for "$name to be in step with its master" {[field_is $::awaited master_link_status up]}
}
proc same_offset {names} {
    foreach name $names {lappend offsets [field $name master_repl_offset]}
    return [expr {[llength [lsort -unique $offsets]] == 1}]
}
# The books of all of them are the same, once the stream has arrived.
proc same_books {args} {
    set ::same $args
    wait_for "$args to be at one offset" {[same_offset $::same]}
    set digest [ask [lindex $args 0] debug digest]
    foreach name $args {assert_equal $digest [ask $name debug digest] "($name)"}
    return $digest
}
# The server again after kill -9, with more options than before.
proc again {name args} {
    hang_up $name
    dict lappend ::S($name) options {*}$args
    set i [lsearch -exact [lmap s $::servers {dict get $s pid}] [dict get $::S($name) pid]]
    set ::servers [linsert [lreplace $::servers $i $i] end $::S($name)]
    restart_server
    set ::S($name) [lindex $::servers end]
}
# One that is down, again, with more options than before.
proc back {name args} {
    dict lappend ::S($name) options --port [port $name] {*}$args
    set ::S($name) [boot_server $::S($name)]
    lappend ::servers $::S($name)
}
proc wait_events {what condition} {
    set end [expr {[clock milliseconds] + $::patience_ms}]
    while {![uplevel #0 [list expr $condition]]} {
        if {[clock milliseconds] > $end} {error "waited in vain for $what"}
        after 20 {set ::tick 1}
        vwait ::tick
    }
}

# Accepts, and answers the n-th thing it hears with the n-th of the texts; then it hangs up.
proc false_master {texts} {
    set ::false_texts $texts
    set ::false_calls 0
    set ::false_socket [socket -server false_accept -myaddr 127.0.0.1 0]
    return [lindex [fconfigure $::false_socket -sockname] 2]
}
proc false_accept {fd host port} {
    incr ::false_calls
    fconfigure $fd -blocking 0 -translation binary
    set ::false_left($fd) $::false_texts
    fileevent $fd readable [list false_read $fd]
}
proc false_read {fd} {
    if {[catch {read $fd} text] || ($text eq "" && [eof $fd])} {close $fd; return}
    set rest [lassign $::false_left($fd) next]
    set ::false_left($fd) $rest
    catch {puts -nonewline $fd $next; flush $fd}
    if {[llength $rest] == 0} {catch {close $fd}}
}
