# What a reader reports as bad is looked at, and removed only if it is.
source [file join [file dirname [info script]] harness.tcl]
start_server --pool-size 64mb

# An object of n zero bytes (fresh pool memory) under this CRC.
proc put_zeroes {key n crc} {
    set token [lindex [r putstart $key $n] 0]
    assert_equal OK [r putend $key $token $crc]
    return $token
}

test {guarantee 1: an object whose bytes do not match its CRC is removed when a reader reports it} {
    set version [put_zeroes bad 3000000 12345]
    assert_equal 0 [r replica report bad [expr {$version + 1}]]
    assert_equal 1 [r exists bad]
    assert_equal 1 [r replica report bad $version]
    assert_equal 0 [r exists bad]
    assert_equal 0 [r replica report bad $version]
    assert_equal 1 [info_field replicas_bad]
    assert_equal 0 [info_field holds]
}

test {a wrong report removes nothing} {
    set value [string repeat x 100000]
    r set good $value
    set version [lindex [r getreplicas good] 0]
    assert_equal 0 [r replica report good $version]
    assert_equal $value [r get good]
    set version [put_zeroes unchecked 5000 -1]
    assert_equal 0 [r replica report unchecked $version]
    r set tiny 1
    assert_equal 0 [r replica report tiny [lindex [r getreplicas tiny] 0]]
    assert_error "ERR version *" {r replica report good x}
    assert_error "ERR key *" {r replica report "" 1}
    assert_equal 3 [r dbsize]
}
finish
