# conductor.so: engines that register, requests that are routed, and what of it survives.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]

proc engines {name} {
    return [lmap e [ask $name conductor.list] {string cat [dict get $e id] . [dict get $e rank]}]
}
proc engine {name id field} {return [dict get [ask $name conductor.info $id] $field]}
proc rank {name id field {rank 0}} {
    foreach r [engine $name $id ranks] {
        if {[dict get $r rank] == $rank} {return [dict get $r $field]}
    }
    error "engine $id has no rank $rank"
}

up a --loadmodule conductor.so --enable-module-command local --appendonly yes

# --- as commands of ours ---

test {commands, as COMMAND shows them} {
    assert_equal {conductor.add -5 {write denyoom module admin noscript} 0 0 0} \
        [lrange [lindex [ask a command info conductor.add] 0] 0 5]
    assert_equal {conductor.load -2 {write module fast} 0 0 0} \
        [lrange [lindex [ask a command info conductor.load] 0] 0 5]
    assert_equal {conductor.list 1 {readonly module} 0 0 0} \
        [lrange [lindex [ask a command info conductor.list] 0] 0 5]
    assert_error "ERR The command has no key arguments" {
        ask a command getkeys conductor.add e1 http://e1 MODEL m
    }
    foreach {name syntax} {
        conductor.remove {id {RANK n}} conductor.drain {id CANCEL} conductor.info id
    } {
        set docs [dict get [ask a command docs $name] $name]
        assert_equal {0.2.0 module conductor} [lmap f {since group module} {dict get $docs $f}]
        assert {[dict get $docs reply] in {OK "a map"}}
        assert_equal $syntax [lmap argument [dict get $docs arguments] {
            concat [expr {[dict exists $argument token] ? [dict get $argument token] : ""}] \
                [expr {[dict get $argument type] eq "string" ? [dict get $argument name] : ""}]
        }] $name
    }
}

test {users: the category, and who manages} {
    ask a acl setuser nina on >pw -@all +@conductor -@admin +auth
    set c [resp::connect 127.0.0.1 [port a]]
    assert_equal OK [$c auth nina pw]
    assert_equal {} [$c conductor.list]
    assert_error "NOPERM * 'conductor.add' command" {$c conductor.add e1 http://e1 MODEL m}
    assert_error "ERR no engine 'e1' *" {$c conductor.load e1}
    resp::close $c
    assert_equal 1 [ask a acl deluser nina]
}

# --- registrations ---

test {an engine registers, again, and as another} {
    assert_equal OK [ask a conductor.add e1 http://e1:8000 MODEL llama]
    assert_equal OK [ask a conductor.add e1 http://e1:8000 MODEL llama BLOCK 16]
    assert_equal 1 [field a conductor_engines_renewed]
    assert_error "ERR engine 'e1' is registered with BLOCK 16, not 32: CONDUCTOR.REMOVE it *" {
        ask a conductor.add e1 http://e1:8000 MODEL llama BLOCK 32
    }
    assert_error "ERR engine 'e1' is registered with url http://e1:8000, not http://x: *" {
        ask a conductor.add e1 http://x MODEL llama
    }
    assert_error "ERR engine 'e1' is registered with SALT nothing, not s: *" {
        ask a conductor.add e1 http://e1:8000 MODEL llama SALT s
    }
    assert_equal 3 [field a conductor_engines_differing]
    assert_equal OK [ask a conductor.add e2 http://e2 ROLE prefill MODEL llama LORA l TENANT t \
        SALT s BLOCK 32 KVBLOCKS 1000 HOST h RACK r BYTES 131072]
    assert_equal {e1.0 e2.0} [engines a]
    assert_equal {prefill llama l t s h r 32 1000 131072} [lmap f {
        role model lora tenant salt host rack block kvblocks bytes
    } {engine a e2 $f}]
    assert_equal {http://e2 up 0 -1} [lmap f {url state reports silent-ms} {rank a e2 $f}]
    assert_equal OK [ask a conductor.remove e2]
    assert_equal {e1.0} [engines a]
}

test {errors name the argument} {
    foreach {error command} {
        "unknown option 'MODLE', did you mean 'MODEL'?" {e9 http://e9 MODLE m}
        "ROLE must be BOTH, PREFILL or DECODE" {e9 http://e9 MODEL m ROLE none}
        "BLOCK must be a number from 1 to 1048576" {e9 http://e9 MODEL m BLOCK 0}
        "RANK must be a number from 0 to 63" {e9 http://e9 MODEL m RANK 64}
        "MODEL must be 1 to 128 bytes" {e9 http://e9 MODEL ""}
        "an engine's id is 1 to 128 of A-Z a-z 0-9 . _ -" {"e 9" http://e9 MODEL m}
        "HOST needs a value" {e9 http://e9 MODEL m HOST}
        "CONDUCTOR.ADD needs MODEL" {e9 http://e9 BLOCK 16}
    } {
        assert_error "ERR $error" {ask a conductor.add {*}$command}
    }
    assert_error "ERR no engine 'e9' is registered; CONDUCTOR.LIST *" {ask a conductor.info e9}
    assert_error "ERR no engine 'e9' is registered; *" {ask a conductor.remove e9}
    assert_error "ERR engine 'e1' has no rank 5" {ask a conductor.remove e1 RANK 5}
    assert_error "ERR no engine 'e9' is registered; *" {ask a conductor.remove e9 RANK 5}
    assert_error "ERR no engine '?' is registered; *" {ask a conductor.drain "\x01"}
    assert_error "ERR engine 'e1' has no rank 5" {ask a conductor.load e1 RANK 5}
    assert_error "ERR PREFILL must be a number *" {ask a conductor.load e1 PREFILL -1}
    assert {[field a conductor_requests_bad] >= 14}
    assert_equal {e1.0} [engines a]
}

test {ranks register one by one} {
    assert_equal OK [ask a conductor.add e1 http://e1:8002 MODEL llama RANK 2]
    assert_error "ERR engine 'e1' is registered with MODEL llama, not other: *" {
        ask a conductor.add e1 http://e1:8001 MODEL other RANK 1
    }
    assert_equal {e1.0 e1.2} [engines a]
    assert_equal {http://e1:8000 http://e1:8002} [list [rank a e1 url] [rank a e1 url 2]]
    assert_equal OK [ask a conductor.remove e1 RANK 0]
    assert_equal {e1.2} [engines a]
    assert_error "ERR engine 'e1' has no rank 0" {ask a conductor.load e1}
    assert_equal OK [ask a conductor.add e1 http://e1:8000 MODEL llama]
    assert_equal OK [ask a conductor.remove e1 RANK 2]
    assert_equal {e1.0} [engines a]
}

test {an engine says how loaded it is} {
    assert_equal OK [ask a conductor.load e1 PREFILL 5000 WAITING 2 RUNNING 7 KVUSED 10 KVBLOCKS 99]
    assert_equal {5000 7 10 1} [lmap f {
        other-prefill-tokens other-decodes other-kvblocks reports
    } {rank a e1 $f}]
    assert {[rank a e1 silent-ms] >= 0 && [rank a e1 wait-ms] > 0}
    assert_equal 99 [engine a e1 kvblocks]
    # what it does not say stays
    assert_equal OK [ask a conductor.load e1 RUNNING 1]
    assert_equal {5000 1} [lmap f {other-prefill-tokens other-decodes} {rank a e1 $f}]
    assert_equal OK [ask a conductor.load e1 PREFILL 0 RUNNING 0 KVUSED 0]
}

test {figures of each engine} {
    assert_match "up=1,prefills=0,*,blocks=0,*" [field a engine_e1]
    ask a conductor.add ranks http://r MODEL llama RANK 1
    assert_match "up=1,*" [field a engine_ranks.1]
    ask a conductor.remove ranks
    assert_match "# Conductor*route_decisions:0*conductor_memory:*engine_e1:*" \
        [ask a info conductor]
    assert_equal 1 [regexp -all {route_decisions:} [ask a info conductor Conductor conductor]]
}

test {draining} {
    assert_equal OK [ask a conductor.drain e1]
    assert_equal OK [ask a conductor.drain e1]
    assert_equal drained [rank a e1 state]
    assert_equal OK [ask a conductor.load e1 RUNNING 1]
    assert_equal draining [rank a e1 state]
    assert_equal OK [ask a conductor.drain e1 CANCEL]
    assert_equal up [rank a e1 state]
    assert_equal OK [ask a conductor.drain e1 CANCEL]
    assert_equal OK [ask a conductor.load e1 RUNNING 0]
}

test {maps of RESP3} {
    set c [resp::connect 127.0.0.1 [port a]]
    resp::raw $c "*2\r\n\$5\r\nhello\r\n\$1\r\n3\r\n"
    resp::recv $c
    resp::send $c conductor.list
    set expected "*1\r\n%16\r\n\$2\r\nid\r\n\$2\r\ne1\r\n"
    assert_equal $expected [resp::recv_raw $c [string length $expected]]
    resp::close $c
}

# --- requests ---

proc blob {n {from 0}} {
    for {set i 0} {$i < $n} {incr i} {append out [binary format i [expr {$from + $i}]]}
    return $out
}
# The whole reply but for the times, which are estimates.
proc routed {name args} {
    lassign [ask $name conductor.route {*}$args] prefill decode hits pool
    return [list $prefill $decode $hits $pool]
}
up r --loadmodule conductor.so --enable-module-command local

test {a request is routed, told of, and over} {
    foreach id {e1 e2} {ask r conductor.add $id http://$id MODEL m BLOCK 16}
    set reply [ask r conductor.route q1 MODEL m TOKENS [blob 1000] OUTPUT 100]
    assert_equal {(nil) {0 0 0} 0} [lrange $reply 1 3]
    set first [lindex $reply 0]
    lassign [lrange $reply 4 6] ttft tbt lease
    assert {$first in {e1 e2} && $ttft > 0 && $tbt > 0 && $lease >= 60000}
    assert_equal {1 1000} [lmap f {prefills prefill-tokens} {rank r $first $f}]
    # a burst does not all go to one engine
    assert {[lindex [routed r q2 MODEL m LENGTH 1000] 0] ne $first}
    assert_equal OK [ask r conductor.first q1]
    assert_equal {0 1} [lmap f {prefills decodes} {rank r $first $f}]
    assert_equal OK [ask r conductor.done q1 OUTPUT 90]
    assert_equal {0 0 1} [lmap f {prefills decodes routed} {rank r $first $f}]
    assert_error "ERR there is no such request, or its lease has ended" {ask r conductor.done q1}
    assert_equal OK [ask r conductor.done q2]
    assert_equal 0 [field r route_reserved]
}

test {what is on its way counts for the next with the same beginning} {
    set same [blob 4000 7]
    set there [lindex [ask r conductor.route a1 MODEL m TOKENS $same] 0]
    set next [ask r conductor.route a2 MODEL m TOKENS $same[blob 16]]
    assert_equal $there [lindex $next 0]
    set e [ask r conductor.explain a2]
    assert_equal tarn [dict get $e policy]
    set chosen [lsearch -inline [dict get $e candidates] "id $there *"]
    assert_equal {chosen 4000} [lmap f {why ahead-tokens} {dict get $chosen $f}]
    assert {[dict size [dict get $chosen terms]] > 0}
    foreach id {a1 a2} {ask r conductor.done $id}
    assert_error "ERR this decision is not kept any more" {ask r conductor.explain nothing}
}

test {EXPLAIN says why a request was refused, and who decodes} {
    foreach {id role} {xp PREFILL xd DECODE xs DECODE} {
        assert_equal OK [ask r conductor.add $id http://$id MODEL x ROLE $role]
    }
    catch {ask r conductor.route b1 MODEL x LENGTH 100000 TTFT 50} told
    assert_match "OVERLOADED 0 *" $told
    set e [ask r conductor.explain b1]
    assert_equal "OVERLOADED 0 [dict get $e refused]" $told
    assert_equal {50 0 0 (nil)} [lmap f {ttft-ms tbt-ms retry-ms before} {dict get $e $f}]
    assert_match "its first token would take *, and 50 are asked for" \
        [dict get [lindex [dict get $e candidates] 0] why]
    ask r conductor.drain xs
    assert_equal {xp xd} [lrange [ask r conductor.route b2 MODEL x LENGTH 1000] 0 1]
    set e [ask r conductor.explain b2]
    assert_equal {id xd rank 0 why chosen} [lrange [lindex [dict get $e decode-candidates] 0] 0 5]
    assert_equal {{id xs rank 0 why {it drains}}} [dict get $e passed-over]
    assert_equal OK [ask r conductor.first b2]
    ask r conductor.route b2 MODEL x LENGTH 1000
    set e [ask r conductor.explain b2]
    assert_equal {(nil) tarn} [list [dict get $e policy] [dict get [dict get $e before] policy]]
    ask r conductor.done b2
    foreach id {xp xd xs} {ask r conductor.remove $id}
}

test {HASHES: of which block is told, or said} {
    assert_equal OK [ask r conductor.add wide http://wide MODEL w BLOCK 32]
    set most 18446744073709551615
    assert_equal {wide (nil) {0 0 0} 0} [routed r h1 MODEL w HASHES 2 1 $most LENGTH 70]
    assert_equal OK [ask r conductor.done h1]
    assert_equal OK [ask r conductor.add narrow http://narrow MODEL w BLOCK 16]
    # 70 tokens are two blocks of 32, or four of 16
    assert_equal 4 [llength [routed r h1 MODEL w HASHES 4 1 2 3 4 LENGTH 70]]
    assert_error "ERR engines of this model have blocks of 32, 16 tokens: say with BLOCK *3 *" {
        ask r conductor.route h1 MODEL w HASHES 3 1 2 3 LENGTH 70
    }
    assert_equal 4 [llength [routed r h1 MODEL w HASHES 3 1 2 3 LENGTH 70 BLOCK 16]]
    assert_error "ERR BLOCK is 64, and the engines of this model have blocks of 32, 16 tokens" {
        ask r conductor.route h1 MODEL w HASHES 1 1 LENGTH 70 BLOCK 64
    }
    assert_error "ERR a prompt of 70 tokens (LENGTH) has no 5 blocks of 16" {
        ask r conductor.route h1 MODEL w HASHES 5 1 2 3 4 5 LENGTH 70 BLOCK 16
    }
    assert_equal 3 [field r conductor_prompts_misfitting]
    assert_equal {} [ask r conductor.match MODEL w HASHES 4 1 2 3 4 LENGTH 70]
    ask r conductor.done h1
}

test {requests that are wrong} {
    foreach {error request} {
        "TOKENS has 5 bytes, and a token takes 4: it was cut short, or is none" {TOKENS 12345}
        "TOKENS has 2 tokens, and LENGTH says 3" {TOKENS 12345678 LENGTH 3}
        "EXTRA must be, for each block*" {TOKENS 12345678 EXTRA x}
        "TOKENS must be 4 to 4194304 bytes" {TOKENS ""}
        "TOKENS and HASHES exclude each other" {TOKENS 1234 HASHES 1 1}
        "HASHES needs LENGTH, of the prompt" {HASHES 1 1}
        "hash 2 of HASHES must be a number of 64 bits, unsigned" {HASHES 2 1 x LENGTH 40}
        "HASHES is 3, but fewer than 3 arguments follow" {HASHES 3 1 2}
        "EXTRA goes with TOKENS" {EXTRA 1 LENGTH 5}
        "TOKENS, or HASHES and LENGTH, or LENGTH alone, must say what the prompt is" {}
        "there is no policy 'best'" {LENGTH 5 POLICY best}
        "PRIORITY must be a number from -100 to 100" {LENGTH 5 PRIORITY 101}
        "TTFT must be a number from 1 to 86400000" {LENGTH 5 TTFT 0}
        "LENGTH must be a number from 1 to 268435456" {LENGTH 0}
        "unknown option 'LENGHT', did you mean 'LENGTH'?" {LENGHT 5}
    } {
        assert_error "ERR $error" {ask r conductor.route x MODEL m {*}$request}
    }
    assert_equal 3 [field r conductor_prompts_cut]
    assert_error "ERR CONDUCTOR.ROUTE needs MODEL" {ask r conductor.route x LENGTH 5 OUTPUT 6}
    assert_error "ERR no engine serves model 'none'" {ask r conductor.route x MODEL none LENGTH 5}
    assert_error "ERR no engine serves model 'm' with adapter l" {
        ask r conductor.route x MODEL m LORA l TOKENS [blob 100]
    }
    assert_equal 2 [field r conductor_requests_unserved]
    assert_equal 0 [field r route_reserved]
}

test {who is excluded, drained, silent or fails is not chosen} {
    assert_equal e2 [lindex [routed r x MODEL m LENGTH 100 EXCLUDE e1] 0]
    assert_error "ERR none of the 2 ranks that serve model 'm' may take it: 2 excluded,*" {
        ask r conductor.route y MODEL m LENGTH 100 EXCLUDE e1 EXCLUDE e2
    }
    ask r conductor.drain e2
    assert_equal draining [rank r e2 state]
    assert_equal e1 [lindex [routed r y MODEL m LENGTH 100] 0]
    ask r conductor.done x
    assert_equal drained [rank r e2 state]
    for {set i 0} {$i < 2} {incr i} {
        assert_equal OK [ask r conductor.done y FAILED]
        if {$i == 0} {assert_equal e1 [lindex [routed r y MODEL m LENGTH 100] 0]}
    }
    assert_equal {failing 2} [list [rank r e1 state] [engine r e1 failed]]
    assert_error "ERR none of the 2 ranks *1 draining, 0 silent, 1 failing*" {
        ask r conductor.route y MODEL m LENGTH 100
    }
    ask r conductor.drain e2 CANCEL
    assert_equal e2 [lindex [routed r y MODEL m LENGTH 100] 0]
    ask r conductor.done y
}

test {an engine that was to decode fails before the first token} {
    foreach {id role} {p PREFILL d1 DECODE d2 DECODE} {
        ask r conductor.add $id http://$id MODEL apart ROLE $role
    }
    for {set i 0} {$i < 2} {incr i} {
        assert_equal {p d1} [lrange [routed r y MODEL apart LENGTH 100 EXCLUDE d2] 0 1]
        assert_error "ERR DECODE says which engine failed*" {ask r conductor.done y DECODE}
        assert_equal OK [ask r conductor.done y FAILED DECODE]
    }
    assert_equal {failing up up} [lmap id {d1 d2 p} {rank r $id state}]
    assert_equal {p d2} [lrange [routed r y MODEL apart LENGTH 100] 0 1]
    ask r conductor.done y
    foreach id {p d1 d2} {ask r conductor.remove $id}
}

test {SESSION: the next turn goes where the last one was} {
    foreach i {1 2 3} {ask r conductor.add s$i http://s$i MODEL s}
    foreach s {a b c d e f} {
        set at($s) [lindex [routed r $s MODEL s LENGTH 4000 SESSION $s] 0]
        assert_equal OK [ask r conductor.done $s OUTPUT 500]
    }
    foreach s {a b c d e f} {
        assert_equal [list $at($s) (nil) {0 0 0} 0] [routed r $s MODEL s LENGTH 5000 SESSION $s]
        foreach c [dict get [ask r conductor.explain $s] candidates] {
            set tokens [expr {[dict get $c id] eq $at($s) ? {4496 504 0} : {0 5000 0}}]
            assert_equal $tokens [lmap f {session-tokens new-tokens ahead-tokens} {dict get $c $f}]
        }
        ask r conductor.done $s
    }
    routed r x MODEL s LENGTH 5000 SESSION g
    assert_equal [list [expr {6 * 4496}] 6] \
        [list [field r route_session_tokens] [field r route_sessions]]
    ask r conductor.done x
    foreach i {1 2 3} {ask r conductor.remove s$i}
}

test {prefill and decode apart; ranks} {
    ask r conductor.add p http://p MODEL pd ROLE prefill
    assert_error "ERR engine p only computes prompts, and none that decodes may take it" {
        ask r conductor.route z MODEL pd LENGTH 100
    }
    foreach n {0 1} {ask r conductor.add d http://d$n MODEL pd ROLE decode RANK $n}
    assert_match {p {d [01]} {0 0 0} 0} [routed r z MODEL pd LENGTH 100]
    assert_equal OK [ask r conductor.first z]
    # chosen anew: who decodes
    assert_match {p {d [01]} {0 0 0} 0} [routed r z MODEL pd LENGTH 100]
    assert_equal OK [ask r conductor.done z OUTPUT 5]
}

test {times that nobody can keep are refused, with when to come again} {
    assert_error "OVERLOADED 0 no engine can keep the TTFT or TBT, not even an idle one" {
        ask r conductor.route o MODEL m LENGTH 100000 TTFT 1
    }
    for {set i 0} {$i < 40} {incr i} {ask r conductor.route o$i MODEL m LENGTH 20000}
    catch {ask r conductor.route o MODEL m LENGTH 1000 TTFT 500} text
    assert_match "OVERLOADED \[1-9\]* no engine can keep the TTFT or TBT before * ms have*" $text
    for {set i 0} {$i < 40} {incr i} {ask r conductor.done o$i}
}

test {a tenant who floods takes nothing from others} {
    ask r module unload conductor
    ask r module loadex conductor.so args tenant-wait-ms 100
    set taken 0
    ask r conductor.route b0 MODEL m LENGTH 100 TENANT b
    while {![catch {ask r conductor.route f[incr taken] MODEL m LENGTH 20000 TENANT flood} text]} {
        assert {$taken < 1000}
    }
    assert_match "OVERLOADED * the tenant has more waiting than its share while others are there*" \
        $text
    assert_equal 4 [llength [routed r b1 MODEL m LENGTH 100 TENANT b]]
    assert_equal 1 [field r route_over_share]
    for {set i 1} {$i < $taken} {incr i} {ask r conductor.done f$i}
    foreach id {b0 b1} {ask r conductor.done $id}
}

test {DOCTOR says what is amiss} {
    up j --loadmodule {conductor.so silent-ms 1}
    proc says {what} {
        assert_match "*- $what*" [ask j conductor.doctor]
    }
    says "No engine is registered: CONDUCTOR.ADD."
    catch {ask j conductor.route q MODEL none LENGTH 5}
    says "No engine serves model none (requests: 1). Engines serve nothing."
    ask j conductor.add e1 http://e1 MODEL m SALT pepper
    ask j conductor.add e2 http://e2 MODEL m LORA l
    says "What lies in the caches of e1, e2 is not known, so nothing is found there*"
    says "No engine serves model none (requests: 1). Engines serve m."
    ask j conductor.route q MODEL m LENGTH 5
    says "Requests for model m have salt none, its engines pepper: their hashes cannot agree*"
    catch {ask j conductor.route q MODEL m LORA x LENGTH 5}
    says "No engine of model m has adapter x (requests: 1), but none, l*"
    for {set i 0} {$i < 20} {incr i} {ask j conductor.route q$i MODEL m LENGTH 5 SALT pepper}
    says "No load was ever reported of e1: *"
    says "Nobody tells CONDUCTOR.FIRST: *"
    catch {ask j conductor.route q MODEL m TOKENS 12345}
    says "Prompts that were cut short: 1. *"
    catch {ask j conductor.route q MODEL m HASHES 1 1 LENGTH 5}
    says "Requests with hashes of blocks of a size that the model's engines do not have: 1. *"
    catch {ask j conductor.add e1 http://e1 MODEL m SALT salt}
    says "Engines that came back with other values *: 1. *"
    ask j conductor.drain e2
    says "e2 drains: *"
    ask j conductor.load e1
    wait_for "e1 to be silent" {[rank j e1 state] eq "silent"}
    says "e1 reported once, and then fell silent*"
    assert_error "ERR none of the 1 ranks *1 silent*" {ask j conductor.route q MODEL m LENGTH 5}
    ask j conductor.load e1
    assert {![string match "*No load was ever reported*" [ask j conductor.doctor]]}
}

test {RESP3: estimates are doubles} {
    set c [resp::connect 127.0.0.1 [port r]]
    resp::raw $c "*2\r\n\$5\r\nhello\r\n\$1\r\n3\r\n"
    resp::recv $c
    resp::send $c conductor.route q MODEL m LENGTH 10 EXCLUDE e1
    set expected "*7\r\n\$2\r\ne2\r\n_\r\n*3\r\n:0\r\n:0\r\n:0\r\n:0\r\n,"
    assert_equal $expected [resp::recv_raw $c [string length $expected]]
    resp::close $c
    ask r conductor.done q
}

# --- what survives ---

test {registrations and drains survive kill -9, DEBUG RELOAD and the module's going} {
    ask a conductor.add e2 http://e2 MODEL llama LORA l BLOCK 32
    ask a conductor.add e2 http://e2:1 MODEL llama LORA l BLOCK 32 RANK 1
    ask a conductor.add gone http://gone MODEL llama
    ask a conductor.drain e2
    ask a conductor.drain gone
    ask a conductor.remove gone
    ask a conductor.add gone http://gone MODEL llama
    set all [lsort [engines a]]
    for {set how 0} {$how < 3} {incr how} {
        switch $how {
            0 {again a}
            1 {assert_equal OK [ask a debug reload]}
            2 {
                assert_equal OK [ask a module unload conductor]
                assert_equal OK [ask a module load conductor.so]
            }
        }
        assert_equal $all [lsort [engines a]] ($how)
        assert_equal {drained drained up up} \
            [list [rank a e2 state] [rank a e2 state 1] [rank a e1 state] [rank a gone state]]
        assert_equal {http://e2 http://e2:1} [list [rank a e2 url] [rank a e2 url 1]]
    }
    assert_error "ERR engine 'e2' is registered with BLOCK 32, not 16: *" {
        ask a conductor.add e2 http://e2 MODEL llama LORA l
    }
    assert_equal OK [ask a conductor.remove gone]
}

test {a replica follows, and is as its master when it takes over} {
    up b --loadmodule conductor.so
    assert_equal {} [engines b]
    ask b conductor.add stray http://stray MODEL m
    follow b a
    wait_for "b to have a's engines" {[lsort [engines b]] eq {e1.0 e2.0 e2.1}}
    assert_equal drained [rank b e2 state]
    ask a conductor.drain e2 CANCEL
    ask a conductor.add e3 http://e3 MODEL llama
    ask a conductor.remove e1
    same_books a b
    assert_equal {e2.0 e2.1 e3.0} [lsort [engines b]]
    assert_equal up [rank b e2 state]
    assert_error "READONLY *" {ask b conductor.add e4 http://e4 MODEL m}
    assert_error "READONLY *" {ask b conductor.load e3}
    down a
    assert_equal OK [ask b replicaof no one]
    assert_equal {e2.0 e2.1 e3.0} [lsort [engines b]]
    assert_equal OK [ask b conductor.add e4 http://e4 MODEL m]
    assert_equal OK [ask b conductor.remove e2]
    assert_equal {e3.0 e4.0} [lsort [engines b]]
}

test {reservations and what was learnt survive, too} {
    up e --loadmodule {conductor.so lease-ms 60000} --appendonly yes --enable-debug-command yes
    up f --loadmodule conductor.so
    foreach id {e1 e2} {ask e conductor.add $id http://$id MODEL m}
    follow f e
    for {set i 0} {$i < 20} {incr i} {
        ask e conductor.route l$i MODEL m LENGTH 1000 POLICY round-robin
        ask e conductor.first l$i
        ask e conductor.done l$i OUTPUT 10
    }
    foreach id {q1 q2 q3 q4} {ask e conductor.route $id MODEL m LENGTH 1000 TENANT t}
    ask e conductor.first q1
    ask e conductor.done q4
    proc reserved {name} {
        return [lmap id {e1 e2} {
            list [rank $name $id prefills] [rank $name $id prefill-tokens] \
                [rank $name $id decodes] [rank $name $id context-tokens]
        }]
    }
    set was [reserved e]
    proc seen {name} {return [lmap id {e1 e2} {engine $name $id prefill-seen}]}
    set learnt [seen e]
    assert {[lindex $learnt 0] > 0 && [lindex $learnt 1] > 0}
    wait_for "what was learnt to be kept" {[seen f] eq $::learnt}
    same_books e f
    assert_equal $was [reserved f]
    again e
    assert_equal $was [reserved e]
    assert_equal $learnt [seen e]
    assert_equal OK [ask e conductor.first q2]
    assert_equal OK [ask e conductor.done q1 OUTPUT 3]
    wait_link f
    same_books e f
    wait_for "f to have taken them up" {[reserved e] eq [reserved f]}
    down e
    assert_equal OK [ask f replicaof no one]
    assert_error "ERR there is no such request*" {ask f conductor.done q1}
    assert_equal OK [ask f conductor.first q3]
    foreach id {q2 q3} {assert_equal OK [ask f conductor.done $id]}
    assert_equal 0 [field f route_reserved]
    assert_match "names=4,*" [field f module_state_conductor]
}

test {a lease that ends gives back, and leaves nothing} {
    up g --loadmodule {conductor.so lease-ms 1}
    ask g conductor.add e1 http://e1 MODEL m
    ask g conductor.route q1 MODEL m LENGTH 1
    wait_for "the lease to end" {[field_is g route_lease_ends 1]}
    wait_for "nothing to be kept of it" {[string match names=1,* [field g module_state_conductor]]}
    assert_error "ERR there is no such request*" {ask g conductor.first q1}
    assert_equal {0 0} [lmap f {prefills decodes} {rank g e1 $f}]
    # an engine that goes takes its requests with it
    ask g config set module-state-max 1000
    ask g conductor.route q2 MODEL m LENGTH 100000000
    ask g conductor.remove e1
    assert_match "names=0,*" [field g module_state_conductor]
}

test {where there is no room, engines go before reservations} {
    up h --loadmodule conductor.so --module-state-max 4000
    ask h conductor.add e1 http://e1 MODEL m
    for {set i 0} {$i < 30} {incr i} {ask h conductor.route q$i MODEL m LENGTH 1000}
    assert {[field h conductor_requests_unkept] > 0}
    assert_equal OK [ask h conductor.add e2 http://e2 MODEL m]
    for {set i 0} {$i < 30} {incr i} {assert_equal OK [ask h conductor.done q$i]}
    assert_match "names=2,*" [field h module_state_conductor]
}

test {bounds: ranks, and what may be kept} {
    up c --loadmodule {conductor.so ranks 2} --module-state-max 200
    assert_equal OK [ask c conductor.add e1 http://e1 MODEL m]
    assert_error "LIMIT there is no room to keep it: module-state-max" {
        ask c conductor.add e2 http://e2 MODEL m
    }
    assert_equal {e1.0} [engines c]
    ask c config set module-state-max 16mb
    assert_equal OK [ask c conductor.add e2 http://e2 MODEL m]
    assert_error "LIMIT there are 2 ranks at most*" {ask c conductor.add e3 http://e3 MODEL m}
    assert_equal {e1.0 e2.0} [engines c]
}

test {words that are wrong} {
    up d --enable-module-command local
    foreach {words error} {
        {policy best} "policy best: must be one of *tarn*"
        {polity tarn} "unknown word 'polity': policy NAME, ranks N, *are known"
        {ranks} "'ranks' wants a value"
        {ranks 0} "ranks 0: must be a number from 1 to 4096"
        {index-size 1kb} "index-size 1kb: must be a size from *"
        {ranks 4096 index-size 1mb} "index-size is too small for so many ranks"
    } {
        assert_error "*$error*" {ask d module loadex conductor.so args {*}$words}
    }
}

finish
