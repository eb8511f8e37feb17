# DEBUG.
source [file join [file dirname [info script]] harness.tcl]

proc refused {} {
    foreach request {help {sleep 0} {object a} {set-active-expire 0} nonsense} {
        assert_error "ERR DEBUG command not allowed*enable-debug-command*" {r debug {*}$request}
    }
}

test {enable-debug-command: no, local, yes} {
    start_server
    assert_equal {enable-debug-command no} [r config get enable-debug-command]
    refused
    assert_error "ERR CONFIG SET failed*" {r config set enable-debug-command yes}
    stop_server
    start_server --enable-debug-command local
    assert_match *SLEEP* [r debug help]
    stop_server
}

start_server --enable-debug-command yes

test {SLEEP holds the server, WAIT does not} {
    r config resetstat
    set before [clock milliseconds]
    assert_equal OK [r debug sleep 0.15]
    assert {[clock milliseconds] - $before >= 150}
    assert {[info_field loop_longest_turn_usec] >= 150000}
    assert_equal OK [r debug sleep 0]
    assert_equal OK [r debug wait 0.01]
    set other [client]
    resp::send $other debug wait 1000
    wait_for "the wait" {[info_field blocked_clients] == 1}
    assert_equal PONG [r ping]
    drop $other
    wait_for "its end" {[info_field blocked_clients] == 0}
    foreach bad {x "" -1 4000 nan 1x} {
        assert_error "ERR sleep must be a number of seconds from 0 to 3600" {r debug sleep $bad}
        assert_error "ERR WAIT must be a number of seconds from 0 to 3600" {r debug WAIT $bad}
    }
}

test {what is not there, and HELP} {
    foreach request {nonsense sleep {sleep 1 2} {check x} {object} {digest x}} {
        assert_error "ERR unknown subcommand or wrong number of arguments for '[lindex $request\
                0]'. Try DEBUG HELP." {
            r debug {*}$request
        }
    }
    set help [r debug help]
    foreach name {SLEEP WAIT OBJECT POPULATE PROTOCOL JMAP LOG SET-ACTIVE-EXPIRE PAUSE-CRON\
            CHANGE-REPL-ID} {
        assert {[lsearch -glob $help $name*] > 0} $name
    }
    foreach name {set-active-expire pause-cron set-disable-deny-scripts} {
        assert_error "ERR value is not an integer or out of range" {r debug $name x}
        assert_error "ERR $name must be 0 or 1" {r debug $name 2}
    }
    assert_equal OK [r debug set-disable-deny-scripts 1]
}

test {OBJECT} {
    assert_error "ERR no such key" {r debug object nokey}
    r set a 123
    assert_match "Value at:0x* refcount:1 encoding:int serializedlength:3 lru:* lru_seconds_idle:*\
        version:*" [r debug object a]
    r set a [string repeat x 5000]
    assert_match "* encoding:raw serializedlength:5000 *" [r debug object a]
}

test {POPULATE} {
    r flushall
    r set key:3 mine
    assert_equal OK [r debug populate 2000]
    assert_equal 2000 [r dbsize]
    assert_equal {value:0 mine value:1999} [r mget key:0 key:3 key:1999]
    assert_equal OK [r debug populate 10 small 20]
    assert_equal "value:7[string repeat \0 13]" [r get small:7]
    assert_equal OK [r debug populate 10 tiny 3]
    assert_equal val [r get tiny:7]
    assert_equal OK [r debug populate 10 big 2500000]
    assert_equal 2500000 [r strlen big:9]
    assert {[r get big:9] eq "value:9[string repeat \0 2499993]"}
    assert_equal OK [r debug populate 0]
    assert_error "ERR count must be a number from 0 to 4294967295" {r debug populate x}
    assert_error "ERR size must be a number from 0 to 536870912" {r debug populate 1 p 1000000000}
    assert_error "ERR prefix must be up to * bytes" {r debug populate 1 [string repeat p 1024]}
    # More than the pool holds: others make room, none is half there.
    assert_equal OK [r debug populate 100 many 1000000]
    assert_equal 1000000 [r strlen many:99]
    assert_error "NOSPACE*" {r debug populate 1 toolarge 100000000}
    set other [client]
    set id [$other client id]
    resp::send $other debug populate 1000000 gone 100000
    wait_for "it to be under way" {[r exists gone:5] == 1}
    assert_equal 1 [r client kill id $id]
    drop $other
    wait_for "its end" {[info_field blocked_clients] == 0 && [info_field puts_open] == 0}
    assert_equal OK [r debug check]
    r flushall
}

test {PROTOCOL: a value of each type, in both protocols} {
    set c [client]
    foreach {type two three} [list string "\$11\r\nHello World\r\n" "" integer ":12345\r\n" "" \
        double "\$5\r\n3.141\r\n" ",3.141\r\n" null "\$-1\r\n" "_\r\n" array \
        "*3\r\n:0\r\n:1\r\n:2\r\n" "" \
        set "*3\r\n:0\r\n:1\r\n:2\r\n" "~3\r\n:0\r\n:1\r\n:2\r\n" \
        map "*6\r\n:0\r\n:0\r\n:1\r\n:1\r\n:2\r\n:0\r\n" \
        "%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f\r\n" \
        true ":1\r\n" "#t\r\n" false ":0\r\n" "#f\r\n" \
        verbatim "\$25\r\nThis is a verbatim\nstring\r\n" \
        "=29\r\ntxt:This is a verbatim\nstring\r\n" \
        bignum "\$37\r\n1234567999999999999999999999999999999\r\n" \
        "(1234567999999999999999999999999999999\r\n" \
        attrib "\$39\r\nSome real reply following the attribute\r\n" \
        "|1\r\n\$14\r\nkey-popularity\r\n*2\r\n\$7\r\nkey:123\r\n:90\r\n\$39\r\nSome real reply\
        following the attribute\r\n" \
        push "*2\r\n\$16\r\nserver-cpu-usage\r\n:42\r\n" \
        ">2\r\n\$16\r\nserver-cpu-usage\r\n:42\r\n\$40\r\nSome real reply following the push\
        reply\r\n"] {
        foreach proto {2 3} {
            $c hello $proto
            set expected [expr {$proto == 3 && $three ne "" ? $three : $two}]
            resp::send $c debug protocol $type
            assert_equal $expected [resp::recv_raw $c [string length $expected]] \
                "$type in RESP$proto"
        }
    }
    $c hello 2
    assert_error "ERR Wrong protocol type name*bignum" {$c debug protocol hash}
    assert_error "MYCODE and a text" {$c debug error "MYCODE and a text"}
    assert_error "MYCODE  -ERR other" {$c debug error "MYCODE\r\n-ERR other"}
    assert_equal PONG [$c ping]
    assert_match "*errorstat_MYCODE:count=2*" [$c info errorstats]
    drop $c
}

test {LOG and JMAP write to the log} {
    assert_equal OK [r debug log "here I am"]
    assert_match "*DEBUG LOG: here I am\n*" [file_text [server log]]
    assert_equal OK [r debug jmap]
    assert_match {*DEBUG JMAP: *-* r*tarn-server*DEBUG JMAP: * mappings*} [file_text [server log]]
}

test {PAUSE-CRON, STRINGMATCH-LEN, CHANGE-REPL-ID} {
    set idle [client]
    $idle ping
    assert_equal OK [r debug pause-cron 1]
    r config set timeout 1
    after 1200
    r ping
    assert_equal PONG [$idle ping]
    r config set timeout 0
    assert_equal OK [r debug pause-cron 0]
    drop $idle
    assert_equal {1 0 1} [list [r debug stringmatch-len 100000 a*a] \
        [r debug stringmatch-len 100000 a*a*a*a*b] \
        [r debug stringmatch-len 0 *]]
    assert_error "ERR len must be a number*" {r debug stringmatch-len x a}
    set id [info_field master_replid]
    assert_equal OK [r debug change-repl-id]
    assert {[info_field master_replid] ne $id}
}

stop_server

# Everything is as it was: keys, places, times.
proc same {request before} {
    assert_equal OK [r debug {*}$request]
    assert_equal $before [r debug digest]
    assert_equal OK [r debug check]
}

test {RELOAD and LOADAOF: the books come back, with the pool} {
    start_server --enable-debug-command yes --appendonly yes --appenddirname files
    r debug populate 3000
    r debug populate 20 big 1000000
    r set timed v ex 1000
    r set a [string repeat a 300000]
    set digest [r debug digest]
    set epoch [info_field master_epoch]
    same loadaof $digest
    assert {[info_field master_epoch] > $epoch}
    assert_range 900 [r ttl timed] 1000
    assert {[r get a] eq [string repeat a 300000]}
    r set b [string repeat b 300000]
    r del key:1
    set digest [r debug digest]
    assert_error "ERR There is no snapshot*" {r debug reload nosave}
    same reload $digest
    same {reload nosave} $digest
    # An append-only file that is only just being begun.
    r config set appendonly no
    assert_error "ERR There is no append-only file*" {r debug loadaof}
    r set c 1
    r config set appendonly yes
    set digest [r debug digest]
    same loadaof $digest
    assert_equal {1 {} 2999} [list [r get c] [string trim [r get key:1] (nil)] \
        [llength [r keys key:*]]]
    # What was written behind it is in the file, too.
    r set d 1
    restart_server
    assert_equal {1 1} [r mget c d]
    assert_error "ERR syntax error" {r debug reload merge}
    r multi
    r debug loadaof
    assert_match "{(error) ERR *within a transaction*}" [r exec]
}

test {RELOAD: who holds something of the books is closed, others stay} {
    set plain [client]
    set listener [client]
    set holder [client]
    $plain ping
    $listener subscribe news
    $holder client setinfo tarn-host here
    $holder putstart open 100000
    $holder getreplicas a lease 10000
    assert_equal OK [r debug reload]
    assert_equal PONG [$plain ping]
    assert_error * {$holder ping}
    assert_equal 1 [r publish news x]
    assert_equal {message news x} [resp::recv $listener]
    assert_equal {0 0 0} [list [info_field puts_open] [r exists open] [info_field leases]]
    drop $plain
    drop $listener
    # The space of what was open is nobody's, once nobody can write to it any more: all of the pool
    # can be had.
    wait_for "room for all of it" {![catch {r debug populate 55 full 1000000}] && \
        [r exists full:54] == 1}
    assert_equal OK [r debug check]
    stop_server
}

test {RELOAD: nodes join again, with what they have} {
    start_server --enable-debug-command yes --appendonly yes --pool-size 8mb \
        --eviction-high-watermark 1
    start_node n1
    set values {}
    for {set i 0} {$i < 25} {incr i} {r set v$i [string repeat [format %c [expr {97 + $i}]] 900000]}
    set on_node 0
    for {set i 0} {$i < 25} {incr i} {incr on_node [string match *n1* [r replica list v$i]]}
    assert {$on_node > 0}
    foreach request {loadaof reload} {
        assert_equal OK [r debug $request]
        wait_for "the node to be back" {[node_state n1] eq "up"}
        for {set i 0} {$i < 25} {incr i} {
            assert {[r get v$i] eq [string repeat [format %c [expr {97 + $i}]] 900000]} \
                "v$i after $request"
        }
    }
    assert_equal OK [r debug check]
    stop_server
}

test {a replica does not load by itself; without a pool there is nothing but the books} {
    start_server --enable-debug-command yes --pool-size 0
    r set a b
    assert_equal OK [r debug reload]
    assert_equal b [r get a]
    r replicaof 127.0.0.1 1
    assert_error "ERR The books are the master's*" {r debug reload}
    stop_server
}

finish
