"""The engines, as the Conductor knows them: what a place names is looked up here, and where it is
away, requests are placed by what was last known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from .place import Engine

__all__ = ["Rank", "Table", "pairs", "ranks_of"]


@dataclass(frozen=True)
class Rank:
    """lora: the adapter that it serves, "*": any; "": none. tenant: whom alone it serves; "":
    everybody. drains: it gets nothing new."""

    engine: Engine
    lora: str = ""
    tenant: str = ""
    drains: bool = False

    def serves(self, model: str, lora: str) -> bool:
        return self.engine.model == model and self.lora in (lora, "*")

    def may(self, tenant: str) -> bool:
        return not self.drains and self.tenant in ("", tenant or "default")


def pairs(flat: List[Any]) -> Dict[str, Any]:
    """A map, which RESP2 has as a flat list."""
    return dict(zip(flat[::2], flat[1::2]))


class Table:
    def __init__(self, ranks: Iterable[Rank] = ()) -> None:
        self._ranks: Dict[Tuple[str, int], Rank] = {}
        self.put(ranks)

    def put(self, ranks: Iterable[Rank]) -> None:
        """These, and no others."""
        self._ranks = {(r.engine.id, r.engine.rank): r for r in ranks}

    def get(self, id: str, rank: int) -> Optional[Engine]:
        found = self._ranks.get((id, rank))
        return found.engine if found is not None else None

    def ranks(self) -> List[Rank]:
        return list(self._ranks.values())

    def engines(self) -> List[Engine]:
        return [r.engine for r in self._ranks.values()]


def ranks_of(listed: Iterable[List[Any]], told: Mapping[str, Mapping[str, Any]]) -> List[Rank]:
    """listed: the reply of CONDUCTOR.LIST. told: of each id that of CONDUCTOR.INFO."""
    return [_rank(fields, told.get(fields["id"], {})) for fields in map(pairs, listed)]


def _rank(fields: Mapping[str, Any], info: Mapping[str, Any]) -> Rank:
    engine = Engine(
        id=fields["id"],
        url=fields["url"].rstrip("/"),
        rank=int(fields["rank"]),
        role=fields["role"],
        model=fields["model"],
        block=int(fields["block"]),
    )
    return Rank(
        engine,
        lora=info.get("lora") or "",
        tenant=info.get("tenant") or "",
        drains=fields["state"] in ("draining", "drained"),
    )
