"""Tokens of prompts, and what blocks depend on beside them: engines that answer anything, bodies
with anything in them, and what the Conductor finds of what vLLM tells."""

import asyncio
import base64
import hashlib
import json
import logging
import os
import struct
import sys
import types
import unittest
from unittest import mock

from harness import ROOT, TarnTest, wait_until
import aiohttp
from aiohttp import web
import msgpack
from tarn.gateway.extras import Span, blocks_extra
from tarn.gateway.members import BadRequest
from tarn.gateway.place import Engine
from tarn.gateway.prompt import PromptReader

sys.path.insert(0, os.path.join(ROOT, "tests", "integration"))
import kv_publisher

RENDER = "/v1/chat/completions/render"
PIXELS = b"pixels"
IMAGE = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64," + base64.b64encode(PIXELS).decode()},
}


def name_of(member, value, how=None):
    return hashlib.sha256(json.dumps([member, value, how], sort_keys=True).encode()).hexdigest()


UUID = name_of("image_url", IMAGE["image_url"])


def chat(*content, **more):
    return {"model": "m", "messages": [{"role": "user", "content": list(content)}], **more}


def text_part(text):
    return {"type": "text", "text": text}


def ids_of(text):
    return [len(word) for word in text.split()]


def entries(extra):
    """EXTRA as {block: keys}."""
    made, at = {}, 0
    while at < len(extra):
        block, n = struct.unpack_from("<II", extra, at)
        made[block] = msgpack.unpackb(extra[at + 8 : at + 8 + n])
        at += 8 + n
    return made


class FakeEngine:
    """answers: of each path, a value, a status, or a function of the body. asked: what any of them
    was asked, in order."""

    def __init__(self, name, asked):
        self.name = name
        self.answers = {"/tokenize": self.tokenize}
        self.asked, self.asked_all = [], asked

    @staticmethod
    def tokenize(body):
        if "prompt" in body:
            ids = ids_of(body["prompt"])
        else:
            ids = [1]
            for message in body["messages"]:
                for part in message["content"]:
                    ids += ids_of(part["text"]) if part["type"] == "text" else [900]
            ids.append(2)
        return {"count": len(ids), "max_model_len": 4096, "tokens": ids}

    async def answer(self, request):
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, body))
        self.asked_all.append((request.path, body))
        answer = self.answers.get(request.path, 404)
        if callable(answer):
            answer = answer(body)
        if answer == "hang":
            await asyncio.sleep(60)
        if answer == "close":
            request.transport.close()
            return web.Response()
        if isinstance(answer, int):
            return web.json_response({"error": {"message": "no"}}, status=answer)
        if isinstance(answer, bytes):
            return web.Response(body=answer, content_type="application/json")
        return web.json_response(answer)

    async def start(self):
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0, shutdown_timeout=0.1)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.engine = Engine(self.name, f"http://127.0.0.1:{port}", model="m")


class Reading(unittest.IsolatedAsyncioTestCase):
    """self.engines: two that are alike, unless a test changes one."""

    blocks = (16, 16)

    async def asyncSetUp(self):
        logging.getLogger("tarn.gateway").setLevel(logging.ERROR)
        self.seen = []
        self.fakes = [FakeEngine("e1", self.seen), FakeEngine("e2", self.seen)]
        self.engines = []
        for fake, block in zip(self.fakes, self.blocks):
            await fake.start()
            self.addAsyncCleanup(fake.runner.cleanup)
            self.engines.append(Engine(fake.name, fake.engine.url, model="m", block=block))
        self.session = aiohttp.ClientSession()
        self.addAsyncCleanup(self.session.close)
        self.reader = self.made()

    def made(self, **options):
        return PromptReader(self.session, lambda: self.engines, **options)

    async def read(self, body, kind=None):
        kind = kind or ("chat" if "messages" in body else "completion")
        prompt, sent = await self.reader.read(kind, body)
        if prompt.tokens is not None:
            self.assertEqual(prompt.length, len(prompt.ids()))
        return prompt, sent

    def asked(self):
        return list(self.seen)

    def answer(self, path, *answers):
        for fake, answer in zip(self.fakes, answers * 2 if len(answers) == 1 else answers):
            fake.answers[path] = answer


class Tokens(Reading):
    async def test_a_text(self):
        prompt, sent = await self.read({"model": "m", "prompt": "a bb ccc"})
        self.assertEqual(prompt.tokens, struct.pack("<3I", 1, 2, 3))
        self.assertEqual((prompt.model, prompt.extra, prompt.lora, prompt.salt), ("m", b"", "", ""))
        self.assertEqual(sent, {"model": "m", "prompt": "a bb ccc"})
        asked = {"model": "m", "prompt": "a bb ccc", "add_special_tokens": True}
        self.assertEqual(self.asked(), [("/tokenize", asked)])
        await self.read({"prompt": "a bb ccc", "add_special_tokens": False})
        self.assertIs(self.asked()[-1][1]["add_special_tokens"], False)

    async def test_ids_need_no_engine(self):
        for prompt, count in ([7, 0xFFFFFFFF], 1), ([[7, 0xFFFFFFFF], [8]], 2):
            read, _ = await self.read({"model": "m", "prompt": prompt})
            self.assertEqual((read.ids(), read.count), ([7, 0xFFFFFFFF], count))
        self.assertEqual(self.asked(), [])

    async def test_of_several_texts_the_first(self):
        prompt, _ = await self.read({"model": "m", "prompt": ["a bb", "ccc"]})
        self.assertEqual((prompt.ids(), prompt.count), ([1, 2], 2))

    async def test_a_chat_is_rendered(self):
        self.answer(RENDER, {"token_ids": [5, 6], "features": None})
        body = chat(
            text_part("hi"),
            tools=[{"type": "function"}],
            chat_template_kwargs={"x": 1},
            temperature=1,
            stream=True,
            cache_salt=None,
        )
        prompt, sent = await self.read(body)
        self.assertEqual(prompt.ids(), [5, 6])
        self.assertIs(sent, body)
        names = ("model", "messages", "tools", "chat_template_kwargs")
        self.assertEqual(self.asked(), [(RENDER, {name: body[name] for name in names})])

    async def test_a_chat_where_nobody_renders(self):
        body = chat(
            text_part("hi you"),
            reasoning_effort="low",
            chat_template_kwargs={"x": 1},
            continue_final_message=True,
            tool_choice="auto",
        )
        prompt, _ = await self.read(body)
        self.assertEqual(prompt.ids(), [1, 2, 3, 2])
        self.assertEqual([path for path, _ in self.asked()], [RENDER, RENDER, "/tokenize"])
        asked = next(asked for path, asked in self.asked() if path == "/tokenize")
        self.assertEqual(asked["chat_template_kwargs"], {"x": 1, "reasoning_effort": "low"})
        self.assertIs(asked["add_generation_prompt"], False)
        self.assertEqual(asked.keys() & {"reasoning_effort", "tool_choice"}, set())
        # That it is not there is remembered.
        await self.read(chat(text_part("you")))
        self.assertEqual(len(self.asked()), 4)

    async def test_the_same_again_asks_nobody(self):
        for body in {"model": "m", "prompt": "a bb"}, chat(text_part("hi")):
            first, _ = await self.read(body)
            n = len(self.asked())
            self.assertEqual((await self.read({**body, "temperature": 2}))[0], first)
            self.assertEqual(len(self.asked()), n)
        self.assertEqual(self.reader.figures.cached, 2)
        await self.read({"model": "m", "prompt": "a bb c"})
        self.assertEqual(len(self.asked()), n + 1)

    async def test_what_is_remembered_is_bounded(self):
        self.reader = self.made(cache_bytes=3 * 208)
        for text in "aa aa", "bb bb", "cc cc", "aa aa", "dd dd", "aa aa":
            await self.read({"model": "m", "prompt": text})
        self.assertEqual(self.reader.figures.cached, 2)
        await self.read({"model": "m", "prompt": "bb bb"})
        self.assertEqual(self.reader.figures.cached, 2)

    async def test_another_engine_is_asked(self):
        bad = [b"no json", b'{"tokens": ', {"tokens": "text"}, {"tokens": [1, "2"]}, [1]]
        bad += [{"tokens": [True]}, {"tokens": [-1]}, {"tokens": [1 << 32]}, {"tokens": [1.5]}, {}]
        for i, answer in enumerate(["close", 500, 404, 503, 429, *bad]):
            with self.subTest(answer=answer):
                self.reader = self.made()
                self.answer("/tokenize", answer, FakeEngine.tokenize)
                prompt, _ = await self.read({"model": "m", "prompt": f"a bb {i}"})
                self.assertEqual(prompt.ids(), [1, 2, len(str(i))])

    async def test_who_failed_is_asked_last(self):
        self.answer("/tokenize", 500, FakeEngine.tokenize)
        for i in range(100):
            await self.read({"model": "m", "prompt": f"a {i}"})
            if self.reader.figures.failed:
                break
        for i in range(8):
            await self.read({"model": "m", "prompt": f"bb {i}"})
        self.assertEqual(self.reader.figures.failed, 1)
        self.assertEqual(len(self.fakes[0].asked), 1)

    async def test_an_engine_that_hangs(self):
        self.reader = self.made(wait_s=0.4)
        self.answer("/tokenize", "hang", FakeEngine.tokenize)
        for i in range(3):
            prompt, _ = await self.read({"model": "m", "prompt": f"a bb {i}"})
            self.assertEqual(prompt.ids(), [1, 2, 1])

    async def test_no_engine_tells(self):
        self.answer("/tokenize", 500)
        with self.assertLogs("tarn.gateway", "WARNING") as logs:
            prompt, _ = await self.read({"model": "m", "prompt": "x" * 400})
            await self.read(chat(text_part("x" * 80), cache_salt="s"))
        self.assertEqual((prompt.length, prompt.tokens, prompt.extra), (100, None, b""))
        self.assertEqual(self.reader.figures.estimated, 2)
        self.assertEqual(len(logs.output), 1)
        # The estimate is as the last prompts were.
        self.answer("/tokenize", {"tokens": [1] * 50})
        await self.read({"model": "m", "prompt": "y" * 400})
        self.answer("/tokenize", 500)
        prompt, _ = await self.read({"model": "m", "prompt": "z" * 800})
        self.assertEqual(prompt.length, 100)

    async def test_what_the_first_does_not_like_is_asked_of_no_other(self):
        self.answer("/tokenize", 400)
        prompt, _ = await self.read({"model": "m", "prompt": "a"})
        self.assertIsNone(prompt.tokens)
        self.assertEqual(len(self.asked()), 1)

    async def test_nobody_is_asked(self):
        self.reader = self.made(tokenizer="none")
        prompt, _ = await self.read(chat(text_part("x" * 400)))
        self.assertIsNone(prompt.tokens)
        self.assertGreater(prompt.length, 100)
        self.assertEqual(self.asked(), [])

    async def test_embeddings(self):
        prompt, _ = await self.read({"model": "m", "prompt_embeds": "AAAA"})
        self.assertEqual((prompt.tokens, prompt.length), (None, 1))


class Wrong(Reading):
    async def test_the_member_is_named(self):
        message = {"role": "user", "content": "hi"}
        for body, param in (
            ({"model": 1, "prompt": "a"}, "model"),
            ({"model": "x" * 129, "prompt": "a"}, "model"),
            ({"model": "\ud800", "prompt": "a"}, "model"),
            ({"model": "m"}, "prompt"),
            ({"model": "m", "prompt": 1}, "prompt"),
            ({"model": "m", "prompt": []}, "prompt"),
            ({"model": "m", "prompt": {}}, "prompt"),
            ({"model": "m", "prompt": [1, "a"]}, "prompt"),
            ({"model": "m", "prompt": [True]}, "prompt"),
            ({"model": "m", "prompt": [-1]}, "prompt"),
            ({"model": "m", "prompt": [1 << 32]}, "prompt"),
            ({"model": "m", "prompt": [1] * ((1 << 20) + 1)}, "prompt"),
            ({"model": "m", "prompt": ["a", 1]}, "prompt[1]"),
            ({"model": "m", "prompt": [None]}, "prompt[0]"),
            ({"model": "m", "prompt": [[1], []]}, "prompt[1]"),
            ({"model": "m", "prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
            ({"model": "m", "prompt": "a", "cache_salt": 7}, "cache_salt"),
            ({"model": "m", "messages": []}, "messages"),
            ({"model": "m", "messages": "hi"}, "messages"),
            ({"model": "m", "messages": [message, 1]}, "messages[1]"),
            ({"model": "m", "messages": [{"content": "hi"}]}, "messages[0].role"),
            ({"model": "m", "messages": [{**message, "content": 1}]}, "messages[0].content"),
            ({"model": "m", "messages": [{**message, "content": [1]}]}, "messages[0].content[0]"),
            (chat({"type": 1}), "messages[0].content[0].type"),
            (
                {
                    "model": "m",
                    "messages": [message],
                    "add_generation_prompt": True,
                    "continue_final_message": True,
                },
                "add_generation_prompt",
            ),
        ):
            with self.subTest(body=str(body)[:80]):
                with self.assertRaises(BadRequest) as caught:
                    await self.read(body)
                self.assertEqual(caught.exception.param, param)

    async def test_nested_deeply(self):
        deep = "x"
        for _ in range(5000):
            deep = [deep]
        for body in chat(text_part("hi"), tools=deep), chat(text_part("hi"), documents=deep):
            with self.assertRaises(BadRequest):
                await self.read(body)

    async def test_which_model(self):
        self.engines.append(Engine("e3", self.engines[0].url, model="another"))
        with self.assertRaises(BadRequest) as caught:
            await self.read({"prompt": "a"})
        self.assertEqual(caught.exception.param, "model")


def by_vllm(block, length, spans, salt, lora=""):
    """Extra keys of each whole block as vLLM makes them: from the tokens, one by one."""
    made = []
    for begin in range(0, length // block * block, block):
        keys = [lora] if lora else []
        for span in spans:
            places = range(span.offset, span.offset + span.length)
            if any(at in places for at in range(begin, begin + block)):
                keys.append([span.identifier, span.offset - begin])
        if salt and begin == 0:
            keys.append(salt)
        made.append(keys or None)
    return made


class Media(Reading):
    async def test_they_get_names(self):
        url = {"type": "image_url", "image_url": {"url": "http://example.invalid/now.png"}}
        named = {**IMAGE, "uuid": "of-the-client"}
        audio = {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(PIXELS).decode(), "format": "wav"},
        }
        odd = [{"type": "image_url", "image_url": 7}, {"type": "video_url"}, {"type": "image_url"}]
        body = chat(text_part("look"), IMAGE, url, named, audio, *odd, text_part("there"))
        before = json.dumps(body)
        _, sent = await self.read(body)
        self.assertEqual(json.dumps(body), before)
        parts = sent["messages"][0]["content"]
        of_audio = name_of("input_audio", audio["input_audio"])
        names = [None, UUID, None, UUID, of_audio, *[None] * 4]
        self.assertEqual([part.get("uuid") for part in parts], names)
        self.assertEqual({**parts[1], "uuid": None}, {**IMAGE, "uuid": None})

    async def test_how_it_is_decoded_is_part_of_the_name(self):
        how = {"video": {"num_frames": 1}}
        _, sent = await self.read(chat(IMAGE, media_io_kwargs=how))
        uuid = sent["messages"][0]["content"][0]["uuid"]
        self.assertEqual(uuid, name_of("image_url", IMAGE["image_url"], how))
        self.assertNotEqual(uuid, UUID)

    async def test_a_client_cannot_give_a_medium_the_name_of_another(self):
        """vLLM would show everybody the first one that came by that name."""
        url = {"type": "image_url", "image_url": {"url": "http://example.invalid/evil.png"}}
        evil = base64.b64encode(b"evil").decode()
        data = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{evil}"}}
        nothing = {"type": "image_url", "image_url": None}
        for part in url, data, nothing:
            _, sent = await self.read(chat({**part, "uuid": UUID}))
            self.assertNotEqual(sent["messages"][0]["content"][0]["uuid"], UUID, part)
        said = []
        for salt in "a", "b", "a":
            _, sent = await self.read({**chat({**url, "uuid": "cat"}), "cache_salt": salt})
            said.append(sent["messages"][0]["content"][0]["uuid"])
        self.assertEqual(said[0], said[2])
        self.assertNotEqual(said[0], said[1])

    async def test_places_that_an_engine_tells(self):
        spans = [Span(5, 20, "a"), Span(25, 3, "b"), Span(28, 30, "a"), Span(70, 2, "c")]
        features = {
            "mm_hashes": {"image": ["a", "b", "c"], "audio": ["a"]},
            "mm_placeholders": {
                "image": [{"offset": s.offset, "length": s.length} for s in spans if s != spans[2]],
                "audio": [{"offset": 28, "length": 30}],
            },
        }
        self.answer(RENDER, {"token_ids": list(range(75)), "features": features})
        prompt, _ = await self.read(chat(IMAGE, cache_salt="salt"))
        self.assertEqual(prompt.length, 75)
        keys = by_vllm(16, 64, spans, "salt")
        made = entries(prompt.extra)
        self.assertEqual([made.get(i) for i in range(4)], keys)

    async def test_places_that_cannot_be(self):
        good = {"offset": 1, "length": 2}
        for hashes, places in (
            (None, None),
            ({"image": ["a"]}, {}),
            ({"image": ["a"]}, {"image": []}),
            ({"image": ["a"]}, {"image": good}),
            ({"image": "a"}, {"image": [good]}),
            ({"image": [1]}, {"image": [good]}),
            ({"image": ["a"]}, {"image": [7]}),
            ({"image": ["a"]}, {"image": [{"offset": 1}]}),
            ({"image": ["a"]}, {"image": [{"offset": -1, "length": 2}]}),
            ({"image": ["a"]}, {"image": [{"offset": 1, "length": 0}]}),
            ({"image": ["a"]}, {"image": [{"offset": 39, "length": 2}]}),
            ({"image": ["a", "b"]}, {"image": [good, {"offset": 2, "length": 1}]}),
        ):
            with self.subTest(hashes=hashes, places=places):
                self.reader = self.made()
                features = {"mm_hashes": hashes, "mm_placeholders": places}
                self.answer(RENDER, {"token_ids": list(range(40)), "features": features})
                prompt, _ = await self.read(chat(text_part("x"), IMAGE))
                self.assertEqual(prompt.ids(), [1, 1, 900, 2])  # of /tokenize

    async def test_where_no_engine_tells_places(self):
        before = [text_part("w " * 39), IMAGE]
        first, _ = await self.read(chat(*before, text_part("what is it?")))
        self.assertEqual(first.ids()[:42], [1] * 40 + [900, 4])
        made = entries(first.extra)
        self.assertEqual(list(made), [2])  # of blocks of 16: 32 to 47
        # The same image, the same beginning.
        again, _ = await self.read(chat(*before, text_part("and what is there?")))
        self.assertEqual(entries(again.extra), made)
        other = {**IMAGE, "image_url": {"url": "data:image/png;base64,AAAA"}}
        another, _ = await self.read(chat(before[0], other, text_part("what is it?")))
        self.assertEqual(list(entries(another.extra)), [2])
        self.assertNotEqual(entries(another.extra), made)

    async def test_more_than_route_takes(self):
        spans = [Span(5, 39000, "x" * 600)]
        place = [{"offset": 5, "length": 39000}]
        features = {"mm_hashes": {"image": ["x" * 600]}, "mm_placeholders": {"image": place}}
        self.answer(RENDER, {"token_ids": [7] * 40000, "features": features})
        prompt, _ = await self.read(chat(IMAGE, cache_salt="s"))
        self.assertGreater(len(blocks_extra(16, 40000, spans, "s")), 1 << 20)
        self.assertEqual(list(entries(prompt.extra)), [0])
        prompt, _ = await self.read(chat(IMAGE, cache_salt="s" * (1 << 20)))
        self.assertEqual((prompt.tokens, prompt.length, prompt.extra), (None, 40000, b""))
        prompt, _ = await self.read({"model": "m", "prompt": [1], "cache_salt": "s" * (1 << 20)})
        self.assertEqual((prompt.tokens, prompt.extra), (None, b""))

    async def test_salts(self):
        body = {"model": "m", "prompt": "a bb", "cache_salt": "salt", "extra_key": "more"}
        prompt, _ = await self.read(body)
        self.assertEqual((entries(prompt.extra), prompt.salt), ({0: ["salt"]}, ""))
        self.reader = self.made()
        self.answer("/v1/models", {"data": [{"id": "m", "owned_by": "sglang"}]})
        prompt, _ = await self.read(body)
        self.assertEqual((prompt.extra, prompt.salt), (b"", "saltmore"))
        prompt, _ = await self.read({**body, "cache_salt": "x" * 129})
        self.assertEqual((prompt.tokens, prompt.length, prompt.salt), (None, 2, ""))

    async def test_adapters(self):
        card = {"object": "model", "owned_by": "vllm"}
        self.answer(
            "/v1/models",
            {
                "data": [
                    {**card, "id": "m", "root": "/models/m", "parent": None},
                    {**card, "id": "nickname", "root": "/models/m", "parent": None},
                    {**card, "id": "adapter", "root": "/loras/a", "parent": "m"},
                    {"id": 7},
                    "text",
                ]
            },
            b"garbage",
        )
        for name, meant in (
            ("adapter", ("m", "adapter")),
            ("nickname", ("m", "")),
            ("m:other", ("m", "other")),
            ("m", ("m", "")),
            ("who", ("who", "")),
            ("who:other", ("who:other", "")),
        ):
            prompt, sent = await self.read({"model": name, "prompt": "a bb"})
            self.assertEqual((prompt.model, prompt.lora), meant)
            self.assertEqual(sent["model"], name)
        prompt, _ = await self.read({"model": "m", "prompt": "a bb", "lora_path": "its"})
        self.assertEqual(prompt.lora, "its")
        asked = {body["model"] for path, body in self.asked() if path == "/tokenize"}
        self.assertEqual(asked, {"adapter", "nickname", "m:other", "m"})
        # Names that nobody knows are looked for once in a while, by each engine.
        self.assertEqual(sum(path == "/v1/models" for path, _ in self.asked()), 2)


class TwoSizes(Reading):
    blocks = (16, 64)

    async def test_no_block_behind_an_image_is_found(self):
        place = [{"offset": 70, "length": 30}]
        features = {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": place}}
        self.answer(RENDER, {"token_ids": list(range(150)), "features": features})
        prompt, _ = await self.read(chat(IMAGE, cache_salt="s"))
        made = entries(prompt.extra)
        self.assertEqual(made[0], ["s"])
        # Block 1: of 16 tokens 16 to 31, of 64 tokens 64 to 127.
        self.assertEqual(list(made), [0, 1])


class Packed(unittest.TestCase):
    def test_as_msgpack_has_it(self):
        """The index hashes what an engine sent, so each value must be in its shortest form."""
        name = "n" * 300
        spans = [Span(i * 400 + 3, 395, name[: 7 * i]) for i in range(40)] + [
            Span(16000, 54000, "")
        ]
        for block, salt in (16, "s" * 31), (256, "s" * 32), (70000, "\N{SNOWMAN}" * 100), (16, ""):
            extra = blocks_extra(block, 70500, spans, salt)
            made, at = {}, 0
            while at < len(extra):
                n, size = struct.unpack_from("<II", extra, at)
                made[n] = extra[at + 8 : at + 8 + size]
                at += 8 + size
            self.assertEqual(list(made), sorted(made))
            keys = by_vllm(block, 70500, spans, salt) if block > 200 else []
            for i, key in enumerate(keys):
                self.assertEqual(made.get(i), msgpack.packb(key) if key else None)
            if not keys:
                self.assertEqual(made, {i: msgpack.packb(k) for i, k in entries(extra).items()})
        self.assertEqual(blocks_extra(16, 100, [], ""), b"")


class Template:
    """Stands in for a tokenizer of transformers."""

    asked = []

    @classmethod
    def from_pretrained(cls, path):
        if path == "missing":
            raise OSError("no such folder")
        return cls()

    def encode(self, text, add_special_tokens):
        return ([1] if add_special_tokens else []) + ids_of(text)

    def apply_chat_template(self, messages, **words):
        Template.asked.append(words)
        if words.get("fail"):
            raise TypeError("what a template does")
        return FakeEngine.tokenize({"messages": messages})["tokens"]


class Own(Reading):
    async def asyncSetUp(self):
        module = types.ModuleType("transformers")
        module.AutoTokenizer = Template
        patched = mock.patch.dict(sys.modules, transformers=module)
        patched.start()
        self.addCleanup(patched.stop)
        Template.asked = []
        await super().asyncSetUp()
        self.reader = self.made(tokenizer="/models/m")

    async def test_the_models_own(self):
        prompt, _ = await self.read({"model": "m", "prompt": "a bb"})
        self.assertEqual(prompt.ids(), [1, 1, 2])
        words = {"x": 1, "tokenize": False, "chat_template": "{{ evil }}"}
        body = chat(text_part("hi"), chat_template_kwargs=words, tools=[{}], reasoning_effort="low")
        prompt, _ = await self.read(body)
        self.assertEqual(prompt.ids(), [1, 2, 2])
        asked = Template.asked[0]
        self.assertEqual((asked["x"], asked["tools"], asked["reasoning_effort"]), (1, [{}], "low"))
        self.assertEqual((asked["tokenize"], asked["chat_template"]), (True, None))
        self.assertEqual(
            (asked["add_generation_prompt"], asked["continue_final_message"]), (True, False)
        )
        prompt, _ = await self.read(chat(text_part("w " * 39), IMAGE))
        self.assertEqual(list(entries(prompt.extra)), [2])
        self.assertEqual(self.asked(), [])

    async def test_what_it_does_not_take(self):
        for more in {"chat_template_kwargs": {"fail": 1}}, {"chat_template": "{{ x }}"}:
            prompt, _ = await self.read(chat(text_part("hi"), **more))
            self.assertIsNone(prompt.tokens)
        self.assertEqual(len(Template.asked), 1)

    async def test_none_to_load(self):
        with self.assertRaisesRegex(ValueError, "no such folder"):
            self.made(tokenizer="missing")
        with mock.patch.dict(sys.modules, transformers=None):
            with self.assertRaisesRegex(ValueError, "transformers"):
                self.made(tokenizer="/models/m")


class Found(TarnTest):
    """What vLLM tells of its blocks is found by what is made here."""

    server_args = ("--loadmodule", "conductor.so")

    def test_images_and_salts(self):
        engine = kv_publisher.Engine((0, 0))
        self.addCleanup(engine.context.destroy, 0)
        client = self.client()
        ports = [f"tcp://127.0.0.1:{port}" for port in (engine.pub_port, engine.router_port)]
        words = ("MODEL", "m", "LORA", "*", "BLOCK", "16", "EVENTS", ports[0], "REPLAY", ports[1])
        client.command("CONDUCTOR.ADD", "e1", "http://e1", *words)
        while engine.subscribers == 0:
            engine.pump(1000)
        spans = [Span(20, 40, "image-" + "x" * 60), Span(64, 130, "b")]
        tokens = [7] * 240
        cases = [("", ""), ("salt", ""), ("salt", "adapter"), ("", "adapter")]
        for i, (salt, lora) in enumerate(cases):
            engine.say(
                {
                    "type": "BlockStored",
                    "block_hashes": [i * 100 + n for n in range(1, 16)],
                    "parent_block_hash": None,
                    "token_ids": tokens,
                    "block_size": 16,
                    "lora_id": None,
                    "medium": "GPU",
                    "lora_name": lora or None,
                    "extra_keys": by_vllm(16, 240, spans, salt, lora),
                }
            )
        blob = struct.pack("<240I", *tokens)

        def hit(spans, salt, lora):
            engine.pump()
            extra = blocks_extra(16, 240, spans, salt)
            words = ["MODEL", "m", "TOKENS", blob, "EXTRA", extra]
            words += ["LORA", lora] if lora else []
            match = client.command("CONDUCTOR.MATCH", *words).split("\n")
            return int(match[match.index("device") + 1]) if "device" in match else 0

        wait_until(lambda: hit(spans, *cases[-1]) == 240, what="the events are there")
        for salt, lora in cases:
            self.assertEqual(hit(spans, salt, lora), 240)
            self.assertEqual(hit([Span(20, 40, "another"), spans[1]], salt, lora), 16)
            self.assertEqual(hit([spans[0], Span(65, 129, "b")], salt, lora), 64)
        self.assertEqual(hit(spans, "pepper", ""), 0)


if __name__ == "__main__":
    unittest.main()
