"""What a request's prompt is, as the Conductor wants to know it: token ids, adapter, salt, and what
blocks depend on beside tokens.

Token ids come from an engine that serves the model, whichever answers: of chats from vLLM's
/v1/chat/completions/render, which does just what it does with the request itself, and has images'
places, or where there is none from /tokenize; of texts from /tokenize. Or from the model's own
tokenizer (local.py). Where nobody tells, a prompt's length is estimated, and it is routed by that
alone: a request never fails for this."""

from __future__ import annotations

import array
import collections
import hashlib
import json
import logging
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import aiohttp

from .ask import ask
from .extras import (
    Span,
    blocks_extra,
    check_messages,
    has_media,
    known_until,
    media_digest,
    name_media,
    without_media,
)
from .local import LocalTokenizer
from .members import BadRequest, Body, flag, ids_of, text
from .names import Names
from .place import Engine

__all__ = ["BadRequest", "Figures", "Prompt", "PromptReader"]

_log = logging.getLogger("tarn.gateway")

# CONDUCTOR.ROUTE takes no more.
_TOKENS_MAX = 1 << 20
_NAME_MAX = 128
# What of a chat decides about its tokens.
_CHAT = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "messages",
    "mm_processor_kwargs",
    "model",
    "reasoning_effort",
    "tool_choice",
    "tools",
    "truncate_prompt_tokens",
)
# Of these /tokenize knows none; the template gets them by its keywords.
_RENDER_ONLY = ("documents", "reasoning_effort", "tool_choice", "truncate_prompt_tokens")
# An engine without a path, or that failed, is asked again after so long.
_PATH_AGAIN_S, _FAILED_AGAIN_S = 60.0, 5.0
_TRIES = 3


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
        return _unpack(self.tokens) if self.tokens is not None else []


@dataclass
class Figures:
    """What was done since the start. asked: questions to engines; failed: those without a good
    answer; cached: prompts that needed none; estimated: prompts that nobody told the tokens of."""

    prompts: int = 0
    asked: int = 0
    failed: int = 0
    cached: int = 0
    estimated: int = 0


@dataclass(frozen=True)
class _Tokens:
    """exact: where media are is known; else nothing is behind `until`."""

    tokens: bytes
    spans: Tuple[Span, ...] = ()
    until: Optional[int] = None


@dataclass
class _Peer:
    """What was learnt of an engine. Times of the monotonic clock until which it is not asked."""

    failed_until: float = 0.0
    path_until: Dict[str, float] = field(default_factory=dict)


def _pack(ids: Sequence[int]) -> bytes:
    made = array.array("I", ids)
    if sys.byteorder == "big":
        made.byteswap()
    return made.tobytes()


def _unpack(tokens: bytes) -> List[int]:
    made = array.array("I", tokens)
    if sys.byteorder == "big":
        made.byteswap()
    return made.tolist()


class _Cache:
    """Tokens of prompts that were read, up to so many bytes."""

    def __init__(self, size: int) -> None:
        self._room = size
        self._entries: collections.OrderedDict[bytes, _Tokens] = collections.OrderedDict()

    @staticmethod
    def _cost(entry: _Tokens) -> int:
        return len(entry.tokens) + 200 + 200 * len(entry.spans)

    def get(self, key: bytes) -> Optional[_Tokens]:
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: bytes, entry: _Tokens) -> None:
        old = self._entries.pop(key, None)
        self._room += self._cost(old) if old is not None else 0
        self._entries[key] = entry
        self._room -= self._cost(entry)
        while self._room < 0:
            self._room += self._cost(self._entries.popitem(last=False)[1])


class PromptReader:
    """engines: those that are known now. tokenizer: `engine`, `none`, or a path or name that
    transformers loads. wait_s: for the tokens of a text; media_wait_s: where images are to be
    fetched and looked at first."""

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
        self._session = session
        self._engines = engines
        self._kind = tokenizer
        self._local = None if tokenizer in ("engine", "none") else LocalTokenizer(tokenizer)
        self._wait_s, self._media_wait_s = wait_s, media_wait_s
        self._cache = _Cache(cache_bytes)
        self._peers: Dict[str, _Peer] = {}
        self._bytes_a_token: Dict[str, float] = {}
        self._warned = 0.0

    async def read(
        self, kind: str, body: Body, headers: Optional[Mapping[str, str]] = None
    ) -> Tuple[Prompt, Body]:
        """kind: `chat` or `completion`. headers: for what engines are asked (Authorization, say).
        Returns the prompt, and the body as it is to be sent: media have names. Raises
        BadRequest."""
        self.figures.prompts += 1
        try:
            return await self._read(kind, body, headers)
        except RecursionError:
            raise BadRequest(None, "the body is nested too deeply") from None

    async def _read(
        self, kind: str, body: Body, headers: Optional[Mapping[str, str]]
    ) -> Tuple[Prompt, Body]:
        name = text(body, "model", longest=_NAME_MAX)
        meaning = await self.names.meaning(name or self._only_model(), headers)
        lora = text(body, "lora_path", longest=_NAME_MAX) or meaning.lora
        salt = text(body, "cache_salt")
        count = 1
        if kind == "chat":
            body = name_media(body)
            known = await self._chat(body, meaning.model, headers)
            guess = _size_of(body.get("messages")) + _size_of(body.get("tools"))
        else:
            first, count = _first_prompt(body)
            known = await self._text(body, first, meaning.model, headers)
            guess = _size_of(first)
        if known is None or not known.tokens:
            length = max(1, int(guess / self._bytes_a_token.get(meaning.model, 4.0)))
            return Prompt(meaning.model, min(length, _TOKENS_MAX), lora=lora, count=count), body
        length = len(known.tokens) // 4
        if length > _TOKENS_MAX:
            raise BadRequest(
                "messages" if kind == "chat" else "prompt",
                f"the prompt has {length} tokens, and may have {_TOKENS_MAX}",
            )
        if guess > 0:
            self._bytes_a_token[meaning.model] = guess / length
        tokens: Optional[bytes] = known.tokens
        whole_salt = ""
        if salt and await self.names.owner(meaning.model, headers) == "sglang":
            whole_salt, salt = salt, ""
            if len(whole_salt.encode()) > _NAME_MAX:
                tokens, whole_salt = None, ""  # longer than ROUTE takes; nothing without it is it
        extra = self._extra(known, meaning.model, salt, body) if tokens is not None else b""
        return Prompt(meaning.model, length, tokens, extra, lora, whole_salt, count), body

    def _only_model(self) -> str:
        models = {engine.model for engine in self._engines()}
        if len(models) != 1:
            raise BadRequest("model", "model must say which one, of several")
        return models.pop()

    def _extra(self, known: _Tokens, model: str, salt: str, body: Body) -> bytes:
        sizes = {engine.block for engine in self._engines() if engine.model == model} or {16}
        block, length = max(sizes), len(known.tokens) // 4
        spans, until = known.spans, known.until
        if len(sizes) > 1 and spans:
            # Blocks have one number in EXTRA, and each size another: so the prompt ends, for all
            # sizes, where the largest block with a medium begins.
            until, spans = spans[0].offset, ()
        if until is not None:
            digest = media_digest(check_messages(body))
            spans = (Span(until // block * block, length, digest),)
        return blocks_extra(block, length, spans, salt)

    # --- chats ---

    async def _chat(
        self, body: Body, model: str, headers: Optional[Mapping[str, str]]
    ) -> Optional[_Tokens]:
        messages = check_messages(body)
        if flag(body, "continue_final_message", False) and flag(
            body, "add_generation_prompt", False
        ):
            raise BadRequest(
                "add_generation_prompt",
                "continue_final_message and add_generation_prompt exclude each other",
            )
        asked = {name: body[name] for name in _CHAT if body.get(name) is not None}
        key = self._key("chat", model, asked)
        found = self._cached(key)
        if found is not None:
            return found
        media = has_media(messages)
        if self._local is not None:
            found = await self._chat_here(asked, media)
        elif self._kind == "engine":
            found = await self._chat_there(asked, model, media, headers)
        return self._learnt(key, found)

    async def _chat_there(
        self, asked: Body, model: str, media: bool, headers: Optional[Mapping[str, str]]
    ) -> Optional[_Tokens]:
        deadline = time.monotonic() + (self._media_wait_s if media else self._wait_s)
        path = "/v1/chat/completions/render"
        value = await self._ask(model, path, asked, deadline, headers)
        found = _rendered(value, media)
        if found is not None:
            return found
        ids = await self._tokenized(asked, model, deadline, headers)
        if ids is None:
            return None
        if not media:
            return _Tokens(_pack(ids))
        # Where the first medium is shows by what differs without it.
        others = await self._tokenized(without_media(asked), model, deadline, headers)
        return _Tokens(_pack(ids), until=known_until(ids, others) if others is not None else 0)

    async def _tokenized(
        self, asked: Body, model: str, deadline: float, headers: Optional[Mapping[str, str]]
    ) -> Optional[List[int]]:
        """Of a chat, by /tokenize."""
        made = {name: value for name, value in asked.items() if name not in _RENDER_ONLY}
        words = {n: asked[n] for n in ("documents", "reasoning_effort") if n in asked}
        if words:
            given = asked.get("chat_template_kwargs")
            made["chat_template_kwargs"] = {**words, **(given if isinstance(given, dict) else {})}
        if made.get("continue_final_message"):
            made["add_generation_prompt"] = False
        return _tokens_in(await self._ask(model, "/tokenize", made, deadline, headers))

    async def _chat_here(self, asked: Body, media: bool) -> Optional[_Tokens]:
        assert self._local is not None
        ids = await self._local.chat(asked)
        if ids is None or not media:
            return _Tokens(_pack(ids)) if ids is not None else None
        others = await self._local.chat(without_media(asked))
        return _Tokens(_pack(ids), until=known_until(ids, others) if others is not None else 0)

    # --- texts ---

    async def _text(
        self, body: Body, first: Any, model: str, headers: Optional[Mapping[str, str]]
    ) -> Optional[_Tokens]:
        if isinstance(first, list):
            return _Tokens(_pack(first))
        if first is None:
            return None
        special = flag(body, "add_special_tokens", True)
        asked = {"model": body.get("model"), "prompt": first, "add_special_tokens": special}
        key = self._key("text", model, asked)
        found = self._cached(key)
        if found is not None:
            return found
        ids: Optional[List[int]] = None
        if self._local is not None:
            ids = await self._local.text(first, special)
        elif self._kind == "engine":
            deadline = time.monotonic() + self._wait_s
            ids = _tokens_in(await self._ask(model, "/tokenize", asked, deadline, headers))
        return self._learnt(key, _Tokens(_pack(ids)) if ids is not None else None)

    # --- engines ---

    async def _ask(
        self,
        model: str,
        path: str,
        body: Body,
        deadline: float,
        headers: Optional[Mapping[str, str]],
    ) -> Any:
        """The first good answer of an engine, None without one. Who has just failed is asked last;
        who has not the path, not at all."""
        now = time.monotonic()
        able = [e for e in self._engines() if e.model == model]
        peers = {e.url: self._peers.setdefault(e.url, _Peer()) for e in able}
        urls = [url for url, peer in peers.items() if peer.path_until.get(path, 0.0) <= now]
        random.shuffle(urls)
        urls.sort(key=lambda url: peers[url].failed_until > now)
        for tried, url in enumerate(urls[:_TRIES]):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self.figures.asked += 1
            share = left if tried == min(len(urls), _TRIES) - 1 else left / 2
            answer = await ask(self._session, url, path, body, share, headers)
            if answer.good:
                return answer.value
            self.figures.failed += 1
            if answer.no_such_path:
                peers[url].path_until[path] = time.monotonic() + _PATH_AGAIN_S
            elif 400 <= answer.status < 500:
                return None  # the request is what it does not like: so will the others
            else:
                peers[url].failed_until = time.monotonic() + _FAILED_AGAIN_S
                _log.debug("%s%s: %s", url, path, answer.why)
        return None

    # --- what was read before ---

    @staticmethod
    def _key(kind: str, model: str, asked: Body) -> bytes:
        said = json.dumps([kind, model, asked], sort_keys=True, default=str)
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).digest()

    def _cached(self, key: bytes) -> Optional[_Tokens]:
        found = self._cache.get(key)
        if found is not None:
            self.figures.cached += 1
        return found

    def _learnt(self, key: bytes, found: Optional[_Tokens]) -> Optional[_Tokens]:
        if found is not None:
            self._cache.put(key, found)
            return found
        self.figures.estimated += 1
        if self._kind != "none" and time.monotonic() > self._warned + 10:
            self._warned = time.monotonic()
            _log.warning("no tokens of a prompt could be had: it is routed by its length alone")
        return None


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


def _tokens_in(value: Any) -> Optional[List[int]]:
    return ids_of(value.get("tokens")) if isinstance(value, dict) else None


def _rendered(value: Any, media: bool) -> Optional[_Tokens]:
    """What /render answers. None: it is something else."""
    ids = ids_of(value.get("token_ids")) if isinstance(value, dict) else None
    if not ids:
        return None
    features = value.get("features")
    if not media and features is None:
        return _Tokens(_pack(ids))
    spans = _spans_in(features, len(ids))
    return _Tokens(_pack(ids), spans) if spans is not None else None


def _spans_in(features: Any, length: int) -> Optional[Tuple[Span, ...]]:
    hashes = features.get("mm_hashes") if isinstance(features, dict) else None
    places = features.get("mm_placeholders") if isinstance(features, dict) else None
    if not isinstance(hashes, dict) or not isinstance(places, dict) or set(hashes) != set(places):
        return None
    spans: List[Span] = []
    for kind, of_kind in hashes.items():
        at = places[kind]
        if not isinstance(of_kind, list) or not isinstance(at, list) or len(of_kind) != len(at):
            return None
        for identifier, place in zip(of_kind, at):
            numbers = (
                ids_of([place.get("offset"), place.get("length")])
                if isinstance(place, dict)
                else None
            )
            if not isinstance(identifier, str) or numbers is None:
                return None
            offset, n = numbers
            if n == 0 or offset + n > length:
                return None
            spans.append(Span(offset, n, identifier))
    spans.sort(key=lambda span: span.offset)
    if any(a.offset + a.length > b.offset for a, b in zip(spans, spans[1:])):
        return None
    return tuple(spans)
