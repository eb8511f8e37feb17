#!/bin/bash
# The server of this pod. Its own file has the role, which Sentinel changes; what the Sentinels say
# at the start counts more. TARN_SENTINELS: HOST HOST ...; none: this server leads.
. /etc/tarn/common.sh
file=$state/tarn.conf
me=$POD_NAME.$POD_NAMESPACE

master=$me
if [ -n "${TARN_SENTINELS:-}" ]; then
    master=$(named_by_sentinels)
    if [ -z "$master" ] && [ -e $file ]; then
        master=$(awk -v me="$me" '$1 == "replicaof" { me = $2 } END { print me }' $file)
    fi
fi
[ -n "$master" ] || master=${POD_NAME%-*}-0.$POD_NAMESPACE
{
    echo 'include /etc/tarn/*.conf'
    echo "replica-announce-ip $me"
    echo "masterauth $(cat $secret/replica-password)"
    [ "$master" = "$me" ] || echo "replicaof $master 6479"
} >$file.new
mv $file.new $file
exec tarn-server $file
