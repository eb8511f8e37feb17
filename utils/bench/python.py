"""What the Python package costs beside libtarn: the same calls through the package, and of libtarn
with arrays that were made before.

    build/release/tarn-server --port 6479 --pool-size 2gb &
    python3 utils/bench/python.py [--url tarn://127.0.0.1:6479] [--transport shm] [--seconds 2]

One thread; gets of values that are there, puts that replace them. Both kinds of call take turns, so
that a machine that is busy with something else is so for both; the medians are shown."""

import argparse
import ctypes
import mmap
import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "utils", "python"))

import tarn  # noqa: E402 - the path comes first
from tarn._lib import lib  # noqa: E402
from tarn.batch import Batch  # noqa: E402
from tarn.memory import pin  # noqa: E402
from tarn.options import put_options  # noqa: E402

MAP_POPULATE = 0x8000  # of Linux; Python has it since 3.10
CASES = ((4096, 4096), (65536, 4096), (4 << 20, 16), (4 << 20, 1), (4096, 1))


def medians(calls, seconds):
    """Median time of each of these calls, which take turns for about so many seconds."""
    times = [[] for _ in calls]
    until = time.perf_counter() + seconds
    while len(times[0]) < 5 or time.perf_counter() < until:
        for call, mine in zip(calls, times):
            began = time.perf_counter()
            call()
            mine.append(time.perf_counter() - began)
    return [sorted(mine)[len(mine) // 2] for mine in times]


def case(client, base, size, n, seconds):
    """One line for put and one for get."""
    keys = [f"python:{size}:{i:032x}" for i in range(n)]
    addresses = [base + i * size for i in range(n)]
    handle, batch, options = (
        client._use(),
        Batch(keys, addresses, size),
        put_options(replace=True),
    )

    def put():
        assert not any(client.put_from_many(keys, addresses, size, replace=True))

    def get():
        assert client.get_into_many(keys, addresses, size) == [size] * n

    def native_put():
        assert lib.tarn_put_many(handle, batch.address, n, ctypes.byref(options), None) == 0

    def native_get():
        assert lib.tarn_get_many(handle, batch.address, n, None, None) == 0

    put()
    for name, package, native in (("put", put, native_put), ("get", get, native_get)):
        times = medians((package, native), seconds)
        rates = "  ".join(f"{n * size / t / 1e9:9.2f}" for t in times)
        more = (times[0] - times[1]) / n * 1e6
        print(
            f"{name:4} {size:8} {n:6}  {rates}   {times[0] / n * 1e6:10.2f}   {more:10.2f}   "
            f"{times[1] / times[0]:5.0%}"
        )
    client.remove_many(keys)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="tarn://127.0.0.1:6479")
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--seconds", type=float, default=2, help="for each line")
    options = parser.parse_args()
    memory = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_POPULATE)
    with tarn.Client(options.url, transport=options.transport) as client:
        print(
            "op       size   keys  package and libtarn, GB/s   us per key   more in Python   of "
            "libtarn's speed"
        )
        for size, n in CASES:
            case(client, pin(memory).address, size, n, options.seconds)


if __name__ == "__main__":
    main()
