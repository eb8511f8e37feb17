"""LMCache's memory objects: where their bytes are, what they hold, getting new ones and giving them
back.

Nothing here imports LMCache or torch: shapes and dtypes are made with the classes of those that the
engine handed over."""

from __future__ import annotations

import inspect
from typing import Any, Dict, Iterable, List, Optional, Sequence

from ..memory import Pinned, pin
from .metadata import Layout, dtype_name


def memory_of(obj: Any, writable: bool = False) -> Pinned:
    """Address and bytes of an object's payload. The memory is not copied, and stays where it is
    while the result lives and the object is referenced. InvalidArgument: it is read-only, or not
    one piece."""
    size = int(obj.get_size())
    address = getattr(obj, "data_ptr", None)
    if isinstance(address, int) and address > 0:
        return Pinned(address, size, obj)
    data = obj.byte_array
    whole = pin(
        data if isinstance(data, (bytes, bytearray)) else memoryview(data).cast("B"),
        writable,
        "byte_array",
    )
    if whole.size < size:
        raise ValueError(f"a memory object of {size} bytes has a byte_array of {whole.size}")
    return Pinned(whole.address, size, whole)


def layout_of(obj: Any) -> Layout:
    """ValueError: it cannot be described by a header."""
    size = int(obj.get_size())
    fmt = obj.get_memory_format()
    meta = getattr(obj, "metadata", None) or getattr(obj, "meta", None)
    shapes, dtypes = getattr(meta, "shapes", None), getattr(meta, "dtypes", None)
    if shapes and dtypes and len(shapes) > 1:
        return Layout.make(fmt.name, shapes, dtypes, size)
    # The lists of a chunk that was cut to fewer tokens still have its first shape; the single one
    # is right.
    return Layout.make(fmt.name, [obj.get_shape()], [obj.get_dtype()], size)


class Headers:
    """Headers by what they say: almost all chunks have the same one. Threads may share it."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._known: Dict[Any, bytes] = {}

    def of(self, obj: Any) -> bytes:
        """The header of an object's chunk. ValueError: it cannot be described by one."""
        meta = getattr(obj, "metadata", None) or getattr(obj, "meta", None)
        shapes = getattr(meta, "shapes", None)
        if shapes and len(shapes) > 1:
            return layout_of(obj).packed()
        key = (obj.get_memory_format(), tuple(obj.get_shape()), obj.get_dtype(), obj.get_size())
        header = self._known.get(key)
        if header is None:
            header = layout_of(obj).packed()
            if len(self._known) < self._most:
                self._known[key] = header
        return header


def release(objs: Iterable[Any]) -> None:
    """Drops one reference of each that is not None."""
    for obj in objs:
        if obj is not None:
            obj.ref_count_down()


class Allocator:
    """Memory objects by layout, out of LMCache's local CPU backend. Threads may share it."""

    def __init__(self, backend: Any, metadata: Any, formats: Any) -> None:
        """`formats`: the enum of memory formats, None: take it from what `learn` is shown."""
        self.backend = backend
        self._formats = formats
        self._dtypes: Dict[str, Any] = {"": None}
        self._shape_class: Any = None
        self._many = getattr(backend, "batched_allocate", None)
        self._one_extra = _without_waiting(getattr(backend, "allocate", None))
        self._many_extra = _without_waiting(self._many)
        for dtype in list(getattr(metadata, "get_dtypes", lambda: [])()) + [
            getattr(metadata, "kv_dtype", None)
        ]:
            self._dtypes[dtype_name(dtype)] = dtype
        for shape in list(getattr(metadata, "get_shapes", lambda: [])()):
            self._shape_class = type(shape)

    def learn(self, obj: Any) -> None:
        """Remembers the classes of the format, the shape and the dtype of an object of the
        engine's."""
        if self._formats is None:
            self._formats = type(obj.get_memory_format())
        dtype = obj.get_dtype()
        self._dtypes[dtype_name(dtype)] = dtype
        if self._shape_class is None:
            self._shape_class = type(obj.get_shape())

    def shape(self, dims: Sequence[int]) -> Any:
        """torch.Size, or whatever the engine uses for shapes."""
        return self._shape_class(dims) if self._shape_class else _torch_size(dims)

    def _dtype(self, name: str) -> Any:
        if name not in self._dtypes:
            import torch

            found = getattr(torch, name, None)
            if not isinstance(found, torch.dtype):
                raise ValueError(f"torch has no dtype {name!r}")
            self._dtypes[name] = found
        return self._dtypes[name]

    def _arguments(self, layout: Layout) -> Any:
        if self._formats is None:
            raise ValueError("the enum of memory formats is not known yet")
        shapes = [self.shape(dims) for _, dims in layout.groups]
        dtypes = [self._dtype(name) for name, _ in layout.groups]
        try:
            fmt = self._formats[layout.format]
        except KeyError:
            raise ValueError(
                f"this version of LMCache has no memory format {layout.format!r}"
            ) from None
        if len(shapes) == 1:
            return shapes[0], dtypes[0], fmt
        return shapes, dtypes, fmt

    def one(self, layout: Layout) -> Optional[Any]:
        """An object with one reference, None: there is no memory. ValueError: not with this
        LMCache."""
        shapes, dtypes, fmt = self._arguments(layout)
        return self.backend.allocate(shapes, dtypes, fmt, **self._one_extra)

    def many(self, layout: Layout, n: int) -> List[Any]:
        """Up to n objects: fewer when memory runs out. ValueError: not with this LMCache."""
        if self._many is not None and n > 1:
            shapes, dtypes, fmt = self._arguments(layout)
            objs = self._many(shapes, dtypes, n, fmt, **self._many_extra)
            if objs:
                return list(objs)
        some: List[Any] = []
        try:
            while len(some) < n:
                obj = self.one(layout)
                if obj is None:
                    break
                some.append(obj)
        except BaseException:
            release(some)
            raise
        return some

    def shrink(self, obj: Any, layout: Layout) -> None:
        """Makes an object of a full chunk one of fewer tokens; its bytes are the first ones.
        Freeing it frees all of it."""
        shape = self.shape(layout.groups[0][1])
        if hasattr(obj, "resize_raw_view"):
            obj.resize_raw_view(layout.size)
        elif getattr(obj, "raw_data", None) is not None:
            raw = obj.raw_data
            width = (
                raw.element_size() if hasattr(raw, "element_size") else getattr(raw, "itemsize", 1)
            )
            obj.raw_data = raw[: layout.size // width]
        obj.meta.shape = shape
        if getattr(obj.meta, "shapes", None) is not None:
            obj.meta.shapes = [shape]
        sums = getattr(obj, "group_prefix_sum", None)
        if sums is not None:
            obj.group_prefix_sum = type(sums)([0, layout.size])


def _torch_size(dims: Sequence[int]) -> Any:
    import torch

    return torch.Size(list(dims))


def _without_waiting(allocate: Any) -> Dict[str, Any]:
    """Without memory a get is a miss: waiting for some, which LMCache's allocators do in a busy
    loop, would keep the thread from what may free it."""
    try:
        return {"busy_loop": False} if "busy_loop" in inspect.signature(allocate).parameters else {}
    except (TypeError, ValueError):
        return {}
