#!/usr/bin/env python3
"""TarnBackend under vllm-ascend's own code: its key database, coordinator, look-up and transfer
threads, block by block and layer by layer, unmodified, with one or several KV groups. Every byte is
compared: round trips, a full pool, parts that go, a server that starts again.

    tools/ascend-store.py --vllm-ascend DIR --vllm DIR [--seed N] [--model NAME]

--vllm-ascend: its source of August 2026 on, or where it is installed (the folder that has
vllm_ascend/); --vllm: as for tools/vllm-boundaries.py, for the block managers that say what a hit
needs. It needs numpy; torch and all else is stood in for, and host memory stands in for an NPU's.
Run by hand; 1: something was wrong."""

import argparse
import ctypes
import logging
import math
import os
import random
import re
import sys
import threading
import types
from types import SimpleNamespace
from unittest.mock import MagicMock

from engine_modules import (
    BLOCK_MANAGER,
    Anything,
    Checks,
    Engine,
    evicted_keys,
    expected,
    known,
    leave,
    needs,
)
from harness import Server, wait_until

import tarn

STORE = "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store"
REAL = {f"{STORE}.{name}" for name in ("kv_transfer", "metadata", "coordinator", "pool_worker")}
REAL |= {f"{STORE}.attention_fence", f"{STORE}.layerwise_cache_layout", f"{STORE}.backend.base"}

SLOTS, LAYERS, UNTOUCHED = 96, 3, 0xEE
_ascend = SimpleNamespace()  # transfer, metadata, coordinator, worker: vllm-ascend's modules


def load(ascend, vllm):
    sys.modules.setdefault("regex", re)
    engine = Engine("vllm-ascend", ascend, REAL, ("vllm_ascend", "torch", "torch_npu"))
    theirs = Engine("vLLM", vllm, BLOCK_MANAGER, ("vllm", "typing_extensions"))
    theirs.stand_in("vllm.logger", logger=logging.getLogger("vllm"), init_logger=logging.getLogger)
    factory = SimpleNamespace(_registry={}, register_connector=lambda *_: None)
    where = "vllm.distributed.kv_transfer.kv_connector.factory"
    theirs.stand_in(where, KVConnectorFactory=factory)
    managers = theirs.module("vllm.v1.core.single_type_kv_cache_manager")
    registry = getattr(managers, "register_all_kvcache_specs", None)
    if registry is not None:
        registry(Anything())
    _ascend.specs = theirs.module("vllm.v1.kv_cache_interface", "MambaSpec", "SlidingWindowSpec")
    _ascend.metadata = engine.module(f"{STORE}.metadata", "ChunkedTokenDatabase", "ReqMeta")
    _ascend.transfer = engine.module(
        f"{STORE}.kv_transfer",
        "KVCacheStoreSendingThread",
        "KVCacheStoreRecvingThread",
        "KVCacheStoreLayerSendingThread",
        "KVCacheStoreLayerRecvingThread",
        "LayerBatchBuilder",
    )
    _ascend.coordinator = engine.module(f"{STORE}.coordinator", "AscendStoreCoordinator")
    _ascend.worker = engine.module(f"{STORE}.pool_worker", "KVPoolWorker").KVPoolWorker
    base = engine.module(f"{STORE}.backend.base", "Backend").Backend

    from tarn.vllm_ascend import TarnBackend

    if not issubclass(TarnBackend, base):
        sys.exit("TarnBackend does not derive from vllm-ascend's Backend")
    _ascend.backend = TarnBackend


class Model:
    """groups: ("full" | "latent" | "window" | "state", block, window)."""

    def __init__(self, *groups, ranks=1):
        self.groups, self.ranks = groups, ranks
        self.blocks = [block for _, block, *_ in groups]
        self.align = math.lcm(*self.blocks)
        self.unit = math.gcd(*self.blocks)

    def specs(self):
        s = _ascend.specs
        for kind, block, *window in self.groups:
            attention = {"num_kv_heads": 1, "head_size": 8, "dtype": "bfloat16"}
            if kind == "full":
                yield known(s.FullAttentionSpec, block_size=block, **attention)
            elif kind == "latent":
                yield known(s.MLAAttentionSpec, block_size=block, **attention)
            elif kind == "window":
                yield known(
                    s.SlidingWindowSpec, block_size=block, sliding_window=window[0], **attention
                )
            else:
                yield known(
                    s.MambaSpec,
                    block_size=block,
                    shapes=((1,),),
                    dtypes=("bfloat16",),
                    mamba_cache_mode="align",
                )


MODELS = {
    "full": Model(("full", 16)),
    "window": Model(("full", 16), ("window", 16, 40)),
    "two-sizes": Model(("full", 32), ("window", 16, 40)),
    "states": Model(("full", 64), ("state", 64)),
    "three": Model(("window", 32, 100), ("state", 64), ("full", 64)),
    "large-blocks": Model(("full", 544), ("window", 272, 1000)),
    "latent": Model(("latent", 128), ("latent", 64)),
    "tp2": Model(("full", 16), ("window", 16, 40), ranks=2),
    "tp4": Model(("full", 32), ("state", 64), ranks=4),
}


class Prompt:
    def __init__(self, rng, tokens, unit, like=None, alike=0):
        """The first `alike` tokens are those of `like`."""
        self.tokens = tokens
        self.hashes = [
            like.hashes[i] if (i + 1) * unit <= alike else rng.randbytes(32)
            for i in range(tokens // unit)
        ]


class Rank:
    """A worker of one rank: of each KV group two tensors for each layer."""

    def __init__(self, model, rank, sizes, url):
        self.model, self.rank, self.sizes = model, rank, sizes
        os.environ["TARN_URL"] = url
        self.store = _ascend.backend(SimpleNamespace(rank=rank, world_size=model.ranks))
        self.tensors = [[(ctypes.c_char * (SLOTS * n))() for n in each] for each in sizes]
        self.addresses = {
            g: [ctypes.addressof(tensor) for tensor in each] for g, each in enumerate(self.tensors)
        }
        self.store.register_buffer(
            [a for each in self.addresses.values() for a in each],
            [len(tensor) for each in self.tensors for tensor in each],
        )
        self._database()
        self._worker()

    def _database(self):
        groups = len(self.model.groups)
        named = [
            _ascend.metadata.KeyMetadata("model", self.rank, 0, 0, 0, g) for g in range(groups)
        ]
        self.database = known(
            _ascend.metadata.ChunkedTokenDatabase,
            metadata=named,
            block_size=self.model.blocks,
            partitions=None,
            hash_block_size=self.model.unit,
        )
        self.lengths = dict(enumerate(self.sizes))
        self.database.set_group_buffers(
            self.addresses,
            self.lengths,
            group_cache_families={g: "default" for g in range(groups)},
            group_num_layers={g: LAYERS for g in range(groups)},
        )
        specs = [
            known(_Group, layer_names=[f"layer{g}"], kv_cache_spec=spec, is_eagle_group=False)
            for g, spec in enumerate(self.model.specs())
        ]
        self.database.cache_coordinator = _ascend.coordinator.AscendStoreCoordinator(
            specs,
            scheduler_block_size=self.model.align,
            hash_block_size=self.model.unit,
            group_block_sizes=self.model.blocks,
            group_cache_families=["default"] * groups,
        )

    def _worker(self):
        """KVPoolWorker's own look-up, allocation and leases; its constructor wants an NPU."""
        self.worker = SimpleNamespace(
            m_store=self.store,
            token_database=self.database,
            cache_coordinator=self.database.cache_coordinator,
            num_kv_cache_groups=len(self.model.groups),
            grouped_block_size=self.model.blocks,
            hash_block_size=self.model.unit,
            group_block_len=self.lengths,
            page_size_bytes=0,
            model_name="model",
            tp_rank=self.rank,
            head_or_tp_rank=self.rank,
            put_step=1,
            kv_role="kv_both",
            consumer_is_to_put=False,
            use_gva_layerwise=True,
            layerwise_offload=False,
            use_eagle=False,
            _allocated_gvas={},
            _invalid_block_ids=set(),
            _invalid_block_ids_lock=threading.Lock(),
        )
        for name in (
            "_lookup_with_coordinator",
            "_make_layerwise_gva_key",
            "_make_layerwise_partial_key",
            "_refresh_allocated_gvas",
            "_alloc_gvas_for_save",
            "_prepare_load_gvas",
        ):
            setattr(self.worker, name, types.MethodType(getattr(_ascend.worker, name), self.worker))
        self.worker._get_partial_block_index = _ascend.worker._get_partial_block_index

        def all_ranks(key, _group, _all):
            """As _expand_lookup_key_variants with TP."""
            named = f"@head_or_tp_rank:{self.rank}@"
            return [
                key.replace(named, f"@head_or_tp_rank:{rank}@", 1)
                for rank in range(self.model.ranks)
            ]

        self.worker._expand_lookup_key_variants = all_ranks

    def truth(self, group, digest):
        named = f"{self.rank} {group} {digest.hex()}"
        return random.Random(named).randbytes(sum(self.sizes[group]))

    def write(self, group, slot, data):
        at = 0
        for address, size in zip(self.addresses[group], self.sizes[group]):
            ctypes.memmove(address + slot * size, data[at : at + size], size)
            at += size

    def read(self, group, slot):
        return b"".join(
            ctypes.string_at(address + slot * size, size)
            for address, size in zip(self.addresses[group], self.sizes[group])
        )

    def blank(self):
        for each in self.tensors:
            for tensor in each:
                ctypes.memset(tensor, UNTOUCHED, len(tensor))


class _Group:
    """As KVCacheGroupSpec."""

    def __init__(self, layer_names, kv_cache_spec, is_eagle_group):
        self.layer_names, self.kv_cache_spec = layer_names, kv_cache_spec
        self.is_eagle_group = is_eagle_group


class Scenes:
    """What the ranks of one model go through."""

    def __init__(self, checks, model, rng):
        self.checks, self.model, self.rng = checks, model, rng

    def ranks(self, server):
        with expected("vllm-ascend's ChunkedTokenDatabase or KVPoolWorker"):
            return [Rank(self.model, n, self.sizes, server.url) for n in range(self.model.ranks)]

    def small_pool(self):
        """Has room for about four prompts."""
        blocks = [self.parts * self.model.align // block for block in self.model.blocks]
        prompt = sum(count * sum(sizes) for count, sizes in zip(blocks, self.sizes))
        return f"{4 * prompt * self.model.ranks // 1024 + 32}kb"

    @property
    def parts(self):
        return min(5, (SLOTS - 1) // max(self.model.align // block for block in self.model.blocks))

    def prompt(self, parts=0, like=None, alike=0):
        tokens = (parts or self.parts) * self.model.align
        return Prompt(self.rng, tokens, self.model.unit, like, alike * self.model.align)

    def tables(self, tokens):
        """Slots of each group, at random; 0 is the null block."""
        return [self.rng.sample(range(1, SLOTS), tokens // block) for block in self.model.blocks]

    def fill(self, rank, prompt, tables):
        for group, (table, block) in enumerate(zip(tables, self.model.blocks)):
            for number, slot in enumerate(table):
                digest = prompt.hashes[(number + 1) * block // self.model.unit - 1]
                rank.write(group, slot, rank.truth(group, digest))

    def request(self, prompt, tables, load=None):
        return _ascend.metadata.ReqMeta(
            req_id=f"request{self.rng.getrandbits(48):x}",
            token_len_chunk=prompt.tokens,
            block_ids_by_group=[list(table) for table in tables],
            block_hashes=prompt.hashes,
            can_save=load is None,
            load_spec=load,
            is_last_chunk=True,
            kv_cache_group_ids=list(range(len(tables))),
            skip_null_blocks_by_group=[True] * len(tables),
            num_prompt_tokens=prompt.tokens,
        )

    def thread(self, rank, kind, **options):
        made = known(
            getattr(_ascend.transfer, kind),
            m_store=rank.store,
            token_database=rank.database,
            block_size=list(self.model.blocks),
            tp_rank=rank.rank,
            tp_size=self.model.ranks,
            dcp_size=1,
            kv_role="kv_both",
            ready_event=threading.Event(),
            **options,
        )
        made.start()
        made.ready_event.wait()
        return made

    def save(self, ranks, prompt):
        """Block by block, as the sending thread does it."""
        tables = self.tables(prompt.tokens)
        for rank in ranks:
            self.fill(rank, prompt, tables)
            request = self.request(prompt, tables)
            sender = rank.sender = getattr(rank, "sender", None) or self.thread(
                rank,
                "KVCacheStoreSendingThread",
                group_uses_align_state=[kind == "state" for kind, *_ in self.model.groups],
            )
            sender.add_stored_request(request.req_id)
            sender.add_request(request)
            sender.request_queue.join()
            self.checks.ok(
                request.req_id in sender.get_and_clear_finished_requests(), "a save did not end"
            )

    def find(self, rank, prompt):
        groups = list(range(len(self.model.groups)))
        found = rank.worker._lookup_with_coordinator(
            prompt.tokens, prompt.hashes, groups, False, True
        )
        self.checks.ok(found % self.model.align == 0, "no boundary", found)
        return found

    def load(self, ranks, prompt, between=lambda: None):
        """(tokens found, whether a block was missing); every byte is compared."""
        found = self.find(ranks[0], prompt)
        if not found:
            return 0, False
        between()
        tables, lacking = self.tables(prompt.tokens), False
        for rank in ranks:
            rank.blank()
            spec = _ascend.metadata.LoadSpec(0, found, True, token_len=found)
            request = self.request(prompt, tables, spec)
            results = []
            receiver = rank.receiver = getattr(rank, "receiver", None) or self.thread(
                rank, "KVCacheStoreRecvingThread"
            )
            get = rank.store.get

            def noted(keys, *places, get=get, results=results):
                said = get(keys, *places)
                results.extend(zip(keys, said))
                return said

            receiver.m_store = SimpleNamespace(get=noted, exists=rank.store.exists)
            receiver.add_request(request)
            receiver.request_queue.join()
            self.checks.ok(
                request.req_id in receiver.get_and_clear_finished_requests(), "a load did not end"
            )
            failed = {key for key, result in results if result}
            lacking |= bool(failed) or not results
            self.compare(rank, prompt, found, tables, failed)
        return found, lacking

    def compare(self, rank, prompt, found, tables, failed):
        masks = rank.database.load_mask(prompt.hashes, found)
        for group, (table, mask) in enumerate(zip(tables, masks)):
            block = self.model.blocks[group]
            name = rank.database._get_key_prefix(group)
            for number, slot in enumerate(table):
                end = (number + 1) * block
                digest = prompt.hashes[end // self.model.unit - 1]
                read = number < len(mask) and mask[number] and end <= found
                if read and name + digest.hex() in failed:
                    continue
                truth = bytes([UNTOUCHED]) * sum(rank.sizes[group])
                if read:
                    truth = rank.truth(group, digest)
                what = "the bytes" if read else "not to be read, but written:"
                right = rank.read(group, slot) == truth
                self.checks.ok(right, what, f"rank {rank.rank} group {group} {number}")

    def round_trips(self, ranks, _):
        ok, first = self.checks.ok, self.prompt()
        ok(self.find(ranks[0], first) == 0, "found in an empty pool")
        self.save(ranks, first)
        ok(self.load(ranks, first) == (first.tokens, False), "all of it")
        half = self.parts // 2
        branch = self.prompt(like=first, alike=half)
        found, lacking = self.load(ranks, branch)
        ok(found <= half * self.model.align and not lacking, "the part that they share", found)
        self.save(ranks, branch)
        for prompt in (branch, first):
            ok(self.load(ranks, prompt) == (prompt.tokens, False), "both are there")
        ok(self.find(ranks[0], self.prompt()) == 0, "another prompt is found")

    def gone(self, ranks, server):
        prompt = self.prompt()
        self.save(ranks, prompt)
        for group in range(len(self.model.groups)):
            rank = self.rng.choice(ranks)
            # The last part of a group is needed in any case.
            key = rank.database._get_key_prefix(group) + prompt.hashes[-1].hex()
            with tarn.Client(server.url) as client:
                name = client.command("KEYS", f"*{key}")  # what stands before it is TarnBackend's

                def remove():
                    self.checks.ok(client.remove(name), "removed", key)

                found, lacking = self.load(ranks, prompt, between=remove)
            self.checks.ok(found == prompt.tokens and lacking, "nobody was told", found, lacking)
            self.checks.ok(self.find(ranks[0], prompt) < prompt.tokens, "found, a part is gone")
            self.save(ranks, prompt)
            self.checks.ok(self.load(ranks, prompt) == (found, False), "put again")

    def restart(self, ranks, server):
        prompt = self.prompt()
        self.save(ranks, prompt)
        found, lacking = self.load(ranks, prompt, between=server.restart)
        self.checks.ok(found == prompt.tokens and lacking, "nobody was told", found, lacking)

        def saved():
            self.save(ranks, prompt)
            return self.find(ranks[0], prompt) == prompt.tokens

        wait_until(saved, 90, "a save after a restart")
        self.checks.ok(self.load(ranks, prompt) == (prompt.tokens, False), "after a restart")

    def full(self, ranks, server):
        prompts, hits, misses, failures, evicted = [], 0, 0, 0, 0
        while len(prompts) < 30 or (evicted < 40 and len(prompts) < 400):
            like, alike = None, 0
            if len(prompts) % 3:
                like, alike = self.rng.choice(prompts), self.rng.randrange(self.parts)
            prompts.append(self.prompt(like=like, alike=alike))
            self.save(ranks, prompts[-1])
            for prompt in (prompts[-1], self.rng.choice(prompts)):
                other = self.rng.choice(prompts)  # is put between look-up and load
                found, lacking = self.load(ranks, prompt, lambda o=other: self.save(ranks, o))
                hits, misses, failures = (
                    hits + bool(found),
                    misses + (not found),
                    failures + lacking,
                )
            evicted = evicted_keys(server)
        self.checks.ok(hits and evicted, "hits and evictions", hits, evicted)
        return f"{hits} hits, {misses} misses, {failures} lacked a part, {evicted} keys evicted"

    def layers(self, ranks, _):
        """Layer by layer: every block of every group, with memory of the pool's allocated first
        and leased before the load."""
        for _ in range(3):
            prompt = self.prompt()
            for rank in ranks:
                tables = self.tables(prompt.tokens)
                self.fill(rank, prompt, tables)
                request = self.layer_request(prompt, tables)
                rank.worker._alloc_gvas_for_save([request])
                self.layer_trip(rank, request, tables, save=True)
            for rank in ranks:
                rank.blank()
                tables = self.tables(prompt.tokens)
                spec = _ascend.metadata.LoadSpec(0, prompt.tokens, True)
                request = self.layer_request(prompt, tables, spec)
                rank.worker._prepare_load_gvas([request])
                self.layer_trip(rank, request, tables, save=False)
                for group, table in enumerate(tables):
                    for number, slot in enumerate(table):
                        end = (number + 1) * self.model.blocks[group]
                        digest = prompt.hashes[end // self.model.unit - 1]
                        right = rank.read(group, slot) == rank.truth(group, digest)
                        self.checks.ok(right, "the bytes", rank.rank, group, number)

    def layer_request(self, prompt, tables, load=None):
        import numpy

        request = self.request(prompt, tables, load)
        request.block_ids_by_group_np = [numpy.asarray(table) for table in tables]
        request.block_ids_np = request.block_ids_by_group_np[0]
        request.save_keys, request.load_keys = [], []
        return request

    def layer_trip(self, rank, request, tables, save):
        events = [[threading.Event() for _ in range(LAYERS)] for _ in range(2)]
        builders = [
            _ascend.transfer.LayerBatchBuilder(
                rank.database, sum(rank.sizes[group]), LAYERS, group_id=group
            )
            for group in range(len(tables))
        ]
        kind, fences = "KVCacheStoreLayerSendingThread", [MagicMock() for _ in range(LAYERS)]
        arguments = [rank.store, rank.database, self.model.blocks[0], rank.rank, self.model.ranks]
        if save:
            arguments += [1, rank.rank, threading.Event(), LAYERS, events[0], fences]
        else:
            kind = "KVCacheStoreLayerRecvingThread"
            arguments += [1, rank.rank, threading.Event(), threading.Event()]
            arguments += [*events, fences, LAYERS]
        thread = getattr(_ascend.transfer, kind)(*arguments, group_builders=builders)
        thread.start()
        shared = {}
        for layer in range(LAYERS):
            tasks = []
            for group, table in enumerate(tables):
                span = _ascend.metadata.LayerBlockRange(request, 0, len(table))
                task = _ascend.metadata.LayerTransferTask(
                    layer, [span], group_id=group, layer_idx_in_group=layer
                )
                if not save or group not in shared:
                    shared[group] = thread.build_shared_data(task)
                task.shared_block_data = shared[group]
                tasks.append(task)
            if save and layer == LAYERS - 1:
                tasks[-1].write_finish_keys = list(request.save_keys)
            one = tasks if save else _ascend.metadata.LayerLoadTask(None, tasks, layer)
            thread.add_request(one)
            thread.request_queue.join()
            self.checks.ok(events[0][layer].is_set(), "a layer did not end", layer)
        self.checks.ok(thread._fatal_error is None, "the thread", thread._fatal_error)

    def run(self, scene, pool):
        self.sizes = [[self.rng.choice((96, 512, 2048))] * (2 * LAYERS) for _ in self.model.groups]
        with Server(pool or self.small_pool()) as server:
            ranks = self.ranks(server)
            try:
                return scene(ranks, server)
            finally:
                for rank in ranks:
                    rank.store.close()

    def play(self, name):
        for what, scene, pool in (
            ("round trips", self.round_trips, "64mb"),
            ("layer by layer", self.layers, "64mb"),
            ("a part goes", self.gone, "64mb"),
            ("restarts", self.restart, "64mb"),
            ("full", self.full, ""),
        ):
            self.checks.scene(f"{name}: {what}", lambda s=scene, p=pool: self.run(s, p))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--vllm-ascend", required=True, metavar="DIR")
    parser.add_argument("--vllm", required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, bytes and sizes")
    parser.add_argument("--model", choices=list(MODELS), action="append", help="only these")
    options = parser.parse_args()
    needs(numpy="python3-numpy")
    logging.basicConfig(level=logging.CRITICAL)
    load(options.vllm_ascend, options.vllm)
    checks = Checks()
    for name in options.model or MODELS:
        rng = random.Random(f"{options.seed} {name}")
        Scenes(checks, MODELS[name], rng).play(name)
    return checks.end()


if __name__ == "__main__":
    leave(main)
