"""What ends with a `with` block: by close() or by release(), also when the block was left by an
exception."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class Closes:
    """`with` closes it."""

    def close(self) -> Any:
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Releases:
    """`with` releases it."""

    def release(self) -> None:
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
