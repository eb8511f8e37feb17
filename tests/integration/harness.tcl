# What every integration test stands on: a RESP client, servers on free ports, checks. Plain tclsh
# 8.6, no packages.
#
#     source [file join [file dirname [info script]] harness.tcl]
#     start_server --pool-size 64mb
#     test {SET is read by GET} {
#         assert_equal OK [r set k v]
#         assert_equal v [r get k]
#     }
#     finish
#
# A body runs at global level and passes unless it raises an error. Waiting is for conditions, never
# for a time to pass; no check depends on how long something took. Only processes that were started
# here are ever signalled, and they end when this process does, however it ends.

set ::root [file normalize [file join [file dirname [info script]] .. ..]]
set ::server_binary [file join $::root src tarn-server]
set ::only *
foreach name {TARN_SERVER TARN_TEST_SERVER} {
    if {[info exists ::env($name)]} {set ::server_binary $::env($name)}
}
# Of the same build as the server.
set ::node_binary [file join [file dirname $::server_binary] tarn-node]
if {[info exists ::env(TARN_NODE)]} {set ::node_binary $::env(TARN_NODE)}
set ::kv_binary [file join [file dirname $::server_binary] tests tools kv]
if {![file executable $::kv_binary]} {
    set ::kv_binary [file join $::root build release tests tools kv]
}
if {[info exists ::env(TARN_KV)]} {set ::kv_binary $::env(TARN_KV)}
# Of tests/modules.
set ::modules [file join [file dirname $::server_binary] tests modules]
if {![file isdirectory $::modules]} {
    set ::modules [file join [file dirname [file dirname $::kv_binary]] modules]
}
if {[info exists ::env(TARN_TEST_ONLY)]} {set ::only $::env(TARN_TEST_ONLY)}
# Sanitizers and busy machines are slow; only failing tests wait this long.
set ::patience_ms 300000
if {[info exists ::env(TARN_TEST_PATIENCE_MS)]} {set ::patience_ms $::env(TARN_TEST_PATIENCE_MS)}
# What stands before the commands of processes, and where servers are reached: see netns_test.tcl.
set ::prefix {}
set ::server_host 127.0.0.1
# Bodies of tests have the same variables as this file: what counts has a name that none of them
# takes.
namespace eval tally {
    variable passed 0 failed 0 skipped 0
}
fconfigure stdout -buffering line -encoding utf-8

# --- RESP ---
#
# A connection is a command: [$c get k] sends and returns the reply. Nil is "(nil)", an error inside
# an array is "(error) text", an error on top is a Tcl error. Maps are flat lists, true and false
# are 1 and 0, pushes look like arrays.

namespace eval resp {
    variable next 0
}

proc resp::connect {host port} {
    variable next
    set fd [socket $host $port]
    return [adopt $fd]
}

proc resp::adopt {fd} {
    variable next
    fconfigure $fd -translation binary -blocking 0 -buffersize 65536
    set name ::resp_[incr next]
    set ::resp::fd($name) $fd
    interp alias {} $name {} resp::call $name
    return $name
}

proc resp::encode {arguments} {
    set out "*[llength $arguments]\r\n"
    foreach a $arguments {
        append out "\$[string length $a]\r\n" $a "\r\n"
    }
    return $out
}

proc resp::raw {c bytes} {
    set fd $::resp::fd($c)
    puts -nonewline $fd $bytes
    flush $fd
}

proc resp::send {c args} {
    raw $c [encode $args]
}

# Waits for bytes (or the end); the event loop also sends what is left to send.
proc resp::await {fd} {
    set ::resp::ready waiting
    set timer [after $::patience_ms {set ::resp::ready late}]
    fileevent $fd readable {set ::resp::ready yes}
    while {$::resp::ready eq "waiting"} {vwait ::resp::ready}
    fileevent $fd readable {}
    after cancel $timer
    if {$::resp::ready eq "late"} {error "no reply within $::patience_ms ms"}
}

proc resp::line {fd} {
    while {[gets $fd line] < 0} {
        if {[eof $fd]} {error "connection closed by the server"}
        await $fd
    }
    return [string range $line 0 end-1]
}

proc resp::bytes {fd n} {
    set data [read $fd $n]
    while {[string length $data] < $n} {
        if {[eof $fd]} {error "connection closed by the server"}
        await $fd
        append data [read $fd [expr {$n - [string length $data]}]]
    }
    return $data
}

# One reply; an error comes back as "(error) text".
proc resp::parse {fd} {
    set line [line $fd]
    set rest [string range $line 1 end]
    switch -exact -- [string index $line 0] {
        : - + - , - ( {return $rest}
        - {return "(error) $rest"}
        $ - = {
            if {$rest < 0} {return (nil)}
            set data [bytes $fd [expr {$rest + 2}]]
            if {[string index $line 0] eq "="} {return [string range $data 4 end-2]}
            return [string range $data 0 end-2]
        }
        * - ~ - > {
            if {$rest < 0} {return (nil)}
            set out {}
            for {set i 0} {$i < $rest} {incr i} {lappend out [parse $fd]}
            return $out
        }
        % {
            set out {}
            for {set i 0} {$i < 2 * $rest} {incr i} {lappend out [parse $fd]}
            return $out
        }
        _ {return (nil)}
        # {return [expr {$rest eq "t"}]}
        default {error "no RESP: '$line'"}
    }
}

# The next reply as text; errors as "(error) text".
proc resp::recv {c} {
    return [parse $::resp::fd($c)]
}

proc resp::call {c args} {
    raw $c [encode $args]
    set fd $::resp::fd($c)
    set reply [parse $fd]
    if {[string range $reply 0 7] eq "(error) "} {error [string range $reply 8 end]}
    return $reply
}

# Bytes as they come, for replies that are no RESP to us: what is there when n bytes have come or
# the server has closed.
proc resp::recv_raw {c n} {
    return [bytes $::resp::fd($c) $n]
}

# Whether a reply, or the end, has begun to arrive.
proc resp::readable {c} {
    set fd $::resp::fd($c)
    set ::resp::ready waiting
    # Taken back at once: update goes on as long as there are events.
    fileevent $fd readable [list apply {fd {
        set ::resp::ready yes
        fileevent $fd readable {}
    }} $fd]
    update
    fileevent $fd readable {}
    return [expr {$::resp::ready eq "yes" || [chan pending input $fd] > 0}]
}

# Reads to the end; an error when the server keeps the connection open.
proc resp::read_to_end {c} {
    set fd $::resp::fd($c)
    set data {}
    while 1 {
        append data [read $fd]
        if {[eof $fd]} {return $data}
        await $fd
    }
}

proc resp::close {c} {
    ::close $::resp::fd($c)
    unset ::resp::fd($c)
    interp alias {} $c {}
}

# --- processes ---

set ::pipes {}          ;# pid -> channel, of all processes started and not yet ended
set ::directories {}
set ::servers_started 0

proc process_state {pid} {
    if {[catch {
        set f [open /proc/$pid/stat]
        set stat [read $f]
        close $f
    }]} {return gone}
    regexp {\) (\S)} $stat - state
    return [expr {$state in {Z X} ? "gone" : $state}]
}

proc send_signal {signal pid} {
    if {![dict exists $::pipes $pid]} {error "pid $pid was not started here"}
    if {[process_state $pid] ne "gone"} {catch {exec kill -$signal $pid}}
}

# The kernel kills it when we die, whatever kills us.
proc start_process {arguments stdout_path} {
    set guard {}
    if {[auto_execok setpriv] ne ""} {
        set guard [list [lindex [auto_execok setpriv] 0] --pdeathsig KILL]
    }
    set pipe [open "|[concat $guard $::prefix $arguments] >> [list $stdout_path] 2>> [list\
        $stdout_path]" w]
    set pid [lindex [pid $pipe] 0]
    dict set ::pipes $pid $pipe
    return $pid
}

# Returns its exit status: "0", "1", or the name of the signal. "late" if it had to be killed.
proc reap_process {pid} {
    set late 0
    if {[catch {wait_for "end of process $pid" {[process_state $::reap_pid] eq "gone"}\
            [set ::reap_pid $pid]}]} {
        set late 1
        send_signal KILL $pid
        while {[process_state $pid] ne "gone"} {after 10}
    }
    set pipe [dict get $::pipes $pid]
    dict unset ::pipes $pid
    set status 0
    if {[catch {close $pipe} - options]} {
        set code [dict get $options -errorcode]
        switch -- [lindex $code 0] {
            CHILDSTATUS {set status [lindex $code 2]}
            CHILDKILLED {set status [lindex $code 2]}
        }
    }
    return [expr {$late ? "late" : $status}]
}

# --- servers ---
#
# A server is a dict: pid, port, dir, log, options. The one started last is current; [r ...] talks
# to it.

set ::servers {}
set ::clients {}

proc temp_dir {} {
    set parent [expr {[info exists ::env(TMPDIR)] ? $::env(TMPDIR) : [file join $::root tests tmp]}]
    file mkdir $parent
    set dir [file join $parent it-[pid]-[incr ::servers_started]]
    file delete -force $dir
    file mkdir $dir
    lappend ::directories $dir
    return $dir
}

# Options are as on the command line; those given replace those that the tests need.
proc server_command {dir options} {
    set defaults [dict create --port 0 --port-file $dir/port --dir $dir --logfile $dir/log \
        --bind 127.0.0.1 \
        --data-port 0 --shm-socket $dir/shm --pool-size 64mb --pool-populate no --save {}]
    return [list $::server_binary {*}[dict merge $defaults $options]]
}

proc start_server {args} {
    set dir [temp_dir]
    set server [dict create dir $dir log $dir/log options $args]
    set server [boot_server $server]
    lappend ::servers $server
    return $server
}

proc boot_server {server} {
    set dir [dict get $server dir]
    file delete $dir/port
    set pid [start_process [server_command $dir [dict get $server options]] $dir/stdout]
    dict set server pid $pid
    set ::boot_dir $dir
    set ::boot_pid $pid
    wait_for "server to start" {[process_state $::boot_pid] eq "gone" || \
        [file_text $::boot_dir/port] ne ""}
    if {[process_state $pid] eq "gone"} {
        reap_process $pid
        error "server did not start: [file_text $dir/stdout][file_text $dir/log]"
    }
    dict set server port [string trim [file_text $dir/port]]
    return $server
}

# The current server again, on its old port; it knows what its files say.
proc restart_server {{signal KILL}} {
    set s [lindex $::servers end]
    foreach c $::clients {catch {resp::close $c}}
    set ::clients {}
    send_signal $signal [dict get $s pid]
    reap_process [dict get $s pid]
    dict lappend s options --port [dict get $s port]
    set ::servers [lreplace $::servers end end [boot_server $s]]
}

proc server {{field ""}} {
    set s [lindex $::servers end]
    return [expr {$field eq "" ? $s : [dict get $s $field]}]
}

# How libtarn and nodes reach the current server.
proc server_url {} {return tarn://$::server_host:[server port]}

# Ends the current server and the nodes that still run; its predecessor is current again. Complains
# when they do not end well.
proc stop_server {} {
    foreach name [dict keys $::node_table] {
        if {[catch {stop_node $name} message]} {report_failed "node $name ends cleanly" $message}
        dict unset ::node_table $name
    }
    set s [lindex $::servers end]
    set ::servers [lrange $::servers 0 end-1]
    foreach c $::clients {catch {resp::close $c}}
    set ::clients {}
    send_signal TERM [dict get $s pid]
    set status [reap_process [dict get $s pid]]
    set complaint [sanitizer_report $s]
    if {$status ne "0"} {append complaint " exit status $status"}
    if {$complaint ne ""} {
        report_failed "server ends cleanly ([dict get $s options])" $complaint
        show_log $s
    }
}

proc sanitizer_report {s} {
    set text [file_text [dict get $s dir]/stdout][file_text [dict get $s log]]
    if {[regexp {[^\n]*(AddressSanitizer|LeakSanitizer|runtime error:|ASSERTION|assertion)[^\n]*}\
            $text found]} {
        return $found
    }
    return ""
}

# A further connection to the current server; closed with it.
proc client {} {
    set c [resp::connect $::server_host [server port]]
    lappend ::clients $c
    return $c
}

# The connection that most tests use: opened when needed, per server.
proc r {args} {
    set s [server]
    if {![info exists ::main_client] || [lindex $::main_client 0] ne [dict get $s pid] || \
            [lindex $::main_client 1] ni $::clients} {
        set ::main_client [list [dict get $s pid] [client]]
    }
    if {[llength $args] == 0} {return [lindex $::main_client 1]}
    return [[lindex $::main_client 1] {*}$args]
}

proc drop {c} {
    set i [lsearch -exact $::clients $c]
    if {$i >= 0} {set ::clients [lreplace $::clients $i $i]}
    resp::close $c
}

# Closes all connections but that of r, and waits until the server has seen it.
proc only_main_client {} {
    set main [r]
    foreach c $::clients {if {$c ne $main} {drop $c}}
    wait_for "the other connections to be gone" {[info_field connected_clients] == 1}
}

# A field of INFO, of the current server.
proc info_field {name {c ""}} {
    if {$c eq ""} {set c [r]}
    set text [$c info everything]
    if {![regexp -line "^$name:(.*?)\r?\$" $text - value]} {error "INFO has no $name"}
    return $value
}

# --- nodes ---
#
# A node is a dict under its name: pid (0: it does not run), dir, log, options. Nodes belong to the
# current server and end with it.

set ::node_table {}

# tarn-node and its options; those that tests need are added where they are not given. Flags:
# --name=value, or alone.
proc node_command {name dir options} {
    set command [list $::node_binary]
    set before ""
    foreach word $options {
        # Their files are made, unless the test wants what is there: PATH:SIZE,
        if {$before in {--ssd --file} && ![regsub {,$} $word {} word]} {append word ,create}
        lappend command $word
        set before $word
    }
    foreach {option value} [list --master [server_url] --name $name --bind 127.0.0.1 --data-port 0 \
        --port-file $dir/port --log-file $dir/log --shm-socket $dir/shm --exit-timeout 3] {
        if {[lsearch -glob $options $option*] < 0} {lappend command $option $value}
    }
    foreach {option} {--segment --ssd --file} {
        if {[lsearch -glob $options $option*] >= 0} {return [lappend command --no-populate]}
    }
    return [lappend command --segment 32mb --no-populate]
}

# Starts it and waits until the master says that it is up.
proc start_node {name args} {
    set dir [temp_dir]
    dict set ::node_table $name [dict create pid 0 dir $dir log $dir/log options $args]
    restart_node $name
}

# The same node again, after stop_node or kill_node; with other options where some are given.
proc restart_node {name args} {
    launch_node $name {*}$args
    set ::boot_node $name
    # The port file is written when it is up; the master may not have noticed the death of its
    # former life before.
    wait_for "node $name to be up" {[process_state [node $::boot_node pid]] eq "gone" ||
        ([file_text [node $::boot_node dir]/port] ne "" && \
            [node_state $::boot_node] in {up maintenance draining})}
    if {[process_state [node $name pid]] eq "gone"} {
        set status [reap_process [node $name pid]]
        set text [file_text [node $name dir]/stdout][file_text [node $name log]]
        dict set ::node_table $name pid 0
        error "node $name did not start (status $status): $text"
    }
}

# Starts it and does not wait.
proc launch_node {name args} {
    if {![dict exists $::node_table $name]} {
        set dir [temp_dir]
        dict set ::node_table $name [dict create pid 0 dir $dir log $dir/log options $args]
    }
    if {[llength $args] > 0} {dict set ::node_table $name options $args}
    set dir [node $name dir]
    file delete $dir/port
    dict set ::node_table $name pid [start_process [node_command $name $dir [node $name options]] \
        $dir/stdout]
}

proc node {name field} {return [dict get $::node_table $name $field]}

# joining, up, down, leaving, left; "" when the master does not know it.
proc node_state {name} {
    if {[catch {r node info $name} info]} {return ""}
    return [dict get $info state]
}

proc wait_node {name state} {
    set ::wait_node [list $name $state]
    wait_for "node $name to be '$state' (it is '[node_state $name]')" \
        {[node_state [lindex $::wait_node 0]] eq [lindex $::wait_node 1]}
}

proc node_field {name field} {return [dict get [r node info $name] $field]}

# SIGTERM; its exit status must be as expected.
proc stop_node {name {expected 0}} {
    set pid [node $name pid]
    if {$pid == 0} return
    send_signal CONT $pid
    send_signal TERM $pid
    set status [reap_node $name]
    if {$status ne $expected} {
        error "exit status $status: [string range [file_text [node $name dir]/stdout] end-600 end]"
    }
}

# Waits for its end; returns the status.
proc reap_node {name} {
    set pid [node $name pid]
    dict set ::node_table $name pid 0
    set status [reap_process $pid]
    set complaint [sanitizer_report [dict get $::node_table $name]]
    if {$complaint ne ""} {error $complaint}
    return $status
}

proc kill_node {name} {
    set pid [node $name pid]
    send_signal KILL $pid
    reap_process $pid
    dict set ::node_table $name pid 0
}

# It does nothing more when this returns.
proc pause_node {name} {
    send_signal STOP [node $name pid]
    set ::paused [node $name pid]
    wait_for "node $name to stop" {![catch {threads_stopped $::paused} ::threads_done] && \
        $::threads_done}
}
proc threads_stopped {pid} {
    foreach dir [glob /proc/$pid/task/*] {
        regexp {\) (\S)} [file_text $dir/stat] - state
        if {$state ne "T"} {return 0}
    }
    return 1
}
proc continue_node {name} {send_signal CONT [node $name pid]}

proc segment_field {segment field} {return [dict get [r segment info $segment] $field]}

# --- libtarn ---
#
# tests/tools/kv.c says what it does. Its answer comes as a dict: keys ok misses existed errors
# wrong bytes replicas missing failovers shm_bytes tcp_bytes, status, and error, its standard error.

proc kv {args} {return [kv_answer [kv_exec [kv_arguments $args]]]}

# Options, then the command: the master's address goes between them.
proc kv_arguments {arguments} {
    set i [lsearch -regexp $arguments {^(put|get|remove|load|verify|run)$}]
    if {$i < 0} {error "no command of kv: $arguments"}
    return [linsert $arguments $i [server_url]]
}

proc kv_exec {arguments} {
    set status 0
    set path [file join [server dir] kv-error-[incr ::kv_calls]]
    if {[catch {exec -keepnewline {*}$::prefix $::kv_binary {*}$arguments 2> $path} text options]} {
        set code [dict get $options -errorcode]
        if {[lindex $code 0] ne "CHILDSTATUS"} {error "kv $arguments: $text"}
        set status [lindex $code 2]
    }
    set errors [file_text $path]
    file delete $path
    return [list $status $text $errors]
}

proc kv_answer {result} {
    lassign $result status text errors
    set answer {}
    foreach {- name value} [regexp -all -inline {(\w+)=(\d+)} $text] {dict set answer $name $value}
    dict set answer status $status
    dict set answer error [string trim $errors]
    if {![dict exists $answer keys]} {error "kv: [string trim $errors]"}
    return $answer
}

# Values of this answer: kv_fields $a ok misses wrong
proc kv_fields {answer args} {
    set out {}
    foreach name $args {lappend out [dict get $answer $name]}
    return $out
}

# All n are there, whole, and right.
proc kv_all {n args} {
    set a [kv {*}$args]
    assert_equal "$n 0 0 0" [kv_fields $a ok misses errors wrong] [dict get $a error]
    return $a
}

# The bytes of one value.
proc kv_value {key args} {
    set path [file join [server dir] kv-value-[incr ::kv_calls]]
    exec {*}$::prefix $::kv_binary {*}$args [server_url] get $key > $path 2>@stderr
    set bytes [file_text $path]
    file delete $path
    return $bytes
}

# kv run in the background; kv_stop returns its answer.
proc kv_start {args} {
    set log [file join [server dir] kv-run-[incr ::kv_calls]]
    set pid [start_process [list $::kv_binary {*}[kv_arguments $args]] $log]
    set ::kv_run [list $pid $log]
    wait_for "kv to run" {[string match *running* [file_text [lindex $::kv_run 1]]] || \
        [process_state [lindex $::kv_run 0]] eq "gone"}
    return [list $pid $log]
}

proc kv_stop {run} {
    lassign $run pid log
    send_signal TERM $pid
    set status [reap_process $pid]
    return [kv_answer [list $status [file_text $log] [file_text $log]]]
}

# --- Sentinel ---
#
# An unmodified one that watches the master on that port under the name pool; lines are added to its
# configuration. A machine that stands still for some seconds is no failure to it: it never
# distrusts its clock (TILT would last half a minute), and counts nobody as down before
# sentinel_hurry.

proc start_sentinel {port {lines ""}} {
    set dir [temp_dir]
    set f [open $dir/sentinel.conf w]
    puts $f "port 0\nunixsocket $dir/sentinel.sock\ndir $dir\nlogfile $dir/log"
    puts $f "sentinel monitor pool 127.0.0.1 $port 1\nsentinel down-after-milliseconds pool\
        300000\nsentinel failover-timeout pool 10000"
    puts $f $lines
    close $f
    set ::sentinel_dir $dir
    set pid [start_process [list redis-sentinel $dir/sentinel.conf] $dir/stdout]
    wait_for "Sentinel to answer" \
        {![catch {sentinel_ask debug tilt-trigger 300000 tilt-period 1000} answer] && \
        $answer eq "OK"}
    return $pid
}
proc sentinel_ask {args} {exec redis-cli -s $::sentinel_dir/sentinel.sock sentinel {*}$args}
proc sentinel_log {} {return [file_text $::sentinel_dir/log]}
proc sentinel_hurry {} {assert_equal OK [sentinel_ask set pool down-after-milliseconds 2000]}

# --- checks ---

proc shown {value} {
    set s [string map {\r \\r \n \\n} $value]
    if {[string length $s] > 300} {
        set s "[string range $s 0 300]... ([string length $value] bytes)"
    }
    return $s
}

proc assert {condition {why ""}} {
    if {![uplevel 1 [list expr $condition]]} {error "not so: $condition $why"}
}

proc assert_equal {expected got {why ""}} {
    if {$expected ne $got} {error "expected '[shown $expected]', got '[shown $got]' $why"}
}

proc assert_match {pattern got} {
    if {![string match $pattern $got]} {error "'[shown $got]' does not match '[shown $pattern]'"}
}

# The script raises an error (most often: the server answered one) that matches the glob.
proc assert_error {pattern script} {
    if {![catch {uplevel 1 $script} message]} {
        error "expected an error like '$pattern', got '[shown $message]'"
    }
    if {![string match $pattern $message]} {
        error "expected an error like '$pattern', got '[shown $message]'"
    }
}

proc assert_range {low value high} {
    if {$value < $low || $value > $high} {error "$value is not in $low .. $high"}
}

# Until the expression is true; ignored arguments let a caller set variables in the call.
proc wait_for {what condition args} {
    set end [expr {[clock milliseconds] + $::patience_ms}]
    while 1 {
        if {[uplevel #0 [list expr $condition]]} return
        if {[clock milliseconds] > $end} {error "waited in vain for $what"}
        after 5
    }
}

proc file_text {path} {
    if {[catch {open $path rb} f]} {return ""}
    set text [read $f]
    close $f
    return $text
}

# Keys "prefix0" ... of a batch, each followed by the given fixed arguments.
proc batch {prefix n args} {
    set out {}
    for {set i 0} {$i < $n} {incr i} {lappend out $prefix$i {*}$args}
    return $out
}

# CRC-32C of a string, for PUTEND.
proc crc32c {data} {
    if {![info exists ::crc_table]} {
        set ::crc_table {}
        for {set i 0} {$i < 256} {incr i} {
            set v $i
            for {set k 0} {$k < 8} {incr k} {
                set v [expr {$v & 1 ? ($v >> 1) ^ 0x82F63B78 : $v >> 1}]
            }
            lappend ::crc_table $v
        }
    }
    set crc 0xffffffff
    binary scan $data cu* bytes
    foreach b $bytes {
        set crc [expr {[lindex $::crc_table [expr {($crc ^ $b) & 255}]] ^ ($crc >> 8)}]
    }
    return [expr {$crc ^ 0xffffffff}]
}

# --- tests ---

proc report_failed {name why} {
    incr ::tally::failed
    puts "not ok $name: [string map {\n { | } \r {}} $why]"
}

proc show_log {s {count 30}} {
    foreach path [list [dict get $s dir]/stdout [dict get $s log]] {
        set lines [split [string trimright [file_text $path]] \n]
        if {[llength $lines] == 0 || $lines eq "{}"} continue
        puts "#   --- $path"
        foreach line [lrange $lines end-[expr {$count - 1}] end] {puts "#   $line"}
    }
}

proc skip {why} {return -code error -errorcode SKIP $why}

proc test {name body} {
    if {![string match $::only $name] && ![string match $::only [file tail $::argv0]]} return
    set begin [clock milliseconds]
    if {[catch {uplevel #0 $body} message options]} {
        if {[dict get $options -errorcode] eq "SKIP"} {
            incr ::tally::skipped
            puts "skip $name: $message"
            return
        }
        report_failed $name $message
        if {[info exists ::env(TARN_TEST_TRACE)]} {puts "#   [dict get $options -errorinfo]"}
        after_failure
        return
    }
    incr ::tally::passed
    puts "ok $name ([expr {[clock milliseconds] - $begin}] ms)"
}

# The next test begins with connections that owe no replies, and with a server that lives.
proc after_failure {} {
    foreach c $::clients {catch {resp::close $c}}
    set ::clients {}
    if {[llength $::servers] == 0} return
    set s [lindex $::servers end]
    show_log $s
    dict for {name node} $::node_table {show_log $node 8}
    if {[process_state [dict get $s pid]] ne "gone"} return
    puts "#   the server is gone (status [reap_process [dict get $s pid]]); a new one is started"
    set ::servers [lreplace $::servers end end [boot_server $s]]
}

# The end of every test file.
proc finish {} {
    while {[llength $::servers] > 0} {stop_server}
    foreach pid [dict keys $::pipes] {
        send_signal KILL $pid
        reap_process $pid
    }
    if {$::tally::failed == 0} {foreach dir $::directories {file delete -force $dir}}
    set text "$::tally::passed passed, $::tally::failed failed"
    if {$::tally::skipped} {append text ", $::tally::skipped skipped"}
    puts $text
    exit [expr {$::tally::failed > 0}]
}
