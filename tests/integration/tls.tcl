# For tests of TLS, behind harness.tcl: certificates, made here with openssl, and clients that speak
# TLS. A test that is nothing without them ends here where there is no openssl.

proc have_openssl {} {return [expr {[auto_execok openssl] ne ""}]}

proc need_openssl {} {
    if {[have_openssl]} return
    puts "0 passed, 0 failed, 1 skipped (there is no openssl)"
    exit 0
}

# --- certificates ---

set certs [temp_dir]
set curve {-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes}
proc pem {name} {return $::certs/$name}
proc openssl {args} {exec openssl {*}$args 2>> [pem openssl.log]}

proc make_ca {name} {
    openssl req -x509 {*}$::curve -days 2 -keyout [pem $name.key] -out [pem $name.crt] \
        -subj "/CN=$name"
}
# name.crt and name.key, of a CA, for those names and addresses ("": none); days -1: expired.
proc make_cert {name ca {days 2} {names DNS:localhost,DNS:$name,IP:127.0.0.1}} {
    spit $name.ext [expr {$names eq "" ? "" : "subjectAltName=[subst -nocommands $names]"}]
    openssl req {*}$::curve -keyout [pem $name.key] -out [pem $name.csr] -subj "/CN=$name"
    openssl x509 -req -in [pem $name.csr] -CA [pem $ca.crt] -CAkey [pem $ca.key] -CAcreateserial \
        -days $days -extfile [pem $name.ext] \
        -out [pem $name.crt]
}
proc spit {name text} {
    set f [open [pem $name] w]
    puts $f $text
    close $f
}

# --- the port, and who connects to it ---

# The plain port of the current server stays beside it: port 0 would be none beside a TLS port.
proc open_tls_port {args} {
    r config set port [server port] tls-cert-file [pem server.crt] tls-key-file [pem server.key] \
        tls-ca-cert-file [pem ca.crt] tls-port auto {*}$args
}
proc tls_port {} {return [info_field tls_port]}

# A connection as those of resp::connect, but through `openssl s_client`.
proc tls_client {{port ""} args} {
    if {$port eq ""} {set port [tls_port]}
    set command [list openssl s_client -quiet -connect 127.0.0.1:$port -CAfile [pem ca.crt] \
        -cert [pem user.crt] -key [pem user.key] {*}$args]
    return [resp::adopt [open "|$command 2>> [pem s_client.log]" r+]]
}
proc end_tls_client {c} {
    catch {exec kill [pid $::resp::fd($c)]}
    catch {resp::close $c}
}
