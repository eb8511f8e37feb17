"""The pool, through TarnConnector: both of its halves, called in the order in which vLLM's V1
engine calls them. Loads run between steps (`load_async`), so that nobody waits for another's
blocks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, Dict, NamedTuple, Optional, Set, Tuple

from tarn.vllm.stats import COUNTS

from .model import Model

LAYER = "model.layers.0.self_attn.attn"
KV_ROLES = {"both": "kv_both", "prefill": "kv_producer", "decode": "kv_consumer"}


class Outcome(NamedTuple):
    """Requests whose loads and saves are over, and blocks that did not arrive."""

    received: Set[str]
    sent: Set[str]
    invalid: Set[int]


NOTHING = Outcome(set(), set(), set())


class NoPool:
    """An engine by itself."""

    def bind(self, blocks: Any) -> None:
        pass

    def new(self, request: Any) -> None:
        pass

    def matched(self, request: Any, computed: int) -> Optional[int]:
        return 0

    def allocated(self, request: Any, external: int) -> None:
        pass

    def plan(self, out: Any) -> Any:
        return None

    def begin(self, meta: Any) -> None:
        pass

    def load(self) -> None:
        pass

    def end(self, meta: Any, finished: Set[str]) -> Outcome:
        return NOTHING

    def finished(self, request: Any) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return False, None

    def counts(self) -> Dict[str, int]:
        return {}

    def close(self) -> None:
        pass


class ConnectorPool:
    """url: tarn://... role: both, prefill or decode. engine: its id at the Conductor of the pool's
    server, "" where there is none. extra: options of the connector (docs/engines/VLLM.md)."""

    def __init__(
        self, url: str, model: Model, blocks: int, role: str, engine: str, extra: Dict[str, Any]
    ) -> None:
        from tarn.vllm import TarnConnector
        from tarn.vllm.base import Role

        cache = SimpleNamespace(num_blocks=blocks, kv_cache_groups=[object()])
        options = {"url": url, "load_async": True, "min_load_tokens": 0, **extra}
        options.setdefault("load", True)
        if engine:
            options["conductor"] = engine
        config = self._config(model, blocks, KV_ROLES[role], options)
        self._scheduler = TarnConnector(config, Role.SCHEDULER, cache)
        self._worker = TarnConnector(config, Role.WORKER, cache)
        self._tensor = model.cache
        self._counts: "Counter[str]" = Counter()
        self._worker.register_kv_caches({LAYER: self._tensor})
        self._worker.set_host_xfer_buffer_ops(None)
        self._scheduler.set_xfer_handshake_metadata({0: self._worker.get_handshake_metadata()})

    @staticmethod
    def _config(model: Model, blocks: int, role: str, options: Dict[str, Any]) -> Any:
        """What the connector reads of a VllmConfig."""
        return SimpleNamespace(
            kv_transfer_config=SimpleNamespace(
                kv_role=role,
                kv_load_failure_policy="recompute",
                kv_connector_extra_config=options,
            ),
            cache_config=SimpleNamespace(
                block_size=model.block, cache_dtype="auto", num_gpu_blocks=blocks
            ),
            model_config=SimpleNamespace(
                model=model.name,
                revision=None,
                dtype="torch.bfloat16",
                use_mla=True,  # so a block is one piece
                get_total_num_kv_heads=lambda: 1,
            ),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=1, pipeline_parallel_size=1, rank=0
            ),
        )

    # --- the scheduler's calls

    def bind(self, blocks: Any) -> None:
        self._scheduler.bind_gpu_block_pool(blocks)

    def new(self, request: Any) -> None:
        self._scheduler.on_new_request(request)

    def matched(self, request: Any, computed: int) -> Optional[int]:
        """Tokens behind those that the pool has; None: they are on their way, ask again."""
        external: Optional[int]
        external, asynchronous = self._scheduler.get_num_new_matched_tokens(request, computed)
        assert asynchronous or not external
        return external

    def allocated(self, request: Any, external: int) -> None:
        blocks = SimpleNamespace(get_block_ids=lambda: (list(request.blocks),))
        self._scheduler.update_state_after_alloc(request, blocks, external)

    def plan(self, out: Any) -> Any:
        return self._scheduler.build_connector_meta(out)

    def finished(self, request: Any) -> Tuple[bool, Optional[Dict[str, Any]]]:
        """True: its blocks are read until it is reported as sent."""
        delay, params = self._scheduler.request_finished(request, list(request.blocks))
        return bool(delay), params

    # --- the worker's calls

    def begin(self, meta: Any) -> None:
        """Blocks that were taken from requests are not read any more when this returns."""
        self._worker.handle_preemptions(meta)
        self._worker.bind_connector_metadata(meta)

    def load(self) -> None:
        self._worker.start_load_kv(None)

    def end(self, meta: Any, finished: Set[str]) -> Outcome:
        worker = self._worker
        worker.wait_for_layer_load(LAYER)
        worker.save_kv_layer(LAYER, self._tensor, None)
        worker.wait_for_save()
        sent, received = worker.get_finished(finished)
        invalid = worker.get_block_ids_with_load_errors()
        report = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        output = SimpleNamespace(
            finished_sending=sent,
            finished_recving=received,
            invalid_block_ids=invalid,
            kv_connector_worker_meta=report,
            kv_cache_events=None,
        )
        self._scheduler.update_connector_output(output)
        return Outcome(set(received or ()), set(sent or ()), set(invalid or ()))

    def counts(self) -> Dict[str, int]:
        """What both halves have counted, by its name in docs/engines/VLLM.md."""
        for half in self._scheduler, self._worker:
            part = half.get_kv_connector_stats()
            data = part.data if part is not None else {}
            self._counts.update({name: data[name] for name in COUNTS if name in data})
        return {name: self._counts[name] for name in COUNTS}

    def close(self) -> None:
        self._worker.shutdown()
        self._scheduler.shutdown()
