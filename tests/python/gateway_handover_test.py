"""What prefill and decode engines are sent, and what is made of their answers."""

import asyncio
import copy
import logging
import unittest

from gateway_front import GatewayTest, answer_of, said, text_of, tokens_of, until
from tarn.gateway.handover import KINDS, for_client, plan
from tarn.gateway.place import Engine, Place
from tarn.gateway.prompt import Prompt
from tarn.gateway.waits import within

P = Engine("p", "http://[::1]:8000", role="prefill", model="m")
D = Engine("d", "http://10.0.0.2:8000", role="decode", model="m")
APART = Place(P, D, "conductor")
PROMPT = Prompt("m", 100, b"1234" * 100)
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 50,
    "min_tokens": 2,
    "n": 2,
    "temperature": 0,
}
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_port": 5600}
EVIL = {
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.9.9.9"},
    "ec_transfer_params": {},
    "bootstrap_host": "10.9.9.9",
    "bootstrap_port": 1,
    "bootstrap_room": 1,
    "data_parallel_rank": 7,
    "routed_dp_rank": 7,
    "disagg_prefill_dp_rank": 7,
}


class Plans(unittest.TestCase):
    def test_one_engine(self):
        for kind in KINDS:
            for place in Place(P, None, "alone"), Place(P, P, "alone"):
                made = plan(kind, place, {**CHAT, **EVIL}, PROMPT)
                self.assertEqual((made.main.engine, made.main.body), (P, CHAT))
                self.assertIsNone(made.prefill)

    def test_the_clients_body_stays(self):
        for kind in KINDS:
            body = {**CHAT, **EVIL}
            before = copy.deepcopy(body)
            made = plan(kind, APART, body, PROMPT)
            made.hand_over({"kv_transfer_params": PARAMS})
            self.assertEqual(body, before)
            for leg in made.main, made.prefill:
                self.assertNotIn("10.9.9.9", str(leg.body))
                self.assertNotIn("data_parallel_rank", leg.body)
                self.assertIs(leg.body["messages"], CHAT["messages"])

    def test_sessions_for_the_pool(self):
        said = {"tarn_session": "talk-7", "lmcache.tarn_session": "talk-7"}
        for place in Place(P, None, "alone"), APART:
            for kind in KINDS:
                for session in "", "talk-7":
                    made = plan(kind, place, {**CHAT, **EVIL}, PROMPT, session=session)
                    for leg in filter(None, (made.main, made.prefill)):
                        params = leg.body.get("kv_transfer_params") or {}
                        told = {n: params[n] for n in said if n in params}
                        self.assertEqual(told, said if kind == "pool" and session else {})
        made = plan("pool", APART, CHAT, PROMPT, session="talk-7")
        self.assertEqual(made.main.body["kv_transfer_params"], {**said, "tarn_tokens": 100})
        self.assertEqual(made.prefill.body["kv_transfer_params"], said)

    def test_vllm(self):
        made = plan("vllm", APART, CHAT, PROMPT)
        self.assertEqual((made.before, made.alone), (True, False))
        self.assertEqual((made.prefill.engine, made.main.engine), (P, D))
        self.assertEqual(made.main.body, CHAT)
        nothing = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
        self.assertEqual(
            made.prefill.body,
            {
                "model": "m",
                "messages": CHAT["messages"],
                "stream": False,
                "max_tokens": 1,
                "temperature": 0,
                "kv_transfer_params": {
                    "do_remote_decode": True,
                    "do_remote_prefill": False,
                    **dict.fromkeys(nothing),
                },
            },
        )
        made.hand_over({"choices": [], "kv_transfer_params": PARAMS})
        self.assertEqual(made.main.body, {**CHAT, "kv_transfer_params": PARAMS})

    def test_vllm_of_a_short_prompt(self):
        for nothing in {}, {"kv_transfer_params": None}, {"kv_transfer_params": "text"}:
            made = plan("vllm", APART, CHAT, PROMPT)
            made.hand_over(nothing)
            self.assertEqual(made.main.body, CHAT)

    def test_newer_names_of_the_limit(self):
        body = {"model": "m", "prompt": "a", "max_completion_tokens": 9}
        for kind in "vllm", "pool":
            made = plan(kind, APART, body, PROMPT)
            limits = [made.prefill.body[n] for n in ("max_tokens", "max_completion_tokens")]
            self.assertEqual(limits, [1, 1])
            self.assertEqual(made.main.body["max_completion_tokens"], 9)

    def test_pool(self):
        made = plan("pool", APART, CHAT, PROMPT)
        self.assertEqual((made.before, made.alone), (False, True))
        self.assertEqual(made.main.body, {**CHAT, "kv_transfer_params": {"tarn_tokens": 100}})
        self.assertNotIn("kv_transfer_params", made.prefill.body)
        self.assertEqual((made.prefill.body["max_tokens"], made.prefill.body["stream"]), (1, False))
        main = copy.deepcopy(made.main.body)
        made.hand_over({"kv_transfer_params": {"tarn_tokens": 96}})
        self.assertEqual(made.main.body, main)  # it has been sent

    def test_sglang(self):
        made = plan("sglang", APART, CHAT, PROMPT, bootstrap_port=9000)
        self.assertEqual((made.before, made.alone), (False, False))
        room = made.main.body["bootstrap_room"]
        self.assertTrue(0 <= room < 1 << 63)
        meeting = {"bootstrap_host": "::1", "bootstrap_port": 9000, "bootstrap_room": room}
        self.assertEqual(made.main.body, {**CHAT, **meeting})
        bare = {name: value for name, value in CHAT.items() if name != "stream_options"}
        self.assertEqual(made.prefill.body, {**bare, **meeting, "stream": False})
        again = plan("sglang", APART, CHAT, PROMPT)
        self.assertNotEqual(again.main.body["bootstrap_room"], room)

    def test_sglang_of_several_prompts(self):
        for prompt in ["a", "b", "c"], [[1], [2], [3]], ["a"]:
            body = {"model": "m", "prompt": prompt}
            made = plan("sglang", APART, body, Prompt("m", 9, count=len(prompt)))
            rooms = made.main.body["bootstrap_room"]
            self.assertEqual(len(set(rooms)), len(prompt))
            self.assertEqual(made.main.body["bootstrap_host"], ["::1"] * len(prompt))
            self.assertEqual(made.main.body["bootstrap_port"], [8998] * len(prompt))
        made = plan("sglang", APART, {"model": "m", "prompt": [1, 2]}, PROMPT)
        self.assertIsInstance(made.main.body["bootstrap_room"], int)

    def test_ranks_behind_one_url(self):
        place = Place(Engine("p", P.url, rank=1, model="m"), D, "alone")
        for kind in KINDS:
            made = plan(kind, place, CHAT, PROMPT, ranks=True)
            rank = 1 if kind == "sglang" else None
            self.assertEqual(made.main.body.get("disagg_prefill_dp_rank"), rank)
            self.assertNotIn("disagg_prefill_dp_rank", made.prefill.body)
        made = plan("sglang", place, CHAT, PROMPT)
        self.assertNotIn("disagg_prefill_dp_rank", made.main.body)

    def test_another_kind(self):
        with self.assertRaisesRegex(ValueError, "pool, vllm, sglang"):
            plan("mail", APART, CHAT, PROMPT)


class Answers(unittest.TestCase):
    def test_what_is_not_for_clients(self):
        answer = {"id": "x", "choices": [], "kv_transfer_params": PARAMS}
        self.assertTrue(for_client(answer))
        self.assertEqual(answer, {"id": "x", "choices": []})
        self.assertFalse(for_client(answer))


class Through(GatewayTest):
    """A gateway, of which e0 is to compute the prompt, e1 to decode it; e2 can do both."""

    engines_n = 3
    kind = "pool"
    right = text_of(answer_of(tokens_of("hello there"), 8))

    async def asyncSetUp(self):
        self.options = {"hand_over": self.kind}
        await super().asyncSetUp()
        logging.getLogger("tarn.gateway").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("tarn.gateway").setLevel, logging.NOTSET)
        self.prefill, self.decode, _ = self.engines
        self.router.pairs = (self.prefill.engine, self.decode.engine)
        whole = self.prefill.whole
        self.prefill.whole = lambda *words: {**whole(*words), "kv_transfer_params": PARAMS}

    async def answered(self, stream=True, by=("e1",)):
        """The answer is right, and nothing of the engines' dealings is in it."""
        body = self.completion(stream=stream)
        status, headers, answer = await self.post("/v1/completions", body)
        self.assertEqual(status, 200)
        self.assertIn(headers["X-Tarn-Engine"], by)
        self.assertEqual(said(answer if stream else [answer]), self.right)
        self.assertNotIn("remote_block_ids", str(answer))
        await self.ended()
        for fake in self.engines:
            await until(lambda: fake.under_way == 0)

    def bodies(self):
        return [[body for _, body in fake.seen] for fake in self.engines]


class ThroughVllm(Through):
    kind = "vllm"

    async def test_one_after_the_other(self):
        for stream in True, False:
            await self.answered(stream)
            (request, first), (after, second) = self.prefill.seen.pop(), self.decode.seen.pop()
            self.assertEqual((first["max_tokens"], first["stream"]), (1, False))
            self.assertTrue(first["kv_transfer_params"]["do_remote_decode"])
            self.assertEqual(second["kv_transfer_params"], PARAMS)
            ids = [r.headers["X-Request-Id"] for r in (request, after)]
            self.assertEqual(ids[0], ids[1])

    async def test_the_prefill_fails(self):
        for how in "status 500", "status 503":
            self.prefill.plan = [how]
            await self.answered(by=("e1", "e2"))
        self.assertNotIn("kv_transfer_params", str(self.bodies()[1:]))

    async def test_the_request_is_wrong(self):
        self.prefill.plan = ["status 400 too long"]
        status, _, answer = await self.post("/v1/completions", self.completion())
        self.assertEqual((status, answer["error"]["message"]), (400, "too long"))
        self.assertEqual(self.bodies()[1:], [[], []])
        await self.ended()

    async def test_the_decoder_fails(self):
        self.decode.plan = ["status 500"]
        await self.answered(by=("e0", "e2"))
        self.decode.plan = ["die 3"]
        body = self.completion()
        _, _, chunks = await self.post("/v1/completions", body)
        self.assertEqual(said(chunks), self.right)


class ThroughPool(Through):
    async def test_both_at_once(self):
        self.prefill.plan = ["hang"]
        await self.answered()
        self.assertEqual(self.prefill.cancelled, 1)
        self.assertEqual(self.bodies()[1][0]["kv_transfer_params"], {"tarn_tokens": 2})
        await self.answered(stream=False)

    async def test_the_prefill_fails(self):
        for how in "status 500", "status 400", "die 0":
            self.prefill.plan = [how]
            await self.answered()
        self.assertEqual(self.bodies()[2], [])


class ThroughSglang(Through):
    kind = "sglang"

    async def test_they_meet(self):
        await self.answered()
        (first,), (second,), _ = self.bodies()
        self.assertEqual(first["bootstrap_room"], second["bootstrap_room"])
        self.assertEqual(second["bootstrap_host"], "127.0.0.1")

    async def test_one_of_them_fails(self):
        self.prefill.plan, self.decode.plan = ["status 500"], ["hang 0"]
        await self.answered(by=("e1", "e2"))
        self.assertEqual(self.decode.cancelled, 1)
        self.prefill.plan, self.decode.plan = ["hang"], ["status 500"]
        await self.answered(by=("e0", "e2"))
        self.assertEqual(self.prefill.cancelled, 1)


class Within(unittest.IsolatedAsyncioTestCase):
    async def test_who_is_cancelled_as_the_work_is_done(self):
        """So is the decoder whose prefill fails as it begins to answer."""

        async def work():
            return await done

        for result in 1, None, OSError():
            done = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(within(work(), 60))
            await asyncio.sleep(0.01)
            done.set_exception(result) if isinstance(result, OSError) else done.set_result(result)
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

    async def test_too_late(self):
        with self.assertRaises(asyncio.TimeoutError):
            await within(asyncio.sleep(60), 0.01)
        self.assertEqual(await within(asyncio.sleep(0, 7), None), 7)


if __name__ == "__main__":
    unittest.main()
