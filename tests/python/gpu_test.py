"""Round trips between memory of a GPU and the pool, and how fast they are beside plain copies.

`make test-gpu` runs them on a machine with a GPU; torch is not needed. Elsewhere they run against
the stand-in for CUDA's driver (fake_cuda.c), which shows that the code does what it should, and
nothing of the speed."""

import contextlib
import ctypes
import mmap
import os
import time
import unittest

import cuda_test
from harness import TarnTest
from layouts import LAYOUTS, Prompt

from tarn.cuda import Driver, Pinner, why_not

MIB = 1 << 20


class Device:
    """Memory of a device, besides what tarn.cuda needs of the driver."""

    def __init__(self, driver, **options):
        self.driver, self.pinner = driver, Pinner(driver=driver, **options)
        for name, arguments in (
            ("cuMemAlloc_v2", [ctypes.c_void_p, ctypes.c_size_t]),
            ("cuMemFree_v2", [ctypes.c_uint64]),
            ("cuDeviceGetName", [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
        ):
            getattr(driver._library, name).argtypes = arguments

    @property
    def name(self):
        words = ctypes.create_string_buffer(128)
        self.driver.call("cuDeviceGetName", words, len(words), self.pinner.device)
        return words.value.decode()

    @contextlib.contextmanager
    def memory(self, size):
        """So many bytes: their address."""
        at = ctypes.c_uint64()
        with self.pinner._current():
            self.driver.call("cuMemAlloc_v2", ctypes.byref(at), size)
        try:
            yield at.value
        finally:
            with self.pinner._current():
                self.driver.call("cuMemFree_v2", at)

    def write(self, at, data):
        self.pinner.to_device(at, data)
        self.pinner.synchronize()

    def read(self, at, size):
        data = bytearray(size)
        self.pinner.from_device(data, at)
        self.pinner.synchronize()
        return bytes(data)

    @contextlib.contextmanager
    def pinned(self, size):
        """Host memory that the driver has pinned: (the memory, its address)."""
        with contextlib.closing(mmap.mmap(-1, size)) as memory:
            self.pinner.register(memory)
            held = (ctypes.c_char * size).from_buffer(memory)
            try:
                yield memory, ctypes.addressof(held)
            finally:
                self.pinner.unregister(held)
                del held


class RoundTrips:
    """With the device that `device()` makes."""

    pool = "256mb"
    big, rounds = 4 * MIB, 1

    def setUp(self):
        super().setUp()
        self.pool_client = self.client()
        self.dev = self.device()
        self.addCleanup(self.dev.pinner.close)

    def parts(self, layout, prompt):
        return [(g, s, end) for g, s in layout.shards() for end in layout.stored(g, len(prompt))]

    def save(self, layout, prompt):
        """From the device into pinned memory, from there into the pool."""
        parts = self.parts(layout, prompt)
        values = [layout.value(prompt, *part) for part in parts]
        sizes = [len(value) for value in values]
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        with self.dev.memory(sum(sizes)) as at, self.dev.pinned(sum(sizes)) as (memory, address):
            self.dev.write(at, b"".join(values))
            self.dev.pinner.from_device(memory, at, stream=0)
            self.dev.pinner.synchronize()
            statuses = self.pool_client.put_from_many(
                [layout.key(prompt, *part) for part in parts],
                [address + offset for offset in offsets],
                sizes,
                replace=True,
            )
        self.assertEqual(set(statuses), {0})

    def found(self, layout, prompt):
        """(group, shard, end) of what is read for the longest boundary."""
        found = self.pool_client.kv_prefix(
            prompt.hashes(layout.unit), layout.kv_groups(), unit=layout.unit, align=layout.align,
            lease_ms=60_000,
        )  # fmt: skip
        self.assertGreater(found.tokens, 0, layout.name)
        return [
            (g, s, end)
            for (g, s), said in zip(layout.shards(), found.parts)
            for end in said.ends(layout.groups[g].block)
        ]

    def test_layouts_from_the_pool_s_own_memory(self):
        """Pinned, and read by the device itself."""
        prompt = Prompt.drawn("gpu", 1100)
        for layout in LAYOUTS:
            self.save(layout, prompt)
            for part in self.found(layout, prompt):
                right = layout.value(prompt, *part)
                with self.dev.memory(len(right)) as at:
                    with self.pool_client.view(layout.key(prompt, *part), lease_ms=60_000) as view:
                        with self.dev.pinner.pin(view) as pinned:
                            self.assertTrue(pinned.pinned, pinned.why)
                            pinned.copy_to(at)
                            pinned.finish()
                    self.assertTrue(self.dev.read(at, len(right)) == right, (layout.name, part))

    def test_layouts_by_way_of_pinned_memory(self):
        """As connectors do it whose cache the CPU does not see."""
        prompt = Prompt.drawn("gpu", 1100)
        for layout in LAYOUTS:
            self.save(layout, prompt)
            parts = self.found(layout, prompt)
            right = [layout.value(prompt, *part) for part in parts]
            sizes = [len(value) for value in right]
            total = sum(sizes)
            with self.dev.memory(total) as at, self.dev.pinned(total) as (memory, address):
                got = self.pool_client.get_into_many(
                    [layout.key(prompt, *part) for part in parts],
                    [address + sum(sizes[:i]) for i in range(len(sizes))],
                    sizes,
                )
                self.assertEqual(list(got), sizes)
                self.dev.write(at, memory)
                self.assertTrue(self.dev.read(at, total) == b"".join(right), layout.name)

    def timed(self, way, copy):
        """Says GB/s, the best of some rounds."""
        copy()
        best = float("inf")
        for _ in range(self.rounds):
            start = time.perf_counter()
            copy()
            best = min(best, time.perf_counter() - start)
        print(f"# {way:52} {self.big / best / 1e9:7.2f} GB/s", flush=True)

    def test_bandwidths(self):
        """Of one object, beside the driver's own copies of as many bytes."""
        dev, client, data = self.dev, self.pool_client, os.urandom(self.big)
        print(f"# {dev.name}, {self.big // MIB} MiB")
        client.put("big", data)
        with contextlib.ExitStack() as stack:
            at = stack.enter_context(dev.memory(self.big))
            memory, address = stack.enter_context(dev.pinned(self.big))
            view = stack.enter_context(client.view("big", lease_ms=600_000))
            self.timed("copy to the device, ordinary memory", lambda: dev.write(at, data))
            self.timed("copy to the device, pinned memory", lambda: dev.write(at, memory))
            pinned = stack.enter_context(dev.pinner.pin(view))
            self.assertTrue(pinned.pinned, pinned.why)

            def in_place():
                pinned.copy_to(at)
                pinned.finish()

            def by_way():
                self.assertEqual(client.get_into_many(["big"], [address], [self.big])[0], self.big)
                dev.write(at, memory)

            def out():
                dev.pinner.from_device(memory, at)
                dev.pinner.synchronize()

            def save():
                out()
                client.put_from("saved", address, self.big, replace=True)

            self.timed("pool to the device, its memory pinned", in_place)
            self.assertTrue(dev.read(at, self.big) == data)
            self.timed("pool to the device, by way of pinned memory", by_way)
            self.timed("copy from the device, pinned memory", out)
            self.timed("device to the pool, by way of pinned memory", save)
        self.assertTrue(client.get("saved") == data)


@unittest.skipIf(why_not(), why_not())
class OnAGpu(RoundTrips, TarnTest):
    pool = "4gb"
    big, rounds = 512 * MIB, 5

    def device(self):
        return Device(Driver())


class OnAStandIn(RoundTrips, cuda_test.WithStandIn):
    def device(self):
        return Device(Driver(self.path))
