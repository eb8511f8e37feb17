"""The model's own tokenizer and chat template, where `transformers` is installed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from typing import Any, Callable, List, Optional

from .extras import known_until, without_media
from .members import Body, ids_of
from .tokens import Tokens, pack

__all__ = ["LocalTokenizer"]

_log = logging.getLogger("tarn.gateway")

# Members of a chat that its template gets as keywords.
_TO_TEMPLATE = ("documents", "reasoning_effort")


class LocalTokenizer:
    """path: a folder or name that transformers loads, now. Raises ValueError where it cannot. It
    works in a thread of its own, so that a long text does not hold up the others; what is not there
    within wait_s does not come."""

    def __init__(self, path: str, wait_s: float) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as e:
            raise ValueError("a tokenizer of one's own needs the package transformers") from e
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        except Exception as e:
            raise ValueError(f"no tokenizer could be loaded from {path}: {e}") from e
        self._wait_s = wait_s
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "tokenizer")

    async def text(self, asked: Body) -> Optional[Tokens]:
        special = asked["add_special_tokens"]
        ids = await self._run(
            lambda: self._tokenizer.encode(asked["prompt"], add_special_tokens=special)
        )
        return Tokens(pack(ids)) if ids is not None else None

    async def chat(self, asked: Body, media: bool) -> Optional[Tokens]:
        """None: its template does not take it, or the client brought one of its own, which is a
        program: it is not run here."""
        if asked.get("chat_template") is not None:
            return None
        ids = await self._run(lambda: self._templated(asked))
        if ids is None or not media:
            return Tokens(pack(ids)) if ids is not None else None
        # Where the first medium is shows by what differs without it.
        others = await self._run(lambda: self._templated(without_media(asked)))
        return Tokens(pack(ids), until=known_until(ids, others) if others is not None else 0)

    def _templated(self, asked: Body) -> Any:
        given = asked.get("chat_template_kwargs")
        words = {name: asked[name] for name in _TO_TEMPLATE if name in asked}
        words.update(given if isinstance(given, dict) else {})
        going_on = asked.get("continue_final_message") is True
        words.update(
            tools=asked.get("tools"),
            chat_template=None,
            add_generation_prompt=asked.get("add_generation_prompt") is not False and not going_on,
            continue_final_message=going_on,
            tokenize=True,
            return_dict=False,
        )
        return self._tokenizer.apply_chat_template(asked["messages"], **words)

    async def _run(self, work: Callable[[], Any]) -> Optional[List[int]]:
        try:
            made = asyncio.get_running_loop().run_in_executor(self._thread, work)
            return ids_of(list(await asyncio.wait_for(made, self._wait_s)))
        except Exception as e:  # whatever a template of the world throws at what clients send
            _log.debug("the tokenizer does not take a prompt: %s", e)
            return None
