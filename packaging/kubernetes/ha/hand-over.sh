#!/bin/bash
# Before a server stops: if it leads, another one does first. Writes wait meanwhile, and every
# replica has all before the Sentinels choose one, so nothing that was acknowledged is lost.
. /etc/tarn/common.sh
own() { REDISCLI_AUTH=$(cat $secret/admin-password) "${cli[@]}" -p 6479 "$@" | tr -d '\r'; }

[[ $(own ROLE) == master* ]] || exit 0
replicas=$(own INFO replication | grep -c '^slave[0-9]*:.*state=online') || exit 0
own CLIENT PAUSE 15000 WRITE >/dev/null
own WAIT "$replicas" 4000 >/dev/null
for host in $TARN_SENTINELS; do
    [ "$("${cli[@]}" -h "$host" -p 26379 SENTINEL FAILOVER pool 2>&1)" != OK ] || break
done
for ((i = 0; i < 100; i++)); do
    leader=$(named_by_sentinels)
    if [ -n "$leader" ] && [ "$leader" != "$POD_NAME.$POD_NAMESPACE" ]; then
        # Who waited is told where to write now. Sentinels would do it some seconds later.
        own REPLICAOF "$leader" 6479 >/dev/null
        exit 0
    fi
    sleep 0.1
done
own CLIENT UNPAUSE >/dev/null
echo 'hand-over: the Sentinels name no other master'
