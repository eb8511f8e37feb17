"""Requests placed by the Conductor: words, replies, what is told, and masters that come and go."""

import asyncio
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

import harness
from gateway_fakes import (
    HANG_UP,
    SILENCE,
    Async,
    Fake,
    conductor,
    info,
    placed,
    rank,
    sentinel,
    until,
)
from harness import Server, TarnTest

import tarn
from tarn.gateway.conductor import ConductorRouter, route_words
from tarn.gateway.leader import Away, Leader, Servers
from tarn.gateway.link import target_of
from tarn.gateway.place import Ask, Nobody, Overloaded

CONDUCTOR = ("--loadmodule", "conductor.so")


def router(*urls, sentinels=(), patience_s=10):
    targets, named = map(target_of, urls), map(target_of, sentinels)
    return ConductorRouter(Leader(Servers(list(targets), list(named), "pool"), patience_s))


async def asked(through, patience_s):
    """Once it was looked whether anybody leads, its patience is as short as that."""
    await until(lambda: through.leader.link or through.leader.why != "it was not asked yet")
    through.leader.patience_s = patience_s


class Started:
    """async with Started(router): from start() to close()."""

    def __init__(self, router):
        self.router = router

    async def __aenter__(self):
        await self.router.start()
        return self.router

    async def __aexit__(self, *_):
        await self.router.close()


class Words(unittest.TestCase):
    def test_all(self):
        ask = Ask(
            "q1", "m", 2, struct.pack("<2I", 7, 8), b"extra", "l", "s", 20, "chat", "t", -3, 100,
            50, ["e1", "e2"],
        )  # fmt: skip
        self.assertEqual(
            route_words(ask),
            ["CONDUCTOR.ROUTE", "q1", "MODEL", "m", "TOKENS", b"\7\0\0\0\10\0\0\0"]
            + ["EXTRA", b"extra", "LORA", "l", "SALT", "s", "SESSION", "chat", "TENANT", "t"]
            + ["OUTPUT", 20, "TTFT", 100, "TBT", 50, "PRIORITY", -3]
            + ["EXCLUDE", "e1", "EXCLUDE", "e2"],
        )

    def test_few(self):
        words = route_words(Ask("q1", "m", 100, session="x" * 200, exclude=map(str, range(20))))
        self.assertEqual(words[:6], ["CONDUCTOR.ROUTE", "q1", "MODEL", "m", "LENGTH", 100])
        self.assertEqual(len(words[words.index("SESSION") + 1]), 64)
        self.assertEqual(words[words.index("EXCLUDE") + 1 :: 2], [str(i) for i in range(4, 20)])


class Real(TarnTest, Async):
    """Against a server with the module."""

    server_args = CONDUCTOR

    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.client().command("CONDUCTOR.ADD", "e1", "http://e1/", "MODEL", "m")
        self.router = router(f"redis://127.0.0.1:{self.server.port}")
        await self.router.start()
        self.addAsyncCleanup(self.router.close)

    def ask(self, *words):
        return self.client().command(*words)

    async def test_its_version_is_in_client_list(self):
        name = f"lib-name=tarn-gateway lib-ver={tarn.__version__} "
        await until(lambda: name in str(self.ask("CLIENT", "LIST")))

    def figure(self, name):
        return int(self.ask("INFO", "conductor").split(f"\r\n{name}:", 1)[1].split("\r\n")[0])

    async def test_a_request_from_beginning_to_end(self):
        place = await self.router.route(Ask("q1", "m", 40, struct.pack("<40I", *range(40))))
        self.assertEqual((place.prefill.id, place.decode, place.by), ("e1", None, "conductor"))
        self.assertEqual((place.prefill.url, place.prefill.block), ("http://e1", 16))
        self.assertEqual((place.hit, place.pool), ((0, 0, 0), 0))
        self.assertGreater(place.ttft_ms, 0)
        self.assertEqual(self.figure("route_reserved"), 1)
        await self.router.first("q1")
        await self.router.done("q1", 20)
        await self.router.teller.told("q1")
        self.assertEqual((self.figure("route_reserved"), self.router.teller.unknown), (0, 0))

    async def test_what_it_refuses(self):
        with self.assertRaises(Overloaded) as late:
            await self.router.route(Ask("q2", "m", 100000, ttft_ms=1))
        self.assertEqual(late.exception.after_s, 0)
        with self.assertRaises(Nobody) as nobody:
            await self.router.route(Ask("q2", "another", 100))
        self.assertFalse(nobody.exception.known)
        with self.assertRaises(Nobody) as nobody:
            await self.router.route(Ask("q2", "m", 100, exclude=["e1"]))
        self.assertTrue(nobody.exception.known)
        with self.assertRaises(ValueError):
            await self.router.route(Ask("q2", "m", 100, priority=1000))
        self.assertFalse(self.router.away)

    async def test_an_engine_that_has_just_come(self):
        await self.router.route(Ask("q3", "m", 100))
        self.ask("CONDUCTOR.ADD", "e2", "http://e2", "MODEL", "new", "RANK", "0")
        self.ask("CONDUCTOR.ADD", "e2", "http://e2:81", "MODEL", "new", "RANK", "1", "BLOCK", "16")
        places = [await self.router.route(Ask(f"q4{i}", "new", 100)) for i in range(2)]
        self.assertEqual(
            sorted((p.prefill.id, p.prefill.rank, p.prefill.url) for p in places),
            [("e2", 0, "http://e2"), ("e2", 1, "http://e2:81")],
        )
        for request in "q3", "q40", "q41":
            await self.router.done(request, 1)

    async def test_who_decodes(self):
        self.ask("CONDUCTOR.ADD", "p", "http://p", "MODEL", "pd", "ROLE", "PREFILL")
        self.ask("CONDUCTOR.ADD", "d", "http://d", "MODEL", "pd", "ROLE", "DECODE", "TENANT", "t")
        place = await self.router.route(Ask("q5", "pd", 100, tenant="t"))
        self.assertEqual((place.prefill.id, place.decode.id, place.answers.id), ("p", "d", "d"))
        self.assertEqual([r.tenant for r in self.router.ranks() if r.engine.id == "d"], ["t"])
        await self.router.done("q5", 0, failed=True, decode=True)
        await self.router.teller.told("q5")
        self.assertEqual(self.router.teller.unknown, 0)
        self.assertIn("failed\n1\n", self.ask("CONDUCTOR.INFO", "d"))
        self.assertIn("failed\n0\n", self.ask("CONDUCTOR.INFO", "p"))
        for who in "p", "d":
            with self.assertRaises(Nobody) as nobody:
                await self.router.route(Ask("q5", "pd", 100, tenant="t", exclude=[who]))
            self.assertTrue(nobody.exception.known)

    async def test_hundreds_at_a_time_on_one_connection(self):
        clients = int(self.ask("INFO", "clients").split("connected_clients:")[1].split("\r\n")[0])
        asks = [Ask(f"many{i}", "m", 100) for i in range(400)]
        places = await asyncio.gather(*map(self.router.route, asks))
        self.assertEqual({p.prefill.id for p in places}, {"e1"})
        now = int(self.ask("INFO", "clients").split("connected_clients:")[1].split("\r\n")[0])
        self.assertLessEqual(now, clients + 2)
        for ask in asks:
            await self.router.first(ask.request)
            await self.router.done(ask.request, 10)
        await self.router.teller.told(asks[-1].request)
        self.assertEqual((self.figure("route_reserved"), self.router.teller.unknown), (0, 0))

    async def test_who_goes_away_while_it_is_placed_gives_it_back(self):
        await self.router.leader.led(float("inf"))
        tasks = [asyncio.create_task(self.router.route(Ask(f"c{i}", "m", 9))) for i in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        place = await self.router.route(Ask("after", "m", 100))
        self.assertEqual(place.prefill.id, "e1")  # its own reply, and not one of those
        await self.router.done("after", 1)
        await self.router.teller.told("after")
        self.assertEqual(self.figure("route_reserved"), 0)

    async def test_a_user_with_few_rights(self):
        self.ask("ACL", "SETUSER", "gw", "on", ">secret", "-@all", "+@conductor", "-@admin")
        few = router(f"redis://gw:secret@127.0.0.1:{self.server.port}")
        async with Started(few):
            place = await few.route(Ask("q6", "m", 100))
            self.assertEqual(place.prefill.id, "e1")
            await few.done("q6", 1)
        wrong = router(f"redis://gw:wrong@127.0.0.1:{self.server.port}")
        async with Started(wrong):
            await asked(wrong, 0.1)
            with self.assertRaisesRegex(Away, "(?i)wrongpass|invalid"):
                await wrong.route(Ask("q7", "m", 100))


class Unix(Async):
    async def test_a_unix_socket(self):
        server = Server("0", *CONDUCTOR, "--unixsocket", "tarn.sock")
        self.addCleanup(server.stop)
        through = router(f"unix://{os.path.join(server.dir, 'tarn.sock')}")
        async with Started(through):
            with self.assertRaises(Nobody):
                await through.route(Ask("q", "m", 100))


@unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
class Tls(Async):
    def openssl(self, *words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=self.certs)

    async def test_tls_and_names(self):
        folder = tempfile.TemporaryDirectory(prefix="tarn-py-certs.")
        self.addCleanup(folder.cleanup)
        self.certs = folder.name
        own = (
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x"
        )
        names = "-addext subjectAltName=DNS:localhost -keyout own.key -out own.crt"
        self.openssl(*own.split(), *names.split())
        crt, key = (os.path.join(self.certs, f"own.{end}") for end in ("crt", "key"))
        port = harness.free_port()
        files = ["--tls-cert-file", crt, "--tls-key-file", key, "--tls-ca-cert-file", crt]
        server = Server(
            "0", *CONDUCTOR, "--tls-port", str(port), "--tls-auth-clients", "no", *files
        )
        self.addCleanup(server.stop)
        through = router(f"rediss://localhost:{port}?ssl_ca_certs={crt}")
        async with Started(through):
            with self.assertRaises(Nobody):
                await through.route(Ask("q", "m", 100))
        for wrong in f"127.0.0.1:{port}?ssl_ca_certs={crt}", f"localhost:{port}":
            with self.subTest(wrong):  # another name; another CA
                refused = router(f"rediss://{wrong}")
                async with Started(refused):
                    await asked(refused, 0.1)
                    with self.assertRaisesRegex(Away, "(?i)certificate"):
                        await refused.route(Ask("q", "m", 100))


class Trouble(Async):
    """What servers do in bad moments."""

    async def test_a_call_without_reply_is_sent_again(self):
        answers = [HANG_UP, HANG_UP, placed("e2")]
        async with conductor(ROUTE=lambda _: answers.pop(0)) as server:
            async with Started(router(server.url)) as through:
                place = await through.route(Ask("q1", "m", 100))
        self.assertEqual((place.prefill.id, server.count("CONDUCTOR.ROUTE")), ("e2", 3))

    async def test_who_does_not_lead_is_left(self):
        for error in "READONLY You can't write", "MASTERDOWN x", "LOADING x", "NOREPLICAS x":
            with self.subTest(error):
                refuses = RuntimeError(error)
                async with conductor(5) as old, conductor(9, ROUTE=placed("e2")) as new:
                    async with sentinel(old, new) as watch:
                        old.answers["ROUTE"] = lambda _: (
                            old.answers.update(LOAD=refuses) or refuses
                        )
                        new.answers["LOAD"] = RuntimeError("READONLY")
                        async with Started(router(sentinels=[watch.url])) as through:
                            asked = asyncio.create_task(through.route(Ask("q1", "m", 100)))
                            await until(lambda: old.count("CONDUCTOR.ROUTE") == 1)
                            await until(lambda: through.leader.link is None)
                            new.answers["LOAD"] = RuntimeError("ERR no engine")
                            place = await asked
                self.assertEqual((place.prefill.id, through.leader.epoch), ("e2", 9))

    async def test_a_master_that_was_left_behind_is_not_believed(self):
        async with conductor(5) as old, conductor(9, ROUTE=placed("e2")) as new:
            async with sentinel(old, new) as watch:  # which has not heard of it
                async with Started(router(sentinels=[watch.url], patience_s=1.5)) as through:
                    await through.leader.returns()
                    self.assertEqual((await through.route(Ask("q1", "m", 1))).prefill.id, "e2")
                    new.answers.update(LOAD=RuntimeError("READONLY x"), ROUTE=HANG_UP)
                    with self.assertRaisesRegex(Away, "epoch 5, and there was one of 9"):
                        await through.route(Ask("q2", "m", 1))
                    await until(lambda: through.away)
        self.assertEqual(old.count("CONDUCTOR.ROUTE"), 0)

    async def test_a_promotion_that_sentinels_do_not_know_yet(self):
        async with conductor(5) as old, conductor(5) as new:
            new.answers["LOAD"] = RuntimeError("READONLY x")
            async with sentinel(old, new) as watch:
                async with Started(router(sentinels=[watch.url])) as through:
                    await through.route(Ask("q1", "m", 1))
                    old.answers["ROUTE"] = SILENCE
                    old.answers["INFO"] = SILENCE
                    new.answers["INFO"] = info(8)
                    new.answers["LOAD"] = RuntimeError("ERR no engine")
                    place = await through.route(Ask("q2", "m", 1))
                    self.assertEqual(through.leader.epoch, 8)
        self.assertEqual((place.by, new.count("CONDUCTOR.ROUTE")), ("conductor", 1))

    async def test_what_is_told_is_told_in_order_again(self):
        asked = []

        def first(words):
            asked.append(words[:2])
            return HANG_UP if len(asked) == 1 else "OK"

        async with conductor(FIRST=first, DONE=first) as server:
            async with Started(router(server.url)) as through:
                for i in range(3):
                    await through.first(f"q{i}")
                    await through.done(f"q{i}", 1)
                await through.teller.told("q2")
        told = [[f"CONDUCTOR.{c}", f"q{i}"] for i in range(3) for c in ("FIRST", "DONE")]
        self.assertEqual(asked, told[:1] + told)

    async def test_a_request_is_placed_anew_after_it_was_told_over(self):
        async with conductor() as server:
            async with Started(router(server.url)) as through:
                await through.route(Ask("q", "m", 1))
                for _ in range(300):
                    await through.first("another")
                await through.done("q", 0, failed=True)
                await through.route(Ask("q", "m", 1, exclude=["e1"]))
        seen = [w[0].split(".")[1] for w in server.seen if w[1:2] == ["q"]]
        self.assertEqual(seen, ["ROUTE", "DONE", "ROUTE"])
        self.assertIn("FAILED", next(w for w in server.seen if w[0] == "CONDUCTOR.DONE"))

    async def test_an_engine_that_is_gone_gives_the_request_back(self):
        async with conductor(ROUTE=placed("e9")) as server:
            async with Started(router(server.url)) as through:
                with self.assertRaises(Nobody):
                    await through.route(Ask("q", "m", 1))
                await through.teller.told("q")
        self.assertEqual(server.count("CONDUCTOR.DONE"), 1)

    async def test_what_may_have_been_reserved_is_given_back(self):
        """The reply is lost, or whose url an engine has, and nobody leads then."""
        refused = RuntimeError("ERR no list")
        for trouble, why in (
            ({"ROUTE": HANG_UP}, Away),
            ({"ROUTE": placed("e9"), "LIST": HANG_UP}, Away),
            ({"ROUTE": placed("e9"), "LIST": refused}, Nobody),
        ):
            with self.subTest(trouble):
                async with conductor() as server:
                    async with Started(router(server.url)) as through:
                        await through.route(Ask("before", "m", 1))
                        through.leader.patience_s = 0.1
                        server.answers.update(trouble)
                        if why is Away:
                            server.answers["LOAD"] = RuntimeError("LOADING x")
                        with self.assertRaises(why):
                            await through.route(Ask("q", "m", 1))
                        server.answers.update(conductor().answers)
                        await through.leader.returns()
                        await through.route(Ask("q", "m", 1))
                seen = [w[0].split(".")[1] for w in server.seen if w[1:2] == ["q"]]
                self.assertEqual(seen, ["ROUTE", "DONE", "ROUTE"])

    async def test_what_was_not_sent_is_not_given_back(self):
        async with conductor(LOAD=RuntimeError("LOADING x")) as server:
            async with Started(router(server.url, patience_s=0.1)) as through:
                with self.assertRaises(Away):
                    await through.route(Ask("q", "m", 1))
                self.assertEqual(through.teller.waiting, 0)

    async def test_nobody_is_there(self):
        async with Fake() as server:  # no Conductor
            async with Started(router(server.url)) as through:
                await asked(through, 0.1)
                with self.assertRaisesRegex(Away, "unknown command"):
                    await through.route(Ask("q", "m", 1))
                self.assertTrue(through.away)
                again = asyncio.ensure_future(through.route(Ask("q", "m", 1)))
                for _ in range(20):
                    await asyncio.sleep(0)
                self.assertIsInstance(again.exception(), Away)  # at once, now
                server.answers.update(conductor().answers)
                await through.leader.returns()
                self.assertEqual((await through.route(Ask("q", "m", 1))).prefill.id, "e1")

    async def test_engines_are_known_when_it_is_away(self):
        listed = [rank("e1", state="draining"), rank("e2", role="decode", block=32)]
        async with conductor(LIST=listed) as server:
            async with Started(router(server.url, patience_s=0.2)) as through:
                await until(through.engines)
                server.answers["LOAD"] = RuntimeError("NOREPLICAS x")
                server.hang_up()
                await until(lambda: through.away)
                ranks = through.ranks()
        self.assertEqual([(r.engine.id, r.drains) for r in ranks], [("e1", True), ("e2", False)])
        self.assertEqual((ranks[1].engine.role, ranks[1].engine.block), ("decode", 32))

    async def test_later_elements_of_a_reply(self):
        later = [["e1", 1], ["e2", 0], [32, 48, 64, 80], 96, "1", "2", 3, "more"]
        listed = [rank("e1", rank=1), rank("e2")]
        async with conductor(LIST=listed, ROUTE=later) as server:
            async with Started(router(server.url)) as through:
                place = await through.route(Ask("q", "m", 100))
        self.assertEqual((place.prefill.rank, place.decode.id), (1, "e2"))
        self.assertEqual((place.hit, place.pool), ((32, 48, 64), 96))


if __name__ == "__main__":
    unittest.main()
