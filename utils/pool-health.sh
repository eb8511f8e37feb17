#!/bin/bash
# Checks the health of a whole pool through its master, for people and for monitoring.
#
#   utils/pool-health.sh [-h HOST] [-p PORT] [-a PASSWORD] [--user NAME] [OPTION]...
#
#   -h HOST, -p PORT  of the master (127.0.0.1, 6479)
#   --tls             the port speaks TLS; --cacert FILE, --cert FILE, --key FILE and --insecure
#                     work as in redis-cli
#
#   --nodes N         the number of nodes that should be up
#   --stuck SECONDS   the age at which a task, a fence or a disk's queue counts as stuck (300)
#   --pinned PERCENT  the share of the pool's memory that may be neither free nor evictable (80)
#   --quiet           one line, no details
#
# The first line is the verdict, with figures after a bar as Nagios and the like read them; then a
# line for each problem, and a table of nodes. A full pool is normal: it evicts.
#
# Exit status: 0 all is well, 1 something needs attention, 2 the pool does not work or values may be
# lost, 3 the check failed.
#
#   what                                                         status
#   the master does not answer, no memory segment takes new values    2
#   fewer nodes are up than --nodes                                   2
#   a node is down; a disk accepts nothing more or was damaged        1
#   a drain has no room; tasks, fences or queues are stuck            1
#   nearly all memory is pinned or leased                             1
#   a disk was not told of removals; bad replicas were found          1
#
# Needs redis-cli. The password may be in REDISCLI_AUTH.
set -uo pipefail
export LC_ALL=C

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
fail() { echo "UNKNOWN - $*"; exit 3; }

cli=(timeout 10 redis-cli --no-auth-warning -h 127.0.0.1 -p 6479) nodes_wanted= stuck=300 \
    pinned_max=80 quiet=
while [ $# -gt 0 ]; do
    case $1 in
    --help) usage; exit 0 ;;
    --quiet) quiet=1; shift ;;
    --tls | --insecure) cli+=("$1"); shift ;;
    -h | -p | -a | --user | --cacert | --cert | --key | --nodes | --stuck | --pinned)
        [ $# -gt 1 ] || fail "$1 needs a value (--help)"
        case $1 in
        -p | --nodes | --stuck | --pinned)
            [[ $2 =~ ^[0-9]+$ ]] || fail "$1 needs a number, not '$2'"
            ;;
        esac
        case $1 in
        --nodes) nodes_wanted=$2 ;;
        --stuck) stuck=$2 ;;
        --pinned) pinned_max=$2 ;;
        -a) export REDISCLI_AUTH=$2 ;;
        *) cli+=("$1" "$2") ;;
        esac
        shift 2
        ;;
    *) fail "unknown argument '$1' (--help)" ;;
    esac
done
command -v redis-cli >/dev/null || fail "redis-cli is not installed"

level=0 details=
note() { # LEVEL TEXT...
    [ "$1" -le "$level" ] || level=$1
    details+="${*:2}"$'\n'
}
verdict() { # TEXT FIGURES
    local names=(OK WARNING CRITICAL)
    echo "${names[$level]} - $1${2:+ | $2}"
    [ -n "$quiet" ] || printf '%s' "$details"
}

# --- the master ---
info=$("${cli[@]}" INFO everything 2>&1 | tr -d '\r')
case $info in
*tarn_version:*) ;;
*NOAUTH* | *WRONGPASS* | *NOPERM*) fail "the master refuses: ${info%%$'\n'*}" ;;
*)
    level=2
    first=${info%%$'\n'*}
    verdict "the master does not answer: ${first:-nothing came within 10 s}"
    exit 2
    ;;
esac
field() { sed -n "s/^$1://p" <<<"$info" | head -n 1; }

role=$(field role)
[ "${role:-master}" = master ] ||
    fail "this is a $role: ask the master at $(field master_host):$(field master_port)"
if [ "$(field memory_segments_up)" = 0 ]; then
    note 2 "no memory segment is up: nothing can be put, and what is in memory cannot be read"
elif [ "$(field memory_segments_writable)" = 0 ]; then
    note 2 "no memory segment takes new values, all are drained or in maintenance:" \
        "nothing can be put (SEGMENT LIST)"
fi

# Of what can be read; what is down is apart.
size=$(field pool_size) used=$(field pool_used) free=$(field pool_free) \
    evictable=$(field pool_evictable) away=$(field pool_down)
if [ "$size" -gt 0 ]; then
    pinned=$(((size - free - evictable) * 100 / size))
    [ "$pinned" -le "$pinned_max" ] ||
        note 1 "$pinned % of the memory are neither free nor evictable:" \
            "pins, leases, or puts that do not end (INFO pool)"
fi
[ "$(field replicas_bad)" = 0 ] ||
    note 1 "$(field replicas_bad) replicas had bad bytes since the master started:" \
        "look for the disk or memory they came from"
[ "$(field drops_lost)" = 0 ] ||
    note 1 "$(field drops_lost) removals could not be told to disks;" \
        "their space there is wasted until they evict it"

# What cannot be asked is not well. Lists begin with the name of a field, or are empty.
ask() { # FIRST-FIELD COMMAND...: the reply is $reply
    local first=$1 status=0
    shift
    reply=$("${cli[@]}" "$@" 2>&1) || status=$?
    [ "$status" != 124 ] || fail "$*: nothing came within 10 s"
    [ -z "$reply" ] || [ "${reply%%$'\n'*}" = "$first" ] || fail "$*: ${reply%%$'\n'*}"
}

# --- nodes: field and value take turns, a node begins with its name ---
# name state machine rack version silent-ms tasks fences-pending drain-left-bytes used size
ask name NODE LIST
table=$(awk '
    NR % 2 == 1 { f = $0; next }
    f == "name" { if (n++) show(); delete v }
    { v[f] = $0 }
    function show() {
        print v["name"] "\t" v["state"] "\t" v["machine"] "\t" (v["rack"] == "" ? "-" : v["rack"]) \
            "\t" v["version"] "\t" v["silent-ms"] "\t" v["tasks"] "\t" v["fences-pending"] \
            "\t" v["drain-left-bytes"] "\t" v["used"] "\t" v["size"] "\t" v["state-ms"]
    }
    END { if (n) show() }' <<<"$reply")

# A field of NODE INFO, of its stats where it is one of those.
node_field() { # NAME FIELD
    "${cli[@]}" NODE INFO "$1" 2>/dev/null | awk -v want="$2" '
        !stats && $0 == "segment-names" { list = 1; next }
        list && $0 == "stats" { list = 0; stats = 1; at = 0; next }
        list { next }
        { at++ }
        at % 2 == 1 { f = $0; next }
        f == want { print; exit }'
}
segment_field() { "${cli[@]}" SEGMENT INFO "$1" 2>/dev/null |
    awk -v want="$2" 'f { print; exit } $0 == want { f = 1 }'; }

up=0 down=0 other=0
while IFS=$'\t' read -r name state machine _ _ silent _ fences left _ _ since; do
    [ -n "$name" ] || continue
    case $state in
    up) up=$((up + 1)) ;;
    maintenance | draining) up=$((up + 1)) other=$((other + 1)) ;;
    down)
        down=$((down + 1))
        note 1 "node $name on $machine is down, silent for $((silent / 1000)) s:" \
            "what only it has cannot be read"
        ;;
    joining)
        other=$((other + 1))
        [ "$((since / 1000))" -lt "$stuck" ] ||
            note 1 "node $name is joining for $((since / 1000)) s:" \
                "$fences fences are to be confirmed"
        ;;
    *) other=$((other + 1)) ;;
    esac
    [ "$state" != down ] || continue
    [[ $("${cli[@]}" NODE INFO "$name" 2>&1) != NOPERM* ]] || fail "this user may not ask NODE INFO"
    [ "$fences" -lt 1000 ] ||
        note 1 "node $name has $fences fences to confirm:" \
            "a process there does not let go of its memory"
    if [ "$state" = draining ]; then
        why=
        while read -r segment; do
            text=$(segment_field "$segment" drain_error)
            [ -z "$text" ] || why=$text
        done < <("${cli[@]}" NODE INFO "$name" 2>/dev/null |
            awk '$0 == "transports" || $0 == "stats" { exit }
                on { print }
                $0 == "segment-names" { on = 1 }')
        [ -z "$why" ] ||
            note 1 "node $name drains, $((left >> 20)) MiB left, and cannot go on: $why"
    fi
    for tier in ssd file; do
        [ "$(node_field "$name" "$tier-read-only")" != 1 ] ||
            note 1 "node $name: its $tier tier failed too often and takes nothing more"
        damaged=$(node_field "$name" "$tier-damaged")
        [ "${damaged:-0}" = 0 ] ||
            note 1 "node $name: its $tier tier was damaged in $damaged places"
    done
done <<<"$table"
[ -z "$nodes_wanted" ] || [ "$up" -ge "$nodes_wanted" ] ||
    note 2 "$up nodes are up, $nodes_wanted are expected"

# --- tasks ---
ask id REPLICA TASKS COUNT 1000
old=$(awk -v limit="$((stuck * 1000))" '
    p == "state" { state = $0 }
    p == "age-ms" { if (state ~ /^(queued|room|sent)$/ && $0 > limit) n++ }
    { p = $0 } END { print n + 0 }' <<<"$reply")
[ "$old" = 0 ] || note 1 "$old tasks are older than $stuck s (REPLICA TASKS)"

figures="nodes_up=$up nodes_down=$down nodes_other=$other"
figures+=" pool_size=${size}B pool_used=${used}B pool_free=${free}B"
figures+=" pool_evictable=${evictable}B pool_down=${away}B"
figures+=" keys=$(field far_objects | awk '{ print $1 + 0 }') tasks=$(field tasks)"
figures+=" bad_replicas=$(field replicas_bad)"
figures=${figures/keys=/far_keys=}
lost=
[ "$away" = 0 ] || lost=", $((away >> 20)) MiB are down"
verdict "$up nodes up, $down down, $((used >> 20)) of $((size >> 20)) MiB used$lost" "$figures"
if [ -z "$quiet" ] && [ -n "$table" ]; then
    {
        printf 'node\tstate\tmachine\track\tversion\tused MiB\tof MiB\ttasks\n'
        awk -F'\t' '{ printf "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n",
            $1, $2, $3, $4, $5, $10 / 1048576, $11 / 1048576, $7 }' <<<"$table"
    } | { command -v column >/dev/null && column -t -s $'\t' || cat; }
fi
exit "$level"
