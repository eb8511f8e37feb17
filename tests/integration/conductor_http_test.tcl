# The HTTP paths of conductor.so: engines register there, and what they publish is found there, on
# a port of their own and on http.so's; who may; on a replica, and after a restart.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] http.tcl]
source [file join [file dirname [info script]] conductor.tcl]

proc up_http {name {words ""} {http ""}} {
    up $name --enable-module-command yes --appendonly yes --loadmodule "http.so port 0 $http"
    ask $name module load conductor.so {*}$words
}
# {STATUS BODY}, of a connection that stays open.
proc post_on {fd path body args} {
    set head [list "POST $path HTTP/1.1" "Host: x" "Content-Length: [string length $body]" {*}$args]
    puts -nonewline $fd "[join $head "\r\n"]\r\n\r\n$body"
    set status [lindex [gets $fd] 1]
    set length 0
    while {[gets $fd line] > 0 && $line ne "\r"} {
        regexp -nocase {^content-length: (\d+)} $line -> length
    }
    return [list $status [string trimright [read $fd $length] "\n"]]
}
proc post {port path body args} {
    set ::http_port $port
    set fd [http_open]
    set answer [post_on $fd $path $body {*}$args]
    close $fd
    return $answer
}
proc registration {id endpoint args} {
    foreach {name value} [list endpoint $endpoint type vLLM modelname m instance_id $id {*}$args] {
        lappend members "\"$name\":\"$value\""
    }
    return "{[join $members ,],\"block_size\":16,\"dp_rank\":0}"
}
proc tokens_json {chain n} {
    for {set i 0} {$i < $n} {incr i} {lappend ids [expr {$chain * 100000 + $i}]}
    return \[[join $ids ", "]\]
}
# {GPU CPU DISK} of that chain's first 160 tokens at the engine.
proc http_found {port id chain} {
    set body "{\"model\":\"m\",\"block_size\":16,\"token_ids\":[tokens_json $chain 160]}"
    lassign [post $port /query $body] status said
    assert_equal 200 $status
    set hit {"longest_matched":\d+,"GPU":(\d+),"DP":.[^A-Z]*"CPU":(\d+),"DISK":(\d+)}
    set re "\"$id\":.$hit"
    return [expr {[regexp $re $said -> gpu cpu disk] ? [list $gpu $cpu $disk] : "nothing"}]
}
proc http_finds {port id chain what} {
    set ::finding [list $port $id $chain]
    set ::expected $what
    wait_for "$id to have $what of chain $chain" {[http_found {*}$::finding] eq $::expected}
}
proc router {port format} {
    set ::router [open [list | /usr/bin/python3 \
        [file join [file dirname [info script]] conductor_router.py] $port $format] r+]
    fconfigure $::router -buffering line
}
proc route {args} {
    puts $::router $args
    return [gets $::router]
}
proc endpoint {name} {return tcp://127.0.0.1:[lindex $::ports($name) 0]}
proc replay {name} {return tcp://127.0.0.1:[lindex $::ports($name) 1]}

publisher e1
publisher e2
up_http a "http-port 0 http-open yes"
set port [field a http_port_conductor]

test {registered over HTTP, followed, and found} {
    assert_equal {200 {{"status":"registered successfully","instance_id":"e1"}}} \
        [post $port /register [registration e1 [endpoint e1] replay_endpoint [replay e1]]]
    say e1 await 1
    say e1 store 1 0 4
    http_finds $port e1 1 {64 0 0}
    say e1 store 1 4 6 medium CPU
    http_finds $port e1 1 {64 32 0}
    # the same table as that of the commands
    finds a e1 1 {64 96 96}
    assert_equal {e1 m e1 live 0} \
        [lmap f {id model url events partial} {dict get [lindex [ask a conductor.list] 0] $f}]
    assert_equal OK [ask a conductor.add e2 http://e2 MODEL m {*}[events e2]]
    say e2 await 1
    say e2 store 1 0 9
    http_finds $port e2 1 {144 0 0}
}

foreach format {json msgpack} {
    test "a router's calls, in $format" {
        router $port $format
        assert_equal ok [route register e1 [endpoint e1] 0]
        assert_equal ok [route register e2 [endpoint e2] 0]
        assert_match "400 endpoint: EVENTS must be *" [route register e3 nowhere 0]
        assert_equal "400 dp_rank: the number is too large" [route register e1 [endpoint e1] 64]
        assert_equal "e2 144" [route choose 1 160]
        assert_equal "e1 64" [route choose 1 64]
        assert_equal "e2 64" [route choose 1 79]
        assert_equal nobody [route choose 9 160]
        assert_equal nobody [route choose 1 160 salt]
        assert_equal nobody [route choose 1 15]
        say e1 store 2 0 4 extra salt
        set ::awaited {}
        wait_for "e1 to have the salted chain" {[route choose 2 64 salt] eq "e1 64"}
        assert_equal nobody [route choose 2 64]
        say e1 remove 2 0 4
        wait_for "e1 to have lost it" {[route choose 2 64 salt] eq "nobody"}
        # another engine of the same streams, to be unregistered
        assert_equal ok [route register e3 [endpoint e1] 1]
        assert_equal ok [route unregister e3 1]
        assert_equal "404 service not found: e3|default|1" [route unregister e3 1]
        close $::router
    }
}

test {who is wrong is told, and the connection stays} {
    set ::http_port $port
    set fd [http_open]
    foreach {path body wrong} {
        /register "" {400 {{"error":"it is no object"}}}
        /register {{"endpoint"}} {400 {{"error":"a colon is missing"}}}
        /query {{"model":"m","token_ids":[1,]}}
        {400 {{"error":"token_ids: a number from 0 on is missing"}}}
        /query {{"model":"m","token_ids":[1],"block_size":99999999}}
        {400 {{"error":"block_size: the number is too large"}}}
        /query_by_hash {{"model":"m","seq_hashes":["1"]}}
        {400 {{"error":"seq_hashes: a number from 0 on is missing"}}}
        /unregister {{"instance_id":"e9"}} {404 {{"error":"service not found: e9|default|0"}}}
    } {
        assert_equal $wrong [post_on $fd $path $body]
    }
    assert_match "200 *\"e1\":*" [post_on $fd /query {{"model":"m","token_ids":[1]}}]
    close $fd
    set ::http_port $port
    assert_equal 413 [http_status [http_raw \
        "POST /register HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n"]]
    assert_equal 405 [http_status [http_raw "GET /query HTTP/1.0\r\n\r\n"]]
    assert_equal 404 [http_status [http_raw "GET /metrics HTTP/1.0\r\n\r\n"]]
    # Pages of a browser change nothing, though nobody else is asked for a token here.
    assert_equal 403 [lindex [post $port /unregister {{"instance_id":"e1"}} "Origin: http://x"] 0]
    assert_equal 2 [llength [ask a conductor.list]]
}

test {a replica finds the same, and registers nobody} {
    up_http b "http-port 0 http-open yes"
    set other [field b http_port_conductor]
    follow b a
    foreach name {e1 e2} {say $name await 2}
    http_finds $other e1 1 {64 32 0}
    http_finds $other e2 1 {144 0 0}
    set wrong "503 *READONLY this server is a replica*"
    assert_match $wrong [post $other /register [registration e4 [endpoint e1]]]
    assert_match $wrong [post $other /unregister {{"instance_id":"e1"}}]
    # What the master registers is there.
    assert_match "200 *" [post $port /register [registration e4 [endpoint e1]]]
    http_finds $other e4 1 {0 0 0}
    assert_match "200 *" [post $port /unregister {{"instance_id":"e4"}}]
    http_finds $other e4 1 nothing
    down b
}

test {what refuses ADD refuses to register} {
    ask a config set min-replicas-to-write 1
    assert_match "503 *NOREPLICAS *" [post $port /register [registration e4 [endpoint e1]]]
    assert_match "503 *NOREPLICAS *" [post $port /unregister {{"instance_id":"e1"}}]
    ask a config set min-replicas-to-write 0
    ask a client pause 100000 write
    assert_match "503 *TRYAGAIN 100 *" [post $port /register [registration e4 [endpoint e1]]]
    ask a client unpause
    assert_match "200 *" [post $port /register [registration e4 [endpoint e1]]]
    assert_match "200 *" [post $port /unregister {{"instance_id":"e4"}}]
}

test {it is there after a restart} {
    again a
    ask a module load conductor.so http-port 0 http-open yes
    set port [field a http_port_conductor]
    http_finds $port e1 1 {64 32 0}
}

test {with a token; and on http.so's own port} {
    set token [token_write token 0600]
    up_http c "http-port 0" "token-file $token"
    set port [field c http_port_conductor]
    set bearer "Authorization: Bearer 0123456789abcdef-token"
    foreach p [list $port [field c http_port]] {
        assert_equal 401 [lindex [post $p /register [registration e1 [endpoint e1]]] 0]
        assert_equal 401 [lindex [post $p /query {{"model":"m","token_ids":[1]}}] 0]
        assert_equal 200 [lindex [post $p /register [registration e1 [endpoint e1]] $bearer] 0]
        assert_equal 200 [lindex [post $p /query {{"model":"m","token_ids":[1]}} $bearer] 0]
        assert_equal 200 [lindex [post $p /unregister {{"instance_id":"e1"}} $bearer] 0]
    }
    down c
    # Without one nobody registers, unless the operator says so; asking is free.
    up_http d "http-port 0"
    set port [field d http_port_conductor]
    assert_match "403 *token-file*" [post $port /register [registration e1 [endpoint e1]]]
    assert_match "200 *" [post $port /query {{"model":"m","token_ids":[1]}}]
    down d
}

test {no port that nobody asked for} {
    up_http e
    assert_error "*has no http_port_conductor" {field e http_port_conductor}
    assert_equal 4 [field e http_module_paths]
    ask e module unload conductor
    foreach {words wrong} {
        "http-bind 0.0.0.0" "*http-bind and http-open go with http-port*"
        "http-port 70000" "*http-port 70000: must be a number from 0 to 65535*"
        "http-port 0 http-open maybe" "*http-open maybe: must be yes or no*"
        "http-port" "*'http-port' wants a value*"
        "http-prt 1" "*unknown word 'http-prt'*http-port N*"
    } {
        assert_error $wrong {ask e module load conductor.so {*}$words}
    }
    down e
}

foreach name {e1 e2} {publisher_kill $name}

finish
