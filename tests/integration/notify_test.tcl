# Keyspace notifications: Redis' letters, Redis' names of events for each command, tarn's own, in
# MULTI, by themselves, RESP2 and RESP3, patterns; and what is not told.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 16mb --eviction-high-watermark 1

set listener [client]
$listener psubscribe __key*
$listener subscribe fence

# "event key" of all that was told since the last call: what came before a message of our own.
proc told {} {
    r publish fence x
    set out {}
    while {[set m [resp::recv $::listener]] ne {message fence x}} {
        lassign $m - - channel payload
        if {[regexp {^__keyevent@0__:(.*)$} $channel - event]} {
            lappend out "$event $payload"
        } elseif {[regexp {^__keyspace@0__:(.*)$} $channel - key]} {
            lappend out "/$payload $key"
        } else {
            error "a message of $channel"
        }
    }
    return $out
}
proc classes {letters} {r config set notify-keyspace-events $letters}
proc expect {script args} {
    told
    uplevel #0 $script
    assert_equal $args [told] "($script)"
}
proc letters {} {lindex [r config get notify-keyspace-events] 1}

# A put in two steps; the end of it is another command's.
proc begin_put {key size args} {lindex [r putstart $key $size {*}$args] 0}

test {the letters are shown as Redis orders them; others are refused} {
    assert_equal {} [letters]
    foreach {given shown} {
        KEA AKE gKE gKE {g$lshzxeKE} {g$lshzxeKE} KA AK EA AE Elg\$ {g$lE} mKn nKm {} {} NPE EPN \
            xK xK g\$lshzxetdE AE AmnPNKE AnKEmPN
    } {
        classes $given
        assert_equal $shown [letters] "($given)"
    }
    assert_error "*must be letters of*" {r config set notify-keyspace-events KEy}
    assert_equal AnKEmPN [letters]
    classes KEA
}

test {nothing is said without K or E} {
    classes A
    expect {r set a 1; r del a}
    classes {}
    expect {r set a 1; r del a}
}

test {K names the event in the channel of the key, E the key in that of the event} {
    classes KEA
    expect {r set a 1} {/set a} {set a}
    classes KA
    expect {r set a 1} {/set a}
    classes EA
    expect {r set a 1} {set a}
    expect {r del a nothing} {del a}
}

test {a class that is not chosen is silent} {
    classes E$
    expect {r set a 1 ex 100; r del a} {set a}
    classes Eg
    expect {r set a 1 ex 100; r del a} {expire a} {del a}
    classes Exe
    expect {r set a 1 ex 100; r del a; r append b x; r unlink b}
}

test {the commands of strings, by Redis' names} {
    classes EA
    foreach {script events} {
        {r set k 1} {{set k}}
        {r set k 2 ex 100} {{set k} {expire k}}
        {r set k 3 keepttl} {{set k}}
        {r set k 4 nx} {}
        {r set nothing 4 xx} {}
        {r set k 5 get} {{set k}}
        {r getset k 6} {{set k}}
        {r setnx k 7} {}
        {r setnx k2 7} {{set k2}}
        {r setex k 100 8} {{set k} {expire k}}
        {r psetex k 100000 8} {{set k} {expire k}}
        {r mset k 1 k2 2} {{set k} {set k2}}
        {r msetnx k3 1 k 2} {}
        {r msetnx k3 1 k4 2} {{set k3} {set k4}}
        {r incr k} {{incrby k}}
        {r decr k} {{incrby k}}
        {r incrby k 5} {{incrby k}}
        {r decrby k 5} {{incrby k}}
        {r incrbyfloat k 1.5} {{incrbyfloat k}}
        {catch {r incr k}} {}
        {r append k xy} {{append k}}
        {r setrange k 1 abc} {{setrange k}}
        {r setrange k 1 {}} {}
        {r get k; r getrange k 0 1; r strlen k; r mget k k2; r exists k} {}
        {r getdel k} {{del k}}
        {r getdel k} {}
    } {expect $script {*}$events}
    # Large ones take other ways.
    set ::big [string repeat x 200000]
    expect {r set k $big} {set k}
    expect {r append k $big} {append k}
    expect {r setex k 100 $big} {set k} {expire k}
    expect {r getset k $big} {set k}
    expect {r flushall}
}

test {the commands of keys and times} {
    r mset k 1 k2 2 k3 3
    foreach {script events} {
        {r expire k 100} {{expire k}}
        {r pexpire k 100000} {{expire k}}
        {r expireat k 99999999999} {{expire k}}
        {r pexpireat k 99999999999000} {{expire k}}
        {r expire k 10 gt} {}
        {r expire nothing 100} {}
        {r persist k} {{persist k}}
        {r persist k} {}
        {r getex k ex 100} {{expire k}}
        {r getex k} {}
        {r getex k persist} {{persist k}}
        {r getex k persist} {}
        {r getex k pxat 1} {{del k}}
        {r expire k2 -1} {{del k2}}
        {r del k k2 k3} {{del k3}}
        {r set k 1} {{set k}}
        {r rename k k2} {{rename_from k} {rename_to k2}}
        {r renamenx k2 k} {{rename_from k2} {rename_to k}}
        {r copy k k2} {{copy_to k2}}
        {r touch k; r type k; r ttl k; r randomkey} {}
        {r unlink k k2} {{del k} {del k2}}
    } {expect $script {*}$events}
}

test {n: keys that were not there} {
    classes En$
    expect {r set k 1} {new k} {set k}
    expect {r set k 2} {set k}
    expect {r append k x; r append k2 x} {append k} {new k2} {append k2}
    expect {r rename k k3} {new k3}
    expect {r set k3 $big} {set k3}
    set t [begin_put p 100000]
    expect {r putend p $t -1} {new p}
    set t [begin_put p 100000 REPLACE]
    expect {r putend p $t -1}
    r flushall
    expect {r set k3 1} {new k3} {set k3}
    r flushall
}

test {m: reads of keys that are not there} {
    classes Em
    foreach script {
        {r get k} {r getrange k 0 1} {r substr k 0 1} {r strlen k} {r mget k} {r getex k} \
            {r getdel k} {r exists k}
        {r getex k ex x}
        {r type k} {r ttl k} {r pttl k} {r expiretime k} {r pexpiretime k} {r touch k} \
            {r getset k v; r del k} {r set k v xx get}
        {r getreplicas k} {r mgetreplicas 1 k} {r mexists 1 k} {r prefixlen 1 k}
    } {expect $script {keymiss k}}
    expect {r mget a b; r exists a b} {keymiss a} {keymiss b} {keymiss a} {keymiss b}
    expect {r copy a c} {keymiss a}
    expect {r incr k; r append k 1; r set k 2; r get k; r expire nothing 1; r del k k}
    # What looks at how a key is kept, or looks before it writes.
    foreach script {
        {r object encoding k} {r object freq k} {r object idletime k} {r object refcount k} \
            {r memory usage k} {r debug object k}
        {r watch k; r unwatch} {r randomkey} {r scan 0 type string match k} {r keys k} \
            {r expire k 9} {r persist k} {r rename k k2}
        {r renamenx k k2} {r set k v xx} {r setrange k 0 ""}
        {r del k} {r unlink k} {r getrange k x 1}
    } {
        catch $script
        assert_equal {} [told] $script
    }
    classes EA
    expect {r get k}
}

test {expired: by itself, and when somebody looks} {
    classes ExP
    expect {r set k v px 20; wait_for "its end" {[r dbsize] == 0}} {put k} {expired k}
    r mset a 1 b 2
    told
    set ms [expr {[clock milliseconds] + 1000}]
    r pexpireat a $ms
    r pexpireat b $ms
    while {[clock milliseconds] <= $ms} {after 10}
    r get a
    r set b 3
    wait_for "two" {[info_field expired_keys] >= 2}
    assert_equal {{expired a} {expired b} {put b}} [lsort [told]]
    r flushall
}

test {evicted: for room, by EVICT, in the background} {
    classes Ee
    set ::big [string repeat x 3000000]
    expect {for {set i 0} {$i < 8} {incr i} {r set e$i $big}} {evicted e0} {evicted e1} {evicted e2}
    expect {r evict KEYS 2 e3 e4} {evicted e3} {evicted e4}
    r flushall
}

test {tarn's own: put, removed, flushed; and none of Redis' for PUTEND} {
    classes EAP
    set t [begin_put p 100000]
    expect {r putend p $t -1} {put p}
    set t [begin_put q 10]
    expect {r putend q $t -1 VALUE 0123456789} {put q}
    set t [begin_put x 100000]
    expect {r putrevoke x $t}
    set a [begin_put m1 100000]
    set b [begin_put m2 100000]
    expect {r mputend 2 m1 $a -1 m2 $b -1} {put m1} {put m2}
    expect {r set s 1} {put s} {set s}
    expect {r del s} {removed s} {del s}
    told
    r removematch GLOB m?
    assert_equal {{del m1} {del m2} {removed m1} {removed m2}} [lsort [told]]
    expect {r getdel q} {removed q} {del q}
    expect {r expire p 0} {removed p} {del p}
    expect {r flushall} {flushed }
    classes KP
    expect {r set s 1} {/put s}
    expect {r flushdb}
}

test {in MULTI: when EXEC runs, in its order; the transaction's own listener hears it behind the\
        replies} {
    classes EA
    set ::c [client]
    expect {$c multi; $c set a 1; $c incr a; $c del a nothing; $c mset b 1 c 2; $c expire b 100}
    expect {$c exec} {set a} {incrby a} {del a} {set b} {set c} {expire b}
    expect {$c multi; $c set a 1; $c discard}
    $c hello 3
    $c psubscribe __keyevent@0__:*
    resp::send $c multi
    resp::send $c set a 1
    resp::send $c mget a b
    resp::send $c exec
    assert_equal {OK QUEUED QUEUED {OK {1 1}}} [list [resp::recv $c] [resp::recv $c] \
        [resp::recv $c] [resp::recv $c]]
    assert_equal {pmessage __keyevent@0__:* __keyevent@0__:set a} [resp::recv $c]
    drop $c
    r flushall
}

test {RESP3 listeners get pushes; patterns choose keys and events} {
    classes KEA
    set c [client]
    $c hello 3
    $c psubscribe {__keyspace@0__:user:*}
    $c subscribe __keyevent@0__:del
    r mset user:1 a other b
    r del user:1 other
    resp::raw $c {}
    assert_equal {pmessage __keyspace@0__:user:* __keyspace@0__:user:1 set} [resp::recv $c]
    assert_equal {pmessage __keyspace@0__:user:* __keyspace@0__:user:1 del} [resp::recv $c]
    assert_equal {message __keyevent@0__:del user:1} [resp::recv $c]
    assert_equal {message __keyevent@0__:del other} [resp::recv $c]
    assert_equal PONG [$c ping]
    drop $c
}

test {keys of any bytes, and of any length} {
    set key [string repeat "\0\r\n\xff" 256]
    classes KE$
    told
    r set $key 1
    assert {[told] eq [list "/set $key" "set $key"]}
    r flushall
}

test {who may not use the channels hears nothing} {
    classes KEA
    r acl setuser u on >p allkeys allcommands resetchannels &__keyspace@0__:mine:*
    set c [client]
    $c auth u p
    assert_error "NOPERM*" {$c psubscribe __key*}
    $c psubscribe __keyspace@0__:mine:*
    r set yours:1 x
    r set mine:1 x
    assert_equal {pmessage __keyspace@0__:mine:* __keyspace@0__:mine:1 set} [resp::recv $c]
    drop $c
}

test {a listener that does not read is closed by its limit; writers go on} {
    classes EA
    r config set client-output-buffer-limit "pubsub 1mb 0 0"
    set slow [client]
    resp::send $slow subscribe __keyevent@0__:set
    set before [info_field client_output_buffer_limit_disconnections]
    set key [string repeat k 1000]
    for {set i 0} {$i < 200 && [info_field client_output_buffer_limit_disconnections] == $before} \
            {incr i} {
        for {set k 0} {$k < 200} {incr k} {resp::send [r] set $key$k 1}
        for {set k 0} {$k < 200} {incr k} {resp::recv [r]}
        told
    }
    assert {[info_field client_output_buffer_limit_disconnections] > $before}
    drop $slow
    r flushall
}

stop_server

test {CONFIG REWRITE keeps the letters; a start reads them} {
    set ::file [temp_dir]/tarn.conf
    close [open $::file w]
    rename server_command plain_command
    proc server_command {dir options} {linsert [plain_command $dir $options] 1 $::file}
    start_server
    classes KEAPn
    assert_equal OK [r config rewrite]
    stop_server
    assert_match "*notify-keyspace-events AnKEP*" [file_text $::file]
    start_server
    assert_equal AnKEP [letters]
    classes {}
    r config rewrite
    stop_server
    assert_equal 0 [regexp {notify-keyspace-events [A-Z]} [file_text $::file]]
    rename server_command {}
    rename plain_command server_command
}

proc listen {} {
    set ::listener [client]
    $::listener psubscribe __key*
    $::listener subscribe fence
    told
}

test {nodes come, are silent, and leave; only the channel of the event has them} {
    start_server --pool-size 0 --node-heartbeat 100 --notify-keyspace-events KENe
    listen
    start_node n1
    assert_equal {{node-up n1}} [told]
    kill_node n1
    wait_node n1 down
    assert_equal {{node-down n1}} [told]
    restart_node n1
    assert_equal {{node-up n1}} [told]
    stop_node n1
    wait_node n1 ""
    assert_equal {{node-left n1}} [told]
    stop_server
}

test {replicas: promoted to memory, demoted to a disk, lost with it} {
    start_server --pool-size 0 --node-heartbeat 100 --notify-keyspace-events EPe
    listen
    start_node n1 --segment 8mb --ssd [temp_dir]/ssd:16mb
    kv_all 3 load a: 3 300000
    wait_for "copies on the disk" {[info_field far_replicas] == 3}
    assert_equal {{put a:0} {put a:1} {put a:2}} [told]
    expect {r evict KEYS 2 a:0 a:1} {demoted a:0} {demoted a:1}
    r getreplicas a:0 lease 1000
    r getreplicas a:0 lease 1000
    wait_for "a:0 in memory" {[info_field far_objects] == 1}
    assert_equal {{promoted a:0}} [told]
    r node leave n1
    wait_node n1 ""
    # Its memory goes before its disk, or after it.
    assert_equal {{lost a:0} {lost a:1} {lost a:2}} [lsort [lsearch -all -inline [told] lost*]]
    stop_server
}

test {a replica tells nothing of what it hears, only of what is looked for there; all when it\
        leads} {
    set master [start_server]
    start_server --notify-keyspace-events KEAPnm --pool-size 0
    listen
    r replicaof 127.0.0.1 [dict get $master port]
    wait_for "the link" {[info_field master_link_status] eq "up"}
    set ::far [resp::connect 127.0.0.1 [dict get $master port]]
    $far set b 1 px 1
    $far set a 1
    wait_for "the key" {[r exists a] == 1}
    $far publish fence x
    while {[set m [resp::recv $listener]] ne {message fence x}} {assert_match *keymiss* $m}
    resp::close $far
    expect {r exists nothing} {/keymiss nothing} {keymiss nothing}
    r replicaof no one
    wait_for "it leads" {[info_field role] eq "master"}
    listen
    expect {r set a 2} {/put a} {put a} {/set a} {set a}
    stop_server
    stop_server
}

finish
