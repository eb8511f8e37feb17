"""tarn.slices: blocks written under one tensor-parallel size and read under another, through a real
pool."""

import ctypes
import random
import unittest

from harness import TarnTest
from tarn import keys, slices

HASH = bytes(range(32))


def rank_block(whole, shape, tp_size, tp_rank):
    """The rank's block, cut out of the whole one byte range by byte range: what plan() must arrive
    at."""
    first, count = slices.head_range(shape.heads, tp_size, tp_rank)
    out = bytearray()
    for index in range(shape.outer):
        for head in range(first, first + count):
            at = (index * shape.heads + head) * shape.inner
            out += whole[at : at + shape.inner]
    return bytes(out)


def sizes_of(heads):
    return [n for n in (1, 2, 3, 4, 6, 8, 12, 16) if heads % n == 0 or n % heads == 0]


class Plans(unittest.TestCase):
    def test_shapes(self):
        axes = [("layers", 2), ("kv", 2), ("tokens", 16), ("heads", 4), ("dim", 64)]
        shape = slices.BlockShape.of(axes, 8, 2)
        self.assertEqual(shape, (64, 8, 128))
        self.assertEqual(shape.bytes(1), 2 * 2 * 16 * 8 * 64 * 2)
        self.assertEqual(shape.bytes(16), shape.bytes(8))
        for wrong in ([("layers", 2)], [("heads", 1), ("heads", 1)], [("heads", 1), ("dim", 0)]):
            with self.assertRaises(ValueError):
                slices.BlockShape.of(wrong, 8, 2)

    def test_same_size_is_one_whole_object(self):
        shape = slices.BlockShape(64, 8, 128)
        for rank in range(4):
            self.assertEqual(
                slices.plan(shape, 4, 4, rank),
                (slices.Part(rank, 0, shape.bytes(4), ((0, shape.bytes(4)),)),),
            )

    def test_heads_outermost_are_one_range(self):
        shape = slices.BlockShape(1, 8, 4096)
        self.assertEqual(
            slices.plan(shape, 2, 8, 5, merge_gap=0), (slices.Part(1, 4096, 4096, ((0, 4096),)),)
        )
        smaller = slices.plan(shape, 8, 2, 1)
        self.assertEqual(
            smaller, tuple(slices.Part(4 + i, 0, 4096, ((i * 4096, 4096),)) for i in range(4))
        )

    def test_whole_objects_are_one_operation_each(self):
        parts = slices.plan(slices.BlockShape(1024, 8, 256), 8, 2, 0)
        self.assertEqual(
            [(p.shard, p.offset, p.length, len(p.places)) for p in parts],
            [(s, 0, 1024 * 256, 1024) for s in range(4)],
        )

    def test_gaps(self):
        shape = slices.BlockShape(4, 2, 100)
        one = slices.plan(shape, 1, 2, 1, merge_gap=100)
        self.assertEqual(
            one,
            (
                slices.Part(
                    0,
                    100,
                    700,
                    ((0, 100), (-1, 100), (100, 100), (-1, 100), (200, 100), (-1, 100), (300, 100)),
                ),
            ),
        )
        self.assertEqual(slices.scratch_bytes(one), 100)
        many = slices.plan(shape, 1, 2, 1, merge_gap=99)
        self.assertEqual(
            [(p.offset, p.length, p.places) for p in many],
            [(100 + 200 * i, 100, ((100 * i, 100),)) for i in range(4)],
        )
        self.assertEqual(slices.scratch_bytes(many), 0)

    def test_more_ranks_than_heads(self):
        shape = slices.BlockShape(3, 2, 10)
        self.assertEqual(slices.plan(shape, 8, 4, 1), slices.plan(shape, 2, 2, 0))
        self.assertEqual(slices.plan(shape, 2, 8, 7), slices.plan(shape, 2, 2, 1))

    def test_refused(self):
        shape = slices.BlockShape(3, 6, 10)
        for writer, reader, rank in ((4, 2, 0), (2, 4, 0), (2, 2, 2), (0, 1, 0)):
            with self.assertRaises(ValueError):
                slices.plan(shape, writer, reader, rank)
        parts = slices.plan(shape, 1, 2, 0)
        with self.assertRaisesRegex(ValueError, "scratch"):
            slices.columns(parts, [["k"]], [[(4096, 90)]], (1, 29))
        with self.assertRaisesRegex(ValueError, "does not fit"):
            slices.columns(parts, [["k"]], [[(4096, 89)]], (1, 30))

    def test_any_shape_in_memory(self):
        """The places of all parts cover the block once, and each takes the bytes that belong
        there."""
        rng = random.Random(7)
        for _ in range(300):
            heads = rng.choice([1, 2, 4, 6, 8, 12])
            shape = slices.BlockShape(rng.randrange(1, 9), heads, rng.randrange(1, 6))
            writer, reader = rng.choice(sizes_of(heads)), rng.choice(sizes_of(heads))
            whole = rng.randbytes(shape.bytes(1))
            shards = min(writer, heads)
            objects = [rank_block(whole, shape, shards, s) for s in range(shards)]
            rank = rng.randrange(reader)
            block = bytearray(shape.bytes(reader))
            covered = bytearray(len(block))
            for part in slices.plan(
                shape, writer, reader, rank, merge_gap=rng.choice([0, 1, 7, 1 << 20])
            ):
                source = part.offset
                self.assertEqual(sum(size for _, size in part.places), part.length)
                for at, size in part.places:
                    if at != slices.SKIP:
                        block[at : at + size] = objects[part.shard][source : source + size]
                        for i in range(at, at + size):
                            covered[i] += 1
                    source += size
                self.assertNotEqual(part.places[0][0], slices.SKIP)
                self.assertNotEqual(part.places[-1][0], slices.SKIP)
            self.assertEqual(bytes(block), rank_block(whole, shape, reader, rank))
            self.assertEqual(set(covered), {1})


class ThroughAPool(TarnTest):
    def setUp(self):
        self.pool_client = self.client()

    def write(self, name, wholes, shape, writer):
        """All ranks put their blocks, also those that hold the same bytes; returns the key space of
        shard 0."""
        space = keys.KeySpace(name, shards=keys.shard_of(writer, 0, shape.heads)[0])
        for number, whole in enumerate(wholes):
            for rank in range(writer):
                key = space.with_shard(keys.shard_of(writer, rank, shape.heads)[1]).key(
                    bytes([number]) + HASH[1:]
                )
                (status,) = self.pool_client.put_many(
                    [(key, rank_block(whole, shape, writer, rank))]
                )
                self.assertTrue(keys.done(status), status)
        return space

    def read(self, space, shape, blocks, writer, reader, rank, gap, rng):
        size = shape.bytes(reader)
        memory = (ctypes.c_char * (size * blocks * 2))()
        base = ctypes.addressof(memory)
        runs = []
        for number in range(blocks):  # every block in two runs, the second one before the first
            cut = rng.randrange(size) if size > 1 else 0
            start = base + number * 2 * size
            runs.append([(start + size, cut), (start, size - cut)] if cut else [(start, size)])
        names = [
            [space.with_shard(s).key(bytes([n]) + HASH[1:]) for s in range(space.shards)]
            for n in range(blocks)
        ]
        parts = slices.plan(shape, writer, reader, rank, merge_gap=gap)
        scratch = ctypes.create_string_buffer(slices.scratch_bytes(parts) + 1)
        columns = slices.columns(parts, names, runs, (ctypes.addressof(scratch), len(scratch)))
        results = self.pool_client.get_into_many(
            columns.keys,
            columns.addresses,
            columns.sizes,
            offsets=columns.offsets,
            wants=columns.wanted,
        )
        raw = bytes(memory)
        data = [b"".join(raw[at - base : at - base + n] for at, n in block) for block in runs]
        return columns.arrived(results, blocks), data

    def test_every_size_reads_every_other(self):
        rng = random.Random(11)
        for number in range(40):
            heads = rng.choice([1, 2, 4, 8])
            shape = slices.BlockShape(
                rng.choice([1, 4, 32]), heads, rng.choice([8, 100, 512, 3000])
            )
            writer, reader = rng.choice(sizes_of(heads)), rng.choice(sizes_of(heads))
            wholes = [rng.randbytes(shape.bytes(1)) for _ in range(3)]
            space = self.write(f"model {number}", wholes, shape, writer)
            for rank in range(reader):
                gap = rng.choice([0, 256, 1 << 20])
                arrived, data = self.read(space, shape, 3, writer, reader, rank, gap, rng)
                self.assertEqual(arrived, [True] * 3)
                for whole, got in zip(wholes, data):
                    self.assertEqual(
                        got,
                        rank_block(whole, shape, reader, rank),
                        (number, shape, writer, reader, rank, gap),
                    )

    def test_large_objects(self):
        """Above 1 MiB ranges are verified by the MiB, so that runs which are far apart are fetched
        one by one."""
        rng = random.Random(12)
        shape = slices.BlockShape(4, 2, 700_001)
        whole = rng.randbytes(shape.bytes(1))
        for writer, reader in ((1, 2), (2, 1)):
            space = self.write(f"large {writer}", [whole], shape, writer)
            for rank in range(reader):
                for gap in (0, 1 << 20):
                    arrived, data = self.read(space, shape, 1, writer, reader, rank, gap, rng)
                    self.assertEqual(arrived, [True])
                    self.assertEqual(data[0], rank_block(whole, shape, reader, rank))

    def test_a_part_that_is_gone(self):
        rng = random.Random(13)
        shape = slices.BlockShape(4, 4, 64)
        wholes = [rng.randbytes(shape.bytes(1)) for _ in range(3)]
        space = self.write("gone", wholes, shape, 4)
        self.assertTrue(self.pool_client.remove(space.with_shard(2).key(bytes([1]) + HASH[1:])))
        arrived, data = self.read(space, shape, 3, 4, 2, 0, 0, rng)
        self.assertEqual(arrived, [True, True, True])
        arrived, data = self.read(space, shape, 3, 4, 2, 1, 0, rng)
        self.assertEqual(arrived, [True, False, True])
        self.assertEqual(data[2], rank_block(wholes[2], shape, 2, 1))


if __name__ == "__main__":
    unittest.main()
