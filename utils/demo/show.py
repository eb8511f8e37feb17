"""The counter of the demo: a table that stays where it is in a terminal, lines elsewhere.

    counter = Counter(sys.stdout, "http://127.0.0.1:9479/#Conductor")
    counter.say("engine d3 is killed")
    counter.show([figures, figures])
    counter.close()"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from typing import List, Optional, Sequence, TextIO, Tuple

LINE_EVERY_S = 10.0  # where it is no terminal


@dataclass
class Figures:
    """Of a run, as far as it has come. hits: shares of the prompts' tokens, found on the engine and
    in the pool. resumed: streams that broke and went on elsewhere; moved: requests that were sent
    elsewhere before their first token."""

    name: str
    of: int
    done: int = 0
    under_way: int = 0
    lost: int = 0
    different: Optional[int] = None
    waited: int = 0
    moved: int = 0
    resumed: int = 0
    hits: Tuple[float, float] = (0.0, 0.0)
    first_ms: Tuple[float, float] = (0.0, 0.0)
    tokens_s: float = 0.0

    def rows(self) -> List[Tuple[str, str]]:
        different = "-" if self.different is None else str(self.different)
        return [
            ("requests answered", f"{self.done} of {self.of}"),
            ("under way", str(self.under_way)),
            ("lost", str(self.lost)),
            ("answered differently", different),
            ("sent elsewhere", str(self.moved)),
            ("streams that went on elsewhere", str(self.resumed)),
            ("told to come again (429)", str(self.waited)),
            ("hits: engine, pool", "{:.0%}, {:.0%}".format(*self.hits)),
            ("first token: p50, p90", "{:.0f}, {:.0f} ms".format(*self.first_ms)),
            ("tokens a second", f"{self.tokens_s:.0f}"),
        ]

    def line(self) -> str:
        return f"{self.name}: " + "; ".join(f"{name} {value}" for name, value in self.rows())


class Counter:
    """to: where it is shown. In a terminal the last lines are written anew each time; what is said
    stays above."""

    def __init__(self, to: TextIO) -> None:
        self.to = to
        self.page = ""
        self.live = to.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.began = time.monotonic()
        self._drawn = 0
        self._shown_at = float("-inf")
        self._runs: Sequence[Figures] = ()

    def say(self, text: str) -> None:
        """What has just been done."""
        self._wipe()
        print(f"{self._clock()}  {text}", file=self.to, flush=True)
        if self.live:
            self._draw()

    def show(self, runs: Sequence[Figures]) -> None:
        self._runs = runs
        if self.live:
            self._wipe()
            self._draw()
        elif runs and time.monotonic() - self._shown_at >= LINE_EVERY_S:
            self._shown_at = time.monotonic()
            print(f"{self._clock()}  {runs[-1].line()}", file=self.to, flush=True)

    def close(self) -> None:
        """The table as it is at the end, where it was not to be seen until then."""
        if not self.live and self._runs:
            print("\n".join(table(self._runs)), file=self.to, flush=True)
        self._drawn = 0

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self.began)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _draw(self) -> None:
        lines = ["", *table(self._runs), "", f"the page: {self.page}" if self.page else ""]
        wide = shutil.get_terminal_size().columns
        print("\n".join(line[:wide] for line in lines), file=self.to, flush=True)
        self._drawn = len(lines)

    def _wipe(self) -> None:
        if self._drawn:
            self.to.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0


def table(runs: Sequence[Figures]) -> List[str]:
    """A column for each run."""
    if not runs:
        return []
    rows = [("", [run.name for run in runs])]
    for i, (name, _) in enumerate(runs[0].rows()):
        rows.append((name, [run.rows()[i][1] for run in runs]))
    wide = [max(len(row[1][i]) for row in rows) for i in range(len(runs))]
    names = max(len(name) for name, _ in rows)
    return [
        "  ".join([name.ljust(names), *(text.rjust(w) for text, w in zip(texts, wide))])
        for name, texts in rows
    ]
