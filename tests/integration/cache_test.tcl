# CACHE: where hits went, by size of the pool, by name, by tenant, and in words.
source [file join [file dirname [info script]] harness.tcl]

# A look-up, and the put that follows a miss, as an engine has it.
proc use {key {size 60000}} {
    if {[r get $key] eq "(nil)"} {r set $key [string repeat x $size]}
}
# RESP2 shows a map as a list of names and values.
proc point {order scale field} {
    foreach p [dict get [r cache curve] by_$order] {
        if {[dict get $p scale] == $scale} {return [dict get $p $field]}
    }
    error "no scale $scale"
}
proc doctor {} {r cache doctor}
proc key_of {name i} {format "%s@%016x" $name $i}

start_server --pool-size 1mb --pool-populate no --eviction-policy lru

test {nobody looked: no value, and the doctor says so} {
    assert_match "Nobody has looked anything up*" [doctor]
    assert_equal (nil) [point policy 1.0 hit_ratio]
    assert_equal {hits {} misses {} bytes {}} [r cache prefixes]
    assert_error "INFO has no curve_this" {info_field curve_this}
    set all [lindex [r cache tenants] 0]
    assert_equal {{} 0 0 0} [list [dict get $all prefix] [dict get $all quota] \
        [dict get $all hits] [dict get $all misses]]
}

test {CACHE CURVE: a loop a little larger than the pool hits only in a larger one} {
    wait_for "the curve knows the pool" {
        [use probe; r del probe; expr {[point policy 1.0 hit_ratio] ne "(nil)"}]
    }
    r config resetstat
    assert_equal (nil) [point policy 1.0 hit_ratio]
    # 24 of 64 KiB each: lru never hits in 1 MiB, and nearly always in 2 MiB
    for {set round 0} {$round < 50} {incr round} {
        for {set i 0} {$i < 24} {incr i} {use [key_of llama $i]}
    }
    assert_equal 0 [info_field hits]
    assert {[point lru 1.0 hit_ratio] < 0.05}
    assert {[point lru 2.0 hit_ratio] > 0.9}
    assert {[point policy 4.0 hit_ratio] > 0.9}
    assert_equal {1 0} [list [point policy 1.0 filled] [point policy 4.0 filled]]
    assert {[info_field curve_twice] > 0.9 && [info_field curve_this] < 0.05}
    assert_equal lru [dict get [r cache curve] policy]
    assert_match "*0.0 % of 1200 look-ups hit*" [doctor]
    assert_match "*of the misses (evicted): they had been there*" [doctor]
    assert_match "*A pool twice as large would hit 9? %*, where this size hits 0 %*" [doctor]
}

test {another policy: its curve begins anew, and the doctor names lru where that is better} {
    r config set eviction-policy fifo
    assert_equal {fifo (nil)} [list [dict get [r cache curve] policy] [point policy 1.0 hit_ratio]]
    wait_for "the curve knows the pool" {
        [use probe; r del probe; expr {[point policy 1.0 hit_ratio] ne "(nil)"}]
    }
    # one key between all the others: fifo lets it go all the same
    for {set i 0} {$i < 1500} {incr i} {use [key_of llama [expr {$i % 2 ? 999999 : $i}]]}
    assert {[point lru 1.0 hit_ratio] > 0.4}
    assert_match "*With CONFIG SET eviction-policy lru this pool would hit *with fifo.*" [doctor]
    r config set eviction-policy lru
}

test {chain goes by more than single keys: the curve is lru's alone, and everybody says so} {
    wait_for "the last change is over" {![catch {r config set eviction-policy chain}]}
    wait_for "the curve knows the pool" {
        [use probe; r del probe; expr {[point lru 1.0 hit_ratio] ne "(nil)"}]
    }
    r config resetstat
    for {set i 0} {$i < 1200} {incr i} {use [key_of llama [expr {$i % 24}]]}
    assert_equal {chain (nil)} [list [dict get [r cache curve] policy] [point policy 2.0 hit_ratio]]
    assert {[point lru 2.0 hit_ratio] > 0.9 && [info_field curve_lru_twice] > 0.9}
    assert_error "INFO has no curve_twice" {info_field curve_twice}
    assert_match "*With lru (the curve cannot tell *A pool twice as large would hit*" [doctor]
    assert {![string match "*CONFIG SET eviction-policy lru*" [doctor]]}
    r config set eviction-policy lru
}

test {what is removed is gone from a pool of any size} {
    r flushall
    r config resetstat
    for {set i 0} {$i < 300} {incr i} {
        use [key_of llama $i]
        r del [key_of llama $i]
        assert_equal (nil) [r get [key_of llama $i]]
    }
    assert_equal 0 [point policy 4.0 hit_ratio]
    assert_match "*of the misses (removed): somebody removed them*" [doctor]
}

test {CACHE PREFIXES: by hits, misses, bytes; one look-up in 128 counts} {
    r flushall
    r config resetstat
    foreach name {llama@8 mistral:7b} {r set [key_of $name 1] [string repeat x 1000]}
    for {set i 0} {$i < 8000} {incr i} {r get [key_of llama@8 1]}
    for {set i 0} {$i < 2000} {incr i} {r get [key_of mistral:7b 1]}
    for {set i 0} {$i < 2000} {incr i} {r get [format "qwen@%x" $i]}
    set top [r cache prefixes count 2]
    set hits [dict get $top hits]
    assert_equal {llama@8@ mistral:7b@} [lmap e $hits {dict get $e prefix}]
    set n [dict get [lindex $hits 0] count]
    assert {$n > 4000 && $n < 16000}
    assert_equal [expr {1000 * $n}] [dict get [lindex [dict get $top bytes] 0] count]
    assert_equal {qwen@ 0} [list [dict get [lindex [dict get $top misses] 0] prefix] \
        [dict get [lindex [dict get $top misses] 0] error]]
    assert_equal 1 [llength [dict get [r cache prefixes count 1] hits]]
    assert_error "ERR COUNT must be a number from 1 to 64" {r cache prefixes count 0}
    assert_error "ERR COUNT must be a number from 1 to 64" {r cache prefixes count 65}
}

test {CACHE TENANTS: each quota, and the keys without one} {
    r flushall
    r quota set a: 256kb
    r config resetstat
    r get b:never
    for {set i 0} {$i < 12} {incr i} {use a:$i}
    r get a:11
    r get a:0
    lassign [r cache tenants] none a
    assert_equal {{} 0 1 0} [list [dict get $none prefix] [dict get $none hits] \
        [dict get $none misses] [dict get $none evicted]]
    assert_equal {a: 262144 1 13} [list [dict get $a prefix] [dict get $a quota] \
        [dict get $a hits] [dict get $a misses]]
    assert_equal {12 1} [list [dict get $a misses_by_reason never] \
        [dict get $a misses_by_reason evicted]]
    assert_equal [info_field evictions_quota] [dict get $a evicted]
    assert_match {*The tenant "a:" has used its quota of 262144 bytes*} [doctor]
    r config resetstat
    assert_equal 0 [dict get [lindex [r cache tenants] 1] misses]
    r quota del a:
    wait_for "one tenant" {[llength [r cache tenants]] == 1}
}

test {the doctor: puts that were refused, and a pool that pins} {
    start_server --pool-size 1mb --pool-populate no --hard-pin-ratio 1 --hard-pin-user-ratio 1 \
        --eviction-policy noeviction
    for {set i 0} {$i < 15} {incr i} {r set k$i [string repeat x 60000]; r pin k$i hard}
    catch {r set more [string repeat x 200000]}
    assert_match "*puts were refused for want of room*noeviction*" [doctor]
    assert_match "*Hard pins hold * of the pool's 1048576 bytes*" [doctor]
}

finish
