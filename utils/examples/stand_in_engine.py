#!/usr/bin/python3
"""An engine that looks like vLLM from outside, for tests of what stands before engines: gateways,
routers, the Conductor. No GPU, no model, no weights.

    utils/examples/stand_in_engine.py [--port 8000] [--id e1] [--model toy/llama-1b]
        [--role both|prefill|decode] [--block 16] [--kv-blocks 4096] [--speed 10]
        [--pool tarn://127.0.0.1:6479] [--conductor 127.0.0.1:6479]

It speaks OpenAI's HTTP paths and vLLM's own, and publishes KV events over ZeroMQ. Its KV cache is
real memory in blocks, with a prefix cache; the bytes go to the pool and come from it by
TarnConnector, called as vLLM calls it. A step takes as long as tarn-simulate says of --gpu and
--preset, divided by --speed.

The tokens of an answer come from the KV bytes of all that is before them: equal prompts have equal
answers on all engines of one --model, --block and --kv-bytes, and one wrong byte makes another
answer. It says `ready http://HOST:PORT` when it serves, and ends with SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from typing import Any, Dict, List, Optional

from local_pool import run_main  # it also knows where the package is

from aiohttp import web

from stand_in.api import Api
from stand_in.core import Core
from stand_in.events import Publisher
from stand_in.forms import Forms
from stand_in.hardware import GPUS, PRESETS, Speed
from stand_in.metrics import Figures
from stand_in.model import Model
from stand_in.pool import ConnectorPool, NoPool
from stand_in.register import Registrar


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--host", default="127.0.0.1", help="where it listens")
    p.add_argument("--port", type=int, default=0, help="0: any")
    p.add_argument("--id", default="", help="at the Conductor; else stand-in-PORT")
    p.add_argument("--model", default="toy/llama-1b", help="what it serves")
    p.add_argument("--lora", action="append", default=[], help="an adapter that it serves, too")
    p.add_argument("--role", choices=("both", "prefill", "decode"), default="both")
    p.add_argument("--block", type=int, default=16, help="tokens of a block")
    p.add_argument("--kv-blocks", type=int, default=4096, help="blocks that there are")
    p.add_argument("--kv-bytes", type=int, default=256, help="of a token; even")
    p.add_argument("--max-model-len", type=int, default=0, help="0: half of the KV cache")
    p.add_argument("--batch", type=int, default=256, help="sequences that run at a time")
    p.add_argument("--chunk", type=int, default=2048, help="tokens of prompts in a step")
    p.add_argument("--gpu", choices=sorted(GPUS), default="H100", help="times are of this")
    p.add_argument("--gpus", type=int, default=1)
    p.add_argument("--preset", choices=sorted(PRESETS), default="Llama-3-8B", help="... and this")
    p.add_argument("--speed", type=float, default=1.0, help="so many times as fast")
    p.add_argument("--pool", default="", help="tarn://...; without it there is none")
    p.add_argument("--save-decode", action="store_true", help="blocks of answers go there, too")
    p.add_argument("--arrival-ms", type=int, default=1000, help="waits so long for a prefill's")
    p.add_argument("--conductor", default="", help="HOST:PORT, tarn:// or tarn+sentinel:// URL")
    p.add_argument("--events-port", type=int, default=0, help="of KV events; 0: any, -1: none")
    p.add_argument("--replay-port", type=int, default=0, help="where they are sent again; 0: any")
    args = p.parse_args()
    for name in ("block", "kv_blocks", "kv_bytes", "batch", "chunk", "gpus", "speed"):
        if not getattr(args, name) > 0:
            p.error(f"--{name.replace('_', '-')}: above 0")
    if args.kv_bytes % 2:
        p.error("--kv-bytes: an even number")
    most = (args.kv_blocks - 3) * args.block
    if args.max_model_len > most or most < 2 * args.block:
        p.error(f"--kv-blocks: too few for --max-model-len {args.max_model_len}")
    args.max_model_len = args.max_model_len or most // 2
    return args


def listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, port))
    s.listen(1024)
    return s


def words_of(args: Any, url: str, publisher: Optional[Publisher]) -> List[str]:
    """Of CONDUCTOR.ADD behind the id."""
    words = [url, "MODEL", args.model, "ROLE", args.role.upper(), "BLOCK", str(args.block)]
    words += ["KVBLOCKS", str(args.kv_blocks - 1), "BYTES", str(args.kv_bytes), "METRICS", "YES"]
    if args.lora:
        words += ["LORA", "*"]
    if publisher is not None:
        words += ["EVENTS", f"tcp://{args.host}:{publisher.port}"]
        words += ["REPLAY", f"tcp://{args.host}:{publisher.replay_port}"]
    return words


def pool_of(args: Any, model: Model, engine: str) -> Any:
    if not args.pool:
        return NoPool()
    extra: Dict[str, Any] = {"arrival_ms": args.arrival_ms}
    if args.save_decode:
        extra.update(save=True, save_decode=True)
    told = engine if args.conductor else ""
    return ConnectorPool(args.pool, model, args.kv_blocks, args.role, told, extra)


async def serve(args: Any) -> None:
    ends = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    sock = listener(args.host, args.port)
    port = sock.getsockname()[1]
    url = f"http://{args.host}:{port}"
    engine = args.id or f"stand-in-{port}"
    publisher = None
    if args.events_port >= 0:
        publisher = Publisher(args.host, args.events_port, args.replay_port)
        publisher.start()
    registrar = None
    if args.conductor:
        at = args.conductor if "://" in args.conductor else f"tarn://{args.conductor}"
        registrar = Registrar(at, engine, words_of(args, url, publisher))
        registrar.start()
    model = Model(args.model, args.block, args.kv_bytes, args.kv_blocks)
    pool = pool_of(args, model, engine)
    figures = Figures(args.model, args.kv_blocks - 1, args.block)
    api = Api(Forms([args.model, *args.lora], args.max_model_len), figures, args.block, publisher)
    speed = Speed(GPUS[args.gpu], PRESETS[args.preset], args.gpus, args.chunk)
    api.core = Core(
        model, pool, speed, figures, api.publish,
        blocks=args.kv_blocks, batch=args.batch, factor=args.speed,
    )  # fmt: skip
    api.core.start()
    watch = asyncio.create_task(api.watch())
    runner = web.AppRunner(api.app(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, sock, shutdown_timeout=1).start()
    print(f"ready {url}", flush=True)
    await ends.wait()
    watch.cancel()
    if registrar is not None:
        registrar.close()
    await runner.cleanup()
    api.core.close()
    pool.close()
    if publisher is not None:
        publisher.close()


def main() -> int:
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.WARNING)
    asyncio.run(serve(arguments()))
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
