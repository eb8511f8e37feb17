#!/usr/bin/env python3
"""Holds the rules of KV groups against vLLM's own: the same random caches, vLLM's coordinator and
PREFIXLEN KVGROUPS of a server that is started for it; and that vLLM's tables have a block for each
part that is read, and no other.

    tools/vllm-boundaries.py --vllm DIR [--cases N] [--seed N]

DIR: source of vLLM from July 2026 on, or where it is installed (the folder that has vllm/). Its
own files decide: the coordinator, the managers, the pool of blocks. torch and all else that they
import is stood in for, so nothing of it need be there. Run by hand; 1: a boundary or a part differs
and should not."""

import argparse
import math
import random
import sys
from collections import Counter

import engine_modules
from harness import Server

import tarn
from tarn.kv_groups import KVGroup

KINDS = {"full": "full", "mla": "full", "window": "window", "align": "state", "all": "state"}


class Case:
    """Groups, prompt and cache, drawn at random. groups: dictionaries of what both sides are told;
    there[i]: the ends of the parts of group i that are there."""

    def __init__(self, rng):
        self.hash = rng.choice((8, 16))
        self.groups = self._groups(rng)
        while all(g == self.groups[0] for g in self.groups):  # vLLM wants two kinds or more
            self.groups = self._groups(rng)
        self.eagle = rng.random() < 0.4
        flagged = [g for g in self.groups if self.eagle and rng.random() < 0.5]
        # Groups alike are looked up together.
        self.groups = [{**g, "eagle": g in flagged} for g in self.groups]
        # As HybridKVCacheCoordinator decides it.
        if self._partial(self.groups):
            self.align = self.hash
        else:
            self.align = math.lcm(*(g["block"] for g in self.groups))
        self.tokens = rng.randrange(self.align * 3, self.align * 3 + 400)
        self.there = [self._filled(rng, g) for g in self.groups]

    def _partial(self, groups):
        return any(g["kind"] == "align" and g["block"] > self.hash for g in groups)

    def _groups(self, rng):
        sizes = rng.choice(((1, 2, 4), (1, 3, 4), (1,), (2,)))
        kinds = rng.choice((("full", "mla", "window", "all"), ("full", "window", "align")))
        groups = []
        for _ in range(rng.randrange(2, 5)):
            kind, window = rng.choice(kinds), rng.randrange(2, 12 * self.hash)
            block = self.hash * rng.choice(sizes)
            groups.append({"kind": kind, "block": block, "window": window * (kind == "window")})
        for g in groups:
            # Windows take no boundary inside a block: vLLM refuses the combination.
            if g["kind"] == "window" and self._partial(groups):
                g["block"] = self.hash
        return groups

    def place(self, g):
        fine = self.align == self.hash < g["block"] and g["kind"] != "window"
        return self.hash if fine else g["block"]

    def _filled(self, rng, g):
        """Runs and holes; of unfinished blocks only a few places."""
        chance = rng.choice((0.6, 0.85, 0.95, 1.0))
        there, place = set(), self.place(g)
        for end in range(place, self.tokens + 1, place):
            few = 0.25 if end % g["block"] else 1
            if rng.random() < chance * few:
                there.add(end)
        return there

    @property
    def marked(self):
        """Which groups vLLM takes for ones that drop the last part: those that are flagged, or all
        if none is."""
        flagged = any(g["eagle"] for g in self.groups)
        return [self.eagle and (g["eagle"] or not flagged) for g in self.groups]

    @property
    def drops(self):
        """Which of them do: states never."""
        return [m and KINDS[g["kind"]] != "state" for m, g in zip(self.marked, self.groups)]

    def __str__(self):
        lines = [f"hashes of {self.hash}, boundaries of {self.align}, {self.tokens} tokens"]
        for g, drop, there in zip(self.groups, self.drops, self.there):
            lines.append(
                f"  {g['kind']:6} block {g['block']:3} place {self.place(g):3}"
                f" window {g['window']:3} drop {int(drop)} there {sorted(there)}"
            )
        return "\n".join(lines)


class Theirs:
    """vLLM's coordinator."""

    def __init__(self, folder):
        vllm = engine_modules.vllm_of(folder)
        self.coordinator = vllm.module("vllm.v1.core.kv_cache_coordinator")
        self.specs = vllm.module("vllm.v1.kv_cache_interface")
        self.utils = vllm.module("vllm.v1.core.kv_cache_utils")

    def spec(self, g):
        s, attention = self.specs, {"num_kv_heads": 1, "head_size": 8, "dtype": "bfloat16"}
        block = g["block"]
        if g["kind"] == "full":
            return s.FullAttentionSpec(block_size=block, **attention)
        if g["kind"] == "mla":
            return s.MLAAttentionSpec(block_size=block, **attention)
        if g["kind"] == "window":
            return s.SlidingWindowSpec(block_size=block, sliding_window=g["window"], **attention)
        return s.MambaSpec(
            block_size=block, shapes=((1,),), dtypes=("bfloat16",), mamba_cache_mode=g["kind"]
        )

    def made(self, case):
        """A coordinator with these groups."""
        groups = [
            self.specs.KVCacheGroupSpec([f"layer{i}"], self.spec(g), is_eagle_group=g["eagle"])
            for i, g in enumerate(case.groups)
        ]
        config = self.specs.KVCacheConfig(4096, [], groups)
        if not hasattr(config, "prefix_cache_retention_interval"):
            config.prefix_cache_retention_interval = None
        return engine_modules.known(
            self.coordinator.get_kv_cache_coordinator,
            kv_cache_config=config,
            max_model_len=1 << 20,
            max_num_batched_tokens=8192,
            max_in_flight_tokens=8192,
            use_eagle=case.eagle,
            enable_caching=True,
            enable_kv_cache_events=False,
            dcp_world_size=1,
            pcp_world_size=1,
            scheduler_block_size=math.lcm(*(g["block"] for g in case.groups)),
            hash_block_size=case.hash,
        )

    def answer(self, case):
        """(boundary, the ends of what is read of each group)."""
        found = self.made(case)
        hashes = [b"%032d" % i for i in range(case.tokens // case.hash)]
        pool, ends = found.block_pool, {}
        for i, there in enumerate(case.there):
            for end in there:
                block = pool.free_block_queue.popleft()
                name = self.utils.make_block_hash_with_group_id(hashes[end // case.hash - 1], i)
                pool.cached_block_hash_to_block.insert(name, block)
                ends[block.block_id] = end
        blocks, boundary = found.find_longest_cache_hit(hashes, case.tokens)[:2]
        return boundary, [
            sorted(ends[b.block_id] for b in group if not b.is_null) for group in blocks
        ]

    def given(self, case, boundary):
        """The numbers of the blocks that a request gets for a prefix that is loaded from outside,
        those of each group."""
        found = self.made(case)
        nothing = tuple([] for _ in case.groups)
        found.allocate_new_computed_blocks("request", nothing, 0, boundary)
        found.allocate_new_blocks("request", boundary + 1, boundary + 1)
        tables = [manager.req_to_blocks["request"] for manager in found.single_type_managers]
        return [
            [i for i, b in enumerate(table) if not b.is_null and i * g["block"] < boundary]
            for table, g in zip(tables, case.groups)
        ]


def keyed(hashes, case, i):
    """A part of group i for each place that is there."""
    return [f"kv{i}@{hashes[end // case.hash - 1].hex()}" for end in sorted(case.there[i])]


class Ours:
    """A server."""

    def __init__(self, client):
        self.client = client

    def answer(self, case):
        """As Theirs.answer."""
        self.client.command("FLUSHALL")
        hashes = [i.to_bytes(8, "big") for i in range(case.tokens // case.hash)]
        keys = [key for i in range(len(case.groups)) for key in keyed(hashes, case, i)]
        self.client.put_many([(key, b"x") for key in keys])
        groups = [
            KVGroup(f"kv{i}@", KINDS[g["kind"]], g["block"], case.place(g), g["window"], drop)
            for i, (g, drop) in enumerate(zip(case.groups, case.drops))
        ]
        found = self.client.kv_prefix(hashes, groups, unit=case.hash, align=case.align)
        return found.tokens, [list(p.ends(g.block)) for p, g in zip(found.parts, groups)]


def served(case, boundary):
    """Whether everything is there for this boundary, by definition: what the next token sees, and
    behind it what speculative decoding computes again."""
    for g, drop, there in zip(case.groups, case.drops, case.there):
        block, place = g["block"], case.place(g)
        if KINDS[g["kind"]] == "state":
            if boundary not in there:
                return False
            continue
        first = max(0, boundary - g["window"] + 1) if g["window"] else 0
        drop_tokens = (block if g["window"] else min(block, case.align)) if drop else 0
        last = boundary + drop_tokens
        for number in range(first // block, -(-last // block)):
            end = (number + 1) * block
            # A block is only ever appended to: a place behind the one in question will do.
            if not there.intersection(range(min(end, last), end + 1, place)):
                return False
    return True


def difference(case, theirs, ours):
    """ "", "ours is longer" or "theirs is longer" where the two may differ, or what is wrong."""
    if ours[0] and not served(case, ours[0]):
        return "WRONG: ours names a boundary that is not served"
    if ours[0] > theirs[0]:
        # vLLM trims a window twice when blocks, alignment and the dropped part meet, and looks for
        # unfinished blocks of a second full group only before the boundary.
        return "ours is longer"
    if ours[0] < theirs[0]:
        # vLLM looks at the part behind the boundary once for each group that is marked, and not
        # again when another of these has shortened the boundary.
        return "theirs is longer" if sum(case.marked) > 1 else "WRONG: ours is too short"
    for g, a, b in zip(case.groups, theirs[1], ours[1]):
        if KINDS[g["kind"]] == "full":
            # vLLM trims the blocks of the first full group only, and an unfinished block may be
            # read at any place behind the boundary.
            size = -(-ours[0] // g["block"])
            a, b = [[-(-end // g["block"]) for end in ends[:size]] for ends in (a, b)]
        if a != b:
            return "WRONG: other parts"
    return ""


def misplaced(case, theirs, ours):
    """What is wrong if vLLM has other blocks for what is read, or more; "" with boundaries inside
    of blocks, as such a prefix is not loaded from outside."""
    boundary, ends = ours
    if boundary == 0 or any(case.place(g) != g["block"] for g in case.groups):
        return ""
    read = [[end // g["block"] - 1 for end in each] for each, g in zip(ends, case.groups)]
    return "" if read == theirs.given(case, boundary) else "WRONG: other blocks in vLLM's tables"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--vllm", required=True, metavar="DIR")
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    theirs = Theirs(options.vllm)
    counts, hits = Counter(), 0
    with Server("64mb") as server, tarn.Client(server.url) as client:
        ours = Ours(client)
        for seed in range(options.seed, options.seed + options.cases):
            case = Case(random.Random(seed))
            answers = theirs.answer(case), ours.answer(case)
            what = difference(case, *answers)
            if not what.startswith("WRONG"):
                what = misplaced(case, theirs, answers[1]) or what
            counts[what] += 1
            hits += answers[1][0] > 0
            if what.startswith("WRONG"):
                print(f"seed {seed}: {what}\n{case}\n  vLLM {answers[0]}\n  ours {answers[1]}")
    same, wrong = counts.pop("", 0), sum(n for w, n in counts.items() if w.startswith("WRONG"))
    rest = "".join(f", {n} where {what}" for what, n in sorted(counts.items()))
    print(f"{options.cases} caches, {hits} with a hit: {same} alike{rest}")
    return 1 if wrong or not hits else 0


if __name__ == "__main__":
    sys.exit(main())
