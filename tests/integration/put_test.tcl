# Puts in two steps: PUTSTART, PUTEND, PUTREVOKE and their M forms; and what GETREPLICAS says.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 16mb

# A whole put, without the writing of bytes.
proc put {key size args} {
    set put [r putstart $key $size {*}$args]
    if {$put eq "(nil)"} {return (nil)}
    set token [lindex $put 0]
    if {$size <= 64} {
        r putend $key $token -1 VALUE [string repeat v $size]
    } else {
        r putend $key $token -1
    }
    return $token
}

test {PUTSTART answers a token and one replica with extents and grants} {
    lassign [r putstart k 100000] token replicas
    assert {[string is entier -strict $token] && $token > 0}
    assert_equal 1 [llength $replicas]
    lassign [lindex $replicas 0] tier extents
    assert_equal memory $tier
    assert_equal 1 [llength $extents]
    lassign [lindex $extents 0] segment epoch offset length grant
    assert_equal 0 $segment
    assert {$epoch >= 1}
    assert_equal 0 [expr {$offset % 4096}]
    assert_equal 100000 $length
    assert_equal 40 [string length $grant]
    assert_equal OK [r putend k $token -1]
    lassign [r putstart k2 1000] token replicas
    assert_equal 0 [expr {[lindex $replicas 0 1 0 2] % 64}]
    assert_equal OK [r putrevoke k2 $token]
}

test {guarantee 3: nobody sees an object before PUTEND} {
    r del k
    set token [lindex [r putstart k 100000] 0]
    assert_equal (nil) [r getreplicas k]
    assert_equal 0 [r exists k]
    assert_equal 0 [r prefixlen 1 k]
    assert_equal {0} [r mexists 1 k]
    assert_equal (nil) [r get k]
    assert_equal {} [r keys k]
    assert_equal OK [r putend k $token 12345]
    lassign [r getreplicas k] version size lease crc replicas value
    assert_equal $token $version
    assert_equal {100000 0 12345} [list $size $lease $crc]
    assert_equal "" [lindex $replicas 0 1 0 4]
    assert_equal (nil) $value
    assert_equal 1 [r exists k]
}

test {guarantee 3: REPLACE keeps the old value readable until PUTEND} {
    r set k old
    assert_equal (nil) [r putstart k 100000]
    set token [lindex [r putstart k 100000 REPLACE] 0]
    assert_equal old [r get k]
    assert_equal OK [r putend k $token -1]
    assert_equal 100000 [r strlen k]
    assert_equal $token [lindex [r getreplicas k] 0]
    set token [lindex [r putstart k 200000 replace] 0]
    r putrevoke k $token
    assert_equal 100000 [r strlen k]
}

test {a key that is there: nil, nothing to do} {
    r del k
    put k 1000
    assert_equal (nil) [r putstart k 1000]
    assert_equal (nil) [r putstart k 5]
    assert_equal {(nil)} [r mputstart 1 k 1000]
}

test {PUTBUSY while another put of the key is under way; SET wins} {
    r del k
    set token [lindex [r putstart k 1000] 0]
    assert_error "PUTBUSY *" {r putstart k 1000}
    assert_error "PUTBUSY *" {[client] putstart k 1000 REPLACE}
    assert_match {{(error) PUTBUSY *}} [r mputstart 1 k 1000]
    assert_equal OK [r set k value]
    assert_error "BADTOKEN *" {r putend k $token -1}
    assert_equal value [r get k]
    r del k
    set token [lindex [r putstart k 1000] 0]
    assert_equal OK [r set k [string repeat v 100000]]
    assert_error "BADTOKEN *" {r putend k $token -1}
    assert_equal 100000 [r strlen k]
}

test {PUTEND: wrong token, twice, by another connection, of another key} {
    r del k
    set token [lindex [r putstart k 1000] 0]
    assert_error "BADTOKEN *" {r putend k [expr {$token + 1}] -1}
    assert_error "BADTOKEN *" {r putend other $token -1}
    assert_equal 0 [r exists k]
    assert_equal OK [[client] putend k $token 7]
    assert_equal OK [r putend k $token 7]
    assert_equal 1 [r exists k]
    r set k new
    assert_error "BADTOKEN *" {r putend k $token 7}
    assert_equal new [r get k]
    r del k
    assert_error "BADTOKEN *" {r putend k $token 7}
}

test {PUTREVOKE: once, and then the key is free} {
    r del k
    set token [lindex [r putstart k 1000] 0]
    assert_error "BADTOKEN *" {r putrevoke k [expr {$token + 1}]}
    assert_equal OK [r putrevoke k $token]
    assert_error "BADTOKEN *" {r putrevoke k $token}
    assert_error "BADTOKEN *" {r putend k $token -1}
    assert_equal 0 [r exists k]
    put k 1000
    assert_equal 1 [r exists k]
}

test {PUTEND with FAILED: no replica left is no object} {
    r del k
    set token [lindex [r putstart k 1000] 0]
    assert_error "STALE *" {r putend k $token -1 FAILED 0}
    assert_equal 0 [r exists k]
    r config set put-timeout 100
    assert_equal 2 [llength [r putstart k 1000]]
    r config set put-timeout 30000
    wait_for "the key to be free" {[catch {put k 1000}] == 0}
}

test {MPUTEND with FAILEDS: a mask for each key} {
    r del a b
    set started [r mputstart 2 a 1000 b 1000]
    set tokens [list [lindex $started 0 0] [lindex $started 1 0]]
    assert_error "ERR FAILEDS needs 2 values" {r mputend 2 a [lindex $tokens 0] -1 b\
        [lindex $tokens 1] -1 FAILEDS 0}
    set answers [r mputend 2 a [lindex $tokens 0] -1 b [lindex $tokens 1] -1 FAILEDS 256 x]
    assert_match "*FAILEDS must be*" [lindex $answers 0]
    assert_match "*FAILEDS must be*" [lindex $answers 1]
    set answers [r mputend 2 a [lindex $tokens 0] -1 b [lindex $tokens 1] -1 FAILEDS 0 1]
    assert_equal OK [lindex $answers 0]
    assert_match "*STALE *" [lindex $answers 1]
    assert_equal {1 0} [r mexists 2 a b]
    r del a
}

test {PUTSTART AVOID: other segments first, unknown ones do not matter} {
    r del k
    set token [lindex [r putstart k 1000 AVOID local AVOID nowhere] 0]
    assert_equal OK [r putend k $token -1]
    r del k
    assert_error "ERR AVOID needs a value" {r putstart k 1000 AVOID}
    assert_error "ERR AVOID may be given at most *" \
        "r putstart k 1000 [string repeat {AVOID x } 17]"
}

test {PUTSTART INSTEAD: takes the key from a put of its own, and no other} {
    r del k
    set first [lindex [r putstart k 1000] 0]
    assert_error "PUTBUSY *" {r putstart k 1000}
    assert_error "PUTBUSY *" {r putstart k 1000 INSTEAD [expr {$first + 1}]}
    set second [lindex [r putstart k 1000 INSTEAD $first] 0]
    assert_error "BADTOKEN *" {r putend k $first -1}
    assert_equal OK [r putend k $second -1]
    assert_equal 1 [r exists k]
    assert_error "ERR *INSTEAD*" {r mputstart 1 other 1000 INSTEAD 1}
    r del k
}

test {guarantee 3: a writer that dies holds its key for put-timeout only} {
    r del k
    set c [client]
    r config set put-timeout 3000
    set token [lindex [$c putstart k 1000] 0]
    r config set put-timeout 30000
    drop $c
    assert_error "PUTBUSY *" {r putstart k 1000}
    wait_for "put-timeout" {[catch {r putstart k 1000} ::put] == 0}
    assert {$::put ne "(nil)"}
    assert_error "BADTOKEN *" {r putend k $token -1}
    assert_equal OK [r putend k [lindex $::put 0] -1]
}

test {PUTEND after the put's time: BADTOKEN, and no object} {
    r del late
    set before [info_field put_timeouts]
    r config set put-timeout 100
    set token [lindex [r putstart late 1000] 0]
    r config set put-timeout 30000
    wait_for "put-timeout" {[info_field put_timeouts] > $::before}
    assert_error "BADTOKEN *" {r putend late $token -1}
    assert_equal 0 [r exists late]
}

test {values up to 64 bytes live in the books} {
    foreach size {0 1 64} {
        r del s
        lassign [r putstart s $size] token replicas
        assert_equal {} $replicas
        set value [string repeat i $size]
        assert_equal OK [r putend s $token [crc32c $value] VALUE $value]
        lassign [r getreplicas s] version got_size lease crc replicas got
        assert_equal [list $size [crc32c $value] {} $value] [list $got_size $crc $replicas $got]
        assert_equal $value [r get s]
    }
    r del s
    set token [lindex [r putstart s 3] 0]
    assert_error "ERR *VALUE*" {r putend s $token -1}
    assert_error "ERR *VALUE*" {r putend s $token -1 VALUE abcd}
    assert_error "ERR VALUE does not match its crc" {r putend s $token 1 VALUE abc}
    assert_equal OK [r putend s $token -1 VALUE abc]
    assert_equal -1 [lindex [r getreplicas s] 3]
    set token [lindex [r putstart s 100 REPLACE] 0]
    assert_error "ERR *VALUE*" {r putend s $token -1 VALUE [string repeat x 100]}
    r putrevoke s $token
}

test {CRCS: one per MiB of what is larger than one} {
    r del big
    set token [lindex [r putstart big 2500000] 0]
    assert_error "ERR CRCS *" {r putend big $token 5 CRCS abc}
    assert_error "ERR *CRCS*" {r putend big $token 5 CRCS [binary format i2 {1 2}]}
    assert_equal OK [r putend big $token 5 CRCS [binary format i3 {1 2 -1}]]
    assert_equal [binary format i3 {1 2 -1}] [lindex [r getreplicas big CRCS] 6]
    assert_equal (nil) [lindex [r getreplicas big] 6]
    assert_equal [binary format i3 {1 2 -1}] [lindex [r mgetreplicas 1 big CRCS] 0 6]
    set value [string repeat 0123456789 150000]
    r set big $value
    assert_equal [crc32c $value] [lindex [r getreplicas big] 3]
    assert_equal [binary format ii [crc32c [string range $value 0 1048575]] \
        [crc32c [string range $value 1048576 end]]] \
        [lindex [r getreplicas big CRCS] 6]
}

test {options in any order, and what is wrong with them} {
    r del k
    set put [r putstart k 1000 TTL 100000 GROUP g PIN SOFT 5000 REPLICAS 1 REPLACE PREFER \
        [dict get [lindex [r segment list] 0] name]]
    assert_equal OK [r putend k [lindex $put 0] -1]
    assert_range 90 [r ttl k] 100
    r del k
    assert_error "ERR unknown option 'nonsense'" {r putstart k 1000 nonsense}
    assert_error "ERR TTL needs a value" {r putstart k 1000 TTL}
    assert_error "ERR TTL must be *" {r putstart k 1000 TTL 0}
    assert_error "ERR TTL must be *" {r putstart k 1000 TTL x}
    assert_error "ERR REPLICAS must be *" {r putstart k 1000 REPLICAS 0}
    assert_error "ERR REPLICAS must be *" {r putstart k 1000 REPLICAS 9}
    assert_error "ERR PIN must be SOFT ms or HARD" {r putstart k 1000 PIN}
    assert_error "ERR PIN must be SOFT ms or HARD" {r putstart k 1000 PIN NONE}
    assert_error "ERR SOFT *" {r putstart k 1000 PIN SOFT}
    assert_error "ERR GROUP *" {r putstart k 1000 GROUP {}}
    assert_error "NOSEGMENT *" {r putstart k 1000 PREFER nosuch}
    foreach size {-1 x 1.5 {} 1099511627777 9223372036854775808} {
        assert_error "ERR size must be *" {r putstart k $size}
    }
    assert_error "ERR token must be *" {r putend k x -1}
    assert_error "ERR crc must be *" {r putend k 1 4294967296}
    assert_error "ERR crc must be *" {r putend k 1 -2}
    assert_error "ERR FAILED must be *" {r putend k 1 -1 FAILED 8}
    assert_error "ERR unknown option 'x'" {r putend k 1 -1 x}
    assert_equal 0 [r exists k]
}

test {guarantee 2: a put of more than the pool holds is refused at once} {
    put cold 1000
    assert_error "NOSPACE *" {r putstart k 17000000}
    assert_error "NOSPACE *" {r putstart k 1099511627776}
    assert_equal 1 [r exists cold]
    assert_error "OOM *" {r set k [string repeat x 17000000]}
    assert_equal 1 [r exists cold]
    assert_equal 0 [r exists k]
}

test {MPUTSTART MPUTEND MGETREPLICAS MPUTREVOKE} {
    r flushall
    set puts [r mputstart 3 a 1000 b 10 c 100000 TTL 100000]
    assert_equal 3 [llength $puts]
    lassign $puts a b c
    assert_equal 1000 [lindex $a 1 0 1 0 3]
    assert_equal {} [lindex $b 1]
    assert_equal {OK OK OK} [r mputend 3 a [lindex $a 0] 1 b [lindex $b 0] [crc32c 0123456789] c \
        [lindex $c 0] 3 \
        VALUES {} 0123456789 {}]
    assert_equal 0123456789 [r get b]
    assert_range 90 [r ttl c] 100
    lassign [r mgetreplicas 4 a nokey b c LEASE 1000] a nokey b c
    assert_equal {1000 1000 1} [lrange $a 1 3]
    assert_equal 40 [string length [lindex $a 4 0 1 0 4]]
    assert_equal (nil) $nokey
    assert_equal 0123456789 [lindex $b 5]
    assert_equal 100000 [lindex $c 1]
    lassign [r mputstart 3 d 100 a 100 d 100] d a d2
    assert_equal (nil) $a
    assert_match "(error) PUTBUSY *" $d2
    assert_match {{(error) BADTOKEN *} OK} [r mputrevoke 2 a 1 d [lindex $d 0]]
    assert_match {{(error) BADTOKEN *}} [r mputend 1 d [lindex $d 0] -1]
}

test {MPUTSTART BATCH: MPUTEND ends all of it by one number} {
    r flushall
    assert_match "*put_batches:1*" [r info server]
    put there 1000
    lassign [r mputstart 4 a 1000 there 1000 b 5000 c 0 BATCH] a there b c batch
    assert_equal (nil) $there
    assert_equal OK [r mputend 0 BATCH $batch BATCHCRCS [binary format iii 7 8 9]]
    assert_equal {1000 5000 0} [lmap k {a b c} {lindex [r getreplicas $k] 1}]
    assert_equal {7 8 9} [lmap k {a b c} {lindex [r getreplicas $k] 3}]
    assert_error "BADTOKEN *BATCH is none of this connection*" {r mputend 0 BATCH $batch}
    set puts [r mputstart 1 a 2000 REPLACE PACKED BATCH]
    assert_equal {2 88} [list [llength $puts] [string length [lindex $puts 0]]]
    assert_equal OK [r mputend 0 BATCH [lindex $puts 1]]
    assert_equal {2000 -1} [list [lindex [r getreplicas a] 1] [lindex [r getreplicas a] 3]]
}

test {MPUTEND BATCH: an answer for each put, when some do not end} {
    r flushall
    lassign [r mputstart 4 a 1000 b 1000 small 10 d 1000 BATCH] a b small d batch
    assert_equal OK [r putrevoke b [lindex $b 0]]
    assert_equal OK [r putend d [lindex $d 0] 5]
    set answers [r mputend 0 BATCH $batch]
    assert_equal OK [lindex $answers 0]
    assert_match "(error) BADTOKEN *" [lindex $answers 1]
    assert_match "(error) ERR VALUE, CRCS or FAILED *" [lindex $answers 2]
    assert_match "(error) BADTOKEN *" [lindex $answers 3]
    assert_equal {1 0 0 1} [r mexists 4 a b small d]
    assert_equal OK [r putend small [lindex $small 0] -1 VALUE 0123456789]
    assert_error "BADTOKEN *" {r mputend 0 BATCH $batch}
}

test {MPUTEND BATCH: only of this connection, and nothing beside it} {
    r flushall
    set batch [lindex [r mputstart 2 a 1000 b 1000 BATCH] 2]
    assert_error "BADTOKEN *" {[client] mputend 0 BATCH $batch}
    assert_error "BADTOKEN *" {r mputend 0 BATCH [expr {$batch + 1}]}
    foreach words {{1 a 1 -1 BATCH 1} {0 BATCH 1 VALUES}} {
        assert_error "ERR BATCH stands alone: MPUTEND 0 BATCH id*" {r mputend {*}$words}
    }
    assert_error "ERR unknown option *" {r mputend 0 BATCH 1 CRCS x y}
    foreach words {{0} {0 BATCHCRCS abcd} {1 a 1 -1 BATCHCRCS abcd}} {
        assert_error "ERR n must be a number from 1 to *" {r mputend {*}$words}
    }
    foreach crcs {{} abcd abcdefg abcdefghi} {
        assert_error "ERR BATCHCRCS must be 4 bytes for each of the 2 puts of the batch" \
            {r mputend 0 BATCH $batch BATCHCRCS $crcs}
    }
    assert_error "ERR BATCH must be a number *" {r mputend 0 BATCH 0}
    assert_equal OK [r mputend 0 BATCH $batch BATCHCRCS abcdefgh]
    assert_equal {1 1} [r mexists 2 a b]
}

test {guarantee 6: MPUTEND BATCH ends only what its user may write to} {
    r flushall
    r acl setuser mine on >pw +@all ~mine:*
    set c [client]
    set batch [lindex [$c mputstart 2 mine:a 1000 other 1000 BATCH] 2]
    assert_equal OK [$c auth mine pw]
    assert_error "NOPERM *" {$c mputend 1 other 1 -1}
    set answers [$c mputend 0 BATCH $batch]
    assert_equal OK [lindex $answers 0]
    assert_match "(error) NOPERM * keys *" [lindex $answers 1]
    assert_equal {1 0} [r mexists 2 mine:a other]
    assert_equal {key *} [lmap field {reason object} {dict get [lindex [r acl log] 0] $field}]
    set batch [lindex [$c mgetreplicas 1 mine:a LEASE 9000 BATCH] 1]
    assert_equal 1 [$c release 0 BATCH $batch]
    drop $c
    r acl deluser mine
}

test {MPUTEND CRCS, one list per key} {
    r flushall
    lassign [r mputstart 2 a 100 big 1500000] a big
    assert_equal {OK OK} [r mputend 2 a [lindex $a 0] -1 big [lindex $big 0] -1 CRCS {} \
        [binary format ii 7 8]]
    assert_equal [binary format ii 7 8] [lindex [r getreplicas big CRCS] 6]
}

test {errors of single keys stand in their place} {
    set puts [r mputstart 4 w 10 x -5 y 99999999999 z 10]
    assert_equal 2 [llength [lindex $puts 0]]
    assert_match "(error) ERR size *" [lindex $puts 1]
    assert_match "(error) NOSPACE *" [lindex $puts 2]
    assert_equal 2 [llength [lindex $puts 3]]
    assert_match {{(error) ERR token *} {(error) ERR crc *}} [r mputend 2 w x -1 z 1 x]
}

test {counts that do not match} {
    foreach command {{mputstart 2 a 1} {mputend 2 a 1 -1} {mputrevoke 2 a 1} {mgetreplicas 2 a}\
        {prefixlen 2 a}
        {mexists 2 a} {release 2 a 1}} {
        assert_error "ERR n is 2, but fewer than * arguments follow" {r {*}$command}
    }
    foreach n {0 -1 x 9223372036854775807 1000001} {
        assert_error "ERR n must be *" {r mgetreplicas $n a}
        assert_error "ERR n must be *" {r mputstart $n a 1}
    }
    assert_error "ERR unknown option *" {r mexists 1 a b}
    assert_error "ERR unknown option *" {r mgetreplicas 1 a b}
}

test {WAIT: the reader is answered when the key is complete} {
    r flushall
    set c [client]
    resp::send $c getreplicas later WAIT 60000
    set put [r putstart later 1000]
    wait_for "the client to be blocked" {[info_field blocked_clients] == 1}
    assert {![resp::readable $c]}
    r putend later [lindex $put 0] -1
    assert_equal 1000 [lindex [resp::recv $c] 1]
    assert_equal 1000 [lindex [$c getreplicas later WAIT 60000] 1]
    resp::send $c getreplicas inband WAIT 60000
    wait_for "the client to be blocked" {[info_field blocked_clients] == 1}
    r set inband value
    assert_equal value [lindex [resp::recv $c] 5]
    assert_equal (nil) [$c getreplicas never WAIT 20]
    assert_equal (nil) [$c getreplicas never WAIT 0]
    drop $c
}

test {WAIT of a batch and of a prefix} {
    r flushall
    set c [client]
    set p [client]
    resp::send $c mgetreplicas 3 w1 w2 w3 WAIT 60000 LEASE 1000
    resp::send $p prefixlen 3 w1 w2 w3 WAIT 60000
    wait_for "both to be blocked" {[info_field blocked_clients] == 2}
    foreach key {w3 w1 w2} {
        assert {![resp::readable $c] && ![resp::readable $p]}
        r set $key $key
    }
    assert_equal {w1 w2 w3} [lmap x [resp::recv $c] {lindex $x 5}]
    assert_equal 3 [resp::recv $p]
    r del w2
    assert_equal 1 [$p prefixlen 3 w1 w2 w3 WAIT 20]
    lassign [$c mgetreplicas 2 w1 w2 WAIT 20] w1 w2
    assert_equal {w1 (nil)} [list [lindex $w1 5] $w2]
    drop $c
    drop $p
}

test {a client that waits may go away} {
    set c [client]
    resp::send $c getreplicas never WAIT 600000
    wait_for "the client to be blocked" {[info_field blocked_clients] == 1}
    drop $c
    wait_for "the client to be gone" {[info_field blocked_clients] == 0}
    r set never now
    assert_equal now [r get never]
}

test {EXISTS MEXISTS PREFIXLEN} {
    r flushall
    r mset p1 a p2 b p4 d
    assert_equal 2 [r prefixlen 4 p1 p2 p3 p4]
    assert_equal 2 [r prefixlen 2 p1 p2 LEASE 1000]
    assert_equal 0 [r prefixlen 2 p3 p4]
    assert_equal {1 1 0 1} [r mexists 4 p1 p2 p3 p4]
    assert_equal 4 [r exists p1 p2 p3 p4 p1]
    foreach bad {{LEASE 0} {LEASE -1} {LEASE x} LEASE {WAIT -1} WAIT CRCS x} {
        assert_error "ERR *" {r prefixlen 1 p1 {*}$bad}
    }
}

test {what PUTSTART put, GET reads; what SET wrote, GETREPLICAS finds} {
    r set k [string repeat x 5000]
    assert_equal {5000 0} [lrange [r getreplicas k] 1 2]
    assert_equal memory [lindex [r getreplicas k] 4 0 0]
    put viaput 5000
    r set viaput [string repeat y 100]
    assert_equal [string repeat y 100] [r get viaput]
}

test {an object in several extents is one value in-band} {
    # 16 MiB in objects of 2 MiB; every other one goes, pinned ones stay: room for 3 MiB is in
    # pieces only
    r flushall
    r config set hard-pin-ratio 1 hard-pin-user-ratio 1
    set keys {}
    for {set i 0} {![catch {r putstart f$i 2097152 PIN HARD} put]} {incr i} {
        r putend f$i [lindex $put 0] -1
        lappend keys f$i
    }
    assert {[llength $keys] >= 6}
    r del f1 f3
    set value {}
    for {set i 0} {$i < 300000} {incr i} {append value [format %010d $i]}
    assert_equal OK [r set spread $value]
    assert {[llength [lindex [r getreplicas spread] 4 0 1]] >= 2}
    assert {[r get spread] eq $value}
    assert_equal [string range $value 2097000 2097300] [r getrange spread 2097000 2097300]
    assert_equal 3000003 [r append spread abc]
    assert_equal ${value}abc [r get spread]
    r flushall
}

finish
