#!/usr/bin/env python3
"""What is wrong with the text of the tree, whatever it says: tools/check-text.py CHECK.

columns  lines of more than 100 characters
blanks   blanks at the end of lines, files without a last newline, marks of conflicts
length   C files of more than 1,000 lines: a file is one idea
names    structs, unions and enums of one name in two files of src and modules, and static functions
         of one word there: a name is to be found by grep"""

import os
import re
import subprocess
import sys
from fnmatch import fnmatch

COLUMNS = 100
# Data, drawings, and texts that are not ours.
NOT_TEXT = [
    "*.svg",
    "LICENSE",
    "tests/fuzz/seeds/*",
    "utils/redis-compat/*.txt",
    "utils/grafana/*.json",
]
NOT_TEXT += ["utils/redis-compat/*.patch"]
# A line of it is the value of an option.
LONG_LINES = ["redis.conf.sample"]

# Each transport has its own of these (transport.h declares them only).
OPAQUE = "transport_"


def files(*patterns):
    """(path, its lines) of the text files that match."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for path in subprocess.check_output(command, text=True).splitlines():
        if any(fnmatch(path, p) for p in NOT_TEXT) or not os.path.isfile(path):
            continue
        if any(fnmatch(path, p) for p in patterns):
            try:
                with open(path, encoding="utf-8") as f:
                    yield path, f.read().split("\n")
            except UnicodeDecodeError:
                continue


def markdown_prose(lines):
    """Its lines without code, tables and what links lead to."""
    code = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        code ^= fence
        skip = code or fence or line.startswith("    ") or line.lstrip().startswith(("|", "!["))
        yield "" if skip else re.sub(r"\]\([^)]*\)|\]: \S+", "]", line)


def columns():
    for path, lines in files("*"):
        if any(fnmatch(path, p) for p in LONG_LINES):
            continue
        lines = markdown_prose(lines) if path.endswith(".md") else lines
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS and not line.startswith("#!"):
                yield f"{path}:{number}: {len(line)} columns"


def blanks():
    for path, lines in files("*"):
        for number, line in enumerate(lines, 1):
            if line != line.rstrip():
                yield f"{path}:{number}: blanks at the end"
            if line.startswith(("<<<<<<< ", ">>>>>>> ")):
                yield f"{path}:{number}: the mark of a conflict"
        if lines[-1] != "":
            yield f"{path}: no newline at the end"


def length():
    for path, lines in files("*.[ch]"):
        if len(lines) > 1001:
            yield f"{path}: {len(lines) - 1} lines; look for the second idea"


def defined(pattern):
    """Name to the files of src and modules in which a line that begins so defines it."""
    places = {}
    for path, lines in files("src/*.[ch]", "modules/*.[ch]"):
        for line in lines:
            found = re.match(pattern, line)
            if found:
                places.setdefault(found[1], set()).add(path)
    return {name: sorted(paths) for name, paths in sorted(places.items()) if len(paths) > 1}


def names():
    """A type, and a static function of one word, mean one thing in the whole tree."""
    types = defined(r"(?:typedef |static )?(?:struct|union|enum) (\w+) \{")
    words = defined(r"static (?!inline )(?:[\w*]+ )+\**([a-z0-9]+)\(")
    for name, paths in [*types.items(), *words.items()]:
        if not name.startswith(OPAQUE):
            yield f"{name} is defined in {' and '.join(paths)}"


def main():
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    errors = list(globals()[sys.argv[1]]())
    print(*errors, sep="\n")
    return bool(errors)


sys.exit(main())
