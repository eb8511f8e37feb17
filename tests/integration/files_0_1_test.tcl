# Files that tarn 0.1 wrote, tests/integration/files_0_1.tar.gz: what this version reads of them.
# Made by `TARN_OLD=DIR tclsh files_0_1_test.tcl make`, DIR with a tarn-server and tarn-node of 0.1.
source [file join [file dirname [info script]] harness.tcl]

set archive [file join $root tests integration files_0_1.tar.gz]
set pool_id 00112233445566778899aabbccddeeff

proc serve {dir args} {
    return [start_server --dir $dir --pool-size 2mb --pool-path $dir/pool --cluster-id $::pool_id \
        {*}$args]
}
proc serve_node {dir} {
    start_node n1 --host-name m1 --segment 1mb --ssd $dir/ssd:16mb, --file $dir/files:16mb,
}

if {[lindex $argv 0] eq "make"} {
    foreach name {server node} {set ${name}_binary $env(TARN_OLD)/tarn-$name}
    set kv_binary $env(TARN_OLD)/tests/tools/kv
    set dir [temp_dir]
    file mkdir $dir/files
    exec truncate -s 16m $dir/ssd
    serve $dir
    serve_node $dir
    kv --prefer local load own: 20 65-2000
    kv --prefer n1.0 load far: 20 65-2000
    kv --ttl 3000000000000 load small: 20 1-64
    kv --group g load group: 5 100
    kv remove small:7
    r set text "as it was"
    r pin own:1 HARD
    r pin own:2 SOFT 1000000
    r quota set own: 1mb
    wait_for "copies" {[segment_field n1.ssd replicas] == 20 && \
        [segment_field n1.file replicas] == 20}
    r save
    stop_node n1
    send_signal KILL [server pid]
    reap_process [server pid]
    exec tar --sort=name --mtime=@0 --owner=0 --group=0 -C $dir -czf $archive \
        appendonly.tarn dump.tarn pool ssd files
    puts "[file size $archive] bytes"
    exit
}

# The archive's files, as if the machine had not been started since they were written: a pool of
# another boot starts empty. struct segment_header: boot_id at 40, the CRC of what is before it at
# 164.
proc unpack {dir} {
    exec tar -C $dir -xzf $::archive
    set boot [exec cat /proc/sys/kernel/random/boot_id]
    set f [open $dir/pool r+b]
    seek $f 40
    puts -nonewline $f [binary format a40 $boot]
    seek $f 0
    set header [read $f 164]
    seek $f 164
    puts -nonewline $f [binary format i [crc32c $header]]
    close $f
}

set dir [temp_dir]
unpack $dir

test {tarn-check} {
    foreach {file objects} {appendonly.tarn 0 dump.tarn 65} {
        assert_match "*whole snapshot of $objects objects*It is whole*" \
            [exec $::env(TARN_CHECK) $dir/$file]
    }
}

test {the append-only file and the pool} {
    serve $dir
    assert_equal 65 [r dbsize]
    kv_all 20 verify own: 20 65-2000
    kv_all 5 verify group: 5 100
    assert_equal {19 1} [kv_fields [kv verify small: 20 1-64] ok misses]
    assert_equal "as it was" [r get text]
    assert_range 1000000000 [r ttl small:1] 3000000000
    assert {[info_field hard_pinned_bytes] > 0}
}

test {a node's disk and its files} {
    serve_node $dir
    wait_for "both to be offered" {[segment_field n1.ssd replicas] == 20 && \
        [segment_field n1.file replicas] == 20}
    kv_all 20 verify far: 20 65-2000
    kv_all 20 --replace load far: 20 65-2000
    kv_all 20 verify far: 20 65-2000
    stop_node n1
}

test {what this version writes behind it is read again} {
    kv_all 20 --replace load own: 20 65-2000
    restart_server
    assert_equal 65 [r dbsize]
    kv_all 20 verify own: 20 65-2000
    stop_server
}

test {the snapshot alone} {
    file delete $dir/appendonly.tarn
    unpack $dir
    file delete $dir/appendonly.tarn
    serve $dir
    kv_all 20 verify own: 20 65-2000
    assert_equal "as it was" [r get text]
    stop_server
}

finish
