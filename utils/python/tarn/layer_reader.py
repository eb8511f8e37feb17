"""The decode side of tarn.layers: layers are read in their order, the first ones while the last are
still being computed.

Two ways, for two kinds of engines. Into memory of the caller, by a thread of the reader's own:

    with LayerReader(client, key, layers=32, chunks=16, notice_key="request-17@failed") as reader:
        reader.fetch(lambda chunk, layer: buffers[layer][chunk])    # returns at once
        for layer in range(32):
            reader.wait(layer)                                      # its bytes are there, verified
            decode(layer)

or in place, where the prefill side put them into memory of this machine:

    for layer in range(32):
        with reader.views(layer) as views:
            decode(layer, views.parts)
            views.check()                                           # only now the result counts

What was handed out is right whatever happens later: every object is whole and checked before it is.
When a layer does not come, LayersLost says how far it got; the rest has to be computed."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

from ._scope import Closes, Releases
from .errors import (
    Cancelled,
    Closed,
    Corrupt,
    Error,
    InvalidArgument,
    LeaseOver,
    Stale,
    Status,
    status_name,
)
from .memory import Pinned, pin

__all__ = ["LayerReader", "LayerViews", "LayersLost"]

Key = Union[str, bytes]
Place = Callable[[int, int], Any]
"""(chunk, layer) -> where its bytes go: a writable buffer, an (address, size), or a list of such.
"""

_TAIL = -1


class LayersLost(Error):
    """A layer did not come. `layers`: how many leading layers did, whole and verified; what a
    caller got of those counts, and of the others nothing. `reason`: what the prefill side noted, or
    that nothing came for so long."""

    status = Status.ETIMEOUT

    def __init__(
        self, layers: int, missing: int, reason: str, status: int = Status.ETIMEOUT
    ) -> None:
        super().__init__(
            f"{missing} objects of layer {layers} are not there ({reason}); layers before it are "
            "whole, compute the others, or use the chunks that whole_chunks finds",
            status,
        )
        self.layers, self.missing, self.reason = layers, missing, reason


class _Patience:
    """How long to wait: not longer than stall_ms without anything coming, nor past the end of
    timeout_ms."""

    def __init__(self, stall_ms: int, timeout_ms: int) -> None:
        self.stall_ms, self.timeout_ms = stall_ms, timeout_ms
        self.started = self.moved = time.monotonic()

    def progress(self) -> None:
        self.moved = time.monotonic()

    def over(self) -> str:
        """Why there is no point in waiting longer, or ""."""
        now = time.monotonic()
        if (now - self.moved) * 1000 >= self.stall_ms:
            return f"nothing came for {self.stall_ms} ms, has the prefill engine died?"
        if self.timeout_ms and (now - self.started) * 1000 >= self.timeout_ms:
            return f"timeout_ms of {self.timeout_ms} is over"
        return ""


class LayerViews(Releases):
    """One layer's blocks. parts[i] are the pieces of chunk i (mostly one) as read-only memoryviews:
    pool memory under a lease, or a verified copy where the pool has them on another machine. Read,
    check, and only then use the result; renew in time."""

    def __init__(self, views: List[Any], parts: List[List[memoryview]]) -> None:
        self.views, self.parts = views, parts
        self._released = False

    @property
    def in_place(self) -> int:
        """How many chunks are read in place."""
        return sum(view is not None for view in self.views)

    def valid_ms(self) -> int:
        """What is left of the shortest lease; 2^63 or more where none is needed."""
        self._use()
        return min(
            [int(view.valid_ms()) for view in self.views if view is not None], default=1 << 63
        )

    def check(self) -> None:
        """Passes if all that was read until now is right. Raises LeaseOver or Stale: throw the
        result away."""
        self._use()
        for view in self.views:
            if view is not None:
                view.check()

    def renew(self, lease_ms: int = 0) -> None:
        """Prolongs all leases, one round trip each. NotFound: a chunk was removed; what is leased
        stays so until its end."""
        self._use()
        for view in self.views:
            if view is not None:
                view.renew(lease_ms)

    def release(self) -> None:
        """Ends the leases. May be called twice."""
        if self._released:
            return
        self._released = True
        for part in self.parts:
            part.clear()
        for view in self.views:
            if view is not None:
                view.release()

    def _use(self) -> None:
        if self._released:
            raise Closed("these views have been released")


class LayerReader(Closes):
    """One prompt's layers, on the decode side.

    key: (chunk, layer) -> key, the writer's. notice_key: the writer's; without it, a prefill that
    gave up is told from a slow one by stall_ms only. stall_ms: so long nothing may come.
    timeout_ms: of the whole, 0: none. slice_ms: how often a wait looks for a notice or a close. A
    wait takes one of the client's lanes (max_lanes).

    One thread, and beside it the thread that fetch starts."""

    def __init__(
        self,
        client: Any,
        key: Callable[[int, int], Key],
        *,
        layers: int,
        chunks: int,
        notice_key: Key = "",
        stall_ms: int = 10000,
        timeout_ms: int = 0,
        slice_ms: int = 100,
    ) -> None:
        if layers < 1 or chunks < 0:
            raise InvalidArgument(f"layers: {layers}, chunks: {chunks}: at least 1 and 0")
        if stall_ms < 1 or slice_ms < 1 or timeout_ms < 0:
            raise InvalidArgument("stall_ms and slice_ms are at least 1, timeout_ms at least 0")
        self.client, self.key, self.layers, self.chunks = client, key, layers, chunks
        self.notice_key, self.stall_ms, self.timeout_ms, self.slice_ms = (
            notice_key,
            stall_ms,
            timeout_ms,
            slice_ms,
        )
        self._lock = threading.Condition()
        self._arrived: List[float] = []  # when each layer came, time.monotonic
        self._tail_size = -1
        self._failure: Optional[BaseException] = None
        self._thread: Optional[threading.Thread] = None
        self._closing = False

    # --- waiting, for both ways

    def _keys(self, layer: int) -> List[Key]:
        return [self.key(chunk, layer) for chunk in range(self.chunks)]

    def _give_up(self, layer: int, missing: int, patience: _Patience) -> None:
        """Raises when there is nothing to wait for. One round trip."""
        if self._closing:
            raise Cancelled("the reader was closed")
        why, status = patience.over(), int(Status.ETIMEOUT)
        if self.notice_key:
            notice = self.client.get(self.notice_key)
            if notice is not None:
                why, status = notice.decode("utf-8", "replace"), int(Status.ECANCELED)
        if why:
            raise LayersLost(layer, missing, why, status)

    def _await(self, keys: Sequence[Key], layer: int, patience: _Patience) -> None:
        """Until all keys are readable."""
        have = 0
        while have < len(keys):
            n = int(self.client.prefix_length(keys[have:], wait_ms=self.slice_ms))
            have += n
            if n:
                patience.progress()
            if have < len(keys):
                self._give_up(layer, len(keys) - have, patience)

    # --- into the caller's memory

    def fetch(self, place: Place, *, tail: Optional[Tuple[Key, Iterable[Any]]] = None) -> None:
        """Starts to read all layers, and then the tail, into memory; returns at once. tail: its
        key, and memory for each layer in order. The memory is the reader's until wait has said that
        the layer is there, or close has returned."""
        if self._thread is not None:
            raise InvalidArgument("fetch: this reader fetches already")
        tail_parts = None
        if tail is not None:
            tail_parts = (
                tail[0],
                [p for memory in tail[1] for p in _writable_pins(memory, "tail")],
            )
        self._thread = threading.Thread(
            target=self._run, args=(place, tail_parts), name="tarn-layers", daemon=True
        )
        self._thread.start()

    def _run(self, place: Place, tail: Optional[Tuple[Key, List[Pinned]]]) -> None:
        try:
            patience = _Patience(self.stall_ms, self.timeout_ms)
            for layer in range(self.layers):
                parts = [
                    _writable_pins(place(c, layer), f"chunk {c}, layer {layer}")
                    for c in range(self.chunks)
                ]
                self._read(self._keys(layer), parts, layer, patience)
                with self._lock:
                    self._arrived.append(time.monotonic())
                    self._lock.notify_all()
            if tail is not None:
                self._read([tail[0]], [tail[1]], self.layers, patience)
                with self._lock:
                    self._tail_size = sum(p.size for p in tail[1])
                    self._lock.notify_all()
        except BaseException as error:  # whoever waits is told
            with self._lock:
                self._failure = error
                self._lock.notify_all()

    def _read(
        self, keys: List[Key], parts: List[List[Pinned]], layer: int, patience: _Patience
    ) -> None:
        """All objects of a layer. Those that are there are not read again while the others are
        waited for."""
        left = list(range(len(keys)))
        while left:
            addresses = [[p.address for p in parts[i]] for i in left]
            sizes = [[p.size for p in parts[i]] for i in left]
            results = self.client.get_into_many(
                [keys[i] for i in left], addresses, sizes, wait_ms=self.slice_ms
            )
            still = []
            for i, size, result in zip(left, sizes, results):
                if result == Status.ENOTFOUND:
                    still.append(i)
                elif result != sum(size):
                    raise _read_error(keys[i], result, sum(size))
            if len(still) < len(left):
                patience.progress()
            left = still
            if left:
                self._give_up(layer, len(left), patience)

    @property
    def arrived(self) -> int:
        """How many leading layers are there."""
        return len(self._arrived)

    @property
    def arrival_times(self) -> List[float]:
        """When each of them had come, on time.monotonic's clock."""
        return list(self._arrived)

    def wait(self, layer: int) -> None:
        """Until this layer (and all before it) is in its memory. Raises LayersLost, Corrupt, or
        what else befell the reading; stall_ms and timeout_ms of the reader bound it."""
        if not 0 <= layer < self.layers:
            raise InvalidArgument(f"wait: layer {layer} is not in 0..{self.layers - 1}")
        self._wait(lambda: len(self._arrived) > layer)

    def wait_tail(self) -> None:
        """Until the tail, and with it everything, is there."""
        self._wait(lambda: self._tail_size >= 0)

    def _wait(self, done: Callable[[], bool]) -> None:
        if self._thread is None:
            raise InvalidArgument("wait: nothing is being fetched; call fetch first, or use views")
        with self._lock:
            while not done():
                if self._failure is not None:
                    raise self._failure
                if not self._thread.is_alive():
                    raise InvalidArgument("wait: fetch was not told of a tail")
                self._lock.wait(0.5)

    # --- in place

    def views(self, layer: int, *, lease_ms: int = 0) -> LayerViews:
        """Waits for a layer and opens its blocks. lease_ms 0: the client's. One round trip per
        chunk."""
        if not 0 <= layer < self.layers:
            raise InvalidArgument(f"views: layer {layer} is not in 0..{self.layers - 1}")
        return self._open(self._keys(layer), layer, lease_ms)

    def view_tail(self, key: Key, *, lease_ms: int = 0) -> LayerViews:
        """The same of the tail: parts[0] holds all layers, one after the other."""
        return self._open([key], self.layers, lease_ms)

    def _open(self, keys: List[Key], layer: int, lease_ms: int) -> LayerViews:
        patience = _Patience(self.stall_ms, self.timeout_ms)
        views: List[Any] = []
        parts: List[List[memoryview]] = []
        try:
            while len(views) < len(keys):
                self._await(keys[len(views) :], layer, patience)
                while len(views) < len(keys):
                    opened = self._one(keys[len(views)], lease_ms)
                    if opened is None:
                        # Evicted between the two: it may be put again, and if not the patience
                        # ends.
                        self._give_up(layer, len(keys) - len(views), patience)
                        break
                    views.append(opened[0])
                    parts.append(opened[1])
        except BaseException:
            LayerViews(views, parts).release()
            raise
        return LayerViews(views, parts)

    def _one(self, key: Key, lease_ms: int) -> Optional[Tuple[Any, List[memoryview]]]:
        """(view, pieces), (None, a copy) where it is elsewhere, None where it is not."""
        try:
            view = self.client.view(key, lease_ms=lease_ms)
            return (view, list(view.pieces)) if view is not None else None
        except (Stale, LeaseOver):
            data = self.client.get(key)
            return (None, [memoryview(data)]) if data is not None else None

    def close(self) -> None:
        """Stops reading; when it returns nobody writes to the memory any more. It takes as long as
        a read that is under way, and a slice. May be called twice."""
        self._closing = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _writable_pins(memory: Any, name: str) -> List[Pinned]:
    return [
        pin(part, writable=True, name=name)
        for part in (memory if isinstance(memory, list) else [memory])
    ]


def _read_error(key: Key, result: int, size: int) -> Error:
    if result >= 0 or result == Status.ELIMIT:
        held = f"holds {result} bytes" if result >= 0 else "is larger"
        return InvalidArgument(
            f"{key!r} {held}, its memory has {size}: do both sides have the same layout?"
        )
    if result == Status.ECORRUPT:
        return Corrupt(f"{key!r}: the bytes do not match their checksum")
    return Error(f"{key!r} could not be read: {status_name(result)}", result)
