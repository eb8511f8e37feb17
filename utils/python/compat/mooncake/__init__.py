"""Programs that were written for Mooncake's store and transfer engine, on tarn.

With the folder above this one on PYTHONPATH, `from mooncake.store import MooncakeDistributedStore,
ReplicateConfig` and `from mooncake.engine import TransferEngine` find these modules;
docs/engines/MOONCAKE.md says what becomes of what. Modules of an installed Mooncake that are not
here (and that may need its own libraries) are still found behind them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pkgutil import extend_path
from typing import Any

__path__ = extend_path(__path__, __name__)

if importlib.util.find_spec("tarn") is None:  # not installed: the source tree has it two folders up
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def __getattr__(name: str) -> Any:
    """BufferPool and RegisteredBufferPool, which need the library, only when somebody asks."""
    if name not in ("BufferPool", "RegisteredBufferPool"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("mooncake.buffer_pool"), name)
