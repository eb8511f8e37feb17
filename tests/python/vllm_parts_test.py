"""The pieces of TarnConnector by themselves: configuration, memory, queues, what is held back,
signatures."""

import inspect
import logging
import threading
import time
import unittest
from types import SimpleNamespace

import harness
import tarn
from tarn.vllm import TarnConnector, base, config, memory, tensors
from tarn.vllm.damage import NOWHERE, Damage
from tarn.vllm.loader import MAX_QUEUED, LayerLoad, Loader
from tarn.vllm.meta import Format, Load, Save, Step
from tarn.vllm.pool import Pool
from tarn.vllm.saver import Job, Saver
from tarn.vllm.stats import Figures
from vllm_engine import Engine
from vllm_helpers import Copier
from vllm_model import Layer, Request, Tensor

assert harness.ROOT  # importing it has put the package on the path


class Parts(unittest.TestCase):
    """The pieces by themselves."""

    def settings(self, **extra):
        engine = SimpleNamespace(
            kv_transfer_config=SimpleNamespace(
                kv_role=extra.pop("role", "kv_both"), kv_connector_extra_config=extra
            ),
            model_config=SimpleNamespace(model="org/name/", revision="r1"),
            parallel_config=SimpleNamespace(pipeline_parallel_size=extra.pop("pp", 1)),
        )
        return config.settings_of(engine)

    def test_configuration(self):
        s = self.settings(
            url="tarn://h:1", queue_blocks="12", layerwise="true", pin="soft", prefer="seg"
        )
        self.assertEqual(
            (s.url, s.queue_blocks, s.layerwise, s.model, s.revision),
            ("tarn://h:1", 12, True, "org/name", "r1"),
        )
        self.assertEqual(s.put_options, {"timeout_ms": 5000, "pin": "soft", "prefer": ("seg",)})
        self.assertEqual((s.load, s.save), (True, True))
        self.assertEqual(
            (self.settings(role="kv_producer").load, self.settings(role="kv_consumer").save),
            (False, False),
        )
        self.assertTrue(self.settings(role="kv_producer", load=True).load)
        for wrong, text in (
            (dict(queue_block=1), "queue_block'; there are: url"),
            (dict(queue_blocks=-1), "queue_blocks is a number"),
            (dict(queue_blocks=0), "queue_blocks is a number from 1"),
            (dict(save_threads=True), "save_threads is a number"),
            (dict(layerwise=2), "layerwise is true or false"),
            (dict(layerwise=True, load_async=True), "choose one"),
            (dict(layerwise=True, pp=2), "pipeline"),
            (dict(pin="firm"), "pin is"),
            (dict(kv_layout="hnd"), "HND or NHD"),
            (dict(cross_layers=True, layerwise=True), "cross_layers"),
            (dict(role="kv_reader"), "kv_role"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                self.settings(**wrong)
        self.assertTrue(TarnConnector.requires_piecewise_for_cudagraph({"layerwise": "true"}))
        self.assertFalse(TarnConnector.requires_piecewise_for_cudagraph({}))

    def test_ranks(self):
        def ranks(rank, heads=8, mla=False, **sizes):
            parallel = dict(tensor_parallel_size=4, pipeline_parallel_size=2, rank=rank)
            model = SimpleNamespace(get_total_num_kv_heads=lambda: heads, use_mla=mla)
            return config.ranks_of(
                SimpleNamespace(
                    parallel_config=SimpleNamespace(**dict(parallel, **sizes)), model_config=model
                )
            )

        self.assertEqual(
            [(ranks(r).pp_rank, ranks(r).tp_rank) for r in range(8)],
            [(p, t) for p in (0, 1) for t in range(4)],
        )
        self.assertEqual(
            (ranks(13).pp_rank, ranks(13).tp_rank), (1, 1), "ranks of other engines are in between"
        )
        fourth = ranks(4, prefill_context_parallel_size=2)
        self.assertEqual((fourth.pp_rank, fourth.pcp_rank, fourth.tp_rank), (0, 1, 0))
        both = ranks(13, prefill_context_parallel_size=2, decode_context_parallel_size=2)
        self.assertEqual((both.pp_rank, both.pcp_rank, both.dcp_rank, both.tp_rank), (1, 1, 1, 1))
        self.assertEqual(both.shard, (4, 1, 1, 0))
        self.assertEqual(
            (ranks(3, heads=2).shard, ranks(3, mla=True).shard), ((2, 1, 2, 1), (1, 0, 4, 3))
        )

    def test_a_draft_whose_heads_are_dealt_out_otherwise(self):
        """Ranks with the same heads of the model have others of its draft: nothing is shared."""

        def shard(heads, draft, mla=False, draft_mla=False, method="eagle3", tp=4):
            def model(heads, mla):
                return SimpleNamespace(get_total_num_kv_heads=lambda: heads, use_mla=mla)

            speculative = SimpleNamespace(
                method=method, draft_model_config=model(draft, draft_mla), model="org/draft"
            )
            parallel = SimpleNamespace(tensor_parallel_size=tp, pipeline_parallel_size=1, rank=3)
            found = config.ranks_of(
                SimpleNamespace(
                    parallel_config=parallel,
                    model_config=model(heads, mla),
                    speculative_config=speculative,
                )
            )
            return found.shard

        own = (4, 3, 1, 0)
        self.assertEqual(shard(2, 4), own)
        self.assertEqual(shard(2, 1), own)
        self.assertEqual(shard(128, 8, mla=True), own)
        self.assertEqual(shard(2, 2), (2, 1, 2, 1))
        self.assertEqual(shard(2, 4, method="ngram"), (2, 1, 2, 1), "no layers")
        self.assertEqual(shard(2, 128, draft_mla=True), (2, 1, 2, 1), "all ranks have its bytes")
        self.assertEqual(shard(128, 128, mla=True, draft_mla=True), (1, 0, 4, 3))
        self.assertEqual(shard(8, 4), own, "as without a draft")

    def test_views_of_tensors(self):
        view = tensors.view_of("l", Tensor((2, 10, 4, 3, 8)), 10, 3)
        self.assertEqual(
            (view.stride, view.runs, view.layout(6)), (192, ((0, 192), (1920, 192)), "2x4xh6x8e2")
        )
        view = tensors.view_of("l", Tensor((10, 2, 4, 3, 8)), 10, 3)
        self.assertEqual((view.stride, view.runs, view.layout(6)), (384, ((0, 384),), "2x4xh6x8e2"))
        view = tensors.view_of("l", Tensor((2, 10, 4, 3, 8), (0, 1, 3, 2, 4)), 10, 3)
        self.assertEqual((view.layout(6), view.heads), ("2xh6x4x8e2", 1))
        view = tensors.view_of("l", Tensor((2, 20, 2, 3, 8)), 10, 3)
        self.assertEqual((view.stride, view.runs, view.bytes), (192, ((0, 192), (1920, 192)), 384))
        scattered = tensors.view_of("l", Tensor((10, 4, 3, 8), (1, 0, 2, 3)), 10, 4)
        self.assertEqual(scattered.runs, tuple((480 * i, 48) for i in range(4)))
        for wrong, text in (
            (Tensor((3, 7, 8)), "counts 10 blocks"),
            (object(), "neither"),
            (Tensor((10, 9999, 2), (1, 0, 2)), "scattered"),
        ):
            with self.assertRaisesRegex(
                (ValueError, TypeError, AttributeError), text if wrong.__class__ is Tensor else ""
            ):
                tensors.view_of("l", wrong, 10, 3)
        with self.assertRaisesRegex(ValueError, "heads_axis"):
            tensors.view_of("l", Tensor((2, 10, 4, 3, 8)), 10, 3, 2)
        with self.assertRaisesRegex(ValueError, "Mamba"):
            tensors.distinct({"a": [Tensor((10, 8))]})
        shared = Tensor((10, 4, 8))
        self.assertEqual(tensors.distinct({"a": shared, "b": shared})[0], ["a"])
        with self.assertRaisesRegex(ValueError, "staging_mib"):
            memory.StagedMemory([view._replace(sizes=(1 << 20,))], Copier([view], []), 1 << 20, 4)

    def saver(self, put, copier=None, **extra):
        layer = Layer("MLA", 10, 4, 1)
        cache = memory.memory_of({"l": layer.tensor}, 10, 0, -1, 1 << 20, 2, copier)
        pool = SimpleNamespace(put=put, figures=Figures())
        saver = Saver(cache, pool, self.settings(**extra))
        self.addCleanup(lambda layer: saver.close(), layer)  # whose bytes are read until then
        return saver

    def test_forgetting_waits_for_what_is_read(self):
        go, begun = threading.Event(), threading.Event()

        def put(names, addresses, sizes, options):
            begun.set()
            go.wait(60)
            return [0] * len(names)

        saver = self.saver(put, save_threads=1, batch_blocks=2)
        saver.submit(Job("a", ["k1", "k2", "k3", "k4"], [1, 2, 3, 4], [0], None))
        saver.submit(Job("a", ["k5"], [5], [0], None))
        saver.submit(Job("b", ["k6"], [6], [0], None))
        self.assertTrue(begun.wait(60))
        forgotten = threading.Event()
        thread = threading.Thread(target=lambda: (saver.forget({"a", "c"}), forgotten.set()))
        thread.start()
        self.assertFalse(forgotten.wait(0.1), "a put is under way")
        self.assertTrue(saver.busy("a") and saver.busy("b"))
        go.set()
        self.assertTrue(forgotten.wait(60))
        thread.join()
        self.assertFalse(saver.busy("a"))
        while saver.busy("b"):
            time.sleep(0.001)
        self.assertEqual(
            saver.stats(),
            dict(saved=3, there_already=0, failed=0, dropped=0, forgotten=3, pending=0),
        )

    def test_copied_blocks_are_free_before_their_put_ends(self):
        begun, go = threading.Semaphore(0), threading.Semaphore(0)

        def put(names, addresses, sizes, options):
            begun.release()
            go.acquire(timeout=60)
            return [0] * len(names)

        saver = self.saver(put, Copier, save_threads=1, batch_blocks=1)
        saver.submit(Job("a", ["k1", "k2"], [1, 2], [0], time.monotonic()))
        self.assertTrue(begun.acquire(timeout=60))
        self.assertTrue(saver.busy("a"), "the second block is not copied yet")
        go.release()
        self.assertTrue(begun.acquire(timeout=60))
        self.assertFalse(saver.busy("a"), "all are copied, and being put")
        self.assertEqual(saver.stats()["pending"], 1)
        go.release()

    def test_a_queue_that_waits(self):
        go = threading.Event()
        saver = self.saver(
            lambda names, *rest: go.wait(60) and [0] * len(names),
            queue_blocks=2,
            queue_wait_ms=60000,
            save_threads=1,
        )
        saver.submit(Job("a", ["k1", "k2"], [1, 2], [0], None))
        thread = threading.Thread(target=lambda: saver.submit(Job("b", ["k3"], [3], [0], None)))
        thread.start()
        thread.join(0.1)
        self.assertTrue(thread.is_alive(), "it waits for room")
        go.set()
        thread.join()
        while saver.busy("b"):
            time.sleep(0.001)
        self.assertEqual((saver.stats()["saved"], saver.stats()["dropped"]), (3, 0))

    def test_statuses_of_puts(self):
        S = tarn.Status
        answers = [[0, S.EEXISTS, S.EBUSY, S.EIO], [0, S.ENOSPACE]]
        saver = self.saver(lambda names, *rest: answers.pop(0), batch_blocks=4, save_threads=1)
        saver.submit(Job("a", list("abcd"), [1, 2, 3, 4], [0], None))
        while saver.busy("a"):
            time.sleep(0.001)
        self.assertEqual(
            saver.stats(),
            dict(saved=1, there_already=2, failed=1, dropped=0, forgotten=0, pending=0),
        )

    def test_no_room_ends_a_job(self):
        calls = []
        saver = self.saver(
            lambda names, *rest: calls.append(names) or [0, tarn.Status.ENOSPACE],
            batch_blocks=2,
            save_threads=1,
        )
        saver.submit(Job("a", list("abcd"), [1, 2, 3, 4], [0], None))
        while saver.busy("a"):
            time.sleep(0.001)
        self.assertEqual(calls, [["a", "b"]])
        self.assertEqual(
            saver.stats(),
            dict(saved=1, there_already=0, failed=1, dropped=2, forgotten=0, pending=0),
        )

    def test_a_put_that_raises(self):
        def put(names, *rest):
            raise RuntimeError("broken")

        saver = self.saver(put)
        with self.assertLogs("tarn.vllm", "ERROR"):
            saver.submit(Job("a", ["k"], [1], [0], None))
            while saver.busy("a"):
                time.sleep(0.001)
        self.assertEqual((saver.stats()["failed"], saver.stats()["pending"]), (1, 0))

    def test_loads_are_reported_once_after_their_errors(self):
        lost = []

        def load(load, layer, mark):
            self.assertEqual(mark, 7)
            if load.request == "bad":
                raise RuntimeError("broken")

        loader = Loader(2, load, lambda load, error: lost.append(load.request))
        self.addCleanup(loader.close)
        for name in ("good", "bad", "fine"):
            loader.submit(Load(name, [], [], True), 7)
        finished = set()
        while len(finished) < 3:
            finished |= loader.take_finished()
            self.assertTrue("bad" not in finished or lost == ["bad"])
        self.assertEqual(loader.take_finished(), set())
        self.assertGreater(MAX_QUEUED, 1000)

    def test_nothing_is_saved_on_top_of_a_lost_block(self):
        """Also when the scheduler, one step ahead, does not know of it yet."""
        engine = Engine.__new__(Engine)
        engine.__dict__.update(
            block_tokens=4,
            block_count=16,
            mla=False,
            kv_heads=1,
            tp=1,
            pp=1,
            role="kv_both",
            extra={},
            url="tarn://127.0.0.1:1",
        )
        worker = TarnConnector(engine.config(0), base.Role.WORKER, SimpleNamespace(num_blocks=16))
        self.addCleanup(worker.shutdown)
        worker.register_kv_caches({"layers.0": Layer("2BNHD", 16, 4, 1).tensor})
        side = worker._worker
        jobs = []
        side._saver.submit = jobs.append
        side._pool.get = lambda names, *rest, **more: [
            -9 if i == 1 else 128 for i in range(len(names))
        ]

        def step(**what):
            worker.bind_connector_metadata(Step(**what))
            worker.start_load_kv(None)
            worker.wait_for_save()
            errors = worker.get_block_ids_with_load_errors()
            worker.clear_connector_metadata()
            taken = [(job.request, job.blocks) for job in jobs]
            jobs.clear()
            return errors, taken

        names = [bytes([i]) * 32 for i in range(9)]
        loads = [Load("a", names[:3], [3, 4, 5], False)]
        first = Save("a", names[3:4], [6], [3, 4, 5, 6])
        other = Save("b", names[7:8], [9], [8, 9])
        self.assertEqual(step(loads=loads, saves=[first, other]), ({4}, [("b", [9])]))
        self.assertEqual(step(saves=[Save("a", names[4:5], [7], [3, 4, 5, 6, 7])]), (set(), []))
        whole = Save("a", names[:5], [3, 4, 5, 6, 7], [3, 4, 5, 6, 7])
        self.assertEqual(step(saves=[whole]), (set(), [("a", [3])]), "what is before it is good")
        self.assertEqual(step(saves=[whole], recomputed={4}), (set(), [("a", [3, 4, 5, 6, 7])]))
        self.assertEqual(worker.stats()["dropped"], 1 + 1 + 4)

    def test_saves_on_top_of_open_loads_are_held(self):
        """Of several ranks only one knows that its part of a block did not arrive. Steps are
        planned before the outcome is known."""
        engine = Engine.__new__(Engine)
        engine.__dict__.update(
            block_tokens=4,
            block_count=64,
            mla=False,
            kv_heads=2,
            tp=2,
            pp=1,
            role="kv_both",
            extra={"save_decode": True},
            url="tarn://127.0.0.1:1",
        )
        settings = engine.config(0)
        settings.scheduler_config = SimpleNamespace(async_scheduling=True)
        connector = TarnConnector(settings, base.Role.SCHEDULER, None)
        side = connector._scheduler
        side.set_format(Format("l", ["0"]))
        side._pool.prefix = lambda names, lease, timeout, **hints: 2 * 3

        def plan(new=(), cached=(), preempted=()):
            out = SimpleNamespace(
                scheduled_new_reqs=[
                    SimpleNamespace(req_id=r, block_ids=(b,), num_computed_tokens=c)
                    for r, b, c, _ in new
                ],
                scheduled_cached_reqs=SimpleNamespace(
                    req_ids=[r for r, _, _ in cached],
                    resumed_req_ids=set(),
                    new_block_ids=[None for _ in cached],
                    num_computed_tokens=[c for _, c, _ in cached],
                ),
                num_scheduled_tokens=dict(
                    [(r, n) for r, _, _, n in new] + [(r, n) for r, _, n in cached]
                ),
                preempted_req_ids=set(preempted),
                finished_req_ids=set(),
            )
            step = connector.build_connector_meta(out)
            return [s.blocks for s in step.saves], [s.blocks for s in step.released], step.delayed

        def start(name, blocks):
            request = Request(range(33), name=name)
            self.assertEqual(connector.get_num_new_matched_tokens(request, 0), (12, False))
            connector.update_state_after_alloc(
                request, SimpleNamespace(get_block_ids=lambda: (blocks,)), 12
            )
            return request

        blocks = list(range(1, 11))
        request = start("a", blocks)
        plain = Request(range(100, 133), name="p")
        side._track(plain)
        others = list(range(11, 19))
        first = plan(new=[("a", blocks, 12, 8), ("p", others, 0, 32)])
        self.assertEqual(
            first, ([others], [], []), "what has nothing to do with a load is saved at once"
        )
        self.assertEqual(plan(cached=[("a", 20, 8)]), ([], [], []))
        self.assertEqual(connector.request_finished(request, blocks)[0], True)
        self.assertTrue(connector.has_pending_push_work())
        self.assertEqual(plan(), ([], [[4, 5], [6, 7]], ["a"]), "reported no earlier than saved")
        self.assertFalse(connector.has_pending_push_work())

        request = start("b", blocks)
        plan(new=[("b", blocks, 12, 8)])
        plan(cached=[("b", 20, 8)])
        evicted = []
        connector.bind_gpu_block_pool(SimpleNamespace(evict_blocks=evicted.append))
        connector.update_connector_output(SimpleNamespace(invalid_block_ids={2}))
        self.assertEqual(evicted, [set(range(2, 11))])
        self.assertEqual(
            plan(cached=[("b", 4, 16)]), ([[2, 3, 4, 5]], [], []), "computed anew, and saved then"
        )
        request.all_token_ids.extend(range(8))
        saved = plan(cached=[("b", 20, 20)])[0]
        self.assertEqual(
            saved,
            [[6, 7, 8]],
            "what it generated may be wrong, a step ahead was computed without the block",
        )
        connector.request_finished(request, blocks)
        plan()

        side._damage.wrong = set(blocks)
        request = start("c", blocks)
        self.assertEqual(
            side._damage.wrong, set(blocks[3:]), "what is loaded is right, unless it is reported"
        )
        side._damage.wrong.clear()
        plan(new=[("c", blocks, 12, 8)])
        self.assertEqual(plan(preempted=["c"]), ([], [], []))
        self.assertEqual(plan(), ([], [], []))
        self.assertEqual(connector.request_finished(request, [])[0], False)

        request = start("e", blocks)
        plan(new=[("e", blocks, 12, 8)])
        self.assertTrue(connector.request_finished(request, blocks)[0])
        self.assertEqual(plan(), ([], [], []), "not reported before its blocks are saved")
        self.assertEqual(plan(), ([], [[4, 5]], ["e"]))

        for leave in ("preempted", "finished"):
            request = start(leave, blocks)
            plan(new=[(leave, blocks, 12, 8)])
            if leave == "preempted":
                plan(preempted=[leave])
            connector.request_finished(request, blocks)
            evicted.clear()
            connector.update_connector_output(SimpleNamespace(invalid_block_ids={2}))
            self.assertEqual(
                evicted,
                [set(range(2, 11))],
                "what was computed after the block is not found any more",
            )
            for _ in range(3):
                plan()
        connector.update_connector_output(SimpleNamespace(invalid_block_ids={2}))
        self.assertEqual(evicted[-1], {2}, "nobody remembers it by now")

        one = config.batches_of(
            SimpleNamespace(), SimpleNamespace(tp_size=1, pp_size=1, pcp_size=1)
        )
        self.assertEqual((one, side._batches), (1, 2))

    def test_damage(self):
        """Blocks of 4 tokens. a lost its block 2 and computes anew in two steps; b shares its
        blocks 1 to 4 and goes on too early."""
        damage = Damage(4)
        a = SimpleNamespace(blocks=[1, 2, 3, 4, 5], spoilt=NOWHERE)
        b = SimpleNamespace(blocks=[1, 2, 3, 4, 7, 8], spoilt=NOWHERE)
        c = SimpleNamespace(blocks=[9, 10], spoilt=NOWHERE)
        self.assertEqual(damage.compute([(a, 0, 20), (b, 16, 2)]), set())
        self.assertEqual([damage.lose(r.blocks, {2}) for r in (a, b, c)], [1, 1, -1])
        self.assertEqual(damage.wrong, {2, 3, 4, 5, 7, 8})
        self.assertEqual(damage.compute([(b, 16, 2), (c, 0, 8), (a, 4, 10)]), {2, 3})
        self.assertEqual((a.spoilt, b.spoilt, c.spoilt), (NOWHERE, 4, NOWHERE))
        self.assertEqual([damage.right(r, 9) for r in (a, b, c)], [3, 3, 2])
        self.assertEqual(damage.compute([(b, 18, 4), (a, 14, 6)]), {4, 5})
        self.assertEqual((b.spoilt, damage.wrong), (4, {7, 8}), "what b has computed stays wrong")
        self.assertEqual([damage.right(r, 4) for r in (a, b)], [4, 4])
        self.assertEqual([damage.right(r, 9) for r in (a, b)], [5, 4])
        d = SimpleNamespace(blocks=[1, 2, 3, 4, 7], spoilt=NOWHERE)
        self.assertEqual(
            damage.compute([(b, 16, 4), (d, 20, 1)]),
            {7},
            "b goes back, and d shares what is right by then",
        )
        self.assertEqual((b.spoilt, d.spoilt, damage.wrong), (NOWHERE, NOWHERE, {8}))
        damage.load([8])
        self.assertEqual(damage.wrong, set())

    def test_a_pool_that_is_away(self):
        calls = []

        def connect(url, **options):
            calls.append(url)
            raise tarn.ConnectionFailed("refused")

        pool = Pool("tarn://x", 60_000, {}, connect)
        with self.assertLogs("tarn.vllm", "WARNING") as logs:
            self.assertEqual(pool.prefix(["a"], 0, 0), 0)
            self.assertEqual(pool.get(["a", "b"], [1, 2], [3, 4]), [tarn.Status.ECLOSED] * 2)
            self.assertEqual(pool.put(["a"], [1], [2], {}), [tarn.Status.ECLOSED])
        self.assertEqual((len(calls), len(logs.output), pool.away), (1, 1, True))
        pool._breaker.retry()
        pool._connect = lambda url: SimpleNamespace(
            prefix_length=lambda *a, **k: 3, close=lambda: None
        )
        with self.assertLogs("tarn.vllm", "WARNING") as logs:
            self.assertEqual(pool.prefix(["a"], 0, 0), 3)
        self.assertIn("is back", logs.output[0])
        pool.close()
        self.assertEqual(pool.prefix(["a"], 0, 0), 0)

    def test_what_is_wrong_with_the_url_is_said_at_the_start(self):
        for url in ("http://h", "tarn://127.0.0.1:bad"):
            with self.assertRaises(tarn.InvalidArgument):
                Engine(url, TarnConnector)
        with harness.Server("64mb", "--requirepass", "secret", user=":secret@") as server:
            url = server.url
            with self.assertRaises(tarn.PermissionDenied):
                Engine(url.replace("secret", "wrong"), TarnConnector)
            Engine(url, TarnConnector).close()
        with self.assertLogs("tarn.vllm", "WARNING") as logs:
            Engine(url, TarnConnector, retry_ms=60_000, timeout_ms=500).close()
        self.assertNotIn("secret", "".join(logs.output))

    def test_says_once_that_failed_loads_end_requests(self):
        """vLLM's default policy; who only saves has no loads."""
        with harness.Server("64mb") as server:
            for options, times in (
                (dict(policy="fail", tp=2), 1),
                (dict(policy="fail", role="kv_producer"), 0),
                (dict(), 0),
            ):
                with self.assertLogs("tarn.vllm", "WARNING") as logs:
                    logging.getLogger("tarn.vllm").warning("-")
                    Engine(server.url, TarnConnector, **options).close()
                said = [
                    line for line in logs.output if '"kv_load_failure_policy": "recompute"' in line
                ]
                self.assertEqual(len(said), times, (options, logs.output))

    def test_no_layer_arrives_after_the_end(self):
        with harness.Server("64mb") as server:
            engine = Engine(server.url, TarnConnector, layerwise=True)
            side, arrived = engine.workers[0].connector._worker, []

            def load(load, layer, mark):
                time.sleep(0.1)
                arrived.append(layer)

            side._layer_load = LayerLoad([Load("r", [b"h" * 32], [1], False)], 3, load, None)
            engine.close()
            self.assertEqual(arrived, [0, 1, 2])

    def test_what_the_pool_does_not_take_is_a_miss(self):
        with harness.Server("64mb") as server:
            pool = Pool(server.url, 60_000)
            with self.assertLogs("tarn.vllm", "ERROR") as logs:
                for _ in range(2):
                    self.assertEqual(pool.get(["k" * 2000], [1], [1]), [tarn.Status.ECLOSED])
            self.assertEqual(
                (len(logs.output), pool.figures.total("failed_calls"), pool.away), (1, 2, False)
            )
            pool.close()

    # What vLLM's engine calls, with the names of the arguments that it gives by name or that its
    # base class has, and how many of them are given. "c": a class method.
    CALLED = {
        "get_num_new_matched_tokens": ["request", "num_computed_tokens"],
        "update_state_after_alloc": ["request", "blocks", "num_external_tokens"],
        "build_connector_meta": ["scheduler_output"],
        "update_connector_output": ["connector_output"],
        "request_finished": ["request", "block_ids"],
        "request_finished_all_groups": ["request", "block_ids"],
        "on_new_request": ["request"],
        "bind_gpu_block_pool": ["gpu_block_pool"],
        "reset_cache": [],
        "has_pending_push_work": [],
        "has_pending_block_frees": [],
        "set_xfer_handshake_metadata": ["metadata"],
        "set_xfer_handshake_metadata_pp_aware": ["metadata"],
        "get_handshake_metadata": [],
        "register_kv_caches": ["kv_caches"],
        "register_cross_layers_kv_cache": ["kv_cache", "attn_backend"],
        "set_host_xfer_buffer_ops": ["copy_operation"],
        "bind_connector_metadata": ["connector_metadata"],
        "handle_preemptions": ["kv_connector_metadata"],
        "start_load_kv": ["forward_context"],
        "wait_for_layer_load": ["layer_name"],
        "save_kv_layer": ["layer_name", "kv_layer", "attn_metadata"],
        "wait_for_save": [],
        "get_finished": ["finished_req_ids"],
        "get_transfer_results": ["finished_req_ids"],
        "get_block_ids_with_load_errors": [],
        "build_connector_worker_meta": [],
        "clear_connector_metadata": [],
        "get_kv_connector_stats": [],
        "build_kv_connector_stats": ["data"],
        "build_prom_metrics": [
            "vllm_config",
            "metric_types",
            "labelnames",
            "per_engine_labelvalues",
        ],
        "get_kv_connector_kv_cache_events": [],
        "take_events": [],
        "shutdown": [],
        "get_required_kvcache_layout": ["vllm_config"],
        "requires_piecewise_for_cudagraph": ["extra_config"],
    }

    def test_signatures(self):
        for name, names in self.CALLED.items():
            parameters = list(inspect.signature(getattr(TarnConnector, name)).parameters.values())
            if inspect.ismethod(getattr(TarnConnector, name)):
                got = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
            else:
                got = [p.name for p in parameters[1:] if p.kind == p.POSITIONAL_OR_KEYWORD]
            self.assertEqual(got, names, name)
        for name in ("start_load_kv", "save_kv_layer"):
            kinds = [
                p.kind for p in inspect.signature(getattr(TarnConnector, name)).parameters.values()
            ]
            self.assertIn(inspect.Parameter.VAR_KEYWORD, kinds)
        self.assertEqual(
            list(inspect.signature(TarnConnector).parameters),
            ["vllm_config", "role", "kv_cache_config"],
        )
        self.assertIs(TarnConnector.requires_kv_delivery.fget(None), False)
        self.assertTrue(issubclass(TarnConnector, base.SupportsHMA))
        asked = {"requires_kv_delivery", "prefer_cross_layer_blocks", "stats"}  # as they are
        own = {name for name in vars(TarnConnector) if not name.startswith("_")}
        self.assertEqual(own - self.CALLED.keys(), asked, "not called")


if __name__ == "__main__":
    unittest.main()
