"""Figures of a gateway for Prometheus, at /metrics (docs/GATEWAY.md has the list)."""

from __future__ import annotations

from typing import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from .tokens import Figures

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

TTFT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
TBT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10)
TIERS = ("device", "host", "disk", "pool")


class _Prompts:
    """What is counted where prompts are read."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[CounterMetricFamily]:
        f = self._figures
        for name, text, value in (
            ("prompts_read", "Prompts of requests", f.prompts),
            ("prompts_cached", "Prompts whose tokens were known from before", f.cached),
            ("prompts_estimated", "Prompts that are routed by their length alone", f.estimated),
            ("tokenizer_asked", "Questions to engines for tokens", f.asked),
            ("tokenizer_failed", "... without a good answer", f.failed),
        ):
            yield CounterMetricFamily(f"tarn_gateway_{name}", text, value)


class Metrics:
    """Each gateway has a registry of its own, so that several may live in a process."""

    def __init__(self, prompts: Figures) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Prompts(prompts))  # type: ignore[arg-type]
        self.requests = self._counter("requests", "Requests that are over", "path", "outcome")
        self.routed = self._counter("routed", "Places that were given", "by")
        self.retries = self._counter("retries", "Requests sent to another engine, from the start")
        self.resumes = self._counter("resumes", "Streams that another engine went on with")
        self.failures = self._counter("engine_failures", "Engines that failed a request")
        self.prompt = self._counter("prompt_tokens", "Tokens of prompts")
        self.output = self._counter("output_tokens", "Tokens of answers")
        self.hits = self._counter(
            "hit_tokens", "Tokens of prompts that were there, by tier", "tier"
        )
        self.in_flight = Gauge(
            "tarn_gateway_in_flight", "Requests under way", registry=self.registry
        )
        self.alone = Gauge(
            "tarn_gateway_alone", "1: it routes without the Conductor", registry=self.registry
        )
        self.ttft = self._histogram("ttft_seconds", "From a request to its first token", TTFT_S)
        self.tbt = self._histogram("tbt_seconds", "Between two pieces of an answer", TBT_S)
        for tier in TIERS:
            self.hits.labels(tier)
        for by in ("conductor", "alone"):
            self.routed.labels(by)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tarn_gateway_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: "tuple[float, ...]") -> Histogram:
        return Histogram(f"tarn_gateway_{name}", text, buckets=buckets, registry=self.registry)

    def hit(self, tiers: "tuple[int, int, int]", pool: int) -> None:
        """Each tier of a place counts all faster ones; here each has its own."""
        before = 0
        for name, tokens in zip(TIERS, (*tiers, pool)):
            self.hits.labels(name).inc(max(0, tokens - before))
            before = max(before, tokens)

    def text(self) -> bytes:
        return generate_latest(self.registry)
