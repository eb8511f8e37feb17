# OBJECT: what the books know of a value.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 16mb

test {a key that is not there} {
    foreach what {encoding freq idletime refcount} {assert_equal (nil) [r object $what nokey]}
    assert_error "ERR wrong number of arguments for 'object|freq' command" {r object freq}
    assert_error "ERR wrong number of arguments for 'object|help' command" {r object help x}
    assert_error "ERR unknown subcommand 'x'. Try OBJECT HELP." {r object x nokey}
    assert_match "*IDLETIME key*seconds since*" [r object help]
}

# The last change must be over.
proc set_policy {policy} {
    wait_for "policy $policy" {![catch {r config set eviction-policy $::wanted_policy}]} \
        [set ::wanted_policy $policy]
}

test {FREQ: what the policy counts, and an error where it counts nothing} {
    r set a v
    foreach policy {lru fifo sieve} {
        set_policy $policy
        assert_error "ERR An LFU maxmemory policy is not selected, access frequency not\
            tracked*$policy*" {r object freq a}
        assert_equal (nil) [r object freq nokey]
    }
    set_policy s3fifo
    r set b v
    set before [r object freq b]
    assert_equal 0 $before
    r get b
    r get b
    assert_equal 2 [r object freq b]
    foreach what {encoding freq idletime refcount} {r object $what b}
    assert_equal 2 [r object freq b]
    for {set i 0} {$i < 10} {incr i} {r get b}
    assert_equal 3 [r object freq b]
    set_policy lfu
    r config set lfu-log-factor 0
    r set c v
    set before [r object freq c]
    for {set i 0} {$i < 20} {incr i} {r get c}
    assert_equal [expr {$before + 20}] [r object freq c]
    r set c [string repeat v 100000]
    for {set i 0} {$i < 300} {incr i} {r touch c}
    assert_equal 255 [r object freq c]
    set_policy lru
}

test {IDLETIME: seconds since the last access, with every policy} {
    r set a v
    r set b [string repeat v 100000]
    wait_for "a second" {[r object idletime a] >= 1 && [r object idletime b] >= 1}
    foreach policy {lru lfu sieve s3fifo fifo chain} {
        set_policy $policy
        assert {[r object idletime a] >= 1}
    }
    r get a
    r touch b
    assert_equal {0 0} [list [expr {[r object idletime a] / 2}] [expr {[r object idletime b] / 2}]]
    wait_for "two seconds" {[r object idletime a] >= 2}
    r exists a
    assert {[r object idletime a] >= 2}
}

test {REFCOUNT: the books, leases and holds} {
    r set a [string repeat v 100000]
    assert_equal 1 [r object refcount a]
    set other [client]
    set replicas [r getreplicas a lease 10000]
    assert_equal 2 [r object refcount a]
    $other getreplicas a lease 10000
    assert_equal 3 [r object refcount a]
    r release 1 a [lindex $replicas 0]
    assert_equal 2 [r object refcount a]
    r set small v
    assert_equal 1 [r object refcount small]
    drop $other
}

test {ENCODING: what Redis would say of the value} {
    foreach {value encoding} [list 0 int -12 int 9223372036854775807 int 9223372036854775808 \
        embstr 01 embstr " 1" embstr \
        "" embstr [string repeat x 44] embstr [string repeat x 45] raw [string repeat x 100000] \
        raw] {
        r set a $value
        assert_equal $encoding [r object encoding a] $value
    }
}

finish
