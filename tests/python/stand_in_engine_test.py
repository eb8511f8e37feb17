"""utils/examples/stand_in_engine.py: what it says over HTTP, what it caches, what it publishes."""

import json
import os
import random
import subprocess
import tempfile
import unittest

import msgpack
import zmq

from harness import SERVER, SLOW, environment, together, wait_until
from stand_in_helpers import Engine
from stand_in.core import Core, Request
from stand_in.hardware import GPUS, PRESETS, Speed
from stand_in.metrics import Figures
from stand_in.model import Model
from stand_in.pool import NoPool
from stand_in.words import END, IMAGE, chat_tokens, text_of, tokens_of


def prompt(seed, tokens):
    """Random tokens of words."""
    rng = random.Random(seed)
    return [512 + rng.randrange(4096) for _ in range(tokens)]


class Words(unittest.TestCase):
    def test_texts_come_back(self):
        for text in ("", "hello", " bako", " bakox", "x bako nare.", "ü bako\0", "<|end|> <|no|>"):
            self.assertEqual(text_of(tokens_of(text)), text)

    def test_answers_come_back_behind_any_prompt(self):
        rng = random.Random(1)
        for seed in range(50):
            answer = prompt(seed, 5)
            before = "".join(rng.choice(" bako<|end|>é") for _ in range(rng.randrange(20)))
            tokens = tokens_of(before) + answer
            self.assertEqual(tokens_of(text_of(tokens)), tokens)

    def test_a_next_turn_begins_with_the_one_before(self):
        turn = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
        first, _ = chat_tokens(turn)
        answer = prompt(3, 4)
        turn.append({"role": "assistant", "content": text_of(answer)})
        second, _ = chat_tokens(turn + [{"role": "user", "content": "and?"}])
        self.assertEqual(second[: len(first) + 5], first + answer + [END])


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = Engine("--model", "m", "--lora", "sql", "--block", "4", "--kv-blocks", "600")
        cls.addClassCleanup(cls.engine.stop)

    def test_a_completion(self):
        tokens = prompt(1, 10)
        body = {"model": "m", "prompt": tokens, "max_tokens": 5, "return_token_ids": True}
        answer = self.engine.post("/v1/completions", body, X_Request_Id="r-1")
        self.assertEqual((answer["id"], answer["object"]), ("cmpl-r-1", "text_completion"))
        (choice,) = answer["choices"]
        self.assertEqual(choice["prompt_token_ids"], tokens)
        self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(choice["text"], text_of(choice["token_ids"]))
        usage = answer["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), (10, 5))

    def test_a_stream_says_the_same(self):
        body = {"prompt": "how are you", "max_tokens": 6, "return_token_ids": True}
        whole = self.engine.post("/v1/completions", body)["choices"][0]
        options = {"include_usage": True}
        *chunks, last = self.engine.stream("/v1/completions", {**body, "stream_options": options})
        choices = [chunk["choices"][0] for chunk in chunks]
        self.assertEqual("".join(c["text"] for c in choices), whole["text"])
        self.assertEqual([t for c in choices for t in c["token_ids"]], whole["token_ids"])
        self.assertEqual(choices[0]["prompt_token_ids"], tokens_of("how are you"))
        self.assertNotIn("prompt_token_ids", choices[1])
        self.assertEqual(choices[-1]["finish_reason"], "length")
        self.assertEqual((last["choices"], last["usage"]["completion_tokens"]), ([], 6))

    def test_a_chat(self):
        body = {"messages": [{"role": "user", "content": "hi"}], "return_token_ids": True}
        whole = self.engine.post("/v1/chat/completions", {**body, "max_tokens": 4})
        message = whole["choices"][0]["message"]
        chunks = self.engine.stream("/v1/chat/completions", {**body, "max_completion_tokens": 4})
        deltas = [c["choices"][0]["delta"] for c in chunks]
        self.assertEqual(deltas[0], {"role": "assistant", "content": ""})
        self.assertEqual("".join(d["content"] for d in deltas), message["content"])
        self.assertEqual(chunks[0]["prompt_token_ids"], whole["prompt_token_ids"])
        tokens = self.engine.post("/tokenize", {"messages": body["messages"]})["tokens"]
        self.assertEqual(tokens, whole["prompt_token_ids"])

    def test_an_answer_goes_on_from_its_own_beginning(self):
        tokens = prompt(2, 9)
        whole, _ = self.engine.complete(tokens, 12)
        for done in (1, 5, 11):
            rest, _ = self.engine.complete(tokens + whole[:done], 12 - done)
            self.assertEqual(rest, whole[done:])

    def test_stops(self):
        tokens = prompt(3, 9)
        whole, _ = self.engine.complete(tokens, 8)
        text = text_of(whole)
        stop = text[13:17]  # across two words
        body = {"prompt": tokens, "max_tokens": 8, "stop": ["never", stop]}
        for keep in (False, True):
            choice = self.engine.post(
                "/v1/completions", {**body, "include_stop_str_in_output": keep}
            )["choices"][0]
            self.assertEqual(choice["text"], text[: text.find(stop) + 4 * keep])
            self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", stop))
        chunks = self.engine.stream("/v1/completions", body)
        streamed = "".join(c["choices"][0]["text"] for c in chunks)
        self.assertEqual(streamed, text[: text.find(stop)])
        choice = self.engine.post(
            "/v1/completions", {"prompt": tokens, "max_tokens": 8, "stop_token_ids": [whole[3]]}
        )["choices"][0]
        self.assertEqual(choice["text"], text_of(whole[:3]))
        self.assertEqual(choice["stop_reason"], whole[3])

    def test_an_answer_ends_by_itself(self):
        """But not where that is to be ignored."""
        seen = None
        for seed in range(40):
            tokens, _ = self.engine.complete(prompt(seed, 6), 100)
            if len(tokens) < 100:
                seen = seed, tokens
                break
        self.assertIsNotNone(seen)
        self.assertEqual(seen[1][-1], END)
        on, _ = self.engine.complete(prompt(seen[0], 6), 100, ignore_eos=True)
        self.assertEqual((len(on), on[: len(seen[1]) - 1]), (100, seen[1][:-1]))
        more, _ = self.engine.complete(prompt(seen[0], 6), 100, min_tokens=len(seen[1]))
        self.assertGreaterEqual(len(more), len(seen[1]))

    def test_what_answers_depend_on(self):
        tokens = prompt(4, 12)
        plain, _ = self.engine.complete(tokens)
        self.assertEqual(self.engine.complete(tokens, temperature=1)[0], plain)
        self.assertEqual(self.engine.complete(tokens, temperature=0, seed=7)[0], plain)
        others = [
            self.engine.complete(tokens, **more)[0]
            for more in ({"seed": 7}, {"seed": 8}, {"model": "sql"}, {"cache_salt": "s"})
        ]
        others += [plain, self.engine.complete([tokens[0] + 1] + tokens[1:])[0]]
        self.assertEqual(len(set(map(tuple, others))), 6)

    def test_images(self):
        def chat(**image):
            parts = [{"type": "text", "text": "look"}, {"type": "image_url", **image}]
            body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 4}
            answer = self.engine.post("/v1/chat/completions", body)
            return answer["choices"][0]["message"]["content"]

        one = chat(image_url={"url": "data:image/png;base64,AA"})
        self.assertEqual(chat(image_url={"url": "data:image/png;base64,AA"}), one)
        self.assertNotEqual(chat(image_url={"url": "data:image/png;base64,AB"}), one)
        self.assertNotEqual(chat(uuid="a"), chat(uuid="b"))
        parts = ["look", {"type": "image_url", "uuid": "a"}]
        body = {"messages": [{"role": "user", "content": parts}]}
        prompt = self.engine.post("/v1/chat/completions/render", body)
        self.assertEqual(prompt["features"]["mm_hashes"], {"image": ["a"]})
        (place,) = prompt["features"]["mm_placeholders"]["image"]
        end = place["offset"] + place["length"]
        self.assertEqual(prompt["token_ids"][:5], chat_tokens(body["messages"])[0][:5])
        self.assertEqual(set(prompt["token_ids"][place["offset"] : end]), {IMAGE})

    def test_several_prompts(self):
        prompts = [prompt(5, 7), prompt(6, 9)]
        body = {"prompt": prompts, "max_tokens": 3, "return_token_ids": True}
        choices = self.engine.post("/v1/completions", body)["choices"]
        alone = [self.engine.complete(p, 3)[0] for p in prompts]
        self.assertEqual([c["token_ids"] for c in choices], alone)
        chunks = self.engine.stream("/v1/completions", body)
        for i in (0, 1):
            mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == i]
            self.assertEqual([t for c in mine for t in c["token_ids"]], alone[i])

    def test_small_paths(self):
        for path in ("/health", "/ping"):
            self.assertEqual(self.engine.ask("GET", path)[0], 200)
        self.assertIn("version", json.loads(self.engine.ask("GET", "/version")[1]))
        models = json.loads(self.engine.ask("GET", "/v1/models")[1])["data"]
        self.assertEqual([m["id"] for m in models], ["m", "sql"])
        text = "grüß bako <|user|>"
        tokens = self.engine.post("/tokenize", {"prompt": text, "model": "m"})
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        back = self.engine.post("/detokenize", {"tokens": tokens["tokens"]})
        self.assertEqual(back, {"prompt": text})

    def test_what_cannot_be_is_an_error(self):
        good = {"prompt": "x", "max_tokens": 1}
        bad = [
            {"prompt": None}, {"prompt": ""}, {"prompt": []}, {"prompt": {}}, {"prompt": [1, "x"]},
            {"prompt": [-1]}, {"prompt": [1 << 40]}, {"prompt": [True]}, {"prompt": [1.0]},
            {"prompt": [[]]}, {"prompt": "x" * 2000}, {"prompt": ["x"] * 65}, {"max_tokens": 0},
            {"max_tokens": "1"}, {"max_tokens": 1 << 70}, {"max_tokens": 5000}, {"n": 2},
            {"min_tokens": 2}, {"stream": "yes"}, {"stream_options": {"include_usage": True}},
            {"stop": [""]}, {"stop": [1]}, {"stop": ["x"] * 17}, {"seed": 1 << 64}, {"seed": 1.5},
            {"cache_salt": ""}, {"cache_salt": "\ud800"}, {"cache_salt": 1}, {"logprobs": 1},
            {"kv_transfer_params": []}, {"temperature": -1}, {"temperature": "hot"},
            {"stop_token_ids": ["x"]}, {"response_format": {"type": "json_object"}}, {"model": 1},
        ]  # fmt: skip
        bodies = [json.dumps({**good, **part}) for part in bad]
        bodies += ["", "{", "[]", "1", "[" * 100000, "\xff", '{"max_tokens":' + "9" * 9999 + "}"]
        for body in bodies:
            status, answer = self.engine.ask("POST", "/v1/completions", body.encode("latin-1"))
            self.assertEqual(status, 400, (body[:80], answer))
            self.assertEqual(json.loads(answer)["error"]["code"], 400)
        messages = [
            None, [], {}, [1], [{}], [{"role": "king"}], [{"role": "user", "content": 1}],
            [{"role": "user", "content": [{"type": "audio"}]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        ]  # fmt: skip
        for chat in messages:
            for path in ("/v1/chat/completions", "/tokenize"):
                body = json.dumps({"messages": chat, "max_tokens": 1})
                self.assertEqual(self.engine.ask("POST", path, body)[0], 400, chat)
        status, answer = self.engine.ask(
            "POST", "/v1/completions", json.dumps({**good, "model": "other"})
        )
        self.assertEqual((status, json.loads(answer)["error"]["type"]), (404, "NotFoundError"))
        self.assertEqual(self.engine.ask("GET", "/nothing")[0], 404)
        self.engine.complete("it is alive")


class Cache(unittest.TestCase):
    def test_prefixes_are_found_and_forgotten(self):
        with Engine("--block", "4", "--kv-blocks", "64", "--max-model-len", "200") as engine:
            first, cached = engine.complete(prompt(1, 40))
            self.assertEqual(cached, 0)
            again, cached = engine.complete(prompt(1, 40))
            self.assertEqual((again, cached), (first, 36))  # the last token is always computed
            turn, cached = engine.complete(prompt(1, 40) + first + prompt(9, 5))
            self.assertEqual(cached, 44)  # with most of the answer
            for seed in range(2, 8):
                engine.complete(prompt(seed, 40))
            again, cached = engine.complete(prompt(1, 40))
            self.assertEqual((again, cached), (first, 0))
            self.assertEqual(engine.ask("POST", "/reset_prefix_cache")[0], 200)
            self.assertEqual(engine.complete(prompt(1, 40)), (first, 0))
            self.assertEqual(engine.metric("kv_cache_usage_perc"), 0)
            self.assertEqual(engine.metric("prefix_cache_hits_total"), 80)

    def test_many_at_a_time_with_few_blocks(self):
        """They wait, lose their blocks, and have the same answers."""
        prompts = [prompt(seed, 30) for seed in range(12)]
        with Engine("--block", "4", "--kv-blocks", "40", "--chunk", "24") as engine:
            alone = [engine.complete(p, 30)[0] for p in prompts]
            got = {}

            def ask(i):
                got[i] = engine.complete(prompts[i], 30)[0]

            together(ask, range(len(prompts)))
            self.assertEqual([got[i] for i in range(len(prompts))], alone)
            self.assertGreater(engine.metric("num_preemptions_total"), 0)

    def test_clients_that_go(self):
        with Engine("--block", "4", "--kv-blocks", "600", "--speed", "1") as engine:
            body = {"prompt": prompt(1, 40), "max_tokens": 1000, "ignore_eos": True}
            self.assertEqual(len(engine.stream("/v1/completions", body, stop_after=3)), 3)
            connection = engine.connect()
            connection.request("POST", "/v1/completions", json.dumps(body))
            wait_until(lambda: engine.metric("num_requests_running") >= 1)
            connection.close()
            wait_until(lambda: engine.metric("kv_cache_usage_perc") == 0)
            self.assertEqual(engine.metric("request_success_total"), 2)  # as "abort"


class Events(unittest.TestCase):
    def test_events_and_replay(self):
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        ports = [zmq_port(context) for _ in range(2)]
        args = ["--events-port", str(ports[0]), "--replay-port", str(ports[1])]
        with Engine("--block", "4", "--kv-blocks", "64", "--lora", "sql", *args) as engine:
            sub = context.socket(zmq.SUB)
            sub.rcvtimeo = 60_000 * SLOW
            sub.subscribe(b"")
            sub.connect(f"tcp://127.0.0.1:{ports[0]}")
            ask = context.socket(zmq.DEALER)
            ask.rcvtimeo = sub.rcvtimeo
            ask.connect(f"tcp://127.0.0.1:{ports[1]}")
            tokens, _ = engine.complete(prompt(1, 10), 3)
            engine.complete(prompt(2, 9), 1, model="sql", cache_salt="s")
            engine.ask("POST", "/reset_prefix_cache")
            ask.send_multipart([b"", b"too short"])
            ask.send_multipart([b"", bytes(8)])
            batches = []
            while True:
                _, number, payload = ask.recv_multipart()
                if number == b"\xff" * 8:
                    break
                self.assertEqual(int.from_bytes(number, "big"), len(batches))
                batches.append(msgpack.unpackb(payload))
            events = [event for batch in batches for event in batch["events"]]
            self.assertEqual(
                [e["type"] for e in events], 3 * ["BlockStored"] + ["AllBlocksCleared"]
            )
            self.assertEqual(events[0]["token_ids"], prompt(1, 8))
            self.assertEqual(events[1]["token_ids"], (prompt(1, 10) + tokens)[8:12])
            self.assertEqual(events[1]["parent_block_hash"], events[0]["block_hashes"][-1])
            self.assertEqual(events[2]["lora_name"], "sql")
            self.assertEqual(events[2]["extra_keys"], [["sql", "s"], ["sql"]])
            number = len(batches)
            engine.complete(prompt(3, 9), 1)  # the subscription may be late for what was before
            while True:
                _, said, payload = sub.recv_multipart()
                if int.from_bytes(said, "big") == number:
                    break
            self.assertEqual(msgpack.unpackb(payload)["events"][0]["token_ids"], prompt(3, 8))


def zmq_port(context):
    """A free port, for an engine that is told where to publish."""
    socket = context.socket(zmq.PUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    socket.close(0)
    return port


class Times(unittest.TestCase):
    """What the steps of one request take is what tarn-simulate says. But that one takes a prompt
    alone on its engine as one step: with a short last chunk, of which the weights take longest,
    they differ."""

    def test_as_simulated(self):
        lengths = {"A800": 6000, "H200": 2048, "910B": 4096, "H100": 300, "H800": 1500}
        for gpu, length in lengths.items():
            for preset in PRESETS:
                with self.subTest(gpu=gpu, preset=preset):
                    simulated = simulate(gpu, preset, length)
                    ttft, gaps = self.steps(gpu, preset, length)
                    self.assertAlmostEqual(ttft, simulated["ttft_ms"]["mean"], delta=0.002)
                    self.assertAlmostEqual(max(gaps), simulated["tbt_ms"]["mean"], delta=0.002)

    def steps(self, gpu, preset, length):
        """(milliseconds of the steps before the first token, of each after it) of a Core."""
        speed = Speed(GPUS[gpu], PRESETS[preset], 32)
        figures = Figures("m", 1000, 16)
        core = Core(
            Model("m", 16, 2, 1000), NoPool(), speed, figures, print, blocks=1000, factor=1e9
        )
        core.blocks.remember = lambda request, tokens: None  # nobody listens to events
        took, out = [], []

        def timed(plan, time=core._time):
            took.append(1000 * time(plan))
            return took[-1] / 1000

        core._time = timed
        request = Request("r", prompt(1, length), 16, lambda *said: out.append(said), max_tokens=5)
        core._add(request)
        while not out:
            core.step()
        first = sum(took)
        del took[:]
        while not request.finished():
            core.step()
        return first, took


def simulate(gpu, preset, length):
    """The row of a run with one request."""
    blocks = list(range(-(-length // 512)))
    line = {"timestamp": 0, "input_length": length, "output_length": 5, "hash_ids": blocks}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
        trace.write(json.dumps(line) + "\n")
        trace.flush()
        argv = [os.path.join(os.path.dirname(SERVER), "tarn-simulate"), "run", "--json"]
        argv += ["--trace", trace.name, "--engines", "1", "--route", "round-robin"]
        argv += ["--gpu", gpu, "--gpus", "32", "--model", preset]
        said = subprocess.run(argv, stdout=subprocess.PIPE, env=environment(), check=True).stdout
    return json.loads(said)["rows"][0]
