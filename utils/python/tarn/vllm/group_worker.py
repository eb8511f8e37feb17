"""The workers' half of the connector for models with several KV groups, windows or states: what
WorkerSide is for one group of full attention.

A part's object is the block's bytes in every layer of its group, one layer after the other; layers
of other groups that lie in the same memory are no part of it. A step:

    bind  ->  start_load  ->  forward  ->  save  ->  finished  ->  load_errors, report"""

import logging
import threading
import time
from collections import Counter
from hashlib import sha256
from typing import AbstractSet, Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..keys import KeySpace
from .base import BY_REQUEST
from .config import Ranks, Settings, dtype_of, facts_of
from .events import events_wanted
from .groups import Group, Groups
from .loader import Loader
from .memory import HostMemory, memory_on
from .meta import GroupFormat, GroupLoad, GroupReport, GroupSave, GroupStep, Parts
from .news import NewsDesk
from .pool import Pool
from .requests import traced
from .saver import Job, Saver
from .tensors import LayerView, geometry_of, view_of

__all__ = ["GroupWorker"]

log = logging.getLogger("tarn.vllm")


class _Layers:
    """The tensors of all groups' layers, those of a group next to each other."""

    def __init__(self, kv_caches: Dict[str, Any], groups: Sequence[Group], blocks: int) -> None:
        self.views: List[LayerView] = []
        self.tensors: List[Any] = []
        self.of_group: List[List[int]] = []
        for group in groups:
            self.of_group.append([])
            seen: Set[int] = set()
            for name in group.layers:
                each = kv_caches.get(name, ())  # a layer may have no memory of its own
                for tensor in each if isinstance(each, (list, tuple)) else [each]:
                    address = geometry_of(tensor)[0]
                    if address not in seen:
                        seen.add(address)
                        self.of_group[-1].append(len(self.views))
                        self.views.append(view_of(name, tensor, blocks, group.rank_heads))
                        self.tensors.append(tensor)
        if not self.views:
            raise ValueError("kv_caches: no layer of any KV group is among them")


class GroupWorker:
    """See KVConnectorBase_V1 for what each method is called for."""

    def __init__(
        self,
        vllm_config: Any,
        settings: Settings,
        pool: Pool,
        groups: Groups,
        ranks: Ranks,
        copier: Optional[Callable[..., Any]] = None,
    ) -> None:
        """copier: see memory.memory_of."""
        self._config, self._settings, self._pool, self._copier = vllm_config, settings, pool, copier
        self._groups, self._ranks = groups.groups, ranks
        self.figures = pool.figures
        self.news = NewsDesk()
        self._lock = threading.Lock()
        self._errors: Set[int] = set()
        self._failed: Set[str] = set()  # and not reported as finished yet
        self._said_failed: Set[str] = set()
        self._jobs: List[int] = []  # whose blocks are read, perhaps
        self._unsaved: List[GroupSave] = []
        self._reported = False
        self._memory: Optional[HostMemory] = None

    # --- set-up

    def register(self, kv_caches: Dict[str, Any], blocks: int, form: Any = None) -> None:
        """Learns where the cache is. form: see WorkerSide. ValueError: it has a form that is not
        supported."""
        if form is not None:
            raise ValueError("cross_layers: vLLM has it for one group of full attention only")
        s, ranks = self._settings, self._ranks
        layers = _Layers(kv_caches, self._groups, blocks)
        self._views = layers.of_group
        together = [views for views in self._views if views]
        slots = s.save_threads + s.load_threads + 1
        self._memory = memory_on(
            layers.views, layers.tensors, s.staging_mib << 20, slots, self._copier, together
        )
        facts, dtype = facts_of(self._config), dtype_of(self._config)
        layouts = [
            group.layout(facts, [layers.views[i] for i in views], ranks)
            for group, views in zip(self._groups, self._views)
        ]
        self.format = GroupFormat(ranks.pp_rank, layouts)
        self._spaces: List[Optional[KeySpace]] = [
            group.space(s, dtype, ranks, layout) if layout else None
            for group, layout in zip(self._groups, layouts)
        ]
        self._stripes = [group.shard(ranks)[2:] if s.stripe else (1, 0) for group in self._groups]
        # Parts of all groups and ranks that end at the same token are evicted together.
        self._boundary = sha256(s.model.encode()).hexdigest()[:8]
        self._pool.on_connect = self._register_memory
        self._saver = Saver(self._memory, self._pool, s)
        if events_wanted(self._config):
            self._saver.on_stored = self.news.stored
        self._loader = Loader(s.load_threads, self._load, self._load_failed)

    def _register_memory(self, client: Any) -> None:
        """RDMA needs it; elsewhere it does no harm, and where it fails everything works by other
        ways."""
        for address, size in self._memory.spans() if self._memory else ():
            try:
                client.register_buffer(address, size)
            except Exception as error:
                log.info("memory of the KV cache was not registered: %s", error)

    # --- a step

    def bind(self, step: GroupStep) -> None:
        """Before anything of the step runs."""
        if self._memory is None:
            return
        if step.reset:
            self._saver.discard()
        elif not step.pinned:
            self._saver.drain()
        self._unsaved = list(step.saves)

    def start_load(self, step: GroupStep) -> None:
        if step.loads:
            assert self._memory is not None  # or the scheduler's half would not know its format
            mark = self._memory.mark()
            for load in step.loads:
                self._loader.submit(load, mark)

    def fence(self, preempted: AbstractSet[str]) -> None:
        """Nothing: pinned blocks are nobody else's, and others are not read any more."""

    def wait_layer(self, name: str) -> None:
        """Nothing: what a step computes with has arrived before it."""

    def save_layer(self, step: GroupStep, name: str) -> None:
        """Nothing: parts are saved whole."""

    def save(self, step: GroupStep) -> None:
        """Queues what the step has computed, and does not wait for it."""
        self._save_rest()

    def _save_rest(self) -> None:
        unsaved, self._unsaved = self._unsaved, []
        for save in unsaved:
            self._jobs.append(save.job)
            for parts in save.parts:
                self._submit(save, parts)

    def finished(self) -> Tuple[Set[str], Set[str], Set[str]]:
        """(nobody, for jobs are reported instead of requests; requests whose blocks have arrived,
        or not; those of them of which something has not), each once."""
        if self._memory is None:
            return set(), set(), set()
        self._save_rest()  # of a step that nothing was computed in
        arrived = self._loader.take_finished()
        with self._lock:
            failed = self._failed & arrived
            self._failed -= failed
            self._said_failed |= failed
        return set(), arrived, failed

    def load_errors(self) -> Set[int]:
        """Blocks that did not arrive since the last call, for releases that want to know them."""
        with self._lock:
            errors, self._errors = self._errors, set()
        return set() if BY_REQUEST else errors

    def report(self) -> Optional[GroupReport]:
        """What the scheduler's half wants to know, after finished."""
        if self._memory is None:
            return None
        report = GroupReport(news=self.news.take())
        if not self._reported:
            report.formats = {self.format.stage: self.format}
            self._reported = True
        report.done = Counter(job for job in self._jobs if not self._saver.busy(str(job)))
        self._jobs = [job for job in self._jobs if job not in report.done]
        with self._lock:
            report.failed, self._said_failed = self._said_failed, set()
        empty = report == GroupReport()
        return None if empty else report

    def close(self) -> None:
        """Ends the threads; what is queued is not saved."""
        if self._memory is not None:
            self._loader.close()
            self._saver.close()
            self._memory.close()
            self._memory = None
        self._pool.close()

    def stats(self) -> Dict[str, int]:
        return self._saver.stats() if self._memory is not None else {}

    # --- saving

    def _submit(self, save: GroupSave, parts: Parts) -> None:
        """Of ranks with the same bytes each puts every n-th block."""
        assert self._memory is not None
        space, (every, mine) = self._spaces[parts.group], self._stripes[parts.group]
        pairs = [
            (h, b)
            for h, b in zip(parts.hashes, parts.blocks)
            if every == 1 or h[-1] % every == mine
        ]
        if space is None or not pairs:
            return
        self._saver.submit(
            Job(
                str(save.job),
                space.keys([h for h, _ in pairs]),
                [b for _, b in pairs],
                self._views[parts.group],
                self._memory.mark(),
                [self._boundary + h.hex()[-24:] for h, _ in pairs],
                save.hints,
            )
        )

    # --- loading

    def _load(self, load: GroupLoad, layer: Optional[int], mark: Any) -> None:
        """Gets a request's parts; it fails if one of them does not arrive."""
        if load.lacking:
            raise RuntimeError(f"vLLM has no blocks for {load.lacking} parts of it")
        began = time.monotonic()
        with traced(load.trace):
            lost = [block for parts in load.parts for block in self._load_parts(load, parts, mark)]
        if lost:
            self._lose(load, lost)
        else:
            self.news.loaded(load.request, time.monotonic() - began)

    def _load_parts(self, load: GroupLoad, parts: Parts, mark: Any) -> List[int]:
        """Returns the blocks that did not arrive."""
        assert self._memory is not None
        space, views = self._spaces[parts.group], self._views[parts.group]
        lost: List[int] = []
        done = 0
        while space is not None and done < len(parts.blocks):
            left = len(parts.blocks) - done
            count = min(self._settings.batch_blocks, self._memory.batch(views, left))
            blocks = parts.blocks[done : done + count]
            keys = space.keys(parts.hashes[done : done + count])
            with self._memory.writing(views, blocks, mark) as window:
                results = self._pool.get(
                    keys,
                    window.addresses,
                    window.sizes,
                    timeout_ms=self._settings.timeout_ms,
                    **load.hints,
                )
                sizes = [sum(sizes) for sizes in window.sizes]
                window.good = self._pool.distrust.whole(keys, results, sizes)
                lost += [b for b, good in zip(blocks, window.good) if not good]
            done += count
        return lost

    def _lose(self, load: GroupLoad, blocks: Sequence[int]) -> None:
        with self._lock:
            self._failed.add(load.request)
            self._errors.update(blocks)

    def _load_failed(self, load: GroupLoad, error: BaseException) -> None:
        log.error("loading request %s failed: %s", load.request, error)
        self._lose(load, [block for parts in load.parts for block in parts.blocks])
