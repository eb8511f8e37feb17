"""Paths of the gateway: from a request of a client to a `Life`, and from what went wrong to an
error as OpenAI's API has it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Iterator, Optional, Set, Tuple, Union

import aiohttp
from aiohttp import web

from .asked import Asked, read_body
from .client import Client, Collected, Streamed, gone_is_cancelled
from .errors import ApiError, PassedOn
from .life import Life
from .means import Means
from .metrics import CONTENT_TYPE_LATEST
from .trace import Trace
from .waits import within
from .who import Keys, Who

__all__ = ["Handlers"]

LOG = logging.getLogger("tarn.gateway")
KINDS = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
WATCH_S = 0.05
OUTCOMES = {400: "refused", 401: "refused", 404: "nobody", 413: "refused", 429: "overloaded"}


class Handlers:
    """drains: it is about to end; requests under way are served, and those of connections that are
    open."""

    def __init__(self, means: Means, keys: Optional[Keys]) -> None:
        self._means, self._keys = means, keys
        self._flights: Set[Flight] = set()
        self.drains = False

    def routes(self, app: web.Application) -> None:
        for path in KINDS:
            app.router.add_post(path, self._serve)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._model)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.middlewares.append(self._errors)

    # --- errors

    @web.middleware
    async def _errors(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Whatever goes wrong before an answer has begun."""
        try:
            response = await handler(request)
        except web.HTTPException as e:
            if e.status < 400:
                raise
            what = {404: f"there is no {request.path}", 405: f"{request.path} has no such method"}
            response = answer_of(ApiError(e.status, what.get(e.status, e.reason)))
        except (ApiError, PassedOn) as e:
            response = answer_of(e)
        except Exception:
            LOG.exception("%s failed", request.path)
            response = answer_of(ApiError(500, "the gateway failed; its log says why"))
        if self.drains:
            response.force_close()
        return response

    # --- requests

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        outcome, metrics = "failed", self._means.metrics
        metrics.in_flight.inc()
        try:
            response, outcome = await self._life(request)
            return response
        except (ApiError, PassedOn, web.HTTPException) as e:
            outcome = OUTCOMES.get(e.status, "refused" if e.status < 500 else "failed")
            raise
        except (asyncio.CancelledError, ConnectionError):
            outcome = "cancelled"
            raise
        finally:
            metrics.in_flight.dec()
            metrics.requests.labels(request.path, outcome).inc()

    async def _life(self, request: web.Request) -> Tuple[web.StreamResponse, str]:
        """The answer, and how it went."""
        who, trace = Who.of(request.headers, self._keys), Trace.of(request.headers)
        asked = Asked.of(KINDS[request.path], read_body(await self._body(request)))
        told = {"X-Request-Id": who.named}
        client: Client = Collected(asked.kind, told)
        if asked.stream:
            client = Streamed(request, told)
        with self._flight(request, client):
            try:
                await Life(self._means, asked, who, trace, client).run()
            except (ApiError, PassedOn) as e:
                if not client.began:
                    e.headers.update(told)
                    raise
                await client.broken(e)
                return client.response(), "broken"
            return client.response(), "ok"

    async def _body(self, request: web.Request) -> bytes:
        try:
            with gone_is_cancelled():
                return await within(request.read(), self._means.options.request_s or None)
        except asyncio.TimeoutError:
            raise ApiError(408, "the body did not come in time") from None
        except (aiohttp.ClientError, web.RequestPayloadError, ValueError) as e:
            raise ApiError(400, f"the body cannot be read: {e}") from None

    @contextlib.contextmanager
    def _flight(self, request: web.Request, client: Client) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        flight = Flight(request, client, task)
        self._flights.add(flight)
        try:
            yield
        finally:
            self._flights.discard(flight)

    async def watch(self) -> None:
        """Ends requests whose client is gone, or takes nothing any more: aiohttp itself tells a
        handler only when it writes."""
        while True:
            await asyncio.sleep(WATCH_S)
            late = time.monotonic() - (self._means.options.client_s or float("inf"))
            for flight in list(self._flights):
                transport, since = flight.request.transport, flight.client.waits_since
                if since is not None and since < late and transport is not None:
                    transport.abort()
                if transport is None or transport.is_closing():
                    flight.task.cancel()

    async def landed(self, most_s: float) -> None:
        """Until nothing is under way, or the time is over; then the rest is cancelled."""
        until = time.monotonic() + most_s
        while self._flights and time.monotonic() < until:
            await asyncio.sleep(WATCH_S)
        tasks = [flight.task for flight in self._flights]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    # --- what else there is

    async def _models(self, request: web.Request) -> web.StreamResponse:
        Who.of(request.headers, self._keys)
        return web.json_response({"object": "list", "data": await self._means.models()})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        Who.of(request.headers, self._keys)
        name = request.match_info["model"]
        for model in await self._means.models():
            if model["id"] == name:
                return web.json_response(model)
        error = f"no engine serves the model {name}"
        raise ApiError(404, error, param="model", code="model_not_found")

    async def _health(self, request: web.Request) -> web.StreamResponse:
        """Where engines are is told to nobody but those who have a key, if there are any."""
        told = {
            "status": "draining" if self.drains else "ok",
            "routed": "alone" if self._means.alone() else "conductor",
            "in_flight": len(self._flights),
        }
        with contextlib.suppress(ApiError):
            if self._keys is not None:
                self._keys.find(request.headers)
            told["engines"] = [dataclasses.asdict(e) for e in self._means.router.engines()]
        return web.json_response(told, status=503 if self.drains else 200)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self._means.metrics.alone.set(self._means.alone())
        text = self._means.metrics.text()
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


@dataclass(frozen=True, eq=False)
class Flight:
    request: web.Request
    client: Client
    task: "asyncio.Task[Any]"


def answer_of(error: Union[ApiError, PassedOn]) -> web.Response:
    return web.Response(
        status=error.status,
        body=error.body(),
        headers={**error.headers, "Content-Type": error.kind or "application/json"},
    )
