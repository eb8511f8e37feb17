# Disks that are full, damaged, in use or gone; large values there; several ends at once.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --max-lease 1s --node-heartbeat 100 \
    --cluster-id 00112233445566778899aabbccddeeff
set has_cli [expr {[auto_execok redis-cli] ne ""}]
set disk [file join [server dir] disk]
file mkdir $disk

proc on_disk {n} {return [segment_field $n.ssd replicas]}
proc wait_on_disk {node n} {
    set ::awaited [list $node $n]
    wait_for "$n objects on the disk of $node" {[on_disk [lindex $::awaited 0]] ==\
        [lindex $::awaited 1]}
}
# 0: not told yet.
proc stat {node field} {
    set stats [node_field $node stats]
    return [expr {[dict exists $stats $field] ? [dict get $stats $field] : 0}]
}

# A small file system of its own under dir, in a namespace that goes with its process; its pid.
proc small_fs {dir bytes} {
    foreach tool {unshare nsenter mount} {if {[auto_execok $tool] eq ""} {skip "there is no $tool"}}
    set pid [start_process [list unshare -m sh -c "mount -t tmpfs -o size=$bytes tmpfs $dir && \
        touch $dir/ready && exec sleep 100000"] /dev/null]
    set ::small [list $pid $dir]
    wait_for "a small file system" {[process_state [lindex $::small 0]] eq "gone" ||
        ![catch {exec nsenter -t [lindex $::small 0] -m test -e [lindex $::small 1]/ready}]}
    if {[process_state $pid] eq "gone"} {skip "mounting is not permitted here"}
    return $pid
}

test {a file system smaller than the tier: the node says so, or serves what fits; nothing else\
        suffers} {
    set dir [file join [server dir] tiny]
    file mkdir $dir
    set fs [small_fs $dir 20m]
    set prefix [list nsenter -t $fs -m]
    set started [catch {start_node full --host-name mf --segment 32mb --ssd $dir:64mb} message]
    set prefix {}
    if {$started} {
        # It reserves its space at the start.
        assert_match "*$dir*" $message
        assert_match {*[Nn]o space*} $message
    } else {
        set a [kv --prefer full.0 load x: 40 900000]
        assert_equal 0 [dict get $a errors] $a
        set a [kv verify x: 40 900000]
        assert_equal "0 0" [kv_fields $a errors wrong] $a
    }
    dict unset ::node_table full
}

test {a file tier on a full file system: copies fail, values stay, all is served} {
    set dir [file join [server dir] smallfiles]
    file mkdir $dir
    set fs [small_fs $dir 8m]
    set prefix [list nsenter -t $fs -m]
    start_node files --host-name mf --segment 32mb --file $dir:64mb
    set prefix {}
    set a [kv --prefer files.0 load y: 20 900000]
    assert_equal "20 0" [kv_fields $a ok errors] $a
    wait_for "failures" {[stat files file-store-failures] > 0}
    set a [kv verify y: 20 900000]
    assert_equal "20 0 0" [kv_fields $a ok misses errors] $a
    r flushall
    r node leave files
    assert_equal 0 [reap_node files]
    dict unset ::node_table files
}

start_node n1 --host-name m1 --segment 64mb --ssd $disk:256mb

test {a disk is used by one node at a time} {
    launch_node n2 --host-name m2 --segment 8mb --ssd $disk:256mb
    assert_equal 1 [reap_node n2]
    assert_match "*$disk*in use by another process (pid [node n1 pid])*" \
        [file_text [node n2 dir]/stdout]
    launch_node n2 --host-name m2 --segment 8mb --ssd /nowhere/at/all:64mb
    assert_equal 1 [reap_node n2]
    assert_match "*/nowhere/at/all*" [file_text [node n2 dir]/stdout][file_text [node n2 log]]
    launch_node n2 --host-name m2 --segment 8mb --ssd $disk/none:1mb
    assert_equal 1 [reap_node n2]
    # A path that nobody made is a typing error, or a disk that is not mounted.
    set typed [temp_dir]/tarm
    foreach {option kind} {--ssd "directory, device or file" --file directory} {
        launch_node n2 --host-name m2 --segment 8mb $option $typed:64mb,
        assert_equal 1 [reap_node n2]
        assert_match "*$typed*: there is no $kind of that name; *$option PATH:SIZE,create *" \
            [file_text [node n2 dir]/stdout]
        assert {![file exists $typed]}
    }
    launch_node n2 --host-name m2 --segment 8mb --file /proc/version:64mb
    assert_equal 1 [reap_node n2]
    dict unset ::node_table n2
}

test {large values are written to disk, read in ranges, and by redis-cli} {
    set a [kv load big: 2 25000000-30000000]
    assert_equal "2 0" [kv_fields $a ok errors] $a
    wait_on_disk n1 2
    r evict ratio 1
    assert_equal 0 [segment_field n1.0 replicas]
    set whole [kv_value big:0]
    assert_equal [r strlen big:0] [string length $whole]
    foreach {offset want} {0 1 1048575 2 20000000 3000000 24999999 1} {
        assert_equal [string range $whole $offset [expr {$offset + $want - 1}]] \
            [kv_value big:0 --offset $offset --want $want] "($offset)"
    }
    assert_equal [string range $whole 7000000 7000099] [r getrange big:0 7000000 7000099]
    kv_all 2 verify big: 2 25000000-30000000
    if {$has_cli} {
        exec redis-cli -p [server port] --no-raw get big:1 > /dev/null
        exec redis-cli -p [server port] get big:1 > [server dir]/big
        assert_equal [expr {[r strlen big:1] + 1}] [file size [server dir]/big]
    }
    r flushall
}

test {an APPEND to a value that is only on disk} {
    r set app [string repeat a 300000]
    wait_on_disk n1 1
    r evict ratio 1
    assert_equal 300003 [r append app xyz]
    assert_equal aaxyz [r getrange app 299998 -1]
    wait_on_disk n1 1
    r evict ratio 1
    assert_equal [string repeat a 300000]xyz [r get app]
    assert_equal 1 [r del app]
    wait_on_disk n1 0
}

test {the node and the master are killed at the same moment} {
    kv load both: 60 1000-300000
    wait_on_disk n1 60
    # What was written last may be a little behind on a disk; nothing is half there.
    kill_node n1
    restart_server
    restart_node n1
    wait_for "all to be offered" {[r dbsize] == 60}
    kv_all 60 verify both: 60 1000-300000
    # Known under new versions now: once more.
    kill_node n1
    restart_server
    restart_node n1
    wait_for "all to be offered again" {[r dbsize] == 60}
    kv_all 60 verify both: 60 1000-300000
    assert_equal 0 [stat n1 ssd-damaged]
}

test {values that were put while the disk was away replace what it brings} {
    kill_node n1
    restart_server
    r set both:1 small
    start_node m0 --host-name m0 --segment 32mb
    kv --seed 5 --prefer m0.0 --from 2 load both: 1 1000-300000
    restart_node n1
    wait_for "all to be offered" {[r dbsize] == 60}
    assert_equal small [r get both:1]
    kv_all 1 --seed 5 --from 2 verify both: 1 1000-300000
    kv_all 57 --from 3 verify both: 57 1000-300000
    stop_node m0
    r flushall
    wait_on_disk n1 0
}

test {a TTL is kept: such values do not go to disk} {
    r set t [string repeat t 10000] px 3600000
    r set u [string repeat u 10000]
    wait_on_disk n1 1
    assert_equal {memory ssd} [lmap replica [r replica list u] {dict get $replica tier}]
    assert_equal memory [lmap replica [r replica list t] {dict get $replica tier}]
    r flushall
    wait_on_disk n1 0
}

stop_node n1
wait_node n1 down
r node leave n1

test {a disk that is too small for all: the oldest goes, what is there is right} {
    start_node s --host-name ms --segment 8mb --ssd [server dir]/small.ssd:32mb
    for {set i 0} {$i < 100 && [stat s ssd-evicted] == 0} {incr i 5} {
        set a [kv --prefer s.0 --from $i load e: 5 800000]
        assert_equal 0 [dict get $a errors] $a
        wait_for "the queue" {([info_field offload_waiting] == 0 && [info_field tasks] == 0) || \
            [stat s ssd-evicted] > 0}
    }
    assert {[stat s ssd-evicted] > 0}
    set n $i
    set a [kv verify e: $n 800000]
    assert_equal "0 0" [kv_fields $a errors wrong] $a
    assert_range 10 [dict get $a ok] [expr {$n - 1}]
    kill_node s
    restart_node s
    set a [kv verify e: $n 800000]
    assert_equal "0 0" [kv_fields $a errors wrong] $a
    assert_range 5 [dict get $a ok] [expr {$n - 1}]
    r flushall
}

test {a segment of disk is unmounted: what is only there is a miss, memory goes on} {
    kv --prefer s.0 load m: 5 100000
    wait_on_disk s 5
    kv --prefer s.0 load only: 3 100000
    wait_on_disk s 8
    assert_equal OK [r segment unmount s.ssd]
    assert_equal {s.0} [node_field s segment-names]
    kv_all 5 verify m: 5 100000
    stop_node s
    restart_node s
    assert_equal 2 [node_field s segments]
    r flushall
}

test {damage in the middle of a file of the file tier is a miss} {
    set dir [file join [server dir] shared]
    file mkdir $dir
    start_node f --host-name mf --segment 16mb --file $dir:64mb
    kv --prefer f.0 load d: 4 300000
    wait_for "four files" {[segment_field f.file replicas] == 4}
    r evict ratio 1
    set path [lindex [lindex [r getreplicas d:1] 4] 0 1 0 0]
    set file [open $path r+b]
    seek $file 150000
    puts -nonewline $file XXXXXXXX
    close $file
    # Cut short, and replaced by something else of the same size.
    set path [lindex [lindex [r getreplicas d:2] 4] 0 1 0 0]
    set file [open $path r+b]
    chan truncate $file 1000
    close $file
    set a [kv verify d: 4 300000]
    assert_equal "2 0" [kv_fields $a ok wrong] $a
    assert_error "*" {set v [r get d:1]; if {$v eq "(nil)"} {error miss}}
    wait_for "both to be gone" {[r exists d:1 d:2] == 0}
    assert_equal 2 [r exists d:0 d:3]
    kv load d: 4 300000
    kv_all 4 verify d: 4 300000
}

finish
