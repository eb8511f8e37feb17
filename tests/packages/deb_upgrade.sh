#!/bin/bash
# The packages in a Debian of their own, under its systemd: installed, filled by engines through
# shared memory, and upgraded. What lives on is what docs/OPERATIONS.md says: every key with its
# bytes, and a pool in plain memory as well.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/packages/machine.sh
fail() {
    echo "deb_upgrade: $*"
    [ -z "$machine_pid" ] || machine journalctl --no-pager -u 'tarn-*' 2>/dev/null | tail -30
    exit 1
}
skip() { echo "$*"; exit 77; }
[ "$(id -u)" = 0 ] || skip 'only root can boot a machine of namespaces'
command -v mmdebstrap >/dev/null || skip 'there is no mmdebstrap'

# In memory: ten thousand small files, for a minute.
work=$(mktemp -d)
mount -t tmpfs tmpfs "$work" || skip 'nothing can be mounted here'
finish() {
    machine_halt
    umount --lazy "$work"
    rmdir "$work"
}
trap finish EXIT
arch=$(dpkg --print-architecture)
version=$(sed -n 's/^VERSION := //p' Makefile)-1
newer=$version+newer

mkdir "$work/debs" "$work/newer"
cp build/deb/{tarn,libtarn0}_"${version}_$arch.deb" build/deb/python3-tarn_"${version}_all.deb" \
    "$work/debs"
cp tests/packages/keys.py "$work/debs"
for deb in "$work"/debs/*.deb; do
    dpkg-deb -R "$deb" "$work/one"
    sed -i "s/$version/$newer/" "$work/one/DEBIAN/control"
    dpkg-deb -Znone -b "$work/one" "$work/newer/${deb##*/}" >/dev/null
    rm -r "$work/one"
done
mmdebstrap --quiet --variant=minbase --mode=root --skip=output/dev --skip=output/mknod \
    --include=systemd,redis-tools,procps --dpkgopt=force-unsafe-io \
    --aptopt='APT::Install-Recommends "false"' \
    --customize-hook="cp -r $work/debs \$1/debs" --customize-hook="cp -r $work/newer \$1/newer" \
    --customize-hook='chroot $1 sh -c "apt-get install -qy /debs/*.deb"' \
    --customize-hook='chroot $1 useradd -M -G tarn engine' \
    bookworm "$work/root" >"$work/log" 2>&1 || {
    tail -30 "$work/log"
    ! grep -qE 'Could not (resolve|connect)' "$work/log" || skip 'no mirror of Debian is reached'
    fail 'mmdebstrap'
}
machine_boot "$work/root" || skip 'systemd does not boot in namespaces here'

# --- installed: nothing runs, passwords are for tarn only

active() { machine systemctl -q is-active "$1"; }
pid_of() { machine systemctl show -P MainPID "$1"; }
cli() { machine redis-cli -p 6479 "$@"; }
keys() { # TRANSPORT put|check FROM TO
    machine runuser -u engine -- python3 /debs/keys.py tarn://127.0.0.1:6479 "$@" ||
        fail "keys $*"
}
wait_for() { # WHAT COMMAND...
    local what=$1
    shift
    for ((i = 0; i < 300; i++)); do
        ! "$@" || return 0
        sleep 0.1
    done
    fail "$what"
}
all_up() { [ "$(cli node list | grep -cx up)" = 1 ]; }

! active tarn-server || fail 'the server runs before it was configured'
[ "$(machine stat -c '%U %a' /etc/tarn/tarn.conf)" = 'tarn 640' ] || fail 'tarn.conf is not 640'
[ "$(machine stat -c '%U:%G %a' /etc/tarn/node.env)" = 'root:tarn 640' ] || fail 'node.env'

# --- filled

machine sed -i -e 's/^pool-size .*/pool-size 64mb/' \
    -e 's/^placement-strategy .*/placement-strategy free-ratio-first/' \
    -e '$a loadmodule http.so\nloadmodule conductor.so' /etc/tarn/tarn.conf
machine tee /etc/tarn/node-n1.env >/dev/null <<'ENV'
TARN_SEGMENT=64mb,path=/dev/shm/tarn-node-n1
TARN_NODE_OPTIONS=--shm-perm 660 --ssd /var/lib/tarn/n1:64mb,create --loadmodule http.so port 9480
ENV
machine systemctl start tarn-server || fail 'the server does not start'
machine systemctl start tarn-node@n1 || fail 'the node does not start'
wait_for 'the node does not join' all_up
keys shm put 0 400
keys tcp put 400 500
on_disk() { [ "$(cli node list | sed -n '/^ssd-used$/{n;p}')" -gt 0 ]; }
wait_for 'nothing is copied to the disk' on_disk
keys shm check 0 500
cli config set max-objects 123456 >/dev/null
[ "$(cli config rewrite)" = OK ] || fail 'CONFIG REWRITE'

# --- upgraded: the server is another process, the node is not

server=$(pid_of tarn-server) node=$(pid_of tarn-node@n1)
machine sh -c 'dpkg -i /newer/*.deb' >"$work/log" 2>&1 || { cat "$work/log"; fail 'dpkg'; }
[ "$(machine dpkg-query -W -f '${Version}' tarn)" = "$newer" ] || fail 'it was not upgraded'
grep -q '^Nodes were not restarted' "$work/log" || fail 'nodes are not mentioned'
active tarn-server || fail 'the server was not started again'
[ "$(pid_of tarn-server)" != "$server" ] || fail 'the old server runs on'
[ "$(pid_of tarn-node@n1)" = "$node" ] || fail 'the node was restarted'
wait_for 'the node does not come back' all_up
keys shm check 0 500
[ "$(cli config get max-objects | tail -1)" = 123456 ] || fail 'tarn.conf was overwritten'

machine /usr/share/tarn/rolling-upgrade.sh --pause 0 \
    --restart 'systemctl restart tarn-node@{name}' >"$work/log" 2>&1 ||
    { cat "$work/log"; fail 'rolling-upgrade.sh'; }
[ "$(pid_of tarn-node@n1)" != "$node" ] || fail 'the old node runs on'
keys shm put 500 600
keys tcp check 0 600

# --- a pool in plain memory is not thrown away

machine sed -i 's/^pool-path .*/pool-path ""/' /etc/tarn/tarn.conf
server=$(pid_of tarn-server)
machine sh -c 'dpkg -i /newer/tarn_*.deb' >"$work/log" 2>&1 || { cat "$work/log"; fail 'dpkg'; }
grep -q '^tarn-server was not restarted' "$work/log" || fail "dpkg said: $(cat "$work/log")"
[ "$(pid_of tarn-server)" = "$server" ] || fail 'a server with its pool in memory was restarted'
machine systemctl reload tarn-server 'tarn-node@*' || fail 'reload'
keys shm check 0 600

# --- gone

machine dpkg --purge tarn >"$work/log" 2>&1 || { cat "$work/log"; fail 'purge'; }
! active tarn-server && ! active tarn-node@n1 || fail 'removed, but it runs'
left=$(machine find /etc/tarn /var/lib/tarn /var/log/tarn /dev/shm -mindepth 1 2>/dev/null || true)
[ -z "$left" ] || fail "a purge leaves $left"
