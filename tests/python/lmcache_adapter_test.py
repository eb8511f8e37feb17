"""TarnConnectorAdapter: URLs, options and their errors, what the log says."""

import asyncio
import unittest

from lmcache_helpers import ConnectorTest
from lmcache_stubs import Config, Context

import tarn
from tarn.lmcache import TarnConnectorAdapter


class Adapter(ConnectorTest):
    def create(self, url, plugin_name=None, **extra):
        context = Context(url, self.backend, Config(**extra), self.metadata, plugin_name)
        connector = TarnConnectorAdapter().create_connector(context)
        self.addCleanup(lambda: asyncio.run(connector.close()))
        return connector

    def test_urls(self):
        adapter = TarnConnectorAdapter()
        for url in (
            "tarn://h:1",
            "tarn+sentinel://h:1/m",
            "plugin://tarn",
            "plugin://tarn.a",
            "plugin://tarn/",
        ):
            self.assertTrue(adapter.can_parse(url), url)
        for url in (
            "redis://h:1",
            "plugin://tarnish",
            "plugin://fs.tarn",
            "http://tarn://",
            "plugin://",
            "",
        ):
            self.assertFalse(adapter.can_parse(url), url)
        self.assertEqual(adapter.schema, "tarn://")

    def test_create(self):
        url, [key] = self.server.url, self.keys(1)
        self.store(self.create(url), [key], self.chunks(1))
        plugin = {
            "remote_storage_plugin.tarn.url": url,
            "remote_storage_plugin.tarn.b.url": url + "?max_lanes=2",
        }
        for connector in (
            self.create("plugin://tarn", **plugin),
            self.create("plugin://tarn.b", **plugin),
            self.create("plugin://tarn", plugin_name="tarn.b", **plugin),
            self.create(url, **{"tarn.get_threads": 1, "tarn.pin_ms": 100, "some.other": 1}),
        ):
            self.check(self.load(connector, [key]), [0])

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, r"remote_storage_plugin\.tarn\.url"):
            self.create("plugin://tarn")
        with self.assertRaisesRegex(ValueError, r"tarn\.threads"):
            self.create(self.server.url, **{"tarn.threads": 1})
        with self.assertRaisesRegex(ValueError, r"get_threads"):
            self.create(self.server.url, **{"tarn.get_threads": 0})
        for name in ("pin_ms", "replicas", "put_backlog"):
            for wrong in ("5 s", "", "1gb", -1, True, 1.5, 1 << 40):
                with self.assertRaisesRegex(ValueError, f"tarn.{name} is a number"):
                    self.create(self.server.url, **{f"tarn.{name}": wrong})

    def test_numbers_as_text(self):
        """As LMCache's environment variables and quoted YAML have them."""
        connector = self.create(
            self.server.url,
            **{"tarn.get_threads": "3", "tarn.pin_ms": " 70 ", "tarn.replicas": "0"},
        )
        self.assertEqual((connector._get_threads, connector._pin_ms), (3, 70))

    def test_options_of_one_plugin(self):
        """As LMCache's own connectors have theirs: they win over those of all plugins."""
        own = "remote_storage_plugin.tarn."
        extra = {
            own + "url": self.server.url,
            own + "class_name": "X",
            own + "b.url": self.server.url,
        }
        extra.update(
            {"tarn.get_threads": 3, "tarn.pin_ms": 50, own + "pin_ms": "70", own + "b.pin_ms": 90}
        )
        made = [
            self.create(f"plugin://{name}", plugin_name=name, **extra)
            for name in ("tarn", "tarn.b")
        ]
        self.assertEqual([(c._get_threads, c._pin_ms) for c in made], [(3, 70), (3, 90)])
        self.assertEqual(self.create(self.server.url, **extra)._pin_ms, 50)
        with self.assertRaisesRegex(
            ValueError, r"remote_storage_plugin\.tarn\.threads.*tarn\.get_threads"
        ):
            self.create("plugin://tarn", **extra, **{own + "threads": 1})

    def test_refusals_are_logged(self):
        """LMCache swallows what is raised, and tries again: the log says it once a minute."""
        with self.assertLogs("tarn.lmcache.adapter", "ERROR") as log:
            for _ in range(3):
                with self.assertRaises(ValueError):
                    self.create(self.server.url, **{"tarn.put_threads": "many"})
        self.assertEqual(len(log.output), 1)
        self.assertIn("tarn.put_threads is a number from 1 to 65536, not 'many'", log.output[0])

    def test_no_password_in_the_log(self):
        name = "remote_storage_plugin.tarn.url"
        with self.assertLogs("tarn.lmcache.adapter", "ERROR") as log:
            for url in ("redis://me:secret@h", "me:secret@h", "tarn://me:secret@127.0.0.1:0"):
                with self.assertRaises(ValueError) as raised:
                    self.create("plugin://tarn", plugin_name="tarn", **{name: url})
                self.assertNotIn("secret", str(raised.exception))
        self.assertNotIn("secret", "".join(log.output))

    def test_scheduler_without_memory(self):
        """LMCache's scheduler has no CPU backend: it only looks."""
        [key] = self.keys(1)
        self.store(self.create(self.server.url), [key], self.chunks(1))
        connector = TarnConnectorAdapter().create_connector(
            Context(self.server.url, None, Config(), self.metadata)
        )
        self.addCleanup(lambda: asyncio.run(connector.close()))
        self.assertTrue(connector.exists_sync(key))
        self.assertEqual(connector.batched_contains([key]), 1)

    def test_registration(self):
        """LMCache's pinned memory, which is a tensor: registered once, and not where there is
        none."""
        connector = self.create(self.server.url)
        connector.post_init()
        self.assertEqual(connector._registered, 0)
        memory = bytearray(1 << 16)
        address = tarn.memory.pin(memory, writable=True).address

        class Tensor:
            nbytes = len(memory)

            def data_ptr(self):
                return address

            def is_contiguous(self):
                return True

        self.backend.memory_allocator = type(
            "A", (), {"pin_allocator": type("P", (), {"buffer": Tensor()})}
        )
        connector.post_init()
        self.assertEqual(connector._registered, address)
        connector.post_init()
        self.assertEqual(self.logs.lines, [])


if __name__ == "__main__":
    unittest.main()
