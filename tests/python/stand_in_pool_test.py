"""utils/examples/stand_in_engine.py with a pool and a Conductor."""

import struct
import threading
import unittest

from harness import Server, TarnTest, wait_until
import tarn
from stand_in_engine_test import prompt
from stand_in_helpers import Engine

SMALL = ("--block", "4", "--kv-blocks", "200", "--kv-bytes", "64", "--model", "m")


class Pool(TarnTest):
    """`one` and `other` use it, and have nothing cached at the start of a test."""

    server_args = ("--loadmodule", "conductor.so")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.one, cls.other = (Engine(*SMALL, "--pool", cls.server.url) for _ in range(2))
        cls.addClassCleanup(cls.one.stop)
        cls.addClassCleanup(cls.other.stop)

    def setUp(self):
        self.client().command("FLUSHALL")
        self.forget(self.one)
        self.forget(self.other)

    def forget(self, engine):
        """Its blocks are saved, and then not cached any more."""
        wait_until(lambda: engine.ask("POST", "/reset_prefix_cache")[0] == 200)

    def engine(self, *args, url=None):
        engine = Engine(*SMALL, "--pool", url or self.server.url, *args)
        self.addCleanup(engine.stop)
        return engine

    def keys(self):
        """Of all objects in the pool."""
        client, cursor, found = self.client(), "0", []
        while True:
            cursor, *keys = client.command("SCAN", cursor, "COUNT", "1000").split("\n")
            found += [key for key in keys if key]
            if cursor == "0":
                return found

    def test_another_engine_loads_what_one_has_put(self):
        before = self.other.metric("external_prefix_cache_hits_total")
        answer, cached = self.one.complete(prompt(1, 41))
        self.assertEqual(cached, 0)
        wait_until(lambda: len(self.keys()) == 10)
        self.assertEqual(self.other.complete(prompt(1, 41)), (answer, 40))
        self.assertEqual(self.other.metric("external_prefix_cache_hits_total") - before, 40)
        self.assertEqual(self.other.metric("kv_cache_usage_perc"), 0)
        self.assertGreaterEqual(self.other.metric("tarn_loaded_objects_total"), 10)

    def test_answers_are_saved_where_that_is_wanted(self):
        engine = self.engine("--save-decode", "--role", "decode")
        turn = prompt(2, 6)
        answer, _ = engine.complete(turn, 7)
        wait_until(lambda: len(self.keys()) == 3)
        turn += answer + prompt(3, 2)
        self.assertEqual(self.other.complete(turn)[1], 12)

    def test_a_wrong_byte_is_a_wrong_answer(self):
        client = self.client()
        answer, _ = self.one.complete(prompt(1, 41))
        wait_until(lambda: len(self.keys()) == 10)
        for key in self.keys():  # whichever block it is
            right = client.get(key)
            wrong = bytearray(right)
            wrong[-1] ^= 1
            client.remove(key)
            client.put(key, bytes(wrong))
            got, cached = self.other.complete(prompt(1, 41))
            self.assertEqual(cached, 40)
            self.assertNotEqual(got, answer)
            client.remove(key)
            client.put(key, right)
            self.forget(self.other)
        self.assertEqual(self.other.complete(prompt(1, 41)), (answer, 40))

    def test_a_decoder_waits_in_the_pool(self):
        """Both are asked at once, and the decoder is the first."""
        prefill = self.engine("--role", "prefill")
        decode = self.engine("--role", "decode", "--arrival-ms", "60000")
        body = {"prompt": prompt(9, 41), "max_tokens": 1}
        got = []

        def wait_in_the_pool():
            params = {"tarn_tokens": 41}
            got.append(decode.complete(prompt(9, 41), 5, kv_transfer_params=params))

        waits = threading.Thread(target=wait_in_the_pool)
        waits.start()
        wait_until(lambda: decode.metric("num_requests_waiting") == 1)
        answer = prefill.post("/v1/completions", body)
        self.assertEqual(answer["kv_transfer_params"], None)  # it was not asked for
        waits.join()
        alone, _ = self.one.complete(prompt(9, 41), 5)
        self.assertEqual(got, [(alone, 40)])
        body = {"prompt": prompt(8, 41), "max_tokens": 1}
        body["kv_transfer_params"] = {"do_remote_decode": True}
        params = prefill.post("/v1/completions", body)["kv_transfer_params"]
        self.assertEqual(params, {"tarn_tokens": 40})
        alone, _ = self.one.complete(prompt(8, 41), 5)
        got = decode.complete(prompt(8, 41), 5, kv_transfer_params=params)
        self.assertEqual(got, (alone, 40))

    def test_what_does_not_come_is_computed(self):
        alone, _ = self.one.complete(prompt(9, 41), 5)
        self.forget(self.one)
        self.client().command("FLUSHALL")
        decode = self.engine("--role", "decode", "--arrival-ms", "20")
        params = {"tarn_tokens": 41}
        got = decode.complete(prompt(9, 41), 5, kv_transfer_params=params)
        self.assertEqual(got, (alone, 0))
        for params in ({"tarn_tokens": 1 << 60}, {"tarn_tokens": "x"}, {"a": [{}]}, {}):
            got = decode.complete(prompt(9, 41), 5, kv_transfer_params=params)
            self.assertEqual(got, (alone, 40))

    def test_a_pool_that_goes_away(self):
        with Server("16mb") as server:
            engine = self.engine(url=server.url)
            answers = [engine.complete(prompt(seed, 41))[0] for seed in range(3)]
            server.kill()
            for seed in range(3):
                self.assertEqual(engine.complete(prompt(seed, 41)), (answers[seed], 40))
            engine.ask("POST", "/reset_prefix_cache")
            self.assertEqual(engine.complete(prompt(1, 41))[0], answers[1])

    def test_the_conductor_knows_it(self):
        with Server("16mb", *self.server_args) as server:

            def ask(*words):
                with tarn.Client(server.url) as client:
                    return client.command(*words).split("\n")

            def told(name):
                info = ask("CONDUCTOR.INFO", "e1")
                return info[info.index(name) + 1]

            at = f"127.0.0.1:{server.port}"
            args = ("--id", "e1", "--conductor", at, "--role", "prefill")
            engine = self.engine(*args, url=server.url)
            self.assertEqual((told("role"), told("url")), ("prefill", engine.url))
            self.assertEqual((told("block"), told("bytes")), ("4", "64"))
            tokens = prompt(1, 41)
            engine.complete(tokens)
            blob = struct.pack("<41I", *tokens)

            def match():
                found = ask("CONDUCTOR.MATCH", "MODEL", "m", "TOKENS", blob)
                return dict(zip(found[::2], found[1::2]))

            wait_until(lambda: match().get("device") == "40" and match()["pool"] == "40")
            wait_until(lambda: told("kvblocks") == "199")
            wait_until(lambda: ask("CONDUCTOR.LIST")[-1] == "up")  # it answers at /metrics
            engine.kill()
            again = self.engine(*args, url=server.url)  # on another port
            self.assertEqual(told("url"), again.url)
            server.restart()
            wait_until(lambda: ask("CONDUCTOR.LIST") != [""])
            self.assertEqual(told("url"), again.url)
            again.stop()
            self.assertEqual(ask("CONDUCTOR.LIST"), [""])


if __name__ == "__main__":
    unittest.main()
