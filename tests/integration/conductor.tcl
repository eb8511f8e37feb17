# For tests of conductor.so with event streams, behind harness.tcl and several.tcl.

# --- stand-in engines ---

proc publisher {name {ports {0 0}}} {
    set ::pub($name) [open [list | /usr/bin/python3 \
        [file join [file dirname [info script]] kv_publisher.py] {*}$ports] r+]
    fconfigure $::pub($name) -buffering line
    set ::ports($name) [gets $::pub($name)]
}
proc say {name args} {
    puts $::pub($name) $args
    assert_equal ok [gets $::pub($name)]
}
proc publisher_kill {name} {
    exec kill -KILL [pid $::pub($name)]
    catch {close $::pub($name)}
    unset ::pub($name)
}
proc events {name {replay 1}} {
    lassign $::ports($name) pub router
    set words [list EVENTS tcp://127.0.0.1:$pub]
    if {$replay} {lappend words REPLAY tcp://127.0.0.1:$router}
    return $words
}

# --- what the server knows ---

# The first n tokens of a chain.
proc tokens {chain n} {
    set ids {}
    for {set i 0} {$i < $n} {incr i} {lappend ids [expr {$chain * 100000 + $i}]}
    return [binary format i* $ids]
}
# {device host disk} of that chain's first 160 tokens at the engine.
proc found {server id chain args} {
    foreach m [ask $server conductor.match MODEL m {*}$args TOKENS [tokens $chain 160]] {
        if {[dict get $m id] eq $id} {return [lmap t {device host disk} {dict get $m $t}]}
    }
    return {0 0 0}
}
proc finds {server id chain what args} {
    set ::finding [list $server $id $chain {*}$args]
    set ::expected $what
    wait_for "$id to have $what of chain $chain" {[found {*}$::finding] eq $::expected}
}
proc stream {server id field {rank 0}} {
    foreach r [dict get [ask $server conductor.info $id] ranks] {
        if {[dict get $r rank] == $rank} {return [dict get $r events $field]}
    }
}
proc stream_is {server id field what} {
    set ::awaiting [list $server $id $field]
    set ::expected $what
    wait_for "the stream of $id to have $field $what" {[stream {*}$::awaiting] eq $::expected}
}
