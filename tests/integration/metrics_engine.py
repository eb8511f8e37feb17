"""A stand-in engine's HTTP port: tells its load at /metrics, or does something else.

metrics_engine.py PORT [CERTIFICATE KEY]     0: any free port

Says the port, then obeys lines, and answers each with "ok":

    load RUNNING WAITING        what /metrics tells from now on
    text TEXT                   ... or that; \\n are line ends

By path:

    /metrics         the load, as vLLM tells it
    /seed/NAME       of tests/fuzz/seeds/scrape_read: the shapes of each version
    /silent          nothing, for as long as the peer is there
    /slow            a line now and then, without an end
    /endless         lines without an end
    /lying           an answer that is longer than it says, and others that make no sense
    /redirect        to /metrics
    /gone            404
    /count           how many requests there were for /metrics
"""

import http.server
import os
import ssl
import sys
import threading
import time

SEEDS = os.path.join(os.path.dirname(__file__), "..", "fuzz", "seeds", "scrape_read")
state = {"text": "", "count": 0}


def load(running, waiting):
    labels = 'engine="0",model_name="m"'
    state["text"] = (
        f"vllm:num_requests_running{{{labels}}} {running}.0\n"
        f"vllm:num_requests_waiting{{{labels}}} {waiting}.0\n"
    )


class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, text, status=200, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def more(self, pause):
        """Lines without an end, for as long as the peer takes them."""
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        line = b"# a line of many\n" * (1 if pause else 4096)
        while True:
            self.wfile.write(line)
            time.sleep(pause)

    def do_GET(self):
        path = self.path
        try:
            if path == "/metrics":
                state["count"] += 1
                self.answer(state["text"].encode())
            elif path.startswith("/seed/"):
                with open(os.path.join(SEEDS, path[6:]), "rb") as f:
                    self.answer(f.read())
            elif path == "/silent":
                self.connection.recv(1)
            elif path == "/slow":
                self.more(0.05)
            elif path == "/endless":
                self.more(0)
            elif path == "/lying":
                self.answer(
                    b'vllm:num_requests_running{engine="0"} -5\n'
                    b'vllm:num_requests_waiting{engine="0"} 1e300\n'
                    b"HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_running NaN\n\x00\xff{{{\n"
                )
            elif path == "/redirect":
                self.answer(b"", 302, Location="/metrics")
            elif path == "/count":
                self.answer(str(state["count"]).encode())
            else:
                self.answer(b"", 404)
        except OSError:
            self.close_connection = True


def main():
    port, *tls = sys.argv[1:]
    http.server.ThreadingHTTPServer.daemon_threads = True
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Engine)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    load(0, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "load":
            load(*rest.split())
        else:
            state["text"] = rest.replace("\\n", "\n")
        print("ok", flush=True)


main()
