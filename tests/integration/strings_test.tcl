# In-band values, as a user of Redis' strings expects them.
source [file join [file dirname [info script]] harness.tcl]
start_server

test {SET and GET, values of every size class} {
    foreach size {0 1 63 64 65 100 4095 4096 4097 16384 32767 32768 65536 1048575 1048576 1048577\
            3000000} {
        set value [string repeat "[format %c [expr {$size % 251}]]\r\n\0x" [expr {$size / 5 + 1}]]
        set value [string range $value 0 [expr {$size - 1}]]
        assert_equal OK [r set k$size $value]
        assert {[string equal $value [r get k$size]]} "size $size"
        assert_equal $size [r strlen k$size]
    }
    foreach size {0 64 65 1048577} {assert_equal 1 [r del k$size]}
    assert_equal (nil) [r get k64]
}

test {keys of any bytes, 1 to 1024 of them} {
    foreach key [list "a b" "\r\n" "\0" "\xff\xfe" [string repeat k 1024]] {
        r set $key v$key
        assert_equal v$key [r get $key]
        assert_equal 1 [r exists $key]
        assert_equal 1 [r del $key]
    }
}

test {SET NX XX GET} {
    r del a
    assert_equal (nil) [r set a 1 xx]
    assert_equal OK [r set a 1 nx]
    assert_equal (nil) [r set a 2 nx]
    assert_equal 1 [r get a]
    assert_equal OK [r set a 2 XX]
    assert_equal 2 [r set a 3 get]
    assert_equal 3 [r get a]
    assert_equal 3 [r set a 4 nx get]
    assert_equal 3 [r get a]
    r del a
    assert_equal (nil) [r set a 1 get]
    assert_equal 1 [r set a 2 xx get]
    assert_error "ERR syntax error" {r set a 1 nx xx}
    assert_error "ERR syntax error" {r set a 1 banana}
    assert_equal 2 [r get a]
}

test {options: the words come before the numbers, and the same one may come again} {
    r del a none
    assert_equal OK [r set a 1 ex banana ex 100]
    assert_range 98 [r ttl a] 100
    foreach options {{ex 1 px 1} {ex 1 keepttl} {keepttl ex 1} {px -1 nx xx} {ex banana exat 1}\
            {ex} {persist}} {
        assert_error "ERR syntax error" {r set a 1 {*}$options}
    }
    foreach options {{ex 1 px 1} {ex 1 persist} {persist ex 1} {keepttl} {ex banana exat 1} {ex}} {
        assert_error "ERR syntax error" {r getex a {*}$options}
        assert_error "ERR syntax error" {r getex none {*}$options}
    }
    assert_error "ERR value is not an integer*" {r getex a ex banana}
    assert_error "ERR invalid expire time in 'getex' command" {r getex a px -1}
    assert_equal (nil) [r getex none ex banana]
    assert_equal 1 [r getex a persist persist]
    assert_equal -1 [r ttl a]
}

test {SET GET with values that do not fit the books} {
    set big [string repeat x 100000]
    r set a $big
    assert_equal $big [r set a [string repeat y 200000] get]
    assert_equal [string repeat y 200000] [r set a small get]
    assert_equal small [r set a $big get]
    assert_equal (nil) [r set a 1 nx]
    assert_equal (nil) [r set nokey $big xx]
    assert_equal (nil) [r get nokey]
    assert_equal (nil) [r set a [string repeat z 300000] nx]
    assert_equal $big [r get a]
}

test {SET with times} {
    r set a 1 ex 100
    assert_range 98 [r ttl a] 100
    r set a 1 px 100000
    assert_range 98000 [r pttl a] 100000
    r set a 1 exat 99999999999
    assert_equal 99999999999 [r expiretime a]
    r set a 1 pxat 99999999999123
    assert_equal 99999999999123 [r pexpiretime a]
    r set a 2 keepttl
    assert_equal 99999999999123 [r pexpiretime a]
    r set a [string repeat v 100000] keepttl
    assert_equal 99999999999123 [r pexpiretime a]
    r set a 3
    assert_equal -1 [r ttl a]
    r set a [string repeat v 100000] ex 1000 get
    assert_range 990 [r ttl a] 1000
    assert_error "ERR syntax error" {r set a 1 ex 10 px 10}
    assert_error "ERR syntax error" {r set a 1 ex 10 keepttl}
    assert_error "ERR syntax error" {r set a 1 ex}
    assert_error "ERR value is not an integer or out of range" {r set a 1 ex abc}
    foreach bad {0 -1 9223372036854775807} {
        assert_error "ERR invalid expire time in 'set' command" {r set a 1 ex $bad}
    }
    assert_error "ERR invalid expire time in 'set' command" {r set a 1 px 9223372036854775807}
}

test {SETNX SETEX PSETEX GETSET GETDEL} {
    r del a
    assert_equal 1 [r setnx a 1]
    assert_equal 0 [r setnx a 2]
    assert_equal 1 [r getset a 2]
    assert_equal OK [r setex a 100 3]
    assert_range 98 [r ttl a] 100
    assert_equal 3 [r getset a 4]
    assert_equal -1 [r ttl a]
    assert_equal OK [r psetex a 100000 5]
    assert_range 98000 [r pttl a] 100000
    assert_error "ERR invalid expire time in 'setex' command" {r setex a 0 v}
    assert_error "ERR invalid expire time in 'psetex' command" {r psetex a -5 v}
    assert_equal 5 [r getdel a]
    assert_equal (nil) [r getdel a]
    set big [string repeat abcdefgh 50000]
    r set a $big
    assert_equal $big [r getdel a]
    assert_equal 0 [r exists a]
    assert_equal OK [r setex a 100 $big]
    assert_equal $big [r get a]
    assert_range 98 [r ttl a] 100
    assert_equal 0 [r setnx a $big]
    r del a
    assert_equal 1 [r setnx a $big]
    assert_equal $big [r getset a x]
}

test {GETEX} {
    r del a
    assert_equal (nil) [r getex a ex 10]
    r set a v
    assert_equal v [r getex a]
    assert_equal -1 [r ttl a]
    assert_equal v [r getex a ex 100]
    assert_range 98 [r ttl a] 100
    assert_equal v [r getex a persist]
    assert_equal -1 [r ttl a]
    assert_equal v [r getex a pxat 99999999999123]
    assert_equal 99999999999123 [r pexpiretime a]
    assert_error "ERR syntax error" {r getex a ex 10 persist}
    assert_error "ERR syntax error" {r getex a nonsense}
    assert_error "ERR invalid expire time in 'getex' command" {r getex a ex 0}
    assert_equal v [r getex a exat 1]
    assert_equal 0 [r exists a]
}

test {MGET MSET MSETNX} {
    r del a b c
    assert_equal OK [r mset a 1 b [string repeat b 5000] c {}]
    assert_equal [list 1 [string repeat b 5000] {} (nil)] [r mget a b c nokey]
    assert_equal OK [r mset a 1 a 2]
    assert_equal 2 [r get a]
    assert_equal 0 [r msetnx x 1 a 2]
    assert_equal 0 [r exists x]
    assert_equal 1 [r msetnx x 1 y [string repeat y 100000]]
    assert_equal 100000 [r strlen y]
    assert_error "ERR wrong number of arguments for 'mset' command" {r mset a 1 b}
    assert_error "ERR wrong number of arguments for 'msetnx' command" {r msetnx a 1 b}
}

test {MSET and MGET of many large values} {
    set arguments {}
    set expected {}
    for {set i 0} {$i < 100} {incr i} {
        lappend arguments many$i [string repeat [format %04d $i] 12500]
        lappend expected [string repeat [format %04d $i] 12500]
    }
    assert_equal OK [r mset {*}$arguments]
    assert {[r mget {*}[dict keys $arguments]] eq $expected}
    assert_equal 100 [r del {*}[dict keys $arguments]]
}

test {GETRANGE and SUBSTR} {
    r set a "Hello World"
    foreach {from to expected} {0 3 Hell 0 -1 {Hello World} -4 -1 orld 5 3 {} 5 5000 { World}\
        -5000 10000 {Hello World}
        0 -100 H -1 -5 {} 11 20 {} 0 0 H -100 -50 H} {
        assert_equal $expected [r getrange a $from $to] "getrange $from $to"
    }
    assert_equal ell [r substr a 1 3]
    assert_equal {} [r getrange nokey 0 -1]
    assert_error "ERR value is not an integer or out of range" {r getrange a x 1}
    set big {}
    for {set i 0} {$i < 400000} {incr i} {append big [format %08d $i]}
    r set a $big
    foreach {from to} {0 0 0 99 1000000 1000100 1048570 1048590 3199990 3199999 500 3000000} {
        assert {[r getrange a $from $to] eq [string range $big $from $to]} "$from $to"
    }
    assert_equal [string range $big end-9 end] [r getrange a -10 -1]
}

test {APPEND} {
    r del a
    assert_equal 3 [r append a abc]
    assert_equal 6 [r append a def]
    assert_equal abcdef [r get a]
    r expire a 1000
    assert_equal 106 [r append a [string repeat x 100]]
    assert_equal abcdef[string repeat x 100] [r get a]
    assert_range 990 [r ttl a] 1000
    set expected [r get a]
    for {set i 0} {$i < 20} {incr i} {
        append expected [string repeat [format %02d $i] 40000]
        assert_equal [string length $expected] [r append a [string repeat [format %02d $i] 40000]]
    }
    assert {[r get a] eq $expected}
    assert_range 990 [r ttl a] 1000
    assert_equal [string length $expected] [r append a {}]
}

test {SETRANGE} {
    r del a
    assert_equal 0 [r setrange a 0 {}]
    assert_equal 0 [r exists a]
    assert_equal 3 [r setrange a 0 foo]
    assert_equal 3 [r setrange a 0 b]
    assert_equal boo [r get a]
    assert_equal 6 [r setrange a 4 ab]
    assert_equal "boo\0ab" [r get a]
    assert_equal 6 [r setrange a 1 {}]
    r expire a 1000
    assert_equal 100003 [r setrange a 100000 xyz]
    assert_equal "boo\0ab[string repeat \0 99994]xyz" [r get a]
    assert_range 990 [r ttl a] 1000
    assert_equal 100003 [r setrange a 50000 [string repeat q 10000]]
    assert_equal "boo\0ab[string repeat \0 49994][string repeat q 10000][string repeat \0\
        40000]xyz" [r get a]
    assert_error "ERR offset is out of range" {r setrange a -1 x}
    assert_error "ERR string exceeds maximum allowed size*" {r setrange a 536870912 x}
    assert_error "ERR string exceeds maximum allowed size*" {r setrange a 9223372036854775807 x}
    assert_equal 100003 [r strlen a]
}

test {INCR DECR INCRBY DECRBY} {
    r del n
    assert_equal 1 [r incr n]
    assert_equal 11 [r incrby n 10]
    assert_equal 10 [r decr n]
    assert_equal -10 [r decrby n 20]
    r expire n 1000
    assert_equal 90 [r incrby n 100]
    assert_range 990 [r ttl n] 1000
    assert_equal 90 [r get n]
    r set n 9223372036854775806
    assert_equal 9223372036854775807 [r incr n]
    assert_error "ERR increment or decrement would overflow" {r incr n}
    assert_error "ERR decrement would overflow" {r decrby n -9223372036854775808}
    r set n -9223372036854775808
    assert_error "ERR increment or decrement would overflow" {r decr n}
    foreach bad {{ 1} {1 } abc 01 1.5 {} 9223372036854775808} {
        r set n $bad
        assert_error "ERR value is not an integer or out of range" {r incr n}
        assert_equal $bad [r get n]
    }
    r set n [string repeat 1 1000]
    assert_error "ERR value is not an integer or out of range" {r incr n}
    r set n 1
    assert_error "ERR value is not an integer or out of range" {r incrby n abc}
}

test {INCRBYFLOAT} {
    r del f
    assert_equal 1 [r incrbyfloat f 1]
    assert_equal 1.25 [r incrbyfloat f 0.25]
    assert_equal 1.25 [r get f]
    assert_equal 5001.25 [r incrbyfloat f 5.0e3]
    assert_equal 0 [r incrbyfloat f -5001.25]
    r set f 17179869184
    assert_equal 17179869185.5 [r incrbyfloat f 1.5]
    foreach bad {{ 1} abc {1 2}} {
        r set f $bad
        assert_error "ERR value is not a valid float" {r incrbyfloat f 1}
    }
    r set f 1
    assert_error "ERR value is not a valid float" {r incrbyfloat f x}
    assert_error "ERR increment would produce NaN or Infinity" {r incrbyfloat f +inf}
}

test {OBJECT ENCODING says what Redis would} {
    r set a 123
    assert_equal int [r object encoding a]
    r set a [string repeat x 44]
    assert_equal embstr [r object encoding a]
    r set a [string repeat x 45]
    assert_equal raw [r object encoding a]
    assert_equal (nil) [r object encoding nokey]
}

test {two clients overwrite one large value: each reader gets one of them whole} {
    set c1 [client]
    set c2 [client]
    set reader [client]
    set a [string repeat a 500000]
    set b [string repeat b 700000]
    r set k $a
    for {set i 0} {$i < 20} {incr i} {
        resp::send $c1 set k $a
        resp::send $c2 set k $b
        resp::send $reader get k
        set got [resp::recv $reader]
        assert {$got eq $a || $got eq $b}
        assert_equal OK [resp::recv $c1]
        assert_equal OK [resp::recv $c2]
    }
}

test {a write that finds no memory for the books is counted as rejected} {
    r flushall
    r config resetstat
    r config set maxmemory 1
    assert_error "OOM *" {r set a b}
    assert_error "OOM *" {r incr a}
    assert_error "OOM *" {r mset a b c d}
    r config set maxmemory 0
    foreach command {set incr} {
        assert_match {calls=0,*,rejected_calls=1,failed_calls=0} [info_field cmdstat_$command]
    }
    assert_match {calls=1,*,rejected_calls=0,failed_calls=1} [info_field cmdstat_mset]
    assert_match {count=3} [info_field errorstat_OOM]
}

finish
