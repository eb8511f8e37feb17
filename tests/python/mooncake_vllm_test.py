"""vLLM's own Mooncake connectors on tarn: their calls, in their order, with their keys, for models
with several KV groups.

CALLS says which function of theirs makes which call (vLLM of 17 August 2026, folder
vllm/distributed/kv_transfer/kv_connector/v1/mooncake); the stand-ins here make the same, and
nothing else."""

import json
import os
import tempfile
import threading
import unittest
from unittest import mock

from harness import Node, Server, TarnTest, together, wait_until
from layouts import LAYOUTS, TAILS, Prompt
from mooncake_helpers import KIB, MIB, Memory, of

from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

CALLS = {
    # store/worker.py
    "MooncakeStoreWorker.__init__": ("setup",),
    "MooncakeStoreWorker.register_kv_caches": ("register_buffer",),
    "MooncakeStoreWorker.lookup": ("batch_is_exist",),
    "KVCacheStoreSendingThread._handle_request": (
        "batch_is_exist",
        "batch_put_from_multi_buffers",
    ),
    "KVCacheStoreSendingThread._maybe_offload_partial_tail": (
        "batch_is_exist",
        "batch_put_from_multi_buffers",
    ),
    "_get_replica_tiers_by_key": ("batch_get_replica_desc",),
    "KVCacheStoreRecvingThread._handle_request": ("batch_get_into_multi_buffers",),
    "LookupKeyServer.process_request": ("remove_all",),
    "MooncakeStoreWorker.close": ("close",),
    # mooncake_connector.py
    "MooncakeConnectorWorker.__init__": ("initialize", "get_rpc_port"),
    "MooncakeConnectorWorker.register_kv_caches": ("batch_register_memory",),
    "MooncakeConnectorWorker._send_blocks": ("batch_transfer_sync_write",),
}

NO_AVAILABLE_HANDLE = -200
PAGES = 3  # storages that the layers of all groups share
STORE_LAYOUTS = [*LAYOUTS, TAILS]


class Noted:
    """What somebody calls, by the function of theirs that does it. Anything that is not in the
    table is an error."""

    seen = set()

    def __init__(self, real):
        self._real, self._by = real, ""

    def by(self, function):
        self._by = function
        return self

    def __getattr__(self, name):
        assert name in CALLS[self._by], (self._by, name)
        self.seen.add((self._by, name))
        return getattr(self._real, name)


class Blocks:
    """A rank's KV cache: block b is a slice of each storage, whatever KV group has it."""

    def __init__(self, layout, count):
        most = max(
            len(layout.value(Prompt.drawn(0, g.block), i, 0, g.block))
            for i, g in enumerate(layout.groups)
        )
        self.page = -(-most // PAGES // 64) * 64
        self.storages = [Memory(count * self.page) for _ in range(PAGES)]
        self._free = list(range(count - 1, 0, -1))  # 0 is null

    def take(self):
        return self._free.pop()

    def places(self, block):
        """ChunkedTokenDatabase.prepare_value_for_block"""
        return [s.address + block * self.page for s in self.storages], [self.page] * PAGES

    def write(self, block, data):
        data = data.ljust(self.page * PAGES, b"\0")
        for i, storage in enumerate(self.storages):
            start = block * self.page
            storage.bytes[start : start + self.page] = data[i * self.page : (i + 1) * self.page]

    def read(self, block, size):
        start = block * self.page
        return b"".join(s[start : start + self.page] for s in self.storages)[:size]


class Worker:
    """MooncakeStoreWorker of one rank, with its threads' work as calls."""

    def __init__(self, layout, rank, grouped=False, count=400):
        with open(os.environ["MOONCAKE_CONFIG_PATH"], encoding="utf-8") as file:
            config = json.load(file)
        self.layout, self.rank, self.grouped = layout, rank, grouped
        self.store = Noted(MooncakeDistributedStore())
        ret = self.store.by("MooncakeStoreWorker.__init__").setup(
            "127.0.0.1",
            config["metadata_server"],
            config["global_segment_size"],
            config["local_buffer_size"],
            config["protocol"],
            config["device_name"],
            config["master_server_address"],
        )
        if ret != 0:
            raise RuntimeError("Initialize MooncakeDistributedStore failed.")
        self.config = ReplicateConfig()
        self.blocks = Blocks(layout, count)
        noted = self.store.by("MooncakeStoreWorker.register_kv_caches")
        for storage in self.blocks.storages:
            assert noted.register_buffer(storage.address, storage.size) == 0
        self.pressure = False

    def key(self, group, shard, prompt, end):
        """PoolKey.build_prefix, build_key_string"""
        prefix = f"{self.layout.name}@tp_rank:{shard}@pcp0@dcp0@pp_rank:0@group:{group}"
        return f"{prefix}@{prompt.states[end].hex()}"

    def shard(self, group):
        return self.layout.groups[group].shard_of(self.layout.tp, self.rank)

    def striped(self, group, end):
        """Ranks with the same bytes take turns."""
        g = self.layout.groups[group]
        step = self.layout.tp // g.shards(self.layout.tp)
        return (g.start_of(end) // g.block) % step == (self.rank + group) % step

    def save(self, prompt):
        """Both kinds of puts of KVCacheStoreSendingThread: whole blocks, then the last prompt
        boundary inside of one. The codes of all."""
        whole, tails = [], []
        for i, g in enumerate(self.layout.groups):
            for end in self.layout.stored(i, len(prompt)):
                if self.striped(i, end):
                    (tails if end % g.block else whole).append((i, end))
        sender = "KVCacheStoreSendingThread."
        codes = self._put(sender + "_handle_request", prompt, whole)
        return codes + self._put(sender + "_maybe_offload_partial_tail", prompt, tails)

    def _put(self, by, prompt, parts):
        parts = [(self.key(i, self.shard(i), prompt, end), i, end) for i, end in parts]
        if not parts:
            return []
        noted = self.store.by(by)
        there = noted.batch_is_exist([key for key, _, _ in parts])
        parts = [part for part, exists in zip(parts, there) if exists != 1]
        if not parts:
            return []
        addresses, sizes, taken = [], [], []
        for _, i, end in parts:
            block = self.blocks.take()
            self.blocks.write(block, self.layout.value(prompt, i, self.shard(i), end))
            where, long = self.blocks.places(block)
            addresses.append(where)
            sizes.append(long)
            taken.append(block)
        keys = [key for key, _, _ in parts]
        if self.grouped:  # _make_mooncake_group_id
            name = self.layout.name
            self.config.group_ids = [
                f"vllm-mooncake-store:{name}@{key.rsplit('@', 1)[-1]}" for key in keys
            ]
        codes = noted.batch_put_from_multi_buffers(keys, addresses, sizes, self.config)
        self.blocks._free.extend(taken)
        self.pressure = NO_AVAILABLE_HANDLE in codes
        return codes

    def lookup(self, prompt):
        """MooncakeStoreWorker.lookup: which parts are there, and what that makes."""
        names = [
            (i, s, end)
            for i, s in self.layout.shards()
            for end in range(
                self.layout.groups[i].place, len(prompt) + 1, self.layout.groups[i].place
            )
        ]
        keys = [self.key(i, s, prompt, end) for i, s, end in names]
        if not keys:
            return 0
        found = self.store.by("MooncakeStoreWorker.lookup").batch_is_exist(keys)
        there = {name for name, exists in zip(names, found) if exists == 1}
        return self.layout.boundary(lambda *part: part in there, len(prompt))

    def load(self, prompt, boundary):
        """KVCacheStoreRecvingThread: the codes, and what came in which block."""
        parts = [
            (i, self._stored_end(prompt, i, end))
            for i in range(len(self.layout.groups))
            for end in self.layout.needed(i, boundary)
        ]
        rotation = self.rank % len(parts)
        parts = parts[rotation:] + parts[:rotation]
        keys = [self.key(i, self.shard(i), prompt, end) for i, end in parts]
        tiers = self.store.by("_get_replica_tiers_by_key").batch_get_replica_desc(keys)
        taken = [self.blocks.take() for _ in parts]
        for block in taken:
            self.blocks.write(block, b"\xee" * (self.blocks.page * PAGES))
        addresses, sizes = zip(*(self.blocks.places(block) for block in taken))
        noted = self.store.by("KVCacheStoreRecvingThread._handle_request")
        codes = noted.batch_get_into_multi_buffers(keys, list(addresses), list(sizes))
        got = {}
        for (i, end), block, key in zip(parts, taken, keys):
            size = len(self.layout.value(prompt, i, self.shard(i), end))
            got[i, end] = self.blocks.read(block, size)
            if key in tiers:
                assert tiers[key][0].is_memory_replica()
        self.blocks._free.extend(taken)
        return codes, got, tiers

    def _stored_end(self, prompt, group, end):
        """The part that has this end: itself, or the block around it."""
        g = self.layout.groups[group]
        if end in self.layout.stored(group, len(prompt)) or g.kind == "state":
            return end
        return g.start_of(end) + g.block

    def reset(self):
        return self.store.by("LookupKeyServer.process_request").remove_all(force=True)

    def close(self):
        return self.store.by("MooncakeStoreWorker.close").close()


class StoreConnector(TarnTest):
    """MooncakeStoreConnector."""

    pool = None

    def serve(self, pool="128mb", segment=0, query="", **variables):
        self.server = Server(pool)
        self.addCleanup(self.server.stop)
        handle, path = tempfile.mkstemp(suffix=".json", prefix="tarn-mooncake.")
        os.close(handle)
        self.addCleanup(os.unlink, path)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "mode": "embedded" if segment else "standalone-store",
                    "metadata_server": "P2PHANDSHAKE",
                    "global_segment_size": segment,
                    "local_buffer_size": MIB,
                    "protocol": "tcp",
                    "device_name": "",
                    "master_server_address": of(self.server)
                    if not query
                    else self.server.url + query,
                },
                file,
            )
        patched = mock.patch.dict(os.environ, MOONCAKE_CONFIG_PATH=path, **variables)
        patched.start()
        self.addCleanup(patched.stop)

    def ranks(self, layout, **options):
        ranks = [Worker(layout, rank, **options) for rank in range(layout.tp)]
        for rank in ranks:
            self.addCleanup(rank.close)
        return ranks

    def saved(self, ranks, prompt):
        codes = []
        together(lambda rank: codes.extend(rank.save(prompt)), ranks)
        self.assertEqual(set(codes) - {0}, set())

    def loaded(self, ranks, prompt, at):
        """Every rank has every byte of what a prompt needs up to there."""

        def check(rank):
            codes, got, tiers = rank.load(prompt, at)
            self.assertTrue(all(code > 0 for code in codes), codes)
            self.assertEqual(len(tiers), len(set(got)))
            for (i, end), data in got.items():
                right = rank.layout.value(prompt, i, rank.shard(i), end)
                self.assertTrue(data == right, (rank.layout.name, rank.rank, i, end))

        together(check, ranks)

    def trip(self, layout, grouped):
        ranks = self.ranks(layout, grouped=grouped)
        prompt = Prompt.drawn(layout.name, 5 * layout.align + layout.unit + 5)
        self.assertEqual(ranks[0].lookup(prompt), 0)
        self.saved(ranks, prompt)
        at = ranks[0].lookup(prompt)
        self.assertEqual(
            at, layout.boundary(lambda i, s, end: end in layout.stored(i, len(prompt)), len(prompt))
        )
        self.assertGreater(at, 0)
        self.loaded(ranks, prompt, at)
        branch = prompt.branch(at, 7, len(prompt))
        self.assertLessEqual(ranks[0].lookup(branch), at)
        self.saved(ranks, prompt)  # all of it is there by now
        self.assertGreater(ranks[0].reset(), 0)
        self.assertEqual(ranks[0].lookup(prompt), 0)

    def test_layouts(self):
        self.serve()
        for layout in STORE_LAYOUTS:
            for grouped in (False, True):
                with self.subTest(layout=layout.name, grouped=grouped):
                    self.trip(layout, grouped)

    def test_every_call_is_made(self):
        """The table is what the stand-ins do, no more and no less."""
        self.serve()
        self.trip(TAILS, True)
        EngineConnector.send(self, LAYOUTS[0])
        wanted = {(by, call) for by, calls in CALLS.items() for call in calls}
        self.assertEqual(wanted - Noted.seen, set())

    def test_memory_that_ranks_lend(self):
        """mode "embedded": what a rank lent goes with it, and look-ups say so."""
        self.serve("0", segment=32 * MIB)
        layout = LAYOUTS[1]
        ranks = self.ranks(layout)
        other = Worker(layout, 0)
        self.addCleanup(other.close)
        prompt = Prompt.drawn("lent", 10 * layout.align)
        other.config.preferred_segment = other.store._real.get_hostname()
        self.saved([other], prompt)
        self.assertEqual(ranks[0].lookup(prompt), len(prompt))
        self.loaded(ranks, prompt, len(prompt))
        other.close()
        wait_until(lambda: ranks[0].lookup(prompt) == 0, what="a miss")
        self.saved(ranks, prompt)
        self.loaded(ranks, prompt, ranks[0].lookup(prompt))

    def test_a_full_pool(self):
        """vLLM waits while a put says -200, and what is found comes whole or as a miss."""
        self.serve("2mb")
        layout = LAYOUTS[2]
        ranks = self.ranks(layout)
        prompts = [Prompt.drawn(i, 3 * layout.align) for i in range(40)]
        for prompt in prompts:
            codes = ranks[0].save(prompt)
            self.assertLessEqual(set(codes), {0, NO_AVAILABLE_HANDLE})
        hits = 0
        for prompt in prompts:
            at = ranks[0].lookup(prompt)
            if at:
                hits += 1
                self.loaded(ranks, prompt, at)
        self.assertGreater(hits, 0)
        self.assertLess(hits, len(prompts))

    def test_the_server_restarts(self):
        self.serve()
        layout = LAYOUTS[5]
        ranks = self.ranks(layout)
        prompt = Prompt.drawn("again", 3 * layout.align)
        self.saved(ranks, prompt)
        self.server.restart()
        wait_until(lambda: ranks[0].store._real.health_check() == 0, what="health")
        self.assertEqual(ranks[0].lookup(prompt), 0)
        self.saved(ranks, prompt)
        self.loaded(ranks, prompt, ranks[0].lookup(prompt))

    def test_the_server_hangs_in_the_middle(self):
        """Between the look-up and the load: codes, in time, and never wrong bytes."""
        self.serve(query="?timeout_ms=700", TARN_LOOKUP_TIMEOUT_MS="700")
        layout = LAYOUTS[1]
        ranks = self.ranks(layout)
        prompt = Prompt.drawn("hangs", 8 * layout.align)
        self.saved(ranks, prompt)
        at = len(prompt)
        wait_until(lambda: ranks[0].lookup(prompt) == at, what="the hit")
        self.server.pause()
        self.addCleanup(self.server.resume)
        with self.assertLogs("mooncake", "ERROR"):
            codes, _, _ = ranks[0].load(prompt, at)
        self.assertTrue(all(code < 0 for code in codes), codes)
        self.assertEqual(ranks[0].lookup(prompt), 0)
        self.assertTrue(all(code < 0 for code in ranks[0].save(Prompt.drawn("new", 64))))
        self.server.resume()
        wait_until(lambda: ranks[0].lookup(prompt) == at, what="the hit again")
        self.loaded(ranks, prompt, at)

    def test_a_node_is_lost(self):
        """What lay there is a miss; the rest is right."""
        self.serve("0")
        nodes = [Node(self.server, name=f"n{i}") for i in range(2)]
        for node in nodes:
            self.addCleanup(node.stop)
        layout = LAYOUTS[1]
        ranks = self.ranks(layout)
        prompts = [Prompt.drawn(i, 4 * layout.align) for i in range(6)]
        for i, prompt in enumerate(prompts):
            ranks[0].config.preferred_segment = f"n{i % 2}.0"
            self.saved(ranks, prompt)
        nodes[1].kill()
        wait_until(lambda: not any(ranks[0].lookup(p) for p in prompts[1::2]), what="misses")
        for prompt in prompts[::2]:
            self.assertEqual(ranks[0].lookup(prompt), len(prompt))
            self.loaded(ranks, prompt, len(prompt))

    def test_a_key_of_another_kind(self):
        """Another KV group, rank, model or prefix never has the same key."""
        self.serve()
        seen = {}
        for layout in STORE_LAYOUTS:
            prompt = Prompt.drawn("keys", 2 * layout.align)
            worker = Worker(layout, 0, count=2)
            self.addCleanup(worker.close)
            for i, s in layout.shards():
                for end in layout.stored(i, len(prompt)):
                    key = worker.key(i, s, prompt, end)
                    self.assertNotIn(key, seen)
                    seen[key] = True


class EngineConnector(TarnTest):
    """MooncakeConnector: the prefiller writes blocks into the decoder's memory."""

    pool = None

    def worker(self, layout, count):
        """__init__, register_kv_caches: the engine, its session, its blocks."""
        engine = Noted(TransferEngine())
        noted = engine.by("MooncakeConnectorWorker.__init__")
        self.assertEqual(noted.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        session = f"127.0.0.1:{noted.get_rpc_port()}"
        blocks = Blocks(layout, count)
        noted = engine.by("MooncakeConnectorWorker.register_kv_caches")
        where = [s.address for s in blocks.storages], [s.size for s in blocks.storages]
        self.assertEqual(noted.batch_register_memory(*where), 0)
        return engine, session, blocks

    @staticmethod
    def ranges(source, target, pairs):
        """group_concurrent_contiguous: blocks that follow each other on both sides are one."""
        runs = []
        for ours, theirs in pairs:
            if runs and (ours, theirs) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
                runs[-1][2] += 1
            else:
                runs.append([ours, theirs, 1])
        columns = [
            (s.address + a * source.page, t.address + b * target.page, n * source.page)
            for s, t in zip(source.storages, target.storages)
            for a, b, n in runs
        ]
        return [list(column) for column in zip(*columns)]

    def send(self, layout):
        sender, _, source = EngineConnector.worker(self, layout, 200)
        _, session, target = EngineConnector.worker(self, layout, 200)
        prompt, pairs, parts = Prompt.drawn(layout.name, 2 * layout.align), [], []
        for i in range(len(layout.groups)):
            for end in layout.needed(i, len(prompt)):
                ours, theirs = source.take(), target.take()
                if end % 3 == 0:
                    theirs = target.take()  # not beside the one before
                source.write(ours, layout.value(prompt, i, 0, end))
                pairs.append((ours, theirs))
                parts.append((i, end, theirs))
        noted = sender.by("MooncakeConnectorWorker._send_blocks")
        ranges = EngineConnector.ranges(source, target, pairs)
        self.assertEqual(noted.batch_transfer_sync_write(session, *ranges), 0)
        for i, end, theirs in parts:
            right = layout.value(prompt, i, 0, end)
            self.assertTrue(target.read(theirs, len(right)) == right, (layout.name, i, end))

    def test_layouts(self):
        for layout in STORE_LAYOUTS:
            with self.subTest(layout=layout.name):
                self.send(layout)

    def test_senders_at_once(self):
        """num_workers threads share one engine."""
        layout = LAYOUTS[0]
        sender, _, source = self.worker(layout, 100)
        _, session, target = self.worker(layout, 100)
        for block in range(1, 100):
            source.write(block, bytes([block]) * (PAGES * source.page))
        codes, send = [], sender.by("MooncakeConnectorWorker._send_blocks")
        write = send.batch_transfer_sync_write

        def work(first):
            pairs = [(b, b) for b in range(first, 100, 10)]
            for _ in range(5):
                codes.append(write(session, *self.ranges(source, target, pairs)))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(set(codes), {0})
        for block in range(1, 100):
            self.assertEqual(target.read(block, KIB), bytes([block]) * min(KIB, 3 * target.page))

    def test_a_decoder_that_is_gone(self):
        layout = LAYOUTS[0]
        sender, _, source = self.worker(layout, 10)
        gone, session, target = self.worker(layout, 10)
        gone._real._close()
        noted = sender.by("MooncakeConnectorWorker._send_blocks")
        with self.assertLogs("mooncake", "ERROR"):
            ranges = self.ranges(source, target, [(1, 1)])
            self.assertNotEqual(noted.batch_transfer_sync_write(session, *ranges), 0)


if __name__ == "__main__":
    unittest.main()
