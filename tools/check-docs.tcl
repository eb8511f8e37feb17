# A running server against its documents: every command of COMMAND LIST is in docs/COMMANDS.md, with
# the arguments, reply and errors that COMMAND DOCS tells, every option of CONFIG GET * is in
# redis.conf.sample, and a server starts with redis.conf.sample and knows each option that it names.
# And the documents among themselves: the index, messages and figures that are quoted, the
# calculator.
#
#   tclsh tools/check-docs.tcl --server build/release/tarn-server

set server src/tarn-server
foreach {option value} $argv { if {$option eq "--server"} { set server $value } }

set passed 0
set failed 0
set skipped 0
proc check {what problems} {
    if {[llength $problems] == 0} {
        incr ::passed
    } else {
        incr ::failed
        puts "$what:"
        foreach p $problems { puts "  $p" }
    }
}
proc finish {} {
    set tail [expr {$::skipped > 0 ? ", $::skipped skipped" : ""}]
    puts "$::passed passed, $::failed failed$tail"
    exit [expr {$::failed > 0}]
}
proc read_file {path} {
    if {![file exists $path]} {
        check "documents" [list "$path does not exist"]
        return ""
    }
    set f [open $path]
    fconfigure $f -encoding utf-8
    set text [read $f]
    close $f
    return $text
}
proc free_port {} {
    set s [socket -server {} -myaddr 127.0.0.1 0]
    set port [lindex [fconfigure $s -sockname] 2]
    close $s
    return $port
}

set directory \
    [exec mktemp -d [file join [expr {[info exists env(TMPDIR)] ? $env(TMPDIR) : "/tmp"}] \
    tarn-docs.XXXXXX]]
set port [free_port]
set log [file join $directory log]
set pid [exec $server redis.conf.sample --port $port --data-port 0 --bind 127.0.0.1 \
    --pool-size 16mb --dir $directory \
    --daemonize no < /dev/null >& $log &]

proc stop {} {
    catch { exec kill $::pid }
    # exec reaps what has ended.
    for {set i 0} {$i < 200 && [file exists /proc/$::pid]} {incr i} { after 25; exec true }
    catch { exec kill -9 $::pid }
    file delete -force $::directory
}
proc cli {args} { exec redis-cli -p $::port {*}$args }

set up 0
for {set i 0} {$i < 400 && !$up} {incr i} {
    if {![catch { cli PING } answer] && $answer eq "PONG"} { set up 1 } else { after 50 }
    if {![file exists /proc/$pid]} break
}
if {!$up} {
    check "a server with redis.conf.sample does not start" [split [read_file $log] \n]
    stop
    finish
}
check "redis.conf.sample" {}

set problems {}
set text [read_file docs/COMMANDS.md]
foreach name [lsort [split [cli COMMAND LIST] \n]] {
    set shown [string map {| { }} [string toupper $name]]
    if {![regexp "(^|\[^A-Z\])[string map {{ } {[ |]}} $shown](\[^A-Z\]|$)" $text]} {
        lappend problems "$shown is not in docs/COMMANDS.md"
    }
}
check "commands" $problems
set problems {}
if {[catch {exec tools/commands-page.py --port $port --check} said]} {
    set problems [split $said \n]
    lappend problems "tools/commands-page.py --port PORT writes this"
}
check "synopses" $problems

# The one table of errors: its codes are those of docs/COMMANDS.md, its statuses those of
# tarn_status.h and docs/LIBTARN.md.
set table [read_file src/base/errors.h]
set codes {}
set statuses {}
foreach {all status code} [regexp -all -inline {X\((TARN_\w+), "(\w*)", ERROR_} $table] {
    lappend statuses $status
    if {$code ne ""} { lappend codes $code }
}
foreach {all code} [regexp -all -inline {X\("(\w+)", TARN_} $table] { lappend codes $code }
set shown {}
set in_table 0
foreach line [split $text \n] {
    if {[string match "| code | means*" $line]} { set in_table 1 }
    if {$line eq "" && $in_table} break
    if {$in_table && [regexp {^\| ([^|]*)\|} $line -> cell]} {
        foreach {all code} [regexp -all -inline {`([A-Z]+)} $cell] { lappend shown $code }
    }
}
set problems {}
if {[llength $codes] < 15} { lappend problems "src/base/errors.h was not understood" }
foreach code [lsort -unique $codes] {
    if {$code ni $shown} {
        lappend problems "$code is not in the table of errors of docs/COMMANDS.md"
    }
}
foreach code $shown {
    if {$code ni $codes} {
        lappend problems "$code of docs/COMMANDS.md is not in src/base/errors.h"
    }
}
set declared {}
foreach {all status} [regexp -all -inline {(TARN_\w+) = -?[0-9]+} [read_file src/tarn_status.h]] {
    lappend declared $status
}
if {[lsort $statuses] ne [lsort $declared]} {
    lappend problems "src/base/errors.h and src/tarn_status.h differ"
}
set libtarn [read_file docs/LIBTARN.md]
foreach {all status code} [regexp -all -inline {X\((TARN_\w+), "(\w*)", ERROR_} $table] {
    if {$code ni {"" ERR} && ![regexp "$status\\M" $libtarn]} {
        lappend problems "$status is not in docs/LIBTARN.md"
    }
}
# No other code leaves the server for a client to guess about, but those of Redis that are said in
# Redis' words.
set redis {CODE UNBLOCKED NOTBUSY EXECABORT NOMASTERLINK NOPROTO WRONGPASS NOAUTH NOPERM EPOCH GAP}
foreach file [glob src/front/*.c src/inband/*.c src/ha/*.c src/commands/*.c] {
    foreach {all code} [regexp -all -inline {"-([A-Z]{3,}) } [read_file $file]] {
        if {$code ni $codes && $code ni $redis && $code ne "ERR"} {
            lappend problems "$file says $code, which is not in src/base/errors.h"
        }
    }
}
check "errors" $problems

set options {}
foreach {name value} [split [cli CONFIG GET *] \n] {
    if {$name ne ""} { lappend options [string tolower $name] }
}
set sample {}
foreach line [split [read_file redis.conf.sample] \n] {
    if {[regexp {^#? ?([a-z][a-z0-9-]+)( .*)?$} $line -> name]} { lappend sample $name }
}
set problems {}
foreach name [lsort $options] {
    if {$name ni $sample} { lappend problems "$name is not in redis.conf.sample" }
}
check "options" $problems

# Every page is in the index, docs/README.md.
proc under {pattern args} {
    set found {}
    foreach directory $args {
        foreach f [glob -nocomplain -directory $directory $pattern] { lappend found $f }
        foreach d [glob -nocomplain -types d -directory $directory *] {
            lappend found {*}[under $pattern $d]
        }
    }
    return $found
}
set index [read_file docs/README.md]
set problems {}
foreach page [lsort [concat [under *.md docs] [under *.html docs]]] {
    set page [string range $page 5 end]
    if {$page ne "README.md" && ![regexp "\\($page\[)#\]" $index]} {
        lappend problems "$page is not in docs/README.md"
    }
}
check "index" $problems

# Every message that docs/TROUBLESHOOTING.md quotes at the head of a row is said in the source. What
# differs there, a conversion of printf or the braces of Python, is an ellipsis on the page. The
# server puts codes of errors in front.
set source ""
foreach file [concat [under *.\[ch\] src modules] [under *.py utils/python]] {
    append source [read_file $file] \n
}
regsub -all {"\s+f?"} $source {} source
set source [string map {\\\" \"} $source]
set problems {}
set messages 0
foreach line [split [read_file docs/TROUBLESHOOTING.md] \n] {
    if {![regexp {^\| `([^`]* [^`]*)`} $line -> message]} continue
    incr messages
    regsub {^[A-Z]+ } $message {} message
    foreach part [split $message \u2026] {
        set part [string trim $part]
        if {[string length $part] > 3 && [string first $part $source] < 0} {
            lappend problems "nothing says \"$part\", which docs/TROUBLESHOOTING.md quotes"
        }
    }
}
if {$messages < 20} { lappend problems "docs/TROUBLESHOOTING.md was not understood" }
check "messages" $problems

# Figures that docs/OPERATIONS.md wants watched are figures of INFO, of this server or of a replica.
set problems {}
set info [cli INFO everything]
set watched [regexp -inline {## What to watch.*?\n## } [read_file docs/OPERATIONS.md]]
set names [regexp -all -inline -line {^\| (`[^|]*)\|} [lindex $watched 0]]
foreach {line cell} $names {
    foreach {quoted name} [regexp -all -inline {`([a-z_]+)`} $cell] {
        if {[string first $name $info$source] >= 0} continue
        lappend problems "INFO has no $name, which docs/OPERATIONS.md watches"
    }
}
if {[llength $names] < 20} { lappend problems "docs/OPERATIONS.md was not understood" }
check "figures" $problems
set problems {}
if {[catch {exec tools/figures-page.py --check} said]} { set problems [split $said \n] }
check "docs/FIGURES.md" $problems
set problems {}
if {[catch {exec tools/hybrid-page.py --check} said]} { set problems [split $said \n] }
check "docs/engines/HYBRID.md" $problems

# The calculator of docs/sizing.html against the examples of docs/SIZING.md.
if {[auto_execok node] eq ""} {
    puts "skip the calculator of docs/sizing.html: there is no node"
    incr skipped
} elseif {[catch {exec node tools/check-sizing.js 2>@1} said]} {
    check "sizing" [split $said \n]
} else {
    check "sizing" {}
}

stop
finish
