# The longest prefix of models with several KV groups: PREFIXLEN and MGETREPLICAS with KVGROUPS.
# The rules themselves, against brute force: tests/unit/base/kv_groups_test.c.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 32mb --eviction-high-watermark 1 --eviction-policy lru

proc hashes {n} {
    set hashes {}
    for {set i 0} {$i < $n} {incr i} {lappend hashes [format %04x $i]}
    return $hashes
}

# {name kind block unit window drop}, of blocks of 16 tokens
set full {f@ FULL 16 16 0 0}
set window {w@ WINDOW 16 16 33 0}
set state {s@ STATE 16 16 0 0}

# The words of a request behind its name.
proc request {n groups args} {
    return [list $n {*}[hashes $n] UNIT 16 ALIGN 16 KVGROUPS [llength $groups] \
        {*}[concat {*}$groups] {*}$args]
}
proc look {n groups args} {r prefixlen {*}[request $n $groups {*}$args]}

# Parts of a name by the number of the hash at their end.
proc store {name args} {foreach i $args {r set $name[format %04x $i] v}}
proc keys_of {args} {
    set keys {}
    foreach {name numbers} $args {
        foreach i $numbers {lappend keys $name[format %04x $i]}
    }
    return [lsort $keys]
}
proc upto {n} {
    set numbers {}
    for {set i 0} {$i < $n} {incr i} {lappend numbers $i}
    return $numbers
}

proc put {key size} {
    set put [r putstart $key $size]
    assert_equal OK [r putend $key [lindex $put 0] -1]
}

test {each kind has what it needs} {
    assert_equal {0 {{0 0 0}}} [look 4 [list $full]]
    store f@ 0 1 3
    assert_equal {32 {{0 2 0}}} [look 4 [list $full]]
    store w@ 1 2
    assert_equal {48 {{1 2 0}}} [look 4 [list $window]]
    assert_equal {0 {{0 0 0}}} [look 2 [list $window]]
    store w@ 0
    assert_equal {16 {{0 1 0}}} [look 1 [list $window]]
    store s@ 1
    assert_equal {32 {{1 1 0}}} [look 4 [list $state]]
    assert_equal {0 {{0 0 0}}} [look 1 [list $state]]
}

test {a boundary is served if every group is, in the order of the request} {
    assert_equal {32 {{0 2 0} {0 2 0} {1 1 0}}} [look 4 [list $window $full $state]]
    assert_equal {32 {{1 1 0} {0 2 0} {0 2 0}}} [look 4 [list $state $window $full]]
    r del s@0001
    assert_equal {0 {{0 0 0} {0 0 0} {0 0 0}}} [look 4 [list $window $full $state]]
}

test {ranks are groups of their own} {
    r flushall
    set ranks {}
    foreach rank {0 1 2 3} {
        store m@$rank@f@ {*}[upto 8]
        store m@$rank@w@ 5 6
        lappend ranks "m@$rank@f@ FULL 16 16 0 0" "m@$rank@w@ WINDOW 16 16 33 0"
    }
    assert_equal [list 112 [lrepeat 4 {0 7 0} {5 2 0}]] \
        [lreplace [look 8 $ranks] 1 1 [lrepeat 4 {*}[lrange [lindex [look 8 $ranks] 1] 0 1]]]
    r del m@2@w@0006
    assert_equal 0 [lindex [look 8 $ranks] 0]
}

test {speculative decoding: what is dropped must be there, but is not read} {
    r flushall
    store f@ 0 1 2
    assert_equal {32 {{0 2 0}}} [look 4 {{f@ FULL 16 16 0 1}}]
    store w@ 1 2 3
    assert_equal {48 {{1 2 0}}} [look 4 {{w@ WINDOW 16 16 33 1}}]
    r del w@0003
    assert_equal 0 [lindex [look 4 {{w@ WINDOW 16 16 33 1}}] 0]
}

test {blocks of several sizes, and the alignment of the engine} {
    r flushall
    store f@ {*}[upto 8]
    store g@ 1 3 5
    store s@ 3 7
    # g@ has blocks of 32 tokens: up to 96
    set g {g@ FULL 32 32 0 0}
    assert_equal {96 {{0 6 0} {0 3 0}}} \
        [r prefixlen 8 {*}[hashes 8] UNIT 16 ALIGN 32 KVGROUPS 2 {*}$full {*}$g]
    assert_equal {64 {{0 4 0} {0 2 0} {0 1 0}}} [r prefixlen 8 {*}[hashes 8] UNIT 16 ALIGN 64 \
        KVGROUPS 3 {*}$full {*}$g s@ STATE 64 64 0 0]
}

test {unfinished blocks, and states inside a block} {
    r flushall
    store f@ 3 6
    store s@ 4
    set f {f@ FULL 64 16 0 0}
    assert_equal {112 {{0 1 112}}} [look 8 [list $f]]
    # at 80, inside the block whose bytes reach 112
    assert_equal {80 {{0 1 112} {1 0 80}}} [look 8 [list $f {s@ STATE 64 16 0 0}]]
    set replies [r mgetreplicas {*}[request 8 [list $f {s@ STATE 64 16 0 0}]]]
    assert_equal {80 {{0 1 112} {1 0 80}}} [lrange $replies 0 1]
    assert_equal 3 [llength [lindex $replies 2]]
}

test {only what is named counts as used} {
    r flushall
    foreach key {f@0000 w@0000 w@0001 f@0001 w@0002 f@0002} {put $key 100000}
    r prefixlen {*}[request 3 [list $full {w@ WINDOW 16 16 17 0}] LEASE 1]
    wait_for "the leases to end" {[info_field leases] == 0}
    # of six the two that were not: w@0002 is all that the window needs
    assert_equal 2 [lindex [r evict RATIO 0.3] 0]
    assert_equal [keys_of f@ {0 1 2} w@ 2] [lsort [r keys *]]
}

test {hits are the parts that are named, a miss is what a longer prefix lacked} {
    r flushall
    store f@ 0 1 2
    store w@ 1 2
    foreach {command options} {prefixlen {} prefixlen {LEASE 1} mgetreplicas {}} {
        foreach {n hits misses} {3 5 0 4 5 1} {
            set before [list [info_field keyspace_hits] [info_field keyspace_misses]]
            r $command {*}[request $n [list $full $window] {*}$options]
            assert_equal [list [expr {[lindex $before 0] + $hits}] \
                [expr {[lindex $before 1] + $misses}]] \
                [list [info_field keyspace_hits] [info_field keyspace_misses]] "$command $n"
        }
    }
}

test {MGETREPLICAS: the replies of GETREPLICAS for what is read} {
    r flushall
    foreach key [keys_of f@ {0 1 2} w@ {0 1 2} s@ 2] {put $key 100000}
    lassign [r mgetreplicas {*}[request 4 [list $full $window $state] LEASE 5000]] boundary groups \
        replies
    assert_equal 48 $boundary
    assert_equal {{0 3 0} {1 2 0} {2 1 0}} $groups
    foreach reply $replies key {f@0000 f@0001 f@0002 w@0001 w@0002 s@0002} {
        assert_equal [lindex [r getreplicas $key] 0] [lindex $reply 0]
        assert_equal 5000 [lindex $reply 2]
        assert_equal 40 [string length [lindex $reply 4 0 1 0 4]]
    }
    foreach reply [lindex [r mgetreplicas {*}[request 4 [list $full] LEASE 5000 PACKED]] 2] {
        assert_equal 88 [string length $reply]
    }
    assert_equal {0 {{0 0 0}} {}} [r mgetreplicas {*}[request 4 {{x@ FULL 16 16 0 0}} LEASE 5000]]
}

test {LEASE protects exactly what is named} {
    foreach command {prefixlen mgetreplicas} {
        r flushall
        foreach key [keys_of f@ [upto 6] w@ [upto 6] s@ {1 3}] {put $key 500000}
        set c [client]
        set reply [$c $command {*}[request 6 [list $full $window $state] LEASE 10000]]
        assert_equal 64 [lindex $reply 0]
        # evict all that may be
        for {set i 0} {$i < 3} {incr i} {r evict RATIO 1}
        assert_equal [keys_of f@ [upto 4] w@ {2 3} s@ 3] [lsort [r keys *]]
        drop $c
    }
}

test {more leases than a client may have: an error, and none is kept} {
    r flushall
    foreach key [keys_of f@ [upto 6]] {put $key 100000}
    r config set max-leases-per-client 4
    set c [client]
    proc kept {} {expr {[info_field leases_granted] - [info_field leases_released]}}
    set before [kept]
    $c prefixlen {*}[request 2 [list $full] LEASE 10000]
    set hits [info_field keyspace_hits]
    foreach command {prefixlen mgetreplicas} {
        assert_error "LIMIT this client holds 4 leases*" \
            {$c $command {*}[request 6 [list $full] LEASE 10000]}
        assert_equal 2 [expr {[kept] - $before}]
    }
    # and none of them counts as used
    assert_equal $hits [info_field keyspace_hits]
    assert_equal 64 [lindex [$c prefixlen {*}[request 4 [list $full] LEASE 10000]] 0]
    r config set max-leases-per-client 1000000
    drop $c
}

# Looks up until parts went between the search and the leases: {leases hits reply} of that time.
# prepare stores the parts; gone: the requests that another client makes in the middle.
proc look_raced {prepare gone boundary command args} {
    set other [client]
    for {set try 0} {$try < 400} {incr try} {
        uplevel 1 $prepare
        set c [client]
        set figures {leases_granted leases_released keyspace_hits}
        set before [lmap f $figures {info_field $f}]
        resp::send $c $command {*}$args
        for {set i 0} {$i < 1 + $try % 20} {incr i} {$other ping}
        foreach request $gone {resp::send $other {*}$request}
        foreach request $gone {resp::recv $other}
        set reply [resp::recv $c]
        lassign [lmap f $figures b $before {expr {[info_field $f] - $b}}] granted released hits
        drop $c
        if {$released == 0} continue
        assert_equal $boundary [lindex $reply 0]
        drop $other
        return [list [expr {$granted - $released}] $hits $reply]
    }
    error "it never went between two slices"
}

proc put_all {keys} {
    set batch {}
    foreach key $keys {lappend batch $key 100}
    set arguments {}
    foreach put [r mputstart [llength $keys] {*}$batch] key $keys {
        lappend arguments $key [lindex $put 0] -1
    }
    r mputend [llength $keys] {*}$arguments
}

r config set loop-work-quota 100

test {what goes in the middle shortens the prefix, and what was leased for it is given back} {
    r flushall
    set n 1000
    set last [format f@%04x [expr {$n - 2}]]
    put_all [keys_of f@ [upto $n]]
    foreach command {prefixlen mgetreplicas} {
        lassign [look_raced {if {![r exists $last]} {put $last 100}} [list [list del $last]] \
            [expr {($n - 2) * 16}] $command {*}[request $n [list $full] LEASE 1000]] leases hits
        assert_equal [expr {$n - 2}] $leases
        # what the longer one leased counts once, or not at all
        assert_equal [expr {$n - 2}] $hits
    }
}

test {the lease of a part that was replaced since is given back, too} {
    r flushall
    set n 1000
    set last [format f@%04x [expr {$n - 2}]]
    put_all [keys_of f@ [upto $n]]
    # what lies in the books needs no lease
    lassign [look_raced {
        foreach key [list f@0000 $last] {
            r del $key
            put $key 100
        }
    } [list {set f@0000 v} [list del $last]] [expr {($n - 2) * 16}] \
        prefixlen {*}[request $n [list $full] LEASE 1000]] leases
    assert_equal [expr {$n - 3}] $leases
}

test {an unfinished block that goes in the middle: a shorter one is as good} {
    r flushall
    # 600 blocks of 4 hashes; of the next one 3 hashes, and 1
    set n 2403
    set blocks {}
    for {set i 3} {$i < 2400} {incr i 4} {lappend blocks $i}
    put_all [keys_of f@ $blocks]
    put f@0960 100
    lassign [look_raced {if {![r exists f@0962]} {put f@0962 100}} {{del f@0962}} \
        [expr {2401 * 16}] prefixlen {*}[request $n {{f@ FULL 64 16 0 0}} LEASE 1000]] \
        leases hits reply
    assert_equal {38416 {{0 600 38416}}} $reply
    assert_equal 601 $leases
}

r config set loop-work-quota 1000

test {WAIT: until all parts of the longest boundary were complete once} {
    r flushall
    set c [client]
    store f@ 0 1 2 3
    store w@ 2
    resp::send $c prefixlen {*}[request 4 [list $full {w@ WINDOW 16 16 33 1} ] WAIT 60000]
    wait_for "it to wait" {[info_field blocked_clients] == 1}
    store w@ 3
    assert {![resp::readable $c]}
    store w@ 1
    assert_equal {48 {{0 3 0} {1 2 0}}} [resp::recv $c]
    drop $c
}

test {WAIT ends with its time, and within EXEC there is none} {
    assert_equal {64 {{0 4 0} {2 2 0}}} [look 5 [list $full $window] WAIT 50]
    r multi
    r prefixlen {*}[request 4 [list $state] WAIT 60000]
    assert_equal {{0 {{0 0 0}}}} [r exec]
}

# Whether a group's part of a boundary is there, key by key. Blocks of 16.
proc served {group end there} {
    lassign $group name kind block unit window drop
    set first [expr {$kind eq "FULL" ? 0 : $kind eq "STATE" ? $end - 1 :
        max(0, $end - ($window + 14) / 16)}]
    for {set i $first} {$i < $end + $drop} {incr i} {
        if {![dict exists $there $name[format %04x $i]]} {return 0}
    }
    return 1
}

test {whatever is there: the longest boundary, its parts and their leases} {
    expr {srand(16)}
    proc random {n} {expr {int(rand() * $n)}}
    set hits 0
    for {set round 0} {$round < 150} {incr round} {
        r flushall
        set groups {}
        set there {}
        for {set g [random 4]} {$g >= 0} {incr g -1} {
            set kind [lindex {FULL WINDOW STATE} [random 3]]
            set window [expr {$kind eq "WINDOW" ? 2 + [random 80] : 0}]
            lappend groups [list g$g@ $kind 16 16 $window [expr {$kind ne "STATE" && [random 2]}]]
            for {set i 0} {$i < 12} {incr i} {
                if {[random 10] < 8} {dict set there g$g@[format %04x $i] v}
            }
        }
        if {$there ne ""} {r mset {*}$there}
        for {set end 12} {$end > 0} {incr end -1} {
            set all 1
            foreach group $groups {
                if {$end + [lindex $group 5] > 12 || ![served $group $end $there]} {set all 0}
            }
            if {$all} break
        }
        lassign [r prefixlen {*}[request 12 $groups LEASE 5]] boundary parts
        assert_equal [expr {$end * 16}] $boundary $groups
        lassign [r mgetreplicas {*}[request 12 $groups]] again same replies
        assert_equal [list $boundary $parts] [list $again $same]
        set keys {}
        foreach group $groups part $parts {
            lassign $part first blocks tail
            for {set i 0} {$i < $blocks} {incr i} {
                lappend keys [lindex $group 0][format %04x [expr {$first + $i}]]
            }
        }
        assert_equal [llength $keys] [llength $replies]
        foreach key $keys reply $replies {
            assert_equal [lindex [r getreplicas $key] 0] [lindex $reply 0]
        }
        incr hits [expr {$end > 0}]
    }
    assert {$hits > 40} "$hits hits"
}

test {100,000 hashes of several groups do not hold up others} {
    r flushall
    set n 100000
    set hashes [batch {} $n]
    set arguments {}
    foreach h $hashes {lappend arguments f@$h v}
    r mset {*}$arguments
    set arguments {}
    foreach h $hashes {lappend arguments g@$h v}
    r mset {*}$arguments
    r set w@[lindex $hashes end] v
    r set s@[lindex $hashes 9] v
    set quota [lindex [r config get loop-work-quota] 1]
    foreach {command groups boundary} {
        prefixlen {f@ FULL 16 16 0 0 g@ FULL 16 16 0 0 w@ WINDOW 16 16 17 0} 1600000
        prefixlen {f@ FULL 16 16 0 0 g@ FULL 16 16 0 0 s@ STATE 16 16 0 0} 160
        mgetreplicas {f@ FULL 16 16 0 0 g@ FULL 16 16 0 0} 1600000
    } {
        set c [client]
        set other [client]
        set slices [info_field job_slices]
        resp::send $c $command $n {*}$hashes UNIT 16 ALIGN 16 KVGROUPS \
            [expr {[llength $groups] / 6}] {*}$groups
        set pings 0
        while {![resp::readable $c]} {
            assert_equal PONG [$other ping]
            incr pings
        }
        assert_equal $boundary [lindex [resp::recv $c] 0]
        set slices [expr {[info_field job_slices] - $slices}]
        assert {$slices >= 2 * $n / $quota} "$slices slices, $pings pings"
        drop $c
        drop $other
    }
    # one that goes away in the middle
    set c [client]
    resp::send $c mgetreplicas $n {*}$hashes UNIT 16 ALIGN 16 KVGROUPS 1 f@ FULL 16 16 0 0
    drop $c
    assert_equal PONG [r ping]
}

# Two states of which each lacks what the other has: for every boundary all groups are looked at.
test {what a search does beside its look-ups is work as well} {
    r flushall
    set n 2000
    foreach i [upto $n] {lappend states [expr {$i % 2 ? "a@" : "b@"}][format %04x $i] v}
    r mset {*}$states
    store x@ [expr {$n - 1}]
    set x [list x@ FULL [expr {$n * 16}] 16 0 0]
    set groups [list {a@ STATE 16 16 0 0} {*}[lrepeat 511 $x] {b@ STATE 16 16 0 0} \
        {*}[lrepeat 511 $x]]
    set slices [info_field job_slices]
    assert_equal 0 [lindex [look $n $groups] 0]
    set slices [expr {[info_field job_slices] - $slices}]
    assert {$slices >= 50} "$slices slices"
}

test {errors name the argument} {
    set h [hashes 4]
    foreach {options why} {
        {KVGROUPS 1 f@ FULL 16 16 0 0} {UNIT must stand before KVGROUPS}
        {ALIGN 16 UNIT 16} {UNIT must stand before ALIGN}
        {UNIT 16} {ALIGN is missing}
        {UNIT 16 ALIGN 16} {KVGROUPS is missing}
        {UNIT 0 ALIGN 16 KVGROUPS 1 f@ FULL 16 16 0 0} {UNIT must be a number from 1 *}
        {UNIT 16 ALIGN x KVGROUPS 1 f@ FULL 16 16 0 0} {ALIGN must be a number from 1 *}
        {UNIT 16 ALIGN 16 KVGROUPS 0} {KVGROUPS must be a number from 1 to 1024}
        {UNIT 16 ALIGN 16 KVGROUPS 1025} {KVGROUPS must be a number from 1 to 1024}
        {UNIT 16 ALIGN 16 KVGROUPS 2 f@ FULL 16 16 0 0} {KVGROUPS is 2, but fewer *}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ FULL 16 16 0 0 UNIT 16 ALIGN 16 KVGROUPS 1 g@ FULL 1 1 0 0}\
            {KVGROUPS may be given once}
        {UNIT 16 ALIGN 16 KVGROUPS 1 {} FULL 16 16 0 0} {KV group 1 of 1: name must be 1 to *}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ MAMBA 16 16 0 0}
            {KV group 1 of 1: kind must be FULL, WINDOW or STATE}
        {UNIT 16 ALIGN 16 KVGROUPS 2 f@ FULL 16 16 0 0 g@ FULL 0 16 0 0}
            {KV group 2 of 2: block must be a number from 1 *}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ FULL 16 0 0 0} {KV group 1 of 1: unit must be a number *}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ FULL 16 8 0 0} {*: unit must be a multiple of UNIT}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ FULL 40 16 0 0} {*: unit must divide block*}
        {UNIT 16 ALIGN 24 KVGROUPS 1 f@ FULL 16 16 0 0} {*: ALIGN must be a multiple of unit}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ WINDOW 16 16 1 0} {*: window must be above 1*}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ WINDOW 32 16 33 0} {*: unit must be block*}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ FULL 16 16 33 0} {*: window must be 0*}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ STATE 16 16 0 1} {*: drop must be 0*}
        {UNIT 16 ALIGN 16 KVGROUPS 1 f@ FULL 16 16 0 2} {*: drop must be a number from 0 to 1}
    } {
        foreach command {prefixlen mgetreplicas} {
            assert_error "ERR $why" {r $command 4 {*}$h {*}$options}
        }
    }
    assert_error "ERR unknown option *" {r mexists 1 x UNIT 16 ALIGN 16 KVGROUPS 1}
    assert_error "ERR hash 2 of 2 must be 1 to 1022 bytes, with a name of 2" \
        {r prefixlen 2 0000 {} UNIT 16 ALIGN 16 KVGROUPS 1 {*}$full}
    assert_error "ERR hash 1 of 1 must be *" \
        {r prefixlen 1 [string repeat x 1023] UNIT 16 ALIGN 16 KVGROUPS 1 {*}$full}
    set many [lrepeat 1000 {*}$full]
    assert_error "LIMIT these hashes and KV groups are 20000000 parts*" \
        {r prefixlen 20000 {*}[batch h 20000] UNIT 16 ALIGN 16 KVGROUPS 1000 {*}$many}
}

test {a user needs a pattern for whatever begins with the name} {
    r flushall
    store m@f@ 0 1
    store other@f@ 0 1
    r acl setuser some on >p ~m@* %W~other@* +@all
    r acl setuser exact on >p ~m@f@0000 ~m@f@0001 +@all
    r acl setuser either on >p -@all +ping (~m@* +prefixlen) (~other@* +prefixlen)
    set mine {m@f@ FULL 16 16 0 0}
    set other {other@f@ FULL 16 16 0 0}
    foreach {user groups allowed} [list some [list $mine] 1 some [list $mine $other] 0 \
            exact [list $mine] 0 either [list $other] 1 either [list $mine $other] 0] {
        set c [client]
        $c auth $user p
        set dry [r acl dryrun $user prefixlen {*}[request 2 $groups]]
        if {$allowed} {
            assert_equal 32 [lindex [$c prefixlen {*}[request 2 $groups]] 0]
            assert_equal OK $dry
        } else {
            assert_error "NOPERM *keys used as arguments" {$c prefixlen {*}[request 2 $groups]}
            assert_match "*has no permissions to access the*" $dry
        }
        drop $c
    }
    assert_match {*object m@f@ username exact *} [r acl log]
    # what is no such request is refused as well
    set c [client]
    $c auth some p
    foreach wrong {{KVGROUPS} {KVGROUPS x} {KVGROUPS 5 m@f@} {LEASE KVGROUPS 0}} {
        assert_error "*" {$c prefixlen 1 secret {*}$wrong}
    }
    r acl deluser some exact either
}

test {COMMAND GETKEYS finds none, tracking notes none, MONITOR shows all} {
    assert_error "ERR The command has no key arguments" \
        {r command getkeys prefixlen {*}[request 2 [list $full]]}
    assert_equal {a b} [r command getkeys prefixlen 2 a b LEASE 5]
    set c [client]
    $c hello 3
    $c client tracking on
    store f@ 0
    assert_equal {16 {{0 1 0}}} [$c prefixlen {*}[request 2 [list $full]]]
    $c mgetreplicas {*}[request 2 [list $full]]
    assert_equal 0 [info_field tracking_total_keys]
    r set 0000 x
    assert_equal PONG [$c ping]
    drop $c
    set watcher [client]
    $watcher monitor
    look 1 [list $full]
    assert_match {*"prefixlen" "1" "0000" "UNIT" "16" "ALIGN" "16" "KVGROUPS" "1" "f@" "FULL"*} \
        [resp::recv $watcher]
    drop $watcher
}

test {RESP3: the same, with its nulls} {
    set c [client]
    $c hello 3
    store f@ 0 1
    assert_equal {32 {{0 2 0}}} [$c prefixlen {*}[request 2 [list $full] LEASE 1000]]
    assert_equal v [lindex [$c mgetreplicas {*}[request 2 [list $full] LEASE 1000]] 2 1 5]
    drop $c
}

finish
