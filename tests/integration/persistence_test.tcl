# Snapshots, the append-only file, warm restarts, tarn-check.
source [file join [file dirname [info script]] harness.tcl]

proc pool_file {} {
    return [file join [expr {[file writable /dev/shm] ? "/dev/shm" : "/tmp"}] \
        tarn-it-[pid]-[incr ::pool_files]]
}
set pool_files 0

proc fill {n {size 5000}} {
    for {set i 0} {$i < $n} {incr i} {
        r set k$i [string repeat "<$i>" [expr {$size / (2 + [string length $i])}]]
    }
}
proc check_filled {n {size 5000}} {
    for {set i 0} {$i < $n} {incr i} {
        assert_equal [string repeat "<$i>" [expr {$size / (2 + [string length $i])}]] [r get k$i] \
            "k$i"
    }
}
proc digest {} {return [r debug digest]}
proc check_file {name args} {
    set status 0
    if {[catch {exec $::env(TARN_CHECK) {*}$args [file join [server dir] $name] 2>@1} text\
            options]} {
        set status [lindex [dict get $options -errorcode] 2]
    }
    return [list $status $text]
}
proc damage {name at} {
    set f [open [file join [server dir] $name] r+b]
    seek $f $at
    set byte [read $f 1]
    binary scan $byte cu v
    seek $f $at
    puts -nonewline $f [binary format c [expr {$v ^ 1}]]
    close $f
}
proc files {} {return [lsort [glob -nocomplain -tails -directory [server dir] *.tarn*]]}

test {BGSAVE while others write: each snapshot is whole, and its end is nobody's} {
    start_server --pool-size 0 --save {}
    set c [client]
    resp::raw $c [string repeat [resp::encode {set beside v}][resp::encode {incr n}] 2000]
    for {set saves 0} {$saves < 5} {incr saves} {
        set ::before [info_field rdb_saves]
        assert_equal "Background saving started" [r bgsave]
        while {[info_field rdb_saves] == $::before} {
            resp::raw $c [string repeat [resp::encode {set beside v}][resp::encode {incr n}] 2000]
            for {set i 0} {$i < 4000} {incr i} {resp::recv $c}
        }
    }
    for {set i 0} {$i < 4000} {incr i} {resp::recv $c}
    set n [r get n]
    r save
    drop $c
    restart_server
    assert_equal $n [r get n]
    stop_server
}

test {SAVE and BGSAVE write what a server finds again} {
    start_server --pool-size 0 --enable-debug-command yes
    for {set i 0} {$i < 500} {incr i} {r set s$i v$i}
    r set ttl v ex 1000
    assert_equal 501 [info_field rdb_changes_since_last_save]
    assert_equal OK [r save]
    assert_equal 0 [info_field rdb_changes_since_last_save]
    assert_equal dump.tarn [files]
    assert_equal "Background saving started" [r bgsave]
    wait_for "the snapshot" {[info_field rdb_bgsave_in_progress] == 0}
    assert_equal ok [info_field rdb_last_bgsave_status]
    assert_range [expr {[clock seconds] - 5}] [r lastsave] [clock seconds]
    r set later v
    restart_server
    assert_equal 501 [r dbsize]
    assert_equal v17 [r get s17]
    assert_range 900 [r ttl ttl] 1000
    assert_equal (nil) [r get later]
    assert_equal 501 [info_field rdb_last_load_keys_loaded]
    assert_match "*a whole snapshot of 501 objects*It is whole" [lindex [check_file dump.tarn] 1]
    stop_server
}

test {save rules, and the last snapshot of a server that ends} {
    start_server --pool-size 0 --save "3600 1 1 10"
    assert_equal {save {3600 1 1 10}} [r config get save]
    for {set i 0} {$i < 20} {incr i} {r set s$i v}
    wait_for "a snapshot by rule" {[info_field rdb_saves] == 1}
    r set last v
    restart_server TERM
    assert_equal 21 [r dbsize]
    r config set save ""
    r set gone v
    restart_server TERM
    assert_equal (nil) [r get gone]
    r set nosave v
    r config set save "3600 1"
    catch {r shutdown nosave}
    wait_for "the end" {[process_state [server pid]] in {gone Z}}
    restart_server
    assert_equal (nil) [r get nosave]
    stop_server
}

test {a snapshot in the making keeps its name} {
    start_server --pool-size 0 --enable-protected-configs yes
    r set a 1
    set turn ""
    foreach request {{bgsave} {config set dbfilename another.tarn} {shutdown save}} {
        append turn [resp::encode $request]
    }
    resp::raw [r] $turn
    wait_for "the end" {[process_state [server pid]] in {gone Z}}
    assert_equal dump.tarn [files]
    stop_server
}

test {an append-only file keeps what was acknowledged} {
    start_server --pool-size 0 --appendonly yes --enable-debug-command yes
    foreach fsync {always everysec no} {
        r config set appendfsync $fsync
        r set $fsync v
        r set gone-$fsync v
        r del gone-$fsync
        restart_server
        assert_equal v [r get $fsync]
        assert_equal 0 [r exists gone-$fsync] "gone-$fsync"
    }
    r flushall
    r set after v
    r quota set q: 1000
    restart_server
    assert_equal 1 [r dbsize]
    assert_match "*1000*" [r quota get q:]
    stop_server
}

test {it is written anew, with what happens meanwhile} {
    start_server --pool-size 0 --appendonly yes --enable-debug-command yes --loop-work-quota 16
    for {set i 0} {$i < 3000} {incr i} {r set s$i v$i}
    for {set i 0} {$i < 2900} {incr i} {r del s$i}
    set before [info_field aof_current_size]
    assert_equal "Background append only file rewriting started" [r bgrewriteaof]
    for {set i 0} {$i < 500} {incr i} {r set t$i v$i}
    wait_for "the new file" {[info_field aof_rewrite_in_progress] == 0}
    assert_equal ok [info_field aof_last_bgrewrite_status]
    assert {[info_field aof_current_size] < $before}
    r set last v
    set d [digest]
    restart_server
    assert_equal $d [digest]
    assert_equal 601 [r dbsize]
    r config set auto-aof-rewrite-min-size 1kb auto-aof-rewrite-percentage 50
    set n [info_field aof_rewrites]
    for {set i 0} {$i < 2000} {incr i} {r set u$i v$i}
    wait_for "a rewrite by itself" {[info_field aof_rewrites] > $n}
    stop_server
}

test {files that begin in the midst of changes: what they stand on comes first} {
    start_server --pool-size 16mb --pool-path [pool_file] --enable-debug-command yes
    set value [string repeat v 300]
    foreach command {bgrewriteaof bgsave} {
        set c [resp::connect 127.0.0.1 [server port]]
        set bytes {}
        foreach request [list [list set before:$command $value] $command \
                [list set after:$command $value]] {
            append bytes [resp::encode $request]
        }
        resp::raw $c $bytes
        for {set i 0} {$i < 3} {incr i} {resp::recv $c}
        resp::close $c
        wait_for "the file" {[info_field aof_rewrite_in_progress] == 0 && \
            [info_field rdb_bgsave_in_progress] == 0}
    }
    foreach file {appendonly.tarn dump.tarn} {assert_match "0 *It is whole*" [check_file $file]}
    set digest [digest]
    restart_server KILL
    assert_equal $digest [digest]
    foreach command {bgrewriteaof bgsave} {
        assert_equal "$value $value" [list [r get before:$command] [r get after:$command]]
    }
    stop_server
}

test {appendonly is turned on and off} {
    start_server --pool-size 0
    r set before v
    r config set appendonly yes
    wait_for "the file" {[info_field aof_rewrite_in_progress] == 0 && [files] eq "appendonly.tarn"}
    r set on v
    r config set appendonly no
    r set off v
    assert_equal 0 [info_field aof_enabled]
    set s [lindex $::servers end]
    dict lappend s options --appendonly yes
    set ::servers [lreplace $::servers end end $s]
    restart_server
    assert_equal 1 [r exists before]
    assert_equal 1 [r exists on]
    assert_equal 0 [r exists off]
    stop_server
}

test {a torn end is cut with a warning, damage is not guessed at} {
    start_server --pool-size 0 --appendonly yes
    for {set i 0} {$i < 50} {incr i} {r set s$i v$i}
    set s [server]
    send_signal KILL [dict get $s pid]
    reap_process [dict get $s pid]
    set path [file join [dict get $s dir] appendonly.tarn]
    set size [file size $path]
    set f [open $path r+]; chan truncate $f [expr {$size - 3}]; close $f
    assert_match "0 *It ends in the middle of a frame*" [check_file appendonly.tarn]
    set ::servers [lreplace $::servers end end [boot_server $s]]
    assert_equal 49 [r dbsize]
    assert_match "*ends in the middle of a record*" [file_text [server log]]
    send_signal KILL [server pid]
    reap_process [server pid]
    damage appendonly.tarn [expr {$size / 2}]
    assert_match "1 *It is damaged at byte*" [check_file appendonly.tarn]
    assert_error "*server did not start*is damaged at byte*tarn-check --fix*" {boot_server [server]}
    assert_match "0 *were cut off*" [check_file appendonly.tarn --fix]
    set ::servers [lreplace $::servers end end [boot_server [server]]]
    assert_range 1 [r dbsize] 48
    assert_equal v0 [r get s0]
    stop_server
}

test {tarn-check says what it is given} {
    start_server --pool-size 0
    set f [open [file join [server dir] nonsense.tarn] w]; puts $f nonsense; close $f
    assert_match "2 *no file of tarn's books*" [check_file nonsense.tarn]
    assert_match "2 *missing.tarn cannot be read: no such file*" \
        [string tolower [check_file missing.tarn]]
    assert_match "2 *is a directory*" [string tolower [check_file .]]
    exec mkfifo [file join [server dir] fifo.tarn]
    assert_match "2 *cannot be read*not supported*" [string tolower [check_file fifo.tarn]]
    assert_match "2 *no option --nonsense*" [check_file nonsense.tarn --nonsense]
    assert_match "2 *one file*nonsense.tarn*" [check_file nonsense.tarn other.tarn]
    assert {[catch {exec $::env(TARN_CHECK) --fix 2>@1} text]}
    assert_match "*which file*" $text
    stop_server
}

test {a disk that is full refuses writes until it is not} {
    start_server --pool-size 0 --appendonly yes
    r set a v
    exec prlimit --pid [server pid] --fsize=[expr {[info_field aof_current_size] + 50}]:unlimited
    set refused 0
    for {set i 0} {$i < 20} {incr i} {incr refused [catch {r set b$i [string repeat x 60]} why]}
    assert {$refused > 0}
    assert_match "MISCONF*" $why
    assert_equal err [info_field aof_last_write_status]
    assert_equal v [r get a]
    exec prlimit --pid [server pid] --fsize=unlimited:unlimited
    wait_for "the disk" {![catch {r set c v}]}
    restart_server
    assert_equal v [r get c]
    stop_server
}

# The end of the disk at every byte of a record.
test {guarantee 5: what cannot be written is not answered OK} {
    foreach sync {always everysec no} {
        foreach room {0 3 30 90 170} {
            start_server --pool-size 0 --appendonly yes --appendfsync $sync --aof-load-truncated no
            r set a v
            exec prlimit --pid [server pid] \
                --fsize=[expr {[info_field aof_current_size] + $room}]:unlimited
            set answered {}
            for {set i 0} {$i < 6} {incr i} {
                if {[catch {r set b$i v$i} why]} {
                    assert_match "MISCONF*" $why
                } else {
                    lappend answered $i
                }
            }
            assert {[llength $answered] < 6}
            assert {[info_field aof_unwritten_replies] > 0}
            restart_server
            foreach i $answered {assert_equal v$i [r get b$i] "$sync, $room bytes"}
            stop_server
        }
    }
}

test {guarantee 5: the same of pipelines, transactions and large values; reads are answered} {
    set path [pool_file]
    start_server --pool-size 16mb --pool-path $path --appendfsync always
    r set a v
    set c [client]
    exec prlimit --pid [server pid] --fsize=[info_field aof_current_size]:unlimited
    resp::raw $c [resp::encode {get a}][resp::encode {set p 1}][resp::encode {get a}][resp::encode \
        {incr p}]
    assert_equal v [resp::recv $c]
    # From the first one on that changes something.
    for {set i 0} {$i < 3} {incr i} {assert_match "(error) MISCONF*" [resp::recv $c]}
    assert_equal v [$c get a]
    exec prlimit --pid [server pid] --fsize=unlimited:unlimited
    wait_for "the disk" {![catch {r set a v2}]}
    assert_equal 2 [r get p]
    foreach {what how} {
        transaction {$c multi; $c set t 1; $c set t 2; $c exec}
        large {$c set big [string repeat x 3000000]}
        batch {$c mset m1 1 m2 2}
        start {$c putstart k 100000}
        expiry {$c pexpire a 100000}
        deletion {$c del p}
    } {
        exec prlimit --pid [server pid] --fsize=[info_field aof_current_size]:unlimited
        set failures [info_field aof_unwritten_replies]
        if {$what eq "start"} {
            eval $how
        } else {
            assert_error "*MISCONF*" $how
            assert_equal [expr {$failures + 1}] [info_field aof_unwritten_replies] $what
        }
        exec prlimit --pid [server pid] --fsize=unlimited:unlimited
        wait_for "the disk" {![catch {r set c v}]}
    }
    # A peer that asked for silence gets it.
    resp::send $c client reply off
    exec prlimit --pid [server pid] --fsize=[info_field aof_current_size]:unlimited
    resp::send $c set quiet 1
    wait_for "it to fail" {[info_field aof_last_write_status] eq "err"}
    exec prlimit --pid [server pid] --fsize=unlimited:unlimited
    wait_for "the disk" {![catch {r set c v}]}
    restart_server
    assert_equal "2 3000000 1 (nil) 1" [list [r get t] [r strlen big] [r get m1] [r get p] \
        [r get quiet]]
    stop_server
    file delete $path
}

test {a file that cannot be written anew is tried again} {
    start_server --pool-size 0 --appendonly yes
    r config set appendonly no
    for {set i 0} {$i < 100} {incr i} {r set a$i [string repeat x 60]}
    exec prlimit --pid [server pid] --fsize=500:unlimited
    r config set appendonly yes
    wait_for "a failure" {[info_field aof_last_bgrewrite_status] eq "err"}
    assert_error "MISCONF*" {r set b v}
    assert_equal [string repeat x 60] [r get a7]
    exec prlimit --pid [server pid] --fsize=unlimited:unlimited
    wait_for "the disk" {![catch {r set c v}]}
    assert_equal ok [info_field aof_last_bgrewrite_status]
    restart_server
    assert_equal "101 v" [list [r dbsize] [r get c]]
    stop_server
}

test {a pool on a file is warm again after kill -9} {
    set path [pool_file]
    start_server --pool-path $path --enable-debug-command yes
    fill 200
    r set small v
    r del k3
    r set k3 [string repeat "<3>" 1666]
    r set big [string repeat 0123456789 300000]
    foreach key {part1 part2} {
        set put [r putstart $key 40 BOUNDARY b]
        r putend $key [lindex $put 0] -1 VALUE [string repeat x 40]
    }
    assert_equal 1 [info_field aof_enabled]
    set d [digest]
    restart_server
    assert_equal 204 [r dbsize]
    assert_equal $d [digest]
    assert_equal {1 0} [list [info_field boundaries] [info_field groups]]
    check_filled 200
    assert_equal 3000000 [string length [r get big]]
    assert_equal [string repeat "<7>" 1666] [kv_value k7]
    fill 250
    restart_server TERM
    check_filled 250
    r debug check
    stop_server
    file delete $path
}

test {bytes that are not what they were are found out} {
    set path [pool_file]
    start_server --pool-path $path --pool-verify all
    fill 100
    send_signal KILL [server pid]
    reap_process [server pid]
    set f [open $path r+b]
    for {set at 8192} {$at < 300000} {incr at 30000} {seek $f $at; puts -nonewline $f "damaged"}
    close $f
    set ::servers [lreplace $::servers end end [boot_server [server]]]
    assert_range 80 [r dbsize] 99
    assert_match "*did not match and were dropped*" [file_text [server log]]
    set wrong 0
    for {set i 0} {$i < 100} {incr i} {
        set v [r get k$i]
        incr wrong [expr {$v ne "(nil)" && \
            $v ne [string repeat "<$i>" [expr {5000 / (2 + [string length $i])}]]}]
    }
    assert_equal 0 $wrong
    stop_server
    # Not looked at beforehand: GET looks.
    start_server --pool-path $path --pool-verify none
    fill 100
    send_signal KILL [server pid]
    reap_process [server pid]
    set f [open $path r+b]
    for {set at 8192} {$at < 300000} {incr at 30000} {seek $f $at; puts -nonewline $f "damaged"}
    close $f
    set ::servers [lreplace $::servers end end [boot_server [server]]]
    assert_equal 100 [r dbsize]
    set missing 0
    for {set i 0} {$i < 100} {incr i} {
        set v [r get k$i]
        if {$v eq "(nil)"} {
            incr missing
        } else {
            assert_equal [string repeat "<$i>" [expr {5000 / (2 + [string length $i])}]] $v
        }
    }
    assert_range 1 $missing 20
    stop_server
    file delete $path
}

test {another pool file, another size: what is gone is a miss} {
    set path [pool_file]
    start_server --pool-path $path
    fill 50
    r set small v
    send_signal KILL [server pid]
    reap_process [server pid]
    file delete $path
    set ::servers [lreplace $::servers end end [boot_server [server]]]
    assert_equal v [r get small]
    assert_equal (nil) [r get k1]
    assert_match "*holds nothing that the books know*" [file_text [server log]]
    fill 50
    check_filled 50
    wait_for "the old segment to leave" {[llength [r segment list]] == 1} 20000
    restart_server
    check_filled 50
    stop_server
    file delete $path
}

# The server again, with other options; the last ones count.
proc kill_server {} {
    send_signal KILL [server pid]
    reap_process [server pid]
}
proc boot_with {args} {
    set s [server]
    dict lappend s options {*}$args
    set ::servers [lreplace $::servers end end [boot_server $s]]
}
proc restart_with {args} {
    kill_server
    boot_with {*}$args
}

test {guarantee 5: a pool file grows in place with pool-size, and keeps all that was in it} {
    foreach allocator {offset slab} {
        set path [pool_file]
        start_server --pool-path $path --pool-size 32mb --allocator $allocator \
            --enable-debug-command yes --pool-verify all
        fill 200
        set d [digest]
        foreach size {64mb 160mb} {
            restart_with --pool-size $size
            assert_equal "200 $d" [list [r dbsize] [digest]] $size
            check_filled 200
            assert_equal [expr {[string trimright $size mb] << 20}] [segment_field local size]
            assert_equal OK [r debug check]
        }
        # There is more room now, and the file of the books knows it.
        r set large [string repeat x 40000000]
        restart_server
        check_filled 200
        assert_equal 40000000 [r strlen large]
        assert_equal 1 [llength [r segment list]]
        stop_server
        file delete $path
    }
}

test {guarantee 5: a pool file shrinks when nothing lies beyond, or when it is told to; else the\
        server does not start} {
    set path [pool_file]
    start_server --pool-path $path --pool-size 64mb --enable-debug-command yes --pool-verify all
    fill 200
    set d [digest]
    restart_with --pool-size 32mb
    assert_equal "200 $d" [list [r dbsize] [digest]]
    check_filled 200
    assert_equal [expr {32 << 20}] [segment_field local size]
    assert_equal OK [r debug check]
    # What lies beyond.
    restart_with --pool-size 64mb
    set big [string repeat 0123456789 2000000]
    r set b1 $big
    r set b2 $big
    set d [digest]
    set log [file_text [server log]]
    kill_server
    assert {[catch {boot_with --pool-size 24mb}]}
    assert_match "*holds a pool of 67108864 bytes, pool-size is 25165824, and * objects lie beyond\
        that*pool-path-shrink yes*" \
        [string range [file_text [server log]] [string length $log] end]
    boot_with --pool-size 64mb
    assert_equal $d [digest]
    restart_with --pool-size 24mb --pool-path-shrink yes
    check_filled 200
    set left [r exists b1 b2]
    assert_range 0 $left 1
    assert_equal OK [r debug check]
    assert_match "*objects that lay beyond are gone*" [file_text [server log]]
    # And stays so.
    set d [digest]
    restart_server
    assert_equal "$d $left" [list [digest] [r exists b1 b2]]
    # Its room went back.
    assert_range 0 [lindex [exec du -k $path] 0] [expr {25 << 10}]
    stop_server
    file delete $path
}

test {guarantee 5: without room for more a pool file is left as it is} {
    set dir [temp_dir]
    set path $dir/pool
    start_server --pool-path $path --pool-size 8mb --enable-debug-command yes
    fill 100
    set d [digest]
    # More than any disk has.
    set size [file size $path]
    kill_server
    assert {[catch {boot_with --pool-size 9000gb --pool-populate no}]}
    assert_match "*holds a pool of 8 MiB, and there is no room to make it 9216000 MiB*left as it\
        is*" [file_text [server log]]
    assert_equal $size [file size $path]
    boot_with --pool-size 8mb
    assert_equal $d [digest]
    check_filled 100
    # Killed in the middle of growing: it is longer, and its header is what it was.
    kill_server
    exec truncate -s 20M $path
    boot_with
    assert_equal $d [digest]
    restart_with --pool-size 16mb
    assert_equal $d [digest]
    check_filled 100
    stop_server
}

test {guarantee 5: the segment of a node grows in its file, and is cut only when the node says so} {
    start_server --pool-size 0 --enable-debug-command yes
    set path [pool_file]
    start_node n1 --segment 32mb,path=$path
    assert_equal 100 [dict get [kv load n 100 100000] ok]
    stop_node n1
    restart_node n1 --segment 64mb,path=$path
    assert_equal [expr {64 << 20}] [segment_field n1.0 size]
    kv_all 100 verify n 100 100000
    assert_equal 1 [llength [r segment list]]
    assert_equal 400 [dict get [kv load m 400 100000] ok]
    kv_all 400 verify m 400 100000
    assert_equal OK [r debug check]
    stop_node n1
    launch_node n1 --segment 32mb,path=$path
    assert_equal 1 [reap_node n1]
    assert_match "*holds a pool of 67108864 bytes, which is more than the 33554432 bytes asked\
        for*--shrink*" [file_text [node n1 dir]/stdout]
    restart_node n1 --segment 64mb,path=$path
    kv_all 400 verify m 400 100000
    stop_node n1
    restart_node n1 --shrink --segment 32mb,path=$path
    assert_equal [expr {32 << 20}] [segment_field n1.0 size]
    assert_equal 0 [dict get [kv verify m 400 100000] wrong]
    assert_equal 100 [dict get [kv load p 100 100000] ok]
    kv_all 100 verify p 100 100000
    # Nothing lies beyond: nothing is lost.
    stop_node n1
    restart_node n1 --segment 48mb,path=$path
    stop_node n1
    restart_node n1 --shrink --segment 32mb,path=$path
    kv_all 100 verify p 100 100000
    assert_equal OK [r debug check]
    stop_node n1
    stop_server
    file delete $path
}

test {a client that has the old pool mapped} {
    set path [pool_file]
    start_server --pool-path $path
    set run [kv_start --fill --replace run c 200 4096-65536]
    wait_for "values" {[r dbsize] > 20}
    send_signal KILL [server pid]
    reap_process [server pid]
    set s [server]
    dict lappend s options --port [dict get $s port]
    set ::servers [lreplace $::servers end end [boot_server $s]]
    r config resetstat
    wait_for "it to put and to get again" {[r dbsize] > 20 && [info_field keyspace_hits] > 0}
    set a [kv_stop $run]
    assert_equal 0 [dict get $a wrong]
    assert {[dict get $a ok] > 0}
    stop_server
    file delete $path
}

# A process that has put over shared memory, and makes no call any more.
proc start_idle {} {
    set run [kv_start --transport shm --fill --pause 4000000 run idle 1 65536]
    wait_for "the value of an idle process" {[r dbsize] == 1}
    return $run
}

# Does it have the file mapped writable?
proc may_write {pid path} {
    return [regexp -line "rw-s .*[file tail $path]" [file_text /proc/$pid/maps]]
}

test {guarantee 2: an idle process that put over shm does not keep a restarted pool from taking\
        values} {
    set path [pool_file]
    start_server --pool-path $path
    set run [start_idle]
    set pid [lindex $run 0]
    assert [may_write $pid $path]
    send_signal KILL [server pid]
    reap_process [server pid]
    set ::servers [lreplace $::servers end end [boot_server [server]]]
    # Without a call of its own.
    wait_for "a larger value to be taken" {![catch {r set big [string repeat x 1000000]}]}
    assert {![may_write $pid $path]}
    kv_stop $run
    stop_server
    file delete $path
}

test {a node with a pool file starts again after NODE LEAVE, whoever had it mapped} {
    start_server --pool-size 0
    foreach what {idle stopped} {
        set path [pool_file]
        start_node n1 --segment 32mb,path=$path
        set run [start_idle]
        set pid [lindex $run 0]
        if {$what eq "stopped"} {send_signal STOP $pid}
        r node leave n1
        assert_equal 0 [reap_node n1]
        restart_node n1
        assert_equal up [node_state n1]
        assert_equal 20 [dict get [kv load n$what 20 20000] ok]
        send_signal CONT $pid
        kv_stop $run
        r node leave n1
        assert_equal 0 [reap_node n1]
        dict unset ::node_table n1
        file delete $path
    }
    stop_server
}

test {a node with its content is taken back by a master that was restarted} {
    start_server --pool-size 0 --appendonly yes --enable-debug-command yes
    start_node n1 --segment 64mb
    wait_node n1 up
    set a [kv load n 300 20000]
    assert_equal 300 [dict get $a ok]
    set d [digest]
    restart_server
    assert_equal 300 [r dbsize]
    wait_node n1 up
    assert_equal $d [digest]
    kv_all 300 verify n 300 20000
    stop_server
}

finish
