#!/usr/bin/env python3
"""Does what the pages say, and compares.

    tools/check-pages.py [--build build/release] [PAGE]...

Transcripts, on a page with a line <!-- run OPTION... -->: lines of its code blocks that begin with
"> " or "127.0.0.1:6479> " go to one server with these options, from one redis-cli, whose answers
must be those that the page shows. Long numbers and hex words may differ: what they are here is what
later commands of the page get in their place. Two spaces and a word after a reply are the page's
own remark. "..." stands for any lines, and at the end of a line for its rest.

Recipes: a code block behind a line <!-- paste --> is pasted into a bash that starts where a built
tree seems to be, on a free port, with a server running unless the page starts one. Each command
must succeed; "# -> text" behind one says what it prints last. Blocks of a page share the bash.

Ends with "N passed, M failed". What was started is ended, whatever happens."""

import argparse
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "python"))
from harness import free_port  # pylint: disable=wrong-import-position

PROMPT = re.compile(r"^(?:127\.0\.0\.1:6479)?> (.*)$")
MARK = "--- end of an answer ---"
SLOW = re.compile(r"\([0-9.]+s\)$")  # redis-cli, of a command that took half a second
LONG = re.compile(r"\b(?:[0-9a-f]{16,40}|[0-9]{6,})\b")
PATIENCE_S = 300


def blocks(text):
    """(line number, is it marked, lines) of each code block: indented, or plain fences."""
    block, marked, start, fence = [], False, 0, False
    for number, line in enumerate(text.split("\n") + ["end"], 1):
        bar = line.startswith("```")
        if not bar and (fence or line.startswith("    ") or (block and line == "")):
            start = start if block else number
            block.append(line if fence else line[4:])
            continue
        if block:
            yield start, marked, block
            block, marked = [], False
        if bar:
            fence = not fence
        elif line.strip():
            marked = line.strip() == "<!-- paste -->"


# --- transcripts ---


def matches(shown, said):
    """The line of the page, and that of redis-cli."""
    if shown.endswith("..."):
        return said.startswith(shown[:-3])
    if shown.endswith('..."'):
        return said.startswith(shown[: shown.index('"') + 1])
    remark = re.match(r"(.*?\S) {2,}\S.*$", shown.lstrip())
    bare = shown[: len(shown) - len(shown.lstrip())] + remark.group(1) if remark else shown
    blank = lambda line: LONG.sub("#", line).rstrip()
    return blank(shown) == blank(said) or blank(bare) == blank(said)


def compare(shown, said, learned):
    """None, or the first line of the page that is not what was said."""
    at = 0
    for i, line in enumerate(shown):
        if line == "...":
            rest = shown[i + 1] if i + 1 < len(shown) else None
            while rest is not None and at < len(said) and not matches(rest, said[at]):
                at += 1
            at = at if rest is not None else len(said)
            continue
        if at == len(said) or not matches(line, said[at]):
            answer = said[at] if at < len(said) else "nothing"
            return f"the page shows {line!r}, redis-cli {answer!r}"
        learned.update(zip(LONG.findall(line), LONG.findall(said[at])))
        at += 1
    return None if at == len(said) else f"the page ends before {said[at]!r}"


class Client:
    """One redis-cli, as it would be on a terminal."""

    def __init__(self, port):
        self.cli = subprocess.Popen(
            ["redis-cli", "--no-raw", "-p", port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ask(self, command):
        self.cli.stdin.write(f"{command}\nECHO '{MARK}'\n")
        self.cli.stdin.flush()
        lines = []
        for line in self.cli.stdout:
            if MARK in line:
                break
            if not SLOW.match(line):
                lines.append(line.rstrip("\r\n"))
            if line.startswith("Could not connect"):  # the page has ended the server
                break
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def close(self):
        self.cli.kill()
        self.cli.wait()


def transcript(lines):
    """(command, lines of its reply)..."""
    asked = []
    for line in lines:
        prompt = PROMPT.match(line)
        if prompt:
            asked.append((prompt.group(1), []))
        elif asked:
            asked[-1][1].append(line)
    for _, reply in asked:
        while reply and not reply[-1].strip():
            reply.pop()
    return asked


def start_server(place, build, options):
    """Its port."""
    port = str(free_port())
    argv = [os.path.join(build, "tarn-server"), "--port", port, "--data-port", "0"]
    argv += ["--dir", place, "--logfile", "log", "--daemonize", "yes", "--pool-populate", "no"]
    subprocess.run(argv + options, check=True, stdin=subprocess.DEVNULL)
    return port


def check_transcripts(page, text, place, build):
    marked = re.search(r"^<!-- run(.*) -->$", text, re.M)
    if marked is None:
        return
    shown = [(at, lines) for at, pasted, lines in blocks(text) if not pasted]
    asked = [(at, one) for at, lines in shown for one in transcript(lines)]
    client, learned = Client(start_server(place, build, marked.group(1).split())), {}
    try:
        for at, (command, shown) in asked:
            for old, new in learned.items():
                command = command.replace(old, new)
            why = compare(shown, client.ask(command), learned)
            yield f"{page}:{at}: > {command}", why
    finally:
        client.close()


# --- recipes ---


def commands(lines):
    """One string for each, with its continued lines."""
    whole = ""
    for line in lines:
        whole += line + "\n"
        if not line.endswith("\\"):
            if whole.strip():
                yield whole.rstrip("\n")
            whole = ""


def lay_out(place, build):
    """What a fresh clone has after make, and a redis-cli that fails when the server says an
    error."""
    os.makedirs(place + "/tree/src")
    os.makedirs(place + "/bin")
    for name in os.listdir(ROOT):
        if name not in ("src", ".git", "build"):
            os.symlink(os.path.join(ROOT, name), f"{place}/tree/{name}")
    for name in glob.glob(build + "/tarn-*") + glob.glob(build + "/libtarn*"):
        os.symlink(name, f"{place}/tree/src/{os.path.basename(name)}")
    with open(place + "/bin/redis-cli", "w", encoding="utf-8") as f:
        f.write(f'#!/bin/sh\nexec {shutil.which("redis-cli")} -e "$@"\n')
    os.chmod(place + "/bin/redis-cli", 0o755)


def end_all(place):
    """Who is at home there, daemons as well."""
    for path in glob.glob("/proc/[0-9]*/cwd"):
        try:
            if os.readlink(path).startswith(place):
                os.kill(int(path.split("/")[2]), signal.SIGKILL)
        except OSError:
            continue


def check_recipes(page, text, place, build):
    marked = [(at, lines) for at, is_marked, lines in blocks(text) if is_marked]
    if not marked:
        return
    lay_out(place, build)
    port = str(free_port())
    env = dict(
        os.environ,
        PATH=f"{place}/bin:{place}/tree/src:{os.environ['PATH']}",
        TMPDIR=place,
        RUNTIME_DIRECTORY=place,
        HOME=place,
    )
    said_path = place + "/said"
    with open(said_path, "wb") as out:
        shell = subprocess.Popen(
            ["bash"],
            cwd=place + "/tree",
            env=env,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            text=True,
        )
        all_commands = [(at, c) for at, lines in marked for c in commands(lines)]
        if not any("tarn-server " in c for _, c in all_commands):
            start = "tarn-server --pool-size 64mb --daemonize yes --logfile log"
            all_commands.insert(0, (marked[0][0], start))
        for i, (_, command) in enumerate(all_commands):
            command = command.replace("6479", port).replace("/tmp/tarn", place + "/tarn")
            # The data port that belongs to a free port need not be free.
            ports = "" if "--data-port" in command else "--data-port 0 "
            ports += "" if "--port" in command else f"--port {port} "
            command = re.sub(r"(?<!\S)(src/)?tarn-server ", rf"\g<0>{ports}", command)
            shell.stdin.write(f'{command}\necho; echo "{MARK} {i} $?"\n')
        shell.stdin.close()
        try:
            shell.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            shell.kill()  # wherever it has gone
            end_all(place)
            shell.wait()
    with open(said_path, encoding="utf-8", errors="replace") as f:
        said = f.read()
    before = 0
    for i, (at, command) in enumerate(all_commands):
        end = re.search(rf"^{MARK} {i} (\d+)$", said, re.M)
        name = f"{page}:{at}: {command.splitlines()[0]}"
        if end is None:
            yield name, f"it did not come to an end; the last words:\n{said[-2000:]}"
            return
        words = said[before : end.start()].strip()
        before = end.end()
        expected = re.search(r"# -> (.*)$", command)
        if end.group(1) != "0":
            yield name, f"status {end.group(1)}: {words}"
        elif expected and words.splitlines()[-1:] != [expected.group(1)]:
            yield name, f"it prints {words!r}"
        else:
            yield name, None


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("pages", nargs="*")
    options = parser.parse_args()
    os.chdir(ROOT)
    build = os.path.abspath(options.build)
    passed = failed = 0
    for page in options.pages or ["README.md", *sorted(glob.glob("docs/**/*.md", recursive=True))]:
        with open(page, encoding="utf-8") as f:
            text = f.read()
        for check in check_transcripts, check_recipes:
            with tempfile.TemporaryDirectory(prefix="tarn-page.") as place:
                try:
                    for name, why in check(page, text, place, build):
                        passed, failed = passed + (why is None), failed + (why is not None)
                        print(f"not ok  {name}\n    {why}" if why else f"ok  {name}", flush=True)
                finally:
                    end_all(place)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
