#!/bin/bash
# `make install` into a directory: what is there, that programs run from there and find the modules,
# that a C program builds with what pkg-config says; and that `make uninstall` leaves nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
fail() { echo "install: $*"; exit 1; }

root=$work/root
make -s install DESTDIR="$root"
version=$(sed -n 's/^VERSION := //p' Makefile)
(cd "$root" && find . -type f -o -type l | sort) | sed "s/\.$version$/.VERSION/" >"$work/is"
diff -u tests/packages/install.txt "$work/is" || fail 'not what tests/packages/install.txt lists'

export PATH=$root/usr/local/bin:$PATH LD_LIBRARY_PATH=$root/usr/local/lib
# Only the programs that were installed are asked, and no variable shows them another place.
unset TARN_MODULES TARN_MODULE_PATH TARN_LIB
for program in server node check; do
    [[ $("tarn-$program" --version) == "tarn-$program v="* ]] || fail "tarn-$program --version"
done
tarn-server --port auto --pool-size 32mb --bind 127.0.0.1 --dir "$work" --pidfile "$work/pid" \
    --shm-socket "$work/shm" --logfile "$work/log" --loadmodule http.so port 0 --daemonize yes ||
    fail "the server: $(cat "$work/log")"
server=$(cat "$work/pid")
port=$(sed -nE 's/.*Ready to accept.*port=([0-9]+).*/\1/p' "$work/log")

export PKG_CONFIG_LIBDIR=$root/usr/local/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
gcc -Wall -Werror examples/put_get.c -o "$work/put_get" $(pkg-config --cflags --libs tarn)
gcc -Wall -Werror examples/put_get.c -o "$work/put_get_static" $(pkg-config --cflags tarn) \
    -Wl,-Bstatic -ltarn -Wl,-Bdynamic $(pkg-config --static --libs tarn | sed 's/-ltarn//')
for program in put_get put_get_static; do
    "$work/$program" "tarn://127.0.0.1:$port" >"$work/said" || fail "$program: $(cat "$work/said")"
done

make -s uninstall DESTDIR="$root"
left=$(find "$root" ! -type d)
[ -z "$left" ] || fail "make uninstall leaves $left"
