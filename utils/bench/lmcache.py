#!/usr/bin/env python3
"""LMCache's ways to a remote store, side by side: batches of chunks as LMCache puts and gets them,
in the same run, in turn.

    utils/bench/lmcache.py [--sizes 4m,32m] [--batch 16] [--rounds 5] [--only NAME,...] [--json]

The ways, each to redis-server and to tarn-server where it can:
  redis   what LMCache's redis:// connector does: redis-py on asyncio, SET of the payload, then SET
          of the metadata; GET of both, and a copy into the engine's memory
  resp    what its native resp:// client does: 8 threads, each with a blocking socket; payload only,
          straight from and into memory
  tarn    TarnConnector: batched_put and batched_get, header and payload in one object (over shared
          memory, and over tcp)

Each way has its own event loop; payloads come from, and go to, memory that is touched before. Every
byte that was read is compared, outside of the time. Prints a table of medians: GB/s (10^9 bytes);
how many times the speed of the first way in the same round; and CPU milliseconds for each GB, of
this process and the servers together, which other programs on the machine change least. Programs:
TARN (build/release/tarn-server), REDIS (redis-server), and libtarn as the package finds it. Servers
are started on free ports of 127.0.0.1 and ended."""

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "utils", "python"), os.path.join(ROOT, "tests", "python")]

from lmcache_stubs import BFLOAT16, Config, Key, MemoryFormat, MemoryObj, Size  # noqa: E402

from tarn.lmcache import TarnConnector, _base  # noqa: E402

try:
    import redis
    import redis.asyncio
except ImportError:
    redis = None

METADATA = struct.pack("<7i", 0, 1, 3, 2, 32, 256, 1024)
RESP_THREADS = 8


class Arena:
    """LMCache's pinned memory: `n` chunks that are handed out and come back, all touched."""

    def __init__(self, n, layers, tokens, hidden):
        self.shape, self.dtype = Size([2, layers, tokens, hidden]), BFLOAT16
        self.size = self.shape.numel() * self.dtype.itemsize
        self.memory = mmap.mmap(-1, n * self.size)
        view = memoryview(self.memory)
        self.pieces = [view[i * self.size : (i + 1) * self.size] for i in range(n)]
        for piece in self.pieces:
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(piece)), 0x5A, self.size)
        self.free_pieces, self.lock = list(self.pieces), threading.Lock()
        self.use_mla, self.chunk_size, self.kv_dtype = False, tokens, self.dtype

    def get_shapes(self):
        return [self.shape]

    def get_dtypes(self):
        return [self.dtype]

    def allocate(self, shapes, dtypes, fmt=MemoryFormat.KV_2LTD, eviction=True, busy_loop=True):
        with self.lock:
            piece = self.free_pieces.pop()
        return MemoryObj(self, piece, [self.shape], [self.dtype], fmt, 0)

    def free(self, obj):
        with self.lock:
            self.free_pieces.append(obj._raw)


class RedisWay:
    """The redis:// connector of LMCache, its calls and its copies."""

    def __init__(self, port, arena):
        self.arena = arena
        self.pool = redis.asyncio.ConnectionPool.from_url(
            f"redis://127.0.0.1:{port}", max_connections=150
        )
        self.client = redis.asyncio.Redis(connection_pool=self.pool)

    async def _put(self, key, obj):
        await self.client.set(key.to_string() + "kv_bytes", obj.byte_array)
        await self.client.set(key.to_string() + "metadata", METADATA)

    async def put(self, keys, objs):
        await asyncio.gather(*(self._put(key, obj) for key, obj in zip(keys, objs)))

    async def _get(self, key):
        if await self.client.get(key.to_string() + "metadata") is None:
            return None
        obj = self.arena.allocate(self.arena.shape, self.arena.dtype)
        value = await self.client.get(key.to_string() + "kv_bytes")
        if value is None:
            obj.ref_count_down()
            return None
        obj.byte_array.cast("B")[: len(value)] = value
        return obj

    async def get(self, keys):
        return await asyncio.gather(*(self._get(key) for key in keys))

    async def drop(self, keys):
        await self.client.delete(
            *[key.to_string() + end for key in keys for end in ("kv_bytes", "metadata")]
        )

    async def close(self):
        await self.client.close()
        await self.pool.disconnect()


class RespWay:
    """The native resp:// client of LMCache: threads that each take a part of the batch."""

    def __init__(self, port, arena):
        self.arena = arena
        self.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(RESP_THREADS)]

    def _each(self, n, work):
        """work(socket, i) for every i, in consecutive parts by thread."""
        tile, errors = -(-n // RESP_THREADS), []

        def run(t):
            try:
                for i in range(t * tile, min(n, (t + 1) * tile)):
                    work(self.sockets[t], i)
            except Exception as e:
                errors.append(e)

        threads = [
            threading.Thread(target=run, args=(t,)) for t in range(RESP_THREADS) if t * tile < n
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if errors:
            raise errors[0]

    @staticmethod
    def _exactly(s, view):
        while view:
            n = s.recv_into(view)
            if n == 0:
                raise ConnectionError("closed")
            view = view[n:]

    def _line(self, s):
        line = b""
        while not line.endswith(b"\n"):
            line += s.recv(1)
        return line

    async def put(self, keys, objs):
        def one(s, i):
            key, value = keys[i].to_string().encode(), objs[i].byte_array.cast("B")
            head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key, len(value))
            parts = [memoryview(head), value, memoryview(b"\r\n")]
            while parts:
                sent = s.sendmsg(parts)
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if sent:
                    parts[0] = parts[0][sent:]
            if self._line(s) != b"+OK\r\n":
                raise ConnectionError("SET was refused")

        self._each(len(keys), one)

    async def get(self, keys):
        objs = [self.arena.allocate(self.arena.shape, self.arena.dtype) for _ in keys]

        def one(s, i):
            key = keys[i].to_string().encode()
            s.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
            if self._line(s) != b"$%d\r\n" % self.arena.size:
                raise ConnectionError("GET: not the size that was put")
            self._exactly(s, objs[i].byte_array.cast("B"))
            self._line(s)

        self._each(len(keys), one)
        return objs

    async def drop(self, keys):
        for key in keys:
            name = key.to_string().encode()
            self.sockets[0].sendall(b"*2\r\n$3\r\nDEL\r\n$%d\r\n%s\r\n" % (len(name), name))
            self._line(self.sockets[0])

    async def close(self):
        for s in self.sockets:
            s.close()


class TarnWay:
    """TarnConnector."""

    def __init__(self, port, arena, query=""):
        self.connector = TarnConnector(
            f"tarn://127.0.0.1:{port}{query}", None, arena, Config(), arena
        )

    async def put(self, keys, objs):
        await self.connector.batched_put(keys, objs)

    async def get(self, keys):
        return await self.connector.batched_get(keys)

    async def drop(self, keys):
        for key in keys:
            self.connector.remove_sync(key)

    async def close(self):
        await self.connector.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(argv, port, folder):
    """A server that answers PING."""
    log = open(os.path.join(folder, os.path.basename(argv[0]) + ".log"), "ab")
    process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)
    for _ in range(600):
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as s:
                s.sendall(b"PING\r\n")
                if s.recv(16).startswith(b"+PONG"):
                    return process
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    raise SystemExit(f"{argv[0]} does not start: see {log.name}")


def cpu_s(pids):
    """CPU time that this process and those have used, all their threads."""
    total = time.process_time()
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                total += int(f.read().split()[0]) / 1e9
    return total


async def timed(work, pids):
    """What it returns, and the seconds and CPU seconds that it took."""
    cpu, begin = cpu_s(pids), time.perf_counter()
    result = await work
    return result, time.perf_counter() - begin, cpu_s(pids) - cpu


async def measure(way, pids, sources, round_no, name, size):
    """One batch put, and got, and compared: ((seconds, CPU seconds) of the put, of the get)."""
    keys = [
        Key(round_no << 24 | i, tag="@" + name.replace(" ", "_") + size)
        for i in range(len(sources))
    ]
    _, *put = await timed(way.put(keys, sources), pids)
    objs, *get = await timed(way.get(keys), pids)
    for source, obj in zip(sources, objs):
        if obj is None or obj.byte_array.cast("B") != source.byte_array.cast("B"):
            raise SystemExit(f"{name}: a chunk is not there, or not what was put")
        obj.ref_count_down()
    await way.drop(keys)
    return put, get


def chunk_shape(size):
    """(layers, tokens, hidden) of a chunk of so many bytes: 2 * layers * tokens * hidden * 2
    bytes."""
    if size % (1 << 20):
        raise SystemExit("--sizes are whole MiB")
    return 32, size // (2 * 32 * 1024 * 2), 1024


def contenders(ports, arena, only):
    """Name and way; those that are missing here are left out."""
    every = []
    if redis is not None:
        every += [("redis:// on redis-server", lambda: RedisWay(ports["redis"], arena))]
        every += [("redis:// on tarn-server", lambda: RedisWay(ports["tarn"], arena))]
    every += [("resp:// on redis-server", lambda: RespWay(ports["redis"], arena))]
    every += [("resp:// on tarn-server", lambda: RespWay(ports["tarn"], arena))]
    every += [("tarn, shared memory", lambda: TarnWay(ports["tarn"], arena, "?transport=shm"))]
    every += [("tarn, tcp", lambda: TarnWay(ports["tarn"], arena, "?transport=tcp"))]
    every = [(name, make) for name, make in every if "redis-server" not in name or "redis" in ports]
    return [(name, make) for name, make in every if not only or any(word in name for word in only)]


def run(size_text, args, ports, pids):
    size = int(size_text.lower().rstrip("m")) << 20
    arena = Arena(args.batch, *chunk_shape(size))
    source_arena = Arena(args.batch, *chunk_shape(size))
    sources = [source_arena.allocate(arena.shape, arena.dtype) for _ in range(args.batch)]
    for i, source in enumerate(sources):
        view = source.byte_array.cast("B")
        noise = os.urandom(1 << 20)
        for at in range(0, size, len(noise)):
            view[at : at + len(noise)] = noise[i:] + noise[:i]
    ways = [(name, make()) for name, make in contenders(ports, arena, args.only)]
    loop = asyncio.new_event_loop()
    times = {name: ([], []) for name, _ in ways}
    try:
        for round_no in range(args.rounds + 1):
            for name, way in ways:
                took = loop.run_until_complete(
                    measure(way, pids, sources, round_no, name, size_text)
                )
                if round_no:  # the first warms up: connections, pages
                    times[name][0].append(took[0])
                    times[name][1].append(took[1])
            print(f"{size_text}: round {round_no} of {args.rounds}", file=sys.stderr)
    finally:
        for _, way in ways:
            loop.run_until_complete(way.close())
        loop.close()
    total, first = size * args.batch / 1e9, times[ways[0][0]]

    def cell(both, k):
        return {
            "gb_per_s": total / statistics.median(seconds for seconds, _ in both[k]),
            # Of each round: the machine is rarely the same for two of them.
            "times_the_first": statistics.median(a[0] / b[0] for a, b in zip(first[k], both[k])),
            "cpu_ms_per_gb": 1e3 * statistics.median(cpu for _, cpu in both[k]) / total,
        }

    return {name: [cell(both, 0), cell(both, 1)] for name, both in times.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="4m,32m", help="of chunks, in MiB")
    parser.add_argument("--batch", type=int, default=16, help="chunks in a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], help="words of the ways to run"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    args = parser.parse_args()
    sizes = args.sizes.split(",")
    _base.MemoryFormat = _base.MemoryFormat or MemoryFormat
    largest = max(int(size.lower().rstrip("m")) for size in sizes) * args.batch
    folder = tempfile.mkdtemp(prefix="tarn-bench.")
    processes, ports, results = [], {}, {}
    tarn_server = os.environ.get("TARN", os.path.join(ROOT, "build", "release", "tarn-server"))
    redis_server = shutil.which(os.environ.get("REDIS", "redis-server"))
    try:
        ports["tarn"] = free_port()
        argv = [
            tarn_server,
            "--bind",
            "127.0.0.1",
            "--port",
            str(ports["tarn"]),
            "--data-port",
            "0",
            "--dir",
            folder,
        ]
        processes.append(
            start(argv + ["--pool-size", f"{largest * 2 + 256}mb"], ports["tarn"], folder)
        )
        if redis_server:
            ports["redis"] = free_port()
            argv = [
                redis_server,
                "--bind",
                "127.0.0.1",
                "--port",
                str(ports["redis"]),
                "--save",
                "",
                "--dir",
                folder,
            ]
            processes.append(start(argv + ["--appendonly", "no"], ports["redis"], folder))
        for size in sizes:
            results[size] = run(size, args, ports, [process.pid for process in processes])
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        print(json.dumps(results))
        return
    print("| way | " + " | ".join(f"put {s} | get {s}" for s in sizes) + " |")
    print("| --- |" + " --- | --- |" * len(sizes))
    for name in results[sizes[0]]:
        cells = []
        for size in sizes:
            for k in (0, 1):
                cell = results[size][name][k]
                speed, times = cell["gb_per_s"], cell["times_the_first"]
                cells.append(f"{speed:.2f} GB/s, {times:.1f}x, {cell['cpu_ms_per_gb']:.0f} ms")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
