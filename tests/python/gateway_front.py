"""Engines and a router in the process of a test, which do what the test tells them, and a gateway
between them.

Answers are deterministic: each token depends on all before it, so that whoever goes on with an
answer goes on in the same way."""

import asyncio
import contextlib
import json
import unittest
import zlib

import harness  # noqa: F401  (the paths)
import aiohttp
from aiohttp import web

from tarn.gateway.app import Gateway
from tarn.gateway.options import Options
from tarn.gateway.place import Engine, Nobody, Place

MODEL = "llama"


def tokens_of(text):
    """Words; those that tokens are said as are these tokens again."""
    words = text.split()
    return [
        int(w[1:]) if w[:1] == "w" and w[1:].isdigit() else zlib.crc32(w.encode()) % 9000
        for w in words
    ]


def text_of(tokens):
    return "".join(f" w{t}" for t in tokens)


def next_token(before):
    return zlib.crc32(",".join(map(str, before)).encode()) % 9000


def answer_of(prompt, n):
    made = []
    for _ in range(n):
        made.append(next_token(prompt + made))
    return made


def chat_tokens(messages):
    return [t for m in messages for t in tokens_of(f"{m['role']} {m.get('content') or ''}")]


class FakeEngine:
    """plan: what is done with each request for an answer in turn, then "ok" again:

    ok               it is answered
    die N            the connection breaks after N tokens
    hang N           nothing comes after N tokens
    status N [TEXT]  it is answered so
    raw BYTES        these are the body of a stream
    """

    def __init__(self, name, rank=0, role="both"):
        self.name, self.rank, self.role = name, rank, role
        self.plan, self.seen, self.cancelled = [], [], 0
        self.pace = None  # an asyncio.Semaphore: a token each
        self.holds = ""  # "stop", "character": text comes later than its tokens
        self.late_reason = False  # why it ended comes in a chunk of its own
        self.salt = []  # makes its answers others than everybody else's
        self.tls = None  # an ssl.SSLContext
        self.params = None  # kv_transfer_params of its answers
        self.wide = 0  # characters more of each token's text
        self.under_way = 0
        self.arrived = lambda: 0  # tokens that the gateway has got, of whomever

    async def start(self):
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completion)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", lambda _: web.Response())
        self.runner = web.AppRunner(app, access_log=None)
        await self.runner.setup()
        self.site = web.TCPSite(
            self.runner, "127.0.0.1", 0, shutdown_timeout=0.1, ssl_context=self.tls
        )
        await self.site.start()
        self.port = self.site._server.sockets[0].getsockname()[1]
        url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        self.engine = Engine(self.name, url, self.rank, self.role, MODEL)

    async def stop(self):
        await self.runner.cleanup()

    async def models(self, _):
        card = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [card]})

    async def tokenize(self, request):
        body = await request.json()
        text = body.get("prompt")
        ids = tokens_of(text) if text is not None else chat_tokens(body["messages"])
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 4096})

    async def chat(self, request):
        body = await request.json()
        return await self.serve(request, body, "chat", chat_tokens(body["messages"]))

    async def completion(self, request):
        body = await request.json()
        prompt = body["prompt"]
        prompt = tokens_of(prompt) if isinstance(prompt, str) else prompt
        return await self.serve(request, body, "completion", prompt)

    async def serve(self, request, body, kind, prompt):
        self.seen.append((request, body))
        self.under_way += 1
        try:
            return await self.act(request, body, kind, prompt)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled += 1
            return web.Response()
        finally:
            self.under_way -= 1

    async def act(self, request, body, kind, prompt):
        what, _, rest = (self.plan.pop(0) if self.plan else "ok").partition(" ")
        words = rest.split(" ", 1)
        if what == "status":
            status, text = int(words[0]), words[1] if len(words) > 1 else "no"
            error = {"message": text, "type": "e", "param": None, "code": status}
            return web.json_response({"error": error}, status=status)
        most = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        made = answer_of(self.salt + prompt, most)
        stop = body.get("stop_token_ids") or []
        reason = "length"
        for at, token in enumerate(made):
            if token in stop:
                made, reason = made[: at + 1], "stop"
        head = {"id": f"{kind}-{self.name}", "created": 5, "model": body.get("model")}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(made)}
        usage["total_tokens"] = sum(usage.values())
        if not body.get("stream"):
            if what == "hang":
                await self.until_gone(request)
            if what == "die":
                request.transport.abort()
            answer = self.whole(head, kind, made, reason, usage)
            more = {"kv_transfer_params": self.params} if self.params else {}
            return web.json_response({**answer, **more})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if what == "raw":
            await response.write(rest.encode())
            return response
        before = self.arrived()
        stream = Stream(self, response, body, head, kind, prompt)
        if kind == "chat":
            await stream.role()
        for at, token in enumerate(made):
            if self.pace is not None:
                await self.pace.acquire()
            if what == "die" and at == int(words[0]):
                return await self.die(request, response, before + at)
            if what == "hang" and at == int(words[0]):
                await self.until_gone(request)
            last = at + 1 == len(made) and not self.late_reason
            await stream.token(token, reason if last else None)
            if request.transport is None:
                raise ConnectionResetError
        if what == "die":
            return await self.die(request, response, before + len(made))
        if self.late_reason:
            await stream.say([], "", reason)
        if (body.get("stream_options") or {}).get("include_usage"):
            await stream.write({**head, "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def die(self, request, response, tokens):
        """When all that it sent has arrived: with the connection goes what was not read yet."""
        await until(lambda: self.arrived() >= tokens)
        request.transport.abort()
        return response

    @staticmethod
    async def until_gone(request):
        while request.transport is not None:
            await asyncio.sleep(0.01)
        raise ConnectionResetError

    @staticmethod
    def whole(head, kind, made, reason, usage):
        choice = {"index": 0, "finish_reason": reason, "logprobs": None}
        if kind == "chat":
            choice["message"] = {"role": "assistant", "content": text_of(made)}
        else:
            choice["text"] = text_of(made)
        named = "chat.completion" if kind == "chat" else "text_completion"
        return {**head, "object": named, "choices": [choice], "usage": usage}


class Stream:
    """As vLLM writes it."""

    def __init__(self, engine, response, body, head, kind, prompt):
        self.response, self.body, self.head, self.kind = response, body, head, kind
        self.prompt, self.first, self.engine = prompt, True, engine
        self.text, self.told, self.tokens = "", 0, 0

    async def write(self, chunk):
        named = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        chunk = {**chunk, "object": named}
        await self.response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    async def role(self):
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        told = {"prompt_token_ids": self.prompt} if self.body.get("return_token_ids") else {}
        await self.write({**self.head, **told, "choices": [{**choice, "finish_reason": None}]})

    async def token(self, token, reason):
        self.text += text_of([token]) + "x" * self.engine.wide
        self.tokens += 1
        reach = len(self.text)
        if self.engine.holds == "stop" and not reason:
            reach -= max(map(len, self.body.get("stop") or [" "])) - 1
        if self.engine.holds == "character" and not reason:
            # The text of three tokens comes with the last of them, by their place in the prompt.
            behind = (len(self.prompt) + self.tokens) % 3
            reach = len(self.text.rsplit(" w", behind)[0]) if behind else reach
        text, self.told = self.text[self.told : reach], max(self.told, reach)
        await self.say([token], text, reason)

    async def say(self, tokens, text, reason):
        choice = {"index": 0, "logprobs": None, "finish_reason": reason}
        choice.update({"delta": {"content": text}} if self.kind == "chat" else {"text": text})
        if self.body.get("return_token_ids"):
            choice["token_ids"] = tokens
            if self.first and self.kind == "completion":
                choice["prompt_token_ids"] = self.prompt
        self.first = False
        await self.write({**self.head, "choices": [choice]})


class FakeRouter:
    """Gives places in turn, but not to whom is excluded. live: requests that have one, and whose
    end was not told."""

    def __init__(self):
        self.fakes, self.asks, self.told, self.live = [], [], [], {}
        self.refuse = []  # raised in turn
        self.pairs = None  # (prefill, decode)
        self.turn = 0

    def engines(self):
        return [f.engine for f in self.fakes]

    async def route(self, ask):
        self.asks.append(ask)
        await asyncio.sleep(0)
        if self.refuse:
            error = self.refuse.pop(0)
            if error is not None:
                raise error
        able = [f.engine for f in self.fakes if f.name not in ask.exclude]
        if ask.model != MODEL:
            raise Nobody(f"no engine serves {ask.model}", known=False)
        if not able:
            raise Nobody("none of the engines may serve it", known=True)
        self.live[ask.request] = self.live.get(ask.request, 0) + 1
        if self.pairs is not None and not set(e.id for e in self.pairs) & set(ask.exclude):
            return Place(self.pairs[0], self.pairs[1], "conductor")
        every = self.engines()
        while every[self.turn % len(every)] not in able:
            self.turn += 1
        self.turn += 1
        return Place(every[(self.turn - 1) % len(every)], None, "conductor", (16, 16, 32), 48)

    async def first(self, request):
        self.told.append(("first", request))

    async def done(self, request, output, failed=False, decode=False):
        how = "decode failed" if failed and decode else "failed" if failed else "done"
        self.told.append((how, request, output))
        if self.live.get(request):
            self.live[request] -= 1

    def over(self):
        """One end for each place."""
        return not any(self.live.values())


class GatewayTest(unittest.IsolatedAsyncioTestCase):
    """self.engines, self.router, self.gateway; `options` of the class are the gateway's."""

    engines_n = 2
    options = {}

    async def asyncSetUp(self):
        asyncio.get_running_loop().set_debug(False)
        self.router = FakeRouter()
        for n in range(self.engines_n):
            fake = FakeEngine(f"e{n}")
            await fake.start()
            self.router.fakes.append(fake)
            self.addAsyncCleanup(fake.stop)
        self.engines = self.router.fakes
        self.stack = contextlib.AsyncExitStack()
        options = Options(**{"port": 0, "drain_s": 5.0, **self.options})
        self.gateway = await self.stack.enter_async_context(Gateway.open(options, self.router))
        self.addAsyncCleanup(self.stack.aclose)
        for fake in self.engines:
            fake.arrived = lambda: self.gateway.means.metrics.output._value.get()
        self.http = aiohttp.ClientSession()
        self.addAsyncCleanup(self.http.close)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.gateway.port}"

    async def post(self, path, body, **headers):
        """(status, headers, body): that of JSON is read."""
        data = body if isinstance(body, bytes) else json.dumps(body)
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        async with self.http.post(self.url + path, data=data, headers=headers) as response:
            raw = await response.read()
            if response.content_type == "text/event-stream":
                return response.status, response.headers, events(raw)
            return response.status, response.headers, json.loads(raw)

    async def get(self, path, **headers):
        async with self.http.get(self.url + path, headers=headers) as response:
            return response.status, await response.text()

    async def ended(self):
        """Until of all places the end was told."""
        await until(self.router.over)

    def chat(self, tokens=8, content="hello there", **more):
        messages = [{"role": "user", "content": content}]
        return {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": True, **more}

    def completion(self, tokens=8, prompt="hello there", **more):
        return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": True, **more}


def events(raw):
    """Objects of a stream; the last is "[DONE]" where it was sent."""
    parts = raw.decode().split("\n\n")
    assert parts[-1] == "", parts[-1]
    data = [p[len("data: ") :] for p in parts[:-1]]
    return [d if d == "[DONE]" else json.loads(d) for d in data]


def said(chunks):
    """The text of a stream."""
    choices = [c for e in chunks if e != "[DONE]" for c in e.get("choices", [])]
    return "".join(c.get("text") or (c.get("delta") or {}).get("content") or "" for c in choices)


def reasons(chunks):
    choices = [c for e in chunks if e != "[DONE]" for c in e.get("choices", [])]
    return [c["finish_reason"] for c in choices if c.get("finish_reason")]


async def until(condition, seconds=30):
    for _ in range(seconds * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")
