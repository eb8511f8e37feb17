"""A headless Chromium, driven over its DevTools protocol with the standard library only."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import urllib.request

from harness import environment, wait_until

CHROMIUM = shutil.which("chromium")


class Browser:
    """`said` has what the console was told of errors; pictures come from `picture`."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="tarn-browser-")
        self.said, self.number = [], 0
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            + ["--remote-debugging-port=0", f"--user-data-dir={self.dir}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        )
        port = wait_until(self._port, 60, "chromium listens")
        page = wait_until(lambda: self._page(port), 60, "chromium has a page")
        self.socket = socket.create_connection(("127.0.0.1", int(port)), timeout=60)
        path = page["webSocketDebuggerUrl"].split(port, 1)[1]
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.file = self.socket.makefile("rb")
        while self.file.readline().strip():
            pass
        for domain in ("Runtime", "Log", "Page"):
            self.call(domain + ".enable")

    def close(self):
        """Ends it, with its children."""
        self.socket.close()
        os.killpg(self.process.pid, 9)
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def _port(self):
        try:
            with open(os.path.join(self.dir, "DevToolsActivePort"), encoding="ascii") as f:
                return f.read().split()[0]
        except (OSError, IndexError):
            return None

    @staticmethod
    def _page(port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=60) as reply:
            return next((x for x in json.load(reply) if x["type"] == "page"), None)

    def _message(self):
        data = b""
        while True:
            first, second = self.file.read(2)
            size = second & 127
            if size == 126:
                (size,) = struct.unpack(">H", self.file.read(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self.file.read(8))
            data += self.file.read(size)
            if first & 128:
                return json.loads(data)

    def call(self, method, **params):
        """A command of the protocol; its result."""
        self.number += 1
        data = json.dumps({"id": self.number, "method": method, "params": params}).encode()
        head = bytes([129, 128 | (len(data) if len(data) < 126 else 126)])
        head += b"" if len(data) < 126 else struct.pack(">H", len(data))
        self.socket.sendall(head + bytes(4) + data)
        while True:
            message = self._message()
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            params = message.get("params", {})
            if message.get("method") == "Runtime.exceptionThrown":
                self.said.append(json.dumps(params))
            if params.get("entry", {}).get("level") == "error":
                self.said.append(f'{params["entry"]["text"]} {params["entry"].get("url", "")}')

    def look(self, wide, high=900, scheme="light"):
        """Size of the window and colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=wide,
            height=high,
            deviceScaleFactor=1,
            mobile=wide < 500,
        )
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def go(self, url):
        """Opens it."""
        self.call("Page.navigate", url=url)

    def run(self, script):
        """The value of an expression of JavaScript in the page."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return reply["result"].get("value")

    def picture(self, path, whole=True):
        """The page as a PNG file: all of it, or what the window shows."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        with open(path, "wb") as f:
            f.write(base64.b64decode(shot["data"]))
