"""The prefix cache: blocks with reference counts, found again by what they hold until they are
given away, the least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, List, Optional, Sequence


def event_hash(name: bytes) -> int:
    """As vLLM's events have a hash: its last 8 bytes."""
    return int.from_bytes(name[-8:], "big")


class Blocks:
    """count: of blocks, of which number 0 is nobody's, as in vLLM. `events` are what became known
    and was forgotten since it was last taken."""

    def __init__(self, count: int, tokens: int) -> None:
        self.tokens = tokens
        self._taken: List[int] = []
        self.count = count - 1
        self.free: "OrderedDict[int, None]" = OrderedDict.fromkeys(range(1, count))
        self.refs = [0] * count
        self.known: Dict[bytes, int] = {}
        self.name_of: Dict[int, bytes] = {}
        self.events: List[Dict[str, Any]] = []

    @property
    def used(self) -> int:
        return self.count - len(self.free)

    def find(self, request: Any) -> List[int]:
        """Blocks with the beginning of a request, but not with its last token, which is always
        computed."""
        found = []
        for name in request.names[: (request.num_tokens - 1) // self.tokens]:
            block = self.known.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def touch(self, blocks: Sequence[int]) -> None:
        for b in blocks:
            if self.refs[b] == 0:
                del self.free[b]
            self.refs[b] += 1

    def take(self, count: int) -> List[int]:
        """There must be so many."""
        assert count <= len(self.free)
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        self.forget(taken)
        for b in taken:
            self.refs[b] = 1
        self._taken += taken
        return taken

    def taken(self) -> List[int]:
        """Those that somebody was given since the last call."""
        taken, self._taken = self._taken, []
        return taken

    def drop(self, blocks: Sequence[int]) -> None:
        """The end of a prefix leaves before its beginning."""
        for b in reversed(blocks):
            assert self.refs[b] > 0, "a block is freed twice"
            self.refs[b] -= 1
            if self.refs[b] == 0:
                self.free[b] = None

    def remember(self, request: Any, tokens: int) -> None:
        """The request's blocks up to so many tokens are filled, or will be in this step before
        anybody uses them."""
        end = min(tokens, request.num_tokens) // self.tokens
        names = request.names
        first: Optional[int] = None
        for i in range(request.remembered, end):
            new = names[i] not in self.known and request.blocks[i] not in self.name_of
            if new:
                self.known[names[i]] = request.blocks[i]
                self.name_of[request.blocks[i]] = names[i]
                first = i if first is None else first
            if first is not None and (not new or i == end - 1):
                self._stored(request, first, i + 1 if new else i)
                first = None
        request.remembered = max(request.remembered, end)

    def _stored(self, request: Any, first: int, end: int) -> None:
        lora = request.lora_request
        extra = [request.extra_keys(i) for i in range(first, end)]
        self.events.append(
            {
                "type": "BlockStored",
                "block_hashes": [event_hash(n) for n in request.names[first:end]],
                "parent_block_hash": event_hash(request.names[first - 1]) if first else None,
                "token_ids": request.all_token_ids[first * self.tokens : end * self.tokens],
                "block_size": self.tokens,
                "lora_id": lora.lora_int_id if lora else None,
                "medium": "GPU",
                "lora_name": lora.lora_name if lora else None,
                "extra_keys": extra if any(extra) else None,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        )

    def forget(self, blocks: Sequence[int]) -> None:
        """What these hold is not found any more."""
        gone = [self.name_of.pop(b) for b in blocks if b in self.name_of]
        for name in gone:
            del self.known[name]
        if gone:
            hashes = [event_hash(name) for name in gone]
            event = {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
            self.events.append({**event, "group_idx": 0})

    evict_blocks = forget  # as the connector calls it

    def clear(self) -> bool:
        """Forgets all, unless somebody uses blocks."""
        if self.used:
            return False
        self.known.clear()
        self.name_of.clear()
        self.events.append({"type": "AllBlocksCleared"})
        return True
