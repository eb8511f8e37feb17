#!/usr/bin/env python3
"""What utils/bench/kv_groups.sh measures: how long a prefix is for a model with three KV groups
(full attention, a window, recurrent states) on four ranks, a prompt of 128k tokens in blocks of 16,
asked in one request with KVGROUPS and in the ways that were there before.

    kv_groups.py PORT [--rounds 15]

The processor time is that of the server, whatever else the machine does."""

import argparse
import hashlib
import socket
import statistics
import threading
import time

TOKENS, BLOCK, RANKS, WINDOW = 128 * 1024, 16, 4, 1024
HASHES = [hashlib.sha256(b"%d" % i).hexdigest().encode() for i in range(TOKENS // BLOCK)]
GROUPS = (b"full", b"window", b"state")
NAMES = [b"llama-8b@auto@tp4-%d@%s@" % (rank, g) for rank in range(RANKS) for g in GROUPS]


def words(*args):
    parts = [b"*%d\r\n" % len(args)]
    for a in args:
        a = a if isinstance(a, bytes) else str(a).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(a), a))
    return b"".join(parts)


def one_request(*options):
    groups = []
    for name in NAMES:
        kind = name.split(b"@")[-2].upper()
        groups += [name, kind, BLOCK, BLOCK, WINDOW if kind == b"WINDOW" else 0, 0]
    return words("PREFIXLEN", len(HASHES), *HASHES, "UNIT", BLOCK, "ALIGN", BLOCK, "KVGROUPS",
                 len(NAMES), *groups, *options)  # fmt: skip


def each_name(command, *options):
    return b"".join(
        words(command, len(HASHES), *(name + h for h in HASHES), *options) for name in NAMES
    )


WAYS = (
    ("`PREFIXLEN ... KVGROUPS`", one_request()),
    ("`PREFIXLEN ... KVGROUPS ... LEASE`", one_request("LEASE", 1000)),
    ("`PREFIXLEN` for each group and rank", each_name("PREFIXLEN")),
    ("`MEXISTS` for each group and rank", each_name("MEXISTS")),
    ("`EXISTS` for each key, in a pipeline", b"".join(
        words("EXISTS", name + h) for name in NAMES for h in HASHES)),
)  # fmt: skip


class Server:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))

    def ask(self, request):
        """The reply, up to that of the PING behind the request."""
        sender = threading.Thread(target=self.socket.sendall, args=(request + words("PING"),))
        sender.start()
        reply = bytearray()
        while not reply.endswith(b"+PONG\r\n"):
            reply += self.socket.recv(1 << 20)
        sender.join()
        return reply[:-7]

    def cpu_ms(self):
        info = self.ask(words("INFO", "cpu")).decode()
        fields = dict(line.split(":", 1) for line in info.split("\r\n") if ":" in line)
        return 1000 * (float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"]))


def fill(server):
    """Every block of the full groups and windows, and a state every 4096 tokens."""
    for name in NAMES:
        every = {b"full": 1, b"window": 1, b"state": 4096 // BLOCK}[name.split(b"@")[-2]]
        pairs = []
        for h in HASHES[every - 1 :: every]:
            pairs += [name + h, b"x" * 16]
        server.ask(words("MSET", *pairs))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    server = Server(args.port)
    fill(server)
    wall, cpu, replies = {}, {}, {}
    for _ in range(args.rounds):
        for what, request in WAYS:
            busy, began = server.cpu_ms(), time.perf_counter()
            replies[what] = server.ask(request)
            wall.setdefault(what, []).append(1000 * (time.perf_counter() - began))
            cpu.setdefault(what, []).append(server.cpu_ms() - busy)
    print("| | request | reply | ms | ms of the server's CPU | times |")
    print("| --- | --- | --- | --- | --- | --- |")
    least = None
    for what, request in WAYS:
        ms = statistics.median(wall[what])
        least = least or ms
        print(f"| {what} | {len(request) / 1e6:.2f} MB | {len(replies[what])} bytes | {ms:.1f} |"
              f" {statistics.median(cpu[what]):.1f} | {ms / least:.1f} |")  # fmt: skip


if __name__ == "__main__":
    main()
