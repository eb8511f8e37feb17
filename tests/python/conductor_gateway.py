"""A gateway's side of the Conductor, where masters come and go: one connection on which requests
are pipelined, and what becomes of them when it breaks.

    gateway = Gateway([("127.0.0.1", 26379), ...], "pool")
    await gateway.start()
    reply, again = await gateway.call("CONDUCTOR.ROUTE", "q1", "MODEL", "m", "LENGTH", 100)

A call whose reply was lost is sent again, to whoever leads then; `again` says so. Who leads is
found as docs/REPLICATION.md has it: Sentinels name the servers, and the one that is a master of a
later epoch than the last is believed."""

import asyncio
import collections

GONE = ("READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS")  # who says so does not lead
LOOK_S = 0.01


class Incomplete(Exception):
    """The rest of a reply is yet to come."""


def line_of(data, at):
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    return bytes(data[at:end]), end + 2


def parse(data, at):
    """One reply of RESP2 and where it ends. Errors are exceptions, returned."""
    line, at = line_of(data, at)
    kind, rest = line[:1], line[1:]
    if kind == b":":
        return int(rest), at
    if kind == b"+":
        return rest.decode(), at
    if kind == b"-":
        return RuntimeError(rest.decode()), at
    n = int(rest)
    if n < 0:
        return None, at
    if kind == b"$":
        if len(data) < at + n + 2:
            raise Incomplete
        return bytes(data[at : at + n]).decode(errors="replace"), at + n + 2
    out = []
    for _ in range(n):
        value, at = parse(data, at)
        out.append(value)
    return out, at


def encode(words):
    words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def pairs(flat):
    """A map, which RESP2 has as a flat list."""
    return dict(zip(flat[::2], flat[1::2]))


class Link(asyncio.Protocol):
    """Replies come in the order of what was sent. When it breaks all that wait hear of it."""

    def __init__(self):
        self.waiting, self.data, self.transport = collections.deque(), bytearray(), None

    @classmethod
    async def open(cls, address):
        loop = asyncio.get_running_loop()
        return (await asyncio.wait_for(loop.create_connection(cls, *address), 1))[1]

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.data += data
        at = 0
        try:
            while self.waiting:
                value, at = parse(self.data, at)
                future = self.waiting.popleft()
                if not future.done():
                    future.set_result(value)
        except Incomplete:
            pass
        del self.data[:at]

    def connection_lost(self, _why):
        self.transport = None
        for future in self.waiting:
            if not future.done():
                future.set_exception(ConnectionError("lost"))
        self.waiting.clear()

    async def call(self, *words):
        if self.transport is None or self.transport.is_closing():
            raise ConnectionError("closed")
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self.transport.write(encode(words))
        value = await future
        if isinstance(value, Exception):
            raise value
        return value

    def close(self):
        if self.transport is not None:
            self.transport.abort()


class Gateway:
    """on_master(link): awaited before the calls that wait go to a new master."""

    def __init__(self, sentinels, name, on_master=None):
        self.sentinels, self.name, self.on_master = sentinels, name, on_master
        self.link, self.epoch, self.finding = None, -1, None
        self.address = None
        self.ready = asyncio.Event()

    async def start(self):
        self.finding = asyncio.create_task(self.find_always())
        await self.ready.wait()

    def stop(self):
        self.finding.cancel()
        if self.link is not None:
            self.link.close()

    async def call(self, *words):
        again = False
        while True:
            await self.ready.wait()
            link = self.link
            try:
                return await link.call(*words), again
            except ConnectionError:
                again = True
            except RuntimeError as error:
                if not str(error).startswith(GONE):
                    raise
            self.lost(link)

    def lost(self, link):
        if link is self.link:
            self.ready.clear()
        link.close()

    # --- who leads ---

    async def find_always(self):
        while True:
            if not self.ready.is_set():
                await self.find()
            await asyncio.sleep(LOOK_S)
            if self.link.transport is None:
                self.ready.clear()

    async def find(self):
        asked = {}
        while True:
            for address in await self.servers():
                if await self.leads(asked, address):
                    self.link, self.address = asked.pop(address), address
                    if self.on_master is not None:
                        await self.on_master(self.link)
                    self.ready.set()
                    break
            else:
                await asyncio.sleep(LOOK_S)
                continue
            for link in asked.values():
                link.close()
            return

    async def servers(self):
        """As the first Sentinel that answers names them."""
        for address in self.sentinels:
            link = None
            try:
                link = await Link.open(address)
                found = [await link.call("SENTINEL", "get-master-addr-by-name", self.name)]
                for flat in await link.call("SENTINEL", "replicas", self.name):
                    replica = pairs(flat)
                    found.append([replica["ip"], replica["port"]])
                return [(host, int(port)) for host, port in found]
            except (OSError, RuntimeError, asyncio.TimeoutError):
                continue
            finally:
                if link is not None:
                    link.close()
        return []

    async def leads(self, asked, address):
        try:
            if address not in asked or asked[address].transport is None:
                asked[address] = await Link.open(address)
            text = await asyncio.wait_for(asked[address].call("INFO", "server", "replication"), 1)
        except (OSError, RuntimeError, asyncio.TimeoutError):
            return False
        info = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
        epoch = int(info["master_epoch"])
        if info["role"] != "master" or epoch <= self.epoch:
            return False
        self.epoch = epoch
        return True
