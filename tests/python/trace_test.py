"""Traces: what calls are done for reaches libtarn and the server, whatever thread or task they run
in; spans; what a callback does wrong harms nobody."""

import asyncio
import sys
import threading
import unittest

from harness import TarnTest, together, wait_until

import tarn

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def parent(i):
    return f"00-{i:032x}-{i:016x}-01"


def told(client):
    """What the server knows of the connection that this thread uses."""
    line = client.command("CLIENT", "INFO")
    return next(w for w in line.split() if w.startswith("tarn-traceparent=")).split("=", 1)[1]


class Traces(TarnTest):
    def test_within_the_block_only(self):
        client = self.client()
        self.assertEqual(told(client), "")
        with tarn.trace(PARENT):
            self.assertEqual(told(client), PARENT)
            with tarn.trace(parent(7).encode()):
                self.assertEqual(told(client), parent(7))
            self.assertEqual(told(client), PARENT)
            with tarn.trace(None):
                self.assertEqual(told(client), "")
        self.assertEqual(told(client), "")
        with self.assertRaises(ZeroDivisionError):
            with tarn.trace(PARENT):
                1 / 0
        self.assertEqual(told(client), "")

    def test_other_forms(self):
        client = self.client()
        for bad in ("nonsense", PARENT + "0", PARENT.upper(), "ff" + PARENT[2:], PARENT + "\0"):
            with self.assertRaises(tarn.InvalidArgument):
                with tarn.trace(bad):
                    self.fail("the block was entered")
        with tarn.trace(""):
            self.assertEqual(told(client), "")
        with tarn.trace("cc" + PARENT[2:] + "-more"):
            self.assertEqual(told(client), PARENT)

    def test_slowlog_and_spans_name_each_other(self):
        spans = []
        plain = self.client()
        plain.command("CONFIG", "SET", "slowlog-log-slower-than", "0")
        client = self.client(on_span=spans.append)
        with tarn.trace(PARENT):
            client.put("joined", b"x" * 100000)
        plain.command("CONFIG", "SET", "slowlog-log-slower-than", "-1")
        (put,) = [s for s in spans if not s.stage]
        self.assertEqual((put.name, put.bytes, put.status), ("put", 100000, 0))
        self.assertEqual((put.trace_id, put.parent_id), (TRACE, "00f067aa0ba902b7"))
        lines = plain.command("SLOWLOG", "GET", "-1")
        self.assertIn(f"(traceparent 00-{TRACE}-{put.span_id}-01)", lines)
        stages = {s.name: s for s in spans if s.parent_id == put.span_id}
        self.assertLessEqual({"request", "write"}, set(stages))
        self.assertEqual(stages["write"].bytes, 100000)
        self.assertEqual(stages["write"].transport, put.transport)

    def test_in_place(self):
        """Views and writers: whoever opens, renews or commits says for what; a release is done for
        nobody, for others may have used the connection since."""
        spans, plain = [], self.client()
        client = self.client(on_span=spans.append)
        with tarn.trace(PARENT):
            with client.writer("placed", 100000) as writer:
                writer.data[:] = b"x" * 100000
            view = client.view("placed")
            view.renew()
        plain.command("CONFIG", "SET", "slowlog-log-slower-than", "0")
        plain.command("SLOWLOG", "RESET")
        view.release()
        client.exists("placed")  # on another connection, and so behind it only by chance
        wait_until(lambda: "RELEASE" in plain.command("SLOWLOG", "GET", "-1"))
        plain.command("CONFIG", "SET", "slowlog-log-slower-than", "-1")
        words = plain.command("SLOWLOG", "GET", "-1").split("\n")
        self.assertNotIn("(traceparent", " ".join(words[words.index("RELEASE") :][:4]))
        calls = [s for s in spans if not s.stage and s.parent_id]
        self.assertEqual(
            [s.name for s in calls], ["writer_open", "writer_commit", "view_open", "view_renew"]
        )
        self.assertEqual([s.bytes for s in calls], [0, 100000, 100000, 0])
        verify = [s for s in spans if s.name == "verify"]
        self.assertEqual([(s.parent_id, s.bytes) for s in verify], [(calls[2].span_id, 100000)])

    def test_batches(self):
        spans = []
        client = self.client(on_span=spans.append)
        keys = [f"batch{i}" for i in range(1000)]
        with tarn.trace(PARENT):
            client.put_many([(key, b"x" * 1000) for key in keys])
            client.get_many_into([(key, bytearray(1000)) for key in keys + ["absent"]])
            client.exists_many(keys + ["absent"])
            client.remove_many(keys[:10])
        calls = {s.name: s for s in spans if not s.stage}
        seen = {n: (s.keys, s.done, s.bytes, s.status) for n, s in calls.items()}
        self.assertEqual(
            seen,
            {
                "put": (1000, 1000, 1000_000, 0),
                "get": (1001, 1000, 1000_000, 0),
                "lookup": (1001, 1000, 0, 0),
                "remove": (10, 10, 0, 0),
            },
        )
        for name, stage in (("put", "write"), ("get", "read")):
            parts = [s for s in spans if s.name == stage and s.parent_id == calls[name].span_id]
            self.assertGreater(len(parts), 1)
            self.assertEqual(sum(s.bytes for s in parts), 1000_000)
            asked = [s for s in spans if s.name == "request" and s.parent_id == calls[name].span_id]
            self.assertLessEqual({s.detail[0] for s in asked}, {"M", "S"})
        self.assertEqual(len({s.span_id for s in spans}), len(spans))
        client.get("missing")
        self.assertEqual((spans[-1].name, spans[-1].status, spans[-1].done), ("get", -9, 0))

    def test_threads(self):
        client = self.client(max_lanes=2)

        def work(i):
            with tarn.trace(parent(i)):
                for _ in range(20):
                    self.assertEqual(told(client), parent(i))

        together(work, range(1, 9))
        self.assertEqual(told(client), "")

    def test_queue(self):
        spans, done = [], threading.Event()

        def hear(span):
            spans.append(span)
            if not span.stage and len([s for s in spans if not s.stage]) == 2:
                done.set()

        client = self.client(on_span=hear)
        with client.queue() as queue:
            with tarn.trace(PARENT):
                queue.exists(["a"])
            queue.exists(["b"])
            while queue.pending:
                queue.poll(timeout_ms=1000)
        self.assertTrue(done.wait(60))
        parents = sorted(s.parent_id for s in spans if not s.stage)
        self.assertEqual(parents, ["", "00f067aa0ba902b7"])
        self.assertEqual(len([s for s in spans if s.name == "queue"]), 2)

    def test_asyncio(self):
        spans = []

        async def one(client, i):
            with tarn.trace(parent(i)):
                await client.put(f"task{i}", b"x" * 1000)
                await asyncio.sleep(0)
                self.assertEqual(len(await client.get(f"task{i}")), 1000)
                await client.ping()
                await client.get(f"absent{i}", wait_ms=5)

        async def all_of_them():
            async with tarn.AsyncClient(self.server.url, on_span=spans.append) as client:
                await asyncio.gather(*[one(client, i) for i in range(1, 9)])
                await client.exists("plain")

        asyncio.run(all_of_them())
        calls = [s for s in spans if not s.stage]
        for span in calls:
            if span.parent_id:
                self.assertEqual(int(span.parent_id, 16), int(span.trace_id, 16))
        # the last one, and those that ask for all who wait
        self.assertEqual({s.name for s in calls if not s.parent_id}, {"lookup"})
        for i in range(1, 9):
            names = {s.name for s in calls if s.parent_id == f"{i:016x}"}
            self.assertLessEqual({"put", "get", "ping"}, names)

    def test_a_callback_that_raises(self):
        hook, seen = sys.unraisablehook, []
        sys.unraisablehook = lambda unraisable: seen.append(str(unraisable.exc_value))
        try:

            def broken(span):
                raise ValueError(span.name)

            client = self.client(on_span=broken)
            self.assertTrue(client.put("broken", b"x"))
            self.assertEqual(client.get("broken"), b"x")
        finally:
            sys.unraisablehook = hook
        self.assertLessEqual({"put", "get", "request"}, set(seen))
        with self.assertRaises(TypeError):
            self.client(on_span="print")

    def test_a_callback_lives_as_long_as_its_client(self):
        spans = []
        client = self.client(on_span=lambda span: spans.append(span))
        with client.queue() as queue:
            client.close()
            del client
            queue.exists(["kept"])
            while queue.pending:
                queue.poll(timeout_ms=1000)
        self.assertIn("lookup", [s.name for s in spans])


if __name__ == "__main__":
    sys.exit(unittest.main())
