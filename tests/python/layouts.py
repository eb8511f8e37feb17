"""Ten layouts of KV cache, as data: what engines keep for hybrid models, and the right bytes of it.

    from layouts import LAYOUTS, Prompt

    for layout in LAYOUTS:                  # the ten; TP 1, 2 and 4 are three of the same kind
        for i, group in enumerate(layout.groups):
            for shard in range(group.shards(layout.tp)):
                for end in layout.stored(i, len(prompt)):
                    layout.value(prompt, i, shard, end)

Every byte follows from the model, the KV group, the layer, the head, keys or values, the token, and
all tokens before it. A part that is mixed up with any other one has other bytes. Ranks that hold
the same heads hold the same bytes; such a distinct part is a shard, as in tarn.keys.

A layout knows by itself what a boundary needs (`needed`, `boundary`), from the definition and
token by token, so that tests have something to hold against what the pool answers."""

import hashlib
import math
import random
from dataclasses import dataclass, replace
from typing import Tuple

import harness  # for the path of tarn

from tarn.keys import hash_text
from tarn.kv_groups import KVGroup

FULL, WINDOW, STATE = "full", "window", "state"


def _noise(size, *parts):
    return hashlib.blake2b(repr(parts).encode(), digest_size=size).digest()


class Prompt:
    """Tokens, and what stands for all of them up to one: two prompts have the same bytes as far as
    they have the same tokens."""

    def __init__(self, tokens, salt=""):
        self.tokens = list(tokens)
        self.known = {}
        self.states = [_noise(16, "prompt", salt)]
        for token in self.tokens:
            self.states.append(_noise(16, self.states[-1], token))

    @classmethod
    def drawn(cls, seed, count):
        rng = random.Random(seed)
        return cls(rng.randrange(50_000) for _ in range(count))

    def append(self, token):
        self.tokens.append(token)
        self.states.append(_noise(16, self.states[-1], token))

    def __len__(self):
        return len(self.tokens)

    def branch(self, at, seed, count):
        """Its first `at` tokens, and others behind them."""
        return Prompt(self.tokens[:at] + Prompt.drawn(f"branch{seed}", count - at).tokens)

    def hashes(self, unit):
        """One for each `unit` tokens."""
        return [self.states[end] for end in range(unit, len(self) + 1, unit)]


@dataclass(frozen=True)
class Group:
    """A KV group. cell: bytes of a head of a token in a layer, of keys or of values; of a state,
    all that a rank has of a layer, at TP 1. form: heads (keys and values by head), latent (one row
    a token, which every rank has), recurrent (dealt out to all ranks)."""

    kind: str = FULL
    layers: int = 2
    block: int = 16
    unit: int = 0  # tokens from place to place; 0: whole blocks only
    window: int = 0
    form: str = "heads"
    heads: int = 4
    cell: int = 8
    drops_last: bool = False

    @property
    def place(self):
        return self.unit or self.block

    def shards(self, tp):
        """How many distinct parts of it there are."""
        return {"heads": min(tp, self.heads), "latent": 1, "recurrent": tp}[self.form]

    def shard_of(self, tp, rank):
        """Which of them a rank holds."""
        return rank * self.shards(tp) // tp

    def heads_of(self, tp, shard):
        each = self.heads // self.shards(tp)
        return range(shard * each, (shard + 1) * each)

    def block_bytes(self, tp):
        """Of one shard's part; of a state, all of it."""
        if self.form == "recurrent":
            return self.layers * self.cell // tp
        row = self.cell * (2 * len(self.heads_of(tp, 0)) if self.form == "heads" else 1)
        return self.layers * self.block * row

    def start_of(self, end):
        """Of the block in which the part that ends there lies: its first token."""
        return (end - 1) // self.block * self.block

    @property
    def window_blocks(self):
        return -(-(self.window - 1) // self.block)


@dataclass(frozen=True)
class Layout:
    name: str
    groups: Tuple[Group, ...]
    tp: int = 1
    dtype: str = "bfloat16"

    @property
    def unit(self):
        """Tokens from hash to hash."""
        return math.gcd(*(g.place for g in self.groups))

    @property
    def align(self):
        """Boundaries are multiples of it."""
        return math.lcm(*(g.place for g in self.groups))

    def prefix(self, group, shard):
        """What stands before the hash in the keys of a shard's part. Connectors have names of their
        own; this is for tests that have none."""
        shards = self.groups[group].shards(self.tp)
        return f"{self.name}@{self.dtype}@kv{group}@tp{shards}.{shard}@"

    def key(self, prompt, group, shard, end):
        return self.prefix(group, shard) + hash_text(prompt.states[end].hex())

    def kv_groups(self):
        """As tarn's look-up takes them: one for each of `shards`."""
        return [
            KVGroup(self.prefix(i, s), g.kind, g.block, g.unit, g.window, g.drops_last)
            for i, s in self.shards()
            for g in (self.groups[i],)
        ]

    def shards(self):
        """Every (group, shard), in the order in which a request names them."""
        return [(i, s) for i, g in enumerate(self.groups) for s in range(g.shards(self.tp))]

    def value(self, prompt, group, shard, end):
        """The right bytes of the part that ends at a token: layer by layer, keys before values,
        head by head, token by token."""
        name = (self, group, shard, end)
        if name not in prompt.known:
            prompt.known[name] = self._value(prompt, group, shard, end)
        return prompt.known[name]

    def _value(self, prompt, group, shard, end):
        g = self.groups[group]
        if g.form == "recurrent":
            return b"".join(self.state(prompt, group, n, shard, end) for n in range(g.layers))
        return b"".join(
            self.cell(prompt, group, layer, token, kv, head)
            for layer in range(g.layers)
            for kv in range(2 if g.form == "heads" else 1)
            for head in (g.heads_of(self.tp, shard) if g.form == "heads" else range(1))
            for token in range(g.start_of(end), end)
        )

    def cell(self, prompt, group, layer, token, kv=0, head=0):
        """The right bytes of one token in one layer: keys (kv 0) or values (1) of a head; of a
        latent row kv and head are 0."""
        g = self.groups[group]
        return _noise(
            g.cell, self.name, self.dtype, group, layer, kv, head, prompt.states[token + 1]
        )

    def state(self, prompt, group, layer, shard, end):
        """The right bytes of a layer's recurrent state behind `end` tokens."""
        g = self.groups[group]
        size = g.cell // self.tp
        seed = _noise(16, self.name, self.dtype, group, layer, self.tp, shard, prompt.states[end])
        return hashlib.shake_128(seed).digest(size)

    # --- by definition, token by token

    def stored(self, group, tokens):
        """Ends of the parts that an engine stores of a prompt of so many tokens: whole blocks, and
        the unfinished one where the group has places inside of blocks. Of states those at which a
        prompt can be taken up: one for each alignment."""
        g = self.groups[group]
        step = max(self.align, g.block) if g.kind == STATE else g.block
        ends = list(range(step, tokens + 1, step))
        tail = 0 if g.place == g.block else tokens // g.place * g.place
        return ends + ([tail] if tail % g.block else [])

    def needed(self, group, boundary):
        """Ends of the parts without which a prompt cannot be taken up at this boundary."""
        g = self.groups[group]
        if boundary == 0:
            return []
        if g.kind == STATE:
            return [boundary]
        first = 0 if g.kind == FULL else max(0, boundary - (g.window - 1))
        seen = {token // g.block for token in range(first, boundary)}
        return sorted(min((b + 1) * g.block, boundary) for b in seen)

    def proof(self, group, boundary):
        """Ends of the parts that must be there for the boundary to count: those that are needed,
        and with speculative decoding the part behind them, which is computed again."""
        g = self.groups[group]
        ends = self.needed(group, boundary)
        if not g.drops_last:
            return ends
        if g.kind == WINDOW:
            return ends + [boundary + g.block]
        upto = boundary + min(self.align, g.block)
        return sorted(min((b + 1) * g.block, upto) for b in range(-(-upto // g.block)))

    def boundary(self, has, tokens):
        """The longest that has everything. has(group, shard, end): whether this part is there."""
        for at in range(tokens // self.align * self.align, 0, -self.align):
            if all(
                self._covered(has, g, s, end) for g, s in self.shards() for end in self.proof(g, at)
            ):
                return at
        return 0

    def _covered(self, has, group, shard, end):
        """A block is only ever appended to: one that ends further on has this part, too."""
        g = self.groups[group]
        last = end if g.kind == STATE else g.start_of(end) + g.block
        return any(has(group, shard, at) for at in range(end, last + 1, g.place))


_WINDOWED = (Group(block=32), Group(WINDOW, block=16, window=40, layers=3))

LAYOUTS = (
    Layout("full", (Group(block=16, layers=4),)),
    Layout("full-window", _WINDOWED),
    Layout(
        "full-mamba",
        (
            Group(block=544, cell=4, heads=2),
            Group(STATE, block=544, form="recurrent", cell=6000, layers=3),
        ),
    ),
    Layout("mla", (Group(block=64, form="latent", cell=36, layers=3),), tp=2),
    Layout(
        "mla-indexer",
        (
            Group(block=64, form="latent", cell=36, layers=3),
            Group(block=64, form="latent", cell=7, layers=3),
        ),
        tp=2,
    ),
    Layout(
        "three-groups",
        (
            Group(WINDOW, block=32, window=128, layers=2),
            Group(STATE, block=96, form="recurrent", cell=2400, layers=2),
            Group(block=48, layers=1),  # the full one is the last
        ),
    ),
    Layout("tp2", _WINDOWED, tp=2),
    Layout("tp4", _WINDOWED, tp=4),
    Layout("heads-replicated", (Group(block=256, heads=2, cell=4),), tp=4),
    Layout("fp8", tuple(replace(g, cell=4) for g in _WINDOWED), dtype="fp8_e4m3"),
    Layout(
        "eagle",
        (
            Group(block=64, drops_last=True),
            Group(WINDOW, block=32, window=100, drops_last=True),
            Group(STATE, block=64, form="recurrent", cell=800),
        ),
    ),
)

# Besides the ten: the last, unfinished block of a prompt is put, too, and the state inside of it.
TAILS = Layout(
    "tails",
    (
        Group(block=64, unit=16),
        Group(STATE, block=32, unit=16, form="recurrent", cell=900),
        Group(WINDOW, block=16, window=50),
    ),
)
