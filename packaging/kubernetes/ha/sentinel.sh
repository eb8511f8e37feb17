#!/bin/bash
# The Sentinel of this pod. Its id is made of the pod's name: with a new id a Sentinel that was
# started anew would count twice, and one vote more be wanted at each failover.
. /etc/tarn/common.sh
file=$state/sentinel.conf

# The server that says itself that it leads, in the highest epoch.
leads() {
    local i host info epoch best=-1 found=
    for i in 0 1 2; do
        host=tarn-server-$i.$POD_NAMESPACE
        info=$(REDISCLI_AUTH=$(cat $secret/sentinel-password) "${cli[@]}" --user sentinel \
            -h "$host" -p 6479 INFO replication 2>/dev/null | tr -d '\r') || continue
        epoch=$(sed -n 's/^master_epoch://p' <<<"$info")
        [[ $info = *role:master* ]] && [ "${epoch:-0}" -gt $best ] || continue
        best=$epoch found=$host
    done
    echo "${found:-tarn-server-0.$POD_NAMESPACE}"
}

# After a restart of the container alone its own file knows best.
if [ ! -e $file ]; then
    master=$(named_by_sentinels)
    [ -n "$master" ] || master=$(leads)
    {
        if with_tls; then
            echo "port 0
tls-port 26379
tls-replication yes
tls-cert-file $tls/tls.crt
tls-key-file $tls/tls.key
tls-ca-cert-file $tls/ca.crt"
        else
            echo 'port 26379'
        fi
        echo "dir $state
protected-mode no
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $POD_IP
sentinel myid $(printf %s "$POD_NAME.$POD_NAMESPACE" | sha1sum | cut -c1-40)
sentinel monitor pool $master 6479 2
sentinel auth-user pool sentinel
sentinel auth-pass pool $(cat $secret/sentinel-password)
sentinel down-after-milliseconds pool 4000
sentinel failover-timeout pool 6000
sentinel parallel-syncs pool 1"
    } >$file.new
    mv $file.new $file
fi
exec redis-sentinel $file
