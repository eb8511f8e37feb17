#!/usr/bin/env tclsh
# Runs tests/integration/*_test.tcl, each in a process of its own:
#
#     tclsh tests/integration/run.tcl [--only PATTERN] [--server PATH] [--jobs 2] [FILE ...]
#
# PATTERN is a glob for names of tests, or of files. A line per test; "N passed, M failed" at the end; exit status 1 if any
# failed. A file that says nothing for five minutes is stopped and counts as a failure.

set here [file dirname [file normalize [info script]]]
set jobs 2
set files {}
set silence_ms 300000

proc usage {} {
    puts stderr "usage: run.tcl \[--only PATTERN\] \[--server PATH\] \[--jobs N\] \[FILE ...\]"
    exit 2
}

for {set i 0} {$i < $argc} {incr i} {
    set a [lindex $argv $i]
    set value [lindex $argv [expr {$i + 1}]]
    switch -glob -- $a {
        --only {set env(TARN_TEST_ONLY) $value; incr i}
        --server {set env(TARN_TEST_SERVER) [file normalize $value]; incr i}
        --jobs {set jobs $value; incr i}
        --* {usage}
        default {lappend files [file normalize $a]}
    }
}
if {$i > $argc || ![string is integer -strict $jobs] || $jobs < 1} usage
if {[llength $files] == 0} {set files [lsort [glob -nocomplain -directory $here *_test.tcl]]}

set passed 0
set failed 0
set skipped 0
set running 0
fconfigure stdout -buffering line -encoding utf-8

proc start {file} {
    global running lines complete
    set guard {}
    if {[auto_execok setpriv] ne ""} {set guard [list [lindex [auto_execok setpriv] 0] --pdeathsig KILL]}
    set pipe [open "|[concat $guard [list [info nameofexecutable] $file]] < /dev/null 2>@1" r]
    fconfigure $pipe -blocking 0 -encoding utf-8
    fileevent $pipe readable [list hear $pipe $file]
    set complete($pipe) 0
    incr running
    watch $pipe $file
}

proc watch {pipe file} {
    global timer silence_ms
    if {[info exists timer($pipe)]} {after cancel $timer($pipe)}
    set timer($pipe) [after $silence_ms [list silent $pipe $file]]
}

proc silent {pipe file} {
    puts "not ok [file tail $file]: silent for $::silence_ms ms, stopped"
    incr ::failed
    set ::complete($pipe) 1
    catch {exec kill -KILL {*}[pid $pipe]}
}

proc hear {pipe file} {
    global passed failed skipped complete
    while {[gets $pipe line] >= 0} {
        watch $pipe $file
        if {[regexp {^\d+ passed, \d+ failed} $line]} {
            set complete($pipe) 1
            continue
        }
        if {[string match "ok *" $line]} {
            incr passed
        } elseif {[string match "not ok *" $line]} {
            incr failed
        } elseif {[string match "skip *" $line]} {
            incr skipped
        } else {
            set line "[file rootname [file tail $file]]: $line"
        }
        puts $line
    }
    if {![eof $pipe]} return
    after cancel $::timer($pipe)
    fconfigure $pipe -blocking 1
    catch {close $pipe}
    if {!$complete($pipe)} {
        puts "not ok [file tail $file]: ended before its end"
        incr failed
    }
    incr ::running -1
}

while {[llength $files] > 0 || $running > 0} {
    while {$running < $jobs && [llength $files] > 0} {
        start [lindex $files 0]
        set files [lrange $files 1 end]
    }
    vwait running
}

set text "$passed passed, $failed failed"
if {$skipped} {append text ", $skipped skipped"}
puts $text
exit [expr {$failed > 0}]
