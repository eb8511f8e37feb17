# CONFIG, INFO, CLIENT, MONITOR, SLOWLOG, SEGMENT, SHUTDOWN.
source [file join [file dirname [info script]] harness.tcl]
set main [start_server --enable-debug-command yes]

test {CONFIG GET and SET} {
    assert_equal {eviction-policy chain} [r config get eviction-policy]
    assert_equal {max-lease 10000} [r config get MAX-LEASE]
    assert {[llength [r config get *]] > 60}
    assert_equal {} [r config get nonsense]
    assert_equal OK [r config set max-lease 5000 slowlog-max-len 10]
    assert_equal {max-lease 5000} [r config get max-lease]
    r config set max-lease 10000
    assert_error "ERR Unknown option or number of arguments for CONFIG SET - 'nonsense'" \
        {r config set nonsense 1}
    assert_error "ERR CONFIG SET failed*" {r config set max-lease x}
    assert_error "ERR CONFIG SET failed*" {r config set max-lease 7000 hz x}
    assert_equal {max-lease 10000} [r config get max-lease]
    assert_error "ERR CONFIG SET failed*" {r config set pool-size 1gb}
    assert_error "ERR wrong number of arguments*" {r config set max-lease}
    assert_equal 2 [llength [r config get save]]
    assert_equal 2 [llength [r config get appendonly]]
}

test {CONFIG REWRITE: a server started with the file has the options} {
    set file [file join [temp_dir] tarn.conf]
    set f [open $file w]
    puts $f "# a comment that stays\nmax-lease 9000\n"
    close $f
    start_server
    set s [server]
    set ::servers [lrange $::servers 0 end-1]
    # once more, with a file
    lappend ::servers $s
    stop_server
    rename server_command plain_command
    proc server_command {dir options} {
        set command [plain_command $dir $options]
        return [linsert $command 1 $::file]
    }
    start_server
    assert_equal {max-lease 9000} [r config get max-lease]
    r config set max-lease 8000 eviction-policy sieve
    assert_equal OK [r config rewrite]
    stop_server
    assert_match "*# a comment that stays*" [file_text $file]
    start_server
    assert_equal {max-lease 8000} [r config get max-lease]
    assert_equal {eviction-policy sieve} [r config get eviction-policy]
    stop_server
    rename server_command {}
    rename plain_command server_command
}

test {configurations that cannot be: the server says why and ends} {
    foreach {options pattern} {{--nonsense 1} *nonsense* {--port x} *port* {--eviction-policy mru}\
        *eviction-policy*
        {--pool-size 10zb} *pool-size* {--eviction-high-watermark 2} *eviction-high-watermark*} {
        assert_error $pattern {start_server {*}$options}
    }
    assert_error "*" {exec $::server_binary /no/such/file 2>@1}
    assert_error "*" {exec $::server_binary [temp_dir] 2>@1}
}

test {INFO has Redis' sections and fields, and tarn's} {
    r set a [string repeat x 100000]
    r get a
    r get nokey
    set text [r info everything]
    foreach section {Server Clients Memory Stats Replication CPU Keyspace Pool Cache Eviction} {
        assert_match "*# $section\r\n*" $text
    }
    foreach field {redis_version tarn_version process_id run_id tcp_port uptime_in_seconds\
        connected_clients
        blocked_clients used_memory used_memory_human maxmemory total_connections_received \
            total_commands_processed
        instantaneous_ops_per_sec expired_keys evicted_keys keyspace_hits keyspace_misses role \
                loading} {
        info_field $field
    }
    assert_equal 7.0.15 [info_field redis_version]
    assert_equal [server pid] [info_field process_id]
    assert_equal [server port] [info_field tcp_port]
    assert_match "*keys=1,expires=0*" [info_field db0]
    assert {[info_field keyspace_hits] >= 1 && [info_field keyspace_misses] >= 1}
    assert_match "# Memory*" [r info memory]
    assert {![string match "*# Memory*" [r info stats]]}
    assert_match *cmdstat_get:calls=* [r info commandstats]
    catch {r nonsense}
    assert_match *errorstat_ERR:count=* [r info errorstats]
    r config resetstat
    assert_equal 0 [info_field keyspace_hits]
}

test {SEGMENT LIST and INFO} {
    set list [r segment list]
    assert_equal 1 [llength $list]
    set s [lindex $list 0]
    assert_equal [expr {64 << 20}] [dict get $s size]
    set info [r segment info [dict get $s name]]
    assert_equal $info [dict merge $info [r segment info 0] [dict filter $info key attach_*]]
    assert_equal 0 [dict get $info id]
    assert_equal [expr {64 << 20}] \
        [expr {[dict get $info used] + [dict get $info free] + [dict get $info quarantined]}]
    foreach name {attach_read attach_write} {assert_equal 40 [string length [dict get $info $name]]}
    assert_equal memory [dict get $info tier]
    assert_match [string repeat {[0-9a-f]} 32] [dict get $info content]
    set uris [dict get $info endpoints]
    assert_equal 1 [llength [lsearch -all -glob $uris "tcp://127.0.0.1:*"]]
    assert_equal 1 [llength [lsearch -all -glob $uris "shm://*"]]
    assert_error "NOSEGMENT *" {r segment info nosuch}
    assert_error "NOSEGMENT *" {r segment info 1}
}

test {SEGMENT INFO names the announced host} {
    r config set announce-host pool.example
    assert_match "*tcp://pool.example:*" [dict get [r segment info 0] endpoints]
    r config set announce-host {}
}

test {CLIENT ID SETNAME GETNAME SETINFO INFO LIST} {
    set c [client]
    assert {[$c client id] > [r client id]}
    assert_equal (nil) [string map {{} (nil)} [$c client getname]]
    assert_equal OK [$c client setname worker]
    assert_equal worker [$c client getname]
    assert_error "ERR Client names cannot contain spaces*" {$c client setname "a b"}
    assert_equal OK [$c client setinfo lib-name test]
    assert_equal OK [$c client setinfo tarn-host somewhere]
    assert_error "ERR Unrecognized option*" {$c client setinfo nonsense x}
    assert_match "id=[$c client id] *name=worker*" [$c client info]
    assert_match "*name=worker*" [r client list]
    assert_equal 2 [llength [split [string trim [r client list]] \n]]
    drop $c
}

test {CLIENT KILL} {
    set c [client]
    set id [$c client id]
    assert_equal 1 [r client kill id $id]
    assert_equal 0 [r client kill id $id]
    assert_equal "" [resp::read_to_end $c]
    drop $c
    set c [client]
    resp::send $c getreplicas never WAIT 600000
    wait_for "the client to be blocked" {[info_field blocked_clients] == 1}
    regexp -line {^id=(\d+) .*cmd=getreplicas} [r client list] - id
    assert_equal 1 [r client kill id $id]
    wait_for "the client to be gone" {[info_field blocked_clients] == 0}
    drop $c
}

test {CLIENT PAUSE and UNPAUSE} {
    set c [client]
    r client pause 600000 write
    resp::send $c set paused v
    assert_equal (nil) [[client] get paused]
    assert {![resp::readable $c]}
    r client unpause
    assert_equal OK [resp::recv $c]
    drop $c
}

test {CLIENT REPLY} {
    set c [client]
    resp::send $c client reply off
    resp::send $c ping
    resp::send $c set quiet v
    resp::send $c client reply on
    assert_equal OK [resp::recv $c]
    resp::send $c client reply skip
    resp::send $c ping
    assert_equal v [$c get quiet]
    drop $c
}

test {MONITOR shows what others do, and no password} {
    set m [client]
    assert_equal OK [$m monitor]
    r set "mon key" "a\nb"
    assert_match {*.* \[0 127.0.0.1:*\] "set" "mon key" "a\\nb"} [resp::recv $m]
    catch {r auth user secret-word}
    r ping
    set seen [resp::recv $m]
    if {[string match *auth* $seen]} {
        assert {![string match *secret-word* $seen]}
        set seen [resp::recv $m]
    }
    assert_match {* "ping"} $seen
    drop $m
}

test {SLOWLOG} {
    r config set slowlog-log-slower-than 0
    r slowlog reset
    r get "slow key"
    r config set slowlog-log-slower-than 10000
    assert {[r slowlog len] >= 1}
    set found 0
    foreach entry [r slowlog get] {if {[lindex $entry 3] eq {get {slow key}}} {incr found}}
    assert_equal 1 $found
    assert_equal OK [r slowlog reset]
    assert_equal 0 [r slowlog len]
}

test {the books are in order (DEBUG CHECK)} {
    for {set i 0} {$i < 3000} {incr i} {resp::send [r] set k$i [string repeat x [expr {$i % 500}]]}
    for {set i 0} {$i < 3000} {incr i} {resp::recv [r]}
    assert_equal OK [r debug check]
}

test {guarantee 5 in small: no file descriptors are left} {
    set dir /proc/[server pid]/fd
    r ping
    only_main_client
    set before [llength [glob -directory $dir *]]
    for {set i 0} {$i < 50} {incr i} {
        set c [client]
        if {$i % 2} {$c ping} else {resp::raw $c "*2\r\n\$3\r\nGET"}
        drop $c
    }
    only_main_client
    assert_equal $before [llength [glob -directory $dir *]]
}

test {maxclients} {
    only_main_client
    r config set maxclients 5
    set many {}
    for {set i 0} {$i < 4} {incr i} {lappend many [client]}
    foreach c $many {assert_equal PONG [$c ping]}
    set c [client]
    assert_equal "(error) ERR max number of clients reached" [resp::recv $c]
    drop $c
    foreach c $many {drop $c}
    only_main_client
    r config set maxclients 10000
}

test {SHUTDOWN} {
    start_server
    set s [server]
    resp::send [r] shutdown nosave
    assert_equal "" [resp::read_to_end [r]]
    set ::servers [lrange $::servers 0 end-1]
    assert_equal 0 [reap_process [dict get $s pid]]
    assert {![file exists [dict get $s dir]/shm]}
}

test {pool-size 0: small values only} {
    start_server --pool-size 0
    assert_equal OK [r set k small]
    assert_equal small [r get k]
    assert_error "OOM *pool-size*" {r set k [string repeat x 65]}
    assert_error "OOM *pool-size*" {r set k [string repeat x 100000]}
    assert_equal small [r get k]
    assert_error "OOM *" {r append k [string repeat x 100]}
    assert_error "NOSPACE *pool-size*" {r putstart p 1000}
    lassign [r putstart p 10] token replicas
    assert_equal OK [r putend p $token -1 VALUE 0123456789]
    assert_equal {} [r segment list]
    assert_equal OK [r set k [string repeat x 64]]
    stop_server
}

finish
