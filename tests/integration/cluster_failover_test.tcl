# Several masters, one of which is replaced: the others learn who leads its shard now.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] masters.tcl]
source [file join [file dirname [info script]] tls.tcl]

foreach name {a b c} {up $name --appendonly yes}
foreach name {a2 b2} {up $name}
follow a2 a
follow b2 b
# bar is of slot 5061, of a; foo of 12182, of c
set rows {{a 1 {a a2} 0-5460} {b 1 {b b2} 5461-10922} {c 1 c 10923-16383}}
spread_map [slot_map 1 $rows] a b c
same_books a a2

proc servers_are {name shard servers} {
    return [expr {![catch {row $name $shard} row] && \
        [lindex $row 1] eq [join [lmap s $servers {at $s}] ,]}]
}
proc wait_servers {shard servers args} {
    foreach ::seen_by $args {
        set ::wanted [list $shard $servers]
        wait_for "$::seen_by to know that [lindex $servers 0] leads shard $shard" \
            {[servers_are $::seen_by {*}$::wanted]}
    }
}

test {ANNOUNCE: what was learnt at a higher master epoch counts, and slots are not touched} {
    up d
    assert_error "ERR there is no map of slots here*" {ask d cluster announce a 5 x:1}
    down d
    set map [ask c cluster map]
    assert_error "ERR the map here has no shard*" {ask c cluster announce d 5 x:1}
    foreach {epoch words} {x h:1 5 h 5 h:0 5 h:1,h:1 -1 h:1 5 -} {
        assert_error "ERR it must be a master epoch*" {ask c cluster announce b $epoch $words}
    }
    assert_equal $map [ask c cluster announce b 1 h:1]
    assert_equal $map [ask c cluster announce b 0 h:1]
    assert_equal $map [ask c cluster map]
    assert_error "READONLY*" {ask a2 cluster announce b 5 h:1}
    # b itself has not said so
    lset rows 1 {b 2 {b2 b} 5461-10922}
    assert_equal [slot_map 1 $rows] [ask c cluster announce b 2 [at b2],[at b]]
    assert_error "MOVED 9842 [at b2]" {ask c get [slot_key 9842]}
    lset rows 1 {b 3 {b b2} 5461-10922}
    spread_map [slot_map 2 $rows] c a b
}

test {who has been succeeded ends no batch of puts} {
    set key [slot_key 12182]
    set batch [lindex [ask c mputstart 1 $key 0 BATCH] 1]
    ask c cluster announce c 2 h:1
    assert_equal {{(error) MOVED 12182 h:1}} [ask c mputend 0 BATCH $batch]
    lset rows 2 {c 3 c 10923-16383}
    spread_map [slot_map 3 $rows] c a b
    assert_equal OK [ask c mputend 0 BATCH $batch]
}

# Its bytes are with a node, whose answer comes when another leads the shard.
test {a write that waits while its master is succeeded is not made} {
    set key [slot_key 12182]
    focus c
    start_node far --master tarn://[at c] --host-name far --segment 16mb
    assert_equal OK [ask c set $key [string repeat a 100000]]
    pause_node far
    set writer [resp::connect $::server_host [port c]]
    resp::send $writer set $key [string repeat b 100000]
    wait_for "the put" {[field c puts_open] == 1}
    ask c cluster announce c 4 h:1
    continue_node far
    assert_match "(error) TRYAGAIN * the key goes to another master" [resp::recv $writer]
    resp::close $writer
    lset rows 2 {c 5 c 10923-16383}
    spread_map [slot_map 4 $rows] c a b
    assert_equal [string repeat a 100000] [ask c get $key]
    stop_node far
    dict unset ::node_table far
}

test {a replica is promoted: all masters know, and their replicas and files} {
    ask a set bar 1
    same_books a a2
    down a
    ask a2 replicaof no one
    wait_servers a {a2 a} a2 b c b2
    assert_error "MOVED 5061 [at a2]" {ask c get bar}
    assert_error "MOVED 5061 [at a2]" {ask b2 get bar}
    assert {[lindex [row c a] 0] > 1}
    assert_equal [row c a] [row b a]
    assert_equal 0-5460 [lindex [row c a] 2]
    focus b
    again b
    assert {[servers_are b a {a2 a}]}
    wait_link b2
}

test {a master that comes back later hears of it, too} {
    back a
    follow a a2
    down c
    down a2
    ask a replicaof no one
    wait_servers a {a a2} a b
    back c
    wait_servers a {a a2} c
}

# What a server tells of another one: flags and link, health, offset ("": not told).
proc seen {name other} {
    foreach line [split [ask $name cluster nodes] \n] {
        if {[string match "* [at $other]@0 *" $line]} {
            set found [list [lindex $line 2] [lindex $line 7]]
        }
    }
    foreach shard [ask $name cluster shards] {
        foreach node [dict get $shard nodes] {
            if {[dict get $node port] ne [port $other]} continue
            foreach field {health replication-offset} {
                lappend found [expr {[dict exists $node $field] ? [dict get $node $field] : ""}]
            }
        }
    }
    return $found
}
proc wait_seen {name other what} {
    set ::seeing [list $name $other]
    set ::expected $what
    wait_for "$name to see $what of $other" {[seen {*}$::seeing] eq $::expected}
}

test {NODES and SHARDS tell what was seen} {
    wait_seen b c {master connected online {}}
    wait_seen b2 c {master connected online {}}
    wait_seen b2 b {master connected online {}}
    # the stream goes on: b says each second that it is there
    wait_for "b2 to be as far as b" \
        {[seen b b2] eq [list slave connected online [field b master_repl_offset]]}
    set offset [field b master_repl_offset]
    set own [seen b b]
    assert_equal {myself,master connected online} [lrange $own 0 2]
    assert_range $offset [lindex $own 3] [field b master_repl_offset]
    # nobody has asked it
    assert_equal {slave disconnected {} {}} [seen c b2]
    down c
    wait_seen b c {master,fail? disconnected failed {}}
    wait_seen b2 c {master,fail? disconnected failed {}}
    back c
    wait_seen b c {master connected online {}}
    down b2
    wait_seen b b2 {slave disconnected {} {}}
    back b2
    follow b2 b
}

test {the old master returns: it overwrites nothing, and refers to who leads} {
    back a2 --appendonly no
    follow a2 a
    down a
    ask a2 replicaof no one
    wait_servers a {a2 a} b c
    set row [row b a]
    back a
    wait_for "a to refer to a2" {![catch {ask a exists bar} got] ? 0 : [string match MOVED* $got]}
    foreach command {{get bar} {set bar 2} {exists bar} {putstart bar 10} {mget bar hello}} {
        assert_error "MOVED * [at a2]" {ask a {*}$command}
    }
    assert {[log_has a "keys are referred there"]}
    assert_equal $row [row b a]
    assert_equal $row [row c a]
    follow a a2
    assert_equal $row [row a a]
    assert_error "MOVED 5061 [at a2]" {ask a set bar 2}
}

test {two shards fail over at the same time} {
    down a2
    down b
    ask a replicaof no one
    ask b2 replicaof no one
    wait_servers a {a a2} c b2 a
    wait_servers b {b2 b} c a b2
}

test {the address is the one that is announced} {
    ask b2 config set replica-announce-ip localhost
    up b3 --replica-announce-ip localhost --replica-announce-port 1234
    follow b3 b2
    down b2
    ask b3 replicaof no one
    wait_for "c to know b3" {[lindex [row c b] 1] eq "localhost:1234,[at b2],[at b]"}
}

foreach name {a b3 c} {down $name}

test {a map of one shard: who was promoted says so, though there is nobody to tell} {
    foreach name {d d2} {up $name}
    spread_map [slot_map 1 {{d 1 {d d2} 0-16383}}] d
    follow d2 d
    ask d set bar 1
    same_books d d2
    down d
    ask d2 replicaof no one
    wait_for "d2 to claim the shard" {[lindex [row d2 d] 1] eq "[at d2],[at d]"}
    assert {[lindex [row d2 d] 0] > 1}
    assert_equal [list 127.0.0.1 [port d2]] [lrange [lindex [ask d2 cluster slots] 0 2] 0 1]
    assert_match "master connected *" [string map {myself, ""} [seen d2 d2]]
    assert_match "slave *" [seen d2 d]
    assert_match *cluster_state:ok* [ask d2 cluster info]
    assert_match "*cluster_my_epoch:[lindex [row d2 d] 0]*" [ask d2 cluster info]
    # without its files the old one is a master of nothing: who knows the map is not served by it
    assert_equal OK [ask d2 client setinfo tarn-map 1]
    up e --replicaof "127.0.0.1 [port d2]"
    wait_link e
    assert_equal OK [ask e client setinfo tarn-map 1]
    down d2
    back d
    assert_error "CLUSTERDOWN This server does not know the map*" {ask d client setinfo tarn-map 1}
    assert_error "ERR tarn-map must be *" {ask d client setinfo tarn-map x}
    assert_equal OK [ask d cluster setmap d [slot_map 1 {{d 1 d 0-16383}}]]
    assert_equal OK [ask d client setinfo tarn-map 1]
    # ... nor one that had been alone for long, when there are others
    assert_error "CLUSTERDOWN*" {ask d client setinfo tarn-map 2}
    assert_equal OK [ask d cluster setmap d [slot_map 1 {{d 1 d 0-16383}}]]
    spread_map [slot_map 2 {{d 1 d 0-16383} {f 1 {} -}}] d
    assert_equal OK [ask d client setinfo tarn-map 3]
    foreach name {d e} {down $name}
}

test {as replication does it: through TLS, as masteruser with masterauth} {
    if {![have_openssl]} {skip "there is no openssl"}
    make_ca ca
    make_cert server ca
    foreach name {a a2 b} {
        up $name
        ask $name config set port [port $name] tls-cert-file [pem server.crt] \
            tls-key-file [pem server.key] tls-ca-cert-file [pem ca.crt] tls-port auto \
            tls-replication yes masteruser replica masterauth rp
        ask $name acl setuser replica on >rp resetchannels -@all +psync +replconf +ping \
            +cluster|announce +cluster|map
        ask $name acl setuser default -cluster|announce
        set secure($name) 127.0.0.1:[field $name tls_port]
    }
    set map "tarn-slots 1\nepoch 1\nshard a 1 $secure(a),$secure(a2) 0-9999\n"
    append map "shard b 1 $secure(b) 10000-16383\n"
    spread_map $map a b
    assert_equal OK [ask a2 replicaof 127.0.0.1 [field a tls_port]]
    wait_link a2
    assert_equal $map [ask a2 cluster map]
    ask b acl setuser replica >other <rp
    down a
    ask a2 replicaof no one
    wait_for "a wrong masterauth to be told" {[log_has a2 "WRONGPASS*masteruser and masterauth"]}
    assert_match "*shard a 1 $secure(a),*" [ask b cluster map]
    ask b acl setuser replica >rp
    wait_for "b to know that a2 leads shard a" \
        {[lindex [row b a] 1] eq "$::secure(a2),$::secure(a)"}
}

finish
