# What the topics share.

now_ms() { awk '{ printf "%d\n", $1 * 1000 }' /proc/uptime; }

# t NAME COMMAND [ARGUMENT]...: the test passes when the command, mostly a function here, has status
# 0; 77 skips it. In a shell of its own in which the first command that fails ends it: what must be
# known afterwards is kept in files. Its output is shown when it fails; what lines `say` prints,
# always.
t() {
    t_name=$1
    shift
    t_from=$(now_ms)
    rm -f /tmp/why
    (
        set -e
        "$@"
    ) >/tmp/output 2>&1 </dev/null
    t_status=$?
    t_why=$(cat /tmp/why 2>/dev/null)
    grep '^= ' /tmp/output | sed 's/^= /# /'
    case $t_status in
    0) echo "ok $t_name ($(($(now_ms) - t_from)) ms)" ;;
    77) echo "skip $t_name: $t_why" ;;
    *)
        failed=$((failed + 1))
        echo "not ok $t_name: ${t_why:-status $t_status}"
        tail -n 40 /tmp/output | cut -c1-400 | sed 's/^/#   /'
        show_logs
        ;;
    esac
}
why() {
    echo "$*" >/tmp/why
    echo "$*"
}
fail() {
    why "$*"
    exit 1
}
skip() {
    why "$*"
    exit 77
}
say() { echo "= $*"; }

# want TEXT COMMAND...: the condition holds.
want() {
    want_text=$1
    shift
    "$@" || fail "not so: $want_text"
}
equal() { [ "$2" = "$3" ] || fail "$1: expected '$2', got '$3'"; }
within() { [ "$2" -le "$3" ] && [ "$3" -le "$4" ] || fail "$1: $3 is not in $2 .. $4"; }

# wait_for SECONDS TEXT COMMAND... The seconds are against what never happens, on a loaded machine
# too; where they say how soon something has to happen, a comment says so.
wait_for() {
    wait_end=$(($(now_ms) + $1 * 1000))
    wait_text=$2
    shift 2
    until "$@"; do
        [ "$(now_ms)" -lt "$wait_end" ] || fail "waited in vain for $wait_text"
        sleep 0.1
    done
}

# Somebody listens at this port: of TCP, of rdma_cm.
listens() { grep -q ": 0*[0-9A-F]*:$(printf %04X $1) .* 0A " /proc/net/tcp /proc/net/tcp6; }
rdma_listens() { rdma resource show cm_id | grep "state LISTEN" | grep -q ":$1 "; }

# --- processes: name -> pid in /tmp/pids, their words in /tmp/log ---

mkdir -p /tmp/pids /tmp/log

# start NAME COMMAND...: in the background.
start() {
    start_name=$1
    shift
    "$@" >/tmp/log/$start_name 2>&1 </dev/null &
    echo $! >/tmp/pids/$start_name
}
pid_of() { cat /tmp/pids/$1; }
# A process whose parent has ended belongs to init, which reaps nobody: a zombie is gone as well.
is_gone() {
    [ ! -d /proc/$(pid_of $1) ] || grep -q '^State:.Z' /proc/$(pid_of $1)/status
}
runs() { ! is_gone $1; }
# stop NAME [SIGNAL]: and waits for its end.
stop() {
    kill -${2:-TERM} $(pid_of $1) 2>/dev/null || true
    wait_for 60 "the end of $1" is_gone $1
    rm -f /tmp/pids/$1
}
stop_all() {
    for stop_file in /tmp/pids/*; do
        [ -f "$stop_file" ] || continue
        kill -CONT $(cat $stop_file) 2>/dev/null
        kill -KILL $(cat $stop_file) 2>/dev/null
    done
    rm -f /tmp/pids/*
}
# Of the processes that still run, when something failed.
show_logs() {
    for log in /tmp/log/*; do
        [ -s "$log" ] && [ -f /tmp/pids/${log##*/} ] || continue
        echo "#   --- $log"
        tail -n 12 $log | cut -c1-300 | sed 's/^/#   /'
    done
}
