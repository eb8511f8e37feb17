"""Nodes that lend their memory to several masters, none of which has memory of its own: what each
has, also of disks, and when masters come and go."""

import fcntl
import os
import unittest

from cluster_test import tool
from harness import Server, wait_until
from lending import MB, LendingTest, Load
from masters_test import ask, slot_of


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
