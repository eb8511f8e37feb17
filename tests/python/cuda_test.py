"""Pool memory pinned for a GPU, against a driver that is none and is strict about the rules
(fake_cuda.c)."""

import ctypes
import mmap
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import textwrap
import threading
import time
import unittest
from unittest import mock

from harness import ROOT, Node, Server, TarnTest, together, wait_until

import tarn
from tarn.chain import block_hashes
from tarn.cuda import CudaError, CudaMissing, Driver, Pinner, why_not
from tarn.keys import KeySpace
from tarn.layers import LayerReader, LayerWriter, chunk_keys

HERE = os.path.dirname(os.path.abspath(__file__))
CC = shlex.split(os.environ.get("CC", "gcc"))
MIB = 1 << 20
PAGE = mmap.PAGESIZE


class Missing(unittest.TestCase):
    def test_no_driver(self):
        with self.assertRaises(CudaMissing) as caught:
            Driver("/nonexistent/libcuda.so.1")
        self.assertIn("TARN_CUDA_LIB", str(caught.exception))
        self.assertIsInstance(caught.exception, tarn.NotSupported)
        self.assertIn("/nonexistent", why_not("/nonexistent/libcuda.so.1"))

    def test_a_library_that_is_none(self):
        self.assertIn("cuInit", why_not("libc.so.6"))


@unittest.skipUnless(shutil.which(CC[0]), "no C compiler to make the driver with")
class WithStandIn(TarnTest):
    """A driver that is none, at self.path."""

    def client(self, query="", **options):
        """Views of it are there though the server is slow."""
        return super().client(query, failover_ms=20_000, **options)

    def setUp(self):
        # A file of its own for each test: the driver's state is its own, too.
        self.dir = tempfile.mkdtemp(prefix="tarn-fake-cuda.")
        self.addCleanup(shutil.rmtree, self.dir)
        self.path = os.path.join(self.dir, "libcuda.so.1")
        source = os.path.join(HERE, "fake_cuda.c")
        subprocess.run(
            [*CC, "-shared", "-fPIC", "-Wall", "-Werror", "-o", self.path, source], check=True
        )
        self.fake = ctypes.CDLL(self.path)
        self.fake.fake_violations.restype = ctypes.c_char_p
        self.fake.fake_get.restype = ctypes.c_long
        self.addCleanup(self.check_rules)

    def check_rules(self):
        self.assertEqual(self.fake.fake_violations(), b"")
        for what in ("ranges", "retained", "pending", "allocated"):
            self.assertEqual(self.get(what), 0, what)
        self.assertEqual(self.get("registers"), self.get("unregisters"))

    def get(self, name):
        return self.fake.fake_get(name.encode())


class Cuda(WithStandIn):
    def set(self, **values):
        for name, value in values.items():
            self.fake.fake_set(name.encode(), value)

    def pinner(self, **options):
        pinner = Pinner(driver=Driver(self.path), **options)
        self.addCleanup(pinner.close)
        return pinner

    def device(self, size):
        """(address, what lies there)."""
        memory = bytearray(size)
        return ctypes.addressof((ctypes.c_char * size).from_buffer(memory)), memory

    def view(self, client, key, size, **options):
        value = os.urandom(size)
        client.put(key, value, replace=True)
        view = client.view(key, **options)
        self.addCleanup(view.release)
        return value, view

    def test_a_segment_is_pinned_once_and_blocks_are_copied_once(self):
        client, pinner = self.client(), self.pinner()
        for i in range(5):
            value, view = self.view(client, f"once {i}", 300_000)
            address, memory = self.device(len(value))
            with pinner.pin(view) as pinned:
                self.assertTrue(pinned.pinned, pinned.why)
                pinned.copy_to(address, stream=7)
                self.assertEqual(self.get("pending"), 1)
                self.assertFalse(any(memory))
                pinned.finish()
                self.assertEqual(memory, value)
        self.assertEqual((self.get("registers"), self.get("ranges")), (1, 1))
        self.assertEqual((self.get("pinned_copies"), self.get("plain_copies")), (5, 0))
        self.assertEqual(pinner.pinned_bytes, 64 * MIB)
        pinner.trim()
        self.assertEqual((self.get("ranges"), pinner.pinned_bytes), (0, 0))

    def test_windows(self):
        """Only what views lie in is pinned, and copies are cut where two windows meet."""
        client, pinner = self.client(), self.pinner(window_bytes=256 * 1024)
        value, view = self.view(client, "long", 3 * MIB)
        address, memory = self.device(len(value))
        with pinner.pin(view) as pinned:
            n = self.get("registers")
            self.assertIn(n, (12, 13))
            pinned.copy_to(address)
            self.assertGreaterEqual(self.get("pinned_copies"), n)
            pinned.finish()
            self.assertEqual(memory, value)
            part, some = self.device(1000)
            pinned.copy_to(part, offset=256 * 1024 - 500, size=1000, stream=3)
            pinned.finish()
            self.assertEqual(some, value[256 * 1024 - 500 :][:1000])
            self.assertRaises(
                tarn.InvalidArgument, pinned.copy_to, address, offset=1, size=len(value)
            )
            with pinner.pin(view) as again:
                self.assertTrue(again.pinned)
            self.assertEqual(self.get("registers"), n)

    def test_a_bound_on_what_is_pinned(self):
        client, pinner = self.client(), self.pinner(window_bytes=MIB, max_bytes=3 * MIB)
        views = [self.view(client, f"bound {i}", MIB) for i in range(8)]
        for value, view in views:  # one after the other: what is idle makes way
            address, memory = self.device(len(value))
            with pinner.pin(view) as pinned:
                self.assertTrue(pinned.pinned, pinned.why)
                pinned.copy_to(address)
                pinned.finish()
            self.assertEqual(memory, value)
            self.assertLessEqual(pinner.pinned_bytes, 3 * MIB)
        self.assertGreater(self.get("unregisters"), 3)
        kept = [pinner.pin(view) for _, view in views]
        self.assertIn("max_bytes", kept[-1].why)
        self.assertLessEqual(pinner.pinned_bytes, 3 * MIB)
        for (value, _), pinned in zip(views, kept):
            if pinned.pinned or not any(
                w.pinned for w in pinned._windows
            ):  # a copy may not be half pinned
                address, memory = self.device(len(value))
                pinned.copy_to(address)
                pinned.finish()
                self.assertEqual(memory, value)
            pinned.release()

    def test_what_cannot_be_pinned_is_copied_all_the_same(self):
        for name, says in (("read_only", "read-only"), ("register_fails", "error 2")):
            self.set(read_only=1, register_fails=0)
            self.set(**{name: 0 if name == "read_only" else 1})
            client, pinner = self.client(), self.pinner()
            value, view = self.view(client, "refused", 100_000)
            address, memory = self.device(len(value))
            with pinner.pin(view) as pinned:
                self.assertFalse(pinned.pinned)
                self.assertIn(says, pinned.why)
                pinned.copy_to(address)
                pinned.finish()
            self.assertEqual(memory, value)
            pinner.close()
        self.assertEqual(self.get("pinned_copies"), 0)

    def test_a_device_that_reads_by_host_page_tables(self):
        self.set(read_only=0, host_tables=1)
        value, view = self.view(self.client(), "grace", 100_000)
        with self.pinner().pin(view) as pinned:
            self.assertTrue(pinned.pinned, pinned.why)

    def test_somebody_else_has_pinned_it(self):
        one, two = self.pinner(), self.pinner()
        value, view = self.view(self.client(), "both", 100_000)
        with one.pin(view) as first, two.pin(view) as second:
            self.assertTrue(first.pinned)
            self.assertIn("somebody else", second.why)
            address, memory = self.device(len(value))
            second.copy_to(address)
            second.finish()
            self.assertEqual(memory, value)

    def test_layers_to_the_device(self):
        """From the prefill side's memory to the device, by way of the pool, with one copy on this
        side."""
        client, pinner = self.client(), self.pinner(window_bytes=MIB)
        blocks = {(c, layer): os.urandom(70_000) for c in range(3) for layer in range(4)}

        def key(chunk, layer):
            return f"device@{chunk}@l{layer}"

        with LayerWriter(client) as writer, writer.prompt(key) as prompt:
            for layer in range(4):
                prompt.put(layer, range(3), [blocks[c, layer] for c in range(3)])
        reader = LayerReader(self.client(), key, layers=4, chunks=3)
        for layer in range(4):
            devices = [self.device(70_000) for _ in range(3)]
            with reader.views(layer) as views:
                pinned = [pinner.pin(view) for view in views.views]
                for p, (address, _) in zip(pinned, devices):
                    p.copy_to(address, stream=layer)
                for p in pinned:
                    p.finish()
                    p.release()
            self.assertEqual(
                [bytes(memory) for _, memory in devices], [blocks[c, layer] for c in range(3)]
            )
        self.assertEqual(self.get("plain_copies"), 0)

    def test_the_guide(self):
        """The code of docs/engines/LAYERS.md runs as it stands there."""
        with open(os.path.join(ROOT, "docs", "engines", "LAYERS.md")) as file:
            programs = re.findall(r"^```python\n(.*?)^```", file.read(), re.M | re.S)
        self.assertEqual(len(programs), 4)
        node = Node(self.server, name="decode-1")
        self.addCleanup(node.stop)
        size, seen = 8192, []
        space = KeySpace("guide", block_tokens=256)
        hashes = block_hashes(range(16 * 256), 256)
        devices = [self.device(size) for _ in hashes]
        names = {
            "client": self.client(),
            "space": space,
            "hashes": hashes,
            "request_id": "request-1",
            "layers": 32,
            "compute": lambda layer: [bytes([layer, chunk]) * (size // 2) for chunk in range(16)],
            "tail_of_every_layer": [bytearray([layer]) * 100 for layer in range(32)],
            "key": chunk_keys(space, hashes),
            "kv_cache": [[bytearray(size) for _ in range(16)] for _ in range(32)],
            "tail_key": "request-1@tail",
            "attention": lambda layer, parts: seen.append([bytes(p[0]) for p in parts]),
            "device_addresses": [address for address, _ in devices],
            "stream": 9,
        }
        with mock.patch.dict(os.environ, TARN_CUDA_LIB=self.path):
            for program in programs:
                exec(textwrap.dedent(program), names)
        expected = [names["compute"](layer) for layer in range(32)]
        self.assertEqual(names["prompt"].report.stored, 32 * 16 + 1)
        self.assertEqual(names["kv_cache"], expected)
        self.assertEqual(seen, expected)
        self.assertEqual([bytes(memory) for _, memory in devices], expected[31])
        names["pinner"].close()
        names["writer"].close()

    def test_small_values(self):
        value, view = self.view(self.client(), "small", 20)
        address, memory = self.device(20)
        with self.pinner().pin(view) as pinned:
            self.assertFalse(pinned.pinned)
            pinned.copy_to(address)
            pinned.finish()
        self.assertEqual(memory, value)

    def test_a_lease_that_ended_under_the_copy(self):
        value, view = self.view(self.client(), "late", 100_000, lease_ms=3000)
        address, _ = self.device(len(value))
        with self.pinner().pin(view) as pinned:
            pinned.copy_to(address)
            wait_until(lambda: view.valid_ms() == 0)
            self.assertRaises(tarn.LeaseOver, pinned.finish)

    def test_released_before_the_copy_has_ended(self):
        """Whoever forgets to finish has no result, but nothing is torn down under the device."""
        client, pinner = self.client(), self.pinner()
        value, view = self.view(client, "early", 100_000)
        address, memory = self.device(len(value))
        pinned = pinner.pin(view)
        pinned.copy_to(address, stream=5)
        view.release()
        client.close()
        pinned.release()
        self.assertEqual(memory, value)
        pinned.release()
        pinner.close()
        self.assertRaises(tarn.Closed, pinner.trim)

    def test_closing_waits_for_the_device(self):
        client, pinner = self.client(), self.pinner()
        value, view = self.view(client, "closing", 100_000)
        address, memory = self.device(len(value))
        pinned = pinner.pin(view)
        pinned.copy_to(address, stream=5)
        pinner.close()
        self.assertEqual(memory, value)
        pinned.release()

    def mapped(self, client, key):
        """A host that has just come back may offer its memory a moment later."""
        try:
            client.view(key).release()
            return True
        except tarn.Stale:
            return False

    def test_a_node_that_was_restarted(self):
        """Its memory is another one: what was pinned of the old one goes in time."""
        node = Node(self.server, name="n1")
        self.addCleanup(node.stop)
        client, pinner = self.client(), self.pinner(idle_s=0.2)
        client.put("on it", bytes(100_000), prefer=["n1.0"])
        with client.view("on it") as view, pinner.pin(view) as pinned:
            self.assertTrue(pinned.pinned)
        self.assertEqual(self.get("ranges"), 1)
        node.kill()
        node.start()
        wait_until(lambda: not client.exists("on it"), 60)
        value = os.urandom(100_000)
        client.put("on it", value, prefer=["n1.0"])
        time.sleep(0.25)
        address, memory = self.device(len(value))
        wait_until(lambda: self.mapped(client, "on it"), 60)
        with client.view("on it") as view, pinner.pin(view) as pinned:
            self.assertTrue(pinned.pinned, pinned.why)
            pinned.copy_to(address)
            pinned.finish()
        self.assertEqual(memory, value)
        self.assertEqual((self.get("registers"), self.get("ranges")), (2, 1))

    def test_a_mapping_that_was_replaced(self):
        """The server is a new one with the old one's bytes: the same segment, mapped anew."""
        path = os.path.join(self.dir, "pool")
        with Server("16mb", "--pool-path", path) as server:
            client, pinner = tarn.Client(server.url, failover_ms=20_000), self.pinner()
            client.put("kept", bytes(range(250)) * 400)
            with client.view("kept") as view, pinner.pin(view) as pinned:
                self.assertTrue(pinned.pinned)
                server.process.terminate()
                server.process.wait()
                server.start()
                wait_until(lambda: client.exists("kept"), 60)
                address, memory = self.device(view.size)
                with client.view("kept") as second, pinner.pin(second) as other:
                    self.assertEqual(self.get("ranges"), 2)
                    self.assertTrue(other.pinned, other.why)
                    other.copy_to(address)
                    other.finish()
                    self.assertEqual(bytes(memory), bytes(range(250)) * 400)
                    self.assertRaises(tarn.Stale, pinned.finish)
            self.assertEqual(self.get("ranges"), 1)
            pinner.close()
            client.close()

    def test_buffers(self):
        pinner = self.pinner()
        buffer = mmap.mmap(-1, 4 * PAGE)
        pinner.register(buffer)
        self.assertRaises(tarn.InvalidArgument, pinner.register, buffer)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        with self.assertRaises(CudaError) as caught:
            pinner.register((address + PAGE, 10))
        self.assertEqual(caught.exception.cuda_name, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED")
        there, memory = self.device(100)
        memory[:] = os.urandom(100)
        pinner.from_device(memoryview(buffer)[50:150], there)
        pinner.synchronize()
        self.assertEqual(buffer[50:150], memory)
        pinner.unregister(buffer)
        self.assertRaises(tarn.InvalidArgument, pinner.unregister, buffer)
        self.assertEqual(self.get("ranges"), 0)
        pinner.register(bytearray(100))  # not at a page: the pages around it
        self.assertRaises(tarn.InvalidArgument, pinner.register, b"")

    def test_threads(self):
        """The device's context is each thread's own."""
        client, pinner = self.client(), self.pinner(window_bytes=MIB)
        wrong = []

        def work(name):
            for i in range(10):
                value = os.urandom(50_000)
                client.put(f"{name} {i}", value)
                memory = bytearray(len(value))
                address = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(memory))
                with client.view(f"{name} {i}") as view, pinner.pin(view) as pinned:
                    with lock:  # the driver that is none has no locks
                        pinned.copy_to(address, stream=i)
                        pinned.finish()
                if memory != value:
                    wrong.append(name)

        lock = threading.Lock()
        together(work, range(4))
        self.assertEqual(wrong, [])

    def test_no_device(self):
        with self.assertRaises(CudaMissing):
            self.pinner(device=1)
        self.assertEqual(why_not(self.path), "")
        self.set(devices=0)
        self.assertIn("no device", why_not(self.path))
        self.set(init_fails=1)
        self.assertIn("CUDA_ERROR_NO_DEVICE", why_not(self.path))
        self.assertRaises(CudaMissing, Driver, self.path)

    def test_arguments(self):
        self.assertRaises(
            tarn.InvalidArgument, Pinner, window_bytes=PAGE + 1, driver=Driver(self.path)
        )
