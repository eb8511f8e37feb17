# The process: its title, who supervises it, what the kernel is told, how it ends, what it leaves
# behind when it crashes.
source [file join [file dirname [info script]] harness.tcl]

proc title {} {
    return [string trimright [string map {\0 " "} [file_text /proc/[server pid]/cmdline]]]
}
proc log_text {} {return [file_text [server log]]}
proc oom_score {} {return [string trim [file_text /proc/[server pid]/oom_score_adj]]}

# A sanitizer writes reports of its own, and lets nothing be loaded before it.
set plain [expr {![info exists env(TARN_SANITIZER)] || $env(TARN_SANITIZER) eq ""}]
set faults [expr {$plain && [info exists env(TARN_FAULT)] && [file exists $env(TARN_FAULT)]}]

# A server whose environment has these variables.
proc with_environment {variables script} {
    foreach {name value} $variables {set ::env($name) $value}
    set code [catch {uplevel 1 $script} why]
    foreach {name value} $variables {unset -nocomplain ::env($name)}
    if {$code} {error $why}
}

test {the title says what the template wants} {
    # It stands there when the port file does, however long the server takes after that.
    if {$::faults} {
        set ::prefix [list env LD_PRELOAD=$::env(TARN_FAULT) TARN_FAULT=rename:slow:1]
    }
    start_server --pool-size 0
    set ::prefix {}
    assert_equal "$::server_binary 127.0.0.1:[server port]" [title]
    r config set proc-title-template \
        "TEST {title} {listen-addr} {port} {tls-port} {unixsocket} {config-file} {server-mode}"
    assert_equal "TEST $::server_binary 127.0.0.1:[server port] [server port] 0" [title]
    assert_error "*template format is invalid*" {r config set proc-title-template "{invalid-var}"}
    assert_error "*template format is invalid*" {r config set proc-title-template "\{port"}
    r config set proc-title-template [string repeat long 1000]
    assert_match "longlong*" [title]
    assert_equal [info_field run_id] [info_field run_id] \
        "its environment and arguments are elsewhere"
    stop_server
    start_server --pool-size 0 --set-proc-title no
    assert_match "*--set-proc-title no*" [title]
    stop_server
}

test {systemd hears of start and end} {
    set dir [temp_dir]
    set script {
import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
open(sys.argv[2] + ".bound", "w").close()
while True:
    text = s.recv(4096).decode()
    with open(sys.argv[2], "a") as f:
        f.write(text + "\n")
    if "STOPPING=1" in text:
        break
}
    set f [open $dir/listen.py w]
    puts $f $script
    close $f
    foreach kind {auto systemd} {
        file delete $dir/said $dir/notify $dir/said.bound
        set ::notify_dir $dir
        set listener [start_process [list python3 $dir/listen.py $dir/notify $dir/said] $dir/errors]
        wait_for "the listener" {[file exists $::notify_dir/said.bound]}
        with_environment [list NOTIFY_SOCKET $dir/notify] {start_server --pool-size 0\
            --supervised $kind --daemonize yes}
        assert_equal systemd [info_field process_supervised]
        wait_for "READY" \
            {[string match "*READY=1\nSTATUS=Ready to accept connections on port [server port]*"\
            [file_text $::notify_dir/said]]}
        stop_server
        assert_equal 0 [reap_process $listener]
        assert_match "*STOPPING=1*" [file_text $dir/said]
    }
    with_environment [list NOTIFY_SOCKET $dir/nobody-there] {start_server --pool-size 0\
        --supervised systemd}
    wait_for "a word in the log" {[string match "*systemd cannot be told*" [log_text]]}
    stop_server
    start_server --pool-size 0 --supervised auto
    assert_equal no [info_field process_supervised]
    stop_server
}

test {at SIGHUP the log file is opened again; where that fails the log stays, and says so} {
    set ::logs [temp_dir]/logs
    file mkdir $::logs
    start_server --pool-size 0 --logfile $::logs/log
    file rename $::logs/log $::logs/log.1
    send_signal HUP [server pid]
    wait_for "a new log" {[file exists $::logs/log] &&
        [string match "*SIGHUP: the log file was opened again*" [file_text $::logs/log]]}
    file rename $::logs $::logs.away
    send_signal HUP [server pid]
    set ::said "*SIGHUP: the log file $::logs/log cannot be opened: No such file*"
    wait_for "a complaint" {[string match $::said [file_text $::logs.away/log]]}
    assert_equal PONG [r ping]
    stop_server
}

test {daemonize and pidfile: it returns when the server serves} {
    set dir [temp_dir]
    exec {*}[server_command $dir [list --pool-size 0 --daemonize yes --pidfile $dir/pid]] < \
        /dev/null
    set pid [string trim [file_text $dir/pid]]
    set c [resp::connect 127.0.0.1 [string trim [file_text $dir/port]]]
    regexp {process_id:(\d+)} [$c info server] - said
    assert_equal $pid $said
    # it has left its session and its terminal
    assert_equal $pid [lindex [regexp -inline {\) \S+ \S+ \S+ (\d+)} [file_text /proc/$pid/stat]] 1]
    foreach fd {0 1 2} {assert_equal /dev/null [file readlink /proc/$pid/fd/$fd]}
    resp::send $c shutdown nosave
    resp::read_to_end $c
    resp::close $c
    set ::boot_dir $dir
    wait_for "the pidfile to be gone" {![file exists $::boot_dir/pid]}
}

test {started without standard input, output and error, nothing of its own takes their place} {
    set dir [temp_dir]
    set options [list --pool-size 4mb --pool-path $dir/pool --daemonize yes --pidfile $dir/pid \
        --logfile $dir/log]
    exec sh -c {exec "$@" <&- >&- 2>&-} sh {*}[server_command $dir $options]
    set pid [string trim [file_text $dir/pid]]
    foreach fd {0 1 2} {assert_equal /dev/null [file readlink /proc/$pid/fd/$fd]}
    set c [resp::connect 127.0.0.1 [string trim [file_text $dir/port]]]
    assert_equal PONG [$c ping]
    resp::send $c shutdown nosave
    resp::read_to_end $c
    resp::close $c
    set ::boot_dir $dir
    wait_for "the pidfile to be gone" {![file exists $::boot_dir/pid]}
    assert_match "*Exiting now*" [file_text $dir/log]
}

test {a daemon that cannot start says so, and ends with its status} {
    start_server --pool-size 0
    set dir [temp_dir]
    set command [list $::server_binary --daemonize yes --pool-size 0 --bind 127.0.0.1 \
        --port [server port] --dir $dir]
    assert_equal 1 [catch {exec {*}$command < /dev/null 2>@1} said options]
    assert_equal 1 [lindex [dict get $options -errorcode] 2]
    assert_match "*port [server port]*" $said
    assert_equal 1 [catch {exec {*}$command --logfile log < /dev/null 2>@1} said]
    assert_match "*ended before it was ready: see $dir/log*" $said
    assert_match "*port [server port]*" [file_text $dir/log]
    stop_server
}

test {tarn-node --daemonize: it returns when the node is up} {
    start_server --pool-size 0
    set dir [temp_dir]
    set command [list $::node_binary --master [server_url] --name n1 --bind 127.0.0.1 \
        --segment 4mb --shm-socket $dir/shm \
        --daemonize --pid-file $dir/pid --log-file $dir/log]
    assert_match "tarn-node n1 is up: *" [exec {*}$command < /dev/null]
    assert_equal up [node_state n1]
    set ::daemon [string trim [file_text $dir/pid]]
    assert_equal $::daemon \
        [lindex [regexp -inline {\) \S+ \S+ \S+ (\d+)} [file_text /proc/$::daemon/stat]] 1]
    foreach fd {0 1 2} {assert_equal /dev/null [file readlink /proc/$::daemon/fd/$fd]}
    # one of that name there is: its status and its words come through
    set command [string map [list $dir/shm $dir/other] $command]
    assert_equal 1 [catch {exec {*}$command < /dev/null 2>@1} said options]
    assert_equal 3 [lindex [dict get $options -errorcode] 2]
    assert_match "*a living node has this name*(--name)*" $said
    assert_equal $::daemon [string trim [file_text $dir/pid]] \
        "the file is that of the node that runs"
    exec kill $::daemon
    set ::boot_dir $dir
    wait_for "the node to be gone" {![file exists /proc/$::daemon] && \
        ![file exists $::boot_dir/pid]}
    stop_server
}

test {oom-score-adj} {
    start_server --pool-size 0
    set base [oom_score]
    if {$base > 960} {
        stop_server
        skip "the score of this process is $base already, and 1000 is the highest"
    }
    assert_equal OK [r config set oom-score-adj-values "10 20 30" oom-score-adj yes]
    assert_equal [expr {$base + 10}] [oom_score]
    r config set oom-score-adj-values "15 20 30"
    assert_equal [expr {$base + 15}] [oom_score]
    r replicaof 127.0.0.1 [server port]
    assert_equal [expr {$base + 20}] [oom_score]
    r replicaof no one
    assert_equal [expr {$base + 15}] [oom_score]
    assert_error "*must be between -2000 and 2000*" {r config set oom-score-adj-values "-2001 0 0"}
    r config set oom-score-adj no
    assert_equal $base [oom_score]
    r config set oom-score-adj-values "9 9 9"
    assert_equal $base [oom_score]
    r config set oom-score-adj absolute oom-score-adj-values "[expr {$base + 3}] 9 9"
    assert_equal [expr {$base + 3}] [oom_score]
    stop_server
}

# Policy and priority of a thread, by default the first one, which has the loop.
proc scheduling {{thread ""}} {
    if {$thread eq ""} {set thread [server pid]}
    set stat [file_text /proc/[server pid]/task/$thread/stat]
    set words [string range $stat [string last ")" $stat]+2 end]
    return [list [lindex $words 38] [lindex $words 37]]
}
if {[catch {exec chrt -f 5 true}]} {
    test {loop-priority} {skip "there is no right to real-time priorities here"}
} else {
    test {loop-priority: of the loop, and of no other thread} {
        start_server --loop-priority 3
        assert_equal {1 3} [scheduling]
        set threads [glob -tails -directory /proc/[server pid]/task *]
        assert {[llength $threads] > 1}
        foreach thread $threads {
            if {$thread != [server pid]} {assert_equal {0 0} [scheduling $thread]}
        }
        r config set loop-priority 5
        assert_equal {1 5} [scheduling]
        r config set loop-priority 0
        assert_equal {0 0} [scheduling]
        stop_server
    }
}
set modest [list setpriv --bounding-set=-sys_nice]
if {[catch {exec {*}$modest true}]} {set modest {}}
if {![catch {exec {*}$modest chrt -f 5 true}]} {
    test {loop-priority, refused} {skip "everybody has a right to real-time priorities here"}
} else {
    test {loop-priority: a server that may not have it starts without} {
        set ::prefix $::modest
        start_server --pool-size 0 --loop-priority 6
        set ::prefix {}
        assert_equal {0 0} [scheduling]
        assert_match "*loop-priority 6: the kernel refused: Operation not permitted*" [log_text]
        assert_error "*the kernel refused it*" {r config set loop-priority 5}
        assert_equal {loop-priority 6} [r config get loop-priority]
        assert_equal {0 0} [scheduling]
        stop_server
    }
}

test {disable-thp} {
    start_server --pool-size 0 --disable-thp yes
    set status [file_text /proc/[server pid]/status]
    if {[regexp {THP_enabled:\s+(\d)} $status - enabled]} {assert_equal 0 $enabled}
    stop_server
}

test {a signal that asks for the end does what its option says} {
    start_server --pool-size 0 --save "3600 1000"
    set s [server]
    r set a 1
    file mkdir [server dir]/dump.tarn
    send_signal INT [server pid]
    wait_for "the refusal" {[string match "*Error trying to save the DB, can't exit*" [log_text]]}
    assert_equal PONG [r ping]
    assert_error "ERR Errors trying to SHUTDOWN*" {r shutdown}
    assert_error "ERR syntax error" {r shutdown save nosave}
    assert_error "ERR syntax error" {r shutdown abort now}
    assert_error "ERR No shutdown in progress." {r shutdown abort}
    r config set shutdown-on-sigint "nosave now"
    send_signal INT [server pid]
    set ::servers [lrange $::servers 0 end-1]
    assert_equal 0 [reap_process [dict get $s pid]]
    file delete [dict get $s dir]/dump.tarn
    lappend ::servers [boot_server $s]
    assert_equal 0 [r dbsize]
    r config set shutdown-on-sigterm save save ""
    r set b 2
    set s [server]
    stop_server
    lappend ::servers [boot_server $s]
    assert_equal 2 [r get b]
    stop_server
}

# The server that is waited for, with a replica that is stopped and has not heard of the last write.
proc lagging_pair {timeout} {
    start_server --pool-size 0 --shutdown-timeout $timeout --hz 100
    set ::master [client]
    set ::master_server [server]
    set port [server port]
    start_server --pool-size 0
    r replicaof 127.0.0.1 $port
    wait_for "the replica" {[info_field master_link_status] eq "up"}
    $::master set k 1
    wait_for "the first write" {[r dbsize] == 1}
    send_signal STOP [server pid]
    $::master incr k
}
proc master_field {name} {
    regexp -line "^$name:(\\S+)" [$::master info everything] - value
    return [expr {[info exists value] ? $value : ""}]
}

test {SHUTDOWN waits for a replica that lags: ABORT, and the end when it has all} {
    lagging_pair 300
    set waiting [resp::connect 127.0.0.1 [dict get $::master_server port]]
    resp::send $waiting shutdown
    wait_for "the wait" {[master_field shutdown_in_milliseconds] > 0}
    assert_equal 1 [master_field blocked_clients]
    assert_equal OK [$::master shutdown abort]
    assert_match "*ERR Errors trying to SHUTDOWN*" [resp::recv $waiting]
    assert_equal "" [master_field shutdown_in_milliseconds]
    assert_equal 3 [$::master incr k] "writes go on"
    resp::send $waiting shutdown
    wait_for "the wait" {[master_field shutdown_in_milliseconds] > 0}
    send_signal CONT [server pid]
    assert_equal "" [resp::read_to_end $waiting]
    resp::close $waiting
    set replica [lindex $::servers end]
    set ::servers [lrange $::servers 0 end-2]
    assert_equal 0 [reap_process [dict get $::master_server pid]]
    assert_match "*Shutdown manually aborted*1 of 1 replicas are in sync*ready to exit, bye bye*" \
        [file_text [dict get $::master_server log]]
    lappend ::servers $replica
    r replicaof no one
    assert_equal 3 [r get k]
    stop_server
}

test {CLIENT UNPAUSE does not lift the pause of a SHUTDOWN that waits, SHUTDOWN ABORT not that of\
        a client} {
    lagging_pair 300
    set waiting [resp::connect 127.0.0.1 [dict get $::master_server port]]
    set writer [resp::connect 127.0.0.1 [dict get $::master_server port]]
    resp::send $waiting shutdown
    wait_for "the wait" {[master_field shutdown_in_milliseconds] > 0}
    resp::send $writer incr k
    wait_for "the write that is held" {[master_field blocked_clients] == 2}
    assert_equal OK [$::master client unpause]
    assert_equal write [master_field paused_actions]
    assert {[master_field paused_timeout_milliseconds] > 0}
    assert_equal OK [$::master client pause 1 all]
    wait_for "the end of the client's own pause" {[master_field paused_actions] eq "write"}
    assert_equal 2 [$::master get k]
    assert {![resp::readable $writer]}
    # What a client asks for outlives the shutdown.
    assert_equal OK [$::master client pause 1000000 write]
    assert_equal OK [$::master shutdown abort]
    assert_match "*ERR Errors trying to SHUTDOWN*" [resp::recv $waiting]
    assert_equal write [master_field paused_actions]
    assert {![resp::readable $writer]}
    assert_equal OK [$::master client unpause]
    assert_equal 3 [resp::recv $writer]
    assert_equal none [master_field paused_actions]
    resp::close $writer
    resp::close $waiting
    send_signal CONT [server pid]
    stop_server
    stop_server
}

test {SHUTDOWN: after shutdown-timeout the lagging replica is named} {
    lagging_pair 1
    send_signal TERM [dict get $::master_server pid]
    assert_equal 0 [reap_process [dict get $::master_server pid]]
    assert_match "*Lagging replica*0 of 1 replicas are in sync*" \
        [file_text [dict get $::master_server log]]
    send_signal CONT [server pid]
    set replica [lindex $::servers end]
    set ::servers [lrange $::servers 0 end-2]
    lappend ::servers $replica
    stop_server
}

test {SHUTDOWN NOW does not wait} {
    lagging_pair 300
    resp::send $::master shutdown now
    assert_equal 0 [reap_process [dict get $::master_server pid]]
    send_signal CONT [server pid]
    set replica [lindex $::servers end]
    set ::servers [lrange $::servers 0 end-2]
    lappend ::servers $replica
    stop_server
}

if {$plain} {
    test {a crash leaves a report} {
        start_server --pool-size 0
        set s [server]
        r set a 1
        send_signal ABRT [server pid]
        set ::servers [lrange $::servers 0 end-1]
        assert_equal SIGABRT [reap_process [dict get $s pid]]
        set text [file_text [dict get $s log]]
        assert_match "*REPORT START*crashed by signal: 6*STACK TRACE*#0 *#1 *Uptime: *role:\
            master*REPORT END*" $text
        dict lappend s options --crash-log-enabled no
        lappend ::servers [boot_server $s]
        set before [string length [file_text [dict get $s log]]]
        set s [server]
        send_signal ABRT [server pid]
        set ::servers [lrange $::servers 0 end-1]
        assert_equal SIGABRT [reap_process [dict get $s pid]]
        assert {![string match "*REPORT START*" [string range [file_text [dict get $s log]]\
            $before end]]}
    }
}

# libsodium's hash crashes when it is called for the third time.
if {$faults} {
    test {a crash in the middle of a command: it is in the report, passwords are not} {
        set hash #[string repeat 0123456789abcdef 4]
        foreach {command shown} {
            {auth u swordfish1} {cmd=auth arguments=3 user=default*: 'auth'}
            {auth swordfish1} {cmd=auth arguments=2 user=default*: 'auth'}
            {hello 3 auth u swordfish1} {cmd=hello arguments=5*: '3'*: 'auth'}
            {acl setuser u >swordfish1} {cmd=setuser arguments=4*: 'setuser'}
            {config set timeout 7 requirepass swordfish1 maxclients 100} \
                {cmd=set arguments=8*: '7'*: 'requirepass'*: 'maxclients'}
        } {
            set ::prefix [list env LD_PRELOAD=$::env(TARN_FAULT) \
                TARN_FAULT=crypto_hash_sha256:crash:3]
            start_server --pool-size 0 --loglevel debug
            set ::prefix {}
            set s [server]
            # Passwords that were said before, and one that is not complete.
            foreach text {"auth u swordfish2\r\n" "config set masterauth swordfish3\r\n"\
                "acl setuser v >swordfish4\r\n"
                "*3\r\n\$4\r\nauth\r\n\$1\r\nu\r\n\$12\r\nswordfish"} {
                set c [client]
                resp::raw $c $text
                if {[string match *\n $text]} {resp::recv $c}
            }
            assert_equal OK [r acl setuser u on $hash]
            if {$command eq "auth swordfish1"} {
                assert_equal OK [r acl setuser default resetpass $hash]
            }
            resp::send [r] {*}$command
            set ::servers [lrange $::servers 0 end-1]
            assert_equal SIGSEGV [reap_process [dict get $s pid]] $command
            set text [file_text [dict get $s log]]
            assert_match "*REPORT START*crashed by signal: 11*#0 *CURRENT CLIENT*$shown*REPORT\
                END*" $text
            assert {![string match *swordfish* $text]} $command
        }
    }
}

test {maxmemory-clients: who holds most goes first, who asked to stay stays} {
    start_server --pool-size 0
    foreach {name size} {small 100000 big 1000000 kept 1500000} {
        set c [client]
        $c client setname $name
        if {$name eq "kept"} {$c client no-evict on}
        resp::raw $c "*2\r\n\$4\r\nECHO\r\n\$[expr {$size + 1000}]\r\n[string repeat x $size]"
        set client($name) $c
    }
    wait_for "their bytes" {[regexp {name=small [^\n]*tot-mem=(\d+)} [r client list] - m] && \
        $m >= 100000
        && [regexp {name=kept [^\n]*tot-mem=(\d+)} [r client list] - m] && $m >= 1500000}
    assert_equal 0 [info_field evicted_clients]
    r config set maxmemory-clients 1000000
    wait_for "the big one to go" {[info_field evicted_clients] == 1}
    assert_equal "" [resp::read_to_end $client(big)]
    assert_match "*name=small*" [r client list]
    assert_match "*name=kept*" [r client list]
    assert_match "*Evicting client: *name=big*" [log_text]
    assert_error "*percentage argument must be less or equal to 100*" \
        {r config set maxmemory-clients 101%}
    r config set maxmemory 2000000 maxmemory-clients 3%
    assert_equal {maxmemory-clients 3%} [r config get maxmemory-clients]
    wait_for "the small one to go" {[info_field evicted_clients] == 2}
    assert_equal PONG [r ping]
    stop_server
}

test {databases: numbers, and one keyspace} {
    start_server --pool-size 0 --databases 16
    assert_match "*databases 16*one keyspace*" [log_text]
    r set a 1
    assert_equal OK [r select 9]
    assert_equal 1 [r get a]
    assert_match "* db=9 *" [r client info]
    assert_error "ERR FLUSHDB*FLUSHALL*" {r flushdb}
    assert_error "ERR DB index is out of range" {r select 16}
    assert_error "ERR DB index is out of range" {r select -1}
    assert_equal OK [r select 0]
    assert_equal OK [r flushdb]
    stop_server
    start_server --pool-size 0
    assert_error "ERR DB index is out of range" {r select 1}
    stop_server
}
finish
