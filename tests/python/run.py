"""Runs the tests of this folder.

    python3 tests/python/run.py [--jobs N] [NAME | NAME.Class[.method]]...

NAME is a file, client_test say, with or without ".py"; all of them by default. Each file runs in a process of its own, N at a time
(2). Ends with "N passed, M failed" and, where there are any, ", K skipped"."""

import argparse
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


class Result(unittest.TextTestResult):
    """Says a line per test, as the other runners of this tree do."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passed = 0
        self.began = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def say(self, how, test, why=""):
        took = time.monotonic() - self.began
        self.stream.writeln(f"{how} {test.id()}{why}" + (f"  {took:.1f}s" if took > 1 else ""))
        self.stream.flush()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1
        self.say("ok", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say("not ok", test, "\n" + self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.say("not ok", test, "\n" + self.errors[-1][1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say("ok", test, f" # SKIP {reason}")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.say("not ok", subtest, "\n" + (self.failures + self.errors)[-1][1])

    def printErrors(self):
        """They were shown when they happened."""


def run_here(names):
    """The tests of the named modules, in this process; the status of the program."""
    sys.path.insert(0, HERE)
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=0, resultclass=Result)
    result = runner.run(suite)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    skipped = len(result.skipped)
    print(f"{result.passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not (result.passed or skipped) else 0


# Process groups of the files that run: what they have started is in them, too.
RUNNING = set()


def end(group):
    """Ends a file's processes, and nothing else."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def interrupted(number, frame):
    for group in list(RUNNING):
        end(group)
    os._exit(128 + number)


def run_file(name, limit):
    """One file in a process of its own: (name, output, passed, failed, skipped, seconds)."""
    began = time.monotonic()
    argv = [sys.executable, os.path.abspath(__file__), "--here", name]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        RUNNING.add(process.pid)
        try:
            output, why = process.communicate(timeout=limit)[0].decode("utf-8", "replace"), ""
        except subprocess.TimeoutExpired:
            end(process.pid)
            output = process.communicate()[0].decode("utf-8", "replace")
            why = f"no end within {limit} s"
        RUNNING.discard(process.pid)
        status = process.returncode
        output += why and f"\n{why}\n"
    lines = re.findall(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", output, re.M)
    passed, failed, skipped = (int(x or 0) for x in lines[-1]) if lines else (0, 0, 0)
    if (status or not lines) and not failed:
        failed = 1
        output += f"status {status}" + ("" if lines else ", no closing line") + "\n"
    return name, output, passed, failed, skipped, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="files at a time (2)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one file (300)")
    parser.add_argument("--here", action="store_true", help="in this process, one after the other")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = [re.sub(r"\.py$", "", os.path.basename(n)) for n in options.names]
    names = names or sorted(f[:-3] for f in os.listdir(HERE) if f.endswith("_test.py"))
    if options.here:
        return run_here(names)
    # Large files take longer: first, so that nobody waits for one of them in the end.
    names.sort(key=lambda n: -os.path.getsize(os.path.join(HERE, n.split(".")[0] + ".py")))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    sums = [0, 0, 0]
    with concurrent.futures.ThreadPoolExecutor(max(options.jobs, 1)) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run_file, n, options.limit) for n in names]):
            name, output, passed, failed, skipped, seconds = done.result()
            sums = [a + b for a, b in zip(sums, (passed, failed, skipped))]
            said = (
                f"{passed} passed"
                + (f", {failed} failed" if failed else "")
                + (f", {skipped} skipped" if skipped else "")
            )
            print(f"{'FAIL' if failed else 'ok  '}  {name}  {said}  {seconds:.1f}s", flush=True)
            if failed or len(names) == 1:
                print("".join(f"    | {line}\n" for line in output.splitlines()), end="", flush=True)
    print(f"{sums[0]} passed, {sums[1]} failed" + (f", {sums[2]} skipped" if sums[2] else ""))
    return 1 if sums[1] or not (sums[0] or sums[2]) else 0


if __name__ == "__main__":
    sys.exit(main())
