"""Which blocks of the engine hold wrong bytes, because a load failed, until they have been computed
anew.

When a block does not arrive, the step that was to use it has computed wrong bytes for every token
after it, and steps that were planned before the outcome was known do so, too. vLLM computes the
request anew from that block on, perhaps in several steps; requests that share its first blocks go
on from where they were, which may be before those blocks are right again. So:

    wrong block --computed anew, in a step in which all blocks before it are right--> right
    block computed in a step in which one before it is wrong --> wrong, and the request is spoilt
        from there on

In one step all requests write before any of them reads, layer by layer, so what one request
computes anew in a step is right for the others in that step already."""

from typing import Any, List, Sequence, Set, Tuple

__all__ = ["Damage", "NOWHERE"]

NOWHERE = 1 << 62


class Damage:
    """Used by the scheduler's thread only. A request here is anything with `blocks`, its table, and
    `spoilt`, the first of its blocks that was computed from wrong bytes and will not be computed
    again (NOWHERE: none)."""

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self.wrong: Set[int] = set()

    def lose(self, table: Sequence[int], invalid: Set[int]) -> int:
        """Notes a request with blocks that did not arrive. Returns the first of them, -1: it has
        none."""
        first = next((i for i, block in enumerate(table) if block in invalid), -1)
        if first >= 0:
            self.wrong.update(table[first:])
        return first

    def load(self, blocks: Sequence[int]) -> None:
        """These will be filled; if they are not, that is reported."""
        self.wrong.difference_update(blocks)

    def compute(self, work: Sequence[Tuple[Any, int, int]]) -> Set[int]:
        """A step: (request, tokens computed before, tokens computed in it) of each. Returns the
        blocks that are right after it and were not before; marks those that become wrong, and the
        requests that are spoilt by that."""
        if not self.wrong:
            return set()
        repaired: Set[int] = set()
        left: List[Tuple[Any, int, int]] = []
        for request, computed, scheduled in work:
            if computed <= request.spoilt * self._size:  # goes back to before what was spoilt
                request.spoilt = NOWHERE
            left.append((request, computed // self._size, (computed + scheduled) // self._size))
        progress = True
        while progress:
            progress, waiting = False, left
            left = []
            for request, low, high in waiting:
                wrong = self.wrong - repaired
                if request.spoilt <= low or not wrong.isdisjoint(request.blocks[:low]):
                    left.append((request, low, high))
                    continue
                repaired |= wrong.intersection(request.blocks[low:high])
                progress = True
        for request, low, high in left:
            request.spoilt = min(request.spoilt, low)
            self.wrong.update(request.blocks[low : high + 1])
        self.wrong -= repaired
        return repaired

    def right(self, request: Any, blocks: int) -> int:
        """How many of a request's first so many blocks are right, those of the step at hand
        included."""
        blocks = min(blocks, len(request.blocks), request.spoilt)
        if not self.wrong:
            return blocks
        return next((i for i in range(blocks) if request.blocks[i] in self.wrong), blocks)
