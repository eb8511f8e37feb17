"""Tensors in the store: those of torch where it is there, else arrays of numpy.

A value is a header and the elements in row order. The header is of a fixed size (HEADER bytes): "TARNTNSR", version, number of the
type, number of dimensions, and up to eight dimensions; so a value can be got into memory and put from there again without
anybody looking inside. Tensor parallelism ("_with_tp"): rank r's share of KEY is the object KEY_tp_r."""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple

from tarn.memory import pin

from mooncake import _safetensors
from mooncake._common import FILE_WRITE_FAIL, INVALID_PARAMS, OBJECT_NOT_FOUND, log

if TYPE_CHECKING:
    from mooncake._types import BufferHandle, ReplicateConfig

Config = Optional["ReplicateConfig"]

_MAGIC, _VERSION, _DIMENSIONS = b"TARNTNSR", 1, 8
_HEADER = struct.Struct("<8sHHI8q16x")
HEADER = _HEADER.size

# Name in torch, name in numpy ("": numpy has none), bytes of an element; the place in the list is the number in the header.
_TYPES: Tuple[Tuple[str, str, int], ...] = (
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


class _Plain(NamedTuple):
    """A tensor as the store sees it. `keep` holds its memory."""

    header: bytes
    address: int
    size: int
    keep: Any


def _torch() -> Any:
    """torch, if it can be had."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def is_torch(tensor: Any) -> bool:
    """A tensor of torch's, by what it can do: torch need not be imported here."""
    return hasattr(tensor, "data_ptr") and hasattr(tensor, "element_size")


def plain(tensor: Any) -> Optional[_Plain]:
    """The header and the memory of a tensor or array; None, with a line in the log, for what is neither or cannot be told."""
    if is_torch(tensor):
        name = str(tensor.dtype).rpartition(".")[2]
        number = next((i for i, t in enumerate(_TYPES) if t[0] == name), None)
        tensor = tensor.detach().cpu().contiguous()
        address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    elif "numpy" in sys.modules and isinstance(tensor, sys.modules["numpy"].ndarray):
        name = tensor.dtype.name
        number = next((i for i, t in enumerate(_TYPES) if t[1] == name), None)
        tensor = sys.modules["numpy"].ascontiguousarray(tensor).reshape(tensor.shape)
        address, size = tensor.ctypes.data, tensor.nbytes
    else:
        log.error("a tensor of torch or an array of numpy was expected, not %s", type(tensor).__name__)
        return None
    shape = tuple(int(n) for n in tensor.shape)
    if number is None or len(shape) > _DIMENSIONS:
        log.error("tensors of %s with %d dimensions cannot be stored", name, len(shape))
        return None
    dimensions = shape + (0,) * (_DIMENSIONS - len(shape))
    return _Plain(_HEADER.pack(_MAGIC, _VERSION, number, len(shape), *dimensions), address if size else 0, size, tensor)


def _shape(memory: memoryview) -> Optional[Tuple[int, Tuple[int, ...], int]]:
    """Type, shape and bytes of the elements that a value says it has; None: it is no tensor, or not whole."""
    if len(memory) < HEADER:
        return None
    magic, version, number, n, *dimensions = _HEADER.unpack_from(memory)
    if magic != _MAGIC or version != _VERSION or number >= len(_TYPES) or n > _DIMENSIONS:
        return None
    size, shape = _TYPES[number][2], tuple(dimensions[:n])
    for dimension in shape:
        if dimension < 0:
            return None
        size *= dimension
    return (number, shape, size) if len(memory) >= HEADER + size else None


def tensor_of(memory: Any, key: str) -> Any:
    """The tensor in a buffer, whose memory it shares; None, with a line in the log, if there is none."""
    view = memoryview(memory).cast("B")
    found = _shape(view)
    if found is None:
        log.error("%s is no tensor", key)
        return None
    number, shape, size = found
    torch, (torch_name, numpy_name, width) = _torch(), _TYPES[number]
    elements = size // width
    if torch is not None:
        dtype = getattr(torch, torch_name, None)
        if dtype is None:
            log.error("%s: this torch has no %s", key, torch_name)
            return None
        if elements == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype, count=elements, offset=HEADER).reshape(shape)
    try:
        import numpy
    except ImportError:
        log.error("%s: tensors need torch or numpy", key)
        return None
    if not numpy_name:
        log.error("%s: %s needs torch", key, torch_name)
        return None
    return numpy.frombuffer(memory, dtype=numpy_name, count=elements, offset=HEADER).reshape(shape)


def _shares(tensor: Any, size: int, dimension: int) -> Optional[List[Any]]:
    """Equal shares along a dimension, or as equal as torch.chunk makes them: the last ones may be smaller. None: not so many."""
    shape = tuple(tensor.shape)
    if size < 1 or not -len(shape) <= dimension < len(shape):
        return None
    dimension %= len(shape)
    step = -(-shape[dimension] // size)
    cuts = [(min(i * step, shape[dimension]), min((i + 1) * step, shape[dimension])) for i in range(size)]
    if any(low == high for low, high in cuts):
        log.error("a dimension of %d cannot be shared by %d ranks", shape[dimension], size)
        return None
    return [tensor[(slice(None),) * dimension + (slice(low, high),)] for low, high in cuts]


def _share_key(key: str, rank: int, size: int) -> str:
    return key if size <= 1 else f"{key}_tp_{rank}"


class TensorMethods:
    """Part of MooncakeDistributedStore. Puts answer a code, gets a tensor or None."""

    _put: Any
    get_buffer: Any
    batch_get_buffer: Any
    batch_get_into: Any
    batch_put_from: Any
    batch_upsert_from: Any

    def _store_tensors(self, keys: Sequence[str], tensors: Sequence[Any], config: Config, replace: bool) -> List[int]:
        if len(keys) != len(tensors):
            log.error("%d keys, %d tensors", len(keys), len(tensors))
            return [INVALID_PARAMS] * len(keys)
        plains = [plain(t) for t in tensors]
        codes = [INVALID_PARAMS if p is None else 0 for p in plains]
        rows = [(i, p, pin(p.header)) for i, p in enumerate(plains) if p is not None]
        parts = [[h.address] + ([p.address] if p.size else []) for _, p, h in rows]
        sizes = [[h.size] + ([p.size] if p.size else []) for _, p, h in rows]
        stored = self._put("put_tensor", [keys[i] for i, _, _ in rows], parts, sizes, config, replace)
        for (i, _, _), code in zip(rows, stored):
            codes[i] = code
        return codes

    def _store_shares(
        self, keys: Sequence[str], tensors: Sequence[Any], size: int, dim: int, config: Config
    ) -> List[int]:
        if size <= 1:
            return self._store_tensors(keys, tensors, config, False)
        codes = []
        for key, tensor in zip(keys, tensors):
            shares = _shares(tensor, size, dim) if hasattr(tensor, "shape") else None
            if shares is None:
                codes.append(INVALID_PARAMS)
                continue
            named = [_share_key(key, rank, size) for rank in range(size)]
            codes.append(next((c for c in self._store_tensors(named, shares, config, False) if c), 0))
        return codes if len(keys) == len(tensors) else [INVALID_PARAMS] * len(keys)

    # --- puts

    def put_tensor(self, key: str, tensor: Any) -> int:
        """Stores a tensor (of a GPU: by way of host memory)."""
        return self._store_tensors([key], [tensor], None, False)[0]

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> List[int]:
        """A code per key."""
        return self._store_tensors(keys, tensors_list, None, False)

    def pub_tensor(self, key: str, tensor: Any, config: Config = None) -> int:
        """As put_tensor, with a ReplicateConfig."""
        return self._store_tensors([key], [tensor], config, False)[0]

    def batch_pub_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any], config: Config = None) -> List[int]:
        """As batch_put_tensor, with a ReplicateConfig."""
        return self._store_tensors(keys, tensors_list, config, False)

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """As put_tensor, in place of what is there."""
        return self._store_tensors([key], [tensor], None, True)[0]

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> List[int]:
        """As batch_put_tensor, in place of what is there."""
        return self._store_tensors(keys, tensors_list, None, True)

    def upsert_pub_tensor(self, key: str, tensor: Any, config: Config = None) -> int:
        """As upsert_tensor, with a ReplicateConfig."""
        return self._store_tensors([key], [tensor], config, True)[0]

    def batch_upsert_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[Any], config: Config = None
    ) -> List[int]:
        """As batch_upsert_tensor, with a ReplicateConfig."""
        return self._store_tensors(keys, tensors_list, config, True)

    def put_tensor_with_tp(self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        """Stores the shares of all tp_size ranks, cut along split_dim. (tp_rank says who asks; it cuts nothing.)"""
        return self._store_shares([key], [tensor], tp_size, split_dim, None)[0]

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> List[int]:
        """The same for many tensors."""
        return self._store_shares(base_keys, tensors_list, tp_size, split_dim, None)

    def pub_tensor_with_tp(
        self, key: str, tensor: Any, config: Config = None, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """As put_tensor_with_tp, with a ReplicateConfig."""
        return self._store_shares([key], [tensor], tp_size, split_dim, config)[0]

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: Config = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> List[int]:
        """The same for many tensors."""
        return self._store_shares(base_keys, tensors_list, tp_size, split_dim, config)

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Stores memory that get_tensor_into filled, header and all."""
        return self._store_memory([key], [buffer_ptr], [size], False)[0]

    def batch_put_tensor_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> List[int]:
        """The same for many."""
        return self._store_memory(keys, buffer_ptrs, sizes, False)

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """As put_tensor_from, in place of what is there."""
        return self._store_memory([key], [buffer_ptr], [size], True)[0]

    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> List[int]:
        """The same for many."""
        return self._store_memory(keys, buffer_ptrs, sizes, True)

    def _store_memory(self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int], replace: bool) -> List[int]:
        for ptr, size in zip(ptrs, sizes):
            if _shape(memoryview((ctypes.c_ubyte * size).from_address(ptr)).cast("B")) is None:
                log.error("at %#x there is no whole tensor in %d bytes", ptr, size)
                return [INVALID_PARAMS] * len(keys)
        codes: List[int] = (self.batch_upsert_from if replace else self.batch_put_from)(keys, ptrs, sizes)
        return codes

    # --- gets

    def get_tensor(self, key: str) -> Any:
        """The tensor, in host memory of its own; None if there is none."""
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Sequence[str]) -> List[Any]:
        """The same for many keys."""
        found: List[Optional["BufferHandle"]] = self.batch_get_buffer(keys)
        return [None if f is None else tensor_of(f, k) for k, f in zip(keys, found)]

    def get_tensor_with_tp(self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        """The share of a rank."""
        return self.get_tensor(_share_key(key, tp_rank, tp_size))

    def batch_get_tensor_with_tp(self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1) -> List[Any]:
        """The same for many keys."""
        return self.batch_get_tensor([_share_key(k, tp_rank, tp_size) for k in base_keys])

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """The tensor in the caller's memory, whose first bytes are the header; None if there is none, or no room."""
        return self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> List[Any]:
        """The same for many keys; -600 for each where there are not as many pointers or sizes."""
        got = self.batch_get_into(keys, buffer_ptrs, sizes)
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        return [
            None if n < 0 else tensor_of((ctypes.c_ubyte * n).from_address(ptr), key)
            for key, ptr, n in zip(keys, buffer_ptrs, got)
        ]

    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        """The share of a rank in the caller's memory."""
        return self.get_tensor_into(_share_key(key, tp_rank, tp_size), buffer_ptr, size)

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> List[Any]:
        """The same for many keys."""
        return self.batch_get_tensor_into([_share_key(k, tp_rank, tp_size) for k in base_keys], buffer_ptrs, sizes)

    # --- safetensors files

    def save_tensor_to_safetensor(self, key: str, file_name: Optional[str] = None) -> int:
        """Writes a tensor to a file of that format, under its key. 0; -704: there is none; -1103: no file can be written."""
        value: Optional["BufferHandle"] = self.get_buffer(key)
        found = None if value is None else _shape(memoryview(value))
        if value is None or found is None:
            return OBJECT_NOT_FOUND
        number, shape, size = found
        try:
            _safetensors.save(file_name or key, key, number, shape, memoryview(value)[HEADER : HEADER + size])
        except OSError as e:
            log.error("save_tensor_to_safetensor: %s", e)
            return FILE_WRITE_FAIL
        return 0

    def load_tensor_from_safetensor(self, key: Optional[str] = None, file_name: str = "") -> Any:
        """Stores the tensor of a file, that of the key or else the first, and answers it; None where that is not possible."""
        try:
            number, shape, elements = _safetensors.load(file_name, key)
        except (OSError, ValueError) as e:
            log.error("load_tensor_from_safetensor: %s", e)
            return None
        dimensions = tuple(shape) + (0,) * (_DIMENSIONS - len(shape))
        if len(dimensions) > _DIMENSIONS:
            log.error("load_tensor_from_safetensor: %s: %d dimensions", file_name, len(shape))
            return None
        value = bytearray(_HEADER.pack(_MAGIC, _VERSION, number, len(shape), *dimensions) + elements)
        tensor, memory = tensor_of(value, file_name), pin(value)
        if tensor is None:
            return None
        stored = self._put(
            "load_tensor_from_safetensor", [key or file_name], [memory.address], [memory.size], None, False
        )
        return tensor if stored[0] == 0 else None
