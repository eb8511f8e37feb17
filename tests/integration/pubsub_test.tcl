# SUBSCRIBE and its kin, PUBLISH, PUBSUB: who gets what, RESP2 and RESP3, bounds, slow listeners,
# CLIENT LIST and KILL.
source [file join [file dirname [info script]] harness.tcl]
start_server --enable-debug-command yes

proc says {c args} {
    foreach expected $args {assert_equal $expected [resp::recv $c]}
}

test {subscribe, message, unsubscribe} {
    set c [client]
    resp::send $c subscribe a b a
    says $c {subscribe a 1} {subscribe b 2} {subscribe a 2}
    assert_equal 1 [r publish a hello]
    assert_equal 0 [r publish nobody hello]
    assert_equal 1 [r publish b {}]
    says $c {message a hello} {message b {}}
    resp::send $c unsubscribe a nothing
    says $c {unsubscribe a 1} {unsubscribe nothing 1}
    assert_equal 0 [r publish a lost]
    resp::send $c unsubscribe
    says $c {unsubscribe b 0}
    resp::send $c unsubscribe
    says $c {unsubscribe (nil) 0}
    assert_equal PONG [$c ping]
    drop $c
}

test {patterns: one message for each that matches, direct ones first} {
    set c [client]
    resp::send $c psubscribe n* {n[ab]} *
    says $c {psubscribe n* 1} {psubscribe {n[ab]} 2} {psubscribe * 3}
    resp::send $c subscribe na
    says $c {subscribe na 4}
    assert_equal 4 [r publish na x]
    says $c {message na x} {pmessage n* na x} {pmessage {n[ab]} na x} {pmessage * na x}
    assert_equal 2 [r publish nc x]
    says $c {pmessage n* nc x} {pmessage * nc x}
    resp::send $c punsubscribe n*
    says $c {punsubscribe n* 3}
    resp::send $c punsubscribe
    says $c {punsubscribe {n[ab]} 2} {punsubscribe * 1}
    resp::send $c punsubscribe
    says $c {punsubscribe (nil) 1}
    assert_equal 1 [r publish na x]
    says $c {message na x}
    drop $c
}

test {many listeners, each in its order} {
    set listeners {}
    for {set i 0} {$i < 30} {incr i} {
        set c [client]
        if {$i % 2} {$c hello 3}
        $c subscribe all
        lappend listeners $c
    }
    for {set i 0} {$i < 200} {incr i} {assert_equal 30 [r publish all $i]}
    foreach c $listeners {
        for {set i 0} {$i < 200} {incr i} {says $c [list message all $i]}
    }
    foreach c $listeners {drop $c}
    wait_for "no listener" {[r publish all x] == 0}
}

test {any bytes, and large messages} {
    set c [client]
    set name "a\r\n\0\xff"
    $c subscribe $name
    foreach size {0 1 1000 40000 3000000} {
        set value [string repeat "\0\r\n$size" [expr {$size / 4}]]
        assert_equal 1 [r publish $name $value]
        assert {[resp::recv $c] eq [list message $name $value]}
    }
    drop $c
}

test {RESP2: only the words of a listener} {
    set c [client]
    $c subscribe a
    foreach request {{get a} {multi} {exec} {publish a b} {client id} {config get x} {hello 3}} {
        assert_error "ERR Can't execute '*': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING /\
            QUIT / RESET are allowed in this context" {$c {*}$request}
    }
    assert_match "*'config|get'*" [catch {$c config get x} error]$error
    assert_equal {pong {}} [$c ping]
    assert_equal {pong hi} [$c ping hi]
    assert_equal RESET [$c reset]
    assert_equal PONG [$c ping]
    assert_equal 0 [r publish a x]
    $c ssubscribe s
    assert_error "ERR Can't*" {$c get a}
    assert_equal OK [$c quit]
    assert_error "*closed*" {$c ping}
    drop $c
}

test {RESP3: messages are pushes beside any other command} {
    set c [client]
    $c hello 3
    resp::raw $c [resp::encode {subscribe a}]
    assert_equal ">3\r\n\$9\r\nsubscribe\r\n\$1\r\na\r\n:1\r\n" [resp::recv_raw $c 30]
    r publish a x
    assert_equal ">3\r\n\$7\r\nmessage\r\n\$1\r\na\r\n\$1\r\nx\r\n" [resp::recv_raw $c 31]
    assert_equal OK [$c set k v]
    assert_equal v [$c get k]
    assert_equal PONG [$c ping]
    resp::send $c publish a self
    says $c {message a self} 1
    drop $c
}

test {RESP3: a message does not cut a reply in two} {
    set c [client]
    $c hello 3
    $c subscribe a
    $c multi
    resp::send $c echo 1
    says $c QUEUED
    resp::send $c publish a self
    resp::send $c debug wait 100
    says $c QUEUED QUEUED
    resp::send $c exec
    wait_for "the sleep" {[info_field blocked_clients] == 1}
    drop $c
    set c [client]
    $c hello 3
    $c subscribe a
    $c multi
    foreach request {{echo 1} {publish a self} {debug wait 0.2} {echo 2}} {
        resp::send $c {*}$request
        says $c QUEUED
    }
    resp::send $c exec
    wait_for "the sleep" {[info_field blocked_clients] == 1}
    assert_equal 1 [r publish a other]
    says $c {1 1 OK 2} {message a self} {message a other}
    assert_equal 1 [r publish a after]
    says $c {message a after}
    drop $c
}

test {RESP3: what a command tells its own client does not cut its reply in two} {
    r config set notify-keyspace-events KEmn
    set c [client]
    $c hello 3
    $c psubscribe __keyevent@0__:*
    resp::send $c mexists 3 none:1 none:2 none:3
    says $c {0 0 0} {pmessage __keyevent@0__:* __keyevent@0__:keymiss none:1} \
        {pmessage __keyevent@0__:* __keyevent@0__:keymiss none:2} \
        {pmessage __keyevent@0__:* __keyevent@0__:keymiss none:3}
    drop $c
    r config set notify-keyspace-events {}
}

test {SUBSCRIBE in EXEC} {
    set c [client]
    $c multi
    $c subscribe a
    $c ping
    $c ssubscribe s
    assert_equal {{subscribe a 1} {pong {}} {(error) ERR SSUBSCRIBE isn't allowed for a DENY\
        BLOCKING client}} [$c exec]
    assert_error "ERR Can't execute 'get'*" {$c get a}
    assert_equal 1 [r publish a x]
    says $c {message a x}
    drop $c
}

test {CLIENT REPLY OFF silences replies, not messages} {
    set c [client]
    $c hello 3
    resp::send $c client reply off
    resp::send $c get nothing
    resp::send $c subscribe a
    says $c {subscribe a 1}
    resp::send $c publish a self
    says $c {message a self}
    r publish a x
    says $c {message a x}
    assert_equal OK [$c client reply on]
    drop $c
}

test {shard channels are channels of their own} {
    set c [client]
    resp::send $c ssubscribe a b
    says $c {ssubscribe a 1} {ssubscribe b 2}
    resp::send $c subscribe a
    says $c {subscribe a 1}
    resp::send $c psubscribe *
    says $c {psubscribe * 2}
    assert_equal 2 [r publish a plain]
    assert_equal 1 [r spublish a shard]
    says $c {message a plain} {pmessage * a plain} {smessage a shard}
    assert_equal {a b} [lsort [r pubsub shardchannels]]
    assert_equal b [r pubsub shardchannels b*]
    assert_equal {a 1 b 1 c 0} [r pubsub shardnumsub a b c]
    assert_equal a [r pubsub channels]
    resp::send $c sunsubscribe a
    says $c {sunsubscribe a 1}
    resp::send $c sunsubscribe
    says $c {sunsubscribe b 0}
    resp::send $c sunsubscribe
    says $c {sunsubscribe (nil) 0}
    assert_equal 0 [r spublish a shard]
    drop $c
}

test {PUBSUB CHANNELS, NUMSUB, NUMPAT, INFO} {
    wait_for "nobody listens" {[r pubsub channels] eq {}}
    set a [client]
    set b [client]
    $a subscribe x
    $b subscribe x
    $b subscribe xy
    $a psubscribe p*
    $b psubscribe p*
    $b psubscribe q*
    assert_equal {x xy} [lsort [r pubsub channels]]
    assert_equal xy [r pubsub channels ?y]
    assert_equal {} [r pubsub channels nothing*]
    assert_equal {x 2 xy 1 z 0} [r pubsub numsub x xy z]
    assert_equal {} [r pubsub numsub]
    assert_equal 2 [r pubsub numpat]
    assert_equal {2 2 0} [list [info_field pubsub_channels] [info_field pubsub_patterns] \
        [info_field pubsubshard_channels]]
    assert_error "ERR unknown subcommand*" {r pubsub nothing}
    assert_error "ERR wrong number*" {r pubsub channels a b}
    assert {[llength [r pubsub help]] > 5}
    drop $a
    drop $b
    wait_for "nobody listens" {[r pubsub channels] eq {} && [r pubsub numpat] == 0}
    r multi
    r pubsub channels
    assert_equal {{}} [r exec]
}

test {CLIENT LIST and KILL by TYPE, ID, ADDR, LADDR, USER, SKIPME} {
    set s [client]
    set id [$s client id]
    $s subscribe a
    $s subscribe b
    $s psubscribe p*
    $s ssubscribe s
    assert_match "id=$id * flags=P * sub=2 psub=1 ssub=1 *" [r client list type pubsub]
    assert_match "* cmd=ssubscribe *" [r client list id $id]
    assert {![string match "*id=$id *" [r client list type normal]]}
    assert_equal {} [r client list type replica]
    set n [client]
    set nid [$n client id]
    assert_equal 0 [r client kill type master]
    assert_equal 0 [r client kill type normal id $id]
    assert_equal 0 [r client kill id $nid type pubsub]
    assert_equal 1 [r client kill type pubsub]
    assert_error "*closed*" {$s ping}
    assert_equal PONG [$n ping]
    regexp {addr=(\S+) laddr=(\S+)} [$n client info] - addr laddr
    assert_equal 0 [r client kill addr $addr laddr 1.2.3.4:5]
    assert_equal 0 [r client kill addr $addr user default type pubsub]
    assert_equal 1 [r client kill addr $addr laddr $laddr user default skipme yes]
    assert_error "*closed*" {$n ping}
    set n [client]
    regexp {addr=(\S+)} [$n client info] - addr
    assert_equal OK [r client kill $addr]
    assert_error "*closed*" {$n ping}
    assert_error "ERR No such client" {r client kill $addr}
    set n [client]
    assert_equal 1 [$n client kill id [$n client id] skipme no]
    assert_error "*closed*" {$n ping}
    assert_equal 0 [r client kill id [r client id]]
    assert_error "ERR client-id should be greater than 0" {r client kill id 0}
    assert_error "ERR Unknown client type 'x'" {r client kill type x}
    assert_error "ERR No such user 'x'" {r client kill user x}
    assert_error "ERR syntax error" {r client kill id 5 skipme}
    only_main_client
}

test {a listener that is idle is not closed, one that goes is forgotten} {
    r config set timeout 1
    set s [client]
    $s subscribe a
    set n [client]
    $n ping
    wait_for "the idle client is closed" {[info_field idle_connections_closed] >= 1}
    assert_equal 1 [r publish a x]
    says $s {message a x}
    r config set timeout 0
    drop $s
    drop $n
    wait_for "nobody listens" {[r publish a x] == 0}
}

test {a listener that does not read is closed by its limit, others are not} {
    r config set client-output-buffer-limit "pubsub 2mb 0 0"
    set slow [client]
    set fast [client]
    $slow subscribe a
    $fast subscribe a
    set value [string repeat x 100000]
    for {set i 0} {$i < 1000 && [r publish a $value] == 2} {incr i} {
        assert {[resp::recv $fast] eq [list message a $value]}
    }
    assert {$i > 10 && $i < 1000}
    assert {[resp::recv $fast] eq [list message a $value]}
    assert {[info_field client_output_buffer_limit_disconnections] >= 1}
    r config set client-output-buffer-limit "pubsub 32mb 8mb 60"
    drop $slow
    drop $fast
}

test {bounds of names and patterns} {
    set c [client]
    assert_error "ERR A channel has at most 4096 bytes" {$c subscribe [string repeat x 4097]}
    assert_error "ERR A pattern has at most 1024 bytes" {$c psubscribe [string repeat x 1025]}
    assert_error "ERR A channel has at most 4096 bytes" {r publish [string repeat x 4097] m}
    assert_equal PONG [$c ping]
    $c subscribe [string repeat x 4096]
    assert_equal 1 [r publish [string repeat x 4096] m]
    resp::recv $c
    set patterns {}
    for {set i 0} {$i < 10000} {incr i} {lappend patterns p$i}
    resp::send $c psubscribe {*}$patterns
    for {set i 0} {$i < 10000} {incr i} {resp::recv $c}
    assert_error "ERR There are *" {$c psubscribe more}
    set d [client]
    assert_error "ERR There are *" {$d psubscribe more}
    assert_equal {psubscribe p5 1} [$d psubscribe p5]
    assert_equal 2 [r publish p5 x]
    drop $c
    wait_for "its patterns to go" {[r pubsub numpat] == 1}
    drop $d
}

test {many channels, and the end of their listener} {
    set c [client]
    set names {}
    for {set i 0} {$i < 100000} {incr i} {lappend names c$i}
    resp::send $c subscribe {*}$names
    for {set i 0} {$i < 100000} {incr i} {resp::recv $c}
    assert_error "ERR There are *" {$c subscribe more}
    assert_equal 100000 [llength [lsort -unique [r pubsub channels]]]
    assert_equal 11 [llength [r pubsub channels c7777*]]
    regexp {tot-mem=(\d+)} [r client list type pubsub] - memory
    assert {$memory > 100000 * 100}
    drop $c
    wait_for "its channels to go" {[info_field pubsub_channels] == 0}
}

finish
