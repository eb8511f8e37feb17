"""utils/examples/p2p_pull.py and p2p_push.py, at small sizes."""

import os
import subprocess
import sys
import unittest

from harness import ROOT, SLOW, Server, TarnTest

EXAMPLES = os.path.join(ROOT, "utils", "examples")
SMALL = ["--requests", "2", "--blocks", "8", "--block-size", "16k"]


def run(*argv):
    """(status, output) of an example, errors included."""
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=EXAMPLES,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=150 * SLOW,
        text=True,
    )
    return done.returncode, done.stdout


class P2pTest(TarnTest):
    """Both directions."""

    def check(self, output, how):
        lines = output.splitlines()
        self.assertEqual(len(lines), 3, output)
        for i, line in enumerate(lines[:2]):
            self.assertRegex(
                line, rf"request {i}: 8 blocks in \d+ pieces, 0.1 MiB, [\d.]+ GB/s by {how}, right"
            )
        self.assertEqual(lines[2], "every byte is right")

    def test_pull(self):
        status, output = run("p2p_pull.py", *SMALL)
        self.assertEqual(status, 0, output)
        self.check(output, "(shm|tcp)")

    def test_push_of_own_memory(self):
        status, output = run("p2p_push.py", *SMALL, "--own-memory", "--transport", "tcp")
        self.assertEqual(status, 0, output)
        self.check(output, "tcp")

    def test_push_by_name(self):
        with Server() as server:
            status, output = run("p2p_push.py", *SMALL, "--master", server.url)
        self.assertEqual(status, 0, output)
        self.check(output, "(shm|tcp)")

    def test_wrong_bytes_are_seen(self):
        """This process expects other bytes than the one that computes them."""
        spoil = (
            "import sys, p2p_engines as e, p2p_pull as m; old = e.Engine.expected; "
            "e.Engine.expected = lambda self, request, i: old(self, request + 7, i); "
            f"sys.argv = ['x'] + {SMALL!r}; sys.exit(m.main())"
        )
        status, output = run("-c", spoil)
        self.assertEqual(status, 1, output)
        self.assertIn("16 blocks are WRONG", output)

    def test_arguments(self):
        for bad in (["--blocks", "0"], ["--transport", "pigeon"]):
            self.assertEqual(run("p2p_push.py", *bad)[0], 2)


if __name__ == "__main__":
    unittest.main()
