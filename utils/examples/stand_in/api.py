"""HTTP as vLLM speaks it: OpenAI's paths, and its own.

The core has a thread of its own; what it makes is collected, and handed to the event loop at most
once per step: first a step's KV events, then its tokens."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections import deque
from types import SimpleNamespace
from typing import Any, AsyncIterator, Callable, Deque, Dict, List, NamedTuple, Optional, Tuple

from aiohttp import web

from .core import Core, Request
from .events import Publisher
from .forms import Bad, Body, Form, Forms
from .metrics import Figures
from .words import END, text_of, tokens_of, word_of

VERSION = "0.11.0+stand-in"
LARGEST_BODY = 32 << 20
LOOK_S = 0.1  # for clients that are gone
GOOD_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def packed(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class Piece(NamedTuple):
    """What came out of a prompt's answer. stop: the string or token that ended it."""

    prompt: int
    text: str
    tokens: List[int]
    reason: Optional[str]
    stop: Any = None


class Answer:
    """The text of one answer, as far as its stop strings let it out."""

    def __init__(self, index: int, form: Form, request: Request) -> None:
        self.index, self.request, self._form = index, request, form
        self.made = 0
        self._text, self._sent = "", 0
        self._held = max(map(len, form.stops), default=1) - 1
        self.over = False

    def take(self, tokens: List[int], reason: Optional[str]) -> Piece:
        self.made += len(tokens)
        stop: Any = None
        ended = reason == "stop"
        if ended and tokens[-1] != END:
            stop = tokens[-1]
        for token in tokens[:-1] if ended and not self._form.keep_stop else tokens:
            self._text += "" if token == END else word_of(token)
        cut = self._stopped()
        if cut is not None:
            reason, (at, stop) = "stop", cut
            self._text = self._text[:at]
        self.over = reason is not None
        end = len(self._text) if self.over else max(self._sent, len(self._text) - self._held)
        text, self._sent = self._text[self._sent : end], end
        return Piece(self.index, text, tokens, reason, stop)

    def _stopped(self) -> Optional[Tuple[int, str]]:
        """Where the text ends because of the first of its stop strings, and that one."""
        best: Optional[Tuple[int, str]] = None
        for stop in self._form.stops:
            at = self._text.find(stop, max(0, self._sent - len(stop)))
            if at >= 0 and (best is None or at < best[0]):
                best = at, stop
        if best is not None and self._form.keep_stop:
            best = best[0] + len(best[1]), best[1]
        return best


class Api:
    """forms: what is served. block: tokens. loras: by name."""

    def __init__(
        self, forms: Forms, figures: Figures, block: int, publisher: Optional[Publisher]
    ) -> None:
        self._forms, self._figures, self._block = forms, figures, block
        self._publisher = publisher
        self.core: Core = None  # type: ignore[assignment]  # made later: it publishes through here
        self._loop = asyncio.get_running_loop()
        self._arrived: Deque[Callable[[], Any]] = deque()
        self._clients: Dict["asyncio.Task[Any]", web.Request] = {}
        self._created = int(time.time())
        self._loras = {
            name: SimpleNamespace(lora_name=name, lora_int_id=i)
            for i, name in enumerate(forms.models)
            if i > 0
        }

    def app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[self._errors])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.completions),
                web.post("/v1/chat/completions/render", self.render),
                web.get("/v1/models", self.models),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.get("/health", self.health),
                web.get("/ping", self.health),
                web.get("/version", self.version),
                web.get("/metrics", self.metrics),
                web.post("/reset_prefix_cache", self.reset),
            ]
        )
        return app

    # --- from the core's thread

    def publish(self, events: List[Dict[str, Any]]) -> None:
        if self._publisher is not None:
            say = self._publisher.publish
            self._hand(lambda: self._loop.create_task(say(events)))

    def _hand(self, call: Callable[[], Any]) -> None:
        self._arrived.append(call)
        if len(self._arrived) == 1:
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError:  # the loop is closed: nobody waits any more
                pass

    def _take(self) -> None:
        while self._arrived:
            self._arrived[0]()
            self._arrived.popleft()

    # --- clients that go

    async def watch(self) -> None:
        """Ends what is done for clients that are gone."""
        while True:
            await asyncio.sleep(LOOK_S)
            for task, request in list(self._clients.items()):
                if request.transport is None or request.transport.is_closing():
                    task.cancel()

    @web.middleware
    async def _errors(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except Bad as error:
            return web.json_response(error.body(), status=error.status)
        except web.HTTPException as error:
            return web.json_response({"detail": error.reason}, status=error.status)

    async def _body(self, request: web.Request) -> Any:
        try:
            return json.loads(await request.read())
        except (ValueError, RecursionError) as error:
            raise Bad(f"the body is no JSON: {error}") from None

    # --- small paths

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def metrics(self, request: web.Request) -> web.Response:
        text = self._figures.text(self.core.pool.counts())
        return web.Response(text=text, content_type="text/plain")

    async def models(self, request: web.Request) -> web.Response:
        base = self._forms.models[0]
        rows = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": base,
                "parent": None if name == base else base,
                "max_model_len": self._forms.length,
            }
            for name in self._forms.models
        ]
        return web.json_response({"object": "list", "data": rows})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = Body(await self._body(request))
        self._forms.model(body)
        if "messages" in body:
            tokens, _ = self._forms.chat_prompt(body)
        else:
            prompt = body.get("prompt", str, "a text")
            if prompt is None:
                raise Bad("prompt or messages: one of them", "prompt")
            tokens = tokens_of(prompt)
        strings = [text_of([t]) for t in tokens] if body.flag("return_token_strs") else None
        length = self._forms.length
        answer = {"count": len(tokens), "max_model_len": length, "tokens": tokens}
        return web.json_response({**answer, "token_strs": strings})

    async def render(self, request: web.Request) -> web.Response:
        """The prompt of a chat, and where its images are. (In vLLM what would be computed, too.)"""
        form = self._forms.answers(await self._body(request), True)
        features = None
        if form.images:
            places = [{"offset": i.start, "length": i.length} for i in form.images]
            names = [i.name for i in form.images]
            features = {"mm_hashes": {"image": names}, "mm_placeholders": {"image": places}}
        answer = {"model": form.model, "token_ids": form.prompts[0], "features": features}
        return web.json_response(answer)

    async def detokenize(self, request: web.Request) -> web.Response:
        body = Body(await self._body(request))
        self._forms.model(body)
        tokens = body.tokens("tokens")
        if tokens is None:
            raise Bad("tokens: it is missing", "tokens")
        return web.json_response({"prompt": text_of(tokens)})

    async def reset(self, request: web.Request) -> web.Response:
        done: "asyncio.Queue[bool]" = asyncio.Queue()
        self.core.clear(lambda good: self._hand(lambda: done.put_nowait(good)))
        return web.Response(status=200 if await done.get() else 503)

    # --- answers

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, False)

    async def _answer(self, http: web.Request, chat: bool) -> web.StreamResponse:
        form = self._forms.answers(await self._body(http), chat)
        given = http.headers.get("X-Request-Id", "")
        name = given if GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        queue: "asyncio.Queue[Tuple[int, List[int], Optional[str]]]" = asyncio.Queue()
        answers = [
            Answer(i, form, self._request(i, prompt, form, name, http, queue))
            for i, prompt in enumerate(form.prompts)
        ]
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = http
        try:
            for answer in answers:
                self.core.add(answer.request)
            shape = Shape(form, f"chatcmpl-{name}" if chat else f"cmpl-{name}", answers)
            pieces = self._pieces(queue, answers)
            if form.stream:
                return await self._stream(http, shape, pieces)
            return web.json_response(shape.whole([piece async for piece in pieces]))
        finally:
            del self._clients[task]
            for answer in answers:
                if not answer.over:
                    self.core.abort(answer.request)

    def _request(
        self, index: int, prompt: List[int], form: Form, name: str, http: web.Request, queue: Any
    ) -> Request:
        def out(request: Request, tokens: List[int], reason: Optional[str]) -> None:
            self._hand(lambda: queue.put_nowait((index, tokens, reason)))

        return Request(
            name,
            prompt,
            self._block,
            out,
            lora=self._loras.get(form.model),
            images=form.images,
            traceparent=http.headers.get("traceparent"),
            **form.options,
        )

    async def _pieces(self, queue: Any, answers: List[Answer]) -> AsyncIterator[Piece]:
        while not all(answer.over for answer in answers):
            index, tokens, reason = await queue.get()
            answer = answers[index]
            if answer.over:
                continue
            piece = answer.take(tokens, reason)
            if answer.over and reason is None:  # a stop string, of which the core knows nothing
                self.core.abort(answer.request, "stop")
            yield piece

    async def _stream(
        self, http: web.Request, shape: "Shape", pieces: AsyncIterator[Piece]
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        response.headers["Cache-Control"] = "no-cache"
        await response.prepare(http)

        async def say(chunks: List[Dict[str, Any]]) -> None:
            await response.write("".join(f"data: {packed(c)}\n\n" for c in chunks).encode())

        try:
            async for piece in pieces:
                await say(shape.chunks(piece))
            await say(shape.last_chunks())
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        except ConnectionResetError:
            pass  # the client is gone
        return response


class Shape:
    """The JSON of answers. answers: one for each prompt."""

    def __init__(self, form: Form, name: str, answers: List[Answer]) -> None:
        self._form, self._answers = form, answers
        self._begun = [False] * len(answers)
        kind = "chat.completion" if form.chat else "text_completion"
        self._head: Dict[str, Any] = {
            "id": name,
            "object": kind,
            "created": int(time.time()),
            "model": form.model,
        }
        chunk = "chat.completion.chunk" if form.chat else kind
        self._chunk_head = {**self._head, "object": chunk}

    def _usage(self, answers: List[Answer], details: bool = True) -> Dict[str, Any]:
        prompt = sum(a.request.num_prompt_tokens for a in answers)
        made = sum(a.made for a in answers)
        usage: Dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + made}
        usage["completion_tokens"] = made
        if details:
            cached = sum(a.request.cached or 0 for a in answers)
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage

    def _prompt_text(self, index: int) -> str:
        return text_of(self._form.prompts[index]) if self._form.echo else ""

    def chunks(self, piece: Piece) -> List[Dict[str, Any]]:
        form, answer = self._form, self._answers[piece.prompt]
        first, self._begun[piece.prompt] = not self._begun[piece.prompt], True
        choice: Dict[str, Any] = {"index": piece.prompt}
        ids: Dict[str, Any] = {"token_ids": piece.tokens} if form.token_ids else {}
        prompt: Dict[str, Any] = {}
        if first and form.token_ids:
            prompt["prompt_token_ids"] = form.prompts[piece.prompt]
        end = {"logprobs": None, "finish_reason": piece.reason, "stop_reason": piece.stop, **ids}
        out: List[Dict[str, Any]] = []
        if form.chat:
            if first:
                delta = {"role": "assistant", "content": ""}
                opening = {**choice, "delta": delta, "logprobs": None, "finish_reason": None}
                out.append({**self._chunk_head, "choices": [opening], **prompt})
            out.append(
                {
                    **self._chunk_head,
                    "choices": [{**choice, "delta": {"content": piece.text}, **end}],
                }
            )
        else:
            text = (self._prompt_text(piece.prompt) if first else "") + piece.text
            out.append({**self._chunk_head, "choices": [{**choice, "text": text, **end, **prompt}]})
        if form.usage_each:
            for chunk in out:
                chunk["usage"] = self._usage([answer], details=False)
        return out

    def last_chunks(self) -> List[Dict[str, Any]]:
        if not self._form.usage:
            return []
        return [{**self._chunk_head, "choices": [], "usage": self._usage(self._answers)}]

    def whole(self, pieces: List[Piece]) -> Dict[str, Any]:
        form = self._form
        choices = []
        for answer in self._answers:
            mine = [p for p in pieces if p.prompt == answer.index]
            text = "".join(p.text for p in mine)
            tokens = [t for p in mine for t in p.tokens]
            choice: Dict[str, Any] = {"index": answer.index}
            if form.chat:
                choice["message"] = {"role": "assistant", "content": text, "tool_calls": []}
            else:
                choice["text"] = self._prompt_text(answer.index) + text
            choice["logprobs"] = None
            choice["finish_reason"], choice["stop_reason"] = mine[-1].reason, mine[-1].stop
            if form.token_ids:
                choice["token_ids"] = tokens
                if not form.chat:
                    choice["prompt_token_ids"] = form.prompts[answer.index]
            choices.append(choice)
        out: Dict[str, Any] = {
            **self._head,
            "choices": choices,
            "usage": self._usage(self._answers),
        }
        out["kv_transfer_params"] = self._answers[0].request.result_params
        if form.chat and form.token_ids:
            out["prompt_token_ids"] = form.prompts[0]
        return out
