"""The ranks of the engine in groups_engine.py: the memory of a hybrid model's KV cache, cut up as
vLLM cuts it up, and the layers that compute in it. The right bytes are those of layouts.py.

Layer i of every KV group lies in the same storage; a block's page there is as long as the longest
of them needs. Attention has one view of it per layer, heads outside of tokens; recurrent layers
have a list of two. Before a layer uses its cache, every byte that it would read is compared."""

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace

from layouts import FULL, STATE, WINDOW

SCRIBBLE = 0xEE


# --- vLLM's words for a KV group; the names of the classes are what counts


@dataclass(frozen=True)
class FullAttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str


class MLAAttentionSpec(FullAttentionSpec):
    pass


@dataclass(frozen=True)
class SlidingWindowSpec(FullAttentionSpec):
    sliding_window: int


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec(FullAttentionSpec):
    attention_chunk_size: int


@dataclass(frozen=True)
class MambaSpec:
    block_size: int
    shapes: tuple
    dtypes: tuple
    mamba_cache_mode: str = "align"


def spec_of(layout, group):
    if group.form == "recurrent":
        return MambaSpec(group.block, ((group.cell // layout.tp,),), (layout.dtype,))
    latent = group.form == "latent"
    heads = 1 if latent else max(1, group.heads // layout.tp)
    said = (group.block, heads, group.cell, layout.dtype)
    if group.kind == WINDOW:
        return SlidingWindowSpec(*said, group.window)
    return (MLAAttentionSpec if latent else FullAttentionSpec)(*said)


def layers_of(number, group):
    """Names of a group's layers."""
    part = {"heads": "self_attn.attn", "latent": "self_attn.mla", "recurrent": "mixer"}[group.form]
    return [f"model.layers.{10 * i + number}.{part}" for i in range(group.layers)]


def cache_config_of(layout, blocks):
    """A KVCacheConfig."""
    groups = [
        SimpleNamespace(
            layer_names=layers_of(i, group),
            kv_cache_spec=spec_of(layout, group),
            is_eagle_group=group.drops_last,
        )
        for i, group in enumerate(layout.groups)
    ]
    return SimpleNamespace(num_blocks=blocks, kv_cache_groups=groups)


# --- memory


class View:
    """What the connector sees of a torch tensor; an element is a byte."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, storage, offset, shape, strides):
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def stride(self):
        return self.strides

    def element_size(self):
        return 1

    def data_ptr(self):
        return ctypes.addressof(self.storage) + self.offset


class Rank:
    """One rank's memory, and the rows of its heads."""

    def __init__(self, layout, blocks, rank):
        self.layout, self.rank = layout, rank
        self.shards = [g.shard_of(layout.tp, rank) for g in layout.groups]
        each = [g.block_bytes(layout.tp) // g.layers for g in layout.groups]
        self.page = max(each) + 32  # longer than any needs, as pages that are padded
        count = max(g.layers for g in layout.groups)
        self.storages = [(ctypes.c_char * (self.page * blocks))() for _ in range(count)]
        self.raw = [memoryview(storage).cast("B") for storage in self.storages]
        self.caches = {}
        for number, group in enumerate(layout.groups):
            for i, name in enumerate(layers_of(number, group)):
                self.caches[name] = self._views(
                    self.storages[i], group, blocks, self.shards[number]
                )

    def _views(self, storage, group, blocks, shard):
        page = self.page
        if group.form == "recurrent":
            size = group.cell // self.layout.tp
            first = size // 3
            return [
                View(storage, 0, (blocks, first), (page, 1)),
                View(storage, first, (blocks, size - first), (page, 1)),
            ]
        if group.form == "latent":
            shape = (blocks, group.block, group.cell)
            return View(storage, 0, shape, (page, group.cell, 1))
        heads, run = len(group.heads_of(self.layout.tp, shard)), group.block * group.cell
        shape = (blocks, 2, group.block, heads, group.cell)
        return View(storage, 0, shape, (page, heads * run, group.cell, run, 1))

    def scribble(self, blocks):
        for raw in self.raw:
            for block in blocks:
                raw[block * self.page : (block + 1) * self.page] = bytes([SCRIBBLE]) * self.page

    def _rows(self, number):
        """(layer, keys or values, head, where its tokens begin in a page) of a group."""
        group = self.layout.groups[number]
        run = group.block * group.cell
        heads = group.heads_of(self.layout.tp, self.shards[number])
        pairs = [(0, 0)] if group.form == "latent" else [(kv, h) for kv in (0, 1) for h in heads]
        for layer in range(group.layers):
            for i, (kv, head) in enumerate(pairs):
                yield layer, kv, head, i * run

    def row(self, prompt, number, layer, kv, head):
        """The right bytes of all tokens of a prompt, in one head of a layer."""
        row = prompt.known.setdefault((number, layer, kv, head, self.layout.name), bytearray())
        cell = self.layout.groups[number].cell
        for token in range(len(row) // cell, len(prompt)):
            row += self.layout.cell(prompt, number, layer, token, kv, head)
        return row

    def _pieces(self, prompt, number, table, first, last):
        """(memory, right bytes) of tokens in a group of attention."""
        group = self.layout.groups[number]
        for layer, kv, head, at in self._rows(number):
            row, raw = self.row(prompt, number, layer, kv, head), self.raw[layer]
            for block in range(first // group.block, -(-last // group.block)):
                low = max(first, block * group.block)
                high = min(last, (block + 1) * group.block)
                where = table[block] * self.page + at + (low - block * group.block) * group.cell
                right = row[low * group.cell : high * group.cell]
                yield raw[where : where + len(right)], right, (block, table[block])

    def check(self, prompt, tables, computed):
        """Every byte that the next token's computation reads."""
        for number, group in enumerate(self.layout.groups):
            if group.kind == STATE:
                self._check_state(prompt, number, tables[number], computed)
                continue
            first = 0 if group.kind == FULL else max(0, computed - (group.window - 1))
            for memory, right, where in self._pieces(
                prompt, number, tables[number], first, computed
            ):
                assert where[1], f"KV group {number} has no block {where[0]}"
                assert memory == right, f"KV group {number}: wrong bytes in block {where}"

    def _check_state(self, prompt, number, table, computed):
        if computed == 0:
            return
        block = table[-(-computed // self.layout.groups[number].block) - 1]
        assert block, f"KV group {number} has no state at {computed}"
        for layer in range(self.layout.groups[number].layers):
            right = self.layout.state(prompt, number, layer, self.shards[number], computed)
            at = block * self.page
            found = self.raw[layer][at : at + len(right)]
            assert found == right, f"KV group {number}: wrong state at {computed}"

    def fill(self, prompt, tables, first, last):
        """Computes tokens. A group of windows has no blocks for those that no later one sees."""
        for number, group in enumerate(self.layout.groups):
            table = tables[number]
            if group.kind == STATE:
                block = table[-(-last // group.block) - 1]
                for layer in range(group.layers):
                    state = self.layout.state(prompt, number, layer, self.shards[number], last)
                    at = block * self.page
                    self.raw[layer][at : at + len(state)] = state
                continue
            for memory, right, where in self._pieces(prompt, number, table, first, last):
                if where[1]:
                    memory[:] = right
