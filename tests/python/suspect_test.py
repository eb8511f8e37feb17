"""What a master does not know to be right is verified, whatever the reader asked for: after a
failover that the stream had not reached, and on disks."""

import unittest

from harness import Node, Server, pattern, wait_until

import tarn

SIZE = 17 * 100000


class Failover(unittest.TestCase):
    """Put a value, WAIT 1, the stream is cut, DEL, put another into the same space, kill the
    master, promote."""

    KEYS = ("by get", "by range", "by view")

    @classmethod
    def setUpClass(cls):
        quick = (
            "--node-heartbeat",
            "100",
            "--node-timeout",
            "30s",
            "--repl-ping-replica-period",
            "1",
        )
        cls.master = Server("0", *quick)
        cls.addClassCleanup(cls.master.stop)
        cls.replica = Server("0", *quick, "--replicaof", f"127.0.0.1 {cls.master.port}")
        cls.addClassCleanup(cls.replica.stop)
        cls.node = Node(cls.master, pool="6mb")
        cls.addClassCleanup(cls.node.stop)
        cls.small = pattern(3000, 3)
        with tarn.Client(cls.master.url) as client:
            for seed, key in enumerate(cls.KEYS):
                client.put(key, pattern(SIZE, seed))
            client.put("small", cls.small)
            client.put("inline", b"i" * 40)
            wait_until(
                lambda: client.command("WAIT", "1", "1000") == "1", what="the replica to have it"
            )
            cls.replica.pause()
            client.command("CLIENT", "KILL", "TYPE", "replica")
            client.remove_many(cls.KEYS)
            for seed, key in enumerate(cls.KEYS):
                client.put("other" + key, pattern(SIZE, 10 + seed))
        cls.master.kill()
        cls.replica.resume()
        with tarn.Client(cls.replica.url) as client:
            client.command("REPLICAOF", "NO", "ONE")
            client.command("CONFIG", "SET", "port", str(cls.master.port))
        with tarn.Client(cls.master.url) as client:
            wait_until(
                lambda: "state\nup" in client.command("NODE", "INFO", cls.node.name),
                60,
                "the node is up",
            )

    def setUp(self):
        self.client = tarn.Client(self.master.url, verify=False)
        self.addCleanup(self.client.close)

    def refused(self, call):
        """A miss or an error; no bytes."""
        before = self.client.stats()["crc_mismatches"]
        try:
            self.assertIsNone(call())
        except tarn.Error as error:
            self.assertEqual(error.name, "ECORRUPT")
        self.assertGreater(self.client.stats()["crc_mismatches"], before)

    def test_guarantee_1_a_get_without_verify_is_verified(self):
        self.refused(lambda: self.client.get("by get"))
        self.assertEqual(self.client.get("small"), self.small)
        self.assertEqual(self.client.get("inline"), b"i" * 40)

    def test_guarantee_1_a_range_without_verify_is_verified(self):
        self.refused(lambda: self.client.get_range("by range", 1 << 20, 1000))
        self.assertEqual(bytes(self.client.get_range("small", 1000, 1000)), self.small[1000:2000])

    def test_guarantee_1_a_view_is_verified_before_it_is_handed_out(self):
        self.refused(lambda: self.client.view("by view"))
        with self.client.view("small") as view:
            self.assertEqual(bytes(view.data), self.small)


if __name__ == "__main__":
    unittest.main()
