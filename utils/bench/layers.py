#!/usr/bin/python3
"""How much of a transfer hides behind the computing: the table of docs/BENCHMARKS.md, and the
picture of docs/engines/LAYERS.md.

    utils/bench/layers.py [--layer-ms 0.5,1,2,5,10] [--rounds 3] [--svg docs/layers.svg]

The measurement is that of utils/examples/layer_by_layer.py: two processes, a node's memory, bytes
verified. QUICK=1: one round of two speeds."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Dict, List, Tuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples"))

from layer_by_layer import Shape, run_all  # noqa: E402  (needs the path above)

WAYS: List[Tuple[str, str, bool]] = [
    ("shm, copied out by shm", "shm", False),
    ("shm, read in place", "shm", True),
    ("tcp, copied out by shm", "tcp", False),
    ("tcp, read in place", "tcp", True),
]


def table(shape: Shape, speeds: List[float], rounds: int) -> Tuple[List[str], int]:
    """Rows of Markdown, and how many objects were wrong."""
    lines = [
        f"{shape.layers} layers, {shape.chunks} chunks of {shape.block_bytes / 2**20:g} MiB a "
        "layer and a tail of "
        f"{shape.tail_bytes / 1024:.0f} KiB a layer: {shape.bytes / 2**20:.0f} MiB a prompt. "
        f"Milliseconds, medians of {rounds}.",
        "",
        "| way | a layer | compute only | after | overlapped | transfer alone | left of it | "
        "hidden | possible |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    wrong = 0
    for name, transport, views in WAYS:
        for r in run_all(
            "", shape, speeds, rounds, transport=transport, read="shm", views=views, busy=False
        ):
            # Neither the tail nor the last layer has computing to hide behind, and nothing hides
            # for longer than that takes.
            early = (shape.layers - 1) * shape.chunks * shape.block_bytes / shape.bytes
            possible = min(early, (1 - 1 / shape.layers) * r["compute"] / r["transfer"])
            ms = " | ".join(
                f"{1000 * r[x]:.1f}" for x in ("compute", "after", "overlapped", "transfer", "left")
            )
            lines.append(
                f"| {name} | {r['layer_ms']:g} ms | {ms} | {100 * r['hidden']:.0f} % | "
                f"{100 * possible:.0f} % |"
            )
            wrong += int(r["wrong"])
    return lines, wrong


# --- the picture

_WIDTH, _LEFT, _ROW = 1080, 60, 6


def _bar(kind: str, start: float, y: int, width: float) -> str:
    return (
        f'  <rect class="{kind}" x="{_LEFT + start:.1f}" y="{y}" width="{width:.1f}"'
        f' height="{_ROW - 1}"/>'
    )


def panel(result: Dict[str, Any], top: int, scale: float, title: str) -> List[str]:
    """One way of sending: a row per layer, computing, waiting, moving."""
    out = [f'  <text class="h" x="{_LEFT}" y="{top - 12}">{title}</text>']
    begin = 0.0
    last = result["computed"][-1]
    free = 0.0  # when the layer before had arrived: a transfer cannot begin before
    for layer, (computed, arrived) in enumerate(zip(result["computed"], result["arrived"])):
        sent = max(computed, free, result.get("sent", 0.0))
        y = top + layer * _ROW
        for kind, a, b in (("c", begin, computed), ("w", computed, sent), ("x", sent, arrived)):
            if b > a:
                out.append(_bar(kind, a * scale, y, (b - a) * scale))
        begin, free = computed, arrived
    bottom = top + (len(result["computed"]) + 1) * _ROW
    out.append(_bar("x", free * scale, bottom - _ROW, (result["total"] - free) * scale))
    for at, label, up in (
        (last, "all computed", 14),
        (result["total"], f"all there: {1000 * result['total']:.1f} ms", 30),
    ):
        x = _LEFT + at * scale
        out.append(
            f'  <line class="l" x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{bottom + up - 10}"/>'
        )
        out.append(
            f'  <text class="s" x="{x:.1f}" y="{bottom + up}" text-anchor="end">{label}</text>'
        )
    out.append(f'  <text class="s" x="{_LEFT - 8}" y="{top + 6}" text-anchor="end">layer 0</text>')
    out.append(f'  <text class="s" x="{_LEFT - 8}" y="{bottom + 1}" text-anchor="end">tail</text>')
    return out


def picture(shape: Shape, r: Dict[str, Any], transport: str) -> str:
    """A measured round of each kind, layer by layer."""
    after, overlapped = r["example_after"], r["example"]
    after["sent"] = after["computed"][-1]
    scale = (_WIDTH - 2 * _LEFT - 20) / max(after["total"], overlapped["total"])
    height = shape.layers * _ROW
    tops = (96, 96 + height + 92)
    total = tops[1] + height + 84
    words = (
        f"Sent after computing the prompt is there at {1000 * after['total']:.1f} ms, layer by "
        f"layer at {1000 * overlapped['total']:.1f} ms; computing alone takes "
        f"{1000 * overlapped['compute']:.1f} ms."
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {total}" '
        f'width="{_WIDTH}" height="{total}" role="img" aria-label="{words}">',
        "  <title>A transfer behind the computing, and hidden by it: measured, layer by "
        "layer</title>",
        "  <style>",
        '    text { font-family: "Segoe UI", "Helvetica Neue", Helvetica, Arial, "DejaVu Sans", '
        "sans-serif; fill: #1f2a37; }",
        "    .h { font-size: 17px; font-weight: 600; } .s { font-size: 12.5px; fill: #52606d; }",
        "    .c { fill: #2563a8; } .w { fill: #e5e7eb; } .x { fill: #c2560c; } .l { stroke: "
        "#52606d; stroke-dasharray: 3 3; }",
        "  </style>",
        f'  <rect x="0.75" y="0.75" width="{_WIDTH - 1.5}" height="{total - 1.5}" rx="14" '
        'fill="#f6f8fa" stroke="#d0d7de"/>',
        f'  <text class="s" x="{_LEFT}" y="34">{shape.bytes / 2**20:.0f} MiB of KV cache in '
        f"{shape.layers} layers, "
        f"{r['layer_ms']:g} ms of computing each, by {transport} to another process; one measured "
        "prompt of each kind</text>",
    ]
    for i, (kind, label) in enumerate(
        (("c", "computing"), ("w", "waiting"), ("x", "on its way, until verified"))
    ):
        out.append(f'  <rect class="{kind}" x="{_LEFT + i * 130}" y="46" width="12" height="12"/>')
        out.append(f'  <text class="s" x="{_LEFT + 18 + i * 130}" y="57">{label}</text>')
    out += panel(after, tops[0], scale, "Sent when all is computed")
    out += panel(overlapped, tops[1], scale, "Layer by layer")
    foot = f"{100 * r['hidden']:.0f} % of the transfer is hidden (medians of all rounds)"
    out += [f'  <text class="s" x="{_LEFT}" y="{total - 16}">{foot}</text>', "</svg>", ""]
    return "\n".join(out)


def main() -> int:
    quick = bool(os.environ.get("QUICK"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layer-ms", default="1,5" if quick else "0.5,1,2,5,10")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument(
        "--block-bytes", type=int, default=256 * (128 << 10) // 32, help="of a chunk's layer"
    )
    parser.add_argument(
        "--tail-bytes", type=int, default=100 * (128 << 10) // 32, help="of the tail's layer"
    )
    parser.add_argument("--rounds", type=int, default=1 if quick else 3)
    parser.add_argument(
        "--svg", default="", help="draws the round instead, of the first speed and --transport"
    )
    parser.add_argument("--transport", choices=["shm", "tcp"], default="shm", help="of the picture")
    args = parser.parse_args()
    shape = Shape(args.layers, args.chunks, args.block_bytes, args.tail_bytes)
    speeds = [float(ms) for ms in args.layer_ms.split(",")]
    if args.svg:
        results = run_all(
            "",
            shape,
            speeds[:1],
            args.rounds,
            transport=args.transport,
            read="shm",
            views=False,
            busy=False,
        )
        with open(args.svg, "w") as file:
            file.write(picture(shape, results[0], args.transport))
        return 1 if results[0]["wrong"] else 0
    lines, wrong = table(shape, speeds, args.rounds)
    print("\n".join(lines))
    if wrong:
        print(f"\n{wrong} objects had wrong bytes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
