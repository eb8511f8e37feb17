"""What the tests of LMCache's connector share: connectors of stubs, and chunks with their bytes."""

import asyncio
import logging
import threading

from harness import TarnTest
from lmcache_stubs import Backend, BytesObj, Config, Key, MemoryFormat, Metadata, Wrapped, pattern

from tarn.lmcache import TarnConnector, _base


class Logs(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class SlowClient:
    """Gets of one key wait until `go` is set; `passed` counts the others that have ended."""

    def __init__(self, client, slow):
        self._client, self._slow, self.go, self.passed = client, slow, threading.Event(), 0
        self.go.set()

    def __getattr__(self, name):
        return getattr(self._client, name)

    def get_into_many(self, keys, *args, **hints):
        if self._slow in keys:
            self.go.wait(10)
        result = self._client.get_into_many(keys, *args, **hints)
        self.passed += self._slow not in keys
        return result


class ConnectorTest(TarnTest):
    """`self.connector()` makes connectors that are closed, and at the end all memory must have come
    back."""

    query = ""

    def setUp(self):
        self.backend, self.metadata, self.logs = Backend(), Metadata(), Logs()
        logger = logging.getLogger("tarn.lmcache")
        logger.addHandler(self.logs)
        propagate, logger.propagate = logger.propagate, False
        self.addCleanup(logger.removeHandler, self.logs)
        self.addCleanup(setattr, logger, "propagate", propagate)
        self._n = 0
        # As with LMCache installed.
        formats, _base.MemoryFormat = _base.MemoryFormat, MemoryFormat
        self.addCleanup(setattr, _base, "MemoryFormat", formats)

    def connector(self, backend=None, metadata=None, url=None, **options):
        connector = TarnConnector(
            url or self.server.url + self.query,
            None,
            backend or self.backend,
            Config(),
            metadata or self.metadata,
            **options,
        )
        self.addCleanup(lambda: asyncio.run(connector.close()))
        return connector

    def keys(self, n, **kwargs):
        """New ones every time."""
        self._n += 1
        return [
            Key((hash(self.id()) & 0xFFFFFFFF) << 32 | self._n << 16 | i, **kwargs)
            for i in range(n)
        ]

    def chunks(self, n, tokens=None, metadata=None):
        return [(metadata or self.metadata).chunk(self.backend, i, tokens) for i in range(n)]

    def store(self, connector, keys, objs):
        """As LMCache does: the reference that it took is dropped by its wrapper; the last one by
        us."""
        for obj in objs:
            obj.ref_count_up()
        asyncio.run(Wrapped(connector).batched_put(keys, objs))
        for obj in objs:
            if not isinstance(obj, BytesObj):
                self.assertEqual(obj.get_ref_count(), 1)
            obj.ref_count_down()

    def load(self, connector, keys):
        return asyncio.run(connector.batched_get(keys))

    def check(self, objs, seeds, shape=None):
        """The objects hold what was put; they are given back."""
        for obj, seed in zip(objs, seeds):
            self.assertIsNotNone(obj)
            self.assertEqual(obj.get_ref_count(), 1)
            self.assertEqual(obj.get_shape(), shape or self.metadata.get_shapes()[0])
            self.assertEqual(bytes(obj.byte_array.cast("B")), pattern(seed, obj.get_size()))
            obj.ref_count_down()
        self.assertEqual(len(objs), len(seeds))

    def nothing_left(self, backend=None):
        backend = backend or self.backend
        self.assertEqual((backend.alive, backend.used), (0, 0))
