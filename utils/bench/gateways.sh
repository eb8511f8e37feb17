#!/bin/bash
# One gateway and eight, with one Conductor between them and without any: what share of the prompts
# is there when it comes to an engine. The same trace of chats each time, through the routers of the
# gateways in turn: one request after the other, so that no clock decides, and at a steady rate.
# Eight engines whose prefix caches are too small for all of it. The routers, the Conductor and its
# event streams are real; engines are caches that wait as long as a prompt would take
# (tests/python/gateway_many_test.py).
#
#     MANY_REQUESTS=2000 RATES='0 60' SEEDS='7 8 9'
. "$(dirname "$0")/lib.sh"
need python3 "$TARN"
export MANY_REQUESTS=${MANY_REQUESTS:-2000}
export TARN_SERVER=${TARN_SERVER:-$PWD/$TARN}
rates=${RATES:-0 60} seeds=${SEEDS:-7 8 9}
[ -z "$QUICK" ] || { export MANY_REQUESTS=400; seeds=7; }

echo "### Hits of $MANY_REQUESTS requests ($(machine))"
echo
echo "| a second | seed | placed by | gateways | of prompts was there | mean ms to first token |"
echo "| --- | --- | --- | --- | --- | --- |"
for rate in $rates; do
    for seed in $seeds; do
        said=$(MANY_RATE=$rate MANY_SEED=$seed \
            python3 tests/python/run.py gateway_many_test) || { say "$said"; exit 1; }
        awk -v rate="$rate" -v seed="$seed" '$1 == "#" {
            sub(":", "", $2)
            ms = ""; how = "in turn"
            if (rate > 0) { ms = sprintf("%.0f", $8); how = rate }
            printf "| %s | %s | %s | %s | %s | %s |\n", how, seed, $2, $4, $6, ms
        }' <<<"$said"
    done
done
