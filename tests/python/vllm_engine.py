"""A small engine that drives a KV connector in the order of calls of vLLM's V1 engine, without vLLM
and without a GPU.

The scheduler deals out blocks, reuses prefixes of its own, cuts long prompts into chunks, preempts,
aborts; the workers (vllm_model.py) check every byte that they use. Blocks that are given to
somebody else are scribbled over at once. What raises AssertionError here would be a wrong answer,
or a crash, of the real engine."""

import random
import time
from collections import deque
from types import SimpleNamespace

from tarn.vllm.base import Role
from vllm_model import Worker, execute


class Blocks:
    """vLLM's block pool: reference counts, a free list, and blocks that are remembered by what they
    hold until they are given away."""

    def __init__(self, count, tokens):
        self.tokens = tokens
        self.free = deque(range(1, count))  # block 0 is nobody's, as in vLLM
        self.refs = [0] * count
        self.known = {}
        self.name_of = {}
        self.given = []  # since the last step: may be written over from its start on

    def names(self, request, blocks):
        return [
            request.truth.state(request.all_token_ids, (i + 1) * self.tokens - 1)
            for i in range(blocks)
        ]

    def find(self, request):
        found = []
        for name in self.names(request, (request.num_tokens - 1) // self.tokens):
            if name not in self.known:
                break
            found.append(self.known[name])
        return found

    def touch(self, blocks):
        for b in blocks:
            if self.refs[b] == 0:
                self.free.remove(b)
            self.refs[b] += 1

    def take(self, count):
        if count > len(self.free):
            return None
        taken = [self.free.popleft() for _ in range(count)]
        for b in taken:
            self.refs[b] = 1
            if b in self.name_of:
                del self.known[self.name_of.pop(b)]
        self.given += taken
        return taken

    def remember(self, request, tokens):
        for name, b in zip(
            self.names(request, min(tokens, request.num_tokens) // self.tokens), request.blocks
        ):
            if name not in self.known and b not in self.name_of:
                self.known[name], self.name_of[b] = b, name

    def evict_blocks(self, blocks):
        """What these hold is not to be reused."""
        for b in blocks:
            if b in self.name_of:
                del self.known[self.name_of.pop(b)]

    def drop(self, blocks):
        for b in reversed(blocks):
            assert self.refs[b] > 0, "a block is freed twice"
            self.refs[b] -= 1
            if self.refs[b] == 0:
                self.free.append(b)


def joined(parts, how):
    """What vLLM makes of what several workers say in a step."""
    whole = None
    for part in parts:
        if part is not None:
            whole = part if whole is None else getattr(whole, how)(part)
    return whole


class Engine:
    """A scheduler and its workers. handshake: whether the workers' metadata reaches the scheduler
    before the first step."""

    class backend:
        """vLLM's attention backend."""

        @staticmethod
        def get_kv_cache_stride_order(include_num_layers_dimension=False):
            return (1, 0, 2, 3, 4, 5) if include_num_layers_dimension else (0, 1, 2, 3, 4)

    policy = "recompute"  # of loads that fail; vLLM's own default is "fail"

    def __init__(self, url, connector_class, *, tp=1, pp=1, kv_heads=4, layers=3, blocks=64,
                 block_tokens=4, budget=32, form="2BNHD", role="kv_both", seed=0, handshake=True,
                 new_runner=True, **extra):  # fmt: skip
        self.policy = extra.pop("policy", self.policy)
        self.url, self.tp, self.pp, self.kv_heads, self.layers = url, tp, pp, kv_heads, layers
        self.block_count, self.block_tokens, self.budget, self.form = (
            blocks,
            block_tokens,
            budget,
            form,
        )
        self.mla = form == "MLA"
        self.role, self.extra, self.new_runner = role, extra, new_runner
        self.rng = random.Random(seed)
        self.cache_config = SimpleNamespace(num_blocks=blocks, kv_cache_groups=[object()])
        self.connector = connector_class(self.config(0), Role.SCHEDULER, self.cache_config)
        self.workers = [Worker(self, rank, connector_class) for rank in range(tp * pp)]
        if handshake:
            self.connector.set_xfer_handshake_metadata(
                {r: w.connector.get_handshake_metadata() for r, w in enumerate(self.workers)}
            )
        self.blocks = Blocks(blocks, block_tokens)
        self.connector.bind_gpu_block_pool(self.blocks)
        self.requests = {}
        self.waiting, self.running = deque(), []
        self.finished_ids = set()
        self.received, self.failed = set(), set()
        self.sending = {}
        self.receiving = {}
        self.recomputed_tokens = self.preemptions = self.steps = 0
        self.stats, self.events = None, []  # what the connector told, all of it

    def head_range(self, rank):
        share = max(1, self.kv_heads // self.tp)
        first = (
            rank * self.kv_heads // self.tp
            if self.tp <= self.kv_heads
            else rank // (self.tp // self.kv_heads)
        )
        return first, first + share

    def config(self, rank):
        return SimpleNamespace(
            kv_transfer_config=SimpleNamespace(
                kv_role=self.role,
                kv_load_failure_policy=self.policy,
                kv_connector_extra_config={"min_load_tokens": 0, **self.extra, "url": self.url},
            ),
            cache_config=SimpleNamespace(
                block_size=self.block_tokens, cache_dtype="auto", num_gpu_blocks=self.block_count
            ),
            model_config=SimpleNamespace(
                model="toy/model-1",
                revision=None,
                dtype="torch.bfloat16",
                use_mla=self.mla,
                get_total_num_kv_heads=lambda: self.kv_heads,
            ),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=self.tp, pipeline_parallel_size=self.pp, rank=rank
            ),
        )

    # --- what users do

    def add(self, request):
        self.requests[request.request_id] = request
        self.connector.on_new_request(request)
        self.waiting.append(request)
        return request

    def abort(self, name):
        request = self.requests.get(name)
        if request is None or request.finished():
            return
        loading = request.status == "LOADING" and name not in self.received
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.status = "FINISHED_ABORTED"
        self._finish(request, loading)

    def _finish(self, request, delay):
        ask, request.result_params = self.connector.request_finished(request, list(request.blocks))
        assert not (
            ask and delay
        ), "a load and a save of one request are both under way: vLLM frees its blocks twice"
        self.finished_ids.add(request.request_id)
        request.waits_for = "load" if delay else "save" if ask else None
        if not delay and not ask:
            self._free(request)

    def _free(self, request):
        self.blocks.drop(request.blocks)
        request.blocks = []
        del self.requests[request.request_id]

    # --- a step

    def _allocate(self, request, tokens, computed=()):
        """Blocks for so many tokens in all; computed: found here. False: there is no room."""
        need = -(-tokens // self.block_tokens) - len(request.blocks) - len(computed)
        idle = sum(1 for b in computed if self.blocks.refs[b] == 0)
        if max(0, need) > len(self.blocks.free) - idle:
            return False
        self.blocks.touch(computed)
        request.blocks += list(computed)
        request.blocks += self.blocks.take(max(0, need))
        return True

    def _preempt(self, request):
        self.blocks.drop(request.blocks)
        request.blocks = []
        request.status, request.num_computed_tokens = "PREEMPTED", 0
        request.num_preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _schedule_running(self, out):
        budget, preempted = self.budget, []
        for request in list(self.running):
            if request in preempted or budget == 0:
                continue
            count = min(budget, request.num_tokens - request.num_computed_tokens)
            had = len(request.blocks)
            while not self._allocate(request, request.num_computed_tokens + count):
                victim = self.running.pop()
                if victim.request_id in out.num_scheduled_tokens:
                    budget += out.num_scheduled_tokens.pop(victim.request_id)
                    out.cached = [c for c in out.cached if c[0] is not victim]
                preempted.append(victim)
                self._preempt(victim)
                if victim is request:
                    break
            if request in preempted:
                break
            budget -= count
            out.num_scheduled_tokens[request.request_id] = count
            out.cached.append(
                (request, [request.blocks[had:]] if len(request.blocks) > had else None, False)
            )
            self.blocks.remember(request, request.num_computed_tokens + count)
        out.preempted_req_ids = {r.request_id for r in preempted}
        return budget

    def _ready(self, request):
        """A request whose blocks were loaded between steps."""
        if request.request_id not in self.received:
            return False
        self.received.discard(request.request_id)
        if request.request_id in self.failed:
            self.failed.discard(request.request_id)
            if request.num_computed_tokens:
                self.blocks.remember(request, request.num_computed_tokens)
            else:
                self.blocks.drop(request.blocks)
                request.blocks = []
        else:
            computed = min(len(request.blocks) * self.block_tokens, request.num_tokens)
            request.num_computed_tokens = computed - (computed == request.num_tokens)
            self.blocks.remember(request, request.num_computed_tokens)
        request.status = "PREEMPTED" if request.num_preemptions else "WAITING"
        return True

    def _fits(self, request, skipped):
        """May a request get blocks before it can run? Only when all that have some will be able to
        run one after the other."""
        need = [
            -(-r.num_tokens // self.block_tokens) + 1 - len(r.blocks)
            for r in (*self.waiting, *skipped)
            if r.blocks or r.status == "LOADING"
        ]
        return sum(need) + -(-request.num_tokens // self.block_tokens) < len(self.blocks.free)

    def _schedule_waiting(self, out, budget):
        skipped = []
        self.waiting = deque(
            sorted(self.waiting, key=lambda r: not r.blocks)
        )  # those that hold blocks first
        while self.waiting and budget > 0:
            request = self.waiting.popleft()
            if request.status == "LOADING" and not self._ready(request):
                skipped.append(request)
                continue
            found, external, asynchronous = [], 0, False
            if request.num_computed_tokens == 0:
                found = self.blocks.find(request)
                external, asynchronous = self.connector.get_num_new_matched_tokens(
                    request, len(found) * self.block_tokens
                )
                if external is None:
                    skipped.append(request)
                    continue
                assert external or not asynchronous
                computed = len(found) * self.block_tokens + external
                assert computed < request.num_tokens and external % self.block_tokens == 0
            else:
                computed = request.num_computed_tokens
            count = 0 if asynchronous else min(budget, request.num_tokens - computed)
            fits = not asynchronous or self._fits(request, skipped)
            if not fits or not self._allocate(request, computed + count, found):
                self.waiting.appendleft(request)
                break
            request.external_tokens += external
            self.connector.update_state_after_alloc(
                request,
                SimpleNamespace(get_block_ids=lambda r=request: (list(r.blocks),)),
                external,
            )
            out.has_sync_kv_loads |= bool(external) and not asynchronous
            if asynchronous:
                request.status = "LOADING"
                skipped.append(request)
                continue
            self.running.append(request)
            resumed = request.status == "PREEMPTED"
            request.status = "RUNNING"
            request.num_computed_tokens = request.num_cached_tokens = computed
            budget -= count
            out.num_scheduled_tokens[request.request_id] = count
            if resumed and not self.new_runner:
                out.cached.append((request, [list(request.blocks)], True))
            else:
                out.scheduled_new_reqs.append(
                    SimpleNamespace(
                        req_id=request.request_id,
                        block_ids=(list(request.blocks),),
                        num_computed_tokens=computed,
                    )
                )
            self.blocks.remember(request, computed + count)
        self.waiting.extendleft(reversed(skipped))

    def schedule(self):
        out = SimpleNamespace(
            scheduled_new_reqs=[], cached=[], num_scheduled_tokens={}, preempted_req_ids=set(),
            has_sync_kv_loads=False, finished_req_ids=self.finished_ids,
        )  # fmt: skip
        budget = self._schedule_running(out)
        if not out.preempted_req_ids:
            self._schedule_waiting(out, budget)
        out.scheduled_cached_reqs = SimpleNamespace(
            req_ids=[r.request_id for r, _, _ in out.cached],
            resumed_req_ids={r.request_id for r, _, resumed in out.cached if resumed},
            new_block_ids=[new and (list(new[0]),) for _, new, _ in out.cached],
            num_computed_tokens=[r.num_computed_tokens for r, _, _ in out.cached],
        )
        out.kv_connector_metadata = self.connector.build_connector_meta(out)
        out.given_blocks, self.blocks.given = self.blocks.given, []
        self.finished_ids = set()
        return out

    def step(self):
        """Schedules, computes on all ranks, takes the outcome in. Returns whether anything was
        computed."""
        self.steps += 1
        out = self.schedule()
        work = []
        for name, count in out.num_scheduled_tokens.items():
            request = self.requests[name]
            request.blocks_now = list(request.blocks)
            work.append((request, request.num_computed_tokens, request.num_computed_tokens + count))
            request.num_computed_tokens += count
        self._take(out, *execute(self.workers, out, work))
        return bool(work)

    def _take(self, out, results, wrong):
        invalid = set().union(*(r.invalid_block_ids for r in results))
        affected = self._invalid(invalid) if invalid else set()
        for request in wrong:
            assert (
                request in affected
            ), f"{request.request_id} was computed with blocks that had not arrived"
        for name in out.num_scheduled_tokens:
            request = self.requests.get(name)
            if (
                request is None
                or request.finished()
                or request in affected
                or request.num_computed_tokens < request.num_tokens
            ):
                continue
            state = request.truth.state(request.all_token_ids, request.num_tokens - 1)
            request.all_token_ids.append(int.from_bytes(state[:3], "little"))
            if request.num_tokens - request.num_prompt_tokens >= request.max_tokens:
                self.running.remove(request)
                request.status = "FINISHED_STOPPED"
                self._finish(request, False)
        sent = self._from_all(self.sending, (r.finished_sending for r in results))
        received = self._from_all(self.receiving, (r.finished_recving for r in results))
        self.connector.update_connector_output(
            SimpleNamespace(
                finished_sending=sent, finished_recving=received, invalid_block_ids=invalid,
                kv_connector_worker_meta=joined(
                    [r.kv_connector_worker_meta for r in results], "aggregate"
                ),
                kv_cache_events=joined([r.kv_cache_events for r in results], "merge"),
            )  # fmt: skip
        )
        stats = [self.stats, *(r.kv_connector_stats for r in results)]
        self.stats = joined([*stats, self.connector.get_kv_connector_stats()], "aggregate")
        self.events += self.connector.take_events()
        for name in received:
            request = self.requests[name]  # a KeyError here ends vLLM
            if request.status == "LOADING":
                self.received.add(name)
            else:
                assert request.finished() and request.waits_for == "load"
                self._free(request)
        for name in sent:
            assert self.requests[name].waits_for == "save"
            self._free(self.requests[name])

    def _from_all(self, counts, reports):
        done = set()
        for names in reports:
            for name in names:
                counts[name] = counts.get(name, 0) + 1
                if counts[name] == self.tp * self.pp:
                    del counts[name]
                    done.add(name)
        return done

    def _invalid(self, invalid):
        """Requests with blocks that did not arrive are computed from the first of them on."""
        affected, marked = set(), set()
        for request in [r for r in self.waiting if r.status == "LOADING"] + self.running:
            loading = request.status == "LOADING"
            if loading and request.request_id in self.failed:
                cached = request.num_computed_tokens
            else:
                cached = (
                    len(request.blocks) * self.block_tokens
                    if loading
                    else request.num_cached_tokens
                )
            mine = False
            for i, b in zip(range(-(-cached // self.block_tokens)), request.blocks):
                if b not in invalid:
                    continue
                affected.add(request)
                if b in marked:
                    continue
                marked.add(b)
                if not mine:
                    mine = True
                    request.num_computed_tokens = i * self.block_tokens
                    self.recomputed_tokens += cached - request.num_computed_tokens
                    if loading:
                        self.failed.add(request.request_id)
            if request in affected and not mine:
                request.num_computed_tokens = request.num_cached_tokens
        return affected

    # --- for tests

    def run(self, seconds=100):
        """Until all requests are done and all blocks are free again."""
        until = time.monotonic() + seconds
        while self.requests:
            if not self.step():
                time.sleep(0.001)  # blocks are on their way
            if time.monotonic() > until:
                raise AssertionError(
                    f"still there: {[(r.request_id, r.status) for r in self.requests.values()]}"
                )

    def check_idle(self):
        assert not self.requests and not self.running and not self.waiting
        assert sorted(self.blocks.free) == list(range(1, self.block_count)), "blocks were lost"

    def close(self):
        for worker in self.workers:
            worker.connector.shutdown()
        self.connector.shutdown()
