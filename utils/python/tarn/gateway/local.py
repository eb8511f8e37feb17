"""The model's own tokenizer and chat template, where `transformers` is installed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from typing import Any, Callable, List, Optional

from .members import Body, ids_of

__all__ = ["LocalTokenizer"]

_log = logging.getLogger("tarn.gateway")

# Members of a chat that its template gets as keywords.
_TO_TEMPLATE = ("documents", "reasoning_effort")


class LocalTokenizer:
    """path: a folder or name that transformers loads, at once. Raises ValueError where it cannot.
    What it is asked runs in a thread of its own: a long text must not hold up the others."""

    def __init__(self, path: str) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as e:
            raise ValueError("--tokenizer PATH needs the Python package transformers") from e
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        except Exception as e:
            raise ValueError(f"no tokenizer could be loaded from {path}: {e}") from e
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "tokenizer")

    async def text(self, prompt: str, special: bool) -> Optional[List[int]]:
        return await self._run(lambda: self._tokenizer.encode(prompt, add_special_tokens=special))

    async def chat(self, body: Body) -> Optional[List[int]]:
        """body: of a chat, checked. None: its template does not take it, or the client brought one
        of its own, which is a program: it is not run here."""
        if body.get("chat_template") is not None:
            return None
        given = body.get("chat_template_kwargs")
        words = {name: body[name] for name in _TO_TEMPLATE if name in body}
        words.update(given if isinstance(given, dict) else {})
        going_on = bool(body.get("continue_final_message"))
        words.update(
            tools=body.get("tools"),
            chat_template=None,
            add_generation_prompt=body.get("add_generation_prompt") is not False and not going_on,
            continue_final_message=going_on,
            tokenize=True,
            return_dict=False,
        )
        return await self._run(
            lambda: self._tokenizer.apply_chat_template(body["messages"], **words)
        )

    async def _run(self, work: Callable[[], Any]) -> Optional[List[int]]:
        try:
            made = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as e:  # whatever a template of the world throws at what clients send
            _log.debug("the tokenizer does not take a prompt: %s", e)
            return None
        return ids_of(list(made) if not isinstance(made, list) else made)
