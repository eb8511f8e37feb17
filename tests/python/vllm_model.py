"""The model of the engine in vllm_engine.py: sequences with the right bytes for each token, layers
with a cache, and the ranks that compute.

For every token a layer computes bytes that depend on all tokens before it, the layer, and the head.
Before a layer's attention uses a block, every byte of it is compared with what it must be; where
one is wrong, what is computed after it is wrong, too, on all ranks, as it would be in a model."""

import ctypes
import hashlib
import itertools
from types import SimpleNamespace

from tarn.vllm.base import Role

DIM = 16  # bytes of one head of one token
SCRIBBLE = 0xEE


def digest(*parts):
    return hashlib.blake2b(
        b"|".join(p if isinstance(p, bytes) else str(p).encode() for p in parts), digest_size=16
    ).digest()


class Truth:
    """The right bytes of one sequence: state(i) stands for tokens 0..i and all that the sequence
    depends on."""

    def __init__(self, extras, media=()):
        self.states = [digest("root", *extras)]
        self.media = media
        self.known = {}

    def state(self, tokens, i):
        while len(self.states) <= i + 1:
            at = len(self.states) - 1
            seen = [
                (name, at - start)
                for name, start, length in self.media
                if start <= at < start + length
            ]
            self.states.append(digest(self.states[-1], tokens[at], seen))
        return self.states[i + 1]

    def bytes(self, tokens, i, layer, kv, head):
        name = (i, layer, kv, head)
        if name not in self.known:
            self.known[name] = digest(self.state(tokens, i), layer, kv, head)
        return self.known[name]


class Tensor:
    """What the connector sees of a torch tensor: shape, strides in elements, element size, address.
    Two bytes an element."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, shape, order=None):
        """order: axes from the outermost in memory to the innermost."""
        self.shape = tuple(shape)
        size = 1
        self.strides = [0] * len(shape)
        for axis in reversed(order or range(len(shape))):
            self.strides[axis] = size
            size *= shape[axis]
        self.memory = (ctypes.c_char * (size * 2))()
        self.raw = memoryview(self.memory).cast("B")

    def stride(self):
        return tuple(self.strides)

    def element_size(self):
        return 2

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def at(self, *index):
        return 2 * sum(i * s for i, s in zip(index, self.strides))


class Layer:
    """One layer's cache of a rank, in one of the forms that attention backends have. place: where a
    head of a token is."""

    def __init__(self, form, blocks, tokens, heads):
        d = DIM // 2
        self.mla = form == "MLA"
        if form == "2BNHD":
            self.tensor = Tensor((2, blocks, tokens, heads, d))
            self.place = lambda b, t, kv, h: self.tensor.at(kv, b, t, h, 0)
        elif form == "B2NHD":
            self.tensor = Tensor((blocks, 2, tokens, heads, d))
            self.place = lambda b, t, kv, h: self.tensor.at(b, kv, t, h, 0)
        elif form == "2BHND":  # the same shape, heads outside of tokens in memory
            self.tensor = Tensor((2, blocks, tokens, heads, d), (0, 1, 3, 2, 4))
            self.place = lambda b, t, kv, h: self.tensor.at(kv, b, t, h, 0)
        elif form == "BHNC":  # keys and values of a token side by side
            self.tensor = Tensor((blocks, heads, tokens, 2 * d))
            self.place = lambda b, t, kv, h: self.tensor.at(b, h, t, kv * d)
        elif form == "cross":  # of all layers; which one it is: see Worker
            self.tensor = None
        elif form == "kernel":  # the kernel's blocks are half as large
            self.tensor = Tensor((2, 2 * blocks, tokens // 2, heads, d))
            self.place = lambda b, t, kv, h: self.tensor.at(
                kv, 2 * b + t * 2 // tokens, t % (tokens // 2), h, 0
            )
        else:
            self.tensor = Tensor((blocks, tokens, 2 * d))
            self.place = lambda b, t, kv, h: self.tensor.at(b, t, kv * d)


class Request:
    """As vLLM's: tokens, how many of them are computed, what state it is in."""

    numbers = itertools.count()

    def __init__(
        self, prompt, max_tokens=1, lora=None, salt=None, media=(), params=None, name=None
    ):
        self.request_id = name or f"r{next(self.numbers)}"
        self.prompt_token_ids = list(prompt)
        self.all_token_ids = list(prompt)
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.max_tokens = max_tokens
        self.lora_request = SimpleNamespace(lora_name=lora) if lora else None
        self.cache_salt = salt
        self.mm_features = [
            SimpleNamespace(identifier=i, mm_position=SimpleNamespace(offset=o, length=n))
            for i, o, n in media
        ]
        self.kv_transfer_params = params
        self.num_computed_tokens = self.num_cached_tokens = self.num_preemptions = 0
        self.status = "WAITING"
        self.blocks = []
        self.result_params = None
        self.external_tokens = 0
        self.truth = Truth((lora, salt), media)

    @property
    def num_tokens(self):
        return len(self.all_token_ids)

    def finished(self):
        return self.status.startswith("FINISHED")


class Worker:
    """A rank: memory, layers, and its half of the connector."""

    def __init__(self, engine, rank, connector_class):
        self.engine, self.rank = engine, rank
        e = engine
        self.stage = rank // e.tp
        self.heads = range(1) if e.mla else range(*e.head_range(rank % e.tp))
        self.numbers = range(self.stage * e.layers // e.pp, (self.stage + 1) * e.layers // e.pp)
        self.layers = {
            f"model.layers.{i}.self_attn.attn": Layer(
                e.form, e.block_count, e.block_tokens, len(self.heads)
            )
            for i in self.numbers
        }
        if e.form == "cross":
            shape = (e.block_count, len(self.layers), 2, e.block_tokens, len(self.heads), DIM // 2)
            self.every = Tensor(shape)
            for i, layer in enumerate(self.layers.values()):
                layer.tensor = self.every
                layer.place = lambda b, t, kv, h, i=i: self.every.at(b, i, kv, t, h, 0)
        both = [(kv, h, head) for kv in (0, 1) for h, head in enumerate(self.heads)]
        self.places = {  # layer, block, token: where each head of it is
            name: [
                [
                    [(layer.place(b, t, kv, h), kv, head) for kv, h, head in both]
                    for t in range(e.block_tokens)
                ]
                for b in range(e.block_count)
            ]
            for name, layer in self.layers.items()
        }
        self.connector = connector_class(e.config(rank), Role.WORKER, e.cache_config)
        if self.connector.prefer_cross_layer_blocks and e.form == "cross":
            self.connector.register_cross_layers_kv_cache(self.every, e.backend)
        else:
            self.connector.register_kv_caches(
                {name: layer.tensor for name, layer in self.layers.items()}
            )
        self.connector.set_host_xfer_buffer_ops(None)
        self.reported_sent, self.reported_received = set(), set()

    def scribble(self, blocks):
        for name, layer in self.layers.items():
            for b in blocks:
                for token in self.places[name][b]:
                    for at, _, _ in token:
                        layer.tensor.raw[at : at + DIM] = bytes([SCRIBBLE]) * DIM

    def _each(self, request, first, last, layer):
        """(where, right bytes) of the tokens [first, last) of a request in a layer."""
        number, n = self.numbers[list(self.layers).index(layer)], self.engine.block_tokens
        places = self.places[layer]
        for i in range(first, last):
            for at, kv, head in places[request.blocks_now[i // n]][i % n]:
                yield at, request.truth.bytes(request.all_token_ids, i, number, kv, head)

    def compute(self, name, work, wrong):
        """A layer for (request, first, last) of each. wrong: requests of which something was not
        right in a layer before, on any rank: what ranks compute is added up after every layer.
        Returns those of which something is not right in this one."""
        self.connector.wait_for_layer_load(name)
        raw = self.layers[name].tensor.raw
        for request, first, last in work:
            for at, right in self._each(request, first, last, name):
                raw[at : at + DIM] = bytes(255 - b for b in right) if request in wrong else right
        return {
            r
            for r, _, last in work
            if any(raw[at : at + DIM] != right for at, right in self._each(r, 0, last, name))
        }

    def begin(self, out):
        c, meta = self.connector, out.kv_connector_metadata
        calls = [
            c.bind_connector_metadata
        ]  # releases differ in the order, and whether there is the other one
        calls.insert(self.engine.rng.randrange(2), c.handle_preemptions)
        for call in calls:
            if self.engine.new_runner or call != c.handle_preemptions:
                call(meta)
        self.scribble(out.given_blocks)
        if out.has_sync_kv_loads:
            c.start_load_kv(None)

    def end(self, out, worked):
        c = self.connector
        if not out.has_sync_kv_loads:
            c.start_load_kv(None)
        if (
            worked or self.engine.rng.random() < 0.5
        ):  # some runners leave it out where nothing was computed
            c.wait_for_save()
        sent, received = c.get_finished(set(out.finished_req_ids))
        result = SimpleNamespace(
            finished_sending=set(sent or ()),
            finished_recving=set(received or ()),
            invalid_block_ids=c.get_block_ids_with_load_errors(),
            kv_connector_stats=c.get_kv_connector_stats(),
            kv_cache_events=c.get_kv_connector_kv_cache_events(),
            kv_connector_worker_meta=c.build_connector_worker_meta(),
        )
        c.clear_connector_metadata()
        assert (
            not result.finished_sending & self.reported_sent
        ), "a request is reported as sent twice"
        self.reported_sent |= result.finished_sending
        return result


def execute(workers, out, work):
    """A step on all ranks, layer by layer, one stage of the pipeline after the other. Returns
    (their results, the requests of which something was not right)."""
    for worker in workers:
        worker.begin(out)
    wrong = set()
    for stage in sorted({worker.stage for worker in workers}):
        ranks = [worker for worker in workers if worker.stage == stage]
        for name in ranks[0].layers if work else ():
            wrong |= set().union(*(worker.compute(name, work, wrong) for worker in ranks))
            for worker in ranks:
                worker.connector.save_kv_layer(name, worker.layers[name].tensor, None)
    return [worker.end(out, bool(work)) for worker in workers], wrong
