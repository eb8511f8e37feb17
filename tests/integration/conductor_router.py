"""A router as those of Mooncake's Conductor: registers engines over HTTP, and asks for each prompt
which of them has most of it. All on one connection that stays open.

conductor_router.py PORT json|msgpack

Obeys lines, and answers each with one line.

    register ID ENDPOINT RANK     "ok", or the status and what is wrong
    unregister ID RANK
    choose CHAIN N [SALT]         of the first N tokens of a chain (kv_publisher.py): the engine and
                                  how many tokens it has; engines that have as much take turns
"""

import http.client
import json
import struct
import sys

import msgpack

SHARED = {"block_size": 16, "tenant_id": "default", "lora_name": ""}


class Router:
    def __init__(self, port, packed):
        self.packed, self.registered, self.turns = packed, set(), {}
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        self.connection.connect()
        self.socket = self.connection.sock

    def post(self, path, body):
        kind = "application/msgpack" if self.packed else "application/json"
        data = msgpack.packb(body) if self.packed else json.dumps(body)
        self.connection.request("POST", path, data, {"Content-Type": kind, "X-Request-Id": "1"})
        answer = self.connection.getresponse()
        data = answer.read()
        assert answer.getheader("Content-Type") == kind, answer.getheader("Content-Type")
        assert self.connection.sock is self.socket, "the connection was closed"
        said = msgpack.unpackb(data) if self.packed else json.loads(data)
        if answer.status != 200:
            raise ValueError(f"{answer.status} {said['error']}")
        return said

    def register(self, name, endpoint, rank):
        body = {"endpoint": endpoint, "type": "vLLM", "modelname": "m", "instance_id": name}
        body.update(SHARED, dp_rank=int(rank), hash_profile={"strategy": "vllm_v1"})
        said = self.post("/register", body)
        assert said == {"status": "registered successfully", "instance_id": name}, said
        self.registered.add(name)
        return "ok"

    def unregister(self, name, rank):
        said = self.post("/unregister", {"instance_id": name, "dp_rank": int(rank)})
        assert said["removed_instances"] == [f"{name}|default|{rank}"], said
        return "ok"

    def choose(self, chain, n, salt=None):
        ids = [int(chain) * 100000 + i for i in range(int(n))]
        body = {"model": "m", "token_ids": struct.pack(f"<{n}i", *ids) if self.packed else ids}
        body.update(SHARED, **({"cache_salt": salt} if salt else {}))
        said = self.post("/query", body)
        assert said["default"].keys() == said["instances"].keys(), said
        have = {}
        for name, hit in said["instances"].items():
            older = said["default"][name]
            assert type(hit["longest_matched"]) is int, hit
            assert older["longest_matched"] == hit["longest_matched"] == hit["disk"], said
            assert older["GPU"] == hit["gpu"] == max(hit["dp"].values()), said
            if name in self.registered:
                have[name] = hit["longest_matched"]
        most = max(have.values(), default=0)
        if most == 0:
            return "nobody"
        leaders = tuple(sorted(name for name in have if have[name] == most))
        turn = self.turns[leaders] = self.turns.get(leaders, -1) + 1
        return f"{leaders[turn % len(leaders)]} {most}"


def main():
    router = Router(int(sys.argv[1]), sys.argv[2] == "msgpack")
    for line in sys.stdin:
        what, *rest = line.split()
        try:
            said = getattr(router, what)(*rest)
        except ValueError as wrong:
            said = wrong
        print(said, flush=True)


main()
