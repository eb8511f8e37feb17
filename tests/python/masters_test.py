"""A client of several masters: every call over their slots, masters that are away or replaced, maps
that change, slots that move."""

import argparse
import asyncio
import contextlib
import os
import random
import socket
import threading
import time
import unittest

from harness import Server, pattern, together, wait_until

import tarn
from tarn import KVGroup, Status
from tarn.chain import block_hashes
from tarn.cluster import Link
from tarn.keys import KeySpace, hash_text

SLOTS = 16384
MOVING = "0-2999"  # slots that tests move


def ask(port, *words):
    """A command to one server, and the first line of its answer."""
    request = b"*%d\r\n" % len(words)
    for word in (w if isinstance(w, bytes) else str(w).encode() for w in words):
        request += b"$%d\r\n%s\r\n" % (len(word), word)
    with socket.create_connection(("127.0.0.1", port), 60) as s:
        s.sendall(request)
        answer = s.makefile("rb").readline().decode().strip()
    if answer.startswith("-"):
        raise AssertionError(f"{words[:2]}: {answer}")
    return answer


def link_to(port):
    return Link(("127.0.0.1", port), argparse.Namespace(tls=False, password=None))


def epoch(port):
    """The master epoch of a server."""
    with contextlib.closing(link_to(port)) as link:
        return int(link.info("master_epoch"))


def slot_of(key):
    """CRC16 of a key without a hash tag, bit by bit."""
    crc = 0
    for byte in key:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ (0x1021 if crc & 0x8000 else 0)) & 0xFFFF
    return crc % SLOTS


def switches():
    """How often each thread that runs parts of calls has slept."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            with open(f"/proc/self/task/{task}/status", encoding="utf-8") as f:
                facts = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
            if facts["Name"] == "tarn-shards":
                found[task] = facts["voluntary_ctxt_switches"]
    return found


class Masters:
    """n servers, "a", "b", ... with equal shares of the slots."""

    def __init__(self, n, pool="32mb"):
        self.servers = [Server(pool) for _ in range(n)]
        self.rows = [[s.port] for s in self.servers]
        self.epoch = 0
        share = SLOTS // n
        firsts = [i * share for i in range(n)] + [SLOTS]
        self.slots = [f"{a}-{b - 1}" for a, b in zip(firsts, firsts[1:])]
        self.moving = ""
        self.tell()

    def text(self):
        rows = [
            f"shard {self.name(i)} {self.epoch if len(row) > 1 else 0} "
            f"{','.join(f'127.0.0.1:{port}' for port in row)} {slots}"
            for i, (row, slots) in enumerate(zip(self.rows, self.slots))
        ]
        lines = ["tarn-slots 1", f"epoch {self.epoch}", *rows, self.moving]
        return "".join(line + "\n" for line in lines if line)

    @staticmethod
    def name(i):
        return "abcdefgh"[i]

    def tell(self, order=None):
        """All of them the map as it is now, the target of a move first."""
        self.epoch += 1
        for i in order or range(len(self.servers)):
            self.tell_one(i)

    def tell_one(self, i):
        ask(self.servers[i].port, "CLUSTER", "SETMAP", self.name(i), self.text())

    def move(self, done=False):
        """The first slots of "a" are on their way to "b"; done: they are there."""
        end = SLOTS // len(self.servers) - 1
        self.moving = "" if done else f"moving a b {MOVING}"
        if done:
            self.slots[0], self.slots[1] = f"3000-{end}", f"{MOVING},{self.slots[1]}"
        self.tell([1, 0, *range(2, len(self.servers))])

    def stop(self):
        for server in self.servers:
            server.stop()

    def url(self, i=0):
        return self.servers[i].url

    def sum(self, figure):
        """A figure of INFO, of all masters."""
        total = 0
        for server in self.servers:
            with contextlib.closing(link_to(server.port)) as link:
                total += int(link.info(figure))
        return total

    def keys_at(self, i):
        """How many it has."""
        return int(ask(self.servers[i].port, "DBSIZE")[1:])


class MastersTest(unittest.TestCase):
    masters = 3

    def setUp(self):
        self.pool = Masters(self.masters)
        self.addCleanup(self.pool.stop)

    def client(self, query="", i=0, **options):
        client = tarn.Client(self.pool.url(i) + query, **options)
        self.addCleanup(client.close)
        return client

    def put(self, client, n, prefix="k", size=None):
        """n values that tell their keys; as a dict."""
        r = random.Random(n)
        values = {}
        for i in range(n):
            key = f"{prefix}{i}".encode()
            values[key] = pattern(r.choice([0, 9, 64, 65, 5000]) if size is None else size, i)
        self.assertEqual(client.put_many(list(values.items())), [0] * n)
        return values

    def share(self, keys, i):
        """Those keys whose slots "a", "b", ... has at first."""
        share = SLOTS // self.masters
        return [k for k in keys if min(slot_of(k) // share, self.masters - 1) == i]


class Calls(MastersTest):
    """Each call, one key and many."""

    def test_batches(self):
        client = self.client()
        values = self.put(client, 2000)
        keys = list(values)
        for i in range(self.masters):
            self.assertEqual(self.pool.keys_at(i), len(self.share(keys, i)))
        random.Random(1).shuffle(keys)
        self.assertEqual(client.get_many(keys), [values[k] for k in keys])
        self.assertEqual(client.put_many([(k, b"x") for k in keys]), [Status.EEXISTS] * 2000)
        asked = [k if i % 3 else b"no" + k for i, k in enumerate(keys)]
        self.assertEqual(client.exists_many(asked), [bool(i % 3) for i in range(2000)])
        self.assertEqual(client.get_many(asked), [values.get(k) for k in asked])
        self.assertEqual(client.remove_many(asked), sum(1 for i in range(2000) if i % 3))
        self.assertEqual(client.exists_many(keys), [not i % 3 for i in range(2000)])

    def test_one_key(self):
        client = self.client()
        for i in range(60):
            key, value = b"one%d" % i, pattern(100 * i, i)
            self.assertTrue(client.put(key, value))
            self.assertFalse(client.put(key, b"other"))
            self.assertEqual(client.get(key), value)
            self.assertEqual(client.get_range(key, 0, 5) if i else b"", value[:5])
            self.assertTrue(client.exists(key))
            self.assertTrue(client.set_pin(key, "soft", 1000))
            self.assertEqual(client.size(key), len(value))
            self.assertTrue(client.remove(key))
            self.assertFalse(client.remove(key))
            self.assertIsNone(client.get(key))
            self.assertFalse(client.set_pin(key, "hard"))

    def test_prefixes(self):
        client = self.client()
        keys = list(self.put(client, 500, size=20))
        for gap in (0, 1, 2, 77, 499, 500):
            for lease_ms in (0, 500):
                asked = keys[:gap] + [b"gap"] + keys[gap:]
                self.assertEqual(client.prefix_length(asked, lease_ms=lease_ms), gap)
        self.assertEqual(client.prefix_length([]), 0)

    def test_leases_behind_the_prefix_end(self):
        for server in self.pool.servers:
            ask(server.port, "CONFIG", "SET", "max-lease", 600000)
        client = self.client()
        keys = list(self.put(client, 90, size=5000))
        for gap in (30, 45):
            asked = keys[:gap] + [b"gap"] + keys[gap:]
            self.assertEqual(client.prefix_length(asked, lease_ms=600000), gap)
            wait_until(lambda: self.pool.sum("leases") == gap)

    def test_waiting(self):
        client = self.client()
        keys = [b"later%d" % i for i in range(30)]

        def come():
            for key in keys:
                client.put(key, key)

        thread = threading.Timer(0.3, come)
        thread.start()
        self.assertEqual(client.get_many(keys, wait_ms=20000), keys)
        thread.join()
        self.assertTrue(client.wait(keys[0], 1000))
        self.assertFalse(client.wait(b"never", 50))
        self.assertEqual(client.prefix_length(keys + [b"never"], wait_ms=50), 30)

    def test_in_place(self):
        client = self.client()
        for i in range(30):
            key, value = b"place%d" % i, pattern(3000, i)
            with client.writer(key, 3000) as writer:
                self.assertTrue(writer.in_place)
                writer.pieces[0][:] = value
            with client.view(key) as view:
                self.assertEqual(b"".join(view.pieces), value)
                view.renew(2000)
                view.check()
        self.assertEqual(client.stats()["views_open"], 0)
        at = [self.pool.keys_at(i) for i in range(self.masters)]
        self.assertEqual((sum(at), min(at) > 0), (30, True))

    def test_queue(self):
        client = self.client()

        async def work():
            async with tarn.AsyncClient(self.pool.url()) as pool:
                values = {f"q{i}": pattern(4000, i) for i in range(100)}
                await asyncio.gather(*(pool.put(k, v) for k, v in values.items()))
                got = await asyncio.gather(*(pool.get(k) for k in values))
                self.assertEqual(got, list(values.values()))

        asyncio.run(work())
        self.assertTrue(client.exists("q99"))

    def test_prefetch_command_figures(self):
        client = self.client()
        keys = list(self.put(client, 100, size=100))
        self.assertEqual(client.prefetch(keys + [b"no"]), (0, 100, 1, 0))
        self.assertEqual(sum(client.prefetch(keys, segment="0")), 100)
        with self.assertRaises(tarn.NotFound):
            client.prefetch(keys, segment="nowhere")
        for key in keys[:20]:
            client.command("SET", key + b"c", key)
            self.assertEqual(client.command("GET", key + b"c").encode(), key)
        self.assertEqual(client.command("PING"), "PONG")
        client.ping()
        stats = client.stats()
        self.assertEqual((stats["puts"], stats["put_stored"]), (100, 100))
        self.assertEqual(client.histogram("put")["count"], 1)
        self.assertGreater(client.histogram("request")["count"], 3)
        self.assertIn("tarn_client_puts_total 100\n", client.figures())

    def test_groups_of_each_item(self):
        client = self.client()
        pairs = [(b"g%d" % i, b"v" * 100) for i in range(90)]
        self.assertEqual(
            client.put_many(pairs, boundary=[b"b%d" % (i // 3) for i in range(90)]), [0] * 90
        )
        self.assertEqual(client.get_many([k for k, _ in pairs]), [v for _, v in pairs])

    def test_kv_groups(self):
        """What one master that has all says, whatever is there."""
        client = self.client()
        r = random.Random(3)
        with Server("32mb") as alone, tarn.Client(alone.url) as one:
            for t in range(40):
                hashes = [r.randbytes(8) for _ in range(r.randrange(1, 40))]
                groups = [
                    KVGroup(f"f{t}:", block=16),
                    KVGroup(f"w{t}:", "window", block=16, window=40),
                    KVGroup(f"s{t}:", "state", block=64, unit=16),
                ][: r.randrange(1, 4)]
                share = r.choice([0.8, 0.97, 1])
                there = [
                    g.name + hash_text(h.hex())
                    for g in groups
                    for h in hashes
                    if r.random() < share
                ]
                pairs = [(key, key.encode()) for key in there]
                for each in (client, one):
                    self.assertEqual(set(each.put_many(pairs)) | {0}, {0})
                for lease_ms in (0, 500):
                    asked = dict(unit=16, align=16, lease_ms=lease_ms)
                    expected = one.kv_prefix(hashes, groups, **asked)
                    self.assertEqual(client.kv_prefix(hashes, groups, **asked), expected)
                self.read_parts(client, hashes, groups, expected)

    def read_parts(self, client, hashes, groups, expected):
        memory = bytearray(64 * 200)

        def place(boundary):
            self.assertEqual(boundary, expected)
            n = sum(p.blocks + (p.tail != 0) for p in boundary.parts)
            view = memoryview(memory)
            return [view[i * 64 : i * 64 + 64] for i in range(n)]

        got, results = client.kv_get(hashes, groups, place, unit=16, align=16)
        self.assertEqual(got, expected)
        keys = [key for g, p in zip(groups, expected.parts) for key in g.keys(p, hashes, 16)]
        for i, key in enumerate(keys):
            self.assertEqual(bytes(memory[i * 64 : i * 64 + results[i]]).decode(), key)

    def test_small_batches_need_no_threads(self):
        """The caller's own asks all masters, moves the bytes, and ends the puts."""
        client, undisturbed = self.client(), {"put": 0, "get": 0}
        self.put(client, 60, "warm", 2000)  # connects, by threads
        self.assertEqual(switches() == {}, self.masters == 1)
        for n in range(50):
            values = [(b"%d:%d" % (n, i), pattern(2000, i)) for i in range(60)]
            before = switches()
            self.assertEqual(client.put_many(values), [0] * 60)
            undisturbed["put"] += switches() == before
            before = switches()
            self.assertEqual(client.get_many([k for k, _ in values]), [v for _, v in values])
            undisturbed["get"] += switches() == before
        self.assertGreater(min(undisturbed.values()), 0, undisturbed)

    def test_many_threads(self):
        client = self.client("?max_lanes=2")
        values = self.put(client, 300)
        keys = list(values)

        def work(seed):
            r = random.Random(seed)
            for _ in range(30):
                some = r.sample(keys, r.randrange(1, 100))
                self.assertEqual(client.get_many(some), [values[k] for k in some])
                self.assertEqual(client.exists_many(some), [True] * len(some))

        together(work, range(6))

    def test_from_any_of_several(self):
        urls = ",".join(f"127.0.0.1:{s.port}" for s in self.pool.servers)
        with tarn.Client(f"tarn://{urls}/") as client:
            values = self.put(client, 100)
        if self.masters > 1:
            self.pool.servers[0].kill()
            with tarn.Client(f"tarn://{urls}/?timeout_ms=2000&failover_ms=200") as client:
                here = [k for k in values if k not in self.share(values, 0)]
                self.assertEqual(client.get_many(here), [values[k] for k in here])


class Doors:
    """In front of each master; none opens to a client before one stands before all of them.
    Masters, which tell each other who leads, pass."""

    def __init__(self, ports):
        self.sockets = []
        self.knocked, self.knock = set(), threading.Condition()
        self.doors = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
        for door, port in zip(self.doors, ports):
            threading.Thread(target=self.guard, args=(door, port), daemon=True).start()

    def guard(self, door, port):
        with contextlib.suppress(OSError):  # closed
            while True:
                guest = door.accept()[0]
                self.sockets.append(guest)
                threading.Thread(target=self.let_in, args=(guest, port), daemon=True).start()

    def let_in(self, guest, port):
        with contextlib.suppress(OSError):
            if b"CLIENT" in guest.recv(14, socket.MSG_PEEK | socket.MSG_WAITALL):
                with self.knock:
                    self.knocked.add(port)
                    self.knock.notify_all()
                    self.knock.wait_for(lambda: len(self.knocked) == len(self.doors))
            server = socket.create_connection(("127.0.0.1", port))
            self.sockets.append(server)
            for a, b in ((guest, server), (server, guest)):
                threading.Thread(target=self.pass_on, args=(a, b), daemon=True).start()

    @staticmethod
    def pass_on(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)

    def ports(self):
        return [door.getsockname()[1] for door in self.doors]

    def close(self):
        for s in self.doors + self.sockets:
            s.close()


class FirstCall(MastersTest):
    masters = 4

    def test_connects_to_all_at_once(self):
        values = self.put(self.client(), 40, size=20)
        doors = Doors([server.port for server in self.pool.servers])
        self.addCleanup(doors.close)
        self.pool.rows = [[port] for port in doors.ports()]
        self.pool.tell()
        client = self.client()
        self.assertEqual(client.exists_many(values), [True] * 40)


class CallsToOne(Calls):
    masters = 1


class CallsToEight(Calls):
    masters = 8


class Away(MastersTest):
    """A master that is away costs its keys, and nothing else."""

    quick = "?timeout_ms=1500&failover_ms=300&connect_timeout_ms=500"

    def lost(self, client, values):
        keys = list(values)
        gone = set(self.share(keys, 1))
        memory = [bytearray(8000) for _ in keys]
        results = client.get_many_into(list(zip(keys, memory)))
        for key, got, into in zip(keys, results, memory):
            if key in gone:
                self.assertIn(got, (Status.ETIMEOUT, Status.EIO, Status.ECLOSED))
            else:
                self.assertEqual(bytes(into[:got]), values[key])
        self.assertEqual(client.exists_many(keys), [k not in gone for k in keys])
        first = min(i for i, k in enumerate(keys) if k in gone)
        self.assertEqual(client.prefix_length(keys), first)
        stored = client.put_many([(b"new" + k, b"v") for k in keys])
        for key, status in zip(keys, stored):
            self.assertEqual(status == 0, self.share([b"new" + key], 1) == [])
        with self.assertRaises(tarn.Error):
            client.remove_many([next(iter(gone))])

    def puts(self, client, values):
        try:
            return client.put_many(list(values.items())) == [0] * len(values)
        except (tarn.ConnectionFailed, tarn.TimedOut):
            return False

    def test_killed_and_back(self):
        client = self.client(self.quick)
        values = self.put(client, 60, size=3000)
        self.pool.servers[1].kill()
        self.lost(client, values)
        self.pool.servers[1].start()
        self.pool.tell_one(1)
        gone = self.share(values, 1)
        wait_until(lambda: self.puts(client, {k: values[k] for k in gone}))
        self.assertEqual(client.get_many(values), list(values.values()))

    def test_silent(self):
        client = self.client(self.quick)
        values = self.put(client, 60, size=3000)
        self.pool.servers[1].pause()
        try:
            self.lost(client, values)
            # Told at once meanwhile, but for one call now and then.
            here = self.share(values, 0) + self.share(values, 2)
            began = time.monotonic()
            for _ in range(20):
                client.exists_many(values)
            self.assertEqual(client.get_many(here), [values[k] for k in here])
            self.assertLess(time.monotonic() - began, 20 * 1.5)
        finally:
            self.pool.servers[1].resume()
        wait_until(lambda: client.exists_many(values) == [True] * len(values))

    def test_its_replica_takes_over(self):
        """The map names both servers of the shard; who leads the client finds out."""
        with Server("0", "--repl-ping-replica-period", "1") as replica:
            self.pool.rows[1].append(replica.port)
            self.pool.tell()
            ask(replica.port, "REPLICAOF", "127.0.0.1", self.pool.servers[1].port)
            client = self.client("?timeout_ms=20000")
            keys = [b"book%d" % i for i in range(90)]
            self.assertEqual(client.put_many([(k, k) for k in keys]), [0] * 90)
            wait_until(lambda: ask(replica.port, "DBSIZE") == f":{self.pool.keys_at(1)}")
            self.pool.servers[1].kill()
            ask(replica.port, "REPLICAOF", "NO", "ONE")
            self.assertEqual(client.get_many(keys), keys)
            self.assertEqual(client.put_many([(b"2" + k, k) for k in keys]), [0] * 90)

    def test_the_old_master_returns_with_nothing(self):
        """It leads, as nobody has told it otherwise: its share is asked for where the map is."""
        with Server("0", "--repl-ping-replica-period", "1") as replica:
            self.pool.rows[1].append(replica.port)
            self.pool.tell()
            old = self.pool.servers[1]
            ask(replica.port, "REPLICAOF", "127.0.0.1", old.port)
            client = self.client("?timeout_ms=20000")
            keys = [b"book%d" % i for i in range(90)]
            self.assertEqual(client.put_many([(k, k) for k in keys]), [0] * 90)
            wait_until(lambda: ask(replica.port, "DBSIZE") == f":{self.pool.keys_at(1)}")
            old.kill()
            ask(replica.port, "REPLICAOF", "NO", "ONE")
            self.assertEqual(client.get_many(keys), keys)

            def starts_later():  # so late that its master epoch is above that of who was promoted
                old.start()
                later = epoch(old.port) > epoch(replica.port)
                if not later:
                    old.kill()
                return later

            wait_until(starts_later, what="a higher epoch")
            for _ in range(5):
                ask(replica.port, "CLIENT", "KILL", "TYPE", "normal")
                self.assertEqual(client.get_many(keys), keys)
                self.assertEqual(self.client().get_many(keys), keys)
            self.assertEqual(self.pool.keys_at(1), 0)


class Changes(MastersTest):
    """Maps that change under a client."""

    def test_slots_move(self):
        client = self.client()
        old = self.put(client, 600, "old")
        self.pool.move()
        new = self.put(client, 600, "new")
        values = {**old, **new}
        keys = list(values)
        random.Random(2).shuffle(keys)
        moving = [k for k in keys if slot_of(k) < 3000]
        self.assertGreater(len([k for k in moving if k in new]), 20)
        # what was there is there, what is new is at the target
        expected = [k for k in new if slot_of(k) < 3000] + self.share(keys, 1)
        self.assertEqual(self.pool.keys_at(1), len(expected))
        self.assertEqual(client.get_many(keys), [values[k] for k in keys])
        self.assertEqual([client.get(k) for k in moving], [values[k] for k in moving])
        self.assertEqual(client.exists_many(keys + [b"no"]), [True] * len(keys) + [False])
        self.assertEqual(client.prefix_length(keys), len(keys))
        self.assertEqual(client.prefix_length(keys, lease_ms=500), len(keys))
        self.assertEqual(client.prefix_length(keys[:50] + [b"no"] + keys), 50)
        self.assertEqual(sum(client.prefetch(keys)), len(keys))
        for key in moving[:20]:
            with client.view(key) as view:
                self.assertEqual(b"".join(view.pieces), values[key])
            self.assertTrue(client.set_pin(key, "soft", 1000))
            self.assertEqual(client.size(key), len(values[key]))
        self.assertEqual(client.remove_many(keys[:300] + [b"no"]), 300)
        self.assertEqual(client.exists_many(keys[:300]), [False] * 300)
        with client.writer(b"fresh", 100) as writer:
            writer.pieces[0][:] = b"f" * 100
        self.assertEqual(client.get(b"fresh"), b"f" * 100)

    def test_waits_for_keys_that_come_to_the_target(self):
        client = self.client()
        self.pool.move()
        keys = [k for k in (b"w%d" % i for i in range(200)) if slot_of(k) < 3000][:8]
        timer = threading.Timer(0.3, lambda: client.put_many([(k, k) for k in keys]))
        timer.start()
        self.assertEqual(client.get_many(keys, wait_ms=20000), keys)
        timer.join()

    def test_a_newer_map(self):
        """The client learns of it from who refuses its keys."""
        client = self.client()
        keys = [b"m%d" % i for i in range(600)]
        others = [k for k in keys if slot_of(k) >= 3000]
        self.put(client, 10, "before")
        self.pool.move()
        self.assertEqual(client.remove_many([b"before%d" % i for i in range(10)]), 10)
        self.pool.move(done=True)
        self.assertEqual(client.put_many([(k, k) for k in keys]), [0] * len(keys))
        self.assertEqual(self.pool.keys_at(1), len(keys) - len(others) + len(self.share(keys, 1)))
        self.assertEqual(client.get_many(keys), keys)
        self.assertEqual(client.prefix_length(keys), len(keys))
        self.assertEqual([client.get(k) for k in keys[:50]], keys[:50])
        self.assertEqual(client.remove_many(keys), len(keys))

    def test_a_shard_joins(self):
        client = self.client()
        keys = [b"j%d" % i for i in range(300)]
        with Server("32mb") as fourth:
            self.pool.servers.append(fourth)
            self.pool.rows.append([fourth.port])
            self.pool.slots = ["0-3999", "5461-10921", "10922-16383", "4000-5460"]
            self.pool.tell([3, 0, 1, 2])
            self.assertEqual(client.put_many([(k, k) for k in keys]), [0] * 300)
            self.assertGreater(self.pool.keys_at(3), 5)
            self.assertEqual(client.get_many(keys), keys)
            self.pool.servers.pop()

    def test_registered_memory_follows(self):
        client = self.client()
        memory = bytearray(1 << 16)
        client.register_buffer(memory)
        with self.assertRaises(tarn.Exists):
            client.register_buffer(memory)
        self.put(client, 30)
        client.unregister_buffer(memory)
        with self.assertRaises(tarn.NotFound):
            client.unregister_buffer(memory)

    def test_masters_that_do_not_agree(self):
        """Each calls a slot the other's: the call ends, and says so."""
        client = self.client("?timeout_ms=1500")
        key = next(k for k in (b"d%d" % i for i in range(999)) if slot_of(k) < 3000)
        slots = list(self.pool.slots)
        self.pool.slots[0], self.pool.slots[1] = "3000-5460", f"{MOVING},{slots[1]}"
        self.pool.epoch += 1
        self.pool.tell_one(0)
        with self.assertRaises(tarn.TryAgain):
            client.get(key)
        with self.assertRaises(tarn.TryAgain):
            client.exists(key)
        self.assertIn(Status.ELATER, client.put_many([(key, b"v"), (b"other", b"v")]))
        self.pool.tell_one(1)
        self.assertTrue(client.put(key, b"v"))


class Prompts(MastersTest):
    """Of each block its master knows where in its prompt it is."""

    def setUp(self):
        super().setUp()
        self.links = []
        for server in self.pool.servers:
            link = link_to(server.port)
            self.addCleanup(link.close)
            self.links.append(link)

    def depths(self):
        """Of all keys, when all slots are on their way."""
        names = [self.pool.name(i) for i in range(self.masters)]
        self.pool.moving = "\n".join(
            f"moving {a} {b} {slots}"
            for a, b, slots in zip(names, names[1:] + names[:1], self.pool.slots)
        )
        self.pool.tell()
        found = {}
        for link in self.links:
            cursor = None
            while cursor != 0:
                cursor, rows = link.call("CLUSTER", "SCANSLOTS", cursor or 0, "COUNT", 1000)
                found.update((row[0], row[8]) for row in rows)
                cursor = int(cursor)
        return found

    def test_depths(self):
        client = self.client()
        # so many that each master is asked for its own in several requests
        prompt = [b"block%d" % i for i in range(1500)]
        self.assertEqual(client.put_many([(k, b"v" * 100) for k in prompt[:200]]), [0] * 200)
        self.assertEqual(client.prefix_length(prompt), 200)
        self.assertNotIn(None, client.get_many(prompt[:200]))
        self.assertEqual(client.put_many([(k, b"v" * 100) for k in prompt[200:]]), [0] * 1300)
        one = [k for k in (b"one%d" % i for i in range(200)) if k in self.share([k], 0)]
        self.assertEqual(client.put_many([(k, b"v") for k in one]), [0] * len(one))
        expected = {k: i for keys in (prompt, one) for i, k in enumerate(keys)}
        self.assertEqual(self.depths(), expected)

    def test_a_stretch_is_with_one_master(self):
        """With all ranks, KV groups and layers of its blocks."""
        client, hashes = self.client(), block_hashes(range(4 * 400), 4)
        spaces = [KeySpace("m", shards=2, shard=i, kv_group=g) for i in range(2) for g in range(2)]
        keys = [s.keys(hashes, layer=n) for s in spaces for n in (None, "x")]
        for some in keys:
            self.assertEqual(client.put_many([(k, k.encode()) for k in some]), [0] * 400)
        found = [set(link.call("KEYS", "*")) for link in self.links]
        self.assertEqual(sum(map(len, found)), 8 * 400)
        whose = [
            {i for i in range(self.masters) for some in keys if some[n].encode() in found[i]}
            for n in range(400)
        ]
        self.assertEqual({len(masters) for masters in whose}, {1})
        for first in (256, 320):
            self.assertEqual(len(set.union(*whose[first : first + 64])), 1)
        self.assertEqual(len(set.union(*whose[:32])), self.masters)
        self.assertEqual(client.prefix_length(keys[0]), 400)
        self.assertNotIn(None, client.get_many(keys[0]))  # each master says where its memory is
        before = client.stats()["requests"]
        self.assertNotIn(None, client.get_many(keys[0][256:320]))
        self.assertLessEqual(client.stats()["requests"] - before, 2)
        groups = [KVGroup(s.prefix, block=4) for s in spaces]
        self.assertEqual(client.kv_prefix(hashes, groups, unit=4, align=4).tokens, 1600)

    def test_what_is_evicted_leaves_no_gap(self):
        for link in self.links:
            link.call("CONFIG", "SET", "eviction-policy", "chain")
        client = self.client()
        r = random.Random(7)
        prompts, tried = [], 0
        evicted = 0
        while evicted < 20000:
            tried += 1
            self.assertLess(tried, 5000)
            shared = r.choice(prompts)[: r.randrange(10, 90)] if prompts and tried % 3 else []
            prompt = shared + [b"p%d-%d" % (tried, i) for i in range(r.randrange(20, 90))]
            prompts.append(prompt)
            there = client.prefix_length(prompt)
            client.get_many(prompt[:there])
            client.put_many([(k, b"v" * 8192) for k in prompt[there:]])
            evicted = sum(int(link.info("evicted_keys")) for link in self.links)
        kept = dict(zip(sum(prompts, []), client.exists_many(sum(prompts, []))))
        self.assertGreater(sum(kept.values()), 1000)
        for prompt in prompts:
            for i in range(self.masters):
                there = [kept[k] for k in self.share(prompt, i)]
                self.assertEqual(there, sorted(there, reverse=True), prompt[-1])


class Alone(unittest.TestCase):
    def test_a_server_without_a_map_is_as_before(self):
        with Server("32mb") as server, tarn.Client(server.url) as client:
            self.assertTrue(client.put("k", b"v"))
            self.assertEqual(client.get("k"), b"v")
            self.assertEqual(client.stats()["lanes"], 1)


if __name__ == "__main__":
    unittest.main()
