"""What an engine tells the Conductor: how it calls its blocks in the pool, so that requests are
sent where the pool's prefixes are worth most (docs/CONDUCTOR.md, "The pool").

    groups = [KVGroup(each.prefix, block=16) for each in space.all()]
    words = keys_words(groups, 16, 16, revision="")
    client.command("CONDUCTOR.KEYS", "engine-1", *words)"""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from typing import Any, Callable, List, Optional, Sequence

from .errors import Error, InvalidArgument
from .kv_groups import KVGroup

__all__ = ["KeysTeller", "keys_words"]

TOLD_EVERY_S = 30.0
TOLD_AGAIN_S = 2.0  # until it is known
HASHES = ("tarn", "sglang")


def keys_words(
    groups: Sequence[KVGroup],
    unit: int,
    align: int,
    *,
    hashing: str = "tarn",
    revision: Optional[str] = None,
) -> List[str]:
    """The words of CONDUCTOR.KEYS behind an engine's id. groups: each KV group of each rank that
    has bytes of its own. unit, align: as in Client.kv_prefix. hashing: "tarn", of a Chain(unit,
    lora=..., salt=..., revision=revision), or "sglang". InvalidArgument: another one."""
    if hashing not in HASHES:
        raise InvalidArgument(f"hashing is one of {', '.join(HASHES)}, not {hashing!r}")
    words = ["HASH", hashing.upper(), "UNIT", str(unit), "ALIGN", str(align)]
    words += ["KVGROUPS", str(len(groups))]
    for g in groups:
        numbers = (g.block, g.unit, g.window, int(g.drops_last))
        words += [g.name, g.kind.upper(), *map(str, numbers)]
    return words + (["REVISION", revision] if revision is not None else [])


class KeysTeller:
    """Tells the Conductor in a thread of its own, at once and then every 30 s, or every 2 s until
    it is heard: the engine may be registered later, or again. What goes wrong is logged, once for
    each kind of trouble.

    connect: makes a client of its own. words: of keys_words."""

    def __init__(
        self, connect: Callable[[], Any], engine: str, words: Sequence[str], log: logging.Logger
    ) -> None:
        self._connect, self._engine, self._words, self._log = connect, engine, list(words), log
        self._ends = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="tarn-keys", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._ends.is_set():
            self._tell()
            self._ends.wait(TOLD_AGAIN_S if self._trouble else TOLD_EVERY_S)

    def _tell(self) -> None:
        trouble = ""
        try:
            with closing(self._connect()) as client:
                client.command("CONDUCTOR.KEYS", self._engine, *self._words)
        except (Error, OSError) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            self._log.warning(
                "the Conductor does not know how engine %s calls its blocks in the pool: %s",
                self._engine,
                trouble,
            )
        self._trouble = trouble
