"""The configuration files in utils/examples/lmcache say what this version understands."""

import asyncio
import json
import os
import unittest

from harness import ROOT, TarnTest
from lmcache_stubs import Backend, Config, Context, Metadata

import tarn.lmcache

FOLDER = os.path.join(ROOT, "utils", "examples", "lmcache")


def scalar(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def load(name):
    """As much YAML as these files use: names and scalars or lists, one level deep."""
    config, part = {}, None
    with open(os.path.join(FOLDER, name)) as f:
        for line in f:
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


class Examples(TarnTest):
    def test_connector_files(self):
        for name in ("tarn-url.yaml", "tarn-plugin.yaml"):
            config = load(name)
            extra = config["extra_config"]
            for plugin in config["remote_storage_plugins"]:
                prefix = f"remote_storage_plugin.{plugin}."
                self.assertEqual(extra[prefix + "module_path"], "tarn.lmcache")
                adapter = getattr(tarn.lmcache, extra[prefix + "class_name"])()
                url = config.get("remote_url", f"plugin://{plugin}")
                self.assertTrue(adapter.can_parse(url))
                if url.startswith("tarn://"):
                    url = self.server.url
                else:
                    self.assertTrue(adapter.can_parse(extra[prefix + "url"]))
                    extra = {**extra, prefix + "url": self.server.url}
                connector = adapter.create_connector(Context(url, Backend(), Config(**extra), Metadata(), plugin))
                self.assertEqual(asyncio.run(connector.ping()), 0)
                asyncio.run(connector.close())

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
