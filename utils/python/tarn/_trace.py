"""What calls are done for (W3C Trace Context), and what they consist of (spans).

libtarn keeps a traceparent per thread, Python one per context: a task of asyncio has its own. So
each call, where anybody uses this at all, first sees to it that its thread's is that of its
context."""

from __future__ import annotations

import ctypes as C
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

from ._lib import SpanStruct, check, lib, span_function, text
from .errors import InvalidArgument

_wanted: ContextVar[Optional[bytes]] = ContextVar("tarn_traceparent", default=None)


class _Thread(threading.local):
    told: Optional[bytes] = None


_thread = _Thread()
# As long as nobody has set one, calls need not look.
used = False


def apply() -> None:
    """Tells libtarn what the next call of this thread is done for."""
    wanted = _wanted.get()
    if _thread.told != wanted:
        check(lib.tarn_set_traceparent(wanted))
        _thread.told = wanted


def forget() -> None:
    """What comes in this context is done for nobody in particular."""
    _wanted.set(None)


@contextmanager
def trace(traceparent: Union[str, bytes, None]) -> Iterator[None]:
    """Says what the calls within the block are done for: the traceparent of a request, as the HTTP
    header has it ("00-TRACE-SPAN-FLAGS"); None: for nothing in particular.

        with tarn.trace(request.headers.get("traceparent")):
            client.get("key")

    It holds for all clients, for this thread, and for tasks of asyncio that the block awaits or
    begins. The server shows it in SLOWLOG, MONITOR and CLIENT LIST; spans (`on_span`) have it as
    their parent. Raises InvalidArgument if it is of another form."""
    global used
    raw = traceparent.encode() if isinstance(traceparent, str) else traceparent
    if raw is not None and b"\0" in raw:
        raise InvalidArgument("a traceparent with a zero byte in it")
    token = _wanted.set(raw or None)
    try:
        used = True
        apply()
        yield
    finally:
        _wanted.reset(token)


class Span(NamedTuple):
    """A call of libtarn that has ended, or a stage of one. See docs/PYTHON.md."""

    name: str  # "get", "put", "lookup", ...; of stages "request", "read", "write", ...
    detail: str  # of a request: its command; else ""
    stage: bool  # False: a call; True: a stage of the call that parent_id names
    trace_id: str  # hex digits, as in OTLP's JSON
    span_id: str
    parent_id: str  # "": it has none
    start_ns: int  # since 1970
    duration_ns: int
    keys: int  # of a call: asked for,
    done: int  # and found, stored or there already
    bytes: int
    status: int  # a Status
    stages_left_out: int
    transport: str  # that moved its bytes; "mixed"; "": none did
    host: str  # of connect and request the server, of read and write the segment; else ""
    cluster: str  # the option; "": none


def _span_of(s: SpanStruct) -> Span:
    return Span(
        text(s.name),
        text(s.detail),
        s.stage != 0,
        text(s.trace_id),
        text(s.span_id),
        text(s.parent_id),
        s.start_ns,
        s.duration_ns,
        s.keys,
        s.done,
        s.bytes,
        s.status,
        s.stages_left_out,
        text(s.transport),
        text(s.host),
        text(s.cluster),
    )


def span_callback(on_span: Callable[[Span], Any]) -> Any:
    """`on_span` as libtarn calls it; keep it for as long as the client may."""
    if not callable(on_span):
        raise TypeError(f"on_span: a function, not {type(on_span).__name__}")

    # What it raises goes to sys.unraisablehook: there is nobody who could catch it.
    return span_function(lambda arg, span: on_span(_span_of(span[0])) and None)


def pointer_of(callback: Any) -> Optional[int]:
    """Its address, for a struct."""
    return C.cast(callback, C.c_void_p).value
