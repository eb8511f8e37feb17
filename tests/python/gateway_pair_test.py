"""tarn-gateway where one engine computes the prompt and another one decodes."""

import asyncio
import logging
import sys
import unittest

from gateway_front import GatewayTest, answer_of, chat_tokens, said, text_of, until
from tarn.gateway.place import Nobody


class Pair(GatewayTest):
    """e0 computes prompts, e1 decodes, e2 can do both."""

    engines_n = 3

    async def asyncSetUp(self):
        self.options = {"hand_over": self.how}
        await super().asyncSetUp()
        self.prefill, self.decode, self.third = self.engines
        self.router.pairs = (self.prefill.engine, self.decode.engine)
        log = logging.getLogger("tarn.gateway")
        self.addCleanup(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)

    async def asks(self, ready=None, **more):
        """An answer that is as it must be; its headers. In the pool, the decoder waits until the
        prefill is asked, or until ready()."""
        body = self.chat(6, **more)
        if self.how == "pool":
            self.decode.pace = asyncio.Semaphore(0)
            waiter = asyncio.ensure_future(until(ready or (lambda: self.prefill.seen)))
            waiter.add_done_callback(lambda _: [self.decode.pace.release() for _ in range(12)])
        status, headers, chunks = await self.post("/v1/chat/completions", body)
        self.assertEqual(status, 200)
        self.assertEqual(said(chunks), text_of(answer_of(chat_tokens(body["messages"]), 6)))
        self.assertNotIn("kv_transfer_params", str(chunks))
        await self.ended()
        await until(lambda: not any(e.under_way for e in self.engines))
        return headers

    def sent(self, engine, at=0):
        return engine.seen[at][1]

    def ends(self):
        return [told[0] for told in self.router.told if told[0] != "first"]


class Pool(Pair):
    how = "pool"

    async def test_both_at_once(self):
        headers = await self.asks()
        self.assertEqual((headers["X-Tarn-Engine"], headers["X-Tarn-Prefill"]), ("e1", "e0"))
        prompt = chat_tokens(self.chat()["messages"])
        params = self.sent(self.decode)["kv_transfer_params"]
        self.assertEqual(params, {"tarn_tokens": len(prompt)})
        self.assertEqual(self.sent(self.prefill)["max_tokens"], 1)
        names = {e.seen[0][0].headers["X-Request-Id"] for e in self.engines[:2]}
        self.assertEqual(len(names), 1)

    async def test_the_prefill_fails(self):
        self.prefill.plan = ["status 500"]
        await self.asks(ready=lambda: self.ends())
        self.assertEqual(self.ends(), ["failed", "done"])
        self.assertEqual(self.router.asks[-1].exclude, ("e0",))

    async def test_the_decoder_does_it_alone_where_no_other_prefill_may(self):
        self.prefill.plan = ["status 500", "status 500"]
        self.router.refuse = [None, Nobody("all are excluded", known=True)]
        await self.asks(ready=lambda: len(self.prefill.seen) == 2)
        self.assertEqual(self.ends(), ["failed", "done"])
        self.assertEqual(len(self.prefill.seen), 2)

    async def test_a_prefill_that_fails_late_changes_nothing(self):
        async def dies(request):
            await until(lambda: self.router.told)
            request.transport.abort()

        self.prefill.plan, self.prefill.until_gone = ["hang"], dies
        self.decode.pace = asyncio.Semaphore(1)
        asked = asyncio.ensure_future(self.post("/v1/chat/completions", self.chat(6)))
        await until(lambda: self.prefill.seen and not self.prefill.under_way)
        for _ in range(6):
            self.decode.pace.release()
        self.assertEqual((await asked)[0], 200)
        await self.ended()
        self.assertEqual(self.ends(), ["done"])

    async def test_the_decoder_fails_before_the_first_token(self):
        self.decode.plan = ["status 500"]
        self.assertEqual((await self.asks())["X-Tarn-Engine"], "e0")
        self.assertEqual(self.ends(), ["decode failed", "done"])
        self.assertEqual(self.router.asks[-1].exclude, ("e1",))

    async def test_the_decoder_fails_in_mid_stream(self):
        self.decode.plan = ["die 2"]
        await self.asks()
        self.assertEqual(self.ends(), ["decode failed", "done"])


class Vllm(Pair):
    how = "vllm"

    async def test_one_after_the_other(self):
        self.prefill.params = {"remote_block_ids": [1, 2], "do_remote_prefill": True}
        await self.asks(kv_transfer_params={"remote_host": "evil"})
        self.assertTrue(self.sent(self.prefill)["kv_transfer_params"]["do_remote_decode"])
        self.assertEqual(self.sent(self.decode)["kv_transfer_params"], self.prefill.params)

    async def test_the_prefill_fails(self):
        self.prefill.plan = ["status 503"]
        await self.asks()
        self.assertEqual(self.ends(), ["failed", "done"])
        self.assertEqual(self.router.asks[-1].exclude, ("e0",))

    async def test_what_the_prefill_finds_wrong_is_the_client_s(self):
        self.prefill.plan = ["status 400 long"]
        status, _, answer = await self.post("/v1/chat/completions", self.chat())
        self.assertEqual((status, answer["error"]["message"]), (400, "long"))
        self.assertEqual(self.decode.seen, [])


class Sglang(Pair):
    how = "sglang"

    async def test_they_meet(self):
        await self.asks()
        rooms = [self.sent(e)["bootstrap_room"] for e in (self.prefill, self.decode)]
        self.assertEqual(rooms[0], rooms[1])

    async def test_who_fails_fails_both(self):
        """The decoder would wait for ever."""
        self.prefill.plan, self.decode.plan = ["status 500"], ["hang 0"]
        await self.asks()
        self.assertEqual(self.decode.cancelled, 1)
        self.assertEqual(self.ends(), ["failed", "done"])


if __name__ == "__main__":
    sys.exit(unittest.main())
