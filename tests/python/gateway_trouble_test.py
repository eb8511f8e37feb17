"""tarn-gateway before engines that fail: each request is answered as if nothing had been, and of
each place the end is told once."""

import asyncio
import json
import logging
import sys
import unittest

import aiohttp
from gateway_front import (
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


class Trouble(GatewayTest):
    engines_n = 3

    async def asyncSetUp(self):
        await super().asyncSetUp()
        log = logging.getLogger("tarn.gateway")
        self.addCleanup(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)

    async def asyncTearDown(self):
        await self.ended()
        await until(lambda: not any(f.under_way for f in self.engines))

    def ends(self):
        """How each place ended."""
        return [told[0] for told in self.router.told if told[0] != "first"]

    async def undisturbed(self, path, body):
        _, _, chunks = await self.post(path, body)
        return [{**c, "id": 0} if c != "[DONE]" else c for c in chunks]

    async def same_in_spite_of(self, plan, body, path="/v1/chat/completions"):
        """The answer is what it would be without trouble, chunk by chunk."""
        wanted = await self.undisturbed(path, body)
        self.router.turn = 0
        for engine, acts in zip(self.engines, plan):
            engine.plan = list(acts)
        status, headers, chunks = await self.post(path, body)
        self.assertEqual(status, 200)
        self.assertEqual(len({c["id"] for c in chunks[:-1]}), 1)
        self.assertEqual([{**c, "id": 0} if c != "[DONE]" else c for c in chunks], wanted)
        return headers


class BeforeTheFirstByte(Trouble):
    async def test_it_goes_elsewhere(self):
        for plan in (
            "status 500",
            "status 503",
            "status 429",
            "status 404",
            "status 401",
            "raw nonsense\n\n",
            "raw data: nonsense\n\n",
            "raw data: []\n\n",
            'raw data: {"choices": [5]}\n\n',
            'raw data: {"choices": [{"index": 7, "delta": {}}]}\n\n',
            'raw data: {"choices": [{"delta": {"content": 5}}]}\n\n',
            'raw data: {"choices": [{"delta": {}, "token_ids": ["x"]}]}\n\n',
            'raw data: {"choices": [{"delta": {}, "finish_reason": "abort"}]}\n\n',
            'raw data: {"error": {"message": "no", "code": 500}}\n\ndata: [DONE]\n\n',
            "raw data: [DONE]\n\n",
            "raw ",
            "die 0",
        ):
            self.router.told.clear()
            self.router.turn = 0
            with self.subTest(plan):
                headers = await self.same_in_spite_of([[plan]], self.chat(3))
                if plan != "die 0":  # its role may have come
                    self.assertEqual(headers["X-Tarn-Engine"], "e1")
                await self.ended()
                blamed = not plan.startswith(("status 429", "status 404"))
                self.assertEqual(self.ends()[1:], ["failed" if blamed else "done", "done"])
                self.assertEqual(self.router.asks[-1].exclude, ("e0",))

    async def test_an_engine_that_is_not_there(self):
        await self.engines[0].stop()
        for body in (self.completion(3), self.completion(3, stream=False)):
            self.router.turn = 0
            status, headers, _ = await self.post("/v1/completions", body)
            self.assertEqual((status, headers["X-Tarn-Engine"]), (200, "e1"))

    async def test_a_line_without_an_end(self):
        self.engines[0].plan = ["raw data: " + "x" * (17 << 20)]
        status, headers, _ = await self.post("/v1/completions", self.completion(2))
        self.assertEqual((status, headers["X-Tarn-Engine"]), (200, "e1"))

    async def test_attempts_are_bounded(self):
        for engine in self.engines:
            engine.plan = ["status 500 broken"] * 9
        status, _, answer = await self.post("/v1/completions", self.completion())
        self.assertEqual((status, answer["error"]["code"]), (502, "engines_failed"))
        self.assertIn("broken", answer["error"]["message"])
        await self.ended()
        # Three engines, and once more when all were excluded.
        self.assertEqual(self.ends(), ["failed"] * 4)

    async def test_what_all_say_is_passed_on(self):
        for engine in self.engines:
            engine.plan = ["status 429 busy"] * 9
        status, _, answer = await self.post("/v1/completions", self.completion())
        self.assertEqual((status, answer["error"]["message"]), (429, "busy"))

    async def test_an_error_about_the_request_in_a_stream_that_has_not_begun(self):
        self.engines[0].plan = ['raw data: {"error": {"message": "long", "code": 400}}\n\n']
        status, _, answer = await self.post("/v1/completions", self.completion())
        self.assertEqual((status, answer["error"]["message"]), (400, "long"))
        self.assertEqual(len(self.router.asks), 1)


class Slow(Trouble):
    options = {"first_s": 1.5, "silent_s": 1.5, "answer_s": 1.5}

    async def test_who_is_silent_has_failed(self):
        await self.same_in_spite_of([["hang 2"]], self.chat(4))
        self.engines[0].plan, self.router.turn = ["hang 0"], 0
        body = self.chat(3, stream=False, n=2)
        status, headers, _ = await self.post("/v1/chat/completions", body)
        self.assertEqual((status, headers["X-Tarn-Engine"]), (200, "e1"))
        await until(lambda: self.engines[0].cancelled == 2)


class InMidStream(Trouble):
    async def test_a_chat_goes_on(self):
        usage = {"include_usage": True}
        for n in range(6):
            self.router.turn = 0
            with self.subTest(n):
                body = self.chat(5, stream_options=usage)
                await self.same_in_spite_of([[f"die {n}"]], body)
                await self.ended()
                # At its end only its last words are missing.
                wanted = ["done", "failed", "done"] if n < 5 else ["done", "failed"]
                self.assertEqual(self.ends(), wanted)
                self.router.told.clear()

    async def test_it_goes_on_from_tokens(self):
        await self.same_in_spite_of([["die 2"]], self.chat(6, temperature=0, top_k=1))
        prompt = chat_tokens(self.chat()["messages"])
        sent = self.engines[1].seen[-1]
        self.assertEqual(sent[0].path, "/v1/completions")
        self.assertEqual(sent[1]["prompt"], prompt + answer_of(prompt, 2))
        self.assertEqual((sent[1]["max_tokens"], sent[1]["top_k"]), (4, 1))
        self.assertNotIn("messages", sent[1])
        # The router knows what is computed there, and how much was made here.
        ask = self.router.asks[-1]
        self.assertEqual((ask.length, ask.exclude), (len(prompt) + 2, ("e0",)))
        self.assertEqual(len(ask.tokens), 4 * (len(prompt) + 2))
        await self.ended()
        told = [t[2] for t in self.router.told if t[0] != "first"]
        self.assertEqual(told[-2:], [2, 4])
        firsts = [t for t in self.router.told if t[0] == "first"]
        self.assertEqual(len(firsts), 3)

    async def test_twice_and_three_times(self):
        plan = [["die 2", "die 1"], ["die 2"], ["die 1"]]
        await self.same_in_spite_of(plan, self.chat(12))

    async def test_a_completion_goes_on_with_ids_and_usage(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = self.completion(6, return_token_ids=True, stream_options=options)
        await self.same_in_spite_of([["die 3"]], body, "/v1/completions")
        prompt = tokens_of("hello there")
        ids = prompt + answer_of(prompt, 3)
        self.assertEqual(self.engines[1].seen[-1][1]["prompt"], ids)

    async def test_all_at_once_goes_on_as_well(self):
        for path, body in (
            ("/v1/chat/completions", self.chat(6, stream=False)),
            ("/v1/completions", self.completion(6, stream=False, return_token_ids=True)),
        ):
            self.router.turn = 0
            _, _, wanted = await self.post(path, body)
            self.router.turn = 0
            self.engines[0].plan = ["die 4"]
            status, _, answer = await self.post(path, body)
            self.assertEqual((status, answer), (200, wanted))
            self.assertEqual(self.engines[1].seen[-1][1]["max_tokens"], 2)

    async def test_a_length_that_nobody_asked_for(self):
        """As far as the model goes: its max_model_len less the prompt."""
        body = self.chat(stop_token_ids=[next_stop(self.chat())])
        del body["max_tokens"]
        self.engines[0].plan = ["die 3"]
        _, _, chunks = await self.post("/v1/chat/completions", body)
        prompt = chat_tokens(body["messages"])
        self.assertEqual(self.engines[1].seen[-1][1]["max_tokens"], 4096 - len(prompt) - 3)
        self.assertEqual(said(chunks), text_of(answer_of(prompt, 6)))
        self.assertEqual(reasons(chunks), ["stop"])

    async def test_only_the_end_was_missing(self):
        """All tokens are sent; nobody is asked for one more."""
        wanted = await self.undisturbed("/v1/completions", self.completion(3))
        _, _, wanted_usage = await self.post(
            "/v1/completions", self.completion(3, stream_options={"include_usage": True})
        )
        for engine in self.engines:
            engine.late_reason = True
        self.router.turn = 0
        self.engines[0].plan = ["die 3"]
        _, _, chunks = await self.post("/v1/completions", self.completion(3))
        self.assertEqual((said(chunks), reasons(chunks)), (said(wanted), ["length"]))
        self.assertEqual(len(self.router.asks), 3)

    async def test_text_that_lags_behind(self):
        """A character of three tokens, and what may be the beginning of a stop string."""
        prompt = chat_tokens(self.chat()["messages"])
        for hold in ("stop", "character"):
            for n in range(1, 10):
                with self.subTest(hold, n=n):
                    for engine in self.engines:
                        engine.holds = hold
                    more = {"stop": ["nowhere"]} if hold == "stop" else {}
                    self.router.turn = 0
                    self.engines[0].plan = [f"die {n}"]
                    _, _, chunks = await self.post("/v1/chat/completions", self.chat(10, **more))
                    text = text_of(answer_of(prompt, 10))
                    self.assertEqual((said(chunks), reasons(chunks)), (text, ["length"]))

    async def test_what_cannot_be_continued_says_so(self):
        tool = {"type": "function", "function": {"name": "f"}}
        image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        schema = {"type": "json_object"}
        for why, path, body in (
            ("tools", "chat/completions", self.chat(tools=[tool])),
            ("images", "chat/completions", self.chat(content=image)),
            ("logprobs", "chat/completions", self.chat(logprobs=True)),
            ("structured", "chat/completions", self.chat(response_format=schema)),
            ("echo", "completions", self.completion(echo=True)),
        ):
            for engine in self.engines:
                engine.plan = []
            self.router.turn = 0
            self.engines[0].plan = ["die 2"]
            status, _, chunks = await self.post("/v1/" + path, body)
            self.assertEqual((status, chunks[-1]), (200, "[DONE]"))
            self.assertIn(why, chunks[-2]["error"]["message"])
            self.assertEqual(chunks[-2]["error"]["code"], "answer_broken")
            await self.ended()
            self.assertEqual(self.ends()[-1], "failed")
            # Where nothing of it was sent, it begins anew.
            self.router.turn = 0
            self.engines[0].plan = ["die 0"]
            _, _, chunks = await self.post("/v1/" + path, body)
            self.assertEqual((len(reasons(chunks)), chunks[-1]), (1, "[DONE]"))
            roles = [c for c in chunks if "role" in str(c)]
            self.assertEqual(len(roles), 1 if path == "chat/completions" else 0)

    async def test_a_model_that_thinks(self):
        """While it does, it is said so; what comes behind it goes on."""
        prompt = chat_tokens(self.chat()["messages"])
        ids = answer_of(prompt, 6)
        head = '{"prompt_token_ids": %s, "choices": [{"delta": {"role": "assistant"}}]}' % prompt
        chunk = '{"choices": [{"delta": {"%s": "%s"}, "token_ids": [%d]}]}'
        thought = chunk % ("reasoning", "hm", ids[0])
        text = chunk % ("content", text_of([ids[1]]), ids[1])
        for chunks, goes_on in (([head, thought], False), ([head, thought, text], True)):
            self.router.turn = 0
            self.engines[0].plan = ["raw " + "".join(f"data: {c}\n\n" for c in chunks)]
            _, _, got = await self.post("/v1/chat/completions", self.chat(6))
            if goes_on:
                self.assertEqual((said(got), reasons(got)), (text_of(ids[1:]), ["length"]))
                self.assertEqual(self.engines[1].seen[-1][1]["prompt"], prompt + ids[:2])
            else:
                self.assertIn("thinking", got[-2]["error"]["message"])

    async def test_another_answer_is_not_appended(self):
        """Sampled anew, what was held back may come out otherwise."""
        for engine in self.engines:
            engine.holds = "stop"
        self.engines[1].salt = [1]
        self.engines[0].plan = ["die 5"]
        _, _, chunks = await self.post("/v1/chat/completions", self.chat(9, stop=["nowhere!!"]))
        self.assertIn("otherwise", chunks[-2]["error"]["message"])

    async def test_what_has_begun_waits_for_a_place(self):
        self.engines[0].plan = ["die 2"]
        self.router.refuse = [None, Overloaded(0.01, "busy"), Overloaded(0.01, "busy")]
        ttft = {"X-Tarn-TTFT-Ms": "100"}
        status, _, chunks = await self.post("/v1/chat/completions", self.chat(4), **ttft)
        prompt = chat_tokens(self.chat()["messages"])
        self.assertEqual(said(chunks), text_of(answer_of(prompt, 4)))
        self.assertEqual([a.ttft_ms for a in self.router.asks], [100, None, None, None])


class Gone(Trouble):
    async def test_a_client_that_goes(self):
        for stream in (True, False):
            engine = self.engines[0]
            engine.plan, engine.cancelled, self.router.turn = ["hang 2"], 0, 0
            self.router.told.clear()
            body = json.dumps(self.chat(9, stream=stream))
            request = asyncio.ensure_future(self.post("/v1/chat/completions", body.encode()))
            await until(lambda: ("first" in [t[0] for t in self.router.told]))
            request.cancel()
            await asyncio.wait([request])
            await until(lambda: engine.cancelled)
            await self.ended()
            self.assertEqual(self.ends(), ["done"])
        _, text = await self.get("/metrics")
        self.assertIn('{outcome="cancelled",path="/v1/chat/completions"} 2.0', text)

    async def test_a_client_that_goes_before_the_first_token(self):
        engine = self.engines[0]
        for body in (self.chat(9), self.chat(9, stream=False, n=3)):
            engine.plan, engine.cancelled, self.router.turn = ["hang 0"], 0, 0
            data = json.dumps(body)
            url = self.url + "/v1/chat/completions"
            request = asyncio.ensure_future(self.http.post(url, data=data))
            await until(lambda: engine.under_way)
            request.cancel()
            (got,), _ = await asyncio.wait([request])
            if not got.cancelled():
                got.result().close()
            await until(lambda: engine.cancelled)
            await self.ended()


class Unread(Trouble):
    options = {"client_s": 0.2}

    async def test_a_client_that_does_not_read(self):
        self.engines[0].wide = 1 << 20
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        body = json.dumps(self.completion(2000)).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: self.engines[0].cancelled)
        writer.close()


class Ending(Trouble):
    async def test_requests_under_way_are_served(self):
        engine = self.engines[0]
        engine.pace = asyncio.Semaphore(2)
        request = asyncio.ensure_future(self.post("/v1/completions", self.completion(5)))
        await until(lambda: self.router.told)
        ending = asyncio.ensure_future(self.stack.aclose())
        await until(lambda: self.gateway.handlers.drains)
        with self.assertRaises(aiohttp.ClientConnectionError):
            async with aiohttp.ClientSession() as other:
                await other.get(self.url + "/health")
        for _ in range(3):
            engine.pace.release()
        _, _, chunks = await request
        self.assertEqual(said(chunks), text_of(answer_of(tokens_of("hello there"), 5)))
        await ending
        self.assertTrue(self.router.over())


class EndingSoon(Trouble):
    options = {"drain_s": 0.1}

    async def test_not_for_ever(self):
        self.engines[0].plan = ["hang 1"]
        request = asyncio.ensure_future(self.post("/v1/completions", self.completion(5)))
        await until(lambda: self.router.told)
        await self.stack.aclose()
        self.assertTrue(self.router.over())
        with self.assertRaises(aiohttp.ClientError):
            await request


def next_stop(body):
    return answer_of(chat_tokens(body["messages"]), 6)[5]


if __name__ == "__main__":
    sys.exit(unittest.main())
