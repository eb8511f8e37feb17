"""Copies and moves of single objects that a program asks for, as tasks of the server's."""

from __future__ import annotations

import enum
import threading
import time
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tarn

from mooncake import _common as common
from mooncake._common import INVALID_PARAMS, OBJECT_NOT_FOUND, Key, Refused
from mooncake._families import in_pool

_REMEMBERED = 10000  # tasks; the server lists those that lately ended
_LISTED = 1000
TaskId = Tuple[int, int]
NOBODY: TaskId = (0, 0)


class TaskType(enum.IntEnum):
    """What a task does."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class TaskStatus(enum.IntEnum):
    """How far it is."""

    PENDING = 0
    PROCESSING = 1
    SUCCESS = 2
    FAILED = 3


_STATUS = {
    "queued": TaskStatus.PENDING,
    "room": TaskStatus.PENDING,
    "sent": TaskStatus.PROCESSING,
    "done": TaskStatus.SUCCESS,
}


class QueryTaskResponse:
    """A task. assigned_client: the node that copies, by name; message: what went wrong."""

    def __init__(self) -> None:
        self.id: TaskId = NOBODY
        self.type, self.status = TaskType.REPLICA_COPY, TaskStatus.PENDING
        self.created_at_ms_epoch = self.last_updated_at_ms_epoch = 0
        self.assigned_client = self.message = ""

    def __repr__(self) -> str:
        return "QueryTaskResponse(" + ", ".join(f"{n}={v!r}" for n, v in vars(self).items()) + ")"


class _Asked(NamedTuple):
    """What a store asked for: the server's tasks that are it, none where nothing was left to do."""

    type: TaskType
    numbers: Sequence[int]
    when_ms: int


def _now_ms() -> int:
    return int(time.time() * 1000)


class TaskMethods:
    """Part of MooncakeDistributedStore. An id is a pair of numbers: how many tasks of the server's
    it is, and the first."""

    _run: Any
    _key: Any

    def _tasks_init(self) -> None:
        self._asked: "OrderedDict[TaskId, _Asked]" = OrderedDict()
        self._asked_lock = threading.Lock()
        self._nothing_asked = 0

    @in_pool(lambda code, *_, **__: (NOBODY, code))
    def create_copy_task(
        self, client: tarn.Client, key: Key, targets: Sequence[str]
    ) -> Tuple[TaskId, int]:
        """Copies an object into the memory of these stores: an id for query_task, and 0 or a
        negative code."""
        if isinstance(targets, (str, bytes)) or not targets:
            raise Refused(INVALID_PARAMS, "targets: a list of hostnames, one at least")
        there = self._replicas_of(client, key)
        machines, orders = set(there.values()), []
        for name, machine in dict(self._target(client, target) for target in targets).items():
            if name in there:
                continue
            if machine in machines:
                raise Refused(
                    common.NOT_SUPPORTED,
                    f"target {name}: a replica is on its machine, {machine}, already: they never "
                    "share one",
                )
            machines.add(machine)
            orders.append(["COPY", "TO", name])
        return self._ask(client, TaskType.REPLICA_COPY, key, orders)

    @in_pool(lambda code, *_, **__: (NOBODY, code))
    def create_move_task(
        self, client: tarn.Client, key: Key, source: str, target: str
    ) -> Tuple[TaskId, int]:
        """Moves an object from the memory of one store into that of another: as
        create_copy_task."""
        there = self._replicas_of(client, key)
        if source == target:
            raise Refused(INVALID_PARAMS, f"source and target are the same: {source}")
        to, _ = self._target(client, target)
        old = next((n for n in common.segment_names(source) if n in there), None)
        if old is None:
            raise Refused(INVALID_PARAMS, f"source {source}: it has no replica of this key")
        if to not in there:
            return self._ask(client, TaskType.REPLICA_MOVE, key, [["MOVE", "FROM", old, "TO", to]])
        client.command("REPLICA", "DROP", self._key(key), "FROM", old)
        return self._ask(client, TaskType.REPLICA_MOVE, key, [])

    def _replicas_of(self, client: tarn.Client, key: Key) -> Dict[str, str]:
        """Where an object is: machines by segment. Raises Refused: it is nowhere, or lies in the
        server's books."""
        if not client.exists(self._key(key)):
            raise Refused(OBJECT_NOT_FOUND, f"no such key: {key!r}")
        lines = client.command("REPLICA", "LIST", self._key(key)).split("\n")
        there = {
            lines[i + 1]: lines[i + 5] for i, line in enumerate(lines[:-5]) if line == "segment"
        }
        if not there:
            raise Refused(
                common.NOT_SUPPORTED,
                "a value of up to 64 bytes lies in the server's books, not in anybody's memory",
            )
        return there

    @staticmethod
    def _target(client: tarn.Client, hostname: str) -> Tuple[str, str]:
        """The segment that a store with this hostname lends, and its machine. Raises Refused."""
        for name in common.segment_names(hostname):
            try:
                lines = client.command("SEGMENT", "INFO", name).split("\n")
            except tarn.NotFound:
                continue
            state, machine = (lines[lines.index(field) + 1] for field in ("state", "host"))
            if state != "up":
                raise Refused(
                    common.UNAVAILABLE_IN_CURRENT_STATUS, f"target {hostname}: it is {state}"
                )
            return name, machine
        raise Refused(
            INVALID_PARAMS, f"target {hostname}: no store with this hostname lends memory"
        )

    def _ask(
        self, client: tarn.Client, kind: TaskType, key: Key, orders: Sequence[List[str]]
    ) -> Tuple[TaskId, int]:
        numbers = []
        for verb, *where in orders:
            try:
                numbers.append(int(client.command("REPLICA", verb, self._key(key), *where)))
            except tarn.TooLarge as e:
                raise Refused(common.TASK_PENDING_LIMIT_EXCEEDED, str(e)) from None
        with self._asked_lock:
            self._nothing_asked += not numbers
            task = (len(numbers), numbers[0] if numbers else self._nothing_asked)
            self._asked[task] = _Asked(kind, numbers, _now_ms())
            while len(self._asked) > _REMEMBERED:
                self._asked.popitem(last=False)
        return task, 0

    @in_pool(lambda code, *_, **__: (None, code))
    def query_task(
        self, client: tarn.Client, task_id: TaskId
    ) -> Tuple[Optional[QueryTaskResponse], int]:
        """How far a task is, and 0; or None and a code, -1400 for a task that nobody knows (any
        more). What another store has asked for can be queried too, except for a copy to several
        stores."""
        count, first = task_id
        asked = self._asked.get((count, first))
        numbers = asked.numbers if asked is not None else [first] if count == 1 else None
        listed = _listed(client) if numbers else {}
        if numbers is None or not all(n in listed for n in numbers):
            raise Refused(common.TASK_NOT_FOUND, f"no task {task_id}, or it ended long ago")
        return _response((count, first), asked, [listed[n] for n in numbers]), 0


_BEFORE_KEY, _BEHIND_KEY = (
    6,
    18,
)  # lines of a task: names and values; a key may have lines of its own


def _listed(client: tarn.Client) -> Dict[int, Dict[str, str]]:
    """What REPLICA TASKS says, by number."""
    lines = client.command("REPLICA", "TASKS", "COUNT", _LISTED).split("\n")
    starts = [i for i in range(len(lines) - 4) if _begins(lines, i)]
    tasks = {}
    for start, end in zip(starts, starts[1:] + [len(lines)]):
        known = lines[start : start + _BEFORE_KEY] + lines[start:end][-_BEHIND_KEY:]
        task = dict(zip(known[::2], known[1::2]))
        if task["id"].isdigit() and "state" in task:
            tasks[int(task["id"])] = task
    return tasks


def _begins(lines: List[str], i: int) -> bool:
    return lines[i : i + 6 : 2] == ["id", "kind", "reason"] and (i == 0 or lines[i - 2] == "bytes")


def _response(
    task: TaskId, asked: Optional[_Asked], parts: List[Dict[str, str]]
) -> QueryTaskResponse:
    """Of several parts: failed where one is, done where all are, else as far as the first that is
    not."""
    response = QueryTaskResponse()
    response.id = task
    states = [_STATUS.get(p["state"], TaskStatus.FAILED) for p in parts]
    bad = next((p for p, s in zip(parts, states) if s == TaskStatus.FAILED), None)
    open_states = [s for s in states if s != TaskStatus.SUCCESS]
    response.status = (
        TaskStatus.FAILED if bad else open_states[0] if open_states else TaskStatus.SUCCESS
    )
    moves = bool(parts) and parts[0]["kind"] == "move"
    response.type = (
        asked.type if asked else TaskType.REPLICA_MOVE if moves else TaskType.REPLICA_COPY
    )
    age_ms = max((int(p["age-ms"]) for p in parts), default=0)
    response.created_at_ms_epoch = asked.when_ms if asked else _now_ms() - age_ms
    response.last_updated_at_ms_epoch = response.created_at_ms_epoch + age_ms
    response.assigned_client = parts[0]["node"] if parts else ""
    response.message = "" if bad is None else bad["error"] or bad["state"]
    return response
