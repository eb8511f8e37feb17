"""Who asks, and how it wants to be served: keys, tenants, and the X-Tarn headers."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

from .errors import ApiError

__all__ = ["Keys", "Who"]

NAME = re.compile(r"[A-Za-z0-9._:@/-]{1,128}")
REQUEST = re.compile(r"[A-Za-z0-9._-]{1,128}")
NAMED_MOST = 119  # of a name of 128, where ours follows
PRIORITY_MOST = 100
MS_MOST = 86_400_000


class Keys:
    """API keys of a file, of lines `key tenant [priority]`; kept as hashes, so that looking one up
    tells nothing by the time that it takes."""

    def __init__(self, path: str) -> None:
        """ValueError names the line that is wrong."""
        self._of: Dict[bytes, Tuple[str, int]] = {}
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                words = line.split()
                if not words or words[0].startswith("#"):
                    continue
                try:
                    key, tenant, *rest = words
                    priority = _whole(rest[0], -PRIORITY_MOST, PRIORITY_MOST) if rest else 0
                    if len(rest) > 1 or not NAME.fullmatch(tenant):
                        raise ValueError
                except ValueError:
                    raise ValueError(f"{path}:{number}: not `key tenant [priority]`") from None
                self._of[self._hash(key)] = (tenant, priority)

    @staticmethod
    def _hash(key: str) -> bytes:
        return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

    def find(self, headers: Mapping[str, str]) -> Tuple[str, int]:
        """Tenant and priority of the key. ApiError 401: there is no such key."""
        scheme, _, key = headers.get("Authorization", "").partition(" ")
        found = self._of.get(self._hash(key.strip())) if scheme.lower() == "bearer" else None
        if found is None:
            raise ApiError(401, "no such API key", code="invalid_api_key")
        return found


@dataclass(frozen=True)
class Who:
    """request: its name for the router and for engines, which no other has. named: what the client
    calls it, and is told; where it says none, the same. tenant "": the router's default."""

    request: str
    named: str
    tenant: str
    priority: int
    session: str
    ttft_ms: Optional[int]
    tbt_ms: Optional[int]

    @property
    def conversation(self) -> str:
        """The session among those of all tenants, "": none is named."""
        return f"{self.tenant}/{self.session}" if self.session else ""

    @classmethod
    def of(cls, headers: Mapping[str, str], keys: Optional[Keys]) -> Who:
        """A key says whose a request is, and the highest priority that it may ask for. ApiError
        400: a header is of another form, 401: the key."""
        tenant, priority = keys.find(headers) if keys else (_name(headers, "X-Tarn-Tenant"), 0)
        asked = _number(headers, "X-Tarn-Priority", -PRIORITY_MOST, PRIORITY_MOST)
        if asked is not None:
            priority = min(priority, asked) if keys else asked
        named = headers.get("X-Request-Id", "")
        if REQUEST.fullmatch(named):
            # Another one may have the same: it is repeated, say, while the first is under way. To
            # the Conductor, of all gateways, and to vLLM they would be one.
            request = f"{named[:NAMED_MOST]}.{uuid.uuid4().hex[:8]}"
        else:
            request = named = uuid.uuid4().hex
        return cls(
            request=request,
            named=named,
            tenant=tenant,
            priority=priority,
            session=_name(headers, "X-Tarn-Session"),
            ttft_ms=_number(headers, "X-Tarn-TTFT-Ms", 1, MS_MOST),
            tbt_ms=_number(headers, "X-Tarn-TBT-Ms", 1, MS_MOST),
        )


def _name(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if value and not NAME.fullmatch(value):
        raise ApiError(400, f"{name}: 1 to 128 of A-Z a-z 0-9 . _ : @ / - are needed", param=name)
    return value


def _whole(text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ValueError(text)
    return int(text)


def _number(headers: Mapping[str, str], name: str, least: int, most: int) -> Optional[int]:
    value = headers.get(name)
    if value is None:
        return None
    try:
        return _whole(value.strip(), least, most)
    except ValueError:
        wanted = f"a whole number from {least} to {most}"
        raise ApiError(400, f"{name}: {wanted} is needed", param=name) from None
