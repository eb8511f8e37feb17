"""Several gateways that share one Conductor place requests as well as one does; without it each
knows only what it has sent itself, and that costs hits.

A trace of chats (tarn-simulate trace) goes through the routers of N gateways in turn. Engines are
prefix caches that are too small for all of it, and publish what they hold over ZeroMQ; what counts
is what was there when a request arrived. Here one request is under way at a time, and the next is
asked for when the Conductor knows of the last one's blocks: so each run is as the one before it, to
the block. On a busy machine it is not (the Conductor's memory of what it has sent ages): there one
of them was 1.2 % beside the other.

utils/bench/gateways.sh runs it with MANY_REQUESTS, and it only says what it found. With MANY_RATE
requests come at that rate, a prompt takes PREFILL_US for each token that is not there, and answers
their time, so that load counts as well."""

import asyncio
import collections
import json
import os
import random
import struct
import subprocess
import time
import types

import msgpack
import zmq

from gateway_fakes import Async
from harness import SERVER, Server
from tarn.gateway.place import Ask
from tarn.gateway.routers import make_router

REQUESTS = int(os.environ.get("MANY_REQUESTS", "240"))
RATE = float(os.environ.get("MANY_RATE", "0"))  # a second; 0: one after the other
GATEWAYS = [int(n) for n in os.environ.get("MANY_GATEWAYS", "1,8").split(",")]
SEED = os.environ.get("MANY_SEED", "7")
BLOCK = 512  # tokens, as the trace has them
ENGINES, ENGINE_BLOCKS = 8, int(os.environ.get("MANY_BLOCKS", "192"))
# An H100 with an 8B model takes some four times as long.
PREFILL_US, DECODE_US = 16, 200


def trace():
    simulate = os.path.join(os.path.dirname(SERVER), "tarn-simulate")
    words = ["trace", "--generate", "chat", "--seed", SEED, "--requests", str(REQUESTS)]
    said = subprocess.run([simulate, *words], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in said.splitlines()]


class Cache:
    """An engine: its prefix cache, and the events of it. Blocks are named as the trace has them, as
    a block's number there is that of all before it, too."""

    def __init__(self, context, name):
        self.name, self.blocks = name, collections.OrderedDict()
        self.socket = context.socket(zmq.XPUB)
        self.socket.linger = 0
        self.socket.bind("tcp://127.0.0.1:*")
        self.events = self.socket.last_endpoint.decode()
        self.number = 0
        self.turn = asyncio.Lock()  # prompts are computed one after the other

    def compute(self, names):
        """Blocks of a prompt that were there; all are, then."""
        there = next((i for i, b in enumerate(names) if b not in self.blocks), len(names))
        for block in reversed(names):  # a prompt's end goes first
            self.blocks[block] = True
            self.blocks.move_to_end(block)
        gone = [self.blocks.popitem(last=False)[0] for _ in range(len(self.blocks) - ENGINE_BLOCKS)]
        events = []
        if gone:  # first, as in vLLM: the new ones have their room
            removed = [b + 1 for b in gone]
            events.append({"type": "BlockRemoved", "block_hashes": removed, "medium": "GPU"})
        for i in range(there, len(names)):
            events.append(self.stored(names[i - 1] if i else None, names[i]))
        self.publish(events)
        return there

    def stored(self, before, block):
        return {
            "type": "BlockStored",
            "block_hashes": [block + 1],
            "parent_block_hash": None if before is None else before + 1,
            "token_ids": list(range(block * BLOCK, (block + 1) * BLOCK)),
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
        }

    def publish(self, events):
        payload = msgpack.packb([time.time(), events, None])
        self.socket.send_multipart([b"kv", self.number.to_bytes(8, "big"), payload])
        self.number += 1

    async def followed(self):
        """Until the Conductor subscribes; it is told that there is nothing yet."""
        while not self.socket.poll(0):
            await asyncio.sleep(0.005)
        self.socket.recv()
        self.publish([{"type": "AllBlocksCleared"}])


class Many(Async):
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, linger=0)
        self.trace = trace()

    async def test_as_many_hits_as_with_one(self):
        with_it = {n: await self.run_shared(n) for n in GATEWAYS}
        without = {n: await self.run_alone(n) for n in GATEWAYS}
        if "MANY_REQUESTS" in os.environ:
            for name, found in ("conductor", with_it), ("alone", without):
                for n, (share, ttft) in found.items():
                    print(f"# {name}: gateways {n} hit {share:.4f} ttft-ms {ttft:.1f}")
            return
        one, many = with_it[1][0], with_it[8][0]
        self.assertGreater(one, 0.3)
        self.assertGreater(many, 0.97 * one)
        # Or the comparison would say nothing.
        self.assertLess(without[8][0], 0.9 * without[1][0])

    async def run_shared(self, n):
        """With one Conductor."""
        with Server("0", "--loadmodule", "conductor.so") as server:
            url = f"redis://127.0.0.1:{server.port}"
            caches = [Cache(self.context, f"e{i}") for i in range(ENGINES)]
            gateways = [self.gateway(conductor=[url]) for _ in range(n)]
            await asyncio.gather(*(g.start() for g in gateways))
            ask = gateways[0].conductor.leader.call
            for c in caches:
                words = f"{c.name} http://{c.name} MODEL m BLOCK {BLOCK} KVBLOCKS {ENGINE_BLOCKS}"
                await ask("CONDUCTOR.ADD", *words.split(), "EVENTS", c.events)
                await c.followed()

            async def known():
                published = sum(c.number for c in caches)
                while f"\r\nkvevents_batches:{published}\r\n" not in await ask("INFO", "conductor"):
                    await asyncio.sleep(0.001)

            return await self.run_trace(gateways, caches, known)

    async def run_alone(self, n):
        """As peers without a shared index do it."""
        caches = [Cache(self.context, f"e{i}") for i in range(ENGINES)]
        named = [f"{c.name}=http://{c.name},model=m,block={BLOCK}" for c in caches]
        gateways = [self.gateway(engine=named) for _ in range(n)]
        for gateway in gateways:

            async def look():
                """Engines are names only: they would be down."""

            gateway._alone.look = look
            await gateway.start()

        async def known():
            """There is nobody who would have to."""

        return await self.run_trace(gateways, caches, known)

    def gateway(self, **given):
        words = {"conductor": [], "sentinel": [], "master": "pool", "patience_s": 30, "engine": []}
        words.update({"engine_ca": "", "engine_key_file": "", **given})
        return make_router(types.SimpleNamespace(**words))

    async def run_trace(self, gateways, caches, known):
        """Share of all prompts' tokens that were there, and the mean time to the first token."""
        self.by_name = {c.name: c for c in caches}
        self.hits, self.waited = 0, 0.0
        if RATE:
            await self.run_paced(gateways)
        else:
            await self.run_in_turn(gateways, known)
        for gateway in gateways:
            await gateway.close()
        tokens = sum(len(line["hash_ids"]) for line in self.trace)
        return self.hits / tokens, 1000 * self.waited / len(self.trace)

    async def run_in_turn(self, gateways, known):
        """FIRST is not told: it would teach the Conductor how fast this test is."""
        for i, line in enumerate(self.trace):
            gateway = gateways[i % len(gateways)]
            place = await gateway.route(self.ask(i, line))
            self.hits += self.by_name[place.prefill.id].compute(line["hash_ids"])
            await known()
            await gateway.done(f"q{i}", line["output_length"])
            if gateway.conductor is not None:
                await gateway.conductor.teller.told(f"q{i}")

    async def run_paced(self, gateways):
        loop, gaps, requests = asyncio.get_running_loop(), random.Random(SEED), []
        due = loop.time()
        for i, line in enumerate(self.trace):
            due += gaps.expovariate(RATE)
            await asyncio.sleep(max(0, due - loop.time()))
            request = self.request(gateways[i % len(gateways)], i, line)
            requests.append(asyncio.create_task(request))
        await asyncio.gather(*requests)

    async def request(self, gateway, i, line):
        names, begun = line["hash_ids"], time.monotonic()
        place = await gateway.route(self.ask(i, line))
        cache = self.by_name[place.prefill.id]
        async with cache.turn:
            there = cache.compute(names)
            await asyncio.sleep((len(names) - there) * BLOCK * PREFILL_US / 1e6)
        self.hits += there
        self.waited += time.monotonic() - begun
        await gateway.first(f"q{i}")
        await asyncio.sleep(line["output_length"] * DECODE_US / 1e6)
        await gateway.done(f"q{i}", line["output_length"])

    def ask(self, i, line):
        tokens = b"".join(
            struct.pack(f"<{BLOCK}I", *range(b * BLOCK, (b + 1) * BLOCK)) for b in line["hash_ids"]
        )
        return Ask(f"q{i}", "m", len(tokens) // 4, tokens, output=line["output_length"])
