# Packed keys and reports of transports of modules, as nodes tell them to the master and clients
# hear of them: spoken by hand, with a transport that nobody has. With a real one: rdma_test.tcl.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --node-heartbeat 100 --node-timeout 60s --max-lease 1s

set i1 [string repeat 1 32]
set i2 [string repeat 2 32]
proc join {c name instance args} {$c node join $name $instance MACHINE m-$name {*}$args}
proc mount {c name instance segment args} {
    $c segment mount $name $instance $segment TIER memory SIZE 1048576 CONTENT \
        [string repeat c 32] ENDPOINTS 1 tcp://*:7777 {*}$args
}
proc keys {segment} {return [segment_field $segment keys]}
proc told {} {
    return [list [info_field segment_keys] [info_field node_reports] \
        [info_field keys_and_reports_bytes]]
}

set c1 [client]
set c2 [client]

test {SEGMENT KEYS are what SEGMENT INFO says, byte by byte} {
    join $c1 n1 $i1
    mount $c1 n1 $i1 n1.0
    $c1 node up n1 $i1
    assert_equal {} [keys n1.0]
    set all {}
    for {set i 0} {$i < 256} {incr i} {append all [format %c $i]}
    assert_equal OK [$c1 segment keys n1 $i1 n1.0 1 rdma://10.9.0.1:33333 $all \
        [string reverse $all]]
    assert_equal [list [list rdma://10.9.0.1:33333 $all [string reverse $all]]] [keys n1.0]
    assert_equal 40 [string length [segment_field n1.0 attach_write]]
    # Replaced as a whole.
    $c1 segment keys n1 $i1 n1.0 2 rdma://h:1 r1 {} other:///dev/x r2 w2
    assert_equal {{rdma://h:1 r1 {}} {other:///dev/x r2 w2}} [keys n1.0]
    assert_equal 2 [info_field segment_keys]
    assert_equal OK [$c1 segment keys n1 $i1 n1.0 0]
    assert_equal {} [keys n1.0]
    assert_equal {0 0 0} [told]
}

test {a host that is every address is where the node comes from, as of endpoints} {
    foreach host {* 0.0.0.0 {[::]} :: {}} {
        $c1 segment keys n1 $i1 n1.0 1 rdma://$host:18515 r w
        assert_equal rdma://127.0.0.1:18515 [lindex [keys n1.0] 0 0]
    }
    $c1 segment keys n1 $i1 n1.0 1 rdma://127.0.0.1:18515 r w
    r config set announce-host pool.example
    assert_equal {rdma://127.0.0.1:18515 tcp://pool.example:7777} [list [lindex [keys n1.0] 0 0] \
        [lindex [segment_field n1.0 endpoints] 0]]
    $c1 segment keys n1 $i1 n1.0 1 rdma://*:18515 r w
    assert_equal rdma://pool.example:18515 [lindex [keys n1.0] 0 0]
    r config set announce-host {}
}

test {what makes no sense is refused by name, and changes nothing} {
    $c1 segment keys n1 $i1 n1.0 1 rdma://h:1 read write
    set before [told]
    set long [string repeat k 65537]
    foreach {arguments said} [list \
        "n1 $i2 n1.0 1 rdma://h:1 r w" "STALE *NODE JOIN" \
        "n9 $i1 n1.0 1 rdma://h:1 r w" "STALE *NODE JOIN" \
        "n1 xyz n1.0 1 rdma://h:1 r w" "ERR instance must be*" \
        "n1 $i1 n1.0" "ERR wrong number of arguments*" \
        "n1 $i1 n1.0 x" "ERR n must be a number from 0 to 4*" \
        "n1 $i1 n1.0 -1" "ERR n must be a number from 0 to 4*" \
        "n1 $i1 n1.0 5 a:///a r w b:///b r w c:///c r w d:///d r w e:///e r w" \
        "ERR n must be a number from 0 to 4*" \
        "n1 $i1 n1.0 1 rdma://h:1 r" "ERR n is 1: 3 arguments must follow, and 2 do" \
        "n1 $i1 n1.0 1 rdma://h:1 r w more" "ERR n is 1: 3 arguments must follow, and 4 do" \
        "n1 $i1 n1.0 0 rdma://h:1 r w" "ERR n is 0: 0 arguments must follow, and 3 do" \
        "n1 $i1 nowhere 1 rdma://h:1 r w" \
        "NOSEGMENT this is not a mounted memory segment of the node*" \
        "n1 $i1 {} 1 rdma://h:1 r w" "NOSEGMENT *" \
        "n1 $i1 n1.0 1 nonsense r w" "ERR the uri of a key must be*" \
        "n1 $i1 n1.0 1 rdma://h:0 r w" "ERR the uri of a key must be*" \
        "n1 $i1 n1.0 1 rdma://[string repeat h 260]:1 r w" "ERR the uri of a key must be*" \
        "n1 $i1 n1.0 1 {rdma://a b:1} r w" "ERR the uri of a key must be*" \
        "n1 $i1 n1.0 1 {} r w" "ERR the uri of a key must be*" \
        "n1 $i1 n1.0 1 rdma://h:1 $long w" \
        "ERR read-key and write-key must be of up to 65536 bytes" \
        "n1 $i1 n1.0 1 rdma://h:1 r $long" \
        "ERR read-key and write-key must be of up to 65536 bytes" \
        "n1 $i1 n1.0 2 rdma://h:1 r w rdma://i:1 r w" \
        "ERR two keys of a segment must not be of one scheme"] {
        assert_error $said [list r segment keys {*}$arguments]
    }
    foreach {options said} [list \
        "KEYS" "ERR KEYS needs a value" \
        "KEYS x" "ERR KEYS must be a number from 0 to 4*" \
        "KEYS 1 rdma://h:1 r" "ERR KEYS is 1, but fewer*" \
        "KEYS 1 rdma r w" "ERR the uri of a key must be*" \
        "KEYS 1 rdma://h:1 $long w" "ERR read-key and write-key*" \
        "KEYS 1 rdma://h:1 r w COLOUR red" "ERR unknown option 'COLOUR'"] {
        assert_error $said [list mount $c1 n1 $i1 n1.0 {*}$options]
    }
    assert_error "ERR KEYS belong to segments of TIER memory" {
        r segment mount n1 $i1 n1.ssd TIER ssd SIZE 1048576 CONTENT [string repeat d 32] ENDPOINTS \
            0 KEYS 1 rdma://h:1 r w
    }
    assert_equal {{rdma://h:1 read write}} [keys n1.0]
    assert_equal $before [told]
}

test {the largest keys, of every kind at once} {
    set big [string repeat \xff\x00\r\n 16384]
    $c1 segment keys n1 $i1 n1.0 4 a:///a $big $big b:///b $big $big c:///c $big $big d:///d $big \
        $big
    assert_equal [list [list a:///a $big $big] [list b:///b $big $big] [list c:///c $big $big] \
        [list d:///d $big $big]] [keys n1.0]
    assert_range 524288 [info_field keys_and_reports_bytes] 530000
    $c1 segment keys n1 $i1 n1.0 0
    assert_equal {0 0 0} [told]
}

test {another node's segments are not for one to tell of} {
    join $c2 n2 $i2
    mount $c2 n2 $i2 n2.0
    $c2 node up n2 $i2
    assert_error "NOSEGMENT *" {$c2 segment keys n2 $i2 n1.0 1 rdma://h:1 r w}
    $c2 segment keys n2 $i2 n2.0 1 rdma://h:2 r w
    assert_equal {{} {{rdma://h:2 r w}}} [list [keys n1.0] [keys n2.0]]
}

test {KEYS of SEGMENT MOUNT; a mount without them takes them away} {
    assert_equal 1 [dict get [mount $c1 n1 $i1 n1.0 KEYS 1 rdma://*:3 mr mw] kept]
    assert_equal {{rdma://127.0.0.1:3 mr mw}} [keys n1.0]
    mount $c1 n1 $i1 n1.0 KEYS 0
    assert_equal {} [keys n1.0]
}

test {REPORT: the last one of a scheme, its devices in NODE INFO} {
    assert_equal {} [node_field n1 transports]
    assert_equal {} [segment_field n1.0 transports]
    $c1 node heartbeat n1 $i1 REPORT rdma \
        "stats connections=1\ndevice name=rxe0 state=up\nregion\ndevice name=rxe1" STATS 1 a 1 \
        REPORT other "\ndevice\n\ndevices x"
    foreach {t said} {0 {rdma {{device name=rxe0 state=up} {device name=rxe1}}} 1 {other {}}} {
        set m [lindex [node_field n1 transports] $t]
        assert_equal $said [list [dict get $m transport] [dict get $m devices]]
        assert_range 0 [dict get $m age-ms] 60000
    }
    assert_equal {rdma other} [segment_field n1.0 transports]
    assert_equal {a 1} [node_field n1 stats]
    $c1 node heartbeat n1 $i1 REPORT rdma "device name=rxe0 state=down\n"
    assert_equal {{device name=rxe0 state=down}} [dict get [lindex [node_field n1 transports] 0] \
        devices]
    $c1 node heartbeat n1 $i1 REPORT rdma {}
    assert_equal other [dict get [lindex [node_field n1 transports] 0] transport]
    assert_equal 1 [info_field node_reports]
}

test {reports that make no sense} {
    set before [node_field n1 transports]
    foreach {options said} [list \
        {REPORT} "ERR REPORT needs 2 values" \
        {REPORT rdma} "ERR REPORT needs 2 values" \
        {REPORT RDMA x} "ERR REPORT: a scheme is 1 to 15 of a-z" \
        {REPORT {} x} "ERR REPORT: a scheme is*" \
        "REPORT [string repeat s 16] x" "ERR REPORT: a scheme is*" \
        "REPORT rdma [string repeat x 32769]" \
        "ERR REPORT must be lines of printable characters, of up to 32768 bytes" \
        [list REPORT rdma a\x1bb] "ERR REPORT must be lines*" \
        [list REPORT rdma a\x00b] "ERR REPORT must be lines*" \
        [list REPORT a x REPORT b x REPORT c x REPORT d x] \
        "ERR REPORT: a node reports of at most 4 schemes"] {
        assert_error $said [list r node heartbeat n1 $i1 {*}$options]
    }
    $c1 node heartbeat n1 $i1 REPORT a {} REPORT b {} REPORT c {}
    assert_equal [lindex $before 0 1] [dict get [lindex [node_field n1 transports] 0] transport]
    $c1 node heartbeat n1 $i1 REPORT rdma [string repeat x 32768]
    $c1 node heartbeat n1 $i1 REPORT rdma {} REPORT other {}
    assert_equal 0 [info_field node_reports]
}

test {keys and reports go with the process that told them} {
    proc tell {} {
        $::c1 segment keys n1 $::i1 n1.0 1 rdma://h:1 r w
        $::c1 node heartbeat n1 $::i1 REPORT rdma x
        assert_equal {2 1} [lrange [told] 0 1]
    }
    tell
    join $c1 n1 $i1 ;# the same, anew
    assert_equal {1 0} [lrange [told] 0 1]
    assert_error "NOSEGMENT *" {$c1 segment keys n1 $i1 n1.0 1 rdma://h:1 r w}
    mount $c1 n1 $i1 n1.0
    $c1 node up n1 $i1
    tell
    drop $c1 ;# its connection closes
    wait_node n1 down
    assert_equal {1 0} [lrange [told] 0 1]
    set c1 [client]
    set i1 [string repeat 3 32] ;# another process
    join $c1 n1 $i1
    assert_equal {} [keys n1.0]
    mount $c1 n1 $i1 n1.0
    $c1 node up n1 $i1
    tell
    r segment unmount n1.0
    assert_equal {1 1} [lrange [told] 0 1]
    assert_error "NOSEGMENT *" {$c1 segment keys n1 $i1 n1.0 1 rdma://h:1 r w}
    r node leave n1
    r node leave n2
    wait_for "all to be forgotten" {[told] eq {0 0 0}}
}

test {COMMAND knows SEGMENT KEYS} {
    assert_equal -6 [lindex [r command info "segment|keys"] 0 1]
    assert_match {*node instance name n*uri read-key write-key*} [r segment help]
    assert {[dict exists [r command docs "segment|keys"] "segment|keys"]}
}

# A host that has keys for a transport that clients have no module for, or whose keys are garbage:
# tcp.
test {garbage in the keys of a real node does not keep its values from anybody} {
    start_node real --host-name far
    kv load k: 20 1000-300000
    set instance [node_field real instance]
    foreach key [list {} x [string repeat \x00 64] [string repeat \xff 4096] \
            [string repeat "TRDK\x01\x00\x01\x00" 100]] {
        r segment keys real $instance real.0 1 rdma://127.0.0.1:9 $key $key
        r node heartbeat real $instance REPORT rdma "device name=none\n"
        kv_all 20 verify k: 20 1000-300000
        kv --replace load n: 20 1000-300000
        kv_all 20 verify n: 20 1000-300000
        set value [string repeat v 200000]
        assert_equal OK [r set inband $value]
        assert {[r get inband] eq $value}
    }
}
finish
