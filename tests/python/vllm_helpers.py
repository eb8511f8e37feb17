"""Connectors with slow puts, or with a cache behind copies; and a test class that makes engines and
looks into the pool."""

import ctypes
import logging
import random
import time
from unittest import mock

from harness import TarnTest
import tarn
from tarn.chain import Chain
from tarn.vllm import TarnConnector, connector, tensors
from tarn.vllm.pool import Pool
from vllm_engine import Engine
from vllm_model import DIM, Layer

logging.getLogger("tarn.vllm").addHandler(
    logging.NullHandler()
)  # pools that are away are a part of these tests


class PatientPool(Pool):
    """Connecting may take as long as all else: a server that is slow is none that is away."""

    def __init__(self, url, retry_ms, options=None, connect=None):
        options = dict(options or {})
        options["connect_timeout_ms"] = max(
            options.get(name, 0) for name in ("timeout_ms", "connect_timeout_ms")
        )
        super().__init__(url, retry_ms, options, connect)


class SlowClient(tarn.Client):
    """Puts that take their time before they read, so that blocks which are freed too early are
    found out."""

    delay = 0.0
    go = None  # an event that they wait for

    def put_from_many(self, *args, **kwargs):
        if self.go is not None:
            self.go.wait(60)
        time.sleep(self.delay)
        return super().put_from_many(*args, **kwargs)


class SlowConnector(TarnConnector):
    def _pool(self, settings, timeouts):
        return PatientPool(settings.url, settings.retry_ms, timeouts, SlowClient)


class Copier:
    """Stands for a GPU: the connector reaches the cache through these copies only."""

    def __init__(self, layers, tensors):
        self.layers, self.buffers = layers, []

    def alloc(self, size):
        self.buffers.append((ctypes.c_char * size)())
        return ctypes.addressof(self.buffers[-1])

    def mark(self):
        return time.monotonic()

    def _copy(self, layer, blocks, address, out):
        view = self.layers[layer]
        for block in blocks:
            for offset, size in view.runs:
                inside = view.address + block * view.stride + offset
                ctypes.memmove(*((address, inside) if out else (inside, address)), size)
                address += size

    def out(self, mark, layer, blocks, address):
        assert mark <= time.monotonic()
        self._copy(layer, blocks, address, True)

    def into(self, mark, layer, blocks, address):
        assert mark <= time.monotonic()
        self._copy(layer, blocks, address, False)

    def close(self):
        self.buffers.clear()


class StagedConnector(TarnConnector):
    def __init__(self, vllm_config, role, kv_cache_config=None):
        vllm_config.kv_transfer_config.kv_connector_extra_config.setdefault("staging_mib", 4)
        super().__init__(vllm_config, role, kv_cache_config)

    def _copier(self):
        return Copier


class WithServer(TarnTest):
    def setUp(self):
        patch = mock.patch.object(connector, "Pool", PatientPool)
        patch.start()
        self.addCleanup(patch.stop)
        self.flush()
        self.engines = []
        self.addCleanup(lambda: [engine.close() for engine in self.engines])

    def flush(self):
        with tarn.Client(self.server.url) as client:
            client.command("FLUSHALL")

    def engine(self, kind=TarnConnector, **options):
        for name in ("timeout_ms", "lookup_timeout_ms"):
            options.setdefault(name, 60_000)
        engine = Engine(self.server.url, kind, **options)
        self.engines.append(engine)
        return engine

    def settle(self, engine):
        """Runs until all is done, and what is queued is put."""
        engine.run()
        engine.check_idle()
        for worker in engine.workers:
            self.wait_saved(worker)

    @staticmethod
    def wait_saved(worker):
        until = time.monotonic() + 60
        while worker.connector.stats().get("pending"):
            assert time.monotonic() < until
            time.sleep(0.002)

    def total(self, engine, name):
        return sum(w.connector.stats()[name] for w in engine.workers)

    def check_pool(self, engine, requests, layerwise=False):
        """Every object that these requests can have put has the right bytes. Returns how many there
        are, of how many."""
        space = engine.workers[0].connector._worker._space
        expected = {}
        for request in requests:
            lora = request.lora_request.lora_name if request.lora_request else None
            media = [
                (f.identifier, f.mm_position.offset, f.mm_position.length)
                for f in request.mm_features
            ]
            chain = Chain(
                engine.block_tokens, lora=lora, salt=request.cache_salt, revision="", media=media
            )
            chain.extend(request.all_token_ids)
            for i, name in enumerate(chain.hashes):
                for worker in engine.workers[:: max(1, engine.tp // space.shards)]:
                    mine = worker.connector._worker._space
                    parts = [self.truth(engine, worker, request, i, n) for n in worker.numbers]
                    if layerwise:
                        expected.update(
                            (mine.key(name, layer=n), part) for n, part in enumerate(parts)
                        )
                    else:
                        expected[mine.key(name)] = b"".join(parts)
        with tarn.Client(self.server.url) as client:
            found = client.get_many(list(expected))
        for (key, right), got in zip(expected.items(), found):
            self.assertTrue(got in (None, right), key)
        return sum(got is not None for got in found), len(expected)

    @staticmethod
    def truth(engine, worker, request, block, layer):
        """A layer of a block as it must be in the pool: written into a cache of the same form, then
        read through LayerView."""
        n = engine.block_tokens
        form = "B2NHD" if engine.form == "cross" else engine.form
        scratch = Layer(form, 3, n, len(worker.heads))
        for t in range(n):
            for kv in (0, 1):
                for h, head in enumerate(worker.heads):
                    at = scratch.place(1, t, kv, h)
                    right = request.truth.bytes(
                        request.all_token_ids, block * n + t, layer, kv, head
                    )
                    scratch.tensor.raw[at : at + DIM] = right
        view = tensors.view_of("x", scratch.tensor, 3, 0)
        return b"".join(
            bytes(scratch.tensor.raw[view.stride + o : view.stride + o + size])
            for o, size in view.runs
        )


def prompt(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(50_000) for _ in range(count)]
