"""A small engine for hybrid models, without vLLM and without a GPU, that drives a KV connector in
the order of calls of vLLM's V1 engine: a table of blocks for each KV group, all from one pool, with
null blocks where a window has gone on; states of recurrent layers at block boundaries (Mamba's
align mode); prefixes of its own; prompts in chunks; preemption and aborts.

Blocks that are given to somebody else are scribbled over at once. What raises AssertionError here
would be a wrong answer, or a crash, of the real engine."""

import random
import time
from collections import OrderedDict, deque
from types import SimpleNamespace

from groups_model import Rank, cache_config_of
from layouts import STATE, WINDOW, Prompt
from tarn.vllm.base import Role


class Block:
    def __init__(self, number):
        self.block_id, self.refs, self.name = number, 0, None


class BlockPool:
    """vLLM's: references, and blocks that are remembered by what they hold until they are given
    away, those first that have been free the longest."""

    def __init__(self, count):
        self.blocks = [Block(i) for i in range(count)]
        self.free = OrderedDict((i, None) for i in range(1, count))  # 0 is the null block
        self.known = {}
        self.given = []

    def take(self, count):
        assert count <= len(self.free)
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for i in taken:
            block = self.blocks[i]
            block.refs = 1
            if block.name is not None:
                del self.known[block.name]
                block.name = None
        self.given += taken
        return taken

    def remember(self, name, i):
        if name not in self.known and self.blocks[i].name is None:
            self.known[name], self.blocks[i].name = i, name

    def touch(self, blocks):
        for block in blocks:
            if block.refs == 0:
                del self.free[block.block_id]
            block.refs += 1

    def free_blocks(self, blocks):
        for block in blocks:
            assert block.refs > 0, "a block is freed twice"
            block.refs -= 1
            if block.refs == 0:
                self.free[block.block_id] = None

    def evict_blocks(self, numbers):
        for i in numbers:
            if self.blocks[i].name is not None:
                del self.known[self.blocks[i].name]
                self.blocks[i].name = None


class GroupsRequest:
    """As vLLM's."""

    made = 0

    def __init__(self, prompt, max_tokens=1, params=None):
        GroupsRequest.made += 1
        self.request_id = f"g{GroupsRequest.made}"
        self.truth = prompt
        self.num_prompt_tokens, self.max_tokens = len(prompt), max_tokens
        self.prompt_token_ids = list(prompt.tokens)
        self.kv_transfer_params = params
        self.lora_request = self.cache_salt = None
        self.mm_features = []
        self.computed = self.external = 0
        self.tables, self.status, self.result_params = None, "WAITING", None

    @property
    def all_token_ids(self):
        return self.truth.tokens

    @property
    def num_tokens(self):
        return len(self.truth)


class GroupsWorker:
    def __init__(self, engine, rank, connector_class):
        self.memory, self.by_request = Rank(engine.layout, engine.block_count, rank), True
        self.connector = connector_class(engine.config(rank), Role.WORKER, engine.cache_config)
        self.connector.register_kv_caches(self.memory.caches)

    def run(self, out, work, given):
        c = self.connector
        c.bind_connector_metadata(out.kv_connector_metadata)
        c.handle_preemptions(out.kv_connector_metadata)
        self.memory.scribble(given)
        c.start_load_kv(None)
        for request, first, last in work:  # those behind may use what those before have filled
            self.memory.check(request.truth, request.tables, first)
            self.memory.fill(request.truth, request.tables, first, last)
        if work:
            c.wait_for_save()
        if self.by_request:
            results = c.get_transfer_results(set())
        else:
            sent, arrived = c.get_finished(set())
            results = SimpleNamespace(
                finished_sending=sent or (), finished_recving=arrived or (), failed_recving=()
            )
        errors = c.get_block_ids_with_load_errors()
        meta = c.build_connector_worker_meta()
        c.clear_connector_metadata()
        return results, errors, meta


class GroupsEngine:
    """A scheduler and its workers. pool_bound: whether vLLM hands its block pool over, as later
    releases do. Options beyond these are the connector's."""

    def __init__(
        self,
        url,
        connector_class,
        layout,
        *,
        blocks=64,
        budget=256,
        seed=0,
        role="kv_both",
        pool_bound=True,
        handshake=True,
        **extra,
    ):
        self.url, self.layout, self.block_count, self.budget = url, layout, blocks, budget
        self.role, self.extra, self.rng = role, extra, random.Random(seed)
        self.cache_config = cache_config_of(layout, blocks)
        self.connector = connector_class(self.config(0), Role.SCHEDULER, self.cache_config)
        self.workers = [GroupsWorker(self, rank, connector_class) for rank in range(layout.tp)]
        if handshake:
            self.connector.set_xfer_handshake_metadata(
                {i: w.connector.get_handshake_metadata() for i, w in enumerate(self.workers)}
            )
        self.pool = BlockPool(blocks)
        if pool_bound:
            self.connector.bind_gpu_block_pool(self.pool)
        self.requests, self.waiting, self.running = {}, deque(), []
        self.preempted, self.offers = set(), {}
        self.arrived, self.counts = {}, {}
        self.steps = self.preemptions = self.failed = self.external = 0

    def config(self, rank):
        heads = max((g.heads for g in self.layout.groups if g.form == "heads"), default=1)
        latent = any(g.form == "latent" for g in self.layout.groups)
        eagle = any(g.drops_last for g in self.layout.groups)
        return SimpleNamespace(
            kv_transfer_config=SimpleNamespace(
                kv_role=self.role,
                kv_load_failure_policy="recompute",
                kv_connector_extra_config={"min_load_tokens": 0, **self.extra, "url": self.url},
            ),
            cache_config=SimpleNamespace(
                block_size=self.layout.unit,
                cache_dtype=self.layout.dtype,
                num_gpu_blocks=self.block_count,
            ),
            model_config=SimpleNamespace(
                model=f"toy/{self.layout.name}",
                revision=None,
                dtype="torch.bfloat16",
                use_mla=latent,
                get_total_num_kv_heads=lambda: heads,
            ),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=self.layout.tp, pipeline_parallel_size=1, rank=rank
            ),
            speculative_config=SimpleNamespace(use_eagle=lambda: True, method="eagle")
            if eagle
            else None,
        )

    # --- what users do

    def add(self, prompt, max_tokens=1, params=None):
        request = GroupsRequest(prompt, max_tokens, params)
        self.requests[request.request_id] = request
        self.connector.on_new_request(request)
        self.waiting.append(request)
        return request

    def abort(self, request):
        if request.status in ("FINISHED", "ABORTED"):
            return
        loading = request.status == "LOADING" and request.request_id not in self.arrived
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        request.status = "ABORTED"
        self._finish(request, loading)

    def _finish(self, request, loading=False):
        tables = tuple(request.tables or [[] for _ in self.layout.groups])
        keep, request.result_params = self.connector.request_finished_all_groups(request, tables)
        assert not (keep and loading), "vLLM would free these blocks twice"
        request.keeps = "load" if loading else "save" if keep else None
        if request.keeps is None:
            self._forget(request)

    def _forget(self, request):
        self._free(request)
        del self.requests[request.request_id]

    def _free(self, request):
        for table in request.tables or ():
            self._drop(reversed(table))
        request.tables = None

    def _drop(self, numbers):
        self.pool.free_blocks([self.pool.blocks[i] for i in numbers if i])

    # --- blocks

    def _name(self, number, prompt, end):
        return (number, prompt.states[end])

    def _found(self, request):
        """The longest boundary that this engine still has."""

        def has(group, shard, end):
            known = end < request.num_tokens
            return known and self._name(group, request.truth, end) in self.pool.known

        return self.layout.boundary(has, request.num_tokens - 1)

    def _first(self, group, tokens):
        """The first block that is kept for the token behind these."""
        if group.kind == STATE:
            return max(0, -(-tokens // group.block) - 1)
        return max(0, tokens - group.window + 1) // group.block if group.kind == WINDOW else 0

    def _admit(self, request, local, tokens):
        """Tables for `tokens` computed tokens, the first `local` of them found here. None: no
        room."""
        tables, new = [], []
        for number, group in enumerate(self.layout.groups):
            first, have = self._first(group, tokens), local // group.block
            table = [0] * first
            for n in range(first, have):
                name = self._name(number, request.truth, (n + 1) * group.block)
                table.append(self.pool.known[name])
            new.append(max(0, tokens // group.block - len(table)))
            tables.append(table)
        touched = [self.pool.blocks[i] for table in tables for i in table if i]
        idle = len({block.block_id for block in touched if block.refs == 0})
        if sum(new) > len(self.pool.free) - idle:
            return None
        self.pool.touch(touched)
        for table, count in zip(tables, new):
            table += self.pool.take(count)
        return tables

    def _grow(self, request, tokens):
        """Blocks for so many tokens; of each group the new ones, None: there is no room."""
        for number, group in enumerate(self.layout.groups):
            gone = self._first(group, request.computed)
            table = request.tables[number]
            self._drop(table[:gone])
            table[:gone] = [0] * min(gone, len(table))
        sizes = [-(-tokens // group.block) for group in self.layout.groups]
        news = []
        for group, table, size in zip(self.layout.groups, request.tables, sizes):
            nulls = max(0, size - 1 - len(table)) if group.kind == STATE else 0
            news.append((nulls, max(0, size - len(table) - nulls)))
        if sum(count for _, count in news) > len(self.pool.free):
            return None
        added = []
        for table, (nulls, count) in zip(request.tables, news):
            blocks = [0] * nulls + self.pool.take(count)
            table += blocks
            added.append(blocks)
        return added

    def _remember(self, request, first, last):
        """What the step fills may be found from the next one on; and the states that it leaves."""
        last = min(last, request.num_tokens)
        for number, group in enumerate(self.layout.groups):
            ends = range(first // group.block * group.block + group.block, last + 1, group.block)
            for end in [last] if group.kind == STATE else ends:
                block = request.tables[number][-(-end // group.block) - 1]
                if end % group.block or not block:
                    continue
                self.pool.remember(self._name(number, request.truth, end), block)
                if group.kind == STATE:
                    self._offer(request, number, block, end)

    def _offer(self, request, number, block, end):
        """Says which block holds a state (SchedulerOutput)."""
        self.offers.setdefault(request.request_id, []).append((number, block, end))

    def _chunk(self, request, budget):
        """How many tokens to compute: states are kept where a chunk ends at a boundary."""
        count = min(budget, request.num_tokens - request.computed)
        if any(g.kind == STATE for g in self.layout.groups):
            align = self.layout.align
            end = (request.computed // align + 1) * align
            count = min(count, end - request.computed)
        return count

    def _preempt(self, request):
        self._free(request)
        request.status, request.computed = "WAITING", 0
        self.preempted.add(request.request_id)
        self.preemptions += 1
        self.waiting.appendleft(request)

    # --- a step

    def _schedule_running(self, out, budget):
        for request in list(self.running):
            if request not in self.running or budget == 0:
                continue
            count = self._chunk(request, budget)
            while (added := self._grow(request, request.computed + count)) is None:
                victim = self.running.pop()
                if victim.request_id in out.num_scheduled_tokens:
                    budget += out.num_scheduled_tokens.pop(victim.request_id)
                    out.cached = [c for c in out.cached if c[0] is not victim]
                self._preempt(victim)
                if victim is request:
                    break
            if request.status != "RUNNING":
                break
            budget -= count
            out.num_scheduled_tokens[request.request_id] = count
            out.cached.append((request, added))
            self._remember(request, request.computed, request.computed + count)
        return budget

    def _ready(self, request):
        """A request whose parts were loaded, or not."""
        if request.request_id not in self.arrived:
            return False
        if self.arrived.pop(request.request_id):
            request.status = "LOADED"
            self._remember_loaded(request)
        else:
            self._free(request)
            request.status, request.computed = "WAITING", 0
        return True

    def _remember_loaded(self, request):
        for number, group in enumerate(self.layout.groups):
            for n, block in enumerate(request.tables[number]):
                if block:
                    end = (n + 1) * group.block
                    self.pool.remember(self._name(number, request.truth, end), block)

    def _need(self, request):
        """How many blocks it still wants, at most."""
        tables = request.tables or [[] for _ in self.layout.groups]
        sizes = [-(-request.num_tokens // group.block) + 2 for group in self.layout.groups]
        return sum(size - sum(map(bool, table)) for size, table in zip(sizes, tables))

    def _fits(self, request, skipped):
        """May a request get blocks before it can run? Only when all that have some will be able to
        run one after the other."""
        holders = [r for r in skipped if r.tables is not None]
        alone = not holders and not self.running
        return alone or sum(map(self._need, [request, *holders])) < len(self.pool.free)

    def _start(self, request, skipped):
        """Tables for what is here and in the pool. False: not now."""
        local = self._found(request)
        external, asynchronous = self.connector.get_num_new_matched_tokens(request, local)
        if external is None or (external and not self._fits(request, skipped)):
            return False
        assert asynchronous == bool(external) and local + external < request.num_tokens
        assert external % self.layout.align == 0
        tables = self._admit(request, local, local + external)
        if tables is None:
            return False
        request.tables, request.computed = tables, local + external
        request.external += external
        self.external += external
        ids = tuple(list(table) for table in tables)
        blocks = SimpleNamespace(get_block_ids=lambda: ids)
        self.connector.update_state_after_alloc(request, blocks, external)
        if external:
            request.status = "LOADING"
        return True

    def _schedule_waiting(self, out, budget):
        skipped = []
        self.waiting = deque(sorted(self.waiting, key=lambda r: r.tables is None))
        while self.waiting and budget > 0:
            request = self.waiting.popleft()
            if request.status == "LOADING" and not self._ready(request):
                skipped.append(request)
                continue
            if request.status == "WAITING" and not self._start(request, skipped):
                skipped.append(request)
                break
            if request.status == "LOADING":
                skipped.append(request)
                continue
            if request.status == "LOADED":
                ids = tuple(list(table) for table in request.tables)
                blocks = SimpleNamespace(get_block_ids=lambda ids=ids: ids)
                self.connector.update_state_after_alloc(request, blocks, 0)
            count = self._chunk(request, budget)
            if self._grow(request, request.computed + count) is None:
                if request.status == "WAITING":
                    self._free(request)
                    request.computed = 0
                skipped.append(request)
                break
            request.status = "RUNNING"
            self.running.append(request)
            budget -= count
            out.num_scheduled_tokens[request.request_id] = count
            out.scheduled_new_reqs.append(
                SimpleNamespace(
                    req_id=request.request_id,
                    block_ids=tuple(list(table) for table in request.tables),
                    num_computed_tokens=request.computed,
                )
            )
            self._remember(request, request.computed, request.computed + count)
        self.waiting.extendleft(reversed(skipped))

    def schedule(self):
        out = SimpleNamespace(scheduled_new_reqs=[], cached=[], num_scheduled_tokens={})
        self.offers = {}
        budget = self._schedule_running(out, self.budget)
        if not self.preempted:
            self._schedule_waiting(out, budget)
        out.preempted_req_ids, self.preempted = self.preempted, set()
        out.scheduled_cached_reqs = SimpleNamespace(
            req_ids=[request.request_id for request, _ in out.cached],
            resumed_req_ids=set(),
            new_block_ids=[tuple(new) if any(new) else None for _, new in out.cached],
            num_computed_tokens=[request.computed for request, _ in out.cached],
        )
        out.kv_connector_block_state = SimpleNamespace(boundary_state_offloads=self.offers)
        out.kv_connector_metadata = self.connector.build_connector_meta(out)
        return out

    def step(self):
        """Schedules, computes on all ranks, takes the outcome in. Returns whether anything was
        computed."""
        self.steps += 1
        out = self.schedule()
        given, self.pool.given = self.pool.given, []
        work = []
        for name, count in out.num_scheduled_tokens.items():
            request = self.requests[name]
            work.append((request, request.computed, request.computed + count))
            request.computed += count
        self._take([worker.run(out, work, given) for worker in self.workers])
        for request, _, _ in work:
            if request.status == "RUNNING" and request.computed == request.num_tokens:
                self._sample(request)
        return bool(work)

    def _sample(self, request):
        request.truth.append(int.from_bytes(request.truth.states[-1][:3], "little"))
        if request.num_tokens - request.num_prompt_tokens >= request.max_tokens:
            self.running.remove(request)
            request.status = "FINISHED"
            self._finish(request)

    def _from_all(self, kind, reports):
        """Those that all ranks have reported."""
        done = set()
        for names in reports:
            for name in names:
                self.counts[kind, name] = self.counts.get((kind, name), 0) + 1
                if self.counts[kind, name] == self.layout.tp:
                    del self.counts[kind, name]
                    done.add(name)
        return done

    def _take(self, reports):
        results = [report[0] for report in reports]
        invalid = set().union(*(report[1] for report in reports))
        metas = [report[2] for report in reports if report[2] is not None]
        meta = metas[0] if metas else None
        for other in metas[1:]:
            meta = meta.aggregate(other)
        failed = set().union(*(r.failed_recving for r in results))
        self.counts.setdefault("failed", set()).update(failed)
        received = self._from_all("received", (r.finished_recving for r in results))
        sent = self._from_all("sent", (r.finished_sending for r in results))
        for name in received:
            blocks = {i for table in self.requests[name].tables or () for i in table if i}
            if blocks & invalid:
                self.counts["failed"].add(name)
        self.connector.update_connector_output(
            SimpleNamespace(
                finished_sending=sent,
                finished_recving=received,
                failed_recving=failed,
                invalid_block_ids=invalid,
                kv_connector_worker_meta=meta,
            )
        )
        for name in received:
            request = self.requests[name]  # a KeyError here ends vLLM
            good = name not in self.counts["failed"]
            self.counts["failed"].discard(name)
            self.failed += not good
            if request.status == "LOADING":
                self.arrived[name] = good
            else:
                assert request.status == "ABORTED" and request.keeps == "load"
                self._forget(request)
        for name in sent:
            assert self.requests[name].keeps == "save"
            self._forget(self.requests[name])

    # --- for tests

    def run(self, seconds=20):
        """Until all requests are done, and no block is pinned."""
        until = time.monotonic() + seconds
        while self.requests or self.connector.has_pending_push_work():
            if not self.step():
                time.sleep(0.001)
            if time.monotonic() > until:
                left = [(r.request_id, r.status) for r in self.requests.values()]
                raise AssertionError(f"still there: {left}, {len(self.pool.free)} blocks free")

    def settle(self, seconds=20):
        """The same, and all that is queued is put."""
        self.run(seconds)
        until = time.monotonic() + seconds
        while any(w.connector.stats().get("pending") for w in self.workers):
            assert time.monotonic() < until
            time.sleep(0.002)
        self.check_idle()

    def check_idle(self):
        assert not self.requests and not self.running and not self.waiting
        assert sorted(self.pool.free) == list(range(1, self.block_count)), "blocks were lost"

    def close(self):
        for worker in self.workers:
            worker.connector.shutdown()
        self.connector.shutdown()


def ask(engine, *prompts, max_tokens=1):
    """Requests for copies of these prompts, run to their ends. Returns how many tokens of each came
    from the pool."""
    made = [engine.add(Prompt(prompt.tokens), max_tokens) for prompt in prompts]
    engine.settle()
    return [request.external for request in made]
