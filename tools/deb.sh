#!/bin/bash
# Debian packages of the tree, in build/deb: tools/deb.sh VERSION [--arch ARCH] [DPKG-OPTION]...
#
# They are built in a copy, build/deb/ARCH, whose objects are kept: another run compiles what has
# changed. Tests are left to `make test`; DEB_BUILD_OPTIONS= runs the unit tests. CCACHE=ccache
# compiles through it.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1-1 arch=$(dpkg --print-architecture) options=(-b) all=all
shift
if [ "${1:-}" = --arch ]; then
    arch=$2 options=(-B -d -a"$2" -Pcross,nocheck) all=
    export SYSROOT=$PWD/build/sysroot-$arch
    [ -d "$SYSROOT" ] || tools/sysroot.sh "$arch" "$SYSROOT"
    shift 2
fi
out=build/deb copy=build/deb/$arch
mkdir -p "$copy"
exec 9>"$out/lock"
flock 9

# What git knows or would add; without git, as in a tarball or an image, all that was not made here.
files() {
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files -z --cached --others --exclude-standard
    else
        find . \( -path ./build -o -path ./.git \) -prune -o -type f -print0
    fi
}
files | sort -z >"$out/files"
# What is gone here goes there; what is the same keeps its time.
find "$copy" -path "$copy/build" -prune -o -type f -printf '%P\0' | sort -z |
    comm -z -23 - <(tr '\0' '\n' <"$out/files" | sed 's|^\./||' | tr '\n' '\0') |
    (cd "$copy" && xargs -0r rm -f)
tar -c --null --ignore-failed-read -T "$out/files" 2>/dev/null | tar -x -C "$copy"
date=$(git log -1 --format=%cD 2>/dev/null || date -R)
printf 'tarn (%s) unstable; urgency=medium\n\n  * CHANGELOG.md says what is new.\n\n -- %s  %s\n' \
    "$version" "$(sed -n 's/^Maintainer: //p' debian/control)" "$date" >"$copy/debian/changelog"

rm -f "$out"/*_"${version}_$arch.deb" ${all:+"$out"/*_"${version}_all.deb"}
# What `make deb` was told, such as CC, is not for debian/rules.
unset MAKEFLAGS MFLAGS MAKELEVEL CC
if [ -z "${DEB_BUILD_OPTIONS+set}" ]; then
    # No packages of debug symbols, so none are made.
    export DEB_BUILD_OPTIONS='nocheck noautodbgsym' DEB_CFLAGS_STRIP=-g
fi
(cd "$copy" && dpkg-buildpackage -us -uc -nc "${options[@]}" "$@") >"$out/log" 2>&1 || {
    tail -40 "$out/log"
    echo "deb: dpkg-buildpackage failed; all it said is in $out/log"
    exit 1
}
ls "$out"/*_"${version}_$arch.deb" ${all:+"$out"/*_"${version}_all.deb"}
