# Options of Redis while the server runs: what CONFIG SET changes has its effect at once, and no
# connection is lost that need not be.
source [file join [file dirname [info script]] harness.tcl]
start_server

proc address_of {c} {
    regexp {laddr=(\S+)} [$c client info] - laddr
    return $laddr
}

# Somebody else may take it before it is used: try again then.
proc free_port {} {
    set s [socket -server {apply {args {}}} -myaddr 127.0.0.1 0]
    set port [lindex [fconfigure $s -sockname] 2]
    close $s
    return $port
}

test {several options at once: all of them or none} {
    set before [r config get timeout maxmemory]
    assert_error "*'maxmemory-clients'*percentage argument must be less or equal to 100*" \
        {r config set maxmemory 10000001 maxmemory-clients 200% timeout 5}
    assert_equal $before [r config get timeout maxmemory]
    assert_error "*duplicate*" {r config set timeout 1 timeout 2}
    assert_error "*immutable*" {r config set daemonize yes}
    assert_error "*Unknown option*no other data types*" {r config set hash-max-listpack-entries 3}
    assert_error "*Unknown option*'nonsense'" {r config set nonsense 3}
    assert_equal OK [r config set timeout 11 maxmemory 10000001 hz 20]
    foreach {name value} {timeout 11 maxmemory 10000001 hz 20} {
        assert_equal [list $name $value] [r config get $name]
    }
    r config set timeout 0 maxmemory 0 hz 10
}

test {CONFIG GET knows older names, and shows nothing twice} {
    set all [r config get maxmemory maxmemory* bind *of]
    assert_equal [llength $all] [expr {2 * [llength [dict keys $all]]}]
    assert {[dict exists $all slaveof] && [dict exists $all replicaof] && \
        [dict exists $all maxmemory-clients]}
    r config set slave-priority 77
    assert_equal {replica-priority 77} [r config get replica-priority]
    r config set replica-priority 100
}

test {every option takes the value that it shows} {
    foreach {name value} [r config get *] {
        if {[catch {r config set $name $value} why] && ![string match *protected* $why]} {
            error "$name $value: $why"
        }
    }
    assert_equal PONG [r ping]
    # Also one that cannot be changed, and no other value of it.
    assert_equal OK [r config set pool-populate [lindex [r config get pool-populate] 1] timeout 7]
    assert_equal {timeout 7} [r config get timeout]
    foreach {name value} {data-threads 77 data-threads x port-file /nowhere/x tcp-backlog 1\
            databases 3 replicaof {127.0.0.1 1}} {
        set before [r config get $name]
        assert_error "*related to argument '$name') - can't set immutable config" \
            {r config set timeout 9 $name $value}
        assert_equal $before [r config get $name]
    }
    assert_equal {timeout 7} [r config get timeout]
    r config set timeout 0
}

test {an option with one honest value says why it is the only one} {
    assert_equal OK [r config set activerehashing yes]
    assert_error "*can only be 'yes': tables grow*" {r config set activerehashing no}
    assert_error "*can only be 'no'*" {r config set activedefrag yes}
    assert_equal {cluster-enabled no} [r config get cluster-enabled]
}

test {dir and dbfilename need enable-protected-configs} {
    assert_error "*can't set protected config*" {r config set dir /tmp}
    assert_error "*can't set protected config*" {r config set timeout 3 dbfilename x}
    assert_equal {timeout 0} [r config get timeout]
    start_server --enable-protected-configs local --save {}
    set dir [temp_dir]
    assert_equal OK [r config set dir $dir dbfilename other.file]
    r set a 1
    r save
    assert {[file exists $dir/other.file]}
    assert_equal [list dir [file normalize $dir]] [r config get dir]
    assert_error "*no such directory*" {r config set dir $dir/nowhere}
    assert_equal [list dir [file normalize $dir]] [r config get dir]
    stop_server
}

test {bind: what stays is not touched, what is new is heard, what is gone is closed} {
    set old [client]
    assert_match 127.0.0.1:* [address_of $old]
    assert_equal OK [r config set bind "127.0.0.1 127.0.0.2"]
    set other [resp::connect 127.0.0.2 [server port]]
    assert_match 127.0.0.2:* [address_of $other]
    # covered by another address of the same port: one goes before the other comes
    assert_equal OK [r config set bind *]
    assert_equal OK [r config set bind 127.0.0.1]
    assert_error * {resp::connect 127.0.0.2 [server port]}
    foreach c [list $old $other] {assert_equal PONG [$c ping]}
    assert_equal OK [r config set bind "127.0.0.1 -::1 -192.0.2.77"]
    assert_error "*Failed to bind to specified addresses*" {r config set bind 999.999.999.999}
    assert_error "*Failed to bind to specified addresses*" \
        {r config set bind "127.0.0.1 192.0.2.77"}
    assert_equal {bind {127.0.0.1 -::1 -192.0.2.77}} [r config get bind]
    drop [client]
    resp::close $other
    drop $old
    r config set bind 127.0.0.1
}

test {bind: none at all leaves the unix socket} {
    start_server --port auto --unixsocket [temp_dir]/sock --unixsocketperm 600
    set c [client]
    assert_equal OK [r config set bind ""]
    assert_error * {resp::connect 127.0.0.1 [server port]}
    assert_equal PONG [$c ping]
    assert_equal 0600 \
        [format %#o [expr {[file attributes [lindex [r config get unixsocket] 1] -permissions] &\
        0777}]]
    assert_equal OK [r config set bind 127.0.0.1]
    drop [client]
    drop $c
    stop_server
}

# How many TCP sockets of this server listen, its data port included.
proc listening {} {
    set n 0
    set inodes {}
    foreach fd [glob -nocomplain /proc/[server pid]/fd/*] {
        if {![catch {file readlink $fd} to] && [regexp {^socket:\[(\d+)\]$} $to - inode]} {
            dict set inodes $inode 1
        }
    }
    foreach line [split [file_text /proc/net/tcp][file_text /proc/net/tcp6] \n] {
        if {[lindex $line 3] eq "0A" && [dict exists $inodes [lindex $line 9]]} {incr n}
    }
    return $n
}

test {port 0: none beside a unix socket, any one where nothing else would listen; auto: any one} {
    assert_equal {port 0} [r config get port]
    assert {[server port] > 0 && [info_field tcp_port] == [server port]}
    set dir [temp_dir]
    start_server --unixsocket $dir/sock --pool-size 0
    wait_for "the socket in the log" \
        {[string match "*Unix socket=*/sock*" [file_text [server log]]]}
    proc unix {args} "exec redis-cli -s $dir/sock {*}\$args"
    assert_equal PONG [unix ping]
    assert_equal 0 [server port]
    assert_equal 0 [listening]
    assert_match "*tcp_port:0\n*" [unix info server]
    assert_equal OK [unix config set port auto]
    assert_equal "port\nauto" [unix config get port]
    assert_equal 1 [listening]
    set port [string trim [file_text [server dir]/port]]
    set c [resp::connect 127.0.0.1 $port]
    assert_equal PONG [$c ping]
    assert_equal OK [unix config set port 0]
    assert_equal 0 [listening]
    assert_equal PONG [$c ping]
    assert_equal 0 [string trim [file_text [server dir]/port]]
    resp::close $c
    assert_match "*argument 'port'*must be auto or a port from 0 to 65535*" \
        [unix config set port 65536]
    stop_server
    # Without a number for its name the socket for shared memory has another one.
    start_server --unixsocket $dir/sock --shm-socket auto
    assert_match "*shm socket=*/tarn-pid-[server pid].sock*port=0*" [file_text [server log]]
    assert_equal 1 [listening] "the data port"
    stop_server
}

test {port: connections stay, the new one is heard, one that is taken is refused} {
    set old [client]
    set port [server port]
    set taken [socket -server {apply {args {}}} -myaddr 127.0.0.1 0]
    set taken_port [lindex [fconfigure $taken -sockname] 2]
    assert_error "*argument 'port'*Unable to listen on this port*" \
        {r config set maxmemory 10000001 port $taken_port}
    assert_equal {maxmemory 0} [r config get maxmemory]
    assert_equal $port [string trim [file_text [server dir]/port]]
    drop [client]
    close $taken
    set moved 0
    for {set i 0} {$i < 20 && !$moved} {incr i} {
        set new [free_port]
        set moved [expr {![catch {r config set port $new}]}]
    }
    assert_equal $new [string trim [file_text [server dir]/port]]
    set c [resp::connect 127.0.0.1 $new]
    assert_match *:$new [address_of $c]
    assert_equal PONG [$old ping]
    resp::close $c
    drop $old
}
finish
