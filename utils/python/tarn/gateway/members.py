"""Members of bodies that clients send, and of what engines answer: anything may be in them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

__all__ = ["BadRequest", "Body", "flag", "ids_of", "objects", "text"]

Body = Dict[str, Any]
_TOKEN_MAX = 0xFFFFFFFF


class BadRequest(ValueError):
    """A body that no engine would take. param: the member that is wrong, as in
    `messages[2].content`; None: the body itself."""

    def __init__(self, param: Optional[str], text: str) -> None:
        super().__init__(text)
        self.param = param


def text(body: Mapping[str, Any], name: str, longest: int = 0) -> str:
    """The empty one where it is not there. longest: in bytes of UTF-8; 0: any."""
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(name, f"{name} must be a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BadRequest(name, f"{name} has a half of a character") from None
    if longest and size > longest:
        raise BadRequest(name, f"{name} may have {longest} bytes")
    return value


def flag(body: Mapping[str, Any], name: str, unless_said: bool) -> bool:
    value = body.get(name)
    if value is None:
        return unless_said
    if not isinstance(value, bool):
        raise BadRequest(name, f"{name} must be true or false")
    return value


def objects(value: Any, name: str) -> List[Body]:
    """The list of objects that it is."""
    if not isinstance(value, list):
        raise BadRequest(name, f"{name} must be a list of objects")
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            raise BadRequest(f"{name}[{i}]", f"{name}[{i}] must be an object")
    return value


def ids_of(value: Any) -> Optional[List[int]]:
    """The token ids that it is a list of; None: it is no such list. A bool is no number here."""
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        return None
    return value if all(0 <= i <= _TOKEN_MAX for i in value) else None
