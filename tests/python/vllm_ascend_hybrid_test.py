"""TarnBackend with several KV groups, block by block and layer by layer, called as vllm-ascend's
pool worker, scheduler and transfer threads call it."""

import ctypes
import threading
import time
import types
import unittest
from unittest import mock

from harness import TarnTest
from scenes import EngineScenes, check
from vllm_ascend_test import Device

from tarn.client import Client
from tarn.errors import Status
from tarn.identity import Facts
from tarn.vllm_ascend import Runtime, TarnBackend, facts, layerwise

SAVE, LOAD = 0, 1  # directions of batch_copy


def backend(url, world_size=1, **options):
    config = types.SimpleNamespace(rank=0, world_size=world_size)
    return TarnBackend(config, options={"url": url, "client": {"retries": 0}, **options})


class Rank:
    """One rank's KV caches: of each KV group a tensor for each layer, with slots for blocks."""

    slots = 80

    def __init__(self, url, layout, rank):
        self.layout, self.rank = layout, rank
        # One model for all: what differs is what our AscendStoreConnector notes.
        differs = Facts(cache_dtype=layout.dtype, groups=repr(layout.groups), parallel=layout.tp)
        with mock.patch.object(facts, "_facts", differs):
            self.store = backend(url)
        self.tensors = []
        for g in layout.groups:
            size = g.block_bytes(layout.tp) // g.layers
            self.tensors.append([(ctypes.c_char * (self.slots * size))() for _ in range(g.layers)])
        every = [t for tensors in self.tensors for t in tensors]
        self.store.register_buffer([ctypes.addressof(t) for t in every], [len(t) for t in every])

    def shard(self, group):
        return self.layout.groups[group].shard_of(self.layout.tp, self.rank)

    def right(self, prompt, group, end):
        return self.layout.value(prompt, group, self.shard(group), end)

    def where(self, group, slot):
        """Addresses and sizes of a block's layers."""
        sizes = [len(t) // self.slots for t in self.tensors[group]]
        starts = [ctypes.addressof(t) + slot * n for t, n in zip(self.tensors[group], sizes)]
        return starts, sizes

    def write(self, group, slot, value):
        at = 0
        for start, size in zip(*self.where(group, slot)):
            ctypes.memmove(start, value[at : at + size], size)
            at += size

    def read(self, group, slot):
        return b"".join(ctypes.string_at(a, n) for a, n in zip(*self.where(group, slot)))

    def key(self, prompt, group, end, shard=None):
        head = self.shard(group) if shard is None else shard
        hashed = prompt.states[end].hex()
        return f"toy@pcp0@dcp0@head_or_tp_rank:{head}@pp_rank:0@group:{group}@{hashed}"

    def parts(self, prompt):
        """(group, end) of all that is stored of a prompt."""
        for g in range(len(self.layout.groups)):
            for end in self.layout.stored(g, len(prompt)):
                yield g, end

    def placed(self, prompt, parts):
        """Writes the right bytes of some parts into slots; (part, slot) of each."""
        found = []
        for n, (g, end) in enumerate(parts):
            self.write(g, n % self.slots, self.right(prompt, g, end))
            found.append(((g, end), n % self.slots))
        return found

    def save(self, prompt):
        """What the sending thread does, batch by batch."""
        todo = [part for part in self.parts(prompt)]
        keys = [self.key(prompt, *part) for part in todo]
        todo = [p for p, there in zip(todo, self.store.exists(keys)) if there != 1]
        for i in range(0, len(todo), self.slots):
            rows = self.placed(prompt, todo[i : i + self.slots])
            places = [self.where(g, slot) for (g, _), slot in rows]
            self.store.put(
                [self.key(prompt, *part) for part, _ in rows],
                [a for a, _ in places],
                [n for _, n in places],
            )

    def fetch(self, prompt, parts):
        """What start_load_kv does; whether all came. What came is right."""
        well = True
        for i in range(0, len(parts), self.slots):
            some = parts[i : i + self.slots]
            places = [self.where(g, slot) for slot, (g, _) in enumerate(some)]
            results = self.store.get(
                [self.key(prompt, *part) for part in some],
                [a for a, _ in places],
                [n for _, n in places],
            )
            well &= not any(results)
            for slot, (part, result) in enumerate(zip(some, results)):
                if result == 0:
                    check(self.read(part[0], slot), self.right(prompt, *part), part)
        return well

    def whole(self, keys):
        return [there == 1 for there in self.store.batch_is_exist(keys)]


class LayerRank(Rank):
    """The same with "use_layerwise": layers are copied to and from addresses of blocks."""

    def key(self, prompt, group, end, shard=None):
        head = self.shard(group) if shard is None else shard
        return f"toy@{group}@{prompt.states[end].hex()}@{head}"

    def copy(self, rows, gvas, direction):
        """Layer by layer, all blocks of it at once."""
        for layer in range(max(g.layers for g in self.layout.groups)):
            pieces = []
            for ((group, _), slot), gva in zip(rows, gvas):
                starts, sizes = self.where(group, slot)
                if gva > 0 and layer < len(starts):
                    pieces.append((gva + sum(sizes[:layer]), starts[layer], sizes[layer]))
            if pieces:
                assert self.store.store.batch_copy(*map(list, zip(*pieces)), direction) == 0

    def save(self, prompt):
        parts = list(self.parts(prompt))
        for i in range(0, len(parts), self.slots):
            rows = self.placed(prompt, parts[i : i + self.slots])
            keys = [self.key(prompt, *part) for part, _ in rows]
            sizes = [sum(self.where(g, slot)[1]) for (g, _), slot in rows]
            gvas = self.store.batch_alloc(keys, sizes)
            self.copy(rows, gvas, SAVE)
            mine = [k for k, gva in zip(keys, gvas) if gva > 0]
            assert self.store.batch_write_finish(mine, [0] * len(mine)) == [0] * len(mine)

    def fetch(self, prompt, parts):
        well = True
        for i in range(0, len(parts), self.slots):
            rows = [(part, slot) for slot, part in enumerate(parts[i : i + self.slots])]
            keys = [self.key(prompt, *part) for part, _ in rows]
            gvas = []
            for info in self.store.batch_get_key_info(keys):
                size = info.size()
                gvas.append(info.gva_list()[0] if size and size > 0 else 0)
            valid = [k for k, gva in zip(keys, gvas) if gva > 0]
            leased = set()
            if valid:
                results = self.store.batch_add_lease(valid, 300_000)
                leased = {k for k, result in zip(valid, results) if result == 0}
            gvas = [gva if k in leased else 0 for k, gva in zip(keys, gvas)]
            self.copy(rows, gvas, LOAD)
            self.store.batch_remove_lease(sorted(leased))
            well &= len(leased) == len(keys)
            for (part, slot), gva in zip(rows, gvas):
                if gva:
                    check(self.read(part[0], slot), self.right(prompt, *part), part)
        return well

    def whole(self, keys):
        return [bool(info.size()) for info in self.store.batch_get_key_info(keys)]


class Engine:
    def __init__(self, url, layout, kind):
        self.layout, self.ranks = layout, [kind(url, layout, r) for r in range(layout.tp)]

    def store(self, prompt):
        for rank in self.ranks:
            rank.save(prompt)

    def load(self, prompt):
        """The scheduler asks for all ranks; each rank loads what the boundary needs."""
        layout, first = self.layout, self.ranks[0]
        asked = [(g, s, end) for g, s in layout.shards() for end in layout.stored(g, len(prompt))]
        there = first.whole([first.key(prompt, g, end, s) for g, s, end in asked])
        has = {part for part, here in zip(asked, there) if here}
        boundary = layout.boundary(lambda *part: part in has, len(prompt))
        parts = [(g, e) for g in range(len(layout.groups)) for e in layout.needed(g, boundary)]
        if not boundary or not all([rank.fetch(prompt, parts) for rank in self.ranks]):
            return 0
        return boundary

    def close(self):
        for rank in self.ranks:
            rank.store.close()


class AscendScenes(EngineScenes):
    def longest(self, layout, tokens):
        return layout.boundary(lambda g, s, end: end in layout.stored(g, tokens), tokens)


class Blocks(AscendScenes, unittest.TestCase):
    def engine(self, url, layout):
        return Engine(url, layout, Rank)


class Layers(AscendScenes, unittest.TestCase):
    def engine(self, url, layout):
        return Engine(url, layout, LayerRank)


class LayerByLayer(TarnTest):
    def setUp(self):
        self.engine_uses_server()

    def store(self, **options):
        made = backend(self.server.url, **options)
        self.addCleanup(made.close)
        return made

    def memory(self, store, data):
        buffer = ctypes.create_string_buffer(data, len(data))
        store.register_buffer([ctypes.addressof(buffer)], [len(data)])
        return buffer, ctypes.addressof(buffer)

    def test_a_block_is_there_with_all_its_layers_or_not_at_all(self):
        store = self.store()
        source, at = self.memory(store, bytes(range(100)) * 3)
        keys = ["whole", "short", "failed", "twice"]
        gvas = store.batch_alloc(keys, [300] * 4)
        self.assertEqual(store.batch_alloc(["twice"], [300]), gvas[3:], "it is under way")
        for layer in range(3):
            blocks = [g for g in gvas if g != gvas[1] or layer < 2]
            n = len(blocks)
            places = [g + 100 * layer for g in blocks], [at + 100 * layer] * n, [100] * n
            self.assertEqual(store.batch_copy(*places, SAVE), 0)
        self.assertEqual(store.exists(keys), [0] * 4)
        self.assertEqual(store.batch_write_finish(keys, [0, 0, -1, 0]), [0] * 4)
        self.assertEqual(store.exists(keys), [1, 0, 0, 1])
        self.assertEqual(self.client().get("whole"), source.raw)
        self.assertEqual(store.batch_write_finish(keys, [0] * 4), [0] * 4, "nothing is left")

    def test_a_layer_that_two_requests_bring_is_one_layer(self):
        store = self.store()
        _, at = self.memory(store, bytes(range(200)))
        gvas = store.batch_alloc(["k"], [200]) + store.batch_alloc(["k"], [200])
        self.assertEqual(store.batch_copy(gvas, [at] * 2, [100] * 2, SAVE), 0)
        store.batch_write_finish(["k"], [0])
        self.assertEqual(store.exists(["k"]), [0], "its second layer never came")

    def test_who_comes_late_to_a_save_finds_no_other_block(self):
        with mock.patch.object(layerwise, "LAYERWISE_BYTES", 200), mock.patch.object(
            layerwise, "_STALE_S", 0.1
        ):
            store = self.store()
            _, a = self.memory(store, b"a" * 200)
            _, b = self.memory(store, b"b" * 200)
            (old,) = store.batch_alloc(["a"], [200])
            store.batch_copy([old], [a], [100], SAVE)
            time.sleep(0.15)
            (new,) = store.batch_alloc(["b"], [200])
            self.assertGreater(new, 0)
            store.batch_copy([new], [b], [200], SAVE)
            with self.assertLogs("tarn.vllm_ascend", "WARNING"):
                self.assertEqual(store.batch_copy([old + 100], [a + 100], [100], SAVE), 0)
            self.assertEqual(store.batch_write_finish(["a", "b"], [0, 0]), [0, 0])
            self.assertEqual(store.exists(["a", "b"]), [0, 1])
            self.assertEqual(self.client().get("b"), b"b" * 200)

    def test_who_comes_late_to_a_load_finds_no_other_block(self):
        client = self.client()
        client.put("a", b"a" * 200)
        client.put("b", b"b" * 200)
        with mock.patch.object(layerwise, "LAYERWISE_BYTES", 200):
            store = self.store()
            into, at = self.memory(store, bytes(200))
            (old,) = store.batch_get_key_info(["a"])[0].gva_list()
            self.assertEqual(store.batch_add_lease(["a"], 100), [0])
            time.sleep(0.15)
            (new,) = store.batch_get_key_info(["b"])[0].gva_list()
            self.assertEqual(store.batch_add_lease(["b"], 60_000), [0])
            with self.assertLogs("tarn.vllm_ascend", "WARNING"):
                self.assertEqual(store.batch_copy([old], [at], [200], LOAD), -1)
            self.assertEqual(into.raw, bytes(200))
            self.assertEqual(store.batch_copy([new], [at], [200], LOAD), 0)
            self.assertEqual(into.raw, b"b" * 200)

    def test_copies_keep_a_block(self):
        with mock.patch.object(layerwise, "LAYERWISE_BYTES", 400), mock.patch.object(
            layerwise, "_STALE_S", 1.2
        ):
            store = self.store()
            _, at = self.memory(store, bytes(range(200)))
            self.client().put("load", b"x" * 200)
            (load,) = store.batch_get_key_info(["load"])[0].gva_list()
            self.assertEqual(store.batch_add_lease(["load"], 1200), [0])
            (save,) = store.batch_alloc(["save"], [200])
            with self.assertLogs("tarn.vllm_ascend", "WARNING"):
                for layer in range(4):
                    time.sleep(0.4)
                    self.assertEqual(store.batch_alloc(["other"], [200]), [-1])
                    place = save + 50 * layer
                    self.assertEqual(store.batch_copy([place], [at + 50 * layer], [50], SAVE), 0)
                    self.assertEqual(store.batch_copy([load], [at], [0], LOAD), 0)
            store.batch_write_finish(["save"], [0])
            self.assertEqual(self.client().get("save"), bytes(range(200)))

    def test_a_block_moves_one_way(self):
        store, client = self.store(), self.client()
        client.put("load", b"x" * 100)
        into, at = self.memory(store, bytes(100))
        (save,) = store.batch_alloc(["save"], [100])
        (load,) = store.batch_get_key_info(["load"])[0].gva_list()
        with self.assertLogs("tarn.vllm_ascend", "WARNING"):
            self.assertEqual(store.batch_copy([load], [at], [100], LOAD), -1, "not yet loaded")
            self.assertEqual(store.batch_add_lease(["load"], 60_000), [0])
            self.assertEqual(store.batch_copy([save], [at], [100], LOAD), -1)
            self.assertEqual(store.batch_copy([load], [at], [100], SAVE), 0)
        self.assertEqual(store.batch_copy([load], [at], [100], LOAD), 0)
        self.assertEqual(into.raw, b"x" * 100)
        store.batch_write_finish(["save"], [0])
        self.assertEqual(store.exists(["save"]), [0], "nothing was copied to it")

    def test_layers_that_overlap_leave_a_hole(self):
        store = self.store()
        _, at = self.memory(store, bytes(200))
        (gva,) = store.batch_alloc(["k"], [200])
        store.batch_copy([gva, gva + 50, gva + 170], [at] * 3, [100, 100, 30], SAVE)
        store.batch_write_finish(["k"], [0])
        self.assertEqual(store.exists(["k"]), [0])

    def pause_in(self, owner, name):
        """Calls of `owner.name` tell `entered`, and go on when `go` is set."""
        entered, go, real = threading.Event(), threading.Event(), getattr(owner, name)

        def paused(*args, **kwargs):
            entered.set()
            self.assertTrue(go.wait(30))
            return real(*args, **kwargs)

        patched = mock.patch.object(owner, name, paused)
        patched.start()
        self.addCleanup(patched.stop)
        self.addCleanup(go.set)
        return entered, go, patched

    def started(self, work, *args):
        """A thread that does it; its results, once it has ended."""
        results = []
        thread = threading.Thread(target=lambda: results.append(work(*args)))
        thread.start()
        self.addCleanup(thread.join)
        return thread, results

    def test_memory_that_is_copied_from_serves_nobody_else_yet(self):
        client = self.client()
        client.put("a", b"a" * 200)
        client.put("b", b"b" * 200)
        with mock.patch.object(layerwise, "LAYERWISE_BYTES", 200):
            store = self.store()
            into, at = self.memory(store, bytes(200))
            (gva,) = store.batch_get_key_info(["a"])[0].gva_list()
            self.assertEqual(store.batch_add_lease(["a"], 60_000), [0])
            entered, go, patched = self.pause_in(TarnBackend, "_copy_piece")
            thread, results = self.started(store.batch_copy, [gva], [at], [200], LOAD)
            self.assertTrue(entered.wait(30))
            store.batch_remove_lease(["a"])
            self.assertEqual(store.batch_get_key_info(["b"])[0].gva_list(), [0], "all in use")
            go.set()
            thread.join()
            patched.stop()
            self.assertEqual((results, into.raw), ([0], b"a" * 200))
            (new,) = store.batch_get_key_info(["b"])[0].gva_list()
            self.assertGreater(new, gva, "spare again")
            with self.assertLogs("tarn.vllm_ascend", "WARNING"):
                self.assertEqual(store.batch_copy([gva], [at], [200], LOAD), -1, "it has ended")

    def test_memory_that_is_filled_serves_nobody_else_yet(self):
        client = self.client()
        client.put("a", b"a" * 200)
        with mock.patch.object(layerwise, "LAYERWISE_BYTES", 400):
            store = self.store()
            _, at = self.memory(store, b"s" * 200)
            store.batch_get_key_info(["a"])[0].gva_list()
            entered, go, patched = self.pause_in(Client, "get_into_many")
            thread, results = self.started(store.batch_add_lease, ["a"], 60_000)
            self.assertTrue(entered.wait(30))
            store.batch_remove_lease(["a"])
            (gva,) = store.batch_alloc(["save"], [200])
            store.batch_copy([gva], [at], [200], SAVE)
            self.assertEqual(self.room_left(store, 200), 0)
            go.set()
            thread.join()
            patched.stop()
            self.assertEqual(results, [[int(Status.ENOTFOUND)]], "nobody waits for it any more")
            store.batch_write_finish(["save"], [0])
            self.assertEqual(client.get("save"), b"s" * 200)
            self.assertEqual(self.room_left(store, 200), 2)

    def room_left(self, store, size):
        """How many more blocks there is memory for."""
        keys = [f"room {i}" for i in range(9)]
        found = sum(gva > 0 for gva in store.batch_alloc(keys, [size] * len(keys)))
        store.batch_write_finish(keys, [-1] * len(keys))
        return found

    def test_a_block_that_a_layer_is_copied_to_is_not_stored(self):
        with mock.patch.object(layerwise, "LAYERWISE_BYTES", 200):
            store = self.store()
            _, at = self.memory(store, bytes(200))
            (gva,) = store.batch_alloc(["k"], [200])
            store.batch_copy([gva], [at], [200], SAVE)
            entered, go, patched = self.pause_in(TarnBackend, "_copy_piece")
            thread, results = self.started(store.batch_copy, [gva], [at], [200], SAVE)
            self.assertTrue(entered.wait(30))
            self.assertEqual(store.batch_write_finish(["k"], [0]), [0])
            self.assertEqual(store.exists(["k"]), [0])
            self.assertEqual(store.batch_alloc(["k"], [100]), [-1], "another size, and no memory")
            go.set()
            thread.join()
            patched.stop()
            self.assertEqual(results, [0])
            self.assertGreater(store.batch_alloc(["k"], [100])[0], gva)

    def test_a_block_that_is_stored_keeps_its_memory(self):
        with mock.patch.object(layerwise, "LAYERWISE_BYTES", 200):
            store = self.store()
            _, at = self.memory(store, b"k" * 200)
            (gva,) = store.batch_alloc(["k"], [200])
            store.batch_copy([gva], [at], [200], SAVE)
            entered, go, patched = self.pause_in(Client, "put_from_many")
            thread, results = self.started(store.batch_write_finish, ["k", "k"], [0, 0])
            self.assertTrue(entered.wait(30))
            with self.assertLogs("tarn.vllm_ascend", "WARNING"):
                self.assertEqual(store.batch_alloc(["k"], [200]), [-1], "it is being stored")
                self.assertEqual(store.batch_copy([gva], [at], [200], SAVE), 0)
            go.set()
            thread.join()
            patched.stop()
            self.assertEqual(results, [[0, 0]])
            self.assertEqual(self.client().get("k"), b"k" * 200)

    def test_what_is_not_there_gets_no_lease(self):
        store, client = self.store(), self.client()
        client.put("a", b"a" * 64)
        client.put("b", b"b" * 64)
        infos = store.batch_get_key_info(["a", "none", "b"])
        self.assertEqual([i.size() for i in infos], [64, 0, 64])
        gvas = [infos[i].gva_list()[0] for i in (0, 2)]
        client.remove("b")
        results = store.batch_add_lease(["a", "b", "none"], 60_000)
        self.assertEqual(results[0], 0)
        self.assertEqual(results[1:], [int(Status.ENOTFOUND)] * 2)
        into, at = self.memory(store, bytes(64))
        self.assertEqual(store.batch_copy([gvas[0] + 16], [at], [32], LOAD), 0)
        self.assertEqual(into.raw, b"a" * 32 + bytes(32))
        client.remove("a")
        self.assertEqual(store.batch_add_lease(["a"], 60_000), [0], "it is here")
        with self.assertLogs("tarn.vllm_ascend", "WARNING"):
            self.assertEqual(store.batch_copy([gvas[1]], [at], [32], LOAD), -1, "no lease")
            self.assertEqual(store.batch_copy([gvas[0] + 60], [at], [8], LOAD), -1, "beyond")
        self.assertEqual(store.batch_remove_lease(["a", "b"]), 0)
        self.assertEqual(store.batch_copy([gvas[0]], [at], [32], LOAD), -1)
        self.assertEqual(into.raw, b"a" * 32 + bytes(32))

    def test_blocks_under_way_have_a_bound(self):
        with mock.patch.object(layerwise, "LAYERWISE_BYTES", 1000), mock.patch.object(
            layerwise, "_STALE_S", 0.2
        ):
            store = self.store()
            with self.assertLogs("tarn.vllm_ascend", "WARNING"):
                gvas = store.batch_alloc(["a", "b", "c"], [400] * 3)
            self.assertEqual([g > 0 for g in gvas], [True, True, False])
            store.batch_write_finish(["a"], [-1])
            again = store.batch_alloc(["c"], [400])
            self.assertGreater(again[0], max(gvas), "the same memory under a new number")
            self.assertEqual(store.batch_alloc(["d"], [300]), [-1])
            time.sleep(0.3)
            self.assertGreater(store.batch_alloc(["d"], [300])[0], 0, "nobody finished the others")

    def test_a_pool_that_is_away(self):
        store = self.store()
        self.server.kill()
        self.addCleanup(self.server.start)
        _, at = self.memory(store, bytes(64))
        gvas = store.batch_alloc(["a"], [64])
        self.assertEqual(store.batch_copy(gvas, [at], [64], SAVE), 0)
        with self.assertLogs("tarn.vllm_ascend", "WARNING"):
            self.assertEqual(store.batch_write_finish(["a"], [0]), [0])
        self.assertEqual(store.batch_get_key_info(["a"])[0].size(), 0)
        self.assertLess(store.batch_add_lease(["a"], 1000)[0], 0)

    def test_layers_of_a_device(self):
        device = Device(1 << 16)
        self.addCleanup(device.close)
        with mock.patch.object(Runtime, "find", return_value=Runtime(device.driver)):
            store = self.store()
        store.register_buffer([device.address], [device.size])
        device.bytes[:512] = bytes(i % 251 for i in range(512))
        gva = store.batch_alloc(["k"], [512])[0]
        for at in range(0, 512, 128):
            store.batch_copy([gva + at], [device.address + at], [128], SAVE)
        store.batch_write_finish(["k"], [0])
        gva = store.batch_get_key_info(["k"])[0].gva_list()[0]
        self.assertEqual(store.batch_add_lease(["k"]), [0])
        places = range(0, 512, 128)
        self.assertEqual(
            store.batch_copy(
                [gva + at for at in places],
                [device.address + 4096 + at for at in places],
                [128] * 4,
                LOAD,
            ),
            0,
        )
        self.assertEqual(device.bytes[4096 : 4096 + 512], device.bytes[:512])
        device.fail = True
        with self.assertLogs("tarn.vllm_ascend", "WARNING"):
            self.assertEqual(store.batch_copy([gva], [device.address], [128], LOAD), -1)

    def test_parts_that_end_with_one_hash_have_one_boundary(self):
        client = self.client()
        hashes = [f"{i:064x}" for i in range(4)]
        head = "model@pcp0@dcp0@head_or_tp_rank:"

        def boundaries(keys, layers=False, **options):
            client.command("FLUSHALL")
            store = self.store(namespace="team", **options)
            _, at = self.memory(store, bytes(100))
            places = [[at]] * len(keys), [[100]] * len(keys)
            if layers:
                gvas = store.batch_alloc(keys, [100] * len(keys))
                store.batch_copy(gvas, [at] * len(keys), [100] * len(keys), SAVE)
                store.batch_write_finish(keys, [0] * len(keys))
            else:
                store.put(keys, *places)
            self.assertEqual(store.exists(keys), [1] * len(keys))
            text = client.command("INFO", "everything")
            return int(text.split("\nboundaries:")[1].split()[0])

        one = [f"{head}0@pp_rank:0@group:0@cache_role:kv@{h}" for h in hashes]
        other = [k.replace("group:0", "group:1") for k in one]
        self.assertEqual(boundaries(one), 0, "blocks of one part need none")
        self.assertEqual(boundaries(one + other), 4)
        self.assertEqual(boundaries(one, world_size=2), 4)
        layered = [f"model@{g}@{h}@0" for g in range(2) for h in hashes]
        self.assertEqual(boundaries(layered, layers=True), 4)
        self.assertEqual(boundaries([f"model@{h}@0" for h in hashes], layers=True), 0)

    def test_what_a_lookup_found_stays_for_the_load(self):
        client = self.client()
        keys = [f"k{i}" for i in range(6)]
        for key in keys[::2]:
            client.put(key, b"x" * 100)

        def granted():
            text = client.command("INFO", "cache")
            return int(text.split("\nleases_granted:")[1].split("\r")[0])

        for lease_ms, leased in ((0, 0), (60_000, 3)):
            before, store = granted(), self.store(lookup_lease_ms=lease_ms)
            self.assertEqual(store.batch_is_exist(keys), [1, 0] * 3)
            self.assertEqual(granted() - before, leased)

    def test_few_round_trips(self):
        store, n = self.store(), 50
        _, at = self.memory(store, bytes(64))
        client = store._link.client()

        def trips(work):
            before = client.stats()["round_trips"]
            result = work()
            return client.stats()["round_trips"] - before, result

        for turn in range(2):  # the first asks for what is known later
            keys = [f"{turn} {i}" for i in range(n)]
            gvas = store.batch_alloc(keys, [64] * n)
            store.batch_copy(gvas, [at] * n, [64] * n, SAVE)
            stored, _ = trips(lambda: store.batch_write_finish(keys, [0] * n))
            asked, infos = trips(lambda: store.batch_get_key_info(keys))
            self.assertEqual([i.gva_list()[0] > 0 for i in infos], [True] * n)
            loaded, results = trips(lambda: store.batch_add_lease(keys))
            self.assertEqual(results, [0] * n)
            store.batch_remove_lease(keys)
        self.assertLessEqual((stored, asked, loaded), (3, 2, 2))


if __name__ == "__main__":
    unittest.main()
