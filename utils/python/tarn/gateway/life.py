"""A request's life: its prompt is read, a place is asked for, it is sent there, and the answer is
handed on; where an engine fails, it goes on elsewhere.

    read ─> route ─> send ─> first token ─> ... ─> end      first, done: told to the router
              ^        │           │
              │     failed: nothing was sent yet: again, without that engine
              └────────┴───────────┘ in mid-stream: from the tokens that were sent (stream.py)

However it ends, of each place that was given the router is told once that it is over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, AsyncIterator, Dict, List, Mapping, Optional

import aiohttp

from .asked import Asked
from .client import Client, encode
from .errors import ApiError, EngineFailed, PassedOn
from .handover import Leg, Plan, for_client, plan
from .means import Means
from .place import Ask, Engine, Nobody, Overloaded, Place
from .prompt import Prompt
from .sent import CannotContinue
from .stream import Transcript
from .trace import Trace
from .upstream import drained, events_of, object_of
from .who import Who

__all__ = ["Life"]

LOG = logging.getLogger("tarn.gateway")
EXCLUDE_MOST = 16  # as CONDUCTOR.ROUTE has it
RETRY_MOST_S = 5.0
DONE = b"[DONE]"


class Life:
    """run ends with the answer handed on, or raises ApiError or PassedOn before anything was sent;
    what goes wrong later is told in the stream."""

    def __init__(self, means: Means, asked: Asked, who: Who, trace: Trace, client: Client) -> None:
        self.means, self.asked, self.who, self.client = means, asked, who, client
        self._trace = trace
        self._began = time.monotonic()
        self._last = 0.0  # when the last piece came
        self._transcript = Transcript(asked, who.request)
        self._excluded: List[str] = []
        self.failures = 0  # since something came
        self._tried = 0
        self._continues: Optional[Dict[str, Any]] = None  # the body of who goes on
        self._prompt: Prompt
        self._body: Dict[str, Any]

    @property
    def output(self) -> int:
        """Tokens that came."""
        return self._transcript.output

    async def run(self) -> None:
        self._prompt, self._body = await self.means.read(self.asked, self._trace.child())
        self.means.metrics.prompt.inc(self._prompt.length)
        while True:
            place = await self._route()
            told = _Told(self.means, self.who.request, self._transcript.output)
            try:
                await self._serve(place, told)
                return
            except EngineFailed as e:
                told.failed, told.decode = e.blame, e.engine != place.prefill.id
                self._failed(e)
            finally:
                await told.over(self._transcript.output)
            if self._transcript.done():
                await self._end()
                return
            if not await self._go_on():
                return

    # --- where

    async def _route(self) -> Place:
        """ApiError: there is no place. What has begun is not refused for its times: they are kept,
        or not, already."""
        for tries_left in range(self.means.options.attempts, -1, -1):
            try:
                place = await self.means.router.route(self._ask())
                break
            except Nobody as e:
                if self._excluded and e.known:
                    self._excluded.clear()  # rather one that has failed than none
                    continue
                error, wait_s = _nobody(e), 1.0
            except Overloaded as e:
                error = ApiError(429, str(e), code="overloaded", retry_s=e.after_s or None)
                wait_s = e.after_s
            except ValueError as e:
                raise ApiError(400, str(e)) from None
            if not self._transcript.began or not tries_left:
                raise error
            await asyncio.sleep(min(max(wait_s, 0.05), RETRY_MOST_S))
        self.means.metrics.routed.labels(place.by).inc()
        if not self._tried:
            self.means.metrics.hit(place.hit, place.pool)
        self._tried += 1
        return place

    def _ask(self) -> Ask:
        p, who, begun = self._prompt, self.who, self._transcript.began
        most = self.asked.max_tokens
        left = None if most is None else max(1, most - self._transcript.output)
        return Ask(
            request=who.request,
            model=p.model,
            length=p.length,
            tokens=p.tokens,
            extra=p.extra,
            lora=p.lora,
            salt=p.salt,
            output=self.means.expected(left, bool(self.asked.body.get("ignore_eos"))),
            session=who.session,
            tenant=who.tenant,
            priority=who.priority,
            ttft_ms=None if begun else who.ttft_ms,
            tbt_ms=None if begun else who.tbt_ms,
            exclude=tuple(self._excluded),
        )

    def _failed(self, failed: EngineFailed) -> None:
        """Notes it; raises what the client is told where it was the last attempt."""
        self.means.metrics.failures.inc()
        LOG.warning(
            "request %s (trace %s): engine %s: %s",
            self.who.request,
            self._trace.trace,
            failed.engine,
            failed,
        )
        self.failures += 1
        if failed.engine not in self._excluded:
            self._excluded = [*self._excluded, failed.engine][-EXCLUDE_MOST:]
        if self.failures >= self.means.options.attempts and not self._transcript.done():
            if failed.passed is not None:
                raise failed.passed
            text = f"{self.failures} engines failed the request, the last one: {failed}"
            raise ApiError(502, text, code="engines_failed")

    async def _go_on(self) -> bool:
        """Makes ready what another engine is sent. False: the answer is whole."""
        t = self._transcript
        if not t.content:
            self.means.metrics.retries.inc()
            t.anew()
            self._continues = None
            return True
        if not t.prompt_ids:
            t.prompt_ids = self._prompt.ids()
        try:
            body = t.resume(await self.means.room(self._prompt.model, self._excluded))
        except CannotContinue as e:
            text = f"the engine failed in mid-answer, and no other can go on with it: {e}"
            raise ApiError(502, text, code="answer_broken") from None
        self.means.metrics.resumes.inc()
        if body is None:
            await self._send(t.ends())
            await self._end()
            return False
        body = {**body, "model": self._body.get("model", self._prompt.model)}
        self._continues = body
        self._prompt = self.means.continued(self._prompt, body["prompt"])
        return True

    # --- there

    async def _serve(self, place: Place, told: "_Told") -> None:
        body = self._continues or self._body
        streams = self.asked.stream or self._continues is not None or not self.asked.whole()
        body = self._streamed(body) if streams else body
        path = "/v1/completions" if self._continues is not None else self.asked.path
        options = self.means.options
        ranks = self.means.several_ranks(place.prefill)
        made = plan(
            options.hand_over,
            place,
            body,
            self._prompt,
            options.bootstrap_port,
            ranks,
            self.who.conversation,
        )
        sending = _Sending(self, made, path)
        self._transcript.engine = place.answers.id
        async with sending.answer(streams) as response:
            if streams:
                await self._stream(place, response, told)
            else:
                await self._whole(place, response, told)

    def _streamed(self, body: Mapping[str, Any]) -> Dict[str, Any]:
        """What an engine is asked for, whatever the client has asked for: usage, and token ids."""
        options = body.get("stream_options")
        options = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        made = {**body, "stream": True, "stream_options": options}
        return {**made, "return_token_ids": True} if self.asked.takes_ids else made

    def headers(self, engine: Engine) -> Dict[str, str]:
        """For a request to an engine."""
        made = {**self._trace.child(), "X-Request-Id": self.who.request}
        if self.means.several_ranks(engine):
            made["X-data-parallel-rank"] = str(engine.rank)
        return made

    def _told_client(self, place: Place) -> Dict[str, str]:
        made = {"X-Tarn-Engine": place.answers.id, "X-Tarn-Routed": place.by}
        made["X-Tarn-Request"] = self.who.request
        made["X-Tarn-Hit-Tokens"] = str(max(*place.hit, place.pool))
        return {**made, "X-Tarn-Prefill": place.prefill.id} if place.decode else made

    async def _stream(self, place: Place, response: aiohttp.ClientResponse, told: "_Told") -> None:
        t, engine = self._transcript, place.answers
        headers = self._told_client(place)
        size, most = 0, self.means.upstream.limits.answer_bytes
        async for data in events_of(self.means.upstream, engine, response):
            if data == DONE:
                break
            size += len(data)
            if size > most and not self.asked.stream:  # it is kept here, to its end
                text = f"an answer of more than {most} bytes that is not streamed"
                raise ApiError(502, text, code="answer_too_long")
            chunk = object_of(engine.id, data)
            self._check_error(engine, chunk)
            for_client(chunk)
            before = t.output
            try:
                made = t.feed(chunk)
            except CannotContinue as e:
                text = f"another engine went on otherwise: {e}"
                raise ApiError(502, text, code="answer_broken") from None
            if t.output > before:
                await self._came(told, t.output - before)
            if made is not None:
                await self._send(made, headers)
        if not t.done():
            raise EngineFailed(engine.id, "its stream ended before the answer")
        await self._end()
        await drained(response)

    def _check_error(self, engine: Engine, chunk: Dict[str, Any]) -> None:
        error = chunk.get("error")
        if error is None:
            return
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, int) and 400 <= code < 500 and code not in (404, 408, 429):
            raise PassedOn(code, encode({"error": error}), "application/json")
        raise EngineFailed(engine.id, f"an error in its stream: {str(error)[:300]}")

    async def _came(self, told: "_Told", tokens: int) -> None:
        """A piece of the answer is there."""
        now, metrics = time.monotonic(), self.means.metrics
        metrics.output.inc(tokens)
        if self._last:
            metrics.tbt.observe(now - self._last)
        else:
            metrics.ttft.observe(now - self._began)
        self._last, self.failures = now, 0
        await told.first()

    async def _send(
        self, chunk: Dict[str, Any], headers: Optional[Mapping[str, str]] = None
    ) -> None:
        await self.client.send(chunk, headers or {})

    async def _end(self) -> None:
        wants = self.asked.usage or not self.asked.stream
        self.means.learn(self._transcript.output)
        await self.client.end(self._transcript.last() if wants else None)

    async def _whole(self, place: Place, response: aiohttp.ClientResponse, told: "_Told") -> None:
        """An answer that no other engine could go on with, and that is not streamed: it comes, or
        it is asked for elsewhere."""
        engine = place.answers
        answer = object_of(engine.id, await self.means.upstream.whole(engine, response))
        self._check_error(engine, answer)
        if not isinstance(answer.get("choices"), list):
            raise EngineFailed(engine.id, "an answer without choices")
        for_client(answer)
        usage = answer.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        self._transcript.output = tokens if isinstance(tokens, int) and tokens >= 0 else 0
        await self._came(told, self._transcript.output)
        self.means.learn(self._transcript.output)
        await self.client.whole(answer, self._told_client(place))


class _Told:
    """What the router is told of one place that it gave. failed: it was, by who decodes, where that
    is another engine (decode). The router keeps nobody waiting, so it hears of what was cancelled,
    too."""

    def __init__(self, means: Means, request: str, output: int) -> None:
        self._means, self._request, self._before = means, request, output
        self._began = False
        self.failed, self.decode = False, False

    async def first(self) -> None:
        if not self._began:
            self._began = True
            await self._means.tell(self._means.router.first(self._request))

    async def over(self, output: int) -> None:
        made, router = max(0, output - self._before), self._means.router
        decode = self.failed and self.decode
        await self._means.tell(router.done(self._request, made, self.failed, decode))


class _Sending:
    """A request that goes to one engine, or to two: main's answer is the client's."""

    def __init__(self, life: Life, made: Plan, path: str) -> None:
        self._life, self._plan, self._path = life, made, path
        self._upstream = life.means.upstream
        self._beside_failed: Optional[EngineFailed] = None
        self._output = life.output

    @contextlib.asynccontextmanager
    async def answer(self, streams: bool) -> AsyncIterator[aiohttp.ClientResponse]:
        """Of main. Where both must do it, EngineFailed of the other one may be raised within the
        block, too."""
        made, self._task = self._plan, _current()
        beside: Optional["asyncio.Task[None]"] = None
        if made.prefill is not None and made.before:
            await self._prefill(made.prefill)
        elif made.prefill is not None:
            beside = asyncio.ensure_future(self._beside(made.prefill))
        try:
            async with self._post(made.main, streams) as response:
                yield response
        except asyncio.CancelledError:
            if self._beside_failed is None:
                raise
            getattr(self._task, "uncancel", int)()  # Python 3.11 counts
            raise self._beside_failed from None
        finally:
            if beside is not None:
                beside.cancel()

    def _post(
        self, leg: Leg, streams: bool
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        limits = self._upstream.limits
        first_s = limits.first_s if streams else limits.answer_s
        headers = self._life.headers(leg.engine)
        return self._upstream.post(leg.engine, self._path, encode(leg.body), headers, first_s)

    async def _prefill(self, leg: Leg) -> None:
        async with self._post(leg, False) as response:
            raw = await self._upstream.whole(leg.engine, response)
        self._plan.hand_over(object_of(leg.engine.id, raw))

    async def _beside(self, leg: Leg) -> None:
        """At the same time as main, which is stopped where it cannot do it alone, and where it has
        yet to begin: elsewhere it begins sooner than alone. If that fails, too, it is alone."""
        try:
            await self._prefill(leg)
        except (EngineFailed, PassedOn) as e:
            engine = leg.engine.id
            failed = e if isinstance(e, EngineFailed) else EngineFailed(engine, str(e), False)
            begins = self._life.output == self._output and self._life.failures == 0
            if self._plan.alone and not (begins and failed.blame):
                LOG.warning("prefill on engine %s failed: %s", engine, failed)
                self._life.means.metrics.failures.inc()
            else:
                self._beside_failed = failed
                self._task.cancel()


def _current() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


def _nobody(error: Nobody) -> ApiError:
    if error.known:
        return ApiError(503, str(error), code="no_engine", retry_s=1)
    return ApiError(404, str(error), param="model", code="model_not_found")
