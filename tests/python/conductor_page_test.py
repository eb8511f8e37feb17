"""The Conductor's part of the page, in a real Chromium: engines, decisions, hits. With
TARN_PICTURES=DIR it leaves pictures."""

import os
import shutil
import struct
import subprocess
import tempfile
import unittest

from harness import ROOT, SERVER, environment, wait_until
from page_seen import PageTest, served
import tarn

EVIL = "<img src=x onerror=alert(1)>"


def tokens(chain, count):
    """The first tokens of a chain, as kv_publisher.py has them."""
    return struct.pack(f"<{count}I", *(chain * 100000 + i for i in range(count)))


class Engine:
    """A stand-in engine that publishes events."""

    def __init__(self, test):
        path = os.path.join(ROOT, "tests/integration/kv_publisher.py")
        self.process = subprocess.Popen(
            ["/usr/bin/python3", path, "0", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment(),
        )
        test.addCleanup(self.close)
        self.events, self.replay = self.process.stdout.readline().split()

    def say(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        assert self.process.stdout.readline() == "ok\n"

    def words(self):
        """For CONDUCTOR.ADD."""
        port = "tcp://127.0.0.1:"
        return "EVENTS", port + self.events, "REPLAY", port + self.replay

    def close(self):
        self.process.kill()
        self.process.communicate()


class ConductorPage(PageTest):
    """What an operator sees of it."""

    def conductor(self, *words, module="conductor.so"):
        """A client of a server with it, and the server's port for HTTP."""
        _, client, port = served(self, "--loadmodule", module, *words, pool="0")
        return client, port

    def add(self, client, name, *words, model="llama"):
        """An engine."""
        words = ("MODEL", model, "KVBLOCKS", "40000", "BYTES", "131072", *words)
        client.command("CONDUCTOR.ADD", name, f"http://10.0.0.1/{name}", *words)

    def load(self, client, name, prefill, waiting, running, used):
        """A report."""
        words = ("PREFILL", prefill, "WAITING", waiting, "RUNNING", running, "KVUSED", used)
        client.command("CONDUCTOR.LOAD", name, *map(str, words))

    def route(self, client, request, *words, model="llama"):
        """True: it was served."""
        try:
            client.command("CONDUCTOR.ROUTE", request, "MODEL", model, *words)
            return True
        except tarn.Error:
            return False

    def count(self, selector):
        return self.browser.run(f"document.querySelectorAll({selector!r}).length")

    def test_none(self):
        """Without the module its view is not offered; without engines it says what to type."""
        _, _, port = served(self, pool="0")
        self.see(port, "Conductor", "There is no Conductor here")
        self.assertTrue(self.browser.run("document.querySelector('nav a[href$=Conductor]').hidden"))
        _, port = self.conductor()
        self.see(port, "Conductor", "CONDUCTOR.ADD e1", "CONDUCTOR.ROUTE request", "None: engines")
        self.fits(390, "light", "conductor-empty-phone")
        self.fits(1300, "dark", "conductor-empty")

    def test_one_engine(self):
        """Decisions, one refused; whatever names have in them."""
        client, port = self.conductor()
        self.add(client, "e1")
        self.assertTrue(self.route(client, "chat-1", "LENGTH", "1500"))
        self.assertFalse(self.route(client, "too-long", "LENGTH", "100000", "TTFT", "50"))
        self.assertFalse(self.route(client, EVIL + '"\xff', "LENGTH", "10", model=EVIL))
        text = self.see(port, "Conductor", "→ e1", "There was no other to choose", "Engines up")
        self.assertIn("no engine can keep the TTFT or TBT, not even an idle one", text)
        self.assertIn(EVIL, text)
        self.assertEqual(self.count(".decisions .node.away"), 2)
        self.browser.run("document.querySelectorAll('.decisions summary')[2].click()")
        self.shown("document.querySelector('.decisions [open]').innerText.includes('own us')")
        self.assertEqual(self.browser.run("document.images.length"), 0)
        self.fits(1300, "light", "conductor-1")
        self.fits(390, "dark", "conductor-1-phone")

    def test_twenty_engines(self):
        """Hits by tier; one is partial, one drains, one fails, one only decodes."""
        client, port = self.conductor("silent-ms", "0")
        publisher = Engine(self)
        self.add(client, "e0", *publisher.words())
        publisher.say("await", 1)
        for chain in range(1, 9):
            publisher.say("store", chain, 0, 8)
            publisher.say("store", chain, 8, 10, "medium", "CPU")
            publisher.say("store", chain, 10, 11, "medium", "DISK")
        match = ("CONDUCTOR.MATCH", "MODEL", "llama", "TOKENS", tokens(8, 16 * 11))
        wait_until(lambda: "176" in str(client.command(*match)), 60, "all is known")
        for i in range(1, 17):
            self.add(client, f"e{i}")
            self.load(client, f"e{i}", i * 300, i % 4, i, 2000 * i)
        words = [word for name in ("EVENTS", "REPLAY") for word in (name, "tcp://127.0.0.1:1")]
        words += ["METRICS", "http://127.0.0.1:1/metrics"]
        self.add(client, "lost", *words, model="qwen-2")
        self.add(client, "decoder", "ROLE", "decode")
        self.add(client, "failed", model="qwen")
        client.command("CONDUCTOR.DRAIN", "e7")
        for i in range(60):
            self.route(client, f"chat-{i}", "TOKENS", tokens(i % 8 + 1, 16 * (8 + i % 9)))
            if i % 3:
                client.command("CONDUCTOR.FIRST", f"chat-{i}")
        for i in range(9):
            self.route(client, f"bad-{i}", "LENGTH", "10", model="qwen")
        for i in range(9):
            client.command("CONDUCTOR.DONE", f"bad-{i}", "FAILED")
        words = ["partial: nothing has come yet", "draining: 7 requests left", "decode only"]
        words += ["no load to be had: ", "failing: it rests", "host memory", "Second was", "→ e0"]
        self.see(port, "Conductor", *words)
        self.shown("document.querySelectorAll('svg .area').length > 1")
        self.assertEqual(self.count("[data-key='Engines'] .node"), 20)
        self.browser.run(
            "window.card = [...document.querySelectorAll('.decisions .node')].find("
            "(c) => c.querySelector('.name').textContent === 'chat-59');"
            "card.querySelector('summary').click(); card.querySelector('summary').focus()"
        )
        self.shown("card.innerText.includes('Passed over')")
        for i in range(40):
            self.route(client, f"later-{i}", "LENGTH", "100")
        self.shown("document.querySelector('.decisions .node .name').textContent === 'later-39'")
        self.assertEqual(self.count(".decisions .node"), 31)
        self.assertEqual(
            self.browser.run(
                "[card.isConnected, card.open, card.contains(document.activeElement),"
                "card.querySelector('.name').textContent].join()"
            ),
            "true,true,true,chat-59",
        )
        self.browser.run("document.querySelector('[data-key=enginee0] summary').click()")
        self.shown("document.querySelector('[data-key=enginee0]').innerText.includes('a token')")
        self.fits(1300, "light", "conductor-20")
        self.fits(1300, "dark", "conductor-20-dark")
        self.fits(390, "light", "conductor-20-phone")

    def test_two_hundred_engines(self):
        """Legible, and one can be found."""
        client, port = self.conductor()
        for i in range(200):
            self.add(client, f"gpu{i}", model="qwen" if i % 2 else "llama")
            self.load(client, f"gpu{i}", i * 20, i % 3, i % 40, 200 * i)
        for i in range(100):
            self.route(client, f"r{i}", "LENGTH", str(100 + 30 * i))
        self.see(port, "Conductor", "gpu199", "Second was")
        self.assertEqual(self.count("[data-key='Engines'] .node"), 200)
        self.browser.run("document.querySelector('.decisions summary').click()")
        self.shown("document.querySelector('.decisions [open]').innerText.includes('The best 20')")
        self.fits(1300, "light", "conductor-200")
        self.fits(390, "dark", "conductor-200-phone")
        self.browser.run(
            "filter.focus(); filter.value = 'gpu123';"
            "filter.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        self.shown("document.querySelectorAll('[data-key=Engines] .node').length === 1")

    def test_an_older_module(self):
        """One that has no lists: what it has is shown, and where to look for the rest."""
        with open(os.path.join(os.path.dirname(SERVER), "modules", "conductor.so"), "rb") as f:
            data = f.read()
        folder = tempfile.mkdtemp(prefix="tarn-page-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "conductor.so")
        with open(path, "wb") as f:
            f.write(without_rows(data))
        client, port = self.conductor(module=path)
        self.add(client, "e1")
        self.assertTrue(self.route(client, "r", "LENGTH", "10"))
        text = self.see(port, "Conductor", "CONDUCTOR.LIST tells", "CONDUCTOR.EXPLAIN tells")
        self.assertNotIn("HTTP 404", text)
        self.assertIn("Decisions", text)
        self.shown("round > 1")
        self.assertEqual(len(self.browser.said), 3)  # each was asked for once
        self.assertTrue(all("/api/conductor/" in line for line in self.browser.said))
        self.browser.said.clear()
        self.fits(1300, "light", "conductor-old")


def without_rows(data):
    """The module's file, its struct one member shorter: as it was compiled before there were
    lists. The struct begins with its size, version 1, and no transport."""
    sizes = [size for size in range(96, 200, 8) if data.count(struct.pack("<III", size, 1, 0)) == 1]
    assert len(sizes) == 1, sizes
    mark = struct.pack("<III", sizes[0], 1, 0)
    return data.replace(mark, struct.pack("<III", sizes[0] - 8, 1, 0))


if __name__ == "__main__":
    unittest.main()
