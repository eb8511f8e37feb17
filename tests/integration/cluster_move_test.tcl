# Slots that move from one master to another: what each answers meanwhile, and what a mover does.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] masters.tcl]

foreach name {a b c} {up $name}
spread_map [slot_map 1 [three_rows]] a b c
# bar is of slot 5061, of a; foo of 12182, of c
set moving [slot_map 2 [three_rows] {{a b 5061}}]

proc version_of {name key} {return [lindex [ask $name getreplicas $key] 0]}
proc walk {name} {
    set found {}
    set cursor 0
    while 1 {
        lassign [ask $name cluster scanslots $cursor] cursor rows
        lappend found {*}$rows
        if {$cursor == 0} {return [lsort -index 0 $found]}
    }
}
proc asked {name args} {
    assert_equal OK [ask $name asking]
    return [ask $name {*}$args]
}

test {a slot moves: what is here is served, what is not is asked for at the target} {
    ask a set bar 1
    ask a set x{bar} 1
    ask a set hello 1
    ask a putstart late{bar} 10
    set late [lindex [ask a putstart later{bar} 10] 0]
    spread_map $moving b a c
    assert_equal 1 [ask a get bar]
    assert_equal OK [ask a set bar 2]
    set ask "ASK 5061 127.0.0.1:[port b]"
    foreach command {{get new{bar}} {set new{bar} 1} {exists new{bar}} {putstart new{bar} 10}
                     {getreplicas new{bar}} {mget new{bar} newer{bar}}} {
        assert_error $ask {ask a {*}$command}
    }
    assert_error "TRYAGAIN *" {ask a mget bar new{bar}}
    assert_error "TRYAGAIN *" {ask a mset bar 1 new{bar} 1}
    assert_equal [list 1 "(error) $ask" 1] [ask a mexists 3 bar new{bar} hello]
    # a put that was opened before would make a second one
    assert_error $ask {ask a putend later{bar} $late -1 VALUE 0123456789}
    assert_equal OK [ask a putrevoke later{bar} $late]
    # others
    assert_error "MOVED 5061 127.0.0.1:[port a]" {ask c get bar}
}

test {the target: behind ASKING, for one command or transaction} {
    set moved "MOVED 5061 127.0.0.1:[port a]"
    assert_error $moved {ask b get new{bar}}
    assert_equal OK [asked b set new{bar} 7]
    assert_error $moved {ask b get new{bar}}
    assert_equal 7 [asked b get new{bar}]
    assert_equal [list "(error) $moved"] [ask b mexists 1 new{bar}]
    assert_equal 1 [asked b mexists 1 new{bar}]
    assert_equal OK [ask b asking]
    ask b multi
    ask b get new{bar}
    ask b set newer{bar} 8
    assert_equal {7 OK} [ask b exec]
    assert_error $moved {ask b get newer{bar}}
    set token [lindex [asked b putstart put{bar} 10] 0]
    assert_equal OK [ask b putend put{bar} $token -1 VALUE 0123456789]
    assert_equal 0123456789 [asked b get put{bar}]
    assert_equal 3 [asked b del new{bar} newer{bar} put{bar}]
}

test {redis-cli -c follows ASK} {
    assert_equal 2 [exec redis-cli -c -p [port c] get bar]
    assert_equal OK [exec redis-cli -c -p [port c] set asked{bar} 3]
    assert_equal 3 [exec redis-cli -c -p [port a] get asked{bar}]
    assert_equal 3 [asked b get asked{bar}]
}

test {SCANSLOTS tells keys of slots that move away, with what they have} {
    spread_map [slot_map 3 [three_rows]] a b c
    set group [ask a putstart g{bar} 3 group together pin soft 70000]
    ask a putend g{bar} [lindex $group 0] -1 VALUE abc
    set deep [ask a mputstart 2 d1{bar} 3 d2{bar} 3 AT 4 9 OF 20 TTL 100000000]
    ask a mputend 2 d1{bar} [lindex $deep 0 0] -1 d2{bar} [lindex $deep 1 0] -1 VALUES abc def
    # a look-up's keys 3 and 7 of 10, then the puts of what was missing: their 0 and 4 of 7
    assert_equal 0 [ask a prefixlen 2 p1{bar} p2{bar} AT 3 7 OF 10]
    set rest [ask a mputstart 2 p1{bar} 3 p2{bar} 3 AT 0 4 OF 7]
    lassign [lmap put $rest {lindex $put 0}] t1 t2
    ask a mputend 2 p1{bar} $t1 -1 p2{bar} $t2 -1 VALUES abc def
    assert_equal {} [walk a]
    spread_map [slot_map 4 [three_rows] {{a b 5061}}] b a c
    set rows [walk a]
    set keys [lmap row $rows {lindex $row 0}]
    assert_equal {bar d1{bar} d2{bar} g{bar} p1{bar} p2{bar} x{bar}} $keys
    foreach row $rows {set of([lindex $row 0]) $row}
    assert_equal [list bar [version_of a bar] 1 NONE 0 0 {} 0 0] $of(bar)
    assert_equal {3 SOFT 70000 0 together 0 0} [lrange $of(g{bar}) 2 end]
    assert_equal {NONE 0} [lrange $of(d1{bar}) 3 4]
    assert_range [expr {[clock milliseconds] + 90000000}] [lindex $of(d1{bar}) 5] \
        [expr {[clock milliseconds] + 100000001}]
    assert_equal {4 9} [list [lindex $of(d1{bar}) 8] [lindex $of(d2{bar}) 8]]
    assert_equal {3 7} [list [lindex $of(p1{bar}) 8] [lindex $of(p2{bar}) 8]]
    assert_equal {} [walk b]
    assert_equal {} [walk c]
    assert_error "ERR AT must be*" {ask a mputstart 2 d1{bar} 3 d2{bar} 3 AT 4 20 OF 20}
    assert_error "ERR AT must be*" {ask a prefixlen 1 bar AT x OF 20}
    assert_equal 6 [ask a del d1{bar} d2{bar} g{bar} p1{bar} p2{bar} x{bar}]
}

test {a mover: bytes at the target, the key gone from the source, and then visible} {
    assert_equal {bar} [lmap row [walk a] {lindex $row 0}]
    set version [version_of a bar]
    set token [lindex [ask b putstart bar 1 MOVING] 0]
    # not yet: readers are served by the source
    assert_equal 2 [ask a get bar]
    assert_equal {1} [ask a cluster relinquish 1 bar $version]
    # between the two nobody sees a miss
    assert_error "ASK *" {ask a get bar}
    foreach command {{get bar} {set bar 3} {del bar} {exists bar} {mget bar other{bar}}} {
        assert_error "TRYAGAIN *" {asked b {*}$command}
    }
    assert_match "*(error) TRYAGAIN *" [asked b mgetreplicas 1 bar]
    assert_equal OK [ask b putend bar $token -1 VALUE 2]
    assert_equal 2 [asked b get bar]
    assert_equal {} [walk a]
}

test {RELINQUISH: only that version, only of slots that move away, not under a put} {
    asked b del bar
    # as if it had been here before the map
    spread_map [slot_map 5 [three_rows]] a b c
    ask a set bar 2
    ask a set hello 2
    spread_map [slot_map 6 [three_rows] {{a b 5061}}] b a c
    set version [version_of a bar]
    assert_equal {0} [ask a cluster relinquish 1 bar [expr {$version - 1}]]
    assert_equal {0 0} [ask a cluster relinquish 2 hello [version_of a hello] none{bar} 1]
    assert_equal OK [ask a set bar 3]
    assert_equal {0} [ask a cluster relinquish 1 bar $version]
    set version [version_of a bar]
    set token [lindex [ask a putstart bar 1 REPLACE] 0]
    assert_equal {0} [ask a cluster relinquish 1 bar $version]
    assert_equal OK [ask a putend bar $token -1 VALUE 4]
    assert_equal {0} [ask a cluster relinquish 1 bar $version]
    assert_equal {1} [ask a cluster relinquish 1 bar [version_of a bar]]
    assert_equal 2 [ask a get hello]
}

# What a mover whose connection is closed has open: token.
proc left_behind {key} {
    set c [resp::connect $::server_host [port b]]
    set token [lindex [$c putstart $key 10 MOVING] 0]
    assert_error "TRYAGAIN *" {asked b get $key}
    assert_error "TRYAGAIN *" {ask b putstart $key 10 MOVING}
    resp::close $c
    wait_for "its end to be seen" "!\[catch {asked b get $key} got] && \$got eq {(nil)}"
    return $token
}

test {a mover that dies: its keys are misses, and anybody's, the next mover's first of all} {
    ask b config set put-timeout 600000
    set first [left_behind dead{bar}]
    set second [lindex [ask b putstart dead{bar} 10 MOVING] 0]
    assert_error "TRYAGAIN *" {asked b get dead{bar}}
    assert_error "BADTOKEN *" {ask b putend dead{bar} $first -1 VALUE 0123456789}
    assert_equal OK [ask b putend dead{bar} $second -1 VALUE 0123456789]
    set token [left_behind other{bar}]
    assert_equal OK [ask b putend other{bar} $token -1 VALUE 0123456789]
    assert_equal 0123456789 [asked b get other{bar}]
    set token [left_behind newer{bar}]
    set newer [lindex [asked b putstart newer{bar} 10] 0]
    assert_equal OK [ask b putend newer{bar} $newer -1 VALUE 9876543210]
    assert_error "BADTOKEN *" {ask b putend newer{bar} $token -1 VALUE 0123456789}
    assert_equal 9876543210 [asked b get newer{bar}]
    ask b config set put-timeout 30000
}

test {the last map: the slot is the target's} {
    set rows {{a 1 a 0-5060,5062-5460} {b 1 b 5061,5461-10922} {c 1 c 10923-16383}}
    spread_map [slot_map 7 $rows] b a c
    assert_equal 3 [ask b get asked{bar}]
    assert_error "MOVED 5061 127.0.0.1:[port b]" {ask a get asked{bar}}
    assert_equal 0 [ask a cluster countkeysinslot 5061]
}

test {who waits for a key of a slot that goes is told where} {
    set c [resp::connect $::server_host [port b]]
    resp::send $c getreplicas awaited{bar} WAIT 10000
    wait_for "it to wait" {[field b awaited_keys] == 1}
    spread_map [slot_map 8 [three_rows]] a c
    assert_equal OK [ask b cluster setmap b [slot_map 8 [three_rows]] FORCE]
    assert_match "(error) MOVED 5061 *" [resp::recv $c]
    resp::close $c
}

test {a disk's old copies of slots that are not wholly ours are not taken} {
    ask a node join n1 [string repeat 1 32] machine m1
    ask a segment mount n1 [string repeat 1 32] d1 tier ssd size 1048576 \
        content [string repeat 2 32]
    ask a node up n1 [string repeat 1 32]
    set id [dict get [ask a segment info d1] id]
    spread_map [slot_map 9 [three_rows] {{a b 5061}}] b a c
    set got [ask a node offer n1 [string repeat 1 32] $id 3 foo 1 100 -1 0 "" \
        bar 1 100 -1 4096 "" off{hello} 1 100 -1 8192 ""]
    assert_equal {0 0} [lrange $got 0 1]
    assert {[lindex $got 2] > 0}
}

finish
