"""What every engine's connector must stand with a hybrid model: each layout comes back bit by bit
into another engine, and not into one of another model; with a pool that is full, that starts again,
and that loses a node in the middle.

    class Scenes(EngineScenes, unittest.TestCase):
        def engine(self, url, layout): ...      # store(prompt), load(prompt) -> tokens, close()

`load` checks every byte of what it says that it loaded, by `check`. All layouts are of one model as
far as the connector promises to tell them apart by something else than its name."""

from functools import lru_cache

from harness import Node, Server, wait_until
from layouts import FULL, LAYOUTS, Prompt

import tarn

TOKENS = 1152  # whole pages of all layouts up to 288 tokens; two of 544


@lru_cache(maxsize=None)
def drawn(number):
    """One of a few prompts: what a prompt's right bytes are is found once."""
    return Prompt.drawn(f"scenes {number}", TOKENS)


@lru_cache(maxsize=None)
def branched():
    """As the first one up to the middle."""
    return drawn(0).branch(TOKENS // 2, "scenes", TOKENS)


def check(found, right, what):
    """Fails without printing thousands of bytes."""
    if bytes(found) != right:
        at = next((i for i, (a, b) in enumerate(zip(found, right)) if a != b), len(right))
        raise AssertionError(f"{what}: {len(found)} bytes of {len(right)}, other ones from {at} on")


class EngineScenes:
    """To be mixed into a TestCase that has `engine`."""

    layouts = LAYOUTS

    def engine(self, url, layout):
        raise NotImplementedError

    def longest(self, layout, tokens):
        """The longest prefix that can come back of a prompt of so many tokens."""
        return tokens // layout.align * layout.align

    def made(self, server, layout):
        engine = self.engine(server.url, layout)
        self.addCleanup(engine.close)
        return engine

    def server(self, *args, pool="64mb"):
        server = Server(pool, *args)
        self.addCleanup(server.stop)
        return server

    def test_each_layout_comes_back_bit_by_bit(self):
        server = self.server()
        one, other = drawn(0), branched()
        for layout in self.layouts:
            with self.subTest(layout=layout.name):
                writer, reader = self.made(server, layout), self.made(server, layout)
                self.assertEqual(reader.load(one), 0)
                writer.store(one)
                self.assertEqual(reader.load(one), self.longest(layout, TOKENS))
                self.assertLessEqual(reader.load(other), TOKENS // 2)
                writer.store(other)
                self.assertEqual(reader.load(other), self.longest(layout, TOKENS))
                self.assertEqual(reader.load(one), self.longest(layout, TOKENS))

    def test_no_layout_is_read_as_another(self):
        server = self.server()
        prompt = drawn(0)
        engines = [self.made(server, layout) for layout in self.layouts]
        for n, engine in enumerate(engines):
            self.assertEqual(engine.load(prompt), 0, self.layouts[n].name)
            engine.store(prompt)
        for engine, layout in zip(engines, self.layouts):
            self.assertEqual(engine.load(prompt), self.longest(layout, TOKENS), layout.name)

    def crowd(self, server, megabytes):
        """So much of others goes into the pool."""
        with tarn.Client(server.url) as client:
            data = bytes(16 << 10)
            for _ in range(megabytes):
                self.crowded += 64
                keys = [f"crowd {self.crowded + i}" for i in range(64)]
                client.put_many([(key, data) for key in keys])

    crowded = 0

    def test_a_full_pool_gives_what_is_right_or_nothing(self):
        server = self.server("--eviction-policy", "lru", pool="16mb")
        for layout in self.layouts:
            with self.subTest(layout=layout.name):
                engine, whole = self.made(server, layout), self.longest(layout, TOKENS)
                prompts = [drawn(i) for i in range(3)]
                for prompt in prompts:
                    self.crowd(server, 8)
                    engine.store(prompt)
                found = [engine.load(prompt) for prompt in prompts]
                self.assertEqual(found[-1], whole, "the last one is there")
                self.assertLess(found[0], whole, "the first one had to go")

    def test_a_pool_that_starts_again(self):
        server = self.server()
        engines = [self.made(server, layout) for layout in self.layouts]
        first, second = drawn(0), drawn(1)
        for engine in engines:
            engine.store(first)
        server.kill()
        for engine in engines:
            self.assertEqual(engine.load(first), 0)
            engine.store(second)
        server.start()
        for engine, layout in zip(engines, self.layouts):
            with self.subTest(layout=layout.name):
                self.again(engine, second, self.longest(layout, TOKENS))
                self.assertEqual(engine.load(first), 0)

    def again(self, engine, prompt, whole):
        """Until all of it can be stored and loaded."""

        def stored():
            engine.store(prompt)
            return engine.load(prompt) == whole

        wait_until(stored, 60, "the pool is used again")

    def test_a_node_is_lost_in_the_middle(self):
        server = self.server("--node-timeout", "2s", pool="0")
        nodes = [Node(server, "--host-name", f"m{i}", pool="64mb") for i in range(2)]
        for node in nodes:
            self.addCleanup(node.stop)
        engines = [self.made(server, layout) for layout in self.layouts]
        wholes = [self.longest(layout, TOKENS) for layout in self.layouts]
        prompts = [drawn(i) for i in range(3)]
        for engine, whole in zip(engines, wholes):
            for prompt in prompts:
                engine.store(prompt)
            self.assertEqual(engine.load(prompts[0]), whole)
        nodes[0].kill()
        for engine, whole in zip(engines, wholes):
            for prompt in prompts:  # right bytes, as far as they go
                self.assertLessEqual(engine.load(prompt), whole)
        for engine, layout, whole in zip(engines, self.layouts, wholes):
            with self.subTest(layout=layout.name):
                self.again(engine, prompts[0], whole)


def page_value(layout, group, shard, prompt, end, page):
    """The bytes of the page of a KV group that ends at a token: its blocks, or its one state."""
    g = layout.groups[group]
    ends = [end] if g.form == "recurrent" else range(end - page + g.block, end + 1, g.block)
    return b"".join(layout.value(prompt, group, shard, e) for e in ends)


def main_group(layout):
    """The KV group that needs every block."""
    return next(i for i, g in enumerate(layout.groups) if g.kind == FULL)
