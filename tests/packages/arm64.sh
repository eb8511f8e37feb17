#!/bin/bash
# Everything compiles for arm64, by Debian's cross compiler, and tests of what depends on the
# machine pass under qemu-user: checksums, memory, transports, a client against a server of this
# machine, each once, with pages of 64 KiB where it can; and a wheel, in a Python for arm64. Left
# out: rooms of pure code, whose tests take minutes there (`make ARCH=arm64 test-unit` runs all),
# and with large pages those that map a file over a mapping, which qemu 7.2 does not do where the
# file ends inside a page.
set -euo pipefail
cd "$(dirname "$0")/../.."
for program in aarch64-linux-gnu-gcc qemu-aarch64 mmdebstrap; do
    command -v "$program" >/dev/null || {
        echo "there is no $program: deps/install.sh packages"
        exit 77
    }
done
unset MAKEFLAGS MAKEOVERRIDES
arm64() { make -s ARCH=arm64 CC="${CCACHE:-} aarch64-linux-gnu-gcc" CFLAGS=-O2 "$@"; }
arm64 test-unit TEST_ROOMS='host transfer hosting'
QEMU_PAGESIZE=65536 arm64 test-unit TEST_ROOMS='base transport engine route'
tests/packages/wheel.sh arm64
