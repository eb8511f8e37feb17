"""The backend that vllm-ascend makes, one for each worker.

Threads: vllm-ascend calls from its workers' main thread and its sending and receiving threads at
once. Nothing raises from exists, get and put: a pool that is away is a miss."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .._link import Link, optional, settings
from ..client import Client
from ..errors import InvalidArgument, Status
from ..identity import digest
from ..keys import escape
from ..options import HintKeywords
from . import facts, memory, sessions
from .layerwise import LayerwiseStore
from .memory import Blocks, Range, Ranges, Staging

STORE = "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store"
_Base: Any
(_Base,) = optional(f"{STORE}.backend.base", "Backend") or (object,)

log = logging.getLogger(__name__)
_WRONG_SIZE = int(Status.ELIMIT)
# Of vllm-ascend's keys: one of a KV group that is not the first, and the hash in any.
_FURTHER_GROUP = re.compile(r"@group:[1-9]|^[^@]+@[1-9][0-9]?@[0-9a-f]{16,}@")
_HASH = re.compile(r"@([0-9a-f]{16,})(?:@|$)")


class TarnBackend(LayerwiseStore, _Base):  # type: ignore[misc]
    """Backend of an AscendStoreConnector. Each worker has one, and the
    scheduler one that only looks up."""

    def __init__(
        self,
        parallel_config: Any,
        lazy_init: bool = False,
        options: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """`lazy_init` is what vllm-ascend passes for stores that must not start before the first
        put; this one connects at once, and waits for nothing. `options`: as in the file of
        TARN_CONFIG_PATH, before which they win.

        InvalidArgument, PermissionDenied: the configuration. A server that is not there yet is
        waited for later."""
        chosen = settings(options, "options")
        self.parallel_config = parallel_config
        self.store = self  # the engine only asks whether there is one
        self._prefix = f"{escape(chosen.namespace)}@" if chosen.namespace else ""
        noted = facts.noted()
        self._prefix += f"{digest(noted)}@" if noted is not None else ""
        self._gets, self._puts = chosen.get_options(), chosen.put_options()
        self._lease_ms = chosen.lookup_lease_ms
        self._parted = int(getattr(parallel_config, "world_size", 1) or 1) > 1
        self._ranges = Ranges()
        self._staging = Staging(memory.STAGING_BYTES)
        self._set_up_layers()
        rank = getattr(parallel_config, "rank", "?")
        self._link = Link(chosen, log, f"tarn, rank {rank}")

    @classmethod
    def create_scheduler_client(cls, parallel_config: Any) -> "TarnBackend":
        """The scheduler's, for look-ups."""
        return cls(parallel_config)

    def ensure_initialized(self) -> None:
        """There is nothing left to do."""

    def set_device(self) -> None:
        """Chooses this worker's NPU for the calling thread, where torch_npu is there; else
        nothing."""
        torch = sys.modules.get("torch")
        world = optional("vllm.distributed.parallel_state", "get_world_group")
        if world is None or not hasattr(torch, "npu"):
            log.debug("tarn: no NPU to choose: this is a host without one")
            return
        torch.npu.set_device(world[0]().local_rank)  # type: ignore[union-attr]

    # --- memory

    def register_buffer(self, ptrs: Sequence[int], lengths: Sequence[int]) -> None:
        """Tells of the KV caches. InvalidArgument: not as many lengths as addresses, or no memory
        of the host while there is nothing that could copy a device's: the engine would never get a
        block then, and should say so at its start."""
        found = self._ranges.find(ptrs, lengths)
        self._ranges.remember(found)
        host = [r for r in found if r.way == "host" and r.end > r.start]

        def tell(client: Client) -> None:
            for r in host:
                client.register_buffer(r.start, r.end - r.start)

        self._link.on_connect(tell)

    def register_dmabuf(self, address: int, length: int, fd: int, offset: int = 0) -> None:
        """Memory of a device that RDMA reaches: `length` bytes at `address`, `offset` bytes into
        the dma-buf `fd`, which stays open for as long as this backend lives. Such blocks move by
        RDMA and carry no checksum."""

        def tell(client: Client) -> None:
            client.register_dmabuf(address, length, fd, offset)
            # Only now: libtarn would take an address that it was never told of for memory of the
            # host.
            self._ranges.remember([Range(address, address + length, "rdma", True)])

        self._link.on_connect(tell)

    # --- blocks

    def exists(self, keys: List[str]) -> List[int]:
        """1 or 0 per key; all 0 when the pool is away. With lookup_lease_ms what is there stays so
        long: a second request."""
        if not keys:
            return []
        names = self._names(keys)

        def work(client: Client) -> List[bool]:
            found = client.exists_many(names)
            here = [name for name, there in zip(names, found) if there]
            if self._lease_ms and here:
                kept = client.prefix_length(here, lease_ms=self._lease_ms)
                gone = set(here[kept:])
                found = [there and name not in gone for name, there in zip(names, found)]
            return found

        return [int(f) for f in self._link.call("lookup", work, [False] * len(keys))]

    def batch_is_exist(self, keys: List[str]) -> List[int]:
        """As exists; the scheduler's name for it."""
        return self.exists(keys)

    def put(self, keys: List[str], addrs: List[List[int]], sizes: List[List[int]]) -> None:
        """Stores a block per key, out of its pieces in order. What cannot be stored is logged;
        nobody asks for it later."""
        self._move("put", keys, addrs, sizes)

    def get(self, keys: List[str], addrs: List[List[int]], sizes: List[List[int]]) -> List[int]:
        """Reads a block per key into its pieces. Per key 0, or what the engine takes for a failed
        block: a negative status. A block that is shorter or longer than its pieces has failed."""
        return self._move("get", keys, addrs, sizes)

    def _names(self, keys: Sequence[str]) -> List[str]:
        return [self._prefix + k for k in keys] if self._prefix else list(keys)

    def _hints_for(self, names: Sequence[str]) -> HintKeywords:
        """Whose blocks these are, where our AscendStoreConnector has heard of it."""
        found = (_HASH.search(name, len(self._prefix)) for name in names)
        return sessions.hints_for([hashed[1] for hashed in found if hashed is not None])

    def _boundaries(self, names: Sequence[str]) -> List[Optional[str]]:
        """What is evicted together: the parts of all ranks and KV groups that end with the same
        hash. Blocks of one part need none."""
        keys = [name[len(self._prefix) :] for name in names]
        self._parted = self._parted or any(_FURTHER_GROUP.search(key) for key in keys)
        if not self._parted or "group" in self._puts:
            return []
        found: List[Optional[str]] = []
        for key in keys:
            hashed = _HASH.search(key)
            model = key.partition("@")[0]
            found.append(f"{self._prefix}{model}@{hashed[1]}" if hashed is not None else None)
        return found

    def _move(
        self, what: str, keys: List[str], addrs: List[List[int]], sizes: List[List[int]]
    ) -> List[int]:
        if not keys:
            return []
        if not len(keys) == len(addrs) == len(sizes):
            self._link.complain(
                what,
                f"{what}: {len(keys)} keys, {len(addrs)} lists of addresses, {len(sizes)} of sizes",
            )
            return [int(Status.EINVAL)] * len(keys)
        results = [int(Status.ECLOSED)] * len(keys)
        direct: List[int] = []
        staged: List[int] = []
        for i in range(len(keys)):
            try:
                way = self._ranges.way(addrs[i], sizes[i], what == "get")
                (staged if way == "staged" else direct).append(i)
            except InvalidArgument as e:
                self._link.complain(f"{what} address", str(e))
                results[i] = int(Status.EINVAL)
        blocks = Blocks(self._names(keys), addrs, sizes)
        for rows, work in ((direct, self._direct), (staged, self._staged)):
            if rows:
                part = blocks.only(rows)
                statuses = self._link.call(
                    what, lambda c: work(c, what, part), [int(Status.ECLOSED)] * len(rows)
                )
                for i, status in zip(rows, statuses):
                    results[i] = status
        return results

    def _direct(self, client: Client, what: str, blocks: Blocks) -> List[int]:
        """0 per block that is done, else a negative status."""
        if what == "put":
            put = self._link.distrust.put
            ends = self._boundaries(blocks.names)
            told = {**self._puts, **self._hints_for(blocks.names)}
            results = put(client.put_from_many, *blocks, boundary=ends, **told)
            stored = self._link.stored(what, results)
            return [0 if well else s for s, well in zip(results, stored)]
        told = {**self._gets, **self._hints_for(blocks.names)}
        results = client.get_into_many(*blocks, **told)
        whole = self._link.whole(what, blocks.names, results, blocks.totals())
        return [0 if well else _WRONG_SIZE if n >= 0 else n for n, well in zip(results, whole)]

    def _staged(self, client: Client, what: str, blocks: Blocks) -> List[int]:
        """As many blocks at a time as the staging buffer holds, one thread at a time."""
        results: List[int] = []
        totals, at = blocks.totals(), 0
        with self._staging as base:
            while at < len(totals):
                places, room, end = [], 0, at
                while end < len(totals) and room + totals[end] <= self._staging.size:
                    places.append(base + room)
                    room += totals[end]
                    end += 1
                if end == at:
                    self._link.complain(
                        "size",
                        f"a block of {totals[at]} bytes: at most {self._staging.size} can be "
                        "staged",
                    )
                    results.append(int(Status.ELIMIT))
                    end += 1
                else:
                    results += self._through(client, what, blocks.only(range(at, end)), places)
                at = end
        return results

    def _through(self, client: Client, what: str, blocks: Blocks, places: List[int]) -> List[int]:
        """Blocks that fit in the staging buffer at once, each at its place."""
        runtime = self._ranges.runtime
        assert runtime is not None
        here = Blocks(blocks.names, [[p] for p in places], [[n] for n in blocks.totals()])
        if what == "put":
            for i, place in enumerate(places):
                for device, at, size in blocks.pieces(i, place):
                    runtime.to_host(at, device, size)
        statuses = self._direct(client, what, here)
        if what == "get":
            for i, place in enumerate(places):
                for device, at, size in blocks.pieces(i, place) if statuses[i] == 0 else ():
                    runtime.to_device(device, at, size)
        return statuses

    @property
    def troubles(self) -> Dict[str, int]:
        """What went wrong so far, by kind."""
        return dict(self._link.troubles)

    def close(self) -> None:
        """Closes the connection; vllm-ascend itself leaves that to the end of the process."""
        self._link.close()
