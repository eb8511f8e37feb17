"""libtarn through ctypes, against a real server: whatever works here needs no C compiler and no
macros.

    export TARN_SERVER=src/tarn-server TARN_LIB=src/libtarn.so
    /usr/bin/python3 tests/integration/ctypes_test.py

Ends with "N passed, M failed". Needs nothing but Python's own library."""

import ctypes as C
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVER = os.environ.get("TARN_SERVER", os.path.join(ROOT, "src/tarn-server"))
LIB = C.CDLL(os.environ.get("TARN_LIB", os.path.join(ROOT, "src/libtarn.so")))

OK, EINVAL, ETIMEOUT, EIO, ENOTFOUND, EEXISTS, ENOSPACE, EPERM, ELIMIT, ELEASE, ECANCELED = (
    0,
    -3,
    -5,
    -7,
    -9,
    -10,
    -12,
    -16,
    -24,
    -19,
    -25,
)
U64, SIZE, PTR, STR = C.c_uint64, C.c_size_t, C.c_void_p, C.c_char_p


class Iovec(C.Structure):
    _fields_ = [("base", PTR), ("len", SIZE)]


class Call(C.Structure):
    _fields_ = [("size", SIZE), ("timeout_ms", U64), ("lease_ms", U64), ("wait_ms", U64)]


class PutOptions(C.Structure):
    _fields_ = [
        ("size", SIZE),
        ("timeout_ms", U64),
        ("replace", C.c_int),
        ("exists_ok", C.c_int),
        ("replicas", C.c_uint),
        ("pin", C.c_int),
        ("pin_ms", U64),
        ("ttl_ms", U64),
        ("group", PTR),
        ("group_len", SIZE),
        ("prefer", PTR),
        ("prefers", SIZE),
        ("groups", PTR),
        ("boundaries", PTR),
    ]


class Key(C.Structure):
    _fields_ = [("data", STR), ("len", SIZE)]


class Item(C.Structure):
    _fields_ = [
        ("key", STR),
        ("key_len", SIZE),
        ("buffer", PTR),
        ("buffer_len", SIZE),
        ("iov", PTR),
        ("n_iov", SIZE),
        ("offset", U64),
        ("want", U64),
        ("got", U64),
        ("value_size", U64),
        ("version", U64),
        ("status", C.c_int32),
        ("reserved", C.c_uint32),
    ]


class Completion(C.Structure):
    _fields_ = [
        ("id", U64),
        ("user", PTR),
        ("op", C.c_int32),
        ("status", C.c_int32),
        ("items", PTR),
        ("n", SIZE),
        ("done", SIZE),
    ]


LIB.tarn_last_error.restype = STR
LIB.tarn_version.restype = STR
LIB.tarn_view_data.restype = PTR
LIB.tarn_view_data.argtypes = [PTR]
LIB.tarn_view_size.restype = U64
LIB.tarn_view_size.argtypes = [PTR]
LIB.tarn_view_valid_ms.restype = U64
LIB.tarn_view_valid_ms.argtypes = [PTR]
LIB.tarn_writer_data.restype = PTR
LIB.tarn_writer_data.argtypes = [PTR]
LIB.tarn_async_poll.restype = SIZE
LIB.tarn_async_poll.argtypes = [PTR, C.POINTER(Completion), SIZE, U64]
LIB.tarn_get.argtypes = [PTR, STR, SIZE, PTR, SIZE, C.POINTER(SIZE), PTR]
LIB.tarn_put.argtypes = [PTR, STR, SIZE, PTR, SIZE, PTR]
LIB.tarn_get_range.argtypes = [PTR, STR, SIZE, U64, PTR, SIZE, C.POINTER(SIZE), PTR]
LIB.tarn_writer_open.argtypes = [PTR, STR, SIZE, U64, PTR, C.POINTER(PTR)]
LIB.tarn_wait.argtypes = [PTR, STR, SIZE, U64]


def last_error():
    return LIB.tarn_last_error().decode()


class Server:
    def __init__(self, *args):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.args = args
        self.dir = tempfile.mkdtemp(prefix="tarn-ctypes.", dir=os.environ.get("TMPDIR"))
        self.start()

    def start(self):
        # What is preloaded into Python for a library with a sanitizer is not for the server.
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        env["ASAN_OPTIONS"] = env.get("TARN_ASAN_OPTIONS", env.get("ASAN_OPTIONS", ""))
        self.log = open(os.path.join(self.dir, "log"), "ab")
        self.process = subprocess.Popen(
            [
                SERVER,
                "--bind",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--data-port",
                "0",
                "--dir",
                self.dir,
                *self.args,
            ],
            stdout=self.log,
            stderr=self.log,
            stdin=subprocess.DEVNULL,
            env=env,
        )
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(open(os.path.join(self.dir, "log")).read())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)
        self.log.close()


class Client:
    def __init__(self, port, query="", user=""):
        self.p = PTR()
        self.status = LIB.tarn_connect(
            f"tarn://{user}127.0.0.1:{port}{query}".encode(), None, C.byref(self.p)
        )

    def put(self, key, value, **options):
        o = PutOptions(size=C.sizeof(PutOptions), **options)
        return LIB.tarn_put(
            self.p, key, len(key), C.cast(C.c_char_p(value), PTR), len(value), C.byref(o)
        )

    def get(self, key, cap=1 << 20, **call):
        buffer, n = C.create_string_buffer(cap), SIZE(0)
        status = LIB.tarn_get(
            self.p, key, len(key), buffer, cap, C.byref(n), C.byref(Call(C.sizeof(Call), **call))
        )
        return buffer.raw[: n.value] if status == OK else status

    def close(self):
        LIB.tarn_close(C.byref(self.p))


def random_bytes(n):
    return os.urandom(min(n, 1 << 16)) * (n // (1 << 16) + 1) if n > 1 << 16 else os.urandom(n)


# --- tests: each gets a running server


def test_values_of_every_size(server):
    for query in ("", "?transport=shm", "?transport=tcp"):
        c = Client(server.port, query)
        for n in (0, 1, 64, 65, 4095, 4096, 70001, 1 << 20, (1 << 20) + 1, 5 << 20):
            key, value = f"{query}:{n}".encode(), random_bytes(n)[:n]
            assert c.put(key, value) == OK, last_error()
            assert c.get(key, 6 << 20) == value, (query, n)
            assert c.put(key, value) == EEXISTS
            assert c.put(key, value, exists_ok=1) == OK
            assert c.get(key, n - 1) == ELIMIT if n > 0 else True
        c.close()


def test_keys(server):
    c = Client(server.port)
    assert c.put(b"\0\r\n\xff" * 256, b"x" * 100) == OK
    assert c.get(b"\0\r\n\xff" * 256) == b"x" * 100
    assert c.put(b"", b"x") == EINVAL
    assert c.put(b"k" * 1025, b"x") == EINVAL and "1024" in last_error()
    assert c.get(b"nothing") == ENOTFOUND
    c.close()


def test_ranges_and_alloc(server):
    c = Client(server.port, "?transport=tcp")
    for n in (50, 5000, (3 << 20) + 777):
        key, value = b"range:%d" % n, random_bytes(n)[:n]
        assert c.put(key, value) == OK
        for offset, length in (
            (0, n),
            (0, 1),
            (n - 1, 1),
            (n // 3, n // 3),
            (n // 2, n),
            (1 << 20, 1 << 20),
            (n, 5),
        ):
            buffer, got = C.create_string_buffer(length), SIZE(0)
            status = LIB.tarn_get_range(
                c.p, key, len(key), offset, buffer, length, C.byref(got), None
            )
            if offset > n:
                assert status == EINVAL
            else:
                assert status == OK, last_error()
                assert buffer.raw[: got.value] == value[offset : offset + length], (
                    n,
                    offset,
                    length,
                )
        data, size = PTR(), SIZE()
        assert (
            LIB.tarn_get_alloc(c.p, key, SIZE(len(key)), C.byref(data), C.byref(size), None) == OK
        )
        assert C.string_at(data, size.value) == value
        LIB.tarn_free(data)
    c.close()


def make_items(keys, buffers):
    items = (Item * len(keys))()
    for i, (key, buffer) in enumerate(zip(keys, buffers)):
        items[i].key, items[i].key_len = key, len(key)
        items[i].buffer, items[i].buffer_len = C.cast(buffer, PTR), len(buffer)
    return items


def test_batches_of_thousands(server):
    c = Client(server.port, "?batch_keys=1000")
    keys = [b"batch:%05d" % i for i in range(5000)]
    values = [
        C.create_string_buffer(bytes([i % 251]) * (i % 300 + 1), i % 300 + 1) for i in range(5000)
    ]
    failed, hits = SIZE(), SIZE()
    items = make_items(keys, values)
    assert LIB.tarn_put_many(c.p, items, SIZE(5000), None, C.byref(failed)) == OK, last_error()
    assert failed.value == 0
    # Twice the same keys, and some that are missing, over several chunks.
    wanted = keys + keys[:700] + [b"missing:%d" % i for i in range(300)]
    into = [C.create_string_buffer(301) for _ in wanted]
    items = make_items(wanted, into)
    assert LIB.tarn_get_many(c.p, items, SIZE(len(wanted)), None, C.byref(hits)) == OK, last_error()
    assert hits.value == 5700
    for i, item in enumerate(items):
        j = i if i < 5000 else i - 5000
        if i >= 5700:
            assert item.status == ENOTFOUND
        else:
            assert item.status == OK and item.got == j % 300 + 1
            assert into[i].raw[: item.got] == values[j].raw, i
    pairs = (Key * 5001)(*[Key(k, len(k)) for k in keys + [b"no"]])
    length, found = SIZE(), (C.c_uint8 * 5001)()
    assert (
        LIB.tarn_prefix_length(c.p, pairs, SIZE(5001), None, C.byref(length)) == OK
        and length.value == 5000
    )
    assert LIB.tarn_exists_many(c.p, pairs, SIZE(5001), found) == OK and sum(found) == 5000
    removed = SIZE()
    assert (
        LIB.tarn_remove_many(c.p, pairs, SIZE(5001), C.byref(removed)) == OK
        and removed.value == 5000
    )
    # The same key twice in one batch of puts: the second finds it there.
    items = make_items([b"twin", b"twin"], [C.create_string_buffer(b"a" * 100, 100)] * 2)
    assert LIB.tarn_put_many(c.p, items, SIZE(2), None, C.byref(failed)) == OK
    assert (items[0].status, items[1].status, failed.value) == (OK, EEXISTS, 0), (
        items[0].status,
        items[1].status,
    )
    c.close()


def test_scatter(server):
    c = Client(server.port, "?transport=tcp")
    parts = [
        C.create_string_buffer(bytes([65 + i]) * n, n) for i, n in enumerate((3, 70000, 1, 4096))
    ]
    iov = (Iovec * 4)(*[Iovec(C.cast(p, PTR), len(p)) for p in parts])
    assert LIB.tarn_putv(c.p, b"sc", SIZE(2), iov, SIZE(4), None) == OK
    into = [C.create_string_buffer(n) for n in (50000, 24100)]
    iov2 = (Iovec * 2)(*[Iovec(C.cast(p, PTR), len(p)) for p in into])
    n = SIZE()
    assert LIB.tarn_getv(c.p, b"sc", SIZE(2), iov2, SIZE(2), C.byref(n), None) == OK, last_error()
    assert (into[0].raw + into[1].raw)[: n.value] == b"".join(p.raw for p in parts)
    c.close()


def test_replace_ttl_and_wait(server):
    c = Client(server.port)
    assert c.put(b"r", b"old" * 100) == OK and c.put(b"r", b"new" * 100, replace=1) == OK
    assert c.get(b"r") == b"new" * 100
    assert c.put(b"t", b"x" * 100, ttl_ms=50) == OK
    time.sleep(0.1)
    assert c.get(b"t") == ENOTFOUND
    start = time.monotonic()
    assert LIB.tarn_wait(c.p, b"later", 5, 200) == ETIMEOUT and 0.15 < time.monotonic() - start < 5
    other = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket,sys,time; time.sleep(.3); s=socket.create_connection("
            "('127.0.0.1',int(sys.argv[1]))); s.sendall(b'SET later yes\\r\\n'); s.recv(9)",
            str(server.port),
        ]
    )
    assert c.get(b"later", wait_ms=10000) == b"yes"
    other.wait()
    c.close()


def test_views(server):
    c = Client(server.port, "?transport=shm")
    value = random_bytes(100000)[:100000]
    assert c.put(b"view", value) == OK
    view, twin = PTR(), PTR()
    call = Call(C.sizeof(Call), lease_ms=300)
    assert (
        LIB.tarn_view_open(c.p, b"view", SIZE(4), C.byref(call), C.byref(view)) == OK
    ), last_error()
    assert LIB.tarn_view_open(c.p, b"view", SIZE(4), C.byref(call), C.byref(twin)) == OK
    LIB.tarn_view_release(C.byref(twin))  # must not end the lease of the other
    assert LIB.tarn_view_size(view) == len(value)
    assert c.put(b"view", b"other" * 1000, replace=1) == OK
    assert C.string_at(LIB.tarn_view_data(view), len(value)) == value
    assert LIB.tarn_view_check(view) == OK and LIB.tarn_view_verify(view) == OK
    assert LIB.tarn_view_renew(view, U64(1000)) == ENOTFOUND  # this version is gone
    time.sleep(0.4)
    assert LIB.tarn_view_valid_ms(view) == 0 and LIB.tarn_view_check(view) == ELEASE
    LIB.tarn_view_release(C.byref(view))
    assert LIB.tarn_view_open(c.p, b"view", SIZE(4), C.byref(call), C.byref(view)) == OK
    for _ in range(3):
        time.sleep(0.15)
        assert LIB.tarn_view_renew(view, U64(300)) == OK, last_error()
    assert LIB.tarn_view_check(view) == OK
    LIB.tarn_view_release(C.byref(view))
    c.close()


def test_writers(server):
    for query, in_place in (("?transport=shm", 1), ("?transport=tcp", 0)):
        c = Client(server.port, query)
        for n in (10, 5000, 3 << 20):
            key, value, w = f"w{query}{n}".encode(), random_bytes(n)[:n], PTR()
            assert LIB.tarn_writer_open(c.p, key, len(key), n, None, C.byref(w)) == OK, last_error()
            assert LIB.tarn_writer_in_place(w) == (in_place if n > 64 else 0)
            C.memmove(LIB.tarn_writer_data(w), value, n)
            assert c.get(key, n) == ENOTFOUND
            assert LIB.tarn_writer_commit(C.byref(w)) == OK, last_error()
            assert c.get(key, n) == value
            assert LIB.tarn_writer_open(c.p, key, len(key), n, None, C.byref(w)) == EEXISTS
            key += b"a"
            assert LIB.tarn_writer_open(c.p, key, len(key), n, None, C.byref(w)) == OK
            assert LIB.tarn_writer_abort(C.byref(w)) == OK
            assert c.get(key, n) == ENOTFOUND and c.put(key, value) == OK
        c.close()


def test_async(server):
    c = Client(server.port)
    q = PTR()
    assert LIB.tarn_async_open(c.p, SIZE(8), C.byref(q)) == OK
    fd = LIB.tarn_async_fd(q)
    values = [C.create_string_buffer(bytes([i]) * 5000, 5000) for i in range(8)]
    batches = [make_items([b"async:%d" % i], [values[i]]) for i in range(8)]
    for i in range(8):
        assert LIB.tarn_async_put(q, batches[i], SIZE(1), None, PTR(1000 + i), None) == OK
    assert LIB.tarn_async_get(q, batches[0], SIZE(1), None, None, None) == -4  # EAGAIN: full
    done = []
    out = (Completion * 8)()
    while len(done) < 8:
        assert select.select([fd], [], [], 10)[0], "the eventfd stays silent"
        done += [
            (out[i].user, out[i].status, out[i].done)
            for i in range(LIB.tarn_async_poll(q, out, 3, 0))
        ]
    assert sorted(done) == [(1000 + i, OK, 1) for i in range(8)]
    assert not select.select([fd], [], [], 0)[0]
    into = C.create_string_buffer(5000)
    items = make_items([b"async:7"], [into])
    assert LIB.tarn_async_get(q, items, SIZE(1), None, None, None) == OK
    assert LIB.tarn_async_poll(q, out, 8, 10000) == 1 and into.raw == values[7].raw
    # Cancelled or done, but once each.
    ids = [U64() for _ in range(8)]
    for i in range(8):
        assert LIB.tarn_async_get(q, batches[i], SIZE(1), None, None, C.byref(ids[i])) == OK
    cancelled = sum(LIB.tarn_async_cancel(q, i) == OK for i in ids)
    seen = []
    while len(seen) < 8:
        seen += [out[i].status for i in range(LIB.tarn_async_poll(q, out, 8, 10000))]
    assert seen.count(ECANCELED) == cancelled and seen.count(OK) == 8 - cancelled
    LIB.tarn_async_close(C.byref(q))
    c.close()


def test_full_pool(server):
    """256 MiB fit in 64 MiB only one after the other; what never fits is refused at once."""
    c = Client(server.port)
    for i in range(16):
        assert c.put(b"full:%d" % i, bytes([i]) * (16 << 20)) == OK, last_error()
    assert c.get(b"full:15", 16 << 20) == bytes([15]) * (16 << 20)
    start = time.monotonic()
    assert (
        c.put(b"huge", b"x" * (65 << 20)) == ENOSPACE and time.monotonic() - start < 5
    ), last_error()
    c.close()


def test_server_killed(server):
    c = Client(server.port, "?retries=8&backoff_max_ms=500&timeout_ms=20000")
    assert c.put(b"before", b"x" * 10000) == OK
    server.kill()
    assert c.get(b"before", timeout_ms=300) < 0
    server.start()
    assert c.get(b"before") == ENOTFOUND, last_error()
    assert c.put(b"after", b"y" * 10000) == OK, last_error()
    assert c.get(b"after") == b"y" * 10000
    c.close()


def test_refusals(server):
    assert Client(1, "?retries=1").status == EIO and "tarn-server" in last_error()
    p = PTR()
    assert LIB.tarn_connect(b"tarn://no.such.host.invalid", None, C.byref(p)) == EINVAL
    assert "resolve" in last_error()
    locked = Server("--pool-size", "64mb", "--requirepass", "se:cret")
    try:
        assert Client(locked.port).status == EPERM, last_error()
        assert Client(locked.port, user=":wrong@").status == EPERM and "password" in last_error()
        c = Client(locked.port, user=":se%3Acret@")
        assert c.status == OK and c.put(b"k", b"v" * 100) == OK, last_error()
        c.close()
    finally:
        locked.stop()


def test_fork_and_version(server):
    assert LIB.tarn_version().decode().count(".") == 2
    c = Client(server.port)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if c.get(b"x") == -6 else 1)  # ECLOSED
    assert os.waitpid(pid, 0)[1] == 0
    assert c.get(b"x") == ENOTFOUND
    c.close()


def main():
    tests = [f for name, f in globals().items() if name.startswith("test_")]
    only = sys.argv[1:]
    passed = failed = 0
    server = Server("--pool-size", "64mb")
    try:
        for test in tests:
            if only and test.__name__ not in only:
                continue
            try:
                test(server)
                passed += 1
                print("ok", test.__name__)
            except Exception as e:  # noqa: BLE001 - a failed test must not end the others
                failed += 1
                line = (
                    e.__traceback__.tb_next.tb_lineno
                    if e.__traceback__ and e.__traceback__.tb_next
                    else 0
                )
                print(f"not ok {test.__name__}: line {line}: {e!r} (last error: {last_error()})")
    finally:
        server.stop()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
