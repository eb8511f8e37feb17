"""Reads and writes of a batch of transfers, laid out as libtarn wants them."""

from __future__ import annotations

import sys
from array import array
from typing import Any, List, NamedTuple, Sequence

from .errors import InvalidArgument
from .memory import pin

READ, WRITE = 1, 2
_WORDS = 6  # of eight bytes each in a tarn_transfer_task


class TaskResult(NamedTuple):
    """What became of a task. settled False: a write that failed, of which bytes may still arrive
    over there."""

    status: int
    done: int
    settled: bool


class Tasks:
    """Reads or writes of one batch, packed as libtarn wants them.

    Each is `length` bytes between `local` here and `remote` over there: an address in any of the
    peer's regions, or with `region` bytes from that region's start. Belongs to one batch at a time.
    """

    def __init__(
        self,
        op: int,
        local: Sequence[int],
        remote: Sequence[int],
        length: Sequence[int],
        *,
        region: int = 0,
        keep: Any = None,
    ) -> None:
        n = len(local)
        if op not in (READ, WRITE):
            raise InvalidArgument("op: READ or WRITE")
        if len(remote) != n or len(length) != n:
            raise InvalidArgument(
                f"{n} local addresses, {len(remote)} remote ones, {len(length)} lengths: as many "
                "of each"
            )
        self._words, self.keep = array("Q", bytes(8 * _WORDS * n)), keep
        if n:
            self._words[0::_WORDS] = array("Q", [self._head(op, region)]) * n
            try:
                self._words[1::_WORDS] = array("Q", local)
                self._words[2::_WORDS] = array("Q", remote)
                self._words[3::_WORDS] = array("Q", length)
            except (OverflowError, TypeError) as e:
                raise InvalidArgument(
                    f"addresses and lengths are integers from 0 to 2^64 - 1: {e}"
                ) from None

    @staticmethod
    def _head(op: int, region: int) -> int:
        return op | region << 32 if sys.byteorder == "little" else op << 32 | region

    @classmethod
    def merged(
        cls,
        op: int,
        local: Any,
        local_blocks: Sequence[int],
        remote_blocks: Sequence[int],
        block_bytes: int,
        *,
        region: int = 0,
        remote: int = 0,
    ) -> "Tasks":
        """Blocks of block_bytes each: number local_blocks[i] of the buffer (or address) `local`
        beside remote_blocks[i], counted from `remote`. Blocks that are neighbours on both sides
        become one task."""
        if len(local_blocks) != len(remote_blocks):
            raise InvalidArgument(
                f"{len(local_blocks)} local blocks, {len(remote_blocks)} remote ones: as many of "
                "each"
            )
        keep = None if isinstance(local, int) else pin(local, name="local")
        base = local if keep is None else keep.address
        locals_: List[int] = []
        remotes: List[int] = []
        lengths: List[int] = []
        before = (-2, -2)
        for pair in zip(local_blocks, remote_blocks):
            if keep is not None and (pair[0] + 1) * block_bytes > keep.size:
                raise InvalidArgument(
                    f"block {pair[0]} of {block_bytes} bytes lies behind the {keep.size} bytes of "
                    "local"
                )
            if pair == (before[0] + 1, before[1] + 1):
                lengths[-1] += block_bytes
            else:
                locals_.append(base + pair[0] * block_bytes)
                remotes.append(remote + pair[1] * block_bytes)
                lengths.append(block_bytes)
            before = pair
        return cls(op, locals_, remotes, lengths, region=region, keep=keep)

    def __len__(self) -> int:
        return len(self._words) // _WORDS

    @property
    def address(self) -> int:
        """Where they lie, for libtarn."""
        return self._words.buffer_info()[0]

    def results(self) -> List[TaskResult]:
        """One for each, once the batch is over; before that their status is EAGAIN."""
        halves = array("i", self._words[5::_WORDS].tobytes())
        done = self._words[4::_WORDS]
        return [
            TaskResult(halves[2 * i], done[i], bool(halves[2 * i + 1])) for i in range(len(done))
        ]
