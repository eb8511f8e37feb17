"""Tensors that several ranks share: which share is whose, under which name it lies, how shares are
cut and joined.

A share along a dimension of one axis "tp" is the object KEY_tp_RANK; one of several axes, or of
another, has them all in its name: KEY__dp_0of2__tp_1of4_sd0. A small object beside them,
KEY__parallelism_manifest, says how many shares there are, so that ranks of another number can read
them; a writer's partition has names and a manifest of its own."""

from __future__ import annotations

import struct
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mooncake._common import Key, log, suffixed
from mooncake._layout import AXES, KINDS, TYPES, Axis, Head, Plain, Shape, pack_shape, product

MANIFEST, WRITER_MANIFEST = "__parallelism_manifest", "__writer_manifest"
_MANIFEST_MAGIC, _MANIFEST_VERSION = 0x574D414E, 1
_MANIFEST = struct.Struct("<IHHiiiiixxxx")
MANIFEST_BYTES = _MANIFEST.size + len(pack_shape(()))
SHARES_MAX = 1 << 16  # of one tensor; the number comes out of a value, which anybody may have put
_NUMBERS = 1 << 31  # have room in a header
_NEEDS = {"tp": "split_dim", "ep": "expert_id", "pp": "stage_id"}


class ParallelAxis:
    """One way of sharing out: kind "tp", "dp", "ep" or "pp", and this rank of `size`. tp:
    `split_dim` is the dimension that is cut; ep: `expert_id`; pp: `stage_id`."""

    def __init__(self) -> None:
        self.kind, self.rank, self.size = "", 0, 1
        self.split_dim: Optional[int] = None
        self.expert_id: Optional[int] = None
        self.stage_id: Optional[int] = None


class TensorParallelism:
    """The axes that together say which share it is."""

    def __init__(self) -> None:
        self.axes: List[Any] = []


class ReadTarget:
    """What a read is to give: what lies there ("as_stored"), a share ("shard") or the whole
    ("full")."""

    def __init__(self) -> None:
        self._mode = "as_stored"
        self.parallelism: Optional[Any] = None

    @property
    def mode(self) -> str:
        """One of these three; RuntimeError for others."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        if str(mode).lower() not in ("as_stored", "shard", "full"):
            raise RuntimeError("Unsupported ReadTarget mode")
        self._mode = str(mode).lower()


class Piece(NamedTuple):
    """An object to store: its header, or another beginning, and pieces of memory. `keep` holds
    them."""

    key: Key
    begin: bytes
    addresses: List[int]
    sizes: List[int]
    keep: Any = None


# --- which share


def axes_of(parallelism: Any) -> Optional[Tuple[Axis, ...]]:
    """The axes, in the order of names. None, with a line in the log: they make no sense."""
    given = getattr(parallelism, "axes", None)
    if not given or len(given) > AXES:
        log.error("parallelism: 1 to %d axes, not %r", AXES, given)
        return None
    axes = [_axis_of(axis) for axis in given]
    found = [a for a in axes if a is not None]
    if len(found) < len(axes):
        return None
    if len({a.kind for a in found}) < len(found):
        log.error("parallelism: two axes of one kind")
        return None
    return tuple(sorted(found, key=lambda a: KINDS.index(a.kind)))


def _axis_of(axis: Any) -> Optional[Axis]:
    kind = str(getattr(axis, "kind", None)).lower()
    rank, size = getattr(axis, "rank", -1), getattr(axis, "size", 0)
    values = {n: getattr(axis, n, None) for n in ("split_dim", "expert_id", "stage_id")}
    if kind not in KINDS or not 0 <= rank < size < _NUMBERS:
        log.error("parallelism: an axis of kind %r, rank %r, size %r", kind, rank, size)
        return None
    if _NEEDS.get(kind) and values[_NEEDS[kind]] is None:
        log.error("parallelism: an axis of kind %s needs %s", kind, _NEEDS[kind])
        return None
    if kind != "tp" and values["split_dim"] is not None:
        log.error("parallelism: an axis of kind %s has no split_dim", kind)
        return None
    member = {"ep": values["expert_id"], "pp": values["stage_id"]}.get(kind)
    if member is not None and not -_NUMBERS <= member < _NUMBERS:
        log.error("parallelism: an axis of kind %s with %s %r", kind, _NEEDS[kind], member)
        return None
    return Axis(kind, rank, size, values["split_dim"], member)


def writer_of(partition: Any) -> Optional[Axis]:
    """A writer's partition as an axis; None, with a line in the log: it makes no sense."""
    rank, size, dimension = (getattr(partition, n, -1) for n in ("rank", "size", "split_dim"))
    if not 0 <= rank < size < _NUMBERS or dimension < 0:
        log.error("writer_partition: rank %r of %r along dimension %r", rank, size, dimension)
        return None
    return Axis("tp", rank, size, dimension)


def cutting(axes: Sequence[Axis]) -> Optional[Axis]:
    """The axis along which the tensor is cut, if there is one."""
    return next((a for a in axes if a.kind == "tp"), None)


def ranked(
    axes: Sequence[Axis], rank: int, size: int, dimension: Optional[int]
) -> Tuple[Axis, ...]:
    """The same axes for another share of the cut."""
    cut = Axis("tp", rank, size, dimension)
    return tuple(cut if a.kind == "tp" else a for a in axes)


def share_key(key: Key, axes: Sequence[Axis]) -> Key:
    """Where a share lies."""
    if len(axes) == 1 and axes[0].kind == "tp":
        return suffixed(key, f"_tp_{axes[0].rank}")
    for a in axes:
        more = "" if a.split_dim is None else f"_sd{a.split_dim}"
        more += (
            ""
            if a.member is None
            else f"_{a.kind[0]}id{a.member}"
            if a.kind == "ep"
            else f"_sid{a.member}"
        )
        key = suffixed(key, f"__{a.kind}_{a.rank}of{a.size}{more}")
    return key


def writer_key(key: Key, writer: Axis) -> Key:
    """Where a writer's share lies."""
    return suffixed(key, f"__writer_{writer.rank}of{writer.size}_sd{writer.split_dim}")


# --- cutting


def whole_piece(key: Key, source: Plain, head: Optional[Head] = None) -> Piece:
    """All of a tensor, under that header."""
    head = head or source.head
    elements = ([source.address], [head.size]) if head.size else ([], [])
    return Piece(key, head.packed(), *elements, source.keep)


def cut_piece(key: Key, source: Plain, axes: Sequence[Axis]) -> Optional[Piece]:
    """The share of a whole tensor that the axes name. None, with a line in the log: it cannot be
    cut so."""
    cut, whole = cutting(axes), source.head.shape
    assert cut is not None and cut.split_dim is not None
    if not divides(whole, cut):
        return None
    head = Head(source.head.type, _shared(whole, cut), whole, tuple(axes))
    inner = product(whole[cut.split_dim + 1 :]) * TYPES[source.head.type][2]
    stride, run = whole[cut.split_dim] * inner, head.shape[cut.split_dim] * inner
    rows = product(whole[: cut.split_dim]) if run else 0
    first = source.address + cut.rank * run
    return Piece(
        key, head.packed(), [first + i * stride for i in range(rows)], [run] * rows, source.keep
    )


def divides(whole: Shape, cut: Axis) -> bool:
    """Whether the dimension is there and can be shared equally; the log says why not."""
    dimension = cut.split_dim
    if dimension is None or not 0 <= dimension < len(whole) or cut.size < 1:
        log.error(
            "split_dim %r of a tensor with %d dimensions, %d ranks", dimension, len(whole), cut.size
        )
        return False
    if whole[dimension] % cut.size:
        log.error(
            "a dimension of %d cannot be shared equally by %d ranks", whole[dimension], cut.size
        )
        return False
    return True


def _shared(whole: Shape, cut: Axis) -> Shape:
    """A share's shape."""
    sizes = list(whole)
    sizes[cut.split_dim or 0] //= cut.size
    return tuple(sizes)


def manifest_piece(key: Key, head: Head, cut: Axis) -> Piece:
    """Says how many shares there are, along which dimension of what."""
    numbers = (head.type, len(head.whole), cut.split_dim, cut.size, 0)
    begin = _MANIFEST.pack(_MANIFEST_MAGIC, _MANIFEST_VERSION, MANIFEST_BYTES, *numbers)
    return Piece(key, begin + pack_shape(head.whole), [], [])


def manifest_cut(value: Any) -> Optional[Tuple[int, int]]:
    """Number of shares and dimension out of a manifest; None: it is none."""
    if value is None or len(value) != MANIFEST_BYTES:
        return None
    magic, version, size, _, n, dimension, count, _ = _MANIFEST.unpack_from(value)
    good = (magic, version, size) == (_MANIFEST_MAGIC, _MANIFEST_VERSION, MANIFEST_BYTES)
    good = good and 0 < count <= SHARES_MAX and 0 <= dimension < n <= 8
    return (count, dimension) if good else None


# --- joining


class Joined(NamedTuple):
    """A tensor out of shares: `head` is what it becomes, `low` where it begins along the
    dimension."""

    head: Head
    dimension: int
    low: int
    names: List[Key]
    heads: List[Head]

    def reads(self) -> Iterator[Tuple[Key, int, List[int], List[int]]]:
        """What to read: a share's name, from which byte of it on, and for each piece its place
        behind the header of what becomes of them, and its size."""
        whole, at = self.head.whole, self.dimension
        inner = product(whole[at + 1 :]) * TYPES[self.head.type][2]
        rows, extent, width = product(whole[:at]), whole[at] // len(self.names), self.head.shape[at]
        for i, (name, head) in enumerate(zip(self.names, self.heads)):
            low, high = max(i * extent, self.low), min((i + 1) * extent, self.low + width)
            run = (high - low) * inner
            if run <= 0:
                continue
            places = [(row * width + low - self.low) * inner for row in range(rows)]
            if high - low == extent:  # all of the share, in order
                yield name, head.start, places, [run] * rows
                continue
            for row, place in enumerate(places):
                yield name, head.start + (row * extent + low - i * extent) * inner, [place], [run]


def joined(
    names: List[Key], heads: List[Head], cut: Axis, wanted: Optional[Sequence[Axis]]
) -> Optional[Joined]:
    """The whole out of its shares, cut as `cut` says, or of it the share that the axes `wanted`
    name."""
    whole, dimension = heads[0].whole, cut.split_dim
    if dimension is None or any(h.whole != whole or h.type != heads[0].type for h in heads):
        log.error("%s: the shares are not of one tensor", names[0])
        return None
    if not divides(whole, cut) or any(h.shape != _shared(whole, cut) for h in heads):
        log.error("%s: the shares have not the shapes that they should", names[0])
        return None
    if wanted is None:
        return Joined(Head(heads[0].type, whole, whole), dimension, 0, names, heads)
    share = cutting(wanted)
    if share is None or share.split_dim != dimension or not divides(whole, share):
        log.error("%s: cut along dimension %d, wanted is %r", names[0], dimension, share)
        return None
    head = Head(heads[0].type, _shared(whole, share), whole, tuple(wanted))
    return Joined(head, dimension, share.rank * head.shape[dimension], names, heads)
