# perf PROGRAM SIZE COUNT: what ib_read_bw or ib_write_bw measures over the wire, in MiB/s, into
# /tmp/perf-rate. On a busy host they now and then fail by themselves, so there are three tries.
perf() {
    for perf_try in 1 2 3; do
        perf_once "$@" && return 0
        echo "$1 failed"
        stop perf-server KILL
    done
    fail "$1 fails"
}
perf_once() {
    # ib_write_bw knows no completion events.
    perf_options="-x 1 -s $2 -n $3 -F"
    [ $1 = ib_write_bw ] || perf_options="$perf_options -e"
    start perf-server $1 -d rxe0 $perf_options
    wait_for 5 "$1 to listen" listens 18515
    timeout 60 $1 -d rxe1 $perf_options $address0 >/tmp/perf-output || return 1
    awk -v size=$2 '$1 == size { print $4 }' /tmp/perf-output >/tmp/perf-rate
    [ -s /tmp/perf-rate ] || return 1
    wait_for 10 "the end of $1" is_gone perf-server
}
