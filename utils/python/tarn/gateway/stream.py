"""One answer as a client sees it, whichever engines make it.

A `Transcript` is fed with the chunks of an engine's stream, and gives the chunks that the client
gets:

    chunks ──feed──> client                 engine 1, /v1/chat/completions
      │ tokens
    breaks off ──resume──> body             /v1/completions, prompt: the prompt's and the answer's
      │                                     tokens, max_tokens: what is left
    chunks ──feed──> the same stream        engine 2; its chunks made chat chunks again"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Set

from .asked import Asked
from .errors import EngineFailed
from .sent import CannotContinue, Sent

__all__ = ["Transcript"]

# What a request of a chat and one of a completion both have, and an answer depends on.
SAMPLING = """temperature top_p top_k min_p typical_p frequency_penalty presence_penalty
    repetition_penalty length_penalty seed stop stop_token_ids include_stop_str_in_output ignore_eos
    min_tokens skip_special_tokens spaces_between_special_tokens logit_bias allowed_token_ids
    bad_words user priority cache_salt vllm_xargs repetition_detection stream_interval
    session_id""".split()
FAILED = ("error", "abort")  # reasons to finish that an engine gives for its own troubles
# A model that still thinks cannot be continued, one that has thought can.
THINKS = ("reasoning", "reasoning_content")
COMPLETION_TOKENS = 16  # max_tokens of /v1/completions where none is asked for


class Transcript:
    """began: a chunk was sent. content: more than roles were. output: tokens of the answer so far,
    as far as engines tell them. prompt_ids: tokens of the prompt, as the engine tells them, or
    whoever knows them sets them."""

    def __init__(self, asked: Asked, request: str) -> None:
        self.asked = asked
        self.engine = ""  # who makes it now, for messages
        self.began, self.content = False, False
        self.output = 0
        self.finished: Dict[int, str] = {}
        self.prompt_ids: List[int] = []
        self._id = ("chatcmpl-" if asked.kind == "chat" else "cmpl-") + request
        self._created, self._model = int(time.time()), asked.model
        self._why = asked.whole()  # it cannot be continued
        self._thinks = False
        self._roles: Set[int] = set()
        self._sent = Sent(asked.stop_hold, asked.ids)
        self._continues = False  # it comes as a completion
        self._usage: Dict[str, Any] = {}

    # --- what an engine sends

    def feed(self, chunk: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """The chunk that the client gets, or None. EngineFailed: it is none. CannotContinue: it is
        another answer than the one begun."""
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not all(self._is_choice(c) for c in choices):
            raise EngineFailed(self.engine, "a chunk without choices as they must be")
        self._head(chunk)
        self._take_prompt_ids(chunk)
        usage = chunk.pop("usage", None)
        if _is_usage(usage):
            self._usage = usage
        kept = [c for c in map(self._choice, choices) if c is not None]
        if not kept:
            return None
        chunk["choices"] = kept
        if self.asked.usage_always:
            own = _is_usage(usage) and not self._continues
            chunk["usage"] = usage if own else self._counted()
        self.began = True
        return chunk

    def _is_choice(self, choice: Any) -> bool:
        if not isinstance(choice, dict):
            return False
        index, reason = choice.setdefault("index", 0), choice.get("finish_reason")
        if not isinstance(index, int) or not 0 <= index < self.asked.choices:
            return False
        if reason is not None and not isinstance(reason, str):
            return False
        if self._as_text:
            return isinstance(choice.setdefault("text", ""), str)
        delta = choice.setdefault("delta", {})
        return isinstance(delta, dict) and isinstance(delta.get("content") or "", str)

    @property
    def _as_text(self) -> bool:
        return self.asked.kind == "completion" or self._continues

    def _head(self, chunk: Dict[str, Any]) -> None:
        """The same of all chunks, whoever makes them."""
        if not self.began:
            if isinstance(chunk.get("id"), str):
                self._id = chunk["id"]
            if isinstance(chunk.get("model"), str):
                self._model = chunk["model"]
            if isinstance(chunk.get("created"), int):
                self._created = chunk["created"]
        chunk.update(self._own())

    def _own(self) -> Dict[str, Any]:
        kind = "chat.completion.chunk" if self.asked.kind == "chat" else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _take_prompt_ids(self, chunk: Dict[str, Any]) -> None:
        """A chat's are in the chunk, a completion's in its choice."""
        for holder in [chunk, *chunk["choices"]]:
            ids = holder.get("prompt_token_ids")
            if self._continues or not self.asked.ids:
                holder.pop("prompt_token_ids", None)
            if ids and _tokens(ids) and not self._continues:
                self.prompt_ids = ids

    def _choice(self, choice: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """What the client gets of it."""
        index, reason = choice["index"], choice.get("finish_reason")
        if reason in FAILED:
            raise EngineFailed(self.engine, f"it ended the request: {reason}")
        if index in self.finished:
            return None
        ids = choice.get("token_ids")
        if ids is not None and not _tokens(ids):
            raise EngineFailed(self.engine, "token ids that are none")
        if not self.asked.ids:
            choice.pop("token_ids", None)
        kept = self._text(choice, ids) if self._as_text else self._delta(choice, ids)
        if reason:
            self.finished[index] = reason
        return kept

    def _delta(self, choice: Dict[str, Any], ids: Optional[List[int]]) -> Optional[Dict[str, Any]]:
        """Of a chat."""
        delta, index = choice["delta"], choice["index"]
        again = index in self._roles and delta.pop("role", None) is not None
        if "role" in delta:
            self._roles.add(index)
        text = delta.get("content") or ""
        other = [k for k, v in delta.items() if v and k not in ("role", "content")]
        if other and other[0] in THINKS:
            self._thinks = True
            self._sent.unmarked()
        elif other:
            self._why = self._why or f"it has {other[0]}"
        elif text:
            self._thinks = False
        last = bool(choice.get("finish_reason"))
        self._take(ids, text, bool(text or other), last)
        # vLLM sends what has nothing but token ids because they were asked for.
        told = text or other or last or choice.get("logprobs") or (self.asked.ids and ids)
        return choice if told or (delta and not again) else None

    def _text(self, choice: Dict[str, Any], ids: Optional[List[int]]) -> Optional[Dict[str, Any]]:
        """Of a completion; in a chat that another engine continues it becomes a chat's."""
        last = bool(choice.get("finish_reason"))
        said = bool(choice["text"])
        choice["text"], new = self._take(ids, choice["text"], said, last)
        if self.asked.ids and ids is not None:
            choice["token_ids"] = new
        if self._continues and not (choice["text"] or last or (self.asked.ids and new)):
            return None
        return self._as_chat(choice) if self.asked.kind == "chat" else choice

    def _as_chat(self, choice: Dict[str, Any]) -> Dict[str, Any]:
        text, index = choice.pop("text"), choice["index"]
        delta = {"content": text} if text else {}
        if index not in self._roles:
            self._roles.add(index)
            delta = {"role": "assistant", "content": text}
        return {"index": index, "delta": delta, **choice}

    def _take(
        self, ids: Optional[List[int]], text: str, said: bool, last: bool
    ) -> "tuple[str, List[int]]":
        """Counts it, and keeps it as far as somebody else may go on with it; what is new of it."""
        self.output += len(ids) if ids is not None else int(said)
        self.content = self.content or said or (self.asked.ids and bool(ids))
        if said and ids is None:
            self._why = self._why or "its engine does not tell tokens"
        return (text, ids or []) if self._why else self._sent.take(ids, text, last)

    # --- the end

    def done(self) -> bool:
        """All choices have come to their end."""
        return len(self.finished) == self.asked.choices

    def last(self) -> Dict[str, Any]:
        """The chunk with the usage of all, as `stream_options.include_usage` wants it."""
        return {**self._own(), "choices": [], "usage": self.usage()}

    def usage(self) -> Dict[str, Any]:
        """The engine's own words where one made all of it."""
        return self._usage if self._usage and not self._continues else self._counted()

    def _counted(self) -> Dict[str, Any]:
        prompt = len(self.prompt_ids)
        total = prompt + self.output
        return {"prompt_tokens": prompt, "completion_tokens": self.output, "total_tokens": total}

    # --- what follows a break

    def cannot(self) -> str:
        """Why it cannot go on elsewhere; "": it can."""
        if not self.content:
            return ""
        if self._thinks and not self._why:
            return "the model was thinking"
        return self._why or ("" if self.prompt_ids else "the prompt's tokens are not known")

    def resume(self, room: Optional[int]) -> Optional[Dict[str, Any]]:
        """The body of a request to /v1/completions that goes on with it, or None where nothing but
        its end is missing. room: tokens that the model takes, prompt and answer together.
        CannotContinue."""
        if self.cannot():
            raise CannotContinue(self.cannot())
        most = self._most(room)
        all_sent = len(self._sent.ids) >= most
        if self._sent.rewind() and all_sent:
            self.finished[0] = "length"
            return None
        self._continues, self._usage, self.output = True, {}, len(self._sent.ids)
        asked = self.asked.body
        if self.asked.kind == "completion":
            body = {k: v for k, v in asked.items() if k != "truncate_prompt_tokens"}
        else:
            body = {k: asked[k] for k in SAMPLING if k in asked}
        if isinstance(body.get("min_tokens"), int):
            body["min_tokens"] = max(0, body["min_tokens"] - self.output)
        prompt = self.prompt_ids + self._sent.ids
        return {
            **body,
            "model": self.asked.model,
            "prompt": prompt,
            "max_tokens": most - self.output,
        }

    def _most(self, room: Optional[int]) -> int:
        if self.asked.max_tokens is not None:
            return self.asked.max_tokens
        if self.asked.kind == "completion":
            return COMPLETION_TOKENS
        if room is None:
            raise CannotContinue("nobody told max_tokens, nor the model's max_model_len")
        return room - len(self.prompt_ids)

    def anew(self) -> None:
        """It begins once more, with another engine; nothing but roles was sent."""
        self._sent = Sent(self.asked.stop_hold, self.asked.ids)
        self.output, self._thinks, self.finished = 0, False, {}

    def ends(self) -> Dict[str, Any]:
        """The chunk that says so where the engine's own is lost (`resume` gave None)."""
        choice: Dict[str, Any] = {"index": 0, "finish_reason": self.finished[0], "logprobs": None}
        if self.asked.kind == "chat":
            return {**self._own(), "choices": [{**choice, "delta": {}}]}
        return {**self._own(), "choices": [{**choice, "text": ""}]}


def _tokens(ids: Any) -> bool:
    return isinstance(ids, list) and all(
        isinstance(t, int) and not isinstance(t, bool) and 0 <= t < 1 << 32 for t in ids
    )


def _is_usage(usage: Any) -> bool:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return isinstance(usage, dict) and all(isinstance(usage.get(n), int) for n in names)
