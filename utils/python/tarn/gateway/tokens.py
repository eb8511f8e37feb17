"""Token ids of prompts, and those of prompts that were read before."""

from __future__ import annotations

import array
import collections
import sys
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from .extras import Span

__all__ = ["Figures", "Tokens", "TokensCache", "pack", "unpack"]


@dataclass
class Figures:
    """What was done since the start. asked: questions to engines; failed: those without a good
    answer; cached: prompts that needed none; estimated: prompts that nobody told the tokens of."""

    prompts: int = 0
    asked: int = 0
    failed: int = 0
    cached: int = 0
    estimated: int = 0


@dataclass(frozen=True)
class Tokens:
    """packed: each 4 bytes, little-endian. spans: where media are. until: where they begin, of a
    prompt of which no more is known than that it has some; behind that nothing is sure."""

    packed: bytes
    spans: Tuple[Span, ...] = ()
    until: Optional[int] = None

    @property
    def length(self) -> int:
        return len(self.packed) // 4


def pack(ids: Sequence[int]) -> bytes:
    made = array.array("I", ids)
    if sys.byteorder == "big":
        made.byteswap()
    return made.tobytes()


def unpack(packed: bytes) -> List[int]:
    made = array.array("I", packed)
    if sys.byteorder == "big":
        made.byteswap()
    return made.tolist()


class TokensCache:
    """Up to so many bytes; the longest unused go."""

    def __init__(self, size: int) -> None:
        self._room = size
        self._entries: collections.OrderedDict[bytes, Tokens] = collections.OrderedDict()

    @staticmethod
    def _cost(entry: Tokens) -> int:
        return len(entry.packed) + 200 + 200 * len(entry.spans)

    def get(self, key: bytes) -> Optional[Tokens]:
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: bytes, entry: Tokens) -> None:
        old = self._entries.pop(key, None)
        self._room += self._cost(old) if old is not None else 0
        self._entries[key] = entry
        self._room -= self._cost(entry)
        while self._room < 0:
            self._room += self._cost(self._entries.popitem(last=False)[1])
