"""What scrapes, the page and INFO ALL cost the loop of a server with 200 nodes of 2 segments, one
beside the other: python3 tests/python/page_cost.py [nodes [segments of each]]"""

import http.client
import statistics
import sys
import time

from harness import Server
import pool_fake
import tarn

ROUNDS, CALLS = 7, 20


def field(client, section, name):
    """A number of INFO."""
    for line in client.command("INFO", section).split("\r\n"):
        if line.startswith(name + ":"):
            return float(line.split(":")[1])
    raise KeyError(name)


def loop_us(client):
    """What the loop's thread has computed; on a busy machine its turns take longer than that."""
    return 1e6 * sum(field(client, "cpu", f"used_cpu_{x}_main_thread") for x in ("user", "sys"))


def cost_us(client, call):
    """Of the loop for one call: the median of several rounds, less what the loop does anyway."""

    def active(calls):
        before, begin = loop_us(client), time.monotonic()
        for _ in range(calls):
            call()
        took = time.monotonic() - begin
        if not calls:
            time.sleep(0.5)
            took = 0.5
        return loop_us(client) - before, took

    idle_us, idle_s = active(0)
    got = []
    for _ in range(ROUNDS):
        us, took = active(CALLS)
        got.append((us - idle_us / idle_s * took) / CALLS)
    return statistics.median(got)


class Watched:
    """A server with the page, and what an answer of it costs."""

    def __init__(self, *args):
        self.server = Server("0", *args, "--loadmodule", "http.so", "port", "0")
        self.client = tarn.Client(self.server.url)
        port = int(field(self.client, "modules", "http_port"))
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def close(self):
        self.client.close()
        self.server.stop()

    def show(self, paths):
        """Prints a table."""
        beside = cost_us(self.client, lambda: self.client.command("INFO", "ALL"))
        print(f"  {'INFO ALL':34} {beside / 1000:7.2f} ms")
        for path in paths:
            size = []

            def get(path=path, size=size):
                self.connection.request("GET", path)
                size.append(len(self.connection.getresponse().read()))

            turns = field(self.client, "server", "loop_turns")
            us = cost_us(self.client, get)
            turns = (field(self.client, "server", "loop_turns") - turns) / len(size)
            print(
                f"  {path:34} {us / 1000:7.2f} ms  {us / beside:5.2f} of INFO ALL"
                f"  {size[-1] / 1024:7.1f} KiB  in {turns:.0f} turns"
            )
        longest = field(self.client, "server", "loop_longest_turn_usec")
        print(f"  longest turn {longest / 1000:.2f} ms")


def of_pool(nodes, segments=2):
    """Nodes of so many segments each."""
    objects = min(20 * nodes, 4000)
    watched = Watched("--node-timeout", "600000", "--max-nodes", "32768")
    pool = pool_fake.FakePool(watched.server.url)
    try:
        for i in range(nodes):
            pool.join(i, segments)
        for i in range(objects):
            pool.put(f"model/{i}", 500000)
        print(f"{nodes} nodes of {segments} segments, {objects} objects; the loop's time for one:")
        paths = ["/metrics", "/api/info", "/api/history", "/api/nodes", "/api/segments"]
        watched.show(paths + ["/api/tasks", "/api/clients", "/api/alarms", "/api/events"])
    finally:
        pool.close()
        watched.close()


def of_conductor(ranks):
    """Engines of one rank each, all of which are weighed for each decision."""
    watched = Watched("--loadmodule", "conductor.so")
    try:
        command = watched.client.command
        for i in range(ranks):
            command("CONDUCTOR.ADD", f"engine{i}", f"http://10.0.0.1/{i}", "MODEL", "llama")
        for i in range(300):
            command("CONDUCTOR.ROUTE", f"request{i}", "MODEL", "llama", "LENGTH", "2000")
        command("CONFIG", "RESETSTAT")
        print(f"{ranks} engines, 300 decisions; the loop's time for one:")
        paths = ["engines", "decisions", "decisions?count=30", "candidates/300", "prefixes"]
        watched.show(["/metrics", "/api/info"] + ["/api/conductor/" + path for path in paths])
    finally:
        watched.close()


def main():
    """Both; page_cost.py NODES [SEGMENTS]: the first."""
    of_pool(*[int(word) for word in sys.argv[1:]] or [200])
    if len(sys.argv) == 1:
        of_conductor(200)
        of_conductor(1024)


if __name__ == "__main__":
    main()
