# libtarn, storage nodes and the data port over TLS: every way that bytes take between processes,
# what happens when one of them dies, and what is said to those who are not let in.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] tls.tcl]
need_openssl
set ::benchmark [expr {[info exists ::env(TARN_BENCHMARK)] ? $::env(TARN_BENCHMARK) :\
    [file join [file dirname $::server_binary] tarn-benchmark]}]

# --- certificates and URLs ---

make_ca ca
make_ca otherca
foreach {name ca} {server ca node ca user ca stranger otherca} {make_cert $name $ca}

# The URL of whom that certificate is ("": nobody), who trusts that CA.
proc tls_url {{user user} {ca ca} {more ""}} {
    set url tarns://$::server_host:[info_field tls_port]?tls_ca_file=[pem $ca.crt]
    if {$user ne ""} {append url "&tls_cert_file=[pem $user.crt]&tls_key_file=[pem $user.key]"}
    return $url$more
}
set ::url_of plain
proc server_url {} {
    if {$::url_of eq "plain"} {return tarn://$::server_host:[server port]}
    return [tls_url $::url_of]
}
# What kv says on standard error when it is to fail.
proc kv_refused {url args} {
    lassign [kv_exec [linsert $args 0 $url]] status text errors
    if {$status == 0} {error "kv was let in: $text"}
    return $errors
}
proc endpoints {segment} {return [segment_field $segment endpoints]}

# --- the control plane ---

start_server --pool-size 160mb
open_tls_port

test {libtarn by tarns://, the data port plain} {
    set ::url_of user
    assert_equal "20 0" [kv_fields [kv load a: 20 1000-300000] ok errors]
    kv_all 20 verify a: 20 1000-300000
    kv_all 20 --transport tcp verify a: 20 1000-300000
    assert_match "tcp://*" [lindex [endpoints [dict get [lindex [r segment list] 0] name]] end]
    assert_equal 0 [info_field data_bad_frames]
}

test {who is not let in is told why} {
    set ::url_of plain
    assert_match "*TLS with 127.0.0.1:*: the peer's certificate is not accepted*" \
        [kv_refused [tls_url user otherca] get a:1]
    assert_match "*the peer refused: *" [kv_refused [tls_url stranger] get a:1]
    assert_match "*it wants a certificate*" [kv_refused [tls_url ""] get a:1]
    assert_match "*not accepted: hostname mismatch, it is not for \"elsewhere.test\"*" \
        [kv_refused [tls_url user ca &tls_server_name=elsewhere.test] get a:1]
    assert_match "*/no/such/file*" \
        [kv_refused tarns://127.0.0.1:[server port]?tls_ca_file=/no/such/file get a:1]
    assert_match "*127.0.0.1:[server port] does not speak TLS*" \
        [kv_refused tarns://127.0.0.1:[server port]?tls_ca_file=[pem ca.crt] get a:1]
    assert_match "*tarns://*" [kv_refused tarn://127.0.0.1:[info_field tls_port] get a:1]
    assert_match "*tls_*tarns://*" [kv_refused tarn://127.0.0.1:[server port]?tls_ca_file=[pem \
        ca.crt] get a:1]
    # It is all the same if nobody looks.
    set anybody tarns://127.0.0.1:[info_field tls_port]?tls_verify=no&tls_cert_file=[pem \
        user.crt]&tls_key_file=[pem user.key]
    assert_equal 0 [lindex [kv_exec [list $anybody verify a: 20 1000-300000]] 0]
}

test {tarn-benchmark by --tls} {
    set tls [list --tls --cacert [pem ca.crt] --cert [pem user.crt] --key [pem user.key]]
    set said [exec $::benchmark -p [info_field tls_port] {*}$tls meta --op put --keys 500 \
        --seconds 0.2]
    assert_match "*, 0 errors*" $said
    r flushall ;# what it reads must not have gone for its own puts, whatever the policy
    set said [exec $::benchmark -p [info_field tls_port] {*}$tls data --transport resp --op get \
        --block-size 64k --batch 1 --seconds 0.2 --warm-up 0.1 --check]
    assert_match "*resp*64k*" $said
    assert {[catch {exec $::benchmark -p [info_field tls_port] --tls meta --op put --keys 5 2>@1}\
        why]}
    assert_match "*not accepted*" $why
    r flushall
}

# What a client of the pool has: of the same authority, and for no name that anybody connects to.
make_cert client ca 2 DNS:client.example
make_cert nameless ca 2 ""
proc names_of {cert} {return [list --tls-cert-file [pem $cert.crt] --tls-key-file [pem $cert.key]]}

test {guarantee 6: who has a certificate of the same authority does not play the master, nor a\
        Sentinel} {
    set ::url_of user
    set tls [list --tls --cacert [pem ca.crt] --cert [pem user.crt] --key [pem user.key]]
    set meta {meta --op put --keys 5 --seconds 0.1}
    foreach cert {client nameless} {
        r config set tls-cert-file [pem $cert.crt] tls-key-file [pem $cert.key]
        set why "*the peer's certificate is not accepted: IP address mismatch, it is not for\
            \"127.0.0.1\"*"
        assert_match $why [kv_refused [tls_url] get a:1]
        assert {[catch {exec $::benchmark -p [info_field tls_port] {*}$tls {*}$meta 2>@1} said]}
        assert_match $why $said
        assert {[catch {exec $::benchmark -p [info_field tls_port] {*}$tls data --transport tcp\
            --seconds 0.1 2>@1} said]}
        assert_match $why $said
        set sentinel [string map {tarns: tarns+sentinel: ? /pool?} [tls_url]]
        assert_match "*none of 1 Sentinels*IP address mismatch*" \
            [kv_refused $sentinel&connect_timeout_ms=1000 get a:1]
        launch_node impostor --segment 8mb
        assert_equal 4 [reap_node impostor]
        assert_match $why [file_text [node impostor dir]/stdout]
        dict unset ::node_table impostor
        # Who does not look takes what is there, and says so.
        assert_equal 0 \
            [lindex [kv_exec [list [tls_url user ca &tls_verify_name=no] verify a: 20 \
            1000-300000]] 0]
        assert_match "*, 0 errors*" [exec $::benchmark -p [info_field tls_port] {*}$tls \
            --tls-verify-name no {*}$meta]
    }
    # Another name than the one that is connected to, because the user says so.
    r config set tls-cert-file [pem client.crt] tls-key-file [pem client.key]
    assert_equal 0 \
        [lindex [kv_exec [list [tls_url user ca &tls_server_name=client.example] verify a: 20 \
        1000-300000]] 0]
    assert_match "*, 0 errors*" [exec $::benchmark -p [info_field tls_port] {*}$tls \
        --sni client.example {*}$meta]
    assert {[catch {exec $::benchmark -p [info_field tls_port] {*}$tls --tls-verify-name maybe\
        {*}$meta 2>@1} said]}
    assert_match "*--tls-verify-name is yes or no*" $said
    r config set tls-cert-file [pem server.crt] tls-key-file [pem server.key]
    # By a name, too.
    assert_equal 0 \
        [lindex [kv_exec [list [string map {127.0.0.1 localhost} [tls_url]] verify a: 20 \
        1000-300000]] 0]
}

# --- nodes whose data ports speak TLS ---

# Machines of their own, so that nothing goes by shared memory.
proc start_tls_node {name args} {
    set ::url_of node
    start_node $name --tls-data --host-name m-$name --segment 96mb {*}$args
    set ::url_of user
}

test {a node with --tls-data offers tcps://, and values go there and back} {
    start_tls_node n1
    start_tls_node n2
    assert_match "tcps://127.0.0.1:* shm://*" [endpoints n1.0]
    set a [kv --host elsewhere --prefer n1.0 load b: 30 1000-400000]
    assert_equal "30 0" [kv_fields $a ok errors]
    assert_equal [dict get $a bytes] [dict get $a tcp_bytes]
    kv_all 30 --host elsewhere verify b: 30 1000-400000
    set a [kv --timeout 240000 --host elsewhere --prefer n2.0 load large: 1 67108864]
    assert_equal "1 0" [kv_fields $a ok errors] [dict get $a error]
    set a [kv_all 1 --timeout 240000 --host elsewhere verify large: 1 67108864]
    assert_equal 67108864 [dict get $a tcp_bytes]
    # On the node's own machine by shared memory, as before.
    set a [kv_all 30 --host m-n1 verify b: 30 1000-400000]
    assert_equal [dict get $a bytes] [dict get $a shm_bytes]
}

test {a client without TLS cannot reach them, and is told so} {
    set ::url_of plain
    set a [kv --host elsewhere verify b: 1 1000-400000]
    assert_equal "0 1" [kv_fields $a ok errors]
    assert_match "*segment n1.0 is reached over TLS only*tarns://*" [dict get $a error]
    # What there is on this machine is there for all.
    kv_all 30 --host m-n1 verify b: 30 1000-400000
    set ::url_of user
}

# Calls of a command since the last CONFIG RESETSTAT.
proc calls {command} {
    return [expr {[regexp "cmdstat_$command:calls=(\\d+)" [r info commandstats] - n] ? $n : 0}]
}

proc embedded {} {return [dict get [lindex [r segment list] 0] name]}

test {a client without TLS in a pool of both kinds asks once for what it cannot reach, not at\
        every get and put} {
    set ::url_of plain
    r config resetstat
    assert_equal "0 30" [kv_fields [kv --host elsewhere verify b: 30 1000-400000] ok errors]
    assert_range 1 [calls segment\\|info] 15 ;# half a minute later it would ask again
    # With another replica on a host without TLS it does not matter.
    set ::url_of user
    assert_equal "20 40 0" [kv_fields [kv --host elsewhere --replicas 2 --prefer n1.0 \
        --prefer [embedded] load mixed: 20 1000-400000] ok replicas errors]
    set ::url_of plain
    r config resetstat
    kv_all 20 --host elsewhere verify mixed: 20 1000-400000
    assert_range 1 [calls segment\\|info] 10
    # Puts that are sent to such a host go elsewhere, and the next ones at once.
    r config resetstat
    assert_equal "20 0" [kv_fields [kv --host elsewhere --prefer n1.0 load apart: 20 1000-400000] \
        ok errors]
    assert_range 1 [calls segment\\|info] 10
    assert_range 1 [calls mputstart] 15
    set ::url_of user
}

test {certificates that are for somebody else end it at the node, where they did not at the\
        master} {
    # The master's is of the name that is asked for, those of the nodes are not.
    proc server_url {} {return [tls_url user ca &tls_server_name=server]}
    set a [kv --host elsewhere --timeout 5000 verify b: 1 1000-400000]
    assert_equal "0 1" [kv_fields $a ok errors]
    assert_match "*TLS with tcps://127.0.0.1:*hostname mismatch*" [dict get $a error]
    proc server_url {} {
        return [expr {$::url_of eq "plain" ? "tarn://$::server_host:[server port]" :\
            [tls_url $::url_of]}]
    }
    kv_all 1 --host elsewhere verify b: 1 1000-400000
}

test {guarantee 6: who has a certificate of the same authority does not play a host} {
    start_tls_node n9 {*}[names_of client]
    set why "*TLS with tcps://127.0.0.1:*IP address mismatch*"
    assert_equal "1 0" [kv_fields [kv --host m-n9 --prefer n9.0 load impostor: 1 100000] ok errors]
    set a [kv --host elsewhere --timeout 5000 verify impostor: 1 100000]
    assert_equal "0 1" [kv_fields $a ok errors]
    assert_match $why [dict get $a error]
    # The master reads and writes values there, and nodes copy: neither does from this one.
    assert {[catch {r get impostor:0} got] || $got eq "(nil)"}
    assert_match "*TLS with the data port tcps://127.0.0.1:*IP address mismatch*" \
        [file_text [server log]]
    r replica copy impostor:0 to n2.0
    wait_for "the copy to be given up" {[llength [r replica tasks state failed]] == 1}
    assert_equal 1 [llength [lindex [r getreplicas impostor:0] 4]]
    # Each of them has the same way out.
    r config set tls-verify-name no
    assert_equal 100000 [string length [r get impostor:0]]
    r config set tls-verify-name yes tls-server-name client.example
    assert_equal 100000 [string length [r get impostor:0]]
    r config set tls-server-name {}
    proc server_url {} {return [tls_url user ca &tls_verify_name=no]}
    kv_all 1 --host elsewhere verify impostor: 1 100000
    proc server_url {} {
        return [expr {$::url_of eq "plain" ? "tarn://$::server_host:[server port]" :\
            [tls_url $::url_of]}]
    }
    stop_node n9
    dict unset ::node_table n9
}

test {copies from node to node} {
    r replica copy b:3 to n2.0
    wait_for "a copy" {[llength [r replica list b:3]] == 2}
    wait_for "it to be whole" {[string length [r getreplicas b:3]] > 0 && \
        [llength [lindex [r getreplicas b:3] 4]] == 2}
    kv_all 30 --host m-n2 verify b: 30 1000-400000
}

test {a killed node: gets go on at the other replica, puts elsewhere} {
    assert_equal "20 40 0" [kv_fields [kv --host elsewhere --replicas 2 load both: 20 1000-400000] \
        ok replicas errors]
    set run [kv_start --host elsewhere --replicas 2 --fill --pause 1 --failover 300 run both: 20 \
        1000-400000]
    kill_node n1
    wait_node n1 down
    kv_all 20 --host elsewhere --failover 300 verify both: 20 1000-400000
    set a [kv_stop $run]
    assert_equal "0 0" [kv_fields $a errors wrong] [dict get $a error]
    set ::url_of node
    restart_node n1
    set ::url_of user
    assert_equal "5 10 0" [kv_fields [kv --host elsewhere --replicas 2 load again: 5 1000-400000] \
        ok replicas errors]
}

# --- a node's certificate is renewed ---

# now.crt and now.key become those; as a whole each.
proc put_in_place {cert key} {
    foreach {from to} [list $cert now.crt $key now.key] {
        file copy -force [pem $from] [pem $to.new]
        file rename -force [pem $to.new] [pem $to]
    }
}
proc hang_up {node pattern} {
    set ::log_path [node $node log]
    set ::log_pattern $pattern
    set ::seen [regexp -all $pattern [file_text $::log_path]]
    send_signal HUP [node $node pid]
    wait_for "the node to say $pattern" {[regexp -all $::log_pattern [file_text $::log_path]] ==\
        $::seen + 1}
}
# The name in the certificate of a node's data port.
proc served {node} {
    regexp {tcps://(\S+)} [lindex [endpoints $node.0] 0] - at
    catch {exec openssl s_client -connect $at -CAfile [pem ca.crt] -cert [pem user.crt]\
        -key [pem user.key] << "" 2>@1} text
    regexp {subject=CN = (\S+)} $text - name
    return $name
}
# How often somebody has shown that certificate to the master.
proc times_shown {name} {return [regexp -all "certificate: $name\n" [file_text [server log]]]}

proc copy_to_n3 {key} {
    r replica copy $key to n3.0
    set ::copied $key
    wait_for "a copy" {[llength [lindex [r getreplicas $::copied] 4]] == 2}
}

test {a node takes renewed certificates at SIGHUP, for its data port, its connections to the\
        master and to other nodes} {
    foreach name {first renewed} {make_cert $name ca}
    make_cert late ca -1
    spit junk.crt "this is no certificate"
    r config set loglevel debug
    put_in_place first.crt first.key
    set ::url_of now
    start_node n3 --tls-data --host-name m-n3 --segment 96mb
    set ::url_of user
    assert_equal first [served n3]
    assert {[times_shown first] > 0 && [times_shown renewed] == 0}
    assert_equal "10 0" [kv_fields [kv --host elsewhere --prefer n3.0 load renew: 10 1000-400000] \
        ok errors]
    # Copies are read by a client of their own.
    assert_equal "5 0" [kv_fields [kv --host elsewhere --prefer n2.0 load copied: 5 100000] ok \
        errors]
    copy_to_n3 copied:0
    set run [kv_start --host elsewhere --transport tcp --pause 1 run renew: 10 1000-400000]
    put_in_place renewed.crt renewed.key
    assert_equal first [served n3] ;# nothing is read before it is told to
    hang_up n3 "certificates, keys and authorities were read again"
    assert_equal renewed [served n3]
    # What cannot be used is said, and not taken.
    foreach {cert key why} {
        junk.crt renewed.key "now.crt: nothing of that kind is in it" renewed.crt first.key \
            "it is not the key of the certificate"
        late.crt late.key "now.crt: it has expired"
    } {
        put_in_place $cert $key
        hang_up n3 "what there was is kept\[^\n\]*$why"
        assert_equal renewed [served n3] $why
    }
    put_in_place renewed.crt renewed.key
    set a [kv_stop $run]
    assert_equal "0 0" [kv_fields $a wrong errors] [dict get $a error]
    # Its next connections to the master.
    set joins [node_field n3 joins]
    set before [times_shown first]
    r client kill type normal skipme yes
    wait_for "the node to be back" {[times_shown renewed] > 0 && [node_field n3 joins] > $::joins} \
        [set ::joins $joins]
    wait_node n3 up
    kv_all 10 --host elsewhere --transport tcp verify renew: 10 1000-400000
    copy_to_n3 copied:1
    assert_equal $before [times_shown first]
    assert {[times_shown renewed] > 2} \
        "two connections of the node, and one of those who make copies"
    kv_all 5 --host elsewhere --transport tcp verify copied: 5 100000
    r config set loglevel notice
    stop_node n3
}

test {options of tarn-node that make no sense are refused with a message} {
    foreach {status options said} {
        2 {--tls-cert-file /x} *--tls-data* 2 {--tls-data --master tarn://127.0.0.1:1} *tarns://*
        2 {--tls-data --tls-auth-clients maybe} {*yes, optional or no*} 1 \
            {--tls-data --tls-cert-file /no/file --tls-key-file /no/key} */no/file*
    } {
        set ::url_of node
        launch_node bad {*}$options
        set ::url_of user
        assert_equal $status [reap_node bad] $options
        assert_match $said [file_text [node bad dir]/stdout]
        dict unset ::node_table bad
    }
}
stop_server

# --- a server without memory of its own: what plain Redis clients write is on nodes ---

start_server --pool-size 0
open_tls_port

test {in-band values that the server reads from nodes, and writes there} {
    start_tls_node n1
    foreach n {100 70000 1048577 5000000} {
        set value [string repeat [format %08d $n] [expr {$n / 8}]]
        assert_equal OK [r set v$n $value]
        assert {[r get v$n] eq $value} "($n)"
        assert {[kv_value v$n --host elsewhere] eq $value} "($n)"
    }
    assert_equal 0 [info_field inband_failures]
    assert {![string match "*TLS with the data port*" [file_text [server log]]]}
}

test {values on a node's disk} {
    set disk [temp_dir]
    start_tls_node n3 --ssd $disk:128mb
    assert_match tcps://* [endpoints n3.ssd]
    assert_equal "10 0" [kv_fields [kv --host elsewhere --prefer n3.0 load d: 10 1000-3000000] ok \
        errors]
    wait_for "copies on the disk" {[segment_field n3.ssd replicas] >= 10}
    r evict ratio 1
    wait_for "memory to be free" {[segment_field n3.0 replicas] == 0}
    set a [kv_all 10 --host elsewhere verify d: 10 1000-3000000]
    assert_equal [dict get $a bytes] [dict get $a tcp_bytes]
    assert_equal [r strlen d:3] [string length [r get d:3]]
    stop_node n3
    dict unset ::node_table n3
}

test {a node whose certificate nobody trusts: the server says so in its log, and goes on} {
    start_tls_node n2 --tls-cert-file [pem stranger.crt] --tls-key-file [pem stranger.key]
    assert_equal "1 0" [kv_fields [kv --host m-n2 --prefer n2.0 load there: 1 100000] ok errors]
    assert {[catch {r get there:0} got] || $got eq "(nil)"}
    assert_match "*TLS with the data port tcps://127.0.0.1:*not accepted*" [file_text [server log]]
    set a [kv --host elsewhere --timeout 5000 verify there: 1 100000]
    assert_equal "0 1" [kv_fields $a ok errors]
    assert_match "*TLS with tcps://127.0.0.1:*not accepted*" [dict get $a error]
    assert_equal 1 [r exists there:0]
    assert_equal "1 0" [kv_fields [kv --host m-n2 verify there: 1 100000] ok errors]
}
stop_server

# --- a server with TLS and nothing else ---

# Its connections are pipes to openssl.
proc client {} {
    set c [resp::adopt \
        [open "|openssl s_client -quiet -connect $::server_host:[server port] -CAfile [pem\
        ca.crt] -cert [pem user.crt] -key [pem user.key] 2>> [pem s_client.log]" r+]]
    lappend ::clients $c
    return $c
}
start_server --port 0 --tls-port auto --tls-data yes --tls-cert-file [pem server.crt] \
    --tls-key-file [pem server.key] \
    --tls-ca-cert-file [pem ca.crt] --pool-size 160mb

test {tls-data: the server's own memory by tcps:// only} {
    set ::url_of user
    assert_match "*tcps://127.0.0.1:*" [segment_field [dict get [lindex [r segment list] 0] name] \
        endpoints]
    assert_equal "10 0" [kv_fields [kv --transport tcp load c: 10 1000-400000] ok errors]
    set a [kv --timeout 240000 --transport tcp load large: 1 67108864]
    assert_equal "1 0" [kv_fields $a ok errors] [dict get $a error]
    set a [kv_all 1 --timeout 240000 --transport tcp verify large: 1 67108864]
    assert_equal 67108864 [dict get $a tcp_bytes]
    kv_all 10 verify c: 10 1000-400000
    # Plain text at the data port is refused, in plain text, and harms nobody.
    set before [info_field data_bad_frames]
    regexp {tcps://127.0.0.1:(\d+)} [segment_field [dict get [lindex [r segment list] 0] name] \
        endpoints] - port
    set fd [socket 127.0.0.1 $port]
    fconfigure $fd -translation binary
    puts -nonewline $fd "TNRD[binary format cu2cu2 {0 1} {0 0}][string repeat \0 48]"
    flush $fd
    assert_match "TNRD*this data port speaks TLS only*" [read $fd]
    close $fd
    wait_for "it to be counted" {[info_field data_bad_frames] > 0}
    assert_equal [expr {$before + 1}] [info_field data_bad_frames]
    kv_all 10 --transport tcp verify c: 10 1000-400000
}

test {certificates that are changed while it runs} {
    set reads [info_field data_reads]
    set run [kv_start --transport tcp --pause 1 run c: 10 1000-400000]
    wait_for "it to be connected" {[info_field data_reads] > $reads}
    openssl x509 -req -in [pem server.csr] -CA [pem otherca.crt] -CAkey [pem otherca.key] \
        -CAcreateserial -days 2 -extfile [pem server.ext] \
        -out [pem renewed.crt]
    r config set tls-cert-file [pem renewed.crt]
    # Connections that are there stay; new ones see the new certificate.
    set a [kv_stop $run]
    assert_equal "0 0" [kv_fields $a errors wrong] [dict get $a error]
    assert_match "*not accepted*" [kv_refused [tls_url] get c:1]
    assert_equal 0 \
        [lindex [kv_exec [list --transport tcp [tls_url user otherca] verify c: 10 1000-400000]] 0]
    r config set tls-cert-file [pem server.crt]
    kv_all 10 --transport tcp verify c: 10 1000-400000
}

test {tls-data without a tls-port is refused at the start} {
    assert_error "*tls-data needs a tls-port*" {start_server --tls-data yes\
        --tls-ca-cert-file [pem ca.crt]}
    assert_error "*tls-data*" {r config set tls-data no}
}

finish
