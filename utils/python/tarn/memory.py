"""Addresses of the memory that callers hand over: nothing here copies a byte.

Whatever has the buffer protocol and is C-contiguous (bytes, bytearray, memoryview, mmap, array,
numpy), CPU tensors of torch (data_ptr and nbytes), `Memory(address, size)` and plain tuples of
both. Objects with the buffer protocol are kept, and cannot be resized, until the `Pinned` that
stands for them goes away; of addresses the caller says how long they are good."""

from __future__ import annotations

import ctypes as C
from typing import Any, NamedTuple

from .errors import InvalidArgument


class Memory(NamedTuple):
    """`size` bytes at `address`, which the caller keeps mapped for as long as they are in use."""

    address: int
    size: int


class _PyBuffer(C.Structure):
    _fields_ = [
        ("buf", C.c_void_p),
        ("obj", C.c_void_p),
        ("len", C.c_ssize_t),
        ("itemsize", C.c_ssize_t),
        ("readonly", C.c_int),
        ("ndim", C.c_int),
        ("format", C.c_char_p),
        ("shape", C.c_void_p),
        ("strides", C.c_void_p),
        ("suboffsets", C.c_void_p),
        ("internal", C.c_void_p),
    ]


_get_buffer = C.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = [C.py_object, C.POINTER(_PyBuffer), C.c_int], C.c_int
_release = C.pythonapi.PyBuffer_Release
_release.argtypes, _release.restype = [C.POINTER(_PyBuffer)], None
_new_bytes = C.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = [C.c_void_p, C.c_ssize_t], C.py_object
_bytes_address = C.pythonapi.PyBytes_AsString
_bytes_address.argtypes, _bytes_address.restype = [C.py_object], C.c_void_p


class Pinned:
    """Memory that stays where it is while this object lives: `address` (0 only for no bytes) and
    `size` in bytes."""

    __slots__ = ("address", "size", "_owner", "_view", "_release")

    def __init__(self, address: int, size: int, owner: object = None, view: Any = None) -> None:
        self.address, self.size, self._owner, self._view = address, size, owner, view
        self._release = _release

    def __del__(self) -> None:
        view = getattr(self, "_view", None)
        if view is not None:
            self._release(view)


def _tensor(data: Any, name: str) -> Pinned:
    device = getattr(data, "device", None)
    kind = getattr(device, "type", "cpu")
    if kind != "cpu":
        raise InvalidArgument(
            f"{name}: a tensor in the memory of a device ({kind}): register that memory "
            "(register_dmabuf) and pass its address and size"
        )
    if not data.is_contiguous():
        raise InvalidArgument(f"{name}: the tensor is not contiguous: pass tensor.contiguous()")
    size = getattr(data, "nbytes", None)
    if size is None:
        size = data.numel() * data.element_size()
    return Pinned(int(data.data_ptr()), int(size), data)


def check_range(address: Any, size: Any, name: str) -> None:
    """Raises InvalidArgument, or TypeError, unless these can be an address and a size."""
    if not isinstance(address, int) or not isinstance(size, int):
        raise TypeError(f"{name}: an address and a size are integers")
    if size < 0 or address < 0 or address + size >= 1 << 64 or (address == 0 and size > 0):
        raise InvalidArgument(f"{name}: no memory at address {address:#x} with {size} bytes")


def pin(data: Any, writable: bool = False, name: str = "data") -> Pinned:
    """The memory of `data`. TypeError: it has none; InvalidArgument: not contiguous, read-only, on
    a device."""
    if isinstance(data, tuple):
        if len(data) != 2:
            raise TypeError(f"{name}: a tuple is (address, size)")
        check_range(data[0], data[1], name)
        return Pinned(data[0], data[1])
    if hasattr(data, "data_ptr"):
        return _tensor(data, name)
    view = _PyBuffer()
    try:
        _get_buffer(data, C.byref(view), 1 if writable else 0)
    except TypeError:
        raise TypeError(
            f"{name}: {type(data).__name__} has no memory to use: pass bytes, a bytearray, a numpy "
            "array, a CPU tensor, Memory(address, size) or the like"
        ) from None
    except (BufferError, ValueError) as e:
        locked = writable and ("writ" in str(e).lower() or "read-only" in str(e).lower())
        advice = "pass a writable buffer" if locked else "pass a C-contiguous one"
        raise InvalidArgument(f"{name}: {e}: {advice}") from None
    return Pinned(view.buf or 0, view.len, None, view)


def bytes_at(address: int, size: int) -> bytes:
    """A copy of that memory. (ctypes.string_at takes sizes of 31 bits, and others for what is left
    of them.)"""
    return _new_bytes(address, size) if size else b""  # type: ignore[no-any-return]


class Fresh:
    """A bytes object whose bytes are yet to come: nobody but its maker may see it before they are
    there. It has `size` bytes (one more than asked for, where that was one)."""

    __slots__ = ("value", "address", "size")

    def __init__(self, size: int) -> None:
        # For 0 and 1 bytes Python hands out shared objects, which must never be written.
        self.size = size if size != 1 else 2
        self.value: bytes = _new_bytes(None, self.size) if size else b""
        self.address: int = _bytes_address(self.value) if size else 0
