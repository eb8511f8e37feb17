"""The KV cache's memory: where a block's bytes are, and how they get to where the pool can take
them from.

vLLM hands over one tensor per layer, in a shape that depends on the attention backend: [2, blocks,
tokens, heads, dim], [blocks, 2, tokens, heads, dim], [blocks, heads, tokens, dim], [blocks, tokens,
dim] with multi-head latent attention, with strides that put heads before tokens or not. All that
matters here is which axis counts the blocks and how the rest lies in memory, so LayerView looks at
shape and strides alone. A block's object is its layers one after the other, each in the order of
its addresses.

HostMemory is memory that the CPU sees: puts and gets work on the cache itself, nothing is copied.
StagedMemory is memory that it does not see, or not well: a Copier moves blocks to and from a
staging buffer. The copier for torch tensors on a GPU is the only code here that touches torch."""

import ctypes
import math
import queue
from contextlib import contextmanager
from itertools import product
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

__all__ = ["LayerView", "HostMemory", "StagedMemory", "TorchCopier", "Window", "memory_of"]

MAX_RUNS = 8192


class LayerView(NamedTuple):
    """One layer: block i's bytes are at address + i * stride + offset, for each (offset, bytes) of
    runs. sizes and strides (in bytes): the axes inside a block, outermost first. heads: which of
    them counts the KV heads, -1: none does. order: which axis of the tensor each of them is, -1:
    the smaller blocks of a kernel."""

    name: str
    address: int
    blocks: int
    stride: int
    itemsize: int
    sizes: Tuple[int, ...]
    strides: Tuple[int, ...]
    heads: int
    runs: Tuple[Tuple[int, int], ...]
    order: Tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return math.prod(self.sizes) * self.itemsize

    def layout(self, heads: int) -> str:
        """The arrangement of a block's bytes, for keys: axes outermost first, the one of the heads
        with those of the whole model. Where sizes alone do not tell the axes apart, their order in
        the tensor is said, too."""
        axes = [f"h{heads}" if i == self.heads else str(size) for i, size in enumerate(self.sizes)]
        axes = [
            f"b{axis}" if at < 0 else axis for axis, at in zip(axes, self.order or range(len(axes)))
        ]
        seen = sorted(at for at in self.order if at >= 0)
        order = "".join(str(seen.index(at)) for at in self.order if at >= 0)
        told = len(set(axes)) == len(axes) or order == "".join(sorted(order))
        return "x".join(axes) + f"e{self.itemsize}" + ("" if told else f"p{order}")


def _geometry(tensor: Any) -> Tuple[int, List[int], List[int], int]:
    """(address, shape, strides in bytes, bytes of an element) of a tensor or an array."""
    shape = [int(n) for n in tensor.shape]
    if hasattr(tensor, "data_ptr"):
        item = int(tensor.element_size())
        return int(tensor.data_ptr()), shape, [int(n) * item for n in tensor.stride()], item
    if hasattr(tensor, "__array_interface__"):
        return (
            int(tensor.ctypes.data),
            shape,
            [int(n) for n in tensor.strides],
            int(tensor.itemsize),
        )
    raise TypeError(f"kv_caches: {type(tensor).__name__} is neither a tensor nor an array")


def _block_axis(shape: Sequence[int], blocks: int, name: str) -> int:
    """The axis that counts blocks: the first or second, with as many entries, or a multiple where
    kernels use smaller blocks."""
    for exact in (True, False):
        for axis in range(min(2, len(shape))):
            if shape[axis] == blocks or (
                not exact and shape[axis] > blocks and shape[axis] % blocks == 0
            ):
                return axis
    raise ValueError(
        f"kv_caches: no axis of {name}, which is {list(shape)}, counts {blocks} blocks"
    )


def _heads_axis(shape: Sequence[int], block_axis: int, heads: int, wanted: int, name: str) -> int:
    """The axis of the KV heads in the tensor's shape, -1 when it cannot be told."""
    if wanted >= 0:
        if wanted >= len(shape) or wanted == block_axis or shape[wanted] != heads:
            raise ValueError(
                f"heads_axis: axis {wanted} of {name}, which is {list(shape)}, does not count "
                f"{heads} heads"
            )
        return wanted
    usual = {5: 3, 4: 1}.get(
        len(shape), -1
    )  # [2, blocks, tokens, heads, dim] or so; [blocks, heads, tokens, dims]
    return usual if usual >= 0 and shape[usual] == heads and usual != block_axis else -1


def view_of(name: str, tensor: Any, blocks: int, heads: int, heads_axis: int = -1) -> LayerView:
    """Looks at a layer's tensor. heads: KV heads of this rank. ValueError: it cannot be cut into
    blocks."""
    address, shape, strides, item = _geometry(tensor)
    at = _block_axis(shape, blocks, name)
    heads_at = _heads_axis(shape, at, heads, heads_axis, name)
    stride = strides[at]
    axes = [
        (strides[i], shape[i], i == heads_at, i)
        for i in range(len(shape))
        if i != at and (shape[i] > 1 or i == heads_at)
    ]
    if shape[at] != blocks:  # blocks of several kernel blocks
        axes.append((stride, shape[at] // blocks, False, -1))
        stride *= shape[at] // blocks
    axes.sort(key=lambda axis: -axis[0])
    if any(step <= 0 for step, *_ in axes) or stride <= 0:
        raise ValueError(f"kv_caches: {name} has strides {strides}; all must be positive")
    run, outer = item, list(axes)
    while outer and (outer[-1][0] == run or outer[-1][1] == 1):
        run *= outer.pop()[1]
    if math.prod(size for _, size, *_ in outer) > MAX_RUNS:
        raise ValueError(
            f"kv_caches: a block of {name} is scattered over more than {MAX_RUNS} places"
        )
    offsets = [
        sum(steps)
        for steps in product(*([step * i for i in range(size)] for step, size, *_ in outer))
    ]
    if any(b - a < run for a, b in zip(offsets, offsets[1:])):
        raise ValueError(f"kv_caches: parts of a block of {name} overlap (strides {strides})")
    return LayerView(
        name, address, blocks, stride, item,
        tuple(axis[1] for axis in axes), tuple(axis[0] for axis in axes),
        next((i for i, axis in enumerate(axes) if axis[2]), -1),
        tuple((offset, run) for offset in offsets), tuple(axis[3] for axis in axes),
    )  # fmt: skip


class Window:
    """Memory for some blocks, for as long as the `with` lasts. addresses[i], sizes[i]: the pieces
    of block i, in the object's order."""

    __slots__ = ("addresses", "sizes", "good")

    def __init__(self, addresses: List[List[int]], sizes: List[List[int]]) -> None:
        self.addresses, self.sizes = addresses, sizes
        self.good: List[bool] = [True] * len(addresses)


class HostMemory:
    """A cache that the CPU sees. copies is False: a block is in use until its put has ended."""

    copies = False

    def __init__(self, layers: Sequence[LayerView]) -> None:
        self.layers = list(layers)
        self._sizes = [[size for _, size in layer.runs] for layer in self.layers]

    def block_bytes(self, layers: Sequence[int]) -> int:
        return sum(self.layers[i].bytes for i in layers)

    def mark(self) -> Any:
        """A point in the computation: what was computed before it is there for a window that waits
        for the mark."""
        return None

    def spans(self) -> List[Tuple[int, int]]:
        """(address, bytes) of the memory that puts and gets will name, for registering."""
        spans: Dict[int, int] = {}
        for layer in self.layers:
            last = layer.runs[-1]
            size = layer.stride * (layer.blocks - 1) + last[0] + last[1]
            spans[layer.address] = max(size, spans.get(layer.address, 0))
        return sorted(spans.items())

    def _window(self, layers: Sequence[int], blocks: Sequence[int]) -> Window:
        views = [self.layers[i] for i in layers]
        sizes = [size for i in layers for size in self._sizes[i]]
        addresses = [
            [v.address + v.stride * b + offset for v in views for offset, _ in v.runs]
            for b in blocks
        ]
        return Window(addresses, [sizes] * len(blocks))

    def batch(self, layers: Sequence[int], blocks: int) -> int:
        """How many of so many blocks fit in one window."""
        return blocks

    @contextmanager
    def reading(self, layers: Sequence[int], blocks: Sequence[int], mark: Any) -> Iterator[Window]:
        """The bytes of blocks, to put."""
        yield self._window(layers, blocks)

    @contextmanager
    def writing(self, layers: Sequence[int], blocks: Sequence[int], mark: Any) -> Iterator[Window]:
        """Memory to get blocks into, which nothing computed before the mark touches any more. Who
        gets them says in good which arrived."""
        yield self._window(layers, blocks)

    def close(self) -> None:
        """Nothing to give back."""


class StagedMemory(HostMemory):
    """A cache behind a copier. copies is True: a block is free for others as soon as a reading
    window is open. The staging buffer is cut into slots, one per window; who finds none waits."""

    copies = True

    def __init__(self, layers: Sequence[LayerView], copier: Any, staging: int, slots: int) -> None:
        """copier: alloc(bytes) -> address; mark(); out(mark, layer, blocks, address): bytes of
        these blocks of a layer, one after the other, to the address, done when it returns; into,
        with the same arguments: back; close(). staging: bytes of all slots."""
        super().__init__(layers)
        self._copier = copier
        self._slot_bytes = staging // slots // 4096 * 4096
        if self._slot_bytes < self.block_bytes(range(len(self.layers))):
            raise ValueError(
                f"staging_mib: {staging >> 20} MiB for {slots} threads do not hold a block of "
                f"{self.block_bytes(range(len(self.layers)))} bytes for each of them"
            )
        self._base = int(copier.alloc(self._slot_bytes * slots))
        self._spans = [(self._base, self._slot_bytes * slots)]
        self._free: "queue.Queue[int]" = queue.Queue()
        for i in range(slots):
            self._free.put(self._base + i * self._slot_bytes)

    def mark(self) -> Any:
        return self._copier.mark()

    def spans(self) -> List[Tuple[int, int]]:
        return self._spans

    def batch(self, layers: Sequence[int], blocks: int) -> int:
        return min(blocks, self._slot_bytes // self.block_bytes(layers))

    def _staged(self, layers: Sequence[int], blocks: int, slot: int) -> Tuple[Window, List[int]]:
        """A window in the slot, all blocks of a layer next to each other; and where each layer
        begins."""
        starts = []
        at = slot
        for i in layers:
            starts.append(at)
            at += self.layers[i].bytes * blocks
        sizes = [self.layers[i].bytes for i in layers]
        addresses = [
            [start + size * b for start, size in zip(starts, sizes)] for b in range(blocks)
        ]
        return Window(addresses, [sizes] * blocks), starts

    @contextmanager
    def reading(self, layers: Sequence[int], blocks: Sequence[int], mark: Any) -> Iterator[Window]:
        slot = self._free.get()
        try:
            window, starts = self._staged(layers, len(blocks), slot)
            for i, start in zip(layers, starts):
                self._copier.out(mark, i, blocks, start)
            yield window
        finally:
            self._free.put(slot)

    @contextmanager
    def writing(self, layers: Sequence[int], blocks: Sequence[int], mark: Any) -> Iterator[Window]:
        slot = self._free.get()
        try:
            window, starts = self._staged(layers, len(blocks), slot)
            yield window
            good = [i for i, arrived in enumerate(window.good) if arrived]
            if len(good) == len(blocks):
                for i, start in zip(layers, starts):
                    self._copier.into(mark, i, blocks, start)
                return
            for i, start in zip(layers, starts):
                for g in good:
                    self._copier.into(mark, i, [blocks[g]], start + self.layers[i].bytes * g)
        finally:
            self._free.put(slot)

    def close(self) -> None:
        self._copier.close()


class TorchCopier:
    """Copies blocks of torch tensors on a CUDA device, on a stream of its own, through pinned
    memory."""

    def __init__(self, layers: Sequence[LayerView], tensors: Sequence[Any]) -> None:
        import torch  # only here: everything else works without it

        self._torch = torch
        self._device = tensors[0].device
        self._cuda = self._device.type == "cuda"
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        self._views = []
        for layer, tensor in zip(layers, tensors):
            plain = tensor.view(whole[layer.itemsize])  # not all operations know all element types
            steps = [step // layer.itemsize for step in (layer.stride, *layer.strides)]
            self._views.append(
                plain.as_strided((layer.blocks, *layer.sizes), steps, plain.storage_offset())
            )
        self._layers = list(layers)
        self._stream = torch.cuda.Stream(self._device) if self._cuda else None
        self._staging: Any = None

    def alloc(self, size: int) -> int:
        self._staging = self._torch.empty(size, dtype=self._torch.uint8, pin_memory=self._cuda)
        return int(self._staging.data_ptr())

    def mark(self) -> Any:
        """An event on the stream that computes; call it from the thread that launches the
        computation."""
        if not self._cuda:
            return None
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def _part(self, layer: int, blocks: int, address: int) -> Any:
        view = self._layers[layer]
        at = address - int(self._staging.data_ptr())
        part = self._staging[at : at + view.bytes * blocks].view(self._views[layer].dtype)
        return part.view(blocks, *view.sizes)

    @contextmanager
    def _on_stream(self, mark: Any) -> Iterator[None]:
        """After the mark, and done at the end."""
        if self._stream is None:
            yield
            return
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            if mark is not None:
                self._stream.wait_event(mark)
            yield
            self._stream.synchronize()

    def out(self, mark: Any, layer: int, blocks: Sequence[int], address: int) -> None:
        with self._on_stream(mark):
            index = self._torch.tensor(list(blocks), device=self._device)
            self._part(layer, len(blocks), address).copy_(
                self._views[layer].index_select(0, index), non_blocking=True
            )

    def into(self, mark: Any, layer: int, blocks: Sequence[int], address: int) -> None:
        with self._on_stream(mark):
            index = self._torch.tensor(list(blocks), device=self._device)
            part = self._part(layer, len(blocks), address).to(self._device, non_blocking=True)
            self._views[layer].index_copy_(0, index, part)

    def close(self) -> None:
        self._views, self._staging = [], None


def distinct(kv_caches: Dict[str, Any]) -> Tuple[List[str], List[Any]]:
    """Names and tensors of the layers that have memory of their own: some models let layers share
    it."""
    names: List[str] = []
    tensors: List[Any] = []
    seen = set()
    for name, tensor in kv_caches.items():
        if isinstance(tensor, (list, tuple)):
            raise ValueError(
                f"kv_caches: {name} has a state instead of blocks (Mamba); such models are not "
                "supported"
            )
        address = _geometry(tensor)[0]
        if address not in seen:
            seen.add(address)
            names.append(name)
            tensors.append(tensor)
    return names, tensors


def memory_of(
    kv_caches: Dict[str, Any],
    blocks: int,
    heads: int,
    heads_axis: int,
    staging: int,
    slots: int,
    copier: Optional[Any] = None,
) -> HostMemory:
    """The cache that vLLM registered. heads: KV heads of this rank. staging: bytes, for a cache on
    a GPU. copier: one for memory of another kind, made as copier(layers, tensors). ValueError,
    TypeError: tensors that are not understood."""
    names, tensors = distinct(kv_caches)
    if not names:
        raise ValueError("kv_caches: there are none")
    layers = [
        view_of(name, tensor, blocks, heads, heads_axis) for name, tensor in zip(names, tensors)
    ]
    kinds = {getattr(getattr(tensor, "device", None), "type", "cpu") for tensor in tensors}
    if copier is None and kinds == {"cpu"}:
        return HostMemory(layers)
    if copier is None and kinds != {"cuda"}:
        raise ValueError(
            f"kv_caches: on {', '.join(sorted(kinds))}; this connector knows cpu and cuda"
        )
    return StagedMemory(layers, (copier or TorchCopier)(layers, tensors), staging, slots)


class Scratch:
    """Memory for bytes that nobody wants."""

    def __init__(self, size: int) -> None:
        self._buffer = (ctypes.c_char * max(size, 1))()
        self.span = (ctypes.addressof(self._buffer), max(size, 1))
