"""mooncake.store on tarn: the class that engines keep blocks in, with Mooncake's arguments and
return codes.

Methods return 0 or bytes, and a negative code where something went wrong (the log of the logger
"mooncake" says what); arguments of the wrong type raise TypeError. Any thread may call, also at
once; bytes move without the GIL. Memory that is named by address is the caller's to keep. A store
does not survive fork()."""

from __future__ import annotations

import copy
import ctypes
import functools
import os
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

import tarn
from tarn import Status
from tarn.batch import Batch
from tarn.cuda import CudaError
from tarn.memory import pin

from mooncake import _common as common
from mooncake._common import (
    INVALID_PARAMS,
    NOT_SUPPORTED,
    OBJECT_NOT_FOUND,
    Key,
    Refused,
    code_of,
    code_or_bytes,
    failure,
    key_of,
    keys_of,
    log,
)
from mooncake._families import (
    CALLS,
    LOCAL,
    LOOKS_UP,
    How,
    code_itself,
    in_pool,
    nothing,
    per_key,
    upsertable,
)
from mooncake._layout import _deserialize_tensor, _serialize_tensor, _tensor_metadata_size
from mooncake._life import LifeMethods
from mooncake._parallel import ParallelAxis, ReadTarget, TensorParallelism
from mooncake._pool import BufferLease, BufferPool
from mooncake._reach import Reach, out_of_reach
from mooncake._replicas import ReplicaMethods
from mooncake._sessions import SessionMethods
from mooncake._staging import StagedRow, Staging, lots_of
from mooncake._tasks import QueryTaskResponse, TaskMethods, TaskStatus, TaskType
from mooncake._tensors import TensorMethods
from mooncake._types import (
    BufferHandle,
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    MooncakeHostMemAllocator,
    ObjectDataType,
    ReplicaDescriptor,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
)

__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "bind_to_numa_node",
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
]

RegisteredBufferPool, RegisteredBufferLease = BufferPool, BufferLease

_SEGMENT_SECONDS = 10.0  # that the answer whether there is such a segment is taken for true
_OURS = "tarn:transfer:"  # keys that are no objects of anybody's: names of ends
Config = Optional[ReplicateConfig]
T = TypeVar("T")


class MooncakeDistributedStore(
    LifeMethods, TensorMethods, SessionMethods, TaskMethods, ReplicaMethods
):
    """Objects by key in a pool of tarn. Without setup() calls return -600, health_check() 1."""

    def __init__(self) -> None:
        self._segments: Dict[str, Tuple[float, bool]] = {}
        self._pool = MooncakeHostMemAllocator()
        self._reach, self._staging = Reach(), Staging()
        self._life_init()
        self._sessions_init()
        self._tasks_init()
        self._replicas_init()

    # --- helpers

    def _run(
        self,
        what: str,
        work: Callable[[tarn.Client], T],
        otherwise: Callable[[int], T],
        does: str = CALLS,
    ) -> T:
        """work(client), or what `otherwise` makes of the code of what went wrong."""
        client: Optional[tarn.Client] = self._lookups if does == LOOKS_UP else self._client
        if client is None:
            log.error("%s: this store is not set up, or closed", what)
            return otherwise(INVALID_PARAMS)
        if does != LOCAL:
            return self._away.ask(what, functools.partial(work, client), otherwise)
        try:
            return work(client)
        except (tarn.Error, Refused) as e:
            return otherwise(failure(what, e))

    def _key(self, key: Key) -> Key:
        key = key_of(key)
        return self._prefix + key if isinstance(key, str) else self._prefix.encode() + key

    def _keys(self, keys: Sequence[Key]) -> List[Key]:
        named = keys_of(keys)
        return [self._key(key) for key in named] if self._prefix else named

    def _known_segment(self, client: tarn.Client, name: str) -> bool:
        known = self._segments.get(name)
        if known is None or time.monotonic() - known[0] > _SEGMENT_SECONDS:
            try:
                client.command("SEGMENT", "INFO", name)
                known = (time.monotonic(), True)
            except tarn.NotFound:
                known = (time.monotonic(), False)
            self._segments[name] = known
        return known[1]

    def _placement(self, client: tarn.Client, config: Config) -> Dict[str, Any]:
        """Options of a put for a ReplicateConfig. Raises Refused for what cannot be honoured."""
        if config is None:
            return {}
        if not isinstance(config, ReplicateConfig):
            raise TypeError(f"config: a ReplicateConfig, not {type(config).__name__}")
        if config.nof_replica_num or config.dfs_replica_num or config.preferred_nof_segments:
            raise Refused(
                NOT_SUPPORTED,
                "nof_ and dfs_ replicas: tarn-node's --ssd and --file keep copies of all objects",
            )
        enable = config.soft_pin_action == SoftPinAction.ENABLE
        if config.soft_pin_ttl_ms is not None and not enable:
            raise Refused(INVALID_PARAMS, "soft_pin_ttl_ms: only with SoftPinAction.ENABLE")
        options: Dict[str, Any] = {}
        if config.replica_num != 1:
            options["replicas"] = min(max(config.replica_num, 1), 8)
        if config.with_hard_pin:
            options["pin"] = "hard"
        elif enable:
            options.update(pin="soft", pin_ms=config.soft_pin_ttl_ms or 0)
        wanted = config.preferred_segments + (
            [config.preferred_segment] if config.preferred_segment else []
        )
        names = [n for w in wanted for n in common.segment_names(w)]
        if config.prefer_alloc_in_same_node:
            names += [f"{node}.0" for node in self._hosts]
        prefer = [n for n in dict.fromkeys(names) if self._known_segment(client, n)]
        if prefer:
            options["prefer"] = prefer[:16]
        return options

    @staticmethod
    def _groups(config: Config, n: int) -> Dict[str, Any]:
        """What n keys go together with, as an option of a put."""
        if config is None or config.group_ids is None:
            return {}
        if len(config.group_ids) != n:
            raise Refused(
                INVALID_PARAMS, f"group_ids: {len(config.group_ids)} of them for {n} keys"
            )
        return {"group": config.group_ids}

    def _put(
        self,
        what: str,
        keys: Sequence[Key],
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        config: Config,
        replace: bool,
    ) -> List[int]:
        """The one way in: a code per key. A key that is there, or that another rank is just
        putting, is 0 as with Mooncake."""
        n = len(keys)

        def work(client: tarn.Client) -> List[int]:
            if len(addresses) != n or len(sizes) != n:
                raise Refused(
                    INVALID_PARAMS,
                    f"{n} keys, {len(addresses)} addresses, {len(sizes)} sizes: as many of each",
                )
            if n == 0:
                return []
            named, options = self._keys(keys), self._placement(client, config)
            options.update(self._groups(config, n))
            statuses = client.put_from_many(named, addresses, sizes, replace=replace, **options)
            codes = [0] * n
            if any(statuses):
                codes = [self._put_code(status, replace) for status in statuses]
            if any(codes):
                log.warning(
                    "%s: %d of %d keys were not stored: %s",
                    what,
                    sum(1 for c in codes if c),
                    n,
                    set(codes) - {0},
                )
            if replace and config is not None and config.soft_pin_action == SoftPinAction.DISABLE:
                for key in named:
                    client.set_pin(key, None)
            return codes

        return self._run(what, work, lambda code: [code] * n)

    @staticmethod
    def _put_code(status: int, replace: bool) -> int:
        if status in (Status.EEXISTS, Status.EBUSY) and not replace:
            return 0
        return code_of(status)

    def _put_memory(
        self,
        what: str,
        keys: Sequence[Key],
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        config: Config,
        replace: bool,
    ) -> List[int]:
        """_put out of memory that callers name by address."""
        groups = config.group_ids if isinstance(config, ReplicateConfig) else None

        def move(rows: Optional[List[int]], at: Sequence[Any], long: Sequence[Any]) -> List[int]:
            if rows is None:
                return self._put(what, keys, at, long, config, replace)
            some = config
            if groups is not None:
                some = copy.copy(config)
                setattr(some, "group_ids", [groups[i] for i in rows])
            return self._put(what, [keys[i] for i in rows], at, long, some, replace)

        lengths = {len(keys), len(addresses), len(sizes), len(keys if groups is None else groups)}
        if len(lengths) > 1:
            return move(None, addresses, sizes)  # which refuses it before any byte moves
        return self._moved(what, addresses, sizes, False, INVALID_PARAMS, move)

    def _moved(
        self,
        what: str,
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        writes: bool,
        refused: int,
        move: Callable[[Optional[List[int]], Sequence[Any], Sequence[Any]], List[int]],
    ) -> List[int]:
        """move(rows, addresses, sizes) of all rows (None), or of those in reach and then, lot by
        lot, of those that are staged. The results in order; `refused` for what no way leads to."""
        beyond = self._reach.beyond(addresses, sizes, writes)
        if not beyond:
            return move(None, addresses, sizes)
        results, staged = [refused] * len(addresses), []
        for row in list(beyond):
            pieces = self._reach.pieces_of(addresses[row], sizes[row], writes)
            if pieces is not None:
                staged.append(StagedRow(row, pieces, sum(size for _, size, _ in pieces)))
                del beyond[row]
        if beyond:
            self._tell_beyond(what, beyond, len(addresses), writes)
        gone = set(beyond) | {row.number for row in staged}
        rows = [i for i in range(len(addresses)) if i not in gone]
        columns = [addresses[i] for i in rows], [sizes[i] for i in rows]
        for i, result in zip(rows, move(rows, *columns) if rows else ()):
            results[i] = result
        for lot in lots_of(staged):
            numbers = [row.number for row in lot]
            try:
                got = self._staging.moved(lot, writes, functools.partial(move, numbers))
            except (CudaError, tarn.NotSupported) as e:
                log.error("%s: memory of a GPU: %s (%d)", what, e, refused)
                continue
            for i, result in zip(numbers, got):
                results[i] = result
        return results

    @staticmethod
    def _tell_beyond(what: str, beyond: Dict[int, int], n: int, writes: bool) -> None:
        log.error("%s: %s (%d)", what, out_of_reach(beyond, n, writes), INVALID_PARAMS)

    def _usable_rows(
        self, what: str, addresses: Sequence[Any], sizes: Sequence[Any], writes: bool
    ) -> Optional[List[int]]:
        """The rows whose memory can be read, or written if `writes`; None: all of them."""
        beyond = self._reach.beyond(addresses, sizes, writes)
        if not beyond:
            return None
        self._tell_beyond(what, beyond, len(addresses), writes)
        return [i for i in range(len(addresses)) if i not in beyond]

    def _put_values(
        self, how: How, keys: Sequence[Key], values: Sequence[Sequence[Any]], config: Config
    ) -> List[int]:
        """Values out of Python's buffers, each in parts."""
        pins = [[pin(part, name="value") for part in parts] for parts in values]
        if not self._local_buffer:
            log.error("%s: local_buffer_size is 0, so only the forms with addresses work", how.what)
            return [INVALID_PARAMS] * len(keys)
        addresses = [[p.address for p in parts] for parts in pins]
        sizes = [[p.size for p in parts] for parts in pins]
        return self._put(how.what, keys, addresses, sizes, config, how.replace)

    # --- puts: as put_..., which leave a value that is there as it is (0 then, too), and as
    # upsert_..., which take its place; readers keep the old one until the new one is whole

    @upsertable
    def put(self, how: How, key: Key, value: Any, config: Config = None) -> int:
        """Stores a buffer."""
        return self._put_values(how, [key], [[value]], config)[0]

    @upsertable
    def put_parts(self, how: How, key: Key, *parts: Any, config: Config = None) -> int:
        """One value out of several buffers."""
        return self._put_values(how, [key], [parts], config)[0]

    @upsertable
    def put_batch(
        self, how: How, keys: Sequence[Key], values: Sequence[Any], config: Config = None
    ) -> int:
        """Many values: 0, or the code of the first that could not be stored."""
        if len(keys) != len(values):
            return failure(
                how.what, Refused(INVALID_PARAMS, f"{len(keys)} keys, {len(values)} values")
            )
        codes = self._put_values(how, keys, [[v] for v in values], config)
        return next((c for c in codes if c), 0)

    @upsertable
    def put_from(
        self, how: How, key: Key, buffer_ptr: int, size: int, config: Config = None
    ) -> int:
        """`size` bytes at an address."""
        return self._put_memory(how.what, [key], [buffer_ptr], [size], config, how.replace)[0]

    @upsertable
    def batch_put_from(
        self,
        how: How,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: Config = None,
    ) -> List[int]:
        """A code per key."""
        return self._put_memory(how.what, keys, buffer_ptrs, sizes, config, how.replace)

    def put_from_with_metadata(
        self,
        key: Key,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: Config = None,
    ) -> int:
        """One value: the metadata, then the data."""
        both = [[metadata_buffer_ptr, buffer_ptr]], [[metadata_size, size]]
        return self._put_memory("put_from_with_metadata", [key], *both, config, False)[0]

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Any],
        all_sizes: Sequence[Any],
        config: Config = None,
    ) -> List[int]:
        """Each value out of several pieces of memory. A code per key."""
        return self._put_memory(
            "batch_put_from_multi_buffers", keys, all_buffer_ptrs, all_sizes, config, False
        )

    # --- gets

    @in_pool(nothing(bytes))
    def get(self, client: tarn.Client, key: Key) -> bytes:
        """The value; empty if there is none."""
        return client.get(self._key(key)) or b""

    @in_pool(lambda _, keys: [b""] * len(keys))
    def get_batch(self, client: tarn.Client, keys: Sequence[Key]) -> List[bytes]:
        """The values; empty those that are not there."""
        return [value or b"" for value in client.get_many(self._keys(keys))]

    def get_buffer(self, key: Key) -> Optional[BufferHandle]:
        """The value in memory of its own; None if there is none."""
        return self.batch_get_buffer([key])[0]

    @in_pool(lambda _, keys: [None] * len(keys))
    def batch_get_buffer(
        self, client: tarn.Client, keys: Sequence[Key]
    ) -> List[Optional[BufferHandle]]:
        """The same for many keys, in two rounds of requests."""
        keys = self._keys(keys)
        handles: List[Optional[BufferHandle]] = [None] * len(keys)
        todo, sizes = list(range(len(keys))), [0] * len(keys)
        for _ in range(4):  # a value that is replaced by a larger one meanwhile takes another round
            if not todo:
                break
            fresh = [BufferHandle(s) for s in sizes]
            batch = Batch([keys[i] for i in todo], [f.ptr() for f in fresh], sizes)
            client._get_batch(batch)
            again, larger = [], []
            for i, handle, got, size in zip(todo, fresh, batch.results(), batch.value_sizes()):
                if got > 0:
                    del handle[got:]
                    handles[i] = handle
                elif got == Status.ELIMIT:
                    again.append(i)
                    larger.append(size)
                elif got < 0 and got != Status.ENOTFOUND:
                    log.error("get_buffer: %s: %s", keys[i], Status(got).name)
            todo, sizes = again, larger
        return handles

    def get_into(self, key: Key, buffer_ptr: int, size: int) -> int:
        """Bytes of the value, now at that address; -704: there is none; -600: it has more than
        `size` bytes."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(
        self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> List[int]:
        """The same for many keys."""
        return self._get("batch_get_into", keys, buffer_ptrs, sizes)

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Any],
        all_sizes: Sequence[Any],
        prefer_alloc_in_same_node: bool = False,
    ) -> List[int]:
        """Each value into several pieces of memory, in order, which must hold it. Bytes per key, or
        a negative code."""
        return self._get("batch_get_into_multi_buffers", keys, all_buffer_ptrs, all_sizes)

    def _get(
        self, what: str, keys: Sequence[Key], addresses: Sequence[Any], sizes: Sequence[Any]
    ) -> List[int]:
        named = self._keys(keys)

        def work(client: tarn.Client) -> List[int]:
            if not named and not addresses and not sizes:
                return []
            return [code_or_bytes(r) for r in self._read(what, client, named, addresses, sizes)]

        return self._run(what, work, lambda code: [code] * len(named))

    def _read(
        self,
        what: str,
        client: tarn.Client,
        keys: Sequence[Key],
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        **ranges: Any,
    ) -> List[int]:
        """get_into_many into memory that callers name by address: EINVAL for what cannot be
        written."""

        def move(rows: Optional[List[int]], at: Sequence[Any], long: Sequence[Any]) -> List[int]:
            if rows is None:
                return client.get_into_many(keys, at, long, **ranges)
            parts: Dict[str, Any] = {n: [column[i] for i in rows] for n, column in ranges.items()}
            return client.get_into_many([keys[i] for i in rows], at, long, **parts)

        if len(keys) != len(addresses) or len(keys) != len(sizes):
            return move(None, addresses, sizes)
        return self._moved(what, addresses, sizes, True, int(Status.EINVAL), move)

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[Key]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> List[List[List[int]]]:
        """Parts of values into parts of registered buffers: of value all_keys[b][k], bytes from
        all_src_offsets[b][k][r] on go to all_dst_offsets[b][k][r] of buffer b. Bytes of each, or a
        negative code; one that reaches over the end of its value or buffer is -600."""
        results = [[[INVALID_PARAMS] * len(ranges) for ranges in keys] for keys in all_dst_offsets]
        shapes = (all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        if any(len(rows) != len(buffer_ptrs) for rows in shapes):
            return results
        where: List[Tuple[int, int, int]] = []
        keys: List[Key] = []
        columns: Tuple[List[int], List[int], List[int]] = ([], [], [])
        for b, address in enumerate(buffer_ptrs):
            room = self._room(address)
            if any(len(rows[b]) != len(all_keys[b]) for rows in shapes):
                continue
            for k, key in enumerate(all_keys[b]):
                dst, src, sizes = all_dst_offsets[b][k], all_src_offsets[b][k], all_sizes[b][k]
                if len(dst) != len(src) or len(dst) != len(sizes):
                    continue
                for r, size in enumerate(sizes):
                    if min(size, dst[r], src[r]) >= 0 and 0 < size <= room - dst[r]:
                        where.append((b, k, r))
                        keys.append(key)
                        for column, value in zip(columns, (address + dst[r], size, src[r])):
                            column.append(value)

        def work(client: tarn.Client) -> List[int]:
            at, sizes, offsets = columns
            named = self._keys(keys)
            return self._read(
                "get_into_ranges", client, named, at, sizes, offsets=offsets, wants=sizes
            )

        got = self._run("get_into_ranges", work, lambda code: [code] * len(keys)) if keys else []
        for (b, k, r), status, size in zip(where, got, columns[1]):
            short = INVALID_PARAMS if 0 <= status < size else status
            results[b][k][r] = short if short == size or short <= INVALID_PARAMS else code_of(short)
        return results

    def _room(self, address: int) -> int:
        """Bytes from an address to the end of the registered buffer that it lies in; 0: in none."""
        for start, size in list(self._buffers.items()):
            if start <= address < start + size:
                return start + size - address
        return 0

    # --- look-ups and removals

    @in_pool(code_itself, LOOKS_UP)
    def is_exist(self, client: tarn.Client, key: Key) -> int:
        """1, 0, or a negative code."""
        return int(client.exists(self._key(key)))

    @in_pool(per_key, LOOKS_UP)
    def batch_is_exist(self, client: tarn.Client, keys: Sequence[Key]) -> List[int]:
        """The same for many keys, in one round trip."""
        return [int(there) for there in client.exists_many(self._keys(keys))]

    @in_pool(code_itself, LOOKS_UP)
    def get_size(self, client: tarn.Client, key: Key) -> int:
        """Bytes of the value; -704: there is none."""
        size = client.size(self._key(key))
        return OBJECT_NOT_FOUND if size is None else size

    @in_pool(code_itself)
    def remove(self, client: tarn.Client, key: Key, force: bool = False) -> int:
        """0, or -704: there is none. Readers under way keep what they read; so there is nothing to
        force."""
        return 0 if client.remove(self._key(key)) else OBJECT_NOT_FOUND

    @in_pool(per_key)
    def batch_remove(
        self, client: tarn.Client, keys: Sequence[Key], force: bool = False
    ) -> List[int]:
        """The same for many keys."""
        named = self._keys(keys)
        there = client.exists_many(named)
        client.remove_many(named)
        return [0 if e else OBJECT_NOT_FOUND for e in there]

    @in_pool(code_itself)
    def remove_by_regex(self, client: tarn.Client, regex_pattern: str, force: bool = False) -> int:
        """How many keys matched (anywhere, unless anchored), and are gone; or a negative code."""
        if self._prefix:
            raise Refused(
                NOT_SUPPORTED, "remove_by_regex: not for a tenant; remove_all removes all of it"
            )
        return int(client.command("REMOVEMATCH", "REGEX", f"(?!^{_OURS})(?:{regex_pattern})"))

    @in_pool(code_itself)
    def remove_all(self, client: tarn.Client, force: bool = False) -> int:
        """How many objects there were (of this tenant; the default one's are all); or a negative
        code."""
        pattern = "(?s)^" + _escaped(self._prefix) if self._prefix else f"(?s)^(?!{_OURS})"
        return int(client.command("REMOVEMATCH", "REGEX", pattern))

    # --- memory

    @in_pool(code_itself, LOCAL)
    def register_buffer(self, client: tarn.Client, buffer_ptr: int, size: int) -> int:
        """Memory that will be used often: RDMA needs it, and get_into_ranges; 0 or a negative code.
        That of a GPU moves by RDMA, as a dma-buf, else through memory of this process; -1012 where
        neither can be."""
        ways = client.register_buffer, client.register_dmabuf
        self._reach.register(*ways, buffer_ptr, size, self._rdma, self._staging.can)
        self._buffers[buffer_ptr] = size
        return 0

    @in_pool(code_itself, LOCAL)
    def unregister_buffer(self, client: tarn.Client, buffer_ptr: int) -> int:
        """0, or -600: none is registered there."""
        if self._buffers.pop(buffer_ptr, None) is None:
            raise Refused(INVALID_PARAMS, f"no buffer is registered at {buffer_ptr:#x}")
        if not self._reach.forget(buffer_ptr):
            client.unregister_buffer(buffer_ptr)
        return 0

    def alloc_from_mem_pool(self, size: int) -> int:
        """Address of `size` bytes that live as long as this object; 0: there is no such memory."""
        return self._pool.alloc(size)


def _escaped(text: str) -> str:
    return "".join("\\" + c if not c.isalnum() else c for c in text)


def bind_to_numa_node(node: int) -> None:
    """Binds this thread to the processors of a NUMA node, and lets it take memory from there first.
    Without such a node nothing happens but a line in the log."""
    try:
        with open(f"/sys/devices/system/node/node{int(node)}/cpulist", encoding="ascii") as file:
            ranges = [part.split("-") for part in file.read().strip().split(",") if part]
        processors = {p for r in ranges for p in range(int(r[0]), int(r[-1]) + 1)}
        os.sched_setaffinity(0, processors & os.sched_getaffinity(0) or processors)
        mask = (ctypes.c_ulong * 16)()
        mask[node // 64] = 1 << node % 64
        preferred, number = 1, {"x86_64": 238, "aarch64": 237}.get(os.uname().machine)
        if (
            number is not None
            and ctypes.CDLL(None, use_errno=True).syscall(number, preferred, mask, 1024) != 0
        ):
            log.warning("bind_to_numa_node: set_mempolicy: %s", os.strerror(ctypes.get_errno()))
    except (OSError, ValueError, IndexError) as e:
        log.warning("bind_to_numa_node: node %s: %s", node, e)
