# Pins, groups, boundaries and quotas: who goes last, together, or first.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 8mb --eviction-high-watermark 1 --enable-debug-command yes

proc put {key size args} {
    set put [r putstart $key $size {*}$args]
    if {$put ne "(nil)"} {r putend $key [lindex $put 0] -1}
}

proc flood {} {for {set i 0} {$i < 30} {incr i} {put flood$i 1000000}}

test {hard-pinned objects are never evicted} {
    r flushall
    put hard 1000000 PIN HARD
    put later 1000000
    assert_equal 1 [r pin later HARD]
    put cold 1000000
    flood
    assert_equal {1 1 0} [r mexists 3 hard later cold]
    assert_equal 1 [r pin hard NONE]
    flood
    assert_equal {0 1} [r mexists 2 hard later]
    assert_equal 1 [r del later]
}

test {soft-pinned objects go last} {
    r flushall
    put soft 1000000 PIN SOFT 600000
    put later 1000000
    assert_equal 1 [r pin later SOFT 600000]
    flood
    assert_equal {1 1} [r mexists 2 soft later]
    put large 7900000
    assert_equal {0 0 1} [r mexists 3 soft later large]
}

test {a soft pin ends} {
    r flushall
    put soft 1000000 PIN SOFT 1
    put other 1000000 PIN SOFT 600000
    wait_for "the pin to end" {[flood; r exists soft] == 0}
    assert_equal 1 [r exists other]
}

test {guarantee 4: hard pins get a share of the pool, and each user a smaller one} {
    r flushall
    r config set hard-pin-ratio 0.5 hard-pin-user-ratio 0.25
    r acl setuser u1 on nopass ~* +@all
    r acl setuser u2 on nopass ~* +@all
    set share [expr {[info_field pool_size] / 4}]
    set size [expr {$share / 3}]
    foreach user {u1 u2} {
        r auth $user x
        for {set i 0} {$i < 3} {incr i} {put $user$i $size PIN HARD}
        set refused [info_field hard_pins_refused]
        assert_error "QUOTA hard pins*may hold *" {r putstart more$user $size PIN HARD}
        assert_equal "{QUOTA hard pins}" \
            [expr {[string match "*QUOTA hard pins*" [r mputstart 1 more$user $size PIN HARD]] ?\
            "{QUOTA hard pins}" : "no"}]
        put more$user $size
        assert_error "QUOTA *" {r pin more$user HARD}
        assert_error "QUOTA *" {r pinhard more$user}
        assert_equal 1 [r pin more$user SOFT 60000]
        assert {[info_field hard_pins_refused] >= $refused + 4}
    }
    # The half of all is gone: a third user gets nothing, and what is not pinned hard goes on.
    r acl setuser u3 on nopass ~* +@all
    r auth u3 x
    assert_error "QUOTA *" {r putstart third $size PIN HARD}
    assert_equal 2 [info_field hard_pin_owners]
    assert_range [expr {6 * ($size - 1)}] [info_field hard_pinned_bytes] [expr {6 * $size}]
    flood
    assert_equal {1 1 1 1 1 1} [r mexists 6 u10 u11 u12 u20 u21 u22]
    # What is given back can be had again: by unpinning, removal, and a put that is given up.
    r auth u1 x
    r pin u10 NONE
    set token [lindex [r putstart again $size PIN HARD] 0]
    assert_error "QUOTA *" {r putstart more $size PIN HARD}
    r putrevoke again $token
    r del u11
    put again $size PIN HARD
    put again2 $size PIN HARD
    assert_error "QUOTA *" {r pin u10 HARD}
    r auth default x
    r flushall
    assert_equal {0 0 0} [list [info_field hard_pins] [info_field hard_pinned_bytes] \
        [info_field hard_pinned_books]]
    assert_equal 0 [info_field hard_pin_owners]
}

test {guarantee 6: to pin hard takes a right of its own} {
    r config set hard-pin-ratio 1 hard-pin-user-ratio 1
    r acl setuser engine on nopass ~* +@pool +@connection
    r acl setuser keeper on nopass ~* +@pool +@connection +pinhard
    r auth engine x
    set why "NOPERM this user has no permissions to run the 'pinhard' command"
    put mine 1000
    assert_error $why {r putstart e 1000 PIN HARD}
    assert_error $why {r putstart e 1000 replace pin hard}
    assert_error $why {r mputstart 2 e 1000 f 1000 TTL 5000 PIN HARD}
    assert_error $why {r pin mine hard}
    assert_error $why {r pinhard mine}
    assert_equal {1 1} [list [r pin mine SOFT 1000] [r pin mine NONE]]
    # Words that mean something else.
    assert_equal 2 [llength [r mputstart 2 pin 1000 hard 1000]]
    assert_error "NOSEGMENT *" {r putstart hard2 1000 GROUP pin PREFER hard}
    r auth keeper x
    put kept 1000 PIN HARD
    assert_equal {1 1 1} [list [r pin mine HARD] [r pinhard mine] [r pinhard kept]]
    assert_equal 0 [r pinhard nokey]
    r auth default x
    assert_equal "This user has no permissions to run the 'pinhard' command" \
        [r acl dryrun engine putstart k 10 PIN HARD]
    assert_equal OK [r acl dryrun keeper putstart k 10 PIN HARD]
    assert_equal "This user has no permissions to run the 'get' command" [r acl dryrun keeper get k]
    assert_match "*+pinhard*" [lsearch -inline [r acl list] "user keeper *"]
    assert_match "*pinhard*" [r acl log]
}

test {a pool full of hard-pinned objects answers NOSPACE} {
    r flushall
    for {set i 0} {![catch {put p$i 1000000 PIN HARD}]} {incr i} {assert {$i < 20}}
    assert_error "NOSPACE *" {r putstart more 1000000}
    r pin p3 NONE
    put more 1000000
    assert_equal 0 [r exists p3]
}

test {PIN's arguments} {
    r flushall
    put k 1000
    assert_equal 0 [r pin nokey HARD]
    assert_equal 0 [r pin nokey NONE]
    foreach bad {{SOFT} {SOFT 0} {SOFT x} {nonsense} {HARD x} {NONE 5}} {
        assert_error "ERR *" {r pin k {*}$bad}
    }
    assert_error "ERR wrong number of arguments*" {r pin k}
}

test {a group is evicted together} {
    r flushall
    foreach i {0 1 2} {put g$i 500000 GROUP layers}
    put single 500000
    assert_equal {1 1 1 1} [r mexists 4 g0 g1 g2 single]
    lassign [r evict KEYS 1 g1] objects bytes
    assert {$objects >= 1}
    assert_equal 1 [r exists single]
    foreach i {0 1 2} {put h$i 1000000 GROUP other}
    for {set i 0} {[r exists h0 h1 h2] == 3} {incr i} {
        put flood$i 1000000
        assert {$i < 100}
    }
    assert_equal 0 [r exists h0 h1 h2]
}

# One batch: ids are one for each key, as the option says.
proc put_batch {batch args} {
    set n [expr {[llength $batch] / 2}]
    set ends {}
    foreach {key size} $batch put [r mputstart $n {*}$batch {*}$args] {
        lappend ends $key [lindex $put 0] -1
    }
    r mputend $n {*}$ends
}

proc parts {i} {r exists full$i window$i state$i}

# What is there is moved to another policy in the background.
proc use_policy {name} {
    set ::policy $name
    wait_for "policy $name" {![catch {r config set eviction-policy $::policy}]}
}

test {parts of one boundary go together, but those that were used since} {
    r flushall
    use_policy lru
    set before [info_field evicted_boundary]
    set batch {}
    set ids {}
    foreach kind {full window state} {
        foreach i {0 1 2 3} {
            lappend batch $kind$i 400000
            lappend ids p$i
        }
    }
    put_batch $batch BOUNDARIES {*}$ids
    assert_equal {4 0} [list [info_field boundaries] [info_field groups]]
    r getreplicas full1 LEASE 1
    assert_equal 3 [lindex [r evict BYTES 1] 0]
    assert_equal {0 3 3 3} [lmap i {0 1 2 3} {parts $i}]
    for {set n 0} {[r exists window1] == 1} {incr n} {
        put flood$n 400000
        foreach i {2 3} {assert {[parts $i] in {0 3}}}
        assert {$n < 100}
    }
    assert_equal {0 1} [list [r exists state1] [r exists full1]]
    assert {[info_field evicted_boundary] - $before >= 7}
    flood
    assert_equal 0 [info_field boundaries]
}

test {chain takes the last boundary first, in whatever order its parts were put} {
    foreach order {kinds boundaries} {
        r flushall
        use_policy chain
        set batch {}
        set ids {}
        for {set n 0} {$n < 12} {incr n} {
            set i [expr {$order eq "kinds" ? $n % 4 : $n / 3}]
            set kind [lindex {full window state} [expr {$order eq "kinds" ? $n / 4 : $n % 3}]]
            lappend batch $kind$i 400000
            lappend ids p$i
        }
        put_batch $batch BOUNDARIES {*}$ids
        foreach left {{3 3 3 0} {3 3 0 0} {3 0 0 0} {0 0 0 0}} {
            assert_equal 3 [lindex [r evict BYTES 1] 0]
            assert_equal $left [lmap i {0 1 2 3} {parts $i}] $order
        }
    }
}

test {a batch has one group or boundary for all of its keys, or one for each} {
    r flushall
    use_policy lru
    put_batch {a 1000 b 1000 c 1000 d 1000} GROUPS g {} g h
    assert_equal {2 0} [list [info_field groups] [info_field boundaries]]
    assert_equal 2 [lindex [r evict BYTES 1] 0]
    assert_equal {0 1 0 1} [r mexists 4 a b c d]
    put_batch {e 1000 f 1000} BOUNDARY g
    put i 1000 BOUNDARY h
    assert_equal {1 2} [list [info_field groups] [info_field boundaries]]
    assert_error "ERR *BOUNDARY* exclude each other" {r putstart k 10 GROUP g BOUNDARY g}
    assert_error "ERR *exclude each other" {r mputstart 1 k 10 BOUNDARY g BOUNDARIES g}
    assert_error "ERR GROUPS needs 2 values" {r mputstart 2 k 10 l 10 GROUPS g}
    assert_error "ERR unknown option 'GROUPS'*" {r putstart k 10 GROUPS g}
    assert_error "ERR BOUNDARY must be 1 to 1024 bytes" {r putstart k 10 BOUNDARY {}}
    set many [r mputstart 2 k 10 l 10 BOUNDARIES g [string repeat x 1025]]
    assert_match "*id*1024*" [lindex $many 1]
    r putrevoke k [lindex $many 0 0]
}

# Renews the lease of one member for a while, amid floods that evict all else. 0: a machine that
# stood still let it end.
proc renew_one {c ms} {
    set sent [clock milliseconds]
    set end [expr {$sent + 5 * $ms / 2}]
    $c mgetreplicas 2 g0 g1 LEASE $ms
    while {[clock milliseconds] < $end} {
        set before $sent
        set sent [clock milliseconds]
        $c getreplicas g0 LEASE $ms
        if {[clock milliseconds] - $before >= $ms} {return 0}
        after 50
        flood
    }
    set here [r mexists 2 g0 g1]
    if {[clock milliseconds] - $sent >= $ms} {return 0}
    assert_equal {1 1} $here
    return 1
}

test {a lease on a member renews this connection's leases on the others} {
    foreach ms {400 2000 9000} {
        r flushall
        foreach i {0 1} {put g$i 1000000 GROUP lg}
        set c [client]
        set done [renew_one $c $ms]
        drop $c
        if {$done} break
    }
    assert $done
}

test {QUOTA SET GET LIST DEL} {
    r flushall
    assert_equal (nil) [r quota get tenant:]
    assert_equal {} [r quota list]
    assert_equal OK [r quota set tenant: 2mb]
    put tenant:a 1000000
    set q [r quota get tenant:]
    assert_equal tenant: [dict get $q prefix]
    assert_equal 2097152 [dict get $q bytes]
    assert_equal 1 [dict get $q objects]
    assert {[dict get $q used] >= 1000000}
    assert_equal 1 [llength [r quota list]]
    assert_equal 1 [r quota del tenant:]
    assert_equal 0 [r quota del tenant:]
    assert_error "ERR bytes must be *" {r quota set tenant: x}
    assert_error "ERR bytes must be *" {r quota set tenant: -1}
}

test {a full quota evicts there first} {
    r flushall
    r quota set t: 2000000
    put other1 1000000
    for {set i 0} {$i < 10} {incr i} {
        put t:$i 900000
        assert {[dict get [r quota get t:] used] <= 2000000}
    }
    assert_equal 1 [r exists t:9]
    assert_equal 1 [r exists other1]
    assert {[r exists {*}[batch t: 10]] == 2}
    assert_error "QUOTA *" {r putstart t:huge 2000001}
    assert_error "QUOTA *" {r set t:huge [string repeat x 2000001]}
    assert_equal 1 [r exists t:9]
    r quota del t:
    put t:huge 3000000
}

test {the longest prefix counts} {
    r flushall
    r quota set a: 1000000
    r quota set a:b: 3000000
    put a:b:1 2000000
    assert_error "QUOTA *" {r putstart a:1 2000000}
    put a:1 900000
    assert_equal {1 1} [r mexists 2 a:b:1 a:1]
    assert_equal 1 [dict get [r quota get a:] objects]
    r del a:b:1
    assert_equal 0 [dict get [r quota get a:b:] used]
    r quota del a:
    r quota del a:b:
}

test {objects that are there are counted when a quota comes} {
    r flushall
    for {set i 0} {$i < 500} {incr i} {put late:$i 4096}
    r quota set late: 8mb
    wait_for "counting to end" {![dict get [r quota get late:] counting]}
    assert_equal 500 [dict get [r quota get late:] objects]
    assert {[dict get [r quota get late:] used] >= 500 * 4096}
    r quota del late:
}

test {guarantee 1: keys that go together leave no half} {
    r flushall
    assert_equal {kv_bytes metadata} [lindex [r config get evict-together-suffixes] 1]
    set meta [string repeat m 28]
    for {set i 0} {$i < 30} {incr i} {
        r set c${i}kv_bytes [string repeat x 1000000]
        r set c${i}metadata $meta
    }
    set hits 0
    for {set i 0} {$i < 30} {incr i} {
        assert_equal [r exists c${i}kv_bytes] [r exists c${i}metadata]
        incr hits [r exists c${i}metadata]
    }
    assert {$hits > 0 && $hits < 30}
    assert {[info_field evicted_together] > 0}
    # whoever removes one part, and in a transaction
    r set akv_bytes v
    r set ametadata $meta
    assert_equal 1 [r del ametadata]
    assert_equal 0 [r exists akv_bytes ametadata]
    r set akv_bytes v
    r set ametadata $meta PX 1
    wait_for "the metadata to expire" {[r exists akv_bytes ametadata] == 0}
    r set akv_bytes v
    r set ametadata $meta
    r multi
    r del akv_bytes
    r exists ametadata
    assert_equal {1 0} [r exec]
    # what is replaced stays
    r set akv_bytes v
    r set ametadata $meta
    r set akv_bytes [string repeat w 1000]
    assert_equal 2 [r exists akv_bytes ametadata]
    # other names, or none
    r config set evict-together-suffixes ":data :info"
    r del akv_bytes
    assert_equal 1 [r exists ametadata]
    r set a:data v
    r set a:info v
    r del a:data
    assert_equal 0 [r exists a:info]
    r config set evict-together-suffixes ""
    r set a:data v
    r set a:info v
    r del a:data
    assert_equal 1 [r exists a:info]
    r config set evict-together-suffixes "kv_bytes metadata"
}

test {guarantee 4: whose hard pins they are is known after a start from files, too} {
    start_server --pool-size 8mb --enable-debug-command yes
    foreach user {u1 u2} {r acl setuser $user on nopass ~* +@all}
    set size [expr {[info_field pool_size] / 5}]
    foreach key {a b} {r set $key [string repeat $key $size]}
    r auth u1 x
    assert_equal 1 [r pin a HARD]
    assert_error "QUOTA *" {r pin b HARD}
    set before [list [info_field hard_pinned_bytes] [info_field hard_pinned_books] \
        [info_field hard_pin_owners]]
    r auth default x
    r debug reload
    assert_equal $before [list [info_field hard_pinned_bytes] [info_field hard_pinned_books] \
        [info_field hard_pin_owners]]
    r auth u1 x
    assert_error "QUOTA *" {r pin b HARD}
    r auth u2 x
    assert_equal 1 [r pin b HARD]
    r auth default x
    assert_equal 2 [info_field hard_pin_owners]
    stop_server
}

finish
