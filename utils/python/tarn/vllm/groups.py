"""The KV groups of a model as vLLM has set them up: layers with blocks of one size and one kind,
each with a table of blocks of its own. What the connector cannot do is refused here, by name.

A hit has to suit all groups at once, so boundaries are multiples of all their blocks (`align`), and
one chain of hashes in steps that divide every block (`unit`) names the blocks of all of them:

    unit     |--|--|--|--|--|--|--|--|--|--|--|--|
    group 0  |-----|-----|-----|-----|-----|-----|     full: every block
    group 1  |--------|--------|--------|--------|     window: those before a boundary
    align    |-----------------|-----------------|"""

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from ..identity import Facts, digest, first
from ..keys import KeySpace, shard_of
from ..kv_groups import KVGroup
from .config import Ranks, Settings
from .tensors import LayerView

__all__ = ["Group", "Groups", "groups_of", "layer_names"]

PARTS_MAX = 1024  # KV groups in one look-up, each rank's part of one counted

# Of the classes that a KVCacheSpec of vLLM's is, the first that is named here decides.
_KINDS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "window",
    "SlidingWindowMLASpec": "window",
    "ChunkedLocalAttentionSpec": "window",
    "MambaSpec": "state",
}
_REFUSED = {
    "CrossAttentionSpec": "cross attention, whose blocks depend on what the encoder was given",
    "EncoderOnlyAttentionSpec": "attention of an encoder",
    "RSWASpec": "reference sliding windows, whose blocks come and go",
}
# What a spec says that does not change a block's bytes, or that keys have in other words.
_UNSAID = (
    "block_size",
    "num_kv_heads",
    "page_size_padded",
    "num_speculative_blocks",
    "num_prefill_checkpoint_blocks",
)


def layer_names(names: Sequence[str]) -> List[str]:
    """Short names of layers for keys: the number in the name where every name has one of its own,
    else the name."""
    numbers = ["".join(part for part in name.split(".") if part.isdigit()) for name in names]
    return numbers if all(numbers) and len(set(numbers)) == len(names) else list(names)


@dataclass(frozen=True)
class Group:
    """number: its place among vLLM's tables. block, window: tokens; chunk: of chunked local
    attention, whose window begins anew with each. heads: KV heads of the whole model, 0: all ranks
    have the same bytes (MLA), -1: each has its own. rank_heads: of one rank. layers: of this stage
    of the pipeline. said: what else decides the bytes."""

    number: int
    kind: str
    block: int
    window: int = 0
    chunk: int = 0
    drops_last: bool = False
    heads: int = -1
    rank_heads: int = 0
    layers: Tuple[str, ...] = ()
    said: Tuple[Any, ...] = ()

    def shard(self, ranks: Ranks) -> Tuple[int, int, int, int]:
        """(shards, shard, replicas, replica), as keys.shard_of has them."""
        if self.heads < 0:
            return ranks.tp_size, ranks.tp_rank, 1, 0
        return shard_of(ranks.tp_size, ranks.tp_rank, self.heads, mla=self.heads == 0)

    def layout(self, facts: Facts, views: Sequence[LayerView], ranks: Ranks) -> str:
        """What keys say of the group's format. "": this stage has none of its layers."""
        if not views:
            return ""
        heads = self.heads if self.heads > 0 else self.rank_heads * ranks.tp_size
        facts = replace(
            facts,
            groups=[self.kind, self.block, self.window, self.chunk, *self.said],
            shape=[view.layout(heads) for view in views],
            format=layer_names(self.layers),
        )
        return f"{self.kind}-{digest(facts)}"

    def space(self, settings: Settings, dtype: str, ranks: Ranks, layout: str) -> KeySpace:
        """The keys of a rank's blocks."""
        shards, shard, _, _ = self.shard(ranks)
        return KeySpace(
            settings.model, dtype, layout, self.block, shards, shard, ranks.pp_size, ranks.pp_rank,
            kv_group=self.number,
        )  # fmt: skip

    def first_live(self, computed: int) -> int:
        """The first block that vLLM still keeps for a request with so many computed tokens."""
        if self.kind != "window":
            return 0
        passed = computed // self.chunk * self.chunk if self.chunk else computed - self.window + 1
        return max(passed, 0) // self.block

    def reachable(self, block: int, align: int) -> bool:
        """Can a hit need this block? Of a window those before a boundary, and where the last part
        of a hit is computed again, the one behind it."""
        if self.kind != "window":
            return True
        each, need = align // self.block, -(-(self.window - 1) // self.block)
        after = block % each
        return each - after <= need or (self.drops_last and after == 0 and block >= each)


@dataclass(frozen=True)
class Groups:
    """All of them, but those that vLLM itself never shares between requests. tables: how many
    tables of blocks a request has."""

    groups: Tuple[Group, ...]
    tables: int

    @property
    def unit(self) -> int:
        return math.gcd(*(group.block for group in self.groups))

    @property
    def align(self) -> int:
        return math.lcm(*(group.block for group in self.groups))

    @property
    def dropped(self) -> int:
        """Tokens that a hit is shorter than what must be there for it."""
        return max((group.block for group in self.groups if group.drops_last), default=0)

    def asked(
        self, settings: Settings, dtype: str, ranks: Ranks, layouts: Dict[int, Sequence[str]]
    ) -> List[Tuple[int, KVGroup]]:
        """What a look-up asks for: each group of each rank that has bytes of its own, and which of
        the groups it is. layouts: of each stage of the pipeline, of each group."""
        found = []
        for stage in range(ranks.pp_size):
            for i, (group, layout) in enumerate(zip(self.groups, layouts[stage])):
                if not layout:
                    continue
                space = group.space(
                    settings, dtype, dataclasses.replace(ranks, pp_rank=stage), layout
                )
                for shard in range(space.shards):
                    name = space.with_shard(shard).prefix
                    found.append((i, self._asked_for(group, name)))
        return found

    @staticmethod
    def _asked_for(group: Group, name: str) -> KVGroup:
        return KVGroup(
            name, group.kind, group.block, window=group.window, drops_last=group.drops_last
        )


# --- what vLLM says


def _names(spec: Any) -> List[str]:
    return [kind.__name__ for kind in type(spec).__mro__]


def _layers_of(group: Any) -> List[Any]:
    """The specs of a group's layers, one of each; releases and processes differ in whether the
    group has one for all."""
    spec = getattr(group, "kv_cache_spec", None)
    each = getattr(spec, "kv_cache_specs", None)
    return list(each.values()) if isinstance(each, dict) and each else [spec]


def _said(spec: Any) -> Dict[str, Any]:
    """A spec's own words."""
    names = (
        [field.name for field in dataclasses.fields(spec)]
        if dataclasses.is_dataclass(spec)
        else vars(spec)
    )
    said = {name: getattr(spec, name) for name in names if name not in _UNSAID}
    return dict(said, spec=type(spec).__name__)


def _kind_of(spec: Any) -> Optional[str]:
    """ValueError: one that cannot be done."""
    for name in _names(spec):
        if name in _REFUSED:
            raise ValueError(
                f"TarnConnector: the model has {_REFUSED[name]}; leave the connector out for it"
            )
        if name in _KINDS:
            return _KINDS[name]
    return None


def _dropping(vllm_config: Any, given: Sequence[Any]) -> Set[int]:
    """Groups whose last part of a hit is computed again, for speculative decoding reads its hidden
    states."""
    flagged = {i for i, group in enumerate(given) if getattr(group, "is_eagle_group", False)}
    asks = getattr(getattr(vllm_config, "speculative_config", None), "use_eagle", None)
    return flagged or (set(range(len(given))) if callable(asks) and asks() else set())


def _heads_of(vllm_config: Any, spec: Any, ranks: Ranks) -> int:
    """As Group.heads. Ranks hold the same heads where there are fewer of them; which ones is only
    known if all layers have as many, those of a draft model, too. (The scheduler is told of one
    layer of a group only, so more than that may not be asked.)"""
    if not hasattr(spec, "num_kv_heads") or ranks.draft_apart:
        return -1
    if any("MLA" in name for name in _names(spec)):
        return 0
    text = first(vllm_config.model_config, "hf_text_config", "hf_config")
    figures = {
        value
        for name, value in (vars(text).items() if hasattr(text, "__dict__") else ())
        if name.endswith(("key_value_heads", "kv_heads")) and isinstance(value, int)
    }
    alike = max(1, ranks.kv_heads // ranks.tp_size) == spec.num_kv_heads
    return ranks.kv_heads if alike and len(figures) <= 1 else -1


def _check_state(spec: Any) -> None:
    mode = str(getattr(spec, "mamba_cache_mode", "none"))
    if mode != "align":
        raise ValueError(
            f"TarnConnector: the model has recurrent layers (Mamba) in cache mode {mode!r}; start "
            "vLLM with --enable-prefix-caching --mamba-cache-mode align"
        )


def _check_config(vllm_config: Any, settings: Settings, ranks: Ranks) -> None:
    """What goes with one group of full attention only."""
    if ranks.pcp_size * ranks.dcp_size > 1:
        raise ValueError(
            "TarnConnector: context parallelism (PCP, DCP) does not go together with several KV "
            "groups, windows or states; set its sizes to 1"
        )
    for name in ("layerwise", "writer_tp"):
        if getattr(settings, name):
            raise ValueError(
                f"kv_connector_extra_config: {name} does not go together with several KV groups, "
                "windows or states; leave it out"
            )


def _group_of(number: int, layers: Any, specs: Sequence[Any], **others: Any) -> Group:
    spec = specs[0]
    kind = _kind_of(spec)
    if kind is None:
        raise ValueError(
            f"TarnConnector: KV group {number} has layers of a kind that it does not know, "
            f"{type(spec).__name__}; leave the connector out for this model"
        )
    if kind == "state":
        _check_state(spec)
    chunk = int(getattr(spec, "attention_chunk_size", None) or 0) if kind == "window" else 0
    window = chunk + 1 if chunk else int(getattr(spec, "sliding_window", None) or 0)
    # Of a window of 1 token nothing before the boundary is needed; the pool knows none below 2.
    return Group(
        number,
        kind,
        int(spec.block_size),
        window=max(window, 2) if kind == "window" else 0,
        chunk=chunk,
        rank_heads=int(getattr(spec, "num_kv_heads", 0)),
        layers=tuple(layers),
        said=tuple(_said(one) for one in specs),
        **others,
    )


def groups_of(
    vllm_config: Any, kv_cache_config: Any, settings: Settings, ranks: Ranks
) -> Optional[Groups]:
    """Of a KVCacheConfig; None: one group of full attention. ValueError: something that the
    connector cannot do, and what to do instead."""
    given = list(getattr(kv_cache_config, "kv_cache_groups", None) or ())
    specs = [_layers_of(group) for group in given]
    if len(given) <= 1 and all(_kind_of(spec) in (None, "full") for each in specs for spec in each):
        return None
    if getattr(vllm_config.model_config, "is_encoder_decoder", False):
        raise ValueError(
            f"TarnConnector: the model has {_REFUSED['CrossAttentionSpec']}; leave the connector "
            "out for it"
        )
    _check_config(vllm_config, settings, ranks)
    drops = _dropping(vllm_config, given)
    groups = []
    for i, (group, each) in enumerate(zip(given, specs)):
        if getattr(each[0], "prefix_cacheable", True):
            state = _kind_of(each[0]) == "state"
            heads = _heads_of(vllm_config, each[0], ranks)
            groups.append(
                _group_of(
                    i, group.layer_names, each, drops_last=i in drops and not state, heads=heads
                )
            )
    parts = sum(group.shard(ranks)[0] for group in groups) * ranks.pp_size
    if parts > PARTS_MAX:
        raise ValueError(
            f"TarnConnector: a hit would have {parts} parts ({len(groups)} KV groups of "
            f"{ranks.tp_size * ranks.pp_size} ranks); a look-up takes {PARTS_MAX}"
        )
    return Groups(tuple(groups), len(given))
