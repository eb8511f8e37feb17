#!/usr/bin/env python3
"""The synopses of docs/COMMANDS.md, as a running server tells them (COMMAND DOCS): what a command
takes, its reply, and its errors beside those that any command may have.

tools/commands-page.py --port 6479          writes them into the page
tools/commands-page.py --port 6479 --check  says what differs; 1: something does

A synopsis is an indented line of the page that begins with the name of a command, and those below
it that are indented further."""

import json
import os
import re
import subprocess
import sys

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../docs/COMMANDS.md")
COLUMNS = 100
FIRST, REST = " " * 4, " " * 9


def declared(port):
    """Name to lines, of all commands but HELP."""

    def walk(commands):
        for name, docs in commands.items():
            yield name.upper().replace("|", " "), docs
            yield from walk(docs.get("subcommands", {}))

    said = subprocess.check_output(["redis-cli", "-p", port, "--json", "COMMAND", "DOCS"])
    return {
        name: shown(name, docs)
        for name, docs in walk(json.loads(said))
        if "reply" in docs and not name.endswith(" HELP")
    }


def shown(name, docs):
    """PUTEND key token crc [VALUE bytes] -> OK; errors: BADTOKEN, STALE"""
    errors = ", ".join(docs["errors"].split())
    lines = wrapped(FIRST, [name, *words(docs["synopsis"])])
    reply = "-> " + docs["reply"] + (f"; errors: {errors}" if errors else "")
    if len(lines[-1]) + 1 + len(reply) <= COLUMNS:
        lines[-1] += " " + reply
    else:
        lines += wrapped(REST, reply.split())
    return lines


def words(synopsis):
    """What is in brackets stays together, as far as it fits on a line."""
    depth, word = 0, ""
    for part in synopsis.split():
        word = f"{word} {part}" if word else part
        depth += part.count("[") + part.count("<") - part.count("]") - part.count(">")
        if depth == 0:
            yield from [word] if len(word) < COLUMNS - len(REST) else word.split()
            word = ""


def wrapped(indent, parts):
    lines = [indent]
    for part in parts:
        if len(lines[-1]) + 1 + len(part) > COLUMNS:
            lines.append(REST)
        lines[-1] += part if lines[-1].isspace() else " " + part
    return lines


def named(line, commands):
    """The command whose synopsis begins with this line."""
    found = re.match(FIRST + r"([A-Z-]+)( [A-Z-]+)?\b", line)
    both = (found[1] + (found[2] or ""), found[1]) if found else ()
    return next((name for name in both if name in commands), None)


def main():
    port = sys.argv[sys.argv.index("--port") + 1]
    commands = declared(port)
    with open(PAGE, encoding="utf-8") as f:
        lines = f.read().split("\n")
    page, problems, seen = [], [], []
    while lines:
        line = lines.pop(0)
        name = named(line, commands)
        if name is None:
            page.append(line)
            continue
        block = [line]
        while lines and lines[0].startswith(FIRST + " "):
            block.append(lines.pop(0))
        seen.append(name)
        page += commands[name]
        if block != commands[name]:
            problems += [f"docs/COMMANDS.md tells {name} otherwise than the server:"]
            problems += commands[name]
    for name in commands:
        if seen.count(name) != 1:
            problems += [f"docs/COMMANDS.md has {seen.count(name)} synopses of {name}:"]
            problems += commands[name]
    if "--check" in sys.argv:
        print(*problems, sep="\n")
        return len(problems) > 0
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write("\n".join(page))
    missing = [name for name in commands if name not in seen]
    if missing:
        print("no synopsis yet:", *missing, sep="\n  ")
    return len(missing) > 0


sys.exit(main())
