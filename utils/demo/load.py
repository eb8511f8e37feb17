"""Chats that are held through gateways, each answer checked: whole, and that of another run.

    load = Load(["http://127.0.0.1:8000", ...], "tarn", chats)
    await load.run()                    # an undisturbed one
    again = Load(gateways, "tarn", chats, load.answers)
    await again.run()
    again.tally.lost, again.tally.different

A turn's prompt has all answers before it. Where one was lost or is another one, the chat goes on
from the right one, so that each turn is compared by itself."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Counter, Dict, List, Optional, Sequence, Tuple

import aiohttp

from chats import Chat, Turn

SILENCE_S = 60  # a stream that says nothing for so long is lost
Place = Tuple[str, int]  # a chat's name, and which turn


@dataclass
class Answer:
    """text: all of it. usage: as the engine counts. first_s: until the first token."""

    text: str
    usage: Dict[str, Any]
    first_s: float


@dataclass
class Tally:
    """What became of the requests. waited: answers "come again" (429), which were followed.
    where: requests that stream now, by the engine that began to answer them. wrong: what was lost
    or different, in words."""

    asked: int = 0
    done: int = 0
    lost: int = 0
    different: int = 0
    waited: int = 0
    tokens: int = 0
    first_s: List[float] = field(default_factory=list)
    where: Counter[str] = field(default_factory=collections.Counter)
    wrong: List[str] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        return self.asked - self.done - self.lost

    def first_ms(self, share: float) -> float:
        """Percentile of the time to the first token."""
        ordered = sorted(self.first_s)
        at = min(len(ordered) - 1, int(share * len(ordered)))
        return ordered[at] * 1000 if ordered else 0.0


class Lost(Exception):
    """There is no answer, or not all of it."""


class Load:
    """answers: what each turn was answered; before: that of the run to compare with. headers: of
    each request. body: what each one says besides."""

    def __init__(
        self,
        gateways: Sequence[str],
        model: str,
        chats: Sequence[Chat],
        before: Optional[Dict[Place, str]] = None,
        body: Optional[Dict[str, Any]] = None,
    ) -> None:
        self.gateways, self.model, self.chats = list(gateways), model, list(chats)
        self.before, self.body = before, dict(body or {})
        self.answers: Dict[Place, str] = {}
        self.tally = Tally()
        self.began = self.ended = 0.0

    @property
    def turns(self) -> int:
        return sum(len(chat.turns) for chat in self.chats)

    async def run(self) -> Tally:
        """Until the last one is answered."""
        timeout = aiohttp.ClientTimeout(total=None, connect=SILENCE_S, sock_read=SILENCE_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            self.began = time.monotonic()
            held = [asyncio.ensure_future(self._hold(http, n)) for n in range(len(self.chats))]
            try:
                await asyncio.gather(*held)
            finally:
                for task in held:
                    task.cancel()
                await asyncio.gather(*held, return_exceptions=True)
                self.ended = time.monotonic()
        return self.tally

    async def _hold(self, http: aiohttp.ClientSession, number: int) -> None:
        chat = self.chats[number]
        said = [{"role": "system", "content": chat.system}]
        for i, turn in enumerate(chat.turns):
            await asyncio.sleep(self.began + turn.at_s - time.monotonic())
            said.append({"role": "user", "content": turn.question})
            gateway = self.gateways[(number + i) % len(self.gateways)]
            answer = await self._turn(http, gateway, (chat.name, i), turn, said)
            if answer is None:
                return  # nobody knows what would have been said
            said.append({"role": "assistant", "content": answer})

    async def _turn(
        self,
        http: aiohttp.ClientSession,
        gateway: str,
        place: Place,
        turn: Turn,
        said: List[Dict[str, str]],
    ) -> Optional[str]:
        """What the chat goes on with."""
        tally, right = self.tally, (self.before or {}).get(place)
        tally.asked += 1
        try:
            answer = await self._ask(http, gateway, place, turn, said)
        except (Lost, aiohttp.ClientError, asyncio.TimeoutError, OSError) as why:
            tally.lost += 1
            tally.wrong.append(f"{place[0]}, turn {place[1] + 1}: {why!r}")
            return right
        tally.done += 1
        tally.first_s.append(answer.first_s)
        self.answers[place] = answer.text
        if self.before is not None and answer.text != right:
            tally.different += 1
            tally.wrong.append(
                f"{place[0]}, turn {place[1] + 1}: {answer.text!r} where it was {right!r}"
            )
        return answer.text if right is None else right

    async def _ask(
        self,
        http: aiohttp.ClientSession,
        gateway: str,
        place: Place,
        turn: Turn,
        said: List[Dict[str, str]],
    ) -> Answer:
        body = {
            "model": self.model,
            "messages": said,
            "max_tokens": turn.answer,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.body,
        }
        name = f"{place[0]}.{place[1] + 1}" + ("" if self.before is None else ".again")
        headers = {"X-Tarn-Session": place[0], "X-Request-Id": name}
        url = gateway + "/v1/chat/completions"
        while True:
            sent = time.monotonic()
            async with http.post(url, json=body, headers=headers) as reply:
                if reply.status == 429:
                    self.tally.waited += 1
                    await asyncio.sleep(float(reply.headers.get("Retry-After", "1")))
                    continue
                if reply.status != 200:
                    raise Lost(f"HTTP {reply.status}: {(await reply.text())[:300]}")
                with self._counted(reply.headers.get("X-Tarn-Engine", "")):
                    return await self._read(reply, turn, sent)

    @contextlib.contextmanager
    def _counted(self, engine: str) -> Any:
        self.tally.where[engine] += 1
        try:
            yield
        finally:
            self.tally.where[engine] -= 1

    async def _read(self, reply: aiohttp.ClientResponse, turn: Turn, sent: float) -> Answer:
        parts: List[str] = []
        usage, finished, first_s = None, None, None
        async for event in _events(reply):
            if "error" in event:
                raise Lost(f"an error in the stream: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                text = choice.get("delta", {}).get("content") or ""
                if text:
                    first_s = time.monotonic() - sent if first_s is None else first_s
                    self.tally.tokens += 1
                    parts.append(text)
                finished = choice.get("finish_reason") or finished
        if finished is None or usage is None or first_s is None:
            raise Lost(f"a stream without its {'end' if finished is None else 'usage or text'}")
        if finished != "length" or usage["completion_tokens"] != turn.answer:
            raise Lost(f"{usage['completion_tokens']} of {turn.answer} tokens, {finished}")
        return Answer("".join(parts), usage, first_s)


async def _events(reply: aiohttp.ClientResponse) -> AsyncIterator[Dict[str, Any]]:
    """Of a stream, to its [DONE]."""
    async for line in reply.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise Lost("the stream broke")
