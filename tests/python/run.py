"""Runs the tests of this folder.

    python3 tests/python/run.py NAME | NAME.Class[.method]...

NAME is a file, client_test say, with or without ".py". Ends with "N passed, M failed" and, where
there are any, ", K skipped". tools/run-tests.py runs all of them, several at a time."""

import os
import re
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


def main():
    names = [re.sub(r"\.py$", "", os.path.basename(n)) for n in sys.argv[1:]]
    if not names:
        sys.exit(__doc__)
    sys.path.insert(0, HERE)
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=0, resultclass=Result).run(suite)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    skipped = len(result.skipped)
    print(f"{result.passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not (result.passed or skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
