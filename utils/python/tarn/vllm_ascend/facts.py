"""What decides the bytes of this process's blocks: vllm-ascend's keys say model, ranks and hash
only, and its backends are handed no more than the ranks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Dict, Optional

from ..identity import Facts
from ..vllm.config import facts_of
from . import sessions

_facts: Optional[Facts] = None  # of this process's engine, when it came by our AscendStoreConnector


def noted() -> Optional[Facts]:
    """Of the engine whose connector was made last; None: it did not come from us."""
    return _facts


@lru_cache(maxsize=None)
def noting(base: Any) -> Any:
    """The connector, which tells the backends that it makes what its VllmConfig says about the
    bytes of blocks, and whose blocks these are."""

    class Noting(base):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            global _facts
            _facts = facts_of(vllm_config)
            self._tarn_said: Dict[str, Any] = {}  # the scheduler's, by request
            super().__init__(vllm_config, *args, **kwargs)

        def get_num_new_matched_tokens(self, request: Any, *args: Any) -> Any:
            said = sessions.said_of(request)
            if said:
                self._tarn_said[request.request_id] = said
            return super().get_num_new_matched_tokens(request, *args)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            metadata = super().build_connector_meta(scheduler_output)
            sessions.tell(self._tarn_said, metadata, scheduler_output)
            return metadata

        def bind_connector_metadata(self, connector_metadata: Any) -> None:
            sessions.hear(connector_metadata)
            super().bind_connector_metadata(connector_metadata)

    Noting.__name__, Noting.__qualname__ = base.__name__, base.__qualname__
    Noting.__doc__, Noting.__module__ = base.__doc__, base.__module__
    return Noting
