"""What a worker tells the scheduler's process besides formats and jobs: how long loads took, for
cost.py, and what has been put, for events.py."""

import threading
from dataclasses import dataclass, field
from typing import Dict, List, Optional

__all__ = ["News", "NewsDesk"]


@dataclass
class News:
    """took: seconds of loads that arrived whole, by request. stored: keys that have been put, if
    vLLM has not asked for them as events (under its MultiConnector)."""

    took: Dict[str, float] = field(default_factory=dict)
    stored: List[str] = field(default_factory=list)

    def joined(self, other: "News") -> "News":
        """Of two workers: a load is as slow as the slowest."""
        names = {**self.took, **other.took}
        took = {n: max(self.took.get(n, 0.0), other.took.get(n, 0.0)) for n in names}
        return News(took, self.stored + other.stored)


def joined_news(one: Optional[News], other: Optional[News]) -> Optional[News]:
    return one.joined(other) if one is not None and other is not None else one or other


class NewsDesk:
    """Collects them in a worker. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._took: Dict[str, float] = {}
        self._stored: List[str] = []

    def loaded(self, request: str, seconds: float) -> None:
        """Of a load in several pieces, each."""
        with self._lock:
            self._took[request] = self._took.get(request, 0.0) + seconds

    def stored(self, keys: List[str]) -> None:
        with self._lock:
            self._stored += keys

    def take_stored(self) -> List[str]:
        with self._lock:
            stored, self._stored = self._stored, []
        return stored

    def take(self) -> Optional[News]:
        """None: nothing is new."""
        stored = self.take_stored()
        with self._lock:
            took, self._took = self._took, {}
        return News(took, stored) if took or stored else None
