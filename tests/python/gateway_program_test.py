"""tarn-gateway as a program: its arguments, TLS on both sides, and a signal."""

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import unittest

import aiohttp
from gateway_front import MODEL, FakeEngine, answer_of, tokens_of
from harness import ROOT


async def program(*arguments):
    path = os.path.join(ROOT, "utils", "python")
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tarn.gateway", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=path),
    )


class Program(unittest.IsolatedAsyncioTestCase):
    async def test_arguments_that_are_wrong(self):
        for arguments, why in (
            ([], b"one of --conductor"),
            (["--engine", "http://x", "--tls-cert", "a"], b"belong together"),
            (["--engine", "http://x", "--keys", "/none"], b"No such file"),
            (["--engine", "http://x", "--engine-ca", "/none"], b"--engine-ca: "),
            (["--engine", "http://x", "--tls-cert", "/none", "--tls-key", "/n"], b"--tls-cert, "),
            (["--engine", "ftp://x"], b"not an http"),
            (["--engine", "http://x", "--attempts", "0"], b"number from 1 to 16"),
        ):
            process = await program(*arguments)
            _, said = await process.communicate()
            self.assertNotEqual(process.returncode, 0)
            self.assertIn(why, said)
            self.assertNotIn(b"Traceback", said)

    @unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
    async def test_tls_and_a_signal(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        cert, key, file = (os.path.join(folder, n) for n in ("cert", "key", "arguments"))
        words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        words += (
            f" -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
        )
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
        engine = FakeEngine("e0")
        engine.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        engine.tls.load_cert_chain(cert, key)
        await engine.start()
        self.addAsyncCleanup(engine.stop)
        with open(file, "w") as f:
            print(f"--engine\ne0={engine.engine.url},model={MODEL}\n--engine-ca\n{cert}", file=f)
        process = await program("--port", "0", "--tls-cert", cert, "--tls-key", key, "@" + file)
        self.addCleanup(lambda: process.returncode is None and process.kill())
        ready = (await process.stdout.readline()).decode()
        self.assertRegex(ready, r"^ready https://127.0.0.1:\d+$")
        body = {"model": MODEL, "prompt": "hello there", "max_tokens": 3, "return_token_ids": True}
        trusted = ssl.create_default_context(cafile=cert)
        url = ready.split()[1] + "/v1/completions"
        async with aiohttp.ClientSession() as session:
            async with session.post(url, json=body, ssl=trusted) as response:
                answer = await response.json()
                self.assertEqual(response.headers["X-Tarn-Routed"], "alone")
        wanted = answer_of(tokens_of("hello there"), 3)
        self.assertEqual(answer["choices"][0]["token_ids"], wanted)
        process.send_signal(signal.SIGTERM)
        _, said = await process.communicate()
        self.assertEqual(process.returncode, 0, said)
        self.assertNotIn(b"Traceback", said)


if __name__ == "__main__":
    sys.exit(unittest.main())
