"""Blocks of vLLM's that stay what they are while workers read them, although their requests may be
finished, preempted, or past them: a reference each in vLLM's own block pool, from the step that
plans a save until every rank has reported it.

Pinned blocks are missing where requests want to run: no save begins when a quarter of all is
pinned, and none has more than that.

Releases without such a pool (`Pins(None, ..)`) pin nothing; there saves end before the next step
begins (GroupStep.pinned)."""

import sys
from typing import Any, Counter, Dict, Iterable, List

__all__ = ["Pins"]


class Pins:
    """Used by the scheduler's thread only."""

    def __init__(self, pool: Any, ranks: int) -> None:
        """pool: vLLM's BlockPool. ranks: how many report a job."""
        self._pool = pool if all(hasattr(pool, n) for n in ("touch", "free_blocks")) else None
        self._ranks = ranks
        self._held: Dict[int, List[Any]] = {}
        self._open: Dict[int, int] = {}
        self._count = 0

    @property
    def works(self) -> bool:
        return self._pool is not None

    @property
    def room(self) -> int:
        """How many blocks one save may pin. What is not now may be later, if it is still there."""
        if self._pool is None:
            return sys.maxsize
        quarter = len(self._pool.blocks) // 4
        return quarter if self._count < quarter else 0

    def hold(self, job: int, blocks: Iterable[int]) -> None:
        if self._pool is None:
            return
        self._held[job] = [self._pool.blocks[block] for block in blocks]
        self._open[job] = self._ranks
        self._count += len(self._held[job])
        self._pool.touch(self._held[job])

    def release(self, done: Counter[int]) -> None:
        """Ranks that read the blocks of a job no more, by job."""
        for job, ranks in done.items():
            left = self._open.get(job, 0) - ranks
            if left > 0:
                self._open[job] = left
            elif job in self._held:
                del self._open[job]
                blocks = self._held.pop(job)
                self._count -= len(blocks)
                self._pool.free_blocks(reversed(blocks))

    def drop(self, job: int) -> None:
        """It was never given to the workers."""
        self.release(Counter({job: self._ranks}))

    @property
    def holds(self) -> bool:
        return bool(self._held)
