"""What the connector is told: vLLM's configuration and the options in `kv_connector_extra_config`.
"""

import os
from dataclasses import dataclass, fields
from typing import Any, Dict, Optional, Tuple

from .._link import optional
from ..identity import Facts, first
from ..keys import KeySpace, shard_of
from ..options import number, truth
from .cost import AS_MEASURED

__all__ = ["Settings", "Ranks", "settings_of", "ranks_of", "facts_of"]

# Speculative decoding that adds no layers to the cache.
_NO_DRAFT_LAYERS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "medusa", "mlp_speculator")
# Ways to encode positions that choose their numbers by the longest prompt that the engine takes.
_BY_LENGTH = ("longrope", "su", "dynamic")


@dataclass(frozen=True)
class Settings:
    """The options, with their defaults; docs/engines/VLLM.md says what each of them does.
    Milliseconds, MiB, blocks as the names say."""

    url: str = "tarn://127.0.0.1:6479"
    model: str = ""
    revision: str = ""
    load: bool = True
    save: bool = True
    load_async: bool = False
    min_load_tokens: int = AS_MEASURED
    layerwise: bool = False
    cross_layers: bool = False
    save_decode: bool = False
    stripe: bool = True
    kv_layout: str = ""
    writer_tp: int = 0
    heads_axis: int = -1
    queue_blocks: int = 4096
    queue_wait_ms: int = 0
    save_threads: int = 2
    load_threads: int = 2
    batch_blocks: int = 256
    staging_mib: int = 256
    timeout_ms: int = 5000
    lookup_timeout_ms: int = 250
    lookup_lease_ms: int = 5000
    retry_ms: int = 1000
    event_medium: str = "EXTERNAL"
    arrival_ms: int = 1000
    replicas: int = 0
    pin: str = ""
    pin_ms: int = 0
    ttl_ms: int = 0
    prefer: Tuple[str, ...] = ()
    conductor: str = ""
    hints: bool = True

    @property
    def put_options(self) -> Dict[str, Any]:
        """Arguments of Client.put_from_many."""
        options: Dict[str, Any] = {"timeout_ms": self.timeout_ms}
        for name in ("replicas", "pin", "pin_ms", "ttl_ms", "prefer"):
            if getattr(self, name):
                options[name] = getattr(self, name)
        return options


_FROM_MINUS_1 = ("heads_axis", "min_load_tokens")
_POSITIVE = (
    "queue_blocks",
    "save_threads",
    "load_threads",
    "batch_blocks",
    "staging_mib",
    "timeout_ms",
    "lookup_timeout_ms",
    "retry_ms",
)


def _option_typed(name: str, value: Any, default: Any) -> Any:
    """The value of an option, in the type of its default; as text, too: "true" is true and "4" is
    4."""
    where = f"kv_connector_extra_config: {name}"
    if isinstance(default, bool):
        return truth(value, where)
    if isinstance(default, int):
        return number(
            value, where, -1 if name in _FROM_MINUS_1 else int(name in _POSITIVE), 1 << 31
        )
    if isinstance(default, tuple):
        return tuple(str(item) for item in ([value] if isinstance(value, str) else value))
    return str(value)


def settings_of(vllm_config: Any) -> Settings:
    """Of a VllmConfig. kv_role says what the engine does by default: kv_producer saves, kv_consumer
    loads, kv_both does both. ValueError: an option that does not exist, or a value that it cannot
    have."""
    transfer = vllm_config.kv_transfer_config
    extra = dict(getattr(transfer, "kv_connector_extra_config", None) or {})
    known = {field.name: field.default for field in fields(Settings)}
    unknown = sorted(set(extra) - set(known))
    if unknown:
        raise ValueError(
            f"kv_connector_extra_config: there is no option {unknown[0]!r}; there are: "
            f"{', '.join(known)}"
        )
    role = getattr(transfer, "kv_role", None) or "kv_both"
    if role not in ("kv_producer", "kv_consumer", "kv_both"):
        raise ValueError(f"kv_role: {role!r}; it is kv_producer, kv_consumer or kv_both")
    given = {name: _option_typed(name, value, known[name]) for name, value in extra.items()}
    given.setdefault("load", role != "kv_producer")
    given.setdefault("save", role != "kv_consumer")
    model = vllm_config.model_config
    given["model"] = given.get("model") or str(model.model).rstrip("/")
    given["revision"] = given.get("revision") or str(getattr(model, "revision", None) or "")
    settings = Settings(**given)
    if settings.pin not in ("", "soft", "hard"):
        raise ValueError(
            f'kv_connector_extra_config: pin is "soft" or "hard", not {settings.pin!r}'
        )
    if settings.kv_layout not in ("", "HND", "NHD"):
        raise ValueError(
            f"kv_connector_extra_config: kv_layout is HND or NHD, not {settings.kv_layout!r}"
        )
    if settings.conductor and settings.layerwise:
        raise ValueError(
            "kv_connector_extra_config: conductor and layerwise do not go together: names of "
            "layers stand behind the hash, where the Conductor does not look"
        )
    if settings.cross_layers and (settings.layerwise or settings.writer_tp):
        raise ValueError(
            "kv_connector_extra_config: with cross_layers a block of all layers is one piece, so "
            "layerwise and writer_tp do not go together with it"
        )
    if settings.layerwise and vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise ValueError(
            "kv_connector_extra_config: layerwise does not go together with pipeline parallelism"
        )
    if settings.layerwise and settings.load_async:
        raise ValueError(
            "kv_connector_extra_config: layerwise loads within a step, load_async between steps; "
            "choose one"
        )
    return settings


@dataclass(frozen=True)
class Ranks:
    """Where a worker stands among the others, and which part of the KV cache it holds. draft_apart:
    ranks that hold the same heads of the model hold others of its draft model's layers."""

    tp_size: int
    tp_rank: int
    pp_size: int
    pp_rank: int
    pcp_size: int
    pcp_rank: int
    dcp_size: int
    dcp_rank: int
    kv_heads: int
    mla: bool
    draft_apart: bool = False

    @property
    def shard(self) -> Tuple[int, int, int, int]:
        """(shards, shard, replicas, replica) as in keys.shard_of. With decode context parallelism
        ranks hold different tokens, so every rank's bytes are its own."""
        if self.dcp_size > 1 or self.draft_apart:
            return self.tp_size, self.tp_rank, 1, 0
        return shard_of(self.tp_size, self.tp_rank, self.kv_heads, mla=self.mla)

    def space(self, settings: Settings, dtype: str, layout: str, block_tokens: int) -> KeySpace:
        """The keys of this worker's blocks."""
        shards, shard, _, _ = self.shard
        return KeySpace(
            settings.model, dtype, layout, block_tokens, shards, shard, self.pp_size, self.pp_rank,
            self.pcp_size, self.pcp_rank, self.dcp_size, self.dcp_rank,
        )  # fmt: skip


def ranks_of(vllm_config: Any, rank: Optional[int] = None) -> Ranks:
    """Of a VllmConfig. vLLM numbers its workers with the tensor-parallel rank running fastest, then
    prefill context, then pipeline."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    tp, pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    pcp = getattr(parallel, "prefill_context_parallel_size", 1) or 1
    dcp = getattr(parallel, "decode_context_parallel_size", 1) or 1
    rank = parallel.rank if rank is None else rank
    tp_rank = rank % tp
    heads, mla = _heads_and_mla(model)
    return Ranks(
        tp, tp_rank, pp, rank // (tp * pcp) % pp, pcp, rank // tp % pcp, dcp, tp_rank % dcp,
        heads, mla, _draft_apart(vllm_config, heads, mla, tp),
    )  # fmt: skip


def _heads_and_mla(model: Any) -> Tuple[int, bool]:
    return model.get_total_num_kv_heads(), bool(getattr(model, "use_mla", False))


def _draft_apart(vllm_config: Any, heads: int, mla: bool, tp: int) -> bool:
    """As Ranks.draft_apart. It is no matter where no two ranks hold the same, or the draft's layers
    are the same on all of them."""
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if draft is None or _draft_of(vllm_config) is None or not (mla or heads < tp):
        return False
    draft_heads, draft_mla = _heads_and_mla(draft)
    return not draft_mla and (mla or draft_heads != heads)


def dtype_of(vllm_config: Any) -> str:
    """The name of the KV cache's element type."""
    name = str(getattr(vllm_config.cache_config, "cache_dtype", "auto"))
    if name == "auto":
        name = str(vllm_config.model_config.dtype)
    return name.rpartition(".")[2]


def block_tokens_of(vllm_config: Any, ranks: Ranks) -> int:
    """Tokens that one block id stands for: context parallelism deals a block's tokens out to its
    ranks."""
    return int(vllm_config.cache_config.block_size) * ranks.pcp_size * ranks.dcp_size


def batches_of(vllm_config: Any, ranks: Ranks) -> int:
    """How many steps may have been planned before the outcome of the first of them is known."""
    ahead = bool(getattr(getattr(vllm_config, "scheduler_config", None), "async_scheduling", False))
    return max(int(getattr(vllm_config, "max_concurrent_batches", 0) or 0), ranks.pp_size + ahead)


def _draft_of(vllm_config: Any) -> Any:
    speculative = getattr(vllm_config, "speculative_config", None)
    method = first(speculative, "method")
    if speculative is None or method in _NO_DRAFT_LAYERS:
        return None
    draft = getattr(speculative, "draft_model_config", None)
    return [
        method,
        first(speculative, "model") or first(draft, "model"),
        first(speculative, "revision") or first(draft, "revision"),
        first(speculative, "quantization") or first(draft, "quantization"),
    ]


def _longest_prompt(model: Any) -> Any:
    """Where it decides how positions are encoded."""
    text = first(model, "hf_text_config", "hf_config")
    for rope in (first(text, "rope_parameters", "rope_scaling"), first(model, "rope_scaling")):
        if isinstance(rope, dict) and (rope.get("rope_type") or rope.get("type")) in _BY_LENGTH:
            return first(model, "max_model_len")
    return None


def _scales_of(vllm_config: Any) -> Any:
    cache, model = vllm_config.cache_config, vllm_config.model_config
    if not str(getattr(cache, "cache_dtype", "auto")).startswith(("fp8", "int8", "nvfp4", "int4")):
        return None
    if getattr(cache, "calculate_kv_scales", False):
        # Found by the first prompt that this engine sees, and kept nowhere: nobody else can read
        # these blocks.
        return ["own", first(getattr(vllm_config, "kv_transfer_config", None), "engine_id")]
    return first(cache, "quantization_param_path") or first(model, "quantization_param_path")


def facts_of(vllm_config: Any) -> Facts:
    """What a VllmConfig says about the bytes of blocks, but for model, data type, layout and ranks,
    which keys have in words. The scheduler's process and the workers' have the same."""
    model, cache, parallel = (
        vllm_config.model_config,
        vllm_config.cache_config,
        vllm_config.parallel_config,
    )
    stages = getattr(parallel, "pipeline_parallel_size", 1) or 1
    context = (getattr(parallel, "decode_context_parallel_size", 1) or 1) * (
        getattr(parallel, "prefill_context_parallel_size", 1) or 1
    )
    text = first(model, "hf_text_config", "hf_config")
    platform = optional("vllm.platforms", "current_platform")
    overrides = [
        first(model, n)
        for n in ("hf_overrides", "rope_scaling", "rope_theta", "override_attention_dtype")
    ]
    return Facts(
        revision=first(model, "code_revision"),
        weights=first(model, "quantization"),
        model_dtype=first(model, "dtype"),
        cache_dtype=[
            str(first(cache, n) or "auto")
            for n in ("cache_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
        ],
        scales=_scales_of(vllm_config),
        overrides=overrides if any(overrides) else None,
        positions=_longest_prompt(model),
        draft=_draft_of(vllm_config),
        platform=[
            first(platform[0], "device_type") if platform is not None else None,
            os.environ.get("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"),
        ],
        layers=[
            first(text, "num_hidden_layers"),
            os.environ.get("VLLM_PP_LAYER_PARTITION") if stages > 1 else None,
        ],
        interleave=first(parallel, "cp_kv_cache_interleave_size", "dcp_kv_cache_interleave_size")
        if context > 1
        else None,
    )
