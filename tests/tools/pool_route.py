#!/usr/bin/env python3
"""What asking the pool adds to CONDUCTOR.ROUTE: docs/BENCHMARKS.md has its numbers.

    tests/tools/pool_route.py [BLOCKS [REQUESTS]]                              128 20000

A server of its own with eight engines; prompts of so many blocks of 16 tokens, given as TOKENS, in
pipelines of 100, each with DONE. Microseconds of the server's user time for both: without KEYS;
with KEYS where the pool is empty; where it has all blocks of one KV group, of two, of eight
(ranks). The least of five rounds each."""

import os
import socket
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))

from harness import Server  # noqa: E402 - behind the path to it

from tarn.chain import Chain  # noqa: E402
from tarn.keys import hash_text  # noqa: E402

ENGINES, PIPELINE, ROUNDS, VALUE = 8, 100, 5, b"v" * 100


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.stream = self.socket.makefile("rb")

    def send(self, commands):
        parts = []
        for words in commands:
            parts.append(b"*%d\r\n" % len(words))
            for word in words:
                word = word if isinstance(word, bytes) else str(word).encode()
                parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.socket.sendall(b"".join(parts))
        return [self.reply() for _ in commands]

    def reply(self):
        line = self.stream.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self.stream.read(int(rest) + 2)[:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        return rest


def user_s(connection):
    text = connection.send([["INFO", "cpu"]])[0].decode()
    return float(text.split("used_cpu_user:")[1].split("\r\n")[0])


def measure(connection, prompt, requests):
    """Microseconds of one ROUTE with its DONE, and what the last one said of the pool."""
    least, pool = None, None
    ask = ["CONDUCTOR.ROUTE", "q", "MODEL", "m", "TOKENS", prompt]
    turns = requests // ROUNDS // PIPELINE
    for _ in range(ROUNDS):
        before = user_s(connection)
        for _ in range(turns):
            replies = connection.send([ask, ["CONDUCTOR.DONE", "q"]] * PIPELINE)
            pool = int(replies[-2][3])
        took = (user_s(connection) - before) * 1e6 / (turns * PIPELINE)
        least = took if least is None else min(least, took)
    return least, pool


def keys(connection, groups):
    words = ["HASH", "TARN", "UNIT", 16, "ALIGN", 16, "KVGROUPS", groups] if groups else []
    for i in range(groups):
        words += [name_of(i), "FULL", 16, 16, 0, 0]
    connection.send([["CONDUCTOR.KEYS", f"e{i}", *words] for i in range(ENGINES)])


def name_of(group):
    """As long as those of TarnConnector."""
    return f"meta-llama/Llama-3.1-8B@bfloat16.NHD-0123456789ab.16@tp8.{group}@pp1.0@pcp1.0@dcp1.0@"


def main():
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    requests = int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    tokens = range(16 * blocks)
    prompt = struct.pack(f"<{len(tokens)}I", *tokens)
    server = Server("64mb", "--loadmodule", "conductor.so")
    try:
        connection = Connection(server.port)
        for i in range(ENGINES):
            connection.send([["CONDUCTOR.ADD", f"e{i}", "http://e", "MODEL", "m", "BLOCK", 16]])
        print("no KEYS           %6.1f us, pool %d" % measure(connection, prompt, requests))
        keys(connection, 1)
        print("an empty pool     %6.1f us, pool %d" % measure(connection, prompt, requests))
        hashes = Chain(16).extend(tokens)
        for groups in (1, 2, 8):
            for i in range(groups):
                connection.send([["SET", name_of(i) + hash_text(h.hex()), VALUE] for h in hashes])
            keys(connection, groups)
            took = measure(connection, prompt, requests)
            print("all, %d KV group%s  %6.1f us, pool %d" % (groups, "s" * (groups > 1), *took))
    finally:
        server.kill()


if __name__ == "__main__":
    main()
