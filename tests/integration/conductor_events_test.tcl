# conductor.so follows engines' event streams: what they tell is what MATCH and ROUTE find, and what
# could not be heard is no hit. Engines are stood in for by kv_publisher.py.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] conductor.tcl]

up a --loadmodule conductor.so --appendonly yes
publisher e1

test {an engine with events} {
    assert_error "ERR REPLAY goes with EVENTS" {
        ask a conductor.add e1 http://e1 MODEL m REPLAY tcp://127.0.0.1:1
    }
    foreach wrong {127.0.0.1:1 tcp://127.0.0.1 tcp://*:5557 http://a:1 tcp://127.0.0.1:0 ipc://} {
        assert_error "ERR EVENTS must be tcp://HOST:PORT or ipc://PATH" {
            ask a conductor.add e1 http://e1 MODEL m EVENTS $wrong
        }
    }
    assert_equal {} [ask a conductor.list]
    assert_equal OK [ask a conductor.add none http://none MODEL m]
    assert_match "*caches of none is not known*Register with EVENTS*" [ask a conductor.doctor]
    assert_equal OK [ask a conductor.remove none]
    assert_equal OK [ask a conductor.add e1 http://e1 MODEL m {*}[events e1]]
    say e1 await 1
    stream_is a e1 state live
    # it answers that it has published nothing
    assert_equal {0 {} -1} [lmap f {partial partial-why last} {stream a e1 $f}]
}

test {stored, and found; by tier} {
    say e1 store 1 0 4
    finds a e1 1 {64 64 64}
    say e1 array
    say e1 store 1 4 6
    finds a e1 1 {96 96 96}
    say e1 map
    say e1 store 1 6 8 medium CPU
    finds a e1 1 {96 128 128}
    say e1 store 1 0 4 medium CPU bare 1
    say e1 remove 1 3 6
    finds a e1 1 {48 64 64}
    say e1 store 1 3 6
    finds a e1 1 {96 128 128}
    assert_equal {0 0 0} [found a e1 2]
    set reply [ask a conductor.route q1 MODEL m TOKENS [tokens 1 160]]
    assert_equal {e1 {96 32 0}} [list [lindex $reply 0] [lindex $reply 2]]
    assert_equal OK [ask a conductor.done q1]
    # Where it is quiet for a while, its engine is asked for what was last.
    wait_for "e1 to be live in the list, and not partial" {[lmap f {partial events}\
        {dict get [lindex [ask a conductor.list] 0] $f}] eq {0 live}}
    assert_equal {6 18 0 1} [lmap f {batches blocks gaps connected} {stream a e1 $f}]
    assert_equal {1 1 0} [lmap f {"" _connected _partial} {field a conductor_streams$f}]
    assert_match "*blocks=8,connected=1,partial=0,batches=6,gaps=0*" [field a engine_e1]
    assert {[field a kvevents_batches] == 6 && [field a kvevents_decode_errors] == 0}
}

# The reply has no place for where from, so nobody would.
test {no decision counts on a prefix that is fetched from another engine} {
    assert_equal OK [ask a conductor.add idle http://idle MODEL m BYTES 1]
    ask a conductor.load e1 PREFILL 600000
    set reply [ask a conductor.route q2 MODEL m TOKENS [tokens 1 160]]
    assert_equal {idle {0 0 0}} [list [lindex $reply 0] [lindex $reply 2]]
    foreach c [dict get [ask a conductor.explain q2] candidates] {
        assert_equal 0 [dict get $c fetch-tokens]
    }
    ask a conductor.done q2
    ask a conductor.load e1 PREFILL 0
    assert_equal OK [ask a conductor.remove idle]
}

test {removed: a prefix ends at the gap} {
    say e1 remove 1 5 6
    finds a e1 1 {80 80 80}
    say e1 remove 1 0 1
    finds a e1 1 {0 80 80}
    say e1 remove 1 0 1 medium CPU
    finds a e1 1 {0 0 0}
}

test {cleared} {
    say e1 store 2 0 10
    finds a e1 2 {160 160 160}
    say e1 clear
    finds a e1 2 {0 0 0}
    say e1 store 2 0 1
    finds a e1 2 {16 16 16}
}

test {a gap that a replay fills} {
    say e1 hide
    say e1 store 3 0 4
    say e1 store 3 4 6
    say e1 show
    say e1 store 3 6 8
    finds a e1 3 {128 128 128}
    assert_equal {1 0 0} [lmap f {gaps lost partial} {stream a e1 $f}]
    assert {[stream a e1 replays] > 0}
    assert_match "*Batches of e1 were missing 1 times, and came again*" [ask a conductor.doctor]
}

test {a gap that nobody can fill: nothing of before counts, and it is said} {
    say e1 forget
    say e1 remove 3 0 4
    say e1 show
    say e1 store 4 0 5
    finds a e1 4 {80 80 80}
    assert_equal {0 0 0} [found a e1 3]
    assert_equal {1 1} [lmap f {partial lost} {stream a e1 $f}]
    assert_match "batches 15 to 15 are missing: *" [stream a e1 partial-why]
    assert_equal 1 [dict get [lindex [ask a conductor.list] 0] partial]
    assert_equal 1 [field a conductor_streams_partial]
    assert_match "*Not all that e1 has is known*" [ask a conductor.doctor]
    # what hangs on blocks that were lost is not found
    say e1 store 3 4 6
    say e1 store 4 5 6
    finds a e1 4 {96 96 96}
    assert_equal {0 0 0} [found a e1 3]
    assert {[field a route_orphans] > 0}
    # whole again
    say e1 clear
    stream_is a e1 partial 0
    assert_equal {0 0 0} [found a e1 4]
    assert_equal 0 [field a conductor_streams_partial]
}

test {a batch that nobody can read} {
    say e1 store 5 0 5
    finds a e1 5 {80 80 80}
    say e1 garbage
    finds a e1 5 {0 0 0}
    assert_equal {1 1} [lmap f {partial decode-errors} {stream a e1 $f}]
    assert_match "batch *: *" [stream a e1 decode-why]
    assert_match "batch *: *" [field a kvevents_why]
    assert_match "*Batches of e1 that could not be decoded*" [ask a conductor.doctor]
    say e1 clear
    stream_is a e1 partial 0
}

test {without a replay a gap is a loss} {
    publisher e2
    assert_equal OK [ask a conductor.add e2 http://e2 MODEL m {*}[events e2 0]]
    say e2 await 1
    stream_is a e2 state live
    say e2 store 1 0 10
    finds a e2 1 {160 160 160}
    say e2 hide
    say e2 remove 1 0 10
    say e2 show
    say e2 store 2 0 2
    finds a e2 2 {32 32 32}
    assert_equal {0 0 0} [found a e2 1]
    assert_match "batches 1 to 1 are missing: the engine has no replay endpoint" \
        [stream a e2 partial-why]
    assert_match "*Give REPLAY*" [ask a conductor.doctor]
}

test {registering again: as it is, and with other events} {
    assert_equal OK [ask a conductor.add e2 http://e2 MODEL m {*}[events e2 0]]
    assert_equal {32 32 32} [found a e2 2]
    publisher e3
    say e3 store 3 0 3
    assert_equal OK [ask a conductor.add e2 http://e2 MODEL m {*}[events e3]]
    finds a e2 3 {48 48 48}
    assert_equal {0 0 0} [found a e2 2]
    assert_equal tcp://127.0.0.1:[lindex $::ports(e3) 1] [stream a e2 replay]
    assert_equal OK [ask a conductor.add e2 http://e2 MODEL m]
    assert_equal {0 0 0} [found a e2 3]
    assert_equal none [stream a e2 state]
    assert_equal 1 [field a conductor_streams]
}

test {an engine that is removed is not followed} {
    assert_equal OK [ask a conductor.add e2 http://e2 MODEL m {*}[events e3]]
    finds a e2 3 {48 48 48}
    assert_equal OK [ask a conductor.remove e2]
    assert_equal {} [ask a conductor.match MODEL m TOKENS [tokens 3 160]]
    assert_equal 1 [field a conductor_streams]
    # counts stay, and none of it is counted any more
    set before [field a kvevents_batches]
    assert {$before > [stream a e1 batches]}
    say e3 store 3 3 4
    say e1 store 6 0 1
    finds a e1 6 {16 16 16}
    assert_equal [expr {$before + 1}] [field a kvevents_batches]
}

test {salts and adapters} {
    assert_equal OK [ask a conductor.add s1 http://s1 MODEL m LORA * SALT mine {*}[events e2]]
    say e2 clear
    say e2 store 1 0 2
    say e2 store 2 0 3 salt theirs
    say e2 store 3 0 4 lora l
    say e2 store 4 0 5 extra pepper
    finds a s1 1 {32 32 32} SALT mine
    finds a s1 2 {48 48 48} SALT theirs
    finds a s1 3 {64 64 64} SALT mine LORA l
    foreach {chain words} {1 {} 1 {SALT theirs} 2 {} 2 {SALT mine} 3 {SALT mine} 3 {LORA l}} {
        assert_equal {0 0 0} [found a s1 $chain {*}$words] "chain $chain $words"
    }
    # vLLM's salt is one of the first block's extra keys: EXTRA is what it sends, in msgpack
    set pepper "\x91\xa6pepper"
    set extra [binary format iia* 0 [string length $pepper] $pepper]
    finds a s1 4 {80 80 80} SALT mine EXTRA $extra
    assert_equal {0 0 0} [found a s1 4 SALT mine]
    assert_equal 1 [field a conductor_events_salted]
    assert_equal OK [ask a conductor.remove s1]
}

test {DOCTOR: another adapter, another size of block, another rank} {
    assert_equal OK [ask a conductor.add w http://w MODEL m {*}[events e2]]
    say e2 clear
    say e2 store 1 0 2 lora l
    say e2 store 2 0 2 block 32
    wait_for "the events to be counted" {[field a conductor_events_groups] > 0}
    assert_equal {0 0 0} [found a w 2]
    assert_match "*Events of w are of adapter l *, and it is registered for none*" \
        [ask a conductor.doctor]
    say e2 clear
    say e2 store 2 0 2 block 32
    wait_for "the events to be counted" {![field_is a conductor_events_misfitting 0]}
    assert_equal {0 0 0} [found a w 2]
    assert_match "*Blocks of w have 32 tokens, and it is registered with BLOCK 16*" \
        [ask a conductor.doctor]
    assert_equal OK [ask a conductor.remove w]
    assert_equal OK [ask a conductor.add w http://w MODEL m RANK 1 {*}[events e2]]
    say e2 clear
    say e2 store 3 0 4 rank 0
    say e2 store 4 0 4 rank 1
    finds a w 4 {64 64 64}
    assert_equal {0 0 0} [found a w 3]
    assert_match "*The stream of w, rank 1, is of rank 0*" [ask a conductor.doctor]
    assert_equal OK [ask a conductor.remove w]
}

test {KV groups: a prefix is what all of them have} {
    assert_equal OK [ask a conductor.add h http://h MODEL m {*}[events e2]]
    say e2 clear
    say e2 store 1 0 8
    finds a h 1 {128 128 128}
    say e2 store 1 0 2 group 1 spec sliding_window window 32
    finds a h 1 {32 32 32}
    say e2 store 1 2 6 group 1 spec sliding_window window 32
    finds a h 1 {96 96 96}
    # more groups than may be: nothing is known of it any more
    say e2 store 1 0 2 group 16
    finds a h 1 {0 0 0}
    set ::groups_before [field a conductor_events_groups]
    say e2 store 1 0 8
    wait_for "that to be left out" {[field a conductor_events_groups] > $::groups_before}
    assert_equal {0 0 0} [found a h 1]
    assert_match "*h has KV groups that become others, or more than*" [ask a conductor.doctor]
    assert_equal OK [ask a conductor.remove h]
}

test {an engine that is killed, and comes back} {
    say e1 clear
    say e1 store 1 0 8
    finds a e1 1 {128 128 128}
    publisher_kill e1
    stream_is a e1 connected 0
    assert_match "*Nobody is there where the events of e1 *" [ask a conductor.doctor]
    publisher e1 $::ports(e1)
    say e1 store 2 0 4
    say e1 await 1
    say e1 store 3 0 2
    finds a e1 3 {32 32 32}
    finds a e1 2 {64 64 64}
    assert_equal {0 0 0} [found a e1 1]
    assert_equal {1 0} [lmap f {connected partial} {stream a e1 $f}]
}

# --- restart and failover ---

test {a replica follows the same streams, and has the index when it is promoted} {
    up b --loadmodule conductor.so
    follow b a
    say e1 await 2
    foreach {chain what} {2 {64 64 64} 3 {32 32 32}} {finds b e1 $chain $what}
    say e1 store 3 2 10
    finds a e1 3 {160 160 160}
    finds b e1 3 {160 160 160}
    assert_equal 0 [stream b e1 partial]
    set before [ask a conductor.match MODEL m TOKENS [tokens 3 160]]
    down a
    assert_equal OK [ask b replicaof no one]
    assert_equal $before [ask b conductor.match MODEL m TOKENS [tokens 3 160]]
    set reply [ask b conductor.route q1 MODEL m TOKENS [tokens 3 160]]
    assert_equal {e1 {160 0 0}} [list [lindex $reply 0] [lindex $reply 2]]
    say e1 remove 3 4 10
    finds b e1 3 {64 64 64}
    # a new master's registrations replace them
    ask b conductor.remove e1
    assert_equal 0 [field b conductor_streams]
}

test {registrations with events survive a restart} {
    up c --loadmodule conductor.so --appendonly yes
    assert_equal OK [ask c conductor.add e1 http://e1 MODEL m {*}[events e1]]
    finds c e1 3 {64 64 64}
    again c
    finds c e1 3 {64 64 64}
    assert_equal OK [ask c conductor.remove e1]
    assert_equal OK [ask c conductor.add e1 http://e1 MODEL m {*}[events e1]]
    finds c e1 3 {64 64 64}
}

test {the module goes, and its streams with it} {
    up d --enable-module-command local
    ask d module load conductor.so
    assert_equal OK [ask d conductor.add e1 http://e1 MODEL m {*}[events e1]]
    finds d e1 3 {64 64 64}
    assert_equal OK [ask d module unload conductor]
    ask d module load conductor.so
    finds d e1 3 {64 64 64}
}

foreach name [array names ::pub] {publisher_kill $name}
finish
