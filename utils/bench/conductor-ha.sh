#!/bin/bash
# The Conductor when its master is killed (kill -9) under 3 Sentinels: from the kill to the first
# decision of the new one, while a gateway asks 500 times a second and engines publish events. That
# nothing is lost is checked meanwhile (tests/python/conductor_failover_test.py).
#
#     CONDUCTOR_KILLS=12 CONDUCTOR_REQUESTS=16000 CONDUCTOR_RATE=500
. "$(dirname "$0")/lib.sh"
need redis-sentinel python3
export CONDUCTOR_KILLS=${CONDUCTOR_KILLS:-12} CONDUCTOR_REQUESTS=${CONDUCTOR_REQUESTS:-16000}
export CONDUCTOR_DOWN_AFTER=1000 CONDUCTOR_RATE=${CONDUCTOR_RATE:-500}
export TARN_SERVER=${TARN_SERVER:-$PWD/$TARN}
[ -z "$QUICK" ] || export CONDUCTOR_KILLS=2 CONDUCTOR_REQUESTS=1600

echo "### From kill -9 to the first decision ($(machine))"
echo
said=$(python3 tests/python/run.py conductor_failover_test) || { say "$said"; exit 1; }
echo "| kills | until | median ms | longest ms |"
echo "| --- | --- | --- | --- |"
row() { # PREFIX TEXT
    awk -v what="$1:" -v text="$2" \
        '$2 == what { printf "| %s | %s | %s | %s |\n", $4, text, $6, $8 }' <<<"$said"
}
row sentinel "Sentinel tells a replica to lead"
row leads "the gateway has found it"
row first-decision "the first decision"
echo
sed -n 's/^# requests: //p' <<<"$said"
