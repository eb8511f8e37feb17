# The scripts of utils/ on a real pool.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] tls.tcl]

proc has {tool} {expr {[auto_execok $tool] ne ""}}
if {![has redis-cli] || ![has bash]} {
    puts "skip scripts of utils/: they need redis-cli and bash"
    incr ::tally::skipped
    finish
}

# Runs it; the exit status and all it said.
proc script {name args} {
    set command [list bash [file join $::root utils $name.sh]]
    if {$args ne "--help"} {lappend command -p [server port]}
    if {[catch {exec {*}$command {*}$args 2>@1} text options]} {
        set code [dict get $options -errorcode]
        if {[lindex $code 0] ne "CHILDSTATUS"} {error "$name $args: $text"}
        return [list [lindex $code 2] $text]
    }
    return [list 0 $text]
}

# Status and a pattern for what it says.
proc expect {status pattern result} {
    assert_equal $status [lindex $result 0] "([lindex $result 1])"
    assert_match $pattern [lindex $result 1]
}

# A master that says nothing. What asks it gives up after ten seconds, while the other tests run.
set silent_dir [temp_dir]
set silent [socket -server {apply {args {}}} -myaddr 127.0.0.1 0]
set silent_upgrade [start_process [list bash [file join $root utils rolling-upgrade.sh] \
    -p [lindex [fconfigure $silent -sockname] 2] --restart true] $silent_dir/said]

start_server --pool-size 0 --node-heartbeat 100 --max-lease 1s --hard-pin-ratio 1 \
    --hard-pin-user-ratio 1

test {every script explains itself, and refuses what it does not know} {
    foreach {name wrong} {pool-health 3 rolling-upgrade 2 scale-out 2} {
        expect 0 "*Exit status:*" [script $name --help]
        expect $wrong "*--nonsense*" [script $name --nonsense]
        expect $wrong "*-h*value*" [script $name -h]
    }
    expect 3 "*--nodes*" [script pool-health --nodes few]
    expect 2 "*--restart*" [script rolling-upgrade]
    expect 2 "*--name*" [script scale-out -- --segment 8mb]
    expect 2 "*--segment*" [script scale-out --name a]
    expect 3 "*-p needs a number*" [script pool-health -p here]
    expect 2 "*-p needs a number*" [script rolling-upgrade -p here]
    expect 2 "*--node /nowhere/tarn-node*" [script scale-out --name a --node /nowhere/tarn-node -- \
        --segment 8mb]
    expect 2 "*need --tls*" [script scale-out --name a --cacert ca.crt -- --segment 8mb]
}

test {systemd takes the units of utils/systemd} {
    if {![has systemd-analyze]} {skip "there is no systemd-analyze"}
    set dir [temp_dir]
    foreach unit [glob [file join $root utils systemd *.service]] {
        set f [open $dir/[file tail $unit] w]
        set here [list /usr/local/bin/tarn-server $server_binary \
            /usr/local/bin/tarn-node $node_binary]
        puts -nonewline $f [string map $here [file_text $unit]]
        close $f
    }
    # It warns on standard error and ends with 0.
    assert_equal "" [exec systemd-analyze verify --man=no {*}[glob $dir/*.service] 2>@1]
}

# A redis-cli that says how it was called.
test {without -h and -p all of them ask where a tarn-server is by default} {
    set dir [temp_dir]
    set f [open $dir/redis-cli w 0755]
    puts $f "#!/bin/sh\necho asked: \"$*\""
    close $f
    foreach {name more} {pool-health {} rolling-upgrade {--restart true} scale-out\
            {--name a -- --segment 8mb}} {
        set command [list env PATH=$dir:$::env(PATH) bash [file join $root utils $name.sh] {*}$more]
        assert {[catch {exec {*}$command 2>@1} text]}
        assert_match "*asked: *-h 127.0.0.1 -p 6479*" $text
    }
}

test {pool-health: without nodes the pool does not work} {
    expect 2 "CRITICAL - 0 nodes up*no memory segment*" [script pool-health]
}

test {scale-out: a node is started, and carries load} {
    set writer [kv_start --replace --fill --pause 5 run w: 100 1000-20000]
    set result [script scale-out --name s1 --node $node_binary --log [server dir]/s1.log \
        --timeout 20 -- \
        --segment 16mb --no-populate --bind 127.0.0.1 --host-name s1 --exit-timeout 2 \
        --shm-socket [server dir]/s1]
    expect 0 "*s1 is up*\n  segment s1.0\nit holds*" $result
    assert {![regexp {[\r\033]} $result]} $result
    assert_equal up [node_state s1]
    kv_stop $writer
    expect 3 "*already*" [script scale-out --name s1 --node $node_binary -- --segment 16mb]
    expect 1 "*8q*" [script scale-out --name s2 --node $node_binary --log [server dir]/s2.log -- \
        --segment 8q]
    r flushall
    # It is up when that command returns.
    expect 4 "*anybody*" [script scale-out --name s3 --timeout 1 --start "$node_binary --daemonize \
        --master {url} --name {name} --log-file [server dir]/s3.log --segment 16mb --no-populate \
        --bind 127.0.0.1 --host-name s3 --shm-socket [server dir]/s3"]
    foreach n {s1 s3} {
        r node leave $n
        wait_node $n ""
    }
}

start_node n1 --host-name m1 --segment 16mb,path=[server dir]/n1.pool
start_node n2 --host-name m2 --segment 16mb --ssd [server dir]/n2.ssd:64mb
start_node n3 --host-name m3 --segment 16mb

# All that a command says, as it is; on a terminal, or to a pipe.
proc said_by {args} {
    set f [open |[list {*}$args < /dev/null 2>@1]]
    fconfigure $f -translation binary
    set said [read $f]
    catch {close $f}
    return $said
}
proc quoted {words} {return [join [lmap word $words {string cat ' [string map {' '\\''} $word] '}]]}
proc on_terminal {args} {return [said_by script -qec [quoted $args] /dev/null]}
# What scale-out says on a terminal about a node that is up and gets no load; then both are ended.
proc said_of_waiting {name} {
    global root node_binary
    set ::pipe [open |[list script -qec [quoted [list bash [file join $root utils scale-out.sh] \
        -p [server port] --name $name --node $node_binary --log [server dir]/$name.log \
        --timeout 300 --load 1000000 -- --host-name m4 --bind 127.0.0.1 --shm-socket none \
        --exit-timeout 2 --segment 8mb]] /dev/null < /dev/null 2>@1]]
    fconfigure $::pipe -translation binary -blocking 0
    set ::said {}
    wait_for "$name to wait for load" \
        {[regexp {waiting for load: \d+ of \d+} [append ::said [read $::pipe]]]}
    exec kill [lindex [pid $::pipe] 0]
    catch {close $::pipe}
    regexp {process (\d+), log} $::said - ::gone
    catch {exec kill $::gone}
    wait_for "the end of $name" {![file exists /proc/$::gone]}
    return $::said
}

test {what takes its time shows how far it is on a terminal, and only lines elsewhere} {
    assert_match "*\rwaiting for load: 0 of 1000000 replicas\033\\\[K*" [said_of_waiting s4]
    # a line every ten seconds
    assert_equal "two" [exec bash -c ". $root/utils/progress.sh; progress one
        SECONDS=\$((SECONDS + 10)); progress two; progress three; progress_end" 2>@1]
    set run [list [file join [file dirname $server_binary] tarn-benchmark] -p [server port] meta \
        --op put --seconds 1 --keys 1000]
    assert_match "*\r\\\[#*.\\\] *%  *\033\\\[K*" [on_terminal {*}$run]
    set said [said_by {*}$run]
    assert {[regexp {[0-9]} $said] && ![regexp {[\r\033]} $said]} $said
}

test {bench: silly environments and rows are refused by name} {
    proc bench {environment args} {
        catch {exec env {*}$environment bash $::root/utils/bench/meta.sh {*}$args 2>@1} text options
        return [list [lindex [dict get $options -errorcode] 2] $text]
    }
    expect 2 "ROUNDS is a whole number above zero, not '0'*" [bench {ROUNDS=0}]
    expect 2 "ROUNDS is a whole number above zero, not 'x'*" [bench {ROUNDS=x}]
    foreach silly {x -1 0 1.} {
        expect 2 "SECONDS_EACH is a number above zero, not '$silly'*" [bench SECONDS_EACH=$silly]
    }
    expect 2 "a row is OP-CLIENTS, as put-4,*not 'putt-4'*" [bench {} putt-4]
    expect 2 "MOONCAKE: there is no /nowhere/*mooncake_master*" [bench {MOONCAKE=/nowhere}]
    # A peer whose load fails: what it said is shown.
    set peer [file join [server dir] peer mooncake-store]
    file mkdir $peer/src $peer/benchmarks
    foreach name {src/mooncake_master benchmarks/master_bench benchmarks/mooncake-load} {
        set f [open $peer/$name w 0755]
        puts $f "#!/bin/sh\necho no such operation >&2\nexit 3"
        close $f
    }
    set environment [list MOONCAKE=[file dirname $peer]]
    expect 2 "with MOONCAKE, SECONDS_EACH is a whole number*, not '1.5'*" \
        [bench [concat $environment SECONDS_EACH=1.5]]
    catch {exec env {*}$environment bash -c ". $::root/utils/bench/lib.sh
        . utils/bench/mooncake.sh
        mooncake_port=1; rate=\$(master_bench --duration=9)" 2>@1} said
    assert_match "*master_bench --master_server=127.0.0.1:1 --duration=9 failed:\nno such*" $said
}

test {pool-health: all is well} {
    kv --replicas 2 load h: 20 1000-20000
    expect 0 "OK - 3 nodes up, 0 down*nodes_up=3*n1*up*m1*n2*n3*" [script pool-health --nodes 3]
    expect 0 "OK - *" [script pool-health --quiet]
    assert_equal 1 [llength [split [lindex [script pool-health --quiet] 1] \n]]
    expect 2 "CRITICAL*4 are expected*" [script pool-health --nodes 4]
}

test {pool-health: a pool that takes nothing new does not do its work} {
    foreach n {n1 n2 n3} {r node maintenance $n on}
    expect 2 "CRITICAL - 3 nodes up*no memory segment takes new values*" [script pool-health]
    foreach n {n1 n2 n3} {r node maintenance $n off}
    expect 0 "OK*" [script pool-health]
}

test {pool-health: what wants attention} {
    r node maintenance n3 on
    expect 0 "OK*maintenance*" [script pool-health --nodes 3]
    r node maintenance n3 off
    kill_node n3
    wait_node n3 down
    expect 1 "WARNING - 2 nodes up, 1 down, * of 32 MiB used, 16 MiB are down\
        |*pool_size=33554432B*pool_down=16777216B*n3 on m3\
        is down*" [script pool-health]
    expect 3 "*down: n3*" [script rolling-upgrade --restart true]
    restart_node n3
    expect 0 "OK*" [script pool-health]
    # Nearly everything is pinned.
    kv --pin --replicas 3 load pin: 15 1000000
    expect 1 "WARNING*neither free nor evictable*" [script pool-health]
    r flushall
    wait_for "room" {[info_field pool_free] == [info_field pool_size]}
    kv --prefer n1.0 put slow0 10000
    pause_node n2
    r replica copy slow0 to n2.0
    expect 0 "OK*" [script pool-health --stuck 100]
    wait_for "the task to be old" {[dict get [lindex [r replica tasks] 0] age-ms] > 0}
    expect 1 "WARNING*tasks are older than 0 s*" [script pool-health --stuck 0]
    continue_node n2
    wait_for "no task" {[info_field tasks] == 0}
    # A bad replica.
    set token [lindex [r putstart bad 5000] 0]
    r putend bad $token 12345
    assert_equal 1 [r replica report bad $token]
    r del bad
    expect 1 "WARNING*1 replicas had bad bytes*" [script pool-health]
}

# Starts the node of that name, again or for the first time, when a file with its name appears: the
# other half of --restart and --start.
proc serve_restarts {} {
    foreach path [glob -nocomplain -directory [server dir] restart-*] {
        set name [string range [file tail $path] 8 end]
        file delete $path
        if {[dict exists $::node_table $name]} {
            send_signal TERM [node $name pid]
            reap_node $name
        }
        launch_node $name
        lappend ::restarted $name
    }
    set ::serving [after 20 serve_restarts]
}

# The script runs beside us, because its commands want something of us.
proc upgrade {args} {
    return [beside rolling-upgrade --pause 0 --restart "touch [server dir]/restart-{name}" {*}$args]
}
proc beside {name args} {
    set ::restarted {}
    set log [file join [server dir] beside-[incr ::besides]]
    serve_restarts
    set pid [start_process [list bash [file join $::root utils $name.sh] -p [server port] \
        --timeout 20 {*}$args] $log]
    set ::upgrade_pid $pid
    set end [expr {[clock milliseconds] + $::patience_ms}]
    while {[process_state $pid] ne "gone" && [clock milliseconds] < $end} {
        after 20 {set ::tick 1}
        vwait ::tick
    }
    after cancel $::serving
    return [list [reap_process $pid] [file_text $log]]
}

test {rolling-upgrade --dry-run only talks} {
    set result [script rolling-upgrade --dry-run --restart {ssh {machine} restart {name} at\
        {address}}]
    expect 0 "*n1: would set to maintenance*ssh m1 restart n1 at 127.0.0.1*n3*" $result
    assert_equal {1 up} [list [node_field n1 joins] [node_state n1]]
}

test {rolling-upgrade: one node after the other, under load; what files and disks hold stays} {
    r flushall
    kv --prefer n1.0 load f: 20 1000-20000
    kv --prefer n2.0 load d: 20 1000-20000
    wait_for "copies on the disk" {[segment_field n2.ssd replicas] == 20}
    kv --replicas 3 load all: 20 1000-20000
    set reader [kv_start --pause 5 --failover 200 run all: 20 1000-20000]
    set before [lmap n {n1 n2 n3} {node_field $n instance}]
    set result [upgrade]
    expect 0 "*n1: up*n2: up*n3: up*done*" $result
    assert {![string match "*still offers*" $result]} $result
    assert_equal {n1 n2 n3} $restarted
    foreach n {n1 n2 n3} old $before {
        assert_equal up [node_state $n]
        assert {[node_field $n instance] ne $old}
    }
    kv_all 20 verify f: 20 1000-20000
    kv_all 20 verify d: 20 1000-20000
    set a [kv_stop $reader]
    assert_equal "0 0 0" [kv_fields $a misses errors wrong] $a
}

test {rolling-upgrade --drain: memory is moved before} {
    r flushall
    kv --prefer n3.0 load m: 20 1000-20000
    expect 0 "*n3: draining*n3: up*done*" [upgrade --drain --nodes n3]
    assert_equal n3 $restarted
    kv_all 20 verify m: 20 1000-20000
}

test {scale-out: by a command of one's own} {
    set result [beside scale-out --name n4 --load 0 \
        --start "touch [server dir]/restart-{name} # {url}"]
    expect 0 "*n4 is up*" $result
    assert_equal n4 $restarted
    expect 1 "*failed*" [script scale-out --name n5 --start false]
}

test {rolling-upgrade stops where a node does not come back} {
    expect 1 "*n1: the command failed*" [script rolling-upgrade --restart false --nodes n1,n2]
    assert_equal {up up} [list [node_state n1] [node_state n2]]
    expect 1 "*n1: is not back after 1 s*" [script rolling-upgrade --restart true --timeout 1]
    assert_equal {maintenance up} [list [node_state n1] [node_state n2]]
    r node maintenance n1 off
    expect 2 "*nobody*" [script rolling-upgrade --restart true --nodes nobody]
    expect 0 "*n1: has version*done*" [script rolling-upgrade --restart true \
        --version [node_field n1 version]]
}

stop_server

test {over TLS} {
    if {![have_openssl]} {skip "there is no openssl"}
    if {[catch {exec redis-cli --tls --version}]} {skip "redis-cli knows no TLS"}
    make_ca ca
    foreach name {server user} {make_cert $name ca}
    start_server --pool-size 0
    open_tls_port
    r acl setuser ops@2 on >sesame ~* &* +@all
    set tls [list -p [tls_port] --tls --cacert [pem ca.crt] --cert [pem user.crt] \
        --key [pem user.key] --user ops@2 -a sesame]
    expect 2 "*no memory segment*" [script pool-health {*}$tls]
    expect 0 "*t1 is up*" [script scale-out {*}$tls --name t1 --load 0 --node $node_binary \
        --log [server dir]/t1.log --timeout 20 -- \
        --segment 16mb --no-populate --bind 127.0.0.1 --exit-timeout 2 --shm-socket [server dir]/t1]
    expect 0 "OK - 1 nodes up*" [script pool-health {*}$tls --nodes 1]
    expect 0 "*t1: would*" [script rolling-upgrade {*}$tls --dry-run --restart true]
    expect 1 "*failed: false tarns://127.0.0.1:[tls_port]\n*" [script scale-out -p [tls_port] \
        --tls --cacert [pem ca.crt] \
        --cert [pem user.crt] --key [pem user.key] --name t2 --start "false {url}"]
    r node leave t1
    wait_node t1 ""
    stop_server
}

test {a master that says nothing is not waited for without end} {
    assert_equal 3 [reap_process $silent_upgrade]
    assert_match "*nothing came within 10 s*" [file_text $silent_dir/said]
    close $silent
}

test {no master, wrong password} {
    start_server --pool-size 8mb --requirepass sesame
    expect 3 "*NOAUTH*" [script rolling-upgrade --restart true]
    expect 3 "*WRONGPASS*" [script rolling-upgrade --restart true -a wrong]
    expect 3 "*WRONGPASS*" [script scale-out --name a -a wrong -- --segment 8mb]
    expect 3 "UNKNOWN*NOAUTH*" [script pool-health]
    expect 3 "UNKNOWN*WRONGPASS*" [script pool-health -a wrong]
    expect 0 "OK - 0 nodes up*" [script pool-health -a sesame]
    # Arguments of a process are no secret.
    set path $::env(PATH)
    set bin [file join [server dir] bin]
    file mkdir $bin
    set wrapper [open $bin/redis-cli w 0755]
    puts $wrapper "#!/bin/sh\ncase \"\$*\" in *sesame*) echo it shows; exit 1 ;; esac"
    puts $wrapper "exec [auto_execok redis-cli] \"\$@\""
    close $wrapper
    set ::env(PATH) $bin:$path
    expect 0 "OK - 0 nodes up*" [script pool-health -a sesame]
    expect 3 "*the master has no nodes*" [script rolling-upgrade --restart true -a sesame]
    set ::env(PATH) $path
    # Who may not see the nodes cannot say that all is well.
    r auth sesame
    foreach {rules pattern} {
        {} {UNKNOWN - NODE LIST: NOPERM*} {+node|list} {UNKNOWN - REPLICA TASKS*NOPERM*} \
            {+replica|tasks} {UNKNOWN - REPLICA TASKS*NOPERM*}
    } {
        r acl setuser metrics on >m resetchannels +ping +info {*}$rules
        expect 3 $pattern [script pool-health --user metrics -a m]
    }
    r acl setuser metrics %R~*
    expect 0 "OK - 0 nodes up*" [script pool-health --user metrics -a m]
    set port [server port]
    stop_server
    catch {exec bash [file join $root utils pool-health.sh] -p $port 2>@1} message options
    assert_equal 2 [lindex [dict get $options -errorcode] 2]
    assert_match "CRITICAL - the master does not answer*" $message
}

finish
