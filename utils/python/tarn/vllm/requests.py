"""What vLLM's requests and its scheduler's output say, in the forms that its releases have for it.
"""

import re
import time
from contextlib import nullcontext
from typing import (
    Any,
    ContextManager,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from .._hints import hints_of
from .._trace import trace
from ..chain import Chain
from ..options import HintKeywords

__all__ = ["Scheduled", "announced_by", "chain_of", "look_again", "scheduled_in", "states_in"]
__all__ += ["hints_for", "trace_of", "traced"]


def chain_of(request: Any, block_tokens: int, revision: str) -> Optional[Chain]:
    """The chain of a request; None when its tokens do not say all about it (prompt embeddings,
    media without hashes)."""
    if (
        getattr(request, "prompt_token_ids", None) is None
        or getattr(request, "prompt_embeds", None) is not None
    ):
        return None
    features = getattr(request, "mm_features", None)
    if not features and getattr(request, "has_encoder_inputs", False):
        return None
    media = [(f.identifier, f.mm_position.offset, f.mm_position.length) for f in features or ()]
    lora = getattr(request, "lora_request", None)
    return Chain(
        block_tokens,
        lora=str(lora.lora_name) if lora is not None else None,
        salt=getattr(request, "cache_salt", None),
        revision=revision,
        media=sorted(media, key=lambda item: item[1]),
    )


def announced_by(request: Any) -> int:
    """How many tokens a prefill elsewhere said that it has saved. Comes from the user's request:
    anything may be in it."""
    params = getattr(request, "kv_transfer_params", None)
    tokens = params.get("tarn_tokens") if isinstance(params, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else 0


def look_again(came: float) -> float:
    """When to look again for blocks that a prefill elsewhere announced, the last of which came at
    `came`, of the monotonic clock: soon at first, then less so. A look-up costs the scheduler and
    the pool time, and a prompt may wait for seconds before its prefill begins."""
    now = time.monotonic()
    return now + min(max((now - came) / 16, 0.002), 0.05)


def hints_for(request: Any, wanted: bool) -> HintKeywords:
    """What the pool's eviction policy is told with all calls for a request."""
    if not wanted:
        return {}
    return hints_of(request.request_id, getattr(request, "kv_transfer_params", None))


_TRACEPARENT = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_of(request: Any) -> Optional[str]:
    """The traceparent that came with a request, None without a good one. vLLM keeps the user's
    headers where it traces itself (--otlp-traces-endpoint)."""
    headers = getattr(request, "trace_headers", None)
    found = headers.get("traceparent") if isinstance(headers, Mapping) else None
    if not isinstance(found, str) or not _TRACEPARENT.fullmatch(found):
        return None
    zero = found[3:35].strip("0") == "" or found[36:52].strip("0") == ""
    return None if zero else found


def traced(traceparent: Optional[str]) -> ContextManager[None]:
    """A block whose calls to the pool are done for that; None: for nothing."""
    return trace(traceparent) if traceparent else nullcontext()


class Scheduled(NamedTuple):
    """A request that is computed in this step. blocks: of each KV group those that it gets in
    addition, or with anew all of them. resumed: it was preempted before. computed, scheduled:
    tokens before and in it."""

    name: str
    blocks: Sequence[Sequence[int]]
    anew: bool
    resumed: bool
    computed: int
    scheduled: int


def scheduled_in(output: Any) -> Iterator[Scheduled]:
    """Those of a SchedulerOutput."""
    counts = output.num_scheduled_tokens
    for new in output.scheduled_new_reqs:
        yield Scheduled(
            new.req_id, new.block_ids, True, False, new.num_computed_tokens, counts[new.req_id]
        )
    cached = output.scheduled_cached_reqs
    resumed = getattr(cached, "resumed_req_ids", None)
    if resumed is None:  # releases until late 2025
        flags: List[bool] = getattr(cached, "resumed_from_preemption", [])
        resumed = {name for name, flag in zip(cached.req_ids, flags) if flag}
    for i, name in enumerate(cached.req_ids):
        blocks = cached.new_block_ids[i] or ()
        again = name in resumed
        yield Scheduled(name, blocks, again, again, cached.num_computed_tokens[i], counts[name])


def states_in(output: Any) -> Dict[str, Sequence[Tuple[int, int, int]]]:
    """The states that a SchedulerOutput says are at a boundary: {request: [(KV group, block,
    tokens)]}. Releases with vLLM's change 51358 have them beside the tables of blocks."""
    later = getattr(
        getattr(output, "kv_connector_block_state", None), "boundary_state_offloads", {}
    )
    return {**(getattr(output, "partial_tail_offloads", None) or {}), **(later or {})}
