"""Leaving alone a pool that does not answer."""

import time
import unittest
from unittest import mock

import harness

assert harness.ROOT  # it makes the package be found

from tarn import _breaker  # noqa: E402


class BreakerTest(unittest.TestCase):
    def setUp(self):
        self.now = 1000.0
        patch = mock.patch.object(time, "monotonic", lambda: self.now)
        patch.start()
        self.addCleanup(patch.stop)
        self.breaker = _breaker.Breaker(1.0, 4.0)

    def fails(self, after_s):
        """Nobody is admitted before after_s have passed; then one is, and fails."""
        self.now += after_s - 0.01
        self.assertEqual((self.breaker.up, self.breaker.admits()), (False, False))
        self.now += 0.01
        self.assertTrue(self.breaker.up)
        self.assertEqual([self.breaker.admits() for _ in range(3)], [True, False, False])
        self.assertFalse(self.breaker.lost())

    def test_pauses_double_up_to_a_limit(self):
        self.assertTrue(self.breaker.lost())
        for pause_s in (1, 2, 4, 4):
            self.fails(pause_s)
        self.now += 4
        self.assertTrue(self.breaker.admits())
        self.assertTrue(self.breaker.found())
        self.assertFalse(self.breaker.found())
        self.assertTrue(self.breaker.well and self.breaker.admits() and self.breaker.admits())
        self.assertTrue(self.breaker.lost())
        self.fails(1)

    def test_what_fails_together_is_one_failure(self):
        self.assertEqual([self.breaker.lost() for _ in range(20)], [True] + [False] * 19)
        self.fails(1)
        self.breaker.lost()
        self.fails(2)

    def test_a_long_wait_makes_a_long_pause(self):
        self.breaker.lost(took_s=7.0)
        self.fails(7)

    def test_one_who_says_nothing_does_not_block_for_ever(self):
        self.breaker.lost()
        self.now += 1
        self.assertTrue(self.breaker.admits())
        self.now += _breaker.TRY_S - 0.01
        self.assertFalse(self.breaker.admits())
        self.now += 0.01
        self.assertEqual([self.breaker.admits(), self.breaker.admits()], [True, False])

    def test_retry(self):
        self.breaker.lost()
        self.assertFalse(self.breaker.admits())
        self.breaker.retry()
        self.assertEqual([self.breaker.admits(), self.breaker.admits()], [True, False])
        self.breaker.retry()
        self.assertTrue(self.breaker.admits())


if __name__ == "__main__":
    unittest.main()
