#!/usr/bin/python3
"""A router's picture of the pool: which block is on which node, kept up to date by KV events
(docs/EVENTS.md). No GPU is needed.

    utils/examples/kv_router.py [--seconds 3] [--ring 256kb]
        a pool of its own, with clients that change it
    utils/examples/kv_router.py --url tarn://host:6479 [--vllm]
        a pool that runs; its kv-events-size is not 0

It takes a walk, follows the events, and takes a walk again when it fell behind or another master
leads. Every second it looks at everything the server has and compares. --vllm prints what changes
as vLLM's KV events, one JSON object a line. Exit status 1: the picture was wrong.

Python's own library only: a socket that speaks RESP2. Nothing here is shared between threads but
what a `Change` thread puts."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import threading
import time
import urllib.parse
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from local_pool import LocalPool


class ServerError(Exception):
    """An error reply; `code` is its first word."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class Connection:
    """Commands to a tarn-server or any other that speaks RESP2. OSError, EOFError: it is gone. One
    thread at a time."""

    def __init__(self, url: str) -> None:
        """`url`: tarn://[user:password@]host:port, passwords percent-encoded."""
        u = urllib.parse.urlsplit(url)
        if u.scheme not in ("tarn", "redis") or u.hostname is None:
            raise ValueError(f"tarn://[user:password@]host:port is needed, not {url!r}")
        try:
            self._socket = socket.create_connection((u.hostname, u.port or 6479))
        except OSError as e:
            raise ConnectionError(
                f"cannot connect to {u.hostname}:{u.port or 6479}: {e.strerror or e}"
            ) from e
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        if u.password is not None:
            self.ask(
                "AUTH",
                urllib.parse.unquote(u.username or "default"),
                urllib.parse.unquote(u.password),
            )

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, *words: Any) -> Any:
        """Sends one command; its reply: bytes, int, None, or a list of these. ServerError."""
        parts = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self._socket.sendall(
            b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
        )
        reply = self._reply()
        if isinstance(reply, ServerError):
            raise reply
        return reply

    def _reply(self) -> Any:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return ServerError(rest.decode(errors="replace"))
        n = int(rest)
        if kind == b":":
            return n
        if n < 0:
            return None
        if kind == b"*":
            return [self._reply() for _ in range(n)]
        data = self._file.read(n + 2)
        if len(data) != n + 2:
            raise EOFError("the server closed the connection")
        return data[:-2]


class Place(NamedTuple):
    """Where a copy is. `tier`: memory, ssd, file, or books (a small value, on the master itself). A
    segment that comes later under the same name has another `epoch`."""

    tier: str
    node: str
    segment: str
    epoch: int


class Event(NamedTuple):
    """What KVEVENTS READ tells. `key`: None where it concerns no key."""

    seq: int
    ms: int
    kind: str
    key: Optional[bytes]
    size: int
    places: Tuple[Place, ...]


def _places(reply: List[Any]) -> Tuple[Place, ...]:
    return tuple(Place(t.decode(), n.decode(), s.decode(), e) for t, n, s, e in reply)


class Picture:
    """Keys, sizes and places, as of one moment of the stream of events."""

    def __init__(self) -> None:
        self.objects: Dict[bytes, Tuple[int, Set[Place]]] = {}
        self.down: Set[Tuple[str, int]] = set()  # segments that cannot be read: (name, epoch)
        self.by_segment: Dict[Tuple[str, int], Set[bytes]] = {}

    def put(self, key: bytes, size: int, places: Tuple[Place, ...]) -> None:
        """That key, whatever was known of it."""
        self.remove(key)
        self.objects[key] = (size, set(places))
        for p in places:
            self.by_segment.setdefault((p.segment, p.epoch), set()).add(key)

    def remove(self, key: bytes) -> None:
        """Nothing if it is not there."""
        for p in self.objects.pop(key, (0, set()))[1]:
            self._forget(key, p)

    def _forget(self, key: bytes, p: Place) -> None:
        keys = self.by_segment[(p.segment, p.epoch)]
        keys.discard(key)
        if not keys:
            del self.by_segment[(p.segment, p.epoch)]

    def apply(self, e: Event) -> None:
        """The next event."""
        if e.kind == "put" and e.key is not None:
            self.put(e.key, e.size, e.places)
        elif e.kind in ("removed", "evicted", "expired", "lost") and e.key is not None:
            self.remove(e.key)
        elif e.kind == "flushed":
            self.objects.clear()
            self.by_segment.clear()
        elif e.kind in ("replica-added", "replica-gone"):
            self._replica(e)
        elif e.kind == "segment-down":
            self.down.update((p.segment, p.epoch) for p in e.places)
        elif e.kind in ("segment-up", "segment-gone"):
            self.down.difference_update((p.segment, p.epoch) for p in e.places)
        elif e.kind not in ("node-up", "node-down", "node-left"):
            raise ValueError(f"an event of kind {e.kind}: this router is older than the server")

    def _replica(self, e: Event) -> None:
        assert e.key is not None
        if e.key not in self.objects:
            return  # it goes later: the walk came after that
        for p in e.places:
            if e.kind == "replica-added":
                self.objects[e.key][1].add(p)
                self.by_segment.setdefault((p.segment, p.epoch), set()).add(e.key)
            else:
                self._drop(e.key, p.segment, p.epoch)

    def _drop(self, key: bytes, segment: str, epoch: int) -> None:
        """The key's copy there. A segment is told by name and epoch, wherever it was."""
        for p in [p for p in self.objects[key][1] if (p.segment, p.epoch) == (segment, epoch)]:
            self.objects[key][1].discard(p)
            self._forget(key, p)

    def where(self, key: bytes) -> List[Place]:
        """The places from which key can be read now."""
        there = self.objects.get(key, (0, set()))[1]
        return sorted(p for p in there if (p.segment, p.epoch) not in self.down)

    def differences(self, other: "Picture") -> List[str]:
        """Between this picture and another, in words; empty: none."""
        keys = self.objects.keys() | other.objects.keys()
        found = [
            f"{k!r}: {self.objects.get(k)} here, {other.objects.get(k)} there"
            for k in sorted(keys)
            if self.objects.get(k) != other.objects.get(k)
        ]
        if self.down != other.down:
            found.append(f"down: {self.down} here, {other.down} there")
        return found


class Router:
    """A picture that follows a pool. `walks`: how often it had to look at everything; `gaps`: how
    often because it fell behind."""

    def __init__(self, connection: Connection) -> None:
        self._c = connection
        self.picture = Picture()
        self.epoch, self.seq = b"", 0
        self.walks = self.gaps = self.events = 0
        self.walk()

    def _place_in_stream(self) -> Tuple[bytes, int, Set[Tuple[str, int]]]:
        """(epoch, last seq, segments that are down), of one moment or with what came after it told
        by events."""
        reply = self._c.ask("KVEVENTS", "INFO")
        info = dict(zip(reply[::2], reply[1::2]))
        return info[b"epoch"], info[b"last"], {(p.segment, p.epoch) for p in _places(info[b"down"])}

    def _look(self, picture: Picture) -> None:
        """Everything there is. Things may change meanwhile: the events since before it tell how."""
        cursor = b"0"
        while True:
            cursor, objects = self._c.ask("KVEVENTS", "WALK", cursor, "COUNT", 1000)
            for key, size, places in objects:
                picture.put(key, size, _places(places))
            if cursor == b"0":
                return

    def walk(self) -> None:
        """Begins anew: notes where the stream of events is, then looks."""
        self.picture = Picture()
        self.epoch, self.seq, self.picture.down = self._place_in_stream()
        self._look(self.picture)
        self.walks += 1

    def read(self, block_ms: Optional[int] = None) -> List[Event]:
        """The next events, at most 1000, not applied yet; none after block_ms (None: does not
        wait). ServerError: GAP or EPOCH."""
        wait = [] if block_ms is None else ["BLOCK", block_ms]
        self.seq, events = self._c.ask("KVEVENTS", "READ", self.epoch, self.seq, *wait)
        self.events += len(events)
        return [
            Event(seq, ms, kind.decode(), key, size, _places(p))
            for seq, ms, kind, key, size, p in events
        ]

    def follow(self, block_ms: Optional[int] = None) -> List[Event]:
        """Reads and applies. After a gap, or under another master: takes a walk, returns []."""
        try:
            events = self.read(block_ms)
        except ServerError as e:
            if e.code not in ("GAP", "EPOCH"):
                raise
            self.gaps += e.code == "GAP"
            self.walk()
            return []
        for event in events:
            self.apply(event)
        return events

    def apply(self, event: Event) -> None:
        """The next event, to the picture."""
        self.picture.apply(event)

    def check(self) -> List[str]:
        """Compares with a picture that is made anew, also while things change: both are brought to
        the same event. [] if a gap came in between."""
        walks, other = self.walks, Picture()
        other.down = self._place_in_stream()[2]
        self._look(other)
        end = self._place_in_stream()[
            1
        ]  # before it, other may have things of which it is told only now
        while True:
            for event in self.follow():
                other.apply(event)
            if self.walks != walks:
                return []
            if self.seq >= end:
                return self.picture.differences(other)


# --- as vLLM tells it

MEDIA = {"memory": "CPU", "books": "CPU", "ssd": "DISK", "file": "DISK"}


def block_of(key: bytes) -> Tuple[Optional[int], str]:
    """KV group and hash of a key such as model@world@rank@hash or model@world@rank@kv1@hash: the
    hash is what stands behind the last @, and the KV group, of models with several, before it.
    Others' keys have them elsewhere."""
    rest, _, name = key.rpartition(b"@")
    group = rest.rpartition(b"@")[2]
    number = int(group[2:]) if group.startswith(b"kv") and group[2:].isdigit() else None
    return number, name.decode(errors="replace")


Spot = Tuple[str, str]  # node and medium, which is all that vLLM's events tell of a place
Told = Tuple[str, Dict[str, Any]]  # node and event: in vLLM every worker has a stream of its own


def spots(picture: Picture, key: bytes) -> Set[Spot]:
    """Where key can be read."""
    return {(p.node, MEDIA[p.tier]) for p in picture.where(key)}


class Changes:
    """Blocks that came, or went, put together as vLLM's events have them: those of one place and
    one KV group."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._hashes: Dict[Tuple[Spot, int], List[str]] = {}

    def add(self, spot: Spot, key: bytes) -> None:
        group, name = block_of(key)
        self._hashes.setdefault((spot, -1 if group is None else group), []).append(name)

    def told(self) -> Iterator[Told]:
        for ((node, medium), group), hashes in sorted(self._hashes.items()):
            event: Dict[str, Any] = {"type": self._kind, "block_hashes": hashes, "medium": medium}
            yield node, event if group < 0 else {**event, "group_idx": group}


def all_as_vllm(picture: Picture) -> Iterator[Told]:
    """A whole picture: after a walk, what was told before may be wrong."""
    yield "*", {"type": "AllBlocksCleared"}
    there = Changes("BlockStored")
    for key in sorted(picture.objects):
        for spot in spots(picture, key):
            there.add(spot, key)
    yield from there.told()


def apply_as_vllm(picture: Picture, e: Event) -> List[Told]:
    """Applies an event; what it changes in vLLM's words. Token ids and parents are not known here:
    a router has them of the engines' own events."""
    if e.kind == "flushed":
        picture.apply(e)
        return [("*", {"type": "AllBlocksCleared"})]
    keys = (
        {k for p in e.places for k in picture.by_segment.get((p.segment, p.epoch), ())}
        if e.key is None
        else {e.key}
    )
    before = {k: spots(picture, k) for k in keys}
    picture.apply(e)
    gone, come = Changes("BlockRemoved"), Changes("BlockStored")
    for k in sorted(keys):
        after = spots(picture, k)
        for spot in before[k] - after:
            gone.add(spot, k)
        for spot in after - before[k]:
            come.add(spot, k)
    return [*gone.told(), *come.told()]


def print_as_vllm(told: Iterable[Told], ms: Optional[int] = None) -> None:
    """One line each. ms: Unix time; None: now."""
    for node, event in told:
        print(
            json.dumps(
                {"ts": time.time() if ms is None else ms / 1000, "node": node, "events": [event]}
            )
        )


class VllmRouter(Router):
    """A router that tells others, in vLLM's words, whatever changes its picture. `tell(told, ms)`
    is given what comes of one event."""

    def __init__(
        self,
        connection: Connection,
        tell: Callable[[Iterable[Told], Optional[int]], None] = print_as_vllm,
    ):
        self._tell = tell
        super().__init__(connection)

    def walk(self) -> None:
        super().walk()
        self._tell(all_as_vllm(self.picture), None)

    def apply(self, event: Event) -> None:
        self._tell(apply_as_vllm(self.picture, event), event.ms)


# --- a pool of its own, and those who change it


def change(url: str, number: int, stop: threading.Event) -> None:
    """Puts, reads and removes blocks at random until `stop`."""
    rng = random.Random(number)
    with contextlib.closing(Connection(url)) as c:
        while not stop.is_set():
            group = rng.choice(["", "kv0@", "kv1@"])
            key = f"toy@1@0@{group}{rng.randrange(70):04x}"
            what = rng.randrange(20)
            if what < 12:
                c.ask("SET", key, b"x" * rng.choice([20, 5000, 50000]))
            elif what < 15:
                c.ask("SET", key, b"y" * 100, "PX", rng.randrange(1, 50))
            elif what < 19:
                c.ask("DEL", key)
            elif rng.randrange(20) == 0:
                c.ask("FLUSHALL")


def follow(router: Router, seconds: float) -> int:
    """Follows and checks; how many checks went wrong. seconds 0: for ever."""
    wrong, until, next_check = (
        0,
        time.monotonic() + seconds,
        time.monotonic() + min(1.0, seconds or 1.0),
    )
    while not seconds or time.monotonic() < until:
        walks = router.walks
        router.follow(100)
        if router.walks != walks:
            print("fell behind, or another master leads: walked", file=sys.stderr)
        if time.monotonic() >= next_check:
            wrong += report(router)
            next_check = time.monotonic() + 1
    return wrong + report(router)


def report(router: Router) -> bool:
    """One line about the picture; whether it is wrong."""
    found = router.check()
    counts: Dict[str, int] = {}
    for key in router.picture.objects:
        for p in router.picture.where(key):
            counts[f"{p.node or 'master'}/{p.tier}"] = (
                counts.get(f"{p.node or 'master'}/{p.tier}", 0) + 1
            )
    where = ", ".join(f"{n} in {name}" for name, n in sorted(counts.items())) or "nothing"
    said = f"WRONG: {found[:3]}" if found else "the picture is right"
    print(
        f"seq {router.seq}: {len(router.picture.objects)} keys ({where}); {router.events} events, "
        f"{router.walks} walks, {router.gaps} gaps; {said}",
        file=sys.stderr,
    )
    return bool(found)


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--url", help="a pool that runs; without it: one of its own")
    p.add_argument(
        "--seconds",
        type=float,
        default=None,
        help="0: until it is stopped. 3 for a pool of its own, else 0",
    )
    p.add_argument("--ring", default="256kb", help="kv-events-size of a pool of its own")
    p.add_argument("--clients", type=int, default=3, help="that change a pool of its own")
    p.add_argument("--vllm", action="store_true", help="print what changes as vLLM's KV events")
    a = p.parse_args()
    kind = VllmRouter if a.vllm else Router
    if a.url:
        with contextlib.closing(Connection(a.url)) as c:
            return int(follow(kind(c), a.seconds or 0) > 0)
    with LocalPool("0", nodes=["a", "b"], node_size="16mb") as pool, contextlib.closing(
        Connection(pool.url)
    ) as c:
        c.ask("CONFIG", "SET", "kv-events-size", a.ring)
        stop = threading.Event()
        threads = [
            threading.Thread(target=change, args=(pool.url, i, stop)) for i in range(a.clients)
        ]
        for t in threads:
            t.start()
        try:
            wrong = follow(kind(c), 3 if a.seconds is None else a.seconds)
        finally:
            stop.set()
            for t in threads:
                t.join()
    return int(wrong > 0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.exit(main())
        except (OSError, EOFError, ValueError, ServerError) as e:
            sys.exit(f"kv_router.py: {e}")
