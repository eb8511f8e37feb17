# Disks under a policy that knows what objects are worth: what a read brings back, and what a full
# disk lets go of.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --node-heartbeat 100 --max-lease 1s --eviction-policy chain \
    --eviction-high-watermark 1

set disk [file join [server dir] disk]
file mkdir $disk
start_node n1 --host-name m1 --segment 8mb --ssd $disk:256mb
set block 131072 ;# memory has 64 of them

proc in_memory {key} {
    expr {"memory" in [lmap replica [lindex [r getreplicas $key] 4] {lindex $replica 0}]}
}
proc keys {prompt n} {
    set out {}
    for {set i 0} {$i < $n} {incr i} {lappend out $prompt.$i}
    return $out
}
# A request: reads what is there of its prompt, puts the rest. Returns how much was there.
proc ask {prompt n} {
    set keys [keys $prompt $n]
    set hits 0
    foreach found [r mgetreplicas $n {*}$keys LEASE 1] {
        if {$found eq "(nil)"} break
        incr hits
    }
    if {$hits == $n} {return $hits}
    set rest [lrange $keys $hits end]
    set ends {}
    set puts [r mputstart [llength $rest] {*}[concat {*}[lmap key $rest {list $key $::block}]]]
    foreach key $rest put $puts {lappend ends $key [lindex $put 0] -1}
    r mputend [llength $rest] {*}$ends
    return $hits
}
# Nothing is under way, and nobody reads.
proc quiet {} {
    wait_for "copies, and leases to end" {
        [info_field awaiting_objects] == 0 && [info_field promote_waiting] == 0 && \
            [info_field leases] == 0
    }
}
# How many blocks of it memory has, which are its first ones.
proc leading {prompt n} {
    set there [lmap key [keys $prompt $n] {in_memory $key}]
    set lead [llength [lsearch -all $there 1]]
    assert_equal [lrepeat $lead 1] [lrange $there 0 $lead-1] "(a gap in $prompt: $there)"
    return $lead
}
proc forget_memory {} {
    quiet
    r evict ratio 1
    assert_equal 0 [segment_field n1.0 replicas]
}
proc policy {name} {
    set ::name $name
    wait_for "policy $name" {[catch {r config set eviction-policy $::name}] == 0}
}
# Nothing is there, and nothing was learnt.
proc begin {} {
    r flushall
    quiet
    policy lru
    policy chain
    r config resetstat
}
proc fill_memory {} {
    for {set i 0} {$i < 8} {incr i} {
        ask once$i 8
        quiet
    }
    assert_equal 64 [segment_field n1.0 replicas]
}
# Conversations of which each asks five times, among prompts that never come again: what there is to
# learn.
proc converse {} {
    for {set i 0} {$i < 20} {incr i} {
        ask talk[expr {$i / 5}] [expr {4 * ($i % 5 + 1)}]
        quiet
        ask never$i 4
        quiet
    }
}
proc evicted {} {dict get [node_field n2 stats] ssd-evicted}
proc replicas {key} {
    if {![r exists $key]} {return {}}
    return [lmap replica [r replica list $key] {dict get $replica segment}]
}
proc on_disk {prompt n} {
    llength [lsearch -all [lmap key [keys $prompt $n] {replicas $key}] *ssd*]
}
proc brought {} {
    regexp {done=(\d+)} [info_field tasks_by_use] - done
    return $done
}

test {one read brings back what is worth more than what goes for it, tails first} {
    begin
    converse
    forget_memory
    r config resetstat
    fill_memory
    assert_equal 20 [ask talk0 20]
    quiet
    assert_equal 20 [brought]
    assert_equal 20 [leading talk0 20]
    wait_for "the node to say how fast that was" {[info_field disk_read_rate] > 0}
    set left 0
    for {set i 0} {$i < 8} {incr i} {incr left [leading once$i 8]}
    assert_equal 44 $left
    assert_equal [expr {4 * 20 + 20 * 4 + 64}] [r dbsize] "(all of it is on the disk)"
}

test {what would have to be computed again does not go for what a disk has} {
    begin
    ask talk 4
    forget_memory
    r config set ssd-offload none
    foreach prompt {x y} {ask $prompt 32}
    assert_equal 64 [segment_field n1.0 replicas]
    r config set prefill-rate 1mb ;# computing takes long
    foreach read {1 2} {
        assert_equal 4 [ask talk 4]
        quiet
    }
    assert_equal {0 0} [list [brought] [leading talk 4]]
    assert_equal {32 32} [list [leading x 32] [leading y 32]]
}

test {it does where it is computed faster than it is read} {
    r config set prefill-rate 1tb
    assert_equal 4 [ask talk 4]
    quiet
    assert_equal {4 4} [list [brought] [leading talk 4]]
    r config set prefill-rate 512mb
}

# n2's disk has room for some 90 blocks.
test {a full disk lets go of what is worth least, not of what is oldest} {
    begin
    r config set ssd-offload all
    converse
    r flushall
    r node leave n1
    file mkdir $::disk-2
    start_node n2 --host-name m2 --segment 8mb --ssd $::disk-2:16mb
    foreach n {4 8 12 16 20} {
        ask talk $n
        quiet
    }
    for {set i 0} {[evicted] == 0} {incr i} {
        ask talk 20 ;# in memory: nobody reads the disk
        assert {$i < 20}
        ask once$i 8
        quiet
    }
    foreach key [keys talk 20] {assert_match *ssd* [replicas $key]}
    assert_match *cmdstat_node|weigh:* [r info commandstats]
    set gone 0
    for {set k 0} {$k < $i} {incr k} {incr gone [expr {8 - [on_disk once$k 8]}]}
    assert {$gone > 0} "(of $i prompts)"
}

finish
