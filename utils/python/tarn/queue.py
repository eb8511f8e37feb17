"""Batches in the background: submit, go on computing, take completions out."""

from __future__ import annotations

import ctypes as C
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from . import _lib, _trace
from ._lib import Handle, check, lib
from ._scope import Closes
from .batch import Batch, Keys
from .errors import Closed, InvalidArgument
from .options import HintKeywords, PutKeywords, call_options, hinted, put_options, puts

if TYPE_CHECKING:
    from typing_extensions import Unpack


GET, PUT, EXISTS, REMOVE = 1, 2, 3, 4
_OPS = {GET: "get", PUT: "put", EXISTS: "exists", REMOVE: "remove"}
# A poll looks up this often, for signals and for close.
_SLICE_MS = 200


class Completion(NamedTuple):
    """What became of a submission."""

    id: int
    op: str  # "get", "put", "exists", "remove"
    status: int  # of the batch as a whole, Status.ECANCELED if it was cancelled
    # per key: gets bytes delivered, puts 0 or Status.EEXISTS, exists and remove 0; or a negative
    # status
    results: List[int]
    done: int  # keys that are well: found, stored or there already
    user: Any  # what was handed over with it


class _Entry:
    __slots__ = ("batch", "user")

    def __init__(self, batch: Batch, user: Any) -> None:
        self.batch, self.user = batch, user


class Queue(Closes):
    """A bounded queue of batches which worker threads of libtarn run (option `workers` of the
    client, 2).

    Every accepted submission completes exactly once, cancelled ones with Status.ECANCELED. The
    queue keeps keys, arrays and whatever was given as `keep` until the completion was taken out;
    the memory behind plain addresses is the caller's, who must not use it before that. All methods
    may be called from any thread. `fd` is readable while completions wait: for select, epoll,
    asyncio; do not read it."""

    def __init__(self) -> None:
        raise TypeError("queues come from Client.queue")

    fd: int
    capacity: int
    _handle: Handle
    _cell: C.c_void_p  # libtarn nulls it when it closes the queue
    _closing: threading.Lock
    _closed: bool
    _inside: Dict[int, int]
    _tokens: Iterator[int]
    _entries: Dict[int, _Entry]
    _ready: List[Completion]

    @classmethod
    def _open(cls, handle: Handle, capacity: int) -> "Queue":
        if not isinstance(capacity, int) or not 1 <= capacity <= 65536:
            raise InvalidArgument(f"capacity: 1 to 65536 submissions, not {capacity!r}")
        pointer = C.c_void_p()
        check(lib.tarn_async_open(handle, capacity, C.byref(pointer)))
        self = object.__new__(cls)
        self._handle, self._cell, self.capacity = handle, pointer, capacity
        self.fd = lib.tarn_async_fd(pointer)
        self._closing, self._closed = threading.Lock(), False
        self._inside, self._tokens, self._entries, self._ready = {}, itertools.count(1), {}, []
        _lib.needed[id(self)] = handle
        return self

    # Which threads are in native calls: close waits for the others. There is no lock, which a
    # signal could leave locked: single operations on a dict are atomic, and who enters looks at
    # _closed after it has said so, as close looks after it has closed.

    def _enter(self) -> C.c_void_p:
        if self._handle.generation != _lib.process.generation:
            raise Closed("a queue does not survive fork(): open one in the child")
        me = threading.get_ident()
        self._inside[me] = self._inside.get(me, 0) + 1
        if self._closed:
            raise Closed("this queue is closed: open another")
        return self._cell

    def _leave(self) -> None:
        me = threading.get_ident()
        depth = self._inside.get(me, 0)
        if depth > 1:
            self._inside[me] = depth - 1
        else:
            self._inside.pop(me, None)

    # --- submitting

    def _submit(self, op: int, batch: Batch, options: Any, user: Any) -> int:
        token, number = next(self._tokens), C.c_uint64()
        entry = self._entries[token] = _Entry(batch, user)
        _lib.needed[id(entry)] = batch
        try:
            arguments = (self._enter(), batch.address, batch.n)
            if _trace.used:
                _trace.apply()
            if op == GET:
                status = lib.tarn_async_get(*arguments, options, token, C.byref(number))
            elif op == PUT:
                status = lib.tarn_async_put(*arguments, options, token, C.byref(number))
            elif op == EXISTS:
                status = lib.tarn_async_exists(*arguments, token, C.byref(number))
            else:
                status = lib.tarn_async_remove(*arguments, token, C.byref(number))
            check(status)
            return number.value
        finally:
            if not number.value:  # it was not accepted
                self._entries.pop(token, None)
                _lib.needed.pop(id(entry), None)
            self._leave()

    @hinted
    def get(
        self,
        keys: Keys,
        addresses: Sequence[Any],
        sizes: Any,
        user: Any = None,
        *,
        offsets: Optional[Sequence[int]] = None,
        wants: Optional[Sequence[int]] = None,
        keep: Any = None,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> int:
        """As Client.get_into_many, in the background. Returns an id. Raises QueueFull: take
        completions out first. `keep` is kept until the completion was taken out, the arrays behind
        the addresses say."""
        batch = Batch(keys, addresses, sizes, offsets, wants, keep)
        return self.get_batch(
            batch, user, wait_ms=wait_ms, timeout_ms=timeout_ms, lease_ms=lease_ms, **hints
        )

    @puts
    def put(
        self,
        keys: Keys,
        addresses: Sequence[Any],
        sizes: Any,
        user: Any = None,
        *,
        keep: Any = None,
        **options: Unpack[PutKeywords],
    ) -> int:
        """As Client.put_from_many, in the background; options as in Client.put."""
        return self.put_batch(Batch(keys, addresses, sizes, keep=keep), user, **options)

    @puts
    def put_batch(self, batch: Batch, user: Any = None, **options: Unpack[PutKeywords]) -> int:
        """A put of a batch that was made before."""
        o = put_options(batch.n, **options)
        # libtarn copies the options, but not what they point to.
        batch.keep = (batch.keep, o)
        return self._submit(PUT, batch, o, user)

    @hinted
    def get_batch(
        self,
        batch: Batch,
        user: Any = None,
        *,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> int:
        """A get of a batch that was made before."""
        o = call_options(timeout_ms, lease_ms, wait_ms, **hints)
        batch.keep = (batch.keep, o)  # as of puts
        return self._submit(GET, batch, o, user)

    def exists(self, keys: Keys, user: Any = None) -> int:
        """Which keys are there: results are 0 or Status.ENOTFOUND."""
        return self._submit(EXISTS, Batch(keys), None, user)

    def remove(self, keys: Keys, user: Any = None) -> int:
        """Removes keys; `done` says how many were there."""
        return self._submit(REMOVE, Batch(keys), None, user)

    def cancel(self, id: int) -> bool:
        """True: it had not begun, and completes with Status.ECANCELED. False: it runs, or has
        completed."""
        try:
            return bool(lib.tarn_async_cancel(self._enter(), id) == 0)
        finally:
            self._leave()

    # --- taking out

    def poll(self, max: int = 64, timeout_ms: int = 0) -> List[Completion]:
        """Takes up to `max` completions out; waits up to timeout_ms for the first."""
        if not isinstance(max, int) or not 1 <= max <= 65536:
            raise InvalidArgument(f"max: 1 to 65536 completions, not {max!r}")
        out = (_lib.CompletionStruct * max)()
        until = time.monotonic() + timeout_ms / 1000
        while True:
            done: List[Completion] = []
            try:
                pointer = self._enter()
                try:
                    while self._ready and len(done) < max:
                        done.append(self._ready.pop(0))
                except IndexError:
                    pass  # another thread took the last one
                if done:
                    return done
                left = int((until - time.monotonic()) * 1000) if timeout_ms else 0
                n = lib.tarn_async_poll(pointer, out, max, min(left, _SLICE_MS) if left > 0 else 0)
                for i in range(n):
                    done.append(self._completion(out[i]))
                if done:
                    return done
            except BaseException:
                # Ctrl-C, say, while completions were in our hands: the next poll gives them.
                self._ready += done + [self._completion(c) for c in out if c.user in self._entries]
                raise
            finally:
                self._leave()
            if left <= _SLICE_MS:
                return []

    def _completion(self, c: _lib.CompletionStruct) -> Completion:
        entry = self._entries.pop(c.user)
        _lib.needed.pop(id(entry), None)
        results = entry.batch.results() if c.op == GET else entry.batch.statuses()
        return Completion(c.id, _OPS[c.op], c.status, results, c.done, entry.user)

    @property
    def pending(self) -> int:
        """Submissions that were not taken out yet."""
        return len(self._entries) + len(self._ready)

    # --- closing

    def close(self) -> List[Any]:
        """Cancels what has not begun and waits for what has; then nothing uses the callers' memory
        any more. Returns `user` of the submissions whose completions were not taken out. May be
        called twice."""
        self._closed = True
        if self._handle.generation != _lib.process.generation:
            return []
        with self._closing:
            while any(thread != threading.get_ident() for thread in list(self._inside)):
                time.sleep(0.001)
            lib.tarn_async_close(C.byref(self._cell))
            for one in (self, *self._entries.values()):
                _lib.needed.pop(id(one), None)
            dropped = [e.user for e in self._entries.values()] + [c.user for c in self._ready]
            self._entries.clear()
            self._ready.clear()
        return dropped

    @property
    def closed(self) -> bool:
        """Whether calls would raise Closed."""
        return self._closed

    def fileno(self) -> int:
        """As `fd`, so that select takes the queue itself."""
        return self.fd

    def __del__(self) -> None:
        # Made by _open only; during the interpreter's end its modules may be gone already.
        if getattr(self, "_ready", None) is not None and self._cell and lib is not None:
            self.close()
