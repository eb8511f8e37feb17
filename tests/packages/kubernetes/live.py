"""The pods of the overlays, running, under loads that are checked. live.py OVERLAY: by
pods.in_own_namespaces."""

import http.client
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading

import manifests
from pods import BRIDGE, Cluster, wait_for

ENGINE = """
import os, tarn
client = tarn.Client(os.environ["TARN_URL"])
value = b"y" * 1_000_000
assert client.put("from an engine", value) and bytes(client.get("from an engine")) == value
stats = client.stats()
assert stats["shm_bytes_read"] == stats["shm_bytes_written"] == len(value), stats
"""
VALUE = "x" * 100_000
KEYS = 20


def small(objects):
    """With little memory: this machine is no server of inference."""
    for o in objects:
        if o["kind"] == "ConfigMap":
            for k, v in o["data"].items():
                o["data"][k] = v.replace("200gb", "64mb").replace("8gb", "64mb")
    return objects


def certificates(folder):
    """The Secret tarn-tls, as cert-manager makes it."""
    script = """set -e; cd "$1"; ec='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        openssl req -x509 $ec -days 2 -keyout ca.key -out ca.crt -subj /CN=ca
        openssl req $ec -keyout tls.key -out tls.csr -subj /CN=tarn
        openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
            -out tls.crt -extfile <(echo subjectAltName=DNS:tarn)"""
    subprocess.run(["bash", "-c", script, "-", folder], check=True, capture_output=True)
    data = {}
    for name in ("ca.crt", "tls.crt", "tls.key"):
        with open(os.path.join(folder, name)) as f:
            data[name] = f.read()
    return {"kind": "Secret", "metadata": {"name": "tarn-tls"}, "stringData": data}


class Pool:
    def __init__(self, overlay, folder):
        secrets = manifests.secrets()
        objects = small(manifests.render(overlay)) + manifests.engines() + secrets
        self.tls = []
        if overlay == "full":
            objects.append(certificates(folder))
            for option, name in (("cacert", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key")):
                self.tls += [f"--{option}", f"/etc/tarn-tls/{name}"]
            self.tls.append("--tls")
        self.cluster = Cluster(objects, folder)
        self.pod = self.cluster.pods
        self.start = self.cluster.start
        self.admin = secrets[0]["stringData"]["admin-password"]

    def ask(self, name, *command):
        return self.pod[name].inside(
            "redis-cli", "--no-auth-warning", *self.tls, "-p", "6479", *command,
            REDISCLI_AUTH=self.admin,
        )  # fmt: skip

    def ask_from(self, where, server, *command):
        """From another pod, by the server's name; a server that is gone is silent."""
        return self.pod[where].inside(
            "timeout", "1", "redis-cli", "--no-auth-warning", *self.tls, "-h", server + ".tarn",
            "-p", "6479", *(str(c) for c in command), REDISCLI_AUTH=self.admin,
        )  # fmt: skip

    def sentinel(self, i, *command):
        pod = self.pod[f"tarn-sentinel-{i}"]
        return pod.inside("redis-cli", *self.tls, "-p", "26379", *command)

    def master(self):
        """On which all Sentinels agree."""
        found = {
            self.sentinel(i, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "pool").split("\n")[0]
            for i in range(3)
        }
        return found.pop().split(".")[0] if len(found) == 1 else None

    def other_master(self, former):
        def found():
            now = self.master()
            return now if now != former else None

        return wait_for("another master", found)

    def is_whole(self):
        """No Sentinel misses anybody, or knows one too many."""
        return all(
            re.search("status=ok,.*slaves=2,sentinels=3", self.sentinel(i, "INFO", "sentinel"))
            for i in range(3)
        )

    def ready(self):
        for p in self.pod.values():
            p.wait_ready()

    def fill(self, server):
        for i in range(KEYS):
            said = self.ask(server, "SET", f"k{i}", VALUE)
            assert said == "OK", said

    def has_all(self, server):
        return all(self.ask(server, "GET", f"k{i}") == VALUE for i in range(KEYS))

    def stop(self, name):
        status = self.pod[name].stop()
        assert status == 0, f"{name} ended with {status}: {self.pod[name].text()}"


def start_ha(pool):
    for i in range(3):
        pool.start(f"tarn-server-{i}")
        pool.start(f"tarn-sentinel-{i}")
    for machine in ("m1", "m2"):
        pool.start(f"tarn-node-{machine}", machine)
    pool.ready()
    wait_for("all Sentinels", pool.is_whole)
    assert pool.master() == "tarn-server-0"
    pool.fill("tarn-server-0")


def hand_over(pool):
    """The master's pod is deleted, under writes: first another one leads. It comes back with
    nothing."""
    promised, over = [], threading.Event()

    def write():
        for i in itertools.count():
            if over.is_set():
                break
            for server in range(3):
                # Of a server that has ended there is no inside to ask from.
                if "OK" == pool.ask_from(
                    "tarn-sentinel-0", f"tarn-server-{server}", "SET", f"w{i}", i
                ):
                    promised.append(i)

    writer = threading.Thread(target=write)
    writer.start()
    wait_for("writes", lambda: len(promised) > 20)
    try:
        pool.stop("tarn-server-0")
        leader = pool.other_master("tarn-server-0")
        before = len(promised)
        wait_for("writes go on", lambda: len(promised) > before + 20)
    finally:
        over.set()
        writer.join()
    for i in promised:
        assert pool.ask(leader, "GET", f"w{i}") == str(i), f"w{i} is lost, of {len(promised)}"
    pool.start("tarn-server-0", keep_address=True).wait_ready()
    assert pool.ask("tarn-server-0", "ROLE").startswith("slave")
    wait_for("all nodes and values", lambda: pool.has_all(leader))
    return leader


def test_ha(pool):
    start_ha(pool)
    leader = hand_over(pool)

    # A Sentinel loses its files, and has another address.
    pool.pod["tarn-sentinel-1"].kill()
    pool.start("tarn-sentinel-1").wait_ready()
    wait_for("three Sentinels, not four", pool.is_whole)

    pool.pod[leader].kill()
    second = pool.other_master(leader)
    pool.start(leader, keep_address=True).wait_ready()
    wait_for("all nodes and values", lambda: pool.has_all(second))
    wait_for("all Sentinels", pool.is_whole)

    # A machine leaves the pool.
    pool.stop("tarn-node-m1")
    assert pool.has_all(second)
    pool.stop("tarn-sentinel-0")


class Engine:
    """A stand-in of one, registered with the Conductor, and a gateway before it."""

    def __init__(self, pool, leader):
        self.process = subprocess.Popen(
            [os.path.join(manifests.ROOT, "utils/examples/stand_in_engine.py"), "--host", BRIDGE,
             "--model", "toy", "--events-port", "-1"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert line.startswith("ready "), line
        said = pool.ask(leader, "CONDUCTOR.ADD", "e1", line.split()[1], "MODEL", "toy")
        assert said == "OK", said
        self.gateway = pool.start("tarn-gateway-0")
        self.gateway.wait_ready()

    def is_asked(self):
        """By way of the Conductor, not of a gateway that is alone."""
        link = http.client.HTTPConnection(self.gateway.address, 8000, timeout=60)
        body = {"model": "toy", "prompt": "Hello", "max_tokens": 4}
        link.request("POST", "/v1/completions", json.dumps(body))
        answer = link.getresponse()
        said = answer.read().decode()
        assert answer.status == 200 and json.loads(said)["choices"][0]["text"], said
        assert answer.headers["X-Tarn-Engine"] == "e1", answer.headers
        return answer.headers["X-Tarn-Routed"] == "conductor"

    def end(self):
        assert self.gateway.stop() == 0, self.gateway.text()
        self.process.terminate()
        assert self.process.wait(20) == 0


def test_full(pool):
    start_ha(pool)
    engine = Engine(pool, "tarn-server-0")
    assert engine.is_asked(), engine.gateway.text()
    leader = hand_over(pool)
    wait_for("requests go by the other master's Conductor", engine.is_asked)
    engine.end()
    node = pool.pod["tarn-node-m1"]
    assert "Module rdma" in node.text(), node.text()

    # What disks have is there again after all nodes.
    def on_disk():
        words = pool.ask(leader, "NODE", "LIST").split("\n")
        used = sum(int(n) for word, n in zip(words, words[1:]) if word == "ssd-used")
        return used >= KEYS * len(VALUE)

    wait_for("copies on the disks", on_disk)
    for machine in ("m1", "m2"):
        pool.pod[f"tarn-node-{machine}"].kill()
    for machine in ("m1", "m2"):
        pool.start(f"tarn-node-{machine}", machine).wait_ready()
    wait_for("all values", lambda: pool.has_all(leader))

    # An engine on the node's machine: by shared memory, between pods.
    pod = pool.cluster.templates["vllm"]["template"]["spec"]
    (container,) = pod["containers"]
    pod["volumes"].append({"name": "tls", "secret": {"secretName": "tarn-tls"}})
    container["volumeMounts"].append({"name": "tls", "mountPath": "/etc/tarn-tls"})
    url = container["env"][-1]
    assert url["name"] == "TARN_URL", url
    url["value"] = (
        "tarns"
        + url["value"].removeprefix("tarn")
        + (
            "&tls_ca_file=/etc/tarn-tls/ca.crt&tls_cert_file=/etc/tarn-tls/tls.crt"
            "&tls_key_file=/etc/tarn-tls/tls.key&tls_server_name=tarn"
        )
    )
    container["args"] = ["env", "PYTHONPATH=/opt/utils/python", "TARN_LIB=/opt/src/libtarn.so",
                         "python3", "-c", ENGINE]  # fmt: skip
    engine = pool.start("vllm-0", "m1")
    assert engine.end(60) == 0, engine.text()


def test_nodes(pool):
    # A node waits for its master, and ends while it does: as the first process, which the kernel
    # spares signals without a handler.
    pool.start("tarn-server-0").kill()
    node = pool.start("tarn-node-m1", "m1")
    wait_for("it waits", lambda: "Waiting for the master" in node.text())
    assert node.probe("livenessProbe") and not node.probe("readinessProbe")
    assert node.stop() == 143
    pool.start("tarn-server-0", keep_address=True)
    pool.start("tarn-node-m1", "m1")
    pool.ready()
    pool.fill("tarn-server-0")
    assert pool.has_all("tarn-server-0")
    pool.stop("tarn-server-0")


def test_one_node(pool):
    pool.start("tarn-server-0").wait_ready()
    pool.fill("tarn-server-0")
    assert pool.has_all("tarn-server-0")
    pool.stop("tarn-server-0")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        test = {"ha": test_ha, "full": test_full, "nodes": test_nodes, "one-node": test_one_node}
        test[sys.argv[1]](Pool(sys.argv[1], place))
