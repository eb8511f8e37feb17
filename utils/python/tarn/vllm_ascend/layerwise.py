"""Blocks that move layer by layer, while the engine computes: what vllm-ascend does with a backend
called "memcache" when `use_layerwise` is set.

    save   batch_alloc ─> batch_copy, once a layer ─> batch_write_finish
    load   batch_get_key_info ─> batch_add_lease ─> batch_copy, once a layer ─> batch_remove_lease

A block has an address of its own ("GVA") meanwhile, which layers are copied to and from: memory of
this process, at most LAYERWISE_BYTES. `batch_write_finish` puts whole blocks into the pool in one
batch, and `batch_add_lease` gets them in one. So a block is in the pool with all its layers, or not
at all.

The engine's threads end for good when a copy or a finish fails. So what cannot be stored is
reported as done, and is a miss later; what cannot be loaded gets no lease."""

from __future__ import annotations

import ctypes as C
import mmap
import threading
import time
from bisect import bisect_right
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from .._link import Link
from ..client import Client
from ..errors import Error, InvalidArgument, Status
from .memory import Ranges

LAYERWISE_BYTES = 2 << 30
_STALE_S = 60.0  # a save that was never finished
_SAVE = 0  # direction of batch_copy; the other one is a load


class Held:
    """Memory of a block under way. `busy`: copies that run; `copied`: what layers brought, bytes by
    where they are. Two requests of one step may bring the same layer."""

    __slots__ = ("memory", "address", "size", "until", "busy", "copied", "loaded")

    def __init__(self, memory: mmap.mmap, until: float) -> None:
        self.memory, self.size = memory, len(memory)
        self.address = C.addressof(C.c_char.from_buffer(memory))
        self.until, self.busy, self.loaded = until, 0, False
        self.copied: Dict[int, int] = {}

    def whole(self) -> bool:
        """Whether all layers have come."""
        return sum(self.copied.values()) >= self.size


class Holdings:
    """Blocks under way, by key and address. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._lock = threading.Lock()
        self._by_key: Dict[Any, Held] = {}
        self._by_address: Dict[int, Held] = {}
        self._starts: List[int] = []
        self._spare: Dict[int, List[mmap.mmap]] = {}  # by size

    def take(self, key: Any, size: int, ttl_s: float) -> Optional[Held]:
        """Memory for a block, the same as before if it is under way already; None: there is none
        left."""
        now = time.monotonic()
        with self._lock:
            held = self._by_key.get(key)
            if held is not None and held.size == size:
                held.until = now + ttl_s
                return held
            if held is not None:
                self._drop(key)
            memory = self._memory(size, now) if key not in self._by_key else None
            if memory is None:
                return None
            held = self._by_key[key] = Held(memory, now + ttl_s)
            self._by_address[held.address] = held
            self._starts = sorted(self._by_address)
            return held

    def _memory(self, size: int, now: float) -> Optional[mmap.mmap]:
        if size <= 0:
            return None
        if not self._spare.get(size) and self._used + size > self._limit:
            for key in [k for k, h in self._by_key.items() if h.until < now]:
                self._drop(key)
        if self._spare.get(size):
            return self._spare[size].pop()
        for other in [s for s in self._spare if s != size]:
            while self._spare[other] and self._used + size > self._limit:
                self._spare[other].pop()
                self._used -= other
        if self._used + size > self._limit:
            return None
        self._used += size
        return mmap.mmap(-1, size)

    def _drop(self, key: Any) -> None:
        held = self._by_key[key]
        if held.busy:
            return
        del self._by_key[key], self._by_address[held.address]
        self._starts = sorted(self._by_address)
        self._spare.setdefault(held.size, []).append(held.memory)

    def get(self, key: Any) -> Optional[Held]:
        """The block of a key that is under way."""
        with self._lock:
            return self._by_key.get(key)

    def drop(self, keys: Sequence[Any]) -> int:
        """Ends blocks; how many there were."""
        with self._lock:
            here = [key for key in keys if key in self._by_key]
            for key in here:
                self._drop(key)
            return len(here)

    def begin(self, address: int, size: int) -> Held:
        """The block in which these bytes lie, busy until `end`. InvalidArgument: in none."""
        with self._lock:
            i = bisect_right(self._starts, address) - 1
            held = self._by_address[self._starts[i]] if i >= 0 else None
            if held is None or address + size > held.address + held.size:
                raise InvalidArgument(
                    f"{size} bytes at {address:#x} are of no block that is under way"
                )
            held.busy += 1
            return held

    def end(self, held: Held) -> None:
        """Of `begin`."""
        with self._lock:
            held.busy -= 1


class KeyInfo(NamedTuple):
    """A block in the pool, as the engine asks for it."""

    bytes_: int
    holdings: Holdings
    key: str

    def size(self) -> int:
        """Bytes; 0: there is none."""
        return self.bytes_

    def gva_list(self) -> List[int]:
        """Where batch_add_lease will load it to; [0]: there is no memory left."""
        held = self.holdings.take(("load", self.key), self.bytes_, _STALE_S)
        return [held.address if held is not None else 0]


class LayerwiseStore:
    """To be mixed into the backend."""

    _link: Link
    _ranges: Ranges
    _gets: Mapping[str, Any]
    _puts: Mapping[str, Any]

    def _set_up_layers(self) -> None:
        self._held = Holdings(LAYERWISE_BYTES)

    def _names(self, keys: Sequence[str]) -> List[str]:
        raise NotImplementedError

    def _boundaries(self, names: Sequence[str]) -> List[Optional[str]]:
        raise NotImplementedError

    # --- saves

    def batch_alloc(self, keys: List[str], sizes: List[int]) -> List[int]:
        """An address per key for its layers; -1: there is no memory for it, and it is not saved."""
        found = [self._held.take(("save", k), int(n), _STALE_S) for k, n in zip(keys, sizes)]
        if None in found:
            self._link.complain(
                "layers", f"blocks are not saved: {LAYERWISE_BYTES >> 20} MiB of them are under way"
            )
        return [held.address if held is not None else -1 for held in found]

    def batch_write_finish(self, keys: List[str], results: List[int]) -> List[int]:
        """Stores the blocks whose result is 0 and whose layers have all come, at once. 0 for each:
        what could not be stored is logged, and a miss later."""
        rows = [
            (key, held)
            for key, result in zip(keys, results)
            for held in [self._held.get(("save", key))]
            if held is not None and result == 0 and held.whole()
        ]

        def work(client: Client) -> bool:
            names = self._names([key for key, _ in rows])
            places = [held.address for _, held in rows], [held.size for _, held in rows]
            statuses = self._link.distrust.put(
                client.put_from_many,
                names,
                *places,
                boundary=self._boundaries(names),
                **self._puts,
            )
            self._link.stored("put", statuses)
            return True

        if rows:
            self._link.call("put", work, False)
        self._held.drop([("save", key) for key in keys])
        return [0] * len(keys)

    # --- loads

    def batch_get_key_info(self, keys: List[str]) -> List[KeyInfo]:
        """Size and address of each block; 0 of one that is not there, or while the pool is away."""
        nothing: List[Optional[int]] = [None] * len(keys)
        names = self._names(keys)
        sizes = self._link.call("lookup", lambda c: c.sizes(names), nothing) if keys else []
        return [KeyInfo(size or 0, self._held, key) for key, size in zip(keys, sizes)]

    def batch_add_lease(self, keys: List[str], lease_ttl_ms: int = 0) -> List[int]:
        """Loads the blocks to the addresses that batch_get_key_info gave; they stay there until
        batch_remove_lease, or for so long. 0, or a negative status: that one cannot be had."""
        ttl_s = lease_ttl_ms / 1000 if lease_ttl_ms else _STALE_S
        results = [int(Status.ENOTFOUND)] * len(keys)
        rows = []
        for i, key in enumerate(keys):
            held = self._held.get(("load", key))
            if held is not None and held.loaded:
                held.until, results[i] = time.monotonic() + ttl_s, 0
            elif held is not None:
                rows.append((i, key, held))

        def work(client: Client) -> List[bool]:
            names = self._names([key for _, key, _ in rows])
            sizes = [held.size for *_, held in rows]
            got = client.get_into_many(
                names, [held.address for *_, held in rows], sizes, **self._gets
            )
            return self._link.whole("get", names, got, sizes, int(Status.ENOTFOUND))

        well = self._link.call("get", work, [False] * len(rows)) if rows else []
        for (i, _, held), good in zip(rows, well):
            if good:
                held.until, held.loaded, results[i] = time.monotonic() + ttl_s, True, 0
        self._held.drop([("load", key) for key, result in zip(keys, results) if result])
        return results

    def batch_remove_lease(self, keys: List[str]) -> int:
        """Lets go of blocks that were loaded. 0."""
        self._held.drop([("load", key) for key in keys])
        return 0

    # --- layers

    def batch_copy(
        self, gvas: List[int], addrs: List[int], sizes: List[int], direction: int
    ) -> int:
        """Copies pieces of layers: from `addrs` of the KV cache to `gvas` (direction 0), or back.
        0. A piece that cannot be saved costs its block; one that cannot be loaded is -1."""
        saving, result = direction == _SAVE, 0
        for gva, address, size in zip(gvas, addrs, sizes):
            held = None
            try:
                held = self._held.begin(gva, size)
                self._copy_piece(gva, address, size, saving)
                held.copied[gva] = size
            except Error as e:
                self._link.complain(f"layers {e.name}", str(e))
                result = result if saving else -1
            finally:
                if held is not None:
                    self._held.end(held)
        return result

    def _copy_piece(self, gva: int, address: int, size: int, saving: bool) -> None:
        way, runtime = self._ranges.way([address], [size], not saving), self._ranges.runtime
        if way == "host":
            C.memmove(gva if saving else address, address if saving else gva, size)
        elif runtime is None:
            raise InvalidArgument("layers of a device's memory need Ascend's runtime")
        elif saving:
            runtime.to_host(gva, address, size)
        else:
            runtime.to_device(address, gva, size)
