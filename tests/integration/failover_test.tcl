# FAILOVER: the planned handover of the master's role, there and back, under load, and with what may
# go wrong.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] tls.tcl]

set ha_load [file join [file dirname $kv_binary] ha_load]

proc replicas_online {master} {return [regexp -all {state=online} [ask $master info replication]]}
proc online {master n} {
    set ::awaited [list $master $n]
    wait_for "$n replicas of $master" {[replicas_online [lindex $::awaited 0]] ==\
        [lindex $::awaited 1]}
}
proc failover_state {name} {return [field $name master_failover_state]}
proc wait_handover {old new} {
    set ::awaited [list $old $new]
    wait_for "the handover from $old to $new" {[field_is [lindex $::awaited 1] role master] &&
        [field_is [lindex $::awaited 0] master_failover_state no-failover]}
    assert_equal slave [field $old role]
    wait_link $old
}
proc hand_over {old new args} {
    assert_equal OK [ask $old failover to 127.0.0.1 [port $new] {*}$args]
    wait_handover $old $new
}
proc freeze {name} {
    send_signal STOP [dict get $::S($name) pid]
    set ::awaited $name
    wait_for "$name to stand still" {[process_state [dict get $::S($::awaited) pid]] in {T stopped}}
}
proc thaw {name} {send_signal CONT [dict get $::S($name) pid]}
# Another connection, whose command is held back.
proc asking {name args} {
    set c [resp::connect $::server_host [port $name]]
    set ::awaited [list $name [field $name postponed_commands]]
    resp::send $c {*}$args
    wait_for "$args to be held back" {[field [lindex $::awaited 0] postponed_commands] >\
        [lindex $::awaited 1]}
    return $c
}
proc catch_recv {c} {
    catch {resp::recv $c} reply
    return $reply
}

# A node, or the load of ha_load.c, that knows all of the servers.
proc start_pool_node {name} {
    set dir [temp_dir]
    set command [list $::node_binary --master [urls a b c] --name $name --host-name $name \
        --bind 127.0.0.1 --data-port 0 --log-file $dir/log --shm-socket $dir/shm --segment 128mb \
        --no-populate]
    dict set ::pool_nodes $name [start_process $command $dir/stdout]
    wait_pool_node $name a
}
proc pool_node_is_up {name master} {
    return [expr {![catch {ask $master node info $name} info] && [dict get $info state] eq "up"}]
}
proc wait_pool_node {name master} {
    set ::awaited [list $name $master]
    wait_for "$name to be up at $master" {[pool_node_is_up {*}$::awaited]}
}
proc tell {what} {
    puts $::pipe $what
    while {[gets $::pipe line] >= 0} {
        if {![string match #* $line]} {return [split [string map {= " "} $line]]}
        puts $line
    }
    error "the load has ended"
}
proc urls {args} {return tarn://[join [lmap n $args {string cat 127.0.0.1:[port $n]}] ,]}

foreach name {a b c} {up $name --min-replicas-to-write 0 --repl-timeout 10}

# --- words ---

test {what is refused} {
    assert_equal no-failover [failover_state a]
    assert_error "ERR FAILOVER requires connected replicas." {ask a failover}
    assert_error "ERR No failover in progress." {ask a failover abort}
    follow b a
    follow c a
    online a 2
    foreach {arguments why} {
        {to 127.0.0.1 x} "ERR value is not an integer or out of range"
        {to 127.0.0.1} "ERR syntax error"
        {timeout} "ERR syntax error"
        {timeout x} "ERR value is not an integer or out of range"
        {timeout 0} "ERR FAILOVER timeout must be greater than 0"
        {timeout -1} "ERR FAILOVER timeout must be greater than 0"
        {now} "ERR syntax error"
        {abort timeout 5} "ERR syntax error"
        {force} "ERR FAILOVER with force option requires both a timeout and target HOST and IP."
        {force timeout 5} "ERR FAILOVER with force option requires both a timeout and target*"
        {to nowhere 1} "ERR FAILOVER target HOST and PORT is not a replica."
    } {
        assert_error $why {ask a failover {*}$arguments}
    }
    set own [list failover to 127.0.0.1 [port a]]
    assert_error "ERR FAILOVER target HOST and PORT is not a replica." {ask a {*}$own}
    assert_error "ERR FAILOVER is not valid when server is a replica." {ask b failover}
    assert_error "ERR No failover in progress." {ask b failover abort}
    assert_equal no-failover [failover_state a]
    assert_equal none [field a paused_actions]
}

test {COMMAND DOCS, ACL, and who may not} {
    assert {"failover" in [ask a acl cat dangerous]}
    assert {"failover" in [ask a acl cat admin]}
    ask a acl setuser little on nopass +@all -@admin
    set c [resp::connect 127.0.0.1 [port a]]
    $c auth little x
    assert_error "NOPERM *'failover'*" {$c failover}
    resp::close $c
    assert_match "*admin*noscript*stale*" [lindex [ask a command info failover] 0 2]
}

test {a master with a pool of its own keeps it} {
    up p --pool-size 64mb
    up q
    follow q p
    online p 1
    assert_error "ERR FAILOVER is not valid when server has a pool of its own*" {ask p failover}
    down q
    down p
}

# --- there and back ---

test {nothing is sent anew: the others go on in the stream} {
    foreach i {1 2 3} {ask a set k$i v$i}
    set id [field a master_replid]
    set epoch [field a master_epoch]
    hand_over a b
    assert_equal $id [field b master_replid2]
    assert_equal [field b master_replid] [field a master_replid]
    assert {[field b master_epoch] > $epoch}
    # c follows a, which follows b, until somebody says otherwise.
    wait_link c
    same_books a b c
    assert_match OK* [ask c replicaof 127.0.0.1 [port b]]
    wait_link c
    same_books a b c
    assert_equal "0 2" "[field b sync_full] [field b sync_partial_ok]"
    assert_equal v2 [ask b get k2]
    assert_equal OK [ask b set k4 v4]
    assert_error "READONLY *127.0.0.1:[port b]*" {ask a set k5 v5}
    # A write and the handover in one transaction.
    ask b multi
    ask b set k6 v6
    ask b failover to 127.0.0.1 [port a] timeout 1000000
    assert_equal {OK OK} [ask b exec]
    wait_handover b a
    assert_equal v6 [ask a get k6]
    set ::fulls [field a sync_full]
    follow c a
    same_books a b c
    assert_equal $::fulls [field a sync_full]
}

test {guarantee 5: back and forth under a load, and nothing that was acknowledged is lost} {
    focus a
    start_pool_node n1
    start_pool_node n2
    set url [urls a b c]
    set options {--replicas 2 --keys 150 --size 100-60000 --timeout 60000 --wait 1}
    set ::pipe [open "|setpriv --pdeathsig KILL $::ha_load $options $url l:\
        [lmap n {a b c} {string cat 127.0.0.1:[port $n]}] 2>@stderr" r+]
    fconfigure $::pipe -buffering line
    set writer [file join $::root tests integration failover_writer.tcl]
    set ::writer [open "|setpriv --pdeathsig KILL tclsh $writer w: [lmap n {a b c} {port $n}]" r+]
    fconfigure $::writer -buffering line
    assert_match * [tell go]
    set master a
    set fulls [lmap n {a b c} {field $n sync_full}]
    foreach next {b c a b a c b a} {
        set ::master $master
        set ::before [field $master total_commands_processed]
        wait_for "work to be done" {[field $::master total_commands_processed] > $::before + 300}
        hand_over $master $next
        foreach other {a b c} {
            if {$other ne $next && $other ne $master} {follow $other $next}
        }
        online $next 2
        set master $next
    }
    foreach n {n1 n2} {wait_pool_node $n a}
    tell stop
    close $::writer write
    set w [read $::writer]
    fconfigure $::writer -blocking 1
    close $::writer
    assert_equal "0 0" "[dict get $w lost] [dict get $w wrong]" $w
    assert {[dict get $w writes] > 100} $w
    set answer [tell check]
    foreach what {lost stale ghosts wrong} {assert_equal 0 [dict get $answer $what] $answer}
    assert {[dict get $answer visible] > 20} $answer
    close $::pipe
    same_books a b c
    assert_equal $fulls [lmap n {a b c} {field $n sync_full}]
}

# --- waiting ---

test {writes wait, reads do not; TIMEOUT ends it} {
    freeze b
    assert_equal OK [ask a set w 1]
    assert_equal OK [ask a failover to 127.0.0.1 [port b] timeout 1000000]
    assert_equal waiting-for-sync [failover_state a]
    assert_equal write [field a paused_actions]
    set set [asking a set w 2]
    set put [asking a putstart object 100000]
    assert_equal 1 [ask a get w]
    assert_error "ERR FAILOVER already in progress." {ask a failover}
    assert_error "ERR REPLICAOF not allowed while failing over." {ask a replicaof no one}
    assert_error "ERR REPLICAOF not allowed while failing over." {ask a slaveof 127.0.0.1 [port c]}
    assert_equal OK [ask a client unpause]
    assert_equal waiting-for-sync [failover_state a]
    assert_equal OK [ask a failover abort]
    assert_equal "no-failover none" "[failover_state a] [field a paused_actions]"
    assert_equal OK [resp::recv $set]
    assert_equal 2 [llength [resp::recv $put]]
    assert_equal OK [ask a failover to 127.0.0.1 [port b] timeout 100]
    resp::send $set incr w
    assert_equal 3 [resp::recv $set]
    assert_equal "no-failover master" "[failover_state a] [field a role]"
    assert {[log_has a "aborted: Replica never caught up before timeout"]}
    resp::close $put
    thaw b
    same_books a b c
}

test {a replica that was cut off while it is waited for comes back, and takes over} {
    freeze b
    assert_equal OK [ask a set w 3]
    assert_equal OK [ask a failover to 127.0.0.1 [port b]]
    ask a client kill type replica
    wait_for "them to be gone" {[field a connected_slaves] == 0}
    assert_equal waiting-for-sync [failover_state a]
    thaw b
    wait_handover a b
    follow c b
    assert_equal 3 [ask b get w]
    online b 2
    hand_over b a
    follow c a
    same_books a b c
}

test {any other replica takes the place of one that stands still} {
    freeze b
    ask a set w 4
    assert_equal OK [ask a failover]
    wait_handover a c
    thaw b
    wait_link b
    assert_equal 4 [ask c get w]
    hand_over c a
    follow b a
    follow c a
    same_books a b c
}

test {a replica that dies while it is waited for} {
    up x
    follow x a
    online a 3
    freeze x
    ask a set w 5
    assert_equal OK [ask a failover to 127.0.0.1 [port x]]
    down x
    wait_for "it to be gone" {[field a connected_slaves] == 2}
    assert_equal waiting-for-sync [failover_state a]
    set set [asking a set w 6]
    assert_equal OK [ask a failover abort]
    assert_equal OK [resp::recv $set]
    resp::close $set
    same_books a b c
}

test {those who waited hear who is the master} {
    freeze b
    ask a set w 7
    assert_equal OK [ask a failover to 127.0.0.1 [port b]]
    set set [asking a set w 8]
    set incr [asking a incr w]
    thaw b
    wait_handover a b
    foreach c [list $set $incr] {
        assert_match "*READONLY*127.0.0.1:[port b]*" [catch_recv $c]
        resp::close $c
    }
    assert_equal 7 [ask b get w]
    hand_over b a
    follow b a
    follow c a
}

test {a put that is open is over; its key is free, its bytes never show} {
    focus a
    set put [resp::connect 127.0.0.1 [port a]]
    lassign [$put putstart open 50000] token
    hand_over a b
    assert_error "READONLY*" {$put putend open $token 0}
    assert_equal 0 [ask b exists open]
    assert_error "BADTOKEN*" {ask b putend open $token 0}
    foreach n {n1 n2} {wait_pool_node $n b}
    focus b
    kv put open 50000
    hand_over b a
    foreach n {n1 n2} {wait_pool_node $n a}
    focus a
    assert_equal 50000 [string length [kv_value open]]
    follow c a
    resp::close $put
}

test {what has no CRC stays, and nothing is suspect that was not} {
    set put [resp::connect 127.0.0.1 [port a]]
    lassign [$put putstart unsummed 50000] token
    assert_equal OK [$put putend unsummed $token -1]
    resp::close $put
    hand_over a b
    foreach n {n1 n2} {wait_pool_node $n b}
    set look [ask b getreplicas unsummed lease 1000]
    assert_equal "50000 -1 0" "[lindex $look 1] [lindex $look 3] [lindex $look end]" $look
    # A promotion of which the master knows nothing is another matter.
    assert_equal OK [ask a replicaof no one]
    assert_equal 0 [ask a exists unsummed]
    follow a b
    hand_over b a
    foreach n {n1 n2} {wait_pool_node $n a}
    assert_equal 1 [ask a exists unsummed]
    follow c a
    same_books a b c
}

test {a value that is half here is not stored} {
    set c [resp::connect 127.0.0.1 [port a]]
    resp::raw $c "*3\r\n\$3\r\nSET\r\n\$4\r\nhalf\r\n\$9000000\r\n[string repeat x 500000]"
    wait_for "its bytes to come" {[field a total_net_input_bytes] > 500000}
    hand_over a b
    catch {resp::raw $c "[string repeat x 8500000]\r\n"}
    catch {resp::recv $c}
    assert_equal 0 [ask b exists half]
    resp::close $c
    hand_over b a
    follow c a
    same_books a b c
}

# --- force ---

test {FORCE: what the replica had not yet read comes along where it can} {
    freeze b
    ask a set forced 1
    assert_equal OK [ask a failover to 127.0.0.1 [port b] timeout 100 force]
    wait_for "the handover to begin" {[failover_state a] eq "failover-in-progress"}
    assert_equal slave [field a role]
    assert_error READONLY* {ask a set forced 2}
    thaw b
    wait_handover a b
    assert {[log_has a "time out exceeded, failing over."]}
    assert_equal 1 [ask b get forced]
    hand_over b a
    follow c a
    same_books a b c
}

test {FORCE to one that lags: its books are the ones that count} {
    set ::fulls [field b sync_full]
    freeze b
    # More than lies between them, so that it is cut off in the middle.
    for {set i 0} {$i < 40} {incr i} {
        set command mset
        for {set k 0} {$k < 5000} {incr k} {lappend command lag$i-$k [string repeat $i 20]}
        ask a {*}$command
    }
    assert_equal OK [ask a failover to 127.0.0.1 [port b] timeout 1 force]
    wait_for "the handover to begin" {[failover_state a] eq "failover-in-progress"}
    thaw b
    wait_handover a b
    assert_equal [expr {$::fulls + 1}] [field b sync_full]
    follow c b
    same_books a b c
    assert {[ask b dbsize] < 200000}
    hand_over b a
    follow c a
    ask a flushall
}

# --- replicas that are none ---

# It follows a as a replica at this port, and has read everything; who connects there gets those
# answers, one for each line.
proc false_replica {port} {
    set c [resp::connect 127.0.0.1 [port a]]
    assert_equal OK [$c replconf listening-port $port capa tarn1 capa tarn2]
    resp::send $c psync [field a master_replid] [expr {[field a master_repl_offset] + 1}]
    assert_match CONTINUE* [resp::recv $c]
    set ::false_replica $c
    fileevent $resp::fd($c) readable {catch {read $::resp::fd($::false_replica)}}
    false_ack
}
# It may read more than there was when it was asked for; so it says again and again that it has all.
proc false_ack {} {
    if {[catch {resp::send $::false_replica replconf ack [field a master_repl_offset]}]} return
    if {[failover_state a] ne "no-failover"} {return}
}
proc false_failover {port} {
    false_replica $port
    assert_equal OK [ask a failover to 127.0.0.1 $port timeout 1000000]
    while {[failover_state a] eq "waiting-for-sync"} {false_ack}
}
proc end_false {} {
    catch {resp::close $::false_replica}
    catch {close $::false_socket}
    online a 2
    same_books a b c
}

test {one that cannot be reached: the master goes on} {
    set socket [socket -server none -myaddr 127.0.0.1 0]
    set port [lindex [fconfigure $socket -sockname] 2]
    close $socket
    ask a set here 1
    false_failover $port
    wait_for "it to be given up" {[failover_state a] eq "no-failover"}
    assert_equal master [field a role]
    assert {[log_has a "FAILOVER to 127.0.0.1:$port aborted"]}
    assert_equal 1 [ask a get here]
    assert_equal OK [ask a set here 2]
    end_false
}

test {one that refuses, one that does not know what is asked: the master goes on} {
    set id [field a master_replid]
    foreach answer {"-ERR no" "+CONTINUE" "+CONTINUE ID" "-NOPERM this user may not"} {
        set answer [string map [list ID [field a master_replid]] $answer]
        set port [false_master [list +PONG\r\n +OK\r\n +OK\r\n $answer\r\n]]
        false_failover $port
        wait_events "it to be given up ($answer)" {[failover_state a] eq "no-failover"}
        assert_equal master [field a role]
        assert_equal OK [ask a set here 3]
        end_false
    }
    assert {[log_has a "Failover target rejected psync request"]}
    foreach n {n1 n2} {wait_pool_node $n a}
}

test {one that falls silent once it was asked: nobody leads until somebody says so} {
    set port [false_master [list +PONG\r\n +OK\r\n +OK\r\n ""]]
    false_failover $port
    wait_events "it to be asked again" {$::false_calls >= 2}
    assert_equal "failover-in-progress slave" "[failover_state a] [field a role]"
    assert_error READONLY* {ask a set here 4}
    assert_error "NOMASTERLINK *failing over*" {ask a psync ? -1}
    assert_equal OK [ask a failover abort]
    assert_equal "no-failover master" "[failover_state a] [field a role]"
    assert_equal OK [ask a set here 5]
    end_false
}

test {PSYNC FAILOVER is for replicas of that stream} {
    set c [resp::connect 127.0.0.1 [port b]]
    $c replconf capa tarn1
    set other [string repeat a 40]
    assert_error "ERR PSYNC FAILOVER replid must match my replid." {$c psync $other 1 failover}
    assert_error "ERR PSYNC FAILOVER replid must match my replid." {$c psync ? -1 failover}
    assert_equal slave [field b role]
    resp::close $c
    set c [resp::connect 127.0.0.1 [port a]]
    $c replconf capa tarn1
    set own [field a master_replid]
    assert_error "ERR PSYNC FAILOVER can't be sent to a master." {$c psync $own 1 failover}
    resp::close $c
    # The answer was lost: it is asked once more.
    hand_over a b
    set c [resp::connect 127.0.0.1 [port b]]
    $c replconf capa tarn1
    resp::send $c psync [field b master_replid2] [field b second_repl_offset] failover
    assert_match "CONTINUE [field b master_replid]" [resp::recv $c]
    resp::close $c
    hand_over b a
    follow c a
}

test {a replica that may not go on with the stream does not lead, whatever it is asked} {
    set c [resp::connect 127.0.0.1 [port b]]
    assert_error "ERR this is tarn*REPLCONF capa tarn1*" {$c psync [field a master_replid] 1\
        failover}
    assert_equal slave [field b role]
    resp::close $c
}

test {a master that took its wish back leads; one that slept does not find it in its letterbox} {
    set c [resp::connect 127.0.0.1 [port b]]
    $c replconf capa tarn1
    freeze b
    resp::send $c psync [field a master_replid] 1 failover
    resp::close $c
    thaw b
    set ::id [field a master_replid]
    wait_for "it to be read" {[log_has b "Failover request received for replid $::id."]}
    assert_equal slave [field b role]
    wait_link b
}

test {a replica that announces the address of its master: the master goes on} {
    up j
    up k --replica-announce-port [port j]
    follow k j
    online j 1
    assert_equal OK [ask j failover]
    wait_for "it to be given up" {[log_has j "FAILOVER to 127.0.0.1:[port j] aborted"]}
    assert_equal "no-failover master" "[failover_state j] [field j role]"
    assert_equal OK [ask j set k v]
    foreach name {j k} {down $name}
}

# --- with passwords, with TLS, with files ---

test {users with no more rights than replicas need} {
    foreach name {d e} {
        up $name
        ask $name acl setuser replica on >secret resetchannels -@all +psync +replconf +ping \
            +failover
        ask $name config set masteruser replica masterauth secret
        ask $name acl setuser default >admin
        ask $name auth admin
    }
    follow e d
    online d 1
    ask d set k v
    hand_over d e
    assert_equal OK [ask e set k w]
    same_books d e
    # Who may not: the old master stays.
    foreach {right said} {psync "run the 'psync'" failover "ACL SETUSER <masteruser> +failover"} {
        ask d acl setuser replica -$right
        assert_equal OK [ask e failover]
        set ::said $said
        wait_for "it to be given up" {[failover_state e] eq "no-failover" && [log_has e $::said]}
        assert {[log_has e "Failover target rejected psync request"]}
        assert_equal "master slave" "[field e role] [field d role]"
        assert_equal OK [ask e set k x]
        ask d acl setuser replica +$right
        wait_link d
        online e 1
    }
    hand_over e d
    same_books d e
    foreach name {d e} {down $name}
}

test {through TLS} {
    if {![have_openssl]} {skip "there is no openssl"}
    make_ca ca
    make_cert server ca
    foreach name {f g} {
        up $name
        ask $name config set port [port $name] tls-cert-file [pem server.crt] \
            tls-key-file [pem server.key] tls-ca-cert-file [pem ca.crt] tls-port auto \
            tls-replication yes
    }
    assert_equal OK [ask g replicaof 127.0.0.1 [field f tls_port]]
    wait_link g
    online f 1
    ask f set k v
    assert_equal OK [ask f failover to 127.0.0.1 [field g tls_port]]
    wait_handover f g
    assert_equal [field g tls_port] [field f master_port]
    ask g set k w
    same_books f g
    foreach name {f g} {down $name}
}

test {the file of a master that handed over is whole} {
    foreach name {h i} {up $name --appendonly yes --appendfsync always}
    follow i h
    online h 1
    for {set i 0} {$i < 500} {incr i} {ask h set key$i v$i}
    hand_over h i
    ask i set key7 other
    ask i del key8
    set digest [same_books h i]
    again h
    assert_equal $digest [ask h debug digest]
    foreach name {h i} {down $name}
}

# --- rolling-upgrade.sh ---

proc answers_at {port} {
    return [expr {![catch {exec redis-cli -p $port ping} pong] && $pong eq "PONG"}]
}
proc launch_from_file {name} {
    set dir $::conf_dir/$name
    set pid [start_process [list $::server_binary $dir/tarn.conf] $dir/stdout]
    set ::launched $name
    wait_for "$name to start" {[answers_at [set ::port_of_$::launched]]}
    set port [set ::port_of_$name]
    set ::S($name) [dict create pid $pid port $port dir $dir log $dir/log options {}]
    lappend ::servers $::S($name)
}
proc up_from_file {name} {
    up $name
    set ::port_of_$name [port $name]
    down $name TERM
    file mkdir $::conf_dir/$name
    set f [open $::conf_dir/$name/tarn.conf w]
    puts $f "port [set ::port_of_$name]\nbind 127.0.0.1\npool-size 0\ndir $::conf_dir/$name"
    puts $f "logfile log\nenable-debug-command yes"
    close $f
    launch_from_file $name
}
# Restarts the servers that the script asks for, until it ends; its exit status.
proc run_upgrade {args} {
    set script [file join $::root utils rolling-upgrade.sh]
    set pid [start_process [list bash $script --servers --pause 0 --timeout 60 \
        --restart "touch $::conf_dir/restart-{name}" {*}$args] $::conf_dir/said]
    set ::upgrading $pid
    while {[process_state $pid] ne "gone"} {
        foreach name {u v w} {
            set wish $::conf_dir/restart-127.0.0.1:[set ::port_of_$name]
            if {![file exists $wish]} continue
            file delete $wish
            down $name TERM
            launch_from_file $name
        }
        after 20
    }
    return [reap_process $pid]
}

# A redis-cli whose connection is cut off the first time that it says one of these, as Sentinel has
# servers do it. What it was is in the file "cut".
proc cut_off_once {commands} {
    set dir [temp_dir]
    set f [open $dir/redis-cli w 0755]
    puts $f "#!/bin/bash"
    foreach command $commands {
        set file "$dir/[string map {{ } -} $command]"
        puts $f "if \[\[ \" \$* \" == *\" $command \"* ]] && mkdir '$file' 2>/dev/null; then"
        puts $f "    echo '$command' >>'$dir/cut'; echo 'Error: Connection reset by peer'; exit 1"
        puts $f "fi"
    }
    puts $f "exec [auto_execok redis-cli] \"\$@\""
    close $f
    set ::env(PATH) $dir:$::env(PATH)
    return $dir
}

test {rolling-upgrade --servers: every server was restarted, and nothing is lost} {
    if {[auto_execok redis-cli] eq ""} {skip "redis-cli is not there"}
    set ::conf_dir [temp_dir]
    foreach name {u v w} {up_from_file $name}
    assert_equal 3 [run_upgrade -p [port u]]
    assert_match "*has no replicas*" [file_text $::conf_dir/said]
    follow v u
    follow w u
    online u 2
    assert_equal 3 [run_upgrade -p [port v]]
    assert_equal 0 [run_upgrade -p [port u] --dry-run]
    ask u set kept through
    foreach name {u v w} {dict set ids $name [field $name run_id]}
    set path $::env(PATH)
    set cut [cut_off_once {{INFO replication} {CONFIG REWRITE} REPLICAOF}]
    set status [run_upgrade -p [port u]]
    set ::env(PATH) $path
    assert_equal 0 $status [file_text $::conf_dir/said]
    assert_equal "INFO replication\nCONFIG REWRITE\nREPLICAOF" [string trim [file_text $cut/cut]]
    foreach name {u v w} {assert {[field $name run_id] ne [dict get $ids $name]}}
    set new [expr {[field_is v role master] ? "v" : "w"}]
    assert_equal through [ask $new get kept]
    online $new 2
    same_books u v w
}

test {rolling-upgrade --servers --sentinel: Sentinel names the new master in the end} {
    if {[auto_execok redis-sentinel] eq ""} {skip "redis-sentinel is not there"}
    foreach name {u v w} {if {[field_is $name role master]} {set old $name}}
    set socket [socket -server none -myaddr 127.0.0.1 0]
    set at [lindex [fconfigure $socket -sockname] 2]
    close $socket
    set sentinel [start_sentinel [port $old] "bind 127.0.0.1\nport $at"]
    wait_for "Sentinel to know both replicas" {[regexp -all {\+slave } [sentinel_log]] == 2}
    foreach name {u v w} {dict set ids $name [field $name run_id]}
    set status [run_upgrade -p [port $old] --sentinel 127.0.0.1:$at/pool]
    assert_equal 0 $status [file_text $::conf_dir/said]
    foreach name {u v w} {
        hang_up $name
        assert {[field $name run_id] ne [dict get $ids $name]}
        assert_equal {replica-priority 100} [ask $name config get replica-priority]
    }
    foreach name {u v w} {if {[field_is $name role master]} {set new $name}}
    assert {$new ne $old}
    assert_equal [port $new] [lindex [sentinel_ask get-master-addr-by-name pool] 1]
    online $new 2
    assert_equal through [ask $new get kept]
    same_books u v w
    send_signal TERM $sentinel
    reap_process $sentinel
    foreach name {u v w} {down $name TERM}
}

# --- Sentinel ---

proc named {} {return [lindex [sentinel_ask get-master-addr-by-name pool] 1]}
proc priority_of {name} {
    foreach replica [split [sentinel_ask replicas pool] \n] {lappend words $replica}
    set i [lsearch -exact $words [port $name]]
    return [lindex $words [lsearch -start $i -exact $words slave-priority]+1]
}
# Left alone, a Sentinel takes half a minute to see that its master is a replica, and then promotes
# whom it likes.
test {an unmodified Sentinel is told: SENTINEL FAILOVER, when only the new master may be chosen} {
    if {[auto_execok redis-sentinel] eq ""} {skip "redis-sentinel is not there"}
    foreach name {b c} {follow $name a}
    ask c config set replica-priority 0
    set sentinel [start_sentinel [port a]]
    wait_for "Sentinel to know both replicas" {[regexp -all {\+slave } [sentinel_log]] == 2}
    wait_for "Sentinel to know their priorities" {[priority_of c] eq "0" &&
            [priority_of b] eq "100"}
    ask a set before handover
    hand_over a b
    set epoch [field b master_epoch]
    assert_equal OK [sentinel_ask failover pool]
    wait_for "Sentinel to name the new master" {[named] eq [port b]}
    wait_for "the other replica to follow it" {[field_is c master_port [port b]] &&
            [field_is c master_link_status up]}
    # It was told to lead once more, and did already. Sentinel has servers whose role it changes
    # close all connections.
    foreach name {a b c} {hang_up $name}
    assert_equal "master $epoch" "[field b role] [field b master_epoch]"
    assert_equal handover [ask b get before]
    assert_equal OK [ask b set after handover]
    wait_link a
    same_books a b c
    send_signal TERM $sentinel
    reap_process $sentinel
}

finish
