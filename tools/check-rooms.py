#!/usr/bin/env python3
"""Holds src/ and modules/ against tools/rooms.txt, the graph of the rooms.

A room includes what it may call and nothing else, and calls all that it may; a module sees
src/module.h, base (of which it has its own copy), the headers right under src/transport, and the
rooms that the graph gives it. Each room's README.md names its files and, in a paragraph "May
call:", the rooms of the graph; docs/ARCHITECTURE.md has each room in the row of its rank."""

import glob
import os
import re
import sys
from fnmatch import fnmatch

# The public headers right under src/ belong to no room, but who implements them is called.
PUBLIC = {"src/tarn.h": "client", "src/tarn_transfer.h": "transfer"}
HOSTING = re.compile(r"\btarn_host_\w+\(")  # those of tarn.h
# Libraries that one room keeps to itself.
LIBRARIES = {
    "event2": "net",
    "openssl": "tls",
    "zmq.h": "kvevents",
    "mpack.h": "kvevents",
    "curl": "scrape",
}

errors = []


def bad(where, text):
    errors.append(f"{where}: {text}")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def read_graph(path):
    """{room: rank}, {room or modules/NAME: the rooms it may call}"""
    ranks, may_call = {}, {}
    for line in read(path).splitlines():
        row = re.fullmatch(r"(\w+) (\d+):((?: \w+)*)", line)
        module = re.fullmatch(r"(modules/\w+):((?: \w+)+)", line)
        if module:
            may_call[module[1]] = module[2].split()
            for other in set(may_call[module[1]]) - ranks.keys():
                bad(path, f"{module[1]} may not call {other}, whose line is not before")
        elif row:
            room, rank, called = row[1], int(row[2]), row[3].split()
            for other in called:
                if ranks.get(other, rank) >= rank:
                    bad(
                        path, f"{room} may not call {other}, whose line is not before, or not lower"
                    )
            ranks[room], may_call[room] = rank, called
        elif not line.startswith("#"):
            bad(path, f'"{line}" is not "room rank: rooms"')
    return ranks, may_call


def room_of(path):
    part = path.split("/")
    if part[0] == "modules":
        return "/".join(part[:2])
    return part[1] if len(part) > 2 else PUBLIC.get(path, "")


def target_of(path, name):
    """The file that an #include "name" means there."""
    for place in (os.path.dirname(path), "src", "modules"):
        target = os.path.normpath(f"{place}/{name}")
        if os.path.exists(target):
            return target
    return None


def may_include(room, target, may_call):
    to = room_of(target)
    if room.startswith("modules/"):
        seen = ("", room, "base", *may_call.get(room, []))
        return to in seen or re.fullmatch(r"src/transport/\w+\.h", target)
    return to in ("", room) or to in may_call.get(room, ["base"])


def check_includes(files, may_call):
    used = {room: set() for room in may_call}
    for path in files:
        room = room_of(path)
        if HOSTING.search(read(path)):
            used.get(room, set()).add("hosting")
        for number, line in enumerate(read(path).splitlines(), 1):
            include = re.match(r'\s*#\s*include\s*(?:<(\w+)/|"([^"]+)")', line)
            if not include:
                continue
            library, name = include.groups()
            if name:
                target = target_of(path, name)
                if target is None:
                    bad(f"{path}:{number}", f'"{name}" is neither beside this file nor under src')
                elif not may_include(room, target, may_call):
                    bad(f"{path}:{number}", f"tools/rooms.txt does not let {room} call {target}")
                else:
                    used.get(room, set()).add(room_of(target))
            elif LIBRARIES.get(library, room) != room:
                bad(f"{path}:{number}", f"only src/{LIBRARIES[library]} includes {library}")
    for room, called in may_call.items():
        for other in sorted(set(called) - used[room]):
            bad("tools/rooms.txt", f"{room} does not call {other}")


def check_readme(place, files, graph_row):
    """The README.md of a room or module; a word in backticks stands for the files that it names, or
    matches, with their headers. graph_row: what the room may call; None for a module."""
    path = f"{place}/README.md"
    text = read(path) if os.path.exists(path) else ""
    words = [word for quoted in re.findall(r"`([^`]+)`", text) for word in quoted.split()]
    stems = [re.sub(r"\.[ch]$", "", word) for word in words]
    for file in files:
        stem = os.path.relpath(file, place)[:-2]
        if not any(fnmatch(stem, pattern) for pattern in stems):
            bad(path, f"does not name {stem}{file[-2:]}")
    said = re.search(r"^May call:(.*?)\.(?:\s|$)", text, re.M | re.S)
    called = re.findall(r"`(\w+)`", said[1]) if said else None
    if graph_row is not None and called != graph_row:
        right = ", ".join(f"`{room}`" for room in graph_row) or "nothing of tarn"
        bad(path, f'"May call: {right}." is what tools/rooms.txt says, in that order')


def main():
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ranks, may_call = read_graph("tools/rooms.txt")
    files = glob.glob("src/**/*.[ch]", recursive=True) + glob.glob("modules/*/*.[ch]")
    check_includes(sorted(files), may_call)
    table = read("docs/ARCHITECTURE.md")
    for room, rank in ranks.items():
        if not re.search(rf"^\| {rank} \|.*`{room}`", table, re.M):
            bad("docs/ARCHITECTURE.md", f"has no {room} in the row of rank {rank}")
    places = {}
    for path in files:
        if path.count("/") > 1:
            places.setdefault("/".join(path.split("/")[:2]), []).append(path)
    for place in sorted(places.keys() | {f"src/{room}" for room in ranks}):
        top, name = place.split("/")
        if top == "src" and (name in ranks) != (place in places):
            bad("tools/rooms.txt", f"{name} is only {'here' if name in ranks else 'in src'}")
        check_readme(place, sorted(places.get(place, [])), may_call.get(name))
    print(*errors, sep="\n")
    return bool(errors)


sys.exit(main())
