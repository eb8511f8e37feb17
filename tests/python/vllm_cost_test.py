"""Load or compute: what is measured, and what follows from it. Times are simulated."""

import itertools
import random
import socket
import time
import unittest

from harness import Server
from vllm_engine import Engine
from vllm_helpers import PatientPool, WithServer, prompt
import tarn
from groups_engine import GroupsEngine
from layouts import LAYOUTS, Prompt
from tarn.vllm import TarnConnector
from tarn.vllm.cost import AS_MEASURED, ENOUGH, TRY_S, Judge, Line, Steps
from tarn.vllm.pool import Pool, _nearest
from vllm_model import Request


class World:
    """An engine of `per_token` seconds and a pool of tiers with (a, b), and a clock for both."""

    def __init__(self, per_token, tiers, seed=1, **options):
        self.now, self.per_token, self.tiers = 100.0, per_token, dict(tiers)
        self.rng = random.Random(seed)
        self.judge = Judge(options.get("least", AS_MEASURED), 1, lambda: self.now)
        self.loads = 0

    def noise(self):
        return self.rng.uniform(0.9, 1.1)

    def step(self, tokens, took=None):
        """A step of prefill among some requests that decode. took: what a rank says in it."""
        self.judge.planned([1, 1, 1, *([tokens] if tokens else [])], loads=())
        self.now += 0.01 + tokens * self.per_token * self.noise()
        self.judge.told(took or {}, took or {})

    def request(self, tier, tokens):
        """A hit of so many tokens, loaded or computed. Whether it was loaded."""
        name = f"r{self.now}"
        loads = self.judge.choose(name, tokens, lambda: tier, must=False)
        assert self.judge.choose(name, tokens, lambda: tier, must=False) == loads
        if loads:
            self.loads += 1
            a, b = self.tiers[tier]
            self.judge.begins(name)
            seconds = (a + b * tokens) * self.noise()
            self.now += seconds
            self.judge.told({name: 0.5 * seconds}, ())
            self.step(0, {name: seconds})
        else:
            self.step(tokens)
            self.step(0)
        self.judge.forget(name)
        return loads

    def warm(self, sizes=(512, 2048, 8192)):
        for _ in range(4):
            for tokens in sizes:
                self.step(0)
                self.step(tokens)
        return self


class Deciding(unittest.TestCase):
    def test_a_line(self):
        line = Line()
        for i, x in enumerate((100, 1000, 5000, 300)):
            line.add(x, 0.02 + 1e-5 * x, float(i))
        for x in (10, 100, 10_000):
            self.assertAlmostEqual(line.at(x), 0.02 + 1e-5 * x, 9)
        alike = Line()
        for i in range(5):
            alike.add(1000, 0.5, float(i))
        self.assertAlmostEqual(alike.at(2000), 1.0, 9)
        falling = Line()
        for i, (x, y) in enumerate(((100, 3.0), (1000, 1.0))):
            falling.add(x, y, float(i))
        self.assertGreaterEqual(falling.at(10_000), 1.0, "never less for more")
        steep = Line()  # the fit would be below 0 at 0
        for i, (x, y) in enumerate(((100, 0.1), (1000, 2.0), (2000, 5.0))):
            steep.add(x, y, float(i))
        self.assertGreater(steep.at(1), 0.0)

    def test_old_points_fade(self):
        line = Line()
        for i in range(50):
            line.add(1000, 1.0, float(i))
        for i in range(3):
            line.add(1000, 0.1, 300.0 + i)
        self.assertLess(line.at(1000), 0.11, "minutes later the old ones count no more")

    def test_steps(self):
        steps = Steps(1)
        self.assertIsNone(steps.seconds(1))
        now = 0.0
        for i in range(ENOUGH + 2):
            now += 5.0  # nothing to do
            steps.planned([1] * 8, (), now)
            now += 0.02
            steps.ended(now)
            steps.planned([1000, 1, 1], (), now)
            now += 0.12
            steps.ended(now)
        self.assertAlmostEqual(steps.seconds(1000), 0.1, 3)
        steps.planned([1000], ["a"], now)  # waits for a load
        now += 60
        steps.ended(now)
        steps.planned([], (), now)
        now += 60
        steps.ended(now)
        steps.ended(now)  # of a step that nobody planned
        self.assertAlmostEqual(steps.seconds(1000), 0.1, 3)

    def test_steps_planned_ahead(self):
        """Two under way: each begins when the one before it ends. Some never tell that they have
        ended."""
        steps, now = Steps(2), 0.0
        steps.planned([1000], (), now)
        for i in range(20):
            steps.planned([1000], (), now + 0.01)
            now += 0.1
            if i % 5 != 3:
                steps.ended(now)
        self.assertAlmostEqual(steps.seconds(1000), 0.1, delta=0.015)

    def test_the_quicker_way_wins(self):
        for load, loads in (((0.001, 1e-6), True), ((0.001, 1e-3), False), ((5.0, 1e-6), False)):
            world = World(1e-4, {"memory": load}).warm()
            for _ in range(30):
                world.request("memory", 2048)
            self.assertEqual(world.request("memory", 2048), loads, load)

    def test_unknown_is_loaded(self):
        world = World(1e-9, {"ssd": (9.0, 1.0)})
        self.assertTrue(all(world.request("ssd", 100) for _ in range(10)), "no step was measured")
        world = World(1e-4, {"ssd": (9.0, 1.0)}).warm()
        self.assertEqual([world.request("ssd", 100) for _ in range(ENOUGH)], [True] * ENOUGH)
        self.assertFalse(world.request("ssd", 100))

    def test_small_hits_are_left_and_large_ones_loaded(self):
        world = World(1e-4, {"memory": (0.1, 1e-6)}).warm()
        for _ in range(10):
            for tokens in (4096, 16384, 256):
                world.request("memory", tokens)
        self.assertEqual(
            [world.request("memory", n) for n in (64, 256, 4096, 16384)], [False, False, True, True]
        )

    def test_tiers_are_apart(self):
        world = World(1e-4, {"memory": (0.001, 1e-6), "ssd": (0.001, 1e-3)}).warm()
        for _ in range(10):
            world.request("memory", 2048), world.request("ssd", 2048)
        self.assertTrue(world.request("memory", 2048))
        self.assertFalse(world.request("ssd", 2048))

    def test_a_verdict_can_change(self):
        world = World(1e-4, {"memory": (0.001, 1e-3)}).warm()
        while world.request("memory", 2048):
            self.assertLess(world.now, 1000)
        before = world.loads
        for _ in range(200):
            world.request("memory", 2048)
        self.assertGreater(world.loads, before, "it is tried again")
        self.assertLess(world.loads - before, 20, "but seldom")
        world.tiers["memory"], changed = (0.001, 1e-6), world.now  # a rival has gone
        while not all(world.request("memory", 2048) for _ in range(3)):
            self.assertLess(world.now, changed + 12 * TRY_S)
        world.tiers["memory"] = (0.001, 1e-3)
        changed = world.loads
        while world.request("memory", 2048):
            self.assertLess(world.loads, changed + 20)

    def test_it_does_not_waver(self):
        """Both ways take as long, give or take some noise."""
        world, changes = World(1e-4, {"memory": (0.0, 1e-4)}).warm(), 0
        verdicts = [world.request("memory", 2048) for _ in range(300)]
        changes = sum(a != b for a, b in zip(verdicts, verdicts[1:]))
        self.assertEqual(changes, 0)

    def test_an_option_fixes_it(self):
        world = World(1e-9, {"memory": (9.0, 1.0)}, least=0).warm()
        self.assertTrue(all(world.request("memory", 16) for _ in range(20)))
        world.judge.choose("asks nobody", 16, lambda: self.fail("no tier is needed"), must=False)
        world = World(1.0, {"memory": (0.0, 1e-9)}, least=1000).warm()
        self.assertEqual([world.request("memory", n) for n in (999, 1000)], [False, True])
        self.assertTrue(
            world.judge.choose("told", 16, lambda: "", must=True), "a prefill elsewhere"
        )

    def test_loads_that_do_not_arrive(self):
        world = World(1e-4, {})
        judge = world.judge
        judge.told({"never begun": 1.0}, ("never begun",))
        judge.begins("never chosen")
        judge.choose("lost", 100, lambda: "memory", must=False)
        judge.begins("lost")
        judge.told({}, ("lost",))
        judge.choose("ended", 100, lambda: "memory", must=False)
        judge.begins("ended")
        judge.forget("lost"), judge.forget("ended")
        judge.planned([100], ["ended"])
        judge.told({}, ())
        self.assertEqual((judge._lines, judge._loading, judge._chosen), ({}, {}, {}))


class SlowReads(tarn.Client):
    """Reads that take their time, of many blocks a little more."""

    seconds = 0.05

    def get_into_many(self, *args, **kwargs):
        time.sleep(self.seconds)
        return super().get_into_many(*args, **kwargs)


class SlowReader(TarnConnector):
    def _pool(self, settings, timeouts):
        return PatientPool(settings.url, settings.retry_ms, timeouts, SlowReads)


class Choosing(WithServer):
    """With engines whose loads take 50 ms."""

    def hits(self, engine, seeds):
        """Prompts that the pool has, one after the other; what came of each."""
        got = []
        for seed in seeds:
            got.append(engine.add(Request(prompt(seed, 25))))
            self.settle(engine)
        return [request.external_tokens for request in got]

    def fill(self):
        writer = self.engine()
        for seed in range(12):
            writer.add(Request(prompt(seed, 25)))
        self.settle(writer)

    def test_slow_hits_are_left(self):
        self.fill()
        for at, extra in ((100, {}), (200, {"load_async": True})):
            with self.subTest(**extra):
                reader = self.engine(SlowReader, tp=1, min_load_tokens=AS_MEASURED, **extra)
                judge = reader.connector._scheduler._judge
                looks = itertools.count()
                judge._clock = lambda looks=looks: next(looks) * 1e-6  # so long does a step take
                for seed in range(at, at + ENOUGH):
                    reader.add(Request(prompt(seed, 25)))
                    self.settle(reader)
                self.assertEqual(self.hits(reader, range(ENOUGH)), [24] * ENOUGH)
                self.assertEqual(list(judge._lines), ["memory"])
                left = self.hits(reader, range(ENOUGH, 12))
                self.assertEqual(left, [0] * len(left))
                self.assertEqual(reader.stats.data["left_tokens"], 24 * len(left))
                self.assertNotIn("saved_objects", self.saved_since(reader), "they are in the pool")
                self.assertEqual((judge._chosen, judge._loading), ({}, {}))

    def saved_since(self, engine):
        engine.stats = None
        engine.add(Request(prompt(11, 25)))
        self.settle(engine)
        return engine.stats.data

    def test_several_kv_groups(self):
        layout = next(one for one in LAYOUTS if len(one.groups) > 1)
        text = Prompt(prompt(1, 3 * layout.align + 1))

        def run(**extra):
            engine = GroupsEngine(
                self.server.url, TarnConnector, layout, timeout_ms=60_000,
                lookup_timeout_ms=60_000, **extra,
            )  # fmt: skip
            self.engines.append(engine)
            engine.add(text)
            engine.run()
            return engine, sum(w.connector.stats()["saved"] for w in engine.workers)

        self.assertEqual(run()[0].external, 0)
        loads, _ = run(min_load_tokens=AS_MEASURED)
        self.assertGreater(loads.external, 0)
        self.assertEqual(loads.connector._scheduler._judge._lines["memory"].points, 1)
        leaves, saved = run(min_load_tokens=10**6)
        self.assertEqual((leaves.external, saved), (0, 0))
        stats = leaves.connector.get_kv_connector_stats().data
        self.assertEqual(stats["left_tokens"], stats["hit_tokens"])

    def test_the_option(self):
        self.fill()
        least = self.engine(SlowReader, min_load_tokens=24)
        self.assertEqual(self.hits(least, range(8)), [24] * 8)
        more = self.engine(min_load_tokens=25)
        self.assertEqual(self.hits(more, range(8)), [0] * 8)

    def test_what_a_prefill_elsewhere_saved_is_loaded(self):
        self.fill()
        reader = self.engine(role="kv_consumer", min_load_tokens=25)
        request = Request(prompt(1, 25))
        request.kv_transfer_params = {"tarn_tokens": 24}
        reader.add(request)
        self.settle(reader)
        self.assertEqual(request.external_tokens, 24)

    def test_tiers(self):
        pool = Pool(self.server.url, 1000)
        self.addCleanup(pool.close)
        with tarn.Client(self.server.url) as client:
            client.put("here", b"x" * 1000)
        self.assertEqual(
            (pool.tier("here"), pool.tier("nowhere"), pool.away), ("memory", "", False)
        )
        with tarn.Client(self.server.url) as client:
            client.command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "-replica")
        mute = Pool(self.server.url.replace("//", "//mute:x@"), 1000)
        self.addCleanup(mute.close)
        self.assertEqual((mute.tier("here"), mute.away), ("", False), "who may not ask")

    def test_a_server_that_hangs_holds_up_no_step(self):
        with Server("64mb") as server:
            engine = Engine(server.url, TarnConnector, lookup_timeout_ms=100, timeout_ms=20_000)
            self.engines.append(engine)
            pool = engine.connector._scheduler._pool
            self.assertEqual(pool.tier("nowhere"), "")
            server.pause()
            try:
                began = time.monotonic()
                self.assertEqual(pool.tier("nowhere"), "")
                self.assertLess(time.monotonic() - began, 10)
                self.assertTrue(pool.away)
            finally:
                server.resume()

    def test_the_nearest_copy(self):
        def copy(tier, machine):
            words = ("tier", tier, "segment", "tier", "node", "", "machine", machine, "state", "up")
            return [*words, "extents", "1", "2", "3"]

        def nearest(*copies):
            return _nearest("\n".join(word for words in copies for word in words))

        own = socket.gethostname()
        self.assertEqual(
            nearest(copy("ssd", own), copy("memory", "x")), "memory of another machine"
        )
        self.assertEqual(nearest(copy("memory", "x"), copy("memory", own)), "memory")
        self.assertEqual(nearest(copy("file", "")), "file of another machine")
        self.assertEqual((nearest(), nearest(["tier"])), ("", ""))


if __name__ == "__main__":
    unittest.main()
