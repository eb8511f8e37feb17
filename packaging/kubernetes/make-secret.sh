#!/bin/bash
# Prints Secrets, with passwords that are new each time: tarn-users, which has the users of ACL.md
# with few rights, and default, the administrator; and tarn-engine, the password for engines.
#
#   packaging/kubernetes/make-secret.sh [NAMESPACE] | kubectl apply -f -
set -euo pipefail
declare -A rights=(
    [default]='~* &* +@all'
    [engine]='~* &* -@all +@read +@write +@connection -@admin -@dangerous +info +role +kvevents
        +cluster|map +@direct'
    [node]='~* resetchannels -@all +ping +info +role +cluster|map +client|near +client|setinfo
        +client|setname +node|join +node|up +node|heartbeat +node|fenced +node|done +node|evicted
        +node|offer +node|drain +node|leave +segment|mount +segment|drain +segment|unmount
        +segment|keys +segment|info +segment|attach +getreplicas +mgetreplicas +release
        +replica|report'
    # Not @conductor, which is unknown where the module is not loaded; of keys it has none.
    [gateway]='resetchannels -@all +@read +@write -@admin -@dangerous +info'
    [replica]='resetchannels -@all +psync +replconf +ping +failover +cluster|announce +cluster|map'
    [sentinel]='allchannels -@all +multi +slaveof +ping +exec +subscribe +config|rewrite +role
        +publish +info +client|setname +client|kill +script|kill'
)
declare -A password
for user in "${!rights[@]}"; do
    password[$user]=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
done

cat <<END
apiVersion: v1
kind: Secret
metadata:
  name: tarn-users
  namespace: ${1:-tarn}
stringData:
  users.acl: |
END
for user in "${!rights[@]}"; do
    hash=$(printf %s "${password[$user]}" | sha256sum | cut -d' ' -f1)
    # shellcheck disable=SC2086,SC2116 # one line of them
    set -f
    echo "    user $user on #$hash "${rights[$user]}
done
for user in "${!rights[@]}"; do
    name=$user
    [ "$user" != default ] || name=admin
    echo "  $name-password: \"${password[$user]}\""
done
cat <<END
---
apiVersion: v1
kind: Secret
metadata:
  name: tarn-engine
  namespace: ${1:-tarn}
stringData:
  password: "${password[engine]}"
END
