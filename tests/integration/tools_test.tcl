# Unmodified tools of Redis against tarn: redis-cli and redis-py.
source [file join [file dirname [info script]] harness.tcl]
start_server
set has_cli [expr {[auto_execok redis-cli] ne ""}]

# Runs redis-cli; stdin may follow as the first argument of -input.
proc cli {args} {
    if {!$::has_cli} {skip "redis-cli is not installed"}
    return [exec redis-cli -p [server port] {*}$args 2>@1]
}

proc cli_input {input args} {
    if {!$::has_cli} {skip "redis-cli is not installed"}
    return [exec redis-cli -p [server port] {*}$args << $input 2>@1]
}

test {redis-cli: commands, RESP2 and RESP3} {
    assert_equal PONG [cli ping]
    assert_equal OK [cli set k "a value"]
    assert_equal "a value" [cli get k]
    assert_equal "a value" [cli -3 get k]
    assert_equal "" [cli get nokey]
    assert_match "*master_epoch*" [cli -3 segment info 0]
    assert_match "*memory*" [cli getreplicas k LEASE 1000]\nmemory
    assert_match "ERR unknown command*" [cli lpush l 1]
}

test {redis-cli: commands from its standard input} {
    assert_equal "OK\nv1\n1" [cli_input "set k1 v1\nget k1\ndel k1\n"]
}

test {redis-cli --pipe} {
    set input {}
    for {set i 0} {$i < 10000} {incr i} {append input [resp::encode [list set pipe:$i value$i]]}
    assert_match "*errors: 0, replies: 10000*" [cli_input $input --pipe]
    assert_equal value9999 [r get pipe:9999]
}

test {redis-cli --bigkeys and --memkeys} {
    r set biggest [string repeat x 1000000]
    set text [cli --bigkeys -i 0]
    assert_match "*Biggest string found '\"biggest\"' has 1000000 bytes*" $text
    assert_match "*[r dbsize] strings with*" $text
    assert_match "*\"biggest\"*" [cli --memkeys -i 0]
}

test {redis-cli --scan} {
    assert_equal biggest [cli --scan --pattern big*]
}

test {redis-cli --stat} {
    if {!$::has_cli} {skip "redis-cli is not installed"}
    set log [file join [server dir] stat]
    set pid [start_process [list redis-cli -p [server port] --stat -i 0.05] $log]
    wait_for "some lines of --stat" {[llength [split [file_text $::log] \n]] > 4}
    send_signal TERM $pid
    reap_process $pid
    assert_match "*keys*mem*clients*blocked*requests*connections*" [file_text $log]
    assert_match "*\n[r dbsize] *" [file_text $log]
}

test {redis-cli --latency} {
    assert_match {*[0-9]*[0-9]*} [cli --latency --raw -i 0.2]
}

test {redis-cli --hotkeys} {
    r config set eviction-policy lfu
    for {set i 0} {$i < 100} {incr i} {r get pipe:1}
    assert_match "*pipe:1*" [cli --hotkeys -i 0]
    wait_for "the policy" {[catch {r config set eviction-policy lru}] == 0}
}

test {redis-cli, interactive: it asks for COMMAND DOCS} {
    set docs [r command docs]
    assert {[llength $docs] > 100}
    assert_match "*since*" [dict get $docs get]
}

test {redis-cli MONITOR sees commands} {
    if {!$::has_cli} {skip "redis-cli is not installed"}
    set log [file join [server dir] monitor]
    set pid [start_process [list redis-cli -p [server port] monitor] $log]
    wait_for "MONITOR to begin" {[string match OK* [file_text $::log]]}
    r get watched
    wait_for "the line" {[string match {*"get" "watched"*} [file_text $::log]]}
    send_signal TERM $pid
    reap_process $pid
}

test {redis-py} {
    set python ""
    foreach candidate {/usr/bin/python3 python3} {
        if {![catch {exec $candidate -c "import redis"}]} {
            set python $candidate
            break
        }
    }
    if {$python eq ""} {skip "no Python with the redis module"}
    set script {
import sys, redis
for protocol in (2, 3):
    try:
        r = redis.Redis(port=int(sys.argv[1]), protocol=protocol)
    except TypeError:
        if protocol == 3: break
        r = redis.Redis(port=int(sys.argv[1]))
    r.flushall()
    assert r.set('k', b'\x00\xff' * 50000) is True
    assert r.get('k') == b'\x00\xff' * 50000
    assert r.get('nokey') is None
    assert r.set('k', 'v', nx=True) is None
    assert r.incr('n', 5) == 5
    assert r.mset({'a': 1, 'b': 2}) is True
    assert r.mget('a', 'nokey', 'b') == [b'1', None, b'2']
    assert r.expire('a', 100) and 98 <= r.ttl('a') <= 100
    assert sorted(r.scan_iter('*', count=1)) == [b'a', b'b', b'k', b'n']
    assert r.info()['redis_version'] == '7.0.15'
    assert r.config_get('eviction-policy') == {'eviction-policy': 'lru'}
    assert r.client_list()[0]['addr'].startswith('127.0.0.1:')
    pipe = r.pipeline(transaction=False)
    for i in range(1000): pipe.set('p%d' % i, i)
    assert pipe.execute() == [True] * 1000
    token, replicas = r.execute_command('PUTSTART', 'obj', 1000)
    assert replicas[0][0] == b'memory'
    assert r.execute_command('PUTEND', 'obj', token, -1) in (b'OK', 'OK')
    assert r.execute_command('PREFIXLEN', 3, 'a', 'obj', 'nokey') == 2
    try:
        r.lpush('l', 1)
        assert False
    except redis.ResponseError as e:
        assert 'unknown command' in str(e)
    assert r.delete('k', 'obj') == 2
    assert r.dbsize() == 1003
    trace = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
    one = redis.Redis(port=int(sys.argv[1]), single_connection_client=True)
    one.execute_command('CLIENT', 'SETINFO', 'tarn-traceparent', trace)
    assert one.client_info()['tarn-traceparent'] == trace
    r.config_set('slowlog-log-slower-than', 0)
    with r.monitor() as m:
        one.get('traced')
        seen = m.next_command()
    r.config_set('slowlog-log-slower-than', -1)
    said = 'traced (traceparent %s)' % trace
    assert seen['command'].lower() == 'get ' + said and seen['client_type'] == 'tcp', seen
    assert seen['client_address'] == '127.0.0.1' and seen['client_port'].isdigit(), seen
    entry = [e for e in r.slowlog_get() if e['command'].endswith(said.encode())][0]
    assert entry['duration'] >= 0, entry
    one.close()
    r.connection_pool.disconnect()
print('fine')
}
    assert_match *fine [exec $python -c $script [server port] 2>@1]
}

finish
