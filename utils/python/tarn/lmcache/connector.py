"""LMCache's remote connector for the pool: a chunk is one object, and a batch of chunks a constant
number of round trips.

Where things run: LMCache calls the coroutines on its event loop, and the plain methods from its own
threads. Bytes move in threads of ours, reads and writes in pools of their own so that no get waits
behind puts; the GIL is free meanwhile, and nothing is copied between the pool (or the socket) and
LMCache's memory.

Reference counts: `put` and `batched_put` take a reference of their own for as long as a thread
reads the memory, and leave the caller's alone (LMCache's wrapper drops that one, at once when it
gives up waiting). Objects that a get allocated belong to the caller when they are returned, and are
released here in every other case.

Names: LMCache's own, and a digest of what they do not say about a chunk's bytes (`facts_of`).

Puts: a chunk's name says its bytes, so who puts one that is there has nothing to do. Others mean to
replace what is there: a value that this process could not use, and keys that are no chunks of this
engine, as LMCache's health check has one, which puts other bytes under one fixed key each time and
compares. That key is every connector's own, so that ranks which check at once do not read each
other's.

Errors: what LMCache would take for a broken cache is a miss here. A get of what cannot be read is
None, a put that finds no room or no server is dropped, and the log says so once a minute."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional, Sequence

from ..client import Client
from .._distrust import Distrust
from .._figures import cluster_of
from .._hints import hints_of
from ..errors import Error, Status, done, status_name
from ..identity import Facts, digest, first
from ..memory import Pinned, pin
from ..options import HintKeywords, number, truth
from . import _base
from .gate import Gate
from .metadata import HEADER_BYTES, HeaderError, Layout, expected_layout
from .objects import Allocator, Headers, memory_of, release
from .spread import spread

_KEY_MAX = 1024
_SCAN_KEYS_MAX = 1 << 20


def pool_key(key: Any, suffix: str = "") -> str:
    """The key of a chunk in the pool: LMCache's own text and a suffix, its end replaced by a hash
    where it is longer than keys may be."""
    text: str = (key if isinstance(key, str) else key.to_string()) + suffix
    if len(text) <= _KEY_MAX // 4 or len(text.encode()) <= _KEY_MAX:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text.encode()[: _KEY_MAX - 70].decode(errors="ignore") + "@sha" + digest


def facts_of(config: Any, metadata: Any) -> Facts:
    """What LMCache's configuration and metadata say about the bytes of a chunk and its keys do not.
    Numbers of tokens are no part of it: a chunk with fewer of them says so in its header."""
    shape = getattr(metadata, "kv_shape", None)
    if shape is not None:
        shape = [int(n) for i, n in enumerate(shape) if i != 2]
    extra = getattr(config, "extra_config", None) or {}
    serde = first(config, "remote_serde")
    return Facts(
        format="KV_MLA_FMT" if getattr(metadata, "use_mla", False) else None,
        shape=shape,
        cache_dtype=first(metadata, "kv_dtype"),
        storage=None
        if serde in (None, "naive")
        else [serde, *(extra.get(n) for n in sorted(extra) if "serde" in n)],
        blending=bool(getattr(config, "enable_blending", False)) or None,
    )


def is_probe(key: Any) -> bool:
    """LMCache's health check has a key that no chunk has: the hash of its tokens is 0."""
    hashed = getattr(key, "chunk_hash", None)
    if isinstance(hashed, (bytes, bytearray)):
        return not any(hashed)
    return hashed in (0, "0")


def _told(keys: Sequence[Any]) -> Dict[str, Any]:
    """What came with a request for us: LMCache's keys carry what its `kv_transfer_params` say under
    "lmcache.", and a batch is of one request."""
    configs = getattr(keys[0], "request_configs", None) if keys else None
    if not isinstance(configs, dict):
        return {}
    return {name: configs.get(f"lmcache.{name}") for name in ("tarn_session", "tarn_return_ms")}


def _chunk_kind(key: Any) -> str:
    """Chunks of one layer and chunks of all of them have layouts of their own."""
    return "layer" if getattr(key, "layer_id", None) is not None else "chunk"


class TarnConnector(_base.RemoteConnector):  # type: ignore[misc]
    """`url` as tarn.Client takes it. Options (LMCache's extra_config has them as "tarn.NAME"):
    `get_threads`, `put_threads`; `pin_ms`, how long a lookup that pins protects what it found;
    `put_backlog`, how many puts may wait before further ones are dropped; `replicas` of what is
    put, 0: the server's default; `hints`: the pool's eviction policy is told the session that a
    request's keys say, else, of look-ups and the gets that follow, LMCache's look-up;
    `namespace`: engines with another one share nothing, for what neither LMCache's keys nor its
    configuration tell apart. ConnectionFailed and the like: no server. `client`: one to use
    instead of an own one, which stays open at the end."""

    def __init__(
        self,
        url: str,
        loop: Optional[asyncio.AbstractEventLoop],
        local_cpu_backend: Any,
        config: Any = None,
        metadata: Any = None,
        *,
        client: Optional[Client] = None,
        get_threads: int = 4,
        put_threads: int = 2,
        pin_ms: int = 5000,
        put_backlog: int = 1024,
        replicas: int = 0,
        namespace: str = "",
        hints: Any = True,
    ) -> None:
        if (
            _base.RemoteConnector is not _base.PlainRemoteConnector
            and metadata is not None
            and config is not None
        ):
            super().__init__(config, metadata)
        get_threads = number(get_threads, "tarn.get_threads", 1, 65536)
        put_threads = number(put_threads, "tarn.put_threads", 1, 65536)
        put_backlog = number(put_backlog, "tarn.put_backlog", 1, 65536)
        pin_ms = number(pin_ms, "tarn.pin_ms", 0, 1 << 32)
        replicas = number(replicas, "tarn.replicas", 0, 65536)
        if not isinstance(namespace, str) or len(namespace) > 128:
            raise ValueError(f"tarn.namespace is text of up to 128 characters, not {namespace!r}")
        self.loop = loop
        self.local_cpu_backend = local_cpu_backend
        self._logger = _base.logger_of(__name__)
        self._troubles = _base.Troubles(self._logger)
        self._gate = Gate(self._troubles)
        self._metadata = metadata
        self._model = getattr(metadata, "model_name", None)
        self._suffix = f"@{namespace}" if namespace else ""
        self._suffix += "@" + digest(facts_of(config, metadata))
        self._own = f"@{uuid.uuid4().hex[:16]}"
        self._distrust = Distrust()
        self._format = "KV_MLA_FMT" if getattr(metadata, "use_mla", False) else "KV_2LTD"
        self._learned: Dict[str, Layout] = {}
        self._allocator = Allocator(local_cpu_backend, metadata, _base.MemoryFormat)
        self._headers = Headers()
        self._put_options: Dict[str, Any] = {"replicas": replicas} if replicas else {}
        self._hints = truth(hints, "tarn.hints")
        self._pin_ms, self._put_room = pin_ms, threading.BoundedSemaphore(put_backlog)
        self._own_client = client is None
        self._client = (
            Client(url, max_lanes=get_threads + put_threads + 2) if client is None else client
        )
        self._gate.publish(self._client, cluster_of(url, {}))
        self._get_threads, self._put_threads = get_threads, put_threads
        self._readers = ThreadPoolExecutor(get_threads, "tarn-get")
        self._writers = ThreadPoolExecutor(put_threads, "tarn-put")
        self._registered = 0
        self._closed = False

    def post_init(self) -> None:
        """Registers LMCache's pinned memory with the pool, which RDMA needs: called when the
        backend is complete."""
        allocator = getattr(self.local_cpu_backend, "memory_allocator", None)
        for name in ("pin_allocator", "cpu_allocator"):
            allocator = getattr(allocator, name, allocator)
        buffer = getattr(allocator, "buffer", None)
        if buffer is None or not hasattr(buffer, "data_ptr") or self._registered:
            return
        try:
            memory = pin(buffer)
            self._client.register_buffer(memory.address, memory.size)
            self._registered = memory.address
        except (Error, TypeError, ValueError) as e:
            self._troubles.warn(
                "register", f"the CPU memory could not be registered, RDMA will not be used: {e}"
            )

    def name(self, key: Any) -> str:
        """Of a chunk, in the pool."""
        return pool_key(key, self._suffix + (self._own if is_probe(key) else ""))

    def _replaces(self, key: Any) -> bool:
        """It is no name of a chunk of this engine: its bytes may be others each time."""
        model = getattr(key, "model_name", None)
        return is_probe(key) or (
            model is not None and self._model is not None and model != self._model
        )

    # --- what is there

    def exists_sync(self, key: Any) -> bool:
        """One round trip. False also when there is no server."""
        return bool(self._gate.call("lookup", self._client.exists, self.name(key)))

    async def exists(self, key: Any) -> bool:
        return bool(await self._run(self._readers, self.exists_sync, key))

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """How many leading keys are there; one round trip."""
        return self._prefix(keys, 0, self._hints_of(keys))

    def support_batched_async_contains(self) -> bool:
        return True

    async def batched_async_contains(
        self, lookup_id: str, keys: Sequence[Any], pin: bool = False
    ) -> int:
        """The same. `pin`: what was counted is not evicted for pin_ms (a removal is not
        stopped)."""
        lease_ms, hints = self._pin_ms if pin else 0, self._hints_of(keys, lookup_id)
        return int(await self._run(self._readers, self._prefix, keys, lease_ms, hints))

    def _prefix(self, keys: Sequence[Any], lease_ms: int, hints: HintKeywords) -> int:
        names, ask = [self.name(key) for key in keys], self._client.prefix_length
        return int(self._gate.call("lookup", ask, names, lease_ms=lease_ms, **hints) or 0)

    def _hints_of(self, keys: Sequence[Any], lookup_id: Optional[str] = None) -> HintKeywords:
        """A look-up and its gets, which go over several connections, are one request."""
        return hints_of(lookup_id, _told(keys)) if self._hints else {}

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        """0: there is a server; another number: there is none."""
        return 0 if await self._run(self._readers, self._ping) else -int(Status.EIO)

    def _ping(self) -> bool:
        def ping() -> bool:
            self._client.ping()
            return True

        return bool(self._gate.call("ping", ping, always=True))

    async def list(self) -> List[str]:
        """The keys that there are, chunks or not: up to a million. Those of chunks that this engine
        can use are LMCache's own."""
        return list(await self._run(self._readers, self._list) or [])

    def _list(self) -> List[str]:
        keys: List[str] = []
        cursor = "0"
        while len(keys) < _SCAN_KEYS_MAX:
            text = self._gate.call("list", self._client.command, "SCAN", cursor, "COUNT", "1000")
            if text is None:
                break
            cursor, *more = text.split("\n")
            keys += [
                key[: -len(self._suffix)] if key.endswith(self._suffix) else key
                for key in more
                if key
            ]
            if cursor == "0":
                break
        return keys

    def remove_sync(self, key: Any) -> bool:
        """True: it was there, and is not any more."""
        return bool(self._gate.call("remove", self._client.remove, self.name(key)))

    # --- puts

    async def put(self, key: Any, memory_obj: Any) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        """Returns when all are stored, were there already, or have failed, which is no error for
        the caller."""
        parts = spread([int(obj.get_size()) for obj in memory_objs], self._put_threads)
        await asyncio.gather(
            *(self._put_part(keys[a:b], list(memory_objs[a:b])) for a, b in parts if a < b)
        )

    async def _put_part(self, keys: Sequence[Any], objs: List[Any]) -> None:
        if self._closed or not self._put_room.acquire(blocking=False):
            self._troubles.warn(
                "backlog",
                f"{len(keys)} chunks were not stored: too many puts are waiting, or it is closed",
            )
            return
        for obj in objs:
            obj.ref_count_up()
        try:
            future = self._writers.submit(self._write, list(keys), objs)
        except RuntimeError:
            self._written(objs)
            return
        # Also called when it is cancelled before a thread took it.
        future.add_done_callback(lambda _: self._written(objs))
        try:
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not self._closed:
                raise

    def _written(self, objs: List[Any]) -> None:
        self._put_room.release()
        release(objs)

    def _write(self, keys: List[Any], objs: List[Any]) -> int:
        """Runs in a thread. How many are in the pool now."""
        headers = bytearray(HEADER_BYTES * len(objs))
        head = pin(headers, writable=True)
        names: List[str] = []
        addresses: List[List[int]] = []
        sizes: List[List[int]] = []
        memory: List[Pinned] = []
        replace: List[bool] = []
        for key, obj in zip(keys, objs):
            try:
                self._allocator.learn(obj)
                at = HEADER_BYTES * len(names)
                headers[at : at + HEADER_BYTES] = self._headers.of(obj)
                memory.append(memory_of(obj))
            except (Error, TypeError, ValueError, AttributeError) as e:
                self._troubles.warn(
                    "layout", f"a chunk was not stored, its memory object cannot be described: {e}"
                )
                continue
            names.append(self.name(key))
            replace.append(self._replaces(key))
            addresses.append([head.address + at, memory[-1].address])
            sizes.append([HEADER_BYTES, memory[-1].size])
        if not names:
            return 0
        stored = 0
        put = self._client.put_from_many
        args = put, names, addresses, sizes, replace
        options = {**self._put_options, **self._hints_of(keys)}
        for status in self._gate.call("put", self._distrust.put, *args, **options) or []:
            if done(status):
                stored += 1
            else:
                self._troubles.warn(f"put {status}", f"chunks are not stored: {reason_of(status)}")
        return stored

    # --- gets

    async def get(self, key: Any) -> Optional[Any]:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: Sequence[Any]) -> List[Optional[Any]]:
        """Memory objects of all that could be read, None for the others."""
        return await self._get_all(keys, self._hints_of(keys))

    async def _get_all(self, keys: Sequence[Any], hints: HintKeywords) -> List[Optional[Any]]:
        layout = self._expected(_chunk_kind(keys[0])) if len(keys) > 1 else None
        parts = spread([layout.size if layout is not None else 0] * len(keys), self._get_threads)
        reads = [
            asyncio.ensure_future(
                self._run(self._readers, self._read, keys[a:b], hints, give_back=release)
            )
            for a, b in parts
        ]
        try:
            found = await asyncio.gather(*reads)
        except BaseException:
            # Those that are still under way give back what they read, by themselves.
            for read in reads:
                if read.done() and not read.cancelled() and read.exception() is None:
                    release(read.result() or [])
            raise
        return [
            obj
            for (a, b), objs in zip(parts, found)
            for obj in (objs if objs is not None else [None] * (b - a))
        ]

    def support_batched_get_non_blocking(self) -> bool:
        return True

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> List[Any]:
        """The leading ones, up to the first that could not be read."""
        objs = await self._get_all(keys, self._hints_of(keys, lookup_id))
        hits = objs.index(None) if None in objs else len(objs)
        release(objs[hits:])
        return objs[:hits]

    def _read(self, keys: Sequence[Any], hints: HintKeywords) -> List[Optional[Any]]:
        """Runs in a thread. Never raises what would leave objects behind."""
        objs: List[Optional[Any]] = [None] * len(keys)
        if not keys:
            return objs
        kind, names = _chunk_kind(keys[0]), [self.name(key) for key in keys]
        try:
            layout = self._expected(kind)
            rest = list(range(len(keys)))
            if layout is not None and not layout.format.startswith("BINARY"):
                rest = self._read_expected(kind, layout, names, objs, hints)
            if rest:
                self._read_any(kind, names, rest, objs, hints)
        except Exception as e:
            self._troubles.warn(f"get {type(e).__name__}", f"get failed: {type(e).__name__}: {e}")
        return objs

    def _expected(self, kind: str) -> Optional[Layout]:
        """What the next chunk of this kind most likely is. Asked anew every time: LMCache fills in
        its metadata late."""
        learned = self._learned.get(kind)
        if learned is None and kind == "chunk":
            return expected_layout(self._metadata, self._format)
        return learned

    def _learn(self, kind: str, layout: Layout) -> None:
        expected = self._expected(kind)
        if expected is None or not layout.partial_of(expected):
            self._learned[kind] = layout

    def _read_expected(
        self,
        kind: str,
        layout: Layout,
        names: List[str],
        objs: List[Optional[Any]],
        hints: HintKeywords,
    ) -> List[int]:
        """Reads headers and payloads into objects of the expected layout. Returns which are there,
        but of another one."""
        fresh = self._allocator.many(layout, len(names))
        if len(fresh) < len(names):
            self._troubles.warn(
                "memory", f"no CPU memory for {len(names) - len(fresh)} of {len(names)} chunks"
            )
        try:
            others = []
            headers = bytearray(HEADER_BYTES * len(fresh))
            head = pin(headers, writable=True)
            memory = [memory_of(obj, writable=True) for obj in fresh]
            addresses = [[head.address + HEADER_BYTES * i, m.address] for i, m in enumerate(memory)]
            sizes = [[HEADER_BYTES, m.size] for m in memory]
            wanted, expected, whole = (
                names[: len(fresh)],
                layout.packed(),
                HEADER_BYTES + layout.size,
            )
            got = (
                self._gate.call(
                    "get", self._client.get_into_many, wanted, addresses, sizes, **hints
                )
                if fresh
                else None
            )
            for i, status in enumerate(got or []):
                if status == Status.ELIMIT:
                    others.append(i)
                elif status < 0:
                    self._missed(status)
                else:
                    at = HEADER_BYTES * i
                    if status != whole or headers[at : at + HEADER_BYTES] != expected:
                        found = self._header(kind, names[i], headers, at, status)
                        if found is None:
                            continue
                        if not found.partial_of(layout):
                            others.append(i)
                            continue
                        self._allocator.shrink(fresh[i], found)
                    objs[i], fresh[i] = fresh[i], None
            return others
        finally:
            release(fresh)

    def _read_any(
        self,
        kind: str,
        names: List[str],
        wanted: List[int],
        objs: List[Optional[Any]],
        hints: HintKeywords,
    ) -> None:
        """Reads values of any layout, by way of memory of our own, and remembers the layout for the
        next time."""
        some = [names[i] for i in wanted]
        values = self._gate.call("get", self._client.get_many, some, **hints)
        for i, value in zip(wanted, values or []):
            if value is None:
                continue
            found = self._header(kind, names[i], value, 0, len(value))
            if found is None:
                continue
            try:
                objs[i] = self._copied(found, value)
                self._learn(kind, found)
            except (ValueError, TypeError, AttributeError) as e:
                self._distrust.add(names[i])
                self._troubles.warn(
                    "layout", f"a chunk is not read, this LMCache has no memory object for it: {e}"
                )

    def _copied(self, layout: Layout, value: bytes) -> Optional[Any]:
        """A new object with the payload of a value; None: there is no memory. ValueError: not with
        this LMCache."""
        obj = self._allocator.one(layout)
        if obj is None:
            self._troubles.warn("memory", "no CPU memory for a chunk")
            return None
        try:
            memory = memory_of(obj, writable=True)
            if memory.size < layout.size:
                raise ValueError(f"{memory.size} bytes for {layout}")
            ctypes.memmove(memory.address, pin(value).address + HEADER_BYTES, layout.size)
            return obj
        except BaseException:
            release([obj])
            raise

    def _header(self, kind: str, name: str, buffer: Any, at: int, got: int) -> Optional[Layout]:
        """The header, if the value is what it says. None: a miss, which the log tells of, and which
        the next put replaces."""
        try:
            if got < HEADER_BYTES:
                raise HeaderError(f"a value of {got} bytes has no header")
            found = Layout.unpack(buffer, at)
            if found.size + HEADER_BYTES != got:
                raise HeaderError(
                    f"a value of {got} bytes, {found.size + HEADER_BYTES} by its header"
                )
            # What the digest in the key knows of several groups is the first one.
            full = expected_layout(self._metadata, self._format) if kind == "chunk" else None
            if full is not None and not found.of_model(full):
                raise HeaderError(f"its KV groups are {found.groups}, this model's {full.groups}")
            return found
        except HeaderError as e:
            self._distrust.add(name)
            self._troubles.warn("header", f"a chunk is not read: {e}")
            return None

    def _missed(self, status: int) -> None:
        if status != Status.ENOTFOUND:
            self._troubles.warn(f"get {status}", f"chunks are not read: {reason_of(status)}")

    # --- the end, and threads

    async def close(self) -> None:
        """Waits for gets, and for puts that have begun; the others are dropped."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._writers.shutdown(wait=True, cancel_futures=True)
        self._readers.shutdown(wait=True)
        if self._own_client:
            self._client.close()
        elif self._registered:
            self._client.unregister_buffer(self._registered)

    async def _run(
        self,
        threads: ThreadPoolExecutor,
        function: Callable[..., Any],
        *args: Any,
        give_back: Any = None,
    ) -> Any:
        """Runs it in a thread. `give_back` takes the result when nobody waits for it any more.
        None: closed."""
        try:
            future: Future[Any] = threads.submit(function, *args)
        except RuntimeError:
            return None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if give_back is not None:
                future.add_done_callback(
                    lambda f: None if f.cancelled() or f.exception() else give_back(f.result())
                )
            raise

    def __repr__(self) -> str:
        return f"<TarnConnector {'closed' if self._closed else 'open'}>"


def reason_of(status: int) -> str:
    """A status by its name, and what to do about it."""
    name = status_name(status)
    advice = {
        "ENOSPACE": "the pool is full of what may not be evicted: leases, pins, puts under way",
        "EQUOTA": "the quota of this prefix is used up",
        "EOOM": "the server's books are full (maxmemory)",
        "EPERM": "this user may not",
        "ECORRUPT": "the bytes do not match their checksum: look at the machine's memory",
    }
    return f"{name}: {advice[name]}" if name in advice else name
