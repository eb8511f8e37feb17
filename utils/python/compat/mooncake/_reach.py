"""Which memory this process can read and write.

Callers name memory by address, and go on where its registration was refused: the addresses of a
GPU's memory are no memory of a processor's, and whoever touches it gets a signal. So the first and
the last byte of each piece are looked at before bytes move, by the kernel, which answers instead:
they are written to a file in memory, and, where the piece is to be written, read back from there.
That is right for whatever a processor can reach (also memory that CUDA's driver has made), and
costs half a microsecond for each piece, less where memory is registered. What another thread does
to these bytes meanwhile may be lost, as it may be in a get into them."""

from __future__ import annotations

import ctypes
import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from itertools import repeat
from operator import add
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mooncake._common import INVALID_PARAMS, NOT_SUPPORTED, Refused

_AT_ONCE = 1024  # what the kernel takes (UIO_MAXIOV)
_TOP = 1 << 63  # the kernel's addresses begin above it

_CU_MEMORY_TYPE, _CU_DEVICE = 2, 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
_CU_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_CU_DMA_BUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_PAGE = 4096


_libc = ctypes.CDLL(None, use_errno=True)
for _name in ("pwritev", "preadv"):
    _function = getattr(_libc, _name)
    _function.restype = ctypes.c_ssize_t
    _function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_long]


Piece = Tuple[int, int, Optional[int]]  # address, size, device (None: a processor's)


class _Mirror:
    """A file in memory, of one thread in one process."""

    def __init__(self) -> None:
        self.process, self.fd = os.getpid(), os.memfd_create("mooncake", os.MFD_CLOEXEC)

    def __del__(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def passes(self, iov: int, n: int, writes: bool) -> bool:
        """Can these n single bytes (struct iovec) be read, and written if `writes`?"""
        return _libc.pwritev(self.fd, iov, n, 0) == n and (
            not writes or _libc.preadv(self.fd, iov, n, 0) == n
        )


_mirrors = threading.local()


def _mirror() -> _Mirror:
    mirror = getattr(_mirrors, "mirror", None)
    if mirror is None or mirror.process != os.getpid():
        mirror = _mirrors.mirror = _Mirror()
    return mirror


def _flat(rows: Sequence[Any]) -> Tuple[List[int], List[int]]:
    """The numbers of rows, each one or a list of them, and how many are in each."""
    if not any(hasattr(row, "__len__") for row in rows):
        return list(rows), [1] * len(rows)
    lists = [row if hasattr(row, "__len__") else (row,) for row in rows]
    return [number for row in lists for number in row], [len(row) for row in lists]


class Spans:
    """Memory by where it begins: how long it is, and what it is. It may overlap. Threads may look
    while one changes it."""

    def __init__(self) -> None:
        self._spans: Dict[int, Tuple[int, Any]] = {}
        self._clear()

    def _clear(self) -> None:
        # Where each begins, and of those that begin up to there the one that ends last.
        self._sorted: Tuple[List[int], List[Tuple[int, Any]]] = [], []

    def __bool__(self) -> bool:
        return bool(self._spans)

    def put(self, address: int, size: int, what: Any) -> None:
        """From now on that is there."""
        self._spans[address] = size, what
        self._sort()

    def pop(self, address: int) -> bool:
        """What begins there is no more. False: nothing does."""
        if self._spans.pop(address, None) is None:
            return False
        self._sort()
        return True

    def clear(self) -> None:
        """All is no more."""
        self._spans.clear()
        self._clear()

    def _sort(self) -> None:
        starts, last = sorted(self._spans), []
        end, of = 0, None
        for start in starts:
            size, what = self._spans[start]
            if start + size > end:
                end, of = start + size, what
            last.append((end, of))
        self._sorted = starts, last

    def around(self, address: int, size: int) -> Any:
        """What these bytes lie in; None: in nothing."""
        starts, last = self._sorted
        i = bisect_right(starts, address) - 1
        return last[i][1] if i >= 0 and address + size <= last[i][0] else None


class Reach:
    """What there is besides a processor's memory: what `others` has moves by RDMA, and is not
    looked at; what `staged` has (devices) is copied from and to a GPU."""

    def __init__(self) -> None:
        self.others, self.staged = Spans(), Spans()
        self.known: Dict[int, int] = {}  # a processor's, registered
        self._marks: List[int] = []  # where each of these begins and ends; none if they overlap

    def register(
        self,
        memory: Callable[..., Any],
        dmabuf: Callable[..., Any],
        address: int,
        size: int,
        rdma: bool,
        can_stage: Callable[[int], bool] = lambda device: False,
    ) -> None:
        """Registers memory of a processor by `memory`, of a GPU by `dmabuf`: methods of a client or
        an end; where that cannot be, it is `staged` if can_stage(its device). Raises Refused,
        tarn.Error."""
        try:
            device = device_memory(address, size, rdma)
        except Refused as e:
            number = device_of(address) if e.code == NOT_SUPPORTED else None
            if number is None or not can_stage(number):
                raise
            self.staged.put(address, size, number)
            return
        if device is None:
            if self.beyond([address], [size], False):
                raise Refused(
                    INVALID_PARAMS, f"no processor can read {size} bytes of memory at {address:#x}"
                )
            memory(address, size)
            self.known[address] = size
            self._mark()
            return
        try:
            dmabuf(address, size, *device)
        finally:
            os.close(device[0])
        self.others.put(address, size, True)

    def forget(self, address: int) -> bool:
        """What was registered there is no more. True: RDMA or a client has nothing of it."""
        self.others.pop(address)
        if self.known.pop(address, None) is not None:
            self._mark()
        return self.staged.pop(address)

    def clear(self) -> None:
        """Forgets all."""
        self.others.clear()
        self.staged.clear()
        self.known.clear()
        self._mark()

    def _mark(self) -> None:
        marks = [mark for a, n in sorted(self.known.items()) for mark in (a, a + n)]
        self._marks = marks if marks == sorted(marks) else []

    def _all_known(self, where: List[int], long: List[int], writes: bool) -> bool:
        """Do all pieces lie in memory that is registered, and is that there? One piece of each
        registration, and its ends, stand for the others: that costs a fifth."""
        marks = self._marks
        if not marks:
            return False
        first = list(map(bisect_right, repeat(marks), where))
        if first != list(map(bisect_left, repeat(marks), map(add, where, long))):
            return False
        one_of = dict(zip(first, range(len(where))))
        if not all(i % 2 for i in one_of):
            return False
        starts = [marks[i - 1] for i in one_of]
        sizes = [marks[i] - marks[i - 1] for i in one_of]
        pieces = [where[i] for i in one_of.values()], [long[i] for i in one_of.values()]
        return not _unreachable(starts, sizes, False) and not _unreachable(*pieces, writes)

    def pieces_of(self, row: Any, sizes: Any, writes: bool) -> Optional[List[Piece]]:
        """The pieces of a row of `beyond`, if each is a GPU's or a processor's that can be
        reached."""
        (where, _), (long, _) = _flat([row]), _flat([sizes])
        pieces: List[Piece] = []
        for address, size in zip(where, long):
            device = self.staged.around(address, size)
            device = device_of(address) if device is None else device
            if device is None and size and _unreachable([address], [size], writes):
                return None
            pieces.append((address, size, device))
        return pieces

    def beyond(
        self, addresses: Sequence[Any], sizes: Sequence[Any], writes: bool
    ) -> Dict[int, int]:
        """The rows, by number, with a piece that cannot be read, or not be written if `writes`, and
        the address of their first such piece. A row is an address and a size, or a list of each.
        Rows that make no sense, such as one with fewer sizes than addresses, are whoever's business
        it is to use them."""
        try:
            (where, counts), (long, same) = _flat(addresses), _flat(sizes)
            if counts != same:
                return {}
            if all(long) and self._all_known(where, long, writes):
                return {}
            if all(long) and not self.others and not self.staged:
                bad = _unreachable(where, long, writes)
            else:
                others, staging = self.others.around, self.staged.around
                pieces = [i for i, n in enumerate(long) if n and not others(where[i], n)]
                staged = [i for i in pieces if staging(where[i], long[i]) is not None]
                known = set(staged)
                pieces = [i for i in pieces if i not in known]
                bad = _unreachable([where[i] for i in pieces], [long[i] for i in pieces], writes)
                bad = sorted(staged + [pieces[i] for i in bad])
        except (OverflowError, TypeError, OSError):
            return {}  # negative, no number, or a kernel that has no files in memory
        if not bad:
            return {}
        row_of = [row for row, count in enumerate(counts) for _ in range(count)]
        return {row_of[piece]: where[piece] for piece in reversed(bad)}


def _unreachable(where: List[int], long: List[int], writes: bool) -> List[int]:
    """The pieces, by number, that cannot be reached."""
    n, bad = len(where), []
    iov = array("Q", [1]) * (4 * n)
    iov[0::4] = array("Q", where)
    try:
        iov[2::4] = array("Q", map((-1).__add__, map(add, where, long)))
    except OverflowError:  # it ends behind the last address of all
        iov[2::4] = array("Q", [min(a + size - 1, _TOP) for a, size in zip(where, long)])
    at, mirror = iov.buffer_info()[0], _mirror()
    for first in range(0, 2 * n, _AT_ONCE):
        many = min(_AT_ONCE, 2 * n - first)
        if not mirror.passes(at + 16 * first, many, writes):
            pieces = range(first // 2, (first + many) // 2)
            bad += [i for i in pieces if not mirror.passes(at + 32 * i, 2, writes)]
    return bad


def out_of_reach(beyond: Dict[int, int], n: int, writes: bool) -> str:
    """What is wrong with these of n rows (Reach.beyond), for the log."""
    row, address = min(beyond.items())
    return (
        f"{len(beyond)} of {n} name memory that this process cannot {'write' if writes else 'read'}"
        f" (number {row}: {address:#x}): was it unmapped, or a device's that is not reached by"
        " RDMA or CUDA?"
    )


def _cuda() -> Any:
    """CUDA's driver, if this program has it loaded."""
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
    except OSError:
        return None


def device_of(address: int) -> Optional[int]:
    """The GPU whose memory this is; None: it is no GPU's."""
    cuda, value, at = _cuda(), ctypes.c_int(), ctypes.c_uint64(address)
    if cuda is None or cuda.cuPointerGetAttribute(ctypes.byref(value), _CU_MEMORY_TYPE, at) != 0:
        return None
    if value.value != _CU_DEVICE:
        return None
    if cuda.cuPointerGetAttribute(ctypes.byref(value), _CU_DEVICE_ORDINAL, at) != 0:
        return None
    return value.value


def device_memory(address: int, size: int, rdma: bool) -> Optional[Tuple[int, int]]:
    """None: it is a processor's memory. Of a GPU's: a dma-buf of it as a file descriptor, which the
    caller closes, and where in it the address is. Raises Refused where nothing could move it:
    better now than when bytes should go."""
    if size <= 0:
        raise Refused(INVALID_PARAMS, f"a buffer of {size} bytes")
    cuda, kind = _cuda(), ctypes.c_uint()
    if cuda is None:
        return None  # no program that uses a GPU has it not loaded
    got = cuda.cuPointerGetAttribute(ctypes.byref(kind), _CU_MEMORY_TYPE, ctypes.c_uint64(address))
    if got != 0 or kind.value != _CU_DEVICE:
        return None
    if not rdma:
        raise Refused(
            NOT_SUPPORTED,
            f"memory of a GPU at {address:#x}: it moves by RDMA only, which this protocol does not "
            "use",
        )
    start = address // _PAGE * _PAGE
    length = -(-(address + size - start) // _PAGE) * _PAGE
    fd = ctypes.c_int(-1)
    got = cuda.cuMemGetHandleForAddressRange(
        ctypes.byref(fd),
        ctypes.c_uint64(start),
        ctypes.c_size_t(length),
        _CU_DMA_BUF_FD,
        ctypes.c_uint64(0),
    )
    if got != 0:
        raise Refused(
            NOT_SUPPORTED,
            f"memory of a GPU at {address:#x}: its driver makes no dma-buf of it (CUDA error"
            f" {got})",
        )
    return fd.value, address - start
