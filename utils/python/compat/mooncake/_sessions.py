"""Values that are written and read piece by piece, layer by layer say: the session methods of the
store.

A put session is a place in the pool (tarn's Writer): on the same machine ranges are written
straight into it. Nobody sees the value before the session's end. A get session remembers sizes;
each call reads its ranges in one batch, checked as any get."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import tarn

from mooncake._families import code_itself, in_pool, per_key
from mooncake._common import (
    INVALID_PARAMS,
    OBJECT_NOT_FOUND,
    Key,
    Refused,
    code_of,
    failure,
    keys_of,
    log,
)

if TYPE_CHECKING:
    from mooncake._types import ReplicateConfig


class _Put:
    """A put that is under way. `room`: pieces of the place, as addresses and sizes."""

    def __init__(self, writer: tarn.Writer) -> None:
        self.writer, self.lock = writer, threading.Lock()
        self.room = [(tarn.memory.pin(p, True).address, len(p)) for p in writer.pieces]

    def write(self, address: int, size: int, offset: int) -> None:
        """Copies bytes to where they belong."""
        for start, length in self.room:
            if offset < length:
                n = min(size, length - offset)
                ctypes.memmove(start + offset, address, n)
                address, size, offset = address + n, size - n, length
            if size == 0:
                return
            offset -= length


def _give_up(puts: List[_Put]) -> None:
    for put in puts:
        try:
            put.writer.abort()
        except tarn.Error:
            pass  # it was told already


class SessionMethods:
    """Part of MooncakeDistributedStore."""

    _away: Any
    _run: Any
    _key: Any
    _keys: Any
    _placement: Any
    _read: Any
    _usable_rows: Any

    def _sessions_init(self) -> None:
        self._puts: Dict[Key, _Put] = {}
        self._gets: Dict[Key, int] = {}
        self._sessions_lock = threading.Lock()

    def _sessions_close(self) -> None:
        with self._sessions_lock:
            puts, self._puts, self._gets = list(self._puts.values()), {}, {}
        for put in puts:
            self._end(put, False)

    def _end(self, put: _Put, commit: bool) -> int:
        def work() -> int:
            with put.lock:
                if commit:
                    put.writer.commit()
                else:
                    put.writer.abort()
            return 0

        code: int = self._away.ask("put session", work, code_itself)
        return code

    @staticmethod
    def _rows(n: int, *columns: Sequence[Any]) -> Optional[List[Tuple[Any, ...]]]:
        """Per key the lists of its ranges; None: there are not as many of each."""
        return list(zip(*columns)) if all(len(c) == n for c in columns) else None

    # --- puts

    @in_pool(per_key)
    def batch_put_session_start(
        self,
        client: tarn.Client,
        keys: Sequence[Key],
        sizes: Sequence[int],
        config: Optional["ReplicateConfig"] = None,
    ) -> List[int]:
        """Makes room for values of these sizes: a code per key. -705: it is there, or another puts
        it."""
        keys = keys_of(keys)
        if len(sizes) != len(keys):
            raise Refused(INVALID_PARAMS, f"{len(keys)} keys, {len(sizes)} sizes")
        options = self._placement(client, config)
        groups = config.group_ids if config is not None and config.group_ids else [""] * len(keys)
        if len(groups) != len(keys):
            raise Refused(INVALID_PARAMS, f"group_ids: {len(groups)} of them for {len(keys)} keys")
        return [self._start(client, *row, options) for row in zip(keys, sizes, groups)]

    def _start(
        self, client: tarn.Client, key: Key, size: int, group: str, options: Dict[str, Any]
    ) -> int:
        with self._sessions_lock:
            if key in self._puts:
                log.error("batch_put_session_start: %s has a session already", key)
                return INVALID_PARAMS
        try:
            put = _Put(client.writer(self._key(key), size, group=group or None, **options))
        except tarn.Error as e:
            return failure(f"batch_put_session_start: {key!r}", e)
        with self._sessions_lock:
            self._puts[key] = put
        return 0

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> List[int]:
        """Writes pieces of memory to offsets of their values: bytes per key, or a negative code."""
        keys = keys_of(keys)
        rows = self._rows(len(keys), all_buffer_ptrs, all_sizes, all_dst_offsets)
        if rows is None:
            return [INVALID_PARAMS] * len(keys)
        return [self._write(key, *row) for key, row in zip(keys, rows)]

    def _write(
        self, key: Key, addresses: Sequence[int], sizes: Sequence[int], offsets: Sequence[int]
    ) -> int:
        put = self._puts.get(key)
        if put is None or not len(addresses) == len(sizes) == len(offsets):
            return INVALID_PARAMS
        with put.lock:
            if put.writer.ended:
                return INVALID_PARAMS
            if any(o < 0 or s < 0 or o + s > put.writer.size for o, s in zip(offsets, sizes)):
                log.error(
                    "batch_put_from_multi_buffer_ranges: %s: a range lies behind the end", key
                )
                return INVALID_PARAMS
            if (
                self._usable_rows("batch_put_from_multi_buffer_ranges", addresses, sizes, False)
                is not None
            ):
                return INVALID_PARAMS
            for address, size, offset in zip(addresses, sizes, offsets):
                put.write(address, size, offset)
        return sum(sizes)

    def batch_put_session_end(self, keys: Sequence[Key]) -> List[int]:
        """The values are whole: from now on they can be read. A code per key."""
        return self._finish(keys, True)

    def batch_put_session_revoke(self, keys: Sequence[Key]) -> List[int]:
        """Gives these puts up. A code per key."""
        return self._finish(keys, False)

    def _finish(self, keys: Sequence[Key], commit: bool) -> List[int]:
        keys = keys_of(keys)
        with self._sessions_lock:
            puts = [self._puts.pop(key, None) for key in keys]
        codes = [INVALID_PARAMS if put is None else self._end(put, commit) for put in puts]
        left = [put for put in puts if put is not None and not put.writer.ended]
        if left:  # the server is away: giving them up would wait for it, once for each
            threading.Thread(target=_give_up, args=(left,), daemon=True).start()
        return codes

    # --- gets

    @in_pool(per_key)
    def batch_get_session_start(self, client: tarn.Client, keys: Sequence[Key]) -> List[int]:
        """Says which values can be read: a code per key."""
        keys = keys_of(keys)
        sizes = client.sizes(self._keys(keys))
        with self._sessions_lock:
            for key, size in zip(keys, sizes):
                self._gets.pop(key, None)
                if size is not None:
                    self._gets[key] = size
        return [OBJECT_NOT_FOUND if s is None else 0 for s in sizes]

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> List[int]:
        """Reads from offsets of values into pieces of memory: bytes per key, or a negative code."""
        keys, results = keys_of(keys), [INVALID_PARAMS] * len(keys)
        rows = self._rows(len(keys), all_buffer_ptrs, all_sizes, all_src_offsets)
        if rows is None:
            return results
        flat: List[Tuple[int, int, int, int]] = []
        for i, (addresses, sizes, offsets) in enumerate(rows):
            limit = self._gets.get(keys[i])
            if limit is None or not len(addresses) == len(sizes) == len(offsets):
                continue
            if any(o < 0 or s <= 0 or o + s > limit for o, s in zip(offsets, sizes)):
                continue
            results[i] = 0
            flat += [(i, a, s, o) for a, s, o in zip(addresses, sizes, offsets)]

        def work(client: tarn.Client) -> List[int]:
            named = self._keys([keys[i] for i, _, _, _ in flat])
            wants = [s for _, _, s, _ in flat]
            at, offsets = [a for _, a, _, _ in flat], [o for _, _, _, o in flat]
            what = "batch_get_into_multi_buffer_ranges"
            return self._read(what, client, named, at, wants, offsets=offsets, wants=wants)

        got = (
            self._run("batch_get_into_multi_buffer_ranges", work, lambda code: None) if flat else []
        )
        for (i, _, size, _), n in zip(
            flat, got if got is not None else [tarn.Status.EIO] * len(flat)
        ):
            if results[i] >= 0:
                results[i] = (
                    results[i] + n if n == size else code_of(n) if n < 0 else INVALID_PARAMS
                )
        return results

    def batch_get_session_end(self, keys: Sequence[Key]) -> int:
        """Forgets what was remembered. 0."""
        keys = keys_of(keys)
        with self._sessions_lock:
            for key in keys:
                self._gets.pop(key, None)
        return 0
