"""W3C Trace Context: what a request is part of, and what engines are told."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, Mapping

__all__ = ["Trace"]

FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True)
class Trace:
    """trace: its 32 digits. flags: two digits. state: tracestate, handed on as it came."""

    trace: str
    flags: str
    state: str

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Trace:
        """That of the headers; without a good one a new one, sampled, as an engine's own would
        be."""
        found = FORM.fullmatch(headers.get("traceparent", "").strip())
        if found and found[1] != "ff" and not (found[1] == "00" and found[5]):
            if int(found[2], 16) and int(found[3], 16):
                return cls(found[2], found[4], headers.get("tracestate", ""))
        return cls(os.urandom(16).hex(), "01", "")

    def child(self) -> Dict[str, str]:
        """Headers of a request of ours for it: a span of its own."""
        told = {"traceparent": f"00-{self.trace}-{os.urandom(8).hex()}-{self.flags}"}
        return {**told, "tracestate": self.state} if self.state else told
