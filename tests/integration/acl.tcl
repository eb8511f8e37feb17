# Connections of users, and servers with a configuration file to keep them in.
set here [temp_dir]
close [open $here/tarn.conf w]
proc conf {text} {
    set f [open $::here/tarn.conf w]
    puts $f $text
    close $f
}
# A connection of that user.
proc as {user password} {
    set c [client]
    $c auth $user $password
    return $c
}
proc with {user password script} {
    set ::as [as $user $password]
    set code [catch {uplevel 1 $script} result options]
    drop $::as
    return -options $options $result
}
# Server with a configuration file; the rest of the arguments are options.
proc start_configured {args} {
    set s [dict create dir $::here log $::here/log options $args]
    lappend ::servers [boot_configured $s]
}
proc boot_configured {s} {
    set dir [dict get $s dir]
    file delete $dir/port
    set command [linsert [server_command $dir [dict get $s options]] 1 $dir/tarn.conf]
    dict set s pid [start_process $command $dir/stdout]
    set ::boot $s
    wait_for "server to start" {[process_state [dict get $::boot pid]] eq "gone" || \
        [file_text [dict get $::boot dir]/port] ne ""}
    if {[process_state [dict get $s pid]] eq "gone"} {
        reap_process [dict get $s pid]
        set text [file_text $dir/stdout][file_text $dir/log]
        file delete $dir/stdout $dir/log
        error "server did not start: $text"
    }
    dict set s port [string trim [file_text $dir/port]]
    return $s
}
proc restart_configured {} {
    set s [lindex $::servers end]
    foreach c $::clients {catch {resp::close $c}}
    set ::clients {}
    send_signal TERM [dict get $s pid]
    assert_equal 0 [reap_process [dict get $s pid]]
    set ::servers [lreplace $::servers end end [boot_configured $s]]
}
# As in ACL LIST.
proc line_of {user} {lsearch -inline [r acl list] "user $user *"}

set no_key "NOPERM this user has no permissions to access one of the keys used as arguments"
set no_channel "NOPERM this user has no permissions to access one of the channels used as arguments"
proc no_command {name} {return "NOPERM this user has no permissions to run the '$name' command"}
