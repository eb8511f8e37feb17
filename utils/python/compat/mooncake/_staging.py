"""A GPU's memory where RDMA does not reach it: pieces of it are copied through memory of this
process that CUDA's driver has pinned, and go on from there. Slower than RDMA by that copy."""

from __future__ import annotations

import ctypes
import mmap
import threading
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import tarn
from tarn.cuda import CudaError, Driver, Pinner

from mooncake._common import log
from mooncake._reach import Piece

LOT_BYTES = 64 << 20  # that are staged at once; a larger value has memory of its own
_STREAM = 2  # CU_STREAM_PER_THREAD: each thread waits for its own copies


class StagedRow(NamedTuple):
    """A row of a batch, some of whose pieces are a GPU's."""

    number: int
    pieces: List[Piece]
    size: int


class Staging:
    """Of one store. Threads share it; each has a piece of pinned memory while it copies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._driver: Optional[Driver] = None
        self._pinners: Dict[int, Pinner] = {}
        self._free: List[mmap.mmap] = []

    def can(self, device: int) -> bool:
        """Is there a way to copy from this device?"""
        try:
            self.pinner(device)
            return True
        except (CudaError, tarn.NotSupported) as e:
            log.warning("memory of GPU %d cannot be copied: %s", device, e)
            return False

    def pinner(self, device: int) -> Pinner:
        """Raises CudaMissing, CudaError."""
        with self._lock:
            if device not in self._pinners:
                self._driver = self._driver or Driver()
                self._pinners[device] = Pinner(device, driver=self._driver)
            return self._pinners[device]

    @contextmanager
    def memory(self, size: int, device: int) -> Iterator[int]:
        """Address of memory for `size` bytes, pinned if it can be."""
        memory = self._taken(device) if size <= LOT_BYTES else mmap.mmap(-1, size)
        view = ctypes.c_char.from_buffer(memory)
        try:
            yield ctypes.addressof(view)
        finally:
            del view
            if size <= LOT_BYTES:
                with self._lock:
                    self._free.append(memory)
            else:
                memory.close()

    def _taken(self, device: int) -> mmap.mmap:
        with self._lock:
            if self._free:
                return self._free.pop()
        memory = mmap.mmap(-1, LOT_BYTES)
        try:
            self.pinner(device).register(memory)
        except (CudaError, tarn.NotSupported) as e:
            log.warning("memory for copies from a GPU could not be pinned, they are slower: %s", e)
        return memory

    def moved(
        self,
        lot: Sequence[StagedRow],
        writes: bool,
        move: Callable[[Sequence[int], Sequence[int]], List[int]],
    ) -> List[int]:
        """move(addresses, sizes) with the rows in memory of this process, one behind the other.
        Raises CudaError, NotSupported."""
        device = next(d for _, _, d in lot[0].pieces if d is not None)
        sizes = [row.size for row in lot]
        with self.memory(sum(sizes), device) as base:
            starts = [base + sum(sizes[:i]) for i in range(len(lot))]
            if not writes:
                self.copy(lot, base, ())
            results = move(starts, sizes)
            if writes:
                self.copy(lot, base, [max(result, 0) for result in results])
            return results

    def copy(self, rows: Sequence[StagedRow], base: int, into: Sequence[int]) -> None:
        """From the rows' pieces to memory at `base`, one row behind the other; or, where `into`
        says how many bytes of each, from there to the pieces. Raises CudaError."""
        devices, start = set(), base
        for i, row in enumerate(rows):
            at, left = start, into[i] if into else row.size
            for address, size, device in row.pieces:
                size = min(size, left)
                if size <= 0:
                    break
                if device is None:
                    ctypes.memmove(*((address, at) if into else (at, address)), size)
                elif into:
                    self.pinner(device).to_device(address, (at, size), stream=_STREAM)
                else:
                    self.pinner(device).from_device((at, size), address, stream=_STREAM)
                if device is not None:
                    devices.add(device)
                at, left = at + size, left - size
            start += row.size
        for device in devices:
            self.pinner(device).synchronize(_STREAM)

    def close(self) -> None:
        """Unpins all of it. No copy is under way."""
        with self._lock:
            pinners, self._pinners = list(self._pinners.values()), {}
            for pinner in pinners:
                pinner.close()
            self._free.clear()


def lots_of(rows: Sequence[StagedRow]) -> Iterator[List[StagedRow]]:
    """As many rows at once as LOT_BYTES have room for, one at least."""
    lot: List[StagedRow] = []
    for row in rows:
        if lot and sum(r.size for r in lot) + row.size > LOT_BYTES:
            yield lot
            lot = []
        lot.append(row)
    if lot:
        yield lot
