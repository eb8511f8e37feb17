"""SGLang's hierarchical cache on a tarn pool: the third level behind GPU and host memory.

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{
      "backend_name": "tarn", "module_path": "tarn.sglang", "class_name": "TarnHiCache",
      "interface_v1": 1, "tarn": {"url": "tarn://10.0.0.1:6479"}}'

A page of a host pool, all its layers, keys and values, is one object, put and read straight from
and into the host pool's memory; docs/engines/SGLANG.md says how objects are called and which ranks
share them. Hybrid models have a host pool for each kind of state; a page of each is an object of
its own. Without `"interface_v1": 1` SGLang copies every page into a tensor of its own before it
asks."""

from .storage import TarnHiCache

__all__ = ["TarnHiCache"]
