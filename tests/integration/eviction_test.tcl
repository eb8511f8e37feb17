# Guarantee 2, and what decides who goes.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 8mb --eviction-high-watermark 1

proc put {key size args} {
    set put [r putstart $key $size {*}$args]
    if {$put ne "(nil)"} {
        if {$size <= 64} {
            r putend $key [lindex $put 0] -1 VALUE [string repeat v $size]
        } else {
            r putend $key [lindex $put 0] -1
        }
    }
}

proc policies {} {return {lru fifo lfu sieve s3fifo chain}}

proc set_policy {name} {
    set ::policy $name
    wait_for "policy $name" {[catch {r config set eviction-policy $::policy}] == 0}
}

foreach policy [policies] {
    test "guarantee 2: a pool full of cold data never refuses ($policy)" {
        set_policy $policy
        r flushall
        foreach size {4096 100000 1048576 300 5000000 65 4097} {
            for {set i 0} {$i < 50} {incr i} {put $size.$i $size}
            assert_equal 1 [r exists $size.49]
        }
        put whole 8000000
        assert_equal 1 [r exists whole]
        assert_equal $policy [lindex [r config get eviction-policy] 1]
    }
}

test {guarantee 2: SET evicts, too} {
    r flushall
    for {set i 0} {$i < 100} {incr i} {assert_equal OK [r set k$i [string repeat x 1000000]]}
    assert_equal 1000000 [r strlen k99]
    assert {[r dbsize] < 10}
}

test {lru: what was read stays} {
    set_policy lru
    r flushall
    foreach i {0 1 2 3 4 5} {put k$i 1200000}
    r get k0
    r touch k2
    r getreplicas k1 LEASE 1
    assert_equal 1 [r exists k3]
    wait_for "the lease to end" {[info_field leases] == 0}
    foreach i {0 1 2} {put n$i 1200000}
    assert_equal {1 1 1 0 0 0} [r mexists 6 k0 k1 k2 k3 k4 k5]
}

# Sessions of four blocks that come back now and then, while prompts that nobody asks for again
# pass: of the blocks that were there before, how many are found.
proc session_hits {policy} {
    set_policy $policy
    r flushall
    set hits 0
    set scanned 0
    for {set round 0} {$round < 40} {incr round} {
        for {set session 0} {$session < 20} {incr session} {
            incr hits [ask s$session 4]
            for {set n 0} {$n < 8} {incr n} {ask scan[incr scanned] 4}
        }
    }
    return $hits
}

proc ask {prompt blocks} {
    for {set i 0} {$i < $blocks} {incr i} {lappend keys $prompt.$i}
    set hits 0
    foreach found [r mgetreplicas $blocks {*}$keys LEASE 1] {
        if {$found eq "(nil)"} break
        incr hits
    }
    if {$hits == $blocks} {return $hits}
    set missing [lrange $keys $hits end]
    foreach key $missing {put $key 20000}
    return $hits
}

test {chain: sessions that come back keep their blocks while a scan passes} {
    assert {[session_hits lru] < 400}
    assert {[session_hits chain] > 1200}
    set_policy lru
}

test {fifo: what came first goes first, read or not} {
    set_policy fifo
    r flushall
    foreach i {0 1 2 3 4 5} {put k$i 1200000}
    foreach i {0 1 2} {r get k0}
    put n0 1200000
    put n1 1200000
    assert_equal {0 0 1 1 1 1} [r mexists 6 k0 k1 k2 k3 k4 k5]
}

test {lfu: what was read most stays} {
    set_policy lfu
    r flushall
    foreach i {0 1 2 3 4 5} {put k$i 1200000}
    for {set n 0} {$n < 100} {incr n} {foreach i {1 3 5} {r get k$i}}
    assert {[r object freq k1] > [r object freq k0]}
    foreach i {0 1 2} {put n$i 1200000}
    assert_equal {0 1 0 1 0 1} [r mexists 6 k0 k1 k2 k3 k4 k5]
}

test {a policy may be changed while the pool is full} {
    r flushall
    for {set i 0} {$i < 2000} {incr i} {put k$i 4000}
    foreach policy [concat [policies] [policies]] {
        set_policy $policy
        for {set i 0} {$i < 300} {incr i} {put $policy.$i 8000}
        assert_equal 1 [r exists $policy.299]
    }
    assert_error "*" {r config set eviction-policy nonsense}
    set_policy lru
}

test {above the high watermark a background pass makes room} {
    r flushall
    r config set eviction-high-watermark 1
    for {set i 0} {$i < 1900} {incr i} {put k$i 4000}
    set before [r dbsize]
    assert {$before > 1800}
    r config set eviction-high-watermark 0.5
    wait_for "use to go below the watermark" {
        [dict get [r segment info 0] used] <= 0.5 * [dict get [r segment info 0] size]}
    assert {[r dbsize] > 0.3 * $before}
    r config set eviction-high-watermark 1
}

# In slices of an eighth of the quota: a slice of all of it would keep a look-up waiting for several
# times as long as it takes.
test {background work goes in small slices} {
    r flushall
    for {set i 0} {$i < 1900} {incr i} {put k$i 4000}
    r config set loop-work-quota 80
    set before [info_field loop_turns]
    r flushall
    wait_for "the space of all to be free" {[info_field sweep_objects] == 0}
    assert {[info_field loop_turns] - $before > 1900 / 11}
    r config set loop-work-quota 1000
}

test {nothing is evicted by itself while writes are held back} {
    r flushall
    for {set i 0} {$i < 1900} {incr i} {put k$i 4000}
    set ::before [info_field evicted_background]
    set objects [r dbsize]
    r client pause 1000000 write
    r config set eviction-high-watermark 0.2
    set ::turns [info_field loop_turns]
    wait_for "the loop to turn" {[info_field loop_turns] > $::turns + 30}
    assert_equal "$objects $::before" "[r dbsize] [info_field evicted_background]"
    r client unpause
    wait_for "the background to evict" {[info_field evicted_background] > $::before}
    r config set eviction-high-watermark 1
}

test {a 64-fold larger put goes into a pool full of 4 KiB objects, some leased} {
    r flushall
    set n 1800
    for {set i 0} {$i < $n} {incr i} {put k$i 4096}
    set c [client]
    foreach i {0 1 2 3 4 5 6 7} {$c getreplicas k$i LEASE 10000}
    put large 4194304
    assert_equal 1 [r exists large]
    assert_equal 8 [r exists {*}[batch k 8]]
}

test {EVICT by bytes, by ratio, of keys} {
    r flushall
    for {set i 0} {$i < 100} {incr i} {put k$i 4096}
    lassign [r evict BYTES 40960] objects bytes
    assert_equal 10 $objects
    assert {$bytes >= 40960}
    assert_equal 90 [r dbsize]
    assert_equal 9 [lindex [r evict RATIO 0.1] 0]
    assert_equal 81 [r dbsize]
    assert_equal {2 8192} [r evict KEYS 3 k98 nokey k99]
    assert_equal {1 4096} [r evict BYTES 1 KEYS 2 k97 k96]
    assert_equal 1 [r exists k96]
    assert_equal {2 8192} [r evict KEYS 4 k96 k95 k94 k93 RATIO 0.5]
    assert_equal [r dbsize] [lindex [r evict RATIO 1] 0]
    assert_equal 0 [r dbsize]
    assert_equal {0 0} [r evict RATIO 1]
    assert_equal {0 0} [r evict]
}

test {EVICT spares leased and hard-pinned objects} {
    r flushall
    foreach k {a b c d} {put $k 4096}
    r pin b HARD
    set c [client]
    $c getreplicas c LEASE 10000
    assert_equal {2 8192} [r evict RATIO 1]
    assert_equal {0 1 1 0} [r mexists 4 a b c d]
    assert_equal {0 0} [r evict KEYS 2 b c]
    r pin b NONE
    assert_equal {1 4096} [r evict KEYS 2 b c]
}

test {EVICT's arguments} {
    foreach bad {{BYTES 0} {BYTES x} BYTES {RATIO 0} {RATIO 1.1} {RATIO x} {RATIO nan} RATIO\
        {KEYS 0} KEYS {KEYS 2 a} nonsense
        {BYTES 1 RATIO 0.5} {RATIO 0.5 BYTES 1}} {
        assert_error "ERR *" {r evict {*}$bad}
    }
}

test {max-objects is kept by eviction} {
    r flushall
    r config set max-objects 100
    for {set i 0} {$i < 500} {incr i} {put k$i 100}
    for {set i 0} {$i < 500} {incr i} {assert_equal OK [r set s$i v]}
    assert_range 50 [r dbsize] 100
    assert_equal 1 [r exists s499]
    r config set max-objects 0
}

test {a limit that is lowered evicts at once} {
    r flushall
    for {set i 0} {$i < 300} {incr i} {r set s$i v}
    r config set max-objects 120
    wait_for "the objects to go" {[r dbsize] <= 120}
    assert_equal {120 1 0} [list [r dbsize] [r exists s299] [r exists s0]] \
        "in the policy's order, and no more than is needed"
    r config set max-objects 0
    r pin s299 HARD
    r config set maxmemory 1
    wait_for "all that may go" {[r dbsize] == 1}
    r config set maxmemory 0
    # Also what may not go yet.
    for {set i 0} {$i < 50} {incr i} {put l$i 100}
    set reader [client]
    for {set i 0} {$i < 50} {incr i} {$reader getreplicas l$i LEASE 1000000}
    r config set max-objects 20
    $reader ping
    assert_equal 51 [r dbsize]
    drop $reader
    wait_for "the leases to be over, and what is too much to go" {[r dbsize] == 20}
    r config set max-objects 0 maxmemory 1
    wait_for "all that may go" {[r dbsize] == 1}
    assert_error "OOM *maxmemory*" {r set other v}
    r config set maxmemory 0
    assert_equal OK [r set other v]
    r pin s299 NONE
}

test {noeviction: nothing leaves to make room, EVICT is obeyed} {
    set_policy noeviction
    r flushall
    set before [info_field evicted_keys]
    set filled 0
    while {![catch {put k$filled 1000000} why] && $filled < 100} {incr filled}
    assert_match "NOSPACE *eviction-policy is noeviction*" $why
    assert_range 5 $filled 8
    assert_error "OOM *eviction-policy is noeviction*" {r set big [string repeat x 1000000]}
    r config set eviction-high-watermark 0.1
    assert_equal OK [r set small v] "the books have room"
    r config set max-objects [r dbsize]
    assert_error "OOM *" {r set other v}
    r config set max-objects 0
    assert_equal OK [r quota set q: 100000]
    assert_error "QUOTA *noeviction*" {for {set i 0} {$i < 30} {incr i} {put q:$i 40}; r set q:big\
        [string repeat x 99999]}
    r quota del q:
    r del {*}[r keys q:*]
    # A limit that is lowered, too.
    r config set max-objects 2
    set c [client]
    for {set i 0} {$i < 20} {incr i} {assert_equal PONG [$c ping]}
    assert_equal [expr {$filled + 1}] [r dbsize]
    assert_equal $before [info_field evicted_keys]
    r config set max-objects [r dbsize] eviction-high-watermark 1
    # Who was not used for longest is next for EVICT, and for the policy that comes after.
    r get k0
    r evict KEYS 1 k5
    assert_equal 1 [lindex [r evict BYTES 1] 0]
    assert_equal {1 0 1} [r mexists 3 k0 k1 k2]
    set_policy lru
    r config set max-objects 3
    wait_for "the limit to be kept again" {[r dbsize] <= 3}
    assert_equal {3 1} [list [r dbsize] [r exists k0]]
    r config set max-objects 0
    put n 2900000
    assert_equal {1 1} [r mexists 2 n k0]
}

test {maxmemory-policy is Redis' name for eviction-policy} {
    foreach {redis own} {allkeys-lru lru allkeys-lfu lfu noeviction noeviction allkeys-sieve sieve\
            allkeys-fifo fifo allkeys-s3fifo s3fifo allkeys-chain chain} {
        set ::wanted $redis
        wait_for "policy $redis" {[catch {r config set maxmemory-policy $::wanted}] == 0}
        assert_equal [list eviction-policy $own] [r config get eviction-policy]
        assert_equal [list maxmemory-policy $redis] [r config get maxmemory-policy]
        assert_equal $redis [info_field maxmemory_policy]
    }
    foreach {option policy why} {
        maxmemory-policy volatile-lru {*must be one of*allkeys-lru*TTL*: take allkeys-lru, and PIN\
            *}
        maxmemory-policy volatile-random {*TTL*: take allkeys-lru*}
        maxmemory-policy Volatile-TTL {*TTL*: take allkeys-lru*}
        maxmemory-policy allkeys-random {*must be one of*random: take allkeys-fifo*}
        maxmemory-policy lru {*must be one of*allkeys-lru*another name of eviction-policy*}
        maxmemory-policy "" {*must be one of*allkeys-lru*another name of eviction-policy*}
        eviction-policy volatile-lfu {*must be one of*TTL*: take lru, and PIN *}
        eviction-policy allkeys-random {*must be one of*random: take fifo*}
        eviction-policy allkeys-lru {*must be one of*lru*Redis' names are for maxmemory-policy}
        eviction-policy what {*must be one of the following: lru*noeviction}
    } {
        assert_error "*'$option'*$why" {r config set $option $policy}
    }
    catch {exec {*}[server_command [temp_dir] {--port 0 --maxmemory-policy volatile-lru}] 2>@1} said
    assert_match "*command line*maxmemory-policy*TTL*: take allkeys-lru*" $said
    assert_error "*duplicate*" {r config set maxmemory-policy allkeys-lru eviction-policy lfu}
    set_policy lru
    assert_equal {maxmemory-policy allkeys-lru} [r config get maxmemory-policy]
}

test {a million small objects are evicted for one large put, while others PING} {
    r flushall
    r config set max-objects 0
    set n 60000
    foreach {from to} {0 20000 20000 40000 40000 60000} {
        set arguments {}
        set ends {}
        for {set i $from} {$i < $to} {incr i} {lappend arguments k$i 80}
        set i $from
        foreach put [r mputstart 20000 {*}$arguments] {
            lappend ends k$i [lindex $put 0] -1
            incr i
        }
        r mputend 20000 {*}$ends
    }
    assert_equal $n [r dbsize]
    set other [client]
    resp::send [r] putstart large 8000000
    assert_equal PONG [$other ping]
    set put [resp::recv [r]]
    assert_equal OK [r putend large [lindex $put 0] -1]
    assert_equal 8000000 [lindex [r getreplicas large] 1]
}

finish
