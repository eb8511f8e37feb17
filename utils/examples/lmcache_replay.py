#!/usr/bin/python3
"""What LMCache's redis:// connector sends, without LMCache and without a GPU.

    utils/examples/lmcache_replay.py [--url redis://127.0.0.1:6479] [--chunks 64] [--chunk-mib 4]
        [--connections 8]

For every chunk of a prompt LMCache asks EXISTS <key>metadata; a chunk that is not there is stored
by SET <key>kv_bytes and then SET <key>metadata; one that is there is fetched by GET <key>metadata
and GET <key>kv_bytes. Here two engines share a pool: the first one stores the chunks of a prompt,
the second one finds and fetches them, and compares every byte."""
import argparse
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

import redis

MODEL = "meta-llama/Llama-3.1-8B"


def chunk_key(i):
    digest = hashlib.sha256(b"prompt %d" % i).hexdigest()[:16]
    return f"{MODEL}@1@0@{digest}@bfloat16"


def chunk_bytes(i, size):
    seed = hashlib.sha256(b"bytes %d" % i).digest()
    return (seed * (size // len(seed) + 1))[:size]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="redis://127.0.0.1:6479")
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--chunk-mib", type=int, default=4)
    parser.add_argument("--connections", type=int, default=8)
    args = parser.parse_args()
    size = args.chunk_mib << 20
    r = redis.Redis.from_url(args.url, max_connections=args.connections)
    metadata = b"\x00" * 28

    def store(i):
        key = chunk_key(i)
        if r.exists(key + "metadata"):
            return 0
        r.set(key + "kv_bytes", chunk_bytes(i, size))
        r.set(key + "metadata", metadata)
        return 1

    def load(i):
        key = chunk_key(i)
        if not r.exists(key + "metadata"):
            return None
        if r.get(key + "metadata") != metadata:
            return False
        data = r.get(key + "kv_bytes")
        return None if data is None else data == chunk_bytes(i, size)

    with ThreadPoolExecutor(args.connections) as pool:
        for who, work in (
            ("engine A stores", store),
            ("engine A again", store),
            ("engine B loads", load),
        ):
            start = time.monotonic()
            results = list(pool.map(work, range(args.chunks)))
            took = time.monotonic() - start
            if work is store:
                done = sum(results)
                print(f"{who:16} {done} chunks stored, {args.chunks - done} were there", end="")
            else:
                done = results.count(True)
                print(
                    f"{who:16} {done} hits, {results.count(None)} misses, {results.count(False)} "
                    "wrong",
                    end="",
                )
            print(f", {done * size / took / 1e9:.2f} GB/s" if done else "")
    return 1 if False in results else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except (redis.RedisError, ValueError) as e:
        raise SystemExit(f"lmcache_replay.py: --url: {e}")
