"""What the scheduler's half of the connector tells the workers' half, once a step, and what these
tell it. Pickled by vLLM."""

from dataclasses import dataclass, field
from typing import List, Set

from .base import HandshakeMetadata, Metadata, WorkerMetadata

__all__ = ["Load", "Save", "Step", "Format", "FormatReport"]


@dataclass
class Load:
    """Blocks of a request to fill from the pool. asynchronous: between steps; the request waits
    until it is reported."""

    request: str
    hashes: List[bytes]
    blocks: List[int]
    asynchronous: bool


@dataclass
class Save:
    """Blocks that are full when this step has been computed. table: all blocks of the request's
    prefix up to the last of them, because what was computed after a block that did not arrive must
    not be saved."""

    request: str
    hashes: List[bytes]
    blocks: List[int]
    table: List[int]


@dataclass
class Step(Metadata):  # type: ignore[misc]
    """A step's work. preempted: requests whose blocks are others' from this step on. delayed:
    finished requests whose blocks vLLM keeps until they are reported as sent. recomputed: blocks
    that did not arrive and are computed in this step. released: blocks that were computed in a step
    before, and could not be saved then."""

    loads: List[Load] = field(default_factory=list)
    saves: List[Save] = field(default_factory=list)
    preempted: Set[str] = field(default_factory=set)
    delayed: List[str] = field(default_factory=list)
    recomputed: Set[int] = field(default_factory=set)
    released: List[Save] = field(default_factory=list)


@dataclass
class Format(HandshakeMetadata):  # type: ignore[misc]
    """How a worker's blocks are laid out, which is part of the keys, and the names of its layers in
    keys."""

    layout: str
    layers: List[str]


@dataclass
class FormatReport(WorkerMetadata):  # type: ignore[misc]
    """The same with the output of a worker's first step, for engines that do not hand on what
    get_handshake_metadata returned."""

    format: Format

    def aggregate(self, other: "FormatReport") -> "FormatReport":
        """One for all workers: their layouts are equal, or look-ups find nothing."""
        return self
