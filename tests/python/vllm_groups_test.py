"""TarnConnector for hybrid models: the ten layouts of layouts.py, driven by groups_engine.py."""

import random
import time
import unittest
from types import SimpleNamespace

from vllm_helpers import WithServer
import tarn
from groups_engine import GroupsEngine, ask
from layouts import FULL, LAYOUTS, STATE, WINDOW, Prompt
from tarn.chain import Chain
from tarn.vllm import TarnConnector

BY_NAME = {layout.name: layout for layout in LAYOUTS}
HYBRID = [layout for layout in LAYOUTS if len(layout.groups) > 1]


class WithGroups(WithServer):
    pool = "256mb"

    def hybrid(self, layout, kind=TarnConnector, **options):
        for name in ("timeout_ms", "lookup_timeout_ms"):
            options.setdefault(name, 60_000)
        if len(layout.groups) == 1:
            options.setdefault("load_async", True)
        largest = max(group.block for group in layout.groups)
        options.setdefault("budget", largest + largest // 2)
        engine = GroupsEngine(self.server.url, kind, layout, **options)
        self.engines.append(engine)
        return engine

    def length(self, layout, blocks=3):
        """A prompt that ends inside a block."""
        return blocks * layout.align + layout.align // 3

    def check_parts(self, engine, prompts):
        """Every object that these prompts can have put has the right bytes. Returns how many there
        are, by KV group."""
        expected = {}
        for number, group in enumerate(engine.layout.groups):
            for worker in engine.workers:
                space = worker.connector._worker._spaces[number]
                for prompt in prompts:
                    names = {}
                    chain = Chain(engine.layout.unit, revision="")
                    chain.extend(prompt.tokens)
                    for end in engine.layout.stored(number, len(prompt)):
                        names[end] = space.key(chain.hashes[end // engine.layout.unit - 1])
                    for end, name in names.items():
                        value = engine.layout.value(
                            prompt, number, worker.memory.shards[number], end
                        )
                        expected[name] = (number, value)
        with tarn.Client(self.server.url) as client:
            found = client.get_many(list(expected))
        there = [0] * len(engine.layout.groups)
        for (key, (number, right)), got in zip(expected.items(), found):
            self.assertTrue(got in (None, right), key)
            there[number] += got is not None
        return there


class RoundTrips(WithGroups):
    def test_every_layout_comes_back(self):
        """What one engine has computed another one loads: every byte that attention reads is
        right, and every object in the pool."""
        for layout in LAYOUTS:
            with self.subTest(layout.name):
                self.flush()
                prompt = Prompt.drawn(7, self.length(layout))
                writer = self.hybrid(layout)
                self.assertEqual(ask(writer, prompt), [0])
                if len(layout.groups) > 1:
                    self.assertTrue(all(self.check_parts(writer, [prompt])))
                reader = self.hybrid(layout, seed=1)
                dropped = any(group.drops_last for group in layout.groups)
                boundary = (3 - dropped) * layout.align
                self.assertEqual(ask(reader, prompt), [boundary])
                branch = prompt.branch(2 * layout.align, 1, self.length(layout))
                other = self.hybrid(layout, seed=2)
                self.assertEqual(ask(other, branch), [(2 - dropped) * layout.align])


if __name__ == "__main__":
    unittest.main()
