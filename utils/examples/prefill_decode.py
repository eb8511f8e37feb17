#!/usr/bin/python3
"""A prefill and a decode engine that share a prefix through the pool, and the time that saves. No
GPU is needed.

    utils/examples/prefill_decode.py [--requests 4] [--prefix 4096] [--question 500]
        [--tokens-per-s 20000]

Every request begins with the same system prompt. The prefill process looks up how much of the
prompt the pool has, loads that, computes the rest and puts it; the decode process gets the prompt's
blocks and makes the answer. Beside it, the same without a pool: every engine computes every token
of every prompt.

The model is a toy: a token's KV bytes are made from the hash of everything before it, and the
answer's tokens from a part of every token's KV bytes. Computing costs what making those bytes
costs, or more, so that the prompt is not computed faster than --tokens-per-s. Afterwards every byte
that was loaded is compared, outside the times. Exit status 1: bytes or answers differ."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import time
import zlib
from typing import Any, List, NamedTuple, Sequence, Tuple

from local_pool import arguments, pool_of, run_main

import tarn
from tarn.chain import block_hashes
from tarn.keys import KeySpace

MODEL = "toy/llama-1b"


class Model:
    """The toy. block: tokens per block; kv: bytes of KV cache per token; speed: tokens per second
    that are computed at most."""

    def __init__(self, block: int, kv: int, speed: float) -> None:
        self.block, self.kv, self.speed = block, kv, speed
        self.space = KeySpace(MODEL, layout="toy", block_tokens=block)

    def hashes(self, tokens: Sequence[int]) -> List[bytes]:
        """Of the prompt's full blocks, the same on every machine."""
        return list(block_hashes(tokens, self.block))

    def bytes_of(self, block_hash: bytes) -> bytes:
        """A block's KV cache."""
        seed = hashlib.shake_128(b"kv" + block_hash).digest(1024)
        return (seed * (self.block * self.kv // 1024 + 1))[: self.block * self.kv]

    def compute(self, blocks: Sequence[bytes]) -> List[bytes]:
        """The KV bytes of blocks, from their hashes: this is what takes time."""
        begin = time.monotonic()
        result = [self.bytes_of(h) for h in blocks]
        self.spend(begin, len(blocks) * self.block)
        return result

    def spend(self, begin: float, tokens: int) -> None:
        """Until so many tokens could be computed since begin."""
        time.sleep(max(0.0, begin + tokens / self.speed - time.monotonic()))

    def answer(self, kv: Sequence[Any], rest: Sequence[int], n: int) -> List[int]:
        """n tokens that depend on the KV bytes of every token. rest: tokens behind the last full
        block, which are computed here."""
        self.spend(time.monotonic(), len(rest))
        state = zlib.crc32(repr(list(rest)).encode())
        for block in kv:
            state = zlib.crc32(bytes(memoryview(block)[::256]), state)
        tokens = []
        for _ in range(n):
            state = zlib.crc32(b"next", state)
            tokens.append(state % 32000)
        return tokens


class Request(NamedTuple):
    """What the prefill process hands to the decode process: no bytes of the cache."""

    number: int
    tokens: List[int]
    made: int


class Engine:
    """What both sides are: a model, a client, and memory for the blocks of a prompt, as an engine's
    KV cache is there before."""

    def __init__(self, url: str, model: Model, blocks: int) -> None:
        self.client, self.model = tarn.Client(url), model
        self.size = model.block * model.kv
        self.memory = [bytearray(self.size) for _ in range(blocks)]

    def load(self, hashes: Sequence[bytes], wait_ms: int = 0) -> List[bytearray]:
        """Blocks from the pool into memory, as many leading ones as can be had."""
        blocks = self.memory[: len(hashes)]
        pairs = list(zip(self.model.space.keys(hashes), blocks))
        for i, result in enumerate(
            self.client.get_many_into(pairs, wait_ms=wait_ms) if pairs else []
        ):
            if result != self.size:
                return blocks[:i]
        return blocks

    def prefill(self, tokens: Sequence[int]) -> Tuple[int, int]:
        """Makes sure that the pool has the prompt's full blocks. Returns (blocks found, blocks
        computed)."""
        space, hashes = self.model.space, self.model.hashes(tokens)
        found = self.client.prefix_length(space.keys(hashes), lease_ms=5000)
        have = self.load(
            hashes[:found]
        )  # the engine needs them, too: what it computes depends on them
        computed = self.model.compute(hashes[len(have) :])
        pairs = list(zip(space.keys(hashes[len(have) :]), computed))
        statuses = self.client.put_many(pairs) if pairs else []
        bad = [
            s for s in statuses if s not in (tarn.Status.OK, tarn.Status.EEXISTS, tarn.Status.EBUSY)
        ]
        if bad:
            print(
                f"  {len(bad)} blocks could not be put ({tarn.Status(bad[0]).name}); whoever needs "
                "them computes them"
            )
        return len(have), len(computed)


def decode_process(pipe: Any, url: str, model: Model, blocks: int) -> None:
    """Answers requests: first (tokens of the answer, blocks loaded, seconds for that), then whether
    all bytes were right."""
    engine = Engine(url, model, blocks)
    while True:
        request = pipe.recv()
        if request is None:
            return
        hashes = model.hashes(request.tokens)
        begin = time.monotonic()
        kv: List[Any] = list(engine.load(hashes, wait_ms=5000))
        took, loaded = time.monotonic() - begin, len(kv)
        kv += model.compute(hashes[loaded:])  # what went missing meanwhile
        answer = model.answer(kv, request.tokens[len(hashes) * model.block :], request.made)
        pipe.send((answer, loaded, took))
        pipe.send(all(bytes(k) == model.bytes_of(h) for k, h in zip(kv, hashes)))


def prompts(args: Any) -> List[List[int]]:
    """Requests with one prefix and questions of their own."""
    prefix = [7 * i % 32000 for i in range(args.prefix)]
    return [
        prefix + [(i * 31 + r * 1009) % 32000 for i in range(args.question)]
        for r in range(args.requests)
    ]


def alone(model: Model, tokens: Sequence[int], made: int) -> Tuple[List[int], float]:
    """The same request without a pool: (answer, seconds)."""
    begin = time.monotonic()
    hashes = model.hashes(tokens)
    kv = model.compute(hashes)
    answer = model.answer(kv, tokens[len(hashes) * model.block :], made)
    return answer, time.monotonic() - begin


def run(args: Any, model: Model, url: str) -> bool:
    """All requests, with and without the pool; False: something differed."""
    blocks = (args.prefix + args.question) // model.block
    engine = Engine(url, model, blocks)
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=decode_process, args=(theirs, url, model, blocks), daemon=True)
    process.start()
    theirs.close()
    good, sums = True, [0.0, 0.0]
    print(
        "request   tokens   in the pool   computed   loaded by decode       with pool   without   "
        "saved"
    )
    try:
        for number, tokens in enumerate(prompts(args)):
            begin = time.monotonic()
            found, computed = engine.prefill(tokens)
            pipe.send(Request(number, tokens, args.answer))
            answer, loaded, took = pipe.recv()
            seconds = time.monotonic() - begin
            right = pipe.recv()
            expected, without = alone(model, tokens, args.answer)
            good &= right and answer == expected
            sums = [sums[0] + seconds, sums[1] + without]
            size = loaded * model.block * model.kv
            way = f"{size / 2**20:.0f} MiB, {size / max(took, 1e-9) / 1e9:.1f} GB/s"
            counts = f"{found * model.block:11d}   {computed * model.block:8d}   {way:>19s}"
            saved = 100 * (1 - seconds / without)
            times = f"{1000 * seconds:9.0f} ms   {1000 * without:4.0f} ms   {saved:4.0f}%"
            print(f"{number:7d}   {len(tokens):6d}   {counts}   {times}")
            if not right or answer != expected:
                print(f"  WRONG: {'bytes of the cache' if not right else 'the answer'}")
        pipe.send(None)
    finally:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
    print(
        f"all: {1000 * sums[0]:.0f} ms with the pool, {1000 * sums[1]:.0f} ms without: "
        f"{sums[1] / sums[0]:.1f} times as fast"
    )
    return good


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument(
        "--prefix", type=int, default=4096, help="tokens that all prompts begin with"
    )
    parser.add_argument("--question", type=int, default=500, help="tokens of a prompt's own")
    parser.add_argument("--answer", type=int, default=8, help="tokens of an answer")
    parser.add_argument("--block", type=int, default=64, help="tokens per block")
    parser.add_argument("--kv-bytes", type=int, default=16384, help="KV cache per token")
    parser.add_argument("--tokens-per-s", type=float, default=20000, help="computed at most")
    args = parser.parse_args()
    if (
        min(args.requests, args.prefix, args.question, args.block, args.kv_bytes, args.tokens_per_s)
        <= 0
    ):
        parser.error("all numbers are above 0")
    model = Model(args.block, args.kv_bytes, args.tokens_per_s)
    needed = (args.prefix + args.requests * args.question) * args.kv_bytes
    with pool_of(args.url, f"{max(64, 2 * needed >> 20)}mb") as pool:
        good = run(args, model, pool.url)
    print("bytes and answers: " + ("all right" if good else "WRONG"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(run_main(main))
