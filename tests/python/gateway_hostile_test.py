"""tarn-gateway before clients that mean it ill, or are unlucky: nothing of that is an engine's
failure, stays reserved, or is another client's trouble."""

import asyncio
import contextlib
import json
import logging
import sys
import tempfile
import unittest
from unittest import mock

from aiohttp import web
from gateway_front import GatewayTest, answer_of, said, text_of, tokens_of, until
from tarn.gateway import app
from tarn.gateway.health import Health


class Clients(GatewayTest):
    async def send(self, body, *headers):
        """A client that has sent its headers: `finish` sends the body, and reads to the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        data = json.dumps(body).encode()
        lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Connection: close", *headers]
        writer.write("\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode())

        async def finish():
            writer.write(data)
            answer = await reader.read()
            writer.close()
            return answer

        return writer, finish

    async def test_two_of_one_name_at_once(self):
        """Their heads come first, then both bodies."""
        for engine in self.engines:
            engine.pace = asyncio.Semaphore(0)
        sent = [await self.send(self.completion(4), "X-Request-Id: same") for _ in range(2)]
        await asyncio.sleep(0.05)
        answers = [asyncio.ensure_future(finish()) for _, finish in sent]
        await until(lambda: len(self.router.live) == 2)
        for engine in self.engines:
            engine.pace.release()
            engine.pace.release()
        while not all(a.done() for a in answers):
            for engine in self.engines:
                engine.pace.release()
            await asyncio.sleep(0.01)
        for answer in answers:
            whole = answer.result()
            self.assertEqual(whole.count(b"HTTP/1.1"), 1, whole)
            self.assertIn(b"X-Request-Id: same\r\n", whole)
            self.assertTrue(whole.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), whole)
        names = [request.headers["X-Request-Id"] for e in self.engines for request, _ in e.seen]
        self.assertEqual(set(names), set(self.router.live))
        await self.ended()
        status, text = await self.get("/health")
        self.assertEqual((status, json.loads(text)["in_flight"]), (200, 0))

    async def test_a_name_has_room_for_ours(self):
        long = "n" * 128
        _, headers, _ = await self.post("/v1/completions", self.completion(1), X_Request_Id=long)
        self.assertEqual(headers["X-Request-Id"], long)
        self.assertLessEqual(len(self.router.asks[0].request), 128)

    async def test_clients_that_go_away_while_they_are_written_to(self):
        with self.assertNoLogs("tarn.gateway", logging.ERROR):
            with self.assertNoLogs("aiohttp", logging.ERROR):
                for _ in range(8):
                    for engine in self.engines:
                        engine.pace = asyncio.Semaphore(0)
                    writer, finish = await self.send(self.completion(50))
                    task = asyncio.ensure_future(finish())
                    await until(lambda: any(e.under_way for e in self.engines))
                    writer.transport.abort()
                    for engine in self.engines:
                        for _ in range(50):
                            engine.pace.release()
                    await asyncio.wait([task])
                    await until(lambda: not any(e.under_way for e in self.engines))
                await self.ended()
        self.assertFalse([t for t in self.router.told if t[0] == "failed"])

    async def test_clients_that_go_away_before_their_body_has_come(self):
        with self.assertNoLogs("tarn.gateway", logging.ERROR):
            with self.assertNoLogs("aiohttp", logging.ERROR):
                for _ in range(4):
                    writer, _ = await self.send(self.completion())
                    writer.write(b"{")
                    await until(lambda: self.in_flight() == 1)
                    writer.transport.abort()
                    await until(lambda: self.in_flight() == 0)
        self.assertEqual(self.router.asks, [])

    def in_flight(self):
        return self.gateway.means.metrics.in_flight._value.get()


class Idle(GatewayTest):
    options = {"request_s": 0.2}

    async def test_who_had_a_request_may_be_idle_for_longer(self):
        patched = mock.patch.object(app, "LATE_CHECK_S", 0.02)
        patched.start()
        self.addCleanup(patched.stop)
        kept_reader, kept = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        self.addCleanup(kept.close)
        ask = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        for _ in range(2):
            kept.write(ask)
            self.assertIn(b"200 OK", await kept_reader.readuntil(b"\r\n\r\n"))
            await kept_reader.readuntil(b"}]}")
            silent_reader, silent = await asyncio.open_connection("127.0.0.1", self.gateway.port)
            silent.write(b"POST /v1/comp")
            with contextlib.suppress(ConnectionError):
                self.assertEqual(await silent_reader.read(), b"")  # it is closed
            silent.close()


class Keys(GatewayTest):
    @property
    def options(self):
        return {"keys": self.file.name}

    async def asyncSetUp(self):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".keys")
        self.addCleanup(self.file.close)
        self.file.write("secret acme\n")
        self.file.flush()
        await super().asyncSetUp()

    async def test_where_engines_are_is_for_those_with_a_key(self):
        status, text = await self.get("/health")
        self.assertEqual((status, json.loads(text)["status"]), (200, "ok"))
        self.assertNotIn("http", text)
        _, text = await self.get("/health", Authorization="Bearer secret")
        self.assertIn(self.engines[0].engine.url, text)


class Compressing(GatewayTest):
    async def test_engines_are_not_asked_to_compress(self):
        """As a proxy before them would."""
        act = type(self.engines[0]).act

        async def compressed(engine, request, *rest):
            self.assertEqual(request.headers["Accept-Encoding"], "identity")
            return await act(engine, request, *rest)

        for engine in self.engines:
            engine.act = compressed.__get__(engine)
        status, _, chunks = await self.post("/v1/completions", self.completion(3))
        self.assertEqual((status, chunks[-1]), (200, "[DONE]"))


class Endless(GatewayTest):
    async def test_an_answer_that_is_collected_has_an_end(self):
        self.gateway.means.upstream.limits = type(self.gateway.means.upstream.limits)(
            answer_bytes=2000
        )
        body = self.completion(50, stream=False)
        status, _, error = await self.post("/v1/completions", body)
        self.assertEqual(status, 502)
        self.assertIn("more than 2000 bytes", error["error"]["message"])
        await self.ended()
        # a stream is not kept
        status, _, chunks = await self.post("/v1/completions", self.completion(50))
        self.assertEqual((status, chunks[-1]), (200, "[DONE]"))
        self.assertEqual(said(chunks), text_of(answer_of(tokens_of("hello there"), 50)))


class Pieces(unittest.IsolatedAsyncioTestCase):
    async def test_what_an_engine_serves_comes_in_pieces(self):
        more = asyncio.Event()

        async def models(request):
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b'{"data": [{"id": "m"},')
            await more.wait()
            await response.write(b' {"id": "a", "parent": "m"}]}')
            return response

        engine = web.Application()
        engine.router.add_get("/v1/models", models)
        runner = web.AppRunner(engine)
        await runner.setup()
        self.addAsyncCleanup(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = "http://127.0.0.1:%d" % runner.addresses[0][1]
        health = Health(lambda: [url], print)
        await health.start()
        self.addAsyncCleanup(health.close)
        asked = asyncio.ensure_future(health.models(url))
        asyncio.get_running_loop().call_later(0.05, more.set)
        self.assertEqual(await asked, ["m"])


if __name__ == "__main__":
    sys.exit(unittest.main())
