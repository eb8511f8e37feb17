# What each user may do: commands, keys, channels. Refusals are those of redis-server 7.0.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] acl.tcl]

start_server --enable-debug-command yes

test {keys by what a command does to them} {
    r mset both:1 v read:1 v write:1 v other v
    r acl setuser ann reset on >p +@all ~both:* %R~read:* %W~write:*
    with ann p {
        assert_equal v [$::as get both:1]
        assert_equal v [$::as get read:1]
        assert_error $no_key {$::as get write:1}
        assert_error $no_key {$::as get other}
        assert_error $no_key {$::as mget both:1 read:1 other}
        assert_equal OK [$::as set write:1 w]
        assert_error $no_key {$::as set read:1 w}
        assert_error $no_key {$::as set write:1 w GET}
        assert_equal v [$::as set both:1 w GET]
        assert_equal 1 [$::as exists write:1]
        assert_equal 1 [$::as exists read:1]
        assert_error $no_key {$::as exists other}
        assert_error $no_key {$::as getdel read:1}
        assert_error $no_key {$::as mset both:1 a other b}
        assert_error $no_key {$::as object freq other}
        assert_error $no_key {$::as memory usage other}
        assert_error $no_key {$::as watch other}
    }
}

test {what concerns every key needs all of them} {
    r mset all:1 v all:2 v
    r acl setuser ann reset on >p +@all ~all:*
    set every {{keys all:*} {scan 0} {randomkey} {removematch GLOB all:*} {flushall} {flushdb}\
        {evict BYTES 1} {replica tasks}}
    with ann p {
        foreach command $every {assert_error $no_key {$::as {*}$command}}
        assert_match {[0-9]*} [$::as evict KEYS 1 all:none]
        assert_error $no_key {$::as evict KEYS 2 all:none other}
        assert_error {ERR KEYS may be given once} {$::as evict KEYS 1 all:none KEYS 1 other}
        r acl setuser ann {%R~*}
        assert_equal {all:1 all:2} [lsort [$::as keys all:*]]
        assert_equal v [$::as get other]
        assert_error $no_key {$::as removematch GLOB all:*}
        assert_error $no_key {$::as flushall}
        r acl setuser ann ~*
        assert_equal 2 [$::as removematch GLOB all:*]
    }
}

test {the keys of tarn's own commands} {
    r acl setuser reader reset on >p ~mine:* +@read +@connection
    r acl setuser writer reset on >p ~mine:* +@write +@connection
    r set mine:1 [string repeat v 1000]
    r set other [string repeat v 1000]
    with reader p {
        assert_equal 1000 [lindex [$::as getreplicas mine:1 LEASE 1000] 1]
        assert_error $no_key {$::as getreplicas other LEASE 1000}
        assert_error $no_key {$::as mgetreplicas 2 mine:1 other}
        assert_error $no_key {$::as mexists 2 mine:1 other}
        assert_error $no_key {$::as prefixlen 2 mine:1 other}
        assert_error $no_key {$::as release 2 mine:1 1 other 2}
        assert_equal {1 0} [$::as mexists 2 mine:1 mine:2]
        # A count that does not fit says nothing about the keys: nobody can check them.
        assert_error $no_key {$::as mexists 3 mine:1 mine:2}
        assert_error $no_key {$::as mexists x other}
        assert_error [no_command putstart] {$::as putstart mine:2 100}
        assert_error [no_command mputstart] {$::as mputstart 1 mine:2 100}
        foreach command {{segment list} {node list} {quota list} {replica copy mine:1} {evict}\
                {segment drain x} {node join a 1 MACHINE m}} {
            assert_error "NOPERM this user has no permissions to run the *" {$::as {*}$command}
        }
        assert_equal 0 [$::as replica report mine:1 1]
        assert_error $no_key {$::as replica report other 1}
    }
    with writer p {
        assert_error $no_key {$::as putstart other 100}
        assert_error $no_key {$::as mputstart 2 mine:a 10 other 10}
        assert_error $no_key {$::as mputend 2 mine:a 1 -1 other 2 -1}
        set put [$::as putstart mine:3 10]
        assert_equal OK [$::as putend mine:3 [lindex $put 0] -1 VALUE 0123456789]
        assert_error $no_key {$::as putrevoke other 1}
        assert_error $no_key {$::as pin other SOFT 5}
        assert_equal 1 [$::as del mine:3]
    }
}

# A request of the command whose keys are all `other`: by its key specs, which may be anywhere.
proc request_for {name} {
    lassign [lindex [r command info $name] 0] - arity - - - - - - specs
    if {[llength $specs] == 0} {return {}}
    set argv [string map {| { }} $name]
    while {[llength $argv] < abs($arity)} {lappend argv other}
    foreach spec $specs {
        set begin [dict get [dict get $spec begin_search] spec]
        if {[dict exists $begin keyword]} {
            lappend argv [dict get $begin keyword]
            set at [llength $argv]
        } else {
            set at [dict get $begin index]
        }
        set find [dict get [dict get $spec find_keys] spec]
        set last $at
        if {[dict exists $find keynumidx]} {set last [expr {$at + [dict get $find keystep]}]}
        while {[llength $argv] <= $last} {lappend argv other}
        if {[dict exists $find keynumidx]} {lset argv $at 1}
    }
    return $argv
}

test {no command reaches the keys of others, whatever it is called} {
    r acl setuser reader reset on >p ~mine:* +@all
    set n 0
    foreach name [r command list] {
        set argv [request_for $name]
        if {[llength $argv] == 0} continue
        incr n
        assert_equal "This user has no permissions to access the 'other' key" \
            [r acl dryrun reader {*}$argv] $argv
    }
    assert {$n > 50} $n
    # Where there are two keys, none of them pays for the other.
    foreach {one two} {mine:1 other other mine:1} {
        foreach command {{copy %s %s} {rename %s %s} {renamenx %s %s} {mget %s %s}} {
            assert_equal "This user has no permissions to access the 'other' key" \
                [r acl dryrun reader {*}[format $command $one $two]]
        }
    }
    # To read is not to write.
    r acl setuser reader resetkeys %R~*
    foreach command {{putstart k 1} {mputstart 1 k 1} {putend k 1 -1} {set k v} {del k}\
            {pin k HARD} {rename k l} {copy k l} {expire k 1}} {
        assert_match "This user has no permissions to access the '?' key" \
            [r acl dryrun reader {*}$command]
    }
    foreach command {{getreplicas k} {mgetreplicas 1 k} {get k} {mexists 1 k} {prefixlen 1 k}\
            {keys *} {scan 0}} {
        assert_equal OK [r acl dryrun reader {*}$command]
    }
}

test {what is the operator's is nobody else's} {
    foreach name [r command list] {
        if {![regexp {^(segment|node|evict|quota)(\||$)} $name] || $name in {segment node quota}} \
            continue
        if {[string match *|help $name] || $name in {segment|info segment|attach}} continue
        foreach category {admin dangerous} {
            assert {$name in [r acl cat $category]} "$name $category"
        }
        foreach category {read write keyspace} {
            assert {$name ni [r acl cat $category]} "$name $category"
        }
    }
    assert_equal segment|attach [r acl cat direct]
    assert {"removematch" in [r acl cat dangerous] && "keys" in [r acl cat dangerous]}
}

test {rules with names of Redis' other commands} {
    assert_equal OK [r acl setuser ann reset +get +eval +xinfo|stream -hset +client|tracking \
        +cluster|info +ZADD]
    assert_equal {-@all +get +eval +xinfo|stream -hset +client|tracking +cluster|info +zadd} \
        [dict get [r acl getuser ann] commands]
    foreach rule {+nothing -nothing +xinfo|nothing +client|nothing +nothing|sub} {
        assert_error "*Unknown command or category name in ACL" {r acl setuser ann $rule}
    }
    assert_error "*Allowing first-arg of a subcommand is not supported" \
        {r acl setuser ann +xinfo|stream|x}
    # They give nothing: there is no such command.
    r acl setuser ann on >p
    with ann p {assert_error "ERR unknown command 'eval'*" {$::as eval x 0}}
    # A line as ACL LIST shows it makes the same user.
    set line [lsearch -inline [r acl list] "user ann *"]
    r acl setuser ben {*}[lrange $line 2 end]
    assert_equal [lrange $line 2 end] [lrange [lsearch -inline [r acl list] "user ben *"] 2 end]
    r acl deluser ben
}

test {the category direct: shared memory is for those who have it} {
    r acl setuser reader reset on >p ~* +@all -@direct
    assert_equal segment|attach [r acl cat direct]
    with reader p {
        set info [$::as segment info 0]
        assert_match tcp://* [dict get $info endpoints]
        assert_equal 1 [llength [dict get $info endpoints]]
        assert_equal {{} {} {}} [list [dict get $info attach_read] [dict get $info attach_write] \
            [dict get $info keys]]
        assert_error [no_command segment|attach] {$::as segment attach 0}
        r acl setuser reader +@direct -putstart
        set info [$::as segment info 0]
        assert_match shm://* [lindex [dict get $info endpoints] 0]
        assert_equal 40 [string length [dict get $info attach_read]]
        assert_equal 0 [string length [dict get $info attach_write]]
        assert_equal [dict get $info endpoints] [dict get [$::as segment attach 0] endpoints]
    }
    assert_equal 40 [string length [dict get [r segment attach 0] attach_write]]
}

test {channels} {
    r acl setuser ann reset on >p +@all &news:* &all.*
    with ann p {
        assert_equal 0 [$::as publish news:1 x]
        assert_error $no_channel {$::as publish other x}
        assert_error $no_channel {$::as spublish other x}
        assert_error $no_channel {$::as subscribe news:1 other}
        assert_error $no_channel {$::as ssubscribe other}
        assert_error $no_channel {$::as psubscribe news:1*}
        assert_equal {unsubscribe other 0} [$::as unsubscribe other]
        assert_equal {subscribe news:1 1} [$::as subscribe news:1]
        assert_equal {psubscribe all.* 2} [$::as psubscribe all.*]
    }
    # Who loses a channel is cut off from it; who has it still goes on.
    set a [as ann p]
    set b [as ann p]
    $a subscribe news:1
    $b subscribe all.1
    r acl setuser ann resetchannels &all.*
    assert_equal "" [resp::read_to_end $a]
    assert_equal 1 [r publish all.1 x]
    assert_equal {message all.1 x} [resp::recv $b]
    drop $b
}

test {commands, subcommands, first arguments, selectors} {
    r set a:1 v
    r set b:1 v
    r acl setuser ann reset on >p ~* +@all -config +config|get -@dangerous +select|0
    with ann p {
        assert_error [no_command config|get] {$::as config get port}
        r acl setuser ann +config|get
        assert_equal port [lindex [$::as config get port] 0]
        assert_error [no_command config|set] {$::as config set maxclients 10}
        assert_error [no_command keys] {$::as keys *}
        r acl setuser ann -select +select|0
        assert_equal OK [$::as select 0]
        assert_error [no_command select] {$::as select 1}
        # A wrong arity is told first, as Redis does it.
        assert_error "ERR wrong number of arguments for 'keys' command" {$::as keys}
    }
    r acl setuser ann reset on >p %R~a:* +get {(%W~b:* +set)} {(~c:* +@all)}
    with ann p {
        assert_equal v [$::as get a:1]
        assert_error $no_key {$::as get b:1}
        assert_error $no_key {$::as set a:1 v}
        assert_equal OK [$::as set b:1 v]
        assert_equal OK [$::as set c:1 v]
        assert_equal 1 [$::as del c:1]
        assert_error $no_key {$::as del b:1}
    }
    assert_equal {commands {-@all +set} keys %W~b:* channels {}} \
        [lindex [dict get [r acl getuser ann] selectors] 0]
}

test {in a transaction: refused when it is queued, and asked again by EXEC} {
    r acl setuser ann reset on >p ~a* +@all
    r set a v
    with ann p {
        $::as multi
        assert_equal QUEUED [$::as get a]
        assert_error $no_key {$::as get b}
        assert_error "EXECABORT *" {$::as exec}
        $::as multi
        $::as set a w
        $::as get a
        r acl setuser ann -set
        assert_match "{(error) NOPERM ACLs rules changed between*following reason: no permission\
            to execute the command or subcommand} v" \
            [$::as exec]
        $::as multi
        $::as get a
        r acl setuser ann resetkeys
        assert_match "*no permission to touch the specified keys*" [$::as exec]
        r acl setuser ann -exec
        $::as multi
        assert_error "EXECABORT Transaction discarded because of: NOPERM *'exec' command" \
            {$::as exec}
        r acl setuser ann +exec ~*
        # Who deletes himself is nobody from then on.
        $::as multi
        $::as acl deluser ann
        $::as flushall
        assert_equal {1 {(error) NOAUTH Authentication required.}} [$::as exec]
        assert_equal "" [resp::read_to_end $::as]
    }
    assert_equal v [r get a]
}

test {large values that are refused take no room} {
    r flushall
    r acl setuser ann reset on >p %W~a* %R~b* +set +get +mset
    set used [segment_field 0 used]
    with ann p {
        set large [string repeat x 3000000]
        foreach command {{set b} {set c} {setex b 100} {mset a 1 c}} {
            assert_error "NOPERM *" {$::as {*}$command $large}
        }
        assert_equal $used [segment_field 0 used]
        assert_equal OK [$::as set a $large]
        assert_error $no_key {$::as get a}
    }
    assert_equal 3000000 [r strlen a]
    # What was dropped is not there, even if its sender may write it by the time when it is all
    # there.
    foreach rules {~b {~* &* +@all}} {
        r acl setuser ann resetkeys
        set c [as ann p]
        resp::raw $c "*3\r\n\$3\r\nSET\r\n\$1\r\nb\r\n\$3000000\r\n[string range $large 0 999999]"
        wait_for "its beginning" {[regexp {user=ann .*tot-net-in=(\d+)} [r client list] - n] && \
            $n > 1000000}
        r acl setuser ann {*}$rules
        resp::raw $c "[string range $large 1000000 end]\r\n"
        assert_match "(error) NOPERM *" [resp::recv $c]
        assert_equal OK [$c set b small]
        assert_equal OK [$c set b $large]
        drop $c
    }
}

test {large words where there should be the name of a command} {
    r acl setuser ann reset on >p ~a* +get +multi +exec
    set large [string repeat x 100000]
    with ann p {
        foreach container {config acl client segment} {
            assert_error "ERR unknown subcommand 'xxx*" {$::as $container $large}
            assert_error "ERR unknown subcommand 'xxx*" {$::as $container $large $large}
        }
        assert_error "ERR unknown command 'xxx*" {$::as $large}
        assert_error "ERR unknown command 'xxx*" {$::as $large $large}
        assert_error "ERR unknown command 'nothing'*" {$::as nothing $large}
        $::as multi
        assert_error "ERR unknown subcommand 'xxx*" {$::as config $large}
        assert_error "EXECABORT *" {$::as exec}
    }
}

test {the default user can be restricted, too} {
    r acl setuser admin on >p ~* &* +@all
    drop [r] ;# it has held grants, and would be closed
    r ping
    with admin p {
        $::as acl setuser default -@all +ping +acl|whoami
        set c [client]
        assert_equal PONG [$c ping]
        assert_error [no_command get] {$c get k}
        $::as acl setuser default off
        set d [client]
        assert_error "NOAUTH *" {$d ping}
        assert_equal PONG [$c ping]
        $::as acl setuser default on nopass +@all
        drop $c
        drop $d
    }
    assert_equal PONG [r ping]
}

finish
