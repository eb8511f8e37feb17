"""The pool as an engine wants it: it may be away, and then everything is a miss and nothing waits
long."""

import logging
import socket
import threading
from contextlib import closing, nullcontext
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar

from .._breaker import Breaker
from .._distrust import Distrust
from .._figures import client_counts
from ..conductor import KeysTeller, keys_words
from ..errors import (
    Closed,
    ConnectionFailed,
    Error,
    InvalidArgument,
    PermissionDenied,
    ProtocolError,
    Status,
    TimedOut,
)
from ..kv_groups import KVBoundary, KVGroup, KVParts
from .config import Settings
from .stats import Figures

__all__ = ["Pool"]

log = logging.getLogger("tarn.vllm")
T = TypeVar("T")


def _connect(url: str, **options: Any) -> Any:
    from ..client import Client

    return Client(url, **options)


_TIERS = ("memory", "ssd", "file")


def _copies(client: Any, key: str) -> str:
    """REPLICA LIST's reply, a word a line. The key may have gone, and not everybody may ask."""
    try:
        return str(client.command("REPLICA", "LIST", key))
    except (Closed, ConnectionFailed, ProtocolError, TimedOut):
        raise
    except Error:
        return ""


def _nearest(copies: str) -> str:
    words, found = copies.split("\n"), []
    for i in range(len(words) - 7):
        if words[i] == "tier" and words[i + 6] == "machine" and words[i + 1] in _TIERS:
            far = words[i + 7] != socket.gethostname()
            found.append((_TIERS.index(words[i + 1]), far))
    if not found:
        return ""
    tier, far = min(found)
    return _TIERS[tier] + (" of another machine" if far else "")


class Pool:
    """A client that connects when it is first used. After a failure of the whole call (no server,
    no answer in time) there are only misses for retry_ms; the first failure of a row is logged.
    options: of tarn.Client, which connect makes. All methods may be called from any thread.

    on_connect is called with every new client, e.g. to register memory."""

    def __init__(
        self,
        url: str,
        retry_ms: int,
        options: Optional[Dict[str, Any]] = None,
        connect: Optional[Callable[..., Any]] = None,
    ) -> None:
        self._where = url.rpartition("@")[2]  # a password is nobody's business
        self._url, self._options = url, dict(options or {})
        self._breaker = Breaker(retry_ms / 1000, retry_ms / 1000)
        self._connect = connect or _connect
        self._lock = threading.Lock()
        self.distrust = Distrust()  # what could not be used: the next put of it replaces it
        self._client: Any = None
        self._closed = self._told = False
        self.figures = Figures()  # of all that happens in this process
        self.on_connect: Callable[[Any], None] = lambda client: None

    def check(self) -> None:
        """Raises what is wrong with the configuration: InvalidArgument, PermissionDenied. That
        there is no server is nothing wrong."""
        try:
            self._connect(self._url, **self._options).close()
        except (InvalidArgument, PermissionDenied):
            raise
        except (Error, OSError) as error:
            self._failed(error)

    def another(self, timeout_ms: int) -> Any:
        """A client of the caller's own, for calls that take longer. He closes it and takes what it
        raises."""
        return self._connect(self._url, **dict(self._options, timeout_ms=timeout_ms))

    def teller(
        self, settings: Settings, groups: Sequence[KVGroup], unit: int, align: int
    ) -> KeysTeller:
        """Tells the Conductor how these are called. He who asks for it closes it."""
        words = keys_words(groups, unit, align, revision=settings.revision)
        return KeysTeller(
            partial(self.another, settings.timeout_ms), settings.conductor, words, log
        )

    @property
    def away(self) -> bool:
        """Did a call fail less than retry_ms ago, or is another just trying again?"""
        return not self._breaker.up

    def _use(self) -> Any:
        with self._lock:
            if self._closed:
                return None
            if self._client is None:
                self._client = self._connect(self._url, **self._options)
                self.figures.follow(partial(client_counts, self._client))
                self.on_connect(self._client)
            return self._client

    def _failed(self, error: Exception) -> None:
        self.figures.count(failed_calls=1)
        if self._breaker.lost():
            self.figures.count(pool_lost=1)
            log.warning("the pool at %s is away, going on without it: %s", self._where, error)

    def _refused(self, error: Exception) -> None:
        """An argument of the engine's that was not foreseen: only this call is a miss."""
        self.figures.count(failed_calls=1)
        with self._lock:
            told, self._told = self._told, True
        self._breaker.retry()  # which says nothing about the server
        if not told:
            log.error("the pool does not take a call (more of them are only counted): %s", error)

    def _call(self, what: Callable[[Any], T], otherwise: T, timed: str = "") -> T:
        """timed: which of TIMES it is."""
        if self._closed:
            return otherwise
        if not self._breaker.admits():
            self.figures.count(skipped_calls=1)
            return otherwise
        try:
            client = self._use()
        except (Error, OSError) as error:
            self._failed(error)
            return otherwise
        if client is None:
            return otherwise
        try:
            with self.figures.timing(timed) if timed else nullcontext():
                result = what(client)
        except InvalidArgument as error:
            self._refused(error)
            return otherwise
        except (Error, OSError) as error:
            self._failed(error)
            return otherwise
        if self._breaker.found():
            self.figures.count(pool_back=1)
            log.warning("the pool at %s is back", self._where)
        return result

    def prefix(self, keys: Sequence[str], lease_ms: int, timeout_ms: int, **hints: Any) -> int:
        """How many leading keys are readable; 0 when the pool is away."""
        return self._call(
            lambda c: int(c.prefix_length(keys, lease_ms=lease_ms, timeout_ms=timeout_ms, **hints)),
            0,
            "lookup",
        )

    def kv_prefix(
        self, hashes: Sequence[bytes], groups: Sequence[KVGroup], **options: Any
    ) -> KVBoundary:
        """The longest prefix that all KV groups have; 0 tokens when the pool is away."""
        nothing = KVBoundary(0, (KVParts(),) * len(groups))
        return self._call(
            lambda c: KVBoundary(*c.kv_prefix(hashes, groups, **options)), nothing, "lookup"
        )

    def prefetch(self, keys: Sequence[str]) -> None:
        """These will be read soon. Nothing happens unless the pool is there, and nothing but the
        pool's own refusal is raised: PermissionDenied; ProtocolError of a server from before."""
        with self._lock:
            client = None if self._closed or self.away else self._client
        try:
            if client is not None:
                client.prefetch(keys)
        except (ConnectionFailed, TimedOut, Closed, OSError):
            pass  # the next look-up will notice

    def tier(self, key: str) -> str:
        """Where the nearest copy of a value is: memory, ssd or file, and whether on another
        machine; "" if that is not known."""
        return _nearest(self._call(lambda c: _copies(c, key), ""))

    def get(
        self, keys: Sequence[str], addresses: Sequence[Any], sizes: Sequence[Any], **options: Any
    ) -> List[int]:
        """Per key: bytes, or a negative status."""
        missing = [int(Status.ECLOSED)] * len(keys)
        results = self._call(
            lambda c: list(c.get_into_many(keys, addresses, sizes, **options)), missing, "load"
        )
        got = [size for size in results if size >= 0]
        self.figures.count(
            loaded_objects=len(got), loaded_bytes=sum(got), missed_objects=len(keys) - len(got)
        )
        return results

    def put(
        self,
        keys: Sequence[str],
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        options: Dict[str, Any],
    ) -> List[int]:
        """Per key: 0, or a negative status."""
        failed = [int(Status.ECLOSED)] * len(keys)
        return self._call(
            lambda c: list(self.distrust.put(c.put_from_many, keys, addresses, sizes, **options)),
            failed,
            "save",
        )

    def command(self, timeout_ms: int, *words: str) -> Optional[str]:
        """Any command of the server's, on a connection of its own; None when the pool is away."""

        def ask(_: Any) -> str:
            with closing(self.another(timeout_ms)) as client:
                return str(client.command(*words))

        return self._call(ask, None)

    def close(self) -> None:
        with self._lock:
            client, self._client, self._closed = self._client, None, True
        if client is not None:
            client.close()
