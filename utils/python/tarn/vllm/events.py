"""KV events of what this engine has put into the pool, for routers that listen to vLLM's.

    scheduler   plan: this block, in so many parts            ─> planned
    workers     put them, and report the keys of those that are there
    scheduler   stored: all parts of a block are there        ─> BlockStored, announced
    follower    KVEVENTS of the pool: a part has gone         ─> BlockRemoved
                of a block that was announced

Hashes are vLLM's, so that a router that knows them from the engine's own events knows these, too.
Only what was announced is withdrawn, by the engine that announced it."""

import logging
import threading
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..errors import Closed, ConnectionFailed, Error, ProtocolError, TimedOut
from .base import (
    BlockRemoved,
    BlockStored,
    EventsBase,
    HashesOfBlocks,
    block_sizes_of,
    kind_of_spec,
    published_hash,
)

__all__ = ["Announcer", "Follower", "StoredKeys", "block_hash_of", "events_wanted", "hash_unit_of"]

log = logging.getLogger("tarn.vllm")

# Blocks that are planned but not put, and blocks that are announced: the oldest make room.
PLANNED_MAX = 1 << 16
ANNOUNCED_MAX = 1 << 18
# The tiers that KVEVENTS READ names: places begin with one.
_TIERS = ("memory", "ssd", "file", "books")
_GONE = ("removed", "evicted", "expired", "lost")
_CHECKED = 1024  # keys in one request
WAIT_MS = 500  # for events, in one request


def events_wanted(vllm_config: Any) -> bool:
    settings = getattr(vllm_config, "kv_events_config", None)
    return bool(getattr(settings, "enable_kv_cache_events", False))


def hash_unit_of(vllm_config: Any, kv_cache_config: Any, otherwise: int) -> int:
    """Tokens from one of vLLM's hashes to the next."""
    if block_sizes_of is None:
        return otherwise
    return int(block_sizes_of(kv_cache_config, vllm_config)[1])


def _known(kind: Any, fields: Dict[str, Any]) -> Any:
    """An event with those of the fields that this release has."""
    names = getattr(kind, "__struct_fields__", None)
    return kind(**{n: v for n, v in fields.items() if names is None or n in names})


def block_hash_of(request: Any, end: int, block: int, unit: int) -> Optional[Any]:
    """vLLM's hash of the block of so many tokens that ends at a token, as its own events have it;
    None: it has none. unit: tokens from hash to hash."""
    hashes = getattr(request, "block_hashes", None) or ()
    if end % block or block % unit or end > len(hashes) * unit:
        return None
    if block == unit or HashesOfBlocks is None:
        found = hashes[end // unit - 1]
    else:  # releases differ in what a block of several hashes is called
        found = HashesOfBlocks(hashes, unit, block)[end // block - 1]
    return published_hash(found) if published_hash is not None else found


def _place(key: str) -> Tuple[str, str]:
    """(KV group, hash) that a key of a part has; "" and the same of all ranks' parts of a block."""
    before, _, name = key.rpartition("@")
    if name[:1] == "l":  # a layer's
        before, _, name = before.rpartition("@")
    group = before.rpartition("@")[2]
    return (group if group.startswith("kv") else ""), name


class StoredKeys(EventsBase):  # type: ignore[misc]
    """What a worker has put, on its way to the scheduler. vLLM joins those of all workers."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = list(keys)
        self._workers = 1

    def add_events(self, events: List[Any]) -> None:
        self._keys += events

    def merge(self, other: "StoredKeys") -> "StoredKeys":
        self._keys += other._keys
        return self

    def aggregate(self) -> "StoredKeys":
        """What not all workers tell counts, too: each has parts of its own."""
        return self

    def increment_workers(self, count: int = 1) -> None:
        self._workers += count

    def get_number_of_workers(self) -> int:
        return self._workers

    def get_all_events(self) -> List[str]:
        return self._keys

    def clear_events(self) -> None:
        self._keys = []


class KindOf(NamedTuple):
    """What events say of a KV group."""

    kind: Optional[str] = None
    window: Optional[int] = None

    @classmethod
    def of(cls, group: Any) -> "KindOf":
        """group: of a KVCacheConfig."""
        spec = getattr(group, "kv_cache_spec", None)
        kind = kind_of_spec(spec) if kind_of_spec is not None and spec is not None else None
        return cls(getattr(kind, "value", kind), getattr(spec, "sliding_window", None))


class _Block(NamedTuple):
    """One of a request's. fields: of BlockStored, of this block alone."""

    keys: Tuple[str, ...]
    fields: Dict[str, Any]


class Announcer:
    """All methods may be called from any thread."""

    def __init__(self, medium: str, unit: int, kinds: Sequence[KindOf]) -> None:
        """medium: what events call the pool. unit: tokens from one of vLLM's hashes to the next.
        kinds: of the KV groups."""
        self._medium, self._unit, self._kinds = medium, unit, kinds
        self._lock = threading.Lock()
        self._planned: Dict[Tuple[str, str], Tuple[_Block, Set[str]]] = {}
        self._announced: Dict[Tuple[str, str], _Block] = {}
        self._ready: List[Any] = []

    def plan(self, request: Any, group: int, block: int, end: int, keys: Sequence[str]) -> None:
        """A block of a KV group of a request, which ends at a token, will be put in these parts."""
        name = block_hash_of(request, end, block, self._unit)
        if name is None or not keys:
            return
        parent = block_hash_of(request, end - block, block, self._unit) if end > block else None
        kind = self._kinds[group] if group < len(self._kinds) else KindOf()
        lora = getattr(request, "lora_request", None)
        fields = {
            "block_hashes": [name],
            "parent_block_hash": parent,
            "token_ids": [int(token) for token in request.all_token_ids[end - block : end]],
            "block_size": block,
            "lora_id": getattr(lora, "lora_int_id", None),
            "lora_name": getattr(lora, "lora_name", None),
            "group_idx": group,
            "kv_cache_spec_kind": kind.kind,
            "kv_cache_spec_sliding_window": kind.window,
            **self._whose(),
        }
        place = _place(keys[0])
        with self._lock:
            self._planned.pop(place, None)
            if len(self._planned) >= PLANNED_MAX:
                del self._planned[next(iter(self._planned))]
            self._planned[place] = (_Block(tuple(keys), fields), set(keys))

    def _whose(self) -> Dict[str, Any]:
        return {"medium": self._medium, "locality": "REMOTE", "ownership": "tarn"}

    def stored(self, keys: Iterable[str]) -> None:
        """Parts that are in the pool."""
        with self._lock:
            for key in keys:
                place = _place(key)
                planned = self._planned.get(place)
                if planned is None:
                    continue
                block, missing = planned
                missing.discard(key)
                if not missing:
                    del self._planned[place]
                    self._announce(place, block)

    def _announce(self, place: Tuple[str, str], block: _Block) -> None:
        known = self._announced.pop(place, None)
        self._announced[place] = block
        if known is None:
            self._tell(block.fields)
            if len(self._announced) > ANNOUNCED_MAX:
                self._withdraw(next(iter(self._announced)))

    def _tell(self, fields: Dict[str, Any]) -> None:
        """One event for blocks that follow on one another."""
        last = self._ready[-1] if self._ready else None
        alike = ("block_size", "lora_name", "group_idx")
        if (
            isinstance(last, dict)
            and last["block_hashes"][-1] == fields["parent_block_hash"]
            and all(last[name] == fields[name] for name in alike)
        ):
            last["block_hashes"] = last["block_hashes"] + fields["block_hashes"]
            last["token_ids"] = last["token_ids"] + fields["token_ids"]
        else:
            self._ready.append(dict(fields))

    def _withdraw(self, place: Tuple[str, str]) -> None:
        block = self._announced.pop(place)
        names = ("block_hashes", "group_idx")
        fields = {**{name: block.fields[name] for name in names}, **self._whose()}
        self._ready.append(_known(BlockRemoved, fields))

    def withdraw(self, keys: Optional[Iterable[str]]) -> None:
        """Parts that are not in the pool any more; None: all."""
        with self._lock:
            places = list(self._announced) if keys is None else [_place(key) for key in keys]
            for place in places:
                self._planned.pop(
                    place, None
                )  # a part that was there went before the last one came
                if place in self._announced:
                    self._withdraw(place)

    def forget_planned(self) -> None:
        """Nobody saw what went for a while, and it may be a part of these."""
        with self._lock:
            self._planned.clear()

    def announced_keys(self) -> List[str]:
        with self._lock:
            return [key for block in self._announced.values() for key in block.keys]

    def take(self) -> List[Any]:
        """vLLM's events since the last call."""
        with self._lock:
            ready, self._ready = self._ready, []
        return [_known(BlockStored, e) if isinstance(e, dict) else e for e in ready]


class _Read(NamedTuple):
    """What a KVEVENTS READ says. gone: keys whose last event is their end. flushed: all have."""

    seq: int
    gone: List[str]
    flushed: bool


def _read_of(reply: str) -> _Read:
    """A word a line; arrays without elements are an empty line, and places begin with a tier."""
    words = reply.split("\n")
    last: Dict[str, str] = {}
    flushed, at = False, 1
    while at + 4 < len(words):
        kind, key = words[at + 2], words[at + 3]
        at += 5
        if at < len(words) and not words[at]:
            at += 1
        while at < len(words) and words[at] in _TIERS:
            at += 4
        if kind == "flushed":
            last, flushed = {}, True
        elif key:
            last[key] = kind
    return _Read(int(words[0]), [key for key, kind in last.items() if kind in _GONE], flushed)


class Follower:
    """A thread that reads the pool's KV events and withdraws what has gone. Where they are off, or
    may not be read, nothing is withdrawn, and a line in the log says so."""

    def __init__(
        self, announcer: Announcer, connect: Callable[[], Any], prefix: str, retry_s: float
    ) -> None:
        """connect: makes a client, of its own. prefix: what the keys begin with."""
        self._announcer, self._connect, self._prefix = announcer, connect, prefix
        self._retry_s = retry_s
        self._closed = threading.Event()
        self._told = False
        self._epoch, self._seq = "", 0
        self.ready = threading.Event()  # it sees what happens from now on
        self._thread = threading.Thread(target=self._run, name="tarn-follow", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                client = self._connect()
                try:
                    self._follow(client)
                finally:
                    client.close()
            except (Error, OSError) as error:
                if not self._told:
                    log.warning("routers are not told what leaves the pool: %s", error)
                self._told = True
                self._closed.wait(self._retry_s)

    def _follow(self, client: Any) -> None:
        while not self._closed.is_set():
            if not self._epoch:
                self._begin(client)
            words = ("READ", self._epoch, self._seq, "BLOCK", WAIT_MS, "MATCH", self._prefix)
            try:
                read = _read_of(client.command("KVEVENTS", *words))
            except (Closed, ConnectionFailed, ProtocolError, TimedOut):
                raise  # the server remembers what happens meanwhile
            except Error as error:
                self._epoch = ""
                if not any(f" {code} " in str(error) for code in ("EPOCH", "GAP")):
                    raise
                continue
            self._seq = read.seq
            if read.flushed:
                self._announcer.withdraw(None)
            self._announcer.withdraw(read.gone)

    def _begin(self, client: Any) -> None:
        """From now on; what may have happened before is looked at."""
        words = client.command("KVEVENTS", "INFO").split("\n")
        info = dict(zip(words[::2], words[1::2]))
        self._seq = int(info["last"])
        if self.ready.is_set():
            self._announcer.forget_planned()
        keys = self._announcer.announced_keys()
        for i in range(0, len(keys), _CHECKED):
            some = keys[i : i + _CHECKED]
            there = client.exists_many(some)
            self._announcer.withdraw([key for key, is_there in zip(some, there) if not is_there])
        self._epoch, self._told = info["epoch"], False
        self.ready.set()
