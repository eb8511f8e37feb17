# Users in a configuration file and in an ACL file: read, written, wrong.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] acl.tcl]

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

finish
