"""Statuses of libtarn, and the exceptions they become.

A miss is no exception where a method can say so by its value (`get` gives None, `put` gives False
for a key that was there); everything else that a single-key method cannot do raises a subclass of
`Error`. Methods for many keys return a status per key and raise only what concerns the call as a
whole, such as a server that is gone."""

from __future__ import annotations

import enum
from typing import Dict, Sequence, Type


class Status(enum.IntEnum):
    """tarn_status of libtarn: 0, or what went wrong."""

    OK = 0
    ERR = -1
    ENOMEM = -2
    EINVAL = -3
    EAGAIN = -4
    ETIMEOUT = -5
    ECLOSED = -6
    EIO = -7
    EPROTO = -8
    ENOTFOUND = -9
    EEXISTS = -10
    EBUSY = -11
    ENOSPACE = -12
    ETOKEN = -13
    ESTALE = -14
    EQUOTA = -15
    EPERM = -16
    EGRANT_EXPIRED = -17
    ECORRUPT = -18
    ELEASE = -19
    EREADONLY = -20
    ELOADING = -21
    EOOM = -22
    ENOSEGMENT = -23
    ELIMIT = -24
    ECANCELED = -25
    ENOTSUP = -26
    ELATER = -27
    EMOVED = -28


# Statuses of a put that mean: somebody else has stored these very bytes, or is storing them.
DONE_BY_OTHERS = (int(Status.EEXISTS), int(Status.EBUSY))


def done(status: int) -> bool:
    """Is a put with this status done, as far as its rank is concerned? Stored, there already, or
    being stored by another rank."""
    return status >= 0 or status in DONE_BY_OTHERS


def status_name(status: int) -> str:
    """Such as "ENOSPACE"; of numbers that are no status their digits."""
    try:
        return Status(status).name
    except ValueError:
        return str(status)


_CLASSES: Dict[int, Type[Error]] = {}


class Error(Exception):
    """Anything libtarn refuses. `status` is the negative number, `name` its name ("ENOSPACE"); the
    text says what to do."""

    status: int = Status.ERR

    def __init_subclass__(cls, of: Sequence[Status] = ()) -> None:
        """`of`: the statuses that raise it."""
        super().__init_subclass__()
        cls.status = of[0] if of else cls.status
        _CLASSES.update(dict.fromkeys(of, cls))

    def __init__(self, message: str = "", status: int = 0) -> None:
        super().__init__(message)
        if status:
            self.status = status

    @property
    def name(self) -> str:
        """The status' name, such as "ENOSPACE"."""
        return status_name(self.status)


class OutOfMemory(Error, MemoryError, of=(Status.ENOMEM,)):
    """This process has no memory left."""


class InvalidArgument(Error, ValueError, of=(Status.EINVAL,)):
    """An argument is out of range."""


class QueueFull(Error, of=(Status.EAGAIN,)):
    """As many submissions are pending as the queue may hold: take completions out first."""


class TimedOut(Error, TimeoutError, of=(Status.ETIMEOUT,)):
    """The deadline passed."""


class Closed(Error):
    """The client (queue, view, writer) is closed, or belongs to the process before a fork."""

    # What libtarn calls so is a connection: clients and queues that are closed, or of before a
    # fork, are refused before it is asked.
    status = Status.ECLOSED


class ConnectionFailed(Error, ConnectionError, of=(Status.EIO, Status.ECLOSED)):
    """No server, or the connection broke and could not be made again (EIO, ECLOSED)."""


class ProtocolError(Error, of=(Status.EPROTO,)):
    """The other end is not a tarn server, or of another version."""


class NotFound(Error, LookupError, of=(Status.ENOTFOUND, Status.ENOSEGMENT)):
    """No such key."""


class Exists(Error, of=(Status.EEXISTS,)):
    """The key is there already."""


class Busy(Error, of=(Status.EBUSY,)):
    """Another writer is at it."""


class TryAgain(Error, of=(Status.ELATER, Status.ELOADING)):
    """Room or readiness will come, and did not within the call's time (ELATER, ELOADING): put or
    get it again a little later."""


class NoSpace(Error, of=(Status.ENOSPACE, Status.EQUOTA, Status.EOOM)):
    """No room in the pool (ENOSPACE), over a quota (EQUOTA), or the server's books are full
    (EOOM)."""


class Stale(Error, of=(Status.ESTALE,)):
    """The bytes are not where they were, or cannot be mapped here: use a get instead of a view."""


class PermissionDenied(Error, PermissionError, of=(Status.EPERM,)):
    """No such user, a wrong password, or a command or key that the user may not touch."""


class Corrupt(Error, of=(Status.ECORRUPT,)):
    """The bytes do not match their checksum."""


class LeaseOver(Error, of=(Status.ELEASE, Status.EGRANT_EXPIRED)):
    """The lease ended before the bytes had been verified."""


class ReadOnly(Error, of=(Status.EREADONLY, Status.EMOVED)):
    """The server is a replica, has too few of them to accept writes (EREADONLY), or is one of many
    masters and another one has the key (EMOVED)."""


class TooLarge(Error, of=(Status.ELIMIT,)):
    """A bound was reached; of gets: the value does not fit in the buffer."""


class Cancelled(Error, of=(Status.ECANCELED,)):
    """Given up on request."""


class NotSupported(Error, of=(Status.ENOTSUP,)):
    """This build, machine or transport cannot do it."""


# What to do about statuses that come out of batches without a sentence of libtarn's own.
ADVICE: Dict[int, str] = {
    Status.ENOMEM: "free memory of this process",
    Status.EINVAL: "an argument or a key is out of range; the log line of libtarn says which",
    Status.ETIMEOUT: "give timeout_ms more, or see whether the server and its nodes are up",
    Status.ECLOSED: "the connection was closed: see whether tarn-server is running, and what its"
    " log says",
    Status.EIO: "see whether tarn-server is running, and reachable from here",
    Status.EPROTO: "the other end is no tarn server, or of another version",
    Status.EBUSY: "another writer is at this key: wait for it (wait_ms), or leave it to that one",
    Status.ENOSPACE: "remove or unpin values, or give the pool more memory",
    Status.EQUOTA: "raise the quota, or remove values of this user or group",
    Status.ESTALE: "get it again",
    Status.EPERM: "ask for a user with this permission (ACL), or check user and password",
    Status.ECORRUPT: "the value is damaged: put it again",
    Status.ELEASE: "get it again, with a longer lease_ms",
    Status.EREADONLY: "this server is a replica, or has too few of them: connect to the master",
    Status.EMOVED: "another master has the key: this user needs the right +cluster|map",
    Status.ELOADING: "the server is still starting: try again",
    Status.ELATER: "room is being made, or comes back in a moment: try again, or give timeout_ms"
    " more",
    Status.EOOM: "the server's books are full: remove values, or raise its limits",
    Status.ELIMIT: "offer a larger buffer, or fewer keys at a time",
    Status.ENOTSUP: "this build, machine or transport cannot do it",
}


def error_of(status: int, message: str) -> Error:
    """The exception for a status; the caller raises it."""
    return _CLASSES.get(status, Error)(message, status)
