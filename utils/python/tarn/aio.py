"""The client for asyncio: the same methods as coroutines. The loop is never blocked.

Each method is declared once, in `Client`: name, signature, text. Here stands how it runs without
blocking: gets, puts, look-ups and removals go through a `Queue`, whose eventfd the loop watches
(`like`); what has no form there (ping, prefix_length, views, commands) runs in a few threads of the
client (`in_thread`). Waiting keys cost one small request per tick for all of them together."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Coroutine,
    Iterable,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

from ._lib import status_error, stored, there
from ._trace import forget
from .batch import Batch, Key, Keys, batch_of, encode_key, fetch
from .client import Client, range_memory
from .errors import Closed, Error, InvalidArgument
from .memory import check_range, pin
from .options import PutKeywords, milliseconds
from .queue import Completion, Queue

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec, Unpack

    P = ParamSpec("P")
T = TypeVar("T")
# While keys are waited for, the server is asked about all of them this often: soon at first, then
# less so.
_TICK_MIN_S, _TICK_MAX_S, _TICK_GROWTH = 0.001, 0.02, 1.25


def like(
    declared: Callable[Concatenate[Client, P], T]
) -> Callable[
    [Callable[..., Coroutine[Any, Any, T]]],
    Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
]:
    """Makes a coroutine the method of that name, with its signature and text. What it does not
    name itself it hands on as it came, in **options."""

    def made(coroutine: Any) -> Any:
        functools.update_wrapper(coroutine, declared)
        coroutine.__qualname__ = f"AsyncClient.{declared.__name__}"
        return coroutine

    return made


def in_thread(
    declared: Callable[Concatenate[Client, P], T]
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The method as a coroutine that runs it in one of the client's threads, after the keys have
    come, where there is a wait_ms for them."""

    names = inspect.signature(declared).parameters
    waits = "wait_ms" in names and ("key" in names or "keys" in names)

    async def coroutine(self: AsyncClient, *args: Any, **options: Any) -> T:
        wait_ms = options.pop("wait_ms", 0) if waits else 0
        if wait_ms:
            keys = args[0] if args else options.get("keys", options.get("key"))
            await self._wait_for(_encoded(keys), wait_ms)
        return await self.run(lambda: declared(self._sync(), *args, **options))

    return like(declared)(coroutine)


def _encoded(keys: Any) -> List[bytes]:
    """The bytes of one key or of many."""
    one = isinstance(keys, (str, bytes, bytearray, memoryview))
    return [encode_key(key) for key in ([keys] if one else keys)]


class _Waiter:
    __slots__ = ("missing", "future")

    def __init__(self, keys: Iterable[bytes], future: "asyncio.Future[bool]") -> None:
        self.missing, self.future = set(keys), future


class AsyncClient:
    """A client for one event loop.

        async with tarn.AsyncClient("tarn://127.0.0.1:6479") as client:
            await client.put("key", b"value")
            await client.get("key")

    It connects with its first call (or entering the block). Methods are those of `Client`; data to
    put must not change before the coroutine has ended. One that is cancelled ends when the library
    does not use its memory any more: at once if its turn had not come, otherwise when the operation
    under way has ended, which its timeout bounds. What asks the server of views and writers goes by
    `run`: await client.run(view.renew), await client.run(writer.commit).

    capacity: operations that run or wait at a time; further ones wait for their turn. threads: of
    what does not go through the queue; kv_prefix and kv_get hold one while they wait (wait_ms)."""

    def __init__(
        self,
        url: str = "tarn://127.0.0.1:6479",
        *,
        capacity: int = 1024,
        threads: int = 4,
        **options: Any,
    ) -> None:
        """Does not connect yet. url and options as for Client, but that `workers`, how many
        operations run at a time, is 4."""
        if not isinstance(capacity, int) or not 1 <= capacity <= 65536:
            raise InvalidArgument(f"capacity: 1 to 65536 operations, not {capacity!r}")
        self.url, self._options, self._capacity = url, {"workers": 4, **options}, capacity
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, "tarn")
        self._client: Optional[Client] = None
        self._queue: Optional[Queue] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._opening: "Optional[asyncio.Future[None]]" = None
        self._turns: Optional[asyncio.Semaphore] = None
        self._waiters: Set[_Waiter] = set()
        self._watcher: "Optional[asyncio.Task[None]]" = None
        self._tick = _TICK_MIN_S
        self._guess = 0
        self._closed = False

    # --- opening and closing

    async def _open(self) -> Queue:
        if self._closed:
            raise Closed("this client is closed: open another")
        if self._queue is not None:
            if self._loop is not asyncio.get_running_loop():
                raise Error(
                    "an AsyncClient belongs to the event loop that used it first: open another for"
                    " this one"
                )
            return self._queue
        opening = self._opening
        if opening is None:
            self._loop = asyncio.get_running_loop()
            opening = self._opening = asyncio.ensure_future(self._connect())
        try:
            await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:
                self._opening = None  # the next call tries again
            raise
        if self._queue is None:
            raise Closed("this client was closed while it connected")
        return self._queue

    async def _connect(self) -> None:
        assert self._loop is not None
        client = await self._loop.run_in_executor(
            self._executor, lambda: Client(self.url, **self._options)
        )
        if self._closed:
            client.close()
            return
        queue = client.queue(self._capacity)
        self._turns = asyncio.Semaphore(self._capacity)
        self._client, self._queue = client, queue
        self._loop.add_reader(queue.fd, self._drain)

    async def aclose(self) -> None:
        """Cancels what has not begun and waits for what has, without blocking the loop. May be
        called twice."""
        if self._closed:
            return
        self._closed = True
        if self._opening is not None and not self._opening.done():
            await asyncio.wait([self._opening])
        if self._watcher is not None:
            self._watcher.cancel()
        for waiter in list(self._waiters):
            if not waiter.future.done():
                waiter.future.set_exception(Closed("this client was closed"))
        if self._queue is not None and self._loop is not None:
            self._loop.remove_reader(self._queue.fd)
            dropped = await self._loop.run_in_executor(self._executor, self._queue.close)
            for future in dropped:
                if not future.done():
                    future.set_exception(
                        Closed("this client was closed while the operation was under way")
                    )
        if self._client is not None:
            self._client.close()
        self._executor.shutdown(wait=False)

    @property
    def closed(self) -> bool:
        """Whether calls would raise Closed."""
        return self._closed

    async def __aenter__(self) -> "AsyncClient":
        await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # --- the queue

    def _drain(self) -> None:
        queue = self._queue
        if queue is None or queue.closed:
            return
        for completion in queue.poll(256):
            future = completion.user
            if not future.done():
                future.set_result(completion)

    async def _run(self, submit: Callable[[Queue, Any], int], own_memory: bool) -> Completion:
        """Submits and waits. own_memory: nobody but the library holds the memory, so that a
        cancelled coroutine need not wait."""
        queue = await self._open()
        assert self._turns is not None
        await self._turns.acquire()
        try:
            future: "asyncio.Future[Completion]" = asyncio.get_running_loop().create_future()
            id = submit(queue, future)
        except BaseException:
            self._turns.release()
            raise
        future.add_done_callback(self._turn_over)
        try:
            completion = await asyncio.shield(future)
        except asyncio.CancelledError:
            if not queue.closed:
                queue.cancel(id)
            while not own_memory and not future.done():
                try:
                    await asyncio.shield(future)
                except asyncio.CancelledError:
                    continue
            raise
        if completion.status:
            raise status_error(completion.status)
        return completion

    def _turn_over(self, future: "asyncio.Future[Completion]") -> None:
        if not future.cancelled():
            future.exception()  # seen: who waited for it may have been cancelled
        if self._turns is not None:
            self._turns.release()

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Runs a function, such as a view's `renew`, in one of the client's threads."""
        await self._open()
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: context.run(function, *args)
        )

    def _sync(self) -> Client:
        if self._client is None or self._closed:
            raise Closed("this client is closed: open another")
        return self._client

    # --- waiting

    async def _wait_for(self, keys: Sequence[bytes], wait_ms: int) -> bool:
        """Until all keys are there: True; not within wait_ms: False."""
        await self._open()
        future: "asyncio.Future[bool]" = asyncio.get_running_loop().create_future()
        waiter = _Waiter(keys, future)
        self._waiters.add(waiter)
        self._tick = _TICK_MIN_S
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.ensure_future(self._watch())
        try:
            return await asyncio.wait_for(future, milliseconds(wait_ms, "wait_ms") / 1000)
        except asyncio.TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)

    async def _watch(self) -> None:
        """Asks for all missing keys at once, until nobody waits any more."""
        forget()  # it is done for all who wait, not for whoever came first
        while self._waiters:
            keys = list({k for w in self._waiters for k in w.missing})
            try:
                found = await self._run(lambda q, user: q.exists(keys, user), True)
            except Exception as e:
                for waiter in list(self._waiters):
                    if not waiter.future.done():
                        waiter.future.set_exception(e)
                return
            there = {k for k, status in zip(keys, found.results) if status == 0}
            for waiter in list(self._waiters):
                waiter.missing -= there
                if not waiter.missing and not waiter.future.done():
                    waiter.future.set_result(True)
            await asyncio.sleep(self._tick)
            self._tick = min(self._tick * _TICK_GROWTH, _TICK_MAX_S)

    @like(Client.wait)
    async def wait(self, key: Key, timeout_ms: int) -> bool:
        return await self._wait_for([encode_key(key)], timeout_ms)

    # --- puts

    @like(Client.put)
    async def put(self, key: Key, data: Any, **options: Unpack[PutKeywords]) -> bool:
        return stored((await self._put(batch_of([(key, data)], False), options))[0], status_error)

    @like(Client.put_parts)
    async def put_parts(
        self, key: Key, parts: Iterable[Any], **options: Unpack[PutKeywords]
    ) -> bool:
        return await self.put(key, list(parts), **options)

    @like(Client.put_from)
    async def put_from(
        self, key: Key, address: int, size: int, **options: Unpack[PutKeywords]
    ) -> bool:
        check_range(address, size, "address")
        return stored((await self._put(Batch([key], [address], [size]), options))[0], status_error)

    @like(Client.put_many)
    async def put_many(
        self, pairs: Iterable[Tuple[Key, Any]], **options: Unpack[PutKeywords]
    ) -> List[int]:
        return await self._put(batch_of(pairs, False), options)

    @like(Client.put_from_many)
    async def put_from_many(
        self, keys: Keys, addresses: Sequence[Any], sizes: Any, **options: Unpack[PutKeywords]
    ) -> List[int]:
        return await self._put(Batch(keys, addresses, sizes), options)

    async def _put(self, batch: Batch, options: PutKeywords) -> List[int]:
        done = await self._run(lambda q, user: q.put_batch(batch, user, **options), False)
        return done.results

    # --- gets

    @like(Client.get)
    async def get(self, key: Key, **options: Any) -> Optional[bytes]:
        return (await self.get_many([key], **options))[0]

    @like(Client.get_many)
    async def get_many(self, keys: Keys, *, wait_ms: int = 0, **options: Any) -> Any:
        steps = fetch(keys, self._guess)
        try:
            batch = next(steps)
            while True:
                await self._get(batch, True, wait_ms, **options)
                wait_ms = 0
                batch = steps.send(None)
        except StopIteration as end:
            values, self._guess = end.value
            return values

    @like(Client.get_into)
    async def get_into(
        self, key: Key, buffer: Any, *, offset: int = 0, want: int = 0, **options: Any
    ) -> Optional[int]:
        memory = pin(buffer, True, "buffer")
        batch = Batch([key], [memory.address], [memory.size], [offset], [want], memory)
        result = (await self._get(batch, False, **options))[0]
        return result if there(min(result, 0), status_error) else None

    @like(Client.get_range)
    async def get_range(
        self, key: Key, offset: int, length: int, **options: Any
    ) -> Optional[bytes]:
        memory = range_memory(offset, length)
        got = await self.get_into(key, memory, offset=offset, want=length, **options)
        return None if got is None else bytes(memoryview(memory)[:got])

    @like(Client.get_many_into)
    async def get_many_into(self, pairs: Iterable[Tuple[Key, Any]], **options: Any) -> List[int]:
        return await self._get(batch_of(pairs, True), False, **options)

    @like(Client.get_into_many)
    async def get_into_many(
        self,
        keys: Keys,
        addresses: Sequence[Any],
        sizes: Any,
        *,
        offsets: Optional[Sequence[int]] = None,
        wants: Optional[Sequence[int]] = None,
        **options: Any,
    ) -> List[int]:
        return await self._get(Batch(keys, addresses, sizes, offsets, wants), False, **options)

    async def _get(
        self, batch: Batch, own_memory: bool, wait_ms: int = 0, **options: Any
    ) -> List[int]:
        if wait_ms:
            await self._wait_for(batch.keys.split(), wait_ms)
        await self._run(lambda q, user: q.get_batch(batch, user, **options), own_memory)
        return batch.results()

    # --- look-ups and changes

    @like(Client.exists)
    async def exists(self, key: Key) -> bool:
        return (await self.exists_many([key]))[0]

    @like(Client.exists_many)
    async def exists_many(self, keys: Keys) -> List[bool]:
        done = await self._run(lambda q, user: q.exists(keys, user), True)
        return [status == 0 for status in done.results]

    @like(Client.remove)
    async def remove(self, key: Key) -> bool:
        return await self.remove_many([key]) > 0

    @like(Client.remove_many)
    async def remove_many(self, keys: Keys) -> int:
        return (await self._run(lambda q, user: q.remove(keys, user), True)).done

    # --- in threads

    prefix_length = in_thread(Client.prefix_length)
    prefetch = in_thread(Client.prefetch)
    kv_prefix = in_thread(Client.kv_prefix)
    kv_get = in_thread(Client.kv_get)
    size = in_thread(Client.size)
    sizes = in_thread(Client.sizes)
    set_pin = in_thread(Client.set_pin)
    ping = in_thread(Client.ping)
    view = in_thread(Client.view)
    writer = in_thread(Client.writer)
    register_buffer = in_thread(Client.register_buffer)
    register_dmabuf = in_thread(Client.register_dmabuf)
    unregister_buffer = in_thread(Client.unregister_buffer)
    stats = in_thread(Client.stats)
    histogram = in_thread(Client.histogram)
    figures = in_thread(Client.figures)
    command = in_thread(Client.command)


__all__ = ["AsyncClient"]
