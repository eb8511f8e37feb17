"""Memory of a transfer engine: what peers may use, and what is made for them."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Dict, List, Optional, Sequence

import tarn
from tarn.transfer import End

from mooncake import _common as common
from mooncake._common import Refused, log
from mooncake._reach import Reach, out_of_reach

# Mooncake's names for the codes that arise here.
ERR_INVALID_ARGUMENT, ERR_ADDRESS_NOT_REGISTERED, ERR_ADDRESS_OVERLAPPED, ERR_NOT_IMPLEMENTED = (
    -1,
    -3,
    -7,
    -303,
)
_SLAB_MAX, _ARENA = 1 << 20, 4 << 20  # buffers up to the one are cut out of pieces of the other


class MemoryMethods:
    """Part of TransferEngine."""

    def _memory_init(self) -> None:
        self._end: Optional[End] = None
        self._rdma = False
        self._reach = Reach()
        self._first: List[int] = []  # addresses that peers may use, as they were registered
        self._free: Dict[int, List[int]] = {}  # of the slab, by size
        self._managed: Dict[int, int] = {}
        self._arenas: List[Any] = []
        self._lock = threading.Lock()

    def _register(self, address: int, size: int) -> int:
        end = self._end
        if end is None:
            log.error("register_memory: initialize() comes first")
            return ERR_INVALID_ARGUMENT
        try:
            self._reach.register(end.register, end.register_dmabuf, address, size, self._rdma)
        except Refused as e:
            log.error("register_memory: %s", e)
            return ERR_NOT_IMPLEMENTED if e.code == common.NOT_SUPPORTED else ERR_INVALID_ARGUMENT
        except tarn.Error as e:
            log.error("register_memory: %#x with %d bytes: %s", address, size, e)
            return ERR_ADDRESS_OVERLAPPED if isinstance(e, tarn.Exists) else ERR_INVALID_ARGUMENT
        with self._lock:
            self._first.append(address)
        return 0

    def _beyond(
        self, what: str, addresses: Sequence[int], sizes: Sequence[int], writes: bool
    ) -> bool:
        """Is some of this memory out of this process's reach? Then the log says so."""
        beyond = self._reach.beyond(addresses, sizes, writes)
        if beyond:
            log.error("%s: %s", what, out_of_reach(beyond, len(addresses), writes))
        return bool(beyond)

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Lets peers at memory of the program's own. 0, -7: part of it is registered already. That
        of a GPU moves by RDMA only, as a dma-buf; -303 where that cannot be."""
        return self._register(buffer_addr, capacity)

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """The same for many: all of them, or none and the code of the first that could not be."""
        if len(buffer_addresses) != len(capacities):
            log.error(
                "batch_register_memory: %d addresses, %d capacities",
                len(buffer_addresses),
                len(capacities),
            )
            return ERR_INVALID_ARGUMENT
        for i, (address, size) in enumerate(zip(buffer_addresses, capacities)):
            code = self._register(address, size)
            if code:
                self.batch_unregister_memory(buffer_addresses[:i])
                return code
        return 0

    def unregister_memory(self, buffer_addr: int) -> int:
        """Returns when no peer moves bytes there any more. 0, or -3: nothing is registered
        there."""
        end = self._end
        if end is None:
            return ERR_INVALID_ARGUMENT
        with self._lock:
            if buffer_addr not in self._first or buffer_addr in self._managed:
                log.error("unregister_memory: nothing is registered at %#x", buffer_addr)
                return ERR_ADDRESS_NOT_REGISTERED
            self._first.remove(buffer_addr)
        self._reach.forget(buffer_addr)
        try:
            end.unregister(buffer_addr)
        except tarn.Error as e:
            log.error("unregister_memory: %s", e)
            return ERR_ADDRESS_NOT_REGISTERED
        return 0

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """The same for many: 0, or the code of the last that was not registered."""
        code = 0
        for address in buffer_addresses:
            code = self.unregister_memory(address) or code
        return code

    def allocate_managed_buffer(self, length: int) -> int:
        """Address of memory that peers may use, by shared memory on this machine; 0: there is no
        such memory."""
        end = self._end
        if end is None or length <= 0:
            return 0
        size = 1 << max(length - 1, 4095).bit_length() if length <= _SLAB_MAX else length
        with self._lock:
            free = self._free.setdefault(size, [])
            if length > _SLAB_MAX or not free:
                try:
                    piece = end.alloc(size if length > _SLAB_MAX else _ARENA)
                except tarn.Error as e:
                    log.error("allocate_managed_buffer: %s", e)
                    return 0
                self._first.append(piece.address)
                self._arenas.append(piece)
                if length > _SLAB_MAX:
                    self._managed[piece.address] = size
                    return int(piece.address)
                free.extend(range(piece.address + _ARENA - size, piece.address - 1, -size))
            address = free.pop()
            self._managed[address] = size
            return address

    def free_managed_buffer(self, user_tensor: int, length: int) -> int:
        """0, or -1: it was not allocated."""
        with self._lock:
            size = self._managed.pop(user_tensor, None)
            if size is None or self._end is None:
                log.error("free_managed_buffer: nothing was allocated at %#x", user_tensor)
                return -1
            if size <= _SLAB_MAX:
                self._free[size].append(user_tensor)
                return 0
            piece = next(a for a in self._arenas if a.address == user_tensor)
            self._arenas.remove(piece)
            self._first.remove(user_tensor)
        self._end.unregister(piece)
        return 0

    def write_bytes_to_buffer(self, dest_address: int, src_ptr: Any, length: int) -> int:
        """Copies bytes to an address of this program's memory."""
        data = src_ptr.encode() if isinstance(src_ptr, str) else bytes(src_ptr)
        if not 0 <= length <= len(data):
            log.error("write_bytes_to_buffer: %d bytes of %d", length, len(data))
            return -1
        if self._beyond("write_bytes_to_buffer", [dest_address], [length], True):
            return -1
        ctypes.memmove(dest_address, data, length)
        return 0

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """Copies bytes from an address of this program's memory."""
        if self._beyond("read_bytes_from_buffer", [source_address], [length], False):
            return b""
        return tarn.memory.bytes_at(source_address, length)
