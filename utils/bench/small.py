"""What utils/bench/small.sh measures, in turn, and its two tables: bandwidth beside 4 MiB objects,
and where a key's time goes.

Processor time is what the kernel says that the client process, the server's loop and its data
threads ran while the rows were measured, by key. On a machine that others use it says more than the
clock."""

import argparse
import collections
import json
import os
import subprocess
import time
from typing import Dict, List, NamedTuple, Tuple

KIB = 1024
# (block size, keys a batch): some 16 to 64 MiB each.
SHAPES = [
    (4 * KIB, 4000),
    (8 * KIB, 4000),
    (16 * KIB, 2000),
    (32 * KIB, 2000),
    (64 * KIB, 1000),
    (4096 * KIB, 16),
]
LARGE = 4096 * KIB
Row = Tuple[str, str, int]


class Sample(NamedTuple):
    """What had run at a moment (seconds): threads() of the client and of the server."""

    at: float
    client: Dict[str, int]
    server: Dict[str, int]


def threads(pid: int) -> Dict[str, int]:
    """Nanoseconds that the threads of a process have run, by their names; those with a number at
    the end add up."""
    ran: Dict[str, int] = collections.defaultdict(int)
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as f:
                name = f.read().strip()
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as f:
                ran["data" if name.startswith("tarn-data") else "loop"] += int(f.read().split()[0])
        except FileNotFoundError:
            continue  # it has ended
    return ran


class Bench:
    """Runs tarn-benchmark, one row at a time, and watches what the processes use meanwhile."""

    def __init__(self, program: str, seconds: float) -> None:
        self.program = program
        self.seconds = seconds
        self.speed: Dict[Row, List[float]] = collections.defaultdict(list)
        self.cost: Dict[Row, List[Dict[str, float]]] = collections.defaultdict(list)

    def row(
        self,
        what: str,
        transport: str,
        op: str,
        shape: Tuple[int, int],
        server: Tuple[int, int],
        flags: List[str],
    ) -> None:
        """One row: preloading and warming up come first and do not count."""
        (size, batch), (port, pid) = shape, server
        warm = 0.3 if op == "get" else 1.2
        command = [
            self.program,
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "--json",
            "data",
            "--transport",
            transport,
            "--op",
            op,
        ]
        command += [
            "--block-size",
            str(size),
            "--batch",
            str(batch),
            "--seconds",
            str(self.seconds),
            "--warm-up",
            str(warm),
        ]
        with subprocess.Popen(command + flags, stdout=subprocess.PIPE) as process:
            samples: List[Sample] = []
            while process.poll() is None:
                try:
                    samples.append(Sample(time.monotonic(), threads(process.pid), threads(pid)))
                except FileNotFoundError:
                    break
                time.sleep(0.05)
            assert process.stdout is not None
            text = process.stdout.read()
        row = json.loads(text)["rows"][-1]
        if row["failed"] or row["mismatched_blocks"]:
            raise SystemExit(f"failed: {row}")
        self.speed[(what, op, size)].append(row["gb_per_s"])
        self.cost[(what, op, size)].append(self.per_key(samples, row))

    def per_key(self, samples: List[Sample], row: Dict[str, float]) -> Dict[str, float]:
        """Microseconds of processor time a key. The last part of the samples is the row; it ends
        with cleaning up, which is short."""
        key_us = row["block_size"] / row["gb_per_s"] / 1000
        # The thread that does the work ends before its process, and what it ran is not told of any
        # more.
        end = max(range(len(samples)), key=lambda i: samples[i].client.get("loop", 0))
        last = next((i for i in range(end, 0, -1) if samples[end].at - samples[i].at >= 0.1), 0)
        first = next(
            (
                i
                for i in range(last, 0, -1)
                if samples[last].at - samples[i].at >= 0.7 * self.seconds
            ),
            0,
        )
        wall = samples[last].at - samples[first].at
        if wall <= 0:
            return {"key": key_us}
        used = {"key": key_us}
        a, b = samples[first], samples[last]
        for name, before, after in (
            ("client", a.client.get("loop", 0), b.client.get("loop", 0)),
            ("loop", a.server["loop"], b.server["loop"]),
            ("data", a.server.get("data", 0), b.server.get("data", 0)),
        ):
            used[name] = (after - before) / 1e9 / wall * key_us
        return used


def size_text(size: int) -> str:
    return f"{size // KIB} KiB" if size < 1024 * KIB else f"{size // KIB // KIB} MiB"


def print_speeds(bench: Bench, transports: List[str]) -> None:
    """The best of the rounds: neighbours on the machine only make rows slower."""
    print("| what | 4 KiB | 8 KiB | 16 KiB | 32 KiB | 64 KiB | 4 MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for what in transports + ["redis"]:
        for op in ("get", "put"):
            cells = []
            for size, _ in SHAPES:
                gb = max(bench.speed[(what, op, size)])
                ratio = gb / max(bench.speed[(what, op, LARGE)])
                cells.append(f"{gb:.2f}" if size == LARGE else f"{gb:.2f} ({ratio:.2f}x)")
            print(f"| {what} {op}, GB/s | " + " | ".join(cells) + " |")


def print_costs(bench: Bench, transports: List[str]) -> None:
    """Of the same rounds."""
    print("\n| what | us a key by the clock | client | server's loop | data threads |")
    print("| --- | --- | --- | --- | --- |")
    for what in transports + ["redis"]:
        for op in ("get", "put"):
            for size, _ in SHAPES[:-1]:
                runs = bench.cost[(what, op, size)]
                best = min(runs, key=lambda run: run["key"])
                cells = [best.get(name, 0) for name in ("key", "client", "loop", "data")]
                print(
                    f"| {what} {op} {size_text(size)} | "
                    + " | ".join(f"{c:.2f}" for c in cells)
                    + " |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description="Started by small.sh.")
    parser.add_argument("program")
    parser.add_argument("rounds", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("tarn", type=int, nargs=2, help="port and process")
    parser.add_argument("redis", type=int, nargs=2)
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument(
        "--no-verify", action="store_const", const=["--no-verify"], default=[], dest="flags"
    )
    args = parser.parse_args()
    transports = args.transports.split(",")
    bench = Bench(args.program, args.seconds)
    for _ in range(args.rounds):
        for op in ("get", "put"):
            for transport in transports:
                for shape in SHAPES:
                    bench.row(
                        transport, transport, op, shape, (args.tarn[0], args.tarn[1]), args.flags
                    )
            for shape in SHAPES:
                bench.row("redis", "resp", op, shape, (args.redis[0], args.redis[1]), [])
    print_speeds(bench, transports)
    print_costs(bench, transports)


if __name__ == "__main__":
    main()
