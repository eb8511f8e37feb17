#!/bin/bash
# Adds a storage node to a running pool and waits until it carries load. Nothing else needs a
# restart or a new setting.
#
#   utils/scale-out.sh [-h HOST] [-p PORT] [-a PASSWORD] [--user NAME]
#                      --name NAME [OPTION]... -- TARN-NODE-OPTION...
#
#   -h HOST, -p PORT    of the master (127.0.0.1, 6479)
#   --tls               the port speaks TLS; --cacert FILE, --cert FILE, --key FILE, --sni NAME
#                       and --insecure work as in redis-cli, and a node on this machine gets them
#                       too: it expects certificates for the name that it connects to, or for NAME,
#                       unless --tls-verify-name no. With --start {url} is tarns://HOST:PORT
#                       without files
#   --name NAME         of the node, new in the pool
#   --start COMMAND     starts the node and returns. {name} and {url} in it are replaced. Without
#                       it, tarn-node runs here, in the background, with the options after --
#                       --start 'ssh m7 systemd-run --unit tarn-{name} tarn-node --master {url}
#                       --name {name} --segment 64gb'
#   --node PATH         the tarn-node to start (the one in PATH, or beside this script)
#   --log FILE          its output (a new file under TMPDIR, whose name is printed)
#   --load N            waits until it holds that many replicas (1); 0: until it is up
#   --timeout SECONDS   for each of the two waits (60)
#
# It prints the node's segments, and its process id if it was started here. New objects go to it as
# to all others: by placement-strategy, weighted by capacity. Existing objects are not moved: a
# cache fills by itself.
#
# Exit status: 0 it is up and carries load, 1 it did not start or was not up in time, 2 bad command
# line, 3 the name is taken or the master does not answer, 4 it is up, but nothing was put on it in
# time.
# Needs redis-cli. The password may be in REDISCLI_AUTH; the node gets it in TARN_PASSWORD.
set -uo pipefail
export LC_ALL=C
. "$(dirname "$0")/progress.sh"

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
misuse() { echo "scale-out: $* (--help)" >&2; exit 2; }

cli=(timeout 10 redis-cli --no-auth-warning) host=127.0.0.1 port=6479 user= name= start= binary= \
    log= load=1 timeout=60 tls= url_options=
password=${REDISCLI_AUTH:-}

encode() { # TEXT as it stands in a URL
    local i c out=
    for ((i = 0; i < ${#1}; i++)); do
        c=${1:i:1}
        [[ $c == [A-Za-z0-9._/-] ]] || printf -v c '%%%02X' $(($(printf '%d' "'$c") & 255))
        out+=$c
    done
    echo "$out"
}
url_option() { url_options+=${url_options:+&}$1=$(encode "$2"); }

while [ $# -gt 0 ]; do
    case $1 in
    --help) usage; exit 0 ;;
    --) shift; break ;;
    --tls) tls=1; cli+=(--tls); shift ;;
    --insecure) cli+=(--insecure); url_option tls_verify no; shift ;;
    -h | -p | -a | --user | --cacert | --cert | --key | --sni | --tls-verify-name | --name | \
        --start | --node | --log | --load | --timeout)
        [ $# -gt 1 ] || misuse "$1 needs a value"
        case $1 in
        -p | --load | --timeout) [[ $2 =~ ^[0-9]+$ ]] || misuse "$1 needs a number, not '$2'" ;;
        esac
        case $1 in
        -h) host=$2 ;;
        -p) port=$2 ;;
        -a) password=$2 ;;
        --user) user=$2 ;;
        --cacert) cli+=("$1" "$2"); url_option tls_ca_file "$2" ;;
        --cert) cli+=("$1" "$2"); url_option tls_cert_file "$2" ;;
        --key) cli+=("$1" "$2"); url_option tls_key_file "$2" ;;
        --sni) cli+=("$1" "$2"); url_option tls_server_name "$2" ;;
        --tls-verify-name) [[ $2 = yes || $2 = no ]] ||
            misuse "$1 is yes or no, not '$2'"; url_option tls_verify_name "$2" ;;
        --name) name=$2 ;;
        --start) start=$2 ;;
        --node) binary=$2; [ -f "$2" ] && [ -x "$2" ] ||
            misuse "--node $2: there is no such program" ;;
        --log) log=$2 ;;
        --load) load=$2 ;;
        --timeout) timeout=$2 ;;
        esac
        shift 2
        ;;
    *) misuse "unknown argument '$1'" ;;
    esac
done
[[ $name =~ ^[A-Za-z0-9._-]{1,48}$ ]] ||
    misuse "--name is 1 to 48 letters, digits, dots, dashes or underscores"
[ -n "$start" ] || [ $# -gt 0 ] ||
    misuse "what is to be offered? Options of tarn-node go behind --, as in: -- --segment 8gb"
[ -z "$start" ] || [ $# = 0 ] ||
    misuse "with --start the options of tarn-node belong into that command"
[ -n "$tls" ] || [ -z "$url_options" ] ||
    misuse "--cacert, --cert, --key, --sni, --tls-verify-name and --insecure need --tls"
command -v redis-cli >/dev/null || misuse "redis-cli is not installed"
cli+=(-h "$host" -p "$port")
[ -z "$user" ] || cli+=(--user "$user")
[ -z "$password" ] || export REDISCLI_AUTH=$password TARN_PASSWORD=$password
[ -n "$log$start" ] || log=$(mktemp "${TMPDIR:-/tmp}/tarn-node-$name.XXXXXX") || exit 1
[[ $host == *:* ]] && address="[$host]" || address=$host
url=tarn${tls:+s}://${user:+$(encode "$user")@}$address:$port

node_field() { # NAME FIELD, of the plain ones
    "${cli[@]}" NODE INFO "$1" 2>/dev/null |
        awk -v want="$2" \
        '$0 == "segment-names" { exit } NR % 2 == 1 { f = $0; next } f == want { print; exit }'
}
ping=$("${cli[@]}" PING 2>&1)
[ "$ping" = PONG ] || {
    echo "scale-out: the master at $host:$port does not answer as it should:" \
        "${ping:-nothing came within 10 s}" >&2
    exit 3
}
state=$(node_field "$name" state)
case $state in
"" | down) ;; # new, or a former one that comes back
*) echo "scale-out: the pool has a node $name already, in state $state" >&2; exit 3 ;;
esac

pid=
if [ -n "$start" ]; then
    command=${start//\{name\}/$name}
    command=${command//\{url\}/$url}
    bash -c "$command" </dev/null || { echo "scale-out: the command failed: $command" >&2; exit 1; }
else
    here=$(cd "$(dirname "$0")" && pwd)
    for p in "$binary" "$(command -v tarn-node || true)" "$here/../src/tarn-node"; do
        if [ -n "$p" ] && [ -x "$p" ]; then binary=$p; break; fi
    done
    [ -x "${binary:-}" ] || misuse "there is no tarn-node in PATH: --node PATH"
    setsid "$binary" --master "$url${url_options:+?$url_options}" --name "$name" \
        "$@" </dev/null >>"$log" 2>&1 &
    pid=$!
    disown
fi

end=$((SECONDS + timeout))
until [ "$(node_field "$name" state)" = up ]; do
    if [ -n "$pid" ] && ! kill -0 "$pid" 2>/dev/null; then
        progress_end
        echo "scale-out: node $name did not start; $log says:" >&2
        tail -n 5 "$log" >&2
        exit 1
    fi
    if [ "$SECONDS" -ge "$end" ]; then
        progress_end
        state=$(node_field "$name" state)
        echo "scale-out: node $name is not up after $timeout s" \
            "(state: $state)${pid:+; its process is $pid, its log $log}" >&2
        exit 1
    fi
    last=${log:+, $(tail -n 1 "$log" 2>/dev/null | cut -c-100)}
    progress "waiting for node $name: state $(node_field "$name" state)$last"
    sleep 0.1
done
progress_end
mib=$(($(node_field "$name" size) >> 20))
echo "node $name is up on $(node_field "$name" machine), $mib MiB of memory"\
"${pid:+, process $pid, log $log}"
"${cli[@]}" NODE INFO "$name" |
    awk '$0 == "transports" || $0 == "stats" { exit }
        on { print "  segment " $0 }
        $0 == "segment-names" { on = 1 }'

end=$((SECONDS + timeout))
while [ "$load" -gt 0 ]; do
    replicas=$(node_field "$name" replicas)
    [ "${replicas:-0}" -lt "$load" ] || { progress_end; echo "it holds $replicas replicas"; break; }
    if [ "$SECONDS" -ge "$end" ]; then
        progress_end
        echo "scale-out: node $name is up, but holds ${replicas:-0} replicas after $timeout s:" \
            "is anybody putting?" >&2
        exit 4
    fi
    progress "waiting for load: ${replicas:-0} of $load replicas"
    sleep 0.1
done
