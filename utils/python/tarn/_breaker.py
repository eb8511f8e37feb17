"""Leaving alone a pool that does not answer, and finding out that it is back.

    well ──lost()──> away ──(pause over)──> one caller is admitted ──found()──> well
                      ^                               │
                      └────────────lost()─────────────┘

While it is away everything is a miss at once. Each failed try doubles the pause; calls that were
under way together and fail together are one failure."""

from __future__ import annotations

import threading
import time

# One who was admitted and has not said by then how it went does not keep others from trying.
TRY_S = 10.0


class Breaker:
    """Threads share it. Times are seconds."""

    def __init__(self, pause_min_s: float = 1.0, pause_max_s: float = 30.0) -> None:
        self._min_s, self._max_s = pause_min_s, pause_max_s
        self._lock = threading.Lock()
        self._pause_s = 0.0  # 0: well
        self._until = 0.0
        self._trying = False

    @property
    def up(self) -> bool:
        """Would a call be admitted? Changes nothing."""
        with self._lock:
            return self._pause_s == 0 or time.monotonic() >= self._until

    @property
    def well(self) -> bool:
        """Has nothing failed since the last success?"""
        return self._pause_s == 0

    def admits(self) -> bool:
        """May this call be made? After a pause only one may, until it tells how it went: `lost`,
        `found` or `retry`."""
        with self._lock:
            if self._pause_s == 0:
                return True
            now = time.monotonic()
            if now < self._until:
                return False
            self._until, self._trying = now + TRY_S, True
            return True

    def retry(self) -> None:
        """The next call is admitted: nothing was learnt, or something speaks for the pool being
        back."""
        with self._lock:
            self._until = 0.0

    def lost(self, took_s: float = 0.0) -> bool:
        """A call had no answer, for which it waited `took_s`: the pause is at least that long, so
        that whoever waits for the pool loses at most half of his time to it. True: it was well
        before."""
        with self._lock:
            was_well = self._pause_s == 0
            if was_well or self._trying or time.monotonic() >= self._until:
                self._pause_s = max(min(max(2 * self._pause_s, self._min_s), self._max_s), took_s)
                self._until = time.monotonic() + self._pause_s
                self._trying = False
            return was_well

    def found(self) -> bool:
        """A call had its answer. True: it was away before."""
        if self._pause_s == 0:  # as nearly always, without the lock
            return False
        with self._lock:
            was_away = self._pause_s != 0
            self._pause_s, self._until, self._trying = 0.0, 0.0, False
            return was_away
