# tarn-simulate's command line: what it takes, what it refuses, that its numbers belong together.
source [file join [file dirname [info script]] harness.tcl]

set simulate [file join [file dirname $::server_binary] tarn-simulate]
if {![file executable $simulate]} {set simulate [file join $::root src tarn-simulate]}
proc simulate {args} {exec $::simulate {*}$args 2>@1}

# The number behind a name, of the first row that has it behind the text `from`.
proc number_of {json name {from ""}} {
    set at [string first $from $json]
    if {![regexp -start $at "\"$name\":(\[-0-9.e+\]+)" $json all value]} {error "no $name"}
    return $value
}

set trace [file join [temp_dir] trace.jsonl]
set f [open $trace w]
for {set i 0} {$i < 200} {incr i} {
    set ids {}
    for {set k 0} {$k < 8} {incr k} {
        lappend ids [expr {$k < 4 ? $k + 4 * ($i % 10) : 1000 + 8 * $i + $k}]
    }
    puts $f "{\"timestamp\": [expr {$i * 300}], \"input_length\": 4000, \"output_length\": 20, \
        \"hash_ids\": \[[join $ids ", "]\]}"
}
close $f
set small {--model Llama-3-8B --gpus 1 --engines 4}

test {a run has a row for each policy, the same each time} {
    set args [list run --trace $trace --route round-robin,tarn {*}$small --pool-blocks 300 \
        --seed 5 --json]
    set json [simulate {*}$args]
    assert_equal $json [simulate {*}$args]
    assert_equal 2 [regexp -all {"route":} $json]
    foreach route {round-robin tarn} {
        set at "\"route\":\"$route\""
        assert_equal 200 [number_of $json requests $at]
        assert_equal 200 [number_of $json done $at]
        assert_equal 0 [number_of $json rejected $at]
        assert {[number_of $json mean "$at"] > 0}
        assert {[number_of $json goodput $at] > 1}
        assert {[number_of $json device $at] > 0.2}
        assert {[number_of $json device $at] < 0.5}
    }
}

test {a pool is used, and a sweep has all its cells} {
    set json [simulate sweep --trace $trace --route round-robin --pool-blocks 0,5000 \
        --load 0.5,0.8 {*}$small --slo-ttft 500 --json]
    assert_equal 4 [regexp -all {"route":} $json]
    set limit [number_of $json limit_requests_s]
    assert {$limit > 0}
    assert {abs([number_of $json requests_s "\"load\":0.5"] / $limit - 0.5) < 0.01}
    assert_equal 0 [number_of $json blocks "\"pool\":"]
    assert {[number_of $json blocks "\"pool_blocks\":5000"] > 100}
}

test {evict shows each policy at each size, below what foresight reaches} {
    set args [list evict --trace $trace --generate chat --requests 200 --policy lru,sieve \
        --blocks 20,60,400 --transform whole,reversed-sessions --json]
    set json [simulate {*}$args]
    assert_equal $json [simulate {*}$args]
    assert_equal 4 [regexp -all {"transform":} $json]
    assert_equal 36 [regexp -all {"policy":} $json]
    # ten prefixes of four blocks, each of them twenty times: all but the first time it is there
    assert_equal 760 [number_of $json hit_blocks "\"unlimited\""]
    assert_equal 760 [number_of $json hit_blocks "\"belady\",\"pool_blocks\":60"]
    assert_equal 0 [number_of $json hit_blocks "\"lru\",\"pool_blocks\":20"]
    assert_equal 760 [number_of $json hit_blocks "\"lru\",\"pool_blocks\":400"]
    assert {[number_of $json hit_blocks "\"belady\",\"pool_blocks\":20"] > 300}
    set text [simulate evict --trace $trace --policy lru --blocks 60]
    assert_match "*200 requests in 60 s, 1600 blocks, 840 of them different*unlimited*0.4750*" $text
}

test {compare says how policies stand beside each other, and writes a page} {
    set page [file join [temp_dir] page.html]
    set text [simulate compare --generate chat --requests 300 --route tarn,random --prefill 2 \
        --decode 2 {*}$small --load 0.5,0.7 --slo-ttft 500 --html $page]
    assert_match "*4 engines, no pool*2 prefill + 2 decode, no pool*" $text
    assert_match "*tarn beside the others*random*" $text
    set f [open $page]
    set html [read $f]
    close $f
    assert_equal 12 [regexp -all {<figure>} $html]
    assert_equal 0 [regexp -all {(src|href)=} $html]
    assert_match "*</html>*" $html
}

test {a trace that is made can be kept, and read again} {
    set made [file join [temp_dir] made.jsonl]
    set f [open $made w]
    puts $f [simulate trace --generate agents --requests 50 --seed 3]
    close $f
    set json [simulate run --trace $made --route round-robin {*}$small --json]
    assert_equal 50 [number_of $json done]
}

test {copies of hot prefixes are ordered and counted} {
    set args {run --generate hot --requests 400 --rate 2 --route prefix-tree --engines 3 \
        --model Llama-3-8B --gpus 1 --json}
    assert_equal 0 [number_of [simulate {*}$args] copies]
    set json [simulate {*}$args --copies]
    assert {[number_of $json copies] > 0}
    assert {[number_of $json copied_bytes] > 1e9}
    assert_equal [number_of $json copied_bytes] [number_of $json moved_bytes]
}

test {masters share a pool, take time, and fail} {
    set args [list run --trace $::trace --route round-robin --pool-blocks 2000 {*}$::small --json]
    assert_equal 0 [regexp {lookup_ms|masters} [simulate {*}$args]]
    set json [simulate {*}$args --masters 3 --lookup-us 400 --key-us 1]
    assert_equal 3 [number_of $json masters]
    assert {[number_of $json mean "\"lookup_ms\":"] >= 0.402}
    set pool [number_of $json pool]
    set json [simulate {*}$args --masters 3 --fail 5:master:2:60]
    assert_equal 200 [number_of $json done]
    assert {[number_of $json pool] < $pool}
}

test {engines that fail lose nothing} {
    set json [simulate run --trace $trace --route tarn {*}$small --fail 5:engine:1:10,20:host:0 \
        --pool-blocks 2000 --json]
    assert_equal 200 [number_of $json done]
}

test {what is wrong is said, with its name} {
    set bad [file join [temp_dir] bad.jsonl]
    set f [open $bad w]
    puts $f "{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": \[1\]}"
    close $f
    foreach {words args} {
        "*either --trace FILE or --generate*" {run}
        "*there is no option --engine here, did you mean --engines?*" {run --engine 3}
        "*--engines must be a number from 1 to*" {run --engines x}
        "*--route: there is no tar, did you mean tarn?*" {run --generate chat --route tar}
        "*--gpu: there is no H10*" {run --generate chat --gpu H10}
        "*--model: there is no Llama*" {run --generate chat --model Llama}
        "*--eviction: there is no lur, did you mean lru?*" {run --generate chat --eviction lur}
        "*--load: \"0.5,x\"*" {run --generate chat --load 0.5,x}
        "*--load, --rate and --speed: one of them*" {run --generate chat --load 1 --rate 3}
        "*run has one --load*" {run --generate chat --load 0.5,0.6}
        "*--prefill and --decode go together*" {run --generate chat --prefill 2}
        "*--fail: \"5:disk:1\" is not*" {run --generate chat --fail 5:disk:1}
        "*--fail: \"nan:engine:1\" is not*" {run --generate chat --fail nan:engine:1}
        "*--fail: \"5:engine:-1\" is not*" {run --generate chat --fail 5:engine:-1}
        "*--fail: \"inf:engine:1\" is not*" {run --generate chat --fail inf:engine:1}
        "*--rate and --speed must be above 0*" {run --generate chat --rate 0}
        "*--pool-blocks: \"1e10\" is no list of numbers from 0 to 1e+09*"
            {run --generate chat --pool-blocks 1e10}
        "*--pool-blocks: \"1.5\" has a part of a block*" {run --generate chat --pool-blocks 1.5}
        "*--trace FILE,... or --generate KIND,... is needed*" {evict}
        "*--policy: there is no lrv, did you mean lru?*" {evict --generate chat --policy lrv}
        "*--transform: there is no half*" {evict --generate chat --transform half}
        "*--blocks: \"0\" is no list of numbers from 1*" {evict --generate chat --blocks 0}
        "*--trace nowhere: *" {evict --trace nowhere}
        "*--format: there is no csv*" {run --generate chat --format csv}
        "*--html /nowhere/x.html: No such file*" {run --generate chat --html /nowhere/x.html}
        "*--table /nowhere: No such file*" {run --generate chat --table /nowhere}
        "*4096 engines of 200000000 blocks: they may have 268435456 in all*"
            {run --generate chat --engines 4096 --kv-blocks 200000000}
        "*no block of 1000000 tokens fits*"
            {run --generate chat --block 1000000 --model Llama-3-8B --gpus 1}
        "*trace: Mooncake's lines have blocks of 512*" {trace --generate chat --block 16}
        "*--fail: there is no master 1, they are 0 to 0*"
            {run --generate chat --pool-blocks 9 --fail 5:master:1}
        "*--fail: a master has a pool*" {run --generate chat --fail 5:master:0}
        "*--masters share a pool*" {run --generate chat --masters 2}
        "*--lookup-us and --key-us are of masters*"
            {run --generate chat --pool-blocks 9 --key-us 1}
        "*--fail: there is no engine 9, they are 0 to 7*" {run --generate chat --fail 5:engine:9}
        "*does not fit into 1 x H100*" {run --generate chat --gpus 1}
        "*--generate: there is no chats, did you mean chat?*" {run --generate chats}
        "*there is no subcommand rnu, did you mean run?*" {rnu}
        "*--trace /nowhere/trace.jsonl: No such file*" {run --trace /nowhere/trace.jsonl}
    } {
        assert_error $words {simulate {*}$args}
    }
    assert_error "*bad.jsonl:1: output_length: it is missing*" {simulate run --trace $bad}
    assert_match "*tarn-simulate run*--pool-blocks*" [simulate --help]
    assert_match "tarn-simulate \[0-9\]*" [simulate --version]
}

finish
