"""Where a block's bytes are in the tensors that vLLM hands over: one per layer, in a shape that
depends on the attention backend: [2, blocks, tokens, heads, dim], [blocks, 2, tokens, heads, dim],
[blocks, heads, tokens, dim], [blocks, tokens, dim] with multi-head latent attention, with strides
that put heads before tokens or not; recurrent layers have a list of them, [blocks, ...] each. All
that matters here is which axis counts the blocks and how the rest lies in memory, so LayerView
looks at shape and strides alone."""

import math
from itertools import product
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

__all__ = ["LayerView", "distinct", "geometry_of", "view_of"]

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


def geometry_of(tensor: Any) -> Tuple[int, List[int], List[int], int]:
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
    address, shape, strides, item = geometry_of(tensor)
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


def distinct(kv_caches: Dict[str, Any]) -> Tuple[List[str], List[Any]]:
    """Names and tensors of the layers that have memory of their own: some models let layers share
    it."""
    names: List[str] = []
    tensors: List[Any] = []
    seen = set()
    for name, tensor in kv_caches.items():
        if isinstance(tensor, (list, tuple)):
            raise ValueError(
                f"kv_caches: {name} has states (Mamba) where vLLM has announced blocks of attention"
            )
        address = geometry_of(tensor)[0]
        if address not in seen:
            seen.add(address)
            names.append(name)
            tensors.append(tensor)
    return names, tensors
