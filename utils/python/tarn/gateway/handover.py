"""Prefill and decode on two engines: what each of them is sent, and whose answer counts.

| kind | when | how the decoder gets the KV |
| --- | --- | --- |
| pool | both at once | from the pool: it waits for blocks as TarnConnector does (arrival_ms) |
| vllm | prefill, then decode | from the prefill engine: kv_transfer_params of its answer |
| sglang | both at once | from the prefill engine: they meet by bootstrap host, port and room |

An engine does with these members what a client says in them: it opens connections to hosts, say.
So what a client sends of them is left out, and what engines answer in them is not for clients."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Mapping, Optional
from urllib.parse import urlsplit

from .members import Body
from .place import Engine, Place
from .prompt import Prompt

__all__ = ["KINDS", "Leg", "Plan", "for_client", "plan"]

KINDS = ("pool", "vllm", "sglang")

# Between gateway and engines. The words of vLLM, SGLang and of what is built around them.
_OURS = (
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "ec_transfer_params",
    "kv_transfer_params",
    "routed_dp_rank",
)
# Of an answer of one token that nobody reads, these make no sense, or engines refuse them.
_NOT_FOR_PREFILL = (
    "best_of",
    "min_completion_tokens",
    "min_tokens",
    "n",
    "return_token_ids",
    "stream_options",
)
_ROOM_MAX = (1 << 63) - 1


@dataclass
class Leg:
    """A request to an engine."""

    engine: Engine
    body: Body


@dataclass
class Plan:
    """main: whose answer is the client's. prefill: what is sent beside it, or None. before: main
    waits for the prefill's answer and what `hand_over` makes of it; else both go at once.
    alone: main brings it to an end where the prefill fails; else whoever fails fails both, and what
    is under way on the other engine is to be cancelled."""

    main: Leg
    prefill: Optional[Leg] = None
    before: bool = False
    alone: bool = False

    def hand_over(self, answer: Mapping[str, Any]) -> None:
        """answer: of the prefill. What main waits for of it is put into main's body."""
        params = answer.get("kv_transfer_params")
        if self.before and isinstance(params, dict):
            self.main.body["kv_transfer_params"] = params
        # Else there was nothing to transfer, as of a prompt of less than a block: it is computed
        # where it is decoded.


def plan(
    kind: str,
    place: Place,
    body: Mapping[str, Any],
    prompt: Prompt,
    bootstrap_port: int = 8998,
    ranks: bool = False,
    session: str = "",
) -> Plan:
    """kind: one of KINDS. body: the client's; it is left as it is. bootstrap_port: of SGLang's
    prefill engines. ranks: the prefill engine has several behind its URL, and is told which.
    session: what TarnConnector, or LMCache's, tells the pool's eviction policy; "": nothing."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    bare = {name: value for name, value in body.items() if name not in _OURS}
    if kind == "pool" and session:
        bare["kv_transfer_params"] = {"tarn_session": session, "lmcache.tarn_session": session}
    main = Leg(place.answers, bare)
    if place.decode is None or place.decode == place.prefill:
        return Plan(main)
    prefill = Leg(place.prefill, {})
    if kind == "sglang":
        bare.update(_meeting(place.prefill, bootstrap_port, prompt.count if _is_batch(body) else 0))
        prefill.body = {**bare, "stream": False}
        prefill.body.pop("stream_options", None)
        if ranks:
            bare["disagg_prefill_dp_rank"] = place.prefill.rank
        return Plan(main, prefill)
    prefill.body = _prefill_body(bare)
    if kind == "vllm":
        prefill.body["kv_transfer_params"] = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
        return Plan(main, prefill, before=True)
    # The decoder waits for that much, and for no more than it can take: whole blocks, and not the
    # last token.
    bare["kv_transfer_params"] = {
        **bare.get("kv_transfer_params", {}),
        "tarn_tokens": prompt.length,
    }
    return Plan(main, prefill, alone=True)


def _prefill_body(body: Mapping[str, Any]) -> Body:
    made = {name: value for name, value in body.items() if name not in _NOT_FOR_PREFILL}
    made["stream"] = False
    made["max_tokens"] = 1
    if "max_completion_tokens" in made:
        made["max_completion_tokens"] = 1
    return made


def _is_batch(body: Mapping[str, Any]) -> bool:
    prompt = body.get("prompt")
    return isinstance(prompt, list) and len(prompt) > 0 and not isinstance(prompt[0], int)


def _meeting(prefill: Engine, port: int, count: int) -> Body:
    """Where two engines of SGLang meet. count: prompts of a batch, each of which has a room; 0: it
    is none."""
    host = urlsplit(prefill.url).hostname or ""
    if count == 0:
        rooms: Any = random.randint(0, _ROOM_MAX)
        return {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": rooms}
    return {
        "bootstrap_host": [host] * count,
        "bootstrap_port": [port] * count,
        "bootstrap_room": [random.randint(0, _ROOM_MAX) for _ in range(count)],
    }


def for_client(answer: Body) -> bool:
    """Takes out of an answer, or of a part of a stream, what is between engines. True: there was
    some."""
    found = [name for name in _OURS if name in answer]
    for name in found:
        del answer[name]
    return bool(found)
