"""Nodes that only speak: a pool of many, for pages and lists, without their memory."""

import tarn

CONTENT, SEGMENT = "c" * 32, 16 << 20


class FakePool:
    """Nodes n0, n1, ... each with its own connection, and objects in their segments' books."""

    def __init__(self, url):
        self.url, self.nodes, self.main = url, {}, tarn.Client(url)

    def close(self):
        for client in [self.main, *self.nodes.values()]:
            client.close()

    def join(self, number, segments=2, disk=False):
        """Node n<number>, which is up."""
        client, name, instance = tarn.Client(self.url), f"n{number}", f"{number:032d}"
        self.nodes[number] = client
        client.command(
            "NODE", "JOIN", name, instance, "MACHINE", f"m{number}", "RACK", f"r{number % 8}"
        )
        for i in range(segments):
            client.command(
                "SEGMENT",
                "MOUNT",
                name,
                instance,
                f"{name}.{i}",
                "TIER",
                "memory",
                "SIZE",
                str(SEGMENT),
                "CONTENT",
                CONTENT,
                "ENDPOINTS",
                "1",
                "tcp://*:7777",
            )
        if disk:
            client.command(
                "SEGMENT",
                "MOUNT",
                name,
                instance,
                f"{name}.disk",
                "TIER",
                "ssd",
                "SIZE",
                str(4 * SEGMENT),
                "CONTENT",
                CONTENT,
                "ENDPOINTS",
                "1",
                "tcp://*:7777",
            )
        client.command("NODE", "UP", name, instance)

    def lose(self, number):
        """Its connection ends."""
        self.nodes.pop(number).close()

    def put(self, key, size, end=True):
        """An object that nobody wrote, or one that is being written."""
        token = self.main.command("PUTSTART", key, size).split("\n", 1)[0]
        if end:
            self.main.command("PUTEND", key, token, "-1")

    def lease(self, key, ms=10000):
        self.main.command("GETREPLICAS", key, "LEASE", str(ms))

    def remove(self, key):
        self.main.command("DEL", key)
