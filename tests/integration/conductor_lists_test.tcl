# What conductor.so shows whoever looks: /api/conductor/engines, decisions, candidates/N, prefixes.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] http.tcl]

proc start {args} {
    start_server --loadmodule "conductor.so $args" --enable-module-command local
    r module load http.so port 0
    set ::http_port [info_field http_port]
}
proc rows {table expression {query ""}} {
    set a "a = a\['[lindex [split $table /] 0]'\]"
    set answer [http_get /api/conductor/$table$query]
    assert_equal 200 [http_status $answer]
    set script "import json, sys; a = json.load(sys.stdin.buffer); $a\nprint($expression)"
    return [exec env PYTHONIOENCODING=ascii:backslashreplace /usr/bin/python3 -c $script \
        << [encoding convertfrom utf-8 [http_body $answer]]]
}
# Fields of one of these rows.
proc row {table i fields {query ""}} {
    return [rows $table "*\[a\[$i\]\[f\] for f in '[join $fields]'.split()\]" $query]
}
proc add {id args} {r conductor.add $id http://$id:8000 MODEL m KVBLOCKS 1000 {*}$args}
# The first n tokens of a chain.
proc tokens {chain n} {
    set ids {}
    for {set i 0} {$i < $n} {incr i} {lappend ids [expr {$chain * 100000 + $i}]}
    return [binary format i* $ids]
}

test {nothing yet} {
    start
    foreach table {engines decisions prefixes} {assert_equal {[]} [rows $table a]}
    foreach path {candidates/1 candidates/ candidates candidates/0 candidates/x candidates/-1
            candidates/18446744073709551615 engines/1 nothing} {
        assert_equal "404 $path" "[http_status [http_get /api/conductor/$path]] $path"
    }
}

test {engines: each rank, its load, its stream; in pages} {
    start
    add e1 ROLE prefill HOST h RACK k LORA x TENANT t
    foreach rank {0 1} {add e2 RANK $rank}
    add e3 EVENTS tcp://127.0.0.1:1 REPLAY tcp://127.0.0.1:1
    r conductor.load e2 RANK 1 PREFILL 500 WAITING 2 RUNNING 7 KVUSED 400
    r conductor.drain e1
    assert_equal {e1 e2.0 e2.1 e3} [rows engines {*[e["engine"] for e in a]}]
    assert_equal {prefill m x t h k http://e1:8000 drained -1 none 0} [row engines 0 \
        {role model lora tenant host rack url state silent events partial}]
    assert_equal {e2 1 up 0 500 7 400 1000} [row engines 2 \
        {id rank state prefills prefill_tokens decodes kv_used kv_blocks}]
    assert_equal {connecting 0 1 nothing has come yet none} [row engines 3 \
        {events connected partial partial_why metrics}]
    for {set i 0} {$i < 100} {incr i} {add x$i}
    assert_equal {104 104} [rows engines {len(a), len(set(e["engine"] for e in a))}]
    lassign [http_json /api/conductor/engines?count=10 \
        {len(a["engines"]), a["next"], a["more"]}] n next more
    assert {$n < 104 && $more eq "True"}
    assert_equal 104 [expr {$n + [rows engines len(a) ?from=$next]}]
}

test {decisions: who was chosen, what is there, why the second lost} {
    start
    add e1
    add e2
    r conductor.load e2 PREFILL 50000 WAITING 3
    r conductor.route first MODEL m LENGTH 1600 TTFT 60000
    assert_equal {1 first m tarn 1600 e1 1600 0 0 60000000 2 e2} [row decisions 0 \
        {decision request model policy tokens engine computed device load ttft_asked candidates
        second}]
    assert_equal {True True True} [rows decisions {a[0]["ttft"] > 0, \
        a[0]["cost"] < a[0]["second_cost"], "most of it by" in a[0]["second_why"]}]
    # as EXPLAIN has it
    foreach c [dict get [r conductor.explain first] candidates] {
        set id [dict get $c id]
        set cost($id) [dict get $c cost]
        assert_equal [dict get $c why] [rows candidates/1 \
            "\[c for c in a if c\['engine'\] == '$id'\]\[0\]\['why'\]"]
    }
    assert_equal True [rows candidates/1 "all(abs(c\['cost'\] / {'e1': $cost(e1),\
        'e2': $cost(e2)}\[c\['engine'\]\] - 1) < 1e-6 for c in a)"]
    assert_equal True [rows candidates/1 {abs(sum(v for k, v in a[0].items() \
        if k.startswith("term_")) / a[0]["cost"] - 1) < 1e-6}]
    assert_equal {computes 1600} [rows candidates/1 {a[0]["part"], a[0]["computed"]}]
    # who is gone has no name, and who came again is another
    r conductor.remove e2
    add e2
    assert_equal 1 [rows decisions {[a[0]["second"]].count("")}]
}

test {decisions: refused, and those that only decode; all who were passed over} {
    start
    add p1 ROLE prefill
    add d1 ROLE decode
    add d2 ROLE decode
    r conductor.drain d2
    assert_error "OVERLOADED 0 *" {r conductor.route no MODEL m LENGTH 100000 TTFT 1}
    assert_error "ERR *" {r conductor.route none MODEL nobody LENGTH 100}
    assert_equal p1 [lindex [r conductor.route yes MODEL m LENGTH 100] 0]
    assert_equal {3 2 1} [rows decisions {*[d["decision"] for d in a]}]
    assert_equal {p1 d1} [rows decisions {a[0]["engine"], a[0]["decode_engine"]}]
    assert_equal {computes:p1 decodes:d1 passed over:d2} \
        [rows candidates/3 {*[c["part"] + ":" + c["engine"] for c in a]}]
    assert_equal {nobody 0 False True} [rows decisions {a[1]["model"], a[1]["candidates"], \
        "engine" in a[1], "nobody" in a[1]["refused"]}]
    assert_equal {0 no engine can keep the TTFT or TBT, not even an idle one} \
        [rows decisions {a[2]["retry"], a[2]["refused"]}]
    r conductor.first yes
    r conductor.drain d2 CANCEL
    r conductor.drain d1
    r conductor.route yes MODEL m LENGTH 100
    assert_equal {4 '' d2} [rows decisions {a[0]["decision"], repr(a[0]["policy"]), \
        a[0]["decode_engine"]}]
}

test {decisions: the last ones, in pages, whatever their names have in them} {
    start decisions 40
    add e1
    set evil [binary format a*c*a* "\"\\<b>\n" {0 255 192 13} "\xc3\xa4"]
    catch {r conductor.route $evil MODEL $evil LENGTH 100}
    assert_equal [string repeat {"\\<b>\n\x01\ufffd\ufffd\r\xe4} 2] \
        [rows decisions {*[repr(a[0][f])[1:-1] for f in ("request", "model")], sep=""}]
    for {set i 0} {$i < 100} {incr i} {r conductor.route r$i MODEL m LENGTH 100}
    assert_equal {40 r99 r60} [rows decisions {len(a), a[0]["request"], a[-1]["request"]}]
    set next [http_json /api/conductor/decisions?count=10 {a["next"]}]
    assert_equal 101,$next [rows decisions {a[0]["decision"] + "," + a[-1]["decision"]} ?count=10]
    assert_equal [expr {$next - 1}] [rows decisions {a[0]["decision"]} ?from=$next]
    assert_equal 404 [http_status [http_get /api/conductor/candidates/61]]
    assert_equal {1 e1 chosen} [rows candidates/62 {len(a), a[0]["engine"], a[0]["why"]}]
    assert_equal 0 [rows decisions len(a) ?from=1]
}

test {prefixes: what is asked for most, and who has it; hits by tier} {
    start
    set publisher [open [list | /usr/bin/python3 \
        [file join [file dirname [info script]] kv_publisher.py] 0 0] r+]
    fconfigure $publisher -buffering line
    lassign [gets $publisher] events replay
    add e1 EVENTS tcp://127.0.0.1:$events REPLAY tcp://127.0.0.1:$replay
    foreach line {{await 1} {store 1 0 4} {store 1 4 6 medium CPU}} {
        puts $publisher $line
        assert_equal ok [gets $publisher]
    }
    wait_for "it is found" {[r conductor.match MODEL m TOKENS [tokens 1 160]] ne {}}
    wait_for "all of it is" {
        [dict get [lindex [r conductor.match MODEL m TOKENS [tokens 1 160]] 0] disk] == 96
    }
    for {set i 0} {$i < 64} {incr i} {r conductor.route r$i MODEL m TOKENS [tokens 1 160]}
    assert_equal {64 32 0} [row decisions 0 {device host disk}]
    assert_equal {96 1 m True} [rows prefixes {a[0]["tokens"], a[0]["engines"], a[0]["model"], \
        a[0]["asked"] >= 48}]
    assert_equal True [rows engines {a[0]["hit_tokens"] / a[0]["prompt_tokens"] == 0.6}]
    assert_equal "[expr {64 * 64}] [expr {64 * 32}] 0" [lmap tier {device host disk} {
        info_field route_${tier}_tokens
    }]
    catch {close $publisher}
}

finish
