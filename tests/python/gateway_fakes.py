"""A server that speaks RESP and answers what a test says, for what real ones do only in bad
moments."""

import asyncio
import logging
import unittest

from harness import SLOW


class Async(unittest.IsolatedAsyncioTestCase):
    """What is expected to go wrong is not logged, nor that a machine is busy."""

    async def asyncSetUp(self):
        asyncio.get_running_loop().slow_callback_duration = 60
        log = logging.getLogger("tarn.gateway")
        self.addCleanup(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)


async def until(condition):
    async def wait():
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), 60 * SLOW)


def encode(value):
    """A reply: int, text, None, list; an Exception's text is an error."""
    if isinstance(value, Exception):
        return f"-{value}\r\n".encode()
    if isinstance(value, int):
        return b":%d\r\n" % value
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(encode, value))
    text = str(value).encode()
    return b"$%d\r\n%s\r\n" % (len(text), text)


HANG_UP, SILENCE = object(), object()


class Fake:
    """answers: by command's name, a value, HANG_UP, SILENCE, or a function of its words. seen: all
    that it was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.seen, self.connections, self.writers = [], 0, set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=1 << 24)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.hang_up()
        await self.server.wait_closed()

    def hang_up(self):
        for writer in self.writers:
            writer.close()
        self.writers.clear()

    def count(self, command):
        return sum(words[0] == command for words in self.seen)

    async def serve(self, reader, writer):
        self.connections += 1
        self.writers.add(writer)
        try:
            while True:
                n = int((await reader.readline())[1:])
                words = []
                for _ in range(n):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2].decode("latin-1"))
                if not self.answer(words, writer):
                    break
        except (ValueError, OSError, asyncio.IncompleteReadError):
            pass
        writer.close()

    def answer(self, words, writer):
        self.seen.append(words)
        value = self.answers.get(words[0].split(".")[-1], RuntimeError("ERR unknown command"))
        if callable(value):
            value = value(words)
        if value is HANG_UP:
            return False
        if value is not SILENCE:
            writer.write(encode(value))
        return True


def info(epoch, role="master"):
    return f"# Replication\r\nrole:{role}\r\nmaster_epoch:{epoch}\r\n"


def rank(id, **fields):
    """As CONDUCTOR.LIST has it."""
    told = {"role": "both", "model": "m", "block": 16, "rank": 0, "url": f"http://{id}:80"}
    told.update({"id": id, "state": "up", **fields})
    return [x for pair in told.items() for x in pair]


def placed(engine="e1", decode=None):
    return [engine, decode, [0, 0, 0], 0, "12.5", "3.5", 60000]


def conductor(epoch=1, **answers):
    """A Fake that leads, and knows engines e1 and e2."""
    there = {
        "INFO": lambda words: (
            info(epoch) if words[0] == "INFO" else ["lora", None, "tenant", None]
        ),
        "LOAD": RuntimeError("ERR no engine '-' is registered"),
        "LIST": [rank("e1"), rank("e2")],
        "ROUTE": placed(),
        "FIRST": "OK",
        "DONE": "OK",
    }
    return Fake(**{**there, **answers})


def sentinel(*servers):
    """The first one is the master, for all it knows."""

    def answer(words):
        if words[1] == "replicas":
            return [["ip", "127.0.0.1", "port", str(s.port)] for s in servers[1:]]
        return ["127.0.0.1", str(servers[0].port)]

    return Fake(SENTINEL=answer)
