# What arrives on the wire: well-formed, in pieces, and ill-formed. Guarantee 6 (a malformed request
# costs the sender its connection and nobody else anything) is checked after every kind of bad
# input.
source [file join [file dirname [info script]] harness.tcl]
start_server

# Sends bytes on a connection of its own, expects an error like pattern and the end of the
# connection, and that the server goes on.
proc refused {bytes pattern} {
    set c [client]
    # What the server does not want to read any more may cut the connection before its answer is
    # read.
    if {[catch {
        resp::raw $c $bytes
        set answer [resp::recv $c]
    } why] && ![regexp {closed|broken pipe|reset} $why]} {error $why}
    if {[info exists answer]} {assert_match $pattern $answer}
    if {[string length $bytes] < 10000} {
        assert [info exists answer]
        assert_equal "" [resp::read_to_end $c]
    }
    catch {drop $c}
    assert_equal PONG [r ping]
}

test {inline commands} {
    set c [client]
    resp::raw $c "PING\r\n"
    assert_equal PONG [resp::recv $c]
    resp::raw $c "set key \"a b\\x00\\n\"\n"
    assert_equal OK [resp::recv $c]
    resp::raw $c "\r\n  \r\nGET key\r\n"
    assert_equal "a b\0\n" [resp::recv $c]
    resp::raw $c "echo 'it\\'s'\r\n"
    assert_equal "it's" [resp::recv $c]
    drop $c
}

test {a request a byte at a time} {
    set c [client]
    foreach byte [split [resp::encode [list set k [string repeat v 100]]] ""] {resp::raw $c $byte}
    assert_equal OK [resp::recv $c]
    assert_equal [string repeat v 100] [$c get k]
    drop $c
}

test {pipelining: replies in order, large and small} {
    set c [client]
    set big [string repeat B 300000]
    for {set i 0} {$i < 200} {incr i} {
        resp::send $c set p$i $i
        resp::send $c get p$i
        if {$i % 50 == 0} {
            resp::send $c set big $big
            resp::send $c get big
        }
    }
    for {set i 0} {$i < 200} {incr i} {
        assert_equal OK [resp::recv $c]
        assert_equal $i [resp::recv $c]
        if {$i % 50 == 0} {
            assert_equal OK [resp::recv $c]
            assert {[resp::recv $c] eq $big}
        }
    }
    drop $c
}

test {a job between pipelined commands keeps the order} {
    set c [client]
    resp::send $c mset {*}[batch o 5000 v]
    resp::send $c get o4999
    resp::send $c del {*}[batch o 5000]
    resp::send $c get o4999
    resp::send $c ping
    assert_equal {OK v 5000 (nil) PONG} \
        [list [resp::recv $c] [resp::recv $c] [resp::recv $c] [resp::recv $c] [resp::recv $c]]
    drop $c
}

test {RESP3: HELLO changes nil, maps and the like} {
    set c [client]
    set hello [$c hello 3]
    assert_equal 3 [dict get $hello proto]
    assert_equal master [dict get $hello role]
    resp::send $c get nokey
    assert_equal "_\r\n" [resp::recv_raw $c 3]
    resp::send $c getreplicas nokey
    assert_equal "_\r\n" [resp::recv_raw $c 3]
    assert_equal 2 [dict get [$c hello 2] proto]
    resp::send $c get nokey
    assert_equal "\$-1\r\n" [resp::recv_raw $c 5]
    assert_error "NOPROTO*" {$c hello 4}
    assert_error "NOPROTO*" {$c hello 4 unknown option}
    assert_error "ERR Syntax error in HELLO option 'unknown'" {$c hello 3 unknown option}
    drop $c
}

test {PING ECHO SELECT QUIT RESET} {
    set c [client]
    assert_equal PONG [$c ping]
    assert_equal hello [$c ping hello]
    assert_equal x [$c echo x]
    assert_equal OK [$c select 0]
    assert_error "ERR DB index is out of range" {$c select 1}
    $c hello 3
    assert_equal RESET [$c reset]
    resp::send $c get nokey
    assert_equal "\$-1\r\n" [resp::recv_raw $c 5]
    assert_equal OK [$c quit]
    assert_equal "" [resp::read_to_end $c]
    drop $c
}

test {unknown commands and wrong numbers of arguments} {
    assert_error "ERR unknown command 'nonsense', with args beginning with: 'a' 'b' *" \
        {r nonsense a b}
    assert_error "ERR unknown command 'lpush'*" {r lpush l 1}
    assert_error "ERR unknown command 'eval'*" {r eval {return 1} 0}
    assert_error "ERR wrong number of arguments for 'get' command" {r get}
    assert_error "ERR wrong number of arguments for 'get' command" {r get a b}
    assert_error "ERR unknown subcommand 'nonsense'*" {r config nonsense}
    assert_equal PONG [r ping]
}

test {mistyped commands and subcommands: what may have been meant} {
    set unknown {ERR unknown command '%s', with args beginning with: %s}
    foreach {words reply} [list \
        {PUTSTRAT k 4} [format $unknown PUTSTRAT {'k' '4' (did you mean PUTSTART?)}] \
        {exsits} [format $unknown exsits {(did you mean EXISTS?)}] \
        {prefix-len 1 k} [format $unknown prefix-len {'1' 'k' (did you mean PREFIXLEN?)}] \
        {hset k f v} [format $unknown hset {'k' 'f' 'v'*}] \
        {config gte x} {ERR unknown subcommand 'gte'. Try CONFIG HELP. Did you mean GET?} \
        {config zzzzzzz x} {ERR unknown subcommand 'zzzzzzz'. Try CONFIG HELP.}] {
        catch {r {*}$words} answer
        assert_match $reply $answer
        if {[lindex $words 0] eq "hset"} {
            assert {![string match "*mean*" $answer]} "HSET is meant: $answer"
        }
    }
    set long [string repeat x 100000]
    assert_error "ERR unknown command 'xxx*" {r $long}
    assert_error "ERR unknown subcommand 'xxx*" {r config $long}
    set c [client]
    foreach {n hint} {100 " (did you mean GET?)" 1 " "} {
        for {set i 0} {$i < $n} {incr i} {
            catch {$c gett a} answer
            assert_equal "ERR unknown command 'gett', with args beginning with: 'a'$hint" $answer
        }
    }
    drop $c
}

test {guarantee 6: a bulk length of 2^63, negative, no number} {
    foreach length {9223372036854775808 9223372036854775807 -2 -9223372036854775808 x {} 1x\
            99999999999999999999} {
        refused "*2\r\n\$3\r\nGET\r\n\$$length\r\n" \
            "(error) ERR Protocol error: invalid bulk length"
    }
}

test {guarantee 6: a multibulk length out of range} {
    foreach length {9223372036854775808 2147483648 x 1x} {
        refused "*$length\r\n" "(error) ERR Protocol error: invalid multibulk length"
    }
    set c [client]
    resp::raw $c "*0\r\n*-1\r\n"
    assert_equal PONG [$c ping]
    drop $c
}

test {guarantee 6: no '$' where one belongs; arrays in arrays a million deep} {
    refused "*1\r\nPING\r\n" "(error) ERR Protocol error: expected '\$', got 'P'"
    refused "*1\r\n:5\r\n" "(error) ERR Protocol error: expected '\$', got ':'"
    refused [string repeat "*1\r\n" 1000000] "(error) ERR Protocol error: expected '\$', got '\\*'"
}

test {guarantee 6: unbalanced quotes, endless lines} {
    refused "set \"k\r\n" "(error) ERR Protocol error: unbalanced quotes in request"
    refused [string repeat a 200000] "(error) ERR Protocol error: too big inline request"
    refused "*[string repeat 1 200000]" "(error) ERR Protocol error: too big mbulk count string"
    refused "*1\r\n\$[string repeat 1 200000]" \
        "(error) ERR Protocol error: too big bulk count string"
}

test {guarantee 6: half a request and then silence holds nobody up} {
    set silent {}
    foreach part [list "*3\r\n\$3\r\nSET\r\n\$1\r\nk\r\n\$100000\r\nabc" "*2\r\n\$3\r\nGE" "GET k" \
        "*" \
            "*3\r\n\$3\r\nSET\r\n\$4\r\nbig1\r\n\$10000000\r\n[string repeat x 5000000]"] {
        set c [client]
        resp::raw $c $part
        lappend silent $c
    }
    for {set i 0} {$i < 100} {incr i} {assert_equal PONG [r ping]}
    foreach c $silent {drop $c}
    wait_for "the connections to be gone" {[info_field connected_clients] == 1}
    assert_equal (nil) [r get big1]
    # the space of the value that never came is free again
    wait_for "no put to be open" {[catch {info_field puts_open} open] || $open == 0}
}

test {guarantee 6: keys of 0 and of 1025 bytes} {
    set long [string repeat k 1025]
    foreach key [list {} $long] {
        assert_error "ERR key must be 1 to 1024 bytes" {r set $key v}
        assert_error "ERR key must be 1 to 1024 bytes" {r set $key [string repeat v 100000]}
        assert_error "ERR key must be 1 to 1024 bytes" {r append $key v}
        assert_error "ERR key must be 1 to 1024 bytes" {r incr $key}
        assert_error "ERR key must be 1 to 1024 bytes" {r mset a 1 $key v}
        assert_error "ERR key must be 1 to 1024 bytes" {r putstart $key 10}
        assert_error "ERR key must be 1 to 1024 bytes" {r getreplicas $key}
        assert_equal (nil) [r get $key]
        assert_equal 0 [r exists $key]
        assert_equal 0 [r del $key]
        assert_equal -2 [r ttl $key]
        assert_equal {(nil) (nil)} [r mget $key nokey]
        assert_match {{(error) ERR key must be 1 to 1024 bytes} *} [r mputstart 2 $key 10 other 10]
        assert_equal 0 [r prefixlen 2 $key a]
        assert_equal {0 0} [r mexists 2 $key nokey]
        assert_equal 0 [r release 1 $key 1]
        assert_equal 0 [r unlink $key a]
    }
    r del other
}

test {a bulk longer than proto-max-bulk-len is refused} {
    r config set proto-max-bulk-len 1mb
    refused "*3\r\n\$3\r\nSET\r\n\$1\r\nk\r\n\$1048577\r\n" \
        "(error) ERR Protocol error: invalid bulk length"
    assert_equal OK [r set k [string repeat x 1048576]]
    assert_error "ERR string exceeds maximum allowed size*" {r append k x}
    r config set proto-max-bulk-len 512mb
    r del k
}

test {a client that does not read is cut off at client-output-buffer-limit} {
    set old [lindex [r config get client-output-buffer-limit] 1]
    r config set client-output-buffer-limit {normal 2000000 0 0}
    r config set output-pause 1gb
    r set small [string repeat x 4000]
    set c [client]
    catch {for {set i 0} {$i < 20000} {incr i} {resp::send $c get small}}
    wait_for "the client to be gone" {[update; info_field connected_clients] == 1}
    catch {drop $c}
    r config set client-output-buffer-limit $old
}

test {COMMAND, COUNT, INFO, GETKEYS, DOCS} {
    assert {[r command count] > 60}
    assert_equal [r command count] [llength [r command]]
    assert_equal get [lindex [r command info get] 0 0]
    assert_equal (nil) [lindex [r command info nonsense] 0]
    assert_equal {a b} [r command getkeys mset a 1 b 2]
    assert_equal {a b c} [r command getkeys mputstart 3 a 1 b 2 c 3]
    assert_equal {a b} [r command getkeys mputend 2 a 1 -1 b 2 -1]
    assert_equal {a b} [r command getkeys prefixlen 2 a b LEASE 100]
    assert_equal {a} [r command getkeys putstart a 10 REPLACE]
    assert_match *summary* [r command docs get]
}

finish
