"""Stand-in engines (utils/examples/stand_in_engine.py) for tests, and what is asked of them.

    from stand_in_helpers import Engine

    with Engine("--speed", "100", "--id", "e1") as engine:
        engine.post("/v1/completions", {"prompt": "hello", "max_tokens": 4})"""

import http.client
import json
import os
import signal
import subprocess
import sys

from harness import ROOT, SLOW, environment

EXAMPLES = os.path.join(ROOT, "utils", "examples")
PROGRAM = os.path.join(EXAMPLES, "stand_in_engine.py")
if EXAMPLES not in sys.path:
    sys.path.append(EXAMPLES)


class Engine:
    """One that runs, with these arguments: `url`, `port`."""

    def __init__(self, *args):
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, "--speed", "100", *args],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(python=True),
        )
        line = self.process.stdout.readline()
        if not line.startswith("ready http://"):
            self.stop()
            raise AssertionError(f"it does not start: {line!r}")
        self.url = line.split()[1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)

    def ask(self, method, path, body=None, headers=None):
        """(status, body) of an answer."""
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(self, path, body, **headers):
        """The answer's JSON. AssertionError: another status than 200."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        status, answer = self.ask("POST", path, json.dumps(body), headers)
        assert status == 200, (status, answer)
        return json.loads(answer)

    def complete(self, prompt, tokens=8, **more):
        """(token ids of the answer, tokens of the prompt that were there)."""
        body = {"prompt": prompt, "max_tokens": tokens, "return_token_ids": True, **more}
        answer = self.post("/v1/completions", body)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["token_ids"], cached

    def stream(self, path, body, stop_after=None):
        """The chunks of a stream. stop_after: go away after so many."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            chunks = []
            for line in answer:
                if line.startswith(b"data: {"):
                    chunks.append(json.loads(line[6:]))
                if len(chunks) == stop_after:
                    return chunks
            assert stop_after is None
            return chunks
        finally:
            connection.close()

    def metric(self, name):
        """The value of vllm:NAME, all labels added up."""
        status, text = self.ask("GET", "/metrics")
        assert status == 200
        lines = [line for line in text.decode().split("\n") if line.startswith(f"vllm:{name}{{")]
        assert lines, name
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60 * SLOW)
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
