"""AsyncClient: the loop goes on, cancelled coroutines leave no memory in use, many waits at once.
"""

import asyncio
import gc
import sys
import time
import unittest

from harness import SLOW, Server, TarnTest, free_port, together

import tarn
from tarn.memory import pin


class Ticker:
    """Counts how often the loop comes round, and the longest time it did not."""

    def __init__(self, every=0.005):
        self.every, self.ticks, self.worst = every, 0, 0.0

    async def run(self):
        last = time.monotonic()
        while True:
            await asyncio.sleep(self.every)
            now = time.monotonic()
            self.ticks, self.worst, last = (
                self.ticks + 1,
                max(self.worst, now - last - self.every),
                now,
            )

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *exc):
        self.task.cancel()


async def free(memory):
    """Until nobody holds it any more: a thread of the client's may still be on its way to forget
    it."""
    began = time.monotonic()
    while True:
        gc.collect()
        try:
            memory.append(3)
            return
        except BufferError:
            if time.monotonic() - began > 60:
                raise
        await asyncio.sleep(0.01)


class Aio(TarnTest):
    def run_async(self, coroutine, limit=60):
        async def bounded():
            return await asyncio.wait_for(coroutine, limit * SLOW)

        return asyncio.run(bounded())

    def aio(self, query="", **options):
        return tarn.AsyncClient(self.server.url + query, **options)

    def test_every_method(self):
        async def main():
            async with self.aio(
                failover_ms=20000
            ) as client:  # a server that is slow is none whose memory cannot be mapped
                await client.ping()
                self.assertTrue(await client.put("a", b"x" * 5000, ttl_ms=60000))
                self.assertFalse(await client.put("a", b"y"))
                self.assertTrue(await client.put_parts("parts", [b"abc", bytearray(b"def")]))
                source, target = bytearray(b"s" * 2000), bytearray(2000)
                at, to = pin(source).address, pin(target).address
                self.assertTrue(await client.put_from("from", at, 2000))
                self.assertEqual(
                    await client.put_many([("m1", source), ("m2", [b"a", b"b"])]), [0, 0]
                )
                self.assertEqual(
                    await client.put_from_many(["n1", "n2"], [at, [at, at]], [10, [5, 5]]), [0, 0]
                )
                for _ in range(2):
                    self.assertEqual(await client.get("a"), b"x" * 5000)
                    self.assertEqual(
                        await client.get_many(["parts", "none", "m2"]), [b"abcdef", None, b"ab"]
                    )
                self.assertIsNone(await client.get("none"))
                self.assertEqual(await client.get_into("from", target), 2000)
                self.assertEqual(target, source)
                self.assertIsNone(await client.get_into("none", target))
                self.assertEqual(await client.get_into("parts", target, offset=2, want=2), 2)
                self.assertEqual(target[:2], b"cd")
                self.assertEqual(await client.get_range("parts", 3, 100), b"def")
                self.assertIsNone(await client.get_range("none", 3, 100))
                self.assertEqual(
                    await client.get_many_into([("m1", target), ("none", target)]), [2000, -9]
                )
                self.assertEqual(await client.get_into_many(["n1"], [to], 10, offsets=[5]), [5])
                self.assertTrue(await client.exists("a"))
                self.assertEqual(await client.exists_many(["a", "none"]), [True, False])
                self.assertEqual(
                    await client.prefix_length(["a", "parts", "none"], lease_ms=100), 2
                )
                self.assertEqual(await client.size("a"), 5000)
                self.assertTrue(await client.set_pin("a", "hard"))
                self.assertTrue(await client.set_pin("a", None))
                self.assertTrue(await client.remove("a"))
                self.assertFalse(await client.remove("a"))
                self.assertEqual(await client.remove_many(["m1", "m2", "none"]), 2)
                self.assertTrue(await client.wait("from", 20000))
                self.assertFalse(await client.wait("none", 30))
                with await client.view("from") as view:
                    self.assertEqual(bytes(view.data), source)
                    await client.run(view.renew)
                    view.check()
                self.assertIsNone(await client.view("none"))
                writer = await client.writer("written", 100)
                writer.data[:] = b"w" * 100
                await client.run(writer.commit)
                self.assertEqual(await client.get("written"), b"w" * 100)
                await client.register_buffer(target)
                await client.unregister_buffer(target)
                with self.assertRaises(tarn.InvalidArgument):
                    await client.register_dmabuf(to, 100, -1)
                self.assertGreater((await client.stats())["gets"], 5)
                self.assertGreater((await client.histogram("put"))["count"], 1)
                self.assertIn("tarn_client_puts_total ", await client.figures())
                self.assertEqual(await client.command("PING"), "PONG")
            self.assertTrue(client.closed)
            with self.assertRaises(tarn.Closed):
                await client.get("a")
            await client.aclose()

        self.run_async(main())

    def test_the_methods_are_those_of_the_client(self):
        sync = {n for n in dir(tarn.Client) if not n.startswith("_")} - {"close", "queue", "closed"}
        self.assertEqual(sync - set(dir(tarn.AsyncClient)), set())

    def test_errors(self):
        async def main():
            client = tarn.AsyncClient(f"tarn://127.0.0.1:{free_port()}", retries=0)
            for _ in range(2):
                with self.assertRaisesRegex(tarn.ConnectionFailed, "tarn-server"):
                    await client.ping()
            await client.aclose()
            with self.assertRaises(tarn.InvalidArgument):
                tarn.AsyncClient(self.server.url, capacity=0)
            async with self.aio() as client:
                await client.put("e", b"x" * 100)
                with self.assertRaisesRegex(tarn.TooLarge, "larger buffer"):
                    await client.get_into("e", bytearray(99))
                with self.assertRaises(tarn.NoSpace):
                    await client.put("huge", bytearray(65 << 20))
                with self.assertRaises(tarn.InvalidArgument):
                    await client.get("")
                with self.assertRaises(TypeError):
                    await client.put("k", b"x", nonsense=1)
                with self.assertRaises(TypeError):
                    await client.get_many("k")
                with self.assertRaises(tarn.InvalidArgument):
                    await client.get("none", wait_ms=-1)
                # None of them used up a turn.
                self.assertEqual(client._turns._value, 1024)

        self.run_async(main())

    def test_the_loop_goes_on(self):
        async def main():
            async with self.aio("?transport=tcp") as client, Ticker() as ticker:
                value = bytes(16 << 20)
                await client.put("big", value)
                into = bytearray(16 << 20)
                began = time.monotonic()
                while time.monotonic() - began < (0.4 if ticker.ticks > 15 else 20):
                    await asyncio.gather(*(client.get_into("big", into) for _ in range(2)))
                self.assertGreater(ticker.ticks, 15)
                for _ in range(10):
                    ticker.ticks = 0
                    self.assertIsNone(await client.get("never", wait_ms=2000))
                    if ticker.ticks > 20:
                        break
                self.assertGreater(ticker.ticks, 20)

        self.run_async(main())

    def test_hundreds_wait_at_once(self):
        async def main():
            async with self.aio(failover_ms=20000) as client:
                waits = [
                    asyncio.ensure_future(client.get(f"w{i}", wait_ms=30000)) for i in range(300)
                ]
                pair = asyncio.ensure_future(client.get_many(["w0", "extra"], wait_ms=30000))
                view = asyncio.ensure_future(client.view("w5", wait_ms=30000))
                prefix = asyncio.ensure_future(client.prefix_length(["w0", "w1"], wait_ms=30000))
                await asyncio.sleep(0.2)
                before = (await client.stats())["requests"]
                await asyncio.sleep(0.3)
                self.assertLess((await client.stats())["requests"] - before, 100)
                await client.put_many([(f"w{i}", b"%d" % i * 50) for i in range(300)])
                self.assertEqual(await asyncio.gather(*waits), [b"%d" % i * 50 for i in range(300)])
                self.assertEqual(await prefix, 2)
                (await view).release()
                self.assertFalse(pair.done())
                await client.put("extra", b"x")
                self.assertEqual((await pair)[1], b"x")

        self.run_async(main())

    def test_bounded_by_capacity(self):
        async def main():
            async with self.aio(capacity=4) as client:
                done = await asyncio.gather(*(client.put(f"c{i}", b"x" * 100) for i in range(200)))
                self.assertEqual(done, [True] * 200)
                self.assertEqual(client._turns._value, 4)

        self.run_async(main())

    def test_cancelled_before_its_turn(self):
        async def main():
            async with self.aio(capacity=1, workers=1) as client:
                await client.ping()
                memory = bytearray(8 << 20)
                await client.put("c", memory)
                tasks = [asyncio.ensure_future(client.get_into("c", memory)) for _ in range(10)]
                await asyncio.sleep(0)
                for t in tasks[5:]:
                    t.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                self.assertEqual(results[:5], [8 << 20] * 5)
                self.assertTrue(all(isinstance(r, asyncio.CancelledError) for r in results[5:]))
                self.assertEqual(client._turns._value, 1)

        self.run_async(main())

    def test_memory_of_a_cancelled_get_is_not_in_use(self):
        """The server stands still in the middle of a get: the coroutine ends when the library has
        given up, not before."""

        async def main():
            with Server() as server:
                client = tarn.AsyncClient(
                    server.url, transport="tcp", retries=0, timeout_ms=8000, failover_ms=20000
                )
                memory = bytearray(1 << 20)
                await client.put("v", b"\1" * (1 << 20))
                server.pause()
                try:
                    task = asyncio.ensure_future(client.get_into("v", memory))
                    await asyncio.sleep(0.1)
                    began = time.monotonic()
                    for _ in range(3):
                        task.cancel()
                        await asyncio.sleep(0.02)
                    self.assertFalse(task.done())
                    with self.assertRaises(BufferError):
                        memory.append(1)  # the library may still write there
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    self.assertGreater(time.monotonic() - began, 0.3)
                finally:
                    server.resume()
                del task
                memory[:] = b"\2" * len(memory)
                await asyncio.sleep(0.3)
                await free(memory)
                self.assertEqual(memory, b"\2" * (1 << 20) + b"\3")
                # What is not the caller's memory is not waited for.
                patient = tarn.AsyncClient(server.url, timeout_ms=60000)
                await patient.ping()
                server.pause()
                try:
                    task = asyncio.ensure_future(patient.exists("v"))
                    await asyncio.sleep(0.05)
                    task.cancel()
                    began = time.monotonic()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    self.assertLess(time.monotonic() - began, 30)
                finally:
                    server.resume()
                await client.aclose()
                await patient.aclose()

        self.run_async(main())

    def test_wait_for_bounds_a_wait(self):
        async def main():
            async with self.aio() as client:
                began = time.monotonic()
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.get("never", wait_ms=60000), 0.1)
                self.assertLess(time.monotonic() - began, 30)
                self.assertEqual(client._waiters, set())

        self.run_async(main())

    def test_close_with_operations_under_way(self):
        async def main():
            client = self.aio()
            await client.put("k", b"x" * 100)
            tasks = [
                asyncio.ensure_future(client.get(f"none{i}", wait_ms=60000)) for i in range(10)
            ]
            memory = bytearray(100)
            tasks += [asyncio.ensure_future(client.get_into("k", memory)) for _ in range(50)]
            await asyncio.sleep(0.05)
            async with Ticker() as ticker:
                await client.aclose()
            self.assertLess(ticker.worst, 20)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            self.assertTrue(all(isinstance(r, tarn.Closed) for r in results[:10]), results[:10])
            self.assertTrue(
                all(r == 100 or isinstance(r, tarn.Closed) for r in results[10:]), results[10:]
            )
            del tasks, results
            await free(memory)

        self.run_async(main())

    def test_one_loop(self):
        client = self.aio()
        asyncio.run(client.put("loop", b"x"))

        async def other():
            with self.assertRaisesRegex(tarn.Error, "event loop"):
                await client.get("loop")

        asyncio.run(other())

    def test_loops_in_threads(self):
        results = []

        def work(number):
            async def main():
                async with self.aio() as client:
                    for i in range(20):
                        await client.put(f"t{number}:{i}", b"%d" % i)
                    return await client.get_many([f"t{number}:{i}" for i in range(20)])

            results.append(asyncio.run(main()))

        together(work, range(4))
        self.assertEqual(results, [[b"%d" % i for i in range(20)]] * 4)


if __name__ == "__main__":
    sys.exit(unittest.main())
