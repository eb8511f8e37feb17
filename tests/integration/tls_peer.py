"""Clients of the TLS port that tls_test.tcl cannot be: tls_peer.py CASE PORT DIRECTORY. Prints "ok"
or raises."""

import hashlib
import os
import select
import socket
import ssl
import sys
from typing import List

CERTS: str = ""
PORT: int = 0


def context() -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=os.path.join(CERTS, "ca.crt"))
    made.check_hostname = False
    made.load_cert_chain(os.path.join(CERTS, "user.crt"), os.path.join(CERTS, "user.key"))
    return made


class Memory:
    """TLS whose records are in our hands: what is sent to the socket, and when."""

    def __init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=30)
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context().wrap_bio(self.into, self.out, server_side=False)
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.push()
                self.pull()
        self.push()

    def push(self) -> None:
        self.socket.sendall(self.out.read())

    def pull(self) -> bool:
        """More ciphertext; False at the end."""
        data = self.socket.recv(65536)
        if data:
            self.into.write(data)
        else:
            self.into.write_eof()
        return bool(data)

    def records(self, plain: bytes) -> bytes:
        self.tls.write(plain)
        return self.out.read()

    def exchange(self, request: bytes, size: int) -> bytes:
        """Sends and reads at the same time, until so many bytes are there."""
        got, unsent, at = bytearray(), b"", 0
        while len(got) < size:
            if not unsent and at < len(request):
                unsent = self.records(request[at : at + 100000])
                at += 100000
            can_read, can_write, _ = select.select(
                [self.socket], [self.socket] if unsent else [], [], 30
            )
            assert can_read or can_write, "%d of %d bytes came" % (len(got), size)
            if can_write:
                unsent = unsent[self.socket.send(unsent[:65536]) :]
            if can_read:
                assert self.pull(), "the server has closed it after %d of %d bytes" % (
                    len(got),
                    size,
                )
                try:
                    while True:
                        got += self.tls.read(65536)
                except ssl.SSLWantReadError:
                    pass
        return bytes(got)

    def read_all(self) -> bytes:
        """What the server says until its goodbye."""
        got = b""
        while True:
            try:
                piece = self.tls.read(65536)
                if not piece:
                    return got
                got += piece
            except ssl.SSLWantReadError:
                self.pull()
            except ssl.SSLZeroReturnError:
                return got


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def read_exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        piece = connection.recv(min(size - len(got), 1 << 20))
        assert piece, "the connection ended after %d of %d bytes" % (len(got), size)
        got += piece
    return bytes(got)


def connect() -> ssl.SSLSocket:
    return context().wrap_socket(socket.create_connection(("127.0.0.1", PORT), timeout=30))


def values() -> None:
    """A pipeline of values of many sizes, sent while the replies are read."""
    sizes: List[int] = [
        0,
        1,
        1000,
        16383,
        16384,
        16385,
        32767,
        32768,
        70000,
        262144,
        1000003,
        5000000,
    ]
    data = {b"v%d" % n: hashlib.shake_128(b"%d" % n).digest(n) for n in sizes}
    request = b"".join(command(b"SET", k, v) + command(b"GET", k) for k, v in data.items()) * 3
    expected = b"".join(b"+OK\r\n$%d\r\n%s\r\n" % (len(v), v) for v in data.values()) * 3
    m = Memory()
    assert m.exchange(request, len(expected)) == expected
    m.socket.close()


def redis_py() -> None:
    import redis  # type: ignore[import-not-found, import-untyped, unused-ignore]

    options = {
        "port": PORT,
        "ssl": True,
        "ssl_ca_certs": os.path.join(CERTS, "ca.crt"),
        "ssl_certfile": os.path.join(CERTS, "user.crt"),
        "ssl_keyfile": os.path.join(CERTS, "user.key"),
        "ssl_check_hostname": False,
    }
    r = redis.Redis(**options)
    assert r.set("py", b"x" * 3000000) and r.get("py") == b"x" * 3000000
    with r.pipeline() as pipe:
        for i in range(5000):
            pipe.set("py%d" % i, i)
        assert all(pipe.execute())
    assert r.mget(["py%d" % i for i in range(5000)]) == [b"%d" % i for i in range(5000)]
    listener = r.pubsub(ignore_subscribe_messages=False)
    listener.subscribe("here")
    assert listener.get_message(timeout=30)["type"] == "subscribe"
    assert r.publish("here", "word") == 1
    assert listener.get_message(timeout=30)["data"] == b"word"
    options["ssl_ca_certs"] = os.path.join(CERTS, "otherca.crt")
    try:
        redis.Redis(**options).ping()
        raise SystemExit("a server of another CA was believed")
    except redis.exceptions.ConnectionError as e:
        assert "certificate" in str(e).lower(), e
    r.flushall()


def half_closed() -> None:
    """A goodbye after the requests: the replies still come, and the server says goodbye, too."""
    m = Memory()
    m.socket.sendall(
        m.records(command(b"SET", b"half", b"h" * 500000) + command(b"GET", b"half") * 3)
    )
    try:
        m.tls.unwrap()
    except ssl.SSLWantReadError:
        pass
    m.push()
    got = m.read_all()
    assert got == b"+OK\r\n" + (b"$500000\r\n" + b"h" * 500000 + b"\r\n") * 3, len(got)


def truncated() -> None:
    """Cut within a record, and between records but without a goodbye: what is not whole never
    runs."""
    for cut in (10, 16413):
        m = Memory()
        sent = m.records(command(b"SET", b"cut", b"c" * 40000))
        m.socket.sendall(sent[:cut])
        m.socket.shutdown(socket.SHUT_WR)
        while m.socket.recv(65536):
            pass
    # What was whole has run, however much of it waited.
    m = Memory()
    m.socket.sendall(
        m.records(b"".join(command(b"SET", b"whole%d" % i, b"v") for i in range(5000)))
    )
    m.socket.shutdown(socket.SHUT_WR)
    try:
        while m.socket.recv(65536):
            pass
    except ConnectionResetError:
        pass


def goodbye_unread() -> None:
    """More replies than are kept, none of them read, and a goodbye. Lives until its standard input
    ends."""
    m = Memory()
    m.socket.settimeout(30)
    last = m.records(command(b"GET", b"unread") * 400)
    try:
        m.tls.unwrap()
    except ssl.SSLWantReadError:
        pass
    m.socket.sendall(last + m.out.read())
    print("sent", flush=True)
    sys.stdin.read()


def garbage_later() -> None:
    """A byte that was changed on the way: the connection ends, and nothing of the record is
    believed."""
    m = Memory()
    record = bytearray(m.records(command(b"SET", b"cut", b"v")))
    record[-1] ^= 1
    m.socket.sendall(bytes(record) + b"\x17\x03\x03\x40\x00" + os.urandom(5000))
    try:
        while m.socket.recv(65536):
            pass
    except ConnectionResetError:
        pass


def slow_reader() -> None:
    """Much is asked for and not read; then it is, and whole."""
    connection = connect()
    value = os.urandom(1 << 20)
    connection.sendall(command(b"SET", b"slow", value))
    assert read_exactly(connection, 5) == b"+OK\r\n"
    connection.sendall(command(b"GET", b"slow") * 60)
    other = connect()
    other.sendall(command(b"PING"))
    assert read_exactly(other, 7) == b"+PONG\r\n"
    for _ in range(60):
        assert read_exactly(connection, len(value) + 12) == b"$1048576\r\n" + value + b"\r\n"
    connection.sendall(command(b"DEL", b"slow"))
    assert read_exactly(connection, 4) == b":1\r\n"


CASES = {
    f.__name__: f
    for f in (values, redis_py, half_closed, truncated, goodbye_unread, garbage_later, slow_reader)
}

if __name__ == "__main__":
    PORT, CERTS = int(sys.argv[2]), sys.argv[3]
    CASES[sys.argv[1]]()
    print("ok")
