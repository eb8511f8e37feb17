"""tarn.transfer: blocks between two programs, the other one being transfer_part.py."""

import asyncio
import select
import threading
import time
import unittest

from harness import Part, Server, TarnTest, wait_until

import tarn
from tarn.transfer import READ, WRITE, BatchState, End, EventKind, Tasks
from transfer_part import BLOCK, pattern


class PullTest(TarnTest):
    """Reads from another process."""

    def pull(self, end, where, part):
        peer = end.connect(where, 30_000)
        with peer:
            address, region, own = (
                int(word) for word in peer.wait_ready("request-7", 30_000).split()
            )
            regions = {r.id: r for r in peer.regions()}
            self.assertEqual(regions[region].name, "cache")
            self.assertEqual(
                (regions[region].address, regions[region].length), (address, 16 * BLOCK)
            )
            self.assertEqual(regions[region].rights, READ)
            expected = pattern(16 * BLOCK, 7)
            local = bytearray(16 * BLOCK)
            theirs, ours = [5, 6, 7, 12, 13], [2, 3, 4, 8, 9]
            tasks = Tasks.merged(READ, local, ours, theirs, BLOCK, region=region)
            self.assertEqual(len(tasks), 2)
            with peer.submit(tasks) as batch:
                self.assertTrue(batch.wait(30_000))
                info = batch.info()
                self.assertEqual(info["state"], BatchState.OVER)
                self.assertEqual(info["bytes"], 5 * BLOCK)
                self.assertEqual([r.done for r in batch.results()], [3 * BLOCK, 2 * BLOCK])
            for i, j in zip(ours, theirs):
                self.assertEqual(
                    local[i * BLOCK : (i + 1) * BLOCK], expected[j * BLOCK : (j + 1) * BLOCK]
                )
            self.assertEqual(sum(local[: 2 * BLOCK]), 0, "what was not asked for stays as it was")
            one = bytearray(BLOCK)
            self.assertEqual(peer.read(one, 0, region=own), BLOCK)
            self.assertEqual(one, pattern(BLOCK, 8))
            self.assertEqual(peer.read(one, address + BLOCK), BLOCK)
            self.assertEqual(one, expected[BLOCK : 2 * BLOCK])
            with self.assertRaises(tarn.PermissionDenied):
                peer.write(one, address)
            with self.assertRaises(tarn.Error):
                peer.read(one, address + 16 * BLOCK - 1)
            peer.done("request-7", b"thanks")
        self.assertEqual(
            part.line(), "DONE request-7 thanks" + (" decode-0" if where == "prefill-0" else "")
        )
        return info

    def test_by_endpoint(self):
        with Part("transfer_part.py", "prefill", "") as part, End() as end:
            self.assertIn(self.pull(end, part.line(), part)["transport"], ("shm", "tcp"))
            self.assertGreaterEqual(end.stats()["bytes_read"], 7 * BLOCK)

    def test_by_tcp(self):
        with Part("transfer_part.py", "prefill", "") as part, End(transport="tcp") as end:
            self.assertEqual(self.pull(end, part.line(), part)["transport"], "tcp")

    def test_by_name(self):
        with Server() as server, Part("transfer_part.py", "prefill", server.url) as part, End(
            "decode-0", master=server.url
        ) as end:
            part.line()
            self.pull(end, "prefill-0", part)
            with self.assertRaises(tarn.NotFound):
                end.connect("nobody", 5000)


class PushTest(TarnTest):
    """Another process writes here."""

    def test_push_and_loss(self):
        with End() as end:
            cache = end.alloc(BLOCK, rights=WRITE)
            end.ready("room", b"%d" % cache.address)
            with Part("transfer_part.py", "writer", end.endpoint) as part:
                self.assertEqual(part.line(), "pushed")
                ready = select.select([end], [], [], 60)[0]
                self.assertEqual(ready, [end])
                event = end.next_event()
                self.assertEqual(
                    (event.kind, event.label, event.data), (EventKind.DONE, "room", b"pushed")
                )
                self.assertEqual(bytes(cache.view), pattern(BLOCK, 9))
                self.assertIsNone(end.next_event())
            end.unregister(cache)

    def test_peer_that_dies_gives_up(self):
        with End() as end:
            room = end.alloc(BLOCK, rights=WRITE)
            end.ready("room", b"%d" % room.address, peers=2)
            with Part("transfer_part.py", "writer", end.endpoint) as part:
                self.assertEqual(part.line(), "pushed")
                self.assertEqual(end.next_event(30_000).kind, EventKind.DONE)
            end.abort("room", "no longer")
            self.assertEqual(end.next_event(30_000).kind, EventKind.ABORTED)


class LocalTest(TarnTest):
    """Two ends in this process."""

    def setUp(self):
        self.owner, self.user = End(), End(timeout_ms=30_000)
        self.addCleanup(self.owner.close)
        self.addCleanup(self.user.close)

    def connect(self):
        peer = self.user.connect(self.owner.endpoint)
        self.addCleanup(peer.close)
        return peer

    def test_messages(self):
        self.connect().notify(b"a\0b")
        event = self.owner.next_event(30_000)
        self.assertEqual((event.kind, event.data), (EventKind.MESSAGE, b"a\0b"))

    def test_abort_reaches_who_waits(self):
        peer, got = self.connect(), []

        def wait():
            try:
                peer.wait_ready("never", 30_000)
            except tarn.Cancelled as e:
                got.append(str(e))

        thread = threading.Thread(target=wait)
        thread.start()
        while not got:
            self.owner.abort("never", "out of blocks")
            time.sleep(0.01)
        thread.join()
        self.assertIn("out of blocks", got[0])
        self.assertIsNone(peer.wait_ready("later", 20))

    def test_give_up(self):
        peer = self.connect()
        self.owner.ready("7", b"")
        self.assertEqual(peer.wait_ready("7", 30_000), b"")
        peer.give_up("7", "changed my mind")
        event = self.owner.next_event(30_000)
        self.assertEqual((event.kind, event.data), (EventKind.GAVE_UP, b"changed my mind"))
        with self.assertRaises(tarn.Exists):
            self.owner.ready("8")
            self.owner.ready("8")

    def test_secrets(self):
        with self.assertRaises(tarn.PermissionDenied):
            End(bind=["0.0.0.0"])
        with End(secret="correct horse") as end:
            with self.assertRaises(tarn.PermissionDenied):
                self.user.connect(end.endpoint)
            with End(secret="correct horse") as friend:
                friend.connect(end.endpoint).close()

    def test_arguments(self):
        with self.assertRaises(TypeError):
            End(speed=9)
        with self.assertRaises(tarn.InvalidArgument):
            Tasks(READ, [1], [1, 2], [3])
        with self.assertRaises(tarn.InvalidArgument):
            Tasks(READ, [-1], [1], [3])
        with self.assertRaises(tarn.InvalidArgument):
            Tasks(3, [1], [1], [3])
        with self.assertRaises(tarn.InvalidArgument):
            Tasks.merged(READ, bytearray(BLOCK), [1], [1], BLOCK)
        memory = bytearray(BLOCK)
        self.owner.register(memory)
        with self.assertRaises(tarn.Exists):
            self.owner.register(memory)
        with self.assertRaises(BufferError):
            memory.extend(b"it is pinned")
        self.owner.unregister(memory)
        memory.extend(b"and free again")
        with self.assertRaises(tarn.NotFound):
            self.owner.unregister(memory)

    def test_closed(self):
        peer = self.connect()
        peer.close()
        peer.close()
        with self.assertRaises(tarn.Closed):
            peer.regions()
        self.assertTrue(peer.closed)

    def test_memory_outlives_nothing_that_points_into_it(self):
        end = End()
        memory = end.alloc(BLOCK)
        address = memory.address
        part = memory.view[10:20]
        for refused in (lambda: end.unregister(memory), lambda: end.unregister(address), end.close):
            with self.assertRaisesRegex(tarn.InvalidArgument, "let go"):
                refused()
        memory.view[:10] = b"still here"
        del memory
        with self.assertRaises(tarn.InvalidArgument):
            end.close()
        part[:] = b"0123456789"
        del part
        end.unregister(address)
        memory = end.alloc(BLOCK)
        end.close()
        with self.assertRaises(ValueError):
            memory.view[0]

    def test_what_is_forgotten_is_closed(self):
        before = self.owner.stats()["peers_in"]
        peer = self.user.connect(self.owner.endpoint)
        self.assertEqual(self.owner.stats()["peers_in"], before + 1)
        del peer
        wait_until(lambda: self.owner.stats()["peers_in"] == before, what="the peer's end")
        view = End().alloc(BLOCK).view
        view[:5] = b"alive"  # the end is, too
        self.assertEqual(bytes(view[:5]), b"alive")

    def test_broken_peer_stays_broken(self):
        end = End()
        peer = self.user.connect(end.endpoint)
        self.addCleanup(peer.close)
        memory = end.alloc(BLOCK)
        address = memory.address
        end.close()
        with self.assertRaises(tarn.Error):
            peer.read(bytearray(BLOCK), address)

    def test_asyncio(self):
        memory = self.owner.alloc(8 * BLOCK)
        memory.view[:] = pattern(8 * BLOCK, 3)
        local = bytearray(8 * BLOCK)

        async def both():
            peer = await self.user.connect_async(self.owner.endpoint)
            waiting = asyncio.ensure_future(peer.wait_ready_async("a", 30_000))
            await asyncio.sleep(0.02)
            self.assertFalse(waiting.done(), "the loop goes on while it waits")
            self.owner.ready("a", b"info")
            self.assertEqual(await waiting, b"info")
            tasks = Tasks.merged(READ, local, range(8), range(8), BLOCK, region=memory.region)
            self.assertEqual(await peer.run_async(tasks, done="a"), 8 * BLOCK)
            event = await self.owner.next_event_async(30_000)
            self.assertEqual(event.kind, EventKind.DONE)
            batch = peer.submit(
                Tasks.merged(READ, local, range(8), range(8), BLOCK, region=memory.region)
            )
            waiting = asyncio.ensure_future(batch.wait_async())
            await asyncio.sleep(0)
            waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError:
                pass
            self.assertEqual(batch.info()["state"], BatchState.OVER)
            batch.release()
            peer.close()

        asyncio.run(both())
        self.assertEqual(local, pattern(8 * BLOCK, 3))

    def test_failed_write_says_if_it_is_settled(self):
        memory = self.owner.alloc(BLOCK)
        peer = self.connect()
        local = bytearray(BLOCK)
        tasks = Tasks(
            WRITE, [tarn.memory.pin(local).address] * 2, [memory.address, 4096], [BLOCK, BLOCK]
        )
        with peer.submit(tasks) as batch:
            with self.assertRaises(tarn.NotFound):
                batch.wait(30_000)
            results = batch.results()
        self.assertEqual([r.status for r in results], [0, tarn.Status.ENOTFOUND])
        self.assertEqual([r.done for r in results], [BLOCK, 0])
        self.assertTrue(results[1].settled)


if __name__ == "__main__":
    unittest.main()
