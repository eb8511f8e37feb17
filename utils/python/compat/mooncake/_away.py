"""A server that may be away. Callers of Mooncake's take every negative code for a miss, but wait
for it: a scheduler asks once for each request of a step. So after a call that had no answer the
server is left alone for a while (tarn/_breaker.py), and calls have -900 at once; look-ups have a
connection and a short timeout of their own."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Optional, TypeVar

import tarn
from tarn._breaker import Breaker
from tarn.options import number

from mooncake._common import INVALID_PARAMS, RPC_FAIL, RPC_TIMEOUT, Refused, code_of_failure, log

T = TypeVar("T")
_LOOKUP_TIMEOUT_MS = 1000
_ENVIRONMENT = "TARN_LOOKUP_TIMEOUT_MS"
_NO_ANSWER = (RPC_FAIL, RPC_TIMEOUT)


def lookup_timeout(given: Optional[Any]) -> int:
    """Milliseconds that a look-up may take: as setup() was told, or the environment. Raises
    tarn.InvalidArgument."""
    if given is not None:
        return number(given, "lookup_timeout_ms", 1)
    return number(os.environ.get(_ENVIRONMENT) or _LOOKUP_TIMEOUT_MS, _ENVIRONMENT, 1)


class Away:
    """Is the server there? Threads share it."""

    def __init__(self) -> None:
        self._breaker = Breaker()

    def ask(self, what: str, work: Callable[[], T], otherwise: Callable[[int], T]) -> T:
        """work(), or what `otherwise` makes of the code of what went wrong."""
        if not self._breaker.admits():
            log.debug("%s: the server is away (%d)", what, RPC_FAIL)
            return otherwise(RPC_FAIL)
        began = time.monotonic()
        try:
            answer = work()
        except (tarn.Error, Refused) as e:
            code = code_of_failure(e)
            if code in _NO_ANSWER:
                self._lost(what, e, code, began)
            else:
                self._breaker.retry()  # it was asked for the wrong thing
                log.error("%s: %s (%d)", what, e, code)
            return otherwise(code)
        except BaseException:
            self._breaker.retry()
            raise
        # What was refused here, before the server was asked, says nothing of it.
        asked = [a for a in answer if a != INVALID_PARAMS] if isinstance(answer, list) else []
        if asked and all(a in _NO_ANSWER for a in asked):
            self._lost(what, "no answer", asked[0], began)
        elif isinstance(answer, list) and answer and not asked:
            self._breaker.retry()
        else:
            self._found()
        return answer

    def _lost(self, what: str, why: object, code: int, began: float) -> None:
        if self._breaker.lost(time.monotonic() - began):
            log.error("%s: %s (%d): calls fail at once until it is back", what, why, code)
        else:
            log.debug("%s: %s (%d)", what, why, code)

    def _found(self) -> None:
        if self._breaker.found():
            log.warning("the server is back")

    def health(self, client: tarn.Client) -> bool:
        """Asks the server in any case."""
        began = time.monotonic()
        try:
            client.ping()
        except tarn.Error as e:
            self._lost("health_check", e, code_of_failure(e), began)
            return False
        self._found()
        return True
