# tarn-benchmark against a real server: the trace replay must agree with a model, and no mode may
# fail.
source [file join [file dirname [info script]] harness.tcl]

set bench [file join [file dirname $::server_binary] tarn-benchmark]
if {![file executable $bench]} {set bench [file join $::root src tarn-benchmark]}

proc bench {args} {
    return [exec $::bench -p [server port] --json {*}$args 2>@1]
}

proc field {json name} {
    if {![regexp "\"$name\":(\"\[^\"\]*\"|\[-0-9.e+\]+)" $json -> value]} {
        error "no $name in: $json"
    }
    return $value
}

# Requests that share prefixes, more blocks than the pool holds. The generator is fixed: the test is
# the same every time.
set state 12345
proc random {n} {
    set ::state [expr {($::state * 1103515245 + 12345) % 2147483648}]
    return [expr {$::state / 65536 % $n}]
}
proc make_trace {path requests} {
    set ::requests {}
    set f [open $path w]
    set next 0
    set chains {{}}
    for {set i 0} {$i < $requests} {incr i} {
        set chain [lindex $chains [random [llength $chains]]]
        set chain [lrange $chain 0 [random [expr {[llength $chain] + 1}]]]
        for {set k [expr {1 + [random 20]}]} {$k > 0} {incr k -1} {
            lappend chain $next
            incr next
        }
        lappend chains $chain
        if {[llength $chains] > 30} {set chains [lrange $chains 1 end]}
        lappend ::requests $chain
        puts $f "{\"timestamp\": $i, \"input_length\": [expr {512 * [llength $chain]}],\
            \"output_length\": 1, \"hash_ids\": \[[join $chain {, }]\]}"
    }
    close $f
}

# Hits of an LRU of so many blocks, each request using its prefix and then putting the rest.
proc lru_hits {capacity} {
    set lru [dict create]
    set hits 0
    foreach chain $::requests {
        set hit 1
        foreach block $chain {
            if {$hit && [dict exists $lru $block]} {
                incr hits
                dict unset lru $block
            } else {
                set hit 0
                if {[dict exists $lru $block]} {
                    dict unset lru $block
                } elseif {[dict size $lru] >= $capacity} {
                    dict unset lru [lindex [dict keys $lru] 0]
                }
            }
            dict set lru $block 1
        }
    }
    return $hits
}

set trace [file join [temp_dir] trace.jsonl]
make_trace $trace 400

start_server --pool-size [expr {300 * 4096}] --eviction-high-watermark 1 --eviction-policy lru
foreach transport {shm tcp} {
    test "guarantee 1: a replay over $transport reads back every byte, and hits what an LRU of 300\
            blocks would" {
        r flushall
        set blocks 0
        foreach chain $requests {incr blocks [llength $chain]}
        # Leases that do not end while a slow machine reads.
        set json [bench replay $trace --transport $transport --lease-ms 10000]
        assert_equal 400 [field $json requests]
        assert_equal $blocks [field $json blocks]
        assert_equal 0 [field $json mismatched_blocks]
        assert_equal 0 [field $json failed_puts]
        assert_equal [lru_hits 300] [field $json hit_blocks]
        assert_equal [expr {4096 * [field $json hit_blocks]}] [field $json bytes_read]
        assert {[info_field evicted_objects] > 0}
    }
}

test {a replay with the sessions of its trace as hints} {
    set f [open $trace.bailian w]
    foreach {chat parent ids} {1 -1 {1 2} 2 -1 {3} 3 1 {1 2 4}} {
        puts $f "{\"chat_id\": $chat, \"parent_chat_id\": $parent, \"timestamp\": $chat,\
            \"input_length\": 40, \"output_length\": 1, \"type\": \"text\", \"turn\": 1,\
            \"hash_ids\": \[[join $ids {, }]\]}"
    }
    close $f
    foreach {option expected} {{} {} --hints {0 1 0}} {
        r flushall
        set monitor [client]
        $monitor monitor
        set json [bench replay $trace.bailian {*}$option]
        r echo the-end
        assert_equal {3 6 2 96 32} [lmap name {requests blocks hit_blocks tokens hit_tokens} {
            field $json $name
        }]
        set seen [dict create PREFIXLEN {} MPUTSTART {} MGETREPLICAS {}]
        while {![string match {*"the-end"*} [set line [resp::recv $monitor]]]} {
            if {[regexp {"(PREFIXLEN|MPUTSTART|MGETREPLICAS)".*"HINT" "SESSION" "(\d+)"} $line \
                    - command session]} {
                dict lappend seen $command $session
            }
        }
        assert_equal [list $expected $expected [lindex $expected end]] [dict values $seen]
        drop $monitor
    }
    assert_error "*--hints*tells no sessions*" {bench replay $trace --hints}
    assert_error "*--kv-groups needs a trace with blocks of 512 tokens*" \
        {bench replay $trace.bailian --kv-groups full:16:1000}
}

test {a replay by four threads puts and gets without a wrong byte} {
    set json [bench replay $trace --threads 4 --limit 200]
    assert_equal 200 [field $json requests]
    assert_equal 0 [field $json mismatched_blocks]
}

test {a trace that is none is refused with its line} {
    set f [open $trace.bad w]
    puts $f "{\"timestamp\": 0, \"hash_ids\": \[1, 2\]}\n{\"hash_ids\": \[}"
    close $f
    assert_error "*2*" {bench replay $trace.bad}
    assert_error "*$trace.none*" {bench replay $trace.none}
}

# What an engine with a full group (blocks of 256 tokens), a window (blocks of 128, 300 tokens back)
# and states (every 512) hits when nothing is evicted and it puts windows and states at the end of
# each prompt and every 2048 tokens: hit tokens, and blocks by KV group.
proc kv_hits {} {
    set there [dict create]
    set tokens 0
    set hits {0 0 0}
    foreach chain $::requests {
        set end [expr {512 * [llength $chain]}]
        for {set hit $end} {$hit > 0} {incr hit -512} {
            set needed [kv_needs $chain $hit]
            set missing 0
            foreach part $needed {if {![dict exists $there $part]} {set missing 1}}
            if {!$missing} break
        }
        incr tokens $hit
        if {$hit > 0} {
            foreach part $needed {
                set g [lindex $part 0]
                lset hits $g [expr {[lindex $hits $g] + 1}]
            }
        }
        foreach part [kv_needs $chain $end] {dict set there $part 1}
        for {set b 2048} {$b < $end} {incr b 2048} {
            if {$b > $hit} {foreach part [kv_needs $chain $b] {dict set there $part 1}}
        }
    }
    return [list $tokens {*}$hits [dict size $there]]
}
proc kv_needs {chain boundary} {
    set parts {}
    for {set end 256} {$end <= $boundary} {incr end 256} {lappend parts [kv_part $chain 0 $end]}
    for {set end $boundary} {$end > $boundary - 384} {incr end -128} {
        lappend parts [kv_part $chain 1 $end]
    }
    return [lappend parts [kv_part $chain 2 $boundary]]
}
proc kv_part {chain g end} {
    return [list $g [lindex $chain [expr {($end - 1) / 512}]] $end]
}

set kv_groups full:256:1k,window:128:2k:300,state:512:3k

stop_server
start_server --pool-size 256mb
test "guarantee 1: a replay with KV groups reads what its boundaries need, and hits what a model\
        does" {
    lassign [kv_hits] tokens full window state parts
    set json [bench replay $trace --kv-groups $kv_groups --kv-interval 2000 --lease-ms 10000]
    assert_equal 0 [field $json mismatched_blocks]
    assert_equal 0 [field $json failed_puts]
    assert_equal 0 [field $json lost_hits]
    assert {$tokens > 0 && $tokens < [field $json tokens]}
    assert_equal $tokens [field $json hit_tokens]
    set by_group [regexp -all -inline {"block":\d+,"hit_blocks":\d+} $json]
    assert_equal [list "\"block\":256,\"hit_blocks\":$full" \
        "\"block\":128,\"hit_blocks\":$window" "\"block\":512,\"hit_blocks\":$state"] $by_group
    assert {[field $json round_trips] >= 800}
    assert_equal [expr {1024 * $full + 2048 * $window + 3072 * $state}] [field $json bytes_read]
    assert_equal $parts [r dbsize]
}

stop_server
start_server --pool-size 2mb --eviction-high-watermark 1
test {guarantee 1: a replay with KV groups in a pool that is too small, by four threads} {
    set json [bench replay $trace --kv-groups $kv_groups --threads 4 --lease-ms 10000]
    assert_equal 400 [field $json requests]
    assert_equal 0 [field $json mismatched_blocks]
    assert {[field $json hit_tokens] > 0}
    assert {[info_field evicted_objects] > 0}
}

test {a replay with KV groups puts parts as parts of boundaries, as groups, or as neither} {
    foreach {way boundaries groups} {boundaries 1 0 groups 0 1 nothing 0 0} {
        r flushall
        bench replay $trace --kv-groups $kv_groups --limit 20 --kv-together $way
        assert_equal $boundaries [expr {[info_field boundaries] > 0}]
        assert_equal $groups [expr {[info_field groups] > 0}]
    }
    assert_error "*--kv-together*" {bench replay $trace --kv-groups $kv_groups --kv-together x}
}

test {options of a replay that would have no effect are refused} {
    foreach option {{--kv-together groups} {--kv-interval 2000}} {
        assert_error "*[lindex $option 0] goes with --kv-groups*" {bench replay $trace {*}$option}
    }
    assert_error "*--block-size does not go with --kv-groups*" \
        {bench replay $trace --kv-groups $kv_groups --block-size 4k}
}

test {KV groups that are none are refused} {
    foreach spec {full full:16 half:16:4k full:0:4k full:16:0 window:16:4k full:16:4k:128 \
        window:16:4k:1 full:16:4k, full:1048575:1k,full:1048573:1k} {
        assert_error "*--kv-groups $spec*" {bench replay $trace --kv-groups $spec}
    }
}

stop_server
start_server --pool-size 64mb
test {meta: every operation does its work} {
    foreach op {put get exists prefix} {
        assert {[field [bench meta --op $op --keys 2000 --seconds 0.2 --batch 64] keys_per_s] > 0}
    }
    assert {[info_field put_ends] >= 2000}
    set sealed [info_field grants_sealed]
    assert {$sealed >= 2000}
    foreach op {put get} {
        set json [bench meta --op $op --no-grants --keys 640 --seconds 0.2 --batch 64]
        assert {[field $json keys_per_s] > 0 && [field $json errors] == 0} $json
    }
    assert_equal $sealed [info_field grants_sealed]
}

test {meta: calls by a rate, puts among look-ups} {
    foreach more {{} --random} {
        set json [bench meta --op exists --keys 2000 --batch 16 --clients 20 --rate 2000 --puts 30 \
            --seconds 0.5 {*}$more]
        set calls [expr {[field $json keys_done] / 16 + [field $json puts_done]}]
        assert {[field $json puts_done] > 0 && [field $json keys_done] > 0}
        assert_equal [expr {[field $json puts_done] * 16}] [field $json put_keys]
        assert {[field $json put_p999_us] > 0}
        assert {[field $json late_max_us] > 0 && [field $json late_max_us] <= [field $json max_us] +
            [field $json put_max_us]}
        if {$more eq ""} {assert {$calls <= 2000 * [field $json seconds] + 20} $calls}
    }
    assert_error "*--random goes with --rate*" {bench meta --random --seconds 0.1}
    assert_match "*keys put among them*" [exec $bench -p [server port] meta --op get --keys 200 \
        --puts 50 --rate 1000 --seconds 0.1 2>@1]
}

test {data: every path, checked} {
    foreach transport {shm tcp resp} {
        foreach {op sizes batch} {get 4k,1m 1 put 1m 4 mix 4k 4} {
            set json [bench data --transport $transport --op $op --block-size $sizes \
                --batch $batch --seconds 0.1 --warm-up 0.05 --check]
            assert_match "*\"transport\":\"$transport\"*" $json
            assert {[field $json gb_per_s] > 0}
        }
    }
    assert_error "*rdma*" {bench data --transport rdma --seconds 0.1}
}

stop_server
start_server --pool-size 0 --node-heartbeat 100 --node-timeout 1s
test {nodes: they join, die and come back; their objects with them} {
    set json [bench nodes --nodes 12 --segments 2 --segment 1g --keys 3000 --replicas 2 \
        --dying 3 --seconds 0.3]
    assert_equal 12 [field $json nodes]
    assert {[field $json objects] >= 3000}
    assert_equal [field $json keys_done] [field $json hits]
    assert {[field $json bytes_per_object] > 0}
    foreach name {put_keys_per_s get_keys_per_s heartbeats_per_s_reading} {
        assert {[field $json $name] > 0} $name
    }
    # Not before the time, and not never.
    assert {[field $json silent_ms] > 500}
    foreach {name is} {masters 1 segments 2 dying 3} {assert_equal $is [field $json $name]}
    foreach name {join_cpu_us bytes_per_node dying_cpu_ms dying_longest_turn_ms} {
        assert {[field $json $name] > 0} $name
    }
    wait_for "the nodes to be down" {[info_field nodes_up] == 0}
    r flushall
    assert_match "*nodes joined*fell silent*" [exec $bench -p [server port] nodes --nodes 3 \
        --keys 200 --seconds 0.1 2>@1]
    assert_error "*--nodes*" {bench nodes --nodes 1}
    assert_error "*--dying*below*" {bench nodes --nodes 5 --dying 5}
}
stop_server
start_server --pool-size 0 --node-heartbeat 100 --node-timeout 1s
test {a server that wants a password, which may have blanks in it} {
    r config set requirepass "open sesame"
    foreach mode {meta data nodes} {assert_error "*NOAUTH*" {bench $mode --seconds 0.1}}
    foreach mode {meta data nodes} {
        assert_error "*WRONGPASS*" {bench $mode -a sesame --seconds 0.1}
    }
    assert_error "*wants a password (-a*" {bench meta --seconds 0.1}
    assert_equal 3 [field [bench nodes -a "open sesame" --nodes 3 --keys 200 --seconds 0.1] nodes]
    assert_error "*WRONGPASS*" {bench meta --user nobody --seconds 0.1}
}
stop_server
start_server --pool-size 64mb
test {nodes: an address without a master, meta with replicas} {
    assert {[field [bench meta --op put --replicas 2 --keys 200 --seconds 0.1] keys_per_s] > 0}
    assert_error "*cannot connect*" {exec $bench -p 1 nodes 2>@1}
    assert_error "*transfer needs no server*--master*" {exec $bench -p 1 transfer --seconds 0.1\
        2>@1}
    assert_error "*no subcommand \"fly\"*" {exec $bench fly 2>@1}
}

# Batches that hardly ever come back, and single blocks that do: what chain learns there makes a new
# batch worth less than what is old.
proc put_batch {keys} {
    set arguments {}
    set sizes [concat {*}[lmap key $keys {list $key 4096}]]
    foreach key $keys put [r mputstart [llength $keys] {*}$sizes] {
        if {$put ne "(nil)"} {lappend arguments $key [lindex $put 0] -1}
    }
    r mputend [expr {[llength $arguments] / 3}] {*}$arguments
}

stop_server
start_server --pool-size 8mb --eviction-policy chain
test {data --op get: blocks that fit are found, whatever the pool holds and has learnt} {
    for {set i 0} {$i < 12000} {incr i 64} {
        set keys {}
        for {set k $i} {$k < $i + 64} {incr k} {lappend keys old:$k}
        put_batch $keys
        for {set k 0} {$i > 4000 && $k < 8} {incr k} {
            set key old:[expr {$i - [random 4000]}]
            if {[r getreplicas $key LEASE 1] eq "(nil)"} {put_batch [list $key]}
        }
    }
    foreach transport {shm resp} {
        set json [bench data --op get --block-size 4k --batch 1,16 --seconds 0.1 \
            --transport $transport]
        assert_equal {failed 0 failed 0 failed 0} \
            [string map {\" "" : " "} [join [regexp -all -inline {"failed":\d+} $json]]]
    }
}

# Three masters, the last one started in focus. Look-ups of all keys in one call: each master has
# those of its slots.
stop_server
source [file join [file dirname [info script]] masters.tcl]
set masters {}
foreach name {a b c} {dict set masters $name [start_server --pool-size 64mb]}
proc port {name} {return [dict get $::masters $name port]}
proc at {name args} {
    set c [resp::connect $::server_host [port $name]]
    set reply [$c {*}$args]
    resp::close $c
    return $reply
}
proc count {name what} {
    regexp -line "^$what:(\\d+)" [at $name info everything] - value
    return $value
}
proc bench_key {i} {return [format vllm@meta-llama/Llama-3-70B@8@0@%s%016x [string repeat . 16] $i]}
set map [slot_map 1 [three_rows]]
foreach name {a b c} {assert_equal OK [at $name cluster setmap $name $map]}
set share {a 0 b 0 c 0}
for {set i 0} {$i < 300} {incr i} {
    set slot [crc16_slot [bench_key $i]]
    dict incr share [expr {$slot <= 5460 ? {a} : $slot <= 10922 ? {b} : {c}}]
}

test {meta with several masters: each is asked for its keys of a call, whichever is named} {
    foreach {op lease} {get 5000 get 0 exists 0 prefix 0} {
        foreach name {a b c} {at $name flushall} ;# else loading them finds them
        set before [dict map {name -} $share {count $name hits}]
        set json [bench meta --op $op --lease-ms $lease --keys 300 --batch 300 --seconds 0.2 \
            --clients 2]
        assert_equal {3 0} [list [field $json masters] [field $json errors]]
        set calls [expr {[field $json keys_done] / 300}]
        assert {$calls > 0}
        assert_equal [expr {300 * $calls}] [field $json hits]
        assert {[field $json client_ns_per_key] > 0 && [field $json servers_ns_per_key] > 0}
        dict for {name keys} $share {
            assert_equal $keys [at $name dbsize]
            if {$op eq "get"} {
                assert_equal [expr {$keys * $calls}] \
                    [expr {[count $name hits] - [dict get $before $name]}] $name
            }
        }
    }
}

test {meta with several masters: puts, small values with their bytes, puts among look-ups} {
    foreach {size options} {256 {} 32 {--batch 2 --pipeline 5} 256 {--op get --puts 40}} {
        foreach name {a b c} {at $name flushall}
        set json [bench meta --value-size $size --keys 300 --batch 60 --seconds 0.2 --threads 2 \
            {*}$options]
        assert_equal 0 [field $json errors]
        assert {[field $json keys_done] > 0}
        assert_equal [field $json keys_done] [field $json hits]
        set put [expr {"--puts" in $options ? 300 + [field $json put_keys] : [field $json hits]}]
        assert {$put > 300 || "--puts" ni $options}
        assert_equal $put [expr {[at a dbsize] + [at b dbsize] + [at c dbsize]}]
        foreach name {a b c} {assert {[at $name dbsize] > 0} $name}
    }
    assert_match "*3 masters*processor time of a key: * ns here, * ns of the masters*" \
        [exec $bench -p [server port] meta --seconds 0.1 2>@1]
}

test {meta with several masters: a prefix ends where its first key is missing, whoever has it} {
    set slot [crc16_slot [bench_key 10]]
    set name [expr {$slot <= 5460 ? {a} : $slot <= 10922 ? {b} : {c}}]
    for {set short 0} {$short == 0} {} { ;# again if all was over before the key went
        foreach n {a b c} {at $n flushall}
        set run [open "|[list $bench -p [server port] --json meta --op prefix --keys 64 \
            --batch 64 --seconds 1]"]
        wait_for "the keys to be loaded" {[at $name exists [bench_key 10]]}
        at $name del [bench_key 10]
        set json [gets $run]
        close $run
        set short [expr {[field $json keys_done] - [field $json hits]}]
    }
    assert_equal 0 [expr {$short % 54}]
    assert {[field $json hits] >= [field $json keys_done] / 64 * 10}
}

test {meta refuses a map by which nobody can be asked} {
    foreach {rows why} {
        {{a 1 a 0-5460} {b 1 b 5461-10922} {c 1 {} 10923-16383}} "*address of the master c*"
        {{a 1 a 0-5460} {b 1 b 5461-10922} {c 1 c 10923-16382}} "*no master has slot 16383*"
    } {
        assert_equal OK [at a cluster setmap a [slot_map [incr epoch 2] $rows]]
        assert_error $why {exec $bench -p [port a] meta --seconds 0.1 2>@1}
    }
}

finish
