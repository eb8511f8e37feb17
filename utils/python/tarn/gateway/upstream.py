"""Requests to engines, and what comes back. Everything that engines send is doubted: it is read
within bounds, and what is not as it must be is a failure of the engine (EngineFailed)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any, AsyncIterator, Dict, Iterator, List, Mapping, NoReturn, Optional

import aiohttp

from .errors import EngineFailed, PassedOn
from .place import Engine
from .waits import within

__all__ = ["Limits", "Upstream", "events_of"]

# What an engine refuses although the request may be right: another engine may take it.
ELSEWHERE = (401, 403, 404, 408, 429)
# ... of which these say nothing about the engine, and are passed on if all say so.
NO_FAULT = (404, 429)
ERROR_MOST = 1 << 20
DRAIN_S = 1.0


@dataclass(frozen=True)
class Limits:
    """connect_s: until a connection is there. first_s: until the answer begins. silent_s: between
    two pieces of it. answer_s: until one begins that comes all at once, when it is whole. 0: for
    ever. event_bytes: of one event; answer_bytes: of an answer that is not streamed."""

    connect_s: float = 5.0
    first_s: float = 300.0
    silent_s: float = 60.0
    answer_s: float = 3600.0
    event_bytes: int = 16 << 20
    answer_bytes: int = 256 << 20


class Events:
    """The data of server-sent events out of a stream of bytes, cut anywhere."""

    def __init__(self, most: int) -> None:
        self._rest, self._seen, self._most = bytearray(), 0, most
        self._data: List[bytes] = []
        self._size = 0

    def feed(self, raw: bytes) -> Iterator[bytes]:
        """ValueError: an event is too long."""
        self._rest += raw
        while True:
            at = self._rest.find(b"\n", self._seen)
            if at < 0:
                break
            line = bytes(self._rest[:at]).rstrip(b"\r")
            del self._rest[: at + 1]
            self._seen = 0
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._size += len(line)
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data, self._size = [], 0
            self._check()
        self._seen = len(self._rest)
        self._check()

    def _check(self) -> None:
        if self._size + len(self._rest) > self._most and self._size + self._seen > self._most:
            raise ValueError(f"an event of more than {self._most} bytes")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def object_of(engine: str, raw: bytes) -> Dict[str, Any]:
    """An object of JSON from an engine."""
    try:
        found = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise EngineFailed(engine, f"its answer is not JSON: {e}") from None
    if not isinstance(found, dict):
        raise EngineFailed(engine, "its answer is not a JSON object")
    return found


@contextlib.contextmanager
def failures(engine: str) -> Iterator[None]:
    """Turns whatever goes wrong between here and an engine into EngineFailed."""
    try:
        yield
    except asyncio.TimeoutError:
        raise EngineFailed(engine, "it did not answer in time") from None
    except (aiohttp.ClientError, OSError, ValueError) as e:
        raise EngineFailed(engine, f"{type(e).__name__}: {e}"[:500]) from None


class Upstream:
    """Of one gateway, to all engines."""

    def __init__(self, session: aiohttp.ClientSession, limits: Limits) -> None:
        self._session, self.limits = session, limits

    @contextlib.asynccontextmanager
    async def post(
        self, engine: Engine, path: str, body: bytes, headers: Mapping[str, str], first_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The engine's answer, whose status is 200. PassedOn: it finds the request wrong. Leaving
        the block early ends the request there: the connection is closed."""
        url = engine.url.rstrip("/") + path
        headers = {**headers, "Content-Type": "application/json"}
        with failures(engine.id):
            sent = self._send(url, body, headers)
            response = await within(sent, first_s or None)
        try:
            if response.status != 200:
                await self._refused(engine, response)
            yield response
        finally:
            # One that was read to its end has no connection any more; any other's is of no use.
            response.close()

    async def _send(self, url: str, body: bytes, headers: Dict[str, str]) -> aiohttp.ClientResponse:
        """A connection that was kept may have been closed at the other end just now: then once
        more."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.limits.connect_s)
        for again in (True, False):
            try:
                return await self._session.post(
                    url, data=body, headers=headers, timeout=timeout, allow_redirects=False
                )
            except aiohttp.ServerDisconnectedError:
                if not again:
                    raise
        raise AssertionError("the loop returns or raises")

    async def _refused(self, engine: Engine, response: aiohttp.ClientResponse) -> None:
        with failures(engine.id):
            raw = await self._read(response, ERROR_MOST)
        text = raw[:500].decode("utf-8", "replace")
        status = response.status
        passed = PassedOn(status, raw, response.content_type)
        if 400 <= status < 500 and status not in ELSEWHERE or status == 501:
            raise passed
        failed = EngineFailed(engine.id, f"status {status}: {text}", status not in NO_FAULT)
        failed.passed = passed if status in NO_FAULT else None
        raise failed

    async def _read(self, response: aiohttp.ClientResponse, most: int) -> bytes:
        """All of it, and nothing is left on the connection."""
        out = bytearray()
        while True:
            raw = await self.piece(response)
            if not raw:
                return bytes(out)
            out += raw
            if len(out) > most:
                raise ValueError(f"an answer of more than {most} bytes")

    async def whole(self, engine: Engine, response: aiohttp.ClientResponse) -> bytes:
        """An answer that is not streamed."""
        with failures(engine.id):
            return await self._read(response, self.limits.answer_bytes)

    async def piece(self, response: aiohttp.ClientResponse) -> bytes:
        """What has come; b"": it is over."""
        wait = self.limits.silent_s or None
        return await within(response.content.readany(), wait)


async def events_of(
    upstream: Upstream, engine: Engine, response: aiohttp.ClientResponse
) -> AsyncIterator[bytes]:
    """Data of each event, to the end of the stream."""
    if response.content_type != "text/event-stream":
        raise EngineFailed(engine.id, f"{response.content_type} instead of a stream of events")
    events = Events(upstream.limits.event_bytes)
    while True:
        with failures(engine.id):
            raw = await upstream.piece(response)
            if not raw:
                return
            found = list(events.feed(raw))
        for data in found:
            yield data


async def drained(response: aiohttp.ClientResponse) -> Optional[bool]:
    """Reads what is left behind the last event, so that the connection can be used again."""
    with contextlib.suppress(asyncio.TimeoutError, aiohttp.ClientError, OSError):
        for _ in range(16):
            if not await within(response.content.readany(), DRAIN_S):
                return True
    return None
