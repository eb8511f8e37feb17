"""KV events over ZeroMQ, as vLLM publishes them: numbered batches in msgpack on a PUB socket; a
ROUTER sends the last ones again, from a number on. All of it in the event loop's thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

import msgpack
import zmq
import zmq.asyncio

TOPIC = b""
END = b"\xff" * 8
KEPT = 10000  # batches, as vLLM unless told otherwise
MOST_WAITING = 100000  # for one subscriber


class Publisher:
    """host: where the sockets are; ports: 0 is any."""

    def __init__(self, host: str, port: int, replay_port: int) -> None:
        self._context = zmq.asyncio.Context()
        self._pub, self.port = self._bind(zmq.PUB, host, port)
        self._router, self.replay_port = self._bind(zmq.ROUTER, host, replay_port)
        self._kept: Deque[Tuple[int, bytes]] = deque(maxlen=KEPT)
        self._next = 0
        self._task: Optional["asyncio.Task[None]"] = None

    def _bind(self, kind: int, host: str, port: int) -> Tuple[Any, int]:
        socket: Any = self._context.socket(kind)
        socket.linger = 0
        socket.sndhwm = MOST_WAITING
        socket.bind(f"tcp://{host}:{port or '*'}")
        return socket, int(bytes(socket.last_endpoint).decode().rsplit(":", 1)[1])

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._replay())

    async def publish(self, events: List[Dict[str, Any]]) -> None:
        batch = {"ts": time.time(), "events": events, "data_parallel_rank": 0}
        payload = msgpack.packb(batch)
        number, self._next = self._next, self._next + 1
        self._kept.append((number, payload))
        await self._pub.send_multipart([TOPIC, number.to_bytes(8, "big"), payload])

    async def _replay(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue  # anybody may connect
            start = int.from_bytes(frames[2], "big")
            for number, payload in list(self._kept):
                if number >= start:
                    head = [frames[0], b"", number.to_bytes(8, "big")]
                    await self._router.send_multipart([*head, payload])
            await self._router.send_multipart([frames[0], b"", END, b""])

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._context.destroy(linger=0)
