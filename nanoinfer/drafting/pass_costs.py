"""PassCosts: how long a pass of so many tokens takes, as measured while serving; or whatever else has a size."""

from bisect import bisect_left, insort

ENOUGH = 3  # how many measurements make a size known
MEMORY = 64  # how many of them count
OUTLIER = 1.5  # a measurement counts as at most so many times what is known
HOPED_SHARE = 0.8  # beyond what was measured, a token is hoped to cost so many times what tokens have cost so far
UNKNOWN_SLOPE = 0.05  # where that is unknown, too: what twice the tokens are hoped to cost more, as a share of the pass
HOPE, HOPE_AFTER = 0.1, 1024  # what was measured so many passes ago is hoped to take so much less now
DRIFT_MEMORY = 16  # how many passes tell how fast the machine is now


class Drift:
    """How many times as long everything takes now as at first. Machines slow down and speed up, because of other programs
    or of heat. Without this, costs that were measured at different times could not be compared."""

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, seconds: float, expected: float) -> None:
        """A pass has taken so long; at first, it took `expected`."""
        ratio = min(max(seconds / expected / self.factor, 1 / OUTLIER), OUTLIER)
        self.factor *= ratio ** (1 / DRIFT_MEMORY)


class PassCosts:
    """What passes have taken, by their size, which is how many new tokens they have. A DECODE of B requests has B, a VERIFY
    has the drafts as well: both are the same computation, so each tells about the other."""

    def __init__(self, enough: int = ENOUGH) -> None:
        self._enough = enough
        self._sizes: list[int] = []  # those that are known, in order
        self._seconds: dict[int, float] = {}
        self._newest: dict[int, int] = {}  # when each of them was measured last
        self._counts: dict[int, int] = {}  # how often each of them was measured
        self._first: dict[int, list[float]] = {}  # measurements of sizes that are not known yet

    @property
    def largest(self) -> int:
        """The most tokens that are known; 0 at first."""
        return self._sizes[-1] if self._sizes else 0

    def has(self, size: int) -> bool:
        """Whether passes of just so many tokens were measured."""
        return size in self._seconds

    def knows(self, size: int) -> bool:
        """Whether so many tokens are within what was measured."""
        return bool(self._sizes) and self._sizes[0] <= size <= self._sizes[-1]

    def age(self, size: int, now: int) -> int:
        """How many passes ago passes of so many tokens were measured; 0 if never."""
        return now - self._newest.get(size, now)

    def add(self, size: int, seconds: float, now: int = 0) -> None:
        """Pass number `now` had so many tokens, and has taken so long. Of the first ones, the fastest counts, because new
        sizes are slow at first; then the mean of the last ones."""
        self._newest[size] = now
        known = self._seconds.get(size)
        if known is not None:
            self._counts[size] = count = min(self._counts[size] + 1, MEMORY)
            self._seconds[size] = known + (min(max(seconds, known / OUTLIER), known * OUTLIER) - known) / count
            return
        first = self._first.setdefault(size, [])
        first.append(seconds)
        if len(first) == self._enough:
            insort(self._sizes, size)
            self._seconds[size], self._counts[size] = min(first), self._enough

    def seconds(self, size: int, now: int | None = None) -> float:
        """How long a pass of so many tokens takes; 0 as long as nothing is known.

        What was not measured is guessed. Between two sizes, it is on the line between them. Beyond the largest, the guess
        is hopeful, so that the size will be tried and measured. And so is, given the number of the pass that is planned
        `now`, what was measured long ago.
        """
        if size in self._seconds:
            age = 0 if now is None else now - self._newest[size]
            return self._seconds[size] * (1 - HOPE * min(age / HOPE_AFTER, 1))
        if not self._sizes:
            return 0.0
        at = bisect_left(self._sizes, size)
        if at == 0:
            first = self._sizes[0]
            return self._seconds[first] * size / first
        below = self._sizes[at - 1]
        if at < len(self._sizes):
            above = self._sizes[at]
            share = (size - below) / (above - below)
            return (1 - share) * self._seconds[below] + share * self._seconds[above]
        first = self._sizes[0]
        of_a_token = UNKNOWN_SLOPE * self._seconds[below] / below
        if first < below:
            of_a_token = max(of_a_token, HOPED_SHARE * (self._seconds[below] - self._seconds[first]) / (below - first))
        return self._seconds[below] + of_a_token * (size - below)
