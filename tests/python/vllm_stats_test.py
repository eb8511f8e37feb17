"""What the connector counts: figures, vLLM's classes for them, and which events count as what."""

import json
import logging
import threading
import unittest
from collections import Counter
from types import SimpleNamespace

from harness import Server, wait_until
from tarn import _figures
from tarn.vllm import TarnConnector, base
from tarn.vllm.requests import trace_of
from tarn.vllm.stats import COUNTS, TIMES, Figures, TarnPrometheus, TarnStats
from vllm_engine import Engine, joined
from vllm_helpers import WithServer, prompt
from vllm_model import Request


class Metric:
    """Stands for a metric of prometheus_client; says what was done to it."""

    made = {}

    def __init__(self, name, documentation, labelnames, **options):
        assert documentation and name not in self.made, name
        self.made[name] = self
        self.labelnames, self.options, self.values = labelnames, options, {}

    def labels(self, *values):
        assert len(values) == len(self.labelnames)
        mine = self.values.setdefault(values, [])
        return SimpleNamespace(inc=mine.append, observe=mine.append, set=mine.append)


def kind(name):
    return type(name, (), {})


class Figured(unittest.TestCase):
    """Without a server."""

    def test_figures(self):
        figures = Figures()
        self.assertIsNone(figures.take())
        figures.count(saved_objects=2, saved_bytes=0)
        with figures.timing("load"):
            pass
        with self.assertRaises(ValueError):
            with figures.timing("load"):
                raise ValueError
        data = figures.take()
        self.assertEqual((data["saved_objects"], len(data["load"])), (2, 1))
        self.assertNotIn("saved_bytes", data, "what is 0 is left out")
        self.assertIsNone(figures.take())
        figures.count(saved_objects=3)
        self.assertEqual(
            (figures.take(), figures.total("saved_objects")), ({"saved_objects": 3}, 5)
        )
        for _ in range(5000):
            with figures.timing("save"):
                pass
        self.assertEqual(len(figures.take()["save"]), 4096, "nobody may be asking")

    def test_figures_of_many_threads(self):
        figures, taken = Figures(), []

        def work():
            for _ in range(2000):
                figures.count(saved_objects=1, saved_bytes=10)
                taken.append(figures.take() or {})

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, right in (("saved_objects", 8000), ("saved_bytes", 80000)):
            self.assertEqual(sum(data.get(name, 0) for data in taken), right)

    def test_stats(self):
        empty = TarnConnector.build_kv_connector_stats()
        self.assertTrue(empty.is_empty() and isinstance(empty, base.StatsBase))
        one = TarnStats(data={"saved_objects": 2, "save": [0.25]})
        self.assertIs(one.aggregate(TarnStats(data={"saved_objects": 3, "load": [0.1]})), one)
        self.assertIs(one.aggregate(TarnStats(data={"save": [0.75, 0.5], "hit_tokens": 7})), one)
        sent = TarnConnector.build_kv_connector_stats(json.loads(json.dumps(one.data)))
        self.assertEqual(
            sent.data,
            {"saved_objects": 5, "save": [0.25, 0.75, 0.5], "load": [0.1], "hit_tokens": 7},
        )
        self.assertEqual(
            sent.reduce(),
            dict(
                hit_tokens=7, saved_objects=5, loads=1, load_p50_ms=100.0, load_p95_ms=100.0,
                saves=3, save_p50_ms=500.0, save_p95_ms=750.0,
            ),
        )  # fmt: skip
        data = {"hit_tokens": 1}  # as two loggers get it
        two = [TarnConnector.build_kv_connector_stats(data) for _ in range(2)]
        for stats in two:
            stats.aggregate(TarnStats(data={"hit_tokens": 2}))
        self.assertEqual([stats.data["hit_tokens"] for stats in two], [3, 3])
        sent.reset()
        self.assertTrue(sent.is_empty())
        self.assertEqual(empty.data, {}, "each has a dictionary of its own")

    def test_prometheus(self):
        Metric.made.clear()
        prom = TarnConnector.build_prom_metrics(
            SimpleNamespace(kv_transfer_config=None),
            {kind(name): Metric for name in ("Gauge", "Counter", "Histogram")},
            ["model_name", "engine"],
            {0: ["m", "0"], 1: ["m", "1"]},
        )
        self.assertIsInstance(prom, TarnPrometheus)
        names = {f"vllm:tarn_{n}" for n in (*COUNTS, *(f"{t}_seconds" for t in TIMES), "pool_away")}
        names |= {f"vllm:tarn_client_{n}" for n in _figures.COUNTS}
        names |= {f"vllm:tarn_client_{way}_bytes" for way in ("read", "written")}
        self.assertEqual(set(Metric.made), names)

        def values(name, engine):
            return Metric.made[f"vllm:tarn_{name}"].values["m", str(engine)]

        prom.observe({"saved_objects": 3, "load": [0.1, 0.2], "pool_lost": 2}, 1)
        prom.observe({"saved_objects": 4, "pool_back": 1}, 1)
        prom.observe({"pool_lost": 1})
        self.assertEqual((values("saved_objects", 1), values("saved_objects", 0)), ([3, 4], []))
        self.assertEqual(values("load_seconds", 1), [0.1, 0.2])
        self.assertEqual((values("pool_away", 1), values("pool_away", 0)), ([2, 1], [1]))
        prom.observe({"client_retries": 2, "client_round_trip_seconds": 0.5}, 1)
        prom.observe({"client_read_bytes:shm": 7, "client_read_bytes:tcp": 8}, 1)
        self.assertEqual(values("client_retries", 1), [2])
        self.assertEqual(values("client_round_trip_seconds", 1), [0.5])
        read = Metric.made["vllm:tarn_client_read_bytes"]
        self.assertEqual(read.labelnames, ["model_name", "engine", "transport"])
        self.assertEqual(read.values, {("m", "1", "shm"): [7], ("m", "1", "tcp"): [8]})
        buckets = Metric.made["vllm:tarn_load_seconds"].options["buckets"]
        self.assertEqual(sorted(set(buckets)), list(buckets))


class Counted(WithServer):
    """With engines."""

    def taken(self, engine):
        """What vLLM has added up since the last call."""
        stats, engine.stats = engine.stats, None
        for connector in (engine.connector, *(w.connector for w in engine.workers)):
            stats = joined([stats, connector.get_kv_connector_stats()], "aggregate")
            self.assertIsNone(connector.get_kv_connector_stats(), "once")
        return stats.data

    def test_what_is_counted(self):
        a = self.engine(tp=2)
        a.add(Request(prompt(1, 37)))
        self.settle(a)
        data = self.taken(a)
        self.assertEqual((data["looked_up_tokens"], data["saved_objects"]), (36, 18))
        self.assertTrue({"hit_tokens", "loaded_objects", "failed_objects"}.isdisjoint(data))
        self.assertGreater(data["saved_bytes"], 0)
        self.assertEqual(len(data["lookup"]), 1)

        b = self.engine(tp=2)
        b.add(Request(prompt(1, 37)))
        b.add(Request(prompt(1, 20) + prompt(2, 20)))
        self.settle(b)
        more = self.taken(b)
        self.assertEqual((more["looked_up_tokens"], more["hit_tokens"]), (36 + 16, 36))
        self.assertEqual(more["loaded_objects"] * data["saved_bytes"], more["loaded_bytes"] * 18)
        self.assertEqual(more["saved_objects"], 2 * 5)
        self.assertGreaterEqual(len(more["load"]), 2)
        ours = {name for name in more if not name.startswith("client_")}
        self.assertTrue(ours <= {*COUNTS, *TIMES})

    def test_what_libtarn_counts(self):
        """In all workers and the scheduler, each once."""
        engine = self.engine(tp=2)
        engine.add(Request(prompt(1, 37)))
        engine.add(Request(prompt(1, 37)))
        self.settle(engine)
        for half in (engine.connector._scheduler, *(w.connector._worker for w in engine.workers)):
            half.figures._growth._due = 0.0  # now, not in a second
        data = self.taken(engine)
        expected = Counter()
        for half in (engine.connector._scheduler, *(w.connector._worker for w in engine.workers)):
            expected.update(_figures.client_counts(half._pool._use()))
        # what was taken before came with the steps
        names = {name for name, n in expected.items() if n}
        self.assertLessEqual({"puts", "lookups", "round_trips"}, names)
        for name in names:
            self.assertAlmostEqual(data[f"client_{name}"], expected[name], places=5, msg=name)
        written = sum(n for name, n in data.items() if name.startswith("client_written_bytes:"))
        self.assertEqual(written, data["saved_bytes"])
        self.assertEqual(data["client_put_stored"], data["saved_objects"])
        known = {f"client_{name}" for name in (*_figures.COUNTS, "read_bytes", "written_bytes")}
        clients = {name.partition(":")[0] for name in data if name.startswith("client_")}
        self.assertLessEqual(clients, known)

    def test_traces(self):
        """The traceparent of a request reaches the server with its look-up and its loads."""
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        request = Request(prompt(1, 37))
        request.trace_headers = {"traceparent": trace, "tracestate": "a=b"}
        self.assertEqual(trace_of(request), trace)
        bad = ({}, None, [], {"traceparent": 7}, {"traceparent": trace + "0"}, "x")
        bad += ({"traceparent": trace.upper()}, {"traceparent": trace.replace("4bf9", "4bfx")})
        bad += ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"},)
        for headers in bad:
            self.assertIsNone(trace_of(SimpleNamespace(trace_headers=headers)), headers)
        self.assertIsNone(trace_of(SimpleNamespace()))
        first = self.engine()
        first.add(Request(prompt(1, 37)))
        self.settle(first)
        look = self.client()
        look.command("CONFIG", "SET", "slowlog-log-slower-than", "0")
        look.command("SLOWLOG", "RESET")
        second = self.engine()
        second.add(request)
        self.settle(second)
        look.command("CONFIG", "SET", "slowlog-log-slower-than", "-1")
        words = look.command("SLOWLOG", "GET", "-1").split("\n")
        command, traced = "", set()
        for word in words:
            if word in ("PREFIXLEN", "MGETREPLICAS", "MPUTSTART", "SEGMENT", "RELEASE", "CLIENT"):
                command = word
            elif word == f"(traceparent {trace})":
                traced.add(command)
        self.assertLessEqual({"PREFIXLEN", "MGETREPLICAS"}, traced)
        self.assertNotIn("MPUTSTART", traced)

    def test_a_pool_that_goes_and_comes(self):
        with Server("64mb") as server:
            engine = Engine(
                server.url, TarnConnector, retry_ms=100, timeout_ms=2000, lookup_timeout_ms=2000
            )
            self.engines.append(engine)
            engine.add(Request(prompt(1, 37)))
            self.settle(engine)
            self.taken(engine)
            server.kill()
            engine.add(Request(prompt(2, 37)))
            engine.add(Request(prompt(3, 37)))
            self.settle(engine)
            data = self.taken(engine)
            self.assertGreaterEqual(data["pool_lost"], 1)
            self.assertGreater(data["failed_calls"] + data.get("skipped_calls", 0), 1)
            self.assertEqual(data["failed_objects"], 18)
            server.start()
            for half in (engine.connector._scheduler, engine.workers[0].connector._worker):
                wait_until(lambda pool=half._pool: not pool.away)
            engine.add(Request(prompt(4, 37)))
            self.settle(engine)
            self.assertEqual(self.taken(engine)["pool_back"], data["pool_lost"])


logging.getLogger("tarn.vllm").addHandler(logging.NullHandler())

if __name__ == "__main__":
    unittest.main()
