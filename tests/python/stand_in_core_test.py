"""The core of utils/examples/stand_in_engine.py, step by step and without HTTP: what loads, saves,
aborts and preemptions do to blocks, and to answers."""

import logging
import random
import threading
import time
import unittest

from harness import SLOW, TarnTest
import tarn
from stand_in_engine_test import prompt
from stand_in_helpers import EXAMPLES  # where it is
from stand_in.core import Core, Request
from stand_in.hardware import GPUS, PRESETS, Speed
from stand_in.metrics import Figures
from stand_in.model import SCRIBBLE, Model
from stand_in.pool import NOTHING, ConnectorPool, NoPool, Outcome

logging.getLogger("tarn.vllm").addHandler(logging.NullHandler())
assert EXAMPLES
SIZE = 64  # bytes of a token


def core_of(make_pool=None, blocks=40):
    """make_pool: of a model; None: the core is by itself. It never sleeps."""
    model = Model("m", 4, SIZE, blocks)
    pool = make_pool(model) if make_pool else NoPool()
    speed = Speed(GPUS["H100"], PRESETS["Llama-3-8B"], 1, 24)
    figures = Figures("m", blocks, 4)
    return Core(model, pool, speed, figures, lambda events: None, blocks=blocks, factor=1e9)


def ask(core, tokens, made, **more):
    """A request, and the list of what it makes."""
    got = []
    out = lambda request, new, reason: got.extend(new)  # noqa: E731
    request = Request("r", tokens, 4, out, max_tokens=made, ignore_eos=True, **more)
    core._add(request)
    return request, got


def settle(core):
    """Until nothing is under way."""
    until = time.monotonic() + 60 * SLOW
    while core.requests or core._finished:
        core.step()
        assert time.monotonic() < until, [r.status for r in core.requests.values()]


class Loading(NoPool):
    """A pool that has all of a prompt, and is late with it: step by step it says what `script` has.
    What arrived is right, and what did not is not there."""

    def __init__(self, model):
        self.model, self.script, self.request = model, [], None

    def matched(self, request, computed):
        return 0 if self.request else (request.num_tokens - 1) // 4 * 4 - computed

    def allocated(self, request, external):
        self.request = self.request or request

    def end(self, meta, finished):
        return self.script.pop(0)(self) if self.script and self.request else NOTHING


class Steps(unittest.TestCase):
    def answer(self, tokens, made):
        core = core_of(blocks=400)
        _, got = ask(core, tokens, made)
        settle(core)
        return got

    def test_a_block_that_does_not_arrive_is_told_of_before_the_load_is_over(self):
        tokens = prompt(1, 25)

        def lost(pool):
            for i in (0, 1, 2, 4, 5):
                pool.model.fill(pool.request, i)  # blocks 4 and 5 after a wrong one
            return Outcome(set(), set(), {pool.request.blocks[3]})

        def over(pool):
            return Outcome({pool.request.request_id}, set(), set())

        core = core_of(Loading)
        core.pool.script = [lost, over]
        request, got = ask(core, tokens, 6)
        settle(core)
        self.assertEqual(request.cached, 12)
        self.assertEqual(got, self.answer(tokens, 6))

    def test_blocks_are_not_written_before_nobody_reads_them(self):
        """Of a request that loses them, they may be on their way into the pool until `begin`."""
        scribbled, preempted = bytes([SCRIBBLE]) * 4 * SIZE, []

        class Reading(NoPool):
            had = {}  # full blocks of each request when a step ended

            def plan(self, out):
                return out.preempted_req_ids

            def begin(self, meta):
                for name in meta:
                    preempted.append(name)
                    for block in self.had[name]:
                        test.assertNotEqual(bytes(core.model.at(block)), scribbled)

            def end(self, meta, finished):
                for r in core.running:
                    self.had[r.request_id] = r.blocks[: r.num_computed_tokens // 4]
                return NOTHING

        test, core = self, core_of(lambda model: Reading(), blocks=20)
        for seed in range(3):
            ask(core, prompt(seed, 8), 20)  # all in one step, so they need blocks in one, too
        settle(core)
        self.assertTrue(preempted)


class Disorder(TarnTest):
    """Prompts with common beginnings, far too few blocks, requests that are given up. Every token
    is right, and no block is lost."""

    pool = "16mb"

    def setUp(self):
        self.alone, self.whole = core_of(blocks=400), {}

    def right(self, tokens):
        if tuple(tokens) not in self.whole:
            _, self.whole[tuple(tokens)] = ask(self.alone, tokens, 40)
            settle(self.alone)
        return self.whole[tuple(tokens)]

    def run_one(self, seed):
        rng, asked = random.Random(seed), []
        options = {"save_decode": True, "arrival_ms": 5}
        core = core_of(lambda m: ConnectorPool(self.server.url, m, 40, "both", "", options))
        for _ in range(60):
            kind = rng.randrange(12)
            tokens = prompt(kind % 3, rng.randrange(3) * 12) + prompt(kind, 4 + kind * 3)
            params = rng.choice([None, {"tarn_tokens": len(tokens)}])
            asked.append((tokens, *ask(core, tokens, rng.randrange(1, 40), params=params)))
            for _ in range(rng.randrange(6)):
                core.step()
            if rng.random() < 0.2:
                core._abort(rng.choice(asked)[1], "abort")
        settle(core)
        core.pool.close()
        self.assertEqual(core.blocks.used, 0)
        for tokens, _, got in asked:
            self.assertEqual(got, self.right(tokens)[: len(got)])

    def test_with_a_pool(self):
        for seed in range(8):
            self.run_one(seed)

    def test_with_a_pool_whose_objects_vanish(self):
        over = threading.Event()

        def vanish():
            with tarn.Client(self.server.url) as client:
                while not over.wait(0.003):
                    client.command("FLUSHALL")

        thread = threading.Thread(target=vanish)
        thread.start()
        try:
            for seed in range(8):
                self.run_one(seed)
        finally:
            over.set()
            thread.join()


if __name__ == "__main__":
    unittest.main()
