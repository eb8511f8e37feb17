"""A request as it came: read, and checked as far as the gateway itself depends on it. All else is
the engine's to judge."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, NoReturn, Optional

from .errors import ApiError

__all__ = ["Asked", "read_body"]

MODEL_MAX = 512  # bytes
CHOICES_MAX = 128


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_body(raw: bytes) -> Dict[str, Any]:
    """An object of JSON. ApiError 400: it is none."""
    try:
        found = json.loads(raw, parse_constant=_no_constant)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as e:  # of UTF-8, too
        raise ApiError(400, f"the body is not JSON: {e}") from None
    if not isinstance(found, dict):
        raise ApiError(400, "the body is not a JSON object")
    return found


@dataclass(frozen=True)
class Asked:
    """kind: "chat" or "completion". body: as it came. stop_hold: characters that an engine holds
    back while they may be the beginning of a stop string."""

    kind: str
    body: Dict[str, Any]
    model: str
    stream: bool
    usage: bool
    usage_always: bool
    ids: bool
    n: int
    max_tokens: Optional[int]
    stop_hold: int

    @classmethod
    def of(cls, kind: str, body: Dict[str, Any]) -> Asked:
        """ApiError 400 names the member that is wrong."""
        member = _Members(body)
        model = member.text("model")
        if not model or len(model.encode("utf-8", "replace")) > MODEL_MAX or not _good(model):
            raise member.wrong("model", f"a name of up to {MODEL_MAX} bytes")
        _check_prompt(member, kind)
        options = member.object("stream_options")
        stream = member.boolean("stream")
        most = member.number("max_tokens", 0)
        if kind == "chat":
            later = member.number("max_completion_tokens", 0)
            most = most if later is None else later
            member.array("tools")
        else:
            member.boolean("echo")
        n = member.number("n", 1, CHOICES_MAX)
        return cls(
            kind=kind,
            body=body,
            model=model,
            stream=stream,
            usage=stream and _Members(options, "stream_options.").boolean("include_usage"),
            usage_always=stream
            and _Members(options, "stream_options.").boolean("continuous_usage_stats"),
            ids=member.boolean("return_token_ids"),
            n=1 if n is None else n,
            max_tokens=most,
            stop_hold=_stop_hold(member),
        )

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.kind == "chat" else "/v1/completions"

    @property
    def choices(self) -> int:
        """Of the answer: n for each prompt."""
        prompt = self.body.get("prompt")
        several = isinstance(prompt, list) and not isinstance(prompt[0], int)
        return self.n * (len(prompt) if several and isinstance(prompt, list) else 1)

    @property
    def takes_ids(self) -> bool:
        """Whether an engine may be asked for token ids: with echo it would leave out the text of
        the prompt."""
        return not self.body.get("echo")

    def whole(self) -> str:
        """Why an answer cannot be continued by another engine from its tokens; "": it can."""
        body = self.body
        if self.n > 1 or body.get("use_beam_search") or (body.get("best_of") or 1) != 1:
            return "it has several choices"
        if body.get("logprobs") not in (None, False) or body.get("prompt_logprobs") is not None:
            return "it has logprobs"
        if any(body.get(name) for name in STRUCTURED) or _format(body) != "text":
            return "its output is structured"
        if self.kind == "completion":
            if body.get("echo"):
                return "it echoes the prompt"
            return "" if _one_prompt(body.get("prompt")) else "it has several prompts"
        if body.get("tools") and body.get("tool_choice") != "none":
            return "it may call tools"
        return "it has images or audio" if _media(body["messages"]) else ""


STRUCTURED = """structured_outputs guided_json guided_regex guided_choice guided_grammar
    structural_tag regex ebnf json_schema""".split()


def _good(text: str) -> bool:
    """Without control characters and halves of surrogate pairs, which no header takes."""
    return re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", text) is None


def _format(body: Dict[str, Any]) -> Any:
    how = body.get("response_format")
    return how.get("type", "text") if isinstance(how, dict) else "text"


def _one_prompt(prompt: Any) -> bool:
    return isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))


def _media(messages: List[Any]) -> bool:
    parts = [m["content"] for m in messages if isinstance(m.get("content"), list)]
    return any(not isinstance(p, dict) or p.get("type") != "text" for each in parts for p in each)


def _stop_hold(member: _Members) -> int:
    stop = member.body.get("stop")
    words = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
        raise member.wrong("stop", "a text or an array of texts")
    if member.boolean("include_stop_str_in_output"):
        return 0
    return max((len(w) for w in words), default=1) - 1 if any(words) else 0


def _check_prompt(member: _Members, kind: str) -> None:
    if kind == "chat":
        messages = member.array("messages")
        if not messages or not all(isinstance(m, dict) for m in messages):
            raise member.wrong("messages", "an array of one or more objects")
        return
    prompt = member.body.get("prompt")
    if prompt is None and member.body.get("prompt_embeds") is not None:
        return
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and _prompts(prompt)):
        raise member.wrong("prompt", "a text, token ids, or an array of either")


def _prompts(prompt: List[Any]) -> bool:
    """Token ids, texts, or arrays of token ids; not mixed."""

    def ids(many: Any) -> bool:
        return isinstance(many, list) and bool(many) and all(_token(t) for t in many)

    return bool(prompt) and (
        ids(prompt) or all(isinstance(p, str) for p in prompt) or all(ids(p) for p in prompt)
    )


def _token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


class _Members:
    """Members of an object by type; null is as if it were not there."""

    def __init__(self, body: Optional[Dict[str, Any]], above: str = "") -> None:
        self.body: Dict[str, Any] = body or {}
        self.above = above

    def wrong(self, name: str, wanted: str) -> ApiError:
        param = self.above + name
        return ApiError(400, f"{param}: {wanted} is needed", param=param)

    def text(self, name: str) -> str:
        value = self.body.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def boolean(self, name: str) -> bool:
        value = self.body.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return bool(value)

    def number(self, name: str, least: int, most: int = (1 << 31) - 1) -> Optional[int]:
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def object(self, name: str) -> Optional[Dict[str, Any]]:
        value = self.body.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return value

    def array(self, name: str) -> List[Any]:
        value = self.body.get(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong(name, "an array")
        return value or []
