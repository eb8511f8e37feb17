"""Removing every object of a model, because its weights changed, say. What workers have queued then
is of the old weights, so one removal is not enough:

    ask: removed  ->  a step tells the workers, which drop their queues and wait for running puts
                  ->  the step at which that is known: removed again

Until that is done nothing is looked up or saved, for as long as the pool is away, too."""

from ..keys import escape, glob_of
from .config import Settings
from .pool import Pool

__all__ = ["Reset"]


class Reset:
    """Used by the scheduler's thread only."""

    def __init__(self, pool: Pool, settings: Settings, batches: int) -> None:
        """batches: after so many steps it is known what has become of one."""
        self._pool, self._settings, self._batches = pool, settings, batches
        self._left = -1  # steps until it is known that nothing old is put any more

    @property
    def under_way(self) -> bool:
        return self._left >= 0

    @property
    def holds(self) -> bool:
        """Is it steps that are missing?"""
        return self._left > 0

    def ask(self) -> bool:
        """Whether the pool has done it."""
        self._left = self._batches + 1
        return self._remove()

    def step(self) -> bool:
        """Once a step. True: workers are to be told in it."""
        if self._left >= 0:
            self._left = max(self._left - 1, 0)
            if self._left == 0 and self._remove():
                self._left = -1
        return self._left == self._batches

    def _remove(self) -> bool:
        name = glob_of(escape(self._settings.model))
        reply = self._pool.command(self._settings.timeout_ms, "REMOVEMATCH", "GLOB", name + "@*")
        return reply is not None
