"""The router of a gateway: the Conductor's word, and its own where the Conductor is away.

    router = make_router(options)
    await router.start()

It changes over by itself, both ways, says so in the log once, and in each place's `by`.

Requests that it placed itself are not told to the Conductor, which has no command for that: FIRST
and DONE are of what it has placed. It learns of them all the same: engines tell it their load
(LOAD, METRICS) and their blocks (EVENTS). What the Conductor had placed is told to it when it is
back."""

from __future__ import annotations

import collections
import logging
import re
from typing import List, Optional, Protocol, Sequence

from .alone import AloneRouter, engine_of
from .conductor import ConductorRouter
from .leader import Away, Leader, Servers
from .link import Target, target_of
from .place import Ask, Engine, Place

__all__ = ["Routers", "make_router"]

LOG = logging.getLogger("tarn.gateway")
REMEMBERED = 65536  # requests that the Conductor has placed, and that are not over


class Routers:
    """conductor: None where there is none. A Router that raises ValueError, too, for a request that
    cannot be right."""

    def __init__(self, conductor: Optional[ConductorRouter], alone: AloneRouter) -> None:
        self.conductor, self._alone = conductor, alone
        self._told: "collections.OrderedDict[str, None]" = collections.OrderedDict()
        self.alone = False  # it places requests itself
        self.changes = 0  # between the two

    async def start(self) -> None:
        """Without a Conductor it knows by then which engines answer."""
        await self._alone.start()
        if self.conductor is None:
            self._goes_alone("none was named")
            await self._alone.look()
        else:
            self.conductor.leader.on_found = self._comes_back
            await self.conductor.start()

    async def close(self) -> None:
        if self.conductor is not None:
            await self.conductor.close()
        await self._alone.close()

    # --- requests

    async def route(self, ask: Ask) -> Place:
        if self.conductor is not None:
            try:
                place = await self.conductor.route(ask)
            except Away as error:
                self._goes_alone(str(error))
            else:
                self._remember(ask.request)
                self._alone.took(ask, place)
                return place
        return await self._alone.route(ask)

    def _remember(self, request: str) -> None:
        self._told[request] = None
        self._told.move_to_end(request)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    async def first(self, request: str) -> None:
        await self._alone.first(request)
        if self.conductor is not None and request in self._told:
            await self.conductor.first(request)

    async def done(
        self, request: str, output: int, failed: bool = False, decode: bool = False
    ) -> None:
        await self._alone.done(request, output, failed, decode)
        if self.conductor is not None and request in self._told:
            del self._told[request]
            await self.conductor.done(request, output, failed, decode)

    # --- what it does

    def engines(self) -> List[Engine]:
        return self._alone.engines()

    def _goes_alone(self, why: str) -> None:
        if self.alone:
            return
        self.alone = self._alone.active = True
        self.changes += 1
        LOG.warning(
            "requests are placed without the Conductor (%s): by load and the prefixes sent from"
            " here; tenants' shares and times to be kept do not count",
            why,
        )

    def _comes_back(self) -> None:
        if self.alone:
            self.alone = self._alone.active = False
            self.changes += 1
            LOG.warning("the Conductor is back, and places requests again")


class RouterOptions(Protocol):
    """conductor: URLs of servers. sentinel: HOST:PORT or URLs. master: what Sentinels call it.
    engine: as engine_of has it. engine_ca: a file; engine_key_file: one with an API key."""

    conductor: List[str]
    sentinel: List[str]
    master: str
    patience_s: float
    engine: List[str]
    engine_ca: str
    engine_key_file: str


def make_router(options: RouterOptions) -> Routers:
    """ValueError says what is wrong; OSError: of the file with the key."""
    named = [engine_of(text) for text in options.engine]
    key = ""
    if options.engine_key_file:
        with open(options.engine_key_file, encoding="utf-8") as file:
            key = file.read().strip()
    conductor = None
    if options.conductor or options.sentinel:
        servers = targets("--conductor", options.conductor)
        if options.sentinel and any("path" in target for target in servers):
            raise ValueError("--conductor is a unix socket: Sentinels name others by address")
        found = Servers(servers, targets("--sentinel", options.sentinel), options.master)
        conductor = ConductorRouter(Leader(found, options.patience_s))
    alone = AloneRouter(named, options.engine_ca, key)
    if conductor is not None:
        alone.listed = conductor.ranks
    return Routers(conductor, alone)


def targets(option: str, texts: Sequence[str]) -> List[Target]:
    """URLs, or HOST:PORT, several in a text between commas. A password is in the URL: it is not
    cut at commas. ValueError names the option."""
    found = []
    for text in texts:
        for one in [text] if "://" in text else text.split(","):
            if "://" not in one and not re.fullmatch(r"(\[[^]]+\]|[^:]+):[0-9]{1,5}", one):
                raise ValueError(f"{option} {one}: HOST:PORT or a URL is needed")
            try:
                found.append(target_of(one if "://" in one else f"redis://{one}"))
            except ValueError as error:
                raise ValueError(f"{option}: {error}") from None
    return found
