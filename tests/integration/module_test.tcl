# Modules: loadmodule, MODULE, their commands, INFO modules, CONFIG REWRITE; tarn-node --loadmodule;
# libtarn looking for rdma. The module "toy" (tests/modules/toy.c) has a transport that serves by
# saying so, and commands.
source [file join [file dirname [info script]] harness.tcl]

set toy $modules/toy.so

# keys of the embedded segment, as SEGMENT INFO tells them
proc keys_of {segment} {return [dict get [r segment info $segment] keys]}
proc toy_listed {} {return [lsearch -inline -index 1 [r module list] toy]}
proc wait_keys {n} {
    set ::wanted_keys $n
    wait_for "$n keys" {[llength [keys_of 0]] == $::wanted_keys}
}

test {loadmodule on the command line: the module is listed, with its words} {
    start_server --loadmodule "$::toy hello 'two words'"
    assert_equal [list [list name toy ver 10203 path $::toy args [list hello "two words"]]] \
        [r module list]
    assert_equal [list hello "two words"] [r toy.words]
    assert_match "*module:name=toy,ver=10203,api=1,version=1.2.3,args=2,transports=1,commands=9*" \
        [r info modules]
    assert_equal 1 [info_field toy_domains]
    assert_equal 1 [info_field toy_listeners]
    assert_equal 1 [info_field toy_memories]
    assert_match "*\ntoy_odd_name:two  lines\r\n*" [r info]
    set hello [r hello 2]
    assert_equal [r module list] [dict get $hello modules]
    assert_match "*Module toy 1.2.3 is loaded from $::toy*" [file_text [server log]]
    assert_match "*the toy says hello*" [file_text [server log]]
}

test {commands of a module are commands} {
    assert_equal {said hi words 2} [r toy.echo hi]
    assert_equal {said hi words 2} [r TOY.Echo hi]
    assert_error "ERR wrong number of arguments for 'toy.echo' command" {r toy.echo}
    assert_error "ERR it is broken" {r toy.fail}
    assert_error "TOYBROKEN it is broken" {r toy.fail x}
    assert_error "ERR unknown command 'toy.nothing'*" {r toy.nothing}
    set info [lindex [r command info toy.echo] 0]
    assert_equal {toy.echo 2} [lrange $info 0 1]
    assert_equal {readonly module} [lindex $info 2]
    assert_equal {0 0 0} [lrange $info 3 5]
    assert_equal {readonly module admin noscript} [lindex [r command info toy.segments] 0 2]
    set docs [dict get [r command docs toy.echo] toy.echo]
    assert_equal {Says it again.} [dict get $docs summary]
    assert_equal module [dict get $docs group]
    assert_equal toy [dict get $docs module]
    assert_equal 9 [llength [r command list filterby module toy]]
    assert_equal {} [r command list filterby module other]
    assert {"toy.echo" in [r command list]}
    assert_equal [llength [r command]] [r command count]
    assert_match "*cmdstat_toy.echo:calls=2,*rejected_calls=1*" [r info commandstats]
    assert_match "*cmdstat_toy.fail:calls=2,*failed_calls=2*" [r info commandstats]
}

test {an answer that does not add up does not put the connection out of step} {
    assert_equal {1 (nil) (nil)} [r toy.short]
    assert_equal PONG [r ping]
    assert_equal 0 [r toy.long]
    assert_equal PONG [r ping]
    assert_error "ERR toy.mute gave no answer" {r toy.mute}
    assert_equal PONG [r ping]
    foreach command {short long mute} {
        assert_match "*Module toy: toy.$command gave an answer that does not add up*" \
            [file_text [server log]]
    }
}

test {the pool as a module sees it} {
    assert_equal {{toy://127.0.0.1:1 {read 0} {write 0}}} [keys_of 0]
    assert_equal [list "0 local 67108864 toy://127.0.0.1:1 read 0|write 0"] [r toy.segments]
    assert_equal [list "\"\" device name=toy0 state=up\n"] [r toy.reports]
}

test {MODULE LOAD and UNLOAD are not for everybody} {
    foreach command [list [list module load $::toy] [list module loadex $::toy] \
            [list module unload toy]] {
        assert_error "ERR MODULE command not allowed. If the enable-module-command option is set\
            to \"local\"*" {r {*}$command}
    }
    assert_error "ERR CONFIG SET failed*immutable*" {r config set enable-module-command yes}
    assert_equal {enable-module-command no} [r config get enable-module-command]
    assert_equal {} [r config get loadmodule]
    assert_match "*MODULE <subcommand>*LOADEX path*UNLOAD name*" [join [r module help] \n]
    stop_server
}

test {MODULE LOAD on a running server: its transport serves at once} {
    start_server --enable-module-command local
    assert_equal {} [r module list]
    assert_equal {} [keys_of 0]
    assert_error "ERR unknown command 'toy.echo'*" {r toy.echo hi}
    set commands [r command count]
    assert_equal OK [r module load $::toy a b]
    assert_equal {a b} [r toy.words]
    assert_equal [expr {$commands + 9}] [r command count]
    wait_keys 1
    assert_error "ERR Error loading the extension. Please check the server logs. (*a module named\
            toy is loaded already*" {
        r module load $::toy}
    assert_error "ERR Error loading the extension.*a module named toy*" \
        {r module load $::modules/twin.so}
}

test {MODULE UNLOAD takes everything back} {
    set other [client]
    $other toy.echo x
    assert_equal OK [r module unload toy]
    assert_equal {} [r module list]
    assert_equal {} [keys_of 0]
    assert_error "ERR unknown command 'toy.echo'*" {r toy.echo hi}
    assert_error "ERR Error unloading module: no such module with that name" {r module unload toy}
    assert_match "*cmd=NULL*" [r client list]
    assert_equal PONG [$other ping]
    assert {![string match *toy* [r info everything]]}
}

test {requests of a pipeline around LOAD and UNLOAD} {
    set c [r]
    for {set round 0} {$round < 20} {incr round} {
        foreach command [list {toy.echo a} [list module load $::toy] {toy.echo b} \
                {module unload toy} {toy.echo c} {ping}] {
            append bytes [resp::encode $command]
        }
    }
    resp::raw $c $bytes
    for {set round 0} {$round < 20} {incr round} {
        assert_match "*ERR unknown command*" [resp::recv $c]
        assert_equal OK [resp::recv $c]
        assert_equal {said b words 2} [resp::recv $c]
        assert_equal OK [resp::recv $c]
        assert_match "*ERR unknown command*" [resp::recv $c]
        assert_equal PONG [resp::recv $c]
    }
}

test {a transaction that was queued while the module was there} {
    r module load $::toy
    r multi
    foreach command [list {toy.echo a} {module unload toy} {toy.echo b} [list module load $::toy] \
            {toy.echo c}] {
        assert_equal QUEUED [r {*}$command]
    }
    set answers [r exec]
    assert_equal {{said a words 2} OK} [lrange $answers 0 1]
    assert_match "*ERR unknown command 'toy.echo'*" [lindex $answers 2]
    assert_equal {OK {said c words 2}} [lrange $answers 3 4]
    assert_equal {said d words 2} [r toy.echo d]
    r module unload toy
}

test {a module that is busy stays as it was} {
    r module load $::toy hold
    wait_keys 1
    assert_error "ERR Error unloading module: the toy is in use: 0 domains, held" \
        {r module unload toy}
    assert_equal hold [r toy.words]
    wait_keys 1
    assert_equal 1 [r toy.letgo]
    assert_equal OK [r module unload toy]
    assert_equal {} [keys_of 0]
}

test {MODULE LOADEX} {
    assert_equal OK [r module loadex $::toy ARGS x y]
    assert_equal {x y} [r toy.words]
    r module unload toy
    assert_equal OK [r module loadex $::toy]
    r module unload toy
    assert_error "ERR Error loading the extension.*CONFIG*ARGS*" {r module loadex $::toy CONFIG a b}
    assert_error "ERR Error loading the extension.*ARGS is missing*" {r module loadex $::toy x}
}

test {what cannot be loaded is said, and leaves nothing} {
    set dir [temp_dir]
    set f [open $dir/text.so w]
    puts $f "this is no module"
    close $f
    set f [open $::toy rb]
    set bytes [read $f 9000]
    close $f
    set f [open $dir/short.so wb]
    puts -nonewline $f $bytes
    close $f
    foreach {file text} [list $dir/none.so "*none.so: No such file or directory*" $dir/text.so \
        "*is no shared object*" \
        $dir/short.so "*short.so was cut off*" $dir "*is no regular file*" $::modules/nosymbol.so \
        "*does not show tarn_module_v1*" \
        $::modules/wrongversion.so "*version 7 of the module interface, this program wants version\
        1*" \
        $::modules/wrongabi.so "*version 99 of the transport interface*" $::modules/undefined.so \
        "*nobody_has_this*"] {
        assert_error "ERR Error loading the extension. Please check the server logs. ($text)" \
            {r module load $file}
        assert_match $text [file_text [server log]]
    }
    assert_error "*the word \"fail\" makes it fail*" {r module load $::toy fail}
    assert_equal {} [r module list]
    assert_error "ERR unknown command*" {r toy.words}
    assert_equal {} [keys_of 0]
    assert_error "*too many words*" {r module load $::toy {*}[lrepeat 65 x]}
    assert_error "*has a NUL*" {r module load $::toy "a\0b"}
    assert_equal OK [r module load $::toy {*}[lrepeat 64 x]]
    stop_server
}

# A server that is started with this file in front of its options.
proc server_with_file {file args} {
    set ::config_file $file
    rename server_command plain_command
    proc server_command {dir options} {
        return [linsert [plain_command $dir $options] 1 $::config_file]
    }
    set failed [catch {start_server {*}$args} message options]
    rename server_command {}
    rename plain_command server_command
    return -options $options $message
}

test {loadmodule in a file; CONFIG REWRITE writes what is loaded} {
    set file [file join [temp_dir] tarn.conf]
    set f [open $file w]
    puts $f "# modules\nloadmodule $::toy from \"the file\"\nloadmodule\
        $::modules/newer.so\nmax-lease 9000"
    close $f
    server_with_file $file --enable-module-command yes
    assert_equal {from {the file}} [r toy.words]
    assert_equal {toy newer} [lmap m [r module list] {dict get $m name}]
    assert_equal OK [r config rewrite]
    assert_equal "# modules\nloadmodule $::toy from \"the file\"\nloadmodule\
        $::modules/newer.so\nmax-lease 9000" \
        [string range [file_text $file] 0 \
        [expr {[string first "max-lease 9000" [file_text $file]] + 13}]]
    r module unload toy
    r module load $::toy {other words} x#y
    r module unload newer
    r config rewrite
    stop_server
    set text [file_text $file]
    assert_equal 1 [regexp -all {loadmodule} $text]
    assert_match "# modules\nmax-lease 9000\n*loadmodule $::toy \"other words\" \"x#y\"\n*" $text
    # what the file and the command line both say is loaded once
    server_with_file $file --loadmodule "$::toy 'other words' x#y"
    assert_equal {{other words} x#y} [r toy.words]
    r config rewrite
    assert_equal 1 [regexp -all {loadmodule} [file_text $file]]
    stop_server
}

test {a server that cannot load a module does not start} {
    assert_error "*none.so: No such file or directory*Can't load module from /tmp/none.so: server\
            aborting*" {
        start_server --loadmodule /tmp/none.so}
    assert_error "*the word \"fail\" makes it fail*server aborting*" \
        {start_server --loadmodule "$::toy fail"}
    assert_error "*wants version 1*server aborting*" \
        {start_server --loadmodule $::modules/wrongversion.so}
    assert_error "*loadmodule must name a file*" {start_server --loadmodule {}}
    assert_error "*loadmodule has unbalanced quotes*" {start_server --loadmodule "x.so \"y"}
}

test {a path of loadmodule counts from where the program was started, a bare name is one of the\
        installed} {
    set place [temp_dir]
    file mkdir $place/mods $place/conf
    file copy $::toy $place/mods/toy.so
    set before [pwd]
    cd $place
    start_server --loadmodule "mods/toy.so a"
    assert_equal $place/mods/toy.so [dict get [lindex [r module list] 0] path]
    stop_server
    set f [open $place/conf/tarn.conf w]
    puts $f "loadmodule mods/toy.so from file"
    close $f
    server_with_file $place/conf/tarn.conf --loadmodule "$place/mods/toy.so from file"
    assert_equal {from file} [r toy.words] "named twice, it is loaded once"
    start_node n1 --loadmodule=mods/toy.so
    stop_node n1
    stop_server
    cd $before
    set ::env(TARN_MODULE_PATH) /nowhere:$place/mods
    start_server --enable-module-command yes --loadmodule toy.so
    assert_equal $place/mods/toy.so [dict get [lindex [r module list] 0] path]
    assert_equal OK [r module unload toy]
    assert_equal OK [r module load toy.so]
    start_node n1 --loadmodule=toy.so
    stop_node n1
    stop_server
    unset ::env(TARN_MODULE_PATH)
    # without a word of the environment: beside the program, whatever lies about where it was
    # started
    close [open $place/rdma.so w]
    file copy $::toy $place/own.so
    cd $place
    start_server --loadmodule own.so
    stop_server
    start_server --loadmodule rdma.so
    cd $before
    assert_equal rdma [dict get [lindex [r module list] 0] name]
    stop_server
    assert_error "*none.so: No such file or directory*Can't load module from none.so*" \
        {start_server --loadmodule none.so}
}

test {tarn-node --loadmodule: the node's segments and reports are the module's, too} {
    start_server --loadmodule $::toy
    start_node n1 "--loadmodule=$::toy a 'b c'"
    wait_for "the node's key" {[llength [r toy.segments]] == 2}
    assert_match "1 * toy://127.0.0.1:1 read 1|write 1" [lindex [r toy.segments] 1]
    wait_for "the node's report" {[llength [r toy.reports]] == 2}
    assert_equal [list "\"\" device name=toy0 state=up\n" "\"n1\" device name=toy0 state=up\n"] \
        [r toy.reports]
    stop_node n1
    assert_equal 1 [llength [r toy.segments]]
    assert_error "*status 1*tarn-node: --loadmodule /none.so: No such file or directory*" \
        {start_node n2 --loadmodule=/none.so}
    stop_server
}

test {libtarn looks for rdma where it is told to, and says where that was} {
    start_server
    set ::env(TARN_MODULE_PATH) /nowhere:$::modules
    set answer [kv_exec [kv_arguments {--transport rdma put a 10}]]
    assert_equal 1 [lindex $answer 0]
    assert_match "*transport=rdma*/nowhere/rdma.so: No such file*$::modules/rdma.so: it brings no\
        rdma transport*" [lindex $answer 2]
    assert_equal 0 [lindex [kv_exec [kv_arguments {--transport auto put a 10}]] 0]
    unset ::env(TARN_MODULE_PATH)
    stop_server
}

finish
