"""Guarantee 1 for hybrid models: equal keys, equal bytes. Engines are drawn at random, which differ
in anything that changes the bytes of a part, or in nothing; whatever two of them call by the same
name must be the same."""

import itertools
import logging
import random
import unittest
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

from groups_engine import GroupsEngine
from groups_model import layers_of
from harness import TarnTest
import identity_test
from layouts import STATE, WINDOW, Group, Layout

from tarn.keys import KeySpace
from tarn.vllm import TarnConnector
from tarn.vllm.requests import chain_of

# That a pool is registered twice, as these tests do, is said each time.
logging.getLogger("tarn.sglang").addHandler(logging.NullHandler())

# What an engine's configuration may say: (where, values). The first is what it says by default.
OPTIONS = [
    ("model_config.model", ("toy/one", "toy/two")),
    ("model_config.code_revision", (None, "abc")),
    ("model_config.quantization", (None, "fp8", "awq")),
    ("model_config.dtype", ("torch.bfloat16", "torch.float16")),
    ("model_config.hf_overrides", (None, {"rope_theta": 5e5})),
    ("cache_config.mamba_ssm_cache_dtype", (None, "float32")),
    ("cache_config.cache_dtype", ("auto", "fp8_e4m3", "fp8_e5m2")),
    ("model_config.quantization_param_path", (None, "/scales.json")),
    ("speculative_config.model", (None, "org/eagle-1", "org/eagle-2")),
]
GROUPS = [
    Group(block=16),
    Group(block=32),
    Group(block=16, layers=3),
    Group(block=16, heads=8),
    Group(block=16, cell=16),
    Group(WINDOW, block=16, window=40),
    Group(WINDOW, block=16, window=41),
    Group(block=16, form="latent"),
    Group(STATE, block=32, form="recurrent", cell=240),
    Group(STATE, block=32, form="recurrent", cell=480),
    Group(STATE, block=16, form="recurrent", cell=240),
]
FILLER = Group(WINDOW, block=16, window=99)


class World:
    """An engine: its KV groups and the layers in them, its ranks, its configuration."""

    def __init__(self, rng):
        self.groups = tuple(rng.sample(GROUPS, rng.randrange(1, 3))) + (FILLER,)
        self.tp, self.shift = rng.choice((1, 2, 4)), rng.randrange(2)
        self.said = {where: rng.choice(values) for where, values in OPTIONS}

    def neighbour(self, rng):
        """One that differs in one thing."""
        other = World(rng)
        what = rng.choice(["groups"] * 6 + ["tp", "shift", *self.said])
        if what in self.said:
            other.said = {**self.said, what: other.said[what]}
        else:
            other.said = dict(self.said)
        if what == "groups":
            at = rng.randrange(len(self.groups) - 1)
            rest = [g for g in GROUPS if g not in self.groups]
            other.groups = (*self.groups[:at], rng.choice(rest), *self.groups[at + 1 :])
        else:
            other.groups = self.groups
        other.tp = other.tp if what == "tp" else self.tp
        other.shift = other.shift if what == "shift" else self.shift
        return other

    def layers_of(self, number, group):
        """Which layers of the model they are differs, too."""
        return layers_of(number + 3 * self.shift, group)

    def meaning(self, number, rank):
        """All that decides the bytes of this rank's part of a group, and how they are arranged."""
        group = self.groups[number]
        heads = group.heads_of(self.tp, group.shard_of(self.tp, rank))
        mine = {
            "heads": (group.heads, heads.start, heads.stop),
            "latent": None,
            "recurrent": (self.tp, rank),
        }[group.form]
        said = dict(self.said)
        if not said["cache_config.cache_dtype"].startswith("fp8"):
            said["model_config.quantization_param_path"] = None  # scales of what is not scaled
        return (
            tuple(str(value) for value in said.values()),
            replace(group, heads=0),
            tuple(self.layers_of(number, group)),
            mine,
        )


class Named(GroupsEngine):
    world = None

    def config(self, rank):
        config = super().config(rank)
        config.model_config.hf_text_config = None
        draft = self.world.said["speculative_config.model"]
        config.speculative_config = draft and SimpleNamespace(
            method="eagle", model=draft, use_eagle=lambda: False
        )
        for where, value in self.world.said.items():
            if not where.startswith("speculative"):
                identity_test.changed(config, where, value)
        return config


class Vllm(TarnTest):
    def names(self, world):
        """(key, meaning) of each rank's part of each group."""
        kind = type("NamedOnce", (Named,), {"world": world})
        layout = Layout("toy", world.groups, tp=world.tp)
        with mock.patch("groups_model.layers_of", world.layers_of):
            engine = kind(self.server.url, TarnConnector, layout, blocks=4)
        try:
            for rank, worker in enumerate(engine.workers):
                for number, space in enumerate(worker.connector._worker._spaces):
                    yield space.key(b"\7" * 32), world.meaning(number, rank)
        finally:
            engine.close()

    def test_equal_keys_mean_equal_bytes(self):
        rng = random.Random(16)
        means, again, parted = {}, 0, 0
        for _ in range(40):
            world = World(rng)
            for engine in (world, *(world.neighbour(rng) for _ in range(6))):
                for key, meaning in self.names(engine):
                    again += key in means
                    parted += key not in means
                    self.assertEqual(means.setdefault(key, meaning), meaning, key)
        # Engines that differ elsewhere share, too.
        self.assertGreater(again, 200)
        self.assertGreater(parted, 400)

    def test_every_option_parts(self):
        """By itself, of any engine."""
        rng = random.Random(17)
        world = World(rng)
        world.groups, world.tp = GROUPS[:1] + [FILLER], 2
        world.said["cache_config.cache_dtype"] = "fp8_e4m3"  # one that has scales
        for where, values in OPTIONS:
            seen, kept = set(), world.said[where]
            for value in values:
                world.said[where] = value
                seen.add(next(self.names(world))[0])
            self.assertEqual(len(seen), len(values), where)
            world.said[where] = kept


def drawn(rng, lines):
    """Some of a connector's lines of identity_test, together: dictionaries with what they say."""
    said = [{} for _ in lines[0][1:]]
    for _, *given in rng.sample(lines, rng.randrange(4)):
        for all_of_it, one in zip(said, given):
            all_of_it.update(one)
    return said


class Others(TarnTest):
    """The connectors that get names from their engines: several options at a time."""

    cache = identity_test.SGLang.cache
    manager = identity_test.Offload.manager
    connector = identity_test.LMCache.connector

    def check(self, draw):
        """draw(): (key, meaning)."""
        keys, means = {}, {}
        for _ in range(120):
            key, meaning = draw()
            self.assertEqual(keys.setdefault(key, repr(meaning)), repr(meaning))
            self.assertEqual(means.setdefault(repr(meaning), key), key)
        self.assertTrue(15 < len(keys) < 120, len(keys))

    def test_sglang_s_pools(self):
        rng = random.Random(19)
        lines = [line for line in identity_test.SGLANG if line[0] not in ("draft", "format")]

        def draw():
            args, config, pool = drawn(rng, lines)
            name = rng.choice(("mamba", "swa", "indexer"))
            cache, _ = self.cache(args, config, pool, name=name)
            [key] = cache._pools[name].keys(["h"])
            return key, [name, *(sorted(said.items()) for said in (args, config, pool))]

        self.check(draw)

    def test_the_offloading_tier(self):
        rng = random.Random(20)
        lines = [line for line in identity_test.OFFLOAD if line[0] not in ("sharing", "canonical")]

        def draw():
            (changes,) = drawn(rng, lines)
            number = rng.randrange(2)
            of = identity_test.spec()
            for path, value in changes.items():
                where = of if path.startswith("spec.") else of.config
                identity_test.changed(where, path.removeprefix("spec."), value)
            found = identity_test.offload.facts_of(of, 4096)
            return (identity_test.digest(found), number), (number, sorted(changes.items()))

        self.check(draw)

    def test_lmcache(self):
        rng = random.Random(21)
        formats = mock.patch.object(identity_test._base, "MemoryFormat", identity_test.MemoryFormat)
        with formats:
            self.check(lambda: self._lmcache(rng))

    def _lmcache(self, rng):
        config, metadata = drawn(rng, identity_test.LMCACHE)
        found = self.connector(config, metadata)
        return found._suffix, (sorted(config.items()), sorted(map(str, metadata.items())))


class Hashes(unittest.TestCase):
    def test_equal_hashes_mean_equal_prompts(self):
        seen = {}
        for tokens, unit, revision, lora, salt, media in itertools.product(
            ([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 4, 3]),
            (2, 4),
            ("", "a"),
            (None, "a", "b"),
            (None, "", "a"),
            ((), (("a", 0, 1),), (("a", 1, 1),), (("a", 0, 2),)),
        ):
            request = SimpleNamespace(
                prompt_token_ids=tokens,
                prompt_embeds=None,
                lora_request=lora and SimpleNamespace(lora_name=lora),
                cache_salt=salt,
                mm_features=[
                    SimpleNamespace(
                        identifier=name, mm_position=SimpleNamespace(offset=at, length=length)
                    )
                    for name, at, length in media
                ],
            )
            chain = chain_of(request, unit, revision)
            chain.extend(tokens)
            for i, name in enumerate(chain.hashes):
                end = (i + 1) * unit
                within = tuple(m for m in media if m[1] < end)
                meaning = (tokens[:end], unit, revision, lora, salt, within)
                self.assertEqual(seen.setdefault(name, meaning), meaning)
        self.assertGreater(len(seen), 300)


class Spaces(unittest.TestCase):
    def test_no_key_of_one_is_a_key_of_another(self):
        rng = random.Random(18)
        words = ["a", "a@b", "a%40b", "kv1", "a@kv1", "a@l0", "@", "%"]
        seen = {}
        for _ in range(20_000):
            shards, stages = rng.choice((1, 2)), rng.choice((1, 2))
            space = KeySpace(
                rng.choice(words),
                rng.choice(words),
                rng.choice(words),
                rng.choice((1, 16)),
                shards,
                rng.randrange(shards),
                stages,
                rng.randrange(stages),
                kv_group=rng.choice((None, 0, 1, 11)),
            )
            digest = bytes([rng.randrange(2)]) * rng.choice((1, 2))
            which = rng.choice(({}, {"layer": rng.choice(words)}, {"group": rng.randrange(2)}))
            key = space.key(digest, **which)
            meaning = (space, digest, which)
            self.assertEqual(seen.setdefault(key, meaning), meaning)
            found = KeySpace.parse(key)
            self.assertEqual((found.space, found.hash), (space, digest))
        self.assertGreater(len(seen), 10_000)


if __name__ == "__main__":
    unittest.main()
