"""The program: what it stands on is opened, it listens, serves until a signal comes, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import time
from typing import Any, AsyncIterator, Dict, Optional

import aiohttp
from aiohttp import web

from .handlers import Handlers
from .health import engines_tls
from .means import Means
from .options import Options
from .place import Router
from .prompt import PromptReader
from .upstream import Upstream
from .who import Keys

__all__ = ["Gateway", "serve"]

LOG = logging.getLogger("tarn.gateway")
# vLLM's server closes connections that were idle for 5 s.
KEEP_ENGINE_S = 4.0
KEEP_CLIENT_S = 75.0
LATE_CHECK_S = 1.0


class Gateway:
    """One that listens. port: where."""

    def __init__(self, options: Options, means: Means, handlers: Handlers) -> None:
        self.options, self.means, self.handlers = options, means, handlers
        self.port = 0
        self._idle_since: Dict[Any, float] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, options: Options, router: Router) -> "AsyncIterator[Gateway]":
        """Listens within the block; at its end, requests that are under way have been served.
        OSError, ValueError: an option cannot be kept."""
        keys = Keys(options.keys) if options.keys else None
        async with _session(options) as session:
            reader = PromptReader(session, router.engines, options.tokenizer)
            upstream = Upstream(session, options.limits())
            means = Means(options, router, reader, upstream)
            gateway = cls(options, means, Handlers(means, keys))
            async with gateway._listening():
                yield gateway

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=int(self.options.body_mib * (1 << 20)) or 1 << 40)
        self.handlers.routes(app)
        runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=KEEP_CLIENT_S, handle_signals=False
        )
        await runner.setup()
        assert runner.server is not None
        loop = asyncio.get_running_loop()
        sock = _bound(self.options.host, self.options.port)
        tls = _server_tls(self.options)
        server = await loop.create_server(runner.server, sock=sock, ssl=tls, backlog=1024)
        self.port = sock.getsockname()[1]
        watch = [asyncio.ensure_future(w) for w in (self.handlers.watch(), self._late(runner))]
        try:
            yield
        finally:
            self.handlers.drains = True
            server.close()
            await self.handlers.landed(self.options.drain_s or float("inf"))
            for task in watch:
                task.cancel()
            await runner.cleanup()

    async def _late(self, runner: web.AppRunner) -> None:
        """Closes connections on which no request comes: aiohttp waits for ever for the first one,
        and for the rest of a head. One that had a request before it closes itself, later; here that
        is seen to where half a head keeps it from doing so."""
        while True:
            await asyncio.sleep(LATE_CHECK_S)
            now, seen = time.monotonic(), {}
            for connection in runner.server.connections if runner.server else []:
                if getattr(connection, "_current_request", None) is None:
                    seen[connection] = self._idle_since.get(connection, now)
            self._idle_since = seen
            first_s = self.options.request_s or float("inf")
            for connection, since in seen.items():
                kept = getattr(connection, "_keepalive", False)
                if now - since > (max(first_s, KEEP_CLIENT_S + LATE_CHECK_S) if kept else first_s):
                    connection.force_close()
                    if connection.transport is not None:
                        connection.transport.abort()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=1024)
    sock.setblocking(False)
    return sock


def _server_tls(options: Options) -> Optional[ssl.SSLContext]:
    if not options.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except OSError as e:  # it names no file
        raise OSError(f"--tls-cert, --tls-key: {e}") from None
    return context


def _session(options: Options) -> aiohttp.ClientSession:
    """To engines."""
    tls = engines_tls(options.engine_ca)
    headers = {"Accept-Encoding": "identity"}  # what is said as it comes is not to be compressed
    if options.engine_key_file:
        with open(options.engine_key_file, encoding="utf-8") as f:
            headers["Authorization"] = "Bearer " + f.read().strip()
    connector = aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=KEEP_ENGINE_S)
    return aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=1 << 18,
    )


async def serve(options: Options, router: Router) -> None:
    """Until SIGTERM or SIGINT comes."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with Gateway.open(options, router) as gateway:
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(
            f"ready {'https' if options.tls_cert else 'http'}://{host}:{gateway.port}", flush=True
        )
        await ended.wait()
        LOG.info("a signal came: no new connections, %s s for requests", options.drain_s)
