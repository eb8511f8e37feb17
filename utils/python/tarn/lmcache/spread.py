"""How one batch is spread over several threads: copying is what takes the time, and one thread does
not fill a memory bus."""

from __future__ import annotations

from typing import List, Sequence, Tuple

# Below this a second thread costs more than it brings.
PART_BYTES = 16 << 20


def spread(sizes: Sequence[int], threads: int) -> List[Tuple[int, int]]:
    """[first, last) of consecutive parts of about the same number of bytes, up to one for each
    thread; one for no keys."""
    total = sum(sizes)
    n = max(1, min(threads, len(sizes), total // PART_BYTES))
    parts: List[Tuple[int, int]] = []
    first, upto = 0, 0
    for i, size in enumerate(sizes):
        upto += size
        if len(parts) < n - 1 and upto * n >= total * (len(parts) + 1):
            parts.append((first, i + 1))
            first = i + 1
    if first < len(sizes) or not parts:
        parts.append((first, len(sizes)))
    return parts
