"""The other process of mooncake_engine_test.py: a program that was written for Mooncake's engine,
with memory for others."""

import ctypes
import os
import sys

if __name__ == "__main__":
    sys.path[:0] = os.environ["TARN_TEST_PATH"].split(os.pathsep)

from mooncake.engine import TransferEngine

SIZE = 1 << 20


def main(hostname, metadata, protocol):
    """Says its name, where its managed and its own memory are; then does what it is told, a word a
    line."""
    engine = TransferEngine()
    if engine.initialize(hostname, metadata, protocol, "") != 0:
        print("failed", flush=True)
        return
    session = (
        hostname
        if metadata != "P2PHANDSHAKE"
        else f"{hostname.split(':')[0]}:{engine.get_rpc_port()}"
    )
    managed = engine.allocate_managed_buffer(SIZE)
    own = (ctypes.c_ubyte * SIZE)()
    address = ctypes.addressof(own)
    assert engine.register_memory(address, SIZE) == 0
    print(session, managed, address, engine.get_first_buffer_address(session), flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "sum":
            where = managed if rest[0] == "managed" else address
            print(sum(engine.read_bytes_from_buffer(where, SIZE)), flush=True)
        elif word == "fill":
            ctypes.memset(managed if rest[0] == "managed" else address, int(rest[1]), SIZE)
            print("filled", flush=True)
        elif word == "notifies":
            print(" ".join(f"{n.name}={n.msg}" for n in engine.get_notifies()) or "-", flush=True)
        elif word == "unregister":
            print(engine.unregister_memory(address), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
