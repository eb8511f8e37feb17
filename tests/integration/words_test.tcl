# What a refusal says: which of the possible reasons it is, with the amounts, the names, and what to
# do. And what INFO says of a pool of which a part is away.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --enable-debug-command local --eviction-high-watermark 1 \
    --max-lease 60s --node-heartbeat 100 --node-timeout 60s

set KB [string repeat k 1024]
proc refusal {args} {
    if {![catch {r {*}$args} answer]} {error "'$args' was taken: $answer"}
    return $answer
}
proc put {key size args} {r putend $key [lindex [r putstart $key $size {*}$args] 0] -1}
# The bytes that an answer of the data port's or of the other one begins with, until it is closed.
proc say {port bytes} {
    set fd [socket 127.0.0.1 $port]
    fconfigure $fd -translation binary -buffering none
    puts -nonewline $fd $bytes
    set answer [read $fd]
    close $fd
    return $answer
}

test {before any node is up, every way to put says so} {
    foreach command {{putstart k 1000} {set k $KB} {setrange k 100 $KB} {append k $KB}\
            {getset k $KB} {mset k $KB}} {
        assert_match "* no room for * bytes: no node is up yet, *pool-size 0*tarn-node*" \
            [refusal {*}[subst $command]]
    }
    assert_match "*NOSPACE *no node is up yet*" [r mputstart 1 k 1000]
    assert_match "NOSPACE *no node is up yet*" [refusal debug populate 1 k 1000]
    assert_match "*NOSPACE*no node is up yet*" [dict get [kv put k 1000] error]
}

start_node n1 --host-name m1 --segment 16mb
start_node n2 --host-name m2 --segment 8mb

test {larger than any segment: both sizes} {
    assert_match "NOSPACE no room for 20000000 bytes: *largest of 2 has 16777216 bytes*" \
        [refusal putstart k 20000000]
}

test {a full pool: what is free, evictable, leased} {
    put a 8000000
    put b 8000000
    put c 8000000
    foreach key {a b c} {r getreplicas $key lease 60000}
    assert_match "NOSPACE no room for 5000000 bytes: of 25165824 bytes in 2 segments * are free, 0\
        may be evicted, *\
        leased, being sent or being put (3 objects leased, 0 puts open)*No segment can free more\
        than *" \
        [refusal putstart d 5000000]
    r del a
    assert_match "*, 8003584 of values that are gone and still being read (*" \
        [refusal putstart d 9000000]
    foreach key {b c} {r del $key}
}

test {a quota: its prefix, its limit, what it holds, what was asked for} {
    restart_server
    foreach n {n1 n2} {wait_node $n up}
    r quota set {q: "1"} 1000000
    assert_match {QUOTA keys that begin with "q: \\"1\\"" may hold 1000000 bytes, hold 0, and\
        3000000 more were asked for:\
        that is more than all of it*} [refusal putstart {q: "1"k} 1500000 REPLICAS 2]
    put {q: "1"a} 600000
    r getreplicas {q: "1"a} lease 60000
    assert_match {*may hold 1000000 bytes, hold 600000, and 500000 more were asked for: what is\
        there is leased*} \
        [refusal set {q: "1"b} [string repeat x 500000]]
    assert_match {*hold 600000, and 500000 more were asked for*} \
        [dict get [kv put {q: "1"b} 500000] error]
    r config set eviction-policy noeviction
    assert_match {*hold 600000, and 500000 more were asked for: nothing leaves*noeviction*} \
        [refusal putstart {q: "1"b} 500000]
    wait_for "the last change is over" {![catch {r config set eviction-policy lru}]}
}

test {hard pins: whose share, of what, what it holds} {
    r config set hard-pin-ratio 0.1 hard-pin-user-ratio 0.05
    assert_match "QUOTA hard pins of this user may hold * bytes of the pool (hard-pin-user-ratio),\
        hold 0, and 2000000 more*" \
        [refusal putstart p 2000000 PIN HARD]
    put p 2000000
    assert_match "QUOTA hard pins * hold 0, and 2000000 more were asked for*" [refusal pin p HARD]
    assert_match "QUOTA hard pins may hold * bytes of the pool (hard-pin-ratio)*" \
        [refusal putstart q 9000000 PIN HARD]
    r config set hard-pin-ratio 0.5 hard-pin-user-ratio 0.25
}

test {arguments that name nothing are named} {
    assert_match "NOSEGMENT PREFER names no segment: 'nosuch'*" [refusal putstart k 1000 PREFER \
        n1.0 PREFER nosuch]
    assert_match "NOSEGMENT no such segment: 'nosuch'*" [refusal segment info nosuch]
    r config set max-puts-per-client 1
    r putstart open 1000
    assert_match "LIMIT this client has 1 puts open, which is max-puts-per-client*" \
        [refusal putstart more 1000]
    r config set max-puts-per-client 65536
}

test {nodes that take nothing: which of them, and why} {
    r node maintenance n1 on
    r segment drain n2.0
    assert_match "NOSPACE no room for 1000 bytes: no memory segment takes new values: of 2\
        segments 1 is in maintenance (n1),\
        1 is drained or being drained (n2)*NODE MAINTENANCE*DRAIN*" [refusal putstart k2 1000]
    assert_match "OOM no room for 1024 bytes: no memory segment takes *" [refusal set k2 $KB]
    r node maintenance n1 off
    r segment drain n2.0 cancel
    kill_node n1
    kill_node n2
    r config set node-timeout 2000
    foreach n {n1 n2} {wait_node $n down}
    assert_match "*of 2 segments 2 are down (n?, n?)*start these nodes*" [refusal putstart k2 1000]
}

test {INFO pool counts what can be read, and what is down apart} {
    assert_equal {0 0 0 0 0 0 25165824} [lmap f {size used free quarantined evictable largest_free\
        down} {info_field pool_$f}]
    assert_equal 0.00% [info_field pool_used_perc]
    r config set node-timeout 60000
    start_node n3 --host-name m3 --segment 8mb
    put x 4000000
    assert_equal {8388608 4001792 25165824} [lmap f {size used down} {info_field pool_$f}]
    assert_equal 47.71% [info_field pool_used_perc]
    r getreplicas x lease 60000
    r del x
    assert_equal {8388608 0 4386816 4001792} [lmap f {size used free quarantined} \
        {info_field pool_$f}]
}

test {INFO tarn shows the pool's own sections; of what is unknown there is nothing} {
    set titles {}
    foreach line [split [r info tarn] \n] {
        if {[string match "# *" $line]} {lappend titles [string trim $line "# \r"]}
    }
    assert_equal {Pool Cache {KV events} Eviction Data Nodes Tasks Inband} $titles
    assert_equal "" [r info nosuch]
    assert_match "# Server*" [r info nosuch server]
    assert_match "*# Server*# Pool*" [r info server tarn]
    assert {[string match "tarn-????????????????????????????????" [info_field pool_id]]}
}

test {the port for commands tells a data connection where it is, the data port a client} {
    set frame TNRD[string repeat \0 60]
    assert_equal "-ERR Protocol error: this is the port for commands, and what came is for a data\
        port (data-port, by default\
        10000 more)\r\n" [say [server port] $frame]
    set uri [lsearch -inline [segment_field n3.0 endpoints] tcp://*]
    set port [lindex [split $uri :] end]
    foreach request {"PING\r\n" "*1\r\n$4\r\nPING\r\n" "GET / HTTP/1.1\r\n\r\n"\
            "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"} {
        assert_match "-ERR this is a data port of tarn, *tarn-server*\r\n" [say $port $request]
        assert_match "-ERR this is a data port of tarn, *" \
            [say $port $request[string repeat x 100000]]
    }
    if {[catch {exec redis-cli -p $port ping} answer]} {error $answer}
    assert_match "*this is a data port of tarn*" $answer
    catch {exec $::kv_binary tarn://127.0.0.1:$port get k 2>@1} answer
    assert_match "*127.0.0.1:$port is a data port of tarn*the URL names the port of tarn-server*" \
        $answer
    catch {exec $::node_binary --master tarn://127.0.0.1:$port --name n9 --segment 4mb 2>@1} answer
    assert_match "*is a data port of tarn*" $answer
}

test {transport=rdma to hosts without: which host, what it offers, what to do, when the client\
        connects} {
    set modules [file join $::root build release tests fake_verbs]
    if {![file exists $modules/rdma.so]} {skip "no module with the fake verbs library: make tests"}
    set ::env(FAKE_VERBS) devices=1
    catch {exec $::kv_binary "[server_url]?transport=rdma&module_path=$modules" put k 1000 2>@1} \
        answer
    assert_match "*segment n3.0 of node n3 on host m3 offers no rdma (it offers *tcp*). Load the\
        module there*rdma.so*" $answer
}
finish
