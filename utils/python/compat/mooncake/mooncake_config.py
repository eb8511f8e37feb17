"""mooncake.json and the environment variables that stand for it: the settings that engines pass to
setup()."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from mooncake._common import flag_of, size_of

logger = logging.getLogger(__name__)

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200
DEFAULT_LOCAL_BUFFER_SIZE = 1073741824
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")


def _parse_segment_size(value: Any) -> int:
    if isinstance(value, str):
        return size_of(value, "segment size")
    return int(value)


@dataclass
class MooncakeConfig:
    """One process' settings. Sizes are bytes; `device_name` goes to setup() as rdma_devices."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: Optional[str]
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(
                f'Invalid protocol: text such as "tcp" or "rdma", not {self.protocol!r}'
            )
        self.protocol = self.protocol.strip().lower()
        if self.protocol not in ("tcp", "rdma", "shm", "auto"):
            logger.warning(
                "Unrecognised protocol %r: setup() takes tcp, rdma, shm or auto", self.protocol
            )
        for name in ("global_segment_size", "local_buffer_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: 0 or more, not {getattr(self, name)}")
        for name in _REQUIRED:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name}: text that is not empty, not {value!r}")

    @staticmethod
    def _from(values: Mapping[str, Any]) -> "MooncakeConfig":
        for name in _REQUIRED:
            if name not in values:
                raise ValueError(f"Missing required config field: {name}")
        ssd, tenant = values.get("ssd_offload_path"), values.get("tenant_id")
        return MooncakeConfig(
            local_hostname=values["local_hostname"],
            metadata_server=values["metadata_server"],
            global_segment_size=_parse_segment_size(
                values.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE)
            ),
            local_buffer_size=_parse_segment_size(
                values.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE)
            ),
            protocol=values.get("protocol", "tcp"),
            device_name=values.get("device_name", ""),
            master_server_address=values["master_server_address"],
            enable_ssd_offload=flag_of(
                values.get("enable_ssd_offload", False), "enable_ssd_offload"
            ),
            ssd_offload_path="" if ssd is None else str(ssd),
            tenant_id="default" if tenant is None else str(tenant),
            enable_client_http_server=flag_of(
                values.get("enable_client_http_server", False), "enable_client_http_server"
            ),
            client_http_port=int(values.get("client_http_port", 9300)),
        )

    @staticmethod
    def from_file(file_path: str) -> "MooncakeConfig":
        """Out of a JSON file. ValueError: a field is missing or makes no sense."""
        with open(file_path, encoding="utf-8") as file:
            return MooncakeConfig._from(json.load(file))

    @staticmethod
    def load_from_env() -> "MooncakeConfig":
        """Out of the file that MOONCAKE_CONFIG_PATH names, else out of MOONCAKE_MASTER and its
        like."""
        path = os.getenv("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        if not os.getenv("MOONCAKE_MASTER"):
            raise ValueError(
                "Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is "
                "set."
            )
        names = {
            "master_server_address": "MOONCAKE_MASTER",
            "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
            "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
            "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
            "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
            "protocol": "MOONCAKE_PROTOCOL",
            "device_name": "MOONCAKE_DEVICE",
            "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
            "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
            "tenant_id": "MOONCAKE_TENANT_ID",
            "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
            "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
        }
        values = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE"}
        values.update(
            (field, os.environ[name]) for field, name in names.items() if name in os.environ
        )
        return MooncakeConfig._from(values)
