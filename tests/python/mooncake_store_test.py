"""The methods of mooncake.store on tarn: what goes in, what comes out, which codes."""

import asyncio
import ctypes
import os
import re
import tempfile
import unittest

from mooncake_helpers import INVALID, KIB, MIB, MISSING, Memory, NOT_SUPPORTED, StoreTest, block, of

import tarn
from mooncake import _common as common
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.store import (
    BufferHandle,
    MooncakeHostMemAllocator,
    ReplicateConfig,
    SoftPinAction,
    bind_to_numa_node,
)

try:
    import numpy
except ImportError:
    numpy = None


class MethodsTest(StoreTest):
    """Every method, and its codes."""

    def test_put_get(self):
        s = self.store
        self.assertEqual(s.put("k", b"one"), 0)
        self.assertEqual(s.put("k", b"two"), 0, "a key that is there is no failure")
        self.assertEqual(s.get("k"), b"one")
        self.assertEqual(s.upsert("k", bytearray(b"two")), 0)
        self.assertEqual(s.get("k"), b"two")
        self.assertEqual((s.get_size("k"), s.is_exist("k")), (3, 1))
        self.assertEqual((s.get_size("no"), s.is_exist("no"), s.get("no")), (MISSING, 0, b""))
        self.assertEqual(
            (s.remove("k"), s.remove("k"), s.remove("k", force=True)), (0, MISSING, MISSING)
        )
        self.assertEqual(s.put_parts("parts", b"a", memoryview(b"bc"), bytearray(b"d" * 100)), 0)
        self.assertEqual(s.get("parts"), b"abc" + b"d" * 100)
        self.assertEqual(s.upsert_parts("parts", b"x", b"y"), 0)
        self.assertEqual(s.get("parts"), b"xy")
        self.assertEqual(s.put_batch(["a", "b"], [b"1", b"2" * 100]), 0)
        self.assertEqual(s.upsert_batch(["a", "b"], [b"3", b"4" * 100]), 0)
        self.assertEqual(s.get_batch(["a", "no", "b"]), [b"3", b"", b"4" * 100])
        self.assertEqual(s.batch_is_exist(["a", "no", "b"]), [1, 0, 1])
        self.assertEqual(s.batch_remove(["a", "no"]), [0, MISSING])
        self.assertEqual(s.batch_remove([]), [])
        with self.assertRaises(TypeError):
            s.put("k", "text is not bytes")
        with self.assertRaises(TypeError):
            s.put(7, b"v")
        with self.assertRaises(TypeError):
            s.put("k", b"v", 3)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.put("", b"v"), INVALID)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.put_batch(["a"], []), INVALID)

    def test_buffers(self):
        s = self.store
        s.put_batch(["a", "b"], [block(1, 5000), block(2, 70000)])
        handle = s.get_buffer("b")
        self.assertIsInstance(handle, BufferHandle)
        self.assertEqual((handle.size(), len(handle)), (70000, 70000))
        self.assertEqual(bytes(memoryview(handle)), block(2, 70000))
        self.assertEqual(ctypes.string_at(handle.ptr(), 256), block(2, 256))
        found = s.batch_get_buffer(["a", "no", "b"])
        self.assertEqual(
            [None if f is None else bytes(f) for f in found],
            [block(1, 5000), None, block(2, 70000)],
        )
        self.assertEqual(s.batch_get_buffer([]), [])

    def test_memory(self):
        s, n = self.store, 8
        source, target = Memory(n * 4096, b"".join(block(i, 4096) for i in range(n))), Memory(
            n * 8192
        )
        keys = [f"m{i}" for i in range(n)]
        sources = [source.address + i * 4096 for i in range(n)]
        targets = [target.address + i * 8192 for i in range(n)]
        self.assertEqual(s.register_buffer(source.address, source.size), 0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertLess(s.register_buffer(source.address, source.size), 0)
        self.assertEqual(s.batch_put_from(keys, sources, [4096] * n), [0] * n)
        self.assertEqual(s.batch_put_from(keys, sources, [4096] * n), [0] * n)
        self.assertEqual(
            s.batch_get_into(keys + ["no"], targets + targets[:1], [8192] * (n + 1)),
            [4096] * n + [MISSING],
        )
        for i in range(n):
            self.assertEqual(target[i * 8192 : i * 8192 + 4096], block(i, 4096))
        self.assertEqual(s.put_from("one", source.address, 5000), 0)
        self.assertEqual(s.get_into("one", target.address, 8192), 5000)
        self.assertEqual(s.get_into("one", target.address, 4999), INVALID)
        self.assertEqual(s.get_into("no", target.address, 4999), MISSING)
        self.assertEqual(s.upsert_from("one", source.address, 100), 0)
        self.assertEqual(s.batch_upsert_from(["one", "two"], sources[:2], [4096, 10]), [0, 0])
        self.assertEqual((s.get_size("one"), s.get_size("two")), (4096, 10))
        self.assertEqual(
            s.put_from_with_metadata("meta", source.address, source.address + 4096, 100, 7), 0
        )
        self.assertEqual(s.get("meta"), block(1, 4096)[:7] + block(0, 4096)[:100])
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.batch_put_from(keys[:2], sources[:3], [1, 2, 3]), [INVALID] * 2)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.batch_get_into(keys[:2], targets[:3], [1, 2, 3]), [INVALID] * 2)
        self.assertEqual(s.batch_put_from([], [], []), [])
        self.assertEqual(s.batch_get_into([], [], []), [])
        self.assertEqual(s.unregister_buffer(source.address), 0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.unregister_buffer(source.address), INVALID)

    def test_ranges(self):
        s, target = self.store, Memory(32, b"_" * 32)
        first, second = bytes(range(65, 101)), bytes(range(130, 166))
        s.put_batch(["1", "2"], [first, second])
        a = target.address
        with self.subTest("not registered"):
            self.assertEqual(
                s.get_into_ranges([a], [["1"]], [[[0]]], [[[0]]], [[[4]]]), [[[INVALID]]]
            )
        s.register_buffer(a, 32)
        got = s.get_into_ranges(
            [a], [["1", "2"]], [[[0, 20], [8]]], [[[1, 30], [2]]], [[[4, 3], [5]]]
        )
        self.assertEqual(got, [[[4, 3], [5]]])
        self.assertEqual(
            target[0:32], first[1:5] + b"____" + second[2:7] + b"_" * 7 + first[30:33] + b"_" * 9
        )
        self.assertEqual(
            s.get_into_ranges([a], [["1"]], [[[31]]], [[[0]]], [[[2]]]),
            [[[INVALID]]],
            "behind the buffer",
        )
        self.assertEqual(
            s.get_into_ranges([a], [["1"]], [[[0]]], [[[35]]], [[[2]]]),
            [[[INVALID]]],
            "behind the value",
        )
        got = s.get_into_ranges([a], [["no", "1"]], [[[0], [8]]], [[[0], [0]]], [[[4], [4]]])
        self.assertEqual(got, [[[MISSING], [4]]])
        self.assertEqual(
            s.get_into_ranges([a], [["1"]], [[[0]]], [[[0, 1]]], [[[]]]), [[[INVALID]]]
        )
        self.assertEqual(s.get_into_ranges([a], [], [[[0]]], [], []), [[[INVALID]]])

    def test_removals(self):
        s = self.store
        s.put_batch([f"model/{i}" for i in range(5)] + ["other"], [b"v" * 100] * 6)
        self.assertEqual(s.remove_by_regex("^model/[0-2]$"), 3)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.remove_by_regex("("), -1)
        self.assertEqual(s.remove_by_regex("no such"), 0)
        with tarn.Client(self.server.url) as client:
            client.put("tarn:transfer:somebody", b"where it is")
            self.assertEqual(s.remove_all(force=True), 3)
            self.assertTrue(client.remove("tarn:transfer:somebody"), "names of ends stay")
        self.assertEqual(s.remove_all(), 0)

    def test_placement(self):
        config = ReplicateConfig()
        self.assertEqual(
            (config.replica_num, config.preferred_segment, config.group_ids), (1, "", None)
        )
        for name, value in (
            ("soft_pin_ttl_ms", -1),
            ("soft_pin_ttl_ms", 1 << 64),
            ("replica_num", "2"),
            ("with_hard_pin", 1),
            ("preferred_segments", "one"),
            ("group_ids", [1]),
            ("soft_pin_action", 1),
        ):
            with self.assertRaises(TypeError, msg=name):
                setattr(config, name, value)
        with self.assertRaises(AttributeError):
            config.replica_nums = 3
        config.replica_num = 3
        self.assertIn("replica_num: 3", str(config))
        config.preferred_segment = "nobody:1"
        config.with_soft_pin = True
        self.assertEqual(config.soft_pin_action, SoftPinAction.ENABLE)
        config.soft_pin_ttl_ms = 60000
        self.assertEqual(self.store.put("placed", b"v" * 1000, config), 0)
        config.soft_pin_action = SoftPinAction.PRESERVE
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(self.store.upsert("placed", b"v" * 1000, config=config), INVALID)
        groups = ReplicateConfig()
        groups.group_ids = ["g", "", "g"]
        memory = Memory(300)
        at = [memory.address, memory.address + 100, memory.address + 200]
        self.assertEqual(
            self.store.batch_put_from(["g0", "g1", "g2"], at, [100] * 3, groups), [0] * 3
        )
        with tarn.Client(self.server.url) as client:

            def requests():
                said = client.command("INFO", "commandstats")
                return int(re.search(r"cmdstat_mputstart:calls=(\d+)", said)[1])

            before = requests()
            groups.group_ids = ["h", "", "i"]
            self.store.batch_put_from(["h0", "h1", "h2"], at, [100] * 3, groups)
            self.assertEqual(requests() - before, 1)  # and not one for each group
            self.assertIn("\ngroups:3\r", client.command("INFO"))
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(self.store.batch_put_from(["g0"], at[:1], [100], groups), [INVALID])
        disks = ReplicateConfig()
        disks.nof_replica_num = 1
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(self.store.put("d", b"v", disks), NOT_SUPPORTED)

    def test_codes(self):
        expected = {
            "ENOSPACE": -200,
            "EOOM": -200,
            "ENOTFOUND": -704,
            "EEXISTS": -705,
            "EBUSY": -705,
            "ELEASE": -707,
            "ECORRUPT": -801,
            "EINVAL": -600,
            "ELIMIT": -600,
            "ETIMEOUT": -901,
            "ECLOSED": -900,
            "EIO": -900,
            "EQUOTA": -1700,
            "ENOSEGMENT": -101,
            "ENOTSUP": -1012,
        }
        for name, code in expected.items():
            self.assertEqual(common.code_of(tarn.Status[name]), code, name)
        for status in tarn.Status:
            self.assertIn(status, common._CODES, "every status has a code")
            self.assertEqual(common.code_of(status) == 0, status == 0)

    def test_sizes_and_names(self):
        for text, size in (
            ("1GB", 1 << 30),
            ("16 MB", 16 * MIB),
            ("3k", 3072),
            ("2TiB", 2 << 40),
            ("7", 7),
            ("1.5kb", 1536),
        ):
            self.assertEqual(common.size_of(text, "size"), size)
        for bad in ("", "GB", "50%", "-1", "1 GB 2", None, True, 1.5):
            with self.assertRaises(ValueError):
                common.size_of(bad, "size")
        self.assertEqual(common.split_host("10.0.0.1:12345"), ("10.0.0.1", 12345))
        self.assertEqual(common.split_host("[::1]:80"), ("::1", 80))
        self.assertEqual(common.split_host("fe80::1"), ("fe80::1", 0))
        self.assertNotEqual(common.plain_name("a_1", 40), common.plain_name("a:1", 40))
        self.assertLessEqual(len(common.plain_name("x" * 99, 40)), 40)

    def test_memory_of_a_gpu(self):
        """A driver that says everything is a GPU's, and makes dma-bufs of memory files."""
        asked = []

        class Cuda:
            @staticmethod
            def cuPointerGetAttribute(kind, attribute, address):
                kind._obj.value = 2
                return 0

            @staticmethod
            def cuMemGetHandleForAddressRange(fd, start, length, kind, flags):
                asked.append((start.value, length.value, kind, flags.value))
                if start.value % MIB:
                    return 801
                fd._obj.value = os.memfd_create("dma-buf")
                os.ftruncate(fd._obj.value, length.value)
                return 0

        auto = self.open(protocol="auto")
        real, ctypes.CDLL = ctypes.CDLL, lambda *_, **__: Cuda
        try:
            with self.assertLogs("mooncake", "ERROR") as log:
                self.assertEqual(self.store.register_buffer(0x7F0000000000, MIB), NOT_SUPPORTED)
            self.assertIn("by RDMA only", log.output[0])
            with self.assertLogs("mooncake", "ERROR") as log:
                self.assertEqual(auto.register_buffer(0x7F0000001000, MIB), NOT_SUPPORTED)
            self.assertIn("CUDA error 801", log.output[0])
            self.assertEqual(auto.register_buffer(0x7F0000000100, MIB), 0)
        finally:
            ctypes.CDLL = real
        self.assertEqual(asked[-1], (0x7F0000000000, MIB + 4096, 1, 0))
        with self.assertLogs("mooncake", "WARNING"):
            self.assertEqual(
                auto.batch_put_from(["gpu"], [0x7F0000000100], [KIB]),
                [NOT_SUPPORTED],
                "nothing can move it here",
            )
        self.assertEqual(auto.unregister_buffer(0x7F0000000100), 0)
        links = [os.path.join("/proc/self/fd", f) for f in os.listdir("/proc/self/fd")]
        self.assertEqual(
            [k for k in links if os.path.lexists(k) and "dma-buf" in os.readlink(k)],
            [],
            "it is closed",
        )

    def test_host_memory_allocator(self):
        allocator = MooncakeHostMemAllocator()
        address = allocator.alloc(MIB)
        ctypes.memset(address, 7, MIB)
        self.assertEqual((allocator.free(address), allocator.free(address)), (0, -1))
        address = self.store.alloc_from_mem_pool(4096)
        ctypes.memset(address, 7, 4096)
        self.assertEqual(self.store.put_from("pool", address, 4096), 0)

    def test_numa(self):
        before = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, before)
        bind_to_numa_node(0)
        with self.assertLogs("mooncake", "WARNING"):
            bind_to_numa_node(999)

    def test_asyncio(self):
        store = MooncakeDistributedStoreAsync()
        self.addCleanup(store.close)

        async def run():
            code = await store.async_setup("localhost", "m", 0, MIB, "tcp", "", of(self.server))
            puts = await asyncio.gather(*(store.async_put(f"a{i}", b"v" * 100) for i in range(8)))
            return code, puts, await store.async_get("a3")

        self.assertEqual(asyncio.run(run()), (0, [0] * 8, b"v" * 100))
        with self.assertRaises(AttributeError):
            store.async_nothing

    def test_sessions(self):
        s, layers, page, keys = self.store, 4, 4096, ["s0", "s1"]
        size = layers * page
        source, target = Memory(2 * size, block(1, size) + block(2, size)), Memory(2 * size)
        self.assertEqual(s.batch_put_session_start(keys, [size] * 2), [0, 0])
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.batch_put_session_start(keys[:1], [size]), [INVALID])
        other = self.open()
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(other.batch_put_session_start(keys[:1], [size]), [-705])
        self.assertEqual(other.put("s0", b"v" * 100), 0, "who comes second need not put")
        for layer in reversed(range(layers)):
            at = [[source.address + i * size + layer * page] for i in range(2)]
            got = s.batch_put_from_multi_buffer_ranges(keys, at, [[page]] * 2, [[layer * page]] * 2)
            self.assertEqual(got, [page] * 2)
        self.assertEqual(s.batch_is_exist(keys), [0, 0], "nobody sees them before the end")
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(
                s.batch_put_from_multi_buffer_ranges(
                    keys[:1], [[source.address]], [[2]], [[size - 1]]
                ),
                [INVALID],
            )
        self.assertEqual(s.batch_put_session_end(keys + ["no"]), [0, 0, INVALID])
        self.assertEqual(s.get("s1"), block(2, size))
        self.assertEqual(s.batch_get_session_start(keys + ["no"]), [0, 0, MISSING])
        for layer in range(layers):
            at = [[target.address + i * size + layer * page] for i in range(2)]
            got = s.batch_get_into_multi_buffer_ranges(keys, at, [[page]] * 2, [[layer * page]] * 2)
            self.assertEqual(got, [page] * 2)
        self.assertEqual(target[:], block(1, size) + block(2, size))
        self.assertEqual(
            s.batch_get_into_multi_buffer_ranges(["s0"], [[target.address]], [[2]], [[size - 1]]),
            [INVALID],
        )
        self.assertEqual(s.batch_get_session_end(keys), 0)
        self.assertEqual(
            s.batch_get_into_multi_buffer_ranges(["s0"], [[target.address]], [[2]], [[0]]),
            [INVALID],
        )
        self.assertEqual(s.batch_put_session_start(["gone"], [page]), [0])
        self.assertEqual(s.batch_put_session_revoke(["gone"]), [0])
        self.assertEqual(s.put("gone", b"again" * 20), 0)
        self.assertEqual(s.get("gone"), b"again" * 20)


@unittest.skipIf(numpy is None, "numpy is not here")
class TensorTest(StoreTest):
    """Tensors as arrays of numpy (and of torch where it is there)."""

    def same(self, got, expected):
        self.assertIsNotNone(got)
        got = got.numpy() if hasattr(got, "numpy") else got
        self.assertEqual((got.dtype, got.shape), (expected.dtype, expected.shape))
        self.assertTrue(numpy.array_equal(got, expected))

    def test_arrays(self):
        s = self.store
        arrays = {
            "f": numpy.arange(24, dtype="float32").reshape(2, 3, 4),
            "h": numpy.arange(6, dtype="float16"),
            "i": numpy.arange(6, dtype="int64").reshape(3, 2),
            "b": numpy.array([True, False]),
            "e": numpy.empty((2, 0, 3), dtype="float32"),
            "t": numpy.arange(6, dtype="int32").reshape(2, 3).T,
        }
        for key, a in arrays.items():
            self.assertEqual(s.put_tensor(key, a), 0)
            self.same(s.get_tensor(key), a)
        self.assertEqual(s.batch_put_tensor(["f", "new"], [arrays["f"], arrays["i"]]), [0, 0])
        for got, key in zip(s.batch_get_tensor(["f", "new"]), ("f", "i")):
            self.same(got, arrays[key])
        self.assertEqual(s.upsert_tensor("f", arrays["i"]), 0)
        self.same(s.get_tensor("f"), arrays["i"])
        self.assertIsNone(s.get_tensor("no"))
        s.put("bytes", b"no tensor at all" * 10)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertIsNone(s.get_tensor("bytes"))
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.batch_put_tensor(["x", "y"], ["text", arrays["i"]]), [INVALID, 0])
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.put_tensor("x", numpy.zeros((1,) * 9)), INVALID)

    def test_tensor_parallel(self):
        s, a = self.store, numpy.arange(48, dtype="float32").reshape(4, 12)
        for dim in (0, 1):
            self.assertEqual(s.put_tensor_with_tp(f"tp{dim}", a, tp_size=2, split_dim=dim), 0)
            for rank in range(2):
                self.same(
                    s.get_tensor_with_tp(f"tp{dim}", rank, 2, dim),
                    numpy.split(a, 2, axis=dim)[rank],
                )
            self.assertEqual(s.is_exist(f"tp{dim}_tp_1"), 1)
        self.assertEqual(s.batch_put_tensor_with_tp(["p", "q"], [a, a], tp_size=4), [0, 0])
        for got in s.batch_get_tensor_with_tp(["p", "q"], 3, 4):
            self.same(got, a[3:])
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.put_tensor_with_tp("many", a, tp_size=5), INVALID)

    def test_in_callers_memory(self):
        s, a, memory = self.store, numpy.arange(10, dtype="int32"), Memory(4096)
        s.put_tensor("a", a)
        n = s.get_size("a")
        self.same(s.get_tensor_into("a", memory.address, memory.size), a)
        self.assertEqual(s.put_tensor_from("b", memory.address, n), 0)
        self.same(s.get_tensor("b"), a)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.put_tensor_from("c", memory.address, n - 1), INVALID)
        self.assertIsNone(s.get_tensor_into("a", memory.address, 8))

    def test_safetensors(self):
        s, a = self.store, numpy.arange(12, dtype="float32").reshape(3, 4)
        s.put_tensor("a", a)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.safetensors")
            self.assertEqual(s.save_tensor_to_safetensor("a", path), 0)
            self.same(s.load_tensor_from_safetensor("b", path), a)
            self.same(s.get_tensor("b"), a)
            self.assertLess(s.save_tensor_to_safetensor("no", path), 0)
            with open(path, "r+b") as file:
                file.truncate(60)
            for broken in (path, os.path.join(folder, "none"), "/dev/null"):
                with self.assertLogs("mooncake", "ERROR"):
                    self.assertIsNone(s.load_tensor_from_safetensor("c", broken))


if __name__ == "__main__":
    unittest.main()
