"""What a request's prompt is, as the Conductor wants to know it: token ids, adapter, salt, and what
blocks depend on beside tokens.

Token ids come from an engine that serves the model (there.py), or from the model's own tokenizer
(local.py). Where nobody tells them, the prompt's length is estimated, and it is routed by that
alone: a request never fails for this."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import aiohttp

from .extras import Span, blocks_extra, check_messages, has_media, media_digest, name_media
from .local import LocalTokenizer
from .members import BadRequest, Body, flag, ids_of, text
from .names import Meaning, Names
from .place import Engine
from .there import EngineTokenizer
from .tokens import Figures, Tokens, TokensCache, pack, unpack

__all__ = ["BadRequest", "Figures", "Prompt", "PromptReader"]

_log = logging.getLogger("tarn.gateway")

# CONDUCTOR.ROUTE takes no more.
_TOKENS_MAX = 1 << 20
_EXTRA_MAX = 1 << 20
_NAME_MAX = 128
# What of a chat decides about its tokens.
_CHAT = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "media_io_kwargs",
    "messages",
    "mm_processor_kwargs",
    "model",
    "reasoning_effort",
    "tool_choice",
    "tools",
    "truncate_prompt_tokens",
)
_WARN_AGAIN_S = 10.0


@dataclass(frozen=True)
class Prompt:
    """model: as its engines are registered. tokens: each 4 bytes, little-endian; None: only the
    estimated length is known. extra: for blocks of the size of the model's engines. count: of
    prompts in the request; the rest is about the first."""

    model: str
    length: int
    tokens: Optional[bytes] = None
    extra: bytes = b""
    lora: str = ""
    salt: str = ""
    count: int = 1

    def ids(self) -> List[int]:
        """Of `tokens`."""
        return unpack(self.tokens) if self.tokens is not None else []


class PromptReader:
    """engines: those that are known now. tokenizer: `engine`, `none`, or a path or name that
    transformers loads (ValueError where it cannot). wait_s: for the tokens of a text;
    media_wait_s: where images are to be fetched and looked at first."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        engines: Callable[[], Sequence[Engine]],
        tokenizer: str = "engine",
        wait_s: float = 2.0,
        media_wait_s: float = 10.0,
        cache_bytes: int = 64 << 20,
    ) -> None:
        self.names = Names(session, engines)
        self.figures = Figures()
        self._engines = engines
        self._here: Optional[LocalTokenizer] = None
        self._there: Optional[EngineTokenizer] = None
        if tokenizer == "engine":
            self._there = EngineTokenizer(session, engines, self.figures, wait_s, media_wait_s)
        elif tokenizer != "none":
            self._here = LocalTokenizer(tokenizer, wait_s)
        self._cache = TokensCache(cache_bytes)
        self._bytes_a_token: Dict[str, float] = {}
        self._warned = -_WARN_AGAIN_S

    async def read(
        self, kind: str, body: Body, headers: Optional[Mapping[str, str]] = None
    ) -> Tuple[Prompt, Body]:
        """kind: `chat` or `completion`. headers: for what engines are asked (Authorization, say).
        Returns the prompt, and the body as it is to be sent: media have names. Raises
        BadRequest."""
        self.figures.prompts += 1
        try:
            name = text(body, "model", longest=_NAME_MAX)
            meaning = await self.names.meaning(name or self._only_model())
            served = any(engine.model == meaning.model for engine in self._engines())
            known: Optional[Tokens] = None
            if kind == "chat":
                body = name_media(body)
                if served:
                    known = await self._chat(body, meaning.model, headers)
                size, count = _size_of([body["messages"], body.get("tools")]), 1
            else:
                first, count = _first_prompt(body)
                if served:
                    known = await self._text(body, first, meaning.model, headers)
                size = _size_of(first)
            return await self._made(body, meaning, known, size, count), body
        except RecursionError:
            raise BadRequest(None, "the body is nested too deeply") from None

    async def _made(
        self,
        body: Body,
        meaning: Meaning,
        known: Optional[Tokens],
        size: int,
        count: int,
    ) -> Prompt:
        """size: of its text, in bytes."""
        model, lora = meaning.model, meaning.lora
        if isinstance(body.get("lora_path"), str):  # SGLang's
            lora = text(body, "lora_path", longest=_NAME_MAX)
        salt, further = text(body, "cache_salt"), text(body, "extra_key")
        if known is None:
            length = int(size / self._bytes_a_token.get(model, 4.0))
            return Prompt(model, min(max(1, length), _TOKENS_MAX), lora=lora, count=count)
        if known.length > _TOKENS_MAX:
            name = "messages" if "messages" in body else "prompt"
            raise BadRequest(name, f"{known.length} tokens, of {_TOKENS_MAX} that there may be")
        if size > 0 and not known.spans:
            self._bytes_a_token[model] = size / known.length
        whole = ""
        if salt + further and await self.names.owner(model) == "sglang":
            whole, salt = salt + further, ""
            if len(whole.encode()) > _NAME_MAX:  # ROUTE does not take it, and without it is another
                return Prompt(model, known.length, lora=lora, count=count)
        extra = self._extra(known, model, salt, body)
        if extra is None:
            return Prompt(model, known.length, lora=lora, count=count)
        return Prompt(model, known.length, known.packed, extra, lora, whole, count)

    def _only_model(self) -> str:
        models = {engine.model for engine in self._engines()}
        if len(models) != 1:
            raise BadRequest("model", "model must say which one")
        return models.pop()

    def _extra(self, known: Tokens, model: str, salt: str, body: Body) -> Optional[bytes]:
        """None: it is too long for ROUTE."""
        sizes = {engine.block for engine in self._engines() if engine.model == model} or {16}
        block, extra = max(sizes), None
        if known.until is None:
            # A block has one number in EXTRA, and each size another.
            if len(sizes) == 1 or not known.spans:
                extra = blocks_extra(block, known.length, known.spans, salt)
            until = known.spans[0].offset if known.spans else 0
        else:
            until = known.until
        if extra is None or len(extra) > _EXTRA_MAX:
            # So the prompt ends, for all sizes, where the largest block with a medium begins.
            name = media_digest(check_messages(body)) if "messages" in body else ""
            end = Span(until // block * block, 1, name)
            extra = blocks_extra(block, known.length, (end,), salt)
        return extra if len(extra) <= _EXTRA_MAX else None

    async def _chat(
        self, body: Body, model: str, headers: Optional[Mapping[str, str]]
    ) -> Optional[Tokens]:
        going_on = flag(body, "continue_final_message", False)
        if going_on and flag(body, "add_generation_prompt", False):
            raise BadRequest(
                "add_generation_prompt",
                "continue_final_message and add_generation_prompt exclude each other",
            )
        asked = {name: body[name] for name in _CHAT if body.get(name) is not None}
        key = _key(["chat", model, asked])
        found = self._cached(key)
        if found is not None:
            return found
        media = has_media(check_messages(body))
        if self._here is not None:
            found = await self._here.chat(asked, media)
        elif self._there is not None:
            found = await self._there.chat(model, asked, media, headers)
        return self._learnt(key, found)

    async def _text(
        self, body: Body, first: Any, model: str, headers: Optional[Mapping[str, str]]
    ) -> Optional[Tokens]:
        """first: of _first_prompt."""
        special = flag(body, "add_special_tokens", True)
        if first is None:
            return None
        if isinstance(first, list):
            return Tokens(pack(first))
        asked = {"model": body.get("model"), "prompt": first, "add_special_tokens": special}
        key = _key(["text", model, asked])
        found = self._cached(key)
        if found is not None:
            return found
        if self._here is not None:
            found = await self._here.text(asked)
        elif self._there is not None:
            found = await self._there.text(model, asked, headers)
        return self._learnt(key, found)

    def _cached(self, key: bytes) -> Optional[Tokens]:
        found = self._cache.get(key)
        if found is not None:
            self.figures.cached += 1
        return found

    def _learnt(self, key: bytes, found: Optional[Tokens]) -> Optional[Tokens]:
        if found is not None and found.length > 0:
            self._cache.put(key, found)
            return found
        self.figures.estimated += 1
        now = time.monotonic()
        if (self._here or self._there) and now >= self._warned + _WARN_AGAIN_S:
            self._warned = now
            _log.warning("nobody told the tokens of a prompt: it is routed by its length alone")
        return None


def _key(asked: List[Any]) -> bytes:
    said = json.dumps(asked, sort_keys=True)
    return hashlib.sha256(said.encode()).digest()


def _first_prompt(body: Body) -> Tuple[Any, int]:
    """The first of a completion's prompts, a text or token ids, and how many there are. None: it is
    given as embeddings."""
    prompt = body.get("prompt")
    if prompt is None:
        if body.get("prompt_embeds") is None:
            raise BadRequest("prompt", "prompt is missing")
        return None, 1
    if isinstance(prompt, str):
        return prompt, 1
    if not isinstance(prompt, list) or not prompt:
        raise BadRequest("prompt", "prompt must be a text, a list of texts, or of token ids")
    if isinstance(prompt[0], int):
        return _ids_or_bad(prompt, "prompt"), 1
    for i, one in enumerate(prompt):
        if type(one) is not type(prompt[0]) or not isinstance(one, (str, list)):
            raise BadRequest(f"prompt[{i}]", f"prompt[{i}] must be a text, or a list of token ids")
        if isinstance(one, list):
            _ids_or_bad(one, f"prompt[{i}]")
    return prompt[0], len(prompt)


def _ids_or_bad(value: Any, name: str) -> List[int]:
    ids = ids_of(value)
    if not ids:
        raise BadRequest(name, f"{name} must have token ids, numbers of 32 bits")
    return ids


def _size_of(value: Any) -> int:
    """About how many bytes of text it is. Media count as a few words."""
    size, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            size += 64 if one[:5] == "data:" else len(one.encode("utf-8", "replace"))
        elif isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list) and one and not isinstance(one[0], int):
            left.extend(one)
    return size
