"""The client: gets, puts and look-ups as one calls them from one thread or from many."""

from __future__ import annotations

import ctypes as C
import time
from array import array
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from . import _lib, _trace
from ._lib import Handle, check, lib, status_error, stored, there
from ._scope import Closes
from .batch import GUESS_BYTES, Batch, Key, KeyList, Keys, address_of, batch_of, encode_key, fetch
from .errors import Closed, InvalidArgument, Status
from .kv_groups import KVBoundary, KVGroup, KVLook, Place
from .memory import Fresh, bytes_at, check_range, pin
from .options import (
    PINS,
    HintKeywords,
    PutKeywords,
    c_string,
    call_options,
    client_options,
    hinted,
    milliseconds,
    put_options,
    puts,
)
from .queue import Queue
from .views import View, Writer

if TYPE_CHECKING:
    from typing_extensions import Unpack

_HISTOGRAMS = {
    "get": 0,
    "put": 1,
    "lookup": 2,
    "request": 3,
    "get_batch": 4,
    "put_batch": 5,
    "lookup_batch": 6,
}
_FIGURES = {"prometheus": 0, "summary": 1}
# Longer waits are done in slices, so that Ctrl-C and other signals are seen within this time.
_SLICE_MS = 500


class Prefetched(NamedTuple):
    """What became of the keys of `Client.prefetch`: they come; are in memory, or on their way; are
    not in the pool; too many are on their way."""

    taken: int
    there: int
    unknown: int
    refused: int


class Client(Closes):
    """A connection to a pool. All methods may be called from any number of threads at once.

    Bytes move without the GIL, between the caller's memory and the transport, without a copy in
    between (only methods that return `bytes` make those). Calls that cannot be done raise
    `tarn.Error`; a miss is None or False. Ctrl-C is seen when the call under way has ended; long
    waits are done in pieces for that. After fork() a child gets `Closed` and connects anew.

    `close` ends the client for new calls; the connections go when calls under way, views, writers
    and queues are done."""

    def __init__(self, url: str = "tarn://127.0.0.1:6479", **options: Any) -> None:
        """Connects and authenticates. `url` is
        tarn://[user:password@]host[:port][?option=value&...], tarn+sentinel://..., or the same over
        TLS with tarns (tls_ca_file, tls_cert_file, tls_key_file, ...); options are those of
        tarn_options (timeout_ms, transport, lease_ms, user, password, ...), and the URL wins.
        on_span: a function that is called with a `Span` for each call that has ended and for its
        stages, from whatever thread it ran in; it must not block, nor call this package.
        Raises ConnectionFailed, TimedOut, PermissionDenied, InvalidArgument, ProtocolError, or
        TypeError for an option that does not exist."""
        pointer = C.c_void_p()
        self._handle: Optional[Handle] = None
        self._guess = 0
        o = client_options(options)
        check(lib.tarn_connect(c_string(url, "url"), C.byref(o), C.byref(pointer)))
        self.url = url
        self._handle = Handle(pointer.value or 0, o.keeps)

    def _use(self) -> Handle:
        """The handle, held by the caller for as long as it calls. Raises Closed."""
        handle = self._handle
        if handle is None:
            raise Closed("this client is closed: open another")
        if handle.generation != _lib.process.generation:
            raise Closed("a client does not survive fork(): connect in the child")
        if _trace.used:
            _trace.apply()
        return handle

    def close(self) -> None:
        """No more calls. May be called twice, and while other threads are in calls, which end as
        they would have."""
        self._handle = None

    @property
    def closed(self) -> bool:
        """Whether calls would raise Closed."""
        return self._handle is None or self._handle.generation != _lib.process.generation

    def __repr__(self) -> str:
        where = self.url.rpartition("@")[2] if hasattr(self, "url") else "?"
        return f"<tarn.Client {where}{' closed' if self.closed else ''}>"

    def ping(self) -> None:
        """One round trip."""
        check(lib.tarn_ping(self._use()))

    # --- puts

    @puts
    def put(self, key: Key, data: Any, **options: Unpack[PutKeywords]) -> bool:
        """Stores `data`: True stored, False it was there already: it stays as it is, whatever its
        bytes, and nothing was sent. With `replace` it is replaced, which readers see when all of
        the new value is there.

        replicas: on so many machines (0: the server's default). pin: "soft" (for pin_ms, 0: the
        server's default) or "hard". ttl_ms: goes after so long (0: never). group: is evicted
        together with the others of that name. boundary: the same for the parts of a hybrid model's
        KV cache that end at one boundary, but those that were used since the one that is evicted
        stay. prefer: names of segments, best first. session, return_ms: as in get. Raises NoSpace,
        Busy (another writer is at it), TimedOut, ConnectionFailed, ..."""
        o, memory = put_options(**options), pin(data)
        return self._put(key, memory.address, memory.size, o)

    @puts
    def put_from(self, key: Key, address: int, size: int, **options: Unpack[PutKeywords]) -> bool:
        """As put, of `size` bytes at `address`."""
        check_range(address, size, "address")
        return self._put(key, address, size, put_options(**options))

    def _put(self, key: Key, address: int, size: int, o: Any) -> bool:
        raw = encode_key(key)
        return stored(lib.tarn_put(self._use(), raw, len(raw), address, size, o))

    @puts
    def put_parts(self, key: Key, parts: Iterable[Any], **options: Unpack[PutKeywords]) -> bool:
        """One value out of several buffers, in order. Otherwise as put."""
        return stored(self.put_many([(key, list(parts))], **options)[0])

    @puts
    def put_many(
        self, pairs: Iterable[Tuple[Key, Any]], **options: Unpack[PutKeywords]
    ) -> List[int]:
        """Stores many values, each a buffer or a list of buffers, in a constant number of round
        trips. Per key: 0 stored, Status.EEXISTS it was there, else another negative status.
        Options as in put; group and boundary may also be lists, one or None for each key."""
        return self._put_batch(batch_of(pairs, False), options)

    @puts
    def put_from_many(
        self, keys: Keys, addresses: Sequence[Any], sizes: Any, **options: Unpack[PutKeywords]
    ) -> List[int]:
        """As put_many, from memory: addresses[i] is an int or a list of ints, sizes likewise (or
        one int for all). The quickest form."""
        return self._put_batch(Batch(keys, addresses, sizes), options)

    def _put_batch(self, batch: Batch, options: PutKeywords) -> List[int]:
        o = put_options(batch.n, **options)
        check(lib.tarn_put_many(self._use(), batch.address, batch.n, o, None))
        return batch.statuses()

    # --- gets

    @hinted
    def get(
        self,
        key: Key,
        *,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> Optional[bytes]:
        """The value, None if there is none. wait_ms: so long for a key that is not there yet.
        timeout_ms: of the whole call (0: the client's), to which the wait is added. lease_ms: what
        the get asks for (0: the client's). session, return_ms: hints for the eviction policy,
        which change no result. The same session (an id of up to 128 bytes): the same conversation
        or request, whose later calls go on where the earlier ones ended, through whatever client.
        It is expected back about return_ms after this call (24 hours at most; 0: not known)."""
        h, raw, length = self._use(), encode_key(key), C.c_size_t()
        wait_ms = _wait_first(h, [raw], wait_ms, timeout_ms)
        options = call_options(timeout_ms, lease_ms, wait_ms, **hints)
        guess = self._guess  # which other threads change
        if 1 < guess <= GUESS_BYTES:
            fresh = Fresh(guess)
            status = lib.tarn_get(
                h, raw, len(raw), fresh.address, fresh.size, C.byref(length), options
            )
            if status == 0:
                self._guess = length.value
                return fresh.value if length.value == fresh.size else fresh.value[: length.value]
            if status != Status.ELIMIT:
                there(status)
                return None
        data = C.c_void_p()
        status = lib.tarn_get_alloc(h, raw, len(raw), C.byref(data), C.byref(length), options)
        if not there(status):
            return None
        try:
            self._guess = length.value
            return bytes_at(data.value or 0, length.value)
        finally:
            lib.tarn_free(data.value)

    @hinted
    def get_into(
        self,
        key: Key,
        buffer: Any,
        *,
        offset: int = 0,
        want: int = 0,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> Optional[int]:
        """The value from byte `offset` on into `buffer`; `want` bytes of it at most (0: all that is
        there). Returns the bytes delivered, None if there is no such key. Raises TooLarge if it
        does not fit. After any exception the buffer may hold junk."""
        memory = pin(buffer, True, "buffer")
        if offset or want:
            batch = Batch([key], [memory.address], [memory.size], [offset], [want])
            self._get_batch(batch, wait_ms, timeout_ms, lease_ms, **hints)
            result = batch.results()[0]
            return result if there(min(result, 0)) else None
        h, raw, length = self._use(), encode_key(key), C.c_size_t()
        wait_ms = _wait_first(h, [raw], wait_ms, timeout_ms)
        options = call_options(timeout_ms, lease_ms, wait_ms, **hints)
        status = lib.tarn_get(
            h, raw, len(raw), memory.address, memory.size, C.byref(length), options
        )
        return length.value if there(status) else None

    @hinted
    def get_range(
        self,
        key: Key,
        offset: int,
        length: int,
        *,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> Optional[bytes]:
        """Bytes [offset, offset + length) of the value, fewer where it ends before; None if there
        is no such key. Raises InvalidArgument if offset lies behind the end."""
        memory = range_memory(offset, length)
        got = self.get_into(
            key,
            memory,
            offset=offset,
            want=length,
            wait_ms=wait_ms,
            timeout_ms=timeout_ms,
            lease_ms=lease_ms,
            **hints,
        )
        return None if got is None else bytes(memoryview(memory)[:got])

    @hinted
    def get_many(
        self,
        keys: Keys,
        *,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> List[Optional[bytes]]:
        """The values, None for those that are not there. One round of requests where all values are
        as large as the one that was got last, two otherwise. Raises when a value that is there
        cannot be had."""
        steps = fetch(keys, self._guess)
        try:
            batch = next(steps)
            while True:
                self._get_batch(batch, wait_ms, timeout_ms, lease_ms, **hints)
                wait_ms = 0
                batch = steps.send(None)
        except StopIteration as end:
            values, self._guess = end.value
            return values  # type: ignore[no-any-return]

    @hinted
    def get_many_into(
        self,
        pairs: Iterable[Tuple[Key, Any]],
        *,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> List[int]:
        """Many values, each into its buffer or list of buffers. Per key: bytes delivered, or a
        negative status."""
        batch = batch_of(pairs, True)
        self._get_batch(batch, wait_ms, timeout_ms, lease_ms, **hints)
        return batch.results()

    @hinted
    def get_into_many(
        self,
        keys: Keys,
        addresses: Sequence[Any],
        sizes: Any,
        *,
        offsets: Optional[Sequence[int]] = None,
        wants: Optional[Sequence[int]] = None,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> List[int]:
        """Many values, or from offsets[i] on wants[i] bytes of each (0: all, which must fit), into
        memory: addresses[i] is an int or a list of ints, sizes likewise (or one int for all). The
        quickest form. Per key: bytes delivered, or a negative status; Status.ELIMIT: it does not
        fit."""
        batch = Batch(keys, addresses, sizes, offsets, wants)
        self._get_batch(batch, wait_ms, timeout_ms, lease_ms, **hints)
        return batch.results()

    def _get_batch(
        self,
        batch: Batch,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> None:
        h = self._use()
        wait_ms = _wait_first(h, batch.keys, wait_ms, timeout_ms)
        options = call_options(timeout_ms, lease_ms, wait_ms, **hints)
        check(lib.tarn_get_many(h, batch.address, batch.n, options, None))

    # --- look-ups

    def exists(self, key: Key) -> bool:
        """Whether the value is whole and readable. Takes no lease and does not count as a use."""
        raw = encode_key(key)
        return there(lib.tarn_exists(self._use(), raw, len(raw)))

    def exists_many(self, keys: Keys) -> List[bool]:
        """The same for many keys, in a constant number of round trips."""
        all_keys = KeyList(keys)
        structs, found = all_keys.structs(), bytearray(max(all_keys.n, 1))
        memory = pin(found, True)
        check(lib.tarn_exists_many(self._use(), address_of(structs), all_keys.n, memory.address))
        return [f != 0 for f in found[: all_keys.n]]

    @hinted
    def prefix_length(
        self,
        keys: Keys,
        *,
        lease_ms: int = 0,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> int:
        """How many leading keys are readable. With lease_ms they stay so for that time. wait_ms: so
        long for all of them."""
        h, all_keys = self._use(), KeyList(keys)
        wait_ms = _wait_first(h, all_keys, wait_ms, timeout_ms)
        return _prefix_length(h, all_keys, call_options(timeout_ms, lease_ms, wait_ms, **hints))

    def prefetch(
        self, keys: Keys, *, segment: Optional[str] = None, timeout_ms: int = 0
    ) -> Prefetched:
        """These will be read soon: what lies only on disks comes to memory before (segment: to this
        memory segment, by name or id). Returns at once, and nothing that is in use is evicted for
        them. Keys in the order of the prefix."""
        h, all_keys, found = self._use(), KeyList(keys), _lib.PrefetchedStruct()
        structs = all_keys.structs()
        to = None if segment is None else c_string(segment, "segment")
        options = call_options(timeout_ms)
        check(lib.tarn_prefetch(h, address_of(structs), all_keys.n, to, options, C.byref(found)))
        return Prefetched(found.taken, found.there, found.unknown, found.refused)

    @hinted
    def kv_prefix(
        self,
        hashes: Sequence[bytes],
        groups: Sequence[KVGroup],
        *,
        unit: int,
        align: int,
        lease_ms: int = 0,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> KVBoundary:
        """The longest prefix of which every KV group has what it needs, in one round trip.
        hashes[i] is the hash of the prompt's first (i + 1) * `unit` tokens; boundaries are
        multiples of `align` tokens. With lease_ms exactly the parts that are read for it stay
        readable for that time. wait_ms: so long for the parts of the longest prefix possible."""
        h, look = self._use(), KVLook(hashes, groups, unit, align)
        return _kv_wait(h, look, wait_ms, timeout_ms, lease_ms, **hints)

    @hinted
    def kv_get(
        self,
        hashes: Sequence[bytes],
        groups: Sequence[KVGroup],
        place: Place,
        *,
        unit: int,
        align: int,
        lease_ms: int = 0,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> Tuple[KVBoundary, List[int]]:
        """kv_prefix, and the bytes of its parts with the same round trip: for a process that both
        asks and reads. `place` is called with the boundary, if there is one, and says where the
        parts go: a buffer (or a list of buffers) for each, group by group and in order, or None for
        not at all. It must not call the client. Per part: bytes delivered, or a negative status."""
        h, look = self._use(), KVLook(hashes, groups, unit, align)
        if wait_ms:
            _kv_wait(h, look, wait_ms, timeout_ms)
        return look.get(h, call_options(timeout_ms, lease_ms, **hints), place)

    def wait(self, key: Key, timeout_ms: int) -> bool:
        """Until the key is readable: True; not within timeout_ms: False."""
        h, raw = self._use(), encode_key(key)
        until = time.monotonic() + milliseconds(timeout_ms, "timeout_ms") / 1000
        while True:
            left = max(int((until - time.monotonic()) * 1000), 0)
            status = lib.tarn_wait(h, raw, len(raw), min(left, _SLICE_MS))
            if status != Status.ETIMEOUT:
                check(status)
                return True
            if left <= _SLICE_MS:
                return False

    def size(self, key: Key) -> Optional[int]:
        """Bytes of the value, None if there is none."""
        n = int(self.command("STRLEN", key) or 0)
        return n if n or self.exists(key) else None

    def sizes(self, keys: Keys) -> List[Optional[int]]:
        """The same for many keys, in one round of requests: a get of each into no memory, which
        moves no byte of the values, and counts as a use."""
        batch = Batch(keys, [0] * len(keys), 0)
        self._get_batch(batch)
        sizes: List[Optional[int]] = []
        for i, (result, size) in enumerate(zip(batch.results(), batch.value_sizes())):
            if result < 0 and result not in (Status.ENOTFOUND, Status.ELIMIT):
                raise status_error(result, f"keys[{i}]")
            sizes.append(None if result == Status.ENOTFOUND else size)
        return sizes

    # --- changes

    def remove(self, key: Key) -> bool:
        """True removed, False it was not there."""
        raw = encode_key(key)
        return there(lib.tarn_remove(self._use(), raw, len(raw)))

    def remove_many(self, keys: Keys) -> int:
        """How many of them were there."""
        all_keys, removed = KeyList(keys), C.c_size_t()
        structs = all_keys.structs()
        check(lib.tarn_remove_many(self._use(), address_of(structs), all_keys.n, C.byref(removed)))
        return removed.value

    def set_pin(self, key: Key, kind: Optional[str], ms: int = 0) -> bool:
        """Pins ("soft" for ms, "hard") or unpins (None) a value. False: there is no such key."""
        raw = encode_key(key)
        if kind not in PINS:
            raise InvalidArgument(f'kind: None, "soft" or "hard", not {kind!r}')
        if kind == "soft" and not ms:
            raise InvalidArgument("ms: how long a soft pin lasts, 1 or more")
        return there(lib.tarn_pin(self._use(), raw, len(raw), PINS[kind], milliseconds(ms, "ms")))

    # --- in place

    @hinted
    def view(
        self,
        key: Key,
        *,
        lease_ms: int = 0,
        wait_ms: int = 0,
        timeout_ms: int = 0,
        **hints: Unpack[HintKeywords],
    ) -> Optional[View]:
        """The value in the pool's own memory, for reading; None if there is no such key. Raises
        Stale where it is on another machine, or shared memory is not allowed here: use a get."""
        h, raw = self._use(), encode_key(key)
        wait_ms = _wait_first(h, [raw], wait_ms, timeout_ms)
        return View._open(h, raw, call_options(timeout_ms, lease_ms, wait_ms, **hints))

    @puts
    def writer(self, key: Key, size: int, **options: Unpack[PutKeywords]) -> Writer:
        """Space for a value of `size` bytes, in the pool's own memory where that is on this
        machine: fill it, then commit. Options as in put. Raises Exists, Busy, NoSpace, ..."""
        if not isinstance(size, int) or size < 0:
            raise InvalidArgument(f"size: bytes, 0 or more, not {size!r}")
        return Writer._open(self._use(), encode_key(key), size, put_options(**options))

    # --- registered memory

    def register_buffer(self, buffer: Any, size: Optional[int] = None) -> None:
        """Memory that will be used often: RDMA needs it, shm and tcp do no harm. A buffer, or an
        address and a size. It must stay mapped until it is unregistered or the client has gone.
        Raises Exists, TooLarge (1024 per client)."""
        address, length = _buffer_span(buffer, size)
        check(lib.tarn_register(self._use(), address, length))

    def register_dmabuf(self, address: int, size: int, fd: int, offset: int = 0) -> None:
        """Memory of a device as a dma-buf: `size` bytes of it from `offset` on, which gets and puts
        name by `address`. They move by RDMA or raise NotSupported. fd may be closed afterwards."""
        check_range(address, size, "address")
        check(lib.tarn_register_dmabuf(self._use(), address, size, fd, offset))

    def unregister_buffer(self, buffer: Any) -> None:
        """Ends a registration, of a buffer or an address. No call may be using it. Raises
        NotFound."""
        address = buffer if isinstance(buffer, int) else pin(buffer, False, "buffer").address
        check(lib.tarn_unregister(self._use(), address))

    # --- figures, tools

    def stats(self) -> Dict[str, int]:
        """Counters of this client: gets, get_hits, bytes_read, round_trips, ...; and for each
        transport NAME there is, NAME_bytes_read and NAME_bytes_written."""
        s = _lib.Stats(C.sizeof(_lib.Stats))
        check(lib.tarn_get_stats(self._use(), C.byref(s)))
        stats = {name: getattr(s, name) for name in _lib.STATS}
        for t in s.transport:
            if t.name:
                stats[f"{t.name.decode()}_bytes_read"] = t.bytes_read
                stats[f"{t.name.decode()}_bytes_written"] = t.bytes_written
        return stats

    def histogram(self, kind: str) -> Dict[str, Any]:
        """Latencies in microseconds of whole calls ("get", "put", "lookup"; a batch is one), of
        those on more than one key ("get_batch", "put_batch", "lookup_batch"), or of single round
        trips ("request"): count, sum_us, min_us, max_us, p50_us ... p999_us, and
        buckets: [(bound_us, calls up to it)]."""
        if kind not in _HISTOGRAMS:
            raise InvalidArgument(f"kind: one of {', '.join(_HISTOGRAMS)}, not {kind!r}")
        s = _lib.Histogram(C.sizeof(_lib.Histogram))
        check(lib.tarn_get_histogram(self._use(), _HISTOGRAMS[kind], C.byref(s)))
        names = [
            f[0] for f in _lib.Histogram._fields_ if f[0].endswith("_us") and f[0] != "bound_us"
        ]
        result: Dict[str, Any] = {name: getattr(s, name) for name in ["count"] + names}
        result["buckets"] = [(s.bound_us[i], s.upto[i]) for i in range(s.n_bounds)]
        return result

    def figures(self, format: str = "prometheus") -> str:
        """All counters and histograms as text: "prometheus", metrics tarn_client_* for a scrape of
        the program, or "summary", a few lines for people. The option `cluster` labels them."""
        if format not in _FIGURES:
            raise InvalidArgument(f"format: one of {', '.join(_FIGURES)}, not {format!r}")
        text, length = C.c_void_p(), C.c_size_t()
        check(lib.tarn_figures_text(self._use(), _FIGURES[format], C.byref(text), C.byref(length)))
        try:
            return C.string_at(text, length.value).decode("utf-8", "replace")
        finally:
            lib.tarn_free(text)

    def command(self, *args: Union[str, bytes, int, float]) -> str:
        """Any command, for tools: the reply as text, arrays one element a line, nil empty. Bytes
        that are no UTF-8 come as surrogates. An error reply raises."""
        if not args:
            raise TypeError("command: which one?")
        raw = [
            a if isinstance(a, bytes) else str(a).encode("utf-8", "surrogateescape") for a in args
        ]
        argv = (C.c_char_p * len(raw))(*raw)
        lens = array("Q", map(len, raw))
        reply, length = C.c_void_p(), C.c_size_t()
        check(
            lib.tarn_command(
                self._use(), len(raw), argv, address_of(lens), C.byref(reply), C.byref(length)
            )
        )
        try:
            return bytes_at(reply.value or 0, length.value).decode("utf-8", "surrogateescape")
        finally:
            lib.tarn_free(reply.value)

    def queue(self, capacity: int = 1024) -> Queue:
        """A queue of batches that run in the background, with an eventfd for their completions."""
        return Queue._open(self._use(), capacity)


def _wait_first(h: Handle, keys: Union[Keys, KeyList], wait_ms: int, timeout_ms: int) -> int:
    """Waits in slices until all keys are there; returns what is left to wait (a slice at most) in
    the end."""
    if wait_ms <= _SLICE_MS:
        return wait_ms
    all_keys = keys if isinstance(keys, KeyList) else KeyList(keys)
    until = time.monotonic() + milliseconds(wait_ms, "wait_ms") / 1000
    while True:
        left = int((until - time.monotonic()) * 1000)
        if left <= _SLICE_MS:
            return max(left, 0)
        if _prefix_length(h, all_keys, call_options(timeout_ms, 0, _SLICE_MS)) == all_keys.n:
            return 0


def _kv_wait(
    h: Handle,
    look: KVLook,
    wait_ms: int,
    timeout_ms: int,
    lease_ms: int = 0,
    **hints: Unpack[HintKeywords],
) -> KVBoundary:
    """Asks with waits in slices, of which one that is answered early has found all; the last
    answer."""
    until = time.monotonic() + milliseconds(wait_ms, "wait_ms") / 1000
    while True:
        began = time.monotonic()
        slice_ms = min(max(int((until - began) * 1000), 0), _SLICE_MS)
        found = look.prefix(h, call_options(timeout_ms, lease_ms, slice_ms, **hints))
        now = time.monotonic()
        if now >= until or now - began < slice_ms / 1000 * 0.9:
            return found


def _prefix_length(h: Handle, keys: KeyList, options: Any) -> int:
    structs, length = keys.structs(), C.c_size_t()
    check(lib.tarn_prefix_length(h, address_of(structs), keys.n, options, C.byref(length)))
    return length.value


def range_memory(offset: int, length: int) -> bytearray:
    """Memory for a get_range. Raises InvalidArgument for what is no range."""
    if length <= 0 or offset < 0:
        raise InvalidArgument(
            f"get_range: offset {offset} and length {length}: 0 or more, and 1 or more"
        )
    return bytearray(length)


def _buffer_span(buffer: Any, size: Optional[int]) -> Tuple[int, int]:
    if isinstance(buffer, int):
        if size is None:
            raise TypeError("register_buffer: an address needs a size")
        check_range(buffer, size, "buffer")
        return buffer, size
    memory = pin(buffer, False, "buffer")
    if size is not None and size > memory.size:
        raise InvalidArgument(f"size: the buffer has {memory.size} bytes, not {size}")
    return memory.address, memory.size if size is None else size
