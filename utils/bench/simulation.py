#!/usr/bin/env python3
"""Runs what docs/SIMULATION.md names, and says where the page has other numbers.

    utils/bench/simulation.py [--build build/release] [--trace conversation_trace.jsonl] [WORD]...

Without the trace only what is made by seed is run; WORD: only checks whose name has one of these.
For each line of the page that differs, the line as it should be. 1: some do."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
with open(os.path.join(ROOT, "docs", "SIMULATION.md"), encoding="utf-8") as page:
    PAGE = page.read().split("\n")


class Checks:
    def __init__(self, options):
        self.options = options
        self.wrong = self.right = 0

    def rows(self, command, *more):
        words = [os.path.join(self.options.build, "tarn-simulate"), *command.split(), *more]
        words = [self.options.trace if word == "TRACE" else word for word in words]
        out = subprocess.run([*words, "--json"], stdout=subprocess.PIPE, check=True).stdout
        return json.loads(out)["rows"]

    def expect(self, line, where):
        """The page has this line; where: what it is about."""
        if line in PAGE:
            self.right += 1
            return
        self.wrong += 1
        print(f"{where}: the page has not\n  {line}")

    def expect_cell(self, known, text):
        """The row of "What it reproduces" that begins so says this."""
        row = [line for line in PAGE if line.startswith("| " + known)]
        if len(row) == 1 and row[0].split(" | ")[2] == text:
            self.right += 1
            return
        self.wrong += 1
        print(f"{known}: {text!r} it is")


def hits(row):
    return sum(row["hit_ratio"].values())


# --- what is known: formulas, and made prompts ---


def three(c, tokens, shared, gbit):
    """Three prompts a minute apart, of which the first tokens are shared, on two engines in turn:
    cold, remote and local TTFT in ms."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for i in range(3):
            ids = [k if k < shared // 16 else 10**6 * i + k for k in range(tokens // 16)]
            json.dump(
                {
                    "chat_id": i,
                    "parent_chat_id": -1,
                    "timestamp": 60 * i,
                    "input_length": tokens,
                    "output_length": 1,
                    "type": "text",
                    "turn": 1,
                    "hash_ids": ids,
                },
                f,
            )
            f.write("\n")
        f.flush()
        row = c.rows(
            "run --engines 2 --model Llama-3-8B --gpu A800 --gpus 1 --no-overlap "
            "--route round-robin --pool-blocks 1000000",
            "--nic",
            str(gbit),
            "--trace",
            f.name,
        )[0]["ttft_ms"]
    cold, remote = row["p99"], row["p50"]
    return cold, remote, 3 * row["mean"] - cold - remote


def made_rows(c):
    d, layers, p = 8192, 80, 8192
    flops = layers * (4 * p * p * d + 22 * p * d * d)
    a800, h800 = (p * 327680 / (flops / (8 * peak)) / 1e9 for peak in (312e12, 989e12))
    c.expect_cell("reuse pays", f"{a800:.1f} and {h800:.1f} GB/s")
    cold, remote, local = three(c, 15008, 11168, 56)
    c.expect_cell("TTFT 2322", f"{cold:.0f}, {local:.0f}, {remote:.0f} ms")
    slow, fast = (three(c, 9392, 8192, gbit)[1] for gbit in (40, 100))
    c.expect_cell("TTFT 397", f"{slow:.0f} and {fast:.0f} ms")
    command = (
        "run --generate documents --requests 600 --rate 0.11 --model Llama-3-8B --gpu A800 "
        "--gpus 1 --route round-robin "
    )
    mixed = c.rows(command + "--engines 2")[0]["gap_ms"]["p99"]
    apart = c.rows(command + "--prefill 1 --decode 1")[0]["gap_ms"]["p99"]
    c.expect_cell("P99 between", f"{apart:.0f} against {mixed:.0f} ms")
    command = (
        "run --generate agents --requests 500 --speed 120 --model Qwen3-32B --gpu 910B "
        "--engines 1 --kv-blocks 285 --route round-robin "
    )
    bare, pool = c.rows(command)[0], c.rows(command + "--pool-blocks 200000")[0]
    ttft = pool["ttft_ms"]["mean"] / bare["ttft_ms"]["mean"]
    c.expect_cell(
        "a pool on eight",
        f"{100 * (ttft - 1):.0f} %, " f"{100 * (pool['tokens_s'] / bare['tokens_s'] - 1):+.0f} %",
    )


# --- what is known: the trace ---


def trace_rows(c):
    alone = c.rows(
        "run --trace TRACE --engines 1 --kv-blocks 300000 --speed 0.02 " "--route round-robin"
    )[0]
    ids = []
    with open(c.options.trace, encoding="utf-8") as f:
        for line in f:
            ids += json.loads(line)["hash_ids"]
    c.expect_cell(
        "an unlimited",
        f"{100 * hits(alone):.1f} % of tokens, "
        f"{100 * (1 - len(set(ids)) / len(ids)):.1f} % of blocks",
    )
    order = c.rows(
        "run --trace TRACE --prefill 16 --decode 8 --gpu A800 "
        "--route random,least-loaded,prefix-tree,mooncake"
    )
    means = ", ".join(f"{row['ttft_ms']['mean'] / 1e3:.2f}" for row in order)
    c.expect_cell("order of policies", f"mean TTFT {means} s")
    command = "run --trace TRACE --engines 16 --gpu A800 --route round-robin,prefix-tree "
    local = c.rows(command + "--kv-blocks 1000 --host-blocks 5860")
    pool = c.rows(command + "--kv-blocks 1000 --host-blocks 5860 --pool-blocks 97656")
    c.expect_cell(
        "a global cache",
        f"{hits(pool[0]) / hits(local[0]):.1f} times ({hits(pool[0]):.2f} against "
        f"{hits(local[0]):.2f}) by round-robin, {hits(pool[1]) / hits(local[1]):.2f} "
        "times when prompts follow their caches (prefix-tree)",
    )
    saved = pool[0]["prefill_saved_s"]
    c.expect_cell("... and saves", f"{100 * saved / (saved + pool[0]['prefill_s']):.0f} %")
    more = []
    for limit in (100, 200, 300):
        command = f"run --trace TRACE --gpu A800 --load 1 --slo-tbt {limit} --route round-robin "
        mixed = c.rows(command + "--engines 16")[0]["limit_requests_s"]
        apart = c.rows(command + "--prefill 10 --decode 6 --pool-blocks 97656")[0]
        more.append(f"{100 * (apart['limit_requests_s'] / mixed - 1):+.0f}")
    c.expect_cell("capacity", ", ".join(more) + " %")


# --- the other tables ---


def hot_table(c):
    command = "run --generate hot --requests 2000 --engines 8 --gpu H100 --rate 6 --route all"
    for a, b in zip(c.rows(command), c.rows(command, "--copies")):
        cells = [f"{a['ttft_ms'][name]:.0f}, {b['ttft_ms'][name]:.0f}" for name in ("p90", "mean")]
        moved = f"{a['moved_bytes'] / 1e9:.0f}, {b['moved_bytes'] / 1e9:.0f}"
        c.expect(f"| {a['route']} | {' | '.join(cells)} | {b['copies']} | {moved} |", "hot")


def masters_table(c):
    for options in [line.split("`")[1] for line in PAGE if line.startswith("| `--masters")]:
        row = c.rows(
            "run --trace TRACE --engines 16 --gpu A800 --pool-blocks 97656 "
            "--route round-robin " + options
        )[0]
        ttft, asked = row["ttft_ms"], row["lookup_ms"]
        c.expect(
            f"| `{options}` | {ttft['mean']:.0f}, {ttft['p90']:.0f} | "
            f"{row['hit_ratio']['pool']:.3f} | {asked['mean']:.3f}, {asked['p99']:.3f} |",
            "masters",
        )


def policies_table(c, name, command):
    cells = {}
    for row in c.rows(command):
        setting = (row["deployment"], row["pool_blocks"], row["load"])
        cells.setdefault(row["route"], {})[setting] = row
    tarn = cells["tarn"]
    for route, row in cells.items():
        if route in ("round-robin", "random"):
            continue
        line = [route]
        for setting, r in row.items():
            if setting[2] == 0.85:
                ttft = r["ttft_ms"]
                line.append(f"{ttft['mean']:.0f}, {ttft['p90']:.0f}, {r['goodput']:.2f}")
        behind = [
            max(tarn[s]["ttft_ms"][of] / row[s]["ttft_ms"][of] for s in row)
            for of in ("mean", "p90")
        ]
        behind.append(max(row[s]["goodput"] / tarn[s]["goodput"] for s in row))
        behind = ", ".join(f"{100 * (x - 1):+.1f}" for x in behind)
        line.append(behind if route != "tarn" else "")
        c.expect(f"| {' | '.join(line)} |", name)


CHECKS = {
    "known, made": (made_rows, False),
    "known, of the trace": (trace_rows, True),
    "hot": (hot_table, False),
    "masters": (masters_table, True),
    "policies on the trace": (
        lambda c: policies_table(
            c,
            "policies on the trace",
            "compare --trace TRACE --engines 16 --gpu A800 --prefill 8 --decode 8 "
            "--pool-blocks 0,50000",
        ),
        True,
    ),
    "policies on chats": (
        lambda c: policies_table(
            c,
            "policies on chats",
            "compare --generate chat --requests 20000 --engines 16 --pool-blocks 0,50000",
        ),
        False,
    ),
    "policies on agents": (
        lambda c: policies_table(
            c,
            "policies on agents",
            "compare --generate agents --requests 3000 --engines 8 --model Llama-3-8B --gpus 1 "
            "--prefill 4 --decode 4 --pool-blocks 0,20000 --slo-ttft 5000",
        ),
        False,
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--trace", help="Mooncake's conversation trace")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    checks = Checks(options)
    for name, (check, needs_trace) in CHECKS.items():
        if options.words and not any(word in name for word in options.words):
            continue
        if needs_trace and options.trace is None:
            print(f"{name}: needs --trace")
            continue
        check(checks)
    print(f"{checks.right} lines are as they are there, {checks.wrong} are not")
    sys.exit(checks.wrong > 0)


if __name__ == "__main__":
    main()
