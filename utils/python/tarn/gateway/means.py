"""What all requests of a gateway share."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
from typing import Any, Collection, Coroutine, Dict, List, Mapping, Optional, Tuple

from .asked import Asked
from .errors import ApiError
from .metrics import Metrics
from .options import Options
from .place import Engine, Router
from .prompt import BadRequest, Prompt, PromptReader
from .tokens import pack
from .upstream import Upstream

__all__ = ["Means"]

LOG = logging.getLogger("tarn.gateway")
LEARN = 0.05  # weight of the newest answer in the mean of their lengths
LENGTHS_FIRST = 128.0


class Means:
    def __init__(
        self, options: Options, router: Router, reader: PromptReader, upstream: Upstream
    ) -> None:
        self.options, self.router, self.reader, self.upstream = options, router, reader, upstream
        self.metrics = Metrics(reader.figures)
        self._mean_output = LENGTHS_FIRST

    @staticmethod
    async def tell(told: Coroutine[Any, Any, None]) -> None:
        """What goes wrong there is no trouble of the request."""
        try:
            await told
        except Exception as e:
            LOG.warning("the router was not told: %s: %s", type(e).__name__, e)

    # --- prompts

    async def read(self, asked: Asked, headers: Mapping[str, str]) -> Tuple[Prompt, Dict[str, Any]]:
        try:
            return await self.reader.read(asked.kind, asked.body, headers)
        except BadRequest as e:
            raise ApiError(400, str(e), param=e.param) from None

    @staticmethod
    def continued(prompt: Prompt, ids: List[int]) -> Prompt:
        """The prompt of who goes on: with the tokens that were sent."""
        return dataclasses.replace(prompt, tokens=pack(ids), length=len(ids))

    def expected(self, most: Optional[int], surely: bool) -> Optional[int]:
        """Tokens of an answer that may have `most`, and has them `surely`; None: as long as
        others."""
        if most is None or (not surely and most > self._mean_output):
            return None
        return most

    def learn(self, output: int) -> None:
        self._mean_output += LEARN * (output - self._mean_output)

    # --- engines

    def alone(self) -> bool:
        """Requests are placed without the Conductor."""
        return bool(getattr(self.router, "alone", False))

    def several_ranks(self, engine: Engine) -> bool:
        """Ranks that share a URL are told apart by a header."""
        return any(e.url == engine.url and e.rank != engine.rank for e in self.router.engines())

    async def models(self) -> List[Dict[str, Any]]:
        """Of all engines; of those that do not answer, what they are registered with."""
        engines = self.router.engines()
        told = await asyncio.gather(
            *(self.reader.names.cards(url) for url in {e.url for e in engines})
        )
        found: Dict[str, Dict[str, Any]] = collections.OrderedDict()
        for model in (m for models in told for m in models):
            found.setdefault(model["id"], model)
        for engine in engines:
            card = {"id": engine.model, "object": "model", "created": 0, "owned_by": "tarn"}
            if engine.model:
                found.setdefault(engine.model, card)
        return sorted(found.values(), key=lambda m: str(m["id"]))

    async def room(self, model: str, without: Collection[str]) -> Optional[int]:
        """Tokens of a prompt and its answer together."""
        able = [e for e in self.router.engines() if e.model == model and e.id not in without]
        for url in {e.url for e in able}:
            for card in await self.reader.names.cards(url):
                most = card.get("max_model_len")
                if isinstance(most, int) and most > 0:
                    return most
        return None
