"""Lending memory of this process to a pool: what tarn-node does, inside a program.

    with Host("tarn://127.0.0.1:6479", 4 << 30, name="prefill-0"):
        ...

The memory is a segment named NAME.0 (NAME.1, ... where there are several), served by threads of
libtarn's own. It goes with the process; what was only there is lost then, unless `drain` has moved
it away before."""

from __future__ import annotations

import ctypes as C
import enum
from typing import Any, Dict, Optional, Sequence, Union

from ._lib import Native, Options, check, lib
from ._transfer_lib import HOST_INFO, HostInfo, HostOptions, HostSegment
from ._scope import Closes
from .errors import InvalidArgument, Status
from .options import number

__all__ = ["Host", "HostState"]

_INT_MAX = (1 << 31) - 1


class HostState(enum.IntEnum):
    """Where a host is in its life."""

    JOINING = 0
    UP = 1
    LEAVING = 2
    LEFT = 3


class Host(Native, Closes):
    """A storage node inside this process. Any thread may call; `close` must be the last call.

    `segments`: bytes of one segment, or of several (each is rounded down to 4 KiB). `name`: unique
    in the pool, 1 to 48 of [A-Za-z0-9._-]; None: machine and pid. `bind`: addresses of the data
    port, none: all. `announce`: host or host:port that clients are told. `path`: a file that is the
    memory, and keeps its bytes over a restart; one that is no pool's is replaced. `ssd_path`:
    folder, file or block device that keeps copies of objects, ssd_bytes of it; `ssd_create`: a file
    of that name is made where nothing is. `populate`: touch every page at the start, so that memory
    which is not there shows now.

    `tls_data`: the data port speaks TLS only; `url` must begin with tarns://. Its certificate is
    `tls_cert_file` and `tls_key_file` (PEM; None: those of the URL); clients must show one that
    `tls_ca_file` or `tls_ca_dir` vouch for (None: as the URL), unless `tls_auth_clients` is
    "optional" or "no".

    Raises Busy if
    a living node has that name, ConnectionFailed, OutOfMemory, InvalidArgument."""

    _what = "host"

    def __init__(
        self,
        url: str,
        segments: Union[int, Sequence[int]],
        *,
        name: Optional[str] = None,
        rack: Optional[str] = None,
        bind: Sequence[str] = (),
        data_port: int = 0,
        announce: Optional[str] = None,
        huge_pages: bool = False,
        numa_node: int = -1,
        populate: bool = True,
        threads: int = 0,
        shm_socket: Optional[str] = None,
        path: Optional[str] = None,
        ssd_path: Optional[str] = None,
        ssd_bytes: int = 0,
        ssd_create: bool = False,
        host_name: Optional[str] = None,
        module_path: Optional[str] = None,
        tls_data: bool = False,
        tls_cert_file: Optional[str] = None,
        tls_key_file: Optional[str] = None,
        tls_ca_file: Optional[str] = None,
        tls_ca_dir: Optional[str] = None,
        tls_auth_clients: Optional[str] = None,
    ) -> None:
        super().__init__()
        sizes = [segments] if isinstance(segments, int) else list(segments)
        if not sizes or any(not isinstance(s, int) or not 4096 <= s < 1 << 63 for s in sizes):
            raise InvalidArgument("segments: bytes of one segment or more, 4096 to 2^63 - 1")
        numa_node = number(numa_node, "numa_node", -1, _INT_MAX)
        if path is not None and len(sizes) > 1:
            raise InvalidArgument("path: a file is one segment, not several")
        file = path.encode() if path else None
        rows = (HostSegment * len(sizes))(
            *[HostSegment(s, numa_node, file, int(huge_pages)) for s in sizes]
        )
        addresses = (C.c_char_p * max(1, len(bind)))(*[b.encode() for b in bind])
        options, host = Options(), HostOptions()
        lib.tarn_options_init_sized(C.byref(options), C.sizeof(options))
        lib.tarn_host_options_init_sized(C.byref(host), C.sizeof(host))
        options.host_name = host_name.encode() if host_name else None
        options.module_path = module_path.encode() if module_path else None
        texts = {
            "name": name,
            "rack": rack,
            "announce": announce,
            "ssd_path": ssd_path,
            "tls_cert_file": tls_cert_file,
            "tls_key_file": tls_key_file,
            "tls_ca_file": tls_ca_file,
            "tls_ca_dir": tls_ca_dir,
            "tls_auth_clients": tls_auth_clients,
        }
        for field, words in texts.items():
            setattr(host, field, words.encode() if words else None)
        host.segments, host.n_segments = rows, len(sizes)
        if bind:
            host.bind, host.binds = addresses, len(bind)
        host.data_port = number(data_port, "data_port", most=65535)
        host.shm_socket = None if shm_socket is None else shm_socket.encode()
        host.threads, host.populate = number(threads, "threads", most=_INT_MAX), int(populate)
        host.ssd_bytes = number(ssd_bytes, "ssd_bytes")
        host.ssd_create = int(ssd_create)
        host.tls_data = int(tls_data)
        check(
            lib.tarn_host_open(url.encode(), C.byref(options), C.byref(host), C.byref(self._handle))
        )

    def info(self) -> Dict[str, Any]:
        """Its state (HostState), data_port and figures."""
        raw = HostInfo(C.sizeof(HostInfo))
        check(lib.tarn_host_get_info(self._live(), C.byref(raw)))
        figures: Dict[str, Any] = {name: getattr(raw, name) for name in HOST_INFO}
        figures.update(
            state=HostState(raw.state),
            data_port=raw.data_port,
            last_error=raw.last_error.decode("utf-8", "replace"),
        )
        return figures

    def drain(self) -> None:
        """Asks the master to move away what is only here, then to let this host go. Returns at
        once; see `wait`."""
        check(lib.tarn_host_drain(self._live()))

    def reload_tls(self) -> None:
        """Reads the files of its TLS settings again, after a certificate was renewed. If one cannot
        be used, all stays as it was."""
        check(lib.tarn_host_reload_tls(self._live()))

    def wait(self, timeout_ms: int) -> bool:
        """Until it has left the pool: True; False: not within timeout_ms."""
        status = lib.tarn_host_wait(self._live(), timeout_ms)
        if status != Status.ETIMEOUT:
            check(status)
        return bool(status == Status.OK)

    def close(self, *, timeout_ms: int = 5000) -> None:
        """Leaves the pool without moving anything, waiting so long for readers' leases to end.
        Twice does no harm."""
        self._end(lambda handle: lib.tarn_host_close(handle, 0, timeout_ms))
