"""vllm-ascend's AscendStoreConnector on a tarn pool: the store behind the KV caches of NPUs.

    --kv-transfer-config '{"kv_connector": "AscendStoreConnector",
                           "kv_connector_module_path": "tarn.vllm_ascend",
                           "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                           "kv_connector_extra_config": {"backend": "tarn"}}'

vllm-ascend knows its backends by a table of its own. Taking its connector from this module, as
above, writes us into that table; `register` does the same where vLLM runs it as a plug-in.
Configuration comes from the environment: TARN_URL, TARN_CONFIG_PATH.

Addresses. What the engine hands over are addresses of its KV caches, in the memory of an NPU or, in
CPU builds and tests, of the host. Memory of the host is put and read in place. Memory of a device
is never touched by the CPU. It goes through a bounded staging buffer when Ascend's runtime
(libascendcl.so) is there to copy it, straight by RDMA where `register_dmabuf` said how, and else
fails with a message that says so. Which of them it is, the kernel's table of mappings says: host
memory is what is mapped, readable (for gets writable), and not the file of a device.

Threads: vllm-ascend calls from its workers' main thread and its sending and receiving threads at
once. Nothing raises from exists, get and put: a pool that is away is a miss."""

from __future__ import annotations

import ctypes as C
import importlib
import logging
import os
import sys
import threading
from bisect import bisect_right
from functools import lru_cache
from typing import (
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from ._link import Link, optional, settings
from .client import Client
from .errors import InvalidArgument, NotSupported, Status
from .identity import Facts, digest
from .keys import escape
from .vllm.config import facts_of

_STORE = "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store"
_Base: Any
(_Base,) = optional(f"{_STORE}.backend.base", "Backend") or (object,)

log = logging.getLogger(__name__)
STAGING_BYTES = 64 << 20
_WRONG_SIZE = int(Status.ELIMIT)
_NOT_DEVICES = ("/dev/shm/", "/dev/hugepages", "/dev/zero", "/dev/dax")


def register() -> None:
    """Makes "backend": "tarn" known to vllm-ascend; does nothing where that is not installed. May
    be called many times.

    Named as a vllm.general_plugins entry point, it runs in every process of vLLM."""
    found = optional(f"{_STORE}.backend", "backend_map")
    if found is not None:
        found[0].setdefault("tarn", {"name": "TarnBackend", "path": __name__})


def __getattr__(name: str) -> Any:
    """vllm-ascend's own connector, with our backend registered: for "kv_connector_module_path"."""
    if name != "AscendStoreConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    connector = importlib.import_module(f"{_STORE}.ascend_store_connector")
    register()
    return _noting_facts(getattr(connector, name))


_facts: Optional[Facts] = None  # of this process's engine, when it came by our AscendStoreConnector


@lru_cache(maxsize=None)
def _noting_facts(base: Any) -> Any:
    """The connector, which tells the backends that it makes what its VllmConfig says about the
    bytes of blocks: vllm-ascend's keys say model, ranks and hash only, and its backends are handed
    no more than the ranks."""

    def made(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        global _facts
        _facts = facts_of(vllm_config)
        base.__init__(self, vllm_config, *args, **kwargs)

    return type(
        base.__name__,
        (base,),
        {"__init__": made, "__doc__": base.__doc__, "__module__": base.__module__},
    )


class HostMap:
    """Which addresses the CPU may use, as /proc/self/maps says. Read anew when an address is not in
    what was read before, and by `refresh`. Not for several threads."""

    def __init__(self) -> None:
        self._starts: List[int] = []
        self._spans: List[Tuple[int, int, bool]] = []
        self.refresh()

    def refresh(self) -> None:
        """Reads the table."""
        spans: List[Tuple[int, int, bool]] = []
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                where, rights, _, _, _, *path = line.split(None, 5)
                name = path[0].strip() if path else ""
                device = name.startswith("/dev/") and not name.startswith(_NOT_DEVICES)
                if "r" not in rights or device or name in ("[vvar]", "[vsyscall]"):
                    continue
                start, end = (int(x, 16) for x in where.split("-"))
                writable = "w" in rights
                if spans and spans[-1][1] == start and spans[-1][2] == writable:
                    spans[-1] = (spans[-1][0], end, writable)
                else:
                    spans.append((start, end, writable))
        self._spans, self._starts = spans, [s[0] for s in spans]

    def has(self, address: int, size: int, writable: bool) -> bool:
        """Whether all `size` bytes at `address` are memory of the host that may be read (and
        written)."""
        end = address + size
        while True:
            i = bisect_right(self._starts, address) - 1
            if i < 0 or address >= self._spans[i][1] or (writable and not self._spans[i][2]):
                return False
            address = self._spans[i][1]
            if address >= end:
                return True


class Runtime:
    """Copies between an NPU's memory and the host's, by Ascend's runtime. The calling thread must
    have chosen its device."""

    _TO_DEVICE, _TO_HOST = 1, 2

    def __init__(self, library: Any) -> None:
        self._copy = library.aclrtMemcpy
        self._copy.argtypes = [C.c_void_p, C.c_size_t, C.c_void_p, C.c_size_t, C.c_int]
        self._copy.restype = C.c_int

    @classmethod
    def find(cls) -> Optional["Runtime"]:
        """The runtime of this machine (TARN_ACL_LIB: another file than libascendcl.so); None if it
        has none."""
        try:
            return cls(C.CDLL(os.environ.get("TARN_ACL_LIB") or "libascendcl.so"))
        except (OSError, AttributeError):
            return None

    def to_host(self, host: int, device: int, size: int) -> None:
        """NotSupported: the runtime refused."""
        self._do(host, device, size, self._TO_HOST)

    def to_device(self, device: int, host: int, size: int) -> None:
        """NotSupported: the runtime refused."""
        self._do(device, host, size, self._TO_DEVICE)

    def _do(self, to: int, source: int, size: int, kind: int) -> None:
        status = self._copy(to, size, source, size, kind)
        if status:
            raise NotSupported(
                f"aclrtMemcpy of {size} bytes failed with {status}: was set_device called in this "
                "thread?"
            )


class _Range:
    """Registered memory: where, and how its bytes get to the pool: "host", "staged", "rdma" or
    "none"."""

    __slots__ = ("start", "end", "way", "writable")

    def __init__(self, start: int, end: int, way: str, writable: bool) -> None:
        self.start, self.end, self.way, self.writable = start, end, way, writable


class _Blocks(NamedTuple):
    """Blocks to move: what each is called, and the addresses and sizes of its pieces."""

    names: List[str]
    addrs: List[List[int]]
    sizes: List[List[int]]

    def only(self, rows: Sequence[int]) -> "_Blocks":
        """Some of them, by number."""
        return _Blocks(
            [self.names[i] for i in rows],
            [self.addrs[i] for i in rows],
            [self.sizes[i] for i in rows],
        )

    def totals(self) -> List[int]:
        """Bytes of each."""
        return [sum(s) for s in self.sizes]

    def pieces(self, i: int, place: int) -> Iterator[Tuple[int, int, int]]:
        """Of block i, which is whole at `place`: where each piece is, where it is there, its
        size."""
        for address, size in zip(self.addrs[i], self.sizes[i]):
            yield int(address), place, int(size)
            place += size


class TarnBackend(_Base):  # type: ignore[misc]
    """Backend of an AscendStoreConnector: see the module's text. Each worker has one, and the
    scheduler one that only looks up."""

    def __init__(
        self,
        parallel_config: Any,
        lazy_init: bool = False,
        options: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """`lazy_init` is what vllm-ascend passes for stores that must not start before the first
        put; this one connects at once, and waits for nothing. `options`: as in the file of
        TARN_CONFIG_PATH, before which they win.

        InvalidArgument, PermissionDenied: the configuration. A server that is not there yet is
        waited for later."""
        chosen = settings(options, "options")
        self.parallel_config = parallel_config
        self.store = self  # the engine only asks whether there is one
        self._prefix = f"{escape(chosen.namespace)}@" if chosen.namespace else ""
        self._prefix += f"{digest(_facts)}@" if _facts is not None else ""
        self._gets, self._puts = chosen.get_options(), chosen.put_options()
        self._lock = threading.Lock()  # the maps below
        self._map = HostMap()
        self._ranges: List[_Range] = []
        self._starts: List[int] = []
        self._runtime = Runtime.find()
        self._staging = _Staging(STAGING_BYTES)
        rank = getattr(parallel_config, "rank", "?")
        self._link = Link(chosen, log, f"tarn, rank {rank}")

    @classmethod
    def create_scheduler_client(cls, parallel_config: Any) -> "TarnBackend":
        """The scheduler's, for look-ups."""
        return cls(parallel_config)

    def ensure_initialized(self) -> None:
        """There is nothing left to do."""

    def set_device(self) -> None:
        """Chooses this worker's NPU for the calling thread, where torch_npu is there; else
        nothing."""
        torch = sys.modules.get("torch")
        world = optional("vllm.distributed.parallel_state", "get_world_group")
        if world is None or not hasattr(torch, "npu"):
            log.debug("tarn: no NPU to choose: this is a host without one")
            return
        torch.npu.set_device(world[0]().local_rank)  # type: ignore[union-attr]

    # --- memory

    def register_buffer(self, ptrs: Sequence[int], lengths: Sequence[int]) -> None:
        """Tells of the KV caches. InvalidArgument: not as many lengths as addresses, or no memory
        of the host while there is nothing that could copy a device's: the engine would never get a
        block then, and should say so at its start."""
        if len(ptrs) != len(lengths):
            raise InvalidArgument(
                f"register_buffer: {len(ptrs)} addresses and {len(lengths)} lengths"
            )
        found: List[_Range] = []
        with self._lock:
            self._map.refresh()
            for start, size in zip(ptrs, lengths):
                found.append(self._classify(int(start), int(size)))
        bad = next((r for r in found if r.way == "none"), None)
        if bad is not None:
            raise InvalidArgument(self._no_way(bad.start, bad.end - bad.start))
        self._remember(found)
        host = [r for r in found if r.way == "host" and r.end > r.start]

        def tell(client: Client) -> None:
            for r in host:
                client.register_buffer(r.start, r.end - r.start)

        self._link.on_connect(tell)

    def register_dmabuf(self, address: int, length: int, fd: int, offset: int = 0) -> None:
        """Memory of a device that RDMA reaches: `length` bytes at `address`, `offset` bytes into
        the dma-buf `fd`, which stays open for as long as this backend lives. Such blocks move by
        RDMA and carry no checksum."""

        def tell(client: Client) -> None:
            client.register_dmabuf(address, length, fd, offset)
            # Only now: libtarn would take an address that it was never told of for memory of the
            # host.
            self._remember([_Range(address, address + length, "rdma", True)])

        self._link.on_connect(tell)

    def _remember(self, found: Sequence[_Range]) -> None:
        with self._lock:
            known = {r.start: r for r in self._ranges}
            known.update({r.start: r for r in found})
            self._ranges = [known[s] for s in sorted(known)]
            self._starts = [r.start for r in self._ranges]

    def _classify(self, start: int, size: int) -> _Range:
        if self._map.has(start, size, True):
            return _Range(start, start + size, "host", True)
        if self._map.has(start, size, False):
            return _Range(start, start + size, "host", False)
        known = self._known(start, size)
        if known is not None and known.way == "rdma":
            return _Range(start, start + size, "rdma", True)
        return _Range(start, start + size, "staged" if self._runtime is not None else "none", True)

    def _known(self, start: int, size: int) -> Optional[_Range]:
        i = bisect_right(self._starts, start) - 1
        if i >= 0 and start + size <= self._ranges[i].end:
            return self._ranges[i]
        return None

    @staticmethod
    def _no_way(start: int, size: int) -> str:
        return (
            f"{size} bytes at {start:#x} are no memory of this host: those of an NPU need "
            "libascendcl.so (is Ascend's runtime "
            "installed, its set_env.sh sourced?) or a dma-buf (register_dmabuf); nothing was "
            "touched"
        )

    def _way(self, addrs: Sequence[int], sizes: Sequence[int], writable: bool) -> str:
        """How these pieces of one block move: "host" and "rdma" directly, "staged" by copies.
        InvalidArgument: not at all."""
        if len(addrs) != len(sizes):
            raise InvalidArgument(f"{len(addrs)} addresses and {len(sizes)} sizes")
        ways = set()
        with self._lock:
            for start, size in zip(addrs, sizes):
                known = self._known(start, size)
                if known is None:
                    self._map.refresh()
                    known = self._classify(start, size)
                if known.way == "none" or (writable and not known.writable):
                    raise InvalidArgument(self._no_way(start, size))
                ways.add(known.way)
        if len(ways) > 1:
            raise InvalidArgument(
                "the pieces of one block must all be memory of the host, or all of the device"
            )
        return ways.pop() if ways else "host"

    # --- blocks

    def exists(self, keys: List[str]) -> List[int]:
        """1 or 0 per key; all 0 when the pool is away."""
        if not keys:
            return []
        names = self._names(keys)
        return [
            int(f)
            for f in self._link.call("lookup", lambda c: c.exists_many(names), [False] * len(keys))
        ]

    def batch_is_exist(self, keys: List[str]) -> List[int]:
        """As exists; the scheduler's name for it."""
        return self.exists(keys)

    def put(self, keys: List[str], addrs: List[List[int]], sizes: List[List[int]]) -> None:
        """Stores a block per key, out of its pieces in order. What cannot be stored is logged;
        nobody asks for it later."""
        self._move("put", keys, addrs, sizes)

    def get(self, keys: List[str], addrs: List[List[int]], sizes: List[List[int]]) -> List[int]:
        """Reads a block per key into its pieces. Per key 0, or what the engine takes for a failed
        block: a negative status. A block that is shorter or longer than its pieces has failed."""
        return self._move("get", keys, addrs, sizes)

    def _names(self, keys: Sequence[str]) -> List[str]:
        return [self._prefix + k for k in keys] if self._prefix else list(keys)

    def _move(
        self, what: str, keys: List[str], addrs: List[List[int]], sizes: List[List[int]]
    ) -> List[int]:
        if not keys:
            return []
        if not len(keys) == len(addrs) == len(sizes):
            self._link.complain(
                what,
                f"{what}: {len(keys)} keys, {len(addrs)} lists of addresses, {len(sizes)} of sizes",
            )
            return [int(Status.EINVAL)] * len(keys)
        results = [int(Status.ECLOSED)] * len(keys)
        direct: List[int] = []
        staged: List[int] = []
        for i in range(len(keys)):
            try:
                way = self._way(addrs[i], sizes[i], what == "get")
                (staged if way == "staged" else direct).append(i)
            except InvalidArgument as e:
                self._link.complain(f"{what} address", str(e))
                results[i] = int(Status.EINVAL)
        blocks = _Blocks(self._names(keys), addrs, sizes)
        for rows, work in ((direct, self._direct), (staged, self._staged)):
            if rows:
                part = blocks.only(rows)
                statuses = self._link.call(
                    what, lambda c: work(c, what, part), [int(Status.ECLOSED)] * len(rows)
                )
                for i, status in zip(rows, statuses):
                    results[i] = status
        return results

    def _direct(self, client: Client, what: str, blocks: _Blocks) -> List[int]:
        """0 per block that is done, else a negative status."""
        if what == "put":
            put = self._link.distrust.put
            results = put(client.put_from_many, *blocks, **self._puts)
            stored = self._link.stored(what, results)
            return [0 if well else s for s, well in zip(results, stored)]
        results = client.get_into_many(*blocks, **self._gets)
        whole = self._link.whole(what, blocks.names, results, blocks.totals())
        return [0 if well else _WRONG_SIZE if n >= 0 else n for n, well in zip(results, whole)]

    def _staged(self, client: Client, what: str, blocks: _Blocks) -> List[int]:
        """As many blocks at a time as the staging buffer holds, one thread at a time."""
        results: List[int] = []
        totals, at = blocks.totals(), 0
        with self._staging as base:
            while at < len(totals):
                places, room, end = [], 0, at
                while end < len(totals) and room + totals[end] <= self._staging.size:
                    places.append(base + room)
                    room += totals[end]
                    end += 1
                if end == at:
                    self._link.complain(
                        "size",
                        f"a block of {totals[at]} bytes: at most {self._staging.size} can be "
                        "staged",
                    )
                    results.append(int(Status.ELIMIT))
                    end += 1
                else:
                    results += self._through(client, what, blocks.only(range(at, end)), places)
                at = end
        return results

    def _through(self, client: Client, what: str, blocks: _Blocks, places: List[int]) -> List[int]:
        """Blocks that fit in the staging buffer at once, each at its place."""
        assert self._runtime is not None
        here = _Blocks(blocks.names, [[p] for p in places], [[n] for n in blocks.totals()])
        if what == "put":
            for i, place in enumerate(places):
                for device, at, size in blocks.pieces(i, place):
                    self._runtime.to_host(at, device, size)
        statuses = self._direct(client, what, here)
        if what == "get":
            for i, place in enumerate(places):
                for device, at, size in blocks.pieces(i, place) if statuses[i] == 0 else ():
                    self._runtime.to_device(device, at, size)
        return statuses

    @property
    def troubles(self) -> Dict[str, int]:
        """What went wrong so far, by kind."""
        return dict(self._link.troubles)

    def close(self) -> None:
        """Closes the connection; vllm-ascend itself leaves that to the end of the process."""
        self._link.close()


class _Staging:
    """Memory of the host that blocks of a device pass through; made when it is first needed, held
    by one thread at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._memory: Optional[C.Array[C.c_char]] = None

    def __enter__(self) -> int:
        self._lock.acquire()
        try:
            if self._memory is None:
                self._memory = (C.c_char * self.size)()
            return C.addressof(self._memory)
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *exc: object) -> None:
        self._lock.release()
