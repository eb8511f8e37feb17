# modules/http.so over TLS: the server's own certificate and demands, renewed ones, and clients that
# are slow, speak plain text, show nothing or the wrong thing. Each costs only itself.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] tls.tcl]
need_openssl

make_ca ca
make_ca other
make_cert server ca
make_cert second ca
make_cert user ca
make_cert stranger other

proc start_https {{words ""} args} {
    start_server --tls-cert-file [pem server.crt] --tls-key-file [pem server.key] \
        --tls-ca-cert-file [pem ca.crt] {*}$args --loadmodule "http.so port 0 tls yes $words"
    set ::http_port [info_field http_port]
}

# The whole answer to these bytes, with a certificate (name or ""), or an error that says why not.
proc https_raw {bytes cert args} {
    set command [list openssl s_client -quiet -connect 127.0.0.1:$::http_port -CAfile \
        [pem ca.crt] -verify_return_error {*}$args]
    if {$cert ne ""} {lappend command -cert [pem $cert.crt] -key [pem $cert.key]}
    exec {*}$command << $bytes 2> [pem s_client.log]
}
proc https_get {path {cert user} args} {
    https_raw "GET $path HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" $cert {*}$args
}
proc subject_shown {} {
    exec openssl s_client -connect 127.0.0.1:$::http_port -cert [pem user.crt] -key \
        [pem user.key] << "" 2> [pem s_client.log] | openssl x509 -noout -subject
}
proc plain_socket {} {
    set s [socket 127.0.0.1 $::http_port]
    fconfigure $s -translation binary -buffering none
    return $s
}

test {probes, metrics and pages over TLS} {
    start_https
    assert_equal 1 [info_field http_tls]
    foreach protocol {-tls1_2 -tls1_3} {
        assert_match "HTTP/1.1 200*ready*" [https_get /ready user $protocol]
    }
    set metrics [https_get /metrics]
    assert_match "*\ntarn_hits_total 0\n*" $metrics
    # longer than any buffer on its way
    assert {[string length $metrics] > 50000}
    assert_match {*"server":*} [https_get /api/info]
    assert_equal 0 [info_field http_tls_handshakes_failed]
}

test {several requests on one connection} {
    set many [string repeat "GET /health HTTP/1.1\r\nHost: x\r\n\r\n" 50]
    append many "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    set all [https_raw $many user]
    assert_equal 51 [regexp -all {HTTP/1.1 200 OK} $all]
}

test {who shows no certificate, or one of another authority, does not come in} {
    foreach cert {"" stranger} {
        assert_error * {https_get /health $cert}
    }
    wait_for "both are counted" {[info_field http_tls_handshakes_failed] == 2}
    assert_match "HTTP/1.1 200*" [https_get /health]
}

test {plain HTTP on the port is told so} {
    set s [plain_socket]
    puts -nonewline $s "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    assert_match "HTTP/1.1 400*this port speaks TLS*" [read $s]
    close $s
    # and garbage that begins as TLS does is cut off
    foreach bytes [list "\x16\x03\x01\x02\x00\x01[string repeat x 600]" \
        "\x16[string repeat \0 99]"] {
        set s [plain_socket]
        puts -nonewline $s $bytes
        catch {read $s}
        close $s
    }
    assert_match "HTTP/1.1 200*" [https_get /health]
    wait_for "all are gone" {[info_field http_connections] == 0}
}

test {an old protocol is refused; tls-protocols counts} {
    assert_error * {https_get /health user -tls1_1 -cipher ALL@SECLEVEL=0}
    r config set tls-protocols TLSv1.3
    assert_error * {https_get /health user -tls1_2}
    assert_match "HTTP/1.1 200*" [https_get /health user -tls1_3]
}

test {CONFIG SET renews the certificate, and changes what clients must show} {
    assert_match "*CN = server" [subject_shown]
    r config set tls-cert-file [pem second.crt] tls-key-file [pem second.key]
    assert_match "*CN = second" [subject_shown]
    r config set tls-auth-clients no
    assert_match "HTTP/1.1 200*" [https_get /health ""]
    # what cannot be served is refused, and nothing changes
    assert_error "*Unable to update TLS configuration*" {r config set tls-cert-file /nowhere}
    assert_error "*a server must have one*" {r config set tls-cert-file "" tls-key-file ""}
    assert_match "*CN = second" [subject_shown]
}

test {an encrypted key} {
    exec openssl ec -in [pem server.key] -aes256 -passout pass:sesame -out [pem locked.key] 2> \
        [pem openssl.log]
    start_server --tls-cert-file [pem server.crt] --tls-key-file [pem locked.key] \
        --tls-key-file-pass sesame --tls-auth-clients no --loadmodule "http.so port 0 tls yes"
    set ::http_port [info_field http_port]
    assert_match "HTTP/1.1 200*" [https_get /health ""]
}

test {without a certificate it does not load, and says what is missing} {
    start_server --enable-module-command yes
    assert_error "*tls yes: no certificate file is given*tls-cert-file*" \
        {r module load http.so port 0 tls yes}
    assert_error "*tls perhaps: must be yes or no*" {r module load http.so port 0 tls perhaps}
    r config set tls-cert-file [pem server.crt] tls-key-file [pem server.key] tls-auth-clients no
    foreach round {1 2} {
        r module load http.so port 0 tls yes
        set ::http_port [info_field http_port]
        assert_match "HTTP/1.1 200*" [https_get /health ""]
        r module unload http
        assert_error * {plain_socket}
    }
    # nobody serves TLS any more
    assert_equal OK [r config set tls-cert-file "" tls-key-file ""]
}

test {handshakes that never end hold their places only, until they are cut off} {
    start_https "connections 4" --tls-handshake-timeout 300ms
    set all {}
    for {set i 0} {$i < 4} {incr i} {
        set s [plain_socket]
        puts -nonewline $s "\x16\x03\x01"
        lappend all $s
    }
    foreach s $all {
        assert_equal "" [read $s]
        close $s
    }
    wait_for "their places are free" {[info_field http_connections] == 0}
    assert_equal 4 [info_field http_tls_handshakes_failed]
    assert_match "HTTP/1.1 200*" [https_get /health]
}

test {who does not read, or goes in the middle, is cut off} {
    start_https "timeout 1" --tls-auth-clients no
    set command [list openssl s_client -quiet -connect 127.0.0.1:$::http_port]
    set f [open "|$command 2> [pem s_client.log]" r+]
    fconfigure $f -translation binary -buffering none
    # answers that nobody reads
    puts -nonewline $f [string repeat "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" 100]
    wait_for "it is there" {[info_field http_requests] > 0}
    wait_for "it is cut off" {[info_field http_connections] == 0}
    exec kill [pid $f]
    catch {close $f}
    # and one that goes while its answer is made
    set f [open "|$command 2> [pem s_client.log]" r+]
    fconfigure $f -translation binary -buffering none
    set before [info_field http_requests]
    puts -nonewline $f "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    wait_for "it has asked" {[info_field http_requests] > $before}
    exec kill -9 [pid $f]
    catch {close $f}
    wait_for "it is forgotten" {[info_field http_connections] == 0}
    assert_match "HTTP/1.1 200*" [https_get /health ""]
}

test {unloaded while connections are open} {
    start_https "" --enable-module-command yes --tls-auth-clients no
    set command [list openssl s_client -quiet -connect 127.0.0.1:$::http_port]
    set f [open "|$command 2> [pem s_client.log]" r+]
    fconfigure $f -translation binary -buffering none
    puts -nonewline $f "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    assert_equal "HTTP/1.1 200 OK\r" [gets $f]
    r module unload http
    read $f
    catch {close $f}
    assert_equal PONG [r ping]
}

test {many handshakes at once} {
    start_https "" --tls-auth-clients no
    assert_equal 40 [exec /usr/bin/python3 -c {
import socket, ssl, sys, threading
context = ssl.create_default_context(cafile=sys.argv[2])
done = []
def ask():
    with context.wrap_socket(socket.create_connection(("127.0.0.1", int(sys.argv[1]))),
                             server_hostname="localhost") as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = b""
        while piece := s.recv(4096):
            got += piece
        if got.startswith(b"HTTP/1.1 200") and got.endswith(b"ok\n"):
            done.append(1)
threads = [threading.Thread(target=ask) for _ in range(40)]
for t in threads: t.start()
for t in threads: t.join()
print(len(done))
} $::http_port [pem ca.crt]]
}

test {another module's own port over TLS} {
    start_https "" --enable-module-command yes
    r module load $modules/web.so own tls
    set ::http_port [info_field http_port_web]
    set ask "POST /query HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    append ask "Content-Length: 90000\r\n\r\n[string repeat x 90000]"
    assert_match "HTTP/1.1 200*[string repeat x 90000]" [https_raw $ask user]
    assert_error * {https_raw $ask ""}
    # a client that goes before its answer leaves its place at once
    set s [open |[list openssl s_client -quiet -connect 127.0.0.1:$::http_port -cert \
        [pem user.crt] -key [pem user.key] 2> [pem s_client.log]] r+]
    puts -nonewline $s "GET /later HTTP/1.1\r\nHost: x\r\n\r\n"
    flush $s
    wait_for "it waits" {[info_field web_waiting] == 1}
    exec kill [pid $s]
    catch {close $s}
    wait_for "it is gone" {[info_field http_under_way] + [info_field http_connections_web] == 0}
}

test {a crowd of hostile clients on both ports} {
    r config set tls-auth-clients no
    r module unload http
    r module load http.so port 0 timeout 1 tls yes
    r module unload web
    r module load $modules/web.so own tls deadline 50
    set ports [list -[info_field http_port] -[info_field http_port_web]]
    assert_equal 120 [exec /usr/bin/python3 [file join [file dirname [info script]] \
        http_hostile.py] 7 20 {*}$ports]
    wait_for "all are gone" {[info_field http_under_way] + [info_field http_connections] +
        [info_field http_connections_web] == 0}
    set ::http_port [info_field http_port]
    assert_match "HTTP/1.1 200*" [https_get /health ""]
}

test {a Prometheus scrapes it, with a certificate and the token} {
    if {[auto_execok prometheus] eq ""} {skip "prometheus is not there"}
    spit token 0123456789abcdef-token
    file attributes [pem token] -permissions 0600
    start_https "token-file [pem token]"
    set probe [socket -server none -myaddr 127.0.0.1 0]
    set port [lindex [fconfigure $probe -sockname] 2]
    close $probe
    spit p.yml "global: {scrape_interval: 1s}
scrape_configs:
  - job_name: tarn
    scheme: https
    tls_config: {ca_file: [pem ca.crt], cert_file: [pem user.crt], key_file: [pem user.key]}
    authorization: {credentials_file: [pem token]}
    static_configs: \[{targets: \['127.0.0.1:$::http_port'\]}\]"
    set pid [exec prometheus --config.file=[pem p.yml] --storage.tsdb.path=[pem tsdb] \
        --web.listen-address=127.0.0.1:$port >& [pem prometheus.log] &]
    set ::ask [list exec promtool query instant http://127.0.0.1:$port "up{job=\"tarn\"}"]
    set code [catch {
        wait_for "a scrape" {![catch $::ask answer] && [string match "* => 1 *" $answer]}
    } why]
    exec kill $pid
    if {$code} {error $why}
    assert {[info_field http_scrapes] > 0}
}

test {a node: its own certificate, renewed by SIGHUP} {
    start_server --pool-size 0
    foreach file {crt key} {file copy -force [pem server.$file] [pem node.$file]}
    set words [list --loadmodule [file join $::root modules http.so] port 0 tls yes]
    assert_error "*clients are asked for certificates, but no CA*" {
        start_node n0 --segment 16mb --tls-cert-file [pem node.crt] --tls-key-file [pem node.key] \
            {*}$words}
    start_node n1 --segment 16mb --tls-cert-file [pem node.crt] --tls-key-file [pem node.key] \
        --tls-ca-cert-file [pem ca.crt] {*}$words
    wait_for "its port" {[regexp {HTTP: https://[^ ]*:(\d+)/} [file_text [node n1 log]] - \
        ::http_port]}
    assert_match "HTTP/1.1 200*ok*" [https_get /health]
    assert_error * {https_get /health ""}
    assert_match "*CN = server" [subject_shown]
    foreach file {crt key} {file copy -force [pem second.$file] [pem node.$file]}
    send_signal HUP [node n1 pid]
    wait_for "the new one" {[string match "*CN = second" [subject_shown]]}
    # what cannot be used changes nothing
    file copy -force [pem user.key] [pem node.key]
    send_signal HUP [node n1 pid]
    wait_for "the log to say so" {[subject_shown] ne "" && [string match \
        "*TLS of modules: what there was is kept*" [file_text [node n1 log]]]}
    assert_match "*CN = second" [subject_shown]
    stop_node n1
}

finish
