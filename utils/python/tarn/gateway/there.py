"""Tokens from the engines: whichever serves the model and answers.

Of chats from vLLM's /v1/chat/completions/render, which does with them just what it does with the
request itself, and tells images' places; where there is none (before 2026, SGLang) from /tokenize.
Of texts from /tokenize."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

import aiohttp

from .ask import ask
from .extras import Span, known_until, without_media
from .members import Body, ids_of
from .place import Engine
from .tokens import Figures, Tokens, pack

__all__ = ["EngineTokenizer"]

T = TypeVar("T")
_log = logging.getLogger("tarn.gateway")

_RENDER = "/v1/chat/completions/render"
# What /tokenize does not know of a chat; of these the template gets the first two as keywords.
_TO_TEMPLATE = ("documents", "reasoning_effort")
_RENDER_ONLY = (*_TO_TEMPLATE, "tool_choice", "truncate_prompt_tokens")
# An engine without a path, or that failed, is asked again after so long.
_PATH_AGAIN_S, _FAILED_AGAIN_S = 60.0, 5.0
_TRIES = 3
# Of the time for a chat, so much is /render's.
_RENDER_SHARE = 0.6


@dataclass
class _Peer:
    """What was learnt of an engine. Times of the monotonic clock until which it is not asked."""

    failed_until: float = 0.0
    path_until: Dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Question:
    """headers: of the client's, for engines that want a key."""

    model: str
    headers: Optional[Mapping[str, str]]
    deadline: float


class EngineTokenizer:
    """wait_s: for the tokens of a text; media_wait_s: where media are to be fetched and looked at
    first."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        engines: Callable[[], Sequence[Engine]],
        figures: Figures,
        wait_s: float,
        media_wait_s: float,
    ) -> None:
        self._session = session
        self._engines = engines
        self._figures = figures
        self._wait_s, self._media_wait_s = wait_s, media_wait_s
        self._peers: Dict[str, _Peer] = {}

    async def text(
        self, model: str, asked: Body, headers: Optional[Mapping[str, str]]
    ) -> Optional[Tokens]:
        question = _Question(model, headers, time.monotonic() + self._wait_s)
        ids = await self._ask(question, "/tokenize", asked, _tokenized)
        return Tokens(pack(ids)) if ids is not None else None

    async def chat(
        self, model: str, asked: Body, media: bool, headers: Optional[Mapping[str, str]]
    ) -> Optional[Tokens]:
        now, wait_s = time.monotonic(), self._media_wait_s if media else self._wait_s
        question = _Question(model, headers, now + wait_s * _RENDER_SHARE)
        found = await self._ask(question, _RENDER, asked, lambda value: _rendered(value, media))
        if found is not None:
            return found
        question = _Question(model, headers, now + wait_s)
        plain = _plain(asked)
        ids = await self._ask(question, "/tokenize", plain, _tokenized)
        if ids is None or not media:
            return Tokens(pack(ids)) if ids is not None else None
        # Where the first medium is shows by what differs without it.
        others = await self._ask(question, "/tokenize", without_media(plain), _tokenized)
        return Tokens(pack(ids), until=known_until(ids, others) if others is not None else 0)

    async def _ask(
        self,
        question: _Question,
        path: str,
        body: Body,
        taken: Callable[[Any], Optional[T]],
    ) -> Optional[T]:
        """What is `taken` from the first good answer, None without one. Who has just failed is
        asked last; who has not the path, not at all."""
        now = time.monotonic()
        urls = list({e.url for e in self._engines() if e.model == question.model})
        peers = {url: self._peers.setdefault(url, _Peer()) for url in urls}
        urls = [url for url in urls if peers[url].path_until.get(path, 0.0) <= now]
        random.shuffle(urls)
        urls.sort(key=lambda url: peers[url].failed_until > now)
        last = min(len(urls), _TRIES) - 1
        for tried, url in enumerate(urls[:_TRIES]):
            left = question.deadline - time.monotonic()
            if left <= 0:
                break
            self._figures.asked += 1
            share = left if tried == last else left / 2
            answer = await ask(self._session, url, path, body, share, question.headers)
            found = taken(answer.value) if answer.good else None
            if found is not None:
                return found
            self._figures.failed += 1
            if answer.no_such_path:
                peers[url].path_until[path] = time.monotonic() + _PATH_AGAIN_S
            elif answer.status in (400, 413, 422):
                return None  # the others will not like the request, either
            else:
                peers[url].failed_until = time.monotonic() + _FAILED_AGAIN_S
                _log.debug("%s%s: %s", url, path, answer.why)
        return None


def _plain(asked: Body) -> Body:
    """A chat as /tokenize takes it."""
    made = {name: value for name, value in asked.items() if name not in _RENDER_ONLY}
    words = {name: asked[name] for name in _TO_TEMPLATE if name in asked}
    if words:
        given = asked.get("chat_template_kwargs")
        made["chat_template_kwargs"] = {**words, **(given if isinstance(given, dict) else {})}
    if made.get("continue_final_message"):
        made["add_generation_prompt"] = False
    return made


def _tokenized(value: Any) -> Optional[List[int]]:
    return ids_of(value.get("tokens")) if isinstance(value, dict) else None


def _rendered(value: Any, media: bool) -> Optional[Tokens]:
    """None: it is something else."""
    ids = ids_of(value.get("token_ids")) if isinstance(value, dict) else None
    if not ids:
        return None
    features = value.get("features")
    if features is None and not media:
        return Tokens(pack(ids))
    spans = _spans_of(features, len(ids))
    return Tokens(pack(ids), spans) if spans is not None else None


def _spans_of(features: Any, length: int) -> Optional[Tuple[Span, ...]]:
    """Ascending, apart, and within the prompt."""
    hashes = features.get("mm_hashes") if isinstance(features, dict) else None
    places = features.get("mm_placeholders") if isinstance(features, dict) else None
    if not isinstance(hashes, dict) or not isinstance(places, dict) or set(hashes) != set(places):
        return None
    spans: List[Span] = []
    for kind, names in hashes.items():
        at = places[kind]
        if not isinstance(names, list) or not isinstance(at, list) or len(names) != len(at):
            return None
        for name, place in zip(names, at):
            if not isinstance(name, str) or not isinstance(place, dict):
                return None
            numbers = ids_of([place.get("offset"), place.get("length")])
            if numbers is None or numbers[1] == 0 or sum(numbers) > length:
                return None
            spans.append(Span(numbers[0], numbers[1], name))
    spans.sort(key=lambda span: span.offset)
    if any(a.offset + a.length > b.offset for a, b in zip(spans, spans[1:])):
        return None
    return tuple(spans)
