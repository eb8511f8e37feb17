"""TarnConnector, driven by a small engine in vLLM's order of calls."""

import itertools
import random
import threading
import time
import unittest
from unittest import mock

from harness import Server, wait_until
import tarn
from tarn.chain import Chain
from tarn.vllm import TarnConnector, requests
from vllm_helpers import SlowClient, SlowConnector, StagedConnector, WithServer, prompt
from vllm_engine import Engine
from vllm_model import Request


class SlowStaged(SlowConnector, StagedConnector):
    """Its blocks are free before they are put."""


class Sharing(WithServer):
    """Two engines on one pool."""

    def share(self, saver, loader, first=TarnConnector, second=TarnConnector, **both):
        a = self.engine(first, **dict(both, **saver))
        sent = [a.add(Request(prompt(s, 37))) for s in (1, 2)]
        self.settle(a)
        b = self.engine(second, **dict(both, **loader))
        got = [b.add(Request(prompt(s, 37))) for s in (1, 2)] + [b.add(Request(prompt(3, 10)))]
        self.settle(b)
        self.assertEqual([r.external_tokens for r in got], [36, 36, 0])
        for one, other in zip(sent, got):
            self.assertEqual(one.all_token_ids, other.all_token_ids)
        return a, b, sent, got

    def test_every_form_of_the_cache(self):
        for form in ("2BNHD", "B2NHD", "2BHND", "BHNC", "kernel", "MLA"):
            for extra in ({}, {"load_async": True}, {"layerwise": True}):
                with self.subTest(form=form, **extra):
                    self.flush()
                    a, b, sent, got = self.share({}, {}, form=form, **extra)
                    have, of = self.check_pool(a, sent, layerwise=bool(extra.get("layerwise")))
                    self.assertEqual(have, of)

    def test_all_layers_of_a_block_in_one_piece(self):
        for kind in (TarnConnector, StagedConnector):
            self.flush()
            option = {"form": "cross", "cross_layers": True}
            a, b, sent, got = self.share(option, option, kind, kind)
            have, of = self.check_pool(a, sent)
            self.assertEqual(have, of)
            view = a.workers[0].connector._worker._memory.layers
            self.assertEqual([len(layer.runs) for layer in view], [1])

    def test_backends_that_order_them_otherwise_do_not_share(self):
        a = self.engine(form="cross", cross_layers=True)
        a.add(Request(prompt(1, 37)))
        self.settle(a)
        with mock.patch.object(Engine.backend, "get_kv_cache_stride_order", lambda **_: (1, 2)):
            b = self.engine(form="cross", cross_layers=True)
        got = b.add(Request(prompt(1, 37)))
        self.settle(b)
        self.assertEqual(got.external_tokens, 0)

    def test_behind_copies(self):
        for extra in (
            {},
            {"load_async": True},
            {"layerwise": True},
            {"staging_mib": 1, "batch_blocks": 3},
        ):
            with self.subTest(**extra):
                self.flush()
                self.share({}, {}, StagedConnector, StagedConnector, **extra)

    def test_host_and_copies_share(self):
        self.share({}, {}, TarnConnector, StagedConnector, form="2BHND")

    def test_forms_with_the_same_bytes_share(self):
        self.share({"form": "2BNHD"}, {"form": "B2NHD"})

    def test_forms_with_other_bytes_do_not(self):
        a = self.engine(form="2BNHD")
        a.add(Request(prompt(1, 37)))
        self.settle(a)
        b = self.engine(form="2BHND")
        other = b.add(Request(prompt(1, 37)))
        self.settle(b)
        self.assertEqual(other.external_tokens, 0)

    def test_tensor_parallel(self):
        for tp, heads, form in ((2, 4, "2BNHD"), (4, 2, "2BHND"), (4, 1, "MLA")):
            with self.subTest(tp=tp, heads=heads, form=form):
                self.flush()
                a, b, sent, got = self.share({}, {}, tp=tp, kv_heads=heads, form=form)
                self.assertEqual(
                    self.check_pool(a, sent), (2 * 9 * min(tp, heads), 2 * 9 * min(tp, heads))
                )
                self.assertEqual(self.total(a, "saved"), 2 * 9 * min(tp, heads))
                each = [w.connector.stats()["saved"] for w in a.workers]
                self.assertGreater(min(each), 0, "ranks with the same bytes share the work")

    def test_pipeline_parallel(self):
        a, b, sent, got = self.share({}, {}, tp=2, pp=2)
        self.assertEqual(self.check_pool(a, sent), (2 * 9 * 4, 2 * 9 * 4))

    def test_ranks_race(self):
        a, b, sent, got = self.share({"stripe": False}, {}, tp=4, kv_heads=1, form="MLA")
        self.assertEqual(self.total(a, "saved"), 18)
        self.assertEqual(self.total(a, "there_already"), 3 * 18)
        self.assertEqual(self.total(a, "failed"), 0)

    def test_mla_of_other_sizes(self):
        self.share({"tp": 4}, {"tp": 2}, kv_heads=1, form="MLA")

    def test_other_tensor_parallel_sizes(self):
        for writer, reader, heads, form in (
            (1, 2, 4, "2BNHD"), (2, 1, 4, "2BNHD"), (4, 2, 8, "2BHND"),
            (2, 4, 8, "BHNC"), (2, 8, 4, "2BNHD"), (8, 2, 4, "B2NHD"),
        ):  # fmt: skip
            for extra in ({}, {"load_async": True}):
                with self.subTest(writer=writer, reader=reader, heads=heads, form=form, **extra):
                    self.flush()
                    reads = dict(tp=reader, writer_tp=writer, role="kv_consumer", **extra)
                    self.share(dict(tp=writer), reads, kv_heads=heads, form=form)

    def test_roles(self):
        a, b, sent, got = self.share({"role": "kv_producer"}, {"role": "kv_consumer"})
        again = a.add(Request(prompt(1, 37) + prompt(5, 20)))
        a.blocks.known.clear()
        a.blocks.name_of.clear()
        self.settle(a)
        self.assertEqual(again.external_tokens, 0, "a producer does not load")
        self.assertEqual(again.result_params, {"tarn_tokens": 56})
        new = b.add(Request(prompt(9, 30)))
        self.settle(b)
        self.assertIsNone(new.result_params)
        self.assertEqual(self.total(b, "saved"), 0, "a consumer does not save")

    def test_format_with_the_first_output(self):
        a = self.engine()
        a.add(Request(prompt(1, 37)))
        self.settle(a)
        b = self.engine(handshake=False)
        first = b.add(Request(prompt(1, 37)))
        self.settle(b)
        self.assertEqual(first.external_tokens, 0, "its scheduler did not know yet how blocks lie")
        b.blocks.known.clear()
        b.blocks.name_of.clear()
        second = b.add(Request(prompt(1, 37)))
        self.settle(b)
        self.assertEqual(second.external_tokens, 36)

    def test_what_blocks_depend_on(self):
        a = self.engine()
        kinds = [
            dict(),
            dict(lora="one"),
            dict(lora="two"),
            dict(salt="s"),
            dict(media=(("cat", 5, 8),)),
            dict(media=(("dog", 5, 8),)),
        ]
        sent = [a.add(Request(prompt(1, 37), **kind)) for kind in kinds]
        self.settle(a)
        self.assertEqual(
            self.check_pool(a, sent)[0],
            6 * 9 - 2,
            "the block before both pictures is the plain one",
        )
        b = self.engine()
        for kind in kinds:
            r = b.add(Request(prompt(1, 37), **kind))
            b.run()
            self.assertIn(
                r.external_tokens, (32, 36), kind
            )  # the block before both pictures may be here already

    def test_embeddings_are_left_alone(self):
        a = self.engine()
        request = Request(prompt(1, 37))
        request.prompt_embeds = object()
        a.add(request)
        self.settle(a)
        self.assertEqual((request.external_tokens, self.total(a, "saved")), (0, 0))


class Rules(WithServer):
    def test_the_last_token_is_computed(self):
        a = self.engine(block_tokens=4)
        a.add(Request(prompt(1, 40)))
        self.settle(a)
        self.assertEqual(self.total(a, "saved"), 10)
        for length, external in ((40, 36), (41, 40), (39, 36), (4, 0), (5, 4), (1, 0)):
            b = self.engine(block_tokens=4)
            r = b.add(Request(prompt(1, 40)[:length] if length <= 40 else prompt(1, 40) + [7]))
            self.settle(b)
            self.assertEqual(r.external_tokens, external, length)
            again = 1 if length % 4 == 0 else 0  # the last block, which had to be computed
            self.assertEqual(self.total(b, "there_already"), again, length)

    def test_what_the_engine_has_is_not_loaded(self):
        a = self.engine()
        a.add(Request(prompt(1, 60)))
        self.settle(a)
        b = self.engine()
        b.add(Request(prompt(1, 21)))
        self.settle(b)
        r = b.add(Request(prompt(1, 60)))
        self.settle(b)
        self.assertEqual(r.external_tokens, 56 - 20)

    def test_chunks_and_full_blocks_only(self):
        a = self.engine(budget=7, block_tokens=4)
        r = a.add(Request(prompt(1, 50), max_tokens=9))
        self.settle(a)
        self.assertEqual(self.check_pool(a, [r]), (12, 14))
        self.assertEqual(self.total(a, "saved"), 12)

    def test_generated_tokens(self):
        a = self.engine(save_decode=True, block_tokens=4)
        r = a.add(Request(prompt(1, 50), max_tokens=9))
        self.settle(a)
        self.assertEqual(self.check_pool(a, [r]), (14, 14))

    def test_a_gap_is_filled(self):
        a = self.engine()
        a.add(Request(prompt(1, 37)))
        self.settle(a)
        space, chain = a.workers[0].connector._worker._space, Chain(4, revision="")
        chain.extend(prompt(1, 37))
        with tarn.Client(self.server.url) as client:
            self.assertTrue(client.remove(space.key(chain.hashes[2])))
        r = a.add(Request(prompt(1, 37)))  # all its blocks are still here
        self.settle(a)
        self.assertEqual(self.check_pool(a, [r])[0], 9)

    def test_a_prefill_elsewhere_is_awaited(self):
        a = self.engine(SlowConnector, role="kv_producer")
        SlowClient.delay = 0.05
        r = a.add(Request(prompt(1, 37)))
        while not r.finished():
            a.step()
        self.assertEqual(r.result_params, {"tarn_tokens": 36})
        b = self.engine(role="kv_consumer", arrival_ms=20_000)
        other = b.add(Request(prompt(1, 37), params=r.result_params))
        self.settle(b)
        self.assertEqual(other.external_tokens, 36)
        self.settle(a)
        SlowClient.delay = 0.0

    def test_a_prefill_that_never_comes(self):
        b = self.engine(role="kv_consumer", arrival_ms=50)
        started = time.monotonic()
        for params in (
            {"tarn_tokens": 36},
            {"tarn_tokens": "many"},
            {"tarn_tokens": -1},
            {"other": 1},
        ):
            r = b.add(Request(prompt(8, 37), params=params))
            b.run()
            self.assertEqual(r.external_tokens, 0)
        self.assertGreaterEqual(time.monotonic() - started, 0.05)
        self.assertLess(time.monotonic() - started, 20)

    def test_a_prefill_that_goes_on_is_awaited(self):
        """A long prompt takes longer than arrival_ms, and its blocks come one by one."""
        a = self.engine(role="kv_producer")
        b = self.engine(role="kv_consumer", arrival_ms=3_600_000)
        r = b.add(Request(prompt(1, 37), params={"tarn_tokens": 36}))
        b.step()
        tracked = b.connector._scheduler._requests[r.request_id]
        for there in 20, 28:
            tracked.came -= 3000
            a.add(Request(prompt(1, 37)[:there]))
            self.settle(a)
            while tracked.hits < there // 4:
                self.assertFalse(b.step())
        tracked.came -= 3601
        self.settle(b)
        self.assertEqual(r.external_tokens, 28)

    def test_steps_that_follow_each_other_closely_look_again(self):
        a = self.engine(role="kv_producer")
        b = self.engine(role="kv_consumer", arrival_ms=3_600_000)
        ticks = itertools.count(time.monotonic(), 0.0001)
        clock = mock.patch.object(requests.time, "monotonic", lambda: next(ticks))
        with clock:
            r = b.add(Request(prompt(1, 37), params={"tarn_tokens": 36}))
            b.step()
        a.add(Request(prompt(1, 37)))
        self.settle(a)
        with clock:
            asked = (b.connector.get_num_new_matched_tokens(r, 0)[0] for _ in range(10_000))
            self.assertEqual(next((n for n in asked if n is not None), None), 36)
        self.settle(b)
        self.assertEqual(r.external_tokens, 36)

    def test_who_has_waited_for_long_looks_less_often(self):
        with mock.patch.object(requests.time, "monotonic", return_value=100.0):
            for came, again in (100, 0.002), (99.84, 0.01), (99, 0.05), (0, 0.05):
                self.assertAlmostEqual(requests.look_again(came) - 100, again)

    def test_reset(self):
        a = self.engine()
        a.add(Request(prompt(1, 37)))
        self.settle(a)
        with tarn.Client(self.server.url) as client:
            client.put("toy/model-10@other", b"x")
            self.assertIs(a.connector.reset_cache(), True)
            self.assertEqual(int(client.command("DBSIZE")), 1)

    def test_what_is_queued_at_a_reset_is_not_put(self):
        """It is of the old weights, as is what a request that goes on has."""
        for kind, extra in (
            (SlowConnector, {}),
            (SlowStaged, {}),
            (SlowConnector, {"layerwise": True}),
        ):
            with self.subTest(kind=kind, **extra):
                self.flush()
                a = self.engine(kind, **extra)
                a.add(Request(prompt(3, 5)))
                self.settle(a)
                with mock.patch.object(SlowClient, "go", threading.Event()):
                    for s in (1, 2):
                        a.add(Request(prompt(s, 37), max_tokens=9))
                    for _ in range(4):
                        a.step()
                    self.assertIs(a.connector.reset_cache(), True)
                    later = threading.Timer(0.2, SlowClient.go.set)
                    later.start()
                    self.settle(a)
                    later.join()
                with tarn.Client(self.server.url) as client:
                    self.assertEqual(int(client.command("DBSIZE")), 0)
                a.add(Request(prompt(4, 37)))
                self.settle(a)
                b = self.engine(**extra)
                found = b.add(Request(prompt(4, 37)))
                self.settle(b)
                self.assertEqual(found.external_tokens, 36)

    def test_what_is_held_at_a_reset_is_not_put(self):
        """Saves of a step that loads wait for the next one."""
        a = self.engine()
        a.add(Request(prompt(1, 37)))
        self.settle(a)
        b = self.engine(SlowConnector)
        b.add(Request(prompt(1, 37) + prompt(2, 23)))
        b.step()
        self.assertTrue(b.connector._scheduler._held)
        self.assertIs(b.connector.reset_cache(), True)
        with mock.patch.object(SlowClient, "delay", 0.3):
            self.settle(b)
        with tarn.Client(self.server.url) as client:
            self.assertEqual(int(client.command("DBSIZE")), 0)

    def test_nothing_is_looked_up_or_saved_until_a_reset_is_done(self):
        a = self.engine()
        a.add(Request(prompt(1, 37)))
        self.settle(a)
        b = self.engine()
        with tarn.Client(self.server.url) as client:
            before = client.command("DBSIZE")
            with mock.patch.object(b.connector._scheduler._pool, "command", lambda *_: None):
                self.assertIs(b.connector.reset_cache(), False)
                got = [b.add(Request(prompt(s, 37))) for s in (1, 2)]
                self.settle(b)
            self.assertEqual([r.external_tokens for r in got], [0, 0])
            self.assertEqual(client.command("DBSIZE"), before)
            b.add(Request(prompt(3, 3)))
            self.settle(b)
            self.assertEqual(int(client.command("DBSIZE")), 0)


class Trouble(WithServer):
    def test_blocks_vanish_between_look_up_and_load(self):
        """The engine is told which blocks failed, computes them, and what it computed in between on
        top of them is not saved."""
        for extra in ({}, {"load_async": True}, {"layerwise": True}):
            for tp, pp in ((1, 1), (2, 1), (2, 2)):
                layerwise = bool(extra.get("layerwise"))
                if layerwise and pp > 1:
                    continue
                with self.subTest(tp=tp, pp=pp, **extra):
                    self.flush()
                    connector = TarnConnector if tp == 1 else StagedConnector
                    a = self.engine(connector, tp=tp, pp=pp, **extra)
                    sent = [a.add(Request(prompt(1, 37))) for _ in (1,)]
                    self.settle(a)
                    b = self.engine(connector, tp=tp, pp=pp, budget=64, **extra)
                    got = [b.add(Request(prompt(1, 37) + prompt(n, 23))) for n in (11, 12)]
                    hashes = Chain(4, revision="").extend(prompt(1, 37))
                    look_up = b.connector._scheduler._pool.prefix

                    def vanish(names, lease, timeout, **hints):
                        found = look_up(names, lease, timeout, **hints)
                        spaces = [w.connector._worker._space for w in b.workers]
                        with tarn.Client(self.server.url) as other:
                            for i in (3, 6):
                                gone = spaces[-1].key(hashes[i], layer=1 if layerwise else None)
                                other.remove(gone)
                        return found

                    b.connector._scheduler._pool.prefix = vanish
                    self.settle(b)
                    self.assertGreater(b.recomputed_tokens, 0)
                    self.assertEqual(got[0].external_tokens, 36)
                    have, of = self.check_pool(b, sent + got, layerwise)
                    self.assertEqual(have, of, "in the end everything was saved, and nothing wrong")

    def test_a_server_that_dies(self):
        for extra in ({}, {"load_async": True}, {"layerwise": True}):
            with self.subTest(**extra):
                a = self.engine(retry_ms=50, timeout_ms=500, lookup_timeout_ms=100, **extra)
                for n in range(6):
                    a.add(Request(prompt(n % 4, 37) + prompt(n, 30), max_tokens=3))
                for _ in range(3):
                    a.step()
                self.server.kill()
                for n in range(6):
                    a.add(Request(prompt(n % 4, 37) + prompt(100 + n, 30)))
                self.settle(a)
                self.server.restart()
                # The first ones find out that the pool is back, while blocks beside the first are
                # given up.
                seeds = iter(range(200, 100_000))

                def saved():
                    r = a.add(Request(prompt(next(seeds), 37)))
                    self.settle(a)
                    have, of = self.check_pool(a, [r], bool(extra.get("layerwise")))
                    self.assertEqual(of, 9 * (3 if extra.get("layerwise") else 1))
                    return have == of

                wait_until(saved, what="all blocks of a request are saved")
                self.flush()

    def test_no_server_at_all(self):
        self.server.kill()
        a = self.engine(retry_ms=10_000, lookup_timeout_ms=200, timeout_ms=500)
        started = time.monotonic()
        for n in range(5):
            a.add(Request(prompt(n, 37)))
        self.settle(a)
        self.assertLess(time.monotonic() - started, 40, "one failure each, then it goes on without")
        self.server.restart()

    def test_a_full_queue_drops(self):
        go = SlowClient.go = threading.Event()
        self.addCleanup(setattr, SlowClient, "go", None)
        a = self.engine(SlowConnector, queue_blocks=5, save_threads=1, budget=64)
        started = time.monotonic()
        r = a.add(Request(prompt(1, 61)))
        a.step()
        self.assertLess(time.monotonic() - started, 50, "the step does not wait for puts")
        go.set()
        self.settle(a)
        self.assertEqual(self.total(a, "dropped"), 10)
        self.assertEqual(self.check_pool(a, [r]), (5, 15))
        hits = self.engine().add(Request(prompt(1, 61)))
        self.engines[-1].run()
        self.assertEqual(hits.external_tokens, 20, "what is kept is the beginning")

    def test_aborts_and_preemption_while_blocks_leave(self):
        """Slow puts, few blocks, many requests: a block that is given away while it is still read
        would be found in the pool."""
        seen = [0, 0, 0]
        for seed, extra in enumerate(
            (
                {},
                {"load_async": True},
                {"layerwise": True},
                {"tp": 2},
                {"save_decode": True},
                {"new_runner": False},
            )
        ):
            for connector in (SlowConnector, StagedConnector) if seed < 2 else (SlowConnector,):
                with self.subTest(connector=connector.__name__, **extra):
                    SlowClient.delay = 0.004
                    for i, n in enumerate(self.storm(connector, seed, extra)):
                        seen[i] += n
                    SlowClient.delay = 0.0
        self.assertGreater(seen[0], 20, "preemptions")
        self.assertGreater(seen[1], 400, "tokens loaded")
        self.assertGreater(seen[2], 400, "blocks in the pool")

    def storm(self, connector, seed, extra):
        rng = random.Random(seed)
        self.flush()
        engines = [
            self.engine(
                connector, blocks=34, budget=24, seed=seed + i, layers=2, kv_heads=2, **extra
            )
            for i in range(2)
        ]
        everything, alive = [], []
        for step in range(100):
            for engine in engines:
                if step < 75 and len(engine.requests) < 5 and rng.random() < 0.6:
                    tokens = prompt(rng.randrange(4), rng.randrange(3, 40)) + prompt(
                        rng.randrange(900), rng.randrange(0, 30)
                    )
                    everything.append(engine.add(Request(tokens, max_tokens=rng.randrange(1, 30))))
                    alive.append((engine, everything[-1].request_id))
                if rng.random() < 0.06 and alive:
                    chosen, name = rng.choice(alive)
                    chosen.abort(name)
                engine.step()
        for engine in engines:
            self.settle(engine)
        have, of = self.check_pool(engines[0], everything, bool(extra.get("layerwise")))
        return sum(e.preemptions for e in engines), sum(r.external_tokens for r in everything), have

    def test_what_preemption_interrupted_is_saved_later(self):
        SlowClient.delay = 0.05
        a = self.engine(SlowConnector, save_threads=1, batch_blocks=1, budget=64)
        r = a.add(Request(prompt(1, 37), max_tokens=3))
        a.step()
        a.running.remove(r)
        a._preempt(r)
        schedule = a._schedule_running
        a._schedule_running = lambda out: (
            schedule(out),
            setattr(out, "preempted_req_ids", {r.request_id}),
        )[0]
        a.step()
        a._schedule_running = schedule
        SlowClient.delay = 0.0
        self.assertGreater(self.total(a, "forgotten"), 0)
        self.settle(a)
        self.assertEqual(self.check_pool(a, [r])[0], 9)

    def test_a_failed_load_and_then_preempted(self):
        """Nobody may take the blocks that did not arrive, or those computed after them, for good
        ones."""
        a = self.engine()
        r = a.add(Request(prompt(1, 37)))
        self.settle(a)
        space, hashes = a.workers[0].connector._worker._space, Chain(4, revision="").extend(
            prompt(1, 37)
        )
        with tarn.Client(self.server.url) as client:
            self.assertTrue(client.put(space.key(hashes[4]), b"short", replace=True))
        b = self.engine(budget=64)
        first = b.add(Request(prompt(1, 37) + prompt(2, 20), max_tokens=2))
        b.step()
        self.assertEqual(first.num_computed_tokens, 16)
        b.running.remove(first)
        b._preempt(first)
        other = b.add(Request(prompt(1, 37)))
        b.waiting.rotate(1)  # the new one first
        self.settle(b)
        self.assertEqual(other.all_token_ids, r.all_token_ids)
        with tarn.Client(self.server.url) as client:
            self.assertEqual(client.remove_many([space.key(hashes[4])]), 1)
        self.assertGreaterEqual(self.check_pool(b, [first])[0], 8)

    def test_an_object_that_never_loads(self):
        """It is there, but not what it should be: tried once, then computed."""
        for extra in ({}, {"load_async": True}, {"layerwise": True}):
            with self.subTest(**extra):
                self.flush()
                a = self.engine(**extra)
                r = a.add(Request(prompt(1, 37)))
                self.settle(a)
                space, first = (
                    a.workers[0].connector._worker._space,
                    Chain(4, revision="").extend(prompt(1, 37))[0],
                )
                with tarn.Client(self.server.url) as client:
                    self.assertTrue(
                        client.put(
                            space.key(first, layer=0 if "layerwise" in extra else None),
                            b"short",
                            replace=True,
                        )
                    )
                b = self.engine(**extra)
                other = b.add(Request(prompt(1, 37)))
                self.settle(b)
                self.assertEqual((other.external_tokens, b.recomputed_tokens), (36, 36))
                self.assertEqual(other.all_token_ids, r.all_token_ids)

    def test_a_full_pool(self):
        small = self.server = Server("1mb")
        self.addCleanup(small.stop)
        everything = []
        engines = [
            self.engine(blocks=60, layers=8, block_tokens=16, kv_heads=8, budget=400)
            for _ in range(2)
        ]
        for n in range(14):
            everything.append(engines[n % 2].add(Request(prompt(n % 9, 90) + prompt(n, 60))))
            engines[n % 2].run()
        for engine in engines:
            self.settle(engine)
        have, of = self.check_pool(engines[0], everything)
        self.assertLess(have, of)
        self.assertGreater(have, 0)


if __name__ == "__main__":
    unittest.main()
