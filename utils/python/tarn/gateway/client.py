"""What a client gets: a stream of events, or one answer made of the chunks of a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Protocol, Union

from aiohttp import web

from .errors import ApiError, PassedOn

__all__ = ["Client", "Collected", "Streamed", "encode", "gone_is_cancelled"]


def encode(value: Any) -> bytes:
    """Half a surrogate pair, which JSON can say and UTF-8 cannot, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Client(Protocol):
    """began: it has got something, and is told of errors in the stream. waits_since: when it was
    given what it has not taken yet; None: it has taken all. response: after the end."""

    @property
    def began(self) -> bool:
        ...

    @property
    def waits_since(self) -> Optional[float]:
        ...

    async def send(self, chunk: Dict[str, Any], headers: Mapping[str, str]) -> None:
        """headers: of the answer, if it is the first."""
        ...

    async def whole(self, answer: Dict[str, Any], headers: Mapping[str, str]) -> None:
        """All of it at once."""
        ...

    async def end(self, usage: Optional[Dict[str, Any]]) -> None:
        """usage: a last chunk, where it was asked for."""
        ...

    async def broken(self, error: Union[ApiError, PassedOn]) -> None:
        """It ends, though it is not whole."""
        ...

    def response(self) -> web.StreamResponse:
        ...


@contextlib.contextmanager
def gone_is_cancelled() -> Iterator[None]:
    """A client that is gone has cancelled its request; that is nothing for the log."""
    try:
        yield
    except ConnectionError:
        raise asyncio.CancelledError from None


class Streamed:
    """Server-sent events."""

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self._request, self._headers = request, headers
        self._response: Optional[web.StreamResponse] = None
        self.waits_since: Optional[float] = None

    @property
    def began(self) -> bool:
        return self._response is not None

    def response(self) -> web.StreamResponse:
        assert self._response is not None
        return self._response

    async def send(self, chunk: Dict[str, Any], headers: Mapping[str, str]) -> None:
        self.waits_since = time.monotonic()
        if self._response is None:
            kind = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
            told = {**self._headers, **headers, **kind, "X-Accel-Buffering": "no"}
            response = web.StreamResponse(headers=told)
            with gone_is_cancelled():
                await response.prepare(self._request)
            self._response = response
        await self._write(encode(chunk))

    async def _write(self, data: bytes) -> None:
        self.waits_since = time.monotonic()
        with gone_is_cancelled():
            await self.response().write(b"data: " + data + b"\n\n")
        self.waits_since = None

    async def whole(self, answer: Dict[str, Any], headers: Mapping[str, str]) -> None:
        raise AssertionError("a stream comes in chunks")

    async def end(self, usage: Optional[Dict[str, Any]]) -> None:
        if usage is not None:
            await self.send(usage, {})
        await self._write(b"[DONE]")
        with gone_is_cancelled():
            await self.response().write_eof()

    async def broken(self, error: Union[ApiError, PassedOn]) -> None:
        """As vLLM does it."""
        await self._write(error.body().replace(b"\n", b" "))
        await self.end(None)


class Collected:
    """One object, as an engine makes it where it is not asked for a stream. Nothing is sent before
    it is whole."""

    began, waits_since = False, None

    def __init__(self, kind: str, headers: Mapping[str, str]) -> None:
        self._kind = "chat.completion" if kind == "chat" else "text_completion"
        self._headers = dict(headers)
        self._head: Dict[str, Any] = {}
        self._choices: Dict[int, Dict[str, Any]] = {}
        self._answer: Dict[str, Any] = {}

    async def send(self, chunk: Dict[str, Any], headers: Mapping[str, str]) -> None:
        self._headers.update(headers)
        _join(self._head, {k: v for k, v in chunk.items() if k not in ("choices", "usage")})
        for choice in chunk["choices"]:
            self._add(choice)

    def _add(self, choice: Dict[str, Any]) -> None:
        into = self._choices.setdefault(choice["index"], {"index": choice["index"]})
        if "delta" in choice:
            into.setdefault("message", {"role": "assistant", "content": _Text("")})
            _join(into["message"], choice.pop("delta"))
        _join(into, choice)

    async def whole(self, answer: Dict[str, Any], headers: Mapping[str, str]) -> None:
        self._headers.update(headers)
        self._answer = answer

    async def end(self, usage: Optional[Dict[str, Any]]) -> None:
        choices = [_joined(self._choices[i]) for i in sorted(self._choices)]
        usage = usage["usage"] if usage else None
        self._answer = {**self._head, "object": self._kind, "choices": choices, "usage": usage}

    async def broken(self, error: Union[ApiError, PassedOn]) -> None:
        raise AssertionError("nothing was sent: the answer is the error")

    def response(self) -> web.StreamResponse:
        headers = {**self._headers, "Content-Type": "application/json"}
        return web.Response(body=encode(self._answer), headers=headers)


GROW = ("content", "reasoning", "reasoning_content", "refusal", "text", "token_ids")


class _Text:
    """Pieces of a text that grows: put together once, at the end."""

    def __init__(self, text: str) -> None:
        self.pieces = [text]


def _join(into: Dict[str, Any], parts: Mapping[str, Any]) -> None:
    """Members of a chunk into those of the whole."""
    for name, value in parts.items():
        old = into.get(name)
        if name not in GROW or not isinstance(value, (str, list)):
            if value is not None or name not in into:
                into[name] = value
        elif isinstance(value, str) and isinstance(old, _Text):
            old.pieces.append(value)
        elif isinstance(value, list) and isinstance(old, list):
            old += value
        else:
            into[name] = _Text(value) if isinstance(value, str) else list(value)


def _joined(parts: Dict[str, Any]) -> Dict[str, Any]:
    made = {n: "".join(v.pieces) if isinstance(v, _Text) else v for n, v in parts.items()}
    if isinstance(made.get("message"), dict):
        made["message"] = _joined(made["message"])
    return made
