# Batches of hundreds of thousands of keys run in slices beside everybody else: what is counted is
# work and turns of the loop, never time.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 64mb

set n 200000

# Sends a command on its own connection; returns how many PINGs of another client were answered
# before its reply had begun.
proc pings_beside {args} {
    set c [client]
    set other [client]
    set slices [info_field job_slices]
    resp::send $c {*}$args
    set pings 0
    while {![resp::readable $c]} {
        assert_equal PONG [$other ping]
        incr pings
    }
    set ::reply [resp::recv $c]
    set ::slices [expr {[info_field job_slices] - $slices}]
    drop $c
    drop $other
    return $pings
}

# n keys in slices of the quota: at least this many slices.
proc expected_slices {} {expr {$::n / [lindex [r config get loop-work-quota] 1] - 1}}

test {guarantee 4: MPUTSTART of 200,000 keys gives way} {
    set most [lindex [r config get max-puts-per-client] 1]
    r config set max-puts-per-client 1000000
    pings_beside mputstart $n {*}[batch key: $n 10]
    assert_equal $n [llength $reply]
    assert {$slices >= [expected_slices]} "$slices slices"
    set puts $reply
    r config set max-puts-per-client $most
}

test {guarantee 4: MPUTEND of 200,000 keys gives way} {
    set arguments {}
    for {set i 0} {$i < $n} {incr i} {lappend arguments key:$i [lindex $puts $i 0] -1}
    pings_beside mputend $n {*}$arguments VALUES {*}[lrepeat $n 0123456789]
    assert_equal [lrepeat $n OK] $reply
    assert {$slices >= [expected_slices]} "$slices slices"
    assert_equal $n [r dbsize]
    unset arguments puts
}

test {guarantee 4: look-ups of 200,000 keys give way} {
    foreach command {mgetreplicas mexists prefixlen} {
        pings_beside $command $n {*}[batch key: $n]
        assert {$slices >= [expected_slices]} "$command: $slices slices"
        switch $command {
            mgetreplicas {assert_equal $n [llength $reply]}
            mexists {assert {$reply eq [lrepeat $n 1]}}
            prefixlen {assert_equal $n $reply}
        }
    }
    pings_beside exists {*}[batch key: $n]
    assert_equal $n $reply
    assert {$slices >= [expected_slices]}
    pings_beside mget {*}[batch key: $n]
    assert {$reply eq [lrepeat $n 0123456789]}
    assert {$slices >= [expected_slices]}
}

test {guarantee 4: KEYS, SCAN COUNT, REMOVEMATCH, EVICT, DEL give way} {
    foreach command {{keys *} {scan 0 count 1000000} {removematch GLOB nothing*}\
            {removematch REGEX ^nothing$}} {
        pings_beside {*}$command
        assert {$slices >= [expected_slices]} "$command: $slices slices"
    }
    pings_beside evict RATIO 0.25
    assert_equal 50000 [lindex $reply 0]
    assert {$slices >= [expected_slices] / 5} "evict: $slices slices"
    pings_beside removematch GLOB key:1*
    assert {$slices >= [expected_slices] / 2} "removematch: $slices slices"
    set left [r dbsize]
    pings_beside del {*}[batch key: $n]
    assert_equal $left $reply
    assert {$slices >= [expected_slices]} "del: $slices slices"
    assert_equal 0 [r dbsize]
}

test {guarantee 4: FLUSHALL of 200,000 keys gives way} {
    r mset {*}[batch key: $n v]
    set other [client]
    resp::send [r] flushall
    assert_equal PONG [$other ping]
    assert_equal 0 [$other dbsize]
    assert_equal OK [resp::recv [r]]
    drop $other
}

test {a client that goes away in the middle of its batch} {
    foreach command [list [list mputstart $n {*}[batch gone: $n 10]] \
        [list mset {*}[batch gone: $n v]] \
        [list del {*}[batch gone: $n]] {keys *}] {
        set c [client]
        resp::send $c {*}$command
        drop $c
        assert_equal PONG [r ping]
    }
    only_main_client
    r flushall
}

test {the books are atomic per key: two batches over the same keys} {
    set keys [batch both: 20000]
    set a [client]
    set b [client]
    resp::send $a mset {*}[batch both: 20000 A]
    resp::send $b mset {*}[batch both: 20000 B]
    assert_equal {OK OK} [list [resp::recv $a] [resp::recv $b]]
    foreach v [r mget {*}$keys] {assert {$v in {A B}}}
    resp::send $a del {*}$keys
    resp::send $b del {*}$keys
    assert_equal 20000 [expr {[resp::recv $a] + [resp::recv $b]}]
}

test {max-batch-keys} {
    r config set max-batch-keys 100
    assert_error "ERR n must be *" {r mexists 101 {*}[batch k 101]}
    assert_equal 100 [llength [r mexists 100 {*}[batch k 100]]]
    r config set max-batch-keys 1000000
}

test {REMOVEMATCH by glob and by regular expression} {
    r flushall
    r mset vllm@llama@1 a vllm@llama@2 b vllm@qwen@1 c other d
    assert_equal 2 [r removematch GLOB vllm@llama@*]
    assert_equal 0 [r removematch GLOB vllm@llama@*]
    assert_equal 1 [r removematch REGEX {^vllm@q.*@[0-9]+$}]
    assert_equal 1 [r removematch regex th]
    assert_equal 0 [r dbsize]
    r mset {*}[batch c 100 v]
    assert_equal 7 [r removematch GLOB * COUNT 7]
    assert_equal 93 [r dbsize]
    assert_error "ERR REGEX is not valid *" {r removematch REGEX (}
    assert_error "ERR kind must be GLOB or REGEX" {r removematch nonsense x}
    assert_error "ERR COUNT must be *" {r removematch GLOB * COUNT 0}
    assert_error "ERR unknown option *" {r removematch GLOB * x}
    assert_error "ERR pattern may have *" {r removematch GLOB [string repeat x 5000]}
}

test {guarantee 4: a regular expression that takes exponential time is given up} {
    r flushall
    r set [string repeat a 60]! v
    assert_error "ERR REGEX takes too many steps*" {r removematch REGEX {^(a+)+$}}
    assert_equal 1 [r dbsize]
}

test {REMOVEMATCH removes leased and pinned objects; their space waits} {
    r flushall
    set put [r putstart pinned 100000 PIN HARD]
    r putend pinned [lindex $put 0] -1
    r getreplicas pinned LEASE 1000
    assert_equal 1 [r removematch GLOB *]
    assert_equal 0 [r exists pinned]
}

finish
