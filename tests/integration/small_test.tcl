# Thousands of small objects in a batch: the client asks for them in pieces, and moves many with one
# request. Whatever happens to some of them is nothing to the others.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --node-heartbeat 100 --max-lease 2s
start_node n1 --host-name m1 --segment 128mb
start_node n2 --host-name m2 --segment 128mb

proc no_leases_left {} {wait_for "the leases to be given back" {[info_field leases] == 0}}

foreach transport {auto tcp} {
    test "5000 keys in a batch, some of them misses ($transport)" {
        r flushall
        # auto: half of them by shared memory, since m1 is said to be this machine.
        kv_all 5000 --transport tcp --batch 5000 load a 5000 4096
        set a [kv --transport $::transport --batch 8192 --host m1 verify a 6000 4096]
        assert_equal {0 5000 1000 0 0} [list [dict get $a status] [dict get $a ok] \
            [dict get $a misses] [dict get $a errors] [dict get $a wrong]]
        no_leases_left
    }
}

test {5000 keys of mixed sizes, in the books and out of them} {
    r flushall
    kv_all 5000 --batch 5000 load m 5000 0-20000
    kv_all 5000 --batch 5000 verify m 5000 0-20000
    kv_all 5000 --batch 777 --no-verify verify m 5000 0-20000
    no_leases_left
}

test {what is there already, and what replaces it} {
    kv_all 2500 --batch 2500 load w 2500 3000
    set a [kv --batch 5000 load w 5000 3000]
    assert_equal {2500 2500} [list [dict get $a ok] [dict get $a existed]]
    kv_all 5000 --batch 5000 --replace --seed 7 load w 5000 3000
    kv_all 5000 --batch 5000 --seed 7 verify w 5000 3000
}

test {a pool that is too small evicts; what is read is right} {
    r flushall
    set a [kv --batch 8192 load e 80000 4096]
    assert_equal {80000 0} [list [dict get $a ok] [dict get $a errors]]
    set a [kv --batch 8192 verify e 80000 4096]
    assert_equal {0 0 80000} [list [dict get $a errors] [dict get $a wrong] \
        [expr {[dict get $a ok] + [dict get $a misses]}]]
    assert {[dict get $a ok] > 30000 && [dict get $a misses] > 10000} $a
    no_leases_left
}

proc unpacked {bytes} {
    binary scan $bytes wuiuiuiuiuiuiuwuwua40 number lease flags crc zero segment epoch offset \
        length grant
    assert_equal "88 0" "[string length $bytes] $zero"
    return [dict create number $number lease $lease crc [expr {$flags ? $crc : -1}] extent \
        [list $segment $epoch $offset $length] grant $grant]
}

test {PACKED: the short form says the same, and what has none has the long one} {
    r flushall
    kv_all 3 --prefer n2.0 load p 3 4096
    kv_all 1 --replicas 2 --from 3 load p 1 4096
    r set tiny 1
    r set inband [string repeat x 1000]
    set c [client]
    set keys {p0 p1 p2 p3 tiny inband none}
    set long [$c mgetreplicas 7 {*}$keys lease 5000]
    set short [$c mgetreplicas 7 {*}$keys lease 5000 packed crcs]
    foreach i {0 1 2 5} {
        set p [unpacked [lindex $short $i]]
        lassign [lindex $long $i] version size lease crc replicas
        assert_equal [list $version $size $crc] \
            [list [dict get $p number] [lindex [dict get $p extent] 3] [dict get $p crc]]
        assert_equal 2000 [dict get $p lease]
        set extent [lindex $replicas 0 1 0]
        assert_equal [lrange $extent 0 3] [dict get $p extent]
        # Same right, for a little longer.
        assert_equal [string range [lindex $extent 4] 0 15] [string range [dict get $p grant] 0 15]
    }
    foreach i {3 4} {assert_equal 8 [llength [lindex $short $i]]}
    assert_equal [lrange [lindex $long 6] 0 end] [lindex $short 6]
    # Without a lease there is no grant, and so no short form.
    foreach element [lrange [$c mgetreplicas 7 {*}$keys packed] 0 5] {
        assert_equal 8 [llength $element]
    }
    assert_error "*unknown option*" {r getreplicas p0 lease 100 packed}
    set puts [$c mputstart 3 q0 4096 q1 10 q2 100000 packed prefer n2.0]
    set p [unpacked [lindex $puts 0]]
    assert_equal {0 4096} [list [dict get $p lease] [lindex [dict get $p extent] 3]]
    assert_equal 2 [llength [lindex $puts 1]]
    assert_equal {OK} [$c mputend 1 q0 [dict get $p number] 77]
    assert_equal 100000 [lindex [dict get [unpacked [lindex $puts 2]] extent] 3]
    foreach element [$c mputstart 1 q3 4096 replicas 2 packed] {assert_equal 2 [llength $element]}
    # One that is missing is told of.
    foreach element [$c mputstart 1 q4 4096 replicas 3 packed] {assert_equal 3 [llength $element]}
    assert_error "*unknown option*" {r putstart q5 4096 packed}
    drop $c
}

test {two replicas: the host of one is killed, and nothing is missing} {
    r flushall
    kv_all 4000 --transport tcp --replicas 2 --batch 4000 load k 4000 4096-4099
    kv_all 4000 --transport tcp --batch 4000 verify k 4000 4096-4099
    # A host that says nothing first, then one that is gone.
    send_signal STOP [node n1 pid]
    kv_all 4000 --transport tcp --failover 300 --host m1 --batch 4000 verify k 4000 4096-4099
    send_signal CONT [node n1 pid]
    wait_node n1 up
    kv_all 4000 --transport tcp --batch 4000 verify k 4000 4096-4099
    kill_node n1
    kv_all 4000 --transport tcp --failover 300 --batch 4000 verify k 4000 4096-4099
    set a [kv --transport tcp --failover 300 --replicas 2 --batch 4000 load l 4000 4096]
    assert_equal {4000 0} [list [dict get $a ok] [dict get $a errors]]
    kv_all 4000 --transport tcp --batch 4000 verify l 4000 4096
}

finish
