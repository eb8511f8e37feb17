"""mooncake.engine on tarn: two programs that know each other by host:port, or by name."""

import ctypes
import json
import os
import socket
import unittest

from harness import Part, Server, TarnTest, together, wait_until

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from mooncake.store import MooncakeDistributedStore
from mooncake_part import SIZE


class Program(Part):
    """mooncake_part.py."""

    def __init__(
        self, hostname="127.0.0.1", metadata="P2PHANDSHAKE", protocol="tcp", **environment
    ):
        super().__init__("mooncake_part.py", hostname, metadata, protocol, **environment)
        words = self.line().split()
        self.session, (self.managed, self.own, self.first) = words[0], (int(w) for w in words[1:])

    def ask(self, *words):
        """What it says to a line."""
        self.process.stdin.write(" ".join(str(w) for w in words) + "\n")
        self.process.stdin.flush()
        return self.line()


class EngineTest(TarnTest):
    """Without a server."""

    METADATA = "P2PHANDSHAKE"
    NAME = "127.0.0.1"

    def setUp(self):
        self.part = self.start()
        self.engine = TransferEngine()
        self.assertEqual(self.engine.initialize("127.0.0.1:0", self.METADATA, "tcp", ""), 0)
        self.addCleanup(self.engine._close)
        self.memory = (ctypes.c_ubyte * SIZE)()
        self.address = ctypes.addressof(self.memory)
        self.assertEqual(self.engine.register_memory(self.address, SIZE), 0)

    def start(self, **environment):
        part = Program(self.NAME, self.METADATA, **environment)
        self.addCleanup(part.stop)
        return part

    def test_sync(self):
        e, p, far = self.engine, self.part, self.part.session
        for name, there in (("managed", p.managed), ("own", p.own)):
            ctypes.memset(self.address, 3, SIZE)
            self.assertEqual(e.transfer_sync_write(far, self.address, there, SIZE), 0)
            self.assertEqual(p.ask("sum", name), str(3 * SIZE))
            self.assertEqual(p.ask("fill", name, 5), "filled")
            self.assertEqual(e.transfer_sync_read(far, self.address, there, SIZE), 0)
            self.assertEqual(bytes(self.memory), b"\5" * SIZE)
        self.assertEqual(e.transfer_sync(far, self.address, p.own, 16, TransferOpcode.Read), 0)
        self.assertEqual(
            e.transfer_sync(far, self.address, p.own, 16, TransferEngine.TransferOpcode.Write), 0
        )

    def test_batches(self):
        e, p, far, n, step = self.engine, self.part, self.part.session, 64, SIZE // 64
        here = [self.address + i * step for i in range(n)]
        there = [p.own + (n - 1 - i) * step for i in range(n)]
        for i in range(n):
            self.assertEqual(e.write_bytes_to_buffer(here[i], bytes([i]) * step, step), 0)
        self.assertEqual(e.batch_transfer_sync_write(far, here, there, [step] * n), 0)
        self.assertEqual(e.batch_transfer_sync_read(far, [self.address], [p.own], [SIZE]), 0)
        for i in range(n):
            self.assertEqual(e.read_bytes_from_buffer(here[i], step), bytes([n - 1 - i]) * step)
        self.assertEqual(
            e.batch_transfer_sync(far, here, there, [step] * n, TransferOpcode.Write), 0
        )
        self.assertEqual(e.batch_transfer_sync_write(far, [], [], []), 0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(e.batch_transfer_sync_write(far, here, there[:3], [step] * n), -1)
            self.assertEqual(e.transfer_sync_write(far, self.address, 4096, 16), -1)
            self.assertEqual(e.transfer_sync_write(far, self.address, p.own + SIZE - 1, 2), -1)
            self.assertEqual(e.write_bytes_to_buffer(self.address, b"short", 6), -1)

    def test_async(self):
        e, p, far = self.engine, self.part, self.part.session
        ctypes.memset(self.address, 9, SIZE)
        numbers = [
            e.batch_transfer_async_write(far, [self.address], [p.own], [SIZE]) for _ in range(8)
        ]
        self.assertEqual(len(set(numbers) - {0}), 8)
        self.assertEqual(e.get_batch_transfer_status(numbers), 0)
        self.assertEqual(p.ask("sum", "own"), str(9 * SIZE))
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(
                e.get_batch_transfer_status(numbers[:1]), -1, "it was asked for already"
            )
        number = e.transfer_submit_write(far, self.address, p.managed, SIZE)
        self.assertNotEqual(number, 0)
        self.assertEqual(wait_until(lambda: e.transfer_check_status(number), what="the write"), 1)
        number = e.batch_transfer_async_read(far, [self.address], [4096], [16])
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(
                wait_until(lambda: e.transfer_check_status(number), what="the read"), -1
            )
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(e.transfer_check_status(number), -1)
        number = e.batch_transfer_async(far, [self.address], [p.own], [16], TransferOpcode.Read)
        self.assertEqual(e.get_batch_transfer_status([number]), 0)

    def test_notifies(self):
        e, p, far = self.engine, self.part, self.part.session
        self.assertEqual(
            e.transfer_sync(
                far, self.address, p.own, 16, TransferOpcode.Write, TransferNotify("7", "done")
            ),
            0,
        )
        notify = TransferNotify()
        notify.name, notify.msg = "räume", "8"
        self.assertEqual(
            e.batch_transfer_sync(far, [self.address], [p.own], [16], TransferOpcode.Write, notify),
            0,
        )
        self.assertEqual(p.ask("notifies"), "7=done räume=8")
        self.assertEqual(p.ask("notifies"), "-")
        self.assertEqual(e.get_notifies(), [])
        for bad in (b"", b"\1\0\0\0\0\0\0\0", b"x" * 9):
            self.assertIsNone(TransferNotify.unpacked(bad))

    def test_where_memory_is(self):
        e, p = self.engine, self.part
        self.assertEqual(e.get_first_buffer_address(p.session), p.first)
        self.assertNotEqual(p.first, 0)
        self.assertEqual(p.ask("unregister"), "0")
        self.assertEqual(p.ask("unregister"), "-3")
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(e.transfer_sync_write(p.session, self.address, p.own, 16), -1)
        self.assertEqual(e.transfer_sync_write(p.session, self.address, p.managed, 16), 0)

    def test_peer_that_dies_and_comes_back(self):
        e, p = self.engine, self.part
        self.assertEqual(e.send_probe(p.session), 0)
        self.assertEqual(e.transfer_sync_write(p.session, self.address, p.own, 16), 0)
        p.stop()
        with self.assertLogs("mooncake"):
            self.assertEqual(e.transfer_sync_write(p.session, self.address, p.own, 16), -1)
            self.assertNotEqual(e.send_probe(p.session), 0)
            self.assertEqual(
                e.batch_transfer_async_write(p.session, [self.address], [p.own], [16]), 0
            )
        again = self.start()
        self.assertEqual(e.transfer_sync_write(again.session, self.address, again.own, 16), 0)
        self.assertEqual(e.send_probe(again.session), 0)

    def test_nobody_there(self):
        with self.assertLogs("mooncake"):
            self.assertNotEqual(self.engine.send_probe("127.0.0.1:1"), 0)
            self.assertEqual(self.engine.transfer_submit_write("127.0.0.1:1", 0, 0, 16), 0)
            self.assertEqual(self.engine.transfer_sync_read("127.0.0.1:1", self.address, 0, 16), -1)
            self.assertEqual(self.engine.get_first_buffer_address("127.0.0.1:1"), 0)

    def test_threads(self):
        e, p, codes = self.engine, self.part, []

        def work(i):
            for _ in range(20):
                at = i * 4096
                codes.append(e.transfer_sync_write(p.session, self.address + at, p.own + at, 4096))

        together(work, range(8))
        self.assertEqual(codes, [0] * 160)
        self.assertEqual(len(e._far), 1, "one connection for all of them")


class NamesTest(EngineTest):
    """With a server that keeps names."""

    NAME = "node-7:12345"
    test_async = test_notifies = test_threads = None  # have nothing to do with names

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)
        cls.METADATA = cls.server.url

    def test_ways_to_name_the_server(self):
        for metadata, kind in (
            (f"127.0.0.1:{self.server.port}", ""),
            (f"redis://127.0.0.1:{self.server.port}", ""),
            (f"127.0.0.1:{self.server.port}", "redis"),
        ):
            engine = TransferEngine()
            self.assertEqual(engine.initialize_ext("127.0.0.1:1", metadata, "tcp", "", kind), 0)
            self.addCleanup(engine._close)
            self.assertEqual(engine.send_probe(self.NAME), 0)


class LocalTest(TarnTest):
    """What one program does by itself."""

    def engine(self, *arguments):
        engine = TransferEngine()
        self.assertEqual(
            engine.initialize(*(arguments or ("localhost", "P2PHANDSHAKE", "tcp", ""))), 0
        )
        self.addCleanup(engine._close)
        return engine

    def test_life(self):
        engine = TransferEngine()
        self.assertEqual((engine.get_rpc_port(), engine.get_engine()), (-1, None))
        self.assertEqual(engine.allocate_managed_buffer(10), 0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(engine.register_memory(4096, 4096), -1)
            self.assertEqual(engine.transfer_sync_read("127.0.0.1:1", 0, 0, 1), -1)
        for bad in ("http://127.0.0.1:8080/metadata", "etcd://h:1", "", "127.0.0.1:1"):
            with self.assertLogs("mooncake", "ERROR"):
                self.assertEqual(TransferEngine().initialize("localhost", bad, "tcp", ""), -1, bad)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(engine.initialize("localhost", "P2PHANDSHAKE", "ascend", ""), -1)
        self.assertEqual(engine.initialize("localhost", "P2PHANDSHAKE", "rdma", "mlx5_0"), 0)
        self.addCleanup(engine._close)
        self.assertGreater(engine.get_rpc_port(), 0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(
                engine.initialize("localhost", "P2PHANDSHAKE", "tcp", ""), -1, "it is open already"
            )
        with self.assertRaises(TypeError):
            TransferEngine().initialize(None, "P2PHANDSHAKE", "tcp", "")

    def test_beyond_loopback_takes_a_secret(self):
        for name in ("TARN_TRANSFER_SECRET", "TARN_TRANSFER_UNPROTECTED"):
            self.addCleanup(os.environ.pop, name, None)
        with self.assertLogs("mooncake", "ERROR") as log:
            self.assertEqual(
                TransferEngine().initialize("192.0.2.7", "P2PHANDSHAKE", "tcp", ""), -1
            )
        self.assertIn("TARN_TRANSFER_SECRET", log.output[0])
        os.environ["TARN_TRANSFER_SECRET"] = "correct horse"
        engine = self.engine(
            "192.0.2.7", "P2PHANDSHAKE", "tcp", ""
        )  # is not ours: it listens on every address
        with self.assertLogs("mooncake", "WARNING"):
            del os.environ["TARN_TRANSFER_SECRET"]
            self.assertEqual(
                self.engine().send_probe(f"127.0.0.1:{engine.get_rpc_port()}"), -1, "no secret"
            )

    def test_ipv6(self):
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::1", 0))
            except OSError:
                self.skipTest("there is no IPv6 here")
        engine, other = self.engine("::1", "P2PHANDSHAKE", "tcp", ""), self.engine()
        address = engine.allocate_managed_buffer(4096)
        session = f"[::1]:{engine.get_rpc_port()}"
        self.assertEqual(engine.get_first_buffer_address(session), engine._first[0])
        self.assertEqual(other.get_first_buffer_address(session), engine._first[0])
        self.assertEqual(engine.transfer_sync_write(session, address, address, 16), 0, "to oneself")

    def test_port_of_ones_own(self):
        self.addCleanup(os.environ.pop, "MC_LEGACY_RPC_PORT_BINDING", None)
        port = self.engine().get_rpc_port()
        os.environ["MC_LEGACY_RPC_PORT_BINDING"] = "1"
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(
                TransferEngine().initialize(f"127.0.0.1:{port}", "P2PHANDSHAKE", "tcp", ""), -1
            )

    def test_memory(self):
        engine = self.engine()
        blocks = [(ctypes.c_ubyte * 8192)() for _ in range(3)]
        at = [ctypes.addressof(b) for b in blocks]
        self.assertEqual(engine.batch_register_memory(at, [8192] * 3), 0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(engine.register_memory(at[0] + 10, 10), -7)
            self.assertEqual(engine.batch_register_memory([at[0]], [1, 2]), -1)
            self.assertEqual(engine.register_memory(at[0], 0), -1)
        self.assertEqual(engine.batch_unregister_memory(at[1:]), 0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(engine.batch_register_memory([at[1], at[0]], [8192] * 2), -7)
        self.assertEqual(engine.register_memory(at[1], 8192), 0, "all or none")
        self.assertEqual(
            engine.get_first_buffer_address(f"localhost:{engine.get_rpc_port()}"), at[0]
        )

    def test_managed_memory(self):
        engine, seen = self.engine(), {}
        for length in (1, 4096, 4097, 100000, 1 << 20, (1 << 20) + 1, 9 << 20):
            for _ in range(6):
                address = engine.allocate_managed_buffer(length)
                self.assertNotEqual(address, 0)
                for other, size in seen.items():
                    self.assertFalse(
                        address < other + size and other < address + length, "they do not overlap"
                    )
                ctypes.memset(address, 1, length)
                seen[address] = length
        for address, length in seen.items():
            self.assertEqual(engine.free_managed_buffer(address, length), 0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(engine.free_managed_buffer(next(iter(seen)), 1), -1)
        self.assertIn(engine.allocate_managed_buffer(4096), seen)

    def test_topology(self):
        found = json.loads(self.engine().get_local_topology())
        self.assertEqual([len(v) for v in found.values()], [2])
        self.assertEqual(
            json.loads(self.engine().get_local_topology("none_0")), {"cpu:0": [[], []]}
        )

    def test_engine_of_a_store(self):
        with Server() as server:
            store, engine = MooncakeDistributedStore(), self.engine()
            name = f"localhost:{engine.get_rpc_port()}"
            code = store.setup(
                name,
                "P2PHANDSHAKE",
                0,
                1 << 20,
                "tcp",
                "",
                f"127.0.0.1:{server.port}",
                engine.get_engine(),
            )
            self.assertEqual(code, 0)
            self.assertEqual(store.put("k", b"v" * 100), 0)
            self.assertEqual(store.get_hostname(), name)
            store.close()


if __name__ == "__main__":
    unittest.main()
