"""What libtarn counts, for whoever gathers the metrics of this process.

Engines hand our connectors no place for metrics of their own, but for vLLM. What they have is
prometheus_client, whose default registry (or PROMETHEUS_MULTIPROC_DIR, where there are several
processes) their own endpoint shows. So where it is loaded anyhow, `Publisher` keeps libtarn's
figures there, under the names that tarn_figures_text has. It is never imported for that."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any, Callable, Dict, List, MutableMapping, Optional, Tuple
from urllib.parse import parse_qs, urlsplit
from weakref import WeakKeyDictionary

COUNTS = {
    "gets": "Keys that gets asked for",
    "get_hits": "Keys that gets found",
    "get_misses": "Keys that gets did not find",
    "get_failures": "Keys whose get failed",
    "puts": "Keys that were to be put",
    "put_stored": "Keys that were put",
    "put_existed": "Keys that were there already",
    "put_failures": "Keys whose put failed",
    "lookups": "Keys that were looked up",
    "requests": "Requests sent to the server",
    "round_trips": "Times that a call waited for the server",
    "round_trip_seconds": "Seconds that calls waited for the server",
    "connects": "Connections opened to the server",
    "reconnects": "Connections opened anew after a loss",
    "retries": "Things tried again",
    "timeouts": "Requests that were not answered in time",
    "lease_misses": "Reads thrown away because the lease was over",
    "epoch_misses": "Reads thrown away because the segment had changed",
    "crc_mismatches": "Reads thrown away because of their CRC",
    "unverified": "Gets of values without a CRC",
    "failovers": "Reads that went on with another replica",
    "replica_reports": "Damaged replicas reported to the server",
    "put_replicas_failed": "Replicas that puts went on without",
    "put_restarts": "Puts that started again elsewhere",
    "shm_unreachable": "Segments of this machine that were not mapped",
}
# By transport.
BYTES = {
    "read": "Bytes that came by this transport",
    "written": "Bytes that went out by this transport",
}
# Metrics, and their label `operation` with the names of Client.histogram.
_HISTOGRAMS = {
    "call": (
        "Seconds of whole calls; a batch is one",
        {"get": "get", "put": "put", "lookup": "lookup"},
    ),
    "batch": (
        "Seconds of those calls that had more than one key",
        {"get": "get_batch", "put": "put_batch", "lookup": "lookup_batch"},
    ),
}
_EVERY_S = 1.0
log = logging.getLogger("tarn")


def client_counts(client: Any) -> Dict[str, float]:
    """What libtarn has counted so far: names of COUNTS, and READ_OR_WRITTEN_bytes:TRANSPORT."""
    stats = client.stats()
    counts = {n: stats[n] for n in COUNTS if n in stats}
    counts["round_trip_seconds"] = client.histogram("request")["sum_us"] / 1e6
    for name, value in stats.items():
        transport, _, way = name.rpartition("_bytes_")
        if transport and way in BYTES:
            counts[f"{way}_bytes:{transport}"] = value
    return counts


class Growth:
    """What has come since the last look at counts, of which there is no more than one a second."""

    def __init__(self) -> None:
        self._due, self._before = 0.0, {}  # type: Tuple[float, Dict[str, float]]

    def take(self, counts: Callable[[], Dict[str, float]]) -> Dict[str, float]:
        """Without what is 0. Raises what `counts` does."""
        now = time.monotonic()
        if now < self._due:
            return {}
        after, before = counts(), self._before
        self._due, self._before = now + _EVERY_S, after
        grown = {name: n - before.get(name, 0) for name, n in after.items()}
        return {name: n for name, n in grown.items() if n > 0}


# --- prometheus_client


def cluster_of(url: str, options: Any) -> str:
    """The label that a client has; "": none. The URL wins."""
    said = parse_qs(urlsplit(url).query).get("cluster")
    return said[-1] if said else str(options.get("cluster") or "")


class _Metrics:
    """The metrics of this process, by the prometheus_client that the engine has."""

    def __init__(self, client: Any, bounds: List[float]) -> None:
        self.counters = {
            name: client.Counter(f"tarn_client_{name}", text, ["cluster"])
            for name, text in COUNTS.items()
        }
        self.bytes = {
            way: client.Counter(
                f"tarn_client_transport_{way}_bytes", text, ["cluster", "transport"]
            )
            for way, text in BYTES.items()
        }
        self.histograms = {
            name: client.Histogram(
                f"tarn_client_{name}_duration_seconds",
                text,
                ["cluster", "operation"],
                buckets=bounds,
            )
            for name, (text, _) in _HISTOGRAMS.items()
        }

    # By the module: only tests have several. None: it does not take our names.
    _made: MutableMapping[Any, Optional[_Metrics]] = WeakKeyDictionary()
    _making = threading.Lock()

    @classmethod
    def get(cls, bounds: List[float]) -> Optional[_Metrics]:
        """None: nobody has loaded prometheus_client, or it does not take our names."""
        client = sys.modules.get("prometheus_client")
        if client is None or not hasattr(client, "Histogram"):
            return None
        with cls._making:
            if client not in cls._made:
                try:
                    cls._made[client] = cls(client, bounds)
                except ValueError:  # somebody else has metrics of these names
                    cls._made[client] = None
            return cls._made[client]


def _observe(histogram: Any, grown: List[int], bounds: List[float], seconds: float) -> None:
    """So many more in each bucket, the last of which has no bound. prometheus_client has a call
    for one value only, which none of these is: so where it is as its releases are, its buckets
    are added to, and else each counts as its bound."""
    sums, buckets = getattr(histogram, "_sum", None), getattr(histogram, "_buckets", ())
    if sums is not None and len(buckets) == len(grown):
        for bucket, n in zip(buckets, grown):
            bucket.inc(n)
        sums.inc(seconds)
        return
    for bound, n in zip([*bounds, 2 * bounds[-1]], grown):
        for _ in range(n):
            histogram.observe(bound)


class Publisher:
    """Keeps a client's figures where the engine's endpoint finds them. Any thread; nobody waits."""

    def __init__(self, cluster: str) -> None:
        self._cluster, self._lock = cluster, threading.Lock()
        self._client: Any = None
        self._growth = Growth()
        self._hists: Dict[str, Dict[str, Any]] = {}
        self._told = False

    def look(self, client: Any) -> None:
        """Adds what has come, once a second at most. Raises nothing: figures are no reason to stop
        an engine."""
        if "prometheus_client" not in sys.modules or not self._lock.acquire(blocking=False):
            return
        try:
            if client is not self._client:  # another one counts from 0
                self._client, self._growth, self._hists = client, Growth(), {}
            self._add(client)
        except Exception as e:
            if not self._told:
                log.warning("no figures of libtarn for prometheus_client: %s", e)
            self._told = True
        finally:
            self._lock.release()

    def _add(self, client: Any) -> None:
        grown = self._growth.take(lambda: client_counts(client))
        if not grown:
            return
        bounds = [bound / 1e6 for bound, _ in client.histogram("get")["buckets"]]
        metrics = _Metrics.get(bounds)
        if metrics is None:
            return
        for name, n in grown.items():
            way, _, transport = name.partition("_bytes:")
            if transport:
                metrics.bytes[way].labels(self._cluster, transport).inc(n)
            else:
                metrics.counters[name].labels(self._cluster).inc(n)
        for metric, (_, operations) in _HISTOGRAMS.items():
            for operation, kind in operations.items():
                self._add_histogram(
                    metrics.histograms[metric].labels(self._cluster, operation),
                    kind,
                    client.histogram(kind),
                    bounds,
                )

    def _add_histogram(self, to: Any, kind: str, now: Dict[str, Any], bounds: List[float]) -> None:
        before, self._hists[kind] = self._hists.get(kind), now
        if before is not None and before["count"] == now["count"]:
            return
        upto = [n for _, n in now["buckets"]] + [now["count"]]
        was = [n for _, n in before["buckets"]] + [before["count"]] if before else [0] * len(upto)
        more = [a - b for a, b in zip(upto, was)]
        each = [more[0]] + [max(b - a, 0) for a, b in zip(more, more[1:])]
        _observe(to, each, bounds, (now["sum_us"] - (before["sum_us"] if before else 0)) / 1e6)
