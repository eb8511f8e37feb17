"""What the scheduler's half of the connector tells the workers' half, once a step, and what these
tell it. Pickled by vLLM."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Counter as CounterType
from typing import Dict, List, NamedTuple, Optional, Set

from .._hints import no_hints
from ..options import HintKeywords
from .base import HandshakeMetadata, Metadata, WorkerMetadata
from .news import News, joined_news

__all__ = ["Load", "Save", "Step", "Format", "FormatReport"]
__all__ += ["Parts", "GroupLoad", "GroupSave", "GroupStep", "GroupFormat", "GroupReport"]


@dataclass
class Load:
    """Blocks of a request to fill from the pool. asynchronous: between steps; the request waits
    until it is reported. trace: the traceparent of the request, if it has one. hints: of it, for
    the pool."""

    request: str
    hashes: List[bytes]
    blocks: List[int]
    asynchronous: bool
    trace: Optional[str] = None
    hints: HintKeywords = field(default_factory=no_hints)


@dataclass
class Save:
    """Blocks that are full when this step has been computed. table: all blocks of the request's
    prefix up to the last of them, because what was computed after a block that did not arrive must
    not be saved. hints: as Load's."""

    request: str
    hashes: List[bytes]
    blocks: List[int]
    table: List[int]
    hints: HintKeywords = field(default_factory=no_hints)


@dataclass
class Step(Metadata):  # type: ignore[misc]
    """A step's work. preempted: requests whose blocks are others' from this step on. delayed:
    finished requests whose blocks vLLM keeps until they are reported as sent. recomputed: blocks
    that did not arrive and are computed in this step. released: blocks that were computed in a step
    before, and could not be saved then. reset: what is queued must not be put any more."""

    loads: List[Load] = field(default_factory=list)
    saves: List[Save] = field(default_factory=list)
    preempted: Set[str] = field(default_factory=set)
    delayed: List[str] = field(default_factory=list)
    recomputed: Set[int] = field(default_factory=set)
    released: List[Save] = field(default_factory=list)
    reset: bool = False


@dataclass
class Format(HandshakeMetadata):  # type: ignore[misc]
    """How a worker's blocks are laid out, which is part of the keys, and the names of its layers in
    keys."""

    layout: str
    layers: List[str]


@dataclass
class FormatReport(WorkerMetadata):  # type: ignore[misc]
    """With the output of a step: the same in a worker's first one, for engines that do not hand on
    what get_handshake_metadata returned; and what is new."""

    format: Optional[Format] = None
    news: Optional[News] = None

    def aggregate(self, other: "FormatReport") -> "FormatReport":
        """One for all workers: their layouts are equal, or look-ups find nothing."""
        return FormatReport(self.format or other.format, joined_news(self.news, other.news))


# --- models with several KV groups, windows or states


class Parts(NamedTuple):
    """Blocks of a KV group (its place among Groups.groups), and the hashes at their ends."""

    group: int
    hashes: List[bytes]
    blocks: List[int]


@dataclass
class GroupLoad:
    """Parts to fill from the pool between steps; the request waits until it is reported. lacking:
    so many parts have no block to go to, so it fails."""

    request: str
    parts: List[Parts]
    lacking: int = 0
    trace: Optional[str] = None  # as Load's
    hints: HintKeywords = field(default_factory=no_hints)


@dataclass
class GroupSave:
    """Parts that are there when this step has been computed. job: a number that never comes again;
    workers report it when they read the blocks no more."""

    job: int
    parts: List[Parts]
    hints: HintKeywords = field(default_factory=no_hints)  # as Load's


@dataclass
class GroupStep(Metadata):  # type: ignore[misc]
    """A step's work. pinned: saved blocks stay until their jobs are reported; otherwise they may be
    others' from the next step on. reset: as Step's."""

    loads: List[GroupLoad] = field(default_factory=list)
    saves: List[GroupSave] = field(default_factory=list)
    pinned: bool = True
    reset: bool = False


@dataclass
class GroupFormat(HandshakeMetadata):  # type: ignore[misc]
    """How the blocks of each KV group are laid out on a stage of the pipeline, for keys."""

    stage: int
    layouts: List[str]


@dataclass
class GroupReport(WorkerMetadata):  # type: ignore[misc]
    """With the output of a step: the formats in a worker's first one; how many ranks are done with
    a job; requests of which something did not arrive."""

    formats: Dict[int, GroupFormat] = field(default_factory=dict)
    done: CounterType[int] = field(default_factory=Counter)
    failed: Set[str] = field(default_factory=set)
    news: Optional[News] = None

    def aggregate(self, other: "GroupReport") -> "GroupReport":
        """One for all workers."""
        return GroupReport(
            {**self.formats, **other.formats},
            self.done + other.done,
            self.failed | other.failed,
            joined_news(self.news, other.news),
        )
