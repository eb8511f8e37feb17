"""CLIENT NEAR: connections from this machine go on over a unix socket."""

import contextlib
import mmap
import os
import select
import resource
import socket
import struct
import tempfile
import threading
import time
import unittest

from harness import SLOW, Server, TarnTest, pattern, wait_until


def waiting(server):
    """Names of the unix sockets at which it waits for somebody."""
    inodes = set()
    for fd in os.listdir(f"/proc/{server.pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{server.pid}/fd/{fd}"))
    with open("/proc/net/unix", encoding="utf-8") as f:
        rows = [line.split() for line in f]
    # Num RefCount Protocol Flags Type St Inode Path
    return [
        row[7][1:]
        for row in rows
        if len(row) == 8
        and row[7].startswith("@tarn-")
        and row[3] == "00010000"
        and f"socket:[{row[6]}]" in inodes
    ]


def ends(connected):
    return ["%s:%d" % name for name in (connected.getsockname(), connected.getpeername())]


class Wire:
    """A connection whose bytes the test writes itself."""

    def __init__(self, port):
        self.take(socket.create_connection(("127.0.0.1", port), 60 * SLOW))

    def take(self, connected):
        self.socket, self.file = connected, connected.makefile("rb")

    def say(self, *words):
        """The answer's first line, or its string."""
        self.socket.sendall(" ".join(words).encode() + b"\r\n")
        return self.hear()

    def hear(self):
        line = self.file.readline().decode().strip()
        if line.startswith("$"):
            return self.file.read(int(line[1:]) + 2).decode().strip()
        if line == "*3":
            return [self.hear(), self.hear(), self.hear()]
        return line

    def near(self):
        """The two names and the word, or the error."""
        return self.say("CLIENT NEAR", *ends(self.socket))

    def door(self, to, own, _=None):
        """A connection to the socket of the first name, by one of the second."""
        door = socket.socket(socket.AF_UNIX)
        door.settimeout(60 * SLOW)
        door.bind("\0" + own)
        door.connect("\0" + to)
        return door

    def move(self):
        """Goes on at a unix socket. Returns the old one, and whether the new one says the word."""
        old, names = self.socket, self.near()
        self.file.close()
        self.take(self.door(*names))
        return old, self.hear() == "+" + names[2]

    def close(self):
        self.file.close()
        self.socket.close()


RING = 32 << 10  # bytes each way: src/base/ring.h
TO_SERVER, TO_CLIENT = 64, 64 + 192 + RING  # where each way begins
HEAD, TAIL, SLEEPS, FULL, BYTES = 0, 64, 128, 132, 192


class Ring:
    """The same through shared memory. It never looks before it sleeps."""

    def __init__(self, port):
        wire = Wire(port)
        names = wire.near()
        self.socket = wire.door(*names)
        word, fds, _, _ = socket.recv_fds(self.socket, 100, 4)
        assert word == f"+{names[2]}\r\n".encode() and len(fds) == 1, (word, fds)
        wire.close()
        self.memory = mmap.mmap(fds[0], 0)
        # one store each; struct.pack_into writes zeroes before, which the server sees now and then
        self.positions = memoryview(self.memory).cast("I")
        self.fd = fds[0]
        self.sent = self.got = 0
        self.ahead = b""
        self.file = self

    def get(self, at):
        return self.positions[at // 4]

    def set(self, at, value):
        self.positions[at // 4] = value % (1 << 32)

    def call(self):
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self.socket.send(b"\0", socket.MSG_DONTWAIT)

    def wait(self):
        """Until the server calls. False: it has gone."""
        assert select.select([self.socket], [], [], 60 * SLOW)[0], "the server does not call"
        with contextlib.suppress(ConnectionResetError):
            return self.socket.recv(100) != b""
        return False

    def send(self, data):
        while data:
            room = RING - (self.sent - self.get(TO_SERVER + TAIL)) % (1 << 32)
            if room == 0:
                self.set(TO_SERVER + FULL, 1)
                if self.get(TO_SERVER + TAIL) == (self.sent - RING) % (1 << 32):
                    assert self.wait()
                continue
            at = self.sent % RING
            piece = data[: min(room, RING - at)]
            self.memory[TO_SERVER + BYTES + at : TO_SERVER + BYTES + at + len(piece)] = piece
            self.sent += len(piece)
            data = data[len(piece) :]
            self.set(TO_SERVER + HEAD, self.sent)
            if self.get(TO_SERVER + SLEEPS):
                self.set(TO_SERVER + SLEEPS, 0)
                self.call()

    def receive(self):
        """What is there, b"" behind the end."""
        while (n := (self.get(TO_CLIENT + HEAD) - self.got) % (1 << 32)) == 0:
            self.set(TO_CLIENT + SLEEPS, 1)
            if self.get(TO_CLIENT + HEAD) == self.got % (1 << 32) and not self.wait():
                if self.get(TO_CLIENT + HEAD) == self.got % (1 << 32):
                    return b""
        at = self.got % RING
        data = self.memory[TO_CLIENT + BYTES + at :][: min(n, RING - at)]
        self.got += len(data)
        self.set(TO_CLIENT + TAIL, self.got)
        if self.get(TO_CLIENT + FULL):
            self.set(TO_CLIENT + FULL, 0)
            self.call()
        return data

    def readline(self):
        while b"\n" not in self.ahead and (more := self.receive()):
            self.ahead += more
        line, end, self.ahead = self.ahead.partition(b"\n")
        return line + end

    def read(self, n):
        while len(self.ahead) < n and (more := self.receive()):
            self.ahead += more
        data, self.ahead = self.ahead[:n], self.ahead[n:]
        return data

    def say(self, *words):
        self.send(" ".join(words).encode() + b"\r\n")
        return self.hear()

    def close(self):
        if not self.memory.closed:
            self.positions.release()
            self.memory.close()
            os.close(self.fd)
            self.socket.close()

    hear = Wire.hear


class Near(TarnTest):
    def wire(self, port=None):
        wire = Wire(port or self.server.port)
        self.addCleanup(wire.close)
        return wire

    def clients(self):
        lines = self.wire().say("CLIENT LIST").splitlines()
        return [dict(f.split("=", 1) for f in line.split(" ") if "=" in f) for line in lines]

    def of_libtarn(self):
        """Flags of the connections that libtarn made."""
        return [c["flags"] for c in self.clients() if c["lib-name"] == "libtarn"]

    def test_libtarn_moves(self):
        client = self.client()
        block = pattern(70000)
        client.put("a", block)
        self.assertEqual(client.get("a"), block)
        self.assertEqual(set(self.of_libtarn()), {"Um"})
        for c in self.clients():
            self.assertRegex(c["addr"], r"^127\.0\.0\.1:\d+$")
            self.assertEqual(c["laddr"], f"127.0.0.1:{self.server.port}")
        self.assertEqual(waiting(self.server), [])

    def test_it_stays_the_same_client(self):
        wire = self.wire()
        before = wire.say("CLIENT ID")
        wire.say("CLIENT SETNAME one")
        wire.say("SET k v")
        names = ends(wire.socket)
        old, answer = wire.move()
        self.assertTrue(answer)
        self.assertEqual(old.recv(10), b"")
        old.close()
        self.assertEqual(wire.say("CLIENT ID"), before)
        self.assertEqual(wire.say("CLIENT GETNAME"), "one")
        self.assertEqual(wire.say("GET k"), "v")
        self.assertRegex(wire.say("CLIENT NEAR", *names), "^-ERR .*moved already")
        self.assertEqual(waiting(self.server), [])
        # and is killed by its address, as others are
        mine = [c for c in self.clients() if c["name"] == "one"]
        self.assertEqual(len(mine), 1)
        self.assertEqual(self.wire().say("CLIENT KILL ADDR", mine[0]["addr"]), ":1")
        self.assertEqual(wire.hear(), "")

    def test_who_may_not_stays(self):
        self.wire().say("ACL SETUSER default -client|near")
        self.addCleanup(self.wire().say, "ACL SETUSER default +client|near")
        client = self.client()
        client.put("b", b"x" * 5000)
        self.assertEqual(client.get("b"), b"x" * 5000)
        self.assertEqual(set(self.of_libtarn()), {"N"})

    def test_nothing_that_is_under_way_is_lost(self):
        wire = self.wire()
        names = wire.near()
        wire.socket.sendall(b"GETREPLICAS late WAIT 60000\r\n")
        wait_until(lambda: any("b" in c["flags"] for c in self.clients()))
        door = wire.door(*names)
        self.assertEqual(door.recv(10), b"")
        door.close()
        self.assertEqual(self.wire().say("SET late x"), "+OK")
        self.assertEqual(wire.hear(), "*8")
        # bytes that the server has not read yet
        wire = self.wire()
        names = wire.near()
        self.server.pause()
        wire.socket.sendall(b"PING\r\n")
        door = wire.door(*names)
        self.server.resume()
        self.assertEqual(wire.hear(), "+PONG")
        wire.take(door) if door.recv(100) else door.close()
        self.assertEqual(wire.say("PING"), "+PONG")

    def test_one_comes_and_once(self):
        wire = self.wire()
        names = wire.near()
        for name in names:
            self.assertRegex(name, "^tarn-[0-9a-f]{32}$")
        # asking again withdraws the first offer, and asking for nothing withdraws it, too
        before, names = names, wire.near()
        self.assertEqual(waiting(self.server), names[:1])
        self.assertRegex(wire.say("CLIENT NEAR '' ''"), "^-ERR .*in between")
        self.assertEqual(waiting(self.server), [])
        names = wire.near()
        with self.assertRaises(ConnectionRefusedError):
            wire.door(*before)
        # who goes before he has come leaves nothing behind
        wire.close()
        wait_until(lambda: waiting(self.server) == [], what="the socket is gone")
        with self.assertRaises(ConnectionRefusedError):
            wire.door(*names)
        # nor who does not come: after a while he may ask again
        wire = self.wire()
        self.assertEqual(len(wire.near()), 3)
        wait_until(lambda: waiting(self.server) == [], what="the time is over")
        self.assertTrue(wire.move()[1])
        self.assertEqual(wire.say("PING"), "+PONG")

    def test_guarantee_6_nobody_else_comes_in_its_place(self):
        # who finds the names in /proc, in whatever way he comes; it waits for nobody behind him
        for add in ("", "0", "\0", None):
            wire = self.wire()
            to, own, _ = wire.near()
            holder, other = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
            other.settimeout(60 * SLOW)
            if add:
                holder.bind("\0" + own)
                other.bind("\0" + own + add)
            elif add is None:  # a file of that name, as far as a path can be it
                with tempfile.TemporaryDirectory() as folder:
                    os.chdir(folder)
                    other.bind(own)
                    os.chdir("/")
            other.connect("\0" + to)
            self.assertEqual(other.recv(10), b"", repr(add))
            other.close()
            holder.close()
            self.assertEqual(wire.say("PING"), "+PONG")
            wait_until(lambda: waiting(self.server) == [], what="the socket is gone")

    def test_guarantee_6_nor_when_others_have_kept_it_out(self):
        wire = self.wire()
        to, own, _ = wire.near()
        self.server.pause()
        others = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for other in others:
            other.connect("\0" + to)
        mine = socket.socket(socket.AF_UNIX)
        mine.setblocking(False)
        mine.bind("\0" + own)
        with self.assertRaises(BlockingIOError):
            mine.connect("\0" + to)
        mine.close()
        # who has seen the name takes it now
        thief = socket.socket(socket.AF_UNIX)
        thief.bind("\0" + own)
        threading.Timer(0.2, self.server.resume).start()
        with contextlib.suppress(OSError):
            thief.connect("\0" + to)
            self.assertEqual(thief.recv(10), b"")
        for other in [*others, thief]:
            other.close()
        self.assertEqual(wire.say("PING"), "+PONG")

    def test_one_that_is_dead_stays_dead(self):
        wire = self.wire()
        names = wire.near()
        self.server.pause()
        door = wire.door(*names)
        reset = struct.pack("ii", 1, 0)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        wire.close()
        self.server.resume()
        self.assertEqual(door.recv(100), b"")
        door.close()

    def test_without_descriptors_it_stays(self):
        wire = self.wire()
        wire.say("PING")
        limits = resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE)
        taken = {int(fd) for fd in os.listdir(f"/proc/{self.server.pid}/fd")}
        free = min(set(range(len(taken) + 1)) - taken)
        for left in (0, 1):  # none for the socket, none for who comes
            few = (free + left, limits[1])
            resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE, few)
            said = wire.near()
            resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE, limits)
            self.assertEqual(said, "-ERR a unix socket cannot be opened: Too many open files")
            self.assertEqual(waiting(self.server), [])
        self.assertTrue(wire.move()[1])

    def test_so_many_at_once(self):
        wires = [self.wire() for _ in range(17)]
        said = [wire.near() for wire in wires]
        self.assertEqual([len(s) for s in said[:16]], [3] * 16)
        self.assertRegex(said[16], "^-LIMIT ")
        wires[0].close()
        wait_until(lambda: len(waiting(self.server)) == 15)
        self.assertTrue(wires[16].move()[1])
        for wire in wires[1:]:
            wire.close()
        wait_until(lambda: waiting(self.server) == [])

    def test_not_within_a_transaction(self):
        wire = self.wire()
        wire.say("MULTI")
        self.assertRegex(wire.near(), "^-ERR ")
        wire.say("DISCARD")

    def test_not_past_a_proxy(self):
        wire = self.wire()
        own, there = ends(wire.socket)
        for a, b in (("127.0.0.1:1", there), (own.replace(".1:", ".2:"), there), (own, own)):
            self.assertRegex(wire.say("CLIENT NEAR", a, b), "^-ERR .*in between")
        self.assertEqual(waiting(self.server), [])
        self.assertTrue(wire.move()[1])

    def test_not_by_a_unix_socket(self):
        server = Server("0", "--unixsocket", "tarn.sock")
        self.addCleanup(server.stop)
        wire, connected = self.wire(), socket.socket(socket.AF_UNIX)
        connected.connect(os.path.join(server.dir, "tarn.sock"))
        wire.close()
        wire.take(connected)
        self.assertRegex(wire.say("CLIENT NEAR 127.0.0.1:1 127.0.0.1:2"), "^-ERR .*loopback")

    def test_a_server_that_is_killed_and_comes_back(self):
        client = self.client()
        client.put("k", b"1" * 5000)
        self.server.restart()
        client.put("k", b"2" * 5000)
        self.assertEqual(client.get("k"), b"2" * 5000)
        self.assertEqual(set(self.of_libtarn()), {"Um"})

    # --- through shared memory ---

    def ring(self):
        ring = Ring(self.server.port)
        self.addCleanup(ring.close)
        return ring

    def test_through_memory(self):
        ring = self.ring()
        self.assertEqual(ring.say("CLIENT SETNAME mine"), "+OK")
        for i in range(300):
            self.assertEqual(ring.say(f"SET k{i} v{i}"), "+OK")
            self.assertEqual(ring.say(f"GET k{i}"), f"v{i}")
        mine = [c for c in self.clients() if c["name"] == "mine"][0]
        self.assertEqual(mine["flags"], "Um")
        self.assertGreater(int(mine["tot-mem"]), 2 * RING)
        # many at once, most of them while it is not looked at
        ring.send(b"GET k1\r\nGET k2\r\n" * 500)
        for _ in range(500):
            self.assertEqual((ring.hear(), ring.hear()), ("v1", "v2"))

    def test_more_than_the_memory_holds(self):
        ring = self.ring()
        for size in (RING - 1, RING, 3 * RING + 5, 2 << 20):
            value = pattern(size)
            ring.send(b"*3\r\n$3\r\nSET\r\n$1\r\nv\r\n$%d\r\n" % size + value + b"\r\n")
            self.assertEqual(ring.hear(), "+OK")
            ring.send(b"GET v\r\n")
            self.assertEqual(ring.readline(), b"$%d\r\n" % size)
            self.assertEqual(ring.read(size + 2), value + b"\r\n")
        # an answer that nobody takes holds nobody else up
        ring.send(b"GET v\r\n" * 3)
        self.assertEqual(self.wire().say("PING"), "+PONG")
        for _ in range(3):
            self.assertEqual(len(ring.readline() + ring.read(len(value) + 2)), len(value) + 12)
        self.assertEqual(ring.say("PING"), "+PONG")

    def test_an_event_comes_while_it_sleeps(self):
        ring = self.ring()
        ring.send(b"GETREPLICAS soon WAIT 60000\r\n")
        wait_until(lambda: any("b" in c["flags"] for c in self.clients()))
        self.assertEqual(self.wire().say("SET soon x"), "+OK")
        self.assertEqual(ring.hear(), "*8")
        self.assertTrue(select.select([ring.socket], [], [], 0)[0] == [] or ring.wait())

    def test_its_end(self):
        ring, other = self.ring(), self.wire()
        number = ring.say("CLIENT ID")[1:]
        ring.send(b"QUIT\r\n")
        self.assertEqual(ring.hear(), "+OK")
        self.assertEqual(ring.hear(), "")
        # it goes, with requests that nobody has looked at yet
        ring = self.ring()
        self.assertEqual(ring.say("CLIENT SETNAME mine"), "+OK")
        self.server.pause()
        ring.send(b"SET last 1\r\n")
        ring.close()
        self.server.resume()
        wait_until(lambda: not [c for c in self.clients() if c["name"] == "mine"])
        self.assertEqual(other.say("GET last"), "1")
        # it is killed
        ring = self.ring()
        number = ring.say("CLIENT ID")[1:]
        self.assertEqual(other.say(f"CLIENT KILL ID {number}"), ":1")
        self.assertEqual(ring.hear(), "")
        # the server is
        ring = self.ring()
        self.assertEqual(ring.say("PING"), "+PONG")
        self.server.restart()
        self.assertEqual(ring.hear(), "")

    def test_who_calls_no_more_holds_nothing(self):
        other, ring = self.wire(), self.ring()
        self.assertEqual(other.say("SET big", "x" * (RING - 100)), "+OK")
        self.assertEqual(ring.say("CLIENT SETNAME mine"), "+OK")
        ring.send(b"GET big\r\nPING\r\n")
        ring.socket.shutdown(socket.SHUT_WR)
        self.assertEqual(len(ring.hear()), RING - 100)
        self.assertEqual((ring.hear(), ring.hear()), ("+PONG", ""))
        # it would have to call for the rest
        ring = self.ring()
        self.assertEqual(ring.say("CLIENT SETNAME mine"), "+OK")
        ring.send(b"GET big\r\n" * 10)
        ring.socket.shutdown(socket.SHUT_WR)
        wait_until(lambda: not [c for c in self.clients() if c["name"] == "mine"])

    def test_guarantee_6_who_writes_nonsense_costs_itself(self):
        other = self.ring()
        self.assertEqual(other.say("SET big", "x" * (RING - 100)), "+OK")
        for where in (TO_SERVER + HEAD, TO_CLIENT + TAIL):
            for lie in (RING + 1, 1 << 31, -1):
                ring = self.ring()
                self.assertEqual(ring.say("PING"), "+PONG")
                if where == TO_SERVER + HEAD:
                    ring.set(where, ring.get(where) + lie)
                    ring.call()
                else:  # it is looked at when an answer may not fit
                    ring.set(where, ring.get(where) - lie)
                    ring.send(b"GET big\r\nGET big\r\n")
                wait_until(lambda r=ring: not r.wait(), what="it is closed")
                self.assertEqual(other.say("PING"), "+PONG")
        # flags that say anything, calls for nothing, bytes that are no requests
        ring = self.ring()
        for i in range(200):
            ring.set(TO_CLIENT + SLEEPS, i)
            ring.set(TO_CLIENT + FULL, i)
            ring.set(TO_SERVER + FULL, i)
            ring.call()
        self.assertEqual(ring.say("PING"), "+PONG")
        ring.send(b"*-5\r\n*1\r\n$-7\r\n")
        self.assertRegex(ring.hear(), "^-ERR Protocol error")
        self.assertEqual(ring.hear(), "")
        self.assertEqual(other.say("PING"), "+PONG")

    def test_the_memory_cannot_shrink(self):
        ring = self.ring()
        self.assertEqual(ring.say("PING"), "+PONG")
        for size in (0, 4096, 1 << 20):
            with self.assertRaises(PermissionError):
                os.ftruncate(ring.fd, size)
        self.assertEqual(ring.say("PING"), "+PONG")

    def test_who_does_not_take_it_goes_on_by_the_socket(self):
        wire = self.wire()
        wire.say("CLIENT SETNAME mine")
        self.assertTrue(wire.move()[1])
        before = int([c for c in self.clients() if c["name"] == "mine"][0]["tot-mem"])
        self.assertEqual(wire.say("PING"), "+PONG")
        after = [c for c in self.clients() if c["name"] == "mine"][0]
        self.assertEqual(after["flags"], "U")
        self.assertGreater(before - int(after["tot-mem"]), 2 * RING)  # it is given back

    def test_so_many_have_memory(self):
        rings = [self.ring() for _ in range(256)]
        wire = self.wire()
        old, names = wire.socket, wire.near()
        wire.take(wire.door(*names))
        word, fds, _, _ = socket.recv_fds(wire.socket, 100, 4)
        self.assertEqual((word, fds), (f"+{names[2]}\r\n".encode(), []))
        self.assertEqual(wire.say("PING"), "+PONG")
        old.close()
        for ring in rings:
            ring.send(b"PING\r\n")
        self.assertEqual([ring.hear() for ring in rings], ["+PONG"] * 256)
        for ring in rings:
            ring.close()
        wait_until(lambda: not [c for c in self.clients() if "m" in c["flags"]])
        self.assertEqual(self.ring().say("PING"), "+PONG")

    def test_none_where_it_would_be_closed_for_it(self):
        limit = self.wire()
        self.assertEqual(limit.say("CONFIG SET maxmemory-clients 1mb"), "+OK")
        self.addCleanup(limit.say, "CONFIG SET maxmemory-clients 0")
        wires, with_memory = [], 0
        for _ in range(30):
            wire = self.wire()
            old, names = wire.socket, wire.near()
            wire.file.close()
            wire.take(wire.door(*names))
            word, fds, _, _ = socket.recv_fds(wire.socket, 100, 4)
            self.assertEqual(word, f"+{names[2]}\r\n".encode())
            old.close()
            with_memory += len(fds)
            for fd in fds:
                os.close(fd)
            wires.append(wire)
        self.assertIn(with_memory, range(1, 9))
        self.assertEqual([wire.say("PING") for wire in wires], ["+PONG"] * 30)

    def test_who_is_told_without_asking_has_none(self):
        wire = self.wire()
        wire.socket.sendall(b"HELLO 3\r\nCLIENT TRACKING ON\r\n")
        wait_until(lambda: wire.hear() == "+OK")
        old, names = wire.socket, wire.near()
        wire.take(wire.door(*names))
        self.assertEqual(socket.recv_fds(wire.socket, 100, 4)[1], [])
        self.assertEqual(wire.say("PING"), "+PONG")
        old.close()

    def test_a_pause_is_a_pause(self):
        ring, wire = self.ring(), self.wire()
        self.assertEqual(wire.say("CLIENT PAUSE 100000"), "+OK")
        ring.send(b"PING\r\nPING\r\n")
        wait_until(lambda: any("b" in c["flags"] for c in self.clients()))
        self.assertEqual(wire.say("CLIENT UNPAUSE"), "+OK")
        self.assertEqual((ring.hear(), ring.hear()), ("+PONG", "+PONG"))

    def test_what_waits_costs_no_processor(self):
        ring = self.ring()
        self.assertEqual(ring.say("PING"), "+PONG")

        def turns():
            text = self.wire().say("INFO all")
            return int(text.split("loop_turns:")[1].split()[0])

        before = turns()
        time.sleep(1)
        self.assertLess(turns() - before, 20000)


if __name__ == "__main__":
    unittest.main()
