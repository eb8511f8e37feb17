# HTTP paths of other modules (tests/modules/web.c): at once, later, in pieces, on a port of their
# own; whichever module comes and goes first; and clients that are slow, many or hostile.
source [file join [file dirname [info script]] harness.tcl]

set web $modules/web.so
set secret 0123456789abcdef-token

proc token_file {} {
    set file [temp_dir]/token
    set f [open $file w]
    puts $f $::secret
    close $f
    file attributes $file -permissions 0600
    return $file
}
proc start_web {{http ""} {words ""} args} {
    start_server --enable-module-command yes --loadmodule "http.so port 0 $http" {*}$args
    r module load $::web {*}$words
    set ::http_port [info_field http_port]
}
proc http_open {{port ""}} {
    set s [socket 127.0.0.1 [expr {$port eq "" ? $::http_port : $port}]]
    fconfigure $s -translation binary -buffering none
    return $s
}
proc http_ask {s method path {body ""} args} {
    set head [list "$method $path HTTP/1.1" "Host: x" {*}$args]
    if {$body ne ""} {lappend head "Content-Length: [string length $body]"}
    puts -nonewline $s "[join $head "\r\n"]\r\n\r\n$body"
}
# One answer of a connection that stays open: {status headers body}.
proc http_answer {s} {
    gets $s line
    set status [lindex $line 1]
    set headers {}
    while {[gets $s line] > 0 && $line ne "\r"} {
        regexp {^([^:]+): (.*)\r$} $line -> name value
        dict set headers [string tolower $name] $value
    }
    set body ""
    if {[dict exists $headers content-length]} {
        set body [read $s [dict get $headers content-length]]
    } elseif {[dict exists $headers transfer-encoding]} {
        while {[scan [gets $s] %x n] == 1 && $n > 0} {
            append body [read $s $n]
            gets $s
        }
        gets $s
    }
    return [list $status $headers $body]
}
proc http {method path {body ""} args} {
    set s [http_open]
    http_ask $s $method $path $body {*}$args
    set answer [http_answer $s]
    close $s
    return $answer
}
proc bearer {} {return "Authorization: Bearer $::secret"}
proc status_of {answer} {lindex $answer 0}
proc body_of {answer} {lindex $answer 2}
proc header_of {answer name} {dict get [lindex $answer 1] $name}

test {a path answers: its name, arguments and headers} {
    start_web
    set answer [http GET "/web/hello?name=a%20b&x" "" "X-Word: c"]
    assert_equal "200 application/json" "[status_of $answer] [header_of $answer content-type]"
    assert_equal "{\"path\":\"/web/hello\",\"name\":\"a b\",\"word\":\"c\"}\n" [body_of $answer]
    # the second answer found nobody
    assert_equal 1 [info_field web_closed]
    assert_match {*"path":"/web/items/a/b"*} [body_of [http GET /web/items/a/b]]
    assert_equal 404 [status_of [http GET /web/items]]
    assert_equal 404 [status_of [http GET /web/nothing]]
    assert_equal "429 7" "[status_of [set a [http GET /web/overload]]] [header_of $a retry-after]"
    assert_equal 9 [info_field http_module_paths]
}

test {HEAD; 405 says what is allowed; a connection outlives its errors} {
    set s [http_open]
    http_ask $s GET /web/nothing
    assert_equal 404 [status_of [http_answer $s]]
    http_ask $s POST /web/hello
    set answer [http_answer $s]
    assert_equal "405 GET, HEAD" "[status_of $answer] [header_of $answer allow]"
    http_ask $s PATCH /web/items/x
    set answer [http_answer $s]
    assert_equal "405 GET, HEAD, DELETE" "[status_of $answer] [header_of $answer allow]"
    http_ask $s DELETE /metrics
    set answer [http_answer $s]
    assert_equal "405 GET, HEAD" "[status_of $answer] [header_of $answer allow]"
    http_ask $s HEAD /web/hello
    assert_match "HTTP/1.1 200*" [gets $s]
    while {[gets $s] ne "\r"} {}
    http_ask $s GET /web/hello
    assert_equal 200 [status_of [http_answer $s]]
    close $s
}

test {what changes something wants the token, and is refused where there is none} {
    set answer [http POST /web/echo abc]
    assert_equal 403 [status_of $answer]
    assert_match "*token-file*" [body_of $answer]
    assert_equal 403 [status_of [http DELETE /web/items/x]]
    # it only reads
    assert_equal "200 abc" "[status_of [set a [http POST /web/query abc]]] [body_of $a]"
    start_web "token-file [token_file]"
    assert_equal 401 [status_of [http GET /api/web/numbers]]
    assert_equal 200 [status_of [http GET /api/web/numbers "" [bearer]]]
    foreach {method path} {GET /web/hello POST /web/echo DELETE /web/items/x POST /web/query} {
        set answer [http $method $path]
        assert_equal "401 Bearer" "[status_of $answer] [header_of $answer www-authenticate]"
        assert_equal 200 [status_of [http $method $path "" [bearer]]]
    }
    assert_equal 200 [status_of [http GET /web/open]]
    assert_equal "200 abc" "[status_of [set a [http POST /web/echo abc [bearer]]]] [body_of $a]"
    assert_equal 201 [status_of [http PUT /web/echo abc [bearer]]]
}

test {bodies: long ones, in chunks, after 100-continue; too long ones} {
    start_web
    set long [string repeat x 100000]
    assert_equal $long [body_of [http POST /web/query $long]]
    set s [http_open]
    http_ask $s POST /web/query "" "Transfer-Encoding: chunked"
    foreach piece {hello " " world} {
        puts -nonewline $s "[format %x [string length $piece]]\r\n$piece\r\n"
    }
    puts -nonewline $s "0\r\n\r\n"
    assert_equal "hello world" [body_of [http_answer $s]]
    http_ask $s POST /web/query "" "Content-Length: 3" "Expect: 100-continue"
    assert_equal "HTTP/1.1 100 Continue\r" [gets $s]
    gets $s
    puts -nonewline $s abc
    assert_equal abc [body_of [http_answer $s]]
    # in chunks it is too long before its end is known, and the connection goes on
    http_ask $s POST /web/query "" "Transfer-Encoding: chunked"
    puts -nonewline $s "[format %x 100001]\r\n${long}y\r\n0\r\n\r\n"
    assert_equal 413 [status_of [http_answer $s]]
    http_ask $s POST /web/query abc
    assert_equal abc [body_of [http_answer $s]]
    close $s
    # nobody is asked to go on with what is too long, or not allowed
    foreach {path status} {/web/query 413 /web/echo 403 /web/hello 405 /nowhere 404} {
        set s [http_open]
        http_ask $s POST $path "" "Content-Length: 100001" "Expect: 100-continue"
        assert_equal $status [status_of [http_answer $s]]
        close $s
    }
    # and who never ends is cut off
    set s [http_open]
    http_ask $s POST /web/query "" "Transfer-Encoding: chunked"
    assert {[catch {
        while 1 {puts -nonewline $s "[format %x 100000]\r\n$long\r\n"}
    }]}
    catch {close $s}
    assert_equal 200 [status_of [http GET /web/hello]]
}

test {an answer that comes later, or never} {
    set all {}
    for {set i 0} {$i < 4} {incr i} {
        lappend all [set s [http_open]]
        http_ask $s GET /web/later
    }
    wait_for "all four" {[info_field web_waiting] == 4}
    assert_equal 4 [info_field http_under_way]
    # the fifth is one too many
    set answer [http GET /web/later]
    assert_equal "503 1" "[status_of $answer] [header_of $answer retry-after]"
    # which is nobody else's concern
    assert_equal 200 [status_of [http GET /health]]
    assert_equal 4 [r web.answer here]
    foreach s $all {
        assert_equal here [body_of [http_answer $s]]
        # and the connection goes on
        http_ask $s GET /health
        assert_equal 200 [status_of [http_answer $s]]
        close $s
    }
    r module unload web
    r module load $::web deadline 50
    assert_equal 504 [status_of [http GET /web/later]]
    assert_equal 1 [info_field http_late]
    assert_equal 1 [r web.answer "too late"]
    assert_equal 1 [info_field web_closed]
    assert_equal 0 [info_field http_under_way]
    r module unload web
    r module load $::web
}

test {a client that goes before its answer leaves its place at once} {
    set before [info_field web_closed]
    # more of them than may wait; some have asked for more already
    for {set i 0} {$i < 8} {incr i} {
        set s [http_open]
        http_ask $s GET /web/later
        if {$i % 2} {http_ask $s GET /web/hello}
        wait_for "it waits" {[info_field web_waiting] == $i + 1}
        close $s
        wait_for "it is gone" {[info_field http_under_way] + [info_field http_connections] == 0}
    }
    assert_equal 8 [r web.answer nobody]
    assert_equal [expr {$before + 8}] [info_field web_closed]
    assert_equal 200 [status_of [http GET /web/hello]]
}

test {long answers in pieces, as they are taken} {
    set body [body_of [http GET /web/long?pieces=100]]
    assert_equal 1000000 [string length $body]
    assert_equal 1 [info_field web_drops]
    # who does not read, or goes
    set s [http_open]
    http_ask $s GET /web/long?pieces=100000
    assert_match "HTTP/1.1 200*" [gets $s]
    close $s
    wait_for "it is dropped" {[info_field web_drops] == 2}
    http_ask [set s [http_open]] HEAD /web/long?pieces=5
    assert_match "HTTP/1.1 200*" [gets $s]
    close $s
    wait_for "nobody asked for it" {[info_field web_drops] == 3}
}

test {the module is unloaded while its answers are awaited, or sent} {
    set s [http_open]
    set t [http_open]
    set u [http_open]
    http_ask $s GET /web/later
    http_ask $t GET /web/long?pieces=100000
    puts -nonewline $u "POST /web/query HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"
    wait_for "both" {[info_field web_waiting] == 1 && [info_field http_connections] == 3}
    r module unload web
    set answer [http_answer $s]
    assert_equal 503 [status_of $answer]
    assert_match "*unloaded*" [body_of $answer]
    assert {[string length [read $t]] < 1000000000}
    puts -nonewline $u " more"
    assert_equal 503 [status_of [http_answer $u]]
    foreach c [list $s $t $u] {close $c}
    assert_equal 404 [status_of [http GET /web/hello]]
    assert_equal 0 [info_field http_module_paths]
    r module load $::web
    assert_equal 200 [status_of [http GET /web/hello]]
}

test {http.so goes and comes back, before and after} {
    set s [http_open]
    http_ask $s GET /web/later
    wait_for "it waits" {[info_field web_waiting] == 1}
    r module unload http
    read $s
    close $s
    # an answer that nobody can be given
    set before [info_field web_closed]
    assert_equal 1 [r web.answer late]
    assert_equal [expr {$before + 1}] [info_field web_closed]
    r module load http.so port 0
    set ::http_port [info_field http_port]
    assert_equal 200 [status_of [http GET /web/hello]]
    # and a request of the new one has no number of the old one
    set s [http_open]
    http_ask $s GET /web/later
    wait_for "it waits" {[info_field web_waiting] == 1}
    assert_equal 1 [r web.answer here]
    assert_equal here [body_of [http_answer $s]]
    close $s
}

test {a module that is busy keeps its paths, and who waits for it or reads from it} {
    r module unload web
    r module load $::web busy own open
    set waits [http_open]
    http_ask $waits GET /web/later
    set reads [http_open]
    http_ask $reads GET /web/long?pieces=1000
    wait_for "both" {[info_field web_waiting] == 1 && [info_field http_connections] == 2}
    assert_error "*the web is busy*" {r module unload web}
    assert_equal 200 [status_of [http GET /web/hello]]
    assert_equal abc [body_of [http POST /web/query abc]]
    set s [http_open [info_field http_port_web]]
    http_ask $s POST /query abc
    assert_equal abc [body_of [http_answer $s]]
    close $s
    assert_equal 1 [r web.answer here]
    assert_equal here [body_of [http_answer $waits]]
    assert_equal 10000000 [string length [body_of [http_answer $reads]]]
    foreach s [list $waits $reads] {close $s}
    r web.letgo
    r module unload web
}

test {a port of its own: without the token by the operator's word} {
    start_web "token-file [token_file]" "own open"
    set port [info_field http_port_web]
    foreach {path status} {/register 200 /query 200 /web/hello 404 /metrics 404 /health 404} {
        set s [http_open $port]
        http_ask $s POST $path abc
        assert_equal $status [status_of [http_answer $s]]
        close $s
    }
    # a page in somebody's browser may read, at most
    foreach {path status} {/register 403 /query 200} {
        set s [http_open $port]
        http_ask $s POST $path abc "Origin: http://evil.example"
        assert_equal $status [status_of [http_answer $s]]
        close $s
    }
    # these paths are not on the common port
    assert_equal 404 [status_of [http POST /register abc [bearer]]]
    r module unload web
    assert_error * {http_open $port}
    r module load $::web own token
    set port [info_field http_port_web]
    set s [http_open $port]
    http_ask $s POST /register ""
    assert_equal 401 [status_of [http_answer $s]]
    http_ask $s POST /register abc [bearer]
    assert_equal 200 [status_of [http_answer $s]]
    close $s
}

test {two ports of one module have names of their own} {
    start_web "" "own open second"
    set ports [list [info_field http_port_web] [info_field http_port_web_2]]
    assert {[lindex $ports 0] != [lindex $ports 1]}
    foreach port $ports {
        set s [http_open $port]
        http_ask $s POST /query abc
        assert_equal 200 [status_of [http_answer $s]]
        close $s
    }
    set metrics [body_of [http GET /metrics]]
    foreach {name times} {tarn_http_port_web 1 tarn_http_connections_web 1
        tarn_http_port_web_2 1} {
        assert_equal $times [regexp -all -line "^$name \\d+$" $metrics]
    }
}

test {each port has its own limit of connections} {
    start_web "connections 4" "own open"
    set port [info_field http_port_web]
    set all {}
    for {set i 0} {$i < 8} {incr i} {
        lappend all [set s [http_open $port]]
        puts -nonewline $s "GET /la"
    }
    set s [http_open $port]
    catch {http_ask $s POST /query abc}
    assert_equal "" [read $s]
    close $s
    assert_equal 200 [status_of [http GET /health]]
    foreach s $all {close $s}
    wait_for "there is room" {[set s [http_open $port]; http_ask $s POST /query abc
        set status [status_of [http_answer $s]]; close $s; set status] == 200}
}

test {what cannot be registered is said, and leaves nothing} {
    start_server --enable-module-command yes --loadmodule "http.so port 0"
    set ::http_port [info_field http_port]
    assert_error "*cannot listen on 300.1.1.1*" {r module load $::web own open bind 300.1.1.1}
    assert_error "*HTTP path /health: it is one of http.so's own*" \
        {r module load $::web clash /health}
    assert_error "*HTTP path /web/hello: the module web has it*" \
        {r module load $::web clash /web/hello}
    assert_equal 404 [status_of [http GET /web/hello]]
    # the same where http.so comes last: it is the one that cannot
    r module unload http
    r module load $::web own open bind 300.1.1.1
    assert_error "*cannot listen on 300.1.1.1*" {r module load http.so port 0}
    r module unload web
    r module load $::web own open
    r module load http.so port 0
    set ::http_port [info_field http_port]
    assert_equal 200 [status_of [http GET /web/hello]]
    assert {[info_field http_port_web] > 0}
}

test {crowds, garbage, slow bodies and many headers cost only their sender} {
    start_web "timeout 1 connections 16"
    # pipelined, with bodies and without
    set s [http_open]
    for {set i 0} {$i < 30} {incr i} {
        puts -nonewline $s "POST /web/query HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[format\
            %02d $i]GET /web/hello HTTP/1.1\r\nHost: x\r\n\r\n"
    }
    for {set i 0} {$i < 30} {incr i} {
        assert_equal [format %02d $i] [body_of [http_answer $s]]
        assert_match {*"/web/hello"*} [body_of [http_answer $s]]
    }
    close $s
    set chunked "POST /web/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    foreach bytes [list \
        "POST /web/query HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n" \
        "POST /web/query HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n" \
        "POST /web/query HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabc" \
        "${chunked}zz\r\n" \
        "${chunked}ffffffffffffffff\r\n" \
        "${chunked}3\r\nabcdef\r\n" \
        "POST /web/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nabc" \
        "GET /web/hello HTTP/1.1\r\nHost: x\r\n[string repeat "A: b\r\n" 10000]\r\n" \
        "GET /web/hello?[string repeat a=b& 5000] HTTP/1.1\r\nHost: x\r\n\r\n" \
        "GET /web/items/../../../etc%2f%00x HTTP/1.1\r\nHost: x\r\n\r\n" \
        "GET /web/items/[string repeat \xff 1000] HTTP/1.1\r\nHost: x\r\n\r\n"] {
        set s [http_open]
        catch {puts -nonewline $s $bytes}
        assert_equal 200 [status_of [http GET /web/hello]]
        catch {close $s}
    }
    wait_for "all are gone" {[info_field http_connections] == 0}
    # bodies that never come: as many as there may be connections
    set before [info_field http_slow]
    set all {}
    for {set i 0} {$i < 16} {incr i} {
        lappend all [set s [http_open]]
        puts -nonewline $s "POST /web/query HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"
    }
    wait_for "they are cut off" {[info_field http_slow] == $before + 16}
    foreach s $all {close $s}
    assert_equal 200 [status_of [http GET /web/hello]]
    assert_equal PONG [r ping]
}

test {lists of modules: rows in slices and pages, whatever is in them; none of those without} {
    start_web
    r module load $::modules/older.so
    set script {import json, sys
a = json.load(sys.stdin)
rows = [[r["number"], r["name"], r["square"]] for r in a.pop("numbers")]
print(len(rows), rows[0], rows[-1], a)}
    foreach {path expected} {
        numbers {100 ['0', '"<b>\\\ufffd\n', 0] ['99', '"<b>\\\ufffd\n', 9801]\
            {'next': 100, 'more': False}}
        numbers?count=15&from=30 {20 ['30', '"<b>\\\ufffd\n', 900] ['49', '"<b>\\\ufffd\n', 2401]\
            {'next': 50, 'more': True}}
    } {
        set got [exec env PYTHONIOENCODING=ascii:backslashreplace /usr/bin/python3 -c $script << \
            [body_of [http GET /api/web/$path]]]
        assert_equal [regsub -all {\s+} $expected " "] $got
    }
    assert_match {\{"of":\[\{"number":"7",*\}\],"next":8,"more":false\}*} \
        [body_of [http GET /api/web/of/7]]
    foreach path {/api/web/nothing /api/web/ /api/web/of/x /api/older/numbers /api/nobody/numbers
            /api/web//numbers /api//numbers /api/web/numbers/ /api/http/numbers} {
        assert_equal "404 $path" "[status_of [http GET $path]] $path"
    }
    assert_equal 404 [status_of [http GET /api/web/[string repeat x 1000]]]
    assert_equal 405 [status_of [http POST /api/web/numbers x]]
    r module unload web
    assert_equal 404 [status_of [http GET /api/web/numbers]]
}

test {both modules come and go under a crowd of hostile clients} {
    start_web "timeout 1" "own open deadline 50"
    set peers [open "|/usr/bin/python3 [file join [file dirname [info script]] http_hostile.py]\
        7 40 $::http_port [info_field http_port_web]" r+]
    fconfigure $peers -blocking 0 -buffering line
    set ::hostile ""
    for {set round 0} {$::hostile eq ""} {incr round} {
        r web.answer [string repeat a [expr {$round % 5 * 30000}]]
        if {$round % 3 == 0} {
            r module unload web
            r module load $::web own open deadline 50
        } else {
            r module unload http
            r web.answer nobody
            r module load http.so port 0 timeout 1
        }
        set ::http_port [info_field http_port]
        catch {puts $peers "$::http_port [info_field http_port_web]"}
        set ::round_asked [info_field http_requests]
        wait_for "some more" {[gets $peers ::hostile] >= 0 ||
            [info_field http_requests] > $::round_asked + 20}
    }
    close $peers
    assert {$::hostile >= 240}
    assert {$round > 2}
    assert_equal 200 [status_of [http GET /web/hello]]
    wait_for "all are gone" {[info_field http_under_way] + [info_field http_connections] +
        [info_field http_connections_web] == 0}
}

finish
