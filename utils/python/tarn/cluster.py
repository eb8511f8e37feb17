"""tarn-cluster: makes several masters one pool, and moves keys between them while they serve.

    tarn-cluster create a=10.0.0.1:6479,10.0.0.2:6479 b=10.0.0.3:6479
    tarn-cluster status 10.0.0.1:6479
    tarn-cluster add 10.0.0.1:6479 c=10.0.0.5:6479
    tarn-cluster rebalance 10.0.0.1:6479

Who has which slots is a map (docs/CLUSTER.md). A map is given to the shard that gets something
first, then to the one that gives it, then to the others. Whatever is killed in the middle is gone
on with by `fix`: the masters have the map, and with it what is on its way."""

from __future__ import annotations

import argparse
import ctypes as C
import os
import socket
import ssl
import sys
import threading
import time
from itertools import groupby
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ._lib import check, lib
from .batch import batch_of
from .client import Client
from .errors import Error
from .options import put_options

SLOTS = 16384
BATCH_KEYS, BATCH_BYTES = 512, 64 << 20
SILENT_S = 60.0
OTHERS = 15  # servers that cluster-shard takes
Address = Tuple[str, int]


class Refused(Exception):
    """A server's error, or what the tool cannot do."""


# --- servers


class Link:
    """A connection that speaks RESP2, one call at a time, from any thread."""

    def __init__(self, address: Address, args: argparse.Namespace) -> None:
        self.address = address
        self._lock = threading.Lock()
        try:
            s = socket.create_connection(address, timeout=SILENT_S)
        except OSError as e:
            raise Refused(f"{written(address)}: {e}") from e
        if args.tls:
            context = ssl.create_default_context(cafile=args.cacert)
            if args.cert:
                context.load_cert_chain(args.cert, args.key)
            s = context.wrap_socket(s, server_hostname=address[0])
        self._socket, self._file = s, s.makefile("rb")
        if args.password is not None:
            self.call("AUTH", *([args.user] if args.user else []), args.password)

    def call(self, *words: Any) -> Any:
        raw = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        parts = [b"*%d\r\n" % len(raw)] + [b"$%d\r\n%b\r\n" % (len(w), w) for w in raw]
        with self._lock:
            try:
                self._socket.sendall(b"".join(parts))
                reply = self._read()
            except OSError as e:
                raise Refused(f"{written(self.address)}: {e}") from e
        if isinstance(reply, Refused):
            raise reply
        return reply

    def _read(self) -> Any:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("it closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"-":
            return Refused(f"{written(self.address)}: {rest.decode(errors='replace')}")
        n = int(rest)
        if n < 0:
            return None
        if kind == b"*":
            return [self._read() for _ in range(n)]
        data = self._file.read(n + 2)
        if len(data) != n + 2:
            raise ConnectionError("it closed the connection")
        return data[:-2]

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def info(self, name: str) -> str:
        text: str = self.call("INFO", "everything").decode(errors="replace")
        for line in text.splitlines():
            if line.startswith(name + ":"):
                return line[len(name) + 1 :]
        raise Refused(f"{written(self.address)}: INFO has no {name}: it is no tarn-server")


def read_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536 or not host:
        raise Refused(f"{text}: a server is a host:port")
    return host.strip("[]"), int(port)


def written(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- the map


class Shard:
    def __init__(self, name: str, epoch: int, servers: List[Address]) -> None:
        self.name, self.epoch, self.servers = name, epoch, servers


def read_ranges(text: str) -> Iterator[int]:
    for part in text.split(",") if text != "-" else []:
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise Refused(f"{part}: slots are ranges as 0-5460,7000")
        if not int(first) <= int(last or first) < SLOTS:
            raise Refused(f"{part}: slots are numbers from 0 to {SLOTS - 1}, upwards")
        yield from range(int(first), int(last or first) + 1)


def write_ranges(slots: Sequence[int]) -> str:
    runs: List[List[int]] = []
    for slot in slots:
        if runs and runs[-1][1] == slot - 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in runs) or "-"


class Map:
    def __init__(self) -> None:
        self.epoch = 0
        self.shards: Dict[str, Shard] = {}
        self.owner: List[Optional[str]] = [None] * SLOTS
        self.target: List[Optional[str]] = [None] * SLOTS

    @classmethod
    def read(cls, text: str) -> "Map":
        m = cls()
        for line in text.splitlines()[1:]:
            word, *rest = line.split(" ")
            if word == "epoch":
                m.epoch = int(rest[0])
            elif word == "shard":
                name, epoch, servers, slots = rest
                addresses = [read_address(s) for s in servers.split(",") if s != "-"]
                m.shards[name] = Shard(name, int(epoch), addresses)
                for slot in read_ranges(slots):
                    m.owner[slot] = name
            elif word == "moving":
                for slot in read_ranges(rest[2]):
                    m.target[slot] = rest[1]
        return m

    def text(self) -> str:
        lines = ["tarn-slots 1", f"epoch {self.epoch}"]
        for name, s in sorted(self.shards.items()):
            servers = ",".join(map(written, s.servers)) or "-"
            lines.append(f"shard {name} {s.epoch} {servers} {write_ranges(self.owned(name))}")
        for a, b in self.moves():
            slots = [i for i in self.owned(a) if self.target[i] == b]
            lines.append(f"moving {a} {b} {write_ranges(slots)}")
        return "\n".join(lines) + "\n"

    def owned(self, name: str) -> List[int]:
        return [i for i in range(SLOTS) if self.owner[i] == name]

    def moves(self) -> List[Tuple[str, str]]:
        found = {(a, b) for a, b in zip(self.owner, self.target) if a is not None and b is not None}
        return sorted(found)


# --- the pool


class Pool:
    """All shards, by their map, each with a connection to the server that leads it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.map = Map()
        self._links: Dict[str, Link] = {}

    @classmethod
    def found(cls, args: argparse.Namespace) -> "Pool":
        """Of the masters' maps the latest. Who leads each shard is looked up."""
        pool, maps = cls(args), []
        first = Link(read_address(args.server), args)
        text = first.call("CLUSTER", "MAP")
        first.close()
        if text is None:
            raise Refused(f"{args.server} has no map of slots: tarn-cluster create")
        pool.map = Map.read(text.decode())
        for name in pool.map.shards:
            told = pool.leader(name).call("CLUSTER", "MAP")
            if told is not None:
                maps.append(Map.read(told.decode()))
        latest = max(maps + [pool.map], key=lambda m: m.epoch)
        for name in latest.shards:
            rows = [m.shards[name] for m in (pool.map, *maps) if name in m.shards]
            latest.shards[name] = max(rows, key=lambda s: s.epoch)
        pool.map = latest
        for name, shard in latest.shards.items():
            if name in pool._links and pool._links[name].address not in shard.servers[:1]:
                pool._links.pop(name).close()  # a former master, which does not know it yet
        return pool

    def leader(self, name: str) -> Link:
        """Its server that leads goes first from now on."""
        if name in self._links:
            return self._links[name]
        shard, why = self.map.shards[name], "no server is known"
        for address in shard.servers:
            try:
                link = Link(address, self.args)
                if link.call("ROLE")[0] == b"master":
                    if shard.epoch == 0 or shard.servers[0] != address:
                        shard.epoch = max(shard.epoch + 1, int(link.info("master_epoch")))
                    shard.servers.remove(address)
                    shard.servers.insert(0, address)
                    self._links[name] = link
                    return link
                why = f"{written(address)} is a replica"
                link.close()
            except Refused as e:
                why = str(e)
        raise Refused(f"shard {name} has no master that answers: {why}")

    def spread(self, *first: str) -> None:
        self.map.epoch += 1
        rest = [name for name in sorted(self.map.shards) if name not in first]
        for name in (*first, *rest):
            self.leader(name).call("CLUSTER", "SETMAP", name, self.map.text())

    def remember(self) -> None:
        """Each server knows whom to ask for the map when it starts (cluster-shard)."""
        for name, shard in self.map.shards.items():
            rows = [s.servers for n, s in sorted(self.map.shards.items()) if n != name]
            others = [r[0] for r in rows if r] + [a for r in rows for a in r[1:]]
            for address in shard.servers:
                words = [name, *map(written, others[:OTHERS])] if others else []
                self._remember(address, " ".join(words))

    def _remember(self, address: Address, value: str) -> None:
        try:
            link = Link(address, self.args)
            link.call("CONFIG", "SET", "cluster-shard", value)
        except Refused as e:
            print(f"{e}: cluster-shard is not set there; `fix` does it", file=sys.stderr)
            return
        try:
            link.call("CONFIG", "REWRITE")
        except Refused as e:
            if "without a config file" not in str(e):
                print(f"{e}: cluster-shard is forgotten at its next start", file=sys.stderr)
        link.close()

    def forget(self, shard: Shard) -> None:
        for address in shard.servers:
            self._remember(address, "")

    def client(self) -> Client:
        a = self.args
        url = ",".join(written(s.servers[0]) for s in self.map.shards.values() if s.servers)
        options = {"user": a.user, "password": a.password, "tls_ca_file": a.cacert}
        options.update(tls_cert_file=a.cert, tls_key_file=a.key)
        return Client(
            ("tarns://" if a.tls else "tarn://") + url + "/",
            **{k: v for k, v in options.items() if v is not None},
        )


# --- moving


class Row:
    """A key of a slot that moves, as CLUSTER SCANSLOTS tells it."""

    def __init__(self, row: List[Any]) -> None:
        self.key, self.version, self.size = row[0], row[1], row[2]
        self.pin = row[3].decode().lower()
        self.pin_ms, self.expire_ms, self.group, self.boundary, self.depth = row[4:9]

    def kind(self) -> Tuple[Any, ...]:
        """Those that are alike share a batch."""
        return self.pin, self.pin_ms, self.expire_ms, self.boundary


class _Item(C.Structure):
    _fields_ = [("key", C.c_void_p), ("key_len", C.c_size_t)]


_WRITTEN = C.CFUNCTYPE(
    None, C.c_void_p, C.POINTER(C.POINTER(_Item)), C.c_size_t, C.POINTER(C.c_int)
)


class Mover:
    def __init__(self, pool: Pool, source: str, target: str) -> None:
        self._source = pool.leader(source)
        self._client = pool.client()
        self._name = f"{source} -> {target}"
        self._quiet = pool.args.quiet
        self.keys = self.bytes = 0
        self._began = self._said = time.monotonic()

    def run(self) -> None:
        """Until a walk over the source finds nothing more."""
        still = 0
        while True:
            before, seen = self.keys, self._walk()
            if seen == 0:
                break
            still = still + 1 if self.keys == before else 0
            if still > 0:
                time.sleep(min(still, 10) * 0.1)
            if still == 100:
                raise Refused(
                    f"{seen} keys cannot be moved: their nodes are away, or there is "
                    "no room at the target. `fix` goes on"
                )
        self._progress(True)
        self._client.close()

    def _walk(self) -> int:
        cursor, seen = 0, 0
        while True:
            cursor, found = self._source.call("CLUSTER", "SCANSLOTS", cursor, "COUNT", BATCH_KEYS)
            rows = sorted(map(Row, found), key=lambda r: (r.kind(), r.depth, r.key))
            seen += len(rows)
            for _, alike in groupby(rows, Row.kind):
                for batch in batches(list(alike)):
                    self._move(batch)
            cursor = int(cursor)
            if cursor == 0:
                return seen

    def _move(self, rows: List[Row]) -> None:
        values = self._client.get_many([r.key for r in rows])
        there = [(r, v) for r, v in zip(rows, values) if v is not None]
        if not there:
            return
        versions = {r.key: r.version for r, _ in there}
        gone: Dict[bytes, bool] = {}

        def written_(_arg: Any, items: Any, n: int, keep: Any) -> None:
            keys = [C.string_at(items[i][0].key, items[i][0].key_len) for i in range(n)]
            ask = [k for k in keys if not gone.get(k)]
            words: List[Any] = [w for k in ask for w in (k, versions[k])]
            try:
                answers = (
                    self._source.call("CLUSTER", "RELINQUISH", len(ask), *words) if ask else []
                )
            except Exception:  # nobody knows what became of them: a miss at worst
                answers = [0] * len(ask)
            gone.update((k, answer == 1) for k, answer in zip(ask, answers))
            for i, k in enumerate(keys):
                keep[i] = gone[k]

        callback = _WRITTEN(written_)
        o = self._options([r for r, _ in there])
        if o is None:
            return
        o.moving, o.written = 1, C.cast(callback, C.c_void_p)
        depths = (C.c_uint32 * len(there))(*(r.depth for r, _ in there))
        o.depths = C.cast(depths, C.c_void_p)
        batch = batch_of([(r.key, v) for r, v in there], False)
        # pylint: disable-next=protected-access
        check(lib.tarn_put_many(self._client._use(), batch.address, batch.n, C.byref(o), None))
        for (r, _), status in zip(there, batch.statuses()):
            if status == 0:
                self.keys += 1
                self.bytes += r.size
        self._progress(False)

    @staticmethod
    def _options(rows: List[Row]) -> Optional[Any]:
        first = rows[0]
        words: Dict[str, Any] = {"replace": True}
        if first.expire_ms:
            words["ttl_ms"] = first.expire_ms - int(time.time() * 1000)
            if words["ttl_ms"] < 1:
                return None  # it goes by itself
        if first.pin != "none":
            words["pin"] = first.pin
        if first.pin == "soft":
            words["pin_ms"] = first.pin_ms
        if any(r.group for r in rows):
            words["boundary" if first.boundary else "group"] = [r.group or None for r in rows]
        # pylint: disable-next=protected-access
        return put_options(len(rows), **words)._obj

    def _progress(self, over: bool) -> None:
        now = time.monotonic()
        if self._quiet or (not over and now - self._said < 1):
            return
        self._said = now
        rate = self.bytes / max(now - self._began, 0.001)
        print(
            f"{self._name}: {self.keys} keys, {self.bytes >> 20} MiB, " f"{rate / 1e6:.1f} MB/s",
            file=sys.stderr,
        )


def batches(rows: List[Row]) -> Iterator[List[Row]]:
    batch: List[Row] = []
    size = 0
    for r in rows:
        if batch and (size + r.size > BATCH_BYTES or len(batch) == BATCH_KEYS):
            yield batch
            batch, size = [], 0
        batch.append(r)
        size += r.size
    if batch:
        yield batch


def move(pool: Pool, source: str, target: str, slots: Sequence[int]) -> None:
    for slot in slots:
        if pool.map.owner[slot] != source or pool.map.target[slot] not in (None, target):
            raise Refused(f"slot {slot} is not {source}'s, or is on its way elsewhere")
    if not slots:
        return
    for slot in slots:
        pool.map.target[slot] = target
    pool.spread(target, source)
    finish(pool, source, target)


def finish(pool: Pool, source: str, target: str) -> None:
    """What the map says is on its way arrives."""
    Mover(pool, source, target).run()
    for slot in pool.map.owned(source):
        if pool.map.target[slot] == target:
            pool.map.owner[slot], pool.map.target[slot] = target, None
    pool.spread(target, source)


def shares(pool: Pool, names: Sequence[str]) -> None:
    """Moves slots until each of these has as many, and the others none."""
    names = sorted(names)
    wanted = {n: SLOTS // len(names) + (i < SLOTS % len(names)) for i, n in enumerate(names)}
    has = {n: len(pool.map.owned(n)) for n in pool.map.shards}
    for source in sorted(pool.map.shards):
        for target in names:
            n = min(has[source] - wanted.get(source, 0), wanted[target] - has[target])
            if n <= 0 or source == target:
                continue
            move(pool, source, target, pool.map.owned(source)[-n:])
            has[source] -= n
            has[target] += n


# --- commands


def read_shards(words: Sequence[str]) -> Dict[str, Shard]:
    found = {}
    for word in words:
        name, equals, servers = word.partition("=")
        if not equals:
            raise Refused(f"{word}: a shard is name=host:port[,host:port ...]")
        found[name] = Shard(name, 0, [read_address(s) for s in servers.split(",")])
    return found


def has_map(link: Link) -> bool:
    try:
        return link.call("CLUSTER", "MAP") is not None
    except Refused as e:
        if "CLUSTERDOWN" in str(e):  # it awaits one
            return False
        raise


def create(args: argparse.Namespace) -> None:
    pool = Pool(args)
    pool.map.shards = read_shards(args.shard)
    names = sorted(pool.map.shards)
    full = [n for n in names if int(pool.leader(n).call("DBSIZE")) > 0]
    for n in names:
        if has_map(pool.leader(n)):
            raise Refused(f"shard {n} has a map of slots already: CLUSTER RESET it first")
    if len(full) > 1:
        raise Refused(f"{', '.join(full)} have keys: only one may, which begins with all slots")
    for slot in range(SLOTS):
        pool.map.owner[slot] = full[0] if full else names[slot * len(names) // SLOTS]
    pool.spread()
    pool.remember()
    if full:
        print(f"shard {full[0]} has all slots, as it has keys: tarn-cluster rebalance")


def status(args: argparse.Namespace) -> None:
    pool = Pool.found(args)
    print(f"epoch {pool.map.epoch}")
    for name, shard in sorted(pool.map.shards.items()):
        keys = pool.leader(name).call("DBSIZE")
        servers = ",".join(map(written, shard.servers))
        print(f"{name} {servers} slots={len(pool.map.owned(name))} keys={keys}")
    for a, b in pool.map.moves():
        n = sum(1 for i in pool.map.owned(a) if pool.map.target[i] == b)
        print(f"moving {a} {b} slots={n}")


def add(args: argparse.Namespace) -> None:
    pool = Pool.found(args)
    for name, shard in read_shards(args.shard).items():
        if name in pool.map.shards:
            raise Refused(f"shard {name} is there already")
        pool.map.shards[name] = shard
        if pool.leader(name).call("DBSIZE") > 0:
            raise Refused(f"shard {name} has keys: FLUSHALL first")
    pool.spread()
    pool.remember()


def settle(pool: Pool) -> None:
    for a, b in pool.map.moves():
        finish(pool, a, b)


def move_some(args: argparse.Namespace) -> None:
    pool = Pool.found(args)
    for name in (args.source, args.target):
        if name not in pool.map.shards:
            raise Refused(f"there is no shard {name}")
    owned = pool.map.owned(args.source)
    if args.slots.isdigit():
        slots = owned[len(owned) - min(int(args.slots), len(owned)) :]
    else:
        slots = list(read_ranges(args.slots))
    move(pool, args.source, args.target, slots)


def rebalance(args: argparse.Namespace) -> None:
    pool = Pool.found(args)
    settle(pool)
    shares(pool, list(pool.map.shards))


def remove(args: argparse.Namespace) -> None:
    pool = Pool.found(args)
    if args.name not in pool.map.shards or len(pool.map.shards) == 1:
        raise Refused(f"there is no shard {args.name}, or it is the only one")
    settle(pool)
    shares(pool, [n for n in pool.map.shards if n != args.name])
    leaving = pool.leader(args.name)
    gone = pool.map.shards.pop(args.name)
    pool.spread()
    pool.remember()
    leaving.call("CLUSTER", "RESET")
    pool.forget(gone)


def fix(args: argparse.Namespace) -> None:
    """All get the latest map, with who leads now; what was on its way arrives."""
    pool = Pool.found(args)
    pool.spread(*dict.fromkeys(b for _, b in pool.map.moves()))
    settle(pool)
    pool.remember()


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="tarn-cluster", description=__doc__.split("\n", 1)[0])
    p.add_argument("--user", help="of all servers")
    password = os.environ.get("TARN_PASSWORD")
    p.add_argument("--password", default=password, help="of all servers, else TARN_PASSWORD's")
    p.add_argument("--tls", action="store_true", help="servers are reached by TLS")
    p.add_argument("--cacert", help="file of certificates that servers' are signed with")
    p.add_argument("--cert", help="file of our certificate")
    p.add_argument("--key", help="file of its key")
    p.add_argument("--quiet", action="store_true", help="says nothing of progress")
    sub = p.add_subparsers(dest="command", required=True)

    def command(name: str, run: Any, text: str, server: bool = True) -> argparse.ArgumentParser:
        c = sub.add_parser(name, help=text, description=text)
        c.set_defaults(run=run)
        if server:
            c.add_argument("server", help="host:port of any of the pool")
        return c

    shard = "name=host:port[,host:port ...]"
    c = command("create", create, "makes masters one pool, with equal shares", server=False)
    c.add_argument("shard", nargs="+", help=shard)
    command("status", status, "tells shards, slots, keys")
    c = command("add", add, "adds shards, without slots at first")
    c.add_argument("shard", nargs="+", help=shard)
    c = command("move", move_some, "moves slots, with their keys")
    c.add_argument("--from", dest="source", required=True)
    c.add_argument("--to", dest="target", required=True)
    c.add_argument("--slots", required=True, help="how many, or which: 0-99,200")
    command("rebalance", rebalance, "moves slots until all shards have as many")
    c = command("remove", remove, "moves all of a shard to the others, and takes it out")
    c.add_argument("name")
    command("fix", fix, "goes on with what was interrupted; tells all who leads now")
    return p


def main() -> int:
    args = parser().parse_args()
    try:
        args.run(args)
    except (Refused, Error) as e:
        print(f"tarn-cluster: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
