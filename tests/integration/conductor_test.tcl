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
        assert_equal {0.1.0 module conductor} [lmap f {since group module} {dict get $docs $f}]
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
    assert_error "ERR no engine 'e1' is registered; *" {ask a conductor.remove e1 RANK 5}
    assert_error "ERR no engine '?' is registered; *" {ask a conductor.drain "\x01"}
    assert_error "ERR engine e1 has no rank 5" {ask a conductor.load e1 RANK 5}
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
    set expected "*1\r\n%13\r\n\$2\r\nid\r\n\$2\r\ne1\r\n"
    assert_equal $expected [resp::recv_raw $c [string length $expected]]
    resp::close $c
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
