# Machines made of network namespaces on this one. A test that sources this file (and not
# harness.tcl, which comes with it) runs in a namespace of its own, or is skipped where none can be
# made; nothing outside of it is touched.
#
#     a switch (the namespace the test runs in, 10.77.0.254)
#      ├── h0, 10.77.0.10
#      ├── h1, 10.77.0.11
#      └── ...
#
# A link is cut in one direction by a token bucket that lets nothing pass: packets vanish, nobody is
# told.

if {![info exists env(TARN_NETNS)]} {
    set env(TARN_NETNS) 1
    foreach tool {unshare nsenter ip tc setpriv} {
        if {[auto_execok $tool] eq ""} {
            puts "skip [file tail $argv0]: there is no $tool\n0 passed, 0 failed, 1 skipped"
            exit 0
        }
    }
    set how {}
    foreach options {{-n} {-rn}} {
        if {![catch {exec unshare {*}$options ip link add br0 type bridge}]} {
            set how $options
            break
        }
    }
    if {$how eq ""} {
        puts "skip [file tail $argv0]: network namespaces are not permitted here\n0 passed, 0\
            failed, 1 skipped"
        exit 0
    }
    set status [catch {exec setpriv --pdeathsig KILL unshare {*}$how [info nameofexecutable]\
        $argv0 {*}$argv >@stdout 2>@stderr}]
    exit $status
}
source [file join [file dirname [info script]] harness.tcl]

# --- the network ---

set hosts {}
proc address {host} {return 10.77.0.[expr {10 + [string index $host 1]}]}

proc make_host {host} {
    set pid [start_process {unshare -n sleep 100000} /dev/null]
    dict set ::hosts $host $pid
    set ::made $pid
    wait_for "namespace of $host" {[file link /proc/$::made/ns/net] ne\
        [file link /proc/self/ns/net]}
    exec ip link add v$host type veth peer name eth0 netns $pid
    exec ip link set v$host master br0 up
    inside $host ip link set lo up
    inside $host ip link set eth0 up
    inside $host ip addr add [address $host]/24 dev eth0
}

# A command in a host.
proc inside {host args} {exec nsenter -t [dict get $::hosts $host] -n {*}$args}

# Processes that the script starts run in that host.
proc on {host script} {
    set ::prefix [list nsenter -t [dict get $::hosts $host] -n]
    set failed [catch {uplevel 1 $script} result options]
    set ::prefix {}
    return -options $options $result
}

# Packets to the host, or from it, vanish; kbit 0: all of them.
proc limit {host direction kbit} {
    set bucket [expr {$kbit == 0 ? "rate 8bit burst 1 limit 1" :\
        "rate ${kbit}kbit burst 32k latency 400ms"}]
    if {$direction in {to both}} {exec tc qdisc replace dev v$host root tbf {*}$bucket}
    if {$direction in {from both}} {inside $host tc qdisc replace dev eth0 root tbf {*}$bucket}
}
proc cut {host {direction both}} {limit $host $direction 0}
proc mend {host} {
    catch {exec tc qdisc del dev v$host root}
    catch {inside $host tc qdisc del dev eth0 root}
}
# Only packets from one host to another.
proc cut_path {from to} {inside $from ip route add blackhole [address $to]/32}
proc mend_path {from to} {catch {inside $from ip route del blackhole [address $to]/32}}

# The first command of the test.
proc make_network {hosts} {
    exec ip link set lo up
    exec ip link add br0 type bridge
    exec ip link set br0 up
    exec ip addr add 10.77.0.254/24 dev br0
    foreach h $hosts {make_host $h}
}
