"""The header in front of a chunk: what goes in comes out, and nothing else does."""

import random
import unittest

import harness
from lmcache_stubs import BFLOAT16, FLOAT8, DType, Metadata, Size
from tarn.lmcache.metadata import (
    HEADER_BYTES,
    MAX_GROUPS,
    HeaderError,
    Layout,
    element_bytes,
    expected_layout,
)
from tarn.lmcache.spread import PART_BYTES, spread


assert harness.ROOT  # it makes the package be found


def packed(layout):
    buffer = bytearray(b"\xa5" * (HEADER_BYTES + 20))
    layout.pack_into(buffer, 10)
    assert buffer[:10] == b"\xa5" * 10 and buffer[-10:] == b"\xa5" * 10
    return bytes(buffer[10 : 10 + HEADER_BYTES])


class Header(unittest.TestCase):
    def test_round_trip(self):
        layouts = [
            Layout.make("KV_2LTD", [Size([2, 32, 256, 1024])], [BFLOAT16]),
            Layout.make("KV_MLA_FMT", [Size([1, 61, 64, 576])], [FLOAT8]),
            Layout.make("KV_T2D", [(7, 2, 128)], [BFLOAT16]),
            Layout.make(
                "KV_2LTD", [(2, 4, 16, 8 << i) for i in range(MAX_GROUPS)], [BFLOAT16] * MAX_GROUPS
            ),
            Layout.make("BINARY_BUFFER", [Size([12345, 0, 0, 0])], [None], 12345),
            Layout.make("KV_2LTD", [(5,)], [DType("no_size_in_it", 3)], 999),
        ]
        for layout in layouts:
            self.assertEqual(Layout.unpack(packed(layout)), layout)
        self.assertEqual(layouts[0].size, 2 * 32 * 256 * 1024 * 2)
        self.assertEqual(layouts[4].size, 12345)

    def test_sizes_of_elements(self):
        sizes = {
            "bfloat16": 2,
            "float8_e4m3fn": 1,
            "float32": 4,
            "uint8": 1,
            "int64": 8,
            "bool": 1,
            "": 1,
            "half": 0,
        }
        self.assertEqual({name: element_bytes(name) for name in sizes}, sizes)

    def test_what_cannot_be_written(self):
        for arguments in (
            ("KV_2LTD", [], []),
            ("KV_2LTD", [(1,)] * (MAX_GROUPS + 1), [BFLOAT16] * (MAX_GROUPS + 1)),
            ("KV_2LTD", [(1, 2, 3, 4, 5)], [BFLOAT16]),
            ("KV_2LTD", [(1 << 32,)], [BFLOAT16]),
            ("KV_2LTD", [(-1,)], [BFLOAT16]),
            ("KV_2LTD", [(1,)], [DType("x" * 17, 1)]),
            ("KV_2LTD", [(1,)], [DType("no_size", 1)]),
            ("", [(1,)], [BFLOAT16]),
            ("F" * 17, [(1,)], [BFLOAT16]),
            ("KV_2LTD", [(4,)], [BFLOAT16], 9),
        ):
            with self.assertRaises(ValueError, msg=str(arguments)):
                Layout.make(*arguments)

    def test_other_bytes(self):
        good = packed(Layout.make("KV_2LTD", [(2, 4, 16, 8)], [BFLOAT16]))

        def wrong(message, at, value):
            bad = bytearray(good)
            bad[at : at + len(value)] = value
            with self.assertRaisesRegex(HeaderError, message):
                Layout.unpack(bytes(bad))

        wrong("no header", 0, b"KVLM")
        wrong("version 2", 4, b"\x02")
        wrong("0 groups", 5, b"\x00")
        wrong("16 groups", 5, b"\x10")
        wrong("version", 6, b"\x01")
        wrong("do not make", 8, b"\x01")
        wrong("ASCII", 16, b"\xff")
        wrong("ASCII", 32, b"\xff")
        wrong("gap", 48, b"\xff\xff\xff\xff")
        with self.assertRaisesRegex(HeaderError, "less than a header"):
            Layout.unpack(good[:-1])

    def test_noise(self):
        rng = random.Random(7)
        good = packed(Layout.make("KV_2LTD", [(2, 4, 16, 8)], [BFLOAT16]))
        for _ in range(3000):
            bad = bytearray(good)
            for _ in range(rng.randrange(1, 6)):
                bad[rng.randrange(64)] = rng.randrange(256)
            try:
                layout = Layout.unpack(bytes(bad))
            except HeaderError:
                continue
            self.assertIn(layout.shape_bytes(), (-1, layout.size))

    def test_partial(self):
        def layout(tokens, form="KV_2LTD", dtype=BFLOAT16, hidden=8):
            return Layout.make(form, [(2, 4, tokens, hidden)], [dtype])

        full = layout(16)
        self.assertTrue(layout(1).partial_of(full))
        self.assertTrue(layout(15).partial_of(full))
        self.assertFalse(full.partial_of(full))
        self.assertFalse(layout(17).partial_of(full))
        self.assertFalse(layout(0).partial_of(full))
        self.assertFalse(layout(5, "KV_2TD").partial_of(full))
        self.assertFalse(layout(5, dtype=FLOAT8).partial_of(full))
        self.assertFalse(layout(5, hidden=4).partial_of(full))
        two = Layout.make("KV_2LTD", [(2, 4, 5, 8)] * 2, [BFLOAT16] * 2)
        self.assertFalse(two.partial_of(full))

    def test_expectation(self):
        new = expected_layout(Metadata(layers=4, tokens=16, hidden=256), "KV_2LTD")
        self.assertEqual(
            new, Layout("KV_2LTD", (("bfloat16", (2, 4, 16, 256)),), 2 * 4 * 16 * 256 * 2)
        )

        class Older:
            kv_shape, kv_dtype = (4, 2, 16, 8, 32), BFLOAT16

        self.assertEqual(expected_layout(Older(), "KV_2LTD"), new)
        self.assertIsNone(expected_layout(None, "KV_2LTD"))


class Spread(unittest.TestCase):
    def test_covers_all(self):
        rng = random.Random(11)
        for _ in range(500):
            sizes = [rng.randrange(0, 3 * PART_BYTES) for _ in range(rng.randrange(0, 40))]
            threads = rng.randrange(1, 9)
            parts = spread(sizes, threads)
            self.assertLessEqual(len(parts), threads)
            self.assertEqual(
                [i for first, last in parts for i in range(first, last)], list(range(len(sizes)))
            )
            self.assertTrue(all(first < last for first, last in parts) or not sizes)

    def test_even(self):
        self.assertEqual(spread([PART_BYTES] * 16, 4), [(0, 4), (4, 8), (8, 12), (12, 16)])
        self.assertEqual(spread([1] * 16, 4), [(0, 16)])
        self.assertEqual(spread([], 4), [(0, 0)])


if __name__ == "__main__":
    unittest.main()
