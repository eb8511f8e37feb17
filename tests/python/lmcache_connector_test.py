"""TarnConnector against servers, as LMCache drives it: coroutines on an event loop, memory objects
with counted references."""

import asyncio
import ctypes
import logging
import os
import threading
import time
import unittest

from harness import Server, TarnTest, together, wait_until
from lmcache_stubs import (
    Backend,
    BFLOAT16,
    BytesObj,
    Config,
    Context,
    FLOAT8,
    Key,
    MemoryFormat,
    Metadata,
    Size,
    Wrapped,
    pattern,
)

import tarn
from tarn.lmcache import TarnConnector, TarnConnectorAdapter, _base
from tarn.lmcache.metadata import HEADER_BYTES, Layout


class Logs(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class SlowClient:
    """Gets of one key wait until `go` is set; `passed` counts the others that have ended."""

    def __init__(self, client, slow):
        self._client, self._slow, self.go, self.passed = client, slow, threading.Event(), 0
        self.go.set()

    def __getattr__(self, name):
        return getattr(self._client, name)

    def get_into_many(self, keys, *args):
        if self._slow in keys:
            self.go.wait(10)
        result = self._client.get_into_many(keys, *args)
        self.passed += self._slow not in keys
        return result


class ConnectorTest(TarnTest):
    """`self.connector()` makes connectors that are closed, and at the end all memory must have come
    back."""

    query = ""

    def setUp(self):
        self.backend, self.metadata, self.logs = Backend(), Metadata(), Logs()
        logger = logging.getLogger("tarn.lmcache")
        logger.addHandler(self.logs)
        propagate, logger.propagate = logger.propagate, False
        self.addCleanup(logger.removeHandler, self.logs)
        self.addCleanup(setattr, logger, "propagate", propagate)
        self._n = 0
        # As with LMCache installed.
        formats, _base.MemoryFormat = _base.MemoryFormat, MemoryFormat
        self.addCleanup(setattr, _base, "MemoryFormat", formats)

    def connector(self, backend=None, metadata=None, url=None, **options):
        connector = TarnConnector(
            url or self.server.url + self.query,
            None,
            backend or self.backend,
            Config(),
            metadata or self.metadata,
            **options,
        )
        self.addCleanup(lambda: asyncio.run(connector.close()))
        return connector

    def keys(self, n, **kwargs):
        """New ones every time."""
        self._n += 1
        return [
            Key((hash(self.id()) & 0xFFFFFFFF) << 32 | self._n << 16 | i, **kwargs)
            for i in range(n)
        ]

    def chunks(self, n, tokens=None, metadata=None):
        return [(metadata or self.metadata).chunk(self.backend, i, tokens) for i in range(n)]

    def store(self, connector, keys, objs):
        """As LMCache does: the reference that it took is dropped by its wrapper; the last one by
        us."""
        for obj in objs:
            obj.ref_count_up()
        asyncio.run(Wrapped(connector).batched_put(keys, objs))
        for obj in objs:
            if not isinstance(obj, BytesObj):
                self.assertEqual(obj.get_ref_count(), 1)
            obj.ref_count_down()

    def load(self, connector, keys):
        return asyncio.run(connector.batched_get(keys))

    def check(self, objs, seeds, shape=None):
        """The objects hold what was put; they are given back."""
        for obj, seed in zip(objs, seeds):
            self.assertIsNotNone(obj)
            self.assertEqual(obj.get_ref_count(), 1)
            self.assertEqual(obj.get_shape(), shape or self.metadata.get_shapes()[0])
            self.assertEqual(bytes(obj.byte_array.cast("B")), pattern(seed, obj.get_size()))
            obj.ref_count_down()
        self.assertEqual(len(objs), len(seeds))

    def nothing_left(self, backend=None):
        backend = backend or self.backend
        self.assertEqual((backend.alive, backend.used), (0, 0))


class Chunks(ConnectorTest):
    def test_batch(self):
        connector, keys = self.connector(), self.keys(16)
        self.store(connector, keys, self.chunks(16))
        self.check(self.load(connector, keys), range(16))
        self.nothing_left()

    def test_single(self):
        connector, [key] = self.connector(), self.keys(1)

        async def run():
            obj = self.metadata.chunk(self.backend, 5)
            await connector.put(key, obj)
            self.assertEqual(obj.get_ref_count(), 1)
            obj.ref_count_down()
            return await connector.get(key), await connector.exists(key)

        found, exists = asyncio.run(run())
        self.assertTrue(exists)
        self.check([found], [5])
        self.nothing_left()

    def test_round_trips(self):
        """One object is one round trip for a get; a put has one for space and one to end. A batch
        has no more."""
        connector = self.connector(get_threads=1, put_threads=1)

        def trips(what, *args):
            before = connector._client.stats()["round_trips"]
            result = what(*args)
            return connector._client.stats()["round_trips"] - before, result

        warm = self.keys(1)
        self.store(connector, warm, self.chunks(1))
        self.check(self.load(connector, warm), [0])
        for n in (1, 16):
            keys = self.keys(n)
            used, _ = trips(self.store, connector, keys, self.chunks(n))
            self.assertLessEqual(used, 2)
            used, objs = trips(self.load, connector, keys)
            self.assertEqual(used, 1)
            self.check(objs, range(n))
            used, hits = trips(connector.batched_contains, keys)
            self.assertEqual((used, hits), (1, n))
        self.nothing_left()

    def test_one_object_in_the_pool(self):
        connector, [key] = self.connector(), self.keys(1)
        self.store(connector, [key], self.chunks(1))
        value = self.client().get(connector.name(key))
        self.assertEqual(len(value), HEADER_BYTES + self.metadata.full_bytes())
        self.assertEqual(Layout.unpack(value).groups, (("bfloat16", (2, 4, 16, 256)),))
        self.assertEqual(value[HEADER_BYTES:], pattern(0, self.metadata.full_bytes()))

    def test_large_batch_on_several_threads(self):
        metadata = Metadata(layers=8, tokens=64, hidden=4096)
        connector, keys = self.connector(Backend(256 << 20), metadata), self.keys(6)
        self.assertEqual(metadata.full_bytes(), 8 << 20)
        self.store(connector, keys, self.chunks(6, metadata=metadata))
        self.check(self.load(connector, keys), range(6), metadata.get_shapes()[0])
        self.nothing_left()

    def test_partial_chunks(self):
        connector, keys = self.connector(), self.keys(4)
        objs = self.chunks(2) + self.chunks(1, tokens=5) + self.chunks(1, tokens=1)
        self.store(connector, keys, objs)
        full, second, partial, one = self.load(connector, keys)
        self.check([full, second], [0, 1])
        self.assertEqual(partial.get_size(), 2 * 4 * 5 * 256 * 2)
        self.assertEqual(partial.meta.shapes, [partial.get_shape()])
        self.check([partial], [0], Size([2, 4, 5, 256]))
        self.check([one], [0], Size([2, 4, 1, 256]))
        self.nothing_left()

    def test_partial_chunk_that_was_loaded_is_stored_again(self):
        connector, keys = self.connector(), self.keys(2)
        self.store(connector, keys[:1], self.chunks(1, tokens=3))
        [partial] = self.load(connector, keys[:1])
        self.store(connector, keys[1:], [partial])
        self.check(self.load(connector, keys[1:]), [0], Size([2, 4, 3, 256]))
        self.nothing_left()

    def test_mla_and_float8(self):
        self.metadata = Metadata(layers=61, tokens=8, hidden=576, dtype=FLOAT8, use_mla=True)
        connector, keys = self.connector(), self.keys(3)
        self.store(connector, keys, self.chunks(3))
        objs = self.load(connector, keys)
        self.assertEqual([obj.get_memory_format() for obj in objs], [MemoryFormat.KV_MLA_FMT] * 3)
        self.check(objs, range(3))

    def test_groups(self):
        self.metadata = Metadata(groups=3)
        connector, keys = self.connector(), self.keys(3)
        self.store(connector, keys, self.chunks(2) + self.chunks(1, tokens=5))
        first, second, partial = self.load(connector, keys)
        self.assertEqual(first.meta.shapes, self.metadata.get_shapes())
        self.assertEqual(partial.meta.shapes, self.metadata.get_shapes(5))
        self.check([first, second], [0, 1])
        self.check([partial], [0], Size([2, 4, 5, 256]))
        self.nothing_left()

    def test_layers(self):
        """Chunks of one layer: their layout is learned from the first that is read, and takes one
        round trip from then on."""
        connector, keys = self.connector(), self.keys(4, layer=7)

        def layer(tokens, seed):
            return self.backend.allocate(
                Size([tokens, 2, 256]), BFLOAT16, MemoryFormat.KV_T2D
            ).fill(seed)

        self.store(connector, keys, [layer(16, 0), layer(16, 1), layer(9, 2), layer(16, 3)])
        self.check(self.load(connector, keys[2:3]), [2], Size([9, 2, 256]))
        self.check(self.load(connector, keys[:2]), [0, 1], Size([16, 2, 256]))
        before = connector._client.stats()["round_trips"]
        self.check(self.load(connector, keys[:2]), [0, 1], Size([16, 2, 256]))
        self.assertEqual(connector._client.stats()["round_trips"] - before, 1)
        self.check(self.load(connector, keys[2:3]), [2], Size([9, 2, 256]))
        self.nothing_left()

    def test_other_layout_than_the_configuration_says(self):
        """Larger, smaller, and of another dtype than expected: found out, got, and expected from
        then on."""
        for shape, dtype in (
            ((2, 4, 16, 512), BFLOAT16),
            ((2, 4, 16, 128), BFLOAT16),
            ((2, 4, 16, 512), FLOAT8),
        ):
            connector, keys = self.connector(), self.keys(2)
            objs = [self.backend.allocate(Size(shape), dtype).fill(i) for i in range(2)]
            self.store(connector, keys, objs)
            self.check(self.load(connector, keys), range(2), Size(shape))
            before = connector._client.stats()["round_trips"]
            self.check(self.load(connector, keys), range(2), Size(shape))
            self.assertEqual(connector._client.stats()["round_trips"] - before, 1)
        self.nothing_left()

    def test_compressed(self):
        connector, keys = self.connector(), self.keys(3)
        values = [pattern(i, 1000 + 777 * i) for i in range(3)]
        self.store(connector, keys, [BytesObj(value) for value in values])
        for _ in range(2):
            objs = self.load(connector, keys)
            self.assertEqual([bytes(obj.byte_array) for obj in objs], values)
            self.assertEqual([obj.get_memory_format().name for obj in objs], ["BINARY_BUFFER"] * 3)
        self.nothing_left()

    def test_allocator_without_batches(self):
        backend = Backend(with_batches=False)
        connector, keys = self.connector(backend), self.keys(3)
        self.store(connector, keys, self.chunks(3))
        self.check(self.load(connector, keys), range(3))
        self.nothing_left(backend)

    def test_objects_without_an_address(self):
        """Older memory objects have only byte_array."""
        connector, keys = self.connector(), self.keys(1)
        [obj] = self.chunks(1)

        class Older(type(obj)):
            data_ptr = None

            @property
            def byte_array(self):
                return memoryview((ctypes.c_ubyte * len(self._raw)).from_buffer(self._raw))

        obj.__class__ = Older
        self.store(connector, keys, [obj])
        self.check(self.load(connector, keys), [0])

    def test_put_again(self):
        connector, keys = self.connector(), self.keys(2)
        self.store(connector, keys, self.chunks(2))
        self.store(connector, keys, self.chunks(2))
        self.check(self.load(connector, keys), range(2))
        self.assertEqual(self.logs.lines, [])

    def test_keys(self):
        connector, odd = self.connector(), [
            Key(1, model="a b/ü@c%d"),
            Key(2, tag="@tag%" + "x" * 3000),
        ]
        odd.append(Key(2, tag="@tag%" + "x" * 2999 + "y"))
        self.store(connector, odd, self.chunks(3))
        self.check(self.load(connector, odd), range(3))
        self.assertTrue(connector.name(odd[0]).startswith(odd[0].to_string() + "@"))
        self.assertLessEqual(max(len(connector.name(key).encode()) for key in odd), 1024)
        self.assertNotEqual(connector.name(odd[1]), connector.name(odd[2]))


class Replaces(ConnectorTest):
    """Who means to replace what is there, and who does not."""

    def probe(self):
        """The key of LMCache's health check: the same each time, for each rank."""
        return Key(0, model="test")

    def check_health(self, connector, seed):
        """RemoteBackendHealthCheck._put_and_get_check"""
        key = self.probe()
        self.store(connector, [key], [self.metadata.chunk(self.backend, seed)])
        self.assertTrue(connector.exists_sync(key))
        [got] = self.load(connector, [key])
        same = bytes(got.byte_array) == pattern(seed, self.metadata.full_bytes())
        got.ref_count_down()
        return same

    def test_a_cache_that_was_switched_off_comes_back(self):
        ranks = [self.connector() for _ in range(3)]
        for turn in range(3):
            for rank, connector in enumerate(ranks):
                self.assertTrue(self.check_health(connector, 10 * turn + rank), (turn, rank))
        self.nothing_left()

    def test_checks_of_several_ranks_at_once(self):
        ranks, errors = [self.connector() for _ in range(4)], []

        def run(rank):
            for turn in range(8):
                if not self.check_health(ranks[rank], 100 * rank + turn):
                    errors.append((rank, turn))

        together(run, range(len(ranks)))
        self.assertEqual(errors, [])
        self.nothing_left()

    def test_keys_of_other_models_are_no_chunks_of_ours(self):
        connector, [key] = self.connector(), self.keys(1, model="checker")
        for seed in (1, 2):
            self.store(connector, [key], [self.metadata.chunk(self.backend, seed)])
            self.check(self.load(connector, [key]), [seed])

    def test_a_chunk_that_is_there_stays(self):
        connector, keys = self.connector(), self.keys(2)
        self.store(connector, keys, self.chunks(2))
        self.store(connector, keys, [self.metadata.chunk(self.backend, 7 + i) for i in range(2)])
        self.check(self.load(connector, keys), [0, 1])

    def test_a_value_that_could_not_be_used_is_replaced(self):
        connector, client, keys = self.connector(), self.client(), self.keys(3)
        client.put(connector.name(keys[1]), b"no chunk at all")
        self.store(connector, keys, self.chunks(3))
        objs = self.load(connector, keys)
        self.assertEqual([obj is None for obj in objs], [False, True, False])
        self.check([objs[0], objs[2]], [0, 2])
        self.store(connector, keys, self.chunks(3))  # it was computed anew
        self.check(self.load(connector, keys), range(3))


class Lookups(ConnectorTest):
    def test_lookups(self):
        connector, keys = self.connector(), self.keys(6)
        self.store(connector, keys[:3] + keys[4:5], self.chunks(4))

        async def run():
            self.assertTrue(await connector.exists(keys[0]))
            self.assertFalse(await connector.exists(keys[3]))
            self.assertEqual(await connector.batched_async_contains("id", keys), 3)
            self.assertEqual(await connector.batched_async_contains("id", keys, pin=True), 3)
            self.assertEqual(await connector.ping(), 0)
            listed = await connector.list()
            for i, key in enumerate(keys):
                self.assertEqual(key.to_string() in listed, i < 3 or i == 4)
            objs = await connector.batched_get_non_blocking("id", keys)
            self.check(objs, range(3))
            objs = await connector.batched_get(keys)
            self.assertEqual(
                [obj is None for obj in objs], [False, False, False, True, False, True]
            )
            self.check([obj for obj in objs if obj is not None], range(4))

        asyncio.run(run())
        self.assertTrue(connector.exists_sync(keys[4]))
        self.assertFalse(connector.exists_sync(keys[5]))
        self.assertEqual(connector.batched_contains(keys), 3)
        self.assertEqual(connector.batched_contains([]), 0)
        self.assertTrue(connector.remove_sync(keys[1]))
        self.assertFalse(connector.remove_sync(keys[1]))
        self.assertEqual(connector.batched_contains(keys), 1)
        self.assertEqual(self.load(connector, []), [])
        for name in dir(connector):
            if name.startswith("support_"):
                self.assertTrue(getattr(connector, name)(), name)
        self.nothing_left()

    def test_misses_leave_nothing(self):
        connector, keys = self.connector(), self.keys(5)
        self.assertEqual(self.load(connector, keys), [None] * 5)
        self.assertEqual(asyncio.run(connector.batched_get_non_blocking("id", keys)), [])
        self.assertIsNone(asyncio.run(connector.get(keys[0])))
        self.nothing_left()
        self.assertEqual(self.logs.lines, [])


class WhatIsNoChunk(ConnectorTest):
    def test_values_without_a_good_header(self):
        connector, client = self.connector(), self.client()
        [good] = self.keys(1)
        self.store(connector, [good], self.chunks(1))
        value = client.get(connector.name(good))
        bad = {
            "raw bytes": os.urandom(len(value)),
            "other version": value[:4] + b"\x02" + value[5:],
            "short": value[:100],
            "header alone": value[:HEADER_BYTES],
            "cut": value[:-1],
            "longer": value + b"x",
            "larger than expected": value + bytes(1 << 20),
            "empty": b"",
            "dtype": value[:32] + b"float32\0\0" + value[41:],
        }
        keys = self.keys(len(bad))
        for key, data in zip(keys, bad.values()):
            client.put(connector.name(key), data)
        for key, what in zip(keys, bad):
            self.assertEqual(self.load(connector, [key]), [None], what)
        objs = self.load(connector, keys + [good])
        self.assertEqual(objs[:-1], [None] * len(bad))
        self.check(objs[-1:], [0])
        self.nothing_left()
        # Said once, not for each.
        self.assertEqual(
            len([line for line in self.logs.lines if "header" in line or "is not read" in line]),
            1,
            self.logs.lines,
        )

    def test_dtype_or_format_that_this_side_does_not_have(self):
        connector, client, [a, b, good] = self.connector(), self.client(), self.keys(3)
        for key, layout in (
            (a, Layout("KV_2LTD", (("float7_e4m2", (4, 100)),), 400)),
            (b, Layout("KV_NEW", (("bfloat16", (4, 50)),), 400)),
        ):
            head = bytearray(HEADER_BYTES)
            layout.pack_into(head)
            client.put(connector.name(key), bytes(head) + bytes(400))
        self.store(connector, [good], self.chunks(1))
        self.assertEqual(self.load(connector, [a]), [None])
        self.assertEqual(self.load(connector, [b]), [None])
        self.check(self.load(connector, [good]), [0])
        self.nothing_left()
        self.assertTrue(self.logs.lines)


class Memory(ConnectorTest):
    def test_no_memory(self):
        """The leading ones get what memory there is; the others are misses."""
        backend = Backend(capacity=3 * self.metadata.full_bytes())
        connector, keys = self.connector(backend), self.keys(5)
        self.store(connector, keys, self.chunks(5))
        objs = self.load(connector, keys)
        self.assertEqual([obj is None for obj in objs], [False] * 3 + [True] * 2)
        self.assertEqual(self.load(connector, keys), [None] * 5)
        self.check(objs[:3], range(3))
        self.nothing_left(backend)
        self.assertIn("no CPU memory", self.logs.lines[0])

    def test_get_that_nobody_waits_for(self):
        connector, keys = self.connector(), self.keys(4)
        self.store(connector, keys, self.chunks(4))
        self.server.pause()
        try:

            async def run():
                for _ in range(3):
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(connector.batched_get(keys), 0.1)

            asyncio.run(run())
            self.assertGreater(self.backend.alive, 0)
        finally:
            self.server.resume()
        asyncio.run(connector.close())
        self.nothing_left()

    def test_get_of_which_one_part_is_done_when_nobody_waits_any_more(self):
        metadata = Metadata(layers=8, tokens=64, hidden=4096)
        connector, keys = self.connector(metadata=metadata), self.keys(6)
        self.backend.capacity = 256 << 20
        connector._client = SlowClient(connector._client, connector.name(keys[-1]))
        for key, obj in zip(keys, self.chunks(6, metadata=metadata)):
            self.store(connector, [key], [obj])
        connector._client.go.clear()

        async def run():
            task, began = asyncio.ensure_future(connector.batched_get(keys)), time.monotonic()
            while connector._client.passed == 0 and time.monotonic() - began < 60:
                await asyncio.sleep(0.01)
            self.assertGreater(connector._client.passed, 0)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(task, 0.5)
            self.assertGreater(self.backend.alive, 0)
            connector._client.go.set()

        asyncio.run(run())
        asyncio.run(connector.close())
        self.nothing_left()

    def test_put_that_nobody_waits_for(self):
        """The wrapper drops its reference at once; the memory must stay until the thread has read
        it."""
        connector, keys, objs = self.connector(), self.keys(3), self.chunks(3)
        self.server.pause()
        try:

            async def run():
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(Wrapped(connector).batched_put(keys, objs), 0.1)

            asyncio.run(run())
            self.assertEqual([obj.get_ref_count() for obj in objs], [1] * 3)
        finally:
            self.server.resume()
        asyncio.run(connector.close())
        self.nothing_left()
        self.check(self.load(self.connector(), keys), range(3))

    def test_backlog(self):
        """Puts that wait are bounded: further ones are dropped, and said so once."""
        connector, keys = self.connector(put_threads=1, put_backlog=2), self.keys(6)
        self.server.pause()
        try:

            async def run():
                objs = self.chunks(6)
                tasks = [
                    asyncio.ensure_future(Wrapped(connector).batched_put([k], [o]))
                    for k, o in zip(keys, objs)
                ]
                began = time.monotonic()
                while sum(task.done() for task in tasks) < 4 and time.monotonic() - began < 60:
                    await asyncio.sleep(0.01)
                self.assertEqual([task.done() for task in tasks], [False] * 2 + [True] * 4)
                self.server.resume()
                await asyncio.gather(*tasks)

            asyncio.run(run())
        finally:
            self.server.resume()
        self.nothing_left()
        self.assertEqual(connector.batched_contains(keys), 2)
        self.assertEqual(len(self.logs.lines), 1)

    def test_closed(self):
        connector, keys = self.connector(), self.keys(2)
        self.store(connector, keys[:1], self.chunks(1))
        asyncio.run(connector.close())
        asyncio.run(connector.close())
        self.store(connector, keys[1:], self.chunks(1))
        self.assertEqual(self.load(connector, keys), [None, None])
        self.assertFalse(connector.exists_sync(keys[0]))
        self.assertEqual(connector.batched_contains(keys), 0)
        self.nothing_left()

    def test_close_while_puts_wait(self):
        connector, keys = self.connector(put_threads=1), self.keys(5)
        self.server.pause()

        async def run():
            puts = [
                asyncio.ensure_future(Wrapped(connector).batched_put([k], self.chunks(1)))
                for k in keys
            ]
            await asyncio.sleep(0.1)
            closing = asyncio.ensure_future(connector.close())
            await asyncio.sleep(0.1)
            self.server.resume()
            await asyncio.gather(closing, *puts)

        try:
            asyncio.run(run())
        finally:
            self.server.resume()
        self.nothing_left()


class FullPool(ConnectorTest):
    pool = "16mb"
    server_args = ("--hard-pin-ratio", "1", "--hard-pin-user-ratio", "1")

    def test_twice_the_pool(self):
        """Cold chunks make room; the newest are there, and whatever is read is right."""
        self.metadata = Metadata(layers=4, tokens=64, hidden=512)
        connector, keys = self.connector(), self.keys(64)
        self.assertEqual(self.metadata.full_bytes(), 512 << 10)
        for first in range(0, 64, 8):
            self.store(connector, keys[first : first + 8], self.chunks(8))
        objs = self.load(connector, keys)
        there = [i for i, obj in enumerate(objs) if obj is not None]
        self.assertGreater(len(there), 16)
        self.assertLess(len(there), 33)
        self.assertIn(62, there)
        self.check([objs[i] for i in there], [i % 8 for i in there])
        self.nothing_left()
        self.assertEqual(self.logs.lines, [])

    def test_pinned_full(self):
        """No room at all: dropped, told once, and no reference lost; there is room again when the
        pins go."""
        client, pinned = self.client(), [f"pin{i}" for i in range(40)]
        for key in pinned:
            try:
                client.put(key, bytes(1 << 20), pin="hard")
            except tarn.NoSpace:
                break
        connector, keys = self.connector(), self.keys(16)
        self.metadata = Metadata(layers=4, tokens=64, hidden=512)
        for key in keys:
            self.store(connector, [key], self.chunks(1))
        self.assertEqual(len(self.logs.lines), 1, self.logs.lines)
        self.assertIn("ENOSPACE", self.logs.lines[0])
        self.nothing_left()
        for key in pinned:
            client.set_pin(key, None)
        self.store(connector, keys[:1], self.chunks(1))
        self.assertTrue(connector.exists_sync(keys[0]))

    def test_a_lookup_that_pins_protects(self):
        self.metadata = Metadata(layers=4, tokens=64, hidden=512)
        connector, keys, more = self.connector(pin_ms=60000), self.keys(8), self.keys(64)
        self.store(connector, keys, self.chunks(8))
        self.assertEqual(asyncio.run(connector.batched_async_contains("id", keys, pin=True)), 8)
        for first in range(0, 64, 8):
            self.store(connector, more[first : first + 8], self.chunks(8))
        self.check(self.load(connector, keys), range(8))


class DeadServer(ConnectorTest):
    query = "?timeout_ms=3000&connect_timeout_ms=1000&retries=1&backoff_min_ms=20&backoff_max_ms=50"

    def test_killed_and_back(self):
        connector, keys = self.connector(), self.keys(3)
        self.store(connector, keys, self.chunks(3))
        self.server.kill()

        async def dead():
            self.assertEqual(await connector.batched_get(keys), [None] * 3)
            self.assertIsNone(await connector.get(keys[0]))
            self.assertFalse(await connector.exists(keys[0]))
            self.assertEqual(await connector.batched_async_contains("id", keys), 0)
            self.assertEqual(await connector.batched_get_non_blocking("id", keys), [])
            self.assertGreater(await connector.ping(), 0)
            self.assertEqual(await connector.list(), [])

        asyncio.run(dead())
        self.assertFalse(connector.exists_sync(keys[0]))
        self.assertFalse(connector.remove_sync(keys[0]))
        self.assertEqual(connector.batched_contains(keys), 0)
        self.store(connector, keys, self.chunks(3))
        self.store(connector, keys, self.chunks(3))
        self.nothing_left()
        self.assertLessEqual(
            len([line for line in self.logs.lines if " put " in line]), 2, self.logs.lines
        )
        self.server.start()
        wait_until(lambda: asyncio.run(connector.exists(keys[0])) is False and connector._gate.open)
        self.assertEqual(self.load(connector, keys), [None] * 3)
        self.store(connector, keys, self.chunks(3))
        self.check(self.load(connector, keys), range(3))
        self.assertEqual(asyncio.run(connector.ping()), 0)
        self.nothing_left()

    def test_silent(self):
        """A server that does not answer costs one call its deadline, and the next ones nothing; a
        ping finds it back."""
        connector, keys = self.connector(
            url=self.server.url + "?timeout_ms=2000&retries=0"
        ), self.keys(3)
        patient = self.connector(url=self.server.url)
        self.store(patient, keys, self.chunks(3))
        wait_until(lambda: asyncio.run(connector.ping()) == 0)
        self.server.pause()
        try:
            self.assertEqual(self.load(connector, keys), [None] * 3)
            begin = time.monotonic()
            for _ in range(20):
                self.assertEqual(self.load(connector, keys), [None] * 3)
                self.assertEqual(connector.batched_contains(keys), 0)
                self.store(connector, keys, self.chunks(3))
            self.assertLess(time.monotonic() - begin, 60)  # 120 s, if each of them waited
        finally:
            self.server.resume()
        wait_until(lambda: asyncio.run(connector.ping()) == 0)
        self.assertTrue(
            wait_until(lambda: asyncio.run(connector.exists(keys[0])), what="it is found again")
        )
        self.check(self.load(patient, keys), range(3))
        self.nothing_left()

    def test_killed_in_the_middle(self):
        """Whatever was under way ends; no reference is lost."""
        self.metadata = Metadata(layers=8, tokens=64, hidden=1024)
        connector, keys = self.connector(), self.keys(24)
        with Server("64mb") as server:
            connector = self.connector(url=server.url + self.query)

            async def run():
                objs = [self.metadata.chunk(self.backend, i) for i in range(12)]
                puts = [
                    asyncio.ensure_future(Wrapped(connector).batched_put([k], [o]))
                    for k, o in zip(keys, objs)
                ]
                gets = [asyncio.ensure_future(connector.get(k)) for k in keys]
                await asyncio.sleep(0.003)
                server.kill()
                await asyncio.gather(*puts)
                return await asyncio.gather(*gets)

            objs = asyncio.run(run())
        for i, obj in enumerate(objs):
            if obj is not None:
                self.check([obj], [i])
        self.nothing_left()

    def test_no_server_at_the_start(self):
        with self.assertRaises(tarn.Error):
            self.connector(url="tarn://127.0.0.1:1" + self.query)


class Many(ConnectorTest):
    def test_loops_and_threads_at_once(self):
        """Three loops, and look-ups from plain threads, on keys that all of them put and remove."""
        connector, other = self.connector(), self.connector()
        keys, reads = self.keys(24), [0]
        began = time.monotonic()

        def goes_on():
            """Two seconds, and longer where that was not enough to read much."""
            return time.monotonic() - began < (2 if reads[0] > 50 else 60)

        async def loop(which, seed):
            turn = 0
            while goes_on():
                turn += 1
                at = (turn * 7 + seed * 5) % 20
                some = list(range(at, at + 4))
                objs = [self.metadata.chunk(self.backend, i) for i in some]
                await Wrapped(which).batched_put([keys[i] for i in some], objs)
                results = await asyncio.gather(
                    which.batched_get([keys[i] for i in some]), which.get(keys[at])
                )
                for i, obj in zip(some + [at], results[0] + [results[1]]):
                    if obj is not None:
                        if bytes(obj.byte_array.cast("B")) != pattern(i, obj.get_size()):
                            raise AssertionError("wrong bytes")
                        obj.ref_count_down()
                        reads[0] += 1

        def lookups():
            while goes_on():
                connector.batched_contains(keys)
                connector.exists_sync(keys[3])
                other.remove_sync(keys[11])

        targets = [lookups] + [
            (lambda which=which, seed=seed: asyncio.run(loop(which, seed)))
            for seed, which in enumerate((connector, connector, other))
        ]
        together(lambda target: target(), targets)
        self.assertGreater(reads[0], 50)
        self.nothing_left()


class Adapter(ConnectorTest):
    def create(self, url, plugin_name=None, **extra):
        context = Context(url, self.backend, Config(**extra), self.metadata, plugin_name)
        connector = TarnConnectorAdapter().create_connector(context)
        self.addCleanup(lambda: asyncio.run(connector.close()))
        return connector

    def test_urls(self):
        adapter = TarnConnectorAdapter()
        for url in (
            "tarn://h:1",
            "tarn+sentinel://h:1/m",
            "plugin://tarn",
            "plugin://tarn.a",
            "plugin://tarn/",
        ):
            self.assertTrue(adapter.can_parse(url), url)
        for url in (
            "redis://h:1",
            "plugin://tarnish",
            "plugin://fs.tarn",
            "http://tarn://",
            "plugin://",
            "",
        ):
            self.assertFalse(adapter.can_parse(url), url)
        self.assertEqual(adapter.schema, "tarn://")

    def test_create(self):
        url, [key] = self.server.url, self.keys(1)
        self.store(self.create(url), [key], self.chunks(1))
        plugin = {
            "remote_storage_plugin.tarn.url": url,
            "remote_storage_plugin.tarn.b.url": url + "?max_lanes=2",
        }
        for connector in (
            self.create("plugin://tarn", **plugin),
            self.create("plugin://tarn.b", **plugin),
            self.create("plugin://tarn", plugin_name="tarn.b", **plugin),
            self.create(url, **{"tarn.get_threads": 1, "tarn.pin_ms": 100, "some.other": 1}),
        ):
            self.check(self.load(connector, [key]), [0])

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, r"remote_storage_plugin\.tarn\.url"):
            self.create("plugin://tarn")
        with self.assertRaisesRegex(ValueError, r"tarn\.threads"):
            self.create(self.server.url, **{"tarn.threads": 1})
        with self.assertRaisesRegex(ValueError, r"get_threads"):
            self.create(self.server.url, **{"tarn.get_threads": 0})
        for name in ("pin_ms", "replicas", "put_backlog"):
            for wrong in ("5 s", "", "1gb", -1, True, 1.5, 1 << 40):
                with self.assertRaisesRegex(ValueError, f"tarn.{name} is a number"):
                    self.create(self.server.url, **{f"tarn.{name}": wrong})

    def test_numbers_as_text(self):
        """As LMCache's environment variables and quoted YAML have them."""
        connector = self.create(
            self.server.url,
            **{"tarn.get_threads": "3", "tarn.pin_ms": " 70 ", "tarn.replicas": "0"},
        )
        self.assertEqual((connector._get_threads, connector._pin_ms), (3, 70))

    def test_options_of_one_plugin(self):
        """As LMCache's own connectors have theirs: they win over those of all plugins."""
        own = "remote_storage_plugin.tarn."
        extra = {
            own + "url": self.server.url,
            own + "class_name": "X",
            own + "b.url": self.server.url,
        }
        extra.update(
            {"tarn.get_threads": 3, "tarn.pin_ms": 50, own + "pin_ms": "70", own + "b.pin_ms": 90}
        )
        made = [
            self.create(f"plugin://{name}", plugin_name=name, **extra)
            for name in ("tarn", "tarn.b")
        ]
        self.assertEqual([(c._get_threads, c._pin_ms) for c in made], [(3, 70), (3, 90)])
        self.assertEqual(self.create(self.server.url, **extra)._pin_ms, 50)
        with self.assertRaisesRegex(
            ValueError, r"remote_storage_plugin\.tarn\.threads.*tarn\.get_threads"
        ):
            self.create("plugin://tarn", **extra, **{own + "threads": 1})

    def test_refusals_are_logged(self):
        """LMCache swallows what is raised, and tries again: the log says it once a minute."""
        with self.assertLogs("tarn.lmcache.adapter", "ERROR") as log:
            for _ in range(3):
                with self.assertRaises(ValueError):
                    self.create(self.server.url, **{"tarn.put_threads": "many"})
        self.assertEqual(len(log.output), 1)
        self.assertIn("tarn.put_threads is a number from 1 to 65536, not 'many'", log.output[0])

    def test_no_password_in_the_log(self):
        name = "remote_storage_plugin.tarn.url"
        with self.assertLogs("tarn.lmcache.adapter", "ERROR") as log:
            for url in ("redis://me:secret@h", "me:secret@h", "tarn://me:secret@127.0.0.1:0"):
                with self.assertRaises(ValueError) as raised:
                    self.create("plugin://tarn", plugin_name="tarn", **{name: url})
                self.assertNotIn("secret", str(raised.exception))
        self.assertNotIn("secret", "".join(log.output))

    def test_scheduler_without_memory(self):
        """LMCache's scheduler has no CPU backend: it only looks."""
        [key] = self.keys(1)
        self.store(self.create(self.server.url), [key], self.chunks(1))
        connector = TarnConnectorAdapter().create_connector(
            Context(self.server.url, None, Config(), self.metadata)
        )
        self.addCleanup(lambda: asyncio.run(connector.close()))
        self.assertTrue(connector.exists_sync(key))
        self.assertEqual(connector.batched_contains([key]), 1)

    def test_registration(self):
        """LMCache's pinned memory, which is a tensor: registered once, and not where there is
        none."""
        connector = self.create(self.server.url)
        connector.post_init()
        self.assertEqual(connector._registered, 0)
        memory = bytearray(1 << 16)
        address = tarn.memory.pin(memory, writable=True).address

        class Tensor:
            nbytes = len(memory)

            def data_ptr(self):
                return address

            def is_contiguous(self):
                return True

        self.backend.memory_allocator = type(
            "A", (), {"pin_allocator": type("P", (), {"buffer": Tensor()})}
        )
        connector.post_init()
        self.assertEqual(connector._registered, address)
        connector.post_init()
        self.assertEqual(self.logs.lines, [])


if __name__ == "__main__":
    unittest.main()
