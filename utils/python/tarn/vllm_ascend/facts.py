"""What decides the bytes of this process's blocks: vllm-ascend's keys say model, ranks and hash
only, and its backends are handed no more than the ranks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional

from ..identity import Facts
from ..vllm.config import facts_of

_facts: Optional[Facts] = None  # of this process's engine, when it came by our AscendStoreConnector


def noted() -> Optional[Facts]:
    """Of the engine whose connector was made last; None: it did not come from us."""
    return _facts


@lru_cache(maxsize=None)
def noting(base: Any) -> Any:
    """The connector, which tells the backends that it makes what its VllmConfig says about the
    bytes of blocks."""

    def made(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        global _facts
        _facts = facts_of(vllm_config)
        base.__init__(self, vllm_config, *args, **kwargs)

    return type(
        base.__name__,
        (base,),
        {"__init__": made, "__doc__": base.__doc__, "__module__": base.__module__},
    )
