"""Errors as OpenAI's API has them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import json
import math
from typing import Dict, Optional, Union

__all__ = ["ApiError", "EngineFailed", "PassedOn"]

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """What the client is told. param: the member of the request that is wrong. retry_s: for
    Retry-After, which has whole seconds, at least 1."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: Optional[str] = None,
        code: Union[str, int, None] = None,
        retry_s: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.kind = "application/json"
        self.headers: Dict[str, str] = {}
        if retry_s is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_s)))

    def body(self) -> bytes:
        kind = KINDS.get(self.status)
        kind = kind or ("server_error" if self.status >= 500 else "invalid_request_error")
        told = {"message": self.message, "type": kind, "param": self.param}
        code = self.status if self.code is None else self.code
        return json.dumps({"error": {**told, "code": code}}).encode()


class PassedOn(Exception):
    """An engine's answer that no other engine would give otherwise: the request is wrong."""

    def __init__(self, status: int, body: bytes, kind: str) -> None:
        super().__init__(f"status {status}")
        self.status, self.kind, self._body = status, kind, body
        self.headers: Dict[str, str] = {}

    def body(self) -> bytes:
        return self._body


class EngineFailed(Exception):
    """An engine did not do what was asked of it; another one may. blame: it counts against it.
    passed: what the client is told if no other one does."""

    def __init__(self, engine: str, text: str, blame: bool = True) -> None:
        super().__init__(text)
        self.engine, self.blame = engine, blame
        self.passed: Optional[PassedOn] = None
