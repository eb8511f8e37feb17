"""Who has which prefix, as far as one gateway can know: who got it last. Bounded."""

from __future__ import annotations

import collections
import struct
from typing import Collection, Dict, Hashable, List

from .place import Ask

__all__ = ["Prefixes", "chain_of"]

CHUNK = 32  # tokens
CHUNKS_MOST = 4096  # of a prompt
TOTAL = 1 << 19  # remembered of all engines together, some 100 bytes each
LEAST = 1024


def chain_of(ask: Ask, block: int) -> List[int]:
    """A hash for each CHUNK of the prompt, of it and all before it. They are of this process alone,
    so Python's own hash does. block: of the engine, in which EXTRA counts."""
    if ask.tokens is None:
        return []
    tokens, chain = ask.tokens, []
    last = hash((ask.model, ask.lora, ask.salt))
    other = struct.unpack_from("<I", ask.extra)[0] * block // CHUNK if len(ask.extra) >= 4 else -1
    step = CHUNK * 4
    for i in range(min(len(tokens) // step, CHUNKS_MOST)):
        if i == other:  # an image, whose placeholders are all alike
            last = hash((last, ask.extra))
        last = hash((last, tokens[i * step : (i + 1) * step]))
        chain.append(last)
    return chain


class Prefixes:
    """Of each engine the chunks that it got last: as many as its cache holds, if that is known, and
    its part of TOTAL. A prefix's end goes before its beginning, as in an engine."""

    def __init__(self) -> None:
        self._of: Dict[Hashable, "collections.OrderedDict[int, None]"] = {}

    def longest(self, engine: Hashable, chain: List[int]) -> int:
        """Tokens of the prompt that it has had."""
        have = self._of.get(engine)
        if not have:
            return 0
        low, high = 0, len(chain)
        while low < high:  # who has a chunk has all before it
            middle = (low + high + 1) // 2
            if chain[middle - 1] in have:
                low = middle
            else:
                high = middle - 1
        return low * CHUNK

    def add(self, engine: Hashable, chain: List[int], tokens_most: int = 0) -> None:
        """tokens_most: that its cache holds; 0: not known."""
        have = self._of.setdefault(engine, collections.OrderedDict())
        for chunk in reversed(chain):
            have[chunk] = None
            have.move_to_end(chunk)
        most = max(LEAST, TOTAL // len(self._of))
        if tokens_most > 0:
            most = min(most, max(1, tokens_most // CHUNK))
        while len(have) > most:
            have.popitem(last=False)

    def forget(self, engine: Hashable) -> None:
        self._of.pop(engine, None)

    def keep(self, engines: Collection[Hashable]) -> None:
        """Those, and no others."""
        for engine in [e for e in self._of if e not in engines]:
            self.forget(engine)
