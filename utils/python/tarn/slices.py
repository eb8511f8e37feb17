"""Blocks that were written under one tensor-parallel size, read under another.

Tensor parallelism deals the KV heads out to the ranks, so a rank's block is a slice of the whole
along the axis of the heads:

    reader's size smaller: its block is made of parts of several objects
                           writer 4 ranks  |01|23|45|67|   reader 2  |0123|4567|
    reader's size larger:  its block is a part of one object
                           writer 2 ranks  |0123|4567|     reader 4  |01|23|45|67|
    more ranks than heads: neighbours hold the same head, and the same object (keys.shard_of)

A block's bytes are described by its axes in the order of memory, outermost first, e.g. [layers, 2,
tokens, heads, dim]. Everything inside the axis of the heads moves together; for every index of the
axes outside it there is one run of bytes. So:

    heads outermost ([heads, ...], and "HND" with one layer and K or V per object)
        one range of bytes: the fastest
    heads inside ([layers, 2, heads, tokens, dim], "HND" as engines hold it)
        layers x 2 runs of tokens x dim each
    heads almost innermost ([layers, 2, tokens, heads, dim], "NHD")
        layers x 2 x tokens runs of dim each

plan() turns this into few operations. Where a whole object is a part of the block it is one
operation that scatters; where a strided part of an object is wanted, runs with small gaps are
fetched as one range, whose gaps go to scratch memory: a get verifies whole objects up to 1 MiB
anyway, so asking for each run by itself would move the object once per run.

columns() gives the arguments of Client.get_into_many, one call for any number of blocks."""

from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence, Tuple

from .keys import shard_of

__all__ = ["BlockShape", "Part", "plan", "columns", "head_range", "SKIP"]

SKIP = -1
"""In a place: these bytes of the range are not wanted."""

# A range that is fetched for nothing up to this size costs less than another operation;
# verification reads whole MiBs, too.
MERGE_GAP = 1 << 20


class BlockShape(NamedTuple):
    """A block as one rank holds it. outer: how many runs, the product of the axes outside that of
    the heads. heads: of the whole model. inner: bytes of one head in one run, the product of the
    axes inside times the size of an element."""

    outer: int
    heads: int
    inner: int

    @classmethod
    def of(cls, axes: Sequence[Tuple[str, int]], heads: int, itemsize: int) -> "BlockShape":
        """From named axes in the order of memory, e.g. [("layers", 32), ("kv", 2), ("tokens", 16),
        ("heads", 8), ("dim", 128)]; the number given for "heads" does not matter. ValueError: no
        axis of that name, a size below 1."""
        names = [name for name, _ in axes]
        if names.count("heads") != 1:
            raise ValueError(f"axes: exactly one is called heads, of {names}")
        if heads < 1 or itemsize < 1 or any(size < 1 for _, size in axes):
            raise ValueError("axes, heads, itemsize: from 1 on")
        at = names.index("heads")
        outer, inner = 1, itemsize
        for _, size in axes[:at]:
            outer *= size
        for _, size in axes[at + 1 :]:
            inner *= size
        return cls(outer, heads, inner)

    def bytes(self, tp_size: int) -> int:
        """Bytes of a rank's block."""
        return self.outer * head_range(self.heads, tp_size, 0)[1] * self.inner


@dataclass(frozen=True)
class Part:
    """One operation: bytes [offset, offset + length) of a shard's object. places: where they go, in
    order, as (offset in the reader's block or SKIP, length); the lengths add up to length."""

    shard: int
    offset: int
    length: int
    places: Tuple[Tuple[int, int], ...]


def head_range(heads: int, tp_size: int, tp_rank: int) -> Tuple[int, int]:
    """(first, count): the KV heads that a rank holds. ValueError: they cannot be dealt out
    evenly."""
    shards, shard, _, _ = shard_of(tp_size, tp_rank, heads)
    count = heads // shards
    return shard * count, count


def _gather_runs(runs: List[Tuple[int, int, int]], shard: int, merge_gap: int) -> List[Part]:
    """Runs (offset in the object, offset in the block, length), ascending in the object, as few
    parts."""
    parts: List[Part] = []
    start = end = 0
    places: List[Tuple[int, int]] = []
    for source, target, run in runs:
        length = run
        if places and source - end > merge_gap:
            parts.append(Part(shard, start, end - start, tuple(places)))
            places = []
        if not places:
            start = source
        elif source > end:
            places.append((SKIP, source - end))
        elif (
            places[-1][0] + places[-1][1] == target
        ):  # both sides go on where the run before them ended
            target -= places[-1][1]
            length += places.pop()[1]
        places.append((target, length))
        end = source + run
    if places:
        parts.append(Part(shard, start, end - start, tuple(places)))
    return parts


def plan(
    shape: BlockShape,
    writer_tp: int,
    reader_tp: int,
    reader_rank: int,
    *,
    merge_gap: int = MERGE_GAP,
) -> Tuple[Part, ...]:
    """Which parts of the writer's objects make up a rank's block. The same for all blocks, so make
    it once.

    merge_gap: runs of one object at most so many bytes apart become one operation. ValueError:
    sizes that do not go together."""
    first, count = head_range(shape.heads, reader_tp, reader_rank)
    shards, _, _, _ = shard_of(writer_tp, 0, shape.heads)
    each = shape.heads // shards
    parts: List[Part] = []
    for shard in range(first // each, (first + count - 1) // each + 1):
        low = max(first, shard * each)
        high = min(first + count, (shard + 1) * each)
        runs = [
            (
                (index * each + low - shard * each) * shape.inner,
                (index * count + low - first) * shape.inner,
                (high - low) * shape.inner,
            )
            for index in range(shape.outer)
        ]
        parts.extend(_gather_runs(runs, shard, merge_gap))
    return tuple(parts)


def scratch_bytes(parts: Sequence[Part]) -> int:
    """How much scratch memory columns() needs: the largest gap."""
    return max((size for part in parts for at, size in part.places if at == SKIP), default=0)


def _spread_places(
    places: Sequence[Tuple[int, int]], runs: Sequence[Tuple[int, int]]
) -> List[Tuple[int, int]]:
    """Places in a block whose bytes lie in several runs of memory (address, length): (address or
    SKIP, length), cut where a run ends."""
    starts = []
    total = 0
    for _, length in runs:
        starts.append(total)
        total += length
    out: List[Tuple[int, int]] = []
    for at, size in places:
        if at == SKIP:
            out.append((SKIP, size))
            continue
        if at + size > total:
            raise ValueError(
                f"memory: a block of {at + size} bytes or more does not fit in {total}"
            )
        low, high = 0, len(starts)
        while high - low > 1:  # the last run that starts at or before at
            middle = (low + high) // 2
            low, high = (middle, high) if starts[middle] <= at else (low, middle)
        while size > 0:
            inside = at - starts[low]
            take = min(size, runs[low][1] - inside)
            out.append((runs[low][0] + inside, take))
            at, size, low = at + take, size - take, low + 1
    return out


class Columns(NamedTuple):
    """Arguments of Client.get_into_many, and which block each operation belongs to. A block is
    there when all of its operations delivered wanted[i] bytes (the wants of that call)."""

    keys: List[str]
    addresses: List[List[int]]
    sizes: List[List[int]]
    offsets: List[int]
    blocks: List[int]
    wanted: List[int]

    def arrived(self, results: Sequence[int], blocks: int) -> List[bool]:
        """Per block: did all of its operations deliver their bytes? results: what get_into_many
        returned."""
        good = [True] * blocks
        for block, wanted, result in zip(self.blocks, self.wanted, results):
            if result != wanted:
                good[block] = False
        return good


def columns(
    parts: Sequence[Part],
    keys: Sequence[Sequence[str]],
    memory: Sequence[Sequence[Tuple[int, int]]],
    scratch: Optional[Tuple[int, int]] = None,
) -> Columns:
    """parts: of plan. keys[block][shard]: the objects. memory[block]: the runs (address, bytes)
    that make up the reader's block, in order. scratch: (address, size) for bytes that are not
    wanted, written by several threads at once, never read; may be None when no part skips any.
    ValueError: it is too small."""
    need = scratch_bytes(parts)
    if need > (scratch[1] if scratch else 0):
        raise ValueError(f"scratch: needs {need} bytes")
    junk = scratch[0] if scratch else 0
    out = Columns([], [], [], [], [], [])
    for block, (names, runs) in enumerate(zip(keys, memory)):
        for part in parts:
            places = _spread_places(part.places, runs)
            out.keys.append(names[part.shard])
            out.addresses.append([junk if at == SKIP else at for at, _ in places])
            out.sizes.append([size for _, size in places])
            out.offsets.append(part.offset)
            out.blocks.append(block)
            out.wanted.append(part.length)
    return out
