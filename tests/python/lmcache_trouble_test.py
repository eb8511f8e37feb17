"""TarnConnector in trouble: without memory, with a full pool, with servers that are dead or silent,
and with many who use it at once."""

import asyncio
import time
import unittest

from harness import Server, together, wait_until
from lmcache_helpers import ConnectorTest, SlowClient
from lmcache_stubs import Backend, Metadata, Wrapped, pattern

import tarn


class Memory(ConnectorTest):
    def test_no_memory(self):
        """The leading ones get what memory there is; the others are misses."""
        backend = Backend(capacity=3 * self.metadata.full_bytes())
        connector, keys = self.connector(backend), self.keys(5)
        self.store(connector, keys, self.chunks(5))
        objs = self.load(connector, keys)
        self.assertEqual([obj is None for obj in objs], [False] * 3 + [True] * 2)
        self.assertEqual(self.load(connector, keys), [None] * 5)
        self.check(objs[:3], range(3))
        self.nothing_left(backend)
        self.assertIn("no CPU memory", self.logs.lines[0])

    def test_get_that_nobody_waits_for(self):
        connector, keys = self.connector(), self.keys(4)
        self.store(connector, keys, self.chunks(4))
        self.server.pause()
        try:

            async def run():
                for _ in range(3):
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(connector.batched_get(keys), 0.1)

            asyncio.run(run())
            self.assertGreater(self.backend.alive, 0)
        finally:
            self.server.resume()
        asyncio.run(connector.close())
        self.nothing_left()

    def test_get_of_which_one_part_is_done_when_nobody_waits_any_more(self):
        metadata = Metadata(layers=8, tokens=64, hidden=4096)
        connector, keys = self.connector(metadata=metadata), self.keys(6)
        self.backend.capacity = 256 << 20
        connector._client = SlowClient(connector._client, connector.name(keys[-1]))
        for key, obj in zip(keys, self.chunks(6, metadata=metadata)):
            self.store(connector, [key], [obj])
        connector._client.go.clear()

        async def run():
            task, began = asyncio.ensure_future(connector.batched_get(keys)), time.monotonic()
            while connector._client.passed == 0 and time.monotonic() - began < 60:
                await asyncio.sleep(0.01)
            self.assertGreater(connector._client.passed, 0)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(task, 0.5)
            self.assertGreater(self.backend.alive, 0)
            connector._client.go.set()

        asyncio.run(run())
        asyncio.run(connector.close())
        self.nothing_left()

    def test_put_that_nobody_waits_for(self):
        """The wrapper drops its reference at once; the memory must stay until the thread has read
        it."""
        connector, keys, objs = self.connector(), self.keys(3), self.chunks(3)
        self.server.pause()
        try:

            async def run():
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(Wrapped(connector).batched_put(keys, objs), 0.1)

            asyncio.run(run())
            self.assertEqual([obj.get_ref_count() for obj in objs], [1] * 3)
        finally:
            self.server.resume()
        asyncio.run(connector.close())
        self.nothing_left()
        self.check(self.load(self.connector(), keys), range(3))

    def test_backlog(self):
        """Puts that wait are bounded: further ones are dropped, and said so once."""
        connector, keys = self.connector(put_threads=1, put_backlog=2), self.keys(6)
        self.server.pause()
        try:

            async def run():
                objs = self.chunks(6)
                tasks = [
                    asyncio.ensure_future(Wrapped(connector).batched_put([k], [o]))
                    for k, o in zip(keys, objs)
                ]
                began = time.monotonic()
                while sum(task.done() for task in tasks) < 4 and time.monotonic() - began < 60:
                    await asyncio.sleep(0.01)
                self.assertEqual([task.done() for task in tasks], [False] * 2 + [True] * 4)
                self.server.resume()
                await asyncio.gather(*tasks)

            asyncio.run(run())
        finally:
            self.server.resume()
        self.nothing_left()
        self.assertEqual(connector.batched_contains(keys), 2)
        self.assertEqual(len(self.logs.lines), 1)

    def test_closed(self):
        connector, keys = self.connector(), self.keys(2)
        self.store(connector, keys[:1], self.chunks(1))
        asyncio.run(connector.close())
        asyncio.run(connector.close())
        self.store(connector, keys[1:], self.chunks(1))
        self.assertEqual(self.load(connector, keys), [None, None])
        self.assertFalse(connector.exists_sync(keys[0]))
        self.assertEqual(connector.batched_contains(keys), 0)
        self.nothing_left()

    def test_close_while_puts_wait(self):
        connector, keys = self.connector(put_threads=1), self.keys(5)
        self.server.pause()

        async def run():
            puts = [
                asyncio.ensure_future(Wrapped(connector).batched_put([k], self.chunks(1)))
                for k in keys
            ]
            await asyncio.sleep(0.1)
            closing = asyncio.ensure_future(connector.close())
            await asyncio.sleep(0.1)
            self.server.resume()
            await asyncio.gather(closing, *puts)

        try:
            asyncio.run(run())
        finally:
            self.server.resume()
        self.nothing_left()


class FullPool(ConnectorTest):
    pool = "16mb"
    server_args = ("--hard-pin-ratio", "1", "--hard-pin-user-ratio", "1")

    def test_twice_the_pool(self):
        """Cold chunks make room; the newest are there, and whatever is read is right."""
        self.metadata = Metadata(layers=4, tokens=64, hidden=512)
        connector, keys = self.connector(), self.keys(64)
        self.assertEqual(self.metadata.full_bytes(), 512 << 10)
        for first in range(0, 64, 8):
            self.store(connector, keys[first : first + 8], self.chunks(8))
        objs = self.load(connector, keys)
        there = [i for i, obj in enumerate(objs) if obj is not None]
        self.assertGreater(len(there), 16)
        self.assertLess(len(there), 33)
        self.assertIn(62, there)
        self.check([objs[i] for i in there], [i % 8 for i in there])
        self.nothing_left()
        self.assertEqual(self.logs.lines, [])

    def test_pinned_full(self):
        """No room at all: dropped, told once, and no reference lost; there is room again when the
        pins go."""
        client, pinned = self.client(), []
        for size in (1 << 20, 1 << 18):  # leased chunks stand in between
            try:
                while True:
                    client.put(f"pin{len(pinned)}", bytes(size), pin="hard")
                    pinned.append(f"pin{len(pinned)}")
            except tarn.NoSpace:
                pass
        connector, keys = self.connector(), self.keys(16)
        self.metadata = Metadata(layers=4, tokens=64, hidden=512)
        for key in keys:
            self.store(connector, [key], self.chunks(1))
        self.assertEqual(len(self.logs.lines), 1, self.logs.lines)
        self.assertIn("ENOSPACE", self.logs.lines[0])
        self.nothing_left()
        for key in pinned:
            client.set_pin(key, None)
        self.store(connector, keys[:1], self.chunks(1))
        self.assertTrue(connector.exists_sync(keys[0]))

    def test_a_lookup_that_pins_protects(self):
        self.metadata = Metadata(layers=4, tokens=64, hidden=512)
        connector, keys, more = self.connector(pin_ms=60000), self.keys(8), self.keys(64)
        self.store(connector, keys, self.chunks(8))
        self.assertEqual(asyncio.run(connector.batched_async_contains("id", keys, pin=True)), 8)
        for first in range(0, 64, 8):
            self.store(connector, more[first : first + 8], self.chunks(8))
        self.check(self.load(connector, keys), range(8))


class DeadServer(ConnectorTest):
    query = "?timeout_ms=3000&connect_timeout_ms=1000&retries=1&backoff_min_ms=20&backoff_max_ms=50"

    def test_killed_and_back(self):
        connector, keys = self.connector(), self.keys(3)
        self.store(connector, keys, self.chunks(3))
        self.server.kill()

        async def dead():
            self.assertEqual(await connector.batched_get(keys), [None] * 3)
            self.assertIsNone(await connector.get(keys[0]))
            self.assertFalse(await connector.exists(keys[0]))
            self.assertEqual(await connector.batched_async_contains("id", keys), 0)
            self.assertEqual(await connector.batched_get_non_blocking("id", keys), [])
            self.assertGreater(await connector.ping(), 0)
            self.assertEqual(await connector.list(), [])

        asyncio.run(dead())
        self.assertFalse(connector.exists_sync(keys[0]))
        self.assertFalse(connector.remove_sync(keys[0]))
        self.assertEqual(connector.batched_contains(keys), 0)
        self.store(connector, keys, self.chunks(3))
        self.store(connector, keys, self.chunks(3))
        self.nothing_left()
        self.assertLessEqual(
            len([line for line in self.logs.lines if " put " in line]), 2, self.logs.lines
        )
        self.server.start()
        wait_until(lambda: asyncio.run(connector.exists(keys[0])) is False and connector._gate.open)
        self.assertEqual(self.load(connector, keys), [None] * 3)
        self.store(connector, keys, self.chunks(3))
        self.check(self.load(connector, keys), range(3))
        self.assertEqual(asyncio.run(connector.ping()), 0)
        self.nothing_left()

    def test_silent(self):
        """A server that does not answer costs one call its deadline, and the next ones nothing; a
        ping finds it back."""
        connector, keys = self.connector(
            url=self.server.url + "?timeout_ms=2000&retries=0"
        ), self.keys(3)
        patient = self.connector(url=self.server.url)
        self.store(patient, keys, self.chunks(3))
        wait_until(lambda: asyncio.run(connector.ping()) == 0)
        self.server.pause()
        try:
            self.assertEqual(self.load(connector, keys), [None] * 3)
            begin = time.monotonic()
            for _ in range(20):
                self.assertEqual(self.load(connector, keys), [None] * 3)
                self.assertEqual(connector.batched_contains(keys), 0)
                self.store(connector, keys, self.chunks(3))
            self.assertLess(time.monotonic() - begin, 60)  # 120 s, if each of them waited
        finally:
            self.server.resume()
        wait_until(lambda: asyncio.run(connector.ping()) == 0)
        self.assertTrue(
            wait_until(lambda: asyncio.run(connector.exists(keys[0])), what="it is found again")
        )
        self.check(self.load(patient, keys), range(3))
        self.nothing_left()

    def test_killed_in_the_middle(self):
        """Whatever was under way ends; no reference is lost."""
        self.metadata = Metadata(layers=8, tokens=64, hidden=1024)
        connector, keys = self.connector(), self.keys(24)
        with Server("64mb") as server:
            connector = self.connector(url=server.url + self.query)

            async def run():
                objs = [self.metadata.chunk(self.backend, i) for i in range(12)]
                puts = [
                    asyncio.ensure_future(Wrapped(connector).batched_put([k], [o]))
                    for k, o in zip(keys, objs)
                ]
                gets = [asyncio.ensure_future(connector.get(k)) for k in keys]
                await asyncio.sleep(0.003)
                server.kill()
                await asyncio.gather(*puts)
                return await asyncio.gather(*gets)

            objs = asyncio.run(run())
        for i, obj in enumerate(objs):
            if obj is not None:
                self.check([obj], [i])
        self.nothing_left()

    def test_no_server_at_the_start(self):
        with self.assertRaises(tarn.Error):
            self.connector(url="tarn://127.0.0.1:1" + self.query)


class Many(ConnectorTest):
    def test_loops_and_threads_at_once(self):
        """Three loops, and look-ups from plain threads, on keys that all of them put and remove."""
        connector, other = self.connector(), self.connector()
        keys, reads = self.keys(24), [0]
        began = time.monotonic()

        def goes_on():
            """Two seconds, and longer where that was not enough to read much."""
            return time.monotonic() - began < (2 if reads[0] > 50 else 60)

        async def loop(which, seed):
            turn = 0
            while goes_on():
                turn += 1
                at = (turn * 7 + seed * 5) % 20
                some = list(range(at, at + 4))
                objs = [self.metadata.chunk(self.backend, i) for i in some]
                await Wrapped(which).batched_put([keys[i] for i in some], objs)
                results = await asyncio.gather(
                    which.batched_get([keys[i] for i in some]), which.get(keys[at])
                )
                for i, obj in zip(some + [at], results[0] + [results[1]]):
                    if obj is not None:
                        if bytes(obj.byte_array.cast("B")) != pattern(i, obj.get_size()):
                            raise AssertionError("wrong bytes")
                        obj.ref_count_down()
                        reads[0] += 1

        def lookups():
            while goes_on():
                connector.batched_contains(keys)
                connector.exists_sync(keys[3])
                other.remove_sync(keys[11])

        targets = [lookups] + [
            (lambda which=which, seed=seed: asyncio.run(loop(which, seed)))
            for seed, which in enumerate((connector, connector, other))
        ]
        together(lambda target: target(), targets)
        self.assertGreater(reads[0], 50)
        self.nothing_left()


if __name__ == "__main__":
    unittest.main()
