"""Memory that a store lends to the pool: at setup(), and more of it later, in pieces that come and
go."""

from __future__ import annotations

import os
import stat
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import tarn
from tarn.host import Host

from mooncake import _common as common
from mooncake._common import INTERNAL_ERROR, Refused, failure, log
from mooncake._families import in_pool

_SAME_NAME_MAX = 64  # hosts of one machine with the same name and port
_PAGE = 4096


class Lending(NamedTuple):
    """How this store's memory joins the pool."""

    url: str
    module_path: Optional[str]


class _Mounted(NamedTuple):
    """A piece that was lent later."""

    node: str
    is_file: bool


class SegmentMethods:
    """Part of MooncakeDistributedStore. Each piece of memory is a node of its own in the pool, with
    one segment, NODE.0: that is the piece's id."""

    _hostname: str
    _segments: Dict[str, Any]
    _run: Any
    _lock: Any

    def _segments_init(self) -> None:
        self._lending: Optional[Lending] = None
        self._hosts: Dict[str, Host] = {}  # by node, that of setup() first
        self._disk = ""  # the segment of the disk that setup() has given to its node
        self._mounted: Dict[str, _Mounted] = {}  # by id
        self._timers: List[threading.Timer] = []

    def _join(self, segment: int, **options: Any) -> str:
        """A node with so many bytes. The first of a hostname is named after it, others get a name
        beside it."""
        if self._lending is None:
            raise Refused(common.INVALID_PARAMS, "this store was closed meanwhile")
        for attempt in range(_SAME_NAME_MAX):
            node = common.node_name(self._hostname)
            if attempt:
                node = common.plain_name(f"{node}-{os.getpid()}-{attempt}", 48)
            if node in self._hosts:
                continue
            try:
                url, module_path = self._lending
                self._hosts[node] = Host(
                    url, segment, name=node, module_path=module_path, **options
                )
                return node
            except tarn.Busy:  # somebody has that name
                continue
        raise Refused(
            common.SEGMENT_ALREADY_EXISTS,
            f"local_hostname {self._hostname}: too many stores have it",
        )

    def _segments_close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
        self._mounted.clear()
        self._timers.clear()
        self._lending, self._disk = None, ""

    def _mount(
        self,
        what: str,
        segment: int,
        protocol: str,
        is_file: bool,
        look: Callable[[], Dict[str, Any]],
    ) -> Dict[str, Any]:
        """look() makes the options of the node. ret is 0 or -1, as there; the log says why."""

        def work(_: tarn.Client) -> List[str]:
            if segment <= 0:
                raise Refused(INTERNAL_ERROR, f"size: 1 byte or more, not {segment}")
            common.transport_of(protocol)
            with self._lock:
                node = self._join(-(-segment // _PAGE) * _PAGE, **look())
                self._mounted[f"{node}.0"] = _Mounted(node, is_file)
                self._segments.clear()  # what was known of segments that are there or not
            return [f"{node}.0"]

        ids: List[str] = self._run(what, work, lambda _: [])
        return {"ret": 0 if ids else INTERNAL_ERROR, "segment_ids": ids}

    def allocate_and_mount_segment(
        self, size: int, protocol: str = "tcp", location: str = ""
    ) -> Dict[str, Any]:
        """Lends so many bytes more: ret (0 or -1), segment_ids, allocated_size. location is
        accepted."""
        result = self._mount("allocate_and_mount_segment", size, protocol, False, dict)
        result["allocated_size"] = -(-size // _PAGE) * _PAGE if result["ret"] == 0 else 0
        return result

    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> Dict[str, Any]:
        """Lends so many bytes of a file, in /dev/shm say: ret (0 or -1) and segment_ids. The file
        must be there and large enough; what is in it is lost. Bytes from an offset on cannot be
        lent: the pool's own head of the file is at its start."""

        def look() -> Dict[str, Any]:
            try:
                found = os.stat(path)
            except OSError as e:
                raise Refused(INTERNAL_ERROR, f"path {path}: {e.strerror}") from None
            if offset:
                raise Refused(
                    INTERNAL_ERROR,
                    f"offset: 0, not {offset}: a pool's file is one from its start on",
                )
            if not stat.S_ISREG(found.st_mode) or found.st_size < size:
                raise Refused(INTERNAL_ERROR, f"path {path}: a file of {size} bytes or more")
            return {"path": path}

        return self._mount("mount_segment", size, protocol, True, look)

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Takes files back that mount_segment has lent. For grace_period_seconds what is there can
        still be read, nothing new comes, and what is only there moves away. 0, or -1: of an id that
        is not known; the others go all the same."""
        return self._unmount("unmount_segment", segment_ids, grace_period_seconds, True)

    def unmount_and_free_segment(
        self, segment_ids: Sequence[str], grace_period_seconds: int = 0
    ) -> int:
        """The same for memory of allocate_and_mount_segment."""
        return self._unmount("unmount_and_free_segment", segment_ids, grace_period_seconds, False)

    def _unmount(self, what: str, ids: Sequence[str], grace: int, is_file: bool) -> int:
        if isinstance(ids, (str, bytes)):
            raise TypeError("segment_ids: a list of texts")

        def work(_: tarn.Client) -> int:
            codes = [self._let_go(what, one, grace, is_file) for one in ids]
            return next((c for c in codes if c), 0)

        code: int = self._run(what, work, lambda _: INTERNAL_ERROR)
        return code

    def _let_go(self, what: str, one: str, grace: int, is_file: bool) -> int:
        mounted = self._mounted.get(one)
        if mounted is None or mounted.is_file != is_file:
            log.error("%s: %s is no segment of this store that was mounted so", what, one)
            return INTERNAL_ERROR
        if not grace:
            self._unlend(one)
            return 0
        try:
            self._hosts[mounted.node].drain()
        except tarn.Error as e:
            return failure(what, e)
        self._later(grace, lambda: self._unlend(one))
        return 0

    def _unlend(self, one: str) -> None:
        with self._lock:
            mounted = self._mounted.pop(one, None)
            host = self._hosts.pop(mounted.node, None) if mounted is not None else None
            self._segments.clear()
        if host is not None:
            host.close()

    def _later(self, seconds: int, work: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, work)
        timer.daemon = True
        with self._lock:
            self._timers = [t for t in self._timers if t.is_alive()] + [timer]
        timer.start()

    @in_pool(lambda *_, **__: INTERNAL_ERROR)
    def unmount_local_disk_segment(self, client: tarn.Client, grace_period_seconds: int = 0) -> int:
        """Takes back the disk that setup() has given with enable_ssd_offload. For
        grace_period_seconds what is only there can still be read, and moves away. 0, also where
        there is none; -1: it could not be done."""
        disk = self._disk
        if not disk:
            log.warning("unmount_local_disk_segment: this store has given no disk")
            return 0
        client.command("SEGMENT", "DRAIN" if grace_period_seconds else "UNMOUNT", disk)
        if grace_period_seconds:
            self._later(grace_period_seconds, lambda: self._drop_disk(client, disk))
        self._disk = ""
        return 0

    @staticmethod
    def _drop_disk(client: tarn.Client, disk: str) -> None:
        try:
            client.command("SEGMENT", "UNMOUNT", disk)
        except tarn.NotFound:
            return  # the drain was quicker
        except tarn.Error as e:
            failure("unmount_local_disk_segment", e)
