# What the scripts of the pods share.
set -euo pipefail
umask 077
state=/var/lib/tarn
secret=/etc/tarn-secret
tls=/etc/tarn-tls
with_tls() { [ -e /etc/tarn/30-tls.conf ]; }
cli=(timeout 5 redis-cli --no-auth-warning)
! with_tls || cli+=(--tls --cacert $tls/ca.crt --cert $tls/tls.crt --key $tls/tls.key)

# Whom the first Sentinel that answers names; nothing: none does.
named_by_sentinels() {
    local host answer
    for host in $TARN_SENTINELS; do
        answer=$("${cli[@]}" -h "$host" -p 26379 SENTINEL GET-MASTER-ADDR-BY-NAME pool \
            2>/dev/null | head -n 1) || continue
        [[ $answer != *.* ]] || { echo "$answer"; return; }
    done
}
