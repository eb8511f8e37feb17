"""The other process of transfer_test.py: started with the name of its part and an argument."""

import hashlib
import os
import sys

if __name__ == "__main__":
    sys.path[:0] = os.environ["TARN_TEST_PATH"].split(os.pathsep)

from tarn.transfer import READ, End

BLOCK = 64 << 10


def pattern(size, seed):
    """Bytes that are not the same in any two blocks."""
    return hashlib.shake_128(b"%d" % seed).digest(size)


def prefill(master):
    """Owns blocks that the other side pulls; says where it is, then lives until the label is
    over."""
    with End("prefill-0" if master else None, master=master or None) as end:
        cache = end.alloc(16 * BLOCK, rights=READ, name="cache")
        cache.view[:] = pattern(16 * BLOCK, 7)
        own = end.register(bytearray(pattern(BLOCK, 8)), rights=READ)
        end.ready("request-7", b"%d %d %d" % (cache.address, cache.region, own))
        print(end.endpoint, flush=True)
        event = end.next_event(60_000)
        print(event.kind.name, event.label, event.data.decode(), event.peer, flush=True)


def writer(endpoint):
    """Pushes a block into the other side's memory and says so; then waits to be killed."""
    with End() as end, end.connect(endpoint) as peer:
        info = peer.wait_ready("room", 60_000)
        block = bytearray(pattern(BLOCK, 9))
        peer.write(block, int(info))
        peer.done("room", b"pushed")
        print("pushed", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    {"prefill": prefill, "writer": writer}[sys.argv[1]](sys.argv[2])
