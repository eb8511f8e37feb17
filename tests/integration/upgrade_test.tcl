# tarn 0.1 and this version in one pool, and from one to the other and back. TARN_OLD is the build
# directory of a 0.1, with tarn-server, tarn-node, libtarn.so and tests/tools/kv;
# tests/packages/upgrade.sh makes one.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] tls.tcl]

if {![info exists env(TARN_OLD)]} {
    puts "skip upgrades: TARN_OLD names no build of tarn 0.1 (make test-packages makes one)"
    incr tally::skipped
    finish
}

set binaries(new) [list $server_binary $node_binary $kv_binary]
set binaries(old) [lmap name {tarn-server tarn-node tests/tools/kv} {
    file join [file normalize $env(TARN_OLD)] $name
}]
set versions {old 0.1.0}
dict set versions new [lindex [regexp -inline {v=(\S+)} [exec $server_binary --version]] 1]
set ha_load [file join [file dirname $kv_binary] ha_load]

# Of which version what is started from now on is.
proc as {version} {lassign $::binaries($version) ::server_binary ::node_binary ::kv_binary}
proc url_of {user} {
    proc server_url {} [format {return tarn://%s$::server_host:[server port]} $user]
}

# --- who understands whom ---

foreach {server node client} {
    old old new  old new old  old new new  new old old  new old new  new new old
} {
    test "server $server, node $node, client $client: every way of the bytes" {
        as $server
        set receipts [expr {$server eq "new" ? {--put-receipts no} : {}}]
        start_server --pool-size 16mb --node-heartbeat 100 {*}$receipts
        as $node
        start_node n1 --segment 32mb
        start_node n2 --host-name m2 --segment 32mb
        assert_equal [dict get $versions $node] [node_field n1 version]
        assert_match "*lib-name=tarn-node lib-ver=[dict get $versions $node] *" [r client list]
        as $client
        kv_all 30 --replicas 2 load a: 30 100-100000
        kv_all 30 --batch 10 load b: 30 1-100000
        kv_all 30 --prefer n1.0 --transport tcp load c: 30 100-100000
        foreach transport {shm tcp} {
            foreach p {a b c} {
                kv_all 30 --transport $transport verify $p: 30 \
                    [expr {$p eq "b" ? 1 : 100}]-100000
            }
        }
        kv_all 30 --replace --batch 7 load a: 30 100-100000
        r set inband [string repeat x 200000]
        assert_equal 200000 [string length [r get inband]]
        # a user who may not map memory
        r acl setuser app on >secret ~* &* +@all -@dangerous -@direct
        url_of app:secret@
        kv_all 30 --replicas 2 load d: 30 100-20000
        kv_all 30 --batch 10 verify d: 30 100-20000
        url_of ""
        stop_server
    }
}

# What INFO of a server shows beyond data_peers_, and NODE INFO of a node beyond data-peers-.
proc peers_of_server {} {
    return [lsort [lmap {- v} [regexp -all -inline {data_peers_(\S+):} [r info data]] {set v}]]
}
proc peers_of_node {node} {
    set stats [dict keys [node_field $node stats] data-peers-*]
    return [lsort [lmap name $stats {string range $name 11 end}]]
}

test {servers and nodes tell who is on 0.1} {
    as new
    start_server --pool-size 64mb --node-heartbeat 100 --put-receipts no
    start_node n1 --segment 64mb
    set now [dict get $versions new]
    foreach transport {tcp shm} {
        foreach {prefer look others} [list local peers_of_server $now \
                n1.0 {peers_of_node n1} [string map {. -} $now]] {
            as old
            set words [list --transport $transport --prefer $prefer --fill --replace]
            set old [kv_start {*}$words run old: 10 1000-60000]
            as new
            set new [kv_start {*}$words run new: 10 1000-60000]
            set old_name [lindex {0.1 0-1} [expr {$prefer ne "local"}]]
            wait_for "both" {[eval $look] eq [list $old_name $others]}
            assert_match "*lib-name=libtarn lib-ver=[dict get $versions old] *" [r client list]
            assert_equal 0 [dict get [kv_stop $old] wrong]
            wait_for "the old one to be gone" {[eval $look] eq $others}
            assert_equal 0 [dict get [kv_stop $new] wrong]
        }
    }
    stop_server
}

if {[have_openssl]} {
    make_ca ca
    foreach name {server user} {make_cert $name ca}
}
foreach {server node client} {old new new  old old new  new old old  new new old} {
    test "over TLS: server $server, node $node, client $client" {
        if {![have_openssl]} {skip "there is no openssl"}
        as $server
        start_server --pool-size 16mb
        open_tls_port
        proc server_url {} {
            set user tls_cert_file=[pem user.crt]&tls_key_file=[pem user.key]
            return tarns://127.0.0.1:[tls_port]?tls_ca_file=[pem ca.crt]&$user
        }
        as $node
        start_node n1 --tls-data --host-name m1 --segment 32mb
        assert_match "tcps://*" [lindex [segment_field n1.0 endpoints] 0]
        as $client
        kv_all 20 --host elsewhere --prefer n1.0 load a: 20 100-100000
        kv_all 20 --host elsewhere verify a: 20 100-100000
        kv_all 20 --transport tcp --prefer local load b: 20 100-100000
        kv_all 20 --transport tcp verify b: 20 100-100000
        url_of ""
        stop_server
    }
}

foreach server {old new} {
    test "server $server, nodes of both versions: copies, disks, drains" {
        as $server
        start_server --pool-size 0 --node-heartbeat 100 --max-lease 1s
        set dir [temp_dir]
        foreach {name version} {n1 old n2 new} {
            close [open $dir/$name w]
            as $version
            start_node $name --host-name $name --segment 16mb --ssd $dir/$name:64mb,
        }
        as new
        foreach {from to} {n1 n2 n2 n1} {
            kv --prefer $from.0 load $from: 20 1000-50000
            for {set i 0} {$i < 20} {incr i} {r replica copy $from:$i to $to.0}
            wait_for "copies" {[info_field tasks] == 0}
            for {set i 0} {$i < 10} {incr i} {r replica drop $from:$i from $from.0}
            kv_all 20 verify $from: 20 1000-50000
        }
        if {$server eq "new"} {
            # from both disks, and a user's rights end at both hosts
            wait_for "the disks" {[segment_field n1.ssd replicas] >= 20 && \
                [segment_field n2.ssd replicas] >= 20}
            foreach {from to} {n1 n2 n2 n1} {
                set keys {}
                for {set i 0} {$i < 10} {incr i} {
                    lappend keys $from:$i
                    r replica drop $from:$i from $to.0
                }
                assert_equal {10 0 0 0} [r prefetch 10 {*}$keys]
                wait_for "copies" {[info_field tasks] == 0}
                kv_all 20 verify $from: 20 1000-50000
            }
            r acl setuser app on >secret ~* &* +@all -@dangerous
            set c [client]
            $c auth app secret
            $c getreplicas n1:3 LEASE 1000
            r acl deluser app
            wait_for "its grants to end" {[node_field n1 fences-pending] == 0 && \
                [node_field n2 fences-pending] == 0}
        }
        foreach {gone version} {n2 new n1 old} {
            r node drain $gone
            wait_for "$gone to leave" {[node_state $::gone] eq ""}
            assert_equal 0 [reap_node $gone]
            foreach p {n1 n2} {kv_all 20 verify $p: 20 1000-50000}
            as $version
            restart_node $gone
            as new
        }
        stop_server
    }
}

foreach {master replica} {old new new old} {
    test "master $master, replica $replica: the books are the same, and the replica leads" {
        as $master
        up a
        as $replica
        up b
        focus a
        as $master
        start_node n1 --segment 64mb
        kv_all 100 load first 100 1000-100000
        for {set i 0} {$i < 500} {incr i} {ask a set small$i value$i}
        set run [kv_start --fill --replace run moving 50 1000-60000]
        follow b a
        for {set i 0} {$i < 200} {incr i} {ask a set late$i v PX 1000000}
        assert_equal {0 0} [kv_fields [kv_stop $run] wrong errors]
        ask a mset m1 1 m2 22
        ask a del m2
        ask a persist late1
        ask a pin small2 SOFT 50000
        ask a quota set late 1000000
        kv_all 10 --replace load first 10 2000
        kv_all 5 --group g load grouped 5 2000
        assert_equal 1 [ask a wait 1 0]
        same_books a b
        # 0.1 does not know whose hard pins are, nor boundaries: it keeps such objects all the same
        ask a pin small1 HARD
        if {$master eq "new"} {
            ask a putend part [lindex [ask a putstart part 100 BOUNDARY b] 0] -1
        }
        assert_equal 1 [ask a wait 1 0]
        assert_equal [ask a dbsize] [ask b dbsize]
        ask b replicaof no one
        assert_equal value7 [ask b get small7]
        assert_equal OK [ask b set more 1]
        foreach name {a b} {focus $name; stop_server; hang_up $name}
    }
}

# --- Python ---

set python /usr/bin/python3
foreach version {old new} {
    set packages($version) [file dirname [lindex $binaries($version) 0]]/../../utils/python
}
proc run_package {package library} {
    exec env PYTHONPATH=$::packages($package) TARN_MODULE_PATH= \
        TARN_LIB=[file join [file dirname [lindex $::binaries($library) 0]] libtarn.so] \
        $::python [file join $::root tests integration upgrade_client.py] [server_url] 2>@1
}

foreach server {old new} {
    test "server $server: Python packages and libtarns of both versions" {
        if {![file isdirectory $packages(old)/tarn]} {skip "$packages(old) is not there"}
        as $server
        start_server --pool-size 16mb
        foreach {package library} {old old  old new  new new} {
            assert_equal [lmap v [list $library $package] {dict get $versions $v}] \
                [run_package $package $library]
            r flushall
        }
        assert {[catch {run_package new old} why]}
        assert_match "*libtarn.so is too old*" $why
        stop_server
    }
}

# --- files ---

proc check {args} {exec $::env(TARN_CHECK) {*}$args 2>@1}

foreach {first then} {old new new old} {
    test "from $first to $then: append-only file and pool, snapshot" {
        as $first
        set dir [temp_dir]
        start_server --pool-size 16mb --pool-path $dir/pool
        kv_all 50 load a: 50 100-100000
        kv_all 50 --ttl 1000000 load small: 50 1-60
        kv_all 30 --replace load a: 30 100-100000
        r pin a:3 HARD
        r quota set a: 10mb
        r save
        as $then
        set s [server]
        foreach c $::clients {catch {resp::close $c}}
        set ::clients {}
        send_signal KILL [dict get $s pid]
        reap_process [dict get $s pid]
        if {$then eq "old"} {
            set said [catch {boot_server $s} why]
            assert_match "*a record is of an unknown kind. tarn-check*says more*" $why
            check --for 0.1 [dict get $s dir]/appendonly.tarn
            check --for 0.1 [dict get $s dir]/dump.tarn
        }
        foreach file {appendonly.tarn dump.tarn} {
            set ::servers [lreplace $::servers end end [boot_server $s]]
            assert_equal 100 [r dbsize] $file
            kv_all 50 verify a: 50 100-100000
            kv_all 50 verify small: 50 1-60
            if {$file ne "dump.tarn"} {
                kv_all 30 --replace load a: 30 100-100000
                r save
                send_signal KILL [server pid]
                reap_process [server pid]
                file delete [dict get $s dir]/appendonly.tarn
                foreach c $::clients {catch {resp::close $c}}
                set ::clients {}
            }
        }
        stop_server
    }

    test "from $first to $then: a node's pool file, disk and files" {
        as new
        start_server --pool-size 0
        as $first
        set dir [temp_dir]
        file mkdir $dir/files
        close [open $dir/ssd w]
        start_node n1 --segment 16mb,path=$dir/pool --ssd $dir/ssd:32mb, --file $dir/files:32mb,
        kv_all 40 load a: 40 100-100000
        wait_for "copies" {[segment_field n1.ssd replicas] == 40 && \
            [segment_field n1.file replicas] == 40}
        stop_node n1
        as $then
        restart_node n1
        assert_equal 40 [segment_field n1.0 replicas]
        kv_all 40 verify a: 40 100-100000
        kv_all 40 load b: 40 100-100000
        wait_for "copies" {[segment_field n1.ssd replicas] == 80 && \
            [segment_field n1.file replicas] == 80}
        stop_node n1
        file delete $dir/pool
        restart_node n1
        wait_for "both to be offered" {[segment_field n1.ssd replicas] == 80 && \
            [segment_field n1.file replicas] == 80}
        kv_all 40 verify a: 40 100-100000
        kv_all 40 verify b: 40 100-100000
        stop_node n1
        stop_server
    }
}

# --- a pool under load, up and down ---

foreach tool {redis-cli redis-sentinel setpriv} {
    if {[auto_execok $tool] eq ""} {
        puts "skip a rolling upgrade: there is no $tool"
        incr tally::skipped
        finish
    }
}

set dir [temp_dir]
proc launch_server {name} {
    set at $::dir/$name
    set pid [start_process [list $::server_binary $at/tarn.conf] $at/stdout]
    set ::launched [list $pid $::port_of($name)]
    wait_for "$name to start" {[process_state [lindex $::launched 0]] eq "gone" || \
        [catch {exec redis-cli -p [lindex $::launched 1] ping} pong] == 0 && $pong eq "PONG"}
    if {[process_state $pid] eq "gone"} {error "[file_text $at/stdout][file_text $at/log]"}
    set ::S($name) [dict create pid $pid port $::port_of($name) dir $at log $at/log options {}]
    lappend ::servers $::S($name)
}
proc launch_a_node {name} {
    set at $::dir/$name
    file mkdir $at
    if {![file exists $at/ssd]} {close [open $at/ssd w]}
    dict set ::pool_nodes $name [start_process [list $::node_binary --master $::sentinel_url \
        --name $name --host-name $name --bind 127.0.0.1 --data-port 0 --log-file $at/log \
        --shm-socket $at/shm --segment 64mb,path=$at/pool --ssd $at/ssd:256mb --no-populate] \
        $at/stdout]
}
# What it wishes is started as the version `as` has chosen, until the script ends.
proc run_upgrade {args} {
    set script [file join $::root utils rolling-upgrade.sh]
    set log $::dir/said
    file delete $log
    set pid [start_process [list bash $script --pause 0 --timeout 100 \
        --restart "touch $::dir/restart-{name}" {*}$args] $log]
    while {[process_state $pid] ne "gone"} {
        foreach wish [glob -nocomplain $::dir/restart-*] {
            set name [string range [file tail $wish] 8 end]
            file delete $wish
            if {[dict exists $::pool_nodes $name]} {
                send_signal TERM [dict get $::pool_nodes $name]
                reap_process [dict get $::pool_nodes $name]
                launch_a_node $name
                continue
            }
            foreach server {u v} {
                if {[string match *:$::port_of($server) $name]} {set name $server}
            }
            down $name TERM
            if {$::going eq "down"} {check --for 0.1 $::dir/$name/appendonly.tarn}
            launch_server $name
        }
        after 20
    }
    assert_equal 0 [reap_process $pid] [file_text $log]
}
proc leader {} {
    foreach name {u v} {if {[field_is $name role master]} {return $name}}
    error "nobody leads"
}
proc tell {what} {
    puts $::pipe $what
    while {[gets $::pipe line] >= 0} {
        if {![string match #* $line]} {return [split [string map {= " "} $line]]}
    }
    error "the load has ended"
}
proc versions_in {text what} {
    return [lsort -unique [lmap {- v} [regexp -all -inline "$what=(\[^, \\r\\n\]+)" $text] {set v}]]
}
proc wait_nodes {} {
    wait_for "both nodes" {[llength [lsearch -all [concat {*}[ask [leader] node list]] up]] == 2}
}
proc replicas_online {n} {
    set ::replicas_wanted $n
    wait_for "$n replicas" {[regexp -all {state=online} [ask [leader] info replication]] == \
        $::replicas_wanted}
}

test {guarantee 5: servers and nodes go from 0.1 to this version and back under load} {
    as old
    foreach name {u v} {
        up $name
        set port_of($name) [port $name]
        down $name TERM
        file mkdir $dir/$name
        set f [open $dir/$name/tarn.conf w]
        puts $f "port $port_of($name)\nbind 127.0.0.1\npool-size 0\ndir $dir/$name\nlogfile log"
        puts $f "enable-debug-command yes\nappendonly yes\nnode-heartbeat 100\nnode-timeout 2s"
        close $f
        launch_server $name
    }
    follow v u
    set socket [socket -server none -myaddr 127.0.0.1 0]
    set sentinel_port [lindex [fconfigure $socket -sockname] 2]
    close $socket
    set sentinel [start_sentinel [port u] "bind 127.0.0.1\nport $sentinel_port"]
    wait_for "Sentinel to know the replica" {[regexp {\+slave } [sentinel_log]]}
    set sentinel_url tarn+sentinel://127.0.0.1:$sentinel_port/pool
    set pool_nodes {}
    foreach node {n1 n2} {launch_a_node $node}
    wait_nodes
    set pipe [open "|setpriv --pdeathsig KILL $ha_load --replicas 2 --keys 150 --size 100-60000 \
        --timeout 60000 --wait 1 $sentinel_url l:\
        [lmap n {u v} {string cat 127.0.0.1:[port $n]}] 2>@stderr" r+]
    fconfigure $pipe -buffering line
    proc server_url {} {return $::sentinel_url}
    set bystander [kv_start --fill --replace --pause 2 --timeout 60000 run by: 50 1000-60000]
    tell go
    foreach {going version} {up new down old} {
        as $version
        set number [dict get $versions $version]
        set sentinel_words [list --sentinel 127.0.0.1:$sentinel_port/pool]
        run_upgrade --servers -p [port [leader]] {*}$sentinel_words
        replicas_online 1
        # where the new version looks
        if {$version eq "new"} {
            assert_equal $number [versions_in [ask [leader] info replication] version]
        }
        foreach name {u v} {assert_equal $number [field $name tarn_version]}
        wait_nodes
        run_upgrade -p [port [leader]] --version $number
        foreach node {n1 n2} {
            assert_equal $number [dict get [ask [leader] node info $node] version]
        }
        set before [dict get [tell stats] puts]
        wait_for "work to be done" {[dict get [tell stats] puts] > $::before + 100}
    }
    tell stop
    set answer [tell check]
    foreach what {lost stale ghosts wrong} {assert_equal 0 [dict get $answer $what] $answer}
    assert {[dict get $answer visible] > 20} $answer
    close $pipe
    assert_equal 0 [dict get [kv_stop $bystander] wrong]
    same_books u v
    foreach pid [concat [dict values $pool_nodes] $sentinel] {
        send_signal TERM $pid
        reap_process $pid
    }
    foreach name {u v} {down $name TERM}
}

finish
