# Keys whose time is over: when they go, what that costs, what the options of EXPIRE say. More of
# it: ttl_test.tcl.
source [file join [file dirname [info script]] harness.tcl]
start_server --enable-debug-command yes

test {the options are read before the number} {
    r set a v
    assert_error "ERR Unsupported option ab" {r expire a x xx ab}
    assert_error "ERR NX and XX, GT or LT options at the same time are not compatible" \
        {r pexpire a x nx xx}
    assert_error "ERR NX and XX, GT or LT options at the same time are not compatible" \
        {r expireat a 1 lt nx}
    assert_error "ERR GT and LT options at the same time are not compatible" {r pexpireat a 1 gt lt}
    assert_error "ERR value is not an integer or out of range" {r expire a x xx}
    assert_error "ERR value is not an integer or out of range" {r expire a ""}
    assert_error "ERR wrong number of arguments for 'expire' command" {r expire a}
    assert_equal 0 [r expire a 100 xx lt]
}

test {times at the ends of the number range} {
    r set a v
    foreach n {9223370399119966 9223372036854776 10000000000000000 18446744073709561\
            -9223372036854776 -9999999999999999} {
        assert_error "ERR invalid expire time in 'expire' command" {r expire a $n}
    }
    assert_error "ERR invalid expire time in 'pexpire' command" {r pexpire a 9223372036854770000}
    assert_error "ERR invalid expire time in 'expireat' command" {r expireat a -9223372036854776}
    assert_equal -1 [r ttl a]
    assert_equal 1 [r pexpireat a 9223372036854770000]
    assert_equal 9223372036854770000 [r pexpiretime a]
    assert_equal 1 [r exists a]
    assert_equal 1 [r pexpireat a -9223372036854770000]
    assert_equal -2 [r ttl a]
    r set a v
    assert_equal 1 [r expire a -10 lt]
    assert_equal 0 [r exists a]
}

# n keys whose time is over soon.
proc dying {n ms} {
    for {set i 0} {$i < $n} {incr i} {resp::send [r] set k$i v px $ms}
    for {set i 0} {$i < $n} {incr i} {resp::recv [r]}
}

test {without active expiry a key goes when it is asked for} {
    r debug set-active-expire 0
    r config resetstat
    dying 50 1
    r set stays v
    after 5
    assert_equal 51 [r dbsize]
    assert_equal 0 [r exists k0]
    assert_equal (nil) [r get k1]
    assert_equal 0 [r expire k2 100]
    assert_equal -2 [r ttl k3]
    assert_equal 47 [r dbsize]
    assert_equal {stays} [r keys *]
    assert_equal stays [r randomkey]
    assert_equal 4 [info_field expired_keys]
    wait_for "samples that find stale keys" {[info_field expired_stale_perc] > 10}
    assert_match "keys=47,expires=46,avg_ttl=0" [info_field db0]
    r debug set-active-expire 1
    wait_for "the others to go" {[r dbsize] == 1}
    assert_equal 50 [info_field expired_keys]
    wait_for "samples that find none" {[info_field expired_stale_perc] < 10}
}

test {very many at once go in slices, with a share of the time} {
    r flushall
    r config resetstat
    r config set hz 500 loop-work-quota 100
    r debug set-active-expire 0
    dying 30000 1
    r set stays v
    r debug set-active-expire 1
    set other [client]
    wait_for "all to go" {[$other ping] eq "PONG" && [r dbsize] == 1}
    assert_equal 30000 [info_field expired_keys]
    # 2 ms a period and 25 % of it: half a millisecond is not enough for that many.
    assert {[info_field expired_time_cap_reached_count] >= 1}
    assert {[info_field expire_cycle_cpu_milliseconds] >= 1}
    r config set active-expire-effort 10 hz 10 loop-work-quota 1000
    r config resetstat
    assert_equal 0 [info_field expired_time_cap_reached_count]
    dying 20 1
    wait_for "all to go" {[r dbsize] == 1}
    assert_equal 0 [info_field expired_time_cap_reached_count]
    foreach bad {0 11 x} {
        assert_error "ERR CONFIG SET failed*from 1 to 10" {r config set active-expire-effort $bad}
    }
    r config set active-expire-effort 1
    assert_equal OK [r debug check]
}

test {avg_ttl is about what the keys have left} {
    r flushall
    for {set i 0} {$i < 100} {incr i} {r set k$i v px 100000; r set forever$i v}
    regexp {keys=200,expires=100,avg_ttl=(\d+)} [info_field db0] - ttl
    assert_range 50000 $ttl 100000
}

finish
