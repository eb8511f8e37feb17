# Copies of objects on disks: written behind, read when memory has let go, found again after any
# kind of end.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --max-lease 2s --node-heartbeat 100 --eviction-policy lru \
    --cluster-id 00112233445566778899aabbccddeeff

set disk [file join [server dir] disk]
file mkdir $disk
start_node n1 --host-name m1 --segment 16mb --ssd $disk:256mb

proc on_disk {} {return [segment_field n1.ssd replicas]}
proc wait_on_disk {n} {
    wait_for "$n objects on the disk" {[on_disk] == $::awaited} [set ::awaited $n]
}
proc tiers {key} {
    set out {}
    foreach replica [lindex [r getreplicas $key] 4] {lappend out [lindex $replica 0]}
    return $out
}
proc forget_memory {} {
    r evict ratio 1
    assert_equal 0 [segment_field n1.0 replicas]
}

test {what is put is soon on the disk, too; memory comes first} {
    kv_all 40 load a: 40 1000-200000
    wait_on_disk 40
    assert_equal {memory ssd} [tiers a:1]
    assert_equal 40 [info_field far_replicas]
    assert_equal 0 [info_field far_objects]
}

test {eviction takes it from memory only} {
    forget_memory
    assert_equal 40 [r dbsize]
    assert_equal {ssd} [tiers a:1]
    assert_equal 40 [info_field far_objects]
    kv_all 40 verify a: 40 1000-200000
    # Any Redis client reads it just so.
    assert_equal [r strlen a:3] [string length [r get a:3]]
}

test {ten times as much as memory holds is there} {
    # No faster than the disk: what is evicted before it was copied is gone, nobody waits for it.
    for {set i 0} {$i < 200} {incr i 10} {
        kv_all 10 --from $i load big: 10 800000
        wait_on_disk [expr {50 + $i}]
    }
    kv_all 200 verify big: 200 800000
    assert {[info_field far_objects] > 150}
    r flushall
    wait_on_disk 0
}

test {the second read brings it back to memory} {
    kv_all 1 load p: 1 100000
    wait_on_disk 1
    forget_memory
    r getreplicas p:0 lease 1000
    assert_equal ssd [tiers p:0]
    r getreplicas p:0 lease 1000
    wait_for "p:0 in memory" {[tiers p:0] eq {memory ssd}}
    kv_all 1 verify p: 1 100000
    assert_match {*reason use*} [lindex [r replica tasks] 0]
    r flushall
}

# What a node killed before it has noted a removal had is back: so keys are counted, not objects.
proc are_on_disk {prefix n} {
    for {set i 0} {$i < $n} {incr i} {
        if {"ssd" ni [tiers $prefix$i]} {return 0}
    }
    return 1
}
proc wait_each_on_disk {prefix n} {
    wait_for "$prefix on the disk" {[are_on_disk {*}$::awaited]} [set ::awaited [list $prefix $n]]
}
# The node's figures begin anew, and its memory is empty.
proc begin_anew {} {
    kill_node n1
    restart_node n1
}
proc node_figure {name} { ;# none before its first report
    set stats [node_field n1 stats]
    return [expr {[dict exists $stats $name] ? [dict get $stats $name] : 0}]
}
proc read_again {prefix n} {
    for {set i 0} {$i < $n} {incr i} {r getreplicas $prefix$i lease 1000}
}
# The node has forgotten all of it. Its notes about that are on the disk before what is put next is.
proc flush_at_node {} {
    wait_for "the node's figures" {[on_disk] > 0 && [node_figure ssd-entries] == [on_disk]}
    r flushall
    wait_for "the node to know" {[node_figure ssd-entries] == 0}
    assert_equal 0 [on_disk]
}

test {what was just read is not read from the disk again to be in memory} {
    kv_all 8 load j: 8 200000
    wait_each_on_disk j: 8
    begin_anew
    kv_all 8 --transport tcp verify j: 8 200000
    read_again j: 8
    wait_for "all of them in memory" {[segment_field n1.0 replicas] == 8}
    wait_for "8 reads of who asked, 8 of the node" {[node_figure staged-reads] == 16}
    assert_equal {8 8} [list [node_figure ssd-reads] [node_figure staging-shared]]
    # To itself it needs no connection.
    assert_equal 8 [node_figure reads]
    kv_all 8 --transport tcp verify j: 8 200000
}

test {guarantee 1: what was just read has another value by now} {
    kv_all 8 load o: 8 200000
    wait_each_on_disk o: 8
    begin_anew
    kv_all 8 --transport tcp verify o: 8 200000
    kv_all 4 --replace --seed 2 load o: 4 200000
    r del o:6 o:7
    wait_each_on_disk o: 6
    forget_memory
    read_again o: 6
    kv_all 4 --seed 2 --transport tcp verify o: 4 200000
    kv_all 2 --from 4 --transport tcp verify o: 2 200000
    wait_for "six in memory" {[segment_field n1.0 replicas] == 6}
    kv_all 4 --seed 2 verify o: 4 200000
    kv_all 2 --from 4 verify o: 2 200000
    assert_equal {2 2} [kv_fields [kv --from 6 verify o: 2 200000] keys misses]
}

test {guarantee 1: bytes that are not right are read again, and not brought to memory} {
    kv_all 1 load w: 1 200000
    wait_each_on_disk w: 1
    foreach replica [lindex [r getreplicas w:0] 4] {
        if {[lindex $replica 0] eq "ssd"} {set at [lindex $replica 1 0 2]}
    }
    kill_node n1
    set f [open [file join $disk tarn.ssd] r+b]
    seek $f [expr {$at + 150000}]
    puts -nonewline $f bad
    close $f
    restart_node n1
    read_again w: 1
    read_again w: 1
    set a [kv --transport tcp verify w: 1 200000]
    assert_equal {0 0} [kv_fields $a ok wrong]
    wait_for "it is gone" {[r exists w:0] == 0}
    assert_equal 0 [segment_field n1.0 replicas]
    kv_all 1 load w: 1 200000
    kv_all 1 verify w: 1 200000
    r flushall
    wait_on_disk 0
}

test {guarantee 1: values that are replaced and removed on their way back to memory} {
    for {set round 1} {$round <= 4} {incr round} {
        kv_all 24 --seed 1 load m: 24 20000
        wait_each_on_disk m: 24
        forget_memory
        read_again m: 24
        read_again m: 24
        kv_all 8 --replace --seed 2 load m: 8 20000
        for {set i 8} {$i < 16} {incr i} {r del m:$i}
        kv_all 8 --seed 2 verify m: 8 20000
        wait_for "no promotion to be under way" {[info_field promote_waiting] == 0}
        kv_all 8 --seed 2 verify m: 8 20000
        assert_equal {8 8 0} [kv_fields [kv --from 8 verify m: 8 20000] keys misses wrong]
        kv_all 8 --seed 1 --from 16 verify m: 8 20000
        r flushall
        wait_on_disk 0
    }
}

test {a node that stops, and one that is killed, in the middle of promotions} {
    foreach end {stop_node kill_node} {
        kv_all 24 load h: 24 20000
        wait_each_on_disk h: 24
        forget_memory
        read_again h: 24
        read_again h: 24
        $end n1
        restart_node n1
        wait_each_on_disk h: 24
        kv_all 24 verify h: 24 20000
        read_again h: 24
        wait_for "all of them in memory" {[segment_field n1.0 replicas] == 24}
        kv_all 24 verify h: 24 20000
        r flushall
        wait_on_disk 0
    }
}

test {a disk that fails: nothing of it comes to memory, and the node goes on} {
    kv_all 6 load f: 6 200000
    wait_each_on_disk f: 6
    begin_anew
    set file [file join $disk tarn.ssd]
    set size [file size $file]
    exec truncate -s 65536 $file
    read_again f: 6
    read_again f: 6
    wait_for "promotions to fail" {[node_figure staged-failures] > 0 &&
        [node_figure copies-failed] > 0}
    assert_equal 0 [segment_field n1.0 replicas]
    set a [kv --transport tcp verify f: 6 200000]
    assert_equal {0 0} [kv_fields $a ok wrong]
    assert_equal 0 [segment_field n1.0 replicas]
    exec truncate -s $size $file
    begin_anew
    r flushall
    kv_all 6 load f: 6 200000
    wait_each_on_disk f: 6
    forget_memory
    kv_all 6 verify f: 6 200000
    r flushall
    wait_on_disk 0
}

test {a prefix that is about to be read is fetched ahead} {
    kv_all 8 load x: 8 100000
    wait_on_disk 8
    forget_memory
    set keys {}
    for {set i 0} {$i < 8} {incr i} {lappend keys x:$i}
    assert_equal 8 [r prefixlen 8 {*}$keys]
    assert_equal ssd [tiers x:7] "(a look-up without a lease is only a look)"
    assert_equal 8 [r prefixlen 8 {*}$keys lease 2000]
    wait_for "all of them in memory" {[segment_field n1.0 replicas] == 8}
    kv_all 8 verify x: 8 100000
    r flushall
}

test {ssd-offload none and second-hit} {
    r config set ssd-offload none
    kv_all 5 load none: 5 10000
    r config set ssd-offload second-hit
    kv_all 5 load hit: 5 10000
    foreach i {1 2} {kv_all 2 verify hit: 2 10000}
    wait_on_disk 2
    assert_equal {memory ssd} [tiers hit:0]
    assert_equal memory [tiers hit:4]
    assert_equal memory [tiers none:1]
    r config set ssd-offload all
    flush_at_node
}

test {after kill -9 of the node all of it is found again; its memory is not} {
    kv_all 60 load k: 60 1000-300000
    wait_on_disk 60
    set epoch [segment_field n1.ssd epoch]
    kill_node n1
    wait_node n1 down
    assert_equal "0 60 0" [kv_fields [kv verify k: 60 1000-300000] ok misses errors]
    restart_node n1
    assert_equal $epoch [segment_field n1.ssd epoch] "(the same content)"
    kv_all 60 verify k: 60 1000-300000
}

test {kill -9 in the middle of writing: what the books know is whole} {
    for {set round 0} {$round < 4} {incr round} {
        set run [kv_start --fill --replace run w: 80 1000-400000]
        wait_for "writing" {[segment_field n1.ssd replicas] > 62 + $::round}
        kill_node n1
        dict get [kv_stop $run] ok
        wait_node n1 down
        restart_node n1
        set a [kv verify k: 60 1000-300000]
        assert_equal "60 0 0" [kv_fields $a ok errors wrong] $a
        assert_equal 0 [dict get [kv verify w: 80 1000-400000] wrong]
    }
    r removematch glob w:*
}

test {a master that starts anew gets it offered, and what was removed does not come back} {
    wait_for "removals on the disk" {[info_field drops_waiting] == 0}
    assert_equal 1 [r del k:7]
    wait_for "the node to know" {[dict get [node_field n1 stats] ssd-entries] == 59}
    restart_server
    wait_for "the node at the new master" {[node_state n1] eq "up"}
    wait_for "59 objects ([r dbsize])" {[r dbsize] == 59}
    assert_equal 0 [r exists k:7]
    set a [kv verify k: 60 1000-300000]
    assert_equal "59 1 0 0" [kv_fields $a ok misses errors wrong] $a
    assert_equal 59 [info_field far_offered]
}

test {of a flushed pool only what was put later comes back} {
    flush_at_node
    kv_all 1 load later: 1 1000
    wait_on_disk 1
    kill_node n1
    restart_server
    restart_node n1
    wait_for "what was put later" {[r exists later:0] == 1}
    kv_all 1 verify later: 1 1000
    assert_equal 1 [r dbsize]
    r flushall
}

test {guarantee 1: damage on the disk makes misses, never wrong bytes, whatever the reader asked\
        for} {
    kv_all 50 load d: 50 100000
    wait_on_disk 50
    kill_node n1
    # Stripes of nonsense.
    set f [open [file join $disk tarn.ssd] r+b]
    for {set at 3000000} {$at < 268000000} {incr at 300000} {
        seek $f $at
        puts -nonewline $f [string repeat Z 9000]
    }
    close $f
    restart_node n1
    set a [kv --no-verify verify d: 50 100000]
    assert_equal 0 [dict get $a wrong] $a
    assert {[dict get $a ok] > 0 && [dict get $a ok] < 50} $a
    # What was found bad is gone, and may be put again. (Notes of removals may be among the damage:
    # others may be back.)
    wait_for "bad ones gone" {[llength [r keys d:*]] < 50}
    set a [kv load d: 50 100000]
    assert_equal 0 [dict get $a errors] $a
    r flushall
}

test {a disk that is not ours is refused with a message} {
    stop_node n1
    set f [open [file join $disk tarn.ssd] r+b]
    puts -nonewline $f [string repeat "not a disk of tarn" 1000]
    close $f
    launch_node n1
    assert_equal 1 [reap_node n1]
    assert_match "*tarn.ssd*" [file_text [node n1 dir]/stdout][file_text [node n1 log]]
    file delete [file join $disk tarn.ssd]
    restart_node n1
    kv_all 3 load again: 3 10000
}

set shared [file join [server dir] shared]
file mkdir $shared
start_node f1 --host-name m2 --segment 8mb --file $shared:64mb

test {the file tier: every client reads by itself, also when the node is gone} {
    r config set placement-strategy random
    kv_all 20 --prefer f1.0 load f: 20 1000-100000
    wait_for "20 files" {[segment_field f1.file replicas] == 20}
    assert_equal {memory file} [tiers f:1]
    set path [lindex [lindex [r getreplicas f:1] 4] 1 1 0 0]
    assert_match "$shared/00112233445566778899aabbccddeeff/??/??/*" $path
    assert {[file size $path] >= [r strlen f:1]}
    kill_node f1
    wait_node f1 down
    assert_equal file [tiers f:1]
    kv_all 20 verify f: 20 1000-100000
    assert_equal [r strlen f:1] [string length [r get f:1]]
    file delete $path
    set a [kv verify f: 20 1000-100000]
    assert_equal "19 0" [kv_fields $a ok wrong] $a
    wait_for "the key of the lost file to be free" {[r exists f:1] == 0}
}

test {files are found again} {
    restart_node f1
    wait_for "19 files" {[segment_field f1.file replicas] == 19}
    assert_equal 19 [dict get [kv verify f: 20 1000-100000] ok]
    r flushall
    wait_for "no file left" {[llength [glob -nocomplain $shared/*/??/??/*]] == 0}
}

test {a node with a disk and a directory tells of both, whatever else it has to tell} {
    file mkdir $shared-b
    start_node b1 --host-name m3 --segment 8mb --ssd $disk-b:64mb --file $shared-b:64mb
    wait_for "the last figures of both" {
        [dict exists [node_field b1 stats] ssd-read-only] &&
        [dict exists [node_field b1 stats] file-read-only]}
    stop_node b1
}

finish
