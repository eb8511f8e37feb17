"""Objects that become garbage together, in a cycle: Python finalizes them in any order, the oldest
first as a rule."""

import subprocess
import sys
import unittest

from harness import Server, TarnTest, environment

HEAD = """
import gc, sys, weakref
sys.path[:0] = {path!r}
import tarn
from tarn.memory import pin
gc.disable()

class Ring:
    def __init__(self, **what):
        self.__dict__.update(what, ring=self)

"""
CASES = {
    "view": """
client = tarn.Client(URL, failover_ms=20000)
client.put("viewed", bytes(100_000))
stays = tarn.Client(URL)
ring = Ring(client=client, view=client.view("viewed", lease_ms=60_000))
del client, ring
gc.collect()
assert "pool_quarantined:0" in stays.command("INFO", "pool")
stays.remove("viewed")
assert "pool_quarantined:0" in stays.command("INFO", "pool"), "the lease is still there"
""",
    "writer": """
client = tarn.Client(URL)
ring = Ring(client=client, writer=client.writer("written", 100_000))
del client, ring
gc.collect()
tarn.Client(URL).put("written", b"now", timeout_ms=20000)
""",
    "queue": """
class Bytes(bytearray):
    def __del__(self):
        order.append("memory")

order = []
client = tarn.Client(URL)
queue = client.queue()
memory = pin(Bytes(1000), True)
queue.get(["never"], [memory.address], [1000], wait_ms=500, keep=memory)
ring = Ring(client=client, memory=memory, queue=queue)
close = type(queue).close
type(queue).close = lambda self: (close(self), order.append("queue"))
del client, memory, queue, ring
gc.collect()
assert order == ["queue", "memory"], order
""",
    "offload": """
from vllm_offload_test import BLOCK, Job, TarnTierManager, key, request, spec

class Bytes(bytearray):
    def __del__(self):
        order.append("memory")

order = []
close = tarn.Queue.close
tarn.Queue.close = lambda self: (close(self), order.append("queue"))
tier = TarnTierManager(spec(), memoryview(Bytes(8 * BLOCK)).cast("B", (8, BLOCK)), url=URL)
tier.submit_store(Job(1, [key(i) for i in range(8)], list(range(8)), False, request("r")))
assert tier.has_pending_work()
ring = Ring(tier=tier)
del tier, ring
gc.collect()
assert order == ["queue", "memory"], order
""",
    "transfer": """
from tarn.transfer import End, READ, Tasks
far = End("far")
lent = far.alloc(1 << 20, rights=READ)
end = End("near", transport="tcp")
peer = end.connect(far.endpoint)
def submitted():
    memory = bytearray(1 << 20)
    return peer.submit(Tasks.merged(READ, memory, [0], [0], 1 << 20, remote=lent.address))
batches = [submitted() for _ in range(8)]
end.register(bytearray(1 << 20))
ring = Ring(end=end, peer=peer, batches=batches)
del end, peer, batches, ring
gc.collect()
from tarn import _lib
ours = list(_lib.needed.values())
assert len(ours) == 1, ours  # the far end's
""",
}


class GarbageTest(TarnTest):
    """Each case in a process of its own, which must not crash."""

    def finish(self, name):
        with Server() as server:
            path = [p for p in sys.path if p.endswith("python")]
            code = HEAD.format(path=path) + f"URL = {server.url!r}\n" + CASES[name]
            run = subprocess.run(
                [sys.executable, "-c", code],
                env=environment(python=True),
                capture_output=True,
                text=True,
                timeout=100,
            )
            self.assertEqual((run.returncode, run.stderr[-2000:]), (0, ""))

    def test_client_with_a_view(self):
        self.finish("view")

    def test_client_with_a_writer(self):
        self.finish("writer")

    def test_client_with_a_queue_at_work(self):
        self.finish("queue")

    def test_tier_with_a_store_under_way(self):
        self.finish("offload")

    def test_end_with_a_batch_under_way(self):
        self.finish("transfer")


if __name__ == "__main__":
    sys.exit(unittest.main())
