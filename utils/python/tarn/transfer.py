"""Blocks from one program to another without storing them: tarn_transfer.h for Python.

    prefill                                         decode
    end = End("prefill-0", master=url)              end = End("decode-0", master=url)
    cache = end.alloc(bytes, rights=READ)           peer = end.connect("prefill-0", timeout_ms=5000)
    ... the blocks of request 7 are complete ...    info = peer.wait_ready("7", timeout_ms=30000)
    end.ready("7", info=block_numbers)              peer.run(Tasks.merged(READ, ...), done="7")
    end.next_event(5000)   # DONE "7"

docs/TRANSFER.md is the guide. Without a master ends find each other by `End.endpoint`. Sizes are
bytes, times milliseconds.

Threads: everything may be called from any number of threads at once, except that an object must not
be used while it is being closed; calls release the GIL. Errors are tarn.Error's subclasses; a wait
that may end without success says so by its value. Forms that end in `_async` are coroutines: the
wait happens in a thread of the loop's default executor, and a cancelled one cancels its batch.
Buffers handed over are kept while they are needed and never copied."""

from __future__ import annotations

import asyncio
import ctypes as C
import enum
import functools
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from ._lib import Native, check, lib, needed, text
from ._tasks import READ, WRITE, TaskResult, Tasks
from ._transfer_lib import (
    STATS,
    BatchInfo,
    EventStruct,
    ReadyOptions,
    RegionStruct,
    TransferCall,
    TransferOptions,
    TransferStats,
)
from ._scope import Closes, Releases
from .errors import InvalidArgument, Status
from .memory import Memory, check_range, pin

__all__ = [
    "Allocation",
    "Batch",
    "BatchState",
    "End",
    "Event",
    "EventKind",
    "Peer",
    "READ",
    "Region",
    "Tasks",
    "TaskResult",
    "WRITE",
]

_MESSAGE_MAX = 65536
_T = TypeVar("_T")
_NUMBERS = ("threads", "workers", "streams", "max_peers", "connect_timeout_ms", "timeout_ms")
_NO_TIMEOUT = (1 << 64) - 1


class EventKind(enum.IntEnum):
    """What an Event tells."""

    MESSAGE = 1  # of a peer's notify
    DONE = 2  # a peer is done with a label; data is its message
    GAVE_UP = 3  # a peer gave a label up, or went away; data says why
    ABORTED = 4  # a label that was ready is aborted; data says why


class Event(NamedTuple):
    """Something that peers did, or that became of a label."""

    kind: EventKind
    peer: str
    label: str
    data: bytes


class Region(NamedTuple):
    """Memory of a peer that one may use: `length` bytes from `address` on, over there."""

    id: int
    rights: int
    address: int
    length: int
    name: str


class BatchState(enum.IntEnum):
    """Where a batch is."""

    QUEUED = 0
    RUNNING = 1
    OVER = 2


def _text_or_null(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else value.encode()


class _Handle(Native):
    """One that goes with the object. Whoever is used keeps the one it needs: a batch its peer, a
    peer its end, memory its end."""

    _closes = ""

    def __del__(self) -> None:
        try:
            self._end(getattr(lib, self._closes))
        except (AttributeError, TypeError):  # it was never opened, or the interpreter is going down
            pass


class Batch(_Handle, Releases):
    """Tasks under way. Release it (or leave its `with`) before its peer is closed: that cancels it
    if it is not over."""

    _what, _closes = "batch", "tarn_transfer_release"

    def __init__(
        self, peer: "Peer", tasks: Tasks, timeout_ms: int, done: Optional[str], message: bytes
    ) -> None:
        super().__init__()
        call = TransferCall(C.sizeof(TransferCall))
        call.timeout_ms, call.done = timeout_ms, _text_or_null(done)
        call.message, call.message_len = C.cast(C.c_char_p(message), C.c_void_p), len(message)
        self.tasks, self._peer = tasks, peer  # both outlive it
        check(
            lib.tarn_transfer_submit(
                peer._live(), tasks.address, len(tasks), C.byref(call), C.byref(self._handle)
            )
        )
        needed[id(self)] = (tasks, peer)

    def wait(self, timeout_ms: int = _NO_TIMEOUT) -> bool:
        """Until it is over: True, all tasks done; False: not within timeout_ms. Raises what the
        first failed task has."""
        status = lib.tarn_transfer_wait(self._live(), timeout_ms)
        if status == Status.EAGAIN:
            return False
        check(status)
        return True

    async def wait_async(self) -> None:
        """`wait` that does not block the loop. Cancelling it cancels the batch."""
        work = asyncio.get_running_loop().run_in_executor(None, self.wait)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self.cancel()
            await asyncio.wait([work])
            work.exception()  # it was cancelled: that is known
            raise

    def cancel(self) -> None:
        """Returns soon, with the batch over: what had not moved has ECANCELED, and the memory is
        the caller's again."""
        lib.tarn_transfer_cancel(self._live())

    def info(self) -> Dict[str, Any]:
        """state (BatchState), status, tasks, operations (after merging), failed, bytes, transport
        ("shm", "tcp", "rdma", ...)."""
        raw = BatchInfo(C.sizeof(BatchInfo))
        check(lib.tarn_transfer_get_batch(self._live(), C.byref(raw)))
        figures: Dict[str, Any] = {
            n: getattr(raw, n) for n in ("status", "tasks", "operations", "failed", "bytes")
        }
        figures.update(state=BatchState(raw.state), transport=text(raw.transport))
        return figures

    def results(self) -> List[TaskResult]:
        """What became of each task."""
        return self.tasks.results()

    def release(self) -> None:
        """Frees it; cancels it before if it is not over. Twice does no harm."""
        self._end(lib.tarn_transfer_release)


class Peer(_Handle, Closes):
    """Another end, as seen from ours. One whose connection has broken stays broken (Closed): close
    it and connect anew."""

    _what, _closes = "peer", "tarn_transfer_disconnect"

    def __init__(self, end: "End", where: str, timeout_ms: int) -> None:
        super().__init__()
        self._owner = end
        check(
            lib.tarn_transfer_connect(
                end._live(), where.encode(), timeout_ms, C.byref(self._handle)
            )
        )
        needed[id(self)] = end
        self.name = text(lib.tarn_transfer_peer_name(self._handle))

    def regions(self) -> List[Region]:
        """What one may use of its memory, asked for anew."""
        rows, n = (RegionStruct * 256)(), C.c_size_t()
        check(lib.tarn_transfer_peer_regions(self._live(), rows, len(rows), C.byref(n)))
        return [
            Region(r.id, r.rights, r.address, r.length, text(r.name))
            for r in rows[: min(n.value, len(rows))]
        ]

    def wait_ready(self, label: str, timeout_ms: int = 0) -> Optional[bytes]:
        """Until the label is ready: what goes with it; None: not within timeout_ms (0: the end's).
        Cancelled: it was aborted."""
        info, n = C.create_string_buffer(_MESSAGE_MAX), C.c_size_t()
        status = lib.tarn_transfer_wait_ready(
            self._live(), label.encode(), timeout_ms, info, _MESSAGE_MAX, C.byref(n)
        )
        if status == Status.ETIMEOUT:
            return None
        check(status)
        return info.raw[: n.value]

    async def wait_ready_async(self, label: str, timeout_ms: int = 0) -> Optional[bytes]:
        """`wait_ready` that does not block the loop."""
        return await _in_thread(self.wait_ready, label, timeout_ms)

    def done(self, label: str, message: bytes = b"", *, timeout_ms: int = 0) -> None:
        """This end needs the blocks no more, or has written them. Cancelled: what was read is to be
        thrown away; NotFound."""
        check(
            lib.tarn_transfer_done(self._live(), label.encode(), message, len(message), timeout_ms)
        )

    def give_up(self, label: str, reason: str = "", *, timeout_ms: int = 0) -> None:
        """This end will not have the blocks: their owner need not wait."""
        check(lib.tarn_transfer_give_up(self._live(), label.encode(), reason.encode(), timeout_ms))

    def notify(self, message: bytes, *, timeout_ms: int = 0) -> None:
        """Puts up to 64 KiB among the peer's events. QueueFull: there are too many, and nobody
        takes them out."""
        check(lib.tarn_transfer_notify(self._live(), message, len(message), timeout_ms))

    def submit(
        self, tasks: Tasks, *, timeout_ms: int = 0, done: Optional[str] = None, message: bytes = b""
    ) -> Batch:
        """Queues the tasks. When all are done the peer is told so for the label `done`. The memory
        stays borrowed until then."""
        return Batch(self, tasks, timeout_ms, done, message)

    def run(
        self, tasks: Tasks, *, timeout_ms: int = 0, done: Optional[str] = None, message: bytes = b""
    ) -> int:
        """`submit`, wait and release: bytes moved."""
        with self.submit(tasks, timeout_ms=timeout_ms, done=done, message=message) as batch:
            batch.wait()
            return int(batch.info()["bytes"])

    async def run_async(
        self, tasks: Tasks, *, timeout_ms: int = 0, done: Optional[str] = None, message: bytes = b""
    ) -> int:
        """`run` that does not block the loop. Cancelling it cancels the batch."""
        with self.submit(tasks, timeout_ms=timeout_ms, done=done, message=message) as batch:
            await batch.wait_async()
            return int(batch.info()["bytes"])

    def read(self, local: Any, remote: int, *, region: int = 0, timeout_ms: int = 0) -> int:
        """Fills the buffer `local` from `remote`."""
        return self._one(READ, pin(local, writable=True, name="local"), remote, region, timeout_ms)

    def write(self, local: Any, remote: int, *, region: int = 0, timeout_ms: int = 0) -> int:
        """Writes the buffer `local` to `remote`."""
        return self._one(WRITE, pin(local, name="local"), remote, region, timeout_ms)

    def _one(self, op: int, local: Any, remote: int, region: int, timeout_ms: int) -> int:
        if local.size == 0:
            return 0
        tasks = Tasks(op, [local.address], [remote], [local.size], region=region, keep=local)
        return self.run(tasks, timeout_ms=timeout_ms)

    def close(self) -> None:
        """Disconnects. Its batches must be released before. Twice does no harm."""
        self._end(lib.tarn_transfer_disconnect)


class Allocation:
    """Memory of `End.alloc`: `size` bytes at `address`, number `region`. `view` is a memoryview of
    it, writable. The end lives for as long as anything points into its memory."""

    def __init__(self, end: "End", address: int, size: int, region: int) -> None:
        self.address, self.size, self.region = address, size, region
        array = (C.c_ubyte * size).from_address(address)
        setattr(array, "owner", end)
        self.view = memoryview(array).cast("B")
        self._array: "weakref.ref[Any]" = weakref.ref(array)

    def _let_go(self) -> None:
        """Ends `view`. Raises InvalidArgument if there are other memoryviews or arrays of it; then
        it stays."""
        try:
            self.view.release()
        except BufferError:
            pass
        array = self._array()
        if array is not None:
            self.view = memoryview(array).cast("B")
            raise InvalidArgument(
                f"memory at {self.address:#x}: arrays or memoryviews of it are still there: let go "
                "of them first"
            )


class End(_Handle, Closes):
    """This program's side. Peers are closed before it; memory of `alloc` is unmapped when it
    closes.

    `name`: others find it by that, where `master` (URL of a tarn-server) keeps names:
    [A-Za-z0-9._-], 40 bytes at most. `bind`: addresses of its ports, none: loopback only. Other
    addresses need a `secret` (8 bytes or more, the same on both sides, never sent) or
    `unprotected`. `announce`: host or host:port that others are told. `transport`: "auto" (shared
    memory on the same machine, else RDMA where both have it, else TCP), "shm", "tcp", "rdma".
    Numbers that are 0 are libtarn's defaults: threads 2 (that serve peers by TCP), workers 4
    (batches of a peer at a time), streams 2, max_peers 256, connect_timeout_ms 5000, timeout_ms
    10000."""

    _what, _closes = "end", "tarn_transfer_close"

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        master: Optional[str] = None,
        bind: Sequence[str] = (),
        port: int = 0,
        data_port: int = 0,
        announce: Optional[str] = None,
        secret: Optional[str] = None,
        unprotected: bool = False,
        transport: Optional[str] = None,
        module_path: Optional[str] = None,
        shm_socket: Optional[str] = None,
        shm_mode: int = 0,
        **numbers: int,
    ) -> None:
        super().__init__()
        o = TransferOptions()
        lib.tarn_transfer_options_init(C.byref(o))
        o.name, o.master = _text_or_null(name), _text_or_null(master)
        o.announce, o.secret = _text_or_null(announce), _text_or_null(secret)
        o.module_path, o.shm_socket, o.shm_mode = (
            _text_or_null(module_path),
            _text_or_null(shm_socket),
            shm_mode,
        )
        o.port, o.data_port, o.unprotected = port, data_port, int(unprotected)
        if transport is not None:
            o.transport = transport.encode()
        addresses = (C.c_char_p * max(1, len(bind)))(*[b.encode() for b in bind])
        if bind:
            o.bind, o.binds = addresses, len(bind)
        for key, value in numbers.items():
            if key not in _NUMBERS:
                raise TypeError(f"End has no option {key!r}")
            if value:
                setattr(o, key, value)
        # what was registered, by address; weakly what was made here
        self._held: Dict[int, Any] = {}
        check(lib.tarn_transfer_open(C.byref(o), C.byref(self._handle)))
        needed[id(self)] = self._held
        self.endpoint = text(lib.tarn_transfer_endpoint(self._handle))

    @property
    def address(self) -> Tuple[str, int]:
        """Host and port of the control port, as others are told."""
        host, _, port = self.endpoint.rpartition("//")[2].rpartition(":")
        return host, int(port)

    def register(
        self,
        memory: Any,
        size: Optional[int] = None,
        *,
        rights: int = READ | WRITE,
        name: Optional[str] = None,
    ) -> int:
        """Lets peers at a buffer (kept until it is unregistered), or `size` bytes from the address
        `memory` on, and answers its number. rights 0: only for own tasks by RDMA. Not reached by
        shared memory: see `alloc`. Exists: part of it is registered already; TooLarge: 256 regions
        are."""
        if isinstance(memory, int):
            check_range(memory, size, "memory")
            address, length, keep = memory, int(size or 0), None
        else:
            keep = pin(memory, writable=bool(rights & WRITE), name="memory")
            address, length = keep.address, keep.size
        region = C.c_uint32()
        check(
            lib.tarn_transfer_register(
                self._live(), address, length, rights, _text_or_null(name), C.byref(region)
            )
        )
        self._held[address] = keep
        return region.value

    def register_dmabuf(
        self,
        address: int,
        size: int,
        fd: int,
        offset: int = 0,
        *,
        rights: int = READ | WRITE,
        name: Optional[str] = None,
    ) -> int:
        """Memory of a device, as a dma-buf: moves by RDMA only (NotSupported elsewhere). fd may be
        closed afterwards."""
        region = C.c_uint32()
        check(
            lib.tarn_transfer_register_dmabuf(
                self._live(),
                address,
                size,
                fd,
                offset,
                rights,
                _text_or_null(name),
                C.byref(region),
            )
        )
        return region.value

    def alloc(
        self,
        size: int,
        *,
        rights: int = READ | WRITE,
        name: Optional[str] = None,
        huge_pages: bool = False,
    ) -> Allocation:
        """Makes memory, all zeroes, and registers it: peers on this machine reach it by shared
        memory. The size is rounded up to 4096. OutOfMemory."""
        if size <= 0:
            raise InvalidArgument("size: at least one byte")
        address, region = C.c_void_p(), C.c_uint32()
        check(
            lib.tarn_transfer_alloc(
                self._live(),
                size,
                rights,
                _text_or_null(name),
                int(huge_pages),
                C.byref(address),
                C.byref(region),
            )
        )
        made = Allocation(self, int(address.value or 0), -(-size // 4096) * 4096, region.value)
        self._held[made.address] = (weakref.ref(made), made._array)
        return made

    def unregister(self, memory: Union[Allocation, Memory, int, Any]) -> None:
        """Returns when no peer moves bytes there any more. Memory of `alloc` is unmapped:
        InvalidArgument while arrays, or memoryviews beside its `view`, point into it."""
        address = (
            memory
            if isinstance(memory, int)
            else memory.address
            if hasattr(memory, "address")
            else pin(memory).address
        )
        self._let_go(address)
        check(lib.tarn_transfer_unregister(self._live(), address))
        self._held.pop(address, None)

    def _let_go(self, address: int) -> None:
        held = self._held.get(address)
        if isinstance(held, tuple):
            made = held[0]()
            if made is not None:
                made._let_go()
            elif held[1]() is not None:
                raise InvalidArgument(
                    f"memory at {address:#x}: something points into it: let go of that first"
                )

    def ready(
        self, label: str, info: bytes = b"", *, peers: int = 1, keep_ms: int = 0, cut: bool = False
    ) -> None:
        """Peers that wait for the label go on, with `info` (up to 64 KiB). It is over when `peers`
        of them have said done or gave up; with keep_ms it is aborted if they have not by then. cut:
        for blocks that peers write, see docs/TRANSFER.md."""
        o = ReadyOptions(
            C.sizeof(ReadyOptions),
            C.cast(C.c_char_p(info), C.c_void_p),
            len(info),
            peers,
            keep_ms,
            int(cut),
        )
        check(lib.tarn_transfer_ready(self._live(), label.encode(), C.byref(o)))

    def abort(self, label: str, reason: str = "") -> None:
        """The blocks will not come, or are no more. Of a label that was ready an ABORTED event
        follows."""
        check(lib.tarn_transfer_abort(self._live(), label.encode(), reason.encode()))

    def next_event(self, timeout_ms: int = 0) -> Optional[Event]:
        """The next one, waiting for it up to timeout_ms; None: there was none."""
        raw = EventStruct(C.sizeof(EventStruct))
        status = lib.tarn_transfer_next_event(self._live(), timeout_ms, C.byref(raw))
        if status == Status.EAGAIN:
            return None
        check(status)
        try:
            data = C.string_at(raw.data, raw.len) if raw.data else b""
        finally:
            lib.tarn_free(raw.data)
        return Event(EventKind(raw.kind), text(raw.peer), text(raw.label), data)

    async def next_event_async(self, timeout_ms: int) -> Optional[Event]:
        """`next_event` that does not block the loop."""
        return await _in_thread(self.next_event, timeout_ms)

    def fileno(self) -> int:
        """An eventfd, readable while events are waiting: for poll, epoll or a loop's add_reader.
        Never read it."""
        return int(lib.tarn_transfer_fd(self._live()))

    def connect(self, where: str, timeout_ms: int = 0) -> Peer:
        """To "tarn-transfer://host:port", or to a name of the same master, which may appear within
        timeout_ms (0: the end's connect_timeout_ms). NotFound, ConnectionFailed, TimedOut,
        PermissionDenied (another secret), ProtocolError."""
        return Peer(self, where, timeout_ms)

    async def connect_async(self, where: str, timeout_ms: int = 0) -> Peer:
        """`connect` that does not block the loop."""
        return await _in_thread(self.connect, where, timeout_ms)

    def stats(self) -> Dict[str, int]:
        """Figures: regions, labels, batches, peers, bytes by transport."""
        raw = TransferStats(C.sizeof(TransferStats))
        check(lib.tarn_transfer_get_stats(self._live(), C.byref(raw)))
        return {name: getattr(raw, name) for name in STATS}

    def close(self) -> None:
        """Waits until nobody moves bytes in its memory. Peers must be closed before.
        InvalidArgument, and it stays open, while something points into memory of `alloc` but its
        `view`. Twice does no harm."""
        if not self.closed:
            for address in list(self._held):
                self._let_go(address)
        self._end(lib.tarn_transfer_close)
        self._held.clear()


async def _in_thread(call: Callable[..., _T], *arguments: Any) -> _T:
    return await asyncio.get_running_loop().run_in_executor(
        None, functools.partial(call, *arguments)
    )
