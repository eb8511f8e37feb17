#!/usr/bin/env python3
"""vLLM's own MooncakeStoreConnector on tarn's mooncake.store: its worker, scheduler, coordinator
and look-up server, unmodified, keep caches of one or several KV groups. Every byte is compared:
round trips, a full pool, a server that starts again or hangs between look-up and load.

    tools/vllm-mooncake.py --vllm DIR [--seed N] [--model NAME]

DIR: source of vLLM from August 2026 on, or where it is installed (the folder that has vllm/). It
needs torch, numpy and zmq (Debian's python3-torch, python3-numpy, python3-zmq) and no GPU: tensors
are the CPU's; vLLM's configuration and its groups of processes are stood in for. Run by hand; 1:
something was wrong."""

import argparse
import json
import logging
import math
import os
import random
import re
import sys
import tempfile
import threading
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

from engine_modules import Checks, evicted_keys, expected, known, leave, needs, vllm_of
from harness import Server, wait_until

MOONCAKE = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake"
REAL = [f"{MOONCAKE}.store.{name}" for name in ("worker", "data", "coordinator", "scheduler")]
REAL += [f"{MOONCAKE}.store.protocol", f"{MOONCAKE}.rdma_utils"]
REAL += ["vllm.distributed.kv_transfer.kv_connector.v1.base"]

GPU_BLOCKS, UNTOUCHED = 200, 0xEE
LENT = 16 << 20
_vllm = SimpleNamespace()  # worker, scheduler, data, interface, pool: vLLM's modules
_rank = threading.local()  # which one a worker is told when it is made: rank, size


def _socket(context, path, kind, bind):
    found = context.socket(kind)
    (found.bind if bind else found.connect)(path)
    return found


class Stats:
    """As MooncakeStoreConnectorStats: what the worker did."""

    def __init__(self):
        self.operations = []

    def record_operation(self, **operation):
        self.operations.append(operation)

    def is_empty(self):
        return not self.operations


class Storage:
    """As Tensor.untyped_storage() of torch 2."""

    def __init__(self, tensor):
        self.of = tensor.storage()

    def data_ptr(self):
        return self.of.data_ptr()

    def nbytes(self):
        return self.of.nbytes()


def load(folder, scratch):
    """vLLM's modules, and what their stand-ins have to have."""
    import torch

    sys.modules.setdefault("regex", re)
    if not hasattr(torch.Tensor, "untyped_storage"):
        torch.Tensor.untyped_storage = lambda tensor: Storage(tensor)  # a class would not bind
    torch.cuda.Event = MagicMock
    vllm = vllm_of(folder, *REAL, stand_ins=("vllm",))
    vllm.stand_in(
        "vllm.envs",
        VLLM_MOONCAKE_LOAD_RECV_THREADS=2,
        VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO=0.9,
        VLLM_MOONCAKE_STORE_TIER_LOG=True,
        VLLM_RPC_BASE_PATH=scratch,
        MOONCAKE_REQUESTER_LOCAL_HOSTNAME=None,
        MOONCAKE_PREFERRED_SEGMENT=None,
    )
    vllm.stand_in("vllm.logger", init_logger=logging.getLogger)
    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    vllm.stand_in(
        "vllm.distributed",
        get_dcp_group=lambda: alone,
        get_pcp_group=lambda: alone,
        get_tensor_model_parallel_rank=lambda: _rank.rank,
        get_tensor_model_parallel_world_size=lambda: _rank.size,
    )
    vllm.stand_in("vllm.utils.network_utils", get_ip=lambda: "127.0.0.1", make_zmq_socket=_socket)
    vllm.stand_in(
        "vllm.utils.torch_utils",
        get_dtype_size=lambda dtype: torch.tensor([], dtype=dtype).element_size(),
    )
    vllm.stand_in("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=0)
    vllm.stand_in(f"{MOONCAKE}.store.metrics", MooncakeStoreConnectorStats=Stats)
    vllm.stand_in(MOONCAKE, rdma_utils=vllm.module(f"{MOONCAKE}.rdma_utils"))
    _vllm.worker = vllm.module(f"{MOONCAKE}.store.worker", "MooncakeStoreWorker", "LookupKeyClient")
    _vllm.data = vllm.module(f"{MOONCAKE}.store.data", "MooncakeStoreConnectorMetadata")
    _vllm.scheduler = vllm.module(f"{MOONCAKE}.store.scheduler", "MooncakeStoreScheduler")
    _vllm.coordinator = vllm.module(f"{MOONCAKE}.store.coordinator", "MooncakeStoreCoordinator")
    _vllm.interface = vllm.module("vllm.v1.kv_cache_interface", "MambaSpec", "SlidingWindowSpec")
    _vllm.pool = vllm.module("vllm.v1.core.block_pool", "BlockPool")


class Model:
    """groups: ("full" | "latent" | "window" | "state", block, window); heads: of keys and values,
    of all ranks."""

    def __init__(self, *groups, ranks=1, heads=8):
        self.groups, self.ranks, self.heads = groups, ranks, heads
        self.blocks = [block for _, block, *_ in groups]

    def specs(self):
        import torch

        kinds = _vllm.interface
        for kind, block, *window in self.groups:
            attention = {"num_kv_heads": 2, "head_size": 8, "dtype": torch.float16}
            if kind == "full":
                yield known(kinds.FullAttentionSpec, block_size=block, **attention)
            elif kind == "latent":
                attention["num_kv_heads"] = 1
                yield known(kinds.MLAAttentionSpec, block_size=block, **attention)
            elif kind == "window":
                yield known(
                    kinds.SlidingWindowSpec,
                    block_size=block,
                    sliding_window=window[0],
                    **attention,
                )
            else:
                yield known(
                    kinds.MambaSpec,
                    block_size=block,
                    shapes=((4, 8),),
                    dtypes=(torch.float32,),
                    mamba_cache_mode="align",
                )


MODELS = {
    "full": Model(("full", 16)),
    "window": Model(("full", 16), ("window", 16, 40)),
    "two-sizes": Model(("full", 32), ("window", 16, 40)),
    "states": Model(("full", 64), ("state", 64)),
    "three": Model(("window", 32, 100), ("state", 64), ("full", 64)),
    "large-blocks": Model(("full", 544), ("window", 272, 1000)),
    "tp2": Model(("full", 16), ("window", 16, 40), ranks=2),
    "tp4": Model(("full", 16), ("window", 16, 40), ranks=4),
    "replicated": Model(("full", 16), ("window", 16, 40), ranks=2, heads=1),
    "latent": Model(("latent", 16), ranks=2),
    "latent-states": Model(("latent", 64), ("state", 64), ranks=2),
}


class Caches:
    """What a rank has in its GPU's place: tensors of several layouts, each with a part of every
    block."""

    def __init__(self, rng):
        import torch

        half = rng.choice((96, 256, 1024))
        kv_first = torch.zeros(2, GPU_BLOCKS, half, dtype=torch.uint8)
        blocks_first = torch.zeros(GPU_BLOCKS, 2 * half, dtype=torch.uint8)
        states = torch.zeros(GPU_BLOCKS, 2 * half, dtype=torch.uint8)
        second = states.view(GPU_BLOCKS, 2, half)[:, 1]
        self.registered = {
            "kv-first": kv_first,
            "blocks-first": blocks_first,
            "states": [states, second],
            "shared": kv_first,
        }
        self.parts = [kv_first[0], kv_first[1], blocks_first, states]
        self.across = None
        if rng.random() < 0.25:  # all layers in one tensor
            self.across = torch.zeros(GPU_BLOCKS, 3, half, dtype=torch.uint8)
            self.parts = [self.across[:, i] for i in range(3)]
        self.size = sum(part.shape[1] for part in self.parts)

    def register(self, worker):
        if self.across is None:
            worker.register_kv_caches(self.registered)
        else:
            worker.register_cross_layers_kv_caches(self.across)

    def write(self, block, data):
        import torch

        at = 0
        for part in self.parts:
            size = part.shape[1]
            part[block] = torch.frombuffer(bytearray(data[at : at + size]), dtype=torch.uint8)
            at += size

    def read(self, block):
        return b"".join(part[block].numpy().tobytes() for part in self.parts)


class Prompt:
    """Tokens, as their hashes."""

    def __init__(self, rng, tokens, unit, like=None, alike=0):
        """The first `alike` tokens are those of `like`."""
        self.tokens = tokens
        self.hashes = [
            like.hashes[i] if (i + 1) * unit <= alike else rng.randbytes(32)
            for i in range(tokens // unit)
        ]


class Instance:
    """One vLLM: a scheduler and a worker for each rank. layout: the seed of all ranks' Caches."""

    def __init__(self, model, checks, rng, layout, url, scratch, grouped, lent):
        self.model, self.checks, self.number = model, checks, 0
        self.specs = list(model.specs())
        groups = [
            known(
                _vllm.interface.KVCacheGroupSpec,
                layer_names=[f"layer{i}"],
                kv_cache_spec=spec,
                is_eagle_group=False,
            )
            for i, spec in enumerate(self.specs)
        ]
        self.unit = math.gcd(*model.blocks)
        kv_config = known(
            _vllm.interface.KVCacheConfig,
            num_blocks=GPU_BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
        )
        config = self._config(f"lookup{rng.getrandbits(64):x}", grouped)
        self._mooncake_json(os.path.join(scratch, "mooncake.json"), url, lent)
        self.workers, self.caches = [], []
        for _rank.rank in range(model.ranks):
            _rank.size, config.parallel_config.rank = model.ranks, _rank.rank
            self.workers.append(_vllm.worker.MooncakeStoreWorker(config, kv_config))
            self.caches.append(Caches(random.Random(layout)))
            self.caches[-1].register(self.workers[-1])
        self.scheduler = _vllm.scheduler.MooncakeStoreScheduler(config, kv_config)
        self.pool = known(
            _vllm.pool.BlockPool,
            num_gpu_blocks=GPU_BLOCKS,
            enable_caching=False,
            hash_block_size=self.unit,
        )
        self.scheduler.bind_gpu_block_pool(self.pool)
        self.align = self.workers[0].block_size
        self.unit = self.workers[0].hash_block_size

    def _config(self, port, grouped):
        config = MagicMock()
        cache, parallel = config.cache_config, config.parallel_config
        cache.block_size, cache.num_gpu_blocks = math.lcm(*self.model.blocks), GPU_BLOCKS
        cache.hash_block_size = cache.prefix_match_unit = None
        cache.enable_prefix_caching, cache.mamba_cache_mode = True, "align"
        parallel.prefill_context_parallel_size = parallel.decode_context_parallel_size = 1
        parallel.pipeline_parallel_size, parallel.data_parallel_index = 1, 0
        parallel.world_size = self.model.ranks
        config.kv_transfer_config.kv_role = "kv_both"
        config.kv_transfer_config.kv_connector_extra_config = {
            "lookup_rpc_port": port,
            "enable_group_semantics": str(grouped),
        }
        config.kv_events_config = config.speculative_config = None
        config.model_config.model = "model"
        config.model_config.get_num_layers.return_value = len(self.model.groups)
        config.model_config.get_total_num_kv_heads.return_value = self.model.heads
        return config

    @staticmethod
    def _mooncake_json(path, url, lent):
        with open(path, "w") as f:
            json.dump(
                {
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": url,
                    "protocol": "tcp",
                    "device_name": "",
                    "mode": "embedded" if lent else "standalone-store",
                    "global_segment_size": lent,
                    "local_buffer_size": "1GB",
                },
                f,
            )
        os.environ["MOONCAKE_CONFIG_PATH"] = path

    def close(self):
        self.scheduler.client.close()
        for worker in self.workers:
            worker.close()

    def _request(self, prompt):
        self.number += 1
        return SimpleNamespace(
            request_id=f"request{self.number}",
            block_hashes=prompt.hashes,
            num_tokens=prompt.tokens,
            num_computed_tokens=0,
            all_token_ids=list(range(prompt.tokens)),
        )

    def _tables(self, tokens):
        """Blocks for them, of each group; what gives them back."""
        counts = [-(-tokens // block) for block in self.model.blocks]
        blocks = self.pool.get_new_blocks(sum(counts))
        left = iter(blocks)
        tables = tuple([next(left).block_id for _ in range(count)] for count in counts)
        return tables, lambda: self.pool.free_blocks(reversed(blocks))

    def _truth(self, rank, group, digest):
        """The bytes of a block, of all layers."""
        owner = rank // self.workers[rank]._group_tp_replication_factors[group]
        return random.Random(f"{owner} {group} {digest.hex()}").randbytes(self.caches[rank].size)

    def _step(self, new=(), tokens=(), finished=()):
        """What the scheduler says to the workers in a step."""
        cached = SimpleNamespace(
            req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()
        )
        return self.scheduler.build_connector_meta(
            SimpleNamespace(
                scheduled_new_reqs=list(new),
                scheduled_cached_reqs=cached,
                num_scheduled_tokens=dict(tokens),
                finished_req_ids=set(finished),
                preempted_req_ids=set(),
                partial_tail_offloads=None,
            )
        )

    def _work(self, step, finished=()):
        """The workers do it to the end. (what each has loaded, blocks that were not)."""
        loaded = [worker.get_finished(set(finished), step)[1] for worker in self.workers]
        failed = set()
        for worker in self.workers:
            worker.kv_send_thread.request_queue.join()
            worker.recv_request_queue.join()
        nothing = _vllm.data.MooncakeStoreConnectorMetadata(set(), set())
        for each, worker in zip(loaded, self.workers):
            each |= worker.get_finished(set(), nothing)[1]
            failed |= worker.get_block_ids_with_load_errors()
            said = worker.build_connector_worker_meta()
            if said:
                self.scheduler.update_connector_output(
                    SimpleNamespace(kv_connector_worker_meta=said)
                )
        return loaded, failed

    def _end(self, request, give_back):
        name = request.request_id
        self._work(self._step(finished=[name]), [name])
        give_back()

    def save(self, prompt):
        """Computes it, and everything is put that the connector puts."""
        request = self._request(prompt)
        tables, give_back = self._tables(prompt.tokens)
        for rank, cache in enumerate(self.caches):
            for group, table in enumerate(tables):
                for number, block in enumerate(table):
                    end = min((number + 1) * self.model.blocks[group], prompt.tokens)
                    digest = prompt.hashes[end // self.unit - 1]
                    cache.write(block, self._truth(rank, group, digest))
        self.scheduler.update_state_after_alloc(
            request, SimpleNamespace(get_block_ids=lambda: tables), 0
        )
        new = SimpleNamespace(
            req_id=request.request_id,
            num_computed_tokens=0,
            block_ids=tables,
            prefill_token_ids=None,
            prompt_token_ids=list(range(prompt.tokens)),
        )
        self._work(self._step([new], {request.request_id: prompt.tokens}))
        self.checks.ok(not self.scheduler.has_pending_push_work(), "blocks stay pinned")
        self._end(request, give_back)

    def find(self, prompt, more=5):
        """How long its prefix is in the pool, if so many tokens come behind it."""
        request = self._request(prompt)
        request.num_tokens += more
        found, later = self.scheduler.get_num_new_matched_tokens(request, 0)
        self.checks.ok(later == (found > 0) and found % self.align == 0, "the answer", found, later)
        self.scheduler.load_specs.pop(request.request_id, None)
        return found

    def load(self, prompt, more=5, between=lambda: None):
        """Looks it up, and loads it after between(). (tokens found, blocks that failed), and
        compares every byte of the others."""
        request = self._request(prompt)
        request.num_tokens += more
        found, _ = self.scheduler.get_num_new_matched_tokens(request, 0)
        if not found:
            return 0, set()
        between()
        tables, give_back = self._tables(prompt.tokens)
        for cache in self.caches:
            for block in (block for table in tables for block in table):
                cache.write(block, bytes([UNTOUCHED]) * cache.size)
        self.scheduler.update_state_after_alloc(
            request, SimpleNamespace(get_block_ids=lambda: tables), found
        )
        step = self._step()
        self.checks.ok(len(step.requests) == 1, "one load", len(step.requests))
        loaded, failed = self._work(step)
        self.checks.ok(all(request.request_id in each for each in loaded), "a load did not end")
        self._compare(prompt, found, tables, failed)
        self._end(request, give_back)
        return found, failed

    def _compare(self, prompt, found, tables, failed):
        masks = self.workers[0].coord.load_mask(prompt.hashes, found)
        for rank, cache in enumerate(self.caches):
            for group, (table, mask) in enumerate(zip(tables, masks)):
                for number, block in enumerate(table):
                    end = (number + 1) * self.model.blocks[group]
                    read = number < len(mask) and mask[number] and end <= found
                    if read and block in failed:
                        continue
                    truth = bytes([UNTOUCHED]) * cache.size
                    if read:
                        truth = self._truth(rank, group, prompt.hashes[end // self.unit - 1])
                    what = "the bytes" if read else "not to be read, but written:"
                    self.checks.ok(
                        cache.read(block) == truth, what, f"rank {rank} group {group} {number}"
                    )

    def operations(self):
        """What the workers did since the last call."""
        for worker in self.workers:
            stats, worker.kv_connector_stats = worker.kv_connector_stats, Stats()
            yield from stats.operations


class Scenes:
    """What an instance of one model goes through."""

    def __init__(self, checks, model, rng, scratch, grouped, lent):
        self.checks, self.model, self.rng, self.scratch = checks, model, rng, scratch
        self.grouped, self.lent = grouped, lent

    def instance(self, server, lookup_ms=20000):
        os.environ["TARN_LOOKUP_TIMEOUT_MS"] = str(lookup_ms)  # 20 s: this machine may be busy
        with expected("vLLM's MooncakeStoreWorker or MooncakeStoreScheduler"):
            return Instance(
                self.model,
                self.checks,
                self.rng,
                self.layout,
                f"127.0.0.1:{server.port}",
                self.scratch,
                self.grouped,
                self.lent,
            )

    def prompt(self, vllm, parts, like=None, alike=0):
        """A prompt of so many times the alignment."""
        return Prompt(self.rng, parts * vllm.align, vllm.unit, like, alike * vllm.align)

    def run(self, scene, pool, **options):
        self.layout = self.rng.random()
        with Server(pool or self.small_pool()) as server:
            vllm = self.instance(server, **options)
            try:
                return scene(vllm, server)
            finally:
                vllm.close()

    def small_pool(self):
        """Has room for about four prompts."""
        align = math.lcm(*self.model.blocks)
        blocks = self.parts * sum(align // block for block in self.model.blocks)
        size = Caches(random.Random(self.layout)).size
        return f"{4 * blocks * size * self.model.ranks // 1024 + 32}kb"

    @property
    def parts(self):
        """As long as a prompt is: three of them fit into the GPU's blocks."""
        align = math.lcm(*self.model.blocks)
        return min(6, GPU_BLOCKS // (3 * sum(align // block for block in self.model.blocks)))

    def round_trips(self, vllm, _):
        ok, n = self.checks.ok, self.parts
        first = self.prompt(vllm, n)
        ok(vllm.find(first) == 0, "found in an empty pool")
        vllm.save(first)
        ok(vllm.load(first) == (n * vllm.align, set()), "all of it")
        found, failed = vllm.load(first, more=0)
        ok(0 < found < first.tokens and not failed, "all but what gives the next token", found)
        branch = self.prompt(vllm, n + 2, first, n // 2)
        found, failed = vllm.load(branch)
        ok(found <= n // 2 * vllm.align and not failed, "the part that they share", found)
        vllm.save(branch)
        ok(vllm.load(branch) == (branch.tokens, set()), "the branch")
        ok(vllm.load(first) == (first.tokens, set()), "the first one is still there")
        ok(vllm.find(self.prompt(vllm, n)) == 0, "another prompt is found")
        operations = list(vllm.operations())
        kinds = {"save_exists", "save_put", "load_get", "lookup_exists"}
        ok({each["operation"] for each in operations} == kinds, "operations", operations)
        ok(all(each["status"] == "ok" for each in operations), "one failed", operations)
        ok(vllm.scheduler.reset_store(), "reset")
        ok(vllm.find(first) == 0, "found after a reset")

    def gone(self, vllm, _):
        """A part goes between look-up and load."""
        prompt = self.prompt(vllm, self.parts)
        vllm.save(prompt)
        worker = vllm.workers[0]
        for number in range(len(self.model.groups)):
            # The last part of a group is needed in any case.
            key = worker.token_dbs[number].key_for(prompt.hashes[-1])
            removed = []
            found, failed = vllm.load(
                prompt, between=lambda key=key: removed.append(worker.store.remove(key))
            )
            self.checks.ok(removed == [0], "removed", removed)
            self.checks.ok(found == prompt.tokens and failed, "nobody was told", found, failed)
            self.checks.ok(vllm.find(prompt) < prompt.tokens, "found although a part is gone")
            vllm.save(prompt)
            self.checks.ok(vllm.load(prompt) == (found, set()), "put again")

    def restart(self, vllm, server):
        """The server loses everything: before a save, and between look-up and load."""
        prompt = self.prompt(vllm, self.parts)
        vllm.save(prompt)
        found, failed = vllm.load(prompt, between=server.restart)
        self.checks.ok(found == prompt.tokens and failed, "nobody was told", found, failed)
        for _ in range(2):
            wait_until(lambda: self.saved(vllm, prompt), 60, "a save after a restart")
            self.checks.ok(vllm.load(prompt) == (prompt.tokens, set()), "after a restart")
            server.restart()
            other = self.prompt(vllm, self.parts)
            vllm.save(other)
            found, _ = vllm.load(other)
            self.checks.ok(found in (0, other.tokens), "a part of a prompt", found)

    @staticmethod
    def saved(vllm, prompt):
        vllm.save(prompt)
        return vllm.find(prompt) == prompt.tokens

    def full(self, vllm, server):
        """Far more prompts than have room; what is found is right."""
        prompts = []
        hits = misses = failures = evicted = 0
        while len(prompts) < 30 or (evicted < 40 and len(prompts) < 400):
            like, alike = None, 0
            if len(prompts) % 3:
                like, alike = self.rng.choice(prompts), self.rng.randrange(self.parts)
            prompts.append(self.prompt(vllm, self.parts, like, alike))
            vllm.save(prompts[-1])
            for prompt in (prompts[-1], self.rng.choice(prompts)):
                other = self.rng.choice(prompts)  # is put between look-up and load
                found, failed = vllm.load(prompt, between=lambda: vllm.save(other))
                hits, misses = hits + bool(found), misses + (not found)
                failures += bool(failed)
            evicted = evicted_keys(server)
        self.checks.ok(hits and evicted, "hits and evictions", hits, evicted)
        return f"{hits} hits, {misses} misses, {failures} lacked a part, {evicted} keys evicted"

    def hung(self, vllm, server):
        """A server that says nothing is asked once, and not for each request."""
        prompt = self.prompt(vllm, self.parts)
        vllm.save(prompt)
        found, failed = vllm.load(prompt, between=server.pause)
        self.checks.ok(found and failed, "loaded from a server that hangs", found, failed)
        start = time.monotonic()
        for _ in range(20):
            self.checks.ok(vllm.find(prompt) == 0, "found in a server that hangs")
        vllm.save(self.prompt(vllm, 1))
        seconds = time.monotonic() - start
        self.checks.ok(seconds < 12, "20 look-ups and a save took", seconds)
        server.resume()
        # Each rank finds out by itself.
        whole = prompt.tokens, set()
        wait_until(lambda: vllm.load(prompt) == whole, 60, "a whole load when it is back")
        return f"20 look-ups and a save in {seconds:.2f} s"

    def play(self, name):
        title = f"{name}{', grouped' if self.grouped else ''}{', lent memory' if self.lent else ''}"
        embedded = "0" if self.lent else "64mb"
        each = [
            ("round trips", self.round_trips, embedded, {}),
            ("a part goes", self.gone, embedded, {}),
            ("restarts", self.restart, embedded, {}),
            ("hangs", self.hung, embedded, {"lookup_ms": 1000}),
        ]
        if not self.lent:
            each.append(("full", self.full, "", {}))
        for what, scene, pool, options in each:
            run = self.run
            self.checks.scene(f"{title}: {what}", lambda s=scene, p=pool, o=options: run(s, p, **o))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--vllm", required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, bytes and layouts")
    parser.add_argument("--model", choices=list(MODELS), action="append", help="only these")
    options = parser.parse_args()
    needs(torch="python3-torch", numpy="python3-numpy", zmq="python3-zmq")
    logging.basicConfig(level=logging.CRITICAL)
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="tarn-vllm.") as scratch:
        load(options.vllm, scratch)
        for name in options.model or MODELS:
            for grouped in (False, True):
                for lent in (0, LENT):
                    rng = random.Random(f"{options.seed} {name} {grouped} {lent}")
                    Scenes(checks, MODELS[name], rng, scratch, grouped, lent).play(name)
    return checks.end()


if __name__ == "__main__":
    leave(main)
