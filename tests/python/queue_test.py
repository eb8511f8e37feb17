"""Queue: batches in the background, completions, cancelling, closing; who owns the memory
meanwhile."""

import gc
import select
import signal
import sys
import threading
import time
import unittest
import weakref

from harness import TarnTest, wait_until

import tarn
from tarn.memory import pin


class Keep(bytearray):
    """A bytearray that one can watch going away."""

    __slots__ = ("__weakref__",)


class Queues(TarnTest):
    def take(self, queue, n, seconds=60):
        """n completions, in any order."""
        done, until = [], time.monotonic() + seconds
        while len(done) < n and time.monotonic() < until:
            done += queue.poll(timeout_ms=1000)
        self.assertEqual(len(done), n)
        return done

    def test_all_operations(self):
        client = self.client()
        source, target = bytearray(range(256)) * 40, bytearray(10240)
        with client.queue() as queue:
            keys = [f"q{i}" for i in range(10)]
            at = [pin(source).address + 1024 * i for i in range(10)]
            to = [pin(target).address + 1024 * i for i in range(10)]
            number = queue.put(keys, at, 1024, user="put", replicas=1)
            self.assertEqual(queue.pending, 1)
            (done,) = self.take(queue, 1)
            self.assertEqual(done, (number, "put", 0, [0] * 10, 10, "put"))
            queue.put(keys[:2], at[:2], [1024, 1024])
            self.assertEqual(self.take(queue, 1)[0].results, [tarn.Status.EEXISTS] * 2)
            queue.get(keys[:4] + ["none"], to[:4] + [to[4]], 1024, {"any": "thing"})
            (done,) = self.take(queue, 1)
            self.assertEqual(
                (done.results, done.done, done.user), ([1024] * 4 + [-9], 4, {"any": "thing"})
            )
            self.assertEqual(target[:4096], source[:4096])
            queue.get(keys[5:6], [[to[5], to[5] + 10]], [[10, 20]], offsets=[100], wants=[30])
            self.assertEqual(self.take(queue, 1)[0].results, [30])
            self.assertEqual(target[5120:5150], source[5220:5250])
            queue.exists(keys + ["none"])
            self.assertEqual(self.take(queue, 1)[0].results, [0] * 10 + [-9])
            queue.remove(["none"] + keys)
            (done,) = self.take(queue, 1)
            self.assertEqual((done.op, done.status, done.done), ("remove", 0, 10))
            self.assertEqual(queue.pending, 0)
            self.assertEqual(queue.poll(), [])
            began = time.monotonic()
            self.assertEqual(queue.poll(timeout_ms=300), [])
            self.assertGreater(time.monotonic() - began, 0.25)

    def test_file_descriptor(self):
        client = self.client()
        with client.queue() as queue:
            self.assertEqual(select.select([queue], [], [], 0)[0], [])
            queue.exists(["a"])
            self.assertEqual(select.select([queue.fd], [], [], 20)[0], [queue.fd])
            self.take(queue, 1)
            self.assertEqual(select.select([queue], [], [], 0)[0], [])

    def test_capacity(self):
        client = self.client("?workers=1")
        with client.queue(4) as queue:
            ids = [queue.exists([f"{i}"]) for i in range(4)]
            with self.assertRaisesRegex(tarn.QueueFull, "take completions"):
                queue.exists(["one more"])
            self.assertEqual(queue.pending, 4)
            self.assertEqual(sorted(c.id for c in self.take(queue, 4)), ids)
            queue.exists(["one more"])
            self.take(queue, 1)
        for wrong in (0, 65537, "4"):
            with self.assertRaises(tarn.InvalidArgument):
                client.queue(wrong)

    def test_refused_submissions_leave_nothing(self):
        client = self.client()
        with client.queue() as queue:
            for call in (
                lambda: queue.exists(["k" * 1025]),
                lambda: queue.get(["k"], [0], [5]),
                lambda: queue.get(["k"], [4096, 4096], [5, 5]),
                lambda: queue.put(["k"], [4096], [5], pin="loose"),
                lambda: queue.poll(0),
            ):
                with self.assertRaises(tarn.InvalidArgument):
                    call()
            with self.assertRaises(TypeError):
                queue.put(["k"], [4096], [5], nonsense=1)
            self.assertEqual(queue.pending, 0)

    def test_cancel(self):
        client = self.client("?workers=1")
        memory = bytearray(100)
        with client.queue() as queue:
            # The only worker waits; what comes behind it has not begun.
            first = queue.get(["late"], [pin(memory).address], [100], wait_ms=60000)
            second = queue.get(["late"], [pin(memory).address], [100], user="second")
            self.waiting()
            self.assertFalse(queue.cancel(first))
            self.assertTrue(queue.cancel(second))
            self.assertFalse(queue.cancel(12345))
            self.client().put("late", b"x" * 70)
            done = {c.id: c for c in self.take(queue, 2)}
            self.assertEqual((done[first].status, done[first].results), (0, [70]))
            self.assertEqual(
                (done[second].status, done[second].results), (tarn.Status.ECANCELED, [-25])
            )

    def test_memory_is_kept_until_taken_out(self):
        client = self.client()
        memory = Keep(b"x" * 5000)
        watch = weakref.ref(memory)
        queue = client.queue()
        queue.put(
            ["kept"], [pin(memory).address], [5000], keep=memory, group="some group", prefer=()
        )
        del memory
        gc.collect()
        select.select([queue], [], [], 20)
        self.assertIsNotNone(watch())
        self.take(queue, 1)
        gc.collect()
        self.assertIsNone(watch())
        self.assertEqual(client.get("kept"), b"x" * 5000)
        queue.close()

    def test_close_cancels_and_waits(self):
        client = self.client("?workers=1")
        memory = Keep(100)
        watch = weakref.ref(memory)
        queue = client.queue()
        queue.get(["last"], [pin(memory).address], [100], "running", keep=memory, wait_ms=60000)
        for i in range(5):
            queue.get(["never"], [pin(memory).address], [100], i, keep=memory, wait_ms=60000)
        del memory
        self.waiting()
        dropped = []
        closing = threading.Thread(target=lambda: dropped.extend(queue.close()))
        closing.start()
        wait_until(lambda: queue.closed, what="the queue closes")
        closing.join(0.3)
        self.assertTrue(closing.is_alive(), "one runs")
        self.assertIsNotNone(watch())
        began = time.monotonic()
        self.client().put("last", b"x" * 100)
        closing.join()
        self.assertLess(time.monotonic() - began, 30)  # the others did not wait
        self.assertEqual(set(dropped), {"running", 0, 1, 2, 3, 4})
        gc.collect()
        self.assertIsNone(watch())
        self.assertTrue(queue.closed)
        self.assertEqual(queue.close(), [])
        for call in (queue.poll, lambda: queue.exists(["a"]), lambda: queue.cancel(1)):
            with self.assertRaises(tarn.Closed):
                call()

    def test_close_under_a_poll(self):
        client = self.client()
        queue, seen = client.queue(), []

        def poll():
            try:
                queue.poll(timeout_ms=60000)
            except tarn.Closed as e:
                seen.append(e)

        thread = threading.Thread(target=poll)
        thread.start()
        time.sleep(0.1)  # by then it waits, as a rule; later it has the same end
        queue.close()
        thread.join(30)
        self.assertEqual(len(seen), 1)

    def test_a_signal_loses_no_completion(self):
        client = self.client()
        interrupts, seen, inside = [0], [], [False]

        def interrupt(number, frame):
            if inside[0]:
                inside[0] = False
                interrupts[0] += 1
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with client.queue() as queue:
                for i in range(500):
                    queue.exists([f"{i}"], i)
                signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0007)
                until = time.monotonic() + 20
                while queue.pending and time.monotonic() < until:
                    try:
                        inside[0] = True
                        done = queue.poll(7, timeout_ms=10)
                        inside[0] = False
                        seen += [c.user for c in done]
                    except KeyboardInterrupt:
                        pass
                signal.setitimer(signal.ITIMER_REAL, 0)
                # Only what came in the very moment of a return to this loop may be missing from
                # `seen`.
                self.assertEqual(queue.pending, 0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.assertGreater(interrupts[0], 0)
        self.assertGreater(len(set(seen)), 400)
        self.assertEqual(len(seen), len(set(seen)))

    def test_garbage(self):
        client = self.client()
        queue = client.queue()
        queue.exists(["a"])
        del queue
        gc.collect()
        wait_until(lambda: client.stats()["async_pending"] == 0, what="nothing is under way")

    def test_two_threads_take_out_what_a_signal_left(self):
        class Taken(list):
            """Another thread takes the last one between the look and the taking."""

            def __bool__(self):
                return True

        with self.client().queue() as queue:
            queue._ready = Taken()
            self.assertEqual(queue.poll(), [])

    def test_queue_outlives_its_client(self):
        client = self.client()
        queue = client.queue()
        client.close()
        queue.exists(["a"])
        self.take(queue, 1)
        queue.close()

    def test_many_threads(self):
        client = self.client()
        queue, wrong = client.queue(64), []
        source = bytearray(b"t" * 1000)
        submitted = threading.Semaphore(0)

        def submit(number):
            for i in range(50):
                while True:
                    try:
                        queue.put([f"t{number}:{i}"], [pin(source).address], [1000], (number, i))
                        break
                    except tarn.QueueFull:
                        time.sleep(0.001)
                submitted.release()

        threads = [threading.Thread(target=submit, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        done = self.take(queue, 200)
        for t in threads:
            t.join()
        self.assertEqual({c.user for c in done}, {(n, i) for n in range(4) for i in range(50)})
        self.assertEqual([c for c in done if c.status or c.results != [0]], wrong)
        queue.close()

    def test_dead_server_completes_with_errors(self):
        from harness import Server

        with Server() as server:
            client = tarn.Client(server.url, retries=0, timeout_ms=2000, failover_ms=200)
            memory = bytearray(1000)
            with client.queue() as queue:
                server.kill()
                queue.put(["k"], [pin(memory).address], [1000])
                queue.get(["k"], [pin(memory).address], [1000])
                queue.exists(["k"])
                for done in self.take(queue, 3):
                    self.assertTrue(done.status < 0 or done.results[0] < 0, done)
                    self.assertEqual(done.done, 0)
            client.close()


if __name__ == "__main__":
    sys.exit(unittest.main())
