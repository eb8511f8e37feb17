"""TarnConnector for hybrid models: the ten layouts of layouts.py, driven by groups_engine.py."""

import random
import unittest
from dataclasses import replace
from unittest import mock

from vllm_helpers import SlowClient, SlowConnector, StagedConnector, WithServer
import tarn
from groups_engine import GroupsEngine, ask
from layouts import LAYOUTS, Prompt
from tarn.chain import Chain
from tarn.vllm import TarnConnector

BY_NAME = {layout.name: layout for layout in LAYOUTS}
HYBRID = [layout for layout in LAYOUTS if len(layout.groups) > 1]


class WithGroups(WithServer):
    pool = "256mb"

    def hybrid(self, layout, kind=TarnConnector, **options):
        for name in ("timeout_ms", "lookup_timeout_ms"):
            options.setdefault(name, 60_000)
        options.setdefault("min_load_tokens", 0)  # whatever the machine is busy with
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


class Soak(WithGroups):
    """Requests that share beginnings, in chunks, with too few blocks, aborted and preempted; slow
    puts, so that a block which is given away while it is read would be found in the pool."""

    def soak(self, layout, kind, seed, requests=9, **options):
        rng = random.Random(seed)
        stem = Prompt.drawn(seed, 4 * layout.align)
        need = sum(2 + (5 * layout.align) // group.block for group in layout.groups)
        engine = self.hybrid(layout, kind, blocks=need + need // 8, seed=seed, **options)
        prompts, live = [], []
        for n in range(requests):
            at = rng.randrange(1, 4 * layout.align)
            prompts.append(stem.branch(at, seed * 100 + n, rng.randrange(at, 5 * layout.align)))
            copy = Prompt(prompts[-1].tokens)
            live.append(engine.add(copy, max_tokens=rng.randrange(1, 30)))
            for _ in range(rng.randrange(6)):
                engine.step()
            if rng.random() < 0.2:
                engine.abort(rng.choice(live))
        engine.settle()
        self.assertTrue(any(self.check_parts(engine, prompts)))
        return engine

    def test_chunks_preemption_and_aborts(self):
        preempted = loaded = 0
        for seed, layout in enumerate(HYBRID):
            for kind in (TarnConnector, SlowConnector):
                with self.subTest(layout.name, kind=kind.__name__):
                    self.flush()
                    budget = max(40, layout.align // 3)
                    with mock.patch.object(SlowClient, "delay", 0.005):
                        engine = self.soak(layout, kind, seed, budget=budget)
                    preempted += engine.preemptions
                    loaded += engine.external
        self.assertGreater(preempted, 2)
        self.assertGreater(loaded, 1000)

    def test_without_a_block_pool(self):
        """Releases that do not hand theirs over: saves end before the next step begins."""
        for seed, layout in enumerate((BY_NAME["full-window"], BY_NAME["three-groups"])):
            self.flush()
            with mock.patch.object(SlowClient, "delay", 0.01):
                self.soak(layout, SlowConnector, seed, budget=layout.align, pool_bound=False)


class Ways(WithGroups):
    """Roles, copies, releases of vLLM that differ."""

    def share(self, layout, first, second, kind=TarnConnector):
        prompt = Prompt.drawn(3, self.length(layout))
        self.assertEqual(ask(self.hybrid(layout, kind, **first), prompt), [0])
        return ask(self.hybrid(layout, kind, **second), prompt)[0]

    def test_behind_copies(self):
        for layout in HYBRID:
            for extra in ({}, {"staging_mib": 1, "batch_blocks": 3}):
                with self.subTest(layout.name, **extra):
                    self.flush()
                    self.assertGreater(self.share(layout, extra, extra, StagedConnector), 0)

    def test_format_with_the_first_output(self):
        layout = BY_NAME["tp2"]
        late = {"handshake": False}
        self.assertEqual(self.share(layout, late, late), 0, "nothing can be looked up before")
        engine = self.hybrid(layout, **late)
        ask(engine, Prompt.drawn(9, layout.align))
        self.assertGreater(ask(engine, Prompt.drawn(3, self.length(layout)))[0], 0)

    def test_roles(self):
        layout = BY_NAME["three-groups"]
        prompt = Prompt.drawn(3, self.length(layout))
        producer = self.hybrid(layout, role="kv_producer")
        request = producer.add(Prompt(prompt.tokens))
        producer.settle()
        self.assertEqual(request.result_params, {"tarn_tokens": 3 * layout.align})
        consumer = self.hybrid(layout, role="kv_consumer", arrival_ms=60_000)
        request = consumer.add(Prompt(prompt.tokens), params=request.result_params)
        consumer.settle()
        self.assertEqual(request.external, 3 * layout.align)
        self.assertIsNone(request.result_params)
        self.assertEqual(consumer.workers[0].connector.stats()["saved"], 0)

    def test_a_prefill_that_goes_on_is_awaited(self):
        layout = BY_NAME["three-groups"]
        prompt = Prompt.drawn(3, self.length(layout))
        producer = self.hybrid(layout, role="kv_producer")
        consumer = self.hybrid(layout, role="kv_consumer", arrival_ms=3_600_000)
        request = consumer.add(Prompt(prompt.tokens), params={"tarn_tokens": 3 * layout.align})
        consumer.step()
        tracked = consumer.connector._scheduler._requests[request.request_id]
        for n in 1, 2:
            tracked.came -= 3000
            producer.add(Prompt(prompt.tokens[: n * layout.align + 1]))
            producer.settle()
            while tracked.found.tokens < n * layout.align:
                self.assertFalse(consumer.step())
        tracked.came -= 3601
        consumer.settle()
        self.assertEqual(request.external, 2 * layout.align)

    def test_a_producer_announces_what_is_found(self):
        """With speculative decoding less than what it has saved."""
        for layout in HYBRID:
            self.flush()
            producer = self.hybrid(layout, role="kv_producer")
            prompt = Prompt.drawn(3, self.length(layout))
            request = producer.add(Prompt(prompt.tokens))
            producer.settle()
            found = ask(self.hybrid(layout, role="kv_consumer"), prompt)
            self.assertEqual([request.result_params["tarn_tokens"]], found, layout.name)

    def test_what_cannot_be_found_is_not_waited_for(self):
        """A prompt that fills its last block: the last token is computed, and so is what drops."""
        layout = BY_NAME["eagle"]
        prompt = Prompt.drawn(3, 3 * layout.align)
        producer = self.hybrid(layout, role="kv_producer")
        made = producer.add(Prompt(prompt.tokens))
        producer.settle()
        consumer = self.hybrid(layout, role="kv_consumer", arrival_ms=60_000)
        request = consumer.add(Prompt(prompt.tokens), params=made.result_params)
        consumer.settle(20)
        self.assertEqual((made.result_params, request.external), ({"tarn_tokens": 128}, 64))

    def test_what_the_engine_has_is_not_loaded(self):
        for layout in HYBRID:
            self.flush()
            dropped = any(group.drops_last for group in layout.groups)
            local, there = (2 - dropped) * layout.align, (5 - dropped) * layout.align
            engine, other = self.hybrid(layout, blocks=200), self.hybrid(layout, seed=1)
            prompt = Prompt.drawn(5, self.length(layout, 5))
            ask(engine, Prompt(prompt.tokens[: 2 * layout.align + 2]))
            ask(other, prompt)
            self.assertEqual(ask(engine, prompt), [there - local], layout.name)
            needed = [
                [end for end in layout.needed(i, there) if end > local]
                for i in range(len(layout.groups))
            ]
            for worker in engine.workers:
                loaded = worker.connector.get_kv_connector_stats().data["loaded_objects"]
                self.assertEqual(loaded, sum(map(len, needed)), layout.name)

    def test_only_what_a_hit_can_need_is_stored(self):
        """Of a window the blocks before a boundary, of states those at one."""
        layout = BY_NAME["full-window"]
        wide = replace(layout, groups=(replace(layout.groups[0], block=96), layout.groups[1]))
        writer = self.hybrid(wide)
        ask(writer, Prompt.drawn(3, 3 * 96))
        with tarn.Client(self.server.url) as client:
            keys = client.command("KEYS", "*kv1@*").split()
        self.assertEqual(len(keys), 3 * 3)  # of the 18 blocks of 16, 3 before each of 3 boundaries
        self.assertEqual(ask(self.hybrid(wide, seed=1), Prompt.drawn(3, 3 * 96)), [2 * 96])

    def test_another_connector_fills_the_blocks(self):
        """Under vLLM's MultiConnector: ours is asked, and another one's hit is used."""
        layout = BY_NAME["three-groups"]
        engine = self.hybrid(layout)
        prompt = Prompt.drawn(3, self.length(layout))
        with mock.patch.object(engine.connector, "update_state_after_alloc") as after:
            after.side_effect = lambda request, blocks, n: TarnConnector.update_state_after_alloc(
                engine.connector, request, blocks, 0
            )
            self.assertEqual(ask(engine, prompt), [0])
        self.assertTrue(all(self.check_parts(engine, [prompt])))


if __name__ == "__main__":
    unittest.main()
