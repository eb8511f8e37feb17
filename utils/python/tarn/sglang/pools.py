"""SGLang's host pools: what their pages are called, and where they lie.

A pool that tells where its pages lie has them moved in place. Others hand over copies of them."""

from __future__ import annotations

import logging
import sys
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import InvalidArgument
from ..identity import Facts, digest, first
from ..keys import escape, hash_text
from ..memory import Pinned, pin

log = logging.getLogger(__name__)
KV = "kv"


class _Indices(list):  # type: ignore[type-arg]
    """Slots of the first page, for host pools that are asked where torch is not there."""

    def tolist(self) -> List[int]:
        return list(self)


def _first_page(page_size: int) -> Any:
    torch = sys.modules.get("torch")
    return torch.arange(page_size) if torch is not None else _Indices(range(page_size))


def draft_of(args: Any) -> Any:
    """Which draft model SGLang's options name."""
    names = (
        "speculative_algorithm",
        "speculative_draft_model_path",
        "speculative_draft_model_revision",
    )
    return [first(args, name) for name in names]


def _has_draft_layers(name: str, pool: Any) -> bool:
    """Whether a draft model's layers are in the pages: of a pool of its own, or behind the
    target's, where the host pool has more layers than the device's."""
    device = getattr(pool, "device_pool", None)
    if device is None:  # pools of rows do not tell the target's from the draft's
        return name.startswith("draft") or hasattr(pool, "device_buffers")
    own = first(device, "layer_num")
    return name.startswith("draft") or (own is not None and own != first(pool, "layer_num"))


def _state_parts(pool: Any) -> Any:
    """Of recurrent states: what is in a page one after the other. Dtypes of one size would
    otherwise be told apart by nobody."""
    if first(pool, "temporal_dtype") is None:
        return None
    return [
        str(pool.temporal_dtype),
        list(first(pool, "temporal_state_shape") or ()),
        str(first(pool, "conv_dtype")),
        [list(shape) for shape in first(pool, "conv_state_shapes") or ()],
    ]


def facts_of(storage_config: Any, args: Any, name: str, pool: Any) -> Facts:
    """What decides the bytes of a pool's pages and is not said in words in their keys. `args`:
    SGLang's options, where they are known."""
    ends = [first(pool, "start_layer"), first(pool, "end_layer")]
    device = getattr(getattr(pool, "device_pool", None), "dtype", None)
    recoded = device is not None and getattr(pool, "dtype", device) != device
    return Facts(
        revision=first(args, "revision"),
        weights=[first(args, "quantization"), first(storage_config, "model_identity_hash")],
        model_dtype=first(args, "dtype"),
        cache_dtype=first(args, "kv_cache_dtype"),
        scales=first(args, "quantization_param_path"),
        overrides=first(args, "json_model_override_args"),
        draft=draft_of(args) if _has_draft_layers(name, pool) else None,
        platform=first(args, "device"),
        block_tokens=first(pool, "page_size"),
        layers=[first(pool, "layer_num"), ends if any(e is not None for e in ends) else None],
        format=str(pool.dtype).split(".")[-1] if recoded else None,
        shape=_state_parts(pool),
    )


class Rows(NamedTuple):
    """Pages to move: for each object its name, its page's hash, and the addresses and sizes of its
    pieces. `flat`: the copies that the pool was asked for, if it was; `keep`: what holds on to
    their memory."""

    names: List[str]
    hashes: List[str]
    addresses: List[Any]
    sizes: List[Any]
    flat: Optional[List[Any]] = None
    keep: Any = None

    def totals(self) -> List[int]:
        """Bytes of each object."""
        return [n if isinstance(n, int) else sum(n) for n in self.sizes]


class PagePool:
    """A registered host pool."""

    def __init__(
        self,
        name: str,
        pool: Any,
        zero_copy: bool,
        splits: int,
        head: str,
        ranks: Sequence[str],
        facts: Facts,
    ) -> None:
        """`splits`: objects that a page becomes (heads of ranks of a larger tensor-parallel size);
        one per name in `ranks`. `head`: what all keys begin with. `facts`: what else decides a
        page's bytes."""
        self.name, self.pool, self.splits = name, pool, splits
        self.page_size = int(getattr(pool, "page_size", 1) or 1)
        # Slots only: its bytes are in other pools.
        self.logical = getattr(pool, "kv_buffer", self) is None
        self.zero_copy = zero_copy and self._has_meta()
        self.page_bytes = 0 if self.logical else self._page_bytes()
        layout = str(getattr(pool, "layout", "none"))
        if not self.zero_copy:
            layout = f"flat-{layout}"
        dtype = getattr(getattr(pool, "device_pool", None), "dtype", None) or getattr(
            pool, "dtype", "none"
        )
        dtype_name, size = str(dtype).split(".")[-1], self.page_bytes // splits
        content = f"{name}.{layout}.{dtype_name}.{size}.{digest(facts)}"
        self.prefixes = [f"{head}@{escape(content)}@{r}@" for r in ranks]

    def _meta(self, indices: Any) -> Tuple[List[int], List[int]]:
        if self.splits > 1:
            where = self.pool.get_split_heads_page_buffer_meta(indices, self.splits)
        else:
            where = self.pool.get_page_buffer_meta(indices)
        return where  # type: ignore[no-any-return]

    def _has_meta(self) -> bool:
        if self.logical:
            return True
        try:
            return bool(self._meta(_first_page(self.page_size)))
        except Exception as e:  # pools say in many ways that their layout has no such thing
            log.warning(
                "tarn: pages of host pool '%s' are copied, for it cannot tell where they lie: %s",
                self.name,
                e,
            )
            return False

    def _page_bytes(self) -> int:
        if self.zero_copy:
            return sum(int(s) for s in self._meta(_first_page(self.page_size))[1])
        try:
            return pin(self.pool.get_dummy_flat_data_page()).size
        except Exception as e:
            raise InvalidArgument(
                f"host pool '{self.name}' has pages neither in place nor flat ({e}): set "
                '"interface_v1": 1 and use '
                "--hicache-mem-layout page_first or page_first_direct"
            ) from e

    def keys(self, hashes: Sequence[str]) -> List[str]:
        """`splits` keys per page, in the order of `rows`."""
        ends = [hash_text(page) for page in hashes]
        return [prefix + end for end in ends for prefix in self.prefixes]

    def rows(self, hashes: Sequence[str], indices: Any, reading: bool) -> Rows:
        """The objects of pages whose slots are `indices`. InvalidArgument: they are not as many."""
        if len(hashes) * self.page_size != len(indices):
            raise InvalidArgument(
                f"host pool '{self.name}': {len(indices)} slots are not {len(hashes)} pages of "
                f"{self.page_size}"
            )
        names = self.keys(hashes)
        ends = [page for page in hashes for _ in self.prefixes]
        if not self.zero_copy:
            flat = [
                (
                    self.pool.get_dummy_flat_data_page()
                    if reading
                    else self.pool.get_data_page(int(indices[i * self.page_size]))
                )
                for i in range(len(hashes))
            ]
            pins = [pin(page, reading) for page in flat]
            return Rows(names, ends, [p.address for p in pins], [p.size for p in pins], flat, pins)
        addresses, sizes = self._meta(indices)
        if len(addresses) != len(sizes) or len(addresses) % len(names):
            raise InvalidArgument(
                f"host pool '{self.name}': {len(addresses)} pieces of memory for {len(names)} "
                "objects"
            )
        n = len(addresses) // len(names)
        return Rows(
            names,
            ends,
            [addresses[i : i + n] for i in range(0, len(addresses), n)],
            [sizes[i : i + n] for i in range(0, len(sizes), n)],
        )

    def take_in(self, rows: Rows, indices: Any, there: Sequence[bool]) -> None:
        """After a read: hands the pool its copies of the pages that arrived."""
        for i, page in enumerate(rows.flat or ()):
            if there[i]:
                self.pool.set_from_flat_data_page(int(indices[i * self.page_size]), page)

    def by_page(self, flags: Sequence[bool]) -> List[bool]:
        """Of flags for objects: which pages have all of theirs."""
        if self.splits == 1:
            return list(flags)
        return [all(flags[i : i + self.splits]) for i in range(0, len(flags), self.splits)]

    def buffers(self) -> List[Pinned]:
        """The memory that the pages lie in."""
        get = getattr(self.pool, "get_hybrid_pool_buffer", None)
        found = get() if get is not None else getattr(self.pool, "kv_buffer", None)
        if found is None:
            return []
        many = list(found) if isinstance(found, (list, tuple)) else [found]
        pins = [pin(buffer, writable=True, name="host pool") for buffer in many]
        return [p for p in pins if p.size]  # a model without recurrent states has empty ones
