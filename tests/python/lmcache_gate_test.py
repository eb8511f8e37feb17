"""The gate in front of a server that may be away."""

import logging
import threading
import time
import unittest
from unittest import mock

import harness

assert harness.ROOT  # it makes the package be found

from tarn.errors import ConnectionFailed, NoSpace  # noqa: E402
from tarn.lmcache import _base, gate  # noqa: E402


class GateTest(unittest.TestCase):
    def setUp(self):
        self.logger = logging.getLogger("gate_test")
        self.now = 1000.0
        patch = mock.patch.object(time, "monotonic", lambda: self.now)
        patch.start()
        self.addCleanup(patch.stop)
        self.gate = gate.Gate(_base.Troubles(self.logger))
        self.calls = 0

    def pass_s(self, seconds):
        self.now += seconds

    def answer(self):
        self.calls += 1
        return "answer"

    def away(self):
        self.calls += 1
        raise ConnectionFailed("nobody there")

    def call(self, function, **kwargs):
        with self.assertLogs(
            self.logger, "WARNING"
        ) if function == self.away and self.calls == 0 else _nothing():
            return self.gate.call("get", function, **kwargs)

    def test_closes_and_opens(self):
        self.assertEqual(self.call(self.answer), "answer")
        self.calls = 0
        self.assertIsNone(self.call(self.away))
        for _ in range(5):
            self.assertIsNone(self.call(self.answer))
        self.pass_s(0.99)
        self.assertIsNone(self.call(self.answer))
        self.assertEqual(self.calls, 1)
        self.pass_s(0.01)
        self.assertIsNone(self.call(self.away))
        self.assertIsNone(self.call(self.answer))
        self.assertEqual(self.calls, 2)
        self.pass_s(1)
        self.assertEqual(self.call(self.answer), "answer")
        self.assertEqual(self.call(self.answer), "answer")

    def test_always(self):
        self.call(self.away)
        self.assertEqual(self.call(self.answer, always=True), "answer")
        self.assertEqual(self.call(self.answer), "answer")

    def test_other_errors_leave_it_open(self):
        def full():
            raise NoSpace("full")

        with self.assertLogs(self.logger, "WARNING"):
            self.assertIsNone(self.gate.call("put", full))
        self.assertEqual(self.call(self.answer), "answer")

    def test_what_is_no_error_of_ours_is_raised_and_says_nothing(self):
        def wrong():
            raise KeyError("x")

        self.call(self.away)
        self.pass_s(1)
        with self.assertRaises(KeyError):
            self.gate.call("get", wrong)
        self.calls = 1
        self.assertEqual(self.call(self.answer), "answer")

    def test_a_long_failure_makes_a_long_pause(self):
        def slow():
            self.pass_s(2)
            raise ConnectionFailed("nobody there")

        with self.assertLogs(self.logger, "WARNING"):
            self.assertIsNone(self.gate.call("get", slow))
        self.pass_s(1.99)
        self.assertIsNone(self.call(self.answer))
        self.pass_s(0.01)
        self.assertEqual(self.call(self.answer), "answer")

    def test_one_tries(self):
        """After the pause one call goes through, and the others do not wait for it."""
        self.call(self.away)
        self.pass_s(1)
        begun, release, results = threading.Event(), threading.Event(), []

        def waits():
            begun.set()
            release.wait(60)
            return "late"

        trying = threading.Thread(target=lambda: results.append(self.gate.call("get", waits)))
        trying.start()
        self.assertTrue(begun.wait(60))
        self.assertIsNone(self.call(self.answer))
        release.set()
        trying.join()
        self.assertEqual(results, ["late"])
        self.assertEqual(self.call(self.answer), "answer")

    def test_said_once(self):
        with self.assertLogs(self.logger, "WARNING") as logs:
            for _ in range(5):
                self.gate.call("get", self.away, always=True)
            self.gate.call("put", self.away, always=True)
        self.assertEqual(len(logs.output), 2)

    def test_said_again_after_a_minute(self):
        troubles = _base.Troubles(self.logger)
        with self.assertLogs(self.logger, "WARNING") as logs:
            for _ in range(3):
                troubles.warn("kind", "text")
            self.pass_s(60)
            troubles.warn("kind", "text")
        self.assertEqual(len(logs.output), 2)
        self.assertIn("2 more", logs.output[1])


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


if __name__ == "__main__":
    unittest.main()
