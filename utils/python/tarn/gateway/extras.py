"""What blocks of a prompt depend on beside its tokens: images and other media, whose placeholder
tokens are all alike, and salts.

vLLM hashes these with each block that they concern, and tells them in its events as `extra_keys`:
the adapter's name (which CONDUCTOR.ROUTE has as LORA), for each medium in the block its identifier
and where it begins, counted from the block's first token, and in the first block the salt. EXTRA of
ROUTE is the same in msgpack. (Before vLLM's change 36708 of March 2026 they had no place where it
begins: of such engines the blocks before the first medium are found.)

SGLang puts numbers made of a medium's features in the place of its tokens. Nobody outside can know
them: of its prompts what comes before the first medium is found."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

from .members import BadRequest, Body, objects

__all__ = ["Span", "blocks_extra", "has_media", "known_until", "name_media", "without_media"]

# Types of a message's parts, and the member that has the medium.
_MEDIA = {
    "audio_embeds": "audio_embeds",
    "audio_url": "audio_url",
    "image_embeds": "image_embeds",
    "image_url": "image_url",
    "input_audio": "input_audio",
    "input_image": "image_url",
    "video_url": "video_url",
}


@dataclass(frozen=True)
class Span:
    """Where a medium's placeholder tokens are. identifier: what the engine calls it."""

    offset: int
    length: int
    identifier: str


def _parts(messages: Sequence[Body]) -> Iterator[Tuple[str, Body]]:
    """Each part of each message, and its name."""
    for i, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            name = f"messages[{i}].content"
            for j, part in enumerate(content):
                if isinstance(part, dict):
                    yield f"{name}[{j}]", part
                elif not isinstance(part, str):
                    raise BadRequest(f"{name}[{j}]", f"{name}[{j}] must be an object")
        elif content is not None and not isinstance(content, str):
            name = f"messages[{i}].content"
            raise BadRequest(name, f"{name} must be a string or a list of parts")


def check_messages(body: Mapping[str, Any]) -> List[Body]:
    messages = objects(body.get("messages"), "messages")
    if not messages:
        raise BadRequest("messages", "messages must not be empty")
    for i, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{i}].role", f"messages[{i}].role must be a string")
    for name, part in _parts(messages):
        if not isinstance(part.get("type", "text"), str):
            raise BadRequest(f"{name}.type", f"{name}.type must be a string")
    return messages


def _member_of(part: Mapping[str, Any]) -> Optional[str]:
    """The member of a part that has its medium; None: it has none. vLLM takes parts without a type,
    too."""
    kind = part.get("type")
    if kind is None:
        return next((name for name in _MEDIA.values() if name in part), None)
    return _MEDIA.get(kind)


def has_media(messages: Sequence[Body]) -> bool:
    return any(_member_of(part) is not None for _, part in _parts(messages))


def _is_here(member: str, value: Any) -> bool:
    """The medium is in the request itself, and not where a URL leads."""
    if member == "input_audio" or member.endswith("_embeds"):
        return isinstance(value, (str, dict))
    url = value.get("url") if isinstance(value, dict) else value
    return isinstance(url, str) and url[:5].lower() == "data:"


def name_media(body: Body) -> Body:
    """The body with a `uuid` at each medium that is in it: SHA-256 of what is there. vLLM then
    calls it so, on every engine, and does not hash pixels. What a URL leads to may change: such a
    medium has no name from here, and engines go by what they find there.

    vLLM believes a name: who gave one picture the name of another would have it seen in its place
    by all who send that one. So what a client calls a medium does not count where its bytes are
    there, and elsewhere becomes a name that is none of ours, nor one of another cache_salt."""
    made: List[Body] = []
    changed = False
    for message in check_messages(body):
        content = message.get("content")
        if isinstance(content, list):
            parts = [_named(part, body) for part in content]
            if any(new is not old for new, old in zip(parts, content)):
                message = {**message, "content": parts}
                changed = True
        made.append(message)
    return {**body, "messages": made} if changed else body


def _named(part: Any, body: Body) -> Any:
    member = _member_of(part) if isinstance(part, dict) else None
    if member is None:
        return part
    if _is_here(member, part.get(member)):
        # How it is decoded (frames of a video) makes another medium of it.
        said = [member, part[member], body.get("media_io_kwargs")]
    elif isinstance(part.get("uuid"), str):
        said = ["client", part["uuid"], body.get("cache_salt")]
    else:
        return part
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    return {**part, "uuid": digest.hexdigest()}


def without_media(body: Body) -> Body:
    """The same with a text in the place of each medium: what differs in its tokens from those of
    the body comes after the first medium."""
    made = []
    for message in check_messages(body):
        content = message.get("content")
        if isinstance(content, list):
            parts = [
                {"type": "text", "text": "\ufffc"}
                if isinstance(part, dict) and _member_of(part) is not None
                else part
                for part in content
            ]
            message = {**message, "content": parts}
        made.append(message)
    return {**body, "messages": made}


def media_digest(messages: Sequence[Body]) -> str:
    """Of all media of a conversation, by what is said of them."""
    digest = hashlib.sha256()
    for _, part in _parts(messages):
        member = _member_of(part)
        if member is not None:
            said = [member, part.get("uuid") or part.get(member)]
            digest.update(json.dumps(said, sort_keys=True).encode())
    return digest.hexdigest()


def known_until(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens two prompts have in common."""
    for i, (a, b) in enumerate(zip(tokens, others)):
        if a != b:
            return i
    return min(len(tokens), len(others))


# --- EXTRA ---


def _head(n: int, short: int, limit: int, longer: Sequence[Tuple[int, str]]) -> bytes:
    """The head in msgpack of what has n items, in its shortest form."""
    if n < limit:
        return bytes((short | n,))
    for code, form in longer:
        if n < 1 << 8 * struct.calcsize(form):
            return bytes((code,)) + struct.pack(form, n)
    raise ValueError("too long for msgpack")


def _pack_str(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return _head(len(data), 0xA0, 32, ((0xD9, ">B"), (0xDA, ">H"), (0xDB, ">I"))) + data


def _pack_int(value: int) -> bytes:
    if value >= 0:
        return _head(value, 0, 128, ((0xCC, ">B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q")))
    if value >= -32:
        return struct.pack(">b", value)
    for code, form in ((0xD0, ">b"), (0xD1, ">h"), (0xD2, ">i"), (0xD3, ">q")):
        if value >= -(1 << 8 * struct.calcsize(form) - 1):
            return bytes((code,)) + struct.pack(form, value)
    raise ValueError("too low for msgpack")


def _pack_array(items: Sequence[bytes]) -> bytes:
    return _head(len(items), 0x90, 16, ((0xDC, ">H"), (0xDD, ">I"))) + b"".join(items)


def blocks_extra(block: int, length: int, spans: Sequence[Span], salt: str = "") -> bytes:
    """EXTRA for a prompt of `length` tokens and blocks of `block`. spans: ascending, apart."""
    keys: List[Tuple[int, List[bytes]]] = []  # of each block that has any
    for span in spans:
        begin, end = span.offset, min(span.offset + span.length, length)
        for at in range(begin // block, -(-end // block)):
            key = _pack_array((_pack_str(span.identifier), _pack_int(begin - at * block)))
            if keys and keys[-1][0] == at:
                keys[-1][1].append(key)
            else:
                keys.append((at, [key]))
    if salt:
        if not keys or keys[0][0] != 0:
            keys.insert(0, (0, []))
        keys[0][1].append(_pack_str(salt))
    made = []
    for at, of_block in keys:
        packed = _pack_array(of_block)
        made.append(struct.pack("<II", at, len(packed)) + packed)
    return b"".join(made)
