"""tarn.kv_groups: what a KV group may be, the parts of a boundary and their keys."""

import sys
import unittest

import harness

import tarn
from tarn import KVBoundary, KVGroup, KVParts
from tarn.kv_groups import boundary_of


class Parts(unittest.TestCase):
    def test_ends(self):
        for parts, block, ends in (
            (KVParts(), 16, []),
            (KVParts(0, 3, 0), 16, [16, 32, 48]),
            (KVParts(2, 2, 0), 8, [24, 32]),
            (KVParts(0, 1, 28), 16, [16, 28]),
            (KVParts(4, 1, 0), 544, [2720]),
            (KVParts(0, 0, 20), 16, [20]),
        ):
            self.assertEqual(list(parts.ends(block)), ends, parts)

    def test_keys(self):
        hashes = [bytes([i]) * 32 for i in range(1, 9)]
        full = KVGroup("m@f@", block=16, unit=8)
        self.assertEqual(
            full.keys(KVParts(0, 1, 24), hashes, 8), ["m@f@" + "02" * 32, "m@f@" + "03" * 32]
        )
        state = KVGroup("m@s@", "state", 32)
        self.assertEqual(state.keys(KVParts(1, 1, 0), hashes, 8), ["m@s@" + "08" * 32])
        self.assertEqual(state.keys(KVParts(), hashes, 8), [])

    def test_reply(self):
        self.assertEqual(
            boundary_of("48\n0\n3\n0\n2\n1\n0", 2), KVBoundary(48, (KVParts(0, 3), KVParts(2, 1)))
        )


class Refusals(unittest.TestCase):
    def refused(self, words, *args, **options):
        with self.assertRaises(tarn.InvalidArgument) as caught:
            KVGroup(*args, **options)
        self.assertIn(words, str(caught.exception))

    def test_defaults(self):
        group = KVGroup("m@")
        self.assertEqual((group.kind, group.block, group.unit), ("full", 16, 16))
        self.assertEqual(KVGroup("m@", block=32).unit, 32)
        self.assertEqual(KVGroup("m@", block=32, unit=8).unit, 8)

    def test_what_cannot_be(self):
        self.refused("kind is one of full, window, state, not 'mamba'", "m@", "mamba")
        self.refused("the name is what keys begin with", "")
        self.refused("the name is what keys begin with", b"m@")
        self.refused("block: a number of tokens, not 0", "m@", block=0)
        self.refused("block: a number of tokens, not 4294967296", "m@", block=1 << 32)
        self.refused("block: a number of tokens, not '16'", "m@", block="16")
        self.refused("unit: a number of tokens, not -1", "m@", unit=-1)
        self.refused("a unit of 12 does not divide blocks of 16", "m@", block=16, unit=12)
        self.refused("kind full has no window", "m@", window=128)
        self.refused("a window has 2 tokens or more", "m@", "window", window=1)
        self.refused(
            "of a window only whole blocks are put", "m@", "window", 16, unit=8, window=128
        )
        self.refused("states drop nothing", "m@", "state", drops_last=True)
        self.refused("KV group 'm@3@':", "m@3@", "state", drops_last=True)


assert harness.ROOT  # importing it has put the package on the path

if __name__ == "__main__":
    sys.exit(unittest.main())
