"""A tokenizer whose every step can be undone, and a chat template.

Tokens are bytes of UTF-8, marks of the template, and 4,096 words that answers are made of: a space
and two syllables, " bako". A word is one token wherever it stands as a whole, so

    text_of(tokens_of(text)) == text            of every text
    tokens_of(text_of(tokens)) == tokens        of every answer, behind every prompt

because an answer begins with a space, and nothing that comes before can join it.

A chat is

    <|system|>...<|end|><|user|>...<|end|><|assistant|>

and its next turn begins with all of that, the answer's tokens, and <|end|>."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

SYLLABLES = [c + v for c in "bdfgklmnprstvwyz" for v in "aiou"]  # 64
NUMBER = {syllable: i for i, syllable in enumerate(SYLLABLES)}
END, SYSTEM, USER, ASSISTANT, TOOL, IMAGE = range(256, 262)
MARKS = {
    "<|end|>": END,
    "<|system|>": SYSTEM,
    "<|user|>": USER,
    "<|assistant|>": ASSISTANT,
    "<|tool|>": TOOL,
    "<|image|>": IMAGE,
}
MARK_TEXT = {token: text for text, token in MARKS.items()}
ROLES = {
    "system": SYSTEM,
    "developer": SYSTEM,
    "user": USER,
    "assistant": ASSISTANT,
    "tool": TOOL,
}
FIRST_WORD = 512
WORDS = 4096
VOCABULARY = FIRST_WORD + WORDS
IMAGE_TOKENS = 64

_SYLLABLE = "[bdfgklmnprstvwyz][aiou]"
_PARTS = re.compile(rf" ({_SYLLABLE})({_SYLLABLE})(?![a-z])|<\|[a-z]+\|>")


def tokens_of(text: str) -> List[int]:
    tokens: List[int] = []
    done = 0
    for part in _PARTS.finditer(text):
        if part.group(1):
            token = FIRST_WORD + NUMBER[part.group(1)] * 64 + NUMBER[part.group(2)]
        elif part.group() in MARKS:
            token = MARKS[part.group()]
        else:
            continue
        tokens += text[done : part.start()].encode("utf-8", "surrogatepass")
        tokens.append(token)
        done = part.end()
    tokens += text[done:].encode("utf-8", "surrogatepass")
    return tokens


def is_unicode(text: str) -> bool:
    """JSON may have halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def word_of(token: int) -> str:
    """The text of a token that is no byte."""
    if FIRST_WORD <= token < VOCABULARY:
        first, second = divmod(token - FIRST_WORD, 64)
        return f" {SYLLABLES[first]}{SYLLABLES[second]}"
    return MARK_TEXT.get(token, "")


def text_of(tokens: Sequence[int]) -> str:
    """Bytes that are no UTF-8 come as U+FFFD."""
    out: List[bytes] = []
    for token in tokens:
        out.append(bytes((token,)) if token < 256 else word_of(token).encode())
    return b"".join(out).decode("utf-8", "replace")


class Image(NamedTuple):
    """name: equal for equal images. start: its first token."""

    name: str
    start: int
    length: int


class BadMessages(ValueError):
    """They are no chat; the text says why."""


def chat_tokens(
    messages: Any, generation: bool = True, go_on: bool = False
) -> Tuple[List[int], List[Image]]:
    """A chat's tokens, and its images. generation: the assistant's turn begins at its end. go_on:
    the last message is not over."""
    if not isinstance(messages, list) or not messages:
        raise BadMessages("messages: a list with one message at least")
    tokens: List[int] = []
    images: List[Image] = []
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise BadMessages(f"messages[{i}]: an object with a role of {', '.join(ROLES)}")
        tokens.append(ROLES[message["role"]])
        _content(message.get("content"), f"messages[{i}].content", tokens, images)
        if not (go_on and i == len(messages) - 1):
            tokens.append(END)
    if generation and not go_on:
        tokens.append(ASSISTANT)
    return tokens, images


def _content(content: Any, where: str, tokens: List[int], images: List[Image]) -> None:
    if content is None:
        return
    if isinstance(content, str):
        tokens += tokens_of(content)
        return
    if not isinstance(content, list):
        raise BadMessages(f"{where}: a text or a list of parts")
    for i, part in enumerate(content):
        here = f"{where}[{i}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            tokens += tokens_of(part)
        elif kind == "text" and isinstance(part.get("text"), str):
            tokens += tokens_of(part["text"])
        elif kind == "image_url":
            images.append(Image(_image_name(part, here), len(tokens), IMAGE_TOKENS))
            tokens += [IMAGE] * IMAGE_TOKENS
        else:
            raise BadMessages(f"{here}: a part of type text or image_url")


def _image_name(part: Dict[str, Any], where: str) -> str:
    """As vLLM: the caller's uuid, else a hash of the image. Nothing is fetched here: what stands
    for the image is its URL."""
    uuid, url = part.get("uuid"), part.get("image_url")
    if isinstance(uuid, str) and uuid and is_unicode(uuid):
        return uuid
    url = url.get("url") if isinstance(url, dict) else url
    if not isinstance(url, str) or not url:
        raise BadMessages(f"{where}.image_url: an object with a url")
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()
