"""The storage backend that SGLang makes, one for each rank.

Threads: SGLang calls from its scheduler (registering, clear, get_stats), prefetch, prefetch I/O and
backup threads at once; there is none of our own. Nothing raises once the engine runs: a pool that
is away is a miss, and a put that was not done."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .._link import Link, settings
from ..client import Client
from ..conductor import KeysTeller, keys_words
from ..errors import InvalidArgument
from ..identity import Facts, digest
from ..keys import glob_of, hash_text, joined
from ..kv_groups import KVGroup
from . import base
from .pools import KV, PagePool, Rows, draft_of, facts_of
from .prefix import Need, ends_of
from .values import ValueStore

log = logging.getLogger(__name__)


class _Part(NamedTuple):
    """Pages of one pool: those of `keys`, in the slots `indices`."""

    pool: Optional[PagePool]  # None: there is no such pool, or there are no slots
    keys: List[str]
    indices: Any


class TarnHiCache(ValueStore):
    """HiCacheStorage on a tarn pool."""

    def __init__(self, storage_config: Any, kwargs: Optional[Dict[str, Any]] = None) -> None:
        """`storage_config`: SGLang's HiCacheStorageConfig; its extra_config may hold "tarn":
        {"url", "namespace", "timeout_ms", "lookup_lease_ms", "client": {..}, "put": {..},
        "conductor"}. `kwargs` of the factory are not used.

        InvalidArgument, PermissionDenied: the configuration. A server that is not there yet is
        waited for later."""
        extra = dict(getattr(storage_config, "extra_config", None) or {})
        given = dict(extra["tarn"]) if isinstance(extra.get("tarn"), dict) else extra.get("tarn")
        self._engine = str(given.pop("conductor", "")) if isinstance(given, dict) else ""
        chosen = settings(given, 'extra config "tarn"')
        self._config, self._args = storage_config, base.server_args()
        if getattr(self._args, "enable_lora", False):
            # A page is called by the hash of its tokens alone: what one adapter computed would be
            # read for another.
            raise InvalidArgument(
                "SGLang's names of pages do not tell LoRA adapters apart: no --enable-lora with "
                "this storage"
            )
        self._draft = digest(Facts(draft=draft_of(self._args)))
        self._in_place = bool(extra.get("interface_v1", 0))
        if not self._in_place:
            log.warning(
                'tarn: every page is copied once more: add "interface_v1": 1 to the extra config'
            )
        model = self._of("model_name", None) or "none"
        self._head = joined(chosen.namespace, extra.get("extra_backend_tag"), "sglang", model)
        self._lookup: Dict[str, Any] = (
            {"lease_ms": chosen.lookup_lease_ms} if chosen.lookup_lease_ms else {}
        )
        self.registered_pools: Dict[Any, Any] = {}
        self._pools: Dict[str, PagePool] = {}
        self._telling = threading.Lock()  # the next field
        self._teller: Optional[KeysTeller] = None
        link = Link(chosen, log, f"tarn, tp rank {self._of('tp_rank', 0)}")
        self._set_up(chosen, link, bool(self._of("enable_storage_metrics", False)))

    def _of(self, name: str, default: Any) -> Any:
        return getattr(self._config, name, default)

    # --- pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool that pages come from and go to; before anything else. InvalidArgument: it has no
        pages that we can reach."""
        self.mem_pool_host = mem_pool_host
        self._register(KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A further pool of a hybrid model, or of its draft model; the main one is registered by
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
        ranks = self._ranks(name, splits)
        made = PagePool(name, pool, zero_copy, splits, self._head, ranks, facts)
        self._pools[name] = made
        if made.zero_copy:
            self._link.on_connect(lambda client: self._register_memory(client, made))

    @staticmethod
    def _register_memory(client: Client, pool: PagePool) -> None:
        for memory in pool.buffers():
            client.register_buffer(memory.address, memory.size)

    def _ranks(self, name: str, splits: int, of_rank: Optional[int] = None) -> List[str]:
        """Names of the ranks that the objects of a page belong to: of this one, or another."""
        size = int(self._of("tp_size", 1))
        rank = int(self._of("tp_rank", 0)) if of_rank is None else of_rank
        rest = ""
        if int(self._of("pp_size", 1)) > 1:
            rest += f"@pp{self._config.pp_rank}of{self._config.pp_size}"
        if int(self._of("attn_cp_size", 1)) > 1:
            rest += f"@cp{self._config.attn_cp_rank}of{self._config.attn_cp_size}"
        # Of a model whose main cache is the same on all ranks SGLang has rank 0 alone write all
        # pools but recurrent states: others can only read what that rank wrote.
        if self._of("is_mla_model", False) and name != "mamba":
            return ["shared" + rest]
        return [f"tp{rank * splits + i}of{size * splits}{rest}" for i in range(splits)]

    def _name(self, key: str) -> str:
        pool = self._pools.get(KV)
        prefix = (
            pool.prefixes[0] if pool is not None else f"{self._head}@raw@{self._ranks(KV, 1)[0]}@"
        )
        # Versions of SGLang without pools for drafts move their pages under the target's key;
        # which model it is says nobody but we.
        return prefix + hash_text(key) + (f"@{self._draft}" if key.endswith(".draft") else "")

    # --- the Conductor

    def _tell(self) -> None:
        """At the first look-up, when all pools are registered. One rank tells for all."""
        if not self._engine or int(self._of("tp_rank", 0)) != 0:
            return
        with self._telling:
            engine, self._engine = self._engine, ""
            if engine and self._alone():
                connect = partial(Client, self._link.settings.url, **self._link.settings.client)
                self._teller = KeysTeller(connect, engine, self._conductor_words(), log)

    def _alone(self) -> bool:
        """Is the main pool all that a prefix needs, and all of it on the ranks of one stage?"""
        stages = int(self._of("pp_size", 1)) * int(self._of("attn_cp_size", 1))
        others = [n for n, pool in self._pools.items() if n != KV and not pool.logical]
        alone = KV in self._pools and not self._pools[KV].logical and not others and stages == 1
        if not alone:
            self._link.complain(
                "conductor",
                "the Conductor is not told how pages are called: there is more than one host pool, "
                "or pipeline or context parallelism, whose needs of a prefix it cannot be told",
            )
        return alone

    def _conductor_words(self) -> List[str]:
        pool = self._pools[KV]
        own = self._ranks(KV, pool.splits)
        head = pool.prefixes[0][: -len(own[0]) - 1]
        ranks = [
            rank
            for tp_rank in range(int(self._of("tp_size", 1)))
            for rank in self._ranks(KV, pool.splits, tp_rank)
        ]
        page = pool.page_size
        groups = [KVGroup(f"{head}{rank}@", block=page) for rank in dict.fromkeys(ranks)]
        return keys_words(groups, page, page, hashing="sglang")

    # --- look-ups

    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """How many leading pages are there; 0 when the pool is away."""
        self._tell()
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

    def batch_exists_v2(
        self, keys: List[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """How many leading pages can be used: there in the main pool, and in the others as their
        hit policy asks."""
        self._tell()
        needs = self._needs(pool_transfers or [])
        if needs is None or not keys:
            ends = []
        elif not needs:
            ends = list(range(1, len(keys) + 1))
        else:
            asked, wanted = needs, base.tells_ends()
            ends = self._link.call(
                "lookup", lambda c: ends_of(c, keys, asked, wanted, **self._lookup), []
            )
        pages = ends[-1] if ends else 0
        names = [KV, *(t.name for t in pool_transfers or [])] if pages else []
        return base.hit_result(pages, dict.fromkeys(names, pages), ends)

    def _needs(self, transfers: Sequence[Any]) -> Optional[List[Need]]:
        """What a prefix needs of each pool that has bytes; None: of one that nobody registered."""
        asked: List[Tuple[str, int]] = [(KV, 0)]
        for t in transfers:
            policy = str(getattr(t.hit_policy, "value", t.hit_policy))
            asked.append(
                (str(t.name), max(1, len(t.keys or ())) if policy == "trailing_pages" else 0)
            )
        needs = []
        for name, trailing in asked:
            pool = self._pools.get(name)
            if pool is None:
                self._link.complain("pool", f"host pool '{name}' was never registered")
                return None
            if not pool.logical:
                needs.append(Need(pool, trailing))
        return needs

    # --- pages

    def batch_get_v1(
        self, keys: List[str], host_indices: Any, extra_info: Any = None
    ) -> List[bool]:
        """Reads a page per key into the host pool's slots; False: that page holds junk."""
        return self._move_pages("get", [_Part(self._pools[KV], list(keys), host_indices)])[0]

    def batch_set_v1(
        self, keys: List[str], host_indices: Any, extra_info: Any = None
    ) -> List[bool]:
        """Stores a page per key; True also where somebody else has stored it, or is at it."""
        pool = self._pools[KV]
        before = [k for k in getattr(extra_info, "prefix_keys", None) or () if isinstance(k, str)]
        part = _Part(pool, list(keys), host_indices)
        return self._move_pages("put", [part], pool.keys(before))[0]

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> Dict[Any, List[bool]]:
        """As batch_get_v1 for several pools, in one batch: by pool, a flag per key."""
        return self._of_pools("get", transfers)

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> Dict[Any, List[bool]]:
        """As batch_set_v1 for several pools, in one batch: by pool, a flag per key."""
        return self._of_pools("put", transfers)

    def _of_pools(self, what: str, transfers: Any) -> Dict[Any, List[bool]]:
        parts = []
        for t in transfers:
            pool = self._pools.get(str(t.name))
            if pool is None or t.host_indices is None:
                self._link.complain(
                    "pool", f"host pool '{t.name}' was never registered, or has no slots here"
                )
                pool = None
            parts.append(_Part(pool, list(t.keys or ()), t.host_indices))
        return {t.name: flags for t, flags in zip(transfers, self._move_pages(what, parts))}

    def _move_pages(
        self, what: str, parts: Sequence[_Part], behind: Sequence[str] = ()
    ) -> List[List[bool]]:
        """A flag per page of each part. Slots that are wrong fail their own part alone. `behind`:
        the objects before those that are put."""
        flags = [[part.pool is not None and part.pool.logical] * len(part.keys) for part in parts]
        todo = [
            i for i, (p, done) in enumerate(zip(parts, flags)) if p.pool and done and not done[0]
        ]

        def work(client: Client) -> bool:
            rows = {i: self._rows(what, parts[i]) for i in todo}
            all_rows = [r for r in rows.values() if r is not None]
            names = [n for r in all_rows for n in r.names]
            if not names:
                return True
            places = [a for r in all_rows for a in r.addresses], [
                n for r in all_rows for n in r.sizes
            ]
            if what == "get":
                done = self._load(client, names, *places)
            else:
                done = self._store(client, names, *places, self._together(all_rows), behind)
            at = 0
            for i, r in rows.items():
                pool = parts[i].pool
                if r is None or pool is None:
                    continue
                flags[i] = pool.by_page(done[at : at + len(r.names)])
                at += len(r.names)
                if what == "get":
                    pool.take_in(r, parts[i].indices, flags[i])
            return True

        if todo:
            self._link.call(what, work, False)
        return flags

    def _together(self, rows: Sequence[Rows]) -> Optional[List[str]]:
        """Parts of one page, of all pools and ranks, are evicted together: one is worth nothing
        without the others."""
        alone = len(self._pools) == 1 and int(self._of("tp_size", 1)) == 1
        if alone or "group" in self._puts:
            return None
        return [f"{self._head}@{page}" for r in rows for page in r.hashes]

    def _rows(self, what: str, part: _Part) -> Optional[Rows]:
        assert part.pool is not None
        try:
            return part.pool.rows(part.keys, part.indices, what == "get")
        except Exception as e:  # host pools refuse slots in many ways
            self._link.complain(f"{what} {type(e).__name__}", str(e))
            return None

    # --- upkeep

    def clear(self) -> bool:
        """Removes all pages of this model (and tag), of all ranks and pools; other keys of the pool
        stay."""
        pattern = glob_of(self._head) + "@*"

        def work(client: Client) -> bool:
            client.command("REMOVEMATCH", "GLOB", pattern)
            return True

        return self._link.call("clear", work, False)

    @property
    def troubles(self) -> Dict[str, int]:
        """What went wrong so far, by kind."""
        return dict(self._link.troubles)

    def close(self) -> None:
        """Closes the connection; SGLang calls it when the backend is detached, with its threads
        stopped."""
        with self._telling:
            if self._teller is not None:
                self._teller.close()
        self._link.close()
