"""TarnConnector against servers, as LMCache drives it: coroutines on an event loop, memory objects
with counted references."""

import asyncio
import ctypes
import os
import unittest

from harness import Monitor, together
from lmcache_helpers import ConnectorTest
from lmcache_stubs import (
    Backend,
    BFLOAT16,
    BytesObj,
    FLOAT8,
    Key,
    MemoryFormat,
    Metadata,
    Size,
    pattern,
)

from tarn.lmcache.metadata import HEADER_BYTES, Layout


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
    def test_a_look_up_and_its_gets_are_one_request(self):
        for hints, seen in ((True, {"SESSION": "lookup-7"}), ("false", {})):
            connector, keys = self.connector(hints=hints), self.keys(6)
            self.store(connector, keys, self.chunks(6))
            with Monitor(self.server) as monitor:

                async def run():
                    self.assertEqual(await connector.batched_async_contains("lookup-7", keys), 6)
                    self.check(await connector.batched_get_non_blocking("lookup-7", keys), range(6))

                asyncio.run(run())
                told = monitor.hints("PREFIXLEN", "MGETREPLICAS")
                self.assertGreaterEqual(len(told), 2)
                self.assertEqual([h for h in told if h != seen], [])
                self.check(asyncio.run(connector.batched_get(keys)), range(6))
                self.assertEqual(connector.batched_contains(keys), 6)
                self.assertEqual(
                    [h for h in monitor.hints("PREFIXLEN", "MGETREPLICAS")[len(told) :] if h], []
                )

    def test_the_session_that_a_request_says(self):
        said = {"lmcache.tarn_session": "chat-4711", "lmcache.tarn_return_ms": 30000}
        seen = {"SESSION": "chat-4711", "RETURN": "30000"}
        asks = "PREFIXLEN", "MGETREPLICAS", "MPUTSTART"

        async def every_call(connector, keys):
            self.assertEqual(await connector.batched_async_contains("lookup-7", keys), 6)
            self.assertEqual(connector.batched_contains(keys), 6)
            self.check(await connector.batched_get_non_blocking("lookup-7", keys), range(6))
            self.check(await connector.batched_get(keys), range(6))

        for options, configs, wanted in (
            ({}, said, seen),
            ({"hints": "false"}, said, {}),
            ({}, {"lmcache.tarn_return_ms": 30000}, {"RETURN": "30000"}),
            ({}, {"lmcache.tarn_session": 7, "lmcache.tarn_return_ms": "soon"}, {}),
        ):
            connector, keys = self.connector(**options), self.keys(6, configs=configs)
            with Monitor(self.server) as monitor:
                self.store(connector, keys, self.chunks(6))
                self.assertEqual(monitor.hints("MPUTSTART"), [wanted])
                asyncio.run(every_call(connector, keys))
                told = monitor.hints(*asks)
                self.assertGreaterEqual(len(told), 5)
                by_look_up = {"SESSION": "lookup-7", **wanted} if not options else {}
                self.assertEqual([h for h in told if h not in (wanted, by_look_up)], [])

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


if __name__ == "__main__":
    unittest.main()
