"""Tensors in the store: those of torch where it is there, else arrays of numpy. _layout.py says how
they lie, _parallel.py how ranks share them. Every method is there for one key and, as batch_...,
for many; one definition makes both (_families.py)."""

from __future__ import annotations

import copy
import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Union

from tarn.batch import Batch
from tarn.memory import pin

from mooncake import _safetensors
from mooncake import _parallel as parallel
from mooncake._common import (
    FILE_WRITE_FAIL,
    INVALID_PARAMS,
    OBJECT_NOT_FOUND,
    Key,
    key_of,
    log,
    suffixed,
)
from mooncake._families import family
from mooncake._layout import DIMENSIONS, HEADER, Axis, Head, Plain, head_of, plain, tensor_of
from mooncake._parallel import Joined, Piece
from mooncake._reach import Reach
from mooncake._types import BufferHandle

if TYPE_CHECKING:
    from mooncake._types import ReplicateConfig

Config = Optional["ReplicateConfig"]
Pieces = Optional[List[Piece]]  # None: what was asked for makes no sense


# --- puts: each plans the objects that a key stands for; _write_pieces stores all in one batch


def _source_tensors(call: SimpleNamespace) -> List[Optional[Plain]]:
    """The tensors, or those that lie in memory as get_tensor_into left them there."""
    if hasattr(call, "tensor"):
        return [plain(t) for t in call.tensor]
    return [_in_memory(*where) for where in zip(call.buffer_ptr, call.size)]


def _in_memory(address: int, size: int) -> Optional[Plain]:
    there = address and size >= HEADER and not Reach().beyond([address], [size], False)
    head = head_of(_bytes_at(address, HEADER), size) if there else None
    if head is None:
        log.error("at %#x there is no whole tensor in %d bytes", address, size)
        return None
    return Plain(head, address + head.start, None)


def _put_whole(store: Any, call: SimpleNamespace) -> List[int]:
    sources = _source_tensors(call)
    if not hasattr(call, "tensor") and None in sources:
        return [INVALID_PARAMS] * len(sources)
    return _write_pieces(
        store, call, [s and [parallel.whole_piece(k, s)] for k, s in zip(call.key, sources)]
    )


def _put_with_tp(store: Any, call: SimpleNamespace) -> List[int]:
    if call.tp_size <= 1:
        return _put_whole(store, call)
    axes = (Axis("tp", 0, call.tp_size, call.split_dim),)
    return _write_pieces(
        store,
        call,
        [s and _all_shares(k, s, axes) for k, s in zip(call.key, _source_tensors(call))],
    )


def _all_shares(key: Key, source: Plain, axes: Sequence[Axis]) -> Pieces:
    cut = parallel.cutting(axes)
    assert cut is not None
    pieces = []
    for rank in range(cut.size):
        mine = parallel.ranked(axes, rank, cut.size, cut.split_dim)
        piece = parallel.cut_piece(parallel.share_key(key, mine), source, mine)
        if piece is None:
            return None
        pieces.append(piece)
    return pieces


def _put_parallel(store: Any, call: SimpleNamespace) -> List[int]:
    rows = zip(call.key, _source_tensors(call), call.parallelism, call.writer_partition)
    if not any(call.parallelism) and not any(call.writer_partition):
        return _put_whole(store, call)
    return _write_pieces(
        store, call, [s and _parallel_pieces(k, s, p, w, call) for k, s, p, w in rows]
    )


def _parallel_pieces(
    key: Key, source: Plain, parallelism: Any, partition: Any, call: SimpleNamespace
) -> Pieces:
    """A tensor is cut where a writer's partition is given, or more axes than one; with the one axis
    "tp" it is the share itself. In memory there is the whole tensor, and all shares of it are
    stored."""
    if parallelism is None and partition is None:
        return [parallel.whole_piece(key, source)]
    if parallelism is not None and partition is not None:
        log.error("%s: %r: parallelism or writer_partition, not both", call.what, key)
        return None
    if partition is not None:
        writer = parallel.writer_of(partition)
        piece = writer and parallel.cut_piece(parallel.writer_key(key, writer), source, (writer,))
        manifest = suffixed(key, parallel.WRITER_MANIFEST)
        return (
            [piece, parallel.manifest_piece(manifest, source.head, writer)]
            if piece and writer
            else None
        )
    axes = parallel.axes_of(parallelism)
    if axes is None:
        return None
    return _axes_pieces(key, source, axes, hasattr(call, "tensor"))


def _axes_pieces(key: Key, source: Plain, axes: Tuple[Axis, ...], is_share: bool) -> Pieces:
    cut, name = parallel.cutting(axes), parallel.share_key(key, axes)
    if cut is None or cut.split_dim is None:
        return [parallel.whole_piece(name, source, source.head._replace(axes=axes))]
    head = source.head
    pieces: List[Optional[Piece]]
    if not is_share:
        pieces = list(_all_shares(key, source, axes) or ()) or [None]
    elif len(axes) > 1:
        pieces = [parallel.cut_piece(name, source, axes)]
    else:
        if not 0 <= cut.split_dim < len(head.shape):
            log.error("split_dim %d of a tensor with %d dimensions", cut.split_dim, len(head.shape))
            return None
        sizes = list(head.shape)
        sizes[cut.split_dim] *= cut.size
        head = head._replace(whole=tuple(sizes), axes=axes)
        pieces = [parallel.whole_piece(name, source, head)]
    found = [p for p in pieces if p is not None]
    manifest = parallel.manifest_piece(suffixed(key, parallel.MANIFEST), head, cut)
    return found + [manifest] if len(found) == len(pieces) else None


def _write_pieces(store: Any, call: SimpleNamespace, plans: Sequence[Pieces]) -> List[int]:
    """Stores the objects of all keys: a code per key, that of the first of its objects which could
    not be stored."""
    config, codes = getattr(call, "config", None), [
        INVALID_PARAMS if p is None else 0 for p in plans
    ]
    rows = [(i, piece) for i, pieces in enumerate(plans) for piece in pieces or ()]
    if config is not None and getattr(config, "group_ids", None) is not None:
        if len(config.group_ids) != len(plans):
            log.error("%s: %d group_ids for %d keys", call.what, len(config.group_ids), len(plans))
            return [INVALID_PARAMS] * len(plans)
        groups, config = config.group_ids, copy.copy(config)
        config.group_ids = [groups[i] for i, _ in rows]
    begins = [pin(piece.begin) for _, piece in rows]
    stored = store._put(
        call.what,
        [piece.key for _, piece in rows],
        [[b.address, *piece.addresses] for b, (_, piece) in zip(begins, rows)],
        [[b.size, *piece.sizes] for b, (_, piece) in zip(begins, rows)],
        config,
        call.replace,
    )
    for (i, _), code in zip(rows, stored):
        codes[i] = codes[i] or code
    return codes


# --- gets


def _get_whole(store: Any, call: SimpleNamespace) -> List[Any]:
    return list(_fetch_tensors(store, call, list(call.key)))


def _get_with_tp(store: Any, call: SimpleNamespace) -> List[Any]:
    suffix = f"_tp_{call.tp_rank}" if call.tp_size > 1 else ""
    return _fetch_tensors(store, call, [suffixed(k, suffix) for k in call.key])


def _get_parallel(store: Any, call: SimpleNamespace) -> List[Any]:
    return _fetch_tensors(
        store, call, [_resolved(store, k, t) for k, t in zip(call.key, call.target)]
    )


def _resolved(store: Any, key: Key, target: Any) -> Union[None, Key, Joined]:
    """The object that a target means, or a tensor that is to be joined; None, with a line in the
    log: there is none."""
    if target is None:
        return key
    mode = str(getattr(target, "mode", None)).lower()
    parallelism = getattr(target, "parallelism", None)
    if parallelism is None and mode == "as_stored":
        return key
    if parallelism is None and mode == "full":
        count = _manifest(store, suffixed(key, parallel.WRITER_MANIFEST))
        return (_joined_writers(store, key, Axis("tp", 0, *count)) if count else None) or key
    axes = parallel.axes_of(parallelism)
    if axes is None or mode not in ("shard", "full"):
        log.error("%r: a ReadTarget of mode %s that makes no sense", key, mode)
        return None
    return (
        _shard_of(store, key, axes) if mode == "shard" else _joined_shares(store, key, axes, None)
    )


def _shard_of(store: Any, key: Key, axes: Tuple[Axis, ...]) -> Union[None, Key, Joined]:
    """A share as it was stored, by its own name or a writer's; or out of shares of another size."""
    single = len(axes) == 1 and axes[0].kind == "tp"
    names = [parallel.share_key(key, axes)] + (
        [parallel.writer_key(key, axes[0])] if single else []
    )
    for name, head in zip(names, _heads_of(store, names)):
        if head is not None and head.axes == axes:
            return name
    found = _joined_shares(store, key, axes, axes) if parallel.cutting(axes) else None
    return found or (names[0] if single else None)


def _joined_shares(
    store: Any, key: Key, axes: Tuple[Axis, ...], wanted: Optional[Tuple[Axis, ...]]
) -> Optional[Joined]:
    """Out of shares that differ in the rank of the cut. How many there are says the manifest, or
    the first share, whose name does not tell; else as many as the axes say."""
    cut = parallel.cutting(axes)
    if cut is None:
        log.error("%r: only shares along an axis tp can be joined", key)
        return None
    layouts = [_manifest(store, suffixed(key, parallel.MANIFEST)), (cut.size, cut.split_dim)]
    if len(axes) == 1:
        first = _heads_of(store, [parallel.share_key(key, parallel.ranked(axes, 0, 1, 0))])[0]
        stored = parallel.cutting(first.axes) if first is not None else None
        layouts[1] = stored and (stored.size, stored.split_dim)
    for layout in layouts:
        if layout is None or layout[1] != cut.split_dim or layout[0] > parallel.SHARES_MAX:
            continue
        shares = [parallel.ranked(axes, rank, *layout) for rank in range(layout[0])]
        names = [parallel.share_key(key, share) for share in shares]
        heads = [
            h for h, s in zip(_heads_of(store, names), shares) if h is not None and h.axes == s
        ]
        if len(heads) == len(names):
            return parallel.joined(names, heads, Axis("tp", 0, *layout), wanted)
    log.error("%r: its shares are not there, or are not those that are asked for", key)
    return None


def _joined_writers(store: Any, key: Key, cut: Axis) -> Optional[Joined]:
    writers = [cut._replace(rank=rank) for rank in range(cut.size)]
    names = [parallel.writer_key(key, writer) for writer in writers]
    heads = [
        h for h, w in zip(_heads_of(store, names), writers) if h is not None and h.axes == (w,)
    ]
    return parallel.joined(names, heads, cut, None) if len(heads) == len(names) else None


def _manifest(store: Any, name: Key) -> Optional[Tuple[int, int]]:
    return parallel.manifest_cut(store.get(name))


def _heads_of(store: Any, names: Sequence[Key]) -> List[Optional[Head]]:
    """The headers of these objects, in one round of requests; None: no such tensor."""
    n = len(names)
    memory = (ctypes.c_ubyte * (HEADER * n))()
    places = [ctypes.addressof(memory) + i * HEADER for i in range(n)]

    def work(client: Any) -> List[Tuple[int, int]]:
        batch = Batch(store._keys(names), places, [HEADER] * n, [0] * n, [HEADER] * n)
        client._get_batch(batch)
        return list(zip(batch.results(), batch.value_sizes()))

    got = store._run("get_tensor", work, lambda code: [(code, 0)] * n)
    rows = [memoryview(memory)[i * HEADER : (i + 1) * HEADER] for i in range(n)]
    return [head_of(row, size) if read == HEADER else None for row, (read, size) in zip(rows, got)]


def _read_parts(store: Any, reads: Sequence[Tuple[Key, int, List[int], List[int]]]) -> List[int]:
    """Parts of values: of each its key, from where on, and where to: addresses and sizes. Bytes, or
    a negative number."""
    keys, offsets, addresses, sizes = (list(column) for column in zip(*reads))

    def work(client: Any) -> List[int]:
        wants = [sum(s) for s in sizes]
        got: List[int] = client.get_into_many(
            store._keys(keys), addresses, sizes, offsets=offsets, wants=wants
        )
        return got

    got: List[int] = store._run("get_tensor", work, lambda code: [code] * len(keys))
    return got


def _fetch_tensors(
    store: Any, call: SimpleNamespace, plans: Sequence[Union[None, Key, Joined]]
) -> List[Any]:
    """Tensors, in memory of their own or in the caller's: of each the object, or the shares it is
    joined from."""
    into = list(zip(call.buffer_ptr, call.size)) if hasattr(call, "buffer_ptr") else None
    if into is not None and (store._client is None or not all(address for address, _ in into)):
        log.error("%s: this store is not set up, or a buffer has no address", call.what)
        return [call.refused] * len(plans)
    usable = into and store._usable_rows(call.what, *zip(*into), True)
    if usable is not None:
        plans = [p if i in usable else None for i, p in enumerate(plans)]
    results: List[Any] = [None] * len(plans)
    alone = [i for i, p in enumerate(plans) if p is not None and not isinstance(p, Joined)]
    names: List[Any] = [plans[i] for i in alone]
    if into is None:
        found = store.batch_get_buffer(names) if names else []
    else:
        got = store.batch_get_into(names, [into[i][0] for i in alone], [into[i][1] for i in alone])
        found = [None if n < 0 else _bytes_at(into[i][0], n) for i, n in zip(alone, got)]
    for i, name, value in zip(alone, names, found):
        results[i] = None if value is None else tensor_of(value, name)
    _join_shares(store, plans, into, results)
    return results


def _bytes_at(address: int, size: int) -> Any:
    return (ctypes.c_ubyte * size).from_address(address)


def _join_shares(
    store: Any, plans: Sequence[Any], into: Optional[List[Tuple[int, int]]], results: List[Any]
) -> None:
    """Those that are joined from shares, all in one round of requests."""
    reads, owners = [], []
    targets = {
        i: _target_memory(p, into[i] if into else None)
        for i, p in enumerate(plans)
        if isinstance(p, Joined)
    }
    for i, memory in targets.items():
        if memory is None:
            continue
        base = pin(memory, True).address + HEADER
        for name, start, places, sizes in plans[i].reads():
            reads.append((name, start, [base + place for place in places], sizes))
            owners.append(i)
    failed = {
        i
        for i, read, n in zip(owners, reads, _read_parts(store, reads) if reads else [])
        if n != sum(read[3])
    }
    for i, memory in targets.items():
        if memory is not None and i not in failed:
            memory[:HEADER] = plans[i].head.packed()
            results[i] = tensor_of(memory, plans[i].names[0])


def _target_memory(plan: Joined, where: Optional[Tuple[int, int]]) -> Any:
    """Memory for it: new, or the caller's if it is large enough."""
    size = HEADER + plan.head.size
    if where is None:
        return BufferHandle(size)
    if where[1] < size:
        log.error("%r: %d bytes are needed, the buffer has %d", plan.names[0], size, where[1])
        return None
    return _bytes_at(where[0], size)


class TensorMethods:
    """Part of MooncakeDistributedStore. Puts answer a code, gets a tensor or None."""

    _put: Any
    get_buffer: Any

    @family(_put_whole, upserts=True)
    def put_tensor(self, key: Key, tensor: Any) -> Any:
        """Stores a tensor (of a GPU: by way of host memory)."""

    @family(_put_whole, upserts=True)
    def pub_tensor(self, key: Key, tensor: Any, config: Config = None) -> Any:
        """As put_tensor, with a ReplicateConfig."""

    @family(_put_whole, upserts=True)
    def put_tensor_from(self, key: Key, buffer_ptr: int, size: int) -> Any:
        """Stores memory that get_tensor_into filled, header and all. Of many: all, or none where
        one is no tensor."""

    @family(_put_with_tp)
    def put_tensor_with_tp(
        self, key: Key, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        """Stores the shares of all tp_size ranks, cut along split_dim. (tp_rank says who asks; it
        cuts nothing.)"""

    @family(_put_with_tp)
    def pub_tensor_with_tp(
        self,
        key: Key,
        tensor: Any,
        config: Config = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Any:
        """As put_tensor_with_tp, with a ReplicateConfig."""

    @family(_put_with_tp)
    def put_tensor_with_tp_from(
        self,
        key: Key,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Any:
        """As put_tensor_with_tp, of a whole tensor in memory that get_tensor_into filled."""

    @family(_put_parallel, upserts=True)
    def put_tensor_with_parallelism(
        self,
        key: Key,
        tensor: Any,
        parallelism: Any = None,
        config: Config = None,
        writer_partition: Any = None,
    ) -> Any:
        """Stores a rank's share, or without parallelism all of it. With the one axis "tp" the
        tensor is the share already; with more axes, or a writer_partition, it is the whole, and the
        share is cut out of it."""

    @family(_put_parallel, upserts=True)
    def put_tensor_with_parallelism_from(
        self,
        key: Key,
        buffer_ptr: int,
        size: int,
        parallelism: Any = None,
        config: Config = None,
        writer_partition: Any = None,
    ) -> Any:
        """The same of a whole tensor in memory; with an axis "tp" the shares of all its ranks."""

    @family(_get_whole, gets=True)
    def get_tensor(self, key: Key) -> Any:
        """The tensor, in host memory of its own; None if there is none."""

    @family(_get_whole, gets=True)
    def get_tensor_into(self, key: Key, buffer_ptr: int, size: int) -> Any:
        """The tensor in the caller's memory, whose first bytes are the header; None if there is
        none, or no room. Of many: -600 for each where there are not as many addresses or sizes."""

    @family(_get_with_tp, gets=True)
    def get_tensor_with_tp(
        self, key: Key, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        """The share of a rank."""

    @family(_get_with_tp, gets=True)
    def get_tensor_with_tp_into(
        self,
        key: Key,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Any:
        """The share of a rank in the caller's memory."""

    @family(_get_parallel, gets=True, refused=None)
    def get_tensor_with_parallelism(self, key: Key, target: Any = None) -> Any:
        """What a ReadTarget asks for: the object as it was stored, a rank's share of it, or the
        whole; joined from shares where they were cut for another number of ranks."""

    @family(_get_parallel, gets=True, refused=None)
    def get_tensor_with_parallelism_into(
        self, key: Key, buffer_ptr: int, size: int, target: Any = None
    ) -> Any:
        """The same in the caller's memory, behind a header."""

    # --- safetensors files

    def save_tensor_to_safetensor(self, key: Key, file_name: Optional[str] = None) -> int:
        """Writes a tensor to a file of that format, under its key. 0; -704: there is none; -1103:
        no file can be written."""
        value: Optional[BufferHandle] = self.get_buffer(key)
        head = None if value is None else head_of(value, len(value))
        if value is None or head is None:
            return OBJECT_NOT_FOUND
        name, elements = str(key_of(key)), memoryview(value)[head.start :]
        try:
            _safetensors.save(file_name or name, name, head.type, head.shape, elements)
        except OSError as e:
            log.error("save_tensor_to_safetensor: %s", e)
            return FILE_WRITE_FAIL
        return 0

    def load_tensor_from_safetensor(self, key: Optional[str] = None, file_name: str = "") -> Any:
        """Stores the tensor of a file, that of the key or else the first, and answers it; None
        where that is not possible."""
        try:
            number, sizes, elements = _safetensors.load(file_name, key)
        except (OSError, ValueError) as e:
            log.error("load_tensor_from_safetensor: %s", e)
            return None
        if len(sizes) > DIMENSIONS:
            log.error("load_tensor_from_safetensor: %s: %d dimensions", file_name, len(sizes))
            return None
        shape = tuple(sizes)
        value = bytearray(Head(number, shape, shape).packed() + elements)
        tensor, memory = tensor_of(value, file_name), pin(value)
        if tensor is None:
            return None
        where = [memory.address], [memory.size]
        stored = self._put("load_tensor_from_safetensor", [key or file_name], *where, None, False)
        return tensor if stored[0] == 0 else None
