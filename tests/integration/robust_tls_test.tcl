# Peers of the TLS port that do not read, listen and do not hear, ask for new handshakes, or are
# idle: bounded as on the plain port. Storms and crowds over TLS are in robust_fuzz and
# robust_crowd, single streams that are cut in tls_test.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] tls.tcl]
need_openssl
make_ca ca
make_cert server ca
make_cert user ca
start_server --pool-size 64mb --enable-debug-command yes
open_tls_port

# A TLS client that has said what it wants, and reads nothing from now on but what `openssl
# s_client` and a pipe hold.
proc deaf {requests} {
    set c [tls_client]
    assert_equal PONG [$c ping]
    resp::raw $c $requests
    return $c
}
proc requests {args} {
    set out ""
    foreach request $args {append out [resp::encode $request]}
    return $out
}
proc wait_gone {} {wait_for "it to be gone" {[info_field connected_clients] == 1}}

test {10 GiB of replies that a TLS peer does not read cost output-pause and a record, and others\
        nothing} {
    set big [string repeat x [expr {4 << 20}]]
    r set big $big
    set before [info_field used_memory]
    set slow [deaf [string repeat [requests {get big} {mget big}] 1280]]
    wait_for "the requests to be there" {[info_field total_net_output_bytes] > 1000000}
    for {set i 0} {$i < 200} {incr i} {assert_equal PONG [r ping]}
    assert {[info_field used_memory] - $before < 4000000} "[info_field used_memory] $before"
    # It gets what it reads, and the rest is gone with it.
    for {set i 0} {$i < 4} {incr i} {assert {[lindex [resp::recv $slow] 0] eq $big}}
    end_tls_client $slow
    wait_gone
    assert {[info_field used_memory] - $before < 1000000} "[info_field used_memory] $before"
    r del big
    assert_equal OK [r debug check]
    assert_equal [info_field pool_size] [info_field pool_free]
}

test {small replies that a TLS peer does not read count towards client-output-buffer-limit} {
    r config set output-pause 1gb client-output-buffer-limit "normal 4mb 0 0"
    r set small [string repeat x 1000]
    set before [info_field used_memory]
    set dropped [info_field client_output_buffer_limit_disconnections]
    set slow [deaf [string repeat [requests {get small}] 20000]]
    wait_gone
    assert_equal [expr {$dropped + 1}] [info_field client_output_buffer_limit_disconnections]
    assert {[info_field used_memory] - $before < 1000000}
    end_tls_client $slow
    r config set output-pause 8mb client-output-buffer-limit "normal 1gb 0 0"
}

test {MONITOR and SUBSCRIBE over TLS that are never read are dropped at the limit of their class} {
    r config set client-output-buffer-limit "pubsub 2mb 0 0"
    set text [string repeat x 100000]
    foreach line {MONITOR {SUBSCRIBE ch} {PSUBSCRIBE c*}} {
        set dropped [info_field client_output_buffer_limit_disconnections]
        set before [info_field used_memory]
        set deaf [deaf "$line\r\n"]
        resp::recv $deaf
        for {set i 0} {$i < 1000 && [info_field client_output_buffer_limit_disconnections] ==\
                $dropped} {incr i} {
            r publish ch $text
            r set k $text
        }
        assert_equal [expr {$dropped + 1}] [info_field client_output_buffer_limit_disconnections]
        wait_gone
        assert {[info_field used_memory] - $before < 1000000}
        end_tls_client $deaf
    }
    r config set client-output-buffer-limit "pubsub 32mb 8mb 60"
    r del k
}

test {a value that is announced over TLS and does not come does not keep space of the pool for\
        ever} {
    r flushall
    r config set inband-hold-timeout 300
    set before [info_field inband_hold_timeouts]
    set slow [deaf "*3\r\n\$3\r\nSET\r\n\$1\r\nk\r\n\$8000000\r\n[string repeat x 100000]"]
    wait_for "it to be closed" {[info_field inband_hold_timeouts] > 0}
    assert_equal [expr {$before + 1}] [info_field inband_hold_timeouts]
    wait_for "its space to be free" {[info_field pool_free] == [info_field pool_size]}
    end_tls_client $slow
    r config set inband-hold-timeout 60000
    wait_gone
}

test {whoever wishes a new handshake within TLS 1.2 is told no, and costs nothing} {
    set refused [info_field tls_handshakes_failed]
    for {set i 0} {$i < 10} {incr i} {
        catch {exec openssl s_client -tls1_2 -connect 127.0.0.1:[tls_port] -CAfile [pem ca.crt]\
            -cert [pem user.crt] -key [pem user.key] << "R\n" 2>@1} text
        assert_match "*RENEGOTIATING*no renegotiation*" $text
    }
    assert_equal $refused [info_field tls_handshakes_failed]
    wait_gone
}

test {timeout ends idle connections of TLS, too, and with a goodbye} {
    file delete [pem s_client.log]
    set idle [tls_client]
    assert_equal PONG [$idle ping]
    r config set timeout 1
    assert_equal "" [resp::read_to_end $idle]
    # Whoever needs longer than that for two steps is out himself.
    while {[catch {[client] config set timeout 0}]} {}
    catch {r ping}
    end_tls_client $idle
    assert {![string match -nocase *error* [file_text [pem s_client.log]]]} \
        [file_text [pem s_client.log]]
}
finish
