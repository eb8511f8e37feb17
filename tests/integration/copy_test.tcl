# Values made of other keys' values, and bits of them: COPY RENAME RENAMENX SETBIT GETBIT BITFIELD LCS, wherever the bytes lie.
source [file join [file dirname [info script]] harness.tcl]

proc bits {value} {
    set text {}
    for {set i 0} {$i < 8 * [string length $value]} {incr i} {append text [r getbit bits $i]}
    return $text
}

# The same of a server with a pool, and of one whose pool is on another machine.
proc all_of_it {sizes} {
    foreach size $sizes {
        set value [string range [string repeat "some bytes \0\xff$size" [expr {$size / 10 + 1}]] 0 [expr {$size - 1}]]
        r set {from} $value px 100000
        r set {to} other
        assert_equal 0 [r copy from to]
        assert_equal other [r get to]
        assert_equal 1 [r copy from to replace]
        assert {[r get to] eq $value} "(copy of $size)"
        assert_range 90000 [r pttl to] 100000
        assert {[r get from] eq $value}
        assert_equal 0 [r renamenx from to]
        assert_equal 1 [r renamenx from third]
        assert_equal 0 [r exists from]
        r persist third
        r set to short ex 5
        assert_equal OK [r rename third to]
        assert {[r get to] eq $value} "(rename of $size)"
        assert_equal -1 [r ttl to]
        assert_equal 1 [r dbsize]

        assert_equal 0 [r getbit to [expr {8 * $size}]]
        set last [expr {8 * $size - 1}]
        set was [r getbit to $last]
        assert_equal $was [r setbit to $last [expr {!$was}]]
        assert_equal [expr {!$was}] [r getbit to $last]
        assert_equal [expr {!$was}] [r setbit to $last $was]
        assert {[r get to] eq $value} "(bit of $size)"
        r setbit to [expr {$last + 17}] 1
        assert {[r get to] eq "$value\0\0\x80"} "(bit behind $size)"
        r set to $value
        set at [expr {8 * ($size / 2)}]
        binary scan $value "@[expr {$size / 2}]cu" byte
        assert_equal [list $byte [expr {($byte + 7) % 256}]] [r bitfield to get u8 $at incrby u8 $at 7]
        assert_equal [string replace $value [expr {$size / 2}] [expr {$size / 2}] [format %c [expr {($byte + 7) % 256}]]] [r get to]
        # Fields on both sides of the border of the blocks that have a CRC each, and across it.
        if {$size > 1048577} {
            r set to $value
            foreach bit {8388583 8388592 8388600 8388607 8388608} {
                r set field [r getrange to [expr {$bit / 8}] [expr {$bit / 8 + 8}]]
                assert_equal [r bitfield field get u37 [expr {$bit % 8}]] [r bitfield_ro to get u37 $bit] "(at $bit)"
                assert_equal [r bitfield field incrby u37 [expr {$bit % 8}] 99] [r bitfield to incrby u37 $bit 99]
                assert {[r getrange to [expr {$bit / 8}] [expr {$bit / 8 + 8}]] eq [r get field]} "(at $bit)"
            }
        }
        r flushall
    }
}

proc in_a_transaction {} {
    r set a [string repeat ab 50000]
    r set b [string repeat ba 50]
    r multi
    foreach command {{copy a c} {rename c d} {setbit d 0 1} {getbit d 0} {lcs b b len} {lcs none b idx} {renamenx a d} {lcs a b banana}
        {getbit d 800000} {rename d e}} {
        assert_equal QUEUED [r {*}$command]
    }
    set answers [r exec]
    assert_equal {1 OK 0 1 100 {matches {} len 0} 0} [lrange $answers 0 6]
    assert_match "*syntax error*" [lindex $answers 7]
    assert_equal {0 OK} [lrange $answers 8 9]
    assert_equal [string replace [r get a] 0 0 "\xe1"] [r get e]
    r flushall
}

start_server
test {COPY, RENAME and bits of values of every size} {all_of_it {1 64 65 4096 1048577 3000000}}

test {the same in a transaction} {in_a_transaction}

test {what they refuse} {
    r flushall
    r set a 1
    assert_error "ERR no such key" {r rename none a}
    assert_error "ERR no such key" {r renamenx none a}
    assert_error "ERR key must be*" {r rename a [string repeat k 1025]}
    assert_error "ERR key must be*" {r copy a [string repeat k 1025]}
    assert_error "ERR source and destination objects are the same" {r copy a a}
    assert_error "ERR DB index is out of range" {r copy a b db 100000}
    assert_error "ERR value is not an integer*" {r copy a b db none}
    assert_error "ERR syntax error" {r copy a b banana}
    assert_equal 0 [r copy none b]
    assert_equal OK [r rename a a]
    assert_equal 0 [r renamenx a a]
    foreach offset {-1 4294967296 banana 99999999999999999999} {
        assert_error "ERR bit offset*" {r setbit a $offset 1}
        assert_error "ERR bit offset*" {r getbit a $offset}
    }
    foreach bit {2 -1 banana 01} {assert_error "ERR bit is not*" {r setbit a 0 $bit}}
    assert_equal {a 1} [list [r keys *] [r get a]]
}

# What one field is after each of its kinds of overflow, by arithmetic.
proc fitted {sign bits v how} {
    set span [expr {2 ** $bits}]
    set low [expr {$sign eq "i" ? -$span / 2 : 0}]
    set high [expr {$low + $span - 1}]
    if {$v >= $low && $v <= $high} {return $v}
    switch $how {
        wrap {return [expr {(($v - $low) % $span + $span) % $span + $low}]}
        sat {return [expr {$v < $low ? $low : $high}]}
        fail {return (nil)}
    }
}

test {BITFIELD: integers of every width, at every offset, and what does not fit} {
    expr {srand(3)}
    for {set round 0} {$round < 200} {incr round} {
        set sign [lindex {u i} [expr {int(rand() * 2)}]]
        set bits [expr {1 + int(rand() * ($sign eq "i" ? 64 : 63))}]
        set at [expr {int(rand() * 400)}]
        set type $sign$bits
        set low [expr {$sign eq "i" ? -(2 ** ($bits - 1)) : 0}]
        set old [expr {$low + int(rand() * 2 ** min($bits, 50))}]
        set by [expr {int((rand() - 0.5) * 2 ** min($bits + 1, 62))}]
        r set bits [string repeat "\xa5" [expr {int(rand() * 70)}]]
        set before [r getbit bits [expr {$at + $bits}]]
        r bitfield bits set $type $at $old
        assert_equal $old [r bitfield_ro bits get $type $at]
        foreach how {wrap sat fail} {
            set fits [fitted $sign $bits [expr {$old + $by}] $how]
            assert_equal $fits [r bitfield bits overflow $how incrby $type $at $by] "($how $type $old + $by)"
            set now [expr {$fits eq "(nil)" ? $old : $fits}]
            assert_equal [list $now $now] [r bitfield bits get $type $at set $type $at $old]
        }
        assert_equal $before [r getbit bits [expr {$at + $bits}]] "(the bit behind)"
    }
    assert_equal {} [r bitfield none]
    assert_equal {0 0} [r bitfield none get u8 0 get i64 #3]
    assert_equal 0 [r exists none]
    assert_equal {0 65 66} [r bitfield none set u8 #1 65 get u8 8 incrby u8 #1 1]
    assert_equal "\0B" [r get none]
    assert_error "ERR Invalid bitfield type*" {r bitfield none get u64 0}
    assert_error "ERR bit offset*" {r bitfield none get u8 -1}
    assert_error "ERR Invalid OVERFLOW*" {r bitfield none overflow up incrby u8 0 1}
    assert_error "ERR syntax error" {r bitfield none get u8}
    assert_error "ERR BITFIELD_RO only*" {r bitfield_ro none set u8 0 1}
    assert_error "ERR the fields of one command*" {r bitfield none get u8 0 get u8 #64}
}

test {SETBIT keeps the time to live and grows with zeroes} {
    r set bits "\0" px 100000
    assert_equal 0 [r setbit bits 9 1]
    assert_equal 0000000001000000 [bits [r get bits]]
    assert_range 90000 [r pttl bits] 100000
    assert_equal 1 [r setbit bits 9 1]
    assert_equal 1 [r setbit bits 9 0]
    assert_equal 0 [r setbit new 1000 0]
    assert_equal [string repeat "\0" 126] [r get new]
}

test {a rename is a write of both keys, for those who watch} {
    foreach {watched} {from to} {
        r del to
        r set from 1
        set other [client]
        r watch $watched
        resp::call $other rename from to
        r multi
        r ping
        assert_equal (nil) [r exec]
        drop $other
    }
}

# The length of the longest common subsequence, by the book.
proc common {a b} {
    set above [lrepeat [expr {[string length $b] + 1}] 0]
    foreach x [split $a {}] {
        set row 0
        set j 0
        foreach y [split $b {}] {
            lappend row [expr {$x eq $y ? [lindex $above $j] + 1 : max([lindex $above $j+1], [lindex $row end])}]
            incr j
        }
        set above $row
    }
    return [lindex $above end]
}
proc inside {part whole} {
    foreach letter [split $part {}] {
        set at [string first $letter $whole]
        if {$at < 0} {return 0}
        set whole [string range $whole $at+1 end]
    }
    return 1
}

test {LCS against the same by the book} {
    expr {srand(7)}
    for {set i 0} {$i < 30} {incr i} {
        foreach name {a b} {
            set $name {}
            set n [expr {int(rand() * 90)}]
            for {set j 0} {$j < $n} {incr j} {append $name [string index acgt [expr {int(rand() * 4)}]]}
            r set $name [set $name]
        }
        set len [common $a $b]
        set text [r lcs a b]
        assert_equal $len [string length $text]
        assert {[inside $text $a] && [inside $text $b]} "($text of $a and $b)"
        assert_equal $len [r lcs a b len]
        set ranges [r lcs a b idx withmatchlen]
        assert_equal $len [dict get $ranges len]
        set sum 0
        foreach match [dict get $ranges matches] {
            lassign $match in_a in_b n
            assert_equal $n [expr {[lindex $in_a 1] - [lindex $in_a 0] + 1}]
            assert_equal [string range $a {*}$in_a] [string range $b {*}$in_b]
            incr sum $n
        }
        assert_equal $len $sum
        foreach match [dict get [r lcs a b idx minmatchlen 3 withmatchlen] matches] {
            assert {[lindex $match 2] >= 3}
        }
    }
    assert_equal {} [r lcs a none]
    assert_equal 0 [r lcs none nowhere len]
    assert_error "ERR If you want both*" {r lcs a b len idx}
    assert_error "ERR syntax error" {r lcs a b banana}
}

test {LCS is bounded, and holds nobody up} {
    r set a [string repeat ab 1000]
    r set b [string repeat ba 1000]
    assert_equal 1999 [r lcs a b len]
    assert_equal [list [list [list 1 1999] [list 0 1998]]] [dict get [r lcs a b idx] matches]
    r set a [string repeat a 4000000]
    r set b [string repeat a 4000000]
    assert_error "ERR Insufficient memory*" {r lcs a b}
    r set a [string repeat a 4194305]
    assert_error "ERR String too long*" {r lcs a b}
}
stop_server

start_server --pool-size 0 --node-heartbeat 100
start_node n1 --host-name elsewhere --segment 64mb
test {the same of values on another machine} {
    all_of_it {64 65 1048577 3000000}
    in_a_transaction
    r set a [string repeat "on a node " 300]
    r set b [string repeat "node on " 300]
    assert_equal [r lcs a b len] [string length [r lcs a b]]
    assert_equal 0 [info_field inband_buffer_used]
}

finish
