# What a start says when it cannot be, or not as it was meant: pool files of others, ports, open
# files; and what --help says.
source [file join [file dirname [info script]] harness.tcl]

proc write_file {path text} {
    set f [open $path w]
    puts -nonewline $f $text
    close $f
}

# What the program says on its way to the end.
proc refusal {args} {
    if {![catch {exec {*}$args 2>@1} text]} {error "it did not fail: $text"}
    return $text
}

proc server_refusal {args} {
    return [refusal $::server_binary --port auto --bind 127.0.0.1 --dir [temp_dir] --shm-socket {} \
        --data-port 0 {*}$args]
}

test {a pool file that another process has: it is named, and so is the option} {
    set path [temp_dir]/pool
    start_server --pool-size 4mb --pool-path $path
    set text [server_refusal --pool-size 4mb --pool-path $path]
    assert_match "*pool file $path is in use by another process*" $text
    assert_match "*Each server needs a file of its own: --pool-path*" $text
    if {[regexp "FLOCK +ADVISORY +WRITE +[server pid] " [file_text /proc/locks]]} {
        assert_match "*(pid [server pid])*" $text
    }
    assert {![string match "*another put*" $text]} $text
    assert_equal PONG [r ping]
    stop_server
}

test {an append-only file that another server has: it is named and stays whole, and so for\
        tarn-check} {
    set dir [temp_dir]
    start_server --appendonly yes --dir $dir
    r set a 1
    foreach options {{} {--pool-path pool}} {
        set text [refusal $::server_binary --port auto --bind 127.0.0.1 --shm-socket {} \
            --data-port 0 \
            --pool-size 4mb --appendonly yes --dir $dir {*}$options]
        assert_match "*appendonly.tarn in * is in use by another process*" $text
        assert_match "*Each server needs a directory of its own: --dir*" $text
    }
    assert_match "*is in use by another process*: stop that server first*" \
        [refusal $::env(TARN_CHECK) --fix $dir/appendonly.tarn]
    assert_match "*It is whole*" [exec $::env(TARN_CHECK) $dir/appendonly.tarn]
    start_server --dir $dir --appendfilename other.tarn
    assert_equal OK [r config set appendonly yes]
    stop_server
    start_server --dir $dir
    assert_error "*the append-only file cannot be written: see the log*" \
        {r config set appendonly yes}
    stop_server
    stop_server
}

test {a pool file that another node has, and one of something else} {
    start_server --pool-size 0
    set path [temp_dir]/pool
    start_node n1 --segment 8mb,path=$path
    set letter [temp_dir]/letter
    write_file $letter "Dear Ann,\n"
    foreach {other pattern} [list $path "*pool file $path is in use by another process*" \
        $letter "*$letter is a file of something else, which is not overwritten*"] {
        launch_node n2 --segment 8mb,path=$other
        assert_equal 1 [reap_node n2]
        assert_match $pattern [file_text [node n2 dir]/stdout]
        dict unset ::node_table n2
    }
    stop_node n1
    stop_server
}

test {a pool file is not made of a file that is something else} {
    set path [temp_dir]/letter
    write_file $path "Dear Ann,\n"
    assert_match "*$path is a file of something else, which is not overwritten*--pool-path*" \
        [server_refusal --pool-size 4mb --pool-path $path]
    assert_equal "Dear Ann,\n" [file_text $path]
}

test {a data port that is taken, in the range of outgoing connections} {
    set range [file_text /proc/sys/net/ipv4/ip_local_port_range]
    if {![regexp {(\d+)\s+(\d+)} $range - first last]} {skip "no such range here"}
    start_server --pool-size 4mb
    regexp {data port=(\d+)} [file_text [server log]] - port ;# that the system chose
    set text [refusal $::server_binary --port auto --data-port $port --bind 127.0.0.1 \
        --dir [temp_dir] --shm-socket {} --pool-size 4mb]
    assert_match "*Data port tcp://127.0.0.1:$port: Address already in use*--data-port*" $text
    assert_match "*Failed listening on port $port (data-port)*" $text
    assert_match "*--data-port and --shm-socket name others*" $text
    if {$port >= $first && $port <= $last} {
        assert_match "*ports from $first to $last are given to outgoing connections, too*" $text
    }
    stop_server
}

test {--help: what is most used, a line each, with its default and where the rest is} {
    set text [exec $::server_binary --help]
    foreach {option default} {
        port 6479 bind "* -::*" pool-size 1gb data-port auto eviction-policy chain dir .
        logfile none
    } {
        set default [string map {* \\* . \\.} $default]
        assert_equal 1 [regexp -line "^  --$option \\S.*\\($default\\)$" $text] "$option in $text"
    }
    assert {[llength [split $text \n]] < 30} "it fits a screen"
    assert_match "*--help all lists every option*redis.conf.sample*docs/CONFIG.md*" $text
    assert {[llength [split [exec $::server_binary --help all] \n]] > 150}
    foreach {binary page} [list $::node_binary docs/NODES.md \
        $::env(TARN_BENCHMARK) docs/BENCHMARKS.md] {
        set text [exec $binary --help]
        assert_match "*most used*$page*" $text
        foreach line [split $text \n] {assert {[string length $line] <= 120} $line}
    }
    assert_equal $text [exec $::env(TARN_BENCHMARK) meta --op get --help]
}

test {mistyped options of the other programs} {
    set benchmark $::env(TARN_BENCHMARK)
    foreach {command pattern} [list \
        [list $::node_binary --segmnet=8gb] "option --segmnet, did you mean --segment?" \
        [list $::node_binary --nonsense 1] "option --nonsense (tarn-node --help)" \
        [list $benchmark meta --theads 2] "option --theads here, did you mean --threads?" \
        [list $benchmark --jsn meta] "option --jsn here, did you mean --json?" \
        [list $benchmark mete] "subcommand mete, did you mean meta?"] {
        assert_match "*there is no $pattern*" [refusal {*}$command]
    }
}

if {[auto_execok setpriv] eq "" || [catch {exec setpriv --bounding-set=-sys_resource true}]} {
    test {few open files} {skip "setpriv cannot take a privilege away here"}
} else {
    # A server of which the system allows so many open files.
    proc limited {limit args} {
        return [list sh -c {ulimit -n "$0" && exec "$@"} $limit \
            setpriv --bounding-set=-sys_resource $::server_binary --bind 127.0.0.1 --shm-socket {} \
            --port auto --data-port 0 --pool-size 4mb {*}$args]
    }
    test {few open files: clients, data port and other hosts share them} {
        set dir [temp_dir]
        set pid [start_process [limited 256 --port-file $dir/port --dir $dir] $dir/out]
        set ::limited_dir $dir
        wait_for "the port" {[file_text $::limited_dir/port] ne ""}
        set text [file_text $dir/out]
        assert_match "*Only 256 files may be open: maxclients is lowered to 1??*" $text
        assert_match "*, data-maxclients to ??.*ulimit -n 14*" $text
        set clients {}
        for {set i 0} {$i < 100} {incr i} {
            lappend clients [resp::connect 127.0.0.1 [string trim [file_text $dir/port]]]
            assert_equal PONG [[lindex $clients end] ping]
        }
        set c [lindex $clients 0]
        set most [lindex [$c config get maxclients] 1]
        assert_equal OK [$c config set maxclients [expr {$most - 1}]]
        assert_equal OK [$c config set maxclients $most]
        assert_error "*ulimit -n*" {$c config set maxclients 1000}
        resp::send $c shutdown nosave
        resp::read_to_end $c
        foreach c $clients {resp::close $c}
        assert_equal 0 [reap_process $pid]
    }
    test {few open files, without a pool: only what is lowered is told} {
        set dir [temp_dir]
        set command [string map {4mb 0} [limited 256 --port-file $dir/port --dir $dir]]
        set pid [start_process $command $dir/out]
        set ::limited_dir $dir
        wait_for "the port" {[file_text $::limited_dir/port] ne ""}
        set text [file_text $dir/out]
        assert_match "*Only 256 files may be open: maxclients is lowered to 1??.*ulimit -n 1*" $text
        assert {![string match "*data-maxclients*" $text]} $text
        send_signal TERM $pid
        assert_equal 0 [reap_process $pid]
    }
    test {too few open files are an error, unless that was meant} {
        set text [refusal {*}[limited 64 --dir [temp_dir]]]
        assert_match "*Error: only 64 files may be open, which leaves room for ?? clients*" $text
        assert_match "*at least 32 are needed, unless fewer are asked for*ulimit -n*--maxclients\
            ??*" $text
        regexp -- {--maxclients (\d+)} $text - most
        set text [refusal {*}[limited 24 --dir [temp_dir]]]
        assert_match "*Error: only 24 files may be open, which leaves room for no client*" $text
        assert_match "*ulimit -n*" $text
        assert {![string match "*--maxclients*" $text]} "that would not help: $text"
        set dir [temp_dir]
        set pid [start_process \
            [limited 64 --port-file $dir/port --dir $dir --maxclients $most] $dir/out]
        set ::limited_dir $dir
        wait_for "the port" {[file_text $::limited_dir/port] ne ""}
        set c [resp::connect 127.0.0.1 [string trim [file_text $dir/port]]]
        assert_equal PONG [$c ping]
        resp::send $c shutdown nosave
        resp::read_to_end $c
        resp::close $c
        assert_equal 0 [reap_process $pid]
    }
}
finish
