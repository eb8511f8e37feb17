# A pool over RDMA: server, nodes and clients with the rdma module, on a verbs library made of
# sockets (tests/fake_verbs), since there is no device where tests run. Real verbs: make test-rdma.
source [file join [file dirname [info script]] harness.tcl]

set rdma [file join [file dirname $::server_binary] tests fake_verbs rdma.so]
if {![file exists $rdma]} {
    set rdma [file join [file dirname [file dirname [file dirname $::kv_binary]]] tests fake_verbs \
        rdma.so]
}
if {[info exists ::env(TARN_RDMA_FAKE)]} {set rdma $::env(TARN_RDMA_FAKE)}
if {![file exists $rdma]} {
    test {RDMA} {skip "no module with the fake verbs library: make tests ($::rdma)"}
    finish
}
set ::env(FAKE_VERBS) devices=2
set ::env(TARN_MODULE_PATH) [file dirname $rdma]

proc bytes {n seed} {
    set block {}
    expr {srand($seed)}
    for {set i 0} {$i < 1024} {incr i} {append block [binary format c [expr {int(rand() * 256)}]]}
    return [string range [string repeat $block [expr {$n / 1024 + 1}]]$seed end-[expr {$n - 1}] end]
}
proc keys {segment} {return [segment_field $segment keys]}
# A machine that stands still for seconds is no host that is out of reach: values go where they are
# wanted, unless a test says else.
rename kv_arguments kv_arguments_of_all
proc kv_arguments {arguments} {return [kv_arguments_of_all [linsert $arguments 0 --failover 10000]]}
# [wait_keys segment ...]: each is reached by RDMA; their keys.
proc wait_keys {args} {
    foreach segment $args {
        set ::wanted $segment
        wait_for "keys of $segment" {![catch {keys $::wanted} ::found] && [llength $::found] == 1}
        lappend out [lindex $::found 0]
    }
    return $out
}
# Rows of RDMA.name as dicts for which all fields are as given.
proc rows {command args} {
    set out {}
    foreach row [r {*}$command] {
        set fits 1
        foreach {field value} $args {
            if {![dict exists $row $field] || [dict get $row $field] ne $value} {set fits 0}
        }
        if {$fits} {lappend out $row}
    }
    return $out
}
# Of those who are connected to it.
proc sessions {node} {
    set out {}
    foreach row [rows rdma.connections node $node kind peer] {lappend out [dict get $row session]}
    return [lsort -unique $out]
}
proc new_sessions {node others} {
    set out {}
    foreach s [sessions $node] {if {$s ni $others} {lappend out $s}}
    return $out
}
proc node_stat {name field} {return [dict get [node_field $name stats] $field]}
proc no_errors {answer} {
    assert_equal "0 0" [kv_fields $answer wrong errors] [dict get $answer error]
}
# All by RDMA, nothing by tcp.
proc only_rdma {answer} {
    assert {[dict get $answer rdma_bytes] > 0} "(no RDMA: $answer)"
    assert_equal {0 0} [list [dict get $answer tcp_bytes] [dict get $answer shm_bytes]] "($answer)"
    return $answer
}
# A client that may go by tcp does so where a host has not answered for a second; the next one need
# not.
proc by_rdma {args} {
    set ::by_rdma $args
    wait_for "values by RDMA: $args" {[dict get [set ::found [{*}$::by_rdma]] tcp_bytes] == 0}
    only_rdma $::found
}

start_server --pool-size 64mb --node-heartbeat 100 --node-timeout 3s --max-lease 2s \
    --loadmodule $rdma --enable-module-command local
foreach n {1 2} {start_node n$n --host-name m$n --segment 96mb --loadmodule $rdma}

# --- what is told ---

test {keys of all hosts reach the master, and through it the clients} {
    lassign [wait_keys local n1.0 n2.0] own k1 k2
    foreach k [list $own $k1 $k2] {
        assert_match rdma://*:* [lindex $k 0]
        assert {[string length [lindex $k 1]] > 128 && [string length [lindex $k 2]] > 128}
        assert {[lindex $k 1] ne [lindex $k 2]}
    }
    assert {[lindex $k1 1] ne [lindex $k2 1]}
    foreach segment {local n1.0 n2.0} {assert_equal rdma [segment_field $segment transports]}
    wait_for "figures of the node" {[catch {node_stat n1 segments-with-keys} ::found] == 0 && \
        $::found == 1}
    assert_equal rdma [dict get [lindex [node_field n1 transports] 0] transport]
    assert_match {*name=fake0*name=fake1*} [dict get [lindex [node_field n1 transports] 0] devices]
}

test {RDMA.DEVICES and RDMA.REGIONS of every host} {
    wait_for "reports of both nodes" {[llength [rows rdma.devices node n2]] == 2 && \
        [llength [rows rdma.devices node n1]] == 2}
    assert_equal 6 [llength [r rdma.devices]]
    foreach node {{} n1 n2} {
        assert_equal 1 [llength [rows rdma.devices node $node name fake0 state up]] "($node)"
        assert_equal 1 [llength [rows rdma.devices node $node name fake1 state up]] "($node)"
    }
    assert_equal m1 [dict get [lindex [rows rdma.devices node n1] 0] machine]
    assert_equal 3 [llength [r rdma.regions]]
    assert_equal 1 [llength [r rdma.regions n2.0]]
    assert_error "*nowhere*" {r rdma.regions nowhere}
    # Keys to memory are not for everybody who may read values.
    r acl setuser reader on nopass ~* +@read
    set reader [client]
    $reader auth reader any
    assert_equal 6 [llength [$reader rdma.devices]]
    assert_error "NOPERM *" {$reader rdma.regions}
    drop $reader
    r acl deluser reader
    assert {[llength [r rdma.doctor]] > 0}
}

# --- values ---

test {values of many sizes by RDMA alone} {
    foreach {at n sizes} {n1.0 200 1-5000 n2.0 60 4096-300000 n1.0 8 1048575-5000000 local 60\
            1-200000} {
        only_rdma [kv --transport rdma --prefer $at --replace load v: $n $sizes]
        only_rdma [kv_all $n --transport rdma verify v: $n $sizes]
    }
    set big [kv --transport rdma --prefer n2.0 load big: 1 33554433]
    assert {[dict get $big rdma_bytes] >= 33554433}
    kv_all 1 --transport rdma verify big: 1 33554433
    r flushall
}

test {transport=auto takes RDMA where memory is elsewhere, and what others wrote by tcp is the\
        same} {
    kv --transport tcp --prefer n1.0 load t: 50 1000-300000
    by_rdma kv_all 50 --transport auto verify t: 50 1000-300000
    by_rdma kv --transport auto --prefer n2.0 --replace load a: 50 1000-300000
    assert_equal 0 [dict get [kv_all 50 --transport tcp verify a: 50 1000-300000] rdma_bytes]
    # Two replicas: written to both.
    set a [kv --transport auto --replicas 3 load two: 20 1000-300000]
    assert_equal {0 2} [list [dict get $a tcp_bytes] \
        [expr {[dict get $a rdma_bytes] / [dict get $a shm_bytes]}]]
    foreach key {two:0 two:19} {assert_equal 3 [llength [r replica list $key]]}
    r flushall
}

test {RDMA.CONNECTIONS and RDMA.STATS show it} {
    set run [kv_start --transport rdma --prefer n1.0 --fill run c: 20 10000-200000]
    wait_for "peers of n1" {[llength [rows rdma.connections node n1]] > 0}
    set peer [lindex [rows rdma.connections node n1] 0]
    assert_equal m1 [dict get $peer machine]
    set version [node_field n1 version]
    assert_equal $version [dict get $peer version]
    wait_for "n1 to tell of it" \
        {[dict exists [node_field n1 stats] data-peers-[string map {. -} $version]]}
    no_errors [kv_stop $run]
    wait_for "no peers of n1" {[llength [rows rdma.connections node n1 kind peer]] == 0}
    assert {[llength [rows rdma.stats node n1]] > 0}
}

test {in-band values of any Redis client} {
    set before [info_field inband_rdma_bytes]
    set tcp [info_field inband_tcp_bytes]
    foreach n {65 4096 100000 1048576 1048577 5000000} {
        set value [bytes $n $n]
        kv --prefer n1.0 load p 1 100
        assert_equal OK [r set in$n $value]
        assert {[r get in$n] eq $value} "($n)"
    }
    # The embedded segment is near; these are elsewhere.
    kv --prefer n2.0 load far: 10 50000-400000
    for {set i 0} {$i < 10} {incr i} {assert {[r get far:$i] eq [kv_value far:$i]}}
    assert {[info_field inband_rdma_bytes] - $before > 500000} \
        "([info_field inband_rdma_bytes] and $before)"
    assert_equal $tcp [info_field inband_tcp_bytes]
    r flushall
}

test {copies from node to node} {
    kv --prefer n1.0 load copy: 10 1000-400000
    set served [node_stat n1 reads]
    set written [node_stat n2 copies-done]
    for {set i 0} {$i < 10} {incr i} {r replica copy copy:$i TO n2.0}
    wait_for "the copies" {[llength [r replica tasks STATE done]] >= 10}
    wait_for "figures of both" {[node_stat n2 copies-done] >= $::written + 10}
    assert_equal $served [node_stat n1 reads] "(n1 was read by tcp)"
    for {set i 0} {$i < 10} {incr i} {r replica drop copy:$i FROM n1.0}
    by_rdma kv_all 10 verify copy: 10 1000-400000
    r flushall
}

# --- who has no module, or nonsense ---

test {a client without the module goes by tcp; one that insists is told why it cannot} {
    set ::env(TARN_MODULE_PATH) /nowhere
    kv --prefer n1.0 load plain: 20 1000-300000
    set a [kv_all 20 verify plain: 20 1000-300000]
    set ::env(TARN_MODULE_PATH) [file dirname $::rdma]
    assert_equal 0 [dict get $a rdma_bytes]
    assert {[dict get $a tcp_bytes] > 0}
    r flushall
}

test {keys that are nonsense: tcp} {
    kv --prefer n1.0 load odd: 20 1000-300000
    set good [lindex [keys n1.0] 0]
    lassign $good uri read write
    set other [lindex [keys n2.0] 0]
    set instance [node_field n1 instance]
    set cut [string range $read 0 end-1]
    set far [string replace $read 12 15 \xff\xff\xff\xff]
    foreach pair [list [list {} {}] [list x y] [list $cut $cut] [list $write $read] \
        [list $far $far] [lrange $other 1 2] \
        [list [string repeat \xff 4000] [string repeat \xff 4000]] [list $read$read $write$write]] {
        r segment keys n1 $instance n1.0 1 $uri {*}$pair
        set a [kv_all 20 verify odd: 20 1000-300000]
        assert {[dict get $a tcp_bytes] > 0} "($a)"
        kv --replace --prefer n1.0 load odd: 20 1000-300000
    }
    r segment keys n1 $instance n1.0 1 $uri $read $write
    by_rdma kv_all 20 verify odd: 20 1000-300000
    r flushall
}

test {keys that lead nowhere, and better ones later, for a client that lives through it} {
    set instance [node_field n1 instance]
    lassign [lindex [keys n1.0] 0] uri read write
    # Of both devices: a port where nobody listens.
    foreach key {read write} {
        set bad_$key [set $key]
        foreach at {112 180} {
            set bad_$key [string replace [set bad_$key] $at [expr {$at + 1}] \x01\x00]
        }
    }
    r segment keys n1 $instance n1.0 1 $uri $bad_read $bad_write
    set run [kv_start --prefer n1.0 --fill --pause 1 run nowhere: 20 1000-100000]
    kv --prefer n1.0 load there: 10 1000-100000
    assert_equal 0 [dict get [kv_all 10 verify there: 10 1000-100000] rdma_bytes]
    set others [sessions n1] ;# of the server
    r segment keys n1 $instance n1.0 1 $uri $read $write
    wait_for "it to come by RDMA" {[new_sessions n1 $::others] ne ""}
    no_errors [kv_stop $run]
    r flushall
}

# --- lives ---

test {a node that is killed and started anew has other keys} {
    set old [lindex [keys n2.0] 0]
    set run [kv_start --replicas 2 --prefer n1.0 --fill --pause 1 run live: 50 1000-200000]
    kill_node n2
    wait_node n2 down
    assert_equal {} [keys n2.0]
    restart_node n2
    lassign [wait_keys n2.0] new
    assert {[lindex $new 1] ne [lindex $old 1]}
    set a [kv_stop $run]
    assert_equal 0 [kv_fields $a wrong] "($a)"
}

test {a node that is paused: what it has is read elsewhere, and it comes back} {
    kv --replicas 2 --prefer n1.0 load both: 30 1000-200000
    set run [kv_start --replicas 2 --prefer n2.0 --fill --pause 1 --failover 300 run live: 50 \
        1000-200000]
    pause_node n2
    wait_node n2 down
    kv_all 30 --failover 300 verify both: 30 1000-200000
    continue_node n2
    wait_node n2 up
    wait_keys n2.0
    assert_equal 0 [kv_fields [kv_stop $run] wrong]
    kv_all 30 verify both: 30 1000-200000
    r flushall
}

test {UNMOUNT takes the keys along; mounted again there are others} {
    kv --prefer n2.0 load gone: 5 1000-100000
    assert_equal OK [r segment unmount n2.0]
    assert_error "NOSEGMENT *" {keys n2.0}
    stop_node n2
    restart_node n2
    wait_keys n2.0
    only_rdma [kv --transport rdma --prefer n2.0 --replace load gone: 5 1000-100000]
    only_rdma [kv_all 5 --transport rdma verify gone: 5 1000-100000]
    r flushall
}

test {a master that is started anew: new epochs, regions registered afresh, old keys worth\
        nothing} {
    set old [wait_keys n1.0 n2.0]
    restart_server
    foreach n {n1 n2} {wait_node $n up}
    set new [wait_keys local n1.0 n2.0]
    assert {[lindex $new 1 1] ne [lindex $old 0 1] && [lindex $new 2 1] ne [lindex $old 1 1]}
    only_rdma [kv --transport rdma --prefer n1.0 load e: 20 1000-300000]
    only_rdma [kv_all 20 --transport rdma verify e: 20 1000-300000]
}

test {a client that lives through it finds its way by the new keys} {
    set run [kv_start --transport auto --prefer n1.0 --fill --pause 1 --timeout 20000 run through: \
        20 1000-100000]
    restart_server
    foreach n {n1 n2} {wait_node $n up}
    wait_keys n1.0 n2.0
    # What it has put meanwhile is where there was room before n1 came.
    r flushall
    wait_for "peers of n1" {[llength [rows rdma.connections node n1]] > 0}
    assert_equal 0 [kv_fields [kv_stop $run] wrong]
}

# --- devices and writers in trouble ---

# Lines for the fake library in the node n3.
proc control {args} {
    set f [open $::control a]
    foreach line $args {puts $f $line}
    close $f
}
proc device_state {node name} {
    set rows [rows rdma.devices node $node name $name]
    return [expr {[llength $rows] == 1 ? [dict get [lindex $rows 0] state] : "?"}]
}

test {a host whose ports come up late is reached by RDMA from then on, by clients that were there\
        before} {
    set control [file join [server dir] control]
    control "port fake0 down" "port fake1 down"
    set ::env(FAKE_VERBS) devices=2,control=$control
    start_node n3 --host-name m3 --segment 96mb --loadmodule $::rdma
    set ::env(FAKE_VERBS) devices=2
    wait_for "its ports to be down" {[device_state n3 fake0] eq "down" && \
        [device_state n3 fake1] eq "down"}
    set run [kv_start --prefer n3.0 --fill --pause 1 run late: 20 1000-200000]
    kv --prefer n3.0 load there: 20 1000-200000
    set a [kv_all 20 verify there: 20 1000-200000]
    assert_equal 0 [dict get $a rdma_bytes]
    control "port fake1 up"
    wait_keys n3.0
    by_rdma kv_all 20 verify there: 20 1000-200000
    wait_for "the old client to come by RDMA" {[llength [rows rdma.connections node n3 kind peer]]\
        > 0}
    no_errors [kv_stop $run]
}

test {ports that go down and up under load} {
    control "port fake0 up"
    wait_for "both ports" {[device_state n3 fake0] eq "up" && [device_state n3 fake1] eq "up"}
    set run [kv_start --prefer n3.0 --fill run ports: 30 1000-300000]
    wait_for "its peers" {[llength [rows rdma.connections node n3 kind peer]] > 0}
    foreach port {0 1 0} {
        control "port fake$port down"
        wait_for "port $port to be down" {[device_state n3 fake$::port] eq "down"} \
            [set ::port $port]
        kv_all 20 verify there: 20 1000-200000
        control "port fake$port up"
        wait_for "port $port to be up" {[device_state n3 fake$::port] eq "up"}
    }
    control "port fake0 down" "port fake1 down"
    wait_for "both to be down" {[device_state n3 fake0] eq "down" && \
        [device_state n3 fake1] eq "down"}
    assert_equal 0 [dict get [kv_all 20 verify there: 20 1000-200000] rdma_bytes]
    control "port fake0 up" "port fake1 up"
    wait_for "both ports" {[device_state n3 fake0] eq "up" && [device_state n3 fake1] eq "up"}
    by_rdma kv_all 20 verify there: 20 1000-200000
    no_errors [kv_stop $run]
}

test {a device that breaks under load, and the last one} {
    set run [kv_start --prefer n3.0 --fill run broken: 30 1000-300000]
    wait_for "its peers" {[llength [rows rdma.connections node n3 kind peer]] > 0}
    control "remove fake0"
    wait_for "it to be gone" {[device_state n3 fake0] ni {up down}}
    wait_for "keys without it" {[llength [keys n3.0]] == 1 && \
        [string first fake0 [lindex [keys n3.0] 0 1]] < 0}
    by_rdma kv_all 20 verify there: 20 1000-200000
    control "remove fake1"
    wait_for "no keys" {[keys n3.0] eq ""}
    kv_all 20 verify there: 20 1000-200000
    no_errors [kv_stop $run]
    stop_node n3
    r flushall
}

test {guarantee 3: a writer that is cut off can write no more, and its space is given out after\
        that} {
    set fenced [dict get [lindex [rows rdma.stats node n1] 0] fenced]
    set before [r config get put-timeout put-timeout-rate put-release-timeout]
    r config set put-timeout 10 put-timeout-rate 1000000000 put-release-timeout 500
    set ::env(FAKE_VERBS) devices=2,delay_us=2000000 ;# for the client: its puts stay open
    set pid [start_process [list $::kv_binary --transport rdma --prefer n1.0 \
        tarn://$::server_host:[server port] load slow: 1 3000000] [server dir]/slow]
    set ::env(FAKE_VERBS) devices=2
    wait_for "its put" {[info_field puts_open] + [info_field puts_zombie] > 0}
    wait_for "its queue pairs to be destroyed" \
        {[dict get [lindex [rows rdma.stats node n1] 0] fenced] > $::fenced}
    r config set {*}$before
    wait_for "the fence" {[info_field node_fences_pending] == 0 && [info_field puts_zombie] == 0}
    kv --prefer n1.0 load taken: 60 1000000
    reap_process $pid
    kv_all 60 verify taken: 60 1000000
    r flushall
}

test {writers that are killed in the middle} {
    wait_keys n1.0
    set others [sessions n1]
    set before [r config get put-timeout]
    r config set put-timeout 500
    for {set i 0} {$i < 5} {incr i} {
        set run [kv_start --prefer n1.0 --fill run killed: 30 100000-1000000]
        wait_for "its queue pairs" {[new_sessions n1 $::others] ne ""}
        send_signal KILL [lindex $run 0]
        reap_process [lindex $run 0]
    }
    wait_for "fences" {[info_field node_fences_pending] == 0 && [info_field puts_zombie] == 0 && \
        [info_field puts_open] == 0}
    r config set {*}$before
    wait_for "the end of their queue pairs" {[new_sessions n1 $::others] eq ""}
    kv --prefer n1.0 --replace load killed: 30 100000-1000000
    by_rdma kv_all 30 verify killed: 30 100000-1000000
    r flushall
}

test {MODULE UNLOAD is refused while the module is in use} {
    kv --prefer n1.0 load far 1 100000
    assert_equal 100000 [string length [r get far0]] ;# by an engine of the server
    assert_error "ERR *rdma*" {r module unload rdma}
    assert {[lsearch -index 1 [r module list] rdma] >= 0}
    wait_keys local
    only_rdma [kv --transport rdma --prefer n1.0 load still: 5 1000-100000]
}

test {no device: the module loads, says so, and tcp serves} {
    set ::env(FAKE_VERBS) devices=0
    start_node bare --host-name m3 --segment 32mb --loadmodule $::rdma
    set ::env(FAKE_VERBS) devices=2
    assert_equal {} [keys bare.0]
    set a [kv --transport auto --prefer bare.0 load bare: 10 1000-100000]
    assert_equal 0 [dict get $a rdma_bytes]
    assert {[dict get $a tcp_bytes] > 0}
    kv_all 10 --transport auto verify bare: 10 1000-100000
    stop_node bare
}
finish
