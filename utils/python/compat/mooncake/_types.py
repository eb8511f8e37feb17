"""The small types of mooncake.store: how objects are placed, where they lie, memory that was got.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
from typing import Any, Dict, List, Optional, Union


class ObjectDataType(enum.IntEnum):
    """What an object holds. A label: tarn treats all alike."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(enum.IntEnum):
    """What a put does about a soft pin."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicaStatus(enum.IntEnum):
    """State of a replica. tarn names replicas only when they are COMPLETE."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


def _whole(value: Any, name: str, bits: int = 64) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise TypeError(f"{name}: a number of {bits} bits, 0 or more, not {value!r}")
    return value


def _texts(value: Any, name: str) -> List[str]:
    if isinstance(value, (str, bytes)) or not all(isinstance(v, str) for v in value):
        raise TypeError(f"{name}: a list of texts, not {value!r}")
    return list(value)


class ReplicateConfig:
    """How a put places an object. Attributes are checked when they are set (TypeError), and those
    that tarn cannot honour when they are used."""

    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: Optional[int]
    with_hard_pin: bool
    preferred_segments: List[str]
    preferred_segment: str
    preferred_nof_segments: List[str]
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: Optional[List[str]]

    def __init__(self) -> None:
        self.replica_num = 1
        self.nof_replica_num = 0
        self.dfs_replica_num = 0
        self.soft_pin_action = SoftPinAction.PRESERVE
        self.soft_pin_ttl_ms = None
        self.with_hard_pin = False
        self.preferred_segments = []
        self.preferred_segment = ""
        self.preferred_nof_segments = []
        self.prefer_alloc_in_same_node = False
        self.data_type = ObjectDataType.UNKNOWN
        self.group_ids = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("replica_num", "nof_replica_num", "dfs_replica_num"):
            value = _whole(value, name)
        elif name == "soft_pin_ttl_ms":
            value = None if value is None else _whole(value, name)
        elif name in ("with_hard_pin", "prefer_alloc_in_same_node"):
            if not isinstance(value, bool):
                raise TypeError(f"{name}: True or False, not {value!r}")
        elif name in ("preferred_segments", "preferred_nof_segments"):
            value = _texts(value, name)
        elif name == "preferred_segment":
            if not isinstance(value, str):
                raise TypeError(f"{name}: text, not {value!r}")
        elif name == "group_ids":
            value = None if value is None else _texts(value, name)
        elif name == "soft_pin_action":
            if not isinstance(value, SoftPinAction):
                raise TypeError(f"{name}: a SoftPinAction, not {value!r}")
        elif name == "with_soft_pin":  # as it was called before there were actions
            name, value = (
                "soft_pin_action",
                SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE,
            )
        elif name == "data_type":
            value = ObjectDataType(value)
        else:
            raise AttributeError(f"ReplicateConfig has no attribute {name!r}")
        object.__setattr__(self, name, value)

    @property
    def with_soft_pin(self) -> bool:
        """Older programs' word for soft_pin_action == ENABLE."""
        return self.soft_pin_action == SoftPinAction.ENABLE

    def __str__(self) -> str:
        return "ReplicateConfig: { " + ", ".join(f"{k}: {v}" for k, v in vars(self).items()) + " }"

    __repr__ = __str__


class BufferHandle(bytearray):
    """A value in memory of its own: ptr(), size(), and the buffer protocol. Good for as long as
    this object is held."""

    def ptr(self) -> int:
        """Address of the first byte; 0 if there is none."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self)) if len(self) else 0

    def size(self) -> int:
        """Bytes."""
        return len(self)


class Descriptor:
    """A piece of memory of a replica. buffer_address is the offset in its segment, not an address
    of this process."""

    def __init__(
        self, size: int = 0, buffer_address: int = 0, transport_endpoint: str = ""
    ) -> None:
        self.size, self.buffer_address, self.transport_endpoint = (
            size,
            buffer_address,
            transport_endpoint,
        )

    def __repr__(self) -> str:
        return (
            f"<Descriptor size={self.size} buffer_address={self.buffer_address} "
            f"transport_endpoint={self.transport_endpoint}>"
        )


class MemoryDescriptor:
    """A replica in memory."""

    def __init__(self, buffer_descriptor: Optional[Descriptor] = None) -> None:
        self.buffer_descriptor = buffer_descriptor or Descriptor()


class DiskDescriptor:
    """A replica on a disk or in a file. file_path is the name of its segment."""

    def __init__(self, file_path: str = "", object_size: int = 0) -> None:
        self.file_path, self.object_size = file_path, object_size


class ReplicaDescriptor:
    """Where one replica of an object is."""

    def __init__(self, tier: str, descriptor: Union[MemoryDescriptor, DiskDescriptor]) -> None:
        self.status, self._tier, self._descriptor = ReplicaStatus.COMPLETE, tier, descriptor

    def is_memory_replica(self) -> bool:
        """It is in memory."""
        return self._tier == "memory"

    def is_disk_replica(self) -> bool:
        """It is in a file of a shared file system."""
        return self._tier == "file"

    def is_local_disk_replica(self) -> bool:
        """It is on a disk of one machine."""
        return self._tier == "ssd"

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Of a memory replica only: RuntimeError otherwise."""
        if not isinstance(self._descriptor, MemoryDescriptor):
            raise RuntimeError("Expected MemoryDescriptor: this replica is on a disk")
        return self._descriptor

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Of a disk's or file's replica only: RuntimeError otherwise."""
        if not isinstance(self._descriptor, DiskDescriptor):
            raise RuntimeError("Expected DiskDescriptor: this replica is in memory")
        return self._descriptor


class MooncakeHostMemAllocator:
    """Memory by address, all zeroes, until it is freed."""

    def __init__(self) -> None:
        self._maps: Dict[int, mmap.mmap] = {}

    def alloc(self, size: int) -> int:
        """Address of `size` bytes; 0: there is no such memory."""
        try:
            memory = mmap.mmap(-1, size)
        except (OSError, ValueError, OverflowError):
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._maps[address] = memory
        return address

    def free(self, ptr: int) -> int:
        """0, or -1: nothing was allocated there."""
        memory = self._maps.pop(ptr, None)
        if memory is None:
            return -1
        memory.close()
        return 0
