# Clients that send and take no replies, and those that have not said who they are: what the server
# reads from them and keeps for them is little and bounded, and others do not notice.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] tls.tcl]
start_server --pool-size 64mb --enable-debug-command yes

# A field of the CLIENT LIST line of the one connection with that name.
proc field_of {name field} {
    foreach line [split [r client list] \n] {
        if {[string match "* name=$name *" $line] && [regexp " $field=(\[^ \]*)" $line all value]} {
            return $value
        }
    }
    return ""
}

# A process that sends text and reads nothing, for ever. (Tcl's sockets turn round and round where a
# socket says that it may take bytes, and then takes none.)
proc start_deaf {text} {
    set file [file join [temp_dir] requests]
    set f [open $file wb]
    puts -nonewline $f [resp::encode {client setname deaf}]$text
    close $f
    return [open [list | bash -c {exec 3<>/dev/tcp/$0/$1; exec cat $2 - >&3} $::server_host \
        [server port] $file] w]
}
proc stop_deaf {deaf} {
    exec kill [pid $deaf]
    catch {close $deaf}
    wait_for "it to be gone" {[info_field connected_clients] == 1}
}
proc named {{c ""}} {
    if {$c eq ""} {set c [client]}
    assert_equal OK [$c client setname other]
    return $c
}

# Round trips of somebody else; the slowest, and the one that one in a thousand exceeds.
proc others {n} {
    set us {}
    for {set i 0} {$i < $n} {incr i} {
        set begin [clock microseconds]
        assert_equal PONG [r ping]
        lappend us [expr {[clock microseconds] - $begin}]
    }
    set us [lsort -integer $us]
    puts "    others: p50 [lindex $us [expr {$n / 2}]] us, p99.9 [lindex $us\
        [expr {$n * 999 / 1000}]] us, max [lindex $us end] us"
}

# --- who does not take his replies ---

# Neither is more of it read, nor is what was read run, however often the loop turns.
proc assert_not_heard {name} {
    wait_for "its replies to wait" {[string match *w [field_of $::heard events]]} \
        [set ::heard $name]
    others 1000
    set before [field_of $name tot-net-in]
    others 1000
    assert_equal $before [field_of $name tot-net-in]
    assert_equal w [field_of $name events]
    return $before
}

foreach {name request} [list \
    "small values" [resp::encode {get small}] "nothing but PING" "PING\r\n" "values of the pool" \
    [resp::encode {get pool}]] {
    test "guarantee 4: nothing is read from a client that takes no replies: $name" {
        r set small [string repeat x 60]
        r set pool [string repeat x 100000]
        r config set output-pause 256kb
        set deaf [start_deaf \
            [string repeat $request [expr {(48 << 20) / [string length $request]}]]]
        set heard [assert_not_heard deaf]
        # What it had sent until its replies were too many, and not much more.
        assert {$heard < 4000000} "$heard bytes were read"
        assert {[field_of deaf qbuf] <= 300000} [field_of deaf qbuf]
        assert {[field_of deaf tot-mem] < 2000000} [field_of deaf tot-mem]
        stop_deaf $deaf
        r config set output-pause 8mb
    }
}

test {guarantee 4: a client that reads after all gets every reply, in order} {
    r config set output-pause 64kb
    set c [client]
    set text ""
    for {set i 0} {$i < 20000} {incr i} {
        append text [resp::encode [list echo $i-[string repeat y 100]]]
    }
    resp::raw $c $text
    for {set i 0} {$i < 20000} {incr i} {
        set got [resp::recv $c]
        if {$got ne "$i-[string repeat y 100]"} {error "reply $i is [shown $got]"}
    }
    assert_equal PONG [$c ping]
    drop $c
    r config set output-pause 8mb
}

test {guarantee 4: replies that wait for the append-only file wake what waited for them} {
    r config set appendonly yes output-pause 64kb
    r set k [string repeat x 100000]
    r set small [string repeat y 60]
    set many [string repeat "small " 3000]
    foreach {what n bytes} {{get k} 40 100011 {mget MANY} 10 201007} {
        set c [client]
        set request [string map [list MANY $many] $what]
        resp::raw $c [resp::encode {set a 1}][string repeat [resp::encode $request] $n]
        assert_equal OK [resp::recv $c]
        assert_equal [expr {$n * $bytes}] [string length [resp::recv_raw $c [expr {$n * $bytes}]]] \
            $what
        assert_equal PONG [$c ping]
        drop $c
    }
    r config set appendonly no output-pause 8mb
}

test {guarantee 4: what waits behind a job is read when the job is through, however long it is} {
    set c [named]
    set text ""
    for {set i 0} {$i < 3000} {incr i} {
        append text [resp::encode [list echo $i-[string repeat z 300]]]
    }
    r client pause 100000 write
    resp::raw $c [resp::encode {set a b}]$text
    wait_for "it to be held back" {[info_field postponed_commands] > 0}
    for {set i 0} {$i < 200} {incr i} {r client id}
    assert {[field_of other tot-net-in] < 400000} [field_of other tot-net-in]
    r client unpause
    assert_equal OK [resp::recv $c]
    for {set i 0} {$i < 3000} {incr i} {assert_equal "$i-[string repeat z 300]" [resp::recv $c]}
    drop $c
}

test {a client that waits, has sent a lot and goes is seen to go} {
    set file [file join [temp_dir] requests]
    set f [open $file wb]
    puts -nonewline $f [resp::encode {wait 3 0}][string repeat [resp::encode {echo hello}] 30000]
    close $f
    exec bash -c {exec 3<>/dev/tcp/$0/$1; cat $2 >&3} $::server_host [server port] $file
    wait_for "it to be gone" {[info_field connected_clients] == 1}
}

test {guarantee 4: SUBSCRIBE, PSUBSCRIBE and MONITOR are not read from either while they take\
        nothing} {
    r config set output-pause 256kb client-output-buffer-limit "pubsub 32mb 0 0"
    foreach how {{SUBSCRIBE ch} {PSUBSCRIBE c*} MONITOR} {
        set deaf [start_deaf "$how\r\n[string repeat "PING\r\n" 4000000]"]
        set message [string repeat m 100000]
        wait_for "much to wait for it" {[r publish ch $message; field_of deaf obl] > 2000000}
        assert_not_heard deaf
        stop_deaf $deaf
    }
    r config set output-pause 8mb client-output-buffer-limit "pubsub 32mb 8mb 60"
}

test {guarantee 4: over TLS nothing is read from a client that takes no replies} {
    if {![have_openssl]} {skip "there is no openssl"}
    make_ca ca
    make_cert server ca
    make_cert user ca
    open_tls_port
    set deaf [named [tls_client]]
    r config set output-pause 256kb
    r set small [string repeat x 60]
    resp::raw $deaf [string repeat [resp::encode {get small}] 300000]
    set heard [assert_not_heard other]
    assert {$heard < 4000000} $heard
    end_tls_client $deaf
    r config set output-pause 8mb
    wait_for "it to be gone" {[info_field connected_clients] == 1}
}

# --- requests that are long themselves ---

test {guarantee 4: a request of many arguments is put together without being moved as it grows} {
    r flushall
    foreach {n size} {1500 5000 300 30000 20000 100 100 32767} {
        set c [named]
        set request [list mset]
        for {set i 0} {$i < $n} {incr i} {
            lappend request k$i [string repeat [format %c [expr {97 + $i % 26}]] $size]
        }
        set text [resp::encode $request]
        # In two halves, so that the first is there as half a request.
        set cut [expr {[string length $text] / 2 + 7}]
        resp::raw $c [string range $text 0 $cut-1]
        wait_for "half of it to be there" {[update; field_of other qbuf] >= $cut}
        others 300
        resp::raw $c [string range $text $cut end][resp::encode {ping}]
        assert_equal OK [resp::recv $c]
        assert_equal PONG [resp::recv $c]
        foreach i [list 0 1 [expr {$n / 2}] [expr {$n - 1}]] {
            assert {[r get k$i] eq [string repeat [format %c [expr {97 + $i % 26}]] $size]} \
                "k$i of $n"
        }
        assert_equal $n [r dbsize]
        drop $c
        r flushall
    }
    # Large arguments between small ones, and what came before them in several pieces.
    set c [client]
    set request [list del]
    for {set i 0} {$i < 400} {incr i} {lappend request a$i-[string repeat q [expr {$i * 100}]]}
    r set a399-[string repeat q 900] v
    assert_equal 0 [$c {*}$request]
    resp::raw $c [resp::encode [list {*}$request [string repeat b 100000] a \
        [string repeat c 200000] d]]
    assert_equal 0 [resp::recv $c]
    assert_equal PONG [$c ping]
    drop $c
}

test {guarantee 4: a large argument that goes to no place of its own is not moved as it grows} {
    set c [named]
    set big [string repeat 0123456789abcdef [expr {2 << 20}]]
    set before [info_field used_memory]
    resp::raw $c "*2\r\n\$4\r\nECHO\r\n\$[string length $big]\r\n[string range $big 0 9999999]"
    wait_for "a part of it to be there" {[update; field_of other qbuf] >= 10000000}
    # It pays for what has come, not for what was announced.
    assert_range 10000000 [expr {[info_field used_memory] - $before}] 22000000
    others 300
    resp::raw $c "[string range $big 10000000 end]\r\n"
    assert {[resp::recv $c] eq $big}
    drop $c
    wait_for "its memory to be back" {[info_field used_memory] - $before < 2000000}
}

# --- who has not said who he is ---

stop_server
start_server --pool-size 64mb --requirepass pw --enable-debug-command yes
r auth pw

test {guarantee 4: before AUTH little is kept of replies, and who takes none is dropped} {
    foreach {name request} {PING "PING\r\n" HELLO "HELLO\r\n" nonsense\
            "*3\r\n\$1\r\nx\r\n\$1\r\ny\r\n\$1\r\nz\r\n"} {
        set dropped [info_field unauthenticated_disconnections]
        set before [info_field used_memory]
        set c [client]
        catch {resp::raw $c [string repeat $request 300000]}
        wait_for "it to be dropped" {[info_field unauthenticated_disconnections] > $dropped}
        others 200
        assert {[info_field used_memory] - $before < 1000000} $name
        catch {drop $c}
        wait_for "it to be gone" {[info_field connected_clients] == 1}
    }
}

test {guarantee 4: before AUTH little is kept of requests} {
    set dropped [info_field unauthenticated_disconnections]
    set c [client]
    catch {resp::raw $c "*10\r\n[string repeat "\$16384\r\n[string repeat x 16384]\r\n" 9]"}
    wait_for "it to be dropped" {[info_field unauthenticated_disconnections] > $dropped}
    catch {drop $c}
    # Longer than anybody's password, and still a wrong one.
    set c [client]
    assert_error "WRONGPASS*" {$c auth [string repeat u 10000] [string repeat p 16384]}
    assert_error "*unauthenticated multibulk length" {$c echo 1 2 3 4 5 6 7 8 9 10}
    drop $c
    set c [client]
    assert_error "*unauthenticated bulk length" {$c auth [string repeat p 16385]}
    drop $c
}

test {guarantee 6: those who log in are bounded as before, and the books are in order} {
    set c [client]
    assert_equal OK [$c auth pw]
    resp::raw $c [string repeat [resp::encode {echo abc}] 100000]
    for {set i 0} {$i < 100000} {incr i} {if {[resp::recv $c] ne "abc"} {error "reply $i"}}
    drop $c
    assert_equal OK [r debug check]
}

finish
