"""Guarantee 1 among engines: two that differ in one option which changes the bytes of blocks do not
read each other's, and two that differ in what does not change them share. Every fact of
tarn.identity has its lines here, by connector."""

import asyncio
import sys
import types
import unittest
from dataclasses import fields, replace
from types import SimpleNamespace
from unittest import mock

from harness import TarnTest
from lmcache_stubs import Backend, Config as LMConfig, FLOAT8, Key, MemoryFormat, Metadata
from sglang_test import Config as SGConfig, HostPool, MLATokenToKVPoolHost
from vllm_engine import Engine
from vllm_offload_test import Manager, key, request, spec

import tarn
from tarn.identity import Facts, digest, plain
from tarn.lmcache import TarnConnector as LMCacheConnector, _base
from tarn.sglang import TarnHiCache
from tarn.vllm import TarnConnector
from tarn import vllm_ascend
from tarn.vllm import offload


def changed(config, path, value):
    """The config with something else at "model_config.quantization" and the like."""
    *parts, last = path.split(".")
    for part in parts:
        config = getattr(config, part)
    setattr(config, last, value)


class Digest(unittest.TestCase):
    def test_each_fact_counts(self):
        seen = {digest(Facts())}
        for field in fields(Facts):
            for value in ("x", "y", 1, ["x"], {"x": 1}):
                seen.add(digest(replace(Facts(), **{field.name: value})))
        self.assertEqual(len(seen), 1 + 5 * len(fields(Facts)))

    def test_none_is_nothing_and_others_are_told_apart(self):
        self.assertNotEqual(digest(Facts(weights="")), digest(Facts()))
        self.assertNotEqual(digest(Facts(layers=1)), digest(Facts(layers="1")))
        self.assertNotEqual(digest(Facts(layers=[1, 2])), digest(Facts(layers=["1, 2"])))
        self.assertEqual(
            digest(Facts(overrides={"a": 1, "b": 2})), digest(Facts(overrides={"b": 2, "a": 1}))
        )

    def test_nothing_of_a_process_gets_in(self):
        class Thing:
            pass

        self.assertEqual(
            plain([len, test_function, {2: (1, None)}, {"b", "a"}])[:2], ["len", "test_function"]
        )
        self.assertNotIn(" at 0x", str(plain({"f": lambda x: x})))
        self.assertEqual(digest(Facts(others=Thing)), digest(Facts(others=Thing)))

    def test_every_fact_has_its_lines(self):
        told = set()
        for lines in (VLLM, VLLM_DEEP, OFFLOAD, SGLANG, LMCACHE):
            told |= {fact for fact, *_ in lines}
        self.assertEqual(told, {f.name for f in fields(Facts)})


def test_function():
    pass


# (fact, where in the VllmConfig, value)
VLLM = [
    ("revision", "model_config.code_revision", "abc"),
    ("weights", "model_config.quantization", "fp8"),
    ("model_dtype", "model_config.dtype", "torch.float16"),
    ("cache_dtype", "cache_config.cache_dtype", "fp8_e5m2"),
    ("cache_dtype", "cache_config.mamba_ssm_cache_dtype", "float32"),
    ("overrides", "model_config.hf_overrides", {"rope_theta": 5e5}),
    ("overrides", "model_config.rope_scaling", {"rope_type": "yarn", "factor": 4}),
    ("draft", "speculative_config", SimpleNamespace(method="eagle", model="org/eagle-1")),
    ("layers", "model_config.hf_text_config", SimpleNamespace(num_hidden_layers=7)),
    ("layout", "", "2BHND"),
    ("block_tokens", "cache_config.block_size", 8),
]
# of engines with another start: (fact, what both have, where, value)
VLLM_DEEP = [
    ("scales", [("cache_config.cache_dtype", "fp8")], "cache_config.calculate_kv_scales", True),
    (
        "scales",
        [("cache_config.cache_dtype", "fp8")],
        "model_config.quantization_param_path",
        "/scales.json",
    ),
    (
        "positions",
        [("model_config.hf_text_config", SimpleNamespace(rope_scaling={"type": "longrope"}))],
        "model_config.max_model_len",
        1 << 17,
    ),
    (
        "draft",
        [("speculative_config", SimpleNamespace(method="eagle", model="org/eagle-1"))],
        "speculative_config",
        SimpleNamespace(method="eagle", model="org/eagle-2"),
    ),
    (
        "interleave",
        [("parallel_config.decode_context_parallel_size", 2)],
        "parallel_config.cp_kv_cache_interleave_size",
        16,
    ),
]
VLLM_SHARED = [
    ("kv_transfer_config.engine_id", "another"),
    ("model_config.max_model_len", 4096),
    ("cache_config.num_gpu_blocks_override", 99),
    ("speculative_config", SimpleNamespace(method="ngram", num_speculative_tokens=3)),
    ("parallel_config.cp_kv_cache_interleave_size", 16),
    ("scheduler_config", SimpleNamespace(max_num_seqs=7)),
]


class Vllm(TarnTest):
    def names(self, *changes, form="2BNHD", pp=1):
        """What the worker calls a block, and what the scheduler looks for."""

        class Changed(Engine):
            def config(self, rank):
                config = super().config(rank)
                for path, value in changes:
                    if path == "cache_config.block_size":
                        continue
                    changed(config, path, value)
                return config

        size = dict(changes).get("cache_config.block_size", 4)
        engine = Changed(
            self.server.url, TarnConnector, form=form, block_tokens=size, pp=pp, layers=4
        )
        try:
            of_worker = engine.workers[0].connector._worker._space.key(b"\7" * 32)
            of_scheduler, _ = engine.connector._scheduler._space.lookup_keys([b"\7" * 32])
            self.assertEqual(of_worker, of_scheduler[0])
            return of_worker
        finally:
            engine.close()

    def test_options_that_part(self):
        base = self.names()
        self.assertEqual(self.names(), base)
        seen = {base}
        for fact, path, value in VLLM:
            name = self.names((path, value)) if fact != "layout" else self.names(form=value)
            self.assertNotIn(name, seen, f"{fact}: {path}")
            seen.add(name)
        for fact, both, path, value in VLLM_DEEP:
            self.assertNotEqual(
                self.names(*both), self.names(*both, (path, value)), f"{fact}: {path}"
            )

    def test_scales_of_its_own_are_each_engine_s(self):
        fp8 = [("cache_config.cache_dtype", "fp8"), ("cache_config.calculate_kv_scales", True)]
        a, b = (self.names(*fp8, ("kv_transfer_config.engine_id", name)) for name in "ab")
        self.assertNotEqual(a, b)

    def test_options_that_do_not_part(self):
        base = self.names()
        for path, value in VLLM_SHARED:
            self.assertEqual(self.names((path, value)), base, path)
        deep = [
            (
                "model_config.hf_text_config",
                SimpleNamespace(num_hidden_layers=3, rope_scaling={"type": "yarn"}),
            )
        ]
        self.assertEqual(self.names(*deep), self.names(*deep, ("model_config.max_model_len", 9)))

    def test_environment_and_platform(self):
        base = self.names()
        with mock.patch.dict("os.environ", {"VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"}):
            self.assertNotEqual(self.names(), base)
        with mock.patch.dict("os.environ", {"VLLM_PP_LAYER_PARTITION": "1,2"}):
            self.assertEqual(self.names(), base, "one stage: no effect")
        stages = set()
        for partition in ("1,3", "2,2"):
            with mock.patch.dict("os.environ", {"VLLM_PP_LAYER_PARTITION": partition}):
                stages.add(self.names(pp=2))
        self.assertEqual(len(stages), 2)
        platforms = types.ModuleType("vllm.platforms")
        platforms.current_platform = SimpleNamespace(device_type="cpu")
        with mock.patch.dict(
            sys.modules, {"vllm": types.ModuleType("vllm"), "vllm.platforms": platforms}
        ):
            self.assertNotEqual(self.names(), base)

    def test_equal_sizes_in_another_order(self):
        """As many tokens as heads, and the axis of the heads not known: strides alone tell the
        layouts apart."""
        from vllm_model import Layer
        from tarn.vllm import tensors

        a, b = (
            tensors.view_of("x", Layer(form, 3, 4, 4).tensor, 3, 0) for form in ("2BNHD", "2BHND")
        )
        self.assertNotEqual(a.layout(4), b.layout(4))


class Ascend(TarnTest):
    def test_what_the_config_says_is_in_the_names(self):
        class Base:
            def __init__(self, vllm_config, role):
                self.backend = vllm_ascend.TarnBackend(
                    SimpleNamespace(rank=0), options={"url": vllm_config.url}
                )

        made = vllm_ascend.noting(Base)
        self.addCleanup(setattr, vllm_ascend.facts, "_facts", None)
        engine = Engine(self.server.url, TarnConnector)
        self.addCleanup(engine.close)

        def backend(*changes):
            config = engine.config(0)
            config.url = self.server.url
            for path, value in changes:
                changed(config, path, value)
            found = made(config, None).backend
            self.addCleanup(found.close)
            return found

        data = bytearray(64)
        address = tarn.memory.pin(data, writable=True).address
        backend().put(["m@tp_rank:0@77"], [[address]], [[64]])
        self.assertEqual(backend().exists(["m@tp_rank:0@77"]), [1])
        for fact, path, value in VLLM:
            if fact not in ("layout", "block_tokens"):
                self.assertEqual(
                    backend((path, value)).exists(["m@tp_rank:0@77"]), [0], f"{fact}: {path}"
                )
        for path, value in VLLM_SHARED:
            self.assertEqual(backend((path, value)).exists(["m@tp_rank:0@77"]), [1], path)


# (fact, what the spec of one engine has that the other's has not)
OFFLOAD = [
    ("cache_dtype", {"model.dtype": "float16"}),
    ("tokens_per_hash", {"cache.tokens_per_hash": 32}),
    ("blocks_per_chunk", {"cache.blocks_per_chunk": 4}),
    ("groups", {"groups": (SimpleNamespace(tokens_per_block=32, layer_names=("a", "b")),)}),
    ("groups", {"groups": (SimpleNamespace(tokens_per_block=16, layer_names=("b", "a")),)}),
    (
        "groups",
        {"groups": (SimpleNamespace(tokens_per_block=16, layer_names=("a", "b", "draft")),)},
    ),
    ("layout", {"kv_cache_layout": "HND"}),
    ("canonical", {"canonical_layout": True}),
    ("canonical", {"canonical_layout": True, "kv_cache_layout": "HND"}),
    ("storage", {"spec.storage_format": "zstd"}),
    ("parallel", {"parallel.tp_size": 4}),
    ("parallel", {"parallel.pp_size": 2}),
    ("parallel", {"parallel.pcp_size": 2}),
    ("parallel", {"parallel.dcp_size": 2}),
    ("sharing", {"parallel.is_parallelism_agnostic": True}),
    ("sharing", {"replicated_layout": True}),
    ("others", {"page_layout_version": 2}),
    ("others", {"cache.kv_quant_mode": "per_token_head"}),
]
OFFLOAD_SHARED = [
    {"engine_id": "another"},
    {"parallel.rank": 1},
    {"parallel.data_parallel_index": 3},
    {"num_cpu_blocks": 77},
    {"enable_kv_cache_events": True},
    {"canonical_layout": False},
    {"replicated_layout": False},
    {"spec.storage_format": None},
]
SIZES = ("tp_size", "pp_size", "pcp_size", "dcp_size")


class Offload(TarnTest):
    def manager(self, changes=(), **options):
        of = spec()
        for path, value in dict(changes).items():
            changed(
                of if path.startswith("spec.") else of.config, path.removeprefix("spec."), value
            )
        m = Manager(of=of, url=self.server.url, **options)
        self.addCleanup(m.close)
        return m

    def stored(self, changes=()):
        m = self.manager(changes)
        keys = [key(i) for i in range(2)]
        m.store(keys, request("w"))
        m.settle()
        return keys

    def test_options_that_part(self):
        keys = self.stored()
        self.assertEqual(self.manager().find(keys), 2)
        for fact, changes in OFFLOAD:
            self.assertEqual(self.manager(changes).find(keys), 0, f"{fact}: {changes}")

    def test_canonical_blocks_are_read_by_canonical_engines_of_the_same_layout_only(self):
        canonical = {"canonical_layout": True, "kv_cache_layout": "NHD"}
        keys = self.stored(canonical)
        self.assertEqual(self.manager(canonical).find(keys), 2)
        for others in ({}, {"kv_cache_layout": "NHD"}, {**canonical, "kv_cache_layout": "HND"}):
            self.assertEqual(self.manager(others).find(keys), 0, others)
        with mock.patch.object(offload, "optional", lambda *names: (2,)):
            self.assertEqual(
                self.manager(canonical).find(keys), 0, "a later version of that format"
            )

    def test_options_that_do_not_part(self):
        keys = self.stored()
        for changes in OFFLOAD_SHARED:
            self.assertEqual(self.manager(changes).find(keys), 2, changes)

    def test_sizes_do_not_count_where_blocks_are_the_same_for_all(self):
        for same in ({"parallel.is_parallelism_agnostic": True}, {"replicated_layout": True}):
            keys = self.stored(same)
            for size in SIZES:
                self.assertEqual(
                    self.manager({**same, f"parallel.{size}": 8}).find(keys), 2, (same, size)
                )
            client = self.client()
            client.command("FLUSHALL")

    def test_bytes_of_a_block(self):
        a = offload.facts_of(spec(), 4096)
        self.assertNotEqual(digest(a), digest(offload.facts_of(spec(), 8192)))


OFFLOAD.append(("block_bytes", {"cache.blocks_per_chunk": 2}))


# (fact, options of SGLang, fields of the storage's configuration, attributes of the host pool)
SGLANG = [
    ("revision", {"revision": "abc"}, {}, {}),
    ("weights", {"quantization": "w8a8"}, {}, {}),
    ("weights", {}, {"model_identity_hash": "77"}, {}),
    ("model_dtype", {"dtype": "float16"}, {}, {}),
    ("cache_dtype", {"kv_cache_dtype": "fp8_e5m2"}, {}, {}),
    ("scales", {"quantization_param_path": "/scales.json"}, {}, {}),
    ("overrides", {"json_model_override_args": '{"rope_theta": 5}'}, {}, {}),
    ("platform", {"device": "npu"}, {}, {}),
    ("block_tokens", {}, {}, {"page_size": 8}),
    ("layers", {}, {}, {"layer_num": 4}),
    ("layers", {}, {}, {"start_layer": 2, "end_layer": 5}),
    ("layers", {}, {}, {"start_layer": 3, "end_layer": 6}),
    ("format", {}, {}, {"device_pool": SimpleNamespace(dtype="bfloat16"), "dtype": "int8"}),
    ("shape", {}, {}, {"temporal_dtype": "float32", "conv_dtype": "bfloat16"}),
    ("shape", {}, {}, {"temporal_dtype": "bfloat16", "conv_dtype": "float32"}),
    ("draft", {"speculative_draft_model_path": "org/a"}, {}, {"device_buffers": []}),
]


class SGLang(TarnTest):
    def cache(self, args=None, config=None, pool=None, name=None, made=HostPool):
        given = SGConfig(extra_config={"interface_v1": 1, "tarn": {"url": self.server.url}})
        for field, value in (config or {}).items():
            setattr(given, field, value)
        options = SimpleNamespace(device="cuda", dtype="auto", kv_cache_dtype="auto", **{})
        for field, value in (args or {}).items():
            setattr(options, field, value)
        with mock.patch("tarn.sglang.base.server_args", lambda: options):
            cache = TarnHiCache(given, {})
        self.addCleanup(cache.close)
        host = made(page_size=(pool or {}).get("page_size", 4))
        for field, value in (pool or {}).items():
            setattr(host, field, value)
        cache.register_mem_pool_host(host)
        if name is not None:
            cache.register_mem_host_pool_v2(host, name)
        return cache, host

    def test_options_that_part(self):
        cache, pool = self.cache()
        pool.fill(0, "a")
        self.assertEqual(cache.batch_set_v1(["h1"], pool.slots([0])), [True])
        again, pool = self.cache()
        self.assertEqual(again.batch_exists(["h1"]), 1)
        self.assertEqual(
            (again.batch_get_v1(["h1"], pool.slots([3])), pool.holds(3, "a")), ([True], True)
        )
        seen = set()
        for fact, args, config, pools in SGLANG:
            other, _ = self.cache(args, config, pools)
            self.assertEqual(other.batch_exists(["h1"]), 0, f"{fact}: {args} {config} {pools}")
            [name] = other._pools["kv"].keys(["h1"])
            self.assertNotIn(name, seen)
            seen.add(name)

    def test_options_that_do_not_part(self):
        cache, pool = self.cache()
        pool.fill(0, "a")
        cache.batch_set_v1(["h1"], pool.slots([0]))
        for args, config in (
            ({"max_running_requests": 7}, {}),
            ({"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "org/draft"}, {}),
            ({}, {"enable_storage_metrics": True}),
        ):
            self.assertEqual(self.cache(args, config)[0].batch_exists(["h1"]), 1, (args, config))
        latent, pool = self.cache(
            config={"is_mla_model": True, "tp_size": 2}, made=MLATokenToKVPoolHost
        )
        latent.batch_set_v1(["h2"], pool.slots([0]))
        other, _ = self.cache(
            config={"is_mla_model": True, "tp_size": 4, "tp_rank": 3}, made=MLATokenToKVPoolHost
        )
        self.assertEqual(other.batch_exists(["h2"]), 1)

    def test_layers_of_a_draft_model_are_that_model_s(self):
        def names(**args):
            cache, _ = self.cache(args, name="draft")
            return cache._pools["draft"].keys(["h"]), cache._pools["kv"].keys(["h"])

        a, b = names(speculative_draft_model_path="org/a"), names(
            speculative_draft_model_path="org/b"
        )
        self.assertNotEqual(a[0], b[0])
        self.assertEqual(a[1], b[1])
        # as tensors, under the target's key
        a, b = (
            self.cache({"speculative_draft_model_path": path})[0] for path in ("org/a", "org/b")
        )
        self.assertTrue(a.set("h.draft", b"page of a"))
        self.assertIsNone(b.get("h.draft", bytearray(9)))
        self.assertTrue(b.set("h.draft", b"page of b"))
        self.assertEqual(
            [c.get("h.draft", bytearray(9)) for c in (a, b)], [b"page of a", b"page of b"]
        )

    def test_adapters_cannot_be_told_apart(self):
        with self.assertRaisesRegex(tarn.InvalidArgument, "LoRA"):
            self.cache({"enable_lora": True})


# (fact, fields of LMCache's configuration, of its metadata)
LMCACHE = [
    ("storage", {"remote_serde": "cachegen"}, {}),
    ("storage", {"remote_serde": "kivi"}, {}),
    ("blending", {"enable_blending": True}, {}),
    ("format", {}, {"use_mla": True}),
    ("shape", {}, {"layers": 5}),
    ("shape", {}, {"hidden": 128}),
    ("cache_dtype", {}, {"dtype": FLOAT8}),
]


class LMCache(TarnTest):
    def setUp(self):
        formats, _base.MemoryFormat = _base.MemoryFormat, MemoryFormat
        self.addCleanup(setattr, _base, "MemoryFormat", formats)

    def connector(self, config=None, metadata=None, extra=None, **options):
        given = LMConfig(**(extra or {}))
        for field, value in (config or {}).items():
            setattr(given, field, value)
        found = LMCacheConnector(
            self.server.url, None, Backend(), given, Metadata(**(metadata or {})), **options
        )
        self.addCleanup(lambda: asyncio.run(found.close()))
        return found

    def stored(self, n):
        connector, chunk = self.connector(), Metadata().chunk(Backend(), 5)
        asyncio.run(connector.put(Key(n), chunk))
        self.assertTrue(connector.exists_sync(Key(n)))
        return Key(n)

    def test_options_that_part(self):
        name = self.stored(1)
        for fact, config, metadata in LMCACHE:
            other = self.connector(config, metadata)
            self.assertFalse(other.exists_sync(name), f"{fact}: {config} {metadata}")
            self.assertEqual(asyncio.run(other.batched_get([name])), [None])
        self.assertFalse(self.connector(namespace="team").exists_sync(name))

    def test_options_that_do_not_part(self):
        name = self.stored(2)
        for config, metadata, options in (
            ({}, {"tokens": 256}, {}),
            ({"remote_serde": None}, {}, {}),
            ({"chunk_size": 256, "local_cpu": True}, {}, {}),
            ({}, {}, {"get_threads": 1, "pin_ms": 7}),
        ):
            self.assertTrue(
                self.connector(config, metadata, **options).exists_sync(name),
                (config, metadata, options),
            )


if __name__ == "__main__":
    unittest.main()
