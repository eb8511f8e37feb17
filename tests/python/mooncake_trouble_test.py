"""mooncake.store on tarn, when things go wrong: addresses that are no memory, servers that are dead
or hang; and what many keys cost."""

import ctypes
import mmap
import os
import random
import threading
import time
import unittest
from unittest import mock

from harness import Server, TarnTest, wait_until
from mooncake_helpers import INVALID, KIB, MIB, MISSING, Memory, StoreTest, block, of

import tarn
from mooncake import _away, _replicas
from mooncake._reach import Reach, Spans
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

PAGE = mmap.PAGESIZE
AWAY = (-900, -901)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Unreachable(StoreTest):
    """A GPU's memory has addresses too, and no processor can read it."""

    def pages(self, n, protection):
        at = _libc.mmap(None, n * PAGE, protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.assertNotEqual(at, ctypes.c_void_p(-1).value)
        self.addCleanup(_libc.munmap, at, n * PAGE)
        return at

    def setUp(self):
        super().setUp()
        self.dead = self.pages(4, 0)
        self.fixed = self.pages(4, mmap.PROT_READ)
        self.edge = self.pages(4, mmap.PROT_READ | mmap.PROT_WRITE)
        self.assertEqual(_libc.munmap(self.edge + 2 * PAGE, 2 * PAGE), 0)
        self.good = Memory(4 * PAGE, block(5, 4 * PAGE))

    def refused(self):
        return self.assertLogs("mooncake", "ERROR")

    def test_puts(self):
        s, bad = self.store, (self.dead, self.edge + PAGE + 1, 8, 1 << 63, (1 << 64) - 8)
        for at in bad:
            with self.refused() as log:
                self.assertEqual(s.put_from("k", at, 2 * PAGE), INVALID)
                self.assertEqual(s.upsert_from("k", at, 2 * PAGE), INVALID)
                self.assertEqual(
                    s.put_from_with_metadata("k", self.good.address, at, 9, 2 * PAGE), -600
                )
                self.assertEqual(
                    s.put_from_with_metadata("k", at, self.good.address, 2 * PAGE, 9), -600
                )
            self.assertIn(f"{at:#x}", log.output[0])
        self.assertEqual(s.put_from("k", self.fixed, 100), 0, "it is only read")

    def test_a_batch_goes_on_without_them(self):
        s, at = self.store, self.good.address
        config = ReplicateConfig()
        config.group_ids = ["g", "h", "g", "i"]
        rows = [at, self.dead, at + PAGE, self.edge + PAGE + 1]
        keys, sizes = list("abcd"), [PAGE] * 4
        with self.refused() as log:
            self.assertEqual(s.batch_put_from(keys, rows, sizes, config), [0, INVALID, 0, INVALID])
        self.assertEqual(len([line for line in log.output if "batch_put_from" in line]), 1)
        self.assertEqual(config.group_ids, ["g", "h", "g", "i"])
        config.group_ids = ["g", "h"]  # as many as there are rows in reach
        with self.refused():
            codes = s.batch_put_from([k + "3" for k in keys], rows, sizes, config)
        self.assertEqual(codes, [INVALID] * 4)
        pieces = [[at, r] for r in rows]
        with self.refused():
            codes = s.batch_put_from_multi_buffers([k + "2" for k in keys], pieces, [[9, PAGE]] * 4)
        self.assertEqual(codes, [0, INVALID, 0, INVALID])
        self.assertEqual(s.batch_is_exist(["a", "b", "c2", "d2"]), [1, 0, 1, 0])
        self.assertEqual(s.get("c2"), self.good[:9] + self.good[PAGE : 2 * PAGE])

    def test_many_pieces(self):
        """More than one look takes."""
        at, n = self.good.address, 5000
        rows = [[at + i % PAGE] for i in range(n)]
        keys = [f"p{i}" for i in range(n)]
        for i in (0, 1023, 1024, 4999):
            rows[i] = [at, self.dead]
        sizes = [[1] * len(row) for row in rows]
        with self.refused():
            codes = self.store.batch_put_from_multi_buffers(keys, rows, sizes)
        self.assertEqual([i for i, c in enumerate(codes) if c], [0, 1023, 1024, 4999])

    def test_gets(self):
        s = self.store
        self.assertEqual(s.put("k", self.good[: 2 * PAGE]), 0)
        for at in (self.dead, self.edge + PAGE + 1, self.fixed, 8):
            with self.refused():
                self.assertEqual(s.get_into("k", at, 2 * PAGE), INVALID)
                codes = s.batch_get_into(["k", "k", "no"], [self.edge, at, at], [2 * PAGE] * 3)
                self.assertEqual(codes, [2 * PAGE, INVALID, INVALID])
            self.assertEqual(ctypes.string_at(self.edge, 2 * PAGE), self.good[: 2 * PAGE])
            with self.refused():
                codes = s.batch_get_into_multi_buffers(
                    ["k", "k"], [[self.edge, at], [at, self.edge]], [[PAGE, PAGE]] * 2
                )
            self.assertEqual(codes, [INVALID, INVALID] if at != self.fixed else [INVALID] * 2)

    def test_a_miss_leaves_the_memory_as_it_was(self):
        before = self.good[:]
        self.assertEqual(self.store.get_into("no", self.good.address, 4 * PAGE), MISSING)
        self.assertEqual(self.good[:], before)

    def test_threads_do_not_mix_their_bytes(self):
        """Looking whether memory can be written leaves its bytes as they are."""
        areas = [Memory(64 * PAGE, bytes([i + 1]) * (64 * PAGE)) for i in range(6)]

        def look(area):
            where = [[area.address + i * 64 for i in range(64 * PAGE // 64)]]
            for _ in range(20):
                self.store.batch_get_into_multi_buffers(["no"], where, [[64] * len(where[0])])

        threads = [threading.Thread(target=look, args=(a,)) for a in areas]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i, area in enumerate(areas):
            self.assertEqual(area[:], bytes([i + 1]) * (64 * PAGE))

    def test_registrations_sessions_ranges_tensors(self):
        s = self.store
        with self.refused():
            self.assertEqual(s.register_buffer(self.dead, PAGE), INVALID)
        self.assertEqual(s.batch_put_session_start(["s"], [100]), [0])
        with self.refused():
            codes = s.batch_put_from_multi_buffer_ranges(["s"], [[self.dead]], [[100]], [[0]])
        self.assertEqual(codes, [INVALID])
        good = [[self.good.address]], [[100]], [[0]]
        self.assertEqual(s.batch_put_from_multi_buffer_ranges(["s"], *good), [100])
        self.assertEqual(s.batch_put_session_end(["s"]), [0])
        self.assertEqual(s.batch_get_session_start(["s"]), [0])
        with self.refused():
            codes = s.batch_get_into_multi_buffer_ranges(["s"], [[self.dead]], [[100]], [[0]])
        self.assertEqual(codes, [INVALID])
        with self.refused():
            self.assertEqual(s.put_tensor_from("t", self.dead, PAGE), INVALID)

    def test_memory_that_went_after_it_was_registered(self):
        s, at = self.store, self.edge
        self.assertEqual(s.register_buffer(at, 2 * PAGE), 0)
        self.assertEqual(_libc.munmap(at, 2 * PAGE), 0)
        self.assertEqual(s.put("k", bytes(100)), 0)
        with self.refused():
            self.assertEqual(s.put_from("l", at, 100), INVALID)
            self.assertEqual(s.get_into("k", at, 100), INVALID)
            ranges = [at], [["k"]], [[[0]]], [[[0]]], [[[100]]]
            self.assertEqual(s.get_into_ranges(*ranges), [[[INVALID]]])

    def test_registered_memory_and_other(self):
        """Pieces in it, over its ends, in two that meet, in two that overlap, and in neither."""
        s, at = self.store, self.good.address
        other = Memory(4 * PAGE, block(6, 4 * PAGE))
        for start, size in ((at, PAGE), (at + PAGE, PAGE), (other.address, 2 * PAGE)):
            self.assertEqual(s.register_buffer(start, size), 0)

        def check(name):
            rows = [at, at + PAGE - 9, at + PAGE, other.address + 2 * PAGE - 5, self.dead, at]
            sizes = [PAGE, 99, PAGE, 10, 9, 2 * PAGE]
            keys = [f"{name}{i}" for i in range(len(rows))]
            with self.refused():
                self.assertEqual(s.batch_put_from(keys, rows, sizes), [0, 0, 0, 0, INVALID, 0])
            good = [0, 2, 5]
            back = Memory(6 * PAGE)
            self.assertEqual(s.register_buffer(back.address, back.size), 0)
            into = [back.address, back.address + PAGE, back.address + 2 * PAGE]
            got = s.batch_get_into([keys[i] for i in good], into, [sizes[i] for i in good])
            self.assertEqual(got, [PAGE, PAGE, 2 * PAGE])
            self.assertEqual(back[: 4 * PAGE], self.good[: 2 * PAGE] * 2)
            self.assertEqual(s.unregister_buffer(back.address), 0)

        check("meet")
        self.assertEqual(s.register_buffer(at + 2 * PAGE, 2 * PAGE), 0)
        check("three")
        self.assertEqual(s.unregister_buffer(at), 0)
        check("fewer")
        self.assertEqual(s.register_buffer(self.fixed, 4 * PAGE), 0)
        self.assertEqual(s.batch_put_from(["f", "g"], [self.fixed, at], [9, 9]), [0, 0])
        with self.refused():
            self.assertEqual(
                s.batch_get_into(["f", "g"], [self.fixed + PAGE, at], [9, 9]), [INVALID, 9]
            )

    def test_engine(self):
        ends = [TransferEngine() for _ in range(2)]
        for end in ends:
            self.assertEqual(end.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        peer, far = f"127.0.0.1:{ends[1].get_rpc_port()}", Memory(PAGE)
        self.assertEqual(ends[1].register_memory(far.address, far.size), 0)
        with self.refused():
            self.assertLess(ends[0].register_memory(self.dead, PAGE), 0)
            self.assertLess(
                ends[0].batch_register_memory([self.good.address, self.dead], [PAGE] * 2), 0
            )
            self.assertLess(ends[0].transfer_sync_write(peer, self.dead, far.address, 9), 0)
            self.assertLess(ends[0].transfer_sync_read(peer, self.fixed, far.address, 9), 0)
            self.assertEqual(
                ends[0].batch_transfer_async_write(peer, [self.dead], [far.address], [9]), 0
            )
            self.assertEqual(ends[0].write_bytes_to_buffer(self.fixed, b"abc", 3), -1)
            self.assertEqual(ends[0].read_bytes_from_buffer(self.dead, 3), b"")
        self.assertEqual(ends[0].transfer_sync_write(peer, self.good.address, far.address, 9), 0)
        self.assertEqual(far[:9], self.good[:9])


class Registered(unittest.TestCase):
    def test_what_bytes_lie_in(self):
        """Against a search of all, with memory that overlaps and goes again."""
        rng = random.Random(7)
        for _ in range(50):
            spans, all_of_it = Spans(), {}
            for _ in range(30):
                at, size = rng.randrange(100), rng.randrange(1, 30)
                if rng.random() < 0.3:
                    self.assertEqual(spans.pop(at), all_of_it.pop(at, None) is not None)
                else:
                    spans.put(at, size, (at, size))
                    all_of_it[at] = size
                self.assertEqual(bool(spans), bool(all_of_it))
                at, size = rng.randrange(140), rng.randrange(1, 20)
                found = spans.around(at, size)
                if any(a <= at and at + size <= a + n for a, n in all_of_it.items()):
                    start, length = found
                    self.assertEqual(all_of_it[start], length)
                    self.assertTrue(start <= at and at + size <= start + length)
                else:
                    self.assertIsNone(found)
            spans.clear()
            self.assertFalse(spans or spans.around(50, 1))

    def test_many_registrations_cost_no_more(self):
        def took(n):
            reach = Reach()
            for i in range(n):
                reach.others.put(i * PAGE, PAGE, True)
            where, sizes = [(n - 1) * PAGE] * 4000, [PAGE] * 4000
            spent = []
            for _ in range(5):
                began = time.perf_counter()
                self.assertEqual(reach.beyond(where, sizes, False), {})
                spent.append(time.perf_counter() - began)
            return min(spent)

        self.assertLess(took(1000), 10 * took(1))


class Answers(unittest.TestCase):
    """What they say of the server."""

    def asked(self, away, answer):
        """The answer, or the code that came at once instead."""
        return away.ask("test", lambda: answer, lambda code: code)

    def test_rows_that_were_not_asked_for_say_nothing(self):
        for answer, said in (
            ([-900, -901], -900),
            ([INVALID, -900], -900),
            ([INVALID, 0, -900], [1]),
            ([INVALID, INVALID], [1]),
            ([], [1]),
        ):
            with self.subTest(answer=answer):
                away = _away.Away()
                with mock.patch.object(_away.log, "error"):
                    self.assertEqual(self.asked(away, answer), answer)
                self.assertEqual(self.asked(away, [1]), said)

    def test_nor_does_a_try_that_asked_for_nothing(self):
        away = _away.Away()
        away._breaker = _away.Breaker(0.05, 10)
        with mock.patch.object(_away.log, "error"):
            self.asked(away, [-900])
            wait_until(lambda: self.asked(away, [INVALID]) == [INVALID], what="the pause's end")
        self.assertFalse(away._breaker.well, "nobody has seen it yet")
        self.assertEqual(self.asked(away, [1]), [1], "the next one may try")
        self.assertTrue(away._breaker.well)


class Away(TarnTest):
    """A server that is dead or hangs costs one look-up, not each of them."""

    pool = None
    open = StoreTest.open

    def setUp(self):
        self.server = Server("64mb")
        self.addCleanup(self.server.stop)
        with mock.patch.dict(os.environ, TARN_LOOKUP_TIMEOUT_MS="300"):
            self.store = self.open(0, self.server)
        self.assertEqual(self.store.put("k", b"v" * 100), 0)

    def step(self, most):
        """What a scheduler does in one: a look-up for each of fifty requests."""
        began = time.monotonic()
        with self.assertLogs("mooncake", "ERROR") as log:
            codes = [self.store.batch_is_exist(["k", "l"]) for _ in range(50)]
        self.assertLess(time.monotonic() - began, most)
        self.assertLessEqual(len(log.output), 3, "told once, not fifty times")
        for code in codes:
            self.assertEqual(len(code), 2)
            self.assertTrue(all(c in AWAY for c in code), code)

    def back(self):
        def there():
            return self.store.batch_is_exist(["k"]) == [1] or self.store.put("k", bytes(9)) == 1

        wait_until(there, what="the store to find its server again")

    def test_hung(self):
        self.server.pause()
        self.addCleanup(self.server.resume)
        self.step(2.5)
        began = time.monotonic()
        self.assertEqual(self.store.get("k"), b"")
        self.assertEqual(self.store.batch_get_replica_desc(["k"]), {})
        self.assertIn(self.store.is_exist("k"), AWAY)
        self.assertIn(self.store.get_size("k"), AWAY)
        self.assertIn(self.store.put("m", b"v" * 100), AWAY)
        self.assertIn(self.store.remove_all(force=True), AWAY)
        memory = Memory(KIB)
        self.assertEqual(self.store.register_buffer(memory.address, KIB), 0, "needs no server")
        self.assertEqual(self.store.unregister_buffer(memory.address), 0)
        self.assertLess(time.monotonic() - began, 2)
        self.server.resume()
        self.back()
        self.assertEqual(self.store.get("k"), b"v" * 100)

    def test_dead(self):
        self.server.kill()
        self.step(5)
        self.server.start()
        with self.assertLogs("mooncake", "WARNING") as log:
            wait_until(lambda: self.store.batch_is_exist(["k"]) == [0], what="an answer")
        self.assertIn("back", log.output[-1])
        self.assertEqual(self.store.put("k", b"w" * 100), 0)
        self.assertEqual(self.store.get("k"), b"w" * 100)

    def test_transfers_tell_the_look_ups(self):
        """A put that had no answer is enough: the next look-up does not wait for itself."""
        url = self.server.url + "?timeout_ms=500"
        store = self.open(0, self.server, master_server_addr=url)
        self.assertEqual(store.put("q", b"v" * 100), 0)
        self.server.pause()
        self.addCleanup(self.server.resume)
        memory = Memory(MIB)
        with self.assertLogs("mooncake", "ERROR"):
            codes = store.batch_put_from(["a", "b"], [memory.address] * 2, [KIB] * 2)
        self.assertTrue(all(c in AWAY for c in codes), codes)
        began = time.monotonic()
        self.assertIn(store.batch_is_exist(["a"])[0], AWAY)
        self.assertIn(store.batch_get_into(["a"], [memory.address], [KIB])[0], AWAY)
        self.assertLess(time.monotonic() - began, 0.4)

    def test_sessions(self):
        url = self.server.url + "?timeout_ms=500"
        store, keys = self.open(0, self.server, master_server_addr=url), [
            f"s{i}" for i in range(40)
        ]
        self.assertEqual(store.batch_put_session_start(keys, [KIB] * 40), [0] * 40)
        self.server.pause()
        self.addCleanup(self.server.resume)
        began = time.monotonic()
        with self.assertLogs("mooncake", "ERROR"):
            codes = store.batch_put_session_end(keys)
        self.assertTrue(all(c in AWAY for c in codes), codes)
        self.assertLess(time.monotonic() - began, 3)

    def test_what_is_refused_does_not_count(self):
        """A miss, a bad argument or a full pool says nothing against the server."""
        store = self.open(0, self.server)  # with patience
        for _ in range(3):
            self.assertEqual(store.get_size("no"), MISSING)
            with self.assertLogs("mooncake", "ERROR"):
                self.assertLess(store.remove_by_regex("("), 0)
            self.assertEqual(store.put_from("x", 0, 5), INVALID)
            self.assertEqual(store.batch_is_exist(["k"]), [1])

    def test_options(self):
        for given in ({"lookup_timeout_ms": "soon"}, {"lookup_timeout_ms": 0}):
            store = MooncakeDistributedStore()
            values = {
                "local_hostname": "localhost",
                "metadata_server": "m",
                "global_segment_size": 0,
                "master_server_addr": of(self.server),
            }
            with self.assertLogs("mooncake", "ERROR") as log:
                self.assertEqual(store.setup({**values, **given}), INVALID)
            self.assertIn("lookup_timeout_ms", log.output[0])
        with mock.patch.dict(os.environ, TARN_LOOKUP_TIMEOUT_MS="x"):
            with self.assertLogs("mooncake", "ERROR") as log:
                self.assertEqual(MooncakeDistributedStore().setup(values), INVALID)
            self.assertIn("TARN_LOOKUP_TIMEOUT_MS", log.output[0])
        self.server.pause()
        self.addCleanup(self.server.resume)
        self.server.resume()
        store = MooncakeDistributedStore()
        self.addCleanup(store.close)
        self.assertEqual(store.setup({**values, "lookup_timeout_ms": 200}), 0)
        self.server.pause()
        began = time.monotonic()
        with self.assertLogs("mooncake", "ERROR"):
            self.assertIn(store.is_exist("k"), AWAY)
        self.assertLess(time.monotonic() - began, 1.5)


class RoundTrips(StoreTest):
    """Many keys, few requests."""

    N = 200

    def requests(self, work):
        """How often each command came meanwhile, from anybody."""
        client = tarn.Client(self.server.url)
        self.addCleanup(client.close)

        def counted():
            lines = client.command("INFO", "commandstats").splitlines()
            pairs = [line.split(":", 1) for line in lines if line.startswith("cmdstat_")]
            return {n[8:]: int(v.split("calls=")[1].split(",")[0]) for n, v in pairs}

        before = counted()
        work()
        now = counted()
        grown = {n: v - before.get(n, 0) for n, v in now.items() if v != before.get(n, 0)}
        # RELEASE belongs to a call before, and goes with another request
        return {n: v for n, v in grown.items() if n not in ("info", "ping", "release")}

    def setUp(self):
        super().setUp()
        self.keys = [f"r{i}" for i in range(self.N)]
        self.memory = Memory(KIB, block(1, KIB))
        self.codes(self.put(self.keys))

    def put(self, keys):
        return self.store.batch_put_from(keys, [self.memory.address] * len(keys), [KIB] * len(keys))

    def codes(self, codes):
        self.assertEqual(set(codes), {0})

    def few(self, work, most=4):
        made = self.requests(work)
        self.assertLessEqual(sum(made.values()), most, made)

    def test_replica_descriptions(self):
        s, found = self.store, {}
        s.put("small", b"0\nmemory\n\n0\n")
        s.put("empty", b"")
        s.put("looks", b"memory\n0\n1\n2\n3\n\n\n\n\n0\nmemory\n")
        keys = ["no", *self.keys, "small", "no2", "empty", "looks"]
        self.few(lambda: found.update(s.batch_get_replica_desc(keys)))
        self.assertEqual(list(found), [*self.keys, "small", "empty", "looks"])
        for key, size in (("r0", KIB), (self.keys[-1], KIB), ("small", 12), ("empty", 0)):
            (one,) = found[key]
            self.assertTrue(one.is_memory_replica())
            where = one.get_memory_descriptor().buffer_descriptor
            self.assertEqual(where.size, size, key)
            self.assertEqual(where.transport_endpoint == "books", size < 65)
        spots = {
            found[k][0].get_memory_descriptor().buffer_descriptor.buffer_address
            for k in keys
            if k in self.keys
        }
        self.assertEqual(len(spots), self.N)
        self.few(lambda: s.batch_get_replica_desc(keys), 2)

    def test_removals(self):
        s, gone = self.store, []
        self.few(lambda: gone.extend(s.batch_remove(self.keys + ["no"])))
        self.assertEqual(gone, [0] * self.N + [MISSING])
        self.codes(self.put(self.keys))
        gone.clear()
        self.few(lambda: gone.extend(s.batch_replica_clear(self.keys + ["no"])))
        self.assertEqual(gone, self.keys)
        self.assertEqual(set(s.batch_is_exist(self.keys)), {0})

    def test_copies_in_files_are_no_segments(self):
        path = _replicas._Copy("file", ("/somewhere/r0", ""), 0)
        there = [_replicas._There(KIB, [path])] * self.N
        with mock.patch.object(_replicas, "_located", lambda *_: there):
            made = self.requests(lambda: self.store.batch_replica_clear(self.keys, "other:1"))
        self.assertEqual(made, {})

    def test_the_rest(self):
        s, memory = self.store, Memory(KIB)
        at, sizes = [memory.address] * self.N, [KIB] * self.N
        self.few(lambda: s.batch_is_exist(self.keys))
        self.few(lambda: s.batch_get_into(self.keys, at, sizes))
        self.few(
            lambda: s.batch_get_into_multi_buffers(
                self.keys, [[a] for a in at], [[n] for n in sizes]
            )
        )
        self.few(lambda: s.batch_get_buffer(self.keys), 8)
        self.few(lambda: s.get_batch(self.keys), 8)
        self.few(lambda: s.batch_get_session_start(self.keys))
        self.few(lambda: self.put([k + "x" for k in self.keys]), 4)
        self.few(lambda: s.batch_upsert_from(self.keys, at, sizes), 4)

    def test_where_a_nodes_memory_is(self):
        one = self.open(8 * MIB, local_hostname="localhost:17003")
        config = ReplicateConfig()
        config.preferred_segment = one.get_hostname()
        self.assertEqual(one.put("lent", bytes(KIB), config), 0)
        for store in (one, self.store):
            for _ in range(2):
                desc = store.batch_get_replica_desc(["lent", "r0"])
                where = desc["lent"][0].get_memory_descriptor().buffer_descriptor
                self.assertEqual(where.transport_endpoint, one.get_hostname())
                other = desc["r0"][0].get_memory_descriptor().buffer_descriptor
                self.assertNotEqual(other.transport_endpoint, one.get_hostname())
        self.assertEqual(one.close(), 0)
        self.assertEqual(self.store.batch_get_replica_desc(["lent"]), {})


if __name__ == "__main__":
    unittest.main()
