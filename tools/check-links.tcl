# Relative links of all Markdown files lead to a file, and where they name a heading, to a heading.
# Run by `make lint` from the repository's root.

# The anchor that GitHub makes of a heading.
proc anchor {heading} {
    set a [string tolower [string trim $heading]]
    regsub -all {`} $a {} a
    regsub -all {\[([^\]]*)\]\([^)]*\)} $a {\1} a
    regsub -all {[^\w\- ]} $a {} a
    return [string map {{ } -} $a]
}

proc read_file {path} {
    set f [open $path]
    fconfigure $f -encoding utf-8
    set text [read $f]
    close $f
    return $text
}

proc without_code {text} {
    regsub -all -line {^```[^`]*?^```} $text {} text
    set out {}
    set code 0
    foreach line [split $text \n] {
        if {[regexp {^\s*```} $line]} { set code [expr {!$code}]; lappend out {}; continue }
        lappend out [expr {$code ? "" : $line}]
    }
    return [join $out \n]
}

proc anchors {path} {
    set found {}
    foreach line [split [without_code [read_file $path]] \n] {
        if {[regexp {^#+\s+(.*)$} $line -> heading]} { lappend found [anchor $heading] }
        foreach {- id} [regexp -all -inline {<a (?:id|name)="([^"]+)"} $line] { lappend found $id }
    }
    return $found
}

set errors 0
foreach path [split [exec find . ( -path ./build -o -path ./.git -o -path ./tests/tmp ) -prune -o -name *.md -print] \n] {
    if {![file exists $path]} continue
    set number 0
    foreach line [split [without_code [read_file $path]] \n] {
        incr number
        set links {}
        foreach {- target} [regexp -all -inline {\]\(([^)\s]+)[^)]*\)} $line] { lappend links $target }
        foreach {- target} [regexp -all -inline {(?:src|href)="([^"]+)"} $line] { lappend links $target }
        foreach target $links {
            if {[regexp {^[a-z]+:} $target]} continue
            lassign [split $target #] file fragment
            set to [expr {$file eq "" ? $path : [file join [file dirname $path] $file]}]
            if {![file exists $to]} {
                puts "$path:$number: $target does not exist"
                incr errors
            } elseif {$fragment ne "" && [file extension $to] eq ".md" && $fragment ni [anchors $to]} {
                puts "$path:$number: no heading #$fragment in $to"
                incr errors
            }
        }
    }
}
exit [expr {$errors > 0}]
