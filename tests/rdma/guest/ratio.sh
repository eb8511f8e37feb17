# How fast, beside ib_read_bw and ib_write_bw in the same boot. Printed, no pass or fail: the
# emulated processor is noisy.
. ./perf.sh

# both SIZE COUNT OUTSTANDING: three rounds in turn, medians, rows for docs/BENCHMARKS.md. 64 MiB by
# each of them in a round.
both() {
    rm -f /tmp/rates-*
    for round in 1 2 3; do
        for kind in read write; do
            perf ib_${kind}_bw $1 $2
            cat /tmp/perf-rate >>/tmp/rates-theirs-$kind
        done
        timeout 60 /tarn/tests/rdma/rate /tarn/modules/rdma.so $1 $3 0.8 \
            "bind $address0 device rxe0" "device rxe1" >/tmp/rate
        for kind in read write; do
            awk -v kind=$kind '$1 == kind { print $2 }' /tmp/rate >>/tmp/rates-ours-$kind
        done
    done
    for kind in read write; do
        equal "rounds" "3 3" "$(wc -l </tmp/rates-ours-$kind) $(wc -l </tmp/rates-theirs-$kind)"
        ours=$(sort -n /tmp/rates-ours-$kind | sed -n 2p)
        theirs=$(sort -n /tmp/rates-theirs-$kind | sed -n 2p)
        ratio=$(awk -v a=$ours -v b=$theirs 'BEGIN { printf "%.2fx", a / b }')
        say "| ib_${kind}_bw, $(($1 / 1024)) KiB | $ours MiB/s | $theirs MiB/s | $ratio |"
    done
}

echo "# | what | tarn | the peer | ratio |"
t ratio-64k both 65536 1000 64
t ratio-1m both 1048576 64 16
