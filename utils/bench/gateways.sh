#!/bin/bash
# One gateway and eight, with one Conductor between them and without any: what share of the prompts
# is there when it comes to an engine. The same trace of chats each time, at a steady rate, through
# the routers of the gateways in turn; eight engines whose prefix caches are too small for all of
# it. The routers, the Conductor and its event streams are real; engines are caches that wait as
# long as a prompt would take (tests/python/gateway_many_test.py).
#
#     MANY_REQUESTS=2000 MANY_RATE=60 SEEDS='7 8 9'
. "$(dirname "$0")/lib.sh"
need python3 "$TARN"
export MANY_REQUESTS=${MANY_REQUESTS:-2000} MANY_RATE=${MANY_RATE:-60}
export TARN_SERVER=${TARN_SERVER:-$PWD/$TARN}
seeds=${SEEDS:-7 8 9}
[ -z "$QUICK" ] || { export MANY_REQUESTS=400; seeds=7; }

echo "### Hits of $MANY_REQUESTS requests, $MANY_RATE a second ($(machine))"
echo
echo "| seed | placed by | gateways | of the prompts was there | mean ms to the first token |"
echo "| --- | --- | --- | --- | --- |"
for seed in $seeds; do
    said=$(MANY_SEED=$seed python3 tests/python/run.py gateway_many_test) ||
        { say "$said"; exit 1; }
    awk -v seed="$seed" '$1 == "#" {
        sub(":", "", $2); printf "| %s | %s | %s | %s | %.0f |\n", seed, $2, $4, $6, $8
    }' <<<"$said"
done
