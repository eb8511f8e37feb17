"""Who leads, where masters come and go (docs/REPLICATION.md): calls go to the server that leads,
and one whose reply was lost is sent again to whoever leads then.

    leader = Leader(Servers([target], sentinels, "pool"), patience_s=10)
    await leader.start()
    reply = await leader.call("CONDUCTOR.ROUTE", "q1", "MODEL", "m", "LENGTH", 100)

Sentinels name the servers. The one is believed that says it is a master, of no older epoch than the
last one, and takes writes. A promotion shows there before Sentinels tell of it, and a master that
was left behind is told by its epoch. That is why redis-py's own Sentinel is not used: it believes
the first one that answers, which takes it a second longer, and knows no epochs."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .link import Link, Lost, Refused, Target, address_of, target_of
from .waits import within

__all__ = ["Away", "Leader", "Servers", "is_gone"]

LOG = logging.getLogger("tarn.gateway")
# Who answers so does not lead, or not here. redis-py takes the first word of some of them away.
GONE = ("READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "MISCONF", "NOPERM", "NOAUTH")
GONE_TEXTS = ("You can't write against a read only", "unknown command", "this user has no perm")
LOOK_S, LOOK_RARELY_S = 0.015, 0.5
ASK_S = 0.1  # between two questions to Sentinels
PROBE = ("CONDUCTOR.LOAD", "-")  # a write that changes nothing: there is no such engine

Address = Optional[Tuple[str, int]]
Found = Tuple[int, Address, Link]


class Away(ConnectionError):
    """Nobody leads, for longer than one is patient. sent: the call may have been obeyed before."""

    sent = False


def is_gone(error: Refused) -> bool:
    text = str(error)
    return type(error).__name__ in ("ReadOnlyError", "NoPermissionError") or text.startswith(
        GONE + GONE_TEXTS
    )


class Servers:
    """servers: those that are known. sentinels: they name more; those speak as the first server
    does: its user, password and TLS are theirs."""

    def __init__(self, servers: Sequence[Target], sentinels: Sequence[Target], name: str) -> None:
        self._sentinels, self._name = list(sentinels), name
        self._like = dict(servers[0]) if servers else target_of("redis://")
        self._known: Dict[Address, Target] = {address_of(t): t for t in servers}
        self._link: Optional[Link] = None

    async def targets(self) -> Dict[Address, Target]:
        """All of which was ever heard."""
        for _ in range(len(self._sentinels)):
            try:
                for address in await self._named():
                    self._known.setdefault(
                        address, {**self._like, "host": address[0], "port": address[1]}
                    )
                break
            except (Lost, Refused) as error:
                LOG.debug("a Sentinel does not answer: %s", error)
                await self.close()
                self._sentinels.append(self._sentinels.pop(0))
        return self._known

    async def _named(self) -> List[Tuple[str, int]]:
        """As one Sentinel names them: the master, and its replicas."""
        if self._link is None or self._link.why:
            self._link = await Link.open(self._sentinels[0])
        master = await self._link.call("SENTINEL", "get-master-addr-by-name", self._name)
        if master is None:
            raise Lost(f"it does not know a master {self._name}")
        found = [(master[0], int(master[1]))]
        for flat in await self._link.call("SENTINEL", "replicas", self._name):
            replica = dict(zip(flat[::2], flat[1::2]))
            found.append((replica["ip"], int(replica["port"])))
        return found

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None


class Scout:
    """Asks one server again and again whether it leads. It says so once, and waits."""

    def __init__(self, address: Address, target: Target, least: int) -> None:
        self.address, self._target, self._least = address, target, least
        self.answered = asyncio.Event()  # it, or nobody within a second
        self.found: Optional[Found] = None
        self.why = ""
        self.link: Optional[Link] = None

    async def run(self, some: asyncio.Event, begun: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.found is None or self.found[2].why:
                self.found = await self._ask()
            self.answered.set()
            some.set()
            rarely = loop.time() - begun > 5
            await asyncio.sleep(LOOK_RARELY_S if rarely else LOOK_S)

    async def _ask(self) -> Optional[Found]:
        try:
            epoch = await self._epoch()
        except (Lost, Refused) as error:
            self.why = str(error)
            return None
        assert self.link is not None
        return epoch, self.address, self.link

    async def _epoch(self) -> int:
        if self.link is None or self.link.why:
            self.link = await Link.open(self._target)
        calls = self.link.call("INFO", "server", "replication"), self.link.call(*PROBE)
        info, probe = await asyncio.gather(*calls, return_exceptions=True)
        if isinstance(probe, Lost) or (isinstance(probe, Refused) and is_gone(probe)):
            raise probe
        if isinstance(info, Exception):  # a user without +info: it takes writes, and that is all
            return max(self._least, 0)
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        epoch = int(fields.get("master_epoch", 0))
        if fields.get("role") != "master":
            raise Lost("it is a replica")
        if epoch < self._least:
            raise Lost(f"it is a master of epoch {epoch}, and there was one of {self._least}")
        return epoch


class Leader:
    """patience_s: for so long a call waits until somebody leads."""

    def __init__(self, servers: Servers, patience_s: float) -> None:
        self._servers, self.patience_s = servers, patience_s
        self.link: Optional[Link] = None
        self.address: Address = None
        self.epoch = -1
        self.changes = 0  # of the link
        self.why = "it was not asked yet"
        self.on_found: Optional[Callable[[], None]] = None
        self._lost_at = 0.0

    async def start(self) -> None:
        """Does not wait until somebody leads."""
        self._loop = asyncio.get_running_loop()
        self._ready, self._gone = asyncio.Event(), asyncio.Event()
        self._lost_at = self._loop.time()
        self._gone.set()
        self._keeper = self._loop.create_task(self._keep())

    async def close(self) -> None:
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        if self.link is not None:
            self.link.on_lost = None
            await self.link.close()
        await self._servers.close()

    @property
    def away(self) -> bool:
        return self.link is None and self._loop.time() - self._lost_at >= self.patience_s

    async def led(self, until: float) -> Link:
        """Whoever leads. Away: nobody, until that time of the loop's or since patience_s."""
        while self.link is None:
            left = min(until, self._lost_at + self.patience_s) - self._loop.time()
            if left <= 0:
                raise Away(self.why)
            try:
                await within(self._ready.wait(), left)
            except asyncio.TimeoutError:
                continue
        return self.link

    async def returns(self) -> None:
        """Until somebody leads, however long that takes."""
        await self._ready.wait()

    async def call(self, *words: Any) -> Any:
        """The reply. Refused: an error that is an answer; Away."""
        until, sent = self._loop.time() + self.patience_s, False
        while True:
            try:
                link = await self.led(until)
            except Away as error:
                error.sent = sent
                raise
            sent = True
            try:
                return await link.call(*words)
            except Lost as error:
                self.leave(link, str(error))
            except Refused as error:
                if not is_gone(error):
                    raise
                self.leave(link, str(error))

    def leave(self, link: Link, why: str) -> None:
        """It does not lead any more."""
        link.lose(why)
        if link is not self.link:
            return
        LOG.warning("the Conductor at %s is lost: %s", self.where, why)
        self.link, self.why, self._lost_at = None, why, self._loop.time()
        self._ready.clear()
        self._gone.set()

    @property
    def where(self) -> str:
        return "%s:%d" % self.address if self.address is not None else "a unix socket"

    # --- looking for it ---

    async def _keep(self) -> None:
        while True:
            await self._gone.wait()
            self._gone.clear()
            self.epoch, self.address, link = await self._find()
            self.link, self.changes = link, self.changes + 1
            link.on_lost = functools.partial(self.leave, link)
            LOG.info("the Conductor is at %s, epoch %d", self.where, self.epoch)
            self._ready.set()
            if self.on_found is not None:
                self.on_found()

    async def _find(self) -> Found:
        scouts: Dict[Address, Scout] = {}
        tasks: List["asyncio.Task[None]"] = []
        some, begun = asyncio.Event(), self._loop.time()
        found = None
        try:
            while found is None:
                for address, target in (await self._servers.targets()).items():
                    if address not in scouts:
                        scouts[address] = Scout(address, target, self.epoch)
                        tasks.append(self._loop.create_task(scouts[address].run(some, begun)))
                found = await self._best(list(scouts.values()), some)
            return found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for scout in scouts.values():
                if scout.link is not None and (found is None or scout.link is not found[2]):
                    await scout.link.close()

    async def _best(self, scouts: Sequence[Scout], some: asyncio.Event) -> Optional[Found]:
        """One that leads, if any does by the next question to Sentinels. A later epoch than the
        last is believed at once; else all others are heard first."""
        until = self._loop.time() + ASK_S
        while True:
            some.clear()
            found = [s.found for s in scouts if s.found is not None and not s.found[2].why]
            best = max(found, key=lambda f: f[0], default=None)
            if best is not None and (
                best[0] > self.epoch >= 0 or all(s.answered.is_set() for s in scouts)
            ):
                return best
            left = until - self._loop.time()
            if left <= 0:
                self.why = "; ".join(sorted({s.why for s in scouts if s.why})) or self.why
                return None
            try:
                await within(some.wait(), left)
            except asyncio.TimeoutError:
                continue
