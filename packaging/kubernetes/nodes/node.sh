#!/bin/bash
# The node of this pod, with the options that variables TARN_OPTIONS_... hold, words apart.
. /etc/tarn/common.sh
set -f
url=$TARN_URL options=()
# shellcheck disable=SC2206 # words
for name in "${!TARN_OPTIONS_@}"; do options+=(${!name}); done
if with_tls; then
    url="${url/#tarn/tarns}?tls_ca_file=$tls/ca.crt&tls_cert_file=$tls/tls.crt"
    url+="&tls_key_file=$tls/tls.key&tls_server_name=tarn"
    options+=(--tls-data)
fi
# What a disk has is there again after a restart. The rest goes to others before it ends.
if [ -n "${TARN_SSD:-}" ]; then
    options+=(--ssd "/var/lib/tarn/ssd:$TARN_SSD,create")
else
    options+=(--drain-on-exit)
fi
exec tarn-node --master "$url" --user node --password-file $secret/node-password \
    --name "$NODE_NAME" --host-name "$NODE_NAME" --announce "$POD_IP" --data-port 7479 \
    --segment "$TARN_SEGMENT${TARN_SEGMENT_KIND:-}" \
    --loadmodule http.so port 9480 bind 0.0.0.0 "${options[@]}"
