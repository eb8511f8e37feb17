"""The scheduler's half of the connector: what of a prompt is in the pool, what to load, what to
save, when blocks may go.

One object per scheduler, used by its thread only. A request's life here:

    get_num_new_matched_tokens    again while there is no room, and when it was preempted or a load
            |                     failed
    update_state_after_alloc
            |
    build_connector_meta          once a step while it runs
            |
    request_finished"""

import logging
import time
from dataclasses import replace
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._hints import told_hints
from ..chain import Chain
from ..conductor import KeysTeller
from ..keys import KeySpace, shard_of
from ..kv_groups import KVGroup
from ..options import HintKeywords
from .ahead import Ahead
from .config import Ranks, Settings, batches_of, block_tokens_of, dtype_of, ranks_of
from .cost import Judge
from .damage import NOWHERE, Damage
from .events import Announcer
from .meta import Format, FormatReport, Load, Save, Step
from .news import News
from .pool import Pool
from .requests import announced_by, chain_of, hints_for, look_again, scheduled_in, trace_of, traced
from .reset import Reset

__all__ = ["SchedulerSide"]

log = logging.getLogger("tarn.vllm")


class Tracked:
    """A request. saved: its first blocks that are in the pool or on their way there. sent: some of
    its blocks are read by workers. cap: blocks from this one on are not loaded, because that has
    failed before. known: tokens that vLLM had computed, and those loaded from the pool. held: saves
    that wait for the outcome of a load, and the step that brings them. stale: it has blocks from
    before a reset."""

    __slots__ = (
        "request",
        "chain",
        "blocks",
        "saved",
        "sent",
        "cap",
        "prefill",
        "counted",
        "came",
        "hits",
        "hits_until",
        "match",
        "known",
        "held",
        "spoilt",
        "stale",
        "hints",
    )

    def __init__(self, request: Any, chain: Chain, hints: HintKeywords) -> None:
        self.request, self.chain, self.hints = request, chain, hints
        self.blocks: List[int] = []
        self.saved = 0
        self.sent = False
        self.cap = NOWHERE
        self.prefill = int(request.num_tokens)
        self.came = time.monotonic()  # itself, and later the last blocks that it waits for
        self.counted = False
        self.hits = 0
        self.hits_until = 0.0
        self.match: Tuple[int, int] = (0, 0)
        self.known = 0
        self.held: List[Tuple[int, Save]] = []
        self.spoilt = NOWHERE  # see damage.py
        self.stale = False

    def restart(self) -> None:
        """It has lost its blocks and will be scheduled as if it were new, with what it has
        generated as part of the prompt."""
        self.blocks, self.held, self.spoilt, self.stale = [], [], NOWHERE, False
        self.saved, self.sent, self.hits_until, self.match = 0, False, 0.0, (0, 0)
        self.prefill = int(self.request.num_tokens)


class SchedulerSide:
    """See KVConnectorBase_V1 for what each method is called for."""

    def __init__(self, vllm_config: Any, settings: Settings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        self.figures = pool.figures
        self._ranks: Ranks = ranks_of(vllm_config, 0)
        self._dtype = dtype_of(vllm_config)
        self.block_tokens = block_tokens_of(vllm_config, self._ranks)
        if (
            settings.load
            and not settings.load_async
            and batches_of(vllm_config, self._ranks) > self._ranks.pp_size
        ):
            log.warning(
                "steps are planned ahead (asynchronous scheduling): a block that is evicted "
                "between look-up and load can leave its request "
                "hanging in some releases of vLLM; set load_async, or start vLLM with "
                "--no-async-scheduling"
            )
        self._space: Optional[KeySpace] = None  # until a worker has said how its blocks lie
        self._ahead = Ahead(pool, self._names)
        self._layers: Tuple[Any, ...] = (None,)
        self._all_layers: Tuple[Any, ...] = (None,)
        self._requests: Dict[str, Tracked] = {}
        self._loads: List[Load] = []
        self._delayed: List[str] = []
        self._damage = Damage(self.block_tokens)
        self.looked_up = self.found = 0
        # A block that does not arrive on one rank spoils what all ranks compute after it, and the
        # others do not know; nor do steps that are planned ahead. So what is computed on top of
        # blocks whose outcome is open is held until the outcome of that step is known.
        self._batches = batches_of(vllm_config, self._ranks)
        self._judge = Judge(settings.min_load_tokens, self._batches)
        self._reset = Reset(pool, settings, self._batches)
        self._steps = 0
        self._open: Dict[
            int, int
        ] = {}  # block -> the step that is planned when its outcome is known
        self._held: Dict[str, Tracked] = {}
        self._gone: List[
            Tuple[int, List[int]]
        ] = []  # tables that requests lost while the outcome was open, until it is known
        self.announcer: Optional[Announcer] = None  # where KV events are wanted
        self._teller: Optional[KeysTeller] = None
        self._block_pool: Any = None  # vLLM's own, where it is handed over

    def bind(self, block_pool: Any) -> None:
        if hasattr(block_pool, "evict_blocks"):
            self._block_pool = block_pool

    def set_format(self, form: Format) -> None:
        """What the workers' blocks look like. Before that nothing can be looked up."""
        if self._space is not None:
            return
        space = self._ranks.space(self._settings, self._dtype, form.layout, self.block_tokens)
        if self._settings.writer_tp:
            shards = shard_of(
                self._settings.writer_tp, 0, self._ranks.kv_heads, mla=self._ranks.mla
            )[0]
            space = replace(space, shards=shards, shard=0)
        self._space = space
        if self._settings.conductor:
            names = [KVGroup(each.prefix, block=self.block_tokens) for each in space.all()]
            self._teller = self._pool.teller(self._settings, names, *2 * (self.block_tokens,))
        self._all_layers = tuple(form.layers) if self._settings.layerwise else (None,)
        if self._settings.layerwise:
            self._layers = tuple(dict.fromkeys((form.layers[0], form.layers[-1])))

    def _track(self, request: Any) -> Optional[Tracked]:
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            chain = chain_of(request, self.block_tokens, self._settings.revision)
            if chain is None:
                return None
            hints = hints_for(request, self._settings.hints)
            tracked = self._requests[request.request_id] = Tracked(request, chain, hints)
        return tracked

    @staticmethod
    def _hash(tracked: Tracked, tokens: int) -> List[bytes]:
        """Hashes of the blocks that so many tokens fill."""
        chain = tracked.chain
        if chain.tokens < tokens:
            chain.extend(tracked.request.all_token_ids[chain.tokens : tokens])
        return chain.hashes

    def _look_up(self, tracked: Tracked, blocks: int) -> int:
        """How many of the first blocks are in the pool. An answer is good for half the lease that
        came with it."""
        now = time.monotonic()
        if now < tracked.hits_until:
            return tracked.hits
        assert self._space is not None
        hashes = self._hash(tracked, blocks * self.block_tokens)[:blocks]
        names, each = self._space.lookup_keys(hashes, self._layers)
        with traced(trace_of(tracked.request)):
            hits = self._pool.prefix(
                names,
                self._settings.lookup_lease_ms,
                self._settings.lookup_timeout_ms,
                **tracked.hints,
            )
        tracked.hits = hits // each
        tracked.hits_until = now + self._settings.lookup_lease_ms / 2000
        return tracked.hits

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> Tuple[Optional[int], bool]:
        """How many tokens after those already computed can be loaded: whole blocks, and never the
        last token of the prompt, which must be computed to have something to sample from. None: ask
        again, a prefill elsewhere is not done with it."""
        tracked = self._track(request)
        if tracked is not None:
            tracked.known = num_computed_tokens
        if (
            tracked is None
            or not self._settings.load
            or self._space is None
            or self._reset.under_way
            or num_computed_tokens % self.block_tokens
        ):
            return 0, False
        start = num_computed_tokens // self.block_tokens
        limit = min((request.num_tokens - 1) // self.block_tokens, tracked.cap)
        if limit <= start:
            return 0, False
        hits = min(self._look_up(tracked, limit), limit)
        if hits > tracked.saved:
            tracked.came = time.monotonic()
        tracked.saved = max(tracked.saved, hits)
        announced = min(announced_by(request) // self.block_tokens, limit)
        if hits < announced and time.monotonic() < tracked.came + self._settings.arrival_ms / 1000:
            tracked.hits_until = min(tracked.hits_until, look_again(tracked.came))
            return None, False
        tracked.match = (start, hits)
        found = max(0, hits - start) * self.block_tokens
        loads = found > 0 and self._judge.choose(
            request.request_id, found, partial(self._tier, tracked, hits), must=announced > 0
        )
        if not tracked.counted:
            tracked.counted = True
            self.figures.count(
                looked_up_tokens=(limit - start) * self.block_tokens,
                hit_tokens=found,
                left_tokens=0 if loads else found,
            )
        return (found, self._settings.load_async) if loads else (0, False)

    def _tier(self, tracked: Tracked, hits: int) -> str:
        """Where the last block of a hit is: the ends of prefixes leave memory first."""
        assert self._space is not None
        return self._pool.tier(
            self._space.key(tracked.chain.hashes[hits - 1], layer=self._layers[-1])
        )

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plans the load of what was found, into the blocks that it got."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or num_external_tokens <= 0:
            return
        ids = list(blocks.get_block_ids()[0])
        start, hits = tracked.match
        count = num_external_tokens // self.block_tokens
        end = min(start + count, hits, len(ids))
        tracked.blocks, tracked.known = ids, tracked.known + num_external_tokens
        asynchronous = self._settings.load_async
        hashes = tracked.chain.hashes[start:end]
        self._loads.append(
            Load(
                request.request_id,
                hashes,
                ids[start:end],
                asynchronous,
                trace_of(request),
                tracked.hints,
            )
        )
        self._judge.begins(request.request_id)
        self._damage.load(ids[start:end])
        if not asynchronous:
            self._open.update(dict.fromkeys(ids[start:end], self._steps + 1 + self._batches))
        self.looked_up += int(request.num_tokens)
        self.found += (end - start) * self.block_tokens

    def _save(self, step: Step, tracked: Tracked, computed: int, scheduled: int) -> None:
        """Adds the blocks that this step fills, and those before that nobody has saved."""
        size = self.block_tokens
        if not self._settings.save or self._settings.writer_tp not in (0, self._ranks.tp_size):
            return
        if tracked.stale or self._reset.under_way:
            return
        tokens = min(
            computed + scheduled, tracked.request.num_tokens
        )  # drafts that may be rejected are not among these
        if not self._settings.save_decode:
            tokens = min(tokens, tracked.prefill)
        if tracked.cap != NOWHERE:
            # A step that was planned ahead may have sampled a token from what was computed after a
            # block that did not arrive, and vLLM may have kept it: the tokens of this request
            # beyond its prompt are not to be relied on.
            tokens = min(tokens, tracked.request.num_prompt_tokens)
        end = self._damage.right(tracked, tokens // size)
        start = tracked.saved
        if end <= start:
            return
        hashes = self._hash(tracked, end * size)
        save = Save(
            tracked.request.request_id,
            hashes[start:end],
            tracked.blocks[start:end],
            tracked.blocks[:end],
            tracked.hints,
        )
        due = (
            max((self._open.get(block, 0) for block in save.table), default=0) if self._open else 0
        )
        if due > self._steps:
            tracked.held.append((due, save))
            self._held[tracked.request.request_id] = tracked
        else:
            step.saves.append(save)
        if self.announcer is not None:
            self._plan_events(tracked, start, end)
        tracked.sent = True
        tracked.saved = end

    def _plan_events(self, tracked: Tracked, start: int, end: int) -> None:
        """Blocks that will be put, perhaps."""
        assert self.announcer is not None
        if self._space is None:
            return
        names, each = self._space.lookup_keys(tracked.chain.hashes[start:end], self._all_layers)
        size = self.block_tokens
        for i in range(end - start):
            keys = names[i * each : (i + 1) * each]
            self.announcer.plan(tracked.request, 0, size, (start + i + 1) * size, keys)

    def _release(self, step: Step) -> None:
        """Adds what was held and turned out to be right. A finished request is reported after its
        last save."""
        self._steps += 1
        self._open = {block: due for block, due in self._open.items() if due > self._steps}
        self._gone = [item for item in self._gone if item[0] > self._steps]
        for name, tracked in list(self._held.items()):
            step.released += [save for due, save in tracked.held if due <= self._steps]
            tracked.held = [item for item in tracked.held if item[0] > self._steps]
            if not tracked.held:
                del self._held[name]
        step.delayed = [name for name in self._delayed if name not in self._held]
        self._delayed = [name for name in self._delayed if name in self._held]

    def _leave(self, tracked: Tracked) -> None:
        """A request loses its blocks: if some of them do not arrive, vLLM must not find what was
        computed after them."""
        if self._open and not self._open.keys().isdisjoint(tracked.blocks):
            self._gone.append((self._steps + self._batches + 1, tracked.blocks))

    def _strange(self, tracked: Tracked, computed: int) -> None:
        """Under vLLM's MultiConnector another one may fill blocks, in this step, and fail."""
        size = self.block_tokens
        blocks = tracked.blocks[tracked.known // size : -(-computed // size)]
        if computed > tracked.known:
            self._open.update(dict.fromkeys(blocks, self._steps + self._batches))

    @property
    def holds(self) -> bool:
        """Does anything wait for a later step?"""
        return bool(self._held) or self._reset.holds

    def build_connector_meta(self, output: Any) -> Step:
        """What the workers do in this step."""
        step = Step(
            loads=self._loads,
            preempted=set(getattr(output, "preempted_req_ids", None) or ()),
            reset=self._reset.step(),
        )
        now = [load.request for load in step.loads if not load.asynchronous]
        self._judge.planned(output.num_scheduled_tokens.values(), now)
        self._loads = []
        for name in step.preempted:
            if name in self._requests:
                self._leave(self._requests[name])
                self._requests[name].restart()
        self._release(step)
        work: List[Tuple[Tracked, int, int]] = []
        for item in scheduled_in(output):
            tracked = self._requests.get(item.name)
            if tracked is None:
                continue
            if item.resumed:
                tracked.stale = False
            if item.anew:
                tracked.blocks = []
            tracked.blocks.extend(item.blocks[0] if item.blocks else ())
            if item.anew:
                self._strange(tracked, item.computed)
            work.append((tracked, item.computed, item.scheduled))
        step.recomputed = self._damage.compute(work)
        for tracked, computed, scheduled in work:
            self._save(step, tracked, computed, scheduled)
        return step

    def on_new_request(self, request: Any) -> None:
        """Requests are saved, too, where none are loaded. Of those that are, the pool hears before
        their turn comes."""
        tracked = self._track(request)
        if tracked is not None and self._settings.load and self._space is not None:
            self._ahead.ask(tracked.chain, request.prompt_token_ids[:-1])

    def _names(self, hashes: List[bytes], first: int) -> Sequence[str]:
        """All keys of these blocks."""
        assert self._space is not None
        return self._space.lookup_keys(hashes, self._all_layers)[0]

    def update_connector_output(self, output: Any) -> None:
        """What the workers said after a step."""
        report = getattr(output, "kv_connector_worker_meta", None)
        news = News()
        if isinstance(report, FormatReport):
            if report.format is not None:
                self.set_format(report.format)
            news = report.news or news
        self._judge.told(news.took, getattr(output, "finished_recving", None) or ())
        invalid = set(getattr(output, "invalid_block_ids", None) or ())
        if not invalid:
            return
        useless = set(invalid)
        for tracked in self._held.values():
            tracked.held = [item for item in tracked.held if invalid.isdisjoint(item[1].table)]
        for _, table in self._gone:
            first = next((i for i, block in enumerate(table) if block in invalid), len(table))
            useless.update(table[first:])
        for tracked in self._requests.values():
            first = self._damage.lose(tracked.blocks, invalid)
            if first >= 0:
                tracked.saved = min(tracked.saved, first)
                tracked.cap = min(tracked.cap, first)
                tracked.match = (0, 0)
                tracked.hits_until = 0.0
                useless.update(tracked.blocks[first:])
        # vLLM has its own prefix cache believe in blocks as soon as it has planned to fill them,
        # and goes on doing so when the request that was to compute them anew is preempted or
        # aborted before.
        if self._block_pool is not None:
            self._block_pool.evict_blocks(useless)

    def request_finished(
        self, request: Any, tables: Sequence[Sequence[int]]
    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        """True: the blocks are read by workers, perhaps; vLLM keeps them until they are reported.
        Never for a request whose load between steps is under way, which vLLM keeps by itself, and
        of which two reports would end it: such a request has not run since it got its blocks, so
        nothing of it was sent."""
        tracked = self._requests.pop(request.request_id, None)
        self._judge.forget(request.request_id)
        if tracked is None:
            return False, None
        self._leave(tracked)
        params, asked = None, getattr(request, "kv_transfer_params", None)
        if self._settings.save and (not self._settings.load or asked):
            params = {**told_hints(asked), "tarn_tokens": tracked.saved * self.block_tokens}
        delay = tracked.sent and bool(tables[0])
        if delay:
            self._delayed.append(request.request_id)
        return delay, params

    def reset_cache(self) -> Optional[bool]:
        """Removes every object of this model, because its weights changed, say."""
        if self._space is None:
            return None
        for tracked in self._requests.values():
            tracked.hits_until, tracked.match, tracked.saved = 0.0, (0, 0), 0
            tracked.stale = bool(tracked.blocks)
        for tracked in self._held.values():
            tracked.held = []
        return self._reset.ask()

    def close(self) -> None:
        self._ahead.close()
        if self._teller is not None:
            self._teller.close()
        self._pool.close()
