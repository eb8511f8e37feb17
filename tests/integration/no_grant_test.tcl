# NOGRANT: places without grants, for those who reach the bytes by what they have mapped.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 64mb

proc packed {bytes} {
    binary scan $bytes wuiuiuiuiuiuiuwuwu number lease flags crc zero segment epoch offset length
    assert_equal 0 $zero
    return [list $number $lease [list $segment $epoch $offset $length]]
}
proc extent {replicas} {return [lindex $replicas 0 1 0]}
proc put {key size} {
    set token [lindex [r putstart $key $size] 0]
    assert_equal OK [r putend $key $token -1]
}
proc sealed_by {script} {
    set before [info_field grants_sealed]
    uplevel $script
    return [expr {[info_field grants_sealed] - $before}]
}

test {a look-up without grants: the same places, the same lease} {
    assert_match "*places_without_grants:1*" [r info server]
    put a 5000
    set c [client]
    set with [$c mgetreplicas 1 a LEASE 5000 PACKED]
    assert_equal 0 [sealed_by {
        set short [$c mgetreplicas 2 a none LEASE 5000 PACKED NOGRANT]
        set long [$c getreplicas a LEASE 5000 NOGRANT]
    }]
    assert_equal 88 [string length [lindex $with 0]]
    assert_equal {48 (nil)} [list [string length [lindex $short 0]] [lindex $short 1]]
    assert_equal [string range [lindex $with 0] 0 47] [lindex $short 0]
    lassign [packed [lindex $short 0]] version lease place
    assert_equal [list $version 5000 5000] [lrange $long 0 2]
    assert_equal [list {*}$place {}] [extent [lindex $long 4]]
    # the space waits for the lease
    set held [info_field pool_quarantined]
    r del a
    assert {[info_field pool_quarantined] > $held}
    assert_equal 1 [$c release 1 a $version]
    assert_equal $held [info_field pool_quarantined]
    drop $c
}

test {a put without grants is a put} {
    assert_equal 0 [sealed_by {
        set puts [r mputstart 2 b 5000 c 10 PACKED NOGRANT BATCH]
        set put [r putstart d 5000 NOGRANT]
    }]
    assert_equal 48 [string length [lindex $puts 0]]
    assert_equal 0 [llength [lindex $puts 1 1]]
    lassign [packed [lindex $puts 0]] token lease place
    assert_equal {0 5000} [list $lease [lindex $place 3]]
    assert_equal {} [lindex [extent [lindex $put 1]] 4]
    assert_equal OK [r mputend 1 b $token -1]
    assert_equal OK [r putrevoke c [lindex $puts 1 0]]
    assert_equal OK [r putend d [lindex $put 0] -1]
    assert_equal {1 0 1} [r mexists 3 b c d]
}

test {who is not trusted with the segment gets grants} {
    r acl setuser eve reset on >pw ~* +@all -@direct
    set c [client]
    $c auth eve pw
    put e 5000
    r config set put-timeout 100
    assert_equal 4 [sealed_by {
        set got [$c mgetreplicas 1 e LEASE 5000 PACKED NOGRANT]
        set long [$c getreplicas e LEASE 5000 NOGRANT]
        set put [$c mputstart 1 f 5000 PACKED NOGRANT]
        set one [$c putstart g 5000 NOGRANT]
    }]
    assert_equal {88 40 88 40} [list [string length [lindex $got 0]] \
        [string length [lindex [extent [lindex $long 4]] 4]] [string length [lindex $put 0]] \
        [string length [lindex [extent [lindex $one 1]] 4]]]
    assert_error "ERR RECEIPTS *" {$c putend g [lindex $one 0] -1}
    r config set put-timeout 30000
    drop $c
}

test {whoever has places is cut off when his user may do less} {
    r acl setuser tom reset on >pw ~* +@all
    set c [client]
    $c auth tom pw
    $c mgetreplicas 1 e LEASE 5000 PACKED NOGRANT
    r acl setuser tom -@direct
    assert_error "*" {$c ping}
    drop $c
}

test {a writer without grants who dies is fenced as any} {
    set c [client]
    r config set put-timeout 100
    $c putstart h 5000 NOGRANT
    r config set put-timeout 30000
    drop $c
    wait_for "its space" {[info_field puts_open] == 0 && [info_field pool_zombie] == 0}
}

test {what it does not go with} {
    assert_error "ERR *unknown option 'NOGRANT'*" {r prefixlen 1 a NOGRANT}
    assert_error "ERR *unknown option 'NOGRANT'*" {r mexists 1 a NOGRANT}
    assert_error "ERR *" {r getreplicas a NOGRANT 1}
    # without a lease there are none anyway, and no short form
    assert_equal 8 [llength [lindex [r mgetreplicas 1 e PACKED NOGRANT] 0]]
    # the values of KV groups
    put fh 5000
    set c [client]
    set got [$c mgetreplicas 1 h UNIT 16 ALIGN 16 KVGROUPS 1 f FULL 16 16 0 0 LEASE 5000 PACKED\
        NOGRANT]
    assert_equal {16 48} [list [lindex $got 0] [string length [lindex $got 2 0]]]
    drop $c
}

# One call of 100 keys has grants, and teaches the client that it needs none.
test {whoever reads and writes by shared memory has no grants sealed} {
    r flushall
    set sealed [sealed_by {kv_all 1000 --batch 100 load k 1000 4096}]
    assert {$sealed >= 100 && $sealed < 150} $sealed
    set sealed [sealed_by {set a [kv_all 1000 --batch 100 verify k 1000 4096]}]
    assert {$sealed >= 100 && $sealed < 150} $sealed
    assert_equal 0 [dict get $a tcp_bytes]
    set sealed [sealed_by {kv_all 1000 --batch 100 --transport tcp verify k 1000 4096}]
    assert {$sealed >= 1000} $sealed
    wait_for "all leases to end" {[info_field leases] == 0}
}

# First those that are here, without grants; then those that are not, each with its grant.
test {a node on another machine: no miss, no error, and grants from then on} {
    start_node far --host-name elsewhere --segment 64mb
    r flushall
    kv_all 500 --prefer local load m 500 4096
    kv_all 500 --prefer far.0 --from 500 load m 500 4096
    set sealed [sealed_by {set a [kv_all 1000 --batch 10 verify m 1000 4096]}]
    assert {$sealed >= 510 && $sealed < 550} $sealed
    assert_equal [list 2048000 2048000] [kv_fields $a shm_bytes tcp_bytes]
    # a batch of 300 is asked for in several requests, of which some lie in both
    kv_all 1000 --batch 300 verify m 1000 4096
    kv_all 1000 --batch 1000 verify m 1000 4096
    kv_all 1000 --batch 7 --replace --prefer local --prefer far.0 --seed 2 load m 1000 4096
    kv_all 1000 --batch 30 --seed 2 verify m 1000 4096
    kv_all 400 --batch 10 --replicas 2 load both 400 4096
    kv_all 400 --batch 10 verify both 400 4096
    wait_for "all leases and puts to end" {[info_field leases] + [info_field puts_open] == 0}
}
finish
