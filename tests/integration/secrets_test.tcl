# Passwords and keys of memory show nowhere but to whom they are sent. (The report of a crash asks
# the same function, table_secrets.)
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 0 --slowlog-log-slower-than 0 --slowlog-max-len 1000 \
    --enable-module-command yes --enable-debug-command yes

# What another connection sees of it, and the slow log. S is the secret; the rest of the request
# must be seen.
proc seen_of {c requests} {
    set m [client]
    assert_equal OK [$m monitor]
    $c slowlog reset
    foreach request $requests {catch {$c {*}$request}}
    catch {$c echo the-end}
    set lines {}
    while {![string match "*the-end*" [set line [resp::recv $m]]]} {append lines $line\n}
    drop $m
    return "$lines[r slowlog get -1]"
}
proc seen {args} {
    set c [client]
    set all [seen_of $c $args]
    drop $c
    return $all
}

set secret S3cr3t-S3cr3t
foreach request {
    {auth S}
    {auth user S}
    {AUTH S S S}
    {hello 3 auth user S}
    {hello 9 auth user S}
    {hello 3 auth S}
    {hello 3 AUTH user S setname x}
    {hello 3 setname auth auth user S}
    {hello nonsense auth user S}
    {hello auth user S}
    {hello 3 atuh user S}
    {hello 3 S}
    {hello S}
    {config set requirepass S nonsense 1}
    {config set maxclients -1 masterauth S}
    {config set masterauth S maxclients}
    {config set requirepas S}
    {config set tls-key-file-pass S tls-client-key-file-pass S maxclients -1}
    {acl setuser u >S nonsense}
    {acl setuser u #S}
    {acl setuser u on <S}
    {acl dryrun default auth S}
    {acl dryrun default hello 3 auth u S}
    {acl dryrun default config set requirepass S}
    {acl dryrun default acl setuser u >S}
    {acl dryrun default nonsense S}
    {acl dryrun default acl setusr u >S}
    {acl dryrun default command getkeys auth S}
    {command getkeys auth S}
    {command getkeys hello 3 auth u S}
    {command getkeys acl setuser u >S}
    {command getkeysandflags config set requirepass S}
    {command getkeysandflags nonsense S}
    {command getkeys command getkeys auth S}
    {command getkeys command getkeys command getkeys command getkeys command getkeys command\
        getkeys command getkeys command getkeys command getkeys command getkeys command getkeys\
        command getkeys command getkeys command getkeys command getkeys command getkeys command\
        getkeys auth S}
    {module load /nowhere S}
    {module loadex /nowhere config x S args S}
    {segment keys n 1 0 1 rdma://h S S}
    {segment mount n 1 s TIER memory SIZE 4096 CONTENT 1 KEYS 1 rdma://h S S}
} {
    test "guarantee 6: nobody sees the secret of: $request" {
        set asked [lmap word $request {regsub {^([><#]?)S$} $word "\\1$secret"}]
        foreach way {plain multi} {
            set all [expr {$way eq "plain" ? [seen $asked] : [seen multi $asked exec]}]
            assert {![string match *$secret* $all]} "$way: $all"
        }
        # It was looked for where it would have been.
        if {[lindex $request 0] in {auth command acl}} {assert_match "*(redacted)*" [seen $asked]}
    }
}

test {what is no secret is shown} {
    set all [seen {set key value} {command getkeys set seen-key v} {hello 3 setname somebody} \
        {config set maxclients 5000} \
                 {acl dryrun default get dry-key} {acl whoami}]
    foreach word {key value seen-key somebody dry-key 5000} {assert_match *$word* $all}
    assert {![string match *redacted* $all]} $all
}

test {guarantee 6: inline requests, and more arguments than a word has bits} {
    set m [client]
    assert_equal OK [$m monitor]
    set c [client]
    r slowlog reset
    resp::raw $c "AUTH $secret\r\nHELLO 3 AUTH u '$secret'\r\nCOMMAND GETKEYS AUTH $secret\r\nECHO\
        the-end\r\n"
    set lines ""
    while {![string match "*the-end*" [set line [resp::recv $m]]]} {append lines $line\n}
    assert {![string match *$secret* $lines[r slowlog get -1]]} $lines
    drop $m
    drop $c
    set pairs {}
    for {set i 0} {$i < 50} {incr i} {lappend pairs maxclients 100}
    assert {![string match *$secret* [seen [list config set {*}$pairs masterauth $secret]]]}
}

stop_server

start_server --pool-size 0 --slowlog-log-slower-than 0 "--rename-command AUTH" login
test {guarantee 6: under another name, and under its own that is none any more} {
    set all [seen "login $secret" "login u $secret" "command getkeys login $secret" \
        "command getkeys auth $secret" \
                 "command getkeys hello 3 auth u $secret" "acl dryrun default login $secret" \
                 "auth $secret" "hello 3 auth u $secret"]
    assert {![string match *$secret* $all]} $all
    assert_match *login*redacted* $all
}

finish
