# For tests with several masters, behind several.tcl: maps of slots, keys by slot.

# A map: each row is {name master-epoch servers slots}, where servers are names of up, and each
# move {from to slots}.
proc slot_map {epoch rows {moves {}}} {
    set lines [list "tarn-slots 1" "epoch $epoch"]
    foreach row $rows {
        lassign $row name master_epoch servers slots
        set at [join [lmap s $servers {string cat 127.0.0.1: [port $s]}] ,]
        lappend lines "shard $name $master_epoch [expr {$at eq {} ? {-} : $at}] $slots"
    }
    foreach move $moves {lappend lines "moving [join $move]"}
    return "[join $lines \n]\n"
}
proc three_rows {} {
    return {{a 1 a 0-5460} {b 1 b 5461-10922} {c 1 c 10923-16383}}
}
# Gives it to each, as the shard of its own name.
proc spread_map {map args} {
    foreach name $args {assert_equal OK [ask $name cluster setmap $name $map]}
}
# Some key of a slot.
proc slot_key {slot} {
    for {set i 0} {[crc16_slot $i] != $slot} {incr i} {}
    return $i
}
# By the definition, bit by bit.
for {set i 0} {$i < 256} {incr i} {
    set crc [expr {$i << 8}]
    for {set bit 0} {$bit < 8} {incr bit} {
        set crc [expr {$crc & 0x8000 ? ($crc << 1 ^ 0x1021) & 0xffff : $crc << 1}]
    }
    lappend ::crc16_table $crc
}
proc crc16_slot {bytes} {
    set crc 0
    binary scan [encoding convertto utf-8 $bytes] cu* values
    foreach v $values {
        set crc [expr {($crc << 8 & 0xffff) ^ [lindex $::crc16_table [expr {$crc >> 8 ^ $v}]]}]
    }
    return [expr {$crc & 16383}]
}
proc at {name} {return 127.0.0.1:[port $name]}
# The line of a shard in the map that a server has: master epoch, servers, slots.
proc row {name shard} {
    regexp -line "^shard $shard (.*)\$" [ask $name cluster map] - words
    return $words
}
