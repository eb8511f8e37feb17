"""The scheduler's half of the connector for models with several KV groups, windows or states: what
SchedulerSide is for one group of full attention.

One look-up answers for all groups and ranks, with a lease on exactly what will be read. Loads run
between steps, so that a step never computes with what has not arrived, and a request of which
something is missing starts over. Saved blocks are pinned one by one (pins.py), for vLLM takes those
of windows and states back while their request runs."""

import logging
import time
from functools import partial
from itertools import count
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

from .._hints import told_hints
from ..chain import Chain
from ..conductor import KeysTeller
from ..keys import hash_text
from ..kv_groups import KVBoundary, KVGroup, KVParts
from ..options import HintKeywords
from .ahead import Ahead
from .config import Ranks, Settings, batches_of, dtype_of
from .cost import Judge
from .events import Announcer
from .groups import Group, Groups
from .meta import GroupFormat, GroupLoad, GroupReport, GroupSave, GroupStep, Parts
from .news import News
from .pins import Pins
from .pool import Pool
from .requests import announced_by, chain_of, look_again, scheduled_in, states_in
from .requests import hints_for, trace_of, traced
from .reset import Reset

__all__ = ["GroupScheduler"]

log = logging.getLogger("tarn.vllm")

_NOTHING = KVBoundary(0, ())
_STATELESS_MAX = 16  # boundaries without a state until that is said


class GroupRequest:
    """A request. tables: its blocks, of each of vLLM's tables. saved: of each group, the first
    blocks that are in the pool, or on their way there, or not needed. states: those on their way
    there, by table and the token that they end at. found, good_until: what a look-up has said, and
    how long that holds. came: when it did, and later when more was found than `most` before. known:
    tokens that vLLM had computed, and those loaded from the pool. failed: a load of it has failed,
    so nothing of it is loaded again. stale: it has blocks from before a reset. spoilt: a sibling's
    load of it has failed within a step, so what it has sampled since is not to be relied on."""

    def __init__(self, request: Any, chain: Chain, groups: Groups, hints: HintKeywords) -> None:
        self.request, self.chain, self.hints = request, chain, hints
        self.tables: List[List[int]] = [[] for _ in range(groups.tables)]
        self.saved = [0] * len(groups.groups)
        self.states: Set[Tuple[int, int]] = set()
        self.prefill = int(request.num_tokens)
        self.came, self.most = time.monotonic(), 0
        self.found, self.good_until = _NOTHING, 0.0
        self.known = 0
        self.failed = self.counted = self.spoilt = self.stale = False
        self._ends: Dict[bytes, int] = {}

    def hashes(self, tokens: int) -> List[bytes]:
        """Those of all that so many tokens fill."""
        chain = self.chain
        if chain.tokens < tokens:
            chain.extend(self.request.all_token_ids[chain.tokens : tokens])
        return chain.hashes[: tokens // chain.block_tokens]

    def end_of(self, name: bytes) -> int:
        """The token at whose end this hash is."""
        known = len(self._ends)
        for n, other in enumerate(self.chain.hashes[known:], known + 1):
            self._ends[other] = n * self.chain.block_tokens
        return self._ends[name]

    def forget(self) -> None:
        """What was said to be in the pool is not."""
        self.found = _NOTHING
        self.saved = [0] * len(self.saved)
        self.states.clear()

    def restart(self) -> None:
        """It has lost its blocks and will be scheduled as if it were new, with what it has
        generated as part of the prompt."""
        self.tables = [[] for _ in self.tables]
        self.good_until, self.stale = 0.0, False
        self.prefill = int(self.request.num_tokens)


class _Loading(NamedTuple):
    """A load under way: what the lease that protects it names, and when to extend it."""

    hashes: List[bytes]
    boundary: int
    renew_at: float
    hints: HintKeywords


class _Held(NamedTuple):
    """States whose blocks are pinned, until the step at which it is known whether what they were
    computed from has arrived. beside: all blocks of their request."""

    due: int
    save: GroupSave
    beside: FrozenSet[int]


class GroupScheduler:
    """See KVConnectorBase_V1 for what each method is called for."""

    def __init__(
        self, vllm_config: Any, settings: Settings, pool: Pool, groups: Groups, ranks: Ranks
    ) -> None:
        self._settings, self._pool, self._groups, self._ranks = settings, pool, groups, ranks
        self.figures = pool.figures
        self._batches = batches_of(vllm_config, ranks)
        self._judge = Judge(settings.min_load_tokens, self._batches)
        self._reset = Reset(pool, settings, self._batches)
        self._dtype = dtype_of(vllm_config)
        self._formats: Dict[int, Sequence[str]] = {}
        self._ahead = Ahead(pool, self._names)
        self._asked: List[Tuple[int, KVGroup]] = []  # until all stages have said their formats
        self._requests: Dict[str, GroupRequest] = {}
        self._loads: List[GroupLoad] = []
        self._loading: Dict[str, _Loading] = {}
        self._jobs = count(1)
        self._steps = 0
        self._open: Dict[int, int] = {}  # block -> the step at which it is known to have arrived
        self._held: List[_Held] = []
        self._pins = Pins(None, 1)
        # Boundaries passed so far without a state from vLLM; -1: it hands them over, or has none.
        self._stateless = 0 if any(g.kind == "state" for g in groups.groups) else -1
        self.block_tokens = groups.unit
        self.announcer: Optional[Announcer] = None  # where KV events are wanted
        self._teller: Optional[KeysTeller] = None
        self.looked_up = self.found = 0

    def bind(self, block_pool: Any) -> None:
        self._pins = Pins(block_pool, self._ranks.tp_size * self._ranks.pp_size)

    def set_format(self, form: GroupFormat) -> None:
        """What the blocks of a stage's workers look like. Before all have said so nothing can be
        looked up."""
        self._formats[form.stage] = form.layouts
        if not self._asked and len(self._formats) == self._ranks.pp_size:
            self._asked = self._groups.asked(
                self._settings, self._dtype, self._ranks, self._formats
            )
            if self._settings.conductor:
                names = [group for _, group in self._asked]
                self._teller = self._pool.teller(
                    self._settings, names, self._groups.unit, self._groups.align
                )

    def on_new_request(self, request: Any) -> None:
        """Requests are saved, too, where none are loaded. Of those that are, the pool hears before
        their turn comes."""
        tracked = self._track(request)
        if tracked is not None and self._settings.load and self._asked:
            self._ahead.ask(tracked.chain, request.prompt_token_ids[:-1])

    def _names(self, hashes: List[bytes], first: int) -> List[str]:
        """Keys of what every boundary needs: which parts of windows and states are read, only the
        look-up will tell."""
        unit = self._groups.unit
        return [
            group.name + hash_text(each.hex())
            for n, each in enumerate(hashes, first + 1)
            for _, group in self._asked
            if group.kind == "full" and n * unit % group.block == 0
        ]

    def _track(self, request: Any) -> Optional[GroupRequest]:
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            chain = chain_of(request, self._groups.unit, self._settings.revision)
            if chain is None:
                return None
            hints = hints_for(request, self._settings.hints)
            tracked = GroupRequest(request, chain, self._groups, hints)
            self._requests[request.request_id] = tracked
        return tracked

    # --- looking up and loading

    def _ask(
        self, hashes: Sequence[bytes], groups: Sequence[KVGroup], hints: HintKeywords
    ) -> KVBoundary:
        return self._pool.kv_prefix(
            hashes,
            groups,
            unit=self._groups.unit,
            align=self._groups.align,
            lease_ms=self._settings.lookup_lease_ms,
            timeout_ms=self._settings.lookup_timeout_ms,
            **hints,
        )

    def _look_up(self, tracked: GroupRequest) -> KVBoundary:
        """The longest prefix in the pool that leaves the last token to be computed, which must be
        to have something to sample from. An answer is good for half the lease that came with it."""
        now = time.monotonic()
        if now >= tracked.good_until:
            hashes = tracked.hashes(int(tracked.request.num_tokens) - 1)
            with traced(trace_of(tracked.request)):
                tracked.found = self._ask(
                    hashes, [group for _, group in self._asked], tracked.hints
                )
            tracked.good_until = now + self._settings.lookup_lease_ms / 2000
            for i, group in enumerate(self._groups.groups):
                tracked.saved[i] = max(tracked.saved[i], tracked.found.tokens // group.block)
        return tracked.found

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> Tuple[Optional[int], bool]:
        """How many tokens after those already computed can be loaded. None: ask again, a prefill
        elsewhere is not done with it."""
        tracked = self._track(request)
        if tracked is not None:
            tracked.known = num_computed_tokens
        if (
            tracked is None
            or not self._settings.load
            or not self._asked
            or self._reset.under_way
            or tracked.failed
            or num_computed_tokens % self._groups.align
            or request.num_tokens - 1 < num_computed_tokens + self._groups.align
        ):
            return 0, False
        tokens = self._look_up(tracked).tokens
        if tokens > tracked.most:
            tracked.came, tracked.most = time.monotonic(), tokens
        announced = min(announced_by(request), request.num_tokens - 1 - self._groups.dropped)
        if (
            tokens < announced - announced % self._groups.align
            and time.monotonic() < tracked.came + self._settings.arrival_ms / 1000
        ):
            tracked.good_until = min(tracked.good_until, look_again(tracked.came))
            return None, False
        found = max(0, tokens - num_computed_tokens)
        loads = found > 0 and self._judge.choose(
            request.request_id, found, partial(self._tier, tracked), must=announced > 0
        )
        if not tracked.counted:
            tracked.counted = True
            limit = (request.num_tokens - 1) // self._groups.align * self._groups.align
            self.figures.count(
                looked_up_tokens=limit - num_computed_tokens,
                hit_tokens=found,
                left_tokens=0 if loads else found,
            )
        return (found, True) if loads else (0, False)

    def _tier(self, tracked: GroupRequest) -> str:
        """Where the last part of the first group is: the ends of prefixes leave memory first."""
        group, parts = self._asked[0][1], tracked.found.parts[0]
        keys = group.keys(parts, tracked.hashes(tracked.found.tokens), self._groups.unit)
        return self._pool.tier(keys[-1]) if keys else ""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plans the load of what was found, into the blocks that it got."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or num_external_tokens <= 0:
            return
        tracked.known += num_external_tokens
        found, tables = tracked.found, blocks.get_block_ids()
        local = found.tokens - num_external_tokens
        parts_of: Dict[int, KVParts] = {}
        for (i, _), parts in zip(self._asked, found.parts):
            parts_of.setdefault(i, parts)
        load = GroupLoad(request.request_id, [], trace=trace_of(request), hints=tracked.hints)
        for i, parts in parts_of.items():
            group = self._groups.groups[i]
            numbers = range(max(parts.first, local // group.block), parts.first + parts.blocks)
            filled = self._parts(i, tracked, tables[group.number], numbers)
            load.parts.append(filled)
            if group.kind != "window":  # of which vLLM may keep fewer
                load.lacking += len(numbers) - len(filled.blocks)
        self._loads.append(load)
        self._judge.begins(request.request_id)
        self._loading[request.request_id] = _Loading(
            tracked.hashes(found.tokens), found.tokens, tracked.good_until, tracked.hints
        )
        self.looked_up += int(request.num_tokens)
        self.found += num_external_tokens

    def _parts(
        self, i: int, tracked: GroupRequest, table: Sequence[int], numbers: Sequence[int]
    ) -> Parts:
        """These blocks of a table, without those that vLLM does not keep (null blocks)."""
        block = self._groups.groups[i].block
        wanted = [n for n in numbers if n < len(table) and table[n]]
        hashes = tracked.hashes((wanted[-1] + 1) * block) if wanted else []
        step = block // self._groups.unit
        return Parts(i, [hashes[(n + 1) * step - 1] for n in wanted], [table[n] for n in wanted])

    def _renew(self) -> None:
        """Loads that wait for their turn keep their leases."""
        now = time.monotonic()
        for name, loading in list(self._loading.items()):
            if now >= loading.renew_at:
                kept = [group for _, group in self._asked]
                self._ask(loading.hashes, [_not_dropping(group) for group in kept], loading.hints)
                later = now + self._settings.lookup_lease_ms / 2000
                self._loading[name] = loading._replace(renew_at=later)

    # --- saving

    def build_connector_meta(self, output: Any) -> GroupStep:
        """What the workers do in this step."""
        step = GroupStep(self._loads, pinned=self._pins.works, reset=self._reset.step())
        self._loads = []
        self._judge.planned(output.num_scheduled_tokens.values(), loads=())
        self._renew()
        self._steps += 1
        self._open = {block: due for block, due in self._open.items() if due > self._steps}
        step.saves += [held.save for held in self._held if held.due <= self._steps]
        self._held = [held for held in self._held if held.due > self._steps]
        offers = self._offers_in(output)
        for name in getattr(output, "preempted_req_ids", None) or ():
            offers.pop(name, None)  # vLLM does not take them back, but the block may be another's
            if name in self._requests:
                self._requests[name].restart()
        for item in scheduled_in(output):
            tracked = self._requests.get(item.name)
            if tracked is None:
                continue
            if item.resumed:
                tracked.stale = False
            if item.anew:
                tracked.tables = [[] for _ in tracked.tables]
            for table, new in zip(tracked.tables, item.blocks):
                table.extend(new)
            if item.anew:
                self._strange(tracked, item.computed)
            states = self._states(tracked, offers.pop(item.name, ()))
            after = item.computed + item.scheduled
            filled = self._filled(tracked, item.computed, after, self._pins.room - len(states))
            align = self._groups.align
            self._miss_states(after // align > item.computed // align)
            self._save(step, tracked, filled + states)
        for name, offered in offers.items():  # of requests that are not computed in this step
            if name in self._requests:
                tracked = self._requests[name]
                self._save(step, tracked, self._states(tracked, offered))
        return step

    def _save(self, step: GroupStep, tracked: GroupRequest, parts: List[Parts]) -> None:
        parts = [part for part in parts if part.blocks]
        if not parts:
            return
        save, due = GroupSave(next(self._jobs), parts, tracked.hints), self._due(tracked)
        self._pins.hold(save.job, [block for part in parts for block in part.blocks])
        if due:
            blocks = frozenset(block for table in tracked.tables for block in table)
            self._held.append(_Held(due, save, blocks))
        else:
            step.saves.append(save)
        if self.announcer is not None:
            self._plan_events(tracked, parts)

    def _drop_held(self, lost: Set[int]) -> None:
        """Those of requests that have one of these blocks."""
        for held in self._held:
            if lost & held.beside:
                self._pins.drop(held.save.job)
        self._held = [held for held in self._held if not lost & held.beside]

    def _plan_events(self, tracked: GroupRequest, parts: List[Parts]) -> None:
        """Parts that will be put, perhaps."""
        assert self.announcer is not None
        for part in parts:
            group = self._groups.groups[part.group]
            names = [asked.name for i, asked in self._asked if i == part.group]
            for name in part.hashes:
                keys = [prefix + hash_text(name.hex()) for prefix in names]
                request, end = tracked.request, tracked.end_of(name)
                self.announcer.plan(request, group.number, group.block, end, keys)

    def _strange(self, tracked: GroupRequest, computed: int) -> None:
        """Under vLLM's MultiConnector another one may fill blocks, in this step, and fail: what is
        computed with them is saved when that would be known."""
        for group in self._groups.groups if computed > tracked.known else ():
            table = tracked.tables[group.number]
            strange = table[tracked.known // group.block : -(-computed // group.block)]
            due = self._steps + self._batches
            self._open.update({block: due for block in strange if block})

    def _savable(self, tracked: GroupRequest) -> int:
        """Tokens of which parts are saved at most; drafts that may be rejected are none of them."""
        if not self._settings.save or tracked.stale or self._reset.under_way:
            return 0
        request = tracked.request
        tokens = int(request.num_tokens) if self._settings.save_decode else tracked.prefill
        return min(tokens, int(request.num_prompt_tokens)) if tracked.spoilt else tokens

    def _due(self, tracked: GroupRequest) -> int:
        """The step at which it is known whether its blocks are right; 0: they are."""
        if not self._open:
            return 0
        blocks = (block for table in tracked.tables for block in table)
        return max((self._open.get(block, 0) for block in blocks), default=0)

    def _filled(self, tracked: GroupRequest, computed: int, after: int, room: int) -> List[Parts]:
        """The blocks that a step fills, and those before it that nobody has saved; at most so
        many. The rest comes with a later step."""
        tokens = 0 if self._due(tracked) else min(after, self._savable(tracked))
        numbers = self._unsaved(tracked, computed, tokens)
        start = min((tracked.saved[i] * self._groups.groups[i].block for i in numbers), default=0)
        while sum(map(len, numbers.values())) > room:
            tokens = start + (tokens - start) // 2
            numbers = self._unsaved(tracked, computed, tokens) if room > 0 else {}
        found = []
        for i, wanted in numbers.items():
            group = self._groups.groups[i]
            found.append(self._parts(i, tracked, tracked.tables[group.number], wanted))
            tracked.saved[i] = tokens // group.block
        return found

    def _unsaved(self, tracked: GroupRequest, computed: int, tokens: int) -> Dict[int, List[int]]:
        """Of each group the blocks of these tokens that a hit can need and nobody has saved."""
        numbers = {}
        for i, group in enumerate(self._groups.groups):
            end = tokens // group.block
            if group.kind != "state" and end > tracked.saved[i]:
                first = max(tracked.saved[i], group.first_live(computed))
                align = self._groups.align
                numbers[i] = [n for n in range(first, end) if group.reachable(n, align)]
        return numbers

    def _offers_in(self, output: Any) -> Dict[str, Sequence[Tuple[int, int, int]]]:
        """Those that vLLM hands over. A table does not tell, as its blocks change places."""
        offers = states_in(output)
        self._stateless = -1 if offers else self._stateless
        return offers

    def _miss_states(self, crossed: bool) -> None:
        """Releases before vLLM's change 51358 hand over few states or none."""
        if crossed and 0 <= self._stateless < _STATELESS_MAX:
            self._stateless += 1
            if self._stateless == _STATELESS_MAX:
                log.error(
                    "this release of vLLM does not say which blocks hold the states of recurrent "
                    "layers, so none are saved, and nothing will be found: use one with its change "
                    "51358 (SchedulerOutput.kv_connector_block_state)"
                )

    def _states(self, tracked: GroupRequest, offers: Sequence[Tuple[int, int, int]]) -> List[Parts]:
        found: List[Parts] = []
        if self._due(tracked) and not self._pins.works:  # the block may be another's before long
            return found
        for number, block, tokens in offers[: max(self._pins.room, 0)]:
            usable = 0 < tokens <= self._savable(tracked) and tokens % self._groups.align == 0
            i = next((i for i, g in enumerate(self._groups.groups) if g.number == number), -1)
            there = tokens == tracked.found.tokens or (number, tokens) in tracked.states
            if usable and block and i >= 0 and not there:
                found.append(Parts(i, tracked.hashes(tokens)[-1:], [block]))
                tracked.states.add((number, tokens))
        return found

    # --- what became of it

    def update_connector_output(self, output: Any) -> None:
        """What the workers said after a step."""
        report = getattr(output, "kv_connector_worker_meta", None)
        news = News()
        if isinstance(report, GroupReport):
            for form in report.formats.values():
                self.set_format(form)
            self._pins.release(report.done)
            news = report.news or news
            for name in report.failed & self._requests.keys():
                tracked = self._requests[name]
                tracked.failed = True
                tracked.forget()
        lost = self._open.keys() & (getattr(output, "invalid_block_ids", None) or ())
        if lost:
            self._drop_held(lost)
            for tracked in self._requests.values():
                if any(not lost.isdisjoint(table) for table in tracked.tables):
                    tracked.spoilt = True
                    tracked.states.clear()
        arrived = getattr(output, "finished_recving", None) or ()
        for name in arrived:
            self._loading.pop(name, None)
        self._judge.told(news.took, arrived)

    @property
    def holds(self) -> bool:
        """Does anything wait for a later step?"""
        return self._pins.holds or self._reset.holds

    def request_finished(
        self, request: Any, tables: Sequence[Sequence[int]]
    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        """Never True: what is being read is pinned, and loads vLLM waits for by itself."""
        tracked = self._requests.pop(request.request_id, None)
        self._judge.forget(request.request_id)
        if tracked is None:
            return False, None
        asked = getattr(request, "kv_transfer_params", None)
        if self._settings.save and (not self._settings.load or asked):
            return False, {**told_hints(asked), "tarn_tokens": self._boundary_saved(tracked)}
        return False, None

    def _boundary_saved(self, tracked: GroupRequest) -> int:
        """The longest prefix that others will find."""

        def reach(i: int, group: Group) -> int:
            if group.kind == "state":
                ends = [end for number, end in tracked.states if number == group.number]
                return max(ends, default=tracked.found.tokens)
            return (tracked.saved[i] - group.drops_last) * group.block

        tokens = min(reach(i, group) for i, group in enumerate(self._groups.groups))
        return max(tokens, 0) // self._groups.align * self._groups.align

    def reset_cache(self) -> Optional[bool]:
        """Removes every object of this model, because its weights changed, say."""
        for name, tracked in self._requests.items():
            tracked.good_until = 0.0
            tracked.stale = any(tracked.tables) or name in self._loading
            tracked.forget()
        for held in self._held:
            self._pins.drop(held.save.job)
        self._held = []
        return self._reset.ask()

    def close(self) -> None:
        self._ahead.close()
        if self._teller is not None:
            self._teller.close()
        self._pool.close()


def _not_dropping(group: KVGroup) -> KVGroup:
    return KVGroup(group.name, group.kind, group.block, window=group.window)
