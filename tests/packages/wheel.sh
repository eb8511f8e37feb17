#!/bin/bash
# The wheel, installed without internet into a new environment: bytes go to a server and come back,
# connectors can be imported, and so it is where the system has not the libraries that libtarn
# needs. `wheel.sh arm64`: that of build/arm64, in the Python of its sysroot (arm64.sh calls it).
set -euo pipefail
cd "$(dirname "$0")/../.."
fail() { echo "wheel: $*"; exit 1; }
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import ensurepip, pip' 2>/dev/null || {
    echo 'there is no python3-venv or no python3-pip: deps/install.sh packages'
    exit 77
}
work=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
unset TARN_LIB PYTHONPATH MAKEFLAGS MAKEOVERRIDES
case ${1:-} in
'') machine=$(uname -m) build=build/release sysroot= ;;
arm64) machine=aarch64 build=build/arm64 sysroot=$PWD/build/sysroot-arm64 ;;
*) fail "no wheels for $1" ;;
esac
# No build of its own: the library is that which is tested.
BUILD=$PWD/$build "$python" -m pip wheel -q --no-index --no-build-isolation --no-deps \
    -w "$work" utils/python
wheel=$(echo "$work"/tarn-*-py3-none-linux_"$machine".whl)
[ -f "$wheel" ] || fail "$(ls "$work")"
if [ -z "$sysroot" ]; then
    "$python" -m venv "$work/venv"
    "$work/venv/bin/pip" install -q --no-index "$wheel"
    site=$(echo "$work"/venv/lib/python3*/site-packages)
    use=("$work/venv/bin/python")
else
    [ -e "$sysroot/usr/bin/python3" ] || fail "$sysroot has no Python: remove it, and build again"
    site=$work/site
    "$python" -m pip install -q --no-index --no-deps --target "$site" \
        --only-binary=:all: --platform "linux_$machine" "$wheel"
    use=(env PYTHONPATH="$site" "qemu-$machine" -L "$sysroot" "$sysroot/usr/bin/python3")
fi

build/release/tarn-server --port auto --pool-size 32mb --bind 127.0.0.1 --dir "$work" \
    --pidfile "$work/pid" --shm-socket "$work/shm" --logfile "$work/log" --daemonize yes ||
    fail "the server: $(cat "$work/log")"
server=$(cat "$work/pid")
url=tarn://127.0.0.1:$(sed -nE 's/.*Ready to accept.*port=([0-9]+).*/\1/p' "$work/log")
cp tests/packages/wheel.py "$work"
cd /
use+=("$work/wheel.py" "$url" "$site")
"${use[@]}"

# Another system's libraries do not load here.
libs=$sysroot/usr/lib/$machine-linux-gnu
# shellcheck disable=SC2016
hide='site=$0 libs=$1
for lib in "$site"/tarn/libs/lib*; do
    mount --bind /dev/null "$libs/${lib##*/}" || exit 77
done
exec "${@:2}"'
if unshare --mount true 2>/dev/null; then
    unshare --mount bash -c "$hide" "$site" "$libs" "${use[@]}" ||
        fail 'without libraries of the system'
fi
