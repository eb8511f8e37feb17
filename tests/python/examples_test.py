"""The programs of utils/examples, at small sizes."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

from harness import NODE, ROOT, SERVER, SLOW, TarnTest, environment

EXAMPLES = os.path.join(ROOT, "utils", "examples")
SMALL = [
    "--layers",
    "4",
    "--chunks",
    "2",
    "--chunk-bytes",
    "262144",
    "--layer-ms",
    "1",
    "--rounds",
    "1",
]


def run(argv, **extra):
    """(status, output) of a program, errors included."""
    with tempfile.TemporaryDirectory(prefix="tarn-py-example.") as place:
        env = {
            **environment(python=True),
            "TARN_SERVER": SERVER,
            "TARN_NODE": NODE,
            "TMPDIR": place,
            **extra,
        }
        done = subprocess.run(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=150 * SLOW
        )
        left = [name for name in os.listdir(place) if name.startswith("tarn-")]
    if left:
        raise AssertionError(f"{argv} left {left} behind")
    return done.returncode, done.stdout.decode()


def example(name, *arguments, **extra):
    return run([sys.executable, os.path.join(EXAMPLES, name), *arguments], **extra)


def spoiled(module, change, *arguments):
    """An example in which this process' idea of the bytes is another one than that of the process
    it starts."""
    program = (
        f"import sys; sys.path.insert(0, {EXAMPLES!r}); import {module} as m; {change}; "
        f"sys.argv = ['x'] + {list(arguments)!r}; sys.exit(m.main())"
    )
    return run([sys.executable, "-c", program])


class Examples(TarnTest):
    pool = "128mb"

    def test_layer_by_layer(self):
        status, output = example("layer_by_layer.py", *SMALL)
        self.assertEqual(status, 0, output)
        self.assertIn("all right", output)
        row = re.search(r"^ +1\.0 +(\S+) +(\S+) +(\S+) +(\S+) +(\S+) +(-?\d+)%$", output, re.M)
        self.assertIsNotNone(row, output)
        compute, after, overlapped = (float(x) for x in row.groups()[:3])
        self.assertGreaterEqual(min(compute, after, overlapped), 4)  # each has four layers in it

    def test_layer_by_layer_otherwise(self):
        for how in (
            ["--views", "--transport", "shm"],
            ["--transport", "tcp", "--read", "tcp", "--busy"],
            ["--tail-tokens", "0"],
        ):
            status, output = example("layer_by_layer.py", *SMALL, *how, "--json")
            self.assertEqual(status, 0, output)
            result = json.loads(output)["results"][0]
            times = result["example"]
            self.assertEqual((len(times["computed"]), len(times["arrived"])), (4, 4))
            self.assertEqual(times["arrived"], sorted(times["arrived"]))
            late = result["example_after"]
            self.assertGreater(late["arrived"][0], late["computed"][-1])
            self.assertTrue(all(c < a for c, a in zip(times["computed"], times["arrived"])))

    def test_layer_by_layer_in_a_pool_that_runs(self):
        status, output = example("layer_by_layer.py", *SMALL, "--url", self.server.url)
        self.assertEqual(status, 0, output)
        self.assertEqual(self.client().command("DBSIZE"), "0")

    def test_layer_by_layer_tells_wrong_bytes(self):
        change = "f = m.fill; m.fill = lambda shape, name, layer: f(shape, name, layer // 2)"
        status, output = spoiled("layer_by_layer", change, *SMALL)
        self.assertEqual(status, 1, output)
        self.assertIn("WRONG", output)

    def test_prefill_decode(self):
        small = [
            "--requests",
            "2",
            "--prefix",
            "512",
            "--question",
            "100",
            "--tokens-per-s",
            "5000",
        ]
        for more in ([], ["--url", self.server.url]):
            status, output = example("prefill_decode.py", *small, *more)
            self.assertEqual(status, 0, output)
            rows = re.findall(r"^ +(\d) +612 +(\d+) +(\d+) ", output, re.M)
            self.assertEqual(rows, [("0", "0", "576"), ("1", "512", "64")], output)
            self.assertIn("all right", output)
        status, output = example("prefill_decode.py", *small, "--url", self.server.url)
        self.assertEqual(
            re.findall(r"^ +(\d) +612 +(\d+) +(\d+) ", output, re.M)[0], ("0", "576", "0"), output
        )

    def test_prefill_decode_tells_wrong_bytes(self):
        change = "f = m.Model.bytes_of; m.Model.bytes_of = lambda self, h: f(self, h)[:-1] + b'?'"
        status, output = spoiled(
            "prefill_decode", change, "--requests", "1", "--prefix", "128", "--question", "1"
        )
        self.assertEqual(status, 1, output)
        self.assertIn("WRONG", output)

    def test_no_server(self):
        status, output = example("prefill_decode.py", TARN_SERVER="/nonexistent/tarn-server")
        self.assertEqual(status, 1)
        self.assertIn("/nonexistent/tarn-server is not there", output)
        status, output = example("layer_by_layer.py", "--layers", "0")
        self.assertEqual(status, 2)
        self.assertIn("at least 1", output)


class Readme(unittest.TestCase):
    def test_every_example_is_listed(self):
        with open(os.path.join(EXAMPLES, "README.md")) as file:
            text = file.read()
        names = set(os.listdir(EXAMPLES)) - {"README.md", "__pycache__"}
        self.assertEqual([name for name in sorted(names) if f"]({name})" not in text], [])
