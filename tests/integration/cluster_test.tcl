# Several masters: the map of slots, and who answers for which keys.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] masters.tcl]

foreach name {a b c} {up $name}
# foo is of slot 12182, bar of 5061, hello of 866
set home {foo c bar a hello a}

test {without a map there is no cluster} {
    foreach command {info nodes slots shards myid myshardid {keyslot foo} {countkeysinslot 1}
                     {getkeysinslot 1 1} {replicas x} {relinquish 1 k 1}} {
        assert_error "ERR This instance has cluster support disabled" {ask a cluster {*}$command}
    }
    foreach command {asking readonly readwrite} {
        assert_error "ERR This instance has cluster support disabled" {ask a $command}
    }
    assert_equal (nil) [ask a cluster map]
    assert_equal 0 [field a cluster_enabled]
    assert_equal standalone [field a redis_mode]
    assert_equal standalone [dict get [ask a hello] mode]
    assert_equal OK [ask a set foo 1]
    assert_equal 1 [ask a del foo]
    assert_equal OK [ask a cluster reset]
}

test {a map that is none is refused} {
    set rows [three_rows]
    set good [slot_map 7 $rows]
    foreach {shard map why} [list \
        a "" "*a map begins with*" \
        a "tarn-slots 2\n" "*this program knows no other" \
        a "tarn-slots 1\nepoch x\n" "*epoch NUMBER*" \
        d $good "*no shard of that name" \
        a [slot_map 7 {{a 1 a 0-5460,5460}}] "*slot 5460 is there twice" \
        a [slot_map 7 {{a 1 a 0-16384}}] "*slots are ranges*" \
        a [slot_map 7 $rows {{b a 1}}] "*slot 1 moves from a shard that does not own it" \
        a [slot_map 7 $rows {{a d 1}}] "*it names no shard of a line above" \
        a [string repeat x 70000] "*longer than*" \
    ] {
        assert_error "ERR $why" {ask a cluster setmap $shard $map}
    }
    assert_error "ERR syntax error*" {ask a cluster setmap a $good NOW}
    assert_equal (nil) [ask a cluster map]
}

test {the map makes masters of a cluster} {
    set map [slot_map 7 [three_rows]]
    spread_map $map a b c
    foreach name {a b c} {
        assert_equal $map [ask $name cluster map]
        assert_equal 1 [field $name cluster_enabled]
        assert_equal cluster [field $name redis_mode]
        assert_equal cluster [dict get [ask $name hello] mode]
    }
    assert_equal OK [ask a cluster setmap a $map]
}

test {an older map, or another one of the same age, is refused} {
    assert_error "STALE the map's epoch is 6*" {ask a cluster setmap a [slot_map 6 [three_rows]]}
    set other {{a 1 a 0-5459} {b 1 b 5460-10922} {c 1 c 10923-16383}}
    assert_error "STALE another map of epoch 7*" {ask a cluster setmap a [slot_map 7 $other]}
    assert_error "ERR this server is shard a*" {ask a cluster setmap b [slot_map 8 [three_rows]]}
    # of a shard's servers the later learnt are right
    set later {{a 9 {a b} 0-5460} {b 1 b 5461-10922} {c 1 c 10923-16383}}
    assert_equal OK [ask a cluster setmap a [slot_map 7 $later]]
    assert_equal [slot_map 7 $later] [ask a cluster map]
    assert_equal OK [ask a cluster setmap a [slot_map 8 [three_rows]]]
    assert_equal [slot_map 8 $later] [ask a cluster map]
    spread_map [slot_map 9 {{a 10 a 0-5460} {b 1 b 5461-10922} {c 1 c 10923-16383}}] a b c
}

test {one key: served, or MOVED to who has it} {
    assert_equal OK [ask c set foo 1]
    assert_equal 1 [ask c get foo]
    assert_equal OK [ask a set bar 2]
    foreach {command} {{get foo} {set foo x} {del foo} {exists foo} {ttl foo} {getreplicas foo}
                       {type foo} {watch foo} {putstart foo 10} {putend foo 1 -1} {pin foo NONE}
                       {object encoding foo} {memory usage foo} {prefixlen 1 foo}
                       {replica list foo}} {
        assert_error "MOVED 12182 127.0.0.1:[port c]" {ask a {*}$command}
    }
    assert_equal (nil) [ask c get absent{foo}]
    assert_error "MOVED 12182 127.0.0.1:[port c]" {ask b get absent{foo}}
}

test {several keys: all ours, all another's, or CROSSSLOT} {
    assert_equal OK [ask a mset bar 1 hello 2]
    assert_equal {1 2} [ask a mget bar hello]
    assert_equal 2 [ask a exists bar hello]
    assert_error "MOVED 5061 127.0.0.1:[port a]" {ask b mget bar hello}
    assert_error "CROSSSLOT *" {ask a mget bar foo}
    assert_error "CROSSSLOT *" {ask b mget bar foo}
    assert_error "CROSSSLOT *" {ask a prefixlen 2 bar foo}
    assert_error "CROSSSLOT *" {ask a del bar foo}
    assert_equal 2 [ask a prefixlen 3 bar hello absent{bar}]
    assert_error "CROSSSLOT *" {ask a evict keys 2 bar foo}
}

test {batches are answered key by key} {
    set moved "(error) MOVED 12182 127.0.0.1:[port c]"
    assert_equal [list 1 $moved 1] [ask a mexists 3 bar foo hello]
    set got [ask a mputstart 3 new{bar} 10 foo 10 new{hello} 10]
    assert_equal $moved [lindex $got 1]
    set tokens [list [lindex $got 0 0] [lindex $got 2 0]]
    set got [ask a mputend 3 new{bar} [lindex $tokens 0] -1 foo 1 -1 new{hello} \
        [lindex $tokens 1] -1 VALUES 0123456789 "" 9876543210]
    assert_equal [list OK $moved OK] $got
    set got [ask a mgetreplicas 3 new{bar} foo new{hello} LEASE 1000]
    assert_equal $moved [lindex $got 1]
    assert_equal {0123456789 9876543210} [list [lindex $got 0 5] [lindex $got 2 5]]
    # these concern what this master gave, and nobody else
    assert_equal 0 [ask a release 1 foo 1]
    assert_error "BADTOKEN*" {ask a putrevoke foo 1}
    assert_match {{(error) BADTOKEN*}} [ask a mputrevoke 1 foo 1]
}

test {KV groups: the keys are made of names and hashes} {
    set rest {UNIT 16 ALIGN 16 KVGROUPS 1}
    assert_error "MOVED 12182 *" {ask a prefixlen 1 h1 {*}$rest "{foo}g" FULL 16 16 0 0}
    assert_equal 0 [lindex [ask c prefixlen 1 h1 {*}$rest "{foo}g" FULL 16 16 0 0] 0]
}

test {transactions} {
    assert_equal OK [ask a multi]
    assert_equal QUEUED [ask a set bar 3]
    assert_equal QUEUED [ask a set hello 4]
    assert_equal {OK OK} [ask a exec]
    ask a multi
    assert_equal QUEUED [ask a set bar 5]
    assert_error "MOVED 12182 *" {ask a set foo 5}
    assert_error "EXECABORT *" {ask a exec}
    assert_equal 3 [ask a get bar]
    # the map has changed before EXEC: 5061 and 866 are b's
    ask a multi
    ask a set t1{bar} 1
    set rows {{a 10 a 0-865,867-5060,5062-5460} {b 1 b 866,5061,5461-10922} {c 1 c 10923-16383}}
    set map [slot_map 10 $rows]
    set other [resp::connect $::server_host [port a]]
    assert_error "ERR slot *keys of it are here*" {$other cluster setmap a $map}
    assert_equal OK [$other cluster setmap a $map FORCE]
    assert_error "MOVED 5061 127.0.0.1:[port b]" {ask a exec}
    assert_equal (nil) [ask a client getname]
    assert_error "ERR EXEC without MULTI" {ask a exec}
    # what was left behind is removed, and does not come back with the slot
    wait_for "keys of slots that went to be removed" {[ask a dbsize] == 0}
    resp::close $other
    spread_map [slot_map 11 [three_rows]] a b c
    assert_equal (nil) [ask a get bar]
}

test {rights come first} {
    ask a acl setuser reader on nopass ~foo +get
    set c [resp::connect $::server_host [port a]]
    $c auth reader x
    assert_error "NOPERM*" {$c get bar}
    assert_error "MOVED*" {$c get foo}
    resp::close $c
    ask a acl deluser reader
}

test {CLUSTER in Redis' words} {
    assert_equal 12182 [ask a cluster keyslot foo]
    assert_equal 2515 [ask a cluster keyslot "foo{hash_tag}"]
    set ids [lmap name {a b c} {ask $name cluster myid}]
    assert_equal 3 [llength [lsort -unique $ids]]
    foreach id $ids {assert {[regexp {^[0-9a-f]{40}$} $id]}}
    lassign $ids a b c
    assert_equal $a [ask a cluster myshardid]
    set at 127.0.0.1
    assert_equal [list [list 0 5460 [list $at [port a] $a {}]] \
        [list 5461 10922 [list $at [port b] $b {}]] \
        [list 10923 16383 [list $at [port c] $c {}]]] [ask b cluster slots]
    wait_for "b to have heard of the others" {![string match *disconnected* [ask b cluster nodes]]}
    foreach line [split [string trim [ask b cluster nodes]] \n] id $ids name {a b c} \
        slots {0-5460 5461-10922 10923-16383} epoch {10 1 1} {
        set flags [expr {$name eq "b" ? "myself,master" : "master"}]
        assert_equal "$id $at:[port $name]@0 $flags - 0 0 $epoch connected $slots" $line
    }
    wait_for "a to have heard of the others" {![string match *disconnected* [ask a cluster nodes]]}
    set shards [ask a cluster shards]
    assert_equal 3 [llength $shards]
    assert_equal {slots {0 5460}} [lrange [lindex $shards 0] 0 1]
    set node [lindex [dict get [lindex $shards 2] nodes] 0]
    assert_equal [list $c [port c] $at $at master online] \
        [lmap f {id port ip endpoint role health} {dict get $node $f}]
    set info [ask a cluster info]
    foreach line {cluster_state:ok cluster_slots_assigned:16384 cluster_slots_ok:16384
                  cluster_slots_fail:0 cluster_known_nodes:3 cluster_size:3
                  cluster_current_epoch:11 cluster_my_epoch:10} {
        assert_match "*$line\r\n*" $info
    }
    ask c set foo 1
    ask c set x{foo} 1
    assert_equal 2 [ask c cluster countkeysinslot 12182]
    assert_equal 0 [ask a cluster countkeysinslot 12182]
    assert_equal {foo x{foo}} [lsort [ask c cluster getkeysinslot 12182 10]]
    assert_equal 1 [llength [ask c cluster getkeysinslot 12182 1]]
    assert_equal {} [ask c cluster getkeysinslot 12182 0]
    assert_error "ERR Invalid slot" {ask a cluster countkeysinslot 16384}
    assert_error "ERR Unknown node x" {ask a cluster replicas x}
    assert_equal {} [ask a cluster replicas $b]
}

test {a slot that nobody has, and a shard without an address} {
    set rows {{a 10 a 0-5460} {b 1 b 5461-10921} {c 1 c 10922-16382} {d 1 {} 16383}}
    assert_equal OK [ask b cluster setmap b [slot_map 12 $rows] FORCE]
    assert_error "CLUSTERDOWN Hash slot not served" {ask b get [slot_key 16383]}
    assert_match "*cluster_state:fail\r\n*" [ask b cluster info]
    assert_match "*cluster_slots_fail:1\r\n*" [ask b cluster info]
    spread_map [slot_map 13 [three_rows]] a b c
}

test {redis-cli -c follows} {
    foreach key {foo bar hello} {
        assert_equal OK [exec redis-cli -c -p [port b] set $key of_$key]
        assert_equal of_$key [exec redis-cli -c -p [port b] get $key]
        assert_equal of_$key [ask [dict get $home $key] get $key]
    }
}

test {the map survives a restart with files, and goes to replicas} {
    set map [ask a cluster map]
    ask a config set appendonly yes
    wait_for "the append-only file" {[field_is a aof_rewrite_in_progress 0]}
    focus a
    again a --appendonly yes
    assert_equal $map [ask a cluster map]
    assert_error "MOVED 12182 *" {ask a get foo}
    assert_equal of_bar [ask a get bar]
    up a2
    follow a2 a
    assert_equal $map [ask a2 cluster map]
    same_books a a2
    set next [slot_map 14 {{a 20 {a a2} 0-5460} {b 1 b 5461-10922} {c 1 c 10923-16383}}]
    spread_map $next a b c
    same_books a a2
    assert_equal $next [ask a2 cluster map]
    assert_error "READONLY*" {ask a2 cluster setmap a $next}
}

test {a replica refers to its master, and answers who said READONLY} {
    set moved "MOVED 5061 127.0.0.1:[port a]"
    assert_error $moved {ask a2 exists bar}
    assert_error $moved {ask a2 set bar 1}
    assert_equal OK [ask a2 readonly]
    assert_equal 1 [ask a2 exists bar]
    # values are the master's
    assert_error $moved {ask a2 get bar}
    assert_error $moved {ask a2 set bar 1}
    assert_error $moved {ask a2 getreplicas bar LEASE 100}
    assert_error "MOVED 12182 127.0.0.1:[port c]" {ask a2 get foo}
    assert_equal OK [ask a2 readwrite]
    assert_error $moved {ask a2 exists bar}
    assert_match "*myself,slave [ask a cluster myid] *" [ask a2 cluster nodes]
    assert_equal 1 [llength [ask b cluster replicas [ask a cluster myid]]]
    assert_match "*[ask a2 cluster myid]*slave*" [ask b cluster replicas [ask a cluster myid]]
}

test {CLUSTER RESET} {
    assert_error "ERR CLUSTER RESET can't be called*" {ask c cluster reset}
    assert_equal OK [ask c cluster reset FORCE]
    assert_equal (nil) [ask c cluster map]
    assert_equal OK [ask c set bar 1]
    assert_equal OK [ask a cluster reset HARD FORCE]
    same_books a a2
    assert_equal (nil) [ask a2 cluster map]
}

finish
