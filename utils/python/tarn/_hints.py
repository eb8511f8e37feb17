"""What an engine knows of a request, as hints for the pool's eviction policy.

The session is what the user's request names as one, in vLLM's `kv_transfer_params`:

    {"tarn_session": "chat-4711", "tarn_return_ms": 30000}

Without that it is the request's own id: another one for each request, so it says nothing of the
next turn, but it ties the puts of a request, which come in several batches and over other
connections, to its look-up."""

from __future__ import annotations

import hashlib
from typing import Any, Dict

from .options import HintKeywords

SESSION_MAX = 128  # bytes, as tarn.h has it
RETURN_MS_MAX = 24 * 3600 * 1000


def _session(value: Any) -> str:
    """An id of any length, as one that may be sent; "": it is none."""
    if not isinstance(value, str):
        return ""
    raw = value.encode("utf-8", "replace")
    return raw.decode() if len(raw) <= SESSION_MAX else hashlib.sha256(raw).hexdigest()


def no_hints() -> HintKeywords:
    """Of what belongs to no request."""
    return {}


def told_hints(params: Any) -> Dict[str, Any]:
    """Of what came with a request what is to go on with it to another engine."""
    names = ("tarn_session", "tarn_return_ms")
    return {n: params[n] for n in names if n in params} if isinstance(params, dict) else {}


def hints_of(request_id: Any, params: Any) -> HintKeywords:
    """The hints of a request, for calls of the client. `params`: what came with it from the user,
    in which anything may be."""
    told = params if isinstance(params, dict) else {}
    hints: HintKeywords = {}
    session = _session(told.get("tarn_session")) or _session(request_id)
    if session:
        hints["session"] = session
    after = told.get("tarn_return_ms")
    if isinstance(after, int) and not isinstance(after, bool) and 0 < after <= RETURN_MS_MAX:
        hints["return_ms"] = after
    return hints
