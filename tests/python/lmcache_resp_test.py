"""LMCache as it is, without a line of ours: what its redis:// connector and its native resp://
client send, against tarn-server.

The native client reads replies by their length and knows no errors: any other reply to a SET puts
it out of step for good. So what is cold has to make room, always."""

import asyncio
import os
import random
import socket
import struct
import unittest

from harness import TarnTest, together

try:
    import redis
    import redis.asyncio
except ImportError:
    redis = None


class Native:
    """One worker of the native client: a blocking socket, replies by fixed length."""

    def __init__(self, port, user="", password=""):
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        if password:
            words = [b"AUTH"] + ([user.encode()] if user else []) + [password.encode()]
            self.send(
                b"*%d\r\n" % len(words)
                + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
            )
            self.expect(b"+OK\r\n")

    def send(self, *parts):
        """As writev does it: headers, payload and end in one go, as far as the socket takes
        them."""
        parts = [memoryview(part) for part in parts]
        while parts:
            sent = self.socket.sendmsg(parts[:16])
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]

    def exactly(self, n):
        data = bytearray(n)
        view = memoryview(data)
        while view:
            got = self.socket.recv_into(view)
            if got == 0:
                raise AssertionError("the server closed the connection")
            view = view[got:]
        return bytes(data)

    def expect(self, reply):
        got = self.exactly(len(reply))
        if got != reply:
            self.socket.settimeout(0.2)
            raise AssertionError(f"{got!r} instead of {reply!r}: out of step")

    def one_or_zero(self, command, key):
        key = key.encode()
        self.send(
            b"*2\r\n$%d\r\n%s\r\n" % (len(command), command), b"$%d\r\n%s\r\n" % (len(key), key)
        )
        got = self.exactly(4)
        if got not in (b":1\r\n", b":0\r\n"):
            raise AssertionError(f"{got!r} to {command!r}: out of step")
        return got == b":1\r\n"

    def set(self, key, value):
        key = key.encode()
        self.send(
            b"*3\r\n$3\r\nSET\r\n",
            b"$%d\r\n%s\r\n" % (len(key), key),
            b"$%d\r\n" % len(value),
            value,
            b"\r\n",
        )
        self.expect(b"+OK\r\n")

    def get(self, key, size):
        """The value, None for nil. Its size is known: another one is out of step."""
        key = key.encode()
        self.send(b"*2\r\n$3\r\nGET\r\n", b"$%d\r\n%s\r\n" % (len(key), key))
        header, got = b"$%d\r\n" % size, b""
        while not got.endswith(b"\n"):
            got += self.exactly(1)
        if got == b"$-1\r\n":
            return None
        if got != header:
            raise AssertionError(f"{got!r} instead of {header!r}: out of step")
        value = self.exactly(size)
        self.expect(b"\r\n")
        return value

    def close(self):
        self.socket.close()


def key_of(i):
    return f"meta-llama/Llama-3.1 8B@08000800@0@{i:064x}"


def value_of(i, size):
    head = struct.pack("<Q", i) * 512
    return (head * (size // len(head) + 1))[:size]


class RespTest(TarnTest):
    def native(self, **kwargs):
        client = Native(self.server.port, **kwargs)
        self.addCleanup(client.close)
        return client

    def workers(self, n, work):
        """work(client, i) in n threads, each with a connection; the first error is raised."""

        def run(i):
            client = Native(self.server.port)
            try:
                work(client, i)
            finally:
                client.close()

        together(run, range(n))


class NativeClient(RespTest):
    pool = "128mb"
    size = 4 << 20

    def test_twice_the_pool(self):
        client, n = self.native(), 64
        for i in range(n):
            client.set(key_of(i), value_of(i, self.size))
        found = []
        for i in range(n):
            value = client.get(key_of(i), self.size)
            self.assertEqual(client.one_or_zero(b"EXISTS", key_of(i)), value is not None)
            if value is not None:
                self.assertEqual(value, value_of(i, self.size))
                found.append(i)
        self.assertGreater(len(found), 24)
        self.assertIn(n - 1, found)
        for i in range(n):
            self.assertEqual(client.one_or_zero(b"DEL", key_of(i)), i in found)

    def test_workers_twice_the_pool(self):
        """Eight connections (the default), stores and loads at the same time."""

        def work(client, w):
            rng = random.Random(w)
            for turn in range(9):
                i = 1000 + w * 100 + turn
                client.set(key_of(i), value_of(i, self.size))
                other = 1000 + rng.randrange(8) * 100 + rng.randrange(turn + 1)
                value = client.get(key_of(other), self.size)
                if value is not None and value != value_of(other, self.size):
                    raise AssertionError("wrong bytes")
                client.one_or_zero(b"EXISTS", key_of(other))

        self.workers(8, work)

    def test_set_again(self):
        """A SET of a key that is there replaces it: always +OK."""
        client = self.native()
        for turn in range(3):
            client.set("again", value_of(turn, self.size))
            self.assertEqual(client.get("again", self.size), value_of(turn, self.size))

    def test_keys_and_sizes(self):
        client = self.native()
        for size in (1, 2, 511, 4096, 65537, (1 << 20) + 1, 33 << 20):
            for key in (f"a b/c@{size}", "ü" * 100 + str(size), "k" * 1000 + str(size)):
                client.set(key, value_of(size, size))
                self.assertEqual(client.get(key, size), value_of(size, size))
        self.assertIsNone(client.get("nothing", 4096))


class NativeWithPassword(RespTest):
    server_args = ("--requirepass", "secret")

    def test_auth(self):
        for user in ("", "default"):
            client = self.native(user=user, password="secret")
            client.set("k", b"value")
            self.assertEqual(client.get("k", 5), b"value")


class RedisConnector(RespTest):
    """The sequences of redis://: payload, then metadata; metadata first when reading."""

    metadata = struct.pack("<7i", 1 << 20, 1, 3, 2, 32, 16, 1024)

    async def connection(self):
        return await asyncio.open_connection("127.0.0.1", self.server.port, limit=1 << 22)

    async def command(self, connection, *words):
        reader, writer = connection
        words = [word.encode() if isinstance(word, str) else word for word in words]
        writer.write(
            b"*%d\r\n" % len(words)
            + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        )
        await writer.drain()
        line = await reader.readline()
        if line[:1] != b"$":
            return line
        if line == b"$-1\r\n":
            return None
        return (await reader.readexactly(int(line[1:]) + 2))[:-2]

    async def put(self, connection, key, value):
        self.assertEqual(await self.command(connection, "SET", key + "kv_bytes", value), b"+OK\r\n")
        self.assertEqual(
            await self.command(connection, "SET", key + "metadata", self.metadata), b"+OK\r\n"
        )

    async def get(self, connection, key):
        metadata = await self.command(connection, "GET", key + "metadata")
        if metadata is None:
            return None
        self.assertEqual(metadata, self.metadata)
        value = await self.command(connection, "GET", key + "kv_bytes")
        if value is None:
            self.assertIn(
                await self.command(connection, "DEL", key + "metadata"), (b":1\r\n", b":0\r\n")
            )
        return value

    def test_burst(self):
        """150 connections at once, each with a chunk of 256 KiB: more than the pool, so some are
        gone again."""

        async def one(i):
            connection = await self.connection()
            key, value = f"llama 3@1@0@{i:x}@bfloat16", value_of(i, 256 << 10)
            await self.put(connection, key, value)
            got = await self.get(connection, key)
            self.assertIn(got, (None, value))
            connection[1].close()
            return got is not None

        async def run():
            return await asyncio.gather(*(one(i) for i in range(150)))

        self.assertGreater(sum(asyncio.run(run())), 75)

    @unittest.skipIf(redis is None, "python3-redis is not installed")
    def test_no_false_hits_beyond_the_pool(self):
        """Payload and metadata go together: whose EXISTS says yes, can be read."""
        n, size = 200, 1 << 20

        async def run():
            pool = redis.asyncio.ConnectionPool.from_url(
                f"redis://127.0.0.1:{self.server.port}", max_connections=150
            )
            client = redis.asyncio.Redis(connection_pool=pool)

            async def put(i):
                await client.set(f"beyond{i}kv_bytes", value_of(i, size))
                await client.set(f"beyond{i}metadata", self.metadata)

            async def get(i):
                if await client.get(f"beyond{i}metadata") is None:
                    return False
                value = await client.get(f"beyond{i}kv_bytes")
                self.assertIn(value, (None, value_of(i, size)))
                return value is not None

            for first in range(0, n, 40):  # in bursts, as the connector does it
                await asyncio.gather(*(put(i) for i in range(first, first + 40)))
            hits = [i for i in range(n) if await client.exists(f"beyond{i}metadata")]
            readable = [i for i in range(n) if await get(i)]
            payloads = [i for i in range(n) if await client.exists(f"beyond{i}kv_bytes")]
            await client.close()
            await pool.disconnect()
            return hits, readable, payloads

        hits, readable, payloads = asyncio.run(run())
        self.assertEqual(hits, readable)
        self.assertEqual(payloads, readable)
        self.assertGreater(len(readable), 20)
        self.assertLess(len(readable), n)

    def test_payload_that_is_gone(self):
        """Who removes the payload removes the metadata with it, and the chunk is a miss."""

        async def run():
            connection = await self.connection()
            await self.put(connection, "k", os.urandom(4096))
            self.assertEqual(await self.command(connection, "EXISTS", "kmetadata"), b":1\r\n")
            await self.command(connection, "DEL", "kkv_bytes")
            self.assertEqual(await self.command(connection, "EXISTS", "kmetadata"), b":0\r\n")
            self.assertIsNone(await self.get(connection, "k"))
            self.assertEqual(await self.command(connection, "EXISTS", "kmetadata"), b":0\r\n")
            connection[1].close()

        asyncio.run(run())

    @unittest.skipIf(redis is None, "python3-redis is not installed")
    def test_redis_py(self):
        """With the client that the connector uses, as it uses it."""
        self.client().command("FLUSHALL")  # there is room for all of it

        async def run():
            pool = redis.asyncio.ConnectionPool.from_url(
                f"redis://127.0.0.1:{self.server.port}", max_connections=150
            )
            client = redis.asyncio.Redis(connection_pool=pool)

            async def one(i):
                key, value = f"a/b c@8@{i}@ff@bfloat16", value_of(i, 100_000)
                await client.set(key + "kv_bytes", memoryview(value))
                await client.set(key + "metadata", self.metadata)
                self.assertTrue(await client.exists(key + "metadata"))
                self.assertEqual(await client.get(key + "metadata"), self.metadata)
                self.assertEqual(await client.get(key + "kv_bytes"), value)

            await asyncio.gather(*(one(i) for i in range(100)))
            await client.close()
            await pool.disconnect()

        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
