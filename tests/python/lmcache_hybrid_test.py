"""Hybrid models through LMCache: object groups of its multi-process mode, kv groups in one chunk
within the engine, layers and latent formats, byte by byte."""

import asyncio
import os
import select
import time
import unittest

from harness import TarnTest
from lmcache_helpers import ConnectorTest
from lmcache_stubs import (
    BFLOAT16,
    FLOAT8,
    UINT8,
    Backend,
    Config,
    DType,
    Key,
    MemoryFormat,
    ObjectKey,
    Size,
)
from scenes import EngineScenes, check

from tarn.lmcache import TarnConnector, TarnL2Adapter, _base

FLOAT32 = DType("float32", 4)
DTYPES = {"bfloat16": BFLOAT16, "fp8_e4m3": FLOAT8}


def chunk_value(layout, group, shard, prompt, end):
    """All blocks of a KV group in a chunk of `layout.align` tokens, or the state at its end."""
    g = layout.groups[group]
    ends = range(end - layout.align + g.block, end + 1, g.block)
    if g.form == "recurrent":
        ends = [end]
    return b"".join(layout.value(prompt, group, shard, e) for e in ends)


def write(obj, value):
    obj.byte_array.cast("B")[:] = value
    return obj


class ServerEngine:
    """LMCache's server: an object group for each KV group, a chunk's parts next to each other:
    chunk, group, rank."""

    def __init__(self, url, layout):
        self.layout, self.backend = layout, Backend(64 << 20)
        # What LMCache's keys leave out, an operator says.
        self.adapter = TarnL2Adapter({"url": url + "?retries=0", "namespace": layout.name})

    def key(self, prompt, group, rank, end):
        tp = self.layout.tp
        kv_rank = tp << 24 | rank << 16 | tp << 8 | rank
        number = int.from_bytes(prompt.states[end], "big")
        return ObjectKey(number, "toy/model", kv_rank, group)

    def right(self, prompt, group, rank, end):
        shard = self.layout.groups[group].shard_of(self.layout.tp, rank)
        return chunk_value(self.layout, group, shard, prompt, end)

    def window(self, group):
        """Chunks before the boundary that are needed; 0: all."""
        g = self.layout.groups[group]
        if g.form == "recurrent":
            return 1
        return -(-(g.window - 1) // self.layout.align) if g.window else 0

    def parts(self, prompt, ends):
        return [
            (g, r, end)
            for end in ends
            for g in range(len(self.layout.groups))
            for r in range(self.layout.tp)
        ]

    def ends(self, prompt):
        return range(self.layout.align, len(prompt) + 1, self.layout.align)

    def wait(self, fd, take):
        until = time.monotonic() + 60
        while True:
            result = take()
            if result is not None and result != {}:
                return result
            assert time.monotonic() < until, "no result"
            if select.select([fd], [], [], 1)[0]:
                os.read(fd, 8)

    def objects(self, sizes):
        return [self.backend.allocate(Size([n]), UINT8, busy_loop=False) for n in sizes]

    def store(self, prompt):
        """All chunks of full groups; of windows the last ones before the middle and the end, of
        states those two."""
        ends = self.ends(prompt)
        kept = []
        for part in self.parts(prompt, ends):
            window = self.window(part[0])
            upto = [e for e in (ends[len(ends) // 2 - 1], ends[-1]) if e >= part[2]]
            if not window or any(e - part[2] < window * self.layout.align for e in upto):
                kept.append(part)
        values = [self.right(prompt, *part) for part in kept]
        objs = [write(o, v) for o, v in zip(self.objects(map(len, values)), values)]
        task = self.adapter.submit_store_task([self.key(prompt, *p) for p in kept], objs)
        self.wait(self.adapter.get_store_event_fd(), self.adapter.pop_completed_store_tasks)
        for obj in objs:
            obj.ref_count_down()
        return task

    def load(self, prompt):
        parts = self.parts(prompt, self.ends(prompt))
        layouts = {g: object() for g in range(len(self.layout.groups))}
        task = self.adapter.submit_lookup_and_lock_task(
            [self.key(prompt, *part) for part in parts], layouts
        )
        bits = self.wait(
            self.adapter.get_lookup_and_lock_event_fd(),
            lambda: self.adapter.query_lookup_and_lock_result(task),
        )
        there = {part for i, part in enumerate(parts) if bits.test(i)}
        for boundary in reversed(self.ends(prompt)):
            needed = []
            for g in range(len(self.layout.groups)):
                window = self.window(g) * self.layout.align
                first = max(0, boundary - window) if window else 0
                needed += [
                    (g, r, end)
                    for end in self.ends(prompt)
                    if first < end <= boundary
                    for r in range(self.layout.tp)
                ]
            if there.issuperset(needed):
                return boundary if self.loaded(prompt, needed) else 0
        return 0

    def loaded(self, prompt, parts):
        right = [self.right(prompt, *part) for part in parts]
        objs = self.objects(map(len, right))
        keys = [self.key(prompt, *part) for part in parts]
        task = self.adapter.submit_load_task(keys, objs)
        bits = self.wait(
            self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task)
        )
        for i, (obj, value) in enumerate(zip(objs, right)):
            if bits.test(i):
                check(obj.byte_array.cast("B"), value, parts[i])
            obj.ref_count_down()
        self.adapter.submit_unlock(keys)
        return bits.popcount() == len(parts)

    def close(self):
        self.adapter.close()


class Servers(EngineScenes, unittest.TestCase):
    def engine(self, url, layout):
        return ServerEngine(url, layout)


class Described:
    """LMCache's metadata of a model with several kv groups: a shape and a dtype for each."""

    def __init__(self, shapes, dtypes, model="toy/model"):
        self.shapes, self.dtypes, self.model_name = shapes, dtypes, model
        self.kv_dtype, self.use_mla = dtypes[0], False
        self.kv_shape = None

    def get_shapes(self, num_tokens=None):
        return list(self.shapes)

    def get_dtypes(self):
        return list(self.dtypes)


class ConnectorEngine:
    """LMCache within the engine: a chunk of each rank is one object, of all KV groups."""

    def __init__(self, url, layout):
        self.layout, self.backend = layout, Backend(64 << 20)
        dtype = DTYPES[layout.dtype]
        shapes, dtypes = [], []
        for g, group in enumerate(layout.groups):
            state = group.form == "recurrent"
            size = group.block_bytes(layout.tp) * (1 if state else layout.align // group.block)
            wide = UINT8 if state or size % (2 * group.layers * dtype.itemsize) else dtype
            shapes.append(Size([2, group.layers, size // (2 * group.layers * wide.itemsize), 1]))
            if shapes[-1].numel() * wide.itemsize != size:
                shapes[-1] = Size([size])
            dtypes.append(wide)
        self.shapes, self.dtypes = shapes, dtypes
        metadata = Described(shapes, dtypes)
        self.ranks = [
            TarnConnector(url + "?retries=0", None, self.backend, Config(), metadata)
            for _ in range(layout.tp)
        ]

    def key(self, prompt, rank, end):
        number = int.from_bytes(prompt.states[end], "big")
        return Key(number, model=f"toy/{self.layout.name}", tag=f"@rank{rank}")

    def right(self, prompt, rank, end):
        return b"".join(
            chunk_value(self.layout, g, group.shard_of(self.layout.tp, rank), prompt, end)
            for g, group in enumerate(self.layout.groups)
        )

    def ends(self, prompt):
        return range(self.layout.align, len(prompt) + 1, self.layout.align)

    def store(self, prompt):
        one = len(self.shapes) == 1
        for rank, connector in enumerate(self.ranks):
            objs = []
            for end in self.ends(prompt):
                obj = self.backend.allocate(
                    self.shapes[0] if one else self.shapes,
                    self.dtypes[0] if one else self.dtypes,
                    MemoryFormat.KV_2LTD,
                    busy_loop=False,
                )
                objs.append(write(obj, self.right(prompt, rank, end)))
            keys = [self.key(prompt, rank, end) for end in self.ends(prompt)]
            asyncio.run(connector.batched_put(keys, objs))
            for obj in objs:
                obj.ref_count_down()

    def load(self, prompt):
        hits = min(
            connector.batched_contains([self.key(prompt, rank, e) for e in self.ends(prompt)])
            for rank, connector in enumerate(self.ranks)
        )
        ends, whole = self.ends(prompt)[:hits], True
        for rank, connector in enumerate(self.ranks):
            keys = [self.key(prompt, rank, end) for end in ends]
            for end, obj in zip(ends, asyncio.run(connector.batched_get(keys)) if keys else []):
                whole &= obj is not None
                if obj is not None:
                    check(obj.byte_array.cast("B"), self.right(prompt, rank, end), (rank, end))
                    shapes, dtypes = self.shapes, self.dtypes
                    assert list(obj.metadata.shapes) == shapes, obj.metadata.shapes
                    assert list(obj.metadata.dtypes) == dtypes, obj.metadata.dtypes
                    obj.ref_count_down()
        return hits * self.layout.align if whole else 0

    def close(self):
        for connector in self.ranks:
            asyncio.run(connector.close())
        assert self.backend.alive == 0, "all memory has come back"


class Connectors(EngineScenes, unittest.TestCase):
    def setUp(self):
        formats, _base.MemoryFormat = _base.MemoryFormat, MemoryFormat
        self.addCleanup(setattr, _base, "MemoryFormat", formats)

    def engine(self, url, layout):
        return ConnectorEngine(url, layout)


class Formats(ConnectorTest):
    def test_groups_of_all_kinds_in_one_chunk(self):
        """Dtypes and shapes of each group come back, with other numbers of dimensions."""
        shapes = [Size([2, 3, 16, 64]), Size([1, 2, 16, 36]), Size([4, 100]), Size([77])]
        dtypes = [BFLOAT16, FLOAT8, FLOAT32, UINT8]
        metadata = Described(shapes, dtypes)
        connector, key = self.connector(metadata=metadata), self.keys(1)
        obj = self.backend.allocate(shapes, dtypes, MemoryFormat.KV_2LTD, busy_loop=False)
        obj.fill(7)
        value = bytes(obj.byte_array.cast("B"))
        self.store(connector, key, [obj])
        for told in (metadata, None):
            other = self.connector(metadata=told or metadata)
            [found] = self.load(other, key)
            check(found.byte_array.cast("B"), value, "chunk")
            self.assertEqual(
                (found.metadata.shapes, found.metadata.dtypes), (list(shapes), list(dtypes))
            )
            found.ref_count_down()
        self.nothing_left()

    def test_a_chunk_of_other_groups_is_a_miss(self):
        """Of the same model's name, and with the same first group, which is all that keys tell."""
        kv, window = Size([2, 3, 16, 64]), Size([2, 5, 16, 8])
        whole = [kv, window], [BFLOAT16, FLOAT8]
        others = [
            ([kv], [BFLOAT16]),
            ([kv, window, window], [BFLOAT16, FLOAT8, FLOAT8]),
            ([kv, Size([2, 5, 16, 8])], [BFLOAT16, UINT8]),
            ([kv, Size([2, 4, 20, 8])], [BFLOAT16, FLOAT8]),
            ([kv, Size([2, 6, 16, 8])], [BFLOAT16, FLOAT8]),
            ([kv, Size([80, 16])], [BFLOAT16, FLOAT8]),
        ]
        fewer = [Size([2, 3, 9, 64]), Size([2, 5, 9, 8])], whole[1]
        for stored, fits in [(whole, True), (fewer, True), *((other, False) for other in others)]:
            for writes, reads in ((stored, whole),) if fits else ((stored, whole), (whole, stored)):
                key = self.keys(1)
                one = [column[0] if len(column) == 1 else column for column in writes]
                obj = self.backend.allocate(*one, MemoryFormat.KV_2LTD, busy_loop=False).fill(3)
                value = bytes(obj.byte_array.cast("B"))
                self.store(self.connector(metadata=Described(*writes)), key, [obj])
                reader = self.connector(metadata=Described(*reads))
                [found] = self.load(reader, key)
                self.assertEqual(found is not None, fits, (writes, reads))
                if found is not None:
                    check(found.byte_array.cast("B"), value, "chunk")
                    self.assertEqual(found.metadata.shapes, list(writes[0]))
                    found.ref_count_down()
                    continue
                one = [column[0] if len(column) == 1 else column for column in reads]
                obj = self.backend.allocate(*one, MemoryFormat.KV_2LTD, busy_loop=False).fill(4)
                self.store(reader, key, [obj])
                [found] = self.load(reader, key)
                self.assertEqual(found.metadata.shapes, list(reads[0]), "it was replaced")
                found.ref_count_down()
        self.nothing_left()

    def test_what_a_header_cannot_hold_is_refused_by_name(self):
        for shapes, why in (([Size([1, 1, 1, 1, 8])], "dimensions"), ([Size([2])] * 16, "groups")):
            connector = self.connector(metadata=Described([Size([8])], [UINT8]))
            obj = self.backend.allocate(
                shapes, [UINT8] * len(shapes), MemoryFormat.KV_2LTD, busy_loop=False
            )
            key = self.keys(1)
            self.store(connector, key, [obj])
            self.assertTrue(any(why in line for line in self.logs.lines), self.logs.lines)
            self.assertEqual(self.load(connector, key), [None])
        self.nothing_left()


class ObjectGroups(TarnTest):
    def adapter(self):
        made = TarnL2Adapter({"url": self.server.url, "namespace": ""})
        self.addCleanup(made.close)
        return made

    def test_gaps_of_windows_are_locked_in_two_requests(self):
        adapter, client = self.adapter(), self.client()
        keys = [ObjectKey(n, group=g) for n in range(20) for g in range(2)]
        there = [g == 0 or n > 15 for n in range(20) for g in range(2)]
        for key, here in zip(keys, there):
            if here:
                client.put(adapter._name(key), b"x" * 100)
        names = [adapter._name(key) for key in keys]
        before = adapter._client.stats()["round_trips"]
        self.assertEqual(adapter._locked(names, True), there)
        self.assertEqual(adapter._client.stats()["round_trips"] - before, 2)
        self.assertIn(
            f"\nleased_objects:{sum(there)}\r", client.command("INFO", "everything"), "locks"
        )

    def test_parts_of_a_chunk_have_one_boundary(self):
        client = self.client()

        def boundaries(keys):
            client.command("FLUSHALL")
            adapter, backend = self.adapter(), Backend()
            objs = [backend.allocate(Size([100]), UINT8, busy_loop=False) for _ in keys]
            adapter.submit_store_task(keys, objs)
            select.select([adapter.get_store_event_fd()], [], [], 60)
            text = client.command("INFO", "everything")
            return int(text.split("\nboundaries:")[1].split()[0])

        one = 0x01000100
        ranks = [ObjectKey(n, rank=0x02000200 | r << 16 | r) for n in range(3) for r in range(2)]
        groups = [ObjectKey(n, rank=one, group=g) for g in (1, 0) for n in range(4)]
        self.assertEqual(boundaries(ranks), 3)
        self.assertEqual(boundaries(groups), 4)
        self.assertEqual(boundaries([ObjectKey(n, rank=one) for n in range(5)]), 0)
        salted = [ObjectKey(1, rank=one, group=1, salt=s) for s in ("a", "b")]
        self.assertEqual(boundaries(salted), 2)


if __name__ == "__main__":
    unittest.main()
