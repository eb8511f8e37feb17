# Writers that do not come to an end: what becomes of their keys, their space and their connections.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 8mb --put-release-timeout 300 --eviction-high-watermark 1
set size [expr {8 * 1048576 - 4096}]

test {guarantee 3: a writer that went away holds its space until its session is fenced, which is\
        soon} {
    set c [client]
    r config set put-timeout 3000
    set token [lindex [$c putstart gone $size] 0]
    r config set put-timeout 30000
    assert_error "PUTBUSY *" {r putstart gone 100}
    assert_error "NOSPACE *" {r putstart other $size}
    drop $c
    wait_for "its key" {![catch {r putstart gone 100} reply]}
    r putrevoke gone [lindex $reply 0]
    wait_for "its space" {![catch {r putstart other $size} reply]}
    assert_equal OK [r putrevoke other [lindex $reply 0]]
    assert_error "BADTOKEN *" {r putend gone $token -1}
    assert {[info_field fences] >= 1}
}

test {guarantee 3: a live writer is cut off after put-release-timeout, with its connection} {
    set c [client]
    r config set put-timeout 100
    $c putstart slow $size
    r config set put-timeout 30000
    wait_for "the end of its connection" {[catch {$c ping}]}
    drop $c
    wait_for "its space" {![catch {r putstart other $size} reply]}
    assert_equal OK [r putrevoke other [lindex $reply 0]]
    assert_equal 0 [info_field puts_zombie]
}

test {guarantee 3: a writer that gives up late gets its space back to the pool at once} {
    r config set put-release-timeout 600000
    set c [client]
    r config set put-timeout 100
    set token [lindex [$c putstart late $size] 0]
    r config set put-timeout 30000
    wait_for "its time-out" {[info_field puts_zombie] == 1}
    assert_error "NOSPACE *" {r putstart other $size}
    assert_error "BADTOKEN *" {$c putrevoke late $token}
    assert_equal 0 [info_field puts_zombie]
    assert_equal OK [r putrevoke other [lindex [r putstart other $size] 0]]
    assert_equal PONG [$c ping]
}

finish
