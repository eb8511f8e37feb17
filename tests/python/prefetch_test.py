"""Prefetches: of the clients, and of TarnConnector for requests that wait in vLLM's queue."""

import asyncio
import os
import shutil
import tempfile
import threading
import time
import unittest

from harness import Monitor, Node, Server, wait_until
from layouts import Prompt
from vllm_groups_test import HYBRID, WithGroups
from vllm_helpers import WithServer, prompt
from vllm_model import Request

import tarn
from tarn.chain import Chain
from tarn.vllm.ahead import Ahead


class WithDisk(unittest.TestCase):
    def setUp(self):
        self.server = Server("0")
        self.addCleanup(self.server.stop)
        disk = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
        self.addCleanup(shutil.rmtree, disk)
        self.node = Node(self.server, "--ssd", f"{disk}:256mb", name="n1")
        self.addCleanup(self.node.stop)
        self.client = tarn.Client(self.server.url)
        self.addCleanup(self.client.close)

    def figure(self, name):
        info = self.client.command("INFO", "everything")
        return int(dict(line.split(":", 1) for line in info.split("\r\n") if ":" in line)[name])

    def far(self, keys):
        self.client.put_many([(key, key.encode() * 10000) for key in keys])
        wait_until(lambda: self.figure("far_replicas") == len(keys), what="copies on the disk")
        self.client.command("EVICT", "RATIO", 1)
        self.assertEqual(self.figure("far_objects"), len(keys))

    def test_what_is_on_a_disk_comes_to_memory(self):
        keys = [f"k{i}" for i in range(4)]
        self.far(keys)
        self.assertEqual(self.client.prefetch([]), (0, 0, 0, 0))
        self.assertEqual(self.client.prefetch(keys[:3] + ["none"]), (3, 0, 1, 0))
        wait_until(lambda: self.figure("far_objects") == 1, what="three in memory")

        async def fetch():
            async with tarn.AsyncClient(self.server.url) as client:
                return await client.prefetch(keys, segment="n1.0")

        found = asyncio.run(fetch())
        self.assertEqual((found.taken, found.there), (1, 3))
        wait_until(lambda: self.figure("far_objects") == 0, what="all in memory")
        self.assertEqual(self.client.get_many(keys), [key.encode() * 10000 for key in keys])
        self.assertEqual((self.figure("prefetch_read"), self.figure("prefetch_in_vain")), (4, 0))

    def test_what_is_wrong(self):
        for segment in ("none", "n1.ssd"):
            with self.assertRaises(tarn.Error) as raised:
                self.client.prefetch(["k"], segment=segment)
            self.assertEqual(raised.exception.status, tarn.Status.ENOSEGMENT)
        for keys in ([""], ["k" * 1025]):
            with self.assertRaises(tarn.InvalidArgument):
                self.client.prefetch(keys)
        with self.assertRaises(tarn.Closed):
            other = tarn.Client(self.server.url)
            other.close()
            other.prefetch(["k"])


class Recorder:
    """A pool that notes what it is told, after `gate`."""

    def __init__(self):
        self.told, self.gate, self.error = [], threading.Event(), None
        self.gate.set()

    def prefetch(self, keys):
        self.gate.wait(60)
        self.told.append(list(keys))
        if self.error is not None:
            raise self.error


def names(hashes, first):
    return [f"{n}@{each.hex()}" for n, each in enumerate(hashes, first)]


class InTheBackground(unittest.TestCase):
    def setUp(self):
        self.pool = Recorder()
        self.addCleanup(self.pool.gate.set)
        self.ahead = Ahead(self.pool, names)

    def test_blocks_in_order_and_no_more_than_a_bound(self):
        for tokens in (15, 16, 1000, 16 * 1100):
            ids = list(range(tokens))
            self.ahead.ask(Chain(16), ids)
            expected = names(Chain(16).extend(ids), 0)[:1024]
            if expected:
                wait_until(lambda: self.pool.told, what="the pool to be told")
                self.assertEqual(self.pool.told.pop(), expected)
        self.assertEqual(self.pool.told, [])

    def test_who_asks_never_waits(self):
        self.pool.gate.clear()
        began = time.monotonic()
        for _ in range(1000):
            self.ahead.ask(Chain(16), list(range(64)))
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(len(self.pool.told), 0)
        self.pool.gate.set()
        wait_until(lambda: not self.ahead._running, what="the thread to end")
        self.assertLessEqual(len(self.pool.told), 258)

    def test_a_pool_that_refuses_is_asked_no_more(self):
        self.pool.error = tarn.ProtocolError("ERR unknown command 'PREFETCH'")
        with self.assertLogs("tarn.vllm", "INFO"):
            self.ahead.ask(Chain(16), list(range(64)))
            wait_until(lambda: not self.ahead._running, what="the thread to end")
        self.ahead.ask(Chain(16), list(range(64)))
        self.assertFalse(self.ahead._running)
        self.assertEqual(len(self.pool.told), 1)


class OneGroup(WithServer):
    def test_a_request_that_waits(self):
        for extra in ({}, {"layerwise": True}, {"tp": 2}):
            with self.subTest(**extra):
                self.flush()
                engine = self.engine(**extra)
                engine.add(Request(prompt(1, 37)))
                self.settle(engine)
                keys = set(self.client().command("KEYS", "*").split("\n"))
                with Monitor(self.server) as monitor:
                    engine.add(Request(prompt(1, 37)))
                    wait_until(lambda: monitor.lines("PREFETCH"), what="a prefetch")
                    (line,) = monitor.lines("PREFETCH")
                self.settle(engine)
                asked = [word for word in line if "@" in word]
                self.assertEqual(len(asked), len(set(asked)))
                self.assertEqual({key for key in asked if key in keys}, set(asked), line)

    def test_not_where_nothing_is_loaded(self):
        engine = self.engine(role="kv_producer")
        with Monitor(self.server) as monitor:
            engine.add(Request(prompt(1, 37)))
            self.settle(engine)
            self.assertEqual(monitor.lines("PREFETCH"), [])


class ManyGroups(WithGroups):
    def test_what_every_boundary_needs(self):
        layout = HYBRID[0]
        tokens = Prompt.drawn(1, self.length(layout)).tokens
        engine = self.hybrid(layout)
        engine.add(Prompt(tokens))
        self.settle(engine)
        keys = set(self.client().command("KEYS", "*").split("\n"))
        with Monitor(self.server) as monitor:
            engine.add(Prompt(tokens))
            wait_until(lambda: monitor.lines("PREFETCH"), what="a prefetch")
            (line,) = monitor.lines("PREFETCH")
        self.settle(engine)
        asked = [word for word in line if "@" in word]
        self.assertGreater(len(asked), 0)
        self.assertEqual({key for key in asked if key in keys}, set(asked))


if __name__ == "__main__":
    unittest.main()
