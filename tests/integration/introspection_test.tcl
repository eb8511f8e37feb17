# What the server tells of its connections, and the commands that hold others back: CLIENT LIST,
# SLOWLOG, CLIENT PAUSE, EXEC when the state has changed, SHUTDOWN ABORT. As redis-server 7.0 unless
# it says so.
source [file join [file dirname [info script]] harness.tcl]

start_server --enable-debug-command yes --slowlog-log-slower-than -1

proc field {name line} {
    if {![regexp " $name=(\[^ \]*)" $line -> value]} {error "no $name in $line"}
    return $value
}
proc line_of {name} {
    foreach line [split [r client list] \n] {
        if {[string match "* name=$name *" $line]} {return $line}
    }
    return ""
}

test {CLIENT LIST: the request that runs is in qbuf, memory that all lend is nobody's} {
    set line [r client list]
    assert_equal 26 [field qbuf $line]
    assert_equal {0 0 0} [list [field obl $line] [field oll $line] [field omem $line]]
    # With what stands behind it.
    set c [client]
    resp::raw $c "CLIENT INFO\r\nPING\r\n"
    assert_equal 19 [field qbuf [resp::recv $c]]
    assert_equal PONG [resp::recv $c]
    drop $c
}

test {CLIENT LIST: what has come of a large argument} {
    set c [client]
    $c client setname half
    resp::raw $c "*2\r\n\$4\r\nECHO\r\n\$200000\r\n[string repeat x 100000]"
    wait_for "half of it" {[field qbuf [line_of half]] == 100000}
    resp::raw $c "[string repeat y 100000]\r\n"
    assert_equal 200000 [string length [resp::recv $c]]
    assert_equal 0 [field qbuf [line_of half]]
    drop $c
}

test {COMMAND DOCS: synopsis, reply and errors, which redis-cli passes over} {
    set docs [lindex [r command docs putrevoke] 1]
    assert_equal {key token [RECEIPTS bytes]} [dict get $docs synopsis]
    assert_equal {OK BADTOKEN} [list [dict get $docs reply] [dict get $docs errors]]
    set docs [lindex [r command docs config] 1]
    assert {![dict exists $docs reply]}
    assert_equal {} [dict get [dict get $docs subcommands] config|get errors]
    # redis-cli asks for the docs of all commands before it says anything.
    set said [exec redis-cli -p [server port] help putrevoke 2>@1]
    assert_match {*PUTREVOKE*key token ?RECEIPTS bytes?*Gives a put up.*} $said
}

test {only the values of secret options are hidden} {
    r config set slowlog-log-slower-than 0
    r slowlog reset
    r config set timeout 0 masterauth secret hz 10
    r config set slowlog-log-slower-than -1
    assert_equal {config set timeout 0 masterauth (redacted) hz 10} [lindex [r slowlog get 1] 0 3]
    r config set masterauth ""
}

test {who waits for the end of CLIENT PAUSE is blocked} {
    set c [client]
    $c client setname waits
    r client pause 100000 write
    resp::send $c set held 1
    wait_for "the pause to hold it" {[info_field blocked_clients] == 1}
    assert_match *b* [field flags [line_of waits]]
    r client unpause
    assert_equal OK [resp::recv $c]
    assert_equal 0 [info_field blocked_clients]
    drop $c
}

test {nothing is expired for good while a pause lasts} {
    set expired [info_field expired_keys]
    # In one piece: nothing comes between them, however slow this process is.
    resp::raw [r] [resp::encode {set short v px 100}][resp::encode {client pause 100000 write}]
    assert_equal {OK OK} [list [resp::recv [r]] [resp::recv [r]]]
    wait_for "its time to be over" {[r exists short] == 0}
    assert_equal $expired [info_field expired_keys]
    r client unpause
    wait_for "it to be removed" {[info_field expired_keys] == $expired + 1}
    # A pause that ends by itself does the same.
    r set short v px 20
    r client pause 200 all
    after 60
    wait_for "the end of the pause" {[info_field expired_keys] == $expired + 2}
}

test {what cannot be put anyway is refused when it is queued, and by EXEC} {
    # Nothing is evicted for the lower limit.
    set policy [lindex [r config get maxmemory-policy] 1]
    r config set maxmemory-policy noeviction
    r set x v
    r multi
    assert_equal QUEUED [r get x]
    assert_equal QUEUED [r set y v]
    set c [client]
    $c config set maxmemory 1
    assert_error "EXECABORT Transaction discarded because of: OOM *" {r exec}
    r multi
    assert_equal QUEUED [r get x]
    assert_error "OOM command not allowed*" {r set y v}
    assert_error "EXECABORT*previous errors*" {r exec}
    r multi
    assert_equal QUEUED [r get x]
    assert_equal v [r exec]
    $c config set maxmemory 0
    wait_for "the policy to be what it was" {![catch {r config set maxmemory-policy $::policy}]}
    assert_equal OK [r set y v]
    drop $c
}

test {EXEC on a replica without its master: judged by what it would run} {
    start_server --pool-size 0 --replica-serve-stale-data no
    set silent [socket -server {apply {args {}}} -myaddr 127.0.0.1 0]
    set port [lindex [fconfigure $silent -sockname] 2]
    set c [client]
    $c multi
    $c ping
    r multi
    r exists x
    set other [client]
    $other replicaof 127.0.0.1 $port
    assert_error "EXECABORT*MASTERDOWN*" {$c exec}
    assert_error "EXECABORT*MASTERDOWN*" {r exec}
    assert_error MASTERDOWN* {r ping}
    r multi
    r info server
    assert_equal 1 [llength [r exec]]
    drop $c
    close $silent
    stop_server
}

test {SHUTDOWN ABORT calls off a signal that was not acted on yet} {
    start_server --enable-debug-command yes
    assert_error "ERR No shutdown in progress." {r shutdown abort}
    r debug pause-cron 1
    send_signal TERM [server pid]
    wait_for "the signal to be seen" {[string match "*Received SIGTERM*" [file_text [server log]]]}
    assert_equal PONG [r ping]
    assert_equal OK [r shutdown abort]
    assert_match "*Shutdown manually aborted*" [file_text [server log]]
    r debug pause-cron 0
    assert_equal PONG [r ping]
    assert_error "ERR No shutdown in progress." {r shutdown abort}
    stop_server
}

test {requests may be bounded below proto-max-bulk-len} {
    r config set client-query-buffer-limit 2mb
    assert_equal {client-query-buffer-limit 2097152} [r config get client-query-buffer-limit]
    set c [client]
    resp::raw $c "*2\r\n\$4\r\nECHO\r\n\$4000000\r\n"
    catch {for {set i 0} {$i < 40} {incr i} {resp::raw $c [string repeat x 100000]}}
    assert_equal "" [resp::read_to_end $c]
    r config set client-query-buffer-limit 1gb
    drop $c
}

test {names: subcommands in COMMAND LIST; there is no cluster} {
    set names [r command list]
    foreach name {client|list config|get acl|setuser set putstart} {assert {$name in $names} $name}
    assert_equal [lsort -unique $names] [lsort $names]
    assert {"cluster|help" in [r command list filterby pattern cl*help]}
    foreach sub {info nodes slots shards myid} {
        assert_error "ERR This instance has cluster support disabled" {r cluster $sub}
    }
}

test {INFO cache: why look-ups missed} {
    start_server --pool-size 1mb --pool-populate no
    r config resetstat
    r get never
    r set gone [string repeat x 1000]
    r del gone
    r get gone
    r set short [string repeat x 1000] px 1
    wait_for "it expires" {![r exists short]}
    r get short
    for {set i 0} {$i < 20} {incr i} {r set big$i [string repeat x 100000]}
    r get big0
    foreach {reason n} {never 1 removed 1 expired 1 evicted 1 away 0 gap 0} {
        assert_equal $n [info_field misses_$reason]
    }
    assert_equal 4 [info_field misses]
    assert_equal 1 [info_field misses_one_in]
    # behind the first miss of a prefix nobody looks
    assert_equal 1 [r prefixlen 5 big19 never a b c]
    assert_equal 3 [info_field misses_gap]
    assert_equal 2 [info_field misses_never]
    # users who only look around do not count: EXISTS takes no part in hits and misses
    r exists never
    assert_equal 2 [info_field misses_never]
    r config resetstat
    assert_equal 0 [info_field misses_never]
}

finish
