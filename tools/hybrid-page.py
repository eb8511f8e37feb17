#!/usr/bin/env python3
"""The table of models in docs/engines/HYBRID.md, computed from what their config.json says.

tools/hybrid-page.py                  writes the table
tools/hybrid-page.py --check          says whether the page differs; 1: it does
tools/hybrid-page.py CONFIG.json ...  the rows of other models

Bytes are those of all ranks together, without draft layers, as vLLM keeps them: two bytes an
element, states as the model's configuration says, DeepSeek-V4 in its own fp8 format."""

import json
import os
import sys
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = "docs/engines/HYBRID.md"
BEGIN, END = "<!-- models -->\n", "<!-- /models -->\n"
TOKENS = 32768  # of the example prompt

# What each model's config.json says, as far as it counts here.
_QWEN = {"head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128}
_QWEN.update(linear_value_head_dim=128, linear_num_key_heads=16, full_attention_interval=4)
_GPT_OSS = {"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128}
_LLAMA4 = {"head_dim": 128, "num_key_value_heads": 8, "attention_chunk_size": 8192}
_V4 = {"model_type": "deepseek_v4", "index_head_dim": 128, "head_dim": 512, "sliding_window": 128}


def _alternating(layers, *, every):
    return ["full_attention" if (i + 1) % every == 0 else "sliding" for i in range(layers)]


MODELS = {
    "Llama-3.1-8B": {"num_hidden_layers": 32, "num_key_value_heads": 8, "head_dim": 128},
    "gpt-oss-20b": {**_GPT_OSS, "layer_types": _alternating(24, every=2)},
    "gpt-oss-120b": {**_GPT_OSS, "layer_types": _alternating(36, every=2)},
    "Gemma 3 12B": {
        "num_key_value_heads": 8,
        "head_dim": 256,
        "sliding_window": 1024,
        "layer_types": _alternating(48, every=6),
    },
    "Gemma 3 27B": {
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "layer_types": _alternating(62, every=6),
    },
    "Gemma 4 26B-A4B": {
        "num_key_value_heads": 8,
        "head_dim": 256,
        "num_global_key_value_heads": 2,
        "global_head_dim": 512,
        "sliding_window": 1024,
        "layer_types": _alternating(30, every=6),
    },
    "Gemma 4 31B": {
        "num_key_value_heads": 16,
        "head_dim": 256,
        "num_global_key_value_heads": 4,
        "global_head_dim": 512,
        "sliding_window": 1024,
        "layer_types": _alternating(60, every=6),
    },
    "Llama 4 Scout, Maverick": {**_LLAMA4, "layer_types": _alternating(48, every=4)},
    "Jamba-1.5-Mini": {
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attn_layer_period": 8,
        "hidden_size": 4096,
        "mamba_expand": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
    },
    "Qwen3-Next-80B-A3B": {
        **_QWEN,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
    },
    "Qwen3.5-35B-A3B": {
        **_QWEN,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
        "mamba_ssm_dtype": "float32",
    },
    "Qwen3.5-397B-A17B": {
        **_QWEN,
        "num_hidden_layers": 60,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 64,
        "mamba_ssm_dtype": "float32",
    },
    "Nemotron 3 Nano 30B-A3B": {
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "mamba_ssm_cache_dtype": "float32",
    },
    "DeepSeek-V3.2": {
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
    },
    "DeepSeek-V4-Flash": {**_V4, "compress_ratios": [0, 0, 4] + [128, 4] * 20},
    "DeepSeek-V4-Pro": {**_V4, "compress_ratios": [128, 128, 4] + [128, 4] * 29},
}


class Kept(NamedTuple):
    """Layers of one kind. per_token: bytes; window: tokens, 0: all; state: bytes of a snapshot."""

    layers: int
    per_token: float
    window: int = 0
    state: int = 0


def _element(config, *names):
    given = next((config[name] for name in names if config.get(name)), "bfloat16")
    return {"float32": 4, "bfloat16": 2, "float16": 2}[given]


def _heads(config):
    """(bytes of a token in a layer with full attention, in one with a window)."""
    heads, size = config["num_key_value_heads"], config.get("head_dim") or (
        config["hidden_size"] // config["num_attention_heads"]
    )
    wide = config.get("num_global_key_value_heads") or heads
    return 4 * wide * (config.get("global_head_dim") or size), 4 * heads * size


def _deepseek(config):
    """MLA, and an indexer: 8-bit keys with a scale of 4 bytes for 128 of them."""
    index = config.get("index_head_dim", 0)
    index += index // 128 * 4
    if config.get("model_type") != "deepseek_v4":
        row = 2 * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
        return [Kept(config["num_hidden_layers"], row + index)]
    # Rows of 584 bytes: the last tokens as they are, the rest compressed, 4 or 128 tokens to a row.
    # What is not compressed yet is kept as 32-bit sums and scores: of twice 4 tokens, for the
    # indexer, too, or of 128.
    ratios, row, sums = config["compress_ratios"], 584, 2 * 4 * config["head_dim"]
    fine, coarse = ratios.count(4), ratios.count(128)
    return [
        Kept(fine, (row + index) / 4),
        Kept(coarse, row / 128),
        Kept(len(ratios), row, config["sliding_window"]),
        Kept(fine, 2 * sums + 2 * 2 * 4 * config["index_head_dim"], 8),
        Kept(coarse, sums, 128),
    ]


def _recurrent(config):
    """(number of recurrent layers, of those with attention, bytes of a layer's state)."""
    ssm = _element(config, "mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if "linear_num_value_heads" in config:
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        state = 2 * (2 * keys + values) * (config["linear_conv_kernel_dim"] - 1)
        state += ssm * values * config["linear_key_head_dim"]
        full = config["num_hidden_layers"] // config["full_attention_interval"]
        return config["num_hidden_layers"] - full, full, state
    if "hybrid_override_pattern" in config:
        inner = config["mamba_num_heads"] * config["mamba_head_dim"]
        width = inner + 2 * config["n_groups"] * config["ssm_state_size"]
        state = 2 * width * (config["conv_kernel"] - 1) + ssm * inner * config["ssm_state_size"]
        pattern = config["hybrid_override_pattern"]
        return pattern.count("M"), pattern.count("*"), state
    if "mamba_d_state" in config:
        inner = config["mamba_expand"] * config["hidden_size"]
        state = 2 * inner * (config["mamba_d_conv"] - 1) + ssm * inner * config["mamba_d_state"]
        full = config["num_hidden_layers"] // config["attn_layer_period"]
        return config["num_hidden_layers"] - full, full, state
    return 0, config.get("num_hidden_layers", 0), 0


def kept_of(config):
    """What a model keeps, by kind of layer."""
    config = {**config, **(config.get("text_config") or {})}
    if "kv_lora_rank" in config or config.get("model_type") == "deepseek_v4":
        return _deepseek(config)
    wide, narrow = _heads(config)
    types = config.get("layer_types") or []
    if types and "linear_attention" not in types:
        full = types.count("full_attention")
        window = config.get("attention_chunk_size") or config.get("sliding_window")
        return [Kept(full, wide), Kept(len(types) - full, narrow, window)]
    recurrent, full, state = _recurrent(config)
    return [Kept(full, wide)] + ([Kept(recurrent, 0, 0, state)] if recurrent else [])


class Sizes(NamedTuple):
    """Bytes: a token where all of them are kept, a token in windows, of all windows at a boundary,
    of the states at a boundary."""

    full: float
    windowed: float
    windows: float
    states: int


def sizes_of(kept):
    full = sum(k.layers * k.per_token for k in kept if not k.window)
    windowed = sum(k.layers * k.per_token for k in kept if k.window)
    windows = sum(k.layers * k.per_token * k.window for k in kept)
    return Sizes(full, windowed, windows, sum(k.layers * k.state for k in kept))


def _bytes(n):
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.{1 if n < 100 * size else 0}f} {unit}"
    return f"{n:.0f}"


def row_of(name, config):
    size = sizes_of(kept_of(config))
    everything = (size.full + size.windowed) * TOKENS
    hit = size.full * TOKENS + size.windows + size.states
    cells = [
        name,
        f"{size.full:,.0f}",
        f"{size.windowed:,.0f}" if size.windowed else "",
        _bytes(size.windows) if size.windows else "",
        _bytes(size.states) if size.states else "",
        _bytes(hit),
        # DeepSeek-V4 cannot be kept that way.
        f"{everything / hit:.1f}" if size.windowed and "compress_ratios" not in config else "",
    ]
    return "| " + " | ".join(cells) + " |\n"


HEAD = [
    "model",
    "full: bytes a token",
    "windows: bytes a token",
    "windows at a boundary",
    "states at a boundary",
    "a hit of 32,768 tokens reads",
    "all layers as full ones: times that",
]


def table():
    head = "| " + " | ".join(HEAD) + " |\n| --- |" + " ---: |" * (len(HEAD) - 1) + "\n"
    return head + "".join(row_of(name, config) for name, config in MODELS.items())


def main(args):
    if args and args[0] != "--check":
        for path in args:
            with open(path) as f:
                print(row_of(os.path.basename(path), json.load(f)), end="")
        return 0
    path = os.path.join(ROOT, PAGE)
    with open(path) as f:
        before, _, rest = f.read().partition(BEGIN)
    old, _, after = rest.partition(END)
    if args:
        if old != table():
            print(f"{PAGE}: the table of models differs; tools/hybrid-page.py writes it")
        return int(old != table())
    with open(path, "w") as f:
        f.write(before + BEGIN + table() + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
