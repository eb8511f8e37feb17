"""Calls to a server that may be away: what fails is a miss, and while the server is away only one
call at a time finds out that it still is. The pause is a second, or as long as the call that
failed."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from .._breaker import Breaker
from .._figures import Publisher
from ..errors import Error, Status
from . import _base

PAUSE_S = 1.0
_AWAY = (Status.EIO, Status.ETIMEOUT, Status.ELOADING)


class Gate:
    """Threads share it. `troubles` hears of what goes wrong."""

    def __init__(self, troubles: _base.Troubles) -> None:
        self._troubles = troubles
        self._breaker = Breaker(PAUSE_S, PAUSE_S)
        self._publisher: Optional[Publisher] = None
        self._client: Any = None

    def publish(self, client: Any, cluster: str) -> None:
        """Where LMCache's metrics are, libtarn's of this client are to be, too."""
        self._client, self._publisher = client, Publisher(cluster)

    @property
    def open(self) -> bool:
        """Did the last call that says so find the server?"""
        return self._breaker.well

    def call(
        self,
        what: str,
        function: Callable[..., Any],
        *args: Any,
        always: bool = False,
        **kwargs: Any,
    ) -> Any:
        """What function returns; None: it failed, which the log tells under `what`, or was not
        called. `always`: not even a closed gate keeps it from being called."""
        if not self._breaker.admits() and not always:
            return None
        began = time.monotonic()
        try:
            result = function(*args, **kwargs)
            self._breaker.found()
            if self._publisher is not None:
                self._publisher.look(self._client)
            return result
        except Error as e:
            if e.status in _AWAY:
                self._breaker.lost(time.monotonic() - began)
            else:
                self._breaker.found()  # it answered
            self._troubles.warn(f"{what} {e.name}", f"{what} failed: {e} ({e.name})")
            return None
        except BaseException:
            self._breaker.retry()  # it says nothing about the server
            raise
