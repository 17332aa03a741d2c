"""PassCosts: how long a pass of so many rows takes, as measured while serving."""

from bisect import bisect_left, insort
from math import inf

SKIPPED = 1  # the first pass of a size may be recorded, which takes long
ENOUGH = 3  # how many measurements after it make a size known
SHARE = 0.2  # of a new measurement in the running mean
OUTLIER = 2.0  # a measurement counts at most so many times the mean
UNKNOWN_SLOPE = 0.05  # what each further row is assumed to cost where nothing was measured, as a share of the pass


class PassCosts:
    """The running mean of the seconds of passes, by their number of rows. A DECODE of B requests has B rows, a VERIFY one
    for each token: both are the same computation, so each tells about the other."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._seconds: dict[int, float] = {}
        self._tried: dict[int, tuple[int, float]] = {}  # how often, and the least seconds

    @property
    def largest(self) -> int:
        """The most rows that were measured; 0 at first."""
        return self._sizes[-1] if self._sizes else 0

    def add(self, rows: int, seconds: float) -> None:
        """A pass of so many rows has taken so long."""
        mean = self._seconds.get(rows)
        if mean is not None:
            self._seconds[rows] = mean + SHARE * (min(seconds, OUTLIER * mean) - mean)
            return
        count, least = self._tried.get(rows, (0, inf))
        count, least = count + 1, least if count < SKIPPED else min(least, seconds)
        self._tried[rows] = count, least
        if count == SKIPPED + ENOUGH:
            insort(self._sizes, rows)
            self._seconds[rows] = least

    def seconds(self, rows: int) -> float:
        """How long a pass of so many rows takes: between two sizes that were measured, on the line between them; beyond
        them, hopeful, so that it will be tried and measured. 0 as long as nothing was measured."""
        if rows in self._seconds:
            return self._seconds[rows]
        at = bisect_left(self._sizes, rows)
        below = self._sizes[at - 1] if at else None
        above = self._sizes[at] if at < len(self._sizes) else None
        if below is None or above is None:
            known = above if below is None else below
            if known is None:
                return 0.0
            return self._seconds[known] * max(1.0 + UNKNOWN_SLOPE * (rows - known) / known, 0.5)
        share = (rows - below) / (above - below)
        return (1 - share) * self._seconds[below] + share * self._seconds[above]
