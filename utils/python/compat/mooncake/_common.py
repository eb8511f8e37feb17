"""What store and engine share: codes, sizes, names, protocols."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import tarn
from tarn import Status

log = logging.getLogger("mooncake")
Key = Union[str, bytes]

# Mooncake's names for the codes that arise here.
OK = 0
INTERNAL_ERROR = -1
BUFFER_OVERFLOW = -10
SEGMENT_NOT_FOUND = -101
SEGMENT_ALREADY_EXISTS = -102
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
ILLEGAL_CLIENT = -601
INVALID_WRITE = -700
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
LEASE_EXPIRED = -707
REPLICA_IS_GONE = -712
TRANSFER_FAIL = -800
CHECKSUM_MISMATCH = -801
RPC_FAIL = -900
RPC_TIMEOUT = -901
UNAVAILABLE_IN_CURRENT_STATUS = -1010
NOT_SUPPORTED = -1012
FILE_WRITE_FAIL = -1103
TASK_NOT_FOUND = -1400
TASK_PENDING_LIMIT_EXCEEDED = -1401
TENANT_QUOTA_EXCEEDED = -1700

_CODES: Dict[int, int] = {
    Status.OK: OK,
    Status.ERR: INTERNAL_ERROR,
    Status.ENOMEM: BUFFER_OVERFLOW,
    Status.EINVAL: INVALID_PARAMS,
    Status.EAGAIN: UNAVAILABLE_IN_CURRENT_STATUS,
    Status.ETIMEOUT: RPC_TIMEOUT,
    Status.ECLOSED: RPC_FAIL,
    Status.EIO: RPC_FAIL,
    Status.EPROTO: RPC_FAIL,
    Status.ENOTFOUND: OBJECT_NOT_FOUND,
    Status.EEXISTS: OBJECT_ALREADY_EXISTS,
    # Mooncake does not tell a put that is under way from one that is done
    Status.EBUSY: OBJECT_ALREADY_EXISTS,
    Status.ENOSPACE: NO_AVAILABLE_HANDLE,
    Status.ETOKEN: INVALID_WRITE,
    Status.ESTALE: REPLICA_IS_GONE,
    Status.EQUOTA: TENANT_QUOTA_EXCEEDED,
    Status.EPERM: ILLEGAL_CLIENT,
    Status.EGRANT_EXPIRED: TRANSFER_FAIL,
    Status.ECORRUPT: CHECKSUM_MISMATCH,
    Status.ELEASE: LEASE_EXPIRED,
    Status.EREADONLY: UNAVAILABLE_IN_CURRENT_STATUS,
    Status.ELOADING: UNAVAILABLE_IN_CURRENT_STATUS,
    Status.EOOM: NO_AVAILABLE_HANDLE,
    Status.ENOSEGMENT: SEGMENT_NOT_FOUND,
    Status.ELIMIT: INVALID_PARAMS,
    Status.ECANCELED: TRANSFER_FAIL,
    Status.ENOTSUP: NOT_SUPPORTED,
    Status.ELATER: UNAVAILABLE_IN_CURRENT_STATUS,
    Status.EMOVED: UNAVAILABLE_IN_CURRENT_STATUS,
}


def code_of(status: int) -> int:
    """Mooncake's code for a status of tarn's."""
    return _CODES.get(status, INTERNAL_ERROR)


def code_or_bytes(result: int) -> int:
    """What a get delivered, or Mooncake's code for its status."""
    return result if result >= 0 else code_of(result)


class Refused(Exception):
    """Something that was asked for cannot be had here: the code that is returned, and why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def code_of_failure(error: Exception) -> int:
    """The code for an exception."""
    if isinstance(error, Refused):
        return error.code
    return code_of(error.status) if isinstance(error, tarn.Error) else INVALID_PARAMS


def failure(what: str, error: Exception) -> int:
    """The code for an exception; the log says what happened."""
    code = code_of_failure(error)
    log.error("%s: %s (%d)", what, error, code)
    return code


def key_of(key: Any) -> Key:
    """A key as text. Bytes are the same key as the text that they are in UTF-8; other bytes stay
    bytes."""
    if isinstance(key, str):
        return key
    if not isinstance(key, bytes):
        raise TypeError(f"key: text or bytes, not {type(key).__name__}")
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def keys_of(keys: Sequence[Any]) -> List[Key]:
    """The same of many keys. TypeError: it is one key."""
    if isinstance(keys, (str, bytes, bytearray)):
        raise TypeError("keys: a list of keys, not one")
    return [key if isinstance(key, str) else key_of(key) for key in keys]


def suffixed(key: Key, suffix: str) -> Key:
    """The key with more behind it."""
    return key + suffix if isinstance(key, str) else key + suffix.encode()


SIZE_MAX = (1 << 63) - 1
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]?)(i?b)?\s*", re.IGNORECASE)


def size_of(value: Any, name: str) -> int:
    """Bytes: an integer, or text such as "1GB" (of 1024s). Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'{name}: bytes, or text such as "1GB", not {value!r}')
    if isinstance(value, int):
        return _bounded(value, name)
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(f'{name}: bytes, or text such as "1GB", not {value!r}')
    number, scale = match.group(1), 1024 ** " kmgt".index((match.group(2) or " ").lower())
    try:
        found = int(number) * scale if number.isdigit() else int(float(number) * scale)
    except (OverflowError, ValueError):  # infinite, or too long for Python
        found = SIZE_MAX + 1
    return _bounded(found, name)


def _bounded(size: int, name: str) -> int:
    if not 0 <= size <= SIZE_MAX:
        raise ValueError(f"{name}: 0 to {SIZE_MAX} bytes")
    return size


def flag_of(value: Any, name: str) -> bool:
    """A truth value of a configuration: a bool, a number, or a word. Raises ValueError."""
    if isinstance(value, (bool, int, float)):
        return bool(value)
    word = str(value if value is not None else "").strip().lower()
    if word in ("true", "1", "yes", "on", "enable"):
        return True
    if word in ("", "false", "0", "no", "off", "disable"):
        return False
    raise ValueError(f"{name}: true or false, not {value!r}")


_NO_MODULE = os.path.join(os.devnull, "no-module")  # a folder that is nowhere: RDMA is not tried


def transport_of(protocol: str) -> Dict[str, Optional[str]]:
    """Options of tarn for a protocol of Mooncake's. Raises Refused.

    tcp: shared memory on the same machine, else TCP, never RDMA. rdma: shared memory, RDMA where
    both sides have it; there must be a device here. shm, auto: as in tarn."""
    if not isinstance(protocol, str):
        raise TypeError(f"protocol: text, not {type(protocol).__name__}")
    word = protocol.strip().lower()
    if word in ("tcp", "rpc_only", ""):
        return {"transport": "auto", "module_path": _NO_MODULE}
    if word == "rdma":
        try:
            devices = os.listdir("/sys/class/infiniband")
        except OSError:
            devices = []
        if not devices and not os.environ.get("TARN_MODULE_PATH"):
            raise Refused(
                INVALID_PARAMS,
                'protocol "rdma": there is no RDMA device on this machine; use "tcp"',
            )
        return {"transport": "auto"}
    if word in ("shm", "auto"):
        return {"transport": word}
    raise Refused(
        NOT_SUPPORTED,
        f'protocol {protocol!r}: tarn moves bytes by "tcp", "rdma", "shm"; use one of these',
    )


def master_url(address: str) -> str:
    """URL of a tarn-server out of host:port, or one of tarn's own."""
    if not isinstance(address, str) or not address.strip():
        raise Refused(
            INVALID_PARAMS, "master_server_addr: host:port of a tarn-server, or tarn://..."
        )
    address = address.strip()
    return address if "://" in address else f"tarn://{address}"


def split_host(name: str) -> Tuple[str, int]:
    """Host and port out of "host:port", "[v6]:port" or "host" (port 0)."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(\d{1,5}))?", name.strip())
    if match is None:
        return name.strip(), 0  # an IPv6 address without brackets
    return match.group(1).strip("[]"), int(match.group(2) or 0)


def plain_name(text: str, longest: int) -> str:
    """The same text as a name that tarn takes: [A-Za-z0-9._-], not longer than that. Different
    texts stay different."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "_", text)
    if plain == text.replace(":", "_") and "_" not in text and len(plain) <= longest:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{plain[: longest - 17]}-{digest}"


def node_name(hostname: str) -> str:
    """Name in the pool of the memory that a store with this hostname lends. Loopback names mean
    this machine."""
    host, port = split_host(hostname)
    if host in ("localhost", "::1", "") or host.startswith("127."):
        host = socket.gethostname()
    return plain_name(f"{host}:{port}" if port else host, 48)


def hostname_of(node: str, beside: str) -> str:
    """The hostname of the store that lends a node's memory, as a store with the hostname `beside`
    would write it; the node's name where it does not tell."""
    host, _, port = node.rpartition("_")
    own = split_host(beside)[0]
    if node_name(f"{own}:{port}") == node and host == socket.gethostname():
        host = own
    name = f"{host}:{port}"
    return name if host and port.isdigit() and node_name(name) == node else node


def segment_names(hostname: str) -> Tuple[str, str]:
    """Names that the segment may have which a store with this hostname lends; it may be one of
    tarn's own."""
    return hostname, node_name(hostname) + ".0"
