"""Layer by layer: KV cache leaves the prefill engine while it is being computed, and reaches the
decode host in the same order.

One object per chunk of tokens and layer. The prefill side puts the layers of its full chunks as
they are computed, from a queue, into memory of the decode host; what is left of the prompt, the
tail, goes as one object at the end. The decode side waits for layer after layer, and reads it while
later ones are on their way:

    prefill:  compute 0 | compute 1 | compute 2 | ... | last | tail
    puts:                 layer 0   | layer 1   | ...        | last | tail
    decode:                           layer 0   | layer 1    | ...  | last | tail

    writer = LayerWriter(client, prefer=segments_of(client, node="decode-1"))
    with writer.prompt(chunk_keys(space, hashes), notice_key="request-17@failed") as prompt:
        for layer in range(layers):
            blocks = compute(layer)                         # a buffer, or several, for each chunk
            prompt.put(layer, range(chunks), blocks)        # returns at once
        prompt.put_tail(tail_key, tail_blocks)
    # leaving the block waits for the puts; prompt.report says how they went

The decode side is LayerReader, in tarn.layer_reader and here by the same name.

Buffers. What was handed to put is read until its ticket is done: do not write there before
`free(ticket)` is true, `wait(ticket)` or `wait_free(memory)` has returned, or `release` was called.
Engines whose layers take turns in the same memory call wait_free first.

A LayerWriter and its prompts belong to one thread at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Union

from ._scope import Closes
from .errors import Closed, Error, InvalidArgument, NotFound, Status, TimedOut, done, status_name
from .layer_reader import LayerReader, LayersLost, LayerViews
from .memory import Pinned, pin

__all__ = [
    "KeyFunction",
    "LayerReader",
    "LayerViews",
    "LayerWriter",
    "LayersLost",
    "Prompt",
    "PutFailure",
    "Stalled",
    "WriteReport",
    "chunk_keys",
    "segments_of",
    "whole_chunks",
]

Key = Union[str, bytes]
KeyFunction = Callable[[int, int], Key]
"""(chunk, layer) -> key, both from 0 on. The same on both sides."""

NOTICE_TTL_MS = 60000
_NOTICE_BYTES = (
    64  # values up to here lie in the server's books: one round trip, no place in the pool
)
_SPARE = 64  # submissions beside the puts: notices


class Stalled(TimedOut):
    """The pool has taken nothing for stall_ms while as much as may be was under way. Nothing of the
    call was submitted."""


class PutFailure(NamedTuple):
    """One object that was not stored. layer is -1 for the tail."""

    chunk: int
    layer: int
    status: int


@dataclass
class WriteReport:
    """What became of a prompt's objects. Times in seconds."""

    stored: int = 0
    existed: int = 0  # there already, or being put by another rank that holds the same bytes
    skipped: int = 0  # not sent, or cancelled, because of an earlier failure or an abort
    bytes: int = 0  # of those stored
    failures: List[PutFailure] = field(default_factory=list)
    stalls: int = 0  # calls of put that had to wait for room
    stalled_s: float = 0.0
    finish_s: float = 0.0  # what finish() waited: the part of the transfer that no computing hid

    @property
    def complete(self) -> bool:
        """Is everything that was handed over readable (or about to be, by another rank)?"""
        return not self.failures and not self.skipped

    def raise_for_failures(self) -> None:
        """Raises Error, with the status of the first failure, unless the report is complete."""
        if self.complete:
            return
        first = self.failures[0] if self.failures else PutFailure(-1, -1, Status.ECANCELED)
        text = f"{len(self.failures)} objects were not stored and {self.skipped} not sent"
        raise Error(
            f"{text}; the first: chunk {first.chunk}, layer {first.layer}: "
            f"{status_name(first.status)}",
            first.status,
        )


def chunk_keys(space: Any, hashes: Sequence[bytes]) -> KeyFunction:
    """The key function of a prompt whose chunks have these hashes (tarn.chain), in a
    tarn.keys.KeySpace."""

    def key(chunk: int, layer: int) -> str:
        return str(space.key(hashes[chunk], layer=layer))

    return key


def segments_of(
    client: Any, *, node: Optional[str] = None, machine: Optional[str] = None, tier: str = "memory"
) -> List[str]:
    """Names for `prefer`: the segments of a node, or of all nodes on a machine, that take new
    objects; the emptiest first, at most 16 (the server's bound). node "" is the server itself.
    NotFound: there is none. One round trip; names last as long as the node is up, so ask once per
    decode host and again when the pool changes."""
    if (node is None) == (machine is None):
        raise InvalidArgument("segments_of: name a node or a machine, one of them")
    found = []
    for s in _segment_list(client):
        mine = s.get("node") == node if node is not None else s.get("host") == machine
        if mine and s.get("tier") == tier and s.get("state") == "up":
            found.append((-int(s.get("free", "0") or 0), s["name"]))
    if not found:
        where = f"node {node!r}" if node is not None else f"machine {machine!r}"
        raise NotFound(
            f"{where} has no segment of {tier} that takes objects now; NODE LIST and SEGMENT LIST "
            "show what there is"
        )
    return [name for _, name in sorted(found)][:16]


def _segment_list(client: Any) -> List[Dict[str, str]]:
    """SEGMENT LIST as dicts; the reply comes as lines of field and value in turn."""
    lines = str(client.command("SEGMENT", "LIST")).split("\n")
    segments: List[Dict[str, str]] = []
    for name, value in zip(lines[::2], lines[1::2]):
        if name == "name":
            segments.append({})
        if segments:
            segments[-1][name] = value
    return segments


def whole_chunks(client: Any, key: KeyFunction, chunks: int, layers: int) -> int:
    """How many leading chunks are there with all their layers: what is left to use when a transfer
    broke off. One round trip per 4096 objects."""
    keys = [key(c, layer) for c in range(chunks) for layer in range(layers)]
    return int(client.prefix_length(keys)) // layers if keys else 0


class _Sent:
    """A submission: its memory is borrowed until the completion has been taken out."""

    __slots__ = ("prompt", "ticket", "layer", "chunks", "keys", "sizes", "spans", "pins", "bytes")

    def __init__(self, prompt: "Prompt", ticket: int, layer: int) -> None:
        self.prompt, self.ticket, self.layer = prompt, ticket, layer
        self.chunks: List[int] = []
        self.keys: List[Key] = []
        self.sizes: List[List[int]] = []
        self.spans: List[List[int]] = []
        self.pins: List[Pinned] = []
        self.bytes = 0

    def add(self, chunk: int, key: Key, pins: List[Pinned]) -> None:
        """One object out of these pieces."""
        self.chunks.append(chunk)
        self.keys.append(key)
        self.spans.append([p.address for p in pins])
        self.sizes.append([p.size for p in pins])
        self.pins += pins
        self.bytes += sum(p.size for p in pins)

    def overlaps(self, start: int, end: int) -> bool:
        return any(p.address < end and start < p.address + p.size for p in self.pins)


class _Ticket:
    __slots__ = ("left", "release")

    def __init__(self, left: int, release: Optional[Callable[[], None]]) -> None:
        self.left, self.release = left, release


def _call_all(functions: List[Callable[[], None]]) -> None:
    """Calls all of them, whatever one raises; then raises the first of that."""
    errors = []
    for function in functions:
        try:
            function()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _pins_of(memory: Any, name: str) -> List[Pinned]:
    """The pieces of one object: a buffer, an (address, size), or a list of such."""
    parts = memory if isinstance(memory, list) else [memory]
    if not parts:
        raise InvalidArgument(f"{name}: no memory")
    return [pin(part, name=name) for part in parts]


class LayerWriter(Closes):
    """Puts of layers, from a queue whose threads are libtarn's.

    prefer: segments of the decode host (segments_of), or a list per prompt. At most max_pending
    submissions and max_bytes are under way; a put that would be more waits up to stall_ms for some
    to end (0: it does not), and then raises Stalled: this is the only wait of the computing thread.
    batch_bytes: larger puts are cut, so that the first of them are readable sooner and all of the
    client's workers have something to do. Further options are those of Client.put."""

    def __init__(
        self,
        client: Any,
        *,
        prefer: Sequence[str] = (),
        max_pending: int = 256,
        max_bytes: int = 1 << 30,
        stall_ms: int = 1000,
        batch_bytes: int = 32 << 20,
        **options: Any,
    ) -> None:
        if not 1 <= max_pending <= 65536 - _SPARE:
            raise InvalidArgument(f"max_pending: {max_pending} is not in 1..{65536 - _SPARE}")
        if max_bytes < 1 or batch_bytes < 1 or stall_ms < 0:
            raise InvalidArgument("max_bytes and batch_bytes are at least 1, stall_ms at least 0")
        self.client, self.prefer, self.options = client, list(prefer), options
        self.max_pending, self.max_bytes = max_pending, max_bytes
        self.stall_ms, self.batch_bytes = stall_ms, batch_bytes
        self._sent: Dict[int, _Sent] = {}
        self._tickets: Dict[int, _Ticket] = {}
        self._notices: Set[int] = set()
        self._last_ticket = 0
        self._bytes = 0
        self._queue: Any = client.queue(max_pending + _SPARE)

    def prompt(
        self, key: KeyFunction, *, notice_key: Key = "", prefer: Optional[Sequence[str]] = None
    ) -> "Prompt":
        """Begins a prompt; several may be under way at a time. notice_key: where a failure is noted
        for the reader, so that it need not wait for its time to end; must be unique to the attempt.
        """
        return Prompt(self, key, notice_key, self.prefer if prefer is None else list(prefer))

    @property
    def pending(self) -> int:
        """Submissions under way, as of the last poll."""
        return len(self._sent)

    @property
    def pending_bytes(self) -> int:
        """Their bytes."""
        return self._bytes

    def poll(self, timeout_ms: int = 0) -> int:
        """Takes completions, waiting up to timeout_ms for the first; calls release functions.
        Returns how many submissions ended."""
        if self._queue is None:
            raise Closed("the writer is closed")
        done = 0
        after: List[
            Callable[[], None]
        ] = []  # what may raise comes when every completion has been counted
        for completion in self._queue.poll(64, timeout_ms):
            sent = self._sent.pop(completion.id, None)
            if sent is None:
                self._notices.discard(completion.id)
                continue
            done += 1
            self._bytes -= sent.bytes
            sent.pins = []
            reason = sent.prompt._ended(sent, completion.status, completion.results)
            if reason:
                after.append(partial(sent.prompt._break, reason))
            after += self._count_down(sent.ticket)
        _call_all(after)
        return done

    def _count_down(self, ticket: int) -> List[Callable[[], None]]:
        """A part of this put has ended; returns what is to be called when that was the last one."""
        entry = self._tickets[ticket]
        entry.left -= 1
        if entry.left:
            return []
        del self._tickets[ticket]
        return [entry.release] if entry.release is not None else []

    def free(self, ticket: int) -> bool:
        """May the memory of this put be written to again? Does not wait."""
        self.poll()
        return ticket not in self._tickets

    def wait(self, ticket: int, timeout_ms: int = 60000) -> None:
        """Until free(ticket). TimedOut: it is still being read."""
        self._until(lambda: ticket not in self._tickets, timeout_ms, f"put {ticket}")

    def in_use(self, memory: Any) -> bool:
        """Does a put under way read any of this memory?"""
        self.poll()
        return self._overlaps(pin(memory, name="memory"))

    def wait_free(self, memory: Any, timeout_ms: int = 60000) -> None:
        """Until no put under way reads any of this memory: to be called before it is written again.
        TimedOut: do not write."""
        span = pin(memory, name="memory")
        self._until(lambda: not self._overlaps(span), timeout_ms, "the memory")

    def _overlaps(self, span: Pinned) -> bool:
        return any(s.overlaps(span.address, span.address + span.size) for s in self._sent.values())

    def _until(self, done: Callable[[], bool], timeout_ms: int, what: str) -> float:
        """Polls until done(); returns the seconds it took."""
        start = time.monotonic()
        self.poll()
        while not done():
            left = timeout_ms - (time.monotonic() - start) * 1000
            if left <= 0:
                raise TimedOut(f"{what} is in use by puts under way after {timeout_ms} ms")
            self.poll(max(1, min(int(left), 1000)))
        return time.monotonic() - start

    def _make_room(self, n: int, size: int, report: WriteReport) -> None:
        def room() -> bool:
            if not self._sent:
                return True  # what is larger than the bounds goes alone
            return len(self._sent) + n <= self.max_pending and self._bytes + size <= self.max_bytes

        self.poll()
        if room():
            return
        report.stalls += 1
        start = time.monotonic()
        try:
            self._until(room, self.stall_ms, "the way to the pool")
        except TimedOut:
            raise Stalled(
                f"{self._bytes} bytes in {len(self._sent)} puts are under way, and too few of them "
                f"ended within {self.stall_ms} ms "
                "(stall_ms): the pool is slower than the computing; wait, leave this layer out, or "
                "abort the prompt"
            ) from None
        finally:
            report.stalled_s += time.monotonic() - start

    def _submit(
        self, batches: List[_Sent], prefer: List[str], release: Optional[Callable[[], None]]
    ) -> int:
        self._last_ticket += 1
        ticket = self._last_ticket
        self._tickets[ticket] = _Ticket(len(batches), release)
        for submitted, sent in enumerate(batches):
            sent.ticket = ticket
            try:
                number = self._queue.put(
                    sent.keys, sent.spans, sent.sizes, keep=sent.pins, prefer=prefer, **self.options
                )
            except Error:
                self._tickets[ticket].left -= len(batches) - submitted
                if not self._tickets[ticket].left:
                    del self._tickets[ticket]
                raise
            self._sent[number] = sent
            self._bytes += sent.bytes
            sent.prompt._left += 1
        return ticket

    def _notice(self, key: Key, reason: str) -> None:
        value = reason.encode("utf-8")[:_NOTICE_BYTES] or b"?"
        if len(self._notices) >= _SPARE:  # so many that failed and were not polled
            self._until(lambda: len(self._notices) < _SPARE, 60000, "the queue")
        held = pin(value)
        options = {"replace": True, "ttl_ms": NOTICE_TTL_MS}
        self._notices.add(
            self._queue.put([key], [[held.address]], [[held.size]], keep=held, **options)
        )

    def _cancel(self, prompt: "Prompt") -> None:
        for number, sent in list(self._sent.items()):
            if sent.prompt is prompt:
                self._queue.cancel(
                    number
                )  # or it runs, or has ended; its completion comes either way

    def close(self) -> None:
        """Cancels what has not started, waits for what has. The memory of all puts is the caller's
        again."""
        if self._queue is None:
            return
        queue, self._queue = self._queue, None
        queue.close()
        self._sent.clear()
        tickets, self._tickets = self._tickets, {}
        _call_all([entry.release for entry in tickets.values() if entry.release is not None])


class Prompt:
    """The objects of one prompt, on their way. As a context manager: leaving it finishes, an
    exception aborts.

    open ─put, put_tail─> open ─finish─> ended
      └─(a put failed: broken, further ones are skipped)─┘ └─abort─> ended"""

    def __init__(
        self, writer: LayerWriter, key: KeyFunction, notice_key: Key, prefer: List[str]
    ) -> None:
        self.writer, self.key, self.notice_key, self.prefer = writer, key, notice_key, prefer
        self.report = WriteReport()
        self.broken = False
        self.ended = False
        self._stored: List[Key] = []
        self._left = 0  # submissions under way

    def put(
        self,
        layer: int,
        chunks: Iterable[int],
        memories: Sequence[Any],
        *,
        release: Optional[Callable[[], None]] = None,
    ) -> int:
        """Submits one layer of these full chunks, and returns a ticket. memories: for each chunk a
        buffer, an (address, size), or a list of such, which become one object in that order.
        release is called, by a later call into the writer, when the memory is free again. Stalled:
        the bound was reached, nothing was sent. After a failure of an earlier put nothing is sent
        any more (report.skipped): a prefix with a gap is worth no more than what is before the gap.
        """
        numbers = list(chunks)
        if len(numbers) != len(memories):
            raise InvalidArgument(f"put: {len(numbers)} chunks, but memory for {len(memories)}")
        batches: List[_Sent] = []
        for chunk, memory in zip(numbers, memories):
            if not batches or batches[-1].bytes >= self.writer.batch_bytes:
                batches.append(_Sent(self, 0, layer))
            batches[-1].add(
                chunk, self.key(chunk, layer), _pins_of(memory, f"chunk {chunk}, layer {layer}")
            )
        return self._send(batches, release)

    def put_tail(
        self, key: Key, memories: Sequence[Any], *, release: Optional[Callable[[], None]] = None
    ) -> int:
        """Submits what is left of the prompt behind its full chunks: all layers in their order, one
        object. To be called last."""
        sent = _Sent(self, 0, -1)
        sent.add(
            -1,
            key,
            [p for i, memory in enumerate(memories) for p in _pins_of(memory, f"tail, layer {i}")],
        )
        return self._send([sent], release)

    def _send(self, batches: List[_Sent], release: Optional[Callable[[], None]]) -> int:
        if self.ended:
            raise Closed("the prompt has ended: begin another one")
        if not batches:
            return 0
        if not self.broken:
            self.writer._make_room(len(batches), sum(b.bytes for b in batches), self.report)
        if self.broken:  # also when polling for room has just told so
            self.report.skipped += sum(len(b.keys) for b in batches)
            if release is not None:
                release()
            return 0
        return self.writer._submit(batches, self.prefer, release)

    def _ended(self, sent: _Sent, status: int, results: Sequence[int]) -> str:
        """A submission has ended. results may be short when the whole batch failed. Returns why the
        prompt is to be broken off, or ""."""
        self._left -= 1
        report = self.report
        for i, key in enumerate(sent.keys):
            result = results[i] if status == Status.OK and i < len(results) else status
            if result == Status.OK:
                report.stored += 1
                report.bytes += sum(sent.sizes[i])
                self._stored.append(key)
            elif done(result):
                report.existed += 1
            elif result == Status.ECANCELED:
                report.skipped += 1
            else:
                report.failures.append(PutFailure(sent.chunks[i], sent.layer, result))
        if not report.failures or self.broken:
            return ""
        self.broken = True
        first = report.failures[0]
        return f"prefill: chunk {first.chunk}, layer {first.layer}: {status_name(first.status)}"

    def _break(self, reason: str) -> None:
        self.broken = True
        if self.notice_key:
            self.writer._notice(self.notice_key, reason)
        self.writer._cancel(self)

    def finish(self, timeout_ms: int = 60000) -> WriteReport:
        """Waits until every put has ended; the memory of all of them is the caller's again. When
        timeout_ms are over, what has not started is cancelled (and counted as skipped), and what
        runs is waited for: it ends by the timeout of a put."""
        start = time.monotonic()
        if self.ended:
            return self.report
        try:
            self.writer._until(lambda: self._left == 0, timeout_ms, "the prompt")
        except TimedOut:
            self._break(f"prefill: not sent within {timeout_ms} ms")
            self._drain()
        self._drain_notice()
        self.ended = True
        self.report.finish_s = time.monotonic() - start
        return self.report

    def abort(self, reason: str = "prefill gave up", *, remove: bool = False) -> WriteReport:
        """Ends the prompt early: cancels what has not started, waits for what runs, leaves a notice
        for the reader. remove: also takes out of the pool what this prompt has stored (not what was
        there before). What stays is right, and of use to whoever computes the same prefix."""
        if self.ended:
            return self.report
        if not self.broken:
            self._break(reason)
        self._drain()
        self._drain_notice()
        self.ended = True
        if remove and self._stored:
            self.writer.client.remove_many(self._stored)
        return self.report

    def _drain(self) -> None:
        while self._left:
            self.writer.poll(1000)

    def _drain_notice(self) -> None:
        """The notice is out before the caller goes on."""
        if self.broken and self.notice_key:
            self.writer._until(lambda: not self.writer._notices, 60000, "the notice")

    def __enter__(self) -> "Prompt":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort(f"prefill: {kind.__name__}: {value}")
