"""Puts of blocks behind the back of the computation: a bounded queue and threads.

    submit -> queued -> running: window open -> put -> done
                |             `- with a copier the block is free from here on
                `- forget: gone at once                    else from the end of the put on

A request is busy while a job of its is queued, or runs and still reads its blocks.
"""

import logging
import threading
from collections import Counter, deque
from typing import Any, Callable, Deque, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set

from .._hints import no_hints
from ..errors import Status, done
from ..options import HintKeywords
from .config import Settings
from .memory import HostMemory
from .pool import Pool

__all__ = ["Job", "Saver"]

log = logging.getLogger("tarn.vllm")

_THERE = (Status.OK, Status.EEXISTS)
_OUTCOMES = ("saved", "there_already", "failed", "dropped", "forgotten")
_NO_ROOM = (Status.ENOSPACE, Status.EQUOTA, Status.EOOM)


class Job(NamedTuple):
    """Blocks of a request, or one layer of them. mark: a point in the computation after which their
    bytes are there. boundaries: the boundary that each is a part of (Client.put), or none. hints:
    of the request."""

    request: str
    keys: List[str]
    blocks: List[int]
    layers: List[int]
    mark: Any
    boundaries: Sequence[str] = ()
    hints: HintKeywords = no_hints()

    def slice(self, at: int, count: int) -> "Job":
        return self._replace(
            keys=self.keys[at : at + count],
            blocks=self.blocks[at : at + count],
            boundaries=self.boundaries[at : at + count],
        )


class _Running:
    """A job under way: blocks whose room was given back, and whether it still reads any."""

    __slots__ = ("job", "released", "reads")

    def __init__(self, job: Job) -> None:
        self.job, self.released, self.reads = job, 0, True


class Saver:
    """All methods may be called from any thread."""

    def __init__(self, memory: HostMemory, pool: Pool, settings: Settings) -> None:
        self._memory, self._pool, self._settings = memory, pool, settings
        self._options = settings.put_options
        self._change = threading.Condition()
        self._queue: Deque[Job] = deque()
        self._capacity = settings.queue_blocks * (len(memory.layers) if settings.layerwise else 1)
        self._room = self._capacity
        self._reading: "Counter[str]" = Counter()  # requests of running jobs that still read
        self._queued: "Counter[str]" = Counter()
        self._forgotten: Set[str] = set()
        self._closed = False
        self._figures = pool.figures
        self.on_stored: Optional[Callable[[List[str]], None]] = None  # keys that are in the pool
        self._threads = [
            threading.Thread(target=self._run, name=f"tarn-save-{i}", daemon=True)
            for i in range(settings.save_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Queues a job. When the queue is full it waits up to queue_wait_ms for room, and then
        keeps as many leading blocks as there is room for: the rest of a prefix is worth nothing
        without its beginning."""
        with self._change:
            need = min(len(job.blocks), self._capacity)
            if self._room < need and self._settings.queue_wait_ms:
                self._change.wait_for(
                    lambda: self._room >= need or self._closed, self._settings.queue_wait_ms / 1000
                )
            take = 0 if self._closed else min(self._room, len(job.blocks))
            self._figures.count(dropped_objects=len(job.blocks) - take)
            if take == 0:
                return
            self._room -= take
            self._queue.append(job.slice(0, take))
            self._queued[job.request] += 1
            self._change.notify_all()

    def busy(self, request: str) -> bool:
        """Does any job still need the blocks of this request?"""
        with self._change:
            return self._queued[request] > 0 or self._reading[request] > 0

    def forget(self, requests: Iterable[str]) -> None:
        """Their blocks become somebody else's: drops what is queued, and waits for what is being
        read. A put ends by its timeout."""
        names = set(requests)
        with self._change:
            self._forgotten |= names
            kept: Deque[Job] = deque()
            for job in self._queue:
                if job.request in names:
                    self._room += len(job.blocks)
                    self._queued[job.request] -= 1
                    self._figures.count(forgotten_objects=len(job.blocks))
                else:
                    kept.append(job)
            self._queue = kept
            self._change.notify_all()
            self._change.wait_for(lambda: not any(self._reading[name] for name in names))
            self._forgotten -= names
            self._tidy()

    def discard(self) -> None:
        """Drops what is queued, and waits until nothing is put any more."""
        with self._change:
            names = self._queued.keys() | self._reading.keys()
        self.forget(names)
        with self._change:
            self._change.wait_for(lambda: self._room == self._capacity)

    def drain(self) -> None:
        """Until nothing that was submitted reads its blocks any more. A put ends by its timeout."""
        with self._change:
            self._change.wait_for(lambda: not self._queue and not any(self._reading.values()))

    def _tidy(self) -> None:
        for counter in (self._queued, self._reading):
            for name in [name for name, n in counter.items() if n == 0]:
                del counter[name]

    def count_dropped(self, blocks: int) -> None:
        self._figures.count(dropped_objects=blocks)

    def stats(self) -> Dict[str, int]:
        """Objects since the start, by what became of them, and how many are queued or running."""
        with self._change:
            counts = {name: self._figures.total(f"{name}_objects") for name in _OUTCOMES}
            return dict(counts, pending=self._capacity - self._room)

    def _next(self) -> Optional[_Running]:
        with self._change:
            self._change.wait_for(lambda: bool(self._queue) or self._closed)
            if not self._queue:
                return None
            job = self._queue.popleft()
            self._reading[job.request] += 1
            self._queued[job.request] -= 1
            return _Running(job)

    def _run(self) -> None:
        while True:
            running = self._next()
            if running is None:
                return
            job = running.job
            lost = "forgotten"  # what becomes of the blocks that were not tried
            try:
                lost = self._put(running)
            except Exception as error:
                log.error(
                    "saving %d blocks of request %s failed: %s", len(job.blocks), job.request, error
                )
                lost = "failed"
            with self._change:
                rest = len(job.blocks) - running.released
                self._figures.count(**{f"{lost}_objects": rest})
                self._room += rest
                self._left(running)

    def _left(self, running: _Running) -> None:
        """With the lock: the job reads its blocks no more."""
        if running.reads:
            running.reads = False
            self._reading[running.job.request] -= 1
            self._tidy()
        self._change.notify_all()

    def _put(self, running: _Running) -> str:
        """Puts the blocks of a job, some at a time. Returns what those count as that are left."""
        job, at = running.job, 0
        while at < len(job.blocks):
            with self._change:
                if job.request in self._forgotten or self._closed:
                    return "forgotten"
            count = min(
                self._settings.batch_blocks, self._memory.batch(job.layers, len(job.blocks) - at)
            )
            now = job.slice(at, count)
            with self._memory.reading(now.layers, now.blocks, now.mark) as window:
                if self._memory.copies and at + count == len(job.blocks):
                    with self._change:
                        self._left(running)
                statuses = self._pool.put(
                    now.keys,
                    window.addresses,
                    window.sizes,
                    dict(self._options, boundary=now.boundaries, **now.hints),
                )
            at += count
            new = [sum(sizes) for sizes, status in zip(window.sizes, statuses) if status >= 0]
            there = sum(status < 0 and done(status) for status in statuses)
            self._figures.count(
                saved_objects=len(new),
                saved_bytes=sum(new),
                there_already_objects=there,
                failed_objects=len(statuses) - len(new) - there,
            )
            if self.on_stored is not None:
                self.on_stored([key for key, status in zip(now.keys, statuses) if status in _THERE])
            with self._change:
                self._room += count
                running.released += count
                self._change.notify_all()
            if any(status in _NO_ROOM for status in statuses):
                return "dropped"  # those after a gap are worth little
        return "dropped"

    def close(self) -> None:
        """Waits for running puts; what is queued is dropped."""
        with self._change:
            self._closed = True
            self._figures.count(dropped_objects=sum(len(job.blocks) for job in self._queue))
            self._queue.clear()
            self._queued.clear()
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
