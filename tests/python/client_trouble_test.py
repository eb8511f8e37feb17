"""Client in trouble: errors, a full pool, servers that go, threads, waits, signals and forks."""

import os
import signal
import socket
import sys
import threading
import time
import unittest
import unittest.mock

from harness import SERVER, Node, Server, TarnTest, free_port, pattern, together, wait_until

import tarn


class OpenPuts(TarnTest):
    server_args = ("--max-puts-per-client", "3")

    def test_a_batch_over_the_limit_of_open_puts_goes_on(self):
        client = self.client()
        keys, block = [f"b{i}" for i in range(20)], pattern(5000)
        self.assertEqual(client.put_many([(key, block) for key in keys]), [0] * 20)
        self.assertEqual(client.get_many(keys), [block] * 20)
        self.assertRegex(
            client.command("MPUTSTART", 5, *[a for i in range(5) for a in (f"c{i}", 70)]), "LIMIT "
        )


class Errors(TarnTest):
    def test_every_status_has_a_class(self):
        from tarn.errors import ADVICE, error_of

        for status in tarn.Status:
            if status == 0:
                continue
            error = error_of(status, "text")
            self.assertEqual((error.status, error.name, str(error)), (status, status.name, "text"))
            self.assertIsInstance(error, tarn.Error)
            if status not in (-1, -4, -9, -10, -13, -17, -23, -25):
                self.assertIsNot(type(error), tarn.Error)
                self.assertIn(status, ADVICE)
        self.assertEqual(error_of(-99, "x").name, "-99")
        for kind, builtin in (
            (tarn.TimedOut, TimeoutError),
            (tarn.ConnectionFailed, ConnectionError),
            (tarn.PermissionDenied, PermissionError),
            (tarn.InvalidArgument, ValueError),
            (tarn.NotFound, LookupError),
            (tarn.OutOfMemory, MemoryError),
        ):
            self.assertTrue(issubclass(kind, builtin))

    def test_one_table_of_errors(self):
        """The enumeration is tarn_status.h, name by name."""
        import re

        header = os.path.join(os.path.dirname(__file__), "..", "..", "src", "tarn_status.h")
        with open(header, encoding="utf-8") as file:
            numbers = dict(re.findall(r"TARN_(\w+) = (-?\d+),", file.read()))
        self.assertEqual(
            {s.name: s.value for s in tarn.Status}, {name: int(n) for name, n in numbers.items()}
        )

    def test_connecting(self):
        with self.assertRaisesRegex(tarn.ConnectionFailed, "tarn-server"):
            tarn.Client(f"tarn://127.0.0.1:{free_port()}", retries=0)
        with self.assertRaisesRegex(tarn.InvalidArgument, "(?i)url|tarn://"):
            tarn.Client("http://127.0.0.1")
        with self.assertRaises(tarn.InvalidArgument):
            tarn.Client("tarn://no.such.host.invalid")
        with self.assertRaisesRegex(TypeError, "bogus.*transport"):
            tarn.Client(self.server.url, bogus=1)
        for wrong in (
            dict(timeout_ms=-1),
            dict(max_lanes="8gb"),
            dict(verify="maybe"),
            dict(retries=1 << 40),
            dict(retries="9" * 5000),
        ):
            with self.assertRaises(tarn.InvalidArgument, msg=wrong):
                tarn.Client(self.server.url, **wrong)
        with self.assertRaises(TypeError):
            tarn.Client(self.server.url, transport=5)
        with self.assertRaises(tarn.InvalidArgument):
            tarn.Client(self.server.url, transport="a\0b")
        self.client(transport="tcp", verify=True, lease_ms=1000, name=None, user=b"default").ping()
        self.client(max_lanes="8", verify="true", timeout_ms="5000", piece_bytes="2mb").ping()

    def test_not_a_tarn_server(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()

            def talk():
                peer, _ = listener.accept()
                with peer:
                    peer.recv(100)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    while peer.recv(100):
                        pass

            thread = threading.Thread(target=talk)
            thread.start()
            with self.assertRaises(tarn.ProtocolError):
                tarn.Client(f"tarn://127.0.0.1:{listener.getsockname()[1]}", retries=0)
            thread.join()

    def test_passwords(self):
        with Server("64mb", "--requirepass", "se:cret") as server:
            with self.assertRaises(tarn.PermissionDenied):
                tarn.Client(server.url)
            with self.assertRaisesRegex(tarn.PermissionDenied, "password"):
                tarn.Client(server.url, password="wrong")
            with tarn.Client(server.url, password="se:cret") as client:
                self.assertTrue(client.put("k", b"v"))
            with tarn.Client(server.url.replace("//", "//:se%3Acret@")) as client:
                self.assertEqual(client.get("k"), b"v")
                self.assertNotIn("cret", repr(client))

    def test_too_large_and_no_space(self):
        client = self.client()
        client.put("large", b"x" * 1000)
        with self.assertRaisesRegex(tarn.TooLarge, "1000 bytes.* 999"):
            client.get_into("large", bytearray(999))
        self.assertEqual(client.get_many_into([("large", bytearray(999))]), [tarn.Status.ELIMIT])
        with self.assertRaises(tarn.NoSpace):
            client.put("huge", bytearray(65 << 20))
        self.assertEqual(
            client.put_many([("huge", bytearray(65 << 20)), ("fits", b"x")]),
            [tarn.Status.ENOSPACE, 0],
        )

    def test_read_only(self):
        with Server("0", "--replicaof", f"127.0.0.1 {self.server.port}") as replica:

            def refused():
                with self.assertRaises(tarn.Error) as caught:
                    with tarn.Client(replica.url, timeout_ms=5000) as client:
                        client.put("r", b"x" * 100)
                return isinstance(caught.exception, tarn.ReadOnly)

            # Before it has what its master has it loads, and it lets go of clients when it has
            # begun to follow.
            wait_until(refused, 60, "a replica that takes no writes")

    def test_closed(self):
        client = self.client()
        client.put("c", b"x")
        client.close()
        client.close()
        self.assertTrue(client.closed)
        self.assertIn("closed", repr(client))
        for call in (
            client.ping,
            client.stats,
            lambda: client.get("c"),
            lambda: client.put_many([("c", b"x")]),
            client.queue,
        ):
            with self.assertRaisesRegex(tarn.Closed, "open another"):
                call()
        with tarn.Client(self.server.url) as client:
            self.assertFalse(client.closed)
        self.assertTrue(client.closed)


class Words(TarnTest):
    """Exceptions carry what the server, or the library, knows of the reason."""

    pool = "8mb"

    def refused(self, kind, text, call):
        with self.assertRaisesRegex(kind, text):
            call()

    def test_no_room_and_quotas(self):
        client = self.client()
        text = "no room for 9000000 bytes: .* the largest of 1 has 8388608"
        self.refused(tarn.NoSpace, text, lambda: client.put("k", bytearray(9000000)))
        client.command("QUOTA", "SET", "q:", 1000)
        text = 'keys that begin with "q:" may hold 1000 bytes, hold 0, and 2000 more were asked for'
        self.refused(tarn.NoSpace, text, lambda: client.put("q:k", bytearray(2000)))

    def test_data_port(self):
        info = self.client().command("INFO", "data")
        port = int(
            dict(line.split(":", 1) for line in info.splitlines() if ":" in line)["data_port"]
        )
        text = f"127.0.0.1:{port} is a data port of tarn.*"
        text += f"the URL names the port of tarn-server.*{port - 10000}"
        self.refused(tarn.ProtocolError, text, lambda: tarn.Client(f"tarn://127.0.0.1:{port}"))

    def test_rdma_where_there_is_none(self):
        modules = os.path.join(os.path.dirname(SERVER), "modules")
        if not os.path.exists(os.path.join(modules, "rdma.so")):
            self.skipTest("the rdma module was not built")
        options = f"?transport=rdma&module_path={modules}"
        text = "segment local of the server on host .* offers no rdma "
        text += ".it offers shm, tcp.*loadmodule rdma.so"
        self.refused(tarn.NotSupported, text, lambda: tarn.Client(self.server.url + options))
        with Server("0") as server, tarn.Client(
            server.url + options
        ) as client:  # nothing is known yet
            with Node(server, "--host-name", "far", name="n1", pool="8mb"):
                text = "segment n1.0 of node n1 on host far offers no rdma "
                text += ".it offers .*tcp.*tarn-node --loadmodule"
                self.refused(tarn.NotSupported, text, lambda: client.put("k", bytearray(1000)))
                with tarn.Client(server.url) as other:
                    other.put("k", bytearray(1000))
                for call in (
                    lambda: client.get("k"),
                    lambda: client.get("k"),
                    lambda: client.put("m", bytearray(1000)),
                ):
                    self.refused(tarn.NotSupported, text, call)


class FullPool(TarnTest):
    pool = "32mb"
    server_args = ("--hard-pin-ratio", "1", "--hard-pin-user-ratio", "1")

    def test_eviction_makes_room(self):
        client = self.client()
        memory = bytearray(4 << 20)
        for i in range(24):
            memory[:4] = i.to_bytes(4, "little")
            self.assertTrue(client.put(f"full:{i}", memory))
        self.assertEqual(client.get("full:23")[:4], (23).to_bytes(4, "little"))
        self.assertIsNone(client.get("full:0"))

    def test_pinned_pool_is_full(self):
        client = self.client()
        client.command("FLUSHALL")
        results = client.put_many([(f"pin:{i}", bytearray(4 << 20)) for i in range(12)], pin="hard")
        self.assertEqual(set(results), {0, tarn.Status.ENOSPACE})
        with self.assertRaises(tarn.NoSpace) as caught:
            client.put("one more", bytearray(4 << 20))
        self.assertEqual(caught.exception.name, "ENOSPACE")
        client.command("FLUSHALL")


class Outages(TarnTest):
    pool = None

    def test_killed_and_started_again(self):
        with Server() as server:
            client = tarn.Client(server.url, retries=8, backoff_max_ms=300, timeout_ms=20000)
            client.put("before", b"x" * 1000)
            server.kill()
            with self.assertRaises((tarn.ConnectionFailed, tarn.TimedOut)):
                client.get("before", timeout_ms=300)
            server.start()
            self.assertIsNone(client.get("before"))
            self.assertTrue(client.put("after", b"y" * 1000))
            self.assertEqual(client.get("after"), b"y" * 1000)
            self.assertGreater(client.stats()["reconnects"], 0)
            server.pause()
            began = time.monotonic()
            with self.assertRaises(tarn.TimedOut):
                client.get("after", timeout_ms=200)
            self.assertLess(time.monotonic() - began, 19)
            server.resume()
            self.assertEqual(client.get("after"), b"y" * 1000)
            client.close()

    def test_two_nodes(self):
        with Server() as server, Node(server, name="one") as one, Node(server, name="two"):
            with tarn.Client(server.url, failover_ms=5000) as client:
                value = pattern(100000)
                results = client.put_many([(f"copy:{i}", value) for i in range(8)], replicas=2)
                self.assertEqual(results, [0] * 8)
                self.assertEqual(client.get_many([f"copy:{i}" for i in range(8)]), [value] * 8)
                one.kill()
                into = [bytearray(100000) for _ in range(8)]
                results = client.get_many_into(
                    [(f"copy:{i}", into[i]) for i in range(8)], timeout_ms=15000
                )
                self.assertEqual(results, [100000] * 8)
                self.assertTrue(all(i == value for i in into))


class Threads(TarnTest):
    def test_many_threads_one_client(self):
        client = self.client("?max_lanes=4")
        wrong = []

        def work(number):
            for i in range(30):
                key, value = f"thread:{number}:{i}", pattern(5000, number * 100 + i)
                client.put(key, value)
                if client.get(key) != value or client.get_many([key, "none"]) != [value, None]:
                    wrong.append(key)

        together(work, range(12))
        self.assertEqual(wrong, [])

    def ticks_during(self, call):
        """How often another thread of Python came to run during a call, and its seconds."""
        ticks, stop = [0], threading.Event()

        def tick():
            while not stop.is_set():
                ticks[0] += 1
                time.sleep(0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        before, began = ticks[0], time.monotonic()
        call()
        during, took = ticks[0] - before, time.monotonic() - began
        stop.set()
        thread.join()
        return during, took

    def test_waits_without_the_gil(self):
        client = self.client()

        def waits():
            ticks, took = self.ticks_during(
                lambda: self.assertIsNone(client.get("never", wait_ms=400))
            )
            self.assertGreaterEqual(took, 0.35)
            return ticks > 20

        wait_until(waits, what="a wait during which another thread comes to run, and often")
        # Another thread's put ends a wait that is under way.
        timer = threading.Timer(0.1, lambda: client.put("soon", b"x" * 100))
        timer.start()
        self.assertEqual(client.get("soon", wait_ms=20000), b"x" * 100)
        timer.join()

    def test_moves_without_the_gil(self):
        client = self.client("?transport=tcp")
        memory = bytearray(32 << 20)
        client.put("big", memory)

        def gets():
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                client.get_into("big", memory)

        def moves():
            ticks, took = self.ticks_during(gets)
            return ticks > took * 40

        wait_until(moves, what="moves during which another thread comes to run, and often")

    def test_close_during_a_call(self):
        client = self.client()
        results = []
        thread = threading.Thread(target=lambda: results.append(client.get("late", wait_ms=60000)))
        thread.start()
        self.waiting()
        client.close()
        with self.assertRaises(tarn.Closed):
            client.get("late")
        self.assertEqual(results, [])
        self.client().put("late", b"x" * 100)
        thread.join()
        self.assertEqual(results, [b"x" * 100])


class Waits(TarnTest):
    def test_long_waits_see_signals(self):
        client = self.client()
        # Whoever started this may have it ignored.
        self.addCleanup(
            signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)
        )

        def interrupt():
            self.waiting()
            os.kill(os.getpid(), signal.SIGINT)

        for wait in (
            lambda: client.wait("never", 60000),
            lambda: client.get("never", wait_ms=60000),
            lambda: client.get_into("never", bytearray(9), wait_ms=60000),
            lambda: client.prefix_length(["never"], wait_ms=60000),
        ):
            thread = threading.Thread(target=interrupt)
            thread.start()
            began = time.monotonic()
            with self.assertRaises(KeyboardInterrupt):
                wait()
                time.sleep(5)
            self.assertLess(time.monotonic() - began, 30)
            thread.join()
        self.assertTrue(client.put("alive", b"x"))
        self.assertEqual(client.get("alive"), b"x")

    def test_signals_during_calls(self):
        client = self.client("?transport=tcp")
        value = pattern(8 << 20)
        seen = [0]

        def count(number, frame):
            seen[0] += 1

        before = signal.signal(signal.SIGALRM, count)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            client.put("signals", value)
            into = bytearray(8 << 20)
            for _ in range(20):
                self.assertEqual(client.get_into("signals", into), 8 << 20)
                self.assertEqual(into, value)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.assertGreater(seen[0], 0)

    def test_waits(self):
        client, other = self.client(), self.client()
        self.assertFalse(client.wait("no", 0))
        began = time.monotonic()
        self.assertFalse(client.wait("no", 700))
        self.assertIn(int((time.monotonic() - began) * 10), range(6, 300))
        timer = threading.Timer(0.7, lambda: other.put_many([("w1", b"1"), ("w2", b"2")]))
        timer.start()
        self.assertEqual(client.get_many(["w1", "w2"], wait_ms=20000), [b"1", b"2"])
        timer.join()
        timer = threading.Timer(0.6, lambda: other.put("w3", b"3"))
        timer.start()
        self.assertTrue(client.wait("w3", 20000))
        timer.join()
        self.assertEqual(client.prefix_length(["w1", "w2", "none"], wait_ms=600), 2)


class Forks(TarnTest):
    def test_a_child_connects_anew(self):
        client = self.client("?transport=shm")
        client.put("fork", pattern(10000))
        view, queue = client.view("fork"), client.queue()
        writer = client.writer("unfinished", 1000)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for call in (
                    client.ping,
                    lambda: client.get("fork"),
                    view.check,
                    queue.poll,
                    client.queue,
                    writer.commit,
                ):
                    try:
                        call()
                        os._exit(2)
                    except tarn.Closed:
                        pass
                if client.closed:
                    del view, queue, writer, client, call
                    with tarn.Client(self.server.url) as own:
                        status = 0 if own.get("fork") == pattern(10000) else 3
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        view.check()
        writer.data[:] = b"x" * 1000
        writer.commit()
        self.assertEqual(client.get("unfinished"), b"x" * 1000)
        queue.close()
        view.release()


if __name__ == "__main__":
    sys.exit(unittest.main())
