"""What is told in the background: nobody waits for it, it arrives in the order in which it was
told, and is told again where a reply was lost."""

from __future__ import annotations

import asyncio
import collections
from typing import Any, Deque, Dict, List, Tuple

from .leader import Away, Leader, is_gone
from .link import Lost, Refused

__all__ = ["Teller"]

WAITING_MOST = 65536
AT_ONCE = 256
CLOSE_S = 2.0

Told = Tuple[str, List[Any], "asyncio.Future[None]"]


class Teller:
    """WAITING_MOST wait at most; then the oldest are dropped, whose leases end first."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._waiting: Deque[Told] = collections.deque()
        self._last: Dict[str, "asyncio.Future[None]"] = {}  # of a request: its latest is told
        self.dropped = 0
        self.unknown = 0  # answered with an error: a lease had ended, or it had been told before

    def start(self) -> None:
        self._some = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._tell_always())

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def tell(self, command: str, request: str, *words: Any) -> None:
        future: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= WAITING_MOST:
            self.dropped += 1
            self._over(self._waiting.popleft())
        self._waiting.append((request, [command, request, *words], future))
        self._last[request] = future
        self._some.set()

    async def told(self, request: str) -> None:
        """Until nothing waits that was told of it, as long as somebody is there to be told."""
        last = self._last.get(request)
        if last is not None and not self._leader.away:
            await asyncio.wait([last], timeout=self._leader.patience_s)

    async def close(self) -> None:
        if self._last and not self._leader.away:
            await asyncio.wait(list(self._last.values()), timeout=CLOSE_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _over(self, told: Told) -> None:
        request, _, future = told
        future.set_result(None)
        if self._last.get(request) is future:
            del self._last[request]

    async def _tell_always(self) -> None:
        batch: List[Told] = []
        while True:
            while self._waiting and len(batch) < AT_ONCE:
                batch.append(self._waiting.popleft())
            if not batch:
                self._some.clear()
                await self._some.wait()
                continue
            n = await self._tell(batch)
            for told in batch[:n]:
                self._over(told)
            del batch[:n]

    async def _tell(self, batch: List[Told]) -> int:
        """How many of them, from the first on, it was told."""
        try:
            link = await self._leader.led(float("inf"))
        except Away:
            await self._leader.returns()
            return 0
        calls = [link.call(*words) for _, words, _ in batch]
        for n, reply in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
            error = reply if isinstance(reply, Exception) else None
            if isinstance(error, Lost) or (isinstance(error, Refused) and is_gone(error)):
                self._leader.leave(link, str(error))
                return n
            self.unknown += error is not None
        return len(calls)
