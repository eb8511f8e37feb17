#!/bin/bash
# `make image`: the archive is unpacked, and what its configuration says is run, as that user, with
# a read-only root and an empty volume, as first process of a container: a server, a node, a
# gateway's help, the tools. Health, a value, SIGTERM, orphans.
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in buildah mmdebstrap bwrap setpriv; do
    command -v $tool >/dev/null || { echo "$tool is not installed"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo 'only root may make an image here'; exit 77; }
version=$(sed -n 's/^VERSION := //p' Makefile)
compgen -G "build/deb/tarn_$version-*.deb" >/dev/null ||
    { echo 'there are no packages: make deb'; exit 77; }
work=$(mktemp -d)
pids=()
finish() {
    [ ${#pids[@]} = 0 ] || kill -KILL "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
fail() { echo "image: $*"; cat "$work"/*.log 2>/dev/null; exit 1; }

packaging/container/build.sh "$version" >"$work/build.log" 2>&1 || fail 'it was not built'
cat "$work/build.log"
archive=build/image/tarn-$version.oci.tar
mkdir "$work/layers" "$work/root" "$work/state"
tar -xf "$archive" -C "$work/layers"
# The image's configuration as words; and its layers, one over the other.
/usr/bin/python3 - "$work" <<'END' >"$work/config"
import json, os, subprocess, sys
work = sys.argv[1]
read = lambda digest: json.load(open(f"{work}/layers/blobs/" + digest.replace(":", "/")))
manifest = read(json.load(open(f"{work}/layers/index.json"))["manifests"][0]["digest"])
for layer in manifest["layers"]:
    blob = f"{work}/layers/blobs/" + layer["digest"].replace(":", "/")
    subprocess.run(["tar", "-xf", blob, "-C", f"{work}/root"], check=True)
c = read(manifest["config"]["digest"])["config"]
print(c["User"], c["WorkingDir"], *c["Volumes"])
print(*c["Entrypoint"])
print(*c["Cmd"])
END
{ read -r user place volume; read -ra entry; read -ra command; } <"$work/config"
[ "$user" = 999:999 ] && [ "$volume" = "$place" ] || fail "user $user, $volume, $place"
# What a layer takes away from those below.
find "$work/root" -name '.wh.*' | while read -r gone; do rm -rf "$gone" "${gone/.wh./}"; done
unpacked=$(du -sm "$work/root" | cut -f1)
echo "unpacked: $unpacked MiB"
[ "$unpacked" -lt 250 ] || fail "$unpacked MiB are more than the documents say"
chown 999:999 "$work/state"

# A network of their own, with the ports that the image names.
unshare --net sh -c 'ip link set lo up && exec sleep 1000' &
net=$!
pids+=($net)
until [ "$(cat /proc/$net/comm)" = sleep ]; do sleep 0.05; done

box() { # NAME WORD...: a container; its first process is $pid
    local name=$1
    shift
    rm -f "$work/$name.info"
    mkfifo "$work/$name.info"
    nsenter --net="/proc/$net/ns/net" bwrap --unshare-pid --as-pid-1 --die-with-parent \
        --ro-bind "$work/root" / --proc /proc --dev /dev \
        --perms 1777 --tmpfs /tmp --bind "$work/state" "$volume" --chdir "$place" --clearenv \
        --setenv PATH /usr/local/bin:/usr/bin:/bin --info-fd 9 -- \
        setpriv "--reuid=${user%:*}" "--regid=${user#*:}" --clear-groups --no-new-privs \
        --bounding-set=-all -- "${entry[@]}" "$@" 9>"$work/$name.info" >"$work/$name.log" 2>&1 &
    outer=$!
    pid=$(sed -n 's/.*"child-pid": \([0-9]*\).*/\1/p' "$work/$name.info")
    pids+=("$pid")
}
inside() { nsenter -t "$1" -m -n -p setpriv --reuid=999 --regid=999 --clear-groups -- "${@:2}"; }
until_true() {
    for ((i = 0; i < 600; i++)); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
    fail "never: $*"
}

# Tools by name, and what the image says that it is.
for word in node server check; do
    box "$word" "$word" --version
    wait "$outer" || fail "$word --version"
    [[ $(cat "$work/$word.log") == "tarn-$word v=$version"* ]] ||
        fail "$word --version: $(cat "$work/$word.log")"
done
for word in gateway benchmark simulate; do
    box $word $word --help
    wait "$outer" || fail "$word --help"
    grep -q "tarn-$word" "$work/$word.log" || fail "$word --help"
done

# A server with the command of the image and options; a node, which loses its bytes to nobody.
box main "${command[@]}" --bind 127.0.0.1 --pool-size 32mb --loadmodule http.so
main=$pid main_outer=$outer
until_true inside "$main" tarn-health
until_true inside "$main" sh -c 'redis-cli -p 6479 PING | grep -x PONG'
[[ $(inside "$main" tarn-health) == 'port 9479: HTTP/1.'?' 200'* ]] || fail 'tarn-health'
box n1 node --master tarn://127.0.0.1 --name n1 --segment 32mb --loadmodule http.so port 9480
node=$pid node_outer=$outer
until_true inside "$main" sh -c 'redis-cli -p 6479 NODE LIST | grep -x up'
inside "$main" sh -c 'head -c 300000 /dev/zero | redis-cli -p 6479 -x SET k' | grep -q OK ||
    fail 'a value'
[ "$(inside "$main" redis-cli -p 6479 STRLEN k)" = 300000 ] || fail 'the value'
box libtarn python3 -c 'import tarn
c = tarn.Client("tarn://127.0.0.1")
assert c.put("p", b"x" * 100000) and bytes(c.get("p")) == b"x" * 100000'
wait "$outer" || fail 'the Python package'

# Whoever is left behind by others does not stay as a zombie of the first process.
inside "$main" sh -c '(sleep 0.1 &)'
zombies() { [ "$(ps -o stat= --ppid "$main" | grep -c Z)" != 0 ]; }
sleep 0.3
until_true eval '! zombies'

kill -TERM "$node"
wait "$node_outer" || fail "the node ended with $?"
kill -TERM "$main"
wait "$main_outer" || fail "the server ended with $?"
grep -q 'bye bye' "$work/main.log" || fail 'the server said no good bye'
box none sh -c 'tarn-health; [ $? = 1 ]'
wait "$outer" || fail 'tarn-health where nothing runs'
