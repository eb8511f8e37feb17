"""A test class of masters without memory of their own, nodes that lend it to them, and a load."""

import os
import random
import shutil
import socket
import tempfile
import threading
import unittest

from harness import Node, pattern
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

    def on_disk(self):
        return sum(int(self.info(i)["far_replicas"]) for i in range(len(self.pool.servers)))

    def values(self, client, n, size=20000, prefix="k"):
        values = {b"%s%d" % (prefix.encode(), i): pattern(size, i) for i in range(n)}
        self.assertEqual(client.put_many(list(values.items())), [Status.OK] * n)
        return values

    def check(self, client, values):
        keys = list(values)
        random.Random(1).shuffle(keys)
        self.assertEqual(client.get_many(keys), [values[k] for k in keys])


class Load:
    """Puts and gets in a thread, all bytes compared, until it is stopped; `keys` makes the next
    ones."""

    def __init__(self, test, keys, size=60000):
        self.client = test.client("?transport=tcp&timeout_ms=20000")
        self.keys, self.values = keys, [pattern(size, i) for i in range(61)]
        self.wrong, self.got, self.put, self.error = 0, 0, 0, None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        test.addCleanup(self.stop)

    def value(self, key):
        return self.values[hash(key) % len(self.values)]

    def run(self):
        try:
            at = 0
            while not self.over.wait(0.02):  # the machine has other tests to run
                keys = [self.keys(i) for i in range(at, at + 16)]
                values = [self.value(k) for k in keys]
                statuses = self.client.put_many(list(zip(keys, values)))
                self.put += statuses.count(Status.OK)
                for key, value in zip(keys, values):
                    got = self.client.get(key)
                    self.got += got is not None
                    self.wrong += got is not None and bytes(got) != value
                at += 16
        except Exception as e:  # told by stop
            self.error = e

    def stop(self):
        self.over.set()
        self.thread.join()
        if self.error is not None:
            raise self.error
