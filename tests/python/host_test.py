"""tarn.host: memory of a process that is lent to the pool."""

import contextlib
import os
import tempfile
import unittest

from harness import Server, TarnTest, wait_until

import tarn
from tarn.host import Host, HostState

MIB = 1 << 20


class HostTest(TarnTest):
    """One server without memory of its own."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("0")
        cls.addClassCleanup(cls.server.stop)

    def test_lend_and_take_back(self):
        with tarn.Client(self.server.url) as client:
            with self.assertRaises(tarn.NoSpace):
                client.put("k", bytes(MIB))
            with Host(self.server.url, [4 * MIB, 8 * MIB], name="lender") as host:
                info = host.info()
                self.assertEqual(
                    (info["state"], info["segments"], info["bytes"]), (HostState.UP, 2, 12 * MIB)
                )
                self.assertGreater(info["data_port"], 0)
                value = os.urandom(MIB)
                self.assertTrue(client.put("k", value, prefer=["lender.1"]))
                self.assertIn("lender.1", client.command("REPLICA", "LIST", "k"))
                self.assertEqual(client.get("k"), value)
                with self.assertRaises(tarn.Busy):
                    Host(self.server.url, MIB, name="lender")
                host.reload_tls()  # it has none
            self.assertTrue(host.closed)
            self.assertIsNone(client.get("k"))
            with self.assertRaises(tarn.Closed):
                host.info()
            with self.assertRaises(tarn.Closed):
                host.reload_tls()
            host.close()

    def test_numbers_that_do_not_fit(self):
        """None of them becomes another number on its way into C."""
        for wrong in (
            dict(segments=(1 << 64) + MIB),
            dict(segments=-1),
            dict(data_port=65536 + 80),
            dict(data_port=-1),
            dict(threads=1 << 32),
            dict(ssd_bytes=-1),
            dict(ssd_bytes="1tb"),
            dict(numa_node=1 << 32),
        ):
            with self.assertRaisesRegex(tarn.InvalidArgument, next(iter(wrong)), msg=wrong):
                Host(self.server.url, **{"segments": MIB, "name": "fits", **wrong}).close()
        with Host(self.server.url, MIB, name="fits", data_port="0", threads="1"):
            pass

    def test_drain(self):
        with tarn.Client(self.server.url) as client, Host(
            self.server.url, 4 * MIB, name="stays", populate=False
        ):
            with Host(self.server.url, 4 * MIB, name="goes", host_name="another-machine") as host:
                values = {f"d{i}": os.urandom(100000) for i in range(4)}
                for key, value in values.items():
                    client.put(key, value, prefer=["goes.0"])
                self.assertFalse(host.wait(0))
                host.drain()
                self.assertTrue(host.wait(20000))
                self.assertEqual(host.info()["state"], HostState.LEFT)
            for key, value in values.items():
                wait_until(lambda key=key: client.get(key) is not None, what=key)
                self.assertEqual(client.get(key), value)

    def test_one_name_in_several_pools(self):
        with contextlib.ExitStack() as stack:
            for i in range(3):
                server = stack.enter_context(Server("0"))
                stack.enter_context(Host(server.url, 2 * MIB, name="same"))
                client = stack.enter_context(tarn.Client(server.url, transport="shm"))
                value = os.urandom(MIB)
                self.assertTrue(client.put("k", value))
                self.assertEqual(client.get("k"), value, f"pool {i}")

    def test_file_keeps_its_bytes(self):
        with tempfile.TemporaryDirectory() as folder, tarn.Client(self.server.url) as client:
            path, value = os.path.join(folder, "segment"), os.urandom(MIB)
            with Host(self.server.url, 4 * MIB, name="file", path=path):
                self.assertTrue(client.put("k", value))
            self.assertIsNone(client.get("k"))
            with open(path, "rb") as file:
                self.assertIn(value, file.read())
            with Host(self.server.url, 4 * MIB, name="file", path=path):
                self.assertTrue(client.put("l", value))
                self.assertEqual(client.get("l"), value)
        with self.assertRaisesRegex(tarn.InvalidArgument, "path"):
            Host(self.server.url, [MIB, MIB], path="/x")

    def test_arguments(self):
        for bad in (0, [], [100], "4mb", [MIB, "x"]):
            with self.assertRaises(tarn.InvalidArgument):
                Host(self.server.url, bad)
        with self.assertRaises(tarn.InvalidArgument):
            Host(self.server.url, MIB, name="no spaces")
        with self.assertRaises(tarn.ConnectionFailed):
            Host("tarn://127.0.0.1:1", MIB)


if __name__ == "__main__":
    unittest.main()
