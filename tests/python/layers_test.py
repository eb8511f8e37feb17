"""Layers on their way from a prefill engine to a decode host, and what may befall them there."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time

from harness import ROOT, SLOW, Node, TarnTest, wait_until

import tarn
from tarn.keys import KeySpace
from tarn.layers import (
    LayerReader,
    LayersLost,
    LayerWriter,
    Stalled,
    chunk_keys,
    segments_of,
    whole_chunks,
)

KIB = 1024
LAYERS, CHUNKS = 6, 3


def block(chunk, layer, size=64 * KIB):
    """Bytes that only this block has."""
    seed = hashlib.sha256(b"%d %d" % (chunk, layer)).digest()
    return (seed * (size // len(seed) + 1))[:size]


def key_of(name):
    return lambda chunk, layer: f"{name}@{chunk}@l{layer}"


class Layers(TarnTest):
    """One server, whose own segment is the decode host's memory."""

    def setUp(self):
        self.name = self.id().rpartition(".")[2]
        self.key = key_of(self.name)
        # A server that is slow is none whose memory cannot be mapped.
        self.prefill, self.decode = (self.client(failover_ms=20000) for _ in range(2))

    def writer(self, **options):
        writer = LayerWriter(self.prefill, **options)
        self.addCleanup(writer.close)
        return writer

    def reader(self, **options):
        options.setdefault("stall_ms", 30_000)
        reader = LayerReader(self.decode, self.key, layers=LAYERS, chunks=CHUNKS, **options)
        self.addCleanup(reader.close)
        return reader

    def put(self, prompt, layer, chunks=range(CHUNKS)):
        return prompt.put(layer, chunks, [block(c, layer) for c in chunks])

    def test_layers_are_read_while_later_ones_are_computed(self):
        prompt = self.writer().prompt(self.key)
        places = {(c, layer): bytearray(64 * KIB) for c in range(CHUNKS) for layer in range(LAYERS)}
        reader = self.reader()
        reader.fetch(lambda chunk, layer: places[chunk, layer])
        for layer in range(LAYERS):
            self.assertEqual(reader.arrived, layer)
            self.put(prompt, layer)
            reader.wait(layer)
            for c in range(CHUNKS):
                self.assertEqual(places[c, layer], block(c, layer))
        report = prompt.finish()
        self.assertTrue(report.complete)
        self.assertEqual(
            (report.stored, report.bytes), (LAYERS * CHUNKS, LAYERS * CHUNKS * 64 * KIB)
        )
        times = reader.arrival_times
        self.assertEqual(times, sorted(times))
        self.assertEqual(whole_chunks(self.decode, self.key, CHUNKS, LAYERS), CHUNKS)

    def test_pieces_and_a_tail(self):
        """Keys and values of a layer lie apart in the engine, and so they do in the one that
        reads."""
        writer = self.writer()
        with writer.prompt(self.key) as prompt:
            for layer in range(LAYERS):
                whole = [block(c, layer) for c in range(CHUNKS)]
                prompt.put(layer, range(CHUNKS), [[b[: 10 * KIB], b[10 * KIB :]] for b in whole])
            prompt.put_tail(
                "tail of " + self.name, [block(99, layer, 5000) for layer in range(LAYERS)]
            )
        self.assertEqual(prompt.report.stored, LAYERS * CHUNKS + 1)
        halves = {}
        tail = [bytearray(5000) for _ in range(LAYERS)]
        with self.reader() as reader:
            reader.fetch(
                lambda c, layer: halves.setdefault(
                    (c, layer), [bytearray(32 * KIB), bytearray(32 * KIB)]
                ),
                tail=("tail of " + self.name, tail),
            )
            reader.wait_tail()
        for (c, layer), (first, second) in halves.items():
            self.assertEqual(first + second, block(c, layer))
        self.assertEqual(
            [bytes(t) for t in tail], [block(99, layer, 5000) for layer in range(LAYERS)]
        )
        with reader.view_tail("tail of " + self.name) as views:
            self.assertEqual(b"".join(views.parts[0]), b"".join(tail))

    def test_views_in_place(self):
        with self.writer().prompt(self.key) as prompt:
            for layer in range(LAYERS):
                self.put(prompt, layer)
        reader = self.reader()
        for layer in range(LAYERS):
            with reader.views(layer, lease_ms=5000) as views:
                self.assertEqual(views.in_place, CHUNKS)
                self.assertEqual(
                    [b"".join(p) for p in views.parts], [block(c, layer) for c in range(CHUNKS)]
                )
                self.assertLessEqual(views.valid_ms(), 5000)
                views.check()
                views.renew(9000)
                self.assertGreater(views.valid_ms(), 5000)
            self.assertRaises(tarn.Closed, views.check)
        self.assertEqual(self.decode.stats()["views_open"], 0)

    def test_a_lease_that_ends_in_use_is_told(self):
        with self.writer().prompt(self.key) as prompt:
            self.put(prompt, 0)
        with self.reader().views(0, lease_ms=3000) as views:
            wait_until(lambda: views.valid_ms() == 0)
            self.assertRaises(tarn.LeaseOver, views.check)
            self.assertRaises(tarn.LeaseOver, views.renew)

    def test_what_is_elsewhere_is_copied(self):
        with self.writer().prompt(self.key) as prompt:
            self.put(prompt, 0)
        self.decode = self.client("?transport=tcp")
        with self.reader().views(0) as views:
            self.assertEqual(views.in_place, 0)
            self.assertEqual(
                [b"".join(p) for p in views.parts], [block(c, 0) for c in range(CHUNKS)]
            )
            views.check()

    def test_views_wait_for_their_layer(self):
        prompt = self.writer().prompt(self.key)
        reader = self.reader()
        timer = threading.Timer(0.25, lambda: self.prefill.put(self.key(2, 0), block(2, 0)))
        self.put(prompt, 0, [0, 1])
        prompt.finish()
        timer.start()
        with reader.views(0) as views:
            self.assertEqual(len(views.parts), CHUNKS)
        timer.join()

    def test_a_prefill_that_dies(self):
        """Killed in the middle: no notice, but what it put is there, and the reader does not wait
        for ever."""
        program = (
            f"import os, signal, sys\nsys.path[:0] = [{os.path.join(ROOT, 'utils', 'python')!r}, "
            f"{os.path.dirname(__file__)!r}]\nimport tarn\n"
            "from layers_test import LayerWriter, block, key_of\n"
            f"writer = LayerWriter(tarn.Client({self.server.url!r}))\n"
            f"prompt = writer.prompt(key_of({self.name!r}), notice_key='notice')\n"
            "for layer in range(3): prompt.put(layer, range(3), [block(c, layer) for c in "
            "range(3)])\nprompt.put(3, [0], [block(0, 3)])\n"
            "while writer.pending: writer.poll(1000)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        places = {(c, layer): bytearray(64 * KIB) for c in range(CHUNKS) for layer in range(LAYERS)}
        reader = self.reader(notice_key="notice", stall_ms=5000)
        done = subprocess.run([sys.executable, "-c", program], timeout=60 * SLOW)
        self.assertEqual(done.returncode, -signal.SIGKILL)
        reader.fetch(lambda c, layer: places[c, layer])
        with self.assertRaises(LayersLost) as caught:
            reader.wait(LAYERS - 1)
        lost = caught.exception
        self.assertEqual((lost.layers, lost.missing, lost.status), (3, 2, tarn.Status.ETIMEOUT))
        self.assertIn("died", lost.reason)
        for layer in range(3):
            reader.wait(layer)  # counts, also now
            self.assertEqual(places[1, layer], block(1, layer))
        self.assertEqual(whole_chunks(self.decode, self.key, CHUNKS, LAYERS), 0)
        self.assertEqual(whole_chunks(self.decode, self.key, CHUNKS, 3), 3)
        with self.assertRaises(LayersLost) as caught:
            self.reader(stall_ms=4000).views(3)
        self.assertEqual(caught.exception.missing, 2)

    def test_a_prefill_that_gives_up_says_so(self):
        writer = self.writer()
        reader = self.reader(notice_key=self.name + "@failed", stall_ms=60000)
        reader.fetch(lambda c, layer: bytearray(64 * KIB))
        with self.assertRaises(ZeroDivisionError):
            with writer.prompt(self.key, notice_key=self.name + "@failed") as prompt:
                self.put(prompt, 0)
                self.put(prompt, 1)
                while writer.pending:
                    writer.poll(100)
                1 // 0
        began = time.monotonic()
        with self.assertRaises(LayersLost) as caught:
            reader.wait(LAYERS - 1)
        self.assertLess(time.monotonic() - began, 40)
        self.assertEqual(
            (caught.exception.layers, caught.exception.status), (2, tarn.Status.ECANCELED)
        )
        self.assertIn("ZeroDivisionError", caught.exception.reason)
        self.assertTrue(self.decode.exists(self.key(0, 1)))
        self.assertRaises(tarn.Closed, self.put, prompt, 2)

    def test_abort_takes_back_what_it_put(self):
        self.prefill.put(self.key(0, 0), block(0, 0))
        prompt = self.writer().prompt(self.key)
        self.put(prompt, 0)
        while prompt.writer.pending:
            prompt.writer.poll(100)
        prompt.abort(remove=True)
        self.assertEqual((prompt.report.stored, prompt.report.existed), (2, 1))
        self.assertEqual(
            [self.decode.exists(self.key(c, 0)) for c in range(CHUNKS)], [True, False, False]
        )

    def test_memory_is_not_free_before_its_put_has_ended(self):
        writer = self.writer(max_bytes=100 * KIB, stall_ms=50)
        prompt = writer.prompt(self.key)
        self.put(prompt, 0, [0])  # connects its lanes
        prompt.finish()
        prompt = writer.prompt(key_of(self.name + "+"))
        buffer, other, freed = bytearray(block(1, 1)), bytearray(10), []
        self.server.pause()
        try:
            ticket = prompt.put(1, [1], [buffer], release=lambda: freed.append(1))
            self.assertFalse(writer.free(ticket))
            self.assertTrue(writer.in_use(memoryview(buffer)[-1:]))
            self.assertFalse(writer.in_use(other))
            self.assertRaises(tarn.TimedOut, writer.wait_free, buffer, 50)
            self.assertRaises(tarn.TimedOut, writer.wait, ticket, 50)
            self.assertEqual(freed, [])
            with self.assertRaises(BufferError):
                buffer.extend(b"x")  # Python itself keeps it where it is
            with self.assertRaises(Stalled):
                self.put(prompt, 2, [0])
            self.assertEqual(writer.pending, 1)
        finally:
            self.server.resume()
        writer.wait_free(buffer)
        self.assertEqual(freed, [1])
        buffer[:] = bytes(len(buffer))
        self.assertTrue(writer.free(ticket))
        report = prompt.finish()
        self.assertEqual((report.stored, report.stalls), (1, 1))
        self.assertGreaterEqual(report.stalled_s, 0.05)
        self.assertEqual(self.decode.get(f"{self.name}+@1@l1"), block(1, 1))

    def test_a_release_that_raises(self):
        """It is the caller's to hear of it, and nothing else is lost for that."""
        writer, freed = self.writer(), []
        prompt = writer.prompt(self.key)

        def release(layer):
            freed.append(layer)
            if layer % 2:
                raise OSError(f"layer {layer}")

        self.server.pause()
        try:
            for layer in range(LAYERS):
                blocks = [block(c, layer) for c in range(CHUNKS)]
                prompt.put(layer, range(CHUNKS), blocks, release=lambda layer=layer: release(layer))
        finally:
            self.server.resume()
        raised = 0
        while writer.pending:
            try:
                writer.poll(1000)
            except OSError:
                raised += 1
        self.assertGreaterEqual(raised, 1)
        self.assertEqual(sorted(freed), list(range(LAYERS)))
        self.assertEqual(prompt.finish().stored, LAYERS * CHUNKS)

    def test_finish_gives_up_in_time(self):
        writer = self.writer()
        with writer.prompt(key_of(self.name + " before")) as prompt:
            self.put(prompt, 0)
        prompt = writer.prompt(self.key)
        self.server.pause()
        for layer in range(LAYERS):
            self.put(prompt, layer)
        resumed = threading.Event()

        def resume():
            try:
                wait_until(
                    lambda: prompt.report.skipped > 0, what="what has not started is cancelled"
                )
            finally:
                self.server.resume()
                resumed.set()

        threading.Thread(target=resume).start()
        report = prompt.finish(timeout_ms=200)
        self.assertTrue(resumed.wait(60))
        self.assertFalse(report.complete)
        self.assertGreater(report.skipped, 0)
        self.assertEqual(report.stored + report.skipped, LAYERS * CHUNKS)
        self.assertEqual(writer.pending, 0)
        self.assertRaises(tarn.Error, report.raise_for_failures)

    def test_closing_a_reader_ends_its_writing(self):
        places = {(c, layer): bytearray(64 * KIB) for c in range(CHUNKS) for layer in range(LAYERS)}
        reader = self.reader(stall_ms=60000)
        reader.fetch(lambda c, layer: places[c, layer])
        began = time.monotonic()
        reader.close()
        self.assertLess(time.monotonic() - began, 40)
        for c in range(CHUNKS):
            self.prefill.put(self.key(c, 0), block(c, 0))
        self.assertRaises(tarn.Cancelled, reader.wait, 0)
        self.assertTrue(all(not any(p) for p in places.values()))

    def test_another_layout_is_told(self):
        with self.writer().prompt(self.key) as prompt:
            self.put(prompt, 0)
        for size, says in ((128 * KIB, "65536 bytes"), (1 * KIB, "larger")):
            reader = self.reader()
            reader.fetch(lambda c, layer: bytearray(size))
            with self.assertRaises(tarn.InvalidArgument) as caught:
                reader.wait(0)
            self.assertIn(says, str(caught.exception))

    def test_two_prompts_at_a_time(self):
        writer = self.writer()
        one, two = writer.prompt(key_of(self.name + "1")), writer.prompt(key_of(self.name + "2"))
        for layer in range(LAYERS):
            self.put(one, layer)
            self.put(two, layer)
        one.abort()
        self.put(two, LAYERS)
        self.assertEqual(two.finish().stored, CHUNKS * (LAYERS + 1))
        self.assertEqual(one.report.stored + one.report.skipped, CHUNKS * LAYERS)

    def test_ranks_that_race(self):
        for _ in range(2):
            with self.writer().prompt(self.key) as prompt:
                self.put(prompt, 0)
        self.assertEqual((prompt.report.stored, prompt.report.existed), (0, CHUNKS))
        self.assertTrue(prompt.report.complete)

    def test_arguments(self):
        writer = self.writer()
        prompt = writer.prompt(self.key)
        self.assertRaises(tarn.InvalidArgument, prompt.put, 0, [0, 1], [b"x"])
        self.assertRaises(TypeError, prompt.put, 0, [0], [None])
        self.assertRaises(
            TypeError, LayerWriter(self.prefill, nonsense=1).prompt(self.key).put, 0, [0], [b"x"]
        )
        self.assertRaises(tarn.InvalidArgument, LayerWriter, self.prefill, max_pending=0)
        self.assertRaises(
            tarn.InvalidArgument, LayerReader, self.decode, self.key, layers=0, chunks=1
        )
        reader = self.reader()
        self.assertRaises(tarn.InvalidArgument, reader.wait, 0)
        self.assertRaises(tarn.InvalidArgument, reader.views, LAYERS)
        self.assertEqual(prompt.put(0, [], []), 0)

    def test_keys_of_a_key_space(self):
        space = KeySpace("llama", block_tokens=256)
        key = chunk_keys(space, [b"\1" * 32, b"\2" * 32])
        self.assertEqual(key(1, 7), space.key(b"\2" * 32, layer=7))
        self.assertNotEqual(key(0, 0), key(1, 0))


class FullPool(TarnTest):
    """Whoever reads is told at once, and the engine goes on computing."""

    pool = "16mb"
    server_args = ("--hard-pin-ratio", "1", "--hard-pin-user-ratio", "1")

    def test_a_full_pool(self):
        client = self.client()
        statuses = client.put_many([(f"pinned {i}", bytes(1 << 20)) for i in range(20)], pin="hard")
        self.assertIn(tarn.Status.ENOSPACE, statuses)
        writer = LayerWriter(client)
        self.addCleanup(writer.close)
        reader = LayerReader(
            self.client(),
            key_of("full"),
            layers=LAYERS,
            chunks=CHUNKS,
            notice_key="full@failed",
            stall_ms=60000,
        )
        self.addCleanup(reader.close)
        reader.fetch(lambda c, layer: bytearray(1 << 20))
        freed = []
        prompt = writer.prompt(key_of("full"), notice_key="full@failed")
        for layer in range(LAYERS):
            blocks = [block(c, layer, 1 << 20) for c in range(CHUNKS)]
            prompt.put(layer, range(CHUNKS), blocks, release=lambda: freed.append(1))
            while writer.pending:
                writer.poll(100)
        report = prompt.finish()
        self.assertTrue(prompt.broken)
        self.assertEqual(report.failures[0].status, tarn.Status.ENOSPACE)
        self.assertEqual(report.failures[0].layer, 0)
        self.assertEqual(report.skipped, (LAYERS - 1) * CHUNKS)
        self.assertEqual(len(freed), LAYERS)
        with self.assertRaises(tarn.Error) as caught:
            report.raise_for_failures()
        self.assertIn("ENOSPACE", str(caught.exception))
        with self.assertRaises(LayersLost) as caught:
            reader.wait(0)
        self.assertIn("ENOSPACE", caught.exception.reason)


class DecodeNode(TarnTest):
    """The decode host is a node beside the server."""

    pool = "64mb"
    server_args = ("--node-timeout", "10000")

    def setUp(self):
        self.node = Node(self.server, name="decode-1")
        self.addCleanup(self.node.stop)

    def used(self, client, segment):
        lines = client.command("SEGMENT", "INFO", segment).split("\n")
        return int(lines[lines.index("used") + 1])

    def test_bytes_go_to_the_decode_node(self):
        client = self.client()
        names = segments_of(client, node="decode-1")
        self.assertEqual(names, ["decode-1.0"])
        self.assertEqual(segments_of(client, node=""), ["local"])
        machine = client.command("SEGMENT", "INFO", "local").split("\n")
        machine = machine[machine.index("host") + 1]
        self.assertEqual(sorted(segments_of(client, machine=machine)), ["decode-1.0", "local"])
        for wrong in (
            {"node": "nobody"},
            {"machine": "nowhere"},
            {"node": "decode-1", "tier": "ssd"},
        ):
            self.assertRaises(tarn.NotFound, segments_of, client, **wrong)
        self.assertRaises(tarn.InvalidArgument, segments_of, client)
        before = self.used(client, "local")
        with LayerWriter(client, prefer=names) as writer:
            with writer.prompt(key_of("here")) as prompt:
                for layer in range(LAYERS):
                    prompt.put(layer, range(CHUNKS), [block(c, layer) for c in range(CHUNKS)])
        self.assertEqual(self.used(client, "decode-1.0"), LAYERS * CHUNKS * 64 * KIB)
        self.assertEqual(self.used(client, "local"), before)

    def test_a_decode_node_that_is_killed(self):
        client, decode = self.client("?failover_ms=20000"), self.client("?failover_ms=20000")
        writer = LayerWriter(client, prefer=segments_of(client, node="decode-1"))
        self.addCleanup(writer.close)
        prompt = writer.prompt(key_of("killed"))
        for layer in range(2):
            prompt.put(layer, range(CHUNKS), [block(c, layer) for c in range(CHUNKS)])
        while writer.pending:
            writer.poll(100)
        reader = LayerReader(decode, key_of("killed"), layers=LAYERS, chunks=CHUNKS, stall_ms=5000)
        self.addCleanup(reader.close)
        views = reader.views(0)
        self.assertEqual(views.in_place, CHUNKS)
        self.node.kill()
        self.assertEqual([b"".join(p) for p in views.parts], [block(c, 0) for c in range(CHUNKS)])
        try:
            views.check()
        except tarn.Error as e:
            self.assertIn(e.status, (tarn.Status.ESTALE, tarn.Status.ELEASE))
        views.release()
        wait_until(lambda: not decode.exists("killed@0@l0"), 60, "the server notices")
        for layer in range(2, LAYERS):
            prompt.put(layer, range(CHUNKS), [block(c, layer) for c in range(CHUNKS)])
        report = prompt.finish()
        self.assertTrue(report.complete, report)  # what came later went to where there was room
        self.assertEqual(report.stored, LAYERS * CHUNKS)
        with self.assertRaises(LayersLost) as caught:
            reader.views(0)
        self.assertEqual(caught.exception.layers, 0)
        with reader.views(LAYERS - 1) as views:
            self.assertEqual(
                [b"".join(p) for p in views.parts], [block(c, LAYERS - 1) for c in range(CHUNKS)]
            )
