#!/bin/bash
# The machine that the tests run in: Debian's own kernel, which has soft-RoCE, and a memory disk
# with what any of them needs. Both are made once and kept outside the tree.
#
#   tests/rdma/guest.sh        prints the directory, in which are `vmlinux` and `base.cpio`
#
# Status 3 and the reason on standard error: it cannot be had here. The cache is $TARN_GUEST_CACHE,
# by default ~/.cache/tarn; a directory in it has the kernel's version and a sum of all that goes
# into the memory disk in its name.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${TARN_GUEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/tarn}

# The needed modules of the kernel; what another version has built in is not among its files.
modules="rdma_rxe rdma_ucm rdma_cm iw_cm ib_cm ib_uverbs ib_core configfs ip6_udp_tunnel udp_tunnel
    veth bridge stp llc crc32_generic"
# Programs of the host that go into the guest, with their libraries. Those that nothing names with
# ldd: the library of the devices, and that of C++'s ends of threads.
programs="/bin/dash /bin/ip /bin/kmod rdma rping ib_read_bw ib_write_bw ibv_devinfo redis-cli
    timeout"
libraries="/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so
    /lib/x86_64-linux-gnu/libgcc_s.so.1"
packages="busybox-static dash iproute2 kmod rdma-core libc6 libibverbs1 librdmacm1 ibverbs-providers
    rdmacm-utils ibverbs-utils perftest
    redis-tools"

cannot() {
    echo "$*" >&2
    exit 3
}

# Name and version of the kernel's package, as apt knows them; of the newest guest in the cache
# where apt knows none.
find_kernel() {
    local line
    kernel=$(apt-cache depends linux-image-amd64 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[0-9.]*-[0-9]*-amd64\)$/\1/p' | head -1) || true
    if [ -n "$kernel" ]; then
        kernel_version=$(apt-cache policy "$kernel" | sed -n 's/^ *Candidate: //p')
    else
        line=$(find "$cache" -maxdepth 1 -name 'kernel-linux-image-*' -printf '%f\n' 2>/dev/null |
            sort -V | tail -1) || true
        [ -n "$line" ] || cannot "apt knows no kernel (apt-get update), and $cache has none"
        line=${line#kernel-} kernel=${line%%_*} line=${line#*_}
        kernel_version=${line%_*}
    fi
    # Another list of modules is another directory.
    kernel_directory=kernel-${kernel}_${kernel_version}_$(echo "$modules" | sha256sum | cut -c1-6)
}

# Unpacks the kernel and its modules into the directory $1.
make_kernel() {
    local to=$1 offset module
    (cd "$to" && apt-get -q download "$kernel=$kernel_version" >log 2>&1) ||
        { tail -3 "$to/log" >&2; cannot "$kernel cannot be downloaded"; }
    dpkg-deb --fsys-tarfile "$to"/*.deb >"$to/tar"
    for module in $modules; do echo "*/$module.ko*"; done >"$to/wanted"
    tar -xf "$to/tar" -C "$to" --wildcards --no-anchored -T "$to/wanted" './boot/vmlinuz-*' \
        './lib/modules/*/modules.builtin*' './lib/modules/*/modules.order' \
        2>/dev/null || true
    # The kernel proper is the xz stream in vmlinuz; it starts 3 s sooner when the emulated
    # processor need not unpack it. Other bytes may look like the beginning of such a stream.
    for offset in $(grep -abo $'\xFD7zXZ' "$to"/boot/vmlinuz-* | cut -d: -f1); do
        tail -c +$((offset + 1)) "$to"/boot/vmlinuz-* |
            xz -dc --single-stream >"$to/vmlinux" 2>/dev/null || true
        [ "$(head -c4 "$to/vmlinux" | tail -c3)" != ELF ] || break
    done
    [ "$(head -c4 "$to/vmlinux" 2>/dev/null | tail -c3)" = ELF ] ||
        cannot "no kernel found in $kernel"
    find "$to/lib/modules" -name 'rdma_rxe.ko*' | grep -q . || cannot "$kernel has no soft-RoCE"
    # The package has no index of its modules.
    depmod -b "$to" "$(ls "$to/lib/modules")" 2>/dev/null
    rm -rf "$to"/*.deb "$to/tar" "${to:?}/boot" "$to/log" "$to/wanted"
}

# Copies a program and its libraries to where they lie here, below the directory $1.
add() {
    local to=$1 file
    shift
    for file in "$@" $(ldd "$@" 2>/dev/null | grep -oE '/[^ ]+\.so[^ :]*' | sort -u); do
        [ -e "$to$file" ] || install -D "$file" "$to/usr/${file#/usr/}"
    done
}

make_base() {
    local root=$1/root program applet
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/{dev,proc,sys,tmp,run,etc/libibverbs.d}
    for program in bin sbin lib lib64; do ln -s usr/$program "$root/$program"; done
    for program in $programs; do add "$root" "$(command -v "$program")"; done
    for program in $libraries; do add "$root" "$program"; done
    for program in modprobe insmod rmmod lsmod; do ln -s /bin/kmod "$root/sbin/$program"; done
    install -m 644 /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d"
    cp -r "$cache/$kernel_directory/lib/modules" "$root/usr/lib/"
    install -D /bin/busybox "$root/bin/busybox"
    # As programs of their own, so that a shell that is not busybox finds them, and what there is
    # already goes first.
    for applet in $(/bin/busybox --list); do
        [ -e "$root/bin/$applet" ] || [ -e "$root/sbin/$applet" ] ||
            ln -s busybox "$root/bin/$applet"
    done
    ln -sf dash "$root/bin/sh"
    printf 'root:x:0:0:root:/tmp:/bin/sh\n' >"$root/etc/passwd"
    printf '127.0.0.1 localhost guest\n' >"$root/etc/hosts"
    install "$here/guest/init" "$root/init"
    pack "$root" "$1/base.cpio"
    rm -rf "$root"
}

# Everything below directory $1 into the archive $2, which the kernel unpacks. Not packed: unpacking
# is what takes time there.
pack() {
    (cd "$1" && find . -mindepth 1 -print0 | sort -z |
        cpio --quiet --null -o -H newc -R 0:0 >"$2")
}

# make NAME FUNCTION: a directory of the cache, if it is not there; complete or not at all.
work=
trap '[ -z "$work" ] || rm -rf "$work"' EXIT
make() {
    [ ! -d "$cache/$1" ] || return 0
    mkdir -p "$cache" && work=$(mktemp -d "$cache/making.XXXXXX") || cannot "cannot write in $cache"
    chmod 755 "$work"
    "$2" "$work"
    mv -T "$work" "$cache/$1" 2>/dev/null || [ -d "$cache/$1" ] || cannot "cannot write $cache/$1"
    rm -rf "$work"
}

[ "$(uname -m)" = x86_64 ] ||
    cannot "the guest is an x86_64 machine with this machine's programs; this is $(uname -m)"
for program in apt-get dpkg-deb dpkg-query xz cpio depmod busybox qemu-system-x86_64 rping \
    ib_read_bw redis-cli; do
    PATH=$PATH:/sbin:/usr/sbin command -v $program >/dev/null || cannot "$program is not installed"
done
PATH=$PATH:/sbin:/usr/sbin
[ "${1:-}" != --pack ] || { pack "$2" "$3"; exit 0; }
find_kernel
make "$kernel_directory" make_kernel
sum=$({
    cat "$here/guest.sh" "$here/guest/init"
    echo "$kernel $kernel_version"
    dpkg-query -W $packages
} | sha256sum | cut -c1-12)
find "$cache" -maxdepth 1 -name 'guest-*' -mtime +30 -exec rm -rf {} + \
    # of former programs and scripts
make "guest-${kernel_version}-$sum" make_base
# Says that it is in use, too.
ln -sfn "../$kernel_directory/vmlinux" "$cache/guest-${kernel_version}-$sum/vmlinux"
echo "$cache/guest-${kernel_version}-$sum"
