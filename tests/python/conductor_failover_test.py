"""The Conductor when its master is killed: every request gets its decision, no reservation that
was answered is lost or there twice, and what lies in engines' caches is known at once.

A gateway (conductor_gateway.py) sends requests at a steady rate, and FIRST and DONE of each;
engines are stood in for by kv_publisher.py, which goes on publishing. Sentinels are
redis-sentinel's.

Here it is one kill, and Sentinel is told to fail over at once. With CONDUCTOR_KILLS=4 (make
test-ha, utils/bench/conductor-ha.sh) three Sentinels find out by themselves, while at least
CONDUCTOR_REQUESTS (16000) are sent, CONDUCTOR_RATE (500) a second; it says how long that took."""

import asyncio
import datetime
import os
import shutil
import struct
import subprocess
import time
import unittest

from conductor_gateway import Gateway, link_to, pairs
from harness import ROOT, SLOW, Process, Server, free_port
from tarn.gateway.link import Refused

KILLS = int(os.environ.get("CONDUCTOR_KILLS", "0"))
LONG = KILLS > 0
REQUESTS = int(os.environ.get("CONDUCTOR_REQUESTS", "16000" if LONG else "300"))
RATE = int(os.environ.get("CONDUCTOR_RATE", "500")) // (1 if LONG else 2 * SLOW)
SERVERS, SENTINELS, ENGINES = (3, 3, 4) if LONG else (2, 1, 2)
# A busy machine stands still for a second, and a Sentinel then replaces a master that lives.
DOWN_AFTER_MS = int(os.environ.get("CONDUCTOR_DOWN_AFTER", "5000")) if LONG else 600000
FIRST_S, ANSWER_S = 0.02, 0.2
CHURN_S = 0.05
BLOCK, PROMPT_BLOCKS = 16, 10


class Engine:
    """A stand-in engine; `tell` waits until it has obeyed."""

    def __init__(self, name):
        self.name = name
        path = os.path.join(ROOT, "tests", "integration", "kv_publisher.py")
        self.process = subprocess.Popen(
            ["/usr/bin/python3", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ports = self.process.stdout.readline().split()
        self.tell("clear")  # of who has never said anything nothing is known

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        if self.process.stdout.readline().strip() != "ok":
            raise RuntimeError(f"{self.name} does not understand {words}")

    def registration(self):
        pub, router = (f"tcp://127.0.0.1:{port}" for port in self.ports)
        what = f"{self.name} http://{self.name} MODEL m BLOCK {BLOCK} KVBLOCKS 50000"
        return f"{what} EVENTS {pub} REPLAY {router}".split()

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Replicated(Server):
    """Sentinel has its role written to a file of its own."""

    def spawn(self, argv):
        conf = os.path.join(self.dir, "tarn.conf")
        with open(conf, "a"):
            pass
        super().spawn([argv[0], conf, *argv[1:]])

    def again(self, master):
        """After a kill: it begins as a replica."""
        with open(os.path.join(self.dir, "tarn.conf"), "w") as f:
            print(f"replicaof {master[0]} {master[1]}", file=f)
        self.start()

    @property
    def address(self):
        return ("127.0.0.1", self.port)


class Sentinel(Process):
    def __init__(self, master_port):
        super().__init__("tarn-py-sentinel.")
        self.port = free_port()
        conf = os.path.join(self.dir, "sentinel.conf")
        with open(conf, "w") as f:
            print(f"port {self.port}\nbind 127.0.0.1\ndir {self.dir}", file=f)
            print(f"sentinel monitor pool 127.0.0.1 {master_port} {SENTINELS // 2 + 1}", file=f)
            print(f"sentinel down-after-milliseconds pool {DOWN_AFTER_MS}", file=f)
            print("sentinel failover-timeout pool 30000", file=f)
        self.spawn(["redis-sentinel", conf])

    @property
    def address(self):
        return ("127.0.0.1", self.port)

    def promoted_at(self):
        """When it last told a replica to lead, ms of the day's clock; 0: never."""
        found = 0
        with open(self.log, encoding="utf-8") as f:
            for line in f:
                if " +failover-state-wait-promotion " in line:
                    stamp = line.split(" ", 1)[1].split(" * ")[0].split(" # ")[0]
                    moment = datetime.datetime.strptime(stamp, "%d %b %Y %H:%M:%S.%f")
                    found = moment.timestamp() * 1000
        return found


def tokens(chain, blocks=PROMPT_BLOCKS):
    """As kv_publisher.py counts them."""
    start = chain * 100000
    return struct.pack(f"<{blocks * BLOCK}I", *range(start, start + blocks * BLOCK))


async def ask(address, *words):
    link = await link_to(address)
    try:
        return await link.call(*words)
    finally:
        await link.close()


async def until_empty(missing):
    """Until await missing() is empty, which says what is awaited; who does not answer yet is asked
    again."""
    end = time.monotonic() + 120 * SLOW
    while True:
        try:
            what = await missing()
        except (OSError, Refused, asyncio.TimeoutError) as error:
            what = repr(error)
        if not what:
            return
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain for {what}")
        await asyncio.sleep(0.02)


async def until(condition, what):
    async def missing():
        return "" if await condition() else what

    await until_empty(missing)


def number(info, field):
    return int(info.split(f"\r\n{field}:", 1)[1].split("\r\n", 1)[0])


class Ledger:
    """What the gateway was answered. Calls whose fate it does not know stand between."""

    def __init__(self):
        self.asked, self.reserved, self.ending = set(), set(), set()
        self.decided = self.repeated = self.hits = 0
        self.wrong = []

    def least(self):
        return len(self.reserved)

    def most(self):
        return len(self.reserved) + len(self.asked) + len(self.ending)


class Pool:
    """Servers, Sentinels, engines, and the gateway with its load."""

    def __init__(self):
        self.engines = [Engine(f"e{i}") for i in range(ENGINES)]
        words = ("--loadmodule", "conductor.so", "--repl-ping-replica-period", "1")
        self.servers = [Replicated("0", *words) for _ in range(SERVERS)]
        self.sentinels = [Sentinel(self.servers[0].port) for _ in range(SENTINELS)]
        self.gateway = Gateway([s.address for s in self.sentinels], "pool", self.on_master)
        self.ledger = Ledger()
        self.chains, self.news = [], 0
        self.before = None  # what MATCH said just before a kill
        self.obeyed, self.promotions, self.firsts = [], [], []  # ms after a kill
        self.killed_at = self.led_at = None

    def stop(self):
        for part in self.sentinels + self.servers + self.engines:
            part.stop()

    async def start(self):
        first = self.servers[0].address
        for server in self.servers[1:]:
            await until(lambda s=server: ask(s.address, "REPLICAOF", *first), "REPLICAOF")
        for engine in self.engines:
            await ask(first, "CONDUCTOR.ADD", *engine.registration())
        await self.gateway.start()
        await self.whole()

    # --- as it is ---

    async def missing(self):
        """What it takes for all Sentinels to know all, and replicas to be in step and to follow all
        streams; "": nothing."""
        for sentinel in self.sentinels:
            master = pairs(await ask(sentinel.address, "SENTINEL", "master", "pool"))
            if (master["ip"], int(master["port"])) != self.gateway.address:
                return f"another master than {master['port']}"
            others = int(master["num-other-sentinels"])
            if master["flags"] != "master" or others != SENTINELS - 1:
                return f"a Sentinel to know {others} others, and the master is {master['flags']}"
            replicas = map(pairs, await ask(sentinel.address, "SENTINEL", "replicas", "pool"))
            are = sorted(f"{r['flags']} {r['master-link-status']}" for r in replicas)
            if are != ["slave ok"] * (SERVERS - 1):
                return f"replicas, which are {are}"
        for server in self.servers:
            for flat in await ask(server.address, "CONDUCTOR.LIST"):
                rank = pairs(flat)
                if rank["events"] != "live" or rank["partial"] != 0:
                    info = pairs(await ask(server.address, "CONDUCTOR.INFO", rank["id"]))
                    return f"{rank['id']} at {server.port}: {info['ranks']}"
        return ""

    async def whole(self):
        await until_empty(self.missing)

    async def matched(self, link):
        """What every engine has of every chain, by tier."""
        found = {}
        for chain in self.chains:
            for flat in await link.call("CONDUCTOR.MATCH", "MODEL", "m", "TOKENS", tokens(chain)):
                m = pairs(flat)
                found[chain, m["id"]] = (m["device"], m["host"], m["disk"])
        return found

    async def learnt(self, link):
        """First tokens that taught the model of each engine."""
        seen = []
        for engine in self.engines:
            info = pairs(await link.call("CONDUCTOR.INFO", engine.name))
            seen.append(info["prefill-seen"])
        return seen

    # --- engines ---

    async def publish_news(self):
        """A chain of which each engine has another part, in two tiers, with a gap behind it."""
        self.news += 1
        chain = self.news
        for i, engine in enumerate(self.engines):
            engine.tell("store", chain, 0, PROMPT_BLOCKS)
            engine.tell("store", chain, 0, PROMPT_BLOCKS, "medium", "CPU")
            engine.tell("remove", chain, 2 + i, PROMPT_BLOCKS - 1)
            engine.tell("remove", chain, 4 + i, PROMPT_BLOCKS - 1, "medium", "CPU")
        self.chains.append(chain)
        due = {
            (chain, e.name): ((2 + i) * BLOCK, (4 + i) * BLOCK, (4 + i) * BLOCK)
            for i, e in enumerate(self.engines)
        }

        async def there():
            found = await self.matched(self.gateway.link)
            return due.items() <= found.items()

        await until(there, "the master to know what was published")

    async def churn(self):
        """Blocks that come and go meanwhile."""
        chain = 1000
        while True:
            for engine in self.engines:
                engine.tell("store", chain, 0, 8)
                engine.tell("remove", chain, 0, 8)
            chain = chain + 1 if chain < 9000 else 1000
            await asyncio.sleep(CHURN_S)

    # --- requests ---

    async def request(self, i):
        """One request, as a gateway goes through with it."""
        ledger, name = self.ledger, f"q{i}"
        ledger.asked.add(i)
        prompt = ("TOKENS", tokens(1 + i % len(self.chains))) if i % 2 else ("LENGTH", 500)
        reply, again = await self.gateway.call("CONDUCTOR.ROUTE", name, "MODEL", "m", *prompt)
        ledger.asked.remove(i)
        ledger.reserved.add(i)
        self.note_decision()
        ledger.decided += 1
        ledger.repeated += again
        ledger.hits += sum(reply[2]) > 0
        await asyncio.sleep(FIRST_S)
        await self.tell(name, "CONDUCTOR.FIRST", name)
        await asyncio.sleep(ANSWER_S)
        ledger.reserved.remove(i)
        ledger.ending.add(i)
        await self.tell(name, "CONDUCTOR.DONE", name, "OUTPUT", 20)
        ledger.ending.remove(i)

    async def tell(self, name, command, *words):
        """Who was told already, and could not say so, does not know it any more after DONE."""
        again = self.gateway.epoch
        try:
            await self.gateway.call(command, *words)
        except Refused as error:
            if command != "CONDUCTOR.DONE" or again == self.gateway.epoch:
                self.ledger.wrong.append(f"{command} {name}: {error}")

    def note_decision(self):
        if self.led_at is not None:
            self.firsts.append((time.monotonic() - self.killed_at) * 1000)
            self.killed_at = self.led_at = None

    async def load(self, enough):
        """At the rate, whatever replies do, until enough() says so."""
        begun, i, running = time.monotonic(), 0, set()
        while not enough(i):
            await asyncio.sleep(max(0, begun + i / RATE - time.monotonic()))
            task = asyncio.create_task(self.request(i))
            running.add(task)
            task.add_done_callback(running.discard)
            task.add_done_callback(self.request_over)
            i += 1
        while running:
            await asyncio.wait(running)
        return i

    def request_over(self, task):
        if not task.cancelled() and task.exception() is not None:
            self.ledger.wrong.append(f"a request ended with {task.exception()!r}")

    # --- kills ---

    async def on_master(self, link):
        """Before anything else is asked of it."""
        if self.killed_at is None:
            if self.before is not None:
                self.ledger.wrong.append("the master was replaced, and nobody had killed it")
            return
        self.led_at = time.monotonic()
        self.promotions.append((self.led_at - self.killed_at) * 1000)
        self.check_reserved(await link.call("INFO", "conductor"), await link.call("CONDUCTOR.LIST"))
        after = await self.matched(link)
        if after != self.before:
            self.ledger.wrong.append(f"MATCH: {self.before} before, {after} after the promotion")
        seen = await self.learnt(link)
        if any(now < was for now, was in zip(seen, self.taught)):
            self.ledger.wrong.append(f"learnt: {self.taught} before, {seen} after the promotion")

    def check_reserved(self, info, ranks):
        ledger, ranks = self.ledger, list(map(pairs, ranks))
        reserved = number(info, "route_reserved")
        working = sum(r["prefills"] + r["decodes"] for r in ranks)
        if not ledger.least() <= reserved <= ledger.most() or reserved != working:
            ledger.wrong.append(
                f"reserved: {reserved}, at work {working}; answered {ledger.least()}, asked"
                f" {len(ledger.asked)}, ending {len(ledger.ending)}"
            )
        if number(info, "conductor_streams_partial") != 0:
            ledger.wrong.append("a stream is partial after the promotion")
        if any(r["events"] != "live" for r in ranks):
            ledger.wrong.append("a stream is not live after the promotion")

    async def kill(self):
        """The master; until another one has decided, and all is whole again."""
        await self.publish_news()
        victim = next(s for s in self.servers if s.address == self.gateway.address)
        others = [s for s in self.servers if s is not victim]

        async def found_there():
            self.before = await self.matched(self.gateway.link)
            for other in others:
                link = await link_to(other.address)
                try:
                    if await self.matched(link) != self.before:
                        return False
                finally:
                    await link.close()
            return True

        await until(found_there, "the replicas to know what the master knows")
        self.taught = [10**9] * ENGINES
        for other in others:
            link = await link_to(other.address)
            self.taught = [min(two) for two in zip(self.taught, await self.learnt(link))]
            await link.close()
        self.before = await self.matched(self.gateway.link)
        decisions = len(self.firsts)
        self.killed_at, wall_ms = time.monotonic(), time.time() * 1000
        victim.kill()
        if not LONG:
            await until(
                lambda: ask(self.sentinels[0].address, "SENTINEL", "failover", "pool"), "FAILOVER"
            )

        async def decided():
            return len(self.firsts) > decisions

        await until(decided, "the first decision")
        self.obeyed.append(max(s.promoted_at() for s in self.sentinels) - wall_ms)
        await asyncio.get_running_loop().run_in_executor(None, victim.again, self.gateway.address)
        await self.whole()


@unittest.skipUnless(shutil.which("redis-sentinel"), "redis-sentinel is not there")
class Failover(unittest.TestCase):
    def test_nothing_is_lost_when_the_master_is_killed(self):
        pool = Pool()
        self.addCleanup(pool.stop)
        asyncio.run(self.run_pool(pool))

    async def run_pool(self, pool):
        try:
            await self.run_load(pool)
        finally:
            await pool.gateway.close()

    async def run_load(self, pool):
        await pool.start()
        await pool.publish_news()
        killed = 0
        load = asyncio.create_task(pool.load(lambda i: i >= REQUESTS and killed >= max(1, KILLS)))
        churn = asyncio.create_task(pool.churn())

        async def taught():
            return all(await pool.learnt(pool.gateway.link))

        await until(taught, "all engines to have taught")
        while killed < max(1, KILLS):
            if LONG:  # Sentinels try to connect once a second, so theirs must be older than that
                await asyncio.sleep(3)
            await pool.kill()
            killed += 1
            self.assertEqual(pool.ledger.wrong[:5], [])
        sent = await load
        churn.cancel()
        await self.check_end(pool, sent, killed)
        self.say(pool, sent)

    async def check_end(self, pool, sent, killed):
        ledger = pool.ledger
        self.assertEqual(ledger.wrong[:5], [])
        self.assertEqual((ledger.decided, len(pool.firsts)), (sent, killed))
        self.assertGreater(ledger.hits, sent // 4)
        info, _ = await pool.gateway.call("INFO", "conductor")
        ranks, _ = await pool.gateway.call("CONDUCTOR.LIST")
        self.assertEqual(number(info, "route_reserved"), 0)
        for flat in ranks:
            rank = pairs(flat)
            self.assertEqual((rank["prefills"], rank["decodes"]), (0, 0), rank)

    def say(self, pool, sent):
        all_times = {
            "sentinel": pool.obeyed,
            "leads": pool.promotions,
            "first-decision": pool.firsts,
        }
        for what, times in all_times.items():
            times = sorted(times)
            print(f"# {what}: kills {len(times)} median-ms {times[len(times) // 2]:.0f}"
                  f" max-ms {times[-1]:.0f}")  # fmt: skip
        print(f"# requests: sent {sent} repeated {pool.ledger.repeated} hits {pool.ledger.hits}")
