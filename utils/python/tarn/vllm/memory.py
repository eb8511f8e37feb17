"""The KV cache's memory: how a block's bytes get to where the pool can take them from. Where they
are is in tensors.py; a block's object is its layers one after the other, each in the order of its
addresses.

HostMemory is memory that the CPU sees: puts and gets work on the cache itself, nothing is copied.
StagedMemory is memory that it does not see, or not well: a Copier moves blocks to and from a
staging buffer. The copier for torch tensors on a GPU is the only code here that touches torch."""

import ctypes
import queue
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from .tensors import LayerView, distinct, view_of

__all__ = ["HostMemory", "StagedMemory", "TorchCopier", "Window", "memory_of", "memory_on"]

_ALIGNMENT = 16  # of each layer in a staging buffer: no element is larger


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

    def __init__(
        self,
        layers: Sequence[LayerView],
        copier: Any,
        staging: int,
        slots: int,
        together: Sequence[Sequence[int]] = (),
    ) -> None:
        """copier: alloc(bytes) -> address; mark(); out(mark, layer, blocks, address): bytes of
        these blocks of a layer, one after the other, to the address, done when it returns; into,
        with the same arguments: back; close(). staging: bytes of all slots. together: layers that
        make up one object; default: all."""
        super().__init__(layers)
        self._copier = copier
        self._slot_bytes = staging // slots // 4096 * 4096
        largest = max(map(self._slot_need, together or [range(len(self.layers))]))
        if self._slot_bytes < largest:
            raise ValueError(
                f"staging_mib: {staging >> 20} MiB for {slots} threads do not hold a block of "
                f"{largest} bytes for each of them"
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

    def _slot_need(self, layers: Sequence[int], blocks: int = 1) -> int:
        """Bytes of a slot that so many blocks take."""
        return self.block_bytes(layers) * blocks + (len(layers) - 1) * (_ALIGNMENT - 1)

    def batch(self, layers: Sequence[int], blocks: int) -> int:
        spare = self._slot_bytes - self._slot_need(layers, 0)
        return min(blocks, spare // self.block_bytes(layers))

    def _staged(self, layers: Sequence[int], blocks: int, slot: int) -> Tuple[Window, List[int]]:
        """A window in the slot, all blocks of a layer next to each other; and where each layer
        begins."""
        starts = []
        at = slot
        for i in layers:
            starts.append(at)
            at += self.layers[i].bytes * blocks
            at += -at % _ALIGNMENT
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
    return memory_on(layers, tensors, staging, slots, copier)


def memory_on(
    layers: Sequence[LayerView],
    tensors: Sequence[Any],
    staging: int,
    slots: int,
    copier: Optional[Any] = None,
    together: Sequence[Sequence[int]] = (),
) -> HostMemory:
    """The memory of these layers, by the kind of their tensors; together: see StagedMemory."""
    kinds = {getattr(getattr(tensor, "device", None), "type", "cpu") for tensor in tensors}
    if copier is None and kinds == {"cpu"}:
        return HostMemory(layers)
    if copier is None and kinds != {"cuda"}:
        raise ValueError(
            f"kv_caches: on {', '.join(sorted(kinds))}; this connector knows cpu and cuda"
        )
    copies = (copier or TorchCopier)(layers, tensors)
    return StagedMemory(layers, copies, staging, slots, together)


class Scratch:
    """Memory for bytes that nobody wants."""

    def __init__(self, size: int) -> None:
        self._buffer = (ctypes.c_char * max(size, 1))()
        self.span = (ctypes.addressof(self._buffer), max(size, 1))
