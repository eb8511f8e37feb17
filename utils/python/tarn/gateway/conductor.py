"""Places requests as the Conductor says (docs/CONDUCTOR.md, "Requests")."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any, Dict, List, Optional, Tuple

from .leader import Away, Leader
from .link import Refused
from .place import Ask, Engine, Nobody, Overloaded, Place
from .table import Rank, Table, pairs, ranks_of
from .tell import Teller

__all__ = ["ConductorRouter", "route_words"]

LOG = logging.getLogger("tarn.gateway")
REFRESH_S = 2.0
INFO_EVERY = 30  # refreshes: what INFO alone tells of an engine changes only when it is registered
EXCLUDE_MOST, NAME_MOST = 16, 128
UNSERVED = "no engine serves"
MAY_NOT = ("none of the ", "engine ")  # serves it, and all are excluded, drain, are silent...
FULL_S = 1.0  # LIMIT: as many requests as there may be are under way


def route_words(ask: Ask) -> List[Any]:
    words: List[Any] = ["CONDUCTOR.ROUTE", ask.request, "MODEL", ask.model]
    if ask.tokens is not None:
        words += ["TOKENS", ask.tokens]
        words += ["EXTRA", ask.extra] if ask.extra else []
    else:
        words += ["LENGTH", max(ask.length, 1)]
    session = ask.session
    if len(session.encode()) > NAME_MOST:
        session = hashlib.sha256(session.encode()).hexdigest()
    texts = (("LORA", ask.lora), ("SALT", ask.salt), ("SESSION", session), ("TENANT", ask.tenant))
    for word, text in texts:
        words += [word, text] if text else []
    numbers = (("OUTPUT", ask.output), ("TTFT", ask.ttft_ms), ("TBT", ask.tbt_ms))
    for word, number in numbers:
        words += [word, number] if number else []
    words += ["PRIORITY", ask.priority] if ask.priority else []
    for engine in list(ask.exclude)[-EXCLUDE_MOST:]:
        words += ["EXCLUDE", engine]
    return words


def refusal(error: Refused) -> Exception:
    """What a router raises for what the Conductor answered. ValueError: the request cannot be
    right."""
    text = str(error)
    word, _, rest = text.partition(" ")
    if word == "OVERLOADED":
        ms, _, why = rest.partition(" ")
        return Overloaded(int(ms) / 1000, why)
    if word == "LIMIT":
        return Overloaded(FULL_S, rest)
    if text.startswith((UNSERVED, *MAY_NOT)):
        return Nobody(text, known=text.startswith(MAY_NOT))
    return ValueError(text)


def named(engine: Any) -> Tuple[str, int]:
    """An id, or [id, rank]."""
    if isinstance(engine, list):
        return engine[0], int(engine[1])
    return engine, 0


class ConductorRouter:
    """A Router that raises Away, too, when nobody leads for longer than the leader is patient, and
    ValueError for a request that cannot be right."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.table = Table()
        self.teller = Teller(leader)
        self._infos: Dict[str, Dict[str, Any]] = {}
        self._refreshes = 0
        self._refreshing: "Optional[asyncio.Future[None]]" = None

    async def start(self) -> None:
        await self.leader.start()
        self.teller.start()
        self._refresher = asyncio.get_running_loop().create_task(self._refresh_always())

    async def close(self) -> None:
        """What is still to be told is told first, if somebody leads."""
        self._refresher.cancel()
        await asyncio.gather(self._refresher, return_exceptions=True)
        await self.teller.close()
        await self.leader.close()

    @property
    def away(self) -> bool:
        return self.leader.away

    # --- requests ---

    async def route(self, ask: Ask) -> Place:
        await self.teller.told(ask.request)
        reserved = True  # perhaps, as long as there is no reply
        try:
            reply = await self.leader.call(*route_words(ask))
            place = await self._place(reply)
            reserved = False  # from now on it is the caller's to tell
            return place
        except Refused as error:
            reserved = False
            raise refusal(error) from None
        except Away as error:
            reserved = error.sent
            raise
        finally:
            if reserved:
                self.teller.tell("CONDUCTOR.DONE", ask.request)

    async def first(self, request: str) -> None:
        self.teller.tell("CONDUCTOR.FIRST", request)

    async def done(
        self, request: str, output: int, failed: bool = False, decode: bool = False
    ) -> None:
        words = ["FAILED", "DECODE"] if failed and decode else ["FAILED"] if failed else []
        self.teller.tell("CONDUCTOR.DONE", request, "OUTPUT", max(output, 0), *words)

    async def _place(self, reply: List[Any]) -> Place:
        prefill = await self._engine(reply[0])
        decode = await self._engine(reply[1]) if reply[1] is not None else None
        device, host, disk = reply[2][:3]
        return Place(
            prefill,
            decode,
            "conductor",
            hit=(int(device), int(host), int(disk)),
            pool=int(reply[3]),
            ttft_ms=float(reply[4]),
        )

    async def _engine(self, name: Any) -> Engine:
        id, rank = named(name)
        engine = self.table.get(id, rank)
        for _ in range(2):  # the first one may have been asked for before the engine came
            if engine is not None:
                break
            try:
                await self._refresh_once()
            except Away as error:
                error.sent = True  # ROUTE was
                raise
            except Refused as error:
                raise Nobody(f"engine {id} is not known here: {error}", known=True) from None
            engine = self.table.get(id, rank)
        if engine is None:  # it was removed since
            raise Nobody(f"engine {id} was removed when it had just been chosen", known=True)
        return engine

    # --- engines ---

    def engines(self) -> List[Engine]:
        return self.table.engines()

    def ranks(self) -> List[Rank]:
        return self.table.ranks()

    async def _refresh_always(self) -> None:
        while True:
            try:
                await self._refresh_once()
            except (Away, Refused) as error:
                LOG.debug("the engines are not known anew: %s", error)
            await asyncio.sleep(REFRESH_S)

    async def _refresh_once(self) -> None:
        """One at a time, however many ask for it."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._refresh())
            self._refreshing.add_done_callback(lambda f: f.cancelled() or f.exception())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        listed = await self.leader.call("CONDUCTOR.LIST")
        before = {(r.engine.id, r.engine.url, r.engine.model) for r in self.ranks()}
        ranks = list(map(pairs, listed))
        now = {(r["id"], r["url"].rstrip("/"), r["model"]) for r in ranks}
        if now != before or self._refreshes % INFO_EVERY == 0:
            ids = sorted({r["id"] for r in ranks})
            asked = [self.leader.call("CONDUCTOR.INFO", id) for id in ids]
            told = await asyncio.gather(*asked, return_exceptions=True)
            self._infos = {id: pairs(t) for id, t in zip(ids, told) if isinstance(t, list)}
        self._refreshes += 1
        self.table.put(ranks_of(listed, self._infos))
