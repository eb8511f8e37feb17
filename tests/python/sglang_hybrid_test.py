"""TarnHiCache with the host pools of hybrid models, called as SGLang's cache controller does:
the right prefix, and the right bytes of it."""

import ctypes
import itertools
import random
import unittest
from types import SimpleNamespace
from unittest import mock

from harness import TarnTest
from layouts import STATE, WINDOW
from scenes import EngineScenes, check, main_group, page_value
from sglang_test import Config, Slots, Transfer

from tarn.sglang import TarnHiCache
from tarn.sglang import base as sglang_base

PAGES = 80  # of a host pool; 16 tokens each is the smallest page there is


class BytePool:
    """A host pool whose pages are so many bytes, in pieces (layers) that lie apart."""

    def __init__(self, page_bytes, page_size, pieces=1, dtype="bfloat16", pages=PAGES, **others):
        self.page_size, self.dtype, self.layout = page_size, dtype, "layer_first"
        self.sizes = [page_bytes // pieces] * pieces
        self.sizes[-1] += page_bytes % pieces
        self.kv_buffer = [(ctypes.c_char * (pages * size))() for size in self.sizes]
        self.layer_num = pieces
        self.__dict__.update(others)

    def slots(self, pages):
        return Slots(p * self.page_size + i for p in pages for i in range(self.page_size))

    def get_page_buffer_meta(self, indices):
        pages = [slot // self.page_size for slot in indices.tolist()[:: self.page_size]]
        return (
            [
                ctypes.addressof(b) + p * n
                for p in pages
                for b, n in zip(self.kv_buffer, self.sizes)
            ],
            self.sizes * len(pages),
        )

    def write(self, page, value):
        at = 0
        for buffer, n in zip(self.kv_buffer, self.sizes):
            buffer[page * n : (page + 1) * n] = value[at : at + n]
            at += n

    def read(self, page):
        return b"".join(b[page * n : (page + 1) * n] for b, n in zip(self.kv_buffer, self.sizes))


class Rank:
    """One rank's storage and host pools."""

    def __init__(self, url, layout, rank):
        self.layout, self.rank, self.page = layout, rank, layout.align
        main = main_group(layout)
        latent = layout.groups[main].form == "latent"
        extra = {"interface_v1": 1, "tarn": {"url": url, "client": {"retries": 0}}}
        config = Config(
            tp_rank=rank,
            tp_size=layout.tp,
            is_mla_model=latent,
            # One model but for one pair, whose main pools are alike.
            model_name="toy-indexer" if layout.name == "mla-indexer" else "toy",
            extra_config=extra,
        )
        self.storage, self.writes = TarnHiCache(config, {}), not latent or rank == 0
        self.pools = {}
        kinds = {STATE: "mamba", WINDOW: "swa"}
        for i, group in enumerate(layout.groups):
            name = "kv" if i == main else kinds.get(group.kind, "indexer")
            assert name not in self.pools
            size = len(self.value(i, SimpleNamespace(states=_States(), known={}), self.page))
            tokens = 1 if group.kind == STATE else self.page
            pool = BytePool(size, tokens, group.layers, layout.dtype)
            self.pools[name] = (i, pool, self.trailing(group))
        self.storage.register_mem_pool_host(self.pools["kv"][1])
        for name, (_, pool, _) in self.pools.items():
            self.storage.register_mem_host_pool_v2(pool, name)

    def value(self, group, prompt, end):
        shard = self.layout.groups[group].shard_of(self.layout.tp, self.rank)
        return page_value(self.layout, group, shard, prompt, end, self.page)

    def trailing(self, group):
        """Pages before the end that are needed; 0: all."""
        if group.kind == STATE:
            return 1
        return -(-(group.window - 1) // self.page) if group.kind == WINDOW else 0

    def hashes(self, prompt):
        return [prompt.states[e].hex() for e in range(self.page, len(prompt) + 1, self.page)]

    def transfers(self, hashes):
        """As SGLang describes the pools beside the main one."""
        return [
            Transfer(
                name,
                hashes[len(hashes) - trailing :] if trailing else None,
                hit_policy="trailing_pages" if trailing else "all_pages",
            )
            for name, (_, _, trailing) in self.pools.items()
            if name != "kv"
        ]

    def store(self, prompt, pages):
        """A node of the tree that ends after `pages` pages: sidecars first, then keys and values,
        as SGLang does."""
        hashes = self.hashes(prompt)[:pages]
        transfers = []
        for name, (group, pool, trailing) in self.pools.items():
            first = max(0, pages - trailing) if trailing else 0
            for i in range(first, pages):
                pool.write(i, self.value(group, prompt, (i + 1) * self.page))
            slots = pool.slots(range(first, pages))
            if name != "kv" and (self.writes or name == "mamba"):
                transfers.append(Transfer(name, hashes[first:], slots))
        if transfers:
            self.storage.batch_set_v2(transfers)
        if self.writes:
            self.storage.batch_set_v1(hashes, self.pools["kv"][1].slots(range(pages)))

    def ends(self, prompt):
        hashes = self.hashes(prompt)
        found = self.storage.batch_exists_v2(hashes, self.transfers(hashes))
        ends = found.restorable_prefix_pages
        assert found.kv_hit_pages == max(ends, default=0)
        return ends

    def load(self, prompt, pages):
        """Whether all of it came; what came is right."""
        hashes, well = self.hashes(prompt)[:pages], True
        slots = self.pools["kv"][1].slots(range(pages))
        well &= self.checked("kv", prompt, 0, self.storage.batch_get_v1(hashes, slots))
        transfers = []
        for t in self.transfers(hashes):
            _, pool, trailing = self.pools[t.name]
            first = max(0, pages - trailing) if trailing else 0
            transfers.append(Transfer(t.name, hashes[first:], pool.slots(range(first, pages))))
        for name, flags in self.storage.batch_get_v2(transfers).items():
            well &= self.checked(name, prompt, pages - len(flags), flags)
        return well

    def checked(self, name, prompt, first, flags):
        group, pool, _ = self.pools[name]
        for i, flag in enumerate(flags, first):
            if flag:
                check(pool.read(i), self.value(group, prompt, (i + 1) * self.page), (name, i))
        return all(flags)


class _States:
    """Of a prompt that is only measured."""

    def __getitem__(self, token):
        return b"any"


class Engine:
    """All ranks of an engine. Nodes of the tree end after half of a prompt and at its end."""

    def __init__(self, url, layout):
        self.layout = layout
        self.ranks = [Rank(url, layout, rank) for rank in range(layout.tp)]

    def store(self, prompt):
        pages = len(prompt) // self.layout.align
        for rank in self.ranks:
            for end in sorted({max(1, pages // 2), pages}):
                rank.store(prompt, end)

    def load(self, prompt):
        ends = set.intersection(*(set(rank.ends(prompt)) for rank in self.ranks))
        pages = max(ends, default=0)
        if not pages or not all([rank.load(prompt, pages) for rank in self.ranks]):
            return 0
        return pages * self.layout.align

    def close(self):
        for rank in self.ranks:
            rank.storage.close()


class Scenes(EngineScenes, unittest.TestCase):
    def engine(self, url, layout):
        return Engine(url, layout)


class Prefix(TarnTest):
    """Which ends of a prefix can be used, against the definition."""

    def storage(self, tells=True, lease_ms=0, **config):
        if not tells:
            plain = type("Result", (), {"__init__": lambda s, *a: s.__dict__.update(found=a)})
            patched = mock.patch.object(sglang_base, "PoolTransferResult", plain)
            patched.start()
            self.addCleanup(patched.stop)
        options = {"url": self.server.url, "lookup_lease_ms": lease_ms}
        made = TarnHiCache(Config(extra_config={"interface_v1": 1, "tarn": options}, **config), {})
        self.addCleanup(made.close)
        return made

    def filled(self, there, storage, model):
        """Pages of each pool as `there` says: by name, numbers of pages."""
        hashes = [f"{model:032x}{i:032x}" for i in range(12)]
        for name, pages in there.items():
            pool = BytePool(128, 4)  # more than lies in the books
            if name == "kv":
                storage.register_mem_pool_host(pool)
            storage.register_mem_host_pool_v2(pool, name)
            if pages:
                keys, slots = [hashes[i] for i in pages], pool.slots(pages)
                self.assertTrue(all(storage.batch_set_v2([Transfer(name, keys, slots)])[name]))
        return hashes

    @staticmethod
    def right(there, needs, n):
        """By definition."""
        ends = []
        for end in range(1, n + 1):
            wanted = {
                name: range(max(0, end - trailing) if trailing else 0, end)
                for name, trailing in needs.items()
            }
            if all(set(pages) <= set(there[name]) for name, pages in wanted.items()):
                ends.append(end)
        return ends

    def test_every_end_and_the_longest(self):
        rng = random.Random(7)
        storage = self.storage()
        for n in range(60):
            there = {
                "kv": range(rng.randint(0, 12)),
                "indexer": range(rng.randint(6, 12)),
                "swa": [i for i in range(12) if rng.random() < 0.8],
                "mamba": [i for i in range(12) if rng.random() < 0.5],
            }
            needs = {"kv": 0, "indexer": 0, "swa": rng.randint(1, 3), "mamba": 1}
            for name in rng.sample(["indexer", "swa", "mamba"], rng.randint(0, 3)):
                del needs[name]
            hashes = self.filled(there, storage, n)
            transfers = [
                Transfer(
                    name,
                    hashes[-t:] if t else None,
                    hit_policy="trailing_pages" if t else "all_pages",
                )
                for name, t in needs.items()
                if name != "kv"
            ]
            found, right = storage.batch_exists_v2(hashes, transfers), self.right(there, needs, 12)
            self.assertEqual(found.restorable_prefix_pages, right, (n, needs, there))
            self.assertEqual(found.kv_hit_pages, max(right, default=0))
            self.assertEqual(set(found.extra_pool_hit_pages), set(needs) if right else set())

    def test_names_that_are_no_hashes(self):
        storage = self.storage()
        self.filled({"kv": [], "mamba": []}, storage, 0)
        keys = [f"page-{i}" for i in range(4)]
        for name in ("kv", "mamba"):
            slots = storage.registered_pools[name].slots(range(3))
            storage.batch_set_v2([Transfer(name, keys[:3], slots)])
        found = storage.batch_exists_v2(
            keys, [Transfer("mamba", keys[-1:], None, "trailing_pages")]
        )
        self.assertEqual(found.restorable_prefix_pages, [1, 2, 3])

    def requests(self, storage, work):
        client = storage._link.client()
        before = client.stats()["round_trips"]
        result = work()
        return client.stats()["round_trips"] - before, result

    def test_one_round_trip(self):
        there = {"kv": range(10), "indexer": range(9), "mamba": [3, 7]}
        for tells, trips in ((True, 2), (False, 1)):
            storage = self.storage(tells)
            hashes = self.filled(there, storage, int(tells))
            all_pools = [
                Transfer("indexer"),
                Transfer("mamba", hashes[-1:], hit_policy="trailing_pages"),
            ]
            took, found = self.requests(
                storage, lambda: storage.batch_exists_v2(hashes, all_pools, None)
            )
            self.assertEqual(took, trips)
            if not tells:
                self.assertEqual(found.found, (8, {"kv": 8, "indexer": 8, "mamba": 8}))
            took, _ = self.requests(storage, lambda: storage.batch_exists_v2(hashes, all_pools[:1]))
            self.assertEqual(took, 1)

    def test_several_pools_move_in_one_batch(self):
        storage = self.storage()
        hashes = self.filled({"kv": [], "indexer": [], "mamba": []}, storage, 3)
        transfers = [
            Transfer(n, hashes[:4], storage.registered_pools[n].slots(range(4)))
            for n in ("indexer", "mamba")
        ]
        storage.batch_set_v2(transfers)
        last = Transfer("indexer", hashes[8:], transfers[0].host_indices)
        one, _ = self.requests(storage, lambda: storage.batch_set_v2([last]))
        fresh = [Transfer(t.name, hashes[4:8], t.host_indices) for t in transfers]
        both, done = self.requests(storage, lambda: storage.batch_set_v2(fresh))
        self.assertEqual((both, done), (one, {"indexer": [True] * 4, "mamba": [True] * 4}))
        one, _ = self.requests(storage, lambda: storage.batch_get_v2(fresh[:1]))
        both, _ = self.requests(storage, lambda: storage.batch_get_v2(fresh))
        self.assertEqual(both, one)

    def test_a_lease_protects_what_will_be_read(self):
        self.client().command("FLUSHALL")
        there = {"kv": range(10), "indexer": range(10), "swa": range(12), "mamba": [3, 7]}
        for lease_ms, leased in ((0, 0), (60_000, 8 + 8 + 2 + 1)):
            storage = self.storage(lease_ms=lease_ms)
            hashes = self.filled(there, storage, 600)
            found = storage.batch_exists_v2(
                hashes,
                [
                    Transfer("indexer"),
                    Transfer("swa", hashes[-2:], None, "trailing_pages"),
                    Transfer("mamba", hashes[-1:], None, "trailing_pages"),
                ],
            )
            self.assertEqual(found.kv_hit_pages, 8)
            text = self.client().command("INFO", "everything")
            self.assertIn(f"\nleased_objects:{leased}\r", text)

    def test_parts_of_a_page_have_one_boundary(self):
        client = self.client()

        def boundaries(config, pages):
            client.command("FLUSHALL")
            for rank in range(config.get("tp_size", 1)):
                self.filled(pages, self.storage(tp_rank=rank, **config), 5)
            text = client.command("INFO", "everything")
            return int(text.split("\nboundaries:")[1].split()[0])

        pages = {"kv": range(4), "indexer": range(4), "mamba": [3]}
        self.assertEqual(boundaries({"tp_size": 2}, pages), 4)
        self.assertEqual(boundaries({}, pages), 4)
        self.assertEqual(boundaries({"tp_size": 2}, {"kv": range(5)}), 5)
        self.assertEqual(boundaries({}, {"kv": range(5)}), 0, "pages of one part need none")

    def test_wrong_slots_fail_their_own_pool_alone(self):
        storage = self.storage()
        hashes = self.filled({"kv": [], "indexer": [], "mamba": []}, storage, 4)
        pool = storage.registered_pools["indexer"]
        transfers = [
            Transfer("indexer", hashes[:4], pool.slots(range(4))),
            Transfer("mamba", hashes[:4], pool.slots(range(3))),
            Transfer("swa", hashes[:4], pool.slots(range(4))),
        ]
        with self.assertLogs("tarn.sglang", "WARNING"):
            done = storage.batch_set_v2(transfers)
        self.assertEqual(done, {"indexer": [True] * 4, "mamba": [False] * 4, "swa": [False] * 4})

    def test_a_pool_of_slots_alone_needs_nothing(self):
        storage = self.storage()
        hashes = self.filled({"kv": [], "swa": range(4, 6)}, storage, 5)
        slots = BytePool(64, 4)
        slots.kv_buffer = None
        storage.register_mem_pool_host(slots)
        found = storage.batch_exists_v2(
            hashes, [Transfer("swa", hashes[:2], None, "trailing_pages")]
        )
        self.assertEqual(found.restorable_prefix_pages, [6])


class Drafts(TarnTest):
    def storage(self, rank, args=None, **config):
        with mock.patch("tarn.sglang.base.server_args", lambda: SimpleNamespace(**(args or {}))):
            made = TarnHiCache(
                Config(
                    tp_rank=rank,
                    tp_size=2,
                    extra_config={"interface_v1": 1, "tarn": {"url": self.server.url}},
                    **config,
                ),
                {},
            )
        self.addCleanup(made.close)
        pools = {"kv": BytePool(96, 4), "draft": BytePool(64, 4, 2)}
        made.register_mem_pool_host(pools["kv"])
        for name, pool in pools.items():
            made.register_mem_host_pool_v2(pool, name)
        return made, pools

    def test_draft_pages_move_in_place_in_their_own_pool(self):
        hashes = [f"{i:064x}" for i in range(4)]
        draft = Transfer("draft")
        for latent in (False, True):
            self.client().command("FLUSHALL")
            ranks = [self.storage(r, is_mla_model=latent) for r in range(2)]
            for r, (storage, pools) in enumerate(ranks):
                if latent and r:
                    continue  # SGLang has rank 0 write
                for pool in pools.values():
                    for i in range(4):
                        pool.write(i, bytes([r + 1, i]) * (sum(pool.sizes) // 2))
                storage.batch_set_v2([Transfer("draft", hashes, pools["draft"].slots(range(4)))])
                storage.batch_set_v1(hashes, pools["kv"].slots(range(4)))
            for r, (storage, pools) in enumerate(ranks):
                self.assertEqual(storage.batch_exists_v2(hashes, [draft]).kv_hit_pages, 4)
                into = Transfer("draft", hashes, pools["draft"].slots(range(10, 14)))
                self.assertEqual(storage.batch_get_v2([into]), {"draft": [True] * 4})
                writer = 0 if latent else r
                for i in range(4):
                    self.assertEqual(pools["draft"].read(10 + i), bytes([writer + 1, i]) * 32)

    def test_layers_of_a_draft_behind_the_target_s(self):
        """Pools that hold both: the draft model is part of what a page is."""
        device = SimpleNamespace(layer_num=3, dtype="bfloat16")
        seen = set()
        for path, layers in itertools.product(("org/a", "org/b"), (3, 4)):
            storage, _ = self.storage(0, {"speculative_draft_model_path": path})
            pool = BytePool(96, 4, device_pool=device, layer_num=layers)
            storage.register_mem_pool_host(pool)
            seen.add((layers == 4 and path, storage._pools["kv"].prefixes[0]))
        self.assertEqual(len({name for _, name in seen}), 3)
        self.assertEqual(len(seen), 3)


class States(TarnTest):
    def name(self, **attributes):
        made = TarnHiCache(
            Config(extra_config={"interface_v1": 1, "tarn": {"url": self.server.url}}), {}
        )
        self.addCleanup(made.close)
        given = dict(
            temporal_dtype="torch.float32",
            temporal_state_shape=(4, 8),
            conv_dtype="torch.bfloat16",
            conv_state_shapes=[(3, 16)],
        )
        pool = BytePool(224, 1, **{**given, **attributes})
        made.register_mem_host_pool_v2(pool, "mamba")
        return made._pools["mamba"].prefixes[0]

    def test_what_a_state_is_made_of(self):
        """All of these are as many bytes."""
        names = [
            self.name(),
            self.name(temporal_dtype="torch.int32"),
            self.name(conv_dtype="torch.float16"),
            self.name(temporal_state_shape=(8, 4)),
            self.name(conv_state_shapes=[(6, 8)]),
            self.name(conv_state_shapes=[(3, 8), (3, 8)]),
        ]
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual(self.name(), names[0])

    def test_a_model_without_recurrent_states_has_an_empty_buffer(self):
        made = TarnHiCache(
            Config(extra_config={"interface_v1": 1, "tarn": {"url": self.server.url}}), {}
        )
        self.addCleanup(made.close)
        pool = BytePool(64, 1)
        pool.get_hybrid_pool_buffer = lambda: [bytearray(), *pool.kv_buffer]
        made.register_mem_host_pool_v2(pool, "mamba")
        keys = [f"{i:064x}" for i in range(2)]
        transfer = Transfer("mamba", keys, pool.slots(range(2)))
        self.assertEqual(made.batch_set_v2([transfer]), {"mamba": [True, True]})
        self.assertEqual(made.troubles, {})


if __name__ == "__main__":
    unittest.main()
