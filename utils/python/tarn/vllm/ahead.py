"""Requests that wait in vLLM's queue: the pool is told what they will read, so that it comes from
disks to memory before their turn.

A thread hashes and asks, for neither may hold the scheduler up: one that is there while there is
something to tell. What goes wrong is of no consequence, for it is only a hint."""

import logging
import threading
import time
from collections import deque
from typing import Callable, Deque, List, Sequence, Tuple

from ..chain import Chain
from .pool import Pool

__all__ = ["Ahead"]

log = logging.getLogger("tarn.vllm")

_REQUESTS_MAX = 256  # that wait for the thread; of more, the newest are told nothing of
_KEYS_MAX = 1024  # of a request: the server takes no more at a time
_STEP = 64  # blocks that are hashed before other threads have their turn


class Ahead:
    """names: the keys of the blocks with these hashes, and the number of the first."""

    def __init__(self, pool: Pool, names: Callable[[List[bytes], int], Sequence[str]]) -> None:
        self._pool, self._names = pool, names
        self._lock = threading.Lock()
        self._waiting: Deque[Tuple[Chain, Sequence[int]]] = deque()
        self._running = self._off = False

    def ask(self, chain: Chain, tokens: Sequence[int]) -> None:
        """chain: as of a request of which nothing is hashed. tokens: those that are to be read;
        they do not change."""
        with self._lock:
            if self._off or len(self._waiting) >= _REQUESTS_MAX:
                return
            self._waiting.append((chain.copy(), tokens))
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="tarn-ahead", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._off = True
            self._waiting.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                chain, tokens = self._waiting.popleft()
            try:
                self._tell(chain, tokens)
            except Exception as error:
                # a server from before, or a user who may not: it will be so the next time, too
                log.info("what waiting requests will read is not told to the pool: %s", error)
                self.close()

    def _tell(self, chain: Chain, tokens: Sequence[int]) -> None:
        step = _STEP * chain.block_tokens
        names: List[str] = []
        for at in range(0, len(tokens), step):
            first = len(chain.hashes)
            names += self._names(chain.extend(tokens[at : at + step]), first)
            if len(names) >= _KEYS_MAX:
                break
            time.sleep(0)
        if names:
            self._pool.prefetch(names[:_KEYS_MAX])
