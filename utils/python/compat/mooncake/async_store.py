"""The store with coroutines: async_NAME of every method, each in a thread of the loop's default
executor."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from mooncake.store import MooncakeDistributedStore


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """`await store.async_get(key)` and so on."""

    def __getattr__(self, name: str) -> Any:
        method: Any = None if not name.startswith("async_") else getattr(type(self), name[6:], None)
        if name[6:].startswith("_") or not callable(method):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

        @functools.wraps(method)
        async def call(*args: Any, **named: Any) -> Any:
            work = functools.partial(method, self, *args, **named)
            return await asyncio.get_running_loop().run_in_executor(None, work)

        return call
