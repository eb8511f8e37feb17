"""A stand-in engine: publishes KV events as vLLM and SGLang do, over real ZeroMQ sockets.

kv_publisher.py [PUB-PORT REPLAY-PORT]     0: any free one

Says "PUB-PORT REPLAY-PORT", then obeys lines, and answers each with "ok". Block K of chain C has
the tokens C * 100000 + K * BLOCK and those that follow, and the engine's own hash C * 1000 + K + 1.

    await N                             until it has N subscribers
    store C FROM TO [word value]...     words: block medium group spec window lora salt extra rank;
                                        bare 1: without tokens, as vLLM's offloading
    remove C FROM TO [word value]...    medium group
    clear
    garbage                             a batch that nobody can read
    billion                             one that says that it has a billion blocks, and ends there
    flood N                             N batches of 64 blocks each, of chains that nobody asks for
    number N                            the next batch is number N; back: what was before is not
                                        kept
    array, map                          the form of what follows
    hide                                what follows is kept for replays, and not published
    forget                              ... and not even kept
    show                                all as it was at first
"""

import collections
import select
import sys
import time

import msgpack
import zmq

KEPT = 10000  # as many as vLLM unless told otherwise


class Engine:
    def __init__(self, ports):
        self.context = zmq.Context()
        self.pub, self.pub_port = self.bind(zmq.XPUB, ports[0])
        self.router, self.router_port = self.bind(zmq.ROUTER, ports[1])
        self.pub.setsockopt(zmq.XPUB_VERBOSER, 1)  # all of them, not only the first
        self.subscribers = self.next = 0
        self.kept = collections.deque(maxlen=KEPT)
        self.form, self.hidden, self.forgotten = "map", False, False

    def bind(self, kind, port):
        socket = self.context.socket(kind)
        socket.linger = 0
        end = time.monotonic() + 30
        while True:
            try:
                socket.bind(f"tcp://127.0.0.1:{port or '*'}")
                break
            except zmq.ZMQError:  # the one before it has just gone
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
        return socket, int(socket.last_endpoint.decode().rsplit(":", 1)[1])

    def pump(self, wait_ms=0):
        """Subscribers that came and went; replays that are asked for."""
        poller = zmq.Poller()
        for socket in self.pub, self.router:
            poller.register(socket, zmq.POLLIN)
        ready = dict(poller.poll(wait_ms))
        if self.pub in ready:
            self.subscribers += 1 if self.pub.recv()[:1] == b"\1" else -1
        if self.router in ready:
            who, empty, start = self.router.recv_multipart()
            for number, payload in self.kept:
                if number >= int.from_bytes(start, "big"):
                    self.router.send_multipart([who, empty, number.to_bytes(8, "big"), payload])
            self.router.send_multipart([who, empty, b"\xff" * 8, b""])

    def publish(self, payload):
        number = self.next
        self.next += 1
        if not self.forgotten:
            self.kept.append((number, payload))
        if not self.hidden:
            self.pub.send_multipart([b"kv@engine", number.to_bytes(8, "big"), payload])

    def say(self, event, rank=None):
        if self.form == "array":
            event = list(event.values())
        self.publish(msgpack.packb([time.time(), [event], rank]))

    def store(self, chain, first, end, words):
        block = int(words.get("block", 16))
        names = [chain * 1000 + k + 1 for k in range(first - 1, end)]
        start = chain * 100000
        extra = [None] * (end - first)
        if "extra" in words:
            extra[0] = [words["extra"]]
        event = {
            "type": "BlockStored",
            "block_hashes": names[1:],
            "parent_block_hash": names[0] if first > 0 else None,
            "token_ids": list(range(start + first * block, start + end * block)),
            "block_size": block,
            "lora_id": None,
            "medium": words.get("medium", "GPU"),
            "lora_name": words.get("lora"),
            "extra_keys": extra if "extra" in words else None,
            "group_idx": int(words.get("group", 0)),
            "kv_cache_spec_kind": words.get("spec", "full_attention"),
            "kv_cache_spec_sliding_window": int(words["window"]) if "window" in words else None,
        }
        if "bare" in words:
            event.update(parent_block_hash=None, token_ids=[], kv_cache_spec_kind=None)
        if "salt" in words:
            event["cache_salt"] = words["salt"]
        self.say(event, int(words["rank"]) if "rank" in words else None)

    def remove(self, chain, first, end, words):
        self.say(
            {
                "type": "BlockRemoved",
                "block_hashes": [chain * 1000 + k + 1 for k in range(first, end)],
                "medium": words.get("medium", "GPU"),
                "group_idx": int(words.get("group", 0)),
            }
        )

    def obey(self, line):
        what, *rest = line.split()
        if what == "await":
            while self.subscribers < int(rest[0]):
                self.pump(1000)
        elif what in ("store", "remove"):
            words = dict(zip(rest[3::2], rest[4::2]))
            getattr(self, what)(*map(int, rest[:3]), words)
        elif what == "clear":
            self.say({"type": "AllBlocksCleared"})
        elif what == "garbage":
            self.publish(b"what is this?")
        elif what == "billion":
            stored = b"\x96" + msgpack.packb("BlockStored") + b"\xdd" + (10**9).to_bytes(4, "big")
            self.publish(b"\x92" + msgpack.packb(time.time()) + b"\x91" + stored)
        elif what == "flood":
            for chain in range(10000, 10000 + int(rest[0])):
                self.store(chain, 0, 64, {})
                self.pump()
        elif what == "number":
            if int(rest[0]) < self.next:
                self.kept.clear()
            self.next = int(rest[0])
        elif what in ("array", "map"):
            self.form = what
        elif what in ("hide", "forget", "show"):
            self.hidden, self.forgotten = what != "show", what == "forget"
        else:
            raise ValueError(line)
        print("ok", flush=True)


def main():
    engine = Engine([int(port) for port in sys.argv[1:]] or [0, 0])
    print(engine.pub_port, engine.router_port, flush=True)
    while True:
        if select.select([sys.stdin], [], [], 0.002)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            engine.obey(line)
        engine.pump()


if __name__ == "__main__":
    main()
