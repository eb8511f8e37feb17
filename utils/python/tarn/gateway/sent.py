"""What of an answer was sent, by tokens and by text, so that another engine can go on with it.

Text may lag behind tokens: a character of several tokens is told with its last one, and what may be
the beginning of a stop string is held back. So an answer goes on from a mark, a token of which it
is known how far its text reaches, and what the client has beyond it is left out of what follows:

    tokens    t1 t2 t3 t4 t5 t6 t7        engine 1 was asked to hold 3 characters back
    text      The quick br|own            |: what the client has
    mark         t3: The quick            engine 2 goes on behind t3
    comes                     brown fox   of which " br" was sent already
"""

from __future__ import annotations

from typing import List, Optional, Tuple

__all__ = ["CannotContinue", "Sent"]

# Marks that are kept. What is held back is less than that many chunks.
MARKS_MOST = 1024


class CannotContinue(Exception):
    """The answer cannot be continued elsewhere; says why."""


class Sent:
    """hold: characters that engines hold back. ids: tokens of the answer. tells_ids: the client
    gets the ids, too."""

    def __init__(self, hold: int, tells_ids: bool) -> None:
        self._hold, self._tells_ids = hold, tells_ids
        self.ids: List[int] = []
        self._text = ""
        self._at = 0  # how far in the text the engine has come that makes it now
        self._again: List[int] = []  # ids that were sent, and come once more
        self._marks: List[Tuple[int, int]] = [(0, 0)]  # tokens, characters that they reach

    def take(self, ids: Optional[List[int]], text: str, last: bool) -> Tuple[str, List[int]]:
        """What is new of it. last: nothing follows. CannotContinue: it is not what was sent."""
        ids = ids or []
        self.ids += ids
        n = min(len(text), len(self._text) - self._at)
        short = last and self._at + n < len(self._text)
        if text[:n] != self._text[self._at : self._at + n] or short:
            raise CannotContinue("what was sent of its text comes out otherwise")
        self._at += len(text)
        self._text += text[n:]
        # A character that is not whole yet is said as U+FFFD, or not at all.
        if text and not text.endswith("\ufffd"):
            self._marks.append((len(self.ids), self._at + self._hold))
            del self._marks[1:-MARKS_MOST]
        return text[n:], self._new_ids(ids)

    def _new_ids(self, ids: List[int]) -> List[int]:
        n = min(len(ids), len(self._again))
        if ids[:n] != self._again[:n]:
            raise CannotContinue("what was sent of its tokens comes out otherwise")
        del self._again[:n]
        return ids[n:]

    def unmarked(self) -> None:
        """What was sent so far is not a text as tokens make it."""
        self._marks = []

    def rewind(self) -> bool:
        """Back to the last mark; `ids` are the tokens up to there. True: nothing is sent or held
        beyond it. CannotContinue."""
        for tokens, reach in reversed(self._marks):
            if reach <= len(self._text):
                break
        else:
            raise CannotContinue("it is not known which of its tokens its text ends with")
        whole = tokens == len(self.ids) and reach == len(self._text)
        self._again = self.ids[tokens:] if self._tells_ids else []
        self.ids, self._at = self.ids[:tokens], reach
        self._marks = [m for m in self._marks if m[0] <= tokens]
        return whole
