# Users: who is who, and what is known of them. Texts and refusals are those of redis-server 7.0.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] acl.tcl]

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
finish
