"""SGLang's own classes, or plain ones where it is not installed, and its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from .._link import optional


@dataclass
class _Result:
    """PoolTransferResult where SGLang is not installed: pages that can be used, of each pool by
    name, and all numbers of pages at which a prefix may end."""

    kv_hit_pages: int
    extra_pool_hit_pages: Dict[Any, int]
    restorable_prefix_pages: Optional[List[int]] = None


@dataclass
class _Metrics:
    """StorageMetrics where SGLang is not installed: pages and GB/s of each batch since the last
    call."""

    prefetch_pgs: List[int] = field(default_factory=list)
    backup_pgs: List[int] = field(default_factory=list)
    prefetch_bandwidth: List[float] = field(default_factory=list)
    backup_bandwidth: List[float] = field(default_factory=list)


_STORAGE, _FIGURES = (
    "sglang.srt.mem_cache.hicache_storage",
    "sglang.srt.observability.metrics_collector",
)
HiCacheStorage: Any
HiCacheStorage, PoolTransferResult = optional(_STORAGE, "HiCacheStorage", "PoolTransferResult") or (
    object,
    _Result,
)
(StorageMetrics,) = optional(_FIGURES, "StorageMetrics") or (_Metrics,)


def tells_ends() -> bool:
    """Whether this version wants all ends of a prefix: ranks (and a host pool that is short of
    room) then agree on one of them."""
    return "restorable_prefix_pages" in getattr(PoolTransferResult, "__dataclass_fields__", {})


def hit_result(pages: int, by_pool: Dict[Any, int], ends: Optional[List[int]]) -> Any:
    """A PoolTransferResult."""
    return PoolTransferResult(pages, by_pool, *([ends] if tells_ends() else []))


def server_args() -> Any:
    """SGLang's own options, in its scheduler's process; None elsewhere."""
    found = optional("sglang.srt.server_args", "get_global_server_args")
    try:
        return found[0]() if found is not None else None
    except Exception:  # not set yet
        return None
