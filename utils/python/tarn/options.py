"""How a client, a call or a put differs from what is default: keyword arguments as libtarn's
structs."""

from __future__ import annotations

import ctypes as C
import inspect
import re
from array import array
from itertools import accumulate, chain
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypedDict, TypeVar, Union

from . import _lib
from ._lib import lib
from ._trace import pointer_of, span_callback
from .batch import Key, address_of
from .errors import InvalidArgument

# One for all keys, or one for each.
Together = Union[Key, Sequence[Optional[Key]]]

PINS = {None: 0, "none": 0, "soft": 1, "hard": 2}
_MS_MAX = (1 << 63) - 1
_NUMBER = re.compile(r"\s*(-?\d+)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1 << 10,
    "m": 1000**2,
    "mb": 1 << 20,
    "g": 1000**3,
    "gb": 1 << 30,
}
_SWITCHES = ("verify", "tls_verify", "tls_verify_name")
_TRUTHS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def number(value: Any, name: str, least: int = 0, most: int = _MS_MAX) -> int:
    """An option that is a whole number. Engines hand theirs on as they find them, so text that says
    a number is one; where the name ends in "_bytes", also with the server's units ("64mb").
    InvalidArgument names the option."""
    found = value
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        unit = match[2].lower() if match else ""
        known = unit in _UNITS if name.endswith("_bytes") else not unit
        digits = match[1] if match and known else ""
        found = int(digits) * _UNITS[unit] if 0 < len(digits) < 100 else None
    elif isinstance(value, float):
        found = int(value) if value.is_integer() else None
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        limit = f"from {least} on" if most == _MS_MAX else f"from {least} to {most}"
        raise InvalidArgument(f"{name} is a number {limit}, not {value!r}")
    return int(found)


def truth(value: Any, name: str) -> bool:
    """An option that is true or false, or text that says so. InvalidArgument names the option."""
    found = _TRUTHS.get(str(value).strip().lower())
    if found is None:
        raise InvalidArgument(f"{name} is true or false, not {value!r}")
    return found


def milliseconds(value: Any, name: str) -> int:
    """A time for libtarn: whole milliseconds, 0 or more."""
    if not isinstance(value, int):
        if isinstance(value, str):
            return number(value, name)
        if not isinstance(value, float):
            raise TypeError(f"{name}: milliseconds, not {type(value).__name__}")
        value = int(value) if value == value and abs(value) <= _MS_MAX else -1
    if not 0 <= value <= _MS_MAX:
        raise InvalidArgument(f"{name}: milliseconds, 0 or more, not {value}")
    return int(value)


class HintKeywords(TypedDict, total=False):
    """What the eviction policy may be told. session: the same id (up to 128 bytes): the same
    conversation or request, whose later batches go on where the earlier ones ended, over whatever
    client. return_ms: it is expected back about so long after this call, up to 24 hours. They
    change no result."""

    session: Optional[Key]
    return_ms: int


def _set_hints(o: Any, session: Optional[Key], return_ms: int) -> None:
    if session is not None:
        if isinstance(session, int):  # of which bytes() makes zeros
            raise TypeError("session: an id as text or bytes, not a number: str(...)")
        raw = session.encode() if isinstance(session, str) else bytes(session)
        o.session, o.session_len = raw, len(raw)
    if return_ms:
        o.return_ms = milliseconds(return_ms, "return_ms")


def call_options(
    timeout_ms: int,
    lease_ms: int = 0,
    wait_ms: int = 0,
    *,
    session: Optional[Key] = None,
    return_ms: int = 0,
) -> Any:
    """A pointer to tarn_call, or None where all is default. It keeps what is pointed to."""
    if not (timeout_ms or lease_ms or wait_ms or return_ms) and session is None:
        return None
    o = _lib.Call(
        C.sizeof(_lib.Call),
        milliseconds(timeout_ms, "timeout_ms"),
        milliseconds(lease_ms, "lease_ms"),
        milliseconds(wait_ms, "wait_ms"),
    )
    _set_hints(o, session, return_ms)
    return C.byref(o)


class PutKeywords(HintKeywords, total=False):
    """What a put may be told beside the key and the value: the arguments of put_options."""

    replace: bool
    replicas: int
    pin: Optional[str]
    pin_ms: int
    ttl_ms: int
    group: Optional[Together]
    boundary: Optional[Together]
    prefer: Sequence[str]
    timeout_ms: int


def _keys_of_ids(ids: Sequence[Optional[Key]], n: int, name: str) -> Tuple[Any, ...]:
    """An array of tarn_key, and the bytes that it points into."""
    if len(ids) != n:
        raise InvalidArgument(f"{name}: {len(ids)} of them for {n} keys")
    raw = [i.encode() if isinstance(i, str) else bytes(i or b"") for i in ids]
    data, lens = b"".join(raw), [len(r) for r in raw]
    address = C.cast(C.c_char_p(data), C.c_void_p).value or 0
    starts = accumulate(lens, initial=address)
    return array("Q", chain.from_iterable(zip(starts, lens))), data


def put_options(
    n: int = 1,
    *,
    replace: bool = False,
    replicas: int = 0,
    pin: Optional[str] = None,
    pin_ms: int = 0,
    ttl_ms: int = 0,
    group: Optional[Together] = None,
    boundary: Optional[Together] = None,
    prefer: Sequence[str] = (),
    timeout_ms: int = 0,
    session: Optional[Key] = None,
    return_ms: int = 0,
) -> Any:
    """A pointer to tarn_put_options of n keys, or None where all is default. It keeps what is
    pointed to."""
    alone = group is None and boundary is None and session is None and not return_ms
    if alone and not (replace or replicas or pin or pin_ms or ttl_ms or prefer or timeout_ms):
        return None
    if pin not in PINS:
        raise InvalidArgument(f'pin: None, "soft" or "hard", not {pin!r}')
    if isinstance(prefer, (str, bytes)):
        raise TypeError("prefer: a list of names of segments, best first, not one name")
    o = _lib.PutOptions(C.sizeof(_lib.PutOptions))
    if replace:
        o.replace = 1
    if replicas:
        within = isinstance(replicas, int) and 0 <= replicas < 1 << 32
        o.replicas = replicas if within else number(replicas, "replicas", most=(1 << 32) - 1)
    if pin:
        o.pin = PINS[pin]
    for name, ms in (("pin_ms", pin_ms), ("ttl_ms", ttl_ms), ("timeout_ms", timeout_ms)):
        if ms:
            setattr(o, name, milliseconds(ms, name))
    _set_hints(o, session, return_ms)
    if isinstance(group, (str, bytes)):
        raw = group.encode() if isinstance(group, str) else group
        o.group, o.group_len = raw, len(raw)
    elif group is not None:
        o.group_ids = _keys_of_ids(group, n, "group")
        o.groups = address_of(o.group_ids[0])
    if boundary is not None:
        each = [boundary] * n if isinstance(boundary, (str, bytes)) else boundary
        o.boundary_ids = _keys_of_ids(each, n, "boundary")
        o.boundaries = address_of(o.boundary_ids[0])
    if prefer:
        names = [c_string(name, "prefer") for name in prefer]
        o.prefer, o.prefers = (C.c_char_p * len(names))(*names), len(names)
    return C.byref(o)


_KEYWORDS = list(inspect.signature(put_options).parameters.values())[1:]
Method = TypeVar("Method", bound=Callable[..., Any])


def _spelt(method: Method, keywords: List[inspect.Parameter]) -> Method:
    given = inspect.signature(method)
    named = [p for p in given.parameters.values() if p.kind is not p.VAR_KEYWORD]
    setattr(method, "__signature__", given.replace(parameters=named + keywords))
    return method


def puts(method: Method) -> Method:
    """Of a method that ends in `**options: Unpack[PutKeywords]`: spells them out in its signature,
    for help() and for editors that look at running programs."""
    return _spelt(method, _KEYWORDS)


def hinted(method: Method) -> Method:
    """The same of one that ends in `**hints: Unpack[HintKeywords]`."""
    return _spelt(method, [p for p in _KEYWORDS if p.name in HintKeywords.__annotations__])


def c_string(value: Any, name: str) -> bytes:
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{name}: text, not {type(value).__name__}")
    raw = value.encode() if isinstance(value, str) else value
    if b"\0" in raw:
        raise InvalidArgument(f"{name}: there is a zero byte in it")
    return raw


def client_options(options: Dict[str, Any]) -> _lib.Options:
    o = _lib.Options()
    lib.tarn_options_init_sized(C.byref(o), C.sizeof(o))
    kinds = dict((f[0], f[1]) for f in _lib.Options._fields_)
    for name in ("size", "span_arg"):
        del kinds[name]
    o.keeps = None
    for name, value in options.items():
        if name not in kinds:
            raise TypeError(f"Client() has no option {name!r}; there are: {', '.join(kinds)}")
        if value is None:
            continue
        if kinds[name] is C.c_char_p:
            setattr(o, name, c_string(value, name))
        elif name == "on_span":
            o.keeps = span_callback(value)
            o.on_span = pointer_of(o.keeps)
        elif name in _SWITCHES:
            setattr(o, name, int(truth(value, name)))
        else:
            setattr(o, name, number(value, name, most=(1 << (8 * C.sizeof(kinds[name]) - 1)) - 1))
    return o
