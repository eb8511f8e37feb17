"""Blocks that move layer by layer, while the engine computes: what vllm-ascend does with a backend
called "memcache" when `use_layerwise` is set.

    save   batch_alloc ─> batch_copy, once a layer ─> batch_write_finish
    load   batch_get_key_info ─> batch_add_lease ─> batch_copy, once a layer ─> batch_remove_lease

A block has a place of its own ("GVA") meanwhile, which layers are copied to and from: memory of
this process, at most LAYERWISE_BYTES. `batch_write_finish` puts whole blocks into the pool in one
batch, and `batch_add_lease` gets them in one. So a block is in the pool with all its layers, or not
at all.

A GVA is no address but a number that never comes again. The memory behind it serves another block
when this one has ended and nobody copies any more; whoever comes later with the number finds
nothing, and never the other block's bytes.

The engine's threads end for good when a copy or a finish fails. So what cannot be stored is
reported as done, and is a miss later; what cannot be loaded gets no lease."""

from __future__ import annotations

import ctypes as C
import mmap
import threading
import time
from bisect import bisect_left, bisect_right
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .._link import Link
from ..client import Client
from ..errors import Error, InvalidArgument, Status
from ..options import HintKeywords
from .memory import Ranges

LAYERWISE_BYTES = 2 << 30
_STALE_S = 60.0  # a save that was never finished
_SAVE = 0  # direction of batch_copy; the other one is a load
_GAP = 4096  # between the numbers of blocks
Key = Tuple[str, str]  # "save" or "load", and the engine's key


class Held:
    """Memory of a block under way, from `gva` on. `users`: who copies, fills or stores it now;
    `ended`: it waits for them to become spare. `copied`: what layers brought, bytes by offset."""

    __slots__ = (
        "key",
        "gva",
        "size",
        "memory",
        "address",
        "until",
        "users",
        "ended",
        "copied",
        "loaded",
    )

    def __init__(self, key: Key, gva: int, memory: mmap.mmap, until: float) -> None:
        self.key, self.gva, self.size, self.memory = key, gva, len(memory), memory
        self.address = C.addressof(C.c_char.from_buffer(memory))
        self.until, self.users, self.ended, self.loaded = until, 0, False, False
        self.copied: Dict[int, int] = {}

    def whole(self) -> bool:
        """Whether all layers have come. Two requests of one step may bring the same one."""
        end = 0
        for at in sorted(self.copied):
            if at > end:
                return False
            end = max(end, at + self.copied[at])
        return end == self.size


class Holdings:
    """Blocks under way, by key and GVA. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._lock = threading.Lock()
        self._by_key: Dict[Key, Held] = {}
        self._by_gva: Dict[int, Held] = {}
        self._gvas: List[int] = []  # sorted: they only rise
        self._next = _GAP
        self._spare: Dict[int, List[mmap.mmap]] = {}  # by size

    def take(self, key: Key, size: int, ttl_s: float) -> Optional[Held]:
        """Memory for a block, the same as before if it is under way already; None: there is none
        left."""
        now = time.monotonic()
        with self._lock:
            held = self._by_key.get(key)
            if held is not None and held.size == size and held.until >= now:
                held.until = max(held.until, now + ttl_s)
                return held
            if held is not None:
                self._drop(held)
            memory = self._memory(size, now)
            if memory is None:
                return None
            held = self._by_key[key] = Held(key, self._next, memory, now + ttl_s)
            self._by_gva[held.gva] = held
            self._gvas.append(held.gva)
            self._next += size + _GAP
            return held

    def _memory(self, size: int, now: float) -> Optional[mmap.mmap]:
        if size <= 0:
            return None
        if not self._spare.get(size) and self._used + size > self._limit:
            for held in [h for h in self._by_key.values() if h.until < now]:
                self._drop(held)
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

    def _drop(self, held: Held) -> None:
        del self._by_key[held.key], self._by_gva[held.gva]
        del self._gvas[bisect_left(self._gvas, held.gva)]
        held.ended = True
        self._release(held)

    def _release(self, held: Held) -> None:
        if held.ended and not held.users:
            self._spare.setdefault(held.size, []).append(held.memory)

    def drop(self, keys: Sequence[Key]) -> None:
        """Ends blocks. The memory of one that is in use stays until it is not."""
        with self._lock:
            for key in keys:
                if key in self._by_key:
                    self._drop(self._by_key[key])

    def finish(self, keys: Sequence[Key]) -> List[Held]:
        """Ends blocks, and gives those whose layers have all come, each in use until `end`. One
        that a layer is being copied to is not whole."""
        found = []
        with self._lock:
            for held in [self._by_key[key] for key in keys if key in self._by_key]:
                if not held.ended and not held.users and held.whole():
                    held.users += 1
                    found.append(held)
                if not held.ended:
                    self._drop(held)
        return found

    def use(self, key: Key, ttl_s: float) -> Optional[Held]:
        """The block of a key that is under way, in use until `end`, and kept for so long."""
        with self._lock:
            held = self._by_key.get(key)
            if held is not None:
                held.users += 1
                held.until = time.monotonic() + ttl_s
            return held

    def begin(self, gva: int, size: int, what: str) -> Held:
        """The block in which these bytes lie, in use until `end`. InvalidArgument: in none that is
        being saved, or is loaded."""
        with self._lock:
            i = bisect_right(self._gvas, gva) - 1
            held = self._by_gva[self._gvas[i]] if i >= 0 else None
            if held is None or gva + size > held.gva + held.size:
                raise InvalidArgument(f"{size} bytes at {gva:#x} are of no block that is under way")
            if held.key[0] != what or (what == "load" and not held.loaded):
                raise InvalidArgument(f"the block at {gva:#x} is not there to {what}")
            held.users += 1
            held.until = max(held.until, time.monotonic() + _STALE_S)
            return held

    def end(self, held: Held) -> None:
        """Of `begin`, `use` and `finish`."""
        with self._lock:
            held.users -= 1
            self._release(held)

    def copied(self, held: Held, gva: int, size: int) -> None:
        """A layer came."""
        with self._lock:
            at = gva - held.gva
            held.copied[at] = max(size, held.copied.get(at, 0))


class KeyInfo(NamedTuple):
    """A block in the pool, as the engine asks for it."""

    bytes_: int
    holdings: Holdings
    key: str

    def size(self) -> int:
        """Bytes; 0: there is none."""
        return self.bytes_

    def gva_list(self) -> List[int]:
        """Where layers are copied from once batch_add_lease has loaded it; [0]: there is no memory
        left."""
        held = self.holdings.take(("load", self.key), self.bytes_, _STALE_S)
        return [held.gva if held is not None else 0]


class LayerwiseStore:
    """To be mixed into the backend."""

    _link: Link
    _ranges: Ranges
    _gets: Mapping[str, Any]
    _puts: Mapping[str, Any]

    def _set_up_layers(self) -> None:
        self._held = Holdings(LAYERWISE_BYTES)
        self._loading = threading.Lock()  # so that nobody loads into a block that others read

    def _names(self, keys: Sequence[str]) -> List[str]:
        raise NotImplementedError

    def _boundaries(self, names: Sequence[str]) -> List[Optional[str]]:
        raise NotImplementedError

    def _hints_for(self, names: Sequence[str]) -> HintKeywords:
        raise NotImplementedError

    # --- saves

    def batch_alloc(self, keys: List[str], sizes: List[int]) -> List[int]:
        """A GVA per key for its layers; -1: there is no memory for it, and it is not saved."""
        found = [self._held.take(("save", k), int(n), _STALE_S) for k, n in zip(keys, sizes)]
        if None in found:
            self._link.complain(
                "layers", f"blocks are not saved: {LAYERWISE_BYTES >> 20} MiB of them are under way"
            )
        return [held.gva if held is not None else -1 for held in found]

    def batch_write_finish(self, keys: List[str], results: List[int]) -> List[int]:
        """Stores the blocks whose result is 0 and whose layers have all come, at once. 0 for each:
        what could not be stored is logged, and a miss later."""
        self._held.drop([("save", key) for key, result in zip(keys, results) if result])
        rows = self._held.finish([("save", key) for key in keys])

        def work(client: Client) -> bool:
            names = self._names([held.key[1] for held in rows])
            places = [held.address for held in rows], [held.size for held in rows]
            statuses = self._link.distrust.put(
                client.put_from_many,
                names,
                *places,
                boundary=self._boundaries(names),
                **{**self._puts, **self._hints_for(names)},
            )
            self._link.stored("put", statuses)
            return True

        try:
            if rows:
                self._link.call("put", work, False)
        finally:
            for held in rows:
                self._held.end(held)
        return [0] * len(keys)

    # --- loads

    def batch_get_key_info(self, keys: List[str]) -> List[KeyInfo]:
        """Size and address of each block; 0 of one that is not there, or while the pool is away."""
        nothing: List[Optional[int]] = [None] * len(keys)
        names = self._names(keys)
        sizes = self._link.call("lookup", lambda c: c.sizes(names), nothing) if keys else []
        return [KeyInfo(size or 0, self._held, key) for key, size in zip(keys, sizes)]

    def batch_add_lease(self, keys: List[str], lease_ttl_ms: int = 0) -> List[int]:
        """Loads the blocks to the places that batch_get_key_info gave; they stay there until
        batch_remove_lease, or for so long, and while layers of them are copied. 0, or a negative
        status: that one cannot be had. One thread at a time."""
        ttl_s = lease_ttl_ms / 1000 if lease_ttl_ms else _STALE_S
        rows: Dict[str, Held] = {}
        with self._loading:
            try:
                for key in keys:
                    held = self._held.use(("load", key), ttl_s) if key not in rows else None
                    if held is not None:
                        rows[key] = held
                self._load([held for held in rows.values() if not held.loaded])
                here = {key for key, held in rows.items() if held.loaded and not held.ended}
            finally:
                for held in rows.values():
                    self._held.end(held)
        self._held.drop([("load", key) for key in keys if key not in here])
        return [0 if key in here else int(Status.ENOTFOUND) for key in keys]

    def _load(self, rows: List[Held]) -> None:
        """Fills blocks that are in use."""
        keys = [held.key[1] for held in rows]

        def work(client: Client) -> List[bool]:
            names, sizes = self._names(keys), [held.size for held in rows]
            told = {**self._gets, **self._hints_for(names)}
            got = client.get_into_many(names, [h.address for h in rows], sizes, **told)
            return self._link.whole("get", names, got, sizes, int(Status.ENOTFOUND))

        well = self._link.call("get", work, [False] * len(rows)) if rows else []
        for held, good in zip(rows, well):
            held.loaded = good

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
                held = self._held.begin(gva, size, "save" if saving else "load")
                place = held.address + gva - held.gva
                self._copy_piece(place, address, size, saving)
                self._held.copied(held, gva, size)
            except Error as e:
                self._link.complain(f"layers {e.name}", str(e))
                result = result if saving else -1
            finally:
                if held is not None:
                    self._held.end(held)
        return result

    def _copy_piece(self, place: int, address: int, size: int, saving: bool) -> None:
        way, runtime = self._ranges.way([address], [size], not saving), self._ranges.runtime
        if way == "host":
            C.memmove(place if saving else address, address if saving else place, size)
        elif runtime is None:
            raise InvalidArgument("layers of a device's memory need Ascend's runtime")
        elif saving:
            runtime.to_host(place, address, size)
        else:
            runtime.to_device(address, place, size)
