"""TarnConnector for hybrid models when the pool is not what it should be: away, full, restarted,
without a node; and configurations that it refuses."""

import threading
import time
import unittest
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

from harness import Node, Server, wait_until
from vllm_helpers import PatientPool, SlowClient, SlowConnector
import groups_engine
import groups_model
import tarn
from groups_engine import GroupsRequest, ask
from layouts import Prompt
from tarn.vllm import TarnConnector, group_worker
from tarn.kv_groups import KVBoundary, KVParts
from tarn.vllm.config import Ranks, Settings, ranks_of, settings_of
from tarn.vllm.group_scheduler import GroupScheduler
from tarn.vllm.groups import Group, Groups, groups_of
from tarn.vllm.meta import GroupFormat, GroupLoad, GroupReport, GroupStep, Parts
from tarn.vllm.pins import Pins
from tarn.vllm.requests import states_in
from tarn.vllm.reset import Reset
from vllm_groups_test import BY_NAME, HYBRID, WithGroups
from vllm_multi_test import output_of, scheduled_new


class VanishingClient(tarn.Client):
    """Things of some KV groups are gone between look-up and load."""

    gone = ""

    def get_into_many(self, keys, *args, **options):
        found = super().get_into_many(keys, *args, **options)
        missing = int(tarn.Status.ENOENT)
        return [missing if self.gone and self.gone in k else n for k, n in zip(keys, found)]


class VanishingConnector(TarnConnector):
    def _pool(self, settings, timeouts):
        return PatientPool(settings.url, settings.retry_ms, timeouts, VanishingClient)


class Loads(WithGroups):
    def lose(self, layout, gone, by_request=True):
        """One engine saves, another one's load fails in one part: it computes, rightly."""
        prompt = Prompt.drawn(7, self.length(layout))
        ask(self.hybrid(layout), prompt)
        reader = self.hybrid(layout, VanishingConnector, seed=1)
        for worker in reader.workers:
            worker.by_request = by_request
        with mock.patch.object(VanishingClient, "gone", gone):
            request = reader.add(Prompt(prompt.tokens), 2)
            reader.settle()
        self.assertEqual((request.status, reader.failed), ("FINISHED", 1), layout.name)
        self.assertGreater(request.external, 0)
        ask(reader, Prompt.drawn(8, layout.align + 2))  # others go on
        self.assertTrue(all(self.check_parts(reader, [prompt])))

    def test_a_part_that_does_not_arrive_is_said_by_request(self):
        for layout in HYBRID:
            for number in range(len(layout.groups)):
                self.flush()
                self.lose(layout, f"@kv{number}@")

    def test_a_part_that_does_not_arrive_on_one_rank(self):
        self.lose(BY_NAME["tp4"], "@tp4.2@")

    def test_releases_that_are_told_by_block(self):
        with mock.patch.object(group_worker, "BY_REQUEST", False):
            for name in ("three-groups", "tp2"):
                self.flush()
                self.lose(BY_NAME[name], "@kv0@", by_request=False)

    def test_later_releases_are_never_told_by_block(self):
        """They end when they are."""
        layout = BY_NAME["full-window"]
        worker = self.hybrid(layout).workers[0].connector._worker
        worker._load_failed(GroupLoad("r", [Parts(0, [b"h"], [3])]), OSError())
        self.assertEqual(worker.load_errors(), set())

    def test_parts_that_vllm_has_no_block_for(self):
        """Those of windows it need not have; without another one the load fails."""
        layout = BY_NAME["three-groups"]
        prompt = Prompt.drawn(7, self.length(layout))
        ask(self.hybrid(layout), prompt)
        reader = self.hybrid(layout, seed=1)
        scheduler, worker = reader.connector._scheduler, reader.workers[0].connector._worker
        for number, group in enumerate(layout.groups):
            request = GroupsRequest(Prompt(prompt.tokens))
            tokens, _ = scheduler.get_num_new_matched_tokens(request, 0)
            self.assertEqual(tokens, 3 * layout.align)
            counts = [tokens // g.block for g in layout.groups]
            tables = [list(range(1, 1 + count)) for count in counts]
            tables[number][-1] = 0
            blocks = SimpleNamespace(get_block_ids=lambda tables=tables: tables)
            scheduler.update_state_after_alloc(request, blocks, tokens)
            loads, scheduler._loads = scheduler._loads, []
            lacking = int(group.kind != "window")
            self.assertEqual([load.lacking for load in loads], [lacking])
            worker.start_load(GroupStep(loads=loads))
            found = []
            wait_until(lambda: found.append(worker.finished()) or found[-1][1], what="it arrives")
            self.assertEqual(found[-1][2], {request.request_id} if lacking else set())

    def test_a_load_that_waits_keeps_its_lease(self):
        layout = BY_NAME["eagle"]
        prompt = Prompt.drawn(7, self.length(layout))
        ask(self.hybrid(layout), prompt)
        reader = self.hybrid(layout, lookup_lease_ms=100)
        reader.add(Prompt(prompt.tokens))
        with mock.patch.object(reader.workers[0].connector._worker._loader, "submit") as submit:
            reader.step()
            load, mark = submit.call_args[0]
        pool = reader.connector._scheduler._pool
        with mock.patch.object(pool, "kv_prefix", wraps=pool.kv_prefix) as asked:
            until = time.monotonic() + 60
            while asked.call_count < 3 and time.monotonic() < until:
                reader.step()
                time.sleep(0.005)
        self.assertEqual(asked.call_count, 3)
        hashes, groups = asked.call_args[0]
        found = pool.kv_prefix(hashes, groups, unit=layout.unit, align=layout.align)
        self.assertEqual(found.tokens, 2 * layout.align, "exactly what will be loaded")
        reader.workers[0].connector._worker._loader.submit(load, mark)
        reader.settle()
        self.assertEqual(reader.connector._scheduler._loading, {})


class Pools(WithGroups):
    def test_a_server_that_dies_and_comes_back(self):
        for layout in (BY_NAME["full-window"], BY_NAME["three-groups"]):
            engine = self.hybrid(
                layout, retry_ms=50, timeout_ms=500, lookup_timeout_ms=100, budget=layout.align
            )
            prompts = [Prompt.drawn(n, self.length(layout)) for n in range(4)]
            for prompt in prompts:
                engine.add(Prompt(prompt.tokens), 3)
            for _ in range(4):
                engine.step()
            self.server.kill()
            for prompt in prompts:
                engine.add(Prompt(prompt.tokens).branch(layout.align + 1, 9, len(prompt)))
            engine.settle()
            self.server.restart()
            seeds = iter(range(1000, 100_000))

            def saved():
                prompt = Prompt.drawn(next(seeds), self.length(layout))
                ask(engine, prompt)
                found = ask(self.hybrid(layout, seed=2), prompt)
                return found == [3 * layout.align]

            wait_until(saved, what="a whole prompt is saved again")
            self.flush()

    def test_no_server_at_all(self):
        self.server.kill()
        engine = self.hybrid(
            BY_NAME["three-groups"], retry_ms=10_000, lookup_timeout_ms=100, timeout_ms=300
        )
        self.assertEqual(ask(engine, *(Prompt.drawn(n, 300) for n in range(4))), [0] * 4)
        self.server.restart()

    def test_a_pool_that_is_full(self):
        small = self.server = Server("1mb")
        self.addCleanup(small.stop)
        for layout in HYBRID:
            engines = [self.hybrid(layout, blocks=100, seed=seed) for seed in range(2)]
            prompts = []
            for n in range(24):
                stem = Prompt.drawn(n % 5, 2 * layout.align)
                prompts.append(stem.branch(layout.align + 3, n, self.length(layout, 4)))
                ask(engines[n % 2], prompts[-1])
            there = self.check_parts(engines[0], prompts)
            self.assertTrue(any(there), layout.name)

    def test_a_node_that_is_lost(self):
        master = self.server = Server("0")
        self.addCleanup(master.stop)
        nodes = [Node(master, "--host-name", f"m{n}", pool="32mb") for n in range(2)]
        for node in nodes:
            self.addCleanup(node.stop)
        layout = BY_NAME["three-groups"]
        options = {"timeout_ms": 3000, "lookup_timeout_ms": 1000, "retry_ms": 50}
        prompts = [Prompt.drawn(n, self.length(layout)) for n in range(12)]
        ask(self.hybrid(layout, **options), *prompts)
        reader = self.hybrid(layout, seed=1, **options)
        live = [reader.add(Prompt(prompt.tokens), 2) for prompt in prompts]
        for _ in range(3):
            reader.step()
        nodes[0].kill()
        reader.settle(60)
        self.assertEqual({request.status for request in live}, {"FINISHED"})
        self.assertGreater(reader.external, 0)

    def test_a_save_pins_a_quarter_at_most(self):
        """The rest comes with the steps after it."""
        layout = BY_NAME["full-window"]
        engine = self.hybrid(layout, blocks=40)
        scheduler = engine.connector._scheduler
        request = GroupsRequest(Prompt.drawn(1, 9 * layout.align))
        scheduler.on_new_request(request)
        tables = [range(1, 9 * layout.align // group.block + 1) for group in layout.groups]
        new = SimpleNamespace(req_id=request.request_id, block_ids=tables, num_computed_tokens=0)
        left, saves = [new], []
        while not saves or saves[-1]:
            count = 8 * layout.align if left else 1
            output = SimpleNamespace(
                num_scheduled_tokens={request.request_id: count},
                scheduled_new_reqs=left,
                scheduled_cached_reqs=SimpleNamespace(
                    req_ids=[] if left else [request.request_id],
                    resumed_req_ids=set(),
                    new_block_ids=[None],
                    num_computed_tokens=[8 * layout.align],
                ),
            )
            left = []
            step = scheduler.build_connector_meta(output)
            saves.append([block for save in step.saves for p in save.parts for block in p.blocks])
            self.assertLessEqual(len(saves[-1]), 10)
            scheduler._pins.release(Counter(save.job for save in step.saves))
        self.assertGreater(len(saves), 2)
        full = next(g for g in layout.groups if g.kind == "full")
        self.assertGreaterEqual(sum(map(len, saves)), 8 * layout.align // full.block)

    def test_what_is_queued_at_a_reset_is_not_put(self):
        """It is of the old weights."""
        layout = BY_NAME["three-groups"]
        engine = self.hybrid(layout, SlowConnector, queue_wait_ms=0)
        prompt = Prompt.drawn(1, self.length(layout))
        with mock.patch.object(SlowClient, "go", threading.Event()):
            request = engine.add(Prompt(prompt.tokens), 2)
            while request.status != "FINISHED":
                engine.step()
            self.assertTrue(any(w.connector.stats()["pending"] for w in engine.workers))
            self.assertIs(engine.connector.reset_cache(), True)
            later = threading.Timer(0.2, SlowClient.go.set)
            later.start()
            engine.settle()
            later.join()
        with tarn.Client(self.server.url) as client:
            self.assertEqual(int(client.command("DBSIZE")), 0)
        engine.pool.evict_blocks(list(engine.pool.known.values()))
        self.assertEqual(ask(engine, prompt), [0])
        self.assertEqual(ask(self.hybrid(layout, seed=1), prompt), [3 * layout.align])

    def test_blocks_from_before_a_reset_are_not_saved_after_it(self):
        layout = BY_NAME["three-groups"]
        engine = self.hybrid(layout)
        request = engine.add(Prompt.drawn(1, self.length(layout)), 2)
        while request.computed < 2 * layout.align:
            engine.step()
        self.assertIs(engine.connector.reset_cache(), True)
        engine.settle()
        with tarn.Client(self.server.url) as client:
            self.assertEqual(int(client.command("DBSIZE")), 0)

    def test_nothing_is_looked_up_or_saved_until_a_reset_is_done(self):
        layout = BY_NAME["three-groups"]
        prompt = Prompt.drawn(1, self.length(layout))
        ask(self.hybrid(layout), prompt)
        engine = self.hybrid(layout, seed=1)
        with tarn.Client(self.server.url) as client:
            before = client.command("DBSIZE")
            with mock.patch.object(engine.connector._scheduler._pool, "command", lambda *_: None):
                self.assertIs(engine.connector.reset_cache(), False)
                found = ask(engine, prompt, Prompt.drawn(2, self.length(layout)))
            self.assertEqual((found, client.command("DBSIZE")), ([0, 0], before))
        ask(engine, Prompt.drawn(3, layout.align // 3))
        self.assertEqual(self.check_parts(engine, [prompt]), [0] * len(layout.groups))

    def test_who_resumes_after_a_reset_is_saved(self):
        """Releases differ in whether they say that it was preempted."""
        layout = BY_NAME["full-window"]
        engine, size = self.hybrid(layout), layout.align
        scheduler = engine.connector._scheduler
        request = GroupsRequest(Prompt.drawn(1, 3 * size))
        scheduler.on_new_request(request)
        tables = [list(range(1, 2 * size // group.block + 1)) for group in layout.groups]
        new = scheduled_new(request, tables, 0)
        scheduler.build_connector_meta(output_of(size, new=[new]))
        self.assertIs(engine.connector.reset_cache(), True)
        while scheduler._reset.under_way:
            scheduler.build_connector_meta(output_of(0))
        goes_on = output_of(1, cached=[request], computed=size)
        self.assertEqual(scheduler.build_connector_meta(goes_on).saves, [])
        resumes = output_of(2 * size, cached=[request])
        resumes.scheduled_cached_reqs.resumed_req_ids = {request.request_id}
        resumes.scheduled_cached_reqs.new_block_ids = [tables]
        self.assertEqual(len(scheduler.build_connector_meta(resumes).saves), 1)

    def test_a_reset_goes_on_until_the_pool_has_done_it(self):
        pool = mock.Mock()
        pool.command.return_value = None
        reset = Reset(pool, Settings(model="m"), 2)
        self.assertFalse(reset.under_way or reset.step())
        self.assertFalse(reset.ask())
        told = [reset.step() for _ in range(4)]
        self.assertEqual(told, [True, False, False, False])
        self.assertEqual((reset.under_way, reset.holds, pool.command.call_count), (True, False, 3))
        pool.command.return_value = "0"
        self.assertFalse(reset.step() or reset.under_way)
        self.assertEqual(pool.command.call_args[0][1:], ("REMOVEMATCH", "GLOB", "m@*"))

    def test_after_a_reset_the_same_is_saved_again(self):
        """vLLM preempts what runs, and computes it with other weights, say."""
        for layout in (BY_NAME["full-window"], BY_NAME["three-groups"]):
            self.flush()
            engine = self.hybrid(layout)
            prompt = Prompt.drawn(1, self.length(layout))
            request = engine.add(Prompt(prompt.tokens), 2)
            while request.computed < 2 * layout.align:
                engine.step()
            wait_until(lambda: not any(w.connector.stats()["pending"] for w in engine.workers))
            engine.running.remove(request)
            engine._preempt(request)
            engine.pool.evict_blocks(list(engine.pool.known.values()))
            self.assertIs(engine.connector.reset_cache(), True)
            engine.settle()
            self.assertEqual(ask(self.hybrid(layout, seed=1), prompt), [3 * layout.align])


class States(WithGroups):
    def test_releases_that_hand_over_no_states(self):
        """Said once, and nothing is stored by its place in the table."""
        layout = BY_NAME["three-groups"]
        engine = self.hybrid(layout)
        with self.assertLogs("tarn.vllm", "ERROR") as logs, mock.patch.object(
            engine, "_offer", lambda *_: None
        ):
            prompts = [Prompt.drawn(n, self.length(layout)) for n in range(12)]
            ask(engine, *prompts)
        self.assertEqual(["51358" in line for line in logs.output], [True])
        self.assertEqual(self.check_parts(engine, prompts)[1], 0)

    def test_states_inside_a_block_are_left(self):
        """vLLM hands these over, too, where hashes are finer than blocks."""
        layout = BY_NAME["three-groups"]
        engine = self.hybrid(layout)
        prompt = Prompt.drawn(1, self.length(layout))
        request = engine.add(Prompt(prompt.tokens))
        step = engine.step

        def offer():
            result = step()
            engine.connector.build_connector_meta(
                SimpleNamespace(
                    num_scheduled_tokens={},
                    scheduled_new_reqs=[],
                    scheduled_cached_reqs=SimpleNamespace(req_ids=[], resumed_req_ids=set()),
                    partial_tail_offloads={request.request_id: [(1, 3, layout.align + 16)]},
                )
            )
            return result

        with mock.patch.object(engine, "step", offer):
            engine.settle()
        self.assertEqual(self.check_parts(engine, [prompt])[1], 3)

    def test_states_of_both_kinds_of_releases(self):
        for output, found in (
            (SimpleNamespace(), {}),
            (SimpleNamespace(partial_tail_offloads=None, kv_connector_block_state=None), {}),
            (SimpleNamespace(partial_tail_offloads={"a": [(1, 3, 64)]}), {"a": [(1, 3, 64)]}),
            (
                SimpleNamespace(
                    kv_connector_block_state=SimpleNamespace(
                        boundary_state_offloads={"b": [(1, 4, 64)]}
                    )
                ),
                {"b": [(1, 4, 64)]},
            ),
        ):
            self.assertEqual(states_in(output), found)

    def test_states_of_a_request_that_is_preempted_in_the_same_step(self):
        """It was to compute them in this step; their blocks may be somebody else's by now."""
        layout = BY_NAME["three-groups"]
        scheduler = self.hybrid(layout).connector._scheduler
        request = GroupsRequest(Prompt.drawn(1, self.length(layout)))
        scheduler.on_new_request(request)
        for preempted, saves in (({request.request_id}, 0), (set(), 1)):
            output = SimpleNamespace(
                num_scheduled_tokens={},
                scheduled_new_reqs=[],
                scheduled_cached_reqs=SimpleNamespace(req_ids=[], resumed_req_ids=set()),
                preempted_req_ids=preempted,
                partial_tail_offloads={request.request_id: [(1, 3, layout.align)]},
            )
            self.assertEqual(len(scheduler.build_connector_meta(output).saves), saves)


class Refusals(unittest.TestCase):
    """What cannot be done is said at the start, by name, and what to do instead."""

    def config(self, **changes):
        parts = {
            "model_config": SimpleNamespace(
                model="m", dtype="bfloat16", use_mla=False, get_total_num_kv_heads=lambda: 4
            ),
            "parallel_config": SimpleNamespace(
                tensor_parallel_size=1, pipeline_parallel_size=1, rank=0
            ),
            "cache_config": SimpleNamespace(block_size=16, cache_dtype="auto"),
            "kv_transfer_config": SimpleNamespace(kv_role="kv_both", kv_connector_extra_config={}),
        }
        for name, value in changes.items():
            part, _, field = name.partition("__")
            if field:
                setattr(parts[part], field, value)
            else:
                parts[part] = value
        return SimpleNamespace(**parts)

    def groups(self, specs, **changes):
        config = self.config(**changes)
        given = [
            SimpleNamespace(layer_names=[f"l.{i}"], kv_cache_spec=s) for i, s in enumerate(specs)
        ]
        cache = SimpleNamespace(num_blocks=9, kv_cache_groups=given)
        return groups_of(config, cache, settings_of(config), ranks_of(config, 0))

    def test_by_name(self):
        full = groups_model.FullAttentionSpec(16, 4, 8, "bfloat16")
        window = groups_model.SlidingWindowSpec(16, 4, 8, "bfloat16", 64)
        mamba = groups_model.MambaSpec(16, ((4,),), ("bfloat16",))
        named = {
            name: type(name, (groups_model.FullAttentionSpec,), {})(16, 4, 8, "bfloat16")
            for name in ("CrossAttentionSpec", "EncoderOnlyAttentionSpec", "RSWASpec")
        }
        extra = "kv_transfer_config__kv_connector_extra_config"
        for specs, changes, said in (
            ([full, window], {"parallel_config__decode_context_parallel_size": 2}, "DCP"),
            ([full, window], {"parallel_config__prefill_context_parallel_size": 2}, "PCP"),
            ([full, window], {extra: {"layerwise": True}}, "layerwise"),
            ([full, window], {extra: {"writer_tp": 2}}, "writer_tp"),
            ([full, window], {"model_config__is_encoder_decoder": True}, "cross attention"),
            ([full, named["CrossAttentionSpec"]], {}, "cross attention"),
            ([named["CrossAttentionSpec"]], {}, "cross attention"),
            ([full, named["EncoderOnlyAttentionSpec"]], {}, "encoder"),
            ([full, named["RSWASpec"]], {}, "reference sliding windows"),
            ([full, replace(mamba, mamba_cache_mode="all")], {}, "'all'.*mamba-cache-mode align"),
            ([replace(mamba, mamba_cache_mode="none")], {}, "'none'.*enable-prefix-caching"),
            ([full, SimpleNamespace(block_size=16)], {}, "SimpleNamespace.*leave the connector"),
            ([full] * 129, {"parallel_config__tensor_parallel_size": 8}, "1032 parts.*takes 1024"),
        ):
            if "parts" in said:
                changes["model_config__get_total_num_kv_heads"] = lambda: 8
                specs = [replace(spec, num_kv_heads=1) for spec in specs]
                self.assertEqual(len(self.groups(specs[1:], **changes).groups), 128)
            with self.assertRaisesRegex(ValueError, said):
                self.groups(specs, **changes)

    def test_one_group_of_full_attention_is_as_ever(self):
        full = groups_model.FullAttentionSpec(16, 4, 8, "bfloat16")
        self.assertIsNone(self.groups([full]))
        self.assertIsNone(self.groups([]))
        uniform = SimpleNamespace(block_size=16, kv_cache_specs={"a": full, "b": full})
        self.assertIsNone(self.groups([uniform]))
        self.assertIsNotNone(self.groups([uniform, full]))

    def test_one_group_of_another_kind_is_not(self):
        window = groups_model.SlidingWindowSpec(16, 4, 8, "bfloat16", 64)
        found = self.groups([window])
        self.assertEqual((found.groups[0].kind, found.groups[0].window), ("window", 64))
        chunked = groups_model.ChunkedLocalAttentionSpec(16, 4, 8, "bfloat16", 64)
        group = self.groups([chunked]).groups[0]
        self.assertEqual((group.kind, group.window, group.chunk), ("window", 65, 64))
        self.assertEqual([group.first_live(n) for n in (63, 64, 127, 128)], [0, 4, 4, 8])

    def test_groups_that_vllm_never_shares_are_left_out(self):
        full = groups_model.FullAttentionSpec(16, 4, 8, "bfloat16")
        scratch = SimpleNamespace(block_size=1, prefix_cacheable=False)
        found = self.groups([full, scratch, full])
        self.assertEqual((len(found.groups), found.tables), (2, 3))
        self.assertEqual([group.number for group in found.groups], [0, 2])

    def test_which_ranks_hold_the_same(self):
        ranks = Ranks(4, 3, 1, 0, 1, 0, 1, 0, 2, False)
        for heads, shard in ((0, (1, 0, 4, 3)), (2, (2, 1, 2, 1)), (-1, (4, 3, 1, 0))):
            self.assertEqual(Group(0, "full", 16, heads=heads).shard(ranks), shard)

    def test_heads_of_other_numbers_are_not_shared(self):
        """Two kinds of layers with other numbers of KV heads, one a rank: which ranks have the same
        ones is not known."""
        one = groups_model.FullAttentionSpec(16, 1, 8, "bfloat16")
        text = SimpleNamespace(num_key_value_heads=2)
        changes = {
            "parallel_config__tensor_parallel_size": 4,
            "model_config__get_total_num_kv_heads": lambda: 2,
            "model_config__hf_text_config": text,
        }
        self.assertEqual([g.heads for g in self.groups([one, one], **changes).groups], [2, 2])
        text.num_global_key_value_heads = 4
        self.assertEqual([g.heads for g in self.groups([one, one], **changes).groups], [-1, -1])

    def test_a_draft_whose_heads_are_dealt_out_otherwise(self):
        """Its layers may be in any group."""
        one = groups_model.FullAttentionSpec(16, 1, 8, "bfloat16")
        latent = groups_model.MLAAttentionSpec(16, 1, 8, "bfloat16")
        window = groups_model.SlidingWindowSpec(16, 1, 8, "bfloat16", 64)

        def heads(first, draft_heads, mla=False):
            draft = SimpleNamespace(get_total_num_kv_heads=lambda: draft_heads, use_mla=False)
            found = self.groups(
                [first, window],
                parallel_config__tensor_parallel_size=4,
                model_config__get_total_num_kv_heads=lambda: 2,
                model_config__use_mla=mla,
                speculative_config=SimpleNamespace(
                    method="eagle3", model="org/draft", draft_model_config=draft
                ),
            )
            return [group.heads for group in found.groups]

        self.assertEqual(heads(one, 2), [2, 2])
        self.assertEqual(heads(one, 4), [-1, -1])
        self.assertEqual(heads(latent, 4, mla=True), [-1, -1])

    def test_window_blocks_that_a_hit_can_need(self):
        group = Group(0, "window", 16, window=33)
        self.assertEqual([group.reachable(n, 64) for n in range(8)], [False, False, True, True] * 2)
        dropping = replace(group, drops_last=True)
        reached = [n for n in range(9) if dropping.reachable(n, 64)]
        self.assertEqual(reached, [2, 3, 4, 6, 7, 8])
        self.assertTrue(all(group.reachable(n, 16) for n in range(9)))


class Stages(unittest.TestCase):
    """A pipeline: every stage has layers of its own, and perhaps none of some group."""

    groups = Groups(
        (
            Group(0, "full", 32, heads=4, rank_heads=2, layers=("l.0",)),
            Group(1, "window", 16, window=40, heads=4, rank_heads=2, layers=("l.1",)),
        ),
        2,
    )
    ranks = Ranks(2, 0, 2, 0, 1, 0, 1, 0, 4, False)

    def test_a_hit_needs_every_stage_that_has_layers(self):
        layouts = {0: ["full-a", "window-a"], 1: ["full-b", ""]}
        asked = self.groups.asked(Settings(model="m"), "bf16", self.ranks, layouts)
        found = [(i, group.name.partition("@")[2]) for i, group in asked]
        self.assertEqual([i for i, _ in found], [0, 0, 1, 1, 0, 0])
        places = [name.split("@")[1:3] for _, name in found]
        stages = [["pp2.0"]] * 4 + [["pp2.1"]] * 2
        self.assertEqual([place[1:] for place in places], stages)
        self.assertEqual([place[0] for place in places], ["tp2.0", "tp2.1"] * 3)
        for i, group in asked:
            worker = replace(self.ranks, tp_rank=1, pp_rank=1)
            if "@tp2.1@pp2.1@" in group.name:
                space = self.groups.groups[i].space(Settings(model="m"), "bf16", worker, "full-b")
                self.assertEqual(space.prefix, group.name)

    def test_nothing_is_looked_up_before_all_stages_have_said_their_formats(self):
        pool = mock.Mock()
        config = SimpleNamespace(
            cache_config=SimpleNamespace(cache_dtype="bf16"),
            model_config=SimpleNamespace(dtype="bf16"),
        )
        side = GroupScheduler(config, Settings(model="m"), pool, self.groups, self.ranks)
        prompt = Prompt.drawn(1, 100)
        request = groups_engine.GroupsRequest(prompt)
        one = GroupReport({0: GroupFormat(0, ["full-a", "window-a"])}, Counter({1: 1}))
        other = GroupReport({1: GroupFormat(1, ["full-b", ""])}, Counter({1: 1, 2: 1}), {"r"})
        both = one.aggregate(other)
        self.assertEqual((both.done, both.failed), (Counter({1: 2, 2: 1}), {"r"}))
        side.update_connector_output(SimpleNamespace(kv_connector_worker_meta=one))
        self.assertEqual(side.get_num_new_matched_tokens(request, 0), (0, False))
        pool.kv_prefix.assert_not_called()
        side.update_connector_output(SimpleNamespace(kv_connector_worker_meta=both))
        pool.kv_prefix.return_value = KVBoundary(64, (KVParts(0, 2, 0),) * 6)
        self.assertEqual(side.get_num_new_matched_tokens(request, 0), (64, True))
        hashes, groups = pool.kv_prefix.call_args[0]
        self.assertEqual((len(hashes), len(groups)), (99 // 16, 6))

    def test_blocks_are_pinned_until_every_rank_is_done(self):
        pool = groups_engine.BlockPool(40)
        pins = Pins(pool, 4)
        blocks = pool.take(9)
        pins.hold(7, blocks)
        pool.free_blocks([pool.blocks[i] for i in blocks])
        self.assertEqual((pins.room, pins.holds), (10, True))
        pins.hold(8, pool.take(1))
        self.assertEqual(pins.room, 0, "a quarter of 40")
        for done in (Counter({7: 1}), Counter({7: 2, 99: 4}), Counter({7: 1})):
            self.assertFalse(set(blocks) & set(pool.free))
            pins.release(done)
        self.assertTrue(set(blocks) <= set(pool.free))
        self.assertEqual((pins.room, pins.holds), (10, True))
        pins.drop(8)
        self.assertFalse(pins.holds)


class Names(WithGroups):
    """Never a block of another KV group, layer count, dtype or layout under the same key."""

    def names(self, layout, change=None):
        engine = self.hybrid(layout)
        if change is not None:
            config = engine.config(0)
            change(config)
            with mock.patch.object(engine, "config", lambda rank: config):
                worker = groups_engine.GroupsWorker(engine, 0, TarnConnector)
            self.addCleanup(worker.connector.shutdown)
        else:
            worker = engine.workers[0]
        return {space.prefix for space in worker.connector._worker._spaces}

    def test_whatever_changes_bytes_is_in_the_names(self):
        plain = BY_NAME["full-window"]
        full, window = plain.groups
        state = BY_NAME["three-groups"].groups[1]
        layouts = [
            plain,
            replace(plain, dtype="fp8_e4m3"),
            replace(plain, groups=(window, full)),
            replace(plain, groups=(full, full)),
            replace(plain, groups=(full, window, window)),
            *(replace(plain, groups=(replace(full, layers=n), window)) for n in (1, 3)),
            replace(plain, groups=(replace(full, block=48), window)),
            replace(plain, groups=(replace(full, cell=4), window)),
            replace(plain, groups=(replace(full, heads=2), window)),
            replace(plain, groups=(replace(full, form="latent"), window)),
            replace(plain, groups=(full, replace(window, window=24))),
            replace(plain, groups=(full, replace(window, block=32))),
            replace(plain, groups=(full, replace(state, block=32))),
            replace(plain, groups=(full, replace(state, block=32, cell=1200))),
            replace(plain, tp=2),
        ]
        seen = {}
        for layout in layouts:
            layout = replace(layout, name="same")
            for name in self.names(layout):
                parts = name.rpartition("@kv")
                self.assertTrue(parts[1])
                seen.setdefault(name, []).append(layout)
        shared = [names for names in seen.values() if len(names) > 1]
        for names in shared:  # a group that is the same in both has the same name
            number = next(n for n, found in seen.items() if found is names)
            number = int(number.rpartition("@kv")[2].rstrip("@"))
            said = {
                (
                    one.groups[number],
                    one.dtype,
                    one.tp,
                    groups_model.layers_of(number, one.groups[number])[0],
                )
                for one in names
            }
            self.assertEqual(len(said), 1)

    def test_what_the_config_says_is_in_them_too(self):
        layout = BY_NAME["three-groups"]
        base = self.names(layout)
        for field, value in (
            ("hf_overrides", {"rope_theta": 1}),
            ("quantization", "awq"),
            ("dtype", "float32"),
            ("code_revision", "r2"),
        ):
            changed = self.names(layout, lambda c: setattr(c.model_config, field, value))
            self.assertFalse(base & changed, field)


if __name__ == "__main__":
    unittest.main()
