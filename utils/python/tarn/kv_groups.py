"""Models whose layers keep several kinds of KV cache: how long a prefix of theirs the pool holds,
and what of each KV group is read for it.

A KV group is a set of layers with blocks of one size and one kind. What of it must be there for the
first `tokens` tokens of a prompt to be used again depends on the kind:

    full      ########|    every block from the start
    window        ####|    the last blocks, as far as the next token looks back
    state            #|    the one snapshot of a recurrent layer
                      tokens

Each part of a prefix (a block of a group, a state) is an object of the pool, whose key is the
group's name and the hex of the hash at the part's end. Ranks that hold different bytes have groups
of their own: a boundary is served if every group is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, List, NamedTuple, Sequence, Tuple

from .errors import InvalidArgument

__all__ = ["KVBoundary", "KVGroup", "KVParts"]

KINDS = ("full", "window", "state")
TOKENS_MAX = (1 << 32) - 1


class KVParts(NamedTuple):
    """What of a KV group is read for a boundary: `blocks` whole blocks from number `first` on, and
    the part that ends at token `tail`, which is an unfinished block, or a state inside one; 0:
    none."""

    first: int = 0
    blocks: int = 0
    tail: int = 0

    def ends(self, block: int) -> Iterator[int]:
        """The tokens that the parts end at, in order; `block`: tokens of the group's blocks."""
        yield from range((self.first + 1) * block, (self.first + self.blocks + 1) * block, block)
        if self.tail:
            yield self.tail


class KVBoundary(NamedTuple):
    """The longest prefix that is there: how many tokens (0: none), and the parts of each KV group,
    in the order in which they were asked for."""

    tokens: int
    parts: Tuple[KVParts, ...]


@dataclass(frozen=True)
class KVGroup:
    """A KV group as the pool sees it.

    name: what its keys begin with; it says model, format, rank and KV group. block: tokens of a
    block. unit: tokens from one place where a part may end to the next; 0: block, as only whole
    blocks are put; less, and dividing block, where unfinished blocks or states inside a block are
    put, too. window: tokens, of kind "window". drops_last: speculative decoding (EAGLE and its kin)
    computes the last part of a hit again, which must be there nevertheless.

    InvalidArgument says what cannot be."""

    name: str
    kind: str = "full"
    block: int = 16
    unit: int = 0
    window: int = 0
    drops_last: bool = False

    def __post_init__(self) -> None:
        if not self.unit:
            object.__setattr__(self, "unit", self.block)
        fault = self._fault()
        if fault:
            raise InvalidArgument(f"KV group {self.name!r}: {fault}")

    def _fault(self) -> str:
        if not isinstance(self.name, str) or not self.name:
            return "the name is what keys begin with: text, and not empty"
        if self.kind not in KINDS:
            return f"kind is one of {', '.join(KINDS)}, not {self.kind!r}"
        for what, tokens, least in (
            ("block", self.block, 1),
            ("unit", self.unit, 1),
            ("window", self.window, 0),
        ):
            if not isinstance(tokens, int) or not least <= tokens <= TOKENS_MAX:
                return f"{what}: a number of tokens, not {tokens!r}"
        if self.block % self.unit:
            return f"a unit of {self.unit} does not divide blocks of {self.block}"
        if self.kind != "window":
            if self.window:
                return f"kind {self.kind} has no window"
        elif self.window < 2:
            return "a window has 2 tokens or more"
        elif self.unit != self.block:
            return "of a window only whole blocks are put: unit is block"
        if self.kind == "state" and self.drops_last:
            return "states drop nothing"
        return ""

    def keys(self, parts: KVParts, hashes: Sequence[bytes], unit: int) -> List[str]:
        """The keys of parts of this group; `hashes` ends after every `unit` tokens."""
        return [self.name + hashes[end // unit - 1].hex() for end in parts.ends(self.block)]

    def words(self) -> List[object]:
        """As PREFIXLEN takes it."""
        kind, drops = self.kind.upper(), int(self.drops_last)
        return [self.name, kind, self.block, self.unit, self.window, drops]


def boundary_of(reply: str, groups: int) -> KVBoundary:
    """PREFIXLEN's reply, a number a line."""
    tokens, *rest = map(int, reply.split())
    parts = [KVParts(*rest[i : i + 3]) for i in range(0, 3 * groups, 3)]
    return KVBoundary(tokens, tuple(parts))
