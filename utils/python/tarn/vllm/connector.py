"""TarnConnector: vLLM's V1 KV connector on a tarn pool.

    vllm serve MODEL --kv-transfer-config '{
        "kv_connector": "TarnConnector", "kv_connector_module_path": "tarn.vllm",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"url": "tarn://host:6479"}}'

vLLM makes one object in the scheduler's process and one in every worker's; the two halves are in
scheduler.py and worker.py, for models with several KV groups, windows or states in
group_scheduler.py and group_worker.py, and this class only deals the calls out.
docs/engines/VLLM.md is the guide."""

import logging
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

from ..keys import escape
from ..options import truth
from . import events
from .base import ConnectorBase, Role, SupportsHMA, TransferResults
from .config import Settings, ranks_of, settings_of
from .events import Announcer, Follower, KindOf, StoredKeys, events_wanted, hash_unit_of
from .group_scheduler import GroupScheduler
from .group_worker import GroupWorker
from .groups import groups_of
from .meta import Format, FormatReport, GroupFormat, GroupReport, GroupStep, Step
from .pool import Pool
from .scheduler import SchedulerSide
from .stats import TarnPrometheus, TarnStats
from .worker import WorkerSide

__all__ = ["TarnConnector"]


log = logging.getLogger("tarn.vllm")


def _warn_of_policy(vllm_config: Any, settings: Settings) -> None:
    policy = getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", "recompute")
    if settings.load and policy != "recompute":
        log.warning(
            "vLLM ends a request with an error when one of its blocks cannot be loaded: add "
            '"kv_load_failure_policy": "recompute" to --kv-transfer-config, beside "kv_role", and '
            "it computes the block anew"
        )


class TarnConnector(ConnectorBase, SupportsHMA):  # type: ignore[misc]
    """KV cache blocks in a tarn pool, shared by all engines that serve the same model.

    Full attention and multi-head latent attention, and models with several KV groups: windows and
    states of recurrent layers (Mamba in align mode) beside it. A pool that is away is a miss:
    nothing here fails because of it, except the configuration."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        try:
            super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        except TypeError:  # releases before kv_cache_config was handed on
            super().__init__(vllm_config=vllm_config, role=role)
        self._blocks = int(getattr(kv_cache_config, "num_blocks", 0) or 0)
        settings = settings_of(vllm_config)
        ranks = ranks_of(vllm_config, 0 if role == Role.SCHEDULER else None)
        groups = groups_of(vllm_config, kv_cache_config, settings, ranks)
        timeouts = {
            "timeout_ms": settings.timeout_ms,
            "connect_timeout_ms": min(settings.timeout_ms, 2000),
        }
        if role == Role.SCHEDULER:
            _warn_of_policy(vllm_config, settings)
        self._scheduler: Union[SchedulerSide, GroupScheduler, None] = None
        self._announcer: Optional[Announcer] = None
        self._follower: Optional[Follower] = None
        self._worker: Union[WorkerSide, GroupWorker, None] = None
        if role == Role.SCHEDULER:
            timeouts = dict.fromkeys(timeouts, settings.lookup_timeout_ms)
            pool = self._pool(settings, timeouts)
            self._scheduler = (
                SchedulerSide(vllm_config, settings, pool)
                if groups is None
                else GroupScheduler(vllm_config, settings, pool, groups, ranks)
            )
            if events_wanted(vllm_config):
                self._announce(vllm_config, kv_cache_config, settings, pool)
        else:
            pool = self._pool(settings, timeouts)
            self._worker = (
                WorkerSide(vllm_config, settings, pool, self._copier())
                if groups is None
                else GroupWorker(vllm_config, settings, pool, groups, ranks, self._copier())
            )

    def _announce(
        self, vllm_config: Any, kv_cache_config: Any, settings: Settings, pool: Pool
    ) -> None:
        """Tells vLLM's listeners what this engine has in the pool."""
        assert self._scheduler is not None
        unit = hash_unit_of(vllm_config, kv_cache_config, self._scheduler.block_tokens)
        groups = getattr(kv_cache_config, "kv_cache_groups", None) or ()
        self._announcer = Announcer(settings.event_medium, unit, [KindOf.of(g) for g in groups])
        connect = partial(pool.another, settings.timeout_ms + events.WAIT_MS)
        self._follower = Follower(
            self._announcer, connect, escape(settings.model) + "@", settings.retry_ms / 1000
        )
        self._scheduler.announcer = self._announcer

    def _pool(self, settings: Any, timeouts: Dict[str, int]) -> Pool:
        """The connection; for subclasses with another one. InvalidArgument, PermissionDenied: the
        URL."""
        pool = Pool(settings.url, settings.retry_ms, timeouts)
        pool.check()
        return pool

    def _copier(self) -> Any:
        """How to reach the KV cache's memory (memory.memory_of); None: as its tensors say. For
        subclasses."""
        return None

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not saved is a miss later on, nothing worse."""
        return False

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """Where vLLM can, all layers of a block next to each other: one piece to move instead of
        one or two for each layer. By option, because the order of a block's bytes is another."""
        one = len(getattr(self._kv_cache_config, "kv_cache_groups", None) or ()) <= 1
        return one and settings_of(self._vllm_config).cross_layers

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> Optional[str]:
        """What the option kv_layout says, or nothing."""
        return settings_of(vllm_config).kv_layout or None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: Dict[str, Any]) -> bool:
        """Layer by layer works only where Python runs between the layers."""
        return truth(extra_config.get("layerwise", False), "layerwise")

    # --- figures

    def get_kv_connector_stats(self) -> Optional[TarnStats]:
        """What either half has counted since the last call."""
        half = self._worker or self._scheduler
        data = half.figures.take() if half is not None else None
        return TarnStats(data=data) if data is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> TarnStats:
        """data: vLLM's, which more than one of its loggers has."""
        return TarnStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> TarnPrometheus:
        return TarnPrometheus(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # --- KV events

    def get_kv_connector_kv_cache_events(self) -> Optional[StoredKeys]:
        """What this worker has put since the last call. Where nobody calls this, as under vLLM's
        MultiConnector, build_connector_worker_meta says it."""
        keys = self._worker.news.take_stored() if self._worker is not None else []
        return StoredKeys(keys) if keys else None

    def take_events(self) -> List[Any]:
        return self._announcer.take() if self._announcer is not None else []

    # --- the scheduler's half

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.bind(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> Tuple[Optional[int], bool]:
        assert self._scheduler is not None
        return self._scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Union[Step, GroupStep]:
        assert self._scheduler is not None
        return self._scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        if self._announcer is not None:
            keys = getattr(connector_output, "kv_cache_events", None)
            news = getattr(
                getattr(connector_output, "kv_connector_worker_meta", None), "news", None
            )
            self._announcer.stored(keys.get_all_events() if isinstance(keys, StoredKeys) else ())
            self._announcer.stored(news.stored if news is not None else ())
        if self._scheduler is not None:
            self._scheduler.update_connector_output(connector_output)

    def request_finished(
        self, request: Any, block_ids: List[int]
    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[List[int]]
    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        assert self._scheduler is not None
        return self._scheduler.request_finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        """Keeps the engine going for a step when blocks of finished requests wait to be saved."""
        return self._scheduler is not None and self._scheduler.holds

    def has_pending_block_frees(self) -> bool:
        """vLLM waits for blocks that are pinned while they are put, rather than preempt somebody.
        Those of finished requests it counts by itself."""
        return isinstance(self._scheduler, GroupScheduler) and self._scheduler.holds

    def reset_cache(self) -> Optional[bool]:
        return self._scheduler.reset_cache() if self._scheduler is not None else None

    def set_xfer_handshake_metadata(self, metadata: Dict[Any, Any]) -> None:
        """Under vLLM's MultiConnector it is another connector's, perhaps; then the workers' first
        output says the same."""
        for form in metadata.values():
            if isinstance(form, (Format, GroupFormat)) and self._scheduler is not None:
                self._scheduler.set_format(form)  # type: ignore[arg-type]

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Dict[Any, Any]) -> None:
        self.set_xfer_handshake_metadata(metadata)

    # --- the workers' half

    def _block_count(self) -> int:
        return self._blocks or int(self._vllm_config.cache_config.num_gpu_blocks)

    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        assert self._worker is not None
        self._worker.register(kv_caches, self._block_count())

    def register_cross_layers_kv_cache(self, kv_cache: Any, attn_backend: Any) -> None:
        """vLLM may hand over plain bytes, so how the backend lays them out is said beside them."""
        assert self._worker is not None
        order = getattr(attn_backend, "get_kv_cache_stride_order", None)
        form = ["cross-layer", attn_backend.__name__]
        try:
            form.append(str(order(include_num_layers_dimension=True)) if order else "")
        except (NotImplementedError, TypeError):
            form.append("")
        self._worker.register({"layers": kv_cache}, self._block_count(), form)

    def set_host_xfer_buffer_ops(self, copy_operation: Any) -> None:
        """Not used: workers copy by themselves (memory.TorchCopier)."""

    def get_handshake_metadata(self) -> Union[Format, GroupFormat, None]:
        return getattr(self._worker, "format", None)

    def build_connector_worker_meta(self) -> Union[FormatReport, GroupReport, None]:
        return self._worker.report() if self._worker is not None else None

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Before blocks are overwritten. Releases differ in whether this or bind_connector_metadata
        comes first, or exists."""
        if self._worker is not None and isinstance(kv_connector_metadata, Step):
            self._worker.fence(kv_connector_metadata.preempted)
        elif self._worker is not None and isinstance(kv_connector_metadata, (set, frozenset)):
            self._worker.fence(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.bind(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._worker is not None
        self._worker.start_load(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        assert self._worker is not None
        self._worker.wait_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        assert self._worker is not None
        if self.has_connector_metadata():
            self._worker.save_layer(self._get_connector_metadata(), layer_name)

    def wait_for_save(self) -> None:
        """Hands the step's blocks to the threads that save. Nothing is waited for here: blocks stay
        until they are reported."""
        assert self._worker is not None
        if self.has_connector_metadata():
            self._worker.save(self._get_connector_metadata())

    def get_finished(
        self, finished_req_ids: Set[str]
    ) -> Tuple[Optional[Set[str]], Optional[Set[str]]]:
        """For releases that do not ask get_transfer_results."""
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending or None, results.finished_recving or None

    def get_transfer_results(self, finished_req_ids: Set[str]) -> Any:
        assert self._worker is not None
        sent, arrived, failed = self._worker.finished()
        return TransferResults(
            finished_sending=sent, finished_recving=arrived, failed_recving=failed
        )

    def get_block_ids_with_load_errors(self) -> Set[int]:
        return self._worker.load_errors() if self._worker is not None else set()

    def stats(self) -> Dict[str, int]:
        """Blocks by what became of them, of a worker; tokens looked up and found, of the
        scheduler."""
        if self._worker is not None:
            return self._worker.stats()
        return (
            {"looked_up": self._scheduler.looked_up, "found": self._scheduler.found}
            if self._scheduler
            else {}
        )

    def shutdown(self) -> None:
        if self._follower is not None:
            self._follower.close()
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()
