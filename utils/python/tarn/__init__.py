"""tarn: a shared pool of memory for blocks of bytes, such as the KV cache of language models.

    import tarn

    with tarn.Client("tarn://127.0.0.1:6479") as client:
        client.put("key", b"value")
        client.get("key")

docs/PYTHON.md is the guide. The package is ctypes on libtarn and needs nothing but Python's own
library."""

from ._lib import library_version
from ._trace import Span, trace
from .aio import AsyncClient
from .client import Client, Prefetched
from .errors import (
    Busy,
    Cancelled,
    Closed,
    ConnectionFailed,
    Corrupt,
    Error,
    Exists,
    InvalidArgument,
    LeaseOver,
    NoSpace,
    NotFound,
    NotSupported,
    OutOfMemory,
    PermissionDenied,
    ProtocolError,
    QueueFull,
    ReadOnly,
    Stale,
    Status,
    TimedOut,
    TooLarge,
    TryAgain,
)
from .kv_groups import KVBoundary, KVGroup, KVParts
from .memory import Memory
from .queue import Completion, Queue
from .views import View, Writer

__version__ = "0.2.0"


def compat_path() -> str:
    """The folder that, put on PYTHONPATH, stands in for packages of other pools: mooncake."""
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    inside = os.path.join(here, "compat")
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(here), "compat")


__all__ = [
    "AsyncClient",
    "Busy",
    "Cancelled",
    "Client",
    "Closed",
    "Completion",
    "ConnectionFailed",
    "Corrupt",
    "Error",
    "Exists",
    "InvalidArgument",
    "KVBoundary",
    "KVGroup",
    "KVParts",
    "LeaseOver",
    "Memory",
    "NoSpace",
    "NotFound",
    "NotSupported",
    "OutOfMemory",
    "PermissionDenied",
    "Prefetched",
    "ProtocolError",
    "Queue",
    "QueueFull",
    "ReadOnly",
    "Span",
    "Stale",
    "Status",
    "TimedOut",
    "TooLarge",
    "TryAgain",
    "View",
    "Writer",
    "__version__",
    "compat_path",
    "library_version",
    "trace",
]
