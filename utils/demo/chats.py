"""Chats out of a trace: who says what and when, in words.

    chats = make(trace("tarn-simulate", requests=200), shrink=16, speed=30)

A trace has lengths and the ids of blocks, no words; these are drawn, the same ones for the same
trace. A request goes on with the latest one before it whose whole blocks it begins with, and whose
answer it has room for; what is longer than both together is the next question."""

from __future__ import annotations

import collections
import json
import random
import subprocess
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Sequence

BLOCK = 512  # tokens of a block of Mooncake's lines
SYLLABLES = [c + v for c in "bdfgklmnprstvwyz" for v in "aiou"]  # of stand_in_engine.py's words


@dataclass
class Turn:
    """at_s: not before. question: in words. answer: tokens of its answer."""

    at_s: float
    question: str
    answer: int


@dataclass
class Chat:
    name: str
    system: str
    turns: List[Turn] = field(default_factory=list)


@dataclass
class _Request:
    at_s: float
    prompt: int
    answer: int
    ids: List[int]
    chat: Optional[Chat] = None


def trace(simulate: str, requests: int, seed: int = 1) -> List[str]:
    """The lines of one that `tarn-simulate` makes, of people who chat."""
    argv = [simulate, "trace", "--generate", "chat"]
    argv += ["--requests", str(requests), "--seed", str(seed)]
    made = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.splitlines()


def seconds(lines: Sequence[str]) -> float:
    """From the first request to the last."""
    return float(json.loads(lines[-1])["timestamp"] - json.loads(lines[0])["timestamp"]) / 1000


def words(seed: object, count: int) -> str:
    """So many words, each of which is a token of the stand-in engine."""
    drawn = iter(random.Random(str(seed)).choices(SYLLABLES, k=2 * max(1, count)))
    return "".join(f" {first}{second}" for first, second in zip(drawn, drawn))


def make(
    lines: Iterable[str],
    shrink: float = 1,
    speed: float = 1,
    longest_prompt: int = 1 << 30,
    longest_answer: int = 1 << 30,
) -> List[Chat]:
    """All lengths are `shrink` times shorter than in the trace and all times `speed` times; a
    request that is longer than `longest_prompt` then is left out, and with it the rest of its
    chat."""
    requests = []
    for line in lines:
        row = json.loads(line)
        requests.append(
            _Request(
                row["timestamp"] / 1000 / speed,
                row["input_length"],
                row["output_length"],
                row["hash_ids"],
            )
        )
    _join(requests, shrink, longest_prompt, longest_answer)
    found = {id(r.chat): r.chat for r in requests if r.chat is not None and r.chat.turns}
    return list(found.values())


def _join(requests: List[_Request], shrink: float, longest: int, longest_answer: int) -> None:
    """Gives each request its chat, and each chat its turns."""
    began_with = collections.Counter(i for r in requests for i in set(r.ids))
    latest: Dict[int, List[_Request]] = {}  # by the last whole block, those nobody went on with yet
    for number, request in enumerate(requests):
        before = _gone_on_with(request, latest)
        if before is None:
            shared = 0
            while shared < len(request.ids) and began_with[request.ids[shared]] > 1:
                shared += 1
            shared = min(shared * BLOCK, request.prompt - 1)
            system = words(f"system {request.ids[0]}", round(shared / shrink))
            request.chat, said = Chat(f"chat-{number}", system), shared
        else:
            request.chat, said = before.chat, before.prompt + before.answer
        if request.chat is None or request.prompt / shrink > longest:
            request.chat = None
            continue
        question = words(f"{number}", round((request.prompt - said) / shrink))
        answer = min(longest_answer, max(1, round(request.answer / shrink)))
        request.chat.turns.append(Turn(request.at_s, question, answer))
        whole = request.prompt // BLOCK
        if whole:
            latest.setdefault(request.ids[whole - 1], []).append(request)


def _gone_on_with(request: _Request, latest: Dict[int, List[_Request]]) -> Optional[_Request]:
    for last in reversed(request.ids):
        waiting = latest.get(last, [])
        for before in reversed(waiting):
            if before.prompt + before.answer < request.prompt:
                waiting.remove(before)
                return before
    return None
