"""What tests of the page of modules/http.so share: a server with it, and a browser that looks."""

import os
import unittest

import browser
from harness import Server, TarnTest, wait_until
import tarn


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


@unittest.skipUnless(browser.CHROMIUM, "there is no chromium (apt-get install chromium)")
class PageTest(TarnTest):
    """What an operator sees. With TARN_PICTURES=DIR it leaves pictures."""

    pool = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        super().setUp()
        self.browser.go("about:blank")
        self.browser.look(1300)
        self.browser.said.clear()  # the server of the page before has gone

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

    def shown(self, script):
        """Waits until the script is true in the page."""
        return wait_until(lambda: self.browser.run(script), 60, script)
