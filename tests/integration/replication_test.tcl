# Replication: full and partial synchronisation, chains, roles, what a replica answers, false
# masters, and an unmodified Sentinel.
source [file join [file dirname [info script]] harness.tcl]

source [file join [file dirname [info script]] several.tcl]

up a
up b
focus a
start_node n1 --segment 64mb

test {a master without replicas} {
    assert_equal master [field a role]
    assert_equal 0 [field a connected_slaves]
    assert_equal 0 [field a repl_backlog_active]
    assert_match {[0-9a-f]*} [field a master_replid]
    assert_equal 40 [string length [field a master_replid]]
    assert_equal -1 [field a second_repl_offset]
    assert_equal {master 0 {}} [ask a role]
    assert_equal 0 [ask a wait 1 10]
    assert_equal 0000000000000000000000000000000000000000 [ask b debug digest]
}

test {a full synchronisation while objects come and go} {
    kv_all 300 load first 300 1000-100000
    for {set i 0} {$i < 2000} {incr i} {ask a set small$i value$i}
    set run [kv_start --fill --replace run moving 100 1000-60000]
    follow b a
    for {set i 0} {$i < 500} {incr i} {ask a set late$i v PX 100000}
    after 300
    assert_equal 0 [dict get [kv_stop $run] wrong]
    assert_equal 1 [ask a wait 1 0]
    assert {[same_books a b] ne [string repeat 0 40]}
    assert_equal [ask a dbsize] [ask b dbsize]
    assert_equal 1 [field a sync_full]
    assert_equal [field a master_replid] [field b master_replid]
}

test {every kind of change arrives} {
    ask a mset m1 1 m2 22 m3 333
    ask a del m2
    ask a expire m1 1000
    ask a persist late1
    ask a pin small1 HARD
    ask a pin small2 SOFT 50000
    ask a quota set late 1000000
    ask a append small3 more
    ask a set gone 1 PX 1
    wait_for "a key to expire" {[ask a exists gone] == 0}
    focus a
    kv_all 10 --replace load first 10 2000
    kv remove first11
    foreach {key id} {part1 b part2 b part3 c} {
        ask a putend $key [lindex [ask a putstart $key 10000 BOUNDARY $id] 0] -1
    }
    same_books a b
    assert_equal {2 0} [list [field b boundaries] [field b groups]]
    assert_equal 0 [ask b exists m2]
    assert_equal 1 [ask b exists m3]
    assert_range 990 [ask b ttl m1] 1000
    assert_equal -1 [ask b ttl late1]
    ask a flushall
    same_books a b
    assert_equal 0 [ask b dbsize]
}

test {what a replica says of itself} {
    assert_equal slave [field b role]
    assert_equal 127.0.0.1 [field b master_host]
    assert_equal [port a] [field b master_port]
    assert_equal 0 [field b master_sync_in_progress]
    assert_equal 100 [field b slave_priority]
    assert_equal 1 [field b slave_read_only]
    assert_equal [list slave 127.0.0.1 [port a] connected] [lrange [ask b role] 0 3]
    assert_equal "127.0.0.1 [port a]" [dict get [ask b config get replicaof] replicaof]
    assert_equal replica [dict get [ask b hello 2] role]
    assert_match "ip=127.0.0.1,port=[port b],state=online,offset=*,lag=*" [field a slave0]
    assert_equal 1 [llength [split [string trim [ask a client list TYPE replica]] \n]]
    assert_match "* flags=S *" [ask a client list TYPE replica]
    assert_equal "OK Already connected to specified master" [ask b replicaof 127.0.0.1 [port a]]
}

test {what a replica answers, and what it leaves to its master} {
    ask a mset k1 v1 k2 v2
    same_books a b
    assert_equal 2 [ask b exists k1 k2 k3]
    assert_equal {1 0} [ask b mexists 2 k1 k3]
    assert_equal 2 [ask b prefixlen 3 k1 k2 k3]
    set groups {UNIT 16 ALIGN 16 KVGROUPS 1 k FULL 16 16 0 0}
    assert_equal {32 {{0 2 0}}} [ask b prefixlen 3 1 2 3 {*}$groups]
    assert_equal {k1 k2} [lsort [ask b keys *]]
    assert_equal 2 [ask b dbsize]
    assert_equal string [ask b type k1]
    assert_equal 2 [ask b strlen k1]
    assert_equal -1 [ask b ttl k1]
    assert_equal PONG [ask b ping]
    set refused "READONLY You can't write against a read only replica. The master is\
        127.0.0.1:[port a]."
    foreach command {{get k1} {set k1 v} {del k1} {mget k1} {getrange k1 0 1} {putstart k 100}\
        {getreplicas k1}
        {mgetreplicas 1 k1} {prefixlen 2 k1 k2 LEASE 1000} {release 1 k1 5} {expire k1 5} \
        {prefixlen 1 1 UNIT 16 ALIGN 16 KVGROUPS 1 k FULL 16 16 0 0 LEASE 5} \
        {mgetreplicas 1 1 UNIT 16 ALIGN 16 KVGROUPS 1 k FULL 16 16 0 0} \
            {flushall} {evict} {pin k1 HARD}
        {node join x 1 MACHINE m} {node leave n1} {segment drain n1.0} {quota set p 1} {incr n} \
                {touch k1}} {
        assert_error $refused {ask b {*}$command}
    }
    ask b multi
    assert_error $refused {ask b set k v}
    assert_error "EXECABORT*" {ask b exec}
    assert_error "ERR WAIT cannot be used with replica instances*" {ask b wait 1 1}
    assert_equal n1 [dict get [lindex [ask b node list] 0] name]
}

test {messages reach the subscribers of replicas} {
    set c [resp::connect 127.0.0.1 [port b]]
    $c subscribe news
    ask a publish news hello
    assert_equal {message news hello} [resp::recv $c]
    assert_equal 1 [ask b publish news own]
    assert_equal {message news own} [resp::recv $c]
    resp::close $c
}

test {WAIT waits for the replica, and no longer than it was told} {
    assert_equal OK [ask a set w 1]
    assert_equal 1 [ask a wait 1 0]
    assert_equal 1 [ask a wait 5 50]
    assert_error "ERR timeout is negative" {ask a wait 1 -1}
    send_signal STOP [dict get $::S(b) pid]
    ask a set w 2
    assert_equal 0 [ask a wait 1 100]
    assert_equal 0 [ask a wait 0 0]
    set c [resp::connect 127.0.0.1 [port a]]
    resp::send $c set w 3
    resp::send $c wait 1 0
    assert_equal OK [resp::recv $c]
    assert {![resp::readable $c]}
    send_signal CONT [dict get $::S(b) pid]
    assert_equal 1 [resp::recv $c]
    resp::close $c
    ask a multi
    ask a set w 4
    ask a wait 1 0
    assert_match {OK [01]} [ask a exec]
}

test {a replica that was cut off gets what it missed} {
    set partial [field a sync_partial_ok]
    set full [field a sync_full]
    assert_equal 1 [ask a client kill TYPE replica]
    for {set i 0} {$i < 300} {incr i} {ask a set missed$i $i}
    wait_for "another synchronisation" {[field a connected_slaves] == 1}
    wait_link b
    same_books a b
    assert_equal [expr {$partial + 1}] [field a sync_partial_ok]
    assert_equal 1 [ask b client kill TYPE master]
    wait_for "another synchronisation" {[field a sync_partial_ok] == $partial + 2} \
        [set ::partial $partial]
    wait_link b
    assert_equal $full [field a sync_full]
}

# Lengths of EFFECTS in what was heard of the stream.
proc pieces {heard} {
    return [lmap {all len} [regexp -all -inline {EFFECTS\r\n\$(\d+)\r\n} $heard] {set len}]
}

test {what happens in one turn is told in pieces} {
    set ::listens [resp::connect 127.0.0.1 [port a]]
    $::listens replconf listening-port 7 capa eof capa psync2 capa tarn1 capa tarn2
    resp::send $::listens psync [field a master_replid] [expr {[field a master_repl_offset] + 1}]
    set value [string repeat x 60]
    set many ""
    for {set i 0} {$i < 400} {incr i} {
        append many "*3\r\n\$3\r\nSET\r\n\$8\r\npiece[format %03d $i]\r\n\$60\r\n$value\r\n"
    }
    set s [socket 127.0.0.1 [port a]]
    fconfigure $s -translation binary -buffersize 100000
    puts -nonewline $s $many
    flush $s
    assert_equal [string repeat +OK\r\n 400] [read $s 2000]
    close $s
    ask a set last sentinel
    set ::heard ""
    wait_for "all of it" {[string first sentinel \
        [append ::heard [read $::resp::fd($::listens)]]] >= 0}
    set pieces [pieces $::heard]
    assert {[llength $pieces] > 3 && [::tcl::mathfunc::max {*}$pieces] < 17000} $pieces
    resp::close $::listens
    wait_for "it to be gone" {[field a connected_slaves] == 1}
    same_books a b
}

test {... or everything, when the backlog does not reach back} {
    set ::full [field a sync_full]
    set ::err [field a sync_partial_err]
    ask a config set repl-backlog-size 16384
    assert_equal 16384 [field a repl_backlog_size]
    ask a client kill TYPE replica
    for {set i 0} {$i < 1000} {incr i} {ask a set lost$i $i}
    assert_equal 16384 [field a repl_backlog_histlen]
    wait_for "another synchronisation" {[field a sync_full] == $::full + 1}
    wait_link b
    assert_equal [expr {$::err + 1}] [field a sync_partial_err]
    same_books a b
    ask a config set repl-backlog-size 64mb
}

up c
test {a replica of a replica has the same stream} {
    follow c b
    ask a set chained 1
    same_books a b c
    assert_equal [field a master_replid] [field c master_replid]
    assert_equal 1 [field b connected_slaves]
    assert_equal slave [field b role]
    for {set i 0} {$i < 500} {incr i} {ask a set chain$i $i}
    focus a
    kv_all 50 load chained 50 1000-40000
    same_books a b c
    # The one in the middle is away for a moment.
    set ::partial [field a sync_partial_ok]
    ask a client kill TYPE replica
    ask b client kill TYPE replica
    for {set i 0} {$i < 100} {incr i} {ask a set again$i $i}
    wait_for "another synchronisation" {[field a sync_partial_ok] == $::partial + 1 && \
        [field b sync_partial_ok] >= 1}
    wait_link c
    same_books a b c
}

test {too few replicas: nothing is written} {
    ask a config set min-replicas-to-write 1
    assert_equal OK [ask a set k v]
    assert_equal 1 [field a min_slaves_good_slaves]
    ask a config set min-replicas-to-write 2
    foreach command {{set k v} {putstart k 100} {del k} {incr n}} {
        assert_error "NOREPLICAS Not enough good replicas to write." {ask a {*}$command}
    }
    assert_equal v [ask a get k]
    ask a multi
    assert_error NOREPLICAS* {ask a set k v}
    assert_error EXECABORT* {ask a exec}
    follow c a
    wait_for "two good replicas" {[field a min_slaves_good_slaves] == 2}
    assert_equal OK [ask a set k v]
    send_signal STOP [dict get $::S(c) pid]
    ask a config set min-replicas-max-lag 1
    wait_for "one of them to lag" {[field a min_slaves_good_slaves] == 1}
    assert_error NOREPLICAS* {ask a set k v}
    send_signal CONT [dict get $::S(c) pid]
    wait_for "it to be back" {[field a min_slaves_good_slaves] == 2}
    ask a config set min-replicas-to-write 0 min-replicas-max-lag 10
    follow c b
}

test {a replica that does not read is let go} {
    ask a config set repl-backlog-size 16384 client-output-buffer-limit "replica 100kb 0 0"
    set c [resp::connect 127.0.0.1 [port a]]
    $c replconf listening-port 1 capa eof capa psync2 capa tarn1
    resp::send $c psync ? -1
    wait_for "it to be a replica" {[field a connected_slaves] == 2}
    set value [string repeat x 60]
    for {set i 0} {$i < 400} {incr i} {
        for {set k 0} {$k < 200} {incr k} {resp::send [set ::conn(a)] set flood$k $value}
        for {set k 0} {$k < 200} {incr k} {resp::recv $::conn(a)}
        if {[field a connected_slaves] == 1} break
    }
    wait_for "it to be dropped" {[field a connected_slaves] == 1}
    assert {[log_has a client-output-buffer-limit]}
    catch {resp::close $c}
    ask a config set repl-backlog-size 64mb client-output-buffer-limit "replica 256mb 64mb 60"
    wait_link b
    same_books a b
}

test {PSYNC is for those who understand it} {
    set c [resp::connect 127.0.0.1 [port a]]
    assert_error "ERR this is tarn*" {$c psync ? -1}
    assert_error "ERR Unrecognized REPLCONF option*" {$c replconf whatever 1}
    assert_error "ERR syntax error" {$c replconf capa}
    $c replconf capa tarn1
    assert_error "ERR value is not an integer*" {$c psync ? x}
    assert_match "FULLRESYNC [field a master_replid] *" [$c psync ? -1]
    assert_error "ERR Command not allowed inside a transaction" {ask a multi; ask a psync ? -1}
    ask a discard
    resp::close $c
    wait_for "it to be gone" {[field a connected_slaves] == 1}
}

test {a server with a pool of its own is no replica} {
    up p --pool-size 64mb
    assert_error "ERR a server with a pool of its own*pool-size 0*" \
        {ask p replicaof 127.0.0.1 [port a]}
    assert_error "ERR Invalid master port" {ask b replicaof 127.0.0.1 70000}
    assert_error "ERR Invalid master host" {ask b replicaof "" 7000}
    assert_equal OK [ask p replicaof no one]
    down p TERM
}

test {a promoted replica: a new id, the same stream, its own replicas stay in it} {
    focus a
    stop_node n1
    set id [field a master_replid]
    set ::partial [field b sync_partial_ok]
    same_books a b c
    assert_equal OK [ask b replicaof no one]
    assert_equal master [field b role]
    assert_equal $id [field b master_replid2]
    assert {[field b master_replid] ne $id}
    assert_equal "" [dict get [ask b config get replicaof] replicaof]
    wait_for "its replica to be back" {[field b sync_partial_ok] > $::partial}
    wait_link c
    assert_equal [field b master_replid] [field c master_replid]
    assert_equal OK [ask b set after promotion]
    assert_equal v [ask b get k]
    same_books b c
}

test {nodes join the new master, and it gives out space} {
    focus b
    start_node n1 --segment 64mb
    kv_all 100 load promoted 100 1000-60000
    kv_all 100 verify promoted 100 1000-60000
    same_books b c
}

test {the old master becomes a replica} {
    ask a set only-here 1
    follow a b
    assert_equal 0 [ask a exists only-here]
    same_books a b c
    assert_equal 2 [field b connected_slaves]
}

test {a dead master} {
    focus b
    stop_node n1
    down b
    wait_for "the links to be down" {[field_is a master_link_status down] && \
        [field_is c master_link_status down]}
    assert_match {[0-9]*} [field a master_link_down_since_seconds]
    assert_equal 1 [ask c exists k]
    ask c config set replica-serve-stale-data no
    assert_error "MASTERDOWN*" {ask c exists k}
    assert_error "MASTERDOWN*" {ask c ping}
    assert_match "*role:slave*" [ask c info]
    ask c config set replica-serve-stale-data yes
    # Should the dead one be started again now, nodes that come back to it must not take it for the
    # later of the two.
    set its [expr {([clock milliseconds] - 1735689600000) / 100}]
    ask a replicaof no one
    assert {[field a master_epoch] >= $its + 100}
    set ::full [field a sync_full]
    follow c a
    assert_equal $::full [field a sync_full]
    ask a set k2 v2
    same_books a c
}

# The first send of a turn is the last.
if {[info exists env(TARN_FAULT)] && [file exists $env(TARN_FAULT)] && \
        (![info exists env(TARN_SANITIZER)] || $env(TARN_SANITIZER) eq "")} {
    test {killed while it answers: what anybody heard of, the replicas have} {
        set from [temp_dir]/from
        set ::prefix \
            [list env LD_PRELOAD=$::env(TARN_FAULT) TARN_FAULT=send:crash:1 TARN_FAULT_FROM=$from]
        up x --repl-ping-replica-period 1000
        set ::prefix {}
        up y
        follow y x
        same_books x y
        close [open $from w]
        assert_error "connection closed by the server" {ask x set k v}
        wait_for "the replica to hear that it died" {[field_is y master_link_status down]}
        assert_equal 1 [ask y exists k]
        down x
        down y
    }
}

test {passwords between servers} {
    ask a config set requirepass secret
    ask a auth secret
    ask a client kill TYPE replica
    wait_for "the link to be refused" {[log_has c NOAUTH]}
    ask c config set masterauth wrong
    wait_for "the wrong password to be refused" {[log_has c "Unable to AUTH to MASTER"]}
    assert_equal down [field c master_link_status]
    ask c config set masterauth secret masteruser default
    wait_link c
    same_books a c
    ask a config set requirepass ""
}

test {a replica from the configuration, by a name, with an address to announce} {
    up d --replicaof "localhost [port a]" --replica-announce-ip 10.1.2.3 \
        --replica-announce-port 4242 --replica-priority 7 \
        --replica-announced no
    wait_link d
    same_books a d
    assert_match "*ip=10.1.2.3,port=4242,state=online*" [ask a info replication]
    assert_equal 7 [field d slave_priority]
    assert_equal 0 [field d replica_announced]
    down d
}

# What Sentinel sends to reconfigure a server, in one write.
proc sentinel_pipeline {name host port} {
    set c [resp::connect 127.0.0.1 [port $name]]
    foreach command [list multi [list slaveof $host $port] {config rewrite} \
            {client kill TYPE normal} {client kill TYPE pubsub} exec] {
        append bytes [resp::encode $command]
    }
    resp::raw $c $bytes
    for {set i 0} {$i < 6} {incr i} {set reply [resp::recv $c]}
    resp::close $c
    hang_up $name
    return $reply
}
test {Sentinel's pipeline, there and back} {
    set path [file join [temp_dir] tarn.conf]
    set f [open $path w]
    puts $f "# mine\npool-size 0\nenable-debug-command yes\n"
    close $f
    set dir [file dirname $path]
    set pid [start_process [list $::server_binary $path --port 0 --port-file $dir/port --dir $dir \
        --logfile $dir/log --bind 127.0.0.1] $dir/stdout]
    wait_for "it to start" {[file_text [file dirname $::path]/port] ne ""} [set ::path $path]
    set ::S(e) [dict create pid $pid port [string trim [file_text $dir/port]] dir $dir log \
        $dir/log options {}]
    lappend ::servers $::S(e)
    assert_match {OK OK * 0} [sentinel_pipeline e 127.0.0.1 [port a]]
    assert_equal slave [field e role]
    wait_link e
    same_books a e
    assert_match "*# mine*replicaof 127.0.0.1 [port a]*" [file_text $path]
    assert_match {OK OK * 0} [sentinel_pipeline e NO ONE]
    assert_equal master [field e role]
    assert {![string match *replicaof* [file_text $path]]}
    assert_equal OK [ask e set k v]
    down e TERM
}

# Many small objects, fast.
proc fill {name prefix n} {
    for {set i 0} {$i < $n} {incr i 1000} {
        set command mset
        for {set k $i} {$k < $i + 1000} {incr k} {lappend command $prefix$k value$k}
        ask $name {*}$command
    }
}
test {several replicas at once; one dies in the middle, the master too} {
    up h
    up i
    up j
    fill h many 100000
    set before [field h sync_full]
    # With little work per turn it takes a while.
    ask h config set loop-work-quota 50
    foreach name {i j} {assert_equal OK [ask $name replicaof 127.0.0.1 [port h]]}
    wait_for "both to be synchronised" {[regexp -all {state=send_bulk} [ask h info replication]]\
        == 2}
    assert_error LOADING* {ask i exists many1}
    assert_error LOADING* {ask i ping}
    assert_equal 1 [field i loading]
    assert_equal 1 [field i master_sync_in_progress]
    assert_equal sync [lindex [ask i role] 3]
    assert_error NOMASTERLINK* {
        set c [resp::connect 127.0.0.1 [port i]]
        $c replconf capa tarn1
        $c psync ? -1
    }
    resp::close $c
    down j
    for {set k 0} {$k < 500} {incr k} {ask h set many$k changed; ask h del many[expr {1000 + $k}]}
    wait_link i
    same_books h i
    assert_equal 99500 [ask i dbsize]
    assert_equal 1 [field h connected_slaves]
    # The same, but it is the master who dies; then the replica leads with nothing.
    up j
    ask h config set loop-work-quota 16
    assert_equal OK [ask j replicaof 127.0.0.1 [port h]]
    wait_for "it to be synchronised" {[field_is j master_sync_in_progress 1]}
    down h
    wait_for "the link to be down" {[field_is j master_sync_in_progress 0]}
    wait_for "the link to be down" {[field_is i master_link_status down]}
    assert_equal OK [ask j replicaof no one]
    assert_equal 0 [ask j dbsize]
    assert_equal OK [ask j set k v]
    assert_equal OK [ask i replicaof no one]
    assert_equal 99500 [ask i dbsize]
    assert_equal changed [ask i get many7]
    follow j i
    same_books i j
}

test {a replica's own append-only file} {
    up k --appendonly yes --replicaof "127.0.0.1 [port i]"
    wait_link k
    fill i more 2000
    ask i del more5
    same_books i k
    set digest [ask k debug digest]
    ask i wait 1 0
    wait_for "the file to be of the new books" {[field k aof_rewrite_in_progress] == 0}
    set dir [dict get $::S(k) dir]
    down k
    # Alone, from its file.
    up l --appendonly yes --dir $dir
    assert_equal [ask i dbsize] [ask l dbsize]
    assert_equal 0 [ask l exists more5]
    assert_equal value7 [ask l get more7]
    foreach name {j l} {down $name TERM}
    down i
}

# --- false masters ---

test {masters that talk nonsense are left, and asked again} {
    up g
    set id [string repeat a 40]
    set mark [string repeat b 40]
    set head [binary format ic 13 96]TARNSYNC[binary format i 1]
    set ok "+OK\r\n"
    foreach {texts complaint} [list \
        [list "garbage\r\n"] "answer to PING: garbage" \
        [list "-ERR go away\r\n"] "answer to PING: -ERR" \
        [list [string repeat x 5000]] "does not speak as a master" \
        [list +PONG\r\n $ok $ok "+WHAT\r\n"] "answer to PSYNC" \
        [list +PONG\r\n $ok $ok "+FULLRESYNC x 1\r\n"] "makes no sense" \
        [list +PONG\r\n $ok $ok "+FULLRESYNC $id 1\r\n\$100\r\nREDIS0010"] \
        "no frame that is known" \
        [list +PONG\r\n $ok $ok "+FULLRESYNC $id 1\r\n\$EOF:$mark\r\nREDIS0010[string repeat z\
        100]"] "is not tarn's" \
        [list +PONG\r\n $ok $ok \
        "+FULLRESYNC $id 1\r\n\$EOF:$mark\r\n[binary format ic 13 96]TARNSYNC[binary format i 9]"] \
        "another replication format" \
        [list +PONG\r\n $ok $ok \
        "+FULLRESYNC $id 1\r\n\$EOF:$mark\r\n$head[binary format ic 5 1]junk"] "cannot be used" \
        [list +PONG\r\n $ok $ok "+FULLRESYNC $id 1\r\n\$EOF:$mark\r\n$head[binary format icw 9 97\
        5]"] "cannot be used" \
        [list +PONG\r\n $ok $ok "+FULLRESYNC $id 1\r\n\$EOF:$mark\r\n$head[binary format icw 9 64\
        0][binary format icw 9 97 5][string repeat c 40]"] "does not end where it should" \
        [list +PONG\r\n $ok $ok "+FULLRESYNC $id 1\r\n\$EOF:$mark\r\n$head[binary format icw 9 64\
        0][binary format icw 9 97 5]$mark" "*2\r\n\$3\r\nSET\r\n\$1\r\nx\r\n"] "not known here" \
        [list +PONG\r\n $ok $ok "+CONTINUE $id\r\n*2\r\n\$7\r\nEFFECTS\r\n\$9\r\n[binary format ic\
        5 1]junk\r\n"] "cannot be used" \
    ] {
        set port [false_master $texts]
        assert_equal OK [ask g replicaof 127.0.0.1 $port]
        wait_events "a second attempt ($complaint)" {$::false_calls >= 2}
        close $::false_socket
        assert {[log_has g $complaint]} "($complaint)"
        assert_equal slave [field g role]
        # Some are up for a moment, until what makes no sense arrives.
        wait_for "the link to be given up ($complaint)" {[field g master_link_status] eq "down"}
    }
    follow g a
    same_books a g
}

# --- masters that never come ---

# It accepts and says nothing.
proc silent_master {} {
    set ::silent_socket [socket -server {apply {{fd host port} {}}} -myaddr 127.0.0.1 0]
    return [lindex [fconfigure $::silent_socket -sockname] 2]
}
test {a master that never answers: the books stay, and are given back} {
    up p --appendonly yes
    focus p
    start_node n2 --segment 64mb
    fill p kept 1000
    kv_all 100 load pool 100 1000-60000
    kv_all 1 load gone 1 50000
    set other [resp::connect 127.0.0.1 [port p]]
    assert_equal 5000 [lindex [$other getreplicas pool1 LEASE 5000] 2]
    assert_equal 5000 [lindex [$other getreplicas gone0 LEASE 5000] 2]
    assert_equal 1 [$other del gone0]
    set token [lindex [$other putstart open 50000] 0]
    ask p set brief v PX 4000
    ask p set long v PX 100000000
    set silent [silent_master]
    assert_equal OK [ask p replicaof 127.0.0.1 $silent]
    assert_equal slave [field p role]
    assert_equal down [field p master_link_status]
    assert_equal 0 [field p slave_repl_offset]
    assert_equal 2 [ask p exists kept0 kept999]
    assert_equal 3 [ask p prefixlen 3 pool0 pool1 pool99]
    assert_equal 0 [ask p exists gone0 open]
    assert_equal {1 0} [$other mexists 2 pool1 gone0]
    foreach command {{set a 1} {get kept0} {del kept0} {flushall} {getreplicas pool1}\
        {prefixlen 1 pool1 LEASE 100} {putstart x 100} {evict ratio 1}
                     {expire kept0 1}} {
        assert_error READONLY* {ask p {*}$command}
    }
    assert_error READONLY* {$other putend open $token -1}
    # Nobody but a master says that a time is over.
    set objects [ask p dbsize]
    wait_for "the time to be over" {[ask p exists brief] == 0}
    assert_equal $objects [ask p dbsize]
    ask p config set replica-serve-stale-data no
    assert_error MASTERDOWN* {ask p exists kept0}
    ask p config set replica-serve-stale-data yes
    set digest [ask p debug digest]
    after 300
    assert_equal $digest [ask p debug digest]
    # Another that is none: the same books still wait.
    assert_equal OK [ask p replicaof there.is.no.such.host.invalid 1]
    assert_equal $digest [ask p debug digest]
    assert_equal OK [ask p replicaof no one]
    for {set i 0} {$i < 1000} {incr i} {lappend names kept$i}
    assert_equal 1000 [ask p exists {*}$names]
    set ::objects [expr {$objects - 1}]
    wait_for "the one whose time is over to go" {[ask p dbsize] == $::objects}
    assert_error BADTOKEN* {$other putend open $token -1}
    resp::close $other
    wait_node n2 up
    kv_all 100 verify pool 100 1000-60000
    kv_all 100 load more 100 1000-60000
    kv_all 100 verify more 100 1000-60000
    assert_equal OK [ask p set kept0 changed]
    assert_equal changed [ask p get kept0]
    ask p debug check
}

test {a server that became a replica and a master again while it worked} {
    focus p
    set silent [lindex [fconfigure $::silent_socket -sockname] 2]
    set run [kv_start --fill --replace --pause 20 run moving 50 1000-60000]
    for {set i 0} {$i < 5} {incr i} {
        after 200
        assert_equal OK [ask p replicaof 127.0.0.1 $silent]
        assert_equal 1 [ask p exists kept7]
        assert_equal OK [ask p replicaof no one]
        wait_node n2 up
    }
    # Both in one turn: nothing has happened, but that connections were closed, that of n2 too.
    set joins [field p node_joins]
    assert_equal OK [ask p multi]
    ask p replicaof 127.0.0.1 $silent
    ask p replicaof no one
    assert_equal {OK OK} [ask p exec]
    assert_equal up [node_state n2]
    wait_for "n2 to come back" {[field p node_joins] > $::joins} [set ::joins $joins]
    wait_node n2 up
    assert_equal 0 [dict get [kv_stop $run] wrong]
    kv_all 100 verify pool 100 1000-60000
    ask p debug check
}

test {kill -9 while the books wait for a master} {
    set silent [lindex [fconfigure $::silent_socket -sockname] 2]
    ask p del brief
    ask p replicaof 127.0.0.1 $silent
    set digest [ask p debug digest]
    again p
    assert_equal master [field p role]
    assert_equal $digest [ask p debug digest]
    wait_node n2 up
    kv_all 100 verify pool 100 1000-60000
    ask p replicaof 127.0.0.1 $silent
    again p --replicaof "127.0.0.1 $silent"
    assert_equal slave [field p role]
    assert_equal $digest [ask p debug digest]
    assert_equal OK [ask p replicaof no one]
    assert_equal $digest [ask p debug digest]
    wait_node n2 up
    assert_equal OK [ask p set written after]
    ask p replicaof 127.0.0.1 $silent
    ask p bgrewriteaof
    wait_for "the file to be written anew" {[field p aof_rewrite_in_progress] == 0}
    set digest [ask p debug digest]
    again p
    assert_equal $digest [ask p debug digest]
    assert_equal 1 [ask p exists written]
    close $::silent_socket
}

test {a connection that is cut: before the snapshot nothing is lost, within it the file is whole} {
    ask p replicaof no one
    set digest [ask p debug digest]
    set id [string repeat a 40]
    set frame "+FULLRESYNC $id 1\r\n\$EOF:[string repeat b 40]\r\n"
    set head [binary format ic 13 96]TARNSYNC[binary format i 1]
    set ok "+OK\r\n"
    foreach texts [list {} [list +PONG\r\n $ok $ok] [list +PONG\r\n $ok $ok $frame] \
            [list +PONG\r\n $ok $ok $frame[string range $head 0 9]]] {
        set port [false_master $texts]
        assert_equal OK [ask p replicaof 127.0.0.1 $port]
        wait_events "a second attempt" {$::false_calls >= 2}
        close $::false_socket
        assert_equal $digest [ask p debug digest]
    }
    ask p replicaof no one
    assert_equal $digest [ask p debug digest]
    # The snapshot has begun: what was is gone from the books, but not from the file.
    set port [false_master [list +PONG\r\n $ok $ok $frame$head]]
    assert_equal OK [ask p replicaof 127.0.0.1 $port]
    wait_events "a second attempt" {$::false_calls >= 2}
    close $::false_socket
    wait_for "the link to be given up" {![catch {ask p dbsize} objects] && $objects == 0}
    again p
    ask p replicaof no one
    assert_equal $digest [ask p debug digest]
    # Then a true one.
    follow p a
    same_books a p
    assert_equal 0 [ask p exists kept0]
    focus p
    stop_node n2
    down p TERM
}

test {REPLICAOF while values are on their way} {
    set silent [silent_master]
    up v --io-threads 4
    focus v
    start_node n3 --segment 64mb
    kv put big 16000000
    set digest [ask v debug digest]
    # One that does not read, and one whose own REPLICAOF comes right behind.
    foreach own {0 1} {
        set sent [field v total_net_output_bytes]
        set fd [socket 127.0.0.1 [port v]]
        fconfigure $fd -translation binary -buffering none
        puts $fd "GET big\r"
        if {$own} {
            puts $fd "REPLICAOF 127.0.0.1 $silent\r"
            while {[field v role] eq "master"} {read $fd 50000}
        } else {
            set ::expected [expr {$sent + 200000}]
            wait_for "a part of the value to leave" {[field v total_net_output_bytes] > $::expected}
            assert_equal OK [ask v replicaof 127.0.0.1 $silent]
        }
        assert_equal $digest [ask v debug digest]
        assert_equal 1 [ask v exists big]
        close $fd
        assert_equal OK [ask v replicaof no one]
        wait_node n3 up
        assert_equal 16000000 [string length [ask v get big]]
        assert_equal $digest [ask v debug digest]
    }
    close $::silent_socket
    stop_node n3
    down v TERM
}

# --- Sentinel ---

test {an unmodified Sentinel makes a replica the master} {
    if {[auto_execok redis-sentinel] eq ""} {skip "redis-sentinel is not there"}
    follow c a
    follow g a
    set sentinel [start_sentinel [port a]]
    wait_for "Sentinel to know both replicas" {[regexp -all {\+slave } [sentinel_log]] == 2}
    ask a set before failover
    same_books a c g
    down a
    sentinel_hurry
    # An attempt that fails is repeated after 20 s.
    wait_for "a replica to be the master" {[field_is c role master] || [field_is g role master]}
    set new [expr {[field_is c role master] ? "c" : "g"}]
    set other [expr {$new eq "c" ? "g" : "c"}]
    wait_for "the other to follow it" {[field_is $::other master_port $::new_port] && \
        [field_is $::other master_link_status up]} \
        [set ::other $other] [set ::new_port [port $new]]
    assert_equal failover [ask $new get before]
    assert_equal OK [ask $new set after failover]
    same_books $new $other
    send_signal TERM $sentinel
    reap_process $sentinel
}

finish
