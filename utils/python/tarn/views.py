"""Reading and writing in the pool's own memory."""

from __future__ import annotations

import ctypes as C
from typing import Any, List, Optional, Tuple

from . import _lib, _trace
from ._lib import Handle, check, lib, there
from ._scope import Releases
from .errors import Closed
from .options import milliseconds


def _memoryview_of(address: int, size: int, owner: object, writable: bool) -> memoryview:
    """`size` bytes at `address` as a memoryview that keeps `owner`, as whatever is made of it
    does."""
    array = (C.c_ubyte * size).from_address(address)
    setattr(array, "owner", owner)
    data = memoryview(array).cast("B")
    return data if writable else data.toreadonly()


def _spans_of(get: Any, pointer: Any) -> List[Tuple[int, int]]:
    first = C.POINTER(_lib.Iovec)()
    n = get(pointer, C.byref(first))
    return [(first[i].base or 0, first[i].len) for i in range(n)]


class _Native:
    """A tarn_view that is released when nothing points into its memory any more: the view,
    memoryviews, arrays made of them."""

    __slots__ = ("pointer", "handle", "_lib", "__weakref__")

    def __init__(self, pointer: int, handle: Handle) -> None:
        self.pointer, self.handle, self._lib = pointer, handle, _lib
        _lib.needed[id(self)] = handle

    def __del__(self) -> None:
        if self.handle.generation == self._lib.process.generation:
            self._lib.lib.tarn_view_release(C.byref(C.c_void_p(self.pointer)))
        self._lib.needed.pop(id(self), None)


def _release_all(buffers: List[memoryview]) -> None:
    """Ends what can be ended: a memoryview that something else points into stays."""
    for b in buffers:
        try:
            b.release()
        except BufferError:
            pass


class View(Releases):
    """A value in the pool's memory on this machine, under a lease. Read, then `check()`: what was
    read counts only if that passes, for when the lease is over the space may be given to others.
    `renew` in time.

        with client.view(key) as view:
            work_on(view.data)
            view.check()

    `data` is a read-only memoryview, None where the value lies in several pieces; `pieces` are one
    to eight memoryviews (none of an empty value). Arrays made of them (numpy.frombuffer) stay
    mapped while they live, also after `release`, but hold what was stored only while the lease is
    valid. One thread at a time."""

    def __init__(self) -> None:
        raise TypeError("views come from Client.view")

    _native: Optional[_Native]
    size: int
    version: int
    data: Optional[memoryview]
    pieces: List[memoryview]

    @classmethod
    def _open(cls, handle: Handle, key: bytes, options: Any) -> Optional["View"]:
        pointer = C.c_void_p()
        if not there(lib.tarn_view_open(handle, key, len(key), options, C.byref(pointer))):
            return None
        self = object.__new__(cls)
        native = self._native = _Native(pointer.value or 0, handle)
        self.size = lib.tarn_view_size(native.pointer)
        self.version = lib.tarn_view_version(native.pointer)
        self.pieces = [
            _memoryview_of(a, n, native, False)
            for a, n in _spans_of(lib.tarn_view_pieces, native.pointer)
            if n
        ]
        self.data = (
            memoryview(b"") if self.size == 0 else self.pieces[0] if len(self.pieces) == 1 else None
        )
        return self

    def _use(self) -> _Native:
        native = self._native
        if native is None or native.handle.generation != _lib.process.generation:
            raise Closed("this view has been released")
        return native

    def valid_ms(self) -> int:
        """How much longer the lease lasts, 0 when it is over."""
        return int(lib.tarn_view_valid_ms(self._use().pointer))

    def check(self) -> None:
        """Passes if all that was read until now is right. Raises LeaseOver or Stale if it may not
        be."""
        check(lib.tarn_view_check(self._use().pointer))

    def verify(self) -> None:
        """The checksum over the bytes as they are now, then `check`. Raises Corrupt, too."""
        check(lib.tarn_view_verify(self._use().pointer))

    def renew(self, lease_ms: int = 0) -> None:
        """Prolongs the lease (0: by the client's). Raises NotFound when this version is gone: it is
        good until its lease ends."""
        if _trace.used:
            _trace.apply()
        check(lib.tarn_view_renew(self._use().pointer, milliseconds(lease_ms, "lease_ms")))

    def release(self) -> None:
        """Ends the view, and its lease once no array points into it any more. May be called
        twice."""
        if self._native is not None:
            _release_all(self.pieces)
            self.pieces, self.data, self._native = [], None, None

    def __len__(self) -> int:
        return self.size


class Writer:
    """Space for a value: fill `data` (a memoryview; None where it lies in several `pieces`), then
    `commit`.

        with client.writer(key, size) as w:
            w.data[:] = block       # leaving the block commits, an exception aborts

    Nobody sees the value before. in_place: it is pool memory; otherwise memory of this process,
    which commit sends. Nothing may be written through memoryviews or arrays of it after commit or
    abort. One thread at a time."""

    def __init__(self) -> None:
        raise TypeError("writers come from Client.writer")

    _cell: C.c_void_p  # libtarn nulls it when the writer ends
    _handle: Handle
    size: int
    in_place: bool
    data: Optional[memoryview]
    pieces: List[memoryview]

    @classmethod
    def _open(cls, handle: Handle, key: bytes, size: int, options: Any) -> "Writer":
        pointer = C.c_void_p()
        check(lib.tarn_writer_open(handle, key, len(key), size, options, C.byref(pointer)))
        self = object.__new__(cls)
        self._cell, self._handle, self.size = pointer, handle, size
        _lib.needed[id(self)] = handle
        self.in_place = bool(lib.tarn_writer_in_place(pointer))
        self.pieces = [
            _memoryview_of(a, n, handle, True)
            for a, n in _spans_of(lib.tarn_writer_pieces, pointer)
            if n
        ]
        self.data = (
            memoryview(bytearray())
            if size == 0
            else self.pieces[0]
            if len(self.pieces) == 1
            else None
        )
        return self

    def _end(self, end: Any) -> None:
        if not self._cell:
            raise Closed("this writer has been committed or aborted")
        if self._handle.generation != _lib.process.generation:
            raise Closed("a writer does not survive fork()")
        _release_all(self.pieces)
        self.pieces, self.data = [], None
        if _trace.used:
            _trace.apply()
        status = end(C.byref(self._cell))
        _lib.needed.pop(id(self), None)
        check(status)

    def commit(self) -> None:
        """Makes the value readable. Whatever it raises, the writer has ended."""
        self._end(lib.tarn_writer_commit)

    def abort(self) -> None:
        """Gives the space back."""
        self._end(lib.tarn_writer_abort)

    @property
    def ended(self) -> bool:
        """Whether it was committed or aborted."""
        return not self._cell

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if self._cell:
            if kind is None:
                self.commit()
            else:
                self.abort()

    def __del__(self) -> None:
        try:
            if getattr(self, "_cell", None):
                self.abort()
        except (
            Exception
        ):  # the interpreter is going down, or the server has gone: nobody is left to tell
            pass

    def __len__(self) -> int:
        return self.size
