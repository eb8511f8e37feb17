"""LMCache on a tarn pool.

In its engines' processes: `TarnConnectorAdapter` makes a `TarnConnector` of `remote_url:
"tarn://host:port"` or of the storage plugin `tarn`. In LMCache's server of its own:
`TarnL2Adapter`, an L2 adapter of the type "plugin". Both can be imported, and used through the same
methods, without LMCache and torch."""

from .adapter import TarnConnectorAdapter
from .connector import TarnConnector
from .l2 import TarnL2Adapter

__all__ = ["TarnConnector", "TarnConnectorAdapter", "TarnL2Adapter"]
