# HINT SESSION and HINT RETURN of puts and look-ups: they change no reply, and errors name them.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 16mb

set longest [string repeat s 128]
# Of each command the words that go before its options; FRESH is another key each time.
set commands {
    {putstart FRESH 1000}
    {mputstart 2 FRESH 1000 k 10}
    {getreplicas k}
    {mgetreplicas 2 k nothere}
    {prefixlen 2 k nothere}
    {prefixlen 2 k nothere UNIT 16 ALIGN 16 KVGROUPS 1 f@ FULL 16 16 0 0}
}
set fresh 0
proc words {command} {string map [list FRESH fresh:[incr ::fresh]] $command}

# The reply without what differs by put: tokens, offsets, grants.
proc shape {reply} {
    if {[llength $reply] <= 1} {return $reply}
    lmap part $reply {expr {[string is entier -strict $part] ? "n" : [llength $part]}}
}

test {hints in any order with other options change no reply} {
    r set k v
    foreach command $commands {
        set plain [shape [r {*}[words $command]]]
        foreach hints [list {HINT SESSION s} {HINT RETURN 1} {HINT SESSION SESSION} \
                           {hint return 86400000 hint session s} \
                           [list HINT SESSION $longest HINT RETURN 60000] \
                           [list HINT SESSION "a b\r\n\0\xff"]] {
            assert_equal $plain [shape [r {*}[words $command] {*}$hints]]
        }
    }
    assert_equal 1 [r prefixlen 2 k nothere HINT SESSION s LEASE 1000 HINT RETURN 5 WAIT 1]
    set put [r putstart timed 1000 HINT RETURN 5 TTL 100000 HINT SESSION s REPLICAS 1]
    assert_equal OK [r putend timed [lindex $put 0] -1]
    assert_range 90 [r ttl timed] 100
}

test {what is wrong with hints} {
    set number "ERR RETURN must be a number from 1 to 86400000"
    foreach command $commands {
        foreach {hints error} [list \
            {HINT} "ERR HINT must be SESSION id or RETURN ms" \
            {HINT USER u} "ERR HINT must be SESSION id or RETURN ms" \
            {HINT SESSION} "ERR SESSION needs a value" \
            {HINT SESSION {}} "ERR SESSION must be 1 to 128 bytes" \
            [list HINT SESSION s$::longest] "ERR SESSION must be 1 to 128 bytes" \
            {HINT RETURN} "ERR RETURN needs a value" \
            {HINT RETURN 0} $number {HINT RETURN -1} $number {HINT RETURN soon} $number \
            {HINT RETURN 1.5} $number {HINT RETURN {}} $number {HINT RETURN 86400001} $number \
            {HINT RETURN 99999999999999999999} $number \
            {HINT SESSION s HINT SESSION s} "ERR HINT SESSION may be given once" \
            {HINT RETURN 5 HINT SESSION s HINT RETURN 5} "ERR HINT RETURN may be given once" \
            {SESSION s} "ERR unknown option 'SESSION'" \
            {HINTS SESSION s} "ERR unknown option 'HINTS', did you mean 'HINT'?"] {
            assert_error $error {r {*}$command {*}$hints}
        }
    }
    assert_equal 0 [r exists FRESH]
}

test {a wait keeps the hints until its keys are there} {
    set c [client]
    resp::send $c prefixlen 1 late WAIT 5000 HINT SESSION s LEASE 1000 HINT RETURN 9
    wait_for "the wait" {[info_field blocked_clients] == 1}
    r set late v
    assert_equal 1 [resp::recv $c]
    drop $c
}

test {COMMAND DOCS tells of HINT} {
    foreach name {putstart mputstart getreplicas mgetreplicas prefixlen} {
        set docs [string tolower [r command docs $name]]
        assert {[string match "*token hint*session*return*" $docs]}
    }
}

finish
