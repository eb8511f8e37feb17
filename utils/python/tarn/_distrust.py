"""Keys whose value this process could not use: another size than a block has, no header. Whoever
puts such a key next means to replace the value, where a put otherwise leaves what is there as it
is."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Iterable, List, Sequence

from .errors import Status

KEYS_MAX = 1 << 14


class Distrust:
    """Of up to KEYS_MAX keys, the latest. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: Dict[str, None] = {}

    def add(self, key: str) -> None:
        """Its value is of no use."""
        with self._lock:
            self._keys.pop(key, None)
            self._keys[key] = None
            if len(self._keys) > KEYS_MAX:
                del self._keys[next(iter(self._keys))]

    def whole(self, keys: Sequence[str], got: Sequence[int], sizes: Sequence[int]) -> List[bool]:
        """Which values came whole; `got`: what gets said, per key. One that is there and of another
        size is of no use."""
        whole = [n == size for n, size in zip(got, sizes)]
        for key, n, well in zip(keys, got, whole):
            if not well and (n >= 0 or n == Status.ELIMIT):
                self.add(key)
        return whole

    def add_all(self, keys: Sequence[str], flags: Sequence[bool]) -> None:
        """Those that are flagged, again: what was to replace them was not put."""
        for key, flag in zip(keys, flags):
            if flag:
                self.add(key)

    def take(self, keys: Iterable[str]) -> List[bool]:
        """Which of the keys are distrusted; they are not any more."""
        if not self._keys:
            return [False] * len(list(keys))
        with self._lock:
            return [self._keys.pop(key, False) is None for key in keys]

    def put(
        self,
        put: Callable[..., List[int]],
        keys: Sequence[str],
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        replace: Sequence[bool] = (),
        boundary: Any = (),
        **options: Any,
    ) -> List[int]:
        """`put` (Client.put_from_many or its like), with `replace` for those that are distrusted,
        or said to be. boundary: one for each key, or none."""
        again = [a or b for a, b in zip(self.take(keys), replace or [False] * len(keys))]
        if not any(again):
            ends = {"boundary": boundary} if boundary else {}
            return put(keys, addresses, sizes, **ends, **options)
        statuses = [0] * len(keys)
        for flag in (False, True):
            rows = [i for i, a in enumerate(again) if a == flag]
            if not rows:
                continue
            ends = {"boundary": [boundary[i] for i in rows]} if boundary else {}
            try:
                found = put(
                    [keys[i] for i in rows],
                    [addresses[i] for i in rows],
                    [sizes[i] for i in rows],
                    replace=flag,
                    **ends,
                    **options,
                )
            except BaseException:
                self.add_all(keys, again)
                raise
            for i, status in zip(rows, found):
                statuses[i] = status
                if flag and status < 0:
                    self.add(keys[i])
        return statuses
