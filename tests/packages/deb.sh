#!/bin/bash
# The Debian packages of `make deb`: all four, without an error of lintian's, and units that take
# away what tarn does not need.
set -euo pipefail
cd "$(dirname "$0")/../.."
fail() { echo "deb: $*"; exit 1; }
skip() { echo "$*"; exit 77; }
command -v lintian >/dev/null || skip 'there is no lintian'

arch=$(dpkg --print-architecture)
version=$(sed -n 's/^VERSION := //p' Makefile)-1
debs=()
for name in "tarn_${version}_$arch" "libtarn0_${version}_$arch" "libtarn-dev_${version}_$arch" \
    "python3-tarn_${version}_all"; do
    [ -f "build/deb/$name.deb" ] || fail "there is no build/deb/$name.deb"
    debs+=("build/deb/$name.deb")
done
lintian --allow-root --fail-on error "${debs[@]}" || fail 'lintian found errors'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for deb in "${debs[@]}"; do dpkg-deb -x "$deb" "$work"; done
for unit in tarn-server.service tarn-node@.service; do
    # The whole of 100 is a unit without any hardening.
    systemd-analyze security --offline=yes --threshold=25 --no-pager \
        "$work/lib/systemd/system/$unit" >"$work/security" || fail "$(tail -1 "$work/security")"
done
for page in "$work"/usr/share/man/man1/*.gz; do
    said=$(zcat "$page" | LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l - 2>&1 >/dev/null)
    [ -z "$said" ] || fail "$page: $said"
done
for program in "$work"/usr/bin/*; do
    [ -f "$work/usr/share/man/man1/${program##*/}.1.gz" ] || fail "${program##*/} has no page"
done
