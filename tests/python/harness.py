"""Servers, nodes and a base class for the tests in this folder.

    from harness import Node, Server, TarnTest, free_port

Programs are named by the environment: TARN_SERVER, TARN_NODE, TARN_LIB; without it those of
build/release are used. Every process that is started here is ended here."""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
for _path in (
    os.path.join(ROOT, "utils", "python", "compat"),
    os.path.join(ROOT, "utils", "python"),
):
    if _path not in sys.path:
        sys.path.insert(0, _path)

SERVER = os.environ.get("TARN_SERVER", os.path.join(ROOT, "build", "release", "tarn-server"))
NODE = os.environ.get("TARN_NODE", os.path.join(ROOT, "build", "release", "tarn-node"))
# Binaries with a sanitizer are slower; waits are longer there.
SLOW = 1 if os.environ.get("TARN_SANITIZER", "") == "" else 4


def environment(python=False):
    """That of a program which is started: what is preloaded into Python for a sanitizer is not for
    others, but for a `python`."""
    env = dict(os.environ)
    if python:
        return env
    env.pop("LD_PRELOAD", None)
    if "TARN_ASAN_OPTIONS" in env:
        env["ASAN_OPTIONS"] = env["TARN_ASAN_OPTIONS"]
    return env


def free_port():
    """A TCP port of 127.0.0.1 that nobody listens on, outside the range from which outgoing
    connections take theirs."""
    for _ in range(100):
        port = 10000 + int.from_bytes(os.urandom(2), "little") % 20000
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no free port")


def wait_until(condition, seconds=300, what="the condition"):
    """Until condition() is true; its value. AssertionError when it takes too long."""
    until = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not come true within {seconds * SLOW} s")
        time.sleep(0.01)


def together(work, many):
    """Calls work(one) for each of many, all at the same time in threads; then raises what one of
    them raised."""
    errors = []

    def guarded(one):
        try:
            work(one)
        except BaseException as e:  # told by the caller's thread
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Part:
    """Another process that plays a part in a test: a program of this folder, whose standard input
    and output are pipes of lines."""

    def __init__(self, program, *arguments, **variables):
        here = os.path.dirname(os.path.abspath(__file__))
        path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(here, program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, TARN_TEST_PATH=path, **variables),
        )

    def line(self):
        """The next one it says."""
        return self.process.stdout.readline().strip()

    def stop(self):
        """Ends it without warning."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Process:
    """A program with a directory of its own, that ends with it."""

    def __init__(self, prefix):
        self.dir = tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("TMPDIR"))
        self.log = os.path.join(self.dir, "log")
        self.process = None

    def spawn(self, argv):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=self.dir,
            )

    def output(self):
        with open(self.log, "r", errors="replace") as f:
            return f.read()[-4000:]

    @property
    def pid(self):
        return self.process.pid

    def pause(self):
        """Stops it where it is."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        """Ends it without warning."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def stop(self):
        """Ends it kindly, and removes its directory."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20 * SLOW)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()


def pattern(n, seed=0):
    """n bytes that look like noise, and are the same for the same arguments."""
    return random.Random(n * 7919 + seed).randbytes(n)


class Server(Process):
    """A tarn-server on a free port of 127.0.0.1: `port`, `url`. Further arguments are the
    server's. conf: the text of its configuration file, tarn.conf in dir."""

    def __init__(self, pool="64mb", *args, user="", conf=None):
        super().__init__("tarn-py-server.")
        self.args, self.pool, self.user, self.conf = args, pool, user, []
        if conf is not None:
            self.conf = [os.path.join(self.dir, "tarn.conf")]
            with open(self.conf[0], "w", encoding="utf-8") as f:
                f.write(conf)
        for attempt in range(5):
            self.port = free_port()
            if self.start(fail=attempt == 4):
                return

    @property
    def url(self):
        return f"tarn://{self.user}127.0.0.1:{self.port}"

    def start(self, fail=True):
        """Starts it and waits until it answers; False (or RuntimeError) if it ended instead."""
        argv = [
            SERVER,
            *self.conf,
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--data-port",
            "0",
            "--dir",
            self.dir,
        ]
        self.spawn(argv + ["--pool-size", self.pool, *self.args])
        until = time.monotonic() + 30 * SLOW
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as s:
                    s.sendall(b"PING\r\n")
                    answer = s.recv(64)
                    if answer.startswith(b"+PONG") or answer.startswith(b"-NOAUTH"):
                        return True
            except OSError:
                pass
            time.sleep(0.02)
        self.kill()
        if fail:
            raise RuntimeError("tarn-server does not start: " + self.output())
        return False

    def restart(self):
        """Killed, and started again on the same port, empty."""
        self.kill()
        self.start()


class Monitor:
    """The commands that a server gets, as MONITOR shows them: `with Monitor(server) as m: ...;
    m.lines("PREFIXLEN")`."""

    def __init__(self, server):
        self.server = server
        self.socket = socket.create_connection(("127.0.0.1", server.port), 30 * SLOW)
        self.socket.sendall(b"MONITOR\r\n")
        self.text = b""
        self._read(b"+OK\r\n")

    def _read(self, end):
        while end not in self.text:
            more = self.socket.recv(1 << 16)
            if not more:
                raise RuntimeError("MONITOR ended: " + repr(self.text[-200:]))
            self.text += more

    def lines(self, *names):
        """Those commands of these names so far, their words in order."""
        mark = os.urandom(8).hex()
        with socket.create_connection(("127.0.0.1", self.server.port), 30 * SLOW) as s:
            s.sendall(f"ECHO {mark}\r\n".encode())
            s.recv(64)
        self._read(mark.encode())
        found = [re.findall(r'"((?:[^"\\]|\\.)*)"', t) for t in self.text.decode().split("\r\n")]
        return [words for words in found if words and words[0].upper() in names]

    def hints(self, *names):
        """The hints of those commands, a dict of each: {"SESSION": id, "RETURN": ms}."""
        return [
            {w[i + 1]: w[i + 2] for i, word in enumerate(w) if word == "HINT"}
            for w in self.lines(*names)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.socket.close()


class Node(Process):
    """A tarn-node that has joined `server`. `name` is the node's. Further arguments are
    tarn-node's."""

    def __init__(self, server, *args, name=None, pool="64mb"):
        super().__init__("tarn-py-node.")
        self.server, self.name = server, name or f"node-{os.urandom(4).hex()}"
        self.args, self.pool = args, pool
        self.start()

    def start(self):
        """Starts it and waits until it has joined; `data_port` is its data port then."""
        port_file = os.path.join(self.dir, "port")
        if os.path.exists(port_file):
            os.unlink(port_file)
        argv = [NODE, "--master", self.server.url, "--name", self.name, "--segment", self.pool]
        self.spawn(argv + ["--bind", "127.0.0.1", "--port-file", port_file, *self.args])
        self.data_port = int(
            wait_until(lambda: self._port(port_file), 60, f"node {self.name} joins")
        )

    def _port(self, path):
        if self.process.poll() is not None:
            raise RuntimeError("tarn-node does not start: " + self.output())
        try:
            with open(path) as f:
                return f.read().strip()
        except OSError:
            return ""


class TarnTest(unittest.TestCase):
    """A test class with a server of its own: self.server, and self.client() makes clients that are
    closed afterwards.

    `pool` and `server_args` of the class say how the server is started. Set `pool = None` for none.
    """

    pool = "64mb"
    server_args = ()
    server = None

    @classmethod
    def setUpClass(cls):
        if cls.pool is not None:
            cls.server = Server(cls.pool, *cls.server_args)
            cls.addClassCleanup(cls.server.stop)

    def client(self, query="", **options):
        import tarn

        client = tarn.Client(self.server.url + query, **options)
        self.addCleanup(client.close)
        return client

    def engine_uses_server(self):
        """TARN_URL names this server until the test ends; the server is empty."""
        patched = mock.patch.dict(os.environ, {"TARN_URL": self.server.url})
        patched.start()
        self.addCleanup(patched.stop)
        self.client().command("FLUSHALL")

    def waiting(self, n=1):
        """Until n clients wait at the server for keys to come."""
        import tarn

        with tarn.Client(self.server.url) as client:
            wait_until(
                lambda: f"waiting_clients:{n}\r" in client.command("INFO", "clients"),
                what=f"{n} clients wait",
            )
