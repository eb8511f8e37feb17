"""TarnHiCache, driven as SGLang's cache controller drives it: a prefetch, an I/O and a backup
thread per rank, 128 pages at a time."""

import ctypes
import json
import os
import queue
import tempfile
import threading
import time
import types
import unittest
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional
from unittest import mock

from harness import SLOW, Monitor, Server, TarnTest, together, wait_until

import tarn
from tarn.keys import hash_text
from tarn.sglang import TarnHiCache

BATCH = 128


@dataclass
class Config:
    """SGLang's HiCacheStorageConfig."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: Optional[str] = "org/model"
    tp_lcm_size: Optional[int] = None
    should_split_heads: bool = False
    extra_config: Dict[str, Any] = field(default_factory=lambda: {"interface_v1": 1})


@dataclass
class Transfer:
    """SGLang's PoolTransfer."""

    name: str
    keys: Optional[List[str]] = None
    host_indices: Any = None
    hit_policy: str = "all_pages"


class Slots(list):
    """A tensor of slots."""

    def tolist(self):
        return list(self)


class HostPool:
    """Pages in one piece of memory, in the layouts of SGLang's host pools. `kinds`: 2 for keys and
    values, 1 for latent."""

    kinds = 2
    unit = 24  # bytes of a token of a layer, of all heads

    def __init__(self, layout="page_first", pages=64, page_size=4, layers=3, dtype="bfloat16"):
        self.layout, self.page_size, self.layers, self.dtype = layout, page_size, layers, dtype
        self.size = pages * page_size
        self.half = self.size * layers * self.unit
        self.kv_buffer = (ctypes.c_char * (self.kinds * self.half))()
        self.base = ctypes.addressof(self.kv_buffer)
        self.whole = memoryview(self.kv_buffer).cast("B")
        self.page = page_size * layers * self.unit

    def slots(self, pages):
        return Slots(p * self.page_size + i for p in pages for i in range(self.page_size))

    def get_page_buffer_meta(self, indices):
        assert len(indices) % self.page_size == 0
        pointers = []
        for slot in indices.tolist()[:: self.page_size]:
            if self.layout == "layer_first":
                for layer in range(self.layers):
                    at = self.base + (layer * self.size + slot) * self.unit
                    pointers += [at + k * self.half for k in range(self.kinds)]
            else:
                pointers += [
                    self.base + slot * self.layers * self.unit + k * self.half
                    for k in range(self.kinds)
                ]
        each = self.page // self.layers if self.layout == "layer_first" else self.page
        return pointers, [each] * len(pointers)

    def get_split_heads_page_buffer_meta(self, indices, factor):
        assert self.layout == "page_head"
        pointers = []
        for slot in indices.tolist()[:: self.page_size]:
            for part in range(factor):
                at = self.base + slot * self.layers * self.unit + part * self.page // factor
                pointers += [at, at + self.half]
        return pointers, [self.page // factor] * len(pointers)

    def spans(self, page):
        pointers, sizes = self.get_page_buffer_meta(self.slots([page]))
        return [self.whole[p - self.base : p - self.base + s] for p, s in zip(pointers, sizes)]

    def fill(self, page, seed):
        """A page of bytes that only this seed has, in the order of its pieces."""
        value = self.value(seed)
        at = 0
        for span in self.spans(page):
            span[:] = value[at : at + len(span)]
            at += len(span)

    def value(self, seed):
        rest = self.page * self.kinds
        return (f"<{seed}>".encode() * rest)[:rest]

    def holds(self, page, seed):
        return b"".join(bytes(s) for s in self.spans(page)) == self.value(seed)

    def get_data_page(self, index, flat=True):
        return bytearray(b"".join(bytes(s) for s in self.spans(index // self.page_size)))

    def get_dummy_flat_data_page(self):
        return bytearray(self.page * self.kinds)

    def set_from_flat_data_page(self, index, data):
        at = 0
        for span in self.spans(index // self.page_size):
            span[:] = data[at : at + len(span)]
            at += len(span)


class MHATokenToKVPoolHost(HostPool):
    pass


class HalfTheHeads(MHATokenToKVPoolHost):
    unit = 12


class MLATokenToKVPoolHost(HostPool):
    kinds = 1


class MambaPoolHost(HostPool):
    pass


class Controller:
    """One rank: what SGLang's HiCacheController does with a storage backend, and in which
    threads."""

    def __init__(self, config, pool, zero_copy=True):
        self.config, self.pool = config, pool
        self.storage = TarnHiCache(config, {})
        self.storage.register_mem_pool_host(pool)
        self.backup_skip = config.is_mla_model and config.tp_rank != 0
        self.zero_copy = zero_copy
        self.work = {name: queue.Queue() for name in ("prefetch", "io", "backup")}
        self.threads = [
            threading.Thread(target=self.run, args=(q,), daemon=True) for q in self.work.values()
        ]
        for t in self.threads:
            t.start()

    def run(self, q):
        while True:
            job = q.get()
            if job is None:
                return
            work, done = job
            try:
                done.append(work())
            except BaseException as e:
                done.append(e)

    def ask(self, name, work):
        done = []
        self.work[name].put((work, done))
        result = wait_until(lambda: done, 60, name)[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def backup(self, hashes, pages):
        """Pages that are backed up, as the backup thread counts them."""
        return self.ask("backup", lambda: self._backup(hashes, pages))

    def _backup(self, hashes, pages):
        if self.backup_skip:
            return len(hashes)
        for i in range(0, len(hashes), BATCH):
            keys, slots = hashes[i : i + BATCH], self.pool.slots(pages[i : i + BATCH])
            if self.zero_copy:
                done = all(self.storage.batch_set_v1(keys, slots, None))
            else:
                data = [
                    self.pool.get_data_page(slots[n * self.pool.page_size])
                    for n in range(len(keys))
                ]
                done = self.storage.batch_set(keys, data)
            if not done:
                return i
        return len(hashes)

    def hits(self, hashes):
        return self.ask("prefetch", lambda: self._hits(hashes))

    def _hits(self, hashes):
        count = 0
        for i in range(0, len(hashes), BATCH):
            batch = hashes[i : i + BATCH]
            found = self.storage.batch_exists(batch, None)
            count += found
            if found < len(batch):
                break
        return count

    def load(self, hashes, pages):
        """Pages that arrived before the first that did not."""
        return self.ask("io", lambda: self._load(hashes, pages))

    def _load(self, hashes, pages):
        for i in range(0, len(hashes), BATCH):
            keys, slots = hashes[i : i + BATCH], self.pool.slots(pages[i : i + BATCH])
            if self.zero_copy:
                flags = self.storage.batch_get_v1(keys, slots, None)
            else:
                dummies = [self.pool.get_dummy_flat_data_page() for _ in keys]
                data = self.storage.batch_get(keys, dummies)
                flags = [d is not None for d in data]
                for n, d in enumerate(data):
                    if d is not None:
                        self.pool.set_from_flat_data_page(slots[n * self.pool.page_size], d)
            assert len(flags) == len(keys)
            if not all(flags):
                return i + flags.index(False)
        return len(hashes)

    def close(self):
        for q in self.work.values():
            q.put(None)
        for t in self.threads:
            t.join(10)
        self.storage.close()


class SGLangTest(TarnTest):
    def setUp(self):
        self.server.process.poll()
        self.engine_uses_server()

    def rank(self, pool, zero_copy=True, **config):
        if not zero_copy:
            config.setdefault("extra_config", {})
        made = Controller(Config(**config), pool, zero_copy)
        self.addCleanup(made.close)
        return made

    @staticmethod
    def hashes(n, start=0):
        return [f"{i:064x}" for i in range(start, start + n)]

    def keys(self):
        return sorted(self.client().command("KEYS", "*").split("\n"))

    def test_pages_go_and_come_back_in_every_layout(self):
        for kind in (MHATokenToKVPoolHost, MLATokenToKVPoolHost):
            for layout, zero_copy in (
                ("page_first", True),
                ("layer_first", True),
                ("page_first_direct", True),
                ("layer_first", False),
            ):
                with self.subTest(kind=kind.__name__, layout=layout, zero_copy=zero_copy):
                    self.client().command("FLUSHALL")
                    hashes = self.hashes(300)
                    mla = kind is MLATokenToKVPoolHost
                    writer = self.rank(kind(layout, 300), zero_copy, is_mla_model=mla)
                    for i in range(300):
                        writer.pool.fill(i, f"page {i}")
                    self.assertEqual(writer.hits(hashes), 0)
                    self.assertEqual(writer.backup(hashes, list(range(300))), 300)
                    self.assertEqual(
                        writer.backup(hashes, list(range(300))), 300, "once more is as good"
                    )
                    self.assertEqual(len(self.keys()), 300, "a page is one object")
                    reader = self.rank(kind(layout, 310), zero_copy, is_mla_model=mla)
                    self.assertEqual(reader.hits(hashes + self.hashes(3, 1000)), 300)
                    places = list(range(309, 9, -1))
                    self.assertEqual(reader.load(hashes, places), 300)
                    for i, page in enumerate(places):
                        self.assertTrue(reader.pool.holds(page, f"page {i}"), f"page {i}")
                    self.assertEqual(writer.storage.troubles, {})
                    self.assertEqual(reader.storage.troubles, {})

    def test_ranks_of_kv_heads_have_pages_of_their_own(self):
        hashes = self.hashes(20)
        writers = [
            self.rank(MHATokenToKVPoolHost(), tp_rank=r, tp_size=2, pp_rank=1, pp_size=2)
            for r in range(2)
        ]
        for r, w in enumerate(writers):
            for i in range(20):
                w.pool.fill(i, f"rank {r} page {i}")
            self.assertEqual(w.backup(hashes, list(range(20))), 20)
        self.assertEqual(len(self.keys()), 40)
        for r in range(2):
            reader = self.rank(MHATokenToKVPoolHost(), tp_rank=r, tp_size=2, pp_rank=1, pp_size=2)
            self.assertEqual(reader.load(hashes, list(range(40, 60))), 20)
            self.assertTrue(all(reader.pool.holds(40 + i, f"rank {r} page {i}") for i in range(20)))
        for other in (
            dict(tp_rank=0, tp_size=4, pp_rank=1, pp_size=2),
            dict(tp_rank=0, tp_size=2, pp_rank=0, pp_size=2),
            dict(tp_rank=0, tp_size=2, pp_rank=1, pp_size=2, attn_cp_rank=0, attn_cp_size=2),
            dict(tp_rank=0, tp_size=2, pp_rank=1, pp_size=2, model_name="org/other"),
            dict(
                tp_rank=0,
                tp_size=2,
                pp_rank=1,
                pp_size=2,
                extra_config={"interface_v1": 1, "extra_backend_tag": "t"},
            ),
        ):
            self.assertEqual(self.rank(MHATokenToKVPoolHost(), **other).hits(hashes), 0, other)
        for pool in (MHATokenToKVPoolHost(dtype="float16"), MHATokenToKVPoolHost("layer_first")):
            self.assertEqual(
                self.rank(pool, tp_rank=0, tp_size=2, pp_rank=1, pp_size=2).hits(hashes), 0
            )

    def test_ranks_of_latent_pages_share_them(self):
        hashes = self.hashes(40)
        ranks = [
            self.rank(MLATokenToKVPoolHost(), is_mla_model=True, tp_rank=r, tp_size=4)
            for r in range(4)
        ]
        for r in ranks:
            for i in range(40):
                r.pool.fill(i, f"page {i}")
            r.backup_skip = (
                False  # as several instances of rank 0 would, which race for the same keys
            )
        barrier, done = threading.Barrier(4), []

        def race(rank):
            barrier.wait()
            done.append(rank.backup(hashes, list(range(40))))

        together(race, ranks)
        self.assertEqual(done, [40] * 4)
        self.assertEqual(len(self.keys()), 40)
        wait_until(lambda: all(r.hits(hashes) == 40 for r in ranks), 5, "all pages are whole")
        for r in ranks:
            self.assertEqual(r.load(hashes, list(range(63, 23, -1))), 40)
            self.assertTrue(all(r.pool.holds(63 - i, f"page {i}") for i in range(40)))
            self.assertEqual(r.storage.troubles, {})

    def test_another_number_of_ranks_reads_its_heads(self):
        hashes = self.hashes(10)
        for r in range(2):
            config = dict(tp_rank=r, tp_size=2, tp_lcm_size=4, should_split_heads=True)
            writer = self.rank(MHATokenToKVPoolHost("page_head"), **config)
            for i in range(10):
                for k, span in enumerate(writer.pool.spans(i)):
                    for part in range(2):
                        value = (f"<{k} {2 * r + part} {i}>".encode() * len(span))[: len(span) // 2]
                        span[part * len(span) // 2 : (part + 1) * len(span) // 2] = value
            self.assertEqual(writer.backup(hashes, list(range(10))), 10)
            self.assertEqual(writer.hits(hashes), 10)
            again = self.rank(MHATokenToKVPoolHost("page_head"), **config)
            self.assertEqual(again.load(hashes, list(range(10, 20))), 10)
            self.assertEqual(
                [bytes(s) for i in range(10, 20) for s in again.pool.spans(i)],
                [bytes(s) for i in range(10) for s in writer.pool.spans(i)],
            )
        self.assertEqual(len(self.keys()), 40)
        for r in range(4):
            pool = HalfTheHeads("page_head")
            reader = self.rank(pool, tp_rank=r, tp_size=4, tp_lcm_size=4)
            self.assertEqual(reader.hits(hashes), 10)
            self.assertEqual(reader.load(hashes, list(range(10))), 10)
            for i in range(10):
                for k, span in enumerate(pool.spans(i)):
                    self.assertEqual(
                        bytes(span), (f"<{k} {r} {i}>".encode() * len(span))[: len(span)]
                    )

    def test_a_page_that_is_missing_in_the_middle(self):
        hashes = self.hashes(10)
        rank = self.rank(MHATokenToKVPoolHost())
        for i in range(10):
            rank.pool.fill(i, f"page {i}")
        rank.backup(hashes, list(range(10)))
        victim = next(k for k in self.keys() if k.endswith(hash_text(hashes[4])))
        self.client().remove(victim)
        self.assertEqual(rank.hits(hashes), 4)
        flags = rank.storage.batch_get_v1(hashes, rank.pool.slots(range(20, 30)))
        self.assertEqual(flags, [i != 4 for i in range(10)])
        self.assertTrue(all(rank.pool.holds(20 + i, f"page {i}") for i in range(10) if i != 4))
        self.assertEqual(rank.load(hashes, list(range(40, 50))), 4)
        self.assertEqual(rank.storage.troubles, {}, "a miss is no trouble")

    def test_objects_of_a_wrong_size_are_no_pages(self):
        hashes = self.hashes(6)
        rank = self.rank(MHATokenToKVPoolHost())
        for i in range(6):
            rank.pool.fill(i, f"page {i}")
        rank.backup(hashes, list(range(6)))
        page, client = 2 * rank.pool.page, self.client()
        for i, size in ((1, page - 1), (3, page + 1), (4, 0)):
            client.put(
                next(k for k in self.keys() if k.endswith(hash_text(hashes[i]))),
                b"x" * size,
                replace=True,
            )
        for i in range(20, 27):
            rank.pool.fill(i, "before")
        with self.assertLogs("tarn.sglang", "WARNING"):
            flags = rank.storage.batch_get_v1(hashes, rank.pool.slots(range(20, 26)))
        self.assertEqual(flags, [True, False, True, False, False, True])
        self.assertTrue(all(rank.pool.holds(20 + i, f"page {i}") for i in (0, 2, 5)))
        self.assertTrue(rank.pool.holds(26, "before"), "nothing beside the pages is touched")
        self.assertEqual(
            rank.storage.batch_get_v1(hashes, rank.pool.slots(range(5))), [False] * 6, "wrong slots"
        )
        self.assertEqual(rank.storage.batch_set_v1(hashes, rank.pool.slots(range(5))), [False] * 6)

    def test_pools_of_hybrid_models(self):
        hashes = self.hashes(8)
        made = []
        for r in range(2):
            rank = self.rank(MLATokenToKVPoolHost(), is_mla_model=True, tp_rank=r, tp_size=2)
            pools = {
                "mamba": MambaPoolHost(page_size=1),
                "indexer": MLATokenToKVPoolHost("layer_first"),
            }
            rank.storage.register_mem_host_pool_v2(rank.pool, "kv")
            for name, pool in pools.items():
                rank.storage.register_mem_host_pool_v2(pool, name)
                for i in range(8):
                    pool.fill(i, f"{name} {i}" + (f" of {r}" if name == "mamba" else ""))
            made.append((rank, pools))
        for r, (rank, pools) in enumerate(made):
            transfers = [Transfer("mamba", hashes[6:], pools["mamba"].slots([6, 7]))]
            if r == 0:
                for i in range(8):
                    rank.pool.fill(i, f"page {i}")
                self.assertEqual(rank.backup(hashes, list(range(8))), 8)
                transfers.append(Transfer("indexer", hashes[:7], pools["indexer"].slots(range(7))))
            done = rank.storage.batch_set_v2(transfers)
            self.assertEqual(done, {t.name: [True] * len(t.keys) for t in transfers})
        for r, (rank, pools) in enumerate(made):
            ask = rank.storage.batch_exists_v2
            mamba = Transfer("mamba", hashes[7:], hit_policy="trailing_pages")
            self.assertEqual(ask(hashes, []).kv_hit_pages, 8)
            found = ask(hashes + self.hashes(1, 99), [mamba])
            self.assertEqual(
                (found.kv_hit_pages, found.extra_pool_hit_pages), (8, {"kv": 8, "mamba": 8})
            )
            self.assertEqual(
                ask(hashes[:6], [mamba]).kv_hit_pages, 0, "there is no state before page 6"
            )
            found = ask(hashes, [Transfer("indexer"), mamba])
            self.assertEqual((found.kv_hit_pages, found.extra_pool_hit_pages["indexer"]), (7, 7))
            self.assertEqual(
                ask(hashes, [Transfer("swa")]).kv_hit_pages, 0, "a pool that nobody registered"
            )
            into = [
                Transfer("mamba", hashes[6:], pools["mamba"].slots([20, 21])),
                Transfer("indexer", hashes, pools["indexer"].slots(range(20, 28))),
            ]
            got = rank.storage.batch_get_v2(into)
            self.assertEqual(got, {"mamba": [True, True], "indexer": [True] * 7 + [False]})
            self.assertTrue(
                all(pools["mamba"].holds(20 + i, f"mamba {6 + i} of {r}") for i in range(2))
            )
            self.assertTrue(all(pools["indexer"].holds(20 + i, f"indexer {i}") for i in range(7)))

    def test_slots_without_bytes_are_always_there(self):
        pool = MHATokenToKVPoolHost()
        pool.kv_buffer = None
        rank = self.rank(pool)
        self.assertEqual(rank.storage.batch_exists(self.hashes(5)), 5)
        self.assertEqual(
            rank.storage.batch_get_v1(self.hashes(5), pool.slots(range(5))), [True] * 5
        )
        self.assertEqual(
            rank.storage.batch_set_v1(self.hashes(5), pool.slots(range(5))), [True] * 5
        )

    def test_tensors_and_addresses(self):
        storage = self.rank(MHATokenToKVPoolHost(), zero_copy=False).storage
        self.assertTrue(storage.set("a", b"alpha"))
        self.assertTrue(storage.set("a", b"other"), "it is there, and that is as good")
        self.assertTrue(storage.exists("a"))
        self.assertFalse(storage.exists("b"))
        into = bytearray(5)
        self.assertIs(storage.get("a", into), into)
        self.assertEqual(into, b"alpha")
        self.assertIsNone(storage.get("b", into))
        with mock.patch.dict("sys.modules", {"torch": None}):
            self.assertEqual(storage.get("a"), b"alpha")
            self.assertEqual(storage.batch_get(["a", "b"]), [b"alpha", None])
        memory = ctypes.create_string_buffer(b"0123456789", 10)
        at = ctypes.addressof(memory)
        self.assertTrue(
            storage.batch_set(["c", "d"], target_locations=[at, at + 5], target_sizes=[5, 5])
        )
        self.assertTrue(storage.get("c", at + 5, 5))
        self.assertEqual(memory.raw, b"0123401234")
        self.assertEqual(storage.batch_get(["c", "x", "d"], [at, at, at], [5, 5, 5]), 1)
        self.assertEqual(storage.batch_get(["d"], [at], [5]), 1)
        self.assertEqual(memory.raw[:5], b"56789")
        for bad in (
            lambda: storage.set("e", None),
            lambda: storage.batch_set(["e", "f"], [b"1"]),
            lambda: storage.set("e", 7.5),
        ):
            self.assertFalse(bad())
        self.assertFalse(storage.set("k" * 1024, b"1"), "a key that is too long")

    def test_clear_takes_only_this_model(self):
        ranks = [
            self.rank(MHATokenToKVPoolHost(), tp_rank=r, tp_size=2, model_name="a*b")
            for r in range(2)
        ]
        other = self.rank(MHATokenToKVPoolHost(), model_name="axb")
        for r in ranks + [other]:
            r.backup(self.hashes(5), list(range(5)))
        self.assertTrue(ranks[0].storage.clear())
        self.assertEqual([r.hits(self.hashes(5)) for r in ranks + [other]], [0, 0, 5])

    def test_figures(self):
        rank = self.rank(MHATokenToKVPoolHost(), enable_storage_metrics=True)
        rank.backup(self.hashes(5), list(range(5)))
        rank.load(self.hashes(5), list(range(5)))
        rank.load(self.hashes(5, 50), list(range(5)))
        stats = rank.storage.get_stats()
        self.assertEqual((stats.backup_pgs, stats.prefetch_pgs), ([5], [5]))
        self.assertTrue(stats.backup_bandwidth[0] > 0 and stats.prefetch_bandwidth[0] > 0)
        self.assertEqual(rank.storage.get_stats().backup_pgs, [])
        copying = self.rank(MHATokenToKVPoolHost(), zero_copy=False, enable_storage_metrics=True)
        copying.backup(self.hashes(5), list(range(5)))
        copying.load(self.hashes(6), list(range(6)))
        stats = copying.storage.get_stats()
        self.assertEqual((stats.backup_pgs, stats.prefetch_pgs), ([5], [5]))
        self.assertIsNone(self.rank(MHATokenToKVPoolHost()).storage.get_stats())

    def test_configuration(self):
        def make(**tarn_options):
            made = TarnHiCache(Config(extra_config={"interface_v1": 1, "tarn": tarn_options}), {})
            self.addCleanup(made.close)
            return made

        for bad in (
            {"ulr": "tarn://127.0.0.1"},
            {"url": 5},
            {"timeout_ms": -1},
            {"put": {"replica": 2}},
            {"client": "x"},
            {"put": {"pin": "firm"}},
            {"put": {"replicas": -1}},
            {"url": "http://127.0.0.1"},
        ):
            with self.assertRaises(tarn.InvalidArgument, msg=str(bad)):
                make(**bad)
        with self.assertRaises(TypeError):
            make(client={"transprot": "tcp"})
        with mock.patch.dict(os.environ, {"TARN_URL": "tarn://127.0.0.1:1"}):
            made = make(
                url=self.server.url,
                namespace="team",
                client={"transport": "tcp"},
                put={"pin": "soft"},
                timeout_ms=2000,
            )
            made.register_mem_pool_host(MHATokenToKVPoolHost())
            self.assertTrue(made.set("x", b"1"))
        self.assertEqual(len([k for k in self.keys() if k.startswith("team@sglang@org/model@")]), 1)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tarn.json")
            with open(path, "w") as f:
                json.dump({"url": self.server.url, "namespace": "file"}, f)
            with mock.patch.dict(os.environ, {"TARN_CONFIG_PATH": path}):
                del os.environ["TARN_URL"]
                self.assertTrue(make().set("y", b"1"))
            self.assertEqual(len([k for k in self.keys() if k.startswith("file@")]), 1)
            with open(path, "w") as f:
                f.write("[1")
            with mock.patch.dict(os.environ, {"TARN_CONFIG_PATH": path}), self.assertRaises(
                tarn.InvalidArgument
            ):
                make()


class ChainTest(TarnTest):
    pool = "8mb"

    def test_pages_are_put_behind_those_before_them(self):
        """With "hicache_storage_pass_prefix_keys" SGLang says which these are, node by node: the
        end of a prompt goes first."""
        config = Config(extra_config={"interface_v1": 1, "tarn": {"url": self.server.url}})
        pool = MHATokenToKVPoolHost(pages=8, page_size=64, layers=8)
        rank = Controller(config, pool)
        self.addCleanup(rank.close)
        pages, client = [f"{i:064x}" for i in range(40)], self.client()
        for at in range(0, len(pages), 4):
            info = types.SimpleNamespace(prefix_keys=pages[:at], extra_info=None)
            slots = pool.slots(list(range(4)))
            with Monitor(self.server) as monitor:
                keys = pages[at : at + 4]
                self.assertEqual(rank.storage.batch_set_v1(keys, slots, info), [True] * 4)
                self.assertEqual(len(monitor.lines("PREFIXLEN")), at > 0)
            for n in range(3):
                client.put(f"other:{at}:{n}", bytes(1000))
        # Some of the next node are there already.
        info = types.SimpleNamespace(prefix_keys=(None,), extra_info=None)
        self.assertEqual(
            rank.storage.batch_set_v1(["a" * 64, "b" * 64], pool.slots([0, 1]), info), [True] * 2
        )
        info = types.SimpleNamespace(prefix_keys=["a" * 64], extra_info=None)
        self.assertEqual(
            rank.storage.batch_set_v1(["b" * 64, "c" * 64], pool.slots([1, 2]), info), [True] * 2
        )
        self.assertEqual(rank.hits(["a" * 64, "b" * 64, "c" * 64]), 3)
        names, left = [rank.storage._name(page) for page in pages], len(pages)
        for n in range(2000):
            client.put_many([(f"more:{n}:{i}", bytes(pool.page)) for i in range(2)])
            there = client.exists_many(names)
            left = there.index(False) if False in there else len(pages)
            self.assertFalse(any(there[left:]), there)
            if left < 20:
                break
        self.assertLess(left, 20)


class FullTest(TarnTest):
    pool = "8mb"
    server_args = ("--max-lease", "60s")

    def test_old_pages_make_room_for_new_ones(self):
        config = Config(extra_config={"interface_v1": 1, "tarn": {"url": self.server.url}})
        pool = MHATokenToKVPoolHost(pages=64, page_size=64, layers=8)
        rank = Controller(config, pool)
        self.addCleanup(rank.close)
        for i in range(64):
            pool.fill(i, f"page {i}")
        rounds = 16  # of 64 pages of 24 KiB: three times the pool
        for n in range(rounds):
            hashes = [f"{n:032x}{i:032x}" for i in range(64)]
            self.assertEqual(rank.backup(hashes, list(range(64))), 64)
        self.assertEqual(rank.hits(hashes), 64)
        self.assertEqual(rank.load(hashes, list(range(63, -1, -1))), 64)
        self.assertTrue(all(pool.holds(63 - i, f"page {i}") for i in range(64)))
        self.assertLess(
            rank.hits([f"{0:032x}{i:032x}" for i in range(64)]), 64, "the first ones had to go"
        )
        self.assertEqual(rank.storage.troubles, {})

    def test_what_a_lookup_found_stays_for_the_prefetch(self):
        extra = {"interface_v1": 1, "tarn": {"url": self.server.url, "lookup_lease_ms": 60000}}
        pool = MHATokenToKVPoolHost(pages=64, page_size=64, layers=8)
        ranks = [
            Controller(Config(model_name=m, extra_config=extra), pool) for m in ("leased", "other")
        ]
        for r in ranks:
            self.addCleanup(r.close)
        for i in range(16):
            pool.fill(i, f"page {i}")
        hashes = SGLangTest.hashes(16)
        self.assertEqual(ranks[0].backup(hashes, list(range(16))), 16)
        self.assertEqual(ranks[0].hits(hashes), 16)
        for n in range(16):
            ranks[1].backup(SGLangTest.hashes(64, 1000 * n), list(range(64)))
        self.assertEqual(ranks[0].load(hashes, list(range(63, 47, -1))), 16)
        self.assertTrue(all(pool.holds(63 - i, f"page {i}") for i in range(16)))


class AwayTest(unittest.TestCase):
    def test_a_server_that_goes_and_comes_back(self):
        server = Server()
        self.addCleanup(server.stop)
        extra = {
            "interface_v1": 1,
            "tarn": {"url": server.url, "client": {"retries": 0, "timeout_ms": 20000}},
        }
        rank = Controller(Config(extra_config=extra), MHATokenToKVPoolHost())
        self.addCleanup(rank.close)
        hashes = SGLangTest.hashes(10)
        rank.pool.fill(0, "page")
        self.assertEqual(rank.backup(hashes, [0] * 10), 10)
        server.kill()
        with self.assertLogs("tarn.sglang", "WARNING") as logs:
            self.assertEqual(rank.hits(hashes), 0)
            began = time.monotonic()
            for _ in range(50):
                self.assertEqual(rank.hits(hashes), 0)
                self.assertEqual(rank.load(hashes, list(range(10))), 0)
                self.assertEqual(rank.backup(hashes, list(range(10))), 0)
                self.assertFalse(rank.storage.exists("x"))
                self.assertFalse(rank.storage.clear())
            self.assertLess(time.monotonic() - began, 60 * SLOW, "it is not asked at every step")
        self.assertEqual(
            len([r for r in logs.records if "(away" in r.getMessage()]), 1, "told once"
        )
        self.assertLess(rank.storage.troubles["away"], 8, "nor tried at every step")
        server.start()
        wait_until(lambda: rank.backup(hashes, [0] * 10) == 10, 60, "the pool is used again")
        self.assertEqual(rank.load(hashes, list(range(10, 20))), 10)
        self.assertTrue(all(rank.pool.holds(i, "page") for i in range(10, 20)))

    def test_an_engine_starts_before_the_pool(self):
        server = Server()
        self.addCleanup(server.stop)
        server.kill()
        with self.assertLogs("tarn.sglang", "WARNING"):
            extra = {
                "interface_v1": 1,
                "tarn": {"url": server.url, "client": {"retries": 0}},
            }
            rank = Controller(Config(extra_config=extra), MHATokenToKVPoolHost())
        self.addCleanup(rank.close)
        self.assertEqual(rank.hits(SGLangTest.hashes(3)), 0)
        server.start()
        wait_until(
            lambda: rank.backup(SGLangTest.hashes(3), [0, 1, 2]) == 3, 60, "the pool is used"
        )
        self.assertEqual(rank.hits(SGLangTest.hashes(3)), 3)

    def test_a_wrong_password_stops_the_start(self):
        with Server("64mb", "--requirepass", "secret") as server:
            config = Config(
                extra_config={"tarn": {"url": server.url, "client": {"password": "wrong"}}}
            )
            with self.assertRaises(tarn.PermissionDenied):
                TarnHiCache(config, {})


if __name__ == "__main__":
    unittest.main()
