"""Models whose layers keep several kinds of KV cache: how long a prefix of theirs the pool holds,
and what of each KV group is read for it.

A KV group is a set of layers with blocks of one size and one kind. What of it must be there for the
first `tokens` tokens of a prompt to be used again depends on the kind:

    full      ########|    every block from the start
    window        ####|    the last blocks, as far as the next token looks back
    state            #|    the one snapshot of a recurrent layer
                      tokens

Each part of a prefix (a block of a group, a state) is an object of the pool, whose key is the
group's name and the hash at the part's end (`tarn.keys.hash_text`). Ranks that hold different bytes
have groups of their own: a boundary is served if every group is."""

from __future__ import annotations

import ctypes as C
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import _lib
from ._lib import Handle, check, lib
from .batch import Batch, KeyList, address_of, batch_of
from .errors import InvalidArgument, Status
from .keys import hash_text

__all__ = ["KVBoundary", "KVGroup", "KVParts"]

KINDS = {"full": 1, "window": 2, "state": 3}
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
        return [
            self.name + hash_text(hashes[end // unit - 1].hex()) for end in parts.ends(self.block)
        ]


# Where the parts of a boundary go: for each, in order, a buffer or a list of them; None: nowhere.
Place = Callable[[KVBoundary], Optional[Sequence[Any]]]


class KVLook:
    """A question for the pool, as libtarn takes it. It owns what it points to."""

    __slots__ = ("groups", "structs", "keys", "query", "hashes")

    def __init__(
        self, hashes: Sequence[bytes], groups: Sequence[KVGroup], unit: int, align: int
    ) -> None:
        for what, tokens in (("unit", unit), ("align", align)):
            if not isinstance(tokens, int) or not 1 <= tokens <= TOKENS_MAX:
                raise InvalidArgument(f"{what}: a number of tokens, not {tokens!r}")
        self.groups, self.hashes = groups, KeyList([hash_text(h.hex()) for h in hashes])
        self.structs = (_lib.KVGroupStruct * len(groups))(
            *(_group_struct(g.name.encode(), g) for g in groups)
        )
        self.keys = self.hashes.structs()
        self.query = _lib.KVQuery(
            C.sizeof(_lib.KVQuery),
            address_of(self.keys),
            self.hashes.n,
            unit,
            align,
            C.addressof(self.structs),
            len(groups),
        )

    def prefix(self, handle: Handle, options: Any) -> KVBoundary:
        """What tarn_kv_prefix says."""
        tokens, parts = C.c_uint64(), (_lib.KVPartsStruct * len(self.groups))()
        check(lib.tarn_kv_prefix(handle, C.byref(self.query), options, C.byref(tokens), parts))
        return _boundary(tokens.value, parts)

    def get(self, handle: Handle, options: Any, place: Place) -> Tuple[KVBoundary, List[int]]:
        """What tarn_kv_get says, and what came of each part."""
        tokens, parts = C.c_uint64(), (_lib.KVPartsStruct * len(self.groups))()
        found: List[KVBoundary] = []
        batches: List[Batch] = []
        errors: List[BaseException] = []

        def placed(_: Any, boundary: int, p: Any, n: int) -> Optional[int]:
            try:
                found.append(_boundary(boundary, p[: len(self.groups)]))
                memory = place(found[0])
                if memory is None:
                    return None
                if len(memory) != n:
                    raise InvalidArgument(f"place: memory for {len(memory)} of {n} parts")
                # libtarn makes the keys.
                batches.append(batch_of([(b"part", m) for m in memory], True))
                return batches[0].address
            except BaseException as e:  # libtarn has called: its caller is told
                errors.append(e)
                return None

        status = lib.tarn_kv_get(
            handle,
            C.byref(self.query),
            options,
            _lib.KVPlace(placed),
            None,
            C.byref(tokens),
            parts,
            None,
        )
        if errors:
            raise errors[0]
        if status == Status.ECANCELED and not batches:  # nobody wanted it
            return found[0], []
        check(status)
        return _boundary(tokens.value, parts), batches[0].results() if batches else []


def _boundary(tokens: int, parts: Any) -> KVBoundary:
    return KVBoundary(tokens, tuple(KVParts(p.first, p.blocks, p.tail) for p in parts))


def _group_struct(name: bytes, g: KVGroup) -> Any:
    return _lib.KVGroupStruct(
        name, len(name), KINDS[g.kind], g.drops_last, g.block, g.unit, g.window
    )
