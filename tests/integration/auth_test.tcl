# Guarantee 6: no one gets in.
source [file join [file dirname [info script]] harness.tcl]

start_server --requirepass sesame

test {guarantee 6: nothing works before AUTH} {
    set c [client]
    foreach command {{get k} {set k v} {info} {putstart k 10} {getreplicas k} {segment info 0}\
        {flushall} {config get *}
        {client list} {keys *} {monitor} {shutdown}} {
        assert_error "NOAUTH Authentication required." {$c {*}$command}
    }
    assert_error "WRONGPASS *" {$c auth wrong}
    assert_error "WRONGPASS *" {$c auth nobody sesame}
    assert_error "NOAUTH *" {$c get k}
    assert_equal OK [$c auth sesame]
    assert_equal OK [$c set k v]
    drop $c
    set c [client]
    assert_equal OK [$c auth default sesame]
    assert_equal v [$c get k]
    drop $c
}

test {HELLO with AUTH} {
    set c [client]
    assert_error "NOAUTH *" {$c hello 3}
    assert_error "WRONGPASS *" {$c hello 3 AUTH default wrong}
    assert_equal 3 [dict get [$c hello 3 AUTH default sesame SETNAME me] proto]
    assert_equal me [$c client getname]
    drop $c
}

test {guarantee 6: before AUTH requests are small} {
    set c [client]
    resp::raw $c "*1000\r\n"
    assert_match "(error) ERR Protocol error: unauthenticated multibulk length" [resp::recv $c]
    assert_equal "" [resp::read_to_end $c]
    drop $c
    set c [client]
    resp::raw $c "*2\r\n\$4\r\nAUTH\r\n\$100000\r\n"
    assert_match "(error) ERR Protocol error: unauthenticated bulk length" [resp::recv $c]
    assert_equal "" [resp::read_to_end $c]
    drop $c
}

test {RESET forgets who it was} {
    set c [client]
    $c auth sesame
    assert_equal RESET [$c reset]
    assert_error "NOAUTH *" {$c get k}
    drop $c
}

test {CONFIG SET requirepass} {
    [r] auth sesame
    r config set requirepass other
    set c [client]
    assert_error "WRONGPASS *" {$c auth sesame}
    assert_equal OK [$c auth other]
    drop $c
    r config set requirepass {}
    set c [client]
    assert_equal PONG [$c ping]
    assert_error "ERR AUTH <password> called without any password configured*" {$c auth x}
    drop $c
}

test {guarantee 6: protected mode lets only this machine in} {
    set address ""
    foreach word [exec hostname -I] {
        if {![string match *:* $word] && ![string match 127.* $word]} {set address $word}
    }
    if {$address eq ""} {skip "this machine has no address but loopback"}
    start_server --bind * --protected-mode yes
    assert_equal PONG [r ping]
    set c [resp::connect $address [server port]]
    assert_match "(error) DENIED *" [resp::recv $c]
    resp::close $c
    r config set protected-mode no
    set c [resp::connect $address [server port]]
    assert_equal PONG [$c ping]
    resp::close $c
    stop_server
}

test {a password is any bytes} {
    start_server --pool-size 0
    r config set requirepass "a\0b\r\n\xff\""
    set c [client]
    assert_error "WRONGPASS *" {$c auth a}
    assert_error "WRONGPASS *" {$c auth "a\0b"}
    assert_equal OK [$c auth "a\0b\r\n\xff\""]
    assert_equal [list requirepass "a\0b\r\n\xff\""] [$c config get requirepass]
    drop $c
    stop_server
}

finish
