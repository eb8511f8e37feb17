"""Where replicas of objects are, for many keys in one request, and taking them away."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tarn

from mooncake import _common as common
from mooncake._common import Key, key_of, keys_of, log
from mooncake._families import LOOKS_UP, in_pool, nothing
from mooncake._types import Descriptor, DiskDescriptor, MemoryDescriptor, ReplicaDescriptor

_AT_ONCE = 10000  # keys in one request
_BOOKS_MAX = 64  # bytes of a value that the server keeps in its books
_KNOWN_MAX = 4096  # segments whose names are remembered

Segment = Tuple[str, str]  # its number, and its epoch, which no two at that number share


class _Copy(NamedTuple):
    """A replica: its tier, the first segment (or the path of a file), and the offset there."""

    tier: str
    segment: Segment
    offset: int


class _There(NamedTuple):
    """An object that is there. No replicas: it is in the server's books."""

    size: int
    copies: List[_Copy]


class _Reply:
    """The reply of MGETREPLICAS as Client.command gives it: an element of any depth a line, nothing
    of nil, of an empty array and of empty text. A value has as many bytes as its size says,
    whatever they are."""

    def __init__(self, text: str) -> None:
        self._data, self._at = text.encode("utf-8", "surrogateescape"), 0

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at)
        end = len(self._data) if end < 0 else end
        line, self._at = self._data[self._at : end], end + 1
        return line.decode("utf-8", "surrogateescape")

    def _peek(self) -> str:
        at, line = self._at, self._line()
        self._at = at
        return line

    def object(self) -> Optional[_There]:
        """The next one; None: there is none."""
        if not self._line():  # its version
            return None
        size, copies = int(self._line()), []
        self._line(), self._line()  # no lease; the CRC
        if self._peek():
            while self._peek():
                copies.append(self._copy())
            self._line()  # no value
        else:
            self._line()
            self._at += size + 1 if size <= _BOOKS_MAX else 1
        self._line(), self._line()  # no list of CRCs; flags
        return _There(size, copies)

    def _copy(self) -> _Copy:
        tier = self._line()
        if tier == "file":
            path, _ = self._line(), self._line()
            return _Copy(tier, (path, ""), 0)
        extents = []
        while self._peek().isdigit():
            extents.append([self._line() for _ in range(5)])
        number, epoch, offset, *_ = extents[0]
        return _Copy(tier, (number, epoch), int(offset))


class ReplicaMethods:
    """Part of MooncakeDistributedStore."""

    _hostname: str
    _hosts: Dict[str, Any]
    _key: Any
    _keys: Any

    def _replicas_init(self) -> None:
        self._segments_known: Dict[Segment, Dict[str, str]] = {}

    def get_replica_desc(self, key: Key) -> List[ReplicaDescriptor]:
        """Where the replicas of an object are; empty if there is none."""
        found: Dict[Key, List[ReplicaDescriptor]] = self.batch_get_replica_desc([key])
        return found.get(key_of(key), [])

    @in_pool(nothing(dict), LOOKS_UP)
    def batch_get_replica_desc(
        self, client: tarn.Client, keys: Sequence[Key]
    ) -> Dict[Key, List[ReplicaDescriptor]]:
        """The same for many keys, in one request; those that are not there are left out."""
        keys = keys_of(keys)
        return {
            key: self._described(client, there)
            for key, there in zip(keys, _located(client, self._keys(keys)))
            if there is not None
        }

    def _described(self, client: tarn.Client, there: _There) -> List[ReplicaDescriptor]:
        if not there.copies:
            where = Descriptor(there.size, 0, "books")
            return [ReplicaDescriptor("memory", MemoryDescriptor(where))]
        return [self._descriptor(client, copy, there.size) for copy in there.copies]

    def _descriptor(self, client: tarn.Client, copy: _Copy, size: int) -> ReplicaDescriptor:
        if copy.tier == "file":
            return ReplicaDescriptor(copy.tier, DiskDescriptor(copy.segment[0], size))
        fields = self._segment_info(client, copy.segment)
        segment, node = fields.get("name", copy.segment[0]), fields.get("node", "")
        if copy.tier != "memory":
            return ReplicaDescriptor(copy.tier, DiskDescriptor(segment, size))
        name = self._hostname if node in self._hosts else common.hostname_of(node, self._hostname)
        where = Descriptor(size, copy.offset, name or segment)
        return ReplicaDescriptor("memory", MemoryDescriptor(where))

    def _segment_info(self, client: tarn.Client, segment: Segment) -> Dict[str, str]:
        """What SEGMENT INFO says of it, asked for once; nothing of one that went."""
        known = self._segments_known
        if segment not in known:
            try:
                lines = client.command("SEGMENT", "INFO", segment[0]).split("\n")
                lines = lines[: lines.index("endpoints")]  # names and values until there
                fields = dict(zip(lines[::2], lines[1::2]))
            except tarn.NotFound:
                return {}
            if fields.get("epoch") != segment[1]:
                return {}
            if len(known) >= _KNOWN_MAX:
                known.clear()
            known[segment] = fields
        return known[segment]

    @in_pool(nothing(list))
    def batch_replica_clear(
        self, client: tarn.Client, keys: Sequence[Key], segment_name: str = ""
    ) -> List[Key]:
        """Takes the replicas of these objects away, all of them, or those in the memory that a
        store with this hostname lends (or in a segment of tarn's). Answers the keys of which
        something went. Readers under way keep what they read."""
        keys = keys_of(keys)
        named = self._keys(keys)
        if not segment_name:
            had = client.exists_many(named)
            client.remove_many(named)
            return [key for key, one in zip(keys, had) if one]
        names, alone, cleared = common.segment_names(segment_name), [], []
        for key, name, there in zip(keys, named, _located(client, named)):
            copies = [] if there is None else there.copies
            held = [c.segment for c in copies if c.tier != "file"]
            infos = [self._segment_info(client, segment).get("name", "") for segment in held]
            hit = next((n for n in infos if n in names), None)
            if hit is None:
                continue
            if len(copies) == 1:
                alone.append(name)
                cleared.append(key)
            elif self._drop_copy(client, name, hit):
                cleared.append(key)
        if alone:
            client.remove_many(alone)
        return cleared

    @staticmethod
    def _drop_copy(client: tarn.Client, key: Key, segment: str) -> bool:
        try:
            client.command("REPLICA", "DROP", key, "FROM", segment)
            return True
        except tarn.Error as e:
            log.warning("batch_replica_clear: %s: %s", key, e)
            return False


def _located(client: tarn.Client, keys: Sequence[Key]) -> Iterator[Optional[_There]]:
    """Where each of these is, None where there is no such key."""
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        reply = _Reply(client.command("MGETREPLICAS", len(some), *some))
        for _ in some:
            yield reply.object()
