"""The demo (utils/demo): its chats, its checks, its counter; and all of it for half a minute, its
page seen in Chromium. With TARN_PICTURES=DIR it leaves pictures of that; DEMO_ARGS="--seconds 120
--engines 10" is then what `make demo` shows."""

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
from unittest import mock

import browser
from harness import ROOT, SLOW, environment, wait_until

DEMO = os.path.join(ROOT, "utils", "demo")
sys.path.insert(0, DEMO)

from aiohttp import web  # noqa: E402
import chats  # noqa: E402
import show  # noqa: E402
import watch  # noqa: E402
from load import Load  # noqa: E402


def row(at_s, prompt, answer, *ids):
    return json.dumps(
        {
            "timestamp": at_s * 1000,
            "input_length": prompt,
            "output_length": answer,
            "hash_ids": list(ids),
        }
    )


class Chats(unittest.TestCase):
    TRACE = [
        row(0, 1200, 100, 1, 2, 3),  # a system prompt of 1024, a question of 176
        row(1, 1100, 50, 1, 2, 4),  # no room for the first one: it begins anew
        row(2, 1400, 300, 1, 2, 5),  # goes on with the second, the latest that it has room for
        row(3, 2000, 20, 1, 2, 5, 6),  # with the third: two whole blocks of it
        row(4, 600, 20, 9, 10),  # something else
    ]

    def test_turns_are_found_and_lengths_kept(self):
        made = chats.make(self.TRACE)
        self.assertEqual([len(c.turns) for c in made], [1, 3, 1])
        first, second, other = made
        self.assertEqual(len(first.system.split()), 1024)
        self.assertEqual(first.system, second.system)
        self.assertNotEqual(first.system[:50], other.system[:50])
        self.assertEqual(len(first.turns[0].question.split()), 176)
        questions = [len(t.question.split()) for t in second.turns]
        self.assertEqual(questions, [76, 1400 - 1150, 2000 - 1700])
        self.assertEqual([t.answer for t in second.turns], [50, 300, 20])
        self.assertEqual([t.at_s for t in second.turns], [1, 2, 3])

    def test_the_same_again_shorter_faster_cut(self):
        self.assertEqual(chats.make(self.TRACE), chats.make(self.TRACE))
        made = chats.make(self.TRACE, shrink=10, speed=2, longest_prompt=150, longest_answer=9)
        self.assertEqual([len(c.turns) for c in made], [1, 2, 1])
        self.assertEqual(len(made[0].system.split()), 102)
        self.assertEqual([t.at_s for t in made[1].turns], [0.5, 1])
        self.assertEqual([t.answer for t in made[1].turns], [5, 9])


class FakeGateway:
    """Answers w0 w1 ... and what a test tells it to do instead: trouble maps the number of a
    request to a name."""

    def __init__(self, trouble=()):
        self.trouble, self.count, self.prompts = dict(trouble), 0, []

    @contextlib.asynccontextmanager
    async def served(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield "http://127.0.0.1:%d" % runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def answer(self, request):
        body = await request.json()
        trouble = self.trouble.get(self.count)
        self.count += 1
        if trouble == "later":
            return web.Response(status=429, headers={"Retry-After": "0"})
        if trouble == "refused":
            return web.json_response({"error": {"message": "no"}}, status=503)
        self.prompts.append([m["content"] for m in body["messages"]])
        reply = web.StreamResponse(headers={"X-Tarn-Engine": "d1"})
        reply.content_type = "text/event-stream"
        await reply.prepare(request)
        count = body["max_tokens"] - (trouble == "short")
        for i in range(count):
            if i == 1 and trouble == "broken":
                request.transport.abort()
                return reply
            if i == 1 and trouble == "error":
                await self.say(reply, {"error": {"message": "the engine has gone"}})
                return reply
            word = " other" if trouble == "other" and i == 1 else f" w{len(self.prompts[-1])}.{i}"
            await self.say(reply, {"choices": [{"delta": {"content": word}}]})
        await self.say(reply, {"choices": [{"delta": {}, "finish_reason": "length"}]})
        usage = {"prompt_tokens": 9, "completion_tokens": count}
        await self.say(reply, {"choices": [], "usage": usage})
        if trouble != "endless":
            await reply.write(b"data: [DONE]\n\n")
        return reply

    @staticmethod
    async def say(reply, event):
        await reply.write(b"data: " + json.dumps(event).encode() + b"\n\n")


CHAT = chats.Chat("c", " be kind", [chats.Turn(0, f" q{i}", 3) for i in range(3)])
RIGHT = {("c", i): "".join(f" w{2 * i + 2}.{k}" for k in range(3)) for i in range(3)}


class Checks(unittest.TestCase):
    """What the load does not take for an answer."""

    def held(self, trouble=(), before=None):
        gateway = FakeGateway(trouble)

        async def run():
            async with gateway.served() as url:
                load = Load([url], "m", [CHAT], before)
                await load.run()
                return load

        return asyncio.run(run()), gateway

    def test_an_undisturbed_one(self):
        load, gateway = self.held()
        self.assertEqual(load.answers, RIGHT)
        self.assertEqual((load.tally.done, load.tally.lost, load.tally.wrong), (3, 0, []))
        whole = [" be kind", " q0", RIGHT["c", 0], " q1", RIGHT["c", 1], " q2"]
        self.assertEqual(gateway.prompts[2], whole)
        self.assertEqual(load.tally.tokens, 9)
        self.assertEqual(load.tally.where["d1"], 0)

    def test_who_is_told_to_come_again_does(self):
        load, _ = self.held({0: "later", 1: "later"}, RIGHT)
        tally = load.tally
        self.assertEqual((tally.done, tally.lost, tally.different, tally.waited), (3, 0, 0, 2))

    def test_another_word(self):
        load, gateway = self.held({1: "other"}, RIGHT)
        self.assertEqual((load.tally.done, load.tally.lost, load.tally.different), (3, 0, 1))
        self.assertIn("turn 2", load.tally.wrong[0])
        self.assertEqual(gateway.prompts[2][4], RIGHT["c", 1])  # and the chat goes on from this

    def test_an_answer_that_is_not_whole(self):
        for trouble in ("refused", "broken", "error", "short", "endless"):
            with self.subTest(trouble):
                load, gateway = self.held({1: trouble}, RIGHT)
                self.assertEqual((load.tally.done, load.tally.lost), (2, 1), load.tally.wrong)
                self.assertEqual(gateway.prompts[-1][4], RIGHT["c", 1])
                load, _ = self.held({1: trouble})
                self.assertEqual((load.tally.asked, load.tally.lost), (2, 1))


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Shown(unittest.TestCase):
    RUNS = [show.Figures("undisturbed", 20, done=20), show.Figures("with failures", 20, lost=1)]

    def test_lines_where_it_is_no_terminal(self):
        out = io.StringIO()
        counter = show.Counter(out)
        counter.show(self.RUNS)
        counter.show(self.RUNS)  # too soon to say it again
        counter.say("engine d1 is killed")
        counter.close()
        text = out.getvalue()
        self.assertNotIn("\x1b", text)
        self.assertEqual(text.count("lost 1;"), 1)
        self.assertIn("engine d1 is killed\n", text)
        table = text.splitlines()[-11:]
        self.assertEqual(len({len(line) for line in table}), 1)
        self.assertRegex(table[1], r"^requests answered +20 of 20 +0 of 20$")

    def test_a_table_that_stays_in_a_terminal(self):
        out = Terminal()
        with mock.patch.dict(os.environ, TERM="xterm"):
            counter = show.Counter(out)
        counter.page = "http://x/"
        counter.show(self.RUNS)
        lines = out.getvalue().count("\n")
        counter.say("engine d1 is killed")
        rest = out.getvalue().split("\x1b[", 1)[1]
        self.assertTrue(rest.startswith(f"{lines}F\x1b[J"), rest[:20])
        self.assertLess(rest.index("d1 is killed"), rest.index("requests answered"))


class Sums(unittest.TestCase):
    def test_counters_that_begin_again(self):
        sums = watch.Sums()
        for where, value in (("a", 100), ("b", 7), ("a", 130), ("a", 5), ("b", 8)):
            sums.take(where, {"x": value})
        self.assertEqual(sums.get("x"), 30 + 5 + 1)
        text = '# HELP n x\nn_total{tier="a"} 2.0\nn_total{tier="b"} 3.0\nn_total_more 9\n'
        self.assertEqual(watch.counters(text, ["n_total"]), {"n_total": 5.0})


ARGS = os.environ.get("DEMO_ARGS", "--seconds 20 --engines 4").split()


@unittest.skipIf(SLOW > 1, "the demo is of release binaries")
@unittest.skipUnless(shutil.which("redis-sentinel"), "redis-sentinel is not there")
class Whole(unittest.TestCase):
    """As `make demo`, but shorter, and with fewer engines."""

    def start(self):
        words = [sys.executable, os.path.join(DEMO, "demo.py"), "--keep", "--no-browser", *ARGS]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
        )
        self.addCleanup(self.close)
        self.said = []
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stdout))
        self.reader.start()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()

    def text(self):
        return "".join(self.said)

    def told(self, words):
        def there():
            if self.process.poll() is not None and words not in self.text():
                raise AssertionError(f"it ended without {words!r}:\n{self.text()}")
            return words in self.text()

        wait_until(there, 300, words)

    def test_nothing_is_lost(self):
        self.start()
        if browser.CHROMIUM:
            self.see_page()
        self.told("It goes on running")
        self.told("/*/log")  # comes a line later
        if browser.CHROMIUM:
            self.see_decision()
        text = self.text()
        self.assertIn("Not one request was lost, and not one answer was different.", text)
        for words in ("engine d", "engine p1 is killed", "node n1 is stopped", "leads, "):
            self.assertIn(words, text)
        self.assertRegex(text, r"lost +0 +0\n")
        self.assertRegex(text, r"answered differently +- +0\n")
        folder = re.search(r"logs: (\S+)/\*/log", text).group(1)
        self.assertGreaterEqual(len(left_in(folder)), 4 + 2 + 3 + 3 + 3)
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(60), 0)
        self.assertFalse(os.path.exists(folder))
        self.assertEqual(left_in(folder), [])

    def see_page(self):
        """What the page of the new master says, when what was killed begins to come back."""
        self.told("now a replica, is started again")
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)
        self.page = re.findall(r"the page: (\S+)", self.text())[-1]
        words = ["Engines up", "d1", "d2", "p1", "p2", "device memory", "Last decisions"]
        self.seen(self.page, "conductor", 1180, words, picture=True)
        words = ["n1", "n2", "n3", "disk"]
        self.seen(self.page.replace("#Conductor", "#Pool"), "pool", 815, words, picture=True)

    def see_decision(self):
        """One about a request of ours: if Sentinels took their time to agree on a new master, all
        of the demo's were placed without it."""
        gateway = re.search(r"curl -s (\S+)", self.text()).group(1)
        headers = wait_until(lambda: placed(gateway), 60, "a request that the Conductor places")
        to = f"→ {headers['X-Tarn-Prefill']} → {headers['X-Tarn-Engine']}"
        words = ["% hits", headers["X-Tarn-Request"], to, "tarn-demo"]
        self.seen(self.page, "conductor", 1180, words)
        self.assertEqual(self.browser.said, [])

    def seen(self, url, name, high, words, picture=False):
        self.browser.look(1300, high)
        self.browser.go(url)
        text = ""

        def missing():
            nonlocal text
            text = self.browser.run("document.body.innerText") or ""
            return [word for word in words if word not in text]

        try:
            wait_until(lambda: not missing(), 60)
        except AssertionError:
            self.fail(f"{name} does not show {missing()}:\n{text[:2000]}\n---\n{self.text()}")
        if picture and "TARN_PICTURES" in os.environ:
            time.sleep(5)  # there is more to see then
            path = os.path.join(os.environ["TARN_PICTURES"], f"demo-{name}.png")
            self.browser.picture(path, whole=False)

    def test_nothing_is_left_of_one_that_is_killed(self):
        self.start()
        self.told("undisturbed")
        running = left_in("/tarn-demo.", self.process.pid)
        self.assertGreater(len(running), 10)
        folder = os.path.dirname(os.readlink(f"/proc/{running[0]}/cwd"))
        self.addCleanup(shutil.rmtree, folder)
        self.process.kill()
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in running), 60)


def placed(gateway):
    """Headers of the answer to a request; None: the gateway has placed it alone."""
    said = [{"role": "user", "content": "Hello"}]
    body = json.dumps({"model": "tarn-demo", "messages": said, "max_tokens": 2}).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(gateway, body, kind)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.headers if reply.headers["X-Tarn-Routed"] == "conductor" else None


def left_in(folder, parent=None):
    """Processes that run in it; of a parent, if it is said."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                above = int(f.read().rpartition(")")[2].split()[1])
            if folder in os.readlink(f"/proc/{pid}/cwd") and parent in (None, above):
                found.append(int(pid))
    return found


if __name__ == "__main__":
    unittest.main()
