"""TarnL2Adapter against servers, as the controllers of LMCache's multi-process mode drive it:
submit, poll, take the result."""

import logging
import os
import select
import threading
import time
import unittest

from harness import TarnTest, together, wait_until
from lmcache_stubs import Backend, Metadata, ObjectKey, Size, UINT8, MemoryFormat, pattern

import tarn
from tarn.lmcache import TarnL2Adapter
from tarn.lmcache.l2 import object_key_text, parse_object_key


class L2Test(TarnTest):
    query = ""

    def setUp(self):
        self.backend, self.metadata = Backend(256 << 20), Metadata()
        self._n = 0
        logger = logging.getLogger("tarn.lmcache")
        self.addCleanup(setattr, logger, "propagate", logger.propagate)
        logger.propagate = False
        logger.addHandler(logging.NullHandler())

    def adapter(self, **params):
        adapter = TarnL2Adapter({"url": self.server.url + self.query, "namespace": "", **params})
        self.addCleanup(adapter.close)
        return adapter

    def keys(self, n, **kwargs):
        self._n += 1
        return [
            ObjectKey((hash(self.id()) & 0xFFFFFFFF) << 32 | self._n << 16 | i, **kwargs)
            for i in range(n)
        ]

    def objs(self, n, size=65536, fill=True):
        objs = [self.backend.allocate(Size([size]), UINT8, MemoryFormat.KV_2LTD) for _ in range(n)]
        return [obj.fill(i) for i, obj in enumerate(objs)] if fill else objs

    def wait(self, fd, take, seconds=60):
        """As a controller: polls the fd, empties it, asks for the result."""
        until = time.monotonic() + seconds
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while True:
            result = take()
            if result:
                return result
            if result is not None and not isinstance(result, dict):
                return result
            self.assertLess(time.monotonic(), until, "no result")
            if poller.poll(1000):
                os.read(fd, 8)

    def store(self, adapter, keys, objs):
        task = adapter.submit_store_task(keys, objs)
        done = self.wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
        self.assertEqual(list(done), [task])
        return done[task]

    def look(self, adapter, keys):
        task = adapter.submit_lookup_and_lock_task(keys)
        bits = self.wait(
            adapter.get_lookup_and_lock_event_fd(),
            lambda: adapter.query_lookup_and_lock_result(task),
        )
        self.assertIsNone(adapter.query_lookup_and_lock_result(task))
        return [bits.test(i) for i in range(len(keys))]

    def load(self, adapter, keys, objs):
        task = adapter.submit_load_task(keys, objs)
        bits = self.wait(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
        self.assertIsNone(adapter.query_load_result(task))
        return [bits.test(i) for i in range(len(keys))]

    def check(self, objs, seeds):
        for obj, seed in zip(objs, seeds):
            self.assertEqual(bytes(obj.byte_array.cast("B")), pattern(seed, obj.get_size()))


class Tasks(L2Test):
    pool = "128mb"

    def test_store_look_load(self):
        adapter, keys = self.adapter(), self.keys(8)
        fds = [
            adapter.get_store_event_fd(),
            adapter.get_lookup_and_lock_event_fd(),
            adapter.get_load_event_fd(),
        ]
        self.assertEqual(len(set(fds)), 3)
        for fd in fds:
            self.assertEqual(select.select([fd], [], [], 0)[0], [])
        objs, into = self.objs(8), self.objs(8, fill=False)
        result = self.store(adapter, keys, objs)
        self.assertTrue(result.is_successful())
        self.assertEqual(result.bytes_transferred(), 8 * 65536)
        self.assertEqual(self.look(adapter, keys), [True] * 8)
        self.assertEqual(self.load(adapter, keys, into), [True] * 8)
        self.check(into, range(8))
        adapter.submit_unlock(keys)
        # Their owner is LMCache: nobody else's reference is touched.
        self.assertEqual({obj.get_ref_count() for obj in objs + into}, {1})

    def test_bytes_transferred_are_those_that_moved(self):
        adapter, keys = self.adapter(), self.keys(4)
        self.assertEqual(self.store(adapter, keys[:3], self.objs(3)).bytes_transferred(), 3 * 65536)
        again = self.store(adapter, keys, self.objs(4))
        self.assertTrue(again.is_successful())
        self.assertEqual(again.bytes_transferred(), 65536)
        self.assertEqual(self.store(adapter, keys, self.objs(4)).bytes_transferred(), 0)

    def test_only_its_own_event(self):
        adapter, keys = self.adapter(), self.keys(1)
        adapter.submit_store_task(keys, self.objs(1))
        ready = select.select([adapter.get_store_event_fd()], [], [], 10)[0]
        self.assertEqual(ready, [adapter.get_store_event_fd()])
        others = [adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()]
        self.assertEqual(select.select(others, [], [], 0.05)[0], [])

    def test_gaps(self):
        adapter, keys = self.adapter(), self.keys(9)
        there = [0, 1, 3, 6, 7]
        self.store(adapter, [keys[i] for i in there], self.objs(5))
        expected = [i in there for i in range(9)]
        self.assertEqual(self.look(adapter, keys), expected)
        self.assertEqual(self.look(adapter, keys[2:3]), [False])
        into = self.objs(9, fill=False)
        self.assertEqual(self.load(adapter, keys, into), expected)
        self.check([into[i] for i in there], range(5))

    def test_no_keys(self):
        adapter = self.adapter()
        self.assertTrue(self.store(adapter, [], []).is_successful())
        task = adapter.submit_lookup_and_lock_task([], {})
        bits = None
        while bits is None:
            bits = adapter.query_lookup_and_lock_result(task)
        self.assertEqual(len(bits), 0)

    def test_large_tasks_on_several_threads(self):
        adapter, keys = self.adapter(), self.keys(8)
        self.store(adapter, keys, self.objs(8, 9 << 20))
        into = self.objs(8, 9 << 20, fill=False)
        self.assertEqual(
            self.load(adapter, keys[:3] + self.keys(1) + keys[3:7], into),
            [True] * 3 + [False] + [True] * 4,
        )
        self.check(into[:3] + into[4:], range(7))

    def test_other_sizes_are_misses(self):
        adapter, keys = self.adapter(), self.keys(2)
        self.store(adapter, keys, self.objs(2))
        self.assertEqual(self.load(adapter, keys[:1], self.objs(1, 65535, fill=False)), [False])
        self.assertEqual(self.load(adapter, keys[:1], self.objs(1, 65537, fill=False)), [False])
        self.assertEqual(self.load(adapter, keys[:1], self.objs(1, fill=False)), [True])

    def test_a_value_that_could_not_be_used_is_replaced(self):
        adapter, keys = self.adapter(), self.keys(2)
        self.store(adapter, keys, self.objs(2))
        large, into = self.objs(2, 131072), self.objs(2, 131072, fill=False)
        self.assertEqual(self.load(adapter, keys[:1], into[:1]), [False])
        self.store(
            adapter, keys, large
        )  # computed anew: the first is known to be of no use, the second is left as it is
        self.assertEqual(self.load(adapter, keys[:1], into[:1]), [True])
        self.check(into[:1], [0])
        self.assertEqual(self.load(adapter, keys[1:], self.objs(1, fill=False)), [True])

    def test_a_check_reads_what_it_has_put(self):
        adapter, key = self.adapter(), ObjectKey(0)
        for seed in (1, 2):
            self.store(adapter, [key], [self.objs(1)[0].fill(seed)])
            into = self.objs(1, fill=False)
            self.assertEqual(self.load(adapter, [key], into), [True])
            self.check(into, [seed])

    def test_many_tasks_at_once(self):
        """Two controllers, many tasks under way, results taken in any order."""
        adapter = self.adapter()

        def run(part):
            keys, into, tasks = self.keys(1)[0], None, {}
            keys = [[ObjectKey(part << 40 | t << 8 | i) for i in range(5)] for t in range(20)]
            tasks = {adapter.submit_store_task(k, self.objs(5, 8192)): k for k in keys}
            with stores:
                pending = set(tasks)
                waiting.update(pending)
            while pending:
                with stores:
                    ended.update(adapter.pop_completed_store_tasks())
                    pending -= {t for t in pending if t in ended}
                time.sleep(0.001)
            looks = {adapter.submit_lookup_and_lock_task(k): k for k in keys}
            for task in sorted(looks, reverse=True):
                bits = None
                while bits is None:
                    bits = adapter.query_lookup_and_lock_result(task)
                    time.sleep(0.0005)
                assert bits.count_leading_ones() == bits.popcount() == 5
            for k in keys:
                into = self.objs(5, 8192, fill=False)
                task, bits = adapter.submit_load_task(k, into), None
                while bits is None:
                    bits = adapter.query_load_result(task)
                    time.sleep(0.0005)
                assert bits.popcount() == 5
                self.check(into, range(5))

        stores, waiting, ended = threading.Lock(), set(), {}
        together(run, range(1, 4))
        self.assertEqual(len(waiting), 60)
        status = adapter.report_status()
        self.assertEqual((status["stored"], status["found"], status["loaded"]), (300, 300, 300))


class Keys(L2Test):
    def test_text(self):
        key = ObjectKey(255, model="a b/c", rank=0x01000100, group=18, salt="user 1")
        text = f"a b/c@01000100@12@{255:064x}@user 1"
        self.assertEqual(object_key_text(key), text)
        fields = {
            "model_name": "a b/c",
            "kv_rank": 0x01000100,
            "object_group_id": 18,
            "cache_salt": "user 1",
        }
        self.assertEqual(
            parse_object_key(text), {**fields, "chunk_hash": (255).to_bytes(32, "big")}
        )
        for other in (
            "",
            "a@b",
            "llama@8@3@ff@bfloat16",
            "@01000100@0@ff",
            "m@0100010g@0@ff",
            "m@01000100@0@f",
            "a@b@c@d@e@f",
        ):
            self.assertIsNone(parse_object_key(other), other)

    def listed(self, adapter, **kwargs):
        """The keys of all pages, of values of 512 bytes. A page may be short before the last."""
        cursor, found, sizes = None, [], set()
        for _ in range(100):
            page = adapter.list_l2_keys(cursor=cursor, **kwargs)
            self.assertLessEqual(len(page.entries), kwargs.get("page_size", 500))
            found += [entry.key for entry in page.entries]
            sizes |= {entry.size_bytes for entry in page.entries}
            cursor = page.next_page_token
            if cursor is None:
                break
        self.assertEqual(sizes, {512})
        return sorted(found)

    def test_listing(self):
        adapter, client = self.adapter(), self.client()
        client.command("FLUSHALL")
        keys = [ObjectKey(i, model="m*") for i in range(25)] + [
            ObjectKey(i, model="mx", salt="s") for i in range(5)
        ]
        self.store(adapter, keys, self.objs(30, 512))
        client.put("m*@something@else", b"x")
        client.put("noise", b"x")

        def pages(**kwargs):
            return self.listed(adapter, **kwargs)

        everything = sorted(object_key_text(key) for key in keys)
        self.assertEqual(pages(), everything)
        self.assertEqual(sorted(set(pages(page_size=7))), everything)
        self.assertEqual(pages(model_name="m*"), everything[:25])
        self.assertEqual(sorted(set(pages(model_name="mx", page_size=2))), everything[25:])
        self.assertIsNone(adapter.list_l2_keys("other").next_page_token)
        for wrong in ({"page_size": 0}, {"cursor": "x"}, {"cursor": "1"}, {"cursor": "1:x"}):
            with self.assertRaises(ValueError, msg=wrong):
                adapter.list_l2_keys(**wrong)

    def test_namespaces(self):
        """For what LMCache's keys do not say: data types, serdes."""
        keys = self.keys(3)
        adapter, plain = self.adapter(namespace="fp8"), self.adapter()
        self.store(adapter, keys, self.objs(3, 512))
        self.assertEqual(self.look(adapter, keys), [True] * 3)
        self.assertEqual(self.look(plain, keys), [False] * 3)
        self.assertEqual(self.look(self.adapter(namespace="fp4"), keys), [False] * 3)
        names = sorted(object_key_text(key) for key in keys)
        for more in ({}, {"model_name": keys[0].model_name}):
            self.assertEqual(self.listed(adapter, page_size=100, **more), names)
        adapter.delete(keys[:1])
        self.assertEqual(self.look(adapter, keys), [False, True, True])

    def test_delete_and_listeners(self):
        class Listener:
            def __init__(self):
                self.stored, self.accessed, self.deleted = [], [], []

            def on_l2_keys_stored(self, keys, sizes):
                self.stored += zip(keys, sizes)

            def on_l2_keys_accessed(self, keys):
                self.accessed += keys

            def on_l2_keys_deleted(self, keys):
                self.deleted += keys

        adapter, listener, keys = self.adapter(), Listener(), self.keys(4, salt="u")
        adapter.register_listener(listener)
        self.store(adapter, keys[:3], self.objs(3))
        self.store(adapter, keys[:3], self.objs(3))
        self.assertEqual(listener.stored, [(key, 65536) for key in keys[:3]])
        self.load(adapter, keys, self.objs(4, fill=False))
        self.assertEqual(listener.accessed, keys[:3])
        self.assertEqual(dict(adapter.get_usage().bytes_by_cache_salt), {"u": 3 * 65536})
        adapter.delete(keys[:2] + keys[3:])
        self.assertEqual(listener.deleted, keys[:2])
        self.assertEqual(dict(adapter.get_usage().bytes_by_cache_salt), {"u": 65536})
        self.assertEqual(self.look(adapter, keys), [False, False, True, False])
        # What went by itself is found out by the next lookup.
        self.client().remove(object_key_text(keys[2]))
        self.look(adapter, keys)
        self.assertEqual(listener.deleted, keys[:3])

        def fails(*args):
            raise RuntimeError("listener")

        listener.on_l2_keys_stored = listener.on_l2_keys_accessed = fails
        self.assertTrue(self.store(adapter, keys, self.objs(4)).is_successful())
        self.assertEqual(self.load(adapter, keys, self.objs(4, fill=False)), [True] * 4)

    def test_figures(self):
        adapter = self.adapter()
        self.store(adapter, self.keys(4), self.objs(4, 1 << 20))
        usage = adapter.get_usage()
        self.assertEqual(usage.total_capacity_bytes, 64 << 20)
        self.assertGreaterEqual(usage.total_bytes_used, 4 << 20)
        self.assertEqual(usage.usage_fraction, usage.total_bytes_used / (64 << 20))
        self.assertFalse(adapter.supports_global_eviction)
        # The thread says that it has a hand free after it has handed the result on.
        wait_until(lambda: adapter.report_status()["pending_stores"] == 0)
        status = adapter.report_status()
        self.assertTrue(status["is_healthy"])
        self.assertEqual((status["type"], status["stored"]), ("tarn", 4))
        self.assertEqual(
            status["url"], f"127.0.0.1:{self.server.port}".join(["tarn://", ""]) + self.query
        )

    def test_parameters(self):
        url = self.server.url
        for params, text in (
            ({}, "url"),
            (None, "url"),
            ({"url": url}, 'needs "namespace"'),
            ({"url": url, "namespace": "a@b"}, "without @"),
            ({"url": url, "namespace": "", "locks": 1}, "locks"),
            ({"url": url, "namespace": "", "load_threads": 0}, "load_threads"),
            (
                {"url": url, "namespace": "", "lock_ms": "5s"},
                "lock_ms is a number from 0 to 65536, not '5s'",
            ),
            ({"url": url, "namespace": "", "lock_ms": True}, "lock_ms"),
        ):
            with self.assertRaisesRegex(ValueError, text), self.assertLogs(
                "tarn.lmcache.l2", "ERROR"
            ) as log:
                TarnL2Adapter(params)
            self.assertRegex(log.output[0], text)
        as_text = self.adapter(lock_ms="70", load_threads="3")
        self.assertEqual((as_text._is["lock_ms"], as_text._is["load_threads"]), (70, 3))
        with self.assertRaises(tarn.Error):
            TarnL2Adapter({"url": "tarn://127.0.0.1:1?timeout_ms=200&retries=0", "namespace": ""})
        memory = bytearray(1 << 16)
        desc = type("L1MemoryDesc", (), {"size": len(memory), "align_bytes": 4096})()
        desc.ptr = tarn.memory.pin(memory, writable=True).address
        with_memory = TarnL2Adapter(
            {"url": url, "namespace": ""}, l1_memory_desc=desc, of_a_later_version=1
        )
        self.assertTrue(self.store(with_memory, self.keys(1), self.objs(1)).is_successful())
        with_memory.close()


class Locks(L2Test):
    pool = "16mb"
    server_args = ("--max-lease", "60s")

    def test_what_was_found_is_not_evicted(self):
        adapter, keys, more = self.adapter(lock_ms=60000), self.keys(8), self.keys(60)
        self.client().command("FLUSHALL")  # until it is full there is room for all that is put
        self.store(adapter, keys[:5] + keys[6:], self.objs(7, 256 << 10))
        self.assertEqual(self.look(adapter, keys), [True] * 5 + [False] + [True] * 2)
        for key in more:
            self.store(adapter, [key], self.objs(1, 1 << 20))
        into = self.objs(8, 256 << 10, fill=False)
        self.assertEqual(self.load(adapter, keys, into), [True] * 5 + [False] + [True] * 2)

    def test_a_lock_ends_by_itself(self):
        adapter, keys, more = self.adapter(lock_ms=50), self.keys(8), self.keys(60)
        self.store(adapter, keys, self.objs(8, 256 << 10))
        self.assertEqual(self.look(adapter, keys), [True] * 8)
        time.sleep(0.2)
        for key in more:
            self.store(adapter, [key], self.objs(1, 1 << 20))
        self.assertEqual(self.look(adapter, keys), [False] * 8)

    def test_twice_the_pool(self):
        adapter, keys = self.adapter(lock_ms=0), self.keys(64)
        for first in range(0, 64, 8):
            self.assertTrue(
                self.store(
                    adapter, keys[first : first + 8], self.objs(8, 512 << 10)
                ).is_successful()
            )
        found = self.look(adapter, keys)
        self.assertGreater(sum(found), 16)
        into = self.objs(64, 512 << 10, fill=False)
        self.assertEqual(self.load(adapter, keys, into), found)
        self.check(
            [obj for obj, yes in zip(into, found) if yes],
            [i % 8 for i, yes in enumerate(found) if yes],
        )


class Leases(L2Test):
    server_args = ("--max-leases-per-client", "4")

    def test_more_than_may_be_leased(self):
        """Lookups go on without locks."""
        adapter, keys = self.adapter(), self.keys(9)
        self.store(adapter, keys, self.objs(9, 4096))
        self.assertEqual(self.look(adapter, keys), [True] * 9)


class Ends(L2Test):
    query = "?timeout_ms=3000&connect_timeout_ms=1000&retries=1&backoff_min_ms=20&backoff_max_ms=50"

    def test_killed_and_back(self):
        adapter, keys = self.adapter(), self.keys(3)
        self.store(adapter, keys, self.objs(3))
        self.server.kill()
        self.assertFalse(self.store(adapter, keys, self.objs(3)).is_successful())
        self.assertEqual(self.look(adapter, keys), [False] * 3)
        self.assertEqual(self.load(adapter, keys, self.objs(3, fill=False)), [False] * 3)
        adapter.delete(keys)
        self.assertFalse(adapter.report_status()["is_healthy"])
        self.assertIsNotNone(adapter.get_usage())
        self.server.start()
        wait_until(lambda: adapter.report_status()["is_healthy"])
        self.assertTrue(self.store(adapter, keys, self.objs(3)).is_successful())
        self.assertEqual(self.load(adapter, keys, self.objs(3, fill=False)), [True] * 3)

    def test_close_waits_for_loads(self):
        """When close has returned, no memory is written any more; what had not begun has failed."""
        adapter, keys = self.adapter(load_threads=1), self.keys(4)
        self.store(adapter, keys, self.objs(4, 1 << 20))
        self.server.pause()
        try:
            tasks = [
                adapter.submit_load_task([key], self.objs(1, 1 << 20, fill=False)) for key in keys
            ]
            time.sleep(0.1)  # by then one has begun, as a rule
            closing = threading.Thread(target=adapter.close)
            closing.start()
            wait_until(
                lambda: adapter.report_status()["pending_loads"] <= 1,
                what="what has not begun ends",
            )
        finally:
            self.server.resume()
        closing.join()
        results = [adapter.query_load_result(task) for task in tasks]
        self.assertNotIn(None, results)
        self.assertEqual([bits.test(0) for bits in results[1:]], [False] * 3)
        task = adapter.submit_store_task(keys, self.objs(4))
        self.assertFalse(adapter.pop_completed_store_tasks()[task].is_successful())
        self.assertFalse(adapter.report_status()["is_healthy"])
        adapter.close()

    def test_too_many_tasks(self):
        """Bounded: those over the bound fail at once, with an event."""
        self.query = "?timeout_ms=60000&failover_ms=60000"
        adapter, keys = self.adapter(store_threads=1, max_pending=2), self.keys(5)
        self.server.pause()
        try:
            tasks = [adapter.submit_store_task([key], self.objs(1)) for key in keys]
            ended = adapter.pop_completed_store_tasks()
            self.assertEqual(set(ended), set(tasks[2:]))
            self.assertFalse(any(result.is_successful() for result in ended.values()))
        finally:
            self.server.resume()
        more = {}
        while len(more) < 2:
            more.update(self.wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks))
        self.assertTrue(all(result.is_successful() for result in more.values()))


if __name__ == "__main__":
    unittest.main()
