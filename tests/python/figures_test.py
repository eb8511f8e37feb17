"""libtarn's figures where an engine's metrics are: prometheus_client's, as each of its releases has
them, and none where nobody has loaded it."""

import logging
import re
import sys
import types
import unittest
from unittest import mock

from harness import TarnTest, together

from tarn import _figures
from tarn._figures import Growth, Publisher, cluster_of
from tarn._link import Link, settings
from tarn.lmcache import _base
from tarn.lmcache.gate import Gate

logging.getLogger("tarn").addHandler(logging.NullHandler())


class Value:
    """A number of a metric."""

    def __init__(self):
        self.n = 0

    def inc(self, n=1):
        assert n >= 0
        self.n += n


class Fake:
    """Stands for prometheus_client; `private`: its histograms have the insides that all releases
    until now have."""

    def __init__(self, private=True):
        self.module, self.made, fake = types.ModuleType("prometheus_client"), {}, self

        class Metric:
            def __init__(self, name, text, labels, buckets=()):
                if name in fake.made:
                    raise ValueError(f"Duplicated timeseries: {name}")
                fake.made[name] = self
                self.names, self.buckets, self.children = tuple(labels), list(buckets), {}
                assert len(self.buckets) == len(set(self.buckets))
                assert text

            def labels(self, *values):
                assert len(values) == len(self.names)
                return self.children.setdefault(values, self.child())

            def child(self):
                return Value()

        class Histogram(Metric):
            def child(self):
                cells = types.SimpleNamespace(observed=[])
                cells.observe = cells.observed.append
                if private:
                    cells._sum = Value()
                    cells._buckets = [Value() for _ in (*self.buckets, None)]
                return cells

        self.module.Counter, self.module.Histogram = Metric, Histogram

    def value(self, name, *labels):
        return self.made[name].children[labels].n


class Figures(TarnTest):
    def published(self, fake):
        """Twice, with calls in between."""
        client, publisher = self.client(), Publisher("east")
        with mock.patch.dict(sys.modules, prometheus_client=fake.module):
            for i in range(2):
                keys = [f"{self.id()}.{i}.{k}" for k in range(4)]
                client.put_many([(key, b"x" * 1000) for key in keys])
                client.get_many(keys)
                client.get("nothing")
                publisher._growth._due = 0.0
                publisher.look(client)
                publisher.look(client)  # not within a second
        return client

    def test_counters_and_histograms(self):
        fake = Fake()
        client = self.published(fake)
        stats = client.stats()
        for name in ("gets", "get_hits", "get_misses", "put_stored", "round_trips"):
            self.assertEqual(fake.value(f"tarn_client_{name}", "east"), stats[name], name)
        read = fake.made["tarn_client_transport_read_bytes"].children
        self.assertEqual(sum(v.n for v in read.values()), 8000)
        self.assertNotIn(("east",), fake.made["tarn_client_crc_mismatches"].children)
        for metric, operation, kind in (("call", "get", "get"), ("batch", "put", "put_batch")):
            h = fake.made[f"tarn_client_{metric}_duration_seconds"].children["east", operation]
            right = client.histogram(kind)
            upto, so_far = [], 0
            for cell in h._buckets:
                so_far += cell.n
                upto.append(so_far)
            self.assertEqual(upto[:-1], [n for _, n in right["buckets"]])
            self.assertEqual(upto[-1], right["count"])
            self.assertAlmostEqual(h._sum.n, right["sum_us"] / 1e6)
            self.assertEqual(h.observed, [])

    def test_they_are_called_as_tarn_figures_text_calls_them(self):
        client = self.client()
        client.put("named", b"x")
        ours = {f"tarn_client_{name}_total": text for name, text in _figures.COUNTS.items()}
        for way, text in _figures.BYTES.items():
            ours[f"tarn_client_transport_{way}_bytes_total"] = text
        for name, (text, _) in _figures._HISTOGRAMS.items():
            ours[f"tarn_client_{name}_duration_seconds"] = text
        # what is waited for the server: there it is a histogram, whose sum this is
        del ours["tarn_client_round_trip_seconds_total"]
        theirs = dict(re.findall(r"^# HELP (\S+) (.*)\.$", client.figures(), re.M))
        self.assertEqual({name: theirs.get(name) for name in ours}, ours)

    def test_another_prometheus_client(self):
        """Whose histograms are not known: each call counts as the bound of its bucket."""
        fake = Fake(private=False)
        client = self.published(fake)
        h = fake.made["tarn_client_call_duration_seconds"].children["east", "get"]
        self.assertEqual(len(h.observed), client.histogram("get")["count"])
        bounds = [bound / 1e6 for bound, _ in client.histogram("get")["buckets"]]
        self.assertLessEqual(set(h.observed), {*bounds, 2 * bounds[-1]})

    def test_nobody_has_it(self):
        client, publisher = self.client(), Publisher("")
        with mock.patch.dict(sys.modules):
            sys.modules.pop("prometheus_client", None)
            with mock.patch.object(_figures, "client_counts", side_effect=AssertionError):
                publisher.look(client)
            self.assertNotIn("prometheus_client", sys.modules, "it is not imported for this")

    def test_what_goes_wrong_stops_nobody(self):
        client, fake = self.client(), Fake()
        fake.module.Counter("tarn_client_gets", "somebody else's", [])
        with mock.patch.dict(sys.modules, prometheus_client=fake.module):
            Publisher("").look(client)  # there are metrics of that name
            broken = types.ModuleType("prometheus_client")
            broken.Counter = broken.Histogram = None
            with mock.patch.dict(sys.modules, prometheus_client=broken):
                publisher = Publisher("")
                with self.assertLogs("tarn", "WARNING") as said:
                    for _ in range(3):
                        publisher._growth._due = 0.0
                        client.exists("nothing")
                        publisher.look(client)
            self.assertEqual(len(said.output), 1)

    def test_links_and_gates(self):
        fake = Fake()
        with mock.patch.dict(sys.modules, prometheus_client=fake.module):
            given = {"url": self.server.url + "?cluster=west", "client": {"cluster": "unused"}}
            link = Link(settings(given, "test"), logging.getLogger("tarn"), "test")
            self.addCleanup(link.close)
            for _ in range(2):
                link.call("exists", lambda c: c.exists("nothing"), False)
                link._publisher._growth._due = 0.0
            gate = Gate(_base.Troubles(logging.getLogger("tarn")))
            client = self.client()
            gate.publish(client, "north")
            gate.call("exists", client.exists, "nothing")
        self.assertEqual(fake.value("tarn_client_lookups", "west"), 2)
        self.assertEqual(fake.value("tarn_client_lookups", "north"), 1)

    def test_many_threads(self):
        client, publisher, fake = self.client(), Publisher(""), Fake()
        with mock.patch.dict(sys.modules, prometheus_client=fake.module):

            def work(i):
                for _ in range(50):
                    client.exists(f"absent{i}")
                    publisher._growth._due = 0.0
                    publisher.look(client)

            together(work, range(8))
            publisher._growth._due = 0.0
            publisher.look(client)
        self.assertEqual(fake.value("tarn_client_lookups", ""), 400)

    def test_growth(self):
        growth, counts = Growth(), {"a": 3, "b": 0}
        self.assertEqual(growth.take(lambda: dict(counts)), {"a": 3})
        counts["a"] = 5
        self.assertEqual(growth.take(lambda: dict(counts)), {})
        growth._due = 0.0
        self.assertEqual(growth.take(lambda: dict(counts, b=1)), {"a": 2, "b": 1})

    def test_cluster(self):
        self.assertEqual(cluster_of("tarn://h:1?cluster=a%20b", {"cluster": "c"}), "a b")
        self.assertEqual(cluster_of("tarn://h:1?timeout_ms=1", {"cluster": "c"}), "c")
        self.assertEqual(cluster_of("tarn://h:1", {}), "")


if __name__ == "__main__":
    sys.exit(unittest.main())
