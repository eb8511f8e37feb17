"""What the engine counts, and /metrics in vLLM's names (version 1 of its engine)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from typing import Any, Dict, Iterable, List, Tuple

SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to its first token.",
    "inter_token_latency_seconds": "Between two tokens of a request.",
    "e2e_request_latency_seconds": "From a request's arrival to its end.",
}
COUNTERS = {
    "prompt_tokens": "Tokens of prompts that were computed or found.",
    "generation_tokens": "Tokens of answers.",
    "prefix_cache_queries": "Tokens of prompts that were looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens of these that it had.",
    "external_prefix_cache_queries": "Tokens of prompts that were looked up in the pool.",
    "external_prefix_cache_hits": "Tokens of these that it had.",
    "num_preemptions": "Requests that lost their blocks to others.",
}
REASONS = ("stop", "length", "abort")


class Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def lines(self, name: str, labels: str) -> Iterable[str]:
        total = 0
        for edge, n in zip([*map(repr, SECONDS), "+Inf"], self.counts):
            total += n
            yield f'{name}_bucket{{{labels},le="{edge}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self.sum!r}"
        yield f"{name}_count{{{labels}}} {total}"


class Figures:
    """The core counts, the HTTP thread reads."""

    def __init__(self, model: str, blocks: int, block: int) -> None:
        value = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = f'model_name="{value}",engine="0"'
        self._blocks, self._block = blocks, block
        self._lock = threading.Lock()
        self._counts: "Counter[str]" = Counter()
        self._reasons: "Counter[str]" = Counter()
        self._histograms = {name: Histogram() for name in HISTOGRAMS}
        self._state = (0, 0, 0)

    def state(self, running: int, waiting: int, used: int) -> None:
        self._state = (running, waiting, used)

    def looked_up(self, request: Any, found: int, external: int) -> None:
        with self._lock:
            self._counts["prefix_cache_queries"] += request.num_tokens
            self._counts["prefix_cache_hits"] += found
            self._counts["external_prefix_cache_queries"] += request.num_tokens - found
            self._counts["external_prefix_cache_hits"] += external

    def preempted(self) -> None:
        with self._lock:
            self._counts["num_preemptions"] += 1

    def token(self, request: Any, now: float) -> None:
        with self._lock:
            self._counts["generation_tokens"] += 1
            if not request.last_token:
                self._counts["prompt_tokens"] += request.num_prompt_tokens
                first = now - request.arrived
                self._histograms["time_to_first_token_seconds"].add(first)
            else:
                self._histograms["inter_token_latency_seconds"].add(now - request.last_token)
        request.last_token = now

    def finished(self, request: Any, reason: str, now: float) -> None:
        with self._lock:
            self._reasons[reason] += 1
            self._histograms["e2e_request_latency_seconds"].add(now - request.arrived)

    def text(self, pool: Dict[str, int]) -> str:
        """pool: what the connector has counted."""
        labels = self._labels
        running, waiting, used = self._state
        out: List[str] = []

        def say(name: str, kind: str, text: str, lines: Iterable[Tuple[str, Any]]) -> None:
            out.append(f"# HELP vllm:{name} {text}")
            out.append(f"# TYPE vllm:{name} {kind}")
            out.extend(f"vllm:{what} {value}" for what, value in lines)

        gauges: Dict[str, Tuple[str, float]] = {
            "num_requests_running": ("Requests in the batch.", running),
            "num_requests_waiting": ("Requests that wait.", waiting),
            "kv_cache_usage_perc": ("Share of KV blocks in use.", used / self._blocks),
        }
        for name, (text, value) in gauges.items():
            say(name, "gauge", text, [(f"{name}{{{labels}}}", float(value))])
        name = "cache_config_info"
        config = f'block_size="{self._block}",engine="0",num_gpu_blocks="{self._blocks}"'
        say(name, "gauge", "Of the KV cache.", [(f"{name}{{{config}}}", 1.0)])
        with self._lock:
            for name, text in COUNTERS.items():
                value = float(self._counts[name])
                say(name, "counter", text, [(f"{name}_total{{{labels}}}", value)])
            ends = [
                (f'request_success_total{{{labels},finished_reason="{r}"}}', self._reasons[r])
                for r in REASONS
            ]
            say("request_success", "counter", "Requests that are over.", ends)
            for name, value in pool.items():
                lines = [(f"tarn_{name}_total{{{labels}}}", float(value))]
                say(f"tarn_{name}", "counter", "As docs/engines/VLLM.md says.", lines)
            for name, text in HISTOGRAMS.items():
                out.append(f"# HELP vllm:{name} {text}")
                out.append(f"# TYPE vllm:{name} histogram")
                out.extend(self._histograms[name].lines(f"vllm:{name}", labels))
        return "\n".join(out) + "\n"
