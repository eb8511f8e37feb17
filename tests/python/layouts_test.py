"""The ten layouts: their bytes tell any two parts apart, and they come back from the pool."""

import unittest

from harness import TarnTest
from layouts import LAYOUTS, STATE, WINDOW, Group, Layout, Prompt


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


class RoundTrips(TarnTest):
    pool = "256mb"

    def test_every_layout_comes_back_bit_by_bit(self):
        client = self.client()
        prompt = Prompt.drawn(4, 1100)
        for layout in LAYOUTS:
            stored = parts(layout, prompt)
            client.put_many(stored)
            found = client.get_many([key for key, _ in stored])
            self.assertEqual(found, [value for _, value in stored], layout.name)
