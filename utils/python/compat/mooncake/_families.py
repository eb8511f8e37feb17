"""Methods that come in two forms, out of one definition: for one key and for many, put and upsert.

    @family(work, upserts=True)
    def put_tensor(self, key: Key, tensor: Any) -> Any:
        "What it does."

makes put_tensor(key, tensor), batch_put_tensor(keys, tensors_list) and the same two of
upsert_tensor. All call work(store, call) and have of it a result per key. `call` has the arguments
by the names of the form for one key, those of PLURAL as lists, the others as they came; `what`, the
name of the method; `replace`, whether it takes the place of what is there; and `refused`.

    @upsertable
    def put(self, how: How, key: Key, value: Any) -> int: ...

makes put(key, value) and upsert(key, value), which differ in `how`.

    @in_pool(code_itself)
    def is_exist(self, client: tarn.Client, key: Key) -> int: ...

makes is_exist(key), which calls this with the client. What goes wrong is logged, and its code
becomes the answer: by code_itself, per_key, or nothing(an empty answer)."""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Sequence, TypeVar

from mooncake._common import INVALID_PARAMS, key_of, keys_of, log

if TYPE_CHECKING:
    from tarn import Client
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")
Store, Answer = TypeVar("Store"), TypeVar("Answer")

PLURAL = {
    "key": "keys",
    "tensor": "tensors_list",
    "buffer_ptr": "buffer_ptrs",
    "size": "sizes",
    "target": "targets",
    "parallelism": "parallelisms",
    "writer_partition": "writer_partitions",
}

OPTIONAL = {"target", "parallelism", "writer_partition"}  # of PLURAL, those that may be None

Work = Callable[[Any, SimpleNamespace], List[Any]]


class How(NamedTuple):
    """What the method is called, and whether it takes the place of what is there."""

    what: str
    replace: bool


class family:  # pylint: disable=invalid-name
    """See above. The results of work are codes, or with `gets` tensors or None. `refused`: the
    result for each of many keys where there are more or fewer of another argument."""

    def __init__(
        self,
        work: Work,
        gets: bool = False,
        upserts: bool = False,
        refused: Optional[int] = INVALID_PARAMS,
    ) -> None:
        self._work, self._gets, self._upserts, self._refused = work, gets, upserts, refused

    def __call__(self, declared: Callable[..., Any]) -> "family":
        self._declared = declared
        self._signature = inspect.signature(declared)
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        self._define(owner, How(name, False), self._declared.__doc__)
        if self._upserts:
            upsert = "upsert_" + (name[len("put_") :] if name.startswith("put_") else name)
            self._define(owner, How(upsert, True), f"As {name}, in place of what is there.")

    def _define(self, owner: type, how: How, doc: Optional[str]) -> None:
        many = how._replace(what="batch_" + how.what)
        for called, method in ((how.what, self._one(how)), (many.what, self._many(many))):
            functools.update_wrapper(method, self._declared)
            method.__name__, method.__qualname__ = called, f"{owner.__name__}.{called}"
            method.__doc__ = doc
            setattr(owner, called, method)

    def _call(self, how: How, arguments: Any) -> SimpleNamespace:
        call = SimpleNamespace(what=how.what, replace=how.replace, refused=self._refused)
        call.__dict__.update((n, v) for n, v in arguments.items() if n != "self")
        return call

    def _one(self, how: How) -> Callable[..., Any]:
        def one(store: Any, *args: Any, **named: Any) -> Any:
            bound = self._signature.bind(store, *args, **named)
            bound.apply_defaults()
            call = self._call(how, bound.arguments)
            for column in PLURAL.keys() & bound.arguments.keys():
                setattr(call, column, [getattr(call, column)])
            call.key = [key_of(call.key[0])]
            result = self._work(store, call)[0]
            return None if self._gets and isinstance(result, int) else result

        return one

    def _many(self, how: How) -> Callable[..., Any]:
        given = self._signature.parameters
        names = dict(PLURAL, key="base_keys") if "_with_tp" in how.what else PLURAL
        parameters = [p.replace(name=names.get(p.name, p.name)) for p in given.values()]
        plural = self._signature.replace(parameters=parameters)
        singular = {names.get(n, n): n for n in given}

        def many(store: Any, *args: Any, **named: Any) -> Any:
            bound = plural.bind(store, *args, **named)
            bound.apply_defaults()
            call = self._call(how, {singular[n]: v for n, v in bound.arguments.items()})
            call.key = keys_of(call.key)
            for column in PLURAL.keys() & call.__dict__.keys():
                values = getattr(call, column)
                if values is not None and len(values) != len(call.key):
                    log.error(
                        "%s: %d keys, %d of %s", call.what, len(call.key), len(values), column
                    )
                    return [self._refused] * len(call.key)
            for column in OPTIONAL & call.__dict__.keys():
                setattr(call, column, getattr(call, column) or [None] * len(call.key))
            return self._work(store, call)

        many.__signature__ = plural  # type: ignore[attr-defined]
        return many


class upsertable:  # pylint: disable=invalid-name
    """See above."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __set_name__(self, owner: type, name: str) -> None:
        given = inspect.signature(self._method)
        parameters = [p for p in given.parameters.values() if p.name != "how"]
        for how in (How(name, False), How(name.replace("put", "upsert", 1), True)):
            method = self._bound(how)
            functools.update_wrapper(method, self._method)
            method.__name__, method.__qualname__ = how.what, f"{owner.__name__}.{how.what}"
            setattr(method, "__signature__", given.replace(parameters=parameters))
            setattr(owner, how.what, method)

    def _bound(self, how: How) -> Callable[..., Any]:
        work = self._method

        def method(store: Any, *args: Any, **named: Any) -> Any:
            return work(store, how, *args, **named)

        return method


def code_itself(code: int, *_: Any, **__: Any) -> int:
    """The code is the answer."""
    return code


def per_key(code: int, keys: Sequence[Any], *_: Any, **__: Any) -> List[int]:
    """The code for each of the keys."""
    return [code] * len(keys)


def nothing(empty: Callable[[], Answer]) -> Callable[..., Answer]:
    """An empty answer, such as bytes() or list()."""
    return lambda *_, **__: empty()


CALLS, LOOKS_UP, LOCAL = "calls", "looks up", "local"  # what a method does with the server


def in_pool(
    otherwise: Callable[..., Any], does: str = CALLS
) -> Callable[
    [Callable[Concatenate[Store, Client, P], Answer]], Callable[Concatenate[Store, P], Answer]
]:
    """See above; `otherwise(code, *arguments)` is the answer when something went wrong. does:
    LOOKS_UP with a client whose timeout is short; LOCAL asks no server, and so none that is
    away."""

    def made(work: Any) -> Any:
        @functools.wraps(work)
        def method(store: Any, *args: Any, **named: Any) -> Any:
            return store._run(
                work.__name__,
                lambda client: work(store, client, *args, **named),
                lambda code: otherwise(code, *args, **named),
                does,
            )

        given = inspect.signature(work)
        parameters = [p for p in given.parameters.values() if p.name != "client"]
        setattr(method, "__signature__", given.replace(parameters=parameters))
        return method

    return made
