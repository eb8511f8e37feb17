#!/usr/bin/env python3
"""The tables and the plot of docs/SCALE.md, by its formulas.

    tools/scale-page.py [--look-up NS,NS] [--get NS,NS] [--put NS,NS]

Writes docs/scale.svg and what is between <!-- NAME --> and <!-- end --> on the page. What a master
measures on another machine (docs/BENCHMARKS.md, "Thin batches") may be given: nanoseconds for each
key, and for each call."""

import argparse
import math
import os
import random
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "SCALE.md")
MASTERS_MAX = 64  # SLOT_SHARDS_MAX
ACCELERATORS = (8, 64, 512, 1000, 4000, 10000, 32000, 100000)
FOUND, PROMPT, BUSY = 0.5, 8000, 0.5
POOL = 128 << 30
BYTES = {"look-up": 75, "get": 167, "put": 281}
BOOKS = 138


class Shape:
    """How an engine cuts a prompt: tokens of a block, objects of each (shards), whether the blocks
    of a stretch are with one master, bytes of a token, and prompt tokens a second for each
    accelerator."""

    def __init__(self, name, block, shards, stretches, token, tokens_s, colour):
        self.name, self.block, self.shards, self.colour = name, block, shards, colour
        self.object = block * token // shards
        looked_up = tokens_s / block * shards
        self.rates = {
            "look-up": looked_up,
            "get": looked_up * FOUND,
            "put": looked_up * (1 - FOUND),
        }
        blocks = PROMPT / block
        self.calls = {
            "look-up": blocks * shards,
            "get": blocks * FOUND,
            "put": blocks * (1 - FOUND),
        }
        # what of a call goes to masters by chance, each piece as a whole
        begins, found = stretches_of(int(blocks)), int(blocks * FOUND)
        self.pieces = (
            {
                "look-up": len(begins),
                "get": sum(b < found for b in begins),
                "put": sum(b > found for b in begins) + 1,
            }
            if stretches
            else self.calls
        )


def stretches_of(blocks):
    """Where the stretches of a prompt begin: tarn.chain."""
    return [b for b in range(blocks) if b % min(64, 1 << max(0, b.bit_length() - 3)) == 0]


SHAPES = (
    Shape("256 tokens", 256, 1, False, 70272, 4000, "#2e8540"),
    Shape("64 tokens", 64, 1, True, 70272, 4000, "#2563a8"),
    Shape("16 tokens, 8 shards", 16, 8, True, 320 << 10, 1000, "#c2380c"),
)


def requests(pieces, masters):
    """Into how many parts a call of so many pieces falls."""
    return masters * (1 - (1 - 1 / masters) ** pieces)


def cores(costs, shape, accelerators, masters):
    """Processors that all masters together take."""
    total = 0.0
    for op, rate in shape.rates.items():
        key_ns, call_ns = costs[op]
        parts = requests(shape.pieces[op], masters) / shape.calls[op]
        total += rate * (key_ns + call_ns * parts) / 1e9
    return accelerators * total


def needed(costs, shape, accelerators):
    """The least number of masters of which none is busier than BUSY; None: there is none."""
    for masters in range(1, MASTERS_MAX + 1):
        if cores(costs, shape, accelerators, masters) <= BUSY * masters:
            return masters
    return None


def most(costs, shape, masters):
    return BUSY * masters / cores(costs, shape, 1, masters)


# --- what is written ---


def figure(value):
    """Three digits."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def plain(value):
    digits = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / digits) * digits:,}"


def size(value):
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g} bytes"


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def asked(costs):
    names = ["of one accelerator", *(shape.name for shape in SHAPES)]
    rows = [[f"{op}s, keys/s", *(figure(s.rates[op]) for s in SHAPES)] for op in BYTES]
    rows += [[f"keys of a {op}'s call", *(figure(s.calls[op]) for s in SHAPES)] for op in BYTES]
    rows += [[f"pieces of a {op}'s call", *(figure(s.pieces[op]) for s in SHAPES)] for op in BYTES]
    rows.append(["an object", *(size(s.object) for s in SHAPES)])
    rows.append(["objects", *(figure(POOL / s.object) for s in SHAPES)])
    rows.append(["books", *(size(POOL / s.object * BOOKS) for s in SHAPES)])
    control = [sum(s.rates[op] * BYTES[op] for op in BYTES) for s in SHAPES]
    moved = [(s.rates["get"] + s.rates["put"]) * s.object for s in SHAPES]
    rows.append(["bytes to and from masters, a second", *(size(c) for c in control)])
    rows.append(["bytes of blocks, a second", *(size(m) for m in moved)])
    rows.append(
        ["one master's processor", *(f"{100 * cores(costs, s, 1, 1):.4f} %" for s in SHAPES)]
    )
    return table(names, rows)


def masters(costs):
    rows = []
    for a in ACCELERATORS:
        need = [needed(costs, s, a) for s in SHAPES]
        keys = [a * sum(s.rates.values()) for s in SHAPES]
        rows.append(
            [f"{a:,}", *(f"{figure(k)}, {n or 'over 64'}" for k, n in zip(keys, need))]
            + [size(a * POOL / SHAPES[-1].object * BOOKS), f"{math.ceil(a / 8):,}"]
        )
    names = [f"{s.name}: keys/s, masters" for s in SHAPES]
    return table(["accelerators", *names, "books of the last, all masters", "nodes"], rows)


def ends(costs):
    rows = []
    for n in (1, 2, 4, 8, 16, 32, 64):
        row = [n]
        for s in SHAPES:
            thin = s.calls["put"] / requests(s.pieces["put"], n)
            dear = cores(costs, s, 1, n) / cores(costs, s, 1, 1)
            row.append(f"{plain(most(costs, s, n))} ({thin:.3g} keys, {dear:.2f})")
        rows.append(row)
    return table(["masters", *(s.name for s in SHAPES)], rows)


def per_call(costs):
    rows = []
    for op, (key_ns, call_ns) in costs.items():
        rows.append([op, f"{key_ns:.0f} ns", f"{call_ns / 1000:.1f} us", f"{call_ns / key_ns:.0f}"])
    return table(["", "a key", "a call", "keys that cost as much as the call"], rows)


def busiest(begins, shared, blocks, masters=8, draws=400):
    """Keys that the busiest master is asked for, times its fair share, where all prompts begin with
    the same blocks: what has the tag of one of these is with one master for all prompts."""
    chance, total = random.Random(1), 0.0
    sizes = [b - a for a, b in zip(begins, [*begins[1:], blocks])]
    hot = [size for begin, size in zip(begins, sizes) if begin < shared]
    for _ in range(draws):
        load = [(blocks - sum(hot)) / masters] * masters
        for size in hot:
            load[chance.randrange(masters)] += size
        total += max(load) * masters / blocks
    return total / draws


def spread(_):
    rows = []
    for name, shared, blocks in (
        ("nothing", 0, 500),
        ("a chat template, 32 tokens of 8,000", 2, 500),
        ("a system prompt, 1,500 of 8,000", 94, 500),
        ("tools and rules, 10,000 of 12,000", 625, 750),
    ):
        ways = [range(blocks), *(range(0, blocks, n) for n in (32, 64, 128)), stretches_of(blocks)]
        rows.append([name, *(f"{busiest(list(w), shared, blocks):.2f}" for w in ways)])
    head = ["all prompts share", "each block alone", "32 blocks", "64", "128", "as they are"]
    return table(head, rows)


def plot(costs):
    wide, high, left, top = 640, 360, 60, 20

    def at(accelerators, n):
        x = left + (math.log10(accelerators) - 1) / 4 * (wide - left - 20)
        return f"{x:.1f},{high - 40 - math.log2(n) / 6 * (high - 40 - top):.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">',
        "<title>Accelerators that so many masters serve</title>",
        "<style>text { font: 12px sans-serif; fill: #52606d; } .grid { stroke: #dde3e9; }"
        " polyline { fill: none; stroke-width: 2; }</style>",
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
    ]
    for n in (1, 2, 4, 8, 16, 32, 64):
        a, b = at(10, n), at(100000, n)
        out.append(f'<path class="grid" d="M{a} L{b}"/>')
        out.append(f'<text x="{left - 24}" y="{float(a.split(",")[1]) + 4:.1f}">{n}</text>')
    for power in range(1, 6):
        a, b = at(10**power, 1), at(10**power, 64)
        out.append(f'<path class="grid" d="M{a} L{b}"/>')
        x = float(a.split(",")[0])
        out.append(f'<text x="{x - 12:.1f}" y="{high - 22}">{10**power:,}</text>')
    out.append(f'<text x="{wide / 2 - 40}" y="{high - 6}">accelerators</text>')
    out.append('<text x="4" y="14">masters</text>')
    for row, s in enumerate(SHAPES):
        points = [
            at(min(1e5, max(10, most(costs, s, n))), n)
            for n in range(1, MASTERS_MAX + 1)
            if n == 1 or most(costs, s, n - 1) < 1e5
        ]
        out.append(f'<polyline stroke="{s.colour}" points="{" ".join(points)}"/>')
        y = top + 30 + 18 * row
        out.append(f'<path stroke="{s.colour}" stroke-width="3" d="M{left + 16} {y} h20"/>')
        out.append(f'<text x="{left + 42}" y="{y + 4}">{s.name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for op, default in (("look-up", "85,2320"), ("get", "326,4240"), ("put", "1324,4880")):
        parser.add_argument("--" + op, default=default, metavar="NS,NS")
    args = vars(parser.parse_args())
    costs = {op: [float(x) for x in args[op.replace("-", "_")].split(",")] for op in BYTES}
    with open(PAGE) as f:
        text = f.read()
    for name, made in (
        ("asked", asked(costs)),
        ("cost", per_call(costs)),
        ("masters", masters(costs)),
        ("ends", ends(costs)),
        ("spread", spread(costs)),
    ):
        pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text, n = pattern.subn(lambda m, made=made: f"{m[1]}\n{made}\n\n{m[2]}", text)
        assert n == 1, name
    with open(PAGE, "w") as f:
        f.write(text)
    with open(os.path.join(ROOT, "docs", "scale.svg"), "w") as f:
        f.write(plot(costs))


if __name__ == "__main__":
    main()
