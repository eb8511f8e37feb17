"""Several masters behind Sentinels, tarn+sentinel://a,b,c/names: one of them is killed under load.
The client goes on with the replica that Sentinel chose, and the other masters learn of it
themselves. Sentinels are redis-sentinel's."""

import os
import shutil
import threading
import unittest

from harness import Process, Server, free_port, wait_until

import tarn
from tarn.cluster import Link, Map, Refused, parser

SHARDS = ("first", "second")


class Replicated(Server):
    """In step with the others by what the masters know: values of up to 64 bytes."""

    def __init__(self):
        super().__init__("0", "--repl-ping-replica-period", "1", conf="")

    def ask(self, *words):
        args = parser().parse_args(["status", "x:1"])
        link = Link(("127.0.0.1", self.port), args)
        try:
            return link.call(*words)
        finally:
            link.close()

    def is_a(self, role):
        """A Sentinel that changes it cuts all clients off."""
        try:
            return self.ask("ROLE")[0] == role
        except Refused:
            return False

    def follow(self, master):
        self.ask("REPLICAOF", "127.0.0.1", master.port)
        wait_until(lambda: b"master_link_status:up" in self.ask("INFO", "replication"))


class Sentinel(Process):
    def __init__(self, masters):
        super().__init__("tarn-py-sentinel.")
        self.port = free_port()
        conf = os.path.join(self.dir, "sentinel.conf")
        with open(conf, "w", encoding="utf-8") as f:
            print(f"port {self.port}\nbind 127.0.0.1\ndir {self.dir}", file=f)
            for name, master in masters.items():
                print(f"sentinel monitor {name} 127.0.0.1 {master.port} 2", file=f)
                # a busy machine stands still for a second
                print(f"sentinel down-after-milliseconds {name} 600000", file=f)
                print(f"sentinel failover-timeout {name} 10000", file=f)
        self.spawn(["redis-sentinel", conf])

    def ask(self, *words):
        link = Link(("127.0.0.1", self.port), parser().parse_args(["status", "x:1"]))
        try:
            return link.call("SENTINEL", *words)
        finally:
            link.close()

    def knows(self, name):
        """The replica, and the other Sentinels."""
        try:
            found = [len(self.ask(what, name)) for what in ("replicas", "sentinels")]
        except Exception:  # pylint: disable=broad-except
            return False  # it does not answer yet
        return found == [1, 2]


@unittest.skipIf(shutil.which("redis-sentinel") is None, "redis-sentinel is not there")
class Failover(unittest.TestCase):
    def setUp(self):
        self.masters, self.replicas = {}, {}
        for name in SHARDS:
            self.masters[name], self.replicas[name] = Replicated(), Replicated()
            for server in (self.masters[name], self.replicas[name]):
                self.addCleanup(server.stop)
            self.replicas[name].follow(self.masters[name])
        text = "tarn-slots 1\nepoch 1\n"
        for name, slots in zip(SHARDS, ("0-8191", "8192-16383")):
            at = [self.masters[name].port, self.replicas[name].port]
            text += f"shard {name} 1 {','.join(f'127.0.0.1:{port}' for port in at)} {slots}\n"
        for name in SHARDS:
            self.masters[name].ask("CLUSTER", "SETMAP", name, text)
        self.sentinels = [Sentinel(self.masters) for _ in range(3)]
        for sentinel in self.sentinels:
            self.addCleanup(sentinel.stop)
        for sentinel in self.sentinels:
            for name in SHARDS:
                wait_until(lambda s=sentinel, n=name: s.knows(n))

    def url(self, names):
        return "tarn+sentinel://" + ",".join(f"127.0.0.1:{s.port}" for s in self.sentinels) + names

    def test_a_shard_fails_over_under_load(self):
        over, failures, written = threading.Event(), [], [{} for _ in range(3)]

        def work(i):
            """Each key is put once: what is found is that, or a miss."""
            client, number = tarn.Client(self.url("/" + ",".join(SHARDS))), 0
            while not over.is_set():
                number += 1
                key, value = f"{i}:{number}", b"%d/%d" % (i, number)
                try:
                    client.put(key, value)
                    written[i][key] = value
                    key = f"{i}:{number // 2 or 1}"
                    got = client.get(key)
                    if got not in (None, written[i].get(key)):
                        failures.append((key, got))
                except tarn.Error:
                    pass  # its shard has no master for a while
            client.close()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        old, new = self.masters["second"], self.replicas["second"]
        wait_until(lambda: all(len(w) > 200 for w in written))
        old.kill()
        self.sentinels[0].ask("failover", "second")
        wait_until(lambda: new.is_a(b"master"))
        first = self.masters["first"]
        wait_until(lambda: self.leader(first, "second") == new.port)
        after = [len(w) for w in written]
        wait_until(lambda: all(len(w) > n + 200 for w, n in zip(written, after)))
        over.set()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])
        # both halves of the keys are served, of those written before, too
        with tarn.Client(self.url("/first")) as client:
            for w in written:
                values = client.get_many(list(w))
                self.assertEqual([v for v in values if v is not None and v not in w.values()], [])
                lost = sum(v is None for v in values)
                self.assertLess(lost, len(w) // 2)
                self.assertEqual(client.get_many(list(w)[-50:]), list(w.values())[-50:])
        self.assertEqual(self.leader(self.replicas["first"], "second"), new.port)
        # the old one comes back: it is told, and refers to the new one
        old.start()
        wait_until(lambda: old.is_a(b"slave"))
        wait_until(lambda: self.leader(old, "second") == new.port)

    def test_any_of_the_names_and_sentinels_will_do(self):
        with tarn.Client(self.url("/none,second")) as client:
            client.put_many([(f"k{i}", b"v") for i in range(100)])
        self.sentinels[0].kill()
        with tarn.Client(self.url("/first,second")) as client:
            self.assertEqual(client.get_many([f"k{i}" for i in range(100)]), [b"v"] * 100)
        self.assertGreater(self.masters["first"].ask("DBSIZE"), 20)
        self.assertGreater(self.masters["second"].ask("DBSIZE"), 20)
        with self.assertRaises(tarn.Error):
            tarn.Client(self.url("/none"))

    @staticmethod
    def leader(server, shard):
        text = server.ask("CLUSTER", "MAP")
        return text and Map.read(text.decode()).shards[shard].servers[0][1]


if __name__ == "__main__":
    unittest.main()
