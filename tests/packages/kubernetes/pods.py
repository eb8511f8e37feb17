"""Runs pods of rendered manifests on this machine, as a kubelet would: each in a network and a file
system of its own, which is read-only but for its volumes, as the user that it says, with its
variables, probes, hooks and signals. A Service of one pod is a line of /etc/hosts.

The caller is alone in a network namespace: in_own_namespaces().
"""

import glob
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import manifests

BINARIES = "/opt/src"  # and modules beside them
GATEWAY = f"""#!/bin/sh
export TARN_LIB={BINARIES}/libtarn.so PYTHONPATH=/opt/utils/python
exec /usr/bin/python3 -B -m tarn.gateway "$@"
"""
NAMESPACE = "tarn"
BRIDGE = "10.78.0.254"
UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def why_not():
    """Why pods cannot run here; nothing: they can."""
    for tool in ("bwrap", "ip", "nsenter", "setpriv", "redis-sentinel"):
        if not shutil.which(tool):
            return f"{tool} is not installed"
    if os.geteuid() != 0:
        return "only root may make pods' networks"
    done = subprocess.run(
        UNSHARE + ["ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True
    )
    return f"no network namespaces here: {done.stderr}" if done.returncode else ""


def run(*argv):
    subprocess.run(argv, check=True, capture_output=True)


def wait_for(what, condition, seconds=100):
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.05)


class Cluster:
    """The network, the rendered objects, and pods by name."""

    def __init__(self, objects, folder):
        self.folder, self.pods, self.addresses, self.used = folder, {}, {}, 0
        self.data, self.templates, self.started = {}, {}, 0
        for o in objects:
            name = o["metadata"]["name"]
            if o["kind"] in ("ConfigMap", "Secret"):
                self.data[name] = o.get("data") or o["stringData"]
            if "template" in o.get("spec", {}):
                self.templates[name] = o["spec"]
        self.bin = os.path.join(folder, "bin")
        os.mkdir(self.bin)
        with open(os.path.join(self.bin, "tarn-gateway"), "w") as f:
            f.write(GATEWAY)
        os.chmod(f.name, 0o755)
        self.hosts = os.path.join(folder, "hosts")
        self.write_hosts()
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "addr", "add", f"{BRIDGE}/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")

    def write_hosts(self):
        lines = ["127.0.0.1 localhost"]
        for pod, address in self.addresses.items():
            service = self.templates[pod.rpartition("-")[0]].get("serviceName")
            # As the search list of resolv.conf makes of them.
            names = [f"{pod}.{NAMESPACE}", pod] if pod.startswith("tarn-server-") else []
            names += [f"{pod}.{service}", f"{pod}.{service}.{NAMESPACE}"] if service else []
            lines.append(" ".join([address] + names))
        # In place: it is mounted.
        with open(self.hosts, "w") as f:
            f.write("\n".join(lines) + "\n")

    def start(self, name, machine=None, keep_address=False):
        """tarn-server-0, or tarn-node-m1 on machine m1. A pod that was there is another one now,
        with empty volumes. keep_address: a Service stands before it."""
        if name not in self.addresses or not keep_address:
            self.used += 1
            self.addresses[name] = f"10.78.0.{self.used}"
        self.write_hosts()
        self.started += 1
        spec = self.templates[name.rpartition("-")[0]]
        self.pods[name] = Pod(self, name, spec["template"]["spec"], machine, self.started)
        return self.pods[name]


class Pod:
    def __init__(self, cluster, name, spec, machine, number):
        self.name, self.address = name, cluster.addresses[name]
        self.grace = spec.get("terminationGracePeriodSeconds", 30)
        (self.container,) = spec["containers"]
        who = {**spec["securityContext"], **self.container.get("securityContext", {})}
        self.user, self.host_pid = who.get("runAsUser", 0), spec.get("hostPID", False)
        self.machine = machine
        fields = {
            "metadata.name": name,
            "metadata.namespace": NAMESPACE,
            "spec.nodeName": machine,
            "status.podIP": self.address,
        }
        self.env = {"PATH": f"{BINARIES}:/opt/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        for v in self.container.get("env", []):
            source = v.get("valueFrom", {})
            if "fieldRef" in source:
                self.env[v["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "configMapKeyRef" in source:
                ref = source["configMapKeyRef"]
                if ref["key"] in cluster.data[ref["name"]] or not ref.get("optional"):
                    self.env[v["name"]] = cluster.data[ref["name"]][ref["key"]]
            elif "secretKeyRef" in source:
                ref = source["secretKeyRef"]
                self.env[v["name"]] = cluster.data[ref["name"]][ref["key"]]
            else:
                self.env[v["name"]] = re.sub(r"\$\((\w+)\)", lambda m: self.env[m[1]], v["value"])
        self.folder = os.path.join(cluster.folder, f"{name}-{number}")
        os.makedirs(self.folder)
        self.log = os.path.join(self.folder, "log")
        mounts = self.make_volumes(cluster, spec)
        for c in spec.get("initContainers", []):
            self.prepare(c, mounts)
        self.start(cluster, mounts, f"p{number}")

    def make_volumes(self, cluster, spec):
        where = {}
        for volume in spec["volumes"] + [{"name": "state"}]:
            folder = os.path.join(self.folder, "volume-" + volume["name"])
            if folder in where.values():
                continue
            if "hostPath" in volume:
                path = volume["hostPath"]["path"].replace("/", "_")
                where[volume["name"]] = os.path.join(cluster.folder, self.machine + path)
                os.makedirs(where[volume["name"]], exist_ok=True)
                continue
            os.makedirs(folder, exist_ok=True)
            source = volume.get("configMap") or volume.get("secret") or {}
            name = source.get("name") or source.get("secretName")
            if name and name not in cluster.data:
                assert source.get("optional"), f"{self.name}: there is no {name}"
            data = cluster.data.get(name, {})
            keys = {i["key"]: i["path"] for i in source["items"]} if "items" in source else data
            for key in keys:
                with open(os.path.join(folder, key), "w") as f:
                    f.write(data[key])
                os.chown(f.name, 0, 999)
                os.chmod(f.name, source.get("defaultMode", 0o644))
            os.chown(folder, 0, 999)
            os.chmod(folder, 0o2775)
            where[volume["name"]] = folder
        return [(where[m["name"]], m["mountPath"]) for m in self.container["volumeMounts"]]

    def prepare(self, container, mounts):
        """An init container, as root with the capability to change owners."""
        box = ["bwrap", "--ro-bind", "/", "/"]
        for m in container["volumeMounts"]:
            folder = next(f for f, path in mounts if path == m["mountPath"])
            box += ["--tmpfs", os.path.dirname(m["mountPath"]), "--bind", folder, m["mountPath"]]
        assert container["securityContext"]["capabilities"]["add"] == ["CHOWN"]
        run(*box, "setpriv", "--bounding-set=-all,+chown", "--inh-caps=-all", *container["args"])

    def start(self, cluster, mounts, net):
        self.holder = holder = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
        own = os.readlink("/proc/self/ns/net")
        wait_for("a network", lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own)
        self.enter = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        # Of an address that stays others remember the hardware's, too.
        hardware = "02:00:00:00:00:%02x" % int(self.address.rpartition(".")[2])
        run("ip", "link", "add", net, "type", "veth",
            "peer", "name", "eth0", "address", hardware, "netns", str(holder.pid))  # fmt: skip
        run("ip", "link", "set", net, "master", "br0", "up")
        address = f"addr add {self.address}/24 dev eth0"
        for command in ("link set lo up", "link set eth0 up", address):
            run(*self.enter, "ip", *command.split())
        box = ["--die-with-parent"] + ([] if self.host_pid else ["--unshare-pid", "--as-pid-1"])
        box += ["--proc", "/proc", "--dev", "/dev"]
        for path in ("/etc", "/var", "/var/lib", "/run", "/opt"):
            box += ["--perms", "755", "--dir", path]
        for path in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/sys"):
            if os.path.islink(path):
                box += ["--symlink", os.readlink(path), path]
            elif os.path.exists(path):
                box += ["--ro-bind", path, path]
        for name in ("ld.so.cache", "alternatives", "nsswitch.conf", "ssl"):
            box += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        box += ["--ro-bind", cluster.hosts, "/etc/hosts", "--ro-bind", cluster.bin, "/opt/bin"]
        for part in ("src", "modules", "utils"):
            box += ["--ro-bind", os.path.join(manifests.ROOT, part), f"/opt/{part}"]
        for folder, path in mounts:
            read_only = any(s in folder for s in ("volume-config", "volume-secret", "volume-tls"))
            box += ["--ro-bind" if read_only else "--bind", folder, path]
        info_r, info_w = os.pipe()
        self.as_user = ["setpriv", f"--reuid={self.user}", "--regid=999", "--clear-groups",
                        "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]  # fmt: skip
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                self.enter + ["bwrap", "--info-fd", str(info_w)] + box + ["--remount-ro", "/"]
                + ["--"] + self.as_user + self.container["args"],
                stdout=log, stderr=subprocess.STDOUT, env=self.env, pass_fds=[info_w],
            )  # fmt: skip
        os.close(info_w)
        with os.fdopen(info_r) as f:
            said = f.read()
        assert said, f"{self.name} did not start: {self.text()}"
        self.pid = json.loads(said)["child-pid"]

    def text(self):
        with open(self.log) as f:
            return f.read()

    def inside(self, *argv, **env):
        """A command in its container, as kubectl exec has it. What it printed."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.pid), "-m", "-n", "-p"] + self.as_user + list(argv),
            env={**self.env, **env}, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.strip() + done.stderr.strip()

    def probe(self, kind):
        what = self.container[kind]
        ports = {p["name"]: p["containerPort"] for p in self.container["ports"]}
        try:
            if "tcpSocket" in what:
                port = ports[what["tcpSocket"]["port"]]
                socket.create_connection((self.address, port), 1).close()
                return True
            port = ports[what["httpGet"]["port"]]
            link = http.client.HTTPConnection(self.address, port, timeout=1)
            link.request("GET", what["httpGet"]["path"])
            return link.getresponse().status < 400
        except OSError:
            return False

    def wait_ready(self):
        def ready():
            assert self.process.poll() is None, f"{self.name} ended: {self.text()}"
            return self.probe("readinessProbe")

        try:
            wait_for(f"{self.name} is ready", ready)
        except AssertionError:
            print(self.text()[-3000:])
            raise
        assert self.probe("livenessProbe")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.end(10)

    def end(self, seconds):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            print(self.text()[-3000:])
            raise
        finally:
            self.holder.kill()
            self.holder.wait()

    def stop(self, seconds=20):
        """As the kubelet: preStop, SIGTERM to the first process. The exit status."""
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook:
            said = self.inside(*hook["exec"]["command"])
            if said:
                print(f"{self.name}: {said}")
        os.kill(self.pid, signal.SIGTERM)
        return self.end(min(seconds, self.grace))


def in_own_namespaces(argv):
    return subprocess.run(UNSHARE + argv).returncode
