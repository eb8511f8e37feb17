"""Who puts a key whose value he could not use replaces it; all others leave what is there as it is.
"""

import unittest
from types import SimpleNamespace

from harness import TarnTest
from sglang_test import Config, HostPool

from tarn import _distrust
from tarn._distrust import Distrust
from tarn.errors import Status
from tarn.memory import pin
from tarn.sglang import TarnHiCache
from tarn.vllm.pool import Pool
from tarn.vllm_ascend import TarnBackend


class Sets(unittest.TestCase):
    def setUp(self):
        self.calls, self.answer = [], {}

    def put(self, keys, addresses, sizes, replace=False, **options):
        self.calls.append((list(keys), list(addresses), list(sizes), replace, options))
        return [self.answer.get(key, 0) for key in keys]

    def test_only_what_is_distrusted_is_replaced_and_once(self):
        distrust = Distrust()
        distrust.add("b")
        self.answer = {"a": int(Status.EEXISTS)}
        self.assertEqual(
            distrust.put(self.put, ["a", "b", "c"], [1, 2, 3], [4, 5, 6], ttl_ms=7),
            [int(Status.EEXISTS), 0, 0],
        )
        self.assertEqual(
            self.calls,
            [
                (["a", "c"], [1, 3], [4, 6], False, {"ttl_ms": 7}),
                (["b"], [2], [5], True, {"ttl_ms": 7}),
            ],
        )
        distrust.put(self.put, ["b"], [2], [5])
        self.assertEqual(self.calls[2:], [(["b"], [2], [5], False, {})])

    def test_what_the_caller_says(self):
        Distrust().put(self.put, ["a", "b"], [1, 2], [3, 4], [False, True])
        self.assertEqual([(c[0], c[3]) for c in self.calls], [(["a"], False), (["b"], True)])

    def test_a_put_that_fails_is_tried_again(self):
        distrust = Distrust()
        distrust.add("a")
        self.answer = {"a": int(Status.ENOSPACE)}
        distrust.put(self.put, ["a"], [1], [2])
        self.answer = {}
        distrust.put(self.put, ["a"], [1], [2])
        self.assertEqual([c[3] for c in self.calls], [True, True])

    def test_it_is_bounded(self):
        distrust = Distrust()
        for i in range(_distrust.KEYS_MAX + 10):
            distrust.add(str(i))
        self.assertEqual(
            sum(distrust.take([str(i) for i in range(_distrust.KEYS_MAX + 10)])), _distrust.KEYS_MAX
        )


class Connectors(TarnTest):
    """A value of a wrong size under a block's name, in each of them."""

    def test_sglang(self):
        cache = TarnHiCache(
            Config(extra_config={"interface_v1": 1, "tarn": {"url": self.server.url}}), {}
        )
        self.addCleanup(cache.close)
        pool = HostPool()
        cache.register_mem_pool_host(pool)
        client, [name] = self.client(), cache._pools["kv"].keys(["h"])
        for wrong in (b"short", b"x" * (pool.page * pool.kinds + 1)):
            client.put(name, wrong, replace=True)
            pool.fill(1, "right")
            self.assertEqual(cache.batch_get_v1(["h"], pool.slots([0])), [False])
            self.assertEqual(cache.batch_set_v1(["h"], pool.slots([1])), [True])
            self.assertEqual(cache.batch_get_v1(["h"], pool.slots([2])), [True])
            self.assertTrue(pool.holds(2, "right"))

    def test_vllm_ascend(self):
        backend = TarnBackend(SimpleNamespace(rank=0), options={"url": self.server.url})
        self.addCleanup(backend.close)
        client, memory = self.client(), pin(bytearray(b"right" * 10), writable=True)
        for wrong in (b"short", b"x" * 51):
            client.put("block", wrong, replace=True)
            self.assertLess(backend.get(["block"], [[memory.address]], [[memory.size]])[0], 0)
            memory = pin(bytearray(b"right" * 10), writable=True)
            backend.put(["block"], [[memory.address]], [[memory.size]])
            self.assertEqual(client.get("block"), b"right" * 10)

    def test_vllm(self):
        pool = Pool(self.server.url, 1000)
        self.addCleanup(pool.close)
        client, memory = self.client(), pin(bytearray(b"right" * 10), writable=True)
        client.put("other", b"as it is")
        client.put("block", b"short")
        pool.distrust.add("block")
        statuses = pool.put(["other", "block"], [[memory.address]] * 2, [[memory.size]] * 2, {})
        self.assertEqual(statuses, [int(Status.EEXISTS), 0])
        self.assertEqual(client.get_many(["other", "block"]), [b"as it is", b"right" * 10])


if __name__ == "__main__":
    unittest.main()
