"""Places requests without the Conductor, by what one gateway knows itself: least work, and the
prefixes that it has sent somewhere.

It does not know what other gateways send, nor what lies in engines' caches or in the pool, nor
tenants' shares and times to be kept (TENANT, PRIORITY, TTFT, TBT): nobody is refused for those.
That is why several gateways have fewer hits alone than with one Conductor
(docs/BENCHMARKS.md, "Gateways")."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from .health import Health
from .place import Ask, Engine, Nobody, Place
from .prefixes import Prefixes, chain_of
from .table import Rank

__all__ = ["AloneRouter", "engine_of"]

LOG = logging.getLogger("tarn.gateway")
# A request in flight counts as so many tokens of a prompt: it takes its part of each step.
IN_FLIGHT_TOKENS = 128
# An engine may have so much more than its share, and so many requests more: then it gets those
# of others' prefixes only (consistent hashing with bounded loads, Mirrokni et al., 2018).
OVER_SHARE, OVER_MOST = 1.25, 4
OUTPUT_TOKENS = 128  # of an answer, where nobody says
# As the Conductor has it: from the second failure in a row on.
REST_S, REST_MOST_S = 1.0, 60.0
LOOK_S = 1.0
REMEMBERED = 65536  # requests under way

Key = Tuple[str, int]


def key_of(engine: Engine) -> Key:
    return engine.id, engine.rank


def engine_of(text: str) -> Rank:
    """[ID=]URL[,role=R][,model=M][,block=N][,rank=N]. ValueError says what is wrong. Without model
    the engine is asked for it."""
    first, *rest = text.split(",")
    id, given, url = first.rpartition("=") if "=" in first.split("://")[0] else ("", "", first)
    scheme, _, where = url.partition("://")
    if scheme not in ("http", "https") or not where:
        raise ValueError(f"--engine {text}: not an http:// or https:// URL")
    words = dict(word.partition("=")[::2] for word in rest)
    unknown = set(words) - {"role", "model", "block", "rank"}
    if unknown:
        raise ValueError(f"--engine {text}: {', '.join(sorted(unknown))}?")
    role = words.get("role", "both")
    if role not in ("both", "prefill", "decode"):
        raise ValueError(f"--engine {text}: role is both, prefill or decode")
    engine = Engine(
        id=id or where.rstrip("/").replace(":", "-").replace("/", "-"),
        url=url.rstrip("/"),
        rank=int(words.get("rank", 0)),
        role=role,
        model=words.get("model", ""),
        block=int(words.get("block", 16)),
    )
    return Rank(engine, lora="*")


@dataclass
class Work:
    """One engine's. prefill: tokens that are still to be computed there. context: tokens of those
    that are decoded there."""

    prefill: int = 0
    context: int = 0
    requests: int = 0
    placed: int = 0  # ever
    failures: int = 0  # in a row
    rests_until: float = 0.0


@dataclass
class Sent:
    """A request under way. new: tokens to compute; 0: its first token is there."""

    prefill: Key
    answers: Key
    new: int
    context: int
    begun: bool = False


class AloneRouter:
    """named: engines of the command line. ca, key: as Health has them."""

    def __init__(self, named: Sequence[Rank] = (), ca: str = "", key: str = "") -> None:
        self._named = list(named)
        self.listed: Callable[[], Sequence[Rank]] = list  # those that the Conductor named last
        self._prefixes = Prefixes()
        self._work: Dict[Key, Work] = {}
        self._sent: Dict[str, Sent] = {}
        self.health = Health(self._urls, self._changed, ca, key)

    async def start(self) -> None:
        """It looks at engines while it is active."""
        self._loop = asyncio.get_running_loop()
        self._active = asyncio.Event()
        await self.health.start()
        self._looker = self._loop.create_task(self._look_always())

    async def close(self) -> None:
        self._looker.cancel()
        await asyncio.gather(self._looker, return_exceptions=True)
        await self.health.close()

    @property
    def active(self) -> bool:
        return self._active.is_set()

    @active.setter
    def active(self, active: bool) -> None:
        if active:
            self._active.set()
        else:
            self._active.clear()
            self.health.forget()

    async def _look_always(self) -> None:
        while True:
            await self._active.wait()
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """At all engines, once."""
        await self.health.look()
        await self._ask_models()
        self._forget()

    def _forget(self) -> None:
        """Engines that are gone."""
        there = {key_of(e) for e in self.engines()}
        self._prefixes.keep(there)
        for key in [k for k, w in self._work.items() if k not in there and not w.requests]:
            del self._work[key]

    # --- engines

    def ranks(self) -> List[Rank]:
        """The Conductor's word counts before the command line's."""
        found = {key_of(r.engine): r for r in self._named}
        found.update({key_of(r.engine): r for r in self.listed()})
        return list(found.values())

    def engines(self) -> List[Engine]:
        return [r.engine for r in self.ranks()]

    def down(self) -> List[str]:
        """Engines that do not answer, or rest after failures."""
        now = self._loop.time()
        return [
            e.id
            for e in self.engines()
            if self.health.down(e.url) or self._at(key_of(e)).rests_until > now
        ]

    def _urls(self) -> List[str]:
        return [r.engine.url for r in self.ranks()]

    def _changed(self, url: str) -> None:
        why = self.health.down(url)
        LOG.warning("the engine at %s %s", url, f"is down: {why}" if why else "is back")
        if why:  # its cache goes with it
            for engine in self.engines():
                if engine.url == url:
                    self._prefixes.forget(key_of(engine))

    async def _ask_models(self) -> None:
        for i, rank in enumerate(self._named):
            if not rank.engine.model:
                models = await self.health.models(rank.engine.url)
                if models:
                    self._named[i] = replace(rank, engine=replace(rank.engine, model=models[0]))

    # --- requests

    async def route(self, ask: Ask) -> Place:
        """The same request again is placed anew, whatever has come of it: who goes on with an
        answer computes its prompt, too."""
        self._over(ask.request)
        able = self._able(ask)
        chain = chain_of(ask, able[0].engine.block)
        prefill, new = self._least_work(ask, [r for r in able if r.engine.role != "decode"], chain)
        decode = None
        if prefill.role == "prefill":
            decode = min(
                (r.engine for r in able if r.engine.role == "decode"), key=self._decode_cost
            )
        place = Place(prefill, decode, "alone", hit=(ask.length - new,) * 3)
        self.took(ask, place, chain)
        return place

    def _able(self, ask: Ask) -> List[Rank]:
        """All that may have a part in it, with at least one that can answer. Nobody."""
        serve = [r for r in self.ranks() if r.serves(ask.model, ask.lora)]
        if not serve:
            unasked = [r.engine.id for r in self._named if not r.engine.model]
            text = f"no engine is known that serves model {ask.model!r}"
            text += f"; {', '.join(unasked)} did not say yet what it serves" if unasked else ""
            raise Nobody(text, known=bool(unasked))
        may = [r for r in serve if r.may(ask.tenant) and r.engine.id not in ask.exclude]
        up = [r for r in may if not self.health.down(r.engine.url)]
        now = self._loop.time()
        rested = [r for r in up if self._at(key_of(r.engine)).rests_until <= now]
        for ranks in rested, up:  # rather one that has failed than none
            roles = {r.engine.role for r in ranks}
            if "both" in roles or {"prefill", "decode"} <= roles:
                return [r for r in ranks if r.engine.role != "prefill" or "decode" in roles]
        raise Nobody(
            f"none of the {len(serve)} ranks that serve model {ask.model!r} may take it: "
            f"{len(serve) - len(may)} drain, are excluded or another tenant's, "
            f"{len(may) - len(up)} are down",
            known=True,
        )

    def _least_work(self, ask: Ask, ranks: Sequence[Rank], chain: List[int]) -> Tuple[Engine, int]:
        """The engine where the prompt is computed soonest, and how many tokens of it."""
        works = [self._at(key_of(r.engine)) for r in ranks]
        share = (sum(w.requests for w in works) + 1) / len(works)
        best: Tuple[Tuple[int, int, int], Engine, int]
        best = ((1 << 62, 0, 0), ranks[0].engine, ask.length)
        for rank, work in zip(ranks, works):
            if work.requests >= OVER_SHARE * share + OVER_MOST:
                continue  # not all of them: the least loaded has its share at most
            had = min(self._prefixes.longest(key_of(rank.engine), chain), ask.length - 1)
            new = ask.length - max(had, 0)
            cost = work.prefill + new + IN_FLIGHT_TOKENS * work.requests
            best = min(best, ((cost, work.requests, work.placed), rank.engine, new), key=first_of)
        return best[1], best[2]

    def _decode_cost(self, engine: Engine) -> Tuple[int, int]:
        work = self._at(key_of(engine))
        return work.context, work.placed

    def took(self, ask: Ask, place: Place, chain: Optional[List[int]] = None) -> None:
        """A request was placed, by whomever: the Conductor's are noted, too, so that what is under
        way and which prefixes are where is known when it goes away."""
        self._over(ask.request)
        if len(self._sent) >= REMEMBERED:
            self._over(next(iter(self._sent)))
        prefill, answers = key_of(place.prefill), key_of(place.answers)
        if chain is None:
            chain = chain_of(ask, place.prefill.block)
        self._prefixes.add(prefill, chain)
        new = max(ask.length - max(*place.hit, place.pool), 1)
        sent = Sent(prefill, answers, new, ask.length + (ask.output or OUTPUT_TOKENS))
        self._sent[ask.request] = sent
        self._at(prefill).prefill += new
        self._at(prefill).requests += 1
        self._at(prefill).placed += 1
        self._at(answers).context += sent.context
        self._at(answers).placed += answers != prefill

    async def first(self, request: str) -> None:
        sent = self._sent.get(request)
        if sent is None or sent.begun:
            return
        sent.begun = True
        self._at(sent.prefill).failures = 0
        self._at(sent.prefill).prefill -= sent.new
        self._at(sent.prefill).requests -= 1
        self._at(sent.answers).requests += 1

    async def done(
        self, request: str, output: int, failed: bool = False, decode: bool = False
    ) -> None:
        sent = self._over(request)
        if sent is None:
            return
        work = self._at(sent.answers if sent.begun or decode else sent.prefill)
        now = self._loop.time()
        if not failed:
            work.failures = 0 if sent.begun else work.failures
        elif work.rests_until <= now:  # what was under way when it began to rest counts once
            work.failures += 1
            if work.failures > 1:
                work.rests_until = now + min(REST_S * 2 ** (work.failures - 2), REST_MOST_S)

    def _over(self, request: str) -> Optional[Sent]:
        sent = self._sent.pop(request, None)
        if sent is None:
            return None
        at = self._at(sent.answers if sent.begun else sent.prefill)
        at.requests -= 1
        self._at(sent.prefill).prefill -= 0 if sent.begun else sent.new
        self._at(sent.answers).context -= sent.context
        return sent

    def _at(self, key: Key) -> Work:
        return self._work.setdefault(key, Work())


def first_of(best: Tuple[Tuple[int, int, int], Engine, int]) -> Tuple[int, int, int]:
    return best[0]
