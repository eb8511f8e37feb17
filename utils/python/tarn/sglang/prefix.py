"""How long a prefix can be that several host pools serve.

Of a pool either every page from the start is needed (keys and values, indexers, drafts), or the
last few before the end (sliding windows; of recurrent states one). So a shorter prefix than the
longest may be of no use: states lie where a request ended. `ends_of` gives all that can be used,
for ranks that have to agree on one."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence

from ..client import Client
from ..kv_groups import KVGroup
from .pools import PagePool


class Need(NamedTuple):
    """Of this pool, the last `trailing` pages before the end; 0: every page."""

    pool: PagePool
    trailing: int

    def groups(self) -> List[KVGroup]:
        """As KV groups, a page being a token: one for each object that a page is made of."""
        if not self.trailing:
            return [KVGroup(prefix, "full", 1) for prefix in self.pool.prefixes]
        return [
            KVGroup(prefix, "window", 1, window=self.trailing + 1) for prefix in self.pool.prefixes
        ]


def _hashes_of(keys: Sequence[str]) -> Optional[List[bytes]]:
    """The hashes that these keys are the text of; None: they are other names."""
    try:
        hashes = [bytes.fromhex(key) for key in keys]
    except ValueError:
        return None
    return hashes if all(h.hex() == key for h, key in zip(hashes, keys)) else None


def _usable_ends(needs: Sequence[Need], there: Sequence[Sequence[bool]], pages: int) -> List[int]:
    """Numbers of pages, ascending, at which all pools have what is needed of them."""
    ends = list(range(1, pages + 1))
    for need, flags in zip(needs, there):
        runs, run = [], 0  # pages in a row up to each
        for flag in flags:
            run = run + 1 if flag else 0
            runs.append(run)
        ends = [e for e in ends if runs[e - 1] >= min(need.trailing or e, e)]
    return ends


def ends_of(
    client: Client, keys: Sequence[str], needs: Sequence[Need], all_ends: bool, **lease: Any
) -> List[int]:
    """Numbers of pages, ascending, at which a prefix can end; `all_ends`: the longest alone is not
    enough. One request for the longest, however many pools and pages; a second one for shorter
    ends, which only pools of the last pages can rule out."""
    hashes, pages = _hashes_of(keys), len(keys)
    unsure = list(needs)
    if hashes is not None:
        groups = [group for need in needs for group in need.groups()]
        pages = client.kv_prefix(hashes, groups, unit=1, align=1, **lease).tokens
        unsure = [need for need in needs if need.trailing]
        if not all_ends:
            return [pages] if pages else []
    if not unsure or not pages:
        return list(range(1, pages + 1))
    names = [need.pool.keys(keys[:pages]) for need in unsure]
    found = client.exists_many([name for some in names for name in some])
    there, at = [], 0
    for need, some in zip(unsure, names):
        there.append(need.pool.by_page(found[at : at + len(some)]))
        at += len(some)
    return _usable_ends(unsure, there, pages)
