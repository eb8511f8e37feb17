#!/usr/bin/python3
"""Two minutes of tarn on one machine: engines, a node and the master are killed under a load, and
no request is lost, and no answer is another one.

    make demo
    utils/demo/demo.py --seconds 120 --engines 10

A master with two replicas and three Sentinels, three nodes with disks, engines that compute prompts
and others that answer (stand-ins: no GPU is needed), two gateways. Chats made by tarn-simulate are
held twice: undisturbed, and while things are killed; every answer is compared. Exit status 1: one
was lost or different."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Awaitable, Callable, List, Optional, Tuple

import chats
from cluster import MODEL, Cluster, Failed, Server, Shape, ask, program
from watch import Watch
from load import Load
from show import Counter, Figures

SHARE = 0.42  # of the time for all, in which the requests of one run come
LOOK_S = 0.5
RATE = 5.0  # requests a second
SHRINK = 8  # prompts and answers are so many times shorter than in the trace
LONGEST_PROMPT, LONGEST_ANSWER = 1500, 80  # tokens, shrunk


class Demo:
    def __init__(self, options: argparse.Namespace, cluster: Cluster, counter: Counter) -> None:
        self.options, self.cluster, self.counter = options, cluster, counter
        self.runs: List[Figures] = []
        self.arrivals_s = options.seconds * SHARE
        self.dead: List[Tuple[str, Callable[[], None]]] = []

    async def run(self) -> bool:
        """Whether all went well."""
        say, cluster = self.counter.say, self.cluster
        shape = cluster.shape
        say(
            f"{shape.servers} servers, {shape.sentinels} Sentinels, {shape.nodes} nodes,"
            f" {shape.prefill} engines for prompts, {shape.decode} for answers,"
            f" {shape.gateways} gateways: they start"
        )
        await cluster.start()
        await self.show_page()
        held = self.make_chats()
        say(f"{sum(len(c.turns) for c in held)} requests of {len(held)} chats, undisturbed")
        gateways = list(cluster.gateways.values())
        first = Load(gateways, MODEL, held)
        await self.hold("undisturbed", first)
        await self.forget()
        say("the same chats again" + ("" if self.options.no_kill else ", and things are killed"))
        again = Load(gateways, MODEL, held, first.answers)
        name = "again" if self.options.no_kill else "with failures"
        await self.hold(name, again, None if self.options.no_kill else self.trouble)
        await cluster.whole()
        say("all of it runs again, and is in step")
        wrong = first.tally.wrong + again.tally.wrong
        for what in wrong[:20]:
            say(f"wrong: {what}")
        self.counter.close()
        return not wrong and again.tally.done == again.turns

    def make_chats(self) -> List[chats.Chat]:
        count = max(20, int(self.arrivals_s * RATE))
        # The first half of it: at the end no chats begin any more.
        lines = chats.trace(program("tarn-simulate"), 2 * count, self.options.seed)[:count]
        speed = chats.seconds(lines) / self.arrivals_s
        return chats.make(lines, SHRINK, speed, LONGEST_PROMPT, LONGEST_ANSWER)

    async def hold(
        self, name: str, load: Load, trouble: Optional[Callable[[Load], Awaitable[None]]] = None
    ) -> None:
        """The chats, with the counter, and with trouble meanwhile."""
        watch = Watch(name, load, self.cluster)
        self.runs.append(watch.figures)
        tasks = [asyncio.ensure_future(self.count(watch))]
        if trouble is not None:
            tasks.append(asyncio.ensure_future(trouble(load)))
        try:
            await load.run()
            for task in tasks[1:]:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await watch.look()
        self.counter.show(self.runs)

    async def count(self, watch: Watch) -> None:
        while True:
            await watch.look()
            self.counter.show(self.runs)
            await asyncio.sleep(LOOK_S)

    async def show_page(self) -> None:
        """Of the server that leads now."""
        leader = await self.cluster.leader()
        page = leader.page
        self.counter.page = page
        self.counter.say(f"the page: {page}")
        display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if display and shutil.which("xdg-open") and not self.options.no_browser:
            subprocess.Popen(
                ["xdg-open", page], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

    # --- trouble ---

    async def trouble(self, load: Load) -> None:
        """One after the other; then all come back."""
        steps = [self.kill_decoder, self.kill_prefiller, self.stop_node, self.kill_master]
        for i, step in enumerate(steps):
            await self.until(load, 0.15 + 0.13 * i)
            await step(load)
        await self.until(load, 0.7)
        for name, again in self.dead:
            self.counter.say(f"{name} is started again")
            again()
        self.dead.clear()

    async def until(self, load: Load, share: float) -> None:
        await asyncio.sleep(load.began + share * self.arrivals_s - time.monotonic())

    async def kill_decoder(self, load: Load) -> None:
        """That of which most streams come."""
        name = await self.busiest(load)
        streams = load.tally.where[name]
        self.kill(name, f"engine {name} is killed in the middle of {streams} streams")

    async def busiest(self, load: Load) -> str:
        while not load.ended:
            for name, streams in load.tally.where.most_common(1):
                if streams > 0 and name in self.cluster.engines:
                    return name
            await asyncio.sleep(0.01)
        return "d1"

    async def kill_prefiller(self, load: Load) -> None:
        self.kill("p1", "engine p1 is killed: it computed prompts")

    def kill(self, name: str, text: str) -> None:
        process = self.cluster.all[name]
        process.kill()
        self.counter.say(text)
        self.dead.append((f"engine {name}", process.start))

    async def stop_node(self, load: Load) -> None:
        node = self.cluster.all["n1"]
        node.end()
        self.counter.say("node n1 is stopped; its part of the pool has gone with it")
        self.dead.append(("node n1", node.start))

    async def kill_master(self, load: Load) -> None:
        leader = await self.cluster.leader()
        leader.kill()
        self.counter.say(f"the master {leader.name} is killed: pool and Conductor without a head")
        killed = time.monotonic()
        other = await self.cluster.leader()
        took = time.monotonic() - killed
        self.counter.say(f"{other.name} leads, {took:.1f} s later")
        await self.show_page()
        self.dead.append((f"{leader.name}, now a replica,", lambda: follow(leader, other)))

    async def forget(self) -> None:
        """Pool and prefix caches are as empty as at the start."""
        leader = await self.cluster.leader()
        await ask(leader.address, "FLUSHALL")
        await self.cluster.reset_caches()


def follow(server: Server, master: Server) -> None:
    server.follows(master.address)
    server.start()


# --- the command ---


def options_of(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120, help="for all of it (120)")
    parser.add_argument("--engines", type=int, default=10, help="two of five compute prompts (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the chats (1)")
    parser.add_argument("--no-kill", action="store_true", help="nothing is killed the second time")
    parser.add_argument("--keep", action="store_true", help="leaves all of it running until Ctrl-C")
    parser.add_argument("--no-browser", action="store_true", help="the page is not opened")
    options = parser.parse_args(argv)
    if options.engines < 4:
        parser.error("--engines: 4 at least, so that one of each kind may be killed")
    if options.seconds < 20:
        parser.error("--seconds: 20 at least")
    return options


def shape_of(options: argparse.Namespace) -> Shape:
    """Enough of both that one may be killed."""
    prefill = max(2, options.engines * 2 // 5)
    return Shape(prefill=prefill, decode=options.engines - prefill)


async def main(options: argparse.Namespace) -> int:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, me.cancel)
    counter = Counter(sys.stdout)
    with Cluster(shape_of(options)) as cluster:
        try:
            well = await Demo(options, cluster, counter).run()
        except Failed as why:
            print(why, file=sys.stderr)
            return 1
        except asyncio.CancelledError:
            print("stopped", file=sys.stderr)
            return 130
        print(
            "Not one request was lost, and not one answer was different."
            if well
            else "Requests were lost, or answers different."
        )
        if options.keep:
            await keep(cluster)
    return 0 if well else 1


async def keep(cluster: Cluster) -> None:
    """Until Ctrl-C."""
    leader = await cluster.leader()
    print(
        TRY.format(
            gateway=next(iter(cluster.gateways.values())),
            port=leader.address[1],
            model=MODEL,
            page=leader.page,
            folder=cluster.folder,
        ),
        flush=True,
    )
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass


TRY = """
It goes on running until Ctrl-C. Try:

    curl -s {gateway}/v1/chat/completions -H 'Content-Type: application/json' -d '{{
        "model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    redis-cli -p {port} CONDUCTOR.LIST
    redis-cli -p {port} CONDUCTOR.DOCTOR
    redis-cli -p {port} NODE LIST

The page: {page}   logs: {folder}/*/log"""


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(options_of(sys.argv[1:]))))
    except KeyboardInterrupt:
        sys.exit(130)
