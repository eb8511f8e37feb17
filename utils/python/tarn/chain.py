"""Hashes of prefixes: one SHA-256 per block of tokens, chained, the same on every machine.

A block's hash covers its tokens, everything before it (through the parent's hash) and all else that
its KV bytes depend on, so that equal hashes mean equal bytes wherever they were computed. Engines
hash, too, but some seed their hashes at random when they start.

What is hashed is this, and does not change:

    value  := tag, u32 length, payload        (tags and payloads: see encode)
    seed   := SHA-256("tarn.chain/2", 0, u32 tokens of a block, encode(extras of the whole chain))
    sum    := SHA-256(parent, u32 number of tokens, u32 token ids ..., encode(extras of this block))
    hash   := first 2 bytes of (sum where a stretch begins, else parent), bytes 2 to 31 of sum

All integers are little-endian; parent is the hash of the block before, of the first one the seed.
Block i begins a stretch if it is a multiple of the longest stretch there, the power of two above an
eighth of i and up to a quarter of it, at least 1 and at most 64. The hashes of a stretch begin
alike, and its blocks are with one of several masters (`tarn.keys`): what is deep in a prompt is
asked of few of them, and what many prompts begin with is spread over all (docs/SCALE.md). Token ids
are 0..2^32-1. Because every value carries its type and length, ("ab", "c") and ("a", "bc"), 1 and
"1", None and "" all differ.

A Chain is not locked: one thread at a time."""

import struct
import sys
from array import array
from hashlib import sha256
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple

__all__ = ["Chain", "Media", "block_hashes", "encode", "seed_hash", "short_hashes", "token_bytes"]

HASH_BYTES = 32
_MAGIC = b"tarn.chain/2\0"
_U32 = struct.Struct("<I")
_MAX_DEPTH = 16
STRETCH = 64  # blocks, at most
TAG_BYTES = 2


def _field(tag: bytes, payload: bytes) -> bytes:
    return tag + _U32.pack(len(payload)) + payload


def encode(value: Any, depth: int = 0) -> bytes:
    """The canonical bytes of None, bool, int, str, bytes, or a tuple, list or dict (by sorted
    encoded key) of such.

    Tags: N None; F, T the two bools; I int, two's complement, as short as possible; S str, UTF-8; B
    bytes; L tuple or list; D dict. Floats are refused (TypeError): their text differs between
    programs. ValueError: nested deeper than 16."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"extras: nested deeper than {_MAX_DEPTH}")
    if value is None:
        return _field(b"N", b"")
    if isinstance(value, bool):
        return _field(b"T" if value else b"F", b"")
    if isinstance(value, int):
        bits = value.bit_length() if value >= 0 else (value + 1).bit_length()
        return _field(b"I", value.to_bytes(bits // 8 + 1, "little", signed=True))
    if isinstance(value, str):
        return _field(b"S", value.encode("utf-8"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _field(b"B", bytes(value))
    if isinstance(value, (tuple, list)):
        return _field(b"L", b"".join(encode(item, depth + 1) for item in value))
    if isinstance(value, dict):
        pairs = sorted((encode(k, depth + 1), encode(v, depth + 1)) for k, v in value.items())
        return _field(b"D", b"".join(k + v for k, v in pairs))
    raise TypeError(
        f"extras: {type(value).__name__} has no canonical form; use None, bool, int, str, bytes, "
        "tuple or dict"
    )


def token_bytes(tokens: Any) -> bytes:
    """Token ids as little-endian uint32. Takes lists, arrays, numpy arrays and tensors on the CPU.
    ValueError: not in 0..2^32-1."""
    if hasattr(tokens, "astype"):  # numpy, which is imported by whoever made the array
        if tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens: an array of {tokens.dtype}, not of integers")
        if tokens.size and (int(tokens.min()) < 0 or int(tokens.max()) > 0xFFFFFFFF):
            raise ValueError("tokens: an id is not in 0..4294967295")
        return bytes(tokens.astype("<u4").tobytes())
    if hasattr(tokens, "tolist") and not isinstance(tokens, array):  # memoryviews, tensors
        tokens = tokens.tolist()
    try:
        ids = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"tokens: ids are integers in 0..4294967295 ({error})") from None
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def stretch_at(number: int) -> int:
    """How many blocks a stretch has that this one is in, counted from 0; it begins with a multiple
    of that."""
    return min(STRETCH, 1 << max(0, number.bit_length() - 3))


def seed_hash(block_tokens: int, extras: Any = ()) -> bytes:
    """The parent of a chain's first block: 32 bytes that depend on the block's size and what holds
    for the whole chain."""
    return sha256(_MAGIC + _U32.pack(block_tokens) + encode(extras)).digest()


class Media(NamedTuple):
    """An image, a sound, a prompt embedding: its hash or name, and the tokens [start, start +
    length) that stand for it."""

    hash: Any
    start: int
    length: int


class Chain:
    """The hashes of one growing sequence of tokens.

    block_tokens: tokens of a block, 1..2^20. extras: what all blocks depend on besides the model
    that the key names: LoRA's name, cache salt, model revision, as a tuple or dict of what encode
    takes; lora, salt and revision are shorthands for the usual ones. media: in order of start; a
    block that overlaps one depends on its hash, on where it begins in relation to the block, and
    how long it is.

        chain = Chain(16, lora="sql-7")
        new = chain.extend(prompt)      # hashes of the blocks that became full
        chain.extend([next_token])"""

    __slots__ = ("block_tokens", "hashes", "_seed", "_tail", "_media", "_first_media")

    def __init__(
        self,
        block_tokens: int = 16,
        *,
        lora: Optional[str] = None,
        salt: Optional[str] = None,
        revision: Optional[str] = None,
        extras: Any = (),
        media: Iterable[Tuple[Any, int, int]] = (),
    ) -> None:
        if not 1 <= block_tokens <= 1 << 20:
            raise ValueError(f"block_tokens: {block_tokens} is not in 1..{1 << 20}")
        self.block_tokens = block_tokens
        self.hashes: List[bytes] = []
        self._seed = seed_hash(block_tokens, (lora, salt, revision, extras))
        self._tail = b""
        self._media: List[Media] = []
        self._first_media = 0  # those before it end before the next block
        for item in media:
            self.add_media(*item)

    @property
    def tokens(self) -> int:
        """How many tokens were given, those that do not fill a block yet included."""
        return len(self.hashes) * self.block_tokens + len(self._tail) // 4

    @property
    def last(self) -> bytes:
        """The hash of the last full block, of an empty chain the seed."""
        return self.hashes[-1] if self.hashes else self._seed

    def add_media(
        self, hash: Any, start: int, length: int
    ) -> None:  # noqa: A002 - the field's word
        """Announces media at tokens that are not hashed yet. ValueError: they are, or it begins
        before the one before it."""
        if length <= 0 or start < (self._media[-1].start if self._media else 0):
            raise ValueError(
                f"media: start {start}, length {length}: in order of start, with lengths from 1 on"
            )
        if start < len(self.hashes) * self.block_tokens:
            raise ValueError(
                f"media: token {start} is in a block that is hashed already; announce it before "
                "its tokens"
            )
        self._media.append(Media(hash, start, length))

    def _block_extras(self, start: int) -> bytes:
        """Encoded extras of the block that begins at this token: (hash, start in relation to the
        block, length) of each media."""
        while self._first_media < len(self._media):
            item = self._media[self._first_media]
            if item.start + item.length > start:
                break
            self._first_media += 1
        found = []
        for item in self._media[self._first_media :]:
            if item.start >= start + self.block_tokens:
                break
            if item.start + item.length > start:
                found.append((item.hash, item.start - start, item.length))
        return encode(tuple(found))

    def extend(self, tokens: Any) -> List[bytes]:
        """Appends tokens; returns the hashes of the blocks that became full. ValueError: an id is
        out of range (nothing changed)."""
        data = self._tail + token_bytes(tokens) if self._tail else token_bytes(tokens)
        step = self.block_tokens * 4
        full = len(data) // step
        count = _U32.pack(self.block_tokens)
        plain = encode(())
        parent = self.last
        number = len(self.hashes)
        within = stretch_at(number) - 1
        start = number * self.block_tokens
        new: List[bytes] = []
        for at in range(0, full * step, step):
            extras = self._block_extras(start) if self._first_media < len(self._media) else plain
            found = sha256(b"".join((parent, count, data[at : at + step], extras))).digest()
            if number & within:
                parent = parent[:TAG_BYTES] + found[TAG_BYTES:]
            else:
                parent, within = found, stretch_at(number) - 1
            new.append(parent)
            number += 1
            start += self.block_tokens
        self.hashes.extend(new)
        self._tail = data[full * step :]
        return new

    def copy(self) -> "Chain":
        """A chain of its own with the same prefix, for a request that branches off."""
        other = Chain.__new__(Chain)
        other.block_tokens = self.block_tokens
        other.hashes = list(self.hashes)
        other._seed = self._seed
        other._tail = self._tail
        other._media = list(self._media)
        other._first_media = self._first_media
        return other


def block_hashes(tokens: Any, block_tokens: int = 16, **extras: Any) -> List[bytes]:
    """The hashes of all full blocks of tokens; extras as in Chain."""
    return Chain(block_tokens, **extras).extend(tokens)


def short_hashes(tokens: Sequence[int], block_tokens: int, parent: int = 0) -> List[int]:
    """Hashes of 8 bytes as other systems use them: the first 8 bytes (big-endian) of SHA-256 over
    the parent (8 bytes, big-endian) and the token ids as little-endian int32. For sharing keys such
    as `vllm@{model}@{world}@{rank}@{hash:016x}@{layer}` with them; 64 bits collide after some
    billions of blocks, so tarn's own keys hold all 32 bytes. ValueError: an id is not in 0..2^31-1.
    """
    data = token_bytes(tokens)
    if any(top > 127 for top in data[3::4]):
        raise ValueError("tokens: short hashes take ids in 0..2147483647")
    if not 0 <= parent < 1 << 64:
        raise ValueError("parent: a hash of 64 bits")
    step = block_tokens * 4
    last = parent.to_bytes(8, "big")
    hashes = []
    for at in range(0, len(data) // step * step, step):
        last = sha256(last + data[at : at + step]).digest()[:8]
        hashes.append(int.from_bytes(last, "big"))
    return hashes
