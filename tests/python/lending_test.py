"""Nodes that lend their memory to several masters, none of which has memory of its own."""

import fcntl
import os
import random
import shutil
import socket
import tempfile
import threading
import unittest

from cluster_test import tool
from harness import Node, Server, pattern, wait_until
from masters_test import Masters, ask, slot_of

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

    def test_disks_are_found_again(self):
        disk = os.path.join(self.dir, "disk")
        os.mkdir(disk)
        node = self.node("n1", "--ssd", f"{disk}:192mb", pool="12mb")
        client = self.client("?timeout_ms=60000")
        values = self.values(client, 600, size=50000)  # more than the memory
        wait_until(lambda: self.on_disk() == 600, what="all are on disk")
        self.assertEqual(sorted(os.listdir(disk)), ["a", "b", "c"])
        self.check(client, values)
        node.kill()
        node.start()
        wait_until(lambda: self.on_disk() == 600, 60, what="all are found")
        self.check(self.client("?timeout_ms=60000"), values)

    def test_disks_are_divided_by_directories(self):
        disk = os.path.join(self.dir, "disk")
        with open(disk, "wb") as f:
            f.truncate(64 * MB)
        with self.assertRaisesRegex(RuntimeError, "in a directory"):
            self.node("n1", "--ssd", f"{disk}:64mb")

    def test_a_replica_takes_over(self):
        """Of a shard, which nodes learn by the map that is changed while they run."""
        self.node("n1")
        client = self.client("?timeout_ms=20000&failover_ms=100")
        with Server("0", "--repl-ping-replica-period", "1") as replica:
            self.pool.rows[1].append(replica.port)
            self.pool.tell()
            ask(replica.port, "REPLICAOF", "127.0.0.1", self.pool.servers[1].port)
            values = self.values(client, 300)
            wait_until(lambda: ask(replica.port, "DBSIZE") == f":{self.pool.keys_at(1)}")
            self.pool.servers[1].kill()
            ask(replica.port, "REPLICAOF", "NO", "ONE")
            self.check(client, values)
            self.check(client, self.values(client, 300, prefix="later"))


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


class Grows(LendingTest):
    """Masters come and go."""

    masters = 2

    def setUp(self):
        super().setUp()
        for server in self.pool.servers:
            ask(server.port, "CLUSTER", "RESET", "FORCE")
        self.names = [f"127.0.0.1:{s.port}" for s in self.pool.servers]

    def create(self):
        a, b = self.names
        self.must("create", f"a={a}", f"b={b}")
        return a

    def add(self, a, name="c"):
        """A master "c", which is not in self.pool.servers yet."""
        new = Server("0")
        self.addCleanup(new.stop)
        self.must("add", a, f"{name}=127.0.0.1:{new.port}")
        return new

    def test_a_node_that_was_there_before_the_map(self):
        file = os.path.join(self.dir, "pool")
        node = self.node("n1", pool=f"48mb,path={file}")
        self.create()
        wait_until(lambda: "has a slot map now" in node.output(), 60, "the node says so")
        self.assertEqual([self.memory_at(i) for i in range(2)], [48 * MB, 0])
        self.assertEqual(os.listdir(self.dir), ["pool"])
        node.kill()
        node.start()
        self.assertEqual([self.memory_at(i) for i in range(2)], [24 * MB] * 2)
        self.assertIn("pool of 48 MiB is removed", node.output())
        files = [os.path.join(self.dir, name) for name in os.listdir(self.dir)]
        self.assertLess(sum(os.stat(f).st_blocks * 512 for f in files), 50 * MB)

    def test_a_map_of_one_shard_is_there_before_the_node(self):
        """Then it lends to whoever comes without being started anew, and keeps what it has."""
        file = os.path.join(self.dir, "pool")
        self.must("create", f"a={self.names[0]}")
        node = self.node("n1", pool=f"48mb,path={file}")
        client = self.client("?timeout_ms=20000")
        values = self.values(client, 60)
        self.must("add", self.names[0], f"b={self.names[1]}")
        wait_until(lambda: self.memory_at(1) > 0, 60, "the new master has memory")
        self.must("rebalance", self.names[0])
        self.check(client, values)
        self.assertGreater(self.pool.keys_at(1), 10)
        node.kill()
        node.start()
        self.check(client, values)

    def test_the_disk_of_a_node_that_was_there_before_the_map(self):
        disk = os.path.join(self.dir, "disk")
        os.mkdir(disk)
        node = self.node("n1", "--ssd", f"{disk}:192mb", pool="12mb")
        values = self.values(self.client("?timeout_ms=60000"), 300, size=50000)
        wait_until(lambda: self.on_disk() == 300, what="all are on disk")
        self.create()
        node.kill()
        node.start()
        self.assertEqual(sorted(os.listdir(disk)), ["a", "b"])
        wait_until(lambda: self.on_disk() == 300, 60, what="all are found")
        self.check(self.client("?timeout_ms=60000"), values)

    def test_the_disk_of_a_master_that_came_later(self):
        disk = os.path.join(self.dir, "disk")
        os.mkdir(disk)
        a = self.create()
        node = self.node("n1", "--ssd", f"{disk}:192mb", pool="12mb")
        values = self.values(self.client("?timeout_ms=60000"), 300, size=50000)
        wait_until(lambda: self.on_disk() == 300, what="all are on disk")
        new = self.add(a)
        self.pool.servers.append(new)
        wait_until(lambda: self.memory_at(2) > 0, what="the new master has memory")
        wait_until(lambda: "Shard c has 64 MiB of the disk" in node.output(), 60, "it has a part")
        sizes = [os.stat(f"{disk}/{shard}/tarn.ssd").st_size for shard in "abc"]
        self.assertLessEqual(max(sizes), 64 * MB)
        self.assertGreater(min(sizes), 60 * MB)
        wait_until(lambda: self.on_disk() == 300, 60, what="all that was there is found again")
        self.check(self.client("?timeout_ms=60000"), values)
        node.kill()
        node.start()
        self.assertEqual(sorted(os.listdir(disk)), ["a", "b", "c"])
        wait_until(lambda: self.on_disk() == 300, 60, what="all are found")
        self.check(self.client("?timeout_ms=60000"), values)
        # A node that does not answer delays no master that leaves.
        node.pause()
        try:
            self.must("remove", a, "c")
        finally:
            node.resume()
        wait_until(lambda: self.memory_at(2) == 0, what="it has let go")
        wait_until(lambda: self.memory_at(0) + self.memory_at(1) == 12 * MB, what="it is back")
        for shard in "ab":
            said = f"Shard {shard} has 96 MiB of the disk"
            wait_until(lambda s=said: s in node.output(), 60, what="its disk is, too")
        self.assertEqual(sorted(os.listdir(disk)), ["a", "b"])
        wait_until(lambda: self.on_disk() == 300, 60, what="all are found again")
        self.check(self.client("?timeout_ms=60000"), values)

    def test_the_disk_of_a_master_that_left_while_the_node_was_away(self):
        disk = os.path.join(self.dir, "disk")
        self.create()
        node = self.node("n1", "--ssd", f"{disk}:192mb,create", pool="12mb")
        node.kill()
        for shard in ("c", "used", "mine"):
            os.mkdir(os.path.join(disk, shard))
        for file in ("c/tarn.ssd", "used/tarn.ssd", "mine/notes"):
            with open(os.path.join(disk, file), "w") as f:
                f.write("x")
        with open(os.path.join(disk, "used/tarn.ssd")) as f:
            fcntl.flock(f, fcntl.LOCK_EX)  # as another node does
            node.start()
        self.assertEqual(sorted(os.listdir(disk)), ["a", "b", "mine", "used"])
        self.assertIn("The disk of shard c at", node.output())

    def test_disks_get_smaller_before_there_is_one_more(self):
        """Of a master that came while the node was away: the disk may have no room else."""
        a = self.create()
        node = self.node("n1", "--ssd", f"{self.dir}/disk:192mb,create", pool="12mb")
        node.kill()
        self.add(a, "0")
        node.start()
        log = node.output()
        at = {shard: log.rfind(f"SSD tier {self.dir}/disk/{shard}/tarn.ssd: ") for shard in "0ab"}
        self.assertGreater(min(at.values()), -1, log)
        self.assertGreater(at["0"], max(at["a"], at["b"]), log)

    def test_a_disk_that_cannot_be_opened_is_tried_again(self):
        disk = os.path.join(self.dir, "disk")
        os.mkdir(disk)
        a = self.create()
        node = self.node("n1", "--ssd", f"{disk}:192mb", pool="12mb")
        os.symlink("nowhere", os.path.join(disk, "c"))
        self.add(a)
        wait_until(lambda: "Shard c cannot have 64 MiB" in node.output(), 60, "a failure")
        os.unlink(os.path.join(disk, "c"))
        wait_until(lambda: "Shard c has 64 MiB of the disk" in node.output(), 60, "it has a part")

    def test_keys_move_to_the_disk_of_a_master_that_came_later(self):
        a = self.create()
        node = self.node("n1", "--ssd", f"{self.dir}/disk:192mb,create", pool="12mb")
        values = self.values(self.client("?timeout_ms=60000"), 300, size=50000)
        new = self.add(a)
        self.pool.servers.append(new)
        wait_until(lambda: "Shard c has 64 MiB of the disk" in node.output(), 60, "it has a part")
        self.must("rebalance", a)
        wait_until(lambda: self.on_disk() == 300, 60, what="all are on disk")
        self.assertGreater(int(self.info(2)["far_replicas"]), 50)
        self.check(self.client("?timeout_ms=60000"), values)
        self.must("remove", a, "c")
        for shard in "ab":
            said = f"Shard {shard} has 96 MiB of the disk"
            wait_until(lambda s=said: s in node.output(), 60, what="its part is larger")
        # What was on its way to a disk that was not there for a moment may be gone.
        client = self.client("?timeout_ms=60000")

        def found():
            got = dict(zip(values, client.get_many(list(values))))
            self.assertEqual([k for k in values if got[k] not in (None, values[k])], [])
            return sum(v is not None for v in got.values())

        wait_until(lambda: found() > 200, 60, what="most are found")

    def test_disks_change_under_load(self):
        a = self.create()
        nodes = [
            self.node(name, "--ssd", f"{self.dir}/{name}:96mb,create", pool="12mb")
            for name in ("n1", "n2")
        ]
        load = Load(self, lambda n: b"k%d" % (n % 1500), size=50000)
        wait_until(lambda: load.put > 300, what="puts")
        self.pool.servers.append(self.add(a))
        for node in nodes:
            wait_until(lambda n=node: "Shard c has 32 MiB of the disk" in n.output(), 60, "c's")
        self.must("rebalance", a)
        self.must("remove", a, "c")
        for node in nodes:
            for said in ("Shard a has 48 MiB of the disk", "Shard b has 48 MiB of the disk"):
                wait_until(lambda n=node, s=said: s in n.output(), 60, said)
        load.stop()
        self.assertEqual(load.wrong, 0)
        self.assertGreater(load.got, 300)

    def test_a_master_is_added_and_removed_under_load(self):
        a = self.create()
        for name in ("n1", "n2"):
            self.node(name, "--lend-interval", "1", pool="48mb")
        load = Load(self, lambda n: b"k%d" % n, size=3000)
        wait_until(lambda: load.put > 100, what="puts")
        new = self.add(a)
        self.must("rebalance", a)
        self.pool.servers.append(new)
        wait_until(lambda: self.memory_at(2) > 0, what="the new master has memory")
        # It has little memory yet, and may evict some at once.
        values = self.values(self.client(), 300, size=3000, prefix="x")
        got = dict(zip(values, self.client().get_many(list(values))))
        self.assertEqual([k for k in values if got[k] not in (None, values[k])], [])
        self.assertGreater(self.pool.keys_at(2), 50)
        self.must("remove", a, "c")
        wait_until(
            lambda: self.memory_at(0) + self.memory_at(1) == 96 * MB, what="its memory is back"
        )
        self.assertEqual(self.memory_at(2), 0)
        load.stop()
        self.assertEqual(load.wrong, 0)

    def must(self, *words):
        code, out = tool(*words)
        self.assertEqual(code, 0, out)


if __name__ == "__main__":
    unittest.main()
