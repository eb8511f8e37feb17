"""tarn.chain: known answers, canonical encoding, growing chains."""

import hashlib
import random
import struct
import time
import unittest
from array import array

import harness
from tarn import chain


def by_hand(parent: bytes, tokens, extras: bytes, begins=False) -> str:
    """begins: a stretch does with this block."""
    found = hashlib.sha256(
        parent + struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens) + extras
    ).hexdigest()
    return found if begins else parent.hex()[:4] + found[4:]


EMPTY = b"L\x00\x00\x00\x00"


class KnownAnswers(unittest.TestCase):
    """These never change: other machines hold blocks under these names."""

    def test_encoding(self):
        for value, hexed in (
            (None, "4e00000000"),
            (False, "4600000000"),
            (True, "5400000000"),
            (0, "490100000000"),
            (1, "490100000001"),
            (-1, "4901000000ff"),
            (127, "49010000007f"),
            (128, "49020000008000"),
            (-128, "490100000080"),
            (-129, "49020000007fff"),
            (1 << 64, "4909000000000000000000000001"),
            ("", "5300000000"),
            ("é", "5302000000c3a9"),
            (b"\x00\xff", "420200000000ff"),
            ((), "4c00000000"),
            (("a", 1), "4c0c0000005301000000614901000000" + "01"),
            (
                {"b": 1, "a": 2},
                "4418000000" + "530100000061490100000002" + "530100000062490100000001",
            ),
        ):
            self.assertEqual(chain.encode(value).hex(), hexed, value)

    def test_seed(self):
        self.assertEqual(
            chain.seed_hash(16).hex(),
            hashlib.sha256(b"tarn.chain/2\0\x10\0\0\0" + EMPTY).hexdigest(),
        )
        self.assertEqual(
            chain.seed_hash(16).hex(),
            "901220ec2105eb7a1a76d911cb6bb74bc19f6ca7235b24206bfe2692ec51f32d",
        )
        self.assertEqual(
            chain.Chain(16).last.hex(),
            "66071d6c8f0f921598faaa532b6a611259682854064d88c07020c5f93a7da711",
        )

    def test_blocks(self):
        first, second = chain.block_hashes(range(40), 16)
        self.assertEqual(
            first.hex(), "1ca2fdc64fd7c3f72efa116d6506297ecd233446c94561b609f4f6024c4bdd47"
        )
        self.assertEqual(
            second.hex(), "1e40dab4dbd3e183513ba88e0876bda2de17c40de1f8265905d255eec54c38e0"
        )
        self.assertEqual(first.hex(), by_hand(chain.Chain(16).last, list(range(16)), EMPTY, True))
        self.assertEqual(second.hex(), by_hand(first, list(range(16, 32)), EMPTY, True))

    def test_extras(self):
        hashes = chain.block_hashes(
            range(8),
            4,
            lora="sql-7",
            salt="tenant",
            revision="main",
            extras=("x", 3),
            media=[("cat.png", 3, 2)],
        )
        self.assertEqual(
            hashes[0].hex(), "f9b2c1e1c9a8736e32572f9ef0f418f557e662958cf13f4ca445c2a85017c8fc"
        )
        self.assertEqual(
            hashes[1].hex(), "d7d6baee523f22227a89749a747e24c60a674eabfeac05d598739b01e5892df3"
        )
        seed = chain.seed_hash(4, ("sql-7", "tenant", "main", ("x", 3)))
        self.assertEqual(
            hashes[0].hex(), by_hand(seed, [0, 1, 2, 3], chain.encode((("cat.png", 3, 2),)), True)
        )
        self.assertEqual(
            hashes[1].hex(),
            by_hand(hashes[0], [4, 5, 6, 7], chain.encode((("cat.png", -1, 2),)), True),
        )

    def test_stretches(self):
        """They are a quarter of what is before them at most, however the tokens come."""
        whole, grown = chain.block_hashes(range(2 * 1200), 2), chain.Chain(2)
        for at in range(0, 2 * 1200, 5):
            grown = grown.copy()
            grown.extend(range(at, min(at + 5, 2 * 1200)))
        self.assertEqual(grown.hashes, whole)
        begins = [i for i in range(1200) if i == 0 or whole[i][:2] != whole[i - 1][:2]]
        self.assertEqual(begins[:12], [*range(9), 10, 12, 14])
        self.assertEqual(begins[-10:], [576, 640, 704, 768, 832, 896, 960, 1024, 1088, 1152])
        for first, end in zip(begins, begins[1:]):
            self.assertLessEqual(end - first, min(max(1, first / 4), 64))
        self.assertEqual(len({h[2:] for h in whole}), 1200)
        for i in (1, 9, 703, 704):
            tokens = [2 * i, 2 * i + 1]
            text = by_hand(whole[i - 1], tokens, EMPTY, i in begins)
            self.assertEqual(whole[i].hex(), text)
        known = ["e6e9e055049d", "1f37a95e655b", "1f37a1c247f2", "139ac69e9118", "fb5a83c912fa"]
        self.assertEqual([whole[i].hex()[:12] for i in (0, 8, 9, 703, 704)], known)

    def test_short(self):
        self.assertEqual(
            [f"{h:016x}" for h in chain.short_hashes(range(5), 2)],
            ["741939ccb979df0d", "b6b72e0ab776073f"],
        )
        first = hashlib.sha256(bytes(8) + struct.pack("<2i", 0, 1)).digest()[:8]
        second = hashlib.sha256(first + struct.pack("<2i", 2, 3)).digest()[:8]
        self.assertEqual(
            chain.short_hashes(range(5), 2),
            [int.from_bytes(first, "big"), int.from_bytes(second, "big")],
        )
        self.assertEqual(
            chain.short_hashes([2, 3], 2, int.from_bytes(first, "big")),
            [int.from_bytes(second, "big")],
        )


class Canonical(unittest.TestCase):
    def test_all_differ(self):
        values = [
            None,
            False,
            True,
            0,
            1,
            -1,
            256,
            "",
            "0",
            "1",
            b"",
            b"1",
            (),
            (None,),
            ("a", "bc"),
            ("ab", "c"),
            ("abc",),
        ]
        values += [
            (("a",), "b"),
            ("a", ("b",)),
            {},
            {"a": "b"},
            ("a", "b"),
            {"b": "a"},
            "a\0b",
            b"a\0b",
        ]
        self.assertEqual(len({chain.encode(v) for v in values}), len(values))
        self.assertEqual(len({chain.Chain(4, extras=v).last for v in values}), len(values))

    def test_lists_are_tuples_and_order_of_keys_is_no_matter(self):
        self.assertEqual(chain.encode([1, [2]]), chain.encode((1, (2,))))
        self.assertEqual(chain.encode({"a": 1, "b": 2}), chain.encode({"b": 2, "a": 1}))

    def test_refused(self):
        for value in (1.0, {1.5: 1}, object(), {1, 2}):
            with self.assertRaises(TypeError):
                chain.encode(value)
        deep = ()
        for _ in range(20):
            deep = (deep,)
        with self.assertRaisesRegex(ValueError, "deeper"):
            chain.encode(deep)

    def test_what_a_hash_depends_on(self):
        base = chain.block_hashes(range(8), 4)
        self.assertNotEqual(base[0], chain.block_hashes(range(8), 4, lora="a")[0])
        self.assertNotEqual(
            chain.block_hashes(range(8), 4, lora="a")[0],
            chain.block_hashes(range(8), 4, salt="a")[0],
        )
        self.assertNotEqual(base[0], chain.block_hashes(range(8), 8)[0])
        self.assertNotEqual(base[1], chain.block_hashes([9, 1, 2, 3, 4, 5, 6, 7], 4)[1])
        shifted = chain.block_hashes(range(12), 4, media=[("m", 4, 4)])
        plain = chain.block_hashes(range(12), 4)
        self.assertEqual(shifted[0], plain[0])
        self.assertNotEqual(shifted[1], plain[1])
        self.assertNotEqual(shifted[1], chain.block_hashes(range(12), 4, media=[("m", 5, 4)])[1])
        self.assertNotEqual(shifted[1], chain.block_hashes(range(12), 4, media=[("m", 4, 5)])[1])


class Growing(unittest.TestCase):
    def test_any_cut_gives_the_same(self):
        rng = random.Random(1)
        for _ in range(60):
            size = rng.choice([1, 2, 3, 16, 64])
            tokens = [rng.randrange(1 << 32) for _ in range(rng.randrange(200))]
            media, at = [], 0
            while rng.random() < 0.6 and at < len(tokens):
                media.append((f"m{at}", at, rng.randrange(1, 40)))
                at += rng.randrange(0, 50)
            whole = chain.block_hashes(tokens, size, media=media)
            grown = chain.Chain(size, media=media)
            new, at = [], 0
            while at < len(tokens):
                n = rng.randrange(1, 70)
                new += grown.extend(tokens[at : at + n])
                at += n
                self.assertEqual(grown.tokens, min(at, len(tokens)))
            self.assertEqual(new, whole)
            self.assertEqual(grown.hashes, whole)
            self.assertEqual(len(whole), len(tokens) // size)

    def test_copies_part_ways(self):
        one = chain.Chain(4)
        one.extend(range(6))
        two = one.copy()
        one.extend([6, 7])
        two.extend([6, 8])
        self.assertEqual(one.hashes[0], two.hashes[0])
        self.assertNotEqual(one.hashes[1], two.hashes[1])
        self.assertEqual(one.hashes, chain.block_hashes(range(8), 4))

    def test_media_in_time(self):
        c = chain.Chain(4)
        c.extend(range(6))
        c.add_media("late", 4, 2)  # block 1 is not hashed yet
        with self.assertRaisesRegex(ValueError, "hashed already"):
            d = chain.Chain(4)
            d.extend(range(4))
            d.add_media("late", 3, 2)
        with self.assertRaisesRegex(ValueError, "order"):
            c.add_media("before", 3, 2)
        with self.assertRaisesRegex(ValueError, "length"):
            c.add_media("none", 9, 0)
        c.extend([6, 7])
        self.assertEqual(c.hashes, chain.block_hashes(range(8), 4, media=[("late", 4, 2)]))

    def test_kinds_of_tokens(self):
        want = chain.block_hashes([1, 2, 3, 4], 2)
        self.assertEqual(want, chain.block_hashes(array("i", [1, 2, 3, 4]), 2))
        self.assertEqual(want, chain.block_hashes(array("q", [1, 2, 3, 4]), 2))
        self.assertEqual(want, chain.block_hashes(memoryview(array("i", [1, 2, 3, 4])), 2))
        self.assertEqual(want, chain.block_hashes((t for t in (1, 2, 3, 4)), 2))
        try:
            import numpy
        except ImportError:
            return
        for kind in ("i4", "i8", "u4", ">i4", "u2"):
            self.assertEqual(want, chain.block_hashes(numpy.array([1, 2, 3, 4], kind), 2), kind)
        for bad in (numpy.array([-1]), numpy.array([1 << 32]), numpy.array([1.0])):
            with self.assertRaises(ValueError):
                chain.block_hashes(bad, 1)

    def test_bad_tokens_change_nothing(self):
        c = chain.Chain(2)
        c.extend([1])
        for bad in ([2, -1], [2, 1 << 32], [2, "3"], [2, 1.5], [2, None]):
            with self.assertRaisesRegex(ValueError, "tokens"):
                c.extend(bad)
        self.assertEqual(c.extend([2]), chain.block_hashes([1, 2], 2))
        for size in (0, -1, (1 << 20) + 1):
            with self.assertRaisesRegex(ValueError, "block_tokens"):
                chain.Chain(size)
        with self.assertRaises(ValueError):
            chain.short_hashes([1 << 31], 1)
        with self.assertRaises(ValueError):
            chain.short_hashes([1], 1, 1 << 64)

    def test_quick(self):
        tokens = list(range(100_000))
        best = min(self.seconds(tokens) for _ in range(5))
        self.assertLess(
            best, 0.5, "100,000 tokens take a few hundredths of a second on an idle machine"
        )

    @staticmethod
    def seconds(tokens):
        start = time.thread_time()  # others run, too
        chain.block_hashes(tokens, 16)
        return time.thread_time() - start


assert harness.ROOT  # importing it has put the package on the path

if __name__ == "__main__":
    unittest.main()
