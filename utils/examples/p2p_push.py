#!/usr/bin/python3
"""A prefill engine pushes blocks into a decode engine's cache, without a store in between. No GPU
is needed.

    utils/examples/p2p_push.py [--requests 8] [--blocks 64] [--block-size 256k] [--transport tcp]

The decode process makes room for a request and says which of its blocks are for it. The prefill
process (this one) computes, waits for that room, writes its blocks there, says that it is done, and
prints how fast that went. On DONE the decode process looks at every byte. Were the prefill process
to die instead, the decode process would be told, and nobody could write to the blocks any more:
that is what `cut` is for. Exit status 1: a byte was wrong."""

from __future__ import annotations

import argparse
import json
import sys
from multiprocessing.connection import Connection

from local_pool import run_main
from p2p_engines import TIMEOUT_MS, Engine, both, connected, moved, options, report

from tarn.transfer import WRITE, EventKind


def decode(o: argparse.Namespace, pipe: Connection) -> None:
    """Makes room; says of every request how many blocks were wrong."""
    engine = Engine("decode", o, WRITE)
    pipe.send(engine.end.endpoint)
    for request in range(o.requests):
        blocks = engine.some_blocks(request, 1)
        engine.end.ready(
            f"request-{request}", engine.describe(blocks), keep_ms=TIMEOUT_MS, cut=True
        )
        event = engine.end.next_event(2 * TIMEOUT_MS)
        if event is None or event.kind != EventKind.DONE:
            raise SystemExit(f"request {request} did not come: {event}")
        pipe.send(engine.wrong(request, blocks))
    engine.close()


def prefill(o: argparse.Namespace, pipe: Connection) -> int:
    """Computes and writes. How many blocks were wrong over there."""
    engine, all_wrong = Engine("prefill", o, 0), 0
    peer = connected(engine, "decode", pipe)
    for request in range(o.requests):
        label, own = f"request-{request}", engine.some_blocks(request, 0)
        engine.compute(request, own)
        told = peer.wait_ready(label, TIMEOUT_MS)
        if told is None:
            raise SystemExit(f"there is no room for {label} in time")
        tasks = engine.tasks(WRITE, own, json.loads(told))
        seconds, info = moved(peer, tasks, label)
        wrong = pipe.recv()
        report(request, o, seconds, info, wrong)
        all_wrong += wrong
    peer.close()
    engine.close()
    return all_wrong


def main() -> int:
    """Both engines."""
    return both(decode, prefill, options(__doc__.split("\n")[0]))


if __name__ == "__main__":
    sys.exit(run_main(main))
