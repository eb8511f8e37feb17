#!/bin/bash
# tools/sysroot.sh ARCH DIR: the libraries of another architecture, for the cross compiler and
# qemu-user: Debian 12's packages of the group "build", and a Python for the wheel's test, unpacked
# into DIR. `make ARCH=arm64` calls it. Not multi-arch: libevent-dev, libjemalloc-dev and
# libmpack-dev of two architectures exclude each other.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=$1 dir=$2
command -v mmdebstrap >/dev/null || {
    echo "sysroot: mmdebstrap is missing: deps/install.sh packages" >&2
    exit 1
}
wanted=$(awk '$1 == "build" && $2 ~ /-dev$/ && !seen[$2]++ { print $2 }' deps/packages.txt |
    paste -sd,)
mkdir -p "$(dirname "$dir")"
trap 'rm -rf "$dir.$$"' EXIT
mmdebstrap --quiet --variant=extract --architectures="$arch" --include="$wanted,python3" \
    bookworm "$dir.$$"
# qemu-user looks for every path here first: /dev and /etc are the machine's own.
find "$dir.$$" -mindepth 1 -maxdepth 1 ! -name usr ! -name 'lib*' -exec rm -rf {} +
mv -T "$dir.$$" "$dir"
