"""What the connector counts, as vLLM wants it: for its log and for Prometheus.

    scheduler, workers   Figures: counts and times since vLLM last asked
        -> take() -> TarnStats.data, added up over the workers and the scheduler by vLLM
        -> reduce(): a line of vLLM's log        -> TarnPrometheus.observe(): vllm:tarn_*

Each fact is counted in one place, where it happens: tokens and look-ups in the scheduler's process,
objects and bytes in the workers'. The tables below are all there is; docs/engines/VLLM.md lists
them."""

import math
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

from .._figures import BYTES, COUNTS as CLIENT_COUNTS, Growth
from ..errors import Error
from .base import PromBase, StatsBase

__all__ = ["COUNTS", "Figures", "TIMES", "TarnPrometheus", "TarnStats"]

COUNTS = {
    "looked_up_tokens": "Tokens of prompts, beyond what vLLM had, that were looked up",
    "hit_tokens": "Tokens of these that the pool had",
    "left_tokens": "Tokens of hits that were left, because computing them is quicker",
    "loaded_objects": "Objects read from the pool",
    "loaded_bytes": "Bytes read from the pool",
    "missed_objects": "Objects that a load did not find, or not whole",
    "saved_objects": "Objects put into the pool",
    "saved_bytes": "Bytes put into the pool",
    "there_already_objects": "Objects that were not put because they were there",
    "failed_objects": "Objects whose put failed",
    "dropped_objects": "Objects that were not put for lack of room: in the queue, in the pool",
    "forgotten_objects": "Objects that were not put because their request was preempted",
    "failed_calls": "Calls to the pool that failed as a whole",
    "skipped_calls": "Calls that were misses at once, because the pool is left alone",
    "pool_lost": "How often the pool stopped answering",
    "pool_back": "How often it answered again",
}
TIMES = {
    "lookup": "Seconds of a look-up, for which the scheduler waits",
    "load": "Seconds of a call that reads objects",
    "save": "Seconds of a call that puts objects",
}
# Of libtarn's counts, in TarnStats.data "client_NAME", those that a line of the log has, where they
# are not 0.
_TROUBLES = (
    "get_failures", "put_failures", "reconnects", "retries", "timeouts", "lease_misses",
    "epoch_misses", "crc_mismatches", "failovers", "put_replicas_failed", "put_restarts",
)  # fmt: skip
_AWAY = "Processes of the engine for which the pool is away"
_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip
# Releases that never ask for stats do not make them grow.
_MAX_TIMES = 4096


class Figures:
    """Counts of one process of the engine. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: "Counter[str]" = Counter()
        self._taken: "Counter[str]" = Counter()
        self._times: Dict[str, List[float]] = {}
        self._source: Optional[Callable[[], Dict[str, float]]] = None
        self._growth = Growth()

    def follow(self, source: Callable[[], Dict[str, float]]) -> None:
        """Counts that somebody else keeps, which only grow: they are "client_NAME" here."""
        with self._lock:
            self._source, self._growth = source, Growth()

    def count(self, **counts: int) -> None:
        """Names of COUNTS."""
        with self._lock:
            for name, n in counts.items():
                self._totals[name] += n

    def total(self, name: str) -> int:
        """Since the start."""
        return self._totals[name]

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """A name of TIMES. What raises is not timed."""
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        with self._lock:
            times = self._times.setdefault(name, [])
            if len(times) < _MAX_TIMES:
                times.append(took)

    def take(self) -> Optional[Dict[str, Any]]:
        """What came since the last call; None: nothing."""
        with self._lock:
            data: Dict[str, Any] = dict(self._totals - self._taken)
            data.update(self._times)
            self._taken, self._times = Counter(self._totals), {}
            data.update(self._followed())
        return data or None

    def _followed(self) -> Dict[str, float]:
        """What came there."""
        if self._source is None:
            return {}
        try:
            grown = self._growth.take(self._source)
        except Error:  # it is closed
            self._source = None
            return {}
        return {f"client_{name}": n for name, n in grown.items()}


def _at(ordered: List[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class TarnStats(StatsBase):  # type: ignore[misc]
    """data: names of COUNTS, and client_NAME of libtarn's, with numbers, names of TIMES with lists
    of seconds; what is 0 is left out. Plain, because vLLM sends it between processes."""

    def reset(self) -> None:
        self.data: Dict[str, Any] = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: Any) -> "TarnStats":
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, [] if name in TIMES else 0) + value
        return self

    def reduce(self) -> Dict[str, Any]:
        """A few numbers for vLLM's log."""
        line: Dict[str, Any] = {n: self.data[n] for n in COUNTS if n in self.data}
        troubles = [f"client_{n}" for n in _TROUBLES]
        line.update({n: self.data[n] for n in troubles if n in self.data})
        for name in TIMES:
            ordered = sorted(self.data.get(name, ()))
            if ordered:
                line[f"{name}s"] = len(ordered)
                line[f"{name}_p50_ms"] = round(_at(ordered, 0.5) * 1e3, 3)
                line[f"{name}_p95_ms"] = round(_at(ordered, 0.95) * 1e3, 3)
        return line


class TarnPrometheus(PromBase):  # type: ignore[misc]
    """The same as metrics of vLLM's own endpoint: counters, histograms, and one gauge."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)

        def each(metric: Any) -> Dict[int, Any]:
            return {i: metric.labels(*values) for i, values in per_engine_labelvalues.items()}

        self._counters = {
            name: each(
                self._counter_cls(
                    name=f"vllm:tarn_{name}", documentation=text, labelnames=labelnames
                )
            )
            for name, text in COUNTS.items()
        }
        self._histograms = {
            name: each(
                self._histogram_cls(
                    name=f"vllm:tarn_{name}_seconds",
                    documentation=text,
                    buckets=_SECONDS,
                    labelnames=labelnames,
                )
            )
            for name, text in TIMES.items()
        }
        self._counters.update(
            {
                f"client_{name}": each(
                    self._counter_cls(
                        name=f"vllm:tarn_client_{name}", documentation=text, labelnames=labelnames
                    )
                )
                for name, text in CLIENT_COUNTS.items()
            }
        )
        self._values = per_engine_labelvalues
        self._bytes = {
            f"client_{way}_bytes": self._counter_cls(
                name=f"vllm:tarn_client_{way}_bytes",
                documentation=text,
                labelnames=[*labelnames, "transport"],
            )
            for way, text in BYTES.items()
        }
        # Stats of one engine may come to several API servers: each has a part of the sum.
        self._away = each(
            self._gauge_cls(
                name="vllm:tarn_pool_away",
                documentation=_AWAY,
                labelnames=labelnames,
                multiprocess_mode="sum",
            )
        )
        self._lost = dict.fromkeys(per_engine_labelvalues, 0)

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        data = transfer_stats_data
        for name, counters in self._counters.items():
            if data.get(name):
                counters[engine_idx].inc(data[name])
        for name, histograms in self._histograms.items():
            for seconds in data.get(name, ()):
                histograms[engine_idx].observe(seconds)
        for name, value in data.items():
            way, _, transport = name.partition(":")
            if transport and way in self._bytes:
                values = self._values[engine_idx]
                self._bytes[way].labels(*values, transport).inc(value)
        changed = data.get("pool_lost", 0) - data.get("pool_back", 0)
        if changed:
            self._lost[engine_idx] += changed
            self._away[engine_idx].set(self._lost[engine_idx])
