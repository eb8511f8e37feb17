"""A secondary tier for vLLM's OffloadingConnector: CPU blocks that cascade into a tarn pool, and
come back from it.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {
         "spec_name": "TarnOffloadingSpec", "spec_module_path": "tarn.vllm.offload",
         "cpu_bytes_to_use": 10737418240,
         "secondary_tiers": [{"type": "tarn", "url": "tarn://10.0.0.1:6479"}]}}'

A block of the primary tier (all workers' parts of one chunk of tokens) is one object, put and read
in place.

Threads: vLLM calls everything from its scheduler's thread, and nothing here waits there but
`drain_jobs` and `shutdown`. Look-ups and transfers run in libtarn's own threads (option `workers`
of the client, 2), through one bounded queue. Nothing raises once the engine runs: a pool that is
away is a miss, and a transfer that failed."""

from __future__ import annotations

import importlib
import logging
import time
from collections import deque
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from functools import partial
from typing import Any, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from .. import options
from .._figures import BYTES, COUNTS, Growth, client_counts
from .._hints import hints_of, no_hints
from .._link import Link, optional, settings
from ..client import Client
from ..errors import Error, InvalidArgument, QueueFull, Status
from ..identity import Facts, digest, first
from ..keys import joined
from ..memory import Pinned, pin
from ..queue import Completion, Queue


class _LookupResult(Enum):
    """LookupResult where vLLM is not installed."""

    MISS = auto()
    HIT = auto()
    HIT_PENDING = auto()
    RETRY = auto()


@dataclass
class _JobResult:
    """JobResult where vLLM is not installed."""

    job_id: int
    success: bool
    successful_keys: Optional[List[bytes]] = None
    transfer_time: Optional[float] = None


@dataclass
class _Context:
    """RequestOffloadingContext where vLLM is not installed."""

    policy: str = "block_level"


@dataclass(frozen=True)
class _Counter:
    """OffloadingCounterMetadata where vLLM is not installed."""

    documentation: str
    labelnames: Tuple[str, ...] = ()


_OFFLOAD, _FIGURES = (
    "vllm.v1.kv_offload",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics",
)
_Base: Any
_Base, JobResult = optional(f"{_OFFLOAD}.tiering.base", "SecondaryTierManager", "JobResult") or (
    object,
    _JobResult,
)
LookupResult, RequestOffloadingContext, OffloadingCounterMetadata = optional(
    f"{_OFFLOAD}.base", "LookupResult", "RequestOffloadingContext", "OffloadingCounterMetadata"
) or (_LookupResult, _Context, _Counter)
# Older versions know less of what became of a job, and have no names for kinds of storage.
_RESULT_FIELDS = {f.name for f in fields(JobResult)}
_medium = optional(f"{_OFFLOAD}.base", "Medium")
_locality = optional(f"{_OFFLOAD}.base", "Locality")
(OffloadingConnectorStats,) = optional(_FIGURES, "OffloadingConnectorStats") or (None,)

log = logging.getLogger(__name__)
OPTIONS = (
    "url",
    "namespace",
    "timeout_ms",
    "client",
    "put",
    "max_jobs",
    "lookup_timeout_ms",
    "locality",
    "hints",
)
LOCALITIES = ("LOCAL", "REMOTE")
STATES_MAX = 1 << 20  # blocks whose look-ups are remembered; beyond, look-ups are misses
_METRICS = {
    "stored_blocks": "Blocks that the tarn tier stored, or found stored by others.",
    "stored_bytes": "Bytes that the tarn tier stored.",
    "loaded_blocks": "Blocks that the tarn tier loaded.",
    "loaded_bytes": "Bytes that the tarn tier loaded.",
    "failed_stores": "Blocks that the tarn tier could not store.",
    "failed_loads": "Blocks that the tarn tier could not load.",
    "lookups": "Blocks that the tarn tier was asked for.",
    "lookup_hits": "Blocks that were there.",
    # of libtarn
    **{f"client_{name}": f"{text}." for name, text in COUNTS.items()},
    **{
        f"client_{way}_bytes_{transport}": f"{text} ({transport})."
        for way, text in BYTES.items()
        for transport in ("shm", "tcp", "rdma")
    },
}


def metric_name(name: str) -> str:
    """Prometheus' name of one of our counters."""
    return f"vllm:kv_offload_tarn_{name}"


@dataclass
class _State:
    """What is known of a block: None while the pool is being asked (since `asked`), and the
    requests that want to know."""

    there: Optional[bool]
    requests: Set[str]
    asked: float


@dataclass
class _Work:
    """A batch on its way: "lookup", "store" or "load"; `began` when it was submitted (monotonic
    seconds)."""

    kind: str
    job_id: int
    keys: List[bytes]
    names: List[str]
    addresses: List[int]
    began: float
    hints: options.HintKeywords = field(default_factory=no_hints)


# Words in the names of what vLLM says about the bytes of its blocks; of ours all, of others what
# has one of these in its name.
_TELLING = ("layout", "format", "dtype", "quant", "compress", "encod", "scale")
_KNOWN = ("canonical_layout", "kv_cache_layout", "replicated_layout", "storage_format")


def _canonical_layout(config: Any) -> Any:
    """vLLM's layout that is no worker's: which one, and its version; None: blocks are as the
    workers have them."""
    if not getattr(config, "canonical_layout", False):
        return None
    version = optional(
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping",
        "CANONICAL_FORMAT_VERSION",
    )
    return [version[0] if version is not None else None, first(config, "kv_cache_layout")]


def _other_facts(*sources: Any) -> Any:
    found = {}
    for source in sources:
        for name, value in getattr(source, "__dict__", {}).items():
            telling = any(word in name.lower() for word in _TELLING) and name not in _KNOWN
            if (
                telling
                and not name.startswith("_")
                and isinstance(value, (bool, int, str))
                and value not in ("", False)
            ):
                found[name] = value
    return found or None


def facts_of(spec: Any, block_bytes: int) -> Facts:
    """What an OffloadingSpec says about the bytes of a block. What vLLM's own file mapper has in
    its names is here; sizes of the parallelism do not count where it does not count them: where a
    block is the same for all, or one copy of what all workers have."""
    config = spec.config
    parallel, cache = config.parallel, config.cache
    replicated = bool(getattr(config, "replicated_layout", False))
    agnostic = bool(getattr(parallel, "is_parallelism_agnostic", False))
    sizes = {n: int(getattr(parallel, n)) for n in ("tp_size", "pp_size", "pcp_size", "dcp_size")}
    return Facts(
        cache_dtype=str(config.model.dtype),
        tokens_per_hash=cache.tokens_per_hash,
        blocks_per_chunk=cache.blocks_per_chunk,
        block_bytes=block_bytes,
        groups=[[g.tokens_per_block, list(g.layer_names)] for g in config.groups],
        layout=first(config, "kv_cache_layout"),
        canonical=_canonical_layout(config),
        storage=first(spec, "storage_format"),
        sharing="replicated" if replicated else "agnostic" if agnostic else None,
        parallel=None if replicated or agnostic else sizes,
        others=_other_facts(config, config.model, cache, spec),
    )


def _locality_of(value: Any, where: str) -> Any:
    """vLLM's Locality of the option; None: nothing is said. InvalidArgument: another word."""
    if value is None:
        return None
    word = str(value).upper()
    if word not in LOCALITIES:
        raise InvalidArgument(f"{where}: locality is {' or '.join(LOCALITIES)}, not {value!r}")
    return _locality[0](word) if _locality is not None else word


class TarnTierManager(_Base):  # type: ignore[misc]
    """SecondaryTierManager on a tarn pool, in vLLM's scheduler process: see the module's text."""

    medium = _medium[0].STORAGE if _medium is not None else None

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str = "tarn",
        *,
        url: Optional[str] = None,
        namespace: Optional[str] = None,
        timeout_ms: Optional[int] = None,
        client: Optional[Mapping[str, Any]] = None,
        put: Optional[Mapping[str, Any]] = None,
        max_jobs: int = 1024,
        lookup_timeout_ms: int = 1000,
        locality: Optional[str] = None,
        hints: Any = True,
        backpressure_detector: Any = None,
        **unknown: Any,
    ) -> None:
        """`offloading_spec.config`: vLLM's OffloadingConfig. `primary_kv_view`: blocks by bytes,
        C-contiguous, writable. The rest comes from the tier's entry in "secondary_tiers": `url`
        (else TARN_URL, TARN_CONFIG_PATH), `namespace` in front of every key, `timeout_ms` of a
        batch, options of the `client`, options of `put`s; `max_jobs`: how many batches may be
        queued (as many again wait here, and what is more than both fails at once);
        `lookup_timeout_ms`: how long requests wait for an answer; `locality`, "LOCAL" or "REMOTE":
        what requests that choose their tiers go by; `hints`: the pool's eviction policy is told the
        session of a request. `backpressure_detector`: vLLM's own.

        InvalidArgument, PermissionDenied: the configuration. A server that is not there yet is
        waited for later."""
        where = f"secondary tier '{tier_type}'"
        if unknown:
            raise InvalidArgument(
                f"{where}: no option is called '{min(unknown)}': there are {', '.join(OPTIONS)}"
            )
        if _Base is not object:
            # Only vLLM since 0.30 has one.
            detector = () if backpressure_detector is None else (backpressure_detector,)
            super().__init__(offloading_spec, primary_kv_view, tier_type, *detector)
        self.tier_type = tier_type
        self.locality = _locality_of(locality, where)
        given = {
            "url": url,
            "namespace": namespace,
            "timeout_ms": timeout_ms,
            "client": client,
            "put": put,
        }
        chosen = settings({k: v for k, v in given.items() if v is not None}, where)
        self._max_jobs = options.number(max_jobs, f"{where}: max_jobs", 1, 65536)
        self._hints = options.truth(hints, f"{where}: hints")
        self._patience_s = options.number(lookup_timeout_ms, f"{where}: lookup_timeout_ms") / 1000
        if (
            primary_kv_view.ndim != 2
            or not primary_kv_view.c_contiguous
            or primary_kv_view.readonly
        ):
            raise InvalidArgument(
                "primary_kv_view: it must be writable, and (blocks, bytes of a block) in one piece"
            )
        self._memory: Optional[Pinned] = pin(primary_kv_view, True, "primary_kv_view")
        assert primary_kv_view.shape is not None and primary_kv_view.strides is not None
        self._base, self._blocks, self._block = (
            self._memory.address,
            primary_kv_view.shape[0],
            primary_kv_view.strides[0],
        )
        content = digest(facts_of(offloading_spec, self._block))
        model = str(offloading_spec.config.model.name)
        self._prefix = joined(chosen.namespace, "vllm-offload", model, content) + "@"
        self._gets, self._puts = chosen.get_options(), chosen.put_options()
        # Blocks of several KV groups that end at one token: one is worth little without the others.
        self._together = len(offloading_spec.config.groups) > 1 and "group" not in self._puts
        self._queue: Optional[Queue] = None
        self._states: Dict[bytes, _State] = {}
        self._of_request: Dict[str, Set[bytes]] = {}
        self._wanted: List[bytes] = []  # looked up since the last step
        self._waiting: Deque[_Work] = deque()  # for a place in the queue
        self._under_way: Set[int] = set()  # in the queue
        self._finished: List[Any] = []
        self._counts: Dict[str, float] = dict.fromkeys(_METRICS, 0)
        self._growth = Growth()
        self._link = Link(chosen, log, f"tarn tier '{tier_type}'", in_background=True)
        self._link.on_connect(self._prepare)

    def _prepare(self, client: Client) -> None:
        if self._memory is None:  # shut down while the connection was made
            return
        self._queue = client.queue(self._max_jobs)
        client.register_buffer(self._base, self._blocks * self._block)

    # --- look-ups

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """RETRY until the pool has been asked, which happens at the step's end; then HIT or MISS
        for as long as the request lives. MISS also when the answer takes longer than
        lookup_timeout_ms: it counts again when it is there."""
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= STATES_MAX or not self._link.up:
                return LookupResult.MISS
            state = self._states[key] = _State(None, set(), time.monotonic())
            self._wanted.append(key)
        if req_context.req_id not in state.requests:
            state.requests.add(req_context.req_id)
            self._of_request.setdefault(req_context.req_id, set()).add(key)
        if state.there is None:
            late = time.monotonic() - state.asked > self._patience_s
            return LookupResult.MISS if late else LookupResult.RETRY
        return LookupResult.HIT if state.there else LookupResult.MISS

    def on_new_request(self, req_context: Any) -> Any:
        """Blocks are stored as they are computed."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets what only this request wanted to know."""
        for key in self._of_request.pop(req_context.req_id, ()):
            state = self._states.get(key)
            if state is not None:
                state.requests.discard(req_context.req_id)
                if not state.requests:
                    del self._states[key]

    def on_schedule_end(self, context: Any) -> None:
        """Asks the pool for what was looked up in this step."""
        self._take()
        if self._wanted:
            keys = [k for k in self._wanted if k in self._states]
            self._wanted = []
            if keys:
                self._counts["lookups"] += len(keys)
                self._submit(_Work("lookup", -1, keys, self._names(keys), [], time.monotonic()))

    # --- transfers

    def submit_store(self, job_metadata: Any) -> None:
        """Stores blocks of the primary tier; the engine keeps them as they are until the job is
        reported as finished."""
        self._submit_job("store", job_metadata)

    def submit_load(self, job_metadata: Any) -> None:
        """Loads blocks into the primary tier. One that cannot be had fails the job, for itself
        alone where vLLM can tell (and takes no other with it); look-ups of it are misses from then
        on."""
        self._submit_job("load", job_metadata)

    def get_finished_jobs(self) -> Iterable[Any]:
        """Jobs that finished since the last call. Does not wait."""
        self._take()
        finished, self._finished = self._finished, []
        return finished

    def has_pending_work(self) -> bool:
        """Whether the engine should go on stepping for our sake."""
        return bool(self._under_way or self._waiting or self._wanted or self._finished)

    def drain_jobs(self) -> None:
        """Waits until every job has finished: each ends by its timeout at the latest."""
        warn_at = time.monotonic() + 5
        while self._under_way or self._waiting:
            self._take(timeout_ms=100)
            if time.monotonic() > warn_at:
                log.warning(
                    "tarn tier '%s': still waiting for %d batches",
                    self.tier_type,
                    len(self._under_way),
                )
                warn_at = time.monotonic() + 60

    def shutdown(self) -> None:
        """Ends what runs, and lets go of the primary tier's memory; nothing may be called after
        it."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()
        self._waiting.clear()
        self._under_way.clear()
        self._link.close()
        self._memory = None

    def _names(self, keys: Sequence[bytes]) -> List[str]:
        # An OffloadKey is the block's hash and, in its last four bytes, the number of its group of
        # layers.
        return [f"{self._prefix}{k[:-4].hex()}@g{int.from_bytes(k[-4:], 'big')}" for k in keys]

    def _boundaries(self, keys: Sequence[bytes]) -> Optional[List[str]]:
        return [self._prefix + k[:-4].hex() for k in keys] if self._together else None

    def _hints_of(self, job: Any) -> options.HintKeywords:
        context = getattr(job, "req_context", None)
        if context is None or not self._hints:
            return {}
        params = getattr(context, "kv_transfer_params", None)
        return hints_of(getattr(context, "req_id", None), params)

    def _submit_job(self, kind: str, job: Any) -> None:
        keys = [bytes(k) for k in job.keys]
        slots = (
            job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids
        )  # as older versions call them
        blocks = [int(b) for b in slots]
        work = _Work(kind, job.job_id, keys, [], [], time.monotonic(), self._hints_of(job))
        if len(blocks) != len(keys) or any(not 0 <= b < self._blocks for b in blocks):
            self._link.complain(
                kind,
                f"job {job.job_id}: {len(keys)} keys, and blocks that the primary tier does not "
                "have",
            )
            self._fail(work)
            return
        work.names, work.addresses = self._names(keys), [
            self._base + b * self._block for b in blocks
        ]
        if not keys:
            self._finish(work, [])
        else:
            self._submit(work)

    def _submit(self, work: _Work) -> None:
        if self._waiting or not self._start(work):
            if len(self._waiting) < self._max_jobs:
                self._waiting.append(work)
            else:
                self._link.complain(
                    "queue",
                    f"more than {2 * self._max_jobs} batches at a time: this {work.kind} is given "
                    "up",
                )
                self._fail(work)

    def _start(self, work: _Work) -> bool:
        """Hands a batch to the queue. False: there is no place; anything else that is wrong ends
        the batch."""
        queue = self._queue if self._link.client() is not None else None
        if queue is None:
            self._fail(work)
            return True
        again: List[bool] = []
        try:
            if work.kind == "lookup":
                number = queue.exists(work.names, work)
            elif work.kind == "store":
                again = self._link.distrust.take(work.names)
                number = queue.put(
                    work.names,
                    work.addresses,
                    self._block,
                    work,
                    keep=self._memory,
                    replace=any(again),
                    boundary=self._boundaries(work.keys),
                    **self._puts,
                    **work.hints,
                )
            else:
                number = queue.get(
                    work.names,
                    work.addresses,
                    self._block,
                    work,
                    keep=self._memory,
                    **self._gets,
                    **work.hints,
                )
        except QueueFull:
            self._link.distrust.add_all(work.names, again)
            self._link.unused()
            return False
        except Error as e:
            self._link.distrust.add_all(work.names, again)
            self._link.unused()
            self._link.complain(f"{work.kind} {e.name}", str(e))
            self._fail(work)
            return True
        self._under_way.add(number)
        return True

    def _take(self, timeout_ms: int = 0) -> None:
        """Takes completions out, and hands what waits to the queue."""
        while self._queue is not None and self._under_way:
            done = self._queue.poll(256, timeout_ms)
            for completion in done:
                self._under_way.discard(completion.id)
                self._complete(completion)
            if done and not self._link.up:
                # What has not begun would wait for the same timeout, one after the other.
                for number in self._under_way:
                    self._queue.cancel(number)
            timeout_ms = 0
            if len(done) < 256:
                break
        while self._waiting and self._start(self._waiting[0]):
            self._waiting.popleft()

    def _complete(self, completion: Completion) -> None:
        work: _Work = completion.user
        if completion.status:
            if completion.status != Status.ECANCELED:
                self._link.report(work.kind, completion.status)
            self._fail(work)
            return
        results = completion.results
        if work.kind == "lookup":
            there = [r == 0 for r in results]
            for key, found in zip(work.keys, there):
                self._learn(key, found)
            self._counts["lookup_hits"] += sum(there)
            self._link.report(work.kind, 0)
            return
        if work.kind == "store":
            good = self._link.stored("store", results)
            self._count("stored", good, sum(r == 0 for r in results), "failed_stores")
        else:
            sizes = [self._block] * len(results)
            good = self._link.whole("load", work.names, results, sizes, int(Status.ENOTFOUND))
            self._count("loaded", good, sum(good), "failed_loads")
            for key, well in zip(work.keys, good):
                if not well:
                    self._learn(key, False)
        self._link.report(work.kind, 0)
        self._finish(work, good)

    def _finish(self, work: _Work, good: Sequence[bool]) -> None:
        """Reports a job; `good`: which of its keys are done."""
        more: Dict[str, Any] = {"transfer_time": time.monotonic() - work.began}
        if work.kind == "load" and any(good) and not all(good):
            more["successful_keys"] = [k for k, well in zip(work.keys, good) if well]
        known = {n: v for n, v in more.items() if n in _RESULT_FIELDS}
        self._finished.append(JobResult(work.job_id, all(good), **known))

    def _count(self, what: str, good: Sequence[bool], moved: int, failed: str) -> None:
        self._counts[f"{what}_blocks"] += sum(good)
        self._counts[f"{what}_bytes"] += moved * self._block
        self._counts[failed] += len(good) - sum(good)

    def _learn(self, key: bytes, there: bool) -> None:
        state = self._states.get(key)
        if state is not None:
            state.there = there

    def _fail(self, work: _Work) -> None:
        if work.kind != "store":
            for key in work.keys:
                self._learn(key, False)
        if work.kind != "lookup":
            self._counts["failed_stores" if work.kind == "store" else "failed_loads"] += len(
                work.keys
            )
            self._finish(work, [False] * max(len(work.keys), 1))

    # --- figures

    @classmethod
    def build_metric_definitions(cls, extra_config: Mapping[str, Any]) -> Dict[str, Any]:
        """Our counters, for Prometheus."""
        return {
            metric_name(n): OffloadingCounterMetadata(documentation=text)
            for n, text in _METRICS.items()
        }

    def _add_libtarn(self) -> None:
        client = self._link.present
        if client is None:
            return
        try:
            grown = self._growth.take(partial(client_counts, client))
        except Error:  # it is closed
            return
        for name, n in grown.items():
            way, _, transport = name.partition(":")
            known = f"client_{way}_{transport}" if transport else f"client_{name}"
            if known in _METRICS:
                self._counts[known] += n

    def take_counts(self) -> Dict[str, float]:
        """What happened since the last call, by the names of _METRICS."""
        counts, self._counts = self._counts, dict.fromkeys(_METRICS, 0)
        return counts

    def get_stats(self) -> Any:
        """The same as vLLM's OffloadingConnectorStats; None where nothing happened."""
        if OffloadingConnectorStats is None:
            return None
        self._add_libtarn()
        if not any(self._counts.values()):
            return None
        stats = OffloadingConnectorStats()
        for name, count in self.take_counts().items():
            if count:
                stats.increase_counter(metric_name(name), count)
        return stats

    @property
    def troubles(self) -> Dict[str, int]:
        """What went wrong so far, by kind."""
        return dict(self._link.troubles)


def register() -> None:
    """Makes "type": "tarn" known to vLLM's secondary tiers; does nothing where they are not. May be
    called many times."""
    found = optional(f"{_OFFLOAD}.tiering.factory", "SecondaryTierFactory")
    if found is None:
        return
    try:
        found[0].get_tier_class({"type": "tarn"})
    except ValueError:
        found[0].register_tier("tarn", __name__, "TarnTierManager")


def __getattr__(name: str) -> Any:
    """TarnOffloadingSpec: vLLM's TieringOffloadingSpec with our tier registered, for
    "spec_module_path"."""
    if name != "TarnOffloadingSpec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    spec = importlib.import_module(f"{_OFFLOAD}.tiering.spec")
    register()
    return spec.TieringOffloadingSpec
