# Options about files: what Redis' options of snapshots and append-only files do here; configuration
# files and the command line.
source [file join [file dirname [info script]] harness.tcl]

proc write_file {path text} {
    set f [open $path w]
    puts -nonewline $f $text
    close $f
}

rename server_command plain_command
proc server_command {dir options} {
    if {[dict exists $options words]} {return [list $::server_binary {*}[dict get $options words]]}
    return [plain_command $dir $options]
}

# A server with a file of its own, and no other options than these words.
proc server_with {text args} {
    set dir [temp_dir]
    write_file $dir/tarn.conf \
        "port 0\nport-file $dir/port\nbind 127.0.0.1\ndir $dir\nlogfile $dir/log\npool-size\
        0\n$text"
    lappend ::servers \
        [boot_server [dict create dir $dir log $dir/log options \
        [list words [concat [list $dir/tarn.conf] $args]]]]
}

# What the program says on its way to the end.
proc refusal {args} {
    catch {exec $::server_binary {*}$args 2>@1} text
    return $text
}

# How many lines it has for faults.
proc faults {text} {
    regsub {\nchild process.*} $text {} text
    return [expr {[llength [split $text \n]] - 1}]
}

test {rdbcompression: snapshots are smaller, and are found again either way} {
    start_server --pool-size 0
    for {set i 0} {$i < 2000} {incr i} {
        r set model:some/long/name:layer:[expr {$i % 32}]:block:$i [string repeat abc 20]
    }
    r config set rdbcompression no
    r save
    set plain [file size [server dir]/dump.tarn]
    assert_match "0 *It is whole*" [list 0 [exec $::env(TARN_CHECK) [server dir]/dump.tarn]]
    r config set rdbcompression yes
    r save
    set packed [file size [server dir]/dump.tarn]
    assert {$packed < $plain / 2} "$packed of $plain"
    assert_match "*It is whole*" [exec $::env(TARN_CHECK) [server dir]/dump.tarn]
    restart_server
    assert_equal 2000 [r dbsize]
    assert_equal [string repeat abc 20] [r get model:some/long/name:layer:31:block:1983]
    stop_server
}

test {appenddirname: the append-only file has a directory of its own} {
    start_server --pool-size 0 --appendonly yes --appenddirname files
    r set a 1
    assert_equal [list [server dir]/files/appendonly.tarn] [glob -directory [server dir]/files *]
    r bgrewriteaof
    wait_for "the new file" {[info_field aof_rewrite_in_progress] == 0 && \
        [info_field aof_rewrite_scheduled] == 0}
    r set b 2
    restart_server
    assert_equal {1 2} [r mget a b]
    stop_server
    assert_match "*appenddirname must be*" [refusal --pool-size 0 --port 0 --appenddirname a/b]
}

test {aof-load-truncated no: a torn end is looked at first} {
    start_server --pool-size 0 --appendonly yes
    r set a 1
    r set b 2
    set path [server dir]/appendonly.tarn
    set s [lindex $::servers end]
    stop_server
    set f [open $path r+b]
    chan truncate $f [expr {[file size $path] - 3}]
    close $f
    dict lappend s options --aof-load-truncated no
    assert_error "*aof-load-truncated*" {boot_server $s}
    dict lappend s options --aof-load-truncated yes
    lappend ::servers [boot_server $s]
    assert_equal 1 [r get a]
    stop_server
}

test {stop-writes-on-bgsave-error} {
    start_server --pool-size 0 --save "3600 1"
    r set a 1
    set c [client]
    $c multi
    assert_equal QUEUED [$c set a queued]
    file mkdir [server dir]/dump.tarn
    assert_error "*could not be written*" {r save}
    assert_error "MISCONF*" {r set a 2}
    assert_error "EXECABORT Transaction discarded because of: MISCONF*" {$c exec}
    $c multi
    $c get a
    assert_equal 1 [$c exec]
    r config set stop-writes-on-bgsave-error no
    assert_equal OK [r set a 2]
    r config set stop-writes-on-bgsave-error yes
    assert_error "MISCONF*" {r set a 3}
    file delete [server dir]/dump.tarn
    r save
    assert_equal OK [r set a 4]
    stop_server
}

test {include takes patterns, and one that matches nothing} {
    set dir [temp_dir]
    write_file $dir/10.conf "timeout 7\n"
    write_file $dir/20.conf "timeout 8\nmaxclients 77\n"
    server_with "include $dir/*.conf\ninclude $dir/no*such\n"
    assert_equal {timeout 8} [r config get timeout]
    assert_equal {maxclients 77} [r config get maxclients]
    stop_server
    write_file $dir/30.conf "include $dir/no-such-file\n"
    assert_match "*30.conf:1: include: *no-such-file: cannot be read*" [refusal $dir/30.conf]
}

test {all that is wrong with a configuration is told at once, each with its line} {
    set dir [temp_dir]
    write_file $dir/more.conf "timeout never\n"
    write_file $dir/tarn.conf "prot 1\npool-size 0\n\nhz many\ninclude $dir/more.conf
include $dir/none.conf\nport \"1\nserver_cpulist 0-1\n"
    set text [refusal $dir/tarn.conf --nonsense 1 --maxclients 0]
    assert_match "tarn-server: configuration errors:\n*" $text
    foreach pattern {
        "tarn.conf:1: unknown option 'prot', did you mean 'port'?"
        "tarn.conf:4: hz argument couldn't be parsed into an integer*"
        "more.conf:1: timeout argument couldn't be parsed*"
        "tarn.conf:6: include: *none.conf: cannot be read: No such file*"
        "tarn.conf:7: unbalanced quotes"
        "tarn.conf:8: server_cpulist: *taskset*"
        "command line: unknown option 'nonsense'*"
        "command line: 'maxclients \"0\"': maxclients must be a number from 1 *"
    } {assert_equal 1 [llength [lsearch -all -glob [split $text \n] *$pattern]] "$pattern in $text"}
    assert_equal 8 [faults $text] $text
    # What contradicts each other, too; and a file that is none has an end.
    set text [refusal --port 7000 --data-port 7000 --dbfilename a/b --appendfilename c/d]
    assert_equal 3 [faults $text] $text
    write_file $dir/noise [string repeat "x\x01 y\n" 10000]
    set text [refusal $dir/noise]
    assert_equal 21 [faults $text] $text
    assert_match "*\nand perhaps more*" $text
}

# Facts of redis.conf as Redis 7.0 and Debian have it: names and values of its options.
set redis_conf {
    protected-mode yes tcp-backlog 511 timeout 0 tcp-keepalive 300 loglevel notice databases 16
    always-show-logo no set-proc-title yes proc-title-template
    "{title} {listen-addr} {server-mode}" stop-writes-on-bgsave-error yes rdbcompression yes
    rdbchecksum yes dbfilename dump.rdb rdb-del-sync-files no replica-serve-stale-data yes
    replica-read-only yes repl-diskless-sync yes repl-diskless-sync-delay 5
    repl-diskless-sync-max-replicas 0 repl-diskless-load disabled repl-disable-tcp-nodelay no
    replica-priority 100 acllog-max-len 128 lazyfree-lazy-eviction no lazyfree-lazy-expire no
    lazyfree-lazy-server-del no replica-lazy-flush no lazyfree-lazy-user-del no
    lazyfree-lazy-user-flush no oom-score-adj no oom-score-adj-values "0 200 800" disable-thp
    yes appendonly no appendfilename appendonly.aof appenddirname appendonlydir appendfsync
    everysec no-appendfsync-on-rewrite no auto-aof-rewrite-percentage 100
    auto-aof-rewrite-min-size 64mb aof-load-truncated yes aof-use-rdb-preamble yes
    aof-timestamp-enabled no slowlog-log-slower-than 10000 slowlog-max-len 128
    latency-monitor-threshold 0 notify-keyspace-events "" hash-max-listpack-entries 512
    hash-max-listpack-value 64 list-max-listpack-size -2 list-compress-depth 0
    set-max-intset-entries 512 zset-max-listpack-entries 128 zset-max-listpack-value 64
    hll-sparse-max-bytes 3000 stream-node-max-bytes 4096 stream-node-max-entries 100
    activerehashing yes client-output-buffer-limit
    "normal 0 0 0 replica 256mb 64mb 60 pubsub 32mb 8mb 60" hz 10 dynamic-hz yes
    aof-rewrite-incremental-fsync yes rdb-save-incremental-fsync yes
}

test {a redis.conf of Redis as it is: what means nothing is named once, the rest is in force} {
    set text ""
    foreach {name value} $redis_conf {
        append text "$name [expr {$name eq "client-output-buffer-limit" ? $value : "\"$value\""}]\n"
    }
    set text [string map {"\"0 200 800\"" "0 200 800"} $text]
    server_with $text
    set ignored {
        repl-diskless-sync-delay hash-max-listpack-entries hash-max-listpack-value
        list-max-listpack-size list-compress-depth set-max-intset-entries
        zset-max-listpack-entries zset-max-listpack-value hll-sparse-max-bytes
        stream-node-max-bytes stream-node-max-entries
    }
    assert_match "*Ignored: 11 options of Redis*: [join $ignored ", "]\n*" [file_text [server log]]
    assert_equal 1 [regexp -all Ignored [file_text [server log]]]
    assert_equal {repl-diskless-sync-delay 0} [r config get repl-diskless-sync-delay] "what is true"
    assert_equal {} [r config get hash-max-listpack-entries]
    assert_equal {databases 16} [r config get databases]
    foreach {name value pattern} {
        hash-max-listpack-entries 3 \
            "ERR Unknown option*hash-max-listpack-entries': *no other data types"
        repl-diskless-sync-delay 5 "ERR CONFIG SET failed*repl-diskless-sync-delay*can only be '0'*"
        maxmem-ory 5 "ERR Unknown option*- 'maxmem-ory', did you mean 'maxmemory'?"
    } {
        assert_error $pattern [list r config set $name $value]
    }
    r config set timeout 4
    r config rewrite
    set after [file_text [server dir]/tarn.conf]
    assert_match "*\nhash-max-listpack-entries \"512\"\n*" $after
    assert_match "*\nrepl-diskless-sync-delay 0\n*" $after
    stop_server
}

test {what matters is refused all the same, all of it at once} {
    set dir [temp_dir]
    write_file $dir/redis.conf "aof-timestamp-enabled yes\nlazyfree-lazy-expire maybe
        lazyfree-lazy-user-del yes\nreplica-ignore-maxmemory no\nrepl-diskless-load swapdb
        cluster-enabled yes\nbio_cpulist 1\nmaxmemory-policy volatile-lru
        cluster-node-timeout 15000\nactivedefrag yes\n"
    set text [refusal $dir/redis.conf]
    foreach name {
        aof-timestamp-enabled lazyfree-lazy-expire replica-ignore-maxmemory repl-diskless-load
        cluster-enabled bio_cpulist maxmemory-policy
    } {
        assert_equal 1 [regexp -all "redis.conf:\[0-9\]+: $name" $text] "$name in $text"
    }
    assert_equal 7 [faults $text] $text
}

if {[file readable /etc/redis/redis.conf]} {
    test {Debian's redis.conf} {
        set dir [temp_dir]
        set in [open /etc/redis/redis.conf]
        set text [read $in]
        close $in
        set own {^(port|bind|dir|pidfile|logfile|daemonize|jemalloc-bg-thread) .*$}
        regsub -all -line $own $text {} text
        server_with $text
        assert_match "*Ignored: 11 options of Redis*" [file_text [server log]]
        assert_equal PONG [r ping]
        stop_server
    }
}

test {a configuration from standard input} {
    set dir [temp_dir]
    write_file $dir/in "port 0\nport-file $dir/port\nbind 127.0.0.1\npool-size 0\ntimeout 9\n"
    foreach {words timeout} {{- --hz 11} 9 {--timeout 5 --hz 11 -} 5} {
        file delete $dir/port $dir/out
        set pid [start_process [list sh -c {exec "$@" < "$0"} $dir/in $::server_binary {*}$words] \
            $dir/out]
        wait_for "the port" {[file_text [file join $::boot_dir port]] ne ""} [set ::boot_dir $dir]
        set c [resp::connect 127.0.0.1 [string trim [file_text $dir/port]]]
        assert_equal [list timeout $timeout] [$c config get timeout]
        assert_equal {hz 11} [$c config get hz]
        assert_match "* PID: $pid*Ready to accept*" [file_text $dir/out]
        resp::send $c shutdown nosave
        resp::read_to_end $c
        resp::close $c
        assert_equal 0 [reap_process $pid]
    }
}

test {the command line, as Redis reads it} {
    foreach {words pattern} {
        {--port} *'port'*wrong*number*of*arguments*
        {--port 6380 --loglevel} *'loglevel'*wrong*number*of*arguments*
        {--port 6379 6380} {*'port "6379" "6380"'*wrong number of arguments*}
        {--port --loglevel verbose} {*'port "--loglevel" "verbose"'*wrong number of arguments*}
        {--port --bla --loglevel verbose} {*'port "--bla"'*argument couldn't be parsed into an\
            integer*}
        {--logfile --my--log--file --loglevel --bla} {*'loglevel "--bla"'*argument(s) must be one\
            of the following*}
        {--shutdown-on-sigint} {*'shutdown-on-sigint'*argument(s) must be one of the following*}
        {--shutdown-on-sigint "save nosave"} {*must be one of the following*exclude*}
        {--replicaof 127.0.0.1 abc} {*'replicaof "127.0.0.1" "abc"'*Invalid master port*}
        {--replicaof --127.0.0.1 --abc} {*'replicaof "--127.0.0.1"'*wrong number of arguments*}
        {--server_cpulist 0-3} {*server_cpulist: *taskset*}
        {--zset-max-ziplist-entries} {*zset-max-ziplist-entries: wrong number of arguments*}
        {--nonsense 4} {*unknown option 'nonsense' (tarn-server --help all has all)*}
        {--poolsize 4} {*unknown option 'poolsize', did you mean 'pool-size'*}
        {--prot 1 --maxmem 5 --loglevel loud} {*errors:*'prot', did you mean\
            'port'*'maxmem'*"loud"*}
        {-p 6380} {*-p: options begin with two dashes*}
        {nowhere.conf} {*nowhere.conf: cannot be read: No such file*}
    } {assert_match $pattern [refusal {*}$words]}
    start_server --pool-size 0
    assert_match "*Failed listening on port [server port] (TCP), aborting. --port and --bind say*" \
        [refusal --bind 127.0.0.1 --port [server port] --pool-size 0]
    assert_match "*/nowhere/s: No such file*socket \"/nowhere/s\" (shm-socket), aborting*" \
        [refusal --bind 127.0.0.1 --port auto --data-port 0 --pool-size 4mb --shm-socket /nowhere/s]
    stop_server
    server_with "save 900 1\n" loglevel verbose "--maxmemory '700mb'" --save 100 100 \
        --proc-title-template --my--{port}
    assert_equal {loglevel verbose} [r config get loglevel]
    assert_equal {maxmemory 734003200} [r config get maxmemory]
    assert_equal {save {900 1 100 100}} [r config get save]
    assert_equal "--my--[server port]" [string trimright [file_text /proc/[server pid]/cmdline] \0]
    stop_server
    server_with "save 900 1\n" --save --shutdown-on-sigint nosave force now
    assert_equal {save {}} [r config get save]
    assert_equal {shutdown-on-sigint {nosave now force}} [r config get shutdown-on-sigint]
    stop_server
}

test {rename-command, and what REWRITE leaves of it} {
    server_with "# mine\nrename-command flushall \"\"\nrename-command get fetch\nuser w on nopass\
        ~* +get\n" --rename-command GET fetch ;# the same again, in another source
    r set a 1
    assert_error "ERR unknown command 'flushall'*" {r flushall}
    assert_error "ERR unknown command 'get'*" {r get a}
    foreach typed {flushal gett fetchh} {
        catch {r $typed a} answer
        assert_match "ERR unknown command*" $answer
        assert {![regexp {mean (FLUSHALL|GET|FETCH)} $answer]} $answer
    }
    assert_equal 1 [r fetch a]
    assert_equal OK [r auth w x]
    assert_equal 1 [r fetch a] "rules know a command by its own name"
    assert_error NOPERM* {r set a 2}
    assert_equal OK [r auth default x]
    r config set timeout 4
    r config rewrite
    assert_match "*# mine\nrename-command flushall \"\"\nrename-command get fetch\n*timeout 4\n*" \
        [file_text [server dir]/tarn.conf]
    stop_server
    assert_match "*No such command*" [refusal --pool-size 0 --port 0 --bind 127.0.0.1 \
        --rename-command nosuch x]
    set text [refusal --pool-size 0 --port 0 --bind 127.0.0.1 \
        --rename-command nosuch x --rename-command get set]
    assert_match "*nosuch*No such command*rename-command get*already exists*" $text
    assert_match "*already exists*" [refusal --pool-size 0 --port 0 --bind 127.0.0.1 \
        --rename-command get set]
}

test {REWRITE: what was set at run time is there after a restart} {
    server_with ""
    r config set save "3600 1 300 100" shutdown-on-sigterm "nosave now" shutdown-on-sigint save \
        oom-score-adj-values "1 2 3" \
        client-output-buffer-limit "normal 0 0 0 slave 1mb 1kb 5" maxmemory-clients 5% bind \
        "127.0.0.1 -::1" proc-title-template ""
    set all [r config get *]
    r config rewrite
    set s [server]
    stop_server
    lappend ::servers [boot_server $s]
    foreach {name value} $all {assert_equal [list $name $value] [r config get $name]}
    stop_server
}
finish
