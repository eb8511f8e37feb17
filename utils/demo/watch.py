"""The figures of a run: what the load has counted, and what engines and gateways tell at /metrics.

    watch = Watch("undisturbed", load, cluster)
    await watch.look()
    watch.figures"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Deque, Dict, Iterable, Sequence, Tuple

import aiohttp

from cluster import Cluster
from load import Load
from show import Figures

HITS = "vllm:prefix_cache_hits_total"
LOOKED_UP = "vllm:prefix_cache_queries_total"
POOL_HITS = "vllm:external_prefix_cache_hits_total"
ENGINES_TELL: Sequence[str] = (HITS, LOOKED_UP, POOL_HITS)
RETRIES, RESUMES = "tarn_gateway_retries_total", "tarn_gateway_resumes_total"
GATEWAYS_TELL: Sequence[str] = (RETRIES, RESUMES)
SPEED_OVER_S = 5.0


class Sums:
    """Of counters, each of which begins again at 0 when its process does."""

    def __init__(self) -> None:
        self._last: Dict[Tuple[str, str], float] = {}
        self._sums: Dict[str, float] = {}

    def take(self, where: str, found: Dict[str, float]) -> None:
        """What is found there for the first time was there before."""
        for name, value in found.items():
            last = self._last.get((where, name), value)
            grown = value - last if value >= last else value
            self._sums[name] = self._sums.get(name, 0.0) + grown
            self._last[where, name] = value

    def get(self, name: str) -> float:
        return self._sums.get(name, 0.0)


def counters(text: str, names: Iterable[str]) -> Dict[str, float]:
    """Of a page of /metrics; those with several labels are added up."""
    wanted = dict.fromkeys(names, 0.0)
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in wanted:
            wanted[name] += float(line.rsplit(" ", 1)[1])
    return wanted


class Watch:
    """Hits are those of engines that compute prompts: those that answer load all of it."""

    def __init__(self, name: str, load: Load, cluster: Cluster) -> None:
        self.load, self.cluster = load, cluster
        self.figures = Figures(name, load.turns)
        self._sums = Sums()
        self._tokens: Deque[Tuple[float, int]] = deque()

    async def look(self) -> None:
        engines = [url for name, url in self.cluster.engines.items() if name.startswith("p")]
        asked = dict.fromkeys(engines, ENGINES_TELL)
        asked.update(dict.fromkeys(self.cluster.gateways.values(), GATEWAYS_TELL))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            await asyncio.gather(*(self._take(http, url, names) for url, names in asked.items()))
        self._count()

    async def _take(self, http: aiohttp.ClientSession, url: str, names: Sequence[str]) -> None:
        try:
            async with http.get(url + "/metrics") as reply:
                self._sums.take(url, counters(await reply.text(), names))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            pass  # it is killed; what it told last counts

    def _count(self) -> None:
        tally, sums, f = self.load.tally, self._sums, self.figures
        f.done, f.under_way, f.lost = tally.done, tally.under_way, tally.lost
        f.different = None if self.load.before is None else tally.different
        f.waited = tally.waited
        f.moved, f.resumed = int(sums.get(RETRIES)), int(sums.get(RESUMES))
        looked_up = sums.get(LOOKED_UP) or 1.0
        f.hits = (sums.get(HITS) / looked_up, sums.get(POOL_HITS) / looked_up)
        f.first_ms = (tally.first_ms(0.5), tally.first_ms(0.9))
        f.tokens_s = self._speed(tally.tokens)

    def _speed(self, tokens: int) -> float:
        """Over the last seconds; at the end, over all of the run."""
        now = time.monotonic()
        if self.load.ended:
            return tokens / max(self.load.ended - self.load.began, 0.001)
        self._tokens.append((now, tokens))
        while len(self._tokens) > 1 and now - self._tokens[0][0] > SPEED_OVER_S:
            self._tokens.popleft()
        before, had = self._tokens[0]
        return (tokens - had) / (now - before) if now > before else 0.0
