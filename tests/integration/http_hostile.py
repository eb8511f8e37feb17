"""Clients of modules/http.so that mean no good: http_hostile.py SEED COUNT PORT... sends COUNT
batches of requests from each of some threads, to ports that are told on standard input as they
change ("PORT PORT\\n"); a port below 0 speaks TLS. Batches are pipelined, garbled, cut short, sent
in pieces of any size, and their answers are read or not. Prints how many went out."""

import random
import socket
import ssl
import sys
import threading
import time

THREADS = 6
BODY = b"Host: x\r\nContent-Length: "
REQUESTS = (
    b"GET /web/later HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /web/long?pieces=300 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /web/long HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /api/nodes HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /api/history HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /web/query HTTP/1.1\r\n" + BODY + b"10\r\n\r\n0123456789",
    b"POST /query HTTP/1.1\r\n" + BODY + b"90000\r\n\r\n" + b"x" * 90000,
    b"POST /web/query HTTP/1.1\r\nExpect: 100-continue\r\n" + BODY + b"200000\r\n\r\n",
    b"POST /web/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nabcde\r\n0\r\n\r\n",
    b"PUT /web/echo HTTP/1.1\r\n" + BODY + b"3\r\n\r\nabc",
)

context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
ports: list[int] = [int(word) for word in sys.argv[3:]]
sent = [0] * THREADS


def batch(dice: random.Random) -> bytes:
    data = bytearray(b"".join(dice.choice(REQUESTS) for _ in range(dice.randint(1, 6))))
    if dice.random() < 0.3:
        for _ in range(dice.randint(1, 5)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data[: dice.randrange(len(data))] if dice.random() < 0.3 else data)


def ask(dice: random.Random, port: int, me: int) -> None:
    peer = socket.create_connection(("127.0.0.1", abs(port)), timeout=0.2)
    with peer if port > 0 else context.wrap_socket(peer) as s:
        data = batch(dice)
        while data:
            size = dice.choice((1, 100, 5000, 100000))
            s.sendall(data[:size])
            data = data[size:] if dice.random() > 0.05 else b""
        sent[me] += 1
        for _ in range(dice.choice((0, 0, 1, 5))):
            if not s.recv(dice.choice((1, 100, 65536))):
                break


def work(me: int) -> None:
    dice = random.Random(f"{sys.argv[1]} {me}")
    while sent[me] < int(sys.argv[2]):
        before = sent[me]
        try:
            ask(dice, dice.choice(ports), me)
        except ConnectionRefusedError:
            time.sleep(0.002)  # the port is another one soon
        except OSError:
            sent[me] = before + 1


def listen() -> None:
    for line in sys.stdin:
        ports[:] = [int(word) for word in line.split()]


threading.Thread(target=listen, daemon=True).start()
workers = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
for w in workers:
    w.start()
for w in workers:
    w.join()
print(sum(sent), flush=True)
