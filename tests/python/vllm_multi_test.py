"""TarnConnector beside another one under vLLM's MultiConnector."""

import unittest
from types import SimpleNamespace

from vllm_helpers import WithServer, prompt
from groups_engine import GroupsEngine, GroupsRequest
from layouts import LAYOUTS, STATE, WINDOW, Prompt
from vllm_engine import Engine
from vllm_events_test import ON, Picture, hashed
from tarn.vllm import TarnConnector
from tarn.vllm.stats import TarnStats
from vllm_model import Request
from vllm_multi import MultiConnector, Sibling


class Listened(Engine):
    def config(self, rank):
        config = super().config(rank)
        config.kv_events_config = ON
        return config


def scheduled_new(request, tables, computed):
    name = request.request_id
    return SimpleNamespace(req_id=name, block_ids=tables, num_computed_tokens=computed)


def output_of(count, new=(), cached=(), computed=0):
    """A SchedulerOutput: requests that compute so many tokens each."""
    names = [request.request_id for request in cached]
    return SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys([*names, *(item.req_id for item in new)], count),
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=names,
            resumed_req_ids=set(),
            new_block_ids=[None for _ in names],
            num_computed_tokens=[computed for _ in names],
        ),
    )


class Together(WithServer):
    def together(self, order=None, *, asynchronous=True, keeps=True, mine=None, **options):
        """An engine of both, and the sibling's class, which is this engine's own."""
        sibling = type("Nixl", (Sibling,), dict(
            bring={}, wrong=set(), asynchronous=asynchronous, keeps=keeps, workers={},
            settle=lambda _, worker: self.wait_saved(worker),
        ))  # fmt: skip
        both = [(sibling, {}), (TarnConnector, mine or {})]
        multi = type("Multi", (MultiConnector,), dict(children=order(both) if order else both))
        for name in ("timeout_ms", "lookup_timeout_ms"):
            options.setdefault(name, 60_000)
        engine = Listened(self.server.url, multi, **options)
        sibling.workers.update(enumerate(engine.workers))
        self.engines.append(engine)
        return engine, sibling

    def tarn(self, connector):
        return connector.child(TarnConnector)

    def wait_saved(self, worker):
        super().wait_saved(SimpleNamespace(connector=self.tarn(worker.connector)))

    def check(self, engine, requests):
        reader = self.engine(tp=engine.tp)
        got = [reader.add(Request(r.prompt_token_ids)) for r in requests]
        self.settle_plain(reader)
        return [r.external_tokens for r in got]

    def settle_plain(self, engine):
        engine.run()
        for worker in engine.workers:
            WithServer.wait_saved(worker)

    def test_who_comes_first_loads_and_all_save(self):
        for asynchronous in (True, False):
            for tp in (1, 2):
                with self.subTest(asynchronous=asynchronous, tp=tp):
                    self.flush()
                    engine, sibling = self.together(asynchronous=asynchronous, tp=tp)
                    requests = [hashed(Request(prompt(s, 37))) for s in (1, 2, 3)]
                    sibling.bring[requests[0].request_id] = 36
                    for request in requests:
                        engine.add(request)
                    self.settle(engine)
                    self.assertEqual([r.external_tokens for r in requests], [36, 0, 0])
                    self.assertEqual(self.check(engine, requests), [36, 36, 36])

    def test_the_second_loads_what_the_first_has_not(self):
        writer = self.engine()
        for s in (1, 2):
            writer.add(Request(prompt(s, 37)))
        self.settle_plain(writer)
        engine, sibling = self.together()
        engine.add(Request(prompt(9, 10)))
        self.settle(engine)  # whose output has the format
        requests = [Request(prompt(s, 37)) for s in (1, 2)]
        sibling.bring[requests[0].request_id] = 20
        for request in requests:
            engine.add(request)
        self.settle(engine)
        self.assertEqual([r.external_tokens for r in requests], [20, 36])
        mine = self.tarn(engine.connector)
        self.assertEqual(mine._scheduler.found, 36, "it did not load for the one it had lost")

    def test_handshakes_are_the_first_ones(self):
        """vLLM hands the first child's to all of them."""
        with self.assertRaisesRegex(ValueError, "another connector's"):
            self.together(lambda both: both[::-1])
        engine, _ = self.together()
        self.assertIsNone(self.tarn(engine.connector)._scheduler._space)
        engine.add(Request(prompt(1, 10)))
        self.settle(engine)
        self.assertIsNotNone(self.tarn(engine.connector)._scheduler._space, "with the first output")

    def test_nothing_wrong_is_saved_after_a_siblings_failed_load(self):
        """Within a step the workers cannot know yet."""
        for asynchronous in (True, False):
            with self.subTest(asynchronous=asynchronous):
                self.flush()
                engine, sibling = self.together(asynchronous=asynchronous, tp=2)
                requests = [Request(prompt(s, 37), max_tokens=3) for s in (1, 2)]
                sibling.bring[requests[0].request_id] = 24
                sibling.wrong.add(requests[0].request_id)
                for request in requests:
                    engine.add(request)
                self.settle(engine)
                self.assertGreater(engine.recomputed_tokens, 0)
                reader = self.engine(tp=2)  # checks every byte that it computes with
                got = [reader.add(Request(r.prompt_token_ids)) for r in requests]
                self.settle_plain(reader)
                self.assertEqual(got[1].external_tokens, 36)

    def test_stats_and_events(self):
        engine, sibling = self.together(tp=2)
        engine.add(Request(prompt(9, 10)))  # without hashes, and so without events
        self.settle(engine)
        engine.stats = None
        requests = [hashed(Request(prompt(s, 37))) for s in (1, 2)]
        for request in requests:
            engine.add(request)
        self.settle(engine)
        engine.step()
        stats = engine.stats.data["TarnConnector"]
        self.assertIsInstance(stats, TarnStats)
        self.assertEqual(stats.data["saved_objects"], 36)
        told = [event for event in engine.events if event != "a sibling's"]
        self.assertLess(len(told), len(engine.events))
        self.assertEqual(len(Picture().apply(told)), 18)

    def test_several_kv_groups(self):
        """Lists of blocks by position, with null blocks; the full group may be the last one."""
        for layout in [one for one in LAYOUTS if len(one.groups) > 1]:
            with self.subTest(layout=layout.name):
                self.flush()
                largest = max(group.block for group in layout.groups)
                sibling = type("Other", (Sibling,), dict(keeps=False))
                multi = type(
                    "Multi", (MultiConnector,), {"children": [(sibling, {}), (TarnConnector, {})]}
                )
                text = Prompt(prompt(1, 3 * layout.align + layout.align // 3))
                hits = []
                for kind in (multi, TarnConnector, multi):
                    engine = GroupsEngine(
                        self.server.url, kind, layout, budget=largest + largest // 2,
                        timeout_ms=60_000, lookup_timeout_ms=60_000,
                        handshake=kind is TarnConnector,
                    )  # fmt: skip
                    self.engines.append(engine)
                    engine.add(Prompt(prompt(2, largest // 2)))
                    engine.run()
                    engine.external = 0
                    engine.add(text)
                    engine.run()
                    hits.append(engine.external)
                    for worker in engine.workers:
                        if kind is multi:
                            self.wait_saved(worker)
                self.assertEqual(hits[0], 0)
                self.assertEqual(hits[1], hits[2])
                self.assertGreater(hits[1], 0)
                self.assertTrue(
                    all(tokens == 0 for _, tokens, _ in engine.connector.child(sibling).tables)
                )

    def test_several_kv_groups_wait_for_a_sibling_within_a_step(self):
        """Its load may fail. One that shares these blocks waits, too; others do not."""
        layout = next(one for one in LAYOUTS if one.name == "full-window")
        size, groups = layout.align, range(len(layout.groups))
        engine = GroupsEngine(self.server.url, TarnConnector, layout)
        self.engines.append(engine)
        scheduler = engine.connector._scheduler
        requests = [GroupsRequest(Prompt.drawn(seed, 3 * size)) for seed in (1, 1, 2)]
        new = []
        for request, first, known in zip(requests, (1, 1, 30), (0, size, size)):
            scheduler.get_num_new_matched_tokens(request, known)
            counts = [2 * size // group.block for group in layout.groups]
            tables = [list(range(first + 10 * i, first + 10 * i + counts[i])) for i in groups]
            new.append(scheduled_new(request, tables, size))
        first = scheduler.build_connector_meta(output_of(size, new=new))
        self.assertEqual(len(first.saves), 1)
        self.assertTrue(all(min(part.blocks) >= 30 for part in first.saves[0].parts))
        second = scheduler.build_connector_meta(
            output_of(1, cached=requests[:2], computed=2 * size)
        )
        full = next(i for i in groups if layout.groups[i].kind not in (STATE, WINDOW))
        saved = [part for save in second.saves for part in save.parts if part.group == full]
        count = 2 * size // layout.groups[full].block
        self.assertEqual([len(part.blocks) for part in saved], [count, count])

    def hold(self, **options):
        """A state of a request of which a sibling fills the first blocks in this step."""
        layout = next(one for one in LAYOUTS if one.name == "three-groups")
        engine = GroupsEngine(self.server.url, TarnConnector, layout, **options)
        self.engines.append(engine)
        scheduler, size = engine.connector._scheduler, layout.align
        request = GroupsRequest(Prompt.drawn(1, 2 * size + 1), 9 * size)
        scheduler.get_num_new_matched_tokens(request, 0)
        counts = [3 * size // group.block for group in layout.groups]
        starts = [1 + sum(counts[:i]) for i in range(len(counts))]
        tables = [list(range(s, s + n)) for s, n in zip(starts, counts)]
        state = next(i for i, group in enumerate(layout.groups) if group.kind == STATE)
        output = output_of(size, new=[scheduled_new(request, tables, size)])
        output.partial_tail_offloads = {request.request_id: [(state, tables[state][1], 2 * size)]}
        self.assertEqual(scheduler.build_connector_meta(output).saves, [])
        return engine, request, tables, state

    def saved(self, engine, count, **of_whom):
        """What a later step saves: {KV group: blocks}."""
        step = engine.connector._scheduler.build_connector_meta(output_of(count, **of_whom))
        found = {}
        for part in [part for save in step.saves for part in save.parts]:
            found.setdefault(part.group, []).extend(part.blocks)
        return found

    def test_a_state_waits_for_a_siblings_load_within_a_step(self):
        """vLLM offers it once. Its block stays what it is until then."""
        engine, request, tables, state = self.hold()
        self.assertEqual(engine.pool.blocks[tables[state][1]].refs, 1)
        size = engine.layout.align
        found = self.saved(engine, 1, cached=[request], computed=2 * size)
        self.assertEqual(found[state], [tables[state][1]])

    def test_a_state_that_waits_is_not_saved_after_a_reset(self):
        engine, request, tables, state = self.hold()
        self.assertIs(engine.connector.reset_cache(), True)
        self.assertEqual(engine.pool.blocks[tables[state][1]].refs, 0)
        for _ in range(3):
            found = self.saved(engine, 1, cached=[request], computed=2 * engine.layout.align)
            self.assertEqual(found, {})

    def test_a_state_is_not_saved_when_a_siblings_load_has_failed(self):
        """Nor are tokens that were sampled on top of it."""
        engine, request, tables, state = self.hold(save_decode=True)
        scheduler, size = engine.connector._scheduler, engine.layout.align
        full = next(i for i, g in enumerate(engine.layout.groups) if g.kind not in (STATE, WINDOW))
        scheduler.update_connector_output(SimpleNamespace(invalid_block_ids={tables[full][0]}))
        self.assertEqual(engine.pool.blocks[tables[state][1]].refs, 0)
        for n in range(size):
            request.truth.append(n)
        found = self.saved(engine, 3 * size, cached=[request], computed=0)
        self.assertNotIn(state, found)
        block = engine.layout.groups[full].block
        self.assertEqual(found[full], tables[full][: request.num_prompt_tokens // block])

    def test_params_of_both(self):
        engine, sibling = self.together(role="kv_producer")
        request = engine.add(Request(prompt(1, 37)))
        self.settle(engine)
        self.assertEqual(request.result_params["tarn_tokens"], 36)
        self.assertIn("remote_block_ids", request.result_params)

    def test_a_factory_that_asks_for_names(self):
        """vLLM's MultiConnector makes stats of children by their names, which must be known."""
        from tarn.vllm import register

        class Factory:
            _registry = {}

            @classmethod
            def register_connector(cls, name, module, kind):
                assert name not in cls._registry
                cls._registry[name] = (module, kind)

        register(Factory)
        register(Factory)
        self.assertEqual(Factory._registry, {"TarnConnector": ("tarn.vllm", "TarnConnector")})


if __name__ == "__main__":
    unittest.main()
