# Values made of other keys' values: COPY RENAME RENAMENX, wherever the bytes lie.
source [file join [file dirname [info script]] harness.tcl]

# The same of a server with a pool, and of one whose pool is on another machine.
proc all_of_it {sizes} {
    foreach size $sizes {
        set value [string range [string repeat "some bytes \0\xff$size" [expr {$size / 10 + 1}]] 0 \
            [expr {$size - 1}]]
        r set {from} $value px 100000
        r set {to} other
        assert_equal 0 [r copy from to]
        assert_equal other [r get to]
        assert_equal 1 [r copy from to replace]
        assert {[r get to] eq $value} "(copy of $size)"
        assert_range 90000 [r pttl to] 100000
        assert {[r get from] eq $value}
        assert_equal 0 [r renamenx from to]
        assert_equal 1 [r renamenx from third]
        assert_equal 0 [r exists from]
        r persist third
        r set to short ex 5
        assert_equal OK [r rename third to]
        assert {[r get to] eq $value} "(rename of $size)"
        assert_equal -1 [r ttl to]
        assert_equal 1 [r dbsize]
        r flushall
    }
}

proc in_a_transaction {} {
    set value [string repeat ab 50000]
    r set a $value
    r multi
    foreach command {{copy a c} {rename c d} {append d x} {renamenx a d} {rename d e}\
            {copy none f}} {
        assert_equal QUEUED [r {*}$command]
    }
    assert_equal {1 OK 100001 0 OK 0} [r exec]
    assert {[r get e] eq "${value}x"}
    r flushall
}

start_server
test {COPY and RENAME of values of every size} {all_of_it {1 64 65 4096 1048577 3000000}}

test {the same in a transaction} {in_a_transaction}

test {what they refuse} {
    r flushall
    r set a 1
    assert_error "ERR no such key" {r rename none a}
    assert_error "ERR no such key" {r renamenx none a}
    assert_error "ERR key must be*" {r rename a [string repeat k 1025]}
    assert_error "ERR key must be*" {r copy a [string repeat k 1025]}
    assert_error "ERR source and destination objects are the same" {r copy a a}
    assert_error "ERR DB index is out of range" {r copy a b db 100000}
    assert_error "ERR value is not an integer*" {r copy a b db none}
    assert_error "ERR syntax error" {r copy a b banana}
    assert_equal 0 [r copy none b]
    assert_equal OK [r rename a a]
    assert_equal 0 [r renamenx a a]
    assert_equal {a 1} [list [r keys *] [r get a]]
}

test {a rename is a write of both keys, for those who watch} {
    foreach {watched} {from to} {
        r del to
        r set from 1
        set other [client]
        r watch $watched
        resp::call $other rename from to
        r multi
        r ping
        assert_equal (nil) [r exec]
        drop $other
    }
}

stop_server

start_server --pool-size 0 --node-heartbeat 100
start_node n1 --host-name elsewhere --segment 64mb
test {the same of values on another machine} {
    all_of_it {64 65 1048577 3000000}
    in_a_transaction
    assert_equal 0 [info_field inband_buffer_used]
}

finish
