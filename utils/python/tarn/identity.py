"""What decides the bytes of a block besides its tokens, and a digest of it for keys: the one place
that every connector goes through.

A key says model, data type, place among the ranks and prefix in plain words. All else that two
engines may be told differently and that changes a block's bytes, or what they mean, goes into its
digest: `digest(Facts(...))`. A fact that an engine does not have, or that has no effect there,
stays None, so that it does not part engines that may share: sizes of a parallelism that does not
change the bytes, a draft model without layers of its own.

Whoever adds a connector, or learns of another option, adds a fact here and a line to
tests/python/identity_test.py."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any, Optional

__all__ = ["Facts", "digest", "plain"]

DIGEST_CHARS = 16


@dataclass(frozen=True)
class Facts:
    """By what differs. Values are plain (see `plain`)."""

    # --- the numbers in the cache
    revision: Any = None  # of the model, and of its code
    weights: Any = None  # their quantisation, where it is not part of the model's name
    model_dtype: Any = None  # what is computed in
    cache_dtype: Any = None  # of the cache's elements, in full: two kinds of fp8 are one byte each
    # of a quantised cache: where they come from; an engine's own name when it finds them by itself
    scales: Any = None
    overrides: Any = None  # of the model's configuration: positions, layers
    positions: Any = None  # the longest prompt, where the way positions are encoded depends on it
    draft: Any = None  # the model whose layers are in the blocks, too
    platform: Any = None  # kinds of devices arrange a block in ways that its shape does not tell
    # --- which of them are in a block, and in which order
    block_tokens: Any = None
    blocks_per_chunk: Any = None
    tokens_per_hash: Any = None
    block_bytes: Any = None
    layers: Any = None  # how many, or which
    groups: Any = None  # layers that share blocks
    layout: Any = None
    format: Any = None
    shape: Any = None
    interleave: Any = None  # tokens that go to a rank of context parallelism at a time
    parallel: Any = None  # sizes, where they change the bytes
    canonical: Any = None  # vLLM's format that is the same for all parallelisms, its version
    sharing: Any = None  # why sizes of the parallelism do not count
    storage: Any = None  # of what is stored: compression, serde
    blending: Any = None  # chunks that stand for themselves, wherever they are in a prompt
    others: Any = None  # what an engine says that we have not heard of, and that sounds like this


def plain(value: Any) -> Any:
    """The same in every process: what JSON has, and the text of all else (of functions their name,
    never an address)."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(plain(v)) for v in value)
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return str(value)


def digest(facts: Facts) -> str:
    """16 hexadecimal digits; equal for equal facts only."""
    said = {f.name: plain(getattr(facts, f.name)) for f in fields(facts)}
    text = json.dumps(
        {k: v for k, v in said.items() if v is not None}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def first(source: Any, *names: str) -> Optional[Any]:
    """The first of these attributes that is there and says something."""
    for name in names:
        value = getattr(source, name, None)
        if value is not None and value != "":
            return value
    return None
