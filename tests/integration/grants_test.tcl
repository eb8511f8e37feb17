# Grants in the hands of somebody who is not trusted with whole segments: what they allow ends with what they were given for. The
# data port is spoken by hand, since libtarn does none of this. Everything against the server's own memory, and against a node's.
source [file join [file dirname [info script]] harness.tcl]

set MIB 1048576

# --- the data port -------------------------------------------------------------------------------------------------------------

proc frame {type meta payload {flags 0} {version 1}} {
    return "TNRD[binary format ccsuwuiuiuwu $version $type $flags 0 0 [string length $meta] [string length $payload]]$meta$payload"
}
proc dial {port} {
    set fd [socket 127.0.0.1 $port]
    fconfigure $fd -translation binary -blocking 0
    puts -nonewline $fd [frame 1 [binary format sususuiuiuiuwu 1 1 1 0 4096 0 1073741824] {} 0 0]
    flush $fd
    assert_equal 0 [dict get [reply $fd] status]
    return $fd
}
# An extent of PUTSTART or GETREPLICAS, or a range of it.
proc part {extent {from 0} {length -1}} {
    lassign $extent segment epoch offset whole grant
    if {$length < 0} {set length [expr {$whole - $from}]}
    return [binary format iuiuwuwuwuwu $segment $epoch $offset $whole $from $length]$grant
}
proc reply {fd} {
    binary scan [resp::bytes $fd 32] a4cucusuwuiuiuwu magic version type flags id status meta payload
    assert_equal TNRD $magic
    return [dict create status $status flags $flags meta [resp::bytes $fd $meta] payload [resp::bytes $fd $payload]]
}
proc data_send {fd bytes} {
    puts -nonewline $fd $bytes
    flush $fd
}
proc data_read {fd extent} {
    data_send $fd [frame 2 [part $extent] {}]
    return [reply $fd]
}

# What the data port says to a reader on a connection of his own; closed: it hangs up.
proc grant_status {extent} {
    set fd [dial $::data_port]
    set status [expr {[catch {data_read $fd $extent} answer] ? "closed" : [dict get $answer status]}]
    catch {close $fd}
    return $status
}

# --- who is who -----------------------------------------------------------------------------------------------------------------

# Everybody's values are of one size, so that they take each other's place.
set size [expr {2 * $MIB}]
set evil [string repeat E $size]
set secret [string repeat S $size]

proc enter_eve {} {
    r acl setuser eve reset on >pw resetchannels ~b:* +putstart +putend +mputend +putrevoke +mputrevoke +getreplicas +release +get +del +exists +hello +auth
}
# Her connection; another one after a test that failed.
set eve_is {}
proc eve {args} {
    if {$::eve_is ni $::clients} {
        set ::eve_is [client]
        $::eve_is auth eve pw
    }
    return [$::eve_is {*}$args]
}
# Other people's values, until each free place has been taken by one at least once.
proc others_put {} {
    set n [expr {[info_field pool_size] / $::size}]
    for {set i 0} {$i < $n} {incr i} {
        catch {r set a:$i $::secret}
    }
}
proc others_are_unharmed {} {
    set found 0
    for {set i 0} {$i < 64} {incr i} {
        if {[catch {r get a:$i} value] || $value eq "(nil)"} continue
        incr found
        if {$value ne $::secret} {error "the value of a:$i was overwritten"}
    }
    if {$found == 0} {error "nobody could put anything"}
}
proc others_leave {} {
    for {set i 0} {$i < 64} {incr i} {r del a:$i}
}

# --- the attacks ------------------------------------------------------------------------------------------------------------------

proc attacks {where data_port} {
    set ::where $where
    set ::data_port $data_port
    enter_eve

    test "guarantee 6: a grant to read shows nothing that was put after RELEASE ($where)" {
        set fd [dial $data_port]
        r set b:r $evil
        set found [eve getreplicas b:r LEASE 3600000]
        assert_equal 1 [eve release 1 b:r [lindex $found 0]]
        eve del b:r
        others_put
        set answer [data_read $fd [lindex $found 4 0 1 0]]
        if {[string first S [dict get $answer payload]] >= 0} {error "the grant shows what others put"}
        others_are_unharmed
        others_leave
    }

    test "guarantee 6: a reply that is not taken ends with its grant ($where)" {
        set fd [dial $data_port]
        r set b:r $evil
        set extent [lindex [eve getreplicas b:r LEASE 500] 4 0 1 0]
        set n 40   ;# more than sockets hold
        data_send $fd [string repeat [frame 2 [part $extent] {}] $n]
        wait_for "the lease to be over" {[info_field leases] == 0}
        r del b:r
        others_put
        set got 0
        while {![eof $fd] && $got < $n * ($size + 32)} {
            resp::await $fd
            set bytes [read $fd]
            incr got [string length $bytes]
            if {[string first SSSS $bytes] >= 0} {error "the reply goes on with what others put"}
        }
        close $fd
        assert_range 1 $got [expr {$n * ($size + 32) - 1}]
        others_are_unharmed
        others_leave
    }

    test "guarantee 6: the grants of a user end when he is deleted, or may do less ($where)" {
        foreach change {
            {acl deluser eve} {acl setuser eve off} {acl setuser eve resetkeys ~b:*x} {acl setuser eve -getreplicas}
            {acl setuser eve reset}
        } {
            enter_eve
            r set b:r $evil
            set mine [lindex [eve getreplicas b:r LEASE 60000] 4 0 1 0]
            set open [dial $data_port]
            assert_equal $evil [dict get [data_read $open $mine] payload]
            set lasting [client] ;# somebody who has no grants stays, as in Redis
            $lasting auth eve pw
            r {*}$change
            assert {[catch {$eve_is ping}]} $change
            drop $eve_is
            if {[lindex $change 1] eq "deluser"} {assert {[catch {$lasting ping}]}}
            set ::mine $mine
            wait_for "the fence" {[grant_status $::mine] ne 0} ;# a node hears of it a moment later
            assert {[grant_status $mine] in {6 closed}} [grant_status $mine]
            assert {[catch {data_read $open $mine} answer] || [dict get $answer payload] eq ""}
            catch {close $open}
            drop $lasting
        }
        # What gives more, or nothing less, costs her nothing.
        enter_eve
        r set b:r $evil
        set mine [lindex [eve getreplicas b:r LEASE 60000] 4 0 1 0]
        foreach same {{acl setuser eve >another} {acl setuser eve &ch:*} {acl setuser eve +getreplicas ~d:* +ping}} {r {*}$same}
        set fd [dial $data_port]
        assert_equal $evil [dict get [data_read $fd $mine] payload]
        close $fd
        assert_equal 1 [eve exists b:r]
    }
}

proc node_data_port {name} {
    if {![regexp {tcp://[^ ]*:(\d+)} [segment_field $name.0 endpoints] - port]} {error "$name has no data port"}
    return $port
}

start_server --pool-size 16mb --max-lease 60s --eviction-high-watermark 1
attacks "the server's memory" [info_field data_port]
stop_server

start_server --pool-size 0 --max-lease 60s --eviction-high-watermark 1
start_node n1 --segment 16mb
attacks "a node" [node_data_port n1]
stop_server
finish
