#!/usr/bin/env python3
"""TarnConnector for hybrid models under vLLM's own block manager: the engine of
tests/python/groups_engine.py with vLLM's KVCacheManager, its coordinator, managers and block pool
in place of its own. Every byte that a layer reads is compared, and every object in the pool.

    tools/vllm-soak.py --vllm DIR [--seeds N] [--seed N]

DIR: as for tools/vllm-boundaries.py. Where it is older than vLLM's change 51358, the states that
this change hands over are handed over here. Run by hand; 1: something was wrong."""

import argparse
import sys
import traceback
import unittest
from types import SimpleNamespace
from unittest import mock

from engine_modules import known, vllm_of
import groups_engine
import groups_model
import vllm_groups_test as groups_test
from layouts import STATE, Prompt

MANAGER = "vllm.v1.core.kv_cache_manager"
_vllm = SimpleNamespace()  # interface, utils, manager: vLLM's modules


def load(folder):
    vllm = vllm_of(folder, MANAGER)
    _vllm.interface = vllm.module("vllm.v1.kv_cache_interface")
    _vllm.utils = vllm.module("vllm.v1.core.kv_cache_utils")
    _vllm.manager = vllm.module(MANAGER, "KVCacheManager")


def spec_of(layout, group):
    """As groups_model has it, of vLLM's classes."""
    plain = groups_model.spec_of(layout, group)
    kind = getattr(_vllm.interface, type(plain).__name__)
    return known(kind, **vars(plain))


def cache_config_of(layout, blocks):
    groups = [
        _vllm.interface.KVCacheGroupSpec(
            groups_model.layers_of(i, group),
            spec_of(layout, group),
            is_eagle_group=group.drops_last,
        )
        for i, group in enumerate(layout.groups)
    ]
    config = _vllm.interface.KVCacheConfig(blocks, [], groups)
    if not hasattr(config, "prefix_cache_retention_interval"):
        config.prefix_cache_retention_interval = None
    return config


class RealEngine(groups_engine.GroupsEngine):
    """What is in vLLM's hands here: which blocks a request has, and which are found again."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, pool_bound=False, **options)
        layout = self.layout
        self.unit = layout.unit
        self.manager = known(
            _vllm.manager.KVCacheManager,
            kv_cache_config=self.cache_config,
            max_model_len=1 << 16,
            scheduler_block_size=layout.align,
            hash_block_size=layout.unit,
            max_num_batched_tokens=self.budget,
            max_in_flight_tokens=self.budget,
            enable_caching=True,
            use_eagle=any(group.drops_last for group in layout.groups),
        )
        blocks = self.manager.block_pool
        self.connector.bind_gpu_block_pool(blocks)
        give = blocks.get_new_blocks

        def noted(count):
            given = give(count)
            self.pool.given += [block.block_id for block in given]
            return given

        blocks.get_new_blocks = noted

    def _told(self, request):
        """The request as vLLM knows it."""
        request.skip_reading_prefix_cache = False
        request.num_preemptions = request.num_in_flight_tokens = request.shared_prefix_boundary = 0
        request.block_hashes = [_vllm.utils.BlockHash(h) for h in request.truth.hashes(self.unit)]
        request.num_computed_tokens = request.computed
        return request

    def _tables(self, request):
        return [list(table) for table in self.manager.get_block_ids(request.request_id)]

    def _say(self, request, external):
        ids = tuple(list(table) for table in request.tables)
        blocks = SimpleNamespace(get_block_ids=lambda: ids)
        self.connector.update_state_after_alloc(request, blocks, external)

    def _free(self, request):
        if request.tables is not None:
            self.manager.free(request)
        request.tables = None

    def _fits(self, request, skipped):
        holders = [r for r in skipped if r.tables is not None]
        free = self.manager.block_pool.get_num_free_blocks()
        alone = not holders and not self.running
        return alone or sum(map(self._need, [request, *holders])) < free

    def _start(self, request, skipped):
        found, local = self.manager.get_computed_blocks(self._told(request))[:2]
        external, asynchronous = self.connector.get_num_new_matched_tokens(request, local)
        if external is None or (external and not self._fits(request, skipped)):
            return False
        assert asynchronous == bool(external) and local + external < request.num_tokens
        request.hit = (found, local)
        if not external:
            request.computed, request.tables = local, [[] for _ in self.layout.groups]
            return True
        added = self.manager.allocate_slots(
            request,
            0,
            num_new_computed_tokens=local,
            new_computed_blocks=found,
            num_external_computed_tokens=external,
            delay_cache_blocks=True,
        )
        request.hit = None
        if added is None:
            return False
        request.computed, request.tables = local + external, self._tables(request)
        request.external += external
        self.external += external
        self._say(request, external)
        request.status = "LOADING"
        return True

    def _remember_loaded(self, request):
        self.manager.cache_blocks(self._told(request), request.computed)

    def _grow(self, request, tokens):
        hit, request.hit = getattr(request, "hit", None), None
        self._told(request)
        options = {}
        if hit is not None:
            request.num_computed_tokens = 0
            options = {"new_computed_blocks": hit[0], "num_new_computed_tokens": hit[1]}
        added = self.manager.allocate_slots(request, tokens - request.computed, **options)
        if added is None:
            if hit is not None:
                request.tables, request.computed = None, 0
            return None
        request.num_computed_tokens, request.tables = request.computed, self._tables(request)
        if hit is not None:
            self._say(request, 0)
        return [list(table) for table in added.get_block_ids()]

    def _remember(self, request, first, last):
        """The manager has done it; the states that it has kept at a boundary."""
        for manager in self.manager.coordinator.single_type_managers:
            at = last // manager.block_size - 1
            if self.layout.groups[manager.kv_cache_group_id].kind != STATE or at < 0:
                continue
            block = manager.req_to_blocks[request.request_id][at]
            if last % manager.block_size == 0 and not block.is_null and block.block_hash:
                self._offer(request, manager.kv_cache_group_id, block.block_id, last)

    def schedule(self):
        self.manager.new_step_starts()
        return super().schedule()

    def check_idle(self):
        assert not self.requests
        free = self.manager.block_pool.get_num_free_blocks()
        assert free == self.block_count - 1, "blocks were lost"


class RealSoak(groups_test.Soak):
    seeds = range(0)

    def round_trip(self, layout):
        prompt = Prompt.drawn(7, self.length(layout))
        writer = self.hybrid(layout)
        self.assertEqual(groups_engine.ask(writer, prompt), [0])
        self.assertTrue(all(self.check_parts(writer, [prompt])))
        found = groups_engine.ask(self.hybrid(layout, seed=1), prompt)[0]
        dropped = any(group.drops_last for group in layout.groups)
        self.assertEqual(found, (3 - dropped) * layout.align)
        return f"{found} tokens loaded"

    def one_seed(self, layout, seed):
        kind = (groups_test.TarnConnector, groups_test.SlowConnector)[
            seed // len(groups_test.HYBRID) % 2
        ]
        with mock.patch.object(groups_test.SlowClient, "delay", 0.005):
            engine = self.soak(layout, kind, seed, budget=max(40, layout.align // 3))
        return f"{engine.external} tokens loaded, {engine.preemptions} preemptions"

    def runTest(self):
        wrong = 0
        each = [(layout, None) for layout in groups_test.HYBRID]
        each += [(groups_test.HYBRID[n % len(groups_test.HYBRID)], n) for n in self.seeds]
        for layout, seed in each:
            self.flush()
            what = "round trip" if seed is None else f"seed {seed}"
            try:
                said = self.round_trip(layout) if seed is None else self.one_seed(layout, seed)
            except Exception:
                traceback.print_exc(limit=-3)
                wrong, said = wrong + 1, "WRONG"
            print(f"{layout.name}, {what}: {said}", flush=True)
            while self.engines:
                self.engines.pop().close()
        print(f"{len(each)} runs, {wrong} wrong")
        self.assertEqual(wrong, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--vllm", required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=28)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    load(arguments.vllm)
    RealSoak.seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    with mock.patch.object(groups_engine, "cache_config_of", cache_config_of), mock.patch.object(
        groups_test, "GroupsEngine", RealEngine
    ):
        result = unittest.TextTestRunner(verbosity=0).run(unittest.TestSuite([RealSoak()]))
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
