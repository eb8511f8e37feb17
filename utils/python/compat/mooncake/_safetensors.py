"""Files of the safetensors format, one tensor at a time: eight bytes of length, a JSON of names,
types, shapes and offsets, then the elements."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict, List, Optional, Sequence, Tuple

_LENGTH = struct.Struct("<Q")
_HEAD_MAX = 16 << 20  # of the JSON; files come from anywhere

# The place in the list is the number of the type in the store's header.
TYPES = (
    "F32",
    "F64",
    "I8",
    "U8",
    "I16",
    "U16",
    "I32",
    "U32",
    "I64",
    "U64",
    "BOOL",
    "F16",
    "BF16",
    "F8_E4M3",
    "F8_E5M2",
)


def save(path: str, name: str, number: int, shape: Sequence[int], elements: memoryview) -> None:
    """Writes a file of one tensor. Raises OSError."""
    entry = {"dtype": TYPES[number], "shape": list(shape), "data_offsets": [0, len(elements)]}
    head = json.dumps({name: entry}).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(_LENGTH.pack(len(head)))
        file.write(head)
        file.write(elements)


def load(path: str, name: Optional[str]) -> Tuple[int, List[int], bytes]:
    """Type, shape and elements of a tensor of a file: the one of that name, else the first. Raises
    OSError; ValueError: the file makes no sense."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        raw = file.read(_LENGTH.size)
        length = _LENGTH.unpack(raw)[0] if len(raw) == _LENGTH.size else -1
        if not 2 <= length <= min(_HEAD_MAX, size - _LENGTH.size):
            raise ValueError(f"{path}: no safetensors file")
        entries: Dict[str, Any] = json.loads(file.read(length))
        if not isinstance(entries, dict):
            raise ValueError(f"{path}: no safetensors file")
        entries.pop("__metadata__", None)
        if not entries:
            raise ValueError(f"{path}: there is no tensor in it")
        entry = entries[name] if name in entries else next(iter(entries.values()))
        try:
            number, shape, (begin, end) = (
                TYPES.index(entry["dtype"]),
                list(entry["shape"]),
                entry["data_offsets"],
            )
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path}: a tensor of unknown type, or without a place") from None
        whole = all(isinstance(n, int) and n >= 0 for n in [begin, end, *shape])
        if not whole or not begin <= end <= size - _LENGTH.size - length:
            raise ValueError(f"{path}: a tensor reaches over the end of the file")
        file.seek(_LENGTH.size + length + begin)
        return number, shape, file.read(end - begin)
