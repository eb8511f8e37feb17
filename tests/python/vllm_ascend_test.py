"""TarnBackend, called as vllm-ascend's AscendStoreConnector calls it: a sending and a receiving
thread per worker, and a scheduler."""

import ctypes
import os
import pickle
import sys
import threading
import time
import types
import unittest
from unittest import mock

from harness import SLOW, Monitor, Server, TarnTest, together, wait_until

import tarn
from tarn import vllm_ascend
from tarn.vllm_ascend import HostMap, Runtime, TarnBackend, facts, sessions

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PROT_NONE, PROT_READ, PROT_RW = 0, 1, 3
MAP_SHARED = 1


def mapping(fd, size, rights):
    address = libc.mmap(None, size, rights, MAP_SHARED, fd, 0)
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return address


class Device:
    """Memory that the CPU must not touch: whoever does, dies. Only aclrtMemcpy gets at its
    bytes."""

    def __init__(self, size):
        self.size = size
        self.fd = os.memfd_create("device")
        os.ftruncate(self.fd, size)
        self.address, self._inside = mapping(self.fd, size, PROT_NONE), mapping(
            self.fd, size, PROT_RW
        )
        self.bytes = memoryview((ctypes.c_char * size).from_address(self._inside)).cast("B")
        self.copies, self.fail = 0, False
        self.driver = types.SimpleNamespace(aclrtMemcpy=lambda *a: self.copy(*a))

    def copy(self, to, room, source, size, kind):
        assert size <= room and kind in (1, 2)
        inside = {1: to, 2: source}[kind]
        assert (
            self.address <= inside and inside + size <= self.address + self.size
        ), "no memory of the device"
        if self.fail:
            return 107002
        self.copies += 1
        if kind == 1:
            to += self._inside - self.address
        else:
            source += self._inside - self.address
        ctypes.memmove(to, source, size)
        return 0

    def close(self):
        self.bytes.release()
        libc.munmap(self.address, self.size)
        libc.munmap(self._inside, self.size)
        os.close(self.fd)


class Worker:
    """One rank with its KV caches, keys and values of each layer in memory of their own."""

    layers, blocks, block = 3, 64, 512

    def __init__(self, tp_rank=0, tp_size=1, shared=False, caches=None, options=None, backend=None):
        self.tp_rank, self.shared = tp_rank, shared
        config = types.SimpleNamespace(rank=tp_rank, tensor_parallel_size=tp_size)
        self.store = backend or TarnBackend(config, lazy_init=False, options=options)
        self.caches = caches or [
            (ctypes.c_char * (self.blocks * self.block))() for _ in range(2 * self.layers)
        ]
        self.addresses = [c if isinstance(c, int) else ctypes.addressof(c) for c in self.caches]
        self.store.register_buffer(self.addresses, [self.blocks * self.block] * len(self.addresses))
        self.invalid = set()

    def key(self, block_hash):
        head = 0 if self.shared else self.tp_rank
        return f"model@pcp0@dcp0@head_or_tp_rank:{head}@pp_rank:0@{block_hash}"

    def where(self, block):
        return [a + block * self.block for a in self.addresses], [self.block] * len(self.addresses)

    def value(self, name, part):
        return (f"<{name} {part}>".encode() * self.block)[: self.block]

    def fill(self, block, name):
        for part, cache in enumerate(self.caches):
            cache[block * self.block : (block + 1) * self.block] = self.value(name, part)

    def holds(self, block, name):
        return all(
            bytes(c[block * self.block : (block + 1) * self.block]) == self.value(name, part)
            for part, c in enumerate(self.caches)
        )

    def send(self, hashes, blocks):
        """What the sending thread does."""
        self.store.set_device()
        keys = [self.key(h) for h in hashes]
        missing = [i for i, there in enumerate(self.store.exists(keys)) if there != 1]
        if missing:
            where = [self.where(blocks[i]) for i in missing]
            self.store.put([keys[i] for i in missing], [w[0] for w in where], [w[1] for w in where])
        return len(missing)

    def receive(self, hashes, blocks):
        """What the receiving thread does: the blocks that failed."""
        self.store.set_device()
        turn = self.tp_rank % len(hashes)
        hashes, blocks = hashes[turn:] + hashes[:turn], blocks[turn:] + blocks[:turn]
        where = [self.where(b) for b in blocks]
        results = self.store.get(
            [self.key(h) for h in hashes], [w[0] for w in where], [w[1] for w in where]
        )
        if results is None:
            results = [1] * len(hashes)
        assert len(results) == len(hashes)
        return {b for b, r in zip(blocks, results) if r != 0}


class AscendTest(TarnTest):
    def setUp(self):
        self.engine_uses_server()

    def worker(self, *args, **named):
        made = Worker(*args, **named)
        self.addCleanup(made.store.close)
        return made

    def device(self, size):
        made = Device(size)
        self.addCleanup(made.close)
        return made

    def test_blocks_go_and_come_back(self):
        hashes = [f"{i:032x}" for i in range(64)]
        writers = [self.worker(r, 2) for r in range(2)]
        for w in writers:
            for i in range(64):
                w.fill(i, f"{w.tp_rank} {i}")
        together(lambda w: w.send(hashes, list(range(64))), writers)
        scheduler = TarnBackend.create_scheduler_client(types.SimpleNamespace(rank=0))
        self.addCleanup(scheduler.close)
        every = [w.key(h) for w in writers for h in hashes]
        self.assertEqual(scheduler.batch_is_exist(every + ["none"]), [1] * 128 + [0])
        self.assertEqual(scheduler.exists([]), [])
        self.assertEqual(
            [w.send(hashes, list(range(64))) for w in writers], [0, 0], "nothing is left to send"
        )
        for r in range(2):
            reader = self.worker(r, 2)
            self.assertEqual(reader.receive(hashes, list(range(63, -1, -1))), set())
            self.assertTrue(all(reader.holds(63 - i, f"{r} {i}") for i in range(64)))
            self.assertEqual(reader.store.troubles, {})

    def test_ranks_with_the_same_bytes_race(self):
        hashes = [f"{i:032x}" for i in range(64)]
        workers = [self.worker(r, 4, shared=True) for r in range(4)]
        for w in workers:
            for i in range(64):
                w.fill(i, f"same {i}")
        barrier = threading.Barrier(4)

        def race(w):
            where = [w.where(i) for i in range(64)]
            barrier.wait()
            w.store.put([w.key(h) for h in hashes], [x[0] for x in where], [x[1] for x in where])

        together(race, workers)
        self.assertEqual([w.store.troubles for w in workers], [{}] * 4)
        wait_until(lambda: workers[0].store.exists([workers[0].key(h) for h in hashes]) == [1] * 64)
        self.assertEqual(self.client().command("DBSIZE"), "64")
        for w in workers:
            for i in range(64):
                w.fill(i, "gone")
            self.assertEqual(w.receive(hashes, list(range(64))), set())
            self.assertTrue(all(w.holds(i, f"same {i}") for i in range(64)))

    def test_what_cannot_be_had_fails_alone(self):
        hashes = [f"{i:032x}" for i in range(8)]
        w = self.worker()
        for i in range(8):
            w.fill(i, f"block {i}")
        w.send(hashes, list(range(8)))
        client, whole = self.client(), 6 * w.block
        client.remove(w.key(hashes[2]))
        client.put(w.key(hashes[4]), b"s" * (whole - 1), replace=True)
        client.put(w.key(hashes[5]), b"l" * (whole + 1), replace=True)
        for i in range(20, 30):
            w.fill(i, "before")
        with self.assertLogs("tarn.vllm_ascend", "WARNING"):
            self.assertEqual(w.receive(hashes, list(range(20, 28))), {22, 24, 25})
        self.assertTrue(all(w.holds(20 + i, f"block {i}") for i in (0, 1, 3, 6, 7)))
        self.assertTrue(w.holds(28, "before") and w.holds(29, "before"))
        addrs, sizes = w.where(0)
        for wrong in (([], []), ([addrs], []), ([addrs[:-1]], [sizes])):
            self.assertEqual(w.store.get(["a"], *wrong), [tarn.Status.EINVAL])
            self.assertIsNone(w.store.put(["a"], *wrong))
        self.assertEqual(w.store.get([], [], []), [])
        self.assertEqual(w.store.exists(["k" * 2000]), [0])

    def test_memory_of_a_device_is_never_touched(self):
        device, w = self.device(1 << 20), self.worker()
        block = ([device.address], [4096])
        self.client().put("there", b"x" * 4096)
        with mock.patch.object(Runtime, "find", return_value=None):
            backend = TarnBackend(None)
            self.addCleanup(backend.close)
            with self.assertRaisesRegex(tarn.InvalidArgument, "libascendcl"):
                backend.register_buffer([device.address], [device.size])
            with self.assertRaises(tarn.InvalidArgument):
                backend.register_buffer([1, 2], [3])
            with self.assertLogs("tarn.vllm_ascend", "WARNING") as logs:
                for where in (block, ([0x12C0C0000000], [64])):
                    self.assertEqual(
                        backend.get(["there"], [where[0]], [where[1]]), [tarn.Status.EINVAL]
                    )
                    backend.put(["new"], [where[0]], [where[1]])
            self.assertEqual(len(logs.records), 2, "once for gets, once for puts")
            self.assertEqual(backend.exists(["new", "there"]), [0, 1])
            mixed = ([device.address, w.addresses[0]], [64, 64])
            self.assertEqual(backend.get(["there"], [mixed[0]], [mixed[1]]), [tarn.Status.EINVAL])

    def test_memory_that_is_only_readable_is_not_read_into(self):
        fd = os.memfd_create("read-only")
        self.addCleanup(os.close, fd)
        os.truncate(fd, 8192)
        os.pwrite(fd, b"r" * 8192, 0)
        address = mapping(fd, 8192, PROT_READ)
        self.addCleanup(libc.munmap, address, 8192)
        backend = self.worker().store
        backend.put(["read"], [[address, address + 4096]], [[4096, 1]])
        self.assertEqual(self.client().get("read"), b"r" * 4097)
        self.assertEqual(backend.get(["read"], [[address]], [[4097]]), [tarn.Status.EINVAL])

    def test_memory_of_a_device_goes_through_a_staging_buffer(self):
        part = Worker.blocks * Worker.block
        device = self.device(2 * Worker.layers * part)
        addresses = [device.address + i * part for i in range(2 * Worker.layers)]
        hashes = [f"{i:032x}" for i in range(64)]
        host = self.worker()
        for i in range(32):
            host.fill(i, f"block {i}")
        host.send(hashes[:32], list(range(32)))
        with mock.patch.object(
            Runtime, "find", return_value=Runtime(device.driver)
        ), mock.patch.object(vllm_ascend.memory, "STAGING_BYTES", 10 * 6 * Worker.block + 100):
            npu = self.worker(caches=addresses)
        self.assertEqual(npu.receive(hashes[:32], list(range(63, 31, -1))), set())
        views = [device.bytes[i * part : (i + 1) * part] for i in range(2 * Worker.layers)]
        inside = types.SimpleNamespace(caches=views, block=Worker.block, value=host.value)
        self.assertTrue(all(Worker.holds(inside, 63 - i, f"block {i}") for i in range(32)))
        for i in range(32):
            Worker.fill(inside, i, f"more {i}")
        npu.send(hashes[32:], list(range(32)))
        self.assertEqual(host.receive(hashes[32:], list(range(32))), set())
        self.assertTrue(all(host.holds(i, f"more {i}") for i in range(32)))
        self.assertEqual(device.copies, 64 * 6)
        self.assertEqual(
            npu.receive(hashes[:1] + ["f" * 32], [0, 1]), {1}, "a block that is not there"
        )
        self.assertEqual(device.copies, 65 * 6)
        large = ([device.address], [device.size])
        self.assertEqual(npu.store.get(["x"], [large[0]], [large[1]]), [tarn.Status.ELIMIT])
        device.fail = True
        self.assertEqual(npu.receive(hashes[:3], [0, 1, 2]), {0, 1, 2})
        device.fail = False
        self.assertEqual(npu.receive(hashes[:3], [0, 1, 2]), set())

    def test_a_dma_buf_without_rdma_is_refused(self):
        device, backend = self.device(1 << 20), self.worker().store
        backend.register_dmabuf(device.address, device.size, device.fd)
        self.client().put("there", b"x" * 4096)
        results = backend.get(["there"], [[device.address]], [[4096]])
        self.assertLess(results[0], 0)
        backend.put(["new"], [[device.address]], [[4096]])
        self.assertEqual(backend.exists(["new"]), [0])
        self.assertTrue(backend.troubles)

    def test_what_is_memory_of_the_host(self):
        table, memory = HostMap(), (ctypes.c_char * 100000)()
        at = ctypes.addressof(memory)
        table.refresh()
        self.assertTrue(table.has(at, 100000, True))
        self.assertTrue(table.has(at, 0, True))
        self.assertFalse(table.has(0, 1, False))
        self.assertFalse(table.has(1 << 63, 1, False))
        device = self.device(1 << 16)
        table.refresh()
        self.assertFalse(table.has(device.address, 1, False))
        fake = (
            "7f0000000000-7f0000002000 rw-s 00000000 00:05 1 /dev/davinci_manager\n"
            "7f0000002000-7f0000003000 rw-p 0 0:0 0\n"
            "7f0000003000-7f0000004000 rw-s 0 00:05 2 /dev/shm/x (deleted)\n"
            "7f0000004000-7f0000005000 r--p 0 00:05 2 /a b\n"
        )
        with mock.patch("builtins.open", mock.mock_open(read_data=fake)):
            table.refresh()
        has = table.has
        self.assertFalse(has(0x7F0000000000, 4096, False))
        self.assertFalse(has(0x7F0000001000, 4097, False))
        self.assertTrue(has(0x7F0000002000, 8192, True))
        self.assertTrue(has(0x7F0000002000, 12288, False))
        self.assertFalse(has(0x7F0000002000, 12288, True))
        self.assertFalse(has(0x7F0000004000, 4097, False))

    def test_the_table_of_backends(self):
        names = "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store".split(".")
        modules = {
            ".".join(names[:n]): types.ModuleType(".".join(names[:n]))
            for n in range(1, len(names) + 1)
        }
        root = ".".join(names)
        backend, connector = types.ModuleType(root + ".backend"), types.ModuleType(
            root + ".ascend_store_connector"
        )
        backend.backend_map = {
            name: {"name": "M", "path": name} for name in ("mooncake", "memcache")
        }
        connector.AscendStoreConnector = type("AscendStoreConnector", (), {})
        modules.update({backend.__name__: backend, connector.__name__: connector})
        vllm_ascend.register()  # does nothing without it
        with mock.patch.dict(sys.modules, modules):
            vllm_ascend.register()
            self.assertEqual(backend.backend_map["memcache"]["path"], "memcache")
            self.assertTrue(
                issubclass(vllm_ascend.AscendStoreConnector, connector.AscendStoreConnector)
            )
            self.assertIs(vllm_ascend.AscendStoreConnector, vllm_ascend.AscendStoreConnector)
            vllm_ascend.register()
        for name in ("tarn", "memcache"):
            self.assertEqual(
                backend.backend_map[name], {"name": "TarnBackend", "path": "tarn.vllm_ascend"}
            )
        self.assertEqual(backend.backend_map["mooncake"]["path"], "mooncake")
        with self.assertRaises(AttributeError):
            vllm_ascend.nothing

    def test_namespace(self):
        w = self.worker(options={"namespace": "team", "put": {"replicas": 1}})
        w.send(["a" * 32], [0])
        self.assertTrue(self.client().exists("team@" + w.key("a" * 32)))
        self.assertEqual(w.receive(["a" * 32], [1]), set())


class Metadata:
    """AscendConnectorMetadata: what a step says of its requests."""

    def __init__(self, requests):
        self.requests = requests


class StandIn:
    """AscendStoreConnector, as vLLM calls it: one in the scheduler, and one in each worker."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        self.hashes, self.metadata = {}, None

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        self.hashes[request.request_id] = request.block_hashes
        return 0, False

    def build_connector_meta(self, scheduler_output):
        return Metadata(
            [
                types.SimpleNamespace(req_id=name, block_hashes=self.hashes[name][:n])
                for name, n in scheduler_output.blocks.items()
            ]
        )

    def bind_connector_metadata(self, connector_metadata):
        self.metadata = connector_metadata


class SessionTest(AscendTest):
    def setUp(self):
        super().setUp()
        self.addCleanup(sessions._of.clear)
        with mock.patch.object(facts, "facts_of", lambda config: None):
            made = facts.noting(StandIn)
            self.scheduler, self.one_worker = made(None, "scheduler"), made(None, role="worker")
        self.w = self.worker()

    def request(self, name, hashes, **params):
        request = types.SimpleNamespace(
            request_id=name, block_hashes=hashes, kv_transfer_params=params or None
        )
        self.assertEqual(self.scheduler.get_num_new_matched_tokens(request, 0), (0, False))

    def step(self, finished=(), **blocks):
        output = types.SimpleNamespace(blocks=blocks, finished_req_ids=set(finished))
        metadata = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))
        self.one_worker.bind_connector_metadata(metadata)
        self.assertIs(self.one_worker.metadata, metadata)

    def told(self, monitor, *names):
        return monitor.hints(*names)[-1]

    def test_blocks_are_those_of_their_requests(self):
        shared = [bytes([9, i] * 16) for i in range(2)]
        own = [bytes([1, i] * 16) for i in range(4)]
        other = [bytes([2, i] * 16).hex() for i in range(4)]  # older ones hand over text
        self.request("req-1", shared + own, tarn_session="chat-4711", tarn_return_ms=30000)
        self.request("req-2", [h.hex() for h in shared] + other, other_things=1)
        hexed = [h.hex() for h in shared + own]
        chat = {"SESSION": "chat-4711", "RETURN": "30000"}
        with Monitor(self.server) as monitor:
            self.w.send(["ab" * 16], [0])
            self.assertEqual(self.told(monitor, "MPUTSTART", "PUTSTART"), {})
            self.step(**{"req-1": 4})
            self.w.send(hexed[:4], list(range(4)))
            self.assertEqual(self.told(monitor, "MPUTSTART"), chat)
            self.step(**{"req-1": 6, "req-2": 6})
            self.w.send(hexed, list(range(6)))
            self.assertEqual(self.told(monitor, "MPUTSTART"), chat)
            self.w.send(hexed[:2] + other, list(range(6)))
            self.assertEqual(self.told(monitor, "MPUTSTART"), {"SESSION": "req-2"})
            self.assertEqual(self.w.receive(hexed[2:], list(range(10, 14))), set())
            self.assertEqual(self.told(monitor, "MGETREPLICAS"), chat)
            # of both requests: nobody knows which one this is
            self.assertEqual(self.w.receive(hexed, list(range(10, 16))), set())
            self.assertEqual(self.told(monitor, "MGETREPLICAS"), {})

    def test_what_is_over_is_forgotten(self):
        hashes = [bytes([3, i] * 16) for i in range(3)]
        self.request("req-1", hashes, tarn_session="chat-1")
        self.step(finished=["req-1"], **{"req-1": 3})
        self.assertEqual(sessions._of[hashes[2].hex()], {"session": "chat-1"})
        self.step(**{"req-1": 3})
        self.assertEqual(sessions._of[hashes[2].hex()], {"session": "req-1"})
        with mock.patch.object(sessions, "_HASHES_MAX", 4):
            more = [bytes([4, i] * 16) for i in range(3)]
            self.request("req-2", more)
            self.step(**{"req-2": 3})
        self.assertEqual(len(sessions._of), 4)
        self.assertTrue(all(h.hex() in sessions._of for h in more))


class FullTest(TarnTest):
    pool = "8mb"

    def test_old_blocks_make_room_for_new_ones(self):
        w = Worker(options={"url": self.server.url})
        self.addCleanup(w.store.close)
        for i in range(64):
            w.fill(i, f"block {i}")
        for n in range(130):  # of 64 blocks of 3 KiB: three times the pool
            hashes = [f"{n:016x}{i:016x}" for i in range(64)]
            w.send(hashes, list(range(64)))
        self.assertEqual(w.receive(hashes, list(range(63, -1, -1))), set())
        self.assertTrue(all(w.holds(63 - i, f"block {i}") for i in range(64)))
        self.assertEqual(w.store.troubles, {})


class AwayTest(unittest.TestCase):
    def test_a_server_that_goes_and_comes_back(self):
        server = Server()
        self.addCleanup(server.stop)
        w = Worker(options={"url": server.url, "client": {"retries": 0, "timeout_ms": 20000}})
        self.addCleanup(w.store.close)
        hashes = [f"{i:032x}" for i in range(8)]
        w.fill(0, "block")
        w.send(hashes, [0] * 8)
        self.assertEqual(w.receive(hashes, list(range(8))), set())
        server.kill()
        began = time.monotonic()
        for _ in range(50):
            self.assertEqual(w.receive(hashes, list(range(8))), set(range(8)))
            self.assertEqual(w.send(hashes, [0] * 8), 8)
        self.assertLess(time.monotonic() - began, 60 * SLOW)
        server.start()

        def back():
            w.send(hashes, [0] * 8)
            return w.receive(hashes, list(range(8, 16))) == set()

        wait_until(back, 60, "the pool is used again")
        self.assertTrue(all(w.holds(i, "block") for i in range(8, 16)))


if __name__ == "__main__":
    unittest.main()
