"""The page of modules/http.so, in a real Chromium. With TARN_PICTURES=DIR it leaves pictures."""

import http.client
import json
import os
import re
import shutil
import tempfile
import unittest

from harness import Node, Server, TarnTest
from page_seen import PageTest, served
import pool_fake
import tarn

EVIL = "<img src=x onerror=alert(1)>"
TOKEN = "a-token-of-twenty-letters"


class Answer(TarnTest):
    """What a browser is told with the page."""

    pool = None

    def test_policy_and_etag(self):
        """No script but its own; asked again it is not sent again."""
        _, _, port = served(self)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/")
        reply = connection.getresponse()
        body, policy = reply.read(), reply.getheader("Content-Security-Policy")
        self.assertEqual(reply.status, 200)
        self.assertIn(b"<title>tarn</title>", body)
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        connection.request("GET", "/", headers={"If-None-Match": reply.getheader("ETag")})
        reply = connection.getresponse()
        self.assertEqual((reply.status, reply.read()), (304, b""))


class Page(PageTest):
    """What an operator sees."""

    def test_views(self):
        """Look-ups, misses, tenants and nodes, one of which is away; names are text."""
        server, client, port = served(self, "--node-timeout", "1000", "--node-heartbeat", "200")
        nodes = [Node(server, name=f"n{i}", pool="8mb") for i in range(3)]
        for node in nodes:
            self.addCleanup(node.stop)
        client.command("QUOTA", "SET", EVIL, "1mb")
        for i in range(300):
            client.put(f"{EVIL if i % 3 else 'k'}{i}", b"x" * 20000)
            client.get(f"{EVIL if i % 3 else 'k'}{i // 2}")
        nodes[1].kill()
        self.see(port, "Overview", "1 of 3 nodes is away (n1)", "Look-ups", "Node n1 is down")
        self.fits(390, "dark", "overview-phone")
        self.fits(1300, "light", "overview")
        self.see(port, "Cache", "Why look-ups missed", "Hit ratio, were the pool as large")
        self.see(
            port, "Cache", "In words", "look-ups hit, since the start", "Prefixes with the most"
        )
        self.fits(390, "light", "cache-phone")
        self.fits(1300, "dark", "cache")
        self.see(port, "Pool", "n0", "n1", "n2", "down")
        self.fits(1300, "light", "pool")
        shown = self.see(port, "Tenants", "keys without a quota")
        self.assertIn(EVIL, shown)
        self.assertEqual(self.browser.run("document.images.length"), 0)
        self.fits(390, "dark", "tenants-phone")

    def fake_pool(self, nodes, *args, **how):
        """A server with that many nodes, without their memory; and its port for HTTP."""
        server, _, port = served(self, "--node-timeout", "600000", *args, pool="0")
        pool = pool_fake.FakePool(server.url)
        self.addCleanup(pool.close)
        for i in range(nodes):
            pool.join(i, **how)
        return pool, port

    def test_one_node(self):
        """Its map: what is free, read, written, gone."""
        pool, port = self.fake_pool(1)
        for i in range(40):
            pool.put(f"k{i}", 500000)
        for i in range(0, 20, 2):
            pool.lease(f"k{i}")
        for i in range(0, 8, 2):
            pool.remove(f"k{i}")
        pool.put("open", 3000000, end=False)
        self.see(port, "Pool", "n0", "Tiers", "Nothing is copied or moved now")
        titles = "[...document.querySelectorAll('canvas.map')].map(c => c.title).join()"
        for words in ("that are being read", "being written", "gone, but may still be read"):
            self.assertIn(words, self.browser.run(titles))
        self.fits(1300, "light", "pool-1")
        self.fits(390, "dark", "pool-1-phone")

    def test_twenty_nodes(self):
        """One is away, one is drained, one is in maintenance; disks."""
        pool, port = self.fake_pool(20, disk=True)
        for i in range(400):
            pool.put(f"k{i}", 200000 + i * 2500)
        for i in range(0, 400, 7):
            pool.lease(f"k{i}")
        for i in range(0, 400, 14):
            pool.remove(f"k{i}")
        for i in range(0, 40):
            pool.put(f"open{i}", 400000, end=False)
        pool.main.command("NODE", "DRAIN", "n4")
        pool.main.command("NODE", "MAINTENANCE", "n11", "ON")
        pool.lose(7)
        self.see(port, "Pool", "down, silent for", "draining: ", "in maintenance", "Drains", "ssd")
        self.fits(1300, "light", "pool-20")
        self.fits(1300, "dark", "pool-20-dark")
        self.fits(390, "light", "pool-20-phone")
        self.see(port, "Overview", "1 of 20 nodes is away (n7)")
        self.fits(1300, "dark", "overview-20")

    def test_two_hundred_nodes(self):
        """Legible; what is open stays open and is the same element; one can be found."""
        pool, port = self.fake_pool(200)
        for i in range(600):
            pool.put(f"k{i}", 4000000)
        pool.lose(77)
        self.see(port, "Pool", "n199", "down, silent for")
        self.assertEqual(self.browser.run("document.querySelectorAll('.node').length"), 200)
        self.shown("document.querySelectorAll('canvas.map').length === 400")
        self.browser.run(
            "window.card = document.querySelector('[data-key=nn9]');"
            "card.querySelector('summary').click(); card.querySelector('summary').focus();"
            "scrollTo(0, 500); window.asked = performance.getEntriesByType('resource').length"
        )
        self.shown("card.innerText.includes('machine')")
        self.browser.run("window.top_ = scrollY")
        self.shown("performance.getEntriesByType('resource').length > asked + 8")
        self.assertEqual(
            self.browser.run(
                "[card.isConnected, card.open, card.contains(document.activeElement),"
                "scrollY === top_, document.querySelector('[data-key=nn9]') === card].join()"
            ),
            "true,true,true,true,true",
        )
        self.fits(1300, "light", "pool-200")
        self.fits(390, "dark", "pool-200-phone")
        self.browser.run(
            "filter.focus(); filter.value = 'm123';"
            "filter.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        self.shown("document.querySelectorAll('.node').length === 1")
        self.assertIn("n123", self.browser.run("document.querySelector('.node').innerText"))
        self.assertEqual(self.browser.run("document.activeElement.id"), "filter")

    def same_history(self, port):
        """What the page put together from several answers is what the server has."""
        news = "performance.getEntriesByType('resource').filter(e => e.name.includes('since='))"
        self.shown(news + ".length > 1")
        mine = json.loads(self.browser.run("JSON.stringify(state.history)"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("GET", "/api/history")
        all_ = json.loads(connection.getresponse().read())
        newer = all_["last"] - mine["last"]
        for name, points in mine["series"].items():
            whole = all_["series"][name]
            self.assertEqual(points, whole[: len(whole) - newer][-len(points) :], name)
            self.assertEqual(len(points), len(whole) - newer)

    def test_full_pool(self):
        """Evictions: their cause, their age, and what was asked for again."""
        _, client, port = served(self, pool="32mb")
        for i in range(400):
            client.put(f"model/{i}", b"x" * 200000)
            client.get(f"model/{i // 3}")
        self.see(port, "Cache", "room for another object", "Median", "to 10 s")
        self.fits(1300, "light", "cache-full")
        self.see(port, "Overview", "objects were evicted in the last minute")
        self.fits(1300, "light", "overview-full")
        self.see(port, "Pool", "this server", "Tiers")
        self.fits(1300, "dark", "pool-full")
        self.same_history(port)

    def test_a_node(self):
        """It keeps no books: it tells of itself, and where to look."""
        server = Server("0")
        self.addCleanup(server.stop)
        node = Node(server, "--loadmodule", "http.so", "port", "0", name="n1", pool="16mb")
        self.addCleanup(node.stop)
        port = re.search(r"HTTP: http://[^ ]*:(\d+)/", node.output())[1]
        text = self.see(port, "Pool", "keeps no books", "Node n1 is up at the master")
        self.assertNotIn("Tenants", text)
        self.fits(1300, "light", "node")
        self.fits(390, "dark", "node-phone")

    def test_clients_and_events(self):
        """Who is there, in the order that is asked for; events as they happen, and only some."""
        _, client, port = served(self)
        client.command("CLIENT", "SETNAME", "<img/src=x>")
        others = [tarn.Client(client.url) for _ in range(12)]
        for i, other in enumerate(others):
            self.addCleanup(other.close)
            other.command("CLIENT", "SETNAME", f"engine-{i}")
            for _ in range(i):
                other.get("nothing")
        text = self.see(port, "Clients", "<img/src=x>", "engine-11", "last command")
        self.assertLess(text.index("engine-2"), text.index("engine-10"))
        self.browser.run("document.querySelectorAll('button.sort')[4].click()")
        first = "document.querySelector('tbody tr').innerText.includes('%s')"
        self.shown(first % "engine-11")
        self.fits(1300, "light", "clients")
        self.fits(390, "dark", "clients-phone")
        self.see(port, "Events", "Ready to accept connections")
        client.command("CONFIG", "SET", "eviction-ratio", "0.07")
        self.shown(first % "CONFIG SET eviction-ratio 0.07")
        self.fits(1300, "dark", "events")
        self.fits(390, "light", "events-phone")
        self.browser.run("document.getElementById('warnings').click()")
        self.shown("!document.body.innerText.includes('CONFIG SET eviction-ratio')")
        self.assertEqual(self.browser.run("document.images.length"), 0)

    def test_nothing_yet(self):
        """A server that has no pool and was asked nothing."""
        _, _, port = served(self, pool="0")
        self.see(port, "Pool", "This pool has no memory yet")
        self.see(port, "Cache", "Nothing was looked up in the last minutes")
        self.see(port, "Tenants", "There is no quota")
        self.fits(390, "light", "empty-phone")

    def test_token(self):
        """Asked for, wrong, right; kept for this tab only."""
        folder = tempfile.mkdtemp(prefix="tarn-page-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "token")
        with open(path, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(TOKEN + "\n")
        _, _, port = served(self, words=("token-file", path))
        self.see(port, "Overview", "This server wants its token")
        enter = "document.getElementById('token').value = '%s';"
        enter += "document.getElementById('ask').requestSubmit()"
        self.browser.run(enter % "wrong")
        self.see(port, "Overview", "That was not the token.")
        self.browser.run(enter % TOKEN)
        self.see(port, "Overview", "Hit ratio")
        self.assertTrue(self.browser.run("document.getElementById('ask').hidden"))


if __name__ == "__main__":
    unittest.main()
