"""Memory of nodes goes from one master to another while all of them run."""

import os
import unittest

from harness import pattern, wait_until
from lending import MB, LendingTest, Load
from masters_test import ask, slot_of

from tarn import Status


class Moves(LendingTest):
    """Memory goes where it is needed."""

    def skewed(self, i):
        tag = self.tagged(1, i)[0].rpartition(b"}")[0]
        start = os.urandom(4).hex().encode()
        return Load(self, lambda n: tag + b"}%b.%d" % (start, n))

    def test_to_the_busy_one_and_back(self):
        for name in ("n1", "n2"):
            self.node(name, "--lend-interval", "1", pool="48mb")
        before = [self.memory_at(i) for i in range(3)]
        self.assertEqual(before, [32 * MB] * 3)
        kept = {b"{still1}%d" % i: pattern(5000, i) for i in range(200)}
        client = self.client()
        self.assertEqual(client.put_many(list(kept.items())), [Status.OK] * 200)
        there = slot_of(b"still1") // self.shares[0]
        busy, other = [i for i in range(3) if i != there]
        for i in (busy, other):
            load = self.skewed(i)
            wait_until(lambda i=i: self.memory_at(i) >= 56 * MB, what="memory moves there")
            self.assertLess(self.memory_at(there), 32 * MB)
            load.stop()
            self.assertEqual(load.wrong, 0)
            self.assertGreater(load.got, 0)
        # What nobody had to evict was copied elsewhere.
        self.check(client, kept)

    def test_files_that_moved_are_found_again(self):
        file = os.path.join(self.dir, "pool")
        node = self.node("n1", "--lend-interval", "1", pool=f"48mb,path={file}")
        load = self.skewed(0)
        wait_until(lambda: self.memory_at(0) >= 22 * MB, what="memory moves there")
        load.stop()
        self.assertEqual(load.wrong, 0)
        node.kill()
        names = os.listdir(self.dir)
        self.assertGreaterEqual(sum(n.startswith("pool.a.") for n in names), 10)
        client = self.client("?timeout_ms=20000")
        keys = [load.keys(i) for i in range(load.put)]
        node.start()
        got = client.get_many(keys)
        self.assertEqual(sum(self.memory_at(i) for i in range(3)), 48 * MB)
        self.assertGreaterEqual(self.memory_at(0), 20 * MB)
        self.assertGreater(sum(v is not None for v in got), 100)
        for key, value in zip(keys, got):
            if value is not None:
                self.assertEqual(bytes(value), load.value(key))

    def test_a_chunk_that_cannot_be_opened_is_tried_again(self):
        lent = os.path.join(self.dir, "lent")
        os.mkdir(lent)
        node = self.node("n1", "--lend-interval", "1", pool=f"48mb,path={lent}/pool")
        load = self.skewed(0)
        os.rename(lent, lent + ".away")
        wait_until(lambda: "cannot be lent to shard a" in node.output(), what="a failure")
        os.rename(lent + ".away", lent)
        wait_until(lambda: sum(self.memory_at(i) for i in range(3)) < 48 * MB)
        wait_until(lambda: sum(self.memory_at(i) for i in range(3)) == 48 * MB, what="all is lent")
        load.stop()
        self.assertEqual(load.wrong, 0)


class Lets(LendingTest):
    """Masters that let go of what they have, or do not answer."""

    def sums_to(self, mb, *masters):
        wait_until(
            lambda: sum(self.memory_at(i) for i in masters) == mb * MB, 60, f"{mb} MiB there"
        )

    def fill(self, i, n=60):
        client = self.client()
        keys = self.tagged(n, i)
        self.assertEqual(client.put_many([(k, pattern(60000)) for k in keys]), [Status.OK] * n)

    def test_a_giver_that_does_not_answer_holds_up_nobody(self):
        self.node("n1", "--lend-interval", "1")
        self.fill(2)  # so that b has more room, and gives
        tag = self.tagged(1, 0)[0].rpartition(b"}")[0]
        self.pool.servers[1].pause()
        try:
            load = Load(self, lambda n: tag + b"}%d" % n)
            wait_until(lambda: self.memory_at(0) >= 40 * MB, 60, "others give meanwhile")
        finally:
            self.pool.servers[1].resume()
        load.stop()
        self.assertEqual(load.wrong, 0)
        self.sums_to(96, 0, 1, 2)

    def test_a_master_that_is_told_to_let_go(self):
        node = self.node("n1", "--lend-interval", "1")
        client = self.client()
        self.fill(0)
        for i, word in ((1, "LEAVE"), (2, "DRAIN")):
            ask(self.pool.servers[i].port, "NODE", word, "n1")
            self.sums_to(96, *range(3) if i == 1 else (0,))
            self.assertEqual(self.memory_at(i), 0)
        keys = self.tagged(60, 0)
        self.assertEqual(client.get_many(keys), [pattern(60000)] * 60)
        ask(self.pool.servers[0].port, "NODE", "LEAVE", "n1")
        self.assertEqual(node.process.wait(60), 0)
        node.start()
        for i in range(3):
            self.sums_to(32, i)

    def test_a_shard_that_leaves_holds_up_nobody(self):
        """Its master does not answer, so that the node waits in vain to be let go."""
        node = self.node("n1", "--lend-interval", "1")
        self.pool.servers[2].pause()
        try:
            lost = self.pool.slots.pop(2)
            self.pool.rows.pop(2)
            self.pool.slots[1] += "," + lost
            self.pool.tell([0, 1])
            wait_until(lambda: "Shard c has left the map" in node.output(), 60, "the node sees it")
            ask(self.pool.servers[0].port, "SEGMENT", "UNMOUNT", "n1.0")
            wait_until(lambda: "Chunk 0 of 2 MiB is lent" in node.output(), 60, "others lend")
            self.assertNotIn("Shard c has nothing of this node any more", node.output())
            self.sums_to(96, 0, 1)
            self.assertIn("Shard c has nothing of this node any more", node.output())
        finally:
            self.pool.servers[2].resume()

    def test_a_chunk_that_is_unmounted_is_lent_again(self):
        file = os.path.join(self.dir, "pool")
        node = self.node("n1", "--lend-interval", "1", pool=f"96mb,path={file}")
        ask(self.pool.servers[1].port, "SEGMENT", "UNMOUNT", "n1.1")
        wait_until(lambda: "Chunk 1 of 2 MiB is lent" in node.output(), 60, "the log")
        self.sums_to(96, 0, 1, 2)
        self.assertEqual(len([f for f in os.listdir(self.dir) if f.endswith(".1")]), 1)


if __name__ == "__main__":
    unittest.main()
