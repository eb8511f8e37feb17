"""The classes of LMCache that ours derive from, or plain ones where it is not installed: then
everything here can still be imported, and driven by tests or by other engines that speak the same
interface."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple


def _lmcache(*places: str) -> Any:
    """What is at the first of these "module:name" that this version of LMCache has; None: at
    none."""
    for place in places:
        module, name = place.split(":")
        try:
            return getattr(importlib.import_module("lmcache." + module), name)
        except (ImportError, AttributeError):
            continue
    return None


class PlainConnectorAdapter:
    """Stands for LMCache's."""

    def __init__(self, schema: str = "") -> None:
        self.schema = schema


class PlainRemoteConnector:
    """Stands for LMCache's."""


class PlainL2Adapter:
    """Stands for LMCache's: listeners hear of keys that are stored, read and deleted."""

    def __init__(self) -> None:
        self._listeners: List[Any] = []

    def register_listener(self, listener: Any) -> None:
        """`listener` has on_l2_keys_stored(keys, sizes), on_l2_keys_accessed(keys),
        on_l2_keys_deleted(keys)."""
        self._listeners.append(listener)

    def _notify_keys_stored(self, keys: List[Any], sizes: List[int]) -> None:
        for listener in self._listeners:
            listener.on_l2_keys_stored(keys, sizes)

    def _notify_keys_accessed(self, keys: List[Any]) -> None:
        for listener in self._listeners:
            listener.on_l2_keys_accessed(keys)

    def _notify_keys_deleted(self, keys: List[Any], sizes: List[int]) -> None:
        for listener in self._listeners:
            listener.on_l2_keys_deleted(keys)


class PlainBitmap:
    """A bit per key, with the methods of LMCache's that callers of a lookup or a load use."""

    def __init__(self, size: int) -> None:
        self._bits = [False] * size

    def set(self, i: int) -> None:
        """Sets bit i."""
        self._bits[i] = True

    def test(self, i: int) -> bool:
        """Whether bit i is set."""
        return self._bits[i]

    def popcount(self) -> int:
        """How many are set."""
        return sum(self._bits)

    def count_leading_ones(self) -> int:
        """How many are set before the first that is not."""
        return self._bits.index(False) if False in self._bits else len(self._bits)

    def __len__(self) -> int:
        return len(self._bits)


class PlainStoreResult(int):
    """How a store ended: bytes that were sent, -1: it failed."""

    def __new__(cls, success: bool, bytes_transferred: int) -> "PlainStoreResult":
        return super().__new__(cls, bytes_transferred if success else -1)

    def is_successful(self) -> bool:
        """Whether all of it is stored."""
        return int(self) >= 0

    def bytes_transferred(self) -> int:
        """Bytes that were sent."""
        return max(0, int(self))


class PlainUsage(NamedTuple):
    """What an adapter uses of what there is, in bytes."""

    total_bytes_used: int
    total_capacity_bytes: int
    bytes_by_cache_salt: Mapping[str, int]

    @property
    def usage_fraction(self) -> float:
        """0 to 1; -1: there is no capacity to compare with."""
        return (
            self.total_bytes_used / self.total_capacity_bytes
            if self.total_capacity_bytes > 0
            else -1.0
        )


class PlainKeyEntry(NamedTuple):
    """A key, in its JSON form where it has one, and the bytes of its value."""

    key: Any
    size_bytes: int


class PlainKeyPage(NamedTuple):
    """Some of the keys, and where to go on; None: these were the last."""

    entries: Tuple[Any, ...]
    next_page_token: Optional[str]


_connector = "v1.storage_backend.connector"
_adapters = "v1.distributed.l2_adapters.base"

ConnectorAdapter: Any = _lmcache(f"{_connector}:ConnectorAdapter") or PlainConnectorAdapter
RemoteConnector: Any = (
    _lmcache(f"{_connector}.base_connector:RemoteConnector") or PlainRemoteConnector
)
MemoryFormat: Any = _lmcache("v1.memory_management:MemoryFormat")
L2AdapterInterface: Any = _lmcache(f"{_adapters}:L2AdapterInterface") or PlainL2Adapter
# LMCache has moved the first of these, and given L2 stores a result that is more than true or false
# later.
Bitmap: Any = _lmcache("lmcache_native:Bitmap", "native_storage_ops:Bitmap") or PlainBitmap
AdapterUsage: Any = _lmcache(f"{_adapters}:AdapterUsage") or PlainUsage
ObjectKey: Any = _lmcache("v1.distributed.api:ObjectKey")
KeyEntry: Any = _lmcache("v1.distributed.api:KeyEntry") or PlainKeyEntry
KeyListPage: Any = _lmcache("v1.distributed.api:KeyListPage") or PlainKeyPage
_L2StoreResult: Any = _lmcache("v1.distributed.internal_api:L2StoreResult")


def store_result(success: bool, sent: int) -> Any:
    """What this version of LMCache wants of a store: its L2StoreResult, a plain bool before there
    was one."""
    if _L2StoreResult is not None:
        return _L2StoreResult(success, sent)
    return PlainStoreResult(success, sent) if L2AdapterInterface is PlainL2Adapter else success


def logger_of(name: str) -> Any:
    """LMCache's logger, or Python's."""
    init = _lmcache("logging:init_logger")
    return init(name) if init is not None else logging.getLogger(name)


class Troubles:
    """Says what goes wrong once per kind and minute, not once per chunk. Threads may share it."""

    def __init__(self, logger: Any, every_s: float = 60.0) -> None:
        self._logger, self._every_s = logger, every_s
        self._lock = threading.Lock()
        self._kinds: Dict[str, Tuple[float, int]] = {}

    def warn(self, kind: str, text: str) -> None:
        """`kind` is one of a few fixed names; `text` says what happened and what to do."""
        self._say(self._logger.warning, kind, text)

    def refuse(self, kind: str, why: Exception) -> None:
        """For what is raised as well: LMCache may swallow it, and try again every few seconds."""
        self._say(self._logger.error, kind, str(why))

    def _say(self, log: Callable[..., None], kind: str, text: str) -> None:
        with self._lock:
            said, more = self._kinds.get(kind, (-self._every_s, 0))
            now = time.monotonic()
            if now - said < self._every_s:
                self._kinds[kind] = (said, more + 1)
                return
            self._kinds[kind] = (now, 0)
        log("tarn: %s%s", text, f" ({more} more like it before)" if more else "")
