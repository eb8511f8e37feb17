"""Nodes that lend their memory to several masters, none of which has memory of its own."""

import os
import random
import shutil
import socket
import tempfile
import unittest

from harness import Node, pattern, wait_until
from masters_test import Masters, slot_of

import tarn
from tarn import Status

MB = 1 << 20


class LendingTest(unittest.TestCase):
    masters = 3

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tarn-lending.", dir=os.environ.get("TMPDIR"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.pool = Masters(self.masters, "0")
        self.addCleanup(self.pool.stop)
        self.shares = [16384 // self.masters] * self.masters

    def node(self, name, *args, pool="96mb", i=0):
        node = Node(self.pool.servers[i], *args, name=name, pool=pool)
        self.addCleanup(node.stop)
        return node

    def client(self, query="", i=0, **options):
        client = tarn.Client(self.pool.url(i) + query, **options)
        self.addCleanup(client.close)
        return client

    def tagged(self, n, i, prefix="t"):
        """Keys of one hash tag, whose slot the master i has."""
        tag = 0
        while slot_of(b"%s%d" % (prefix.encode(), tag)) // self.shares[0] != i:
            tag += 1
        return [b"{%s%d}%d" % (prefix.encode(), tag, k) for k in range(n)]

    def memory_at(self, i):
        """Of all segments, as the master says."""
        return int(self.info(i, "pool")["pool_size"])

    def info(self, i, section=""):
        """What INFO of a master says."""
        with socket.create_connection(("127.0.0.1", self.pool.servers[i].port), 60) as s:
            s.sendall(f"INFO {section}\r\n".encode())
            stream = s.makefile("rb")
            text = stream.read(int(stream.readline()[1:])).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def values(self, client, n, size=20000, prefix="k"):
        values = {b"%s%d" % (prefix.encode(), i): pattern(size, i) for i in range(n)}
        self.assertEqual(client.put_many(list(values.items())), [Status.OK] * n)
        return values

    def check(self, client, values):
        keys = list(values)
        random.Random(1).shuffle(keys)
        self.assertEqual(client.get_many(keys), [values[k] for k in keys])


class Shares(LendingTest):
    """What each master has of the nodes."""

    def test_puts_and_gets(self):
        for name in ("n1", "n2"):
            self.node(name)
        for transport in ("shm", "tcp"):
            client = self.client(f"?transport={transport}")
            self.check(client, self.values(client, 300, prefix=transport))
        for i in range(self.masters):
            self.assertGreater(self.pool.keys_at(i), 100)
            self.assertEqual(self.memory_at(i), 64 * MB)

    def test_a_master_that_dies_costs_its_share(self):
        self.node("n1")
        self.node("n2")
        client = self.client("?transport=tcp&failover_ms=100")
        values = self.values(client, 300)
        self.pool.servers[1].kill()
        there = {k: v for k, v in values.items() if slot_of(k) // self.shares[0] != 1}
        self.check(client, there)
        self.pool.servers[1].start()
        self.pool.tell_one(1)
        wait_until(lambda: self.memory_at(1) == 64 * MB, what="the nodes are back")
        self.check(client, there)
        self.check(client, self.values(client, 300, prefix="later"))

    def test_a_node_starts_while_a_master_is_away(self):
        self.pool.servers[2].kill()
        node = self.node("n1", i=0)
        self.assertEqual(self.memory_at(0), 32 * MB)
        self.pool.servers[2].start()
        self.pool.tell_one(2)
        wait_until(lambda: self.memory_at(2) == 32 * MB, what="the master has its share")
        self.check(self.client(), self.values(self.client(), 300))
        node.stop()
        for i in range(self.masters):
            self.assertEqual(self.memory_at(i), 0)

    def test_what_cannot_be_divided(self):
        with self.assertRaisesRegex(RuntimeError, "too little for 3 masters"):
            self.node("n1", pool="4mb")

    def test_pool_files_are_found_again(self):
        file = os.path.join(self.dir, "pool")
        node = self.node("n1", pool=f"96mb,path={file}")
        client = self.client()
        values = self.values(client, 300)
        names = sorted(os.listdir(self.dir))
        node.process.terminate()
        self.assertEqual(node.process.wait(), 0)
        node.start()
        self.check(self.client(), values)
        node.kill()
        node.start()
        self.check(self.client(), values)
        self.assertEqual(sorted(os.listdir(self.dir)), names)


if __name__ == "__main__":
    unittest.main()
