"""No example: what p2p_pull.py and p2p_push.py share. Two toy engines with paged caches, whose
blocks say what they should hold."""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import random
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, Callable, List, Optional, Sequence, Tuple

import local_pool  # finds the package tarn in a source tree

from tarn.memory import pin
from tarn.transfer import Allocation, End, Peer, Tasks

assert local_pool.ROOT
TIMEOUT_MS = 20000


def size(text: str) -> int:
    """Bytes out of "256k" and the like."""
    scale = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text[-1:].lower(), 1)
    return int(text[:-1] if scale > 1 else text) * scale


def options(about: str) -> argparse.Namespace:
    """The command line of both."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=8,
        help="sets of blocks that go from one engine to the other",
    )
    parser.add_argument("--blocks", type=int, default=64, help="of each request")
    parser.add_argument(
        "--block-size", type=size, default=256 << 10, help="bytes, or 256k and the like"
    )
    parser.add_argument(
        "--transport", default="auto", choices=["auto", "shm", "tcp", "rdma"], help="how bytes go"
    )
    parser.add_argument(
        "--own-memory",
        action="store_true",
        help="caches that the program made: no shared memory then",
    )
    parser.add_argument(
        "--master", help="URL of a tarn-server: the engines find each other by name there"
    )
    chosen = parser.parse_args()
    if min(chosen.requests, chosen.blocks, chosen.block_size) < 1:
        parser.error("--requests, --blocks and --block-size: 1 or more")
    return chosen


class Engine:
    """One side: an end, and a cache of twice as many blocks as a request has."""

    def __init__(self, name: str, o: argparse.Namespace, rights: int) -> None:
        self.o = o
        self.block: int = o.block_size
        self.end = End(
            f"p2p-{name}" if o.master else None,
            master=o.master,
            transport=o.transport,
            timeout_ms=TIMEOUT_MS,
        )
        self.allocation: Optional[Allocation] = None
        if o.own_memory:
            self.view = memoryview(bytearray(2 * o.blocks * self.block))
            self.region = self.end.register(self.view, rights=rights, name="cache")
        else:
            self.allocation = self.end.alloc(2 * o.blocks * self.block, rights=rights, name="cache")
            self.view, self.region = self.allocation.view, self.allocation.region

    def some_blocks(self, request: int, salt: int) -> List[int]:
        """Where a request's blocks lie here: pieces of the cache in any order, as in an engine that
        runs for a while."""
        chance, runs, at = random.Random(request * 2 + salt), [], 0
        while at < 2 * self.o.blocks:
            length = min(chance.randint(1, 16), 2 * self.o.blocks - at)
            runs.append(list(range(at, at + length)))
            at += length
        chance.shuffle(runs)
        return [block for run in runs for block in run][: self.o.blocks]

    def expected(self, request: int, i: int) -> bytes:
        """What block i of a request holds."""
        digest = hashlib.shake_128(b"%d.%d" % (request, i)).digest(min(self.block, 4096))
        return (digest * (self.block // len(digest) + 1))[: self.block]

    def compute(self, request: int, blocks: Sequence[int]) -> None:
        """Fills a request's blocks."""
        for i, block in enumerate(blocks):
            self.view[block * self.block : (block + 1) * self.block] = self.expected(request, i)

    def wrong(self, request: int, blocks: Sequence[int]) -> int:
        """How many of its blocks are not what they should be."""
        return sum(
            self.view[block * self.block : (block + 1) * self.block] != self.expected(request, i)
            for i, block in enumerate(blocks)
        )

    def tasks(self, op: int, own: Sequence[int], info: Any) -> Tasks:
        """Own blocks beside the other side's; neighbours go together."""
        return Tasks.merged(
            op, pin(self.view).address, own, info["blocks"], self.block, region=info["region"]
        )

    def describe(self, blocks: Sequence[int]) -> bytes:
        """What the other side must know of a request's blocks."""
        return json.dumps({"region": self.region, "blocks": list(blocks)}).encode()

    def close(self) -> None:
        """The cache goes, too."""
        if self.allocation is not None:
            self.allocation.view.release()
        self.end.close()


def connected(engine: Engine, name: str, pipe: Connection) -> Peer:
    """The other engine: by its name, or where it said that it is."""
    endpoint = pipe.recv()
    return engine.end.connect(f"p2p-{name}" if engine.o.master else endpoint, TIMEOUT_MS)


def moved(peer: Peer, tasks: Tasks, label: str) -> Tuple[float, Any]:
    """Moves the bytes and says done for the label: seconds, and how they went."""
    start = time.perf_counter()
    with peer.submit(tasks, done=label) as batch:
        batch.wait()
        return time.perf_counter() - start, batch.info()


def report(request: int, o: argparse.Namespace, seconds: float, info: Any, wrong: int) -> None:
    """A line for a request."""
    total = o.blocks * o.block_size
    print(
        f"request {request}: {o.blocks} blocks in {info['operations']} pieces, {total / 2**20:.1f} "
        f"MiB, {total / seconds / 1e9:.2f} GB/s by {info['transport']}, "
        f"{'right' if not wrong else f'{wrong} WRONG'}",
        flush=True,
    )


def both(
    other: Callable[[argparse.Namespace, Connection], None],
    own: Callable[[argparse.Namespace, Connection], int],
    o: argparse.Namespace,
) -> int:
    """Runs `other` in a process beside this one, with a pipe between them. Exit status."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=other, args=(o, there), daemon=True)
    process.start()
    there.close()
    try:
        wrong = own(o, here)
    except (EOFError, BrokenPipeError):
        print("the other engine ended too early", file=sys.stderr)
        wrong = 1
    process.join(TIMEOUT_MS / 1000)
    if process.exitcode != 0:
        print(f"the other engine: exit status {process.exitcode}", file=sys.stderr)
        process.kill()
        return 1
    print("every byte is right" if not wrong else f"{wrong} blocks are WRONG")
    return 1 if wrong else 0
