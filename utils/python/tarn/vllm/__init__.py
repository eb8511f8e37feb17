"""tarn for vLLM: `kv_connector_module_path` is this package. Imports without vLLM and without
torch.

TarnConnector is made from what base.py finds; offload.py has the secondary tier of the
OffloadingConnector."""

from .connector import TarnConnector

__all__ = ["TarnConnector"]
