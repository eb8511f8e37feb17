"""A gateway's side of the Conductor, where masters come and go: tarn.gateway's own, which a test
looks on.

    gateway = Gateway([("127.0.0.1", 26379), ...], "pool")
    await gateway.start()
    reply, again = await gateway.call("CONDUCTOR.ROUTE", "q1", "MODEL", "m", "LENGTH", 100)

`again` says that there was another master meanwhile, or another connection."""

import harness  # noqa: F401  (the paths)
from tarn.gateway.leader import Leader, Servers
from tarn.gateway.link import Link, target_of
from tarn.gateway.table import pairs

__all__ = ["Gateway", "link_to", "pairs"]

PATIENCE_S = 600


def target(address):
    return target_of("redis://%s:%d" % address)


async def link_to(address):
    return await Link.open(target(address))


class Gateway(Leader):
    """on_master(link): awaited before the calls that wait go to a new master."""

    def __init__(self, sentinels, name, on_master=None):
        super().__init__(Servers([], list(map(target, sentinels)), name), PATIENCE_S)
        self.on_master = on_master

    async def start(self):
        await super().start()
        await self.returns()

    async def call(self, *words):
        before = self.changes
        return await super().call(*words), self.changes != before

    async def _find(self):
        found = await super()._find()
        if self.on_master is not None and found[0] != self.epoch:
            await self.on_master(found[2])
        return found
