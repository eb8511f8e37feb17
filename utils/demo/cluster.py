"""A whole tarn on one machine: servers and Sentinels, nodes with disks, engines, gateways.

    with Cluster(Shape()) as cluster:
        await cluster.start()
        cluster.gateways                  # their URLs
        cluster.engine("d1").kill()
        cluster.engine("d1").again()

All of it is on free ports of 127.0.0.1, in one temporary folder. No process is left of it, however
this one ends: what is started dies with who started it (setpriv)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Dict, List, Optional, Sequence, Tuple

import aiohttp
import redis.asyncio

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "utils", "python")
ENGINE = os.path.join(ROOT, "utils", "examples", "stand_in_engine.py")
MODEL, POOL = "tarn-demo", "pool"  # what engines serve; what Sentinels call the servers
UP_S = 120  # for one that does not come up
Address = Tuple[str, int]


def program(name: str) -> str:
    """As the environment names it (TARN_SERVER), or as `make` has built it."""
    built = os.path.join(ROOT, "build", "release", name)
    return os.environ.get(name.upper().replace("-", "_"), built)


@dataclass
class Shape:
    """How many of each. gpu, speed, kv_blocks, kv_bytes: of the engines; speed: times as fast as
    that GPU; kv_bytes: of a token.
    down_after_ms: of silence, until Sentinels replace a master."""

    servers: int = 3
    sentinels: int = 3
    nodes: int = 3
    prefill: int = 4
    decode: int = 6
    gateways: int = 2
    segment: str = "8mb"
    disk: str = "512mb"
    kv_blocks: int = 512
    kv_bytes: int = 1024
    gpu: str = "H100"
    speed: float = 0.25
    down_after_ms: int = 2000


class Failed(Exception):
    """Something did not start, or not in time."""


class Process:
    """A program with a folder of its own, that ends with this process."""

    def __init__(self, name: str, folder: str, argv: Sequence[str], **env: str) -> None:
        self.name, self.argv, self.env = name, list(argv), env
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        self.log = os.path.join(self.folder, "log")
        self.process: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> None:
        """Again, if it has run before. From the main thread only: what is started dies with the
        thread that did it."""
        self.kill()
        prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*prefix, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=dict(os.environ, **self.env),
                start_new_session=True,  # Ctrl-C is for who started it
            )

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Without warning."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def end(self) -> None:
        """Kindly; it is not waited for."""
        if self.process is not None and self.runs:
            self.process.send_signal(signal.SIGTERM)

    def said(self) -> str:
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    async def up(self, whether: Callable[[], Awaitable[bool]]) -> None:
        """Until it says so. Failed: it ended, or takes too long."""
        until = time.monotonic() + UP_S
        while not await whether():
            if not self.runs or time.monotonic() > until:
                raise Failed(f"{self.name} does not start:\n{self.said()[-2000:]}")
            await asyncio.sleep(0.05)


class Ports:
    """Free ones of 127.0.0.1, outside the range from which outgoing connections take theirs; none
    is given twice."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def free(self) -> int:
        for _ in range(1000):
            port = 10000 + int.from_bytes(os.urandom(2), "little") % 20000
            with socket.socket() as s:
                try:
                    s.bind(("127.0.0.1", port))
                except OSError:
                    continue
            if port not in self._given:
                self._given.add(port)
                return port
        raise Failed("no free port")


async def ask(address: Address, *words: Any) -> Any:
    """A command, and its reply; None: nobody answers there."""
    client = redis.asyncio.Redis(
        host=address[0], port=address[1], socket_timeout=5, decode_responses=True
    )
    try:
        return await client.execute_command(*words)
    except (redis.exceptions.RedisError, OSError, asyncio.TimeoutError):
        return None
    finally:
        await client.close()
        await client.connection_pool.disconnect()


class Server(Process):
    """A tarn-server. Sentinel has its role written to a file of its own."""

    def __init__(self, name: str, folder: str, port: int, page: int) -> None:
        argv = [program("tarn-server"), "tarn.conf", "--bind", "127.0.0.1", "--port", str(port)]
        argv += ["--data-port", "0", "--pool-size", "0", "--repl-ping-replica-period", "1"]
        argv += ["--loadmodule", "http.so", "port", str(page), "--loadmodule", "conductor.so"]
        super().__init__(name, folder, argv)
        self.address, self.page = ("127.0.0.1", port), f"http://127.0.0.1:{page}/#Conductor"
        self.follows(None)

    def follows(self, master: Optional[Address]) -> None:
        """From its next start on."""
        with open(os.path.join(self.folder, "tarn.conf"), "w", encoding="ascii") as f:
            if master is not None:
                print(f"replicaof {master[0]} {master[1]}", file=f)

    async def answers(self) -> bool:
        return await ask(self.address, "PING") is not None

    async def leads(self) -> bool:
        role = await ask(self.address, "ROLE")
        return role is not None and role[0] == "master"


class Cluster:
    """servers, sentinels, nodes, engines, gateways: processes, by name in `all`."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.ports = shape, Ports()
        self.folder = tempfile.mkdtemp(prefix="tarn-demo.")
        self.all: Dict[str, Process] = {}
        self.servers: List[Server] = []
        self.sentinels: List[Address] = []
        self.engines: Dict[str, str] = {}  # name to URL
        self.gateways: Dict[str, str] = {}  # likewise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """All of it, at once: nothing of it is kept."""
        for process in reversed(list(self.all.values())):
            process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the start ---

    async def start(self) -> None:
        await self._start_servers()
        await self._start_sentinels()
        self._start_nodes()
        self._start_engines()
        self._start_gateways()
        await self.whole()

    def _add(self, process: Process) -> None:
        self.all[process.name] = process
        process.start()

    async def _start_servers(self) -> None:
        for i in range(self.shape.servers):
            server = Server(f"s{i + 1}", self.folder, self.ports.free(), self.ports.free())
            if i > 0:
                server.follows(self.servers[0].address)
            self.servers.append(server)
            self._add(server)
        for server in self.servers:
            await server.up(server.answers)

    async def _start_sentinels(self) -> None:
        count, master = self.shape.sentinels, self.servers[0].address
        for i in range(count):
            port = self.ports.free()
            sentinel = Process(f"sentinel{i + 1}", self.folder, ["redis-sentinel", "conf"])
            with open(os.path.join(sentinel.folder, "conf"), "w", encoding="ascii") as f:
                print(f"port {port}\nbind 127.0.0.1\ndir {sentinel.folder}", file=f)
                print(f"sentinel monitor {POOL} 127.0.0.1 {master[1]} {count // 2 + 1}", file=f)
                print(f"sentinel down-after-milliseconds {POOL} {self.shape.down_after_ms}", file=f)
                print(f"sentinel failover-timeout {POOL} 10000", file=f)
            self.sentinels.append(("127.0.0.1", port))
            self._add(sentinel)

    @property
    def url(self) -> str:
        """Of the pool, whoever leads it."""
        return f"tarn+sentinel://{','.join(f'{h}:{p}' for h, p in self.sentinels)}/{POOL}"

    def _start_nodes(self) -> None:
        for i in range(self.shape.nodes):
            name = f"n{i + 1}"
            argv = [program("tarn-node"), "--master", self.url, "--name", name, "--bind"]
            argv += ["127.0.0.1", "--host-name", f"machine-{i + 1}", "--port-file", "port"]
            argv += ["--segment", self.shape.segment, "--ssd", f"disk:{self.shape.disk}"]
            node = Process(name, self.folder, argv)
            os.mkdir(os.path.join(node.folder, "disk"))
            self._add(node)

    def _start_engines(self) -> None:
        shape = self.shape
        roles = [("p", "prefill", shape.prefill), ("d", "decode", shape.decode)]
        for letter, role, count in roles:
            for i in range(count):
                name, port = f"{letter}{i + 1}", self.ports.free()
                argv = [sys.executable, ENGINE, "--port", str(port), "--id", name]
                argv += ["--model", MODEL, "--role", role, "--pool", self.url]
                argv += ["--conductor", self.url, "--gpu", shape.gpu, "--speed", str(shape.speed)]
                argv += ["--kv-blocks", str(shape.kv_blocks), "--save-decode"]
                argv += ["--kv-bytes", str(shape.kv_bytes)]
                for events in ("--events-port", "--replay-port"):
                    argv += [events, str(self.ports.free())]
                self.engines[name] = f"http://127.0.0.1:{port}"
                self._add(self._python(name, argv))

    def _start_gateways(self) -> None:
        for i in range(self.shape.gateways):
            port = self.ports.free()
            argv = [sys.executable, "-m", "tarn.gateway", "--port", str(port)]
            argv += ["--master", POOL]
            for host, at in self.sentinels:
                argv += ["--sentinel", f"redis://{host}:{at}"]
            name = f"g{i + 1}"
            self.gateways[name] = f"http://127.0.0.1:{port}"
            self._add(self._python(name, argv))

    def _python(self, name: str, argv: Sequence[str]) -> Process:
        path = os.pathsep.join(filter(None, (PACKAGE, os.environ.get("PYTHONPATH"))))
        library = os.environ.get("TARN_LIB", os.path.join(ROOT, "build", "release", "libtarn.so"))
        return Process(name, self.folder, argv, PYTHONPATH=path, TARN_LIB=library)

    # --- how it is ---

    async def leader(self) -> Server:
        """Who leads; it is waited for while nobody does. Failed: it takes too long."""
        until = time.monotonic() + UP_S
        while time.monotonic() < until:
            for server in self.servers:
                if server.runs and await server.leads():
                    return server
            await asyncio.sleep(0.02)
        raise Failed("nobody leads the pool")

    async def whole(self) -> None:
        """Until everything runs, knows the others, and serves. Failed: what does not."""
        until = time.monotonic() + UP_S
        missing = await self.missing()
        while missing:
            ended = [p.name for p in self.all.values() if not p.runs]
            if ended or time.monotonic() > until:
                guilty = ended or [name for name in missing.split() if name in self.all]
                said = [f"\n--- {name}:\n{self.all[name].said()[-2000:]}" for name in guilty]
                raise Failed(f"the demo waits in vain for {missing}{''.join(said)}")
            await asyncio.sleep(0.1)
            missing = await self.missing()

    async def missing(self) -> str:
        """What there is not yet, in words; "": nothing."""
        leader = await self.leader()
        for address in self.sentinels:
            master = await ask(address, "SENTINEL", "MASTER", POOL)
            if int(pairs(master or ()).get("num-other-sentinels", -1)) < len(self.sentinels) - 1:
                return "Sentinels that know each other"
            replicas = await ask(address, "SENTINEL", "REPLICAS", POOL)
            linked = [r for r in map(pairs, replicas or ()) if r["master-link-status"] == "ok"]
            if len(linked) < len(self.servers) - 1:
                return "replicas in step"
        nodes = await ask(leader.address, "NODE", "LIST") or []
        if sum(pairs(node)["state"] == "up" for node in nodes) < self.shape.nodes:
            return "nodes"
        ranks = await ask(leader.address, "CONDUCTOR.LIST") or []
        # One that has failed may rest for a minute, however soon it is back.
        up = {r["id"] for r in map(pairs, ranks) if r["state"] in ("up", "failing")}
        if len(up) < len(self.engines):
            return f"engines: {' '.join(sorted(set(self.engines) - up))}"
        async with aiohttp.ClientSession() as http:
            for name, url in [*self.engines.items(), *self.gateways.items()]:
                if not await healthy(http, url):
                    return f"{name} at {url}"
        return ""

    async def reset_caches(self) -> None:
        """Of all engines; what a request still uses is waited for. Failed: one does not."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            for name, url in self.engines.items():
                until = time.monotonic() + UP_S
                while True:
                    async with http.post(url + "/reset_prefix_cache") as reply:
                        if reply.status == 200:
                            break
                    if time.monotonic() > until:
                        raise Failed(f"the prefix cache of {name} is still in use")
                    await asyncio.sleep(0.1)


def pairs(flat: Sequence[Any]) -> Dict[str, Any]:
    """A map, which RESP2 has as a flat list."""
    return dict(zip(flat[::2], flat[1::2]))


async def healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url + "/health", timeout=aiohttp.ClientTimeout(total=5)) as reply:
            return reply.status == 200
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
        return False
