# A transport that no file of src/ knows, from a module (tests/modules/pipe.c): hosts offer it,
# libtarn loads and takes it by name, and whoever may not touch memory by himself may go by it.
source [file join [file dirname [info script]] harness.tcl]

set ::env(TARN_MODULE_PATH) $modules
start_server --loadmodule $modules/pipe.so --enable-module-command yes
wait_for "a key for pipe" {[string match "*pipe:///*" [r segment info 0]]}

proc all_by_pipe {answer} {
    assert {[dict get $answer bytes] > 0} "($answer)"
    assert_equal [dict get $answer bytes] [dict get $answer pipe_bytes] "($answer)"
    assert_equal {0 0} [list [dict get $answer shm_bytes] [dict get $answer tcp_bytes]]
}

test {a transport by its name, to the server and back} {
    all_by_pipe [kv --transport pipe load p: 50 1-300000]
    all_by_pipe [kv_all 50 --transport pipe verify p: 50 1-300000]
    kv_all 50 --transport tcp verify p: 50 1-300000
}

test {nobody takes it by himself: it costs more than what is built in} {
    set a [kv_all 50 verify p: 50 1-300000]
    assert_equal [dict get $a bytes] [dict get $a shm_bytes]
}

test {grants for one put, and leases, hold there as by tcp} {
    r acl setuser guest reset on >guest ~* &* +@all -@direct
    set guest tarn://guest:guest@127.0.0.1:[server port]
    set a [kv_answer [kv_exec [list --transport pipe $guest load g: 20 100-3000000]]]
    assert_equal {20 0} [kv_fields $a ok errors] "($a)"
    all_by_pipe $a
    kv_all 20 verify g: 20 100-3000000
}

test {to a node} {
    start_node n1 --host-name m1 --loadmodule=$::modules/pipe.so
    wait_for "a key of n1" {[string match "*pipe:///*" [r segment info n1.0]]}
    all_by_pipe [kv --host m1 --prefer n1.0 --transport pipe load n: 20 1000-200000]
    all_by_pipe [kv_all 20 --host m1 --transport pipe verify n: 20 1000-200000]
    stop_node n1
}

test {where it is not offered, and where there is no such module} {
    assert_equal OK [r module unload pipe]
    catch {exec $::kv_binary --transport pipe [server_url] put k 1000 2>@1} answer
    assert_match "*transport=pipe: segment * offers no pipe (it offers shm, tcp)*loadmodule\
        pipe.so*" $answer
    catch {exec $::kv_binary --transport none [server_url] put k 1000 2>@1} answer
    assert_match "*transport=none: there are auto, shm, tcp, and its module cannot be\
        had*/none.so: No such file*" $answer
}

finish
