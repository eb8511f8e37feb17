"""The engine's core: requests, a scheduler with one loop of steps, chunks of prompts beside
sequences that decode. It has a thread of its own, as vLLM's has a process.

A request:

    WAITING ──> (LOADING: from the pool, between steps) ──> RUNNING ──> FINISHED
       ^                                                       │
       └────────────── preempted: its blocks are gone ─────────┘

In each step: who gets how many tokens and blocks -> loads begin -> blocks are computed, tokens
drawn -> the time that an engine would take -> blocks to save are queued -> events and tokens out.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from array import array
from collections import deque
from types import SimpleNamespace
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

from tarn.chain import Chain

from .blocks import Blocks
from .hardware import Speed
from .metrics import Figures
from .model import Model
from .words import END, Image

log = logging.getLogger("stand_in")

IDLE_S = 0.004  # between looks at loads and arrivals, while nothing is computed


class Request:
    """Attributes with vLLM's names are those that the connector reads. out: called in the core's
    thread with (request, tokens, finish reason or None)."""

    numbers = itertools.count(1)

    def __init__(
        self,
        name: str,
        prompt: Sequence[int],
        block: int,
        out: Callable[["Request", List[int], Optional[str]], None],
        *,
        max_tokens: int = 16,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        stop_tokens: Sequence[int] = (),
        seed: Optional[int] = None,
        lora: Optional[Any] = None,
        salt: Optional[str] = None,
        images: Sequence[Image] = (),
        params: Optional[Dict[str, Any]] = None,
        traceparent: Optional[str] = None,
    ) -> None:
        self.request_id = f"{name}-{next(self.numbers)}"  # two may have the same name
        self.prompt_token_ids = list(prompt)
        self.all_token_ids = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.lora_request, self.cache_salt = lora, salt
        self.mm_features = [
            SimpleNamespace(
                identifier=i.name, mm_position=SimpleNamespace(offset=i.start, length=i.length)
            )
            for i in images
        ]
        self.kv_transfer_params = params
        self.trace_headers = {"traceparent": traceparent} if traceparent else None
        self.num_computed_tokens = self.num_preemptions = 0
        self.out, self.max_tokens, self.min_tokens = out, max_tokens, min_tokens
        self.ignore_eos, self.stop_tokens, self.seed = ignore_eos, frozenset(stop_tokens), seed
        self.status = "WAITING"
        self.blocks: List[int] = []
        self.remembered = 0  # of its first blocks, those that the prefix cache was told of
        self.read = self.sum = 0  # see Model.next_token
        self.cached: Optional[int] = None  # tokens of the prompt that were found or loaded
        self.result_params: Optional[Dict[str, Any]] = None
        self.arrived = time.monotonic()
        self.last_token = 0.0
        self._block = block
        media = [(i.name, i.start, i.length) for i in images]
        lora_name = lora.lora_name if lora else None
        self._chain = Chain(block, lora=lora_name, salt=salt, revision="", media=media)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def made(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def names(self) -> List[bytes]:
        """Of its full blocks."""
        if self._chain.tokens < len(self.all_token_ids):
            self._chain.extend(array("I", self.all_token_ids[self._chain.tokens :]))
        hashes: List[bytes] = self._chain.hashes
        return hashes

    def extra_keys(self, index: int) -> Optional[List[Any]]:
        """What vLLM hashes with the tokens of a block."""
        first = index * self._block
        keys: List[Any] = [self.lora_request.lora_name] if self.lora_request else []
        for f in self.mm_features:
            start = f.mm_position.offset
            if start < first + self._block and first < start + f.mm_position.length:
                keys.append([f.identifier, start - first])
        if index == 0 and self.cache_salt:
            keys.append(self.cache_salt)
        return keys or None

    def may_end(self) -> bool:
        return not self.ignore_eos and self.made >= self.min_tokens

    def lose_blocks(self) -> List[int]:
        lost, self.blocks = self.blocks, []
        self.num_computed_tokens = self.remembered = self.read = self.sum = 0
        return lost

    def finished(self) -> bool:
        return self.status.startswith("FINISHED")


class Plan:
    """A step, as the connector reads vLLM's SchedulerOutput."""

    def __init__(self, finished: Set[str]) -> None:
        self.scheduled_new_reqs: List[Any] = []
        self.cached: List[Tuple[Request, List[int]]] = []
        self.num_scheduled_tokens: Dict[str, int] = {}
        self.preempted_req_ids: Set[str] = set()
        self.finished_req_ids = finished
        self.scheduled_cached_reqs: Any = None
        self.work: List[Tuple[Request, int]] = []  # and how many tokens of it

    def close(self) -> None:
        self.scheduled_cached_reqs = SimpleNamespace(
            req_ids=[r.request_id for r, _ in self.cached],
            resumed_req_ids=set(),
            new_block_ids=[(new,) if new else None for _, new in self.cached],
            num_computed_tokens=[r.num_computed_tokens for r, _ in self.cached],
        )


class Core:
    """pool: see pool.py. publish: called with each step's KV events, before its tokens go out.
    batch: sequences that run at a time. factor: how many times as fast as the hardware."""

    def __init__(
        self,
        model: Model,
        pool: Any,
        speed: Speed,
        figures: Figures,
        publish: Callable[[List[Dict[str, Any]]], None],
        *,
        blocks: int,
        batch: int = 256,
        factor: float = 1.0,
    ) -> None:
        self.model, self.pool, self.figures = model, pool, figures
        self._speed, self._factor, self._batch, self._publish = speed, factor, batch, publish
        self.blocks = Blocks(blocks, model.block)
        pool.bind(self.blocks)
        self.requests: Dict[str, Request] = {}
        self.waiting: Deque[Request] = deque()
        self.running: List[Request] = []
        self._finished: Set[str] = set()
        self._received: Set[str] = set()
        self._lost: Set[int] = set()  # blocks that did not arrive, of loads that are under way
        self._orders: Deque[Tuple[Callable[..., Any], Tuple[Any, ...]]] = deque()
        self._wake = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="core", daemon=True)

    # --- from other threads

    def start(self) -> None:
        self._thread.start()

    def add(self, request: Request) -> None:
        self._order(self._add, request)

    def abort(self, request: Request, reason: str = "abort") -> None:
        """Nothing comes out of it afterwards, but what is on its way."""
        self._order(self._abort, request, reason)

    def clear(self, done: Callable[[bool], None]) -> None:
        """Empties the prefix cache; done is called with whether nobody used it."""
        self._order(lambda: done(self.blocks.clear()))

    def close(self) -> None:
        self._ends = True
        self._wake.set()
        self._thread.join(10)

    def _order(self, call: Callable[..., Any], *args: Any) -> None:
        self._orders.append((call, args))
        self._wake.set()

    # --- the loop

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException:  # as vLLM: an engine without its core is none
            log.exception("the core ends")
            os._exit(1)

    def _loop(self) -> None:
        while not self._ends:
            self._wake.clear()
            while self._orders:
                call, args = self._orders.popleft()
                call(*args)
            if not self.requests and not self._finished:
                self._tell([])
                self._wake.wait()
            elif not self.step():
                self._wake.wait(IDLE_S)

    def step(self) -> bool:
        """False: nothing was computed; loads, arrivals or saves are waited for."""
        begin = time.monotonic()
        plan = self._schedule()
        meta = self.pool.plan(plan)
        self.pool.begin(meta)
        for block in self.blocks.taken():  # from here on nobody else reads them
            self.model.scribble(block)
        self.pool.load()
        seconds = self._time(plan) / self._factor
        out = [self._compute(request, count) for request, count in plan.work]
        if plan.work:
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
        result = self.pool.end(meta, plan.finished_req_ids)
        self._take(result)
        self._tell([item for item in out if item is not None])
        return bool(plan.work)

    def _time(self, plan: Plan) -> float:
        chunks_s, tokens, batch, context = 0.0, 0, 0, 0
        for request, count in plan.work:
            if request.made and request.num_computed_tokens == request.num_tokens - 1:
                batch += 1
                context += request.num_tokens
            else:
                chunks_s += self._speed.chunk_s(count, request.num_computed_tokens)
                tokens += count
        return self._speed.step_s(chunks_s, tokens, batch, context)

    def _compute(self, request: Request, count: int) -> Optional[Tuple[Request, int]]:
        """A request's part of a step. Returns it with its new token, where it has one."""
        size = self.model.block
        first = request.num_computed_tokens // size
        request.num_computed_tokens += count
        for i in range(first, request.num_computed_tokens // size):
            self.model.fill(request, i)
        if request.num_computed_tokens < request.num_tokens:
            return None
        token = self.model.next_token(request)
        request.all_token_ids.append(token)
        return request, token

    def _tell(self, out: List[Tuple[Request, int]]) -> None:
        events, self.blocks.events = self.blocks.events, []
        if events:
            self._publish(events)
        now = time.monotonic()
        for request, token in out:
            self.figures.token(request, now)
            reason = self._reason(request, token)
            if reason is not None:
                self.running.remove(request)
                self._finish(request, False)
                self.figures.finished(request, reason, now)
            request.out(request, [token], reason)
        self.figures.state(len(self.running), len(self.waiting), self.blocks.used)

    @staticmethod
    def _reason(request: Request, token: int) -> Optional[str]:
        if token == END and not request.ignore_eos:
            return "stop"
        if token in request.stop_tokens and request.made >= request.min_tokens:
            return "stop"
        return "length" if request.made >= request.max_tokens else None

    # --- requests come and go

    def _add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.pool.new(request)
        self.waiting.append(request)

    def _abort(self, request: Request, reason: str) -> None:
        if request.finished() or request.request_id not in self.requests:
            return
        loading = request.status == "LOADING" and request.request_id not in self._received
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, loading)
        self.figures.finished(request, reason, time.monotonic())

    def _finish(self, request: Request, loading: bool) -> None:
        """Its blocks stay until they are written (loading) and read by those that save them."""
        request.status = "FINISHED"
        asked, request.result_params = self.pool.finished(request)
        self._finished.add(request.request_id)
        self._received.discard(request.request_id)
        if not loading and not asked:
            self._free(request)

    def _free(self, request: Request) -> None:
        self.blocks.drop(request.lose_blocks())
        del self.requests[request.request_id]

    def _take(self, result: Any) -> None:
        """What has become of loads and saves. Blocks that did not arrive may be told of before the
        rest of their load is over."""
        self._lost |= result.invalid
        for name in result.received:
            request = self.requests[name]
            good = [b not in self._lost for b in request.blocks]
            self._lost.difference_update(request.blocks)
            if request.finished():
                self._free(request)
                continue
            self._received.add(name)
            whole = good.index(False) if False in good else len(good)
            request.num_computed_tokens = whole * self.model.block
            request.cached = min(request.cached or 0, request.num_computed_tokens)
        for name in result.sent:
            self._free(self.requests[name])

    # --- the scheduler

    def _schedule(self) -> Plan:
        plan = Plan(self._finished)
        self._finished = set()
        budget = self._schedule_running(plan, self._speed.chunk)
        if not plan.preempted_req_ids:
            self._schedule_waiting(plan, budget)
        plan.close()
        return plan

    def _give(self, request: Request, tokens: int, found: Sequence[int] = ()) -> bool:
        """Blocks for so many tokens in all; found: those of the prefix cache. False: no room."""
        more = -(-tokens // self.model.block) - len(request.blocks) - len(found)
        idle = sum(1 for b in found if self.blocks.refs[b] == 0)
        if max(0, more) > len(self.blocks.free) - idle:
            return False
        self.blocks.touch(found)
        request.blocks += found
        request.remembered = max(request.remembered, len(found))
        request.blocks += self.blocks.take(max(0, more))
        return True

    def _schedule_running(self, plan: Plan, budget: int) -> int:
        """Those that run go on; where there is no room, the last one gives its blocks away."""
        i = 0
        while i < len(self.running) and budget > 0:
            request = self.running[i]
            count = min(budget, request.num_tokens - request.num_computed_tokens)
            had = len(request.blocks)
            while not self._give(request, request.num_computed_tokens + count):
                victim = self.running.pop()
                self._preempt(victim)
                plan.preempted_req_ids.add(victim.request_id)
                if victim is request:
                    return budget
            budget -= count
            plan.num_scheduled_tokens[request.request_id] = count
            plan.cached.append((request, request.blocks[had:]))
            plan.work.append((request, count))
            self.blocks.remember(request, request.num_computed_tokens + count)
            i += 1
        return budget

    def _preempt(self, request: Request) -> None:
        self.blocks.drop(request.lose_blocks())
        request.status = "PREEMPTED"
        request.num_preemptions += 1
        self.figures.preempted()
        self.waiting.appendleft(request)

    def _fits(self, request: Request, skipped: Sequence[Request]) -> bool:
        """May a request get blocks before it can run? Only when all that have some will be able to
        run, one after the other."""
        size = self.model.block
        need = -(-request.num_tokens // size)
        for r in itertools.chain(self.waiting, skipped):
            if r.blocks:
                need += -(-r.num_tokens // size) + 1 - len(r.blocks)
        return need < len(self.blocks.free)

    def _schedule_waiting(self, plan: Plan, budget: int) -> None:
        skipped: List[Request] = []
        if any(r.blocks for r in self.waiting):  # those that hold blocks first
            self.waiting = deque(sorted(self.waiting, key=lambda r: not r.blocks))
        while self.waiting and budget > 0 and len(self.running) < self._batch:
            request = self.waiting.popleft()
            if request.status == "LOADING" and not self._loaded(request):
                skipped.append(request)
                continue
            looked = self._look(request)
            if looked is None:
                skipped.append(request)
                continue
            found, external = looked
            computed = request.num_computed_tokens or len(found) * self.model.block + external
            count = 0 if external else min(budget, request.num_tokens - computed)
            fits = not external or self._fits(request, skipped)
            if not fits or not self._give(request, computed + count, found):
                self.waiting.appendleft(request)
                break
            self.pool.allocated(request, external)
            if request.cached is None:
                request.cached = computed
                self.figures.looked_up(request, len(found) * self.model.block, external)
            if external:
                request.status = "LOADING"
                skipped.append(request)
                continue
            request.status, request.num_computed_tokens = "RUNNING", computed
            self.running.append(request)
            budget -= count
            plan.num_scheduled_tokens[request.request_id] = count
            plan.scheduled_new_reqs.append(
                SimpleNamespace(
                    req_id=request.request_id,
                    block_ids=(list(request.blocks),),
                    num_computed_tokens=computed,
                )
            )
            plan.work.append((request, count))
            self.blocks.remember(request, computed + count)
        self.waiting.extendleft(reversed(skipped))

    def _look(self, request: Request) -> Optional[Tuple[List[int], int]]:
        """(blocks found here, tokens that the pool has behind them); None: its blocks are on their
        way into the pool, ask again."""
        if request.num_computed_tokens or request.blocks:
            return [], 0
        found = self.blocks.find(request)
        external = self.pool.matched(request, len(found) * self.model.block)
        return None if external is None else (found, external)

    def _loaded(self, request: Request) -> bool:
        if request.request_id not in self._received:
            return False
        self._received.discard(request.request_id)
        if request.num_computed_tokens:
            self.blocks.remember(request, request.num_computed_tokens)
        else:
            self.blocks.drop(request.lose_blocks())
        request.status = "PREEMPTED" if request.num_preemptions else "WAITING"
        return True
