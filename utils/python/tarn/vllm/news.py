"""What a worker tells the scheduler's process besides formats and jobs: how long loads took, for
cost.py, and what has been put, for events.py."""

import threading
from dataclasses import dataclass, field
from typing import Dict, Optional

__all__ = ["News", "NewsDesk"]


@dataclass
class News:
    """took: seconds of loads that arrived whole, by request."""

    took: Dict[str, float] = field(default_factory=dict)

    def joined(self, other: "News") -> "News":
        """Of two workers: a load is as slow as the slowest."""
        names = {**self.took, **other.took}
        return News({n: max(self.took.get(n, 0.0), other.took.get(n, 0.0)) for n in names})


def joined_news(one: Optional[News], other: Optional[News]) -> Optional[News]:
    return one.joined(other) if one is not None and other is not None else one or other


class NewsDesk:
    """Collects them in a worker. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._took: Dict[str, float] = {}

    def loaded(self, request: str, seconds: float) -> None:
        """Of a load in several pieces, each."""
        with self._lock:
            self._took[request] = self._took.get(request, 0.0) + seconds

    def take(self) -> Optional[News]:
        """None: nothing is new."""
        with self._lock:
            took, self._took = self._took, {}
        return News(took) if took else None
