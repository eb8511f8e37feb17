"""tarn for vLLM: `kv_connector_module_path` is this package. Imports without vLLM and without
torch.

TarnConnector is made from what base.py finds; offload.py has the secondary tier of the
OffloadingConnector."""

from typing import Any

from .._link import optional
from .connector import TarnConnector

__all__ = ["TarnConnector"]


def register(factory: Any) -> None:
    """vLLM's MultiConnector makes the stats of its children by their names, and vLLM ends if it
    does not know one. factory: its KVConnectorFactory."""
    if "TarnConnector" not in getattr(factory, "_registry", {"TarnConnector"}):
        factory.register_connector("TarnConnector", __name__, "TarnConnector")


_factories = optional("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory")
if _factories is not None:
    register(_factories[0])
