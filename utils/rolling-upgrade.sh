#!/bin/bash
# Restarts the nodes of a pool (or its servers, with --servers) one after the other, for a new
# version say, and keeps every value readable that can be.
#
#   utils/rolling-upgrade.sh [-h HOST] [-p PORT] [-a PASSWORD] [--user NAME]
#                            --restart COMMAND [OPTION]...
#
#   -h HOST, -p PORT    of the master (127.0.0.1, 6479)
#   --servers           the master and its replicas, not the nodes; options of nodes have no effect
#                       then
#   --restart COMMAND   restarts one node and returns. {name}, {machine} and {address} in it are
#                       replaced: --restart 'ssh {machine} systemctl restart tarn-node@{name}'
#                       For a server {name} and {address} are its HOST:PORT, {machine} its HOST
#   --sentinel H:P/NAME a Sentinel, and the name by which it knows the master: for --servers
#   --drain             first moves objects that only this node has to others; the node then
#                       leaves, and COMMAND starts it again. For nodes with plain memory; nodes
#                       with a pool file or a disk keep their objects without it
#   --nodes A,B         only these, in this order (all that are up)
#   --timeout SECONDS   for each step of a node (600)
#   --pause SECONDS     between nodes (2)
#   --version V         skips nodes that have it, and insists that a restarted node has it
#   --force             begins even if a node is down
#   --dry-run           says what it would do
#
# One node at a time: MAINTENANCE ON (it stays readable, new objects go elsewhere), COMMAND, wait
# until the master says that a new process of it is up and has offered its disk, MAINTENANCE OFF.
# With --drain: NODE DRAIN, wait until it has left, COMMAND, wait until it is up. It stops at the
# first node that does not come back, and leaves the others alone. Started again with --version, it
# goes on from there.
#
# With --servers: each replica is restarted and follows again; then the master hands over to the
# first of them (FAILOVER, at most 10 s), and is restarted as a replica. Each needs a configuration
# file that it can write, as its role is kept there. Servers of tarn 0.1 have no FAILOVER: from and
# to them the replica is promoted while writes pause.
#
# Exit status: 0 done, 1 a node or server did not come back in time or COMMAND failed, 2 bad command
# line, 3 the pool was not fit to begin.
# Needs redis-cli. The password may be in REDISCLI_AUTH.
set -uo pipefail
export LC_ALL=C
. "$(dirname "$0")/progress.sh"

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
misuse() { echo "rolling-upgrade: $* (--help)" >&2; exit 2; }
say() { echo "$(date +%H:%M:%S) $*"; }

cli=(timeout 10 redis-cli --no-auth-warning -h 127.0.0.1 -p 6479) restart= drain= only= \
    timeout=600 pause=2 version= force= dry=
servers= sentinel= masters_only= host=127.0.0.1 port=6479
while [ $# -gt 0 ]; do
    case $1 in
    --help) usage; exit 0 ;;
    --drain) drain=1; shift ;;
    --force) force=1; shift ;;
    --dry-run) dry=1; shift ;;
    --servers) servers=1; shift ;;
    --tls | --insecure) cli+=("$1"); shift ;;
    -h | -p | -a | --user | --cacert | --cert | --key | --restart | --nodes | --timeout | \
        --pause | \
        --version | --sentinel)
        [ $# -gt 1 ] || misuse "$1 needs a value"
        case $1 in
        -p | --timeout | --pause) [[ $2 =~ ^[0-9]+$ ]] || misuse "$1 needs a number, not '$2'" ;;
        esac
        case $1 in
        --restart) restart=$2 ;;
        --nodes) only=${2//,/ } ;;
        --timeout) timeout=$2 ;;
        --pause) pause=$2 ;;
        --version) version=$2 ;;
        --sentinel) sentinel=$2 ;;
        -a) export REDISCLI_AUTH=$2 masters_only=1 ;;
        -h) host=$2 cli+=("$1" "$2") ;;
        -p) port=$2 cli+=("$1" "$2") ;;
        *) cli+=("$1" "$2") ;;
        esac
        shift 2
        ;;
    *) misuse "unknown argument '$1'" ;;
    esac
done
[ -n "$restart" ] || misuse "--restart COMMAND is missing"
[ -z "$sentinel" ] || [[ $sentinel =~ ^[^/]+:[0-9]+/.+$ ]] ||
    misuse "--sentinel needs HOST:PORT/NAME, not '$sentinel'"
command -v redis-cli >/dev/null || misuse "redis-cli is not installed"

# A field of NODE INFO, of its stats where it is one of those; nothing: there is no such node.
node_field() { # NAME FIELD
    "${cli[@]}" NODE INFO "$1" 2>/dev/null | awk -v want="$2" '
        !stats && $0 == "segment-names" { list = 1; next }
        list && $0 == "stats" { list = 0; stats = 1; at = 0; next }
        list { next }
        { at++ }
        at % 2 == 1 { f = $0; next }
        f == want { print; exit }'
}
names() { "${cli[@]}" NODE LIST 2>/dev/null |
    awk 'NR % 2 == 1 { f = $0; next } f == "name" { name = $0 } f == "state" { print name, $0 }'; }
command_ok() { # what redis-cli says when an administrator's command worked
    local reply
    reply=$("${cli[@]}" "$@" 2>&1)
    [ "$reply" = OK ] && return 0
    say "$*: $reply"
    return 1
}
how_far() { # NAME
    local state left
    [ -z "$servers" ] || { echo "waiting for $1"; return; }
    state=$(node_field "$1" state) left=$(node_field "$1" drain-left-bytes)
    echo "$1: ${state:-not there}$([ "$state" != draining ] || echo ", $((left >> 20)) MiB left")"
}
# Waits until it holds; false: not within the time-out.
await() { # CONDITION NAME [...]
    local end=$((SECONDS + timeout)) status=0
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || { status=1; break; }
        progress "$(how_far "$2"), giving up in $((end - SECONDS)) s"
        sleep 0.2
    done
    progress_end
    return $status
}

has_left() { [ -z "$(node_field "$1" state)" ]; }
is_back() { # NAME INSTANCE-BEFORE
    local state instance
    state=$(node_field "$1" state) instance=$(node_field "$1" instance)
    { [ "$state" = up ] || [ "$state" = maintenance ]; } && [ "$instance" != "$2" ]
}
# Disks that are found again are offered to the master in the background.
has_offered() {
    local tier
    for tier in ssd file; do [ "$(node_field "$1" "$tier-offering")" != 1 ] || return 1; done
}

upgrade() { # NAME
    local name=$1 instance machine address command now
    machine=$(node_field "$name" machine) address=$(node_field "$name" address) \
        instance=$(node_field "$name" instance)
    command=${restart//\{name\}/$name}
    command=${command//\{machine\}/$machine}
    command=${command//\{address\}/$address}
    if [ -n "$dry" ]; then
        first=$([ -n "$drain" ] && echo drain || echo 'set to maintenance')
        say "$name: would $first, then run: $command"
        return 0
    fi
    if [ -n "$drain" ]; then
        say "$name: draining $(($(node_field "$name" used) >> 20)) MiB"
        command_ok NODE DRAIN "$name" || return 1
        if ! await has_left "$name"; then
            say "$name: not empty after $timeout s; the drain is taken back"
            command_ok NODE DRAIN "$name" CANCEL
            return 1
        fi
    else
        command_ok NODE MAINTENANCE "$name" ON || return 1
    fi
    say "$name: $command"
    if ! bash -c "$command" </dev/null; then
        say "$name: the command failed; the node stays as it is"
        [ -n "$drain" ] || command_ok NODE MAINTENANCE "$name" OFF
        return 1
    fi
    if ! await is_back "$name" "$instance"; then
        say "$name: is not back after $timeout s (state: $(node_field "$name" state))"
        return 1
    fi
    await has_offered "$name" || say "$name: still offers what is on its disk"
    [ -n "$drain" ] || command_ok NODE MAINTENANCE "$name" OFF || return 1
    now=$(node_field "$name" version)
    say "$name: up, version $now, $(node_field "$name" replicas) replicas"
    [ -z "$version" ] || [ "$now" = "$version" ] ||
        { say "$name: version $version was expected"; return 1; }
}

# --- servers ---

# Of redis-cli's options the last counts. SERVER is HOST:PORT. A Sentinel has servers whose role it
# changes cut all clients off: then it is asked again, unless asking twice would not do.
at() { # SERVER COMMAND...
    local reply try
    for try in 1 2 3; do
        [ "$try" = 1 ] || sleep 0.2
        reply=$("${cli[@]}" -h "${1%:*}" -p "${1##*:}" "${@:2}" 2>&1)
        [[ $reply == "Error: "* && $2 != FAILOVER ]] || break
    done
    printf '%s\n' "$reply"
}
field_at() { # SERVER FIELD
    at "$1" INFO everything | tr -d '\r' | sed -n "s/^$2://p" | head -1
}
ok_at() { # SERVER COMMAND...
    local reply
    reply=$(at "$@")
    [[ $reply == OK* ]] && return 0
    say "$1: ${*:2}: $reply"
    return 1
}
replicas_of() { # SERVER
    at "$1" INFO replication | tr -d '\r' |
        sed -n 's/^slave[0-9]*:ip=\([^,]*\),port=\([0-9]*\),.*/\1:\2/p'
}
is_restarted() { # SERVER RUN-ID-BEFORE
    local id
    id=$(field_at "$1" run_id)
    [ -n "$id" ] && [ "$id" != "$2" ]
}
follows() { # SERVER MASTER
    [ "$(field_at "$1" master_host):$(field_at "$1" master_port)" = "$2" ] &&
        [ "$(field_at "$1" master_link_status)" = up ]
}
hands_over_no_more() { [ "$(field_at "$1" master_failover_state)" = no-failover ]; }
has_handed_over() { # MASTER NEXT
    [ "$(field_at "$1" role) $(field_at "$2" role)" = "slave master" ]
}
ask_sentinel() {
    local where=${sentinel%%/*}
    (
        [ -z "$masters_only" ] || unset REDISCLI_AUTH # -a is no password of the Sentinel's
        timeout 10 redis-cli -h "${where%:*}" -p "${where##*:}" SENTINEL "$@" 2>&1
    )
}
sentinel_names() { # SERVER
    [ "$(ask_sentinel get-master-addr-by-name "${sentinel#*/}" | paste -sd:)" = "$1" ]
}
sentinel_sees_priority() { # SERVER PRIORITY
    ask_sentinel replicas "${sentinel#*/}" | awk -v port="${1##*:}" -v want="$2" '
        f == "port" { here = $0 == port }
        f == "slave-priority" && here { seen = $0 }
        { f = $0 }
        END { exit seen != want }'
}

restart_server() { # SERVER MASTER-THEN
    local id command
    id=$(field_at "$1" run_id)
    command=${restart//\{name\}/$1}
    command=${command//\{machine\}/${1%:*}}
    command=${command//\{address\}/$1}
    say "$1: $command"
    bash -c "$command" </dev/null || { say "$1: the command failed"; return 1; }
    await is_restarted "$1" "$id" || { say "$1: is not back after $timeout s"; return 1; }
    await follows "$1" "$2" || { say "$1: does not follow $2 after $timeout s"; return 1; }
    say "$1: follows $2, version $(field_at "$1" tarn_version)"
}

hide_from_sentinel() { # SERVER...
    local server
    for server in "$@"; do ok_at "$server" CONFIG SET replica-priority 0 || return 1; done
    for server in "$@"; do await sentinel_sees_priority "$server" 0 || return 1; done
}

knows_failover() { # SERVER...
    local server
    for server in "$@"; do at "$server" COMMAND INFO failover | grep -qx failover || return 1; done
}
fail_over() { # MASTER NEXT
    say "$1: hands over to $2"
    ok_at "$1" FAILOVER TO "${2%:*}" "${2##*:}" TIMEOUT 10000 || return 1
    await hands_over_no_more "$1" ||
        { say "$1: still hands over; FAILOVER ABORT ends it"; return 1; }
}

has_all() { # REPLICA MASTER
    local offset
    offset=$(field_at "$2" master_repl_offset)
    [ -n "$offset" ] && [ "$(field_at "$1" master_repl_offset)" -ge "$offset" ]
}
# What began before the pause has ended after a second (as FAILOVER assumes), or is cut off.
promote() { # MASTER NEXT
    local end=$((SECONDS + 6))
    say "$1: pauses, and $2 is promoted"
    ok_at "$1" CLIENT PAUSE 10000 WRITE || return 1
    sleep 1
    until has_all "$2" "$1"; do
        if [ "$SECONDS" -ge "$end" ]; then
            say "$2: has not caught up; nothing was changed"
            ok_at "$1" CLIENT UNPAUSE
            return 1
        fi
        sleep 0.05
    done
    ok_at "$2" REPLICAOF NO ONE && ok_at "$1" REPLICAOF "${2%:*}" "${2##*:}" || return 1
    ok_at "$1" CLIENT UNPAUSE
}

hand_over() { # MASTER NEXT OTHER...
    local other
    [ -z "$sentinel" ] || hide_from_sentinel "${@:3}" || return 1
    if knows_failover "$1" "$2"; then
        fail_over "$1" "$2" || return 1
    else
        promote "$1" "$2" || return 1
    fi
    has_handed_over "$1" "$2" || { say "$1: has not handed over; its log says why"; return 1; }
    if [ -n "$sentinel" ]; then
        [ "$(ask_sentinel failover "${sentinel#*/}")" = OK ] ||
            { say "the Sentinel does not obey"; return 1; }
        await sentinel_names "$2" || { say "the Sentinel does not name $2"; return 1; }
    fi
    for other in "${@:3}"; do
        ok_at "$other" REPLICAOF "${2%:*}" "${2##*:}" || return 1
        [ -z "$sentinel" ] || ok_at "$other" CONFIG SET replica-priority "${priority[$other]}" ||
            return 1
    done
    for other in "$@"; do ok_at "$other" CONFIG REWRITE || return 1; done
}

upgrade_servers() {
    local master replicas server
    declare -gA priority
    master=$host:$port
    [ "$(field_at "$master" role)" = master ] ||
        { say "not begun: $master is no master, or does not answer"; exit 3; }
    mapfile -t replicas < <(replicas_of "$master")
    [ ${#replicas[@]} -gt 0 ] ||
        { say "not begun: $master has no replicas to hand over to"; exit 3; }
    for server in "$master" "${replicas[@]}"; do
        priority[$server]=$(at "$server" CONFIG GET replica-priority | tail -1)
        [ -n "$(field_at "$server" config_file)" ] && continue
        say "not begun: $server does not answer, or has no configuration file to keep its role in"
        exit 3
    done
    if [ -n "$dry" ]; then
        for server in "${replicas[@]}"; do say "$server: would restart, and follow $master"; done
        say "$master: would hand over to ${replicas[0]}, then restart"
        return 0
    fi
    for server in "${replicas[@]}"; do
        ok_at "$server" CONFIG REWRITE && restart_server "$server" "$master" || return 1
        sleep "$pause"
    done
    hand_over "$master" "${replicas[@]}" && restart_server "$master" "${replicas[0]}"
}

if [ -n "$servers" ]; then
    upgrade_servers || exit 1
    say "done"
    exit 0
fi

# --- nodes ---

pong=$("${cli[@]}" PING 2>&1)
[ "$pong" = PONG ] || {
    say "the master does not answer as it should: ${pong:-nothing came within 10 s}"
    exit 3
}
list=$(names)
[ -n "$list" ] || {
    say "the master has no nodes, or this user may not see them (NODE LIST)"
    exit 3
}
if [ -n "$only" ]; then
    for name in $only; do grep -q "^$name " <<<"$list" || misuse "there is no node '$name'"; done
fi
if [ -z "$force" ] && grep -q ' down$' <<<"$list"; then
    down=$(grep ' down$' <<<"$list" | cut -d' ' -f1 | paste -sd' ')
    say "not begun, because a node is down: $down"
    exit 3
fi
[ -n "$only" ] || only=$(grep -E ' (up|maintenance)$' <<<"$list" | cut -d' ' -f1)
if [ -n "$drain" ] && [ "$(grep -cE ' (up|maintenance|draining)$' <<<"$list")" -lt 2 ]; then
    say "not begun: with one node there is nowhere to move things to"
    exit 3
fi
first=1
for name in $only; do
    if [ -n "$version" ] && [ "$(node_field "$name" version)" = "$version" ]; then
        say "$name: has version $version already"
        continue
    fi
    [ -n "$first" ] || [ -n "$dry" ] || sleep "$pause"
    first=
    upgrade "$name" || exit 1
done
say "done"
