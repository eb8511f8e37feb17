"""The router of utils/examples: its picture is what the server has; it notices gaps, other masters,
and its own errors."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import unittest

from harness import NODE, ROOT, SERVER, SLOW, Node, TarnTest, environment, wait_until

EXAMPLES = os.path.join(ROOT, "utils", "examples")
sys.path.insert(0, EXAMPLES)

import kv_router  # noqa: E402
from kv_router import (
    Connection,
    Event,
    Picture,
    Place,
    Router,
    VllmRouter,
    apply_as_vllm,
    spots,
    block_of,
)  # noqa: E402

A = Place("memory", "n1", "n1.0", 5)
A_LATER = Place("memory", "n1", "n1.0", 6)
B = Place("ssd", "n2", "n2.0", 7)


def event(kind, key=None, *places, size=1):
    return Event(1, 2, kind, key, size, places)


class PictureTest(unittest.TestCase):
    def setUp(self):
        self.picture = Picture()

    def tell(self, *events):
        for e in events:
            self.picture.apply(e)

    def test_keys_come_and_go(self):
        self.tell(event("put", b"k", A, B), event("put", b"l", A))
        self.assertEqual(self.picture.where(b"k"), [A, B])
        for n, kind in enumerate(("removed", "evicted", "expired", "lost")):
            self.tell(event("put", b"m", A), event(kind, b"m"), event(kind, b"m"))
            self.assertEqual(self.picture.where(b"m"), [], kind)
        self.tell(event("put", b"k", B, size=9))
        self.assertEqual(self.picture.objects[b"k"], (9, {B}))
        self.assertEqual(self.picture.by_segment, {("n1.0", 5): {b"l"}, ("n2.0", 7): {b"k"}})
        self.tell(event("flushed"))
        self.assertEqual((self.picture.objects, self.picture.by_segment), ({}, {}))

    def test_replicas(self):
        self.tell(
            event("put", b"k", A), event("replica-added", b"k", B), event("replica-added", b"k", B)
        )
        self.assertEqual(self.picture.where(b"k"), [A, B])
        self.tell(
            event("replica-gone", b"k", A),
            event("replica-gone", b"k", A),
            event("replica-gone", b"no", A),
        )
        self.assertEqual(self.picture.where(b"k"), [B])
        self.tell(event("replica-added", b"went", A))
        self.assertNotIn(b"went", self.picture.objects)
        self.assertEqual(self.picture.by_segment, {("n2.0", 7): {b"k"}})

    def test_segments(self):
        self.tell(event("put", b"k", A, B), event("segment-down", None, A))
        self.assertEqual(self.picture.where(b"k"), [B])
        self.tell(event("put", b"k", A_LATER))  # another segment of the same name
        self.assertEqual(self.picture.where(b"k"), [A_LATER])
        self.tell(event("segment-gone", None, A))
        self.assertEqual(self.picture.down, set())
        self.tell(
            event("node-down", None, Place("", "n1", "", 0)), event("segment-down", None, A_LATER)
        )
        self.assertEqual(self.picture.where(b"k"), [])
        self.tell(event("segment-up", None, A_LATER))
        self.assertEqual(self.picture.where(b"k"), [A_LATER])

    def test_what_is_not_known_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "sideways"):
            self.tell(event("sideways"))

    def vllm(self, e):
        told = apply_as_vllm(self.picture, e)
        return [(node, t["type"], t.get("block_hashes"), t.get("medium")) for node, t in told]

    def test_a_block_is_of_a_kv_group(self):
        for key, expected in (
            (b"m@1@0@00ff", (None, "00ff")),
            (b"m@1@0@kv2@00ff", (2, "00ff")),
            (b"m@1@0@kv@00ff", (None, "00ff")),
            (b"kv1@00ff", (1, "00ff")),
            (b"00ff", (None, "00ff")),
        ):
            self.assertEqual(block_of(key), expected, key)
        # the same hash in two groups of one node: one goes, the other stays
        self.tell(event("put", b"m@kv0@00ff", A), event("put", b"m@kv1@00ff", A))
        told = apply_as_vllm(self.picture, event("evicted", b"m@kv1@00ff"))
        gone = {"type": "BlockRemoved", "block_hashes": ["00ff"], "medium": "CPU", "group_idx": 1}
        self.assertEqual(told, [("n1", gone)])
        groups = [t.get("group_idx") for _, t in kv_router.all_as_vllm(self.picture)]
        self.assertEqual(groups, [None, 0])

    def test_as_vllm(self):
        stored, removed = "BlockStored", "BlockRemoved"
        key = b"m@1@0@00ff"
        for e, expected in (
            (event("put", key, A), [("n1", stored, ["00ff"], "CPU")]),
            (event("put", key, A), []),
            (event("replica-added", key, B), [("n2", stored, ["00ff"], "DISK")]),
            (event("segment-down", None, A), [("n1", removed, ["00ff"], "CPU")]),
            (event("segment-up", None, A), [("n1", stored, ["00ff"], "CPU")]),
            (event("replica-gone", key, A), [("n1", removed, ["00ff"], "CPU")]),
            (
                event("put", key, A),
                [("n2", removed, ["00ff"], "DISK"), ("n1", stored, ["00ff"], "CPU")],
            ),
            (event("evicted", key), [("n1", removed, ["00ff"], "CPU")]),
            (event("evicted", key), []),
            (event("replica-added", key, B), []),
            (event("put", key, A), [("n1", stored, ["00ff"], "CPU")]),
            (event("replica-added", key, A_LATER), []),
            (event("replica-gone", key, A), []),  # the other one there is as good
            (
                event("replica-gone", key, A_LATER._replace(node="")),
                [("n1", removed, ["00ff"], "CPU")],
            ),
            (event("put", b"k", B), [("n2", stored, ["k"], "DISK")]),
            (event("flushed"), [("*", "AllBlocksCleared", None, None)]),
            (event("segment-gone", None, B), []),
            (event("node-down", None, Place("", "n1", "", 0)), []),
        ):
            self.assertEqual(self.vllm(e), expected, e)


class RouterTest(TarnTest):
    pool = "16mb"
    server_args = ("--kv-events-size", "128kb", "--appendonly", "yes", "--node-heartbeat", "100")

    def setUp(self):
        self.c = Connection(self.server.url)
        self.addCleanup(self.c.close)
        self.c.ask("FLUSHALL")

    def router(self):
        c = Connection(self.server.url)
        self.addCleanup(c.close)
        return Router(c)

    def test_follows(self):
        self.c.ask("SET", "before", "x")
        router = self.router()
        self.assertEqual(list(router.picture.objects), [b"before"])
        self.c.ask("SET", "k", b"y" * 5000)
        self.c.ask("DEL", "before")
        self.assertEqual([e.kind for e in router.follow()], ["put", "removed"])
        self.assertEqual([p.tier for p in router.picture.where(b"k")], ["memory"])
        self.assertEqual(router.follow(1), [])
        self.assertEqual((router.check(), router.walks), ([], 1))

    def test_waits(self):
        router = self.router()
        got = []
        thread = threading.Thread(target=lambda: got.extend(router.follow(60000)))
        thread.start()
        self.c.ask("SET", "k", "1")
        thread.join(30 * SLOW)
        self.assertEqual([(e.kind, e.key) for e in got], [("put", b"k")])

    def test_right_while_others_write(self):
        router = self.router()
        stop = threading.Event()
        threads = [
            threading.Thread(target=kv_router.change, args=(self.server.url, i, stop))
            for i in range(2)
        ]
        for t in threads:
            t.start()
        try:
            found = [router.check() for _ in range(5)]
        finally:
            stop.set()
            for t in threads:
                t.join()
        self.assertEqual(found, [[]] * 5)
        self.assertEqual(router.check(), [])

    def test_a_gap_is_noticed_and_mended(self):
        router = self.router()
        for i in range(6000):
            self.c.ask("SET", f"k{i % 50}", "1")
        self.assertEqual(router.follow(), [])
        self.assertEqual((router.gaps, router.walks), (1, 2))
        self.assertEqual(len(router.picture.objects), 50)
        self.assertEqual(router.check(), [])

    def test_another_epoch_is_noticed(self):
        router = self.router()
        self.c.ask("CONFIG", "SET", "kv-events-size", 0)
        self.c.ask("SET", "missed", "1")
        with self.assertRaisesRegex(kv_router.ServerError, "KV events are off"):
            router.follow()
        self.c.ask("CONFIG", "SET", "kv-events-size", "128kb")
        self.assertEqual(router.follow(), [])
        self.assertEqual(
            (router.gaps, router.walks, list(router.picture.objects)), (0, 2, [b"missed"])
        )

    def test_nodes(self):
        router = self.router()
        with Node(self.server, name="router-node", pool="16mb") as node:
            for i in range(150):  # more than the server's own segment holds
                self.c.ask("SET", f"n{i}", b"z" * 200000)
            self.assertEqual(router.check(), [])
            nodes = {p.node for k in router.picture.objects for p in router.picture.where(k)}
            self.assertIn(node.name, nodes)
            node.kill()
            while not any(e.kind == "segment-down" for e in router.follow(60000)):
                pass
            self.assertEqual(router.check(), [])
            left = {p.node for k in router.picture.objects for p in router.picture.where(k)}
            self.assertNotIn(node.name, left)

    def test_errors_of_the_picture_are_found(self):
        self.c.ask("SET", "k", "1")
        router = self.router()
        router.picture.remove(b"k")
        self.assertRegex(router.check()[0], "^b'k': None here, ")
        router.walk()
        router.picture.down.add(("no-such", 1))
        self.assertRegex(router.check()[0], "^down: ")
        router.walk()
        self.assertEqual(router.check(), [])
        router.picture.put(b"ghost", 1, (A,))
        self.assertRegex(router.check()[0], "b'ghost'")


class Replay:
    """What somebody knows who hears nothing but vLLM's events."""

    def __init__(self):
        self.blocks = {}

    def tell(self, told, ms):
        for node, t in told:
            if t["type"] == "AllBlocksCleared":
                self.blocks.clear()
                continue
            there = self.blocks.setdefault((node, t["medium"]), set())
            for h in [(t.get("group_idx"), h) for h in t["block_hashes"]]:
                if t["type"] == "BlockStored":
                    assert h not in there, (t, h)
                    there.add(h)
                else:
                    there.remove(h)


class VllmTest(TarnTest):
    pool = "16mb"
    server_args = ("--kv-events-size", "128kb")

    def test_what_is_told_is_all_there_is(self):
        stop, replay = threading.Event(), Replay()
        writers = [
            threading.Thread(target=kv_router.change, args=(self.server.url, n, stop))
            for n in range(2)
        ]
        with contextlib.closing(Connection(self.server.url)) as c:
            router = VllmRouter(c, replay.tell)
            for w in writers:
                w.start()
            try:
                for n in range(8):
                    if n == 4:
                        time.sleep(0.5)  # falls behind, perhaps
                    self.assertEqual(router.check(), [])
                    for _ in range(20):
                        router.follow(10)
                told = time.monotonic()
                while router.events <= 100 and time.monotonic() - told < 60:
                    router.follow(10)
            finally:
                stop.set()
                for w in writers:
                    w.join()
            while router.follow(200):
                pass
            expected = {}
            for key in router.picture.objects:
                for spot in spots(router.picture, key):
                    expected.setdefault(spot, set()).add(block_of(key))
            self.assertEqual(
                {spot: there for spot, there in replay.blocks.items() if there}, expected
            )
            self.assertGreater(router.events, 100)


class ProgramTest(TarnTest):
    pool = "16mb"
    server_args = ("--kv-events-size", "1mb")

    def run_it(self, *arguments):
        env = {**environment(python=True), "TARN_SERVER": SERVER, "TARN_NODE": NODE}
        argv = [sys.executable, os.path.join(EXAMPLES, "kv_router.py"), *arguments]
        return subprocess.run(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=150 * SLOW
        )

    def test_a_pool_of_its_own(self):
        done = self.run_it("--seconds", "0.5", "--clients", "2", "--ring", "128kb")
        said = done.stderr.decode()
        self.assertEqual(done.returncode, 0, said)
        self.assertIn("the picture is right", said)
        self.assertNotIn("WRONG", said)

    def test_a_pool_that_runs_as_vllm_tells_it(self):
        stop = threading.Event()
        writer = threading.Thread(target=kv_router.change, args=(self.server.url, 1, stop))
        writer.start()
        kinds = set()

        def all_kinds():
            done = self.run_it("--url", self.server.url, "--seconds", "0.5", "--vllm")
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            told = [json.loads(line) for line in done.stdout.splitlines()]
            kinds.update(t["events"][0]["type"] for t in told)
            return kinds >= {"BlockStored", "BlockRemoved"}

        try:
            wait_until(all_kinds, what="both kinds of events")
        finally:
            stop.set()
            writer.join()
