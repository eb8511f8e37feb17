"""Whose memory an address is, and how its bytes get to the pool.

What the engine hands over are addresses of its KV caches, in the memory of an NPU or, in CPU builds
and tests, of the host. Memory of the host is put and read in place. Memory of a device is never
touched by the CPU. It goes through memory of the host when Ascend's runtime (libascendcl.so) is
there to copy it, straight by RDMA where `register_dmabuf` said how, and else fails with a message
that says so. Which of them it is, the kernel's table of mappings says: host memory is what is
mapped, readable (for gets writable), and not the file of a device."""

from __future__ import annotations

import ctypes as C
import os
import threading
from bisect import bisect_right
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import InvalidArgument, NotSupported

STAGING_BYTES = 64 << 20
_NOT_DEVICES = ("/dev/shm/", "/dev/hugepages", "/dev/zero", "/dev/dax")


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


class Range:
    """Registered memory: where, and how its bytes get to the pool: "host", "staged", "rdma" or
    "none"."""

    __slots__ = ("start", "end", "way", "writable")

    def __init__(self, start: int, end: int, way: str, writable: bool) -> None:
        self.start, self.end, self.way, self.writable = start, end, way, writable


class Ranges:
    """What was registered, and what else the engine names. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._map = HostMap()
        self._ranges: List[Range] = []
        self._starts: List[int] = []
        self.runtime = Runtime.find()

    def find(self, ptrs: Sequence[int], lengths: Sequence[int]) -> List[Range]:
        """What this memory is. InvalidArgument: not as many lengths as addresses, or no memory of
        the host while there is nothing that could copy a device's."""
        if len(ptrs) != len(lengths):
            raise InvalidArgument(
                f"register_buffer: {len(ptrs)} addresses and {len(lengths)} lengths"
            )
        with self._lock:
            self._map.refresh()
            found = [self._classify(int(start), int(size)) for start, size in zip(ptrs, lengths)]
        bad = next((r for r in found if r.way == "none"), None)
        if bad is not None:
            raise InvalidArgument(_no_way(bad.start, bad.end - bad.start))
        return found

    def remember(self, found: Sequence[Range]) -> None:
        """So that it is not looked up again."""
        with self._lock:
            known = {r.start: r for r in self._ranges}
            known.update({r.start: r for r in found})
            self._ranges = [known[s] for s in sorted(known)]
            self._starts = [r.start for r in self._ranges]

    def _classify(self, start: int, size: int) -> Range:
        if self._map.has(start, size, True):
            return Range(start, start + size, "host", True)
        if self._map.has(start, size, False):
            return Range(start, start + size, "host", False)
        known = self._known(start, size)
        if known is not None and known.way == "rdma":
            return Range(start, start + size, "rdma", True)
        return Range(start, start + size, "staged" if self.runtime is not None else "none", True)

    def _known(self, start: int, size: int) -> Optional[Range]:
        i = bisect_right(self._starts, start) - 1
        if i >= 0 and start + size <= self._ranges[i].end:
            return self._ranges[i]
        return None

    def way(self, addrs: Sequence[int], sizes: Sequence[int], writable: bool) -> str:
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
                    raise InvalidArgument(_no_way(start, size))
                ways.add(known.way)
        if len(ways) > 1:
            raise InvalidArgument(
                "the pieces of one block must all be memory of the host, or all of the device"
            )
        return ways.pop() if ways else "host"


def _no_way(start: int, size: int) -> str:
    return (
        f"{size} bytes at {start:#x} are no memory of this host: those of an NPU need "
        "libascendcl.so (is Ascend's runtime "
        "installed, its set_env.sh sourced?) or a dma-buf (register_dmabuf); nothing was "
        "touched"
    )


class Blocks(NamedTuple):
    """Blocks to move: what each is called, and the addresses and sizes of its pieces."""

    names: List[str]
    addrs: List[List[int]]
    sizes: List[List[int]]

    def only(self, rows: Sequence[int]) -> "Blocks":
        """Some of them, by number."""
        return Blocks(
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


class Staging:
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
