#!/usr/bin/env python3
"""docs/FIGURES.md from the declarations in src (base/figures.h): what each figure is called, its
kind and unit, and its line of help.

tools/figures-page.py          writes the page
tools/figures-page.py --check  says what differs; 1: something does
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = "docs/FIGURES.md"
# Where figures are declared, in the order of the page.
PARTS = [
    ("src/commands/info.c", "The server"),
    ("src/base/usage.c", "... its processor time"),
    ("src/front/stats.h", "Clients and commands"),
    ("src/ha/persistence.c", "Files"),
    ("src/ha/roles.c", "Replication"),
    ("src/module/figures.c", "Modules (`module:`)"),
    ("src/front/module_durable.c", "... what they keep (`module_state_NAME:`)"),
    ("src/commands/info_pool.c", "The pool (`segmentN:`)"),
    ("src/store/figures.h", "The books"),
    ("src/host/host.h", "The data port"),
    ("src/host/figures.c", "... whom it serves, and what it refused"),
    ("src/commands/info_nodes.c", "Nodes and tasks (`tasks_by_REASON:`)"),
    ("src/cluster/cluster.h", "The cluster"),
    ("src/commands/info_inband.c", "Values of Redis clients on other machines"),
    ("src/inband/remote.h", "... counted"),
    ("src/ha/kv_events.c", "Events"),
    ("src/commands/rows.c", "Lists (`/api/segments`, `/api/tasks`, `/api/clients`, ...)"),
    ("src/module/events.c", "... of events (`/api/events`)"),
    ("src/host/node_figures.h", "Of a node (`NODE INFO`), besides those of its data port"),
    ("src/pool/tier.h", "... of its disk, after `ssd-` or `file-`"),
    ("src/node/figures.c", "Of the process of a node (`/metrics` of `tarn-node`)"),
    ("src/hosting/snapshot.c", "... and of the node in it, besides those above"),
    ("src/route/route.h", "Routing (the Conductor, `tarn-simulate`)"),
    ("src/route/index.h", "... and its index of the engines' blocks"),
    ("modules/conductor/conductor.h", "... and the Conductor itself (`INFO conductor`)"),
    ("modules/conductor/streams.h", "... the event streams that it follows"),
    ("modules/conductor/feed.h", "... what was odd in them"),
    ("modules/conductor/figures.c", "... its engines (`engine_ID:`), and its memory"),
    ("modules/conductor/rows.c", "... and its lists (`/api/conductor/engines`, `decisions`, ...)"),
    ("src/kvevents/follow.h", "... and of all streams of engines' events"),
    ("modules/conductor/metrics.h", "... the engines' `/metrics` that it asks for"),
    ("src/scrape/scraper.h", "... and how that goes"),
    ("src/client/timing.c", "Of a client (`tarn_figures_text`)"),
]
INTRO = """# Figures

What `INFO` shows, in its form `name:value` or, for several of one thing, `thing:name=value,...`;
and what `NODE INFO` shows of a node, with `-` for `_` and `.`. A name that ends in `_` goes on with
a label, such as a state: `nodes_up`. Help that begins with `...` goes on with that of the figure
before. Counters begin at 0 when the process starts, most of them again at `CONFIG RESETSTAT`.
[OPERATIONS](OPERATIONS.md#what-to-watch) says which to watch.

Written by tools/figures-page.py from the declarations in the source.
"""


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def types():
    found = re.findall(
        r'\[FIGURE_(\w+)\] = \{FIGURE_KIND_(\w+), "(\w*)"', read("src/base/figures.c")
    )
    return {name: (kind.lower(), unit.replace("_", " ")) for name, kind, unit in found}


def declared(path, known):
    """(type, name, help), in order; host.h has a name of a node and one of INFO."""
    text = re.sub(r'"\s+"', "", read(path).replace("\\\n", "\n"))
    row = re.compile(
        r"\b(X|BOTH|INFO|NODE|FIGURE|FIGURE_OF)\((?:[^;]{1,30}?,\s*)?"
        rf'({"|".join(known)}),\s*(\w+),\s*(?:(\w*),\s*)?"([^"]*)"'
    )
    for macro, kind, name, other, text in row.findall(text):
        names = {"BOTH": [other, name.replace("_", "-")], "INFO": [other]}.get(macro, [name])
        yield kind, " ".join(f"`{n}`" for n in dict.fromkeys(names)), text


def page():
    known, out, n = types(), [INTRO], 0
    for path, title in PARTS:
        out += ["", f"## {title}", "", "| figure | kind | unit | |", "| --- | --- | --- | --- |"]
        for kind, name, text in declared(path, known):
            out.append(f"| {name} | {known[kind][0]} | {known[kind][1]} | {text} |")
            n += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out) + "\n"), n


def problems():
    """Of the page and the source; figures that the page would not have."""
    text, n = page()
    found = [] if text == read(PAGE) else [f"{PAGE} is not what tools/figures-page.py writes"]
    uses = 0
    for folder, _, files in os.walk(os.path.join(ROOT, "src")):
        for name in files:
            path = os.path.relpath(os.path.join(folder, name), ROOT)
            if path.endswith((".c", ".h")) and path != "src/base/figures.h":
                here = len(
                    re.findall(r"\bFIGURE(?:_OF)?\(|_FIGURES\(X\)|_FIGURES\(BOTH", read(path))
                )
                if here and path not in [part[0] for part in PARTS]:
                    found.append(f"{path} declares figures, and is not in tools/figures-page.py")
                uses += here
    if n < 400 or uses < 200:
        found.append(f"only {n} figures were understood")
    return found


if sys.argv[1:] == ["--check"]:
    wrong = problems()
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)
with open(os.path.join(ROOT, PAGE), "w", encoding="utf-8") as f:
    f.write(page()[0])
