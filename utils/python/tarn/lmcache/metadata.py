"""What a chunk is, in front of its bytes: one object in the pool holds both, so that a chunk costs
one round trip.

    header (512 bytes, little-endian) | payload
    4 bytes "TLMC" | version | groups | header size (2) | payload size (8)
        | format, ASCII, padded with zeros (16)
    then up to 15 groups of 32 bytes: dtype, ASCII, padded with zeros (16)
        | 4 dimensions (4 each, 0xffffffff: there is none)

Formats and dtypes are written as names ("KV_2LTD", "bfloat16"): the numbers behind them have
changed between versions of LMCache. A reader allocates what its own configuration makes it expect,
gets header and payload into their places in one go, and believes the header. The pool has verified
the checksum of both together."""

from __future__ import annotations

import re
import struct
from typing import Any, NamedTuple, Optional, Sequence, Tuple

HEADER_BYTES = 512
VERSION = 1
MAX_GROUPS = 15
MAX_DIMS = 4

_MAGIC = b"TLMC"
_HEAD = struct.Struct("<4sBBHQ16s")
_GROUP = struct.Struct("<16s4I")
_NO_DIM = 0xFFFFFFFF

Group = Tuple[str, Tuple[int, ...]]


class HeaderError(ValueError):
    """These bytes are no header, or none that this version reads."""


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype by its name: "bfloat16" 2, "float8_e4m3fn" 1, "" (raw bytes)
    1; 0: not known."""
    if dtype in ("", "bool"):
        return 1
    match = re.search(r"\d+", dtype)
    return int(match.group()) // 8 if match else 0


def dtype_name(dtype: Any) -> str:
    """ "bfloat16" of torch.bfloat16, "" of None."""
    return "" if dtype is None else str(dtype).rpartition(".")[2]


def _group_bytes(group: Group) -> int:
    """Bytes of a group; -1 where the dtype's name does not tell."""
    dtype, dims = group
    size = element_bytes(dtype)
    if size == 0:
        return -1
    # Raw bytes have the shape [length, 0, 0, 0].
    for dim in dims[:1] if dtype == "" else dims:
        size *= dim
    return size


class Layout(NamedTuple):
    """Format, groups of (dtype, shape), and the bytes of all groups together."""

    format: str
    groups: Tuple[Group, ...]
    size: int

    @classmethod
    def make(
        cls,
        format_name: str,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[Any],
        size: int = -1,
    ) -> "Layout":
        """`size` -1: what the shapes amount to. ValueError: it cannot be written as a header; the
        text says why."""
        groups = tuple(
            (dtype_name(dtype), tuple(int(dim) for dim in shape))
            for shape, dtype in zip(shapes, dtypes)
        )
        if not 1 <= len(groups) <= MAX_GROUPS or len(shapes) != len(dtypes):
            raise ValueError(
                f"a chunk has 1 to {MAX_GROUPS} groups, a dtype for each shape: not {len(shapes)}, "
                f"{len(dtypes)}"
            )
        for dtype, dims in groups:
            if len(dims) > MAX_DIMS or any(not 0 <= dim < _NO_DIM for dim in dims):
                raise ValueError(
                    f"a group has up to {MAX_DIMS} dimensions of less than 2^32: not {dims}"
                )
            if len(dtype) > 16 or not dtype.isascii():
                raise ValueError(f"dtype {dtype!r} is longer than 16 ASCII characters")
        if not format_name or len(format_name) > 16 or not format_name.isascii():
            raise ValueError(f"format {format_name!r} is not of 1 to 16 ASCII characters")
        layout = cls(format_name, groups, size)
        by_shape = layout.shape_bytes()
        if size < 0:
            if by_shape < 0:
                raise ValueError(f"how large are the elements of {[dtype for dtype, _ in groups]}?")
            return layout._replace(size=by_shape)
        if 0 <= by_shape != size:
            raise ValueError(f"{size} bytes do not make {groups}")
        return layout

    def shape_bytes(self) -> int:
        """What the shapes amount to in bytes; -1: a dtype's size is not known."""
        sizes = [_group_bytes(group) for group in self.groups]
        return -1 if min(sizes) < 0 else sum(sizes)

    def pack_into(self, buffer: Any, offset: int = 0) -> None:
        """Writes HEADER_BYTES of header into a writable buffer."""
        buffer[offset : offset + HEADER_BYTES] = bytes(HEADER_BYTES)
        name = self.format.encode("ascii")
        _HEAD.pack_into(
            buffer, offset, _MAGIC, VERSION, len(self.groups), HEADER_BYTES, self.size, name
        )
        for i, (dtype, dims) in enumerate(self.groups):
            at = offset + _HEAD.size + i * _GROUP.size
            _GROUP.pack_into(
                buffer, at, dtype.encode("ascii"), *dims, *[_NO_DIM] * (MAX_DIMS - len(dims))
            )

    def packed(self) -> bytes:
        """HEADER_BYTES of header."""
        buffer = bytearray(HEADER_BYTES)
        self.pack_into(buffer)
        return bytes(buffer)

    @classmethod
    def unpack(cls, buffer: Any, offset: int = 0) -> "Layout":
        """HeaderError says what is wrong with the bytes."""
        if len(buffer) - offset < HEADER_BYTES:
            raise HeaderError(f"{len(buffer) - offset} bytes are less than a header")
        magic, version, n, size_of_header, size, name = _HEAD.unpack_from(buffer, offset)
        if magic != _MAGIC:
            raise HeaderError("no header of a chunk: something else wrote this key")
        if version != VERSION or size_of_header != HEADER_BYTES:
            raise HeaderError(
                f"header of version {version}, this is version {VERSION}: update the older side"
            )
        if not 1 <= n <= MAX_GROUPS:
            raise HeaderError(f"{n} groups")
        try:
            groups = []
            for i in range(n):
                dtype, *dims = _GROUP.unpack_from(buffer, offset + _HEAD.size + i * _GROUP.size)
                used = dims.index(_NO_DIM) if _NO_DIM in dims else MAX_DIMS
                if any(dim != _NO_DIM for dim in dims[used:]):
                    raise HeaderError("dimensions with a gap")
                groups.append((dtype.rstrip(b"\0").decode("ascii"), tuple(dims[:used])))
            layout = cls(name.rstrip(b"\0").decode("ascii"), tuple(groups), size)
        except UnicodeDecodeError as e:
            raise HeaderError("a name that is not ASCII") from e
        if 0 <= layout.shape_bytes() != size:
            raise HeaderError(f"{size} bytes do not make {layout.groups}")
        return layout

    def partial_of(self, full: "Layout") -> bool:
        """Whether this is `full` with fewer tokens: one group, and one dimension that is smaller,
        nothing else."""
        if len(self.groups) != 1 or len(full.groups) != 1 or self.format != full.format:
            return False
        (dtype, dims), (full_dtype, full_dims) = self.groups[0], full.groups[0]
        if dtype != full_dtype or len(dims) != len(full_dims):
            return False
        differing = [i for i in range(len(dims)) if dims[i] != full_dims[i]]
        return len(differing) == 1 and 0 < dims[differing[0]] < full_dims[differing[0]]

    def of_model(self, full: "Layout") -> bool:
        """Whether a model whose whole chunks are `full` can have this one: of the same groups, with
        fewer tokens at most: in each one dimension that is smaller, or none (states), but in the
        first. Of a model with one group that is not said: its chunks have several forms."""
        if self.format != full.format or max(len(self.groups), len(full.groups)) == 1:
            return True
        if [(dtype, len(dims)) for dtype, dims in self.groups] != [
            (dtype, len(dims)) for dtype, dims in full.groups
        ]:
            return False
        smaller = []
        for (_, dims), (_, full_dims) in zip(self.groups, full.groups):
            smaller.append([n < m for n, m in zip(dims, full_dims) if n != m])
        fits = all(len(found) <= 1 and all(found) for found in smaller)
        return fits and (bool(smaller[0]) or not any(smaller))


def expected_layout(metadata: Any, format_name: str) -> Optional[Layout]:
    """The full chunk of LMCache's metadata object (get_shapes and get_dtypes, or kv_shape and
    kv_dtype of older versions). None: it does not say, or not in a way that a header can hold."""
    try:
        if hasattr(metadata, "get_shapes"):
            return Layout.make(
                format_name, list(metadata.get_shapes()), list(metadata.get_dtypes())
            )
        layers, kv, tokens, heads, head_size = metadata.kv_shape
        return Layout.make(
            format_name, [(kv, layers, tokens, heads * head_size)], [metadata.kv_dtype]
        )
    except (AttributeError, TypeError, ValueError):
        return None
