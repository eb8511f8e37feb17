"""What a router is asked, and what it answers: which engine is to serve a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, List, Optional, Protocol, Tuple

__all__ = ["Ask", "Engine", "Nobody", "Overloaded", "Place", "Router"]


@dataclass(frozen=True)
class Engine:
    """One rank of an engine. url: where its HTTP server is, without a path behind it. role: both,
    prefill or decode. model: what it serves. block: tokens of a block of its KV cache."""

    id: str
    url: str
    rank: int = 0
    role: str = "both"
    model: str = ""
    block: int = 16


@dataclass
class Ask:
    """A request, as far as its place depends on it. The words are those of CONDUCTOR.ROUTE
    (docs/CONDUCTOR.md, "Requests"). request: its id. tokens: of the prompt, each 4 bytes,
    little-endian; None where only their number is known. length: their number. extra: what engines
    hash beside them, as EXTRA has it. output: tokens that are expected. ttft_ms, tbt_ms: limits, or
    None. exclude: engines that have just failed."""

    request: str
    model: str
    length: int
    tokens: Optional[bytes] = None
    extra: bytes = b""
    lora: str = ""
    salt: str = ""
    output: Optional[int] = None
    session: str = ""
    tenant: str = ""
    priority: int = 0
    ttft_ms: Optional[int] = None
    tbt_ms: Optional[int] = None
    exclude: Collection[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class Place:
    """prefill: who computes the prompt. decode: who makes the answer, None where it is the same.
    hit: leading tokens that are there, in device, host and disk, of which each counts all faster
    ones, too. pool: that the pool has. by: "conductor" or "alone"."""

    prefill: Engine
    decode: Optional[Engine]
    by: str
    hit: Tuple[int, int, int] = (0, 0, 0)
    pool: int = 0
    ttft_ms: Optional[float] = None

    @property
    def answers(self) -> Engine:
        return self.decode or self.prefill


class Overloaded(Exception):
    """Nobody can serve it in time. after_s: come again then; 0: it will never do."""

    def __init__(self, after_s: float, text: str) -> None:
        super().__init__(text)
        self.after_s = after_s


class Nobody(Exception):
    """No engine serves the model (known False), or none may serve it now (True)."""

    def __init__(self, text: str, known: bool) -> None:
        super().__init__(text)
        self.known = known


class Router(Protocol):
    """Raises Overloaded and Nobody, and ValueError for a request that cannot be right. What it is
    told of a request that it does not know does nothing. first and done wait for nobody: who awaits
    them, rather than leave them to a task, knows that they go before a later route of that
    request."""

    async def route(self, ask: Ask) -> Place:
        """The same request again, before its first token, is placed anew; after it, who decodes is
        chosen anew. One that is cancelled has reserved nothing."""
        ...

    async def first(self, request: str) -> None:
        """The first token is there."""
        ...

    async def done(
        self, request: str, output: int, failed: bool = False, decode: bool = False
    ) -> None:
        """It is over. output: tokens of its answer. failed: the engine that has it failed it: who
        computes the prompt before the first token, who decodes after it, or with `decode` before,
        too."""
        ...

    def engines(self) -> List[Engine]:
        """All that are known, whatever their state."""
        ...
