#!/usr/bin/python3
"""A decode engine pulls blocks out of a prefill engine's cache, without a store in between. No GPU
is needed.

    utils/examples/p2p_pull.py [--requests 8] [--blocks 64] [--block-size 256k] [--transport tcp]

The prefill process computes a request's blocks, says that they are ready, and which they are. The
decode process (this one) waits for that, reads them into blocks of its own, says that it is done,
and prints how fast that went. On DONE the prefill process uses the blocks for something else. Exit
status 1: a byte was wrong."""

from __future__ import annotations

import argparse
import json
import sys
from multiprocessing.connection import Connection

from local_pool import run_main
from p2p_engines import TIMEOUT_MS, Engine, both, connected, moved, options, report

from tarn.transfer import READ, EventKind


def prefill(o: argparse.Namespace, pipe: Connection) -> None:
    """Computes; frees blocks when the other side has them. There is room for two requests at a
    time."""
    engine = Engine("prefill", o, READ)
    pipe.send(engine.end.endpoint)
    for request in range(o.requests):
        blocks = engine.some_blocks(request, 0)
        engine.compute(request, blocks)
        engine.end.ready(f"request-{request}", engine.describe(blocks))
        event = engine.end.next_event(TIMEOUT_MS)
        if event is None or event.kind != EventKind.DONE:
            raise SystemExit(f"request {request} was not fetched: {event}")
        engine.compute(-1, blocks)  # now they may hold something else
    engine.close()


def decode(o: argparse.Namespace, pipe: Connection) -> int:
    """Reads every request's blocks. How many were wrong."""
    engine, all_wrong = Engine("decode", o, 0), 0
    peer = connected(engine, "prefill", pipe)
    for request in range(o.requests):
        label, own = f"request-{request}", engine.some_blocks(request, 1)
        told = peer.wait_ready(label, TIMEOUT_MS)
        if told is None:
            raise SystemExit(f"{label} is not ready in time")
        tasks = engine.tasks(READ, own, json.loads(told))
        seconds, info = moved(peer, tasks, label)
        wrong = engine.wrong(request, own)
        report(request, o, seconds, info, wrong)
        all_wrong += wrong
    peer.close()
    engine.close()
    return all_wrong


def main() -> int:
    """Both engines."""
    return both(prefill, decode, options(__doc__.split("\n")[0]))


if __name__ == "__main__":
    sys.exit(run_main(main))
