"""Questions to engines beside their work: small requests over HTTP, in bounded time, whose answers
may be anything."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Mapping, Optional

import aiohttp

from .members import Body

__all__ = ["Answer", "ask"]

# Of a million tokens, with room for what /render says beside them.
_ANSWER_MAX = 64 << 20


@dataclass(frozen=True)
class Answer:
    """status 0: there was none, or none that could be read; `why` says it. value: of the JSON, None
    where it is none."""

    status: int
    value: Any = None
    why: str = ""

    @property
    def good(self) -> bool:
        return self.status == 200

    @property
    def no_such_path(self) -> bool:
        return self.status in (404, 405, 501)


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    body: Optional[Body],
    timeout_s: float,
    headers: Optional[Mapping[str, str]] = None,
) -> Answer:
    """GET where there is no body, else POST. Never raises but for CancelledError."""
    try:
        async with session.request(
            "GET" if body is None else "POST",
            url.rstrip("/") + path,
            json=body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            allow_redirects=False,
        ) as response:
            data = bytearray()
            async for part in response.content.iter_any():
                data += part
                if len(data) > _ANSWER_MAX:
                    return Answer(0, why="its answer is too long")
            return Answer(response.status, _value_of(data), f"status {response.status}")
    except asyncio.TimeoutError:
        return Answer(0, why=f"no answer within {timeout_s:.1f} s")
    except (aiohttp.ClientError, OSError, ValueError) as e:
        return Answer(0, why=str(e) or type(e).__name__)


def _value_of(data: bytearray) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
