#!/usr/bin/python3
"""How much of a transfer hides behind the computing: whole prompts, layer by layer, between two
processes.

    utils/examples/layer_by_layer.py [--layers 32] [--layer-ms 2,5,10] [--chunks 4]
        [--transport tcp] [--views]

A prefill process "computes" the layers of a prompt, each for so many milliseconds, as an
accelerator does: the CPU is free meanwhile (--busy: it is not). Its KV cache goes to the memory of
the decode process' node, one object per chunk and layer:

    compute only        the computing alone
    after               all layers are computed, then sent: what most engines do
    overlapped          each layer is sent as soon as it is computed (tarn.layers)

A time ends when the decode process has the last byte, verified. hidden is the share of the transfer
that took no time of its own: (after - overlapped) / (after - compute only), of two prompts that
follow each other. No GPU is needed; the first round of each kind is not counted, and of the others
the median. Exit status 1: some bytes were wrong."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import statistics
import sys
import time
from typing import Any, Dict, List, NamedTuple, Tuple

from local_pool import arguments, pool_of, run_main

import tarn
from tarn.layers import LayerReader, LayerWriter, segments_of

KIB_PER_TOKEN = 128  # of all layers: Llama 3.1 8B, 16 bits


class Shape(NamedTuple):
    """What a prompt looks like."""

    layers: int
    chunks: int
    block_bytes: int  # of one layer of one chunk
    tail_bytes: int  # of one layer of the tail, 0: none

    @property
    def bytes(self) -> int:
        return self.layers * (self.chunks * self.block_bytes + self.tail_bytes)


def fill(shape: Shape, round_: str, layer: int) -> Tuple[List[bytes], bytes]:
    """What the toy engine computes: a layer's blocks, and its part of the tail. Nothing else has
    these bytes."""

    def some(what: int, size: int) -> bytes:
        seed = hashlib.sha256(f"{round_} {layer} {what}".encode()).digest()
        return (seed * (size // len(seed) + 1))[:size]

    return [some(chunk, shape.block_bytes) for chunk in range(shape.chunks)], some(
        -1, shape.tail_bytes
    )


def key_of(round_: str) -> Any:
    return lambda chunk, layer: f"layers@{round_}@{chunk}@l{layer}"


def compute(until: float, busy: bool) -> None:
    """A layer's computing, up to that moment."""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            return
        if busy:
            hashlib.sha256(bytes(65536)).digest()
        else:
            time.sleep(left)


def read(
    client: Any,
    shape: Shape,
    round_: str,
    views: bool,
    memory: List[Tuple[List[bytearray], bytearray]],
) -> Dict[str, Any]:
    """The decode side of one round: {"layers": when each had come, "end": when all had, "wrong":
    objects with other bytes}."""
    times, wrong = [], 0
    tail_key = f"layers@{round_}@tail"
    reader = LayerReader(
        client, key_of(round_), layers=shape.layers, chunks=shape.chunks, stall_ms=30000
    )
    with reader:
        if views:
            held = []
            for layer in range(shape.layers):
                held.append(reader.views(layer, lease_ms=10000))
                times.append(time.monotonic())
            tail = reader.view_tail(tail_key, lease_ms=10000) if shape.tail_bytes else None
            end = time.monotonic()
            for layer, blocks in enumerate(held):
                expected, rest = fill(shape, round_, layer)
                wrong += sum(b"".join(p) != e for p, e in zip(blocks.parts, expected))
                if tail is not None:
                    whole = b"".join(tail.parts[0])
                    wrong += whole[layer * shape.tail_bytes :][: shape.tail_bytes] != rest
                blocks.check()
                blocks.release()
            if tail is not None:
                tail.check()
                tail.release()
        else:
            tail_place = (tail_key, [rest for _, rest in memory]) if shape.tail_bytes else None
            reader.fetch(lambda chunk, layer: memory[layer][0][chunk], tail=tail_place)
            for layer in range(shape.layers):
                reader.wait(layer)
            if shape.tail_bytes:
                reader.wait_tail()
            end = time.monotonic()
            times = reader.arrival_times
            for layer in range(shape.layers):
                expected, rest = fill(shape, round_, layer)
                wrong += sum(a != b for a, b in zip(memory[layer][0], expected)) + (
                    memory[layer][1] != rest
                )
    return {"layers": times, "end": end, "wrong": wrong}


def decode_process(pipe: Any, url: str, shape: Shape, views: bool) -> None:
    """Reads the rounds that it is told of."""
    client = tarn.Client(url)
    memory = [
        ([bytearray(shape.block_bytes) for _ in range(shape.chunks)], bytearray(shape.tail_bytes))
        for _ in range(shape.layers)
    ]
    while True:
        round_ = pipe.recv()
        if not round_:
            return
        pipe.send("ready")
        try:
            pipe.send(read(client, shape, round_, views, memory))
        except tarn.Error as e:
            pipe.send({"error": str(e)})


class Prefill:
    """The prefill process' side: this one."""

    def __init__(self, url: str, shape: Shape, pipe: Any, node: str, busy: bool) -> None:
        self.client, self.shape, self.pipe, self.busy = tarn.Client(url), shape, pipe, busy
        self.prefer = segments_of(self.client, node=node) if node else []
        self.writer = LayerWriter(self.client, prefer=self.prefer)
        self.round = 0

    def run(self, layer_ms: float, how: str) -> Dict[str, Any]:
        """One prompt. how: "after", "overlapped". Times are seconds from the begin."""
        shape, name = self.shape, f"{time.time_ns()}.{self.round}"
        self.round += 1
        blocks = [fill(shape, name, layer) for layer in range(shape.layers)]
        self.pipe.send(name)
        self.pipe.recv()
        begin = time.monotonic()
        computed = []
        with self.writer.prompt(key_of(name)) as prompt:
            for layer in range(shape.layers):
                compute(begin + (layer + 1) * layer_ms / 1000, self.busy)
                computed.append(time.monotonic() - begin)
                if how == "overlapped":
                    prompt.put(layer, range(shape.chunks), blocks[layer][0])
            if how == "after":
                for layer in range(shape.layers):
                    prompt.put(layer, range(shape.chunks), blocks[layer][0])
            if shape.tail_bytes:
                prompt.put_tail(f"layers@{name}@tail", [rest for _, rest in blocks])
        prompt.report.raise_for_failures()
        told = self.pipe.recv()
        if "error" in told:
            raise SystemExit("the decode process: " + told["error"])
        self.client.command("REMOVEMATCH", "GLOB", f"layers@{name}@*")
        return {
            "compute": computed[-1],
            "computed": computed,
            "arrived": [t - begin for t in told["layers"]],
            "total": told["end"] - begin,
            "stalled": prompt.report.stalled_s,
            "wrong": told["wrong"],
        }


def measure(prefill: Prefill, layer_ms: float, rounds: int) -> Dict[str, Any]:
    """Both kinds in turn: medians in seconds, and the wrong objects of all rounds."""
    kinds: Dict[str, List[Dict[str, Any]]] = {"after": [], "overlapped": []}
    for _ in range(rounds + 1):
        for how, results in kinds.items():
            results.append(prefill.run(layer_ms, how))
    after, overlapped = (results[1:] for results in kinds.values())
    alone = [r["total"] - r["compute"] for r in after]
    left = [r["total"] - r["compute"] for r in overlapped]
    return {
        "layer_ms": layer_ms,
        "compute": statistics.median(r["compute"] for r in after + overlapped),
        "after": statistics.median(r["total"] for r in after),
        "overlapped": statistics.median(r["total"] for r in overlapped),
        "transfer": statistics.median(alone),
        "left": statistics.median(left),
        "hidden": statistics.median(1 - x / y for x, y in zip(left, alone)),
        "wrong": sum(r["wrong"] for results in kinds.values() for r in results),
        "example": sorted(overlapped, key=lambda r: float(r["total"]))[rounds // 2],
        "example_after": sorted(after, key=lambda r: float(r["total"]))[rounds // 2],
    }


def run_all(
    url: str, shape: Shape, speeds: List[float], rounds: int, **how: Any
) -> List[Dict[str, Any]]:
    """Measurements for all speeds. how: transport and read ("auto", "shm", "tcp"), views, busy."""
    size = f"{max(64, 3 * shape.bytes >> 20)}mb"
    with pool_of(url, "0", ["decode"], size) as pool:
        first = "&" if "?" in pool.url else "?"
        url, their_url = (
            f"{pool.url}{first}transport={how[side]}" for side in ("transport", "read")
        )
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(
            target=decode_process, args=(theirs, their_url, shape, how["views"]), daemon=True
        )
        process.start()
        theirs.close()
        try:
            prefill = Prefill(url, shape, pipe, pool.names[0] if pool.names else "", how["busy"])
            results = [measure(prefill, ms, rounds) for ms in speeds]
            pipe.send("")
            prefill.writer.close()
        finally:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    return results


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument(
        "--layer-ms",
        default="2,5,10",
        help="milliseconds of computing per layer; several with commas",
    )
    parser.add_argument("--chunks", type=int, default=4, help="full chunks of the prompt")
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument(
        "--chunk-bytes", type=int, default=0, help=f"of all layers (tokens x {KIB_PER_TOKEN} KiB)"
    )
    parser.add_argument(
        "--tail-tokens", type=int, default=100, help="of the prompt behind its full chunks"
    )
    ways = ["auto", "shm", "tcp"]
    parser.add_argument(
        "--transport",
        choices=ways,
        default="auto",
        help="tcp: as if prefill were on another machine",
    )
    parser.add_argument(
        "--read",
        choices=ways,
        default="auto",
        help="tcp: as if the decode host were not the node's",
    )
    parser.add_argument("--views", action="store_true", help="the decode process reads in place")
    parser.add_argument("--busy", action="store_true", help="computing takes a CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--json", action="store_true", help="the figures, with the times of all layers"
    )
    args = parser.parse_args()
    chunk = args.chunk_bytes or args.chunk_tokens * KIB_PER_TOKEN * 1024
    if (
        min(args.layers, args.chunks, args.rounds, args.chunk_tokens) < 1
        or chunk < args.layers
        or args.tail_tokens < 0
    ):
        parser.error("layers, chunks, rounds, tokens, and bytes per layer are at least 1")
    tail = chunk * args.tail_tokens // args.chunk_tokens // args.layers
    shape = Shape(args.layers, args.chunks, chunk // args.layers, tail)
    speeds = [float(ms) for ms in args.layer_ms.split(",")]
    how = {"transport": args.transport, "read": args.read, "views": args.views, "busy": args.busy}
    results = run_all(args.url, shape, speeds, args.rounds, **how)
    wrong = sum(r["wrong"] for r in results)
    if args.json:
        print(json.dumps({"shape": shape._asdict(), "results": results}))
        return 1 if wrong else 0
    where = "in place" if args.views else f"by {args.read} into its own memory"
    print(
        f"{shape.layers} layers of {shape.chunks} chunks x {shape.block_bytes / 1024:.0f} KiB and "
        f"a tail, {shape.bytes / 2**20:.0f} MiB,"
    )
    print(
        f"sent by {args.transport}, the decode process reads {where}; milliseconds, medians of "
        f"{args.rounds}\n"
    )
    print("  a layer   compute only      after   overlapped   transfer alone   left of it   hidden")
    for r in results:
        ms = [1000 * r[name] for name in ("compute", "after", "overlapped", "transfer", "left")]
        cells = f"{ms[0]:12.1f}   {ms[1]:8.1f}   {ms[2]:10.1f}   {ms[3]:14.1f}   {ms[4]:10.1f}"
        print(f"{r['layer_ms']:9.1f}   {cells}   {100 * r['hidden']:5.0f}%")
    print(f"\nbytes: {'all right' if not wrong else f'{wrong} objects WRONG'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run_main(main))
