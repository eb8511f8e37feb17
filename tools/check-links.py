#!/usr/bin/env python3
"""What Markdown names exists: run by `make lint`.

Links lead to a file, and where they name a heading, to a heading. Of what is in `backticks`, files
and folders are in the tree, names in the source, options (words-with-dashes) in redis.conf.sample
or in the source; options of tarn's programs, in code blocks too, are options of that program. The
commands of docs/COMMANDS.md's headings are in the source. A page that redis.conf.sample refers to
has the option in whose comment it does, and every page of docs/ named anywhere is there."""

import os
import re
import subprocess
import sys
from fnmatch import fnmatch

# Words of others: what these pages are about, and what belongs to other programs.
OTHERS_PAGES = ("docs/engines/", "docs/BENCHMARKS.md", "docs/ROUTING.md", "CHANGELOG.md")
OTHERS = """apt-get deb-src down-after-milliseconds head_dim hidden_size ibv_devices KEAP
    lru-test intrinsic-latency nr_hugepages num_attention_heads num_key_value_heads redis-benchmark
    redis-cli redis.conf src/redis-server room_object_verb tarn-transfer""".split()
FILE = r"[\w*.-]+(?:/[\w*.-]+)*\.(?:c|conf|h|html|js|map|md|py|sample|sh|supp|svg|tcl|toml|txt)"
FOLDERS = ("deps/", "docs/", "examples/", "modules/", "src/", "tests/", "tools/", "utils/")
PROGRAMS = ("node", "benchmark", "check")

errors = []


def bad(path, number, text):
    errors.append(f"{path}:{number}: {text}")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


class Tree:
    """What there is to be named."""

    def __init__(self):
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        files = subprocess.check_output(listed, text=True).split("\n")
        self.files = [f for f in files if f and os.path.isfile(f) and "/seeds/" not in f]
        code = {f: read(f) for f in self.files if not f.endswith((".md", ".svg"))}
        everything = "\n".join(code.values())
        self.words = set(re.findall(r"[a-z_]\w*", everything.lower()))
        # "grants_refused_%s" is many names.
        self.stems = {w for w in self.words if w.endswith("_") and len(w) > 6}
        self.sample = code["redis.conf.sample"]
        self.options = set(re.findall(r"^#? ?([a-z][a-z0-9-]+)(?: .*)?$", self.sample, re.M))
        source = "\n".join(
            t for f, t in code.items() if f.startswith(("src/", "modules/", "utils/"))
        )
        declared = "\n".join(t for f, t in code.items() if f.startswith("src/wire/"))
        self.commands = set(re.findall(r'"([A-Z]+(?:\|[A-Z-]+)?)"', declared))
        self.strings = set(re.findall(r'"([\w-]+)"', source))
        policies = re.search(r"define STORE_POLICIES\(X\) (.*)", source)[1]
        self.strings |= {f"allkeys-{p}" for p in re.findall(r"X\((\w+)\)", policies)}
        self.program = {
            p: "\n".join(t for f, t in code.items() if f.startswith(f"src/{p}/")) for p in PROGRAMS
        }

    def has_file(self, name):
        return any(
            fnmatch(f, name) or fnmatch(f, "*/" + name) or f.startswith(name.rstrip("/") + "/")
            for f in self.files
        )

    def has_word(self, word):
        word = word.lower()
        return word in self.words or any(word.startswith(stem) for stem in self.stems)

    def has_option(self, program, option):
        if program == "server":
            return option in self.options or option in self.strings
        return re.search(rf'"(--)?{option}"|--{option}\b', self.program[program])


def check_quoted(tree, path, number, quoted):
    """One text in backticks."""
    for word in quoted.split():
        word = re.sub(r"^build/\w+/(tests/.*_test)$", r"\1.c", word.strip(",;:()[]\"'"))
        is_file = re.fullmatch(FILE, word) or word.startswith(FOLDERS)
        if word in OTHERS:
            continue
        if is_file and not re.search(r"tarn-\w+$|\.so|[A-Z$<]", word) and not tree.has_file(word):
            bad(path, number, f"there is no {word}")
    if path.startswith(OTHERS_PAGES):
        return
    option = re.match(r"(?!tarn-)([a-z]+(?:-[a-z0-9]+)+)(?![\w./:-])", quoted)
    if option and option[1] not in tree.options | tree.strings | set(OTHERS):
        if not tree.has_word(option[1].replace("-", "_")):  # a figure of NODE INFO
            bad(path, number, f"nothing has an option {option[1]}")
    if re.fullmatch(FILE, quoted) or quoted.startswith(("[", "/", "build/")):
        return
    for name in re.findall(r"(?<![\w./$*-])[A-Za-z]\w*_\w+|\b[A-Z]{3,}\b|(?<=--)[a-z]\w*", quoted):
        if name not in OTHERS and not tree.has_word(name) and name + "*" not in quoted:
            bad(path, number, f"nothing is called {name}")


def check_programs(tree, path, number, command):
    """Options of tarn's programs in one command, or several."""
    for program, words in re.findall(r"\btarn-(server|node|benchmark|check)\b([^|;&#`]*)", command):
        for option in re.findall(r"(?<=\s)--([a-z][\w-]*)", words):
            if not tree.has_option(program, option):
                bad(path, number, f"tarn-{program} has no --{option}")


def check_names(tree, path, text):
    prose, command, code = [], "", False
    for number, line in enumerate(text.split("\n"), 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        if fence or not (code or line.startswith("    ")):
            prose.append("" if fence else line)
            continue
        prose.append("")
        command += line.rstrip("\\")
        if not line.endswith("\\"):
            check_programs(tree, path, number, command)
            command = ""
    number = 1
    for paragraph in "\n".join(prose).split("\n\n"):
        for quoted in re.finditer(r"`([^`]+)`", paragraph):
            at = number + paragraph.count("\n", 0, quoted.start())
            check_quoted(tree, path, at, quoted[1])
            check_programs(tree, path, at, quoted[1])
        number += paragraph.count("\n") + 2


# --- links ---


def without_code(text):
    return re.sub(r"^\s*```.*?^\s*```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)


def anchors(path):
    """As GitHub makes them of headings."""
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', read(path)))
    for heading in re.findall(r"^#+\s+(.*)$", without_code(read(path)), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", ""))
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found


def check_links(path, text):
    for number, line in enumerate(without_code(text).split("\n"), 1):
        targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", line)
        for target in targets + re.findall(r'(?:src|href)="([^"]+)"', line):
            file, _, fragment = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            to = os.path.join(os.path.dirname(path), file) if file else path
            if not os.path.exists(to):
                bad(path, number, f"{target} does not exist")
            elif fragment and to.endswith(".md") and fragment not in anchors(to):
                bad(path, number, f"no heading #{fragment} in {to}")


# --- pages that are referred to ---


def check_sample(tree):
    """An option's page says something of it."""
    for block in re.finditer(r"(?:.+\n)+", tree.sample):
        number = tree.sample.count("\n", 0, block.start()) + 1
        options = re.findall(r"^([a-z][a-z0-9-]+) ", block[0], re.M)
        for page in re.findall(r"docs/[\w/-]+\.md", block[0]):
            if options and not any(f"`{option}" in read(page) for option in options):
                bad("redis.conf.sample", number, f"{page} says nothing of {', '.join(options)}")


def check_pages(tree):
    for path in tree.files:
        for number, line in enumerate(read(path).split("\n"), 1):
            for page in re.findall(r"\bdocs/[A-Za-z][\w/-]*\.md", line):
                if not os.path.exists(page):
                    bad(path, number, f"there is no {page}")


def check_commands(tree):
    """The headings of docs/COMMANDS.md."""
    for number, line in enumerate(read("docs/COMMANDS.md").split("\n"), 1):
        for command in re.findall(r"\b[A-Z]{3,}\b(?: [A-Z]+)?", line if line[:3] == "###" else ""):
            if command.replace(" ", "|") not in tree.commands and not command.endswith(" HELP"):
                bad("docs/COMMANDS.md", number, f"there is no command {command}")


def main():
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    tree = Tree()
    for path in tree.files:
        if path.endswith(".md"):
            text = read(path)
            check_links(path, text)
            check_names(tree, path, text)
    check_sample(tree)
    check_pages(tree)
    check_commands(tree)
    print(*errors, sep="\n")
    return bool(errors)


sys.exit(main())
