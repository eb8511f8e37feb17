#!/bin/bash
# Installs what tarn needs of Debian 12, if it is missing. Asks for sudo only when there is
# something to install and the caller is not root.
#
#   deps/install.sh [--check] [--quiet] [GROUP]...
#       groups: build test lint bench rdma packages images (default: build test)
#
# --check   installs nothing; status 1 and a list when something is missing
# --quiet   says nothing when nothing is missing
set -euo pipefail
cd "$(dirname "$0")"

check= quiet= groups=()
for arg in "$@"; do
    case $arg in
    --check) check=1 ;;
    --quiet) quiet=1 ;;
    build | test | lint | bench | rdma | packages | images) groups+=("$arg") ;;
    all) groups=(build test lint bench rdma packages images) ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' install.sh; exit 0 ;;
    *) echo "deps: unknown argument '$arg'; --help names the groups" >&2; exit 2 ;;
    esac
done
[ ${#groups[@]} -gt 0 ] || groups=(build test)

# Lines of the groups that were asked for, each package once.
wanted=$(awk -v groups=" ${groups[*]} " \
    '!/^#/ && NF > 1 && index(groups, " " $1 " ") && !seen[$2]++ { print }' packages.txt)

if ! command -v dpkg-query >/dev/null; then
    if [ -n "$quiet" ]; then exit 0; fi # another system: the compiler will say what it misses
    echo "deps: not a Debian system; install the like of these with your package manager:" >&2
    echo "$wanted" | awk '{ p = $2; $1 = $2 = ""; printf "  %-20s %s\n", p, $0 }' >&2
    exit 1
fi

# PACKAGE/PROGRAM: any package will do that brings the program.
missing=() lines=
while read -r _ package why; do
    case $package in
    */*) ! command -v "${package#*/}" >/dev/null || continue; package=${package%/*} ;;
    esac
    case $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true) in
    ii*) ;;
    *) missing+=("$package"); lines+=$(printf '  %-20s %s' "$package" "$why")$'\n' ;;
    esac
done <<<"$wanted"

if [ ${#missing[@]} -eq 0 ]; then
    [ -n "$quiet" ] || echo "deps: all there (${groups[*]})"
    exit 0
fi
echo "deps: missing for ${groups[*]}:"
printf '%s' "$lines"
[ -z "$check" ] || exit 1

as_root=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "deps: not root, and no sudo here. As root:" \
            "apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    echo "deps: sudo is needed for apt-get"
    as_root="sudo"
fi
# Debian starts a redis-server of its own when the package is installed; nobody asked for that.
policy=/usr/sbin/policy-rc.d
guard=
if [[ " ${missing[*]} " == *" redis-server "* ]] && [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee $policy >/dev/null
    $as_root chmod 755 $policy
    guard=1
fi
finish() { [ -z "$guard" ] || $as_root rm -f $policy; }
trap finish EXIT

# On a terminal apt shows how far it is.
show=/dev/null
[ ! -t 1 ] || show=/dev/stdout
# Another apt may be at work.
apt="$as_root env DEBIAN_FRONTEND=noninteractive apt-get $([ -t 1 ] || echo -q) -o Dpkg::Use-Pty=0"
apt+=" -o DPkg::Lock::Timeout=300"
echo "deps: apt-get update"
$apt update >$show || echo "deps: apt-get update failed; trying with the lists that are here" >&2
echo "deps: apt-get install --no-install-recommends ${missing[*]}"
$apt install -y --no-install-recommends "${missing[@]}" </dev/null >$show
echo "deps: done"
