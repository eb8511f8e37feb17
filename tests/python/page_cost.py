"""What scrapes, the page and INFO ALL cost the loop of a server with 200 nodes of 2 segments, one
beside the other: python3 tests/python/page_cost.py [nodes]"""

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


def main():
    """Prints a table."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    server = Server("0", "--node-timeout", "600000", "--loadmodule", "http.so", "port", "0")
    pool = pool_fake.FakePool(server.url)
    try:
        for i in range(nodes):
            pool.join(i)
        for i in range(nodes * 20):
            pool.put(f"model/{i}", 500000)
        client = tarn.Client(server.url)
        port = int(field(client, "modules", "http_port"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

        def get(path):
            def call():
                connection.request("GET", path)
                size.append(len(connection.getresponse().read()))

            return call

        beside = cost_us(client, lambda: client.command("INFO", "ALL"))
        print(f"{nodes} nodes of 2 segments, {nodes * 20} objects; the loop's time for one:")
        print(f"  {'INFO ALL':34} {beside / 1000:7.2f} ms")
        paths = ["/metrics", "/api/info", "/api/history", "/api/nodes", "/api/segments"]
        paths += ["/api/tasks", "/api/clients", "/api/alarms", "/api/events"]
        for path in paths:
            size = []
            turns = field(client, "server", "loop_turns")
            us = cost_us(client, get(path))
            turns = (field(client, "server", "loop_turns") - turns) / len(size)
            print(
                f"  {path:34} {us / 1000:7.2f} ms  {us / beside:5.2f} of INFO ALL"
                f"  {size[-1] / 1024:7.1f} KiB  in {turns:.0f} turns"
            )
        print(f"  longest turn {field(client, 'server', 'loop_longest_turn_usec') / 1000:.2f} ms")
    finally:
        pool.close()
        server.stop()


if __name__ == "__main__":
    main()
