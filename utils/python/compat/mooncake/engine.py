"""mooncake.engine on tarn: bytes from one program's memory to another's, by address, without a
store in between.

With metadata_server "P2PHANDSHAKE" a program is known as host:get_rpc_port(); with tarn://host:port
a tarn-server keeps names. Bytes go by shared memory where both are on one machine and the memory at
the other side is of allocate_managed_buffer, by RDMA where both have it, else by TCP. Beyond
loopback both sides need the same secret: environment variable TARN_TRANSFER_SECRET, or
TARN_TRANSFER_UNPROTECTED=1, which lets in whoever reaches the port, as Mooncake does.

Methods return 0, or a negative code where something went wrong (the log of the logger "mooncake"
says what). Any thread may call, also at once; bytes move without the GIL."""

from __future__ import annotations

import enum
import itertools
import json
import os
import re
import socket
import struct
import threading
from contextlib import contextmanager
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import tarn
from tarn.transfer import READ, WRITE, Batch, End, EventKind, Peer, Tasks

from mooncake import _common as common
from mooncake._common import Refused, log
from mooncake._memory import MemoryMethods
from mooncake._reach import out_of_reach

__all__ = ["TransferEngine", "TransferNotify", "TransferOpcode"]

SUPPORT_EFA = (
    SUPPORT_HIP
) = SUPPORT_MNNVL = SUPPORT_MUSA = SUPPORT_INTRA_NVLINK = SUPPORT_CUDA = False

TIMED_OUT = -2  # of transfer_check_status

_BATCHES_MAX = 65536  # that nobody asked for yet
_APPEAR_MS = 500  # that a name may take to appear
_PEERS_MAX = 1024  # that stay connected while nobody uses them
_LONG = struct.Struct("<II")


class TransferOpcode(enum.IntEnum):
    """Which way bytes go: from the peer, or to it."""

    Read = 0
    Write = 1


Opcode = TransferOpcode  # in the class below, that name is an attribute
Read, Write = TransferOpcode.Read, TransferOpcode.Write


class TransferNotify:
    """A word to the peer that goes with a transfer: see get_notifies."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name, self.msg = name, msg

    def packed(self) -> bytes:
        """As it travels."""
        name, msg = self.name.encode(), self.msg.encode()
        return _LONG.pack(len(name), len(msg)) + name + msg

    @classmethod
    def unpacked(cls, data: bytes) -> Optional["TransferNotify"]:
        """What a peer sent; None: it makes no sense."""
        if len(data) < _LONG.size:
            return None
        name, msg = _LONG.unpack_from(data)
        if len(data) != _LONG.size + name + msg:
            return None
        words = data[_LONG.size :]
        return cls(words[:name].decode("utf-8", "replace"), words[name:].decode("utf-8", "replace"))


def _resolved(host: str) -> str:
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


class _Far:
    """A peer and who uses it: it is closed when it is broken, or the engine ends, and nobody does
    any more."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.users, self.dropped = peer, 0, False


_Method = TypeVar("_Method", bound=Callable[..., int])
_Rows = Tuple[Sequence[int], Sequence[int], Sequence[int]]  # addresses here, there, lengths


class _Move(NamedTuple):
    """What a transfer is called in the log, and which way it goes."""

    what: str
    op: int


def _op_of(opcode: TransferOpcode) -> int:
    return WRITE if opcode == TransferOpcode.Write else READ


# No types of what these two give: editors find the method's own then.


def _transfer_of_one(  # type: ignore[no-untyped-def]
    what: str, op: int, run: Callable[..., int], doc: str
):
    """A method of TransferEngine for one range of memory; `run` is _sync or _async."""
    move = _Move(what, op)

    def method(
        self: "TransferEngine",
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return run(self, move, target_hostname, ([buffer], [peer_buffer_address], [length]))

    return _method_named(method, what, doc)


def _transfer_of_many(  # type: ignore[no-untyped-def]
    what: str, op: int, run: Callable[..., int], doc: str
):
    """The same for many ranges."""
    move = _Move(what, op)

    def method(
        self: "TransferEngine",
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return run(self, move, target_hostname, (buffers, peer_buffer_addresses, lengths))

    return _method_named(method, what, doc)


def _method_named(method: _Method, what: str, doc: str) -> _Method:
    method.__name__, method.__qualname__, method.__doc__ = what, f"TransferEngine.{what}", doc
    return method


class _Engine:
    """What get_engine() gives: for the store's setup()."""

    def __init__(self, end: End) -> None:
        self._tarn_end = end


class TransferEngine(MemoryMethods):
    """This program's side. Without initialize() calls return -1."""

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._name, self._named = "", False
        self._far: Dict[str, _Far] = {}
        self._connecting: Dict[str, threading.Lock] = {}
        self._batches: Dict[int, Tuple[Batch, _Far]] = {}
        self._numbers = itertools.count(1)
        self._memory_init()

    # --- life

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str
    ) -> int:
        """Opens this program's side. 0 or -1."""
        return self.initialize_ext(local_hostname, metadata_server, protocol, device_name, "")

    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str,
        metadata_type: str,
    ) -> int:
        """The same, with the kind of metadata server as a word of its own. `device_name` is
        accepted: libtarn uses the RDMA devices there are."""
        for name, value in (
            ("local_hostname", local_hostname),
            ("metadata_server", metadata_server),
        ):
            if not isinstance(value, str):
                raise TypeError(f"{name}: text, not {type(value).__name__}")
        with self._lock:
            if self._end is not None:
                log.error("initialize: this engine is initialized already")
                return -1
            try:
                master = self._master(
                    metadata_server.strip(), (metadata_type or "").strip().lower()
                )
                self._open(local_hostname.strip(), master, protocol)
            except (tarn.Error, Refused, OSError) as e:
                log.error("initialize: %s", e)
                return -1
        return 0

    @staticmethod
    def _master(server: str, kind: str) -> Optional[str]:
        """URL of the tarn-server that keeps names; None: there is none, ends are host:port. Raises
        Refused."""
        if "p2phandshake" in (server.lower(), kind):
            return None
        if server.startswith(("tarn://", "tarns://", "tarn+sentinel://", "tarns+sentinel://")):
            return server
        if server.startswith("redis://") and server.count("/") == 2:
            return "tarn://" + server[8:]
        if server and "://" not in server and kind in ("", "redis", "tarn"):
            return "tarn://" + server
        raise Refused(
            -1,
            f"metadata_server {server!r}: names are kept by a tarn-server (tarn://host:port), or "
            "P2PHANDSHAKE for none",
        )

    def _open(self, hostname: str, master: Optional[str], protocol: str) -> None:
        host, port = common.split_host(hostname)
        options: Dict[str, Any] = dict(self._transport(protocol))
        self._rdma = "module_path" not in options and options["transport"] != "shm"
        options.update(self._addresses(host or "127.0.0.1", master))
        seconds = int(os.environ.get("MC_TRANSFER_TIMEOUT", "0") or 0)
        end = End(
            common.plain_name(hostname, 40) if master else None,
            master=master,
            port=port if os.environ.get("MC_LEGACY_RPC_PORT_BINDING") else 0,
            timeout_ms=max(seconds, 0) * 1000 or 30000,
            max_peers=1024,
            **options,
        )
        self._end, self._named = end, master is not None
        self._name = (
            hostname if master else (f"[{host}]" if ":" in host else host) + f":{end.address[1]}"
        )

    @staticmethod
    def _transport(protocol: str) -> Dict[str, Optional[str]]:
        word = (protocol or "").strip().lower()
        if word == "rdma":  # as with Mooncake, a machine without a device goes on by TCP
            return common.transport_of("tcp" if os.environ.get("MC_FORCE_TCP") else "auto")
        return common.transport_of(word)

    @staticmethod
    def _addresses(host: str, master: Optional[str]) -> Dict[str, Any]:
        """Where to listen: loopback, or (with a secret) the address of that host, or all if it is
        not one of this machine. With a server for names, a host that cannot be resolved is only a
        name: others come where this machine reaches the server."""
        announce: Optional[str] = host
        try:
            bind = _resolved(host)
        except OSError:
            if master is None:
                raise
            server = common.split_host(
                re.split("[/?]", master.partition("://")[2])[0].rpartition("@")[2].partition(",")[0]
            )[0]
            bind, announce = _resolved(server), None
        if bind.startswith("127.") or bind == "::1":
            return {"bind": ["::1"]} if host == "::1" else {}
        secret = os.environ.get("TARN_TRANSFER_SECRET") or None
        open_to_all = os.environ.get("TARN_TRANSFER_UNPROTECTED", "") == "1"
        if secret is None and not open_to_all:
            raise Refused(
                -1,
                f"{host} is reached from other machines: set TARN_TRANSFER_SECRET to the same 8 "
                "bytes or more on both sides, "
                "or TARN_TRANSFER_UNPROTECTED=1 to let in whoever reaches the port",
            )
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((bind, 0))
            except OSError:
                bind = "::" if family == socket.AF_INET6 else "0.0.0.0"
        return {"bind": [bind], "announce": announce, "secret": secret, "unprotected": open_to_all}

    def __del__(self) -> None:
        if getattr(self, "_end", None) is not None:
            self._close()

    def _close(self) -> None:
        with self._lock:
            batches, self._batches = list(self._batches.values()), {}
            far, self._far = list(self._far.values()), {}
            end, self._end = self._end, None
        for batch, owner in batches:
            batch.release()
            owner.users -= 1
        for one in far:
            one.peer.close()
        if end is not None:
            self._arenas.clear()
            end.close()

    def get_rpc_port(self) -> int:
        """The port by which others reach this program; -1 before initialize()."""
        return -1 if self._end is None else self._end.address[1]

    def get_engine(self) -> Optional[_Engine]:
        """For the store's setup(); None before initialize()."""
        return None if self._end is None else _Engine(self._end)

    # --- peers

    def get_first_buffer_address(self, segment_name: str) -> int:
        """Where the memory begins that a peer (or this program) registered first; 0: there is
        none."""
        if self._end is None:
            return 0
        if segment_name == self._name:
            with self._lock:
                return self._first[0] if self._first else 0
        try:
            with self._use(segment_name) as far:
                regions = far.peer.regions()
        except (tarn.Error, Refused) as e:
            log.error("get_first_buffer_address: %s: %s", segment_name, e)
            return 0
        return min(regions).address if regions else 0

    @contextmanager
    def _use(self, target: str) -> Iterator[_Far]:
        """The peer, connected; it stays open for as long as it is in use. One that turns out to be
        broken is not used again."""
        far = self._connected(target)
        try:
            yield far
        except (tarn.Closed, tarn.ConnectionFailed):
            self._drop(target, far)
            raise
        finally:
            self._done(far)

    def _connected(self, target: str) -> _Far:
        if not isinstance(target, str):
            raise TypeError(f"target_hostname: text, not {type(target).__name__}")
        with self._lock:
            gate = self._connecting.setdefault(target, threading.Lock())
        with gate:
            with self._lock:
                end, far = self._end, self._far.get(target)
                if end is None:
                    raise Refused(-1, "initialize() comes first")
                if far is not None:
                    far.users += 1
                    return far
            where = common.plain_name(target, 40) if self._named else "tarn-transfer://" + target
            try:
                far = _Far(end.connect(where, _APPEAR_MS if self._named else 0))
            finally:
                with self._lock:
                    self._connecting.pop(target, None)
            far.users = 1
            with self._lock:
                idle = (
                    []
                    if len(self._far) < _PEERS_MAX
                    else [t for t, f in self._far.items() if f.users == 0][:1]
                )
                gone = [self._far.pop(t) for t in idle]
                self._far[target] = far
            for one in gone:
                one.peer.close()
            return far

    def _drop(self, target: str, far: _Far) -> None:
        with self._lock:
            if self._far.get(target) is far:
                del self._far[target]
            far.dropped = True

    def _done(self, far: _Far) -> None:
        with self._lock:
            far.users -= 1
            last = far.dropped and far.users == 0
        if last:
            far.peer.close()

    def send_probe(self, peer_server_name: str) -> int:
        """0: the peer answers; -1: it does not."""
        for again in (True, False):
            try:
                with self._use(peer_server_name) as far:
                    far.peer.regions()
                return 0
            except (tarn.Closed, tarn.ConnectionFailed) as e:
                if not again:
                    log.warning("send_probe: %s: %s", peer_server_name, e)
            except (tarn.Error, Refused) as e:
                log.warning("send_probe: %s: %s", peer_server_name, e)
                break
        return -1

    def get_notifies(self) -> List[TransferNotify]:
        """What peers said since the last time."""
        found: List[TransferNotify] = []
        event = None if self._end is None else self._end.next_event(0)
        while event is not None and self._end is not None:
            notify = (
                TransferNotify.unpacked(event.data) if event.kind == EventKind.MESSAGE else None
            )
            found += [notify] if notify is not None else []
            event = self._end.next_event(0)
        return found

    # --- transfers: one or many, waited for or not; the direction is in the name or an argument

    def _again(self, what: str, target: str, work: Callable[[_Far], int], refused: int) -> int:
        """What work(peer) gives. A peer that was started anew since the last time is connected to
        anew, once."""
        for last in (False, True):
            try:
                with self._use(target) as far:
                    return work(far)
            except (tarn.Error, Refused) as e:
                if last or not isinstance(e, tarn.Closed):
                    log.error("%s: %s: %s", what, target, e)
                    break
        return refused

    def _tasks(self, move: _Move, rows: _Rows) -> Tasks:
        beyond = self._reach.beyond(rows[0], rows[2], move.op == READ)
        if beyond:
            raise Refused(-1, out_of_reach(beyond, len(rows[0]), move.op == READ))
        return Tasks(move.op, *rows)

    def _sync(
        self, move: _Move, target: str, rows: _Rows, notify: Optional[TransferNotify] = None
    ) -> int:
        def work(far: _Far) -> int:
            tasks = self._tasks(move, rows)
            if len(tasks):
                far.peer.run(tasks)
            if notify is not None:
                far.peer.notify(notify.packed())
            return 0

        return self._again(move.what, target, work, -1)

    def _async(self, move: _Move, target: str, rows: _Rows) -> int:
        def work(far: _Far) -> int:
            tasks = self._tasks(move, rows)
            with self._lock:
                if len(self._batches) >= _BATCHES_MAX:
                    raise Refused(-1, f"{_BATCHES_MAX} batches, and nobody asks for their status")
            batch = far.peer.submit(tasks)
            with self._lock:
                number = next(self._numbers)
                self._batches[number] = (batch, far)
                far.users += 1
            return number

        return self._again(move.what, target, work, 0)

    transfer_sync_write = _transfer_of_one(
        "transfer_sync_write",
        WRITE,
        _sync,
        "Writes `length` bytes at `buffer` to an address in the peer's memory. 0 or -1.",
    )
    transfer_sync_read = _transfer_of_one(
        "transfer_sync_read", READ, _sync, "Reads them from there."
    )
    transfer_submit_write = _transfer_of_one(
        "transfer_submit_write",
        WRITE,
        _async,
        "One write, not waited for: a number for transfer_check_status; 0: no.",
    )
    batch_transfer_sync_write = _transfer_of_many(
        "batch_transfer_sync_write", WRITE, _sync, "Many writes: 0, all are done; or -1."
    )
    batch_transfer_sync_read = _transfer_of_many(
        "batch_transfer_sync_read", READ, _sync, "Many reads."
    )
    batch_transfer_async_write = _transfer_of_many(
        "batch_transfer_async_write",
        WRITE,
        _async,
        "Many writes, not waited for: a number to ask for their status with, until which the "
        "memory stays borrowed; 0: no.",
    )
    batch_transfer_async_read = _transfer_of_many(
        "batch_transfer_async_read", READ, _async, "Many reads, not waited for."
    )

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: "Opcode",
        notify: Optional[TransferNotify] = None,
        transport_hint: str = "",
    ) -> int:
        """Either; with `notify` the peer is told when it is done."""
        rows = [buffer], [peer_buffer_address], [length]
        return self._sync(_Move("transfer_sync", _op_of(opcode)), target_hostname, rows, notify)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: "Opcode",
        notify: Optional[TransferNotify] = None,
        transport_hint: str = "",
    ) -> int:
        """Either; with `notify` the peer is told when all are done."""
        move, rows = _Move("batch_transfer_sync", _op_of(opcode)), (
            buffers,
            peer_buffer_addresses,
            lengths,
        )
        return self._sync(move, target_hostname, rows, notify)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: "Opcode",
        transport_hint: str = "",
    ) -> int:
        """Either, not waited for."""
        move, rows = _Move("batch_transfer_async", _op_of(opcode)), (
            buffers,
            peer_buffer_addresses,
            lengths,
        )
        return self._async(move, target_hostname, rows)

    def transfer_check_status(self, batch_id: int) -> int:
        """1: done; -1: failed, or no such number; -2: too late; 0: on its way. Any but the last
        ends the number."""
        with self._lock:
            found = self._batches.get(batch_id)
        if found is None:
            log.error("transfer_check_status: no transfer has the number %s", batch_id)
            return -1
        try:
            if not found[0].wait(0):
                return 0
            code = 1
        except tarn.TimedOut:
            code = TIMED_OUT
        except tarn.Error as e:
            log.error("transfer %d: %s", batch_id, e)
            code = -1
        self._forget(batch_id)
        return code

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Waits for all of them: 0, or -1 if one failed. Ends the numbers."""
        code = 0
        for number in batch_ids:
            with self._lock:
                found = self._batches.get(number)
            if found is None:
                log.error("get_batch_transfer_status: no transfer has the number %s", number)
                code = -1
                continue
            try:
                found[0].wait()
            except tarn.Error as e:
                log.error("transfer %d: %s", number, e)
                code = -1
            self._forget(number)
        return code

    def _forget(self, number: int) -> None:
        with self._lock:
            found = self._batches.pop(number, None)
        if found is not None:
            found[0].release()
            self._done(found[1])

    # --- what there is

    def get_local_topology(self, device_name: Optional[str] = None) -> str:
        """JSON: the RDMA devices of this machine (or those of the comma-separated names), preferred
        and others, for memory of processors. libtarn chooses among them itself."""
        try:
            devices = sorted(os.listdir("/sys/class/infiniband"))
        except OSError:
            devices = []
        wanted = [d.strip() for d in (device_name or "").split(",") if d.strip()]
        return json.dumps({"cpu:0": [[d for d in devices if not wanted or d in wanted], []]})
