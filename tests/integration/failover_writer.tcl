# A Redis client for failover_test.tcl that remembers what it was promised: it sets and gets small
# and large values at the one of the servers that is the master, until its standard input ends; then
# it reads everything and says what is wrong.
#
#     tclsh failover_writer.tcl PREFIX PORT...
set ports [lassign $argv prefix]
set keys 60
set out(writes) 0
set out(refused) 0
array set out {lost 0 wrong 0}
set fd ""
set stop 0
fconfigure stdin -blocking 0
fileevent stdin readable {if {[gets stdin line] < 0 &&
        [eof stdin]} {set stop 1; fileevent stdin readable {}}}

proc value {key n} {
    set text "$key=$n;"
    if {$key % 3 > 0} {return $text}
    return [string repeat $text [expr {4000 + $key * 100}]]
}

# One reply; errors of the connection are Tcl errors.
proc receive {} {
    if {[gets $::fd line] < 0} {error closed}
    set line [string trimright $line \r]
    switch -exact -- [string index $line 0] {
        + - : {return [list ok [string range $line 1 end]]}
        - {return [list error [string range $line 1 end]]}
        $ {
            set n [string range $line 1 end]
            if {$n < 0} {return {nil {}}}
            set data [read $::fd [expr {$n + 2}]]
            if {[string length $data] < $n + 2} {error closed}
            return [list ok [string range $data 0 end-2]]
        }
        * {
            set all {}
            for {set i [string range $line 1 end]} {$i > 0} {incr i -1} {
                lappend all [lindex [receive] 1]
            }
            return [list ok $all]
        }
    }
    error "what is $line"
}
proc send {args} {
    set text "*[llength $args]\r\n"
    foreach a $args {append text "\$[string length $a]\r\n$a\r\n"}
    puts -nonewline $::fd $text
    flush $::fd
}
proc call {args} {
    send {*}$args
    return [receive]
}
proc leave {} {
    catch {close $::fd}
    set ::fd ""
}
# Until there is one.
proc find_master {} {
    while {$::fd eq ""} {
        foreach port $::ports {
            if {[catch {
                set ::fd [socket 127.0.0.1 $port]
                fconfigure $::fd -translation binary -buffersize 65536
                lindex [call role] 1 0
            } role] || $role ne "master"} {leave} else {break}
        }
        if {$::fd eq ""} {after 5}
    }
}
# The answer of a master, or "" when nobody knows what has become of it.
proc try {args} {
    find_master
    if {[catch {call {*}$args} answer]} {leave; return ""}
    if {[lindex $answer 0] eq "error"} {
        set known {^(READONLY|LOADING|NOREPLICAS|TRYAGAIN)}
        if {![regexp $known [lindex $answer 1]]} {puts stderr "$args: $answer"}
        leave
        incr ::out(refused)
        return ""
    }
    return $answer
}

proc write {key n} {
    if {[lindex [try set $::prefix$key [value $key $n]] 0] eq "ok"} {
        set ::acked($key) $n
        set ::maybe($key) {}
        incr ::out(writes)
    } else {
        lappend ::maybe($key) $n
    }
}
proc check {key} {
    set answer [try get $::prefix$key]
    if {$answer eq ""} {return 0}
    if {[lindex $answer 0] eq "nil"} {
        if {[info exists ::acked($key)]} {incr ::out(lost); puts stderr "lost: $key"}
        return 1
    }
    set may $::maybe($key)
    if {[info exists ::acked($key)]} {lappend may $::acked($key)}
    foreach n $may {if {[lindex $answer 1] eq [value $key $n]} {return 1}}
    incr ::out(wrong)
    puts stderr "wrong: $key, one of $may, is [string range [lindex $answer 1] 0 40]"
    return 1
}

for {set i 0} {$i < $keys} {incr i} {set maybe($i) {}}
for {set n 1} {!$stop} {incr n} {
    set key [expr {int(rand() * $keys)}]
    write $key $n
    check [expr {int(rand() * $keys)}]
    update
}
for {set i 0} {$i < $keys} {incr i} {while {![check $i]} {after 5}}
puts [array get out]
