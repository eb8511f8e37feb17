"""How a tensor lies in a value: a header of HEADER bytes, then the elements in row order.

Programs that cut and join tensors look into the header themselves, so it has Mooncake's layout:

    0    magic, version, size of the header, type, dimensions, whole (0) or a shard (1), flags
    24   where the elements begin, how many bytes they have
    40   global shape: of the tensor that this may be a shard of; eight numbers, the rest is -1
    104  local shape: of what is here
    168  number of axes; then for each of four: kind, its number, rank, size, dimension that it cuts
         (-1: none), expert or stage, extent of that dimension here"""

from __future__ import annotations

import struct
import sys
from typing import Any, List, NamedTuple, Optional, Tuple

from mooncake._common import log

DIMENSIONS, AXES = 8, 4
_MAGIC, _VERSION = 0x4D4F4F4E, 1
_HEAD, _SHAPE, _COUNT = struct.Struct("<IHHiiIIQQ"), struct.Struct("<8q"), struct.Struct("<II")
_AXIS = struct.Struct("<6iq")
HEADER = _HEAD.size + 2 * _SHAPE.size + _COUNT.size + AXES * _AXIS.size

# Name in torch, name in numpy ("": numpy has none), bytes of an element; the place in the list is
# the number in the header.
TYPES: Tuple[Tuple[str, str, int], ...] = (
    ("float32", "float32", 4),
    ("float64", "float64", 8),
    ("int8", "int8", 1),
    ("uint8", "uint8", 1),
    ("int16", "int16", 2),
    ("uint16", "uint16", 2),
    ("int32", "int32", 4),
    ("uint32", "uint32", 4),
    ("int64", "int64", 8),
    ("uint64", "uint64", 8),
    ("bool", "bool", 1),
    ("float16", "float16", 2),
    ("bfloat16", "", 2),
    ("float8_e4m3fn", "", 1),
    ("float8_e5m2", "", 1),
)

_ELEMENTS_MAX = (1 << 60) - 1  # also where a dimension is 0: torch and numpy compute the strides
KINDS = ("dp", "tp", "ep", "pp")  # the place in the list is the number in the header
Shape = Tuple[int, ...]


class Axis(NamedTuple):
    """One way of sharing a tensor out, and which share this is. `member`: expert or stage."""

    kind: str
    rank: int
    size: int
    split_dim: Optional[int] = None
    member: Optional[int] = None


class Head(NamedTuple):
    """What a header says. `start`: where the elements begin."""

    type: int
    shape: Shape
    whole: Shape
    axes: Tuple[Axis, ...] = ()
    start: int = HEADER

    @property
    def size(self) -> int:
        """Bytes of the elements."""
        return product(self.shape) * TYPES[self.type][2]

    def packed(self) -> bytes:
        """As it lies in front of the elements."""
        shard = int(bool(self.axes))
        n = len(self.shape)
        parts = [
            _HEAD.pack(_MAGIC, _VERSION, HEADER, self.type, n, shard, 0, HEADER, self.size),
            pack_shape(self.whole),
            pack_shape(self.shape),
            _COUNT.pack(len(self.axes), 0),
        ]
        for i, axis in enumerate(self.axes):
            extent = 0 if axis.split_dim is None else self.shape[axis.split_dim]
            dimension = -1 if axis.split_dim is None else axis.split_dim
            kind = KINDS.index(axis.kind)
            parts.append(
                _AXIS.pack(kind, i, axis.rank, axis.size, dimension, axis.member or 0, extent)
            )
        return b"".join(parts).ljust(HEADER, b"\0")


def product(shape: Shape) -> int:
    """Elements of a shape."""
    n = 1
    for dimension in shape:
        n *= dimension
    return n


def pack_shape(shape: Shape) -> bytes:
    """Eight numbers."""
    return _SHAPE.pack(*shape, *[-1] * (DIMENSIONS - len(shape)))


def unpack_shape(memory: Any, at: int, n: int) -> Optional[Shape]:
    """The first n of eight numbers; None: they are no shape."""
    numbers = _SHAPE.unpack_from(memory, at)
    return numbers[:n] if min(numbers[:n], default=0) >= 0 and set(numbers[n:]) <= {-1} else None


def head_of(memory: Any, length: int) -> Optional[Head]:
    """The header at the start of a value of `length` bytes; None: it is no tensor, or not all of
    it."""
    if length < HEADER:
        return None
    magic, version, header, kind, n, shard, _, start, size = _HEAD.unpack_from(memory)
    if (magic, version, header) != (_MAGIC, _VERSION, HEADER) or shard > 1:
        return None
    if not 0 <= kind < len(TYPES) or not 0 <= n <= DIMENSIONS or start < HEADER:
        return None
    whole = unpack_shape(memory, _HEAD.size, n)
    shape = unpack_shape(memory, _HEAD.size + _SHAPE.size, n)
    axes = _axes_of(memory, n) if shard else ()
    if whole is None or shape is None or axes is None:
        return None
    if product(tuple(max(d, 1) for d in shape)) > _ELEMENTS_MAX:
        return None
    head = Head(kind, shape, whole, axes, start)
    return head if head.size == size and start + size == length else None


def _axes_of(memory: Any, n: int) -> Optional[Tuple[Axis, ...]]:
    at = _HEAD.size + 2 * _SHAPE.size
    count = _COUNT.unpack_from(memory, at)[0]
    axes: List[Axis] = []
    for i in range(count if count <= AXES else 0):
        kind, _, rank, size, dimension, member, _ = _AXIS.unpack_from(
            memory, at + 8 + i * _AXIS.size
        )
        if not 0 <= kind < len(KINDS) or not 0 <= rank < size or not -1 <= dimension < n:
            return None
        has_member = KINDS[kind] in ("ep", "pp")
        split = None if dimension < 0 else dimension
        axes.append(Axis(KINDS[kind], rank, size, split, member if has_member else None))
    return tuple(axes) if count <= AXES else None


# --- to and from torch and numpy


class Plain(NamedTuple):
    """A tensor's elements in memory, in row order. `keep` holds the memory."""

    head: Head
    address: int
    keep: Any


def torch_or_none() -> Any:
    """torch, if it can be had."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def is_torch(tensor: Any) -> bool:
    """A tensor of torch's, by what it can do: torch need not be imported here."""
    return hasattr(tensor, "data_ptr") and hasattr(tensor, "element_size")


def plain(tensor: Any) -> Optional[Plain]:
    """A tensor's or array's elements; None, with a line in the log, for what is neither or of a
    type that cannot be stored. What lies on a GPU is copied to host memory."""
    if is_torch(tensor):
        name, column = str(tensor.dtype).rpartition(".")[2], 0
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.data_ptr()
    elif "numpy" in sys.modules and isinstance(tensor, sys.modules["numpy"].ndarray):
        name, column = tensor.dtype.name, 1
        tensor = sys.modules["numpy"].ascontiguousarray(tensor).reshape(tensor.shape)
        address = tensor.ctypes.data
    else:
        kind = type(tensor).__name__
        log.error("a tensor of torch or an array of numpy was expected, not %s", kind)
        return None
    shape = tuple(int(n) for n in tensor.shape)
    number = next((i for i, t in enumerate(TYPES) if t[column] == name), None)
    if number is None or len(shape) > DIMENSIONS:
        log.error("tensors of %s with %d dimensions cannot be stored", name, len(shape))
        return None
    return Plain(Head(number, shape, shape), address, tensor)


def tensor_of(memory: Any, key: Any) -> Any:
    """The tensor in a buffer, whose memory it shares; None, with a line in the log, if there is
    none."""
    view = memoryview(memory).cast("B")
    head = head_of(view, len(view))
    if head is None:
        log.error("%s is no tensor", key)
        return None
    torch, (torch_name, numpy_name, _) = torch_or_none(), TYPES[head.type]
    elements = product(head.shape)
    if torch is not None:
        dtype = getattr(torch, torch_name, None)
        if dtype is None:
            log.error("%s: this torch has no %s", key, torch_name)
            return None
        if elements == 0:
            return torch.empty(head.shape, dtype=dtype)
        flat = torch.frombuffer(memory, dtype=dtype, count=elements, offset=head.start)
        return flat.reshape(head.shape)
    try:
        import numpy
    except ImportError:
        log.error("%s: tensors need torch or numpy", key)
        return None
    if not numpy_name:
        log.error("%s: %s needs torch", key, torch_name)
        return None
    flat = numpy.frombuffer(memory, dtype=numpy_name, count=elements, offset=head.start)
    return flat.reshape(head.shape)


# --- as functions of mooncake.store, for programs that lay out tensors themselves


def _serialize_tensor(tensor: Any) -> Tuple[bytes, int, int, Any]:
    """The header, where the elements are, how many bytes, and what holds them. Raises
    ValueError."""
    found = plain(tensor)
    if found is None:
        raise ValueError("unsupported tensor for Mooncake tensor serialization")
    return found.head.packed(), found.address, found.head.size, found.keep


def _deserialize_tensor(payload: bytes) -> Any:
    """The tensor in a value, in memory of its own. Raises ValueError."""
    tensor = tensor_of(bytearray(payload), "payload")
    if tensor is None:
        raise ValueError("invalid serialized Mooncake tensor payload")
    return tensor


def _tensor_metadata_size() -> int:
    """Bytes of a header."""
    return HEADER
