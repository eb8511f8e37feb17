#!/usr/bin/env python3
"""The plots and tables of docs/EVICTION.md, by tarn-simulate.

    tools/eviction-page.py [--build build/release] conversation_trace.jsonl

Replays the trace (whole, its halves, its sessions in the other order) and every kind of made trace
by each eviction policy, at eight sizes of the pool; and simulates engines with such pools, for the
time to the first token. Writes docs/eviction-conversation.svg, docs/eviction-made.svg and what is
between <!-- NAME --> and <!-- end --> on the page."""

import argparse
import json
import math
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "EVICTION.md")
COLOURS = {
    "lru": "#52606d",
    "fifo": "#c9a227",
    "lfu": "#2e8540",
    "sieve": "#8e44ad",
    "s3fifo": "#2563a8",
    "chain": "#c2380c",
    "belady": "#1f2a37",
}
POOLS = "1000,3000,5000,10000,20000,30000"
ENGINES = "--engines 16 --gpu A800 --kv-blocks 600 --route tarn".split()


def simulate(build, *words):
    out = subprocess.run(
        [os.path.join(ROOT, build, "tarn-simulate"), *words, "--json"],
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(out.stdout)


class Sheet:
    """A trace: for each policy a hit ratio and a share of prefill that was saved, by size."""

    def __init__(self, sheet, name):
        self.name = name
        self.requests, self.blocks = sheet["requests"], sheet["blocks"]
        self.different = sheet["different"]
        self.sizes = sorted({row["pool_blocks"] for row in sheet["rows"]})
        self.policies = list(dict.fromkeys(row["policy"] for row in sheet["rows"]))
        self.unlimited = self.scores(sheet["unlimited"], sheet)
        self.rows = {
            (row["policy"], row["pool_blocks"]): self.scores(row, sheet) for row in sheet["rows"]
        }

    @staticmethod
    def scores(row, sheet):
        return row["hit_ratio"], row["prefill_saved_s"] / sheet["prefill_s"]

    def behind(self, policy, what):
        """How far it is behind lru at worst; below 0: nowhere."""
        return max(
            self.rows["lru", size][what] - self.rows[policy, size][what] for size in self.sizes
        )

    def ahead(self, policy, what):
        """In the mean over all sizes."""
        return sum(
            self.rows[policy, size][what] - self.rows["lru", size][what] for size in self.sizes
        ) / len(self.sizes)


# --- plots ---

WIDE, HIGH, COLUMNS = 262, 212, 4
LEFT, TOP, INNER_W, INNER_H = 40, 30, 212, 140


def panel(sheet, x, y):
    most = math.ceil(sheet.unlimited[0] * 1.04 * 20) / 20
    low, high = math.log(sheet.sizes[0]), math.log(sheet.sizes[-1])

    def at(size, ratio):
        across = (math.log(size) - low) / (high - low or 1)
        return f"{x + LEFT + across * INNER_W:.1f},{y + TOP + (1 - ratio / most) * INNER_H:.1f}"

    out = [f'<text class="t" x="{x + LEFT}" y="{y + 18}">{sheet.name}</text>']
    step = 0.1 if most <= 0.55 else 0.2
    for k in range(int(most / step + 1e-9) + 1):
        left, right = at(sheet.sizes[0], k * step), at(sheet.sizes[-1], k * step)
        out.append(f'<path class="grid" d="M{left} L{right}"/>')
        down = float(left.split(",")[1]) + 4
        out.append(f'<text class="s end" x="{x + LEFT - 6}" y="{down:.1f}">{k * step:.1f}</text>')
    for size in sheet.sizes:
        if size in (1000, 3000, 10000, 30000):
            across = at(size, 0).split(",")[0]
            label = f"{size // 1000}k"
            down = y + TOP + INNER_H + 16
            out.append(f'<text class="s mid" x="{across}" y="{down}">{label}</text>')
    for policy in sheet.policies:
        points = " ".join(at(size, sheet.rows[policy, size][0]) for size in sheet.sizes)
        out.append(f'<polyline class="{policy}" points="{points}"/>')
    return "\n".join(out)


def picture(sheets, words):
    width = 20 + WIDE * COLUMNS
    height = 56 + HIGH * math.ceil(len(sheets) / COLUMNS)
    style = [
        'text { font-family: "Segoe UI", "Helvetica Neue", Helvetica, Arial, "DejaVu Sans", '
        "sans-serif; fill: #1f2a37; }",
        ".t { font-size: 14px; font-weight: 600; } .s { font-size: 12px; fill: #52606d; }",
        ".mid { text-anchor: middle; } .end { text-anchor: end; }",
        ".grid { stroke: #dde3e9; } polyline { fill: none; stroke-width: 1.6; }",
    ]
    for policy in sheets[0].policies:
        extra = {"belady": " stroke-dasharray: 6 4;", "chain": " stroke-width: 3;"}
        style.append(
            f".{policy} {{ stroke: {COLOURS.get(policy, '#00838f')};{extra.get(policy, '')} }}"
        )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{words}">',
        f"<title>{words}</title>",
        "<style>\n" + "\n".join(style) + "\n</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for i, policy in enumerate(sheets[0].policies):
        x = LEFT + 10 + i * 110
        out.append(f'<polyline class="{policy}" points="{x},22 {x + 30},22"/>')
        out.append(f'<text class="s" x="{x + 36}" y="26">{policy}</text>')
    for i, sheet in enumerate(sheets):
        out.append(panel(sheet, 10 + WIDE * (i % COLUMNS), 40 + HIGH * (i // COLUMNS)))
    return "\n".join(out) + "\n</svg>\n"


# --- tables ---


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def thousands(n):
    return f"{n:,}"


def hits_table(sheet):
    """Hit ratios alone."""
    rows = []
    for policy in sheet.policies:
        cells = [f"{sheet.rows[policy, size][0]:.4f}" for size in sheet.sizes]
        rows.append([policy, *cells])
    return table(["blocks", *map(thousands, sheet.sizes)], rows)


def sheet_table(sheet):
    rows = []
    for policy in sheet.policies:
        cells = [
            "{:.1f} / {:.1f}".format(*(100 * v for v in sheet.rows[policy, size]))
            for size in sheet.sizes
        ]
        rows.append([policy, *cells])
    text = (
        f"**{sheet.name}**: {thousands(sheet.requests)} requests, {thousands(sheet.blocks)} "
        f"blocks, {thousands(sheet.different)} different;\nan unlimited pool: "
        "{:.1f} / {:.1f}".format(*(100 * v for v in sheet.unlimited))
    )
    return text + "\n\n" + table(["blocks", *map(thousands, sheet.sizes)], rows)


def beside_lru(sheets, what):
    """For each trace and policy: ahead of lru in the mean, and behind it at worst; what 0: in hits,
    1: in prefill saved."""
    policies = [p for p in sheets[0].policies if p not in ("lru", "belady")]
    rows = []
    for sheet in sheets:
        cells = []
        for policy in policies:
            worst = max(sheet.behind(policy, what), 0)
            cells.append(f"{100 * sheet.ahead(policy, what):+.1f}, {-100 * worst:.1f}")
        rows.append([sheet.name, *cells])
    return table(["", *policies], rows)


def first_tokens(build, trace, policies):
    words = ["--trace", trace, *ENGINES, "--pool-blocks", POOLS, "--eviction", ",".join(policies)]
    rows = simulate(build, "sweep", *words)["rows"]
    found = {(row["eviction"], row["pool_blocks"]): row for row in rows}
    sizes = [int(size) for size in POOLS.split(",")]
    lines = []
    for policy in policies:
        cells = []
        for size in sizes:
            row = found[policy, size]
            cells.append(
                f"{row['ttft_ms']['mean']:.0f}, {row['ttft_ms']['p90']:.0f}, "
                f"{row['prefill_saved_s']:.0f}"
            )
        lines.append([policy, *cells])
    return table(["blocks", *map(thousands, sizes)], lines)


def fill(parts):
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()
    for name, text in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page, n = re.subn(
            pattern, lambda m, t=text: f"{m[1]}\n{t}\n\n{m[2]}", page, flags=re.DOTALL
        )
        if n != 1:
            raise SystemExit(f"{PAGE} has {n} places for {name}")
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(page)


def draw(name, sheets, words):
    with open(os.path.join(ROOT, "docs", name), "w", encoding="utf-8") as f:
        f.write(picture(sheets, words))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("trace")
    a = parser.parse_args()
    got = simulate(a.build, "evict", "--trace", a.trace, "--transform", "all")["sheets"]
    recorded = [Sheet(s, s["transform"].replace("-", " ")) for s in got]
    got = simulate(a.build, "evict", "--generate", "all")["sheets"]
    made = [Sheet(s, s["trace"]) for s in got]
    draw("eviction-conversation.svg", recorded, "Prefix hit ratio: the conversation trace")
    draw("eviction-made.svg", made, "Prefix hit ratio: made traces")
    known = [policy for policy in made[0].policies if policy != "belady"]
    fill(
        {
            "conversation": hits_table(recorded[0]),
            "beside": beside_lru(recorded + made, 0),
            "saved": beside_lru(recorded + made, 1),
            "ttft": first_tokens(a.build, a.trace, known),
            "all": "\n\n".join(sheet_table(sheet) for sheet in recorded + made),
        }
    )


main()
