#!/bin/bash
# The source of what is committed, build/dist/tarn-VERSION.tar.gz: tools/dist.sh VERSION. The same
# commit gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
name=tarn-$1 out=build/dist
git rev-parse --verify -q HEAD >/dev/null || {
    echo 'dist: this is no git repository; the tarball that it came from is its source' >&2
    exit 1
}
[ -z "$(git status --porcelain)" ] || echo 'dist: what is not committed is left out'
mkdir -p "$out"
git -c tar.umask=0022 archive --format=tar --prefix="$name/" HEAD | gzip -9n >"$out/$name.part"
mv "$out/$name.part" "$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz")
