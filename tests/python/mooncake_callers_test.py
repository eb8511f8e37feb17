"""mooncake.store on tarn: what the engines call, in their order, and what they must get; pools that
are full, servers that are gone."""

import ctypes
import os
import shutil
import tempfile
import threading
import unittest

from harness import Server, TarnTest, together, wait_until
from mooncake_helpers import INVALID, KIB, MIB, MISSING, Memory, NO_SPACE, StoreTest, block

import tarn
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

try:
    import numpy
except ImportError:
    numpy = None


class EnginesTest(StoreTest):
    """What each engine does, call by call."""

    def test_lmcache(self):
        s = self.store
        config = ReplicateConfig()
        config.replica_num = 1
        config.preferred_segment = s.get_hostname()
        pool = Memory(4 * 64 * KIB)
        self.assertEqual(s.register_buffer(pool.address, pool.size), 0)
        keys = [f"meta/Llama 3@8@{i}@{i:x}@bfloat16" for i in range(4)]
        header = b"h" * 28
        for i, key in enumerate(keys):
            self.assertFalse(s.is_exist(key))
            self.assertEqual(s.put_parts(key, header, memoryview(block(i, 64 * KIB))), 0)
        for i, handle in enumerate(s.batch_get_buffer(keys)):
            view = memoryview(handle)
            self.assertEqual(view[:28], header)
            target = bytearray(64 * KIB)
            target[:] = view[28:]
            self.assertEqual(target, block(i, 64 * KIB))
        at = [pool.address + i * 64 * KIB for i in range(4)]
        for i in range(4):
            ctypes.memmove(at[i], block(i + 9, 64 * KIB), 64 * KIB)
        plain = [k + "#" for k in keys]
        self.assertEqual(s.batch_put_from(plain, at, [64 * KIB] * 4, config), [0] * 4)
        ctypes.memset(pool.address, 0, pool.size)
        self.assertEqual(s.batch_get_into(plain, at, [64 * KIB] * 4), [64 * KIB] * 4)
        self.assertEqual(pool[0 : 64 * KIB], block(9, 64 * KIB))
        self.assertEqual(s.unregister_buffer(pool.address), 0)

    def test_sglang(self):
        s = self.store
        self.assertEqual(s.put("sglang_warmup", bytes(4 * KIB)), 0)
        self.assertEqual(s.is_exist("sglang_warmup"), 1)
        self.assertEqual(s.get("sglang_warmup"), bytes(4 * KIB))
        pages, page = 16, 8 * KIB
        pool = Memory(2 * pages * page, b"".join(block(i, page) for i in range(2 * pages)))
        self.assertEqual(s.register_buffer(pool.address, pool.size), 0)
        keys = [f"{i:064x}_0_{part}" for i in range(pages) for part in "kv"]
        at = [pool.address + i * page for i in range(len(keys))]
        self.assertEqual(s.batch_is_exist(keys), [0] * len(keys))
        groups = ReplicateConfig()
        groups.group_ids = [k[:64] for k in keys]
        self.assertEqual(s.batch_put_from(keys, at, [page] * len(keys), groups), [0] * len(keys))
        self.assertEqual(s.batch_is_exist(keys + ["x"]), [1] * len(keys) + [0])
        ctypes.memset(pool.address, 0, pool.size)
        self.assertEqual(s.batch_get_into(keys, at, [page] * len(keys)), [page] * len(keys))
        self.assertEqual(pool[:], b"".join(block(i, page) for i in range(2 * pages)))
        self.assertEqual(s.remove_all(), len(keys) + 1)

    def layers(self, put, get):
        """vLLM's and vllm-ascend's: a block of every layer, anywhere in memory, is one object."""
        n, layers, piece = 6, 5, 4 * KIB
        source = Memory(n * layers * piece, b"".join(block(i, piece) for i in range(n * layers)))
        target = Memory(n * layers * piece)
        keys = [f"m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@{i:x}" for i in range(n)]
        where = [
            [source.address + (layer * n + i) * piece for layer in range(layers)] for i in range(n)
        ]
        back = [
            [target.address + (layer * n + i) * piece for layer in range(layers)] for i in range(n)
        ]
        sizes = [[piece] * layers] * n
        self.assertEqual(list(put(keys, where, sizes)), [0] * n)
        self.assertEqual(list(get(keys, back, sizes)), [layers * piece] * n)
        self.assertEqual(target[:], source[:])
        self.assertEqual(
            list(get(["no"] + keys[1:2], back[:2], sizes[:2])), [MISSING, layers * piece]
        )
        self.assertEqual(list(get(keys[:1], [back[0][:2]], [sizes[0][:2]])), [INVALID])
        return keys

    def test_vllm(self):
        s = self.store
        config = ReplicateConfig()
        keys = self.layers(
            lambda k, a, n: s.batch_put_from_multi_buffers(k, a, n, config),
            lambda k, a, n: s.batch_get_into_multi_buffers(k, a, n),
        )
        self.assertEqual(s.batch_is_exist(keys), [1] * len(keys))
        replicas = s.batch_get_replica_desc(keys + ["no"])
        self.assertEqual(sorted(replicas), sorted(keys))
        for found in replicas.values():
            self.assertEqual(len(found), 1)
            self.assertTrue(found[0].is_memory_replica())
            self.assertFalse(found[0].is_disk_replica() or found[0].is_local_disk_replica())
            self.assertEqual(found[0].get_memory_descriptor().buffer_descriptor.size, 5 * 4 * KIB)
        self.assertEqual(s.get_replica_desc("no"), [])
        s.put("small", b"v")
        self.assertTrue(s.get_replica_desc("small")[0].is_memory_replica())
        self.assertEqual(s.remove_all(force=True), len(keys) + 1)

    def test_vllm_ascend(self):
        s = self.store
        self.layers(s.batch_put_from_multi_buffers, s.batch_get_into_multi_buffers)

    def test_ranks_race_for_one_key(self):
        keys = [f"mla@{i}" for i in range(64)]
        source = Memory(64 * KIB, block(3, 64 * KIB))
        start, codes = threading.Barrier(4), []

        def rank(store):
            start.wait()
            codes.append(store.batch_put_from(keys, [source.address] * 64, [64 * KIB] * 64))

        together(rank, [self.open() for _ in range(4)])
        self.assertEqual(codes, [[0] * 64] * 4)
        wait_until(lambda: self.store.batch_is_exist(keys) == [1] * 64, what="all keys")
        self.assertEqual(self.store.get_batch(keys), [block(3, 64 * KIB)] * 64)


class PoolTest(TarnTest):
    """Memory that is lent, pools that are full, servers that are gone."""

    open = StoreTest.open

    def serve(self, pool):
        """A server that ends after the stores."""
        server = Server(pool, "--hard-pin-ratio", "1", "--hard-pin-user-ratio", "1")
        self.addCleanup(server.stop)
        return server

    def test_lent_memory(self):
        server = self.serve("0")
        one = self.open(32 * MIB, server)
        two = self.open(32 * MIB, server)
        self.assertNotEqual(one.get_hostname(), two.get_hostname())
        config = ReplicateConfig()
        config.preferred_segment = two.get_hostname()
        for i in range(4):
            self.assertEqual(one.put(f"k{i}", block(i, MIB), config), 0)
        for store in (one, two):
            found = store.get_replica_desc("k0")[0].get_memory_descriptor().buffer_descriptor
            self.assertEqual(found.transport_endpoint, two.get_hostname())
        self.assertEqual(one.get("k3"), block(3, MIB))
        twice = ReplicateConfig()
        twice.preferred_segments = [one.get_hostname()]
        self.assertEqual(one.put("own", block(7, MIB), twice), 0)
        self.assertEqual(one.batch_replica_clear(["k0", "no"]), ["k0"])
        self.assertEqual(one.batch_replica_clear(["own", "k1"], one.get_hostname()), ["own"])
        self.assertEqual(two.close(), 0)
        self.assertEqual(
            [one.get(f"k{i}") for i in range(4)], [b""] * 4, "what was only there went with it"
        )
        self.assertEqual(one.put("k1", block(1, MIB)), 0)
        self.assertEqual(one.get("k1"), block(1, MIB))

    def test_same_name_twice(self):
        server = self.serve("0")
        stores = [self.open(4 * MIB, server, local_hostname="localhost:17002") for _ in range(2)]
        self.assertEqual([s.get_hostname() for s in stores], ["localhost:17002"] * 2)
        self.assertEqual(stores[1].put("k", block(1, 3 * MIB)), 0)
        self.assertEqual(stores[0].get("k"), block(1, 3 * MIB))

    def test_nothing_to_put_it_into(self):
        server = self.serve("0")
        store = self.open(0, server)
        with self.assertLogs("mooncake", "WARNING"):
            self.assertEqual(store.put("k", block(1, KIB)), NO_SPACE)

    def test_full_pool_evicts(self):
        server = self.serve("16mb")
        store, memory = self.open(0, server), Memory(MIB, block(1, MIB))
        keys = [f"k{i}" for i in range(64)]
        for key in keys:
            self.assertEqual(store.put_from(key, memory.address, MIB), 0)
        there = sum(store.batch_is_exist(keys))
        self.assertTrue(4 <= there <= 16, there)
        self.assertEqual(store.is_exist(keys[-1]), 1)
        with self.assertLogs("mooncake", "WARNING"):
            self.assertEqual(store.put("large", bytes(17 * MIB)), NO_SPACE)
        pinned = ReplicateConfig()
        pinned.with_hard_pin = True
        store.remove_all()
        with self.assertLogs("mooncake", "WARNING"):
            codes = store.batch_put_from(keys[:20], [memory.address] * 20, [MIB] * 20, pinned)
        stored = codes.index(NO_SPACE)
        self.assertTrue(14 <= stored <= 16, codes)
        self.assertEqual(codes, [0] * stored + [NO_SPACE] * (20 - stored))
        self.assertEqual(store.batch_is_exist(keys[:20]), [1] * stored + [0] * (20 - stored))

    def test_server_goes_and_comes(self):
        server = self.serve("16mb")
        store = MooncakeDistributedStore()
        url = server.url + "?timeout_ms=20000&retries=1"
        self.assertEqual(store.setup("localhost", "m", 0, MIB, "tcp", "", url), 0)
        self.addCleanup(store.close)
        self.assertEqual(store.put("k", b"v" * 100), 0)
        server.kill()
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(store.health_check(), 2)
            self.assertIn(store.put("k2", b"v" * 100), (-900, -901))
            self.assertEqual(store.get("k"), b"")
            self.assertIn(store.is_exist("k"), (-900, -901))
            self.assertLess(store.batch_is_exist(["k", "l"])[1], 0)
            self.assertEqual(store.batch_get_buffer(["k"]), [None])
        server.start()
        wait_until(lambda: store.health_check() == 0, what="health")
        self.assertEqual(store.get("k"), b"", "it was in memory")
        self.assertEqual(store.put("k", b"w" * 100), 0)
        self.assertEqual(store.get("k"), b"w" * 100)

    def test_offload(self):
        server = self.serve("0")
        folder = tempfile.mkdtemp(prefix="tarn-py-offload.")
        self.addCleanup(shutil.rmtree, folder)
        os.environ["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"] = str(64 * MIB)
        self.addCleanup(os.environ.pop, "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES")
        store = self.open(8 * MIB, server, enable_ssd_offload=True, ssd_offload_path=folder)
        with tarn.Client(server.url) as client:
            lines = client.command("SEGMENT", "LIST").split("\n")
        tiers = [lines[i + 1] for i, line in enumerate(lines[:-1]) if line == "tier"]
        self.assertEqual(sorted(tiers), ["memory", "ssd"])
        self.assertEqual(store.put("k", block(1, MIB)), 0)
        self.assertEqual(store.get("k"), block(1, MIB))


if __name__ == "__main__":
    unittest.main()
