"""What engines say of their models at /v1/models, and which model and adapter a name in a request
means by that."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import aiohttp

from .ask import ask
from .place import Engine

__all__ = ["Meaning", "Names"]

_AGAIN_S = 10.0
_ASK_S = 2.0
_URLS_MAX = 4096


@dataclass(frozen=True)
class Meaning:
    """model: as its engines are registered. lora: the adapter's name; "": none."""

    model: str
    lora: str = ""


@dataclass
class _Told:
    """By one engine. What it told before counts while it does not answer."""

    cards: List[Dict[str, Any]] = field(default_factory=list)
    until: float = 0.0  # of the monotonic clock: it is not asked again before
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Names:
    """engines: those that are known now."""

    def __init__(
        self, session: aiohttp.ClientSession, engines: Callable[[], Sequence[Engine]]
    ) -> None:
        self._session = session
        self._engines = engines
        self._told: Dict[str, _Told] = {}

    async def cards(self, url: str) -> List[Dict[str, Any]]:
        """The models of the engine there; each has an `id`."""
        if len(self._told) > _URLS_MAX:
            self._told.clear()
        told = self._told.setdefault(url, _Told())
        async with told.asking:
            if time.monotonic() >= told.until:
                answer = await ask(self._session, url, "/v1/models", None, _ASK_S)
                told.cards = _cards_of(answer.value) if answer.good else told.cards
                told.until = time.monotonic() + _AGAIN_S
        return told.cards

    async def meaning(self, name: str) -> Meaning:
        """A name that nobody knows means itself: whoever routes it says so."""
        if any(engine.model == name for engine in self._engines()):
            return Meaning(name)
        found = self._found(name)
        if found is None:
            await self._look()
            found = self._found(name) or self._parted(name)
        return found or Meaning(name)

    async def owner(self, model: str) -> str:
        """`vllm`, `sglang` or what else its engines say that they are; "": nobody says it."""
        if not any(engine.model == model for engine, _ in self._all()):
            await self._look()
        told = (card.get("owned_by") for engine, card in self._all() if engine.model == model)
        return next((owner for owner in told if isinstance(owner, str)), "")

    async def _look(self) -> None:
        await asyncio.gather(*(self.cards(url) for url in {e.url for e in self._engines()}))

    def _all(self) -> Iterator[Tuple[Engine, Dict[str, Any]]]:
        for engine in self._engines():
            told = self._told.get(engine.url)
            for card in told.cards if told is not None else ():
                yield engine, card

    def _found(self, name: str) -> Optional[Meaning]:
        for engine, card in self._all():
            if card["id"] == name:
                # An adapter's card has its model as `parent`; a further name of a model has none.
                return Meaning(engine.model, name if isinstance(card.get("parent"), str) else "")
        return None

    def _parted(self, name: str) -> Optional[Meaning]:
        """SGLang takes MODEL:ADAPTER."""
        model, _, lora = name.rpartition(":")
        if lora and any(engine.model == model for engine in self._engines()):
            return Meaning(model, lora)
        return None


def _cards_of(value: Any) -> List[Dict[str, Any]]:
    cards = value.get("data") if isinstance(value, dict) else None
    cards = cards if isinstance(cards, list) else []
    return [c for c in cards if isinstance(c, dict) and isinstance(c.get("id"), str)]
