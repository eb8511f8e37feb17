"""vllm-ascend's AscendStoreConnector on a tarn pool: the store behind the KV caches of NPUs.

    --kv-transfer-config '{"kv_connector": "AscendStoreConnector",
                           "kv_connector_module_path": "tarn.vllm_ascend",
                           "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                           "kv_connector_extra_config": {"backend": "tarn"}}'

vllm-ascend knows its backends by a table of its own. Taking its connector from this module, as
above, writes us into that table; `register` does the same where vLLM runs it as a plug-in.
Configuration comes from the environment: TARN_URL, TARN_CONFIG_PATH."""

from __future__ import annotations

import importlib
from typing import Any, Dict

from .._link import optional
from .backend import STORE, TarnBackend
from .facts import noting
from .memory import HostMap, Runtime

__all__ = ["HostMap", "Runtime", "TarnBackend", "register"]


def _entry() -> Dict[str, str]:
    return {"name": "TarnBackend", "path": __name__}


def register() -> None:
    """Makes "backend": "tarn" known to vllm-ascend; does nothing where that is not installed. May
    be called many times.

    Named as a vllm.general_plugins entry point, it runs in every process of vLLM."""
    found = optional(f"{STORE}.backend", "backend_map")
    if found is not None:
        found[0].setdefault("tarn", _entry())


def __getattr__(name: str) -> Any:
    """vllm-ascend's own connector, with our backend registered: for "kv_connector_module_path".

    It copies layers on their way only for a backend that is called "memcache". Who takes the
    connector from here means us by that name, too."""
    if name != "AscendStoreConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    connector = importlib.import_module(f"{STORE}.ascend_store_connector")
    register()
    importlib.import_module(f"{STORE}.backend").backend_map["memcache"] = _entry()
    return noting(getattr(connector, name))
