"""tarn.keys: keys of blocks, shared keys, what must not be ambiguous."""

import itertools
import unittest

import harness
from tarn import chain, keys
from tarn.errors import Status

HASH = bytes(range(32))
TEXT = "{0001}" + HASH.hex()[4:]


class Keys(unittest.TestCase):
    def test_known(self):
        space = keys.KeySpace("meta-llama/Llama-3.1-8B", shards=4, shard=1, pp_size=2, pp_rank=1)
        prefix = "meta-llama/Llama-3.1-8B@bfloat16.nhd.16@tp4.1@pp2.1@pcp1.0@dcp1.0@"
        self.assertEqual(space.prefix, prefix)
        self.assertEqual(space.key(HASH), prefix + TEXT)
        self.assertEqual(space.key(HASH, layer=7), prefix + TEXT + "@l7")
        self.assertEqual(space.key(HASH, group=2), prefix + TEXT + "@g2")
        self.assertEqual(space.keys([HASH, HASH], layer="a b"), [prefix + TEXT + "@la%20b"] * 2)
        with self.assertRaisesRegex(ValueError, "not both"):
            space.key(HASH, layer=1, group=1)

    def test_names_that_look_like_keys(self):
        nasty = [
            "a",
            "a@tp1.0",
            "a%40tp1.0",
            "a ",
            "a\n",
            "a%",
            "%",
            "@",
            "{",
            "a{b}",
            "ä/ü:ß",
            "a@b.nhd.16@tp1.0@pp1.0@pcp1.0@dcp1.0@" + TEXT,
        ]
        seen = {}
        for model, layer in itertools.product(nasty, [None] + nasty):
            space = keys.KeySpace(model)
            key = space.key(HASH, layer=layer)
            self.assertNotIn(key, seen, (model, layer, seen.get(key)))
            seen[key] = (model, layer)
            back = keys.KeySpace.parse(key)
            self.assertEqual(
                (back.space, back.hash, back.layer, back.group), (space, HASH, layer, None)
            )
            self.assertNotRegex(key, r"[\s]")
            self.assertEqual(keys.unescape(keys.escape(model)), model)

    def test_parse(self):
        space = keys.KeySpace("m", "fp8", "hnd", 64, 8, 3, 2, 1, 4, 2, 2, 1)
        self.assertEqual(keys.KeySpace.parse(space.key(HASH, group=5)), (space, HASH, None, 5))
        kv_group = keys.KeySpace("m", kv_group=12)
        self.assertEqual(kv_group.key(HASH), kv_group.prefix + TEXT)
        self.assertTrue(kv_group.prefix.endswith("@dcp1.0@kv12@"), kv_group.prefix)
        self.assertEqual(keys.KeySpace.parse(kv_group.key(HASH)), (kv_group, HASH, None, None))
        with self.assertRaisesRegex(ValueError, "kv_group"):
            keys.KeySpace("m", kv_group=-1)
        good = space.key(HASH)
        for bad in (
            *("", "m", "m@a.b.c@tp1.0@pp1.0@pcp1.0@dcp1.0@00", "x@" * 6, good + "@x1"),
            *(good + "@l1@l2", good.replace("tp8.3", "tp8.8"), good.replace("pp2", "qq2")),
            *(kv_group.key(HASH).replace("kv12", kv) for kv in ("kv012", "kv+12", "kv", "kv1_2")),
            *(good.replace("tp8", "tp08"), good.replace(TEXT, TEXT.upper())),
            *(good.replace(TEXT, HASH.hex()), good.replace(TEXT, "{00}" + HASH.hex()[2:])),
            *("%6D" + good[1:], good + "@g01"),
        ):
            with self.assertRaisesRegex(ValueError, "no block's key"):
                keys.KeySpace.parse(bad)

    def test_refused(self):
        for wrong in (
            dict(model=""),
            dict(model="m" * 513),
            dict(model="@" * 171),
            dict(model="m", dtype=""),
            dict(model="m", layout="a.b"),
            dict(model="m", shards=2, shard=2),
            dict(model="m", pp_rank=-1),
            dict(model="m", dcp_size=0),
            dict(model="m", block_tokens=0),
            dict(model="m" * 512, dtype="d" * 300, layout="l" * 300),
        ):
            with self.assertRaises(ValueError, msg=str(wrong)):
                keys.KeySpace(**wrong)
        longest = keys.KeySpace("m" * 512, "d" * 100, "l" * 100).key(
            HASH, layer="model.layers.100.self_attn.attn"
        )
        self.assertLessEqual(len(longest), keys.MAX_KEY)

    def test_lookup_keys(self):
        space = keys.KeySpace("m", shards=2, pp_size=2)
        hashes = chain.block_hashes(range(6), 2)
        names, each = space.lookup_keys(hashes)
        self.assertEqual(each, 4)
        self.assertEqual(len(names), 12)
        for i, h in enumerate(hashes):
            want = [
                keys.KeySpace("m", shards=2, shard=s, pp_size=2, pp_rank=p).key(h)
                for p, s in itertools.product((0, 1), (0, 1))
            ]
            self.assertEqual(names[4 * i : 4 * i + 4], want)
        names, each = space.lookup_keys(hashes, layers=(0, 31))
        self.assertEqual((each, len(set(names))), (8, 24))
        self.assertTrue(names[0].endswith("@l0") and names[1].endswith("@l31"))

    def test_context_ranks(self):
        space = keys.KeySpace("m", shards=4, pcp_size=2, dcp_size=2)
        all_of_it = space.all()
        self.assertEqual(len(all_of_it), 8)
        self.assertEqual(
            {(s.shard, s.dcp_rank) for s in all_of_it}, {(0, 0), (1, 1), (2, 0), (3, 1)}
        )


class Sharing(unittest.TestCase):
    def test_ranks_with_the_same_bytes_share_a_key(self):
        def key(tp, rank, heads, mla=False):
            shards, shard, _, _ = keys.shard_of(tp, rank, heads, mla=mla)
            return keys.KeySpace("m", shards=shards, shard=shard).key(HASH)

        self.assertEqual(
            len(
                {key(8, r, 1, mla=True) for r in range(8)}
                | {key(2, r, 1, mla=True) for r in range(2)}
            ),
            1,
        )
        self.assertEqual([key(8, r, 4) for r in range(8)], [key(4, r // 2, 4) for r in range(8)])
        self.assertEqual(len({key(8, r, 8) for r in range(8)}), 8)
        self.assertNotEqual(key(2, 0, 8), key(4, 0, 8))

    def test_shard_of(self):
        self.assertEqual(keys.shard_of(1, 0, 8), (1, 0, 1, 0))
        self.assertEqual(keys.shard_of(4, 3, 8), (4, 3, 1, 0))
        self.assertEqual(keys.shard_of(16, 5, 8), (8, 2, 2, 1))
        self.assertEqual(keys.shard_of(8, 5, 8, mla=True), (1, 0, 8, 5))
        for tp, rank, heads in ((3, 0, 8), (12, 0, 8), (0, 0, 8), (2, 2, 8), (2, -1, 8), (1, 0, 0)):
            with self.assertRaises(ValueError):
                keys.shard_of(tp, rank, heads)

    def test_done(self):
        self.assertTrue(all(map(keys.done, (0, Status.EEXISTS, Status.EBUSY))))
        self.assertFalse(any(map(keys.done, (Status.ENOSPACE, Status.EIO, Status.ETIMEOUT, -1))))


assert harness.ROOT  # importing it has put the package on the path

if __name__ == "__main__":
    unittest.main()
