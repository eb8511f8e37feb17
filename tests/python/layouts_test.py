"""The ten layouts: their bytes tell any two parts apart, and they come back from the pool."""

import os
import random
import tempfile
import unittest

from harness import Node, Server, TarnTest, wait_until
from layouts import LAYOUTS, STATE, TAILS, WINDOW, Group, Layout, Prompt

import tarn


def parts(layout, prompt):
    """(key, bytes) of all that engines store of a prompt."""
    return [
        (layout.key(prompt, g, s, end), layout.value(prompt, g, s, end))
        for g, s in layout.shards()
        for end in layout.stored(g, len(prompt))
    ]


class Bytes(unittest.TestCase):
    def test_no_two_parts_of_any_layout_share_a_key_or_bytes(self):
        one = Prompt.drawn(1, 1200)
        two = one.branch(544, 2, 1200)
        keys, values, shared = {}, {}, 0
        for layout in LAYOUTS:
            for prompt in (one, two):
                for key, value in parts(layout, prompt):
                    shared += key in keys
                    self.assertEqual(keys.setdefault(key, value), value)
                    self.assertEqual(values.setdefault(value, key), key)
        self.assertGreater(len(keys), 500)
        self.assertGreater(shared, 100)  # what both prompts begin with

    def test_a_part_is_as_long_as_its_group_says(self):
        prompt = Prompt.drawn(3, 1100)
        for layout in LAYOUTS:
            for g, s in layout.shards():
                group = layout.groups[g]
                for end in layout.stored(g, len(prompt)):
                    whole = group.block_bytes(layout.tp)
                    short = 0 if group.kind == STATE else -end % group.block
                    size = whole - whole * short // group.block
                    self.assertEqual(len(layout.value(prompt, g, s, end)), size)

    def test_ranks_with_the_same_heads_are_one_shard(self):
        group = Group(heads=2)
        self.assertEqual([group.shard_of(4, rank) for rank in range(4)], [0, 0, 1, 1])
        self.assertEqual([group.shard_of(2, rank) for rank in range(2)], [0, 1])
        self.assertEqual(Group(form="latent").shards(8), 1)

    def test_what_a_boundary_needs(self):
        layout = Layout("x", (Group(block=16), Group(WINDOW, block=16, window=33)))
        self.assertEqual(layout.needed(0, 64), [16, 32, 48, 64])
        self.assertEqual(layout.needed(1, 64), [48, 64])
        stored = {(0, 16), (0, 32), (0, 48), (1, 32), (1, 48)}
        self.assertEqual(layout.boundary(lambda g, s, end: (g, end) in stored, 64), 48)
        self.assertEqual(layout.boundary(lambda g, s, end: (g, end) in stored - {(1, 32)}, 64), 0)

    def test_there_are_blocks_from_16_to_544_tokens(self):
        blocks = {group.block for layout in LAYOUTS for group in layout.groups}
        self.assertTrue({16, 544} <= blocks)
        self.assertGreaterEqual(len(blocks), 7)


class WithPool(TarnTest):
    def store(self, client, layout, prompt):
        return client.put_many(parts(layout, prompt))

    def read(self, client, layout, prompt, lost=False):
        """The longest boundary that the pool names; what it says is read is read, and right. lost:
        parts may be away by then. How many tokens came back."""
        found = client.kv_prefix(
            prompt.hashes(layout.unit),
            layout.kv_groups(),
            unit=layout.unit,
            align=layout.align,
            lease_ms=60_000,
        )
        whole = True
        for (g, s), said in zip(layout.shards(), found.parts):
            ends = list(said.ends(layout.groups[g].block))
            if layout.groups[g].unit == 0:  # what is read is what is needed, and no more
                self.assertEqual(ends, layout.needed(g, found.tokens), layout.name)
            values = client.get_many([layout.key(prompt, g, s, end) for end in ends])
            for end, value in zip(ends, values):
                if value is None and lost:
                    whole = False
                else:
                    self.assertTrue(
                        value == layout.value(prompt, g, s, end),
                        f"{layout.name}: group {g} shard {s} end {end}: {value and len(value)}",
                    )
        return found.tokens if whole else 0

    def expected(self, client, layout, prompt):
        """By definition, from what exists."""
        keys = [
            (g, s, end)
            for g, s in layout.shards()
            for end in range(layout.groups[g].place, len(prompt) + 1, layout.groups[g].place)
        ]
        there = client.exists_many([layout.key(prompt, *key) for key in keys])
        has = {key for key, is_there in zip(keys, there) if is_there}
        return layout.boundary(lambda *key: key in has, len(prompt))


class RoundTrips(WithPool):
    pool = "256mb"

    def test_every_layout_comes_back_bit_by_bit(self):
        client = self.client()
        prompt = Prompt.drawn(4, 1100)
        for layout in (*LAYOUTS, TAILS):
            self.store(client, layout, prompt)
            tokens = self.read(client, layout, prompt)
            self.assertEqual(tokens, self.expected(client, layout, prompt), layout.name)
            self.assertGreaterEqual(tokens, 1100 - 2 * 544, layout.name)

    def test_prompts_that_branch_share_what_they_begin_with(self):
        client = self.client()
        one = Prompt.drawn(5, 1200)
        two = one.branch(1100, 6, 1200)
        for layout in LAYOUTS:
            self.store(client, layout, one)
            tokens = self.read(client, layout, two)
            self.assertEqual(tokens, self.expected(client, layout, two), layout.name)
            self.assertTrue(0 < tokens <= 1100, f"{layout.name}: {tokens}")

    def test_parts_that_are_missing(self):
        client = self.client()
        rng = random.Random(7)
        shorter = 0
        for layout in (*LAYOUTS, TAILS):
            for seed in range(3):
                prompt = Prompt.drawn(f"{layout.name}{seed}", 1200)
                self.store(client, layout, prompt)
                before = self.read(client, layout, prompt)
                client.command("FLUSHALL")
                stored = parts(layout, prompt)
                client.put_many(rng.sample(stored, len(stored) - rng.randrange(1, 6)))
                tokens = self.read(client, layout, prompt)
                self.assertEqual(tokens, self.expected(client, layout, prompt), layout.name)
                shorter += tokens < before
        self.assertGreater(shorter, 7)


class AFullPool(WithPool):
    pool = "1mb"

    def test_what_is_found_is_right_and_stays(self):
        client = self.client()
        hits = misses = 0
        for layout in LAYOUTS:
            prompts = [Prompt.drawn(f"full{seed}", 1100) for seed in range(6)]
            for prompt in prompts:
                self.store(client, layout, prompt)
            for prompt in reversed(prompts):
                tokens = self.read(client, layout, prompt)
                hits += tokens > 0
                misses += tokens == 0
        self.assertIn("evicted", client.command("INFO", "stats"))
        self.assertGreater(hits, 10)
        self.assertGreater(misses, 10)


class ARestart(WithPool):
    pool = None

    def test_everything_is_found_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pool")
            with Server("64mb", "--pool-path", path) as server:
                prompt = Prompt.drawn(8, 1100)
                with tarn.Client(server.url) as client:
                    before = []
                    for layout in LAYOUTS:
                        self.store(client, layout, prompt)
                        before.append(self.read(client, layout, prompt))
                server.restart()
                with tarn.Client(server.url) as client:
                    after = [self.read(client, layout, prompt) for layout in LAYOUTS]
                self.assertEqual(before, after)
                self.assertTrue(all(before))


class ANodeThatIsLost(WithPool):
    pool = "0"
    server_args = ("--node-heartbeat", "100")

    def test_what_is_left_is_right(self):
        client = self.client()
        nodes = [Node(self.server, name=name, pool="2mb") for name in ("one", "two")]
        for node in nodes:
            self.addCleanup(node.stop)
        prompt = Prompt.drawn(9, 1100)
        for layout in LAYOUTS:
            self.store(client, layout, prompt)
        before = [self.read(client, layout, prompt) for layout in LAYOUTS]
        self.assertTrue(all(before))
        nodes[0].kill()
        for layout in LAYOUTS:  # the master may not know of it yet
            self.read(client, layout, prompt, lost=True)
        wait_until(lambda: "nodes_up:1\r" in client.command("INFO", "nodes"), what="one node is up")
        after = [self.read(client, layout, prompt) for layout in LAYOUTS]
        expected = [self.expected(client, layout, prompt) for layout in LAYOUTS]
        self.assertEqual(after, expected)
        self.assertLess(sum(after), sum(before))
