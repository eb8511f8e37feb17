# Several masters, one of which starts with old files, or with none: it serves no key before others
# have told it the map.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] masters.tcl]

foreach name {b c} {up $name --appendonly yes --appendfsync always}
up a
# bar is of slot 5061, of a; foo of 12182, of c
spread_map [slot_map 1 [three_rows]] a b c
set down "CLUSTERDOWN The servers of cluster-shard are asked*"
proc peers {name shard args} {
    return [list --cluster-shard [concat $shard [lmap s $args {string cat 127.0.0.1: [port $s]}]]]
}
proc serves {name} {return [string match *cluster_state:ok* [ask $name cluster info]]}
proc wait_serves {name} {
    set ::served $name
    wait_for "$name to serve" {![catch {serves $::served} ok] && $ok}
}

test {the option} {
    foreach value {a "a x" "a h:0" "a/b h:1" "h:1" "a h:1 b"} {
        assert_error "*must be the name of a shard and addresses*" \
            {ask a config set cluster-shard $value}
    }
    assert_equal OK [ask a config set cluster-shard "a h:1 \[::1\]:2"]
    assert_equal {cluster-shard {a h:1 [::1]:2}} [ask a config get cluster-shard]
    assert_equal OK [ask a set bar 1]
    assert_equal OK [ask a config set cluster-shard ""]
}

test {without files, and without others: no key is served} {
    foreach name {a b c} {down $name}
    back a {*}[peers a a b c]
    assert_error $down {ask a cluster map}
    foreach command {{get bar} {set bar 2} {exists bar} {mget bar foo} {getreplicas bar}
                     {putstart bar 10} {prefixlen 1 bar} {del foo} {watch bar}} {
        assert_error $down {ask a {*}$command}
    }
    assert_match [list "(error) $down"] [ask a mexists 1 bar]
    ask a multi
    assert_error $down {ask a set bar 1}
    assert_error EXECABORT* {ask a exec}
    assert_error $down {ask a prefixlen 1 h1 UNIT 16 ALIGN 16 KVGROUPS 1 g FULL 16 16 0 0}
    # what a disk has may be another's by now
    assert_error CLUSTERDOWN* {ask a node join n1 [string repeat 1 32] machine m1}
    assert_error CLUSTERDOWN* {ask a cluster slots}
    assert_error $down {ask a cluster announce b 5 h:1}
    assert_equal 0 [ask a dbsize]
    assert_equal PONG [ask a ping]
}

test {... until one other tells the map} {
    back b
    wait_serves a
    assert_equal [slot_map 1 [three_rows]] [ask a cluster map]
    assert_equal (nil) [ask a get bar]
    assert_equal OK [ask a set bar 2]
    assert_error "MOVED 12182 127.0.0.1:[port c]" {ask a get foo}
    back c
}

proc joins_asked {name} {
    if {![regexp {cmdstat_node\|join:calls=(\d+)} [ask $name info commandstats] - calls]} {return 0}
    return $calls
}

test {a node that all masters refuse for now tries again for as long as it takes} {
    foreach name {a b c} {ask $name config set max-nodes 0}
    launch_node crowd --master "tarn://127.0.0.1:[port a]?backoff_min_ms=1&backoff_max_ms=10"
    foreach name {a b c} {
        set ::asked $name
        wait_for "many attempts at $name" {[joins_asked $::asked] >= 20}
    }
    ask b config set max-nodes 1
    focus b
    wait_node crowd up
    wait_for "its port" {[file exists [node crowd dir]/port]}
    stop_node crowd
    dict unset ::node_table crowd
    foreach name {a b c} {ask $name config set max-nodes 1024}
}

test {... but not after what does not pass by itself} {
    foreach name {a b c} {
        ask $name config set max-nodes 0
        ask $name config resetstat
    }
    launch_node crowd --master "tarn://127.0.0.1:[port a]?backoff_min_ms=1&backoff_max_ms=10"
    foreach name {a b c} {
        set ::asked $name
        wait_for "many attempts at $name" {[joins_asked $::asked] >= 20}
    }
    ask b acl setuser default -node|join
    assert_equal 4 [reap_node crowd]
    assert_match "*tarn-node: shard b: *NOPERM*--user*" [file_text [node crowd dir]/stdout]
    dict unset ::node_table crowd
    ask b acl setuser default +node|join
    foreach name {a b c} {ask $name config set max-nodes 1024}
}

test {with old files: the later map counts, and keys of slots that went do not come back} {
    assert_equal OK [ask a config set appendonly yes]
    wait_for "the append-only file" {[field_is a aof_rewrite_in_progress 0]}
    ask a set bar 3
    ask a set hello 4
    down a
    set rows {{a 1 a 0-5060,5062-5460} {b 1 b 5061,5461-10922} {c 1 c 10923-16383}}
    spread_map [slot_map 2 $rows] b c
    assert_equal OK [ask b set bar 5]
    back a --appendonly yes
    wait_serves a
    assert_equal [slot_map 2 $rows] [ask a cluster map]
    assert_error "MOVED 5061 127.0.0.1:[port b]" {ask a get bar}
    assert_equal 4 [ask a get hello]
    wait_for "what was left behind to go" {[ask a dbsize] == 1}
}

test {all at the same time} {
    foreach name {a b c} {down $name}
    back b {*}[peers b a c]
    back c {*}[peers c a b]
    assert {![serves b]}
    assert_error $down {ask b get bar}
    back a
    foreach name {a b c} {wait_serves $name}
    assert_equal 5 [ask b get bar]
    assert_equal 4 [ask a get hello]
}

test {a replica that never had the books, and leads all the same} {
    up a2 {*}[peers a2 a b c] --replicaof "127.0.0.1 1"
    ask a2 replicaof no one
    wait_serves a2
    assert_match "*shard a *" [ask a2 cluster map]
    down a2
}

test {a name that the map does not have: CLUSTERDOWN, until it is given a map} {
    up d {*}[peers d d b]
    wait_for "d to say so" {[log_has d "has no shard d (cluster-shard)"]}
    assert_error $down {ask d get bar}
    set rows {{a 1 a 0-5060} {b 1 b 5061,5461-10922} {c 1 c 10923-16383} {d 1 d 5062-5460}}
    spread_map [slot_map 3 $rows] d
    assert_error "MOVED 5061 *" {ask d get bar}
    assert {[serves d]}
}

finish
