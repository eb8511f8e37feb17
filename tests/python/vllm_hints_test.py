"""TarnConnector's hints for the eviction policy: look-ups, loads and saves of a request name its
session, over all connections."""

import unittest

from harness import Monitor
from tarn._hints import hints_of
from vllm_helpers import WithServer, prompt
from layouts import Prompt
from vllm_groups_test import HYBRID, WithGroups
from vllm_model import Request

LOOKS, GETS, PUTS = ("PREFIXLEN",), ("MGETREPLICAS", "GETREPLICAS"), ("MPUTSTART", "PUTSTART")
PARAMS = {"tarn_session": "chat 4711", "tarn_return_ms": 30000, "other": 1}
SEEN = {"SESSION": "chat 4711", "RETURN": "30000"}


class OfRequests(unittest.TestCase):
    def test_what_a_request_says(self):
        for params, expected in (
            (None, {"session": "r1"}),
            ({}, {"session": "r1"}),
            ("text", {"session": "r1"}),
            (PARAMS, {"session": "chat 4711", "return_ms": 30000}),
            ({"tarn_return_ms": 1}, {"session": "r1", "return_ms": 1}),
            ({"tarn_session": "s" * 128}, {"session": "s" * 128}),
            # of anything else that users send, nothing reaches the pool
            ({"tarn_session": ""}, {"session": "r1"}),
            ({"tarn_session": 7, "tarn_return_ms": "5"}, {"session": "r1"}),
            ({"tarn_session": ["s"], "tarn_return_ms": True}, {"session": "r1"}),
            ({"tarn_return_ms": 0}, {"session": "r1"}),
            ({"tarn_return_ms": -1}, {"session": "r1"}),
            ({"tarn_return_ms": 86400001}, {"session": "r1"}),
            ({"tarn_return_ms": 1.5}, {"session": "r1"}),
        ):
            self.assertEqual(hints_of("r1", params), expected)
        for name in (None, 7, ""):
            self.assertEqual(hints_of(name, None), {})

    def test_ids_of_any_length(self):
        long = hints_of("r", {"tarn_session": "s" * 129})["session"]
        self.assertEqual(len(long), 64)
        self.assertEqual(long, hints_of("x" * 500, {"tarn_session": "s" * 129})["session"])
        self.assertNotEqual(long, hints_of("r", {"tarn_session": "s" * 130})["session"])
        for odd in ("\ud800", "\0", "ä" * 65, "ä" * 64):
            session = hints_of(odd, None)["session"]
            self.assertLessEqual(len(session.encode()), 128)


class OneGroup(WithServer):
    def run_one(self, engine, params):
        request = engine.add(Request(prompt(1, 37), params=params, name="r-1"))
        self.settle(engine)
        return request

    def test_all_calls_of_a_request(self):
        for extra in ({}, {"load_async": True}, {"layerwise": True}, {"tp": 2}):
            for params, seen in ((PARAMS, SEEN), (None, {"SESSION": "r-1"})):
                with self.subTest(params=params, **extra):
                    self.flush()
                    with Monitor(self.server) as monitor:
                        self.run_one(self.engine(batch_blocks=4, **extra), params)
                        puts = monitor.hints(*PUTS)
                        self.assertGreater(len(puts), 2)  # in several batches
                        self.assertEqual([h for h in puts if h != seen], [])
                    with Monitor(self.server) as monitor:
                        got = self.run_one(self.engine(**extra), params)
                        self.assertEqual(got.external_tokens, 36)
                        for names in (LOOKS, GETS):
                            hints = monitor.hints(*names)
                            self.assertGreater(len(hints), 0)
                            self.assertEqual([h for h in hints if h != seen], [])

    def test_they_go_on_to_the_engine_that_decodes(self):
        with Monitor(self.server) as monitor:
            sent = self.run_one(self.engine(role="kv_producer"), PARAMS)
            self.assertEqual(
                sent.result_params,
                {"tarn_tokens": 36, "tarn_session": "chat 4711", "tarn_return_ms": 30000},
            )
            self.run_one(self.engine(role="kv_consumer"), sent.result_params)
            told = monitor.hints(*LOOKS, *GETS, *PUTS)
        self.assertEqual([h for h in told if h != SEEN], [])

    def test_none_where_they_are_not_wanted(self):
        with Monitor(self.server) as monitor:
            for _ in range(2):
                self.run_one(self.engine(hints="false"), PARAMS)
            told = monitor.hints(*LOOKS, *GETS, *PUTS)
            self.assertGreater(len(told), 2)
            self.assertEqual([h for h in told if h], [])


class SeveralGroups(WithGroups):
    def test_all_calls_of_a_request(self):
        layout = HYBRID[0]
        prompt = Prompt.drawn(1, self.length(layout))
        for params, own in ((PARAMS, False), (None, True)):
            self.flush()
            with Monitor(self.server) as monitor:
                for _ in range(2):
                    engine = self.hybrid(layout)
                    request = engine.add(Prompt(prompt.tokens), params=params)
                    self.settle(engine)
                    seen = {"SESSION": request.request_id} if own else SEEN
                    for names in (LOOKS, PUTS if not request.external else GETS):
                        hints = monitor.hints(*names)
                        self.assertGreater(len(hints), 0)
                        self.assertEqual(hints[-1], seen)
                told = monitor.hints(*LOOKS, *GETS, *PUTS)
            self.assertEqual([h for h in told if not h], [])


if __name__ == "__main__":
    unittest.main()
