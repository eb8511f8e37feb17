"""A connection to a server that speaks RESP, on which calls are pipelined: hundreds may wait for
their replies at a time, and none of them waits for another's.

    link = await Link.open(target_of("redis://127.0.0.1:6479"))
    await link.call("CONDUCTOR.LIST")

It stands on a connection of redis.asyncio, which knows TLS, unix sockets and passwords. That
package's clients are not used: they hold a connection for each call that waits, and up to 4.5 one
that was cancelled gave its reply to the next caller."""

from __future__ import annotations

import asyncio
import collections
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, TypeVar

from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.exceptions import RedisError, ResponseError

from .. import __version__ as VERSION
from .waits import within

__all__ = ["Link", "Lost", "Refused", "Target", "address_of", "target_of"]

Target = Dict[str, Any]  # what makes a connection: its class and keywords
Refused = ResponseError
T = TypeVar("T")

ANSWER_S = 1.0  # who is silent for so long while a call waits is lost
LOOK_S = ANSWER_S / 4


class Lost(ConnectionError):
    """The connection broke, or could not be made; whether the call was obeyed is not known."""


def target_of(url: str) -> Target:
    """Of redis://, rediss:// or unix://, whose options are those of redis-py. ValueError: it is
    none. The certificate of rediss:// must be of that host unless it says otherwise."""
    target: Target = dict(parse_url(url))
    target.setdefault("connection_class", Connection)
    if target["connection_class"] is SSLConnection:
        target.setdefault("ssl_check_hostname", True)
    return target


def unheard(answer: "asyncio.Future[Any]") -> None:
    """Who may not say what it is called is served all the same."""
    if not answer.cancelled():
        answer.exception()


class Link:
    """Calls are sent in the order in which they are made, and answered in it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._waiting: Deque[Tuple["asyncio.Future[Any]", float]] = collections.deque()
        self._unsent: List[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()
        self._heard = self._due = self._loop.time()
        self.why = ""  # it is lost; "": it is not
        self.on_lost: Optional[Callable[[str], None]] = None
        self._tasks = [self._loop.create_task(work()) for work in (self._read, self._write)]
        self._look_later()

    @classmethod
    async def open(cls, target: Target) -> "Link":
        keywords = dict(target, decode_responses=True, encoding_errors="replace")
        connection = keywords.pop("connection_class")(**keywords)
        try:
            await within(connection.connect(), ANSWER_S)
        except asyncio.TimeoutError:
            raise Lost("it does not answer") from None
        except (RedisError, OSError) as error:
            # redis-py leaves out what is wrong with a certificate.
            cause = error.__context__
            raise Lost(str(cause if isinstance(cause, OSError) else error)) from None
        link = cls(connection)
        for word, value in (("LIB-NAME", "tarn-gateway"), ("LIB-VER", VERSION)):
            link.call("CLIENT", "SETINFO", word, value).add_done_callback(unheard)
        return link

    def call(self, *words: Any) -> "asyncio.Future[Any]":
        """Its reply is the future's; Refused: an error of the server's; Lost."""
        future: "asyncio.Future[Any]" = self._loop.create_future()
        if self.why:
            future.set_exception(Lost(self.why))
            return future
        self._waiting.append((future, self._loop.time()))
        self._unsent += self._connection.pack_command(*words)
        self._some.set()
        return future

    def lose(self, why: str) -> None:
        """All that wait hear of it."""
        if self.why:
            return
        self.why = why
        self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(Lost(why))
        self._waiting.clear()
        if self.on_lost is not None:
            self.on_lost(why)

    async def close(self) -> None:
        self.lose("it was closed")
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                unsent, self._unsent = self._unsent, []
                await self._connection.send_packed_command(unsent, check_health=False)
        except (RedisError, OSError) as error:
            self.lose(str(error))

    async def _read(self) -> None:
        try:
            while True:
                try:
                    value = await self._connection.read_response()
                except ResponseError as error:
                    value = error
                self._heard = self._loop.time()
                self._answer(value)
        except (RedisError, OSError) as error:
            self.lose(str(error) or "it hung up")
        finally:
            await self._disconnect()

    def _answer(self, value: Any) -> None:
        if not self._waiting:
            raise RedisError("it answered what it was not asked")
        future, _ = self._waiting.popleft()
        if future.done():  # who waited for it was cancelled
            return
        if isinstance(value, ResponseError):
            future.set_exception(value)
        else:
            future.set_result(value)

    async def _disconnect(self) -> None:
        try:
            await within(self._connection.disconnect(), ANSWER_S)
        except (RedisError, OSError, asyncio.TimeoutError):
            pass

    # --- silence ---

    def _look_later(self) -> None:
        self._due = self._loop.time() + LOOK_S
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        late = now - self._due > LOOK_S  # we stood still ourselves: replies may lie there unread
        oldest = self._waiting[0][1] if self._waiting else now
        if not late and now - max(oldest, self._heard) > ANSWER_S:
            self.lose(f"it was silent for {ANSWER_S:.0f} s")
        else:
            self._look_later()


def address_of(target: Target) -> Optional[Tuple[str, int]]:
    """Host and port; None: a unix socket."""
    if "path" in target:
        return None
    return target.get("host", "localhost"), int(target.get("port", 6379))
