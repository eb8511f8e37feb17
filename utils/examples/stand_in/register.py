"""The engine's entry at the Conductor: told at once, and again every few seconds, so that it is
there after a Conductor was started anew, and is a sign of life."""

from __future__ import annotations

import logging
import threading
from typing import Any, List, Optional, Sequence

import tarn

log = logging.getLogger("stand_in")

AGAIN_S = 2.0
TIMEOUT_MS = 2000


class Registrar:
    """url: tarn://..., or tarn+sentinel://... of which the master of the time is told. words: of
    CONDUCTOR.ADD behind the id."""

    def __init__(self, url: str, engine: str, words: Sequence[str]) -> None:
        self._url, self._engine, self._words = url, engine, list(words)
        self._client: Optional[tarn.Client] = None
        self._known = False
        self._trouble = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="register", daemon=True)

    def start(self) -> None:
        """The first time before it returns: who tells KEYS must be there."""
        self._tell()
        self._thread.start()

    def close(self) -> None:
        """It says that the engine is gone."""
        self._ends.set()
        self._thread.join(10)
        if self._known:
            self._try(["CONDUCTOR.REMOVE", self._engine])
        if self._client is not None:
            self._client.close()

    def _run(self) -> None:
        while not self._ends.wait(AGAIN_S if self._known else AGAIN_S / 10):
            self._tell()

    def _tell(self) -> None:
        add = ["CONDUCTOR.ADD", self._engine, *self._words]
        trouble = self._try(add)
        if trouble and not self._known and self._try(["CONDUCTOR.REMOVE", self._engine]) == "":
            trouble = self._try(add)  # it was there with other values: an engine before this one
        self._known |= not trouble
        if trouble and trouble != self._trouble:
            log.warning("the Conductor does not know of engine %s: %s", self._engine, trouble)
        self._trouble = trouble

    def _try(self, command: List[Any]) -> str:
        """What went wrong, "" if nothing."""
        try:
            if self._client is None:
                self._client = tarn.Client(
                    self._url, timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS
                )
            self._client.command(*command)
            return ""
        except (tarn.Error, OSError) as error:
            return str(error) or type(error).__name__
