"""What the tests of mooncake.store on tarn share: a server and a store, and bytes to put."""

import ctypes
import os

from harness import Server, TarnTest

from mooncake.store import MooncakeDistributedStore

# A machine that is busy with other tests answers late.
os.environ.setdefault("TARN_LOOKUP_TIMEOUT_MS", "20000")

KIB, MIB = 1 << 10, 1 << 20
MISSING, INVALID, NO_SPACE, NOT_SUPPORTED = -704, -600, -200, -1012


class Memory:
    """Bytes with an address."""

    def __init__(self, size, fill=b""):
        self.bytes = (ctypes.c_ubyte * size)()
        self.address, self.size = ctypes.addressof(self.bytes), size
        ctypes.memmove(self.address, fill, len(fill))

    def __getitem__(self, where):
        return bytes(self.bytes[where])


def block(i, size):
    """Bytes that belong to number i."""
    return bytes((i * 7 + j * 13) % 251 for j in range(256)) * (size // 256) + b"\x55" * (
        size % 256
    )


def of(server):
    """host:port of a server, as engines write it."""
    return f"127.0.0.1:{server.port}"


class StoreTest(TarnTest):
    """One server, and a store that lends nothing."""

    POOL = "64mb"

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.POOL)
        cls.addClassCleanup(cls.server.stop)

    def open(self, segment=0, server=None, **options):
        store = MooncakeDistributedStore()
        arguments = dict(
            local_hostname="localhost",
            metadata_server="P2PHANDSHAKE",
            global_segment_size=segment,
            local_buffer_size=MIB,
            protocol="tcp",
            rdma_devices="",
            master_server_addr=of(server or self.server),
        )
        arguments.update(options)
        self.assertEqual(store.setup(**arguments), 0)
        self.addCleanup(store.close)
        return store

    def setUp(self):
        self.store = self.open()
        self.store.remove_all()
