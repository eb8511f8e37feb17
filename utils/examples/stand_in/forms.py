"""What a request says, from the JSON of its body to what the core needs. Anything may be in it:
what cannot be is a Bad, which is answered with 400, or 404 for a model that is not served."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .model import seed_of
from .words import VOCABULARY, BadMessages, Image, chat_tokens, is_unicode, tokens_of

MOST_STOPS = 16
MOST_PROMPTS = 64
LARGEST = 1 << 62


class Bad(Exception):
    """As OpenAI's and vLLM's errors."""

    def __init__(self, message: str, param: Optional[str] = None, status: int = 400) -> None:
        super().__init__(message)
        self.status, self.param = status, param

    def body(self) -> Dict[str, Any]:
        kind = {400: "BadRequestError", 404: "NotFoundError"}.get(self.status, "Error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return {"error": error}


class Body:
    """Members of a JSON object, each of its type."""

    def __init__(self, members: Any) -> None:
        if not isinstance(members, dict):
            raise Bad("the body is no JSON object")
        self.members: Dict[str, Any] = members

    def __contains__(self, name: str) -> bool:
        return self.members.get(name) is not None

    def get(self, name: str, kind: type, what: str) -> Any:
        """None: it is missing, or null."""
        value = self.members.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise Bad(f"{name}: {what}", name)
        return value

    def number(self, name: str, default: Any, least: int, most: int = LARGEST) -> Any:
        value = self.get(name, int, f"an integer from {least} on")
        if value is None:
            return default
        if not least <= value <= most:
            raise Bad(f"{name}: an integer from {least} to {most}, not {value}", name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.members.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise Bad(f"{name}: true or false", name)
        return value

    def real(self, name: str) -> Optional[float]:
        value = self.members.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise Bad(f"{name}: a number from 0 on", name)
        return float(value)

    def text(self, name: str, most: int = 1024) -> Optional[str]:
        value: Optional[str] = self.get(name, str, "a text")
        if value is not None and not (1 <= len(value) <= most and is_unicode(value)):
            raise Bad(f"{name}: 1 to {most} characters", name)
        return value

    def tokens(self, name: str) -> Optional[List[int]]:
        value = self.get(name, list, "a list of token ids")
        return None if value is None else checked(value, name)


def checked(tokens: Sequence[Any], name: str) -> List[int]:
    for token in tokens:
        if type(token) is not int or not 0 <= token < VOCABULARY:
            raise Bad(f"{name}: token ids are integers from 0 to {VOCABULARY - 1}", name)
    return list(tokens)


@dataclass
class Form:
    """A request for answers, one for each prompt."""

    model: str
    chat: bool
    prompts: List[List[int]]
    images: List[Image]
    options: Dict[str, Any]  # of core.Request
    stream: bool = False
    usage: bool = False  # at the end of a stream
    usage_each: bool = False  # in each chunk
    token_ids: bool = False
    echo: bool = False
    stops: List[str] = field(default_factory=list)
    keep_stop: bool = False


class Forms:
    """models: what is served, adapters included. length: tokens of a prompt and its answer."""

    def __init__(self, models: Sequence[str], length: int) -> None:
        self.models, self.length = list(models), length

    def model(self, body: Body) -> str:
        name: Optional[str] = body.get("model", str, "the name of a model")
        if name is not None and name not in self.models:
            raise Bad(f"The model `{name}` does not exist.", "model", 404)
        return self.models[0] if name is None else name

    def chat_prompt(self, body: Body) -> Tuple[List[int], List[Image]]:
        generation = body.flag("add_generation_prompt", True)
        go_on = body.flag("continue_final_message")
        if go_on and generation and "add_generation_prompt" in body:
            raise Bad("continue_final_message and add_generation_prompt do not go together")
        try:
            return chat_tokens(body.members.get("messages"), generation, go_on)
        except BadMessages as error:
            raise Bad(str(error), "messages") from None

    def prompts(self, body: Body) -> List[List[int]]:
        prompt = body.members.get("prompt")
        if isinstance(prompt, str):
            return [tokens_of(prompt)]
        if isinstance(prompt, list) and prompt:
            if all(isinstance(p, str) for p in prompt):
                return [tokens_of(p) for p in prompt[: MOST_PROMPTS + 1]]
            if all(isinstance(p, list) for p in prompt):
                return [checked(p, "prompt") for p in prompt[: MOST_PROMPTS + 1]]
            return [checked(prompt, "prompt")]
        raise Bad("prompt: a text, a list of texts, of token ids, or of lists of these", "prompt")

    def answers(self, members: Any, chat: bool) -> Form:
        """Of /v1/chat/completions or /v1/completions."""
        body = Body(members)
        model = self.model(body)
        images: List[Image] = []
        if chat:
            prompt, images = self.chat_prompt(body)
            prompts = [prompt]
        else:
            prompts = self.prompts(body)
        if len(prompts) > MOST_PROMPTS:
            raise Bad(f"prompt: {MOST_PROMPTS} prompts at most", "prompt")
        self._refuse(body)
        options = self._options(body, chat, max(map(len, prompts)), min(map(len, prompts)))
        streamed = Body(body.get("stream_options", dict, "an object") or {})
        stream = body.flag("stream")
        if streamed.members and not stream:
            raise Bad("stream_options: only with stream", "stream_options")
        return Form(
            model, chat, prompts, images, options,
            stream=stream,
            usage=streamed.flag("include_usage"),
            usage_each=streamed.flag("continuous_usage_stats"),
            token_ids=body.flag("return_token_ids"),
            echo=not chat and body.flag("echo"),
            stops=self._stops(body),
            keep_stop=body.flag("include_stop_str_in_output"),
        )  # fmt: skip

    @staticmethod
    def _refuse(body: Body) -> None:
        """What changes an answer, and is not done here, is not passed over."""
        if body.number("n", 1, 1) != 1 or body.number("best_of", 1, 1) != 1:
            raise Bad("n: one answer is all there is here", "n")
        for name in ("logprobs", "prompt_logprobs", "logit_bias", "tools", "suffix"):
            if body.members.get(name):
                raise Bad(f"{name}: not supported", name)
        form = body.get("response_format", dict, "an object")
        if form is not None and form.get("type") != "text":
            raise Bad("response_format: only text", "response_format")

    def _options(self, body: Body, chat: bool, longest: int, shortest: int) -> Dict[str, Any]:
        room = self.length - longest
        if shortest == 0:
            raise Bad("the prompt is empty", "prompt")
        if room < 1:
            raise Bad(
                f"This model's maximum context length is {self.length} tokens. However, your "
                f"request has {longest} input tokens. Please reduce the length of the input "
                "messages."
            )
        most = body.number("max_completion_tokens", None, 1) if chat else None
        if most is None:
            most = body.number("max_tokens", room if chat else 16, 1)
        if most > room:
            raise Bad(
                f"'max_tokens' or 'max_completion_tokens' is too large: {most}. This model's "
                f"maximum context length is {self.length} tokens and your request has {longest} "
                f"input tokens ({most} > {self.length} - {longest}).",
                "max_tokens",
            )
        least = body.number("min_tokens", 0, 0)
        if least > most:
            raise Bad(f"min_tokens: {least} is more than max_tokens, {most}", "min_tokens")
        seed = body.number("seed", None, -(1 << 63), (1 << 63) - 1)
        return {
            "max_tokens": most,
            "min_tokens": least,
            "ignore_eos": body.flag("ignore_eos"),
            "stop_tokens": body.tokens("stop_token_ids") or [],
            "seed": seed_of(seed, body.real("temperature")),
            "salt": body.text("cache_salt"),
            "params": body.get("kv_transfer_params", dict, "an object"),
        }

    @staticmethod
    def _stops(body: Body) -> List[str]:
        stops = body.members.get("stop")
        stops = [stops] if isinstance(stops, str) else stops or []
        if not isinstance(stops, list) or len(stops) > MOST_STOPS:
            raise Bad(f"stop: a text, or up to {MOST_STOPS} of them", "stop")
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise Bad("stop: texts that are not empty", "stop")
        return stops
