# Random bytes at a whole server, with everything behind it: books, pool, append-only file, a
# replica. ROBUST_SECONDS=3600 for an hour of it, ROBUST_SEED=7 for other bytes. The same seed sends
# the same bytes on each connection. Every other round goes to a TLS port, where bytes change, stop,
# or are no TLS.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] tls.tcl]
set seconds [expr {[info exists ::env(ROBUST_SECONDS)] ? $::env(ROBUST_SECONDS) : 2}]
set seed [expr {[info exists ::env(ROBUST_SEED)] ? $::env(ROBUST_SEED) : 1}]
set storm [file join [file dirname $::kv_binary] storm]
set round 0

# What the storm may not do: end or rule the server, or the probe.
set rules {on >s ~* &* +@all -shutdown -replicaof -slaveof -module -debug -psync -replconf\
    -config|set
    -config|rewrite -config|resetstat -client|kill -client|pause -acl|setuser -acl|deluser \
        -acl|load -acl|save -save -bgsave -bgrewriteaof}

proc login {} {
    r auth p
    return [r]
}

# Every key that is there is found by a walk, once or more, and nothing else is.
proc walk {} {
    set seen [dict create]
    set cursor 0
    while 1 {
        lassign [r scan $cursor count 1000] cursor keys
        foreach key $keys {dict set seen $key 1}
        if {$cursor == 0} break
    }
    return [dict keys $seen]
}

set pool [file join [temp_dir] pool]
start_server --pool-size 32mb --pool-path $pool --enable-debug-command yes --requirepass p \
    --masterauth p --appendonly yes --appendfsync no --maxmemory 64mb \
    --client-output-buffer-limit "normal 16mb 0 0 pubsub 4mb 2mb 2" \
    --client-query-buffer-limit 4mb --proto-max-bulk-len 1mb \
    --repl-backlog-size 4mb --loglevel warning --put-timeout 500 --put-release-timeout 500 \
    --acllog-max-len 16 \
    --notify-keyspace-events KEA --kv-events-size 1mb --latency-monitor-threshold 1 \
    --slowlog-log-slower-than 0
set master [server]
start_server --pool-size 0 --enable-debug-command yes --requirepass p --masterauth p \
    --replicaof "127.0.0.1 [dict get $master port]" --loglevel warning
set replica [server]

# The one that commands go to.
proc use {name} {
    set s [set ::$name]
    set i [lsearch -exact $::servers $s]
    set ::servers [concat [lreplace $::servers $i $i] [list $s]]
    unset -nocomplain ::main_client
    foreach c $::clients {catch {resp::close $c}}
    set ::clients {}
    login
}

use master
r acl setuser s {*}$rules
wait_for "the replica to be there" {[string match *state=online* [r info replication]]}
if {[have_openssl]} {
    make_ca ca
    make_cert server ca
    make_cert user ca
    open_tls_port tls-handshake-timeout 1s
}
set files [llength [glob -directory /proc/[server pid]/fd *]]

proc storm_once {length {way "in plain text"}} {
    incr ::round
    set options [list --seed [expr {$::seed + $::round - 1}] --seconds $length \
        --patience $::patience_ms --auth s s --probe p]
    set port [dict get $::master port]
    if {$way eq "over TLS"} {
        lappend options --tls [pem user.crt] [pem user.key] --connections 96 ;# many of them wait \
            until they are thrown out
        set port [tls_port]
    }
    set status [catch {exec $::storm {*}$options $port 2>@1} text]
    puts "# round $::round, $way: $text"
    if {$status} {error $text}
    if {![regexp {harmed=(\d+) requests=(\d+).* probes=(\d+)} $text - harmed requests probes]} {
        error $text
    }
    assert {$requests > 1000 && $probes > 5} $text
    assert {($harmed > 0) == ($way eq "over TLS")} $text
}

# Who has gone behind more than a server reads ahead of a client that waits (WAIT 3 0) is seen to be
# gone when it waits no more; else when the kernel gives up on the rest, after minutes.
proc others_are_gone {} {
    foreach line [split [r client list] \n] {
        if {[regexp {^id=(\d+) .* flags=b } $line - id]} {catch {r client unblock $id}}
    }
    return [expr {[info_field connected_clients] == 2}] ;# the replica is one
}

proc settled {} {
    use master
    wait_for "the connections to be gone" {[others_are_gone]}
    wait_for "its jobs to be over" {[info_field blocked_clients] == 0}
    assert_equal OK [r debug check]
    assert_equal [r dbsize] [llength [walk]]
}

proc same_digests {} {
    use master
    set ::want [r debug digest]
    use replica
    wait_for "the replica to have what the master has" {[r debug digest] eq $::want}
    assert_equal OK [r debug check]
    use master
}

# In rounds of half a minute at most, so that a fault is found near to where it began.
set ways {"in plain text"}
if {[have_openssl]} {lappend ways "over TLS"}
set length [expr {max(1, min(30, $seconds / [llength $ways]))}]
for {set left $seconds} {$left > 0 && $::tally::failed == 0} {incr left -$length} {
    set way [lindex $ways [expr {$round % [llength $ways]}]]
    test "a storm of $length s $way, seed [expr {$seed + $round}]: the probe is answered, the\
            books are right" {
        storm_once $length $way
        settled
    }
    if {$::tally::failed > 0} break ;# what a storm has broken is looked at, and not stormed again
    test {the replica has the same books} {same_digests}
    test {nothing is left behind} {
        r flushall
        r multi
        r flushall
        r exec
        wait_for "what was being written to be over" {[r dbsize] == 0 && \
            [info_field pool_free] == [info_field pool_size]}
        assert_equal $files [llength [glob -directory /proc/[server pid]/fd *]]
        assert {[info_field used_memory] < 24 << 20} [info_field used_memory]
        assert_equal 0 [info_field pubsub_channels]
        assert_equal 0 [info_field pubsub_patterns]
        assert_equal OK [r debug check]
    }
}

test {a server that starts again with the file that a storm has written has the same books} {
    if {$::tally::failed > 0} {skip "a storm has broken something"}
    storm_once 1
    settled
    same_digests
    set digest [r debug digest]
    restart_server TERM
    set master [server]
    login
    assert_equal $digest [r debug digest]
    assert_equal OK [r debug check]
}
finish
