"""The secondary tier, under a small model of vLLM's tiering manager: promotions, cascades, and pins
of the primary tier's blocks."""

import importlib.util
import mmap
import sys
import threading
import time
import types
import unittest
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any
from unittest import mock

from harness import SLOW, Monitor, Server, TarnTest, wait_until

import tarn
from tarn.vllm import offload
from tarn.vllm.offload import LookupResult, TarnTierManager

HIT, MISS, PENDING, RETRY = (
    LookupResult.HIT,
    LookupResult.MISS,
    LookupResult.HIT_PENDING,
    LookupResult.RETRY,
)
BLOCK = 8192


@dataclass
class Job:
    """vLLM's TransferJob."""

    job_id: int
    keys: Any
    chunk_ids: Any
    is_promotion: bool
    req_context: Any


def spec(model="org/model", tp_size=2, agnostic=False, **others):
    """What a tier sees of vLLM's OffloadingSpec."""
    parallel = dict(rank=0, world_size=tp_size, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1)
    config = SimpleNamespace(
        groups=(SimpleNamespace(tokens_per_block=16, layer_names=("a", "b")),),
        model=SimpleNamespace(name=model, dtype=others.get("dtype", "bfloat16")),
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=SimpleNamespace(is_parallelism_agnostic=agnostic, **parallel),
    )
    return SimpleNamespace(config=config)


def request(name):
    return SimpleNamespace(req_id=name, kv_transfer_params=None)


def key(i, group=0):
    return i.to_bytes(32, "big") + group.to_bytes(4, "big")


class Primary:
    """vLLM's CPU tier: slots with a reference count (-1: being written), the least recently used
    one goes first."""

    def __init__(self, blocks, block=BLOCK):
        self.memory, self.block = mmap.mmap(-1, blocks * block), block
        self.view = memoryview(self.memory).cast("B", (blocks, block))
        self.free, self.slots, self.refs = list(range(blocks)), {}, {}

    def bytes_of(self, slot):
        return self.memory[slot * self.block : (slot + 1) * self.block]

    def write(self, slot, value):
        value = value * (self.block // len(value) + 1)
        self.memory[slot * self.block : (slot + 1) * self.block] = value[: self.block]

    def lookup(self, k):
        return MISS if k not in self.slots else PENDING if self.refs[k] < 0 else HIT

    def allocate(self, k):
        if not self.free:
            victim = next((v for v in self.slots if self.refs[v] == 0), None)
            if victim is None:
                return None
            self.drop(victim)
        self.slots[k], self.refs[k] = self.free.pop(), -1
        return self.slots[k]

    def drop(self, k):
        self.free.append(self.slots.pop(k))
        del self.refs[k]


class Manager:
    """What vLLM's TieringOffloadingManager does with one secondary tier, step by step."""

    def __init__(self, blocks=32, of=None, block=BLOCK, **options):
        self.primary = Primary(blocks, block)
        options.setdefault(
            "lookup_timeout_ms", 60_000
        )  # late answers are no misses, unless a test is about them
        self.tier = TarnTierManager(
            offloading_spec=of or spec(),
            primary_kv_view=self.primary.view,
            tier_type="tarn",
            **options,
        )
        self.jobs, self.next_job, self.pending, self.failed = {}, 0, {}, 0

    def poll(self):
        for result in self.tier.get_finished_jobs():
            job = self.jobs.pop(result.job_id)
            if not result.success:
                self.failed += 1
            for k in job.keys:
                if not job.is_promotion:
                    assert self.primary.refs[k] > 0
                    self.primary.refs[k] -= 1
                elif result.success or k in (result.successful_keys or ()):
                    self.primary.refs[k] = 0
                else:
                    self.primary.drop(k)

    def lookup(self, k, req):
        here = self.primary.lookup(k)
        if here is not MISS:
            return here
        there = self.tier.lookup(k, req)
        if there is not HIT:
            return there
        slot = self.primary.allocate(k)
        if slot is None:
            return MISS
        job = self.pending.setdefault(req.req_id, Job(-1, [], [], True, req))
        job.keys.append(k)
        job.chunk_ids.append(slot)
        return RETRY

    def step(self, work=lambda: None):
        """One step of the scheduler: what finished, this step's calls, and its end."""
        self.poll()
        result = work()
        for job in self.pending.values():
            job.job_id, self.next_job = self.next_job, self.next_job + 1
            self.jobs[job.job_id] = job
            self.tier.submit_load(job)
        self.pending = {}
        self.tier.on_schedule_end(SimpleNamespace(new_req_ids=(), preempted_req_ids=()))
        return result

    def store(self, keys, req, value=lambda k: k):
        """Blocks that the GPU gave to the primary tier, which cascade."""
        slots = []
        for k in keys:
            slot = self.primary.allocate(k)
            assert slot is not None
            self.primary.write(slot, value(k))
            self.primary.refs[k] = 1  # read by the tier
            slots.append(slot)
        job = Job(self.next_job, tuple(keys), slots, False, req)
        self.next_job += 1
        self.jobs[job.job_id] = job
        self.tier.submit_store(job)

    def settle(self):
        def done():
            self.step()
            return not self.jobs

        wait_until(done, 60, "all jobs finish")

    def find(self, keys, name="r"):
        """How many leading blocks a request gets into the primary tier, asking anew at every step
        as the scheduler does."""
        req, found = request(name), []
        self.tier.on_new_request(req)

        def look():
            answers = []
            for k in keys:
                answers.append(self.lookup(k, req))
                if answers[-1] is MISS:
                    break
            return answers

        def settled():
            found[:] = self.step(look)
            return all(a in (HIT, MISS) for a in found)

        wait_until(settled, 60, "the request's look-ups")
        self.tier.on_request_finished(req)
        return found.index(MISS) if MISS in found else len(found)

    def close(self):
        self.tier.shutdown()
        self.primary.view.release()  # as vLLM does: it fails while anybody holds on to the memory
        self.primary.memory.close()


class OffloadTest(TarnTest):
    def setUp(self):
        self.client().command("FLUSHALL")

    def manager(self, *args, **options):
        made = Manager(*args, **{"url": self.server.url, **options})
        self.addCleanup(made.close)
        return made

    def names(self):
        return sorted(self.client().command("KEYS", "*").split("\n"))

    def test_the_session_of_a_request_goes_along(self):
        params = {"tarn_session": "chat", "tarn_return_ms": 9}
        for hints in (True, "false"):
            self.setUp()
            for asked, seen in (
                (None, {"SESSION": "w"}),
                (params, {"SESSION": "chat", "RETURN": "9"}),
            ):
                req = SimpleNamespace(req_id="w", kv_transfer_params=asked)
                keys = [key(i + 100 * (asked is None)) for i in range(4)]
                with Monitor(self.server) as monitor:
                    writer, reader = self.manager(hints=hints), self.manager(hints=hints)
                    writer.store(keys, req)
                    writer.settle()
                    self.assertEqual(reader.find(keys, "w"), 4)
                    puts, gets = monitor.hints("MPUTSTART"), monitor.hints("MGETREPLICAS")
                self.assertEqual(puts, [seen if hints is True else {}])
                self.assertEqual(gets, [{"SESSION": "w"} if hints is True else {}])

    def test_blocks_cascade_and_are_promoted(self):
        writer, reader = self.manager(), self.manager()
        keys = [key(i, i % 2) for i in range(24)]
        self.assertEqual(writer.find(keys), 0)
        writer.store(keys[:10], request("w"))
        writer.store(keys[10:], request("w"))
        writer.settle()
        self.assertEqual((writer.failed, len(self.names())), (0, 24))
        self.assertTrue(self.names()[0].startswith("vllm-offload@org/model@"))
        self.assertEqual(reader.find(keys + [key(99)]), 24)
        for k in keys:
            self.assertEqual(reader.primary.bytes_of(reader.primary.slots[k]), (k * BLOCK)[:BLOCK])
        counts = reader.tier.take_counts()
        self.assertEqual((counts["loaded_blocks"], counts["loaded_bytes"]), (24, 24 * BLOCK))
        self.assertEqual((counts["lookups"], counts["lookup_hits"]), (25, 24))
        self.assertEqual(writer.tier.take_counts()["stored_bytes"], 24 * BLOCK)
        self.assertEqual(reader.tier.take_counts()["lookups"], 0)
        self.assertFalse(reader.tier.has_pending_work())
        self.assertEqual((writer.tier.troubles, reader.tier.troubles), ({}, {}))
        self.assertEqual(reader.tier._states, {}, "finished requests leave nothing behind")
        self.assertEqual(reader.tier._of_request, {})

    def test_a_lookup_is_asked_once_and_remembered_while_somebody_wants_it(self):
        m = self.manager()
        m.store([key(1)], request("w"))
        m.settle()
        m.primary.drop(key(1))
        a, b = request("a"), request("b")
        self.assertIs(m.tier.lookup(key(1), a), RETRY)
        self.assertIs(m.tier.lookup(key(1), b), RETRY)
        self.assertIs(m.tier.lookup(key(2), a), RETRY)
        self.assertTrue(m.tier.has_pending_work())
        wait_until(lambda: m.step(lambda: m.tier.lookup(key(2), a)) is MISS)
        self.assertEqual(m.tier.take_counts()["lookups"], 2)
        m.tier.on_request_finished(a)
        self.assertIs(m.tier.lookup(key(1), b), HIT)
        self.assertEqual(len(m.tier._states), 1)
        m.tier.on_request_finished(b)
        self.assertIs(m.tier.lookup(key(1), request("c")), RETRY)

    def test_engines_that_store_the_same_blocks(self):
        managers = [self.manager() for _ in range(4)]
        keys = [key(i) for i in range(32)]
        for m in managers:
            m.store(keys, request("w"))
        for m in managers:
            m.settle()
        self.assertEqual([(m.failed, m.tier.troubles) for m in managers], [(0, {})] * 4)
        self.assertEqual(len(self.names()), 32)
        self.assertEqual(self.manager(48).find(keys), 32)

    def test_which_engines_share(self):
        keys = [key(i) for i in range(4)]
        m = self.manager()
        m.store(keys, request("w"))
        m.settle()
        self.assertEqual(self.manager(of=spec()).find(keys), 4)
        for other in (
            spec(model="org/other"),
            spec(tp_size=4),
            spec(dtype="float16"),
            spec(agnostic=True),
        ):
            self.assertEqual(self.manager(of=other).find(keys), 0)
        self.assertEqual(self.manager(namespace="team").find(keys), 0)
        a, b = self.manager(of=spec(agnostic=True, tp_size=2)), self.manager(
            of=spec(agnostic=True, tp_size=4)
        )
        a.store(keys, request("w"))
        a.settle()
        self.assertEqual(b.find(keys), 4)

    def test_a_block_that_goes_between_lookup_and_load(self):
        m = self.manager()
        keys = [key(i) for i in range(8)]
        m.store(keys, request("w"))
        m.settle()
        for k in keys:
            m.primary.drop(k)
        req = request("r")
        for k in keys:
            m.tier.lookup(k, req)
        wait_until(lambda: m.step(lambda: all(m.tier.lookup(k, req) is HIT for k in keys)))
        client = self.client()
        client.remove(next(n for n in self.names() if keys[5][:-4].hex() in n))
        m.step(lambda: [m.lookup(k, req) for k in keys])
        m.settle()
        self.assertEqual(m.failed, 1)
        self.assertEqual(
            sorted(m.primary.slots), [k for k in keys if k != keys[5]], "the others were loaded"
        )
        self.assertEqual([m.tier.lookup(k, req) is HIT for k in keys], [i != 5 for i in range(8)])
        for k in list(m.primary.slots):
            self.assertEqual(m.primary.bytes_of(m.primary.slots[k]), (k * BLOCK)[:BLOCK])
            m.primary.drop(k)
        m.tier.on_request_finished(req)
        self.assertEqual(m.find(keys), 5, "and it does not go round in circles")

    def test_objects_of_a_wrong_size_are_no_blocks(self):
        m, keys = self.manager(), [key(i) for i in range(3)]
        m.store(keys, request("w"))
        m.settle()
        client = self.client()
        for k, size in ((keys[1], BLOCK - 1), (keys[2], BLOCK + 1)):
            client.put(
                next(n for n in self.names() if k[:-4].hex() in n), b"x" * size, replace=True
            )
        other = self.manager()
        for slot in range(32):
            other.primary.write(slot, b"-")
        with self.assertLogs("tarn.vllm.offload", "WARNING"):
            self.assertEqual(other.find(keys[:1]), 1)
            self.assertEqual(other.find([keys[1]], "s"), 0)
            self.assertEqual(other.find([keys[2]], "t"), 0)
        used = [s for s in range(32) if other.primary.bytes_of(s) != b"-" * BLOCK]
        self.assertLessEqual(len(used), 3, "no other slot was touched")

    def test_a_block_that_could_not_be_used_is_replaced(self):
        """A put leaves what is there as it is; but who was told to load it and could not computes
        it anew, and puts that."""
        m, keys = self.manager(), [key(i) for i in range(3)]
        m.store(keys, request("w"))
        m.settle()
        client = self.client()
        name = next(n for n in self.names() if keys[1][:-4].hex() in n)
        client.put(name, b"x" * (BLOCK + 1), replace=True)
        other = self.manager()
        with self.assertLogs("tarn.vllm.offload", "WARNING"):
            self.assertEqual(other.find([keys[1]], "s"), 0)
        other.store([keys[1]], request("t"))
        other.settle()
        self.assertEqual(client.get(name), (keys[1] * BLOCK)[:BLOCK])
        self.assertEqual(self.manager().find(keys), 3)

    def test_jobs_that_make_no_sense_fail(self):
        m = self.manager(4)
        req = request("r")
        for i, (keys, blocks) in enumerate(
            (([key(1)], [4]), ([key(1)], [-1]), ([key(1), key(2)], [0]), ([], []))
        ):
            m.tier.submit_load(Job(i, keys, blocks, True, req))
        old = SimpleNamespace(
            job_id=4, keys=[key(1)], block_ids=[4], is_promotion=True, req_context=req
        )
        m.tier.submit_load(old)  # as older versions call the slots
        results = {r.job_id: r.success for r in m.tier.get_finished_jobs()}
        self.assertEqual(results, {0: False, 1: False, 2: False, 3: True, 4: False})

    def test_more_jobs_than_the_queue_takes(self):
        m = self.manager(64, max_jobs=2, client={"workers": 1})
        keys = [key(i) for i in range(64)]
        with self.assertLogs("tarn.vllm.offload", "WARNING") as logs:
            for k in keys:
                m.store([k], request("w"))
        self.assertIn("given up", logs.records[0].getMessage())
        self.assertLessEqual(len(m.tier._waiting), 2)
        self.assertTrue(m.tier.has_pending_work())
        m.tier.drain_jobs()
        self.assertEqual((len(m.tier._under_way), len(m.tier._waiting)), (0, 0))
        m.poll()
        self.assertEqual(m.jobs, {}, "every job was reported, once")
        self.assertGreaterEqual(64 - m.failed, 4)
        self.assertEqual(len(self.names()), 64 - m.failed)

    def test_drain_waits_for_what_runs(self):
        m = self.manager(32)
        m.store([key(i) for i in range(32)], request("w"))
        m.tier.drain_jobs()
        results = list(m.tier.get_finished_jobs())
        self.assertEqual([r.success for r in results], [True])
        self.assertEqual(len(self.names()), 32)

    def test_shutdown_in_the_middle(self):
        made = Manager(url=self.server.url)
        made.store([key(i) for i in range(32)], request("w"))
        made.tier.lookup(key(1), request("r"))
        made.close()  # releases the memory: a BufferError would say that it is held
        threads = [t for t in threading.enumerate() if t.name.startswith("tarn")]
        self.assertEqual(threads, [])

    def test_configuration(self):
        view = memoryview(bytearray(4 * BLOCK)).cast("B", (4, BLOCK))
        for bad, kind in (
            ({"url": 7}, tarn.InvalidArgument),
            ({"url": "tarn://127.0.0.1:bad"}, tarn.InvalidArgument),
            ({"max_jobs": 0}, tarn.InvalidArgument),
            ({"lookup_timeout_ms": -1}, tarn.InvalidArgument),
            ({"put": {"nothing": 1}}, tarn.InvalidArgument),
            ({"root_dir": "/x"}, tarn.InvalidArgument),
            ({"locality": "NEARBY"}, tarn.InvalidArgument),
            ({"client": {"nothing": 1}}, TypeError),
        ):
            with self.assertRaises(kind, msg=str(bad)):
                TarnTierManager(spec(), view, "tarn", **{"url": self.server.url, **bad})
        for wrong in (memoryview(bytearray(BLOCK)), memoryview(bytes(BLOCK)).cast("B", (1, BLOCK))):
            with self.assertRaises(tarn.InvalidArgument):
                TarnTierManager(spec(), wrong, "tarn", url=self.server.url)

    def test_messages_name_the_option(self):
        view = memoryview(bytearray(4 * BLOCK)).cast("B", (4, BLOCK))
        for given, text in (
            (
                {"enable_kv_events": True},
                "no option is called 'enable_kv_events': there are url, .*, locality",
            ),
            ({"locality": "NEARBY"}, "locality is LOCAL or REMOTE, not 'NEARBY'"),
            ({"max_jobs": "many"}, "max_jobs is a number from 1 to 65536, not 'many'"),
        ):
            with self.assertRaisesRegex(tarn.InvalidArgument, text):
                TarnTierManager(spec(), view, "tarn", url=self.server.url, **given)

    def test_what_newer_versions_pass(self):
        """vLLM hands on the entry's `locality` and, since 0.30, a detector that its base class
        keeps."""
        made = self.manager(
            locality="local", max_jobs="8", lookup_timeout_ms="60000", backpressure_detector=None
        )
        self.assertEqual(made.tier.locality, "LOCAL")
        made.store([key(i) for i in range(4)], request("w"))
        made.settle()
        self.assertEqual(made.failed, 0)

        class SecondaryTierManager:
            def __init__(
                self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None
            ):
                self.bp_detector = backpressure_detector

        class Locality(Enum):
            LOCAL, REMOTE = "LOCAL", "REMOTE"

        names = [
            "vllm",
            "vllm.v1",
            "vllm.v1.kv_offload",
            "vllm.v1.kv_offload.tiering",
            "vllm.v1.kv_offload.tiering.base",
        ]
        modules = {n: types.ModuleType(n) for n in [*names, "vllm.v1.kv_offload.base"]}
        modules[names[-1]].SecondaryTierManager, modules[names[-1]].JobResult = (
            SecondaryTierManager,
            offload._JobResult,
        )
        modules["vllm.v1.kv_offload.base"].Locality = Locality
        with mock.patch.dict(sys.modules, modules):
            found = importlib.util.spec_from_file_location(
                "tarn.vllm.offload_under_vllm", offload.__file__
            )
            under_vllm = importlib.util.module_from_spec(found)
            sys.modules[found.name] = under_vllm
            found.loader.exec_module(under_vllm)
        detector, view = object(), memoryview(bytearray(4 * BLOCK)).cast("B", (4, BLOCK))
        tier = under_vllm.TarnTierManager(
            spec(),
            view,
            "tarn",
            url=self.server.url,
            locality="REMOTE",
            backpressure_detector=detector,
        )
        self.addCleanup(tier.shutdown)
        self.assertIs(tier.bp_detector, detector)
        self.assertIs(tier.locality, Locality.REMOTE)

    def test_names_for_vllm(self):
        metrics = TarnTierManager.build_metric_definitions({})
        self.assertIn("vllm:kv_offload_tarn_loaded_bytes", metrics)
        self.assertTrue(all(m.documentation for m in metrics.values()))
        self.assertIsNone(self.manager().tier.get_stats())

        class Factory:
            registry = {}

            @classmethod
            def get_tier_class(cls, config):
                if config["type"] not in cls.registry:
                    raise ValueError(config["type"])

            @classmethod
            def register_tier(cls, name, module, class_name):
                assert name not in cls.registry
                cls.registry[name] = (module, class_name)

        names = ["vllm", "vllm.v1", "vllm.v1.kv_offload", "vllm.v1.kv_offload.tiering"]
        modules = {n: types.ModuleType(n) for n in names}
        factory, of = types.ModuleType(names[-1] + ".factory"), types.ModuleType(
            names[-1] + ".spec"
        )
        factory.SecondaryTierFactory, of.TieringOffloadingSpec = Factory, type(
            "TieringOffloadingSpec", (), {}
        )
        modules.update({factory.__name__: factory, of.__name__: of})
        offload.register()  # does nothing without it
        with mock.patch.dict(sys.modules, modules):
            self.assertIs(offload.TarnOffloadingSpec, of.TieringOffloadingSpec)
            offload.register()
        self.assertEqual(Factory.registry, {"tarn": ("tarn.vllm.offload", "TarnTierManager")})
        with self.assertRaises(AttributeError):
            offload.nothing


class FullTest(TarnTest):
    pool = "8mb"

    def test_old_blocks_make_room_for_new_ones(self):
        m = Manager(64, url=self.server.url)
        self.addCleanup(m.close)
        for n in range(48):  # three times the pool, through a primary tier of 64 blocks
            keys = [key(1000 * n + i) for i in range(64)]
            # of one request's blocks the last would go first
            m.store(keys, request(f"w{n}"))
            m.settle()
        self.assertEqual((m.failed, m.tier.troubles), (0, {}))
        for k in list(m.primary.slots):
            m.primary.drop(k)
        self.assertEqual(m.find(keys), 64)
        self.assertTrue(
            all(m.primary.bytes_of(m.primary.slots[k]) == (k * BLOCK)[:BLOCK] for k in keys)
        )


class AwayTest(unittest.TestCase):
    def test_a_server_that_goes_and_comes_back(self):
        server = Server()
        self.addCleanup(server.stop)
        m = Manager(64, url=server.url, client={"retries": 0, "timeout_ms": 20_000})
        self.addCleanup(m.close)
        keys = [key(i) for i in range(32)]
        m.store(keys, request("w"))
        m.settle()
        server.kill()
        for k in keys:
            m.primary.drop(k)
        began = time.monotonic()
        with self.assertLogs("tarn.vllm.offload", "WARNING") as logs:
            for n in range(20):
                self.assertEqual(m.find(keys, f"r{n}"), 0)
                m.store([key(1000 + n)], request("w"))
                m.settle()
            m.tier.drain_jobs()
        self.assertLess(time.monotonic() - began, 60 * SLOW)
        self.assertEqual(m.failed, 20)
        self.assertEqual(len([r for r in logs.records if "(away" in r.getMessage()]), 1)
        server.start()

        def back():
            m.store([key(2000 + m.next_job)], request("w"))
            before = m.failed
            m.settle()
            return m.failed == before

        wait_until(back, 60, "the pool is used again")
        last = next(reversed(m.primary.slots))
        m.primary.drop(last)
        self.assertEqual(m.find([last], "again"), 1)

    def test_the_scheduler_never_waits_for_a_server_that_does_not_answer(self):
        server = Server()
        self.addCleanup(server.stop)
        m = Manager(
            64, url=server.url, client={"retries": 0, "timeout_ms": 60_000}, lookup_timeout_ms=1000
        )
        brief = Manager(64, url=server.url, client={"retries": 0, "timeout_ms": 5000})
        for each in (m, brief):
            self.addCleanup(each.close)
            each.store([key(1)], request("w"))
            each.settle()
        server.pause()
        took = []
        try:
            for n in range(30):
                began = time.monotonic()
                m.store([key(100 + n)], request("w"))
                m.step(lambda: m.lookup(key(1000 + n), request(f"r{n}")))
                took.append(time.monotonic() - began)
                time.sleep(0.01)
                brief.store([key(200 + n)], request("w"))
            asked = key(1000)
            late = lambda: m.tier.lookup(asked, request("r0")) is MISS
            wait_until(late, what="a miss: nobody waits for so long for an answer")
            began = time.monotonic()
            brief.tier.drain_jobs()
            self.assertLess(
                time.monotonic() - began, 40, "all of them end by the timeout of the first"
            )
        finally:
            server.resume()
        self.assertLess(sorted(took)[15], 1, "steps do not wait for the patience with a look-up")
        self.assertLess(max(took), 40, "nor for an answer")
        m.tier.drain_jobs()
        for each in (m, brief):
            each.poll()
            self.assertEqual(each.jobs, {})

    def test_an_engine_starts_before_the_pool(self):
        server = Server()
        self.addCleanup(server.stop)
        server.kill()
        m = Manager(url=server.url, client={"retries": 0})
        self.addCleanup(m.close)
        self.assertEqual(m.find([key(1)]), 0)
        server.start()

        def back():
            m.store([key(m.next_job)], request("w"))
            before = m.failed
            m.settle()
            time.sleep(0.05)
            if m.failed == before:
                return True
            m.primary.drop(next(iter(m.primary.slots)))
            return False

        wait_until(back, 60, "the pool is used")


if __name__ == "__main__":
    unittest.main()
