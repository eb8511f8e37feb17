# TLS of the RESP port and of the link between servers: unmodified clients, certificates of all
# kinds, files changed while it serves, handshakes that do not end, streams that are cut.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] tls.tcl]
need_openssl

# --- certificates ---

make_ca ca
make_ca otherca
foreach name {server renewed user} {make_cert $name ca}
make_cert stranger otherca
make_cert old ca -1
openssl ec -in [pem user.key] -aes128 -passout pass:swordfish -out [pem locked.key]
file copy [pem user.crt] [pem locked.crt]
spit junk.crt "this is no certificate"

# --- clients ---

# What a server is told of its certificate; further options follow.
proc tls_options {{name server} args} {
    return [list --tls-cert-file [pem $name.crt] --tls-key-file [pem $name.key] \
        --tls-ca-cert-file [pem ca.crt] {*}$args]
}
proc cli_tls {user} {
    return [list --tls --cacert [pem ca.crt] --cert [pem $user.crt] --key [pem $user.key]]
}
# redis-cli as that user, to the TLS port of the current server.
proc cli {user args} {exec redis-cli -p [tls_port] {*}[cli_tls $user] {*}$args 2>@1}
proc cli_without {args} {exec redis-cli -p [tls_port] --tls --cacert [pem ca.crt] {*}$args 2>@1}
proc log_text {} {return [file_text [server log]]}
proc wait_log {pattern} {
    set ::log_pattern $pattern
    wait_for "the log to say $pattern" {[string match $::log_pattern [log_text]]}
}
set ::python ""
foreach candidate {/usr/bin/python3 python3} {
    if {$::python eq "" && ![catch {exec $candidate -c "import ssl, redis"}]} {
        set ::python $candidate
    }
}
# A case of tls_peer.py against the current server.
proc peer {what args} {
    if {$::python eq ""} {skip "no Python with the redis module"}
    return [exec $::python [file join [file dirname [info script]] tls_peer.py] $what [tls_port] \
        $::certs {*}$args 2>@1]
}

# --- the port ---

test {a server with a TLS port only} {
    start_server {*}[tls_options] --port 0 --tls-port auto --welcome yes
    wait_for "its welcome" {[string match "*redis-cli --tls -p [server port] set hello world*"\
        [file_text [server dir]/stdout]]}
    set port [server port]
    assert_equal PONG [exec redis-cli -p $port {*}[cli_tls user] ping]
    set c [tls_client $port]
    assert_equal OK [$c set k v]
    assert_match "*tls_port:$port\r\n*" [$c info server]
    assert_match "*tcp_port:$port\r\n*" [$c info server]
    assert_match "*addr=127.0.0.1:* laddr=127.0.0.1:$port *cmd=client|info*" [$c client info]
    assert_equal {tls-port auto} [$c config get tls-port]
    # Plain text is told so, in plain text.
    set plain [resp::connect 127.0.0.1 $port]
    resp::send $plain ping
    assert_match "(error) ERR this port speaks TLS*" [resp::recv $plain]
    assert_equal "" [resp::read_to_end $plain]
    resp::close $plain
    end_tls_client $c
    stop_server
}

start_server --enable-debug-command yes --proto-max-bulk-len 512mb --pool-size 256mb

test {a TLS port beside the plain one, opened and closed at run time} {
    assert_equal 0 [tls_port]
    assert_error "*tls-port*Unable to update TLS configuration: no certificate file is given*" \
        {r config set port [server port] tls-port auto}
    assert_equal {tls-port 0} [r config get tls-port]
    open_tls_port
    assert_equal PONG [cli user ping]
    assert_equal PONG [r ping]
    r config set tls-port 0
    assert_equal 0 [tls_port]
    r config set tls-port auto
    assert_equal PONG [cli user ping]
    assert_error "*tls-port is the same as port*" {r config set port 12345 tls-port 12345}
    # The one becomes the other, and back.
    set port [server port]
    r config set port 0 tls-port $port
    assert_equal $port [tls_port]
    assert_equal PONG [cli user ping]
    assert_equal OK [cli user config set tls-port 0 port $port]
    assert_equal PONG [exec redis-cli -p $port ping]
    r config set tls-port auto
    assert_equal PONG [cli user ping]
}

test {TLS on the plain port is told that it is plain} {
    set c [resp::connect 127.0.0.1 [server port]]
    resp::raw $c "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03[string repeat x 300]"
    assert_match "(error) ERR Protocol error: this port does not speak TLS*" [resp::recv $c]
    assert_equal "" [resp::read_to_end $c]
    resp::close $c
    assert_match "*wrong version number*" \
        [exec sh -c "redis-cli -p [server port] --tls --cacert [pem ca.crt] ping 2>&1 || true"]
}

# --- who may ---

proc refused {script} {expr {[catch {uplevel 1 $script} answer] || ![string match *PONG* $answer]}}

test {certificates of clients: demanded, optional, not asked for} {
    assert_equal yes [lindex [r config get tls-auth-clients] 1]
    assert {[refused {cli_without ping}]}
    wait_log "*Error accepting a client connection: the peer showed no certificate\
        (addr=127.0.0.1:*"
    r config set tls-auth-clients optional
    assert_equal PONG [cli_without ping]
    assert_equal PONG [cli user ping]
    assert {[refused {cli stranger ping}]}
    wait_log "*the peer's certificate is not accepted: unable to get local issuer certificate*"
    r config set tls-auth-clients no
    assert_equal PONG [cli_without ping]
    assert_equal PONG [cli stranger ping]
    r config set tls-auth-clients yes
    assert {[refused {cli old ping}]}
    wait_log "*the peer's certificate is not accepted: certificate has expired*"
    assert {[info_field tls_handshakes_failed] >= 3}
    assert_error "*tls-auth-clients*must be one of*no, optional, yes*" \
        {r config set tls-auth-clients maybe}
    assert_error "*no CA file or directory is given*" {r config set tls-ca-cert-file {}}
    assert_equal PONG [cli user ping]
}

test {a CA that did not sign the server, and one in a directory} {
    assert {[refused {exec redis-cli -p [tls_port] --tls --cacert [pem otherca.crt]\
        --cert [pem user.crt] --key [pem user.key] ping 2>@1}]}
    wait_log "*the peer refused: unknown CA*"
    file mkdir [pem dir]
    file copy [pem ca.crt] [pem dir]/[string trim [exec openssl x509 -in [pem ca.crt] \
        -noout -hash]].0
    r config set tls-ca-cert-dir [pem dir] tls-ca-cert-file {}
    assert_equal PONG [cli user ping]
    assert {[refused {cli stranger ping}]}
    r config set tls-ca-cert-file [pem ca.crt] tls-ca-cert-dir {}
}

test {protected mode speaks through TLS, too} {
    set address ""
    foreach word [exec hostname -I] {
        if {![string match *:* $word] && ![string match 127.* $word]} {set address $word}
    }
    if {$address eq ""} {skip "this machine has no address but loopback"}
    start_server {*}[tls_options] --port 0 --tls-port auto --bind * --protected-mode yes
    assert_match "*DENIED tarn is running in protected mode*" \
        [exec sh -c "redis-cli -h $address -p [server port] [cli_tls user] ping 2>&1 || true"]
    assert_equal PONG [exec redis-cli -p [server port] {*}[cli_tls user] ping]
    stop_server
}

test {ACL and AUTH are as on the plain port} {
    r acl setuser ann on >pw ~a* +get +set
    assert_equal OK [cli user --user ann --pass pw --no-auth-warning set a1 v]
    assert_match "NOPERM *" [cli user --user ann --pass pw --no-auth-warning set b1 v]
    assert_match "*WRONGPASS*" [cli user --user ann --pass no --no-auth-warning set a1 v]
    r acl deluser ann
}

# --- options ---

# What s_client says it agreed on.
proc agreed {args} {
    set port [tls_port]
    set tls [list -CAfile [pem ca.crt] -cert [pem user.crt] -key [pem user.key]]
    catch {exec openssl s_client -connect 127.0.0.1:$port {*}$tls {*}$args << "" 2>@1} text
    if {[regexp {New, (TLSv[0-9.]+), Cipher is (\S+)} $text - version cipher]} {
        return "$version $cipher"
    }
    return "none"
}

test {protocols and ciphers} {
    assert_match "TLSv1.3 *" [agreed]
    assert_match "TLSv1.2 *" [agreed -tls1_2]
    assert_equal none [agreed -tls1_1]
    r config set tls-protocols TLSv1.2
    assert_match "TLSv1.2 *" [agreed]
    assert_equal none [agreed -tls1_3]
    assert_error "*protocol TLSv1.1: it is broken*" {r config set tls-protocols "TLSv1.1 TLSv1.2"}
    assert_equal TLSv1.2 [lindex [r config get tls-protocols] 1]
    r config set tls-ciphers ECDHE-ECDSA-AES128-GCM-SHA256
    assert_equal {TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256} [agreed]
    assert_equal none [agreed -cipher ECDHE-ECDSA-AES256-GCM-SHA384]
    assert_error "*ciphers: \"NONSENSE\"*" {r config set tls-ciphers NONSENSE}
    r config set tls-protocols {} tls-ciphers {} tls-ciphersuites TLS_CHACHA20_POLY1305_SHA256
    assert_equal {TLSv1.3 TLS_CHACHA20_POLY1305_SHA256} [agreed]
    r config set tls-ciphersuites {}
    set two {-tls1_2 -cipher ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256}
    r config set tls-ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384
    assert_equal {TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384} [agreed {*}$two]
    r config set tls-prefer-server-ciphers yes
    assert_equal {TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256} [agreed {*}$two]
    r config set tls-prefer-server-ciphers no tls-ciphers {}
    assert_error "*DH parameters file*junk.crt*" {r config set tls-dh-params-file [pem junk.crt]}
}

test {sessions are taken up again, or not} {
    set tls "-CAfile [pem ca.crt] -cert [pem user.crt] -key [pem user.key] -tls1_2"
    set session [pem session]
    proc reused {} {
        upvar tls tls session session
        catch {exec openssl s_client -connect 127.0.0.1:[tls_port] {*}$tls -sess_in $session << ""\
            2>@1} text
        return [string match "*Reused, TLSv1.2*" $text]
    }
    catch {exec openssl s_client -connect 127.0.0.1:[tls_port] {*}$tls -sess_out $session << ""\
        2>@1}
    assert {[reused]}
    r config set tls-session-caching no
    assert {![reused]}
    r config set tls-session-caching yes tls-session-cache-size 10 tls-session-cache-timeout 60
    assert {![reused]} "(a ticket of before)"
}

test {certificates are replaced while it serves; a bad one is refused and the old stays} {
    proc served {} {
        catch {exec openssl s_client -connect 127.0.0.1:[tls_port] -CAfile [pem ca.crt] << ""\
            2>@1} text
        regexp {subject=CN = (\S+)} $text - name
        return $name
    }
    set c [tls_client]
    assert_equal OK [$c set k v]
    assert_equal server [served]
    # The same path, with something else in it: nothing happens before CONFIG SET.
    file copy -force [pem server.crt] [pem now.crt]
    file copy -force [pem server.key] [pem now.key]
    r config set tls-cert-file [pem now.crt] tls-key-file [pem now.key]
    file copy -force [pem renewed.crt] [pem now.crt]
    file copy -force [pem renewed.key] [pem now.key]
    assert_equal server [served]
    r config set tls-cert-file [pem now.crt]
    assert_equal renewed [served]
    assert_equal v [$c get k]
    foreach {cert key why} [list \
        junk.crt now.key "*certificate file *junk.crt: *" now.crt server.key \
        "*it is not the key of the certificate*" \
        none.crt now.key "*none.crt: No such file or directory*" locked.crt locked.key \
        "*it is encrypted, and no passphrase is given*"] {
        assert_error $why {r config set tls-cert-file [pem $cert] tls-key-file [pem $key]}
        assert_equal [pem now.crt] [lindex [r config get tls-cert-file] 1]
    }
    assert_equal renewed [served]
    assert_equal v [$c get k]
    r config set tls-cert-file [pem old.crt] tls-key-file [pem old.key]
    wait_log "*The certificate in *old.crt has expired*"
    assert {[refused {cli user ping}]}
    r config set tls-cert-file [pem server.crt] tls-key-file [pem server.key]
    assert_equal PONG [cli user ping]
    end_tls_client $c
}

test {a passphrase opens a key, and is seen nowhere} {
    set monitor [client]
    $monitor monitor
    assert_error "*locked.key: *" {r config set tls-key-file-pass tunafish tls-cert-file\
        [pem locked.crt] tls-key-file [pem locked.key]}
    r config set tls-key-file-pass swordfish tls-cert-file [pem locked.crt] tls-key-file \
        [pem locked.key]
    assert_equal PONG [cli user ping]
    r config set slowlog-log-slower-than 0
    r config set tls-key-file-pass swordfish
    r config set tls-client-key-file-pass swordfish
    r config set slowlog-log-slower-than 10000
    set seen [list [r slowlog get]]
    r echo end
    while {![string match "*\"echo\"*" [set line [resp::recv $monitor]]]} {lappend seen $line}
    drop $monitor
    assert_match "*(redacted)*" $seen
    assert {![string match *swordfish* $seen] && ![string match *tunafish* $seen]} $seen
    assert {![string match *swordfish* [log_text]] && ![string match *tunafish* [log_text]]}
    r config set tls-key-file-pass {} tls-client-key-file-pass {} tls-cert-file [pem server.crt] \
        tls-key-file [pem server.key]
}

test {CONFIG REWRITE writes them, and the next server reads them} {
    set path [pem tarn.conf]
    spit tarn.conf "# mine\npool-size 0\nport 0\ntls-port auto\nbind 127.0.0.1"
    set command [list $::server_binary $path --dir $::certs --port-file [pem port] \
        --logfile [pem rewrite.log] {*}[tls_options]]
    foreach life {1 2} {
        file delete [pem port]
        set pid [start_process $command [pem stdout]]
        wait_for "it to start" {[file_text [pem port]] ne "" || [process_state $::pid] eq "gone"} \
            [set ::pid $pid]
        set c [tls_client [string trim [file_text [pem port]]]]
        if {$life == 1} {
            assert_equal OK [$c config set tls-auth-clients optional tls-key-file-pass {two words} \
                tls-session-cache-size 99]
            assert_equal OK [$c config rewrite]
            assert_match "*# mine\n*tls-cert-file *server.crt*tls-auth-clients optional*" \
                [file_text $path]
            set command [list $::server_binary $path]
        } else {
            assert_equal {tls-auth-clients optional tls-key-file-pass {two words}\
                tls-session-cache-size 99} \
                [lsort -stride 2 [$c config get tls-auth-clients tls-key-file-pass \
                tls-session-cache-size]]
        }
        end_tls_client $c
        send_signal TERM $pid
        assert_equal 0 [reap_process $pid]
    }
}

test {it does not start with what it cannot serve with} {
    foreach {options why} [list \
        {--tls-port auto} "*no certificate file is given*" \
        [list --tls-port auto {*}[tls_options] --tls-key-file [pem user.key]] \
        "*it is not the key*" \
        [list --tls-port auto --tls-cert-file [pem server.crt] --tls-key-file [pem server.key]] \
        "*no CA file or directory*" \
        {--tls-replication yes} "*tls-replication and *need tls-ca-cert-file*"] {
        assert_error "server did not start: $why" {start_server {*}$options}
    }
}

# --- bytes ---

test {large values, both ways} {
    exec openssl rand -out [pem big] 20000003
    assert_equal OK [cli user -x set big < [pem big]]
    assert_equal 20000003 [r strlen big]
    exec redis-cli -p [tls_port] {*}[cli_tls user] get big > [pem got]
    exec truncate -s -1 [pem got]
    exec cmp [pem big] [pem got]
    # The same from the plain port, and over a connection that sends and reads at the same time.
    exec redis-cli -p [server port] get big > [pem got]
    exec truncate -s -1 [pem got]
    exec cmp [pem big] [pem got]
    assert_match "ok*" [peer values]
    r flushall
}

test {redis-benchmark --tls} {
    foreach options {{-n 3000 -c 10} {-n 3000 -c 5 -P 16} {-n 40 -c 4 -d 300000}} {
        set text [exec redis-benchmark -p [tls_port] {*}[cli_tls user] -t set,get \
            --csv {*}$options 2>@1]
        assert_match "*\"SET\",*\"GET\",*" $text
        assert {![string match -nocase *error* $text]} $text
    }
    r flushall
}

test {redis-py with ssl=True} {
    assert_match "ok*" [peer redis_py]
}

test {MONITOR and SUBSCRIBE} {
    set monitor [tls_client]
    assert_equal OK [$monitor monitor]
    set subscriber [tls_client]
    assert_equal {subscribe news 1} [$subscriber subscribe news]
    for {set i 0} {$i < 300} {incr i} {r publish news [string repeat $i 1000]}
    for {set i 0} {$i < 300} {incr i} {
        assert_equal [list message news [string repeat $i 1000]] [resp::recv $subscriber]
    }
    while {![string match {*"publish" "news" "299299*} [resp::recv $monitor]]} {}
    end_tls_client $subscriber
    end_tls_client $monitor
    wait_for "the server to see them go" {[info_field pubsub_channels] == 0}
}

# --- trouble ---

test {handshakes that do not end are bounded in time and memory} {
    set hello "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"
    set before [info_field used_memory]
    for {set i 0} {$i < 50} {incr i} {
        lappend stuck [set c [resp::connect 127.0.0.1 [tls_port]]]
        if {$i % 2} {resp::raw $c $hello[string repeat x $i]}
    }
    wait_for "them to be connected" {[info_field connected_clients] > 50}
    assert {[info_field used_memory] - $before < 50 * 128 * 1024}
    assert_equal PONG [cli user ping]
    r config set tls-handshake-timeout 1s
    foreach c $stuck {
        assert_equal "" [resp::read_to_end $c]
        resp::close $c
    }
    r config set tls-handshake-timeout 10s
    wait_for "the memory to be given back" {[info_field connected_clients] == 1}
    # Who is through in time stays.
    assert_equal PONG [cli user ping]
}

test {bytes that are no TLS, at any moment} {
    foreach bytes [list "\x16" "\x16\x03\x01\xff\xff[string repeat z 70000]" \
        "\x16\x03\x01\x00\x05hello" "\x80\x2e\x01\x03\x01" \
        "\x15\x03\x01\x00\x02\x02\x28" "GET / HTTP/1.0\r\n\r\n" [string repeat \x00 5000] \
        [string repeat \x16\x03\x03\x00\x00 2000]] {
        set c [resp::connect 127.0.0.1 [tls_port]]
        catch {resp::raw $c $bytes}
        if {[string length $bytes] > 1} {catch {resp::read_to_end $c}}
        resp::close $c
    }
    assert_equal PONG [cli user ping]
    wait_for "them to be gone" {[info_field connected_clients] == 1}
}

test {half-closed and truncated streams} {
    assert_match "ok*" [peer half_closed]
    assert_match "ok*" [peer truncated]
    assert_equal 0 [r exists cut]
    wait_for "all that was whole to have run" {[r exists whole4999] == 1}
    r flushall
    assert_match "ok*" [peer garbage_later]
    wait_for "them to be gone" {[info_field connected_clients] == 1}
}

test {a goodbye behind requests that cannot run yet keeps nobody awake} {
    if {$::python eq ""} {skip "no Python with the redis module"}
    set script [file join [file dirname [info script]] tls_peer.py]
    r set unread [string repeat u 100000]
    set other [open [list | $::python $script goodbye_unread [tls_port] $::certs] r+]
    assert_equal sent [gets $other]
    wait_for "its replies to be held back" {[regexp {qbuf=\d{4,} .* cmd=get } [r client list]]}
    set turns [info_field loop_turns]
    after 500
    assert {[info_field loop_turns] - $turns < 1000} "[info_field loop_turns] after $turns"
    close $other write
    assert_equal ok [string trim [read $other]]
    close $other
    wait_for "it to be gone" {[info_field connected_clients] == 1}
}

test {a reader that does not read is bounded, and stays whole} {
    assert_match "ok*" [peer slow_reader]
}

# --- replication ---

# A replica of the current server, through TLS; it becomes the current one.
proc start_replica {args} {
    set ::master_port [tls_port]
    start_server --pool-size 0 --repl-ping-replica-period 1 \
        {*}[tls_options user --tls-replication yes] {*}$args
    r replicaof 127.0.0.1 $::master_port
}
proc wait_link {} {wait_for "the link to be up" {[info_field master_link_status] eq "up"}}

test {a replica through TLS: everything, the stream, and where it was} {
    start_server --pool-size 0 --node-heartbeat 100 --repl-ping-replica-period 1
    open_tls_port
    set master [server port]
    set m [resp::connect 127.0.0.1 $master]
    for {set i 0} {$i < 20000} {incr i 500} {
        set command mset
        for {set k $i} {$k < $i + 500} {incr k} {lappend command key$k value$k}
        $m {*}$command
    }
    start_replica
    wait_link
    assert_equal 1 [r exists key19999]
    $m set after stream
    wait_for "the stream" {[r exists after]}
    # Cut: it takes up where it was.
    assert {[$m client kill type replica] == 1}
    wait_for "the link to be cut and up again" \
        {[string match *sync_partial_ok:1* [$::m info stats]]} [set ::m $m]
    wait_link
    $m set again stream
    wait_for "the stream" {[r exists again]}
    assert_match "*state=online*" [$m info replication]
}

test {a link between plain and TLS says what is wrong} {
    r replicaof no one
    r config set tls-replication no
    r replicaof 127.0.0.1 $::master_port
    wait_log "*its answer to PING: -ERR this port speaks TLS*"
    r replicaof no one
    r config set tls-replication yes
    r replicaof 127.0.0.1 [dict get [lindex $::servers end-1] port]
    wait_log "*TLS: the peer does not speak TLS*"
    r config set tls-ca-cert-file [pem otherca.crt]
    r replicaof 127.0.0.1 $::master_port
    wait_log "*TLS: the peer's certificate is not accepted: *"
    r config set tls-ca-cert-file [pem ca.crt] tls-client-cert-file [pem stranger.crt] \
        tls-client-key-file [pem stranger.key]
    wait_log "*TLS: the peer refused: unknown CA*"
    r config set tls-client-cert-file [pem user.crt] tls-client-key-file [pem user.key]
    wait_link
    assert_equal 1 [r exists again]
    r replicaof no one
}

test {guarantee 6: who has a certificate of the same authority does not play the master of a\
        replica} {
    make_cert client ca 2 DNS:client.example
    $m config set tls-cert-file [pem client.crt] tls-key-file [pem client.key]
    r replicaof 127.0.0.1 $::master_port
    wait_log "*TLS: the peer's certificate is not accepted: IP address mismatch, it is not for\
        \"127.0.0.1\"*"
    assert_equal down [info_field master_link_status]
    r config set tls-server-name client.example
    wait_link
    r replicaof no one
    r config set tls-server-name {}
    r replicaof localhost $::master_port
    wait_log "*TLS: the peer's certificate is not accepted: hostname mismatch, it is not for\
        \"localhost\"*"
    r config set tls-verify-name no
    wait_link
    resp::close $m
    stop_server
    stop_server
}

test {an unmodified Sentinel, with tls-replication} {
    if {[auto_execok redis-sentinel] eq ""} {skip "redis-sentinel is not there"}
    set tls [tls_options server --tls-replication yes --port 0 --tls-port auto --pool-size 0 \
        --repl-ping-replica-period 1]
    start_server {*}$tls
    set first [server]
    start_server {*}$tls --replicaof "127.0.0.1 [dict get $first port]"
    set ::second [tls_client [server port]]
    wait_for "the link to be up" \
        {[string match *master_link_status:up* [$::second info replication]]}
    set sentinel [start_sentinel [dict get $first port] "tls-replication yes
tls-cert-file [pem user.crt]\ntls-key-file [pem user.key]\ntls-ca-cert-file [pem ca.crt]"]
    wait_for "Sentinel to know the replica" \
        {[string match "*+slave *127.0.0.1:[server port] *" [sentinel_log]]}
    send_signal KILL [dict get $first pid]
    reap_process [dict get $first pid]
    set ::servers [lsearch -all -inline -not -exact $::servers $first]
    sentinel_hurry
    # Sentinel closes all connections when it reconfigures a server.
    set ::answer [list exec redis-cli -p [server port] {*}[cli_tls user]]
    wait_for "the replica to be the master" {![catch {{*}$::answer role} role] && \
        [string match master* $role]}
    wait_for "it to take writes" {![catch {{*}$::answer set after failover} answer] && \
        $answer eq "OK"}
    end_tls_client $::second
    send_signal TERM $sentinel
    reap_process $sentinel
    stop_server
}

finish
