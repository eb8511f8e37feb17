"""SGLang's hierarchical cache on a tarn pool: the third level behind GPU and host memory.

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{
      "backend_name": "tarn", "module_path": "tarn.sglang", "class_name": "TarnHiCache",
      "interface_v1": 1, "tarn": {"url": "tarn://10.0.0.1:6479"}}'

A page of the host pool, all its layers, keys and values, is one object, put and read straight from
and into the host pool's memory; docs/engines/SGLANG.md says how objects are called and which ranks
share them. Without `"interface_v1": 1` SGLang copies every page into a tensor of its own before it
asks.

Threads: SGLang calls from its scheduler (registering, clear, get_stats), prefetch, prefetch I/O and
backup threads at once; there is none of our own. Nothing raises once the engine runs: a pool that
is away is a miss, and a put that was not done."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ._link import Link, optional, settings
from .client import Client
from .errors import InvalidArgument, Status
from .identity import Facts, digest, first
from .keys import escape, glob_of, joined
from .memory import Pinned, pin


@dataclass
class _Result:
    """PoolTransferResult where SGLang is not installed: pages of the main pool, and of each other
    pool by name."""

    kv_hit_pages: int
    extra_pool_hit_pages: Dict[Any, int]


@dataclass
class _Metrics:
    """StorageMetrics where SGLang is not installed: pages and GB/s of each batch since the last
    call."""

    prefetch_pgs: List[int] = field(default_factory=list)
    backup_pgs: List[int] = field(default_factory=list)
    prefetch_bandwidth: List[float] = field(default_factory=list)
    backup_bandwidth: List[float] = field(default_factory=list)


_STORAGE, _FIGURES = (
    "sglang.srt.mem_cache.hicache_storage",
    "sglang.srt.observability.metrics_collector",
)
_Base: Any
_Base, PoolTransferResult = optional(_STORAGE, "HiCacheStorage", "PoolTransferResult") or (
    object,
    _Result,
)
(StorageMetrics,) = optional(_FIGURES, "StorageMetrics") or (_Metrics,)

log = logging.getLogger(__name__)
KV = "kv"
_MISS = int(Status.ENOTFOUND)
_SAMPLES = 4096  # figures kept between two calls of get_stats


class _Indices(list):  # type: ignore[type-arg]
    """Slots of the first page, for host pools that are asked where torch is not there."""

    def tolist(self) -> List[int]:
        return list(self)


def _first_page(page_size: int) -> Any:
    torch = sys.modules.get("torch")
    return torch.arange(page_size) if torch is not None else _Indices(range(page_size))


def _slot_at(indices: Any, i: int) -> int:
    return int(indices[i])


def _server_args() -> Any:
    """SGLang's own options, in its scheduler's process; None elsewhere."""
    found = optional("sglang.srt.server_args", "get_global_server_args")
    try:
        return found[0]() if found is not None else None
    except Exception:  # not set yet
        return None


def _draft_of(args: Any) -> Any:
    names = (
        "speculative_algorithm",
        "speculative_draft_model_path",
        "speculative_draft_model_revision",
    )
    return [first(args, name) for name in names]


def facts_of(storage_config: Any, args: Any, name: str, pool: Any) -> Facts:
    """What decides the bytes of a pool's pages and is not said in words in their keys. `args`:
    SGLang's options, where they are known."""
    ends = [first(pool, "start_layer"), first(pool, "end_layer")]
    return Facts(
        revision=first(args, "revision"),
        weights=[first(args, "quantization"), first(storage_config, "model_identity_hash")],
        model_dtype=first(args, "dtype"),
        cache_dtype=first(args, "kv_cache_dtype"),
        scales=first(args, "quantization_param_path"),
        overrides=first(args, "json_model_override_args"),
        draft=_draft_of(args) if name.startswith("draft") else None,
        platform=first(args, "device"),
        block_tokens=first(pool, "page_size"),
        layers=[first(pool, "layer_num"), ends if any(e is not None for e in ends) else None],
    )


class _Pool:
    """A registered host pool: what its pages are called, and where they lie."""

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
        self.logical = (
            getattr(pool, "kv_buffer", self) is None
        )  # slots only: its bytes are in other pools
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
        """`splits` keys per page, in the order of `memory`."""
        return [prefix + page for page in hashes for prefix in self.prefixes]

    def memory(self, pages: int, indices: Any) -> Tuple[List[List[int]], List[List[int]]]:
        """Addresses and sizes of the pieces of each object of `pages` pages whose slots are
        `indices`."""
        if pages * self.page_size != len(indices):
            raise InvalidArgument(
                f"host pool '{self.name}': {len(indices)} slots are not {pages} pages of "
                f"{self.page_size}"
            )
        addresses, sizes = self._meta(indices)
        objects = pages * self.splits
        if len(addresses) != len(sizes) or len(addresses) % objects:
            raise InvalidArgument(
                f"host pool '{self.name}': {len(addresses)} pieces of memory for {objects} objects"
            )
        n = len(addresses) // objects
        return (
            [addresses[i : i + n] for i in range(0, len(addresses), n)],
            [sizes[i : i + n] for i in range(0, len(sizes), n)],
        )

    def buffers(self) -> List[Any]:
        """The tensors (or other buffers) that the pages lie in."""
        get = getattr(self.pool, "get_hybrid_pool_buffer", None)
        found = get() if get is not None else getattr(self.pool, "kv_buffer", None)
        if found is None:
            return []
        return list(found) if isinstance(found, (list, tuple)) else [found]


class TarnHiCache(_Base):  # type: ignore[misc]
    """HiCacheStorage on a tarn pool. SGLang makes one per rank: see the module's text."""

    def __init__(self, storage_config: Any, kwargs: Optional[Dict[str, Any]] = None) -> None:
        """`storage_config`: SGLang's HiCacheStorageConfig; its extra_config may hold "tarn":
        {"url", "namespace", "timeout_ms", "lookup_lease_ms", "client": {..}, "put": {..}}. `kwargs`
        of the factory are not used.

        InvalidArgument, PermissionDenied: the configuration. A server that is not there yet is
        waited for later."""
        extra = dict(getattr(storage_config, "extra_config", None) or {})
        chosen = settings(extra.get("tarn"), 'extra config "tarn"')
        self._config, self._args = storage_config, _server_args()
        if getattr(self._args, "enable_lora", False):
            # A page is called by the hash of its tokens alone: what one adapter computed would be
            # read for another.
            raise InvalidArgument(
                "SGLang's names of pages do not tell LoRA adapters apart: no --enable-lora with "
                "this storage"
            )
        self._draft = digest(Facts(draft=_draft_of(self._args)))
        self._in_place = bool(extra.get("interface_v1", 0))
        if not self._in_place:
            log.warning(
                'tarn: every page is copied once more: add "interface_v1": 1 to the extra config'
            )
        model = self._of("model_name", None) or "none"
        self._head = joined(chosen.namespace, extra.get("extra_backend_tag"), "sglang", model)
        self._lookup = {"lease_ms": chosen.lookup_lease_ms} if chosen.lookup_lease_ms else {}
        self._gets, self._puts = chosen.get_options(), chosen.put_options()
        self.registered_pools: Dict[Any, Any] = {}
        self._pools: Dict[str, _Pool] = {}
        self._metrics = bool(self._of("enable_storage_metrics", False))
        self._read: "deque[Tuple[int, float]]" = deque(maxlen=_SAMPLES)
        self._written: "deque[Tuple[int, float]]" = deque(maxlen=_SAMPLES)
        self._link = Link(chosen, log, f"tarn, tp rank {self._of('tp_rank', 0)}")

    def _of(self, name: str, default: Any) -> Any:
        return getattr(self._config, name, default)

    # --- pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool that pages come from and go to; before anything else. InvalidArgument: it has no
        pages that we can reach."""
        self.mem_pool_host = mem_pool_host
        self._register(KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A further pool of a hybrid model; the main one is registered by
        register_mem_pool_host."""
        self.registered_pools[host_pool_name] = host_pool
        if str(host_pool_name) != KV:
            self._register(str(host_pool_name), host_pool)

    def _register(self, name: str, pool: Any) -> None:
        splits = 1
        if name == KV and self._of("should_split_heads", False):
            splits = int(self._config.tp_lcm_size) // int(self._config.tp_size)
        zero_copy = self._in_place or name != KV
        if splits > 1 and not zero_copy:
            raise InvalidArgument('tp_lcm_size needs "interface_v1": 1 in the extra config')
        facts = facts_of(self._config, self._args, name, pool)
        made = _Pool(name, pool, zero_copy, splits, self._head, self._ranks(pool, splits), facts)
        self._pools[name] = made
        if made.zero_copy:
            self._link.on_connect(lambda client: self._register_memory(client, made))

    @staticmethod
    def _register_memory(client: Client, pool: _Pool) -> None:
        for buffer in pool.buffers():
            where = pin(buffer, writable=True, name="host pool")
            client.register_buffer(where.address, where.size)

    def _ranks(self, pool: Any, splits: int) -> List[str]:
        """Names of the ranks that the objects of a page belong to."""
        rank, size = int(self._of("tp_rank", 0)), int(self._of("tp_size", 1))
        # Of a model whose main cache is the same on all ranks only rank 0 writes, but for pools
        # that are not: those of Mamba states and of K and V heads.
        kinds = {c.__name__ for c in type(pool).__mro__}
        own = any("Mamba" in k or k.startswith("MHATokenToKVPool") for k in kinds)
        rest = ""
        if int(self._of("pp_size", 1)) > 1:
            rest += f"@pp{self._config.pp_rank}of{self._config.pp_size}"
        if int(self._of("attn_cp_size", 1)) > 1:
            rest += f"@cp{self._config.attn_cp_rank}of{self._config.attn_cp_size}"
        if self._of("is_mla_model", False) and not own:
            return ["shared" + rest]
        return [f"tp{rank * splits + i}of{size * splits}{rest}" for i in range(splits)]

    # --- pages in place

    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """How many leading pages are there; 0 when the pool is away."""
        pool = self._pools.get(KV)
        if pool is not None and pool.logical:
            return len(keys)
        names = pool.keys(keys) if pool is not None else [self._name(k) for k in keys]
        found = (
            self._link.call("lookup", lambda c: c.prefix_length(names, **self._lookup), 0)
            if names
            else 0
        )
        return found // (pool.splits if pool is not None else 1)

    def batch_get_v1(
        self, keys: List[str], host_indices: Any, extra_info: Any = None
    ) -> List[bool]:
        """Reads a page per key into the host pool's slots; False: that page holds junk."""
        return self._get(self._pools[KV], keys, host_indices)

    def batch_set_v1(
        self, keys: List[str], host_indices: Any, extra_info: Any = None
    ) -> List[bool]:
        """Stores a page per key; True also where somebody else has stored it, or is at it."""
        return self._set(self._pools[KV], keys, host_indices)

    def batch_exists_v2(
        self, keys: List[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """How many leading pages can be used: there in the main pool, and in the others as their
        hit policy asks."""
        pages = self.batch_exists(keys, extra_info)
        hits: Dict[Any, int] = {KV: pages} if pages else {}
        usable = pages
        for transfer in pool_transfers or []:
            if usable == 0:
                break
            there = self._pages_there(transfer.name, keys[:pages])
            if str(getattr(transfer.hit_policy, "value", transfer.hit_policy)) == "trailing_pages":
                boundary = _trailing(there, max(1, len(transfer.keys or ())))
            else:
                boundary = there.index(False) if False in there else len(there)
            if boundary:
                hits[transfer.name] = boundary
            usable = min(usable, boundary)
        return PoolTransferResult(usable, hits)

    def _pages_there(self, name: Any, keys: List[str]) -> List[bool]:
        pool = self._pools.get(str(name))
        if pool is None:
            self._link.complain("pool", f"host pool '{name}' was never registered")
            return [False] * len(keys)
        if pool.logical:
            return [True] * len(keys)
        names = pool.keys(keys)
        found = self._link.call("lookup", lambda c: c.exists_many(names), [False] * len(names))
        return _by_page(found, pool.splits)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> Dict[Any, List[bool]]:
        """As batch_get_v1 for several pools: by pool, a flag per key."""
        return {t.name: self._of_pool(t, self._get) for t in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> Dict[Any, List[bool]]:
        """As batch_set_v1 for several pools: by pool, a flag per key."""
        return {t.name: self._of_pool(t, self._set) for t in transfers}

    def _of_pool(self, transfer: Any, work: Any) -> List[bool]:
        pool = self._pools.get(str(transfer.name))
        keys = list(transfer.keys or ())
        if pool is None or transfer.host_indices is None:
            self._link.complain(
                "pool", f"host pool '{transfer.name}' was never registered, or has no slots here"
            )
            return [False] * len(keys)
        return work(pool, keys, transfer.host_indices)  # type: ignore[no-any-return]

    def _get(self, pool: _Pool, keys: List[str], indices: Any) -> List[bool]:
        if pool.logical or not keys:
            return [True] * len(keys)
        if not pool.zero_copy:
            return self._get_flat(pool, keys, indices)

        def work(client: Client) -> List[bool]:
            addresses, sizes = pool.memory(len(keys), indices)
            names = pool.keys(keys)
            got = client.get_into_many(names, addresses, sizes, **self._gets)
            return self._link.whole("get", names, got, [sum(s) for s in sizes], _MISS)

        started = time.perf_counter()
        pages = _by_page(
            self._link.call("get", work, [False] * (len(keys) * pool.splits)), pool.splits
        )
        self._count(self._read, sum(pages), sum(pages) * pool.page_bytes, started)
        return pages

    def _set(self, pool: _Pool, keys: List[str], indices: Any) -> List[bool]:
        if pool.logical or not keys:
            return [True] * len(keys)
        if not pool.zero_copy:
            size = pool.page_size
            return self._put_all(
                keys,
                lambda: [
                    pool.pool.get_data_page(_slot_at(indices, i * size)) for i in range(len(keys))
                ],
                pool,
            )

        def work(client: Client) -> List[bool]:
            addresses, sizes = pool.memory(len(keys), indices)
            return self._store(client, pool.keys(keys), addresses, sizes)

        started = time.perf_counter()
        pages = _by_page(
            self._link.call("put", work, [False] * (len(keys) * pool.splits)), pool.splits
        )
        self._count(self._written, sum(pages), sum(pages) * pool.page_bytes, started)
        return pages

    def _get_flat(self, pool: _Pool, keys: List[str], indices: Any) -> List[bool]:
        def work(client: Client) -> List[bool]:
            pages = [pool.pool.get_dummy_flat_data_page() for _ in keys]
            there = self._get_all(pool.keys(keys), pages)
            for i, found in enumerate(there):
                if found:
                    pool.pool.set_from_flat_data_page(
                        _slot_at(indices, i * pool.page_size), pages[i]
                    )
            return there

        return self._link.call("get", work, [False] * len(keys))

    def _store(
        self, client: Client, names: Sequence[str], addresses: Sequence[Any], sizes: Sequence[Any]
    ) -> List[bool]:
        put = self._link.distrust.put
        return self._link.stored(
            "put", put(client.put_from_many, names, addresses, sizes, **self._puts)
        )

    def _count(
        self, where: "deque[Tuple[int, float]]", pages: int, size: int, started: float
    ) -> None:
        """`pages` pages of together `size` bytes since `started`."""
        if self._metrics and pages:
            seconds = max(time.perf_counter() - started, 1e-9)
            where.append((pages, size / seconds / (1 << 30)))

    # --- tensors, and addresses of memory

    def _name(self, key: str) -> str:
        pool = self._pools.get(KV)
        prefix = (
            pool.prefixes[0] if pool is not None else f"{self._head}@raw@{self._ranks(None, 1)[0]}@"
        )
        # SGLang moves pages of a draft model under the target's key; which model it is says nobody
        # but we.
        return prefix + key + (f"@{self._draft}" if key.endswith(".draft") else "")

    @staticmethod
    def _pins(
        targets: Sequence[Any], sizes: Optional[Sequence[Any]], writable: bool
    ) -> List[Pinned]:
        if sizes is not None:
            return [
                pin((t, s)) if isinstance(t, int) else pin(t, writable)
                for t, s in zip(targets, sizes)
            ]
        return [pin(t, writable) for t in targets]

    def _get_all(
        self, names: List[str], targets: Sequence[Any], sizes: Optional[Sequence[Any]] = None
    ) -> List[bool]:
        def work(client: Client) -> List[bool]:
            pins, started = self._pins(targets, sizes, True), time.perf_counter()
            got = client.get_into_many(
                names, [p.address for p in pins], [p.size for p in pins], **self._gets
            )
            there = self._link.whole("get", names, got, [p.size for p in pins], _MISS)
            self._count(
                self._read, sum(there), sum(p.size for p, t in zip(pins, there) if t), started
            )
            return there

        return self._link.call("get", work, [False] * len(names))

    def _put_all(
        self, keys: List[str], values: Any, pool: Optional[_Pool] = None, sizes: Any = None
    ) -> List[bool]:
        def work(client: Client) -> List[bool]:
            pins, started = self._pins(values(), sizes, False), time.perf_counter()
            names = pool.keys(keys) if pool is not None else [self._name(k) for k in keys]
            addresses, lengths = [p.address for p in pins], [p.size for p in pins]
            done = self._store(client, names, addresses, lengths)
            self._count(
                self._written, sum(done), sum(n for n, d in zip(lengths, done) if d), started
            )
            return done

        return self._link.call("put", work, [False] * len(keys))

    def batch_get(
        self, keys: List[str], target_locations: Any = None, target_sizes: Any = None
    ) -> Any:
        """Reads whole values. Into tensors or buffers: a list with the target, or None for a miss.
        Into addresses (with sizes): how many leading ones arrived. Without targets: new tensors of
        bytes (`bytes` where torch is not there)."""
        if target_locations is None:
            return [_as_tensor(v) for v in self._fetch([self._name(k) for k in keys])]
        there = self._get_all([self._name(k) for k in keys], target_locations, target_sizes)
        if any(isinstance(t, int) for t in target_locations):
            return there.index(False) if False in there else len(there)
        return [target if found else None for target, found in zip(target_locations, there)]

    def _fetch(self, names: List[str]) -> List[Optional[bytes]]:
        nothing: List[Optional[bytes]] = [None] * len(names)
        return self._link.call("get", lambda c: c.get_many(names, **self._gets), nothing)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """One value: the target, or None; of an address whether it arrived."""
        if target_location is None:
            return _as_tensor(self._fetch([self._name(key)])[0])
        sizes = None if target_sizes is None else [target_sizes]
        found = self._get_all([self._name(key)], [target_location], sizes)[0]
        return found if isinstance(target_location, int) else (target_location if found else None)

    def batch_set(
        self,
        keys: List[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores tensors (buffers), or memory at addresses; True: all are stored, by us or by
        others."""
        given = values if values is not None else target_locations
        if given is None or len(given) != len(keys):
            self._link.complain("set", "as many values, or addresses and sizes, as keys are needed")
            return False
        return all(self._put_all(list(keys), lambda: given, sizes=target_sizes))

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """One value; True: stored, or there already."""
        given = value if value is not None else target_location
        return self.batch_set(
            [key], [given], target_sizes=None if target_sizes is None else [target_sizes]
        )

    def exists(self, key: str) -> bool:
        """Whether a page (with split heads: its first part) is there."""
        return self._link.call("lookup", lambda c: c.exists(self._name(key)), False)

    # --- upkeep

    def clear(self) -> bool:
        """Removes all pages of this model (and tag), of all ranks and pools; other keys of the pool
        stay."""
        pattern = glob_of(self._head) + "@*"

        def work(client: Client) -> bool:
            client.command("REMOVEMATCH", "GLOB", pattern)
            return True

        return self._link.call("clear", work, False)

    def get_stats(self) -> Any:
        """Pages and GB/s of the batches since the last call, for SGLang's metrics; None where they
        are not enabled."""
        if not self._metrics:
            return None
        stats = StorageMetrics()
        for samples, pages, rates in (
            (self._read, stats.prefetch_pgs, stats.prefetch_bandwidth),
            (self._written, stats.backup_pgs, stats.backup_bandwidth),
        ):
            for _ in range(len(samples)):
                n, rate = samples.popleft()
                pages.append(n)
                rates.append(rate)
        return stats

    @property
    def troubles(self) -> Dict[str, int]:
        """What went wrong so far, by kind."""
        return dict(self._link.troubles)

    def close(self) -> None:
        """Closes the connection; SGLang calls it when the backend is detached, with its threads
        stopped."""
        self._link.close()


def _by_page(flags: Sequence[bool], splits: int) -> List[bool]:
    if splits == 1:
        return list(flags)
    return [all(flags[i : i + splits]) for i in range(0, len(flags), splits)]


def _trailing(there: Sequence[bool], n: int) -> int:
    """The longest prefix whose last `n` pages (or all, if it is shorter) are there."""
    for length in range(len(there), 0, -1):
        if all(there[max(0, length - n) : length]):
            return length
    return 0


def _as_tensor(value: Optional[bytes]) -> Union[Any, bytes, None]:
    torch = sys.modules.get("torch")
    if value is None or torch is None:
        return value
    return (
        torch.frombuffer(bytearray(value), dtype=torch.uint8)
        if value
        else torch.empty(0, dtype=torch.uint8)
    )
