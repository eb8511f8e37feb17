"""Which model and which adapter a name in a request means, as engines tell at /v1/models."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence

import aiohttp

from .ask import ask
from .place import Engine

__all__ = ["Meaning", "Names"]

# An unknown name is looked for again so often at most, and what is known gets as old.
_AGAIN_S, _OLD_S = 5.0, 60.0
_ASK_S = 2.0
_NAMES_MAX = 4096


@dataclass(frozen=True)
class Meaning:
    """model: as its engines are registered. lora: the adapter's name; "": none."""

    model: str
    lora: str = ""


class Names:
    """engines: those that are known now."""

    def __init__(
        self, session: aiohttp.ClientSession, engines: Callable[[], Sequence[Engine]]
    ) -> None:
        self._session = session
        self._engines = engines
        self._meanings: Dict[str, Meaning] = {}
        self._owners: Dict[str, str] = {}  # of models: vllm, sglang
        self._asked = -_OLD_S
        self._asking = asyncio.Lock()

    async def meaning(self, name: str, headers: Optional[Mapping[str, str]] = None) -> Meaning:
        """A name that nobody knows means itself: whoever routes it says so."""
        if any(engine.model == name for engine in self._engines()):
            return Meaning(name)
        await self._refresh(_OLD_S if name in self._meanings else _AGAIN_S, headers)
        return self._meanings.get(name) or self._parted(name) or Meaning(name)

    async def owner(self, model: str, headers: Optional[Mapping[str, str]] = None) -> str:
        """`vllm`, `sglang` or what else its engines say that they are; "": nobody has said."""
        await self._refresh(_OLD_S if model in self._owners else _AGAIN_S, headers)
        return self._owners.get(model, "")

    def _parted(self, name: str) -> Optional[Meaning]:
        """SGLang takes MODEL:ADAPTER."""
        model, colon, lora = name.rpartition(":")
        if not colon or not lora or not any(e.model == model for e in self._engines()):
            return None
        return Meaning(model, lora)

    async def _refresh(self, old_s: float, headers: Optional[Mapping[str, str]]) -> None:
        async with self._asking:
            if time.monotonic() - self._asked < old_s:
                return
            engines = {engine.url: engine for engine in self._engines()}
            lists = await asyncio.gather(
                *(ask(self._session, url, "/v1/models", None, _ASK_S, headers) for url in engines)
            )
            self._asked = time.monotonic()
            meanings: Dict[str, Meaning] = {}
            for engine, answer in zip(engines.values(), lists):
                if answer.good:
                    self._take(engine, answer.value, meanings)
            # What no engine tells now may still be meant: they are down for a moment, perhaps.
            self._meanings.update(meanings)
            while len(self._meanings) > _NAMES_MAX:
                del self._meanings[next(iter(self._meanings))]

    def _take(self, engine: Engine, value: object, meanings: Dict[str, Meaning]) -> None:
        cards = value.get("data") if isinstance(value, dict) else None
        for card in cards if isinstance(cards, list) else ():
            if not isinstance(card, dict) or not isinstance(card.get("id"), str):
                continue
            # An adapter's card has its model as `parent`; a further name of the model has none.
            lora = card["id"] if isinstance(card.get("parent"), str) else ""
            meanings.setdefault(card["id"], Meaning(engine.model, lora))
            if isinstance(card.get("owned_by"), str):
                self._owners[engine.model] = card["owned_by"]

    def known(self) -> List[str]:
        """Names that engines told beside their models'."""
        return list(self._meanings)
