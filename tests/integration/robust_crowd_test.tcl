# 10,000 connections, or as many as the limit of open files lets both sides have: idle, then all at
# work at once, and gone.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] tls.tcl]
set crowd [file join [file dirname $::kv_binary] crowd]
set most [exec sh -c {ulimit -Hn}]
set want 10000
if {$most ne "unlimited" && $most < 10600} {set want [expr {$most - 600}]}

start_server --pool-size 32mb --maxclients [expr {$want + 10}] --data-maxclients 64 \
    --inband-threads 1 --enable-debug-command yes

proc begin {count {port ""} args} {
    if {$port eq ""} {set port [server port]}
    set ::pipe [open "|[list $::crowd $port $count {*}$args]" r+]
    fconfigure $::pipe -buffering line
    return [gets $::pipe]
}
proc round_of {pairs} {
    puts $::pipe $pairs
    return [gets $::pipe]
}
# A short pipeline of each, a long one, and another client is served, too.
proc all_at_once {count what} {
    foreach pairs {1 10} {
        set said [round_of $pairs]
        puts "# $count $what, $pairs pairs of SET and GET each: $said"
        assert_match "replies=[expr {2 * $pairs * $count}] wrong=0 *" $said
        assert_equal PONG [r ping]
    }
}

test "$want connections: little memory each, all are served, others too, and nothing is left" {
    r ping
    set files [llength [glob -directory /proc/[server pid]/fd *]]
    set before [info_field used_memory]
    assert_equal "open=$want refused=0 text=" [begin $want]
    assert_equal [expr {$want + 1}] [info_field connected_clients]
    set each [expr {([info_field used_memory] - $before) / $want}]
    puts "# $each bytes for an idle connection"
    assert {$each < 1600} "$each bytes each"
    all_at_once $want connections
    set each [expr {([info_field used_memory] - $before - [info_field mem_books]) / $want}]
    assert {$each < 1600} "$each bytes each, after work"
    assert_equal OK [r debug check]
    # Nobody beyond maxclients.
    set many {}
    for {set i 0} {$i < 9} {incr i} {lappend many [client]}
    foreach c $many {assert_equal PONG [$c ping]}
    set over [client]
    assert_equal "(error) ERR max number of clients reached" [resp::recv $over]
    assert_equal "" [resp::read_to_end $over]
    drop $over
    foreach c $many {drop $c}
    close $::pipe
    wait_for "all to be gone" {[info_field connected_clients] == 1}
    assert_equal $files [llength [glob -directory /proc/[server pid]/fd *]]
    r flushall
    assert {[info_field used_memory] - $before < 4 << 20} "[info_field used_memory] - $before"
}

test {1000 connections announce 512 MiB each: a first piece of memory for each, and everything\
        comes back} {
    set many [expr {min(1000, $want)}]
    set before [info_field used_memory]
    foreach text {
        {*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nx} \
            {*3\r\n$6\r\nAPPEND\r\n$1\r\nk\r\n$536870912\r\n} {*2\r\n$536870912\r\n} {*1048576\r\n}
        {MULTI\r\n*2\r\n$4\r\nECHO\r\n$536870912\r\nx}
    } {
        assert_match "open=$many *" [begin $many]
        set read [info_field total_net_input_bytes]
        puts $::pipe "say $text"
        assert_equal "said=$many" [gets $::pipe]
        wait_for "it to be read" {[info_field total_net_input_bytes] >= $read + 9 * $many}
        assert_equal PONG [r ping]
        assert {[info_field used_memory] - $before < $many * 80000} \
            "$text: [info_field used_memory] - $before"
        close $::pipe
        wait_for "all to be gone" {[info_field connected_clients] == 1}
        assert {[info_field used_memory] - $before < 4 << 20} \
            "$text: [info_field used_memory] - $before"
    }
    assert_equal OK [r debug check]
}

test {a crowd beyond maxclients: those within it are served, the others are told and gone} {
    r config set maxclients 200
    set rejected [info_field rejected_connections]
    assert_equal "open=199 refused=301 text=-ERR max number of clients reached" [begin 500]
    assert_match "replies=3980 wrong=0 *" [round_of 10]
    assert_equal [expr {$rejected + 301}] [info_field rejected_connections]
    close $::pipe
    wait_for "all to be gone" {[info_field connected_clients] == 1}
}

# What OpenSSL has is not counted by used_memory but for a connection's share, measured once: so the
# process is looked at, too.
proc resident {} {
    regexp {VmRSS:\s+(\d+) kB} [file_text /proc/[server pid]/status] - kb
    return [expr {$kb * 1024}]
}

# Handshakes are slow under a sanitizer.
set plain [expr {![info exists ::env(TARN_SANITIZER)] || $::env(TARN_SANITIZER) eq ""}]
set want_tls [expr {min($want, $plain ? 2000 : 300)}]
test "$want_tls connections of TLS: a bounded memory for each, idle and at work, and everything\
        comes back" {
    if {![have_openssl]} {skip "there is no openssl"}
    make_ca ca
    make_cert server ca
    make_cert user ca
    r config set maxclients [expr {$want_tls + 10}]
    open_tls_port tls-handshake-timeout 60s
    # The libraries' own, once.
    assert_match "open=10 *" [begin 10 [tls_port] [pem user.crt] [pem user.key]]
    close $::pipe
    wait_for "all to be gone" {[info_field connected_clients] == 1}
    set files [llength [glob -directory /proc/[server pid]/fd *]]
    set before [info_field used_memory]
    set resident [resident]
    assert_equal "open=$want_tls refused=0 text=" [begin $want_tls [tls_port] [pem user.crt] \
        [pem user.key]]
    assert_equal [expr {$want_tls + 1}] [info_field connected_clients]
    set each [expr {([info_field used_memory] - $before) / $want_tls}]
    set real [expr {([resident] - $resident) / $want_tls}]
    puts "# $each bytes for an idle connection of TLS, $real of the process"
    assert {$each < 24000} "$each bytes each"
    assert {!$::plain || $real < 48000} "$real bytes each"
    all_at_once $want_tls "connections of TLS"
    set each [expr {([info_field used_memory] - $before - [info_field mem_books]) / $want_tls}]
    assert {$each < 24000} "$each bytes each, after work"
    assert {!$::plain || ([resident] - $resident) / $want_tls < 48000} "[resident] - $resident"
    # One too many costs no handshake, and is not told: its connection ends.
    set rejected [info_field rejected_connections]
    set many {}
    for {set i 0} {$i < 9} {incr i} {lappend many [client]}
    foreach c $many {assert_equal PONG [$c ping]}
    set over [resp::connect 127.0.0.1 [tls_port]]
    assert_equal "" [resp::read_to_end $over]
    resp::close $over
    assert_equal [expr {$rejected + 1}] [info_field rejected_connections]
    foreach c $many {drop $c}
    close $::pipe
    wait_for "all to be gone" {[info_field connected_clients] == 1}
    assert_equal $files [llength [glob -directory /proc/[server pid]/fd *]]
    r flushall
    assert {[info_field used_memory] - $before < 4 << 20} "[info_field used_memory] - $before"
    assert_equal OK [r debug check]
}
finish
