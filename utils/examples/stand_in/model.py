"""The model: a block's KV bytes come from the block before it and the block's tokens, and the next
token from the KV bytes of all blocks and the tokens behind them.

So a wrong byte anywhere makes what is computed after it wrong, and the answer; and the same tokens
have the same continuation on every engine, whether their blocks were computed, found or loaded."""

from __future__ import annotations

import ctypes
import hashlib
import zlib
from array import array
from types import SimpleNamespace
from typing import Any, Optional, Tuple

from .words import END, FIRST_WORD, WORDS

ENDS = 256  # one token of so many ends an answer
SCRIBBLE = 0xEE  # what is in a block that nobody has filled


class Tensor:
    """What the connector sees of a torch tensor on the CPU: shape, strides in elements, element
    size, address. Elements are of two bytes, blocks lie one after the other."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        size = 1
        strides = []
        for n in reversed(shape):
            strides.append(size)
            size *= n
        self._strides = tuple(reversed(strides))
        self._memory = (ctypes.c_char * (2 * size))()
        self.raw = memoryview(self._memory).cast("B")

    def stride(self) -> Tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return 2

    def data_ptr(self) -> int:
        return ctypes.addressof(self._memory)


class Model:
    """name: part of what everything depends on. block: tokens; kv_bytes: of a token."""

    def __init__(self, name: str, block: int, kv_bytes: int, blocks: int) -> None:
        self.name, self.block, self.size = name, block, block * kv_bytes
        self.cache = Tensor(blocks, block, kv_bytes // 2)
        self._scribble = bytes((SCRIBBLE,)) * self.size

    def at(self, block: int) -> memoryview:
        return self.cache.raw[block * self.size : (block + 1) * self.size]

    def scribble(self, block: int) -> None:
        """It is given to somebody: what was in it must not be of use."""
        self.at(block)[:] = self._scribble

    def fill(self, request: Any, index: int) -> None:
        """Computes the block of that index of a request."""
        first = index * self.block
        state = hashlib.blake2b(digest_size=32)
        if index:
            state.update(self.at(request.blocks[index - 1]))
        else:
            lora = request.lora_request.lora_name if request.lora_request else None
            state.update(repr((self.name, lora, request.cache_salt)).encode())
        state.update(array("I", request.all_token_ids[first : first + self.block]).tobytes())
        for f in request.mm_features:
            start, length = f.mm_position.offset, f.mm_position.length
            if start < first + self.block and first < start + length:
                state.update(repr((f.identifier, start - first)).encode())
        self.at(request.blocks[index])[:] = hashlib.shake_128(state.digest()).digest(self.size)

    def next_token(self, request: Any) -> int:
        """Of a request whose tokens are all computed. Its blocks are read once each, and again
        when it lost them (`read` is 0 then)."""
        full = request.num_tokens // self.block
        for i in range(request.read, full):
            request.sum = zlib.crc32(self.at(request.blocks[i]), request.sum)
        request.read = full
        state = hashlib.blake2b(request.sum.to_bytes(4, "little"), digest_size=8)
        state.update(self.name.encode())
        state.update(array("I", request.all_token_ids[full * self.block :]).tobytes())
        if request.seed is not None:  # as a generator of its own, drawn from once a token
            drawn = request.num_tokens - request.num_prompt_tokens
            state.update(repr((request.seed, drawn)).encode())
        number = int.from_bytes(state.digest(), "little")
        if number % ENDS == 0 and request.may_end():
            return END
        return FIRST_WORD + number // ENDS % WORDS


def seed_of(seed: Optional[int], temperature: Optional[float]) -> Optional[int]:
    """What sampling depends on: nothing where the best token is always taken, nor where no seed was
    given, so that answers can be compared."""
    return None if temperature == 0 else seed
