"""Client: values, keys, buffers, batches, reading and writing in place."""

import array
import mmap
import os
import re
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

from harness import TarnTest, environment, pattern, wait_until

import tarn
from tarn.memory import pin

try:
    import numpy
except ImportError:
    numpy = None


class Tensor:
    """What a tensor of torch shows of itself."""

    class Device:
        def __init__(self, kind):
            self.type = kind

    def __init__(self, data, kind="cpu", contiguous=True):
        self.array = array.array("B", data)
        self.device, self.contiguous = self.Device(kind), contiguous

    def data_ptr(self):
        return self.array.buffer_info()[0]

    def numel(self):
        return len(self.array)

    def element_size(self):
        return 1

    def is_contiguous(self):
        return self.contiguous


class Values(TarnTest):
    SIZES = (0, 1, 64, 65, 4096, 70001, (1 << 20) + 1, 5 << 20)

    def test_sizes_by_every_way(self):
        for query in ("?transport=shm", "?transport=tcp"):
            client = self.client(query)
            for n in self.SIZES:
                key, value = f"{query}{n}", pattern(n)
                self.assertTrue(client.put(key, value))
                self.assertFalse(client.put(key, b"other"))
                for _ in range(2):  # the second get knows the size
                    self.assertEqual(client.get(key), value)
                self.assertEqual(client.size(key), n)
                into = bytearray(n + 3)
                self.assertEqual(client.get_into(key, into), n)
                self.assertEqual(into[:n], value)
                self.assertEqual(client.get_many([key, "none", key]), [value, None, value])
            keys = [f"{query}{n}" for n in self.SIZES]
            before = client.stats()["bytes_read"]
            self.assertEqual(client.sizes([*keys, "none"]), [*self.SIZES, None])
            self.assertEqual((client.sizes([]), client.stats()["bytes_read"]), ([], before))

    def test_misses(self):
        client = self.client()
        self.assertIsNone(client.get("none"))
        self.assertIsNone(client.get_into("none", bytearray(5)))
        self.assertIsNone(client.get_range("none", 0, 5))
        self.assertIsNone(client.view("none"))
        self.assertIsNone(client.size("none"))
        self.assertFalse(client.exists("none"))
        self.assertFalse(client.remove("none"))
        self.assertFalse(client.set_pin("none", "soft", 1000))
        self.assertEqual(client.get_many(["none"]), [None])
        self.assertEqual(client.get_many([]), [])
        self.assertEqual(client.put_many([]), [])
        self.assertEqual(client.prefix_length([]), 0)
        self.assertEqual(client.exists_many([]), [])
        self.assertEqual(client.remove_many([]), 0)

    def test_ranges(self):
        client = self.client()
        value = pattern((3 << 20) + 5)
        client.put("range", value)
        for offset, length in (
            (0, 1),
            (1, 10),
            (len(value) - 3, 3),
            (len(value) - 3, 10),
            (1 << 20, 1 << 20),
        ):
            self.assertEqual(
                client.get_range("range", offset, length), value[offset : offset + length]
            )
        into = bytearray(100)
        self.assertEqual(client.get_into("range", into, offset=len(value) - 7), 7)
        self.assertEqual(into[:7], value[-7:])
        self.assertEqual(client.get_into("range", into, offset=5, want=20), 20)
        self.assertEqual(into[:20], value[5:25])
        for offset, length in ((-1, 5), (0, 0), (len(value) + 1, 1)):
            with self.assertRaises(tarn.InvalidArgument):
                client.get_range("range", offset, length)

    def test_parts(self):
        client = self.client()
        parts = [b"abc", bytearray(b"x" * 70000), memoryview(b"--tail--")[2:6]]
        self.assertTrue(client.put_parts("parts", parts))
        self.assertFalse(client.put_parts("parts", parts))
        self.assertEqual(client.get("parts"), b"abc" + b"x" * 70000 + b"tail")
        first, second = bytearray(50000), bytearray(30000)
        self.assertEqual(
            client.get_many_into([("parts", [first, second]), ("none", first)]), [70007, -9]
        )
        self.assertEqual((first + second)[:70007], client.get("parts"))
        self.assertTrue(client.put_parts("no parts", []))
        self.assertEqual(client.get("no parts"), b"")

    def test_what_goes_together(self):
        client, n, value = self.client("?batch_keys=100"), 250, b"x" * 1000
        client.command("FLUSHALL")

        def figures():
            text = client.command("INFO")
            return [int(re.search(rf"\n{f}:(\d+)", text)[1]) for f in ("groups", "boundaries")]

        names = [f"full{i}" for i in range(n)] + [f"state{i}" for i in range(n)]
        ids = [f"b{i % n}" if i % n else None for i in range(2 * n)]
        statuses = client.put_many([(k, value) for k in names], boundary=ids)
        self.assertEqual(statuses, [0] * len(names))
        self.assertEqual(figures(), [0, n - 1])
        client.put_many([("a", value), ("b", value), ("c", value)], group=["g", b"h", "g"])
        client.put_many([("d", value), ("e", value)], group="i")
        client.put("f", value, boundary="b1")
        memory = pin(bytearray(value))
        with client.queue() as queue:
            for key, together in (("x", "y"), ("y", ["y"]), ("z", [None])):
                queue.put([key], [memory.address], [memory.size], boundary=together)
                self.assertTrue(wait_until(lambda: queue.poll(1)))
        with client.writer("w", 1000, boundary="z"):
            pass
        self.assertEqual(client.put_many([], boundary=[]), [])
        self.assertEqual(figures(), [3, n + 1])
        pairs = [("k", value), ("l", value)]
        for wrong in (dict(boundary=["x"]), dict(group=["x"] * 3), dict(boundary="x" * 1025)):
            try:
                self.assertEqual(set(client.put_many(pairs, **wrong)), {tarn.Status.EINVAL})
            except tarn.InvalidArgument:
                pass
        statuses = client.put_many(pairs, group="a", boundary="b")
        self.assertEqual(statuses, [tarn.Status.EINVAL] * 2)

    def test_put_options(self):
        client = self.client()
        client.put("o", b"old")
        self.assertTrue(client.put("o", b"new", replace=True))
        self.assertEqual(client.get("o"), b"new")
        client.put("t", b"x", ttl_ms=30)
        time.sleep(0.06)
        self.assertIsNone(client.get("t"))
        self.assertTrue(
            client.put("p", b"x" * 100, pin="hard", group="g", replicas=1, timeout_ms=5000)
        )
        self.assertTrue(client.set_pin("p", None))
        self.assertTrue(client.set_pin("p", "soft", 1000))
        for kind, ms in (("soft", 0), ("loose", 5)):
            with self.assertRaises(tarn.InvalidArgument):
                client.set_pin("p", kind, ms)
        with self.assertRaisesRegex(tarn.NotFound, "segment"):
            client.put("far", b"x" * 100, prefer=["no such segment"])
        for wrong in (
            dict(pin="loose"),
            dict(ttl_ms=-1),
            dict(replicas=-1),
            dict(timeout_ms=1 << 70),
            dict(ttl_ms="5 s"),
        ):
            with self.assertRaises(tarn.InvalidArgument, msg=wrong):
                client.put("w", b"x", **wrong)
        self.assertTrue(client.put("as text", b"x" * 100, ttl_ms="60000", replicas="1"))
        for wrong in (dict(prefer="name"), dict(ttl_ms=[5]), dict(nonsense=1)):
            with self.assertRaises(TypeError, msg=wrong):
                client.put("w", b"x", **wrong)
        with self.assertRaises(TypeError):
            client.put_many([("w", b"x")], nonsense=1)

    def test_prefix_and_removal(self):
        client = self.client()
        keys = [f"prefix:{i}" for i in range(10)]
        client.put_many([(k, b"x" * 100) for k in keys])
        self.assertEqual(client.prefix_length(keys + ["none"], lease_ms=500), 10)
        self.assertTrue(client.remove(keys[4]))
        self.assertEqual(client.prefix_length(keys), 4)
        self.assertEqual(client.exists_many(keys), [True] * 4 + [False] + [True] * 5)
        self.assertEqual(client.remove_many(keys), 9)

    def test_figures(self):
        client = self.client()
        client.put("figures", b"x" * 1000)
        client.get("figures")
        stats = client.stats()
        self.assertEqual(
            (stats["puts"], stats["put_stored"], stats["gets"], stats["get_hits"]), (1, 1, 1, 1)
        )
        self.assertGreaterEqual(stats["bytes_read"], 1000)
        histogram = client.histogram("get")
        self.assertEqual(histogram["count"], 1)
        self.assertGreater(histogram["max_us"], 0)
        self.assertEqual(histogram["buckets"][-1][1], 1)
        self.assertEqual(client.histogram("get_batch")["count"], 0)
        with self.assertRaises(tarn.InvalidArgument):
            client.histogram("coffee")
        labelled = self.client(cluster="east")
        labelled.get_many(["figures", "none"])
        lines = labelled.figures().splitlines()
        for line in (
            'tarn_client_get_hits_total{cluster="east"} 1',
            'tarn_client_get_misses_total{cluster="east"} 1',
            'tarn_client_batch_duration_seconds_count{cluster="east",operation="get"} 1',
        ):
            self.assertIn(line, lines)
        self.assertIn(" 1 found (50.0 %)", labelled.figures("summary"))
        with self.assertRaises(tarn.InvalidArgument):
            client.figures("coffee")
        with self.assertRaisesRegex(tarn.InvalidArgument, "cluster"):
            self.client(cluster="a\nb")
        self.assertEqual(client.command("PING"), "PONG")
        self.assertEqual(client.command("ECHO", b"a\xffb"), "a\udcffb")
        self.assertEqual(client.command("EXISTS", "figures", b"none"), "1")
        with self.assertRaisesRegex(tarn.Error, "(?i)unknown"):
            client.command("NONSENSE")
        self.assertEqual(tarn.library_version(), tarn.__version__)
        self.assertIn("127.0.0.1", repr(client))

    def test_sizes_of_more_than_31_bits(self):
        def there(client, key, length, data, size, options):
            size._obj.value = (1 << 63) - 16  # too much for bytes, and none for 31 bits
            return 0

        client = self.client()
        with unittest.mock.patch.object(tarn.client.lib, "tarn_get_alloc", there):
            with self.assertRaises(OverflowError):
                client.get("large")
        source = pattern(5000)
        pinned = tarn.memory.pin(source)
        self.assertEqual(tarn.memory.bytes_at(pinned.address, 5000), source)
        self.assertEqual(tarn.memory.bytes_at(0, 0), b"")


class Keys(TarnTest):
    def test_odd_keys(self):
        client = self.client()
        keys = [
            b"\0",
            b"\r\n",
            b"\xff\xfe",
            b"a b\tc",
            b"k" * 1024,
            "schlüssel",
            "鍵" * 300,
            "emoji 🗝",
            "%",
            b"\0" * 1024,
        ]
        for key in keys:
            self.assertTrue(client.put(key, repr(key).encode()), key)
        for key in keys:
            self.assertEqual(client.get(key), repr(key).encode())
        self.assertEqual(client.get("schlüssel".encode()), client.get("schlüssel"))
        # In batches: all text, all ASCII, all bytes, mixed.
        for batch in (["schlüssel", "%"], ["%"], [b"\0", b"\r\n"], keys):
            self.assertEqual(client.exists_many(batch), [True] * len(batch))
            self.assertEqual(client.get_many(batch), [repr(k).encode() for k in batch])
        self.assertEqual(client.exists_many(k for k in keys), [True] * len(keys))

    def test_wrong_keys(self):
        client = self.client()
        for key in ("", b"", "k" * 1025, "ü" * 513, "\ud800"):
            for call in (
                client.get,
                client.exists,
                client.remove,
                lambda k: client.put(k, b"x"),
                lambda k: client.view(k),
            ):
                with self.assertRaises(tarn.InvalidArgument, msg=repr(key)):
                    call(key)
            for batch in (
                client.exists_many,
                client.get_many,
                client.remove_many,
                client.prefix_length,
            ):
                with self.assertRaises(tarn.InvalidArgument, msg=repr(key)):
                    batch(["fine", key])
        for key in (None, 5, ["a"]):
            with self.assertRaises(TypeError):
                client.get(key)
            with self.assertRaises(TypeError):
                client.get_many(["fine", key])
        with self.assertRaises(TypeError):
            client.get_many("one key")
        with self.assertRaises(TypeError):
            client.exists_many(5)

    def test_thousands(self):
        client = self.client("?batch_keys=1000")
        n, size = 5000, 512
        keys = [f"many:{i:05}" for i in range(n)]
        memory = bytearray(b"".join(i.to_bytes(4, "little") * (size // 4) for i in range(n)))
        base = address(memory)
        addresses = [base + i * size for i in range(n)]
        self.assertEqual(client.put_from_many(keys, addresses, size), [0] * n)
        self.assertEqual(
            client.put_from_many(keys[:10], addresses[:10], [size] * 10), [tarn.Status.EEXISTS] * 10
        )
        into = bytearray(n * size)
        wanted = keys[:2500] + ["none"] + keys[2500:]
        to = [address(into) + i * size for i in range(n)]
        results = client.get_into_many(wanted, to[:2500] + [to[0]] + to[2500:], [size] * (n + 1))
        self.assertEqual(results, [size] * 2500 + [tarn.Status.ENOTFOUND] + [size] * 2500)
        self.assertEqual(into, memory)
        self.assertEqual(client.prefix_length(wanted), 2500)
        self.assertEqual(client.remove_many(keys), n)

    def test_offsets_and_pieces(self):
        client = self.client()
        values = [pattern(9000, i) for i in range(3)]
        parts = [bytearray(v[:4000]) for v in values], [bytearray(v[4000:]) for v in values]
        addresses = [[address(a), address(b)] for a, b in zip(*parts)]
        self.assertEqual(
            client.put_from_many(["x0", "x1", "x2"], addresses, [[4000, 5000]] * 3), [0, 0, 0]
        )
        self.assertEqual(client.get_many(["x0", "x1", "x2"]), values)
        into = bytearray(3000)
        to = address(into)
        results = client.get_into_many(
            ["x0", "x1", "x2"],
            [to, [to + 1000, to + 1500], to + 2000],
            [1000, [500, 500], 1000],
            offsets=[0, 4000, 8500],
        )
        self.assertEqual(results, [-24, -24, 500])  # the rest of the first two does not fit
        results = client.get_into_many(
            ["x0", "x1", "x2"],
            [to, [to + 1000, to + 1500], (to + 2000,)],
            [1000, [500, 500], [1000]],
            offsets=[0, 4000, 8500],
            wants=[1000, 1000, 1000],
        )
        self.assertEqual(results, [1000, 1000, 500])
        self.assertEqual(into[:2500], values[0][:1000] + values[1][4000:5000] + values[2][8500:])

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_addresses_of_numpy(self):
        client = self.client()
        source, target = numpy.arange(4096, dtype=numpy.uint8).reshape(4, 1024), numpy.zeros(
            (4, 1024), numpy.uint8
        )
        where = source.ctypes.data + numpy.arange(4, dtype=numpy.int64) * 1024
        keys = [f"numpy:{i}" for i in range(4)]
        self.assertEqual(client.put_from_many(keys, where, numpy.full(4, 1024)), [0] * 4)
        into = target.ctypes.data + numpy.arange(4, dtype=numpy.uint64).reshape(4, 1) * 1024
        self.assertEqual(client.get_into_many(keys, into, [[1024]] * 4), [1024] * 4)
        self.assertTrue((source == target).all())

    def test_wrong_columns(self):
        client = self.client()
        memory = bytearray(100)
        at = address(memory)
        for addresses, sizes in (
            ([at], [100, 1]),
            ([at, at], 100),
            ([[at]], [[50, 50]]),
            ([0], [10]),
            ([-1], [10]),
            ([at], -1),
        ):
            with self.assertRaises(tarn.InvalidArgument, msg=(addresses, sizes)):
                client.get_into_many(["k"], addresses, sizes)
        for addresses, sizes in ((["x"], 10), (at, 10), ([at], ["10"]), ([at], None)):
            with self.assertRaises(TypeError, msg=(addresses, sizes)):
                client.get_into_many(["k"], addresses, sizes)
        with self.assertRaises(tarn.InvalidArgument):
            client.get_into_many(["k"], [at], 100, offsets=[1, 2])
        with self.assertRaises(tarn.InvalidArgument):
            client.put_from("k", 0, 10)
        with self.assertRaises(TypeError):
            client.put_from("k", "0", 10)


def address(memory):
    """Of a bytearray, which stays where it is as long as nobody changes its length."""
    from tarn.memory import pin

    return pin(memory).address


READ_TWICE = """
import sys, tarn
for transport in sys.argv[2:]:
    with tarn.Client(sys.argv[1], transport=transport) as client:
        assert client.get("a") == client.get("a") == bytes(100_000)
        stats = client.stats()
        print(stats["shm_unreachable"], stats["shm_bytes_read"], stats["tcp_bytes_read"])
"""


class Ways(TarnTest):
    def read(self, *transports):
        argv = [sys.executable, "-c", READ_TWICE, self.server.url, *transports]
        env = dict(environment(python=True), PYTHONPATH=os.pathsep.join(sys.path))
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=300
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines(), done.stderr

    def test_it_is_said_once_why_bytes_of_this_machine_go_by_tcp(self):
        with self.client() as client:
            client.put("a", bytes(100_000))
            info = client.command("INFO", "server")
        self.assertEqual(self.read("auto"), (["0 200000 0"], ""))
        os.unlink(re.search(r"shm_socket:(\S+)", info).group(1))
        lines, said = self.read("auto")
        self.assertRegex(lines[0], r"^[1-9]\d* 0 200000$")
        self.assertRegex(
            said, r"^libtarn: .*bytes go by tcp: shm socket \S+: No such file or directory.*\n$"
        )
        self.assertEqual(self.read("tcp")[1], "")  # which was asked for


class Buffers(TarnTest):
    def test_everything_with_memory(self):
        client = self.client()
        value = pattern(8000)
        with mmap.mmap(-1, 8192) as shared:
            shared[:8000] = value
            sources = {
                "bytes": value,
                "bytearray": bytearray(value),
                "memoryview": memoryview(b"xx" + value + b"yy")[2:-2],
                "array": array.array("I", value),
                "tensor": Tensor(value),
            }
            if numpy is not None:
                sources["numpy"] = numpy.frombuffer(value, numpy.uint16).reshape(40, 100)
                sources["numpy slice"] = numpy.frombuffer(value * 3, numpy.uint8)[8000:16000]
            for name, source in sources.items():
                self.assertTrue(client.put(name, source), name)
                self.assertEqual(client.get(name), value, name)
            client.put("mmap", memoryview(shared)[:8000])
            self.assertEqual(client.get("mmap"), value)
            self.assertEqual(client.get_into("bytes", shared), 8000)
        self.assertTrue(client.put("memory", tarn.Memory(address(sources["bytearray"]), 8000)))
        self.assertTrue(client.put("tuple", (address(sources["bytearray"]), 8000)))
        self.assertEqual(client.get_many(["memory", "tuple"]), [value, value])

    def test_writable_targets(self):
        client = self.client()
        value = pattern(8000)
        client.put("target", value)
        targets = [
            bytearray(8000),
            memoryview(bytearray(8004))[2:-2],
            array.array("d", bytes(8000)),
            Tensor(bytes(8000)),
        ]
        if numpy is not None:
            targets.append(numpy.zeros((8, 500), numpy.int16))
        for target in targets:
            self.assertEqual(client.get_into("target", target), 8000)
            self.assertEqual(bytes(target.array if isinstance(target, Tensor) else target), value)

    def test_refused(self):
        client = self.client()
        client.put("v", b"x" * 100)
        with self.assertRaisesRegex(tarn.InvalidArgument, "writable"):
            client.get_into("v", b"x" * 100)
        with self.assertRaisesRegex(tarn.InvalidArgument, "contiguous"):
            client.put("w", memoryview(b"x" * 100)[::2])
        with self.assertRaisesRegex(tarn.InvalidArgument, "contiguous"):
            client.put("w", Tensor(b"x", contiguous=False))
        with self.assertRaisesRegex(tarn.InvalidArgument, "register_dmabuf"):
            client.put("w", Tensor(b"x", kind="cuda"))
        for wrong in ("text", 5, None, (1, 2, 3), ("a", 5)):
            with self.assertRaises(TypeError, msg=wrong):
                client.put("w", wrong)
        for wrong in ((-1, 5), (0, 5), (1 << 64, 1), (5, -1)):
            with self.assertRaises(tarn.InvalidArgument, msg=wrong):
                client.put("w", wrong)
        if numpy is not None:
            with self.assertRaisesRegex(tarn.InvalidArgument, "contiguous"):
                client.put("w", numpy.zeros((10, 10)).T[1:])
            locked = numpy.zeros(100, numpy.uint8)
            locked.flags.writeable = False
            with self.assertRaisesRegex(tarn.InvalidArgument, "writable"):
                client.get_into("v", locked)
        self.assertFalse(client.exists("w"))

    def test_buffers_are_let_go(self):
        client = self.client()
        memory = bytearray(1000)
        client.put("go", memory)
        client.get_into("go", memory)
        memory.append(1)  # BufferError if something still held it

    def test_registered(self):
        client = self.client()
        memory = mmap.mmap(-1, 1 << 20)
        client.register_buffer(memory)
        with self.assertRaises(tarn.Exists):
            client.register_buffer(memory)
        memory[:5] = b"hello"
        client.put("registered", memory)
        self.assertEqual(client.get_into("registered", memory), 1 << 20)
        client.unregister_buffer(memory)
        with self.assertRaises(tarn.NotFound):
            client.unregister_buffer(memory)
        other = bytearray(4096)
        client.register_buffer(address(other), 4096)
        client.unregister_buffer(address(other))
        with self.assertRaises(TypeError):
            client.register_buffer(address(other))
        with self.assertRaises(tarn.InvalidArgument):
            client.register_buffer(other, 5000)

    def test_a_register_of_devices(self):
        client = self.client("?transport=tcp")
        memory = mmap.mmap(-1, 1 << 20)
        at = address(memory)
        fd = os.memfd_create("not quite a dma-buf")
        try:
            os.truncate(fd, 1 << 20)
            client.register_dmabuf(at, 1 << 20, fd)
        finally:
            os.close(fd)
        with self.assertRaises(tarn.NotSupported):
            client.put_from("device", at, 1 << 20)
        client.unregister_buffer(at)
        with self.assertRaises(tarn.InvalidArgument):
            client.register_dmabuf(at, 1 << 20, -1)


class InPlace(TarnTest):
    def test_view(self):
        client = self.client("?transport=shm")
        for n in (0, 10, 100000):
            value = pattern(n)
            client.put(f"view{n}", value)
            with client.view(f"view{n}") as view:
                self.assertEqual((view.size, len(view), bytes(view.data)), (n, n, value))
                self.assertEqual(b"".join(view.pieces), value)
                self.assertTrue(view.data.readonly)
                self.assertGreater(view.version, 0)
                self.assertGreater(view.valid_ms(), 1000)
                view.check()
                view.verify()
                data = view.data
            with self.assertRaises(tarn.Closed):
                view.check()
            if n:
                with self.assertRaises(ValueError):
                    data[0]
            view.release()
        self.assertEqual(client.stats()["views_open"], 0)

    def test_lease(self):
        client = self.client("?transport=shm")
        client.put("lease", pattern(1000))
        with client.view("lease", lease_ms=3000) as view:
            view.renew(6000)
            self.assertGreater(view.valid_ms(), 3000)
            wait_until(lambda: view.valid_ms() == 0, what="the lease ends")
            with self.assertRaises(tarn.LeaseOver):
                view.check()
        with client.view("lease") as view:
            client.remove("lease")
            with self.assertRaises(tarn.NotFound):
                view.renew()

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_arrays_outlive_a_view(self):
        client = self.client("?transport=shm")
        value = pattern(100000)
        client.put("array", value)
        with client.view("array") as view:
            data = numpy.frombuffer(view.data, numpy.uint8)
        client.close()
        self.assertEqual(data.tobytes(), value)  # its memory is still mapped
        with self.assertRaises(ValueError):
            data[0] = 1

    def test_views_elsewhere(self):
        client = self.client("?transport=tcp")
        client.put("far", b"x" * 1000)
        with self.assertRaisesRegex(tarn.Stale, "get"):
            client.view("far")

    def test_views_wait(self):
        client, other = self.client("?transport=shm"), self.client()
        timer = threading.Timer(0.7, lambda: other.put("late view", b"x" * 100))
        timer.start()
        with client.view("late view", wait_ms=20000) as view:
            self.assertEqual(view.size, 100)
        timer.join()
        self.assertIsNone(client.view("never", wait_ms=50))

    def test_writer(self):
        for query, in_place in (("?transport=shm", True), ("?transport=tcp", False)):
            client = self.client(query)
            for n in (0, 10, 100000):
                key, value = f"writer{query}{n}", pattern(n)
                with client.writer(key, n) as writer:
                    self.assertEqual(len(writer), n)
                    self.assertEqual(writer.in_place, in_place and n > 64)
                    self.assertFalse(client.exists(key))
                    writer.data[:] = value
                self.assertTrue(writer.ended)
                self.assertEqual(client.get(key), value)
                with self.assertRaises(tarn.Closed):
                    writer.commit()
                with self.assertRaises(tarn.Exists):
                    client.writer(key, n)

    def test_aborted_writer(self):
        client = self.client("?transport=shm")
        with self.assertRaises(ZeroDivisionError):
            with client.writer("aborted", 1000) as writer:
                writer.data[0] = 1 // 0
        self.assertFalse(client.exists("aborted"))
        writer = client.writer("aborted", 1000)
        with self.assertRaises(tarn.Busy):
            self.client().put("aborted", b"y" * 100)
        del writer  # aborts
        self.assertTrue(client.put("aborted", b"y" * 100))
        self.assertEqual(client.stats()["writers_open"], 0)
        for size in (-1, "5"):
            with self.assertRaises(tarn.InvalidArgument):
                client.writer("w", size)

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_damage_is_noticed(self):
        """Somebody goes on writing after the commit."""
        client = self.client("?transport=shm&retries=0")
        with client.writer("damaged", 100000) as writer:
            data = numpy.frombuffer(writer.data, numpy.uint8)
            data[:] = 7
        with client.view("damaged") as view:
            data[5] = 8
            with self.assertRaises(tarn.Corrupt):
                view.verify()
        # The server is told, and lets go of it: damaged, or not there any more.
        try:
            self.assertIsNone(client.get("damaged"))
        except tarn.Corrupt as e:
            self.assertEqual(e.name, "ECORRUPT")

    def test_objects_without_a_client(self):
        for kind in (tarn.View, tarn.Writer, tarn.Queue):
            with self.assertRaises(TypeError):
                kind()

    def test_a_client_goes_when_nothing_uses_it(self):
        client = self.client("?transport=shm&name=going")
        watcher = self.client()
        client.put("going", b"x" * 1000)
        view = client.view("going")
        client.close()
        self.assertTrue(client.closed)
        view.check()
        self.assertIn("name=going", watcher.command("CLIENT", "LIST"))
        view.release()
        wait_until(lambda: "name=going" not in watcher.command("CLIENT", "LIST"), what="it goes")


if __name__ == "__main__":
    sys.exit(unittest.main())
