"""Requests placed without the Conductor, and the change between it and that."""

import asyncio
import logging
import struct
import tempfile
import types
import unittest

import harness
from gateway_fakes import Async, conductor, placed, rank, until
from tarn.gateway import alone as alone_module, prefixes
from tarn.gateway.alone import AloneRouter, engine_of
from tarn.gateway.place import Ask, Engine, Nobody
from tarn.gateway.prefixes import CHUNK, Prefixes, chain_of
from tarn.gateway.routers import make_router, targets


def prompt(seed, tokens):
    return struct.pack(f"<{tokens}I", *range(seed * 1000000, seed * 1000000 + tokens))


def ask(name, seed=1, tokens=320, more=0, **fields):
    """A prompt of a seed's tokens, with `more` of its own behind it."""
    own = prompt(1000 + hash(name) % 1000, more)
    there = {"model": "m", "length": tokens + more, "tokens": prompt(seed, tokens) + own}
    return Ask(request=name, **{**there, **fields})


class Web:
    """Engines' HTTP servers, as far as a router asks them."""

    def __init__(self, models=()):
        self.models, self.status, self.seen = list(models), 200, []

    async def __aenter__(self):
        from aiohttp import web

        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://127.0.0.1:%d" % site._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    async def answer(self, request):
        from aiohttp import web

        self.seen.append((request.path, request.headers.get("Authorization")))
        if request.path == "/v1/models":
            return web.json_response({"data": self.models})
        return web.Response(status=self.status)


class Words(unittest.TestCase):
    def test_engines_of_the_command_line(self):
        engine = engine_of("e1=http://h:8000/,role=decode,model=org/m,block=32,rank=1").engine
        self.assertEqual(engine, Engine("e1", "http://h:8000", 1, "decode", "org/m", 32))
        self.assertEqual(engine_of("https://h:8000").engine, Engine("h-8000", "https://h:8000"))
        for wrong in "h:8000", "e1=ftp://h", "http://h,role=all", "http://h,port=2", "http://h,x":
            with self.subTest(wrong), self.assertRaises(ValueError):
                engine_of(wrong)

    def test_servers_of_the_command_line(self):
        made = targets("--conductor", ["a:1,b:2", "rediss://user:p,w@c:3?ssl_ca_certs=/ca"])
        self.assertEqual([(t["host"], t["port"]) for t in made], [("a", 1), ("b", 2), ("c", 3)])
        self.assertEqual((made[2]["password"], made[2]["ssl_check_hostname"]), ("p,w", True))
        for wrong in "foo", "a:1,foo", "http://a:1", "a:b", "redis://a:b":
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, "^--sentinel"):
                targets("--sentinel", [wrong])


class Chains(unittest.TestCase):
    def test_what_is_hashed(self):
        one = ask("q", tokens=CHUNK * 4)
        self.assertEqual(len(chain_of(one, 16)), 4)
        self.assertEqual(chain_of(one, 16)[:3], chain_of(ask("q", tokens=CHUNK * 4 - 1), 16))
        for other in {"salt": "s"}, {"lora": "l"}, {"model": "n"}:
            self.assertFalse(set(chain_of(ask("q", tokens=CHUNK * 4, **other), 16))
                             & set(chain_of(one, 16)))  # fmt: skip
        # An image in block 5 of 16 tokens, so in the third chunk.
        pictured = chain_of(ask("q", tokens=CHUNK * 4, extra=struct.pack("<2I", 5, 1) + b"x"), 16)
        self.assertEqual(pictured[:2], chain_of(one, 16)[:2])
        self.assertFalse(set(pictured[2:]) & set(chain_of(one, 16)))
        self.assertEqual(chain_of(Ask("q", "m", 1000), 16), [])

    def test_an_engine_has_what_it_got_last(self):
        have, chains = Prefixes(), [[i * 100 + k for k in range(10)] for i in range(3)]
        for chain in chains[0], chains[1], chains[0], chains[2]:
            have.add("e", chain, tokens_most=25 * CHUNK)
        self.assertEqual(
            [have.longest("e", chain) // CHUNK for chain in chains], [10, 5, 10]
        )  # the end of the one that was not used goes
        self.assertEqual(have.longest("another", chains[0]), 0)
        have.keep({"another"})
        self.assertEqual(have.longest("e", chains[0]), 0)

    def test_all_together_are_bounded(self):
        have, most = Prefixes(), prefixes.TOTAL
        self.addCleanup(setattr, prefixes, "TOTAL", most)
        prefixes.TOTAL = 4 * prefixes.LEAST
        for i in range(8):
            for engine in "ab":
                have.add(engine, [i * prefixes.LEAST + k for k in range(prefixes.LEAST)])
        held = [sum(have.longest(e, [i * prefixes.LEAST]) > 0 for i in range(8)) for e in "ab"]
        self.assertEqual(held, [2, 2])


class Alone(Async):
    """Engines that nobody asks whether they are well."""

    async def router(self, *engines):
        made = AloneRouter([engine_of(f"{e}=http://{e}" + ",model=m" * ("," not in e)) if "://"
                            not in e else engine_of(e) for e in engines])  # fmt: skip
        await made.start()
        self.addAsyncCleanup(made.close)
        self.now = 1000.0
        made._loop = types.SimpleNamespace(time=lambda: self.now)
        return made

    async def test_requests_are_spread(self):
        router = await self.router("a", "b", "c")
        went = [(await router.route(ask(f"q{i}", seed=i))).prefill.id for i in range(30)]
        self.assertEqual({e: went.count(e) for e in "abc"}, {"a": 10, "b": 10, "c": 10})

    async def test_one_after_the_other_are_spread_too(self):
        router = await self.router("a", "b", "c")
        for i in range(30):
            await router.route(ask(f"q{i}", seed=i))
            await router.first(f"q{i}")
            await router.done(f"q{i}", 5)
        self.assertEqual([w.placed for w in router._work.values()], [10] * 3)
        self.assertEqual({(w.requests, w.prefill, w.context) for w in router._work.values()},
                         {(0, 0, 0)})  # fmt: skip

    async def test_a_prefix_goes_where_it_is(self):
        router = await self.router("a", "b", "c")
        first = [await router.route(ask(f"q{i}", seed=i, more=40)) for i in range(9)]
        for i in range(9):
            await router.first(f"q{i}")
            await router.done(f"q{i}", 5)
        again = [await router.route(ask(f"r{i}", seed=i, more=50)) for i in range(9)]
        self.assertEqual([p.prefill for p in again], [p.prefill for p in first])
        self.assertEqual([p.hit for p in first + again], [(0,) * 3] * 9 + [(320,) * 3] * 9)
        self.assertEqual({p.by for p in again}, {"alone"})

    async def test_not_all_go_where_a_prefix_is(self):
        router = await self.router("a", "b", "c", "d")
        went = []
        for i in range(200):
            place = await router.route(ask(f"q{i}", seed=1, tokens=3200, more=40))
            await router.first(f"q{i}")
            went.append(place.prefill.id)
        most = max(went.count(e) for e in "abcd")
        share, slack = alone_module.OVER_SHARE, alone_module.OVER_MOST
        self.assertLessEqual(most, share * 200 / 4 + slack + 1)
        self.assertEqual(set(went), set("abcd"))

    async def test_prefill_and_decode_apart(self):
        router = await self.router(
            "p1=http://p1,role=prefill,model=m", "p2=http://p2,role=prefill,model=m",
            "d1=http://d1,role=decode,model=m", "d2=http://d2,role=decode,model=m",
        )  # fmt: skip
        places = [await router.route(ask(f"q{i}", seed=i)) for i in range(4)]
        self.assertEqual({(p.prefill.id, p.decode.id) for p in places},
                         {("p1", "d1"), ("p2", "d2")})  # fmt: skip
        with self.assertRaises(Nobody):  # nobody decodes
            await router.route(ask("q9", exclude=["d1", "d2"]))
        only = await self.router("d3=http://d3,role=decode,model=m")
        with self.assertRaises(Nobody):
            await only.route(ask("q"))

    async def test_who_failed_rests_twice_as_long_each_time(self):
        router = await self.router("a", "b")

        async def fails(engine):
            other = {"a": "b", "b": "a"}[engine]
            place = await router.route(ask("q", exclude=[other]))
            self.assertEqual(place.prefill.id, engine)
            await router.done("q", 0, failed=True)

        async def goes():
            return {(await router.route(ask(f"r{i}", seed=i))).prefill.id for i in range(8)}

        await fails("a")
        self.assertEqual(await goes(), {"a", "b"})  # once is nothing
        await fails("a")
        for rest in 1, 2, 4:
            self.assertEqual(await goes(), {"b"})
            self.now += rest - 0.01
            self.assertEqual(await goes(), {"b"})
            self.now += 0.02
            self.assertEqual(await goes(), {"a", "b"})
            await fails("a")
        await fails("b")
        await fails("b")
        self.assertEqual(sorted(router.down()), ["a", "b"])
        self.assertEqual(await goes(), {"a", "b"})  # rather one that failed than none
        for i in range(8):
            await router.first(f"r{i}")
            await router.done(f"r{i}", 1)
        self.now += 60
        await fails("a")
        self.assertEqual(await goes(), {"a", "b"})  # it had been well in between

    async def test_who_decodes_is_to_blame_after_the_first_token(self):
        router = await self.router("p=http://p,role=prefill,model=m",
                                   "d=http://d,role=decode,model=m")  # fmt: skip
        for _ in range(2):
            await router.route(ask("q"))
            await router.first("q")
            await router.done("q", 3, failed=True)
        self.assertEqual(router.down(), ["d"])

    async def test_who_decodes_may_be_to_blame_before_it(self):
        router = await self.router("p=http://p,role=prefill,model=m",
                                   "d=http://d,role=decode,model=m")  # fmt: skip
        for _ in range(2):
            await router.route(ask("q"))
            await router.done("q", 0, failed=True, decode=True)
        self.assertEqual(router.down(), ["d"])

    async def test_what_nobody_serves(self):
        router = await self.router("a", "http://unasked")
        with self.assertRaisesRegex(Nobody, "unasked") as error:
            await router.route(ask("q", model="another"))
        self.assertTrue(error.exception.known)
        router = await self.router("a")
        with self.assertRaises(Nobody) as error:
            await router.route(ask("q", model="another"))
        self.assertFalse(error.exception.known)
        with self.assertRaises(Nobody) as error:
            await router.route(ask("q", exclude=["a"]))
        self.assertTrue(error.exception.known)

    async def test_what_is_told_of_nothing(self):
        router = await self.router("a")
        await router.first("q")
        await router.done("q", 1, failed=True)
        self.assertEqual(router.down(), [])


class Watched(Async):
    async def test_an_engine_that_is_down_and_comes_back(self):
        async with Web() as a, Web() as b:
            router = AloneRouter([engine_of(f"{n}={w.url},model=m") for n, w in
                                  (("a", a), ("b", b))], key="secret")  # fmt: skip
            await router.start()
            self.addAsyncCleanup(router.close)
            await router.route(ask("q0"))
            a.status = 503
            await router.look()
            self.assertEqual(router.down(), ["a"])
            went = [(await router.route(ask(f"q{i}", seed=i))).prefill.id for i in range(4)]
            self.assertEqual(set(went), {"b"})
            b.status = 500
            await router.look()
            with self.assertRaisesRegex(Nobody, "2 are down") as error:
                await router.route(ask("q"))
            self.assertTrue(error.exception.known)
            a.status = 200
            await router.look()
            place = await router.route(ask("q5"))
            self.assertEqual((place.prefill.id, place.hit), ("a", (0, 0, 0)))  # it began anew
            self.assertEqual(set(a.seen), {("/health", "Bearer secret")})

    async def test_models_are_asked(self):
        models = [{"id": "adapter", "parent": "m"}, {"id": "m", "parent": None}]
        with tempfile.NamedTemporaryFile("w") as key:
            key.write("secret\n")
            key.flush()
            async with Web(models) as engine:
                router = make_router(options(engine=[engine.url], engine_key_file=key.name))
                await router.start()
                self.addAsyncCleanup(router.close)
                place = await router.route(ask("q", lora="adapter"))
                self.assertEqual((place.prefill.url, place.prefill.model), (engine.url, "m"))
                self.assertIn(("/v1/models", "Bearer secret"), engine.seen)
                self.assertTrue(router.alone)


def options(**given):
    there = {"conductor": [], "sentinel": [], "master": "pool", "patience_s": 0.3}
    there.update({"engine": [], "engine_ca": "", "engine_key_file": ""})
    return types.SimpleNamespace(**{**there, **given})


class Change(Async):
    """With a Conductor that comes and goes."""

    async def made(self, server, **given):
        router = make_router(options(conductor=[server.url], **given))

        async def look():
            """Its engines are names only: they would be down."""

        router._alone.look = look
        await router.start()
        self.addAsyncCleanup(router.close)
        return router

    async def test_away_and_back(self):
        listed = [rank("e1"), rank("e2"), rank("e3", state="draining")]
        async with conductor(LIST=listed) as server:
            router = await self.made(server)
            await until(router.engines)
            place = await router.route(ask("q1"))
            self.assertEqual((place.by, router.alone), ("conductor", False))
            await router.first("q1")
            await until(lambda: server.count("CONDUCTOR.FIRST") == 1)
            server.answers["LOAD"] = RuntimeError("NOREPLICAS x")
            with self.assertLogs("tarn.gateway", logging.WARNING) as logged:
                server.hang_up()
                places = [await router.route(ask(f"r{i}", seed=1 + i)) for i in range(6)]
            self.assertEqual({p.by for p in places}, {"alone"})
            self.assertEqual({p.prefill.id for p in places}, {"e1", "e2"})
            self.assertEqual(places[0].prefill.id, "e1")  # which the Conductor had chosen for it
            said = [line for line in logged.output if "without the Conductor" in line]
            self.assertEqual((len(said), "NOREPLICAS" in said[0]), (1, True))
            self.assertTrue(router.alone)
            await router.done("q1", 5)
            await router.done("r0", 5)
            self.assertEqual(server.count("CONDUCTOR.DONE"), 0)
            with self.assertLogs("tarn.gateway", logging.WARNING) as logged:
                server.answers["LOAD"] = RuntimeError("ERR no engine")
                await until(lambda: not router.alone)
            self.assertIn("is back", logged.output[-1])
            self.assertEqual((await router.route(ask("q2"))).by, "conductor")
            await until(lambda: server.count("CONDUCTOR.DONE") == 2)
        told = [w[:2] for w in server.seen if w[0] in ("CONDUCTOR.FIRST", "CONDUCTOR.DONE")]
        # What was placed alone is not told, but that r0's ROUTE was on its way when it broke.
        self.assertEqual(
            told,
            [["CONDUCTOR.FIRST", "q1"], ["CONDUCTOR.DONE", "r0"], ["CONDUCTOR.DONE", "q1"]],
        )
        self.assertEqual(router.changes, 2)

    async def test_it_was_never_there(self):
        port = harness.free_port()
        gone = types.SimpleNamespace(url=f"redis://127.0.0.1:{port}")
        router = await self.made(gone, engine=["e1=http://e1,model=m"])
        asked = [router.route(ask(f"q{i}", seed=i)) for i in range(50)]
        self.assertEqual({p.by for p in await asyncio.gather(*asked)}, {"alone"})
        self.assertEqual((router.alone, router.changes), (True, 1))

    async def test_who_is_refused_is_refused(self):
        async with conductor(ROUTE=RuntimeError("ERR no engine serves model 'm'")) as server:
            router = await self.made(server, engine=["e1=http://e1,model=m"])
            with self.assertRaises(Nobody):
                await router.route(ask("q"))
            server.answers["ROUTE"] = RuntimeError("ERR SALT is too long")
            with self.assertRaisesRegex(ValueError, "SALT is too long"):
                await router.route(ask("q"))
            self.assertFalse(router.alone)

    async def test_a_burst_while_it_goes(self):
        """Each is answered, and those that wait do not wait one after the other."""
        async with conductor(ROUTE=lambda _: placed()) as server:
            router = await self.made(server)
            await until(router.engines)
            asked = [asyncio.create_task(router.route(ask(f"q{i}"))) for i in range(100)]
            await asyncio.sleep(0)
            server.answers["LOAD"] = RuntimeError("READONLY x")
            server.answers["ROUTE"] = RuntimeError("READONLY x")
            places = await asyncio.gather(*asked)
        self.assertEqual(len(places), 100)
        self.assertLessEqual({p.by for p in places}, {"alone", "conductor"})


if __name__ == "__main__":
    unittest.main()
