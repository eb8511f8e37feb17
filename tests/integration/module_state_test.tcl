# What modules keep, and commands of modules that write and have keys: the module "notes"
# (tests/modules/notes.c), alone, through restarts, and on replicas with and without it.
source [file join [file dirname [info script]] harness.tcl]
source [file join [file dirname [info script]] several.tcl]

set notes $modules/notes.so

proc told {name what} {return [dict get [ask $name notes.told] $what]}
proc told_is {name what value} {
    return [expr {![catch {told $name $what} got] && $got eq $value}]
}
proc notes_of {name} {
    foreach {note text} [ask $name notes.list] {dict set all $note $text}
    if {![info exists all]} {return {}}
    return [lsort -stride 2 $all]
}
proc keys_from {command} {return [ask a command getkeys {*}$command]}

up a --loadmodule "$notes strange" --enable-module-command local


test {commands with keys, as COMMAND shows them} {
    set info [lindex [ask a command info notes.set] 0]
    assert_equal {notes.set 3 {write denyoom module fast} 1 1 1} [lrange $info 0 5]
    assert_equal {@write @notes @string @fast} [lindex $info 6]
    assert_equal {notes.del -2 {write module} 1 -1 1} \
        [lrange [lindex [ask a command info notes.del] 0] 0 5]
    assert_equal {notes.mget -3 {readonly module movablekeys} 0 0 0} \
        [lrange [lindex [ask a command info notes.mget] 0] 0 5]
    assert_equal {notes.copy 5 {write module movablekeys} 0 0 0} \
        [lrange [lindex [ask a command info notes.copy] 0] 0 5]
    assert_equal {one} [keys_from {notes.set one text}]
    assert_equal {one two three} [keys_from {notes.del one two three}]
    assert_equal {one two} [keys_from {notes.mget 2 one two}]
    assert_error "ERR Invalid arguments*" {keys_from {notes.mget 3 one two}}
    assert_error "ERR Invalid number of arguments*" {keys_from {notes.set one}}
    assert_error "ERR The command has no key arguments" {keys_from {notes.replies}}
    assert_equal {{one {RO access}} {two {RW access update}}} \
        [ask a command getkeysandflags notes.copy FROM one TO two]
    assert_equal {{one {RM delete}}} [ask a command getkeysandflags notes.del one]
    set docs [dict get [ask a command docs notes.set] notes.set]
    assert_equal {1.2.0 O(1) module notes} [lmap field {since complexity group module} {
        dict get $docs $field
    }]
    assert_equal {{name text} OK NOSPACE} [lmap f {synopsis reply errors} {dict get $docs $f}]
    foreach f {since reply synopsis} {
        assert {![dict exists [dict get [ask a command docs notes.get] notes.get] $f]}
    }
    # the words of its syntax, one by one: redis-cli shows what is left to type
    foreach {name arguments} {
        notes.set {{name string} {text string}}
        notes.mget {{numnames string} {name string multiple}}
        notes.copy {{from pure-token FROM} {name string} {to pure-token TO} {name string}}
        notes.list {{max string optional}}
    } {
        set got [lmap argument [dict get [ask a command docs $name] $name arguments] {
            dict unset argument display_text
            concat [dict values $argument]
        }]
        assert_equal $arguments [lmap argument $got {join $argument}] $name
    }
}

test {replies of every kind} {
    set c [resp::connect 127.0.0.1 [port a]]
    resp::send $c notes.replies
    assert_equal {PONG {half 0.5 yes 1} {(nil) {}} {(error) OVERLOADED 250 come back later}} \
        [resp::recv $c]
    resp::raw $c "*2\r\n\$5\r\nhello\r\n\$1\r\n3\r\n"
    resp::recv $c
    resp::send $c notes.replies
    set expected "*4\r\n+PONG\r\n%2\r\n\$4\r\nhalf\r\n,0.5\r\n\$3\r\nyes\r\n#t\r\n*2\r\n_\r\n*0\r\n\
        -OVERLOADED"
    set expected [string map {"\n -" "\n-"} [regsub -all {\n +} $expected "\n"]]
    assert_equal $expected [resp::recv_raw $c [string length $expected]]
    resp::close $c
}

test {what is kept: names, values, and their bounds} {
    assert_equal OK [ask a notes.set one 1]
    assert_equal OK [ask a notes.set two ""]
    assert_equal {1 {} (nil)} [ask a notes.mget 3 one two three]
    assert_equal {one 1 two {}} [notes_of a]
    assert_equal OK [ask a notes.copy FROM one TO two]
    assert_equal OK [ask a notes.copy FROM one TO one]
    assert_equal {one 1 two 1} [notes_of a]
    assert_equal 1 [ask a notes.del two three]
    assert_equal {one 1} [notes_of a]
    set name [string repeat n 1024]
    set value [string repeat v 65536]
    assert_equal OK [ask a notes.set $name $value]
    assert_equal $value [ask a notes.get $name]
    assert_equal 1 [ask a notes.del $name]
    foreach {name value} [list "" x [string repeat n 1025] x x [string repeat v 65537]] {
        assert_error "ERR a note has 1 to 1024 bytes*" {ask a notes.set $name $value}
    }
    assert_error "ERR this command only reads" {ask a notes.sly one}
    assert_equal {one 1} [notes_of a]
}

test {figures of a module: INFO of its name, and INFO modules} {
    assert_equal "# Notes\r\nnotes_told:0\r\nnotes_half:0.50\r\n" [ask a info notes]
    assert_match "*# Notes\r\nnotes_told:0\r\n*" [ask a info server nOTes]
    assert_match "*\r\nnotes_told:0\r\n*" [ask a info modules]
    assert_equal "" [ask a info nothing]
    assert_equal 1 [regexp -all notes_told [ask a info everything]]
}

test {a bound for each module, and its figures} {
    assert_equal {names=1,kept_bytes=100,max_bytes=16777216,loaded=1} [field a module_state_notes]
    ask a config set module-state-max 1000
    for {set i 0} {$i < 8} {incr i} {ask a notes.set n$i 123}
    assert_error "NOSPACE there are too many notes" {ask a notes.set n8 123}
    assert_error "NOSPACE there are too many notes" {ask a notes.set n7 [string repeat x 1000]}
    assert_match "names=9,kept_bytes=908,max_bytes=1000,*" [field a module_state_notes]
    ask a config set module-state-max 500
    assert_equal OK [ask a notes.set n7 12]
    assert_equal 8 [ask a notes.del {*}[lmap i {0 1 2 3 4 5 6 7} {string cat n $i}]]
    ask a config set module-state-max 16mb
    assert_equal 1 [ask a notes.del one]
    assert_equal [string repeat 0 40] [ask a debug digest]
}

test {/metrics tells the figures of several modules apart} {
    set http [file join [file dirname $::server_binary] modules http.so]
    if {![file exists $http]} {skip "http.so was not built"}
    assert_equal OK [ask a module load $http port 0]
    ask a notes.set one 1
    set s [socket 127.0.0.1 [field a http_port]]
    fconfigure $s -translation binary
    puts -nonewline $s "GET /metrics HTTP/1.0\r\n\r\n"
    flush $s
    set text [read $s]
    close $s
    set samples [lmap line [split $text \n] {
        if {![string match tarn_* $line]} continue
        regsub { [^ ]+$} $line ""
    }]
    assert_equal [lsort $samples] [lsort -unique $samples]
    assert {[regexp -line {^# TYPE tarn_notes_told_total counter$} $text]}
    foreach sample {tarn_notes_told_total tarn_module_ver{module="notes"}
        tarn_module_ver{module="http"} tarn_module_state_names{module_state="notes"}} {
        assert {$sample in $samples} $sample
    }
    assert_equal 1 [ask a notes.del one]
    assert_equal OK [ask a module unload http]
}

test {rules of users about keys, and the module's category} {
    ask a acl setuser nina on >pw resetkeys ~mine:* %R~read:* -@all +@notes +hello +auth
    assert {"notes" in [ask a acl cat]}
    assert_equal 10 [llength [ask a acl cat notes]]
    assert_match "*-@all +@notes *" [dict get [ask a acl getuser nina] commands]
    set c [resp::connect 127.0.0.1 [port a]]
    assert_equal OK [$c auth nina pw]
    assert_equal OK [$c notes.set mine:1 text]
    assert_equal {text (nil)} [$c notes.mget 2 mine:1 read:1]
    foreach command {{notes.set read:1 x} {notes.set other x} {notes.get other} \
            {notes.mget 2 mine:1 other} {notes.mget 9 mine:1} {notes.del mine:1 read:1} \
            {notes.copy FROM mine:1 TO read:1} {notes.copy FROM other TO mine:1} {notes.list}} {
        assert_error "NOPERM this user has no permissions to access one of the keys*" {
            $c {*}$command}
    }
    assert_error "NOPERM this user has no permissions to run the 'get' command" {$c get mine:1}
    assert_equal OK [$c notes.copy FROM mine:1 TO mine:2]
    ask a acl setuser nina -@write
    assert_error "NOPERM *'notes.set' command" {$c notes.set mine:1 text}
    assert_equal text [$c notes.get mine:1]
    resp::close $c
    ask a acl setuser nina resetkeys ~* +@write
    assert_equal 2 [ask a notes.del mine:1 mine:2]
    # the rules stay while it is away
    assert_equal OK [ask a module unload notes]
    assert_match "*+@notes *" [dict get [ask a acl getuser nina] commands]
    assert_equal {} [ask a acl cat notes]
    assert_equal OK [ask a module load $::notes]
    assert_equal 1 [ask a acl deluser nina]
}

test {transactions, WATCH, CLIENT TRACKING} {
    set c [resp::connect 127.0.0.1 [port a]]
    $c multi
    assert_equal QUEUED [$c notes.set a 1]
    assert_equal QUEUED [$c notes.sly a]
    assert_equal QUEUED [$c notes.get a]
    assert_equal {OK {(error) ERR this command only reads} 1} [$c exec]
    $c watch a b
    ask a notes.set a 2
    $c multi
    $c notes.set a 3
    assert_equal (nil) [$c exec]
    $c watch a b
    ask a notes.get a
    assert_error * {ask a notes.set b [string repeat v 65537]}
    $c multi
    $c notes.set a 3
    assert_equal OK [$c exec]
    resp::raw $c "*2\r\n\$5\r\nhello\r\n\$1\r\n3\r\n"
    resp::recv $c
    $c client tracking on
    assert_equal 3 [$c notes.get a]
    ask a notes.set a 4
    assert_equal {invalidate a} [resp::recv $c]
    assert_equal 4 [$c notes.get a]
    assert_equal 1 [ask a notes.del a]
    assert_equal {invalidate a} [resp::recv $c]
    resp::close $c
}

test {writes that are held back, and those that must be refused} {
    set c [resp::connect 127.0.0.1 [port a]]
    ask a client pause 20000 WRITE
    resp::send $c notes.set a 1
    assert_equal (nil) [ask a notes.get a]
    assert {![resp::readable $c]}
    ask a client unpause
    assert_equal OK [resp::recv $c]
    ask a config set min-replicas-to-write 1
    assert_error "NOREPLICAS *" {ask a notes.set a 2}
    assert_equal 1 [ask a notes.get a]
    ask a config set min-replicas-to-write 0
    ask a config set maxmemory 1
    assert_error "OOM command not allowed*" {ask a notes.set a 2}
    assert_equal 1 [ask a notes.get a]
    assert_match "*rejected_calls=2,*" [field a cmdstat_notes.set]
    ask a config set maxmemory 0
    resp::send $c monitor
    assert_equal OK [resp::recv $c]
    ask a notes.set a 3
    assert_match {*"notes.set" "a" "3"} [resp::recv $c]
    resp::close $c
    assert_equal OK [ask a flushall]
    assert_equal 3 [ask a notes.get a]
}

# --- files ---

test {kill -9 and DEBUG RELOAD, with an append-only file and with a snapshot} {
    ask a config set appendonly yes
    # until then there is nothing that a restart could find
    wait_for "the file" {[field_is a aof_rewrite_in_progress 0]}
    for {set i 0} {$i < 300} {incr i} {ask a notes.set n$i [string repeat $i 30]}
    ask a notes.del n0
    set all [notes_of a]
    set digest [ask a debug digest]
    assert {$digest ne [string repeat 0 40]}
    again a --appendonly yes
    assert_equal $all [notes_of a]
    assert_equal $digest [ask a debug digest]
    assert_equal 1 [told a leads]
    ask a notes.set n1 other
    ask a bgrewriteaof
    wait_for "the file to be written anew" {[field_is a aof_rewrites 1]}
    ask a notes.set n2 other
    assert_equal 1 [ask a notes.del n3]
    set all [notes_of a]
    again a
    assert_equal $all [notes_of a]
    assert_match "*state of modules=*" [exec $::env(TARN_CHECK) \
        [dict get $::S(a) dir]/appendonly.tarn]
    assert_equal OK [ask a debug loadaof]
    assert_equal $all [notes_of a]
    assert_equal OK [ask a debug reload]
    assert_equal $all [notes_of a]
    assert {[told a all] >= 2}
    assert_equal 1 [told a leads]
    again a --appendonly no
    assert_equal $all [notes_of a]
    set changes [field a rdb_changes_since_last_save]
    ask a notes.set n1 changed
    ask a notes.set n1 changed
    ask a notes.get n1
    assert_equal [expr {$changes + 1}] [field a rdb_changes_since_last_save]
}

proc state_record {format what name value} {
    set body [binary format ccccsa*a*a* 66 $format $what 5 [string length $name] notes $name $value]
    return [binary format i [string length $body]]$body
}
proc framed {at records} {
    set crc [crc32c [binary format w $at]$records]
    return [binary format ii [string length $records] $crc]$records
}

test {a file with a record that only a later version knows is refused, with words} {
    set dir [temp_dir]
    set header [binary format a8iia16wwia41x31 TARNBOOK 1 128 "" 0 1770000000000 1 ""]
    append header [binary format i [crc32c $header]]
    assert_equal 128 [string length $header]
    set end [binary format icw 9 64 0]
    foreach {format status said} {1 0 "*module notes keeps 2 names, 199 bytes*It is whole"
            2 1 "*1 records of what modules keep cannot be read: *another version*"} {
        set f [open $dir/dump.tarn wb]
        puts -nonewline $f $header[framed 128 \
            [state_record 1 1 one 1][state_record $format 1 two ""]$end]
        close $f
        set got 0
        if {[catch {exec $::env(TARN_CHECK) $dir/dump.tarn 2>@1} text options]} {
            set got [lindex [dict get $options -errorcode] 2]
        }
        assert_equal $status $got $text
        assert_match $said $text
    }
    assert_error "*dump.tarn, at byte 128: the record of a module's state is of another version*" {
        boot_server [dict create dir $dir options {--pool-size 0} log $dir/log]
    }
}


# --- replicas ---

# All of them have the same notes, and their books are the same.
proc same_notes {args} {
    same_books {*}$args
    set all [notes_of [lindex $args 0]]
    foreach name $args {assert_equal $all [notes_of $name] "($name)"}
    return $all
}

up b --loadmodule $notes --enable-module-command local
up c --enable-module-command local

test {a replica has what its master keeps; one without the module passes it on} {
    ask a notes.set before 1
    ask b notes.set own 1
    follow b a
    assert_equal 1 [dict get [same_notes a b] before]
    assert {![dict exists [notes_of b] own]}
    assert_equal {0 1 1} [list [told b leads] [told b roles] [told b all]]
    follow c b
    ask a notes.set more 1
    same_books a b c
    assert_match "names=*,loaded=0" [field c module_state_notes]
    assert_equal more [told b last]
    set before [list [told b changed] [told b gone]]
    ask a notes.set more 2
    ask a notes.del more
    same_notes a b
    assert_equal [list [expr {[lindex $before 0] + 1}] [expr {[lindex $before 1] + 1}]] \
        [list [told b changed] [told b gone]]
}

test {what a replica refuses} {
    foreach command {{notes.set k v} {notes.del k} {notes.copy FROM k TO l} notes.led} {
        assert_error "READONLY *" {ask b {*}$command}
    }
    assert_equal 1 [ask b notes.get before]
    ask b multi
    assert_error "READONLY *" {ask b notes.set k v}
    assert_error "EXECABORT*" {ask b exec}
    assert_equal 1 [told a leads]
    assert_equal leads [lindex [ask a notes.led] 0]
}

test {a partial synchronisation} {
    set partial [field a sync_partial_ok]
    ask a client kill type replica
    for {set i 0} {$i < 50} {incr i} {ask a notes.set during$i $i}
    wait_link b
    assert_equal [expr {$partial + 1}] [field a sync_partial_ok]
    same_notes a b
}

test {a replica without the module leads, and the module comes later} {
    ask a notes.set late 1
    set all [same_notes a b]
    same_books a b c
    assert_match OK* [ask c replicaof no one]
    assert_equal OK [ask c module load $::notes]
    assert_equal $all [notes_of c]
    assert_equal {1 0} [list [told c leads] [told c all]]
    assert_equal OK [ask c notes.set late 2]
    assert_equal 1 [ask b notes.get late]
    follow c a
    assert_equal 1 [ask c notes.get late]
    same_notes a b c
    assert_equal {0 1} [list [told c leads] [told c all]]
}

test {FAILOVER, and back} {
    ask a failover to 127.0.0.1 [port b]
    wait_for "b to lead" {[field_is b role master]}
    wait_link a
    assert_equal {0 1} [list [told a leads] [told b leads]]
    assert_error "READONLY *" {ask a notes.set k v}
    ask b notes.set since 1
    assert_equal 1 [dict get [same_notes a b] since]
    assert_match OK* [ask b replicaof 127.0.0.1 [port a]]
    assert_match OK* [ask a replicaof no one]
    wait_link b
    assert_equal {1 0} [list [told a leads] [told b leads]]
    ask a notes.set since 2
    assert_equal 2 [dict get [same_notes a b] since]
}

test {a master that is killed: its replica has all that was acknowledged} {
    ask a notes.set acknowledged 1
    assert_range 1 [ask a wait 1 0] 2
    set all [notes_of a]
    down a
    assert_match OK* [ask b replicaof no one]
    assert_equal $all [notes_of b]
    follow c b
    same_notes b c
}

test {changes without commands: thousands a second, a full synchronisation, a failover} {
    ask b module unload notes
    ask b module load $::notes tick 5
    wait_for "changes" {[told b ticks] > 500}
    up d --loadmodule $::notes --appendonly yes
    follow d b
    wait_for "more changes" {[told b ticks] > 2000}
    ask b client pause 60000 WRITE
    wait_for "them to be held back" {[told b late] > 0}
    set all [same_notes b d]
    assert_range 1000 [llength $all] 4000
    ask b client unpause
    ask b failover to 127.0.0.1 [port d]
    wait_for "d to lead" {[field_is d role master]}
    wait_link b
    set all [same_notes b d]
    set ticks [told b ticks]
    assert_equal [expr {$ticks - 1}] [dict get $all tick[expr {($ticks - 1) % 1000}]]
    again d
    assert_equal $all [notes_of d]
}

finish
