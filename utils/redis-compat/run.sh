#!/bin/bash
# Runs Redis' own test suite against tarn, and holds the outcome against the lists in expected/.
#
#   utils/redis-compat/run.sh [OPTION]... DIR [FILE]...
#
# DIR is an unpacked source of Redis 7.0; nothing in it is changed. FILE is a file of its suite, as
# `unit/type/string`; without: all that have a list. As a drop-in the suite starts its own servers,
# in a temporary copy where src/redis-server is tarn-server.
#
#   --server PATH      tarn-server (build/release/tarn-server of this checkout)
#   --cli PATH         redis-cli, --benchmark PATH redis-benchmark (those in PATH)
#   --host H --port P  against a server that runs already, and that nobody needs: it is flushed.
#                      Tests that start or configure servers of their own are left out by the
#                      suite, and are not missed here
#   --only TEST        this test only (again for more); without lists
#   --all              runs also the tests that are known not to pass, to see whether they do by now
#   --update           writes the lists anew from what was seen (with --all); new failures get the
#                      reason TODO
#   --timeout SECONDS  without any progress until a file is given up (120)
#   --keep             keeps the temporary copy, with the servers' logs
#   --verbose          shows the suite's output
#
# A list has a line per test: `+ NAME` passes, `0 NAME` passes where servers have pool-size 0 (as
# replicas must), `- REASON | NAME` cannot pass, and is not run, `x REASON | NAME` cannot either,
# but makes what tests after it need. `?` in front of any of these: not every source has the test
# (Debian's patches bring some). A line `= pool-size 0`: all of the file is run with this option.
# Anything else is a failure: a listed test that fails or did not run, one that is in no list, a
# file that ends early.
#
# Exit status: 0 all is as listed, 1 it is not, 2 the command line. Needs tclsh.
set -uo pipefail
export LC_ALL=C
unset TERM

here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,28s/^# \{0,1\}//p' "$0"; }
misuse() { echo "redis-compat: $* (--help)" >&2; exit 2; }

server=$here/../../build/release/tarn-server cli=$(command -v redis-cli) \
    benchmark=$(command -v redis-benchmark)
host= port= timeout=120 all= update= keep= verbose= only=()
while [ $# -gt 0 ]; do
    case $1 in
    --help) usage; exit 0 ;;
    --all) all=1 ;;
    --update) update=1 all=1 ;;
    --keep) keep=1 ;;
    --verbose) verbose=1 ;;
    --server | --cli | --benchmark | --host | --port | --only | --timeout)
        [ $# -gt 1 ] || misuse "$1 needs a value"
        case $1 in
        --server) server=$2 ;;
        --cli) cli=$2 ;;
        --benchmark) benchmark=$2 ;;
        --host) host=$2 ;;
        --port) port=$2 ;;
        --only) only+=(--only "$2") ;;
        --timeout) timeout=$2 ;;
        esac
        shift ;;
    -*) misuse "unknown option $1" ;;
    *) break ;;
    esac
    shift
done
[ $# -gt 0 ] || misuse "where is Redis' source?"
source=$1
shift
[ -f "$source/tests/test_helper.tcl" ] || misuse "$source is not the source of Redis"
[[ $timeout =~ ^[0-9]+$ ]] || misuse "--timeout needs a number, not '$timeout'"
[ -z "$host$port" ] || { [ -n "$host" ] && [ -n "$port" ]; } ||
    misuse "--host and --port go together"
[ -n "$host" ] || [ -x "$server" ] || misuse "no $server: build it, or say --server PATH"
command -v tclsh >/dev/null || misuse "needs tclsh"
# The suite would leave out what it cannot reach, and that would be as listed.
[ -z "$host" ] || timeout 10 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$host" "$port" 2>/dev/null ||
    misuse "there is no server at $host:$port"

tree=$(mktemp -d "${TMPDIR:-/tmp}/redis-compat.XXXXXX")
suite=
end() {
    trap - EXIT
    [ -z "$suite" ] || kill -- "-$suite" 2>/dev/null
    [ -n "$keep" ] && echo "kept $tree" || rm -rf "$tree"
}
trap end EXIT
trap 'end; exit 1' INT TERM

# A copy of what the suite looks at, with tarn's binaries in the place of Redis'.
make_tree() {
    mkdir -p "$tree/src" && cp -r "$source/tests" "$source/utils" "$tree/" &&
        cp "$source/redis.conf" "$tree/" || exit 1
    rm -rf "$tree/tests/tmp" && mkdir "$tree/tests/tmp" || exit 1
    ln -s "$(realpath "$server")" "$tree/src/redis-server"
    [ -z "$cli" ] || ln -s "$(realpath "$cli")" "$tree/src/redis-cli"
    [ -z "$benchmark" ] || ln -s "$(realpath "$benchmark")" "$tree/src/redis-benchmark"
}

list_of() { echo "$here/expected/${1//\//_}.txt"; }

# What the suite says of file $1, at the end of file $2; further arguments are the suite's. Its own
# process group, so that nothing stays behind. Again where somebody else took its port.
run_suite() {
    local args=(--single "$1" --clients 1 --durable --singledb --timeout "$timeout") ports=()
    local seen try
    if [ -n "$host" ]; then
        args+=(--host "$host" --port "$port" --ignore-encoding --ignore-digest)
    else
        args+=(--config maxmemory-policy noeviction) # as Redis does without being told
        # Some tests ask at once, and Redis has no pool to load.
        args+=(--config pool-populate no)
    fi
    seen=$(wc -c <"$2")
    for try in 1 2 3 4 5; do
        [ -n "$host" ] ||
            ports=(--baseport $((12000 + RANDOM % 80 * 100)) --portcount 100 --dont-clean)
        (cd "$tree" &&
            exec setsid tclsh tests/test_helper.tcl "${args[@]}" "${ports[@]}" "${@:3}") \
            >>"$2" 2>&1 </dev/null &
        suite=$!
        [ -z "$verbose" ] || tail -c "+$((seen + 1))" -f --pid=$suite "$2"
        wait "$suite"
        kill -9 -- "-$suite" 2>/dev/null # servers that a test left
        suite=
        tail -c "+$((seen + 1))" "$2" | grep -q "^couldn't open socket: address already in use" ||
            return 0
        truncate -s "$seen" "$2"
    done
}

# First everything with the pool that servers have by themselves, then without one what needs that.
# $3 is the list.
run_file() {
    local name without=() config
    : >"$2"
    config=$(sed -n 's/^= //p' "$3")
    if [ -n "$config" ] && [ -z "$host" ]; then
        [ -n "$all" ] && : >"$tree/skip" || sed -n 's/^?\{0,1\}- [^|]*| //p' "$3" >"$tree/skip"
        run_suite "$1" "$2" --config $config --skipfile "$tree/skip"
        return
    fi
    if [ -n "$all" ]; then
        run_suite "$1" "$2"
        while IFS= read -r name; do
            without+=(--only "$name")
        done < <(sed -n 's/^\[err\]: \(.*\) in tests\/.*/\1/p' "$2" | sort -u)
    else
        sed -n 's/^?\{0,1\}- [^|]*| //p; s/^0 //p' "$3" >"$tree/skip"
        run_suite "$1" "$2" --skipfile "$tree/skip"
        while IFS= read -r name; do without+=(--only "$name"); done < <(sed -n 's/^0 //p' "$3")
    fi
    [ ${#without[@]} -gt 0 ] && [ -z "$host" ] || return 0
    echo "--- without a pool" >>"$2"
    run_suite "$1" "$2" --config pool-size 0 "${without[@]}"
}

make_tree
[ $# -gt 0 ] || set -- $(cd "$here/expected" && ls | sed 's/\.txt$//; s#_#/#; s#/type_#/type/#')
status=0
for file; do
    [ -f "$source/tests/$file.tcl" ] ||
        { echo "redis-compat: no $file in $source/tests"; status=1; continue; }
    list=$(list_of "$file")
    if [ ${#only[@]} -gt 0 ]; then
        : >"$tree/output"
        run_suite "$file" "$tree/output" "${only[@]}"
        cat "$tree/output"
        continue
    fi
    [ -f "$list" ] || { : >"$tree/none" && list=$tree/none; }
    run_file "$file" "$tree/output" "$list"
    awk -v file="$file" -v external="$host" -v all="$all" \
        -v update="${update:+$(list_of "$file").new}" \
        -f "$here/compare.awk" "$list" "$tree/output" || status=1
    [ ! -f "$(list_of "$file").new" ] || mv "$(list_of "$file").new" "$(list_of "$file")"
done
exit $status
