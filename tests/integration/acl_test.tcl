# Users: what each may do, who is told, what is kept. Texts and refusals are those of redis-server
# 7.0.
source [file join [file dirname [info script]] harness.tcl]

set here [temp_dir]
close [open $here/tarn.conf w]
proc conf {text} {
    set f [open $::here/tarn.conf w]
    puts $f $text
    close $f
}
# A connection of that user.
proc as {user password} {
    set c [client]
    $c auth $user $password
    return $c
}
proc with {user password script} {
    set ::as [as $user $password]
    set code [catch {uplevel 1 $script} result options]
    drop $::as
    return -options $options $result
}
# Server with a configuration file; the rest of the arguments are options.
proc start_configured {args} {
    set s [dict create dir $::here log $::here/log options $args]
    lappend ::servers [boot_configured $s]
}
proc boot_configured {s} {
    set dir [dict get $s dir]
    file delete $dir/port
    set command [linsert [server_command $dir [dict get $s options]] 1 $dir/tarn.conf]
    dict set s pid [start_process $command $dir/stdout]
    set ::boot $s
    wait_for "server to start" {[process_state [dict get $::boot pid]] eq "gone" || \
        [file_text [dict get $::boot dir]/port] ne ""}
    if {[process_state [dict get $s pid]] eq "gone"} {
        reap_process [dict get $s pid]
        set text [file_text $dir/stdout][file_text $dir/log]
        file delete $dir/stdout $dir/log
        error "server did not start: $text"
    }
    dict set s port [string trim [file_text $dir/port]]
    return $s
}
proc restart_configured {} {
    set s [lindex $::servers end]
    foreach c $::clients {catch {resp::close $c}}
    set ::clients {}
    send_signal TERM [dict get $s pid]
    assert_equal 0 [reap_process [dict get $s pid]]
    set ::servers [lreplace $::servers end end [boot_configured $s]]
}

start_server --enable-debug-command yes

# --- who is who ---

test {the default user, and a new one} {
    assert_equal {{user default on nopass ~* &* +@all}} [r acl list]
    assert_equal default [r acl whoami]
    assert_equal OK [r acl setuser ann]
    assert_equal {{user ann off resetchannels -@all} {user default on nopass ~* &* +@all}} \
        [r acl list]
    assert_equal {ann default} [r acl users]
    assert_error "WRONGPASS *" {as ann ""}
    r acl setuser ann on >secret
    assert_error "WRONGPASS *" {as ann wrong}
    assert_error "WRONGPASS *" {as nobody secret}
    with ann secret {
        assert_error "NOPERM this user has no permissions to run the 'acl|whoami' command" \
            {$::as acl whoami}
        assert_error "NOPERM this user has no permissions to run the 'get' command" {$::as get k}
        r acl setuser ann +acl|whoami
        assert_equal ann [$::as acl whoami]
        r acl setuser ann +client|id
        set id [$::as client id]
        assert_match "*id=$id * user=ann *" [r client list]
    }
    assert_equal {flags on passwords\
        2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b commands} \
        [lrange [r acl getuser ann] 0 4]
    assert_equal (nil) [r acl getuser nobody]
    r acl setuser ann nopass
    with ann anything {assert_equal ann [$::as acl whoami]}
    r acl setuser ann off
    assert_error "WRONGPASS *" {as ann anything}
}

test {faults change nothing} {
    set before [r acl list]
    assert_error "ERR Error in ACL SETUSER modifier '+nope': Unknown command or category name in\
        ACL" {r acl setuser ann on +nope}
    assert_error "ERR Error in ACL SETUSER modifier 'foo': Syntax error" {r acl setuser new foo}
    assert_error "ERR Unmatched parenthesis in acl selector starting at '(~a'." \
        {r acl setuser ann "(~a" +get}
    assert_error "ERR Usernames can't contain spaces or null characters" {r acl setuser "a b"}
    assert_error "ERR The 'default' user cannot be removed" {r acl deluser ann default}
    assert_error "ERR wrong number of arguments for 'acl|setuser' command" {r acl setuser}
    assert_equal $before [r acl list]
    assert_equal 1 [r acl deluser ann nobody]
}

test {HELLO with a user} {
    r acl setuser ann on >p +hello +client|getname +acl|whoami
    set c [client]
    assert_equal 3 [dict get [$c hello 3 AUTH ann p SETNAME mine] proto]
    assert_equal ann [$c acl whoami]
    assert_error "WRONGPASS *" {$c hello 3 AUTH ann q}
    assert_equal ann [$c acl whoami]
    $c reset
    assert_equal default [$c acl whoami]
    drop $c
}

# --- commands, keys, channels ---

set no_key "NOPERM this user has no permissions to access one of the keys used as arguments"
set no_channel "NOPERM this user has no permissions to access one of the channels used as arguments"
proc no_command {name} {return "NOPERM this user has no permissions to run the '$name' command"}

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

# --- what is known of users, and by whom ---

test {DRYRUN} {
    r del a
    r acl setuser ann reset on >p %R~a* +get +set +publish &c
    foreach {command answer} {
        {get a} OK
        {get b} {This user has no permissions to access the 'b' key}
        {set a v} {This user has no permissions to access the 'a' key}
        {del a} {This user has no permissions to run the 'del' command}
        {config get x} {This user has no permissions to run the 'config|get' command}
        {publish c m} OK
        {publish d m} {This user has no permissions to access the 'd' channel}
    } {assert_equal $answer [r acl dryrun ann {*}$command]}
    assert_error "ERR User 'nobody' not found" {r acl dryrun nobody get a}
    assert_error "ERR Command 'nothing' not found" {r acl dryrun ann nothing}
    assert_error "ERR wrong number of arguments for 'get' command" {r acl dryrun ann get}
    assert_equal 0 [r exists a]
}

test {CAT} {
    foreach category [r acl cat] {
        assert_equal [lsort [r acl cat $category]] \
            [lsort [r command list filterby aclcat $category]] $category
        r acl setuser cat reset +@all -@$category
        assert_equal "+@all -@$category" [dict get [r acl getuser cat] commands]
        foreach command [r acl cat $category] {
            if {[string match *|* $command] || [llength [r command info $command]] == 0} continue
            assert {"@$category" in [lindex [r command info $command] 0 6]} $command
        }
    }
    assert_error "ERR Unknown category 'nothing'" {r acl cat nothing}
    assert {"get" in [r acl cat read] && "config|set" in [r acl cat dangerous] && \
        "putstart" in [r acl cat write]}
    assert {"segment|mount" in [r acl cat admin] && "node|join" in [r acl cat dangerous] && \
        "mexists" in [r acl cat read]}
    assert {"segment|attach" ni [r acl cat read]}
}

test {GENPASS} {
    assert_equal 64 [string length [r acl genpass]]
    assert {[r acl genpass] ne [r acl genpass]}
    foreach {bits digits} {1 1 4 1 5 2 12 3 4096 1024} {
        set password [r acl genpass $bits]
        assert {[string length $password] == $digits && [regexp {^[0-9a-f]+$} $password]} $password
    }
    assert_error "ERR ACL GENPASS argument must be the number of bits*" {r acl genpass 4097}
    assert_error "ERR ACL GENPASS argument must be the number of bits*" {r acl genpass 0}
}

test {LOG} {
    r acl log reset
    r acl setuser ann reset on >p ~a +get +multi +publish
    with ann p {
        foreach i {1 2 3} {catch {$::as get b}}
        catch {$::as set a v}
        catch {$::as publish c m}
        $::as multi
        catch {$::as get b}
    }
    catch {as ann wrong}
    catch {as nobody wrong}
    set log [r acl log]
    assert_equal {auth auth key channel command key} [lmap e $log {dict get $e reason}]
    assert_equal {auth auth b c set b} [lmap e $log {dict get $e object}]
    assert_equal {nobody ann ann ann ann ann} [lmap e $log {dict get $e username}]
    assert_equal {toplevel toplevel multi toplevel toplevel toplevel} \
        [lmap e $log {dict get $e context}]
    assert_equal {1 1 1 1 1 3} [lmap e $log {dict get $e count}]
    assert_match "id=* addr=* cmd=get user=ann *" [dict get [lindex $log end] client-info]
    assert_range 0 [dict get [lindex $log 0] age-seconds] 30
    assert_equal 2 [llength [r acl log 2]]
    r config set acllog-max-len 3
    assert_equal 3 [llength [r acl log 100]]
    r config set acllog-max-len 0
    catch {as ann wrong}
    assert_equal 0 [llength [r acl log]]
    r config set acllog-max-len 128
    assert_equal OK [r acl log RESET]
}

test {no secret in MONITOR, SLOWLOG, ACL LOG and the log} {
    r config set slowlog-log-slower-than 0
    r config set loglevel debug
    set m [client]
    $m monitor
    r acl setuser ann reset on >top-secret-1 +@all #[string repeat a 64]
    catch {r acl setuser ann <top-secret-2}
    catch {as ann top-secret-3}
    catch {[r] hello 3 AUTH ann top-secret-4}
    set c [client]
    $c auth ann top-secret-1
    catch {$c acl setuser ann >top-secret-5}
    $c multi
    catch {$c auth ann top-secret-6}
    drop $c
    r config set requirepass top-secret-7
    r auth top-secret-7
    r config set requirepass ""
    r get a-last-thing
    set seen ""
    while {![string match *a-last-thing* $seen]} {append seen [resp::recv $m] \n}
    set all $seen[r slowlog get 100][r acl log 100][file_text [server log]]
    assert {![string match *top-secret* $all]} $all
    assert {![string match *aaaaaaaaaaaa* $all]}
    assert_match *(redacted)* $seen
    assert_match *(redacted)* [r slowlog get 100]
    drop $m
    r config set slowlog-log-slower-than 10000
}

test {connections of a deleted user end} {
    r acl setuser ann reset on >p +@all ~* &*
    set a [as ann p]
    set b [as ann p]
    $b subscribe x
    assert_equal 1 [r acl deluser ann]
    assert_equal "" [resp::read_to_end $a]
    assert_equal "" [resp::read_to_end $b]
    r acl setuser ann on >p +@all ~*
    set a [as ann p]
    assert_equal 1 [$a acl deluser ann]
    assert_equal "" [resp::read_to_end $a]
    assert_equal 0 [r acl deluser ann]
}

test {CLIENT KILL USER} {
    r acl setuser ann reset on >p +@all ~*
    set a [as ann p]
    set b [as ann p]
    assert_error "ERR No such user 'nobody'" {r client kill user nobody}
    assert_equal 2 [r client kill user ann]
    assert_equal "" [resp::read_to_end $a]
    assert_equal PONG [r ping]
    assert_equal 0 [r client kill user ann]
}

proc line_of {user} {lsearch -inline [r acl list] "user $user *"}
test {requirepass is the default user's password, in both directions} {
    r config set requirepass one
    assert_equal "user default on #[exec printf one | sha256sum | cut -c1-64] ~* &* +@all" \
        [line_of default]
    assert_error "WRONGPASS *" {as default two}
    with default one {assert_equal PONG [$::as ping]}
    r acl setuser default >two
    assert_equal one [dict get [r config get requirepass] requirepass]
    r acl setuser default <one
    assert_equal "" [dict get [r config get requirepass] requirepass]
    assert_error "WRONGPASS *" {as default one}
    # The longest that the option takes is a password, too, not none.
    set longest [string repeat p 4096]
    r config set requirepass $longest
    assert_equal "user default on #[exec printf %s $longest | sha256sum | cut -c1-64] ~* &* +@all" \
        [line_of default]
    with default $longest {assert_equal PONG [$::as ping]}
    assert_error "ERR * 4096 bytes *" {r config set requirepass p$longest}
    r config set requirepass ""
    assert_match "user default on nopass *" [line_of default]
}

test {clients as they are: redis-cli and redis-py} {
    r acl setuser ann reset on >p ~a* +@all -@dangerous &*
    set cli [list redis-cli -p [server port] --no-auth-warning --user ann --pass p]
    assert_equal OK [exec {*}$cli set a1 v]
    assert_match "NOPERM *" [exec {*}$cli set b1 v]
    assert_equal ann [exec {*}$cli acl whoami]
    assert_equal ann [exec {*}$cli -3 acl whoami]
    set python ""
    foreach candidate {/usr/bin/python3 python3} {
        if {$python eq "" && ![catch {exec $candidate -c "import redis"}]} {set python $candidate}
    }
    if {$python eq ""} {skip "no Python with the redis module"}
    set script {
import redis, sys
port = int(sys.argv[1])
root = redis.Redis(port=port, decode_responses=True)
root.acl_setuser("py", enabled=True, passwords=["+pw"], categories=["+@read", "+@connection"], \
    keys=["a*"], commands=["+set"])
user = root.acl_getuser("py")
assert user["enabled"] and user["categories"] == ["-@all", "+@read", "+@connection"] and \
    user["commands"] == ["+set"], user
assert "py" in root.acl_users() and "read" in root.acl_cat() and "get" in root.acl_cat("read")
py = redis.Redis(port=port, username="py", password="pw", decode_responses=True)
assert py.ping() and py.get("a1") == "v" and py.set("a2", "w")
for wrong in (lambda: py.get("b"), lambda: py.delete("a1"), lambda: py.flushall()):
    try:
        wrong()
        raise SystemExit("not refused")
    except redis.exceptions.NoPermissionError as e:
        assert "has no permissions" in str(e)
log = root.acl_log()
assert log[0]["username"] == "py" and log[0]["reason"] == "command", log
assert root.acl_log_reset() and len(root.acl_genpass()) == 64
assert root.acl_deluser("py") == 1
try:
    redis.Redis(port=port, username="py", password="pw").ping()
    raise SystemExit("not refused")
except (redis.exceptions.AuthenticationError, redis.exceptions.ResponseError) as e:
    assert "invalid username-password pair" in str(e), e
print("fine")
}
    assert_equal fine [string trim [exec $python -c $script [server port] 2>@1]]
}

test {acl-pubsub-default} {
    r config set acl-pubsub-default allchannels
    r acl setuser open
    assert_match "user open off &\\* -@all" [line_of open]
    r config set acl-pubsub-default resetchannels
    r acl setuser open reset
    assert_match "user open off resetchannels -@all" [line_of open]
}
stop_server

# --- files ---

test {user lines: read at start, written by CONFIG REWRITE, read again} {
    conf "# ours\nuser ann on >p ~a* +get\nuser bob off\nmaxclients 100"
    start_configured
    assert_equal [list \
        {user ann on #148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940 ~a*\
        resetchannels -@all +get} \
        {user bob off resetchannels -@all} {user default on nopass ~* &* +@all}] [r acl list]
    assert_equal OK [r config rewrite]
    assert_match "# ours\nuser ann on >p ~a\\* +get\nuser bob off\nmaxclients 100\n*" \
        [file_text $here/tarn.conf]
    r acl setuser bob on >q {(~b"x"} +set)
    r acl setuser ann {~od"d\x'}
    r acl setuser carl
    r acl deluser ann
    r acl setuser dora {~od"d\x'} {&c'} {(~'" +get)}
    r acl setuser "#e\"" on >p
    r acl setuser # +select|\x01
    r config set requirepass sesame
    assert_equal OK [r config rewrite]
    set text [file_text $here/tarn.conf]
    assert {![string match "*user ann*" $text] && ![string match "*user default*" $text]} $text
    assert_match "*requirepass sesame*" $text
    set before [r acl list]
    restart_configured
    r auth sesame
    assert_equal $before [r acl list]
    r acl setuser default -@dangerous +acl|list +config|rewrite +acl|setuser
    r config rewrite
    assert_match "*user default on #*" [file_text $here/tarn.conf]
    set before [r acl list]
    restart_configured
    r auth sesame
    assert_equal $before [r acl list]
    assert_error "NOPERM *" {r flushall}
    stop_server
}

test {users of an included file: what the file itself says comes later} {
    set f [open $here/site.conf w]
    puts $f "user ann on >p +get\nuser bob on >p +get"
    close $f
    conf "include $here/site.conf\nuser ann on >q +set"
    start_configured
    assert_match "user ann on #* -@all +set" [line_of ann]
    r acl setuser bob +@read
    assert_equal OK [r config rewrite]
    set before [r acl list]
    restart_configured
    assert_equal $before [r acl list]
    stop_server
}

test {faults in user lines stop the start} {
    foreach {text why} {
        "user ann on foo" "*Error in user declaration 'ann': Syntax error*"
        "user ann on\nuser ann off" \
            "*Error in user declaration 'ann': Duplicate user found. A user can only be defined\
            once in config files*"
        "user ann on +nope" \
            "*Error loading ACL rule '+nope' for the user named 'ann': Unknown command or category\
            name in ACL*"
        "user" "*user must name a user*"
        {user ann on ">a\x00b"} "*must not hold NUL*"
        "user \"a b\" on" \
            "*Error in user declaration 'a b': Usernames can't contain spaces or null characters*"
        "user ann (~a" "*Error in user declaration 'ann': Unmatched parenthesis*"
        "user ann on\naclfile users.acl" \
            "*please define either an ACL file or declare users directly in your redis.conf, but\
            not both*"
    } {
        conf $text
        assert_error $why {start_configured}
    }
    conf "user ann on >a-secret +nope <another-secret"
    catch {start_configured} message
    assert {![string match *secret* $message]} $message
}

test {an ACL file: LOAD, SAVE, and who is affected} {
    conf "aclfile $here/users.acl"
    file delete $here/users.acl
    assert_error "*Error loading ACLs, opening file '$here/users.acl': No such file or directory*" \
        {start_configured}
    proc users {text} {
        set f [open $::here/users.acl w]
        puts -nonewline $f $text
        close $f
    }
    users "user ann on >p ~* +@all\nuser bob on >p ~* +@all\n"
    start_configured
    assert_equal {ann bob default} [r acl users]
    set a [as ann p]
    set b [as bob p]
    foreach {text why} {
        "foo" "*users.acl:1 should start with user keyword followed by the username. WARNING: ACL\
            errors detected, no change to the previously active ACL rules was performed"
        "user x on foo\nuser y +nope\n" \
            "*users.acl:1: Syntax error. *users.acl:2: Error in applying operation '+nope':\
            Unknown command or category name in ACL. WARNING*"
        "user x on\nuser x off" "*WARNING: Duplicate user 'x' found on line 2. WARNING*"
    } {
        users $text
        assert_error "ERR $why" {r acl load}
        assert_equal {ann bob default} [r acl users]
        assert_equal PONG [$a ping]
    }
    users "user ann on >p ~k* +@all\nuser carl on >p ~* +@all\n"
    assert_equal OK [r acl load]
    assert_equal "" [resp::read_to_end $b]
    assert_equal "" [resp::read_to_end $a]
    assert_error $no_key {with ann p {$::as get x}}
    assert_equal {ann carl default} [r acl users]
    # Who asks is told before he, too, has to log in again.
    set c [as carl p]
    assert_equal OK [$c acl load]
    assert_equal "" [resp::read_to_end $c]
    r acl setuser dora on >p {(~a* +get)}
    file attributes $here/users.acl -permissions 0640
    assert_equal OK [r acl save]
    assert_equal [join [r acl list] \n]\n [file_text $here/users.acl]
    assert_equal 00640 [file attributes $here/users.acl -permissions]
    set before [r acl list]
    restart_configured
    assert_equal $before [r acl list]
    # The configuration does not hold users that a file holds.
    assert_equal OK [r config rewrite]
    assert {![string match *user* [string map {users.acl ""} [file_text $here/tarn.conf]]]}
    # A file that cannot be written leaves the old one as it is.
    set text [file_text $here/users.acl]
    r acl setuser eve
    file mkdir $here/users.acl.[server pid].tmp
    assert_error "ERR There was an error trying to save the ACLs.*" {r acl save}
    file delete $here/users.acl.[server pid].tmp
    assert_equal $text [file_text $here/users.acl]
    stop_server
}

test {without an ACL file} {
    start_server
    assert_error "ERR This Redis instance is not configured to use an ACL file.*" {r acl load}
    assert_error "ERR This Redis instance is not configured to use an ACL file.*" {r acl save}
    stop_server
}

# --- nodes, libtarn, replicas, Sentinel: users with no more rights than they need ---

# As in docs/ACL.md.
set node_rules {~* resetchannels -@all +ping +info +role +client|setinfo +client|setname\
    +node|join +node|up +node|heartbeat +node|fenced
    +node|done +node|evicted +node|offer +node|drain +node|leave +segment|mount +segment|keys \
        +segment|info +segment|attach
    +getreplicas +mgetreplicas +release +replica|report}
set worker_rules {~kv:* resetchannels -@all +@read +@write +@connection -@admin -@dangerous}
set replica_rules {resetchannels -@all +psync +replconf +ping}
set sentinel_rules {allchannels -@all +multi +slaveof +ping +exec +subscribe +config|rewrite +role\
    +publish +info +client|setname
    +client|kill +script|kill}

test {a node and libtarn with users of their own} {
    start_server --pool-size 0 --node-heartbeat 100 --max-lease 2s
    r acl setuser node on >a:b@c/d {*}$node_rules
    r acl setuser worker on >p {*}$worker_rules
    start_node n1 --master tarn://node:a%3Ab%40c%2Fd@127.0.0.1:[server port] --host-name m1 \
        --segment 32mb --ssd [temp_dir]/ssd:64mb
    set f [open [server dir]/password w]
    puts $f a:b@c/d
    close $f
    start_node n2 --user node --password-file [server dir]/password --host-name m2 --segment 32mb
    set url tarn://worker:p@127.0.0.1:[server port]
    foreach command {load verify} {
        set a [kv_answer [kv_exec [list $url $command kv: 20 100000]]]
        assert_equal {20 0 0} [kv_fields $a ok errors wrong] [dict get $a error]
    }
    set a [kv_answer [kv_exec [list --host m1 --replace --replicas 2 $url load kv: 20 100000]]]
    assert_equal {20 0 40} [kv_fields $a ok errors replicas] [dict get $a error]
    assert_equal 0 [dict get $a shm_bytes]
    assert_match "*NOPERM*" [dict get [kv_answer [kv_exec [list $url load other: 1 1000]]] error]
    # A user without a password is one who needs none, and nobody else.
    r acl setuser open on nopass {*}$worker_rules
    assert_match "*NOPERM*" \
        [dict get \
        [kv_answer [kv_exec [list tarn://open@127.0.0.1:[server port] load other: 1 1000]]] error]
    assert_match "*refused user and password*" \
        [lindex [kv_exec [list tarn://nobody@127.0.0.1:[server port] load kv: 1 1000]] 2]
    assert_match "*refused user and password*" \
        [lindex [kv_exec [list tarn://worker@127.0.0.1:[server port] load kv: 1 1000]] 2]
    assert {[catch {exec $node_binary --master tarn://127.0.0.1:[server port] --user nobody\
        --name n9 --segment 16mb 2>@1} text]}
    assert_match "*refused user and password*" $text
    # With @direct the bytes go through shared memory.
    r acl setuser worker +@direct
    set a [kv_answer [kv_exec [list --host m1 $url verify kv: 20 100000]]]
    assert_equal {20 0} [kv_fields $a ok wrong]
    assert {[dict get $a shm_bytes] > 0}
    # Copies, drains and farewells are a node's own work.
    r set moved [string repeat x 100000]
    r replica copy moved
    wait_for "a replica on the other node" \
        {[lsort [lmap x [r replica list moved]\
        {expr {[dict get $x tier] eq "memory" ? [dict get $x node] : [continue]}}]] eq "n1 n2"}
    stop_node n1
    wait_for "its farewell" {[node_state n1] in {left down ""}}
    set refused [lmap e [r acl log 100] {list [dict get $e username] [dict get $e object]}]
    assert_equal {} [lsearch -all -inline $refused {node *}]
    r acl setuser node -node|join
    launch_node n3 --user node --password-file [server dir]/password --host-name m3 --segment 32mb
    assert_equal 4 [reap_process [node n3 pid]]
    assert_match "*NODE JOIN*NOPERM*" [file_text [node n3 dir]/stdout]
    dict set ::node_table n3 pid 0
    stop_server
}

# The administrator of a server; Sentinel closes connections when roles change.
proc ask {name args} {
    if {![info exists ::conn($name)]} {
        set ::conn($name) [resp::connect $::server_host [dict get $::S($name) port]]
        $::conn($name) auth admin ap
    }
    if {[catch {$::conn($name) {*}$args} reply options]} {
        if {![string match {[A-Z]*} $reply]} {
            catch {resp::close $::conn($name)}
            unset ::conn($name)
        }
        return -options $options $reply
    }
    return $reply
}
proc role_is {name i what} {
    expr {![catch {lrange [ask $name role] $i end} role] && [string match $what $role]}
}

test {replication with masteruser; Sentinel with auth-user} {
    foreach name {a b c} {
        set here [temp_dir]
        conf ""
        start_configured --pool-size 0 --repl-ping-replica-period 1 --repl-timeout 5
        set S($name) [server]
        set port($name) [server port]
        r acl setuser replica on >rp {*}$replica_rules
        r acl setuser sentinel on >sp {*}$sentinel_rules
        r acl setuser admin on >ap ~* &* +@all
        ask $name acl setuser default off
        ask $name config set masteruser replica masterauth wrong
    }
    foreach name {b c} {ask $name replicaof 127.0.0.1 $port(a)}
    wait_for "a wrong masterauth to be told" \
        {[string match "*Unable to AUTH to MASTER*: -WRONGPASS*"\
        [file_text [dict get $::S(b) log]]]}
    foreach name {a b c} {ask $name config set masterauth rp}
    foreach name {b c} {wait_for "replica $name" {[role_is $::name 3 "connected *"]}}
    assert_match "* user=replica *" [ask a client list type replica]
    ask a set before failover
    assert_equal 2 [ask a wait 2 30000]
    if {[auto_execok redis-sentinel] eq ""} {skip "redis-sentinel is not there"}
    set sentinel [start_sentinel $port(a) \
        "sentinel auth-user pool sentinel\nsentinel auth-pass pool sp"]
    wait_for "Sentinel to know both replicas" {[regexp -all {\+slave } [sentinel_log]] == 2}
    assert_match "* user=sentinel *" [ask a client list]
    send_signal KILL [dict get $S(a) pid]
    reap_process [dict get $S(a) pid]
    set servers [lsearch -all -inline -not -exact $servers $S(a)]
    sentinel_hurry
    # An attempt that fails is repeated after 20 s.
    wait_for "a replica to be the master" {[role_is b 0 "master *"] || [role_is c 0 "master *"]}
    set new [expr {[role_is b 0 "master *"] ? "b" : "c"}]
    set other [expr {$new eq "c" ? "b" : "c"}]
    wait_for "the other to follow it" {[role_is $::other 2 "$::port($::new) connected *"]}
    assert_equal failover [ask $new get before]
    assert_equal OK [ask $new set after failover]
    assert_equal 1 [ask $new wait 1 30000]
    assert_match "*user sentinel on #*" [file_text [dict get $S($new) dir]/tarn.conf]
    foreach name {b c} {
        assert_equal {} \
            [lsearch -all -inline [lmap e [ask $name acl log 100] {dict get $e username}] \
            sentinel] [ask $name acl log 100]
    }
    send_signal TERM $sentinel
    reap_process $sentinel
}

finish
