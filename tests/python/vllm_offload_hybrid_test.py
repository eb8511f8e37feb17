"""The secondary tier of vLLM's OffloadingConnector with several KV groups: look-ups as vLLM's
scheduler does them, group by group until all agree, and every byte of what comes back."""

import unittest
from types import SimpleNamespace

from harness import TarnTest, wait_until
from scenes import EngineScenes, check
from vllm_offload_test import HIT, MISS, PENDING, RETRY, Manager, key, request, spec


def groups_of(layout):
    return tuple(
        SimpleNamespace(
            tokens_per_block=g.block, layer_names=tuple(f"{i}.{n}" for n in range(g.layers))
        )
        for i, g in enumerate(layout.groups)
    )


class Engine:
    """An engine's scheduler. A block of the primary tier has all ranks' parts, one after the
    other."""

    blocks = 200

    def __init__(self, url, layout):
        self.layout = layout
        of = spec(model="org/model", tp_size=layout.tp, dtype=layout.dtype)
        of.config.groups, of.config.cache.tokens_per_hash = groups_of(layout), layout.unit
        self.block = max(g.block_bytes(layout.tp) for g in layout.groups) * layout.tp
        self.manager = Manager(self.blocks, of, self.block, url=url, client={"retries": 0})
        self.requests = 0

    def key(self, prompt, group, end):
        return prompt.states[end] + group.to_bytes(4, "big")

    def row(self, prompt, group, end):
        g, tp = self.layout.groups[group], self.layout.tp
        parts = [self.layout.value(prompt, group, g.shard_of(tp, r), end) for r in range(tp)]
        return b"".join(parts).ljust(self.block, b".")

    def parts(self, prompt):
        for g in range(len(self.layout.groups)):
            for end in self.layout.stored(g, len(prompt)):
                yield g, end

    def forget(self):
        """The primary tier loses all of it."""
        primary = self.manager.primary
        for k in [k for k, refs in primary.refs.items() if refs == 0]:
            primary.drop(k)

    def store(self, prompt):
        values = {self.key(prompt, *part): self.row(prompt, *part) for part in self.parts(prompt)}
        keys = list(values)
        for i in range(0, len(keys), self.blocks):
            self.manager.store(keys[i : i + self.blocks], request("w"), values.get)
            self.manager.settle()
            self.forget()

    def load(self, prompt):
        self.requests += 1
        req, manager = request(f"r{self.requests}"), self.manager
        answers = []

        def has(group, shard, end):
            if end not in self.layout.stored(group, len(prompt)):
                return False
            answers.append(manager.lookup(self.key(prompt, group, end), req))
            return answers[-1] is not MISS

        def look():
            answers.clear()
            return self.layout.boundary(has, len(prompt))

        def settled():
            self.boundary = manager.step(look)
            return RETRY not in answers and PENDING not in answers

        wait_until(settled, 60, "look-ups and promotions")
        slots = manager.primary.slots
        for g in range(len(self.layout.groups)):
            for end in self.layout.needed(g, self.boundary):
                slot = slots[self.key(prompt, g, end)]
                check(manager.primary.bytes_of(slot), self.row(prompt, g, end), (g, end))
        manager.tier.on_request_finished(req)
        manager.settle()
        self.forget()
        return self.boundary

    def close(self):
        self.manager.close()


class Scenes(EngineScenes, unittest.TestCase):
    def engine(self, url, layout):
        return Engine(url, layout)

    def longest(self, layout, tokens):
        return layout.boundary(lambda g, s, end: end in layout.stored(g, tokens), tokens)


class Groups(TarnTest):
    def setUp(self):
        self.client().command("FLUSHALL")

    def manager(self, groups):
        of = spec()
        of.config.groups = groups
        made = Manager(of=of, url=self.server.url)
        self.addCleanup(made.close)
        return made

    def test_blocks_of_one_hash_and_several_groups(self):
        """They are objects of their own, of one boundary, and asked for in one request."""
        two = tuple(SimpleNamespace(tokens_per_block=16, layer_names=(n,)) for n in "ab")
        m = self.manager(two)
        keys = [key(i, group) for i in range(6) for group in range(2)]
        m.store(keys, request("w"))
        m.settle()
        for k in keys:
            m.primary.drop(k)
        client = self.client()
        self.assertIn("\nboundaries:6\r", client.command("INFO", "everything"))
        req = request("r")
        answers = [m.step(lambda: [m.lookup(k, req) for k in keys])]
        asked = m.tier.take_counts()["lookups"]
        wait_until(lambda: m.step(lambda: all(m.lookup(k, req) is HIT for k in keys)))
        self.assertEqual((answers, asked), ([[RETRY] * 12], 12))
        for k in keys:
            slot = m.primary.slots[k]
            self.assertEqual(m.primary.bytes_of(slot), (k * m.primary.block)[: m.primary.block])
        m.tier.on_request_finished(req)

    def test_one_group_needs_no_boundaries(self):
        m = self.manager((SimpleNamespace(tokens_per_block=16, layer_names=("a",)),))
        m.store([key(i) for i in range(6)], request("w"))
        m.settle()
        self.assertIn("\nboundaries:0\r", self.client().command("INFO", "everything"))

    def test_which_groups_share(self):
        one = (SimpleNamespace(tokens_per_block=16, layer_names=("a", "b")),)
        seen = set()
        for groups in (
            one,
            one + (SimpleNamespace(tokens_per_block=16, layer_names=("c",)),),
            (SimpleNamespace(tokens_per_block=32, layer_names=("a", "b")),),
            tuple(SimpleNamespace(tokens_per_block=16, layer_names=(n,)) for n in "ab"),
            tuple(SimpleNamespace(tokens_per_block=16, layer_names=(n,)) for n in "ba"),
        ):
            seen.add(self.manager(groups).tier._prefix)
        self.assertEqual(len(seen), 5)


if __name__ == "__main__":
    unittest.main()
