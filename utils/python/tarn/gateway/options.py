"""Arguments of tarn-gateway."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import List, Optional, Sequence

from .handover import KINDS
from .upstream import Limits

__all__ = ["Options", "parse"]


@dataclass
class Options:
    """Times in seconds; 0: no limit."""

    host: str = "127.0.0.1"
    port: int = 8000
    conductor: List[str] = field(default_factory=list)
    sentinel: List[str] = field(default_factory=list)
    master: str = "tarn"
    engine: List[str] = field(default_factory=list)
    tokenizer: str = "engine"
    hand_over: str = "pool"
    bootstrap_port: int = 8998
    keys: str = ""
    engine_key_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    engine_ca: str = ""
    attempts: int = 4
    connect_s: float = 5.0
    first_s: float = 300.0
    silent_s: float = 60.0
    answer_s: float = 3600.0
    client_s: float = 60.0
    request_s: float = 30.0
    drain_s: float = 60.0
    patience_s: float = 10.0
    body_mib: float = 64.0
    log: str = "info"

    def limits(self) -> Limits:
        return Limits(self.connect_s, self.first_s, self.silent_s, self.answer_s)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError(text)
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise ValueError(text)
    return value


def _attempts(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 16:
        raise ValueError(text)
    return value


_seconds.__name__, _port.__name__ = "number of seconds", "port"
_attempts.__name__ = "number from 1 to 16"


def _parser() -> argparse.ArgumentParser:
    default = Options()
    p = argparse.ArgumentParser(
        prog="tarn-gateway",
        description="An OpenAI-compatible front before engines, which asks the Conductor where each"
        " request is served. docs/GATEWAY.md",
        epilog="@FILE: arguments, one a line, such as URLs with passwords.",
        allow_abbrev=False,
        fromfile_prefix_chars="@",
    )

    def add(group: argparse._ArgumentGroup, name: str, text: str, **more: object) -> None:
        key = name[2:].replace("-", "_")
        kept = getattr(default, key)
        shown = f" ({kept})" if kept not in ("", []) else ""
        group.add_argument(name, dest=key, default=kept, help=text + shown, **more)  # type: ignore

    at = p.add_argument_group("where it is")
    add(at, "--host", "address to listen at", metavar="ADDRESS")
    add(at, "--port", "0: any; it says which", type=_port)
    add(at, "--tls-cert", "certificate, and those that lead to its CA", metavar="PEM")
    add(at, "--tls-key", "its key", metavar="PEM")
    add(at, "--keys", "API keys: lines of `key tenant [priority]`", metavar="FILE")

    to = p.add_argument_group("what it asks")
    add(
        to,
        "--conductor",
        "HOST:PORT, redis://, rediss:// or unix:// of a server with the Conductor; may be said"
        " several times",
        action="append",
        metavar="URL",
    )
    add(
        to, "--sentinel", "of a Sentinel; may be said several times", action="append", metavar="URL"
    )
    add(to, "--master", "what Sentinels call the server", metavar="NAME")
    add(
        to,
        "--engine",
        "without a Conductor: [ID=]URL[,role=R][,model=M][,block=N][,rank=N]; may be said several"
        " times",
        action="append",
        metavar="ENGINE",
    )
    add(to, "--tokenizer", "engine, none, or what transformers loads", metavar="WHICH")
    add(to, "--hand-over", "how prefill and decode engines share KV", choices=KINDS)
    add(to, "--bootstrap-port", "of SGLang's prefill engines", type=_port, metavar="PORT")
    add(to, "--engine-ca", "who signs certificates of engines", metavar="PEM")
    add(to, "--engine-key-file", "with the API key of the engines", metavar="FILE")
    add(to, "--attempts", "engines that may fail a request in a row", type=_attempts, metavar="N")

    limits = p.add_argument_group("how long, how much; 0: without end")
    for name, text in (
        ("--connect-s", "to connect to an engine"),
        ("--first-s", "until an engine's stream begins"),
        ("--silent-s", "between two pieces of an answer"),
        ("--answer-s", "until an answer begins that is not streamed"),
        ("--client-s", "until a client takes what it was sent"),
        ("--request-s", "for the headers of a request, and for its body"),
        ("--patience-s", "until it goes on without a Conductor that is away"),
        ("--drain-s", "for requests under way after SIGTERM"),
    ):
        add(limits, name, text, type=_seconds, metavar="S")
    add(limits, "--body-mib", "of a request's body", type=_seconds, metavar="MIB")
    p.add_argument(
        "--log", default=default.log, choices=("debug", "info", "warning", "error"), help="level"
    )
    return p


def parse(argv: Optional[Sequence[str]] = None) -> Options:
    """Exits with words about what is wrong."""
    p = _parser()
    # argparse would append to the default.
    found = {k: list(v) if isinstance(v, list) else v for k, v in vars(p.parse_args(argv)).items()}
    options = Options(**found)
    if bool(options.tls_cert) != bool(options.tls_key):
        p.error("--tls-cert and --tls-key belong together")
    if not (options.conductor or options.sentinel or options.engine):
        p.error("one of --conductor, --sentinel and --engine is needed")
    return options
