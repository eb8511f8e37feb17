# What the pool has of a prompt, in CONDUCTOR.ROUTE and MATCH: blocks by hashes of tarn.chain, under
# two KV groups' names as TarnConnector has them; it is what PREFIXLEN says, at any moment.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]

# By itself: the package would load libtarn.
set python [file join [file dirname [info script]] .. .. utils python tarn]
up a --loadmodule conductor.so --pool-size 32mb --eviction-high-watermark 1 --appendonly yes
set host [info hostname]

set hash {
import sys
sys.path.insert(0, sys.argv[3])
from chain import Chain
first, blocks = int(sys.argv[1]), int(sys.argv[2])
for h in Chain(16, revision="").extend(range(first, first + 16 * blocks)):
    print("{%s}%s" % (h.hex()[:4], h.hex()[4:]))
}
set full m@bfloat16.full-1f@tp1.0@pp1.0@pcp1.0@dcp1.0@kv0@
set window m@bfloat16.window-2e@tp1.0@pp1.0@pcp1.0@dcp1.0@kv1@
proc put {key size} {
    set put [ask a putstart $key $size]
    assert_equal OK [ask a putend $key [lindex $put 0] -1]
}
# Puts the blocks of tokens FIRST, FIRST + 1, ..., those of windows from the third on; their hashes.
proc fill {first blocks} {
    set hashes [split [exec /usr/bin/python3 -B -c $::hash $first $blocks $::python]]
    foreach hash $hashes {put $::full$hash 1000}
    foreach hash [lrange $hashes 2 end] {put $::window$hash 200}
    return $hashes
}
proc blob {first n} {
    set tokens {}
    for {set i 0} {$i < $n} {incr i} {lappend tokens [expr {$first + $i}]}
    return [binary format i* $tokens]
}
# Of the groups and their names, as KVGROUPS has them.
proc groups {} {return [list 2 $::full FULL 16 16 0 0 $::window WINDOW 16 16 33 0]}
proc prefixlen {hashes} {
    set n [llength $hashes]
    return [lindex [ask a prefixlen $n {*}$hashes UNIT 16 ALIGN 16 KVGROUPS {*}[groups]] 0]
}
proc route {name first n} {
    set reply [ask $name conductor.route q MODEL m TOKENS [blob $first $n]]
    ask $name conductor.done q
    return $reply
}
proc pool_of {name first n} {
    foreach engine [ask $name conductor.match MODEL m TOKENS [blob $first $n]] {
        if {[dict get $engine id] eq "e1"} {return [dict get $engine pool]}
    }
    return 0
}
proc figure {name} {return [dict get [info_of a conductor] $name]}
proc info_of {name section} {
    foreach line [split [ask $name info $section] "\r\n"] {
        if {[regexp {^([^:#]+):(.*)$} $line -> field value]} {dict set all $field $value}
    }
    return $all
}

set hashes [fill 0 20]
ask a conductor.add e1 http://e1 MODEL m BLOCK 16 HOST $host
ask a conductor.add e2 http://e2 MODEL m BLOCK 16 HOST $host

test {nobody has said what its blocks are called} {
    assert_equal 0 [lindex [route a 90000 320] 3]
    assert_equal 0 [figure conductor_pool_asked]
}

test {what is there, and where it is loaded from} {
    ask a conductor.keys e1 HASH TARN UNIT 16 ALIGN 16 KVGROUPS {*}[groups] REVISION {}
    assert_equal 320 [prefixlen $hashes]
    ask a conductor.drain e2
    set reply [route a 0 320]
    assert_equal {e1 320} [list [lindex $reply 0] [lindex $reply 3]]
    set chosen [lindex [dict get [ask a conductor.explain q] candidates] 0]
    assert_equal {320 320} [lmap f {pool-tokens load-tokens} {dict get $chosen $f}]
    ask a conductor.drain e2 CANCEL
    assert_equal 320 [pool_of a 0 400]
    assert_equal 320 [pool_of a 0 335]
    assert_equal 0 [pool_of a 1 320]
    # other blocks of the same prompt, whatever else is right
    foreach words {{} {REVISION main}} {
        ask a conductor.keys e2 HASH TARN UNIT 16 ALIGN 16 KVGROUPS {*}[groups] {*}$words
        assert_equal {e1 320} [lindex [lmap e [ask a conductor.match MODEL m TOKENS [blob 0 320]] {
            list [dict get $e id] [dict get $e pool]
        }] 0]
    }
    ask a conductor.keys e2
    assert_equal {1 1} [list [figure conductor_pool_asked] [figure conductor_pool_hits]]
    assert_equal 320 [figure route_pool_tokens]
}

test {who is near what it loads is chosen} {
    foreach {id where} [list e4 elsewhere e5 $host e6 {}] {
        ask a conductor.add $id http://$id MODEL m BLOCK 16 {*}[expr {
            $where eq "" ? "" : [list HOST $where]
        }]
        ask a conductor.keys $id HASH TARN UNIT 16 ALIGN 16 KVGROUPS {*}[groups] REVISION {}
    }
    foreach id {e1 e2} {ask a conductor.drain $id}
    assert_equal {e5 320} [lmap at {0 3} {lindex [route a 0 336] $at}]
    foreach id {e4 e5 e6} {ask a conductor.remove $id}
    foreach id {e1 e2} {ask a conductor.drain $id CANCEL}
}

test {never more than there is: blocks that go, one by one, at random} {
    expr {srand(5)}
    foreach i {19 18 7 12 3 9} {
        set group [expr {rand() < 0.5 ? $::full : $::window}]
        ask a del $group[lindex $hashes $i]
        set now [prefixlen $hashes]
        assert_equal $now [pool_of a 0 320] "without $i of $group"
        assert_equal 0 [expr {[lindex [route a 0 320] 3] > $now}]
    }
    ask a evict ratio 1
    assert_equal {0 0} [list [prefixlen $hashes] [pool_of a 0 320]]
}

test {a look is no use: what was asked for goes as if it had not been} {
    set old [fill 1000 5]
    set new [fill 2000 5]
    for {set i 0} {$i < 5} {incr i} {route a 1000 80}
    ask a evict ratio 0.5
    assert_equal 80 [prefixlen $new]
    assert {[prefixlen $old] < 80}
}

test {a replica, and an engine that goes} {
    set hashes [fill 5000 8]
    up b --loadmodule conductor.so --pool-size 0
    follow b a
    wait_link b
    wait_for "what b knows" {![catch {pool_of b 5000 128} got] && $got == 128}
    assert_equal [dict get [ask a conductor.info e1] keys] [dict get [ask b conductor.info e1] keys]
    ask a del $full[lindex $hashes 4]
    wait_for "the same at b" {[pool_of b 5000 128] == [pool_of a 5000 128]}
    assert_equal [prefixlen $hashes] [pool_of a 5000 128]
    ask a conductor.remove e1
    wait_for "no e1 at b" {[catch {ask b conductor.info e1}]}
    ask a conductor.add e1 http://e1 MODEL m BLOCK 16 HOST $host
    assert_equal {} [dict get [ask a conductor.info e1] keys]
    assert_equal 0 [pool_of a 5000 128]
}

test {more than one look-up can be is told at once} {
    assert_error "*KVGROUPS: ALIGN must be at most 16384 parts*" {
        ask a conductor.keys e1 HASH TARN UNIT 1 ALIGN 8193 \
            KVGROUPS 2 f@ FULL 1 1 0 0 g@ FULL 1 1 0 0
    }
}

test {DOCTOR: a pool nobody writes to} {
    ask a conductor.keys e1 HASH SGLANG UNIT 16 ALIGN 16 KVGROUPS 1 none@ FULL 16 16 0 0
    ask a conductor.add e3 http://e3 MODEL n BLOCK 16
    ask a conductor.keys e3 HASH SGLANG UNIT 16 ALIGN 16 KVGROUPS 1 none@ FULL 16 16 0 0
    for {set i 0} {$i < 20} {incr i} {
        ask a conductor.route q MODEL n TOKENS [blob 0 64]
        ask a conductor.done q
    }
    assert_match "*None of 20 prompts for model n had a beginning in the pool*none@*" \
        [ask a conductor.doctor]
}

finish
