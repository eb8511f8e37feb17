"""A store's life: set up in all of Mooncake's ways, memory lent to the pool, closed."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, Dict, Optional, Union

import tarn

from mooncake import _common as common
from mooncake._away import Away, lookup_timeout
from mooncake._common import INVALID_PARAMS, NOT_SUPPORTED, Refused, failure, log
from mooncake._segments import Lending, SegmentMethods

_DEFAULT_SIZE = 16 << 20
_DEFAULT_MASTER = "127.0.0.1:50051"
_PORTS = range(12300, 14301)  # of hostnames that come without one
_ALL_BUFFER = 1 << 30  # local_buffer_size of init_all


class LifeMethods(SegmentMethods):
    """Part of MooncakeDistributedStore."""

    _reach: Any
    _staging: Any
    _segments: Dict[str, Any]
    _sessions_close: Any

    def _life_init(self) -> None:
        self._client: Optional[tarn.Client] = None
        self._lookups: Optional[tarn.Client] = None  # with a short timeout
        self._away = Away()
        self._segments_init()
        self._hostname = ""
        self._port_holder: Optional[socket.socket] = None
        self._prefix = ""  # of this tenant's keys
        self._local_buffer = 0  # what setup() was told; there is no such memory here
        self._rdma = False
        self._buffers: Dict[int, int] = {}  # registered ones, by address
        self._lock = threading.Lock()

    def setup(
        self,
        local_hostname: Any = None,
        metadata_server: Optional[str] = None,
        global_segment_size: Union[int, str] = _DEFAULT_SIZE,
        local_buffer_size: Union[int, str] = _DEFAULT_SIZE,
        protocol: str = "tcp",
        rdma_devices: str = "",
        master_server_addr: str = _DEFAULT_MASTER,
        engine: Any = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
        *,
        config: Optional[Dict[str, Any]] = None,
        lookup_timeout_ms: Optional[Any] = None,
    ) -> int:
        """Connects, and lends `global_segment_size` bytes of this process to the pool (0: none). Or
        with one argument, a dict of these. 0, or a negative code. docs/engines/MOONCAKE.md says
        what each argument means here; lookup_timeout_ms is tarn's own."""
        given = config if config is not None else local_hostname
        if isinstance(given, dict):
            return self._setup_dict(given)
        for name, value in (
            ("local_hostname", local_hostname),
            ("metadata_server", metadata_server),
        ):
            if not isinstance(value, str):
                raise TypeError(f"setup(): {name}: text, not {type(value).__name__}")
        for name, value in (("rdma_devices", rdma_devices), ("tenant_id", tenant_id)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"setup(): {name}: text, not {type(value).__name__}")
        if engine is not None and not hasattr(engine, "_tarn_end"):
            raise TypeError(
                "setup(): engine: what mooncake.engine's TransferEngine.get_engine() gives, or None"
            )
        with self._lock:
            if self._client is not None:
                log.error("setup: this store is set up already: close() it first")
                return INVALID_PARAMS
            try:
                if not local_hostname.strip() or not (metadata_server or "").strip():
                    raise Refused(
                        INVALID_PARAMS, "local_hostname and metadata_server: text that is not empty"
                    )
                if enable_client_http_server:
                    raise Refused(
                        NOT_SUPPORTED,
                        "enable_client_http_server: figures are the tarn-server's: its INFO, or "
                        "its port of metrics",
                    )
                segment = common.size_of(global_segment_size, "global_segment_size")
                self._local_buffer = common.size_of(local_buffer_size, "local_buffer_size")
                options = common.transport_of(protocol)
                self._rdma = "module_path" not in options and options["transport"] != "shm"
                url = common.master_url(master_server_addr)
                self._prefix = "" if tenant_id in (None, "", "default") else f"tenant:{tenant_id}:"
                ssd = self._ssd(enable_ssd_offload, ssd_offload_path, segment)
                self._hostname = local_hostname.strip()
                patience = lookup_timeout(lookup_timeout_ms)
                self._client = tarn.Client(url, name="mooncake.store", **options)
                self._lookups = tarn.Client(
                    url, name="mooncake.lookup", timeout_ms=patience, **options
                )
                self._away = Away()
                self._lending = Lending(url, options.get("module_path"))
                self._lend(segment, ssd)
            except (Refused, tarn.Error, ValueError) as e:
                self._drop()
                return failure("setup", e)
        return 0

    def _setup_dict(self, config: Dict[str, Any]) -> int:
        try:
            return self.setup(
                str(config.get("local_hostname", "")),
                str(config.get("metadata_server", "")),
                common.size_of(
                    config.get("global_segment_size", _DEFAULT_SIZE), "global_segment_size"
                ),
                common.size_of(config.get("local_buffer_size", _DEFAULT_SIZE), "local_buffer_size"),
                str(config.get("protocol", "tcp")),
                str(config.get("rdma_devices", "")),
                str(config.get("master_server_addr", _DEFAULT_MASTER)),
                None,
                common.flag_of(config.get("enable_ssd_offload", False), "enable_ssd_offload"),
                str(config.get("ssd_offload_path", "")),
                str(config.get("tenant_id", "default")),
                common.flag_of(
                    config.get("enable_client_http_server", False), "enable_client_http_server"
                ),
                lookup_timeout_ms=config.get("lookup_timeout_ms"),
            )
        except ValueError as e:
            return failure("setup", e)

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """A store that lends nothing. With Mooncake `server_address` is a process on this machine
        that does the work for it; here it is the tarn-server, and bytes go to the pool directly."""
        return self.setup(
            "localhost",
            "P2PHANDSHAKE",
            0,
            local_buffer_size or _DEFAULT_SIZE,
            "auto",
            "",
            server_address,
        )

    def init_all(
        self, protocol: str, device_name: str, mount_segment_size: int = _DEFAULT_SIZE
    ) -> int:
        """setup() of a server on this machine, 127.0.0.1:50051. 0, or a negative code."""
        return self.setup(
            "localhost:12345",
            "P2PHANDSHAKE",
            mount_segment_size,
            _ALL_BUFFER,
            protocol,
            device_name,
        )

    @staticmethod
    def _ssd(enabled: bool, path: str, segment: int) -> Dict[str, Any]:
        if not enabled:
            return {}
        path = path or os.environ.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "")
        if not path or not os.path.isdir(path):
            raise Refused(INVALID_PARAMS, f"ssd_offload_path: a folder that is there, not {path!r}")
        if segment == 0:
            raise Refused(
                INVALID_PARAMS,
                "enable_ssd_offload: the disk belongs to memory that is lent: global_segment_size "
                "is 0",
            )
        free = os.statvfs(path)
        limit = int(
            os.environ.get(
                "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", free.f_bavail * free.f_frsize * 9 // 10
            )
        )
        return {"ssd_path": path, "ssd_bytes": limit}

    def _lend(self, segment: int, ssd: Dict[str, Any]) -> None:
        """Takes a port for the hostname if it has none, and a place in the pool if memory is
        lent."""
        host, port = common.split_host(self._hostname)
        if port == 0:
            self._port_holder = self._hold_port()
            port = self._port_holder.getsockname()[1]
        self._hostname = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if segment:
            node = self._join(segment, **ssd)
            self._disk = f"{node}.ssd" if ssd else ""

    @staticmethod
    def _hold_port() -> socket.socket:
        """A socket that keeps a port, so that no other store of this machine takes it."""
        for attempt in range(len(_PORTS)):
            holder = socket.socket()
            try:
                holder.bind(("127.0.0.1", _PORTS[(os.getpid() * 7 + attempt) % len(_PORTS)]))
                return holder
            except OSError:
                holder.close()
        raise Refused(
            common.INTERNAL_ERROR,
            f"local_hostname: no port from {_PORTS[0]} to {_PORTS[-1]} is free",
        )

    def _drop(self) -> None:
        self._sessions_close()
        self._segments_close()
        for client in (self._client, self._lookups):
            if client is not None:
                client.close()
        if self._port_holder is not None:
            self._port_holder.close()
        self._client, self._lookups, self._port_holder = None, None, None
        self._reach.clear()
        self._staging.close()
        self._buffers.clear()
        self._segments.clear()

    def close(self) -> int:
        """Takes back the memory that was lent, with what was only there. 0. setup() may follow."""
        with self._lock:
            self._drop()
        return 0

    def __del__(self) -> None:
        if getattr(self, "_client", None) is not None or getattr(self, "_hosts", None):
            self._drop()

    def health_check(self) -> int:
        """0: all is well; 1: not set up, or closed; 2: the server cannot be reached."""
        client = self._lookups
        if client is None or client.closed:
            return 1
        return 0 if self._away.health(client) else 2

    def _get_pyclient_capsule(self) -> Any:
        """Programs ask for it to see whether the store is set up: itself, or None."""
        return None if self._client is None else self

    def get_hostname(self) -> str:
        """host:port that this store is known by; for ReplicateConfig.preferred_segment."""
        return self._hostname
