"""mooncake.store on tarn with memory of a GPU and no RDMA: it goes through pinned memory, against a
driver that is none (fake_cuda.c), whose memory no processor can touch."""

import ctypes
import os
import random
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

from cuda_test import CC, HERE
from gpu_test import Device
from harness import together
from mooncake_helpers import INVALID, KIB, MIB, MISSING, NOT_SUPPORTED, Memory, StoreTest

from mooncake import _staging
from tarn.cuda import Driver


@unittest.skipUnless(shutil.which(CC[0]), "no C compiler to make the driver with")
class Gpu(StoreTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.mkdtemp(prefix="tarn-fake-cuda.")
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.path = os.path.join(folder, "libcuda.so.1")
        source = os.path.join(HERE, "fake_cuda.c")
        made = [*CC, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", cls.path, source]
        subprocess.run(made, check=True)
        cls.fake = ctypes.CDLL(cls.path)  # as a program that uses a GPU has it
        cls.fake.fake_violations.restype = ctypes.c_char_p
        cls.fake.fake_get.restype = ctypes.c_long

    def setUp(self):
        patched = mock.patch.dict(os.environ, TARN_CUDA_LIB=self.path)
        patched.start()
        self.addCleanup(patched.stop)
        self.addCleanup(self.check_rules)
        self.gpu = Device(Driver())
        self.addCleanup(self.gpu.pinner.close)
        super().setUp()

    def check_rules(self):
        self.assertEqual(self.fake.fake_violations(), b"")
        for what in ("ranges", "retained", "pending", "allocated"):
            self.assertEqual(self.fake.fake_get(what.encode()), 0, what)

    def memory(self, size):
        """Of the device, with random bytes."""
        memory = self.gpu.memory(size)
        at = memory.__enter__()
        self.addCleanup(memory.__exit__, None, None, None)
        data = random.Random(size).randbytes(size)
        self.gpu.write(at, data)
        return at, data

    def test_round_trips(self):
        """As vLLM: it registers its cache, puts pieces of it, and gets them elsewhere."""
        s, n, piece = self.store, 12, 8 * KIB
        at, data = self.memory(n * 3 * piece)
        to, _ = self.memory(n * 3 * piece)
        for registered in (True, False):
            if registered:
                self.assertEqual(s.register_buffer(at, len(data)), 0)
                self.assertEqual(s.register_buffer(to, len(data)), 0)
            keys = [f"{registered}{i}" for i in range(n)]
            rows = [[at + (j * n + i) * piece for j in range(3)] for i in range(n)]
            back = [[to + (j * n + i) * piece for j in range(3)] for i in range(n)]
            sizes = [[piece] * 3] * n
            self.assertEqual(s.batch_put_from_multi_buffers(keys, rows, sizes), [0] * n)
            self.gpu.write(to, bytes(len(data)))
            got = s.batch_get_into_multi_buffers(keys + ["no"], back + back[:1], sizes + sizes[:1])
            self.assertEqual(got, [3 * piece] * n + [MISSING])
            self.assertEqual(self.gpu.read(to, len(data)), data)
            self.assertEqual(
                s.get(keys[5]),
                b"".join(data[(j * n + 5) * piece :][:piece] for j in range(3)),
            )
            if registered:
                self.assertEqual(s.unregister_buffer(at), 0)
                self.assertEqual(s.unregister_buffer(to), 0)
                self.assertEqual(s.unregister_buffer(to), INVALID)
        self.assertGreater(self.fake.fake_get(b"pinned_copies"), 0)

    def test_both_kinds_of_memory(self):
        """In one batch, and in one value."""
        s, (at, data), host = self.store, self.memory(4 * KIB), Memory(4 * KIB, b"h" * 4 * KIB)
        rows, sizes = [[at, host.address], [host.address], [at]], [[KIB, 2 * KIB], [KIB], [KIB]]
        self.assertEqual(s.batch_put_from_multi_buffers(list("abc"), rows, sizes), [0, 0, 0])
        values = [data[:KIB] + b"h" * 2 * KIB, b"h" * KIB, data[:KIB]]
        self.assertEqual(s.get_batch(list("abc")), values)
        into, (to, _) = Memory(4 * KIB), self.memory(8 * KIB)
        rows = [[into.address, to], [to + KIB], [to + 4 * KIB]]
        got = s.batch_get_into_multi_buffers(list("bac"), rows, [[100, 924], [4 * KIB], [KIB]])
        self.assertEqual(got, [KIB, 3 * KIB, KIB])
        self.assertEqual(into[:100] + self.gpu.read(to, 924), values[1])
        self.assertEqual(self.gpu.read(to + KIB, 3 * KIB), values[0])
        self.assertEqual(self.gpu.read(to + 4 * KIB, KIB), values[2])

    def test_a_value_that_is_shorter_or_longer(self):
        s, (at, data) = self.store, self.memory(4 * KIB)
        self.assertEqual(s.put_from("k", at, KIB), 0)
        self.assertEqual(s.upsert_from("k", at + KIB, 2 * KIB), 0)
        to, _ = self.memory(4 * KIB)
        self.gpu.write(to, b"z" * 4 * KIB)
        self.assertEqual(s.get_into("k", to, KIB), INVALID)
        self.assertEqual(self.gpu.read(to, 4 * KIB), b"z" * 4 * KIB)
        self.assertEqual(s.get_into("k", to, 4 * KIB), 2 * KIB)
        self.assertEqual(self.gpu.read(to, 4 * KIB), data[KIB : 3 * KIB] + b"z" * 2 * KIB)
        self.assertEqual(s.register_buffer(to, 4 * KIB), 0)
        ranges = [to], [["k"]], [[[100, 200]]], [[[5, 7]]], [[[10, 2 * KIB]]]
        self.assertEqual(s.get_into_ranges(*ranges), [[[10, INVALID]]])
        self.assertEqual(self.gpu.read(to + 100, 10), data[KIB + 5 : KIB + 15])

    def test_lots(self):
        """More than is staged at once, and one value that is more by itself."""
        with mock.patch.object(_staging, "LOT_BYTES", 64 * KIB):
            s, (at, data) = self.store, self.memory(MIB)
            sizes = [20 * KIB] * 20 + [200 * KIB]
            offsets = [sum(sizes[:i]) for i in range(len(sizes))]
            keys = [f"l{i}" for i in range(len(sizes))]
            self.assertEqual(s.batch_put_from(keys, [at + o for o in offsets], sizes), [0] * 21)
            to, _ = self.memory(MIB)
            got = s.batch_get_into(keys, [to + o for o in offsets], sizes)
            self.assertEqual(got, sizes)
            self.assertEqual(self.gpu.read(to, sum(sizes)), data[: sum(sizes)])

    def test_threads(self):
        s, (at, data) = self.store, self.memory(MIB)
        self.assertEqual(s.put_from("t", at, MIB), 0)

        def work(name):
            to = targets[name]
            for i in range(5):
                assert s.put_from(f"{name}{i}", at + name * KIB, 10 * KIB) == 0
                assert s.get_into(f"{name}{i}", to, 10 * KIB) == 10 * KIB

        targets = [self.memory(16 * KIB)[0] for _ in range(2)]
        for name in range(2):  # the driver that is none has no locks
            together(work, [name])
        for name, to in enumerate(targets):
            self.assertEqual(self.gpu.read(to, 10 * KIB), data[name * KIB :][: 10 * KIB])

    def test_a_driver_that_does_not_work(self):
        """No way to the memory: a code, and the caller goes on."""
        at, _ = self.memory(4 * KIB)
        host = Memory(KIB)
        with mock.patch.dict(os.environ, TARN_CUDA_LIB="/nonexistent/libcuda.so.1"):
            store = self.open()
            with self.assertLogs("mooncake", "WARNING"):
                self.assertEqual(store.register_buffer(at, 4 * KIB), NOT_SUPPORTED)
            with self.assertLogs("mooncake", "ERROR"):
                codes = store.batch_put_from(["a", "b"], [at, host.address], [KIB] * 2)
            self.assertEqual(codes, [INVALID, 0])

    def test_memory_that_cannot_be_pinned(self):
        self.fake.fake_set(b"register_fails", 1)
        self.addCleanup(self.fake.fake_set, b"register_fails", 0)
        at, data = self.memory(4 * KIB)
        store = self.open()
        with self.assertLogs("mooncake", "WARNING"):
            self.assertEqual(store.put_from("plain", at, 4 * KIB), 0)
        self.assertEqual(store.get("plain"), data)


if __name__ == "__main__":
    unittest.main()
