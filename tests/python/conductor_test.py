"""Engines that tell the Conductor how they call their blocks: what it then finds in the pool is
what they have put there."""

import hashlib
import logging
import struct
import unittest
from unittest import mock

from harness import TarnTest, wait_until
import tarn
from groups_engine import ask
from layouts import LAYOUTS, Prompt
from tarn import InvalidArgument, KVGroup, conductor
from tarn.conductor import KeysTeller, keys_words
from tarn.sglang import TarnHiCache
from sglang_test import Config, MHATokenToKVPoolHost
from vllm_groups_test import WithGroups
from vllm_helpers import WithServer, prompt
from vllm_model import Request

CONDUCTOR = ("--loadmodule", "conductor.so")


class Words(unittest.TestCase):
    def test_words(self):
        groups = [
            KVGroup("f@", block=32, unit=16, drops_last=True),
            KVGroup("w@", "window", 16, window=33),
        ]
        self.assertEqual(
            keys_words(groups, 16, 32, revision=""),
            "HASH TARN UNIT 16 ALIGN 32 KVGROUPS 2 f@ FULL 32 16 0 1 w@ WINDOW 16 16 33 0".split()
            + ["REVISION", ""],
        )
        self.assertEqual(
            keys_words([KVGroup("f@")], 16, 16, hashing="sglang"),
            "HASH SGLANG UNIT 16 ALIGN 16 KVGROUPS 1 f@ FULL 16 16 0 0".split(),
        )
        with self.assertRaises(InvalidArgument):
            keys_words([KVGroup("f@")], 16, 16, hashing="md5")


class Conductor:
    """What a gateway sees."""

    server_args = CONDUCTOR

    def register(self, block):
        self.addCleanup(self.ask, "CONDUCTOR.REMOVE", "e1")
        self.add(block)

    def add(self, block):
        self.ask("CONDUCTOR.ADD", "e1", "http://e1", "MODEL", "m", "BLOCK", block)

    def ask(self, *words):
        with tarn.Client(self.server.url) as client:
            return client.command(*words).split("\n")

    def keys(self):
        info = self.ask("CONDUCTOR.INFO", "e1")
        return info[info.index("keys") + 1]

    def found(self, tokens):
        """Leading tokens that the pool has for e1."""
        blob = struct.pack(f"<{len(tokens)}I", *tokens)
        match = self.ask("CONDUCTOR.MATCH", "MODEL", "m", "TOKENS", blob)
        return int(match[match.index("pool") + 1]) if "pool" in match else 0


class OneGroup(Conductor, WithServer):
    def test_what_was_saved_is_found(self):
        self.register(4)
        engine = self.engine(tp=2, conductor="e1")
        wait_until(self.keys)
        tokens = prompt(1, 42)
        self.assertEqual(self.found(tokens), 0)
        engine.add(Request(tokens))
        self.settle(engine)
        self.assertEqual(self.found(tokens), 40)
        self.assertEqual(self.found(tokens[:23] + [1, 2, 3]), 20)
        # parts of one rank alone are of no use
        space = engine.workers[1].connector._worker._space
        with tarn.Client(self.server.url) as client:
            first = engine.connector._scheduler._space.key(
                tarn.chain.Chain(4, revision="").extend(tokens)[5]
            )
            self.assertTrue(client.remove(first))
        self.assertNotEqual(space.shard, 0)
        self.assertEqual(self.found(tokens), 20)

    def test_not_layer_by_layer(self):
        with self.assertRaisesRegex(ValueError, "conductor and layerwise"):
            self.engine(conductor="e1", layerwise=True)

    def test_an_engine_that_nobody_has_registered(self):
        with self.assertLogs("tarn.vllm", logging.WARNING) as logged:
            teller = KeysTeller(
                lambda: tarn.Client(self.server.url),
                "e9",
                keys_words([KVGroup("f@")], 16, 16),
                logging.getLogger("tarn.vllm"),
            )
            wait_until(lambda: logged.output)
            teller.close()
        self.assertIn("no engine 'e9' is registered", logged.output[0])

    def test_an_engine_that_is_registered_later(self):
        log = logging.getLogger("tarn.vllm")
        every = mock.patch.object(conductor, "TOLD_EVERY_S", 1e6)
        soon = mock.patch.object(conductor, "TOLD_AGAIN_S", 0.01)
        with every, soon, self.assertLogs("tarn.vllm", "WARNING") as logged:
            words = keys_words([KVGroup("f@")], 16, 16)
            teller = KeysTeller(lambda: tarn.Client(self.server.url), "e1", words, log)
            self.addCleanup(teller.close)
            wait_until(lambda: logged.output)
            self.register(16)
            wait_until(self.keys)


class SGLang(Conductor, TarnTest):
    """Pages as SGLang calls them: SHA-256 of a page's tokens, chained."""

    def pages(self, tokens, size):
        names, last = [], b""
        for at in range(0, len(tokens) - size + 1, size):
            last = hashlib.sha256(last + struct.pack(f"<{size}I", *tokens[at : at + size])).digest()
            names.append(last.hex())
        return names

    def storage(self, rank, **config):
        tarn_options = {"url": self.server.url, "conductor": "e1"}
        extra = {"interface_v1": 1, "tarn": tarn_options}
        storage = TarnHiCache(Config(tp_rank=rank, tp_size=2, extra_config=extra, **config))
        self.addCleanup(storage.close)
        host = MHATokenToKVPoolHost(page_size=4)
        storage.register_mem_pool_host(host)
        return storage, host

    def test_pages_of_all_ranks(self):
        self.register(4)
        ranks = [self.storage(rank) for rank in range(2)]
        tokens = prompt(3, 30)
        names = self.pages(tokens, 4)
        self.assertEqual(ranks[0][0].batch_exists(names), 0)
        wait_until(self.keys)
        for n, (storage, host) in enumerate(ranks):
            self.assertEqual(self.found(tokens), 0)
            count = 6 - n
            storage.batch_set_v1(names[:count], host.slots(range(count)))
        self.assertEqual(self.found(tokens), 20)
        self.assertEqual([storage.batch_exists(names) for storage, _ in ranks], [6, 5])

    def test_more_than_one_stage(self):
        self.register(4)
        storage, _ = self.storage(0, pp_size=2)
        storage.batch_exists(["00"])
        self.assertEqual(storage.troubles.get("conductor"), 1)
        self.assertEqual(self.keys(), "")


class SeveralGroups(Conductor, WithGroups):
    def test_what_was_saved_is_found(self):
        """As much as another engine would load, but for the last token, which it computes."""
        for layout in LAYOUTS:
            with self.subTest(layout.name):
                self.flush()
                self.add(layout.unit)
                engine = self.hybrid(layout, conductor="e1")
                wait_until(self.keys)
                tokens = Prompt.drawn(7, self.length(layout))
                ask(engine, tokens)
                dropped = any(group.drops_last for group in layout.groups)
                self.assertEqual(self.found(tokens.tokens), (3 - dropped) * layout.align)
                self.ask("CONDUCTOR.REMOVE", "e1")
                self.engines.remove(engine)
                engine.close()


if __name__ == "__main__":
    unittest.main()
