#!/bin/bash
# The image of server, node, gateway, tools and Sentinel, from the packages in build/deb and Debian:
# packaging/container/build.sh VERSION. The result is build/image/tarn-VERSION.oci.tar, an archive
# that `skopeo copy oci-archive:FILE docker://...` pushes and `podman load` takes.
#
# Nothing is pulled: mmdebstrap makes the first layer, of Debian's packages alone. It is kept until
# their list changes; FRESH=1 makes it anew, as after fixes of security. buildah adds ours. Neither
# needs user namespaces or an overlay file system, but root.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$1 out=build/image own=packaging/container
archive=$out/tarn-$version.oci.tar
mkdir -p $out
exec 9>$out/lock
flock 9
[ "$(id -u)" = 0 ] ||
    { echo 'image: needs root, as mmdebstrap and buildah change owners' >&2; exit 1; }

debs=()
for name in tarn libtarn0 python3-tarn; do
    for deb in build/deb/"${name}_$version"-*.deb; do
        [ -e "$deb" ] || { echo "image: there is no $deb (make deb)" >&2; exit 1; }
        [[ $deb != *_arm64.deb || $(dpkg --print-architecture) = arm64 ]] || continue
        debs+=("$deb")
    done
done

is_new() {
    local input
    for input in "${debs[@]}" $own/*; do [ ! "$input" -nt "$archive" ] || return 1; done
}
if [ -z "${FRESH:-}" ] && [ -e "$archive" ] && is_new; then
    echo "$archive: $(du -m "$archive" | cut -f1) MiB"
    exit 0
fi

# What ours depend on, each once: the first of alternatives, without versions.
needed=$({
    for deb in "${debs[@]}"; do
        dpkg-deb -f "$deb" Depends | tr ',' '\n' | sed -E 's/\|.*//; s/\(.*//; s/:any//'
    done
    cat $own/packages.txt
} | tr -d ' ' | grep -vE '^(tarn|libtarn0|systemd|)$' | sort -u | paste -sd,)
base=$out/debian-$(printf %s "$needed" | sha256sum | cut -c1-16)
if [ -n "${FRESH:-}" ] || [ ! -e "$base.tar" ]; then
    rm -f $out/debian-*
    mmdebstrap --quiet --variant=essential --include="$needed" \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' bookworm "$base.new.tar"
    mv "$base.new.tar" "$base.tar"
fi

store=$(mktemp -d)
b=(buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs)
trap 'rm -rf "$store"' EXIT
container=$("${b[@]}" from scratch)
"${b[@]}" add -q "$container" "$base.tar" / >/dev/null
"${b[@]}" commit -q --rm "$container" debian >/dev/null
container=$("${b[@]}" from debian)
"${b[@]}" copy -q "$container" "${debs[@]}" $own/{setup.sh,tarn-run,tarn-health} /tmp/tarn/ \
    >/dev/null
"${b[@]}" run --isolation chroot "$container" -- \
    sh -c 'cd /tmp/tarn && ./setup.sh dpkg -i && rm -r /tmp/tarn' >$out/log 2>&1 ||
    { cat $out/log; exit 1; }
"${b[@]}" config --user 999:999 --workingdir /var/lib/tarn --volume /var/lib/tarn \
    --entrypoint '["/usr/bin/tini", "-s", "--", "tarn-run"]' --cmd server \
    --port 6479 --port 16479 --port 9479 \
    --label org.opencontainers.image.title=tarn \
    --label org.opencontainers.image.version="$version" \
    --label org.opencontainers.image.licenses=BSD-3-Clause "$container"
"${b[@]}" commit -q --rm "$container" "tarn:$version" >/dev/null
rm -f "$archive"
"${b[@]}" push -q "tarn:$version" "oci-archive:$archive:tarn:$version"
echo "$archive: $(du -m "$archive" | cut -f1) MiB"
