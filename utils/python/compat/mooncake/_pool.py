"""Buffers of host memory that a store knows, lent out and used again."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional

_ADDRESS_BYTES = ctypes.sizeof(ctypes.c_void_p)


class _Region(NamedTuple):
    """Memory that is registered: `size` bytes at `address`, in a map that may begin before it."""

    memory: mmap.mmap
    address: int
    size: int


class BufferLease:
    """`size` bytes at `ptr`, until release() or the end of a `with`. RuntimeError afterwards."""

    def __init__(self, pool: "BufferPool", region: _Region, size: int) -> None:
        self._pool, self._region, self._size = pool, region, size
        self._released = False

    def _held(self) -> _Region:
        if self._released:
            raise RuntimeError("buffer lease is closed")
        return self._region

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
        return self._held().address

    @property
    def size(self) -> int:
        """Bytes that were asked for."""
        return self._size

    @property
    def buffer(self) -> memoryview:
        """A view of these bytes, which holds the lease. release() is refused while there is one."""
        region = self._held()
        start = region.address - _address_of(region.memory)
        array = (ctypes.c_ubyte * max(self._size, 1)).from_buffer(region.memory, start)
        setattr(array, "lease", self)
        return memoryview(array).cast("B")[: self._size]

    def release(self) -> None:
        """Gives the memory back. RuntimeError while a view of it is in use. Twice does no harm."""
        with self._pool._changed:  # of several threads one gives it back
            if self._released:
                return
            try:
                self._region.memory.resize(len(self._region.memory))  # which a view forbids
            except BufferError:
                raise RuntimeError("cannot release buffer while exported views exist") from None
            self._released = True
            self._pool._take_back(self._region)

    def __enter__(self) -> "BufferLease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if not getattr(self, "_released", True):
            self._released = True
            self._pool._take_back(self._region)


def _address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class BufferPool:
    """Buffers of up to max_bytes together (0: twice the store's local_buffer_size, never less than
    that), registered at `store`. Released ones up to max_size_class bytes (None: all) are kept for
    the next who asks for as much, rounded up to whole min_size_class bytes. Any thread may call.
    RuntimeError says what is wrong."""

    def __init__(
        self,
        store: Any,
        max_bytes: int = 0,
        min_size_class: int = 64 << 10,
        max_size_class: Optional[int] = None,
        alignment: int = 8 << 20,
        block_on_exhaustion: bool = True,
        default_timeout: Optional[float] = None,
        max_regions: Optional[int] = None,
        prewarm_size: Optional[int] = None,
        prewarm_count: int = 0,
    ) -> None:
        if store is None or store._get_pyclient_capsule() is None:
            raise RuntimeError("MooncakeDistributedStore is not initialized")
        if min_size_class < 1 or alignment < _ADDRESS_BYTES or alignment & (alignment - 1):
            raise RuntimeError("min_size_class: 1 or more; alignment: a power of two, 8 or more")
        if not store._local_buffer:
            raise RuntimeError("BufferPool requires a store configured with a local buffer")
        self._store, self._step, self._alignment = store, min_size_class, alignment
        self._max = max(max_bytes, store._local_buffer) if max_bytes else 2 * store._local_buffer
        self._keep_max = self._max if max_size_class is None else max_size_class
        self._blocks, self._timeout, self._max_regions = (
            block_on_exhaustion,
            default_timeout,
            max_regions,
        )
        self._free: Dict[int, List[_Region]] = {}  # by size
        self._bytes = self._lent = 0  # of all regions; regions that are out
        self._closed = False
        self._changed = threading.Condition(
            threading.RLock()
        )  # a lease may be collected inside a call
        if prewarm_size is not None:
            self.prewarm(prewarm_size, prewarm_count)

    def _class_of(self, size: int) -> int:
        rounded = -(-max(size, 1) // self._step) * self._step
        return max(size, min(rounded, self._max), 1)

    def acquire(
        self, size: int, block: Optional[bool] = None, timeout: Optional[float] = None
    ) -> BufferLease:
        """A buffer of so many bytes. Where there is none at the moment it waits, `timeout` seconds
        (None: default_timeout) or for ever, unless block (None: block_on_exhaustion) is False."""
        timeout = self._timeout if timeout is None else timeout
        if timeout is not None and timeout < 0:
            raise RuntimeError("timeout must be non-negative")
        if size < 0 or size > self._max:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                region = self._region_of(self._class_of(size))
                if region is not None:
                    self._lent += 1
                    return BufferLease(self, region, size)
                if not (self._blocks if block is None else block):
                    raise RuntimeError("buffer pool is exhausted")
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("timed out waiting for buffer")
                self._changed.wait(left)

    buffer = acquire

    def _region_of(self, size: int) -> Optional[_Region]:
        """A kept one, or a new one if there is room, at the cost of kept ones of other sizes."""
        if self._max_regions is not None and self._lent >= self._max_regions:
            return None
        if self._free.get(size):
            return self._free[size].pop()
        for kept in self._free.values():
            while kept and self._bytes + size > self._max:
                self._forget(kept.pop())
        return self._made(size) if self._bytes + size <= self._max else None

    def _made(self, size: int) -> _Region:
        slack = self._alignment if self._alignment > mmap.PAGESIZE else 0
        try:
            memory = mmap.mmap(-1, size + slack)
        except (OSError, OverflowError) as e:
            raise RuntimeError(f"no memory for a buffer of {size} bytes: {e}") from None
        start = _address_of(memory)
        region = _Region(
            memory, -(-start // self._alignment) * self._alignment if slack else start, size
        )
        if self._store.register_buffer(region.address, size) != 0:
            raise RuntimeError("buffer registration failed")
        self._bytes += size
        return region

    def _forget(self, region: _Region) -> None:
        self._bytes -= region.size
        if (
            self._store._get_pyclient_capsule() is not None
        ):  # a store that is closed knows none any more
            self._store.unregister_buffer(region.address)

    def _take_back(self, region: _Region) -> None:
        with self._changed:
            self._lent -= 1
            if self._closed or region.size > self._keep_max:
                self._forget(region)
            else:
                self._free.setdefault(region.size, []).append(region)
            self._changed.notify_all()

    def prewarm(self, size: int, count: int) -> None:
        """Makes so many buffers ahead, as far as there is room for them."""
        with self._changed:
            size = self._class_of(size)
            while len(self._free.get(size, ())) < count and self._bytes + size <= self._max:
                self._free.setdefault(size, []).append(self._made(size))

    def __del__(self) -> None:
        if hasattr(self, "_changed"):
            self.close()

    def close(self) -> None:
        """Gives all memory back. RuntimeError while leases are out."""
        with self._changed:
            if self._lent:
                raise RuntimeError("cannot close buffer pool with active leases")
            self._closed = True
            for kept in self._free.values():
                while kept:
                    self._forget(kept.pop())
            self._changed.notify_all()
