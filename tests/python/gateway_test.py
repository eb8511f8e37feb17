"""tarn-gateway before engines that answer: what clients, engines and the router get."""

import asyncio
import json
import os
import sys
import tempfile
import unittest

from gateway_front import (
    MODEL,
    GatewayTest,
    answer_of,
    chat_tokens,
    reasons,
    said,
    text_of,
    tokens_of,
    until,
)
from tarn.gateway.place import Overloaded


class Answers(GatewayTest):
    async def test_chat_as_a_stream(self):
        status, headers, chunks = await self.post("/v1/chat/completions", self.chat(5))
        self.assertEqual(status, 200)
        prompt = chat_tokens(self.chat()["messages"])
        self.assertEqual(said(chunks), text_of(answer_of(prompt, 5)))
        self.assertEqual(reasons(chunks), ["length"])
        self.assertEqual(chunks[-1], "[DONE]")
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual({c["object"] for c in chunks[:-1]}, {"chat.completion.chunk"})
        self.assertEqual(headers["X-Tarn-Engine"], "e0")
        self.assertEqual(headers["X-Tarn-Routed"], "conductor")
        self.assertEqual(headers["X-Tarn-Hit-Tokens"], "48")
        # What was asked of the engine for the gateway's own sake does not come out.
        self.assertNotIn("token_ids", str(chunks))
        self.assertNotIn("usage", str(chunks))
        await self.ended()
        request = headers["X-Request-Id"]
        self.assertEqual(headers["X-Tarn-Request"], request)
        self.assertEqual(self.router.told, [("first", request), ("done", request, 5)])

    async def test_what_the_client_asks_for_comes_out(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = self.completion(3, return_token_ids=True, stream_options=options)
        _, _, chunks = await self.post("/v1/completions", body)
        prompt = tokens_of("hello there")
        self.assertEqual(chunks[0]["choices"][0]["prompt_token_ids"], prompt)
        ids = [t for c in chunks[:3] for t in c["choices"][0]["token_ids"]]
        self.assertEqual(ids, answer_of(prompt, 3))
        self.assertEqual([c["usage"]["completion_tokens"] for c in chunks[:4]], [1, 2, 3, 3])
        self.assertEqual(chunks[3]["choices"], [])
        _, _, chunks = await self.post("/v1/completions", {**body, "return_token_ids": False})
        self.assertNotIn("token_ids", str(chunks))

    async def test_all_at_once(self):
        prompt = chat_tokens(self.chat()["messages"])
        text = text_of(answer_of(prompt, 4))
        body = self.chat(4, stream=False)
        status, headers, answer = await self.post("/v1/chat/completions", body)
        self.assertEqual((status, answer["object"]), (200, "chat.completion"))
        self.assertEqual(answer["choices"][0]["message"], {"role": "assistant", "content": text})
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": 4}
        self.assertEqual(answer["usage"], {**usage, "total_tokens": len(prompt) + 4})
        # With several choices the engine's own answer is passed on.
        _, _, several = await self.post("/v1/chat/completions", {**body, "n": 2})
        self.assertEqual(several["choices"][0]["message"]["content"], text)
        self.assertFalse(self.engines[1].seen[-1][1]["stream"])
        await self.ended()
        self.assertEqual(self.router.told[-1], ("done", self.router.asks[-1].request, 4))
        status, _, answer = await self.post("/v1/completions", self.completion(2, stream=False))
        self.assertEqual(answer["object"], "text_completion")
        self.assertEqual(
            answer["choices"][0]["text"], text_of(answer_of(tokens_of("hello there"), 2))
        )

    async def test_it_comes_as_it_is_made(self):
        self.engines[0].pace = asyncio.Semaphore(0)
        body = json.dumps(self.chat(3))
        async with self.http.post(self.url + "/v1/chat/completions", data=body) as response:
            lines = response.content
            self.assertIn(b"assistant", await lines.readline())  # before there is a token
            for n in range(3):
                self.engines[0].pace.release()
                await lines.readline()
                self.assertIn(b'"content":" w', await lines.readline())
                await until(lambda: ("first", self.router.asks[0].request) in self.router.told)

    async def test_tools_and_the_like_are_passed_through(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        body = self.chat(2, tools=[tool], tool_choice="auto", seed=3, temperature=0.5, top_k=4)
        await self.post("/v1/chat/completions", body)
        sent = self.engines[0].seen[0][1]
        for name in ("tools", "tool_choice", "seed", "temperature", "top_k", "messages"):
            self.assertEqual(sent[name], body[name])

    async def test_models_health_and_what_is_not_there(self):
        status, text = await self.get("/v1/models")
        models = json.loads(text)["data"]
        self.assertEqual([(m["id"], m["max_model_len"]) for m in models], [(MODEL, 4096)])
        self.assertEqual((await self.get("/v1/models/" + MODEL))[0], 200)
        self.assertEqual((await self.get("/v1/models/none"))[0], 404)
        status, text = await self.get("/health")
        health = json.loads(text)
        self.assertEqual((status, health["status"], health["routed"]), (200, "ok", "conductor"))
        self.assertEqual([e["id"] for e in health["engines"]], ["e0", "e1"])
        for path, status in (("/v1/embeddings", 404), ("/v1/completions", 405)):
            found, text = await self.get(path)
            self.assertEqual(found, status)
            self.assertIn(path, json.loads(text)["error"]["message"])

    async def test_what_the_router_is_asked(self):
        _, headers, _ = await self.post(
            "/v1/completions",
            self.completion(9, "one two three", ignore_eos=True),
            X_Request_Id="mine",
            X_Tarn_Tenant="acme",
            X_Tarn_Priority="-7",
            X_Tarn_Session="talk",
            X_Tarn_TTFT_Ms="500",
            X_Tarn_TBT_Ms="50",
        )
        self.assertEqual(headers["X-Request-Id"], "mine")
        ask = self.router.asks[0]
        self.assertRegex(ask.request, r"^mine\.[0-9a-f]{8}$")
        self.assertEqual((ask.model, ask.length), (MODEL, 3))
        ids = b"".join(t.to_bytes(4, "little") for t in tokens_of("one two three"))
        self.assertEqual((ask.tokens, ask.output), (ids, 9))
        self.assertEqual((ask.tenant, ask.priority, ask.session), ("acme", -7, "talk"))
        self.assertEqual((ask.ttft_ms, ask.tbt_ms), (500, 50))
        request, body = self.engines[0].seen[0]
        self.assertEqual(request.headers["X-Request-Id"], ask.request)
        said = {"tarn_session": "acme/talk", "lmcache.tarn_session": "acme/talk"}
        self.assertEqual(body["kv_transfer_params"], said)

    async def test_traceparent(self):
        trace = "0af7651916cd43dd8448eb211c80319c"
        given = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "tracestate": "a=b"}
        await self.post("/v1/completions", self.completion(1), **given)
        for bad in (
            "",
            "00-0-0-01",
            f"00-{'0' * 32}-b7ad6b7169203331-01",
            "ff" + given["traceparent"][2:],
        ):
            await self.post("/v1/completions", self.completion(1), traceparent=bad)
        seen = [r.headers["traceparent"] for e in self.engines for r, _ in e.seen]
        self.assertEqual(len(seen), 5)
        self.assertEqual(len({s.split("-")[2] for s in seen} | {"b7ad6b7169203331"}), 6)
        self.assertEqual([s.split("-")[1] for s in seen].count(trace), 1)
        self.assertEqual(self.engines[0].seen[0][0].headers["tracestate"], "a=b")

    async def test_ranks_at_one_url_are_told_apart(self):
        first = self.engines[0].engine
        self.engines[1].engine = type(first)("e1", first.url, 3, "both", MODEL)
        for _ in range(2):
            await self.post("/v1/completions", self.completion(1))
        ranks = [r.headers.get("X-data-parallel-rank") for r, _ in self.engines[0].seen]
        self.assertEqual(ranks, ["0", "3"])

    async def test_metrics(self):
        await self.post("/v1/completions", self.completion(4))
        await self.post("/v1/completions", b"{")
        self.engines[1].plan = ["status 500"]
        await self.post("/v1/completions", self.completion(4))
        await self.ended()
        _, text = await self.get("/metrics")
        for line in (
            'tarn_gateway_requests_total{outcome="ok",path="/v1/completions"} 2.0',
            'tarn_gateway_requests_total{outcome="refused",path="/v1/completions"} 1.0',
            'tarn_gateway_routed_total{by="conductor"} 3.0',
            "tarn_gateway_retries_total 1.0",
            "tarn_gateway_engine_failures_total 1.0",
            "tarn_gateway_output_tokens_total 8.0",
            "tarn_gateway_prompt_tokens_total 4.0",
            'tarn_gateway_hit_tokens_total{tier="device"} 32.0',
            'tarn_gateway_hit_tokens_total{tier="host"} 0.0',
            'tarn_gateway_hit_tokens_total{tier="pool"} 32.0',
            "tarn_gateway_ttft_seconds_count 2.0",
            "tarn_gateway_tbt_seconds_count 6.0",
            "tarn_gateway_in_flight 0.0",
            "tarn_gateway_alone 0.0",
        ):
            self.assertIn(line + "\n", text)


class Refusals(GatewayTest):
    async def test_overloaded_and_nobody(self):
        self.router.refuse = [Overloaded(1.2, "too much"), Overloaded(0, "never")]
        for wanted in ("2", None):
            status, headers, answer = await self.post("/v1/completions", self.completion())
            self.assertEqual((status, headers.get("Retry-After")), (429, wanted))
            self.assertEqual(answer["error"]["type"], "rate_limit_error")
        body = self.completion(model="other")
        status, _, answer = await self.post("/v1/completions", body)
        self.assertEqual((status, answer["error"]["code"]), (404, "model_not_found"))
        self.router.fakes = []
        status, _, _ = await self.post("/v1/completions", self.completion())
        self.assertEqual(status, 503)

    async def test_anything_as_a_body(self):
        deep = b'{"model": "llama", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        for raw in (b"", b"\xff\xfe", b"[]", b"null", b"{", b'{"a": NaN}', b'"\\ud800"', deep):
            status, _, answer = await self.post("/v1/completions", raw)
            self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))
        for path, name, value in (
            ("chat", "model", 5),
            ("chat", "model", "a\nb"),
            ("chat", "model", "\ud800"),
            ("chat", "messages", None),
            ("chat", "messages", "hello"),
            ("chat", "messages", [1]),
            ("chat", "stream", "yes"),
            ("chat", "stream_options", []),
            ("chat", "stream_options.include_usage", 1),
            ("chat", "n", 0),
            ("chat", "n", True),
            ("chat", "n", 10**30),
            ("chat", "max_tokens", -1),
            ("chat", "max_completion_tokens", 1.5),
            ("chat", "tools", {}),
            ("chat", "stop", [1]),
            ("completion", "prompt", None),
            ("completion", "prompt", [1, "a"]),
            ("completion", "prompt", [-1]),
            ("completion", "prompt", {}),
            ("completion", "echo", "x"),
            ("completion", "cache_salt", 7),
        ):
            body = self.chat() if path == "chat" else self.completion()
            where, _, inner = name.partition(".")
            body[where] = {inner: value} if inner else value
            path = "/v1/chat/completions" if path == "chat" else "/v1/completions"
            status, _, answer = await self.post(path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, name), answer)
        self.assertEqual(self.router.asks, [])
        for name, value in (("X_Tarn_Priority", "101"), ("X_Tarn_TTFT_Ms", "x")):
            status, _, answer = await self.post(
                "/v1/completions", self.completion(), **{name: value}
            )
            self.assertEqual((status, answer["error"]["param"]), (400, name.replace("_", "-")))

    async def test_an_engine_s_word_about_the_request_is_passed_on(self):
        self.engines[0].plan = ["status 400 wrong"]
        status, _, answer = await self.post("/v1/completions", self.completion())
        self.assertEqual((status, answer["error"]["message"]), (400, "wrong"))
        self.assertEqual(len(self.router.asks), 1)
        await self.ended()
        self.assertEqual(self.router.told, [("done", self.router.asks[0].request, 0)])


class Small(GatewayTest):
    options = {"body_mib": 0.01, "request_s": 1.5}

    async def test_too_much_and_too_slow(self):
        status, _, answer = await self.post("/v1/completions", b"x" * 20000)
        self.assertEqual((status, answer["error"]["code"]), (413, 413))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        self.assertIn(b" 408 ", await reader.readline())
        writer.close()
        # One on which no head ever comes whole is closed.
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        writer.write(b"POST /v1/completions HT")
        with self.assertRaises(ConnectionError):
            self.assertEqual(await reader.read(), b"")
            raise ConnectionError
        writer.close()


class WithKeys(GatewayTest):
    async def asyncSetUp(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys", delete=False) as f:
            f.write("# key tenant priority\nsecret acme\n\nhigh ops 50\n")
        self.addCleanup(os.unlink, f.name)
        self.options = {"keys": f.name}
        await super().asyncSetUp()

    async def test_a_key_says_whose_it_is(self):
        for key in (None, "Bearer wrong", "Basic secret", "secret"):
            headers = {} if key is None else {"Authorization": key}
            status, _, answer = await self.post("/v1/completions", self.completion(), **headers)
            self.assertEqual((status, answer["error"]["code"]), (401, "invalid_api_key"))
            self.assertEqual((await self.get("/v1/models", **headers))[0], 401)
        self.assertEqual(self.router.asks, [])
        for key, asked, tenant, priority in (
            ("secret", None, "acme", 0),
            ("secret", "9", "acme", 0),
            ("secret", "-9", "acme", -9),
            ("high", None, "ops", 50),
            ("high", "90", "ops", 50),
        ):
            headers = {"Authorization": f"Bearer {key}", "X-Tarn-Tenant": "other"}
            headers.update({"X-Tarn-Priority": asked} if asked else {})
            await self.post("/v1/completions", self.completion(1), **headers)
            ask = self.router.asks[-1]
            self.assertEqual((ask.tenant, ask.priority), (tenant, priority))
        # The client's key is not for engines.
        self.assertNotIn("Authorization", self.engines[0].seen[0][0].headers)
        self.assertEqual((await self.get("/health"))[0], 200)


if __name__ == "__main__":
    sys.exit(unittest.main())
