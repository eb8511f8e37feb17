"""Between the caller's memory and the transport there is no copy: large values need no memory but
the caller's."""

import asyncio
import mmap
import os
import sys
import tracemalloc
import unittest

from harness import TarnTest

import tarn
from tarn.memory import pin

SIZE = 256 << 20
MAP_POPULATE = 0x8000  # of Linux; Python has it since 3.10
# What libtarn and Python may need besides, whatever the size of the value is: buffers of sockets,
# chunks being checked.
SPARE = 24 << 20


def status(name):
    """A figure of /proc/self/status, in bytes."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(name)) << 10


class Peak:
    """How much memory of its own the process needed at most, above what it had at the beginning."""

    def __enter__(self):
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")  # the peak begins anew
        self.before = status("VmRSS")
        tracemalloc.start()
        return self

    def __exit__(self, *exc):
        self.python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.resident = status("VmHWM") - self.before


@unittest.skipIf(os.environ.get("TARN_SANITIZER"), "sanitizers need memory of their own")
class Copies(TarnTest):
    pool = "320mb"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Pages that are there before anything is measured.
        cls.memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_POPULATE)
        cls.addClassCleanup(cls.memory.close)
        for at in range(0, SIZE, 1 << 20):
            cls.memory[at : at + 8] = at.to_bytes(8, "little")

    def check(self, peak):
        self.assertLess(peak.resident, SPARE)
        self.assertLess(peak.python, 1 << 20)

    def wipe(self):
        for at in range(0, SIZE, 1 << 20):
            self.memory[at : at + 8] = bytes(8)

    def marks(self):
        return [
            int.from_bytes(self.memory[at : at + 8], "little") for at in range(0, SIZE, 1 << 20)
        ]

    def test_put_and_get(self):
        client = self.client("?transport=tcp", timeout_ms=60000)
        at = pin(self.memory).address
        client.put("warm", b"x" * 1000)
        with Peak() as peak:
            self.assertTrue(client.put_from("large", at, SIZE))
        self.check(peak)
        self.wipe()
        with Peak() as peak:
            self.assertEqual(client.get_into("large", self.memory), SIZE)
        self.check(peak)
        self.assertEqual(self.marks(), list(range(0, SIZE, 1 << 20)))
        client.remove("large")
        # In pieces, as a batch, through a queue and from asyncio.
        n = 64
        keys, addresses = [f"part:{i}" for i in range(n)], [at + i * (SIZE // n) for i in range(n)]
        with Peak() as peak, client.queue() as queue:
            self.assertEqual(client.put_from_many(keys, addresses, SIZE // n), [0] * n)
            queue.get(keys, addresses, SIZE // n)
            self.assertEqual(queue.poll(timeout_ms=60000)[0].results, [SIZE // n] * n)
        self.check(peak)

        async def gets():
            async with tarn.AsyncClient(self.server.url, transport="tcp", timeout_ms=60000) as aio:
                return await aio.get_many_into(
                    [
                        (k, memoryview(self.memory)[i * 4 << 20 : (i + 1) * 4 << 20])
                        for i, k in enumerate(keys)
                    ]
                )

        self.wipe()
        with Peak() as peak:
            self.assertEqual(asyncio.run(gets()), [SIZE // n] * n)
        self.check(peak)
        self.assertEqual(self.marks(), list(range(0, SIZE, 1 << 20)))
        # The measure sees a copy where there is one.
        with Peak() as peak:
            self.assertEqual(len(client.get("part:0") or b""), SIZE // n)
        self.assertGreater(peak.resident, (SIZE // n) * 3 // 4)
        self.assertGreater(peak.python, SIZE // n)


if __name__ == "__main__":
    sys.exit(unittest.main())
