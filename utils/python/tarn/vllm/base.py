"""vLLM's own classes where vLLM is installed, plain ones of the same names where it is not, so that
this folder imports and is tested without it. Nothing else here imports vLLM."""

import enum
from dataclasses import dataclass, field
from typing import Any, List, Set

from .._link import optional

__all__ = [
    "BY_REQUEST",
    "BlockRemoved",
    "BlockStored",
    "ConnectorBase",
    "EventsBase",
    "HandshakeMetadata",
    "HashesOfBlocks",
    "Metadata",
    "PromBase",
    "Role",
    "StatsBase",
    "SupportsHMA",
    "TransferResults",
    "VLLM",
    "WorkerMetadata",
    "block_sizes_of",
    "kind_of_spec",
    "published_hash",
]


class _Plain:
    """A base without anything, for what a version of vLLM does not have."""


@dataclass
class _Results:
    """What has become of transfers since the last time, by request. What has failed has finished,
    too."""

    finished_sending: Set[str] = field(default_factory=set)
    finished_recving: Set[str] = field(default_factory=set)
    failed_recving: Set[str] = field(default_factory=set)


try:
    from vllm.distributed.kv_transfer.kv_connector.v1 import base as _v1

    VLLM = True
    ConnectorBase: Any = _v1.KVConnectorBase_V1
    Metadata: Any = _v1.KVConnectorMetadata
    Role: Any = _v1.KVConnectorRole
    HandshakeMetadata: Any = getattr(_v1, "KVConnectorHandshakeMetadata", _Plain)
    WorkerMetadata: Any = getattr(_v1, "KVConnectorWorkerMetadata", _Plain)
    SupportsHMA: Any = getattr(_v1, "SupportsHMA", _Plain)
    TransferResults: Any = getattr(_v1, "KVConnectorTransferResults", _Results)
except ImportError:
    VLLM = False
    Metadata = HandshakeMetadata = WorkerMetadata = SupportsHMA = _Plain
    TransferResults = _Results

    class _Role(enum.Enum):
        SCHEDULER = 0
        WORKER = 1

    class _Base:
        """What vLLM's base does for its subclasses: it keeps the configuration and the metadata of
        the present step."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
            self._connector_metadata: Any = None
            self._vllm_config = vllm_config
            self._kv_transfer_config = vllm_config.kv_transfer_config
            self._kv_cache_config = kv_cache_config
            self._role = role

        @property
        def role(self) -> Any:
            return self._role

        def bind_connector_metadata(self, connector_metadata: Any) -> None:
            self._connector_metadata = connector_metadata

        def clear_connector_metadata(self) -> None:
            self._connector_metadata = None

        def has_connector_metadata(self) -> bool:
            return self._connector_metadata is not None

        def _get_connector_metadata(self) -> Any:
            assert self._connector_metadata is not None
            return self._connector_metadata

    Role, ConnectorBase = _Role, _Base


class _Stats:
    """KVConnectorStats: figures under their names, which subclasses add up."""

    def __init__(self, data: Any = None) -> None:
        self.data = {} if data is None else data


class _Prom:
    """KVConnectorPromMetrics: the classes of the metrics, which vLLM chooses."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> None:
        kinds = {kind.__name__: chosen for kind, chosen in metric_types.items()}
        self._gauge_cls, self._counter_cls = kinds["Gauge"], kinds["Counter"]
        self._histogram_cls = kinds["Histogram"]


@dataclass
class _BlockStored:
    """Blocks that are somewhere, each the next one's parent."""

    block_hashes: List[Any]
    parent_block_hash: Any
    token_ids: List[int]
    block_size: int
    lora_id: Any
    medium: Any
    lora_name: Any
    group_idx: Any = None
    kv_cache_spec_kind: Any = None
    kv_cache_spec_sliding_window: Any = None
    locality: Any = None
    ownership: Any = None


@dataclass
class _BlockRemoved:
    """Blocks that are there no more."""

    block_hashes: List[Any]
    medium: Any
    group_idx: Any = None
    locality: Any = None
    ownership: Any = None


_metrics = "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
_events = "vllm.distributed.kv_events"
StatsBase: Any
PromBase: Any
EventsBase: Any
BlockStored: Any
BlockRemoved: Any
(StatsBase,) = optional(_metrics, "KVConnectorStats") or (_Stats,)
(PromBase,) = optional(_metrics, "KVConnectorPromMetrics") or (_Prom,)
(EventsBase,) = optional(_events, "KVConnectorKVEvents") or (_Plain,)
BlockStored, BlockRemoved = optional(_events, "BlockStored", "BlockRemoved") or (
    _BlockStored,
    _BlockRemoved,
)

# Functions of vLLM's that say how its own events name blocks; None: this release has no such thing.
_utils = "vllm.v1.core.kv_cache_utils"
(HashesOfBlocks,) = optional(_utils, "BlockHashListWithBlockSize") or (None,)
(published_hash,) = optional(_utils, "maybe_convert_block_hash") or (None,)
(block_sizes_of,) = optional(_utils, "resolve_kv_cache_block_sizes") or (None,)
(kind_of_spec,) = optional("vllm.v1.kv_cache_interface", "get_kv_cache_spec_kind") or (None,)

# Releases until the summer of 2026 are told of loads that failed by blocks, which with several KV
# groups ends vLLM's scheduler in some of them, and makes others compute the request from its start.
# Later ones are told by request, and end when they are told by blocks.
BY_REQUEST = TransferResults is not _Results or not VLLM
