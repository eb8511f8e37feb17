"""libtarn as ctypes sees it: where it is, its structs, its functions.

Calls through `lib` release the GIL. Addresses travel as plain integers; whoever calls keeps the
memory alive until the call has returned, or for queues until the completion has been taken out."""

from __future__ import annotations

import contextlib
import ctypes as C
import glob
import os
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

from .errors import ADVICE, Closed, Error, Status, error_of

U64, SIZE, INT = C.c_uint64, C.c_size_t, C.c_int
PTR, STR = C.c_void_p, C.c_char_p
_TYPES: Dict[str, Any] = {
    "char": C.c_char,
    "char*": STR,
    "char**": C.POINTER(STR),
    "int": INT,
    "int32_t": C.c_int32,
    "size_t": SIZE,
    "uint16_t": C.c_uint16,
    "uint32_t": C.c_uint32,
    "uint64_t": U64,
    "unsigned": C.c_uint,
    "void*": PTR,
}


def fields(declarations: str, **pointers: Any) -> List[Tuple[str, Any]]:
    """Fields of a struct as the header declares them: "int a, b; char *text, name[8];". `pointers`:
    what pointers to other structs are. tests/python/abi_test.py compares them with the headers."""
    found = []
    for kind, names in re.findall(r"(\w+)\s+([^;]+)", declarations):
        for stars, name, length in re.findall(r"(\**)(\w+)(?:\[(\d+)\])?", names):
            field = pointers[kind] if kind in pointers else _TYPES[kind + stars]
            found.append((name, field * int(length) if length else field))
    return found


_HERE = os.path.dirname(os.path.abspath(__file__))


def candidates() -> List[str]:
    """Files that may be libtarn, best first. $TARN_LIB stands alone: if it is set, nothing else is
    tried."""
    given = os.environ.get("TARN_LIB")
    if given:
        return [given]
    root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    return [
        os.path.join(_HERE, "libtarn.so.0"),
        os.path.join(root, "build", "release", "libtarn.so.0"),
        os.path.join(root, "src", "libtarn.so.0"),
        "libtarn.so.0",
    ]


def _open(path: str) -> C.CDLL:
    """A library that a wheel brought may find others missing here, or of another version: the wheel
    brought those, too, and the loader takes what is loaded by their names."""
    try:
        return C.CDLL(path)
    except OSError:
        libs = glob.glob(os.path.join(_HERE, "libs", "lib*"))
        if os.path.dirname(path) != _HERE or not libs:
            raise
        for lib in libs:
            with contextlib.suppress(OSError):  # then the system's must do
                C.CDLL(lib)
        return C.CDLL(path)


def _load() -> C.CDLL:
    why = []
    for path in candidates():
        if os.path.dirname(path) and not os.path.exists(path):
            why.append(f"{path}: no such file")
            continue
        try:
            return _open(path)
        except OSError as e:
            why.append(str(e))
    raise ImportError(
        "libtarn.so.0 cannot be loaded: build it with `make`, install it with `make install`, or "
        "name the file in the "
        "environment variable TARN_LIB. Tried: " + "; ".join(why)
    )


class Options(C.Structure):
    """tarn_options."""

    _fields_ = fields(
        """
        size_t size; char *transport; int verify; unsigned max_lanes, streams;
        uint64_t connect_timeout_ms, timeout_ms, lease_ms; unsigned retries;
        uint64_t backoff_min_ms, backoff_max_ms; size_t batch_keys; uint64_t piece_bytes;
        unsigned workers; char *host_name, *user, *password, *name, *rack; uint64_t failover_ms;
        char *module_path, *tls_ca_file, *tls_ca_dir, *tls_cert_file, *tls_key_file,
        *tls_server_name; int tls_verify, tls_verify_name; char *cluster; uint64_t log_figures_s;
        void *on_span, *span_arg; uint64_t busy_poll_us;
        """
    )


class Call(C.Structure):
    """tarn_call."""

    _fields_ = fields(
        """
        size_t size; uint64_t timeout_ms, lease_ms, wait_ms; char *session; size_t session_len;
        uint64_t return_ms;
        """
    )


class PutOptions(C.Structure):
    """tarn_put_options."""

    _fields_ = fields(
        """
        size_t size; uint64_t timeout_ms; int replace, exists_ok; unsigned replicas; int pin;
        uint64_t pin_ms, ttl_ms; char *group; size_t group_len; char **prefer; size_t prefers;
        void *groups, *boundaries; char *session; size_t session_len; uint64_t return_ms;
        int moving; void *written, *written_arg, *depths;
        """
    )


class Iovec(C.Structure):
    """struct iovec."""

    _fields_ = fields("void *base; size_t len;")


class Columns(C.Structure):
    """tarn_columns."""

    _fields_ = fields(
        """
        size_t size, n; char *keys; size_t keys_len; void *key_lens; size_t n_pieces;
        void *addresses, *sizes, *pieces, *offsets, *wants;
        """
    )


# Bytes of a tarn_item, a tarn_key and a struct iovec.
ITEM_BYTES, KEY_BYTES, IOVEC_BYTES = 96, 16, C.sizeof(Iovec)


class KVGroupStruct(C.Structure):
    """tarn_kv_group."""

    _fields_ = fields(
        """
        char *name; size_t name_len; int kind, drops_last; uint32_t block, unit, window;
        """
    )


class KVQuery(C.Structure):
    """tarn_kv_query."""

    _fields_ = fields(
        """
        size_t size; void *hashes; size_t n_hashes; uint32_t unit, align; void *groups;
        size_t n_groups;
        """
    )


class KVPartsStruct(C.Structure):
    """tarn_kv_parts."""

    _fields_ = fields("uint64_t first, blocks, tail;")


class PrefetchedStruct(C.Structure):
    """tarn_prefetched."""

    _fields_ = fields("uint64_t taken, there, unknown, refused;")


# tarn_kv_place_fn.
KVPlace = C.CFUNCTYPE(PTR, PTR, U64, C.POINTER(KVPartsStruct), SIZE)


class CompletionStruct(C.Structure):
    """tarn_completion."""

    _fields_ = fields("uint64_t id; void *user; int32_t op, status; void *items; size_t n, done;")


STATS = """
    gets get_hits get_misses get_failures puts put_stored put_existed put_failures lookups
    removes bytes_read bytes_written shm_bytes_read shm_bytes_written tcp_bytes_read
    tcp_bytes_written requests round_trips connects reconnects retries timeouts leases
    lease_renewals lease_misses epoch_misses crc_mismatches unverified segment_fetches lanes
    lanes_busy views_open writers_open async_pending failovers replica_reports
    put_replicas_failed put_restarts outages rdma_bytes_read rdma_bytes_written shm_unreachable
""".split()


class TransportStats(C.Structure):
    """tarn_transport_stats."""

    _fields_ = fields("char name[16]; uint64_t bytes_read, bytes_written;")


class Stats(C.Structure):
    """tarn_stats."""

    _fields_ = fields(
        "size_t size; uint64_t " + ", ".join(STATS) + "; tarn_transport_stats transport[8];",
        tarn_transport_stats=TransportStats,
    )


class Histogram(C.Structure):
    """tarn_histogram."""

    _fields_ = fields(
        """
        size_t size; uint64_t count, sum_us, min_us, max_us, p50_us, p90_us, p95_us, p99_us,
        p999_us, n_bounds, bound_us[32], upto[32];
        """
    )


class SpanStruct(C.Structure):
    """tarn_span."""

    _fields_ = fields(
        """
        size_t size; char *name, *detail; int stage; char trace_id[33], span_id[17], parent_id[17];
        uint64_t start_ns, duration_ns, keys, done, bytes; int32_t status;
        uint32_t stages_left_out; char *transport, *host, *cluster;
        """
    )


# tarn_options.on_span.
span_function = C.CFUNCTYPE(None, PTR, C.POINTER(SpanStruct))


lib = _load()


def declare(prototypes: List[Tuple[str, Any, List[Any]]]) -> None:
    """Tells ctypes of functions of libtarn: name, result, arguments."""
    for name, result, arguments in prototypes:
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise ImportError(
                f"{lib._name} is too old: it has no {name}; build libtarn anew, or look at TARN_LIB"
            ) from None
        function.restype, function.argtypes = result, arguments


_P = PTR
_PROTOTYPES: List[Tuple[str, Any, List[Any]]] = [
    ("tarn_version", STR, []),
    ("tarn_strerror", STR, [INT]),
    ("tarn_last_error", STR, []),
    ("tarn_free", None, [_P]),
    ("tarn_options_init_sized", None, [_P, C.c_size_t]),
    ("tarn_connect", INT, [STR, _P, _P]),
    ("tarn_close", None, [_P]),
    ("tarn_ping", INT, [_P]),
    ("tarn_put", INT, [_P, _P, SIZE, _P, SIZE, _P]),
    ("tarn_get", INT, [_P, _P, SIZE, _P, SIZE, _P, _P]),
    ("tarn_get_range", INT, [_P, _P, SIZE, U64, _P, SIZE, _P, _P]),
    ("tarn_get_alloc", INT, [_P, _P, SIZE, _P, _P, _P]),
    ("tarn_exists", INT, [_P, _P, SIZE]),
    ("tarn_remove", INT, [_P, _P, SIZE]),
    ("tarn_wait", INT, [_P, _P, SIZE, U64]),
    ("tarn_pin", INT, [_P, _P, SIZE, INT, U64]),
    ("tarn_put_many", INT, [_P, _P, SIZE, _P, _P]),
    ("tarn_get_many", INT, [_P, _P, SIZE, _P, _P]),
    ("tarn_exists_many", INT, [_P, _P, SIZE, _P]),
    ("tarn_prefix_length", INT, [_P, _P, SIZE, _P, _P]),
    ("tarn_prefetch", INT, [_P, _P, SIZE, _P, _P, _P]),
    ("tarn_kv_prefix", INT, [_P, _P, _P, _P, _P]),
    ("tarn_kv_get", INT, [_P, _P, _P, KVPlace, _P, _P, _P, _P]),
    ("tarn_remove_many", INT, [_P, _P, SIZE, _P]),
    ("tarn_columns_items", INT, [_P, _P, _P]),
    ("tarn_columns_keys", INT, [_P, _P]),
    ("tarn_items_columns", None, [_P, SIZE, _P, _P, _P, _P]),
    ("tarn_view_open", INT, [_P, _P, SIZE, _P, _P]),
    ("tarn_view_size", U64, [_P]),
    ("tarn_view_version", U64, [_P]),
    ("tarn_view_data", PTR, [_P]),
    ("tarn_view_pieces", SIZE, [_P, _P]),
    ("tarn_view_valid_ms", U64, [_P]),
    ("tarn_view_check", INT, [_P]),
    ("tarn_view_verify", INT, [_P]),
    ("tarn_view_renew", INT, [_P, U64]),
    ("tarn_view_release", None, [_P]),
    ("tarn_writer_open", INT, [_P, _P, SIZE, U64, _P, _P]),
    ("tarn_writer_pieces", SIZE, [_P, _P]),
    ("tarn_writer_data", PTR, [_P]),
    ("tarn_writer_in_place", INT, [_P]),
    ("tarn_writer_commit", INT, [_P]),
    ("tarn_writer_abort", INT, [_P]),
    ("tarn_register", INT, [_P, _P, SIZE]),
    ("tarn_register_dmabuf", INT, [_P, _P, SIZE, INT, U64]),
    ("tarn_unregister", INT, [_P, _P]),
    ("tarn_async_open", INT, [_P, SIZE, _P]),
    ("tarn_async_close", None, [_P]),
    ("tarn_async_get", INT, [_P, _P, SIZE, _P, _P, _P]),
    ("tarn_async_put", INT, [_P, _P, SIZE, _P, _P, _P]),
    ("tarn_async_exists", INT, [_P, _P, SIZE, _P, _P]),
    ("tarn_async_remove", INT, [_P, _P, SIZE, _P, _P]),
    ("tarn_async_fd", INT, [_P]),
    ("tarn_async_poll", SIZE, [_P, _P, SIZE, U64]),
    ("tarn_async_cancel", INT, [_P, U64]),
    ("tarn_get_stats", INT, [_P, _P]),
    ("tarn_get_histogram", INT, [_P, INT, _P]),
    ("tarn_figures_text", INT, [_P, INT, _P, _P]),
    ("tarn_set_traceparent", INT, [STR]),
    ("tarn_command", INT, [_P, SIZE, _P, _P, _P, _P]),
]
declare(_PROTOTYPES)


class _Process:
    """Counts forks: what was opened before one must not be used after it."""

    generation = 0

    @classmethod
    def forked(cls) -> None:
        """Called in the child."""
        cls.generation += 1


process = _Process
os.register_at_fork(after_in_child=_Process.forked)


# What native objects need, by the id of whoever answers for them: a view its client, a queue the
# memory that it fills. Python finalizes objects that become garbage together in any order; what is
# in here is no garbage before its user has ended and taken it out.
needed: Dict[int, object] = {}


class Handle:
    """A tarn_client that is closed when the last one that uses it lets go: calls under way, views,
    writers, queues."""

    # A call of libtarn's takes the handle itself, and so keeps it until it has returned.
    __slots__ = ("_as_parameter_", "generation", "_close", "_process", "_keeps")

    def __init__(self, pointer: int, keeps: object = None) -> None:
        self._as_parameter_, self.generation = pointer, process.generation
        self._keeps = keeps  # what libtarn calls
        self._close, self._process = lib.tarn_close, process

    def __del__(self) -> None:
        # After a fork the memory is a copy of what threads of the parent were just changing: it is
        # left alone.
        if self.generation == self._process.generation:
            self._close(C.byref(C.c_void_p(self._as_parameter_)))


class Native:
    """A pointer of libtarn's that knows when it must not be used any more."""

    _what = "object"

    def __init__(self) -> None:
        self._handle, self._generation = C.c_void_p(), process.generation

    def _live(self) -> C.c_void_p:
        if self.closed:
            raise Closed(f"the {self._what} is closed, or belongs to the process before a fork")
        return self._handle

    @property
    def closed(self) -> bool:
        """True once it cannot be used any more."""
        return not self._handle or self._generation != process.generation

    def _end(self, release: Callable[[Any], Any]) -> None:
        if not self.closed:
            release(C.byref(self._handle))
            needed.pop(id(self), None)
        self._handle = C.c_void_p()


def text(raw: Optional[bytes]) -> str:
    """A C string as text; bytes that are no UTF-8 stay visible."""
    return (raw or b"").decode("utf-8", "backslashreplace")


def failed(status: int) -> Error:
    """The exception for a failed call of this thread, with libtarn's own sentence."""
    return error_of(status, text(lib.tarn_last_error()) or text(lib.tarn_strerror(status)))


def check(status: int) -> None:
    """Raises what a call of this thread has failed with, if it has."""
    if status:
        raise failed(status)


def there(status: int, error: Callable[[int], Error] = failed) -> bool:
    """Whether a call of this thread has found the key. Raises what else it has failed with."""
    if status == 0:
        return True
    if status != Status.ENOTFOUND:
        raise error(status)
    return False


def stored(status: int, error: Callable[[int], Error] = failed) -> bool:
    """Whether a put has stored the value: False: it was there. Raises what else went wrong."""
    if status == 0:
        return True
    if status != Status.EEXISTS:
        raise error(status)
    return False


def status_error(status: int, about: str = "") -> Error:
    """The exception for a status that came out of a batch."""
    advice = ADVICE.get(status)
    words = [about, text(lib.tarn_strerror(status)), advice or ""]
    return error_of(status, ": ".join(w for w in words if w))


def library_version() -> str:
    """The version of the libtarn that was loaded."""
    return text(lib.tarn_version())
