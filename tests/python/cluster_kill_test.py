"""tarn-cluster killed after each thing that it sends: every SETMAP, SCANSLOTS, MPUTSTART,
RELINQUISH, MPUTEND of a move. Then `fix`: the slots are whole, and each key has its latest value,
or is a miss if it had left the source and was not yet at the target."""

import os
import re
import signal
import subprocess
import sys
import unittest

from harness import ROOT, Server, environment, pattern, wait_until

import tarn
from tarn.cluster import Link, Map, parser

FAULT = os.environ.get("TARN_FAULT")
MOVED = "0-3999"
STEPS_MAX = 300


def tool(*words, fault=None):
    env = dict(environment(python=True), PYTHONPATH=os.path.join(ROOT, "utils", "python"))
    env.pop("TARN_FAULT", None)
    if fault is not None:
        env["LD_PRELOAD"] = " ".join(filter(None, (env.get("LD_PRELOAD"), FAULT)))
        env["TARN_FAULT"] = fault
    argv = [sys.executable, "-m", "tarn.cluster", "--quiet", *map(str, words)]
    return subprocess.run(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False
    )


@unittest.skipIf(FAULT is None, "TARN_FAULT names no library to preload")
class Killed(unittest.TestCase):
    def setUp(self):
        self.servers = {n: Server("64mb", "--put-timeout", "300") for n in "abc"}
        self.links, self.at = {}, {}
        for name, server in self.servers.items():
            self.addCleanup(server.stop)
            self.at[name] = f"127.0.0.1:{server.port}"
            args = parser().parse_args(["status", "x:1"])
            self.links[name] = Link(("127.0.0.1", server.port), args)
            self.addCleanup(self.links[name].close)
            # by shared memory what the tool sends is no call of the system: nothing to be killed at
            self.links[name].call("ACL", "SETUSER", "default", "-client|near")
        self.must("create", *(f"{n}={at}" for n, at in self.at.items()))
        self.client = tarn.Client(f"tarn://{self.at['a']},{self.at['b']}/")
        self.addCleanup(self.client.close)

    def must(self, *words):
        done = tool(*words)
        self.assertEqual(done.returncode, 0, done.stdout)

    def calls(self, name, command):
        found = re.search(
            rf"cmdstat_{re.escape(command)}:calls=(\d+)",
            self.links[name].call("INFO", "commandstats").decode(),
        )
        return int(found[1]) if found else 0

    def map_of(self, name):
        return self.links[name].call("CLUSTER", "MAP").decode()

    def test_after_each_thing_it_sends(self):
        keys = [f"k{i}" for i in range(60)]
        source, target = "a", "c"
        lost_in, killed, partly = 0, 0, 0
        for step in range(1, STEPS_MAX):
            values = {}
            for i, key in enumerate(keys):
                values[key] = pattern((10, 200, 70000)[i % 3], step * 100 + i)
            self.assertEqual(self.client.put_many(list(values.items()), replace=True), [0] * 60)
            before = self.calls(source, "cluster|relinquish"), self.calls(target, "mputend")
            move = ("move", self.at["b"], "--from", source, "--to", target, "--slots", MOVED)
            done = tool(*move, fault=f"send:crash:{step}")
            after = self.calls(source, "cluster|relinquish"), self.calls(target, "mputend")
            between = after[0] - before[0] > after[1] - before[1]
            partly += len({self.map_of(n) for n in "abc"}) > 1
            if done.returncode == 0:
                break
            self.assertEqual(done.returncode, -signal.SIGKILL, done.stdout)
            killed += 1
            self.must("fix", self.at["b"])
            maps = {self.map_of(n) for n in "abc"}
            self.assertEqual(len(maps), 1)
            m = Map.read(maps.pop())
            self.assertEqual((m.moves(), m.owner.count(None)), ([], 0))
            at_target = m.owner[0] == target
            self.assertEqual(set(m.owner[:4000]), {target if at_target else source})
            # puts that the mover left open at the target end by themselves
            wait_until(lambda: self.puts_open() == 0)
            got = self.client.get_many(keys)
            lost = [k for k, v in zip(keys, got) if v is None]
            self.assertEqual([k for k, v in zip(keys, got) if v not in (None, values[k])], [])
            self.assertTrue(not lost or between, (step, lost))
            lost_in += bool(lost)
            if at_target:
                source, target = target, source
        self.assertLess(step, STEPS_MAX - 1, "it never came to its end")
        # it was killed where it matters: with keys at neither, and with maps that differ
        self.assertGreater(lost_in, 0)
        self.assertGreater(partly, 2)
        self.assertGreater(killed, 10)

    def puts_open(self):
        return sum(int(self.links[n].info("puts_open")) for n in "abc")


if __name__ == "__main__":
    unittest.main()
