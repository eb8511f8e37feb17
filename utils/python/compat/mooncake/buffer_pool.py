"""Where programs look for the pool of buffers."""

from __future__ import annotations

from mooncake.store import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
