# CONDUCTOR.ROUTE asks for what the pool has of a prompt only on disks, so that it is in memory when
# the engine reads it.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --node-heartbeat 100 --eviction-high-watermark 1 \
    --loadmodule conductor.so
set disk [file join [server dir] disk]
file mkdir $disk
start_node n1 --host-name m1 --segment 16mb --ssd $disk:64mb

set python [file join [file dirname [info script]] .. .. utils python tarn]
set hash {
import sys
sys.path.insert(0, sys.argv[1])
from chain import Chain
for h in Chain(16, revision="").extend(range(160)):
    print("{%s}%s" % (h.hex()[:4], h.hex()[4:]))
}
set hashes [split [exec /usr/bin/python3 -B -c $hash $python]]
set full m@bfloat16.full-1f@tp1.0@pp1.0@pcp1.0@dcp1.0@kv0@
set window m@bfloat16.window-2e@tp1.0@pp1.0@pcp1.0@dcp1.0@kv1@
proc tiers {key} {lmap replica [lindex [r getreplicas $key] 4] {lindex $replica 0}}
proc figure {name} {
    foreach line [split [r info conductor] "\r\n"] {
        if {[regexp "^$name:(.*)\$" $line -> value]} {return $value}
    }
    error "no figure $name"
}
proc route {} {
    set tokens {}
    for {set i 0} {$i < 161} {incr i} {lappend tokens $i}
    set reply [r conductor.route q MODEL m TOKENS [binary format i* $tokens]]
    r conductor.done q
    return [lindex $reply 3]
}

foreach h $hashes {
    r set $full$h [string repeat f 20000]
    r set $window$h [string repeat w 20000]
}
wait_for "all on the disk" {[info_field far_replicas] == 20}
r conductor.add e1 http://e1 MODEL m BLOCK 16 HOST m1
r conductor.keys e1 HASH TARN UNIT 16 ALIGN 16 KVGROUPS 2 $full FULL 16 16 0 0 \
    $window WINDOW 16 16 33 0 REVISION {}

test {what is in memory is not asked for} {
    assert_equal 160 [route]
    assert_equal {0 0} [list [figure conductor_pool_prefetched] [info_field prefetch_asked]]
}

test {what lies only on disks comes to memory: what the prefix needs, and no more} {
    r evict ratio 1
    assert_equal 20 [info_field far_objects]
    r conductor.match MODEL m TOKENS [binary format i* {0 1 2 3}]
    assert_equal 0 [info_field prefetch_asked] "(who only asks brings nothing)"
    assert_equal 160 [route]
    assert_equal 1 [figure conductor_pool_prefetched]
    wait_for "the blocks" {[info_field prefetch_waiting] == 0}
    foreach h $hashes {assert_equal {memory ssd} [tiers $full$h]}
    assert_equal {memory ssd} [tiers $window[lindex $hashes end]]
    assert_equal ssd [tiers $window[lindex $hashes 0]]
    assert_equal [info_field prefetch_asked] [info_field prefetch_brought]
    set asked [info_field prefetch_asked]
    assert_equal 160 [route]
    assert_equal "1 $asked" [list [figure conductor_pool_prefetched] [info_field prefetch_asked]]
}

finish
