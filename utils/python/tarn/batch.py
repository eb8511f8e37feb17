"""Keys and memory of a batch, laid out as libtarn wants them: tarn_item, tarn_key and struct iovec
arrays.

Python hands arrays of numbers over, and libtarn's columns make the structs, so that a batch of
thousands of keys costs less than 0.1 microseconds per key here. A batch owns its arrays and keeps
its keys; whoever uses it keeps the memory."""

from __future__ import annotations

import ctypes as C
from array import array
from itertools import chain
from typing import Any, Generator, Iterable, List, Optional, Sequence, Tuple, Union

from . import _lib
from ._lib import check, lib, status_error
from .errors import InvalidArgument, Status, TooLarge
from .memory import Fresh, Pinned, pin

Key = Union[str, bytes]
Keys = Sequence[Key]

KEY_MAX = 1024
# Gets of values of unknown size guess that they are as large as the last one; that much memory is
# risked on it.
GUESS_BYTES = 64 << 20


def encode_key(key: Any) -> bytes:
    """A key's bytes: str in UTF-8, bytes as they are."""
    if isinstance(key, bytes):
        raw = key
    elif isinstance(key, str):
        try:
            raw = key.encode()
        except UnicodeEncodeError as e:
            raise InvalidArgument(f"key: {e}: pass bytes") from None
    elif isinstance(key, (bytearray, memoryview)):
        raw = bytes(key)
    else:
        raise TypeError(f"key: str or bytes, not {type(key).__name__}")
    if not 1 <= len(raw) <= KEY_MAX:
        raise InvalidArgument(f"key: 1 to {KEY_MAX} bytes, this one has {len(raw)}")
    return raw


def _number_array(values: Iterable[Any], name: str) -> "array[int]":
    try:
        return array("Q", values)
    except OverflowError:
        raise InvalidArgument(f"{name}: a negative number, or one of more than 64 bits") from None


def address_of(values: "array[int]") -> int:
    """Where an array's first element is; good until the array changes its length."""
    return values.buffer_info()[0]


def _zeroed_array(bytes_each: int, n: int) -> "array[int]":
    return array("Q", bytes(bytes_each * max(n, 1)))


def _as_list(values: Any, name: str) -> Sequence[Any]:
    """A list or tuple of it; arrays of numpy become lists of plain numbers."""
    if isinstance(values, (list, tuple)):
        return values
    if hasattr(values, "tolist"):
        return values.tolist()  # type: ignore[no-any-return]
    try:
        return list(values)
    except TypeError:
        raise TypeError(f"{name}: a list, not {type(values).__name__}") from None


def _key_sequence(keys: Any) -> Sequence[Any]:
    if isinstance(keys, (str, bytes, bytearray, memoryview)):
        raise TypeError("keys: a list of keys, not one key")
    return _as_list(keys, "keys")


class KeyList:
    """Keys, one after the other in one piece of memory: `data`, and their lengths."""

    __slots__ = ("data", "lens", "n")

    def __init__(self, keys: Keys) -> None:
        keys = _key_sequence(keys)
        data = self._joined(keys)
        if data is None:
            raw = [encode_key(k) for k in keys]
            data, keys = b"".join(raw), raw
        self.data: bytes = data
        self.lens = array("Q", map(len, keys))
        self.n = len(keys)

    @staticmethod
    def _joined(keys: Sequence[Any]) -> Optional[bytes]:
        """All keys in one go where they are all ASCII text, or all bytes."""
        try:
            text = "".join(keys)
            return text.encode() if text.isascii() else None
        except TypeError:
            return b"".join(keys) if all(type(k) is bytes for k in keys) else None

    def columns(self) -> _lib.Columns:
        """As tarn_columns, without memory."""
        return _lib.Columns(
            C.sizeof(_lib.Columns), self.n, self.data, len(self.data), address_of(self.lens)
        )

    def split(self) -> List[bytes]:
        """The keys, one by one."""
        keys, start = [], 0
        for n in self.lens:
            keys.append(self.data[start : start + n])
            start += n
        return keys

    def structs(self) -> "array[int]":
        """As an array of tarn_key, which points into `data`. Raises InvalidArgument for keys of 0
        or over 1024 bytes."""
        keys = _zeroed_array(_lib.KEY_BYTES, self.n)
        columns = self.columns()
        check(lib.tarn_columns_keys(C.byref(columns), address_of(keys)))
        return keys


def _flattened(values: Any, name: str) -> Tuple["array[int]", Optional["array[int]"]]:
    """Numbers, and how many of them belong to each key (None: one each)."""
    values = _as_list(values, name)
    try:
        return _number_array(values, name), None
    except TypeError:
        pass
    rows = [v if isinstance(v, (list, tuple)) else (v,) for v in values]
    try:
        return _number_array(chain.from_iterable(rows), name), array("Q", map(len, rows))
    except TypeError:
        raise TypeError(f"{name}: integers, or lists of integers, one per key") from None


class Batch:
    """n items. `address` is that of the tarn_item array; `results`, `statuses` and the like read it
    after a call.

    addresses[i] is an int or a list of ints, sizes likewise, or one int for all. `keep` is kept as
    long as the batch."""

    __slots__ = ("keys", "n", "address", "keep", "_items", "_iov")

    def __init__(
        self,
        keys: Keys,
        addresses: Any = None,
        sizes: Any = None,
        offsets: Optional[Sequence[int]] = None,
        wants: Optional[Sequence[int]] = None,
        keep: Any = None,
    ) -> None:
        self.keys = KeyList(keys)
        n = self.n = self.keys.n
        self._items = _zeroed_array(_lib.ITEM_BYTES, n)
        self.address = address_of(self._items)
        self._iov: Optional["array[int]"] = None
        self.keep = keep
        columns = self.keys.columns()
        arrays = []  # until the columns have been read
        if addresses is not None:
            where, long, pieces = self._memory(addresses, sizes)
            arrays += [where, long, pieces]
            columns.n_pieces, columns.addresses, columns.sizes = (
                len(where),
                address_of(where),
                address_of(long),
            )
            if pieces is not None:
                columns.pieces, self._iov = address_of(pieces), _zeroed_array(
                    _lib.IOVEC_BYTES, len(where)
                )
        for values, name in ((offsets, "offsets"), (wants, "wants")):
            if values is not None:
                words = _number_array(_as_list(values, name), name)
                if len(words) != n:
                    raise InvalidArgument(f"{name}: {len(words)} of them for {n} keys")
                arrays.append(words)
                setattr(columns, name, address_of(words))
        pieces_at = address_of(self._iov) if self._iov is not None else None
        check(lib.tarn_columns_items(C.byref(columns), self.address, pieces_at))

    def _memory(
        self, addresses: Any, sizes: Any
    ) -> Tuple["array[int]", "array[int]", Optional["array[int]"]]:
        where, pieces = _flattened(addresses, "addresses")
        if isinstance(sizes, int):
            long, long_pieces = _number_array([sizes], "sizes") * len(where), pieces
        else:
            long, long_pieces = _flattened(sizes, "sizes")
        if (len(pieces) if pieces is not None else len(where)) != self.n:
            raise InvalidArgument(f"addresses: {len(addresses)} of them for {self.n} keys")
        if pieces != long_pieces or len(where) != len(long):
            raise InvalidArgument("sizes: there must be one for each address")
        return where, long, pieces

    def _column(self, at: int) -> List[int]:
        """results, statuses, value sizes: column 0, 1, 2 of tarn_items_columns."""
        column = array("qiQ"[at], bytes((8, 4, 8)[at] * self.n))
        out: List[Optional[int]] = [None, None, None, None]
        out[at] = address_of(column)
        lib.tarn_items_columns(self.address, self.n, *out)
        return column.tolist()

    def results(self) -> List[int]:
        """Of gets, per item: bytes delivered, or a negative status."""
        return self._column(0)

    def statuses(self) -> List[int]:
        """Per item: 0 or a negative status."""
        return self._column(1)

    def value_sizes(self) -> List[int]:
        """Per item: bytes of the whole value, where a get found it."""
        return self._column(2)


def batch_of(pairs: Iterable[Tuple[Key, Any]], writable: bool) -> Batch:
    """A batch out of (key, data or list of data); the memory is kept by it."""
    keys: List[Key] = []
    addresses: List[Any] = []
    sizes: List[Any] = []
    keep: List[Pinned] = []
    for i, (key, data) in enumerate(pairs):
        keys.append(key)
        pins = [
            pin(d, writable, f"data of key {i}")
            for d in (data if isinstance(data, list) else (data,))
        ]
        keep += pins
        addresses.append([p.address for p in pins] if len(pins) != 1 else pins[0].address)
        sizes.append([p.size for p in pins] if len(pins) != 1 else pins[0].size)
    return Batch(keys, addresses, sizes, keep=keep)


def fetch(keys: Keys, guess: int) -> Generator[Batch, None, Tuple[List[Optional[bytes]], int]]:
    """Values of unknown size as bytes objects, in as few rounds as it goes: yields batches for its
    driver to get, returns the values (None: not there) and a better guess.

    The first round offers `guess` bytes for each value; those that are larger say how large they
    are, and come with the next. Raises when a value that is there cannot be had."""
    keys = _key_sequence(keys)
    n = len(keys)
    values: List[Optional[bytes]] = [None] * n
    guess = guess if guess <= GUESS_BYTES // max(n, 1) else 0
    todo, sizes = list(range(n)), [guess] * n
    for _ in range(4):
        fresh = [Fresh(size) for size in sizes]
        batch = Batch(
            [keys[i] for i in todo], [f.address for f in fresh], [f.size for f in fresh], keep=fresh
        )
        yield batch
        again, larger = [], []
        for i, f, result, size in zip(todo, fresh, batch.results(), batch.value_sizes()):
            if result >= 0:
                values[i] = f.value if result == f.size else f.value[:result]
                guess = result
            elif result == Status.ELIMIT:
                again.append(i)
                larger.append(size)
            elif result != Status.ENOTFOUND:
                raise status_error(result, f"keys[{i}]")
        if not again:
            return values, guess
        todo, sizes = again, larger
    raise TooLarge(f"keys[{todo[0]}]: the value grew faster than it could be got: get it again")
