"""Hints for the eviction policy (session, return_ms) of the clients: what reaches the server, and
what is wrong with them."""

import asyncio
import inspect
import unittest

from harness import Monitor, TarnTest

import tarn

LOOKS = ("PREFIXLEN", "GETREPLICAS", "MGETREPLICAS")
PUTS = ("PUTSTART", "MPUTSTART")
HINTS = {"session": "chat 4711", "return_ms": 30000}
SEEN = {"SESSION": "chat 4711", "RETURN": "30000"}
KV = ([b"\x01"], [tarn.KVGroup("f@", block=16)])


class Sync(TarnTest):
    def every_look_up(self, client, hints):
        buffer = bytearray(16)
        client.get("a", **hints)
        client.get("missing", **hints)
        client.get_into("a", buffer, **hints)
        client.get_into("a", buffer, offset=1, want=2, **hints)
        client.get_range("a", 0, 1, **hints)
        client.get_many(["a", "b"], **hints)
        client.get_many_into([("a", buffer)], **hints)
        client.prefix_length(["a", "b"], **hints)
        client.kv_prefix(*KV, unit=16, align=16, **hints)
        client.kv_get(*KV, lambda boundary: None, unit=16, align=16, **hints)
        view = client.view("a", **hints)
        view.release()

    def every_put(self, client, hints):
        for i, put in enumerate((client.put, client.put_parts)):
            put(f"put{i}{len(hints)}", [b"v"] if i else b"v", **hints)
        client.put_many([(f"many{len(hints)}", b"v")], **hints)
        with client.writer(f"w{len(hints)}", 1, **hints) as w:
            w.data[:] = b"v"

    def test_every_way(self):
        client = self.client()
        client.put("a", b"value of a")
        client.put("b", b"v")
        client.put("f@01", b"v")
        with Monitor(self.server) as monitor:
            self.every_look_up(client, {})
            self.every_put(client, {})
            told = monitor.hints(*LOOKS, *PUTS)
            self.assertGreater(len(told), 12)
            self.assertEqual([h for h in told if h], [])
        with Monitor(self.server) as monitor:
            self.every_look_up(client, HINTS)
            self.every_put(client, HINTS)
            again = monitor.hints(*LOOKS, *PUTS)
            self.assertEqual(len(again), len(told))
            self.assertEqual([h for h in again if h != SEEN], [])

    def test_queue(self):
        client, buffer = self.client(), bytearray(64)
        address = tarn.memory.pin(buffer, True).address
        with Monitor(self.server) as monitor, client.queue() as queue:
            # the session is the queue's until it is done
            queue.put(["q"], [address], 64, keep=buffer, session=bytes(b"chat 4711"), return_ms=9)
            queue.get(["q"], [address], 64, keep=buffer, session="".join(["chat", " 4711"]))
            done = []
            while len(done) < 2:
                done += queue.poll(timeout_ms=10000)
            self.assertEqual(monitor.hints(*PUTS), [{"SESSION": "chat 4711", "RETURN": "9"}])
            self.assertEqual(monitor.hints(*LOOKS), [{"SESSION": "chat 4711"}])

    def test_each_alone_and_none(self):
        client = self.client()
        with Monitor(self.server) as monitor:
            client.prefix_length(["a"], session=b"s" * 128)
            client.prefix_length(["a"], return_ms=24 * 3600 * 1000)
            client.prefix_length(["a"], session=None, return_ms=0)
            client.prefix_length(["a"], session="")
            self.assertEqual(
                monitor.hints("PREFIXLEN"),
                [{"SESSION": "s" * 128}, {"RETURN": "86400000"}, {}, {}],
            )

    def test_what_is_wrong(self):
        client = self.client()
        for call in (
            lambda **hints: client.prefix_length(["a"], **hints),
            lambda **hints: client.get("a", **hints),
            lambda **hints: client.view("a", **hints),
            lambda **hints: client.put("new", b"v", **hints),
            lambda **hints: client.put_many([("new", b"v")], **hints),
        ):
            with self.assertRaisesRegex(TypeError, "session: an id as text or bytes"):
                call(session=7)
            with self.assertRaisesRegex(tarn.InvalidArgument, "return_ms"):
                call(return_ms=-1)
            with self.assertRaisesRegex(TypeError, "return_ms"):
                call(return_ms=[1])
        for hints, error in (
            ({"session": "s" * 129}, "session has 129 bytes, and may have 128"),
            ({"return_ms": 86400001}, "return_ms is 86400001, and at most 86400000"),
        ):
            with self.assertRaisesRegex(tarn.InvalidArgument, error):
                client.prefix_length(["a"], **hints)
            with self.assertRaisesRegex(tarn.InvalidArgument, error):
                client.get("a", **hints)
        self.assertFalse(client.exists("new"))

    def test_signatures_name_them(self):
        for of in (tarn.Client, tarn.AsyncClient):
            for name in (
                "get get_into get_range get_many get_many_into get_into_many prefix_length "
                "kv_prefix kv_get view put put_from put_parts put_many put_from_many writer"
            ).split():
                names = inspect.signature(getattr(of, name)).parameters
                self.assertTrue({"session", "return_ms"} <= set(names), (of, name))


class Async(TarnTest):
    def test_every_way(self):
        async def run():
            buffer = bytearray(16)
            async with tarn.AsyncClient(self.server.url) as client:
                await client.put("a", b"value", **HINTS)
                await client.put_many([("b", b"value")], **HINTS)
                await client.get("a", **HINTS)
                await client.get_many(["a", "b"], **HINTS)
                await client.get_into("a", buffer, **HINTS)
                await client.get_range("a", 0, 1, **HINTS)
                await client.prefix_length(["a", "b"], **HINTS)
                await client.kv_prefix(*KV, unit=16, align=16, **HINTS)

        with Monitor(self.server) as monitor:
            asyncio.run(run())
            self.assertEqual(monitor.hints(*PUTS), [SEEN] * 2)
            looks = monitor.hints(*LOOKS)
            self.assertGreaterEqual(len(looks), 6)
            self.assertEqual([h for h in looks if h != SEEN], [])


if __name__ == "__main__":
    unittest.main()
