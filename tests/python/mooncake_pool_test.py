"""Memory of mooncake.store on tarn: lent in pieces, copied and moved between stores, and buffers
that are used again."""

import gc
import os
import sys
import tempfile
import threading
import unittest
from unittest import mock

from harness import Node, TarnTest, wait_until
from mooncake_helpers import INVALID, KIB, MIB, MISSING, NOT_SUPPORTED, Memory, StoreTest, block

import mooncake
import tarn
from mooncake import _common as common
from mooncake.buffer_pool import BufferPool, RegisteredBufferPool
from mooncake.store import (
    MooncakeDistributedStore,
    QueryTaskResponse,
    ReplicateConfig,
    TaskStatus,
    TaskType,
)

PAGE, UNKNOWN_TASK, UNAVAILABLE = 4096, -1400, -1010


class SegmentsTest(TarnTest):
    """Pieces that come and go. The server has no memory of its own."""

    pool = "0"
    open = StoreTest.open

    def segments(self):
        with tarn.Client(self.server.url) as client:
            lines = client.command("SEGMENT", "LIST").split("\n")
        return {lines[i + 1] for i, line in enumerate(lines[:-1]) if line == "name"}

    def test_allocated(self):
        store = self.open()
        size = 8 * MIB + 1
        got = store.allocate_and_mount_segment(size)
        self.assertEqual((got["ret"], len(got["segment_ids"])), (0, 1))
        self.assertEqual(got["allocated_size"], 8 * MIB + PAGE)
        ids = got["segment_ids"]
        self.assertEqual(self.segments(), set(ids))
        self.assertEqual(store.put("k", block(1, MIB)), 0)
        found = store.get_replica_desc("k")[0].get_memory_descriptor().buffer_descriptor
        self.assertEqual(found.transport_endpoint, store.get_hostname())
        more = store.allocate_and_mount_segment(MIB)["segment_ids"]
        self.assertEqual(self.segments(), set(ids + more))
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(store.unmount_segment(ids), -1, "a file it is not")
        self.assertEqual(store.get("k"), block(1, MIB))
        self.assertEqual(store.unmount_and_free_segment(ids), 0)
        self.assertEqual((store.get("k"), self.segments()), (b"", set(more)))
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(store.unmount_and_free_segment(ids + more), -1)
        self.assertEqual(self.segments(), set(), "the ones that are known go all the same")
        store.allocate_and_mount_segment(MIB)
        self.assertEqual(store.close(), 0)
        self.assertEqual(self.segments(), set())

    def test_preferred(self):
        """A store finds at once what it has just lent or taken back."""
        other, store, config = self.open(4 * MIB), self.open(), ReplicateConfig()
        config.preferred_segment = store.get_hostname()

        def lies(key):
            self.assertEqual(store.put(key, block(1, 64 * KIB), config), 0)
            found = store.get_replica_desc(key)[0].get_memory_descriptor().buffer_descriptor
            return found.transport_endpoint

        self.assertEqual(lies("before"), other.get_hostname())
        ids = store.allocate_and_mount_segment(4 * MIB)["segment_ids"]
        self.assertEqual(lies("lent"), store.get_hostname())
        self.assertEqual(store.unmount_and_free_segment(ids), 0)
        self.assertEqual(lies("after"), other.get_hostname())

    def test_refused(self):
        store, nothing = self.open(), {"ret": -1, "segment_ids": []}
        empty = dict(nothing, allocated_size=0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(store.allocate_and_mount_segment(0), empty)
            self.assertEqual(store.allocate_and_mount_segment(MIB, "ascend"), empty)
            self.assertEqual(store.mount_segment("/no/such/file", MIB), nothing)
            self.assertEqual(store.mount_segment("/dev/null", MIB), nothing)
            with tempfile.NamedTemporaryFile() as file:
                file.truncate(MIB)
                self.assertEqual(store.mount_segment(file.name, MIB + 1), nothing)
                self.assertEqual(store.mount_segment(file.name, MIB // 2, offset=PAGE), nothing)
            store.close()
            self.assertEqual(store.allocate_and_mount_segment(MIB), empty)
            self.assertEqual(store.unmount_segment(["x"]), -1)
        self.assertRaises(TypeError, store.unmount_segment, "x")

    def test_closed_meanwhile(self):
        store = self.open()
        with mock.patch.object(common, "transport_of", lambda _: store.close()):
            with self.assertLogs("mooncake", "ERROR"):
                self.assertEqual(store.allocate_and_mount_segment(MIB)["ret"], -1)
        self.assertEqual(self.segments(), set())

    def test_file(self):
        store = self.open()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "segment")
            with open(path, "wb") as file:
                file.truncate(4 * MIB)
            got = store.mount_segment(path, 4 * MIB)
            self.assertEqual((got["ret"], len(got["segment_ids"])), (0, 1))
            self.assertEqual(store.put("k", block(1, MIB)), 0)
            self.assertEqual(store.get("k"), block(1, MIB))
            with open(path, "rb") as file:
                self.assertIn(block(1, 64 * KIB), file.read())
            with self.assertLogs("mooncake", "ERROR"):
                self.assertEqual(store.unmount_and_free_segment(got["segment_ids"]), -1)
            self.assertEqual(store.unmount_segment(got["segment_ids"]), 0)
        self.assertEqual((store.get("k"), self.segments()), (b"", set()))

    def test_grace(self):
        """What is only there moves away, and then the piece goes before its time; else when that is
        over."""
        store = self.open()
        old = store.allocate_and_mount_segment(4 * MIB)["segment_ids"]
        self.assertEqual(store.put("k", block(1, MIB)), 0)
        new = store.allocate_and_mount_segment(4 * MIB)["segment_ids"]
        self.assertEqual(store.unmount_and_free_segment(old, 3600), 0)
        wait_until(lambda: self.segments() == set(new), what="the drain")
        self.assertEqual(store.get("k"), block(1, MIB))
        self.assertEqual(
            store.unmount_and_free_segment(new, 1), 0, "there is no place left to move to"
        )
        wait_until(lambda: self.segments() == set(), what="the end of the grace")
        self.assertEqual(store.get("k"), b"")
        self.assertEqual(store.unmount_and_free_segment(old), 0, "asked to go at once, it does")

    def test_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            with mock.patch.dict(os.environ, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(64 * MIB)):
                store = self.open(8 * MIB, enable_ssd_offload=True, ssd_offload_path=folder)
            self.assertEqual(len(self.segments()), 2)
            self.assertEqual(store.unmount_local_disk_segment(), 0)
            self.assertEqual(len(self.segments()), 1)
            with self.assertLogs("mooncake", "WARNING"):
                self.assertEqual(store.unmount_local_disk_segment(), 0)
            store.close()
            with mock.patch.dict(os.environ, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(64 * MIB)):
                store = self.open(8 * MIB, enable_ssd_offload=True, ssd_offload_path=folder)
            self.assertEqual(store.unmount_local_disk_segment(1), 0)
            wait_until(lambda: len(self.segments()) == 1, what="the end of the grace")

    def test_init_all(self):
        store = MooncakeDistributedStore()
        with mock.patch.object(
            common, "master_url", lambda address: {"127.0.0.1:50051": self.server.url}[address]
        ):
            self.assertEqual(store.init_all("tcp", "", 4 * MIB), 0)
            self.addCleanup(store.close)
            with self.assertLogs("mooncake", "ERROR"):
                self.assertEqual(store.init_all("tcp", ""), INVALID)
        self.assertEqual(store.get_hostname(), "localhost:12345")
        self.assertEqual(store.put("k", block(1, MIB)), 0)


class TasksTest(TarnTest):
    """Copies and moves. The stores' memory is played by nodes, as replicas never share a
    machine."""

    pool = "0"
    open = StoreTest.open

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.names = [f"m{i}:1000{i}" for i in range(3)]
        for i, name in enumerate(cls.names):
            node = Node(
                cls.server, "--host-name", f"m{i}", name=common.node_name(name), pool="16mb"
            )
            cls.addClassCleanup(node.stop)

    def setUp(self):
        self.store = self.open()
        self.store.remove_all()

    def put(self, key, where=0, size=256 * KIB):
        config = ReplicateConfig()
        config.preferred_segment = self.names[where]
        self.assertEqual(self.store.put(key, block(1, size), config), 0)
        self.assertEqual(self.where(key), [self.names[where]])

    def where(self, key):
        found = self.store.get_replica_desc(key)
        return sorted(d.get_memory_descriptor().buffer_descriptor.transport_endpoint for d in found)

    def ended(self, asked, store=None):
        task, code = asked
        self.assertEqual(code, 0)

        def over():
            response, code = (store or self.store).query_task(task)
            self.assertEqual((code, response.id), (0, task))
            return response if response.status in (TaskStatus.SUCCESS, TaskStatus.FAILED) else None

        return wait_until(over, what=f"task {task}")

    def test_copy(self):
        self.put("k")
        done = self.ended(self.store.create_copy_task("k", self.names[1:]))
        self.assertIsInstance(done, QueryTaskResponse)
        self.assertEqual(
            (done.type, done.status, done.message), (TaskType.REPLICA_COPY, TaskStatus.SUCCESS, "")
        )
        self.assertIn(done.assigned_client, [common.node_name(n) for n in self.names])
        self.assertGreaterEqual(done.last_updated_at_ms_epoch, done.created_at_ms_epoch)
        self.assertEqual(self.where("k"), self.names)
        again = self.ended(self.store.create_copy_task("k", self.names[1:]))
        self.assertEqual(again.status, TaskStatus.SUCCESS, "nothing was left to do")
        self.assertEqual(self.where("k"), self.names)

    def test_move(self):
        self.put(b"k")
        done = self.ended(self.store.create_move_task("k", self.names[0], self.names[1]))
        self.assertEqual((done.type, done.status), (TaskType.REPLICA_MOVE, TaskStatus.SUCCESS))
        self.assertEqual(self.where("k"), [self.names[1]])
        self.ended(self.store.create_copy_task("k", [self.names[2]]))
        done = self.ended(self.store.create_move_task("k", self.names[1], self.names[2]))
        self.assertEqual(done.status, TaskStatus.SUCCESS, "it is there already")
        self.assertEqual(self.where("k"), [self.names[2]])
        self.assertEqual(self.store.get("k"), block(1, 256 * KIB))

    def test_another_store_asks(self):
        self.put("k\nid\n7\nkind")
        asked = self.store.create_move_task("k\nid\n7\nkind", self.names[0], self.names[2])
        done = self.ended(asked, self.open())
        self.assertEqual((done.type, done.status), (TaskType.REPLICA_MOVE, TaskStatus.SUCCESS))

    def test_codes(self):
        s = self.store
        self.put("k")
        s.put("small", b"v")
        nobody = (0, 0)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.create_copy_task("no", self.names[1:]), (nobody, MISSING))
            self.assertEqual(s.create_move_task("no", *self.names[:2]), (nobody, MISSING))
            self.assertEqual(s.create_copy_task("k", []), (nobody, INVALID))
            self.assertEqual(s.create_copy_task("k", ["m9:1"]), (nobody, INVALID))
            self.assertEqual(s.create_move_task("k", "m9:1", self.names[1]), (nobody, INVALID))
            self.assertEqual(s.create_move_task("k", self.names[0], "m9:1"), (nobody, INVALID))
            self.assertEqual(
                s.create_move_task("k", self.names[1], self.names[2]), (nobody, INVALID)
            )
            self.assertEqual(
                s.create_move_task("k", self.names[0], self.names[0]), (nobody, INVALID)
            )
            self.assertEqual(s.create_copy_task("small", self.names[1:]), (nobody, NOT_SUPPORTED))
            self.assertEqual(s.query_task((1, 1 << 60)), (None, UNKNOWN_TASK))
            self.assertEqual(s.query_task((2, 1 << 60)), (None, UNKNOWN_TASK))
            s.close()
            self.assertEqual(s.create_copy_task("k", self.names[1:]), (nobody, INVALID))
            self.assertEqual(s.query_task((1, 1)), (None, INVALID))

    def test_targets_that_cannot(self):
        self.put("k")
        name = common.node_name(self.names[1])
        with tarn.Client(self.server.url) as client, self.assertLogs("mooncake", "ERROR"):
            client.command("NODE", "MAINTENANCE", name, "ON")
            self.addCleanup(self.client().command, "NODE", "MAINTENANCE", name, "OFF")
            self.assertEqual(
                self.store.create_copy_task("k", [self.names[1]]), ((0, 0), UNAVAILABLE)
            )
        beside = Node(self.server, "--host-name", "m0", name=common.node_name("m0:7"), pool="8mb")
        self.addCleanup(beside.stop)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(self.store.create_copy_task("k", ["m0:7"]), ((0, 0), NOT_SUPPORTED))


class BufferPoolTest(StoreTest):
    """Buffers that are lent and used again."""

    def setUp(self):
        self.store = self.open(local_buffer_size=4 * MIB)

    def pool(self, *args, **options):
        options.setdefault("min_size_class", PAGE)
        options.setdefault("alignment", PAGE)
        return BufferPool(self.store, *args, **options)

    def refused(self, what, call, *args, **options):
        with self.assertRaisesRegex(RuntimeError, what):
            call(*args, **options)

    def test_used_for_gets(self):
        pool = self.pool()
        self.assertIs(mooncake.BufferPool, RegisteredBufferPool)
        self.store.upsert("k", block(1, MIB))
        with pool.buffer(MIB) as lease:
            self.assertEqual((lease.size, len(lease.buffer)), (MIB, MIB))
            self.assertEqual(self.store.get_into("k", lease.ptr, lease.size), MIB)
            self.assertEqual(bytes(lease.buffer), block(1, MIB))
            ranges = self.store.get_into_ranges([lease.ptr], [["k"]], [[[0]]], [[[5]]], [[[10]]])
            self.assertEqual(ranges, [[[10]]], "it is registered")
        self.refused("closed", lambda: lease.ptr)
        self.refused("closed", lambda: lease.buffer)
        lease.release()
        pool.close()
        self.assertEqual(self.store._buffers, {})
        self.refused("closed", pool.acquire, 1)

    def test_same_memory_again(self):
        pool = self.pool()
        first = pool.acquire(5000)
        address = first.ptr
        first.release()
        again = pool.acquire(6000)
        self.assertEqual(again.ptr, address, "both are of two pages")
        again.release()
        pool.close()
        pool = self.pool(max_size_class=PAGE)
        pool.acquire(PAGE + 1).release()
        self.assertEqual(self.store._buffers, {}, "too large to be kept")
        pool.acquire(PAGE).release()
        self.assertEqual(len(self.store._buffers), 1)

    def test_bounds(self):
        pool = self.pool()
        one, two = pool.acquire(4 * MIB), pool.acquire(4 * MIB)
        self.refused("exhausted", pool.acquire, 1, block=False)
        self.refused("timed out", pool.acquire, 1, timeout=0.01)
        self.refused("timeout", pool.acquire, 1, timeout=-1)
        self.refused("capacity", pool.acquire, 8 * MIB + 1)
        self.refused("capacity", pool.acquire, -1)
        self.refused("active", pool.close)
        one.release()
        two.release()
        pool.acquire(8 * MIB).release()
        few = self.pool(max_bytes=1, max_regions=1, block_on_exhaustion=False)
        with few.acquire(4 * MIB):
            self.refused("exhausted", few.acquire, 0)
        self.refused("capacity", few.acquire, 4 * MIB + 1)
        with few.acquire(0) as nothing:
            self.assertEqual(len(nothing.buffer), 0)

    def test_alignment(self):
        for alignment in (8, PAGE, MIB):
            with self.pool(alignment=alignment).acquire(1) as lease:
                self.assertEqual(lease.ptr % alignment, 0)
                lease.buffer[0] = 7
        for alignment in (0, 4, 12345):
            self.refused("alignment", self.pool, alignment=alignment)
        self.refused("min_size_class", self.pool, min_size_class=0)

    def test_prewarm(self):
        pool = self.pool(prewarm_size=PAGE, prewarm_count=3)
        self.assertEqual(len(self.store._buffers), 3)
        pool.prewarm(MIB, 100)
        total = sum(self.store._buffers.values())
        self.assertTrue(7 * MIB < total <= 8 * MIB, "as far as there is room")

    def test_views_hold_it(self):
        pool = self.pool()
        lease = pool.acquire(4)
        view = lease.buffer
        part = view[:2]
        view.release()
        self.refused("views", lease.release)
        part[:] = b"ab"
        part.release()
        lease.release()
        lease = pool.acquire(4)
        del lease
        gc.collect()
        pool.close()

    def test_views_outlive_names(self):
        """Memory that is looked at is nobody else's; that of a forgotten pool is not registered."""
        pool = self.pool()
        view = pool.acquire(4).buffer
        gc.collect()
        with pool.acquire(4) as other:
            other.buffer[:] = b"othr"
        self.assertEqual(bytes(view), bytes(4))
        self.refused("active", pool.close)
        view.release()
        pool.acquire(5000).release()
        self.assertEqual(len(self.store._buffers), 3)
        del pool, view, other
        gc.collect()
        self.assertEqual(self.store._buffers, {})

    def test_released_by_several_threads(self):
        pool, interval = self.pool(), sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        sys.setswitchinterval(1e-6)
        leases = [pool.acquire(1) for _ in range(300)]
        start = threading.Barrier(4)

        def release():
            start.wait()
            for lease in leases:
                lease.release()

        threads = [threading.Thread(target=release) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        leases = [pool.acquire(1) for _ in range(300)]
        self.assertEqual(len({lease.ptr for lease in leases}), 300)
        for lease in leases:
            lease.release()
        pool.close()

    def test_no_memory(self):
        pool = self.pool(max_bytes=1 << 70)
        for size in (1 << 62, 1 << 66):
            self.refused("no memory", pool.acquire, size)
        pool.acquire(1).release()

    def test_waits(self):
        pool = self.pool(max_regions=1)
        lease, got = pool.acquire(1), []
        thread = threading.Thread(target=lambda: got.append(pool.acquire(1, timeout=300)))
        thread.start()
        wait_until(lambda: pool._changed._waiters, what="the thread waits")
        lease.release()
        thread.join()
        got[0].release()

    def test_stores_that_have_none(self):
        self.refused("not initialized", BufferPool, None)
        self.refused("not initialized", BufferPool, MooncakeDistributedStore())
        self.refused("local buffer", BufferPool, self.open(local_buffer_size=0))
        pool = self.pool()
        pool.acquire(1).release()
        self.store.close()
        pool.close()


class KeysTest(StoreTest):
    """Bytes are keys, too."""

    def test_bytes(self):
        s = self.store
        raw = b"\xff\x00key"
        for key, same in ((b"k", "k"), ("\u00fc", "\u00fc".encode()), (raw, raw)):
            self.assertEqual(s.put(key, b"v" * 100), 0)
            self.assertEqual(
                (s.get(same), s.is_exist(same), s.get_size(same)), (b"v" * 100, 1, 100)
            )
            self.assertEqual(s.batch_is_exist([same, key, "no"]), [1, 1, 0])
            self.assertEqual(len(s.get_replica_desc(same)), 1)
        self.assertEqual(set(s.batch_get_replica_desc([b"k", raw])), {"k", raw})
        self.assertEqual(s.put_batch([b"a", "b"], [b"1", b"2"]), 0)
        self.assertEqual(s.get_batch(["a", b"b"]), [b"1", b"2"])
        memory = Memory(4)
        self.assertEqual(
            s.batch_get_into([b"a", "b"], [memory.address, memory.address + 1], [1, 1]), [1, 1]
        )
        self.assertEqual(memory[:2], b"12")
        self.assertEqual(s.batch_put_session_start([b"s"], [1]), [0])
        self.assertEqual(
            s.batch_put_from_multi_buffer_ranges(["s"], [[memory.address]], [[1]], [[0]]), [1]
        )
        self.assertEqual(s.batch_put_session_end(["s"]), [0])
        self.assertEqual(s.batch_get_session_start(["s"]), [0])
        self.assertEqual(s.batch_get_session_end([b"s"]), 0)
        self.assertEqual(s.batch_remove([raw, b"no"]), [0, MISSING])
        self.assertEqual(s.remove(b"k"), 0)
        for bad in (1, None, bytearray(b"k")):
            self.assertRaises(TypeError, s.put, bad, b"v")

    def test_one_is_not_many(self):
        """A text is no list of its letters."""
        s = self.store
        self.assertEqual(s.put_batch(["a", "b"], [b"1", b"2"]), 0)
        for one in ("ab", b"ab", bytearray(b"ab")):
            for method, *more in (
                (s.batch_remove,),
                (s.batch_replica_clear,),
                (s.batch_get_replica_desc,),
                (s.batch_is_exist,),
                (s.batch_get_buffer,),
                (s.batch_get_tensor,),
                (s.batch_get_session_start,),
                (s.batch_get_session_end,),
                (s.batch_put_session_start, [1, 1]),
                (s.batch_put_session_end,),
                (s.batch_put_session_revoke,),
                (s.batch_put_from_multi_buffer_ranges, [[], []], [[], []], [[], []]),
                (s.batch_get_into_multi_buffer_ranges, [[], []], [[], []], [[], []]),
            ):
                self.assertRaises(TypeError, method, one, *more)
        self.assertEqual(s.batch_is_exist(["a", "b"]), [1, 1])

    def test_tenant(self):
        s = self.open(tenant_id="t")
        self.assertEqual(s.put(b"\xffk", b"v"), 0)
        self.assertEqual((s.get(b"\xffk"), self.store.get(b"tenant:t:\xffk")), (b"v", b"v"))
        self.assertEqual(s.remove_all(), 1)


del StoreTest

if __name__ == "__main__":
    unittest.main()
