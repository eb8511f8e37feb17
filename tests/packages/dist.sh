#!/bin/bash
# The source tarball: the same bytes twice, whole, and without git it builds by itself.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "dist: $*"; exit 1; }
if ! git rev-parse --verify -q HEAD >/dev/null; then
    echo 'this is no git repository'
    exit 77
fi

version=$(make -s version)
make -s dist >"$work/said"
sum=$(sha256sum <"build/dist/tarn-$version.tar.gz")
TZ=Asia/Tokyo LC_ALL=C make -s dist >"$work/said"
[ "$sum" = "$(sha256sum <"build/dist/tarn-$version.tar.gz")" ] || fail 'not the same bytes twice'
grep -q "^## $version\b" CHANGELOG.md || fail "CHANGELOG.md does not begin with $version"

tar -C "$work" -xzf "build/dist/tarn-$version.tar.gz"
cd "$work/tarn-$version"
# Objects are taken over, so that what is missing shows without compiling it all; what is made anew
# is one program, and all links.
export GIT_CEILING_DIRECTORIES=$work
mkdir build
cp -a "$OLDPWD/build/release" build/
rm -rf build/release/tarn-* build/release/src/check
make -s -j"$(nproc)" || fail 'it does not build'
[ "$(src/tarn-check --version)" = "tarn-check v=$version" ] || fail 'tarn-check --version'
[[ $(src/tarn-server --version) == "tarn-server v=$version "* ]] || fail 'tarn-server --version'
