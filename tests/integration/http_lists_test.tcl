# /api/nodes, segments, tasks, clients, prefixes, alarms, doctor, events.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] http.tcl]

proc fake_nodes {n segments} {
    set c [client]
    for {set i 0} {$i < $n} {incr i} {
        set id [format %032d $i]
        $c node join n$i $id MACHINE m$i RACK r
        for {set k 0} {$k < $segments} {incr k} {
            $c segment mount n$i $id n$i.$k TIER memory SIZE 1048576 CONTENT \
                [string repeat c 32] ENDPOINTS 1 tcp://*:7777
        }
        $c node up n$i $id
    }
    return $c
}

test {nodes and segments: all of them, in pages} {
    http_start
    fake_nodes 20 3
    assert_equal "20 n0 up m0 r 3145728" [http_json /api/nodes \
        {len(a["nodes"]), *[a["nodes"][0][k] for k in "node state machine rack size".split()]} ]
}

test {segments: a map of each, where objects are} {
    http_start
    r set a [string repeat x 100000]
    r set b [string repeat x 1000000]
    set got [http_json /api/segments {[s for s in a["segments"] if s["name"] == "local"][0]}]
    assert_match "*'state': 'up'*'bytes_used': 1105920, 'map_used': '*'*" $got
    # what is of no kind is not shown
    assert {[string first map_leased $got] < 0}
    set c [client]
    $c getreplicas b LEASE 10000
    wait_for "the lease is in the map" {[string first "'bytes_leased': 1003520" [http_json \
        /api/segments {a["segments"][0]}]] > 0}
    $c del b
    wait_for "its space is in quarantine" {[string first "'bytes_quarantined': 1003520" [http_json \
        /api/segments {a["segments"][0]}]] > 0}
}

test {clients: each once, in pages, without what they know} {
    http_start
    r config set requirepass a-secret-of-clients
    r auth a-secret-of-clients
    r client setname painter
    for {set i 0} {$i < 150} {incr i} {lappend all [client]}
    foreach c $all {$c auth a-secret-of-clients; $c ping}
    set ids {}
    for {set from 0; set more True} {$more} {incr pages} {
        set ids_here [lassign [http_json /api/clients?count=50&from=$from \
            {a["more"], a["next"], *[c["client"] for c in a["clients"]]}] more from]
        lappend ids {*}$ids_here
    }
    assert {$pages >= 3}
    assert_equal 151 [llength $ids]
    assert_equal $ids [lsort -integer -unique $ids]
    set body [http_body [http_get /api/clients]]
    assert_match {*"name":"painter","user":"default"*"last_command":"client|setname"*} $body
    assert {[string first secret $body] < 0}
}

test {events: what the log has, numbered} {
    http_start
    set last [http_json /api/events {a["next"]}]
    r config set eviction-ratio 0.07
    r config set requirepass a-secret-of-events
    r auth a-secret-of-events
    assert_equal "notice settings CONFIG SET eviction-ratio 0.07, by client" [http_json \
        /api/events?from=$last {*[a["events"][0][k] for k in ("level", "kind")], \
        a["events"][0]["text"][:41]}]
    set body [http_body [http_get /api/events]]
    assert_match {*CONFIG SET requirepass (hidden)*} $body
    assert {[string first secret $body] < 0}
    set last [http_json /api/events {a["next"]}]
    assert_equal "0 $last" [http_json /api/events?from=$last {len(a["events"]), a["next"]}]
    # a number of a process before: all
    assert {[http_json /api/events?from=99999999 {len(a["events"])}] > 3}
    r config set requirepass ""
    fake_nodes 1 1
    assert_match "*Node n0 is up*" [http_get /api/events?from=$last]
}

test {alarms: puts that fail, in words, and in the log} {
    http_start
    r config set eviction-policy noeviction
    assert_equal 0 [http_json /api/alarms {len(a["alarms"])}]
    catch {r set big [string repeat x 70000000]}
    for {set i 0} {$i < 80} {incr i} {catch {r set k$i [string repeat x 1000000]}}
    wait_for "the alarm" {[string match {*"alarm":"puts",*put* failed*} [http_get /api/alarms]]}
    assert_match {*"level":"warning","kind":"alarms",*put* failed*} [http_get /api/events]
    r config resetstat
    wait_for "it is over" {[string match {*The alarm is over*} [http_get /api/events]]}
    assert_match {*"line":"1","text":"Nobody has looked*} [http_get /api/doctor]
}

test {alarms: half of the look-ups miss, which is not told anew each second} {
    http_start
    r set here x
    assert_equal 0 [http_json /api/alarms {len(a["alarms"])}]
    for {set i 0} {$i < 100} {incr i} {r get never-$i}
    wait_for "the alarm" {[string match {*"alarm":"hits",*"0 % of 100 look-ups*} \
        [http_get /api/alarms]]}
    for {set i 0} {$i < 112} {incr i} {r get here}
    wait_for "it is still on" {[string match {*"alarm":"hits",*"52 % of 212 look-ups*} \
        [http_get /api/alarms]]}
    for {set i 0} {$i < 100} {incr i} {r get here}
    wait_for "it is over" {[string match {*The alarm is over*52 %*} [http_get /api/events]]}
}

test {alarms: objects are evicted soon after their last use} {
    http_start
    set value [string repeat x 1000000]
    for {set i 0} {$i < 80} {incr i} {r set k$i $value}
    wait_for "the alarm" {[string match {*"alarm":"evictions",*100 % of them within 60 s*} \
        [http_get /api/alarms]]}
}

test {tasks: all of them, in pages, newest first} {
    http_start
    r config set node-timeout 600s
    fake_nodes 2 1
    # nobody does them
    for {set i 0} {$i < 1100} {incr i} {
        r putend k$i [lindex [r putstart k$i 100 PREFER n0.0] 0] -1
        r replica copy k$i to n1.0
    }
    set ids {}
    for {set from 0; set more True} {$more} {} {
        set ids_here [lassign [http_json /api/tasks?count=500&from=$from \
            {a["more"], a["next"], *[t["task"] for t in a["tasks"]]}] more from]
        lappend ids {*}$ids_here
    }
    assert_equal 1100 [llength $ids]
    assert_equal $ids [lsort -integer -unique -decreasing $ids]
}

test {tasks and prefixes} {
    http_start
    r get model-a/one
    r get model-a/two
    assert_match {*"prefix":"model-a/","by":"misses",*} [http_get /api/prefixes]
    assert_equal "0 False" [http_json /api/tasks {len(a["tasks"]), a["more"]}]
}

test {what is asked for wrongly, or without the token} {
    http_start
    foreach bad {from=x from=-1 count=0 count=10001 count=x} {
        set answer [http_get /api/nodes?$bad]
        assert_equal 400 [http_status $answer]
        assert_match {{"error":"*:*"}*} [http_body $answer]
    }
    assert_equal 404 [http_status [http_get /api/other]]
    assert_match "*/api/events*" [http_get /api/other]
    http_start token-file [token_write token 0600]
    foreach list {nodes segments tasks clients prefixes alarms doctor events} {
        assert_equal 401 [http_status [http_get /api/$list]]
        assert_equal 200 [http_status [http_get /api/$list \
            "Authorization: Bearer 0123456789abcdef-token"]]
    }
}

test {those who go before their answer, and a module that goes} {
    start_server --enable-module-command yes
    r module load http.so port 0
    set ::http_port [info_field http_port]
    foreach round {1 2} {
        set all {}
        for {set i 0} {$i < 20} {incr i} {
            set s [http_open]
            puts -nonewline $s "GET /api/segments HTTP/1.1\r\nHost: x\r\n\r\n"
            lappend all $s
        }
        if {$round == 2} {r module unload http}
        foreach s $all {close $s}
    }
    assert_equal PONG [r ping]
}

finish
