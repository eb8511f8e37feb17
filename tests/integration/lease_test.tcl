# Leases: what a reader may count on, and when space comes back.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 8mb --max-lease 10000 --eviction-high-watermark 1

proc put {c key size args} {
    set put [$c putstart $key $size {*}$args]
    if {$put ne "(nil)"} {$c putend $key [lindex $put 0] -1}
    return [lindex $put 0]
}

# Fills the pool with 1 MiB objects until nothing more goes in without eviction; their keys.
proc fill {} {
    r flushall
    set keys {}
    for {set i 0} {[info_field evicted_keys] == $::evicted} {incr i} {
        put [r] full$i 1048576
        lappend keys full$i
        if {$i > 100} {error "the pool does not fill"}
    }
    return [lmap key $keys there [r mexists [llength $keys] {*}$keys] {
        if {!$there} continue
        set key
    }]
}

# So that the next test has the whole pool.
proc release_all {c keys} {
    set arguments {}
    foreach k $keys x [$c mgetreplicas [llength $keys] {*}$keys] {
        lappend arguments $k [expr {$x eq "(nil)" ? 0 : [lindex $x 0]}]
    }
    return [$c release [llength $keys] {*}$arguments]
}

test {LEASE says what was granted; more than max-lease is granted as max-lease} {
    put [r] k 100000
    assert_equal 3000 [lindex [r getreplicas k LEASE 3000] 2]
    assert_equal 10000 [lindex [r getreplicas k LEASE 3600000] 2]
    assert_equal 10000 [lindex [r getreplicas k LEASE 9223372036854775807] 2]
    assert_equal 0 [lindex [r getreplicas k] 2]
    assert_equal 40 [string length [lindex [r getreplicas k LEASE 1000] 4 0 1 0 4]]
    foreach bad {0 -1 x 9223372036854775808 {}} {
        assert_error "ERR LEASE must be *" {r getreplicas k LEASE $bad}
    }
    assert_error "ERR LEASE needs a value" {r getreplicas k LEASE}
}

test {RELEASE: own leases, once, of this version} {
    r del k
    set v [put [r] k 100000]
    r getreplicas k LEASE 10000
    assert_equal 0 [r release 1 k [expr {$v + 1}]]
    assert_equal 0 [r release 1 k x]
    assert_equal 0 [r release 1 other $v]
    assert_equal 0 [[client] release 1 k $v]
    assert_equal 1 [r release 1 k $v]
    assert_equal 0 [r release 1 k $v]
    r getreplicas k LEASE 10000
    assert_equal 1 [r release 2 nokey 0 k 0]
    assert_equal 0 [r release 1 k 0]
    assert_error "ERR unknown option *" {r release 1 k $v extra}
}

test {a second lease of the same connection extends the first} {
    set v [lindex [r getreplicas k LEASE 5000] 0]
    r getreplicas k LEASE 10000
    assert_equal 1 [r release 1 k $v]
    assert_equal 0 [r release 1 k $v]
}

test {RELEASE of an old version, after the key was overwritten or removed} {
    set c [client]
    set old [put $c k2 100000]
    $c getreplicas k2 LEASE 10000
    r set k2 new
    assert_equal new [r get k2]
    assert_equal 1 [$c release 1 k2 $old]
    set old [put $c k3 100000]
    $c getreplicas k3 LEASE 10000
    assert_equal 1 [r del k3]
    assert_equal 0 [r exists k3]
    assert_equal 1 [$c release 1 k3 $old]
    assert_equal 0 [$c release 1 k3 $old]
}

test {RELEASE of many} {
    foreach k {m1 m2 m3} {put [r] $k 5000}
    set versions [lmap x [r mgetreplicas 3 m1 m2 m3 LEASE 5000] {lindex $x 0}]
    lassign $versions a b c
    assert_equal 2 [r release 3 m1 $a m2 [expr {$b + 1000}] m3 $c]
    assert_equal 1 [r release 3 m1 $a m2 $b m3 $c]
}

test {guarantee 1: removal takes effect at once, the space waits in quarantine} {
    r flushall
    set c [client]
    set v [put [r] k 1048576]
    lassign [lindex [$c getreplicas k LEASE 10000] 4 0 1 0] segment epoch offset
    assert_equal 1 [r del k]
    assert_equal (nil) [r getreplicas k]
    assert {[dict get [r segment info 0] quarantined] >= 1048576}
    # nobody gets that space while the lease runs
    for {set i 0} {$i < 20} {incr i} {
        lassign [r putstart new$i 500000] token replicas
        lassign [lindex $replicas 0 1 0] - - at length
        assert {$at + $length <= $offset || $at >= $offset + 1048576} "offset $at"
        r putend new$i $token -1
    }
    assert_equal 1 [$c release 1 k $v]
    wait_for "quarantine to be empty" {[dict get [r segment info 0] quarantined] == 0}
}

test {guarantee 2: a pool full of leased objects answers NOSPACE at once, and has room when one is\
        released} {
    set ::evicted [info_field evicted_keys]
    set keys [fill]
    set c [client]
    set versions [lmap x [$c mgetreplicas [llength $keys] {*}$keys LEASE 10000] {lindex $x 0}]
    assert_error "NOSPACE *" {r putstart more 1048576}
    assert_error "NOSPACE *" {r putstart more 1048576}
    assert_error "OOM *" {r set more [string repeat x 1048576]}
    assert_equal OK [r set small "values in the books need none of it"]
    assert_equal [llength $keys] [r exists {*}$keys]
    assert_equal 1 [$c release 1 [lindex $keys 0] [lindex $versions 0]]
    put [r] more 1048576
    assert_equal 0 [r exists [lindex $keys 0]]
    assert_equal [expr {[llength $keys] - 1}] [r exists {*}$keys]
    release_all $c $keys
}

test {guarantee 2: room again the moment a lease ends by itself} {
    set ::evicted [info_field evicted_keys]
    set keys [fill]
    set ::evicted [info_field evicted_keys]
    set keys [fill]
    r mgetreplicas [llength $keys] {*}$keys LEASE 300
    assert_error "NOSPACE *" {r putstart more2 1048576}
    wait_for "the leases to end" {[catch {put [r] more2 1048576}] == 0}
}

test {guarantee 2: look-ups without LEASE never stand in the way of eviction} {
    set ::evicted [info_field evicted_keys]
    set keys [fill]
    for {set i 0} {$i < 40} {incr i} {
        r mgetreplicas [llength $keys] {*}$keys
        r prefixlen [llength $keys] {*}$keys
        r mexists [llength $keys] {*}$keys
        r mget {*}$keys
        put [r] again$i 1048576
    }
    assert_equal 40 [expr {[info_field evicted_keys] - $::evicted >= 40 ? 40 : 0}]
}

test {PREFIXLEN LEASE protects what it counted} {
    r flushall
    foreach k {p0 p1 p2} {put [r] $k 1048576}
    assert_equal 2 [[set c [client]] prefixlen 3 p0 p1 nokey LEASE 10000]
    for {set i 0} {$i < 20} {incr i} {put [r] flood$i 1048576}
    assert_equal {1 1 0} [r mexists 3 p0 p1 p2]
    assert_equal 2 [release_all $c {p0 p1}]
}

test {leases of a connection that is gone end by themselves} {
    r flushall
    set c [client]
    put [r] k 7000000
    $c getreplicas k LEASE 500
    drop $c
    assert_error "NOSPACE *" {r putstart other 7000000}
    wait_for "the lease to end" {[catch {put [r] other 7000000}] == 0}
}

test {leases per connection are bounded} {
    r flushall
    set old [lindex [r config get max-leases-per-client] 1]
    r config set max-leases-per-client 10
    set n 15
    foreach k [batch b $n] {put [r] $k 5000}
    set c [client]
    set got [$c mgetreplicas $n {*}[batch b $n] LEASE 5000]
    assert_equal 5 [llength [lsearch -all -glob $got "(error) *"]]
    assert_equal 10 [$c prefixlen $n {*}[batch b $n] LEASE 5000]
    r config set max-leases-per-client $old
}

test {values in the books need no lease, and get one all the same} {
    r set s small
    assert_equal 1000 [lindex [r getreplicas s LEASE 1000] 2]
    for {set i 0} {$i < 100} {incr i} {r set s $i}
    assert_equal 99 [r get s]
}

test {BATCH: leases that are released together} {
    set c [client]
    foreach k {m1 m2 m3} {put $c $k 5000}
    $c set small value
    set short [$c mgetreplicas 4 m1 m2 missing small LEASE 5000 PACKED BATCH]
    set long [$c mgetreplicas 2 m2 m3 LEASE 5000 BATCH]
    assert_equal {5 88 88 (nil)} [list [llength $short] [string length [lindex $short 0]] \
                                      [string length [lindex $short 1]] [lindex $short 2]]
    assert_equal 3 [llength $long]
    lassign [list [lindex $short end] [lindex $long end]] a b
    assert {$a > 0 && $b > 0 && $a != $b} "two batches"
    assert_equal 0 [[client] release 0 BATCH $a]
    # m2 is of the second one now
    assert_equal 1 [$c release 0 BATCH $a]
    assert_equal 0 [$c release 0 BATCH $a]
    assert_equal 2 [$c release 1 m3 [lindex $long 1 0] BATCH $b]
    assert_equal 0 [$c release 0 BATCH $b]
    assert_equal 0 [lindex [$c mgetreplicas 1 m1 BATCH] end]
    assert_equal 0 [$c release 0]
    assert_error "ERR BATCH must be *" {$c release 0 BATCH 0}
    assert_error "ERR BATCH needs a value" {$c release 0 BATCH}
    assert_error "ERR BATCH is not for KVGROUPS" {
        $c mgetreplicas 1 h UNIT 16 ALIGN 16 KVGROUPS 1 f FULL 16 16 0 0 LEASE 1000 BATCH
    }
}

test {a batch in slices, and in a transaction} {
    set c [client]
    set keys {}
    for {set i 0} {$i < 600} {incr i} {
        put $c batch$i 100
        lappend keys batch$i
    }
    set ::before [info_field leases]
    set quota [info_field loop_work_quota]
    r config set loop-work-quota 100
    set batch [lindex [$c mgetreplicas 600 {*}$keys LEASE 5000 BATCH] end]
    assert_equal [expr {$::before + 600}] [info_field leases]
    $c multi
    $c release 0 BATCH $batch
    assert_equal 600 [$c exec]
    assert_equal $::before [info_field leases]
    set batch [lindex [$c mgetreplicas 600 {*}$keys LEASE 5000 BATCH] end]
    assert_equal 600 [$c release 0 BATCH $batch]
    # what is not released ends by itself
    $c mgetreplicas 600 {*}$keys LEASE 50 BATCH
    wait_for "the end of the batch" {[info_field leases] == $::before}
    r config set loop-work-quota $quota
    $c del {*}$keys
}

finish
