# What memory cannot keep, the disk does: nothing leaves memory before its copy is made, and puts come no faster than that.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --max-lease 2s --node-heartbeat 100 --cluster-id 00112233445566778899aabbccddeeff

set disk [file join [server dir] disk]
file mkdir $disk
start_node n1 --host-name m1 --segment 64mb --ssd $disk:2gb

proc leading {prefix n} {
    set keys {}
    for {set i 0} {$i < $n} {incr i} {lappend keys $prefix$i}
    return [r prefixlen $n {*}$keys]
}

test {guarantee 2: three prompts, twice as large as memory, are all there} {
    foreach prompt {a: b: c:} {kv_all 50 load $prompt 50 1048576}
    assert_equal {50 50 50} [list [leading a: 50] [leading b: 50] [leading c: 50]]
    foreach prompt {a: b: c:} {kv_all 50 verify $prompt 50 1048576}
    assert_equal 0 [info_field evicted_before_copy]
    wait_for "nothing to wait for a disk" {[info_field offload_waiting] == 0}
    assert_equal "150 0" [list [r dbsize] [info_field awaiting_bytes]]
}

finish
