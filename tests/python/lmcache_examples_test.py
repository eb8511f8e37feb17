"""The configurations in utils/examples/lmcache and on the pages say what LMCache and we understand.
"""

import json
import os
import unittest

from harness import ROOT, TarnTest
from lmcache_stubs import Config, Metadata, RemoteBackends

import tarn.lmcache

FOLDER = os.path.join(ROOT, "utils", "examples", "lmcache")
POOL = "tarn://127.0.0.1:6479"


def scalar(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse(lines):
    """As much YAML as these files use: names and scalars or lists, one level deep."""
    config, part = {}, None
    for line in lines:
        text = line.split("#", 1)[0].rstrip()
        if not text:
            continue
        key, _, value = text.strip().partition(": ")
        if text.endswith(":") and not value:
            part = config[text[:-1]] = {}
        elif text.startswith("  "):
            part[key] = scalar(value)
        else:
            config[key] = scalar(value)
    return config


def load(name):
    with open(os.path.join(FOLDER, name)) as f:
        return parse(f)


def on_page(*path):
    """The configurations in the indented blocks of a page that name a plugin of LMCache's."""
    with open(os.path.join(ROOT, *path)) as f:
        blocks, block = [], []
        for line in f.read().splitlines() + [""]:
            if line.startswith("    "):
                block.append(line[4:])
            elif block:
                blocks.append(block)
                block = []
    found = []
    for block in blocks:
        if any(line.startswith("remote_storage_plugins:") for line in block):
            first = next((i + 1 for i, line in enumerate(block) if line.endswith("<<END")), 0)
            last = block.index("END") if "END" in block else len(block)
            found.append(parse(block[first:last]))
    return found


class Examples(TarnTest):
    def made(self, config, later):
        """What LMCache makes of it, with our server in place of the one that it names."""
        there = Config(
            **{k: self.server.url if v == POOL else v for k, v in config["extra_config"].items()}
        )
        there.remote_url = (
            self.server.url if config.get("remote_url") == POOL else config.get("remote_url")
        )
        there.remote_storage_plugins = config["remote_storage_plugins"]
        made = RemoteBackends(there, Metadata(), later)
        self.addCleanup(made.close)
        self.assertEqual(made.swallowed, [])
        return made

    def check_pair(self, before, later):
        """Lines for LMCache up to 0.4.3, and for later versions: each makes one backend, that
        works."""
        for config, is_later in ((before, False), (later, True)):
            made = self.made(config, is_later)
            self.assertTrue(made.caching())
            self.assertEqual(len(made.connections), 1)

    def test_files(self):
        self.check_pair(load("tarn-url.yaml"), load("tarn-plugin.yaml"))

    def test_readme(self):
        later, before = on_page("README.md")
        self.check_pair(before, later)

    def test_guide(self):
        later, before = on_page("docs", "engines", "LMCACHE.md")
        self.check_pair(before, later)

    def test_old_lines_in_a_later_version(self):
        """Two backends of one pool, and a line in the log that says how to make one of them."""
        with self.assertLogs("tarn.lmcache.adapter", "WARNING") as log:
            made = self.made(load("tarn-url.yaml"), True)
        self.assertTrue(made.caching())
        self.assertEqual(sorted(made.connections), ["RemoteBackend", "RemoteBackend-tarn"])
        self.assertIn("remote_storage_plugin.tarn.url", log.output[0])

    def test_new_lines_in_an_older_version(self):
        """Nothing tells LMCache of a backend then: no error, no remote cache."""
        self.assertEqual(self.made(load("tarn-plugin.yaml"), False).connections, {})

    def test_adapter_file(self):
        with open(os.path.join(FOLDER, "l2-tarn.json")) as f:
            config = json.load(f)
        self.assertEqual((config["type"], config["module_path"]), ("plugin", "tarn.lmcache"))
        params = {**config["adapter_params"], "url": self.server.url}
        adapter = getattr(tarn.lmcache, config["class_name"])(params)
        self.assertTrue(adapter.report_status()["is_healthy"])
        adapter.close()

    def test_files_without_us(self):
        self.assertTrue(load("redis.yaml")["remote_url"].startswith("redis://"))
        resp = load("resp.yaml")
        self.assertTrue(resp["remote_url"].startswith("resp://"))
        self.assertIs(resp["extra_config"]["save_chunk_meta"], False)
        self.assertIs(resp["save_unfull_chunk"], False)
        with open(os.path.join(FOLDER, "l2-resp.json")) as f:
            self.assertEqual(json.load(f)["type"], "resp")


if __name__ == "__main__":
    unittest.main()
