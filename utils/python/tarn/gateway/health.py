"""Which engines answer, asked by a gateway that nobody tells: /health of each, and /v1/models of
those that were named without their model."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any, Callable, Collection, Dict, List, Optional

import aiohttp

__all__ = ["Health", "engines_tls"]

WAIT_S = 2.0
LATE_MOST = 3  # times in a row that a busy engine may be late
BYTES_MOST = 1 << 20


def engines_tls(ca: str) -> ssl.SSLContext:
    """OSError: the file of --engine-ca cannot be read."""
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as e:  # it names no file
        raise OSError(f"--engine-ca: {e}") from None


class Health:
    """urls: whose. ca: a file with who signs their certificates. key: their API key. on_change:
    called with an URL whose state is another one."""

    def __init__(
        self,
        urls: Callable[[], Collection[str]],
        on_change: Callable[[str], None],
        ca: str = "",
        key: str = "",
    ) -> None:
        self._urls, self._on_change, self._ca, self._key = urls, on_change, ca, key
        self._down: Dict[str, str] = {}  # why
        self._late: Dict[str, int] = {}
        self._session: Optional[aiohttp.ClientSession] = None

    async def start(self) -> None:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        context = engines_tls(self._ca)
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(ssl=context, limit=64),
            timeout=aiohttp.ClientTimeout(total=WAIT_S),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def down(self, url: str) -> str:
        """Why it does not answer; "": it does, or was not asked yet."""
        return self._down.get(url, "")

    def forget(self) -> None:
        self._down.clear()
        self._late.clear()

    async def models(self, url: str) -> List[str]:
        """That it serves, adapters left out; []: it does not say."""
        try:
            found = json.loads(await self._get(url + "/v1/models"))["data"]
            return [str(m["id"]) for m in found if not m.get("parent")]
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, *ODD):
            return []

    async def look(self) -> None:
        """At all of them, once."""
        urls = set(self._urls())
        self._down = {u: why for u, why in self._down.items() if u in urls}
        self._late = {u: n for u, n in self._late.items() if u in urls}
        await asyncio.gather(*map(self._ask, urls))

    async def _ask(self, url: str) -> None:
        before = self.down(url)
        try:
            await self._get(url + "/health")
            self._down.pop(url, None)
            self._late.pop(url, None)
        except asyncio.TimeoutError:
            self._late[url] = self._late.get(url, 0) + 1
            if self._late[url] >= LATE_MOST:
                self._down[url] = f"it does not answer within {WAIT_S:.0f} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._down[url] = str(error) or type(error).__name__
        if bool(before) != bool(self.down(url)):
            self._on_change(url)

    async def _get(self, url: str) -> bytes:
        assert self._session is not None
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}")
            data = bytearray()
            async for part in response.content.iter_any():  # read(n) is what is there already
                data += part
                if len(data) > BYTES_MOST:
                    raise ValueError(f"an answer of more than {BYTES_MOST} bytes")
            return bytes(data)


ODD: Any = (KeyError, TypeError, AttributeError)  # JSON of another form
