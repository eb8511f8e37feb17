# What modules are told of a prompt in the pool (module.h, pool_prefix): the same as PREFIXLEN with
# KVGROUPS, where it lies, and nothing of it counts as a use. The module is tests/modules/prefix.c.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --max-lease 2s --node-heartbeat 100 --eviction-policy lru \
    --loadmodule $modules/prefix.so
set disk [file join [server dir] disk]
file mkdir $disk
start_node n1 --host-name m1 --rack r1 --segment 16mb --ssd $disk:64mb
start_node n2 --host-name m2 --rack r2 --segment 16mb

set full {f@ FULL 16 16 0 0}
set window {w@ WINDOW 16 16 33 0}
set state {s@ STATE 32 16 0 0}
set draft {d@ FULL 16 16 0 1}
set inside {i@ FULL 32 16 0 0}

proc request {n groups} {
    set hashes {}
    for {set i 0} {$i < $n} {incr i} {lappend hashes [format %04x $i]}
    return [list $n {*}$hashes UNIT 16 ALIGN 32 KVGROUPS [llength $groups] {*}[concat {*}$groups]]
}
proc put {name i {size 1000} {segment n1.0}} {
    set key $name[format %04x $i]
    set put [r putstart $key $size PREFER $segment]
    assert_equal OK [r putend $key [lindex $put 0] -1]
}
proc told {n groups {room 64}} {r prefix.len $room {*}[request $n $groups]}

test {the parts, where they lie, and their bytes} {
    foreach i {0 1 2 3} {put f@ $i}
    foreach i {4 5} {put f@ $i 1000 n2.0}
    foreach i {4 5} {put w@ $i 100}
    set near {FULL 0 64 0 m1 r1 4000}
    assert_equal [list 96 $near {FULL 64 32 0 m2 r2 2000} {WINDOW 64 32 0 m1 r1 200}] \
        [lreplace [told 8 [list $full $window]] 1 1]
    # what there is no room for is somewhere
    assert_equal {96 {FULL 0 64 0 m1 r1 4000} {FULL 64 32 0 {} {} 2200}} \
        [lreplace [told 8 [list $full $window] 2] 1 1]
    assert_equal {96 {FULL 0 96 0 {} {} 6200}} [lreplace [told 8 [list $full $window] 1] 1 1]
    assert_equal {0 0} [lreplace [told 8 [list $full $state]] 1 1 0]
}

test {hashes behind the first gap are hardly made} {
    assert {[lindex [told 512 [list $full]] 1] < 32}
}

test {on a disk, once memory has let go} {
    wait_for "copies" {[segment_field n1.ssd replicas] == 6}
    r evict ratio 1
    assert_equal {64 {FULL 0 64 1 m1 r1 4000}} [lreplace [told 8 [list $full]] 1 1]
    r del f@0001
    assert_equal {0} [lreplace [told 8 [list $full]] 1 1]
}

test {what is wrong is said} {
    assert_error "*there must be room*" {told 8 [list $full] 0}
    assert_error "*unit must divide block*" {told 8 {{f@ FULL 16 32 0 0}}}
    assert_error "*window must be above 1*" {told 8 {{f@ WINDOW 16 16 0 0}}}
    # from boundary to boundary, and so in one look-up
    assert_equal 0 [lindex [r prefix.len 1 1 aa UNIT 1 ALIGN 16384 KVGROUPS 1 f@ FULL 1 1 0 0] 0]
    set wide "*ALIGN must be at most 16384 parts, of all KV groups together*"
    assert_error $wide {r prefix.len 1 1 aa UNIT 1 ALIGN 16385 KVGROUPS 1 f@ FULL 1 1 0 0}
    assert_error $wide \
        {r prefix.len 1 1 aa UNIT 1 ALIGN 8193 KVGROUPS 2 f@ FULL 1 1 0 0 g@ FULL 1 1 0 0}
    assert_error "*1 to 1024 KV groups*" {r prefix.len 1 1 aa UNIT 16 ALIGN 16 KVGROUPS 0 f@ FULL 1}
}

test {it is what PREFIXLEN says, whatever there is} {
    expr {srand(7)}
    set hits 0
    for {set round 0} {$round < 60} {incr round} {
        r flushall
        set groups {}
        foreach group [list $full $window $state $draft $inside] {
            if {rand() < 0.6} {lappend groups $group}
        }
        if {$groups eq {}} continue
        foreach group $groups {
            for {set i 0} {$i < 12} {incr i} {
                if {rand() < 0.9} {put [lindex $group 0] $i 100}
            }
        }
        set n [expr {1 + int(rand() * 12)}]
        lassign [r prefixlen {*}[request $n $groups]] tokens parts
        set bytes 0
        foreach part $parts {incr bytes [expr {100 * ([lindex $part 1] + ([lindex $part 2] > 0))}]}
        set got [told $n $groups]
        assert_equal $tokens [lindex $got 0] "$n $groups"
        foreach run [lrange $got 2 end] {incr bytes -[lindex $run 6]}
        assert_equal 0 $bytes "bytes of $n $groups"
        incr hits [expr {$tokens > 0}]
    }
    assert {$hits > 10}
}

test {as far as 16384 parts reach} {
    r flushall
    for {set i 0} {$i < 1100} {incr i} {r set f@[format %04x $i] v}
    set groups [lrepeat 16 $full]
    assert_equal 17600 [lindex [r prefixlen {*}[request 1100 $groups]] 0]
    # in the books themselves, so in no place
    assert_equal {16384 {FULL 0 16384 0 {} {} 16384}} [lreplace [told 1100 $groups] 1 1]
}

test {of a block that does not end there no more is looked at either} {
    for {set i 0} {$i < 9000} {incr i} {lappend hashes [format %04x $i]}
    set groups [concat {*}[lrepeat 2 {o@ FULL 1048576 1 0 0}]]
    lassign [r prefix.len 1 9000 {*}$hashes UNIT 1 ALIGN 1 KVGROUPS 2 {*}$groups] tokens made
    assert_equal {0 8192} [list $tokens $made]
}

# What is left of four prefixes of one block when half of them go, after that was done with one.
proc left_after {script} {
    r flushall
    foreach name {a@ b@ c@ d@} {put $name 0}
    uplevel #0 $script
    r evict ratio 0.5
    return [lsort [lmap name {a@ b@ c@ d@} {expr {[r exists ${name}0000] ? $name : [continue]}}]]
}
test {who asks this way uses nothing} {
    r config set ssd-offload none
    set hits [list [info_field keyspace_hits] [info_field keyspace_misses]]
    assert_equal {c@ d@} [left_after {told 2 {{a@ FULL 16 16 0 0}}}]
    assert_equal $hits [list [info_field keyspace_hits] [info_field keyspace_misses]]
    assert_equal {a@ d@} [left_after {
        r prefixlen 1 a@0000 LEASE 1
        after 20
    }]
}

finish
