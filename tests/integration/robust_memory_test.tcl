# The limits of memory, reached in every state: what is refused says so, what was there stays
# readable, and memory comes back.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 32mb --maxmemory 8mb --enable-debug-command yes \
    --max-puts-per-client 1000000 --client-query-buffer-limit 8mb \
    --proto-max-bulk-len 4mb --repl-backlog-size 1mb --enable-protected-configs yes

proc pipeline {c requests} {
    set out ""
    foreach request $requests {append out [resp::encode $request]}
    resp::raw $c $out
    set replies {}
    foreach - $requests {lappend replies [resp::recv $c]}
    return $replies
}

# From here on the server is as it was: its books are right, it takes values again.
proc sound {} {
    assert_equal OK [r debug check]
    r flushall
    wait_for "all to be gone" {[r dbsize] == 0 && [info_field pool_free] == [info_field pool_size]}
    assert_equal OK [r set k v]
    assert_equal v [r get k]
    r del k
}

# n small values, in the books.
proc fill {name n} {
    set value [string repeat x 40]
    for {set i 0} {$i < $n} {incr i 1000} {
        set requests {}
        for {set k 0} {$k < 1000} {incr k} {
            lappend requests [list set $name[expr {$i + $k}] $value]
        }
        foreach reply [pipeline [r] $requests] {assert_equal OK $reply}
    }
}

test {SET: small values drive one another out, the books stay within maxmemory} {
    fill s 100000
    # The limit is looked at before a value is taken: the last one comes on top, as in Redis.
    assert {[info_field mem_books] <= (8 << 20) + 2048} [info_field mem_books]
    assert {[r dbsize] > 10000}
    assert {[info_field evicted_keys] > 0}
    assert_equal [string repeat x 40] [r get s99999]
    sound
}

# Begins puts that it does not end, until one is refused. Returns whether one was, among the first
# n.
proc puts_to_the_limit {c n} {
    for {set i 0} {$i < $n} {incr i 1000} {
        set requests {}
        for {set k 0} {$k < 1000} {incr k} {lappend requests [list putstart p[expr {$i + $k}] 100]}
        foreach reply [pipeline $c $requests] {
            if {![string match "(error)*" $reply]} continue
            if {![regexp {OOM|NOSPACE|LIMIT|too many|space} $reply]} {error $reply}
            return 1
        }
    }
    return 0
}

test {PUTSTART: puts that are never ended end at a limit, which is told; who leaves gives all\
        back} {
    r config set put-release-timeout 100
    # On a slow machine the first would end before the last is begun, and their client would be cut
    # off for it: more time, then.
    foreach timeout {1000 4000 16000} {
        r config set put-timeout $timeout
        set c [client]
        if {![catch {set refused [puts_to_the_limit $c 60000]} message]} break
        assert {[regexp {closed by the server|connection reset|broken pipe} $message]} $message
        drop $c
        wait_for "what it had to be free" {[info_field pool_free] == [info_field pool_size]}
    }
    assert $refused
    assert {[info_field mem_books] <= 9 << 20} [info_field mem_books]
    # Reading, and removing, go on.
    assert_equal (nil) [r get nokey]
    assert_equal 0 [r del nokey]
    assert_equal PONG [r ping]
    drop $c
    wait_for "what it had to be free" {[info_field pool_free] == [info_field pool_size]}
    r config set put-timeout 30000 put-release-timeout 600000
    sound
}

test {MULTI: a queue is bounded, and says so; EXEC at the limit answers each command} {
    set c [client]
    $c multi
    set value [string repeat x 100000]
    set refused ""
    for {set i 0} {$i < 200 && $refused eq ""} {incr i} {
        catch {$c set m$i $value} answer
        if {$answer ne "QUEUED"} {set refused $answer}
    }
    assert {$refused ne ""}
    assert_error "EXECABORT*" {$c exec}
    assert_equal PONG [$c ping]
    $c multi
    for {set i 0} {$i < 60} {incr i} {$c set m$i $value}
    set replies [$c exec]
    assert_equal 60 [llength $replies]
    foreach reply $replies {assert {$reply eq "OK" || [string match "(error) OOM*" $reply]} $reply}
    drop $c
    sound
}

test {WATCH, SUBSCRIBE and PSUBSCRIBE: what one connection may have is bounded, and goes with it} {
    set before [info_field used_memory]
    foreach command {watch subscribe psubscribe} {
        set c [client]
        set names {}
        for {set i 0} {$i < 120000} {incr i} {lappend names n$i}
        resp::send $c $command {*}$names
        assert_equal PONG [r ping]
        drop $c
        wait_for "it to be gone" {[info_field connected_clients] == 1}
        assert {[info_field used_memory] - $before < 6 << 20} \
            "$command: [info_field used_memory] - $before"
    }
    sound
}

test {maxmemory lowered below what is there: objects go, reads are answered all the time} {
    set least [expr {[info_field mem_books] + (2 << 20)}] ;# tables keep the size that they had once
    fill s 40000
    r config set maxmemory $least
    assert_equal PONG [r ping]
    wait_for "the books to be small" {[catch {r set new v}] == 0 && \
        [info_field mem_books] <= $least}
    assert_equal v [r get new]
    r config set maxmemory 8mb
    sound
}

test {a replica attaches while the master is at its limit, and has the same books} {
    fill s 100000
    set port [server port]
    set want [r debug digest]
    start_server --pool-size 0 --enable-debug-command yes --replicaof "127.0.0.1 $port" \
        --maxmemory 1mb --eviction-policy lru
    set ::want $want
    wait_for "the replica to be in sync" {[info_field master_link_status] eq "up" && \
        [r debug digest] eq $::want}
    assert_equal OK [r debug check]
    stop_server
    sound
}

test {no number in a request makes the server take memory for it} {
    set big 4611686018427387904
    set before [info_field used_memory]
    r set k v
    set requests {}
    foreach n [list 2147483647 2147483648 4294967296 $big 9223372036854775807 18446744073709551615 \
            -9223372036854775808] {
        lappend requests [list setrange k $n x] [list getrange k 0 $n] [list getrange k -$n $n] \
            [list scan 0 count $n] [list slowlog get $n] \
            [list acl log $n] [list acl genpass $n] [list mputstart $n a 1] \
            [list mputend $n a 1 -1] [list prefixlen $n a] \
            [list mgetreplicas $n a] [list putstart p $n] [list putstart p 1 replicas $n] \
            [list memory usage k samples $n] \
            [list command getkeys mputstart $n a 1] [list expire k $n] [list getex k px $n] \
            [list wait $n 1] [list client id $n] \
            [list client kill id $n] [list client list id $n] [list evict k $n] [list pin k $n] \
            [list getreplicas nokey wait 0 lease $n] \
            [list removematch ^a limit $n] [list kvevents read $n $n count $n] \
            [list object freq k $n] \
            [list config set maxmemory $n] [list config set slowlog-max-len $n] \
            [list config set acllog-max-len $n] [list config set max-objects $n] \
            [list config set maxclients $n] \
            [list config set repl-backlog-size $n] [list config set client-query-buffer-limit $n] \
            [list config set output-pause $n] \
            [list config set kv-events-size $n] [list config set proto-max-bulk-len $n] \
            [list config set inband-buffer $n] \
            [list config set hz $n] [list config set loop-work-quota 1000] \
            [list config set maxmemory 8mb] [list config set maxclients 10000] \
            [list config set repl-backlog-size 1mb] [list set k v]
    }
    # With no more than 256 MiB beyond what it has: an allocation of what was asked for would be its
    # end.
    regexp {VmSize:\s+(\d+) kB} [file_text /proc/[server pid]/status] - kb
    if {[auto_execok prlimit] ne "" && (![info exists ::env(TARN_SANITIZER)] || \
            $::env(TARN_SANITIZER) eq "")} {
        exec prlimit --pid [server pid] --as=[expr {$kb * 1024 + (256 << 20)}]:
    }
    foreach request $requests {
        catch {r {*}$request} answer
        if {[string match "*closed*" $answer]} {error "$request: $answer"}
    }
    assert_equal PONG [r ping]
    r config set maxmemory 8mb maxclients 10000 acllog-max-len 128 slowlog-max-len 128 hz 10
    if {[auto_execok prlimit] ne ""} {catch {exec prlimit --pid [server pid] --as=unlimited:}}
    assert {[info_field used_memory] - $before < 24 << 20} "[info_field used_memory] - $before"
    sound
}
test {a replica attaches where there is no memory for repl-backlog-size: it gets what there is} {
    if {[auto_execok prlimit] eq "" || ([info exists ::env(TARN_SANITIZER)] && \
            $::env(TARN_SANITIZER) ne "")} {
        skip "prlimit, and a server without sanitizers"
    }
    start_server --pool-size 0 --repl-backlog-size 1tb --enable-debug-command yes
    regexp {VmSize:\s+(\d+) kB} [file_text /proc/[server pid]/status] - kb
    exec prlimit --pid [server pid] --as=[expr {$kb * 1024 + (256 << 20)}]:
    r set k v
    set ::want [r debug digest]
    set port [server port]
    start_server --pool-size 0 --enable-debug-command yes --replicaof "127.0.0.1 $port"
    wait_for "the replica to be in sync" {[info_field master_link_status] eq "up" && \
        [r debug digest] eq $::want}
    stop_server
    assert_match "*There is no memory for repl-backlog-size*" [file_text [server log]]
    assert_equal PONG [r ping]
    stop_server
}
finish
