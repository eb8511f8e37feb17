"""Load a hit, or leave it because computing is quicker: decided from what this engine has measured.

    loads      seconds = a + b * tokens, fitted for each tier (of another machine: one more)
    computing  seconds = c * tokens, from how long the engine's own steps take
    load if    a + b * n  <=  c * n, with a margin on both sides, so that it does not waver

Everything is per token of a request: whatever a model keeps for it (windows, states) is in a and b.
Old measurements fade. A tier whose hits are left is tried again now and then. What is not known yet
is loaded.

Nothing here knows of vLLM or of the pool; time is an argument or a given clock."""

import time
from collections import deque
from typing import Callable, Deque, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

__all__ = ["AS_MEASURED", "Judge", "Line", "Steps"]

AS_MEASURED = -1  # as min_load_tokens
MARGIN = 1.25  # how much quicker the other way must be for a verdict to change
TRY_S = 10.0  # a tier that is left is tried this often
ENOUGH = 3  # measurements before they count
# A measurement weighs half after as many seconds, and a little less with each that follows.
_HALF_S = 30.0
_FADING = 0.9
# Requests that compute more tokens than drafts have in a step are in prefill.
_PREFILL = 16


class Line:
    """y = a + b * x through measured points, neither of them negative; the newest count most."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = self._at = 0.0
        self.points = 0

    def add(self, x: float, y: float, now: float) -> None:
        fade = _FADING * 0.5 ** (max(0.0, now - self._at) / _HALF_S) if self.points else 0.0
        self._n = self._n * fade + 1
        self._x = self._x * fade + x
        self._y = self._y * fade + y
        self._xx = self._xx * fade + x * x
        self._xy = self._xy * fade + x * y
        self._at = now
        self.points += 1

    def per_x(self) -> float:
        """y for each x, as if a were 0."""
        return self._y / self._x

    def at(self, x: float) -> float:
        """Points that are all alike tell nothing of a: then it is taken for 0."""
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x * mean_x
        if spread > (0.1 * mean_x) ** 2:
            slope = max(0.0, (self._xy / self._n - mean_x * mean_y) / spread)
            if mean_y >= slope * mean_x:
                return mean_y + slope * (x - mean_x)
        return self.per_x() * x


class _Planned(NamedTuple):
    """A step: when, how many tokens of prefill it has, whether its time says anything, and the
    requests whose loads it waits for."""

    at: float
    tokens: int
    clean: bool
    loads: List[str]


class Steps:
    """How long the engine takes for a token of prefill. Steps are told when they are planned and
    when their outcome is known, up to `ahead` of them are under way at once, one after the other.
    Steps without prefill say how long the rest takes, which is not counted."""

    def __init__(self, ahead: int) -> None:
        self._ahead = max(1, ahead)
        self._under_way: Deque[_Planned] = deque()
        self._over: List[str] = []  # loads of steps that ended without a word
        self._free_at = 0.0
        self._rest = Line()
        self._rate = Line()

    def planned(self, counts: Iterable[int], loads: Iterable[str], now: float) -> None:
        """counts: tokens of each request. loads: requests whose blocks it waits for."""
        while len(self._under_way) >= self._ahead:  # nobody said that it had ended
            self._over += self._under_way.popleft().loads
            self._free_at = now
        each, names = list(counts), list(loads)
        prefill = sum(n for n in each if n >= _PREFILL)
        self._under_way.append(_Planned(now, prefill, bool(each) and not names, names))

    def ended(self, now: float) -> List[str]:
        """Requests whose loads are over."""
        over, self._over = self._over, []
        if not self._under_way:
            return over
        step = self._under_way.popleft()
        took = now - max(step.at, self._free_at)
        self._free_at = now
        if step.clean and step.tokens:
            rest = min(self._rest.at(1), 0.9 * took) if self._rest.points else 0.0
            self._rate.add(step.tokens, took - rest, now)
        elif step.clean:
            self._rest.add(1, took, now)
        return over + step.loads

    def seconds(self, tokens: int) -> Optional[float]:
        """To compute so many tokens; None: not known yet."""
        if self._rate.points < ENOUGH:
            return None
        return self._rate.per_x() * tokens


class _Choice(NamedTuple):
    tier: str
    tokens: int
    loads: bool


class Judge:
    """Whether to load. Used by the scheduler's thread only.

    choose -> begins -> told, until all ranks have said how long it took; a tier is whatever names
    one way to the bytes."""

    def __init__(
        self, least_tokens: int, ahead: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """least_tokens: hits of fewer tokens are left, others loaded; AS_MEASURED: this class
        decides. ahead: as Steps has it."""
        self._least, self._clock = least_tokens, clock
        self._steps = Steps(ahead)
        self._lines: Dict[str, Line] = {}
        self._tried: Dict[str, float] = {}
        self._left: Set[Tuple[str, int]] = set()
        self._chosen: Dict[str, _Choice] = {}
        self._loading: Dict[str, Tuple[_Choice, float]] = {}

    @property
    def _measures(self) -> bool:
        return self._least == AS_MEASURED

    def worth(self, tier: str, tokens: int) -> bool:
        """Is a hit of so many tokens to be loaded?"""
        if not self._measures:
            return tokens >= self._least
        line, computing = self._lines.get(tier), self._steps.seconds(tokens)
        if line is None or line.points < ENOUGH or computing is None:
            return True
        size = (tier, tokens.bit_length())  # verdicts differ with the size of hits
        bar = computing / MARGIN if size in self._left else computing * MARGIN
        if line.at(tokens) <= bar:
            self._left.discard(size)
            return True
        self._left.add(size)
        now = self._clock()
        if now < self._tried.get(tier, 0.0) + TRY_S:
            return False
        self._tried[tier] = now
        return True

    def choose(self, request: str, tokens: int, tier: Callable[[], str], must: bool) -> bool:
        """Is this hit of a request to be loaded? The answer is the same when it is asked again.
        tier: asked where it matters. must: in any case."""
        choice = self._chosen.get(request)
        if choice is None or choice.tokens != tokens:
            name = tier() if self._measures else ""
            choice = _Choice(name, tokens, must or self.worth(name, tokens))
            self._chosen[request] = choice
        return choice.loads

    def begins(self, request: str) -> None:
        """Its blocks are being loaded."""
        if self._measures and request in self._chosen:
            self._loading[request] = (self._chosen[request], 0.0)

    def forget(self, request: str) -> None:
        """The request is over; a load of it may not be."""
        self._chosen.pop(request, None)

    def planned(self, counts: Iterable[int], loads: Iterable[str]) -> None:
        """A step; see Steps."""
        if self._measures:
            self._steps.planned(counts, loads, self._clock())

    def told(self, took: Dict[str, float], arrived: Iterable[str]) -> None:
        """The outcome of a step. took: how long loads took on one rank or several; the slowest
        counts. arrived: requests whose loads between steps are over."""
        now = self._clock()
        over = self._steps.ended(now)
        for request in took.keys() & self._loading.keys():
            choice, before = self._loading[request]
            self._loading[request] = (choice, max(before, took[request]))
        for request in [*over, *arrived]:
            if request in self._loading:
                choice, seconds = self._loading.pop(request)
                if seconds > 0.0:  # else something of it did not arrive
                    self._lines.setdefault(choice.tier, Line()).add(choice.tokens, seconds, now)
                    self._tried[choice.tier] = now
