# Engines that flood, lie, stand still or say nothing: each is found out, counted and named, and
# takes nothing from the others. Bad requests are in conductor_test.tcl, gaps in
# conductor_events_test.tcl.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] conductor.tcl]

up a --loadmodule {conductor.so ranks 8 index-size 2mb}
foreach id {good bad} {publisher $id}

# Of a prompt that the good one has: it is found there, and can be had.
proc good_is_well {} {
    assert_equal {160 160 160} [found a good 1]
    set reply [ask a conductor.route q MODEL m EXCLUDE bad TOKENS [tokens 1 160]]
    assert_equal {good {160 0 0}} [list [lindex $reply 0] [lindex $reply 2]]
    assert_equal OK [ask a conductor.done q]
    assert_equal 0 [stream a good partial]
    # Where it is quiet for a while, its engine is asked for what was last.
    stream_is a good state live
}

test {two engines, one of which says that it has room for billions of blocks} {
    assert_equal OK [ask a conductor.add good http://g MODEL m KVBLOCKS 1000 {*}[events good]]
    assert_equal OK [ask a conductor.add bad http://b MODEL m KVBLOCKS 4294967295 {*}[events bad]]
    say good store 1 0 10
    finds a good 1 {160 160 160}
    say bad store 2 0 10
    finds a bad 2 {160 160 160}
    good_is_well
}

test {one that floods: others are decided meanwhile, and nothing that they have is forgotten} {
    puts $::pub(bad) "flood 2000"
    set took {}
    fconfigure $::pub(bad) -blocking 0
    while {[gets $::pub(bad) line] < 0} {
        set began [clock microseconds]
        good_is_well
        lappend took [expr {[clock microseconds] - $began}]
    }
    fconfigure $::pub(bad) -blocking 1
    assert_equal ok $line
    set took [lsort -integer $took]
    puts "# four commands during the flood: n [llength $took] median\
        [lindex $took [expr {[llength $took] / 2}]] longest [lindex $took end] us"
    wait_for "what was heard of it to be forgotten" {[field a route_forgotten] > 0}
    assert {[field a route_index_bytes] <= [field a route_index_max_bytes]}
    assert_equal 2097152 [field a route_index_max_bytes]
    good_is_well
}

test {a batch with a billion blocks} {
    set errors [stream a bad decode-errors]
    say bad billion
    stream_is a bad decode-errors [incr errors]
    assert_equal 1 [stream a bad partial]
    assert_match "*bad that could not be decoded*" [ask a conductor.doctor]
    good_is_well
    say bad clear
    stream_is a bad partial 0
}

test {numbers that jump} {
    say bad store 2 0 10
    finds a bad 2 {160 160 160}
    say bad number 4611686018427387904
    say bad store 3 0 4
    finds a bad 3 {64 64 64}
    assert_equal {0 0 0} [found a bad 2]
    assert_equal 1 [stream a bad partial]
    say bad number 7
    say bad store 4 0 5
    finds a bad 4 {80 80 80}
    assert_equal {0 0 0} [found a bad 3]
    assert {[stream a bad restarts] > 0}
    good_is_well
}

test {one that stands still, and goes on} {
    say bad clear
    say bad store 2 0 3
    finds a bad 2 {48 48 48}
    exec kill -STOP [pid $::pub(bad)]
    for {set i 0} {$i < 20} {incr i} {good_is_well}
    assert_equal {48 48 48} [found a bad 2]
    exec kill -CONT [pid $::pub(bad)]
    say bad store 2 3 5
    finds a bad 2 {80 80 80}
}

test {one that says nothing} {
    publisher mute
    assert_equal OK [ask a conductor.add mute http://mute MODEL m {*}[events mute]]
    say mute await 1
    stream_is a mute connected 1
    stream_is a mute partial 0
    for {set i 0} {$i < 20} {incr i} {
        set reply [ask a conductor.route q MODEL m LENGTH 9 EXCLUDE good EXCLUDE bad]
        assert_equal mute [lindex $reply 0]
        assert_equal OK [ask a conductor.done q]
    }
    assert_match "*- mute gets requests, and says nothing in its event stream*" \
        [ask a conductor.doctor]
    good_is_well
}

foreach name [array names ::pub] {publisher_kill $name}
finish
