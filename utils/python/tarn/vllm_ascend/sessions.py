"""Whose blocks a backend is handed: vllm-ascend tells it keys alone, and its connector requests
with the hashes of their blocks, with which these keys end.

The scheduler's connector hears what the user says of a request, and adds it to the step's metadata;
a worker's hears of the step before its threads put and get."""

from __future__ import annotations

import threading
from typing import Any, Dict, Sequence

from .._hints import hints_of, told_hints
from ..options import HintKeywords

_HASHES_MAX = 1 << 16
_lock = threading.Lock()  # the next one, which the worker's main thread writes
_of: Dict[str, HintKeywords] = {}  # by hash, the last that was heard of last


def tell(said: Dict[str, Any], metadata: Any, output: Any) -> None:
    """Adds to a step's metadata what was said of its requests; who has finished is forgotten."""
    ids = [getattr(request, "req_id", "") for request in getattr(metadata, "requests", None) or ()]
    told = {request_id: said[request_id] for request_id in ids if request_id in said}
    if told:
        metadata.tarn_told = told
    for request_id in getattr(output, "finished_req_ids", None) or ():
        said.pop(request_id, None)


def said_of(request: Any) -> Dict[str, Any]:
    """What the user says of it, for us."""
    return told_hints(getattr(request, "kv_transfer_params", None))


def hear(metadata: Any) -> None:
    """Of a step, before its blocks move."""
    told = getattr(metadata, "tarn_told", {})
    with _lock:
        for request in getattr(metadata, "requests", None) or ():
            request_id = getattr(request, "req_id", "")
            hints = hints_of(request_id, told.get(request_id))
            for block_hash in reversed(getattr(request, "block_hashes", None) or ()):
                text = block_hash if isinstance(block_hash, str) else block_hash.hex()
                if _of.get(text) == hints:
                    break  # of an earlier step: so are those before
                _of.pop(text, None)
                _of[text] = hints
        while len(_of) > _HASHES_MAX:
            del _of[next(iter(_of))]


def hints_for(hashes: Sequence[str]) -> HintKeywords:
    """Of blocks that one request moves. Those that several requests share say no more than that it
    is one of these: all of them have to name the same, but for those that nobody has named."""
    with _lock:
        named = [_of[h] for h in hashes if h in _of]
    return named[0] if named and all(hints == named[0] for hints in named) else {}
