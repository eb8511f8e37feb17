# conductor.so asks engines for /metrics: what they tell is load, and a sign of life; whatever else
# they do costs nothing but their figures. Engines are stood in for by metrics_engine.py.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]
source [file join [file dirname [info script]] tls.tcl]

proc engine {name {port 0} args} {
    set ::engine($name) [open [list | /usr/bin/python3 \
        [file join [file dirname [info script]] metrics_engine.py] $port {*}$args] r+]
    fconfigure $::engine($name) -buffering line
    set ::engine_port($name) [gets $::engine($name)]
}
proc say {name args} {
    puts $::engine($name) $args
    assert_equal ok [gets $::engine($name)]
}
proc engine_kill {name} {
    exec kill -KILL [pid $::engine($name)]
    catch {close $::engine($name)}
    unset ::engine($name)
}
proc at {name {path /metrics} {scheme http}} {return $scheme://127.0.0.1:$::engine_port($name)$path}
proc add {server id url args} {
    assert_equal OK [ask $server conductor.add $id http://$id MODEL m METRICS $url {*}$args]
}

proc of_list {server id what} {
    foreach e [ask $server conductor.list] {
        if {[dict get $e id] eq $id} {return [dict get $e $what]}
    }
}
proc of_rank {server id args} {
    foreach r [dict get [ask $server conductor.info $id] ranks] {return [dict get $r {*}$args]}
}
# A part of LIST, or of INFO's metrics, becomes what it should be.
proc becomes {server id what value} {
    set ::awaiting [list $server $id $what]
    set ::expected $value
    wait_for "$id to have $what $value" {[string match $::expected [of_list {*}$::awaiting]]}
}
proc says {server id what pattern} {
    set ::awaiting [list $server $id metrics $what]
    set ::expected $pattern
    wait_for "the metrics of $id to have $what $pattern" {
        [string match $::expected [of_rank {*}$::awaiting]]
    }
}
# It goes on being asked, and answers.
proc goes_on {server id} {
    set ::awaiting [list $server $id metrics answers]
    set ::answers [of_rank {*}$::awaiting]
    wait_for "$id to go on answering" {[of_rank {*}$::awaiting] > $::answers + 2}
}
proc chosen {server} {
    set engine [lindex [ask $server conductor.route r MODEL m LENGTH 100] 0]
    assert_equal OK [ask $server conductor.done r]
    return $engine
}

proc second_rank {id} {
    set rank [lindex [dict get [ask a conductor.info $id] ranks] 1]
    return [lmap f {rank other-decodes other-prefill-tokens} {dict get $rank $f}]
}

set words {metrics-ms 20 silent-ms 2000}
up a --loadmodule conductor.so {*}$words --appendonly yes --enable-module-command local
engine e1
engine e2

test {the shapes of each version} {
    foreach {name running waiting used blocks} {
        vllm_v0 7 2 250 1000   vllm_0_9 3 1 100 200   sglang 5 6 256 512
    } {
        add a $name [at e1 /seed/$name]
        wait_for "its load" {[of_rank a $name reports] > 0}
        assert_equal up [of_list a $name metrics]
        assert_equal [list $running [expr {512 * $waiting}] $used] [lmap f \
            {decodes prefill-tokens kvblocks} {of_rank a $name other-$f}] ($name)
        assert_equal $blocks [dict get [ask a conductor.info $name] kvblocks] ($name)
        assert_equal OK [ask a conductor.remove $name]
    }
    foreach name {vllm_ranks sglang_ranks} running {4 5} waiting {9 2} {
        foreach rank {0 1} {add a $name [at e1 /seed/$name] RANK $rank}
        set load [list 1 $running [expr {512 * $waiting}]]
        wait_for "the load of its second rank" {[second_rank $name] eq $load}
        assert_equal OK [ask a conductor.remove $name]
    }
    assert_equal {} [ask a conductor.list]
}

test {who has less to do is chosen} {
    assert_equal OK [ask a conductor.add e1 [at e1 /v1] MODEL m METRICS yes]
    assert_equal [at e1] [of_rank a e1 metrics url]
    add a e2 [at e2]
    foreach {busy idle} {e1 e2 e2 e1} {
        say $busy load 8 40
        say $idle load 8 0
        wait_for "it to be told" {[of_list a $busy prefill-tokens] > 0 && \
            [of_list a $idle prefill-tokens] == 0}
        for {set i 0} {$i < 5} {incr i} {assert_equal $idle [chosen a]}
    }
}

test {whatever else they do} {
    foreach {path why} {
        /silent   {no whole answer within 1000 ms}
        /slow     {no whole answer within 1000 ms}
        /endless  {its answer has more than 4194304 bytes}
        /lying    {no figure that can be: vllm:num_requests_running{engine="0"} -5}
        /redirect {it answers with status 302}
        /gone     {it answers with status 404}
    } {
        add a x[string range $path 1 end] [at e2 $path]
        set whys([string range $path 1 end]) $why
    }
    add a xnobody http://127.0.0.1:1/metrics
    set whys(nobody) "connection refused"
    foreach {name why} [array get whys] {
        becomes a x$name metrics failing
        assert_equal $why [of_rank a x$name metrics why] ($name)
        assert_equal {0 0 0} [list [of_rank a x$name reports] [of_rank a x$name other-decodes] \
            [of_rank a x$name metrics answers]] ($name)
        if {$name eq "endless"} {assert_equal OK [ask a conductor.remove x$name]} ;# much work
    }
    foreach id {e1 e2} {goes_on a $id}
    assert_match "*/metrics of x* (http://127.0.0.1:*): * for * s. Its load is not known*" \
        [ask a conductor.doctor]
    assert_equal {8 6} [list [field a conductor_metrics] [field a conductor_metrics_failing]]
    assert {[field a scrape_failures] >= 7 && [field a scrape_refused] >= 2}
    assert_match "*,metrics_up=0,*" [field a engine_xgone]
    assert_match "*,metrics_up=1,*" [field a engine_e1]
}

test {unloading waits for none of them} {
    assert_equal OK [ask a module unload conductor]
    assert_equal OK [ask a module load conductor.so {*}$words]
    foreach id {e1 e2} {becomes a $id metrics up}
    foreach path {silent slow lying redirect gone nobody} {
        assert_equal OK [ask a conductor.remove x$path]
    }
}

test {an engine that is killed is silent, and comes back} {
    say e1 load 0 0
    say e2 load 0 9
    wait_for "e1 to have less to do" {[of_list a e2 prefill-tokens] > 0 && [chosen a] eq "e1"}
    engine_kill e1
    becomes a e1 state silent
    says a e1 why "connection refused"
    assert {[of_rank a e1 metrics failing-ms] > 0}
    assert_equal e2 [chosen a]
    assert_match "*/metrics of e1 (*connection refused, for *" [ask a conductor.doctor]
    engine e1 $::engine_port(e1)
    becomes a e1 state up
    assert_equal "" [of_rank a e1 metrics why]
    wait_for "e1 to have less to do" {[chosen a] eq "e1"}
}

test {an engine that hangs is silent} {
    exec kill -STOP [pid $::engine(e1)]
    becomes a e1 state silent
    goes_on a e2
    exec kill -CONT [pid $::engine(e1)]
    becomes a e1 state up
}

test {https, of whom metrics-ca knows} {
    if {![have_openssl]} {skip "there is no openssl"}
    make_ca ca
    make_cert web ca
    make_cert wrong ca 2 DNS:another.example
    engine s1 0 [pem web.crt] [pem web.key]
    engine s2 0 [pem wrong.crt] [pem wrong.key]
    add a s1 [at s1 /metrics https]
    says a s1 why "*certificate*"
    up c --loadmodule conductor.so metrics-ms 20 metrics-ca [pem ca.crt]
    add c s1 [at s1 /metrics https]
    add c s2 [at s2 /metrics https]
    say s1 load 3 0
    wait_for "its load" {[of_rank c s1 other-decodes] == 3}
    says c s2 why "*certificate*"
    assert_equal OK [ask a conductor.remove s1]
    down c
}

test {a server that is killed asks again} {
    again a
    say e2 load 5 0
    wait_for "the load of e2" {[of_rank a e2 other-decodes] == 5}
    assert_equal [at e1] [of_rank a e1 metrics url]
}

test {a replica asks nobody, until it is promoted} {
    up b --loadmodule conductor.so {*}$words
    follow b a
    becomes b e1 metrics paused
    assert_equal {0 -1} [list [of_rank b e1 reports] [of_list b e1 silent-ms]]
    down a
    assert_equal OK [ask b replicaof no one]
    say e2 load 4 0
    wait_for "the load of e2" {[of_rank b e2 other-decodes] == 4}
    becomes b e1 metrics up
}

foreach name [array names ::engine] {engine_kill $name}
finish
