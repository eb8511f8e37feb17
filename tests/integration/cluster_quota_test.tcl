# Several masters: requests with many keys are looked at in slices, before anything of them is done.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] masters.tcl]

foreach name {a b} {
    up $name --max-batch-keys 1000000 --enable-module-command yes
}
# {bar} is of slot 5061, of a; {foo} of 12182, of b
set rows {{a 1 a 0-10922} {b 1 b 10923-16383}}
spread_map [slot_map 1 $rows] a b
set n 20000
set quota [lindex [ask a config get loop-work-quota] 1]
proc keys_of {tag} {
    for {set i 0} {$i < $::n} {incr i} {lappend keys "{$tag}$i"}
    return $keys
}
set bar [keys_of bar]
set foo [keys_of foo]
proc fill {} {
    ask a mset {*}[join [lmap k $::bar {list $k v}]]
    assert_equal $::n [ask a dbsize]
}
# By a connection of its own: the other one may be in a transaction.
set probe [resp::connect $server_host [port a]]
proc slices {} {
    regexp {job_slices:(\d+)} [$::probe info everything] - slices
    return $slices
}
# What it answers, having taken so many slices for each of its keys at least.
proc sliced {times args} {
    set before [slices]
    set got [ask a {*}$args]
    set slices [expr {[slices] - $before}]
    assert {$slices >= $times * $::n / $::quota - $times} "$slices slices of $::quota"
    return $got
}
# The other master tells this one of itself now and then, by a write, which a pause holds back, too.
proc hush_b {} {
    send_signal STOP [dict get $::S(b) pid]
    ask a ping ;# what b has said is read by now
}
proc wake_b {} {send_signal CONT [dict get $::S(b) pid]}
proc calls {command} {
    regexp "cmdstat_$command:calls=(\\d+)" [ask a info commandstats] - calls
    return $calls
}

test {guarantee 4: DEL, MGET, PREFIXLEN: a slice after the other looks at keys, then does it} {
    fill
    assert_equal $n [llength [sliced 2 mget {*}$bar]]
    assert_equal $n [sliced 2 exists {*}$bar]
    assert_equal $n [sliced 2 prefixlen $n {*}$bar]
    ask a config set slowlog-log-slower-than 0
    ask a config resetstat
    ask a slowlog reset
    assert_equal $n [sliced 2 del {*}$bar]
    assert_equal 1 [calls del]
    set slow [lsearch -all -inline -index 3 [ask a slowlog get 100] {del *}]
    assert_equal 1 [llength $slow]
    ask a config set slowlog-log-slower-than 10000
    assert_equal 0 [ask a dbsize]
}

test {guarantee 4: KV groups: each part is a key} {
    set groups {"{bar}f" FULL 16 16 0 0 "{bar}g" FULL 16 16 0 0}
    set hashes [lrange $bar 0 9999]
    foreach command {prefixlen mgetreplicas} {
        assert_equal 0 [lindex [sliced 1 $command 10000 {*}$hashes UNIT 16 ALIGN 16 KVGROUPS 2 \
            {*}$groups] 0]
    }
    assert_error "MOVED 12182 *" {sliced 1 prefixlen 10000 {*}$hashes UNIT 16 ALIGN 16 KVGROUPS 2 \
        "{foo}f" FULL 16 16 0 0 "{foo}g" FULL 16 16 0 0}
}

test {what is another's, or of several, is answered as with few keys, and nothing is done} {
    fill
    assert_error "MOVED 12182 127.0.0.1:[port b]" {ask a del {*}$foo}
    assert_error "CROSSSLOT *" {ask a del {*}$bar {*}$foo}
    assert_error "CROSSSLOT *" {ask a del {*}$bar [lindex $foo 0]}
    assert_error "ERR wrong number*" {ask a mset {*}$bar "{bar}x"}
    assert_equal $n [ask a dbsize]
    assert_equal PONG [ask a ping]
}

test {transactions: queued, and EXEC looks at all of it} {
    assert_equal OK [ask a multi]
    assert_equal QUEUED [ask a exists {*}$bar]
    assert_equal QUEUED [ask a set "{bar}x" 1]
    assert_equal [list $n OK] [sliced 2 exec]
    ask a multi
    for {set i 0} {$i < $n} {incr i 500} {ask a exists {*}[lrange $bar $i $i+499]}
    assert_equal [lrepeat [expr {$n / 500}] 500] [sliced 2 exec]
    ask a multi
    assert_error "MOVED 12182 *" {ask a exists {*}$foo}
    assert_error "EXECABORT *" {ask a exec}
    ask a multi
    ask a del {*}$bar
    set elsewhere [slot_map 2 {{a 1 a 0-5060,5062-10922} {b 1 b 5061,10923-16383}}]
    set other [resp::connect $::server_host [port a]]
    assert_equal OK [$other cluster setmap a $elsewhere FORCE]
    assert_error "MOVED 5061 127.0.0.1:[port b]" {ask a exec}
    assert_error "ERR EXEC without MULTI" {ask a exec}
    resp::close $other
    wait_for "what is another's to go" {[ask a dbsize] == 0}
    spread_map [slot_map 3 $rows] b a
}

test {CLIENT PAUSE holds back what has its keys looked at, too} {
    fill
    hush_b
    set paused [field a postponed_commands]
    assert_equal OK [$probe client pause 600000 write]
    set c [resp::connect $::server_host [port a]]
    resp::send $c del {*}$bar
    wait_for "it to be held back" {[field a postponed_commands] > $paused}
    assert_equal $n [ask a dbsize]
    assert_equal $n [ask a exists {*}$bar]
    assert_equal OK [$probe client unpause]
    assert_equal $n [resp::recv $c]
    assert_equal [expr {$paused + 1}] [field a postponed_commands]
    resp::close $c
    wake_b
}

test {CLIENT UNBLOCK reaches who waits with many keys} {
    set c [resp::connect $::server_host [port a]]
    set id [$c client id]
    resp::send $c prefixlen $n {*}$bar WAIT 600000
    wait_for "it to wait, no longer to be looked at" {[$probe client unblock $id] == 1}
    assert_equal 0 [resp::recv $c]
    resp::close $c
}

test {who goes away while its keys are looked at} {
    set before [slices]
    set c [resp::connect $::server_host [port a]]
    resp::send $c del {*}$foo
    resp::close $c
    ask a config set loop-work-quota 16
    set c [resp::connect $::server_host [port a]]
    resp::send $c exists {*}$bar
    resp::close $c
    wait_for "its work to be over" {[field a blocked_clients] == 0 && [slices] > $before}
    assert_equal PONG [ask a ping]
    ask a config set loop-work-quota $quota
}

test {CLIENT PAUSE holds them back, and ASKING is still for the command behind it} {
    set other [resp::connect $::server_host [port a]]
    ask a del {*}$bar
    hush_b
    $other client pause 600000 WRITE
    set c [resp::connect $::server_host [port a]]
    resp::send $c mset {*}[join [lmap k $bar {list $k v}]]
    wait_for "it to wait" {[field a blocked_clients] == 1}
    assert_equal 0 [$other dbsize]
    $other client unpause
    assert_equal OK [resp::recv $c]
    assert_equal $n [$other dbsize]
    wake_b
    spread_map [slot_map 4 $rows {{b a 12182}}] a b
    hush_b
    $other client pause 600000 WRITE
    assert_equal OK [$c asking]
    resp::send $c set foo 1
    wait_for "it to wait" {[field a blocked_clients] == 1}
    $other client unpause
    assert_equal OK [resp::recv $c]
    wake_b
    resp::close $c
    resp::close $other
}

test {EXEC looks at what was queued before commands came, too} {
    set c [resp::connect $::server_host [port a]]
    set other [resp::connect $::server_host [port a]]
    foreach elsewhere {0 1} {
        $c multi
        assert_equal QUEUED [$c exists {*}$bar]
        $other module load $::modules/toy.so
        if {$elsewhere} {
            $other cluster setmap a \
                [slot_map 5 {{a 1 a 0-5060,5062-10922} {b 1 b 5061,10923-16383}}] FORCE
            assert_error "MOVED 5061 127.0.0.1:[port b]" {$c exec}
        } else {
            assert_equal [list $n] [$c exec]
        }
        $other module unload toy
    }
    resp::close $c
    resp::close $other
}

finish
