#!/bin/bash
# The wheel, installed without internet into a new environment: bytes go to a server and come back,
# connectors can be imported, and so it is where the system has not the libraries that libtarn
# needs.
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
# No build of its own: the library is that which is tested.
BUILD=$PWD/build/release "$python" -m pip wheel -q --no-index --no-build-isolation --no-deps \
    -w "$work" utils/python
wheel=$(echo "$work"/tarn-*-py3-none-linux_"$(uname -m)".whl)
[ -f "$wheel" ] || fail "$(ls "$work")"
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-index "$wheel"

build/release/tarn-server --port auto --pool-size 32mb --bind 127.0.0.1 --dir "$work" \
    --pidfile "$work/pid" --shm-socket "$work/shm" --logfile "$work/log" --daemonize yes ||
    fail "the server: $(cat "$work/log")"
server=$(cat "$work/pid")
url=tarn://127.0.0.1:$(sed -nE 's/.*Ready to accept.*port=([0-9]+).*/\1/p' "$work/log")
cp tests/packages/wheel.py "$work"
cd /
use=("$work/venv/bin/python" "$work/wheel.py" "$url" "$work/venv")
"${use[@]}"

# Another system's libraries do not load here.
libs=$work/venv/lib/python3*/site-packages/tarn/libs
# shellcheck disable=SC2016
hide='for lib in $0/lib*; do
    mount --bind /dev/null "/usr/lib/$(gcc -print-multiarch)/${lib##*/}" || exit 77
done
exec "$@"'
if unshare --mount true 2>/dev/null; then
    # shellcheck disable=SC2086
    unshare --mount bash -c "$hide" $libs "${use[@]}" || fail 'without libraries of the system'
fi
