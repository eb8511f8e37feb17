"""tarn.kv_groups: what a KV group may be, the parts of a boundary and their keys; look-ups and gets
against the rules written down once more, by brute force."""

import asyncio
import random
import sys
import threading
import unittest
from unittest import mock

from harness import TarnTest, pattern

import tarn
from tarn import KVBoundary, KVGroup, KVParts, _lib, kv_groups
from tarn.keys import hash_text


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
            full.keys(KVParts(0, 1, 24), hashes, 8),
            ["m@f@{0202}" + "02" * 30, "m@f@{0303}" + "03" * 30],
        )
        state = KVGroup("m@s@", "state", 32)
        self.assertEqual(state.keys(KVParts(1, 1, 0), hashes, 8), ["m@s@{0808}" + "08" * 30])
        self.assertEqual(state.keys(KVParts(), hashes, 8), [])


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


def reach_of(group, there):
    """How many tokens of a full group are there from the start, and of its first block that is not
    whole."""
    whole = 0
    while there(whole + group.block):
        whole += group.block
    inside = range(whole, whole + group.block, group.unit)
    return max(end for end in inside if end == whole or there(end))


def ends_of(group, align, there, tokens):
    """The token ends of what is read of a KV group for the first `tokens` tokens; None: something
    of it is missing."""
    block = group.block
    if group.kind == "state":
        return [tokens] if there(tokens) else None
    if group.kind == "window":
        blocks = -(-(group.window - 1) // block)
        ends = list(range(tokens, max(tokens - blocks * block, 0), -block))[::-1]
        dropped = [tokens + block] if group.drops_last else []
        return ends if all(map(there, ends + dropped)) else None
    if reach_of(group, there) < tokens + group.drops_last * min(align, block):
        return None
    ends, last = list(range(block, tokens + 1, block)), (tokens // block + 1) * block
    if tokens % block:  # a block only ever grows: what is furthest has the rest
        ends.append(max(e for e in range(tokens, last + 1, group.unit) if there(e)))
    return ends


def longest(groups, align, there, tokens):
    """The answer, tried from the longest on downwards: tokens, and the ends of each group."""
    for boundary in range(tokens - tokens % align, 0, -align):
        ends = [ends_of(g, align, there(g), boundary) for g in groups]
        if None not in ends:
            return boundary, ends
    return 0, [[] for _ in groups]


def random_group(rng, name):
    block, kind = rng.choice((8, 16, 32)), rng.choice(("full", "full", "window", "state"))
    if kind == "window":
        return KVGroup(name, kind, block, 0, rng.randrange(2, 70), rng.random() < 0.2)
    unit = rng.choice([u for u in (8, 16, 32) if u <= block])
    return KVGroup(name, kind, block, unit, 0, kind == "full" and rng.random() < 0.2)


HASHES = [bytes([i]) * 32 for i in range(1, 13)]  # one for every 8 tokens
FULL, WINDOW = KVGroup("m@f@", "full", 16), KVGroup("m@w@", "window", 8, window=20)
STATE = KVGroup("m@s@", "state", 32, 8)
GROUPS = [FULL, WINDOW, STATE]
ASKED = {"unit": 8, "align": 16}


class Cancelled(unittest.TestCase):
    """By libtarn: because place() wanted nothing, or although it gave memory."""

    def got(self, memory):
        def cancels(handle, query, options, placed, *outputs):
            placed(None, 16, (_lib.KVPartsStruct * 1)(), 1)
            return int(tarn.Status.ECANCELED)

        look = kv_groups.KVLook([bytes(32)], [KVGroup("m@", block=16)], 16, 16)
        with mock.patch.object(kv_groups, "lib", mock.Mock(tarn_kv_get=cancels)):
            return look.get(None, None, lambda boundary: memory)

    def test_nobody_wanted_it(self):
        boundary, results = self.got(None)
        self.assertEqual((boundary.tokens, results), (16, []))

    def test_somebody_wanted_it(self):
        with self.assertRaises(tarn.Error):
            self.got([bytearray(4)])


class Pool(TarnTest):
    """Against the server."""

    def put(self, client, group, ends, size=200):
        """The parts that end there, of bytes that no other has."""
        pairs = []
        for end in ends:
            key = group.name + hash_text(HASHES[end // 8 - 1].hex())
            pairs.append((key, pattern(size, sum(key.encode()))))
        self.assertLessEqual(set(client.put_many(pairs)), {0, -10})
        return [value for _, value in pairs]

    def setUp(self):
        self.client().command("FLUSHALL")

    def test_brute_force(self):
        client, rng, found = self.client(), random.Random(16), 0
        for n in range(150):
            groups = [random_group(rng, f"m{n}@{i}@") for i in range(rng.randrange(1, 5))]
            align = max(g.unit for g in groups) * rng.choice((1, 1, 2))
            put = set()
            for g in groups:
                share = rng.choice((0.5, 0.8, 0.95, 1))
                all_ends = range(g.unit, 97, g.unit)
                put |= {(g.name, end) for end in all_ends if rng.random() < share}
            client.put_many(
                [(name + hash_text(HASHES[end // 8 - 1].hex()), b"x") for name, end in sorted(put)]
            )
            hashes = HASHES[: rng.randrange(1, 13)]
            limit = len(hashes) * 8

            def there(g):
                return lambda end: end <= limit and (g.name, end) in put

            tokens, ends = longest(groups, align, there, limit)
            boundary = client.kv_prefix(hashes, groups, unit=8, align=align, lease_ms=50)
            about = (n, groups, align, limit)
            self.assertEqual(boundary.tokens, tokens, about)
            got = [list(p.ends(g.block)) for g, p in zip(groups, boundary.parts)]
            self.assertEqual(got, ends, about)
            found += tokens > 0
        self.assertGreater(found, 50)

    def test_one_round_trip(self):
        client = self.client()
        bytes_of = [
            self.put(client, FULL, [16, 32, 48]),
            self.put(client, WINDOW, [24, 32, 40, 48], 5000),
            self.put(client, STATE, [32, 40], 1 << 20),
        ]
        right = KVBoundary(32, (KVParts(0, 2), KVParts(1, 3), KVParts(0, 1)))
        before = client.stats()["round_trips"]
        self.assertEqual(client.kv_prefix(HASHES, [FULL], **ASKED).tokens, 48)
        self.assertEqual(client.kv_prefix([], GROUPS, **ASKED), KVBoundary(0, (KVParts(),) * 3))
        self.assertEqual(client.stats()["round_trips"], before + 1)
        self.put(client, WINDOW, [16])
        self.assertEqual(client.kv_prefix(HASHES, GROUPS, **ASKED), right)
        memory = [bytearray(1 << 20) for _ in range(6)]
        memory[5] = [bytearray(100), bytearray(1 << 20)]
        for _ in range(2):  # the first time it also asks for the segment
            before = client.stats()["round_trips"]
            boundary, results = client.kv_get(HASHES, GROUPS, lambda b: memory, **ASKED)
            self.assertEqual(boundary, right)
            self.assertEqual(results, [200, 200, 200, 5000, 5000, 1 << 20])
        self.assertEqual(client.stats()["round_trips"], before + 1)
        self.assertEqual(memory[1][:200], bytes_of[0][1])
        self.assertEqual(memory[4][:5000], bytes_of[1][1])
        self.assertEqual(memory[5][0] + memory[5][1][: (1 << 20) - 100], bytes_of[2][0])

    def test_what_place_says(self):
        client = self.client()
        self.put(client, FULL, [16, 32])

        def get(place):
            return client.kv_get(HASHES, [FULL], place, **ASKED)

        boundary = KVBoundary(32, (KVParts(0, 2),))
        seen = []
        self.assertEqual(get(seen.append), (boundary, []))
        self.assertEqual(seen, [boundary])
        self.assertEqual(get(lambda b: [bytearray(200), bytearray(10)])[1], [200, -24])
        with self.assertRaisesRegex(tarn.InvalidArgument, "memory for 1 of 2 parts"):
            get(lambda b: [bytearray(200)])
        with self.assertRaises(ZeroDivisionError):
            get(lambda b: 1 // 0)
        with self.assertRaisesRegex(tarn.InvalidArgument, "writable"):
            get(lambda b: [b"x" * 200] * 2)
        self.assertEqual(get(lambda b: [bytearray(200), bytearray(200)])[1], [200, 200])
        boundary, results = client.kv_get(HASHES, [STATE], seen.append, **ASKED)
        self.assertEqual((boundary.tokens, results, len(seen)), (0, [], 1))

    def test_leases_are_on_what_is_read(self):
        client = self.client()
        self.put(client, FULL, [16, 32])
        self.put(client, WINDOW, [8, 16, 24, 32])
        boundary = client.kv_prefix(HASHES, [FULL, WINDOW], **ASKED, lease_ms=60000)
        self.assertEqual(boundary.tokens, 32)
        # all but the first block of the window
        self.assertIn("pool_evictable:256\r", client.command("INFO", "pool"))

    def test_waits(self):
        client, other = self.client(), self.client()
        hashes = HASHES[:4]
        self.assertEqual(client.kv_prefix(hashes, [FULL], **ASKED, wait_ms=30).tokens, 0)
        for ask in (
            lambda: client.kv_prefix(hashes, [FULL], **ASKED, wait_ms=600000).tokens,
            lambda: client.kv_get(
                hashes, [FULL], lambda b: [bytearray(200)] * 2, **ASKED, wait_ms=600000
            )[1],
        ):
            other.command("FLUSHALL")
            said = []
            thread = threading.Thread(target=lambda: said.append(ask()))
            thread.start()
            self.waiting()
            self.put(other, FULL, [16, 32])
            thread.join()
            self.assertIn(said[0], (32, [200, 200]))

    def test_refused(self):
        client = self.client()
        for words, options in (
            ("unit: a number of tokens, not 0", {"unit": 0, "align": 8}),
            ("align: a number of tokens, not '8'", {"unit": 8, "align": "8"}),
            ("KV group 1 of 1: the unit of the hashes divides", {"unit": 12, "align": 48}),
            ("its unit divides the alignment", {"unit": 8, "align": 8}),
        ):
            with self.assertRaisesRegex(tarn.InvalidArgument, words):
                client.kv_prefix(HASHES, [FULL], **options)
        with self.assertRaises(tarn.InvalidArgument):
            client.kv_prefix(HASHES, [], **ASKED)
        with self.assertRaises(tarn.InvalidArgument):
            client.kv_prefix([b""], [FULL], **ASKED)
        with self.assertRaises(tarn.InvalidArgument):
            client.kv_prefix(HASHES, [KVGroup("x" * 1000, block=16)], unit=8, align=16)
        client.close()
        with self.assertRaises(tarn.Closed):
            client.kv_prefix(HASHES, [FULL], **ASKED)

    def test_asyncio(self):
        self.put(self.client(), FULL, [16, 32])

        async def main():
            async with tarn.AsyncClient(self.server.url) as client:
                boundary = await client.kv_prefix(HASHES, [FULL], **ASKED, lease_ms=100, wait_ms=10)
                self.assertEqual(boundary.tokens, 32)
                memory = [bytearray(200), bytearray(200)]
                _, results = await client.kv_get(HASHES, [FULL], lambda b: memory, **ASKED)
                self.assertEqual(results, [200, 200])

        asyncio.run(main())


if __name__ == "__main__":
    sys.exit(unittest.main())
