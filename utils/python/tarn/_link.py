"""A pool that may be away, for engines that must go on without it.

An engine's connector asks for blocks where a miss is always a good answer, so nothing here raises
once the engine runs: `call` gives the answer that stands for a miss instead. After a failure of the
connection the pool is left alone for a second, then for two, up to half a minute, so that an engine
does not wait for a timeout at every step. What went wrong is logged once per kind, counted in
`troubles`, and logged again only after the pool had been back.

Configuration, from the engine's own first: what the engine hands over, the environment's TARN_URL,
the JSON file that TARN_CONFIG_PATH names, `tarn://127.0.0.1:6479`. Mistakes in it are raised at the
start, where an engine can be stopped."""

from __future__ import annotations

import importlib
import json
import logging
import os
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, TypeVar

from ._breaker import Breaker
from ._distrust import Distrust
from ._figures import Publisher, cluster_of
from .client import Client
from .errors import (
    DONE_BY_OTHERS,
    Closed,
    ConnectionFailed,
    Error,
    InvalidArgument,
    ProtocolError,
    TimedOut,
    done,
    error_of,
    status_name,
)
from .options import number, put_options

T = TypeVar("T")


def optional(module: str, *names: str) -> Optional[Tuple[Any, ...]]:
    """These names of a module of an engine, or None where that engine (or a version that has them)
    is not installed."""
    try:
        found = importlib.import_module(module)
        return tuple(getattr(found, n) for n in names)
    except (ImportError, AttributeError):
        return None


PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 30.0
_PUT_NAMES = ("replicas", "pin", "pin_ms", "ttl_ms", "group", "prefer")
_LOST = (ConnectionFailed, TimedOut, Closed, ProtocolError)
_LOST_STATUSES = tuple(int(c.status) for c in _LOST)


@dataclass(frozen=True)
class Settings:
    """What a connector needs to know: see `settings`."""

    url: str = "tarn://127.0.0.1:6479"
    namespace: str = ""  # put in front of every key
    timeout_ms: int = 0  # of one batch; 0: the client's
    lookup_lease_ms: int = 0  # blocks that a lookup found stay for so long; 0: they may go at once
    client: Mapping[str, Any] = field(default_factory=dict)  # options of tarn.Client
    put: Mapping[str, Any] = field(default_factory=dict)  # options of puts

    def put_options(self) -> Dict[str, Any]:
        """Arguments for `put_from_many` and its sisters."""
        options = dict(self.put)
        if self.timeout_ms:
            options["timeout_ms"] = self.timeout_ms
        return options

    def get_options(self) -> Dict[str, Any]:
        """Arguments for `get_into_many` and its sisters."""
        return {"timeout_ms": self.timeout_ms} if self.timeout_ms else {}


_KINDS: Dict[str, type] = {
    "url": str,
    "namespace": str,
    "timeout_ms": int,
    "lookup_lease_ms": int,
    "client": dict,
    "put": dict,
}


def _settings_checked(given: Mapping[str, Any], where: str) -> Dict[str, Any]:
    chosen: Dict[str, Any] = {}
    for name, value in given.items():
        kind = _KINDS.get(name)
        if kind is None:
            raise InvalidArgument(
                f"{where}: no option is called '{name}': there are {', '.join(_KINDS)}"
            )
        if kind is int:
            value = number(value, f"{where}: '{name}'")
        elif not isinstance(value, kind):
            raise InvalidArgument(
                f"{where}: '{name}' must be of type {kind.__name__}, not {type(value).__name__}"
            )
        chosen[name] = value
    for name in chosen.get("put", {}):
        if name not in _PUT_NAMES:
            raise InvalidArgument(
                f"{where}: no put option is called '{name}': there are {', '.join(_PUT_NAMES)}"
            )
    return chosen


def settings(given: Optional[Mapping[str, Any]], where: str) -> Settings:
    """Settings out of what the engine handed over and the environment; `where` names the former in
    messages.

    InvalidArgument, TypeError: an unknown name, a wrong type or value, a file that cannot be read.
    """
    values: Dict[str, Any] = {}
    path = os.environ.get("TARN_CONFIG_PATH")
    if path:
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError) as e:
            raise InvalidArgument(f"TARN_CONFIG_PATH: {path}: {e}") from None
        if not isinstance(content, dict):
            raise InvalidArgument(f"TARN_CONFIG_PATH: {path}: must hold one JSON object")
        values.update(_settings_checked(content, path))
    if os.environ.get("TARN_URL"):
        values["url"] = os.environ["TARN_URL"]
    if given is not None:
        if not isinstance(given, Mapping):
            raise InvalidArgument(f"{where}: must be an object, not {type(given).__name__}")
        values.update(_settings_checked(given, where))
    chosen = Settings(**values)
    put_options(**chosen.put_options())  # raises what is wrong with their values
    return chosen


class Link:
    """A client that comes and goes. Any thread may use it. It has no thread of its own, but for one
    that connects (and ends when it has tried) when `in_background` says that callers must not wait
    for it."""

    def __init__(
        self, with_settings: Settings, log: logging.Logger, who: str, in_background: bool = False
    ) -> None:
        """Connects, and waits for it. A server that is not there yet is fine; a wrong option or
        password raises."""
        self.settings = with_settings
        self._in_background = in_background
        self.troubles: Dict[str, int] = {}
        self.distrust = Distrust()  # what could not be used: the next put of it replaces it
        self._log, self._who = log, who
        self._told: set[str] = set()
        self._lock = threading.Lock()  # the fields below; never held while a call is under way
        self._connecting = threading.Lock()  # whoever connects; taken without waiting
        self._client: Optional[Client] = None
        self._breaker = Breaker(PAUSE_MIN_S, PAUSE_MAX_S)
        self._closed = False
        self._publisher = Publisher(cluster_of(with_settings.url, with_settings.client))
        self._on_connect: list[Callable[[Client], None]] = []
        try:
            self._connect()
        except _LOST as e:
            self._lost("connect", e)

    @property
    def up(self) -> bool:
        """False while the pool is left alone: calls give what stands for a miss, without
        waiting."""
        return not self._closed and self._breaker.up

    def complain(self, kind: str, text: str) -> None:
        """Counts a trouble; logs it when it is the first of its kind since the pool came (back)."""
        with self._lock:
            self.troubles[kind] = self.troubles.get(kind, 0) + 1
            first = kind not in self._told
            self._told.add(kind)
        if first:
            self._log.warning(
                "%s: %s (%s; more of this kind are only counted)", self._who, text, kind
            )

    def on_connect(self, work: Callable[[Client], None]) -> None:
        """Runs `work` with the client now, if there is one, and with every later one (registering
        memory, say)."""
        with self._lock:
            self._on_connect.append(work)
            client = self._client
        if client is not None:
            self._prepare(client, work)

    def call(self, what: str, work: Callable[[Client], T], otherwise: T) -> T:
        """What `work` gives, or `otherwise` when the pool is away or refuses. Never raises, but for
        being interrupted."""
        client = self._usable()
        if client is None:
            return otherwise
        try:
            result = work(client)
        except _LOST as e:
            self._lost(what, e)
            return otherwise
        except Error as e:
            self._breaker.retry()
            self.complain(f"{what} {e.name}", str(e))
            return otherwise
        except (
            Exception
        ) as e:  # an argument of the engine that was not foreseen: a miss, and a line in the log
            self._breaker.retry()
            self.complain(f"{what} {type(e).__name__}", str(e))
            return otherwise
        self._found()
        return result

    def note(self, what: str, statuses: "list[int]", fine: "tuple[int, ...]" = ()) -> int:
        """Counts and logs the failures among the statuses of a batch; those in `fine` are none.
        Returns how many there are."""
        failed = 0
        for status in statuses:
            if status >= 0 or status in fine:
                continue
            failed += 1
            name = status_name(status)
            self.complain(f"{what} {name}", f"{what} of a block failed with {name}")
        return failed

    def stored(self, what: str, statuses: "list[int]") -> "list[bool]":
        """Which blocks of a put are in the pool, by us or by others; the others are noted."""
        self.note(what, statuses, fine=DONE_BY_OTHERS)
        return [done(status) for status in statuses]

    def whole(
        self, what: str, keys: Sequence[str], got: "list[int]", sizes: Sequence[int], *fine: int
    ) -> "list[bool]":
        """Which blocks of a get came whole; the others are noted, but for statuses in `fine`. What
        is of another size is replaced by the next put of it."""
        self.note(what, got, fine)
        for n, size in zip(got, sizes):
            if 0 <= n != size:
                self.complain("size", f"an object of {n} bytes where a block has {size}: not used")
        return self.distrust.whole(keys, got, sizes)

    def report(self, what: str, status: int) -> None:
        """What became of a call that ran in the background: its status. As `call` would have taken
        it."""
        if status in _LOST_STATUSES:
            self._lost(what, error_of(status, "the pool does not answer"))
        elif status < 0:
            self._breaker.retry()
            self.note(what, [status])
        else:
            self._found()

    def client(self) -> Optional[Client]:
        """A client to use at once, or None while the pool is away. `report` is told what came of
        it, or `unused`."""
        return self._usable()

    def unused(self) -> None:
        """Nothing was asked of the client, or nothing that says whether the pool is there."""
        self._breaker.retry()

    def close(self) -> None:
        """Closes the client; later calls give what stands for a miss. No call may be under way."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _usable(self) -> Optional[Client]:
        if self._closed or not self._breaker.admits():
            return None
        with self._lock:
            if self._closed or self._client is not None:
                return self._client
        if not self._connecting.acquire(blocking=False):
            return None  # another thread is at it
        if self._in_background:
            threading.Thread(target=self._try, name="tarn-connect", daemon=True).start()
            return None
        return self._try()

    def _try(self) -> Optional[Client]:
        """Connects, as whoever holds _connecting, and gives that back."""
        try:
            return self._connect()
        except (
            Exception
        ) as e:  # also a password that was changed meanwhile: the engine runs, so it is only told
            self._lost("connect", e)
        finally:
            self._connecting.release()
        return None

    def _connect(self) -> Client:
        client = Client(self.settings.url, **self.settings.client)
        with self._lock:
            if self._closed:
                client.close()
                raise Closed("closed")
            self._client = client
            prepare = list(self._on_connect)
        for work in prepare:
            self._prepare(client, work)
        self._breaker.retry()  # whoever comes next need not wait for the pause's end
        return client

    def _prepare(self, client: Client, work: Callable[[Client], None]) -> None:
        try:
            work(client)
        except Exception as e:
            self.complain(f"register {type(e).__name__}", str(e))

    def _lost(self, what: str, why: Exception) -> None:
        if self._closed:
            return
        self._breaker.lost()
        self.complain(
            "away",
            f"{what}: {why}: the engine goes on without the pool and tries again now and then",
        )

    @property
    def present(self) -> Optional[Client]:
        """The client, if there is one: for its figures."""
        with self._lock:
            return self._client

    def _found(self) -> None:
        client = self._client
        if client is not None:
            self._publisher.look(client)
        if self._breaker.found():
            with self._lock:
                self._told.clear()
            self._log.info("%s: the pool is back", self._who)
