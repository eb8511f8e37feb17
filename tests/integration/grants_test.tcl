# Grants in the hands of somebody who is not trusted with whole segments: what they allow ends with
# what they were given for. The data port is spoken by hand, since libtarn does none of this.
# Everything against the server's own memory, and against a node's.
source [file join [file dirname [info script]] harness.tcl]

set MIB 1048576

# --- the data port ---

proc frame {type meta payload {flags 0} {version 1}} {
    return "TNRD[binary format ccsuwuiuiuwu $version $type $flags 0 0 [string length $meta]\
        [string length $payload]]$meta$payload"
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
    binary scan [resp::bytes $fd 32] a4cucusuwuiuiuwu magic version type flags id status meta \
        payload
    assert_equal TNRD $magic
    return [dict create status $status flags $flags meta [resp::bytes $fd $meta] payload \
        [resp::bytes $fd $payload]]
}
proc data_send {fd bytes} {
    puts -nonewline $fd $bytes
    flush $fd
}
# The status of a WRITE, or "closed".
proc data_write {fd extent bytes {from 0} {flags 0}} {
    if {[catch {
        data_send $fd [frame 3 [part $extent $from [string length $bytes]] $bytes $flags]
        set status [dict get [reply $fd] status]
    } said]} {
        if {[string match "*closed*" $said] || [string match "*pipe*" $said]} {return closed}
        error $said
    }
    return $status
}
# The first half of a WRITE. When this returns the host is receiving it: the request in front of it,
# which came in the same packet, has been answered. The other half comes back.
proc begin_write {fd extent bytes} {
    set whole [frame 3 [part $extent 0 [string length $bytes]] $bytes]
    data_send $fd [frame 3 [part $extent 0 0] {}][string range $whole 0 115]
    assert_equal 0 [dict get [reply $fd] status]
    set half [expr {([string length $whole] + 116) / 2}]
    data_send $fd [string range $whole 116 $half-1]
    return [string range $whole $half end]
}
proc data_read {fd extent} {
    data_send $fd [frame 2 [part $extent] {}]
    return [reply $fd]
}
# Bytes are all there; what the host answers.
proc seal {fd extent} {
    data_send $fd [frame 3 [part $extent 0 0] {} 2]
    return [reply $fd]
}
proc assert_refused {status} {
    if {$status eq "closed" || ($status >= 1 && $status <= 7)} return
    error "the host answered $status, and not with a refusal"
}
proc extent_of {answer} {return [lindex $answer 1 0 1 0]}

# What the data port says to a reader on a connection of his own; closed: it hangs up.
proc grant_status {extent} {
    set fd [dial $::data_port]
    set status [expr {[catch {data_read $fd $extent} answer] ? "closed" :\
        [dict get $answer status]}]
    catch {close $fd}
    return $status
}

# --- who is who ---

# Everybody's values are of one size, so that they take each other's place.
set size [expr {2 * $MIB}]
set evil [string repeat E $size]
set secret [string repeat S $size]

set lib_rules {+hello +auth +ping +client|setname +client|setinfo +segment|info +putstart +putend\
    +putrevoke +mputstart +mputend +mputrevoke
    +getreplicas +mgetreplicas +release +exists +mexists +prefixlen}

proc enter_eve {} {
    r acl setuser eve reset on >pw resetchannels ~b:* +putstart +putend +mputend +putrevoke \
        +mputrevoke +getreplicas +release +get +del +exists +hello +auth
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

# So that its space is free at once, on a node, too.
proc give_up {fd key put} {
    eve putrevoke $key [lindex $put 0] RECEIPTS [dict get [seal $fd [extent_of $put]] meta]
}

# One put of Eve's, its bytes written and sealed: [token extent receipt].
proc eve_writes {fd key {bytes ""}} {
    if {$bytes eq ""} {set bytes $::evil}
    set put [eve putstart $key [string length $bytes]]
    set extent [extent_of $put]
    assert_equal 0 [data_write $fd $extent $bytes]
    set answer [seal $fd $extent]
    assert_equal 0 [dict get $answer status]
    assert_equal 16 [string length [dict get $answer meta]]
    return [list [lindex $put 0] $extent [dict get $answer meta]]
}

# --- the attacks ---

proc attacks {where data_port} {
    set ::where $where
    set ::data_port $data_port
    enter_eve

    test "guarantee 2: who needs space that only waits for grants is told to come again, and can\
            ($where)" {
        r set b:r $evil
        set found [eve getreplicas b:r LEASE 2000]
        eve release 1 b:r [lindex $found 0]
        set all [expr {[info_field pool_size] - [info_field pool_zombie] - $MIB}]
        assert_error "TRYAGAIN *" {r putstart a:big $all}
        wait_for "the grants to end" {![catch {set ::put [r putstart a:big $::all]}]}
        r putrevoke a:big [lindex $put 0]
        # and while some space waits, other is evicted
        set put [eve putstart b:w $size]
        eve putrevoke b:w [lindex $put 0]
        others_put
        others_put
        others_are_unharmed
        others_leave
    }

    test "guarantee 6: a grant to write is worth nothing after PUTREVOKE ($where)" {
        set fd [dial $data_port]
        set put [eve putstart b:w $size]
        assert_equal OK [eve putrevoke b:w [lindex $put 0]]
        others_put
        data_write $fd [extent_of $put] $evil   ;# refused at once, or it lands where nobody is \
            before its time
        others_are_unharmed
        others_leave
    }

    test "guarantee 6: nor where a WRITE was under way when the put was revoked ($where)" {
        set fd [dial $data_port]
        set slow [dial $data_port]
        set put [eve putstart b:w $size]
        set rest [begin_write $slow [extent_of $put] $evil]
        assert_equal 8 [dict get [seal $fd [extent_of $put]] status]
        assert_equal OK [eve putrevoke b:w [lindex $put 0]]
        others_put
        catch {data_send $slow $rest}
        catch {reply $slow}
        catch {close $slow}
        others_are_unharmed
        others_leave
    }

    test "guarantee 6: a visible object cannot be written, neither before nor after its DEL\
            ($where)" {
        set fd [dial $data_port]
        lassign [eve_writes $fd b:v] token extent receipt
        assert_equal OK [eve putend b:v $token -1 RECEIPTS $receipt]
        assert_equal $evil [eve get b:v]
        assert_refused [data_write $fd $extent [string repeat X 100]]
        assert_equal $evil [eve get b:v]
        eve del b:v
        others_put
        assert_refused [data_write $fd $extent $evil]
        others_are_unharmed
        others_leave
    }

    test "guarantee 6: PUTEND without the host's word that all was written is an error ($where)" {
        set fd [dial $data_port]
        # nothing written
        set put [eve putstart b:1 $size]
        assert_error "*RECEIPTS*" {eve putend b:1 [lindex $put 0] -1}
        assert_equal 0 [eve exists b:1]
        give_up $fd b:1 $put
        # half written
        set put [eve putstart b:2 $size]
        assert_equal 0 [data_write $fd [extent_of $put] [string range $evil 0 [expr {$size / 2}]]]
        assert_error "*RECEIPTS*" {eve putend b:2 [lindex $put 0] -1}
        give_up $fd b:2 $put
        set put [eve putstart b:2 $size]
        assert_equal 0 [data_write $fd [extent_of $put] [string range $evil 0 [expr {$size / 2}]]]
        set answer [seal $fd [extent_of $put]]
        assert_error "*wholly*" {eve putend b:2 [lindex $put 0] -1 RECEIPTS [dict get $answer meta]}
        assert_equal 0 [eve exists b:2]
        give_up $fd b:2 $put
        # a gap of one byte
        set put [eve putstart b:3 $size]
        assert_equal 0 [data_write $fd [extent_of $put] [string range $evil 1 end] 1]
        set answer [seal $fd [extent_of $put]]
        assert_error "*wholly*" {eve putend b:3 [lindex $put 0] -1 RECEIPTS [dict get $answer meta]}
        give_up $fd b:3 $put
        # made up, and somebody else's
        lassign [eve_writes $fd b:4] token extent receipt
        set put [eve putstart b:5 $size]
        assert_equal 0 [data_write $fd [extent_of $put] $evil]
        seal $fd [extent_of $put]
        assert_error "*wholly*" {eve putend b:5 [lindex $put 0] -1 RECEIPTS $receipt}
        give_up $fd b:5 $put
        set put [eve putstart b:5 $size]
        assert_equal 0 [data_write $fd [extent_of $put] $evil]
        assert_error "*wholly*" {eve putend b:5 [lindex $put 0] -1 RECEIPTS\
            [string range [lindex [extent_of $put] 4] 24 39]}
        give_up $fd b:5 $put
        assert_error "ERR *RECEIPTS*" {eve putend b:4 $token -1 RECEIPTS short}
        assert_equal OK [eve putend b:4 $token -1 RECEIPTS $receipt]
        assert_equal $evil [eve get b:4]
        eve del b:4
    }

    test "guarantee 6: a grant that was sealed early writes nothing more, and sealing again says\
            the same ($where)" {
        set fd [dial $data_port]
        set put [eve putstart b:s $size]
        assert_equal 0 [data_write $fd [extent_of $put] $evil]
        set first [seal $fd [extent_of $put]]
        assert_equal 7 [data_write $fd [extent_of $put] X]
        assert_equal $first [seal $fd [extent_of $put]]
        assert_equal OK [eve putend b:s [lindex $put 0] -1 RECEIPTS [dict get $first meta]]
        assert_equal $evil [eve get b:s]
        eve del b:s
    }

    test "guarantee 6: a seal waits for those who write with the grant at the moment ($where)" {
        set fd [dial $data_port]
        set slow [dial $data_port]
        set put [eve putstart b:s $size]
        assert_equal 0 [data_write $fd [extent_of $put] $evil]
        set rest [begin_write $slow [extent_of $put] [string range $evil 0 9]]
        assert_equal 8 [dict get [seal $fd [extent_of $put]] status]
        data_send $slow $rest
        assert_equal 0 [dict get [reply $slow] status]
        set answer [seal $fd [extent_of $put]]
        assert_equal 0 [dict get $answer status]
        close $slow
        assert_equal OK [eve putend b:s [lindex $put 0] -1 RECEIPTS [dict get $answer meta]]
        eve del b:s
    }

    test "guarantee 1: libtarn puts and gets for somebody who is not trusted, by itself ($where)" {
        set held [info_field pool_zombie]   ;# by the tests above
        r acl setuser lib reset on >pw ~b:* -@all {*}$lib_rules
        set url tarn://lib:pw@127.0.0.1:[server port]
        foreach {from to n options} {1 64 20 {} 65 20000 300 {} 20000 20000 100 {--batch 100}\
                900000 1100000 4 {} 5000000 9000000 1 {}} {
            set a [kv_answer [kv_exec [list {*}$options $url load b:l$from. $n $from-$to]]]
            assert_equal [list $n 0] [kv_fields $a ok errors] [dict get $a error]
            set a [kv_answer [kv_exec [list $url verify b:l$from. $n $from-$to]]]
            assert_equal [list $n 0] [kv_fields $a ok wrong] [dict get $a error]
            assert_equal 0 [dict get $a shm_bytes]
            assert_equal 0 [info_field puts_open]
        }
        # A put in place, which it is not: the space that was asked for is given back at once, on a
        # node as well.
        set a [kv_answer [kv_exec [list --slow 1 $url put b:writer 3000000]]]
        assert_equal {1 0} [kv_fields $a ok errors] [dict get $a error]
        assert_equal [list 0 $held] [list [info_field puts_open] [info_field pool_zombie]]
        r flushall
    }

    test "guarantee 6: a grant to read shows nothing that was put after RELEASE ($where)" {
        set fd [dial $data_port]
        r set b:r $evil
        set found [eve getreplicas b:r LEASE 3600000]
        assert_equal 1 [eve release 1 b:r [lindex $found 0]]
        eve del b:r
        others_put
        set answer [data_read $fd [lindex $found 4 0 1 0]]
        if {[string first S [dict get $answer payload]] >= 0} {
            error "the grant shows what others put"
        }
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
            {acl deluser eve} {acl setuser eve off} {acl setuser eve resetkeys ~b:*x} \
                {acl setuser eve -getreplicas}
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
            assert {[grant_status $mine] in {6 closed}} "$change: [grant_status $mine]"
            assert {[catch {data_read $open $mine} answer] || [dict get $answer payload] eq ""}
            catch {close $open}
            drop $lasting
        }
        # Nor does it help to be somebody else meanwhile.
        foreach other {{auth mallory pw} reset} {
            enter_eve
            r acl setuser mallory reset on >pw +ping +auth
            r set b:r $evil
            set ::mine [lindex [eve getreplicas b:r LEASE 60000] 4 0 1 0]
            $eve_is {*}$other
            r acl deluser eve
            assert {[catch {$eve_is ping}]} $other
            drop $eve_is
            wait_for "the fence" {[grant_status $::mine] ne 0}
        }
        # What gives more, or nothing less, costs her nothing.
        enter_eve
        r set b:r $evil
        set mine [lindex [eve getreplicas b:r LEASE 60000] 4 0 1 0]
        foreach same {{acl setuser eve >another} {acl setuser eve &ch:*}\
                {acl setuser eve +getreplicas ~d:* +ping}} {
            r {*}$same
        }
        set fd [dial $data_port]
        assert_equal $evil [dict get [data_read $fd $mine] payload]
        close $fd
        assert_equal 1 [eve exists b:r]
    }
}

proc node_data_port {name} {
    if {![regexp {tcp://[^ ]*:(\d+)} [segment_field $name.0 endpoints] - port]} {
        error "$name has no data port"
    }
    return $port
}

start_server --pool-size 64mb --max-lease 60s --eviction-high-watermark 1
attacks "the server's memory" [info_field data_port]
stop_server

start_server --pool-size 0 --max-lease 60s --eviction-high-watermark 1
start_node n1 --segment 64mb
attacks "a node" [node_data_port n1]
stop_server
finish
