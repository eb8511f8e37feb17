#!/bin/bash
# The gateway of this pod, with the options that variables TARN_OPTIONS_... hold, words apart. What
# it is told is in a file, for passwords in arguments are seen by others.
. /etc/tarn/common.sh
set -f
scheme=redis query=
if with_tls; then
    # Servers have one certificate, for the name "tarn".
    scheme=rediss query="?ssl_ca_certs=$tls/ca.crt&ssl_certfile=$tls/tls.crt"
    query+="&ssl_keyfile=$tls/tls.key&ssl_check_hostname=no"
fi
login=gateway:$(cat $secret/gateway-password)
words=(--host 0.0.0.0 --conductor "$scheme://$login@tarn-server-0.$POD_NAMESPACE:6479$query")
words+=(--master pool)
for host in ${TARN_SENTINELS:-}; do words+=(--sentinel "$scheme://$host:26379$query"); done
for name in keys engine-key-file; do
    [ ! -e "/etc/tarn-gateway/$name" ] || words+=("--$name" "/etc/tarn-gateway/$name")
done
# shellcheck disable=SC2206 # words
for name in "${!TARN_OPTIONS_@}"; do words+=(${!name}); done
printf '%s\n' "${words[@]}" >/tmp/words
exec tarn-gateway @/tmp/words
