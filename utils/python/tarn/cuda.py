"""Pool memory, pinned for a GPU: blocks that a view shows are copied once, from the pool straight
to the device.

A copy from ordinary memory to a GPU goes through a buffer of the driver's: two copies, and the
caller waits for the first. Memory that the driver has pinned is read by the GPU itself, in the
background. Pinning costs about as much as copying, so it is not done per block: the segment that a
view lies in is pinned in large windows, each when the first view in it is, and stays so.

    pinner = Pinner(device=0)
    with client.view(key) as view, pinner.pin(view) as pinned:
        pinned.copy_to(device_address, stream=stream)  # returns at once
        pinned.finish()  # the copy has ended, and the lease had not: the bytes are right

CUDA's driver library is looked for when a Pinner is made (libcuda.so.1, or the file that
$TARN_CUDA_LIB names); without it, or without a device, CudaMissing says why, and engines go on as
they do without this module. Where single memory cannot be pinned (an old device that refuses
read-only memory, a bound) copies still work, at the speed of ordinary memory: PinnedView.why says
why.

Device addresses and streams are plain integers: tensor.data_ptr(),
torch.cuda.current_stream().cuda_stream. All calls may come from any thread; the device's primary
context is used, which is torch's, too."""

from __future__ import annotations

import ctypes as C
import mmap
import os
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from ._lib import failed, lib, text
from ._scope import Closes, Releases
from .errors import Closed, Error, InvalidArgument, NotSupported, Status
from .memory import Pinned, pin

__all__ = ["CudaError", "CudaMissing", "Driver", "PinnedView", "Pinner", "why_not"]

_PORTABLE, _READ_ONLY = 0x01, 0x08  # CU_MEMHOSTREGISTER_*
_HOST_PAGE_TABLES, _READ_ONLY_SUPPORTED = 100, 113  # CU_DEVICE_ATTRIBUTE_*
_ALREADY_REGISTERED = 712  # CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED

_P, _U64, _SIZE, _INT, _UINT = C.c_void_p, C.c_uint64, C.c_size_t, C.c_int, C.c_uint
_PROTOTYPES: Dict[str, List[Any]] = {
    "cuInit": [_UINT],
    "cuDeviceGet": [_P, _INT],
    "cuDeviceGetCount": [_P],
    "cuDeviceGetAttribute": [_P, _INT, _INT],
    "cuDevicePrimaryCtxRetain": [_P, _INT],
    "cuDevicePrimaryCtxRelease_v2": [_INT],
    "cuCtxPushCurrent_v2": [_P],
    "cuCtxPopCurrent_v2": [_P],
    "cuCtxSynchronize": [],
    "cuMemHostRegister_v2": [_P, _SIZE, _UINT],
    "cuMemHostUnregister": [_P],
    "cuMemcpyHtoDAsync_v2": [_U64, _P, _SIZE, _P],
    "cuMemcpyDtoHAsync_v2": [_P, _U64, _SIZE, _P],
    "cuStreamSynchronize": [_P],
    "cuGetErrorName": [_INT, _P],
    "cuGetErrorString": [_INT, _P],
}


class CudaMissing(NotSupported):
    """There is no CUDA here: no driver library, one that does not start, no such device."""


class CudaError(Error):
    """The driver refused. `code` is its CUresult, `cuda_name` the name of that."""

    def __init__(self, message: str, code: int, cuda_name: str) -> None:
        super().__init__(message)
        self.code, self.cuda_name = code, cuda_name


class Driver:
    """CUDA's driver library, loaded and initialised. path: the file; None: $TARN_CUDA_LIB, else
    libcuda.so.1."""

    def __init__(self, path: Optional[str] = None) -> None:
        path = path or os.environ.get("TARN_CUDA_LIB") or "libcuda.so.1"
        try:
            self._library = C.CDLL(path)
            for name, arguments in _PROTOTYPES.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = arguments, _INT
        except (OSError, AttributeError) as e:
            raise CudaMissing(
                f"no CUDA driver ({e}): install NVIDIA's, or name its libcuda.so.1 in TARN_CUDA_LIB"
            ) from None
        code = int(self._library.cuInit(0))
        if code:
            raise CudaMissing(
                f"the CUDA driver {path} does not start: {' '.join(self.describe(code))}"
            )

    def describe(self, code: int) -> Tuple[str, str]:
        """The name and the sentence of a CUresult."""
        out = []
        for function in (self._library.cuGetErrorName, self._library.cuGetErrorString):
            words = C.c_char_p()
            known = function(code, C.byref(words)) == 0
            out.append(text(words.value) if known else str(code))
        return out[0], out[1]

    def call(self, name: str, *arguments: Any, about: str = "") -> None:
        """Calls a function; CudaError unless it succeeds."""
        code = int(getattr(self._library, name)(*arguments))
        if code:
            cuda_name, sentence = self.describe(code)
            raise CudaError(
                f"{name}{' of ' + about if about else ''}: {cuda_name}: {sentence}", code, cuda_name
            )

    def attribute(self, device: int, number: int) -> int:
        """A device's attribute, 0 where the driver is too old to know it."""
        value = C.c_int()
        try:
            self.call("cuDeviceGetAttribute", C.byref(value), number, device)
        except CudaError:
            return 0
        return value.value


def why_not(path: Optional[str] = None) -> str:
    """ "" where memory can be pinned for a GPU, else why it cannot."""
    try:
        count = C.c_int()
        Driver(path).call("cuDeviceGetCount", C.byref(count))
        return "" if count.value else "the CUDA driver sees no device"
    except (CudaMissing, CudaError) as e:
        return str(e)


class _Window:
    """A part of a mapping. Pinned while `pinned`; `why` says why it could not be."""

    __slots__ = ("start", "size", "pinned", "why", "users", "used")

    def __init__(self, start: int, size: int) -> None:
        self.start, self.size = start, size
        self.pinned, self.why, self.users, self.used = False, "", 0, 0.0


class _Mapping:
    """A tarn_mapping: the memory stays where it is until it is closed."""

    __slots__ = ("pointer", "handle", "start", "size", "windows")

    def __init__(self, view: Any, piece: int) -> None:
        native, pointer = view._use(), C.c_void_p()
        status = _native("tarn_mapping_open", C.c_int, [_P, _SIZE, _P])(
            native.pointer, piece, C.byref(pointer)
        )
        if status or not pointer.value:
            raise failed(status)
        self.pointer, self.handle = pointer.value, native.handle
        address = _native("tarn_mapping_address", _P, [_P])(self.pointer)
        size = _native("tarn_mapping_size", _SIZE, [_P])(self.pointer)
        # The driver counts in pages; a mapping begins and ends with whole ones, its first may hold
        # the segment's header.
        self.start = address // mmap.PAGESIZE * mmap.PAGESIZE
        self.size = -(-(address + size - self.start) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.windows: Dict[int, _Window] = {}

    def current(self) -> bool:
        return bool(_native("tarn_mapping_check", C.c_int, [_P])(self.pointer) == 0)

    def close(self) -> None:
        if self.pointer:
            _native("tarn_mapping_close", None, [_P])(C.byref(C.c_void_p(self.pointer)))
            self.pointer = 0


def _native(name: str, result: Any, arguments: List[Any]) -> Any:
    try:
        function = getattr(lib, name)
    except AttributeError:
        raise NotSupported(
            f"this libtarn has no {name}: build it anew, or look at TARN_LIB"
        ) from None
    function.restype, function.argtypes = result, arguments
    return function


def _half_of_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


class Pinner(Closes):
    """What of the pool, and of the caller's own buffers, is pinned for one device.

    window_bytes: segments are pinned in parts of this size (whole pages; 0: whole segments).
    max_bytes: at most so much is pinned (0: half of the machine's memory); windows that no view
    uses make way, the one that was used longest ago first. After idle_s seconds without use they
    go, too, when the pinner is next called. A pinner keeps what it has pinned mapped, and with it
    the client of those views: close it first."""

    def __init__(
        self,
        device: int = 0,
        *,
        window_bytes: int = 1 << 30,
        max_bytes: int = 0,
        idle_s: float = 600,
        driver: Optional[Driver] = None,
    ) -> None:
        if window_bytes % mmap.PAGESIZE or window_bytes < 0 or max_bytes < 0:
            raise InvalidArgument(
                f"window_bytes: a multiple of {mmap.PAGESIZE} (0: whole segments); max_bytes: 0 or "
                "more"
            )
        self.driver = driver or Driver()
        self.window_bytes, self.max_bytes, self.idle_s = (
            window_bytes,
            max_bytes or _half_of_memory(),
            idle_s,
        )
        self.pinned_bytes = 0
        self._lock = threading.RLock()
        self._mappings: Dict[int, _Mapping] = {}
        self._buffers: Dict[int, Tuple[Pinned, int, int]] = {}
        self._closed = False
        number, context = C.c_int(), C.c_void_p()
        try:
            self.driver.call("cuDeviceGet", C.byref(number), device, about=f"device {device}")
        except CudaError as e:
            raise CudaMissing(str(e)) from None
        self.device = number.value
        # Grace and the like read pageable memory by its own page tables, and want no flag for what
        # is read-only.
        read_only = self.driver.attribute(self.device, _READ_ONLY_SUPPORTED)
        self._flags = _PORTABLE | (_READ_ONLY if read_only else 0)
        self._can_read_only = bool(
            read_only or self.driver.attribute(self.device, _HOST_PAGE_TABLES)
        )
        self.driver.call("cuDevicePrimaryCtxRetain", C.byref(context), self.device)
        self._context = context.value

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Makes the device's context this thread's, for a few calls."""
        if self._closed:
            raise Closed("this pinner is closed")
        self.driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self.driver.call("cuCtxPopCurrent_v2", C.byref(C.c_void_p()))

    # --- views

    def pin(self, view: Any) -> "PinnedView":
        """Pins what the view (tarn.View) lies in, unless it is already. The lease is none of its
        business: it has to last until finish() has passed. What cannot be pinned is told by
        PinnedView.why."""
        spans: List[Tuple[int, int]] = []
        windows: List[_Window] = []
        why = ""
        with self._lock, self._current():
            self._tidy()
            try:
                for i, piece in enumerate(view.pieces):
                    held = pin(piece, name="view")
                    spans.append((held.address, held.size))
                    mapping = self._mapping(view, i)
                    if mapping is None:
                        why = "a value of up to 64 bytes is a copy of the view's own"
                        continue
                    for window in self._windows(mapping, held.address, held.size):
                        windows.append(window)
                        window.users += 1
                        self._pin_window(window)
                        why = why or window.why
            except BaseException:
                for window in windows:
                    window.users -= 1
                raise
        return PinnedView(self, view, spans, windows, why)

    def _mapping(self, view: Any, piece: int) -> Optional[_Mapping]:
        try:
            mapping = _Mapping(view, piece)
        except NotSupported as e:
            if e.status == Status.ENOTSUP and view.size <= 64:
                return None
            raise
        known = self._mappings.setdefault(mapping.start, mapping)
        if known is not mapping:
            mapping.close()  # one is enough to keep it
        return known

    def _windows(self, mapping: _Mapping, address: int, size: int) -> List[_Window]:
        """Those that [address, address + size) lies in, by address."""
        step = self.window_bytes or mapping.size
        found = []
        for i in range(
            (address - mapping.start) // step, (address + size - 1 - mapping.start) // step + 1
        ):
            if i not in mapping.windows:
                start = mapping.start + i * step
                mapping.windows[i] = _Window(start, min(step, mapping.start + mapping.size - start))
            found.append(mapping.windows[i])
        return found

    def _pin_window(self, window: _Window) -> None:
        window.used = time.monotonic()
        if window.pinned or (window.why and window.users > 1):
            return
        window.why = ""
        if not self._can_read_only:
            window.why = "the device cannot have read-only memory pinned"
        elif not self._make_room(window.size):
            window.why = (
                f"max_bytes: {self.pinned_bytes} bytes are pinned and in use, of {self.max_bytes}"
            )
        else:
            try:
                about = f"{window.size} bytes of the pool"
                self.driver.call(
                    "cuMemHostRegister_v2", window.start, window.size, self._flags, about=about
                )
            except CudaError as e:
                somebody = e.code == _ALREADY_REGISTERED
                window.why = "somebody else has pinned some of it" if somebody else str(e)
                return
            window.pinned = True
            self.pinned_bytes += window.size

    def _make_room(self, size: int) -> bool:
        while self.pinned_bytes + size > self.max_bytes:
            idle = [
                w
                for m in self._mappings.values()
                for w in m.windows.values()
                if w.pinned and not w.users
            ]
            if not idle:
                return False
            self._unpin(min(idle, key=lambda w: w.used))
        return True

    def _unpin(self, window: _Window) -> None:
        window.pinned = False
        self.pinned_bytes -= window.size
        self.driver.call("cuMemHostUnregister", window.start)

    def _tidy(self) -> None:
        """Lets go of what nothing uses: mappings that new views do not lie in (the host was
        restarted), and what was last used idle_s ago (which may be a host that is no more)."""
        before = time.monotonic() - self.idle_s
        for start, mapping in list(self._mappings.items()):
            windows = mapping.windows.values()
            for window in windows:
                if window.pinned and not window.users and window.used < before:
                    self._unpin(window)
            if not any(w.users for w in windows) and not (
                any(w.pinned for w in windows) and mapping.current()
            ):
                self._drop(start)

    def _drop(self, start: int) -> None:
        mapping = self._mappings.pop(start)
        for window in mapping.windows.values():
            if window.pinned:
                self._unpin(window)
        # Not before: the driver would go on with pages that nobody knows by this address.
        mapping.close()

    def _release(self, windows: List[_Window]) -> None:
        with self._lock:
            if self._closed:
                return
            for window in windows:
                window.users -= 1
            with self._current():
                self._tidy()

    def trim(self) -> None:
        """Unpins everything that no view uses."""
        with self._lock, self._current():
            for mapping in self._mappings.values():
                for window in mapping.windows.values():
                    if window.pinned and not window.users:
                        self._unpin(window)
            self._tidy()

    # --- the caller's buffers

    def register(self, buffer: Any) -> None:
        """Pins memory of the caller's (a buffer, or an (address, size)), the whole pages that it
        lies in, until unregister. It is kept alive meanwhile. CudaError,
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: it shares a page with what is pinned: use memory
        that begins at a page (mmap)."""
        held = pin(buffer, name="buffer")
        if not held.size:
            raise InvalidArgument("buffer: has no bytes")
        start = held.address // mmap.PAGESIZE * mmap.PAGESIZE
        size = -(-(held.address + held.size - start) // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock, self._current():
            if held.address in self._buffers:
                raise InvalidArgument("buffer: is registered already")
            if not self._make_room(size):
                raise NotSupported(
                    f"buffer: max_bytes of {self.max_bytes} would be passed, {self.pinned_bytes} "
                    "are in use"
                )
            self.driver.call("cuMemHostRegister_v2", start, size, _PORTABLE, about=f"{size} bytes")
            self._buffers[held.address] = (held, start, size)
            self.pinned_bytes += size

    def unregister(self, buffer: Any) -> None:
        """Ends a registration. No copy may be under way."""
        address = pin(buffer, name="buffer").address
        with self._lock, self._current():
            if address not in self._buffers:
                raise InvalidArgument("buffer: is not registered")
            _, start, size = self._buffers.pop(address)
            self.pinned_bytes -= size
            self.driver.call("cuMemHostUnregister", start)

    # --- copies

    def to_device(self, device_address: int, memory: Any, *, stream: int = 0) -> None:
        """Copies memory to the device, in the stream's order; returns at once where the memory is
        pinned. It must stay as it is until the stream has got there (synchronize)."""
        held = pin(memory, name="memory")
        with self._current():
            for start, size in self._parts(held.address, held.size):
                at = device_address + start - held.address
                self.driver.call(
                    "cuMemcpyHtoDAsync_v2", at, start, size, stream, about=f"{size} bytes"
                )

    def from_device(self, memory: Any, device_address: int, *, stream: int = 0) -> None:
        """Fills memory from the device; it has the bytes when the stream has got there. For the
        prefill side: into a registered buffer, and from there to the pool."""
        held = pin(memory, writable=True, name="memory")
        with self._current():
            self.driver.call(
                "cuMemcpyDtoHAsync_v2", held.address, device_address, held.size, stream
            )

    def _parts(self, address: int, size: int) -> List[Tuple[int, int]]:
        """Cut where one window ends and the next begins: a copy must not leave what was pinned in
        one go."""
        with self._lock:
            mappings = [m for m in self._mappings.values() if m.start <= address < m.start + m.size]
        step = self.window_bytes
        if not mappings or not step:
            return [(address, size)] if size else []
        parts, end = [], address + size
        while address < end:
            upto = min(end, address + step - (address - mappings[0].start) % step)
            parts.append((address, upto - address))
            address = upto
        return parts

    def synchronize(self, stream: int = 0) -> None:
        """Until everything that was put into the stream has been done."""
        with self._current():
            self.driver.call("cuStreamSynchronize", stream)

    def close(self) -> None:
        """Waits for the device, and unpins everything. Copies from views are over then. May be
        called twice."""
        with self._lock:
            if self._closed:
                return
            with self._current():
                self.driver.call("cuCtxSynchronize")
                for start in list(self._mappings):
                    self._drop(start)
                for _, start, size in self._buffers.values():
                    self.pinned_bytes -= size
                    self.driver.call("cuMemHostUnregister", start)
                self._buffers.clear()
            self._closed = True
            self.driver.call("cuDevicePrimaryCtxRelease_v2", self.device)


class PinnedView(Releases):
    """A view whose memory a device can read. One thread at a time.

    copy_to, as often as need be, then finish(): only when that has passed are the bytes on the
    device right. release waits for copies that finish has not seen."""

    def __init__(
        self,
        pinner: Pinner,
        view: Any,
        spans: List[Tuple[int, int]],
        windows: List[_Window],
        why: str,
    ) -> None:
        self.pinner, self.view, self.why = pinner, view, why
        self._spans, self._windows = spans, windows
        self._streams: Set[int] = set()
        self._released = False

    @property
    def pinned(self) -> bool:
        """Is all of it pinned? If not, `why` says why; copies work all the same."""
        return not self.why

    def copy_to(
        self, device_address: int, *, offset: int = 0, size: Optional[int] = None, stream: int = 0
    ) -> None:
        """Puts a copy of bytes [offset, offset + size) of the value (size None: to its end) into
        the stream."""
        if self._released:
            raise Closed("this pinned view has been released")
        size = self.view.size - offset if size is None else size
        if offset < 0 or size < 0 or offset + size > self.view.size:
            raise InvalidArgument(
                f"copy_to: bytes {offset} to {offset + size} of a value of {self.view.size}"
            )
        self._streams.add(stream)
        at = 0
        for address, length in self._spans:
            first, last = max(offset, at), min(offset + size, at + length)
            if first < last:
                part = (address + first - at, last - first)
                self.pinner.to_device(device_address + first - offset, part, stream=stream)
            at += length

    def finish(self) -> None:
        """Waits for the copies, then checks the view: raises LeaseOver or Stale if what was copied
        may not be right."""
        self._wait()
        self.view.check()

    def _wait(self) -> None:
        while self._streams:
            self.pinner.synchronize(self._streams.pop())

    def release(self) -> None:
        """Lets go of the memory, which stays pinned for the next view. May be called twice; also
        when the pinner is closed."""
        if self._released:
            return
        self._released = True
        if not self.pinner._closed:
            self._wait()
        self.pinner._release(self._windows)
