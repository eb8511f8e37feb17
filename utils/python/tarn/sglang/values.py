"""Whole values at tensors and addresses: SGLang's first interface, which it still uses where pages
cannot be moved in place."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Sequence, Tuple, Union

from .._link import Link, Settings
from ..client import Client
from ..errors import Status
from ..memory import Pinned, pin
from .base import HiCacheStorage, StorageMetrics

_MISS = int(Status.ENOTFOUND)
_SAMPLES = 4096  # figures kept between two calls of get_stats


class ValueStore(HiCacheStorage):  # type: ignore[misc]
    """Values under names, and the figures of what was moved."""

    _link: Link

    def _set_up(self, chosen: Settings, link: Link, metrics: bool) -> None:
        self._gets, self._puts = chosen.get_options(), chosen.put_options()
        self._link, self._metrics = link, metrics
        self._read: Deque[Tuple[int, float]] = deque(maxlen=_SAMPLES)
        self._written: Deque[Tuple[int, float]] = deque(maxlen=_SAMPLES)

    def _name(self, key: str) -> str:
        """The pool's key of SGLang's."""
        raise NotImplementedError

    def _load(
        self, client: Client, names: List[str], addresses: List[Any], sizes: List[Any]
    ) -> List[bool]:
        """Which of the values came whole."""
        started = time.perf_counter()
        got = client.get_into_many(names, addresses, sizes, **self._gets)
        totals = [n if isinstance(n, int) else sum(n) for n in sizes]
        there = self._link.whole("get", names, got, totals, _MISS)
        self._count(self._read, there, totals, started)
        return there

    def _store(
        self,
        client: Client,
        names: List[str],
        addresses: List[Any],
        sizes: List[Any],
        together: Optional[List[str]] = None,
        behind: Sequence[str] = (),
    ) -> List[bool]:
        """Which of the values are stored, by us or by others. `together`: the boundary of each,
        where it matters. `behind`: all that come before these in their prompt, which the pool
        learns from a look-up: what is put at its first miss comes behind what it has found."""
        started = time.perf_counter()
        there = client.prefix_length([*behind, *names]) - len(behind) if behind else 0
        cut = min(max(there, 0), len(names))
        statuses: List[int] = []
        for part in (slice(0, cut), slice(cut, None)):
            if names[part]:
                statuses += self._link.distrust.put(
                    client.put_from_many,
                    names[part],
                    addresses[part],
                    sizes[part],
                    boundary=together[part] if together else (),
                    **self._puts,
                )
        done = self._link.stored("put", statuses)
        totals = [n if isinstance(n, int) else sum(n) for n in sizes]
        self._count(self._written, done, totals, started)
        return done

    def _count(
        self,
        where: Deque[Tuple[int, float]],
        flags: Sequence[bool],
        totals: Sequence[int],
        started: float,
    ) -> None:
        if self._metrics and any(flags):
            seconds = max(time.perf_counter() - started, 1e-9)
            size = sum(n for n, flag in zip(totals, flags) if flag)
            where.append((sum(flags), size / seconds / (1 << 30)))

    @staticmethod
    def _pins(
        targets: Sequence[Any], sizes: Optional[Sequence[Any]], writable: bool
    ) -> List[Pinned]:
        if sizes is not None:
            return [
                pin((t, s)) if isinstance(t, int) else pin(t, writable)
                for t, s in zip(targets, sizes)
            ]
        return [pin(t, writable) for t in targets]

    def _move(
        self,
        what: str,
        work: Callable[..., List[bool]],
        keys: Sequence[str],
        targets: Sequence[Any],
        sizes: Optional[Sequence[Any]],
    ) -> List[bool]:
        def moved(client: Client) -> List[bool]:
            pins = self._pins(targets, sizes, what == "get")
            names = [self._name(k) for k in keys]
            return work(client, names, [p.address for p in pins], [p.size for p in pins])

        return self._link.call(what, moved, [False] * len(keys))

    def batch_get(
        self, keys: List[str], target_locations: Any = None, target_sizes: Any = None
    ) -> Any:
        """Reads whole values. Into tensors or buffers: a list with the target, or None for a miss.
        Into addresses (with sizes): how many leading ones arrived. Without targets: new tensors of
        bytes (`bytes` where torch is not there)."""
        if target_locations is None:
            return [_as_tensor(v) for v in self._fetch([self._name(k) for k in keys])]
        there = self._move("get", self._load, keys, target_locations, target_sizes)
        if any(isinstance(t, int) for t in target_locations):
            return there.index(False) if False in there else len(there)
        return [target if found else None for target, found in zip(target_locations, there)]

    def _fetch(self, names: List[str]) -> List[Optional[bytes]]:
        nothing: List[Optional[bytes]] = [None] * len(names)
        return self._link.call("get", lambda c: c.get_many(names, **self._gets), nothing)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """One value: the target, or None; of an address whether it arrived."""
        if target_location is None:
            return _as_tensor(self._fetch([self._name(key)])[0])
        sizes = None if target_sizes is None else [target_sizes]
        found = self._move("get", self._load, [key], [target_location], sizes)[0]
        return found if isinstance(target_location, int) else (target_location if found else None)

    def batch_set(
        self,
        keys: List[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores tensors (buffers), or memory at addresses; True: all are stored, by us or by
        others."""
        given = values if values is not None else target_locations
        if given is None or len(given) != len(keys):
            self._link.complain("set", "as many values, or addresses and sizes, as keys are needed")
            return False
        return all(self._move("put", self._store, keys, given, target_sizes))

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """One value; True: stored, or there already."""
        given = value if value is not None else target_location
        return self.batch_set(
            [key], [given], target_sizes=None if target_sizes is None else [target_sizes]
        )

    def exists(self, key: str) -> bool:
        """Whether a page (with split heads: its first part) is there."""
        return self._link.call("lookup", lambda c: c.exists(self._name(key)), False)

    def get_stats(self) -> Any:
        """Pages and GB/s of the batches since the last call, for SGLang's metrics; None where they
        are not enabled."""
        if not self._metrics:
            return None
        stats = StorageMetrics()
        for samples, pages, rates in (
            (self._read, stats.prefetch_pgs, stats.prefetch_bandwidth),
            (self._written, stats.backup_pgs, stats.backup_bandwidth),
        ):
            for _ in range(len(samples)):
                n, rate = samples.popleft()
                pages.append(n)
                rates.append(rate)
        return stats


def _as_tensor(value: Optional[bytes]) -> Union[Any, bytes, None]:
    torch = sys.modules.get("torch")
    if value is None or torch is None:
        return value
    return (
        torch.frombuffer(bytearray(value), dtype=torch.uint8)
        if value
        else torch.empty(0, dtype=torch.uint8)
    )
