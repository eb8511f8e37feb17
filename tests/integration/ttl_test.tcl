# Times to live.
source [file join [file dirname [info script]] harness.tcl]
start_server

proc gone {key} {expr {[r exists $key] == 0}}

test {EXPIRE TTL PERSIST} {
    r set a v
    assert_equal -1 [r ttl a]
    assert_equal -1 [r pttl a]
    assert_equal -2 [r ttl nokey]
    assert_equal -2 [r pttl nokey]
    assert_equal 1 [r expire a 100]
    assert_range 99 [r ttl a] 100
    assert_equal 1 [r persist a]
    assert_equal 0 [r persist a]
    assert_equal 0 [r persist nokey]
    assert_equal -1 [r ttl a]
    assert_equal 0 [r expire nokey 100]
    assert_equal 1 [r pexpire a 100000]
    assert_range 99000 [r pttl a] 100000
    assert_equal 1 [r expireat a 99999999999]
    assert_equal 99999999999 [r expiretime a]
    assert_equal 99999999999000 [r pexpiretime a]
    assert_equal 1 [r pexpireat a 99999999999999]
    assert_equal 99999999999999 [r pexpiretime a]
    assert_equal -2 [r expiretime nokey]
    r persist a
    assert_equal -1 [r pexpiretime a]
}

test {EXPIRE with NX XX GT LT} {
    r set a v
    assert_equal 0 [r expire a 100 xx]
    assert_equal 0 [r expire a 100 gt]
    assert_equal 1 [r expire a 100 nx]
    assert_equal 0 [r expire a 200 nx]
    assert_equal 1 [r expire a 200 xx]
    assert_equal 0 [r expire a 100 gt]
    assert_equal 1 [r expire a 300 GT]
    assert_equal 0 [r expire a 400 lt]
    assert_equal 1 [r expire a 50 lt]
    assert_range 48 [r ttl a] 50
    r persist a
    assert_equal 1 [r expire a 100 lt]
    assert_equal 1 [r expire a 200 xx gt]
    assert_error "ERR NX and XX, GT or LT options at the same time are not compatible" \
        {r expire a 1 nx gt}
    assert_error "ERR GT and LT options at the same time are not compatible" {r expire a 1 gt lt}
    assert_error "ERR Unsupported option ab" {r expire a 1 ab}
}

test {EXPIRE with bad times} {
    r set a v
    assert_error "ERR value is not an integer or out of range" {r expire a x}
    assert_error "ERR invalid expire time in 'expire' command" {r expire a 9223372036854775807}
    assert_error "ERR invalid expire time in 'expire' command" {r expire a 9223372036854770}
    assert_error "ERR invalid expire time in 'pexpire' command" {r pexpire a 9223372036854775807}
    assert_error "ERR invalid expire time in 'expireat' command" {r expireat a 9223372036854775807}
    assert_equal 1 [r exists a]
}

test {a time in the past removes the key} {
    r set a v
    assert_equal 1 [r expire a -1]
    assert_equal 0 [r exists a]
    r set a v
    assert_equal 1 [r expireat a 1]
    assert_equal 0 [r exists a]
    r set a v
    assert_equal 1 [r pexpire a 0]
    assert_equal (nil) [r get a]
    assert_equal 0 [r dbsize]
}

test {keys go when their time has come, whether they are asked for or not} {
    r flushall
    r set a v px 30
    r set b [string repeat v 100000] px 30
    r set stays v
    wait_for "key a to expire" {[r get a] eq "(nil)"}
    wait_for "keys to go by themselves" {[r dbsize] == 1}
    wait_for "keys to be counted" {[info_field expired_keys] >= 2}
    assert_equal (nil) [r get b]
    assert_equal v [r get stays]
    assert_equal none [r type a]
    assert_equal -2 [r ttl b]
    assert_equal stays [r keys *]
}

test {a new value has no time of the old one} {
    r set a v px 50
    r set a w
    assert_equal -1 [r ttl a]
    r set other v px 60
    wait_for "the other key to expire" {[gone other]}
    assert_equal w [r get a]
}

test {writes that keep the time} {
    r set a 1 ex 1000
    r incr a
    r append a 1
    r setrange a 0 9
    assert_range 990 [r ttl a] 1000
}

test {TTL of PUTSTART} {
    set put [r putstart t 10 TTL 100000]
    r putend t [lindex $put 0] -1 VALUE 0123456789
    assert_range 90000 [r pttl t] 100000
    set put [r putstart u 10 TTL 20]
    r putend u [lindex $put 0] -1 VALUE 0123456789
    wait_for "the object to expire" {[r getreplicas u] eq "(nil)"}
    assert_equal 0 [r exists u]
}

test {many keys that expire at once} {
    r flushall
    for {set i 0} {$i < 2000} {incr i} {resp::send [r] set k$i v px [expr {1 + $i % 50}]}
    for {set i 0} {$i < 2000} {incr i} {assert_equal OK [resp::recv [r]]}
    wait_for "all to expire" {[r dbsize] == 0}
    assert_equal {} [r keys *]
}

finish
