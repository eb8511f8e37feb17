# A server with modules/http.so, and requests to it.
proc http_start {args} {
    start_server --loadmodule "http.so port 0 $args"
    set ::http_port [info_field http_port]
}

# A file for token-file.
proc token_write {name mode} {
    set file [temp_dir]/$name
    set f [open $file w]
    puts $f "0123456789abcdef-token"
    close $f
    file attributes $file -permissions $mode
    return $file
}

proc http_open {} {
    set s [socket 127.0.0.1 $::http_port]
    fconfigure $s -translation binary -buffering none
    return $s
}

# The whole answer to these bytes, until the server closes.
proc http_raw {bytes} {
    set s [http_open]
    puts -nonewline $s $bytes
    set got [read $s]
    close $s
    return $got
}

proc http_get {path args} {
    set lines [join [list {*}$args "Connection: close"] "\r\n"]
    return [http_raw "GET $path HTTP/1.1\r\nHost: x\r\n$lines\r\n\r\n"]
}
proc http_status {answer} {return [lindex $answer 1]}
proc http_body {answer} {
    return [string range $answer [expr {[string first "\r\n\r\n" $answer] + 4}] end]
}

# What Python makes of an answer in JSON, bound to `a`: the expression's value.
proc http_json {path expression} {
    set answer [http_get $path]
    assert_equal 200 [http_status $answer]
    set script "import json, sys; a = json.load(sys.stdin.buffer)\nprint($expression)"
    return [exec /usr/bin/python3 -c $script << [http_body $answer]]
}
