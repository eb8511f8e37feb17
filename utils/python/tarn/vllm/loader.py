"""Loads that run beside the computation: whole requests between steps, or layer after layer within
one."""

import threading
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Sequence, Set, Tuple, Union

from .meta import GroupLoad, Load

__all__ = ["Loader", "LayerLoad"]

# A scheduler that has more requests waiting for their blocks computes some of them instead.
MAX_QUEUED = 4096


class Loader:
    """Threads that load requests, in the order in which they came. Each request is reported once,
    whatever happened."""

    def __init__(
        self,
        threads: int,
        load: Callable[[Any, Optional[int], Any], None],
        failed: Callable[[Any, BaseException], None],
    ) -> None:
        """load(load, None, mark): gets the blocks and notes those that do not arrive. failed: notes
        all of them."""
        self._load, self._failed = load, failed
        self._change = threading.Condition()
        self._queue: Deque[Tuple[Union[Load, GroupLoad], Any]] = deque()
        self._finished: Set[str] = set()
        self._closed = False
        self._wanted = threads
        self._threads: List[threading.Thread] = []

    def submit(self, load: Union[Load, GroupLoad], mark: Any) -> None:
        """mark: a point in the computation; what ran before it may still use the blocks."""
        with self._change:
            if len(self._queue) < MAX_QUEUED and not self._closed:
                self._queue.append((load, mark))
                if len(self._threads) < self._wanted:
                    name = f"tarn-load-{len(self._threads)}"
                    self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                    self._threads[-1].start()
                self._change.notify()
                return
        self._failed(load, RuntimeError("too many requests wait for their blocks"))
        self._finish(load)

    def _finish(self, load: Union[Load, GroupLoad]) -> None:
        """After the errors were noted: they must be known no later than this."""
        with self._change:
            self._finished.add(load.request)

    def take_finished(self) -> Set[str]:
        with self._change:
            finished, self._finished = self._finished, set()
        return finished

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._queue) or self._closed)
                if self._closed:
                    return
                load, mark = self._queue.popleft()
            try:
                self._load(load, None, mark)
            except Exception as error:
                self._failed(load, error)
            self._finish(load)

    def close(self) -> None:
        """Ends the threads after the loads under way; requests that are still queued are not
        reported."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()


class LayerLoad:
    """The loads of one step, layer by layer: the computation of a layer waits for that layer
    only."""

    def __init__(
        self,
        loads: Sequence[Load],
        layers: int,
        load: Callable[[Load, Optional[int], Any], None],
        mark: Any,
    ) -> None:
        """load(load, layer, mark): gets one layer of the blocks and notes those that do not arrive;
        raises nothing."""
        self._loads, self._load, self._mark = loads, load, mark
        self._ready = [threading.Event() for _ in range(layers)]
        self._thread = threading.Thread(target=self._run, name="tarn-load-layers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for layer, ready in enumerate(self._ready):
            for load in self._loads:
                self._load(load, layer, self._mark)
            ready.set()

    def wait(self, layer: int) -> None:
        self._ready[layer].wait()

    def wait_all(self) -> None:
        self._thread.join()
