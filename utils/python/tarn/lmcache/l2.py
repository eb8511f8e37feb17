"""An L2 adapter for LMCache's multi-process mode: stores, look-ups and loads that end with an
event.

Keys and bytes are those of LMCache's own `resp` adapter, `{model}@{rank}@{group}@{hash}[@{salt}]`
and the payload alone: the caller brings the memory, so no layout needs to be stored, and with the
namespace "" both adapters can share a pool. Data types and serdes are in no key and, where an
adapter only looks up, known to nobody, so the namespace must say them.

What a lock means here: a lookup takes a lease of `lock_ms` on what it finds, and until that is over
the pool does not evict it. Who removes or flushes keys on purpose is not stopped: then a load is a
miss. The lease ends by itself; neither `submit_unlock` nor a lost LMCache needs a message, so
unlocking is forgetting. A load that comes later than `lock_ms` is still right or a miss, never
wrong. Leased space cannot be given to new values: where lookups far exceed loads in a pool that is
always full, make `lock_ms` shorter.

Threads: three pools of our own, for stores, lookups and loads, each with an event fd that becomes
readable when results are there. Every method may be called from any thread."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from .._distrust import Distrust
from .._figures import cluster_of
from ..client import Client
from ..errors import Error, Status, done
from ..keys import glob_of
from ..options import number
from . import _base
from .connector import is_probe, pool_key, reason_of
from .gate import Gate
from .objects import memory_of
from .spread import spread

_BOOK_KEYS = 1 << 18
_SCANS_MAX = 1000
_DEFAULTS: Dict[str, int] = {
    "lock_ms": 5000,
    "store_threads": 2,
    "lookup_threads": 1,
    "load_threads": 4,
    "max_pending": 1024,
    "replicas": 0,
}


def object_key_text(key: Any) -> str:
    """The key in the pool of an ObjectKey: as LMCache's native adapters write it."""
    if isinstance(key, str):
        return pool_key(key)
    group = getattr(key, "object_group_id", 0)
    text = f"{key.model_name}@{key.kv_rank:08x}@{group:x}@{key.chunk_hash.hex()}"
    salt = getattr(key, "cache_salt", "")
    return pool_key(f"{text}@{salt}" if salt else text)


def parse_object_key(text: str) -> Optional[Dict[str, Any]]:
    """The fields of an ObjectKey out of such a text; None: it is not one."""
    model, *rest = text.split("@")
    if len(rest) not in (3, 4) or len(rest[0]) != 8 or not model:
        return None
    try:
        fields = {
            "kv_rank": int(rest[0], 16),
            "object_group_id": int(rest[1], 16),
            "chunk_hash": bytes.fromhex(rest[2]),
        }
    except ValueError:
        return None
    return {"model_name": model, "cache_salt": rest[3] if len(rest) == 4 else "", **fields}


def _adapter_params(params: Dict[str, Any]) -> Tuple[str, str, Dict[str, int]]:
    """URL, prefix of all keys, and numbers of adapter_params. ValueError names what is wrong."""
    url = params.pop("url", None)
    if not isinstance(url, str):
        raise ValueError('adapter_params needs "url": "tarn://host:port"')
    if "namespace" not in params:
        raise ValueError(
            'adapter_params needs "namespace": "bf16", say, as LMCache\'s keys name neither data '
            'type nor serde; "" where all who use this pool have the same ones'
        )
    namespace = params.pop("namespace")
    if not isinstance(namespace, str) or len(namespace) > 128 or "@" in namespace:
        raise ValueError(
            "adapter_params: namespace is text of up to 128 characters without @, not "
            f"{namespace!r}"
        )
    numbers = dict(_DEFAULTS)
    for name, value in params.items():
        if name not in _DEFAULTS:
            raise ValueError(
                f'adapter_params has "{name}": there are url, namespace, {", ".join(_DEFAULTS)}'
            )
        least = 0 if name in ("lock_ms", "replicas") else 1
        numbers[name] = number(value, f"adapter_params: {name}", least, 65536)
    return url, namespace + "@" if namespace else "", numbers


def _event_fd() -> int:
    if hasattr(os, "eventfd"):
        return int(getattr(os, "eventfd")(0, os.O_NONBLOCK | os.O_CLOEXEC))
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.eventfd(0, os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "eventfd")
    return fd


class _Channel:
    """Threads, results that wait to be taken, and the event fd that says so."""

    def __init__(self, name: str, threads: int) -> None:
        self.fd = _event_fd()
        self._threads = ThreadPoolExecutor(threads, f"tarn-{name}")
        self._lock = threading.Lock()
        self._done: Dict[int, Any] = {}
        self._waiting = 0
        self._closed = False

    def submit(
        self, function: Callable[..., None], *args: Any, refused: Callable[[], None], limit: int
    ) -> None:
        """Runs it in a thread; `refused` at once, when so many are waiting or it is closed, or when
        it never gets its turn."""
        with self._lock:
            full = self._closed or self._waiting >= limit
            self._waiting += not full
        if full:
            refused()
            return

        def ended(future: Any) -> None:
            with self._lock:
                self._waiting -= 1
            if future.cancelled() or future.exception() is not None:
                refused()

        try:
            future = self._threads.submit(function, *args)
        except RuntimeError:
            with self._lock:
                self._waiting -= 1
            refused()
            return
        future.add_done_callback(ended)

    def finish(self, task: int, result: Any) -> None:
        """Puts a result up for taking, and makes the fd readable."""
        with self._lock:
            self._done.setdefault(task, result)
            if not self._closed:
                os.write(self.fd, (1).to_bytes(8, "little"))

    def take(self, task: int) -> Any:
        """The result, once; None: not yet, or taken."""
        with self._lock:
            return self._done.pop(task, None)

    def take_all(self) -> Dict[int, Any]:
        """All results that are there."""
        with self._lock:
            done, self._done = self._done, {}
            return done

    @property
    def waiting(self) -> int:
        """Tasks that have begun or wait for a thread."""
        return self._waiting

    def run(self, function: Callable[[], Any], wait_s: float) -> Any:
        """Runs it in a thread and waits so long for its result. TimeoutError, RuntimeError
        (closed), what it raises."""
        return self._threads.submit(function).result(wait_s)

    def close(self) -> None:
        """Drops what has not begun, waits for what has."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._closed = True
            os.close(self.fd)


class _Join:
    """A task that several threads do parts of: the last to finish hands on what all found."""

    def __init__(self, n: int, parts: int, done: Callable[[List[bool]], None]) -> None:
        self.flags = [False] * n
        self.moved = 0  # bytes
        self._parts, self._done = parts, done
        self._lock = threading.Lock()

    def part(self, first: int, flags: Sequence[bool], moved: int = 0) -> None:
        """One part, of the keys from `first` on, and the bytes that it moved; no flags: it
        failed."""
        with self._lock:
            self.flags[first : first + len(flags)] = flags
            self.moved += moved
            self._parts -= 1
            last = self._parts == 0
        if last:
            self._done(self.flags)


class TarnL2Adapter(_base.L2AdapterInterface):  # type: ignore[misc]
    """`params` (adapter_params of the configuration): `url`, tarn://..., and `namespace`, in front
    of all keys, must be there: LMCache's say nothing of data types and serdes, so engines that
    differ there need one each; `lock_ms` 5000 (up to the server's max-lease; 0: lookups lock
    nothing), `store_threads` 2, `lookup_threads` 1, `load_threads` 4 (one large task is spread over
    them), `max_pending` 1024 tasks of a kind (further ones fail at once), `replicas` of what is
    stored (0: the server's default). `l1_memory_desc`: LMCache's L1 memory (ptr, size), registered
    with the pool for RDMA. ValueError: a parameter; ConnectionFailed and the like: no server."""

    def __init__(
        self, params: Optional[Dict[str, Any]] = None, l1_memory_desc: Any = None, **kwargs: Any
    ) -> None:
        super().__init__()
        self._logger = _base.logger_of(__name__)
        self._troubles = _base.Troubles(self._logger)
        try:
            url, self._prefix, self._is = _adapter_params(dict(params or {}))
        except ValueError as e:
            self._troubles.refuse("adapter_params", e)
            raise
        self._where = url.rpartition("@")[2]
        self._gate = Gate(self._troubles)
        self._distrust = Distrust()
        self._client = Client(
            url,
            max_lanes=sum(self._is[f"{kind}_threads"] for kind in ("store", "lookup", "load")) + 2,
        )
        self._gate.publish(self._client, cluster_of(url, {}))
        if l1_memory_desc is not None and l1_memory_desc.ptr and l1_memory_desc.size > 0:
            try:
                self._client.register_buffer(int(l1_memory_desc.ptr), int(l1_memory_desc.size))
            except Error as e:
                self._troubles.warn(
                    "register", f"L1 memory could not be registered, RDMA will not be used: {e}"
                )
        self._stores = _Channel("store", self._is["store_threads"])
        self._lookups = _Channel("lookup", self._is["lookup_threads"])
        self._loads = _Channel("load", self._is["load_threads"])
        self._lock = threading.Lock()
        self._next_task = 0
        self._book: Dict[Any, int] = {}
        self._counts = {
            "stored": 0,
            "store_failures": 0,
            "found": 0,
            "not_found": 0,
            "loaded": 0,
            "load_failures": 0,
        }
        self._parted: Set[str] = set()  # models whose chunks have several object groups
        self._usage: Tuple[float, int, int] = (-1e9, 0, 0)
        self._closed = False

    def _name(self, key: Any) -> str:
        return pool_key(self._prefix + object_key_text(key))

    def get_store_event_fd(self) -> int:
        """Readable when stores have ended. The caller may read it (8 bytes)."""
        return self._stores.fd

    def get_lookup_and_lock_event_fd(self) -> int:
        """Readable when lookups have ended."""
        return self._lookups.fd

    def get_load_event_fd(self) -> int:
        """Readable when loads have ended."""
        return self._loads.fd

    # --- stores

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """The objects' memory must stay until the task has ended. Returns the task."""
        task, of, memory = self._new_task(), list(keys), list(objects)
        parts = spread([int(obj.get_size()) for obj in memory], self._is["store_threads"])
        join = _Join(len(of), len(parts), lambda flags: self._stored(task, flags, join.moved))
        self._fan_out(self._stores, self._store, parts, join, of, memory)
        return task

    def _store(self, join: _Join, first: int, keys: List[Any], objects: List[Any]) -> None:
        stored: List[bool] = []
        moved = 0
        try:
            memory = [memory_of(obj) for obj in objects]
            options = {"replicas": self._is["replicas"]} if self._is["replicas"] else {}
            names = [self._name(key) for key in keys]
            statuses = self._distrust.put(
                self._client.put_from_many,
                names,
                [m.address for m in memory],
                [m.size for m in memory],
                [is_probe(key) for key in keys],
                boundary=self._boundaries(keys),
                **options,
            )
            moved = sum(m.size for m, status in zip(memory, statuses) if status == Status.OK)
            stored = [done(status) for status in statuses]
            for status, ok in zip(statuses, stored):
                if not ok:
                    self._troubles.warn(
                        f"store {status}", f"chunks are not stored: {reason_of(status)}"
                    )
            self._enter(
                [key for key, status in zip(keys, statuses) if status == Status.OK],
                objects,
                statuses,
            )
        except Exception as e:
            self._trouble("store", e)
        join.part(first, stored, moved)

    def _boundaries(self, keys: Sequence[Any]) -> List[Optional[str]]:
        """What is evicted together: all ranks' and object groups' parts of a chunk. A chunk of one
        part needs none."""
        found: List[Optional[str]] = []
        for key in keys:
            model, ranks = getattr(key, "model_name", ""), getattr(key, "kv_rank", 0) >> 24
            if getattr(key, "object_group_id", 0):
                self._parted.add(model)
            if ranks > 1 or model in self._parted:
                salt = getattr(key, "cache_salt", "")
                found.append(pool_key(f"{self._prefix}{model}@{key.chunk_hash.hex()}@{salt}"))
            else:
                found.append(None)
        return found

    def _enter(self, keys: List[Any], objects: List[Any], statuses: Sequence[int]) -> None:
        """What is new in the pool, for those who count bytes."""
        sizes = [
            int(obj.get_size()) for obj, status in zip(objects, statuses) if status == Status.OK
        ]
        with self._lock:
            room = max(0, _BOOK_KEYS - len(self._book))
            fresh = [(key, size) for key, size in zip(keys, sizes) if key not in self._book][:room]
            self._book.update(fresh)
        if fresh:
            self._tell(
                self._notify_keys_stored, [key for key, _ in fresh], [size for _, size in fresh]
            )

    def _strike(self, keys: Iterable[Any]) -> None:
        """What turned out to be gone."""
        with self._lock:
            gone = [(key, self._book.pop(key)) for key in keys if key in self._book]
        if gone:
            self._tell(
                self._notify_keys_deleted, [key for key, _ in gone], [size for _, size in gone]
            )

    def _stored(self, task: int, flags: List[bool], moved: int) -> None:
        self._count("stored", "store_failures", flags)
        self._stores.finish(task, _base.store_result(all(flags), moved))

    def pop_completed_store_tasks(self) -> Dict[int, Any]:
        """Ended tasks and how: true, or bytes >= 0, when all of it is stored. The bytes are those
        that moved: what was in the pool already did not."""
        return self._stores.take_all()

    # --- lookups

    def submit_lookup_and_lock_task(self, keys: Sequence[Any], *layouts: Any, **kwargs: Any) -> int:
        """Newer versions of LMCache also say what layouts they expect, one for each object group,
        which is not needed here."""
        task, of = self._new_task(), list(keys)
        join = _Join(len(of), 1, lambda flags: self._found(task, of, flags))
        self._fan_out(self._lookups, self._lookup, [(0, len(of))], join, of, of)
        return task

    def _lookup(self, join: _Join, first: int, keys: List[Any], _: List[Any]) -> None:
        found: List[bool] = []
        try:
            names = [self._name(key) for key in keys]
            gaps = any(getattr(key, "object_group_id", 0) for key in keys)
            found = self._gate.call("lookup", self._locked, names, gaps) or []
        except Exception as e:
            self._trouble("lookup", e)
        join.part(first, found)

    def _locked(self, names: List[str], gaps: bool) -> List[bool]:
        """Which are there, with a lease on each. One round trip where all are, two or three
        otherwise; two where `gaps` are normal: of a sliding window early chunks need not be
        there."""
        lease_ms, found = self._is["lock_ms"], [True] * len(names)
        hits = 0 if gaps else self._client.prefix_length(names, lease_ms=lease_ms)
        if hits < len(names):
            found[hits:] = self._client.exists_many(names[hits:])
            # The first of these may be there after all, and only have got no lease.
            left = [i for i in range(hits, len(names)) if found[i]]
            hits = (
                self._client.prefix_length([names[i] for i in left], lease_ms=lease_ms)
                if left
                else 0
            )
            if hits < len(left):
                self._troubles.warn(
                    "leases",
                    "not all that was found could be locked: max-leases-per-client, or lock_ms",
                )
        return found

    def _found(self, task: int, keys: List[Any], flags: List[bool]) -> None:
        self._count("found", "not_found", flags)
        self._strike(key for key, flag in zip(keys, flags) if not flag)
        self._lookups.finish(task, self._bits(flags))

    def query_lookup_and_lock_result(self, task_id: int) -> Optional[Any]:
        """A bit per key, once; None: not yet."""
        return self._lookups.take(task_id)

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        """Nothing to be done: the leases of a lookup end by themselves after lock_ms."""

    # --- loads

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Fills the objects given. Their memory must stay until the task has ended; `close` waits
        for that, too."""
        task, of, memory = self._new_task(), list(keys), list(objects)
        parts = spread([int(obj.get_size()) for obj in memory], self._is["load_threads"])
        join = _Join(len(of), len(parts), lambda flags: self._loaded(task, of, flags))
        self._fan_out(self._loads, self._load, parts, join, of, memory)
        return task

    def _load(self, join: _Join, first: int, keys: List[Any], objects: List[Any]) -> None:
        loaded: List[bool] = []
        try:
            memory = [memory_of(obj, writable=True) for obj in objects]
            names = [self._name(key) for key in keys]
            places = [m.address for m in memory], [m.size for m in memory]
            got = self._gate.call("load", self._client.get_into_many, names, *places) or []
            loaded = self._distrust.whole(names, got, [m.size for m in memory])
            for n, m in zip(got, memory):
                if n == Status.ELIMIT or 0 <= n < m.size:
                    self._troubles.warn(
                        "size",
                        f"a value is not of the {m.size} bytes that LMCache expects: it counts as "
                        "a miss",
                    )
                elif n < 0 and n != Status.ENOTFOUND:
                    self._troubles.warn(f"load {n}", f"chunks are not loaded: {reason_of(n)}")
        except Exception as e:
            self._trouble("load", e)
        join.part(first, loaded)

    def _loaded(self, task: int, keys: List[Any], flags: List[bool]) -> None:
        self._count("loaded", "load_failures", flags)
        if any(flags):
            self._tell(self._notify_keys_accessed, [key for key, flag in zip(keys, flags) if flag])
        self._loads.finish(task, self._bits(flags))

    def query_load_result(self, task_id: int) -> Optional[Any]:
        """A bit per key, once; None: not yet. Memory of keys whose bit is not set may hold junk."""
        return self._loads.take(task_id)

    # --- keys and figures

    def delete(self, keys: Sequence[Any]) -> None:
        """Removes them; returns when they are gone, or when there is no server."""
        removed = self._gate.call(
            "delete", self._client.remove_many, [self._name(key) for key in keys]
        )
        if removed is not None:
            self._strike(keys)

    def list_l2_keys(
        self, model_name: Optional[str] = None, page_size: int = 500, cursor: Optional[str] = None
    ) -> Any:
        """Keys of LMCache's in the pool, whoever stored them, in pages. ValueError: page_size or
        cursor. tarn.Error: no server."""
        if page_size <= 0:
            raise ValueError(f"page_size is 1 or more, not {page_size}")
        scan, _, skip_text = (cursor or "0:0").partition(":")
        if not scan.isdecimal() or not skip_text.isdecimal():
            raise ValueError(f"cursor {cursor!r} is not one that list_l2_keys returned")
        skip, names, following = int(skip_text), [], "0"
        glob = glob_of(self._prefix + (model_name or ""))
        glob += "*@*" if model_name is None else "@*"
        for _ in range(_SCANS_MAX):
            following, *found = self._client.command(
                "SCAN", scan, "MATCH", glob, "COUNT", str(page_size)
            ).split("\n")
            names = [name[len(self._prefix) :] for name in found]
            names = [name for name in names if parse_object_key(name) is not None][skip:]
            if len(names) > page_size:
                names, following = names[:page_size], f"{scan}:{skip + page_size}"
            elif following != "0":
                following += ":0"
            if names or following == "0":
                break
            scan, skip = following.partition(":")[0], 0
        sizes = self._client.sizes([self._prefix + name for name in names]) if names else []
        entries = tuple(
            self._entry(name, size) for name, size in zip(names, sizes) if size is not None
        )
        return _base.KeyListPage(
            entries=entries, next_page_token=None if following == "0" else following
        )

    @staticmethod
    def _entry(name: str, size: int) -> Any:
        fields = parse_object_key(name)
        assert fields is not None
        key = name if _base.ObjectKey is None else _base.ObjectKey(**fields).to_encoded_object_key()
        return _base.KeyEntry(key=key, size_bytes=size)

    @property
    def supports_global_eviction(self) -> bool:
        """False: the pool evicts by itself, in its own order."""
        return False

    def get_usage(self) -> Any:
        """Bytes of the pool that are used and that there are, no older than a second; and what this
        adapter stored, by salt."""
        then, used, total = self._usage
        info = (
            self._gate.call("usage", self._client.command, "INFO", "pool")
            if time.monotonic() - then > 1
            else None
        )
        if info is not None:
            figures = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
            used, total = int(figures["pool_used"]), int(figures["pool_size"])
            self._usage = (time.monotonic(), used, total)
        with self._lock:
            by_salt: Dict[str, int] = {}
            for key, size in self._book.items():
                salt = getattr(key, "cache_salt", "")
                by_salt[salt] = by_salt.get(salt, 0) + size
        return _base.AdapterUsage(
            total_bytes_used=used, total_capacity_bytes=total, bytes_by_cache_salt=by_salt
        )

    def report_status(self) -> Dict[str, Any]:
        """is_healthy: the server answered within a second."""
        try:
            healthy = bool(
                self._lookups.run(lambda: self._gate.call("ping", self._ping, always=True), 1.0)
            )
        except (RuntimeError, TimeoutError, concurrent.futures.TimeoutError):
            healthy = False
        with self._lock:
            counts = dict(self._counts)
        pending = {"pending_stores": self._stores.waiting, "pending_lookups": self._lookups.waiting}
        pending["pending_loads"] = self._loads.waiting
        status: Dict[str, Any] = {
            "is_healthy": healthy and not self._closed,
            "type": "tarn",
            "url": self._where,
        }
        return {**status, **pending, **counts}

    def _ping(self) -> bool:
        self._client.ping()
        return True

    def close(self) -> None:
        """Tasks that have not begun fail; waits for those that have, so that no memory is written
        or read afterwards."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for channel in (self._stores, self._lookups, self._loads):
            channel.close()
        self._client.close()

    # --- what all have in common

    def _new_task(self) -> int:
        with self._lock:
            self._next_task += 1
            return self._next_task

    def _fan_out(
        self,
        channel: _Channel,
        work: Any,
        parts: List[Tuple[int, int]],
        join: _Join,
        keys: List[Any],
        objects: List[Any],
    ) -> None:
        for first, last in parts:
            channel.submit(
                work,
                join,
                first,
                keys[first:last],
                objects[first:last],
                refused=lambda first=first: join.part(first, []),  # type: ignore[misc]
                limit=self._is["max_pending"],
            )

    def _tell(self, notify: Callable[..., None], *args: Any) -> None:
        """A listener of the engine's that fails must not keep the task from ending."""
        try:
            notify(*args)
        except Exception as e:
            self._troubles.warn("listener", f"a listener failed: {type(e).__name__}: {e}")

    def _bits(self, flags: List[bool]) -> Any:
        bitmap = _base.Bitmap(len(flags))
        for i, flag in enumerate(flags):
            if flag:
                bitmap.set(i)
        return bitmap

    def _count(self, good: str, bad: str, flags: List[bool]) -> None:
        with self._lock:
            self._counts[good] += sum(flags)
            self._counts[bad] += len(flags) - sum(flags)

    def _trouble(self, what: str, e: Exception) -> None:
        self._troubles.warn(f"{what} {type(e).__name__}", f"{what} failed: {type(e).__name__}: {e}")
