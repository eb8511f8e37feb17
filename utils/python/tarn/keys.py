"""Keys of the pool for blocks of KV cache: which model's bytes, in which layout, which rank's part,
which prefix.

    {model}@{dtype}.{layout}.{block_tokens}@tp{shards}.{shard}@pp{size}.{rank}
        @pcp{size}.{rank}@dcp{size}.{rank}[@kv{group}]@{hash}[@l{layer}|@g{group}]

A hash is written in hex, its first two bytes in braces: {258f}1d1238... They are the hash tag by
which a pool of several masters chooses one (docs/CLUSTER.md). A stretch of a prompt begins with the
same two bytes (`tarn.chain`), so all ranks, KV groups and layers of it are with one master.

@kv{number} names the KV group where a model has several: layers with blocks of a size and a kind of
their own (full attention, windows, states). It stands before the hash, so that `prefix` and the
hash at the end of a part are what `Client.kv_prefix` asks for.

The part after tp is not the rank but the shard: which distinct part of the heads the bytes hold.
Ranks with the same bytes have the same key: all of them with multi-head latent attention (tp1.0
whatever the number of ranks, so that engines of any size share), and neighbours where there are
more ranks than KV heads. They may race to put it; who comes second is told EEXISTS or EBUSY, which
both mean done.

Names are percent-escaped: "%", "@", braces, white space and control characters; everything else,
"/" and "." of a model's name too, stays as it is. Keys are 1..1024 bytes in the pool, so a model's
name has at most 512."""

from dataclasses import dataclass, replace
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote

from .errors import done

__all__ = ["KeySpace", "BlockKey", "escape", "hash_text", "unescape", "shard_of", "done"]

MAX_KEY = 1024
MAX_NAME = 512
TAG_DIGITS = 4
_ESCAPED = {chr(c): f"%{c:02X}" for c in list(range(0x21)) + [0x7F, *b"%@{}"]}
_TABLE = str.maketrans(_ESCAPED)


def escape(name: str) -> str:
    """The name with everything escaped that would be ambiguous in a key, a shell or a log."""
    return name.translate(_TABLE)


def unescape(name: str) -> str:
    return unquote(name)


def hash_text(digits: str) -> str:
    """How a hash (in hex) stands in a key: blocks whose hashes begin with the same two bytes share
    a master."""
    return f"{{{digits[:TAG_DIGITS]}}}{digits[TAG_DIGITS:]}" if digits else ""


def _hash_of(text: str) -> bytes:
    """The hash that stands in a key so. ValueError: none does."""
    found = bytes.fromhex(text.replace("{", "", 1).replace("}", "", 1))
    if hash_text(found.hex()) != text:
        raise ValueError("the hash")
    return found


def shard_of(
    tp_size: int, tp_rank: int, kv_heads: int, *, mla: bool = False
) -> Tuple[int, int, int, int]:
    """(shards, shard, replicas, replica): how many distinct parts there are, which one this rank
    holds, how many ranks hold it too, and which of those this rank is. mla: there is one part.
    kv_heads: KV heads of the whole model; with fewer heads than ranks every head is held by tp_size
    / kv_heads neighbours. ValueError: the heads cannot be dealt out evenly."""
    if tp_size < 1 or not 0 <= tp_rank < tp_size:
        raise ValueError(f"tp_rank: {tp_rank} of {tp_size}")
    if mla:
        return 1, 0, tp_size, tp_rank
    if kv_heads < 1:
        raise ValueError(f"kv_heads: {kv_heads}")
    if tp_size <= kv_heads:
        if kv_heads % tp_size:
            raise ValueError(
                f"kv_heads: {kv_heads} heads cannot be dealt out evenly to {tp_size} ranks"
            )
        return tp_size, tp_rank, 1, 0
    if tp_size % kv_heads:
        raise ValueError(f"tp_size: {tp_size} ranks cannot hold {kv_heads} heads evenly")
    replicas = tp_size // kv_heads
    return kv_heads, tp_rank // replicas, replicas, tp_rank % replicas


def joined(*parts: object) -> str:
    """The parts, escaped, with @ between them; those that are empty or None are left out."""
    return "@".join(escape(str(part)) for part in parts if part)


def glob_of(text: str) -> str:
    """A pattern (of SCAN, REMOVEMATCH GLOB) that only this text matches."""
    return "".join("\\" + c if c in "*?[]\\^" else c for c in text)


class BlockKey(NamedTuple):
    """What a key says."""

    space: "KeySpace"
    hash: bytes
    layer: Optional[str]
    group: Optional[int]


@dataclass(frozen=True)
class KeySpace:
    """Everything in a key but the hash. layout names how a block's bytes are arranged, in words of
    whoever writes them: two engines share blocks only when model, dtype, layout and block_tokens
    are equal."""

    model: str
    dtype: str = "bfloat16"
    layout: str = "nhd"
    block_tokens: int = 16
    shards: int = 1
    shard: int = 0
    pp_size: int = 1
    pp_rank: int = 0
    pcp_size: int = 1
    pcp_rank: int = 0
    dcp_size: int = 1
    dcp_rank: int = 0
    kv_group: Optional[int] = None

    def __post_init__(self) -> None:
        for name, text in (("model", self.model), ("dtype", self.dtype), ("layout", self.layout)):
            if not text:
                raise ValueError(f"{name}: is empty")
            if len(escape(text).encode("utf-8")) > MAX_NAME:
                raise ValueError(f"{name}: longer than {MAX_NAME} bytes when escaped")
        if "." in self.dtype or "." in self.layout:
            raise ValueError("dtype, layout: a dot parts them in the key; leave it out")
        if self.block_tokens < 1:
            raise ValueError(f"block_tokens: {self.block_tokens}")
        for name, size, rank in (
            ("shard", self.shards, self.shard),
            ("pp_rank", self.pp_size, self.pp_rank),
            ("pcp_rank", self.pcp_size, self.pcp_rank),
            ("dcp_rank", self.dcp_size, self.dcp_rank),
        ):
            if size < 1 or not 0 <= rank < size:
                raise ValueError(f"{name}: {rank} of {size}")
        if self.kv_group is not None and self.kv_group < 0:
            raise ValueError(f"kv_group: {self.kv_group}")
        if len(self.prefix.encode("utf-8")) + 66 > MAX_KEY - 128:
            raise ValueError("model, dtype, layout: too long together for a key of 1024 bytes")

    @property
    def prefix(self) -> str:
        """All of the key up to the hash, with the @ before it."""
        kv_group = "" if self.kv_group is None else f"kv{self.kv_group}@"
        return (
            f"{escape(self.model)}@{escape(self.dtype)}.{escape(self.layout)}.{self.block_tokens}"
            f"@tp{self.shards}.{self.shard}@pp{self.pp_size}.{self.pp_rank}"
            f"@pcp{self.pcp_size}.{self.pcp_rank}@dcp{self.dcp_size}.{self.dcp_rank}@{kv_group}"
        )

    @staticmethod
    def _suffix(layer: Any, group: Optional[int]) -> str:
        if layer is not None and group is not None:
            raise ValueError("layer, group: an object is one layer or one group, not both")
        if layer is not None:
            return f"@l{escape(str(layer))}"
        return f"@g{group}" if group is not None else ""

    def key(self, block_hash: bytes, *, layer: Any = None, group: Optional[int] = None) -> str:
        """The key of one block, or of one layer or group of layers of it."""
        return f"{self.prefix}{hash_text(block_hash.hex())}{self._suffix(layer, group)}"

    def keys(
        self, hashes: Iterable[bytes], *, layer: Any = None, group: Optional[int] = None
    ) -> List[str]:
        prefix, suffix = self.prefix, self._suffix(layer, group)
        return [f"{prefix}{hash_text(h.hex())}{suffix}" for h in hashes]

    def with_shard(self, shard: int) -> "KeySpace":
        return replace(self, shard=shard)

    def all(self) -> List["KeySpace"]:
        """The spaces of all parts that make up one block: every shard, pipeline stage and context
        rank. With decode context parallelism a rank of it is part of the tensor-parallel rank
        (shard % dcp_size)."""
        spaces = []
        for pcp in range(self.pcp_size):
            for pp in range(self.pp_size):
                for shard in range(self.shards):
                    dcp = shard % self.dcp_size
                    spaces.append(
                        replace(self, shard=shard, pp_rank=pp, pcp_rank=pcp, dcp_rank=dcp)
                    )
        return spaces

    def lookup_keys(
        self, hashes: Sequence[bytes], layers: Sequence[Any] = (None,)
    ) -> Tuple[List[str], int]:
        """(keys, n): the keys of all parts of all blocks, those of one block next to each other, n
        for each. How many leading keys are readable, divided by n, is how many whole blocks are."""
        ends = [
            (space.prefix, self._suffix(layer, None)) for space in self.all() for layer in layers
        ]
        return [
            f"{prefix}{digest}{suffix}"
            for digest in [hash_text(h.hex()) for h in hashes]
            for prefix, suffix in ends
        ], len(ends)

    @staticmethod
    def parse(key: str) -> BlockKey:
        """What a key says; for tools. ValueError: it is no such key."""
        parts = key.split("@")
        try:
            model, form, *ranks = parts[:6]
            dtype, layout, block_tokens = form.split(".")
            numbers = []
            for name, text in zip(("tp", "pp", "pcp", "dcp"), ranks):
                if not text.startswith(name):
                    raise ValueError(name)
                size, rank = text[len(name) :].split(".")
                numbers += [int(size), int(rank)]
            number = parts.pop(6)[2:] if parts[6].startswith("kv") else None
            kv_group = None if number is None else int(number)
            digest = _hash_of(parts[6])
            rest = parts[7:]
            if len(rest) > 1 or (rest and rest[0][:1] not in ("l", "g")):
                raise ValueError("after the hash")
            layer = unescape(rest[0][1:]) if rest and rest[0][0] == "l" else None
            group = int(rest[0][1:]) if rest and rest[0][0] == "g" else None
            space = KeySpace(
                unescape(model), unescape(dtype), unescape(layout), int(block_tokens), *numbers
            )
            space = replace(space, kv_group=kv_group)
            if space.key(digest, layer=layer, group=group) != key:
                raise ValueError("another spelling of a key")
        except (ValueError, IndexError, TypeError) as error:
            raise ValueError(f"key: {key!r} is no block's key ({error})") from None
        return BlockKey(space, digest, layer, group)
