"""The workers' half of the connector: moves blocks between the KV cache and the pool.

Called by the thread that runs the model; saves, and loads between steps, run in threads of their
own (saver.py, loader.py). A step:

    bind  ->  start_load  ->  (wait_layer, save_layer) for each layer
        ->  save  ->  finished  ->  load_errors

Blocks that did not arrive are remembered in `_bad` until they are filled: what a step computes
after one of them is wrong, and must not be saved, however late the scheduler hears of it."""

import logging
import threading
from dataclasses import replace
import time
from typing import AbstractSet, Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .. import slices
from ..identity import digest
from ..keys import KeySpace, hash_text, shard_of
from .config import block_tokens_of, dtype_of, facts_of, Ranks, ranks_of, Settings
from .groups import layer_names
from .events import events_wanted
from .loader import LayerLoad, Loader
from .memory import HostMemory, Scratch, memory_of
from .meta import Format, FormatReport, Load, Save, Step
from .news import NewsDesk
from .pool import Pool
from .requests import traced
from .saver import Job, Saver
from .tensors import LayerView

__all__ = ["WorkerSide"]

log = logging.getLogger("tarn.vllm")


class WorkerSide:
    """See KVConnectorBase_V1 for what each method is called for."""

    def __init__(
        self,
        vllm_config: Any,
        settings: Settings,
        pool: Pool,
        copier: Optional[Callable[..., Any]] = None,
    ) -> None:
        """copier: see memory.memory_of."""
        self._config, self._settings, self._pool, self._copier = vllm_config, settings, pool, copier
        self.figures = pool.figures
        self.news = NewsDesk()
        self._ranks: Ranks = ranks_of(vllm_config)
        self._lock = threading.Lock()
        self._errors: Set[int] = set()
        self._bad: Set[int] = set()
        self._waiting: Set[str] = set()
        self._layer_load: Optional[LayerLoad] = None
        self._layers_saved: Set[int] = set()
        self._reported = False
        self._memory: Optional[HostMemory] = None

    # --- set-up

    def register(self, kv_caches: Dict[str, Any], blocks: int, form: Any = None) -> None:
        """Learns where the cache is. form: what decides the order of bytes in a block and is not to
        be seen in its tensors. ValueError: it has a form that is not supported."""
        s, ranks = self._settings, self._ranks
        shards, _, replicas, replica = ranks.shard
        heads = 0 if ranks.mla or ranks.dcp_size > 1 else ranks.kv_heads // shards
        memory = memory_of(
            kv_caches,
            blocks,
            heads,
            s.heads_axis,
            s.staging_mib << 20,
            s.save_threads + s.load_threads + 1,
            self._copier,
        )
        self._memory = memory
        self._index = {layer.name: i for i, layer in enumerate(memory.layers)}
        for name in kv_caches:  # layers that share another one's memory
            self._index.setdefault(name, -1)
        self._names = layer_names([layer.name for layer in memory.layers])
        layouts = sorted({layer.layout(ranks.kv_heads) for layer in memory.layers})
        content = digest(replace(facts_of(self._config), format=form))
        self.format = Format(f"{'+'.join(layouts)}-{content}", self._names)
        self._space = ranks.space(
            s, dtype_of(self._config), self.format.layout, block_tokens_of(self._config, ranks)
        )
        self._everything = list(range(len(memory.layers)))
        self._writer = (
            self._foreign(memory.layers) if s.writer_tp not in (0, ranks.tp_size) else None
        )
        self._stripe = (replicas, replica) if s.stripe else (1, 0)
        self._pool.on_connect = self._register_memory
        self._saver = Saver(memory, self._pool, s)
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

    def _foreign(
        self, layers: Sequence[LayerView]
    ) -> Tuple[KeySpace, Tuple[slices.Part, ...], Scratch]:
        """How blocks of writers with another tensor-parallel size are put together."""
        s, ranks = self._settings, self._ranks
        if ranks.mla or ranks.dcp_size > 1 or ranks.draft_apart:
            raise ValueError(
                "writer_tp: with MLA all sizes share their objects without it; with context "
                "parallelism, or a draft model with other heads, it does not work"
            )
        if len({layer[4:8] for layer in layers}) != 1 or layers[0].heads < 0 or s.layerwise:
            raise ValueError(
                "writer_tp: all layers must be alike, the axis of the heads known (heads_axis), "
                "and layerwise off"
            )
        axes = [
            ("heads" if i == layers[0].heads else "axis", size)
            for i, size in enumerate(layers[0].sizes)
        ]
        shape = slices.BlockShape.of(
            [("layers", len(layers)), *axes], ranks.kv_heads, layers[0].itemsize
        )
        parts = slices.plan(shape, s.writer_tp, ranks.tp_size, ranks.tp_rank)
        shards = shard_of(s.writer_tp, 0, ranks.kv_heads)[0]
        space = KeySpace(
            s.model, self._space.dtype, self._space.layout, self._space.block_tokens, shards, 0,
            ranks.pp_size, ranks.pp_rank, ranks.pcp_size, ranks.pcp_rank,
        )  # fmt: skip
        return space, parts, Scratch(slices.scratch_bytes(parts))

    def report(self) -> Optional[FormatReport]:
        """The format, with the output of the first step, and what is new."""
        if self._memory is None:
            return None
        news, form = self.news.take(), None if self._reported else self.format
        self._reported = True
        return FormatReport(form, news) if form is not None or news is not None else None

    # --- a step

    def bind(self, step: Step) -> None:
        """Before anything of the step runs: blocks that others get in it must not be read any
        more."""
        if self._memory is None:
            return
        self.fence(step.preempted)
        if step.reset:
            self._saver.discard()
        with self._lock:
            self._bad -= step.recomputed
        self._waiting.update(step.delayed)
        self._layers_saved.clear()
        for save in step.released:
            if not self._settings.layerwise:
                self._submit(save, None)
                continue
            for layer in self._everything:
                self._submit(save, [layer])

    def fence(self, preempted: AbstractSet[str]) -> None:
        """Blocks of these requests are not read any more when this returns."""
        if preempted and self._memory is not None:
            self._saver.forget(preempted)

    def start_load(self, step: Step) -> None:
        """Loads that the step computes with are done when this returns, or with layerwise on their
        way; others are queued."""
        if self._memory is None:
            self._lost(step.loads)
            return
        now = [load for load in step.loads if not load.asynchronous]
        with self._lock:
            for load in step.loads:
                self._bad.difference_update(load.blocks)
        mark = self._memory.mark() if step.loads else None
        for load in step.loads:
            if load.asynchronous:
                self._loader.submit(load, mark)
        if now and self._settings.layerwise:
            self._layer_load = LayerLoad(now, len(self._everything), self._load_now, mark)
        else:
            for load in now:
                self._load_now(load, None, mark)

    def wait_layer(self, name: str) -> None:
        """Until this layer of what start_load began is in its place."""
        index = self._index.get(name, -1) if self._memory is not None else -1
        if self._layer_load is not None and index >= 0:
            self._layer_load.wait(index)

    def save_layer(self, step: Step, name: str) -> None:
        """Queues one layer of this step's blocks, with layerwise."""
        index = self._index.get(name, -1) if self._memory is not None else -1
        if self._settings.layerwise and index >= 0 and index not in self._layers_saved:
            self._layers_saved.add(index)
            for save in step.saves:
                self._submit(save, [index])

    def save(self, step: Step) -> None:
        """Queues what the step has computed. Does not wait for it; see Saver.submit for how long it
        waits for room."""
        if self._memory is None:
            return
        if self._layer_load is not None:
            self._layer_load.wait_all()
            self._layer_load = None
        if not self._settings.layerwise:
            for save in step.saves:
                self._submit(save, None)
            return
        for index in self._everything:
            self.save_layer(step, self._memory.layers[index].name)

    def finished(self) -> Tuple[Set[str], Set[str], Set[str]]:
        """(requests whose blocks have all left, requests whose blocks have arrived or failed), each
        of them once; which of these have failed is said by block."""
        if self._memory is None:
            return set(), set(), set()
        sent = {name for name in self._waiting if not self._saver.busy(name)}
        self._waiting -= sent
        return sent, self._loader.take_finished(), set()

    def load_errors(self) -> Set[int]:
        """Blocks that did not arrive since the last call."""
        with self._lock:
            errors, self._errors = self._errors, set()
        return errors

    def close(self) -> None:
        """Ends the threads; what is queued is not saved."""
        if self._memory is not None:
            if self._layer_load is not None:  # of a step that broke off
                self._layer_load.wait_all()
            self._loader.close()
            self._saver.close()
            self._memory.close()
            self._memory = None
        self._pool.close()

    def stats(self) -> Dict[str, int]:
        return self._saver.stats() if self._memory is not None else {}

    # --- saving

    def _submit(self, save: Save, layers: Optional[List[int]]) -> None:
        """Queues a save, unless what it holds was computed after a block that did not arrive. Of
        ranks with the same bytes each puts every n-th block."""
        assert self._memory is not None
        with self._lock:
            if self._bad and not self._bad.isdisjoint(save.table):
                first = next(i for i, block in enumerate(save.table) if block in self._bad)
                keep = max(0, first - (len(save.table) - len(save.blocks)))
                self._saver.count_dropped(len(save.blocks) - keep)
                if keep == 0:
                    return
                save = replace(
                    save,
                    hashes=save.hashes[:keep],
                    blocks=save.blocks[:keep],
                    table=save.table[:first],
                )
        every, mine = self._stripe
        pairs = [
            (h, b) for h, b in zip(save.hashes, save.blocks) if every == 1 or h[-1] % every == mine
        ]
        if not pairs:
            return
        layer = None if layers is None else self._names[layers[0]]
        keys = self._space.keys([h for h, _ in pairs], layer=layer)
        self._saver.submit(
            Job(
                save.request,
                keys,
                [b for _, b in pairs],
                layers or self._everything,
                self._memory.mark(),
                hints=save.hints,
            )
        )

    # --- loading

    def _load(self, load: Load, layer: Optional[int], mark: Any) -> None:
        """Gets a request's blocks, or one layer of them; those that fail are noted."""
        assert self._memory is not None
        layers = self._everything if layer is None else [layer]
        began, done, whole = time.monotonic(), 0, True
        while done < len(load.blocks):
            count = min(
                self._settings.batch_blocks, self._memory.batch(layers, len(load.blocks) - done)
            )
            blocks = load.blocks[done : done + count]
            with self._memory.writing(layers, blocks, mark) as window, traced(load.trace):
                window.good = self._get(load, load.hashes[done : done + count], window, layer)
                lost = [b for b, good in zip(blocks, window.good) if not good]
            if lost:
                self._lose(lost)
            done, whole = done + count, whole and not lost
        if whole:
            self.news.loaded(load.request, time.monotonic() - began)

    def _load_now(self, load: Load, layer: Optional[int], mark: Any) -> None:
        """The same for a step that goes on in any case: what cannot be loaded is computed."""
        try:
            self._load(load, layer, mark)
        except Exception as error:
            self._load_failed(load, error)

    def _get(
        self, load: Load, hashes: Sequence[bytes], window: Any, layer: Optional[int]
    ) -> List[bool]:
        """Fills a window; which of its blocks arrived whole."""
        wait: Dict[str, Any] = {"timeout_ms": self._settings.timeout_ms, **load.hints}
        if self._writer is None:
            keys = self._space.keys(hashes, layer=None if layer is None else self._names[layer])
            results = self._pool.get(keys, window.addresses, window.sizes, **wait)
            return self._pool.distrust.whole(keys, results, [sum(s) for s in window.sizes])
        space, parts, scratch = self._writer
        names = [[space.with_shard(i).prefix for i in range(space.shards)]] * len(hashes)
        ends = [hash_text(h.hex()) for h in hashes]
        names = [[prefix + end for prefix in prefixes] for prefixes, end in zip(names, ends)]
        memory = [
            list(zip(addresses, sizes)) for addresses, sizes in zip(window.addresses, window.sizes)
        ]
        columns = slices.columns(parts, names, memory, scratch.span)
        results = self._pool.get(
            columns.keys,
            columns.addresses,
            columns.sizes,
            offsets=columns.offsets,
            wants=columns.wanted,
            **wait,
        )
        return columns.arrived(results, len(hashes))

    def _lose(self, blocks: Sequence[int]) -> None:
        with self._lock:
            self._errors.update(blocks)
            self._bad.update(blocks)

    def _lost(self, loads: Sequence[Load]) -> None:
        for load in loads:
            self._lose(load.blocks)

    def _load_failed(self, load: Load, error: BaseException) -> None:
        log.error(
            "loading %d blocks of request %s failed: %s", len(load.blocks), load.request, error
        )
        self._lose(load.blocks)
