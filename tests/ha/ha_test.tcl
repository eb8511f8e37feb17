# High availability: 3 Sentinels, a master with 2 replicas, 2 nodes, and clients that write, WAIT,
# read and check every byte, while masters are killed, paused, cut off and replaced in turn. Each
# round ends with a pool that is whole again: nothing that was acknowledged is lost, nothing is
# there that was not put, and the books of all three servers are the same.
#
#     HA_ROUNDS=20 HA_SEED=1     how many, and what chance brings
#
# In network namespaces (see netns.tcl): h0 h1 h2 are the servers, h3 the Sentinels, h4 and h5 the
# nodes; the clients are on the switch.
source [file join [file dirname [info script]] .. integration netns.tcl]

set rounds [expr {[info exists env(HA_ROUNDS)] ? $env(HA_ROUNDS) : 20}]
set seed [expr {[info exists env(HA_SEED)] ? $env(HA_SEED) : 1}]
expr {srand($seed)}
proc chance {below} {expr {int(rand() * $below)}}
set ha_load [file join [file dirname $kv_binary] ha_load]

if {[auto_execok redis-sentinel] eq ""} {
    puts "skip ha: redis-sentinel is not there\n0 passed, 0 failed, 1 skipped"
    exit 0
}
make_network {h0 h1 h2 h3 h4 h5}

# --- the servers ---

set servers_of_pool {h0 h1 h2}
proc start_master_or_replica {host} {
    set options {--bind 0.0.0.0 --protected-mode no --port 6479 --pool-size 0\
        --enable-debug-command yes --node-heartbeat 200
        --node-timeout 3s --max-lease 2s --put-timeout 3000 --min-replicas-to-write 1 \
            --min-replicas-max-lag 3
        --repl-ping-replica-period 1 --repl-timeout 5 --appendonly yes}
    if {![info exists ::S($host)]} {
        set dir [temp_dir]
        # Sentinel has the roles written to a file of the server's own.
        close [open $dir/tarn.conf w]
        set ::S($host) [dict create dir $dir log $dir/log options $options pid 0]
    }
    set dir [dict get $::S($host) dir]
    set command [server_command $dir $options]
    on $host {dict set ::S($host) pid [start_process [linsert $command 1 $dir/tarn.conf]\
        $dir/stdout]}
    set ::started $host
    wait_for "the server on $host" {[process_state [dict get $::S($::started) pid]] eq "gone" || \
        ![catch {ask $::started ping}]}
    if {[process_state [dict get $::S($host) pid]] eq "gone"} {
        show_log $::S($host)
        error "the server on $host did not start"
    }
}
proc kill_server {host} {
    send_signal KILL [dict get $::S($host) pid]
    reap_process [dict get $::S($host) pid]
    hang_up $host
}

# A question to a server, on a connection that is made anew when it was lost; from inside of its
# host with ask_inside.
proc ask {host args} {
    if {![info exists ::conn($host)]} {set ::conn($host) [resp::connect [address $host] 6479]}
    if {[catch {$::conn($host) {*}$args} reply options]} {
        if {![string match {[A-Z]*} $reply]} {hang_up $host}
        return -options $options $reply
    }
    return $reply
}
proc hang_up {host} {
    catch {resp::close $::conn($host)}
    unset -nocomplain ::conn($host)
}
proc ask_inside {host args} {inside $host redis-cli -h [address $host] -p 6479 {*}$args}
proc field {host what} {
    if {![regexp -line "^$what:(.*?)\r?\$" [ask $host info everything] - value]} {
        error "INFO of $host has no $what"
    }
    return $value
}

# --- the Sentinels ---

set sentinel_ports {26379 26380 26381}
proc start_sentinels {} {
    foreach port $::sentinel_ports {
        set dir [temp_dir]
        set f [open $dir/sentinel.conf w]
        puts $f "port $port\nbind [address h3]\nprotected-mode no\ndir $dir\nlogfile $dir/log"
        puts $f "sentinel monitor pool [address h0] 6479 2\nsentinel down-after-milliseconds pool\
            2000"
        puts $f "sentinel failover-timeout pool 6000\nsentinel parallel-syncs pool 1"
        close $f
        on h3 {start_process [list redis-sentinel $dir/sentinel.conf] $dir/stdout}
        lappend ::sentinel_logs $dir/log
    }
    set ::sentinel_url \
        "tarn+sentinel://[join [lmap p $::sentinel_ports {string cat [address h3]:$p}] ,]/pool"
    wait_for "the Sentinels" {![catch {foreach p $::sentinel_ports {sentinel $p masters}}]}
}
proc sentinel {port args} {
    if {![info exists ::conn($port)]} {set ::conn($port) [resp::connect [address h3] $port]}
    return [$::conn($port) sentinel {*}$args]
}

# The host that all Sentinels call the master; "" while they do not agree.
proc master {} {
    foreach port $::sentinel_ports {
        lappend found [lindex [sentinel $port get-master-addr-by-name pool] 0]
    }
    foreach host $::servers_of_pool {
        if {$found eq [lrepeat [llength $found] [address $host]]} {return $host}
    }
    return ""
}
proc sentinels_are_content {} {
    foreach port $::sentinel_ports {
        array set m [sentinel $port master pool]
        if {$m(flags) ne "master" || $m(num-slaves) != 2 || $m(num-other-sentinels) != 2} {return 0}
        foreach replica [sentinel $port replicas pool] {
            array set s $replica
            if {$s(flags) ne "slave" || $s(master-link-status) ne "ok"} {return 0}
        }
    }
    return 1
}

# --- the nodes and the clients ---

proc start_pool_node {name host} {
    set dir [temp_dir]
    on $host {
        dict set ::pool_nodes $name [start_process [list $::node_binary --master $::sentinel_url \
            --name $name --host-name $host \
            --bind 0.0.0.0 --data-port 0 --log-file $dir/log --shm-socket $dir/shm --segment 256mb \
            --no-populate] $dir/stdout]
    }
    lappend ::node_logs $dir
}
proc nodes_up {host} {expr {[llength [lsearch -all [concat {*}[ask $host node list]] up]]}}

set loads {}
proc start_load {prefix args} {
    set command [concat [list $::ha_load --seed $::seed --keys 200 --size 1000-100000 --replicas 2 \
        --timeout 15000] $args]
    lappend command $::sentinel_url $prefix {*}[lmap h $::servers_of_pool \
        {string cat [address $h]:6479}]
    set pipe [open "|setpriv --pdeathsig KILL $command 2>@stderr" r+]
    fconfigure $pipe -buffering line
    dict set ::loads $prefix $pipe
}
# To all of them; a dict of their answers.
proc tell {what} {
    foreach pipe [dict values $::loads] {puts $pipe $what}
    set answers {}
    dict for {prefix pipe} $::loads {
        set line #
        while {[string match #* $line]} {
            if {[gets $pipe line] < 0} {error "client $prefix ended"}
            if {[string match #* $line]} {puts $line}
        }
        dict set answers $prefix [dict map {name value} [split [string map {= " "} $line]] \
            {set value}]
    }
    return $answers
}
proc sum {answers name} {::tcl::mathop::+ {*}[lmap a [dict values $answers] {dict get $a $name}]}

# --- whole ---

proc whole {} {
    set host [master]
    if {$host eq "" || [field $host role] ne "master" || [nodes_up $host] != 2} {return 0}
    foreach other $::servers_of_pool {
        if {$other ne $host && ([field $other role] ne "slave" || \
            [field $other master_host] ne [address $host] ||
            [field $other master_link_status] ne "up")} {return 0}
    }
    return [expr {[field $host connected_slaves] == 2 && [sentinels_are_content]}]
}
proc is {condition} {expr {![catch $condition yes] && $yes}}

proc same_books {} {
    set ::same [master]
    # Pings keep the offset moving; those of one moment are compared.
    wait_for "the books to be the same" {[is {
        set offsets [lmap h $::servers_of_pool {field $h master_repl_offset}]
        set digests [lmap h $::servers_of_pool {ask $h debug digest}]
        expr {[llength [lsort -unique $offsets]] == 1 && [llength [lsort -unique $digests]] == 1}
    }]}
}

# All keys are of those that were put.
proc no_strangers {visible} {
    set keys [ask [master] keys *]
    set markers [lsearch -all -inline -glob $keys ha:*]
    assert_equal [llength $keys] [expr {$visible + [llength $markers]}]
}

proc nothing_is_lost {} {
    wait_for "the pool to be whole" {[is whole]}
    tell stop
    set answers [tell check]
    foreach what {lost stale ghosts wrong} {assert_equal 0 [sum $answers $what] $answers}
    no_strangers [sum $answers visible]
    same_books
    return $answers
}

# --- rounds ---

# What happens to the master: begin returns nothing, end makes it well again after another is the
# master.
proc begin_kill {host} {kill_server $host}
proc end_kill {host} {start_master_or_replica $host}
proc begin_pause {host} {send_signal STOP [dict get $::S($host) pid]; hang_up $host}
proc end_pause {host} {send_signal CONT [dict get $::S($host) pid]}
proc begin_cut {host} {cut $host; hang_up $host}
proc end_cut {host} {mend $host}
# Clients and nodes still reach it; Sentinels and replicas do not.
proc begin_isolate {host} {foreach h {h0 h1 h2 h3} {if {$h ne $host} {cut_path $host $h}}}
proc end_isolate {host} {foreach h {h0 h1 h2 h3} {if {$h ne $host} {mend_path $host $h}}}
proc begin_switch {host} {
    # "NOGOODSLAVE": the replicas have not been asked of late.
    wait_for "the Sentinel to obey" {![catch {sentinel 26379 failover pool}]}
}
proc end_switch {host} {}
# FAILOVER to one of the replicas; then Sentinel is told, which may choose no other.
proc sentinel_priority {host} {
    foreach replica [sentinel 26379 replicas pool] {
        if {[dict get $replica ip] eq [address $host]} {return [dict get $replica slave-priority]}
    }
}
proc begin_handover {host} {
    lassign [lsearch -all -inline -not -exact $::servers_of_pool $host] new other
    ask $other config set replica-priority 0
    set ::hidden $other
    wait_for "Sentinel to know whom it may choose" \
        {[is {expr {[sentinel_priority $::hidden] == 0}}]}
    assert_equal OK [ask $host failover to [address $new] 6479 timeout 20000]
    set ::next $new
    wait_for "the handover" {[is {expr {[field $::next role] eq "master"}}]}
    wait_for "the Sentinel to obey" {![catch {sentinel 26379 failover pool}]}
}
proc end_handover {host} {
    hang_up $::hidden
    ask $::hidden config set replica-priority 100
}

# It is back before anybody looks for another one; its files have all.
proc round_restart {host} {
    kill_server $host
    start_master_or_replica $host
}
proc round_replaced {kind host} {
    begin_$kind $host
    set ::old $host
    wait_for "the Sentinels to agree on another master" {[is {expr {[master] ni [list "" $::old]}}]}
    set agreed [clock milliseconds]
    if {$kind in {cut isolate}} {
        # It does not acknowledge what it cannot pass on.
        set ::old $host
        wait_for "the old master to refuse" \
            {[string match *NOREPLICAS* [ask_inside $::old set ha:refused x]]}
    }
    after [chance 3000]
    end_$kind $host
    return $agreed
}

foreach h $servers_of_pool {start_master_or_replica $h}
foreach h {h1 h2} {ask $h replicaof [address h0] 6479}
start_sentinels
start_pool_node n1 h4
start_pool_node n2 h5

test {a whole pool} {
    wait_for "the pool to be whole" {[is whole]}
    foreach prefix {a: b:} {start_load $prefix}
    tell go
    after 2000
    set answers [nothing_is_lost]
    assert {[sum $answers visible] > 20} $answers
}

set kinds {kill pause cut isolate restart switch handover}
for {set round 1} {$round <= $rounds} {incr round} {
    set kind [lindex $kinds [expr {($round - 1) % [llength $kinds]}]]
    test "round $round, $kind" {
        set host [master]
        # While the master is asked to step down, a replica may have what its successor has not;
        # when it dies, none has. One that is slow to come back may be asked to step down, too.
        tell "wait [expr {$kind in {switch restart} ? 2 : 1}]"
        tell "lenient [expr {$kind eq "isolate"}]"
        tell mark
        tell go
        after [chance 2000]
        set began [clock milliseconds]
        if {$kind eq "restart"} {round_restart $host} else {round_replaced $kind $host}
        wait_for "the pool to be whole" {[is whole]}
        set took [expr {[clock milliseconds] - $began}]
        wait_for "puts" {[set ::stats [tell stats]] ne "" && [sum $::stats acked] > 0}
        nothing_is_lost
        puts "# $host -> [master]; whole after $took ms; no puts for [lmap s [dict values $stats]\
            {dict get $s gap_ms}] ms;\
            hits [sum $stats hits] misses [sum $stats misses] errors [sum $stats errors] acked\
            [sum $stats acked]"
    }
    if {$::tally::failed > 0} {
        foreach h $servers_of_pool {show_log $S($h)}
        foreach dir $node_logs {show_log [dict create dir $dir log $dir/log]}
        foreach log $sentinel_logs {puts "# $log"; puts [exec tail -20 $log]}
        break
    }
}
dict for {prefix pipe} $loads {catch {close $pipe}}
finish
