"""What utils/bench/groups.sh measures: batch_put_from of the Mooncake drop-in with no group_ids,
with one for all keys of a batch, and with one for each, as enable_group_semantics of vLLM and
SGLang gives them. Its table: microseconds a key, medians; and times the first row."""

import os
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "utils", "python", p) for p in ("", "compat")]

from mooncake.store import MooncakeDistributedStore, ReplicateConfig  # noqa: E402

from tarn.memory import pin  # noqa: E402

KEYS = 512
WAYS = [("none", 0), ("one for all keys", KEYS), ("one for each key", 1)]


def main() -> None:
    port, rounds = sys.argv[1], int(sys.argv[2])
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 0, "auto", "", f"127.0.0.1:{port}") == 0
    print("| `group_ids` | " + " | ".join(f"{s >> 10} KiB | times" for s in (4096, 65536)) + " |")
    print("| --- " * 5 + "|")
    took = {(way, size): [] for way in WAYS for size in (4096, 65536)}
    memory = pin(bytearray(b"x") * (KEYS * 65536))
    for n in range(rounds * 10):
        for (way, size), times in took.items():
            keys = [f"{n}:{way[0]}:{size}:{i}" for i in range(KEYS)]
            config = ReplicateConfig()
            if way[1]:
                config.group_ids = [f"{n}:{way[0]}:{i // way[1]}" for i in range(KEYS)]
            at = [memory.address + i * size for i in range(KEYS)]
            began = time.perf_counter()
            codes = store.batch_put_from(keys, at, [size] * KEYS, config)
            times.append(time.perf_counter() - began)
            assert codes == [0] * KEYS
    for way in WAYS:
        row = [way[0]]
        for size in (4096, 65536):
            us, first = (statistics.median(took[w, size]) * 1e6 / KEYS for w in (way, WAYS[0]))
            row += [f"{us:.1f}", f"{us / first:.2f}"]
        print("| " + " | ".join(row) + " |")
    store.close()


main()
