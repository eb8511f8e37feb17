# What memory cannot keep, the disk does: nothing leaves memory before its copy is made, and puts
# come no faster than that.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --max-lease 2s --node-heartbeat 100 \
    --cluster-id 00112233445566778899aabbccddeeff

set disk [file join [server dir] disk]
file mkdir $disk
start_node n1 --host-name m1 --segment 64mb --ssd $disk:2gb

proc leading {prefix n} {
    set keys {}
    for {set i 0} {$i < $n} {incr i} {lappend keys $prefix$i}
    return [r prefixlen $n {*}$keys]
}

test {guarantee 2: three prompts, twice as large as memory, are all there} {
    foreach prompt {a: b: c:} {kv_all 50 --batch 50 load $prompt 50 1048576}
    assert_equal {50 50 50} [list [leading a: 50] [leading b: 50] [leading c: 50]]
    foreach prompt {a: b: c:} {kv_all 50 verify $prompt 50 1048576}
    assert_equal 0 [info_field evicted_before_copy]
    wait_for "nothing to wait for a disk" {[info_field offload_waiting] == 0}
    assert_equal "150 0" [list [r dbsize] [info_field awaiting_bytes]]
}

test {guarantee 2: so is what Redis clients set, one value after the other} {
    r flushall
    for {set i 0} {$i < 120} {incr i} {
        assert_equal OK [r set s:$i [string repeat [format %08d $i] 131072]]
    }
    for {set i 0} {$i < 120} {incr i} {
        assert_equal 1048576 [r strlen s:$i]
        if {$i % 10 == 0} {assert_equal [string repeat [format %08d $i] 131072] [r get s:$i]}
    }
    assert_equal 0 [info_field evicted_before_copy]
}

test {with offload-wait 0, and without a disk, nobody waits} {
    r flushall
    r config set offload-wait 0
    foreach prompt {a: b: c:} {kv_all 50 --batch 50 load $prompt 50 1048576}
    assert_equal 50 [leading c: 50]
    r config set offload-wait 5s
    r flushall
    r config set ssd-offload none
    set delayed [info_field put_delayed]
    foreach prompt {a: b: c:} {kv_all 50 --batch 50 load $prompt 50 1048576}
    assert_equal "0 $delayed" [list [info_field awaiting_objects] [info_field put_delayed]]
    r config set ssd-offload all
    r flushall
}

test {guarantee 2: a disk that is full loses tails of prompts, and puts go on} {
    set small [file join [server dir] small]
    file mkdir $small
    stop_node n1
    start_node n2 --host-name m1 --segment 32mb --ssd $small:128mb
    for {set p 0} {$p < 12} {incr p} {kv_all 24 --batch 24 load p$p: 24 1048576}
    assert_equal 24 [leading p11: 24]
    set heads 0
    for {set p 0} {$p < 12} {incr p} {incr heads [leading p$p: 24]}
    set behind_gaps [expr {[r dbsize] - $heads}]
    assert {$behind_gaps * 4 < $heads} "$heads leading, $behind_gaps behind gaps"
}

finish
