"""The page of modules/http.so, in a real Chromium. With TARN_PICTURES=DIR it leaves pictures."""

import http.client
import os
import shutil
import tempfile
import unittest

import browser
import tarn
from harness import Node, Server, TarnTest, wait_until

EVIL = "<img src=x onerror=alert(1)>"
TOKEN = "a-token-of-twenty-letters"


def served(test, *args, pool="64mb", words=()):
    """A server with the page, a client of it, and its port for HTTP."""
    server = Server(pool, *args, "--loadmodule", "http.so", "port", "0", *words)
    test.addCleanup(server.stop)
    client = tarn.Client(server.url)
    test.addCleanup(client.close)
    info = client.command("INFO", "modules")
    info = info.decode() if isinstance(info, bytes) else info
    port = next(line for line in info.split("\r\n") if line.startswith("http_port:"))
    return server, client, int(port.split(":")[1])


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


@unittest.skipUnless(browser.CHROMIUM, "there is no chromium (apt-get install chromium)")
class Page(TarnTest):
    """What an operator sees."""

    pool = None

    def setUp(self):
        super().setUp()
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)

    def see(self, port, view, *words):
        """Opens a view and waits until it has all the words; its text."""
        self.browser.go(f"http://127.0.0.1:{port}/#{view}")

        def text():
            shown = self.browser.run("document.body.innerText") or ""
            return shown if all(word in shown for word in words) else None

        return wait_until(text, 60, f"{view} shows {words}")

    def fits(self, wide, scheme, name):
        """Nothing sticks out at the side; nothing went wrong."""
        self.browser.look(wide, scheme=scheme)
        self.assertLessEqual(self.browser.run("document.documentElement.scrollWidth"), wide)
        self.assertEqual(self.browser.said, [])
        if "TARN_PICTURES" in os.environ:
            self.browser.picture(os.path.join(os.environ["TARN_PICTURES"], name + ".png"))

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
        self.browser.look(1300)
        self.see(port, "Overview", "1 of 3 nodes are away (n1)", "Look-ups")
        self.fits(390, "dark", "overview-phone")
        self.fits(1300, "light", "overview")
        self.see(port, "Cache", "Why look-ups missed", "Hit ratio, were the pool as large")
        self.fits(390, "light", "cache-phone")
        self.fits(1300, "dark", "cache")
        self.see(port, "Pool", "n0", "n1", "n2", "down")
        self.fits(1300, "light", "pool")
        shown = self.see(port, "Tenants", "keys without a quota")
        self.assertIn(EVIL, shown)
        self.assertEqual(self.browser.run("document.images.length"), 0)
        self.fits(390, "dark", "tenants-phone")

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
