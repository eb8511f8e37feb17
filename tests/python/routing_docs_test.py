"""The code of docs/ROUTING.md runs as it stands there: against a real Conductor, engines that say
what they are told to, and stand-ins for LiteLLM's classes."""

import asyncio
import json
import os
import re
import subprocess
import sys
import types
import unittest
from unittest import mock

from harness import ROOT, SLOW, TarnTest, environment, free_port

try:
    import redis
    from aiohttp import ClientSession, web
except ImportError:
    redis = None

PAGE = os.path.join(ROOT, "docs", "ROUTING.md")
TOKENS = list(range(40))


class Engines:
    """Two of them, in this loop. `failing`: those that answer with 500; `wrong`: with 400."""

    def __init__(self):
        self.failing, self.wrong, self.seen, self.urls = set(), set(), [], {}
        self.stops, self.goes_on = [], asyncio.Event()
        self.goes_on.set()

    async def start(self):
        for name in ("e1", "e2"):
            app = web.Application()
            app.router.add_post("/v1/completions", self.completions)
            app.router.add_post("/tokenize", self.tokenize)
            app["name"] = name
            runner = web.AppRunner(app)
            await runner.setup()
            self.stops.append(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.urls[name] = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def stop(self):
        for stop in self.stops:
            await stop()

    async def completions(self, request):
        name = request.app["name"]
        self.seen.append(name)
        if name in self.failing | self.wrong:
            return web.Response(status=500 if name in self.failing else 400, text="no")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for i in range(3):
            try:
                await answer.write(b'data: {"text": "%d"}\n\n' % i)
            except ConnectionResetError:  # the client is gone
                return answer
            await self.goes_on.wait()
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def tokenize(self, request):
        body = await request.json()
        if request.app["name"] in self.failing or "messages" not in body:
            return web.Response(status=500)
        return web.json_response({"tokens": TOKENS, "count": len(TOKENS)})


class Taken:
    """What the page's program of a whole request is given to send."""

    def __init__(self):
        self.lines = []

    async def __call__(self, line):
        self.lines.append(line)


class LiteLLM:
    """Of LiteLLM what docs/ROUTING.md uses: the classes to derive from, and a router that asks for
    a deployment for each attempt, with the same metadata, and tells of it later."""

    class Base:
        pass

    class RateLimitError(Exception):
        status_code = 429

        def __init__(self, message, llm_provider, model):
            super().__init__(message)

    class Router:
        def __init__(self, urls):
            self.list = [
                {
                    "model_name": "chat",
                    "litellm_params": {"model": "hosted_vllm/llama", "api_base": url + "/v1"},
                    "model_info": {"id": name},
                }
                for name, url in urls.items()
            ] + [
                {
                    "model_name": "other",
                    "litellm_params": {"model": "gpt"},
                    "model_info": {"id": "x"},
                }
            ]
            self.chosen_before = 0

        def get_model_list(self, model_name):
            return [each for each in self.list if each["model_name"] == model_name]

        async def async_get_available_deployment(self, model, *_):
            self.chosen_before += 1
            return self.get_model_list(model)[0]

        def set_custom_routing_strategy(self, strategy):
            self.async_get_available_deployment = strategy.async_get_available_deployment

        async def attempt(self, model, metadata):
            deployment = await self.async_get_available_deployment(
                model=model, messages=[{"role": "user", "content": "Hi"}], request_kwargs=metadata
            )
            event = {"metadata": metadata["metadata"], "model_info": deployment["model_info"]}
            return deployment["model_info"]["id"], {"litellm_params": event}

    @classmethod
    def modules(cls, router):
        """By name, as they are imported."""
        made = {}
        for name, has in (
            ("litellm", {"RateLimitError": cls.RateLimitError}),
            ("litellm.integrations.custom_logger", {"CustomLogger": type("Logger", (), {})}),
            ("litellm.types.router", {"CustomRoutingStrategyBase": cls.Base}),
            ("litellm.proxy.proxy_server", {"llm_router": router}),
        ):
            parts = name.split(".")
            for i in range(1, len(parts) + 1):
                whole = ".".join(parts[:i])
                made.setdefault(whole, types.ModuleType(whole))
            vars(made[name]).update(has)
        return made


@unittest.skipIf(redis is None, "python3-redis or python3-aiohttp is not installed")
class Page(TarnTest):
    http_port = free_port()
    server_args = (
        *("--loadmodule", "http.so", "port", "0", "--loadmodule", "conductor.so"),
        *("http-port", str(http_port), "http-open", "yes"),
    )

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(PAGE, encoding="utf-8") as f:
            cls.text = f.read()
        ((at, acl), *_) = cls.code("sh")
        subprocess.run(
            ["bash", "-ec", acl], env=environment(), check=True, stdout=subprocess.DEVNULL
        )

    @classmethod
    def code(cls, language):
        """(line, text) of each block, with this server in it."""
        for block in re.finditer(rf"^```{language}\n(.*?)^```$", cls.text, re.M | re.S):
            code = block.group(1).replace("10.0.0.9:13333", f"127.0.0.1:{cls.http_port}")
            code = code.replace("10.0.0.9", "127.0.0.1").replace("6479", str(cls.server.port))
            yield cls.text.count("\n", 0, block.start()) + 1, code

    def python(self, mark, names):
        """Runs the block that has this mark in `names`."""
        ((at, code),) = [(at, code) for at, code in self.code("python") if mark in code]
        exec(compile("\n" * at + code, PAGE, "exec"), names)
        return names

    def ask(self, *words):
        return self.client().command(*words)

    def figures(self):
        lines = self.ask("INFO", "conductor").split()
        return {k: int(v) for k, v in (x.split(":") for x in lines if re.match(r"\w+:\d+$", x))}

    def reserved(self):
        ranks = self.ask("CONDUCTOR.LIST").split("\n")
        return sum(
            int(ranks[i + 1]) for i, word in enumerate(ranks) if word in ("prefills", "decodes")
        )

    def engines_registered(self, urls):
        for name, url in urls.items():
            self.addCleanup(self.ask, "CONDUCTOR.REMOVE", name)
            self.ask("CONDUCTOR.ADD", name, url, "MODEL", "llama")

    def with_engines(self, work):
        """Runs work(engines), a coroutine, with both of them registered."""

        async def run():
            engines = Engines()
            await engines.start()
            try:
                self.engines_registered(engines.urls)
                await work(engines)
            finally:
                await engines.stop()

        asyncio.run(run())

    def test_ten_lines(self):
        self.engines_registered({"e1": "http://e1", "e2": "http://e2"})
        before, names = self.figures(), {"tokens": TOKENS}
        self.python("import redis\n\nuser", names)
        self.python("rows = ", names)
        names["tarn"].close()
        self.assertIn(names["prefill"], ("e1", "e2"))
        self.assertEqual((names["decode"], names["hit"]), (None, [0] * 3))
        self.assertEqual(names["urls"], {("e1", 0): "http://e1", ("e2", 0): "http://e2"})
        after = self.figures()
        for figure in ("route_decisions", "route_firsts", "route_dones"):
            self.assertEqual(after[figure], before[figure] + 1, figure)
        self.assertEqual(self.reserved(), 0)
        with self.assertRaises(redis.exceptions.NoPermissionError):
            names["tarn"].execute_command("CONDUCTOR.REMOVE", "e1")
        names["tarn"].close()

    def test_http(self):
        ((_, code),) = [(at, code) for at, code in self.code("sh") if "curl" in code]

        async def work(engines):
            here = code.replace("http://10.0.0.1:8000", engines.urls["e1"])
            argv = ["bash", "-eo", "pipefail", "-c", here]
            said = await asyncio.to_thread(
                subprocess.check_output, argv, env=environment(), timeout=60 * SLOW
            )
            self.assertEqual(set(json.loads(said)["instances"]), {"e1", "e2"})

        self.with_engines(work)

    def test_a_whole_request(self):
        async def work(engines):
            names = self.python("async def serve", {})
            body = {"model": "llama", "prompt": TOKENS, "max_tokens": 3, "stream": True}

            async def serve(http, **more):
                take = Taken()
                await names["serve"](http, engines.urls, {**body, **more}, TOKENS, take)
                return b"".join(take.lines)

            async with ClientSession() as http:
                whole = await serve(http)
                self.assertTrue(whole.endswith(b"data: [DONE]\n\n"), whole)
                first = engines.seen.pop()
                self.assertEqual(self.figures()["route_failures"], 0)

                engines.failing = {first}
                self.ask("CONDUCTOR.LOAD", "e2" if first == "e1" else "e1", "PREFILL", 100000)
                self.assertEqual(await serve(http), whole)
                self.assertEqual(set(engines.seen), {"e1", "e2"})
                self.assertEqual(self.figures()["route_failures"], 1)

                engines.failing = {"e1", "e2"}
                with self.assertRaises(names["Refused"]) as refused:
                    await serve(http)
                self.assertEqual((refused.exception.status, refused.exception.after_s), (503, None))
                engines.failing, engines.wrong = set(), {"e1", "e2"}
                before = self.figures()["route_failures"]
                self.assertEqual(await serve(http), b"no")
                self.assertEqual(self.figures()["route_failures"], before)

                # a client that goes away
                engines.wrong = set()
                engines.goes_on.clear()
                firsts = self.figures()["route_firsts"]
                task = asyncio.ensure_future(serve(http))
                while self.figures()["route_firsts"] == firsts:
                    await asyncio.sleep(0.01)
                self.assertEqual(self.reserved(), 1)
                task.cancel()
                await asyncio.wait([task])
                self.assertTrue(task.cancelled())
                self.assertEqual(self.figures()["route_failures"], before)
                self.assertEqual(self.reserved(), 0)

                # its connections break: it asks again
                self.ask("CLIENT", "KILL", "USER", "gateway")
                engines.goes_on.set()
                self.assertEqual(await serve(http), whole)
            words = ["MODEL", "llama", "LENGTH", 1000000, "TTFT", 1]
            with self.assertRaises(names["Refused"]) as refused:
                await names["place"]("never", words)
            self.assertEqual((refused.exception.status, refused.exception.after_s), (429, None))
            await names["tarn"].close()

        self.with_engines(work)
        self.assertEqual(self.reserved(), 0)

    def test_cancelled_while_it_is_placed(self):
        """ROUTE is on its way when the client goes: what was reserved is given back."""

        async def work(engines):
            names = self.python("async def serve", {})
            tell, asking = names["tarn"].execute_command, []

            async def slowly(command, *words):
                asking.append(asyncio.current_task())
                await asyncio.sleep(0.02 if command == "CONDUCTOR.ROUTE" else 0)
                return await tell(command, *words)

            names["tarn"].execute_command = slowly
            async with ClientSession() as http:
                for turns in range(6):
                    serve = names["serve"](http, engines.urls, {"model": "llama"}, TOKENS, Taken())
                    task = asyncio.ensure_future(serve)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                    self.assertTrue(task.cancelled())
            await asyncio.wait(asking)
            await names["tarn"].close()
            self.assertEqual(engines.seen, [])
            self.assertGreater(self.figures()["route_decisions"], 0)

        self.with_engines(work)
        self.assertEqual(self.reserved(), 0)

    def test_litellm(self):
        async def work(engines):
            router = LiteLLM.Router(engines.urls)
            with mock.patch.dict(sys.modules, LiteLLM.modules(router)):
                routing = self.python("tarn_litellm.py", {})["routing"]
                await routing.async_pre_call_hook(None, None, {}, "completion")
                await routing.async_pre_call_hook(None, None, {}, "completion")
            self.assertEqual(router.chosen_before, 0)

            # an attempt that fails, one that does not; the failure is told of afterwards
            kwargs, failures = {"metadata": {}}, self.figures()["route_failures"]
            first, failed = await router.attempt("chat", kwargs)
            second, served = await router.attempt("chat", dict(kwargs))
            self.assertEqual({first, second}, {"e1", "e2"})
            self.assertEqual(self.reserved(), 2)
            failed["exception"] = ValueError("it is gone")
            await routing.async_log_failure_event(failed, None, 0, 0)
            self.assertEqual(self.reserved(), 1)
            self.assertEqual(self.figures()["route_failures"], failures + 1)

            async def pieces():
                yield "a"
                yield "b"

            firsts, seen = self.figures()["route_firsts"], []
            hook = routing.async_post_call_streaming_iterator_hook
            async for piece in hook(None, pieces(), kwargs):
                seen.append((piece, self.figures()["route_firsts"] - firsts))
            self.assertEqual(seen, [("a", 1), ("b", 1)])
            usage = types.SimpleNamespace(completion_tokens=2)
            answer = types.SimpleNamespace(usage=usage)
            await routing.async_log_success_event(served, answer, 0, 0)
            self.assertEqual(self.reserved(), 0)

            # wrong requests are not the engine's failure; without /tokenize their length counts
            engines.failing = {"e1", "e2"}
            _, wrong = await router.attempt("chat", {"metadata": {}})
            wrong["exception"] = LiteLLM.RateLimitError("400", "", "")
            wrong["exception"].status_code = 400
            await routing.async_log_failure_event(wrong, None, 0, 0)
            self.assertEqual(self.figures()["route_failures"], failures + 1)
            self.assertEqual(self.reserved(), 0)

            # others are chosen as before
            self.assertEqual((await router.attempt("other", {}))[0], "x")
            router.list = [each for each in router.list if each["model_info"]["id"] != "e1"]
            self.ask("CONDUCTOR.DRAIN", "e2")
            self.assertEqual((await router.attempt("chat", {}))[0], "e2")
            self.assertEqual(router.chosen_before, 2)
            self.assertEqual(self.reserved(), 0)
            with self.assertRaises(NotImplementedError):
                routing.get_available_deployment("chat")
            await routing.tarn.close()

        self.with_engines(work)


if __name__ == "__main__":
    sys.exit(unittest.main())
