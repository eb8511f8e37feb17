"""Stand-ins for vLLM's MultiConnector, in what it does to its children, and for a sibling there:
a connector that brings requests their blocks from elsewhere, as Nixl's does, within steps or
between them, and keeps the blocks of finished requests for a while."""

import copy
from types import SimpleNamespace

from tarn.vllm.base import ConnectorBase, Role, SupportsHMA, TransferResults
from vllm_engine import joined
from vllm_model import DIM


class MultiStats:
    """By the children's classes."""

    def __init__(self, data):
        self.data = data

    def aggregate(self, other):
        for name, stats in other.data.items():
            mine = self.data.get(name)
            self.data[name] = stats if mine is None else mine.aggregate(stats)
        return self


class MultiMeta:
    """What children's workers say, one of each or None."""

    def __init__(self, each):
        self.each = each

    def aggregate(self, other):
        return MultiMeta([joined(pair, "aggregate") for pair in zip(self.each, other.each)])


class MultiConnector(ConnectorBase, SupportsHMA):
    """The first child that has tokens loads them; all save. children: (class, its options)."""

    children = ()
    prefer_cross_layer_blocks = False  # whatever the children say

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.connectors, self.chosen, self.extra_saves = [], {}, {}
        for child, options in self.children:
            config = copy.copy(vllm_config)
            config.kv_transfer_config = copy.copy(vllm_config.kv_transfer_config)
            extra = vllm_config.kv_transfer_config.kv_connector_extra_config
            config.kv_transfer_config.kv_connector_extra_config = dict(extra, **options)
            self.connectors.append(child(config, role, kv_cache_config))
        assert all(isinstance(child, SupportsHMA) for child in self.connectors)

    def child(self, kind):
        return next(child for child in self.connectors if isinstance(child, kind))

    def _each(self, method, *arguments):
        return [getattr(child, method)(*arguments) for child in self.connectors]

    # --- the scheduler's half

    def get_num_new_matched_tokens(self, request, computed):
        answer = (0, False)
        for i, child in enumerate(self.connectors):
            tokens, asynchronous = child.get_num_new_matched_tokens(request, computed)
            if tokens is None:
                return None, False
            if answer[0] == 0 and tokens > 0:
                self.chosen[request.request_id] = i
                answer = tokens, asynchronous
        return answer

    def update_state_after_alloc(self, request, blocks, tokens):
        chosen = self.chosen.get(request.request_id)
        for i, child in enumerate(self.connectors):
            child.update_state_after_alloc(request, blocks, tokens if i == chosen else 0)

    def build_connector_meta(self, output):
        extra, self.extra_saves = self.extra_saves, {}
        return SimpleNamespace(each=self._each("build_connector_meta", output), extra=extra)

    def update_connector_output(self, output):
        whole = output.kv_connector_worker_meta
        for i, child in enumerate(self.connectors):
            output.kv_connector_worker_meta = whole and whole.each[i]
            child.update_connector_output(output)
        output.kv_connector_worker_meta = whole

    def _finished(self, answers, request):
        saves = sum(keeps for keeps, _ in answers)
        if saves > 1:
            self.extra_saves[request.request_id] = saves - 1
        self.chosen.pop(request.request_id, None)
        params = {}
        for _, more in answers:
            assert not params.keys() & (more or {}).keys(), "vLLM raises here"
            params.update(more or {})
        return saves > 0, params or None

    def request_finished(self, request, blocks):
        return self._finished(self._each("request_finished", request, blocks), request)

    def request_finished_all_groups(self, request, tables):
        answers = self._each("request_finished_all_groups", request, tables)
        return self._finished(answers, request)

    def set_xfer_handshake_metadata(self, metadata):
        self._each("set_xfer_handshake_metadata", metadata)

    def bind_gpu_block_pool(self, pool):
        self._each("bind_gpu_block_pool", pool)

    def on_new_request(self, request):
        self._each("on_new_request", request)

    def has_pending_push_work(self):
        return any(self._each("has_pending_push_work"))

    def reset_cache(self):
        return all(answer is not False for answer in self._each("reset_cache"))

    def take_events(self):
        for child in self.connectors:
            yield from child.take_events()

    # --- the workers' half

    def register_kv_caches(self, caches):
        self._each("register_kv_caches", caches)

    def set_host_xfer_buffer_ops(self, operation):
        self._each("set_host_xfer_buffer_ops", operation)

    def get_handshake_metadata(self):
        return next((m for m in self._each("get_handshake_metadata") if m is not None), None)

    def bind_connector_metadata(self, metadata):
        self.extra_saves.update(metadata.extra)
        for child, mine in zip(self.connectors, metadata.each):
            child.bind_connector_metadata(mine)
        super().bind_connector_metadata(metadata)

    def handle_preemptions(self, metadata):
        for child, mine in zip(self.connectors, metadata.each):
            child.handle_preemptions(mine)

    def clear_connector_metadata(self):
        self._each("clear_connector_metadata")
        super().clear_connector_metadata()

    def start_load_kv(self, context):
        self._each("start_load_kv", context)

    def wait_for_layer_load(self, name):
        self._each("wait_for_layer_load", name)

    def save_kv_layer(self, *arguments):
        self._each("save_kv_layer", *arguments)

    def wait_for_save(self):
        self._each("wait_for_save")

    def get_finished(self, finished):
        sent, received = set(), set()
        for more, arrived in self._each("get_finished", finished):
            received |= arrived or set()
            for name in more or ():
                left = self.extra_saves.get(name, 0)
                if left > 1:
                    self.extra_saves[name] = left - 1
                elif left == 1:
                    del self.extra_saves[name]
                else:
                    sent.add(name)
        return sent or None, received or None

    def get_transfer_results(self, finished):
        """Of children whose saves keep no request's blocks."""
        whole = TransferResults()
        for child in self.connectors:
            results = child.get_transfer_results(finished)
            assert not results.finished_sending
            whole.finished_recving |= results.finished_recving
            whole.failed_recving |= results.failed_recving
        return whole

    def get_block_ids_with_load_errors(self):
        return set().union(*self._each("get_block_ids_with_load_errors"))

    def get_kv_connector_stats(self):
        data = {}
        for child, stats in zip(self.connectors, self._each("get_kv_connector_stats")):
            if stats is not None:
                data[type(child).__name__] = stats
        return MultiStats(data) if data else None

    def get_kv_connector_kv_cache_events(self):
        """Not handed on."""

    def build_connector_worker_meta(self):
        each = self._each("build_connector_worker_meta")
        return MultiMeta(each) if any(meta is not None for meta in each) else None

    def stats(self):
        return self.connectors[-1].stats()

    def shutdown(self):
        self._each("shutdown")


class Handshake:
    pass


class Sibling(ConnectorBase, SupportsHMA):
    """Brings the tokens of `bring` ({request id: tokens}) if it is asked first. asynchronous,
    keeps: as they say. wrong: request ids of which the last block does not arrive. The engine's
    workers are `workers`, of which each has one of these."""

    bring, wrong, asynchronous, keeps, workers = {}, set(), True, True, {}

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.rank = vllm_config.parallel_config.rank if role == Role.WORKER else None
        self.loads, self.arrived, self.errors, self.kept = [], set(), set(), []
        self.tables = []

    def get_num_new_matched_tokens(self, request, computed):
        tokens = max(0, self.bring.get(request.request_id, 0) - computed)
        self.start = computed
        return tokens, tokens > 0 and self.asynchronous

    def update_state_after_alloc(self, request, blocks, tokens):
        self.tables.append((request.request_id, tokens, blocks.get_block_ids()))
        if tokens > 0:
            self.loads.append((request, list(blocks.get_block_ids()[0]), self.start, tokens))
            self.bring.pop(request.request_id, None)

    def build_connector_meta(self, output):
        loads, self.loads = self.loads, []
        kept, self.kept = self.kept, []
        return SimpleNamespace(loads=loads, kept=kept)

    def request_finished_all_groups(self, request, tables):
        return self.request_finished(request, tables[0])

    def request_finished(self, request, blocks):
        keeps = self.keeps and bool(blocks) and request.status == "FINISHED_STOPPED"
        if keeps:
            self.kept.append(request.request_id)
        return keeps, {"remote_block_ids": list(blocks)} if keeps else None

    def set_xfer_handshake_metadata(self, metadata):
        for mine in metadata.values():
            if not isinstance(mine, Handshake):
                raise ValueError("this is another connector's")

    def get_handshake_metadata(self):
        return Handshake()

    def start_load_kv(self, context):
        for request, blocks, start, tokens in self._get_connector_metadata().loads:
            request.blocks_now = blocks
            worker = self.workers[self.rank]
            lost = request.request_id in self.wrong
            size = worker.engine.block_tokens
            end = start + tokens - (size if lost else 0)
            for name, layer in worker.layers.items():
                for at, right in worker._each(request, start, end, name):
                    layer.tensor.raw[at : at + DIM] = right
            if lost:
                self.errors.add(blocks[end // size])
            if self.asynchronous:
                self.arrived.add(request.request_id)

    def get_finished(self, finished):
        arrived, self.arrived = self.arrived, set()
        return set(self._get_connector_metadata().kept) or None, arrived or None

    def get_transfer_results(self, finished):
        sent, arrived = self.get_finished(finished)
        return TransferResults(sent or set(), arrived or set(), set())

    def get_block_ids_with_load_errors(self):
        """After the step, whose blocks may be on their way into the pool by now."""
        errors, self.errors = self.errors, set()
        if errors:
            self.settle(self.workers[self.rank])
        return errors

    def take_events(self):
        return ["a sibling's"] if self.tables and self.tables.pop() else []

    def _nothing(self, *arguments):
        return None

    bind_gpu_block_pool = on_new_request = update_connector_output = reset_cache = _nothing
    register_kv_caches = set_host_xfer_buffer_ops = handle_preemptions = _nothing
    has_pending_push_work = wait_for_layer_load = save_kv_layer = wait_for_save = _nothing
    build_connector_worker_meta = get_kv_connector_stats = shutdown = _nothing
