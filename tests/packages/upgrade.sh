#!/bin/bash
# tarn 0.1, built from the history, and this version in one pool; from one to the other and back
# under load (tests/integration/upgrade_test.tcl). TARN_OLD: a build directory of 0.1 that is there
# already. By hand, from one's own build: CFLAGS=-O0 tests/packages/upgrade.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
old=baae9a7b60ebce5038c2e9d61893dffc8fe1f3cd
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "${TARN_OLD:-}" ] && ! git cat-file -e "$old" 2>/dev/null; then
    echo "the history has no tarn 0.1 ($old); TARN_OLD=DIR names a build of it"
    exit 77
fi
make=(make -s -j"$(nproc)")
if [ -z "${TARN_OLD:-}" ]; then
    TARN_OLD=$work/0.1/build/release
    mkdir "$work/0.1"
    git archive "$old" | tar -x -C "$work/0.1"
    targets=(tarn-server tarn-node libtarn.so tests/tools/kv)
    (cd "$work/0.1" && env -u MAKEFLAGS "${make[@]}" CC="${CC:-gcc}" CFLAGS=-O0 WERROR= \
        "${targets[@]/#/build/release/}") >"$work/log" 2>&1 ||
        { tail -20 "$work/log"; echo 'upgrade: 0.1 does not build'; exit 1; }
fi
env -u MAKEFLAGS "${make[@]}" binaries build/release/tests/tools/{kv,ha_load}
build=$PWD/build/release
export TARN_OLD TARN_SERVER=$build/tarn-server TARN_CHECK=$build/tarn-check TMPDIR=$work
unset TARN_NODE TARN_KV
tclsh tests/integration/upgrade_test.tcl
