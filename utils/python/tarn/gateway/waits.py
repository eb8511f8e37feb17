"""Waiting with a limit."""

from __future__ import annotations

import asyncio
from typing import Any, Coroutine, Optional, TypeVar

import aiohttp

__all__ = ["within"]

T = TypeVar("T")


async def within(work: Coroutine[Any, Any, T], seconds: Optional[float]) -> T:
    """Its result; asyncio.TimeoutError. None: without a limit. asyncio.wait_for, before Python
    3.12, keeps it to itself where its caller is cancelled in the moment in which the work is
    done."""
    task = asyncio.get_running_loop().create_task(work)
    left = True
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        left = False
        return task.result()
    finally:
        if left:
            task.add_done_callback(_left)
            task.cancel()


def _left(task: "asyncio.Task[Any]") -> None:
    """Nobody wants its result any more."""
    if not task.cancelled() and task.exception() is None:
        if isinstance(task.result(), aiohttp.ClientResponse):
            task.result().close()
