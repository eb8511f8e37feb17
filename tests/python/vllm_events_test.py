"""KV events of TarnConnector: what is announced to vLLM's listeners, and what is withdrawn."""

import hashlib
import random
import threading
import unittest
from types import SimpleNamespace
from unittest import mock

from harness import Server, wait_until
import tarn
from groups_engine import GroupsEngine
from layouts import LAYOUTS, Prompt
from tarn.vllm import TarnConnector, events
from tarn.vllm.base import BlockRemoved, BlockStored
from tarn.vllm.events import Announcer, KindOf, StoredKeys, _read_of, block_hash_of
from tarn.vllm.saver import Job
from vllm_engine import Engine
from vllm_helpers import WithServer, prompt
from vllm_model import Request
import vllm_parts_test

ON = SimpleNamespace(enable_kv_cache_events=True)


def hashes_of(tokens, unit):
    """As vLLM's request.block_hashes: each names all before it."""
    return [
        hashlib.sha256(repr(tokens[:end]).encode()).digest()
        for end in range(unit, len(tokens) + 1, unit)
    ]


def hashed(request, unit=4):
    request.block_hashes = hashes_of(request.all_token_ids, unit)
    return request


class ListenedTo(Engine):
    """An engine of vLLM's that publishes KV events."""

    def config(self, rank):
        config = super().config(rank)
        config.kv_events_config = ON
        return config


class Picture:
    """What a router makes of events."""

    def __init__(self):
        self.there = {}

    def apply(self, told):
        for event in told:
            assert event.medium == "EXTERNAL" and event.ownership == "tarn"
            for i, name in enumerate(event.block_hashes):
                place = (event.group_idx, name)
                if isinstance(event, BlockRemoved):
                    del self.there[place]  # a KeyError: it was never told
                    continue
                size = event.block_size
                parent = event.block_hashes[i - 1] if i else event.parent_block_hash
                assert len(event.token_ids) == size * len(event.block_hashes)
                self.there[place] = (parent, event.token_ids[i * size : (i + 1) * size])
        return self.there


class Announcing(unittest.TestCase):
    """Without a server."""

    def request(self, count=16, unit=4, **more):
        tokens = list(range(count))
        hashes = hashes_of(tokens, unit)
        return SimpleNamespace(all_token_ids=tokens, block_hashes=hashes, **more)

    def announcer(self, *kinds):
        return Announcer("EXTERNAL", 4, kinds)

    def test_only_whole_blocks_are_told(self):
        announcer, request = self.announcer(KindOf("full_attention", None)), self.request()
        for end in (4, 8, 12):
            announcer.plan(request, 0, 4, end, [f"m@tp2.{r}@{end:x}" for r in (0, 1)])
        announcer.stored(["m@tp2.0@4", "m@tp2.0@8", "m@tp2.1@c", "m@tp2.0@4", "x@tp2.0@99"])
        self.assertEqual(announcer.take(), [])
        announcer.stored(["m@tp2.1@4", "m@tp2.1@8"])
        (told,) = announcer.take()
        names = request.block_hashes
        self.assertIsInstance(told, BlockStored)
        self.assertEqual((told.block_hashes, told.parent_block_hash), (names[:2], None))
        self.assertEqual((told.token_ids, told.block_size), (list(range(8)), 4))
        self.assertEqual((told.group_idx, told.kv_cache_spec_kind), (0, "full_attention"))
        announcer.stored(["m@tp2.0@c"])
        (told,) = announcer.take()
        self.assertEqual((told.block_hashes, told.parent_block_hash), (names[2:3], names[1]))
        self.assertEqual(announcer.take(), [])

    def test_what_was_announced_is_withdrawn_once(self):
        announcer, request = self.announcer(), self.request()
        announcer.plan(request, 0, 4, 4, ["m@a"])
        announcer.withdraw(["m@b", "other@a@b@c"])
        announcer.stored(["m@a"])
        announcer.withdraw(["m@a"])
        announcer.withdraw(["m@a"])
        stored, removed = announcer.take()
        self.assertEqual(removed.block_hashes, stored.block_hashes)
        self.assertEqual(announcer.announced_keys(), [])
        announcer.plan(request, 0, 4, 4, ["m@a"])
        announcer.stored(["m@a"])
        announcer.plan(request, 0, 4, 4, ["m@a"])
        announcer.stored(["m@a"])
        self.assertEqual(len(announcer.take()), 1, "told again, once")

    def test_a_part_that_goes_before_the_last_one_comes(self):
        announcer, request = self.announcer(), self.request()
        announcer.plan(request, 0, 4, 4, ["m@tp2.0@a", "m@tp2.1@a"])
        announcer.stored(["m@tp2.0@a"])
        announcer.withdraw(["m@tp2.0@a"])
        announcer.stored(["m@tp2.1@a"])
        self.assertEqual(announcer.take(), [])

    def test_layers_and_groups(self):
        announcer, request = self.announcer(KindOf("full"), KindOf("window", 8)), self.request()
        announcer.plan(request, 0, 4, 4, ["m@a@l0", "m@a@l1"])
        announcer.plan(request, 1, 8, 8, ["m@kv1@a"])
        announcer.stored(["m@a@l0", "m@kv1@a"])
        (told,) = announcer.take()
        self.assertEqual(
            (told.group_idx, told.kv_cache_spec_kind, told.kv_cache_spec_sliding_window),
            (1, "window", 8),
        )
        announcer.stored(["m@a@l1"])
        self.assertEqual([event.group_idx for event in announcer.take()], [0])
        announcer.withdraw(["m@kv1@a"])
        self.assertEqual([event.group_idx for event in announcer.take()], [1])

    def test_bounds(self):
        announcer, request = self.announcer(), self.request(4 * 64)
        for name, value in (("ANNOUNCED_MAX", 8), ("PLANNED_MAX", 16)):
            self.addCleanup(setattr, events, name, getattr(events, name))
            setattr(events, name, value)
        for i in range(64):
            announcer.plan(request, 0, 4, 4 * i + 4, [f"m@{i:x}"])
        announcer.stored([f"m@{i:x}" for i in range(64)])
        picture = Picture()
        self.assertEqual(len(picture.apply(announcer.take())), 8, "the others were withdrawn")

    def test_hashes(self):
        request = self.request(12)
        self.assertEqual(block_hash_of(request, 8, 4, 4), request.block_hashes[1])
        for end, block, unit in ((16, 4, 4), (6, 4, 4), (4, 4, 8)):
            self.assertIsNone(block_hash_of(request, end, block, unit), (end, block, unit))
        self.assertIsNone(block_hash_of(SimpleNamespace(), 4, 4, 4), "prefix caching is off")
        lora = self.request(lora_request=SimpleNamespace(lora_name="l", lora_int_id=3))
        announcer = self.announcer()
        announcer.plan(lora, 0, 4, 4, ["m@a"])
        announcer.stored(["m@a"])
        self.assertEqual([(e.lora_name, e.lora_id) for e in announcer.take()], [("l", 3)])

    def test_names_are_vllms(self):
        """vLLM's functions decide, where it has them."""

        class Joined:
            def __init__(self, hashes, unit, block):
                self.hashes, self.each = hashes, block // unit

            def __getitem__(self, i):
                return b"".join(self.hashes[i * self.each : (i + 1) * self.each])

        request = self.request()
        short = mock.patch.multiple(events, HashesOfBlocks=Joined, published_hash=lambda h: len(h))
        with short:
            self.assertEqual(block_hash_of(request, 16, 8, 4), 64)
            self.assertEqual(block_hash_of(request, 16, 4, 4), 32)
        self.assertEqual(block_hash_of(request, 16, 8, 4), request.block_hashes[3])
        self.assertEqual(events.hash_unit_of(None, None, 16), 16)
        with mock.patch.object(events, "block_sizes_of", lambda cache, config: (32, 8)):
            self.assertEqual(events.hash_unit_of(None, None, 16), 8)
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(sliding_window=128))
        self.assertEqual(KindOf.of(group), (None, 128))
        kind = SimpleNamespace(value="sliding_window")
        with mock.patch.object(events, "kind_of_spec", lambda spec: kind):
            self.assertEqual(KindOf.of(group), ("sliding_window", 128))

    def test_releases_with_fewer_fields(self):
        class Old:
            __struct_fields__ = ("block_hashes", "medium")

            def __init__(self, block_hashes, medium):
                self.block_hashes = block_hashes

        fields = {"block_hashes": [1], "medium": "EXTERNAL", "group_idx": 0, "locality": "REMOTE"}
        self.assertEqual(events._known(Old, fields).block_hashes, [1])

    def test_keys_of_all_workers(self):
        one, other = StoredKeys(["a"]), StoredKeys(["b"])
        one.add_events(other.get_all_events())  # until the summer of 2026
        one.increment_workers(1)
        self.assertEqual(
            (one.aggregate().get_all_events(), one.get_number_of_workers()), (["a", "b"], 2)
        )
        self.assertEqual(StoredKeys(["a"]).merge(StoredKeys(["c"])).get_all_events(), ["a", "c"])
        one.clear_events()
        self.assertEqual(one.get_all_events(), [])

    def test_replies(self):
        memory, books = "memory\n\nlocal\n5", "books\n\n\n0"
        events_told = (
            f"1\n17\nput\nm@1\n100\n{memory}\nssd\nn\ns\n5",
            "3\n17\nremoved\nm@1\n100\n",
            f"4\n17\nput\nm@2\n10\n{books}",
            "5\n17\nevicted\nm@3\n1\n",
            "6\n17\nput\nm@3\n1\nfile\n\nf\n5",
            "7\n18\nlost\nm@4\n9\n",
        )
        reply = "9\n" + "\n".join(events_told)
        self.assertEqual(_read_of(reply), (9, ["m@1", "m@4"], False))
        self.assertEqual(_read_of("7\n6\n1\nlost\nm@1\n1\n\n7\n1\nflushed\n\n0\n"), (7, [], True))
        self.assertEqual(_read_of("4\n"), (4, [], False))

    def test_only_what_is_there_counts_as_put(self):
        S = tarn.Status
        answers = [[0, S.EEXISTS, S.EBUSY, S.EIO, S.ENOSPACE]]
        saver = vllm_parts_test.Parts.saver(
            self, lambda names, *rest: answers.pop(0), save_threads=1
        )
        keys, ended = [], threading.Event()
        saver.on_stored = lambda some: (keys.extend(some), ended.set())
        saver.submit(Job("a", list("abcde"), [1, 2, 3, 4, 5], [0], None))
        self.assertTrue(ended.wait(60))
        self.assertEqual(keys, ["a", "b"])

    def test_a_gap(self):
        """What it may have missed is looked for; what is planned is not told."""
        announcer, request = self.announcer(), self.request()
        for end in (4, 8, 12):
            announcer.plan(request, 0, 4, end, [f"m@{end:x}"])
        announcer.stored(["m@4", "m@8"])
        seen, release = threading.Semaphore(0), threading.Semaphore(0)
        replies = ["6\n", tarn.Error("command: the server says: GAP the first is 90"), "95\n"]
        infos = iter(("5", "95"))

        def command(name, what, *rest):
            if what == "INFO":
                return f"epoch\ne1\nfirst\n1\nlast\n{next(infos)}\nbytes\n0"
            seen.release()
            self.assertTrue(release.acquire(timeout=60))
            reply = replies.pop(0) if replies else "95\n"
            if isinstance(reply, Exception):
                raise reply
            return reply

        there = {"m@4": True, "m@8": True}
        client = SimpleNamespace(
            command=command, exists_many=lambda keys: [there[k] for k in keys], close=lambda: None
        )
        follower = events.Follower(announcer, lambda: client, "m@", 60)
        self.addCleanup(lambda: (release.release(1000), follower.close()))
        self.assertTrue(seen.acquire(timeout=60))
        self.assertEqual(len(Picture().apply(announcer.take())), 2)
        there["m@8"] = False
        release.release(2)
        for _ in range(2):
            self.assertTrue(seen.acquire(timeout=60))
        (removed,) = announcer.take()
        self.assertEqual(removed.block_hashes, request.block_hashes[1:2])
        announcer.stored(["m@c"])
        self.assertEqual(announcer.take(), [])

    settings = vllm_parts_test.Parts.settings


class Listening(WithServer):
    """With engines and a pool."""

    def engine_at(self, url, kind=ListenedTo, **options):
        for name in ("timeout_ms", "lookup_timeout_ms"):
            options.setdefault(name, 60_000)
        engine = kind(url, TarnConnector, **options)
        self.engines.append(engine)
        return engine

    def told(self, engine, picture):
        """All that is told until what was put is there."""
        self.settle(engine)
        engine.step()
        picture.apply(engine.events)
        engine.events = []
        return picture.there

    def expect(self, *requests, blocks=9):
        whole = {}
        for request in requests:
            names, tokens = [None, *request.block_hashes], request.all_token_ids
            for i in range(blocks):
                whole[0, names[i + 1]] = (names[i], tokens[4 * i : 4 * i + 4])
        return whole

    def test_what_is_put_is_told(self):
        for options in ({}, {"tp": 2}, {"tp": 4, "kv_heads": 1, "form": "MLA"}, {"layerwise": True},
                        {"tp": 2, "pp": 2}, {"load_async": True}):  # fmt: skip
            with self.subTest(**options):
                self.flush()
                engine = self.engine_at(self.server.url, **options)
                requests = [engine.add(hashed(Request(prompt(s, 37)))) for s in (1, 2)]
                self.assertEqual(self.told(engine, Picture()), self.expect(*requests))

    def test_nobody_listens(self):
        engine = self.engine()
        engine.add(hashed(Request(prompt(1, 37))))
        self.settle(engine)
        self.assertEqual((engine.events, engine.connector._follower), ([], None))
        self.assertIsNone(engine.workers[0].connector.get_kv_connector_kv_cache_events())

    def test_what_leaves_is_withdrawn(self):
        with Server("64mb", "--kv-events-size", "1mb") as server:
            engine, picture = self.engine_at(server.url, tp=2, lookup_timeout_ms=250), Picture()
            self.assertTrue(engine.connector._follower.ready.wait(60))
            requests = [engine.add(hashed(Request(prompt(s, 37)))) for s in (1, 2)]
            whole = self.expect(*requests)
            self.assertEqual(self.told(engine, picture), whole)
            space = engine.workers[1].connector._worker._space
            chain = engine.connector._scheduler._track(
                Request(requests[0].all_token_ids, name="x")
            ).chain
            chain.extend(requests[0].all_token_ids[:36])
            with tarn.Client(server.url) as client:
                self.assertTrue(client.remove(space.key(chain.hashes[5])))
                del whole[0, requests[0].block_hashes[5]]
                wait_until(lambda: self.told(engine, picture) == whole)
                client.command("FLUSHALL")
                wait_until(lambda: self.told(engine, picture) == {})
            again = engine.add(hashed(Request(requests[1].prompt_token_ids)))
            engine.blocks.evict_blocks(range(engine.block_count))
            self.assertEqual(self.told(engine, picture), self.expect(again))

    def test_what_went_unseen_is_withdrawn(self):
        """A restart begins another history."""
        with Server("64mb", "--kv-events-size", "1mb") as server:
            engine, picture = self.engine_at(server.url, retry_ms=50), Picture()
            self.assertTrue(engine.connector._follower.ready.wait(60))
            engine.add(hashed(Request(prompt(1, 37))))
            self.assertEqual(len(self.told(engine, picture)), 9)
            server.kill()
            server.start()
            wait_until(lambda: self.told(engine, picture) == {})
            engine.add(hashed(Request(prompt(2, 37))))
            self.assertEqual(len(self.told(engine, picture)), 9)

    def test_a_pool_that_is_too_small(self):
        """What was told and not withdrawn is there, in the end."""
        with Server("4mb", "--kv-events-size", "4mb") as server:
            engine = self.engine_at(server.url, tp=2, blocks=40, save_decode=True)
            follower, announcer = engine.connector._follower, engine.connector._announcer
            self.assertTrue(follower.ready.wait(60))
            picture, rng = Picture(), random.Random(5)
            shared = [prompt(s, 30) for s in range(3)]
            for number in range(150):
                tokens = rng.choice(shared) + prompt(100 + number, rng.randrange(60))
                engine.add(hashed(Request(tokens, max_tokens=rng.randrange(1, 9))))
                if number % 8 == 0:
                    self.told(engine, picture)
            self.told(engine, picture)
            with tarn.Client(server.url) as client:
                for i in range(45):  # others', in the place of about half of the blocks
                    client.put(f"other{i}", b"x" * (64 << 10))

                def right():
                    self.told(engine, picture)
                    keys = announcer.announced_keys()
                    return all(client.exists_many(keys)) and 2 * len(picture.there) == len(keys)

                wait_until(right)
                evicted = int(client.command("INFO", "stats").split("evicted_keys:")[1].split()[0])
            self.assertGreater(evicted, 0)
            self.assertGreater(len(picture.there), 10)

    def test_a_pool_that_says_nothing(self):
        with Server("64mb") as server:
            with self.assertLogs("tarn.vllm", "WARNING") as logs:
                engine = self.engine_at(server.url, retry_ms=10)
                request = engine.add(hashed(Request(prompt(1, 37))))
                self.assertEqual(self.told(engine, Picture()), self.expect(request))
                wait_until(lambda: logs.output)
                engine.close()
            self.assertEqual(len(logs.output), 1, logs.output)
            self.assertIn("kv-events-size", logs.output[0])
            self.engines.remove(engine)

    def test_several_kv_groups(self):
        """By way of build_connector_worker_meta, as under vLLM's MultiConnector."""
        for layout in [one for one in LAYOUTS if len(one.groups) > 1]:
            with self.subTest(layout=layout.name):
                self.flush()

                class Heard(GroupsEngine):
                    def config(self, rank):
                        config = super().config(rank)
                        config.kv_events_config = ON
                        return config

                largest = max(group.block for group in layout.groups)
                engine = self.engine_at(
                    self.server.url, lambda url, kind, **o: Heard(url, kind, layout, **o),
                    budget=largest + largest // 2,
                )  # fmt: skip
                text = Prompt(prompt(1, 3 * layout.align + layout.align // 3))
                request = engine.add(text)
                request.block_hashes = hashes_of(list(request.all_token_ids), layout.unit)
                engine.run()
                engine.step()
                told = engine.connector.take_events()
                picture = Picture().apply(told)
                for number, group in enumerate(layout.groups):
                    stored = set(layout.stored(number, len(text)))
                    names = {
                        name
                        for end in stored
                        if (name := block_hash_of(request, end, group.block, layout.unit))
                    }
                    told_names = {name for at, name in picture if at == number}
                    self.assertTrue(told_names <= names, (layout.name, number))
                    self.assertTrue(told_names, (layout.name, number))
                with tarn.Client(self.server.url) as client:
                    keys = engine.connector._announcer.announced_keys()
                    self.assertTrue(all(client.exists_many(keys)))


if __name__ == "__main__":
    unittest.main()
